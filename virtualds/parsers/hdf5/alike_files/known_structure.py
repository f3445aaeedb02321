"""The structure of an HDF5 file that others may have: its blueprint, and what its slots are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from virtualds.arrays.alike_files import Heeds
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.projection import Ints
from virtualds.errors import VirtualdsError
from virtualds.parsers.hdf5 import objects
from virtualds.parsers.hdf5.alike_files.blueprint import Blueprint, Match
from virtualds.parsers.hdf5.group_reader import (
    NOT_A_COORDINATE,
    GroupRead,
    read_group_with_members,
)
from virtualds.parsers.hdf5.netcdf_rules import RESERVED, decode_in_place, decode_texts
from virtualds.parsers.hdf5.objects import LENGTH, Dataset, DatasetFacts, HDF5Files
from virtualds.parsers.hdf5.structure.byte_rows import Bools
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, Notes
from virtualds.parsers.hdf5.structure.messages import LayoutClass
from virtualds.parsers.hdf5.structure.object_header import Attribute, Attributes
from virtualds.source_file import SourceFile


class Part(NamedTuple):
    """What is read of each file: a group, and the names that are left out."""

    path: str
    skip: frozenset[str]


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


@dataclass(frozen=True, eq=False)
class KnownStructure:
    """A blueprint, and what its slots are.

    Parameters
    ----------
    blueprint : Blueprint
    half : int
        Half of the most children of a node of a version 1 B-tree of chunks.
    group : ManifestGroup
        Of the file that the structure is known from.
    source : SourceFile
        That file.
    variables : dict of str to KnownVariable
    axes : dict of (int, int) to str
        By owner and axis of every dataset: its dimension.
    attributes : dict of (str, str) to Attribute
        By variable, "" for the group, and name: the attributes that users see.
    """

    blueprint: Blueprint
    half: int
    group: ManifestGroup
    source: SourceFile
    variables: Mapping[str, KnownVariable]
    axes: Mapping[tuple[int, int], str]
    attributes: Mapping[tuple[str, str], Attribute]

    def read_attributes(self, match: Match, places: Ints) -> dict[tuple[str, str], list[Any]]:
        """Return the attributes that differ between files, with the value in each.

        Raises
        ------
        UnreadValuesError
            Some files have values that cannot be read together.
        """
        notes, found = self.blueprint.notes, dict[tuple[str, str], list[Any]]()
        for key, attribute in self.attributes.items():
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
            found[key] = values
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

    def _get_value(self, variable: str, name: str) -> Any:
        owner = self.group.variables[variable] if variable else self.group
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
            read = read_group_with_members(files, objects, part.skip, part.path)
            if files.is_alone and notes.complete:
                return _make_structure(read, notes, files.get_bytes(source))
    except (VirtualdsError, OSError):
        pass
    return None


def _make_structure(read: GroupRead, notes: Notes, file: FileBytes) -> KnownStructure | None:
    group = read.group
    axes = _list_axes(read)
    if group.problems or axes is None or file.base:
        return None
    variables, attributes = {}, dict[tuple[str, str], Attribute]()
    for name, dataset in read.members.datasets.items():
        shown = name.removeprefix(NOT_A_COORDINATE)
        if shown not in group.variables:
            continue
        if not _is_plain(dataset, group.variables[shown].data, notes):
            return None
        owner, within = dataset.address[1], dataset.shape[dataset.rank :]
        variables[shown] = KnownVariable(owner, dataset.facts, within, dataset.type.size)
        attributes |= _list_attributes(shown, dataset.attributes)
    if variables.keys() != group.variables.keys():
        return None
    blueprint = Blueprint(notes, file.offset_size, file.length_size)
    attributes |= _list_attributes("", read.place.attributes)
    return KnownStructure(blueprint, file.half, group, file.source, variables, axes, attributes)


def _list_attributes(variable: str, known: Attributes) -> dict[tuple[str, str], Attribute]:
    """Return the attributes that users see of a variable, or of the group."""
    texts = {name.decode("utf-8", "surrogateescape"): one for name, one in known.items()}
    return {(variable, name): one for name, one in texts.items() if name not in RESERVED}


def _list_axes(read: GroupRead) -> dict[tuple[int, int], str] | None:
    """Return the dimension of every axis; None unless scales name all, with their lengths."""
    axes: dict[tuple[int, int], str] = {}
    lengths: dict[str, int] = {}
    for dataset, dims in read.axes.named:
        for axis, (dim, length) in enumerate(zip(dims, dataset.shape, strict=False)):
            if dim is None or lengths.setdefault(dim, length) != length:
                return None
            axes[dataset.address[1], axis] = dim
        if None in dims:
            return None
    return axes


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
