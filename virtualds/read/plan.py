"""What must be read for a selection: pure, no I/O but for references that are not loaded yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, Protocol

import numpy as np

from virtualds.bounds import demand_chunk
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.projection import AxisKey, Projection, as_slice, counted_positions
from virtualds.codecs.codec import Unreadable
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import UnsupportedError
from virtualds.options import get_options
from virtualds.read.keys import Array, Step, normalise
from virtualds.read.load import loaded_parts
from virtualds.read.subdivide import PIECE, WORTHWHILE, subdivide
from virtualds.read.tasks import Batch, Part, Task, batches, merged, point_tasks, reach_of
from virtualds.read.tiles import Tile, box_batches


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


@dataclass(frozen=True)
class Selection:
    """A planned selection.

    Parameters
    ----------
    shape : tuple of int
        Of the result to allocate.
    covered : bool
        Whether chunks fill all of it.
    nbytes : int
        Decoded bytes of the chunks that it meets, about.
    batches : iterator of Batch or Tile
        The work.
    steps : tuple of callable
        What is done to the result, one after the other.
    """

    shape: tuple[int, ...]
    covered: bool
    nbytes: int
    batches: Iterator[Batch | Tile]
    steps: tuple[Step, ...] = ()

    def arrange(self, values: Array) -> Array:
        """Bring the result from the normal form to what was asked for."""
        for step in self.steps:
            values = step(values)
        return values


def plan(source: Readable, key: Sequence[Any]) -> Selection:
    """Plan an orthogonal selection: per axis an int, a slice, or a 1-D array."""
    axes = [normalise(k, n, i) for i, (k, n) in enumerate(zip(key, source.shape, strict=True))]
    steps = [axis.step for axis in axes if axis.step]
    dropped = tuple(i for i, k in enumerate(key) if not isinstance(k, slice) and np.ndim(k) == 0)
    if dropped:
        steps.append(lambda values: values.squeeze(dropped))
    shape = tuple(axis.size for axis in axes)
    _demand_readable(source)
    parts = _project_all(source, [axis.key for axis in axes]) if prod(shape) else []
    covered = sum(prod(_shown(p) for p in part.projections) for part in parts)
    return Selection(
        shape,
        covered == prod(shape),
        sum(part.nbytes for part in parts),
        chain.from_iterable(map(box_batches, parts)),
        tuple(steps),
    )


def _demand_readable(source: Readable) -> None:
    """Refuse what nobody can read before memory is taken for it; even its type is not known.

    Raises
    ------
    UnsupportedError
        The array says why it cannot be read.
    """
    if len(source.pipelines) == 1:
        for codec in source.pipelines[0].codecs:
            if isinstance(codec, Unreadable):
                raise UnsupportedError(codec.reason)


def only_chunk(source: Readable, key: Sequence[Any]) -> Batch | None:
    """Return the work of a selection that is a whole array of one small chunk near by, or None.

    Coordinates are like this, a few in every file that is scanned; there is nothing to plan.
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
    is_far = first.file >= 0 and reach_of(fragment, first.file).at_once
    if is_far or pipeline.hidden_size != 1:
        return None
    slabs = [axis.slabs() for axis in fragment.axes]
    encoded = tuple(int(s.encoded[0]) for s in slabs)
    nbytes = prod(encoded) * pipeline.dtype.itemsize
    # of a larger chunk without codecs no more is read than is shown
    if nbytes > (PIECE if pipeline.codecs or encoded == shape else WORTHWHILE):
        return None
    inset = [int(s.inset[0]) for s in slabs]
    inner = tuple(slice(a, a + n, 1) for a, n in zip(inset, shape, strict=True))
    outer = tuple(slice(0, n) for n in shape)
    task = Task(
        first.offset, first.length, first.pipeline, encoded, inner, outer, checksum=first.checksum
    )
    return Batch(fragment, source.pipelines, first.file, [task])


def plan_points(source: Readable, key: Sequence[Any]) -> Selection:
    """Plan a pointwise selection: arrays that broadcast together, and slices."""
    together = tuple(i for i, k in enumerate(key) if not isinstance(k, slice))
    arrays = np.broadcast_arrays(*(np.asarray(key[i]) for i in together))
    points = [
        counted_positions(a.ravel(), source.shape[i], i)
        for a, i in zip(arrays, together, strict=True)
    ]
    others = [i for i in range(len(key)) if i not in together]
    axes = {i: normalise(key[i], source.shape[i], n + 1) for n, i in enumerate(others)}
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
    tasks = [(part, merged(point_tasks(part, points, together))) for part in parts]
    filled = sum(
        prod(_extent(o) for o in outer)
        for _, found in tasks
        for _, task in found
        for _, outer in task.places
    )
    steps = [axis.step for axis in axes.values() if axis.step]
    steps.append(lambda values: values.reshape(arrays[0].shape + values.shape[1:]))
    return Selection(
        shape,
        filled == prod(shape),
        sum(_decoded_bytes(part, found) for part, found in tasks),
        chain.from_iterable(batches(part, found) for part, found in tasks),
        tuple(steps),
    )


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
            _demand_room(source, found[-1])
    return found


def _demand_room(source: Readable, part: Part) -> None:
    """Refuse a few elements of a chunk that is too large to be decoded for them."""
    bare = [p for p in part.pipelines if not p.codecs]
    longest = prod(int(p.encoded.max()) for p in part.projections)
    nbytes = max((longest * p.hidden_size * p.dtype.itemsize for p in part.pipelines), default=0)
    # most chunks are small
    if nbytes <= get_options().load_limit or len(bare) == len(part.pipelines):
        return
    where = np.ix_(*(p.chunk for p in part.projections)) if part.projections else ()
    if (part.fragment.manifest.file[where] != MISSING).any():
        taken = prod(_shown(p) for p in part.projections) * source.dtype.itemsize
        demand_chunk(nbytes, taken, f"variable {source.name!r}" if source.name else "array")


def _shown(projection: Projection) -> int:
    return int(projection.outer[-1].stop - projection.outer[0].start)


def _extent(outer: Any) -> int:
    return int(outer.stop - outer.start if isinstance(outer, slice) else outer.size)


def _decoded_bytes(part: Part, tasks: Sequence[Any]) -> int:
    return sum(
        part.pipelines[task.pipeline].dtype.itemsize * prod(task.encoded) for _, task in tasks
    )
