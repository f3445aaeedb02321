"""Notes on the encoding of variables that Zarr metadata cannot express.

xarray has the encoding in ``Variable.encoding``, under the names of its netCDF backends. A format
notes what references and metadata do not show, and joins both when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestVariable
from virtualds.codecs.codec import NO_FILTERS
from virtualds.formats.zarr.v2_metadata import describe_storage


def restore_encoding(
    array: ManifestArray, dims: tuple[str, ...], notes: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Return the encoding of a variable of the set at ``source``, with its notes."""
    found = describe_storage(array, dims)
    found |= notes.get("encoding", {})
    if found["contiguous"]:
        found["chunksizes"] = None
        found.pop("preferred_chunks", None)
    found["dtype"] = array.dtype
    if "enum" in notes:
        found["dtype"] = np.dtype(array.dtype, metadata=dict(notes["enum"]))
    if "least_significant_digit" in notes:
        found["least_significant_digit"] = notes["least_significant_digit"]
    return found | {"source": source, "original_shape": array.shape}


def list_declared(
    variable: ManifestVariable, stored: ManifestArray | None = None
) -> dict[str, Any]:
    """Return the part of an encoding that cannot be derived from the metadata.

    ``stored`` is the array that a reader of the set will find; None for an array of strings.
    """
    found: dict[str, Any] = {}
    encoding = variable.encoding
    if NO_FILTERS.keys() <= encoding.keys() and stored is not None:
        found = _describe_storage(variable, stored)
    enum = getattr(encoding.get("dtype"), "metadata", None)
    if enum and "enum" in enum:
        members = {name: int(value) for name, value in enum["enum"].items()}
        found["enum"] = {"enum": members, "enum_name": enum.get("enum_name")}
    if "least_significant_digit" in encoding:
        found["least_significant_digit"] = int(encoding["least_significant_digit"])
    return found


def _describe_storage(variable: ManifestVariable, stored: ManifestArray) -> dict[str, Any]:
    """Return how the source stores values, where the references do not show it."""
    # HDF5 skips a filter that does not shrink a chunk, so perhaps no chunk shows it
    derived = describe_storage(stored, variable.dims)
    names = (*NO_FILTERS, "contiguous") if stored.nchunks <= 1 else NO_FILTERS
    encoding = variable.encoding
    differing = {n: encoding[n] for n in names if encoding.get(n) != derived[n]}
    return {"encoding": differing} if differing else {}
