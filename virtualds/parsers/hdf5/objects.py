"""Groups and datasets of HDF5 files, and what their object headers say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from virtualds.errors import VirtualdsError
from virtualds.parsers.hdf5.data_types import StoredType, TypeClass, name_of_type, parse_stored_type
from virtualds.parsers.hdf5.file import HDF5Files
from virtualds.parsers.hdf5.structure.attribute_messages import (
    DIMENSION_ONLY,
    Attributes,
    find_string_size,
    read_attributes,
)
from virtualds.parsers.hdf5.structure.dataspace import Dataspace
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes
from virtualds.parsers.hdf5.structure.fill_values import FillValue
from virtualds.parsers.hdf5.structure.filter_pipeline import Filter
from virtualds.parsers.hdf5.structure.global_heap import check_elements
from virtualds.parsers.hdf5.structure.layout import EXTERNAL_FILES, Layout, LayoutClass
from virtualds.parsers.hdf5.structure.links import Link, read_links
from virtualds.parsers.hdf5.structure.message_bytes import blame_file
from virtualds.parsers.hdf5.structure.object_header import DATATYPE, SHARED, Message, read_messages
from virtualds.parsers.hdf5.structure.shared_messages import read_fill_values
from virtualds.parsers.hdf5.structure.type_messages import HDF5Type, parse_type
from virtualds.source_file import SourceFile

SCALE = b"DIMENSION_SCALE"
"""The CLASS of a scale."""
LONGEST_TEXT = 2**16
"""Most bytes of a text attribute of a scale: HDF5 itself writes at most a name."""
NULL_TERMINATED, PADDINGS = (0,), range(3)
"""Ways to fill up strings of fixed length (IV.A.2.d): HDF5 knows a scale by the first alone."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HDF5Location:
    """An object of a file: a group, a dataset, or a committed type.

    Parameters
    ----------
    files : HDF5Files
    source : SourceFile
        The file that it lies in.
    path : bytes
        Its path in that file.
    at : int
        The address of its header.
    """

    files: HDF5Files
    source: SourceFile
    path: bytes
    at: int

    @cached_property
    def id(self) -> Any:
        """The object as h5py opens it."""
        import h5py

        try:
            return h5py.h5o.open(self.files.open(self.source).id, self.path)
        except KeyError as error:
            self.file.refuse(f"HDF5 cannot open {self.path!r}: {error.args[0]}")

    @cached_property
    def attrs(self) -> Any:
        """Its attributes, as h5py reads them."""
        import h5py

        return h5py.AttributeManager(self)

    @property
    def address(self) -> tuple[str, int]:
        """Its url and address, the same through every link."""
        return self.source.url, int(self.at)

    @cached_property
    def file(self) -> FileBytes:
        """The bytes of the file that it lies in."""
        return self.files.get_bytes(self.source)

    @cached_property
    def messages(self) -> list[Message]:
        """The messages of its object header."""
        return read_messages(self.file, self.at)

    @cached_property
    def kinds(self) -> frozenset[int]:
        """The types of these messages."""
        return frozenset([message.kind for message in self.messages])

    @cached_property
    def attributes(self) -> Attributes:
        """Its attributes, in the order of creation where the file kept it."""
        return read_attributes(self.file, self.messages, int(self.at))

    @cached_property
    def links(self) -> list[Link]:
        """The links of a group."""
        return read_links(self.file, self.messages)

    @cached_property
    def _links_by_name(self) -> dict[bytes, Link]:
        return {link.name: link for link in self.links}

    def find_link(self, name: bytes) -> Link | None:
        """Return the link of a group by its name."""
        return self._links_by_name.get(name)


class DatasetFacts(NamedTuple):
    """What a dataset is.

    Parameters
    ----------
    space : Dataspace
    kind : bytes
        The Datatype message of its elements.
    fill : FillValue
    filters : tuple of Filter
        In the order in which they encoded.
    layout : Layout
    """

    space: Dataspace
    kind: bytes
    fill: FillValue
    filters: tuple[Filter, ...]
    layout: Layout


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(HDF5Location):
    """A dataset.

    Parameters
    ----------
    name : str
        Its name in its group.
    facts : DatasetFacts
    """

    name: str
    facts: DatasetFacts

    @cached_property
    def plist(self) -> Any:
        """Its properties, as h5py reads them."""
        return self.id.get_create_plist()

    @property
    def rank(self) -> int:
        """Number of its axes, without those that every element has."""
        return len(self.facts.space.limits)

    @cached_property
    def type(self) -> HDF5Type:
        """The type of its elements."""
        return parse_type(self.file, self.facts.kind)

    @cached_property
    def stored(self) -> StoredType:
        """How its elements are stored.

        Raises
        ------
        UnsupportedError
            There are no values for its type.
        """
        is_named = self.type.kind == TypeClass.ENUM and self._has_committed_type
        with blame_file(self.file):
            name = name_of_type(self.id.get_type()) if is_named else None
            return parse_stored_type(self.facts.kind, name)

    @property
    def _has_committed_type(self) -> bool:
        return any(m.kind == DATATYPE and m.flags & SHARED for m in self.messages)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes, and of those that every element has; () if it has no space."""
        return (self.facts.space.shape or ()) + self._inner_axes

    @cached_property
    def _inner_axes(self) -> tuple[int, ...]:
        axes: tuple[int, ...] = ()
        kind = self.type
        while kind.kind == TypeClass.ARRAY:
            axes, kind = axes + kind.dims, kind.base
        return axes

    @property
    def limits(self) -> tuple[int | None, ...]:
        """The greatest length of each axis, None where there is no limit."""
        return self.facts.space.limits

    @cached_property
    def grows(self) -> tuple[bool, ...]:
        """Whether each axis may grow."""
        return tuple(n is None for n in self.limits) + (False,) * len(self._inner_axes)

    @property
    def is_unlimited(self) -> bool:
        """Whether its first axis may grow."""
        return self.grows[:1] == (True,)

    @cached_property
    def is_scale(self) -> bool:
        """Whether it is a dimension scale."""
        return self._read_text(b"CLASS", NULL_TERMINATED) == SCALE

    @property
    def is_bare(self) -> bool:
        """Whether it is a scale that stands for a dimension without a variable."""
        return self.is_scale and self._read_text(b"NAME", PADDINGS).startswith(DIMENSION_ONLY)

    def _read_text(self, name: bytes, paddings: Collection[int]) -> bytes:
        """Return an attribute that is one fixed-length string with such padding; else empty bytes.

        HDF5's own functions for scales (`H5DSis_scale`) end the process where the type is another.
        """
        found = self.attributes.get(name)
        if found is None:
            return b""
        size = find_string_size(found.kind, paddings)
        if found.elements != 1 or not 0 < size <= min(LONGEST_TEXT, len(found.data)):
            return b""
        return found.data[:size].partition(b"\0")[0]

    @property
    def is_virtual(self) -> bool:
        """Whether it is assembled from others."""
        return self.facts.layout.kind == LayoutClass.VIRTUAL

    @property
    def is_external(self) -> bool:
        """Whether its elements lie in other files."""
        return EXTERNAL_FILES in self.kinds

    @property
    def referring(self) -> HDF5Type | None:
        """The type of its elements if they refer to the global heap, else None."""
        return self.type if self.type.refers else None


def check_fill(place: HDF5Location, kind: bytes) -> None:
    """Refuse a dataset of some type whose fill value refers to objects missing from the heap."""
    of_type = parse_type(place.file, kind)
    if not of_type.refers:
        return
    for raw in read_fill_values(place.file, place.messages):
        if len(raw) != of_type.size:
            place.file.refuse(f"a fill value has {len(raw)} bytes of {of_type.size}")
        check_elements(place.file, of_type, np.frombuffer(raw, np.uint8)[None])


@dataclass(frozen=True)
class GroupMembers:
    """The members of a group, in the order of creation where the file kept it.

    Parameters
    ----------
    datasets : dict of str to Dataset
    groups : dict of str to HDF5Location
    broken : dict of str to VirtualdsError
        Links that lead nowhere, and damaged members.
    """

    datasets: dict[str, Dataset] = field(default_factory=dict)
    groups: dict[str, HDF5Location] = field(default_factory=dict)
    broken: dict[str, VirtualdsError] = field(default_factory=dict)

    @property
    def scales(self) -> list[Dataset]:
        """Its scales, each once, by the first of several names."""
        distinct: dict[tuple[str, int], Dataset] = {}
        for dataset in self.datasets.values():
            if dataset.is_scale:
                distinct.setdefault(dataset.address, dataset)
        return list(distinct.values())


class Structure(Protocol):
    """A way to find groups and datasets: a module with these functions."""

    def open_root(self, files: HDF5Files, source: SourceFile) -> HDF5Location:
        """Return the root group of a file."""

    def list_members(self, place: HDF5Location, skip: Collection[str] = ()) -> GroupMembers:
        """Return the members of a group."""

    def descend_to(self, root: HDF5Location, path: str) -> list[HDF5Location]:
        """Return the groups from the root to the one at a path."""


def make_no_group_error(source: SourceFile, path: str) -> FileNotFoundError:
    """Return the error of a path at which there is no group."""
    return FileNotFoundError(
        f"{source.url}: there is no group {path!r}; list its groups with "
        f"virtualds.open_virtual_datatree or "
        f"ncdump -h"
    )
