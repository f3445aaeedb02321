"""The cache of a scan: fetched bytes of a remote file or set are shared until the scan ends.

A scan is seen by the thread that scans, and by those that read for it: they work in a copy of its
context (`docs/explanation/decisions/0029-a-scan-belongs-to-its-context.md`).
"""

from __future__ import annotations

import io
import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, BinaryIO, cast

from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.log import DEBUG, tell, tells
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import SCANNED, find_store, is_in_archive
from virtualds.stores.block_cache import FIRST_PAGES, PAGE, BlockFile, Blocks, FetchError
from virtualds.stores.store import Range, Store, StoreError
from virtualds.urls import local_path, scheme_of

# ---------------------------------------------------------------------- files that were fetched
# Files, and ranges of files, that were fetched while a file or set is opened: held within bounds.
#
# An opening reads a coordinate more than once: its first and last value decide how it is decoded,
# all of them make the index. Nothing of it is fetched twice.


MOST_HELD = 2**26
"""Bytes that are held of one opening; what is fetched after them is not."""


class FetchedFiles:
    """What was fetched, for any number of threads.

    Examples
    --------
    >>> fetched = FetchedFiles()
    >>> fetched.put_range(SourceFile("s3://bucket/a.nc"), 100, b"abcdef")
    >>> fetched.find_range(SourceFile("s3://bucket/a.nc"), 102, 3)
    b'cde'
    """

    def __init__(self) -> None:
        self._files: dict[tuple[str, StorageOptions | None], bytes] = {}
        self._ranges: dict[SourceFile, dict[int, bytes]] = {}
        self._offsets: dict[SourceFile, list[int]] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    def put_file(self, url: str, options: StorageOptions | None, data: bytes) -> None:
        """Hold a whole file."""
        with self._lock:
            if (url, options) not in self._files and self._has_room(data):
                self._files[url, options] = data

    def find_file(self, url: str, options: StorageOptions | None) -> bytes | None:
        """Return a whole file, None if it is not held."""
        return self._files.get((url, options))

    def put_range(self, file: SourceFile, offset: int, data: bytes) -> None:
        """Hold a range of one version of a file."""
        with self._lock:
            known = self._ranges.setdefault(file, {})
            if offset not in known and self._has_room(data):
                insort(self._offsets.setdefault(file, []), offset)
                known[offset] = data

    def find_range(self, file: SourceFile, offset: int, length: int) -> bytes | None:
        """Return a range of one version of a file, None if it is not held."""
        whole = self._files.get((file.url, file.options))
        # a whole file was fetched without a look at its version
        if whole is not None and file.etag is None and file.size in (None, len(whole)):
            return _cut(whole, offset, length)
        with self._lock:
            offsets = self._offsets.get(file, [])
            if not (before := bisect_right(offsets, offset)):
                return None
            begin = offsets[before - 1]
            return _cut(self._ranges[file][begin], offset - begin, length)

    def _has_room(self, data: bytes) -> bool:
        self._nbytes += len(data)
        return self._nbytes <= MOST_HELD


def _cut(data: bytes, offset: int, length: int) -> bytes | None:
    return data[offset : offset + length] if offset + length <= len(data) else None


# ---------------------------------------------------------------------- scans


OTHERS = 64
"""Other files, referred to by the scanned one, whose blocks are held; the latest used ones."""


class Scan:
    """A store of a file or set that is being opened: it holds what was fetched.

    It also holds what was fetched of files in the folder of a set, and of files that are referred
    to. Any number of threads may ask.

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
        self._fetched = FetchedFiles()
        self._answered: set[str] = set()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    # ------------------------------------------------------------------ as a store

    def answers_for(self, url: str) -> bool:
        """Say whether it holds what is fetched of a url."""
        if not self.url:
            return False
        return url == self.url or url.startswith(f"{self.url}/") or url in self._answered

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return a file with its fingerprint, and its first bytes.

        Of the scanned file they are as many as are fetched first, whatever ``length`` says.
        """
        if not self.is_scanned(url, options):
            return self._behind.read_head(url, options, length)
        if self._file is not None and self._main is not None:
            size = min(FIRST_PAGES * PAGE, self._main.size)
            if (held := self._main.get_held(0, size)) is not None:
                return self._file, held
        self._file, head = self._behind.read_head(url, options, FIRST_PAGES * PAGE)
        if self._file.size is not None:
            self._main = Blocks(self._behind, self._file, head)
        return self._file, head

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return a file with its fingerprint; of the scanned file the store is asked once."""
        if self.is_scanned(url, options):
            return self._file or self.read_head(url, options, FIRST_PAGES * PAGE)[0]
        return self._behind.describe(url, options)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range, fetched where they are not held."""
        found = [self._held(file, offset, length) for offset, length in ranges]
        missing = [number for number, data in enumerate(found) if data is None]
        if not missing:
            return [data for data in found if data is not None]
        try:
            rest = self._behind.get_ranges(file, [ranges[number] for number in missing])
        except StoreError as error:
            error.item = missing[error.item]
            raise
        if not self.is_scanned(file.url, file.options):
            for number, data in zip(missing, rest, strict=True):
                self._fetched.put_range(file, ranges[number][0], data)
        fetched = iter(rest)
        return [next(fetched) if data is None else data for data in found]

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole file; the store is asked once, and only for what is not held."""
        if (known := self._fetched.find_file(url, options)) is not None:
            return known
        if (begun := self._read_rest(url, options)) is not None:
            return begun
        data = self._behind.read_all(url, options)
        self._fetched.put_file(url, options, data)
        return data

    def _read_rest(self, url: str, options: StorageOptions | None) -> bytes | None:
        """Return the scanned file, of which the beginning is held; None if it is not."""
        file = self._file if self.is_scanned(url, options) else None
        if file is None or not file.size:
            return None
        size = min(FIRST_PAGES * PAGE, file.size)
        if (head := self._held(file, 0, size)) is None or size == file.size:
            return head
        [rest] = self._behind.get_ranges(file, [(size, file.size - size)])
        return head + rest

    def is_scanned(self, url: str, options: StorageOptions | None) -> bool:
        """Say whether a file is the one that is being opened."""
        return (url, options) == (self.url, self.options)

    def _held(self, file: SourceFile, offset: int, length: int) -> bytes | None:
        """Return bytes of a file that are held."""
        if not self.is_scanned(file.url, file.options):
            return self._fetched.find_range(file, offset, length)
        # the scan may end meanwhile, in another thread
        main = self._main
        return None if main is None else main.get_held(offset, length)

    # ------------------------------------------------------------------ what is held

    def get_blocks(self, file: SourceFile) -> Blocks:
        """Return the blocks of the file that is scanned, or of one that it refers to."""
        with self._lock:
            is_scanned = self.is_scanned(file.url, file.options)
            blocks = self._get_main(file) if is_scanned else self._get_other(file)
        # threads that want other files need not wait for this one
        blocks.begin()
        return blocks

    def _get_main(self, file: SourceFile) -> Blocks:
        if self._main is None:
            self._main = _make_blocks(self._behind, file)
        return self._main

    def _get_other(self, file: SourceFile) -> Blocks:
        if file not in self._others:
            self._others[file] = _make_blocks(find_store(file.url), file)
            if len(self._others) > OTHERS:
                self._others.popitem(last=False)
        self._others.move_to_end(file)
        return self._others[file]

    def hold_files(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Hold files whose content is known without a request: urls and bytes."""
        for url, data in files:
            self._fetched.put_file(url, self.options, data)

    def holds(self, file: SourceFile) -> bool:
        """Say whether a whole file is held."""
        return self._fetched.find_file(file.url, file.options) is not None

    def hold_ranges_of(self, files: Iterable[SourceFile]) -> None:
        """Hold what will be fetched of files that are referred to."""
        self._answered |= {file.url for file in files if find_store(file.url) is self._behind}

    def describe_other(self, url: str) -> SourceFile:
        """Return a file that the scanned one refers to; its store is asked once."""
        if url not in self._described:
            self._described[url] = find_store(url).describe(url, self.options)
        return self._described[url]

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Answer for the url until the end of the block, in this context."""
        token = SCANNED.set(self)
        try:
            yield
        finally:
            SCANNED.reset(token)

    def close(self) -> None:
        """Let go of all that is held, and answer for no url."""
        with self._lock:
            held = [self._main, *self._others.values()]
        for blocks in held:
            if blocks is not None and blocks.hits and tells(DEBUG):
                tell(DEBUG, f"{blocks.file.url}: {blocks.hits:,} reads from held blocks")
        # threads and connections keep the context in which they were made
        self.url = ""
        self._file = self._main = None
        self._others.clear()
        self._described.clear()
        self._answered.clear()
        self._fetched = FetchedFiles()


def _find_scan() -> Scan | None:
    """Return the scan under way in this context."""
    scan = SCANNED.get()
    return scan if isinstance(scan, Scan) and scan.url else None


@contextmanager
def hold_scan(url: str, options: StorageOptions | None) -> Iterator[None]:
    """Hold what is fetched of a remote file or set until the end of the block, for this context."""
    url = url.rstrip("/")
    current = _find_scan()
    if current is not None and current.is_scanned(url, options):
        yield
        return
    scan = Scan(url, options)
    try:
        with scan.hold():
            yield
    finally:
        scan.close()


def describe_file(url: str, options: StorageOptions | None) -> SourceFile:
    """Return a file that the scanned one refers to, with its fingerprint.

    Raises
    ------
    OSError
        The file does not exist or may not be read.
    """
    scan = _find_scan()
    if scan is not None and options == scan.options and url != scan.url:
        return scan.describe_other(url)
    return find_store(url).describe(url, options)


def hold_files(files: Iterable[tuple[str, bytes]]) -> None:
    """Hold files of the set that is opened, whose content its metadata repeat: urls and bytes.

    Nothing is taken from ``files`` where no remote set is opened.
    """
    if (scan := _find_scan()) is not None:
        scan.hold_files(files)


def are_held(files: Iterable[SourceFile]) -> bool:
    """Say whether files are held as a whole, as those are that the metadata of a set repeat."""
    scan = _find_scan()
    return all(scan is not None and scan.holds(file) for file in files)


def hold_ranges_of(files: Iterable[SourceFile]) -> None:
    """Hold what will be fetched of files that the opened set refers to."""
    if (scan := _find_scan()) is not None:
        scan.hold_ranges_of(files)


def keep_scan(source: SourceFile) -> AbstractContextManager[None]:
    """Hold what is fetched of a file until the end of the block, where no scan is under way."""
    is_held = _find_scan() is not None or scheme_of(source.url) == "file"
    return nullcontext() if is_held else hold_scan(source.url, source.options)


def open_blocks(source: SourceFile) -> Blocks:
    """Return the bytes of a remote file, its beginning fetched.

    Raises
    ------
    UnsupportedError
        Parts of it cannot be had.
    StoreError
        It cannot be had.
    """
    scan = _find_scan()
    if scan is not None:
        return scan.get_blocks(source)
    blocks = _make_blocks(find_store(source.url), source)
    blocks.begin()
    return blocks


def open_remote(source: SourceFile) -> BlockFile:
    """Return a remote file to be read and sought in; errors are those of `open_blocks`."""
    return BlockFile(open_blocks(source))


def fetch_ahead(ranges: Mapping[SourceFile, Sequence[Range]]) -> None:
    """Fetch what is going to be read of the file that is scanned, all of it at once."""
    if (scan := _find_scan()) is None:
        return
    for file, wanted in ranges.items():
        if scan.is_scanned(file.url, file.options) and file.size is not None:
            scan.get_blocks(file).fetch_together(wanted)


def _make_blocks(store: Store, file: SourceFile) -> Blocks:
    """Return the blocks of a file, of which nothing is held yet."""
    if file.size is None:
        raise UnsupportedError(
            f"{file.url}: the server sends no parts of it (it knows no byte ranges, or does not "
            f"say how long the file is); copy it to local disk"
        )
    if not is_in_archive(file):
        return Blocks(store, file)
    # what is held of an archive begins a lone member
    return Blocks(store, file, store.read_head(file.url, file.options, FIRST_PAGES * PAGE)[1])


# ---------------------------------------------------------------------- binary files
# Source files as Python's binary files, local or remote.
#
# Fetched bytes of a remote file are held until the file is scanned, so that headers in many small
# pieces cost few requests.


def open_source(source: SourceFile) -> BinaryIO:
    r"""Open a source file, local or remote, for reading, as `open` in mode ``"rb"`` does.

    Parameters
    ----------
    source : SourceFile
        As a parser is given it.

    Returns
    -------
    binary file
        To be closed, or used in a ``with`` statement.

    Raises
    ------
    OSError
        The file does not exist, may not be read, or has changed since it was described.
    UnsupportedError
        A server sends no parts of it.

    Examples
    --------
    >>> with open_source(SourceFile("file:///data/2001.nc")) as file:  # doctest: +SKIP
    ...     file.read(4)
    b'\x89HDF'
    """
    if scheme_of(source.url) == "file":
        return open(local_path(source.url), "rb")
    return cast("BinaryIO", io.BufferedReader(open_remote(source), PAGE))


@contextmanager
def describe_damage(
    source: SourceFile, what: str, complaints: tuple[type[Exception], ...]
) -> Iterator[None]:
    """Turn what a library complains of within the block into `FormatError`, and name the file.

    Parameters
    ----------
    source : SourceFile
    what : str
        The format, for the message.
    complaints : tuple of exception types
        What the library raises about damaged files.
    """
    try:
        yield
    except VirtualdsError as error:
        error.locate_file(source.url)
        raise
    except (FetchError, FileNotFoundError, PermissionError):
        raise
    except complaints as error:
        raise FormatError(
            f"{source.url}: it is not a sound {what} file ({type(error).__name__}: {error}); the "
            f"file is damaged or truncated, fetch it again"
        ) from error
