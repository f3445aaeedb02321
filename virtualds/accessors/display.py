"""The text and HTML reprs of ``ds.virtual`` and ``tree.virtual``, which read no data.

HTML pages also have a strip for each dimension, which shows the part that each file covers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.display import (
    ChunkStatistics,
    bin_chunks,
    build_files_section,
    compute_statistics,
    count_files,
    describe_arrays,
    format_chunk_lengths,
    format_stored,
)
from virtualds.arrays.sources import Coverage, find_coverage
from virtualds.datasets.axis_cells import AxisCells
from virtualds.datasets.axis_cells import Span as Range
from virtualds.datasets.lazy import find_layers, is_lazy
from virtualds.datasets.structure import describe_gaps
from virtualds.errors import format_bytes, format_count, format_names, without_secrets
from virtualds.pictures import Block, Section, Table, draw
from virtualds.pictures.html import (
    GAP,
    NEXT,
    SERIES,
    Markup,
    Shade,
    Span,
    draw_labels,
    draw_legend,
    draw_strip,
    element,
    to_notebook_html,
)

MAX_FILES = 150
"""Maximum number of files that a strip distinguishes; for more, it only shows covered ranges."""
OVERLAP = SERIES[6]
MIN_SPAN_WIDTH = 0.004
"""Minimum width of a span as a fraction of the strip, so that short gaps are visible."""


def draw_strips(dataset: xr.Dataset, arrays: Mapping[Hashable, ManifestArray]) -> Iterator[Markup]:
    """Yield a strip for each dimension along which the source files are concatenated."""
    dims_by_name = {name: dataset.variables[name].dims for name in arrays}
    for dim in dict.fromkeys(dim for dims in dims_by_name.values() for dim in dims):
        array_axes = [
            (arrays[name], dims.index(dim)) for name, dims in dims_by_name.items() if dim in dims
        ]
        coverage = find_coverage(dataset.sizes[dim], array_axes)
        is_partial = coverage.stop - coverage.start < coverage.size
        if len(coverage.urls) > 1 and is_partial.any():
            yield _draw_strip(coverage, AxisCells.of(dataset, dim, coverage.start), str(dim))


def _draw_strip(coverage: Coverage, cells: AxisCells, dim: str) -> Markup:
    low, high = float(cells.low.min()), float(cells.high.max())
    gaps = sorted([*(cells.find_span(*ends) for ends in coverage.find_uncovered()), *cells.missing])
    if len(coverage.urls) <= MAX_FILES:
        spans = list(_iterate_file_spans(coverage, cells))
    else:
        spans, end = [], low
        for start, stop in [*gaps, (high, high)]:
            if start > end:
                spans.append(Span(end, start, SERIES[0]))
            end = max(end, stop)
    min_width = MIN_SPAN_WIDTH * (high - low)
    for shade, ranges in ((GAP, gaps), (OVERLAP, cells.doubled)):
        for start, stop in ranges:
            label = f"{cells.format_position(start)} to {cells.format_position(stop)}"
            spans.append(Span(start, max(stop, start + min_width), shade, label))
    spans = [s._replace(start=s.start - low, stop=s.stop - low) for s in spans]
    title = f"{len(coverage.urls):,} files along {dim}"
    ends = [(0.0, cells.format_position(low)), (1.0, cells.format_position(float(cells.low.max())))]
    parts = (
        draw_strip(spans, high - low, title=title),
        draw_labels(ends),
        draw_legend(_list_legend_entries(coverage, gaps, cells)),
    )
    return element("div", element("b", title), *parts, style="--vds-height:22px;margin:8px 0")


def _iterate_file_spans(coverage: Coverage, cells: AxisCells) -> Iterator[Span]:
    """Yield the spans of files, in two alternating shades."""
    files, low, high = cells.split_ranges(coverage.start, coverage.stop)
    names = [without_secrets(url) or "in the set" for url in coverage.urls]
    columns = (coverage.file[files].tolist(), low.tolist(), high.tolist())
    for number, start, stop in zip(*columns, strict=True):
        yield Span(start, stop, (SERIES[0], NEXT)[number % 2], names[number])


def _list_legend_entries(
    coverage: Coverage, gaps: Sequence[Range], cells: AxisCells
) -> list[tuple[Shade, object]]:
    label = "files, in two alternating shades" if len(coverage.urls) <= MAX_FILES else "files"
    entries: list[tuple[Shade, object]] = [(SERIES[0], label)]
    for shade, kind, ranges in ((GAP, "gap", gaps), (OVERLAP, "overlap", cells.doubled)):
        if len(ranges) == 1:
            start, stop = (cells.format_position(end) for end in ranges[0])
            entries.append((shade, f"{kind}: {start} to {stop}"))
        elif ranges:
            entries.append((shade, f"{len(ranges):,} {kind}s"))
    return entries


# ---------------------------------------------------------------------- reprs

MAX_PICTURES, OPEN_PICTURES = 6, 2
"""Maximum number of pictures of a dataset, and how many of them are open at first."""

SHOWN_NAMES = 4
"""Maximum number of variables in the title of a picture."""

SHOWN_VARIABLES, SHOWN_FILES, SHOWN_GROUPS, SHOWN_GAPS = 100, 20, 20, 3
"""Maximum numbers of rows. Chunk grids of further variables are not compared."""

SHOWN_LINES = 12
"""Maximum number of lines for variables or groups in a text repr."""


@dataclass(frozen=True)
class VariableEntry:
    """A virtual variable in a repr."""

    name: str
    dims: tuple[str, ...]
    array: ManifestArray

    @cached_property
    def statistics(self) -> ChunkStatistics:
        """Statistics of the chunks."""
        return compute_statistics(self.array)

    @property
    def shape(self) -> str:
        """Names and lengths of the dimensions."""
        pairs = zip(self.dims, self.array.shape, strict=True)
        return ", ".join(f"{dim} {length:,}" for dim, length in pairs)

    @property
    def chunks(self) -> str:
        """Lengths of chunks along each dimension."""
        return " × ".join(format_chunk_lengths(self.array))


@dataclass(frozen=True)
class Contents:
    """The virtual variables of a dataset, the numbers of other variables, and gaps in times."""

    virtual: tuple[VariableEntry, ...]
    loaded: int
    lazy: int
    gaps: tuple[str, ...]

    @classmethod
    def of(cls, dataset: xr.Dataset) -> Contents:
        """Collect the variables of a dataset. Computed lazy variables do not count as virtual."""
        virtual, others = list[VariableEntry](), list[xr.Variable]()
        for name, variable in dataset.variables.items():
            layers = find_layers(variable)
            if layers is None or layers.is_computed or layers.array.shape != variable.shape:
                others.append(variable)
            else:
                virtual.append(
                    VariableEntry(str(name), tuple(map(str, variable.dims)), layers.array)
                )
        lazy = sum(is_lazy(v) or v.chunks is not None for v in others)
        gaps = tuple(describe_gaps(dataset.indexes))
        return cls(tuple(virtual), len(others) - lazy, lazy, gaps)

    @property
    def arrays(self) -> list[ManifestArray]:
        """The arrays of the virtual variables."""
        return [entry.array for entry in self.virtual]

    @property
    def statistics(self) -> ChunkStatistics:
        """Statistics of the chunks of all variables."""
        return sum((entry.statistics for entry in self.virtual), ChunkStatistics())


# ---------------------------------------------------------------------- text


def format_contents(label: str, groups: Mapping[str, Contents], is_tree: bool) -> str:
    """Return the text repr of a dataset or tree, with a limited number of lines."""
    virtual_groups = {path: contents for path, contents in groups.items() if contents.virtual}
    header = f"<{label}: {_format_counts(virtual_groups.values())}>"
    if is_tree:
        lines = [
            f"    {path}: {_format_counts([contents])}"
            for path, contents in list(virtual_groups.items())[:SHOWN_LINES]
        ]
        omitted = len(virtual_groups) - SHOWN_LINES
    else:
        variables = [entry for contents in virtual_groups.values() for entry in contents.virtual]
        lines = [
            f"    {entry.name} ({entry.shape}) {entry.array.dtype}: "
            f"{format_count(entry.array.nchunks, 'chunk')} of {entry.chunks or 'one value'}"
            for entry in variables[:SHOWN_LINES]
        ]
        omitted = len(variables) - SHOWN_LINES
    noun = " groups" if is_tree else ""
    remainder = [f"    and {omitted:,} more{noun}"] if omitted > 0 else []
    return "\n".join([header, *lines, *remainder])


def _format_counts(groups: Iterable[Contents]) -> str:
    """Return the numbers of virtual variables, chunks and files."""
    arrays = [array for contents in groups for array in contents.arrays]
    files, chunks = count_files(arrays), sum(array.nchunks for array in arrays)
    parts = [format_count(len(arrays), "virtual variable")]
    parts += [format_count(chunks, "chunk")] if arrays else []
    return ", ".join(parts) + (f" of {format_count(files, 'file')}" if files else "")


# ---------------------------------------------------------------------- HTML


def format_contents_html(groups: Mapping[str, Contents], is_tree: bool, report: Any) -> str:
    """Return the HTML repr of ``ds.virtual`` and ``tree.virtual``."""
    shown_groups = {
        path: contents for path, contents in groups.items() if contents.virtual or not is_tree
    }
    max_pictures, blocks = MAX_PICTURES, list[Block]()
    for path, contents in list(shown_groups.items())[:SHOWN_GROUPS]:
        if not is_tree:
            blocks += [*_draw_pictures(contents.virtual), _describe_variables(contents.virtual)]
            continue
        pictures = _draw_pictures(contents.virtual, max_pictures)
        max_pictures = max(max_pictures - len(pictures), 0)
        table = _describe_variables(contents.virtual, SHOWN_VARIABLES // len(shown_groups) or 1)
        is_open = len(blocks) < OPEN_PICTURES
        blocks.append(Section(path, (*pictures, table), _format_counts([contents]), is_open))
    omitted = len(shown_groups) - SHOWN_GROUPS
    blocks += [f"and {omitted:,} more groups"] if omitted > 0 else []
    arrays = [array for contents in shown_groups.values() for array in contents.arrays]
    blocks.append(build_files_section(arrays, SHOWN_FILES))
    if report is not None:
        blocks.append(Section("Build", [report], format_count(report.files, "file"), is_open=False))
    title = element("b", _format_counts(shown_groups.values()))
    totals = _describe_totals(shown_groups.values())
    return to_notebook_html(
        element("div", title, class_="vds-title"), *map(draw, [totals, *blocks])
    )


def _describe_totals(groups: Iterable[Contents]) -> Block:
    """Return facts about all groups together."""
    groups = list(groups)
    statistics = sum((contents.statistics for contents in groups), ChunkStatistics())
    arrays = [array for contents in groups for array in contents.arrays]
    loaded = sum(contents.loaded for contents in groups)
    lazy = sum(contents.lazy for contents in groups)
    gaps = list(dict.fromkeys(gap for contents in groups for gap in contents.gaps))
    remainder = f"; and {len(gaps) - SHOWN_GAPS:,} more" if len(gaps) > SHOWN_GAPS else ""
    return {
        "Values": format_bytes(sum(array.nbytes for array in arrays)),
        "Stored": format_stored(statistics) if statistics.stored else None,
        "Missing": f"{statistics.missing:,} chunks" if statistics.missing else None,
        "Not loaded": f"references of {statistics.unread:,} chunks" if statistics.unread else None,
        "References": f"{format_bytes(sum(a.nbytes_virtual for a in arrays))} of memory",
        "In memory": format_count(loaded, "other variable") if loaded else None,
        "Lazy": format_count(lazy, "other variable") if lazy else None,
        "Gaps": "; ".join(gaps[:SHOWN_GAPS]) + remainder if gaps else None,
    }


def _draw_pictures(entries: Sequence[VariableEntry], max_count: int = MAX_PICTURES) -> list[Block]:
    """Return a section with a picture for each distinct chunk grid."""
    entries_by_grid: dict[Hashable, list[VariableEntry]] = {}
    for entry in entries[:SHOWN_VARIABLES]:
        array, bins = entry.array, bin_chunks(entry.array)
        boxes = tuple((f.start, f.axes) for f in array.fragments)
        # the picture does not show a single pipeline, so that scale and offset may differ
        has_one_pipeline = len(array.pipelines) == 1
        encodings = array.pipelines[0].storage if has_one_pipeline else array.pipelines
        drawn_bins = (bins.axes, bins.encodings, bins.is_assumed, bins.counts.tobytes())
        grid = entry.dims, array.shape, boxes, encodings, drawn_bins
        entries_by_grid.setdefault(grid, []).append(entry)
    drawn = list(entries_by_grid.values())[:max_count]
    blocks = list[Block]()
    for group in drawn:
        names = format_names((entry.name for entry in group), SHOWN_NAMES)
        statistics = sum((entry.statistics for entry in group), ChunkStatistics())
        body = describe_arrays([entry.array for entry in group], statistics, group[0].dims)
        is_open = len(blocks) < OPEN_PICTURES
        blocks.append(Section(names, [body], f"({group[0].shape})", is_open))
    if omitted := len(entries) - sum(map(len, drawn)):
        blocks.append(f"the chunks of {format_count(omitted, 'more variable')} are not drawn")
    return blocks


def _describe_variables(
    entries: Sequence[VariableEntry], max_rows: int = SHOWN_VARIABLES
) -> Section:
    head = ("variable", "dimensions", "type", "chunk", "chunks", "missing", "stored", "values")
    rows = [
        (
            element("b", entry.name),
            entry.shape,
            entry.array.dtype,
            entry.chunks,
            f"{entry.array.nchunks:,}",
            f"{entry.statistics.missing:,}" if not entry.statistics.unread else "not loaded",
            format_bytes(entry.statistics.stored) if entry.statistics.stored else "",
            format_bytes(entry.array.nbytes),
        )
        for entry in entries[:max_rows]
    ]
    table = Table(head, rows, range(4, len(head)), max_rows, len(entries))
    return Section("Variables", [table], f"{len(entries):,}", is_open=False)
