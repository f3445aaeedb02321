"""Notes on the encoding of variables that Zarr metadata cannot express.

xarray has the encoding in ``Variable.encoding``, under the names of its netCDF backends. A format
notes what references and metadata do not show, and joins both when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestVariable
from virtualds.codecs.codec import NO_FILTERS
from virtualds.errors import FormatError
from virtualds.formats.zarr.v2_arrays import describe_storage

CHARACTER = np.dtype("S1")
"""The type of characters, whose last axis makes strings (NUG)."""
PIECES = ("contiguous", "chunksizes")
"""Entries about the chunks of a variable."""
OF_SETS = ("zstd", "complevel", *PIECES)
"""Entries that a set decides about for values that it holds as Zarr v3."""


def restore_encoding(
    array: ManifestArray, dims: tuple[str, ...], notes: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Return the encoding of a variable of the set at ``source``, with its notes."""
    found = describe_storage(array, dims)
    found |= (noted := notes.get("encoding", {}))
    for name, value in noted.items():
        # Python reads words for them, which are no JSON
        if isinstance(value, float) and not isfinite(value):
            raise FormatError(
                f"{source}: the set notes {value} as {name!r} of a variable; the set is damaged, "
                f"restore it or write it anew"
            )
    if found["chunksizes"] is not None:
        found["chunksizes"] = tuple(found["chunksizes"])
    if any(found[name] for name in NO_FILTERS):
        # chunks of many shapes are chunks; HDF5 filters nothing else
        found["contiguous"] = False
    if found["contiguous"]:
        found["chunksizes"] = None
        found.pop("preferred_chunks", None)
    found["dtype"] = array.dtype
    if "enum" in notes:
        found["dtype"] = np.dtype(array.dtype, metadata=dict(notes["enum"]))
    if "least_significant_digit" in notes:
        found["least_significant_digit"] = notes["least_significant_digit"]
    return found | {"source": source, "original_shape": array.shape}


def restore_text_encoding(encoding: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the encoding of an array of strings, which were characters in the source if noted."""
    if "characters" not in notes:
        return dict(encoding)
    known = dict(notes["characters"])
    found = {**encoding, "dtype": CHARACTER}
    # xarray takes the last length for that of the axis of characters
    shape, length = found.pop("original_shape"), known.pop("length", None)
    if length is not None:
        found["original_shape"] = (*shape, length)
    return found | known


def list_declared(
    variable: ManifestVariable, stored: ManifestArray | None = None
) -> dict[str, Any]:
    """Return the part of an encoding that cannot be derived from the metadata.

    ``stored`` is the array that a reader of the set will find; None for values that the set holds
    in its own way.
    """
    found: dict[str, Any] = {}
    encoding = variable.encoding
    if NO_FILTERS.keys() <= encoding.keys() and variable.data.dtype.kind not in "OUT":
        found = _describe_storage(variable, stored)
    if encoding.get("dtype") == CHARACTER and variable.data.dtype.kind in "OUT":
        found["characters"] = _describe_characters(variable)
    enum = getattr(encoding.get("dtype"), "metadata", None)
    if enum and "enum" in enum:
        members = {name: int(value) for name, value in enum["enum"].items()}
        found["enum"] = {"enum": members, "enum_name": enum.get("enum_name")}
    if "least_significant_digit" in encoding:
        found["least_significant_digit"] = int(encoding["least_significant_digit"])
    return found


def _describe_characters(variable: ManifestVariable) -> dict[str, Any]:
    """Return which characters of the source became strings."""
    encoding = variable.encoding
    found: dict[str, Any] = {
        name: str(encoding[name]) for name in ("char_dim_name", "_Encoding") if name in encoding
    }
    shape = encoding.get("original_shape", ())
    if len(shape) == variable.data.ndim + 1:
        found["length"] = int(shape[-1])
    return found


def _describe_storage(variable: ManifestVariable, stored: ManifestArray | None) -> dict[str, Any]:
    """Return how the source stores values, where the references do not show it."""
    encoding = variable.encoding
    if stored is None:
        derived, names = dict(NO_FILTERS), [*NO_FILTERS]
        for name in OF_SETS:
            derived.pop(name, None)
    else:
        # HDF5 skips a filter that does not shrink a chunk, so perhaps no chunk shows it
        derived = describe_storage(stored, variable.dims)
        names = [*NO_FILTERS]
    # of several files, or a part of one, there is no such source
    if stored is None and encoding.get("original_shape") == variable.data.shape:
        names += PIECES
    elif stored is not None and stored.nchunks <= 1:
        names += PIECES if _is_inline(variable) else PIECES[:1]
    missing = object()
    differing = {
        n: encoding[n] for n in names if n in encoding and encoding[n] != derived.get(n, missing)
    }
    if (chunks := differing.pop("chunksizes", None)) is not None:
        # what is contiguous has none
        differing["chunksizes"] = [int(n) for n in chunks]
    return {"encoding": differing} if differing else {}


def _is_inline(variable: ManifestVariable) -> bool:
    """Say whether a set holds the values of a variable with its metadata, as the source had it."""
    data = variable.data
    if variable.encoding.get("original_shape") != data.shape:
        return False
    if not isinstance(data, ManifestArray):
        return True
    return any(fragment.manifest.inline for fragment in data.fragments)
