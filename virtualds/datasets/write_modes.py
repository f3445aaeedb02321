"""What each mode makes of a set and of a dataset, or a tree, that is written to it."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import xarray as xr

from virtualds.arrays.alike_files import list_sizes
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.append import Appending, append_along, join_coordinates, replace_sources
from virtualds.datasets.from_dataset import group_from_dataset, group_from_tree
from virtualds.datasets.keywords import format_suggestion, select_fields
from virtualds.datasets.reference_systems import Systems, check_systems_of_set, find_systems
from virtualds.datasets.regions import fill_region
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.datasets.write import (
    CREATING,
    EMPTY,
    Destination,
    Whole,
    WriteOptions,
    Written,
    add_group,
    demand_aligned,
    find_group,
    list_inherited,
    naming_group,
    normalise_path,
    put_group,
    put_variables,
)
from virtualds.errors import CombineError, UnsupportedError, list_details
from virtualds.formats.undecodable import decode_group


def write_variables(
    old: ManifestGroup, new: xr.Dataset, on_duplicate: str = "raise", *, adds: bool
) -> ManifestGroup:
    """Return a group with the variables of a dataset, itself if it has them already.

    They are added, and have the lengths and coordinates that the group has; ``on_duplicate`` says
    what to do about variables that it has already. Or else they replace those of the same names and
    shapes. Equal coordinates are shared. What does not fit the group is a `CombineError`.
    """
    sizes = list_sizes(old) if adds else {}
    for dim, size in new.sizes.items():
        if size != (known := sizes.get(str(dim), size)):
            raise CombineError(
                f"dimension {dim!r}: it has {known} elements in the set, and {size} in the new "
                f"dataset; select the same elements, or append along it (append_dim)"
            )
    replaced = new.data_vars if not adds or on_duplicate == "replace" else ()
    check_systems_of_set(_find_systems_besides(old, replaced), new)
    shared = _find_equal_coordinates(old, new)
    stored = group_from_dataset(new)
    attributes = old.attributes
    if adds:
        duplicates = sorted(old.variables.keys() & stored.variables.keys() - shared)
        if unequal := [name for name in duplicates if stored.variables[name].dims == (name,)]:
            raise _other_values_error(old, new, unequal[0])
        if duplicates and on_duplicate == "raise":
            raise CombineError(
                f"{', '.join(map(repr, duplicates))}: the set has variables of these names "
                f"already; on_duplicate='replace' replaces them, 'skip' keeps those of the set, or "
                f"leave them out (ds.drop_vars); nothing has been written"
            )
        shared = shared if on_duplicate == "replace" else shared.union(duplicates)
        attributes = join_coordinates(old.attributes, stored.attributes)
    else:
        _demand_same_shapes(old, stored)
    changed = {name: v for name, v in stored.variables.items() if name not in shared}
    if not changed:
        return old
    result = replace(old, variables={**old.variables, **changed}, attributes=attributes)
    # the grid mapping of variables that stay must stay
    differing = [n for n, v in result.variables.items() if old.variables.get(n) is not v]
    known_systems, found = (_find_systems_besides(group, differing) for group in (old, result))
    check_systems_of_set(known_systems, new, found)
    return result


def _demand_same_shapes(old: ManifestGroup, stored: ManifestGroup) -> None:
    """Refuse variables that a group does not have, or has in another shape."""
    problems = list[str]()
    for name, variable in stored.variables.items():
        known = old.variables.get(name)
        if known is None:
            problems.append(f"{name}: the set has no such variable")
        elif (known.dims, known.data.shape) != (variable.dims, variable.data.shape):
            problems.append(
                f"{name}: its dimensions {known.dims} have lengths {known.data.shape} in the set, "
                f"and {variable.dims} have {variable.data.shape} in the new dataset"
            )
    if problems:
        said = (
            "mode='r+' replaces variables by others of the same shape only, and nothing has been "
            "written; to add variables, pass mode='a'; to fill a part of them, pass region="
        )
        raise CombineError(list_details(said, problems))


def _find_systems_besides(old: ManifestGroup, replaced: Container[Hashable]) -> Systems:
    """Return the reference systems of a group, without those of variables to be replaced."""
    found = find_systems({name: v.attributes for name, v in old.variables.items()})
    return {key: system for key, system in found.items() if key[0] not in replaced}


# ---------------------------------------------------------------------- coordinates that are shared


def _find_equal_coordinates(old: ManifestGroup, new: xr.Dataset) -> set[str]:
    """Return the names of coordinates that a group and a dataset have both, with equal values."""
    names = [str(name) for name in new.coords if name is not None and name in old.variables]
    present = _decode_some(old, names)
    pairs = ((name, present.variables[name], new.variables[name]) for name in names)
    return {name for name, one, other in pairs if one.equals(other)}  # type: ignore[no-untyped-call]


def _decode_some(group: ManifestGroup, names: Iterable[str]) -> xr.Dataset:
    """Return some variables of a group as a dataset, without decoding the others."""
    some = group.leave_out(group.variables.keys() - set(names))
    return decode_group(some, "raise", to_virtual_dataset)


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


# ---------------------------------------------------------------------- groups of a set


class Added(NamedTuple):
    """How much was added to a set: positions along the dimension that grows, and references."""

    positions: int
    references: int


def write_dataset(dataset: xr.Dataset, destination: Destination) -> Added:
    """Write the references of a dataset; return how many were added: an append may add none.

    See ``ds.virtual.to_manifest``.
    """
    path, dim = destination.options.path, str(destination.options.append_dim)
    make = partial(group_from_dataset, dataset)
    written = _Writing(destination, {path: dataset}, make).write()
    before, after = (
        replace(find_group(root, path) or EMPTY, groups={})
        for root in (written.before or EMPTY, written.after)
    )
    begun, grown = (
        {
            name: v.data.nchunks
            for name, v in g.variables.items()
            if isinstance(v.data, ManifestArray)
        }
        for g in (before, after)
    )
    # coordinates that the set holds itself are values in memory once they have changed
    references = sum(count - begun.get(name, 0) for name, count in grown.items())
    return Added(list_sizes(after).get(dim, 0) - list_sizes(before).get(dim, 0), references)


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
        normalise_path(f"{options.path}/{'' if path == '.' else path}"): node.to_dataset(
            inherit=whole or node is tree
        )
        for path, node in tree.subtree_with_keys
    }
    _Writing(destination, nodes, partial(group_from_tree, tree, inherited), is_tree=True).write()


@dataclass(frozen=True)
class _Writing:
    """Datasets that are written to groups of a set, as the mode says.

    In a tree, groups share the coordinates of the groups above them. So a group is compared and
    changed together with the coordinates that it has from there, which it does not store. The
    datasets, by the paths of their groups, have the coordinates that they inherit; ``make`` returns
    the top one, with those below it, as stored. In a tree, no groups may be missing that grow.
    """

    destination: Destination
    datasets: Mapping[str, xr.Dataset]
    make: Whole
    is_tree: bool = False

    @property
    def options(self) -> WriteOptions:
        return self.destination.options

    def write(self) -> Written:
        """Create or change the set."""
        if self.options.creates_set:
            return self.destination.create(self._begin)
        creates = self.options.mode in CREATING
        may_begin = creates or self.options.mode == "a"
        return self.destination.change(
            self._create_group if creates else self._change_groups,
            self._begin if may_begin else None,
        )

    def _begin(self, old: ManifestGroup = EMPTY) -> ManifestGroup:
        """Return a set with the first content of a group."""
        dim, dims = self.options.append_dim, {d for ds in self.datasets.values() for d in ds.dims}
        if dim is not None and dim not in dims:
            raise ValueError(
                f"append_dim {dim!r}: the dataset, which would be the first of "
                f"{self.destination.location.target}, has {sorted(map(str, dims))}"
                f"{format_suggestion(dim, dims)}"
            )
        return add_group(old, self.options.path, self.make())

    def _create_group(self, old: ManifestGroup) -> ManifestGroup:
        """Return a set with a new group, which may replace one in mode ``"w"``."""
        path, new = self.options.path, self.make()
        if self.options.mode == "w":
            return demand_aligned(old, put_group(old, path, new))
        for below, part in new.walk(path):
            there = find_group(old, below)
            if there is not None and there.variables and part.variables:
                raise FileExistsError(
                    f"{self.destination.location.target}: group /{below} exists already; mode='w' "
                    f"replaces it, mode='a' adds variables to it, and append_dim= appends to it"
                )
        return demand_aligned(old, add_group(old, path, new))

    # ------------------------------------------------------------------ changing groups

    def _change_groups(self, old: ManifestGroup) -> ManifestGroup:
        """Return a set in which groups have changed, or ``old`` if none has."""
        datasets, dim = dict(self.datasets), self.options.append_dim
        if self.options.is_append:
            there = [find_group(old, path) for path in datasets]
            if not any(group.variables for group in there if group is not None):
                return self._begin(old)
            if self.is_tree:
                datasets |= self._complete_groups(old, str(dim))
            if not any(dim in dataset.dims for dataset in datasets.values()):
                dims = {str(dim) for dataset in datasets.values() for dim in dataset.dims}
                raise ValueError(
                    f"dimension {dim!r}: the new dataset has {sorted(dims)}; name one of them"
                )
        found = old
        for path, dataset in datasets.items():
            with naming_group(path):
                # what a group inherits has grown already in ``found``
                known = old if self.options.is_append else found
                found = self._change_group(known, found, path, dataset)
        return found if found is old else demand_aligned(old, found)

    def _change_group(
        self, old: ManifestGroup, found: ManifestGroup, path: str, new: xr.Dataset
    ) -> ManifestGroup:
        """Return the set ``found`` with a dataset in a group, which is as in the set ``old``."""
        options, group = self.options, find_group(old, path)
        inherited = list_inherited(old, path, map(str, new.variables))
        own = [str(name) for name in new.variables if name not in inherited]
        # a group without variables is there for the groups below it alone
        is_new = group is None or not group.variables
        if is_new and not options.is_append:
            return put_variables(found, path, self._change(None, new))
        if is_new and (group is None or own):
            if options.new_variables == "error":
                raise CombineError(
                    "the set has no such group; new_variables='fill' adds it, with missing values "
                    "where the set has data already, and 'drop' leaves it out"
                )
            if options.new_variables == "drop":
                return found
            if options.append_dim not in inherited:
                return put_variables(found, path, group_from_dataset(new[own]))
        group = group or EMPTY
        whole = replace(group, variables={**inherited, **group.variables})
        after = self._change(whole, new)
        if after is whole:
            return found
        changed = [name for name, v in inherited.items() if after.variables[name] is not v]
        if changed and not options.is_append:
            raise CombineError(
                f"{changed[0]}: group /{path} has this coordinate from a group above it; replace "
                f"it there, or leave it out (ds.drop_vars)"
            )
        kept = {name: v for name, v in after.variables.items() if name not in inherited}
        return put_variables(found, path, replace(after, variables=kept))

    def _change(self, old: ManifestGroup | None, new: xr.Dataset) -> ManifestGroup:
        """Return a group with a dataset in it; ``old`` is None if the set has none there."""
        options, root = self.options, self.destination.location.url
        adds = options.mode == "a" and options.append_dim is None
        if adds and old is None:
            return group_from_dataset(new)
        if old is None and options.region is not None:
            raise CombineError("the set has no such group, so it has no region; mode='a' adds it")
        if old is None:
            raise CombineError("the set has no such group; mode='a' adds it")
        if options.is_append:
            given = vars(options) | {"dim": options.append_dim, "root": root}
            return append_along(old, new, select_fields(Appending, given))
        if options.mode == "replace-source":
            return replace_sources(old, new, options.append_dim, root)
        if options.region is None:
            return write_variables(old, new, options.on_duplicate, adds=adds)
        return fill_region(old, new, options.region, options.on_duplicate, root)

    def _complete_groups(self, old: ManifestGroup, dim: str) -> dict[str, xr.Dataset]:
        """Return datasets without data for groups of the set that a tree lacks."""
        found = dict[str, xr.Dataset]()
        top = min(self.datasets, key=len)
        for path, group in (find_group(old, top) or EMPTY).walk(top):
            if path in self.datasets or dim not in list_sizes(group):
                continue
            names = path.split("/")
            above = ["/".join(names[:depth]) for depth in reversed(range(len(names)))]
            lent = [self.datasets[p] for p in above if p in self.datasets]
            coordinate = next((ds.variables[dim] for ds in lent if dim in ds.coords), None)
            if self.options.missing_variables == "error" or coordinate is None:
                raise CombineError(
                    f"group /{path}: the new tree has no such group, which has the dimension "
                    f"{dim!r} in the set; missing_variables='fill' fills it with missing values "
                    f"if its coordinate lies in a group above it"
                )
            found[path] = xr.Dataset(coords={dim: coordinate})
        return found
