"""The cache of a scan: fetched bytes of a remote file are shared until the scan ends.

One thread at a time may use HDF5, and would wait within its lock for bytes. So that many files can
be scanned at once, an attempt to read is given up where bytes are missing; they are fetched outside
of the lock, and the read is tried again.

A scan is seen by the thread that scans, and by those that read for it: they work in a copy of its
context (`docs/decisions/0029-a-scan-belongs-to-its-context.md`).
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar, cast

from virtualds.errors import UnsupportedError
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import SCANNED, StoreOfOneFile, find_store
from virtualds.stores.block_cache import FIRST_PAGES, MOST, PAGE, BlockFile, Blocks
from virtualds.stores.store import Range, Store, StoreError

ATTEMPTS = 16
"""Attempts that may be given up; the next one fetches inside of HDF5's lock."""

OTHERS = 64
"""Other files, referred to by the scanned one, whose blocks are held; the latest used ones."""

NODE = struct.Struct("<4sBBH16x")
"""Signature, type, level and number of entries of a node; then its neighbours."""

OF_GROUP, OF_CHUNKS = 0, 1
"""Types of nodes: of a group's names, of a dataset's chunks."""

CHILDREN = 64
"""Children that a node of chunks has room for by default."""

ADDRESS = 8
"""Bytes of an address, and of a key of a node of names."""

SYMBOLS, SYMBOL = struct.Struct("<4sBxH"), 40
"""Head of a table of symbols, and bytes of each symbol."""

HEADER = 512
"""Bytes of an object's header that are read first (HDF5's own guess)."""

Result = TypeVar("Result")


class MissingError(Exception):
    """Bytes that are not held; it ends an attempt, and goes no further."""


class Scan:
    """A store of a file that is being scanned: it holds what was fetched.

    It also holds what was fetched of files that this one refers to. Any number of threads may ask.

    Parameters
    ----------
    url : str
    options : StorageOptions or None
    """

    def __init__(self, url: str, options: StorageOptions | None) -> None:
        self.url, self.options = url, options
        self._behind = find_store(url)
        self._file: SourceFile | None = None
        self._main: Blocks | None = None
        self._others: OrderedDict[SourceFile, Blocks] = OrderedDict()
        self._described: dict[str, SourceFile] = {}
        self._missed: list[tuple[Blocks, int, int]] = []
        self._gives_up = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    # ------------------------------------------------------------------ as a store

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return a file with its fingerprint, and its first bytes.

        Of the scanned file they are as many as are fetched first, whatever ``length`` says.
        """
        if not self._is_scanned(url, options):
            return self._behind.read_head(url, options, length)
        self._file, head = self._behind.read_head(url, options, FIRST_PAGES * PAGE)
        if self._file.size is not None:
            self._main = Blocks(self._behind, self._file, head)
        return self._file, head

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return a file with its fingerprint; the store is asked once."""
        if self._is_scanned(url, options):
            return self._file or self.read_head(url, options, FIRST_PAGES * PAGE)[0]
        store = self._behind if url == self.url else find_store(url)
        if options != self.options:
            return store.describe(url, options)
        if url not in self._described:
            self._described[url] = store.describe(url, options)
        return self._described[url]

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range, fetched where they are not held."""
        found = [self._held(file, offset, length) for offset, length in ranges]
        missing = [number for number, data in enumerate(found) if data is None]
        if not missing:
            return [data for data in found if data is not None]
        if len(missing) == len(ranges):
            return self._behind.get_ranges(file, ranges)
        try:
            rest = self._behind.get_ranges(file, [ranges[number] for number in missing])
        except StoreError as error:
            error.item = missing[error.item]
            raise
        fetched = iter(rest)
        return [next(fetched) if data is None else data for data in found]

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole file."""
        # a folder's store is also asked for what lies in it
        file = self._file if self._is_scanned(url, options) else None
        if file is not None and file.size:
            found = self._held(file, 0, file.size)
            if found is not None:
                return found
        return self._behind.read_all(url, options)

    def _is_scanned(self, url: str, options: StorageOptions | None) -> bool:
        return (url, options) == (self.url, self.options)

    def _held(self, file: SourceFile, offset: int, length: int) -> bytes | None:
        """Return bytes of the scanned file that are held."""
        # the scan may end meanwhile, in another thread
        main = self._main
        if main is None or not self._is_scanned(file.url, file.options):
            return None
        return main.get_held(offset, length)

    # ------------------------------------------------------------------ what is held

    def get_blocks(self, file: SourceFile) -> Blocks:
        """Return the blocks of the file that is scanned, or of one that it refers to."""
        if self._is_scanned(file.url, file.options):
            if self._main is None:
                self._main = _begin_blocks(self._behind, file)
            return self._main
        if file not in self._others:
            self._others[file] = _begin_blocks(find_store(file.url), file)
            if len(self._others) > OTHERS:
                # another attempt would fetch them again
                self._others.popitem(last=False)
                self._gives_up = False
        self._others.move_to_end(file)
        return self._others[file]

    def close(self) -> None:
        """Let go of all that is held, and answer for no url."""
        # threads and connections keep the context in which they were made
        self.url = ""
        self._file = self._main = None
        self._others.clear()
        self._described.clear()
        self._missed = []

    def check_held(self, blocks: Blocks, offset: int, length: int) -> None:
        """Give an attempt up if bytes are missing that it needs."""
        if self._gives_up and length <= MOST * PAGE and blocks.get_held(offset, length) is None:
            self._missed.append((blocks, offset, length))
            raise MissingError

    def read(self, work: Callable[[], Result]) -> Result:
        """Do ``work`` that reads the file, again and again until nothing is missing.

        An attempt in which something was missing is void, whatever came of it; of one in which
        nothing was, the outcome is the outcome.
        """
        for _ in range(ATTEMPTS):
            self._missed, self._gives_up = [], True
            try:
                with _Attempt(self._missed):
                    result = work()
            finally:
                self._gives_up = False
            if not self._missed:
                return result
            for blocks, offset, length in self._missed:
                blocks.fetch(offset, length)
        return work()


class _Attempt:
    """Swallows the errors that missing bytes lead to."""

    def __init__(self, missed: list[Any]) -> None:
        self._missed = missed

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return bool(self._missed) and kind is not None and issubclass(kind, Exception)


def _find_scan() -> Scan | None:
    """Return the scan under way in this context."""
    scan = SCANNED.get()
    return scan if isinstance(scan, Scan) and scan.url else None


@contextmanager
def hold_scan(url: str, options: StorageOptions | None) -> Iterator[None]:
    """Hold what is fetched of a remote file until the end of the block, for this context."""
    current = _find_scan()
    if current is not None and (current.url, current.options) == (url, options):
        yield
        return
    scan = Scan(url, options)
    token = SCANNED.set(cast("StoreOfOneFile", scan))
    try:
        yield
    finally:
        SCANNED.reset(token)
        scan.close()


def describe_file(url: str, options: StorageOptions | None) -> SourceFile:
    """Return a file that the scanned one refers to, with its fingerprint.

    Raises
    ------
    OSError
        The file does not exist or may not be read.
    """
    return (_find_scan() or find_store(url)).describe(url, options)


def open_remote(source: SourceFile) -> BlockFile:
    """Return a remote file to be read and sought in, its beginning fetched.

    Raises
    ------
    UnsupportedError
        Parts of it cannot be had.
    StoreError
        It cannot be had.
    """
    if (scan := _find_scan()) is not None:
        return BlockFile(scan.get_blocks(source), scan.check_held, find_pointed_ranges)
    return BlockFile(
        _begin_blocks(find_store(source.url), source), lambda *_: None, find_pointed_ranges
    )


def read_remote(source: SourceFile, work: Callable[[], Result]) -> Result:
    """Do ``work`` that reads remote files, as often as bytes are missing."""
    if (scan := _find_scan()) is not None:
        return scan.read(work)
    with hold_scan(source.url, source.options):
        return read_remote(source, work)


def fetch_ahead(ranges: Mapping[SourceFile, Sequence[Range]]) -> None:
    """Fetch what is going to be read of the file that is scanned, all of it at once."""
    scan = _find_scan()
    for file, wanted in ranges.items():
        is_scanned = scan is not None and (file.url, file.options) == (scan.url, scan.options)
        if scan is not None and is_scanned and file.size is not None:
            scan.get_blocks(file).fetch_together(wanted)


def _begin_blocks(store: Store, file: SourceFile) -> Blocks:
    """Return the blocks of a file with the first of them."""
    if file.size is None:
        raise UnsupportedError(
            f"{file.url}: the server sends no parts of it (it knows no byte ranges, or does not "
            f"say how long the file is); copy it to local disk"
        )
    blocks = Blocks(store, file)
    blocks.fetch(0, min(FIRST_PAGES * PAGE, file.size))
    return blocks


# ---------------------------------------------------------------------- metadata of HDF5


def find_pointed_ranges(data: bytes) -> list[Range]:
    """Return the ranges that a piece of metadata points at, as far as it is known for that.

    Parameters
    ----------
    data : bytes
        What HDF5 read in one go.
    """
    if data[:4] == b"TREE" and len(data) > NODE.size:
        return _find_children(data)
    if data[:4] == b"SNOD" and len(data) > SYMBOLS.size:
        _, _, count = SYMBOLS.unpack_from(data)
        # a symbol begins with the place of its name, which the address follows
        return _list_ranges(data, SYMBOLS.size + ADDRESS, SYMBOL, count, HEADER)
    return []


def _find_children(data: bytes) -> list[Range]:
    _, kind, level, count = NODE.unpack_from(data)
    if kind == OF_GROUP:
        length = len(data) if level else SYMBOLS.size + SYMBOL * 8
        return _list_ranges(data, NODE.size + ADDRESS, 2 * ADDRESS, count, length)
    # below the last level lie the chunks themselves
    if kind != OF_CHUNKS or not level:
        return []
    key, rest = divmod(len(data) - NODE.size - CHILDREN * ADDRESS, CHILDREN + 1)
    if rest or key <= 0:
        return []
    return _list_ranges(data, NODE.size + key, key + ADDRESS, count, len(data))


def _list_ranges(data: bytes, begin: int, step: int, count: int, length: int) -> list[Range]:
    """Return the ranges at the addresses that lie in ``data`` every ``step`` bytes."""
    places = range(begin, min(begin + step * count, len(data) - ADDRESS + 1), step)
    found = (int.from_bytes(data[place : place + ADDRESS], "little") for place in places)
    return [(address, length) for address in found if 0 < address < 2**63]
