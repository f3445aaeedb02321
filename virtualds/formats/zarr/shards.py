"""Read sharded arrays of Zarr v3, with inner chunks as the chunks of virtual arrays.

Codec ``sharding_indexed`` (zarr-specs, "Sharding codec", version 1.0). References point to inner
chunks, which are decoded one by one. Only the index of a shard is read, in one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import INLINE, MISSING, Ints, ReferenceTable
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import RecordCache
from virtualds.codecs.codec import CodecError
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import ReadError, UnsupportedError, make_damage_error
from virtualds.formats.referenced_files import fetch_bytes
from virtualds.formats.zarr.codecs import parse_order, pipeline_from_v3
from virtualds.formats.zarr.data_types import parse_extension
from virtualds.formats.zarr.v3_arrays import ManifestPart, Manifests, axes_from_v3
from virtualds.reading.tasks import Decoder
from virtualds.reading.threads import fetch_many
from virtualds.source_file import SourceFile
from virtualds.stores import find_store

SHARDING = "sharding_indexed"
EMPTY_CHUNK = 2**64 - 1
"""The offset and length, in an index, of a chunk that does not exist."""
MAX_SHARDS = {True: 100_000, False: 10_000}
"""Maximum number of shards whose indexes are read at opening, for local and remote stores."""
MAX_INNER_CHUNKS = 2**20
"""Maximum number of inner chunks of an array whose shard indexes are read at opening."""
CACHED_INDEXES = 128
"""Maximum number of indexes of shards that are cached in the process."""
_INDEX_CACHE: RecordCache[npt.NDArray[np.uint64]] = RecordCache(CACHED_INDEXES)

# ---------------------------------------------------------------------- metadata


def expand_shards(
    metadata: Mapping[str, Any], manifests: Manifests
) -> tuple[Mapping[str, Any], Manifests]:
    """Return the metadata and references of an array with inner chunks instead of shards.

    ``manifests`` returns the references of shards. Arrays without shards stay unchanged.
    """
    codecs, levels = _parse_levels(metadata)
    if not levels:
        return metadata, manifests
    shape, inner = tuple(metadata["shape"]), levels[-1].chunk
    shards = axes_from_v3(shape, metadata["chunk_grid"])
    _check_divisible(shards, levels)
    grid = {"name": "regular", "configuration": {"chunk_shape": list(inner)}}

    def find_parts(grids: list[tuple[int, ...]], numbered: int) -> list[ManifestPart]:
        [inner_grid] = grids
        shard_parts = manifests([tuple(axis.nchunks for axis in shards)], 0)
        return [_expand_part(part, shards, inner_grid, levels) for part in shard_parts]

    return {**metadata, "chunk_grid": grid, "codecs": codecs}, find_parts


def _parse_levels(metadata: Mapping[str, Any]) -> tuple[list[Any], tuple[ShardLevel, ...]]:
    """Return the codecs of the innermost chunks, and the levels of shards around them."""
    order = tuple(range(len(metadata["shape"])))
    outer_codecs: list[Any] = []
    levels: list[ShardLevel] = []
    codecs = list(metadata["codecs"])
    chain = [parse_extension(entry, "codec") for entry in codecs]
    while position := 1 + next((n for n, (name, _) in enumerate(chain) if name == SHARDING), -1):
        for name, config in chain[: position - 1]:
            if name != "transpose":
                raise _make_unsupported_error(name)
            order = tuple(order[i] for i in parse_order(config, len(order)))
        if chain[position:]:
            raise _make_unsupported_error(chain[position][0])
        outer_codecs += codecs[: position - 1]
        config = chain[position - 1][1]
        levels.append(_parse_level(config, order))
        codecs = list(config["codecs"])
        chain = [parse_extension(entry, "codec") for entry in codecs]
    return [*outer_codecs, *codecs], tuple(levels)


def _make_unsupported_error(name: str) -> UnsupportedError:
    """Return the error for a codec that encodes shards as a whole."""
    return UnsupportedError(
        f"codec {name!r} around {SHARDING!r}: shards are encoded as a whole, so that no chunk can "
        f"be read on its own; open the data with zarr-python, or write them without it"
    )


def _parse_level(config: Mapping[str, Any], order: tuple[int, ...]) -> ShardLevel:
    """Parse the configuration of a ``sharding_indexed`` codec.

    ``order`` is the order of the axes of the array after the preceding transpose codecs.
    """
    chunk, location = config.get("chunk_shape"), config.get("index_location", "end")
    is_valid = isinstance(chunk, list | tuple) and all(type(n) is int and n > 0 for n in chunk)
    if not is_valid or len(chunk or ()) != len(order) or location not in ("start", "end"):
        raise make_damage_error(
            f"codec {SHARDING!r}: chunk_shape {chunk!r} of {len(order)} axes, index_location "
            f"{location!r}",
            "metadata",
        )
    for key in ("codecs", "index_codecs"):
        if not isinstance(config.get(key), list | tuple):
            raise make_damage_error(f"codec {SHARDING!r}: {key} {config.get(key)!r}", "metadata")
    lengths = dict(zip(order, chunk or (), strict=True))
    index = pipeline_from_v3(
        {
            "data_type": "uint64",
            "fill_value": EMPTY_CHUNK,
            "shape": [*order, 2],
            "codecs": config["index_codecs"],
        }
    )
    level = ShardLevel(
        tuple(lengths[i] for i in range(len(order))), order, index, location == "start"
    )
    compute_index_size(level, (1,) * len(order))
    return level


def _check_divisible(shards: Sequence[ChunkAxis], levels: Sequence[ShardLevel]) -> None:
    """Raise an error if chunks do not divide their shards."""
    for axis, shard_axis in enumerate(shards):
        for outer in sorted(shard_axis.stored_lengths()):
            for level in levels:
                chunk = level.chunk[axis]
                if outer % chunk:
                    raise make_damage_error(
                        f"codec {SHARDING!r}: chunks of {chunk} along axis {axis} do not divide "
                        f"shards of {outer}",
                        "metadata",
                    )
                outer = chunk


def _expand_part(
    part: ManifestPart,
    shards: Sequence[ChunkAxis],
    grid: tuple[int, ...],
    levels: tuple[ShardLevel, ...],
) -> ManifestPart:
    """Return the part with the innermost chunks of a part of shards."""
    origin, edges, shape = [], [], []
    counts = zip(part.origin, part.manifest.shape, strict=True)
    for shard_axis, (first, count), size, chunk in zip(
        shards, counts, grid, levels[-1].chunk, strict=True
    ):
        chunks_before = int(shard_axis.slabs(0, first).encoded.sum()) // chunk
        chunks_inside = shard_axis.slabs(first, first + count).encoded // chunk
        edges.append(np.concatenate([[0], np.cumsum(chunks_inside)]))
        origin.append(chunks_before)
        # the last shard may reach past the end of the array
        shape.append(min(int(edges[-1][-1]), size - chunks_before))
    table = ShardTable(part.manifest, tuple(edges), tuple(shape), levels)
    return ManifestPart(part.fragment, tuple(origin), table.to_manifest())


@dataclass(frozen=True)
class ShardLevel:
    """One level of shards, which contain chunks or shards of the next level, of shape ``chunk``.

    ``order`` is the axis of the array for each axis of the index. ``index`` is the pipeline that
    decodes the index, and ``at_start`` says whether the index precedes the chunks.
    """

    chunk: tuple[int, ...]
    order: tuple[int, ...]
    index: CodecPipeline
    at_start: bool


# ---------------------------------------------------------------------- references


@dataclass(frozen=True, eq=False)
class ShardTable(ReferenceTable):
    """References to the innermost chunks of shards, from the indexes of the shards.

    ``edges`` has, for each axis, the index of the first innermost chunk of every shard, and the end
    of the last shard. ``grid`` is the grid shape of innermost chunks, and ``levels`` begin with the
    outermost level.
    """

    shards: ChunkManifest
    edges: tuple[Ints, ...]
    grid: tuple[int, ...]
    levels: tuple[ShardLevel, ...]

    def to_manifest(self) -> ChunkManifest:
        """Return a manifest, which is lazy if there are many shards or their manifest is lazy."""
        if self.shards.is_loaded and prod(self.grid) <= MAX_INNER_CHUNKS:
            exists = self.shards.file != MISSING
            if not exists.any():
                return ChunkManifest.missing(self.grid)
            is_local = not any(
                find_store(f.url).request_limits.max_requests for f in self.shards.files[:1]
            )
            if np.count_nonzero(exists) <= MAX_SHARDS[is_local]:
                return self.load(np.arange(prod(self.grid)).reshape(self.grid))
        return ChunkManifest.from_table(self, self.grid)

    def list_sources(self) -> tuple[SourceFile, ...]:
        return self.shards.listed_files

    def load(self, ids: Ints) -> ChunkManifest:
        positions = np.unravel_index(ids.ravel(), self.grid) if self.grid else ()
        pairs = list(zip(self.edges, positions, strict=True))
        shard_positions = [np.searchsorted(edges, along, "right") - 1 for edges, along in pairs]
        numbers = np.zeros(ids.size, np.int64)
        for along, count in zip(shard_positions, self.shards.shape, strict=True):
            numbers = numbers * count + along
        shard_numbers, row = np.unique(numbers, return_inverse=True)
        shards = self.shards.at(shard_numbers).loaded()
        shard_sizes = [e[s + 1] - e[s] for e, s in zip(self.edges, shard_positions, strict=True)]
        positions_in_shard = [p - e[s] for (e, p), s in zip(pairs, shard_positions, strict=True)]
        # inline shards are numbered after the files
        is_inline = shards.file == INLINE
        file = np.where(is_inline, len(shards.files) + shards.offset, shards.file).astype(np.int64)
        offset = np.where(is_inline, 0, shards.offset).astype(np.int64)
        length = shards.length.astype(np.int64)
        stacked = (
            np.asarray(c, np.int64).reshape(len(c), ids.size)
            for c in (positions_in_shard, shard_sizes)
        )
        rows = _ChunkLocations(row, file[row], offset[row], length[row], *stacked)
        sources: list[SourceFile | bytes] = [*shards.files, *shards.inline]
        for level in self.levels:
            rows = _enter_level(rows, level, self.levels[-1].chunk, sources)
        return _build_manifest(rows, sources).reshape(ids.shape)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        edges = (edges.tobytes() for edges in self.edges)
        return ("virtualds-shards", *map(normalize_token, (self.shards, *edges, repr(self.levels))))


class _ChunkLocations(NamedTuple):
    """The shard that contains each chunk, at one level of shards.

    ``shard`` is the index of the shard; ``file``, ``offset`` and ``length`` are its location.
    ``position`` is the position of the chunk in the shard, and ``shard_size`` the size of the
    shard, both in innermost chunks, as arrays with one row per axis.
    """

    shard: Ints
    file: Ints
    offset: Ints
    length: Ints
    position: Ints
    shard_size: Ints


class _Shard(NamedTuple):
    """The location of a shard, and its number of chunks along the axes of the array."""

    file: SourceFile | bytes
    offset: int
    length: int
    counts: tuple[int, ...]


def _enter_level(
    rows: _ChunkLocations,
    level: ShardLevel,
    innermost: tuple[int, ...],
    sources: Sequence[SourceFile | bytes],
) -> _ChunkLocations:
    """Return the location of each chunk at the next level, from the indexes of its shards."""
    step = np.array([c // i for c, i in zip(level.chunk, innermost, strict=True)], np.int64)
    step = step.reshape(-1, 1)
    shard, position_in_chunk = rows.position // step, rows.position % step
    existing = np.flatnonzero(rows.file != MISSING)
    counts = rows.shard_size // step
    _, first, shard_of_row = np.unique(rows.shard[existing], return_index=True, return_inverse=True)
    locations = np.stack([rows.file, rows.offset, rows.length, *counts])[:, existing[first]]
    shards = [_Shard(sources[f], o, n, tuple(c)) for f, o, n, *c in locations.T.tolist()]
    indexes = _read_indexes(shards, level)
    file, offset, length = rows.file.copy(), rows.offset.copy(), rows.length.copy()
    # sort the rows by shard
    order = np.argsort(shard_of_row, kind="stable")
    bounds = np.searchsorted(shard_of_row[order], np.arange(len(shards) + 1))
    for n, index in enumerate(indexes):
        members = existing[order[bounds[n] : bounds[n + 1]]]
        entries = index[tuple(shard[i, members] for i in level.order)].reshape(-1, 2)
        begin, size = _check_entries(entries, shards[n])
        is_empty = size == 0
        offset[members] = np.where(is_empty, 0, rows.offset[members] + begin)
        length[members] = size
        file[members] = np.where(is_empty, MISSING, rows.file[members])
    number = rows.shard
    for positions, count in zip(shard, counts.max(1, initial=1), strict=True):
        number = number * count + positions
    return _ChunkLocations(
        number, file, offset, length, position_in_chunk, np.broadcast_to(step, shard.shape)
    )


def _check_entries(entries: npt.NDArray[np.uint64], shard: _Shard) -> tuple[Ints, Ints]:
    """Return the offset and length of chunks in a shard; missing chunks have length 0."""
    is_empty = (entries == EMPTY_CHUNK).all(-1)
    begin, size = (np.where(is_empty, 0, entries[..., i]).astype(np.uint64) for i in (0, 1))
    limit = np.uint64(shard.length)
    # the sum of offset and length may overflow 64 bits
    is_invalid = ~is_empty & (
        (size == 0) | (size > limit) | (begin > limit - np.minimum(size, limit))
    )
    if is_invalid.any():
        invalid = entries[np.flatnonzero(is_invalid)[0]].tolist()
        raise _make_damaged_error(
            shard, f"it says that a chunk has {invalid[1]} bytes from {invalid[0]} on"
        )
    return begin.astype(np.int64), size.astype(np.int64)


def _build_manifest(rows: _ChunkLocations, sources: Sequence[SourceFile | bytes]) -> ChunkManifest:
    """Return a manifest of chunks in files or in the bytes of inline shards."""
    files = [source for source in sources if isinstance(source, SourceFile)]
    inline_rows = np.flatnonzero(rows.file >= len(files))
    file, offset = rows.file.copy(), rows.offset.copy()
    inline: list[bytes] = []
    for row in inline_rows.tolist():
        data, begin = sources[file[row]], int(offset[row])
        file[row], offset[row] = INLINE, len(inline)
        inline.append(bytes(data[begin : begin + int(rows.length[row])]))
    return ChunkManifest.build(
        file.shape, files=files, file=file, offset=offset, length=rows.length, inline=inline
    ).prune()


# ---------------------------------------------------------------------- indexes


def _read_indexes(shards: Sequence[_Shard], level: ShardLevel) -> list[npt.NDArray[np.uint64]]:
    """Return the indexes of shards, which are read concurrently."""

    def get_url(shard: _Shard) -> str | None:
        return None if isinstance(shard.file, bytes) else shard.file.url

    def read(shard: _Shard) -> npt.NDArray[np.uint64]:
        return _INDEX_CACHE.get((shard, level), lambda: _read_index(shard, level))

    return fetch_many(shards, get_url, read)


def _read_index(shard: _Shard, level: ShardLevel) -> npt.NDArray[np.uint64]:
    """Return the index of a shard, with offset and length along the last axis."""
    counts = tuple(shard.counts[i] for i in level.order)
    size = compute_index_size(level, counts)
    if shard.length < size:
        raise _make_damaged_error(shard, f"the shard has {shard.length} bytes, its index {size}")
    begin = 0 if level.at_start else shard.length - size
    data = fetch_bytes(shard.file, shard.offset + begin, size)
    decoder = Decoder(level.index, (*counts, 2))
    try:
        index = decoder.to_array_axes(decoder.decode(data, copy=True))
    except CodecError as error:
        raise _make_damaged_error(shard, f"{error}") from error
    return np.array(index, np.uint64)


def compute_index_size(level: ShardLevel, counts: Sequence[int]) -> int:
    """Return the size in bytes of an index with the given numbers of chunks."""
    size: int | None = 16 * prod(counts)
    for codec in level.index.codecs:
        size = None if size is None else codec.encoded_size(size)
        if size is None:
            raise UnsupportedError(
                f"codec {SHARDING!r}: its index is encoded with {codec.to_zarr_v2()['id']!r}, "
                f"which the specification forbids, since the length of the index then depends on "
                f"its content; open the data with zarr-python"
            )
    return size or 0


def _make_damaged_error(shard: _Shard, reason: str) -> ReadError:
    """Return the error for a shard with a damaged index."""
    url = "bytes held inline" if isinstance(shard.file, bytes) else shard.file.url
    return ReadError(
        f"{url}, bytes {shard.offset} to {shard.offset + shard.length}: the index of the shard is "
        f"damaged ({reason}); restore the file, or scan it again"
    )
