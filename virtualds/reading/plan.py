"""Plans which chunks a selection reads; the only I/O is the loading of references."""

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
    find_runs,
    normalise_positions,
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
    find_chunk_store,
    merge_tasks,
    plan_box_batches,
    plan_point_tasks,
)

# ---------------------------------------------------------------------- pieces of chunks
# Uncompressed chunks are divided into pieces, so that only the selected bytes are read.
#
# Any range of the leading axis of an uncompressed chunk is itself a chunk, at a computed offset. A
# contiguous variable of many GB is one such chunk. Dividing it saves bytes and memory, and lets
# several threads read it.


PIECE_BYTES = 2**20
"""Maximum size in bytes of a piece, unless one index along the divided axis is larger."""
MIN_SKIPPED_BYTES = 4096
"""Minimum number of bytes to skip; it costs less to read fewer bytes than to skip them."""


def subdivide(
    fragment: Fragment, pipelines: Sequence[CodecPipeline], keys: Sequence[AxisKey]
) -> tuple[Fragment, Sequence[CodecPipeline]] | None:
    """Crop a fragment to the keys, and divide its uncompressed chunks if that saves reads.

    Return the fragment and its pipelines, without the stored axes that were divided completely, or
    None if the keys do not intersect the fragment.
    """
    spans = [
        (k.start, k.stop) if isinstance(k, slice) else (int(k[0]), int(k[-1]) + 1) for k in keys
    ]
    start, stop = fragment.start, fragment.stop
    for axis, (low, high) in enumerate(spans):
        if low >= stop[axis] or high <= start[axis]:
            return None
    if not pipelines or any(p.codecs for p in pipelines):
        return fragment, pipelines
    part = fragment
    for axis, (low, high) in enumerate(spans):
        if low <= start[axis] and high >= stop[axis]:
            continue
        begin = max(low, start[axis])
        cropped = part.crop(axis, begin, high)
        if cropped is None:
            return None
        part = cropped.shift(axis, begin)
    have_same_layout = len({(list_stored_axes(p), p.dtype) for p in pipelines}) == 1
    # a chunk with a checksum must be read as a whole to verify it
    if not have_same_layout or compact(part.manifest.checksum).any():
        return part, pipelines
    # a reference of another length is invalid, which the decoder reports
    if not are_uncompressed_in_files(part, pipelines[0]):
        return part, pipelines
    return _split_leading(part, pipelines, keys)


def list_stored_axes(pipeline: CodecPipeline) -> Layout:
    """Return the layout of a pipeline, with index 0 for all fixed axes."""
    return tuple(FixedAxis(e.length, 0) if isinstance(e, FixedAxis) else e for e in pipeline.layout)


def are_uncompressed_in_files(fragment: Fragment, pipeline: CodecPipeline) -> bool:
    """Return whether no chunk is inline, and each has the length of its uncompressed elements."""
    manifest = fragment.manifest.loaded()
    if (compact(manifest.file) == INLINE).any():
        return False
    nbytes = pipeline.dtype.itemsize * count_elements(fragment, pipeline.layout)
    return bool(((manifest.length == nbytes) | (manifest.file == MISSING)).all())


def _split_leading(
    fragment: Fragment, pipelines: Sequence[CodecPipeline], keys: Sequence[AxisKey]
) -> tuple[Fragment, Sequence[CodecPipeline]]:
    """Split the leading stored axes until the pieces are small, or mostly selected."""
    itemsize, layout = pipelines[0].dtype.itemsize, pipelines[0].layout
    kept_axes = list(range(len(layout)))
    for position, entry in enumerate(layout):
        inner_layout = layout[position + 1 :]
        row_bytes = itemsize * count_elements(fragment, inner_layout)
        longest, size = int(np.max(row_bytes, initial=1)), _find_max_length(fragment, entry)
        if size > 1 and longest * size <= MIN_SKIPPED_BYTES:
            break
        if isinstance(entry, FixedAxis):
            fragment = select_index(fragment, position, row_bytes, pipelines)
            kept_axes.remove(position)
        elif size > 1:
            selected_share = prod(_measure_share(fragment, e, keys) for e in inner_layout)
            length = (
                1
                if selected_share < 0.25 and longest > MIN_SKIPPED_BYTES
                else max(1, PIECE_BYTES // longest)
            )
            fragment = split_axis(fragment, entry, length, row_bytes, pipelines)
            if length > 1:
                break
    return fragment, [replace(p, layout=tuple(p.layout[i] for i in kept_axes)) for p in pipelines]


def _find_max_length(fragment: Fragment, entry: int | FixedAxis) -> int:
    """Return the maximum chunk length along a stored axis."""
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
    fragment: Fragment, position: int, row_bytes: Ints, pipelines: Sequence[CodecPipeline]
) -> Fragment:
    """Narrow the byte ranges of chunks to the fixed index of a leading stored axis.

    ``position`` is that of the axis in the layout of each pipeline, and ``row_bytes`` the bytes per
    index along it.
    """
    manifest = fragment.manifest
    fixed_indexes = [e.index for p in pipelines if isinstance(e := p.layout[position], FixedAxis)]
    index: Ints = np.array(fixed_indexes, np.int64)
    offset: Ints = manifest.offset + index[compact(manifest.pipeline)] * row_bytes
    moved = replace(manifest, offset=offset, length=np.broadcast_to(row_bytes, manifest.shape))
    return replace(fragment, manifest=moved)


def split_axis(
    fragment: Fragment, axis: int, length: int, row_bytes: Ints, pipelines: Sequence[CodecPipeline]
) -> Fragment:
    """Divide chunks into pieces of at most ``length`` along their leading stored axis.

    ``row_bytes`` are the bytes per index along the axis.
    """
    _, encoded, inset = fragment.axes[axis].slabs()
    lengths = fragment.axes[axis].lengths
    pieces = -(-lengths // length)
    parent = np.repeat(np.arange(lengths.size), pieces)
    piece_number = np.arange(parent.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    sizes = np.minimum(length, lengths[parent] - piece_number * length)
    first = inset[parent] + piece_number * length
    along = (1,) * axis + (-1,) + (1,) * (len(fragment.axes) - axis - 1)
    manifest = fragment.manifest.take(axis, parent)
    # a flipped chunk stores its last element first
    flipped = np.array([axis in p.flipped for p in pipelines])[compact(manifest.pipeline)]
    last = (encoded[parent] - first - sizes).reshape(along)
    begin: Ints = np.where(flipped, last, first.reshape(along))
    moved = replace(
        manifest,
        offset=manifest.offset + begin * row_bytes,
        length=np.broadcast_to(sizes.reshape(along) * row_bytes, manifest.shape),
    )
    axes = (*fragment.axes[:axis], ChunkAxis.from_slabs(sizes, sizes), *fragment.axes[axis + 1 :])
    return Fragment(fragment.start, axes, moved)


def count_elements(fragment: Fragment, entries: Layout) -> Ints:
    """Return the number of elements of each chunk along the stored axes ``entries``."""
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
"""Converts the result of a normalised selection to that of the requested one."""

MAX_BOXES = 1024
"""Maximum number of boxes in which references are loaded; beyond it, one box contains all."""


class Readable(Protocol):
    """The attributes of a `ManifestArray` that reading needs."""

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
    """A planned selection: the shape of the result to allocate, and batches of chunks to read.

    ``is_covered`` is whether fragments cover all of the result, and ``nbytes`` approximately the
    decoded size of the chunks. ``steps`` are applied to the result, in order.
    """

    shape: tuple[int, ...]
    is_covered: bool
    nbytes: int
    batches: Iterator[Batch | Tile]
    steps: tuple[RestoreStep, ...] = ()

    def arrange(self, values: Array) -> Array:
        """Convert the result of the normalised selection to that of the requested one."""
        for step in self.steps:
            values = step(values)
        return values


def plan_selection(source: Readable, key: Sequence[Any]) -> Selection:
    """Plan an orthogonal selection: an int, a slice, or a 1-D array for each axis."""
    axes = [normalise_key(k, n, i) for i, (k, n) in enumerate(zip(key, source.shape, strict=True))]
    steps = [axis.step for axis in axes if axis.step]
    dropped = tuple(i for i, k in enumerate(key) if not isinstance(k, slice) and np.ndim(k) == 0)
    if dropped:
        steps.append(lambda values: values.squeeze(dropped))
    shape = tuple(axis.size for axis in axes)
    # raise the error before memory is allocated for an unreadable array
    for codec in source.pipelines[0].codecs if len(source.pipelines) == 1 else ():
        if isinstance(codec, Unreadable):
            raise UnsupportedError(codec.reason)
    parts = _project_all(source, [axis.key for axis in axes]) if prod(shape) else []
    covered = sum(prod(_count_selected(p) for p in part.projections) for part in parts)
    return Selection(
        shape,
        covered == prod(shape),
        sum(part.nbytes for part in parts),
        chain.from_iterable(map(plan_box_batches, parts)),
        tuple(steps),
    )


def plan_only_chunk(source: Readable, key: Sequence[Any]) -> Batch | None:
    """Return the batch that reads a whole array of one small local chunk, else None.

    This shortcut saves time for the many coordinates of one chunk.
    """
    is_whole = all(isinstance(k, slice) and k == slice(None) for k in key)
    if not is_whole or len(key) != len(source.shape) or len(source.fragments) != 1:
        return None
    fragment, shape = source.fragments[0], source.shape
    manifest = fragment.manifest
    if manifest.size != 1 or not manifest.is_loaded or fragment.shape != shape:
        return None
    reference = manifest.lookup((0,) * len(shape))
    pipeline = source.pipelines[reference.pipeline]
    store = find_chunk_store(fragment, reference.file)
    if pipeline.hidden_size != 1 or (store is not None and store.request_limits.max_requests):
        return None
    slabs = [axis.slabs() for axis in fragment.axes]
    encoded = tuple(int(s.encoded[0]) for s in slabs)
    nbytes = prod(encoded) * pipeline.dtype.itemsize
    # larger uncompressed chunks are read in pieces
    if nbytes > (PIECE_BYTES if pipeline.codecs or encoded == shape else MIN_SKIPPED_BYTES):
        return None
    inset = [int(s.inset[0]) for s in slabs]
    inner = tuple(slice(a, a + n, 1) for a, n in zip(inset, shape, strict=True))
    outer = tuple(slice(0, n) for n in shape)
    task = Task(
        reference.offset,
        reference.length,
        reference.pipeline,
        encoded,
        inner,
        outer,
        checksum=reference.checksum,
    )
    return Batch(fragment, source.pipelines, reference.file, store, [task])


def plan_points(source: Readable, key: Sequence[Any]) -> Selection:
    """Plan a pointwise selection: integer arrays that broadcast together, and slices."""
    point_axes = tuple(i for i, k in enumerate(key) if not isinstance(k, slice))
    arrays = np.broadcast_arrays(*(np.asarray(key[i]) for i in point_axes))
    points = [
        normalise_positions(a.ravel(), source.shape[i], i)
        for a, i in zip(arrays, point_axes, strict=True)
    ]
    others = [i for i in range(len(key)) if i not in point_axes]
    axes = {i: normalise_key(key[i], source.shape[i], n + 1) for n, i in enumerate(others)}
    shape = (points[0].size, *(axes[i].size for i in others))
    keys: list[AxisKey] = [
        axes[i].key
        if i in axes
        else to_slice(np.unique(points[point_axes.index(i)]))
        if points[0].size
        else slice(0, 0, 1)
        for i in range(len(key))
    ]
    parts = _project_all(source, keys) if prod(shape) else []
    tasks = [(part, merge_tasks(plan_point_tasks(part, points, point_axes))) for part in parts]
    filled = sum(
        prod(o.stop - o.start if isinstance(o, slice) else int(o.size) for o in outer)
        for _, chunk_tasks in tasks
        for _, task in chunk_tasks
        for _, outer in task.pairs
    )
    nbytes = sum(
        part.pipelines[task.pipeline].dtype.itemsize * prod(task.encoded)
        for part, chunk_tasks in tasks
        for _, task in chunk_tasks
    )
    steps = [axis.step for axis in axes.values() if axis.step]
    steps.append(lambda values: values.reshape(arrays[0].shape + values.shape[1:]))
    return Selection(
        shape,
        filled == prod(shape),
        nbytes,
        chain.from_iterable(batch_tasks(part, chunk_tasks) for part, chunk_tasks in tasks),
        tuple(steps),
    )


def _project_all(source: Readable, keys: Sequence[AxisKey]) -> list[ChunkSelection]:
    """Return the selected chunks of each fragment that the selection intersects."""
    selections = []
    for fragment in chain.from_iterable(load_parts(f, keys) for f in source.fragments):
        divided = subdivide(fragment, source.pipelines, keys)
        if divided is None:
            continue
        divided_fragment, pipelines = divided
        projections = [
            axis.project(key, start)
            for axis, key, start in zip(
                divided_fragment.axes, keys, divided_fragment.start, strict=True
            )
        ]
        if all(p.chunk.size for p in projections):
            selections.append(ChunkSelection(divided_fragment, pipelines, projections))
            _check_chunk_size(source, selections[-1])
    return selections


def _check_chunk_size(source: Readable, part: ChunkSelection) -> None:
    """Raise an error for a huge chunk if only few of its elements are needed."""
    uncompressed = [p for p in part.pipelines if not p.codecs]
    longest = prod(int(p.encoded.max()) for p in part.projections)
    nbytes = max((longest * p.hidden_size * p.dtype.itemsize for p in part.pipelines), default=0)
    # return early, since most chunks are small
    if nbytes <= get_options().load_limit or len(uncompressed) == len(part.pipelines):
        return
    where = np.ix_(*(p.chunk for p in part.projections)) if part.projections else ()
    if (part.fragment.manifest.file[where] != MISSING).any():
        selected_bytes = prod(_count_selected(p) for p in part.projections) * source.dtype.itemsize
        check_chunk(nbytes, selected_bytes, f"variable {source.name!r}" if source.name else "array")


def _count_selected(projection: Projection) -> int:
    return int(projection.outer[-1].stop - projection.outer[0].start)


# ---------------------------------------------------------------------- keys


class AxisPlan(NamedTuple):
    """A normalised key of one axis, the length of its result, and the step that restores it."""

    key: AxisKey
    size: int
    step: RestoreStep | None


def normalise_key(key: Any, size: int, axis: int) -> AxisPlan:
    """Normalise the key of one axis to a slice with a positive step, or to ascending positions."""
    if isinstance(key, slice):
        return _normalise_slice(key, size, axis)
    positions = np.asarray(key)
    if positions.dtype == bool:
        if positions.size != size:
            raise IndexError(
                f"axis {axis}: a mask of {positions.size} for {size} elements; give it the same "
                f"length"
            )
        positions = np.flatnonzero(positions)
    positions = normalise_positions(np.atleast_1d(positions), size, axis)
    if not positions.size:
        return AxisPlan(slice(0, 0, 1), 0, None)
    distinct, inverse = np.unique(positions, return_inverse=True)
    in_order = distinct.size == positions.size and bool((distinct == positions).all())
    step: RestoreStep | None = None if in_order else lambda values: values.take(inverse, axis=axis)
    return AxisPlan(to_slice(distinct), distinct.size, step)


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
    """Yield boxes of a fragment, with loaded references, that contain all selected chunks.

    A fragment whose references are in memory is yielded unchanged.
    """
    if fragment.manifest.is_loaded:
        yield fragment
        return
    runs_by_axis = [
        find_runs(axis.project(key, start).chunk)
        for axis, key, start in zip(fragment.axes, keys, fragment.start, strict=True)
    ]
    if not all(runs_by_axis):
        return
    if prod(map(len, runs_by_axis)) > MAX_BOXES:
        runs_by_axis = [[(runs[0][0], runs[-1][1])] for runs in runs_by_axis]
    for runs in product(*runs_by_axis):
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
    """Return the id of the chunk of ``fragment`` at an offset of a file, or None.

    ``part`` is the part of a fragment that was read; ``file`` is a file code of its manifest.
    """
    read, whole, first = part.manifest, fragment.manifest, (0,) * len(fragment.axes)
    if whole.is_loaded:
        if whole.files is not read.files or whole.inline is not read.inline:
            return None
    else:
        # skip other fragments, whose references would have to be loaded
        bounds = zip(fragment.start, part.start, part.stop, fragment.stop, strict=True)
        if not all(a <= b and c <= d for a, b, c, d in bounds):
            return None
        # crop the manifest of the fragment to the box of the part
        begins = []
        for axis, (low, high) in enumerate(zip(part.start, part.stop, strict=True)):
            fragment_start = fragment.start[axis]
            _, slabs = fragment.axes[axis].crop(low - fragment_start, high - fragment_start)
            begins.append(slabs.start)
            whole = whole.take(axis, slabs)
        whole, first = whole.loaded(), tuple(begins)
        if file == INLINE:
            offset = whole.inline.index(read.inline[offset])
        elif file >= 0:
            file = whole.files.index(read.files[file])
    end = whole.offset + (1 if file == INLINE else whole.length)
    is_match = (whole.file == file) & (whole.offset <= offset) & (offset < end)
    if not is_match.any():
        return None
    return tuple(int(i + n) for i, n in zip(np.argwhere(is_match)[0], first, strict=True))
