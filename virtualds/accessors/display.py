"""The text and HTML views of ``ds.virtual`` and ``tree.virtual``; they read and request nothing.

On pages of sets, a strip shows which files cover which part of a dimension, like `plot.coverage`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.coverage import Coverage, find_coverage
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
from virtualds.datasets.axis_cells import AxisCells
from virtualds.datasets.axis_cells import Span as Range
from virtualds.datasets.lazy import find_layers, is_lazy
from virtualds.datasets.structure import describe_gaps
from virtualds.errors import format_bytes, format_count, format_names, without_secrets
from virtualds.pictures.blocks import Block, Section, Table, draw
from virtualds.pictures.html import (
    GAP,
    NEXT,
    SERIES,
    Markup,
    Shade,
    Span,
    cell,
    draw_labels,
    element,
    legend,
    strip,
)

MAX_FILES = 150
"""Maximum number of files that a strip distinguishes; of more, it only shows the covered ranges."""
DOUBLED = SERIES[6]
MIN_SPAN_WIDTH = 0.004
"""Minimum width of a span as a fraction of the strip, so that short gaps are visible."""


def draw_strips(dataset: xr.Dataset, arrays: Mapping[Hashable, ManifestArray]) -> Iterator[Markup]:
    """Yield a strip for each dimension along which the source files are concatenated."""
    dims = {name: dataset.variables[name].dims for name in arrays}
    for dim in dict.fromkeys(dim_name for var_dims in dims.values() for dim_name in var_dims):
        pairs = [
            (arrays[name], var_dims.index(dim))
            for name, var_dims in dims.items()
            if dim in var_dims
        ]
        file_coverage = find_coverage(dataset.sizes[dim], pairs)
        if (
            len(file_coverage.urls) > 1
            and (file_coverage.stop - file_coverage.start < file_coverage.size).any()
        ):
            yield _draw_strip(
                file_coverage, AxisCells.of(dataset, dim, file_coverage.start), str(dim)
            )


def _draw_strip(coverage: Coverage, cells: AxisCells, dim: str) -> Markup:
    low, high = float(cells.low.min()), float(cells.high.max())
    gaps = sorted([*(cells.span(*ends) for ends in coverage.find_uncovered()), *cells.missing])
    few = len(coverage.urls) <= MAX_FILES
    spans = list(_iterate_files(coverage, cells) if few else _iterate_covered(gaps, low, high))
    for shade, found in ((GAP, gaps), (DOUBLED, cells.doubled)):
        spans += [_widen(covered, shade, cells, high - low) for covered in found]
    moved = [s._replace(start=s.start - low, stop=s.stop - low) for s in spans]
    title = f"{len(coverage.urls):,} files along {dim}"
    ends = [(0.0, cells.format_position(low)), (1.0, cells.format_position(float(cells.low.max())))]
    legend_html = legend(_list_keys(coverage, gaps, cells))
    strips = (strip(moved, high - low, title=title), draw_labels(ends), legend_html)
    return element("div", element("b", title), *strips, style="--vds-height:22px;margin:8px 0")


def _iterate_files(coverage: Coverage, cells: AxisCells) -> Iterator[Span]:
    """Yield the ranges of files, in two alternating shades."""
    files, low, high = cells.pieces(coverage.start, coverage.stop)
    names = [without_secrets(url) or "in the set" for url in coverage.urls]
    columns = (coverage.file[files].tolist(), low.tolist(), high.tolist())
    for number, start, stop in zip(*columns, strict=True):
        yield Span(start, stop, (SERIES[0], NEXT)[number % 2], names[number])


def _iterate_covered(gaps: Sequence[Range], low: float, high: float) -> Iterator[Span]:
    """Yield the ranges between gaps."""
    end = low
    for start, stop in [*gaps, (high, high)]:
        if start > end:
            yield Span(end, start, SERIES[0])
        end = max(end, stop)


def _widen(covered: Range, shade: Shade, cells: AxisCells, length: float) -> Span:
    start, stop = covered
    label = f"{cells.format_position(start)} to {cells.format_position(stop)}"
    return Span(start, max(stop, start + MIN_SPAN_WIDTH * length), shade, label)


def _list_keys(
    coverage: Coverage, gaps: Sequence[Range], cells: AxisCells
) -> list[tuple[Shade, object]]:
    few = len(coverage.urls) <= MAX_FILES
    label = "files, in two shades by turns" if few else "files"
    keys: list[tuple[Shade, object]] = [(SERIES[0], label)]
    for shade, kind, found in ((GAP, "gap", gaps), (DOUBLED, "overlap", cells.doubled)):
        if len(found) == 1:
            start, stop = (cells.format_position(end) for end in found[0])
            keys.append((shade, f"{kind}: {start} to {stop}"))
        elif found:
            keys.append((shade, f"{len(found):,} {kind}s"))
    return keys


# ---------------------------------------------------------------------- display

MAX_PICTURES, OPEN_PICTURES = 6, 2
"""Maximum number of pictures of a dataset, and the number of initially open ones."""

SHOWN_NAMES = 4
"""Maximum number of variables in the title of a picture."""

SHOWN_VARIABLES, SHOWN_FILES, SHOWN_GROUPS, SHOWN_GAPS = 100, 20, 20, 3
"""Maximum number of rows of the tables. Chunk grids of further variables are not compared."""

SHOWN_LINES = 12
"""Maximum number of lines for variables or groups in a text repr."""


@dataclass(frozen=True)
class VariableEntry:
    """A virtual variable, as displayed."""

    name: str
    dims: tuple[str, ...]
    array: ManifestArray

    @cached_property
    def statistics(self) -> ChunkStatistics:
        """The statistics of its chunks."""
        return compute_statistics(self.array)

    @property
    def shape(self) -> str:
        """Names and lengths of the dimensions."""
        pairs = zip(self.dims, self.array.shape, strict=True)
        return ", ".join(f"{dim} {length:,}" for dim, length in pairs)

    @property
    def chunks(self) -> str:
        """Lengths of chunks."""
        return " × ".join(format_chunk_lengths(self.array))


@dataclass(frozen=True)
class Contents:
    """The virtual variables of a dataset, and the numbers of other variables and gaps."""

    virtual: tuple[VariableEntry, ...]
    loaded: int
    lazy: int
    gaps: tuple[str, ...]

    @classmethod
    def of(cls, dataset: xr.Dataset) -> Contents:
        """Collect the variables of a dataset, without searching lazy arrays for virtual ones."""
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
        """The statistics of all chunks."""
        return sum((entry.statistics for entry in self.virtual), ChunkStatistics())


# ---------------------------------------------------------------------- text


def format_contents(label: str, groups: Mapping[str, Contents], is_tree: bool) -> str:
    """Return the text repr of a dataset or tree, with a limited number of lines."""
    filled = {
        path: group_contents for path, group_contents in groups.items() if group_contents.virtual
    }
    lines = [f"<{label}: {_count_everything(filled.values())}>"]
    variables = [entry for group_contents in filled.values() for entry in group_contents.virtual]
    for path, group_contents in list(filled.items())[:SHOWN_LINES] if is_tree else ():
        lines.append(f"    {path}: {_count_everything([group_contents])}")
    for entry in () if is_tree else variables[:SHOWN_LINES]:
        count = format_count(entry.array.nchunks, "chunk")
        chunks = f"{count} of {entry.chunks or 'one value'}"
        lines.append(f"    {entry.name} ({entry.shape}) {entry.array.dtype}: {chunks}")
    more = (len(filled) if is_tree else len(variables)) - SHOWN_LINES
    remainder = f"    and {more:,} more{' groups' if is_tree else ''}"
    return "\n".join([*lines, remainder] if more > 0 else lines)


def _count_everything(contents: Iterable[Contents]) -> str:
    arrays = [array for group_contents in contents for array in group_contents.arrays]
    files, chunks = count_files(arrays), sum(array.nchunks for array in arrays)
    parts = [format_count(len(arrays), "virtual variable")]
    parts += [format_count(chunks, "chunk")] if arrays else []
    of = f" of {format_count(files, 'file')}" if files else ""
    return ", ".join(parts) + of


# ---------------------------------------------------------------------- HTML


def format_contents_html(groups: Mapping[str, Contents], is_tree: bool, report: Any) -> str:
    """Return the HTML repr of ``ds.virtual`` and ``tree.virtual``."""
    filled = {
        path: group_contents
        for path, group_contents in groups.items()
        if group_contents.virtual or not is_tree
    }
    pictures, blocks = MAX_PICTURES, list[Block]()
    for path, group_contents in list(filled.items())[:SHOWN_GROUPS]:
        if not is_tree:
            blocks += [
                *_draw_pictures(group_contents.virtual),
                _describe_variables(group_contents.virtual),
            ]
            continue
        drawn = _draw_pictures(group_contents.virtual, pictures)
        pictures = max(pictures - len(drawn), 0)
        body = (
            *drawn,
            _describe_variables(group_contents.virtual, SHOWN_VARIABLES // len(filled) or 1),
        )
        note = _count_everything([group_contents])
        blocks.append(Section(path, body, note, is_open=len(blocks) < OPEN_PICTURES))
    more = len(filled) - SHOWN_GROUPS
    blocks += [f"and {more:,} more groups"] if more > 0 else []
    blocks.append(
        build_files_section(
            [a for group_contents in filled.values() for a in group_contents.arrays], SHOWN_FILES
        )
    )
    if report is not None:
        blocks.append(Section("Build", [report], format_count(report.files, "file"), is_open=False))
    title = element("b", _count_everything(filled.values()))
    totals = _describe_totals(filled.values())
    return cell(element("div", title, class_="vds-title"), *map(draw, [totals, *blocks]))


def _describe_totals(contents: Iterable[Contents]) -> Block:
    """Return the statistics of all groups together."""
    groups = list(contents)
    statistics = sum((part.statistics for part in groups), ChunkStatistics())
    arrays = [array for part in groups for array in part.arrays]
    loaded, lazy = (sum(getattr(part, name) for part in groups) for name in ("loaded", "lazy"))
    gaps = list(dict.fromkeys(gap for part in groups for gap in part.gaps))
    more = f"; and {len(gaps) - SHOWN_GAPS:,} more" if len(gaps) > SHOWN_GAPS else ""
    return {
        "Values": format_bytes(sum(array.nbytes for array in arrays)),
        "Stored": format_stored(statistics) if statistics.stored else None,
        "Missing": f"{statistics.missing:,} chunks" if statistics.missing else None,
        "Not loaded": f"references of {statistics.unread:,} chunks" if statistics.unread else None,
        "References": f"{format_bytes(sum(a.nbytes_virtual for a in arrays))} of memory",
        "In memory": format_count(loaded, "other variable") if loaded else None,
        "Lazy": format_count(lazy, "other variable") if lazy else None,
        "Gaps": "; ".join(gaps[:SHOWN_GAPS]) + more if gaps else None,
    }


def _draw_pictures(virtual: Sequence[VariableEntry], most: int = MAX_PICTURES) -> list[Block]:
    """Return a section with a picture for each distinct chunk grid."""
    groups: dict[Hashable, list[VariableEntry]] = {}
    for entry in virtual[:SHOWN_VARIABLES]:
        array, bins = entry.array, bin_chunks(entry.array)
        boxes = tuple((f.start, f.axes) for f in array.fragments)
        # a single pipeline has no colour, so variables may differ in it, as by scale and offset
        has_one_pipeline = len(array.pipelines) == 1
        encodings = array.pipelines[0].storage if has_one_pipeline else array.pipelines
        drawn_as = (bins.axes, bins.encodings, bins.is_assumed, bins.counts.tobytes())
        cut = entry.dims, array.shape, boxes, encodings, drawn_as
        groups.setdefault(cut, []).append(entry)
    chosen = list(groups.values())[:most]
    drawn = list[Block]()
    for group in chosen:
        names = format_names((entry.name for entry in group), SHOWN_NAMES)
        total = sum((entry.statistics for entry in group), ChunkStatistics())
        body = describe_arrays([entry.array for entry in group], total, group[0].dims)
        is_open = len(drawn) < OPEN_PICTURES
        drawn.append(Section(names, [body], f"({group[0].shape})", is_open))
    more = len(virtual) - sum(map(len, chosen))
    note = f"the chunks of {format_count(more, 'more variable')} are not drawn"
    return [*drawn, note] if more else drawn


def _describe_variables(virtual: Sequence[VariableEntry], most: int = SHOWN_VARIABLES) -> Section:
    head = ("variable", "dimensions", "type", "chunk", "chunks", "missing", "stored", "values")
    rows = [_describe_variable(table) for table in virtual[:most]]
    table = Table(head, rows, range(4, len(head)), most, len(virtual))
    return Section("Variables", [table], f"{len(virtual):,}", is_open=False)


def _describe_variable(entry: VariableEntry) -> tuple[object, ...]:
    statistics, array = entry.statistics, entry.array
    return (
        element("b", entry.name),
        entry.shape,
        array.dtype,
        entry.chunks,
        f"{array.nchunks:,}",
        f"{statistics.missing:,}" if not statistics.unread else "not loaded",
        format_bytes(statistics.stored) if statistics.stored else "",
        format_bytes(array.nbytes),
    )
