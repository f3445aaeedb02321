"""Boxes of cells that are read together: none cuts a stored chunk, and each fits in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.projection import Ints
from virtualds.datasets.rewrite.cells import Mask
from virtualds.options import MIB

BLOCK = 8 * MIB
"""Bytes that are read at a time, if chunks are not larger: an interrupt waits no longer."""
LARGEST_BLOCK = 64 * MIB
"""Bytes of a block above which chunks are decoded several times."""

Box = tuple[slice, ...]
"""Elements of an array, per axis."""


def list_blocks(array: ManifestArray, chunks: Sequence[int], wanted: Mask) -> list[Box]:
    """Return boxes of whole cells that hold all wanted cells of a grid, in C order."""
    itemsize = array.dtype.itemsize
    edges = [
        np.intersect1d(np.cumsum((0, *lengths)), np.append(np.arange(0, size, chunk), size))
        for lengths, size, chunk in zip(array.blocks, array.shape, chunks, strict=True)
    ]
    edges = _limit_blocks(edges, chunks, itemsize)
    spans = [list(zip(e[:-1].tolist(), e[1:].tolist(), strict=True)) for e in edges]
    found = [box for box in product(*spans) if _view(wanted, box, chunks).any()]
    whole = [box for box in found if _view(wanted, box, chunks).all()]
    rest = [_crop(box, wanted, chunks) for box in found if not _view(wanted, box, chunks).all()]
    for axis in reversed(range(array.ndim)):
        whole = _merge(whole, axis, BLOCK // max(itemsize, 1))
    return [tuple(slice(a, b) for a, b in box) for box in sorted([*whole, *rest])]


def list_cells(box: Box, chunks: Sequence[int]) -> Iterable[tuple[tuple[int, ...], Box]]:
    """Yield the cells of a box, each with its elements."""
    ranges = [range(s.start // c, -(-s.stop // c)) for s, c in zip(box, chunks, strict=True)]
    for cell in product(*ranges):
        yield (
            cell,
            tuple(
                slice(i * c - s.start, min((i + 1) * c, s.stop) - s.start)
                for i, c, s in zip(cell, chunks, box, strict=True)
            ),
        )


Span = tuple[tuple[int, int], ...]


def _view(wanted: Mask, box: Span, chunks: Sequence[int]) -> Mask:
    where = tuple(slice(a // c, -(-b // c)) for (a, b), c in zip(box, chunks, strict=True))
    return np.asarray(wanted[where])


def _crop(box: Span, wanted: Mask, chunks: Sequence[int]) -> Span:
    """Return the least box of whole cells that holds the wanted cells of a box."""
    found = []
    inside = np.nonzero(_view(wanted, box, chunks))
    for (start, stop), chunk, cells in zip(box, chunks, inside, strict=True):
        first = start // chunk
        low, high = (first + int(cells.min())) * chunk, (first + int(cells.max()) + 1) * chunk
        found.append((max(low, start), min(high, stop)))
    return tuple(found)


def _limit_blocks(edges: list[Ints], chunks: Sequence[int], itemsize: int) -> list[Ints]:
    """Cut axes at edges of cells, the first axes first, until blocks fit in memory."""
    longest = [int(np.diff(e).max(initial=1)) for e in edges]
    for axis, chunk in enumerate(chunks):
        rest = prod(longest) // longest[axis] * itemsize
        if rest * longest[axis] <= LARGEST_BLOCK:
            break
        length = max(chunk, LARGEST_BLOCK // max(rest, 1) // chunk * chunk)
        size = int(edges[axis][-1])
        edges[axis] = np.append(np.arange(0, size, length), size)
        longest[axis] = min(length, size)
    return edges


def _merge(boxes: list[Span], axis: int, most: int) -> list[Span]:
    """Join neighbours along an axis while they have no more elements than ``most``."""
    found: list[Span] = []
    for box in sorted(boxes, key=lambda b: (b[:axis], b[axis + 1 :], b[axis])):
        last = found[-1] if found else None
        if (
            last is not None
            and (last[:axis], last[axis + 1 :]) == (box[:axis], box[axis + 1 :])
            and last[axis][1] == box[axis][0]
        ):
            joined = (*last[:axis], (last[axis][0], box[axis][1]), *last[axis + 1 :])
            if prod(b - a for a, b in joined) <= most:
                found[-1] = joined
                continue
        found.append(box)
    return found
