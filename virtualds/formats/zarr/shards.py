"""Sharded arrays of Zarr v3, shown with their inner chunks as chunks.

Codec ``sharding_indexed`` (zarr-specs, "Sharding codec", version 1.0). References point to inner
chunks, which are decoded one by one. Only the index of a shard is read, by one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from virtualds.chunks.fragment import ChunkAxis
from virtualds.errors import FormatError, UnsupportedError
from virtualds.formats.zarr.codecs import Entry, pipeline_from_v3
from virtualds.formats.zarr.data_types import parse_extension
from virtualds.formats.zarr.shard_index import (
    EMPTY_CHUNK,
    SHARDING,
    ShardLevel,
    ShardTable,
    compute_index_size,
)
from virtualds.formats.zarr.transpose import parse_order
from virtualds.formats.zarr.v3_arrays import ManifestPart, Manifests
from virtualds.formats.zarr.v3_metadata import axes_from_v3

# ---------------------------------------------------------------------- metadata


def expand_shards(
    metadata: Mapping[str, Any], manifests: Manifests
) -> tuple[Mapping[str, Any], Manifests]:
    """Return the metadata of an array with inner chunks as its chunks, and where these lie.

    Arrays without shards are returned unchanged.

    Parameters
    ----------
    metadata : mapping
        The content of ``zarr.json``.
    manifests : callable
        Where the shards lie.

    Raises
    ------
    FormatError
        Chunks do not divide the shards that hold them, or the metadata are invalid.
    UnsupportedError
        Shards are compressed as a whole, or the length of their index is unknown.
    """
    codecs, levels = _parse_levels(metadata)
    if not levels:
        return metadata, manifests
    shape, inner = tuple(metadata["shape"]), levels[-1].chunk
    shards = axes_from_v3(shape, metadata["chunk_grid"])
    _check_divided(shards, levels)
    grid = {"name": "regular", "configuration": {"chunk_shape": list(inner)}}

    def parts(grids: list[tuple[int, ...]], numbered: int) -> list[ManifestPart]:
        [wanted] = grids
        found = manifests([tuple(axis.nchunks for axis in shards)], 0)
        return [_expand_part(part, shards, wanted, levels) for part in found]

    return {**metadata, "chunk_grid": grid, "codecs": codecs}, parts


def _parse_levels(metadata: Mapping[str, Any]) -> tuple[list[Any], tuple[ShardLevel, ...]]:
    """Return the codecs of the innermost chunks, and the levels of shards around them."""
    order = tuple(range(len(metadata["shape"])))
    around: list[Any] = []
    levels: list[ShardLevel] = []
    codecs = list(metadata["codecs"])
    chain = _parse_chain(codecs)
    while place := 1 + next((n for n, (name, _) in enumerate(chain) if name == SHARDING), -1):
        for name, config in chain[: place - 1]:
            if name != "transpose":
                raise _unsupported_error(name)
            order = tuple(order[i] for i in parse_order(config, len(order)))
        if chain[place:]:
            raise _unsupported_error(chain[place][0])
        around += codecs[: place - 1]
        config = chain[place - 1][1]
        levels.append(_parse_level(config, order))
        codecs = list(config["codecs"])
        chain = _parse_chain(codecs)
    return [*around, *codecs], tuple(levels)


def _parse_chain(codecs: Sequence[Any]) -> list[Entry]:
    return [parse_extension(entry, "codec") for entry in codecs]


def _unsupported_error(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"codec {name!r} around {SHARDING!r}: shards are encoded as a whole, so that no chunk can "
        f"be read on its own; open the data with zarr-python, or write them without it"
    )


def _parse_level(config: Mapping[str, Any], order: tuple[int, ...]) -> ShardLevel:
    """Return a level from its configuration; its axes are as earlier codecs have ordered them."""
    chunk, location = config.get("chunk_shape"), config.get("index_location", "end")
    whole = isinstance(chunk, list | tuple) and all(type(n) is int and n > 0 for n in chunk)
    if not whole or len(chunk or ()) != len(order) or location not in ("start", "end"):
        raise FormatError(
            f"codec {SHARDING!r}: chunk_shape {chunk!r} of {len(order)} axes, index_location "
            f"{location!r}; the metadata is damaged"
        )
    for key in ("codecs", "index_codecs"):
        if not isinstance(config.get(key), list | tuple):
            raise FormatError(
                f"codec {SHARDING!r}: {key} {config.get(key)!r}; the metadata is damaged"
            )
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


def _check_divided(shards: Sequence[ChunkAxis], levels: Sequence[ShardLevel]) -> None:
    """Refuse chunks that do not divide the shards that hold them."""
    for axis, cut in enumerate(shards):
        for held in sorted(cut.stored_lengths()):
            for level in levels:
                chunk = level.chunk[axis]
                if held % chunk:
                    raise FormatError(
                        f"codec {SHARDING!r}: chunks of {chunk} along axis {axis} do not divide "
                        f"shards of {held}; the metadata is damaged"
                    )
                held = chunk


def _expand_part(
    part: ManifestPart,
    shards: Sequence[ChunkAxis],
    grid: tuple[int, ...],
    levels: tuple[ShardLevel, ...],
) -> ManifestPart:
    """Return the innermost chunks of a part of the shards."""
    origin, edges, shape = [], [], []
    counts = zip(part.origin, part.manifest.shape, strict=True)
    for cut, (first, count), size, chunk in zip(
        shards, counts, grid, levels[-1].chunk, strict=True
    ):
        before = int(cut.slabs(0, first).encoded.sum()) // chunk
        inside = cut.slabs(first, first + count).encoded // chunk
        edges.append(np.concatenate([[0], np.cumsum(inside)]))
        origin.append(before)
        # the last shard may reach past the end of the array
        shape.append(min(int(edges[-1][-1]), size - before))
    table = ShardTable(part.manifest, tuple(edges), tuple(shape), levels)
    return ManifestPart(part.fragment, tuple(origin), table.to_manifest())
