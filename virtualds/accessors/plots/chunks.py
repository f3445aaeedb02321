"""Drawing the chunks of a variable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from virtualds.accessors.plots.canvas import (
    EMPTY,
    Floats,
    add_legend_below,
    add_rectangles,
    make_axes,
    make_key,
    set_title,
    show_cells,
)
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.chunk_picture import list_encodings
from virtualds.arrays.chunk_plane import SEVERAL, ChunkPlane
from virtualds.arrays.display import list_chunk_lengths
from virtualds.chunks.projection import Ints
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.datasets.axis_cells import AxisCells
from virtualds.pictures.palette import GAP, UNKNOWN, shade_of
from virtualds.quantities import format_count

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
    cuts = [{int(n) for f in array.fragments for n in f.edges(axis)} for axis in range(array.ndim)]
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
    title = _summarize(name, array)
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
    keys = _draw_boxes(ax, plane, cells, array.pipelines)
    for side in (0, 1):
        _draw_borders(ax, plane, cells, side)
    add_legend_below(ax, [*keys, *_clear_gaps(ax, cells, labels)])
    set_title(ax, f"{title}, {plane.missing:,} missing" if plane.missing else title)
    return ax


def _summarize(name: str, array: ManifestArray) -> str:
    """Return the number and the shape of the chunks in words."""
    chunks = format_count(array.nchunks, "chunk")
    return f"{name}: {chunks} of ({', '.join(list_chunk_lengths(array))})"


def _draw_boxes(
    ax: Axes, plane: ChunkPlane, cells: Sides, pipelines: Sequence[CodecPipeline]
) -> list[Patch]:
    """Draw rectangles of equal encoding; return the entries of the legend."""
    sides, box = _find_sides(plane, cells)
    names, kinds = _number_kinds(plane.codes, pipelines)
    keys = []
    for kind in np.unique(kinds).tolist():
        shade = UNKNOWN if kind == SEVERAL else shade_of(kind)
        words = "several encodings" if kind == SEVERAL else names[kind]
        add_rectangles(ax, sides[kinds[box] == kind], shade, gid=words)
        keys.append(make_key(ax, shade, words))
    if plane.holes.any():
        add_rectangles(ax, sides[plane.holes[box]], GAP, gid="holes")
        keys.append(make_key(ax, GAP, "some chunks missing"))
    if plane.has_gaps:
        keys.append(make_key(ax, GAP, "no chunk: fill value"))
    return keys


def _number_kinds(codes: Ints, pipelines: Sequence[CodecPipeline]) -> tuple[list[str], Ints]:
    """Return the names of the encodings that are seen, and the number of that of each box."""
    seen = list(dict.fromkeys(pipelines[n] for n in np.unique(codes[codes >= 0]).tolist()))
    names = list_encodings(seen)
    number = {pipeline: min(n, len(names) - 1) for n, pipeline in enumerate(seen)}
    # the code of several encodings indexes from the end
    table = np.array([number.get(p, SEVERAL) for p in pipelines] + [SEVERAL] * 2, np.int64)
    return names, table[codes]


def _find_sides(plane: ChunkPlane, cells: Sides) -> tuple[Floats, Ints]:
    """Return rectangles between gaps of both axes, shape (n, 4), and the box that each is of."""
    across, left, right = cells[0].pieces(*plane.boxes[:, :2].T)
    up, low, high = cells[1].pieces(*plane.boxes[across, 2:].T)
    return np.stack([left[up], right[up], low, high], axis=1), across[up]


def _clear_gaps(ax: Axes, cells: Sides, labels: Sequence[str]) -> Iterator[Patch]:
    """Leave gaps in the dates of the axes empty; yield the entries of the legend."""
    for side, own in enumerate(cells):
        if not own.missing:
            continue
        other = cells[1 - side]
        ends = (float(other.low.min()), float(other.high.max()))
        sides = [(*ends, *gap) if side else (*gap, *ends) for gap in own.missing]
        # over the borders of chunks, under the frame of the axes
        add_rectangles(ax, sides, EMPTY, gid="empty", zorder=2.2)
        words = f"{format_count(len(own.missing), 'gap')} in the dates along {labels[side]}"
        yield make_key(ax, EMPTY, words)


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
