"""What differs between two tables of references, and which records of a set that concerns.

Unchanged rows need not be written. Rows of a set need not even be read: a lazy manifest says which
rows of which table it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import BLOCK_CHUNKS, ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.table import Table
from virtualds.chunks.tables import TiledReferences, list_other_parts
from virtualds.codecs.vlen_text import decode_text, encode_text
from virtualds.formats.zarr.data_types import dtype_from_zarr_v2
from virtualds.formats.zarr.v2_arrays import read_chunk_grid
from virtualds.source_file import SourceFile

OBJECTS = [{"id": "vlen-utf8"}]
"""The filters of strings of varying length."""


@dataclass(frozen=True)
class ArrayChunks:
    """An array of a set, or one to write to it.

    Parameters
    ----------
    metadata : mapping
        Its ``.zarray``.
    manifest : ChunkManifest
    """

    metadata: Mapping[str, Any]
    manifest: ChunkManifest


class RecordChanges(NamedTuple):
    """What a change does to the records of an array.

    ``records`` are the numbers of those that hold other rows than before. ``keeps`` says whether
    every old row stays as readers use it: elements past the end of an array do not count, so a
    chunk that reaches past it may grow.
    """

    records: set[int]
    keeps: bool


def find_changed_records(before: ArrayChunks, after: ArrayChunks, size: int) -> RecordChanges:
    """Compare the rows of an array with those of a set, record by record.

    Rows of the set itself, at their old numbers, are not read.
    """
    old, new = before.manifest, after.manifest
    shapes = [tuple(a.metadata["shape"]) for a in (before, after)]
    numbered_alike = len(shapes[0]) == len(shapes[1]) and old.shape[1:] == new.shape[1:]
    # longer chunks are fewer, of an array of the same shape
    shrinks = shapes[0] > shapes[1] or new.size < old.size
    keeps = numbered_alike and shapes[0][1:] == shapes[1][1:] and not shrinks
    if not old.size:
        keeps, old = True, ChunkManifest.missing((0,))
    both = min(old.size, new.size)
    # a record with a new row is written even if that chunk is missing
    changed = set(range(both // size, -(-new.size // size))) if both < new.size else set[int]()
    for ids in _list_rows(old, new, both):
        for part in np.split(ids, np.flatnonzero(np.diff(ids // size)) + 1):
            same = find_same_rows(old.at(part), new.at(part))
            if not same.all():
                changed.add(int(part[0]) // size)
                keeps = keeps and all(_has_grown(before, after, int(row)) for row in part[~same])
    return RecordChanges(changed, keeps)


def cut_alike(before: ArrayChunks, after: ArrayChunks) -> ArrayChunks:
    """Return values in memory, cut into chunks as long as those of the set.

    So new values at the end of an array are new rows at the end of its table. Other arrays, and
    values that are stored in another way, are returned unchanged.
    """
    old, new = before.metadata, after.metadata
    whole = [max(n, 1) for n in new["shape"]]
    if not (
        after.manifest.is_loaded
        and after.manifest.inline
        and after.manifest.size
        and list(new["chunks"]) == whole
        and _is_as_in_memory(new)
        and _is_as_in_memory(old)
        and new["dtype"] == old["dtype"]
        and whole[:1]
        and list(old["chunks"][1:]) == whole[1:]
    ):
        return after
    length = old["chunks"][0]
    metadata = {**new, "chunks": [length, *whole[1:]]}
    chunks = _cut_values(after.manifest.inline[0], metadata)
    manifest = ChunkManifest.build(
        read_chunk_grid(metadata),
        file=INLINE,
        offset=np.arange(len(chunks)).reshape(read_chunk_grid(metadata)),
        length=np.array([len(c) for c in chunks]).reshape(read_chunk_grid(metadata)),
        inline=chunks,
    )
    return ArrayChunks(metadata, manifest)


def list_other_sources(
    manifest: ChunkManifest, is_known: Callable[[Table], bool]
) -> Iterator[SourceFile]:
    """Yield the files of chunks, without reading those that lie in known tables."""
    for part in list_other_parts(manifest, is_known):
        yield from part.pruned().sources


# ---------------------------------------------------------------------- rows that stay


def _list_rows(old: ChunkManifest, new: ChunkManifest, both: int) -> Iterator[Ints]:
    """Yield the numbers of rows below ``both`` that may differ, in blocks."""
    runs, before, after = _find_kept_rows(old, new), old.find_existing(), new.find_existing()
    ends = [*(edge for run in runs for edge in run), both]
    # rows that exist in neither are missing in both
    listed = None if before is None or after is None else np.union1d(before, after)
    for begin, end in zip([0, *ends[1::2]], ends[::2], strict=True):
        known = listed[(listed >= begin) & (listed < end)] if listed is not None else None
        count = end - begin if known is None else known.size
        for first in range(0, count, BLOCK_CHUNKS):
            ids = np.arange(first, min(first + BLOCK_CHUNKS, count))
            yield begin + ids if known is None else known[ids]


def _find_kept_rows(old: ChunkManifest, new: ChunkManifest) -> list[tuple[int, int]]:
    """Return runs of rows that are the same rows of the set, without reading them."""
    found = list[tuple[int, int]]()
    for origin, part in _list_parts(new):
        begin = int(np.ravel_multi_index(origin, new.shape)) if origin and part.size else 0
        end = min(begin + part.size, old.size)
        is_run = part.shape[1:] == new.shape[1:] and part.counts(old.table, begin)
        if begin < end and is_run:
            found.append((begin, end))
    return found


def _list_parts(manifest: ChunkManifest) -> Iterable[tuple[tuple[int, ...], ChunkManifest]]:
    """Return the parts of a manifest, and where each begins."""
    table = manifest.table_of(TiledReferences)
    if table is not None and manifest.shape == table.grid and manifest.counts(table):
        return [] if table.has_overlaps else sorted(table.parts, key=lambda part: part[0])
    return [((0,) * len(manifest.shape), manifest)]


def find_same_rows(one: ChunkManifest, other: ChunkManifest) -> npt.NDArray[np.bool_]:
    """Return for every row of two tables whether both refer to the same bytes."""
    if other.files[: len(one.files)] == one.files:
        # the table of files has grown, as in an append
        numbers = np.arange(len(other.files))
        tables = [numbers[: len(one.files)], numbers]
    else:
        known: dict[str, int] = {}
        tables = [
            np.array([known.setdefault(file.url, len(known)) for file in rows.files], np.int64)
            for rows in (one, other)
        ]
    # negative numbers of rows count from the end
    first, second = (
        np.append(table, (INLINE, MISSING))[rows.file]
        for table, rows in zip(tables, (one, other), strict=True)
    )
    where = (one.offset == other.offset) & (one.length == other.length)
    same = np.asarray((first == second) & (where | (first < 0)), np.bool_)
    for row in np.flatnonzero(same & (first == INLINE)).tolist():
        same[row] = one.inline[one.offset[row]] == other.inline[other.offset[row]]
    return same


# ---------------------------------------------------------------------- values in memory


def _is_as_in_memory(metadata: Mapping[str, Any]) -> bool:
    """Say whether the chunks of an array hold its values as they are in memory."""
    filters = metadata.get("filters") or []
    plain: bool = filters == (OBJECTS if metadata["dtype"] == "|O" else [])
    return plain and metadata.get("compressor") is None and metadata.get("order") in ("C", None)


def _has_grown(before: ArrayChunks, after: ArrayChunks, row: int) -> bool:
    """Say whether a chunk differs only in elements past the end of the old array."""
    shape, chunks = before.metadata["shape"], before.metadata["chunks"]
    alike = all(before.metadata[k] == after.metadata[k] for k in ("chunks", "dtype"))
    if not (shape and alike and all(_is_as_in_memory(a.metadata) for a in (before, after))):
        return False
    ids = np.array([row])
    old, new = (a.manifest.at(ids) for a in (before, after))
    if old.file[0] != INLINE or new.file[0] != INLINE:
        return False
    slab = row // prod(before.manifest.shape[1:])
    count = min(shape[0] - slab * chunks[0], chunks[0]) * prod(chunks[1:])
    one, other = (rows.inline[int(rows.offset[0])] for rows in (old, new))
    if before.metadata["dtype"] == "|O":
        return bool((decode_text(one)[:count] == decode_text(other)[:count]).all())
    size = dtype_from_zarr_v2(before.metadata["dtype"]).itemsize
    return one[: count * size] == other[: count * size]


def _cut_values(data: bytes, metadata: Mapping[str, Any]) -> list[bytes]:
    """Return the values of an array, given as one chunk, in chunks along its first axis."""
    count = prod(metadata["chunks"])
    total = read_chunk_grid(metadata)[0] * count
    if metadata["dtype"] == "|O":
        texts = np.full(total, "", object)
        found = decode_text(data)
        texts[: found.size] = found
        return [encode_text(texts[i : i + count]) for i in range(0, total, count)]
    size = dtype_from_zarr_v2(metadata["dtype"]).itemsize
    data = data.ljust(total * size, b"\0")
    return [data[i : i + count * size] for i in range(0, len(data), count * size)]
