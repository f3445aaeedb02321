"""Finding the dimension along which files are joined, and the place of each file along it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from virtualds.checks.diagnose.fact_runs import FactRuns
from virtualds.datasets.lazy import get_virtual_array, is_unread
from virtualds.datasets.regular_axis import compute_steps, find_gaps_among
from virtualds.datasets.structure import DIMENSIONS, SIZE, VALUES, Fact, text_of


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


class JoinedDimensions(NamedTuple):
    """The dimensions to join along, and how they were found."""

    dims: tuple[str, ...]
    reason: str


def find_spans(dataset: xr.Dataset) -> dict[str, CoordinateSpan]:
    """Return the spans of the loaded dimension coordinates."""
    found = {}
    for name, variable in dataset.variables.items():
        loaded = get_virtual_array(variable) is None and not is_unread(variable)
        if variable.dims == (name,) and loaded and variable.size:
            first, last = variable.values[0], variable.values[-1]
            start, stop = (first, last) if first <= last else (last, first)
            found[str(name)] = CoordinateSpan(start, stop, _find_steps(variable.values))
    return found


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


def guess_dimensions(
    facts: FactRuns, placed: Mapping[str, Sequence[PlacedFile]], unlimited: Sequence[str]
) -> JoinedDimensions:
    """Find the dimensions to join along.

    Parameters
    ----------
    facts : FactRuns
        The facts of the files.
    placed : dict of str to sequence of Placed
        The spans of the files, by coordinate.
    unlimited : sequence of str
        The dimensions that are unlimited in all files.
    """
    dims = [fact.subject for fact in facts.runs if fact.aspect == SIZE]
    moving = {dim: count for dim in dims if (count := _count_coordinates(facts, dim)) > 1}
    still = {dim for dim in dims if _count_coordinates(facts, dim) == 1 and facts.count > 1}
    for name, chosen in (
        ("the unlimited dimension", [d for d in unlimited if d not in still]),
        ("its coordinate differs from file to file", list(moving)),
        ("its size differs from file to file", _find_changing_dims(facts, dims)),
        ("the first dimension of most variables", _find_leading(facts, still)),
    ):
        if chosen:
            return JoinedDimensions(_find_foremost(facts, chosen, moving, placed), name)
    return JoinedDimensions((), "none differs; name a new one with concat_dim")


def _count_coordinates(facts: FactRuns, dim: str) -> int:
    """Return how many different coordinates a dimension has, 0 without any."""
    fact = Fact(dim, VALUES)
    return len(facts.count_texts(fact)) if fact in facts.runs else 0


def _find_changing_dims(facts: FactRuns, dims: Iterable[str]) -> list[str]:
    bare = (dim for dim in dims if not _count_coordinates(facts, dim))
    return [dim for dim in bare if len(facts.count_texts(Fact(dim, SIZE))) > 1]


def _find_leading(facts: FactRuns, still: set[str]) -> list[str]:
    """Return the dimension that comes first in most variables."""
    firsts = [
        (runs[0][1] or "").split(", ")[0]
        for fact, runs in facts.runs.items()
        if fact.aspect == DIMENSIONS and runs[0][1] != "none"
    ]
    counted = [dim for dim in firsts if dim not in still]
    return [max(counted, key=counted.count)] if counted else []


def _find_foremost(
    facts: FactRuns,
    dims: Sequence[str],
    moving: Mapping[str, int],
    placed: Mapping[str, Sequence[PlacedFile]],
) -> tuple[str, ...]:
    """Return the dimension along which files follow each other, or the dimensions of tiles."""
    alone = [dim for dim in dims if dim in moving and _is_apart(placed.get(dim, ()))]
    times = [dim for dim in alone or dims if facts.counts_time(dim)]
    tiles = tuple(dim for dim in dims if dim in moving)
    if len(tiles) > 1 and len(alone) != 1 and not times:
        return tiles
    return (max(times or alone or dims, key=lambda dim: moving.get(dim, 0)),)


def _is_apart(placed: Sequence[PlacedFile]) -> bool:
    """Say whether files follow each other, with few exceptions."""
    return 2 * len(list(find_overlapping(placed))) < len(placed) - 1


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
