"""The references that a selection needs are loaded before it is planned, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from virtualds.chunks.columns import INLINE
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import AxisKey, runs_of

MOST_PARTS = 1024
"""Boxes that a fragment is loaded in; what would take more is loaded as one."""


def loaded_parts(fragment: Fragment, keys: Sequence[AxisKey]) -> Iterator[Fragment]:
    """Yield boxes of a fragment, in memory, that hold all the chunks that the keys meet.

    A fragment whose references are in memory is yielded as it is.
    """
    if fragment.manifest.is_loaded:
        yield fragment
        return
    met = [
        runs_of(axis.project(key, start).chunk)
        for axis, key, start in zip(fragment.axes, keys, fragment.start, strict=True)
    ]
    if not all(met):
        return
    if prod(map(len, met)) > MOST_PARTS:
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


def chunk_read(
    fragment: Fragment, part: Fragment, file: int, offset: int
) -> tuple[int, ...] | None:
    """Return which chunk of a fragment lies where a part of it says, None if none does."""
    read, whole, first = part.manifest, fragment.manifest, (0,) * len(fragment.axes)
    if whole.is_loaded:
        if whole.files is not read.files or whole.inline is not read.inline:
            return None
    else:
        # looking elsewhere would load what nobody asked for
        bounds = zip(fragment.start, part.start, part.stop, fragment.stop, strict=True)
        if not all(a <= b and c <= d for a, b, c, d in bounds):
            return None
        whole, first = _shown_by(fragment, part)
        if file == INLINE:
            offset = whole.inline.index(read.inline[offset])
        elif file >= 0:
            file = whole.files.index(read.files[file])
    end = whole.offset + (1 if file == INLINE else whole.length)
    holds = (whole.file == file) & (whole.offset <= offset) & (offset < end)
    if not holds.any():
        return None
    return tuple(int(i + n) for i, n in zip(np.argwhere(holds)[0], first, strict=True))


def _shown_by(fragment: Fragment, part: Fragment) -> tuple[ChunkManifest, tuple[int, ...]]:
    """Return the chunks of a fragment where a part of it lies, in memory, and the first of them."""
    first = []
    manifest = fragment.manifest
    for axis, (begin, end) in enumerate(zip(part.start, part.stop, strict=True)):
        at = fragment.start[axis]
        _, kept = fragment.axes[axis].crop(begin - at, end - at)
        first.append(kept.start)
        manifest = manifest.take(axis, kept)
    return manifest.loaded(), tuple(first)
