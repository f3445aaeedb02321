"""Groups and datasets of HDF5 files, and what their object headers say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from virtualds.errors import VirtualdsError
from virtualds.parsers.hdf5.attribute_messages import (
    DIMENSION_ONLY,
    Attributes,
    find_string_size,
    read_attributes,
)
from virtualds.parsers.hdf5.data_types import StoredType, TypeClass, name_of_type, parse_stored_type
from virtualds.parsers.hdf5.dataspace import Dataspace
from virtualds.parsers.hdf5.file import HDF5Files
from virtualds.parsers.hdf5.file_bytes import FileBytes
from virtualds.parsers.hdf5.fill_values import FillValue
from virtualds.parsers.hdf5.filter_pipeline import Filter
from virtualds.parsers.hdf5.global_heap import check_elements
from virtualds.parsers.hdf5.layout import Layout
from virtualds.parsers.hdf5.links import Link, read_links
from virtualds.parsers.hdf5.message_bytes import blame_file
from virtualds.parsers.hdf5.object_header import Message, read_messages
from virtualds.parsers.hdf5.shared_messages import read_fill_values
from virtualds.parsers.hdf5.type_messages import HDF5Type, parse_type_message
from virtualds.source_file import SourceFile

SCALE = b"DIMENSION_SCALE"
"""The CLASS of a scale."""
LONGEST_TEXT = 2**16
"""Most bytes of a text attribute of a scale: HDF5 itself writes at most a name."""
NULL_TERMINATED, PADDINGS = (0,), range(3)
"""Ways to fill up strings of fixed length (IV.A.2.d): HDF5 knows a scale by the first alone."""


@dataclass(frozen=True, eq=False)
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

        return h5py.h5o.open(self.files.open(self.source).id, self.path)

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
