"""``ds.virtual.plot``: matplotlib plots of the references of a virtual dataset.

They show which file covers which part of a dimension, the chunks of a variable, and the sizes of
variables, as stored and as decoded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.display import (
    ChunkStatistics,
    compute_statistics,
    format_chunk_lengths,
    list_encodings,
)
from virtualds.arrays.sources import (
    INLINE_URL,
    SEVERAL_ENCODINGS,
    ChunkPlane,
    Coverage,
    find_coverage,
)
from virtualds.chunks.columns import Ints
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.datasets.axis_cells import NUMPY_CALENDAR, AxisCells, Span
from virtualds.errors import UNITS, format_bytes, format_count, without_secrets
from virtualds.importing import import_package
from virtualds.options import format_suggestion
from virtualds.pictures.html import GAP, SERIES, UNKNOWN, Shade, get_shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch


WIDTH = 9.0
"""Width of a new figure in inches."""
LONG_NAME_LENGTH = 24
"""Number of characters above which names beside an axis are shortened further."""
MAX_NAME_LENGTH = 40
"""Maximum number of characters of a name beside an axis."""
LEGEND_WIDTH = 64
"""Maximum number of characters in a line of a legend."""
LEGEND_OFFSET = 42
"""Distance in points from an axis to the legend below its tick labels and label."""

EMPTY = Shade("empty", "none", "none")
"""The background of the axes, for ranges where the coordinate has no values."""

IN_SET = "(in the set)"
"""The label of chunks that are stored in the set itself."""

Floats = npt.NDArray[np.float64]


def make_axes(purpose: str, ax: Axes | None, height: float) -> Axes:
    """Return ``ax``, or the axes of a new figure with a height in inches."""
    pyplot = import_package("matplotlib.pyplot", purpose, "drawing")
    if ax is not None:
        return ax
    new_axes: Axes = pyplot.subplots(figsize=(WIDTH, height), layout="constrained")[1]
    return new_axes


def get_line_colour(ax: Axes) -> Any:
    """Return the colour of lines on axes: that of their frame."""
    return ax.spines["left"].get_edgecolor()


def get_colour(ax: Axes, shade: Shade) -> str:
    """Return the colour of a shade on light or dark axes, or "none" for a gap."""
    from matplotlib.colors import to_hex, to_rgb

    if shade is GAP:
        return "none"
    if shade is EMPTY:
        return to_hex(ax.get_facecolor())
    return shade.light if sum(to_rgb(ax.get_facecolor())) > 1.5 else shade.dark


def add_rectangles(
    ax: Axes,
    sides: npt.ArrayLike,
    shade: Shade,
    *,
    line_width: float = 0.0,
    spans_axes: bool = False,
    **properties: Any,
) -> PolyCollection:
    """Add rectangles of one shade.

    ``sides`` has the left, right, bottom and top of each. ``line_width``, in points, keeps narrow
    rectangles visible. With ``spans_axes``, bottom and top are fractions of the height of the axes.
    ``properties`` are passed to `PolyCollection`.
    """
    from matplotlib.collections import PolyCollection

    left, right, bottom, top = np.asarray(sides, np.float64).reshape(-1, 4).T
    corners: Any = np.stack([left, bottom, left, top, right, top, right, bottom], axis=1)
    collection = PolyCollection(
        corners.reshape(-1, 4, 2),
        facecolors=get_colour(ax, shade),
        edgecolors=get_line_colour(ax) if shade.hatch else get_colour(ax, shade),
        linewidths=line_width,
        hatch=shade.hatch or None,
        transform=ax.get_xaxis_transform() if spans_axes else ax.transData,
        **properties,
    )
    ax.add_collection(collection)
    return collection


def make_legend_entry(ax: Axes, shade: Shade, description: str) -> Patch:
    """Return the patch of a shade for a legend."""
    from matplotlib.patches import Patch

    colours = {"facecolor": get_colour(ax, shade), "edgecolor": get_line_colour(ax)}
    return Patch(**colours, hatch=shade.hatch * 2, label=description, lw=0.5)


def add_legend(ax: Axes, entries: Sequence[Patch], **placement: Any) -> None:
    """Add a legend unless it has no entries. Labels have at most two lines, and no mathtext."""
    if entries:
        # matplotlib omits labels that begin with an underscore, so set the texts afterwards
        legend = ax.legend(entries, ["-"] * len(entries), fontsize="small", **placement)
        for text, entry in zip(legend.get_texts(), entries, strict=True):
            label = str(entry.get_label())
            lines = wrap(label, LEGEND_WIDTH, max_lines=2, placeholder=" …")
            text.set(text="\n".join(lines) or label, parse_math=False)


def add_legend_below(ax: Axes, entries: Sequence[Patch]) -> None:
    """Add a legend below the label of the horizontal axis, outside of the axes."""
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.figure
    offset = ScaledTranslation(0, -LEGEND_OFFSET / 72, figure.dpi_scale_trans)
    placement: Any = {"bbox_to_anchor": (0, 0), "bbox_transform": ax.transAxes + offset}
    add_legend(ax, entries, loc="upper left", borderaxespad=0, **placement)


def set_title(ax: Axes, title: str) -> None:
    """Set the title, without mathtext, unless the user has set one."""
    if not any(ax.get_title(loc=loc) for loc in ("left", "center", "right")):
        ax.set_title(title, parse_math=False, fontsize="medium")


def set_names(ax: Axes, positions: Sequence[float], names: Sequence[str]) -> None:
    """Label positions of the vertical axis with names, without mathtext."""
    ax.set_yticks(positions, names, parse_math=False)
    ax.tick_params("y", length=0)


def configure_axis(ax: Axes, cells: AxisCells, label: str, side: str = "x") -> None:
    """Set the limits, the label and the ticks of an axis, with dates if its cells are dates."""
    axis = ax.xaxis if side == "x" else ax.yaxis
    axis.set_label_text(label, parse_math=False)
    if cells.low.size:
        ends = float(cells.low.min()), float(cells.high.max())
        ax.set(**{f"{side}lim": ends[::-1] if side == "y" and cells.kind == "positions" else ends})
    if cells.kind == "positions":
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(integer=True))
    elif cells.kind == "dates":
        _format_date_ticks(axis, cells)


def _format_date_ticks(axis: Any, cells: AxisCells) -> None:
    """Label the ticks of an axis in days since 1970 with dates."""
    from matplotlib import dates
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    dates_module: Any = dates
    if cells.calendar == NUMPY_CALENDAR and np.datetime64(
        dates_module.get_epoch()
    ) == np.datetime64(0, "D"):
        # with fewer ticks, matplotlib finds no interval for spans such as four years
        locator = dates_module.AutoDateLocator(minticks=3, maxticks=7)
        axis.set_major_locator(locator)
        axis.set_major_formatter(dates_module.ConciseDateFormatter(locator))
        return
    # matplotlib supports one calendar, and one epoch at a time
    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda number, _: cells.format_position(round(number))))


def shorten_urls(urls: Sequence[str]) -> tuple[str, list[str]]:
    """Return the common folder of all urls, and the remainder of each url.

    If the remainders are long, they are shortened further to a common separator.

    Examples
    --------
    >>> shorten_urls(["s3://bucket/2001/a.nc", "s3://bucket/2002/a.nc"])
    ('s3://bucket/', ['2001/a.nc', '2002/a.nc'])
    >>> shorten_urls([f"/a_long_name_of_an_experiment_{n}.nc" for n in (1, 2)])
    ('/a_long_name_of_an_experiment_', ['…1.nc', '…2.nc'])
    """
    urls = [without_secrets(url) for url in urls]
    files = [url for url in urls if url != INLINE_URL] or [""]
    # a common prefix of the smallest and the largest string is a prefix of all strings
    pairs = enumerate(zip(min(files), max(files), strict=False))
    shared = next((n for n, (a, b) in pairs if a != b), len(min(files)))
    end, mark = files[0].rfind("/", 0, shared) + 1, ""
    separator = re.search(r".*[^0-9A-Za-z]", files[0][:shared])
    if separator and len(files) > 1 and max(map(len, files)) - end > LONG_NAME_LENGTH:
        end, mark = separator.end(), "…"
    return files[0][:end], [mark + url[end:] if url != INLINE_URL else IN_SET for url in urls]


def shorten_name(name: str) -> str:
    """Return a name on one line, with an ellipsis in the middle if it is long."""
    line = " ".join(name.split())
    if len(line) <= MAX_NAME_LENGTH:
        return line
    return f"{line[: MAX_NAME_LENGTH // 2 - 2]}…{line[1 - MAX_NAME_LENGTH // 2 :]}"


# ---------------------------------------------------------------------- sizes

MAX_BARS = 24
"""Maximum number of bar pairs; if there are more variables, the smallest share one."""
STORED, DECODED = SERIES[0], GAP


class VariableSize(NamedTuple):
    """Bytes of the chunks of a variable, as stored and as decoded."""

    name: str
    stored: int
    decoded: int

    @classmethod
    def of(cls, name: str, statistics: ChunkStatistics) -> VariableSize:
        """Return the size of a variable from the statistics of its chunks."""
        return cls(name, statistics.stored, statistics.decoded)

    def __str__(self) -> str:
        ratio = f", ratio {self.decoded / self.stored:,.1f}" if self.stored else ""
        return f"{format_bytes(self.stored)} of {format_bytes(self.decoded)}{ratio}"


def draw_sizes(sizes: Sequence[VariableSize], ax: Axes | None) -> Axes:
    """Draw two bars for each variable, the largest first."""
    bars = sorted(sizes, key=lambda size: -max(size.stored, size.decoded))
    if len(bars) > MAX_BARS:
        small = bars[MAX_BARS - 1 :]
        stored, decoded = (sum(column) for column in list(zip(*small, strict=True))[1:])
        bars[MAX_BARS - 1 :] = [VariableSize(f"{len(small):,} others", stored, decoded)]
    ax = make_axes("ds.virtual.plot.sizes", ax, 1.5 + 0.34 * len(bars))
    rows = np.arange(len(bars))
    for shade, half, kind in ((DECODED, 0.36, "decoded"), (STORED, 0.22, "stored")):
        right = np.array([getattr(bar, kind) for bar in bars], float)
        sides = np.stack([np.zeros(len(bars)), right, rows - half, rows + half], axis=1)
        add_rectangles(ax, sides, shade, line_width=0.6, gid=kind)
    for row, bar in enumerate(bars):
        position = (max(bar.stored, bar.decoded), row)
        offset: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(str(bar), position, **offset, fontsize="small")
    ax.set_ylim(len(bars) - 0.5, -0.5)
    ax.spines[["top", "right"]].set_visible(False)
    _format_byte_ticks(ax, max(max(bar.stored, bar.decoded) for bar in bars))
    set_names(ax, rows.tolist(), [shorten_name(bar.name) for bar in bars])
    entries = [make_legend_entry(ax, STORED, "stored"), make_legend_entry(ax, DECODED, "decoded")]
    add_legend(ax, entries, loc="lower right")
    total = VariableSize("", sum(s.stored for s in sizes), sum(s.decoded for s in sizes))
    count = format_count(len(sizes), "virtual variable")
    set_title(ax, f"{count}: {total}")
    return ax


def _format_byte_ticks(ax: Axes, longest: int) -> None:
    """Set limits with space for labels after the bars, and ticks at round numbers of bytes."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    power = min((len(str(longest)) - 1) // 3, len(UNITS) - 1)
    unit, name = 1000**power, UNITS[power]
    ticks = MaxNLocator(5, integer=not power).tick_values(0, longest / unit)
    ax.set_xlim(0, longest * 1.55 or 1)
    ax.xaxis.set_major_locator(FixedLocator(ticks * unit))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g} {name}")


# ---------------------------------------------------------------------- coverage

MAX_NAMES = 24
"""Maximum number of rows that are all labelled. If there are more, `SOME_NAMES` are."""
SOME_NAMES = 10

FILE, CHUNKS_IN_SET = SERIES[0], SERIES[5]
MISSING_TIMES, OVERLAP = SERIES[1], SERIES[6]


def draw_coverage(
    coverage: Coverage, cells: AxisCells, dim: str, label: str, ax: Axes | None
) -> Axes:
    """Draw one row per file, and bands for gaps and overlaps."""
    count = len(coverage.urls)
    ax = make_axes("ds.virtual.plot.coverage", ax, min(max(1.7 + 0.22 * count, 2.4), 5.5))
    configure_axis(ax, cells, label)
    ax.set_ylim(max(count, 1) - 0.5, -0.5)
    files, low, high = cells.split_ranges(coverage.start, coverage.stop)
    number = coverage.file[files]
    half, line_width = (0.38, 0.8) if count <= MAX_NAMES else (0.5, 2.0)
    is_in_set = np.array([url == INLINE_URL for url in coverage.urls], bool)[number]
    for shade, mask in ((FILE, ~is_in_set), (CHUNKS_IN_SET, is_in_set)):
        sides = np.stack([low, high, number - half, number + half], axis=1)
        if mask.any():
            add_rectangles(ax, sides[mask], shade, line_width=line_width, gid="files")
    uncovered = [cells.find_span(*ends) for ends in coverage.find_uncovered()]
    bands = (
        Band(GAP, "gap", " without file: fill value", uncovered),
        Band(MISSING_TIMES, "gap", " in the dates", list(cells.missing)),
        Band(OVERLAP, "overlap", "", list(cells.doubled)),
    )
    visible = [band for band in bands if band.spans]
    for band in visible:
        ends = [(*span, 0.0, 1.0) for span in band.spans]
        add_rectangles(
            ax, ends, band.shade, line_width=0.8, spans_axes=True, alpha=0.55, zorder=0.5
        )
    add_legend_below(
        ax, [make_legend_entry(ax, band.shade, band.describe(cells)) for band in visible]
    )
    counts: Counter[str] = Counter()
    for band in visible:
        counts[band.kind] += len(band.spans)
    summary = ", ".join(format_count(n, kind) for kind, n in counts.items())
    set_title(ax, f"{format_count(count, 'file')} along {dim}: {summary or 'no gap'}")
    _label_rows(ax, coverage.urls)
    return ax


class Band(NamedTuple):
    """Ranges of one kind; ``suffix`` follows the kind in the legend."""

    shade: Shade
    kind: str
    suffix: str
    spans: Sequence[Span]

    def describe(self, cells: AxisCells) -> str:
        """Return the number of ranges, or the position if there is only one."""
        if len(self.spans) > 1:
            return f"{format_count(len(self.spans), self.kind)}{self.suffix}"
        start, stop = (cells.format_position(end) for end in self.spans[0])
        return f"{format_count(1, self.kind)}{self.suffix}, {start} to {stop}"


def _label_rows(ax: Axes, urls: Sequence[str]) -> None:
    """Label all rows, or some of them if there are many."""
    folder, names = shorten_urls(urls)
    rows = range(len(urls))
    if len(urls) > MAX_NAMES:
        rows = np.linspace(0, len(urls) - 1, SOME_NAMES).round().astype(int).tolist()
    set_names(ax, rows, [shorten_name(names[row]) for row in rows])
    # only the last folder fits beside the axis
    last = re.search(r"[^/]*/?$", folder.partition("://")[2] or folder)
    ax.set_ylabel(shorten_name(last[0].removeprefix("/")) if last else "", parse_math=False)


# ---------------------------------------------------------------------- chunks

MAX_LINES = 150
"""Maximum number of distinguishable borders of chunks along an axis."""

Sides = Sequence[AxisCells]
"""The cells of the horizontal and of the vertical axis."""


def choose_axes(array: ManifestArray, requested: Sequence[int | None]) -> list[int]:
    """Return two axes to show, or fewer if the array has fewer.

    Axes that are not requested are those with the most chunks.
    """
    edges = [{int(n) for f in array.fragments for n in f.edges(axis)} for axis in range(array.ndim)]
    others = sorted(set(range(array.ndim)) - set(requested), key=lambda axis: -len(edges[axis]))
    chosen = [
        axis if axis is not None else (others.pop(0) if others else None) for axis in requested
    ]
    return [axis for axis in chosen if axis is not None]


def draw_chunks(
    name: str,
    array: ManifestArray,
    axes: Sequence[int],
    cells: Sides,
    labels: Sequence[str],
    ax: Axes | None,
) -> Axes:
    """Draw the chunks of an array along one or two axes on a hatched background."""
    lengths = ", ".join(format_chunk_lengths(array))
    title = f"{name}: {format_count(array.nchunks, 'chunk')} of ({lengths})"
    added_axes = 2 - len(axes)
    for _ in range(added_axes):
        array, axes = array.insert_axis(array.ndim), [*axes, array.ndim]
        cells, labels = [*cells, AxisCells.of_positions(1)], [*labels, ""]
    plane = ChunkPlane.from_array(array, *axes)
    ax = make_axes("ds.virtual.plot.chunks", ax, 2.2 if added_axes else 4.6)
    for axis_name, axis_cells, label in zip("xy", cells, labels, strict=True):
        configure_axis(ax, axis_cells, label, axis_name)
    for axis in (ax.yaxis, ax.xaxis)[:added_axes]:
        axis.set_ticks([])
    ax.patch.set(hatch=GAP.hatch, edgecolor=GAP.light, linewidth=0)
    entries = _draw_boxes(ax, plane, cells, array.pipelines)
    for side in (0, 1):
        _draw_borders(ax, plane, cells, side)
    for side, axis_cells in enumerate(cells):
        # draw the background over gaps in the dates
        if not axis_cells.missing:
            continue
        other = cells[1 - side]
        ends = (float(other.low.min()), float(other.high.max()))
        sides = [(*ends, *gap) if side else (*gap, *ends) for gap in axis_cells.missing]
        # above the borders of chunks, below the frame of the axes
        add_rectangles(ax, sides, EMPTY, gid="empty", zorder=2.2)
        label = f"{format_count(len(axis_cells.missing), 'gap')} in the dates along {labels[side]}"
        entries.append(make_legend_entry(ax, EMPTY, label))
    add_legend_below(ax, entries)
    set_title(ax, f"{title}, {plane.missing:,} missing" if plane.missing else title)
    return ax


def _draw_boxes(
    ax: Axes, plane: ChunkPlane, cells: Sides, pipelines: Sequence[CodecPipeline]
) -> list[Patch]:
    """Draw rectangles of chunks with the same encoding, and return the legend entries."""
    # gaps in the axes cut boxes into rectangles; each has a row in `sides`, and its box in `box`
    x_box, left, right = cells[0].split_ranges(*plane.boxes[:, :2].T)
    x_piece, low, high = cells[1].split_ranges(*plane.boxes[x_box, 2:].T)
    sides = np.stack([left[x_piece], right[x_piece], low, high], axis=1)
    box = x_box[x_piece]
    names, encodings = _number_encodings(plane.codes, pipelines)
    entries = []
    for encoding in np.unique(encodings).tolist():
        shade = UNKNOWN if encoding == SEVERAL_ENCODINGS else get_shade(encoding)
        label = "several encodings" if encoding == SEVERAL_ENCODINGS else names[encoding]
        add_rectangles(ax, sides[encodings[box] == encoding], shade, gid=label)
        entries.append(make_legend_entry(ax, shade, label))
    if plane.holes.any():
        add_rectangles(ax, sides[plane.holes[box]], GAP, gid="holes")
        entries.append(make_legend_entry(ax, GAP, "some chunks missing"))
    if plane.has_gaps:
        entries.append(make_legend_entry(ax, GAP, "no chunk: fill value"))
    return entries


def _number_encodings(codes: Ints, pipelines: Sequence[CodecPipeline]) -> tuple[list[str], Ints]:
    """Return the names of the visible encodings, and the index of the encoding of each box."""
    visible = list(dict.fromkeys(pipelines[n] for n in np.unique(codes[codes >= 0]).tolist()))
    names = list_encodings(visible)
    numbers = {pipeline: min(n, len(names) - 1) for n, pipeline in enumerate(visible)}
    # negative codes, of boxes with several encodings, index from the end
    table = np.array(
        [numbers.get(p, SEVERAL_ENCODINGS) for p in pipelines] + [SEVERAL_ENCODINGS] * 2, np.int64
    )
    return names, table[codes]


def _draw_borders(ax: Axes, plane: ChunkPlane, cells: Sides, side: int) -> None:
    """Draw the borders of chunks along one side, unless there are too many."""
    from matplotlib.collections import LineCollection

    lines: list[tuple[tuple[float, float], ...]] = []
    size = plane.shape[side]
    if len({position for grid in plane.grids for position in grid[side].tolist()}) > MAX_LINES:
        return
    for grid in plane.grids:
        inner = grid[side][(grid[side] > 0) & (grid[side] < size)]
        start, stop = cells[1 - side].find_span(int(grid[1 - side][0]), int(grid[1 - side][-1]))
        for position in cells[side].find_starts(inner).tolist():
            ends = (position, start), (position, stop)
            lines.append((ends[0][::-1], ends[1][::-1]) if side else ends)
    ax.add_collection(LineCollection(lines, colors="white", linewidths=0.6, gid="borders"))


# ---------------------------------------------------------------------- plots


class DatasetPlots:
    """Plots of a virtual dataset: ``ds.virtual.plot``.

    The methods need matplotlib (``pip install matplotlib``) and read no data. They draw on ``ax=``
    or on a new figure, return the `Axes`, and do not call ``plt.show()``. Legends are below the
    axes; in a figure with several axes, ``layout="constrained"`` makes space for them. An existing
    title is not replaced.

    Examples
    --------
    >>> from virtualds import open_virtual_mfdataset
    >>> vds = open_virtual_mfdataset("20*.nc", combine="nested", concat_dim="time")
    >>> vds.virtual.plot.coverage("time").get_title()
    '2 files along time: no gap'
    """

    def __init__(self, dataset: xr.Dataset, arrays: Mapping[Hashable, ManifestArray]) -> None:
        self._dataset = dataset
        self._arrays = arrays

    def __repr__(self) -> str:
        return "<ds.virtual.plot: coverage(dim), chunks(variable) and sizes() draw pictures>"

    def coverage(
        self, dim: Hashable = "time", variable: Hashable | None = None, *, ax: Axes | None = None
    ) -> Axes:
        """Draw which file covers which part of a dimension, with gaps and overlaps.

        Each file has a row from its first to its last position. Hatched bands show where no file
        has values, where times are missing in an otherwise regular coordinate, and where the
        coordinate values of several files overlap.

        Parameters
        ----------
        dim : hashable, default "time"
            The dimension. The axis has the values of its coordinate if they are loaded and sorted
            within each file, otherwise positions.
        variable : hashable, optional
            The variable whose files to show. By default the files of all virtual variables.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default those of a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        UnsupportedError
            matplotlib is not installed.
        ValueError
            No virtual variable has the dimension, or there is no such virtual variable.

        Examples
        --------
        >>> from virtualds import open_virtual_mfdataset
        >>> vds = open_virtual_mfdataset("20*.nc", combine="nested", concat_dim="time")
        >>> ax = vds.virtual.plot.coverage("time")
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['2001.nc', '2002.nc']
        """
        names = self._check_arrays() if variable is None else [self._check_variable(variable)]
        arrays = self._check_dimension(dim, names)
        coverage = find_coverage(self._dataset.sizes[dim], arrays)
        cells = AxisCells.of(self._dataset, dim, coverage.start)
        return draw_coverage(coverage, cells, str(dim), self._label_axis(dim, cells), ax)

    def chunks(
        self,
        variable: Hashable,
        *,
        x: Hashable | None = None,
        y: Hashable | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the chunks of a variable, coloured by encoding.

        Missing chunks, which are read as fill values, are hatched. Gaps in the dates of an
        otherwise regular coordinate are left empty.

        Parameters
        ----------
        variable : hashable
            Name of a virtual variable.
        x, y : hashable, optional
            The dimensions to show. By default those with the most chunks. Each rectangle stands
            for all chunks along the other dimensions.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default those of a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        UnsupportedError
            matplotlib is not installed.
        ValueError
            There is no such virtual variable, or it has no such dimension.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ax = open_virtual_dataset("2001.nc").virtual.plot.chunks("t")
        >>> ax.get_title()
        't: 12 chunks of (1, 6, 8)'
        """
        array = self._arrays[self._check_variable(variable)]
        dims = self._dataset.variables[variable].dims
        if x is not None and x == y:
            raise ValueError(f"ds.virtual.plot.chunks: x and y are both {str(x)!r}; name two")
        for dim in (x, y):
            if dim is not None and dim not in dims:
                dim_list = ", ".join(repr(str(name)) for name in dims) or "no dimension"
                raise ValueError(
                    f"ds.virtual.plot.chunks: {str(variable)!r} has no dimension {str(dim)!r}; it "
                    f"has {dim_list}{format_suggestion(dim, dims)}"
                )
        axes = choose_axes(array, [None if dim is None else dims.index(dim) for dim in (x, y)])
        cells = [AxisCells.of(self._dataset, dims[axis]) for axis in axes]
        labels = [
            self._label_axis(dims[axis], axis_cells)
            for axis, axis_cells in zip(axes, cells, strict=True)
        ]
        return draw_chunks(str(variable), array, axes, cells, labels, ax)

    def sizes(self, *, ax: Axes | None = None) -> Axes:
        """Draw the sizes of the chunks of each virtual variable, as stored and as decoded.

        Missing chunks are not counted. References are read from the set if they are not in memory.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default those of a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        UnsupportedError
            matplotlib is not installed.
        ValueError
            The dataset has no virtual variable.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ax = open_virtual_dataset("2001.nc").virtual.plot.sizes()
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['t']
        """
        sizes = [
            VariableSize.of(str(name), compute_statistics(array, read=True))
            for name, array in self._check_arrays().items()
        ]
        return draw_sizes(sizes, ax)

    def _check_arrays(self) -> Mapping[Hashable, ManifestArray]:
        """Return the virtual arrays, or raise an error if there are none."""
        if not self._arrays:
            raise ValueError(
                "ds.virtual.plot: the dataset has no virtual variable, only values in memory or "
                "computed by dask; open it with loadable_variables=[] to leave values in the files"
            )
        return self._arrays

    def _check_variable(self, variable: Hashable) -> Hashable:
        """Return the name of a virtual variable, or raise an error if it is not one."""
        if variable in self._check_arrays():
            return variable
        if variable in self._dataset.variables:
            reason = "its values are loaded or computed, so it has no chunks"
        else:
            reason = "the dataset has no such variable"
        names = ", ".join(repr(str(name)) for name in self._arrays)
        raise ValueError(
            f"ds.virtual.plot: {str(variable)!r} is not a virtual variable: {reason}; give one "
            f"of {names}{format_suggestion(variable, self._arrays)}"
        )

    def _check_dimension(
        self, dim: Hashable, names: Iterable[Hashable]
    ) -> list[tuple[ManifestArray, int]]:
        """Return the arrays that have a dimension, with its axis, or raise an error."""
        dims_by_name = {name: self._dataset.variables[name].dims for name in names}
        array_axes = [
            (self._arrays[name], dims.index(dim))
            for name, dims in dims_by_name.items()
            if dim in dims
        ]
        if not array_axes:
            all_dims = list(dict.fromkeys(str(d) for dims in dims_by_name.values() for d in dims))
            dim_list = ", ".join(map(repr, all_dims)) or "no dimension"
            raise ValueError(
                f"ds.virtual.plot.coverage: no virtual variable has the dimension {str(dim)!r}; "
                f"they have {dim_list}{format_suggestion(dim, all_dims)}"
            )
        return array_axes

    def _label_axis(self, dim: Hashable, cells: AxisCells) -> str:
        """Return the label of an axis, with units."""
        if cells.kind == "positions":
            return f"position along {dim}"
        if cells.kind == "hours":
            return f"{dim} (hours)"
        units = self._dataset.variables[dim].attrs.get("units") if cells.kind == "numbers" else None
        return f"{dim} ({units})" if units else str(dim)
