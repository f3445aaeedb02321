"""Where eras lie, and what to do about what differs.

Where files lie along a coordinate: their spans, overlaps and gaps, and the places of eras.

The line of code that a difference needs, for users to copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.checks.diagnose.findings import Difference, EraStretch
from virtualds.checks.diagnose.trials import (
    EXPLANATIONS,
    GAP,
    KEEPING,
    KIND,
    NAME,
    OPENING,
    ORDER,
    OVERLAP,
    RENAMED,
    TOGETHER,
)
from virtualds.datasets.axis_cells import count_values
from virtualds.datasets.keywords import names_of
from virtualds.datasets.lazy import get_virtual_array, is_unread
from virtualds.datasets.structure import (
    CALENDAR,
    DIMENSIONS,
    PRESENCE,
    ROLE,
    SIZE,
    SYSTEM,
    VALUES,
    compute_steps,
    find_gaps_among,
    text_of,
    write_rename,
)
from virtualds.errors import without_secrets

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


# ---------------------------------------------------------------------- remedies

REPEATED = (
    *("combine", "concat_dim", "data_vars", "coords", "compat", "join", "combine_attrs"),
    *("sort", "overlap", "group", "drop_variables", "decode_cf", "on_error"),
)
"""Arguments of the diagnosis that the line of code repeats: short ones, and never a secret."""
OF_ONE_FILE = ("group", "decode_cf")
"""Those of them that opening one file needs, too."""
MOST_LOST = 20
"""Files that cannot be opened which a line of code names at most."""

Arguments = Mapping[str, Any]


class Usual(NamedTuple):
    """What the first file has where another one differs.

    ``size`` is the length of the dimension that the variable is the coordinate of, and ``resized``
    says whether the other file has another length. ``attribute`` is the name of an attribute that
    says how its coordinate reference system differs, and ``values`` its values as text.
    """

    text: str
    size: str | None = None
    resized: bool = False
    attribute: str | None = None
    values: Sequence[str] = ()


@dataclass(frozen=True)
class Mend:
    """What to change in the call of `open_virtual_mfdataset`.

    Parameters
    ----------
    arguments : mapping
        Arguments, with their values.
    drops : tuple of str
        Variables to leave out.
    steps : tuple of str
        Expressions that make a dataset of the dataset ``ds`` of a file.
    choice : str
        A condition on the dataset ``ds`` of a file that is to be combined.
    """

    arguments: Arguments = field(default_factory=dict)
    drops: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    choice: str = ""


NOTHING = Mend()


def is_fault(row: Difference) -> bool:
    """Say whether a difference has to be mended before others can be."""
    return row.verdict == "blocks" or (row.verdict == "costs" and row.leads)


def find_mend(row: Difference, usual: Usual) -> Mend:
    """Return what does something about a difference."""
    if row.verdict == "combines":
        return NOTHING
    if (options := KEEPING.get(row.remedy)) is not None:
        return Mend(options)
    find = _take_first_system if usual.attribute is not None else _MENDS.get(row.aspect)
    return NOTHING if find is None else find(row, usual)


def write_remedy(
    row: Difference,
    mend: Mend,
    needed: Sequence[Mend],
    given: Arguments,
    first: str,
    lost: Sequence[str],
) -> str:
    """Return a line of code that does something about a difference, "" if there is none.

    Parameters
    ----------
    row : Difference
    mend : Mend
        What does something about it.
    needed : sequence of Mend
        What has to be changed for the line to work, the mend among it.
    given : mapping
        The arguments of `open_virtual_mfdataset` with which the files were tried; the function of
        the user has the name that it has in the code.
    first : str
        The first file that can be opened.
    lost : sequence of str
        Files that cannot be opened.
    """
    if row.verdict == "combines":
        return ""
    if row.aspect == GAP:
        return "print(vds.virtual.gaps)"
    if mend != NOTHING:
        return _write_call(needed, given, first, lost)
    if row.aspect == TOGETHER and row.remedy == EXPLANATIONS[TOGETHER].remedy:
        return f"virtualds.open_virtual_dataset({_show(without_secrets(row.first_file))})"
    if row.refused and "zarr-v3" not in row.refused:
        return 'vds.virtual.to_manifest("refs.zarr")'
    return ""


def _write_call(mends: Sequence[Mend], given: Arguments, first: str, lost: Sequence[str]) -> str:
    """Return a call as code, "" if it would be long, or show a secret."""
    arguments = dict(given)
    for mend in mends:
        arguments |= mend.arguments
    if drops := [name for mend in mends for name in mend.drops]:
        before = names_of("drop_variables", given.get("drop_variables"))
        arguments["drop_variables"] = list(dict.fromkeys([*before, *drops]))
    steps = list(dict.fromkeys(step for mend in mends for step in mend.steps))
    function = _write_function(steps, given.get("preprocess"))
    choices = list(dict.fromkeys(mend.choice for mend in mends if mend.choice))
    named_files = [*lost, *([first] if any("{first}" in choice for choice in choices) else [])]
    hides = any(without_secrets(file) != file for file in named_files)
    if choices and (hides or len(lost) > MOST_LOST):
        return ""
    named = [
        f"{name}={_show(value)}"
        for name, value in arguments.items()
        if name in REPEATED and value is not None
    ]
    begun = ""
    if choices and steps:
        begun, function = f"mend = {function}; ", "mend"
    named += [f"preprocess={function}"] if function else []
    files = _write_choice(choices, function, given, first, lost) if choices else "files"
    begun = f"import numpy as np; {begun}" if "np." in files else begun
    return f"{begun}vds = virtualds.open_virtual_mfdataset({', '.join([files, *named])})"


def _write_function(steps: Sequence[str], own: str | None) -> str:
    """Return a function that takes steps one after the other, as code; ``own`` is the user's."""
    if not steps:
        return own or ""
    first, rest = (f"{own}(ds)", steps) if own else (steps[0], steps[1:])
    piped = (f".pipe(lambda ds: {step})" for step in rest)
    return f"lambda ds: {first}{''.join(piped)}"


def _write_choice(
    choices: Sequence[str], function: str, given: Arguments, first: str, lost: Sequence[str]
) -> str:
    """Return the files that fulfil conditions, as code."""
    of_file = [f"{n}={_show(given[n])}" for n in OF_ONE_FILE if given.get(n) is not None]

    def write_opening(file: str) -> str:
        opened = f"virtualds.open_virtual_dataset({', '.join([file, *of_file])})"
        return f"{function}({opened})" if function else opened

    text = " and ".join(choices).replace("{first}", write_opening(_show(first)))
    opened = write_opening("f")
    is_once = text.count("{ds}") == 1
    text = text.replace("{ds}", opened if is_once else f"(ds := {opened})", 1).replace("{ds}", "ds")
    conditions = [f"str(f) not in {_show(list(lost))}"] if lost else []
    return f"[f for f in files if {' and '.join([*conditions, text])}]"


def _show(value: Any) -> str:
    """Return a value as code; JSON and Python quote texts alike, but for single quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, list | tuple):
        return repr(value)
    return f"[{', '.join(map(_show, value))}]"


def _rename(row: Difference, usual: Usual) -> Mend:
    pairs = zip(row.after.split(", "), row.before.split(", "), strict=True)
    return Mend(steps=(write_rename(dict(pairs)).removeprefix("lambda ds: "),))


def _rename_variable(row: Difference, usual: Usual) -> Mend:
    before, after = _show(row.before), _show(row.after)
    return Mend(steps=(f"ds.rename({{{after}: {before}}} if {after} in ds else {{}})",))


def _take_first_kind(row: Difference, usual: Usual) -> Mend:
    return Mend(choice=f"{_show(row.before.split(', ')[0])} in {{ds}}")


def _take_first_grid(row: Difference, usual: Usual) -> Mend:
    """Take the files of the grid of the first file, or without the coordinate.

    Where no dimension has the values, the variable is left out.
    """
    if usual.size is None:
        return Mend(drops=(row.variable,))
    if usual.resized:
        return _take_first_size(row, usual)
    name = _show(row.variable)
    return Mend(choice=f"({name} not in {{ds}} or {{ds}}[{name}].equals({{first}}.get({name})))")


def _take_first_size(row: Difference, usual: Usual) -> Mend:
    return Mend(choice=f"{{ds}}.sizes.get({_show(row.variable)}, {usual.size}) == {usual.size}")


def _take_first_system(row: Difference, usual: Usual) -> Mend:
    """Take the files of the first system, by its name or by a number that differs."""
    attributes = f'getattr({{ds}}.get({_show(row.variable)}), "attrs", {{}})'
    if usual.attribute is not None:
        found = f"{attributes}.get({_show(usual.attribute)})"
        if any("..." in value for value in usual.values):
            # a report does not hold long texts
            known = f"{{first}}[{_show(row.variable)}].attrs.get({_show(usual.attribute)})"
            return Mend(choice=f"{found} in (None, {known})")
        # of a number, of several, and of text
        return Mend(choice=f"str(np.array({found}).tolist()) in {_show(['None', *usual.values])}")
    title = usual.text.partition(" (")[2].removesuffix(")") or usual.text
    if row.aspect != SYSTEM or "=" in title or title in row.after:
        return NOTHING
    return Mend(choice=f"{_show(title)} in str({attributes} or {_show(title)})")


def _transpose(row: Difference, usual: Usual) -> Mend:
    dims = usual.text.split(", ")
    if dims == ["none"] or sorted(dims) != sorted(row.after.split(", ")):
        return NOTHING
    listed = ", ".join(map(_show, dims))
    fits = f"n in ds and set(ds[n].dims) == {{{listed}}}"
    found = f"{{n: ds[n].transpose({listed}) for n in [{_show(row.variable)}] if {fits}}}"
    return Mend(steps=(f"ds.assign({found})",))


def _change_role(row: Difference, usual: Usual) -> Mend:
    is_coordinate = usual.text == "coordinate"
    method, members = ("set_coords", "ds") if is_coordinate else ("reset_coords", "ds.coords")
    return Mend(steps=(f"ds.{method}([n for n in [{_show(row.variable)}] if n in {members}])",))


NO_LEAP_DAYS = ("noleap", "365_day")
LEAP_DAYS = ("standard", "gregorian", "proleptic_gregorian")


def _convert_calendar(row: Difference, usual: Usual) -> Mend:
    """Convert to a calendar that has all days of the other one; else days would be left out."""
    if usual.size is None or usual.text not in LEAP_DAYS or row.after not in NO_LEAP_DAYS:
        return NOTHING
    name = _show(row.variable)
    call = f"ds.convert_calendar({_show(usual.text)}, dim={name}) if {name} in ds.dims else ds"
    return Mend(steps=(call,))


_MENDS: dict[str, Callable[[Difference, Usual], Mend]] = {
    OPENING: lambda row, usual: Mend({"on_error": "collect"}),
    PRESENCE: lambda row, usual: Mend(drops=(row.variable,)),
    SIZE: _take_first_size,
    VALUES: _take_first_grid,
    RENAMED: _rename,
    NAME: _rename_variable,
    KIND: _take_first_kind,
    SYSTEM: _take_first_system,
    ROLE: _change_role,
    DIMENSIONS: _transpose,
    CALENDAR: _convert_calendar,
    OVERLAP: lambda row, usual: Mend({"overlap": "last"}),
    ORDER: lambda row, usual: Mend({"sort": True}),
    TOGETHER: lambda row, usual: Mend(drops=(row.variable,)) if row.variable else NOTHING,
}
"""What to change in the call of `open_virtual_mfdataset`, by aspect."""
