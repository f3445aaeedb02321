"""Read selections: plan them, fetch the chunks of each batch, and decode them into the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import COLUMNS, INLINE, MISSING, Ints
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import RecordCache
from virtualds.codecs.codec import Codec, CodecError
from virtualds.codecs.numcodecs import Numcodecs
from virtualds.errors import ReadError, UnsupportedError
from virtualds.options import count_cores, get_options
from virtualds.progress import DEBUG, is_logged, log
from virtualds.reading.plan import (
    Readable,
    Selection,
    find_chunk_at,
    plan_only_chunk,
    plan_points,
    plan_selection,
)
from virtualds.reading.tasks import (
    Batch,
    Decoder,
    Decoders,
    Task,
    Tile,
    TileError,
    fill_missing,
    get_scratch,
    write_chunk,
    write_rows,
    write_stored,
    write_tile,
)
from virtualds.reading.threads import HostSlot, Prefetcher, run_all
from virtualds.source_file import SourceFile, describe_mismatch
from virtualds.stores import find_store
from virtualds.stores.local import LocalStore, count_row_bytes
from virtualds.stores.store import Range, Store, StoreError
from virtualds.streams import Buffer, Bytes

# ---------------------------------------------------------------------- joined ranges


class JoinedRange(NamedTuple):
    """A byte range that contains others; ``members`` are their indexes, sorted by offset."""

    offset: int
    length: int
    members: list[int]


def join_ranges(ranges: Sequence[Range], max_gap: int, max_bytes: int) -> list[JoinedRange]:
    """Join nearby byte ranges of one file into longer ones, sorted by offset.

    Ranges may be in any order, and overlap. Two are joined if there are at most ``max_gap`` bytes
    between them. The result has at most ``max_bytes`` bytes, unless a single range is longer.

    Examples
    --------
    >>> join_ranges([(0, 10), (100, 10), (12, 8)], max_gap=4, max_bytes=1000)
    [JoinedRange(offset=0, length=20, members=[0, 2]),
     JoinedRange(offset=100, length=10, members=[1])]
    """
    runs: list[JoinedRange] = []
    begin = end = 0
    members: list[int] = []
    for offset, length, number in sorted((o, n, i) for i, (o, n) in enumerate(ranges)):
        if members and (offset - end > max_gap or offset + length - begin > max_bytes):
            runs.append(JoinedRange(begin, end - begin, members))
            members = []
        if not members:
            begin = end = offset
        end = max(end, offset + length)
        members.append(number)
    if members:
        runs.append(JoinedRange(begin, end - begin, members))
    return runs


def split_runs(
    ranges: Sequence[Range], runs: Sequence[JoinedRange], fetched: Sequence[Buffer]
) -> list[Buffer]:
    """Return the bytes of each range, as views of the bytes of the joined ranges."""
    views: list[Buffer] = [b""] * len(ranges)
    for run, data in zip(runs, fetched, strict=True):
        view = memoryview(data)
        for member in run.members:
            offset, length = ranges[member]
            views[member] = view[offset - run.offset : offset - run.offset + length]
    return views


# ---------------------------------------------------------------------- local files
# Local files are read into existing memory: scratch memory of the thread, or the result itself.


Array = npt.NDArray[Any]

MIN_DIRECT_BYTES = 2**16
"""Minimum size in bytes of a chunk that is read directly into the result."""

MIN_DIRECT_ROW_BYTES = 2**10
"""Minimum contiguous bytes of the result for which a direct read is as fast as a copy by numpy."""


def fetch_ranges(store: Store, file: SourceFile, ranges: Sequence[Range]) -> Sequence[Buffer]:
    """Return the bytes of ranges; those of local files are valid until this thread's next call."""
    if not isinstance(store, LocalStore):
        return store.get_ranges(file, ranges)
    lengths = [length for _, length in ranges]
    try:
        scratch = get_scratch(sum(lengths), "run").data
    except MemoryError as error:
        raise StoreError(f"there is no memory for {sum(lengths)} bytes") from error
    buffers = [scratch[e - n : e] for n, e in zip(lengths, accumulate(lengths), strict=True)]
    store.read_into(file, ranges, buffers)
    return buffers


def find_direct_target(decoders: Decoders, task: Task, out: Array) -> Array | None:
    """Return the view of the result into which a chunk can be read directly, or None.

    None for chunks that are encoded, packed or small, that fill short rows of the result, or that
    must be checked because of a checksum or an unexpected length.
    """
    if task.checksum or task.length < MIN_DIRECT_BYTES:
        return None
    decoder = decoders.get(task)
    if not decoder.is_plain or decoder.pipeline.packing is not None:
        return None
    target = decoder.find_target(task, out)
    if target is None or target.nbytes != task.length:
        return None
    return target if count_row_bytes(target) >= MIN_DIRECT_ROW_BYTES else None


# ---------------------------------------------------------------------- cache of decoded chunks
# The next selection often needs another part of a chunk, or the same chunk again.
#
# A loop along an axis selects from each chunk several times, so chunks that were used in part are
# cached, if all chunks of the selection take at most half of the cache. Chunks that were used whole
# are cached if their whole array fits, since a pass over a larger array would evict each chunk
# before it is used again.
#
# A file without a known modification time or etag may be replaced unnoticed. A user who opens a
# file again expects its current content, so cached chunks of such files are valid only until the
# next opening.


MIN_CACHED_BYTES = 16 * 1024
"""Minimum decoded size in bytes of a cached chunk; smaller ones are decoded quickly enough."""

MAX_CACHED_RATIO = 32
"""Maximum decoded size of a chunk that is cached after it was used whole, as a multiple of its
encoded size, if it is in a local file and compressed by zstd, LZ4 or Blosc.

These codecs decode chunks of higher ratios at 5 GB/s or more. New memory is filled at 1 to 8 GB/s,
so that a copy in the cache would save little time.
"""


class ChunkKey(NamedTuple):
    """The identity of a decoded chunk: its bytes, and how they are decoded."""

    file: SourceFile
    offset: int
    length: int
    dtype: np.dtype[Any]
    codecs: tuple[Codec, ...]
    shape: tuple[int, ...]
    opening: int = 0


def make_chunk_key(batch: Batch, task: Task, opening: int) -> ChunkKey | None:
    """Return the cache key of a chunk, or None if it is in no file, or not worth caching.

    ``opening`` is the value of `ChunkCache.openings` before the read.
    """
    pipeline = batch.pipelines[task.pipeline]
    size = prod(task.encoded) * pipeline.hidden_size
    if not pipeline.codecs or batch.file < 0 or size * pipeline.dtype.itemsize < MIN_CACHED_BYTES:
        return None
    file, shape = batch.fragment.manifest.files[batch.file], pipeline.stored_shape(task.encoded)
    opening = opening if file.mtime is None and file.etag is None else 0
    return ChunkKey(file, task.offset, task.length, pipeline.dtype, pipeline.codecs, shape, opening)


def needs_whole_chunk(task: Task) -> bool:
    """Return whether a selection needs all elements of a chunk."""
    if task.point_axes:
        return False
    return bool(prod(task.encoded) == prod(part.stop - part.start for part in task.outer))


def decodes_like_a_copy(batch: Batch, task: Task, decoder: Decoder) -> bool:
    """Return whether a chunk is read and decoded about as quickly as it is copied."""
    is_highly_compressed = decoder.nbytes > MAX_CACHED_RATIO * task.length
    if not (is_highly_compressed and isinstance(batch.store, LocalStore)):
        return False
    codecs = decoder.pipeline.codecs
    return all(isinstance(codec, Numcodecs) and codec.fills_output for codec in codecs)


class ChunkCache(RecordCache[Array]):
    """An LRU cache of decoded chunks, up to `set_options(chunk_cache=...)` bytes.

    Examples
    --------
    >>> cache = ChunkCache()
    >>> key = ChunkKey(SourceFile("s3://b/a.nc"), 0, 9, np.dtype("i4"), (), (2,))
    >>> cache.put(key, np.arange(2, dtype="i4"))
    >>> cache.find(key)
    array([0, 1], dtype=int32)
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.openings = 0

    def get_max_weight(self) -> int:
        """Return the maximum size in bytes, which the user may change."""
        return get_options().chunk_cache

    def weigh(self, record: Array) -> int:
        """Return the size in bytes of a chunk."""
        return record.nbytes

    def count_opening(self) -> None:
        """Count the opening of a file, after which a url may refer to another file."""
        with self._lock:
            self.openings += 1

    def put(self, name: Hashable, record: Array) -> None:
        """Add a chunk, which becomes read-only, and evict the least recently used chunks."""
        record.flags.writeable = False
        super().put(name, record)


@cache
def _get_cache(pid: int) -> ChunkCache:
    """Return the cache of a process; a forked child gets its own, with its own lock."""
    return ChunkCache()


def get_chunk_cache() -> ChunkCache:
    """Return the chunk cache of this process."""
    return _get_cache(os.getpid())


# ---------------------------------------------------------------------- batches


PREFETCH_BATCHES = 16
"""Number of batches for which the operating system is asked to prefetch files at a time."""

CHUNK_DESCRIPTIONS = {INLINE: "bytes held inline", MISSING: "the fill value of a missing chunk"}
"""Descriptions in error messages of chunks that are in no file."""


class DecodedTasks(NamedTuple):
    """Tasks whose decoded chunks were in the cache."""

    batch: Batch
    chunks: list[Array]


Work = Batch | Tile | DecodedTasks


def execute(source: Readable, selection: Selection, out: Array) -> None:
    """Read a planned selection into ``out``.

    Raises `ReadError`, which names variable, file, bytes and chunk, if bytes are missing, have
    changed, or cannot be decoded.
    """
    if not selection.is_covered:
        out[...] = source.fill_value
    limit = get_options().chunk_cache
    # a larger selection, or a pass over a larger array, would evict all its chunks
    itemsize = max((p.dtype.itemsize for p in source.pipelines), default=0)
    caches_parts = 2 * selection.nbytes <= limit
    caches_whole = prod(source.shape) * itemsize <= limit
    reader = _SelectionReader(source, out, caches_parts, caches_whole, get_chunk_cache().openings)
    work = _iterate_with_prefetch(reader.separate_cached(selection.batches))
    run_all(Prefetcher(work, _find_host_slot, reader.fetch), reader.decode)


def execute_batch(source: Readable, batch: Batch, out: Array) -> None:
    """Read one batch of local chunks that are needed whole, in this thread, without the cache."""
    reader = _SelectionReader(source, out, caches_parts=False, caches_whole=False, opening=0)
    reader.decode((batch, None))


def _iterate_with_prefetch(items: Iterator[Work]) -> Iterator[Work]:
    """Yield work in groups; before each group, ask the stores to prefetch the next one."""
    group = list(islice(items, PREFETCH_BATCHES))
    # the first batch is read immediately, so prefetching it would gain nothing
    _prefetch(group[1:])
    while group:
        following = list(islice(items, PREFETCH_BATCHES))
        _prefetch(following)
        yield from group
        group = following


def _prefetch(items: Iterable[Work]) -> None:
    ranges: dict[tuple[SourceFile, Store], list[Range]] = {}
    for work in items:
        if not isinstance(work, DecodedTasks) and work.store is not None:
            ranges.setdefault((_get_file(work), work.store), []).extend(_list_ranges(work))
    for (file, store), file_ranges in ranges.items():
        store.prefetch(file, file_ranges)


def _find_host_slot(work: Work) -> HostSlot | None:
    if isinstance(work, DecodedTasks) or work.store is None:
        return None
    if not work.store.request_limits.max_requests:
        return None
    return HostSlot.from_url(_get_file(work).url, sum(length for _, length in _list_ranges(work)))


def _list_ranges(work: Batch | Tile) -> list[Range]:
    """Return the ranges to request from a store, before nearby ones are joined."""
    if isinstance(work, Tile) and (requests := work.plan_ranges(work.store.request_limits)):
        return [requested for requested, _ in requests]
    return work.ranges


@dataclass(frozen=True)
class _SelectionReader:
    """Reads one selection into ``out``.

    ``caches_parts`` is whether chunks of which the selection uses a part are cached, and
    ``caches_whole`` whether chunks that it uses as a whole are. ``opening`` is the value of
    `ChunkCache.openings` before the read.
    """

    source: Readable
    out: Array
    caches_parts: bool
    caches_whole: bool
    opening: int

    # ------------------------------------------------------------------ fetching

    def fetch(self, work: Work) -> Callable[[], None]:
        """Fetch the bytes of all chunks; return a function that decodes them into the result."""
        if isinstance(work, DecodedTasks):
            return partial(self._write_decoded, work)
        if isinstance(work, Batch):
            return partial(
                self._decode_batch, work, Decoders(work.pipelines), self._read_chunks(work)
            )
        decoder = Decoder(work.pipelines[work.pipeline], work.encoded)
        if (rows := self._read_rows(work, decoder)) is not None:
            return partial(write_rows, decoder, rows, work, self.out)
        return partial(self._decode_tile, work, decoder, self._read_chunks(work))

    def _read_chunks(self, work: Batch | Tile) -> list[Buffer]:
        """Return the encoded bytes of each chunk, in order."""
        ranges = work.ranges
        if work.file == MISSING:
            return [b""] * len(ranges)
        if work.store is None:
            return [work.fragment.manifest.inline[number] for number, _ in ranges]
        limits = work.store.request_limits
        runs = join_ranges(ranges, limits.max_gap, limits.max_bytes)
        return split_runs(ranges, runs, self._read_runs(work, work.store, runs))

    def _read_rows(self, tile: Tile, decoder: Decoder) -> Bytes | None:
        """Return the concatenated chunks of an evenly spaced tile, or None for any other tile."""
        requests = tile.plan_ranges(tile.store.request_limits)
        if not requests or int(tile.length[0]) != decoder.nbytes:
            return None
        # after a failure, chunks are fetched one by one, so that the error names the right chunk
        with suppress(StoreError):
            fetched = fetch_ranges(
                tile.store, _get_file(tile), [requested for requested, _ in requests]
            )
            return tile.extract_rows(fetched, requests)
        return None

    def _read_runs(
        self, work: Batch | Tile, store: Store, runs: list[JoinedRange]
    ) -> Sequence[Buffer]:
        file = _get_file(work)
        try:
            return fetch_ranges(store, file, [(run.offset, run.length) for run in runs])
        except StoreError as error:
            failed = runs[error.item].members
            number, reason = failed[0], error
            for member in failed if len(failed) > 1 else ():
                # retry chunk by chunk, so that the error names the chunk that fails
                try:
                    fetch_ranges(store, file, [work.ranges[member]])
                except StoreError as chunk_error:
                    number, reason = member, chunk_error
                    break
            raise make_chunk_read_error(self.source, work, number, reason) from reason.__cause__

    # ------------------------------------------------------------------ decoding

    def decode(self, item: tuple[Work, Callable[[], None] | None]) -> None:
        """Decode chunks into the result; fetch them first if necessary."""
        work, decode_fetched = item
        if decode_fetched is not None:
            decode_fetched()
        elif not isinstance(work, Batch):
            self.fetch(work)()
        else:
            decoders = Decoders(work.pipelines)
            if isinstance(work.store, LocalStore):
                work = self._read_in_place(work, work.store, decoders)
            if work.tasks:
                self._decode_batch(work, decoders, self._read_chunks(work))

    def _write_decoded(self, work: DecodedTasks) -> None:
        decoders = Decoders(work.batch.pipelines)
        for task, stored in zip(work.batch.tasks, work.chunks, strict=True):
            write_stored(decoders.get(task), stored, task, self.out)

    def _read_in_place(self, batch: Batch, store: LocalStore, decoders: Decoders) -> Batch:
        """Read suitable chunks directly into the result, and return a batch of the other chunks."""
        targets = {
            number: target
            for number, task in enumerate(batch.tasks)
            if (target := find_direct_target(decoders, task, self.out)) is not None
        }
        if not targets:
            return batch
        direct = _select_tasks(batch, list(targets))
        try:
            store.read_into(_get_file(batch), direct.ranges, list(targets.values()))
        except StoreError as error:
            raise make_chunk_read_error(self.source, direct, error.item, error) from error.__cause__
        return _select_tasks(batch, [n for n in range(len(batch.tasks)) if n not in targets])

    def _decode_tile(self, tile: Tile, decoder: Decoder, data: Sequence[Buffer]) -> None:
        for number, (encoded, expected) in enumerate(zip(data, tile.checksums, strict=True)):
            self._verify(tile, number, encoded, expected)
        try:
            if decoder.is_plain and all(len(chunk) == decoder.nbytes for chunk in data):
                write_rows(decoder, b"".join(data), tile, self.out)
            else:
                write_tile(decoder, data, tile, self.out)
        except TileError as error:
            raise make_chunk_read_error(
                self.source, tile, error.item, f"the bytes do not decode: {error}"
            ) from error

    def _decode_batch(self, batch: Batch, decoders: Decoders, chunks: Sequence[Buffer]) -> None:
        for number, (task, encoded) in enumerate(zip(batch.tasks, chunks, strict=True)):
            decoder = decoders.get(task)
            if batch.file != MISSING:
                self._verify(batch, number, encoded, task.checksum)
            try:
                self._write(batch, task, decoder, encoded)
            except CodecError as error:
                reason = f"the bytes do not decode: {error}"
                raise make_chunk_read_error(self.source, batch, number, reason) from error

    def _verify(self, work: Batch | Tile, number: int, encoded: Buffer, expected: int) -> None:
        """Raise an error if the bytes of a chunk do not match their checksum."""
        if expected and (reason := describe_mismatch(encoded, expected)):
            raise make_chunk_read_error(self.source, work, number, reason)

    def _write(self, batch: Batch, task: Task, decoder: Decoder, encoded: Buffer) -> None:
        if batch.file == MISSING:
            fill_missing(decoder.pipeline, task, self.out)
            return
        if needs_whole_chunk(task):
            is_cached = self.caches_whole and not decodes_like_a_copy(batch, task, decoder)
        else:
            is_cached = self.caches_parts
        if is_cached and (key := make_chunk_key(batch, task, self.opening)) is not None:
            stored = decoder.decode(encoded, copy=True)
            get_chunk_cache().put(key, stored)
            write_stored(decoder, stored, task, self.out)
        else:
            write_chunk(decoder, encoded, task, self.out)

    # ------------------------------------------------------------------ cached chunks

    def separate_cached(self, batches: Iterable[Batch | Tile]) -> Iterator[Work]:
        """Yield batches without the tasks of cached chunks, and those tasks as `DecodedTasks`."""
        cache = get_chunk_cache()
        cache.shrink()
        is_empty = not cache.weight
        for batch in batches:
            if not isinstance(batch, Batch) or is_empty:
                yield batch
                continue
            keys = (make_chunk_key(batch, task, self.opening) for task in batch.tasks)
            chunks = [cache.find(key) if key else None for key in keys]
            cached = [number for number, chunk in enumerate(chunks) if chunk is not None]
            if cached and is_logged(DEBUG):
                url = batch.fragment.manifest.files[batch.file].url
                log(DEBUG, f"{url}: {len(cached)} of {len(chunks)} chunks from the chunk cache")
            if not cached:
                yield batch
                continue
            if batch.store is not None:
                # this makes no request
                try:
                    batch.store.check_unchanged(_get_file(batch))
                except StoreError as error:
                    raise make_chunk_read_error(self.source, batch, 0, error) from error.__cause__
            yield DecodedTasks(_select_tasks(batch, cached), [c for c in chunks if c is not None])
            if uncached := [number for number, chunk in enumerate(chunks) if chunk is None]:
                yield _select_tasks(batch, uncached)


def _get_file(work: Batch | Tile) -> SourceFile:
    return work.fragment.manifest.files[work.file]


def _select_tasks(batch: Batch, numbers: Sequence[int]) -> Batch:
    return batch._replace(tasks=[batch.tasks[number] for number in numbers])


CHANGED_FILE_REMEDY = (
    "restore the file, take its new state into the set (virtualds.sync), or if it has moved, call "
    "virtualds.rename_paths"
)
"""Remedy in errors of chunks that cannot be read, if the store has no better one."""


def make_chunk_read_error(
    source: Readable, work: Batch | Tile, number: int, cause: str | StoreError
) -> ReadError:
    """Return an error that names variable, file, bytes and chunk."""
    failure = cause if isinstance(cause, StoreError) else StoreError(cause)
    url = CHUNK_DESCRIPTIONS[work.file] if work.file < 0 else _get_file(work).url
    offset, length = work.ranges[number]
    separator = ":" if work.file < 0 else " of"
    variable = f"variable {source.name!r}{separator} " if source.name else ""
    error = ReadError(
        f"{variable}{url}, bytes {offset} to {offset + length}: {failure.reason}; "
        f"{failure.remedy or CHANGED_FILE_REMEDY}"
    )
    # a piece of an uncompressed chunk has another offset than the chunk
    chunk_ids = (find_chunk_at(f, work.fragment, work.file, offset) for f in source.fragments)
    error.add_note(f"chunk {next((chunk for chunk in chunk_ids if chunk is not None), ())}")
    return error


# ---------------------------------------------------------------------- selections


def read(source: Readable, key: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Read an orthogonal selection.

    Raises `IndexError` if a position is outside the array; `ReadError` if bytes cannot be read,
    have changed, or cannot be decoded; and `UnsupportedError` if the array cannot be read, or numpy
    cannot allocate the result.

    Parameters
    ----------
    source : Readable
        The array.
    key : tuple of int, slice, or 1-D integer or boolean array; one per axis
        Orthogonal (outer) index; an int removes its axis.

    Returns
    -------
    numpy.ndarray
        The values, in `source.dtype`.
    """
    if (batch := plan_only_chunk(source, key)) is not None:
        out = np.empty(source.shape, source.dtype)
        execute_batch(source, batch, out)
        return _check_valid_text(source, out)
    return _read_selection(source, plan_selection(source, key))


def read_points(source: Readable, key: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Read a pointwise selection: integer arrays of one shape, and slices along the other axes.

    The axes of the points come first in the result, then those of the slices. Errors are those of
    `read`.
    """
    return _read_selection(source, plan_points(source, key))


def _read_selection(source: Readable, selection: Selection) -> npt.NDArray[Any]:
    out = _allocate(source, selection.shape)
    execute(source, selection, out)
    return selection.arrange(_check_valid_text(source, out))


def _allocate(source: Readable, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    try:
        return np.empty(shape, source.dtype)
    except ValueError as error:
        raise UnsupportedError(
            f"{source.name}: numpy cannot hold an array of shape {shape} ({error}); select a part"
        ) from error


def _check_valid_text(source: Readable, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Raise an error if strings contain invalid code points; return the values."""
    if out.dtype.kind == "U" and out.size and out.itemsize:
        code_points = np.ascontiguousarray(out).reshape(-1).view(out.dtype.byteorder + "u4")
        if (largest := int(code_points.max())) > sys.maxunicode:
            raise ReadError(
                f"{source.name}: its text contains {largest:#x}, which is not a Unicode "
                f"code point; the file is damaged, fetch it again"
            )
    return out


# ---------------------------------------------------------------------- encoded chunks
# Chunks whose bytes are fetched and verified, without decoding.


BATCH_BYTES, BATCH_CHUNKS = 2**26, 4096
"""Maximum bytes of all chunks in memory (unless one is larger), and maximum chunks of a batch."""

ChunkIndex = tuple[int, ...]
"""The index of a chunk along each axis of the chunk grid."""
ProcessBatch = Callable[[Ints, Sequence[bytes]], object]
"""A callback that takes the flat ids of chunks and their encoded bytes."""


class ChunkBatch(NamedTuple):
    """Flat ids of chunks that are fetched together, and the number of bytes to fetch."""

    ids: Ints
    nbytes: int


class StoredChunks:
    """The encoded chunks of a manifest, in C order.

    Error messages contain the ``name`` of the array and, for a manifest of one chunk of a larger
    array, its ``chunk_id``.
    """

    def __init__(
        self, manifest: ChunkManifest, name: str, chunk_id: ChunkIndex | None = None
    ) -> None:
        self.manifest = manifest.loaded()
        self.name, self._chunk_id = name, chunk_id
        self.file, self.offset, self.length, _, self.checksum = (
            getattr(self.manifest, column).ravel() for column in COLUMNS
        )

    def read_distinct(
        self, mask: npt.NDArray[np.bool_], convert: Callable[[bytes], Hashable]
    ) -> tuple[Ints, list[Any], Ints]:
        """Call ``convert`` with the bytes of the chunks in a mask, once per distinct byte range.

        Return the flat ids of these chunks, the distinct results, and the index of the result of
        each chunk.
        """
        chunk_ids = np.flatnonzero(mask)
        columns = (self.file, self.offset, self.length, self.checksum)
        table = np.stack([column[chunk_ids].astype(np.int64) for column in columns], axis=1)
        _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
        results: dict[int, Hashable] = {}

        def store_results(batch: Ints, chunks: Sequence[bytes]) -> None:
            for chunk_id, data in zip(batch.tolist(), chunks, strict=True):
                results[chunk_id] = convert(data)

        self.read(chunk_ids[first], store_results)
        index_of: dict[Hashable, int] = {}
        indexes = [
            index_of.setdefault(results[chunk_id], len(index_of))
            for chunk_id in chunk_ids[first].tolist()
        ]
        return chunk_ids, list(index_of), np.array(indexes, np.int64)[inverse.ravel()]

    def read(self, ids: Ints, process: ProcessBatch) -> None:
        """Call ``process`` for batches of the chunks ``ids``, in several threads."""

        def get_slot(batch: ChunkBatch) -> HostSlot | None:
            number = int(self.file[batch.ids[0]])
            if number < 0:
                return None
            return HostSlot.from_url(self.manifest.files[number].url, batch.nbytes)

        def finish(item: tuple[ChunkBatch, Sequence[bytes] | None]) -> None:
            batch, fetched = item
            process(batch.ids, self.fetch(batch.ids) if fetched is None else fetched)

        batches = self._split_batches(ids)
        run_all(Prefetcher(batches, get_slot, lambda batch: self.fetch(batch.ids)), finish)

    def _split_batches(self, ids: Ints) -> Iterator[ChunkBatch]:
        """Yield batches of chunks of one file, limited by their bytes including small gaps."""
        ordered = ids[np.lexsort((self.offset[ids], self.file[ids]))]
        max_bytes = BATCH_BYTES // count_cores()
        max_gaps = {
            number: find_store(self.manifest.files[number].url).request_limits.max_gap
            for number in np.unique(self.file[ids]).tolist()
            if number >= 0
        }
        batch: list[int] = []
        file, nbytes, end = MISSING, 0, 0
        columns = (c[ordered].tolist() for c in (self.file, self.offset, self.length))
        for chunk_id, number, offset, length in zip(ordered.tolist(), *columns, strict=True):
            gap = offset - end if number == file else 0
            is_fetched = 0 < gap <= max_gaps.get(number, 0)
            size = length + gap if is_fetched else length
            is_full = len(batch) == BATCH_CHUNKS or nbytes + size > max_bytes
            if batch and (is_full or number != file):
                yield ChunkBatch(np.array(batch), nbytes)
                batch, nbytes = [], 0
            file, end = number, offset + length
            batch.append(chunk_id)
            nbytes += size
        if batch:
            yield ChunkBatch(np.array(batch), nbytes)

    def fetch(self, batch: Ints) -> Sequence[bytes]:
        """Return the bytes of chunks that are all in one file, or all inline."""
        number = int(self.file[batch[0]])
        offsets, lengths = self.offset[batch].tolist(), self.length[batch].tolist()
        if number == INLINE:
            chunks: list[bytes] = [self.manifest.inline[k] for k in offsets]
        else:
            file = self.manifest.files[number]
            store = find_store(file.url)
            ranges = list(zip(offsets, lengths, strict=True))
            runs = join_ranges(ranges, store.request_limits.max_gap, store.request_limits.max_bytes)
            try:
                fetched = store.get_ranges(file, [(run.offset, run.length) for run in runs])
            except StoreError as error:
                if len(batch) == 1:
                    raise self._make_error(int(batch[0]), f"{error}") from error
                # fetch one by one, so that the error names the chunk that fails
                return [data for flat_id in batch for data in self.fetch(np.array([flat_id]))]
            chunks = list(map(bytes, split_runs(ranges, runs, fetched)))
        for flat_id, data, expected in zip(
            batch, chunks, self.checksum[batch].tolist(), strict=True
        ):
            if reason := describe_mismatch(data, expected):
                raise self._make_error(int(flat_id), reason)
        return chunks

    def _make_error(self, chunk_id: int, reason: str) -> ReadError:
        location = "bytes held inline"
        if self.file[chunk_id] >= 0:
            url, begin = self.manifest.files[int(self.file[chunk_id])].url, self.offset[chunk_id]
            location = f"{url}, bytes {begin} to {begin + self.length[chunk_id]}"
        error = ReadError(f"{location}: {reason}; restore the file, or scan it again")
        index = np.unravel_index(chunk_id, self.manifest.shape) if self.manifest.shape else ()
        chunk = tuple(map(int, index)) if self._chunk_id is None else self._chunk_id
        error.add_note(f"variable {self.name}, chunk {chunk}")
        return error


def replace_chunks(
    manifest: ChunkManifest,
    ids: Ints,
    files: Sequence[SourceFile],
    inline: Sequence[bytes],
    **columns: Any,
) -> ChunkManifest:
    """Return a manifest with other references for the chunks ``ids``, given as columns.

    ``manifest`` must be loaded; ``files`` and ``inline`` are the tables for all chunks.
    """
    new_columns = {name: np.array(getattr(manifest, name)).ravel() for name in COLUMNS}
    for name, values in columns.items():
        new_columns[name][ids] = values
    shaped = {name: column.reshape(manifest.shape) for name, column in new_columns.items()}
    return ChunkManifest.build(manifest.shape, files=files, inline=inline, **shaped)
