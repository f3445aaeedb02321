"""The bytes of an HDF5 file, read by address without HDF5, never past the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from virtualds.chunks.projection import Ints
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.hdf5.structure.byte_rows import READ_TOGETHER, Bytes, RowsError
from virtualds.parsers.hdf5.structure.notes import Notes, fix, note_address
from virtualds.parsers.hdf5.structure.superblock import (
    LONGEST,
    SIGNATURE,
    Superblock,
    UnknownSuperblockError,
    measure_superblock,
    parse_superblock,
)
from virtualds.source_file import SourceFile
from virtualds.stores.block_cache import FIRST_PAGES, HELD_PAGES, MOST, PAGE, Blocks
from virtualds.stores.scan_cache import open_blocks
from virtualds.stores.store import Range
from virtualds.urls import local_path, scheme_of

NEAR = 2**14
"""Bytes between rows that are rather read than skipped."""
NEARBY = 2**12
"""Bytes of a local file that are read where fewer are asked for: others lie close by."""
HEAD_BYTES = 2**14
"""Bytes of a local file that are read at once when it is opened: most metadata of many files."""
AHEAD = FIRST_PAGES
"""Pages that a round of requests fetches behind what it is for."""
MOST_AHEAD = HELD_PAGES // 2
"""Pages that are fetched before they are read: they have to be held until then."""

Work = Callable[[], "list[Work]"]
"""Reads something, and returns what is to be read after it."""


class DeclinedError(UnsupportedError):
    """Metadata have a form that is not known here; HDF5 may know it."""


class MissingError(Exception):
    """Bytes of a remote file are not held; it ends a `Work`, and goes no further."""


class FileBytes:
    """The bytes of one file.

    Parameters
    ----------
    source : SourceFile
    notes : Notes, optional
        Where is noted what the bytes mean.

    Raises
    ------
    FormatError
        There is no sound superblock.
    DeclinedError
        A writer has the file open.
    """

    superblock: Superblock
    offset_size: int
    """Bytes of an address."""
    length_size: int
    """Bytes of a length."""
    half: int
    """Half of the most children of a node of a version 1 B-tree of chunks."""
    group_half: int
    leaf_half: int
    """Half of the most children of such a node of groups, and of the symbols of a node."""
    shared_messages = 0, 0
    """Address of the table of messages that objects share, and its entries."""
    unknown = ""
    """The part of its metadata that has an unknown form, empty if none has."""

    def __init__(self, source: SourceFile, notes: Notes | None = None) -> None:
        self.source = source
        self.notes = notes
        self.base = 0
        self._handle: int | None = None
        self._head = self._near = b""
        self._near_at = 0
        self._blocks: Blocks | None = None
        self._wanted: set[int] | None = None
        self.collections: dict[int, Any] = {}
        try:
            self._open()
            self._read_superblock()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Open the file, and take its first bytes."""
        url = self.source.url
        if scheme_of(url) != "file":
            self._blocks = open_blocks(self.source)
            self.end = self.source.size or 0
            self._head = self._blocks.get_held(0, min(FIRST_PAGES * PAGE, self.end)) or b""
            return
        self._handle = os.open(local_path(url), os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            lock_for_reading(self._handle)
        except BlockingIOError:
            self.decline("a writer has it open")
        self.end = os.fstat(self._handle).st_size
        self._head = os.pread(self._handle, HEAD_BYTES, 0)

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def take(self, address: int, length: int) -> bytes:
        """Return exactly the bytes from an address on.

        Raises
        ------
        FormatError
            They do not all lie in the file.
        """
        data = self.read(address, length)
        return data if self.notes is None else self.notes.add(address, data)

    def peek(self, address: int, most: int) -> bytes:
        """Return the bytes from an address on, fewer than ``most`` where the file ends.

        They say how many bytes to take; nothing else may depend on them.
        """
        return self.read(address, max(min(most, self.end - self.base - address), 0))

    def take_all(self, ranges: Sequence[Range]) -> Iterator[bytes]:
        """Yield the bytes of many ranges; a remote file takes few requests."""
        if self._blocks is None:
            yield from (self.read(*one) for one in ranges)
            return
        for some in _split_ranges(ranges):
            self.prepare(some)
            yield from (self.read(*one) for one in some)

    def prepare(self, ranges: Iterable[Range]) -> None:
        """Fetch what is read next of a remote file, all of it at once."""
        if self._blocks is None or self.end <= len(self._head):
            return
        places = [(self.base + at, n) for at, n in ranges if n <= MOST * PAGE]
        if self._wanted is None:
            self._blocks.fetch_together(places)
        else:
            self._wanted.update(self._blocks.find_missing(places))

    def read_ahead(self, works: Iterable[Work]) -> None:
        """Fetch what works read of a remote file, before it is read in earnest.

        A work ends where bytes are not held, and is done again when these have come: those that all
        works miss are fetched at once. So there are as many rounds of requests as addresses lead
        from one to the next, however many works there are. A work that fails will fail in earnest.
        """
        if self._blocks is None or self.end <= len(self._head):
            return
        notes, collections = self.notes, self.collections
        self._wanted, self.notes, self.collections = set(), None, {}
        try:
            self._fetch_for(self._blocks, self._wanted, list(works))
        finally:
            self._wanted, self.notes, self.collections = None, notes, collections

    def _fetch_for(self, blocks: Blocks, wanted: set[int], works: list[Work]) -> None:
        fetched = 0
        while works and fetched < MOST_AHEAD:
            again: list[Work] = []
            for work in works:
                try:
                    works.extend(work())
                except MissingError:
                    again.append(work)
                except VirtualdsError:
                    # it says so in earnest
                    continue
            works = again
            fetched += blocks.fetch_pages(sorted(wanted)[:MOST], AHEAD) if works else 0
            wanted.clear()

    def read(self, address: int, length: int) -> bytes:
        """Return exactly the bytes from an address on, like `take`, without a note of them."""
        if not 0 <= address <= self.end - self.base - length or length < 0:
            self.refuse(f"it names bytes {address} to {address + length}, of {self.end}")
        return self._read(self.base + address, length)

    @property
    def ends(self) -> Ints:
        """Bytes that can be addressed, as an array of one file."""
        return np.array([self.end - self.base])

    def take_rows(self, file: Ints, address: Ints, length: int) -> Bytes:
        """Return rows of equal length, as `ByteRows` has it; near ones come in one read."""
        end = self.end - self.base
        if address.size == 1 and 0 <= int(address[0]) <= end - length:
            data = self._read(self.base + int(address[0]), length)
            return np.frombuffer(data, np.uint8).reshape(1, length)
        return gather_rows(address, length, end, self.take_all)

    def _read(self, place: int, length: int) -> bytes:
        if place + length <= len(self._head):
            return self._head[place : place + length]
        if self._handle is not None and length <= NEARBY:
            begin = place - self._near_at
            if not 0 <= begin <= len(self._near) - length:
                self._near_at, begin = place, 0
                self._near = os.pread(self._handle, NEARBY, place)
            found = self._near[begin : begin + length]
        elif self._blocks is None:
            found = os.pread(self._handle or 0, length, place)
        else:
            if self._wanted is not None:
                self._demand_held(self._blocks, place, length)
            found = self._blocks.read(place, length)
        if len(found) < length:
            self.refuse(f"it ends within the bytes {place} to {place + length}")
        return found

    def _demand_held(self, blocks: Blocks, place: int, length: int) -> None:
        if (missing := blocks.find_missing([(place, length)])) and self._wanted is not None:
            self._wanted.update(missing)
            raise MissingError

    def unpack_address(self, data: bytes, place: int) -> int:
        """Return the address at a place of a piece of metadata."""
        value = parse_uint(data, place, self.offset_size)
        if self.notes is None or not self.is_defined(value):
            return value
        return note_address(data, place, self.offset_size, value)

    def unpack_length(self, data: bytes, place: int) -> int:
        """Return the length at a place of a piece of metadata."""
        return parse_uint(data, place, self.length_size)

    def is_defined(self, address: int) -> bool:
        """Say whether an address is defined: all bits set means that it is not (II.A)."""
        return address != (1 << 8 * self.offset_size) - 1

    def refuse(self, reason: str) -> NoReturn:
        """Raise `FormatError`: the file contradicts itself."""
        raise make_damage_error(self.source.url, reason)

    def decline(self, reason: str) -> NoReturn:
        """Raise `DeclinedError`: metadata have an unknown form."""
        raise make_unknown_error(self.source.url, reason)

    def _read_superblock(self) -> None:
        # the place of the superblock overrules its base address
        self.base = self._find_signature()
        head = self.peek(0, LONGEST).ljust(LONGEST, b"\0")
        try:
            size = measure_superblock(head)
        except UnknownSuperblockError as error:
            self.unknown = str(error)
            undefined = 2**64 - 1
            self._use(Superblock(8, 8, 0, 0, undefined, undefined))
            return
        self._use(parse_superblock(self.take(fix(0), size)))
        if not 0 < self.half < 2**15:
            self.refuse(f"nodes of {2 * self.half} chunks")

    def _use(self, superblock: Superblock) -> None:
        self.superblock, self.half = superblock, superblock.half
        self.group_half, self.leaf_half = superblock.group_half, superblock.leaf_half
        self.offset_size, self.length_size = superblock.offset_size, superblock.length_size

    def _find_signature(self) -> int:
        place = 0
        while place + len(SIGNATURE) <= self.end:
            if self._read(place, len(SIGNATURE)) == SIGNATURE:
                return place
            place = 2 * place or 512
        self.refuse("it has no superblock")


def make_damage_error(url: str, reason: str) -> FormatError:
    """Return the error of a file that contradicts itself."""
    return FormatError(f"{url}: its metadata are damaged ({reason}); fetch the file again")


def make_unknown_error(url: str, reason: str) -> DeclinedError:
    """Return the error of metadata of an unknown form."""
    return DeclinedError(
        f"{url}: {reason}, a form of HDF5 metadata that virtualds does not know; "
        f"rewrite the file with h5repack, or leave the variable out with drop_variables"
    )


def gather_rows(
    address: Ints, length: int, end: int, read: Callable[[list[Range]], Iterator[bytes]]
) -> Bytes:
    """Return rows of a file of equal length; near ones come in one range.

    Raises
    ------
    RowsError
        Rows lie past the end.
    """
    if not address.size:
        return np.empty((0, length), np.uint8)
    if int(address.min()) < 0 or int(address.max()) > end - length:
        raise RowsError(frozenset({0}), f"it names {length} bytes past the end, at {end}")
    if address.size == 1:
        (data,) = read([(int(address[0]), length)])
        return np.frombuffer(data, np.uint8).reshape(1, length)
    order = np.argsort(address, kind="stable")
    ordered = address[order]
    runs = _find_near(ordered, length)
    ranges = [(int(ordered[i]), int(ordered[j - 1] - ordered[i]) + length) for i, j in runs]
    found = np.empty((address.size, length), np.uint8)
    for (i, j), data in zip(runs, read(ranges), strict=True):
        windows = sliding_window_view(np.frombuffer(data, np.uint8), length)
        found[order[i:j]] = windows[ordered[i:j] - ordered[i]]
    return found


def lock_for_reading(handle: int) -> None:
    """Lock a file as HDF5 does, so that no writer changes it meanwhile.

    Raises
    ------
    BlockingIOError
        A writer has it open.
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
        # a file system without locks
        return


def parse_uint(data: bytes, place: int, size: int) -> int:
    """Return the unsigned integer at a place of a piece of metadata, which is little-endian."""
    return int.from_bytes(data[place : place + size], "little")


def _find_near(address: Ints, length: int) -> list[tuple[int, int]]:
    """Return runs of sorted rows to be read at once: near ones, of few bytes together."""
    far = np.diff(address) > length + NEAR
    block = (address - address[0]) // READ_TOGETHER
    cuts = (np.flatnonzero(far | (np.diff(block) != 0)) + 1).tolist()
    return list(pairwise([0, *cuts, len(address)]))


def _split_ranges(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Cut a list of ranges into lists of about `READ_TOGETHER` bytes at most."""
    some: list[Range] = []
    nbytes = 0
    for one in ranges:
        if some and nbytes + one[1] > READ_TOGETHER:
            yield some
            some, nbytes = [], 0
        some.append(one)
        nbytes += one[1]
    if some:
        yield some
