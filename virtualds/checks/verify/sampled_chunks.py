"""Drawing chunks to verify: spread over all variables, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import ceil, prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.checks.verify.sources import Arrays, ChunkId
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.codecs.codec import CodecError
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import VirtualdsError
from virtualds.reading.threads import in_turn
from virtualds.source_file import SourceFile

Sample = int | float | None
"""A number of chunks, a fraction of them, or None for all."""


ATTEMPTS = 8
"""Attempts to find a chunk that lies in a file, where many are missing."""


CHUNKS_AT_ONCE = 2**16
"""Chunks of one fragment that are looked up at a time."""


class SampledChunk(NamedTuple):
    """One chunk that lies in a file, and how it is decoded."""

    variable: str
    number: ChunkId
    file: SourceFile
    offset: int
    length: int
    checksum: int
    pipeline: CodecPipeline
    encoded: tuple[int, ...]


class SampledFragment(NamedTuple):
    """A fragment of an array."""

    name: str
    array: ManifestArray
    fragment: Fragment


def demand_sample(sample: Any) -> Sample:
    """Return the size of the sample.

    Raises
    ------
    ValueError
        It is neither a number of chunks nor a fraction.
    """
    is_count = isinstance(sample, int | np.integer) and not isinstance(sample, bool)
    if sample is None or (is_count and sample > 0):
        return None if sample is None else int(sample)
    if isinstance(sample, float) and 0 < sample <= 1:
        return sample
    raise ValueError(
        f"verify: sample={sample!r}; give a number of chunks, a fraction between 0.0 and 1.0, or "
        f"None for all of them"
    )


def sample_chunks(arrays: Arrays, sample: Sample, seed: int) -> Iterator[SampledChunk]:
    """Yield chunks that lie in files, spread evenly over all of them.

    Each variable has its share, at least one chunk if the sample is large enough. A variable is
    divided into as many stretches of equal length, and one chunk is drawn from each. References
    that cannot be read yield nothing.
    """
    parts = [
        SampledFragment(name, array, fragment)
        for name, array in arrays.items()
        for fragment in array.fragments
        if fragment.manifest.size
    ]
    rng = np.random.default_rng(seed)
    sizes = np.array([part.fragment.manifest.size for part in parts], np.int64)
    for part, quota in zip(parts, _share_quotas(sizes, sample, rng).tolist(), strict=True):
        if quota == part.fragment.manifest.size:
            yield from _list_all(part)
        elif quota:
            yield from _draw_some(part, quota, rng)


def count_sampled(arrays: Arrays, sample: Sample) -> int:
    """Return the most chunks that a sample has; missing chunks are not drawn."""
    return _size_sample(sum(array.nchunks for array in arrays.values()), sample)


def _size_sample(total: int, sample: Sample) -> int:
    count = total if sample is None else sample
    return min(total, ceil(count * total) if isinstance(count, float) else count)


def _share_quotas(sizes: Ints, sample: Sample, rng: np.random.Generator) -> Ints:
    """Return how many chunks of each part are drawn: one, and more in proportion to its size."""
    count = _size_sample(int(sizes.sum()), sample)
    one = np.ones(sizes.size, np.int64)
    if count < sizes.size:
        one[rng.permutation(sizes.size)[count:]] = 0
        return one
    rest = sizes - 1
    ends = np.cumsum(rest) * (count - sizes.size) // max(int(rest.sum()), 1)
    return one + np.diff(ends, prepend=0)


def _list_all(part: SampledFragment) -> Iterator[SampledChunk]:
    size = part.fragment.manifest.size
    for start in range(0, size, CHUNKS_AT_ONCE):
        found = _make_chunks(part, np.arange(start, min(start + CHUNKS_AT_ONCE, size)))
        yield from (chunk for chunk in found if chunk is not None)


def _draw_some(
    part: SampledFragment, quota: int, rng: np.random.Generator
) -> Iterator[SampledChunk]:
    """Draw one chunk from each stretch; draw again where a stretch gave none."""
    size = part.fragment.manifest.size
    bounds = np.arange(quota + 1) * size // quota
    wanted = np.arange(quota)
    for _ in range(ATTEMPTS):
        drawn = rng.integers(bounds[wanted], bounds[wanted + 1])
        found = _make_chunks(part, drawn)
        yield from (chunk for chunk in found if chunk is not None)
        wanted = wanted[[chunk is None for chunk in found]]
        if not wanted.size:
            return


def _make_chunks(part: SampledFragment, ids: Ints) -> Sequence[SampledChunk | None]:
    """Return chunks by their flat numbers, None for chunks that lie in no file."""
    axes = part.fragment.axes
    try:
        rows = part.fragment.manifest.at(ids)
    except (VirtualdsError, OSError):
        return [None] * ids.size  # the survey has reported it
    places = np.unravel_index(ids, part.fragment.manifest.shape) if axes else ()
    found: list[SampledChunk | None] = []
    for n in range(ids.size):
        row = rows.lookup((n,))
        number = tuple(int(at[n]) for at in places)
        slabs = (axis.slabs(i, i + 1) for axis, i in zip(axes, number, strict=True))
        encoded = tuple(int(slab.encoded[0]) for slab in slabs)
        where = (row.offset, row.length, row.checksum)
        pipeline = part.array.pipelines[row.pipeline] if row.file >= 0 else None
        found.append(
            None
            if pipeline is None
            else SampledChunk(part.name, number, rows.files[row.file], *where, pipeline, encoded)
        )
    return found


Array = npt.NDArray[Any]


Item = TypeVar("Item")


Result = TypeVar("Result")


PIECE = 2**24
"""Bytes of an uncompressed chunk that are compared: such a chunk may be a whole file."""


def cut_chunk(chunk: SampledChunk) -> SampledChunk:
    """Return the compared part of a chunk: all, or middle rows of a large plain one."""
    shape = chunk.pipeline.stored_shape(chunk.encoded)
    size = chunk.pipeline.dtype.itemsize
    if chunk.pipeline.codecs or chunk.checksum or chunk.length <= PIECE:
        return chunk
    if chunk.length != prod(shape) * size:
        return chunk
    rows = [prod(shape[axis:]) * size for axis in range(len(shape) + 1)]
    inner = next(axis for axis, row in enumerate(rows) if row <= PIECE)
    # the rows must lie within one row of the next outer axis to form a box
    row, outer = rows[inner], rows[inner - 1]
    taken = min(PIECE // row * row, outer)
    begin = chunk.length // outer // 2 * outer + (outer - taken) // 2 // row * row
    return chunk._replace(offset=chunk.offset + begin, length=taken)


def read_stored_numbers(chunk: SampledChunk, part: SampledChunk) -> Array:
    """Return the numbers of (a part of) a chunk: one row if it is uncompressed, else its shape.

    Raises
    ------
    ReadError
        Bytes cannot be read, have changed, or do not decode.
    FormatError
        Bytes lie outside of the file.
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
    fragment = Fragment.whole(axes, manifest)
    array = ManifestArray.of_fragment(fragment, plain, chunk.variable)
    found = replace(array, dtype=plain.decoded_dtype).read()
    return found if pipeline.codecs else found.reshape(-1)


def is_undecodable(error: BaseException) -> bool:
    """Say whether the bytes were read but are wrong."""
    return isinstance(error.__cause__, CodecError) or error.__context__ is None


def map_in_order(
    items: Iterable[Item], work: Callable[[Item], Result], at_once: int
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with the result of ``work``, which threads compute ahead."""
    with ThreadPoolExecutor(at_once, thread_name_prefix="virtualds verify") as pool:
        try:
            for item, future in in_turn(pool, work, items, ahead=at_once + 1):
                yield item, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
