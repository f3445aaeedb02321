"""Arrays of strings of varying length in Zarr v3 (zarr-extensions: ``string``, ``bytes``)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from virtualds.codecs import codec_from_zarr_v3
from virtualds.errors import FormatError, UnsupportedError
from virtualds.varying_array import BYTES, TEXT, VaryingArray
from virtualds.zarr_v3.arrays import Manifests, placed
from virtualds.zarr_v3.axes import order_of_axes
from virtualds.zarr_v3.data_types import name_and_configuration
from virtualds.zarr_v3.metadata import axes_from_v3

SERIALISERS = {
    "string": TEXT,
    "variable_length_utf8": TEXT,
    "bytes": BYTES,
    "variable_length_bytes": BYTES,
}
"""What makes bytes of the elements of a data type."""


def is_varying(metadata: Mapping[str, Any]) -> bool:
    """Say whether the elements of an array are strings of varying length."""
    return name_and_configuration(metadata["data_type"], "data_type")[0] in SERIALISERS


def varying_from_v3(metadata: Mapping[str, Any], manifests: Manifests) -> VaryingArray:
    """Return the array of strings that metadata describe.

    Parameters
    ----------
    metadata : mapping
        The content of ``zarr.json``.
    manifests : callable
        Where the chunks lie.

    Raises
    ------
    FormatError
        The fill value is none of the data type, or the metadata make no sense otherwise.
    UnsupportedError
        A codec is not known.
    """
    shape = tuple(metadata["shape"])
    serialiser = SERIALISERS[name_and_configuration(metadata["data_type"], "data_type")[0]]
    layout, codecs = tuple(range(len(shape))), []
    chain = [name_and_configuration(entry, "codec") for entry in metadata["codecs"]]
    names = [name for name, _ in chain]
    if names.count(serialiser) != 1:
        raise UnsupportedError(
            f"codecs {names}: strings of varying length are read where {serialiser!r} makes bytes "
            f"of them; open the data with zarr-python"
        )
    place = names.index(serialiser)
    for name, config in chain[:place]:
        if name != "transpose":
            raise UnsupportedError(
                f"codec {name!r} before {serialiser!r}: strings of varying length are only "
                f"transposed; open the data with zarr-python"
            )
        layout = tuple(layout[i] for i in order_of_axes(config, len(shape)))
    for name, config in chain[place + 1 :]:
        codecs.append(codec_from_zarr_v3(name, config, np.dtype("u1")))
    axes = axes_from_v3(shape, metadata["chunk_grid"])
    grid = tuple(axis.nchunks for axis in axes)
    parts = manifests([grid], 0) if prod(grid) else []
    fragments = tuple(placed(part, axes) for part in parts)
    fill = _fill(metadata["fill_value"], serialiser)
    return VaryingArray(shape, serialiser, tuple(codecs), layout, fill, fragments)


def _fill(value: Any, serialiser: str) -> str | bytes:
    """Return a fill value: of bytes it is base64, or a list of numbers."""
    try:
        if serialiser == BYTES:
            text = isinstance(value, str)
            return base64.b64decode(value, validate=True) if text else bytes(list(value))
    except (TypeError, ValueError) as error:
        raise FormatError(f"fill_value {value!r}: it is no bytes; {error}") from error
    if not isinstance(value, str):
        raise FormatError(f"fill_value {value!r}: it is no string; the metadata is damaged")
    return value
