"""Which files cover which part of a dimension, as a strip: the facts of `plot.coverage` in SVG."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.coverage import Coverage, find_coverage
from virtualds.datasets.axis_cells import AxisCells
from virtualds.datasets.axis_cells import Span as Stretch
from virtualds.errors import without_secrets
from virtualds.pictures.html import Markup, element
from virtualds.pictures.palette import GAP, NEXT, SERIES, Shade
from virtualds.pictures.reports import draw_labels
from virtualds.pictures.svg import Span, key, strip

MOST_FILES = 150
"""Files that a strip tells apart; of more it shows where any of them is."""
DOUBLED = SERIES[6]
NARROWEST = 0.004
"""Least part of the strip that a gap takes, so that a day of many years is seen."""


def draw_strips(dataset: xr.Dataset, arrays: Mapping[Hashable, ManifestArray]) -> Iterator[Markup]:
    """Yield a strip for each dimension along which files follow each other.

    Parameters
    ----------
    dataset : xarray.Dataset
    arrays : mapping
        Its virtual arrays, by name.
    """
    dims = {name: dataset.variables[name].dims for name in arrays}
    for dim in dict.fromkeys(one for own in dims.values() for one in own):
        pairs = [(arrays[name], own.index(dim)) for name, own in dims.items() if dim in own]
        found = find_coverage(dataset.sizes[dim], pairs)
        if len(found.urls) > 1 and (found.stop - found.start < found.size).any():
            yield _draw_strip(found, AxisCells.of(dataset, dim, found.start), str(dim))


def _draw_strip(coverage: Coverage, cells: AxisCells, dim: str) -> Markup:
    low, high = float(cells.low.min()), float(cells.high.max())
    gaps = sorted([*(cells.span(*ends) for ends in coverage.find_uncovered()), *cells.missing])
    few = len(coverage.urls) <= MOST_FILES
    spans = list(_list_files(coverage, cells) if few else _list_covered(gaps, low, high))
    for shade, found in ((GAP, gaps), (DOUBLED, cells.doubled)):
        spans += [_widen(stretch, shade, cells, high - low) for stretch in found]
    moved = [s._replace(start=s.start - low, stop=s.stop - low) for s in spans]
    title = f"{len(coverage.urls):,} files along {dim}"
    ends = [(0.0, cells.text_at(low)), (1.0, cells.text_at(float(cells.low.max())))]
    shown = key(_list_keys(coverage, gaps, cells))
    strips = (strip(moved, high - low, title=title), draw_labels(ends), shown)
    return element("div", element("b", title), *strips, style="--vds-height:22px;margin:8px 0")


def _list_files(coverage: Coverage, cells: AxisCells) -> Iterator[Span]:
    """Yield the stretches of files, in two shades by turns."""
    own, low, high = cells.pieces(coverage.start, coverage.stop)
    names = [without_secrets(url) or "in the set" for url in coverage.urls]
    columns = (coverage.file[own].tolist(), low.tolist(), high.tolist())
    for number, start, stop in zip(*columns, strict=True):
        yield Span(start, stop, (SERIES[0], NEXT)[number % 2], names[number])


def _list_covered(gaps: Sequence[Stretch], low: float, high: float) -> Iterator[Span]:
    """Yield what lies between gaps."""
    end = low
    for start, stop in [*gaps, (high, high)]:
        if start > end:
            yield Span(end, start, SERIES[0])
        end = max(end, stop)


def _widen(stretch: Stretch, shade: Shade, cells: AxisCells, length: float) -> Span:
    start, stop = stretch
    words = f"{cells.text_at(start)} to {cells.text_at(stop)}"
    return Span(start, max(stop, start + NARROWEST * length), shade, words)


def _list_keys(
    coverage: Coverage, gaps: Sequence[Stretch], cells: AxisCells
) -> list[tuple[Shade, object]]:
    few = len(coverage.urls) <= MOST_FILES
    words = "files, in two shades by turns" if few else "files"
    shown: list[tuple[Shade, object]] = [(SERIES[0], words)]
    for shade, kind, found in ((GAP, "gap", gaps), (DOUBLED, "overlap", cells.doubled)):
        if len(found) == 1:
            start, stop = (cells.text_at(end) for end in found[0])
            shown.append((shade, f"{kind}: {start} to {stop}"))
        elif found:
            shown.append((shade, f"{len(found):,} {kind}s"))
    return shown
