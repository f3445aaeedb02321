"""Fetches the bytes of every batch from its store, decodes and places them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy.typing as npt

from virtualds.bounds import Buffer
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.codecs.codec import CodecError
from virtualds.codecs.libraries import Bytes
from virtualds.errors import ReadError
from virtualds.log import DEBUG, tell, tells
from virtualds.options import get_options
from virtualds.reading.chunk_cache import ChunkKey, chunk_cache, chunk_key_of, is_used_whole
from virtualds.reading.coalesce import JoinedRange, join_ranges, split_portions
from virtualds.reading.decode import (
    Decoder,
    Decoders,
    TileError,
    place,
    place_missing,
    place_rows,
    place_stored,
    place_tile,
)
from virtualds.reading.local import fetch_ranges, find_direct_target, find_local_store
from virtualds.reading.plan import Readable, Selection, find_chunk_at
from virtualds.reading.prefetch import HostSlot, Prefetcher
from virtualds.reading.tasks import Batch, Task, limits_of
from virtualds.reading.threads import run_all
from virtualds.reading.tiles import Tile
from virtualds.source_file import SourceFile, find_mismatch
from virtualds.stores import find_store
from virtualds.stores.store import Range, StoreError

Array = npt.NDArray[Any]

ANNOUNCE_AHEAD = 16
"""Batches that are announced to a disk at a time."""

PORTION = 2**20
"""Bytes of a near file that are read at a time, so few that the CPU's cache holds them."""

NOT_IN_FILE = {INLINE: "bytes held inline", MISSING: "the fill value of a missing chunk"}
"""Names in errors for chunks that lie in no file."""


class DecodedTasks(NamedTuple):
    """Tasks whose decoded chunks are in memory."""

    batch: Batch
    chunks: list[Array]


Work = Batch | Tile | DecodedTasks


def execute(source: Readable, selection: Selection, out: Array) -> None:
    """Carry out a planned selection into ``out``.

    Raises
    ------
    ReadError
        Bytes are missing, have changed, or do not decode; the error names file, bytes, chunk and
        variable.
    """
    if not selection.covered:
        out[...] = source.fill_value
    most = get_options().chunk_cache
    # a selection, or pass over an array, that is larger would push out all its chunks
    keeps_parts, keeps_whole = 2 * selection.nbytes <= most, _count_stored_bytes(source) <= most
    reading = _SelectionReader(source, out, keeps_parts, keeps_whole, chunk_cache().opened)
    work = _announce_ahead(reading.separate_kept(selection.batches))
    run_all(Prefetcher(work, _host_slot_of, reading.fetch), reading.finish)


def execute_batch(source: Readable, batch: Batch, out: Array) -> None:
    """Carry out one batch of near chunks that are wanted whole, in this thread.

    Raises
    ------
    ReadError
        As `execute`.
    """
    alone = _SelectionReader(source, out, keeps_parts=False, keeps_whole=False, opened=0)
    alone.finish((batch, None))


def _count_stored_bytes(source: Readable) -> int:
    """Return how many bytes the decoded chunks of an array have, but for what their edges hide."""
    return prod(source.shape) * max((p.dtype.itemsize for p in source.pipelines), default=0)


def _announce_ahead(works: Iterator[Work]) -> Iterator[Work]:
    """Yield work one group late, so that the next group can be announced to disks."""
    group = list(islice(works, ANNOUNCE_AHEAD))
    # the first batch is read at once
    _announce(group[1:])
    while group:
        following = list(islice(works, ANNOUNCE_AHEAD))
        _announce(following)
        yield from group
        group = following


def _announce(works: Iterable[Work]) -> None:
    ranges: dict[SourceFile, list[Range]] = {}
    for work in works:
        if not isinstance(work, DecodedTasks) and work.file >= 0:
            ranges.setdefault(_file_of(work), []).extend(_list_ranges(work))
    for file, expected in ranges.items():
        find_store(file.url).prefetch(file, expected)


def _host_slot_of(work: Work) -> HostSlot | None:
    if isinstance(work, DecodedTasks) or not limits_of(work.fragment, work.file).at_once:
        return None
    return HostSlot.to(_file_of(work).url, sum(length for _, length in _list_ranges(work)))


def _list_ranges(work: Batch | Tile) -> list[Range]:
    """Return the ranges to ask a store for, before near ones are joined."""
    if isinstance(work, Tile) and (teeth := work.plan_ranges(limits_of(work.fragment, work.file))):
        return [asked for asked, _ in teeth]
    return work.ranges


@dataclass(frozen=True)
class _SelectionReader:
    """One selection that is being read.

    Parameters
    ----------
    source : Readable
    out : numpy.ndarray
        The result.
    keeps_parts, keeps_whole : bool
        Whether chunks that are used in part, or whole, are kept for later selections.
    opened : int
        Value of `ChunkCache.opened` before the read.
    """

    source: Readable
    out: Array
    keeps_parts: bool
    keeps_whole: bool
    opened: int

    # ------------------------------------------------------------------ bytes

    def fetch(self, work: Work) -> Callable[[], None]:
        """Fetch the bytes of every chunk; return a function that decodes and places them.

        Raises
        ------
        ReadError
            The bytes cannot be fetched.
        """
        if isinstance(work, DecodedTasks):
            return partial(self._finish_kept, work)
        if isinstance(work, Batch):
            chunks = enumerate(self._read_chunks(work))
            return partial(self._finish_batch, work, Decoders(work.pipelines), chunks)
        decoder = Decoder(work.pipelines[work.pipeline], work.encoded)
        if (rows := self._read_rows(work, decoder)) is not None:
            return partial(place_rows, decoder, rows, work, self.out)
        return partial(self._finish_tile, work, decoder, self._read_chunks(work))

    def _read_chunks(self, work: Batch | Tile) -> list[Buffer]:
        """Return the bytes of every chunk, in their order."""
        ranges = work.ranges
        if work.file == MISSING:
            return [b""] * len(ranges)
        if work.file == INLINE:
            return [work.fragment.manifest.inline[number] for number, _ in ranges]
        reach = limits_of(work.fragment, work.file)
        found: list[Buffer] = [b""] * len(ranges)
        for number, data in self._cut_chunks(
            work, ranges, join_ranges(ranges, reach.gap, reach.run)
        ):
            found[number] = data
        return found

    def _cut_chunks(
        self, work: Batch | Tile, ranges: Sequence[Range], runs: Sequence[JoinedRange]
    ) -> list[tuple[int, Buffer]]:
        """Fetch runs, and return the numbers and bytes of the chunks in them."""
        found: list[tuple[int, Buffer]] = []
        for run, data in zip(runs, self._read_runs(work, runs), strict=True):
            view = memoryview(data)
            for member in run.members:
                offset, length = ranges[member]
                found.append((member, view[offset - run.offset : offset - run.offset + length]))
        return found

    def _read_rows(self, tile: Tile, decoder: Decoder) -> Bytes | None:
        """Return the chunks of a comb; None where each chunk must be fetched alone."""
        teeth = tile.plan_ranges(limits_of(tile.fragment, tile.file)) if tile.file >= 0 else []
        if not teeth or int(tile.length[0]) != decoder.nbytes:
            return None
        # on failure the chunks are fetched one by one, to find the one that fails
        with suppress(StoreError):
            return tile.extract_rows(
                fetch_ranges(_file_of(tile), [asked for asked, _ in teeth]), teeth
            )
        return None

    def _read_runs(self, work: Batch | Tile, runs: Sequence[JoinedRange]) -> Sequence[Buffer]:
        file = _file_of(work)
        try:
            return fetch_ranges(file, [(run.offset, run.length) for run in runs])
        except StoreError as error:
            failed = runs[error.item].members
            number, reason = failed[0], error
            for member in failed if len(failed) > 1 else ():
                # find the chunk that fails
                try:
                    fetch_ranges(file, [work.ranges[member]])
                except StoreError as own:
                    number, reason = member, own
                    break
            raise chunk_read_error(self.source, work, number, reason) from reason.__cause__

    # ------------------------------------------------------------------ values

    def finish(self, item: tuple[Work, Callable[[], None] | None]) -> None:
        """Decode and place what has been fetched, or fetch it first.

        Raises
        ------
        ReadError
            The bytes cannot be fetched, do not match their checksums, or do not decode.
        """
        work, place = item
        if place is not None:
            place()
        elif isinstance(work, Batch) and work.file >= 0:
            self._finish_near(work)
        else:
            self.fetch(work)()

    def _finish_kept(self, kept: DecodedTasks) -> None:
        decoders = Decoders(kept.batch.pipelines)
        for task, stored in zip(kept.batch.tasks, kept.chunks, strict=True):
            place_stored(decoders.of(task), stored, task, self.out)

    def _finish_near(self, batch: Batch) -> None:
        """Fetch, decode and place as much at a time as the CPU's cache holds."""
        decoders = Decoders(batch.pipelines)
        batch = self._read_in_place(batch, decoders)
        reach, ranges = limits_of(batch.fragment, batch.file), batch.ranges
        for runs in split_portions(join_ranges(ranges, reach.gap, reach.run), PORTION):
            self._finish_batch(batch, decoders, self._cut_chunks(batch, ranges, runs))

    def _read_in_place(self, batch: Batch, decoders: Decoders) -> Batch:
        """Read chunks stored as in the result straight into it; return the rest of the batch."""
        targets = {
            number: target
            for number, task in enumerate(batch.tasks)
            if (target := find_direct_target(decoders.of(task), task, self.out)) is not None
        }
        if not targets or (store := find_local_store(_file_of(batch))) is None:
            return batch
        found = _take_tasks(batch, list(targets))
        try:
            store.read_into(_file_of(batch), found.ranges, list(targets.values()))
        except StoreError as error:
            raise chunk_read_error(self.source, found, error.item, error) from error.__cause__
        return _take_tasks(batch, [n for n in range(len(batch.tasks)) if n not in targets])

    def _finish_tile(self, tile: Tile, decoder: Decoder, data: Sequence[Buffer]) -> None:
        for number, (encoded, expected) in enumerate(zip(data, tile.checksums, strict=True)):
            self._verify(tile, number, encoded, expected)
        try:
            if decoder.is_plain and all(len(chunk) == decoder.nbytes for chunk in data):
                place_rows(decoder, b"".join(data), tile, self.out)
            else:
                place_tile(decoder, data, tile, self.out)
        except TileError as error:
            raise chunk_read_error(
                self.source, tile, error.item, f"the bytes do not decode: {error}"
            ) from error

    def _finish_batch(
        self, batch: Batch, decoders: Decoders, chunks: Iterable[tuple[int, Buffer]]
    ) -> None:
        for number, encoded in chunks:
            task = batch.tasks[number]
            decoder = decoders.of(task)
            if batch.file != MISSING:
                self._verify(batch, number, encoded, task.checksum)
            try:
                self._place(batch, task, decoder, encoded)
            except CodecError as error:
                reason = f"the bytes do not decode: {error}"
                raise chunk_read_error(self.source, batch, number, reason) from error

    def _verify(self, work: Batch | Tile, number: int, encoded: Buffer, expected: int) -> None:
        """Refuse bytes that do not have their checksum."""
        if expected and (reason := find_mismatch(encoded, expected)):
            raise chunk_read_error(self.source, work, number, reason)

    def _place(self, batch: Batch, task: Task, decoder: Decoder, encoded: Buffer) -> None:
        if batch.file == MISSING:
            place_missing(decoder.pipeline, task, self.out)
        elif (key := self._choose_key(batch, task)) is not None:
            stored = decoder.decode(encoded, to_keep=True)
            chunk_cache().put(key, stored)
            place_stored(decoder, stored, task, self.out)
        else:
            place(decoder, encoded, task, self.out)

    # ------------------------------------------------------------------ chunks in memory

    def _choose_key(self, batch: Batch, task: Task) -> ChunkKey | None:
        """Return the key to keep a chunk by, None if it is not to be kept."""
        keeps = self.keeps_whole if is_used_whole(task) else self.keeps_parts
        return chunk_key_of(batch, task, self.opened) if keeps else None

    def separate_kept(self, batches: Iterable[Batch | Tile]) -> Iterator[Work]:
        """Yield batches, with the tasks whose chunks are in memory apart.

        Raises
        ------
        ReadError
            The file of a chunk in memory has changed since it was scanned.
        """
        cache = chunk_cache()
        cache.shrink()
        is_empty = not cache.nbytes
        for batch in batches:
            if not isinstance(batch, Batch) or is_empty:
                yield batch
                continue
            keys = (chunk_key_of(batch, task, self.opened) for task in batch.tasks)
            chunks = [cache.get(key) if key else None for key in keys]
            known = [number for number, chunk in enumerate(chunks) if chunk is not None]
            if known and tells(DEBUG):
                url = batch.fragment.manifest.files[batch.file].url
                tell(DEBUG, f"{url}: {len(known)} of {len(chunks)} chunks from the chunk cache")
            if not known:
                yield batch
                continue
            self._check_unchanged(batch)
            yield DecodedTasks(_take_tasks(batch, known), [c for c in chunks if c is not None])
            if rest := [number for number, chunk in enumerate(chunks) if chunk is None]:
                yield _take_tasks(batch, rest)

    def _check_unchanged(self, batch: Batch) -> None:
        """Refuse chunks of a file that has changed, where the check costs no request."""
        file = _file_of(batch)
        try:
            find_store(file.url).check_unchanged(file)
        except StoreError as error:
            raise chunk_read_error(self.source, batch, 0, error) from error.__cause__


def _file_of(work: Batch | Tile) -> SourceFile:
    return work.fragment.manifest.files[work.file]


def _take_tasks(batch: Batch, numbers: Sequence[int]) -> Batch:
    return batch._replace(tasks=[batch.tasks[number] for number in numbers])


RESTORE = "restore the file, scan it again, or if it has moved, call virtualds.rename_paths"
"""What to do about bytes that are not as they were, where the store knows nothing better."""


def chunk_read_error(
    source: Readable, work: Batch | Tile, number: int, failed: str | StoreError
) -> ReadError:
    """Return the error that names file, bytes, variable and chunk."""
    told = failed if isinstance(failed, StoreError) else StoreError(failed)
    url = NOT_IN_FILE[work.file] if work.file < 0 else work.fragment.manifest.files[work.file].url
    offset, length = work.ranges[number]
    of = ":" if work.file < 0 else " of"
    variable = f"variable {source.name!r}{of} " if source.name else ""
    error = ReadError(
        f"{variable}{url}, bytes {offset} to {offset + length}: {told.reason}; "
        f"{told.remedy or RESTORE}"
    )
    error.add_note(f"chunk {_find_chunk_id(source, work, offset)}")
    return error


def _find_chunk_id(source: Readable, work: Batch | Tile, offset: int) -> tuple[int, ...]:
    """Return the chunk that bytes belong to; uncompressed chunks are read in pieces."""
    for fragment in source.fragments:
        if (found := find_chunk_at(fragment, work.fragment, work.file, offset)) is not None:
            return found
    return ()
