"""From the bytes of a chunk to its place in the result."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.codecs import Buffer, CodecError, Shuffle
from virtualds.fragment import CodecPipeline, Hidden
from virtualds.read.memory import hold, scratch
from virtualds.read.plan import Task

Array = npt.NDArray[Any]


def place_missing(pipeline: CodecPipeline, task: Task, out: Array) -> None:
    """Fill the parts of the result that a missing chunk stands for."""
    for _, outer in task.places:
        out[outer] = pipeline.missing_value


def place(pipeline: CodecPipeline, data: Buffer, task: Task, out: Array) -> None:
    """Decode a chunk and write what the task selects of it into the result, place by place.

    Raises
    ------
    CodecError
        The bytes do not decode to a chunk of this shape.
    """
    shape = pipeline.stored_shape(task.encoded)
    nbytes = pipeline.dtype.itemsize * prod(shape)
    last = pipeline.codecs[0] if pipeline.codecs else None
    ends_in_shuffle = isinstance(last, Shuffle) and last.itemsize > 1
    data = _decode(pipeline, data, nbytes, stop=1 if ends_in_shuffle else 0)
    if len(data) != nbytes:
        raise CodecError(f"decoded to {len(data)} bytes where a chunk of {shape} has {nbytes}")
    if isinstance(last, Shuffle) and ends_in_shuffle:
        if (target := _whole_target(pipeline, task, out)) is not None:
            last.decode_into(data, target)
            return
        unshuffled = scratch(nbytes)
        last.decode_into(data, unshuffled)
        data = unshuffled.data
    stored = np.frombuffer(data, pipeline.dtype).reshape(shape)
    chunk = show(pipeline, stored, task.encoded)
    for inner, outer in task.places:
        write(pipeline, select(chunk, inner, task.points), outer, out)


def _decode(pipeline: CodecPipeline, data: Buffer, nbytes: int, stop: int) -> Buffer:
    """Undo the codecs from the last one back to number ``stop``."""
    steps = list(zip(pipeline.codecs, pipeline.encoded_sizes(nbytes), strict=False))
    for codec, size in reversed(steps[stop:]):
        data = codec.decode(data, size)
    hold("decoded", data, nbytes)
    return data


def show(pipeline: CodecPipeline, stored: Array, encoded: tuple[int, ...]) -> Array:
    """Return a stored chunk along the axes of the array, where it has the lengths ``encoded``."""
    hidden = tuple(e.index if isinstance(e, Hidden) else slice(None) for e in pipeline.layout)
    shown = [e for e in pipeline.layout if isinstance(e, int)]
    chunk = stored[(*hidden, ...)]
    if shown != sorted(shown):
        chunk = chunk.transpose(np.argsort(shown))
    # axes that the file does not have are one element long: no copy
    return chunk.reshape(encoded)


def select(chunk: Array, inner: tuple[Any, ...], points: tuple[int, ...]) -> Array:
    """Return the selected part of a chunk, its pointwise axes first and as one."""
    if points:
        others = [i for i in range(chunk.ndim) if i not in points]
        chunk = chunk.transpose((*points, *others))
        chunk = chunk[tuple(inner[i] for i in points)]
        inner = (slice(None), *(inner[i] for i in others))
    if all(isinstance(k, slice) for k in inner):
        whole: Array = chunk[inner]
        return whole
    for axis, key in enumerate(inner):
        chunk = chunk[(slice(None),) * axis + (key,)]
    return chunk


def write(pipeline: CodecPipeline, stored: Array, outer: tuple[Any, ...], out: Array) -> None:
    """Unpack stored numbers into the result."""
    packing = pipeline.packing
    if packing is None:
        out[outer] = stored
    elif packing.dtype == out.dtype and all(isinstance(k, slice) for k in outer):
        # the ellipsis keeps an array of no axes an array
        packing.decode_into(out[(*outer, ...)], stored)
    else:
        out[outer] = packing.decode(stored)


def _whole_target(pipeline: CodecPipeline, task: Task, out: Array) -> npt.NDArray[np.uint8] | None:
    """Return the bytes of the result that a whole chunk is, if it is one run of it as stored."""
    if pipeline.packing or task.points or task.more or pipeline.dtype != out.dtype:
        return None
    target = out[(*task.outer, ...)]
    if target.shape != task.encoded or not target.flags.c_contiguous:
        return None
    if pipeline.layout != tuple(range(out.ndim)):
        return None
    whole: npt.NDArray[np.uint8] = target.reshape(-1).view(np.uint8)
    return whole
