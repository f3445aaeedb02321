"""The cache of decoded chunks: the next selection often needs the rest of a chunk, or all again.

Walking along an axis step by step meets every chunk as often as it has steps: chunks that were
used in part are kept if all of their selection fit. A job that is repeated meets every chunk
whole: these are kept if their whole array fits, since a pass over a larger one would push out
what is there, and each of its own chunks before it is asked for again.

A file without a known time or etag may be replaced, unnoticed, by one of the same size. A user who
opens a file again wants the current one, so chunks of such files are dropped at the next opening.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.codecs.codec import Codec
from virtualds.options import get_options
from virtualds.reading.tasks import Batch, Task
from virtualds.source_file import SourceFile

SMALLEST_CACHED = 16 * 1024
"""Decoded bytes of a chunk below which keeping it costs about as much as decoding it."""


class ChunkKey(NamedTuple):
    """The identity of a decoded chunk, whichever arrays show it."""

    file: SourceFile
    offset: int
    length: int
    dtype: np.dtype[Any]
    codecs: tuple[Codec, ...]
    shape: tuple[int, ...]
    opened: int = 0


def chunk_key_of(batch: Batch, task: Task, opened: int) -> ChunkKey | None:
    """Return the key of a chunk; None if it lies in no file, or is not worth keeping.

    ``opened`` is the value of `ChunkCache.opened` before the read.
    """
    pipeline = batch.pipelines[task.pipeline]
    size = prod(task.encoded) * pipeline.hidden_size
    if not pipeline.codecs or batch.file < 0 or size * pipeline.dtype.itemsize < SMALLEST_CACHED:
        return None
    file, shape = batch.fragment.manifest.files[batch.file], pipeline.stored_shape(task.encoded)
    since = opened if file.mtime is None and file.etag is None else 0
    return ChunkKey(file, task.offset, task.length, pipeline.dtype, pipeline.codecs, shape, since)


def is_used_whole(task: Task) -> bool:
    """Say whether a selection needs all of a chunk."""
    if task.points:
        return False
    return bool(prod(task.encoded) == prod(part.stop - part.start for part in task.outer))


class ChunkCache:
    """The latest used chunks, up to `set_options(chunk_cache=...)` bytes.

    Examples
    --------
    >>> cache = ChunkCache()
    >>> key = ChunkKey(SourceFile("s3://b/a.nc"), 0, 9, np.dtype("i4"), (), (2,))
    >>> cache.put(key, np.arange(2, dtype="i4"))
    >>> cache.get(key)
    array([0, 1], dtype=int32)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: OrderedDict[ChunkKey, npt.NDArray[Any]] = OrderedDict()
        self.nbytes = 0
        self.opened = 0

    def open(self) -> None:
        """Count an opening: from now on a name may stand for another file."""
        with self._lock:
            self.opened += 1

    def get(self, key: ChunkKey) -> npt.NDArray[Any] | None:
        """Return a chunk, which is read-only; None if it is not kept."""
        with self._lock:
            if (found := self._chunks.get(key)) is not None:
                self._chunks.move_to_end(key)
            return found

    def put(self, key: ChunkKey, stored: npt.NDArray[Any]) -> None:
        """Keep a chunk, and drop the least recently used ones."""
        stored.flags.writeable = False
        with self._lock:
            if key not in self._chunks:
                self._chunks[key] = stored
                self.nbytes += stored.nbytes
        self.shrink()

    def shrink(self) -> None:
        """Drop chunks beyond the limit, which the user may have changed."""
        most = get_options().chunk_cache
        with self._lock:
            while self.nbytes > most:
                self.nbytes -= self._chunks.popitem(last=False)[1].nbytes


@cache
def _cache_of(pid: int) -> ChunkCache:
    """Return the cache of a process: a forked child must not wait for a lock of its parent."""
    return ChunkCache()


def chunk_cache() -> ChunkCache:
    """Return the cache of this process."""
    return _cache_of(os.getpid())
