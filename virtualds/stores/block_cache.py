"""A cache of blocks of a remote file during a scan, and a store of bytes and open files.

Libraries read metadata in many small ranges, most of them near each other. Each is fetched with
some of the following bytes: twice as many each time while a library reads sequentially, few after a
seek.

Bytes and open files have urls of their own. The object itself is in the access options of its
`SourceFile`, so that such a url in a reference set cannot access anything by itself.
"""

from __future__ import annotations

import io
import secrets
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from virtualds.errors import UnsupportedError
from virtualds.source_file import OBJECT_SCHEME, SourceFile, StorageOptions
from virtualds.stores.store import ListedFile, Range, RequestLimits, Store, StoreError

OBJECT_OPTION = "held"
"""Name of the access option that contains the object."""

REMEDY = (
    "write the bytes to a file and open that, point the references at a copy with "
    "ds.virtual.rename_paths, or load the values (ds.virtual.load())"
)


class MemoryBytes:
    """A copy of bytes in memory, with a url that ends in ``name``."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "bytes") -> None:
        self._data = bytes(data)
        self.url, self.size = _make_url(name), len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryBytes) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __dask_tokenize__(self) -> str:
        return self.url


class MemoryFile:
    """An open binary file object, which is read by one thread at a time and not closed."""

    def __init__(self, file: Any) -> None:
        self._file, self._lock = file, threading.Lock()
        self.url = _make_url(type(file).__name__)
        position = file.tell()
        self.size = int(file.seek(0, io.SEEK_END))
        file.seek(position)

    def read(self, offset: int, length: int) -> bytes:
        """Return a range, which is shorter if the file ends."""
        with self._lock:
            try:
                self._file.seek(offset)
                parts = []
                # a raw file may return fewer bytes than requested
                while length > 0 and (part := self._file.read(length)):
                    parts.append(bytes(part))
                    length -= len(part)
            except ValueError as error:
                raise StoreError(
                    f"the open file cannot be read any more ({error}); keep it open as long as "
                    f"the dataset is used, or open the file by its path"
                ) from error
        return b"".join(parts)

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"{self.url}: an open file cannot be sent to another process; open it by its path "
            f"or url, or give its bytes"
        )

    def __dask_tokenize__(self) -> str:
        return self.url


HeldObject = MemoryBytes | MemoryFile
"""An object in memory with a url: bytes, or an open file."""


def _make_url(name: str) -> str:
    return f"{OBJECT_SCHEME}://{secrets.token_hex(6)}/{name}"


def make_options(held: HeldObject) -> StorageOptions:
    """Return the access options that open the url of an object."""
    return StorageOptions({OBJECT_OPTION: held})


class InProcessStore(Store):
    """Reads bytes and open files in memory, which are passed in the access options."""

    read_only_message = "virtualds does not write into objects; give a path or url"

    request_limits = RequestLimits(max_gap=0, max_bytes=2**23, max_requests=0)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        try:
            held = _find_object(file.url, file.options)
        except FileNotFoundError as error:
            raise StoreError(str(error)) from error
        parts = []
        for item, (offset, length) in enumerate(ranges):
            data = held.read(offset, length)
            if len(data) != length:
                raise StoreError(f"it has {held.size} bytes, not {offset + length}", item)
            parts.append(data)
        return parts

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        return SourceFile(url, _find_object(url, options).size, None, None, options)

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        return self.describe(url, options), _find_object(url, options).read(0, length)

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        # an object is not a folder
        return []


def _find_object(url: str, options: Mapping[str, Any] | None) -> HeldObject:
    """Return the object of a url from its access options."""
    held: HeldObject | None = (options or {}).get(OBJECT_OPTION)
    if held is None or held.url != url:
        raise FileNotFoundError(
            f"{url}: this url names an object in memory of the process that opened it, and leads "
            f"nowhere else; {REMEDY}"
        )
    return held


def check_permanent(files: Iterable[SourceFile], target: str) -> None:
    """Raise an error if a file exists only in the memory of this process."""
    for file in files:
        if OBJECT_SCHEME in file.url and file.url.rpartition("::")[2].startswith(
            f"{OBJECT_SCHEME}://"
        ):
            raise UnsupportedError(
                f"{target}: it would refer to {file.url}, bytes that exist only in the memory of "
                f"this process, so nobody could read the set later; {REMEDY}"
            )


# ---------------------------------------------------------------------- block cache

PAGE_SIZE = 16 * 1024
"""Size in bytes of a page, the unit of caching."""

FIRST_PAGES = 16
"""Number of pages to fetch first, at the start of a file, where most files have all metadata."""

MIN_PAGES, MAX_PAGES = 8, 512
"""Number of pages in a block after a seek, and in the largest block."""

NEAR_PAGES = 2
"""Maximum number of pages between two ranges that are fetched in one request."""

CACHED_PAGES = 4096
"""Maximum number of cached pages per file, in an LRU cache."""


class FetchError(StoreError):
    """Raised if a block cannot be fetched, so that the whole file counts as unreadable."""


class Blocks:
    """A thread-safe cache of the pages of one file, whose size is known.

    Raises `FetchError` for a range that cannot be fetched. ``head`` is the start of the file, if
    known: whole pages, or the whole file.
    """

    def __init__(self, store: Store, file: SourceFile, head: bytes = b"") -> None:
        self.file = file
        self.size = file.size or 0
        self._store = store
        self._pages: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.RLock()
        self._next, self._step = 0, FIRST_PAGES // 2
        self.hits = 0
        """Number of ranges returned from the cache, including those that `read` fetched into it."""
        self._has_first_pages = bool(head)
        if head:
            self._next, self._step = -(-len(head) // PAGE_SIZE), FIRST_PAGES
            self._store_pages(0, head)

    def get_cached(self, offset: int, length: int) -> bytes | None:
        """Return the bytes of a range, or None if part of it is not cached."""
        first, stop = _find_pages(offset, length)
        with self._lock:
            cached = [number for number in range(first, stop) if number in self._pages]
            parts = [self._pages[number] for number in cached]
            for number in cached:
                self._pages.move_to_end(number)
        if len(parts) < stop - first:
            return None
        self.hits += 1
        begin = offset - first * PAGE_SIZE
        return b"".join(parts)[begin : begin + length]

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of a range, fetching pages that are not cached."""
        if length > MAX_PAGES * PAGE_SIZE:
            offsets = range(offset, offset + length, MAX_PAGES * PAGE_SIZE)
            stop = offset + length
            return b"".join(self.read(n, min(MAX_PAGES * PAGE_SIZE, stop - n)) for n in offsets)
        with self._lock:
            # get_cached marks cached pages as used, so that the fetched pages do not evict them
            if (data := self.get_cached(offset, length)) is None:
                self.fetch(offset, length)
                data = self.get_cached(offset, length)
        if data is None:
            raise FetchError(f"{length} bytes do not fit into the cache of a file")
        return data

    def fetch_first_pages(self) -> None:
        """Fetch the first pages of the file, unless they have been fetched."""
        with self._lock:
            if not self._has_first_pages:
                self.fetch(0, min(FIRST_PAGES * PAGE_SIZE, self.size))
            self._has_first_pages = True

    def fetch(self, offset: int, length: int) -> None:
        """Fetch the missing pages of a range, and some pages after it."""
        with self._lock:
            if missing := self.find_missing_pages([(offset, length)]):
                self._fetch_runs(
                    [(missing[0], self._find_end_of_block(missing[0], missing[-1] + 1))]
                )

    def fetch_together(self, ranges: Iterable[Range]) -> None:
        """Fetch the missing pages of many ranges together.

        Does nothing if there are more of them than the largest block has.
        """
        with self._lock:
            missing = self.find_missing_pages(ranges)
            if 0 < len(missing) <= MAX_PAGES:
                self._fetch_runs(_join_pages(missing))

    def fetch_pages(self, pages: Collection[int], ahead: int) -> int:
        """Fetch pages and about ``ahead`` pages after them; return the number of fetched pages."""
        with self._lock:
            runs = _join_pages(sorted(pages))
            length = ahead // len(runs) * PAGE_SIZE
            more = self.find_missing_pages((stop * PAGE_SIZE, length) for _, stop in runs)
            all_pages = {*pages, *more}
            self._fetch_runs(_join_pages(sorted(all_pages)))
            return len(all_pages)

    def find_missing_pages(self, ranges: Iterable[Range]) -> list[int]:
        """Return the numbers of the pages of ranges that are not cached, sorted."""
        last = -(-self.size // PAGE_SIZE)
        bounds = (_find_pages(offset, length) for offset, length in ranges)
        pages = {n for first, stop in bounds for n in range(first, min(stop, last))}
        return sorted(pages - self._pages.keys())

    def _find_end_of_block(self, first: int, stop: int) -> int:
        """Return the stop page of the block to fetch for the pages ``first`` to ``stop``."""
        self._step = min(2 * self._step, MAX_PAGES) if first == self._next else MIN_PAGES
        last = -(-self.size // PAGE_SIZE)
        ahead = range(stop, min(first + self._step, last))
        end = next((number for number in ahead if number in self._pages), max(stop, ahead.stop))
        # a short remainder of the file is fetched as well
        if last - end < MIN_PAGES and not any(n in self._pages for n in range(end, last)):
            end = last
        self._next = end
        return end

    def _fetch_runs(self, runs: list[tuple[int, int]]) -> None:
        ranges = [(a * PAGE_SIZE, min(b * PAGE_SIZE, self.size) - a * PAGE_SIZE) for a, b in runs]
        try:
            fetched = self._store.get_ranges(self.file, ranges)
        except StoreError as error:
            offset, length = ranges[min(error.item, len(ranges) - 1)]
            raise FetchError(f"bytes {offset} to {offset + length}: {error}") from error
        for (first, _), data in zip(runs, fetched, strict=True):
            self._store_pages(first, data)

    def _store_pages(self, first: int, data: bytes) -> None:
        with memoryview(data) as view:
            for number, begin in enumerate(range(0, len(data), PAGE_SIZE), first):
                self._pages[number] = bytes(view[begin : begin + PAGE_SIZE])
        while len(self._pages) > CACHED_PAGES:
            self._pages.popitem(last=False)


class SeekError(OSError):
    """Raised for a seek before the first byte of a file."""


class RangeReader(Protocol):
    """An object with a known size from which byte ranges can be read."""

    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of a range."""


class BlockFile(io.RawIOBase):
    """A seekable file object that reads from a `RangeReader`, such as `Blocks`."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader, self._position = reader, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size}[
            whence
        ]
        if start + offset < 0:
            # an OSError as from other file objects, which zipfile expects for a short archive
            raise SeekError(f"there is no byte {start + offset}")
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        # a damaged header may request more bytes than fit in memory
        remaining = max(self._reader.size - self._position, 0)
        return super().read(remaining if size is None or size < 0 else min(size, remaining)) or b""

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._reader.size - self._position)
        if length <= 0:
            return 0
        view[:length] = self._reader.read(self._position, length)
        self._position += length
        return length


def _find_pages(offset: int, length: int) -> tuple[int, int]:
    """Return the first and the stop page of a range."""
    return offset // PAGE_SIZE, -(
        -(offset + length) // PAGE_SIZE
    ) if length else offset // PAGE_SIZE


def _join_pages(pages: list[int]) -> list[tuple[int, int]]:
    """Join sorted pages that are near each other into ranges (start, stop)."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and page - runs[-1][1] <= NEAR_PAGES:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs
