"""From the bytes of a chunk to its place in the result."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.codecs import Buffer, CodecError, Shuffle
from virtualds.fragment import CodecPipeline, Hidden
from virtualds.read.plan import Task

Array = npt.NDArray[Any]


def place_missing(pipeline: CodecPipeline, task: Task, out: Array) -> None:
    """Fill the part of the result that a missing chunk stands for."""
    out[task.outer] = pipeline.missing_value


def place(pipeline: CodecPipeline, data: Buffer, task: Task, out: Array) -> None:
    """Decode a chunk and write what the task selects of it into the result.

    Raises
    ------
    CodecError
        The bytes do not decode to a chunk of this shape.
    """
    shape = pipeline.stored_shape(task.encoded)
    nbytes = pipeline.dtype.itemsize * prod(shape)
    if _place_directly(pipeline, data, task, out, nbytes):
        return
    for codec, size in zip(
        reversed(pipeline.codecs), reversed(pipeline.encoded_sizes(nbytes)), strict=False
    ):
        data = codec.decode(data, size)
    if len(data) != nbytes:
        raise CodecError(f"decoded to {len(data)} bytes where a chunk of {shape} has {nbytes}")
    stored = np.frombuffer(data, pipeline.dtype).reshape(shape)
    write(pipeline, select(show(pipeline, stored, task.encoded), task), task.outer, out)


def show(pipeline: CodecPipeline, stored: Array, encoded: tuple[int, ...]) -> Array:
    """Return a stored chunk along the axes of the array, where it has the lengths ``encoded``."""
    hidden = tuple(e.index if isinstance(e, Hidden) else slice(None) for e in pipeline.layout)
    shown = [e for e in pipeline.layout if isinstance(e, int)]
    chunk = stored[hidden]
    if shown != sorted(shown):
        chunk = chunk.transpose(np.argsort(shown))
    # axes that the file does not have are one element long: no copy
    return chunk.reshape(encoded)


def select(chunk: Array, task: Task) -> Array:
    """Return the selected part of a chunk, its pointwise axes first and as one."""
    inner = task.inner
    if task.points:
        others = [i for i in range(chunk.ndim) if i not in task.points]
        chunk = chunk.transpose((*task.points, *others))
        chunk = chunk[tuple(inner[i] for i in task.points)]
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
        packing.decode_into(out[outer], stored)
    else:
        out[outer] = packing.decode(stored)


def _place_directly(
    pipeline: CodecPipeline, data: Buffer, task: Task, out: Array, nbytes: int
) -> bool:
    """Unshuffle straight into the result where a whole chunk is one run of it."""
    if not pipeline.codecs or pipeline.packing or task.points or pipeline.dtype != out.dtype:
        return False
    shuffle = pipeline.codecs[0]
    if not isinstance(shuffle, Shuffle) or shuffle.itemsize == 1:
        return False
    target = out[task.outer]
    identity = pipeline.layout == tuple(range(out.ndim))
    if target.shape != task.encoded or not target.flags.c_contiguous or not identity:
        return False
    sizes = pipeline.encoded_sizes(nbytes)
    for codec, size in zip(reversed(pipeline.codecs[1:]), reversed(sizes[1:]), strict=True):
        data = codec.decode(data, size)
    if len(data) != nbytes:
        raise CodecError(f"decoded to {len(data)} bytes where the chunk has {nbytes}")
    shuffle.decode_into(data, target.reshape(-1).view(np.uint8))
    return True
