"""Files, and ranges of files, that were fetched while a file or set is opened: held within bounds.

An opening reads a coordinate more than once: its first and last value decide how it is decoded, all
of them make the index. Nothing of it is fetched twice.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort

from virtualds.source_file import SourceFile, StorageOptions

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
