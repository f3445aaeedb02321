"""The bytes of chunks as they are stored: fetched, checked, and put elsewhere, never decoded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import COLUMNS, INLINE, Ints
from virtualds.chunks.manifest import ChunkManifest
from virtualds.errors import ReadError
from virtualds.reading.fetch import JoinedRange, join_ranges
from virtualds.reading.threads import HostSlot, Prefetcher, cores, run_all
from virtualds.source_file import SourceFile, find_mismatch
from virtualds.stores import find_store
from virtualds.stores.store import StoreError

BATCH_BYTES, BATCH_CHUNKS = 2**26, 4096
"""Most bytes of near files held in memory at a time, unless one chunk is larger."""

ChunkIndex = tuple[int, ...]
"""Where a chunk lies in the grid of its array."""
Work = Callable[[Ints, Sequence[bytes]], object]
"""Takes the numbers of chunks, in C order, and their bytes."""


class StoredChunks:
    """The chunks of a manifest, in C order.

    Parameters
    ----------
    manifest : ChunkManifest
    name : str
        Name of the array in errors.
    place : tuple of int, optional
        Where its only chunk lies in the grid of the array, for errors.
    """

    def __init__(self, manifest: ChunkManifest, name: str, place: ChunkIndex | None = None) -> None:
        self.manifest = manifest.loaded()
        self.name, self._place = name, place
        self.file, self.offset, self.length, _, self.checksum = (
            getattr(self.manifest, column).ravel() for column in COLUMNS
        )

    def read_distinct(
        self, chosen: npt.NDArray[np.bool_], keep: Callable[[bytes], Hashable]
    ) -> tuple[Ints, list[Any], Ints]:
        """Give the bytes of chosen chunks to ``keep``, each range once.

        Return the numbers of the chunks, what ``keep`` has returned, equal things once, and the
        place in that of each chunk.
        """
        rows = np.flatnonzero(chosen)
        columns = (self.file, self.offset, self.length, self.checksum)
        table = np.stack([column[rows].astype(np.int64) for column in columns], axis=1)
        _, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
        found: dict[int, Hashable] = {}

        def note(batch: Ints, chunks: Sequence[bytes]) -> None:
            for one, data in zip(batch.tolist(), chunks, strict=True):
                found[one] = keep(data)

        self.read(rows[first], note)
        numbers: dict[Hashable, int] = {}
        each = [numbers.setdefault(found[one], len(numbers)) for one in rows[first].tolist()]
        return rows, list(numbers), np.array(each, np.int64)[which.ravel()]

    def read(self, ids: Ints, work: Work) -> None:
        """Call ``work`` with all of some chunks, a batch at a time, in several threads.

        Raises
        ------
        ReadError
            Bytes cannot be read, have changed, or do not match their checksum.
        """

        def slot_of(batch: Ints) -> HostSlot | None:
            number = int(self.file[batch[0]])
            if number < 0:
                return None
            nbytes = sum(run.length for run in self._join(batch))
            return HostSlot.to(self.manifest.files[number].url, nbytes)

        def finish(item: tuple[Ints, Sequence[bytes] | None]) -> None:
            batch, fetched = item
            work(batch, self.fetch(batch) if fetched is None else fetched)

        run_all(Prefetcher(self._split_batches(ids), slot_of, self.fetch), finish)

    def _split_batches(self, ids: Ints) -> Iterator[Ints]:
        """Yield batches of chunks of one file that fit in memory, with what lies between them."""
        ordered = ids[np.lexsort((self.offset[ids], self.file[ids]))]
        most = BATCH_BYTES // cores()
        batch: list[int] = []
        file = nbytes = end = gap = 0
        rows = (column[ordered].tolist() for column in (self.file, self.offset, self.length))
        for one, number, offset, length in zip(ordered.tolist(), *rows, strict=True):
            between = offset - end if 0 < offset - end <= gap else 0
            full = len(batch) == BATCH_CHUNKS or nbytes + between + length > most
            if batch and (full or number != file):
                yield np.array(batch)
                batch, nbytes, between = [], 0, 0
            if number != file or not batch:
                near = number < 0
                gap = 0 if near else find_store(self.manifest.files[number].url).reach.gap
            file, end = number, max(offset + length, 0 if number != file else end)
            batch.append(one)
            nbytes += between + length
        if batch:
            yield np.array(batch)

    def _join(self, batch: Ints) -> list[JoinedRange]:
        """Return the ranges to ask for, of which each holds neighbours of one file."""
        reach = find_store(self.manifest.files[int(self.file[batch[0]])].url).reach
        offsets, lengths = self.offset[batch].tolist(), self.length[batch].tolist()
        return join_ranges(list(zip(offsets, lengths, strict=True)), reach.gap, reach.run)

    def fetch(self, batch: Ints) -> Sequence[bytes]:
        """Return the bytes of chunks of one file, neighbours by one request, or of inline chunks.

        Raises
        ------
        ReadError
            As `read`.
        """
        number = int(self.file[batch[0]])
        offsets, lengths = self.offset[batch].tolist(), self.length[batch].tolist()
        found: list[bytes] = [self.manifest.inline[k] if number == INLINE else b"" for k in offsets]
        if number != INLINE:
            file = self.manifest.files[number]
            runs = self._join(batch)
            try:
                wanted = [(run.offset, run.length) for run in runs]
                fetched = find_store(file.url).get_ranges(file, wanted)
            except StoreError as error:
                if len(batch) == 1:
                    raise self._make_error(int(batch[0]), f"{error}") from error
                # one by one, to find the chunk that fails
                return [data for one in batch for data in self.fetch(np.array([one]))]
            for run, data in zip(runs, fetched, strict=True):
                for member in run.members:
                    begin = offsets[member] - run.offset
                    found[member] = bytes(data[begin : begin + lengths[member]])
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
        place = np.unravel_index(one, self.manifest.shape) if self.manifest.shape else ()
        chunk = tuple(map(int, place)) if self._place is None else self._place
        error.add_note(f"variable {self.name}, chunk {chunk}")
        return error


def replace_chunks(
    manifest: ChunkManifest,
    ids: Ints,
    files: Sequence[SourceFile],
    inline: Sequence[bytes],
    **columns: Any,
) -> ChunkManifest:
    """Return a loaded manifest with other rows for some chunks, whose columns are given.

    ``files`` and ``inline`` are those of all chunks.
    """
    found = {name: np.array(getattr(manifest, name)).ravel() for name in COLUMNS}
    for name, values in columns.items():
        found[name][ids] = values
    shaped = {name: column.reshape(manifest.shape) for name, column in found.items()}
    return ChunkManifest.build(manifest.shape, files=files, inline=inline, **shaped)
