"""Which chunks are looked at: some of every variable, spread over it, and the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.projection import Ints
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import VirtualdsError
from virtualds.source_file import SourceFile
from virtualds.verification.survey import Arrays, ChunkId

Sample = int | float | None
"""How many chunks, which part of them, or all."""
ATTEMPTS = 8
"""To find a chunk that lies in a file, where many do not exist."""
AT_ONCE = 2**16
"""Chunks of one fragment that are looked up at a time."""


class Chunk(NamedTuple):
    """One chunk that lies in a file, and how it is decoded."""

    variable: str
    number: ChunkId
    file: SourceFile
    offset: int
    length: int
    checksum: int
    pipeline: CodecPipeline
    encoded: tuple[int, ...]


class Part(NamedTuple):
    """A fragment of an array."""

    name: str
    array: ManifestArray
    fragment: Fragment


def checked_sample(sample: Any) -> Sample:
    """Return how much is to be looked at.

    Raises
    ------
    ValueError
        It is no number of chunks, and no part of them.
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


def sampled(arrays: Arrays, sample: Sample, seed: int) -> Iterator[Chunk]:
    """Yield chunks that lie in files, spread evenly over all that there are.

    Every variable has its share, at least one if there are that many. Within it one is drawn from
    each of as many stretches of equal length. References that cannot be read yield nothing.
    """
    parts = [
        Part(name, array, fragment)
        for name, array in arrays.items()
        for fragment in array.fragments
        if fragment.manifest.size
    ]
    rng = np.random.default_rng(seed)
    sizes = np.array([part.fragment.manifest.size for part in parts], np.int64)
    for part, quota in zip(parts, _quotas(sizes, sample, rng).tolist(), strict=True):
        if quota == part.fragment.manifest.size:
            yield from _all_of(part)
        elif quota:
            yield from _some_of(part, quota, rng)


def _quotas(sizes: Ints, sample: Sample, rng: np.random.Generator) -> Ints:
    """Return how many of each part are drawn: one, and of the rest by their sizes."""
    total = int(sizes.sum())
    count = total if sample is None else sample
    count = min(total, ceil(count * total) if isinstance(count, float) else count)
    one = np.ones(sizes.size, np.int64)
    if count < sizes.size:
        one[rng.permutation(sizes.size)[count:]] = 0
        return one
    rest = sizes - 1
    ends = np.cumsum(rest) * (count - sizes.size) // max(int(rest.sum()), 1)
    return one + np.diff(ends, prepend=0)


def _all_of(part: Part) -> Iterator[Chunk]:
    size = part.fragment.manifest.size
    for start in range(0, size, AT_ONCE):
        found = _chunks(part, np.arange(start, min(start + AT_ONCE, size)))
        yield from (chunk for chunk in found if chunk is not None)


def _some_of(part: Part, quota: int, rng: np.random.Generator) -> Iterator[Chunk]:
    """Draw one of each stretch; where there is none, draw again."""
    size = part.fragment.manifest.size
    bounds = np.arange(quota + 1) * size // quota
    wanted = np.arange(quota)
    for _ in range(ATTEMPTS):
        drawn = rng.integers(bounds[wanted], bounds[wanted + 1])
        found = _chunks(part, drawn)
        yield from (chunk for chunk in found if chunk is not None)
        wanted = wanted[[chunk is None for chunk in found]]
        if not wanted.size:
            return


def _chunks(part: Part, ids: Ints) -> Sequence[Chunk | None]:
    """Return chunks by their flat numbers, None for those that lie in no file."""
    axes = part.fragment.axes
    try:
        rows = part.fragment.manifest.at(ids)
    except (VirtualdsError, OSError):
        return [None] * ids.size  # the survey has told of it
    places = np.unravel_index(ids, part.fragment.manifest.shape) if axes else ()
    found: list[Chunk | None] = []
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
            else Chunk(part.name, number, rows.files[row.file], *where, pipeline, encoded)
        )
    return found
