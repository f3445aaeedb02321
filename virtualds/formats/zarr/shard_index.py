"""Indexes of shards: where each inner chunk lies (Zarr v3, sharding codec)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.bounds import Buffer
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.record_cache import RecordCache
from virtualds.chunks.table import Table
from virtualds.codecs.codec import CodecError
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import ReadError, UnsupportedError
from virtualds.formats.referenced_files import unreachable_error
from virtualds.reading.decode import Decoder
from virtualds.reading.threads import fetch_many
from virtualds.source_file import SourceFile
from virtualds.stores import find_store

SHARDING = "sharding_indexed"
EMPTY_CHUNK = 2**64 - 1
"""Offset and length, in an index, of a chunk that does not exist."""
MOST_SHARDS = {True: 100_000, False: 10_000}
"""Most shards whose indexes are read when an array is opened, by whether they are local."""
MOST_INNER_CHUNKS = 2**20
"""Most chunks of an array whose indexes are read when it is opened."""
KEPT_INDEXES = 128
"""Indexes that the process keeps, of those that are read later."""
_KEPT_INDEXES: RecordCache[npt.NDArray[np.uint64]] = RecordCache(KEPT_INDEXES)


@dataclass(frozen=True)
class ShardLevel:
    """One level of shards, which hold chunks or shards of the next level.

    Parameters
    ----------
    chunk : tuple of int
        Shape of the chunks or shards that they hold.
    order : tuple of int
        The axis of the array for each axis of the index.
    index : CodecPipeline
        How the index decodes.
    at_start : bool
        Whether the index comes before the chunks, or after them.
    """

    chunk: tuple[int, ...]
    order: tuple[int, ...]
    index: CodecPipeline
    at_start: bool


# ---------------------------------------------------------------------- references


@dataclass(frozen=True, eq=False)
class ShardTable(Table):
    """References to the innermost chunks of shards, from the indexes of the shards.

    Parameters
    ----------
    shards : ChunkManifest
        Where the shards lie, over a grid of them.
    edges : tuple of int arrays
        The number of the first innermost chunk of every shard, per axis, and the end of the last.
    grid : tuple of int
        Innermost chunks per axis.
    levels : tuple of ShardLevel
        From the outermost to the innermost.
    """

    shards: ChunkManifest
    edges: tuple[Ints, ...]
    grid: tuple[int, ...]
    levels: tuple[ShardLevel, ...]

    def to_manifest(self) -> ChunkManifest:
        """Return the manifest, lazy if there are many shards or their own manifest is lazy."""
        if self.shards.is_loaded and prod(self.grid) <= MOST_INNER_CHUNKS:
            there = self.shards.file != MISSING
            if not there.any():
                return ChunkManifest.missing(self.grid)
            near = not any(_count_at_once(file) for file in self.shards.files[:1])
            if np.count_nonzero(there) <= MOST_SHARDS[near]:
                return self.load(np.arange(prod(self.grid)).reshape(self.grid))
        return ChunkManifest.of_table(self, self.grid)

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return the files that the shards are."""
        return self.shards.listed

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in.

        Raises
        ------
        ReadError
            The index of a shard cannot be read, or is damaged.
        """
        places = np.unravel_index(ids.ravel(), self.grid) if self.grid else ()
        pairs = list(zip(self.edges, places, strict=True))
        within = [np.searchsorted(edges, place, "right") - 1 for edges, place in pairs]
        number = np.zeros(ids.size, np.int64)
        for place, count in zip(within, self.shards.shape, strict=True):
            number = number * count + place
        known, row = np.unique(number, return_inverse=True)
        shards = self.shards.at(known).loaded()
        held = [e[s + 1] - e[s] for e, s in zip(self.edges, within, strict=True)]
        local = [p - e[s] for (e, p), s in zip(pairs, within, strict=True)]
        file, offset = _to_columns(shards)
        length = shards.length.astype(np.int64)
        stacked = (np.asarray(c, np.int64).reshape(len(c), ids.size) for c in (local, held))
        rows = _ChunkRows(row, file[row], offset[row], length[row], *stacked)
        sources: list[SourceFile | bytes] = [*shards.files, *shards.inline]
        for level in self.levels:
            rows = _look_up(rows, level, self.levels[-1].chunk, sources)
        return _build_manifest(rows, sources).reshape(ids.shape)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        edges = (edges.tobytes() for edges in self.edges)
        return ("virtualds-shards", *map(normalize_token, (self.shards, *edges, repr(self.levels))))


class _ChunkRows(NamedTuple):
    """For each chunk the shard that holds it, while indexes are looked up.

    ``whole`` numbers the shard; ``file``, ``offset`` and ``length`` say where the shard lies.
    ``place`` is the place of the chunk in the shard, and ``held`` the size of the shard, both in
    innermost chunks: arrays of one row per axis.
    """

    whole: Ints
    file: Ints
    offset: Ints
    length: Ints
    place: Ints
    held: Ints


def _to_columns(shards: ChunkManifest) -> tuple[Ints, Ints]:
    """Return file and offset of shards; inline shards are numbered after the files."""
    held = shards.file == INLINE
    file = np.where(held, len(shards.files) + shards.offset, shards.file)
    return file.astype(np.int64), np.where(held, 0, shards.offset).astype(np.int64)


class _Shard(NamedTuple):
    """A shard whose index is wanted, and its chunks along the axes of the array."""

    file: SourceFile | bytes
    offset: int
    length: int
    counts: tuple[int, ...]


def _look_up(
    rows: _ChunkRows,
    level: ShardLevel,
    innermost: tuple[int, ...],
    sources: Sequence[SourceFile | bytes],
) -> _ChunkRows:
    """Return rows whose shards are those of the next level, or the chunks themselves."""
    step = np.array([c // i for c, i in zip(level.chunk, innermost, strict=True)], np.int64)
    step = step.reshape(-1, 1)
    place, inside = rows.place // step, rows.place % step
    there = np.flatnonzero(rows.file != MISSING)
    counts = rows.held // step
    _, first, which = np.unique(rows.whole[there], return_index=True, return_inverse=True)
    wholes = np.stack([rows.file, rows.offset, rows.length, *counts])[:, there[first]]
    wanted = [_Shard(sources[f], o, n, tuple(c)) for f, o, n, *c in wholes.T.tolist()]
    indexes = _read_indexes(wanted, level)
    file, offset, length = rows.file.copy(), rows.offset.copy(), rows.length.copy()
    # sort the rows by shard
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[order], np.arange(len(wanted) + 1))
    for number, index in enumerate(indexes):
        members = there[order[bounds[number] : bounds[number + 1]]]
        found = index[tuple(place[i, members] for i in level.order)].reshape(-1, 2)
        begin, size = _demand_sound_index(found, wanted[number])
        empty = size == 0
        offset[members] = np.where(empty, 0, rows.offset[members] + begin)
        length[members] = size
        file[members] = np.where(empty, MISSING, rows.file[members])
    whole = rows.whole
    for one, most in zip(place, counts.max(1, initial=1), strict=True):
        whole = whole * most + one
    return _ChunkRows(whole, file, offset, length, inside, np.broadcast_to(step, place.shape))


def _demand_sound_index(found: npt.NDArray[np.uint64], shard: _Shard) -> tuple[Ints, Ints]:
    """Return where chunks begin in a shard, and how long they are; missing ones have length 0."""
    empty = (found == EMPTY_CHUNK).all(-1)
    begin, size = (np.where(empty, 0, found[..., i]).astype(np.uint64) for i in (0, 1))
    limit = np.uint64(shard.length)
    # the sum of offset and length may overflow 64 bits
    bad = ~empty & ((size == 0) | (size > limit) | (begin > limit - np.minimum(size, limit)))
    if bad.any():
        wrong = found[np.flatnonzero(bad)[0]].tolist()
        raise _damaged_error(shard, f"it says that a chunk has {wrong[1]} bytes from {wrong[0]} on")
    return begin.astype(np.int64), size.astype(np.int64)


def _build_manifest(rows: _ChunkRows, sources: Sequence[SourceFile | bytes]) -> ChunkManifest:
    files = [source for source in sources if isinstance(source, SourceFile)]
    held = np.flatnonzero(rows.file >= len(files))
    file, offset = rows.file.copy(), rows.offset.copy()
    inline: list[bytes] = []
    for row in held.tolist():
        data, begin = sources[file[row]], int(offset[row])
        file[row], offset[row] = INLINE, len(inline)
        inline.append(bytes(data[begin : begin + int(rows.length[row])]))
    return ChunkManifest.build(
        file.shape, files=files, file=file, offset=offset, length=rows.length, inline=inline
    ).pruned()


# ---------------------------------------------------------------------- indexes


def _read_indexes(shards: Sequence[_Shard], level: ShardLevel) -> list[npt.NDArray[np.uint64]]:
    """Read the indexes of shards, many at a time."""
    return fetch_many(shards, _url_of, partial(_get_index, level=level))


def _url_of(shard: _Shard) -> str | None:
    return None if isinstance(shard.file, bytes) else shard.file.url


def _count_at_once(file: SourceFile) -> int:
    return find_store(file.url).reach.at_once


def _get_index(shard: _Shard, level: ShardLevel) -> npt.NDArray[np.uint64]:
    return _KEPT_INDEXES.get((shard, level), lambda: _read_index(shard, level))


def _read_index(shard: _Shard, level: ShardLevel) -> npt.NDArray[np.uint64]:
    """Return the index of a shard: along its axes, and then offset and length."""
    counts = tuple(shard.counts[i] for i in level.order)
    size = compute_index_size(level, counts)
    if shard.length < size:
        raise _damaged_error(shard, f"the shard has {shard.length} bytes, its index {size}")
    begin = 0 if level.at_start else shard.length - size
    data = _fetch_bytes(shard, begin, size)
    decoder = Decoder(level.index, (*counts, 2))
    try:
        index = decoder.show(decoder.decode(data, to_keep=True))
    except CodecError as error:
        raise _damaged_error(shard, f"{error}") from error
    return np.array(index, np.uint64)


def _fetch_bytes(shard: _Shard, begin: int, size: int) -> Buffer:
    file, offset = shard.file, shard.offset + begin
    if isinstance(file, bytes):
        return file[offset : offset + size]
    try:
        return find_store(file.url).get_ranges(file, [(offset, size)])[0]
    except OSError as error:
        raise unreachable_error(file.url, error) from error


def compute_index_size(level: ShardLevel, counts: Sequence[int]) -> int:
    """Return the bytes of an index of so many chunks.

    Raises
    ------
    UnsupportedError
        The length of an encoded index depends on its content.
    """
    size: int | None = 16 * prod(counts)
    for codec in level.index.codecs:
        size = None if size is None else codec.encoded_size(size)
        if size is None:
            raise UnsupportedError(
                f"codec {SHARDING!r}: its index is encoded with {codec.to_zarr_v2()['id']!r}, "
                f"which the specification forbids, as its length depends on what it holds; open "
                f"the data with zarr-python"
            )
    return size or 0


def _damaged_error(shard: _Shard, reason: str) -> ReadError:
    url = "bytes held inline" if isinstance(shard.file, bytes) else shard.file.url
    return ReadError(
        f"{url}, bytes {shard.offset} to {shard.offset + shard.length}: the index of the shard is "
        f"damaged ({reason}); restore the file, or scan it again"
    )
