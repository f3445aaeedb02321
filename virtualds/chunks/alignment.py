"""Blocks of whole chunks for dask, and the one chunk grid that fragments share.

A dask block lies between planes through the whole array. A plane is good where it cuts no chunk of
any fragment, so that no chunk is decoded twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from virtualds.chunks.columns import Ints
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.options import MIB

LARGE_BLOCK = 128 * MIB
"""Bytes of a block above which chunks are cut, where fragments share too few edges."""

Lengths = tuple[int, ...]

Cuts = Sequence[tuple[int, ChunkAxis]]
"""The axes of fragments along one axis of the array, each with its start."""


def find_whole_blocks(
    shape: Sequence[int], fragments: Sequence[Fragment], itemsize: int
) -> tuple[Lengths, ...]:
    """Return the lengths of the smallest blocks that hold whole chunks, per axis.

    Where fragments share so few edges that such a block would be huge, an axis is cut like its
    longest fragment. Gaps between fragments are cut as long as the longest block.

    Examples
    --------
    >>> from virtualds.chunks.manifest import ChunkManifest
    >>> months = ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31])
    >>> find_whole_blocks((90,), [Fragment((0,), (months,), ChunkManifest.missing((3,)))], 4)
    ((31, 28, 31),)
    """
    kept = [f for f in fragments if 0 not in f.shape]
    along = [
        list({(f.start[axis], f.axes[axis]): None for f in kept}) for axis in range(len(shape))
    ]
    edges = [_find_shared_edges(size, cuts) for size, cuts in zip(shape, along, strict=True)]
    largest = max((prod(_find_longest(a.lengths) for a in f.axes) for f in kept), default=1)
    for axis in sorted(range(len(shape)), key=lambda i: -_measure_growth(edges[i], along[i])):
        block = prod(_find_longest(np.diff(e)) for e in edges)
        if block <= max(largest, LARGE_BLOCK // max(itemsize, 1)):
            break
        edges[axis] = _find_edges_of_longest(shape[axis], along[axis])
    covered = zip(edges, along, strict=True)
    return tuple(_edges_to_lengths(_cut_gaps(e, cuts)) for e, cuts in covered)


def to_preferred_chunks(lengths: Lengths) -> int | Lengths:
    """Return lengths as one number where only the last is less, as xarray's backends do."""
    regular = all(n == lengths[0] for n in lengths[:-1]) and lengths[-1] <= lengths[0]
    return lengths[0] if regular else lengths


def snap_blocks(lengths: Lengths, whole: Lengths) -> Lengths:
    """Return blocks whose edges are moved back to edges of whole blocks.

    Examples
    --------
    >>> snap_blocks((50, 40), (31, 28, 31))
    (31, 59)
    """
    edges = np.concatenate([[0], np.cumsum(whole)])
    wanted = np.cumsum(lengths)
    found = edges[np.searchsorted(edges, wanted, side="right") - 1]
    return _edges_to_lengths(np.unique(np.concatenate([[0], found])))


def _edges_to_lengths(edges: Ints) -> Lengths:
    return tuple(np.diff(edges).tolist()) or (0,)


def _find_longest(lengths: Ints) -> int:
    return int(lengths.max(initial=0))


def _list_slab_edges(cuts: Cuts) -> Iterable[Ints]:
    return (axis.slabs().edges + start for start, axis in cuts)


def _find_shared_edges(size: int, cuts: Cuts) -> Ints:
    """Return the edges at which no chunk is cut."""
    found = np.unique(np.concatenate([np.array([0, size]), *_list_slab_edges(cuts)]))
    for edges in _list_slab_edges(cuts) if len(cuts) > 1 else ():
        inside = (found > edges[0]) & (found < edges[-1])
        found = found[~inside | np.isin(found, edges)]
    return found


def _measure_growth(edges: Ints, cuts: Cuts) -> float:
    """Return how many times longer blocks are than the longest chunks."""
    stored = max((_find_longest(axis.lengths) for _, axis in cuts), default=0)
    return _find_longest(np.diff(edges)) / max(stored, 1)


def _find_edges_of_longest(size: int, cuts: Cuts) -> Ints:
    """Return the edges of the chunks of the longest fragment, and the ends of all others."""
    start, axis = max(cuts, key=lambda cut: cut[1].size)
    ends: list[Any] = [(begin, begin + other.size) for begin, other in cuts]
    outside = np.array([0, size, *np.ravel(ends)])
    outside = outside[(outside <= start) | (outside >= start + axis.size)]
    return np.unique(np.concatenate([axis.slabs().edges + start, outside]))


def _cut_gaps(edges: Ints, cuts: Cuts) -> Ints:
    """Cut gaps between fragments as long as the longest block elsewhere."""
    if not cuts:
        return edges
    covered = np.zeros(edges.size - 1, bool)
    for start, axis in cuts:
        covered |= (edges[:-1] >= start) & (edges[1:] <= start + axis.size)
    step = _find_longest(np.diff(edges)[covered])
    if covered.all() or not step:
        return edges
    gaps = zip(edges[:-1][~covered].tolist(), edges[1:][~covered].tolist(), strict=True)
    return np.unique(np.concatenate([edges, *(np.arange(a, b, step) for a, b in gaps)]))


# ---------------------------------------------------------------------- shared grids


def find_regular_chunks(
    shape: Sequence[int], fragments: Sequence[Fragment]
) -> tuple[int, ...] | None:
    """Return the chunk shape of the one regular grid on which all fragments lie, or None.

    Without any fragment, it is one chunk.
    """
    if not fragments:
        return tuple(max(n, 1) for n in shape)
    chunks = []
    for axis in range(len(shape)):
        if (length := find_regular_length(shape, fragments, axis)) is None:
            return None
        chunks.append(length)
    return tuple(chunks)


def find_regular_length(
    shape: Sequence[int], fragments: Sequence[Fragment], axis: int
) -> int | None:
    """Return the one length of all chunks along an axis of a regular grid, or None."""
    lengths = {f.axes[axis].chunk for f in fragments}
    if len(lengths) != 1 or (length := lengths.pop()) is None:
        return None
    for fragment in fragments:
        begin, end = fragment.start[axis], fragment.stop[axis]
        if begin % length or (end % length and end != shape[axis]):
            return None
    return length


def find_mesh_lengths(shape: Sequence[int], fragments: Sequence[Fragment]) -> list[Ints] | None:
    """Return the lengths of the chunks along every axis of the mesh that all fragments share.

    Chunks show all that they store, except that the last one along an axis may reach beyond the
    end of the array. Stretches of an axis that lie in no fragment are cut as their neighbours are.
    None where chunks have hidden elements, or there is no such mesh.

    Examples
    --------
    >>> from virtualds.chunks.manifest import ChunkManifest
    >>> months = ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31])
    >>> year = Fragment((0,), (months,), ChunkManifest.missing((3,)))
    >>> [lengths.tolist() for lengths in find_mesh_lengths((90,), [year])]
    [[31, 28, 31]]
    """
    found = []
    for axis, size in enumerate(shape):
        cuts = {(f.start[axis], f.axes[axis]) for f in fragments if 0 not in f.shape}
        lengths = _find_axis_lengths(size, sorted(cuts, key=lambda cut: cut[0]))
        if lengths is None:
            return None
        found.append(lengths)
    return found


def _find_axis_lengths(size: int, cuts: Sequence[tuple[int, ChunkAxis]]) -> Ints | None:
    """Return the lengths of the chunks that all cuts of one axis share, each from its start on."""
    begins, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start, axis in cuts:
        edges, encoded, inset = axis.slabs()
        shown, end = np.diff(edges), edges[1:] + start
        whole = (encoded == shown) | ((encoded > shown) & (end == size))
        if inset.any() or not (shown > 0).all() or not whole.all():
            return None
        begins.append(edges[:-1] + start)
        lengths.append(encoded)
    begin, first, places = np.unique(np.concatenate(begins), return_index=True, return_inverse=True)
    length = np.concatenate(lengths)
    if (length != length[first][places]).any():
        return None
    length = length[first]
    end = begin + length
    if (end[:-1] > begin[1:]).any():
        return None
    return _fill_gaps(size, begin, length)


def _fill_gaps(size: int, begin: Ints, length: Ints) -> Ints:
    """Return the lengths of chunks, and of those that fill the gaps before and behind them.

    A gap is cut into chunks as long as the one before it, or else behind it, so that no chunk is as
    long as the gap.
    """
    bounds = np.concatenate([[0], begin + length])
    gaps = np.concatenate([begin, [size]]) - bounds
    parts = []
    for number in np.flatnonzero(gaps > 0).tolist():
        around = length[max(number - 1, 0) : max(number, 1)]
        step, gap = int(around[0]) if around.size else size, int(gaps[number])
        whole, rest = divmod(gap, step)
        parts.append((number, [step] * whole + [rest] * (rest > 0)))
    if not parts:
        return length
    where = np.concatenate([np.full(len(filling), number) for number, filling in parts])
    return np.insert(length, where, np.concatenate([filling for _, filling in parts]))


def find_origin(fragment: Fragment, axes: Sequence[ChunkAxis]) -> tuple[int, ...]:
    """Return the number, per axis of a mesh, of the chunk where a fragment begins."""
    pairs = zip(axes, fragment.start, strict=True)
    return tuple(int(axis.locate(np.array([start]))[0]) for axis, start in pairs)
