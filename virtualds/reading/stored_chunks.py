"""Reads chunks as they are stored: fetches and checks their bytes, without decoding them."""

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
from virtualds.source_file import SourceFile, find_mismatch
from virtualds.stores import find_store
from virtualds.stores.store import StoreError

BATCH_BYTES, BATCH_CHUNKS = 2**26, 4096
"""The maximum size in bytes of local files in memory at a time, unless a chunk is larger."""

ChunkIndex = tuple[int, ...]
"""The position of a chunk in the grid of its array."""
Work = Callable[[Ints, Sequence[bytes]], object]
"""A function that takes the flat indexes of chunks and their bytes."""


class ChunkBatch(NamedTuple):
    """Indexes of chunks that are fetched together, and the maximum number of their bytes."""

    ids: Ints
    nbytes: int


class StoredChunks:
    """The chunks of a manifest, in C order.

    Errors name the array, ``name``, and its chunk, ``chunk_id``, if it has only one.
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
        self, chosen: npt.NDArray[np.bool_], make: Callable[[bytes], Hashable]
    ) -> tuple[Ints, list[Any], Ints]:
        """Call ``make`` with the bytes of chosen chunks, once per distinct range.

        Return the indexes of the chunks, the distinct results of ``make``, and the index of each
        chunk's result.
        """
        rows = np.flatnonzero(chosen)
        columns = (self.file, self.offset, self.length, self.checksum)
        table = np.stack([column[rows].astype(np.int64) for column in columns], axis=1)
        _, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
        found: dict[int, Hashable] = {}

        def note(batch: Ints, chunks: Sequence[bytes]) -> None:
            for one, data in zip(batch.tolist(), chunks, strict=True):
                found[one] = make(data)

        self.read(rows[first], note)
        numbers: dict[Hashable, int] = {}
        each = [numbers.setdefault(found[one], len(numbers)) for one in rows[first].tolist()]
        return rows, list(numbers), np.array(each, np.int64)[which.ravel()]

    def read(self, ids: Ints, work: Work) -> None:
        """Call ``work`` with the chunks at ``ids``, a batch at a time, in several threads."""

        def slot_of(batch: ChunkBatch) -> HostSlot | None:
            number = int(self.file[batch.ids[0]])
            if number < 0:
                return None
            return HostSlot.to(self.manifest.files[number].url, batch.nbytes)

        def finish(item: tuple[ChunkBatch, Sequence[bytes] | None]) -> None:
            batch, fetched = item
            work(batch.ids, self.fetch(batch.ids) if fetched is None else fetched)

        batches = self._split_batches(ids)
        run_all(Prefetcher(batches, slot_of, lambda batch: self.fetch(batch.ids)), finish)

    def _split_batches(self, ids: Ints) -> Iterator[ChunkBatch]:
        """Yield batches of chunks of one file that fit in memory with the gaps between them."""
        ordered = ids[np.lexsort((self.offset[ids], self.file[ids]))]
        most = BATCH_BYTES // count_cores()
        batch: list[int] = []
        file = nbytes = 0
        rows = (column.tolist() for column in (ordered, self.file[ordered], self._measure(ordered)))
        for one, number, size in zip(*rows, strict=True):
            full = len(batch) == BATCH_CHUNKS or nbytes + size > most
            if batch and (full or number != file):
                yield ChunkBatch(np.array(batch), nbytes)
                batch, nbytes = [], 0
            file = number
            batch.append(one)
            nbytes += size
        if batch:
            yield ChunkBatch(np.array(batch), nbytes)

    def _measure(self, ordered: Ints) -> Ints:
        """Return the number of bytes to fetch for each chunk, including the gap before it.

        Chunks are in the order of their files, and of their offsets.
        """
        file, offset, length = (c[ordered] for c in (self.file, self.offset, self.length))
        gaps = {
            number: find_store(self.manifest.files[number].url).reach.gap if number >= 0 else 0
            for number in np.unique(file).tolist()
        }
        between = np.diff(offset, prepend=0) - np.append(0, length[:-1])
        is_joined = (np.diff(file, prepend=MISSING) == 0) & (between > 0)
        is_joined &= between <= np.array([gaps[number] for number in file.tolist()], np.int64)
        found: Ints = length + np.where(is_joined, between, 0)
        return found

    def fetch(self, batch: Ints) -> Sequence[bytes]:
        """Return the bytes of chunks of one file, or of inline chunks; join requests."""
        number = int(self.file[batch[0]])
        offsets, lengths = self.offset[batch].tolist(), self.length[batch].tolist()
        if number == INLINE:
            found: list[bytes] = [self.manifest.inline[k] for k in offsets]
        else:
            file = self.manifest.files[number]
            store = find_store(file.url)
            ranges = list(zip(offsets, lengths, strict=True))
            runs = join_ranges(ranges, store.reach.gap, store.reach.run)
            try:
                fetched = store.get_ranges(file, [(run.offset, run.length) for run in runs])
            except StoreError as error:
                if len(batch) == 1:
                    raise self._make_error(int(batch[0]), f"{error}") from error
                # one by one, to find the chunk that fails
                return [data for one in batch for data in self.fetch(np.array([one]))]
            found = list(map(bytes, split_runs(ranges, runs, fetched)))
        for one, data, expected in zip(batch, found, self.checksum[batch].tolist(), strict=True):
            if reason := find_mismatch(data, expected):
                raise self._make_error(int(one), reason)
        return found

    def _make_error(self, one: int, reason: str) -> ReadError:
        where = "bytes held inline"
        if self.file[one] >= 0:
            url, begin = self.manifest.files[int(self.file[one])].url, self.offset[one]
            where = f"{url}, bytes {begin} to {begin + self.length[one]}"
        error = ReadError(f"{where}: {reason}; restore the file, or scan it again")
        index = np.unravel_index(one, self.manifest.shape) if self.manifest.shape else ()
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
    """Return a loaded manifest in which the chunks ``ids`` have other rows, given as columns.

    ``files`` and ``inline`` are the tables for all chunks.
    """
    found = {name: np.array(getattr(manifest, name)).ravel() for name in COLUMNS}
    for name, values in columns.items():
        found[name][ids] = values
    shaped = {name: column.reshape(manifest.shape) for name, column in found.items()}
    return ChunkManifest.build(manifest.shape, files=files, inline=inline, **shaped)
