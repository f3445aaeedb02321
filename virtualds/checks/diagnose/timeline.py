"""Where the files of each era lie: along the joined coordinate, or in the given order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.checks.diagnose.findings import EraStretch
from virtualds.checks.diagnose.guess_dimension import CoordinateSpan, find_time_gaps
from virtualds.datasets.axis_cells import count_values
from virtualds.datasets.structure import text_of

Floats = npt.NDArray[np.float64]
TOUCHING = 1e-9
"""Parts of the line that are no gap, but rounding."""


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
