"""The cache of a scan: fetched bytes of a remote file or set are shared until the scan ends.

A scan is seen by the thread that scans, and by those that read for it: they work in a copy of its
context (`docs/explanation/decisions/0029-a-scan-belongs-to-its-context.md`).
"""

from __future__ import annotations

import io
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, BinaryIO, cast

from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.progress import DEBUG, is_logged, log
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import SCANNED, find_store, is_in_archive
from virtualds.stores.block_cache import FIRST_PAGES, PAGE, BlockFile, Blocks, FetchError
from virtualds.stores.store import Range, Store, StoreError
from virtualds.urls import local_path, scheme_of

# ---------------------------------------------------------------------- files that were fetched
# Files, and ranges of files, that were fetched while a file or set is opened: cached within limits.
#
# Opening reads a coordinate more than once: its first and last value determine how it is decoded,
# all of them form the index. Nothing of it is fetched twice.


MAX_CACHED = 2**26
"""Maximum number of bytes that are cached while opening; bytes fetched after them are not."""


class FetchCache:
    """A cache of fetched files and ranges, shared by all threads.

    Examples
    --------
    >>> fetched = FetchCache()
    >>> fetched.put_range(SourceFile("s3://bucket/a.nc"), 100, b"abcdef")
    >>> fetched.find_range(SourceFile("s3://bucket/a.nc"), 102, 3)
    b'cde'
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, StorageOptions | None], bytes] = {}
        """Whole files."""
        self._ranges: dict[SourceFile, tuple[list[int], list[bytes]]] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    def put_file(self, url: str, options: StorageOptions | None, data: bytes) -> None:
        with self._lock:
            if (url, options) not in self.files and self._has_room(data):
                self.files[url, options] = data

    def put_range(self, file: SourceFile, offset: int, data: bytes) -> None:
        """Cache a range of one version of a file."""
        with self._lock:
            offsets, cached = self._ranges.setdefault(file, ([], []))
            index = bisect_left(offsets, offset)
            if offsets[index : index + 1] != [offset] and self._has_room(data):
                offsets.insert(index, offset)
                cached.insert(index, data)

    def find_range(self, file: SourceFile, offset: int, length: int) -> bytes | None:
        """Return a range of one version of a file, or None if it is not cached."""
        whole = self.files.get((file.url, file.options))
        # a whole file was fetched without a check of its version
        if whole is not None and file.etag is None and file.size in (None, len(whole)):
            return _slice(whole, offset, length)
        with self._lock:
            offsets, cached = self._ranges.get(file, ((), ()))
            before = bisect_right(offsets, offset) - 1
            return None if before < 0 else _slice(cached[before], offset - offsets[before], length)

    def _has_room(self, data: bytes) -> bool:
        self._nbytes += len(data)
        return self._nbytes <= MAX_CACHED


def _slice(data: bytes, offset: int, length: int) -> bytes | None:
    return data[offset : offset + length] if offset + length <= len(data) else None


# ---------------------------------------------------------------------- scans


OTHERS = 64
"""The number of other files, to which the scanned file refers, whose blocks are cached."""


class ScannedStore:
    """The store of a file or set that is being opened, with a cache of fetched bytes.

    It also caches bytes of files in the folder of a set, and of files to which it refers. It is
    shared by all threads.
    """

    def __init__(self, url: str, options: StorageOptions | None) -> None:
        self.url, self.options = url, options
        self.behind = find_store(url)
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._file: SourceFile | None = None
        self._main: Blocks | None = None
        self._others: OrderedDict[SourceFile, Blocks] = OrderedDict()
        self._described: dict[str, SourceFile] = {}
        self.answered: set[str] = set()
        self.fetched = FetchCache()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    # ------------------------------------------------------------------ as a store

    def serves(self, url: str) -> bool:
        """Return whether the bytes of a url are cached here."""
        if not self.url:
            return False
        return url == self.url or url.startswith(f"{self.url}/") or url in self.answered

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return a file with its fingerprint, and its first bytes.

        For the scanned file, they are as many as are fetched first, regardless of ``length``.
        """
        if not self.is_scanned(url, options):
            return self.behind.read_head(url, options, length)
        if (begun := self._find_head()) is not None:
            return begun
        self._file, head = self.behind.read_head(url, options, FIRST_PAGES * PAGE)
        if self._file.size is not None:
            self._main = Blocks(self.behind, self._file, head)
        return self._file, head

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return a file with its fingerprint; for the scanned file, the store is asked once."""
        if self.is_scanned(url, options):
            return self._file or self.read_head(url, options, FIRST_PAGES * PAGE)[0]
        return self.behind.describe(url, options)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range, fetched if they are not cached."""
        is_scanned = self.is_scanned(file.url, file.options)
        # the scan may end meanwhile, in another thread
        main, fetched = self._main, self.fetched
        if is_scanned:
            found = [main and main.get_cached(*wanted) for wanted in ranges]
        else:
            found = [fetched.find_range(file, *wanted) for wanted in ranges]
        missing = [number for number, data in enumerate(found) if data is None]
        try:
            wanted = [ranges[number] for number in missing]
            rest = self.behind.get_ranges(file, wanted) if missing else ()
        except StoreError as error:
            error.item = missing[error.item]
            raise
        for number, data in zip(missing, rest, strict=True):
            found[number] = data
            if not is_scanned:
                fetched.put_range(file, ranges[number][0], data)
        return cast("list[bytes]", found)

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole file; the store is asked once, and only if it is not cached."""
        if (known := self.fetched.files.get((url, options))) is not None:
            return known
        if self.is_scanned(url, options) and (begun := self._find_head()) and begun[0].size:
            file, head = begun
            if more := (file.size or 0) - len(head):
                head += self.behind.get_ranges(file, [(len(head), more)])[0]
            return head
        data = self.behind.read_all(url, options)
        self.fetched.put_file(url, options, data)
        return data

    def _find_head(self) -> tuple[SourceFile, bytes] | None:
        """Return the scanned file and its beginning, or None if that is not cached."""
        file, main = self._file, self._main
        if file is None or main is None:
            return None
        head = main.get_cached(0, min(FIRST_PAGES * PAGE, main.size))
        return None if head is None else (file, head)

    def is_scanned(self, url: str, options: StorageOptions | None) -> bool:
        """Return whether a file is the one that is being opened."""
        return (url, options) == (self.url, self.options)

    # ------------------------------------------------------------------ cached bytes

    def get_blocks(self, file: SourceFile) -> Blocks:
        """Return the blocks of the scanned file, or of a file to which it refers."""
        with self._lock:
            if self.is_scanned(file.url, file.options):
                blocks = self._main = self._main or _make_blocks(self.behind, file)
            else:
                blocks = self._others.get(file) or _make_blocks(find_store(file.url), file)
                self._others[file] = blocks
                self._others.move_to_end(file)
                if len(self._others) > OTHERS:
                    self._others.popitem(last=False)
        # threads that want other files need not wait for this one
        blocks.begin()
        return blocks

    def describe_other(self, url: str) -> SourceFile:
        """Return a file to which the scanned file refers; its store is asked once."""
        if url not in self._described:
            self._described[url] = find_store(url).describe(url, self.options)
        return self._described[url]

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Serve the url in this context until the end of the block."""
        token = SCANNED.set(self)
        try:
            yield
        finally:
            SCANNED.reset(token)

    def close(self) -> None:
        """Clear the cache, and serve no url."""
        with self._lock:
            block_lists = [self._main, *self._others.values()]
        for blocks in block_lists:
            if blocks is not None and blocks.hits and is_logged(DEBUG):
                log(DEBUG, f"{blocks.file.url}: {blocks.hits:,} reads from held blocks")
        # threads and connections keep the context in which they were made
        self.url = ""
        self._forget()


def _find_scan() -> ScannedStore | None:
    """Return the scan under way in this context."""
    scan = SCANNED.get()
    return scan if isinstance(scan, ScannedStore) and scan.url else None


@contextmanager
def cache_scan(url: str, options: StorageOptions | None) -> Iterator[None]:
    """Cache the fetched bytes of a remote file or set, in this context, until the block ends."""
    url = url.rstrip("/")
    current = _find_scan()
    if current is not None and current.is_scanned(url, options):
        yield
        return
    scan = ScannedStore(url, options)
    try:
        with scan.hold():
            yield
    finally:
        scan.close()


def describe_file(url: str, options: StorageOptions | None) -> SourceFile:
    """Return a file to which the scanned file refers, with its fingerprint."""
    scan = _find_scan()
    if scan is not None and options == scan.options and url != scan.url:
        return scan.describe_other(url)
    return find_store(url).describe(url, options)


def cache_files(files: Iterable[tuple[str, bytes]]) -> None:
    """Cache files of the opened set, given as urls and bytes from its consolidated metadata.

    Nothing is read from ``files`` if no remote set is opened.
    """
    if (scan := _find_scan()) is not None:
        for url, data in files:
            scan.fetched.put_file(url, scan.options, data)


def are_cached(files: Iterable[SourceFile]) -> bool:
    """Return whether all of these files are cached as a whole."""
    scan = _find_scan()
    cached = scan.fetched.files if scan else {}
    return all((file.url, file.options) in cached for file in files)


def cache_ranges_of(files: Iterable[SourceFile]) -> None:
    """Cache, from now on, the fetched bytes of files to which the opened set refers."""
    if (scan := _find_scan()) is not None:
        scan.answered |= {f.url for f in files if find_store(f.url) is scan.behind}


def keep_scan(source: SourceFile) -> AbstractContextManager[None]:
    """Cache the fetched bytes of a file until the block ends, if no scan is under way."""
    is_held = _find_scan() is not None or scheme_of(source.url) == "file"
    return nullcontext() if is_held else cache_scan(source.url, source.options)


def open_blocks(source: SourceFile) -> Blocks:
    """Return the blocks of a remote file, and fetch its beginning.

    Raise an error if the server does not support ranges.
    """
    scan = _find_scan()
    if scan is not None:
        return scan.get_blocks(source)
    blocks = _make_blocks(find_store(source.url), source)
    blocks.begin()
    return blocks


def open_remote(source: SourceFile) -> BlockFile:
    """Open a remote file for reading and seeking; it raises the errors of `open_blocks`."""
    return BlockFile(open_blocks(source))


def fetch_ahead(ranges: Mapping[SourceFile, Sequence[Range]]) -> None:
    """Fetch ranges of the scanned file that are about to be read, all at once."""
    if (scan := _find_scan()) is None:
        return
    for file, wanted in ranges.items():
        if scan.is_scanned(file.url, file.options) and file.size is not None:
            scan.get_blocks(file).fetch_together(wanted)


def _make_blocks(store: Store, file: SourceFile) -> Blocks:
    """Create empty blocks of a file."""
    if file.size is None:
        raise UnsupportedError(
            f"{file.url}: the server sends no parts of it (it knows no byte ranges, or does not "
            f"say how long the file is); copy it to local disk"
        )
    if not is_in_archive(file):
        return Blocks(store, file)
    # the cached start of an archive contains a single member's start
    return Blocks(store, file, store.read_head(file.url, file.options, FIRST_PAGES * PAGE)[1])


# ---------------------------------------------------------------------- binary files
# Source files as Python's binary files, local or remote.
#
# Fetched bytes of a remote file are cached until the file is scanned, so that headers in many small
# pieces cost few requests.


def open_source(source: SourceFile) -> BinaryIO:
    r"""Open a source file, local or remote, for reading, as `open` in mode ``"rb"`` does.

    Parameters
    ----------
    source : SourceFile
        As passed to a parser.

    Returns
    -------
    binary file
        To be closed, or used in a ``with`` statement.

    Raises
    ------
    OSError
        The file does not exist, is not readable, or has changed since it was described.
    UnsupportedError
        The server does not support ranges.

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
    """Raise a `FormatError` in place of ``complaints``, errors of a library about a damaged file.

    ``what`` is the format, for the message, which also names the file.
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
