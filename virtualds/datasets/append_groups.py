"""Appends datasets to groups of a set, all in one change: one group, or those of a tree.

In a tree, groups share the coordinates of the groups above them. So a group is compared and
extended together with the coordinates that it has from there, which it does not store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import xarray as xr

from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.append import append_along, compare_static
from virtualds.datasets.changed_groups import (
    EMPTY,
    demand_aligned,
    find_group,
    list_inherited,
    naming_group,
    put_variables,
    sizes_of,
)
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.lacking_variables import LACKING_REFUSED, Lacking
from virtualds.errors import CombineError

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
