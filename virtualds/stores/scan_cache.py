"""A cache of the bytes of a remote file or set during its scan.

The cache is set in the context of the thread that scans, which the threads that read for it copy
(`docs/explanation/decisions/0029-a-scan-belongs-to-its-context.md`).
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
from virtualds.source_file import SourceFile, StorageOptions, local_path, scheme_of
from virtualds.stores import CURRENT_SCAN, find_store, is_in_archive
from virtualds.stores.block_cache import FIRST_PAGES, PAGE_SIZE, BlockFile, Blocks, FetchError
from virtualds.stores.store import Range, Store, StoreError

# ---------------------------------------------------------------------- fetched bytes
# Opening a file reads coordinates more than once: the first and the last value to decide how to
# decode them, and all values for the index.


MAX_CACHED_BYTES = 2**26
"""Maximum number of bytes that are cached during a scan."""


class FetchCache:
    """A thread-safe cache of fetched files and ranges.

    Examples
    --------
    >>> fetched = FetchCache()
    >>> fetched.put_range(SourceFile("s3://bucket/a.nc"), 100, b"abcdef")
    >>> fetched.find_range(SourceFile("s3://bucket/a.nc"), 102, 3)
    b'cde'
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, StorageOptions | None], bytes] = {}
        """Whole files, by url and access options."""
        self._ranges: dict[SourceFile, tuple[list[int], list[bytes]]] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    def put_file(self, url: str, options: StorageOptions | None, data: bytes) -> None:
        with self._lock:
            if (url, options) not in self.files and self._reserve(data):
                self.files[url, options] = data

    def put_range(self, file: SourceFile, offset: int, data: bytes) -> None:
        """Cache the bytes at an offset of a file with a fingerprint."""
        with self._lock:
            offsets, cached = self._ranges.setdefault(file, ([], []))
            index = bisect_left(offsets, offset)
            if offsets[index : index + 1] != [offset] and self._reserve(data):
                offsets.insert(index, offset)
                cached.insert(index, data)

    def find_range(self, file: SourceFile, offset: int, length: int) -> bytes | None:
        """Return the bytes of a range of a file with a fingerprint, or None if not cached."""
        data = self.files.get((file.url, file.options))
        # whole files are cached without their fingerprint
        if data is not None and file.etag is None and file.size in (None, len(data)):
            return _slice(data, offset, length)
        with self._lock:
            offsets, cached = self._ranges.get(file, ((), ()))
            before = bisect_right(offsets, offset) - 1
            return None if before < 0 else _slice(cached[before], offset - offsets[before], length)

    def _reserve(self, data: bytes) -> bool:
        """Count bytes against the limit, and return whether they are within it."""
        self._nbytes += len(data)
        return self._nbytes <= MAX_CACHED_BYTES


def _slice(data: bytes, offset: int, length: int) -> bytes | None:
    return data[offset : offset + length] if offset + length <= len(data) else None


# ---------------------------------------------------------------------- scans


MAX_OTHER_FILES = 64
"""Maximum number of referenced files whose blocks are cached."""


class ScannedStore:
    """The store of a file or set that is being scanned, with a thread-safe cache of fetched bytes.

    It also caches the bytes of files in the folder of a set, and of files to which it refers.
    """

    def __init__(self, url: str, options: StorageOptions | None) -> None:
        self.url, self.options = url, options
        self.store = find_store(url)
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._file: SourceFile | None = None
        self._main: Blocks | None = None
        self._others: OrderedDict[SourceFile, Blocks] = OrderedDict()
        self._described_files: dict[str, SourceFile] = {}
        self.cached_urls: set[str] = set()
        self.fetched = FetchCache()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    # ------------------------------------------------------------------ methods of stores

    def serves(self, url: str) -> bool:
        """Return whether this store serves a url."""
        if not self.url:
            return False
        return url == self.url or url.startswith(f"{self.url}/") or url in self.cached_urls

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return a file with its fingerprint and its first bytes.

        For the scanned file, all cached first bytes are returned, regardless of ``length``.
        """
        if not self.is_scanned(url, options):
            return self.store.read_head(url, options, length)
        if (cached := self._find_head()) is not None:
            return cached
        self._file, head = self.store.read_head(url, options, FIRST_PAGES * PAGE_SIZE)
        if self._file.size is not None:
            self._main = Blocks(self.store, self._file, head)
        return self._file, head

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return a file with its fingerprint; the scanned file is requested only once."""
        if self.is_scanned(url, options):
            return self._file or self.read_head(url, options, FIRST_PAGES * PAGE_SIZE)[0]
        return self.store.describe(url, options)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of ranges, which are fetched unless they are cached."""
        is_scanned = self.is_scanned(file.url, file.options)
        # use local variables, since another thread may end the scan
        main, fetched = self._main, self.fetched
        if is_scanned:
            parts = [main and main.get_cached(*range_) for range_ in ranges]
        else:
            parts = [fetched.find_range(file, *range_) for range_ in ranges]
        missing = [number for number, data in enumerate(parts) if data is None]
        try:
            missing_ranges = [ranges[number] for number in missing]
            fetched_parts = self.store.get_ranges(file, missing_ranges) if missing else ()
        except StoreError as error:
            error.item = missing[error.item]
            raise
        for number, data in zip(missing, fetched_parts, strict=True):
            parts[number] = data
            if not is_scanned:
                fetched.put_range(file, ranges[number][0], data)
        return cast("list[bytes]", parts)

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole file, fetching it if it is not cached."""
        if (cached := self.fetched.files.get((url, options))) is not None:
            return cached
        if (
            self.is_scanned(url, options)
            and (cached_head := self._find_head())
            and cached_head[0].size
        ):
            file, head = cached_head
            if remaining := (file.size or 0) - len(head):
                head += self.store.get_ranges(file, [(len(head), remaining)])[0]
            return head
        data = self.store.read_all(url, options)
        self.fetched.put_file(url, options, data)
        return data

    def _find_head(self) -> tuple[SourceFile, bytes] | None:
        """Return the scanned file and its first bytes, or None if these are not cached."""
        file, main = self._file, self._main
        if file is None or main is None:
            return None
        head = main.get_cached(0, min(FIRST_PAGES * PAGE_SIZE, main.size))
        return None if head is None else (file, head)

    def is_scanned(self, url: str, options: StorageOptions | None) -> bool:
        """Return whether a file is the scanned file."""
        return (url, options) == (self.url, self.options)

    # ------------------------------------------------------------------ cached bytes

    def get_blocks(self, file: SourceFile) -> Blocks:
        """Return the blocks of the scanned file, or of a file to which it refers."""
        with self._lock:
            if self.is_scanned(file.url, file.options):
                blocks = self._main = self._main or _make_blocks(self.store, file)
            else:
                blocks = self._others.get(file) or _make_blocks(find_store(file.url), file)
                self._others[file] = blocks
                self._others.move_to_end(file)
                if len(self._others) > MAX_OTHER_FILES:
                    self._others.popitem(last=False)
        # outside the lock, so that threads that need other files do not wait
        blocks.fetch_first_pages()
        return blocks

    def describe_other(self, url: str) -> SourceFile:
        """Return a file to which the scanned file refers, with its fingerprint, requested once."""
        if url not in self._described_files:
            self._described_files[url] = find_store(url).describe(url, self.options)
        return self._described_files[url]

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make this store serve its urls in the current context, until the end of the block."""
        token = CURRENT_SCAN.set(self)
        try:
            yield
        finally:
            CURRENT_SCAN.reset(token)

    def close(self) -> None:
        """Clear the cache, and stop serving urls."""
        with self._lock:
            block_lists = [self._main, *self._others.values()]
        for blocks in block_lists:
            if blocks is not None and blocks.hits and is_logged(DEBUG):
                log(DEBUG, f"{blocks.file.url}: {blocks.hits:,} reads from held blocks")
        # threads and connections may still have a copy of the context
        self.url = ""
        self._clear()


def _get_scan() -> ScannedStore | None:
    """Return the scan of the current context, or None."""
    scan = CURRENT_SCAN.get()
    return scan if isinstance(scan, ScannedStore) and scan.url else None


@contextmanager
def cache_scan(url: str, options: StorageOptions | None) -> Iterator[None]:
    """Cache the fetched bytes of a remote file or set within the block, in the current context."""
    url = url.rstrip("/")
    current = _get_scan()
    if current is not None and current.is_scanned(url, options):
        yield
        return
    scan = ScannedStore(url, options)
    try:
        with scan.activate():
            yield
    finally:
        scan.close()


def describe_file(url: str, options: StorageOptions | None) -> SourceFile:
    """Return a file to which the scanned file refers, with its fingerprint."""
    scan = _get_scan()
    if scan is not None and options == scan.options and url != scan.url:
        return scan.describe_other(url)
    return find_store(url).describe(url, options)


def cache_files(files: Iterable[tuple[str, bytes]]) -> None:
    """Cache files of the scanned set, given as urls and bytes from its consolidated metadata.

    ``files`` is not iterated if no remote set is being scanned.
    """
    if (scan := _get_scan()) is not None:
        for url, data in files:
            scan.fetched.put_file(url, scan.options, data)


def are_cached(files: Iterable[SourceFile]) -> bool:
    """Return whether all files are cached whole."""
    scan = _get_scan()
    cached = scan.fetched.files if scan else {}
    return all((file.url, file.options) in cached for file in files)


def cache_ranges(files: Iterable[SourceFile]) -> None:
    """Cache the bytes of files to which the scanned set refers, when they are fetched."""
    if (scan := _get_scan()) is not None:
        scan.cached_urls |= {f.url for f in files if find_store(f.url) is scan.store}


def ensure_scan(source: SourceFile) -> AbstractContextManager[None]:
    """Return a context manager that caches the bytes of a remote file, unless a scan is active."""
    has_cache = _get_scan() is not None or scheme_of(source.url) == "file"
    return nullcontext() if has_cache else cache_scan(source.url, source.options)


def open_blocks(source: SourceFile) -> Blocks:
    """Return the cached blocks of a remote file, after fetching its first pages.

    Raises `UnsupportedError` if the server does not support ranges.
    """
    scan = _get_scan()
    if scan is not None:
        return scan.get_blocks(source)
    blocks = _make_blocks(find_store(source.url), source)
    blocks.fetch_first_pages()
    return blocks


def open_remote(source: SourceFile) -> BlockFile:
    """Open a remote file as a seekable file object; errors are those of `open_blocks`."""
    return BlockFile(open_blocks(source))


def prefetch_ranges(ranges: Mapping[SourceFile, Sequence[Range]]) -> None:
    """Prefetch ranges of the scanned file together."""
    if (scan := _get_scan()) is None:
        return
    for file, file_ranges in ranges.items():
        if scan.is_scanned(file.url, file.options) and file.size is not None:
            scan.get_blocks(file).fetch_together(file_ranges)


def _make_blocks(store: Store, file: SourceFile) -> Blocks:
    """Create the block cache of a file."""
    if file.size is None:
        raise UnsupportedError(
            f"{file.url}: the server sends no parts of it (it does not support byte ranges, or "
            f"does not say how long the file is); copy it to local disk"
        )
    if not is_in_archive(file):
        return Blocks(store, file)
    # the start of a member is often cached with the archive
    return Blocks(store, file, store.read_head(file.url, file.options, FIRST_PAGES * PAGE_SIZE)[1])


# ---------------------------------------------------------------------- binary files
# Source files as binary file objects. Bytes of a remote file are cached during its scan, so that
# reading headers in many small ranges takes few requests.


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
    return cast("BinaryIO", io.BufferedReader(open_remote(source), PAGE_SIZE))


@contextmanager
def describe_damage(
    source: SourceFile, kind: str, errors: tuple[type[Exception], ...]
) -> Iterator[None]:
    """Convert errors of a library for a damaged file to `FormatError`.

    ``errors`` are the classes of the library's errors, and ``kind`` is the format in the message.
    """
    try:
        yield
    except VirtualdsError as error:
        error.locate_file(source.url)
        raise
    except (FetchError, FileNotFoundError, PermissionError):
        raise
    except errors as error:
        raise FormatError(
            f"{source.url}: it is not a sound {kind} file ({type(error).__name__}: {error}); the "
            f"file is damaged or truncated, fetch it again"
        ) from error
