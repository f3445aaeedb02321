"""The structure of an HDF5 file that others may have: its blueprint, and what its slots are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from virtualds.arrays.alike_files import Heeds
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.projection import Ints
from virtualds.errors import VirtualdsError
from virtualds.parsers.hdf5 import objects
from virtualds.parsers.hdf5.alike_files.blueprint import Blueprint, Match
from virtualds.parsers.hdf5.group_reader import NOT_A_COORDINATE, GroupsRead, read_groups
from virtualds.parsers.hdf5.netcdf_rules import (
    RESERVED,
    PathParts,
    decode_in_place,
    decode_texts,
)
from virtualds.parsers.hdf5.objects import LENGTH, Dataset, DatasetFacts, HDF5Files
from virtualds.parsers.hdf5.structure.byte_rows import Bools
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, Notes
from virtualds.parsers.hdf5.structure.messages import LayoutClass
from virtualds.parsers.hdf5.structure.object_header import Attribute, Attributes
from virtualds.source_file import SourceFile


class Part(NamedTuple):
    """What is read of each file: a group, the groups below it if wanted, and names to leave out."""

    path: str
    skip: frozenset[str]
    below: bool = False


Variable = tuple[str, str]
"""The path of a group below the one that is read, "" for itself, and the name of a variable."""
Dimension = tuple[PathParts, str]
"""The group that defines a dimension, and its name."""


class KnownVariable(NamedTuple):
    """A variable of a known structure.

    Parameters
    ----------
    owner : int
        The first part of the names of its slots.
    facts : DatasetFacts
    within : tuple of int
        Lengths of the axes that every element has.
    itemsize : int
        Bytes of an element, with those axes.
    """

    owner: int
    facts: DatasetFacts
    within: tuple[int, ...]
    itemsize: int


class KnownGroup(NamedTuple):
    """A group of a known structure.

    Parameters
    ----------
    group : ManifestGroup
    dims : dict of str to Dimension
        By the name that the group knows it by.
    """

    group: ManifestGroup
    dims: Mapping[str, Dimension]


@dataclass(frozen=True, eq=False)
class KnownStructure:
    """A blueprint, and what its slots are.

    Parameters
    ----------
    blueprint : Blueprint
    half : int
        Half of the most children of a node of a version 1 B-tree of chunks.
    source : SourceFile
        The file that the structure is known from.
    groups : dict of str to KnownGroup
        By path, the one that is read, "", and those below it.
    variables : dict of Variable to KnownVariable
    axes : dict of (int, int) to Dimension
        By owner and axis of every dataset: its dimension.
    attributes : dict of (str, str, str) to Attribute
        By group, variable, "" for the group, and name: the attributes that users see.
    """

    blueprint: Blueprint
    half: int
    source: SourceFile
    groups: Mapping[str, KnownGroup]
    variables: Mapping[Variable, KnownVariable]
    axes: Mapping[tuple[int, int], Dimension]
    attributes: Mapping[tuple[str, str, str], Attribute]

    def read_attributes(
        self, match: Match, places: Ints
    ) -> dict[str, dict[tuple[str, str], list[Any]]]:
        """Return the attributes that differ between files, with the value in each, by group.

        Raises
        ------
        UnreadValuesError
            Some files have values that cannot be read together.
        """
        notes = self.blueprint.notes
        found: dict[str, dict[tuple[str, str], list[Any]]] = {path: {} for path in self.groups}
        for (path, *key), attribute in self.attributes.items():
            if attribute.key in notes.slots:
                rows = match.get_column(notes.slots[attribute.key])[places]
                if (rows == rows[:1]).all():
                    continue
                values = [decode_in_place(attribute._replace(data=row.tobytes())) for row in rows]
            elif references := notes.references.get(attribute.key):
                texts = [self.blueprint.read_texts(match, one, places) for one in references]
                if all(text == of_all[0] for of_all in texts for text in of_all):
                    continue
                known = len(references) == attribute.elements
                values = [
                    decode_texts(some) if known else None for some in zip(*texts, strict=True)
                ]
            else:
                continue
            unread = [value is None for value in values]
            if key[1] in OF_DECODING or any(unread):
                same = self.blueprint.find_equal(match, [attribute.key])[places]
                raise UnreadValuesError(same)
            found[path][key[0], key[1]] = values
        return found

    def find_equal(self, match: Match, heeds: Heeds) -> Bools:
        """Say which files have the attributes of the known file, of those that are heeded."""
        shown = {one.key: self._get_value(*path) for path, one in self.attributes.items()}
        keys = [
            key
            for key in (*self.blueprint.notes.slots, *self.blueprint.notes.references)
            if isinstance(key, tuple)
            and isinstance(key[1], bytes)
            and heeds(key[1].decode("utf-8", "surrogateescape"), shown.get(key))
        ]
        return self.blueprint.find_equal(match, keys)

    def _get_value(self, path: str, variable: str, name: str) -> Any:
        group = self.groups[path].group
        owner = group.variables[variable] if variable else group
        return owner.attributes.get(name)


class UnreadValuesError(Exception):
    """Some files have attributes that cannot be read together; ``same`` says which have not."""

    def __init__(self, same: Bools) -> None:
        super().__init__()
        self.same = same


OF_DECODING = frozenset({"_FillValue", "least_significant_digit"})
"""Attributes that decide more than their own value."""


def read_structure(source: SourceFile, part: Part) -> KnownStructure | None:
    """Read a file with notes of its bytes; None if nothing can be known by it of other files."""
    notes = Notes()
    try:
        with HDF5Files(source, notes) as files:
            read = read_groups(files, objects, part.skip, part.path, below=part.below)
            if files.is_alone and notes.complete:
                return _make_structure(read, notes, files.get_bytes(source))
    except (VirtualdsError, OSError):
        pass
    return None


def _make_structure(read: GroupsRead, notes: Notes, file: FileBytes) -> KnownStructure | None:
    axes = _list_axes(read)
    if axes is None or file.base or any((o, LENGTH, axis) not in notes.slots for o, axis in axes):
        return None
    groups, variables = dict[str, KnownGroup](), dict[Variable, KnownVariable]()
    attributes = dict[tuple[str, str, str], Attribute]()
    for where, one in read.groups.items():
        path, group = "/".join(where[len(read.where) :]), one.group
        if group.problems:
            return None
        for name, dataset in one.members.datasets.items():
            shown = name.removeprefix(NOT_A_COORDINATE)
            if shown not in group.variables:
                continue
            if not _is_plain(dataset, group.variables[shown].data, notes):
                return None
            owner, within = dataset.address[1], dataset.shape[dataset.rank :]
            variables[path, shown] = KnownVariable(owner, dataset.facts, within, dataset.type.size)
            attributes |= _list_attributes(path, shown, dataset.attributes)
        if any((path, name) not in variables for name in group.variables):
            return None
        attributes |= _list_attributes(path, "", one.place.attributes)
        names = {dim for _, dims in one.axes.named for dim in dims if dim is not None}
        alone = replace(group, groups=dict.fromkeys(group.groups, ManifestGroup()))
        groups[path] = KnownGroup(alone, {n: _find_dimension(read, where, n) for n in names})
    blueprint = Blueprint(notes, file.offset_size, file.length_size)
    ordered = {path: groups[path] for path, _ in read.group.walk() if path in groups}
    return KnownStructure(blueprint, file.half, file.source, ordered, variables, axes, attributes)


def _list_attributes(
    path: str, variable: str, known: Attributes
) -> dict[tuple[str, str, str], Attribute]:
    """Return the attributes that users see of a variable, or of the group."""
    texts = {name.decode("utf-8", "surrogateescape"): one for name, one in known.items()}
    return {(path, variable, name): one for name, one in texts.items() if name not in RESERVED}


def _list_axes(read: GroupsRead) -> dict[tuple[int, int], Dimension] | None:
    """Return the dimension of every axis; None unless scales name all, with their lengths."""
    axes: dict[tuple[int, int], Dimension] = {}
    lengths: dict[Dimension, int] = {}
    for where, one in read.groups.items():
        for dataset, dims in one.axes.named:
            if None in dims:
                return None
            for axis, (dim, length) in enumerate(zip(dims, dataset.shape, strict=False)):
                found = _find_dimension(read, where, str(dim))
                if lengths.setdefault(found, length) != length:
                    return None
                axes[dataset.address[1], axis] = found
    if any(one.axes.grow for one in read.groups.values()):
        # in netCDF a dimension is as long as the longest of its variables, in any group
        for where, others in read.together.axes.items():
            for dataset, dims in others.named:
                for axis, (dim, length) in enumerate(zip(dims, dataset.shape, strict=False)):
                    found = _find_dimension(read, where, str(dim))
                    if dim is not None and lengths.get(found, length) != length:
                        return None
                    if dim is not None and found in lengths:
                        axes[dataset.address[1], axis] = found
    return axes


def _find_dimension(read: GroupsRead, where: PathParts, name: str) -> Dimension:
    """Return a dimension that a group knows by a name."""
    if len(read.groups) == 1 and not read.groups[read.where].axes.grow:
        return read.where, name
    return read.together.find_owner(where, name), name


def _is_plain(dataset: Dataset, data: object, notes: Notes) -> bool:
    """Say whether all that is known of the values of a variable are its chunks."""
    layout = dataset.facts.layout
    return (
        isinstance(data, ManifestArray)
        and data.shape == dataset.shape
        and len(data.pipelines) == len(data.fragments) == 1
        and layout.kind != LayoutClass.VIRTUAL
        and not dataset.is_external
        and all((dataset.address[1], LENGTH, axis) in notes.slots for axis in range(dataset.rank))
    )
