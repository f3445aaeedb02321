"""Plans a selection: no I/O, except for references that are not loaded yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from virtualds.bounds import check_chunk
from virtualds.chunks.axes import (
    AxisKey,
    ChunkAxis,
    Projection,
    count_from_front,
    find_runs,
    to_slice,
)
from virtualds.chunks.columns import INLINE, MISSING, Ints, compact
from virtualds.chunks.fragment import Fragment
from virtualds.codecs.codec import Unreadable
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis, Layout
from virtualds.errors import UnsupportedError
from virtualds.options import get_options
from virtualds.reading.tasks import (
    Batch,
    ChunkSelection,
    Task,
    Tile,
    batch_tasks,
    merge_tasks,
    plan_box_batches,
    plan_point_tasks,
    store_of,
)

# ---------------------------------------------------------------------- pieces of chunks
# Divides chunks without codecs into pieces, so that only the selected bytes are read.
#
# An uncompressed chunk is an array in a file: any range of its leading index is itself a chunk, at
# a computed offset. A contiguous variable of many GB is one such chunk. Dividing it before planning
# keeps the bytes read and the memory small, and lets several threads share it.


PIECE_BYTES = 2**20
"""The maximum size in bytes of a piece of an uncompressed chunk, unless one element along the cut
has more."""
WORTHWHILE = 4096
"""The number of bytes below which skipping bytes costs more than reading them."""


def subdivide(
    fragment: Fragment, pipelines: Sequence[CodecPipeline], keys: Sequence[AxisKey]
) -> tuple[Fragment, Sequence[CodecPipeline]] | None:
    """Return the part of a fragment that the keys span, its plain chunks divided if it is worth it.

    The pipelines are returned too, since axes that integer indices removed are dropped.
    """
    spans = [
        (k.start, k.stop) if isinstance(k, slice) else (int(k[0]), int(k[-1]) + 1) for k in keys
    ]
    for axis, (low, high) in enumerate(spans):
        if low >= fragment.stop[axis] or high <= fragment.start[axis]:
            return None
    if not pipelines or any(p.codecs for p in pipelines):
        return fragment, pipelines
    part = fragment
    for axis, (low, high) in enumerate(spans):
        begin = max(low, part.start[axis])
        cropped = part.crop(axis, begin, high)
        if cropped is None:
            return None
        part = cropped.shift(axis, begin)
    is_alike = len({(list_stored_axes(p), p.dtype) for p in pipelines}) == 1
    # a part of a chunk has no checksum to be verified by: chunks that have one are read whole
    if not is_alike or compact(part.manifest.checksum).any():
        return part, pipelines
    # a reference of another length is wrong: the decoder must report it
    if not are_whole_in_files(part, pipelines[0]):
        return part, pipelines
    return _split_leading(part, pipelines, keys)


def list_stored_axes(pipeline: CodecPipeline) -> Layout:
    """Return the layout of chunks with the indexes of all fixed axes set to 0."""
    return tuple(FixedAxis(e.length, 0) if isinstance(e, FixedAxis) else e for e in pipeline.layout)


def are_whole_in_files(fragment: Fragment, pipeline: CodecPipeline) -> bool:
    """Return whether all uncompressed chunks are in files, each with its full length."""
    manifest = fragment.manifest.loaded()
    if (compact(manifest.file) == INLINE).any():
        return False
    whole = pipeline.dtype.itemsize * count_elements(fragment, pipeline.layout)
    return bool(((manifest.length == whole) | (manifest.file == MISSING)).all())


def _split_leading(
    fragment: Fragment, pipelines: Sequence[CodecPipeline], keys: Sequence[AxisKey]
) -> tuple[Fragment, Sequence[CodecPipeline]]:
    """Split one stored axis after the other until pieces are small and mostly selected."""
    itemsize, layout = pipelines[0].dtype.itemsize, pipelines[0].layout
    kept = list(range(len(layout)))
    for position, entry in enumerate(layout):
        rest = layout[position + 1 :]
        row = itemsize * count_elements(fragment, rest)
        longest, size = int(np.max(row, initial=1)), _find_longest(fragment, entry)
        if size > 1 and longest * size <= WORTHWHILE:
            break
        if isinstance(entry, FixedAxis):
            fragment = select_index(fragment, position, row, pipelines)
            kept.remove(position)
        elif size > 1:
            wanted = prod(_measure_share(fragment, e, keys) for e in rest)
            length = 1 if wanted < 0.25 and longest > WORTHWHILE else max(1, PIECE_BYTES // longest)
            fragment = split_axis(fragment, entry, length, row, pipelines)
            if length > 1:
                break
    return fragment, [replace(p, layout=tuple(p.layout[i] for i in kept)) for p in pipelines]


def _find_longest(fragment: Fragment, entry: int | FixedAxis) -> int:
    """Return the maximum stored length along a stored axis."""
    if isinstance(entry, FixedAxis):
        return entry.length
    return int(fragment.axes[entry].slabs().encoded.max(initial=1))


def _measure_share(fragment: Fragment, entry: int | FixedAxis, keys: Sequence[AxisKey]) -> float:
    """Return the fraction of the elements along a stored axis that the keys need."""
    if isinstance(entry, FixedAxis):
        return 1 / entry.length
    key, stored = keys[entry], fragment.axes[entry].slabs().encoded
    count = len(range(key.start, key.stop, key.step)) if isinstance(key, slice) else key.size
    return min(1.0, count / max(1, int(stored.sum())))


def select_index(
    fragment: Fragment, position: int, row: Ints, pipelines: Sequence[CodecPipeline]
) -> Fragment:
    """Keep only the selected index of a leading stored axis.

    The axis has a ``position`` in the layout of each pipeline, and elements of ``row`` bytes.
    """
    manifest = fragment.manifest
    shown = [e.index for p in pipelines if isinstance(e := p.layout[position], FixedAxis)]
    index: Ints = np.array(shown, np.int64)
    offset: Ints = manifest.offset + index[compact(manifest.pipeline)] * row
    moved = replace(manifest, offset=offset, length=np.broadcast_to(row, manifest.shape))
    return replace(fragment, manifest=moved)


def split_axis(
    fragment: Fragment, axis: int, length: int, row: Ints, pipelines: Sequence[CodecPipeline]
) -> Fragment:
    """Cut every chunk along an axis, before which it has one element, into pieces."""
    _, encoded, inset = fragment.axes[axis].slabs()
    shown = fragment.axes[axis].lengths
    pieces = -(-shown // length)
    owner = np.repeat(np.arange(shown.size), pieces)
    rank = np.arange(owner.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    sizes = np.minimum(length, shown[owner] - rank * length)
    first = inset[owner] + rank * length
    along = (1,) * axis + (-1,) + (1,) * (len(fragment.axes) - axis - 1)
    manifest = fragment.manifest.take(axis, owner)
    # a flipped chunk stores first what it shows last
    flipped = np.array([axis in p.flipped for p in pipelines])[compact(manifest.pipeline)]
    last = (encoded[owner] - first - sizes).reshape(along)
    begin: Ints = np.where(flipped, last, first.reshape(along))
    moved = replace(
        manifest,
        offset=manifest.offset + begin * row,
        length=np.broadcast_to(sizes.reshape(along) * row, manifest.shape),
    )
    axes = (*fragment.axes[:axis], ChunkAxis.from_slabs(sizes, sizes), *fragment.axes[axis + 1 :])
    return Fragment(fragment.start, axes, moved)


def count_elements(fragment: Fragment, entries: Layout) -> Ints:
    """Return the number of elements that each chunk stores along some stored axes."""
    ndim = len(fragment.axes)
    total: Ints = np.ones((1,) * ndim, np.int64)
    for entry in entries:
        if isinstance(entry, FixedAxis):
            total = total * entry.length
        else:
            stored = fragment.axes[entry].slabs().encoded
            total = total * stored.reshape((1,) * entry + (-1,) + (1,) * (ndim - entry - 1))
    return total


# ---------------------------------------------------------------------- plans


Array = npt.NDArray[Any]

RestoreStep = Callable[[Array], Array]
"""A step from the result of the normal form to the requested result."""

MAX_PARTS = 1024
"""The maximum number of boxes in which a fragment is loaded; otherwise it is loaded as one."""


class Readable(Protocol):
    """An array of fragments, with everything that reading needs."""

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


@dataclass(frozen=True)
class Selection:
    """A planned selection: the shape of the result to allocate, and the work in batches.

    ``covered`` is whether chunks fill all of the result, and ``nbytes`` is approximately their
    decoded size. ``steps`` are applied to the result, in order.
    """

    shape: tuple[int, ...]
    covered: bool
    nbytes: int
    batches: Iterator[Batch | Tile]
    steps: tuple[RestoreStep, ...] = ()

    def arrange(self, values: Array) -> Array:
        """Convert the result of the normal form to the requested result."""
        for step in self.steps:
            values = step(values)
        return values


def plan(source: Readable, key: Sequence[Any]) -> Selection:
    """Plan an orthogonal selection: per axis an int, a slice, or a 1-D array."""
    axes = [normalise_key(k, n, i) for i, (k, n) in enumerate(zip(key, source.shape, strict=True))]
    steps = [axis.step for axis in axes if axis.step]
    dropped = tuple(i for i, k in enumerate(key) if not isinstance(k, slice) and np.ndim(k) == 0)
    if dropped:
        steps.append(lambda values: values.squeeze(dropped))
    shape = tuple(axis.size for axis in axes)
    _check_readable(source)
    parts = _project_all(source, [axis.key for axis in axes]) if prod(shape) else []
    covered = sum(prod(_count_shown(p) for p in part.projections) for part in parts)
    return Selection(
        shape,
        covered == prod(shape),
        sum(part.nbytes for part in parts),
        chain.from_iterable(map(plan_box_batches, parts)),
        tuple(steps),
    )


def _check_readable(source: Readable) -> None:
    """Raise an error for an unreadable array before memory is allocated for it."""
    if len(source.pipelines) == 1:
        for codec in source.pipelines[0].codecs:
            if isinstance(codec, Unreadable):
                raise UnsupportedError(codec.reason)


def plan_only_chunk(source: Readable, key: Sequence[Any]) -> Batch | None:
    """Return the batch of a whole array of one small local chunk, or None for other selections.

    Many coordinates are like this, and need no planning.
    """
    whole = all(isinstance(k, slice) and k == slice(None) for k in key)
    if not whole or len(key) != len(source.shape) or len(source.fragments) != 1:
        return None
    fragment, shape = source.fragments[0], source.shape
    manifest = fragment.manifest
    if manifest.size != 1 or not manifest.is_loaded or fragment.shape != shape:
        return None
    first = manifest.lookup((0,) * len(shape))
    pipeline = source.pipelines[first.pipeline]
    store = store_of(fragment, first.file)
    if pipeline.hidden_size != 1 or (store is not None and store.reach.at_once):
        return None
    slabs = [axis.slabs() for axis in fragment.axes]
    encoded = tuple(int(s.encoded[0]) for s in slabs)
    nbytes = prod(encoded) * pipeline.dtype.itemsize
    # of a larger uncompressed chunk, only the selected part is read
    if nbytes > (PIECE_BYTES if pipeline.codecs or encoded == shape else WORTHWHILE):
        return None
    inset = [int(s.inset[0]) for s in slabs]
    inner = tuple(slice(a, a + n, 1) for a, n in zip(inset, shape, strict=True))
    outer = tuple(slice(0, n) for n in shape)
    task = Task(
        first.offset, first.length, first.pipeline, encoded, inner, outer, checksum=first.checksum
    )
    return Batch(fragment, source.pipelines, first.file, store, [task])


def plan_points(source: Readable, key: Sequence[Any]) -> Selection:
    """Plan a pointwise selection: arrays that broadcast together, and slices."""
    together = tuple(i for i, k in enumerate(key) if not isinstance(k, slice))
    arrays = np.broadcast_arrays(*(np.asarray(key[i]) for i in together))
    points = [
        count_from_front(a.ravel(), source.shape[i], i)
        for a, i in zip(arrays, together, strict=True)
    ]
    others = [i for i in range(len(key)) if i not in together]
    axes = {i: normalise_key(key[i], source.shape[i], n + 1) for n, i in enumerate(others)}
    shape = (points[0].size, *(axes[i].size for i in others))
    keys: list[AxisKey] = [
        axes[i].key
        if i in axes
        else to_slice(np.unique(points[together.index(i)]))
        if points[0].size
        else slice(0, 0, 1)
        for i in range(len(key))
    ]
    parts = _project_all(source, keys) if prod(shape) else []
    tasks = [(part, merge_tasks(plan_point_tasks(part, points, together))) for part in parts]
    filled = sum(
        prod(o.stop - o.start if isinstance(o, slice) else int(o.size) for o in outer)
        for _, found in tasks
        for _, task in found
        for _, outer in task.pairs
    )
    nbytes = sum(
        part.pipelines[task.pipeline].dtype.itemsize * prod(task.encoded)
        for part, found in tasks
        for _, task in found
    )
    steps = [axis.step for axis in axes.values() if axis.step]
    steps.append(lambda values: values.reshape(arrays[0].shape + values.shape[1:]))
    return Selection(
        shape,
        filled == prod(shape),
        nbytes,
        chain.from_iterable(batch_tasks(part, found) for part, found in tasks),
        tuple(steps),
    )


def _project_all(source: Readable, keys: Sequence[AxisKey]) -> list[ChunkSelection]:
    """Return the selected chunks of every fragment that the selection intersects."""
    found = []
    for fragment in chain.from_iterable(load_parts(f, keys) for f in source.fragments):
        divided = subdivide(fragment, source.pipelines, keys)
        if divided is None:
            continue
        fine, pipelines = divided
        projections = [
            axis.project(key, start)
            for axis, key, start in zip(fine.axes, keys, fine.start, strict=True)
        ]
        if all(p.chunk.size for p in projections):
            found.append(ChunkSelection(fine, pipelines, projections))
            _check_chunk_size(source, found[-1])
    return found


def _check_chunk_size(source: Readable, part: ChunkSelection) -> None:
    """Raise an error for a large chunk of which only a few elements are needed."""
    bare = [p for p in part.pipelines if not p.codecs]
    longest = prod(int(p.encoded.max()) for p in part.projections)
    nbytes = max((longest * p.hidden_size * p.dtype.itemsize for p in part.pipelines), default=0)
    # most chunks are small
    if nbytes <= get_options().load_limit or len(bare) == len(part.pipelines):
        return
    where = np.ix_(*(p.chunk for p in part.projections)) if part.projections else ()
    if (part.fragment.manifest.file[where] != MISSING).any():
        taken = prod(_count_shown(p) for p in part.projections) * source.dtype.itemsize
        check_chunk(nbytes, taken, f"variable {source.name!r}" if source.name else "array")


def _count_shown(projection: Projection) -> int:
    return int(projection.outer[-1].stop - projection.outer[0].start)


# ---------------------------------------------------------------------- keys


class AxisPlan(NamedTuple):
    """The normal form of the key of one axis, and the step back from it."""

    key: AxisKey
    size: int
    step: RestoreStep | None


def normalise_key(key: Any, size: int, axis: int) -> AxisPlan:
    """Convert the key of one axis to its normal form."""
    if isinstance(key, slice):
        return _normalise_slice(key, size, axis)
    positions = np.asarray(key)
    if positions.dtype == bool:
        if positions.size != size:
            raise IndexError(
                f"axis {axis}: a mask of {positions.size} for {size} elements; make it as long"
            )
        positions = np.flatnonzero(positions)
    positions = count_from_front(np.atleast_1d(positions), size, axis)
    if not positions.size:
        return AxisPlan(slice(0, 0, 1), 0, None)
    rising, inverse = np.unique(positions, return_inverse=True)
    in_order = rising.size == positions.size and bool((rising == positions).all())
    step: RestoreStep | None = None if in_order else lambda values: values.take(inverse, axis=axis)
    return AxisPlan(to_slice(rising), rising.size, step)


def _normalise_slice(key: slice, size: int, axis: int) -> AxisPlan:
    start, stop, step = key.indices(size)
    count = len(range(start, stop, step))
    if step > 0 or not count:
        return AxisPlan(slice(start, start + count * abs(step), abs(step)), count, None)
    low = start + (count - 1) * step
    flip = (slice(None),) * axis + (slice(None, None, -1),)
    return AxisPlan(slice(low, start + 1, -step), count, lambda values: values[flip])


# ---------------------------------------------------------------------- lazy references


def load_parts(fragment: Fragment, keys: Sequence[AxisKey]) -> Iterator[Fragment]:
    """Load and yield boxes of a fragment that contain all the chunks that the keys need.

    A fragment whose references are in memory is yielded unchanged.
    """
    if fragment.manifest.is_loaded:
        yield fragment
        return
    met = [
        find_runs(axis.project(key, start).chunk)
        for axis, key, start in zip(fragment.axes, keys, fragment.start, strict=True)
    ]
    if not all(met):
        return
    if prod(map(len, met)) > MAX_PARTS:
        met = [[(runs[0][0], runs[-1][1])] for runs in met]
    for runs in product(*met):
        part: Fragment | None = fragment
        for axis, (first, stop) in enumerate(runs):
            edges = fragment.axes[axis].slabs(first, stop).edges
            begin, end = (int(e) + fragment.start[axis] for e in (edges[0], edges[-1]))
            part = part.crop(axis, begin, end) if part is not None else None
            part = part.shift(axis, begin) if part is not None else None
        if part is not None:
            yield replace(part, manifest=part.manifest.loaded())


def find_chunk_at(
    fragment: Fragment, part: Fragment, file: int, offset: int
) -> tuple[int, ...] | None:
    """Return the index of the chunk at an offset in a file of the part, or None."""
    read, whole, first = part.manifest, fragment.manifest, (0,) * len(fragment.axes)
    if whole.is_loaded:
        if whole.files is not read.files or whole.inline is not read.inline:
            return None
    else:
        # other fragments would have to load their references
        bounds = zip(fragment.start, part.start, part.stop, fragment.stop, strict=True)
        if not all(a <= b and c <= d for a, b, c, d in bounds):
            return None
        # the chunks of the fragment at the position of the part
        begins = []
        for axis, (low, high) in enumerate(zip(part.start, part.stop, strict=True)):
            at = fragment.start[axis]
            _, kept = fragment.axes[axis].crop(low - at, high - at)
            begins.append(kept.start)
            whole = whole.take(axis, kept)
        whole, first = whole.loaded(), tuple(begins)
        if file == INLINE:
            offset = whole.inline.index(read.inline[offset])
        elif file >= 0:
            file = whole.files.index(read.files[file])
    end = whole.offset + (1 if file == INLINE else whole.length)
    holds = (whole.file == file) & (whole.offset <= offset) & (offset < end)
    if not holds.any():
        return None
    return tuple(int(i + n) for i, n in zip(np.argwhere(holds)[0], first, strict=True))
