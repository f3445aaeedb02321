"""Whether the fragments of an array lie on one mesh, and on which.

A Zarr array is cut into chunks by planes that go all the way through it. Here it is found out
whether the fragments of a virtual array are: regularly (`regular_chunks`), or anyhow along every
axis (`mesh_lengths`). Pure geometry, without the chunks themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from virtualds.fragment import Fragment
from virtualds.grid import ChunkAxis, Ints


def regular_chunks(shape: Sequence[int], fragments: Sequence[Fragment]) -> tuple[int, ...] | None:
    """Return the chunk shape of the one regular grid on which all fragments lie, or None.

    Without any fragment, it is one chunk.
    """
    if not fragments:
        return tuple(max(n, 1) for n in shape)
    chunks = []
    for axis, size in enumerate(shape):
        lengths = {f.axes[axis].chunk for f in fragments}
        if len(lengths) != 1 or (length := lengths.pop()) is None:
            return None
        for fragment in fragments:
            begin, end = fragment.start[axis], fragment.stop[axis]
            if begin % length or (end % length and end != size):
                return None
        chunks.append(length)
    return tuple(chunks)


def mesh_lengths(shape: Sequence[int], fragments: Sequence[Fragment]) -> list[Ints] | None:
    """Return the lengths of the chunks along every axis of the mesh that all fragments share.

    Chunks show all that they store, except that the last one along an axis may reach beyond the
    end of the array. Stretches of an axis that lie in no fragment are cut as their neighbours are.

    Returns
    -------
    list of array of int, or None
        One per axis; None where chunks have hidden elements, or there is no such mesh.

    Examples
    --------
    >>> from virtualds.manifest import ChunkManifest
    >>> months = ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31])
    >>> year = Fragment((0,), (months,), ChunkManifest.missing((3,)))
    >>> [lengths.tolist() for lengths in mesh_lengths((90,), [year])]
    [[31, 28, 31]]
    """
    found = []
    for axis, size in enumerate(shape):
        cuts = {(f.start[axis], f.axes[axis]) for f in fragments if 0 not in f.shape}
        lengths = _axis_lengths(size, sorted(cuts, key=lambda cut: cut[0]))
        if lengths is None:
            return None
        found.append(lengths)
    return found


def _axis_lengths(size: int, cuts: Sequence[tuple[int, ChunkAxis]]) -> Ints | None:
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
    return _without_gaps(size, begin, length)


def _without_gaps(size: int, begin: Ints, length: Ints) -> Ints:
    """Return the lengths of chunks, and of those that fill the gaps before and behind them.

    A gap is cut into chunks as long as the one before it, or else behind it, so that nobody has to
    hold one chunk as long as the gap.
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


def origin(fragment: Fragment, axes: Sequence[ChunkAxis]) -> tuple[int, ...]:
    """Return the place of a fragment's first chunk, counted in the chunks of a mesh per axis."""
    pairs = zip(axes, fragment.start, strict=True)
    return tuple(int(axis.locate(np.array([start]))[0]) for axis, start in pairs)
