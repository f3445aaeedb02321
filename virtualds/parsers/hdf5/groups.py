"""All groups of an HDF5 file: lengths and numbers that take all of them.

An unlimited dimension is as long as the longest variable along it, in any group. The dimensions
that netCDF invents are numbered throughout the file (netCDF-C, ``find_dim_len`` and
``nc4_rec_match_dimscales``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from virtualds.errors import FormatError, VirtualdsError
from virtualds.parsers.hdf5.dimensions import Dimensions, NamedAxes
from virtualds.parsers.hdf5.file import describe_damage
from virtualds.parsers.hdf5.objects import Dataset, GroupMembers, HDF5Location, Structure

MOST_GROUPS = 100_000
"""Most groups that are read: links can make more of a small file."""

PathParts = tuple[str, ...]
"""The names of the groups from the root to one of them."""


class HDF5Group(NamedTuple):
    """A group, what it holds, and the scales of the groups above it, the outermost first."""

    where: PathParts
    place: HDF5Location
    found: GroupMembers
    above: tuple[Dataset, ...] = ()

    @property
    def axes(self) -> NamedAxes:
        """Its datasets, with the names of their axes."""
        return NamedAxes(self.found.datasets.values(), self.above)


def read_groups_below(
    place: HDF5Location,
    structure: Structure,
    where: PathParts = (),
    above: tuple[Dataset, ...] = (),
    skip: Collection[str] = (),
    around: Collection[tuple[str, int]] = (),
) -> Iterator[HDF5Group]:
    """Yield every group below one, inner groups first, and last the group itself.

    A group that cannot be read, or that a link leads back to, is ``broken`` in its parent.
    """
    found = structure.list_members(place, skip)
    scales = (*above, *found.scales)
    around = {*around, place.address}
    for name, child in list(found.groups.items()):
        try:
            with describe_damage(child.source):
                if child.address in around:
                    raise _loop_error(place, name)
                yield from read_groups_below(child, structure, (*where, name), scales, skip, around)
        except VirtualdsError as error:
            found.broken[name] = error
            del found.groups[name]
    yield HDF5Group(where, place, found, above)


def _loop_error(place: HDF5Location, name: str) -> FormatError:
    return FormatError(
        f"{place.source.url}: the link {name!r} leads back to a group that it lies in, so that "
        f"there is no end; open one group with group=, or leave the link out with drop_variables"
    )


class FileGroups:
    """All groups of a file, read when first needed.

    Parameters
    ----------
    root : HDF5Location
    structure : Structure
    known : list of HDF5Group, optional
        All groups, where they have been read already.
    """

    def __init__(
        self, root: HDF5Location, structure: Structure, known: list[HDF5Group] | None = None
    ) -> None:
        self._root, self._structure = root, structure
        self._known = known

    @cached_property
    def _groups(self) -> list[HDF5Group]:
        """All groups, in the order in which netCDF numbers invented dimensions."""
        if self._known is not None:
            return self._known
        return list(islice(read_groups_below(self._root, self._structure), MOST_GROUPS))

    @cached_property
    def _axes(self) -> dict[PathParts, NamedAxes]:
        return {group.where: group.axes for group in self._groups}

    def name_axes(self, group: HDF5Group) -> NamedAxes:
        """Return the datasets of a group with the names of their axes."""
        known = self._axes.get(group.where) if self._known is not None else None
        return known or group.axes

    @cached_property
    def _lengths(self) -> dict[tuple[PathParts, str], int]:
        """How long every unlimited dimension is, by the group that defines it."""
        longest: dict[tuple[PathParts, str], int] = {}
        for where, axes in self._axes.items():
            for name, n in axes.lengths.items():
                key = self._find_owner(where, name), name
                longest[key] = max(n, longest.get(key, 0))
        return longest

    def _find_owner(self, where: PathParts, name: str) -> PathParts:
        """Return the group that defines the dimension which a group knows by a name."""
        for depth in range(len(where), 0, -1):
            axes = self._axes.get(where[:depth])
            if axes is not None and any(d.name == name for d in axes.scales):
                return where[:depth]
        return ()

    def find_lengths(self, where: PathParts, axes: NamedAxes) -> dict[str, int]:
        """Return the lengths of the unlimited dimensions that a group sees."""
        keys = {name: (self._find_owner(where, name), name) for name in axes.lengths}
        return {name: self._lengths.get(key, 0) for name, key in keys.items()}

    @cached_property
    def _first(self) -> dict[PathParts, int]:
        count = sum(len(axes.scales) for axes in self._axes.values())
        first = {}
        for where, axes in self._axes.items():
            first[where] = count
            count += Dimensions(axes, lambda: 0, self.find_lengths(where, axes)).invented
        return first

    def count_dimensions_before(self, where: PathParts) -> int:
        """Return how many dimensions netCDF numbers before those it invents for a group.

        It numbers all dimensions of the file first, then invented ones, those of child groups
        before those of their parent.
        """
        return self._first.get(where, sum(len(axes.scales) for axes in self._axes.values()))
