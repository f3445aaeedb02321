"""From which row on the references of an array are no longer those that its set holds.

Rows that stay as they are need not be written, and what lies in a set need not even be read to
know that: a lazy manifest says which rows of which table it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import INLINE
from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import c_strides
from virtualds.chunks.reference_table import MosaicTable, ReferenceTable, walked
from virtualds.codecs.vlen_text import decoded_text, encoded_text
from virtualds.formats.zarr.v2_metadata import chunk_grid
from virtualds.formats.zarr.v2_types import dtype_from_zarr_v2
from virtualds.source_file import SourceFile

OBJECTS = [{"id": "vlen-utf8"}]
"""The filters of strings of varying length."""


@dataclass(frozen=True)
class ArrayChunks:
    """An array of a set, or one that is to be written to it.

    Parameters
    ----------
    metadata : mapping
        Its ``.zarray``.
    manifest : ChunkManifest
    """

    metadata: Mapping[str, Any]
    manifest: ChunkManifest


def first_changed_row(before: ArrayChunks, after: ArrayChunks) -> int | None:
    """Return the number of the first row that is new or holds more than before.

    None if another row would have to change: they are numbered differently, there are fewer, or a
    reference is another one. Elements behind the end of an array are none, so a chunk that reaches
    beyond it may hold more than before.
    """
    old, new = before.manifest, after.manifest
    if not old.size:
        return 0
    shapes = [tuple(a.metadata["shape"]) for a in (before, after)]
    numbered_alike = len(shapes[0]) == len(shapes[1]) and old.shape[1:] == new.shape[1:]
    if not numbered_alike or shapes[0][1:] != shapes[1][1:] or shapes[0] > shapes[1]:
        return None
    first = old.size
    for ids, rows in walked(old, _kept_rows(old, new)):
        for place in np.flatnonzero(~_same(rows, new.at(ids))).tolist():
            row = int(ids[place])
            if not _grew(before, after, row):
                return None
            first = min(first, row)
    return first


def cut_alike(before: ArrayChunks, after: ArrayChunks) -> ArrayChunks:
    """Return values in memory in chunks as long as those that the set has of them.

    So values at the end of an array are rows at the end of its table. Whatever is no such values,
    or is not stored in the same way, comes back as it is.
    """
    old, new = before.metadata, after.metadata
    whole = [max(n, 1) for n in new["shape"]]
    if not (
        after.manifest.is_loaded
        and after.manifest.inline
        and after.manifest.size
        and list(new["chunks"]) == whole
        and _as_in_memory(new)
        and _as_in_memory(old)
        and new["dtype"] == old["dtype"]
        and whole[:1]
        and list(old["chunks"][1:]) == whole[1:]
    ):
        return after
    length = old["chunks"][0]
    metadata = {**new, "chunks": [length, *whole[1:]]}
    chunks = _cut(after.manifest.inline[0], metadata)
    manifest = ChunkManifest.build(
        chunk_grid(metadata),
        file=INLINE,
        offset=np.arange(len(chunks)).reshape(chunk_grid(metadata)),
        length=np.array([len(c) for c in chunks]).reshape(chunk_grid(metadata)),
        inline=chunks,
    )
    return ArrayChunks(metadata, manifest)


def sources_besides(
    manifest: ChunkManifest, is_known: Callable[[ReferenceTable], bool]
) -> Iterator[SourceFile]:
    """Yield the files of chunks, without reading those that lie in known tables."""
    for part in tables_besides(manifest, is_known):
        yield from part.pruned().sources


def tables_besides(
    manifest: ChunkManifest, is_known: Callable[[ReferenceTable], bool]
) -> Iterator[ChunkManifest]:
    """Yield what a manifest is put together of, but for what lies in known tables."""
    table = manifest.counting.table if isinstance(manifest, LazyManifest) else None
    if isinstance(table, MosaicTable):
        for _, part in table.parts:
            yield from tables_besides(part, is_known)
    elif table is None or not is_known(table):
        yield manifest


# ---------------------------------------------------------------------- rows that stay


def _kept_rows(old: ChunkManifest, new: ChunkManifest) -> int:
    """Return how many leading rows are those of the set at the same numbers, unread."""
    if not isinstance(old, LazyManifest):
        return 0
    row, table = 0, old.counting.table
    for origin, part in _parts(new):
        if not part.size:
            continue
        begin = np.ravel_multi_index(origin, new.shape) if origin else 0
        if begin != row or part.shape[1:] != new.shape[1:] or not _counts(part, table, row):
            break
        row += part.size
    return min(row, old.size)


def _parts(manifest: ChunkManifest) -> Iterable[tuple[tuple[int, ...], ChunkManifest]]:
    """Return what a manifest is put together of, and where each part begins."""
    if isinstance(manifest, LazyManifest):
        table = manifest.counting.table
        if isinstance(table, MosaicTable) and _counts(manifest, table, 0, table.grid):
            return sorted(table.parts, key=lambda part: part[0])
    return [((0,) * len(manifest.shape), manifest)]


def _counts(
    manifest: ChunkManifest, table: ReferenceTable, row: int, grid: tuple[int, ...] | None = None
) -> bool:
    """Say whether chunks, in C order, are the rows of a table from one row on."""
    if not isinstance(manifest, LazyManifest):
        return False
    found = manifest.counting
    strides = zip(found.shape, found.strides, c_strides(found.shape), strict=True)
    return (
        found.table == table
        and found.first == row
        and not any(found.renumbered or ())
        and grid in (None, found.shape)
        and all(n == 1 or stride == step for n, stride, step in strides)
    )


def _same(one: ChunkManifest, other: ChunkManifest) -> npt.NDArray[np.bool_]:
    """Say of every row whether both refer to the same bytes."""
    urls: dict[str, int] = {}
    codes = []
    for rows in (one, other):
        known = [urls.setdefault(file.url, len(urls)) for file in rows.files]
        # negative codes count from the end
        codes.append(np.array([*known, INLINE, -1], np.int64)[rows.file])
    where = (one.offset == other.offset) & (one.length == other.length)
    same = (codes[0] == codes[1]) & (where | (codes[0] < 0))
    for row in np.flatnonzero(same & (codes[0] == INLINE)).tolist():
        same[row] = one.inline[one.offset[row]] == other.inline[other.offset[row]]
    return np.asarray(same, np.bool_)


# ---------------------------------------------------------------------- values in memory


def _as_in_memory(metadata: Mapping[str, Any]) -> bool:
    """Say whether the chunks of an array hold its values as they are in memory."""
    filters = metadata.get("filters") or []
    plain: bool = filters == (OBJECTS if metadata["dtype"] == "|O" else [])
    return plain and metadata.get("compressor") is None and metadata.get("order") in ("C", None)


def _grew(before: ArrayChunks, after: ArrayChunks, row: int) -> bool:
    """Say whether a chunk differs only in elements that lie behind the end of the old array."""
    shape, chunks = before.metadata["shape"], before.metadata["chunks"]
    alike = all(before.metadata[k] == after.metadata[k] for k in ("chunks", "dtype"))
    if not (shape and alike and all(_as_in_memory(a.metadata) for a in (before, after))):
        return False
    ids = np.array([row])
    old, new = (a.manifest.at(ids) for a in (before, after))
    if old.file[0] != INLINE or new.file[0] != INLINE:
        return False
    slab = row // prod(before.manifest.shape[1:])
    count = min(shape[0] - slab * chunks[0], chunks[0]) * prod(chunks[1:])
    one, other = (rows.inline[int(rows.offset[0])] for rows in (old, new))
    if before.metadata["dtype"] == "|O":
        return bool((decoded_text(one)[:count] == decoded_text(other)[:count]).all())
    size = dtype_from_zarr_v2(before.metadata["dtype"]).itemsize
    return one[: count * size] == other[: count * size]


def _cut(data: bytes, metadata: Mapping[str, Any]) -> list[bytes]:
    """Return the values of an array, given as one chunk, in chunks along its first axis."""
    count = prod(metadata["chunks"])
    total = chunk_grid(metadata)[0] * count
    if metadata["dtype"] == "|O":
        texts = np.full(total, "", object)
        found = decoded_text(data)
        texts[: found.size] = found
        return [encoded_text(texts[i : i + count]) for i in range(0, total, count)]
    size = dtype_from_zarr_v2(metadata["dtype"]).itemsize
    data = data.ljust(total * size, b"\0")
    return [data[i : i + count * size] for i in range(0, len(data), count * size)]
