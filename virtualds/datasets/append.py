"""What becomes of a set when sources are added to it, replaced in it, or dropped from it.

All of it is concatenation of virtual datasets: stretches of the set as it is, opened lazily, and
new data between them. Nothing is written here; a format compares what comes out with what it has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.projection import find_runs
from virtualds.codecs.cf_packing import PACKING_ATTRIBUTES
from virtualds.datasets.append_places import (
    POSITIONS,
    cut_along,
    find_replaced_static,
    pair_stretches,
)
from virtualds.datasets.duplicates import check_unchanged, duplicates_error, find_known_positions
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.references_behind import restore_references
from virtualds.datasets.source_positions import find_only_dimension, find_positions, urls_of
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.errors import CombineError, VirtualdsError
from virtualds.formats.undecodable import decode_group

TEXT_KINDS = "OUST"
"""Kinds of dtypes that change with the length of strings."""


JOINABLE_KINDS = (set(TEXT_KINDS), set("biufc"), {"m"}, {"M"})
"""Kinds of dtypes that xarray brings to a common one, of the same kind, when it joins arrays."""


CODING_ATTRIBUTES = (
    "units",
    "calendar",
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
)
"""Attributes that say how numbers are stored."""


def append_along(
    old: ManifestGroup,
    new: xr.Dataset,
    dim: str,
    position: str = "end",
    on_duplicate: str = "raise",
) -> ManifestGroup:
    """Return a set with a dataset added along a dimension.

    Parameters
    ----------
    old : ManifestGroup
        The set.
    new : xarray.Dataset
        It has the variables of the set, and other lengths only along ``dim``.
    dim : str
    position : {"end", "start", "coordinate"}
        Where to put it; ``"coordinate"`` puts every part of it where its coordinate belongs.
    on_duplicate : {"raise", "skip"}
        What to do about positions that are in the set already.

    Returns
    -------
    ManifestGroup
        ``old`` itself if nothing is left to be added.

    Raises
    ------
    CombineError
        The datasets do not belong together, or some of the data are in the set already.
    ValueError
        There is no such dimension, position, or way to treat duplicates.
    """
    _check_choice("position", position, POSITIONS)
    _check_choice("on_duplicate", on_duplicate, ("raise", "skip"))
    new = restore_references(new)
    present = _open_set(old, new, dim)
    new = _select_comparable(present, _load_index_alike(present, new, dim), dim)
    known = find_known_positions(present, new, dim)
    if known.any() and on_duplicate == "raise":
        raise duplicates_error(present, new, dim, known)
    if known.all():
        return old
    check_unchanged(present, new, dim)
    present = _load_alike(present, new)
    added = [cut_along(new, dim, stretch) for stretch in find_runs(np.flatnonzero(~known))]
    return _to_group(old, _join_pieces(present, POSITIONS[position](present, added, dim), dim))


def replace_sources(old: ManifestGroup, new: xr.Dataset, dim: str | None = None) -> ManifestGroup:
    """Return a set with a dataset in place of what came from its sources before.

    Parameters
    ----------
    old : ManifestGroup
        The set.
    new : xarray.Dataset
        Opened from sources that were processed again, under the urls that the set knows, or with
        the values of the coordinate that it has.
    dim : str, optional
        Along which sources follow each other; by default the only one along which they do.

    Raises
    ------
    CombineError
        The datasets do not belong together, or the set has no such source.
    ValueError
        There is no such dimension, or none was given and several are possible.
    """
    new = restore_references(new)
    present = _open_set(old, new, dim)
    if dim is None:
        dim = find_only_dimension(present, urls_of(new))
    # what does not follow the dimension may come from a source that is no longer what it was
    static = find_replaced_static(present, new, dim)
    new = _select_comparable(
        present, _load_index_alike(present, new.drop_vars(list(static)), dim), dim
    )
    places = pair_stretches(present, new, dim)
    present = _load_alike(present, new)
    pieces, last = [], 0
    for (begin, stop), part in sorted(places, key=lambda place: place[0]):
        pieces += [cut_along(present, dim, (last, begin)), part]
        last = stop
    pieces.append(cut_along(present, dim, (last, present.sizes[dim])))
    joined = _join_pieces(present, [p for p in pieces if p.sizes[dim]], dim)
    return _to_group(old, joined.assign(static))


def remove_sources(
    old: ManifestGroup, urls: Iterable[str], dim: str | None = None
) -> ManifestGroup:
    """Return a set without what comes from some sources along a dimension.

    Raises
    ------
    CombineError
        The set has no such source, or nothing but these.
    ValueError
        There is no such dimension, or none was given and several are possible.
    """
    present = _open_set(old, None, dim)
    wanted = set(urls)
    if dim is None:
        dim = find_only_dimension(present, wanted)
    gone = np.zeros(present.sizes[dim], bool)
    for url in wanted:
        met = find_positions(present, dim, {url})
        if not met.any():
            raise CombineError(f"{url}: it is no source of the set along {dim!r}; see its sources")
        gone |= met
    kept = np.flatnonzero(~gone)
    if not kept.size:
        raise CombineError(f"nothing would be left of the set along {dim!r}; remove it instead")
    pieces = [cut_along(present, dim, run) for run in find_runs(kept)]
    return _to_group(old, _join_pieces(present, pieces, dim))


# ---------------------------------------------------------------------- what there is


def _check_choice(name: str, given: str, known: Iterable[str]) -> None:
    if given not in known:
        raise ValueError(f"{name} {given!r}: there are {', '.join(map(repr, known))}")


def _open_set(old: ManifestGroup, new: xr.Dataset | None, dim: str | None) -> xr.Dataset:
    """Return the set as a dataset that has the dimension, as the new one has."""
    present = decode_group(old, "raise", to_virtual_dataset)
    for what, dataset in (("the set", present), ("the new dataset", new)):
        if dim is not None and dataset is not None and dim not in dataset.dims:
            raise ValueError(
                f"dimension {dim!r}: {what} has {sorted(map(str, dataset.dims))}; name one of them"
            )
    return present


def _load_index_alike(present: xr.Dataset, new: xr.Dataset, dim: str) -> xr.Dataset:
    """Load the coordinate of a dataset that was opened without loading it, if the set has it."""
    if dim not in present.indexes or dim in new.indexes or dim not in new.variables:
        return new
    return new.assign_coords({dim: new.variables[dim].compute()})


def _select_comparable(present: xr.Dataset, new: xr.Dataset, dim: str) -> xr.Dataset:
    """Return the variables to be added, refusing those that do not fit the set."""
    extra = sorted(str(name) for name in new.variables if name not in present.variables)
    lacking = sorted(
        str(name)
        for name, v in present.variables.items()
        if dim in v.dims and name not in new.variables
    )
    problems = [f"{name}: the set has no such variable" for name in extra]
    problems += [f"{name}: the new dataset has no such variable" for name in lacking]
    for name, variable in new.variables.items():
        if name in present.variables:
            found = _find_differences(str(name), present.variables[name], variable, dim)
            problems += [f"{name}: {reason}" for reason in found]
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise CombineError(
            f"append along {dim!r}: the new dataset does not fit the set:\n{listed}\n"
            f"leave variables out with ds.drop_vars, or convert them; nothing has been written"
        )
    return new.drop_vars([n for n, v in new.variables.items() if dim not in v.dims])


def _find_differences(name: str, old: xr.Variable, new: xr.Variable, dim: str) -> Iterable[str]:
    """Yield why a variable does not go on with another."""
    if coded := sorted(name for name in PACKING_ATTRIBUTES if name in new.attrs.keys() - old.attrs):
        yield f"it is not decoded, it has {', '.join(coded)} still; open it with decode_cf=True"
        return
    if old.dims != new.dims:
        yield f"its dimensions are {old.dims} in the set and {new.dims} in the new dataset"
        return
    if old.dtype != new.dtype and not any(
        {old.dtype.kind, new.dtype.kind} <= k for k in JOINABLE_KINDS
    ):
        yield f"its dtype is {old.dtype} in the set and {new.dtype} in the new dataset"
        return
    kinds = [_kind_of_elements(variable) for variable in (old, new)]
    if None not in kinds and kinds[0] != kinds[1]:
        yield f"its values are {kinds[0]} in the set and {kinds[1]} in the new dataset"
        return
    sizes = ((d, old.sizes[d], new.sizes[d]) for d in old.dims if d != dim)
    for other, before, after in sizes:
        if before != after:
            yield f"it has {before} elements along {other!r} in the set, {after} in the new dataset"
            return
    if dim not in old.dims and not _is_equal(name, old, new, dim):
        yield f"it has no dimension {dim!r}, and other values than in the set"


def _kind_of_elements(variable: xr.Variable) -> str | None:
    """Return what the values of a variable in memory are that are objects: dates of a calendar."""
    if variable.dtype.kind in "UT":
        return "str"
    if variable.dtype.kind != "O" or get_virtual_array(variable) is not None or not variable.size:
        return None
    first = variable.values.flat[0]
    # missing values are of any kind
    return None if first is None or isinstance(first, float) else type(first).__name__


def _is_equal(name: str, old: xr.Variable, new: xr.Variable, dim: str) -> bool:
    """Compare what does not grow, which may have to be read."""
    try:
        return bool(old.equals(new))  # type: ignore[no-untyped-call]
    except VirtualdsError as error:
        error.add_note(
            f"variable {name!r} has no dimension {dim!r}, and was read to compare it with that of "
            f"the set; leave it out of what is appended (ds.drop_vars)"
        )
        raise


def _load_alike(present: xr.Dataset, new: xr.Dataset) -> xr.Dataset:
    """Load what is in memory in the new dataset: values are written as values, all of them."""
    loaded = {
        name: present.variables[name].copy(data=np.asarray(array))
        for name, variable in new.variables.items()
        if get_virtual_array(variable) is None
        and (array := get_virtual_array(present.variables[name])) is not None
    }
    return present.assign(loaded)


# ---------------------------------------------------------------------- the whole again


def _join_pieces(present: xr.Dataset, pieces: Sequence[xr.Dataset], dim: str) -> xr.Dataset:
    """Lay pieces end to end; what has no such dimension is that of the set."""
    static = present.drop_vars([n for n, v in present.variables.items() if dim in v.dims])
    along = [piece.drop_vars(list(static.variables), errors="ignore") for piece in pieces]
    joined = xr.concat(
        along,
        dim,
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="exact",
        combine_attrs="override",
    )
    whole = joined.assign_coords(static.coords).assign(static.data_vars)
    ordered = xr.Dataset({name: whole[name] for name in present.data_vars}, whole.coords)
    for name, variable in present.variables.items():
        # whatever comes first, the set says how its variables are stored and described
        ordered[name].attrs = dict(variable.attrs)
        ordered[name].encoding = dict(variable.encoding)
        if ordered[name].dtype.kind in "biufc" and ordered[name].dtype != variable.dtype:
            # what numbers were stored as says nothing of those that they have been promoted to
            ordered[name].encoding.pop("dtype", None)
    return ordered


def _to_group(old: ManifestGroup, dataset: xr.Dataset) -> ManifestGroup:
    """Return a dataset as it is stored, refusing values that the coding of the set cannot tell."""
    found = group_from_dataset(dataset)
    for name, variable in old.variables.items():
        _check_coding(name, variable, found.variables[name])
    return replace(found, groups=old.groups, attributes=old.attributes, encoding=old.encoding)


def _check_coding(name: Hashable, old: Any, new: Any) -> None:
    if isinstance(new.data, ManifestArray) or new.data.dtype.kind in TEXT_KINDS:
        return
    before = {key: old.attributes.get(key) for key in CODING_ATTRIBUTES}
    after = {key: new.attributes.get(key) for key in CODING_ATTRIBUTES}
    differing = [key for key in CODING_ATTRIBUTES if str(before[key]) != str(after[key])]
    dtypes = [data.dtype.newbyteorder("=") for data in (old.data, new.data)]
    # numbers are promoted, as joining does; what tells time has the dtype that the set has
    if dtypes[0] != dtypes[1] and (before["units"] or dtypes[1] != np.result_type(*dtypes)):
        before["dtype"], after["dtype"] = old.data.dtype, new.data.dtype
        differing.append("dtype")
    if differing:
        key = differing[0]
        raise CombineError(
            f"append: the new values of {name!r} cannot be told exactly as the set stores them "
            f"({key} {before[key]!r}, they would need {after[key]!r}); convert them, or write the "
            f"set anew (mode='w')"
        )
