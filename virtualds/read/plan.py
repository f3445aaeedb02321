"""What must be read for a selection: pure, no I/O.

A selection is brought to a normal form first: along every axis either a slice that rises, or rising
positions without repeats, so that every chunk fills one stretch of the result. What that loses (the
order of positions, repeats, a falling slice, a dropped axis) is restored on the result by
`Selection.arrange`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, product, repeat
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from virtualds.fragment import CodecPipeline, Fragment
from virtualds.grid import AxisKey, Ints, Projection, as_slice, counted_positions
from virtualds.manifest import COLUMNS, Column
from virtualds.read.load import loaded_parts
from virtualds.read.share import alike_along
from virtualds.read.subdivide import subdivide

BATCH_TASKS = 256
BATCH_BYTES = 2**20
BLOCK_TASKS = 2**16

Array = npt.NDArray[Any]
Step = Callable[[Array], Array]


class Readable(Protocol):
    """An array made of fragments, as far as reading it needs to know."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def fill_value(self) -> Any: ...
    @property
    def pipelines(self) -> tuple[CodecPipeline, ...]: ...
    @property
    def fragments(self) -> tuple[Fragment, ...]: ...
    @property
    def name(self) -> str: ...


class Task(NamedTuple):
    """One chunk to fetch, decode and place.

    ``inner`` selects within the chunk, in the array's axes; ``outer`` is the part of the result
    that it fills. ``points`` holds, for a pointwise selection, the axes that are indexed together.
    ``more`` holds further pairs of ``inner`` and ``outer``, of a chunk that is shown several times.
    ``checksum`` is that of the manifest: 0 is none.
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
    def places(self) -> Iterator[tuple[Any, Any]]:
        """Every pair of ``inner`` and ``outer``."""
        return chain([(self.inner, self.outer)], self.more)


class Batch(NamedTuple):
    """Tasks of one file of one fragment, or of its missing or inline chunks."""

    fragment: Fragment
    pipelines: Sequence[CodecPipeline]
    file: int
    tasks: list[Task]


class Part(NamedTuple):
    """What a selection takes of one fragment."""

    fragment: Fragment
    pipelines: Sequence[CodecPipeline]
    projections: list[Projection]


AS_TASK: Callable[[tuple[Any, ...]], Task] = partial(tuple.__new__, Task)
"""`Task._make` without its check, for millions of rows."""


@dataclass(frozen=True)
class Selection:
    """A planned selection: the shape to allocate, the work, and what to do to the result."""

    shape: tuple[int, ...]
    covered: bool
    batches: Iterator[Batch]
    steps: tuple[Step, ...] = ()

    def arrange(self, values: Array) -> Array:
        """Bring the result from the normal form to what was asked for."""
        for step in self.steps:
            values = step(values)
        return values


class AxisPlan(NamedTuple):
    """The normal form of one axis's key, and the step that leads back from it."""

    key: AxisKey
    size: int
    step: Step | None


def plan(source: Readable, key: Sequence[Any]) -> Selection:
    """Plan an orthogonal selection: per axis an int, a slice, or a 1-D array."""
    axes = [_normalise(k, n, i) for i, (k, n) in enumerate(zip(key, source.shape, strict=True))]
    steps = [axis.step for axis in axes if axis.step]
    dropped = tuple(i for i, k in enumerate(key) if not isinstance(k, slice) and np.ndim(k) == 0)
    if dropped:
        steps.append(lambda values: values.squeeze(dropped))
    keys = [axis.key for axis in axes]
    shape = tuple(axis.size for axis in axes)
    parts = _project_all(source, keys) if prod(shape) else []
    covered = sum(prod(_shown(p) for p in part.projections) for part in parts)
    return Selection(shape, covered == prod(shape), _box_batches(parts), tuple(steps))


def plan_points(source: Readable, key: Sequence[Any]) -> Selection:
    """Plan a pointwise selection: arrays that broadcast together, and slices."""
    together = tuple(i for i, k in enumerate(key) if not isinstance(k, slice))
    arrays = np.broadcast_arrays(*(np.asarray(key[i]) for i in together))
    points = [
        counted_positions(a.ravel(), source.shape[i], i)
        for a, i in zip(arrays, together, strict=True)
    ]
    others = [i for i in range(len(key)) if i not in together]
    axes = {i: _normalise(key[i], source.shape[i], n + 1) for n, i in enumerate(others)}
    shape = (points[0].size, *(axes[i].size for i in others))
    keys: list[AxisKey] = [
        axes[i].key
        if i in axes
        else as_slice(np.unique(points[together.index(i)]))
        if points[0].size
        else slice(0, 0, 1)
        for i in range(len(key))
    ]
    parts = _project_all(source, keys) if prod(shape) else []
    tasks = [(p, list(_point_tasks(p.fragment, points, together, p.projections))) for p in parts]
    filled = sum(prod(_extent(o) for o in t.outer) for _, found in tasks for _, t in found)
    steps = [axis.step for axis in axes.values() if axis.step]
    steps.append(lambda values: values.reshape(arrays[0].shape + values.shape[1:]))
    batches = (batch for part, found in tasks for batch in _batches(part, iter(found)))
    return Selection(shape, filled == prod(shape), batches, tuple(steps))


def _normalise(key: Any, size: int, axis: int) -> AxisPlan:
    """Bring the key of one axis to its normal form."""
    if isinstance(key, slice):
        return _normalise_slice(key, size, axis)
    positions = np.asarray(key)
    if positions.dtype == bool:
        if positions.size != size:
            raise IndexError(
                f"axis {axis}: a mask of {positions.size} for {size} elements; make it as long"
            )
        positions = np.flatnonzero(positions)
    positions = counted_positions(np.atleast_1d(positions), size, axis)
    if not positions.size:
        return AxisPlan(slice(0, 0, 1), 0, None)
    rising, inverse = np.unique(positions, return_inverse=True)
    in_order = rising.size == positions.size and bool((rising == positions).all())
    step: Step | None = None if in_order else lambda values: values.take(inverse, axis=axis)
    return AxisPlan(as_slice(rising), rising.size, step)


def _normalise_slice(key: slice, size: int, axis: int) -> AxisPlan:
    start, stop, step = key.indices(size)
    count = len(range(start, stop, step))
    if step > 0 or not count:
        return AxisPlan(slice(start, start + count * abs(step), abs(step)), count, None)
    low = start + (count - 1) * step
    flip = (slice(None),) * axis + (slice(None, None, -1),)
    return AxisPlan(slice(low, start + 1, -step), count, lambda values: values[flip])


def _project_all(source: Readable, keys: Sequence[AxisKey]) -> list[Part]:
    """Return, for every fragment that the selection meets, what it takes of its chunks."""
    found = []
    for fragment in chain.from_iterable(loaded_parts(f, keys) for f in source.fragments):
        cut = subdivide(fragment, source.pipelines, keys)
        if cut is None:
            continue
        fine, pipelines = cut
        projections = [
            axis.project(key, start)
            for axis, key, start in zip(fine.axes, keys, fine.start, strict=True)
        ]
        if all(p.chunk.size for p in projections):
            found.append(Part(fine, pipelines, projections))
    return found


def _shown(projection: Projection) -> int:
    return int(projection.outer[-1].stop - projection.outer[0].start)


def _extent(outer: Any) -> int:
    return int(outer.stop - outer.start if isinstance(outer, slice) else outer.size)


def _box_batches(parts: list[Part]) -> Iterator[Batch]:
    for part in parts:
        yield from _batches(part, _box_tasks(part.fragment, part.projections))


def _box_tasks(fragment: Fragment, projections: list[Projection]) -> Iterator[tuple[int, Task]]:
    """Yield every chunk of a box with the number of its file, in C order, a block at a time."""
    shared = [alike_along(fragment, projections, axis) for axis in range(len(projections))]
    if any(groups is not None for groups in shared):
        yield from _shared_tasks(fragment, projections, shared)
        return
    yield from _distinct_tasks(fragment, projections)


def _shared_tasks(
    fragment: Fragment, projections: list[Projection], shared: list[list[Ints] | None]
) -> Iterator[tuple[int, Task]]:
    """Yield every chunk once, whatever number of slabs shows it."""
    gathered = [_gathered(p, g) for p, g in zip(projections, shared, strict=True)]
    for file, task in _distinct_tasks(fragment, gathered):
        places = zip(product(*task.inner), product(*task.outer), strict=True)
        inner, outer = next(places)
        yield file, task._replace(inner=inner, outer=outer, more=tuple(places))


def _gathered(projection: Projection, groups: list[Ints] | None) -> Projection:
    """Return a projection on groups of slabs, each with all that is taken of its chunk."""
    count = projection.chunk.size
    places = [[i] for i in range(count)] if groups is None else [g.tolist() for g in groups]

    def gathered(column: list[Any]) -> list[Any]:
        return [[column[i] for i in group] for group in places]

    first = projection.chunk[[group[0] for group in places]]
    return Projection(first, gathered(projection.inner), gathered(projection.outer))


def _distinct_tasks(
    fragment: Fragment, projections: list[Projection]
) -> Iterator[tuple[int, Task]]:
    encoded = [_encoded(fragment, axis, p) for axis, p in enumerate(projections)]
    if not projections:
        yield from _block(fragment, projections, encoded)
        return
    rest = prod(p.chunk.size for p in projections[1:])
    step = max(1, BLOCK_TASKS // rest)
    for begin in range(0, projections[0].chunk.size, step):
        part = slice(begin, begin + step)
        first = projections[0]
        head = Projection(first.chunk[part], first.inner[part], first.outer[part])
        yield from _block(fragment, [head, *projections[1:]], [encoded[0][part], *encoded[1:]])


def _block(
    fragment: Fragment, projections: list[Projection], encoded: list[list[int]]
) -> Iterator[tuple[int, Task]]:
    where = np.ix_(*(p.chunk for p in projections)) if projections else ()
    manifest = fragment.manifest
    columns = (getattr(manifest, name) for name in COLUMNS)
    file, offset, length, pipeline, checksum = (_cells(column, where) for column in columns)
    rows = zip(
        offset,
        length,
        pipeline,
        product(*encoded),
        product(*(p.inner for p in projections)),
        product(*(p.outer for p in projections)),
        repeat(()),
        repeat(()),
        checksum,
        strict=False,
    )
    return zip(file, map(AS_TASK, rows), strict=False)


def _cells(column: Column, where: tuple[Ints, ...]) -> Iterable[int]:
    """Return a column at the crossings of positions; without end where it does not change."""
    if column.size and not any(column.strides):
        return repeat(int(column.flat[0]))
    return column[where].ravel().tolist()


def _encoded(fragment: Fragment, axis: int, projection: Projection) -> list[int]:
    """Return the stored lengths of the chunks that a projection meets."""
    first, final = int(projection.chunk[0]), int(projection.chunk[-1])
    stored = fragment.axes[axis].slabs(first, final + 1).encoded
    return stored[projection.chunk - first].tolist()  # type: ignore[no-any-return]


def _point_tasks(
    fragment: Fragment,
    points: Sequence[Ints],
    together: tuple[int, ...],
    projections: list[Projection],
) -> Iterator[tuple[int, Task]]:
    """Yield one task per chunk that holds points, for every chunk along the sliced axes."""
    inside = np.ones(points[0].size, bool)
    for positions, axis in zip(points, together, strict=True):
        inside &= (positions >= fragment.start[axis]) & (positions < fragment.stop[axis])
    order = np.flatnonzero(inside)
    local = [p[order] - fragment.start[axis] for p, axis in zip(points, together, strict=True)]
    ids = np.stack([fragment.axes[a].locate(p) for a, p in zip(together, local, strict=True)])
    _, first, group = np.unique(ids, axis=1, return_index=True, return_inverse=True)
    by_chunk = np.argsort(group.ravel(), kind="stable")
    for members in np.split(
        by_chunk, np.cumsum(np.bincount(group.ravel(), minlength=first.size))[:-1]
    ):
        chosen = (
            dict(zip(together, ids[:, members[0]].tolist(), strict=True)) if members.size else {}
        )
        if not chosen:
            continue
        inner, encoded = {}, {}
        for k, axis in enumerate(together):
            edges, stored, inset = fragment.axes[axis].slabs(chosen[axis], chosen[axis] + 1)
            inner[axis] = local[k][members] - edges[0] + inset[0]
            encoded[axis] = int(stored[0])
        yield from _sliced(fragment, projections, chosen, inner, encoded, order[members], together)


def _sliced(
    fragment: Fragment,
    projections: list[Projection],
    chosen: dict[int, int],
    inner: dict[int, Ints],
    encoded: dict[int, int],
    target: Ints,
    together: tuple[int, ...],
) -> Iterator[tuple[int, Task]]:
    """Yield the tasks of one chunk of points along every combination of the sliced axes."""
    others = [i for i in range(len(projections)) if i not in chosen]
    lengths = {i: _encoded(fragment, i, projections[i]) for i in others}
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


def _batches(part: Part, tasks: Iterator[tuple[int, Task]]) -> Iterator[Batch]:
    """Gather consecutive chunks of one file, up to a number and a size."""
    for file, group in groupby(tasks, key=operator.itemgetter(0)):
        rows: list[Task] = []
        nbytes = 0
        for _, task in group:
            if rows and (len(rows) == BATCH_TASKS or nbytes + task.length > BATCH_BYTES):
                yield Batch(part.fragment, part.pipelines, file, rows)
                rows, nbytes = [], 0
            rows.append(task)
            nbytes += task.length
        yield Batch(part.fragment, part.pipelines, file, rows)
