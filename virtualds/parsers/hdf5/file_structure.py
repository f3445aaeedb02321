"""The structure that HDF5 files share, by which they are read together.

The notes of a parsed file (`file_bytes`) record which of its bytes are structure. A file whose
blocks, found by its addresses, have the same structure bytes differs only in its slots. So the
slots of many files are read as columns, without parsing these files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.parser import MustBeEqual, is_aggregation
from virtualds.chunks.columns import Ints
from virtualds.errors import VirtualdsError
from virtualds.parsers.hdf5.data_types import decode_inline_value, decode_strings
from virtualds.parsers.hdf5.group_reader import NON_COORDINATE_PREFIX, ReadGroups, read_groups
from virtualds.parsers.hdf5.netcdf_rules import RESERVED_ATTRIBUTES, PathParts
from virtualds.parsers.hdf5.objects import HDF5Dataset, HDF5Files
from virtualds.parsers.hdf5.structure import (
    CHECKSUM_BYTES,
    Bools,
    Bytes,
    RowsError,
    compute_checksums,
    read_uints,
)
from virtualds.parsers.hdf5.structure.file_bytes import (
    END_OF_FILE,
    FIXED_ADDRESS,
    HEAD_BYTES,
    ByteNotes,
    FileBytes,
    HeapReference,
    Pointer,
    Slot,
    TrackedBlock,
    lock_for_reading,
)
from virtualds.parsers.hdf5.structure.messages import LayoutClass
from virtualds.parsers.hdf5.structure.object_header import (
    LENGTH,
    Attribute,
    Attributes,
    DatasetHeader,
)
from virtualds.reading.threads import fetch_many
from virtualds.source_file import SourceFile, StorageOptions, local_path, scheme_of
from virtualds.stores.block_cache import FIRST_PAGES, PAGE_SIZE
from virtualds.stores.local import open_regular
from virtualds.stores.scan_cache import ScannedStore
from virtualds.stores.store import Range

OBJECT_HEADER_BYTES = 8
"""Number of bytes before the length of an object of the global heap (III.E)."""


@dataclass(frozen=True, eq=False)
class Match:
    """The result of comparing files with a blueprint: whether files match, and their bytes.

    Parameters
    ----------
    matches : bool array, shape (files,)
        Whether each file matches.
    rows : list of uint8 array, shape (files, bytes)
        The bytes of each block; objects of the global heap have the same positions as in the first
        file.
    objects : dict of (int, int) to (int array, int array)
        The offsets and lengths of objects in a collection, by block and number of the object.
    heaps : dict of int to uint8 array
        The bytes of collections as stored in the files.
    """

    matches: Bools
    rows: list[Bytes]
    objects: dict[tuple[int, int], tuple[Ints, Ints]]
    heaps: dict[int, Bytes]

    def get_column(self, slot: Slot) -> Bytes:
        """Return the bytes of a slot in all files."""
        return self.rows[slot.block][:, slot.begin : slot.begin + slot.length]

    def read_numbers(self, slots: Sequence[Slot]) -> Ints:
        """Return the numbers in slots of equal length: a row for each file."""
        if not slots:
            return np.empty((len(self.matches), 0), np.int64)
        return read_uints(np.stack([self.get_column(slot) for slot in slots], axis=1))


class Blueprint:
    """The structure of one file.

    Parameters
    ----------
    notes : ByteNotes
        The notes of the file, which are complete.
    offset_size, length_size : int
        The sizes in bytes of addresses and lengths.
    """

    def __init__(self, notes: ByteNotes, offset_size: int, length_size: int) -> None:
        self.notes = notes
        self.offset_size, self.length_size = offset_size, length_size
        self._structure_offsets = [
            np.flatnonzero(np.frombuffer(b.structure, np.uint8)) for b in notes.blocks
        ]
        data = [np.frombuffer(b.data, np.uint8) for b in notes.blocks]
        self._expected = [d[p] for d, p in zip(data, self._structure_offsets, strict=True)]
        self._levels = _sort_by_level(notes.blocks)
        referring = notes.references.values()
        self._values = {(r.block, r.number) for references in referring for r in references}

    def match(self, files: ManyFiles) -> Match:
        """Compare files with this structure."""
        count = len(files.ends)
        none = np.empty((0, 0), np.uint8)
        match = Match(np.ones(count, bool), [none] * len(self._structure_offsets), {}, {})
        addresses = np.zeros((len(self._structure_offsets), count), np.int64)
        for level in self._levels:
            addresses[level] = self._find_addresses(level, match, files)
            to_read = np.flatnonzero(match.matches)
            sizes = [len(self.notes.blocks[number].data) for number in level]
            files.fetch(to_read, list(zip(addresses[level][:, to_read], sizes, strict=True)))
            for number in level:
                rows = self._read_block_rows(number, addresses[number], match, files)
                if number in self.notes.objects:
                    match.heaps[number] = rows
                    rows = self._align_objects(number, rows, match)
                match.rows[number] = rows
                match.matches[:] &= (
                    rows[:, self._structure_offsets[number]] == self._expected[number]
                ).all(1)
            if not match.matches.any():
                return match
        self._check_addresses(addresses, match)
        self._check_checksums(match)
        self._check_references(match)
        end = match.read_numbers([self.notes.slots[END_OF_FILE]])[:, 0]
        match.matches[:] &= end <= files.ends
        return match

    def _read_block_rows(self, number: int, address: Ints, match: Match, files: ManyFiles) -> Bytes:
        """Return the bytes of a block in each file, or zeros for files that do not match."""
        size, files_to_read = len(self.notes.blocks[number].data), np.flatnonzero(match.matches)
        block_rows = files.read_rows(files_to_read, address[files_to_read], size)
        if len(files_to_read) == len(address):
            return block_rows
        rows = np.zeros((len(address), size), np.uint8)
        rows[files_to_read] = block_rows
        return rows

    def _find_addresses(self, level: list[int], match: Match, files: ManyFiles) -> Ints:
        """Return the addresses of blocks, a row for each; files with invalid ones do not match."""
        blocks = [self.notes.blocks[number] for number in level]
        addresses = self._get_addresses([block.pointer for block in blocks], match)
        sizes = np.array([[len(block.data)] for block in blocks])
        is_inside = (addresses >= 0) & (addresses <= files.ends - sizes)
        match.matches[:] &= is_inside.all(axis=0)
        return np.where(is_inside, addresses, 0)

    def _get_addresses(self, pointers: Sequence[Pointer], match: Match) -> Ints:
        """Return the addresses at pointers: a row for each pointer."""
        fixed = np.array([pointer.offset for pointer in pointers], np.int64)
        addresses = np.repeat(fixed[:, None], len(match.matches), axis=1)
        stored = [n for n, pointer in enumerate(pointers) if pointer.block != FIXED_ADDRESS]
        slots = [Slot(*pointers[n], self.offset_size) for n in stored]
        addresses[stored] = match.read_numbers(slots).T
        return addresses

    def _check_addresses(self, addresses: Ints, match: Match) -> None:
        """Exclude files whose addresses are not equal exactly where those of the first file are."""
        actual = self._get_addresses([pointer for pointer, _ in self.notes.same], match)
        expected = addresses[[number for _, number in self.notes.same]]
        match.matches[:] &= (actual == expected).all(axis=0)
        ordered = np.sort(addresses, axis=0)
        match.matches[:] &= (ordered[1:] > ordered[:-1]).all(axis=0)

    def _check_checksums(self, match: Match) -> None:
        slots = [Slot(n, start, CHECKSUM_BYTES) for n, start in self.notes.checksums.items()]
        for (number, start, _), stated in zip(slots, match.read_numbers(slots).T, strict=True):
            rows = match.rows[number]
            stop = start + CHECKSUM_BYTES
            checked = rows[:, :start]
            if stop < rows.shape[1]:
                # the bytes of the checksum itself count as zeros
                checked = rows.copy()
                checked[:, start:stop] = 0
            checksums = compute_checksums(np.ascontiguousarray(checked))
            match.matches[:] &= checksums == stated

    def _check_references(self, match: Match) -> None:
        """Exclude files whose heap objects do not have the recorded number of elements."""
        references = [r for found in self.notes.references.values() for r in found]
        counts = match.read_numbers([reference.count_slot for reference in references]).T
        for reference, count in zip(references, counts, strict=True):
            _, length = match.objects[reference.block, reference.number]
            match.matches[:] &= count * reference.width <= length

    def _align_objects(self, number: int, rows: Bytes, match: Match) -> Bytes:
        """Return the bytes of a collection with its objects at their offsets in the first file.

        A string of another length shifts the objects after it.
        """
        count, size = rows.shape
        aligned = rows.copy()
        head = OBJECT_HEADER_BYTES + self.length_size
        offset = np.full(count, 8 + self.length_size)
        for index, begin, length in self.notes.objects[number]:
            is_inside = offset <= size - head
            at = np.where(is_inside, offset, 0)
            heads = _gather(rows, at, head)
            nbytes = read_uints(heads[:, OBJECT_HEADER_BYTES:])
            is_inside &= (read_uints(heads[:, :2]) == index) & (nbytes >= 0)
            is_inside &= nbytes <= size - head - at
            nbytes = np.where(is_inside, nbytes, 0)
            match.matches[:] &= (
                is_inside if (number, index) in self._values else is_inside & (nbytes == length)
            )
            match.objects[number, index] = at + head, nbytes
            aligned[:, begin : begin + length] = _gather(rows, at + head, length)
            offset = at + head + (nbytes + 7 & -8)
        return aligned

    def find_equal(self, match: Match, keys: Iterable[Hashable]) -> npt.NDArray[np.bool_]:
        """Return whether each file has the same values in slots as the first file."""
        equal = np.ones(len(match.matches), bool)
        for key in keys:
            if key in self.notes.slots:
                equal &= self._is_equal(match, self.notes.slots[key])
            for reference in self.notes.references.get(key, ()):
                equal &= self._is_equal(match, reference.count_slot)
                equal &= self._is_equal_in_heap(match, reference)
        return equal

    def _is_equal(self, match: Match, slot: Slot) -> Bools:
        block = self.notes.blocks[slot.block]
        expected = np.frombuffer(block.data, np.uint8)[slot.begin : slot.begin + slot.length]
        equal: Bools = (match.get_column(slot) == expected).all(axis=1)
        return equal

    def _is_equal_in_heap(self, match: Match, reference: HeapReference) -> Bools:
        """Return whether each file has the same elements in an object of the global heap."""
        at, _ = match.objects[reference.block, reference.number]
        actual = _gather(match.heaps[reference.block], at, len(reference.value))
        equal: Bools = (actual == np.frombuffer(reference.value, np.uint8)).all(axis=1)
        return equal

    def read_strings(self, match: Match, reference: HeapReference, indexes: Ints) -> list[bytes]:
        """Return the bytes of an object of the global heap in each of some files."""
        count = match.read_numbers([reference.count_slot])[indexes, 0] * reference.width
        begin = match.objects[reference.block, reference.number][0][indexes]
        rows = match.heaps[reference.block][indexes]
        ends = (begin + count).tolist()
        return [row[a:b].tobytes() for row, a, b in zip(rows, begin.tolist(), ends, strict=True)]


def _gather(rows: Bytes, begin: Ints, length: int) -> Bytes:
    """Return a range of bytes of each row; bytes past the end repeat the last byte."""
    columns = np.minimum(begin[:, None] + np.arange(length), rows.shape[1] - 1)
    return np.take_along_axis(rows, columns, axis=1)


def _sort_by_level(blocks: list[TrackedBlock]) -> list[list[int]]:
    """Return the indexes of blocks by the number of addresses that lead to them."""
    levels: list[list[int]] = []
    block_levels: list[int] = []
    for number, block in enumerate(blocks):
        level = 0 if block.pointer.block == FIXED_ADDRESS else block_levels[block.pointer.block] + 1
        block_levels.append(level)
        if level == len(levels):
            levels.append([])
        levels[level].append(number)
    return levels


class ReadScope(NamedTuple):
    """The part of each file to read: a group, possibly its subgroups, without skipped names."""

    path: str
    skip: frozenset[str]
    below: bool = False


Variable = tuple[str, str]
"""Path of a group relative to the group that is read, and the name of a variable."""
Dimension = tuple[PathParts, str]
"""Group that defines a dimension, and its name."""


class VariableStructure(NamedTuple):
    """The description of a variable that files of the same structure share.

    Parameters
    ----------
    owner : int
        The address of the object header in the first file, with which the keys of its slots begin.
    header : DatasetHeader
    within : tuple of int
        The shape of an element.
    itemsize : int
        The size in bytes of an element, including its axes.
    """

    owner: int
    header: DatasetHeader
    within: tuple[int, ...]
    itemsize: int


class GroupStructure(NamedTuple):
    """A group of a `FileStructure`, without the content of its subgroups.

    Parameters
    ----------
    group : ManifestGroup
    dims : dict of str to Dimension
        Dimensions by their names in the group.
    """

    group: ManifestGroup
    dims: Mapping[str, Dimension]


@dataclass(frozen=True, eq=False)
class FileStructure:
    """The structure of a file, and the slots in which other files may differ.

    Parameters
    ----------
    blueprint : Blueprint
    istore_k : int
        Half of the maximum number of children of a node of a version 1 B-tree of chunks.
    groups : dict of str to GroupStructure
        Groups by path; the group that is read has the path "".
    variables : dict of Variable to VariableStructure
    axes : dict of (int, int) to Dimension
        The dimension of each axis, by owner and axis.
    attributes : dict of (str, str, str) to Attribute
        The attributes visible to users, by group, variable ("" for the group), and name.
    """

    blueprint: Blueprint
    istore_k: int
    groups: Mapping[str, GroupStructure]
    variables: Mapping[Variable, VariableStructure]
    axes: Mapping[tuple[int, int], Dimension]
    attributes: Mapping[tuple[str, str, str], Attribute]

    def read_attributes(
        self, match: Match, indexes: Ints
    ) -> dict[str, dict[tuple[str, str], list[Any]]]:
        """Return the values of attributes that differ from the first file, by group.

        Raises `SeparateAttributesError` if some files have values that cannot be read together.
        """
        notes = self.blueprint.notes
        attributes: dict[str, dict[tuple[str, str], list[Any]]] = {path: {} for path in self.groups}
        for (path, *key), attribute in self.attributes.items():
            # all these files may have the same value, but one that differs from the first file
            same = self.blueprint.find_equal(match, [attribute.key])[indexes]
            if same.all():
                continue
            values: list[Any]
            if attribute.key in notes.slots:
                rows = match.get_column(notes.slots[attribute.key])[indexes]
                values = [
                    decode_inline_value(attribute._replace(data=row.tobytes())) for row in rows
                ]
            else:
                references = notes.references[attribute.key]
                texts = [self.blueprint.read_strings(match, slot, indexes) for slot in references]
                has_all = len(references) == attribute.elements
                values = [
                    decode_strings(strings) if has_all else None
                    for strings in zip(*texts, strict=True)
                ]
            if key[1] in DECODING_ATTRIBUTES or any(value is None for value in values):
                raise SeparateAttributesError(same)
            attributes[path][key[0], key[1]] = values
        return attributes

    def find_equal(self, match: Match, must_be_equal: MustBeEqual) -> Bools:
        """Return a mask of the files that agree in the attributes that must be equal."""
        values = {}
        for (path, variable, name), attribute in self.attributes.items():
            group = self.groups[path].group
            owner = group.variables[variable] if variable else group
            values[attribute.key] = owner.attributes.get(name)
        keys = [
            key
            for key in (*self.blueprint.notes.slots, *self.blueprint.notes.references)
            if isinstance(key, tuple)
            and isinstance(key[1], bytes)
            and must_be_equal(key[1].decode("utf-8", "surrogateescape"), values.get(key))
        ]
        return self.blueprint.find_equal(match, keys)


class SeparateAttributesError(Exception):
    """Raised if attributes of some files cannot be read together; ``same`` marks the others."""

    def __init__(self, same: Bools) -> None:
        super().__init__()
        self.same = same


DECODING_ATTRIBUTES = frozenset({"_FillValue", "least_significant_digit"})
"""Attributes that also change the values or the encoding of a variable."""


def read_structure(source: SourceFile, scope: ReadScope) -> FileStructure | None:
    """Read a file with notes of its bytes; return None if its structure cannot be shared."""
    notes = ByteNotes()
    try:
        with HDF5Files(source, notes) as files:
            read = read_groups(files, scope.skip, scope.path, below=scope.below)
            if files.is_alone and notes.complete:
                return _make_structure(read, notes, files.get_bytes(source))
    except (VirtualdsError, OSError):
        pass
    return None


def _make_structure(read: ReadGroups, notes: ByteNotes, file: FileBytes) -> FileStructure | None:
    axes = _find_axes(read)
    if axes is None or file.base or any((o, LENGTH, axis) not in notes.slots for o, axis in axes):
        return None
    groups, variables = dict[str, GroupStructure](), dict[Variable, VariableStructure]()
    attributes = dict[tuple[str, str, str], Attribute]()
    for group_path, group_read in read.groups.items():
        path, group = "/".join(group_path[len(read.path) :]), group_read.group
        if group.problems:
            return None
        for name, dataset in group_read.members.datasets.items():
            variable_name = name.removeprefix(NON_COORDINATE_PREFIX)
            if variable_name not in group.variables:
                continue
            variable = group.variables[variable_name]
            if is_aggregation(variable.attributes):
                return None
            if not _has_only_chunks(dataset, variable.data, notes):
                return None
            owner, within = dataset.address[1], dataset.shape[dataset.rank :]
            variables[path, variable_name] = VariableStructure(
                owner, dataset.header, within, dataset.type.size
            )
            attributes |= _find_attributes(path, variable_name, dataset.attributes)
        if any((path, name) not in variables for name in group.variables):
            return None
        attributes |= _find_attributes(path, "", group_read.location.attributes)
        names = {dim for _, dims in group_read.axes.named for dim in dims if dim is not None}
        alone = replace(group, groups=dict.fromkeys(group.groups, ManifestGroup()))
        groups[path] = GroupStructure(
            alone, {n: _find_dimension(read, group_path, n) for n in names}
        )
    blueprint = Blueprint(notes, file.offset_size, file.length_size)
    ordered = {path: groups[path] for path, _ in read.group.walk() if path in groups}
    return FileStructure(blueprint, file.istore_k, ordered, variables, axes, attributes)


def _find_attributes(
    path: str, variable: str, attributes: Attributes
) -> dict[tuple[str, str, str], Attribute]:
    """Return the attributes of a variable, or of the group, that are visible to users."""
    visible = {}
    for raw_name, attribute in attributes.items():
        name = raw_name.decode("utf-8", "surrogateescape")
        if name not in RESERVED_ATTRIBUTES:
            visible[path, variable, name] = attribute
    return visible


def _find_axes(read: ReadGroups) -> dict[tuple[int, int], Dimension] | None:
    """Return the dimension of each axis, or None if an axis has no scale of its length."""
    axes: dict[tuple[int, int], Dimension] = {}
    lengths: dict[Dimension, int] = {}
    for group_path, group in read.groups.items():
        for dataset, dims in group.axes.named:
            if None in dims:
                return None
            for axis, (dim, length) in enumerate(zip(dims, dataset.shape, strict=False)):
                dimension = _find_dimension(read, group_path, str(dim))
                if lengths.setdefault(dimension, length) != length:
                    return None
                axes[dataset.address[1], axis] = dimension
    if any(group.axes.depend_on_unlimited for group in read.groups.values()):
        # in netCDF, a dimension is as long as its longest variable in any group
        for group_path, others in read.file_groups.axes.items():
            for dataset, dims in others.named:
                for axis, (dim, length) in enumerate(zip(dims, dataset.shape, strict=False)):
                    dimension = _find_dimension(read, group_path, str(dim))
                    if dim is not None and lengths.get(dimension, length) != length:
                        return None
                    if dim is not None and dimension in lengths:
                        axes[dataset.address[1], axis] = dimension
    return axes


def _find_dimension(read: ReadGroups, group_path: PathParts, name: str) -> Dimension:
    """Return a dimension by its name in a group."""
    if len(read.groups) == 1 and not read.groups[read.path].axes.depend_on_unlimited:
        return read.path, name
    return read.file_groups.find_owner(group_path, name), name


def _has_only_chunks(dataset: HDF5Dataset, data: object, notes: ByteNotes) -> bool:
    """Return whether the values of a variable are completely described by its chunks."""
    layout = dataset.header.layout
    return (
        isinstance(data, ManifestArray)
        and data.shape == dataset.shape
        and len(data.pipelines) == len(data.fragments) == 1
        and layout.kind != LayoutClass.VIRTUAL
        and not dataset.is_external
        and all((dataset.address[1], LENGTH, axis) in notes.slots for axis in range(dataset.rank))
    )


# ---------------------------------------------------------------------- many files

MIN_FILES = 3
"""Minimum number of files that are read together."""
EXPECTED_OPEN_ERRORS = (OSError, ValueError)
"""Errors of opening an unreadable file, which is then opened separately to raise its error."""

READ_AHEAD_BYTES = 2**17
"""Number of bytes that the system is asked to read ahead, as many as Linux does by itself."""


class LocalReader:
    """Reads a local file."""

    def __init__(self, url: str, options: StorageOptions | None) -> None:
        self._handle = open_regular(local_path(url), options)
        try:
            lock_for_reading(self._handle)
            status = os.fstat(self._handle)
            if hasattr(os, "posix_fadvise"):
                # the disk reads the heads of many files at once, while others are opened
                os.posix_fadvise(self._handle, 0, READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        except BaseException:
            self.close()
            raise
        self.source = SourceFile(url, status.st_size, status.st_mtime_ns)

    @cached_property
    def head(self) -> bytes:
        """Its first bytes."""
        return os.pread(self._handle, HEAD_BYTES, 0)

    def read_into(self, address: int, buffer: memoryview) -> int:
        """Fill a buffer with the bytes at an address; return their number."""
        if hasattr(os, "preadv"):
            return os.preadv(self._handle, [buffer], address)
        data = os.pread(self._handle, len(buffer), address)
        buffer[: len(data)] = data
        return len(data)

    def activate_scan(self) -> AbstractContextManager[None]:
        """Do nothing, since local files are not prefetched."""
        return nullcontext()

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


class RemoteReader:
    """Reads a remote file, and caches prefetched bytes."""

    def __init__(self, url: str, options: StorageOptions | None) -> None:
        self._scan = ScannedStore(url, options)
        self.source, self.head = self._scan.read_head(url, options, FIRST_PAGES * PAGE_SIZE)
        if self.source.size is None:
            raise ValueError("the size of the file is not known")
        self._blocks = self._scan.get_blocks(self.source)

    def read_into(self, address: int, buffer: memoryview) -> int:
        """Fill a buffer with the bytes at an address, possibly cached; return their number."""
        data = self._blocks.read(address, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def fetch(self, ranges: Sequence[Range]) -> None:
        """Prefetch ranges together."""
        self._blocks.fetch_together(ranges)

    def activate_scan(self) -> AbstractContextManager[None]:
        """Share the fetched bytes with other readers of the file in the current context."""
        return self._scan.activate()

    def close(self) -> None:
        """Release the prefetched bytes; connections remain open."""
        self._scan.close()


FileReader = LocalReader | RemoteReader
"""A reader of one file; ``head`` are its first bytes, and ``source`` has its fingerprint."""


@dataclass(eq=False)
class ManyFiles:
    """Files whose bytes are read as rows (`virtualds.parsers.hdf5.structure.ByteRows`).

    Parameters
    ----------
    readers : list of FileReader
    offset_size, length_size, istore_k : int
        Properties of the structure of the files.
    """

    readers: list[FileReader]
    offset_size: int = 8
    length_size: int = 8
    istore_k: int = 32

    def __post_init__(self) -> None:
        size = max((len(reader.head) for reader in self.readers), default=0)
        heads = b"".join([reader.head.ljust(size, b"\0") for reader in self.readers])
        self.heads = np.frombuffer(heads, np.uint8).reshape(len(self.readers), size)
        self.ends = np.array([reader.source.size or 0 for reader in self.readers], np.int64)
        self._in_head = np.minimum(self.ends, size)
        self._remote = {n: r for n, r in enumerate(self.readers) if isinstance(r, RemoteReader)}

    def select(self, numbers: Ints) -> ManyFiles:
        """Return some of the files."""
        if len(numbers) == len(self.readers):
            return self
        return ManyFiles([self.readers[n] for n in numbers.tolist()])

    def fetch(self, file: Ints, ranges: Sequence[tuple[Ints, int]]) -> None:
        """Prefetch ranges of all remote files together.

        Parameters
        ----------
        file : int array
        ranges : sequence of (int array, int)
            An address for each of these files, and a length.
        """
        if not self._remote:
            return
        ranges_by_file: dict[int, list[Range]] = {n: [] for n in self._remote}
        for addresses, length in ranges:
            outside = addresses + length > self._in_head[file]
            for number, address in zip(file[outside].tolist(), addresses[outside], strict=True):
                ranges_by_file[number].append((int(address), length))
        pairs = [(self._remote[n], needed) for n, needed in ranges_by_file.items() if needed]
        fetch_many(pairs, lambda pair: pair[0].source.url, lambda pair: pair[0].fetch(pair[1]))

    def read_rows(self, file: Ints, address: Ints, length: int) -> Bytes:
        """Return rows of equal length, one for each address, of shape ``(n, length)``.

        Raises `RowsError` if rows are outside their files.
        """
        is_inside = (address >= 0) & (address <= self.ends[file] - length)
        if not is_inside.all():
            raise RowsError(
                frozenset(file[~is_inside].tolist()), "bytes lie past the end of the file"
            )
        is_cached = address + length <= self._in_head[file]
        if is_cached.all():
            return self._read_cached(file, address, length)
        rows = np.empty((len(file), length), np.uint8)
        if is_cached.any():
            rows[is_cached] = self._read_cached(file[is_cached], address[is_cached], length)
        to_read = np.flatnonzero(~is_cached)
        numbers, addresses = file[to_read], address[to_read]
        self.fetch(numbers, [(addresses, length)])
        view = rows.reshape(-1).data
        parts = zip(to_read.tolist(), numbers.tolist(), addresses.tolist(), strict=True)
        for row, number, at in parts:
            buffer = view[row * length : (row + 1) * length]
            if self.readers[number].read_into(at, buffer) < length:
                reason = "a file ends earlier than when it was opened"
                raise RowsError(frozenset({number}), reason)
        return rows

    def _read_cached(self, file: Ints, address: Ints, length: int) -> Bytes:
        if len(file) == len(self.readers) and (address == address[0]).all():
            begin = int(address[0])
            rows: Bytes = self.heads[file, begin : begin + length]
            return rows
        gathered: Bytes = self.heads[file[:, None], address[:, None] + np.arange(length)]
        return gathered


@contextmanager
def open_many(
    urls: Sequence[str], options: StorageOptions | None, may_match: Callable[[ManyFiles], bool]
) -> Iterator[tuple[ManyFiles, Ints]]:
    """Open files, and close them at the end of the block.

    Parameters
    ----------
    urls : sequence of str
    options : StorageOptions, optional
    may_match : callable
        Returns for the first remote files whether the others should be requested.

    Yields
    ------
    ManyFiles, int array
        The files that can be opened, and their numbers.
    """
    is_local = all(scheme_of(url) == "file" for url in urls)
    reader_class = LocalReader if is_local else RemoteReader

    def open_one(url: str) -> FileReader | None:
        try:
            return reader_class(url, options)
        except EXPECTED_OPEN_ERRORS:
            return None

    def has_head(reader: FileReader) -> bool:
        try:
            return len(reader.head) >= 0
        except EXPECTED_OPEN_ERRORS:
            return False

    def open_all(some_urls: Sequence[str]) -> list[FileReader | None]:
        if is_local:
            return list(map(open_one, some_urls))
        return fetch_many(some_urls, lambda url: url, open_one)

    readers: list[FileReader | None] = []
    try:
        readers += open_all(urls if is_local else urls[:MIN_FILES])
        if not is_local and may_match(ManyFiles([r for r in readers if r is not None])):
            readers += open_all(urls[MIN_FILES:])
        # all files are open before the first is read
        opened = {n: r for n, r in enumerate(readers) if r is not None and has_head(r)}
        yield ManyFiles(list(opened.values())), np.array(list(opened), np.int64)
    finally:
        for reader in readers:
            if reader is not None:
                reader.close()
