"""What each mode makes of a set and of a dataset, or a tree, that is written to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.add import add_variables, overwrite_variables
from virtualds.datasets.append import replace_sources
from virtualds.datasets.append_groups import Append, append_datasets, append_tree
from virtualds.datasets.changed_groups import (
    EMPTY,
    add_group,
    demand_aligned,
    find_group,
    list_inherited,
    naming_group,
    put_group,
    put_variables,
)
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.keywords import format_suggestion
from virtualds.datasets.lacking_variables import Lacking
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.regions import fill_region
from virtualds.datasets.tree import group_from_tree
from virtualds.datasets.write import Destination, Whole, Written
from virtualds.datasets.write_options import CREATING
from virtualds.errors import CombineError, UnsupportedError

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
