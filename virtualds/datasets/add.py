"""Adds variables to a group of a set, and replaces variables of it.

Both take the group as it is stored, so that the other variables are neither read nor written.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable
from dataclasses import replace

import xarray as xr

from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.changed_groups import join_coordinates, sizes_of
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.reference_systems import Systems, check_systems_of_set, find_systems
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.errors import CombineError, list_details
from virtualds.formats.undecodable import decode_group


def add_variables(
    old: ManifestGroup | None, new: xr.Dataset, on_duplicate: str = "raise"
) -> ManifestGroup:
    """Return a group with the variables of a dataset added.

    Parameters
    ----------
    old : ManifestGroup or None
        The group, None if the set has none there.
    new : xarray.Dataset
        Its dimensions have the lengths, and the coordinates, that they have in the group.
    on_duplicate : {"raise", "skip", "replace"}
        What to do about variables that the group has already. Equal coordinates are shared.

    Returns
    -------
    ManifestGroup
        ``old`` itself if nothing is added.

    Raises
    ------
    CombineError
        A dimension has another length, or other coordinate values, than in the group; or the
        group has a variable of the same name.
    """
    if old is None:
        return group_from_dataset(new)
    _demand_same_sizes(old, new)
    replaced = new.data_vars if on_duplicate == "replace" else ()
    check_systems_of_set(_find_systems_besides(old, replaced), new)
    shared = _find_equal_coordinates(old, new)
    stored = group_from_dataset(new)
    duplicates = sorted(old.variables.keys() & stored.variables.keys() - shared)
    if unequal := [name for name in duplicates if stored.variables[name].dims == (name,)]:
        raise _other_values_error(old, new, unequal[0])
    if duplicates and on_duplicate == "raise":
        raise CombineError(
            f"{', '.join(map(repr, duplicates))}: the set has variables of these names already; "
            f"on_duplicate='replace' replaces them, 'skip' keeps those of the set, or leave them "
            f"out (ds.drop_vars); nothing has been written"
        )
    kept = shared if on_duplicate == "replace" else shared.union(duplicates)
    added = {name: v for name, v in stored.variables.items() if name not in kept}
    if not added:
        return old
    attributes = join_coordinates(old.attributes, stored.attributes)
    result = replace(old, variables={**old.variables, **added}, attributes=attributes)
    _check_systems_that_stay(old, result, new)
    return result


def overwrite_variables(old: ManifestGroup | None, new: xr.Dataset) -> ManifestGroup:
    """Return a group in which the variables of a dataset replace those of the same names.

    Raises
    ------
    CombineError
        The group has no such variable, or one of another shape.
    """
    if old is None:
        raise CombineError("the set has no such group; mode='a' adds it")
    check_systems_of_set(_find_systems_besides(old, new.data_vars), new)
    shared = _find_equal_coordinates(old, new)
    stored = group_from_dataset(new)
    problems = [
        f"{name}: {reason}"
        for name, variable in stored.variables.items()
        for reason in _find_other_form(old, name, (variable.dims, variable.data.shape))
    ]
    if problems:
        said = (
            "mode='r+' replaces variables by others of the same shape only, and nothing has been "
            "written; to add variables, pass mode='a'; to fill a part of them, pass region="
        )
        raise CombineError(list_details(said, problems))
    changed = {name: v for name, v in stored.variables.items() if name not in shared}
    if not changed:
        return old
    result = replace(old, variables={**old.variables, **changed})
    _check_systems_that_stay(old, result, new)
    return result


def _find_other_form(
    old: ManifestGroup, name: str, form: tuple[tuple[str, ...], tuple[int, ...]]
) -> Iterable[str]:
    """Yield why a variable cannot take the place of the one in the group."""
    if name not in old.variables:
        yield "the set has no such variable"
        return
    known = old.variables[name]
    if (known.dims, known.data.shape) != form:
        dims, shape = form
        yield (
            f"its dimensions {known.dims} have lengths {known.data.shape} in the set, and {dims} "
            f"have {shape} in the new dataset"
        )


def _find_systems_besides(old: ManifestGroup, replaced: Container[Hashable]) -> Systems:
    """Return the reference systems of a group, without those of variables to be replaced."""
    found = find_systems({name: v.attributes for name, v in old.variables.items()})
    return {key: system for key, system in found.items() if key[0] not in replaced}


def _check_systems_that_stay(old: ManifestGroup, result: ManifestGroup, new: xr.Dataset) -> None:
    """Refuse to replace the grid mapping of variables that are not replaced."""
    replaced = [n for n, v in result.variables.items() if old.variables.get(n) is not v]
    known, found = (_find_systems_besides(group, replaced) for group in (old, result))
    check_systems_of_set(known, new, found)


def _demand_same_sizes(old: ManifestGroup, new: xr.Dataset) -> None:
    sizes = sizes_of(old)
    for dim, size in new.sizes.items():
        if size != (known := sizes.get(str(dim), size)):
            raise CombineError(
                f"dimension {dim!r}: it has {known} elements in the set, and {size} in the new "
                f"dataset; select the same elements, or append along it (append_dim)"
            )


# ---------------------------------------------------------------------- coordinates that are shared


def _find_equal_coordinates(old: ManifestGroup, new: xr.Dataset) -> set[str]:
    """Return the names of coordinates that a group and a dataset have both, with equal values."""
    names = [str(name) for name in new.coords if name is not None and name in old.variables]
    present = _decode_some(old, names)
    return {name for name in names if _is_equal(present.variables[name], new.variables[name])}


def _decode_some(group: ManifestGroup, names: Iterable[str]) -> xr.Dataset:
    """Return some variables of a group as a dataset, without decoding the others."""
    some = group.leave_out(group.variables.keys() - set(names))
    return decode_group(some, "raise", to_virtual_dataset)


def _is_equal(one: xr.Variable, other: xr.Variable) -> bool:
    return bool(one.equals(other))  # type: ignore[no-untyped-call]


def _other_values_error(old: ManifestGroup, new: xr.Dataset, name: str) -> CombineError:
    """Return the error for a dimension whose coordinate has other values than in the set."""
    known = _decode_some(old, [name]).variables[name].values
    values = new.variables[name].values
    same = (known == values) | ((known != known) & (values != values))
    place = int((~same).argmax()) if same.shape == known.shape else 0
    return CombineError(
        f"dimension {name!r}: its coordinate is {known[place]} in the set and {values[place]} in "
        f"the new dataset, at position {place}; variables of one group share coordinates: align "
        f"the dataset first (reindex_like), or write it to a group of its own (group=)"
    )
