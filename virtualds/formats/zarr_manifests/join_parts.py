"""Choose the tables to which the references of an array are written, and join small tables.

Parts are adjacent along an axis, as after appends, or overlap as layers, as after writes to
regions. Layers list their chunks by index, and the last layer that has a chunk takes precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np

from virtualds.chunks.manifest import ChunkManifest, gather_references, iterate_blocks
from virtualds.chunks.tables import SparseReferences, TiledReferences, is_sparse, split_layers
from virtualds.errors import FormatError
from virtualds.formats.kerchunk.records import find_same_rows
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr_manifests.parquet_table import RECORD_SIZE, ParquetTable

MAX_INLINE = 16
"""Maximum number of chunks of an array, or of its newest part, whose references are in metadata."""
MAX_JSON = 4096
"""Maximum number of chunks of an array whose manifest is JSON, and of a small part."""
TABLES_PER_TIER = 4
"""The number of tables of similar size that are merged into one."""
MAX_JOINED = 2**23
"""Maximum number of references of a table that an append merges from others."""
MAX_GROWTH = 4
"""The ratio of the size of a table to that of its neighbours above which they are not merged."""
MAX_SMALL = 16
"""Fewer pairs of adjacent tables than this stay unmerged, although they could be merged."""

COMPARED_AT_ONCE = 100_000
"""The number of references that are compared at a time."""
AS_LAYERS = -1
"""The value that replaces an axis if parts are layers."""

FindTable = Callable[[ManifestPart], Hashable | None]
"""A function that returns the name of the table of the set in which a part is, or None."""


def join_small_parts(
    parts: list[ManifestPart],
    is_new: Callable[[ManifestPart], bool],
    find_table: FindTable,
    has_pipelines: bool = False,
    merges: bool = True,
) -> list[ManifestPart]:
    """Merge small adjacent parts, so that small additions do not leave many small tables.

    References that are not in a table yet become one part. Tables are merged as in a log-structured
    merge tree (O'Neil et al. 1996, with tiers): `TABLES_PER_TIER` tables of one size are merged
    into one of the next size, so that each reference is written only a few times. Parts that
    another process has just written (``is_new``) are not merged, since all of them would have to be
    read again. ``has_pipelines`` says whether chunks, including missing ones, have a pipeline.
    Without ``merges``, tables stay as they are.

    ``parts`` do not overlap, and each returned part is one table. Of manifests with one pipeline
    for all missing chunks (``rest``), only references are written, with the indices of their
    chunks.
    """
    runs: list[_AdjacentParts] = []
    for run in (
        run for part in parts for run in _split_layers(part, is_new, find_table, has_pipelines)
    ):
        last = runs[-1] if runs else None
        if (
            last is not None
            and last.is_unwritten
            and run.is_unwritten
            and last.can_write_together(run)
        ):
            last.append(run)
        else:
            runs.append(run)
    if not merges:
        return [run.merge() for run in runs]
    while tier := _find_tier(runs):
        runs[tier] = [_join_runs(runs[tier])]
    # insertions between existing data split tables, so join the smallest neighbours as well
    while True:
        joints = [
            (left.size + right.size, index)
            for index, (left, right) in enumerate(pairwise(runs))
            if left.can_join(right)
        ]
        if len(joints) < MAX_SMALL:
            return [run.merge() for run in runs]
        _, index = min(joints)
        runs[index : index + 2] = [_join_runs(runs[index : index + 2])]


class _AdjacentParts:
    """Adjacent parts to write as one table; a single part may be in a table of the set.

    Layers have ``size`` references, and their missing chunks have the pipeline ``rest``.
    """

    def __init__(
        self,
        part: ManifestPart,
        table: Hashable | None = None,
        is_new: bool = False,
        rest: int | None = None,
        size: int | None = None,
    ) -> None:
        self.parts, self.shape = [part], part.manifest.shape
        self.table, self.is_new, self.rest = table, is_new, rest
        self.size = part.manifest.size if size is None else size
        self._axis: int | None = None

    @property
    def is_unwritten(self) -> bool:
        """Whether the parts are in no table of the set, so that they must be written."""
        return self.table is None

    @property
    def tier(self) -> int:
        """The tier of the size, or -1 if metadata may contain so few references."""
        return ((self.size // (MAX_INLINE + 1)).bit_length() - 1) // (
            TABLES_PER_TIER.bit_length() - 1
        )

    def find_axis(self, right: _AdjacentParts) -> int | None:
        """Return the axis along which ``right`` follows these parts, or None if there is none."""
        first, next_part = self.parts[0], right.parts[0]
        if first.fragment != next_part.fragment or (self.rest is None) != (right.rest is None):
            return None
        if self.rest is not None:
            return AS_LAYERS
        extents = zip(first.origin, self.shape, next_part.origin, right.shape, strict=True)
        axes = [(axis, a + n == b) for axis, (a, n, b, m) in enumerate(extents) if (a, n) != (b, m)]
        return axes[0][0] if len(axes) == 1 and axes[0][1] else None

    def can_join(self, right: _AdjacentParts) -> bool:
        """Return whether two runs are adjacent, one of them small, and both fit in one record."""
        small, large = sorted((self.size, right.size))
        if small > MAX_JSON or small + large > RECORD_SIZE or self.is_new or right.is_new:
            return False
        return self.find_axis(right) is not None

    def can_write_together(self, right: _AdjacentParts) -> bool:
        """Return whether to write ``right`` in one table with these parts if both are unwritten."""
        return self.find_axis(right) == AS_LAYERS or self.can_join(right)

    def append(self, right: _AdjacentParts) -> None:
        """Add the parts of a run that follows these parts."""
        axis = self.find_axis(right)
        if axis is None:
            raise ValueError(f"{right.parts[0].origin} is not adjacent to {self.parts[0].origin}")
        if {self._axis, right._axis} <= {None, axis}:
            self.parts += right.parts
        else:
            self.parts = [self.merge(), right.merge()]
        if axis != AS_LAYERS:
            length = self.shape[axis] + right.shape[axis]
            self.shape = (*self.shape[:axis], length, *self.shape[axis + 1 :])
        self.size += right.size
        self.table, self._axis = None, axis

    def merge(self) -> ManifestPart:
        """Return all parts as one part."""
        if len(self.parts) == 1:
            return self.parts[0]
        if self.rest is not None:
            return _merge_layers(self.parts, self.rest)
        return _concatenate(self.parts, self._axis or 0)


# ---------------------------------------------------------------------- layers


def _split_layers(
    part: ManifestPart,
    is_new: Callable[[ManifestPart], bool],
    find_table: FindTable,
    has_pipelines: bool,
) -> Iterator[_AdjacentParts]:
    """Yield a part, or its layers with the uppermost last."""
    table, used_pipelines = find_table(part), part.manifest.used_pipelines(2)
    has_layers = part.manifest.get_table(TiledReferences) is not None
    if table is None and used_pipelines.size == 1 and not has_layers:
        # a few references on a huge grid are written as a layer
        existing = part.manifest.find_existing()
        has_layers = existing is not None and is_sparse(part.manifest.size, existing.size)
    if table is not None or used_pipelines.size != 1 or not has_layers:
        yield _AdjacentParts(part, table, is_new(part))
        return
    [rest], is_empty = used_pipelines.tolist(), True
    for origin, manifest in split_layers(part.manifest):
        origin_in_grid = tuple(a + b for a, b in zip(part.origin, origin, strict=True))
        layer = ManifestPart(part.fragment, origin_in_grid, manifest)
        table = find_table(layer)
        if isinstance(table, ParquetTable) and table.begins is not None:
            yield _AdjacentParts(layer, table, is_new(layer), rest, table.rows)
        elif table is not None or _is_full(manifest):
            yield _AdjacentParts(layer, table, is_new(layer))
        elif (merged := _merge_layers([layer], rest)).manifest.size:
            yield _AdjacentParts(merged, rest=rest, size=gather_references(merged.manifest)[0].size)
        else:
            continue
        is_empty = False
    if is_empty and has_pipelines:
        # a table without rows records the pipeline of missing chunks
        yield _AdjacentParts(_merge_layers([part], rest), rest=rest)


def _is_full(manifest: ChunkManifest) -> bool:
    """Return whether to write all rows of a large manifest, since few chunks are missing."""
    existing = manifest.find_existing()
    return manifest.size > RECORD_SIZE and (
        existing is None or not is_sparse(manifest.size, existing.size)
    )


def _merge_layers(parts: Sequence[ManifestPart], rest: int) -> ManifestPart:
    """Return layers, the uppermost last, merged into one part with the smallest box around them."""
    places, rows = [], []
    for part in parts:
        ids, references = gather_references(part.manifest)
        if ids.size:
            inner = np.stack(np.unravel_index(ids, part.manifest.shape))
            places.append(inner + np.reshape(part.origin, (-1, 1)))
            rows.append(references)
    if not places:
        empty = SparseReferences(np.zeros(0, np.int64), ChunkManifest.missing((0,)), rest)
        origin = tuple(np.min([part.origin for part in parts], axis=0).tolist())
        manifest = ChunkManifest.from_table(empty, (0,) * len(origin))
        return ManifestPart(parts[0].fragment, origin, manifest)
    first = np.min([place.min(1) for place in places], axis=0)
    box = tuple((np.max([place.max(1) for place in places], axis=0) - first + 1).tolist())
    numbers = [np.ravel_multi_index(tuple(place - first[:, None]), box) for place in places]
    order = sorted(range(len(numbers)), key=lambda layer: int(numbers[layer][0]))
    if all(numbers[left][-1] < numbers[right][0] for left, right in pairwise(order)):
        # the layers follow one another, as when writers fill regions
        chunk_ids = np.concatenate([numbers[layer] for layer in order])
        references = ChunkManifest.concatenate([rows[layer] for layer in order], 0)
    else:
        chunk_ids, selected = np.unique(np.concatenate(numbers[::-1]), return_index=True)
        # rows of lower layers may name an earlier state of a file, so keep only selected ones
        references = ChunkManifest.concatenate(rows[::-1], 0).at(selected)
    table = SparseReferences(chunk_ids.astype(np.int64), references.prune(), rest)
    manifest = ChunkManifest.from_table(table, box)
    return ManifestPart(parts[0].fragment, tuple(first.tolist()), manifest)


# ---------------------------------------------------------------------- tiers


def _join_runs(runs: Sequence[_AdjacentParts]) -> _AdjacentParts:
    """Return adjacent runs as one run."""
    first, *others = runs
    for run in others:
        first.append(run)
    return first


def _find_tier(runs: Sequence[_AdjacentParts]) -> slice | None:
    """Return the adjacent runs to merge: those of the lowest full tier, and lower runs between."""
    for tier in sorted({run.tier for run in runs} - {-1}):
        for begin, stop in _iterate_windows(runs, tier):
            in_tier = [n for n in range(begin, stop) if runs[n].tier == tier]
            # count tables, since later insertions may have split a table into several runs
            tables = {runs[n].table or n for n in in_tier}
            if len(tables) >= TABLES_PER_TIER:
                return slice(in_tier[0], in_tier[-1] + 1)
    return None


def _iterate_windows(runs: Sequence[_AdjacentParts], tier: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of runs that are adjacent along one axis, and not of a higher tier."""
    begin, window_axis = 0, None
    for n in range(1, len(runs) + 1):
        axis = runs[n - 1].find_axis(runs[n]) if n < len(runs) else None
        is_break = n < len(runs) and (runs[n].tier > tier or runs[n].is_new)
        is_break = is_break or sum(run.size for run in runs[begin : n + 1]) > MAX_JOINED
        if axis is None or is_break or runs[n - 1].tier > tier or window_axis not in (None, axis):
            yield begin, n
            begin, window_axis = n, None
        else:
            window_axis = axis


def join_all_parts(parts: list[ManifestPart]) -> list[ManifestPart]:
    """Return parts merged until no two form a box, except for much larger tables."""
    merged, last_count = list(parts), len(parts) + 1
    while len(merged) < last_count:
        last_count = len(merged)
        for axis in reversed(range(max((len(part.origin) for part in merged), default=0))):
            merged = _join_along(merged, axis)
    return merged


def _join_along(parts: list[ManifestPart], axis: int) -> list[ManifestPart]:
    """Return parts merged along an axis where they are adjacent and agree in all other axes."""

    def locate(part: ManifestPart) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        origin, shape = part.origin, part.manifest.shape
        return (
            part.fragment,
            origin[:axis] + origin[axis + 1 :],
            shape[:axis] + shape[axis + 1 :],
        )

    # fragments may have different numbers of axes
    with_axis = [part for part in parts if len(part.origin) > axis]
    merged = [part for part in parts if len(part.origin) <= axis]
    ordered = sorted(with_axis, key=lambda part: (*locate(part), part.origin[axis]))
    for _, candidates in groupby(ordered, key=locate):
        run: list[ManifestPart] = []
        for part in candidates:
            if run and run[-1].origin[axis] + run[-1].manifest.shape[axis] != part.origin[axis]:
                merged += _join_run(run, axis)
                run = []
            run.append(part)
        merged += _join_run(run, axis)
    return merged


def _join_run(run: Sequence[ManifestPart], axis: int) -> list[ManifestPart]:
    """Return adjacent parts merged into one.

    A part that is much larger than all others stays separate, and divides its neighbours.
    """
    if len(run) < 2:
        return list(run)
    sizes = [part.manifest.size for part in run]
    index, total = int(np.argmax(sizes)), sum(sizes)
    if sizes[index] > max(MAX_GROWTH * (total - sizes[index]), RECORD_SIZE - 1):
        before, after = run[:index], run[index + 1 :]
        return [*_join_run(before, axis), run[index], *_join_run(after, axis)]
    return [_concatenate(run, axis)]


def _concatenate(parts: Sequence[ManifestPart], axis: int) -> ManifestPart:
    """Return adjacent parts as one part, whose references are read when it is written.

    Writers thus need memory for one record, however many variables and references there are.
    """
    first, manifests = parts[0], [part.manifest for part in parts]
    if any(
        bool(m.pipeline.any())
        if m.rows is None
        else m.rows.table.has_pipelines or m.rows.only_pipeline
        for m in manifests
    ):
        # lazy tiles cannot have pipelines, so load the references
        return first._replace(manifest=ChunkManifest.concatenate(manifests, axis))
    length = sum(manifest.shape[axis] for manifest in manifests)
    grid = (*first.manifest.shape[:axis], length, *first.manifest.shape[axis + 1 :])
    positions = (tuple(np.subtract(part.origin, first.origin).tolist()) for part in parts)
    table = TiledReferences(grid, tuple(zip(positions, manifests, strict=True)))
    return first._replace(manifest=ChunkManifest.from_table(table, grid))


def flatten_layers(parts: list[ManifestPart], has_pipelines: bool) -> Iterator[ManifestPart]:
    """Yield each part in the form in which it is written as one table."""
    for part in parts:
        existing, used_pipelines = part.manifest.find_existing(), part.manifest.used_pipelines(2)
        if (
            existing is None
            or not is_sparse(part.manifest.size, existing.size)
            or used_pipelines.size != 1
        ):
            yield part
        elif existing.size or has_pipelines:
            yield _merge_layers([part], int(used_pipelines[0]))


def count_layers(part: ManifestPart) -> int:
    """Return the number of tables to which a part is written."""
    return max(len(split_layers(part.manifest)), 1)


# ---------------------------------------------------------------------- verification


def check_same_parts(
    before: Mapping[str, list[ManifestPart]], after: Mapping[str, list[ManifestPart]], url: str
) -> None:
    """Raise an error unless all references of a set are unchanged, before it is committed.

    The parts of each array must have been merged as far as possible.
    """

    def locate(part: ManifestPart) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        return part.fragment, part.origin, part.manifest.shape

    for name in dict.fromkeys([*before, *after]):
        old, new = (sorted(parts.get(name, []), key=locate) for parts in (before, after))
        is_same_grid = list(map(locate, old)) == list(map(locate, new))
        if not is_same_grid or not all(map(_is_same, old, new)):
            raise FormatError(
                f"{url}: the references of {name!r} would differ after this change; nothing has "
                f"been written, please report it"
            )


def _is_same(before: ManifestPart, after: ManifestPart) -> bool:
    """Return whether all chunks of two parts have the same references, pipelines and checksums."""
    if (
        not before.manifest.is_loaded
        and before.manifest.__reduce__() == after.manifest.__reduce__()
    ):
        # the same rows of the same table
        return True
    for ids, rows in iterate_blocks(before.manifest, block_size=COMPARED_AT_ONCE):
        others = after.manifest.at(ids)
        is_same_decoding = all(
            np.array_equal(getattr(rows, name), getattr(others, name))
            for name in ("pipeline", "checksum")
        )
        if not is_same_decoding or not find_same_rows(rows, others).all():
            return False
    return True
