"""Fills a region of a set: cells of a template, in any order, by many writers.

The keywords are those of `xarray.Dataset.to_zarr`. This module writes nothing; a format compares
the result with the set, and writes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.regions import count_references, crop_box, put_region
from virtualds.codecs.cf_packing import PACKING_ATTRIBUTES
from virtualds.datasets.append import list_coding_changes
from virtualds.datasets.from_dataset import check_loading, group_from_dataset
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.reference_systems import check_systems_of_set, list_systems
from virtualds.datasets.references_behind import restore_references
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.errors import CombineError, list_details
from virtualds.formats.undecodable import decode_group
from virtualds.options import get_options

AUTO = "auto"
Region = Mapping[Any, Any] | str
"""For each dimension a slice, or ``"auto"``; ``"auto"`` for all dimensions of the dataset."""
Slices = dict[Hashable, slice]


def fill_region(
    old: ManifestGroup,
    new: xr.Dataset,
    region: Region,
    on_duplicate: str = "raise",
    root: str = "",
) -> ManifestGroup:
    """Return a set with a dataset in a region of it.

    Parameters
    ----------
    old : ManifestGroup
        The set.
    new : xarray.Dataset
        Variables of the set, each with at least one dimension of the region.
    region : mapping or "auto"
        Dimensions to slices, or to ``"auto"``: where the set has the values of the coordinate.
    on_duplicate : {"raise", "skip", "replace"}
        What to do about chunks that have references already.
    root : str
        Url of the set, which holds the chunks of values that were in memory when it was written.

    Returns
    -------
    ManifestGroup
        ``old`` itself if the set has all of the dataset already.

    Raises
    ------
    CombineError
        The dataset does not fit the region, or the set has some of its data already.
    ValueError
        A dimension or slice is wrong, or a variable has no dimension of the region.
    """
    new = restore_references(new)
    present = _load_alike(decode_group(old, "raise", to_virtual_dataset), new, root)
    check_systems_of_set(list_systems(present), new)
    slices = _find_slices(present, new, region)
    new = _drop_indexes(present, new, slices)
    _check_dimensions(new, slices)
    if problems := [p for n in new.variables for p in _find_problems(present, new, n, slices)]:
        said = (
            f"region {_format(slices)}: the new dataset does not fit the set, and nothing has been "
            f"written; leave variables out with ds.drop_vars, or convert them"
        )
        raise CombineError(list_details(said, problems))
    changed = {}
    for name, variable in new.variables.items():
        if get_virtual_array(variable) is None:
            check_loading(str(name), variable)
        found = _fill_variable(name, present.variables[name], variable, slices, on_duplicate)
        if found is not None:
            changed[name] = found
    return _to_group(old, present, changed) if changed else old


def _load_alike(present: xr.Dataset, new: xr.Dataset, root: str) -> xr.Dataset:
    """Load the variables of the set that hold values, where the new dataset has values too."""
    loaded = {
        name: present.variables[name].copy(data=np.asarray(array))
        for name, variable in new.variables.items()
        if name in present.variables
        and get_virtual_array(variable) is None
        and (array := get_virtual_array(present.variables[name])) is not None
        and array.nbytes <= get_options().load_limit
        and _lies_in(array, root)
    }
    return present.assign(loaded)


def _lies_in(array: ManifestArray, root: str) -> bool:
    """Say whether an array has chunks, and all of them lie in the set itself."""
    own = all(file.url.startswith(f"{root}/") for file in array.sources)
    return own and bool(count_references(array))


# ---------------------------------------------------------------------- where


def _find_slices(present: xr.Dataset, new: xr.Dataset, region: Region) -> Slices:
    """Return the slice of the set for each dimension of a region."""
    if isinstance(region, str):
        _demand_auto(region, region)
        region = dict.fromkeys(new.dims, AUTO)
    found: Slices = {}
    for dim, wanted in region.items():
        for what, dataset in (("the set", present), ("the new dataset", new)):
            if dim not in dataset.dims:
                raise ValueError(
                    f"region: {what} has no dimension {dim!r}; it has {list(dataset.dims)}"
                )
        size, count = present.sizes[dim], new.sizes[dim]
        if isinstance(wanted, slice):
            found[dim] = _check_slice(dim, wanted, size, count)
        else:
            _demand_auto(wanted, {dim: wanted})
            found[dim] = _find_by_index(present, new, dim)
    return found


def _demand_auto(wanted: Any, region: Any) -> None:
    if wanted != AUTO:
        raise ValueError(
            f"region={region!r}: it is 'auto', or a dict of dimensions to slices or 'auto'"
        )


def _check_slice(dim: Hashable, wanted: slice, size: int, count: int) -> slice:
    """Return a slice with start and stop inside of a dimension."""
    if wanted.step not in (None, 1):
        raise ValueError(f"region: {wanted} along {dim!r} has a step; give a slice without one")
    if wanted.stop is not None and wanted.stop > size:
        raise ValueError(
            f"region: {wanted} along {dim!r} stops beyond the {size} elements of the set; append "
            f"what is new (append_dim={dim!r}), or make a longer template"
        )
    start, stop, _ = wanted.indices(size)
    if stop - start != count:
        raise ValueError(
            f"region: {wanted} along {dim!r} is {max(stop - start, 0)} of the {size} elements of "
            f"the set, and the new dataset has {count}"
        )
    return slice(start, stop)


def _find_by_index(present: xr.Dataset, new: xr.Dataset, dim: Hashable) -> slice:
    """Return where the set has the values of a coordinate.

    Without a coordinate on either side it is the whole dimension, as for xarray.
    """
    if dim not in present.variables and dim not in new.variables:
        return _check_slice(dim, slice(None), present.sizes[dim], new.sizes[dim])
    for what, dataset in (("the set", present), ("the new dataset", new)):
        if dim not in dataset.indexes:
            raise ValueError(
                f"region: {what} has no index coordinate {dim!r}, by which 'auto' finds the place; "
                f"give a slice, or load the coordinate (loadable_variables)"
            )
    index, values = present.indexes[dim], new.indexes[dim]
    if not index.is_unique:
        raise ValueError(f"region: the coordinate {dim!r} of the set repeats values; give a slice")
    places = index.get_indexer(values)
    if (places < 0).any():
        absent = values[int(np.flatnonzero(places < 0)[0])]
        raise CombineError(
            f"region: the coordinate {dim!r} of the set has no {absent}; append it "
            f"(append_dim={dim!r}), or make a template that has it"
        )
    if not places.size or (np.diff(places) != 1).any():
        raise CombineError(
            f"region: the values of {dim!r} are at {places[:4].tolist()} of the set, which is "
            f"not a "
            f"contiguous stretch; write them one after the other"
        )
    return slice(int(places[0]), int(places[-1]) + 1)


def _drop_indexes(present: xr.Dataset, new: xr.Dataset, slices: Slices) -> xr.Dataset:
    """Return a dataset without the index coordinates, which must be those of the set there."""
    for dim in new.dims:
        if dim not in new.indexes or dim not in present.indexes:
            continue
        there = present.indexes[dim][slices.get(dim, slice(None))]
        if not there.equals(new.indexes[dim]):
            raise CombineError(
                f"region {_format(slices)}: the coordinate {dim!r} of the set has other values "
                f"there, from {there[0]} on, than the new dataset, from {new.indexes[dim][0]} on; "
                f"pass region={{{dim!r}: 'auto'}} to find them"
            )
    return new.drop_vars([d for d in new.dims if d in new.indexes and d in present.variables])


def _check_dimensions(new: xr.Dataset, slices: Slices) -> None:
    """Refuse variables without a dimension of the region, as xarray does."""
    others = [str(n) for n, v in new.variables.items() if not slices.keys() & set(v.dims)]
    if others:
        raise ValueError(
            f"region {_format(slices)}: the variables {others} have none of its dimensions; leave "
            f"them out: ds.drop_vars({others})"
        )


def _format(slices: Slices) -> str:
    shown = (f"{dim!r}: {part.start}:{part.stop}" for dim, part in slices.items())
    return "{" + ", ".join(shown) + "}"


# ---------------------------------------------------------------------- what


def _find_problems(
    present: xr.Dataset, new: xr.Dataset, name: Hashable, slices: Slices
) -> Iterator[str]:
    """Yield why a variable cannot go into the region."""
    if name not in present.variables:
        yield f"{name}: the set has no such variable"
        return
    old, variable = present.variables[name], new.variables[name]
    if coded := sorted(a for a in PACKING_ATTRIBUTES if a in variable.attrs.keys() - old.attrs):
        yield f"{name}: it is not decoded, since it has {', '.join(coded)}; use decode_cf=True"
    if old.dims != variable.dims:
        yield f"{name}: its dimensions are {old.dims} in the set and {variable.dims} in the new one"
        return
    for dim in set(variable.dims) - slices.keys():
        if old.sizes[dim] != variable.sizes[dim]:
            yield (
                f"{name}: it has {old.sizes[dim]} elements along {dim!r} in the set and "
                f"{variable.sizes[dim]} in the new dataset"
            )
    if np.result_type(old.dtype, variable.dtype) != old.dtype:
        yield f"{name}: its dtype is {old.dtype} in the set and {variable.dtype} in the new dataset"
    if get_virtual_array(old) is not None and get_virtual_array(variable) is None:
        yield (
            f"{name}: it is in memory, and virtual in the set; leave it out, or open it virtually "
            f"(loadable_variables=[])"
        )


def _fill_variable(
    name: Hashable, old: xr.Variable, new: xr.Variable, slices: Slices, on_duplicate: str
) -> xr.Variable | None:
    """Return a variable of the set with new data in a region, None if it has them already."""
    key = tuple(slices.get(dim, slice(0, old.sizes[dim])) for dim in old.dims)
    array, added = get_virtual_array(old), get_virtual_array(new)
    try:
        if array is None or added is None:
            return _fill_values(old, new, key, on_duplicate)
        found = _fill_array(array, added, key, on_duplicate)
    except CombineError as error:
        raise CombineError(f"region {_format(slices)}: {name!r}: {error}") from error
    return None if found is None else old.copy(data=found)  # type: ignore[arg-type]


def _fill_array(
    array: ManifestArray, added: ManifestArray, key: tuple[slice, ...], on_duplicate: str
) -> ManifestArray | None:
    box = tuple((part.start, part.stop) for part in key)
    known = crop_box(array, box)
    there = count_references(known)
    if there and on_duplicate == "raise":
        of = ", of " + ", ".join(s.url for s in known.sources[:2]) if known.sources else ""
        raise CombineError(
            f"{there} chunks of the region have references already{of}; pass on_duplicate='skip' "
            f"to leave them, or 'replace'"
        )
    if there and on_duplicate == "skip" and there == known.nchunks and not known.has_gaps:
        return None
    start = [part.start for part in key]
    return put_region(array, start, added, replaces=on_duplicate == "replace")


def _fill_values(
    old: xr.Variable, new: xr.Variable, key: tuple[slice, ...], on_duplicate: str
) -> xr.Variable | None:
    """Return values in memory with new ones in a region."""
    values, added = np.array(old.values), np.asarray(new.values).astype(old.dtype)
    known = ~np.asarray(xr.Variable(old.dims, values[key]).isnull())
    same = np.asarray((values[key] == added) | ~known)
    if not same.all() and on_duplicate == "raise":
        raise CombineError(
            f"the region has {np.count_nonzero(~same)} other values already; pass "
            f"on_duplicate='skip' to leave them, or 'replace'"
        )
    wanted = added if on_duplicate == "replace" else np.where(known, values[key], added)
    if xr.Variable(old.dims, wanted).equals(xr.Variable(old.dims, values[key])):  # type: ignore[no-untyped-call]
        return None
    values[key] = wanted
    return old.copy(data=values)


def _to_group(
    old: ManifestGroup, present: xr.Dataset, changed: Mapping[Hashable, xr.Variable]
) -> ManifestGroup:
    """Return the set with changed variables; all others stay as they are stored."""
    whole = present.copy()
    for name, variable in changed.items():
        whole[name] = variable
    found = group_from_dataset(whole).variables
    kept = dict(old.variables)
    for name in changed:
        before, after = old.variables[str(name)], found[str(name)]
        dtypes = [v.data.dtype.newbyteorder("=") for v in (before, after)]
        differs = dtypes[0] != dtypes[1] or bool(list_coding_changes(before, after))
        if differs and not isinstance(after.data, ManifestArray):
            raise CombineError(
                f"region: the set cannot store the new values of {name!r} exactly; convert them, "
                f"or write the template anew with an encoding that holds them"
            )
        kept[str(name)] = after
    return replace(old, variables=kept)
