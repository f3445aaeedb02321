"""Drawing which file covers which part of a dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from virtualds.accessors.plots.canvas import (
    add_legend,
    add_rectangles,
    cut_name,
    make_axes,
    make_key,
    set_names,
    set_title,
    shorten_urls,
    show_cells,
)
from virtualds.arrays.coverage import IN_THE_SET, Coverage
from virtualds.datasets.axis_cells import AxisCells, Span
from virtualds.pictures.palette import GAP, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMES = 24
"""Rows that each have the name of a file beside them; of more rows, some have."""
SOME_NAMES = 10
MOST_DESCRIBED = 3
"""Bands of one kind that the legend describes one by one."""

FILES, HELD = SERIES[0], SERIES[5]
MISSING_TIMES, DOUBLED = SERIES[1], SERIES[6]
"""Shades of bands: times that do not exist, and such as several parts of the axis have."""


def draw_coverage(
    coverage: Coverage, cells: AxisCells, dim: str, label: str, ax: Axes | None
) -> Axes:
    """Draw a row for each file, and bands over gaps and overlaps."""
    count = len(coverage.urls)
    ax = make_axes("ds.virtual.plot.coverage", ax, min(max(1.7 + 0.22 * count, 2.4), 5.5))
    show_cells(ax, cells, label)
    ax.set_ylim(max(count, 1) - 0.5, -0.5)
    _draw_files(ax, coverage, cells)
    uncovered = [cells.span(*ends) for ends in coverage.find_uncovered()]
    bands = (
        (GAP, "no file, fill value", "gap", uncovered),
        (MISSING_TIMES, "missing dates", "gap", cells.missing),
        (DOUBLED, "overlap", "overlap", cells.doubled),
    )
    keys = []
    for shade, words, _, spans in bands:
        if spans:
            sides = [(*span, 0.0, 1.0) for span in spans]
            add_rectangles(ax, sides, shade, line=0.8, over_all=True, alpha=0.55, zorder=0.5)
            keys += [make_key(ax, shade, text) for text in _describe_bands(words, spans, cells)]
    # files follow the diagonal, from the upper left to the lower right
    add_legend(ax, keys, loc="upper right", fontsize="small")
    counts = {kind: sum(len(b[3]) for b in bands if b[2] == kind) for kind in ("gap", "overlap")}
    set_title(ax, _summarize(count, dim, counts))
    _name_rows(ax, coverage.urls)
    return ax


def _draw_files(ax: Axes, coverage: Coverage, cells: AxisCells) -> None:
    number, start, stop = coverage.cut_at(cells.jumps)
    low, high = cells.spans(start, stop)
    half, line = (0.38, 0.8) if len(coverage.urls) <= MOST_NAMES else (0.5, 2.0)
    held = np.array([url == IN_THE_SET for url in coverage.urls], bool)[number]
    for shade, chosen in ((FILES, ~held), (HELD, held)):
        sides = np.stack([low, high, number - half, number + half], axis=1)
        if chosen.any():
            add_rectangles(ax, sides[chosen], shade, line=line, gid="files")


def _describe_bands(words: str, spans: Sequence[Span], cells: AxisCells) -> list[str]:
    if len(spans) > MOST_DESCRIBED:
        return [f"{words}: {len(spans):,} times"]
    return [f"{words}: {cells.text_at(a)} to {cells.text_at(b)}" for a, b in spans]


def _summarize(files: int, dim: str, counts: dict[str, int]) -> str:
    found = [f"{n:,} {kind}{'s' * (n != 1)}" for kind, n in counts.items() if n]
    return f"{files:,} file{'s' * (files != 1)} along {dim}: {', '.join(found) or 'no gap'}"


def _name_rows(ax: Axes, urls: Sequence[str]) -> None:
    """Name all rows, or some of many."""
    folder, names = shorten_urls(urls)
    rows = range(len(urls))
    if len(urls) > MOST_NAMES:
        rows = np.linspace(0, len(urls) - 1, SOME_NAMES).round().astype(int).tolist()
    set_names(ax, rows, [cut_name(names[row]) for row in rows])
    if folder:
        ax.set_ylabel(cut_name(folder), parse_math=False)
