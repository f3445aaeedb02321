"""The bytes of HDF5 files, with notes of their meaning; superblocks and object headers.

HDF5 File Format Specification 3.0, II.A, "Format Signature and Superblock", and IV.A.1, "Object
Headers".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple, NoReturn

import numpy as np

from virtualds.chunks.columns import Ints
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.hdf5.structure import (
    BATCH_BYTES,
    CHECKSUM_BYTES,
    Bytes,
    gather_rows,
)
from virtualds.source_file import SourceFile, local_path, scheme_of
from virtualds.stores.block_cache import CACHED_PAGES, FIRST_PAGES, MAX_PAGES, PAGE_SIZE, Blocks
from virtualds.stores.scan_cache import open_blocks
from virtualds.stores.store import Range

# ---------------------------------------------------------------------- notes
# Notes on the meaning of the bytes of an HDF5 file.
#
# While a file is parsed, each byte is *structure* unless a parser records something else: it
# determines what is read next, or what the file contains. Other bytes are addresses, slots (values
# that may differ between files of the same structure), checksums, or unused. The notes are the
# basis of a blueprint (`virtualds.parsers.hdf5.file_structure`).
#
# A file without notes is read as plain `bytes` and `int`, for which the functions here do nothing.


FIXED_ADDRESS = -1
"""Block number of an address that is the same in all files."""


class Pointer(NamedTuple):
    """The position of an address: the index of a block, and the offset in it."""

    block: int
    offset: int


class Address(int):
    """An address with its position in the file."""

    pointer: Pointer


class TrackedBytes(bytes):
    """Bytes with their position: a block, and the offset in it.

    They are not hashable, so that no cache keeps the notes of a file; use ``bytes(data)`` as key.
    """

    __hash__ = None  # type: ignore[assignment]

    notes: ByteNotes
    block: int
    begin: int


@dataclass(eq=False)
class TrackedBlock:
    """Bytes that were read at an address.

    Parameters
    ----------
    pointer : Pointer
        The position of the address.
    data : bytes
    structure : bytearray
        For each byte, 1 if it is structure.
    """

    pointer: Pointer
    data: bytes
    structure: bytearray


class Slot(NamedTuple):
    """Bytes that may differ between files of the same structure."""

    block: int
    begin: int
    length: int


class HeapReference(NamedTuple):
    """A reference to an object of the global heap, whose bytes may differ between files.

    ``count_slot`` is the slot of the number of elements, the four bytes before the address of the
    collection ``block``; each element has ``width`` bytes. ``value`` are the bytes of all elements
    in the first file.
    """

    count_slot: Slot
    block: int
    number: int
    width: int
    value: bytes


@dataclass(eq=False)
class ByteNotes:
    """Notes on the meaning of the bytes of one file.

    Parameters
    ----------
    blocks : list of TrackedBlock
        Blocks in the order in which they were read; the address of a block is in an earlier block.
    slots : dict
        Bytes that may differ between files, by their meaning.
    references : dict
        Objects of the global heap that may differ, by their meaning.
    same : list of (Pointer, int)
        Further addresses of blocks, with the number of the block.
    checksums : dict of int to int
        The offset of the checksum of a block.
    objects : dict of int to list of (int, int, int)
        Number, offset and length of each object of a collection of the global heap.
    complete : bool
        Whether all bytes that were read are recorded.
    """

    blocks: list[TrackedBlock] = field(default_factory=list)
    slots: dict[Hashable, Slot] = field(default_factory=dict)
    references: dict[Hashable, list[HeapReference]] = field(default_factory=dict)
    same: list[tuple[Pointer, int]] = field(default_factory=list)
    checksums: dict[int, int] = field(default_factory=dict)
    objects: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    complete: bool = True
    _numbers: dict[int, int] = field(default_factory=dict)

    def add(self, address: int, data: bytes) -> bytes:
        """Record a block that was read, and return its bytes with their position."""
        if not isinstance(address, Address):
            self.complete = False
            return data
        number = self._numbers.setdefault(int(address), len(self.blocks))
        if number == len(self.blocks):
            self.blocks.append(TrackedBlock(address.pointer, data, bytearray(b"\1") * len(data)))
        elif len(self.blocks[number].data) != len(data):
            self.complete = False
            return data
        else:
            self.same.append((address.pointer, number))
        return _make_tracked_bytes(self, number, 0, data)

    def find(self, address: int) -> int | None:
        """Return the index of the block at an address, or None if it was not read."""
        return self._numbers.get(int(address))


def _make_tracked_bytes(notes: ByteNotes, block: int, begin: int, data: bytes) -> TrackedBytes:
    piece = TrackedBytes(data)
    piece.notes, piece.block, piece.begin = notes, block, begin
    return piece


def fix(address: int) -> Address:
    """Return an address that must be equal in all files of the same structure."""
    return _make_address(address, FIXED_ADDRESS, address)


def _make_address(value: int, block: int, offset: int) -> Address:
    address = Address(value)
    address.pointer = Pointer(block, offset)
    return address


def slice_bytes(data: bytes, begin: int, stop: int | None = None) -> bytes:
    """Return a slice of bytes, with its position if the position of the bytes is known."""
    if not isinstance(data, TrackedBytes):
        return data[begin:stop]
    return _make_tracked_bytes(data.notes, data.block, data.begin + begin, data[begin:stop])


def note_address(data: bytes, offset: int, size: int, value: int) -> int:
    """Return an address that was read at an offset of some bytes, with its position."""
    if not isinstance(data, TrackedBytes):
        return value
    mark_unused(data, offset, offset + size)
    return _make_address(value, data.block, data.begin + offset)


def mark_unused(data: bytes, begin: int, stop: int) -> None:
    """Record that bytes are unused, or that another note covers them."""
    if isinstance(data, TrackedBytes):
        _mark(data, begin, stop, b"\0")


def mark_structure(data: bytes, begin: int, stop: int) -> None:
    """Record that bytes marked as unused are structure after all."""
    if isinstance(data, TrackedBytes):
        _mark(data, begin, stop, b"\1")


def _mark(data: TrackedBytes, begin: int, stop: int, mark: bytes) -> None:
    stop = min(stop, len(data))
    if begin < stop:
        structure = data.notes.blocks[data.block].structure
        structure[data.begin + begin : data.begin + stop] = mark * (stop - begin)


def note_slot(data: bytes, begin: int, length: int, key: Hashable) -> None:
    """Record that bytes may differ between files of the same structure."""
    if isinstance(data, TrackedBytes):
        mark_unused(data, begin, begin + length)
        data.notes.slots[key] = Slot(data.block, data.begin + begin, length)


def note_same(data: bytes, offset: int, size: int, address: int) -> None:
    """Record that the address at an offset points to a block that was read."""
    if isinstance(data, TrackedBytes):
        number = data.notes.find(address)
        if number is None:
            data.notes.complete = False
            return
        mark_unused(data, offset, offset + size)
        data.notes.same.append((Pointer(data.block, data.begin + offset), number))


def note_checksum(data: bytes, offset: int, size: int) -> None:
    """Record the position of the checksum of a block, if it has one."""
    if isinstance(data, TrackedBytes) and size:
        mark_unused(data, offset, offset + size)
        data.notes.checksums[data.block] = data.begin + offset


def note_heap_objects(data: bytes, begins: dict[int, int], lengths: dict[int, int]) -> None:
    """Record the objects of a collection of the global heap, by number."""
    if isinstance(data, TrackedBytes):
        data.notes.objects[data.block] = [(n, begin, lengths[n]) for n, begin in begins.items()]


def note_heap_reference(
    data: bytes, offset: int, value: bytes, number: int, width: int, key: Hashable
) -> None:
    """Record that an object of the global heap may differ between files of the same structure.

    ``offset`` is the offset of the number of its elements of ``width`` bytes, in four bytes.
    """
    if isinstance(data, TrackedBytes) and isinstance(value, TrackedBytes):
        mark_unused(data, offset, offset + 4)
        count = Slot(data.block, data.begin + offset, 4)
        reference = HeapReference(count, value.block, number, width, bytes(value))
        references = data.notes.references.setdefault(key, [])
        if reference not in references:
            references.append(reference)


def mark_incomplete(data: bytes) -> None:
    """Record that the notes cannot describe some bytes, so the structure cannot be shared."""
    if isinstance(data, TrackedBytes):
        data.notes.complete = False


# ---------------------------------------------------------------------- superblock


SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""Format signature, at byte 0, 512, 1024, 2048 ... (II.A)."""
MAX_SUPERBLOCK = 128
"""Maximum size in bytes of a superblock with addresses of 8 bytes."""
INTEGER_CODES = {2: "H", 4: "I", 8: "Q"}
"""Codes of `struct` by the size of an address or length; the sizes 16 and 32 are not supported."""
DEFAULT_ISTORE_K = 32
"""Half of the maximum number of children (K) of a node of chunks, unless the file has another."""
DEFAULT_GROUP_NODE_K, DEFAULT_GROUP_LEAF_K = 16, 4
"""Half of the maximum children, and symbols, of a node of groups in versions 2 and 3."""
WRITE_FLAGS = 0b101
"""Flags of a file that a writer has open, exclusively or with SWMR readers (version 3)."""
END_OF_FILE = "end of file"
"""Key of the slot of the end of the file."""


class Superblock(NamedTuple):
    """The content of a superblock.

    Parameters
    ----------
    offset_size, length_size : int
        The size in bytes of an address, and of a length.
    root : int
        The address of the object header of the root group.
    end : int
        The offset of the end of the file from its first byte.
    driver, extension : int
        Addresses of the driver information and of the superblock extension, undefined if there is
        none.
    istore_k, group_node_k, group_leaf_k : int
        Half of the maximum number of children of a node of a version 1 B-tree of chunks, and of one
        of groups; half of the maximum number of symbols of a node.
    is_being_written : bool
        Whether a writer has the file open, or terminated before closing it.
    """

    offset_size: int
    length_size: int
    root: int
    end: int
    driver: int
    extension: int
    istore_k: int = DEFAULT_ISTORE_K
    group_node_k: int = DEFAULT_GROUP_NODE_K
    group_leaf_k: int = DEFAULT_GROUP_LEAF_K
    is_being_written: bool = False


def compute_symbol_size(offset_size: int, length_size: int) -> int:
    """Return the size in bytes of a symbol table entry.

    In the specification (III.C), the offset of the name has the size of an address, but HDF5 writes
    it with the size of a length (`H5G__ent_encode`), which differs in a few files.
    """
    return length_size + offset_size + 24


def _parse_superblock_v0(data: bytes) -> Superblock:
    """Parse a superblock of version 0 or 1."""
    version, size, length = data[8], data[13], data[14]
    begin = 24 + 4 * version
    root = begin + 4 * size + length
    mark_unused(data, 20, 24)
    note_slot(data, begin + 2 * size, size, END_OF_FILE)
    # the name, the cache and the scratch pad of the root group
    mark_unused(data, begin + 4 * size, root)
    mark_unused(data, root + size, len(data))
    return Superblock(
        size,
        length,
        root=_read_address(data, root, size),
        end=parse_uint(data, begin + 2 * size, size),
        driver=parse_uint(data, begin + 3 * size, size),
        extension=_make_undefined(size),
        istore_k=parse_uint(data, 24, 2) if version else DEFAULT_ISTORE_K,
        group_node_k=parse_uint(data, 18, 2),
        group_leaf_k=parse_uint(data, 16, 2),
    )


def _parse_superblock_v2(data: bytes) -> Superblock:
    """Parse a superblock of version 2 or 3."""
    size = data[9]
    note_slot(data, 12 + 2 * size, size, END_OF_FILE)
    return Superblock(
        size,
        data[10],
        root=_read_address(data, 12 + 3 * size, size),
        end=parse_uint(data, 12 + 2 * size, size),
        driver=_make_undefined(size),
        extension=_read_address(data, 12 + size, size),
        is_being_written=data[8] == 3 and bool(data[11] & WRITE_FLAGS),
    )


def _read_address(data: bytes, offset: int, size: int) -> int:
    value = parse_uint(data, offset, size)
    return value if value == _make_undefined(size) else note_address(data, offset, size, value)


def _make_undefined(size: int) -> int:
    return (1 << 8 * size) - 1


# ---------------------------------------------------------------------- files
# The bytes of an HDF5 file, which are read by address, without HDF5.


READ_AHEAD_BYTES = 2**12
"""Minimum number of bytes to read from a local file, since the next bytes are often needed."""
HEAD_BYTES = 2**14
"""Number of bytes of a local file to read when it is opened."""
READ_AHEAD_PAGES = FIRST_PAGES
"""Number of pages to fetch in a round of requests after the pages that are needed."""
MAX_PREFETCHED_PAGES = CACHED_PAGES // 2
"""Maximum number of pages to prefetch, which must remain cached until they are read."""

FetchStep = Callable[[], "list[FetchStep]"]
"""A function that reads bytes, and returns the steps that depend on them."""


class DeclinedError(UnsupportedError):
    """Raised for metadata of a form that only HDF5 may support."""


class MissingError(Exception):
    """Raised in a `FetchStep` if bytes of a remote file are not cached."""


class FileBytes:
    """Reads the bytes of one file by address.

    Parameters
    ----------
    source : SourceFile
    notes : ByteNotes, optional
        Records the meaning of the bytes.

    Raises
    ------
    FormatError
        There is no valid superblock.
    DeclinedError
        A writer has the file open.
    """

    superblock: Superblock
    offset_size: int
    """The size in bytes of an address."""
    length_size: int
    """The size in bytes of a length."""
    istore_k: int
    """Half of the maximum number of children of a node of a version 1 B-tree of chunks."""
    group_node_k: int
    group_leaf_k: int
    """Half of the maximum number of children of such a node of groups, and of symbols of a node."""
    shared_messages = 0, 0
    """The address of the table of messages that objects share, and its number of entries."""
    unknown = ""
    """The unknown form of metadata, or ""."""

    def __init__(self, source: SourceFile, notes: ByteNotes | None = None) -> None:
        self.source = source
        self.notes = notes
        self.base = 0
        self._handle: int | None = None
        self._head = self._buffer = b""
        self._buffer_start = 0
        self._blocks: Blocks | None = None
        self._pages_to_fetch: set[int] | None = None
        self.collections: dict[int, Any] = {}
        try:
            self._open()
            self._read_superblock()
            _read_extension(self)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Open the file, and read its first bytes."""
        url = self.source.url
        if scheme_of(url) != "file":
            self._blocks = open_blocks(self.source)
            self.end = self.source.size or 0
            self._head = self._blocks.get_cached(0, min(FIRST_PAGES * PAGE_SIZE, self.end)) or b""
            return
        self._handle = os.open(local_path(url), os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            lock_for_reading(self._handle)
        except BlockingIOError:
            self.raise_unsupported("a writer has it open")
        self.end = os.fstat(self._handle).st_size
        self._head = os.pread(self._handle, HEAD_BYTES, 0)

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def read_noted(self, address: int, length: int) -> bytes:
        """Return exactly ``length`` bytes at an address, with notes.

        Raises `FormatError` if the file ends before.
        """
        data = self.read(address, length)
        return data if self.notes is None else self.notes.add(address, data)

    def peek(self, address: int, max_bytes: int) -> bytes:
        """Return up to ``max_bytes`` bytes at an address, without notes.

        They may only be used to determine how many bytes to read.
        """
        return self.read(address, max(min(max_bytes, self.end - self.base - address), 0))

    def read_ranges(self, ranges: Sequence[Range]) -> Iterator[bytes]:
        """Yield the bytes of ranges, with few requests for a remote file."""
        if self._blocks is None:
            yield from (self.read(*byte_range) for byte_range in ranges)
            return
        for batch in _batch_ranges(ranges):
            self.prepare(batch)
            yield from (self.read(*byte_range) for byte_range in batch)

    def prepare(self, ranges: Iterable[Range]) -> None:
        """Prefetch ranges of a remote file together."""
        if self._blocks is None or self.end <= len(self._head):
            return
        absolute = [(self.base + at, n) for at, n in ranges if n <= MAX_PAGES * PAGE_SIZE]
        if self._pages_to_fetch is None:
            self._blocks.fetch_together(absolute)
        else:
            self._pages_to_fetch.update(self._blocks.find_missing_pages(absolute))

    def prefetch(self, steps: Iterable[FetchStep]) -> None:
        """Prefetch the bytes of a remote file that ``steps`` read.

        A step stops if bytes are not cached, and is repeated after the missing bytes of all steps
        have been fetched together. So the number of rounds of requests depends on the length of the
        longest chain of addresses, not on the number of steps. Errors of a step are ignored, since
        the actual read raises them.
        """
        if self._blocks is None or self.end <= len(self._head):
            return
        notes, collections = self.notes, self.collections
        pages = self._pages_to_fetch = set[int]()
        self.notes, self.collections = None, {}
        remaining, fetched = list(steps), 0
        try:
            while remaining and fetched < MAX_PREFETCHED_PAGES:
                again: list[FetchStep] = []
                for step in remaining:
                    try:
                        remaining.extend(step())
                    except MissingError:
                        again.append(step)
                    except VirtualdsError:
                        # the actual read will raise the error
                        continue
                remaining = again
                if remaining:
                    fetched += self._blocks.fetch_pages(sorted(pages)[:MAX_PAGES], READ_AHEAD_PAGES)
                pages.clear()
        finally:
            self._pages_to_fetch, self.notes, self.collections = None, notes, collections

    def read(self, address: int, length: int) -> bytes:
        """Return exactly ``length`` bytes at an address, without notes."""
        if not 0 <= address <= self.end - self.base - length or length < 0:
            self.raise_damaged(f"it names bytes {address} to {address + length}, of {self.end}")
        return self._read(self.base + address, length)

    @property
    def ends(self) -> Ints:
        """The number of bytes that can be addressed, as an array for one file."""
        return np.array([self.end - self.base])

    def read_rows(self, file: Ints, address: Ints, length: int) -> Bytes:
        """Return rows of equal length, as in `ByteRows`; adjacent rows are read in one range."""
        end = self.end - self.base
        if address.size == 1 and 0 <= int(address[0]) <= end - length:
            data = self._read(self.base + int(address[0]), length)
            return np.frombuffer(data, np.uint8).reshape(1, length)
        return gather_rows(address, length, end, self.read_ranges)

    def _read(self, offset: int, length: int) -> bytes:
        if offset + length <= len(self._head):
            return self._head[offset : offset + length]
        if self._handle is not None and length <= READ_AHEAD_BYTES:
            begin = offset - self._buffer_start
            if not 0 <= begin <= len(self._buffer) - length:
                self._buffer_start, begin = offset, 0
                self._buffer = os.pread(self._handle, READ_AHEAD_BYTES, offset)
            cached = self._buffer[begin : begin + length]
        elif self._blocks is None:
            cached = os.pread(self._handle or 0, length, offset)
        else:
            if self._pages_to_fetch is not None:
                missing = self._blocks.find_missing_pages([(offset, length)])
                if missing:
                    self._pages_to_fetch.update(missing)
                    raise MissingError
            cached = self._blocks.read(offset, length)
        if len(cached) < length:
            self.raise_damaged(f"it ends within the bytes {offset} to {offset + length}")
        return cached

    def unpack_address(self, data: bytes, offset: int) -> int:
        """Return the address at an offset in metadata."""
        value = parse_uint(data, offset, self.offset_size)
        if self.notes is None or not self.is_defined(value):
            return value
        return note_address(data, offset, self.offset_size, value)

    def unpack_length(self, data: bytes, offset: int) -> int:
        """Return the length at an offset in metadata."""
        return parse_uint(data, offset, self.length_size)

    def is_defined(self, address: int) -> bool:
        """Return whether an address is defined; all bits of an undefined address are set (II.A)."""
        return address != (1 << 8 * self.offset_size) - 1

    def raise_damaged(self, reason: str) -> NoReturn:
        """Raise `FormatError` for damaged metadata."""
        raise make_metadata_error(self.source.url, reason)

    def raise_unsupported(self, reason: str) -> NoReturn:
        """Raise `DeclinedError` for metadata of an unknown form."""
        raise make_unknown_error(self.source.url, reason)

    def _read_superblock(self) -> None:
        # the position of the superblock has precedence over its base address
        self.base = self._find_signature()
        head = self.peek(0, MAX_SUPERBLOCK).ljust(MAX_SUPERBLOCK, b"\0")
        version = head[8]
        offset, length = head[13:15] if version < 2 else head[9:11]
        if version > 3:
            self.unknown = f"a superblock of version {version}"
        elif offset not in INTEGER_CODES or length not in INTEGER_CODES:
            self.unknown = f"addresses of {offset} bytes and lengths of {length}"
        if self.unknown:
            undefined = 2**64 - 1
            self._use(Superblock(8, 8, 0, 0, undefined, undefined))
        elif version > 1:
            size = 12 + 4 * offset + CHECKSUM_BYTES
            block = self.read_noted(fix(0), size)
            if not has_valid_checksum(block):
                self.raise_damaged("its superblock has a wrong checksum")
            self._use(_parse_superblock_v2(block))
        else:
            # the addresses, and the symbol table entry of the root group
            size = 24 + 4 * version + 4 * offset + compute_symbol_size(offset, length)
            self._use(_parse_superblock_v0(self.read_noted(fix(0), size)))
        if not 0 < self.istore_k < 2**15:
            self.raise_damaged(f"nodes of {2 * self.istore_k} chunks")

    def _use(self, superblock: Superblock) -> None:
        self.superblock, self.istore_k = superblock, superblock.istore_k
        self.group_node_k, self.group_leaf_k = superblock.group_node_k, superblock.group_leaf_k
        self.offset_size, self.length_size = superblock.offset_size, superblock.length_size

    def _find_signature(self) -> int:
        offset = 0
        while offset + len(SIGNATURE) <= self.end:
            if self._read(offset, len(SIGNATURE)) == SIGNATURE:
                return offset
            offset = 2 * offset or 512
        self.raise_damaged("it has no superblock")


def make_metadata_error(url: str, reason: str) -> FormatError:
    """Return the error for damaged metadata."""
    return FormatError(f"{url}: its metadata are damaged ({reason}); fetch the file again")


def make_unknown_error(url: str, reason: str) -> DeclinedError:
    """Return the error for metadata of an unknown form."""
    return DeclinedError(
        f"{url}: {reason}, a form of HDF5 metadata that virtualds does not know; "
        f"rewrite the file with h5repack, or leave the variable out with drop_variables"
    )


def lock_for_reading(handle: int) -> None:
    """Lock a file as HDF5 does, so that no writer changes it in the meantime.

    Raises `BlockingIOError` if a writer has it open.
    """
    if os.environ.get("HDF5_USE_FILE_LOCKING", "").upper() in ("FALSE", "0"):
        return
    try:
        import fcntl
    except ImportError:
        # not on Windows
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        # a filesystem without locks
        return


def parse_uint(data: bytes, offset: int, size: int) -> int:
    """Return the little-endian unsigned integer at an offset in metadata."""
    return int.from_bytes(data[offset : offset + size], "little")


def has_valid_checksum(block: bytes) -> bool:
    """Return whether a block ends with the checksum of its other bytes (lookup3)."""
    # imported lazily, since it is slow and only some files have checksums
    from numcodecs.jenkins import jenkins_lookup3

    offset = len(block) - CHECKSUM_BYTES
    note_checksum(block, offset, CHECKSUM_BYTES)
    return bool(jenkins_lookup3(block[:offset]) == parse_uint(block, offset, CHECKSUM_BYTES))


def _batch_ranges(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Yield batches of ranges of at most about `BATCH_BYTES` bytes."""
    batch: list[Range] = []
    nbytes = 0
    for byte_range in ranges:
        if batch and nbytes + byte_range[1] > BATCH_BYTES:
            yield batch
            batch, nbytes = [], 0
        batch.append(byte_range)
        nbytes += byte_range[1]
    if batch:
        yield batch


# ---------------------------------------------------------------------- object headers


SHARED_TABLE, CONTINUATION, TREE_K, CACHE_IMAGE = 0x0F, 0x10, 0x13, 0x18
"""Types of messages (IV.A.2)."""
IGNORED_MESSAGES = frozenset({0x00, 0x0E, 0x12})
"""Types of messages that are ignored: empty messages, and modification times."""
HEADER_BYTES = 512
"""Number of bytes of a header to read before its length is known, as in HDF5."""
MAX_BYTES = 2**26
"""Maximum size in bytes of all messages of an object."""
HEADER_V1 = Struct("<BxHII4x")
"""Version, number of messages, references, size of the messages; padded to 8 bytes (IV.A.1.a)."""
MESSAGE_V1, MESSAGE_V2, MESSAGE_V2_ORDERED = Struct("<HHB3x"), Struct("<BHB"), Struct("<BHBH")
"""Type, size and flags of a message (IV.A.1), and its position in creation order."""


class Message(NamedTuple):
    """A message of an object header."""

    kind: int
    flags: int
    data: bytes
    order: int = 0


def read_messages(file: FileBytes, address: int) -> list[Message]:
    """Return the messages of the object whose header is at an address.

    Raises `FormatError` if the header is damaged, and `UnsupportedError` if its version is unknown.
    """
    if file.unknown:
        file.raise_unsupported(file.unknown)
    first, form = _read_first_block(file, address)
    seen, nbytes = {address}, 0
    messages: list[Message] = []
    blocks = [first]
    for block in blocks:
        nbytes += len(block)
        for message in _parse_messages(file, block, form):
            if message.kind != CONTINUATION:
                messages.append(message)
                continue
            continuation = file.unpack_address(message.data, 0)
            length = file.unpack_length(message.data, file.offset_size)
            if continuation in seen or nbytes + length > MAX_BYTES:
                file.raise_damaged(f"the header of the object at {address} has no end")
            seen.add(continuation)
            blocks.append(_read_continuation(file, continuation, length, form))
    return messages


def _read_first_block(file: FileBytes, address: int) -> tuple[bytes, Struct]:
    """Return the bytes of the first messages, and the struct of the header of a message."""
    head = file.peek(address, HEADER_BYTES)
    if head[:4] == b"OHDR":
        return _read_first_block_v2(file, address, head)
    if len(head) < HEADER_V1.size or head[0] != 1:
        file.raise_damaged(f"there is no object at {address}")
    stop = HEADER_V1.size + HEADER_V1.unpack_from(head)[3]
    block = file.read_noted(address, stop)
    # padding of the header
    mark_unused(block, HEADER_V1.size - 4, HEADER_V1.size)
    return slice_bytes(block, HEADER_V1.size, stop), MESSAGE_V1


def _read_first_block_v2(file: FileBytes, address: int, head: bytes) -> tuple[bytes, Struct]:
    if head[4] != 2:
        file.raise_unsupported(f"an object header of version {head[4]}")
    flags = head[5]
    times = 16 * bool(flags & 0x20)
    # the times are followed by the numbers of attributes at which their storage changes
    begin = 6 + times + 4 * bool(flags & 0x10)
    width = 1 << (flags & 3)
    stop = begin + width + parse_uint(head, begin, width) + CHECKSUM_BYTES
    block = file.read_noted(address, stop)
    if not has_valid_checksum(block):
        file.raise_damaged(f"the header of the object at {address} has a wrong checksum")
    mark_unused(block, 6, 6 + times)
    form = MESSAGE_V2_ORDERED if flags & 0x4 else MESSAGE_V2
    return slice_bytes(block, begin + width, stop - CHECKSUM_BYTES), form


def _read_continuation(file: FileBytes, address: int, length: int, form: Struct) -> bytes:
    block = file.read_noted(address, length)
    if form is MESSAGE_V1:
        return block
    if block[:4] != b"OCHK" or not has_valid_checksum(block):
        file.raise_damaged(
            f"part of an object header is missing at {address}, or has a wrong checksum"
        )
    return slice_bytes(block, 4, length - CHECKSUM_BYTES)


def _parse_messages(file: FileBytes, block: bytes, form: Struct) -> Iterator[Message]:
    """Yield the messages of a block, except for ignored messages."""
    offset, step, stop = 0, form.size, len(block)
    # a shorter remainder is a gap
    last = stop - step
    is_noted = file.notes is not None
    while offset <= last:
        kind, length, flags, *order = form.unpack_from(block, offset)
        begin = offset + step
        offset = begin + length
        if offset > stop:
            file.raise_damaged("a message is longer than the object header that it lies in")
        is_used = kind not in IGNORED_MESSAGES
        if is_noted:
            mark_unused(
                block, begin - 3 if form is MESSAGE_V1 else begin, begin if is_used else offset
            )
        if is_used:
            data = slice_bytes(block, begin, offset) if is_noted else block[begin:offset]
            yield Message(kind, flags, data, *order)
    if is_noted:
        mark_unused(block, offset, stop)


def _read_extension(file: FileBytes) -> None:
    """Read parameters of the file from the superblock extension."""
    if file.unknown or not file.is_defined(file.superblock.extension):
        return
    for message in read_messages(file, file.superblock.extension):
        if message.kind == CACHE_IMAGE:
            # metadata may be in the cache image instead of at its address (IV.A.2.y)
            file.unknown = "a metadata cache image"
        if message.kind == SHARED_TABLE:
            table = file.unpack_address(message.data, 1)
            file.shared_messages = table, parse_uint(message.data, 1 + file.offset_size, 1)
        if message.kind == TREE_K:
            constants = (parse_uint(message.data, offset, 2) for offset in (1, 3, 5))
            file.istore_k, file.group_node_k, file.group_leaf_k = constants
