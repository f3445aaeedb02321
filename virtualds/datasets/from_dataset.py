"""From an xarray dataset to a group of stored variables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import COPIED_BYTES, ManifestArray, default_fill
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import drop_repeated_tables
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.datasets.decoding import CHARACTER_AXIS, NO_NAME, set_characters_apart
from virtualds.datasets.lazy import get_virtual_array, is_unread
from virtualds.datasets.loaded_values import encode_loaded
from virtualds.datasets.references_behind import restore_references
from virtualds.datasets.to_dataset import IDENTITIES
from virtualds.errors import CopyWarning, UnsupportedError, VirtualdsError, warn_user
from virtualds.options import get_options
from virtualds.quantities import format_bytes
from virtualds.stores.access_rules import demand_nameable

# ---------------------------------------------------------------------- dataset -> group


def group_from_dataset(dataset: xr.Dataset) -> ManifestGroup:
    """Return a dataset as a group of variables as they will be stored.

    Virtual arrays get back the packing that all their chunks share. Loaded variables are encoded as
    their ``encoding`` says, or losslessly if that would change their values.

    Raises
    ------
    UnsupportedError
        A variable cannot be encoded without changing its values.
    """
    dataset = restore_references(dataset)
    coded, attributes = xr.conventions.encode_dataset_coordinates(dataset)
    variables = {}
    for name, variable in coded.items():
        if name is not None and (not isinstance(name, str) or not name or "/" in name):
            raise UnsupportedError(
                f"variable {name!r}: a name in a file is a string without '/'; rename it with "
                f"ds.rename"
            )
        try:
            variables[NO_NAME if name is None else name] = _to_stored(str(name), variable)
        except VirtualdsError as error:
            error.locate(f"variable {name!r}")
            raise
    _check_urls(variables.values())
    # what was not decoded is stored as it is
    raw = [name for name, v in variables.items() if v.encoding.get(CHARACTER_AXIS, "") is None]
    variables = set_characters_apart(variables, raw)
    return ManifestGroup(variables, attributes, encoding=dataset.encoding)


def as_read(group: ManifestGroup) -> ManifestGroup:
    """Return the group of a dataset as a format would read it, so that it can be decoded again.

    Decoding moves attributes such as units to the encoding, and refuses to replace one there.
    """
    variables = {
        name: replace(v, encoding={k: e for k, e in v.encoding.items() if k not in v.attributes})
        for name, v in group.variables.items()
    }
    return replace(group, variables=variables)


def _check_urls(variables: Iterable[ManifestVariable]) -> None:
    """Refuse file names that no set can hold, before an unreadable set is written."""
    arrays = [v.data for v in variables if isinstance(v.data, ManifestArray)]
    manifests = (f.manifest for array in arrays for f in array.fragments)
    # files in a set were checked when the set was written
    tables = drop_repeated_tables(m.listed for m in manifests if not m.is_in_set)
    for file in chain.from_iterable(tables):
        demand_nameable(file.url)


def _to_stored(name: str, variable: xr.Variable) -> ManifestVariable:
    dims = tuple(str(dim) for dim in variable.dims)
    if (data := get_virtual_array(variable)) is not None:
        array, packed = unpack(data)
        # a packing that changes no value is recorded only in the encoding
        same = all(p.packing is None for p in array.pipelines)
        kept = {n: variable.encoding[n] for n in IDENTITIES if same and n in variable.encoding}
        return ManifestVariable(dims, array, variable.attrs | (packed or kept), variable.encoding)
    if not isinstance(variable.dtype, np.dtype):
        raise UnsupportedError(
            f"its type {variable.dtype} is one of pandas, which files do not have; assign its "
            f"values as an array of numpy: for categories their text or numbers, for periods the "
            f"dates that they begin with, and what else tells them apart"
        )
    check_loading(name, variable)
    plain = encode_loaded(name, variable)
    return ManifestVariable(dims, np.asarray(plain.data), plain.attrs, variable.encoding)


def check_loading(name: str, variable: xr.Variable) -> None:
    """Warn of many values that have to be read or computed first, and refuse too many.

    Raises
    ------
    UnsupportedError
        They have more bytes than `set_options(load_limit=...)` allows.
    """
    if not (is_unread(variable) or variable.chunks is not None):
        return
    limit = get_options().load_limit
    if variable.nbytes > limit:
        raise UnsupportedError(
            f"its {variable.nbytes:,} bytes would be read and written inline, more than the limit "
            f"of {limit:,}; open the source with virtualds.open_virtual_dataset, which keeps "
            f"references of all but strings of varying length, select less of it, leave it out "
            f"(ds.drop_vars), or raise the limit with virtualds.set_options(load_limit=...)"
        )
    if variable.dtype.hasobject:
        # strings of varying length have no references
        return
    warn_of_values(name, variable.nbytes, "it is not virtual, but read when it is needed")


def warn_of_values(name: str, nbytes: int, why: str) -> None:
    """Warn that writing loads values that a user may think of as references."""
    if nbytes > COPIED_BYTES:
        warn_user(
            f"{name}: writing loads {format_bytes(nbytes)}, and the set holds a copy of them, "
            f"since {why}. To copy nothing, open its source with virtualds.open_virtual_dataset "
            f"and write that; if you mean to copy, call ds.load() before",
            CopyWarning,
        )


def unpack(array: ManifestArray) -> tuple[ManifestArray, dict[str, Any] | None]:
    """Return the stored array and its packing attributes, if all chunks share one packing.

    Otherwise return the array unchanged, and None.
    """
    packings = {p.packing for p in array.pipelines}
    dtypes = {p.dtype for p in array.pipelines}
    if len(packings) != 1 or len(dtypes) != 1:
        return array, None
    packing, dtype = packings.pop(), dtypes.pop()
    if (packing.dtype if packing else dtype.newbyteorder("=")) != array.dtype:
        return array, None
    pipelines: dict[CodecPipeline, None] = {replace(p, packing=None): None for p in array.pipelines}
    fill = default_fill(dtype)
    if array.has_gaps:
        if not array.gaps_read_as_missing:
            return array, None
        fill = array.pipelines[0].fill_value
    plain = replace(array, dtype=dtype, fill_value=fill, pipelines=tuple(pipelines))
    return plain, dict(packing.attributes) if packing else None
