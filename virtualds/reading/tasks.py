"""Tasks, batches and tiles: units of work for the chunks of a selection, and how they are decoded.

A task is one chunk to fetch and decode. Within a block, tasks are sorted by offset, so that
neighbours in a file are fetched together, even if they are not neighbours in the array.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, product, repeat
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.axes import Projection, SlabRun
from virtualds.chunks.columns import COLUMNS, Column, Ints
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.cf import TimePacking
from virtualds.codecs.codec import Codec, CodecError
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis
from virtualds.options import count_cores
from virtualds.stores import find_store
from virtualds.stores.store import Range, RequestLimits, Store
from virtualds.streams import Buffer, Bytes

BATCH_TASKS = 256
"""Maximum number of tasks of a batch."""

BATCH_BYTES = 2**20
"""Maximum encoded size in bytes of a batch."""

PLAIN_BATCH_BYTES = 2**22
"""Maximum size in bytes of a batch without codecs, where each call costs relatively more."""

MIN_BATCH_BYTES = 2**18
"""Size in bytes below which a batch is not divided among cores."""

BLOCK_TASKS = 2**16
"""Number of tasks that are planned, and sorted by offset, at a time."""

IntColumn = npt.NDArray[np.integer]


class Task(NamedTuple):
    """One chunk to fetch and to decode into the result.

    ``inner`` is the index into the decoded chunk, with the axes of the array, and ``outer`` the
    index into the result. For a pointwise selection, ``point_axes`` are the axes that are
    indexed together. ``other_pairs`` are further pairs of ``inner`` and ``outer`` if several slabs
    share the chunk. ``checksum`` is that of the manifest, 0 for none.
    """

    offset: int
    length: int
    pipeline: int
    encoded: tuple[int, ...]
    inner: tuple[Any, ...]
    outer: tuple[Any, ...]
    point_axes: tuple[int, ...] = ()
    other_pairs: tuple[tuple[Any, Any], ...] = ()
    checksum: int = 0

    @property
    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Every pair of ``inner`` and ``outer``."""
        return chain([(self.inner, self.outer)], self.other_pairs)


class Batch(NamedTuple):
    """Tasks of one file with its store, or tasks of missing or inline chunks of a fragment."""

    fragment: Fragment
    pipelines: Sequence[CodecPipeline]
    file: int
    store: Store | None
    tasks: list[Task]

    @property
    def ranges(self) -> list[Range]:
        """The byte ranges of all tasks."""
        return [(task.offset, task.length) for task in self.tasks]


class ChunkSelection(NamedTuple):
    """The chunks of one fragment that a selection needs."""

    fragment: Fragment
    pipelines: Sequence[CodecPipeline]
    projections: list[Projection]

    @property
    def nbytes(self) -> int:
        """The approximate decoded size of the chunks in bytes."""
        return prod(int(p.encoded.sum()) for p in self.projections) * self.element_nbytes

    @property
    def element_nbytes(self) -> int:
        """Maximum decoded bytes for each element of the array, with all elements of fixed axes."""
        return max((p.dtype.itemsize * p.hidden_size for p in self.pipelines), default=1)


TaskOfFile = tuple[int, Task]
"""The file code of a chunk, and its task."""

make_task: Callable[[tuple[Any, ...]], Task] = partial(tuple.__new__, Task)
"""`Task._make` without its check of the length, for millions of tasks."""


def plan_box_tasks(fragment: Fragment, projections: list[Projection]) -> Iterator[TaskOfFile]:
    """Yield one task for each distinct chunk of an orthogonal selection."""
    shared = [group_equal_slabs(fragment, projections, axis) for axis in range(len(projections))]
    if all(groups is None for groups in shared):
        yield from plan_distinct_tasks(fragment, projections)
        return
    grouped = [_group_projection(p, g) for p, g in zip(projections, shared, strict=True)]
    for file, task in plan_distinct_tasks(fragment, grouped):
        pairs = zip(product(*task.inner), product(*task.outer), strict=True)
        inner, outer = next(pairs)
        yield file, task._replace(inner=inner, outer=outer, other_pairs=tuple(pairs))


def _group_projection(projection: Projection, groups: list[Ints] | None) -> Projection:
    """Return a projection onto groups of slabs that share a chunk, with the indexes of each."""
    count = projection.chunk.size
    groups_of_slabs = (
        [[i] for i in range(count)] if groups is None else [g.tolist() for g in groups]
    )

    def gather(column: Sequence[Any]) -> list[Any]:
        return [[column[i] for i in group] for group in groups_of_slabs]

    first = [group[0] for group in groups_of_slabs]
    chunk, encoded = projection.chunk[first], projection.encoded[first]
    inner, outer = gather(projection.inner), gather(projection.outer)
    return Projection(chunk, encoded, inner, outer, [SlabRun(0, chunk.size, False)])


def plan_distinct_tasks(fragment: Fragment, projections: list[Projection]) -> Iterator[TaskOfFile]:
    """Yield a task for each chunk of a selection in which no two slabs share a chunk."""
    if not projections:
        yield from _plan_block(fragment, projections)
        return
    chunks_per_slab = prod(p.chunk.size for p in projections[1:])
    step = max(1, BLOCK_TASKS // max(chunks_per_slab, 1))
    for begin in range(0, projections[0].chunk.size, step):
        head = projections[0].restrict_to(begin, begin + step)
        yield from _plan_block(fragment, [head, *projections[1:]])


def _plan_block(fragment: Fragment, projections: list[Projection]) -> Iterator[TaskOfFile]:
    grid_index = np.ix_(*(p.chunk for p in projections)) if projections else ()
    columns_of_manifest: dict[str, Column | int] = {}
    for name in COLUMNS:
        column = getattr(fragment.manifest, name)
        is_constant = column.size and not any(column.strides)
        columns_of_manifest[name] = (
            int(column.flat[0]) if is_constant else column[grid_index].ravel()
        )
    columns: dict[str, Iterable[Any]] = {
        **{
            name: repeat(c) if isinstance(c, int) else c.tolist()
            for name, c in columns_of_manifest.items()
        },
        "encoded": product(*(p.encoded.tolist() for p in projections)),
        "inner": product(*(p.inner for p in projections)),
        "outer": product(*(p.outer for p in projections)),
    }
    keys = [
        key
        for key in (columns_of_manifest["offset"], columns_of_manifest["file"])
        if not isinstance(key, int)
    ]
    if any((key[1:] < key[:-1]).any() for key in keys):
        order = np.lexsort(keys)
        # if offsets decrease only where a file begins, the tasks are already in order
        in_order = (np.diff(order) > 0).all()
        if not in_order:
            columns = {name: _reorder(column, order) for name, column in columns.items()}
    file = columns.pop("file")
    tasks = zip(
        columns["offset"],
        columns["length"],
        columns["pipeline"],
        columns["encoded"],
        columns["inner"],
        columns["outer"],
        repeat(()),
        repeat(()),
        columns["checksum"],
        strict=False,
    )
    return zip(file, map(make_task, tasks), strict=False)


def _reorder(column: Iterable[Any], order: Ints) -> Iterable[Any]:
    if isinstance(column, repeat):
        return column
    values = list(column)
    return [values[i] for i in order.tolist()]


def plan_point_tasks(
    part: ChunkSelection, points: Sequence[Ints], point_axes: tuple[int, ...]
) -> Iterator[TaskOfFile]:
    """Yield the tasks of a pointwise selection, one for each chunk that it needs."""
    fragment, projections = part.fragment, part.projections
    is_inside = np.ones(points[0].size, bool)
    for positions, axis in zip(points, point_axes, strict=True):
        is_inside &= (positions >= fragment.start[axis]) & (positions < fragment.stop[axis])
    order = np.flatnonzero(is_inside)
    local = [p[order] - fragment.start[axis] for p, axis in zip(points, point_axes, strict=True)]
    ids = np.stack([fragment.axes[a].locate(p) for a, p in zip(point_axes, local, strict=True)])
    others = [axis for axis in range(len(projections)) if axis not in point_axes]
    # index and stored length of each slab along an axis, and the indexes into chunk and result
    slabs: list[Sequence[tuple[int, int, Any, Any]]] = [
        list(zip(p.chunk.tolist(), p.encoded.tolist(), p.inner, p.outer, strict=True))
        for p in projections
    ]
    for members in _group_equal_columns(ids):
        target = order[members]
        for positions, axis, number in zip(
            local, point_axes, ids[:, members[0]].tolist(), strict=True
        ):
            edges, stored, inset = fragment.axes[axis].slabs(number, number + 1)
            inner_positions = positions[members] - edges[0] + inset[0]
            slabs[axis] = [(number, int(stored[0]), inner_positions, target)]
        for slabs_of_chunk in product(*slabs):
            chunk_id, encoded, inner, outer = zip(*slabs_of_chunk, strict=True)
            file, offset, length, pipeline, checksum = fragment.manifest.lookup(chunk_id)
            outer = (target, *(outer[axis] for axis in others))
            yield (
                file,
                Task(offset, length, pipeline, encoded, inner, outer, point_axes, (), checksum),
            )


def _group_equal_columns(columns: Ints) -> Iterator[Ints]:
    """Yield the ascending indexes of equal columns, for each distinct column."""
    if not columns.shape[1]:
        return
    _, group = np.unique(columns, axis=1, return_inverse=True)
    by_group = np.argsort(group.ravel(), kind="stable")
    yield from np.split(by_group, np.cumsum(np.bincount(group.ravel()))[:-1])


def merge_tasks(tasks: Iterable[TaskOfFile]) -> list[TaskOfFile]:
    """Return tasks sorted by file and offset, after merging tasks of the same chunk."""
    chunk_key = operator.itemgetter(0, 1, 2, 3, 4)
    rows = sorted(
        (file, t.offset, t.length, t.pipeline, t.encoded, number, t)
        for number, (file, t) in enumerate(tasks)
    )
    merged = []
    for (file, *_), group in groupby(rows, key=chunk_key):
        first, *others = (row[-1] for row in group)
        pairs = tuple((task.inner, task.outer) for task in others)
        merged.append((file, first._replace(other_pairs=pairs) if pairs else first))
    return merged


def batch_tasks(part: ChunkSelection, tasks: Iterable[TaskOfFile]) -> Iterator[Batch]:
    """Yield batches of one file each: local chunks up to a size, remote chunks by joined range."""
    largest = BATCH_BYTES if any(p.codecs for p in part.pipelines) else PLAIN_BATCH_BYTES
    max_bytes = min(largest, max(MIN_BATCH_BYTES, part.nbytes // (4 * count_cores())))
    for file, group in groupby(tasks, key=operator.itemgetter(0)):
        store = find_chunk_store(part.fragment, file)
        file_tasks = (task for _, task in group)
        if store is None or not store.request_limits.max_requests:
            batches = _split_by_size(file_tasks, max_bytes)
        else:
            batches = _split_by_request(file_tasks, store.request_limits)
        for batch in batches:
            yield Batch(part.fragment, part.pipelines, file, store, batch)


def find_chunk_store(fragment: Fragment, file: int) -> Store | None:
    """Return the store of a file of a fragment, or None for missing or inline chunks."""
    return None if file < 0 else find_store(fragment.manifest.files[file].url)


def _split_by_size(tasks: Iterable[Task], max_bytes: int) -> Iterator[list[Task]]:
    batch: list[Task] = []
    nbytes = 0
    for task in tasks:
        if batch and (len(batch) == BATCH_TASKS or nbytes + task.length > max_bytes):
            yield batch
            batch, nbytes = [], 0
        batch.append(task)
        nbytes += task.length
    yield batch


def _split_by_request(tasks: Iterable[Task], limits: RequestLimits) -> Iterator[list[Task]]:
    """Split tasks into batches that one request can fetch.

    Offsets are ascending, except where a new block of tasks begins.
    """
    batch: list[Task] = []
    begin = end = 0
    for task in tasks:
        stop = task.offset + task.length
        follows = begin <= task.offset <= end + limits.max_gap
        if batch and not (follows and stop - begin <= limits.max_bytes):
            yield batch
            batch = []
        if not batch:
            begin, end = task.offset, stop
        batch.append(task)
        end = max(end, stop)
    yield batch


# ---------------------------------------------------------------------- repeated chunks


def group_equal_slabs(
    fragment: Fragment, projections: Sequence[Projection], axis: int
) -> list[Ints] | None:
    """Group the slabs along an axis that refer to the same chunks; None if all differ.

    A group has the ascending indexes of its slabs in the projection.
    """
    grid = [p.chunk for p in projections]
    if grid[axis].size == 1:
        return None
    sample_grid = [ids if i == axis else ids[:1] for i, ids in enumerate(grid)]
    sample = _list_varying_columns(fragment.manifest, sample_grid, axis)
    if any(rows.shape[1] == 1 and (rows[1:] > rows[:-1]).all() for rows in sample):
        return None
    hashes = _hash_rows(sample, grid[axis].size)
    if np.unique(hashes).size == hashes.size:
        return None
    columns = _list_varying_columns(fragment.manifest, grid, axis)
    columns.append(projections[axis].encoded.reshape(-1, 1))
    _, first_index, group = np.unique(
        _hash_rows(columns, grid[axis].size), return_index=True, return_inverse=True
    )
    if first_index.size == group.size or any((a[first_index[group]] != a).any() for a in columns):
        return None
    order = np.argsort(first_index[group], kind="stable")
    return np.split(order, np.flatnonzero(np.diff(first_index[group][order])) + 1)


def _list_varying_columns(
    manifest: ChunkManifest, grid: Sequence[Ints], axis: int
) -> list[IntColumn]:
    """Return the columns that vary along an axis, as 2-D arrays with one row per slab."""
    varying = []
    for name in COLUMNS:
        column = getattr(manifest, name)
        if column.strides[axis] == 0:
            continue
        ids = [i[:1] if step == 0 else i for i, step in zip(grid, column.strides, strict=True)]
        varying.append(np.moveaxis(column[np.ix_(*ids)], axis, 0).reshape(grid[axis].size, -1))
    return varying


def _hash_rows(columns: Sequence[IntColumn], count: int) -> Ints:
    """Return a hash of each slab; distinct slabs very probably have distinct hashes."""
    rng = np.random.default_rng(0)
    total = np.zeros(count, np.int64)
    for rows in columns:
        weights = rng.integers(2**62, size=rows.shape[1]) * 2 + 1
        total += rows.astype(np.int64, copy=False) @ weights
    return total


# ---------------------------------------------------------------------- tiles
# A tile is a box of tiny chunks that are written to the result at once, which saves Python's
# overhead per chunk. The chunks of a tile are in one file, have the same pipeline and shape, and
# are needed whole. They are decoded next to each other, and copied into the result at once.


MAX_TINY_CHUNK_BYTES = 32 * 1024
"""Maximum decoded size in bytes of a chunk of a tile."""

MAX_TILE_CHUNKS = 2**13
"""Maximum number of chunks of a tile, unless one row of the chunk grid has more."""

MIN_CHUNKS_PER_BOX = 16
"""Minimum average number of chunks per box at which tiles save time."""

MAX_TILE_BYTES = 2**20
"""Maximum decoded size in bytes of a tile of local chunks, which fits into the CPU's cache."""

MIN_TILE_BYTES = 2**17
"""Decoded size in bytes below which a tile is not divided among cores."""


class Tile(NamedTuple):
    """A box of tiny chunks of one file, with the same pipeline and shape, in C order.

    ``grid`` is the number of chunks along each axis, ``encoded`` the shape of a chunk, and
    ``outer`` the index into the result. ``offset``, ``length`` and ``checksum`` are columns of the
    manifest, with one element per chunk.
    """

    fragment: Fragment
    pipelines: Sequence[CodecPipeline]
    file: int
    store: Store
    pipeline: int
    encoded: tuple[int, ...]
    grid: tuple[int, ...]
    outer: tuple[slice, ...]
    offset: Ints
    length: Ints
    checksum: Column

    @property
    def ranges(self) -> list[Range]:
        """The byte ranges of all chunks."""
        return list(zip(self.offset.tolist(), self.length.tolist(), strict=True))

    @property
    def checksums(self) -> Iterable[int]:
        """The checksums of all chunks."""
        checksums: list[int] = self.checksum.tolist()
        return checksums

    def plan_ranges(self, limits: RequestLimits) -> list[tuple[Range, int]]:
        """Return byte ranges to request, each with its number of chunks, for evenly spaced chunks.

        Uncompressed chunks at equal, small distances can be extracted without a loop over chunks.
        For other tiles, return no ranges.
        """
        steps, length = np.diff(self.offset), int(self.length[0])
        if not steps.size or not length <= steps[0] <= length + limits.max_gap:
            return []
        are_equal = (steps == steps[0]).all() and (self.length == length).all()
        if not are_equal or self.checksum.any() or self.pipelines[self.pipeline].codecs:
            return []
        max_count = max(limits.max_bytes // int(steps[0]), 1)
        requests = []
        for first in range(0, self.offset.size, max_count):
            count = min(max_count, self.offset.size - first)
            span = (count - 1) * int(steps[0]) + length
            requests.append(((int(self.offset[first]), span), count))
        return requests

    def extract_rows(
        self, fetched: Sequence[Buffer], requests: Sequence[tuple[Range, int]]
    ) -> Bytes:
        """Return the concatenated chunks, from the bytes of the ranges of `plan_ranges`."""
        step, length = int(self.offset[1] - self.offset[0]), int(self.length[0])
        if len(fetched) == 1 and step == length:
            # a single contiguous range needs no copy
            return np.frombuffer(fetched[0], np.uint8)
        rows, first = np.empty((self.offset.size, length), np.uint8), 0
        for data, (_, count) in zip(fetched, requests, strict=True):
            rows[first : first + count] = np.ndarray((count, length), np.uint8, data, 0, (step, 1))
            first += count
        return rows.reshape(-1)


def plan_box_batches(part: ChunkSelection) -> Iterator[Batch | Tile]:
    """Yield the batches of an orthogonal selection, and tiles if they save time."""
    if not _is_worth_tiling(part):
        yield from batch_tasks(part, plan_box_tasks(part.fragment, part.projections))
        return
    for runs in product(*(p.runs for p in part.projections)):
        projections = [
            p.restrict_to(r.first, r.stop) for p, r in zip(part.projections, runs, strict=True)
        ]
        if (
            all(run.is_whole for run in runs)
            and _count_chunk_bytes(part, projections) <= MAX_TINY_CHUNK_BYTES
        ):
            yield from _plan_tiles(part, projections)
        else:
            yield from batch_tasks(part, plan_distinct_tasks(part.fragment, projections))


def _is_worth_tiling(part: ChunkSelection) -> bool:
    """Return whether a selection has many tiny chunks in few boxes, and no chunk is shared."""
    boxes = prod(len(p.runs) for p in part.projections)
    chunks = prod(p.chunk.size for p in part.projections)
    if (
        not part.projections
        or chunks < MIN_CHUNKS_PER_BOX * boxes
        or _compute_min_chunk_bytes(part) > MAX_TINY_CHUNK_BYTES
    ):
        return False
    axes = range(len(part.projections))
    return all(group_equal_slabs(part.fragment, part.projections, axis) is None for axis in axes)


def _compute_min_chunk_bytes(part: ChunkSelection) -> float:
    """Return the decoded size in bytes of the smallest chunk that is needed whole, or infinity.

    Dividing a selection of large chunks into boxes would only separate neighbours in a file.
    """
    shortest = (
        min((int(p.encoded[run.first]) for run in p.runs if run.is_whole), default=inf)
        for p in part.projections
    )
    return prod(shortest) * part.element_nbytes


def _count_chunk_bytes(part: ChunkSelection, projections: Sequence[Projection]) -> int:
    """Return the decoded size in bytes of each chunk of a box."""
    return prod(int(p.encoded[0]) for p in projections) * part.element_nbytes


def _plan_tiles(part: ChunkSelection, projections: Sequence[Projection]) -> Iterator[Batch | Tile]:
    """Yield the tiles of a box of chunks of equal shape that are needed whole."""
    nbytes = _count_chunk_bytes(part, projections)
    grid = [p.chunk.size for p in projections]
    limit = _limit_tile_bytes(part, projections, nbytes * prod(grid))
    for box in _divide_grid(grid, nbytes, limit):
        tile_projections = [
            p.restrict_to(first, stop) for p, (first, stop) in zip(projections, box, strict=True)
        ]
        tile = _plan_tile(part, tile_projections)
        yield from (
            [tile]
            if tile
            else batch_tasks(part, plan_distinct_tasks(part.fragment, tile_projections))
        )


def _limit_tile_bytes(part: ChunkSelection, projections: Sequence[Projection], nbytes: int) -> int:
    """Return the maximum decoded size in bytes of the tiles of a box of ``nbytes``.

    For a remote file, it is the maximum size of a request; for a local one, it is small enough that
    every core gets several tiles.
    """
    file = part.fragment.manifest.file[tuple(p.chunk[0] for p in projections)]
    store = find_chunk_store(part.fragment, int(file))
    if store is not None and store.request_limits.max_requests:
        return store.request_limits.max_bytes
    return min(MAX_TILE_BYTES, max(MIN_TILE_BYTES, nbytes // (4 * count_cores())))


def _divide_grid(
    grid: Sequence[int], chunk_bytes: int, max_bytes: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Divide a grid into boxes that are contiguous in C order, of at most ``max_bytes`` bytes."""
    axis, nbytes = len(grid) - 1, chunk_bytes
    while axis > 0 and nbytes * grid[axis] <= max_bytes:
        nbytes *= grid[axis]
        axis -= 1
    step = max(1, min(max_bytes // max(nbytes, 1), MAX_TILE_CHUNKS // prod(grid[axis + 1 :])))
    along = [(i, min(i + step, grid[axis])) for i in range(0, grid[axis], step)]
    leading = ([(i, i + 1) for i in range(n)] for n in grid[:axis])
    yield from product(*leading, along, *([(0, n)] for n in grid[axis + 1 :]))


def _plan_tile(part: ChunkSelection, projections: Sequence[Projection]) -> Tile | None:
    """Return the tile of a box, or None if its chunks differ in pipeline or are not in one file."""
    grid_index = np.ix_(*(p.chunk for p in projections))
    columns = {name: getattr(part.fragment.manifest, name)[grid_index].ravel() for name in COLUMNS}
    file, pipeline = (columns[name] for name in ("file", "pipeline"))
    store = find_chunk_store(part.fragment, int(file[0]))
    if store is None or (file != file[0]).any() or (pipeline != pipeline[0]).any():
        return None
    return Tile(
        part.fragment,
        part.pipelines,
        int(file[0]),
        store,
        int(pipeline[0]),
        tuple(int(p.encoded[0]) for p in projections),
        tuple(p.chunk.size for p in projections),
        tuple(slice(p.outer[0].start, p.outer[-1].stop) for p in projections),
        columns["offset"],
        columns["length"],
        columns["checksum"],
    )


# ---------------------------------------------------------------------- decoding

Array = npt.NDArray[Any]

MAX_SCRATCH_BYTES = 8 * 2**20
"""Maximum size in bytes of the scratch memory of each kind that a thread keeps."""

_thread = threading.local()


class Decoder:
    """Decodes chunks of one pipeline and one shape: ``encoded`` elements along each axis."""

    def __init__(self, pipeline: CodecPipeline, encoded: tuple[int, ...]) -> None:
        self.pipeline, self.encoded = pipeline, encoded
        self.shape = pipeline.stored_shape(encoded)
        self.nbytes = pipeline.dtype.itemsize * prod(self.shape)
        self.is_plain = not pipeline.codecs
        sizes = pipeline.encoded_sizes(self.nbytes)
        steps = [
            _DecodeStep(
                codec, size, f"step {number}" if codec.fills_output and size is not None else None
            )
            for number, (codec, size) in enumerate(zip(pipeline.codecs, sizes, strict=False))
        ]
        # a final codec that can decode into an output buffer may decode into the result itself
        self._final_codec = steps.pop(0).codec if steps and steps[0].scratch_kind else None
        self._steps = steps[::-1]
        self._stored_index = tuple(
            e.index
            if isinstance(e, FixedAxis)
            else slice(None, None, -1 if e in pipeline.flipped else None)
            for e in pipeline.layout
        )
        array_axes = [e for e in pipeline.layout if isinstance(e, int)]
        self._order = (
            None if array_axes == sorted(array_axes) else tuple(np.argsort(array_axes).tolist())
        )
        # whether the bytes of a decoded chunk have the layout of the array
        is_hidden = any(isinstance(e, FixedAxis) for e in pipeline.layout)
        is_permuted = self._order is not None or is_hidden or bool(pipeline.flipped)
        self._has_array_layout = not is_permuted

    def decode(self, data: Buffer, *, copy: bool = False) -> Array:
        """Return the stored values of a chunk.

        Without ``copy``, they are valid until this thread decodes the next chunk. Raises
        `CodecError` for bytes that do not decode to the size of a chunk.
        """
        data = self._undo_codecs(data)
        if self._final_codec:
            decoded = np.empty(self.nbytes, np.uint8) if copy else get_scratch(self.nbytes)
            self._final_codec.decode_into(data, decoded)
            data = decoded.data
        elif copy and isinstance(data, memoryview):
            # copy a view of fetched bytes, or of scratch memory that the next chunk overwrites
            data = bytes(data)
        return np.frombuffer(data, self.pipeline.dtype).reshape(self.shape)

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        """Decode a chunk into ``out``, which has the size of the decoded chunk."""
        data = self._undo_codecs(data)
        if self._final_codec:
            self._final_codec.decode_into(data, out)
        else:
            out[:] = np.frombuffer(data, np.uint8)

    def to_array_axes(self, stored: Array, grid: tuple[int, ...] = ()) -> Array:
        """Return decoded chunks with the axes of the array, after the axes ``grid`` of chunks."""
        grid_ndim = len(grid)
        chunk = stored[(*(slice(None),) * grid_ndim, *self._stored_index, ...)]
        if self._order is not None:
            chunk = chunk.transpose(*range(grid_ndim), *(grid_ndim + i for i in self._order))
        # only axes of length 1 are added, so this makes no copy
        return chunk.reshape((*grid, *self.encoded))

    def find_target(self, task: Task, out: Array) -> Array | None:
        """Return the view of the result that a whole chunk can be decoded into, or None.

        The view has the shape and dtype of the stored chunk. `unpack_target` then makes values of
        the stored numbers.
        """
        if not self._has_array_layout or task.point_axes or task.other_pairs:
            return None
        stored, packing = self.pipeline.dtype, self.pipeline.packing
        if packing is None:
            is_same_memory = stored == out.dtype
        else:
            is_dates = isinstance(packing, TimePacking) and packing.dtype == out.dtype
            is_same_memory = is_dates and stored.itemsize == out.itemsize
        if not is_same_memory:
            return None
        target: Array = out[(*task.outer, ...)]
        return target.view(stored) if target.shape == self.encoded else None

    def unpack_target(self, target: Array) -> None:
        """Undo CF packing in a view of the result that `find_target` has returned."""
        if (packing := self.pipeline.packing) is not None:
            packing.decode_into(target.view(packing.dtype), target)

    def _undo_codecs(self, data: Buffer) -> Buffer:
        """Undo the codecs in reverse order, except the one that decodes into the result."""
        for codec, size, scratch_kind in self._steps:
            if size is not None and scratch_kind:
                decoded = get_scratch(size, scratch_kind)
                codec.decode_into(data, decoded)
                data = decoded.data
            else:
                data = codec.decode(data, size)
                # keep the buffer alive until this thread decodes the next one
                _thread.decoded = data if len(data) <= MAX_SCRATCH_BYTES else None
        if self._final_codec is None and len(data) != self.nbytes:
            raise CodecError(
                f"decoded to {len(data)} bytes where a chunk of {self.shape} has {self.nbytes}"
            )
        return data


class Decoders:
    """The decoders of a batch, created on first use."""

    def __init__(self, pipelines: Sequence[CodecPipeline]) -> None:
        self._pipelines = pipelines
        self._decoders: dict[tuple[int, tuple[int, ...]], Decoder] = {}

    def get(self, task: Task) -> Decoder:
        """Return the decoder for the chunk of a task."""
        key = task.pipeline, task.encoded
        if (decoder := self._decoders.get(key)) is None:
            decoder = self._decoders[key] = Decoder(self._pipelines[task.pipeline], task.encoded)
        return decoder


class _DecodeStep(NamedTuple):
    """A codec to undo, and its decoded size in bytes if that is known.

    ``scratch_kind`` names the scratch memory to decode into, or is None if the codec allocates its
    output.
    """

    codec: Codec
    size: int | None
    scratch_kind: str | None


def fill_missing(pipeline: CodecPipeline, task: Task, out: Array) -> None:
    """Write the fill value into the parts of the result that a missing chunk covers."""
    for _, outer in task.pairs:
        out[outer] = pipeline.missing_value


def write_chunk(decoder: Decoder, data: Buffer, task: Task, out: Array) -> None:
    """Decode a chunk and write its selection into the result."""
    target = decoder.find_target(task, out)
    if target is not None and target.flags.c_contiguous:
        decoder.decode_into(data, target.reshape(-1).view(np.uint8))
        decoder.unpack_target(target)
    else:
        write_stored(decoder, decoder.decode(data), task, out)


def write_stored(decoder: Decoder, stored: Array, task: Task, out: Array) -> None:
    """Write the selection of a decoded chunk into the result."""
    chunk = decoder.to_array_axes(stored)
    for inner, outer in task.pairs:
        _write(decoder.pipeline, _select(chunk, inner, task.point_axes), out, outer)


def write_tile(decoder: Decoder, data: Sequence[Buffer], tile: Tile, out: Array) -> None:
    """Decode the chunks of a tile and write them into the result."""
    count = len(data)
    rows = get_scratch(count * decoder.nbytes, "tile").reshape(count, decoder.nbytes)
    for number, (row, encoded) in enumerate(zip(rows, data, strict=True)):
        try:
            decoder.decode_into(encoded, row)
        except CodecError as error:
            raise TileError(number, error) from error
    write_rows(decoder, rows.reshape(-1), tile, out)


def write_rows(decoder: Decoder, rows: Buffer | Bytes, tile: Tile, out: Array) -> None:
    """Write the decoded chunks of a tile, which are concatenated in ``rows``, into the result."""
    pipeline, ndim = decoder.pipeline, len(tile.grid)
    stored = np.frombuffer(rows, pipeline.dtype).reshape(*tile.grid, *decoder.shape)
    # alternate the axes of the chunk grid and of the chunks
    values = decoder.to_array_axes(stored, tile.grid)
    values = values.transpose([i for axis in range(ndim) for i in (axis, ndim + axis)])
    box = list(chain.from_iterable(zip(tile.grid, tile.encoded, strict=True)))
    target = out[tile.outer].reshape(box)
    _write(pipeline, values, target, (slice(None),) * target.ndim)


class TileError(CodecError):
    """Raised for the chunk of a tile that cannot be decoded; ``item`` is its index."""

    def __init__(self, item: int, error: CodecError) -> None:
        super().__init__(str(error))
        self.item = item


def _select(chunk: Array, inner: tuple[Any, ...], point_axes: tuple[int, ...]) -> Array:
    """Index a decoded chunk; the axes ``point_axes`` are indexed together and come first."""
    if point_axes:
        others = [i for i in range(chunk.ndim) if i not in point_axes]
        chunk = chunk.transpose((*point_axes, *others))
        chunk = chunk[tuple(inner[i] for i in point_axes)]
        inner = (slice(None), *(inner[i] for i in others))
    for axis, key in enumerate(inner):
        chunk = chunk[(slice(None),) * axis + (key,)]
    return chunk


def _write(pipeline: CodecPipeline, stored: Array, out: Array, outer: tuple[Any, ...]) -> None:
    """Write stored values into the result, undoing CF packing."""
    packing = pipeline.packing
    if packing is None:
        out[outer] = stored
    elif packing.dtype == out.dtype and all(isinstance(k, slice) for k in outer):
        # the ellipsis makes the index of a 0-d array return an array
        packing.decode_into(out[(*outer, ...)], stored)
    else:
        out[outer] = packing.decode(stored)


# ---------------------------------------------------------------------- scratch memory


def get_scratch(nbytes: int, kind: str = "chunk") -> npt.NDArray[np.uint8]:
    """Return scratch memory of this thread, valid until it requests the same kind again."""
    if nbytes > MAX_SCRATCH_BYTES:
        return np.empty(nbytes, np.uint8)
    name = f"{kind}_scratch"
    memory: npt.NDArray[np.uint8] | None = getattr(_thread, name, None)
    if memory is None or memory.size < nbytes:
        memory = np.empty(nbytes, np.uint8)
        setattr(_thread, name, memory)
    return memory[:nbytes]
