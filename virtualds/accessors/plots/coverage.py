"""Drawing which file covers which part of a dimension."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from virtualds.accessors.plots.canvas import (
    add_legend_below,
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
from virtualds.pictures.palette import GAP, SERIES, Shade
from virtualds.quantities import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMES = 24
"""Rows that each have the name of a file beside them; of more rows, some have."""
SOME_NAMES = 10

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
        Band(GAP, "gap", " without file: fill value", uncovered),
        Band(MISSING_TIMES, "gap", " in the dates", list(cells.missing)),
        Band(DOUBLED, "overlap", "", list(cells.doubled)),
    )
    shown = [band for band in bands if band.spans]
    for band in shown:
        sides = [(*span, 0.0, 1.0) for span in band.spans]
        add_rectangles(ax, sides, band.shade, line=0.8, over_all=True, alpha=0.55, zorder=0.5)
    add_legend_below(ax, [make_key(ax, band.shade, band.describe(cells)) for band in shown])
    set_title(ax, _summarize(count, dim, shown))
    _name_rows(ax, coverage.urls)
    return ax


class Band(NamedTuple):
    """Stretches of one kind, and what the legend calls them."""

    shade: Shade
    kind: str
    words: str
    spans: Sequence[Span]

    def describe(self, cells: AxisCells) -> str:
        """Return how many stretches there are; of one, where it lies."""
        if len(self.spans) > 1:
            return f"{format_count(len(self.spans), self.kind)}{self.words}"
        start, stop = (cells.text_at(end) for end in self.spans[0])
        return f"{format_count(1, self.kind)}{self.words}, {start} to {stop}"


def _draw_files(ax: Axes, coverage: Coverage, cells: AxisCells) -> None:
    own, low, high = cells.pieces(coverage.start, coverage.stop)
    number = coverage.file[own]
    half, line = (0.38, 0.8) if len(coverage.urls) <= MOST_NAMES else (0.5, 2.0)
    held = np.array([url == IN_THE_SET for url in coverage.urls], bool)[number]
    for shade, chosen in ((FILES, ~held), (HELD, held)):
        sides = np.stack([low, high, number - half, number + half], axis=1)
        if chosen.any():
            add_rectangles(ax, sides[chosen], shade, line=line, gid="files")


def _summarize(files: int, dim: str, bands: Sequence[Band]) -> str:
    counts: Counter[str] = Counter()
    for band in bands:
        counts[band.kind] += len(band.spans)
    found = ", ".join(format_count(n, kind) for kind, n in counts.items())
    return f"{format_count(files, 'file')} along {dim}: {found or 'no gap'}"


def _name_rows(ax: Axes, urls: Sequence[str]) -> None:
    """Name all rows, or some of many."""
    folder, names = shorten_urls(urls)
    rows = range(len(urls))
    if len(urls) > MOST_NAMES:
        rows = np.linspace(0, len(urls) - 1, SOME_NAMES).round().astype(int).tolist()
    set_names(ax, rows, [cut_name(names[row]) for row in rows])
    # the folders above the last one would be longer than the axis
    last = re.search(r"[^/]*/?$", folder.partition("://")[2] or folder)
    ax.set_ylabel(cut_name(last[0].removeprefix("/")) if last else "", parse_math=False)
