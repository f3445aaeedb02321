"""What each mode makes of a set and of a dataset, or a tree, that is written to it."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.append import (
    LACKING_REFUSED,
    Lacking,
    append_along,
    compare_static,
    replace_sources,
)
from virtualds.datasets.changed_groups import (
    EMPTY,
    add_group,
    demand_aligned,
    find_group,
    join_coordinates,
    list_inherited,
    naming_group,
    put_group,
    put_variables,
    sizes_of,
)
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.keywords import format_suggestion
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.reference_systems import Systems, check_systems_of_set, find_systems
from virtualds.datasets.regions import fill_region
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.datasets.tree import group_from_tree
from virtualds.datasets.write import CREATING, Destination, Whole, Written
from virtualds.errors import CombineError, UnsupportedError, list_details
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


# ---------------------------------------------------------------------- append groups

NOTHING = xr.Dataset()

Datasets = Mapping[str, xr.Dataset]
"""Datasets by the paths of their groups, with the coordinates that they inherit."""


@dataclass(frozen=True)
class Append:
    """How data are appended to a set; as for ``ds.virtual.to_manifest``."""

    dim: str
    position: str = "end"
    on_duplicate: str = "raise"
    lacking: Lacking = LACKING_REFUSED
    root: str = ""

    def extend(self, old: ManifestGroup, new: xr.Dataset) -> ManifestGroup:
        """Return a group with a dataset added to it, or ``old`` if nothing is added."""
        if self.dim not in sizes_of(old) and self.dim not in new.dims:
            return compare_static(old, new, self.dim, self.lacking)
        how = (self.position, self.on_duplicate, self.lacking)
        return append_along(old, new, self.dim, *how, root=self.root)


def append_datasets(old: ManifestGroup, new: Datasets, how: Append) -> ManifestGroup:
    """Return a set with datasets added to its groups.

    Returns
    -------
    ManifestGroup
        ``old`` itself if the set has all of it already.

    Raises
    ------
    CombineError
        A dataset does not fit its group, or the set has some of its data already.
    ValueError
        There is no such dimension.
    """
    if not any(how.dim in dataset.dims for dataset in new.values()):
        dims = {str(dim) for dataset in new.values() for dim in dataset.dims}
        raise ValueError(
            f"dimension {how.dim!r}: the new dataset has {sorted(dims)}; name one of them"
        )
    found = old
    for path, dataset in new.items():
        with naming_group(path):
            found = _append_group(old, found, path, dataset, how)
    return found if found is old else demand_aligned(old, found)


def append_tree(old: ManifestGroup, new: Datasets, how: Append) -> ManifestGroup:
    """Return a set with the datasets of a whole tree added to its groups.

    Parameters, results and errors are those of `append_datasets`. No group of the set that has the
    dimension may be missing in the tree.
    """
    return append_datasets(old, {**new, **dict(_complete_groups(old, new, how))}, how)


def _append_group(
    old: ManifestGroup, found: ManifestGroup, path: str, new: xr.Dataset, how: Append
) -> ManifestGroup:
    """Return the set ``found`` with a dataset added to a group as it is in the set ``old``."""
    before = find_group(old, path)
    inherited = list_inherited(old, path, map(str, new.variables))
    own = [str(name) for name in new.variables if name not in inherited]
    # a group without variables is there for the groups below it alone
    if before is None or (own and not before.variables):
        if how.lacking.new == "error":
            raise CombineError(
                "the set has no such group; new_variables='fill' adds it, with missing values "
                "where the set has data already, and 'drop' leaves it out"
            )
        if how.lacking.new == "drop":
            return found
        if how.dim not in inherited:
            return put_variables(found, path, group_from_dataset(new[own]))
    whole = replace(before or EMPTY, variables={**inherited, **(before or EMPTY).variables})
    after = how.extend(whole, new)
    if after is whole:
        return found
    stored = {name: v for name, v in after.variables.items() if name not in inherited}
    return put_variables(found, path, replace(after, variables=stored))


def _complete_groups(
    old: ManifestGroup, new: Datasets, how: Append
) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield datasets without data for groups of the set that a tree lacks."""
    [*_, top] = sorted(new, key=len, reverse=True)
    for path, group in (find_group(old, top) or EMPTY).walk(top):
        if path in new or how.dim not in sizes_of(group):
            continue
        above = [p for p in _list_paths_above(path) if how.dim in new.get(p, NOTHING).coords]
        if how.lacking.missing == "error" or not above:
            raise CombineError(
                f"group /{path}: the new tree has no such group, which has the dimension "
                f"{how.dim!r} in the set; missing_variables='fill' fills it with missing values "
                f"if its coordinate lies in a group above it"
            )
        yield path, xr.Dataset(coords={how.dim: new[above[-1]].variables[how.dim]})


def _list_paths_above(path: str) -> list[str]:
    """Return the paths of the groups above a path, the root first."""
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(len(names))]


# ---------------------------------------------------------------------- write modes

ChangeGroup = Callable[[ManifestGroup | None, xr.Dataset], ManifestGroup]
"""Takes a group of a set, None if there is none, and a dataset; returns the new group."""


class Added(NamedTuple):
    """How much was added to a set: positions along the dimension that grows, and references."""

    positions: int
    references: int

    @classmethod
    def all_of(cls, dataset: xr.Dataset, dim: str | None) -> Added:
        """Count all positions and references of a dataset."""
        arrays = map(get_virtual_array, dataset.variables.values())
        references = sum(array.nchunks for array in arrays if array is not None)
        return cls(dataset.sizes.get(dim, 0), references)

    @classmethod
    def between(
        cls, old: ManifestGroup, after: ManifestGroup, dataset: xr.Dataset, dim: str
    ) -> Added:
        """Count the positions and references that a change added to a group."""
        positions, references = 0, 0
        for name, variable in dataset.variables.items():
            known = str(name) in old.variables
            if dim in variable.dims and known and old is not after:
                a, b = old.variables[str(name)].data, after.variables[str(name)].data
                axis = variable.dims.index(dim)
                positions = b.shape[axis] - a.shape[axis]
                if isinstance(a, ManifestArray) and isinstance(b, ManifestArray):
                    references += b.nchunks - a.nchunks
        return cls(positions, references)


def write_dataset(dataset: xr.Dataset, destination: Destination) -> Added:
    """Write the references of a dataset; return how many were added: an append may add none.

    See ``ds.virtual.to_manifest``.
    """
    options = destination.options
    path, dim = options.path, options.append_dim
    make = partial(group_from_dataset, dataset)
    written = _write(destination, {path: dataset}, make, append_datasets)
    before = None if written.before is None else find_group(written.before, path)
    after = find_group(written.after, path)
    if not options.is_append or before is None or after is None:
        return Added.all_of(dataset, dim)
    return Added.between(before, after, dataset, str(dim))


def write_tree(tree: xr.DataTree, inherited: bool, destination: Destination) -> None:
    """Write the references of a tree; see ``tree.virtual.to_manifest``."""
    options = destination.options
    if options.mode == "replace-source":
        raise UnsupportedError(
            f"{destination.location.target}: mode 'replace-source' is for datasets; replace the "
            f"sources of one group after the other, with ds.virtual.to_manifest(..., group=)"
        )
    # an append compares groups together with the coordinates that they have from above
    whole = inherited or options.is_append
    nodes = {
        _join(options.path, path): node.to_dataset(inherit=whole or node is tree)
        for path, node in tree.subtree_with_keys
    }
    _write(destination, nodes, partial(group_from_tree, tree, inherited), append_tree)


def _join(path: str, below: str) -> str:
    return "/".join(part for part in (path, below) if part not in ("", ".", "/"))


def _write(
    destination: Destination,
    datasets: Mapping[str, xr.Dataset],
    make: Whole,
    append: Callable[[ManifestGroup, Mapping[str, xr.Dataset], Append], ManifestGroup],
) -> Written:
    """Write datasets to their groups as the mode says; ``make`` returns the top one as stored."""
    options = destination.options
    whole = partial(_begin, EMPTY, datasets, make, destination)
    if options.creates_set:
        return destination.create(whole)
    if options.is_append:
        lacking = Lacking(options.new_variables, options.missing_variables)
        place, url = (options.position, options.on_duplicate), destination.location.url
        how = Append(str(options.append_dim), *place, lacking, url)

        def grow(old: ManifestGroup) -> ManifestGroup:
            there = [find_group(old, path) for path in datasets]
            if not any(group.variables for group in there if group is not None):
                return _begin(old, datasets, make, destination)
            return append(old, datasets, how)

        return destination.change(grow, whole)
    if options.mode in CREATING:
        return destination.change(partial(_create_group, make=make, destination=destination), whole)
    change = partial(_change_groups, new=datasets, change=CHANGES[str(options.mode)](destination))
    return destination.change(change, whole if options.mode == "a" else None)


def _begin(
    old: ManifestGroup,
    datasets: Mapping[str, xr.Dataset],
    make: Whole,
    destination: Destination,
) -> ManifestGroup:
    """Return a set with the first content of a group."""
    dim, dims = destination.options.append_dim, {d for ds in datasets.values() for d in ds.dims}
    if dim is not None and dim not in dims:
        raise ValueError(
            f"append_dim {dim!r}: the dataset, which would be the first of "
            f"{destination.location.target}, has {sorted(map(str, dims))}"
            f"{format_suggestion(dim, dims)}"
        )
    return add_group(old, destination.options.path, make())


# ---------------------------------------------------------------------- set -> set


def _create_group(old: ManifestGroup, make: Whole, destination: Destination) -> ManifestGroup:
    """Return a set with a new group, which may replace one in mode ``"w"``."""
    path, new = destination.options.path, make()
    if destination.options.mode == "w":
        return demand_aligned(old, put_group(old, path, new))
    for below, part in new.walk(path):
        there = find_group(old, below)
        if there is not None and there.variables and part.variables:
            raise FileExistsError(
                f"{destination.location.target}: group /{below} exists already; mode='w' replaces "
                f"it, mode='a' adds variables to it, and append_dim= appends to it"
            )
    return demand_aligned(old, add_group(old, path, new))


def _change_groups(
    old: ManifestGroup, new: Mapping[str, xr.Dataset], change: ChangeGroup
) -> ManifestGroup:
    """Return a set in which some groups have changed, or ``old`` if none has."""
    found = old
    for path, dataset in new.items():
        with naming_group(path):
            found = _change_group(found, path, dataset, change)
    return found if found is old else demand_aligned(old, found)


def _change_group(
    root: ManifestGroup, path: str, new: xr.Dataset, change: ChangeGroup
) -> ManifestGroup:
    before = find_group(root, path)
    if before is None or not before.variables:
        # a group without variables is there for the groups below it alone
        return put_variables(root, path, change(None, new))
    inherited = list_inherited(root, path, map(str, new.variables))
    whole = replace(before, variables={**inherited, **before.variables})
    after = change(whole, new)
    if after is whole:
        return root
    if changed := [name for name, v in inherited.items() if after.variables[name] is not v]:
        raise CombineError(
            f"{changed[0]}: group /{path} has this coordinate from a group above it; replace it "
            f"there, or leave it out (ds.drop_vars)"
        )
    own = {name: v for name, v in after.variables.items() if name not in inherited}
    return put_variables(root, path, replace(after, variables=own))


def _replace_sources(
    old: ManifestGroup | None, new: xr.Dataset, where: Destination
) -> ManifestGroup:
    if old is None:
        raise CombineError("the set has no such group; mode='a' adds it")
    return replace_sources(old, new, where.options.append_dim, where.location.url)


def _fill_region(old: ManifestGroup | None, new: xr.Dataset, where: Destination) -> ManifestGroup:
    if old is None:
        raise CombineError("the set has no such group, so it has no region; mode='a' adds it")
    options = where.options
    return fill_region(old, new, options.region, options.on_duplicate, where.location.url)


def _overwrite(where: Destination) -> ChangeGroup:
    return (
        overwrite_variables if where.options.region is None else partial(_fill_region, where=where)
    )


CHANGES: Mapping[str, Callable[[Destination], ChangeGroup]] = {
    "a": lambda where: partial(add_variables, on_duplicate=where.options.on_duplicate),
    "r+": _overwrite,
    "replace-source": lambda where: partial(_replace_sources, where=where),
}
"""How the modes that change groups change each of them."""
