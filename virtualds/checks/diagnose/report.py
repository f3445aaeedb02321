"""The results of a diagnosis, and their report.

The results are eras (files with the same structure), their stretches (consecutive files of one
era), and differences. The report draws the eras on a timeline, and has a card for each group of
differences with the verdict "costs" or "blocks".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.datasets.axis_cells import to_numbers
from virtualds.datasets.lazy import get_virtual_array, is_lazy
from virtualds.datasets.structure import compute_steps, find_gaps_among, text_of
from virtualds.errors import format_count, format_names, public, without_secrets
from virtualds.pictures import (
    Block,
    Card,
    Code,
    Heading,
    Report,
    Section,
    Table,
    Words,
    format_remainder,
)
from virtualds.pictures.html import (
    CHANGED,
    GAP,
    MISSING,
    OK,
    SERIES,
    UNKNOWN,
    Markup,
    Shade,
    Span,
    draw_labels,
    draw_legend,
    draw_strip,
    element,
)

Verdict = Literal["combines", "costs", "blocks"]
VERDICTS: tuple[Verdict, ...] = ("blocks", "costs", "combines")
"""Verdicts of differences, the worst first."""


@public
@dataclass(frozen=True)
class Era:
    """Files with the same structure.

    Parameters
    ----------
    files : int
        Number of files.
    first_file, last_file : str
        The first and the last file in the given order.
    start, stop : str or None
        The lowest and the highest value of the joined coordinate, if it has values.
    reason : str or None
        The reason why the files cannot be opened, or None.

    Raises
    ------
    ValueError
        The era has no file.

    Examples
    --------
    >>> Era(2, "2001.nc", "2002.nc").files
    2
    """

    files: int
    first_file: str
    last_file: str
    start: str | None = None
    stop: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.files < 1:
            raise ValueError(f"Era: {self.files} files; an era has at least one")


@dataclass(frozen=True)
class EraStretch:
    """Consecutive files of one era.

    Parameters
    ----------
    era : int
        The index of the era in the diagnosis.
    files : int
        Number of files.
    start, stop : str
        The lowest and the highest value of the joined coordinate, or the first and the last file.
    low, high : float
        The position from 0 to 1 along the joined coordinate, or along the files in order.

    Raises
    ------
    ValueError
        The position is not between 0 and 1.

    Examples
    --------
    >>> EraStretch(0, 12, "2001-01-01", "2001-12-01", 0.0, 0.5).files
    12
    """

    era: int
    files: int
    start: str
    stop: str
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"EraStretch: {self.low} to {self.high} is not a part of 0 to 1")


@public
@dataclass(frozen=True)
class Difference:
    """A difference between files.

    Parameters
    ----------
    variable : str
        Name of the variable or dimension; empty for the dataset or the files.
    aspect : str
        The property that differs, such as ``"data type"``, ``"chunks along x"`` or ``"attribute
        history"``.
    before, after : str
        The property in two consecutive files.
    first_file : str
        The first file with ``after``.
    files : int
        Number of files with ``after``.
    verdict : {"combines", "costs", "blocks"}
        Whether the files still combine.
    how : str
        The effect of the difference and its cost, or the error if it blocks.
    remedy : str
        What to do about it; empty if nothing has to be done.
    refused : tuple of str
        Names of the reference formats that cannot store the result.
    code : str
        A line of code for the remedy, or empty. ``files`` is the list of files, and ``vds`` the
        combined dataset.
    against : str
        The previous file, with ``before``.
    leads : bool
        Whether it is a fault of the files, which has to be fixed first.

    Raises
    ------
    ValueError
        The verdict is unknown.

    Examples
    --------
    >>> Difference("t", "codecs", "zlib", "none", "2.nc", 1, "combines", "as it is").verdict
    'combines'
    """

    variable: str
    aspect: str
    before: str
    after: str
    first_file: str
    files: int
    verdict: Verdict
    how: str
    remedy: str = ""
    refused: tuple[str, ...] = ()
    code: str = ""
    against: str = ""
    leads: bool = False

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"Difference: verdict {self.verdict!r}; give one of {VERDICTS}")


TITLES: dict[Verdict, str] = {
    "blocks": "these files do not combine",
    "costs": "they combine, at a cost",
    "combines": "they combine",
}
MAX_ROWS = 20
"""Maximum number of rows of a table that are shown. `Diagnosis.to_dataframe` has all."""
MAX_VALUE_LENGTH = 60
"""Maximum number of characters of a value in a report."""


def shorten_text(text: str, max_length: int = MAX_VALUE_LENGTH) -> str:
    """Return a text on one line, truncated if it is too long.

    Examples
    --------
    >>> shorten_text("a long text", 8)
    'a lon...'
    """
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[: max_length - 3]}..."


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


# ---------------------------------------------------------------------- entries

MAX_NAMES = 5
"""Maximum number of variables that a line names."""


class EntryLine(NamedTuple):
    """Differences that are equal except for the variable."""

    rows: tuple[Difference, ...]

    @property
    def first(self) -> Difference:
        """The first difference, which has the common fields."""
        return self.rows[0]

    @property
    def names(self) -> str:
        """The names of the variables."""
        return format_names((row.variable for row in self.rows), MAX_NAMES)


class Entry(NamedTuple):
    """Lines with the same verdict, remedy and code, which form a card."""

    lines: tuple[EntryLine, ...]

    @property
    def first(self) -> Difference:
        """The first difference, which has the common remedy."""
        return self.lines[0].first


def fold_differences(rows: Iterable[Difference]) -> list[Entry]:
    """Group differences into entries, in the order of their first differences.

    Examples
    --------
    >>> rows = [Difference(n, "codecs", "a", "b", "2.nc", 1, "costs", "how", "do") for n in "tu"]
    >>> [line.names for entry in fold_differences(rows) for line in entry.lines]
    ['t, u']
    """
    rows_by_content: dict[Difference, list[Difference]] = {}
    for row in rows:
        rows_by_content.setdefault(replace(row, variable=""), []).append(row)
    lines_by_fix: dict[tuple[object, ...], list[EntryLine]] = {}
    for row, equal_rows in rows_by_content.items():
        # faults, and differences without a remedy, are entries of their own
        is_single = row.leads or not row.remedy
        fix = (row,) if is_single else (row.verdict, row.remedy, row.code)
        lines_by_fix.setdefault(fix, []).append(EntryLine(tuple(equal_rows)))
    return [Entry(tuple(lines)) for lines in lines_by_fix.values()]


# ---------------------------------------------------------------------- spans of files

Floats = npt.NDArray[np.float64]
GAP_TOLERANCE = 1e-9
"""Maximum gap that is a rounding error, as a fraction of the line."""


class CoordinateSpan(NamedTuple):
    """The lowest and the highest value of a coordinate in a file.

    For times, ``steps`` are the shortest and the longest step in the file in seconds.
    """

    start: Any
    stop: Any
    steps: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"{text_of(self.start)} to {text_of(self.stop)}"


SpannedFile = tuple[int, CoordinateSpan]
"""The index of a file, and its span."""


def find_spans(dataset: xr.Dataset) -> dict[str, CoordinateSpan]:
    """Return the spans of the loaded dimension coordinates."""
    return {
        str(name): span
        for name, variable in dataset.variables.items()
        if variable.dims == (name,)
        and not (get_virtual_array(variable) is not None or is_lazy(variable))
        and (span := find_span(variable.values)) is not None
    }


def find_span(values: Any) -> CoordinateSpan | None:
    """Return the span of a coordinate, or None if it is empty."""
    if not values.size:
        return None
    first, last = values[0], values[-1]
    start, stop = (first, last) if first <= last else (last, first)
    steps: tuple[float, ...] = ()
    if values.size > 1 and (values.dtype.kind == "M" or hasattr(first, "calendar")):
        seconds = compute_steps(values if first <= last else values[::-1])
        steps = (float(seconds.min()), float(seconds.max()))
    return CoordinateSpan(start, stop, steps)


def find_time_gaps(files: Sequence[SpannedFile]) -> Iterator[tuple[int, int]]:
    """Yield pairs of files with missing times between them, or a file twice for a gap in it."""
    try:
        ordered = sorted(files, key=lambda item: (item[1].start, item[1].stop))
        steps = [(step, (n, n)) for n, span in ordered for step in span.steps]
        steps += [
            (float(compute_steps(np.array([span.stop, next_span.start]))[0]), (n, next_n))
            for (n, span), (next_n, next_span) in pairwise(ordered)
        ]
    except TypeError:
        return  # dates of two calendars cannot be subtracted
    yield from (steps[n][1] for n in find_gaps_among([step for step, _ in steps]))


def find_overlapping(files: Sequence[SpannedFile]) -> Iterator[tuple[int, int]]:
    """Yield pairs of files of which the second starts no later than the first ends."""
    try:
        latest: SpannedFile | None = None
        for number, span in sorted(files, key=lambda item: (item[1].start, item[1].stop)):
            if latest is not None and span.start <= latest[1].stop:
                yield latest[0], number
            if latest is None or span.stop > latest[1].stop:
                latest = number, span
    except TypeError:
        return  # dates of two calendars cannot be ordered, which is another difference


def find_disordered(files: Sequence[SpannedFile]) -> Iterator[tuple[int, int]]:
    """Yield pairs of consecutive files whose order is opposite to that of most pairs."""
    starts = [span.start for _, span in files]
    try:
        are_increasing = [bool(a <= b) for a, b in pairwise(starts)]
    except TypeError:
        return
    if all(are_increasing) or not any(are_increasing):
        return
    majority = sum(are_increasing) * 2 >= len(are_increasing)
    pairs = zip(pairwise(number for number, _ in files), are_increasing, strict=True)
    yield from (pair for pair, is_increasing in pairs if is_increasing != majority)


# ---------------------------------------------------------------------- eras


class EraFile(NamedTuple):
    """A file of an era, and its span along the joined coordinate if it is known."""

    name: str
    era: int
    is_readable: bool = True
    span: CoordinateSpan | None = None


class _FileSpan(NamedTuple):
    """The start and end of a file on the line, and their labels."""

    era: int
    low: float
    high: float
    start: str
    stop: str


def arrange_eras(files: Sequence[EraFile], is_time: bool) -> tuple[EraStretch, ...]:
    """Return stretches of consecutive files of the same era, by era.

    Their positions are along the joined coordinate if all readable files have a span, otherwise
    along the files in order.
    """
    spans = _find_file_spans(files, is_time)
    if spans is None:
        spans = [_FileSpan(f.era, n, n + 1, f.name, f.name) for n, f in enumerate(files)]
    origin = min((span.low for span in spans), default=0.0)
    length = max((span.high for span in spans), default=1.0) - origin or 1.0
    scaled = sorted(
        span._replace(low=(span.low - origin) / length, high=(span.high - origin) / length)
        for span in spans
    )
    stretches: list[EraStretch] = []
    for era, members in groupby(scaled, key=lambda span: span.era):
        # spans that touch or overlap are one stretch
        runs: list[list[_FileSpan]] = []
        end = -1.0
        for span in members:
            if span.low > end + GAP_TOLERANCE:
                runs.append([])
            runs[-1].append(span)
            end = max(end, span.high)
        for run in runs:
            last = max(run, key=lambda span: span.high)
            high = min(max(last.high, run[0].low), 1.0)
            stretches.append(EraStretch(era, len(run), run[0].start, last.stop, run[0].low, high))
    return tuple(stretches)


def _find_file_spans(files: Sequence[EraFile], is_time: bool) -> list[_FileSpan] | None:
    """Return the positions of files along the joined coordinate, or None if one has no span.

    Unreadable files are placed between their neighbours in the given order.
    """
    readable = [file for file in files if file.is_readable]
    spans = [file.span for file in readable if file.span is not None]
    if not spans or len(spans) < len(readable):
        return None
    ends = to_numbers(np.array([end for span in spans for end in (span.start, span.stop)]))
    if ends is None or not np.isfinite(ends.numbers).all():
        return None
    low, high = _find_bounds(ends.numbers[::2], ends.numbers[1::2], spans, is_time)
    # the bounds of unreadable files, by the number of readable files before them
    unreadable_low, unreadable_high = [low[0], *high.tolist()], [*low.tolist(), high[-1]]
    file_spans, number = [], 0
    for name, era, is_readable, _ in files:
        if is_readable:
            labels = text_of(spans[number].start), text_of(spans[number].stop)
            file_spans.append(_FileSpan(era, float(low[number]), float(high[number]), *labels))
            number += 1
        else:
            start, stop = unreadable_low[number], unreadable_high[number]
            file_spans.append(_FileSpan(era, start, max(start, stop), name, name))
    return file_spans


def _find_bounds(
    starts: Floats, stops: Floats, spans: Sequence[CoordinateSpan], is_time: bool
) -> tuple[Floats, Floats]:
    """Return the bounds of files. A file extends to the start of the next one or of a gap."""
    unique_starts = np.append(np.unique(starts), np.nan)
    next_starts = unique_starts[np.searchsorted(unique_starts[:-1], stops, side="right")]
    gaps = find_time_gaps(list(enumerate(spans))) if is_time else ()
    next_starts[[first for first, second in gaps if first != second]] = np.nan
    steps = (next_starts - stops)[np.isfinite(next_starts)]
    step = float(np.median(steps)) if steps.size else float((stops - starts).max()) / 8 or 1.0
    return starts, np.where(np.isnan(next_starts), stops + step, next_starts)


# ---------------------------------------------------------------------- report

Shorten = Callable[[str], str]
"""A function that removes the common folder from the path of a file."""

VERDICT_SHADES: dict[Verdict, tuple[str, Shade]] = {
    "blocks": ("✗", MISSING),
    "costs": ("!", CHANGED),
    "combines": ("✓", OK),
}
"""The sign and the shade of each verdict."""

WHERE_ALL = "to_dataframe() has all"


@public
@dataclass(frozen=True, repr=False)
class Diagnosis(Report):
    """The differences between the files of an archive, and whether the files combine.

    Parameters
    ----------
    files : int
        Number of files.
    examined : int
        Number of examined files: all, or a sample.
    joined : tuple of str
        The dimensions to join along.
    reason : str
        The reason for the choice of these dimensions.
    formats : tuple of str
        Names of the reference formats that can store the results of all trials.
    eras : tuple of Era
        Files with the same structure, in the order of their first files. Eras of files that cannot
        be opened come last.
    differences : tuple of Difference
        The differences, the worst first.
    stretches : tuple of EraStretch
        The positions of the eras, by era; an era that recurs has several.

    Raises
    ------
    ValueError
        The numbers of files of the eras do not add up to ``examined``.

    Examples
    --------
    >>> era = Era(2, "2001.nc", "2002.nc")
    >>> diagnosis = Diagnosis(2, 2, ("time",), "as given", ("zarr-v3",), (era,), ())
    >>> diagnosis.blocks, len(diagnosis.to_dataframe())
    (False, 0)
    """

    files: int
    examined: int
    joined: tuple[str, ...]
    reason: str
    formats: tuple[str, ...]
    eras: tuple[Era, ...]
    differences: tuple[Difference, ...]
    stretches: tuple[EraStretch, ...] = ()

    _title = "Diagnosis"

    def __post_init__(self) -> None:
        if sum(era.files for era in self.eras) != self.examined:
            raise ValueError(
                f"Diagnosis: the eras hold {sum(era.files for era in self.eras)} files, but "
                f"{self.examined} were examined; every file belongs to one era"
            )

    @property
    def blocks(self) -> bool:
        """Whether a difference prevents the files from combining."""
        return any(d.verdict == "blocks" for d in self.differences)

    def of(self, verdict: Verdict) -> tuple[Difference, ...]:
        """Return the differences with a verdict."""
        return tuple(d for d in self.differences if d.verdict == verdict)

    def to_dataframe(self) -> pd.DataFrame:
        """Return a table with one row per difference."""
        columns = list(Difference.__dataclass_fields__)
        return pd.DataFrame([asdict(d) for d in self.differences], columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        return super().to_dict() | {"blocks": self.blocks}

    def _iterate_blocks(self) -> Iterator[Block]:
        heading, *notes = self._format_heading()
        sign, shade = VERDICT_SHADES[next((v for v in VERDICTS if self.of(v)), "combines")]
        yield Heading(heading, notes, shade, sign)
        yield draw_eras(self.eras, self.stretches, self._shorten)
        yield Section("Eras", [self._describe_eras()], f"{len(self.eras):,}", is_open=False)
        for verdict in VERDICTS[:-1]:
            entries = fold_differences(self.of(verdict))
            cards = [_make_card(entry, self._shorten) for entry in entries[:MAX_ROWS]]
            remainder = format_remainder(len(entries) - MAX_ROWS, WHERE_ALL)
            yield Section(TITLES[verdict].capitalize(), [*cards, remainder], f"{len(entries):,}")
        others = fold_differences(self.of(VERDICTS[-1]))
        rows = [
            (
                *(line.names, row.aspect, shorten_text(row.before), shorten_text(row.after)),
                *(self._shorten(row.first_file), f"{row.files:,}", row.how),
            )
            for entry in others
            for line in entry.lines
            for row in line.rows[:1]
        ]
        head = ("variable", "what", "before", "after", "first file", "files", "result")
        table = Table(head, rows, (5,), MAX_ROWS, rest=WHERE_ALL)
        yield Section("Differences that cost nothing", [table], f"{len(others):,}", is_open=False)

    @property
    def folder(self) -> str:
        """The folder of all files, or "" if they are in different folders."""
        names = [name for era in self.eras for name in (era.first_file, era.last_file)]
        folders = {without_secrets(name).rpartition("/")[0] for name in names}
        return folders.pop() if len(folders) == 1 else ""

    def _shorten(self, file: str) -> str:
        url = without_secrets(file)
        return url.removeprefix(f"{self.folder}/") if self.folder else url

    def _format_heading(self) -> list[str]:
        sample = "" if self.files == self.examined else f", {self.examined:,} of them examined"
        folder = f" in {self.folder}" if self.folder else ""
        dims = ", ".join(map(repr, self.joined)) or "no dimension"
        formats = ", ".join(self.formats) or "none"
        summary = "they combine" + (", at a cost" if self.of("costs") else "")
        if self.blocks:
            summary = "they do not combine"
        elif not self.differences:
            summary = "they combine, and have the same structure"
        return [
            f"{format_count(self.files, 'file')}{folder}{sample}: {summary}",
            f"joined along {dims} ({self.reason})",
            *([] if self.blocks else [f"formats that can hold them: {formats}"]),
        ]

    def _describe_eras(self) -> Table:
        span_title = " x ".join(self.joined) if any(era.start for era in self.eras) else ""
        rows = list[tuple[str, ...]]()
        for number, era in enumerate(self.eras, 1):
            span = f"{era.start} to {era.stop}" if era.start is not None else ""
            if era.reason is not None:
                span = f"cannot be opened: {shorten_text(era.reason)}"
            files = self._shorten(era.first_file), self._shorten(era.last_file)
            rows.append((str(number), f"{era.files:,}", *files, span))
        head = ("era", "files", "first file", "last file", span_title)
        return Table(head, rows, (0, 1), MAX_ROWS, rest=WHERE_ALL)


def _make_card(entry: Entry, shorten: Shorten) -> Card:
    """Return the card of an entry, with a line for each of several differences."""
    row, lines = entry.first, entry.lines
    sign, shade = VERDICT_SHADES[row.verdict]
    title: Words = _format_subject(lines[0])
    note, body = _describe_files(row, shorten), list[Block]()
    if len(lines) > 1:
        title, note = ", ".join(dict.fromkeys(line.first.aspect for line in lines)), ""
    for line in lines[:MAX_ROWS]:
        difference = line.first
        change = (
            Code(shorten_text(difference.before)),
            " -> ",
            Code(shorten_text(difference.after)),
        )
        if len(lines) > 1:
            files = _describe_files(difference, shorten)
            body += [(*_format_subject(line), ": ", *change, ", ", files), f"  {difference.how}"]
        else:
            body += [change, difference.how]
    body.append(format_remainder(len(lines) - MAX_ROWS, WHERE_ALL))
    return Card(title, body, note, shade, sign, row.remedy, row.code)


def _format_subject(line: EntryLine) -> tuple[str, ...]:
    aspect = line.first.aspect
    return (Code(line.names), f": {aspect}") if line.names else (aspect,)


def _describe_files(row: Difference, shorten: Shorten) -> str:
    """Return the first file that differs, the number of such files, and the previous file."""
    against = f", against {shorten(row.against)}" if row.against else ""
    return f"from {shorten(row.first_file)} ({format_count(row.files, 'file')}){against}"


# ---------------------------------------------------------------------- the line of eras

ERA_SHADES = [shade for shade in SERIES if shade is not MISSING]
"""Shades of the first eras. All further eras share another shade, as do unreadable files."""

MAX_LANES = 6
"""Maximum number of lanes for overlapping eras."""
MAX_SPANS = 600
"""Maximum number of distinguishable spans on a line."""
MIN_LABEL_DISTANCE = 0.25
"""Minimum distance between labels as a fraction of the line."""


def draw_eras(eras: Sequence[Era], stretches: Sequence[EraStretch], shorten: Shorten) -> Markup:
    """Draw the eras as a strip with labels and a legend, or as several strips if they overlap."""
    if not stretches:
        return Markup("")
    lanes: list[list[EraStretch]] = []
    for stretch in sorted(stretches, key=lambda s: (s.low, s.era)):
        lane = next((lane for lane in lanes if lane[-1].high <= stretch.low + 1e-9), None)
        if lane is None and len(lanes) < MAX_LANES:
            lanes.append([stretch])
        else:
            (lane or lanes[-1]).append(stretch)
    gaps = [Span(*ends, GAP, "no file") for ends in _find_gaps(stretches)]
    strips = [
        draw_strip([*gaps, *_iterate_spans(lane, eras, shorten)], 1, title=f"{len(eras)} eras")
        for lane in lanes
    ]
    rows = [
        (_choose_shade(n, eras), _describe_era(n, eras, shorten))
        for n, era in enumerate(eras)
        # the first era with the shared shade stands for all further eras in the legend
        if n <= len(ERA_SHADES) or era.reason is not None
    ]
    if gaps:
        rows.append((GAP, f"no file: {format_count(len(gaps), 'gap')}"))
    style = "--vds-height:22px;margin-bottom:8px"
    return element(
        "div", *strips, _label_line(eras, stretches, shorten), draw_legend(rows), style=style
    )


def _choose_shade(number: int, eras: Sequence[Era]) -> Shade:
    if eras[number].reason is not None:
        return MISSING
    return ERA_SHADES[number] if number < len(ERA_SHADES) else UNKNOWN


def _describe_era(number: int, eras: Sequence[Era], shorten: Shorten) -> str:
    era = eras[number]
    if era.reason is not None:
        return f"cannot be opened: {format_count(era.files, 'file')}, {shorten(era.first_file)}"
    if number == len(ERA_SHADES):
        files = [other.files for other in eras[number:] if other.reason is None]
        last = f" to {number + len(files)}" if len(files) > 1 else ""
        return f"era {number + 1}{last}: {format_count(sum(files), 'file')}"
    span = f", {era.start} to {era.stop}" if era.start is not None else ""
    return f"era {number + 1}: {format_count(era.files, 'file')}{span}"


def _find_gaps(stretches: Sequence[EraStretch]) -> Iterator[tuple[float, float]]:
    """Yield the bounds of ranges without a stretch."""
    end = 0.0
    for stretch in sorted(stretches, key=lambda s: s.low):
        if stretch.low > end + 1e-9:
            yield end, stretch.low
        end = max(end, stretch.high)


def _iterate_spans(
    stretches: Sequence[EraStretch], eras: Sequence[Era], shorten: Shorten
) -> Iterator[Span]:
    """Yield the spans of stretches, without those that would look like an earlier span."""
    drawn = set()
    # draw unreadable files last, on top of other eras
    for stretch in sorted(stretches, key=lambda s: eras[s.era].reason is not None):
        shade = _choose_shade(stretch.era, eras)
        appearance = (shade.name, int(stretch.low * MAX_SPANS), int(stretch.high * MAX_SPANS))
        if appearance not in drawn:
            drawn.add(appearance)
            ends = f"{shorten(stretch.start)} to {shorten(stretch.stop)}"
            tooltip = f"era {stretch.era + 1}: {format_count(stretch.files, 'file')}, {ends}"
            low = min(stretch.low, 1 - 2 / MAX_SPANS)
            yield Span(low, max(stretch.high, low + 2 / MAX_SPANS), shade, tooltip)


def _label_line(eras: Sequence[Era], stretches: Sequence[EraStretch], shorten: Shorten) -> Markup:
    """Return labels of the line: its start, its end, and the starts of eras."""
    readable = sorted((s for s in stretches if eras[s.era].reason is None), key=lambda s: s.low)
    readable = readable or sorted(stretches, key=lambda s: s.low)
    has_names = any(s.start == eras[s.era].first_file for s in readable)
    marks = [(readable[0].low, readable[0].start)]
    for stretch in () if has_names else readable[1:]:
        if marks[-1][0] + MIN_LABEL_DISTANCE <= stretch.low <= 1 - 2 * MIN_LABEL_DISTANCE:
            marks.append((stretch.low, stretch.start))
    last = max(readable, key=lambda s: s.high)
    return draw_labels((position, shorten(text)) for position, text in [*marks, (1.0, last.stop)])
