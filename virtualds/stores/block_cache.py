"""Caches the parts of remote files that a scan needs, and serves files in memory.

Libraries read metadata in many small pieces, most of them near each other. Each piece is fetched
with some of the following bytes: twice as many each time while a library reads on, few if it jumps.
So a file with scattered metadata costs little more than its metadata.

Bytes and open files of this process have urls of their own. The access options of such a file
contain the object, which lives as long as references to it. A reference set with such a url, which
anybody may have written, cannot access anything.
"""

from __future__ import annotations

import io
import secrets
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from virtualds.errors import UnsupportedError
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.store import ListedFile, Range, RequestLimits, Store, StoreError
from virtualds.urls import HELD

OBJECT = "held"
"""The access option that contains the object of a file."""

REMEDY = (
    "write the bytes to a file and open that, point the references at a copy with "
    "ds.virtual.rename_paths, or load the values (ds.virtual.load())"
)


class MemoryBytes:
    """A copy of bytes in memory; ``what`` describes it at the end of the url."""

    def __init__(self, data: bytes | bytearray | memoryview, what: str = "bytes") -> None:
        self._data = bytes(data)
        self.name, self.size = _make_url(what), len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryBytes) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __dask_tokenize__(self) -> str:
        return self.name


class MemoryFile:
    """An open binary file of Python, read by one thread at a time, and never closed here."""

    def __init__(self, file: Any) -> None:
        self._file, self._lock = file, threading.Lock()
        self.name = _make_url(type(file).__name__)
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
            f"{self.name}: an open file cannot be sent to another process; open it by its path "
            f"or url, or give its bytes"
        )

    def __dask_tokenize__(self) -> str:
        return self.name


HeldObject = MemoryBytes | MemoryFile
"""An object of this process that has a url: bytes, or an open file."""


def _make_url(what: str) -> str:
    return f"{HELD}://{secrets.token_hex(6)}/{what}"


def make_options(held: HeldObject) -> StorageOptions:
    """Return the access options with which the url of an object is opened."""
    return StorageOptions({OBJECT: held})


class HeldObjectStore(Store):
    """Serves bytes and open files of this process, which are passed in the access options."""

    refusal = "virtualds does not write into objects; give a path or url"

    reach = RequestLimits(gap=0, run=2**23, at_once=0)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        try:
            held = _find_object(file.url, file.options)
        except FileNotFoundError as error:
            raise StoreError(str(error)) from error
        found = []
        for item, (offset, length) in enumerate(ranges):
            data = held.read(offset, length)
            if len(data) != length:
                raise StoreError(f"it has {held.size} bytes, not {offset + length}", item)
            found.append(data)
        return found

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
    """Return the object of a url, which is in its access options."""
    held: HeldObject | None = (options or {}).get(OBJECT)
    if held is None or held.name != url:
        raise FileNotFoundError(
            f"{url}: this url means an object of the process that opened it, and leads nowhere "
            f"else; {REMEDY}"
        )
    return held


def check_permanent(files: Iterable[SourceFile], target: str) -> None:
    """Raise an error for references to bytes that only exist in this process."""
    for file in files:
        if HELD in file.url and file.url.rpartition("::")[2].startswith(f"{HELD}://"):
            raise UnsupportedError(
                f"{target}: it would refer to {file.url}, bytes that exist only in the memory of "
                f"this process, so nobody could read the set later; {REMEDY}"
            )


# ---------------------------------------------------------------------- block cache

PAGE = 16 * 1024
"""The size in bytes of a page, which is cached or missing as a whole."""

FIRST_PAGES = 16
"""The number of pages at the beginning of a file that are fetched first: most files have all
metadata there."""

MIN_PAGES, MAX_PAGES = 8, 512
"""The number of pages of a block after a jump, and of the longest block."""

NEAR_PAGES = 2
"""The number of pages of a gap that is fetched, too, to save a second request."""

CACHED_PAGES = 4096
"""The number of pages of one file that are cached; the least recently used are dropped first."""


class FetchError(StoreError):
    """A block could not be fetched, so no variable of the file can be read."""


class Blocks:
    """The cached bytes of one file, shared by all threads.

    A range that cannot be fetched raises `FetchError`. The size of the file is known. ``head`` is
    its beginning, as far as that is known: whole pages, or the whole file.
    """

    def __init__(self, store: Store, file: SourceFile, head: bytes = b"") -> None:
        self.file = file
        self.size = file.size or 0
        self._store = store
        self._pages: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.RLock()
        self._next, self._step = 0, FIRST_PAGES // 2
        self.hits = 0
        """Number of ranges that were already cached when they were requested."""
        self._is_begun = bool(head)
        if head:
            self._next, self._step = -(-len(head) // PAGE), FIRST_PAGES
            self._hold(0, head)

    def get_cached(self, offset: int, length: int) -> bytes | None:
        """Return a cached range, or None if a part of it is not cached."""
        first, stop = _find_pages(offset, length)
        with self._lock:
            there = [number for number in range(first, stop) if number in self._pages]
            parts = [self._pages[number] for number in there]
            for number in there:
                self._pages.move_to_end(number)
        if len(parts) < stop - first:
            return None
        self.hits += 1
        begin = offset - first * PAGE
        return b"".join(parts)[begin : begin + length]

    def read(self, offset: int, length: int) -> bytes:
        """Return a range of the file, after fetching the pages that are not cached."""
        if length > MAX_PAGES * PAGE:
            offsets = range(offset, offset + length, MAX_PAGES * PAGE)
            stop = offset + length
            return b"".join(self.read(at, min(MAX_PAGES * PAGE, stop - at)) for at in offsets)
        with self._lock:
            # the cached pages count as used, so that fetched ones do not evict them
            if (found := self.get_cached(offset, length)) is None:
                self.fetch(offset, length)
                found = self.get_cached(offset, length)
        if found is None:
            raise FetchError(f"{length} bytes are more than is held of a file")
        return found

    def begin(self) -> None:
        """Fetch the beginning of the file unless it is cached."""
        with self._lock:
            if not self._is_begun:
                self.fetch(0, min(FIRST_PAGES * PAGE, self.size))
            self._is_begun = True

    def fetch(self, offset: int, length: int) -> None:
        """Fetch the missing pages of a range, and some pages after it."""
        with self._lock:
            if missing := self.find_missing([(offset, length)]):
                self._get([(missing[0], self._find_end_of_block(missing[0], missing[-1] + 1))])

    def fetch_together(self, ranges: Iterable[Range]) -> None:
        """Fetch the missing pages of many ranges at once, with few requests.

        Nothing is fetched if that is more than the longest block.
        """
        with self._lock:
            missing = self.find_missing(ranges)
            if 0 < len(missing) <= MAX_PAGES:
                self._get(_join_pages(missing))

    def fetch_pages(self, pages: Collection[int], ahead: int) -> int:
        """Fetch pages and about ``ahead`` pages after them; return the number of fetched pages."""
        with self._lock:
            runs = _join_pages(sorted(pages))
            length = ahead // len(runs) * PAGE
            more = self.find_missing((stop * PAGE, length) for _, stop in runs)
            wanted = {*pages, *more}
            self._get(_join_pages(sorted(wanted)))
            return len(wanted)

    def find_missing(self, ranges: Iterable[Range]) -> list[int]:
        """Return the pages of ranges that are not cached, sorted."""
        last = -(-self.size // PAGE)
        bounds = (_find_pages(offset, length) for offset, length in ranges)
        wanted = {n for first, stop in bounds for n in range(first, min(stop, last))}
        return sorted(wanted - self._pages.keys())

    def _find_end_of_block(self, first: int, stop: int) -> int:
        """Return the end of the block to fetch for the pages from ``first`` to ``stop``."""
        self._step = min(2 * self._step, MAX_PAGES) if first == self._next else MIN_PAGES
        last = -(-self.size // PAGE)
        ahead = range(stop, min(first + self._step, last))
        end = next((number for number in ahead if number in self._pages), max(stop, ahead.stop))
        # a short rest of the file is fetched too
        if last - end < MIN_PAGES and not any(n in self._pages for n in range(end, last)):
            end = last
        self._next = end
        return end

    def _get(self, runs: list[tuple[int, int]]) -> None:
        ranges = [(a * PAGE, min(b * PAGE, self.size) - a * PAGE) for a, b in runs]
        try:
            found = self._store.get_ranges(self.file, ranges)
        except StoreError as error:
            offset, length = ranges[min(error.item, len(ranges) - 1)]
            raise FetchError(f"bytes {offset} to {offset + length}: {error}") from error
        for (first, _), data in zip(runs, found, strict=True):
            self._hold(first, data)

    def _hold(self, first: int, data: bytes) -> None:
        with memoryview(data) as view:
            for number, begin in enumerate(range(0, len(data), PAGE), first):
                self._pages[number] = bytes(view[begin : begin + PAGE])
        while len(self._pages) > CACHED_PAGES:
            self._pages.popitem(last=False)


class OutsideError(OSError):
    """A seek before the first byte of a file."""


class RangeReader(Protocol):
    """Reads ranges of bytes within a known size."""

    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Return a range."""


class BlockFile(io.RawIOBase):
    """A seekable file object that reads from a `RangeReader`, such as `Blocks`."""

    def __init__(self, pieces: RangeReader) -> None:
        self._pieces, self._position = pieces, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._pieces.size}[
            whence
        ]
        if start + offset < 0:
            # an OSError, as for any file; zipfile expects it if an archive is too short
            raise OutsideError(f"there is no byte {start + offset}")
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        # a damaged header may request more than the memory
        left = max(self._pieces.size - self._position, 0)
        return super().read(left if size is None or size < 0 else min(size, left)) or b""

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._pieces.size - self._position)
        if length <= 0:
            return 0
        view[:length] = self._pieces.read(self._position, length)
        self._position += length
        return length


def _find_pages(offset: int, length: int) -> tuple[int, int]:
    """Return the first page of a range, and the page after its last page."""
    return offset // PAGE, -(-(offset + length) // PAGE) if length else offset // PAGE


def _join_pages(pages: list[int]) -> list[tuple[int, int]]:
    """Join sorted pages that are close to each other."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and page - runs[-1][1] <= NEAR_PAGES:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs
