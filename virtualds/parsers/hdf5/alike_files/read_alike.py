"""Many HDF5 files of one structure, read together by a blueprint (`known_structure`)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.alike_files import Heeds, select_own
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import TOGETHER, ManifestGroup
from virtualds.chunks.projection import Ints
from virtualds.options import get_options
from virtualds.parsers.hdf5.alike_files.columns import StoredColumns, read_columns
from virtualds.parsers.hdf5.alike_files.known_structure import (
    KnownStructure,
    Part,
    UnreadValuesError,
    read_structure,
)
from virtualds.parsers.hdf5.alike_files.many_files import (
    FEWEST,
    ManyFiles,
    open_many,
)
from virtualds.parsers.hdf5.structure.byte_rows import Bytes
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.urls import path_or_url

MOST_TRIES = 4
"""Structures of a batch that may fit too few files; then each file is read alone."""
MOST_KEPT = 16
"""Structures that are kept: an archive has one for each of its eras."""


@dataclass(frozen=True, eq=False)
class AlikeHDF5Files:
    """HDF5 files of one structure (`virtualds.arrays.alike_files.AlikeFiles`).

    Parameters
    ----------
    known : ManifestGroup
        Of the file that the structure is known from.
    numbers : sequence of int
    sources : sequence of SourceFile
    lengths : mapping of str to int array
    columns : mapping of str to StoredColumns
    attributes : mapping of (str, str) to sequence
    heads : uint8 array, shape (files, bytes)
    below : mapping of str to AlikeHDF5Files
        The groups below, by path, where they are wanted.
    """

    known: ManifestGroup
    numbers: Sequence[int]
    sources: Sequence[SourceFile]
    lengths: Mapping[str, Ints]
    columns: Mapping[str, StoredColumns]
    attributes: Mapping[tuple[str, str], Sequence[Any]]
    heads: Bytes
    below: Mapping[str, AlikeHDF5Files] = field(default_factory=dict)

    @cached_property
    def group(self) -> ManifestGroup:
        """The group as the first of the files has it."""
        first = self.take(np.zeros(1, np.int64))
        variables = {
            name: replace(
                variable,
                data=first.stack(name)[0],
                attributes=select_own(name, self.attributes, 0, variable.attributes),
                encoding={**variable.encoding, **{k: v[0] for k, v in first._list_encodings(name)}},
            )
            for name, variable in self.known.variables.items()
        }
        attributes = select_own("", self.attributes, 0, self.known.attributes)
        return replace(self.known, variables=variables, attributes=attributes, way=TOGETHER)

    @cached_property
    def encodings(self) -> Mapping[tuple[str, str], Sequence[Any]]:
        """By variable and key: the encoding that differs between files."""
        return {
            (name, key): values
            for name in self.columns
            for key, values in self._list_encodings(name)
            if values.count(values[0]) < len(values)
        }

    def _list_encodings(self, name: str) -> Iterator[tuple[str, list[Any]]]:
        """Yield what of the encoding of a variable is that of its file."""
        variable, columns = self.known.variables[name], self.columns[name]
        yield "source", self._paths
        shape, chunks = _list_rows(columns.shape), _list_rows(columns.chunks)
        yield "original_shape", shape
        if variable.encoding.get("chunksizes") is not None:
            yield "chunksizes", chunks
        if "preferred_chunks" in variable.encoding:
            preferred = {chunk: dict(zip(variable.dims, chunk, strict=True)) for chunk in chunks}
            yield "preferred_chunks", [preferred[chunk] for chunk in chunks]

    @cached_property
    def _paths(self) -> list[str]:
        return [path_or_url(source.url) for source in self.sources]

    def take(self, places: Ints) -> AlikeHDF5Files:
        """Return some of the files, in another order."""
        order = places.tolist()
        return AlikeHDF5Files(
            self.known,
            [self.numbers[n] for n in order],
            [self.sources[n] for n in order],
            {dim: values[places] for dim, values in self.lengths.items()},
            {name: columns.take(places) for name, columns in self.columns.items()},
            {key: [values[n] for n in order] for key, values in self.attributes.items()},
            self.heads[places],
            {path: group.take(places) for path, group in self.below.items()},
        )

    def get_values(self, name: str) -> Sequence[npt.NDArray[Any]] | None:
        """Return the stored values of a variable in each file, None if they must be read."""
        pipeline, columns = self._get_array(name).pipelines[0], self.columns[name]
        if pipeline.codecs or pipeline.dtype.hasobject or pipeline.dtype.kind not in "iufSb":
            return None
        return columns.get_values(self.heads, pipeline.dtype)

    def join(self, name: str, dim: str) -> ManifestArray:
        """Return a variable of all files, one after the other along a dimension."""
        axis = self.known.variables[name].dims.index(dim)
        return self.columns[name].join(self.sources, axis, self._get_array(name))

    def stack(self, name: str) -> ManifestArray:
        """Return a variable of all files along a new first axis."""
        return self.columns[name].stack(self.sources, self._get_array(name))

    def _get_array(self, name: str) -> ManifestArray:
        data = self.known.variables[name].data
        if not isinstance(data, ManifestArray):
            raise TypeError(f"{name!r} is not a virtual array")
        return data


def _list_rows(column: Ints) -> list[tuple[int, ...]]:
    """Return the rows of a column as tuples; equal ones are one object."""
    if (column == column[:1]).all():
        return [tuple(column[0].tolist())] * len(column)
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    return [known.setdefault(row, row) for row in map(tuple, column.tolist())]


@dataclass
class _Structures:
    """The structures that were used last, by the group and the names that were left out."""

    kept: list[tuple[Part, KnownStructure]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def list(self, part: Part) -> list[KnownStructure]:
        """Return the structures, the latest first."""
        with self.lock:
            return [known for other, known in self.kept if other == part]

    def use(self, part: Part, known: KnownStructure) -> None:
        """Keep a structure as the latest."""
        with self.lock:
            rest = [pair for pair in self.kept if pair[1] is not known]
            self.kept = [(part, known), *rest][:MOST_KEPT]


STRUCTURES = _Structures()


@contextmanager
def read_alike(
    urls: Sequence[str],
    options: StorageOptions | None,
    group: str | None,
    skip: Iterable[str],
    heeds: Heeds,
    below: bool = False,
) -> Iterator[Sequence[AlikeHDF5Files]]:
    """Read files together where they have one structure, as `ReadAlike` has it."""
    if get_options().hdf5 != "auto" or not isinstance(group, str | None) or len(urls) < FEWEST:
        yield ()
        return
    part = Part((group or "").strip("/"), frozenset(skip), below)

    def is_alike(first: ManyFiles) -> bool:
        every = np.arange(len(first.readers))
        return bool(_BatchReader(first, every, part, heeds).read())

    with open_many(urls, options, is_alike) as (files, numbers):
        yield _BatchReader(files, numbers, part, heeds).read()


class _BatchReader:
    """Reads a batch of open files."""

    def __init__(
        self,
        files: ManyFiles,
        numbers: Ints,
        part: Part,
        heeds: Heeds,
    ) -> None:
        self.files, self.numbers = files, numbers
        self.part, self.heeds = part, heeds
        self.found: list[AlikeHDF5Files] = []

    def read(self) -> list[AlikeHDF5Files]:
        """Return the files of each structure."""
        rest = np.arange(len(self.files.readers))
        for known in STRUCTURES.list(self.part):
            rest = self._take(known, rest)
        tries = 0
        while len(rest) >= FEWEST and tries < MOST_TRIES:
            reader = self.files.readers[rest[0]]
            with reader.hold():
                made = read_structure(reader.source, self.part)
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
        STRUCTURES.use(self.part, known)
        fits = np.flatnonzero(found.sound & known.find_equal(match, self.heeds))
        attributes = None
        while attributes is None and len(fits) >= FEWEST:
            try:
                attributes = known.read_attributes(match, fits)
            except UnreadValuesError as error:
                # each time there are fewer files left
                fits = fits[error.same]
        if attributes is None:
            return which
        heads = files.heads if len(fits) == len(files.heads) else files.heads[fits]
        columns = {name: one.take(fits) for name, one in found.columns.items()}
        sources = [files.readers[n].source for n in fits.tolist()]
        first, *others = (
            AlikeHDF5Files(
                group.group,
                self.numbers[which[fits]].tolist(),
                sources,
                {name: found.lengths[dim][fits] for name, dim in group.dims.items()},
                {name: columns[path, name] for name in group.group.variables},
                attributes[path],
                heads,
            )
            for path, group in known.groups.items()
        )
        below = dict(zip(list(known.groups)[1:], others, strict=True))
        self.found.append(replace(first, below=below))
        return np.delete(which, fits)
