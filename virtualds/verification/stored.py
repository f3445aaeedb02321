"""The numbers that the bytes of one chunk are, as they are stored: read as any other chunk is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.axis import ChunkAxis
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.codec import CodecError
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.reading.threads import in_turn
from virtualds.verification.sampling import Chunk

Array = npt.NDArray[Any]
Item = TypeVar("Item")
Result = TypeVar("Result")

PIECE = 2**24
"""Bytes of an uncompressed chunk that are looked at: such a chunk may be a whole file."""


def looked_at(chunk: Chunk) -> Chunk:
    """Return the part of a chunk that is looked at: all of it, unless it is plain and large.

    Of such a chunk it is a stretch of whole rows in its middle.
    """
    shape = chunk.pipeline.stored_shape(chunk.encoded)
    size = chunk.pipeline.dtype.itemsize
    if chunk.pipeline.codecs or chunk.checksum or chunk.length <= PIECE:
        return chunk
    if chunk.length != prod(shape) * size:
        return chunk
    rows = [prod(shape[axis:]) * size for axis in range(len(shape) + 1)]
    inner = next(axis for axis, row in enumerate(rows) if row <= PIECE)
    # a stretch of rows lies within one row of the axis outside of theirs, or it is no box
    row, outer = rows[inner], rows[inner - 1]
    taken = min(PIECE // row * row, outer)
    begin = chunk.length // outer // 2 * outer + (outer - taken) // 2 // row * row
    return chunk._replace(offset=chunk.offset + begin, length=taken)


def stored_numbers(chunk: Chunk, part: Chunk) -> Array:
    """Return the numbers of (a part of) a chunk: of plain ones in one row, else in its shape.

    Raises
    ------
    ReadError
        Bytes cannot be had, have changed, or do not decode.
    FormatError
        They lie outside of the file.
    """
    pipeline = chunk.pipeline
    shape = pipeline.stored_shape(chunk.encoded)
    if part.length != chunk.length:
        shape = (part.length // pipeline.dtype.itemsize,)
    manifest = ChunkManifest.build(
        (1,) * len(shape),
        files=[part.file],
        offset=part.offset,
        length=part.length,
        checksum=part.checksum,
    )
    axes = tuple(ChunkAxis.regular(n, n) for n in shape)
    plain = CodecPipeline(pipeline.dtype, pipeline.codecs, layout=tuple(range(len(shape))))
    fragment = Fragment((0,) * len(shape), axes, manifest)
    array = ManifestArray.of_fragment(fragment, plain, chunk.variable)
    found = replace(array, dtype=plain.decoded_dtype).read()
    return found if pipeline.codecs else found.reshape(-1)


def is_undecodable(error: BaseException) -> bool:
    """Say whether the bytes came, and are not what they should be."""
    return isinstance(error.__cause__, CodecError) or error.__context__ is None


def in_order(
    items: Iterable[Item], work: Callable[[Item], Result], at_once: int
) -> Iterator[tuple[Item, Result]]:
    """Yield items with what ``work`` makes of them, done by threads some way ahead."""
    with ThreadPoolExecutor(at_once, thread_name_prefix="virtualds verify") as pool:
        try:
            for item, future in in_turn(pool, work, items, ahead=at_once + 1):
                yield item, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
