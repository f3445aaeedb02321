"""Many HDF5 files of one structure, read together by a blueprint (`blueprint`)."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.projection import Ints
from virtualds.errors import VirtualdsError
from virtualds.options import get_options
from virtualds.parsers.hdf5 import members
from virtualds.parsers.hdf5.alike_files.known_structure import KnownStructure, read_structure
from virtualds.parsers.hdf5.alike_files.many_files import (
    FEWEST,
    FileReader,
    ManyFiles,
    open_many,
)
from virtualds.parsers.hdf5.alike_files.stored_columns import StoredColumns
from virtualds.parsers.hdf5.alike_files.variable_columns import FoundColumns, read_columns
from virtualds.parsers.hdf5.file import HDF5Files
from virtualds.parsers.hdf5.group_reader import read_one_group
from virtualds.parsers.hdf5.structure.byte_rows import Bytes
from virtualds.source_file import SourceFile, StorageOptions

MOST_TRIES = 4
"""Structures of a batch that may fit too few files; then each file is read alone."""
MOST_KEPT = 16
"""Structures that are kept: an archive has one for each of its eras."""


@dataclass(frozen=True, eq=False)
class AlikeHDF5Files:
    """HDF5 files of one structure (`virtualds.arrays.alike_files.AlikeFiles`).

    Parameters
    ----------
    group : ManifestGroup
        Of the first file.
    numbers : sequence of int
    readers : sequence of FileReader
    lengths : mapping of str to int array
    columns : mapping of str to StoredColumns
    heads : uint8 array, shape (files, bytes)
    skip : frozenset of str
        Variables that are left out.
    """

    group: ManifestGroup
    numbers: Sequence[int]
    readers: Sequence[FileReader]
    lengths: Mapping[str, Ints]
    columns: Mapping[str, StoredColumns]
    heads: Bytes
    skip: frozenset[str]

    def take(self, places: Ints) -> AlikeHDF5Files:
        """Return some of the files, in another order.

        Raises
        ------
        VirtualdsError, OSError
            The first of them cannot be read alone.
        """
        order = places.tolist()
        readers = [self.readers[n] for n in order]
        return AlikeHDF5Files(
            self.group if order[0] == 0 else read_alone(readers[0], self.skip),
            [self.numbers[n] for n in order],
            readers,
            {dim: values[places] for dim, values in self.lengths.items()},
            {name: columns.take(places) for name, columns in self.columns.items()},
            self.heads[places],
            self.skip,
        )

    def get_values(self, name: str) -> Sequence[npt.NDArray[Any]] | None:
        """Return the stored values of a variable in each file, None if they must be read."""
        pipeline, columns = self._get_array(name).pipelines[0], self.columns[name]
        if pipeline.codecs or pipeline.dtype.hasobject or pipeline.dtype.kind not in "iufSb":
            return None
        return columns.get_values(self.heads, pipeline.dtype)

    def join(self, name: str, dim: str) -> ManifestArray:
        """Return a variable of all files, one after the other along a dimension."""
        axis = self.group.variables[name].dims.index(dim)
        return self.columns[name].join(self._sources, axis, self._get_array(name))

    def stack(self, name: str) -> ManifestArray:
        """Return a variable of all files along a new first axis."""
        first = self._get_array(name).insert_axis(0)
        return self.columns[name].add_axis().join(self._sources, 0, first)

    @property
    def _sources(self) -> list[SourceFile]:
        return [reader.source for reader in self.readers]

    def _get_array(self, name: str) -> ManifestArray:
        data = self.group.variables[name].data
        if not isinstance(data, ManifestArray):
            raise TypeError(f"{name!r} is not a virtual array")
        return data


def read_alone(reader: FileReader, skip: frozenset[str]) -> ManifestGroup:
    """Read the root group of one of the files that are open.

    Raises
    ------
    VirtualdsError, OSError
        It cannot be read.
    """
    with reader.hold(), HDF5Files(reader.source) as opened:
        return read_one_group(opened, members, skip, "")


@dataclass
class _Structures:
    """The structures that were used last, by the names that were left out."""

    kept: list[tuple[frozenset[str], KnownStructure]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def list(self, skip: frozenset[str]) -> list[KnownStructure]:
        """Return the structures, the latest first."""
        with self.lock:
            return [known for skipped, known in self.kept if skipped == skip]

    def use(self, skip: frozenset[str], known: KnownStructure) -> None:
        """Keep a structure as the latest."""
        with self.lock:
            rest = [pair for pair in self.kept if pair[1] is not known]
            self.kept = [(skip, known), *rest][:MOST_KEPT]


STRUCTURES = _Structures()


@contextmanager
def read_alike(
    urls: Sequence[str],
    options: StorageOptions | None,
    group: str | None,
    skip: Iterable[str],
    heeded: Collection[str] | None,
) -> Iterator[Sequence[AlikeHDF5Files]]:
    """Read files together where they have one structure, as `ReadAlike` has it."""
    if get_options().hdf5 != "auto" or (group or "").strip("/") or len(urls) < FEWEST:
        yield ()
        return
    skipped = frozenset(skip)

    def is_alike(first: ManyFiles) -> bool:
        every = np.arange(len(first.readers))
        return bool(_BatchReader(first, every, skipped, heeded).read())

    with open_many(urls, options, is_alike) as (files, numbers):
        yield _BatchReader(files, numbers, skipped, heeded).read()


class _BatchReader:
    """Reads a batch of open files."""

    def __init__(
        self,
        files: ManyFiles,
        numbers: Ints,
        skip: frozenset[str],
        heeded: Collection[str] | None,
    ) -> None:
        self.files, self.numbers = files, numbers
        self.skip, self.heeded = skip, heeded
        self.found: list[AlikeHDF5Files] = []

    def read(self) -> list[AlikeHDF5Files]:
        """Return the files of each structure."""
        rest = np.arange(len(self.files.readers))
        for known in STRUCTURES.list(self.skip):
            rest = self._take(known, rest)
        tries = 0
        while len(rest) >= FEWEST and tries < MOST_TRIES:
            reader = self.files.readers[rest[0]]
            with reader.hold():
                made = read_structure(reader.source, self.skip)
            if made is None:
                rest, tries = rest[1:], tries + 1
                continue
            left = self._take(made, rest)
            tries += len(rest) - len(left) < FEWEST
            # the first file fits its own structure, unless it has changed meanwhile
            rest = left if len(left) < len(rest) else rest[1:]
        return self.found

    def _take(self, known: KnownStructure, which: Ints) -> Ints:
        """Add the files that have a structure; return the files that have not."""
        if len(which) < FEWEST:
            return which
        files = self.files.select(which)
        files.half = known.half
        files.offset_size = known.blueprint.offset_size
        files.length_size = known.blueprint.length_size
        match = known.blueprint.match(files)
        found = read_columns(known, match, files)
        if found is None:
            return which
        STRUCTURES.use(self.skip, known)
        fits = np.flatnonzero(found.sound & known.find_equal(match, self.heeded))
        taken = self._make_files(known, files, found, fits, self.numbers[which[fits]])
        if taken is None:
            return which
        self.found.append(taken)
        return np.delete(which, fits)

    def _make_files(
        self,
        known: KnownStructure,
        files: ManyFiles,
        found: FoundColumns,
        places: Ints,
        numbers: Ints,
    ) -> AlikeHDF5Files | None:
        """Return files of one structure, None if the first of them cannot be read alone."""
        if len(places) < FEWEST:
            return None
        readers = [files.readers[n] for n in places.tolist()]
        group = known.group
        if readers[0].source != known.source:
            # what nobody heeds may differ from the file that the structure is known from
            try:
                group = read_alone(readers[0], self.skip)
            except (VirtualdsError, OSError):
                return None
        if group.problems or list(group.variables) != list(known.group.variables):
            return None
        lengths = {dim: values[places] for dim, values in found.lengths.items()}
        columns = {name: one.take(places) for name, one in found.columns.items()}
        return AlikeHDF5Files(
            group,
            numbers.tolist(),
            readers,
            lengths,
            columns,
            files.heads[places],
            self.skip,
        )
