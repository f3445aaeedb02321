"""Reads encoded chunks: fetches their bytes and verifies checksums, without decoding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import COLUMNS, INLINE, MISSING, Ints
from virtualds.chunks.manifest import ChunkManifest
from virtualds.errors import ReadError
from virtualds.options import count_cores
from virtualds.reading.fetch import join_ranges, split_runs
from virtualds.reading.threads import HostSlot, Prefetcher, run_all
from virtualds.source_file import SourceFile, describe_mismatch
from virtualds.stores import find_store
from virtualds.stores.store import StoreError

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
        """Yield batches of chunks of one file, limited by their bytes including gaps."""
        ordered = ids[np.lexsort((self.offset[ids], self.file[ids]))]
        max_bytes = BATCH_BYTES // count_cores()
        batch: list[int] = []
        file = nbytes = 0
        columns = (
            column.tolist()
            for column in (ordered, self.file[ordered], self._count_fetched_bytes(ordered))
        )
        for chunk_id, number, size in zip(*columns, strict=True):
            is_full = len(batch) == BATCH_CHUNKS or nbytes + size > max_bytes
            if batch and (is_full or number != file):
                yield ChunkBatch(np.array(batch), nbytes)
                batch, nbytes = [], 0
            file = number
            batch.append(chunk_id)
            nbytes += size
        if batch:
            yield ChunkBatch(np.array(batch), nbytes)

    def _count_fetched_bytes(self, ordered: Ints) -> Ints:
        """Return the number of bytes to fetch for each chunk, including a small gap before it.

        ``ordered`` are flat ids sorted by file and offset.
        """
        file, offset, length = (c[ordered] for c in (self.file, self.offset, self.length))
        gaps = {
            number: find_store(self.manifest.files[number].url).request_limits.max_gap
            if number >= 0
            else 0
            for number in np.unique(file).tolist()
        }
        between = np.diff(offset, prepend=0) - np.append(0, length[:-1])
        is_joined = (np.diff(file, prepend=MISSING) == 0) & (between > 0)
        is_joined &= between <= np.array([gaps[number] for number in file.tolist()], np.int64)
        sizes: Ints = length + np.where(is_joined, between, 0)
        return sizes

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
        error = ReadError(f"{location}: {reason};  restore the file, or scan it again")
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
