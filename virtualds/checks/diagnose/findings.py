"""What a diagnosis finds: eras, where they lie, and differences, which are shown as entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.datasets.axis_cells import count_values
from virtualds.datasets.lazy import get_virtual_array, is_unread
from virtualds.datasets.structure import compute_steps, find_gaps_among, text_of
from virtualds.errors import name_some, public

Verdict = Literal["combines", "costs", "blocks"]
VERDICTS: tuple[Verdict, ...] = ("blocks", "costs", "combines")
"""What a difference means for combining, the worst first."""


@public
@dataclass(frozen=True)
class Era:
    """Files with the same structure.

    Parameters
    ----------
    files : int
        Number of files.
    first_file, last_file : str
        In the given order.
    start, stop : str or None
        The lowest and the highest value of the joined coordinate, if there is one.
    reason : str or None
        Why the files cannot be opened; None if they can.

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
    """Files of one era that follow each other.

    Parameters
    ----------
    era : int
        The number of the era among those of the diagnosis.
    files : int
        Number of files.
    start, stop : str
        The lowest and the highest value of the joined coordinate, or the first and the last file.
    low, high : float
        Where the stretch lies on a line of length 1: the joined coordinate, or the files in order.

    Raises
    ------
    ValueError
        The stretch lies outside the line.

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
            raise ValueError(f"EraStretch: {self.low} to {self.high} is no part of 0 to 1")


@public
@dataclass(frozen=True)
class Difference:
    """Something in which files differ.

    Parameters
    ----------
    variable : str
        Name of the variable or dimension; empty for the dataset or the files themselves.
    aspect : str
        What differs: ``"data type"``, ``"chunks along x"``, ``"attribute history"``.
    before, after : str
        The values in the first and in the second file of the pair.
    first_file : str
        The first file that has ``after``.
    files : int
        Number of files that have ``after``.
    verdict : {"combines", "costs", "blocks"}
        Whether the files still combine.
    how : str
        What happens to the difference and what that costs; if it blocks, the error.
    remedy : str
        What to do about it; empty if nothing has to be done.
    refused : tuple of str
        Names of the reference formats that cannot hold the result.
    code : str
        A line of code that does it; empty if there is none. ``files`` is the list of files, and
        ``vds`` is the combined dataset.
    against : str
        The file before it, which has ``before``.
    leads : bool
        Whether it is a mistake of the files, to be mended before all others.

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
            raise ValueError(f"Difference: verdict {self.verdict!r}; there are {VERDICTS}")


TITLES: dict[Verdict, str] = {
    "blocks": "these files do not combine",
    "costs": "they combine, at a cost",
    "combines": "they combine",
}
MOST_ROWS = 20
"""Rows of a table that are shown; `Diagnosis.to_dataframe` has them all."""
MOST_LETTERS = 60
"""Letters of a value that a report shows."""


def cut_text(text: str, letters: int = MOST_LETTERS) -> str:
    """Return a text in one line, cut if it is too long.

    >>> cut_text("a long text", 8)
    'a lon...'
    """
    line = " ".join(text.split())
    return line if len(line) <= letters else f"{line[: letters - 3]}..."


def describe_error(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


# ---------------------------------------------------------------------- entries

MOST_NAMES = 5
"""Variables that a line names; of more it gives the number."""


class EntryLine(NamedTuple):
    """Differences, at least one, in which only the variable differs."""

    rows: tuple[Difference, ...]

    @property
    def first(self) -> Difference:
        """The first of the rows, for what they have in common."""
        return self.rows[0]

    @property
    def names(self) -> str:
        """The names of the variables."""
        return name_some((row.variable for row in self.rows), MOST_NAMES)


class Entry(NamedTuple):
    """Lines, at least one, with one verdict, remedy and line of code."""

    lines: tuple[EntryLine, ...]

    @property
    def first(self) -> Difference:
        """The first difference, for the remedy of all."""
        return self.lines[0].first


def fold_differences(rows: Iterable[Difference]) -> list[Entry]:
    """Return differences as entries, in the order of the first of each.

    Examples
    --------
    >>> both = [Difference(n, "codecs", "a", "b", "2.nc", 1, "costs", "so", "mend") for n in "tu"]
    >>> [line.names for entry in fold_differences(both) for line in entry.lines]
    ['t, u']
    """
    alike: dict[Difference, list[Difference]] = {}
    for row in rows:
        alike.setdefault(replace(row, variable=""), []).append(row)
    entries: dict[tuple[object, ...], list[EntryLine]] = {}
    for key, found in alike.items():
        # what a difference shares with those that the same thing mends
        is_alone = key.leads or not key.remedy
        mending = (key,) if is_alone else (key.verdict, key.remedy, key.code)
        entries.setdefault(mending, []).append(EntryLine(tuple(found)))
    return [Entry(tuple(lines)) for lines in entries.values()]


# ---------------------------------------------------------------------- along a coordinate

Floats = npt.NDArray[np.float64]
TOUCHING = 1e-9
"""Parts of the line that are no gap, but rounding."""


class CoordinateSpan(NamedTuple):
    """The lowest and the highest value of a coordinate in one file.

    For times, ``steps`` holds the shortest and the longest step within the file, in seconds.
    """

    start: Any
    stop: Any
    steps: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"{text_of(self.start)} to {text_of(self.stop)}"


PlacedFile = tuple[int, CoordinateSpan]
"""The number of a file, and its span."""


def find_spans(dataset: xr.Dataset) -> dict[str, CoordinateSpan]:
    """Return the spans of the loaded dimension coordinates."""
    return {
        str(name): span
        for name, variable in dataset.variables.items()
        if variable.dims == (name,)
        and not (get_virtual_array(variable) is not None or is_unread(variable))
        and (span := find_span(variable.values)) is not None
    }


def find_span(values: Any) -> CoordinateSpan | None:
    """Return the span of a coordinate, None if it has no element."""
    if not values.size:
        return None
    first, last = values[0], values[-1]
    start, stop = (first, last) if first <= last else (last, first)
    return CoordinateSpan(start, stop, _find_steps(values))


def _find_steps(values: Any) -> tuple[float, ...]:
    """Return the shortest and the longest step, if the values are monotonic times."""
    if values.size < 2 or not (values.dtype.kind == "M" or hasattr(values[0], "calendar")):
        return ()
    steps = compute_steps(values if values[0] <= values[-1] else values[::-1])
    return (float(steps.min()), float(steps.max()))


def find_time_gaps(placed: Sequence[PlacedFile]) -> Iterator[tuple[int, int]]:
    """Yield pairs of files with missing times between them; one file twice for a gap inside it."""
    try:
        ordered = sorted(placed, key=lambda item: (item[1].start, item[1].stop))
        steps = [(step, (n, n)) for n, span in ordered for step in span.steps]
        steps += [
            (float(compute_steps(np.array([one.stop, other.start]))[0]), (first, second))
            for (first, one), (second, other) in pairwise(ordered)
        ]
    except TypeError:
        return  # dates of two calendars have no distance
    yield from (steps[n][1] for n in find_gaps_among([step for step, _ in steps]))


def find_overlapping(placed: Sequence[PlacedFile]) -> Iterator[tuple[int, int]]:
    """Yield pairs of files where the second begins before the first has ended."""
    try:
        ordered = sorted(placed, key=lambda item: (item[1].start, item[1].stop))
        furthest = ordered[:1]
        for number, span in ordered[1:]:
            if span.start <= furthest[-1][1].stop:
                yield furthest[-1][0], number
            if span.stop > furthest[-1][1].stop:
                furthest.append((number, span))
    except TypeError:
        return  # dates of two calendars cannot be ordered, which another difference reports


def find_disordered(placed: Sequence[PlacedFile]) -> Iterator[tuple[int, int]]:
    """Yield pairs of files where the second lies before the first, in either direction."""
    starts = [span.start for _, span in placed]
    try:
        rising = [bool(a <= b) for a, b in pairwise(starts)]
    except TypeError:
        return
    if all(rising) or not any(rising):
        return
    mostly = sum(rising) * 2 >= len(rising)
    pairs = zip(pairwise(number for number, _ in placed), rising, strict=True)
    yield from (pair for pair, is_rising in pairs if is_rising != mostly)


# ---------------------------------------------------------------------- eras


class EraFile(NamedTuple):
    """A file of an era, and its span along the joined coordinate if that is known."""

    name: str
    era: int
    is_readable: bool = True
    span: CoordinateSpan | None = None


class _Place(NamedTuple):
    """Where a file begins and ends on the line, and the words for both ends."""

    era: int
    low: float
    high: float
    start: str
    stop: str


def place_eras(files: Sequence[EraFile], is_time: bool) -> tuple[EraStretch, ...]:
    """Return the stretches of a line on which files of one era follow each other.

    The line is the joined coordinate if all files that can be opened have a span along it, else the
    given order of the files. Its length is 1.
    """
    places = _place_along(files, is_time)
    if places is None:
        places = [_Place(f.era, n, n + 1, f.name, f.name) for n, f in enumerate(files)]
    origin = min((place.low for place in places), default=0.0)
    length = max((place.high for place in places), default=1.0) - origin or 1.0
    scaled = (p._replace(low=(p.low - origin) / length, high=(p.high - origin) / length)
              for p in places)  # fmt: skip
    return tuple(_join_places(scaled))


def _join_places(places: Iterable[_Place]) -> Iterator[EraStretch]:
    """Yield the stretches of each era, the files of which touch or overlap."""
    for era, members in groupby(sorted(places), key=lambda place: place.era):
        runs: list[list[_Place]] = []
        end = -1.0
        for place in members:
            if place.low > end + TOUCHING:
                runs.append([])
            runs[-1].append(place)
            end = max(end, place.high)
        for run in runs:
            last = max(run, key=lambda place: place.high)
            high = min(max(last.high, run[0].low), 1.0)
            yield EraStretch(era, len(run), run[0].start, last.stop, run[0].low, high)


def _place_along(files: Sequence[EraFile], is_time: bool) -> list[_Place] | None:
    """Return the places of files along the joined coordinate, None if they have none.

    A file that cannot be opened lies between the files beside it in the given order.
    """
    spans = [file.span for file in files if file.is_readable]
    known = [span for span in spans if span is not None]
    if not known or len(known) < len(spans):
        return None
    counted = count_values(np.array([end for s in known for end in (s.start, s.stop)]))
    if counted is None or not np.isfinite(counted.numbers).all():
        return None
    low, high = _find_ends(counted.numbers[::2], counted.numbers[1::2], known, is_time)
    # where a file begins that cannot be opened, and where the next one does
    before, after = [low[0], *high.tolist()], [*low.tolist(), high[-1]]
    places, number = [], 0
    for name, era, is_readable, _ in files:
        if is_readable:
            words = text_of(known[number].start), text_of(known[number].stop)
            places.append(_Place(era, float(low[number]), float(high[number]), *words))
            number += 1
        else:
            start = before[number]
            places.append(_Place(era, start, max(start, after[number]), name, name))
    return places


def _find_ends(
    starts: Floats, stops: Floats, spans: Sequence[CoordinateSpan], is_time: bool
) -> tuple[Floats, Floats]:
    """Return where files begin, and where they end: where the next one begins, or a gap does."""
    begins = np.append(np.unique(starts), np.nan)
    following = begins[np.searchsorted(begins[:-1], stops, side="right")]
    gaps = find_time_gaps(list(enumerate(spans))) if is_time else ()
    following[[first for first, second in gaps if first != second]] = np.nan
    steps = (following - stops)[np.isfinite(following)]
    usual = float(np.median(steps)) if steps.size else float((stops - starts).max()) / 8 or 1.0
    return starts, np.where(np.isnan(following), stops + usual, following)
