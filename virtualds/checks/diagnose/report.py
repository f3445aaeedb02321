"""The report of a diagnosis: the eras on a line, and a card for each difference that matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from virtualds.checks.diagnose.findings import (
    MOST_ROWS,
    TITLES,
    VERDICTS,
    Difference,
    Entry,
    EntryLine,
    Era,
    EraStretch,
    Verdict,
    cut_text,
    fold_differences,
)
from virtualds.errors import format_count, public, without_secrets
from virtualds.pictures.blocks import (
    Block,
    Card,
    Code,
    Heading,
    Report,
    Section,
    Table,
    Words,
    say_more,
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
    element,
    key,
    strip,
)

Shorten = Callable[[str], str]
"""A function that leaves the common folder out of the name of a file."""

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
    """What keeps the files of an archive from combining cleanly.

    Parameters
    ----------
    files : int
        Number of given files.
    examined : int
        Number of opened files: all, or a sample.
    joined : tuple of str
        The dimensions to join along.
    reason : str
        How the dimensions were found.
    formats : tuple of str
        Names of the reference formats that can hold all trials.
    eras : tuple of Era
        Files with the same structure, in the order of their first files; files that cannot be
        opened come last.
    differences : tuple of Difference
        The worst first.
    stretches : tuple of EraStretch
        Where the eras lie, era by era; an era that comes back has several.

    Raises
    ------
    ValueError
        The eras do not add up to the examined files.

    Examples
    --------
    >>> era = Era(2, "2001.nc", "2002.nc")
    >>> found = Diagnosis(2, 2, ("time",), "as given", ("zarr-v3",), (era,), ())
    >>> found.blocks, len(found.to_dataframe())
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
        """Whether something keeps the files from combining."""
        return any(d.verdict == "blocks" for d in self.differences)

    def of(self, verdict: Verdict) -> tuple[Difference, ...]:
        """Return the differences of one verdict."""
        return tuple(d for d in self.differences if d.verdict == verdict)

    def to_dataframe(self) -> pd.DataFrame:
        """Return the differences as a table, one row each."""
        columns = list(Difference.__dataclass_fields__)
        return pd.DataFrame([asdict(d) for d in self.differences], columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary that JSON can hold."""
        return super().to_dict() | {"blocks": self.blocks}

    def _list_blocks(self) -> Iterator[Block]:
        heading, *notes = self._format_heading()
        sign, shade = VERDICT_SHADES[next((v for v in VERDICTS if self.of(v)), "combines")]
        yield Heading(heading, notes, shade, sign)
        yield draw_eras(self.eras, self.stretches, self._shorten)
        yield Section("Eras", [self._list_eras()], f"{len(self.eras):,}", is_open=False)
        for verdict in VERDICTS[:-1]:
            found = fold_differences(self.of(verdict))
            cards = [_make_card(entry, self._shorten) for entry in found[:MOST_ROWS]]
            more = say_more(len(found) - MOST_ROWS, WHERE_ALL)
            yield Section(TITLES[verdict].capitalize(), [*cards, more], f"{len(found):,}")
        others = fold_differences(self.of(VERDICTS[-1]))
        rows = [
            (
                *(line.names, row.aspect, cut_text(row.before), cut_text(row.after)),
                *(self._shorten(row.first_file), f"{row.files:,}", row.how),
            )
            for entry in others
            for line in entry.lines
            for row in line.rows[:1]
        ]
        head = ("variable", "what", "before", "after", "first file", "files", "result")
        shown = Table(head, rows, (5,), MOST_ROWS, rest=WHERE_ALL)
        yield Section("Differences that cost nothing", [shown], f"{len(others):,}", is_open=False)

    @property
    def folder(self) -> str:
        """The folder that holds all files; empty if there is no such folder."""
        names = [name for era in self.eras for name in (era.first_file, era.last_file)]
        folders = {without_secrets(name).rpartition("/")[0] for name in names}
        return folders.pop() if len(folders) == 1 else ""

    def _shorten(self, file: str) -> str:
        shown = without_secrets(file)
        return shown.removeprefix(f"{self.folder}/") if self.folder else shown

    def _format_heading(self) -> list[str]:
        looked = "" if self.files == self.examined else f", {self.examined:,} of them examined"
        place = f" in {self.folder}" if self.folder else ""
        along = ", ".join(map(repr, self.joined)) or "no dimension"
        held = ", ".join(self.formats) or "none"
        summary = "they combine" + (", at a cost" if self.of("costs") else "")
        if self.blocks:
            summary = "they do not combine"
        elif not self.differences:
            summary = "they combine, and have the same structure"
        return [
            f"{format_count(self.files, 'file')}{place}{looked}: {summary}",
            f"joined along {along} ({self.reason})",
            *([] if self.blocks else [f"formats that can hold them: {held}"]),
        ]

    def _list_eras(self) -> Table:
        span = " x ".join(self.joined) if any(era.start for era in self.eras) else ""
        rows = list[tuple[str, ...]]()
        for number, era in enumerate(self.eras, 1):
            along = f"{era.start} to {era.stop}" if era.start is not None else ""
            if era.reason is not None:
                along = f"cannot be opened: {cut_text(era.reason)}"
            ends = self._shorten(era.first_file), self._shorten(era.last_file)
            rows.append((str(number), f"{era.files:,}", *ends, along))
        head = ("era", "files", "first file", "last file", span)
        return Table(head, rows, (0, 1), MOST_ROWS, rest=WHERE_ALL)


def _make_card(entry: Entry, shorten: Shorten) -> Card:
    """Return a card; what its title does not say stands before each of several differences."""
    row, lines = entry.first, entry.lines
    sign, shade = VERDICT_SHADES[row.verdict]
    title: Words = _name_subject(lines[0])
    note, body = _describe_files(row, shorten), list[Block]()
    if len(lines) > 1:
        title, note = ", ".join(dict.fromkeys(line.first.aspect for line in lines)), ""
    for line in lines[:MOST_ROWS]:
        one = line.first
        change = (Code(cut_text(one.before)), " -> ", Code(cut_text(one.after)))
        if len(lines) > 1:
            body.append((*_name_subject(line), ": ", *change, ", ", _describe_files(one, shorten)))
        else:
            body.append(change)
        body.append(one.how)
    body.append(say_more(len(lines) - MOST_ROWS, WHERE_ALL))
    return Card(title, body, note, shade, sign, row.remedy, row.code)


def _name_subject(line: EntryLine) -> tuple[str, ...]:
    aspect = line.first.aspect
    return (Code(line.names), f": {aspect}") if line.names else (aspect,)


def _describe_files(row: Difference, shorten: Shorten) -> str:
    """Return the first file that differs, how many do, and the file that it was compared with."""
    against = f", against {shorten(row.against)}" if row.against else ""
    return f"from {shorten(row.first_file)} ({format_count(row.files, 'file')}){against}"


# ---------------------------------------------------------------------- the line of eras

ERA_SHADES = [shade for shade in SERIES if shade is not MISSING]
"""The shades of eras; further eras share one, and files that cannot be opened have another."""

MOST_LANES = 6
"""Lines one below the other, for eras that lie side by side."""
FINEST = 600
"""Parts of a line that a reader can tell apart."""
APART = 0.25
"""Least distance of two labels, as a part of the line."""


def draw_eras(eras: Sequence[Era], stretches: Sequence[EraStretch], shorten: Shorten) -> Markup:
    """Return the eras as a line with labels and a key; eras that lie side by side have several."""
    if not stretches:
        return Markup("")
    gaps = [Span(*ends, GAP, "no file") for ends in _find_gaps(stretches)]
    lanes = [
        strip([*gaps, *_list_spans(lane, eras, shorten)], 1, title=f"{len(eras)} eras")
        for lane in _sort_into_lanes(stretches)
    ]
    rows = [
        (_shade_era(n, eras), _describe_era(n, eras, shorten))
        for n, era in enumerate(eras)
        # the first era without a shade of its own stands for all others
        if n <= len(ERA_SHADES) or era.reason is not None
    ]
    if gaps:
        rows.append((GAP, f"no file: {format_count(len(gaps), 'gap')}"))
    style = "--vds-height:22px;margin-bottom:8px"
    return element("div", *lanes, _label_line(eras, stretches, shorten), key(rows), style=style)


def _shade_era(number: int, eras: Sequence[Era]) -> Shade:
    if eras[number].reason is not None:
        return MISSING
    return ERA_SHADES[number] if number < len(ERA_SHADES) else UNKNOWN


def _describe_era(number: int, eras: Sequence[Era], shorten: Shorten) -> str:
    era = eras[number]
    if era.reason is not None:
        return f"cannot be opened: {format_count(era.files, 'file')}, {shorten(era.first_file)}"
    if number == len(ERA_SHADES):
        later = [other.files for other in eras[number:] if other.reason is None]
        last = f" to {number + len(later)}" if len(later) > 1 else ""
        return f"era {number + 1}{last}: {format_count(sum(later), 'file')}"
    span = f", {era.start} to {era.stop}" if era.start is not None else ""
    return f"era {number + 1}: {format_count(era.files, 'file')}{span}"


def _find_gaps(stretches: Sequence[EraStretch]) -> Iterator[tuple[float, float]]:
    """Yield the parts of the line where no stretch lies."""
    end = 0.0
    for stretch in sorted(stretches, key=lambda s: s.low):
        if stretch.low > end + 1e-9:
            yield end, stretch.low
        end = max(end, stretch.high)


def _sort_into_lanes(stretches: Sequence[EraStretch]) -> list[list[EraStretch]]:
    """Put each stretch into the first lane where it has room."""
    lanes: list[list[EraStretch]] = []
    for stretch in sorted(stretches, key=lambda s: (s.low, s.era)):
        free = (lane for lane in lanes if lane[-1].high <= stretch.low + 1e-9)
        lane = next(free, None)
        if lane is None and len(lanes) < MOST_LANES:
            lanes.append([stretch])
        else:
            (lane or lanes[-1]).append(stretch)
    return lanes


def _list_spans(
    stretches: Sequence[EraStretch], eras: Sequence[Era], shorten: Shorten
) -> Iterator[Span]:
    """Yield what to draw of stretches, leaving out what would be drawn on the same place again."""
    drawn = set()
    # what cannot be opened lies on top, however narrow it is
    for stretch in sorted(stretches, key=lambda s: eras[s.era].reason is not None):
        shade = _shade_era(stretch.era, eras)
        place = (shade.name, int(stretch.low * FINEST), int(stretch.high * FINEST))
        if place not in drawn:
            drawn.add(place)
            ends = f"{shorten(stretch.start)} to {shorten(stretch.stop)}"
            words = f"era {stretch.era + 1}: {format_count(stretch.files, 'file')}, {ends}"
            low = min(stretch.low, 1 - 2 / FINEST)
            yield Span(low, max(stretch.high, low + 2 / FINEST), shade, words)


def _label_line(eras: Sequence[Era], stretches: Sequence[EraStretch], shorten: Shorten) -> Markup:
    """Return labels below the line: where it begins and ends, and where eras begin."""
    known = sorted((s for s in stretches if eras[s.era].reason is None), key=lambda s: s.low)
    known = known or sorted(stretches, key=lambda s: s.low)
    has_names = any(s.start == eras[s.era].first_file for s in known)
    marks = [(known[0].low, known[0].start)]
    for stretch in () if has_names else known[1:]:
        if marks[-1][0] + APART <= stretch.low <= 1 - 2 * APART:
            marks.append((stretch.low, stretch.start))
    last = max(known, key=lambda s: s.high)
    return draw_labels([(place, shorten(words)) for place, words in [*marks, (1.0, last.stop)]])
