"""Fetching: the bytes of every batch are had from its store, decoded and placed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.checksum import mismatch
from virtualds.codecs import Buffer, CodecError
from virtualds.errors import ReadError
from virtualds.manifest import INLINE, MISSING, SourceFile
from virtualds.options import get_options
from virtualds.read.ahead import Ahead, Way
from virtualds.read.cache import chunk_cache, key_of
from virtualds.read.decode import (
    Decoder,
    TileError,
    place,
    place_missing,
    place_rows,
    place_stored,
    place_tile,
)
from virtualds.read.load import chunk_read
from virtualds.read.near import bytes_of, is_worth_a_call, local_store
from virtualds.read.plan import Readable, Selection
from virtualds.read.pool import run_all
from virtualds.read.ranges import Run, join_ranges, portions
from virtualds.read.tasks import Batch, Task, reach_of
from virtualds.read.tiles import Tile
from virtualds.store import Range, Reach, StoreError
from virtualds.stores import store_for

Array = npt.NDArray[Any]


class Rows(NamedTuple):
    """The bytes of all chunks of a tile, one behind the other."""

    tile: Tile
    bytes: Array


Data = Sequence[Buffer]

ANNOUNCED = 16
"""Batches that a disk is told of at once, while it is asked for as many."""
PORTION = 2**20
"""Bytes of a near file that are in memory at a time, to be decoded while a cache holds them."""


class Kept(NamedTuple):
    """Tasks whose chunks are in memory, decoded."""

    batch: Batch
    chunks: list[Array]


Work = Batch | Tile | Kept


def execute(source: Readable, selection: Selection, out: Array) -> None:
    """Carry out a planned selection into ``out``.

    Raises
    ------
    ReadError
        Bytes cannot be had, have changed, or do not decode; it names file, bytes, chunk and
        variable.
    """
    if not selection.covered:
        out[...] = source.fill_value
    # what does not fit would push out itself, and everything else
    keeps = 2 * selection.nbytes <= get_options().chunk_cache
    reading = _Reading(source, out, keeps, chunk_cache().opened)
    work = _announced(reading.without_kept(selection.batches))
    run_all(Ahead(work, _way_of, reading.fetch), reading.finish)


def execute_batch(source: Readable, batch: Batch, out: Array) -> None:
    """Carry out one batch of near chunks that are wanted whole, in this thread.

    Raises
    ------
    ReadError
        As `execute`.
    """
    _Reading(source, out, keeps=False, opened=0).finish((batch, None))


def _announced(works: Iterator[Work]) -> Iterator[Work]:
    """Yield work, a group later than it comes, so that disks can be told of the next one."""
    group = list(islice(works, ANNOUNCED))
    while group:
        following = list(islice(works, ANNOUNCED))
        ranges: dict[SourceFile, list[Range]] = {}
        for work in following:
            if not isinstance(work, Kept) and work.file >= 0:
                file = work.fragment.manifest.files[work.file]
                ranges.setdefault(file, []).extend(_asked(work))
        for file, expected in ranges.items():
            store_for(file.url).expect(file, expected)
        yield from group
        group = following


def _way_of(work: Work) -> Way | None:
    if isinstance(work, Kept) or work.file < 0:
        return None
    url = work.fragment.manifest.files[work.file].url
    return Way.to(url, sum(length for _, length in _asked(work)))


def _asked(work: Batch | Tile) -> list[Range]:
    """Return the ranges that a store is asked for, before near ones are joined."""
    if isinstance(work, Tile) and (teeth := work.teeth(reach_of(work.fragment, work.file))):
        return [asked for asked, _ in teeth]
    return work.ranges


@dataclass(frozen=True)
class _Reading:
    """One selection that is being read.

    Parameters
    ----------
    source : Readable
    out : numpy.ndarray
        The result.
    keeps : bool
        Whether chunks that are used in part are kept for later selections.
    opened : int
        How often something had been opened before.
    decoders : dict
        Of its chunks, by what they are made from.
    """

    source: Readable
    out: Array
    keeps: bool
    opened: int
    decoders: dict[tuple[int, tuple[int, ...]], Decoder] = field(default_factory=dict)

    # ------------------------------------------------------------------ bytes

    def fetch(self, work: Work) -> Data | Rows:
        """Return the bytes of every chunk that has to be decoded.

        Raises
        ------
        ReadError
            They cannot be had.
        """
        if isinstance(work, Kept):
            return []
        manifest = work.fragment.manifest
        if work.file == MISSING:
            return [b""] * len(work.ranges)
        if work.file == INLINE:
            return [manifest.inline[number] for number, _ in work.ranges]
        reach = reach_of(work.fragment, work.file)
        if isinstance(work, Tile) and (rows := self._rows(work, reach)):
            return rows
        ranges = work.ranges
        found: list[Buffer] = [b""] * len(ranges)
        for number, data in self._cut(work, ranges, join_ranges(ranges, reach.gap, reach.run)):
            found[number] = data
        return found

    def _cut(
        self, work: Batch | Tile, ranges: Sequence[Range], runs: Sequence[Run]
    ) -> list[tuple[int, Buffer]]:
        """Return the numbers of the chunks that lie in some runs, each with its bytes."""
        found: list[tuple[int, Buffer]] = []
        for run, data in zip(runs, self._runs(work, runs), strict=True):
            view = memoryview(data)
            for member in run.members:
                offset, length = ranges[member]
                found.append((member, view[offset - run.offset : offset - run.offset + length]))
        return found

    def _rows(self, tile: Tile, reach: Reach) -> Rows | None:
        """Return the bytes of a comb; None of what is got, or has failed, chunk by chunk."""
        teeth, file = tile.teeth(reach), tile.fragment.manifest.files[tile.file]
        count, length = tile.offset.size, int(tile.length[0])
        if not teeth or length != self._decoder(tile, tile).nbytes:
            return None
        try:
            found = bytes_of(file, [asked for asked, _ in teeth])
        except StoreError:
            # which of them is it?
            return None
        step, first = int(tile.offset[1] - tile.offset[0]), 0
        if len(found) == 1 and step == length:
            # one tooth without gaps is the rows already
            return Rows(tile, np.frombuffer(found[0], np.uint8))
        rows = np.empty((count, length), np.uint8)
        for data, (_, some) in zip(found, teeth, strict=True):
            rows[first : first + some] = np.ndarray((some, length), np.uint8, data, 0, (step, 1))
            first += some
        return Rows(tile, rows.reshape(-1))

    def _runs(self, work: Batch | Tile, runs: Sequence[Run]) -> Sequence[Buffer]:
        file = work.fragment.manifest.files[work.file]
        try:
            return bytes_of(file, [(run.offset, run.length) for run in runs])
        except StoreError as error:
            failed = runs[error.item].members
            number, reason = failed[0], error
            for member in failed if len(failed) > 1 else ():
                # which of them is it?
                try:
                    bytes_of(file, [work.ranges[member]])
                except StoreError as own:
                    number, reason = member, own
                    break
            raise self._error(work, number, str(reason)) from reason.__cause__

    # ------------------------------------------------------------------ values

    def finish(self, item: tuple[Work, Data | Rows | None]) -> None:
        """Decode and place what has been fetched, or fetch it first.

        Raises
        ------
        ReadError
            The bytes cannot be had, are not those of their checksums, or do not decode.
        """
        work, data = item
        if isinstance(work, Kept):
            for task, stored in zip(work.batch.tasks, work.chunks, strict=True):
                decoder = self._decoder(work.batch, task)
                place_stored(decoder, stored, task, self.out)
            return
        if data is None and isinstance(work, Batch) and work.file >= 0:
            self._finish_near(work)
            return
        data = self.fetch(work) if data is None else data
        if isinstance(data, Rows):
            place_rows(self._decoder(data.tile, data.tile), data.bytes, data.tile, self.out)
        elif isinstance(work, Tile):
            self._finish_tile(work, data)
        else:
            self._finish_batch(work, enumerate(data))

    def _finish_near(self, batch: Batch) -> None:
        """Fetch, decode and place as much at a time as a cache holds."""
        batch = self._read_in_place(batch)
        reach, ranges = reach_of(batch.fragment, batch.file), batch.ranges
        for runs in portions(join_ranges(ranges, reach.gap, reach.run), PORTION):
            self._finish_batch(batch, self._cut(batch, ranges, runs))

    def _read_in_place(self, batch: Batch) -> Batch:
        """Read what lies in the file as it does in the result; return what remains to be done."""
        file = batch.fragment.manifest.files[batch.file]
        targets = self._targets(batch)
        if not targets or (store := local_store(file)) is None:
            return batch
        found = _some(batch, list(targets))
        try:
            store.read_into(file, found.ranges, list(targets.values()))
        except StoreError as error:
            raise self._error(found, error.item, str(error)) from error.__cause__
        return _some(batch, [n for n in range(len(batch.tasks)) if n not in targets])

    def _targets(self, batch: Batch) -> dict[int, Array]:
        """Return the numbers of chunks that had better be read into the result, and where to."""
        found: dict[int, Array] = {}
        is_plain = [not pipeline.codecs for pipeline in batch.pipelines]
        for number, task in enumerate(batch.tasks if any(is_plain) else ()):
            if is_plain[task.pipeline]:
                target = self._decoder(batch, task).target(task, self.out)
                if target is not None and is_worth_a_call(task, target):
                    found[number] = target
        return found

    def _finish_tile(self, tile: Tile, data: Data) -> None:
        decoder = self._decoder(tile, tile)
        for number, (encoded, expected) in enumerate(zip(data, tile.checksums, strict=True)):
            self._verify(tile, number, encoded, expected)
        try:
            if decoder.is_plain and all(len(chunk) == decoder.nbytes for chunk in data):
                place_rows(decoder, b"".join(data), tile, self.out)
            else:
                place_tile(decoder, data, tile, self.out)
        except TileError as error:
            raise self._error(tile, error.item, f"the bytes do not decode: {error}") from error

    def _finish_batch(self, batch: Batch, chunks: Iterable[tuple[int, Buffer]]) -> None:
        for number, encoded in chunks:
            task = batch.tasks[number]
            decoder = self._decoder(batch, task)
            if batch.file != MISSING:
                self._verify(batch, number, encoded, task.checksum)
            try:
                self._place(batch, task, decoder, encoded)
            except CodecError as error:
                reason = f"the bytes do not decode: {error}"
                raise self._error(batch, number, reason) from error

    def _verify(self, work: Batch | Tile, number: int, encoded: Buffer, expected: int) -> None:
        """Refuse bytes that do not have their checksum."""
        if expected and (reason := mismatch(encoded, expected)):
            raise self._error(work, number, reason)

    def _place(self, batch: Batch, task: Task, decoder: Decoder, encoded: Buffer) -> None:
        if batch.file == MISSING:
            place_missing(decoder.pipeline, task, self.out)
        elif self.keeps and (key := key_of(batch, task, self.opened)):
            stored = decoder.decode(encoded, to_keep=True)
            chunk_cache().put(key, stored)
            place_stored(decoder, stored, task, self.out)
        else:
            place(decoder, encoded, task, self.out)

    def _decoder(self, work: Batch | Tile, chunk: Task | Tile) -> Decoder:
        """Return what decodes a chunk, made once; threads that make one twice do no harm."""
        pipeline = work.pipelines[chunk.pipeline]
        # a decoder keeps its pipeline, so that no other one can have the same id
        key = id(pipeline), chunk.encoded
        if (found := self.decoders.get(key)) is None:
            found = self.decoders[key] = Decoder(pipeline, chunk.encoded)
        return found

    # ------------------------------------------------------------------ chunks in memory

    def without_kept(self, batches: Iterable[Batch | Tile]) -> Iterator[Work]:
        """Yield batches, those tasks apart whose chunks are in memory.

        Raises
        ------
        ReadError
            They are, but their file is no longer the one that was scanned.
        """
        cache = chunk_cache()
        cache.shrink()
        is_empty = not cache.nbytes
        for batch in batches:
            if not isinstance(batch, Batch) or is_empty:
                yield batch
                continue
            keys = (key_of(batch, task, self.opened) for task in batch.tasks)
            chunks = [cache.get(key) if key else None for key in keys]
            known = [number for number, chunk in enumerate(chunks) if chunk is not None]
            if not known:
                yield batch
                continue
            self._confirm(batch)
            yield Kept(_some(batch, known), [c for c in chunks if c is not None])
            if rest := [number for number, chunk in enumerate(chunks) if chunk is None]:
                yield _some(batch, rest)

    def _confirm(self, batch: Batch) -> None:
        """Refuse chunks of a file that has changed since, where that is seen at no cost."""
        file = batch.fragment.manifest.files[batch.file]
        try:
            store_for(file.url).confirm(file)
        except StoreError as error:
            raise self._error(batch, 0, str(error)) from error.__cause__

    # ------------------------------------------------------------------ errors

    def _error(self, work: Batch | Tile, number: int, reason: str) -> ReadError:
        """Return an error that says which bytes of which file were meant for which chunk."""
        manifest = work.fragment.manifest
        codes = {INLINE: "bytes held inline", MISSING: "the fill value of a missing chunk"}
        url = codes[work.file] if work.file < 0 else manifest.files[work.file].url
        offset, length = work.ranges[number]
        error = ReadError(
            f"{url}, bytes {offset} to {offset + length}: {reason}; "
            f"restore the file, or scan it again"
        )
        variable = self.source.name or "(unnamed)"
        error.add_note(f"variable {variable}, chunk {self._chunk_id(work, offset)}")
        return error

    def _chunk_id(self, work: Batch | Tile, offset: int) -> tuple[int, ...]:
        """Return which chunk bytes belong to; uncompressed chunks are read in pieces."""
        for fragment in self.source.fragments:
            found = chunk_read(fragment, work.fragment, work.file, offset)
            if found is not None:
                return found
        return ()


def _some(batch: Batch, numbers: Sequence[int]) -> Batch:
    return batch._replace(tasks=[batch.tasks[number] for number in numbers])
