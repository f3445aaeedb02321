"""Several files that are read together: the beginnings of all, and rows of any of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from virtualds.chunks.columns import Ints
from virtualds.options import get_options
from virtualds.parsers.hdf5.structure.byte_rows import Bytes, RowsError
from virtualds.parsers.hdf5.structure.file_bytes import HEAD_BYTES, lock_for_reading
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.block_cache import FIRST_PAGES, PAGE
from virtualds.stores.local import open_regular
from virtualds.stores.scan_cache import Scan
from virtualds.stores.store import Range
from virtualds.urls import local_path, scheme_of

FEWEST = 3
"""Fewest files that are read together."""
OPEN_ERRORS = (OSError, ValueError)
"""What opening raises for a file that cannot be read; it is then opened alone, which says why."""

Result = TypeVar("Result")


class FileReader(Protocol):
    """Reads one file."""

    @property
    def source(self) -> SourceFile:
        """The file with its fingerprint."""

    @property
    def head(self) -> bytes:
        """Its first bytes."""

    def read_into(self, address: int, buffer: memoryview) -> int:
        """Fill a buffer with the bytes from an address on; return how many there are."""

    def hold(self) -> AbstractContextManager[None]:
        """Let what is fetched of the file serve all who read it, until the end of the block."""

    def close(self) -> None:
        """Let go of the file."""


class LocalReader:
    """Reads a local file."""

    def __init__(self, url: str, options: StorageOptions | None) -> None:
        self._handle = open_regular(local_path(url), options)
        try:
            lock_for_reading(self._handle)
            found = os.fstat(self._handle)
            self.head = os.pread(self._handle, HEAD_BYTES, 0)
        except BaseException:
            self.close()
            raise
        self.source = SourceFile(url, found.st_size, found.st_mtime_ns)

    def read_into(self, address: int, buffer: memoryview) -> int:
        """Fill a buffer with the bytes from an address on; return how many there are."""
        if hasattr(os, "preadv"):
            return os.preadv(self._handle, [buffer], address)
        found = os.pread(self._handle, len(buffer), address)
        buffer[: len(found)] = found
        return len(found)

    def hold(self) -> AbstractContextManager[None]:
        """Do nothing: nothing is fetched."""
        return nullcontext()

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


class RemoteReader:
    """Reads a remote file, and holds what it fetched."""

    def __init__(self, url: str, options: StorageOptions | None) -> None:
        self._scan = Scan(url, options)
        self.source, self.head = self._scan.read_head(url, options, FIRST_PAGES * PAGE)
        if self.source.size is None:
            raise ValueError("the size of the file is not known")
        self._blocks = self._scan.get_blocks(self.source)

    def read_into(self, address: int, buffer: memoryview) -> int:
        """Fill a buffer with bytes, of those that were fetched where they are held."""
        found = self._blocks.read(address, len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def fetch(self, ranges: Sequence[Range]) -> None:
        """Fetch what is going to be read, all of it at once."""
        self._blocks.fetch_together(ranges)

    def hold(self) -> AbstractContextManager[None]:
        """Let what is fetched of the file serve all who read it, until the end of the block."""
        return self._scan.hold()

    def close(self) -> None:
        """Let go of what was fetched; connections are kept."""
        self._scan.close()


Fetch = Callable[[Sequence[FileReader], Sequence[Sequence[Range]]], None]
"""Fetches ranges of files, of all at once."""


@dataclass(eq=False)
class ManyFiles:
    """Files whose bytes are read as rows (`virtualds.parsers.hdf5.structure.byte_rows.ByteRows`).

    Parameters
    ----------
    readers : list of FileReader
    fetch_ranges : callable or None
        None for local files, which are read when bytes are needed.
    offset_size, length_size, half : int
        Of the structure that the files have.
    """

    readers: list[FileReader]
    fetch_ranges: Fetch | None
    offset_size: int = 8
    length_size: int = 8
    half: int = 32

    def __post_init__(self) -> None:
        size = max((len(reader.head) for reader in self.readers), default=0)
        heads = b"".join([reader.head.ljust(size, b"\0") for reader in self.readers])
        self.heads = np.frombuffer(heads, np.uint8).reshape(len(self.readers), size)
        self.ends = np.array([reader.source.size or 0 for reader in self.readers], np.int64)
        self._in_head = np.minimum(self.ends, size)

    def select(self, numbers: Ints) -> ManyFiles:
        """Return some of the files."""
        if len(numbers) == len(self.readers):
            return self
        return ManyFiles([self.readers[n] for n in numbers.tolist()], self.fetch_ranges)

    def fetch(self, file: Ints, ranges: Sequence[tuple[Ints, int]]) -> None:
        """Fetch what is going to be read, of all files at once.

        Parameters
        ----------
        file : int array
        ranges : sequence of (int array, int)
            For each of these files an address, and the length.
        """
        if self.fetch_ranges is None:
            return
        wanted: list[list[Range]] = [[] for _ in self.readers]
        for addresses, length in ranges:
            outside = addresses + length > self._in_head[file]
            for number, address in zip(file[outside].tolist(), addresses[outside], strict=True):
                wanted[number].append((int(address), length))
        self.fetch_ranges(self.readers, wanted)

    def take_rows(self, file: Ints, address: Ints, length: int) -> Bytes:
        """Return rows of equal length, one for each address, of shape ``(n, length)``.

        Raises
        ------
        RowsError
            Rows lie outside of their files.
        """
        fits = (address >= 0) & (address <= self.ends[file] - length)
        if not fits.all():
            raise RowsError(frozenset(file[~fits].tolist()), "bytes lie past the end of the file")
        held = address + length <= self._in_head[file]
        if held.all():
            return self._take_held(file, address, length)
        rows = np.empty((len(file), length), np.uint8)
        if held.any():
            rows[held] = self._take_held(file[held], address[held], length)
        self._read_rows(file, address, np.flatnonzero(~held), rows)
        return rows

    def _take_held(self, file: Ints, address: Ints, length: int) -> Bytes:
        if len(file) == len(self.readers) and (address == address[0]).all():
            begin = int(address[0])
            rows: Bytes = self.heads[file, begin : begin + length]
            return rows
        gathered: Bytes = self.heads[file[:, None], address[:, None] + np.arange(length)]
        return gathered

    def _read_rows(self, file: Ints, address: Ints, which: Ints, rows: Bytes) -> None:
        """Read some of the rows, each into its place."""
        files, addresses, length = file[which].tolist(), address[which].tolist(), rows.shape[1]
        self.fetch(file[which], [(address[which], length)])
        readers, view = self.readers, rows.reshape(-1).data
        for place, number, at in zip((which * length).tolist(), files, addresses, strict=True):
            if readers[number].read_into(at, view[place : place + length]) < length:
                reason = "a file ends earlier than when it was opened"
                raise RowsError(frozenset({number}), reason)


@contextmanager
def open_many(
    urls: Sequence[str], options: StorageOptions | None, is_alike: Callable[[ManyFiles], bool]
) -> Iterator[tuple[ManyFiles, Ints]]:
    """Open files, and close them at the end of the block.

    Parameters
    ----------
    urls : sequence of str
    options : StorageOptions, optional
    is_alike : callable
        Says of the first remote files whether it is worth to ask for the others, too.

    Returns
    -------
    ManyFiles, int array
        The files that can be opened, and their numbers.
    """
    is_local = all(scheme_of(url) == "file" for url in urls)
    make = LocalReader if is_local else RemoteReader

    def open_one(url: str) -> FileReader | None:
        try:
            return make(url, options)
        except OPEN_ERRORS:
            return None

    with _choose_runner(len(urls), is_local) as run:
        fetch = None if is_local else partial(_fetch_ranges, run)
        found: list[FileReader | None] = []
        try:
            found += run(open_one, urls if is_local else urls[:FEWEST])
            if not is_local and is_alike(_list_open(found, fetch)):
                found += run(open_one, urls[FEWEST:])
            numbers = np.flatnonzero([reader is not None for reader in found])
            yield _list_open(found, fetch), numbers
        finally:
            for reader in filter(None, found):
                reader.close()


def _list_open(found: Sequence[FileReader | None], fetch: Fetch | None) -> ManyFiles:
    return ManyFiles([reader for reader in found if reader is not None], fetch)


def _fetch_ranges(
    run: Callable[..., Any], readers: Sequence[Any], wanted: Sequence[Sequence[Range]]
) -> None:
    pairs = [(reader, some) for reader, some in zip(readers, wanted, strict=True) if some]
    run(lambda pair: pair[0].fetch(pair[1]), pairs)


@contextmanager
def _choose_runner(count: int, is_local: bool) -> Iterator[Callable[..., Any]]:
    """Give a function like `map` that asks for all files at once where they are remote."""
    if is_local:
        yield lambda work, items: list(map(work, items))
        return
    with ThreadPoolExecutor(min(count, get_options().max_requests)) as pool:

        def run(work: Callable[[Any], Result], items: Sequence[Any]) -> list[Result]:
            # what a thread reads belongs to the scan of its caller
            started = [pool.submit(copy_context().run, work, item) for item in items]
            return [future.result() for future in started]

        yield run
