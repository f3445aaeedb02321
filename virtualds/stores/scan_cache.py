"""The cache of a scan: fetched bytes of a remote file are shared until the scan ends.

One thread at a time may use HDF5, and would wait within its lock for bytes. So that many files can
be scanned at once, an attempt to read is given up where bytes are missing; they are fetched outside
of the lock, and the read is tried again.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar, cast

from virtualds.errors import UnsupportedError
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store, put_in_front
from virtualds.stores.block_cache import FIRST_PAGES, MOST, PAGE, BlockFile, Blocks
from virtualds.stores.store import Range, Store, StoreError
from virtualds.urls import scheme_of

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

_CURRENT: ContextVar[Scan | None] = ContextVar("virtualds_scan", default=None)


class MissingError(Exception):
    """Bytes that are not held; it ends an attempt, and goes no further."""


class Scan:
    """What is held of a file, and of those that it refers to, while it is scanned.

    Parameters
    ----------
    url : str
    options : StorageOptions or None
    """

    def __init__(self, url: str, options: StorageOptions | None) -> None:
        self.url, self.options = url, options
        self.store = _find_store_behind(url)
        self.file: SourceFile | None = None
        self._main: Blocks | None = None
        self._others: OrderedDict[SourceFile, Blocks] = OrderedDict()
        self._described: dict[str, SourceFile] = {}
        self._missed: list[tuple[Blocks, int, int]] = []
        self._gives_up = False

    def head(self) -> tuple[SourceFile, bytes]:
        """Return the file with its fingerprint, and its first bytes."""
        self.file, head = self.store.head(self.url, self.options, FIRST_PAGES * PAGE)
        self._main = Blocks(self.store, self.file, head) if self.file.size is not None else None
        return self.file, head

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return a file with its fingerprint, asked for once."""
        if options != self.options:
            return find_store(url).describe(url, options)
        if url == self.url:
            return self.file or self.head()[0]
        if url not in self._described:
            self._described[url] = find_store(url).describe(url, options)
        return self._described[url]

    def blocks(self, file: SourceFile) -> Blocks:
        """Return the blocks of the file that is scanned, or of one that it refers to."""
        if (file.url, file.options) == (self.url, self.options):
            if self._main is None:
                self._main = _begin_blocks(self.store, file)
            return self._main
        if file not in self._others:
            self._others[file] = _begin_blocks(_find_store_behind(file.url), file)
            if len(self._others) > OTHERS:
                # another attempt would fetch them again
                self._others.popitem(last=False)
                self._gives_up = False
        self._others.move_to_end(file)
        return self._others[file]

    def held(self, file: SourceFile, offset: int, length: int) -> bytes | None:
        """Return bytes of the scanned file that are held."""
        # the scan may end meanwhile, in another thread
        main = self._main
        if main is None or (file.url, file.options) != (self.url, self.options):
            return None
        return main.held(offset, length)

    def close(self) -> None:
        """Let go of all that is held: connections keep the context in which they were made."""
        self._main = None
        self._others.clear()
        self._missed = []

    def before(self, blocks: Blocks, offset: int, length: int) -> None:
        """Give an attempt up if bytes are missing that it needs."""
        if self._gives_up and length <= MOST * PAGE and blocks.held(offset, length) is None:
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


class _InFront:
    """The store of a file with what is held of it in front; any other thread may use it too."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self.behind: Store = scan.store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range, fetched where they are not held."""
        found = [self._scan.held(file, offset, length) for offset, length in ranges]
        missing = [number for number, data in enumerate(found) if data is None]
        if not missing:
            return [data for data in found if data is not None]
        if len(missing) == len(ranges):
            return self.behind.get_ranges(file, ranges)
        try:
            rest = self.behind.get_ranges(file, [ranges[number] for number in missing])
        except StoreError as error:
            error.item = missing[error.item]
            raise
        fetched = iter(rest)
        return [next(fetched) if data is None else data for data in found]

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return the file with its fingerprint."""
        return self._known(url, options) or self.behind.describe(url, options)

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return the whole file."""
        file = self._known(url, options)
        if file is not None and file.size:
            found = self._scan.held(file, 0, file.size)
            if found is not None:
                return found
        return self.behind.read_all(url, options)

    def _known(self, url: str, options: StorageOptions | None) -> SourceFile | None:
        """Return the scanned file, if it is the one that is asked for and was looked at."""
        # a folder's store is also asked for what lies in it
        same = (url, options) == (self._scan.url, self._scan.options)
        return self._scan.file if same else None


def _find_store_behind(url: str) -> Store:
    """Return the store of a file without what another scan holds of it.

    That goes when the other thread is done, and is locked while it fetches: who waits for it inside
    of HDF5's lock could wait for ever, since objects of h5py may be collected there.
    """
    store = find_store(url)
    return store.behind if isinstance(store, _InFront) else store


@contextmanager
def hold_scan(url: str, options: StorageOptions | None) -> Iterator[None]:
    """Hold what is fetched of a remote file until the end of the block."""
    current = _CURRENT.get()
    if scheme_of(url) == "file" or (
        current is not None and (current.url, current.options) == (url, options)
    ):
        yield
        return
    scan = Scan(url, options)
    token = _CURRENT.set(scan)
    try:
        with put_in_front(url, cast("Store", _InFront(scan))):
            yield
    finally:
        _CURRENT.reset(token)
        scan.close()


def _scan_of(url: str, options: StorageOptions | None) -> Scan | None:
    """Return the scan under way, if it is of this file."""
    scan = _CURRENT.get()
    return scan if scan is not None and (scan.url, scan.options) == (url, options) else None


def fetch_head(
    url: str, options: StorageOptions | None, length: int = FIRST_PAGES * PAGE
) -> tuple[SourceFile, bytes]:
    """Return a file with its fingerprint, and the first bytes that it has.

    Of a file that is scanned they are as many as are fetched first, whatever ``length`` says.

    Raises
    ------
    OSError
        The file does not exist or may not be read.
    """
    scan = _scan_of(url, options)
    return find_store(url).head(url, options, length) if scan is None else scan.head()


def describe_file(url: str, options: StorageOptions | None) -> SourceFile:
    """Return a file that the scanned one refers to, with its fingerprint.

    Raises
    ------
    OSError
        The file does not exist or may not be read.
    """
    scan = _CURRENT.get()
    return (scan or find_store(url)).describe(url, options)


def open_remote(source: SourceFile) -> BlockFile:
    """Return a remote file to be read and sought in, its beginning fetched.

    Raises
    ------
    UnsupportedError
        Parts of it cannot be had.
    StoreError
        It cannot be had.
    """
    scan = _CURRENT.get()
    if scan is not None:
        return BlockFile(scan.blocks(source), scan.before, find_pointed_ranges)
    return BlockFile(
        _begin_blocks(find_store(source.url), source), lambda *_: None, find_pointed_ranges
    )


def read_remote(source: SourceFile, work: Callable[[], Result]) -> Result:
    """Do ``work`` that reads remote files, as often as bytes are missing."""
    with hold_scan(source.url, source.options):
        scan = _scan_of(source.url, source.options)
        return work() if scan is None else scan.read(work)


def fetch_ahead(ranges: Mapping[SourceFile, Sequence[Range]]) -> None:
    """Fetch what is going to be read of the file that is scanned, all of it at once."""
    scan = _CURRENT.get()
    if scan is None:
        return
    for file, wanted in ranges.items():
        if _scan_of(file.url, file.options) is not None and file.size is not None:
            scan.blocks(file).fetch_together(wanted)


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
