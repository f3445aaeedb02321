"""The bytes of a remote file that a scan needs: fetched in blocks, held within bounds.

Libraries read metadata in many small pieces, most of them near each other. Each piece is fetched
with some bytes behind it: twice as many each time while a library reads on, few where it jumps. So
a file with scattered metadata costs little more than its metadata.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Any, Protocol

from virtualds.source_file import SourceFile
from virtualds.stores.store import Range, Store, StoreError

PAGE = 16 * 1024
"""Bytes that are held or missing together."""

FIRST_PAGES = 16
"""Pages at the beginning of a file that are fetched first; most files have all metadata there."""

LEAST, MOST = 8, 512
"""Pages of a block where a reader jumps, and of the longest block."""

NEAR_PAGES = 2
"""Pages of a gap that is fetched along, instead of with two requests."""

HELD_PAGES = 4096
"""Pages that are held of one file; the least used go first."""


class FetchError(StoreError):
    """A block could not be fetched: the file is not damaged, and all its variables are affected."""


class Blocks:
    """The held bytes of one file, for any number of threads; what cannot be had is a `FetchError`.

    The size of the file is known. ``head`` is its beginning, as far as that is known: whole pages,
    or the whole file.
    """

    def __init__(self, store: Store, file: SourceFile, head: bytes = b"") -> None:
        self.file = file
        self.size = file.size or 0
        self._store = store
        self._pages: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.RLock()
        self._next, self._step = 0, FIRST_PAGES // 2
        self.hits = 0
        """How many ranges were held when they were asked for."""
        self._is_begun = bool(head)
        if head:
            self._next, self._step = -(-len(head) // PAGE), FIRST_PAGES
            self._hold(0, head)

    def get_held(self, offset: int, length: int) -> bytes | None:
        """Return a range that is held, None if a part of it is not."""
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
        """Return a range of the file, and fetch what is not held of it."""
        if length > MOST * PAGE:
            places = range(offset, offset + length, MOST * PAGE)
            stop = offset + length
            return b"".join(self.read(at, min(MOST * PAGE, stop - at)) for at in places)
        with self._lock:
            # the pages that are held count as used, so that fetched ones do not push them out
            if (found := self.get_held(offset, length)) is None:
                self.fetch(offset, length)
                found = self.get_held(offset, length)
        if found is None:
            raise FetchError(f"{length} bytes are more than is held of a file")
        return found

    def begin(self) -> None:
        """Fetch the beginning, unless it has been held before."""
        with self._lock:
            if not self._is_begun:
                self.fetch(0, min(FIRST_PAGES * PAGE, self.size))
            self._is_begun = True

    def fetch(self, offset: int, length: int) -> None:
        """Fetch the missing pages of a range, and following ones."""
        with self._lock:
            if missing := self.find_missing([(offset, length)]):
                self._get([(missing[0], self._find_end_of_block(missing[0], missing[-1] + 1))])

    def fetch_together(self, ranges: Iterable[Range]) -> None:
        """Fetch the missing pages of many ranges at once, with few requests.

        Nothing is fetched where that is more than the longest block.
        """
        with self._lock:
            missing = self.find_missing(ranges)
            if 0 < len(missing) <= MOST:
                self._get(_join_pages(missing))

    def fetch_pages(self, pages: Collection[int], ahead: int) -> int:
        """Fetch pages and some that follow them, about ``ahead`` together; return how many."""
        with self._lock:
            runs = _join_pages(sorted(pages))
            stretch = ahead // len(runs) * PAGE
            more = self.find_missing((stop * PAGE, stretch) for _, stop in runs)
            wanted = {*pages, *more}
            self._get(_join_pages(sorted(wanted)))
            return len(wanted)

    def find_missing(self, ranges: Iterable[Range]) -> list[int]:
        """Return the pages of ranges that are not held, sorted."""
        last = -(-self.size // PAGE)
        bounds = (_find_pages(offset, length) for offset, length in ranges)
        wanted = {n for first, stop in bounds for n in range(first, min(stop, last))}
        return sorted(wanted - self._pages.keys())

    def _find_end_of_block(self, first: int, stop: int) -> int:
        """Return the end of the block to fetch for the pages from ``first`` to ``stop``."""
        self._step = min(2 * self._step, MOST) if first == self._next else LEAST
        last = -(-self.size // PAGE)
        ahead = range(stop, min(first + self._step, last))
        end = next((number for number in ahead if number in self._pages), max(stop, ahead.stop))
        # a short rest of the file comes along
        if last - end < LEAST and not any(n in self._pages for n in range(end, last)):
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
        while len(self._pages) > HELD_PAGES:
            self._pages.popitem(last=False)


class OutsideError(OSError):
    """A seek before the first byte of a file."""


class Pieces(Protocol):
    """Bytes that are read piece by piece, within their size."""

    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Return a range."""


class BlockFile(io.RawIOBase):
    """Pieces, such as the blocks of a remote file, as a seekable file object."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces, self._place = pieces, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._pieces.size}[whence]
        if start + offset < 0:
            # an OSError, as of any file; zipfile expects it where an archive is too short
            raise OutsideError(f"there is no byte {start + offset}")
        self._place = start + offset
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        # a damaged header may ask for more than there is memory
        left = max(self._pieces.size - self._place, 0)
        return super().read(left if size is None or size < 0 else min(size, left)) or b""

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._pieces.size - self._place)
        if length <= 0:
            return 0
        view[:length] = self._pieces.read(self._place, length)
        self._place += length
        return length


def _find_pages(offset: int, length: int) -> tuple[int, int]:
    """Return the first page of a range, and the page after its last."""
    return offset // PAGE, -(-(offset + length) // PAGE) if length else offset // PAGE


def _join_pages(pages: list[int]) -> list[tuple[int, int]]:
    """Join sorted pages that lie near each other."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and page - runs[-1][1] <= NEAR_PAGES:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs
