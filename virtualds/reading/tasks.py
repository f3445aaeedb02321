"""Tasks, batches and tiles: the chunks of a fragment that a selection needs.

A task is one chunk to fetch, decode and write. Within a block, tasks are in the order of their
bytes, so that neighbours in a file are fetched together in any order of the array.
"""

from __future__ import annotations

import operator
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
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.options import count_cores
from virtualds.stores import find_store
from virtualds.stores.store import Range, RequestLimits, Store
from virtualds.streams import Buffer, Bytes

BATCH_TASKS = 256
"""Maximum number of tasks of a batch."""

BATCH_BYTES = 2**20
"""The maximum encoded size in bytes of a batch."""

PLAIN_BATCH_BYTES = 2**22
"""The maximum size in bytes of a batch without codecs: the calls take a larger share of the
time."""

MIN_BATCH = 2**18
"""The size in bytes below which a batch is not divided further among the cores."""

BLOCK_TASKS = 2**16
"""The number of tasks that are planned, and sorted by offset, at a time."""

IntColumn = npt.NDArray[np.integer]


class Task(NamedTuple):
    """One chunk to fetch, decode and write into the result.

    ``inner`` selects within the chunk, in the array's axes; ``outer`` is the part of the result
    that it fills. For a pointwise selection, ``points`` are the axes that are indexed together.
    ``more`` are further pairs of ``inner`` and ``outer``, for a chunk that is used several times.
    ``checksum`` is the checksum in the manifest, 0 for none.
    """

    offset: int
    length: int
    pipeline: int
    encoded: tuple[int, ...]
    inner: tuple[Any, ...]
    outer: tuple[Any, ...]
    points: tuple[int, ...] = ()
    more: tuple[tuple[Any, Any], ...] = ()
    checksum: int = 0

    @property
    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Every pair of ``inner`` and ``outer``."""
        return chain([(self.inner, self.outer)], self.more)


class Batch(NamedTuple):
    """Tasks of one file of a fragment, and its store; or tasks of missing or inline chunks."""

    fragment: Fragment
    pipelines: Sequence[CodecPipeline]
    file: int
    store: Store | None
    tasks: list[Task]

    @property
    def ranges(self) -> list[Range]:
        """The ranges of all tasks."""
        return [(task.offset, task.length) for task in self.tasks]


class ChunkSelection(NamedTuple):
    """The selected part of one fragment."""

    fragment: Fragment
    pipelines: Sequence[CodecPipeline]
    projections: list[Projection]

    @property
    def nbytes(self) -> int:
        """The approximate decoded size in bytes of the chunks that it intersects."""
        return prod(int(p.encoded.sum()) for p in self.projections) * self.element_nbytes

    @property
    def element_nbytes(self) -> int:
        """The number of decoded bytes per element of the array, including fixed axes."""
        return max((p.dtype.itemsize * p.hidden_size for p in self.pipelines), default=1)


NumberedTask = tuple[int, Task]
"""The index of the file that contains a chunk, and its task."""

AS_TASK: Callable[[tuple[Any, ...]], Task] = partial(tuple.__new__, Task)
"""`Task._make` without its check, for millions of rows."""


def plan_box_tasks(fragment: Fragment, projections: list[Projection]) -> Iterator[NumberedTask]:
    """Yield a task for each chunk of a box, also if several slabs share the chunk."""
    shared = [group_equal_slabs(fragment, projections, axis) for axis in range(len(projections))]
    if all(groups is None for groups in shared):
        yield from plan_distinct_tasks(fragment, projections)
        return
    gathered = [_group_projection(p, g) for p, g in zip(projections, shared, strict=True)]
    for file, task in plan_distinct_tasks(fragment, gathered):
        pairs = zip(product(*task.inner), product(*task.outer), strict=True)
        inner, outer = next(pairs)
        yield file, task._replace(inner=inner, outer=outer, more=tuple(pairs))


def _group_projection(projection: Projection, groups: list[Ints] | None) -> Projection:
    """Return a projection on groups of slabs, each with all the selected parts of its chunk."""
    count = projection.chunk.size
    groups_of_slabs = (
        [[i] for i in range(count)] if groups is None else [g.tolist() for g in groups]
    )

    def gathered(column: Sequence[Any]) -> list[Any]:
        return [[column[i] for i in group] for group in groups_of_slabs]

    first = [group[0] for group in groups_of_slabs]
    chunk, encoded = projection.chunk[first], projection.encoded[first]
    inner, outer = gathered(projection.inner), gathered(projection.outer)
    return Projection(chunk, encoded, inner, outer, [SlabRun(0, chunk.size, False)])


def plan_distinct_tasks(
    fragment: Fragment, projections: list[Projection]
) -> Iterator[NumberedTask]:
    """Yield a task for each chunk of a box in which slabs share no chunks."""
    if not projections:
        yield from _plan_block(fragment, projections)
        return
    rest = prod(p.chunk.size for p in projections[1:])
    step = max(1, BLOCK_TASKS // max(rest, 1))
    for begin in range(0, projections[0].chunk.size, step):
        head = projections[0].restrict_to(begin, begin + step)
        yield from _plan_block(fragment, [head, *projections[1:]])


def _plan_block(fragment: Fragment, projections: list[Projection]) -> Iterator[NumberedTask]:
    where = np.ix_(*(p.chunk for p in projections)) if projections else ()
    cells = {name: _select_cells(getattr(fragment.manifest, name), where) for name in COLUMNS}
    columns: dict[str, Iterable[Any]] = {
        **{name: repeat(c) if isinstance(c, int) else c.tolist() for name, c in cells.items()},
        "encoded": product(*(p.encoded.tolist() for p in projections)),
        "inner": product(*(p.inner for p in projections)),
        "outer": product(*(p.outer for p in projections)),
    }
    keys = [key for key in (cells["offset"], cells["file"]) if not isinstance(key, int)]
    if any((key[1:] < key[:-1]).any() for key in keys):
        order = np.lexsort(keys)
        # offsets may decrease where the next file begins
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
    return zip(file, map(AS_TASK, tasks), strict=False)


def _select_cells(column: Column, where: tuple[Ints, ...]) -> Column | int:
    """Return a column at the intersections of positions, or one number if it is constant."""
    if column.size and not any(column.strides):
        return int(column.flat[0])
    return column[where].ravel()


def _reorder(column: Iterable[Any], order: Ints) -> Iterable[Any]:
    if isinstance(column, repeat):
        return column
    rows = list(column)
    return [rows[i] for i in order.tolist()]


def plan_point_tasks(
    part: ChunkSelection, points: Sequence[Ints], together: tuple[int, ...]
) -> Iterator[NumberedTask]:
    """Yield one task per chunk that contains points, for every chunk along the sliced axes."""
    fragment, projections = part.fragment, part.projections
    inside = np.ones(points[0].size, bool)
    for positions, axis in zip(points, together, strict=True):
        inside &= (positions >= fragment.start[axis]) & (positions < fragment.stop[axis])
    order = np.flatnonzero(inside)
    local = [p[order] - fragment.start[axis] for p, axis in zip(points, together, strict=True)]
    ids = np.stack([fragment.axes[a].locate(p) for a, p in zip(together, local, strict=True)])
    for members in _group_equal_columns(ids):
        chosen = dict(zip(together, ids[:, members[0]].tolist(), strict=True))
        inner, encoded = {}, {}
        for k, axis in enumerate(together):
            edges, stored, inset = fragment.axes[axis].slabs(chosen[axis], chosen[axis] + 1)
            inner[axis] = local[k][members] - edges[0] + inset[0]
            encoded[axis] = int(stored[0])
        yield from _plan_sliced_tasks(
            fragment, projections, chosen, inner, encoded, order[members], together
        )


def _group_equal_columns(columns: Ints) -> Iterator[Ints]:
    """Yield, for every distinct column, the ascending indexes of the columns that equal it."""
    if not columns.shape[1]:
        return
    _, group = np.unique(columns, axis=1, return_inverse=True)
    by_group = np.argsort(group.ravel(), kind="stable")
    yield from np.split(by_group, np.cumsum(np.bincount(group.ravel()))[:-1])


def _plan_sliced_tasks(
    fragment: Fragment,
    projections: list[Projection],
    chosen: dict[int, int],
    inner: dict[int, Ints],
    encoded: dict[int, int],
    target: Ints,
    together: tuple[int, ...],
) -> Iterator[NumberedTask]:
    """Yield the tasks of one chunk of points along every combination of the sliced axes."""
    others = [i for i in range(len(projections)) if i not in chosen]
    lengths = {i: projections[i].encoded.tolist() for i in others}
    for combo in product(*(range(projections[i].chunk.size) for i in others)):
        picked = dict(zip(others, combo, strict=True))
        where = tuple(
            chosen[i] if i in chosen else int(projections[i].chunk[picked[i]])
            for i in range(len(projections))
        )
        row = fragment.manifest.lookup(where)
        yield (
            row.file,
            Task(
                row.offset,
                row.length,
                row.pipeline,
                tuple(
                    encoded[i] if i in chosen else lengths[i][picked[i]]
                    for i in range(len(projections))
                ),
                tuple(
                    inner[i] if i in chosen else projections[i].inner[picked[i]]
                    for i in range(len(projections))
                ),
                (target, *(projections[i].outer[picked[i]] for i in others)),
                together,
                checksum=row.checksum,
            ),
        )


def merge_tasks(tasks: Iterable[NumberedTask]) -> list[NumberedTask]:
    """Return tasks sorted by file and offset, with tasks of the same chunk merged."""
    same = operator.itemgetter(0, 1, 2, 3, 4)
    rows = sorted(
        (file, t.offset, t.length, t.pipeline, t.encoded, number, t)
        for number, (file, t) in enumerate(tasks)
    )
    found = []
    for (file, *_), group in groupby(rows, key=same):
        first, *others = (row[-1] for row in group)
        more = tuple((task.inner, task.outer) for task in others)
        found.append((file, first._replace(more=more) if more else first))
    return found


def batch_tasks(part: ChunkSelection, tasks: Iterable[NumberedTask]) -> Iterator[Batch]:
    """Yield batches of one file: local chunks up to a number and a size, remote chunks by range."""
    largest = BATCH_BYTES if any(p.codecs for p in part.pipelines) else PLAIN_BATCH_BYTES
    most = min(largest, max(MIN_BATCH, part.nbytes // (4 * count_cores())))
    for file, group in groupby(tasks, key=operator.itemgetter(0)):
        store = store_of(part.fragment, file)
        rows = (task for _, task in group)
        if store is None or not store.reach.at_once:
            batches = _split_by_size(rows, most)
        else:
            batches = _split_by_run(rows, store.reach)
        for some in batches:
            yield Batch(part.fragment, part.pipelines, file, store, some)


def store_of(fragment: Fragment, file: int) -> Store | None:
    """Return the store of a file of a fragment, or None for missing or inline chunks."""
    return None if file < 0 else find_store(fragment.manifest.files[file].url)


def _split_by_size(tasks: Iterable[Task], most: int) -> Iterator[list[Task]]:
    rows: list[Task] = []
    nbytes = 0
    for task in tasks:
        if rows and (len(rows) == BATCH_TASKS or nbytes + task.length > most):
            yield rows
            rows, nbytes = [], 0
        rows.append(task)
        nbytes += task.length
    yield rows


def _split_by_run(tasks: Iterable[Task], reach: RequestLimits) -> Iterator[list[Task]]:
    """Split tasks if one request for all of them would be wasteful.

    Offsets are ascending, except where a new block of tasks begins.
    """
    rows: list[Task] = []
    begin = end = 0
    for task in tasks:
        stop = task.offset + task.length
        follows = begin <= task.offset <= end + reach.gap
        if rows and not (follows and stop - begin <= reach.run):
            yield rows
            rows = []
        if not rows:
            begin, end = task.offset, stop
        rows.append(task)
        end = max(end, stop)
    yield rows


# ---------------------------------------------------------------------- repeated chunks


def group_equal_slabs(
    fragment: Fragment, projections: Sequence[Projection], axis: int
) -> list[Ints] | None:
    """Group the slabs of a projection by their chunks, or return None if all differ.

    The groups contain positions in the projection, ascending.
    """
    grid = [p.chunk for p in projections]
    if grid[axis].size == 1:
        return None
    line = [ids if i == axis else ids[:1] for i, ids in enumerate(grid)]
    first = _list_layers(fragment.manifest, line, axis)
    if any(rows.shape[1] == 1 and (rows[1:] > rows[:-1]).all() for rows in first):
        return None
    probe = _hash_rows(first, grid[axis].size)
    if np.unique(probe).size == probe.size:
        return None
    layers = _list_layers(fragment.manifest, grid, axis)
    layers.append(projections[axis].encoded.reshape(-1, 1))
    _, shown, group = np.unique(
        _hash_rows(layers, grid[axis].size), return_index=True, return_inverse=True
    )
    if shown.size == group.size or any((a[shown[group]] != a).any() for a in layers):
        return None
    order = np.argsort(shown[group], kind="stable")
    return np.split(order, np.flatnonzero(np.diff(shown[group][order])) + 1)


def _list_layers(manifest: ChunkManifest, grid: Sequence[Ints], axis: int) -> list[IntColumn]:
    """Return the columns that change along an axis, with one row per slab."""
    found = []
    for name in COLUMNS:
        column = getattr(manifest, name)
        if column.strides[axis] == 0:
            continue
        ids = [i[:1] if step == 0 else i for i, step in zip(grid, column.strides, strict=True)]
        found.append(np.moveaxis(column[np.ix_(*ids)], axis, 0).reshape(grid[axis].size, -1))
    return found


def _hash_rows(layers: Sequence[IntColumn], count: int) -> Ints:
    """Return a hash of each row; distinct rows very probably have distinct hashes."""
    rng = np.random.default_rng(0)
    total = np.zeros(count, np.int64)
    for rows in layers:
        weights = rng.integers(2**62, size=rows.shape[1]) * 2 + 1
        total += rows.astype(np.int64, copy=False) @ weights
    return total


# ---------------------------------------------------------------------- tiles
# Tiles: boxes of tiny chunks that are written as a whole.
#
# Tiles save Python's work per chunk. The chunks of a tile are in one file, have the same pipeline
# and size, and are needed whole; they are decoded next to each other, and moved into the result by
# one transposed copy.


TINY_CHUNK = 32 * 1024
"""The decoded size in bytes of a chunk up to which it is read in tiles."""

MAX_TILE_CHUNKS = 2**13
"""Maximum number of chunks of a tile, unless one row of the grid has more."""

MIN_CHUNKS = 16
"""Minimum average number of chunks of a box for which tiles are worth the effort."""

MAX_TILE = 2**20
"""The maximum decoded size in bytes of a tile of local chunks, so that it fits the CPU's cache."""

MIN_TILE = 2**17
"""The decoded size in bytes below which a tile is not divided further among the cores."""


class Tile(NamedTuple):
    """Equally encoded chunks of one file that fill a box of the result, in C order of the grid.

    ``store`` is the store of the file.

    ``grid`` counts the chunks along every axis; ``encoded`` are the elements of each. Chunk by
    chunk, ``offset``, ``length`` and ``checksum`` are as in the manifest.
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
        chunks: list[int] = self.checksum.tolist()
        return chunks

    def plan_ranges(self, reach: RequestLimits) -> list[tuple[Range, int]]:
        """Return the ranges to request, and how many chunks are in each, if the tile is a comb.

        The chunks of a comb are plain byte ranges at equal, small distances, so that they need no
        individual work. Other tiles have no teeth.
        """
        steps, length = np.diff(self.offset), int(self.length[0])
        if not steps.size or not length <= steps[0] <= length + reach.gap:
            return []
        alike = (steps == steps[0]).all() and (self.length == length).all()
        if not alike or self.checksum.any() or self.pipelines[self.pipeline].codecs:
            return []
        most = max(reach.run // int(steps[0]), 1)
        found = []
        for first in range(0, self.offset.size, most):
            count = min(most, self.offset.size - first)
            span = (count - 1) * int(steps[0]) + length
            found.append(((int(self.offset[first]), span), count))
        return found

    def extract_rows(self, found: Sequence[Buffer], teeth: Sequence[tuple[Range, int]]) -> Bytes:
        """Return the chunks of a comb one after the other, from the bytes of its teeth."""
        step, length = int(self.offset[1] - self.offset[0]), int(self.length[0])
        if len(found) == 1 and step == length:
            # a single contiguous range needs no copy
            return np.frombuffer(found[0], np.uint8)
        rows, first = np.empty((self.offset.size, length), np.uint8), 0
        for data, (_, some) in zip(found, teeth, strict=True):
            rows[first : first + some] = np.ndarray((some, length), np.uint8, data, 0, (step, 1))
            first += some
        return rows.reshape(-1)


def plan_box_batches(part: ChunkSelection) -> Iterator[Batch | Tile]:
    """Yield the work of a selection of a fragment: tiles if they are worth it, and batches."""
    if not _is_worth_tiling(part):
        yield from batch_tasks(part, plan_box_tasks(part.fragment, part.projections))
        return
    for runs in product(*(p.runs for p in part.projections)):
        inside = [
            p.restrict_to(r.first, r.stop) for p, r in zip(part.projections, runs, strict=True)
        ]
        if all(run.whole for run in runs) and _count_chunk_bytes(part, inside) <= TINY_CHUNK:
            yield from _plan_tiles(part, inside)
        else:
            yield from batch_tasks(part, plan_distinct_tasks(part.fragment, inside))


def _is_worth_tiling(part: ChunkSelection) -> bool:
    """Return whether there are many chunks, in few boxes of equal chunks, none of them repeated."""
    boxes = prod(len(p.runs) for p in part.projections)
    chunks = prod(p.chunk.size for p in part.projections)
    if not part.projections or chunks < MIN_CHUNKS * boxes or _find_least_bytes(part) > TINY_CHUNK:
        return False
    axes = range(len(part.projections))
    return all(group_equal_slabs(part.fragment, part.projections, axis) is None for axis in axes)


def _find_least_bytes(part: ChunkSelection) -> float:
    """Return the decoded size of the smallest chunk that is needed whole, or infinity.

    Dividing a selection of large chunks into boxes would only separate neighbours in a file.
    """
    shortest = (
        min((int(p.encoded[run.first]) for run in p.runs if run.whole), default=inf)
        for p in part.projections
    )
    return prod(shortest) * part.element_nbytes


def _count_chunk_bytes(part: ChunkSelection, inside: Sequence[Projection]) -> int:
    """Return the decoded size in bytes of a chunk of a box."""
    return prod(int(p.encoded[0]) for p in inside) * part.element_nbytes


def _plan_tiles(part: ChunkSelection, inside: Sequence[Projection]) -> Iterator[Batch | Tile]:
    """Yield the tiles of a box of equal chunks that are needed whole."""
    nbytes = _count_chunk_bytes(part, inside)
    grid = [p.chunk.size for p in inside]
    most = _limit_tile_bytes(part, inside, nbytes * prod(grid))
    for box in _divide_grid(grid, nbytes, most):
        some = [p.restrict_to(first, stop) for p, (first, stop) in zip(inside, box, strict=True)]
        tile = _plan_tile(part, some)
        yield from [tile] if tile else batch_tasks(part, plan_distinct_tasks(part.fragment, some))


def _limit_tile_bytes(part: ChunkSelection, inside: Sequence[Projection], nbytes: int) -> int:
    """Return the maximum decoded size in bytes of a tile of a box of ``nbytes``.

    It is the size of a long request if the file is remote; otherwise it is so small that every core
    gets some tiles.
    """
    file = part.fragment.manifest.file[tuple(p.chunk[0] for p in inside)]
    store = store_of(part.fragment, int(file))
    if store is not None and store.reach.at_once:
        return store.reach.run
    return min(MAX_TILE, max(MIN_TILE, nbytes // (4 * count_cores())))


def _divide_grid(
    grid: Sequence[int], chunk_bytes: int, most: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Divide a grid into boxes that are contiguous in C order, of at most ``most`` bytes."""
    axis, rest = len(grid) - 1, chunk_bytes
    while axis > 0 and rest * grid[axis] <= most:
        rest *= grid[axis]
        axis -= 1
    step = max(1, min(most // max(rest, 1), MAX_TILE_CHUNKS // prod(grid[axis + 1 :])))
    along = [(i, min(i + step, grid[axis])) for i in range(0, grid[axis], step)]
    leading = ([(i, i + 1) for i in range(n)] for n in grid[:axis])
    yield from product(*leading, along, *([(0, n)] for n in grid[axis + 1 :]))


def _plan_tile(part: ChunkSelection, inside: Sequence[Projection]) -> Tile | None:
    """Return the tile of a box, or None if its chunks differ in encoding or are in no file."""
    where = np.ix_(*(p.chunk for p in inside))
    cells = {name: getattr(part.fragment.manifest, name)[where].ravel() for name in COLUMNS}
    file, pipeline = (cells[name] for name in ("file", "pipeline"))
    store = store_of(part.fragment, int(file[0]))
    if store is None or (file != file[0]).any() or (pipeline != pipeline[0]).any():
        return None
    return Tile(
        part.fragment,
        part.pipelines,
        int(file[0]),
        store,
        int(pipeline[0]),
        tuple(int(p.encoded[0]) for p in inside),
        tuple(p.chunk.size for p in inside),
        tuple(slice(p.outer[0].start, p.outer[-1].stop) for p in inside),
        cells["offset"],
        cells["length"],
        cells["checksum"],
    )
