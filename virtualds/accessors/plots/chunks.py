"""Drawing the chunks of a variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from virtualds.accessors.plots.canvas import (
    Floats,
    add_legend,
    add_rectangles,
    cut_name,
    make_axes,
    make_key,
    set_title,
    show_cells,
)
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.chunk_plane import SEVERAL, ChunkPlane
from virtualds.arrays.display import list_chunk_lengths
from virtualds.chunks.projection import Ints
from virtualds.datasets.axis_cells import AxisCells
from virtualds.pictures.palette import GAP, UNKNOWN, shade_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

MOST_LINES = 150
"""Borders of chunks along an axis that can be told apart."""

Sides = Sequence[AxisCells]
"""The cells of the horizontal and of the vertical axis."""


def choose_axes(array: ManifestArray, given: Sequence[int | None]) -> list[int]:
    """Return the axes to show: those that are given, else those with the most chunks.

    An array of one axis has one, and one value has none.
    """
    cuts = [
        {int(n) for f in array.fragments for n in f.axes[axis].slabs().edges + f.start[axis]}
        for axis in range(array.ndim)
    ]
    others = sorted(set(range(array.ndim)) - set(given), key=lambda axis: -len(cuts[axis]))
    found = [axis if axis is not None else (others.pop(0) if others else None) for axis in given]
    return [axis for axis in found if axis is not None]


def draw_chunks(
    name: str,
    array: ManifestArray,
    axes: Sequence[int],
    cells: Sides,
    labels: Sequence[str],
    ax: Axes | None,
) -> Axes:
    """Draw the chunks of a plane over hatched ground."""
    title, names = _summarize(name, array), [cut_name(str(p)) for p in array.pipelines]
    added = 2 - len(axes)
    for _ in range(added):
        array, axes = array.insert_axis(array.ndim), [*axes, array.ndim]
        cells, labels = [*cells, AxisCells.of_positions(1)], [*labels, ""]
    plane = ChunkPlane.of(array, *axes)
    ax = make_axes("ds.virtual.plot.chunks", ax, 2.2 if added else 4.6)
    for which, own, label in zip("xy", cells, labels, strict=True):
        show_cells(ax, own, label, which)
    for axis in (ax.yaxis, ax.xaxis)[:added]:
        axis.set_ticks([])
    ax.patch.set(hatch=GAP.hatch, edgecolor=GAP.light, linewidth=0)
    keys = _draw_boxes(ax, plane, cells, names)
    for side in (0, 1):
        _draw_borders(ax, plane, cells, side)
    add_legend(ax, keys, loc="upper left", bbox_to_anchor=(0, -0.16), fontsize="small")
    set_title(ax, f"{title}, {plane.missing:,} missing" if plane.missing else title)
    return ax


def _summarize(name: str, array: ManifestArray) -> str:
    """Return the number and the shape of the chunks in words."""
    chunks = f"{array.nchunks:,} chunk{'s' * (array.nchunks != 1)}"
    return f"{name}: {chunks} of ({', '.join(list_chunk_lengths(array))})"


def _draw_boxes(ax: Axes, plane: ChunkPlane, cells: Sides, encodings: Sequence[str]) -> list[Patch]:
    """Draw rectangles of equal encoding; return the entries of the legend."""
    ends = [_find_ends(own, plane.boxes[:, 2 * k : 2 * k + 2]) for k, own in enumerate(cells)]
    sides, keys = np.concatenate(ends, axis=1), []
    names = list(dict.fromkeys(encodings))
    table = np.array([names.index(name) for name in encodings] + [SEVERAL, 0], np.int64)
    numbers = table[plane.codes]
    for number in np.unique(numbers).tolist():
        shade = UNKNOWN if number == SEVERAL else shade_of(number)
        words = "several encodings" if number == SEVERAL else names[number]
        add_rectangles(ax, sides[numbers == number], shade, gid=words)
        keys.append(make_key(ax, shade, words))
    if plane.holes.any():
        add_rectangles(ax, sides[plane.holes], GAP, gid="holes")
        keys.append(make_key(ax, GAP, "some chunks missing"))
    if plane.has_gaps:
        keys.append(make_key(ax, GAP, "no chunk: fill value"))
    return keys


def _find_ends(cells: AxisCells, ends: Ints) -> Floats:
    """Return where stretches of positions lie on their axis, shape (n, 2)."""
    return np.stack(cells.spans(ends[:, 0], ends[:, 1]), axis=1)


def _draw_borders(ax: Axes, plane: ChunkPlane, cells: Sides, side: int) -> None:
    """Draw where chunks meet along one side, unless the lines would cover everything."""
    from matplotlib.collections import LineCollection

    lines: list[tuple[tuple[float, float], ...]] = []
    size = plane.shape[side]
    if len({place for grid in plane.grids for place in grid[side].tolist()}) > MOST_LINES:
        return
    for grid in plane.grids:
        inner = grid[side][(grid[side] > 0) & (grid[side] < size)]
        begin, end = cells[1 - side].span(int(grid[1 - side][0]), int(grid[1 - side][-1]))
        pairs = [((place, begin), (place, end)) for place in cells[side].begin(inner).tolist()]
        lines += [(one[::-1], other[::-1]) for one, other in pairs] if side else pairs
    ax.add_collection(LineCollection(lines, colors="white", linewidths=0.6, gid="borders"))
