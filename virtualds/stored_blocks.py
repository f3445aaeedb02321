"""Blocks of whole chunks: where dask may cut an array so that no chunk is decoded twice.

A block of dask lies between planes that go all the way through the array. A plane is good where no
fragment has a chunk on both of its sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from virtualds.fragment import Fragment
from virtualds.grid import ChunkAxis, Ints
from virtualds.options import MIB

LARGE = 128 * MIB
"""Bytes of a block above which chunks are cut, where fragments share too few edges."""
Lengths = tuple[int, ...]
Cuts = Sequence[tuple[int, ChunkAxis]]


def whole_blocks(
    shape: Sequence[int], fragments: Sequence[Fragment], itemsize: int
) -> tuple[Lengths, ...]:
    """Return the lengths of the smallest blocks that hold whole chunks, per axis.

    Where fragments share so few edges that such a block would be huge, an axis is cut as the
    fragment is that is longest there. What lies in no fragment is cut as long as the longest block.

    Examples
    --------
    >>> from virtualds.manifest import ChunkManifest
    >>> months = ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31])
    >>> whole_blocks((90,), [Fragment((0,), (months,), ChunkManifest.missing((3,)))], 4)
    ((31, 28, 31),)
    """
    kept = [f for f in fragments if 0 not in f.shape]
    along = [
        list({(f.start[axis], f.axes[axis]): None for f in kept}) for axis in range(len(shape))
    ]
    edges = [_shared_edges(size, cuts) for size, cuts in zip(shape, along, strict=True)]
    largest = max((prod(_longest(a.lengths) for a in f.axes) for f in kept), default=1)
    for axis in sorted(range(len(shape)), key=lambda i: -_growth(edges[i], along[i])):
        block = prod(_longest(np.diff(e)) for e in edges)
        if block <= max(largest, LARGE // max(itemsize, 1)):
            break
        edges[axis] = _edges_of_longest(shape[axis], along[axis])
    covered = zip(edges, along, strict=True)
    return tuple(_lengths(_with_gaps_cut(e, cuts)) for e, cuts in covered)


def preferred(lengths: Lengths) -> int | Lengths:
    """Return lengths as one number where only the last is less, as xarray's backends say it."""
    regular = all(n == lengths[0] for n in lengths[:-1]) and lengths[-1] <= lengths[0]
    return lengths[0] if regular else lengths


def snapped(lengths: Lengths, whole: Lengths) -> Lengths:
    """Return blocks whose edges are moved back to those of whole blocks.

    Examples
    --------
    >>> snapped((50, 40), (31, 28, 31))
    (31, 59)
    """
    edges = np.concatenate([[0], np.cumsum(whole)])
    wanted = np.cumsum(lengths)
    found = edges[np.searchsorted(edges, wanted, side="right") - 1]
    return _lengths(np.unique(np.concatenate([[0], found])))


def _lengths(edges: Ints) -> Lengths:
    return tuple(np.diff(edges).tolist()) or (0,)


def _longest(lengths: Ints) -> int:
    return int(lengths.max(initial=0))


def _slab_edges(cuts: Cuts) -> Iterable[Ints]:
    return (axis.slabs().edges + start for start, axis in cuts)


def _shared_edges(size: int, cuts: Cuts) -> Ints:
    """Return the edges at which no chunk is cut."""
    found = np.unique(np.concatenate([np.array([0, size]), *_slab_edges(cuts)]))
    for edges in _slab_edges(cuts) if len(cuts) > 1 else ():
        inside = (found > edges[0]) & (found < edges[-1])
        found = found[~inside | np.isin(found, edges)]
    return found


def _growth(edges: Ints, cuts: Cuts) -> float:
    """Return how many times longer blocks are than the longest chunks."""
    stored = max((_longest(axis.lengths) for _, axis in cuts), default=0)
    return _longest(np.diff(edges)) / max(stored, 1)


def _edges_of_longest(size: int, cuts: Cuts) -> Ints:
    """Return the edges of the chunks of the longest fragment, and the ends of all others."""
    start, axis = max(cuts, key=lambda cut: cut[1].size)
    ends: list[Any] = [(begin, begin + other.size) for begin, other in cuts]
    outside = np.array([0, size, *np.ravel(ends)])
    outside = outside[(outside <= start) | (outside >= start + axis.size)]
    return np.unique(np.concatenate([axis.slabs().edges + start, outside]))


def _with_gaps_cut(edges: Ints, cuts: Cuts) -> Ints:
    """Cut stretches in which no fragment lies as long as the longest block elsewhere."""
    if not cuts:
        return edges
    covered = np.zeros(edges.size - 1, bool)
    for start, axis in cuts:
        covered |= (edges[:-1] >= start) & (edges[1:] <= start + axis.size)
    step = _longest(np.diff(edges)[covered])
    if covered.all() or not step:
        return edges
    gaps = zip(edges[:-1][~covered].tolist(), edges[1:][~covered].tolist(), strict=True)
    return np.unique(np.concatenate([edges, *(np.arange(a, b, step) for a, b in gaps)]))
