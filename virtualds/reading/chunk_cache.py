"""Decoded chunks that the process keeps, since the next selection often needs the rest of them.

Walking along an axis step by step meets every chunk as often as it has steps. Chunks that were
wanted whole are not kept: whoever has all of a chunk does not ask again.

A file of which neither a time nor an etag is known may have been replaced by one of the same size,
and nothing would tell. Whoever opens anew wants what is there now, so its chunks are kept no longer
than until something is opened.
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
    """What makes two decoded chunks one, whoever shows them and however."""

    file: SourceFile
    offset: int
    length: int
    dtype: np.dtype[Any]
    codecs: tuple[Codec, ...]
    shape: tuple[int, ...]
    opened: int = 0


def chunk_key_of(batch: Batch, task: Task, opened: int) -> ChunkKey | None:
    """Return what a chunk is kept under; None if it is wanted whole, or not worth it.

    ``opened`` is what `ChunkCache.opened` was before anything was read.
    """
    pipeline = batch.pipelines[task.pipeline]
    size = prod(task.encoded) * pipeline.hidden_size
    if not pipeline.codecs or batch.file < 0 or size * pipeline.dtype.itemsize < SMALLEST_CACHED:
        return None
    if not task.points and size == prod(part.stop - part.start for part in task.outer):
        return None
    file, shape = batch.fragment.manifest.files[batch.file], pipeline.stored_shape(task.encoded)
    since = opened if file.mtime is None and file.etag is None else 0
    return ChunkKey(file, task.offset, task.length, pipeline.dtype, pipeline.codecs, shape, since)


class ChunkCache:
    """The latest used of the chunks that were put in, up to `set_options(chunk_cache=...)` bytes.

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
        """Be told that something is opened: from now on files may be others of the same name."""
        with self._lock:
            self.opened += 1

    def get(self, key: ChunkKey) -> npt.NDArray[Any] | None:
        """Return a chunk, which nobody may change; None if it is not there."""
        with self._lock:
            if (found := self._chunks.get(key)) is not None:
                self._chunks.move_to_end(key)
            return found

    def put(self, key: ChunkKey, stored: npt.NDArray[Any]) -> None:
        """Keep a chunk, and let those go that were not used for longest."""
        stored.flags.writeable = False
        with self._lock:
            if key not in self._chunks:
                self._chunks[key] = stored
                self.nbytes += stored.nbytes
        self.shrink()

    def shrink(self) -> None:
        """Let go of what is more than the option allows, which may have been changed."""
        most = get_options().chunk_cache
        with self._lock:
            while self.nbytes > most:
                self.nbytes -= self._chunks.popitem(last=False)[1].nbytes


@cache
def _cache_of(pid: int) -> ChunkCache:
    """Return the cache of a process: a forked child may not wait for a lock of its parent."""
    return ChunkCache()


def chunk_cache() -> ChunkCache:
    """Return the cache of this process."""
    return _cache_of(os.getpid())
