"""The report of a diagnosis: eras and differences, as text, HTML or a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from virtualds.checks.diagnose.entries import Entry, fold_differences
from virtualds.checks.diagnose.findings import (
    MOST_ROWS,
    TITLES,
    VERDICTS,
    Difference,
    Era,
    EraStretch,
    Verdict,
    cut_text,
    format_more,
)
from virtualds.checks.diagnose.html_report import (
    describe_files,
    draw_differences,
    draw_eras,
    draw_verdict,
)
from virtualds.errors import without_secrets
from virtualds.pictures.html import Markup, cell, page, section, table
from virtualds.public import public
from virtualds.quantities import format_count


@public
@dataclass(frozen=True, repr=False)
class Diagnosis:
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
        found = asdict(self) | {"blocks": self.blocks}
        rows = [row | {"refused": list(row["refused"])} for row in found["differences"]]
        listed = {key: list(found[key]) for key in ("joined", "formats", "eras", "stretches")}
        return found | listed | {"differences": rows}

    def __repr__(self) -> str:
        columns, eras = self._format_eras()
        lines = [*self._format_heading(), "", *format_text_table(columns, eras)]
        for verdict in VERDICTS:
            found = fold_differences(self.of(verdict))
            if found:
                lines += ["", f"{verdict}: {TITLES[verdict]} ({len(found)})"]
            lines += [line for entry in found[:MOST_ROWS] for line in self._format_entry(entry)]
            lines += [f"  {format_more(len(found) - MOST_ROWS)}"] * (len(found) > MOST_ROWS)
        return without_secrets("\n".join(lines))

    def _repr_html_(self) -> str:
        return without_secrets(cell(*self._draw()))

    def to_html(self) -> str:
        """Return the report as a page of its own.

        Examples
        --------
        >>> era = Era(2, "2001.nc", "2002.nc")
        >>> page = Diagnosis(2, 2, ("time",), "as given", ("zarr-v3",), (era,), ()).to_html()
        >>> page.splitlines()[0]
        '<!doctype html>'
        """
        return without_secrets(page("Diagnosis", *self._draw()))

    def _draw(self) -> list[Markup]:
        heading, *notes = self._format_heading()
        worst: Verdict = next((v for v in VERDICTS if self.of(v)), "combines")
        return [
            draw_verdict(heading, notes, worst),
            draw_eras(self.eras, self.stretches, self._shorten),
            section(
                "Eras", table(*self._format_eras(), numbers=[0, 1]), note=f"{len(self.eras):,}"
            ),
            *draw_differences(self.differences, self._shorten),
        ]

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
        return [
            f"{format_count(self.files, 'file')}{place}{looked}: {_format_summary(self)}",
            f"joined along {along} ({self.reason})",
            *([] if self.blocks else [f"formats that can hold them: {held}"]),
        ]

    def _format_eras(self) -> tuple[Row, list[Row]]:
        span = " x ".join(self.joined) if any(era.start for era in self.eras) else ""
        rows: list[Row] = [
            (
                str(n),
                f"{e.files:,}",
                self._shorten(e.first_file),
                self._shorten(e.last_file),
                _format_span(e),
            )
            for n, e in enumerate(self.eras, 1)
        ]
        return ("era", "files", "first file", "last file", span), rows

    def _format_entry(self, entry: Entry) -> Iterator[str]:
        """Yield an entry as lines of text."""
        for line in entry.lines[:MOST_ROWS]:
            row, subject = line.first, f"{line.names}: " if line.names else ""
            yield f"  {subject}{row.aspect}: {cut_text(row.before)} -> {cut_text(row.after)}"
            yield f"      from {describe_files(row, self._shorten)}"
            yield f"      {row.how}"
        if len(entry.lines) > MOST_ROWS:
            yield f"  {format_more(len(entry.lines) - MOST_ROWS)}"
        if entry.first.remedy:
            yield f"      do: {entry.first.remedy}"
        if entry.first.code:
            yield f"      {entry.first.code}"


def _format_summary(found: Diagnosis) -> str:
    if found.blocks:
        return "they do not combine"
    if not found.differences:
        return "they combine, and have the same structure"
    return "they combine" + (", at a cost" if found.of("costs") else "")


def _format_span(era: Era) -> str:
    if era.reason is not None:
        return f"cannot be opened: {cut_text(era.reason)}"
    return f"{era.start} to {era.stop}" if era.start is not None else ""


Row = Sequence[str]


def format_text_table(columns: Row, rows: Sequence[Row]) -> list[str]:
    """Return a table as lines with columns of equal width.

    >>> format_text_table(("era", "files"), [("1", "12")])
    ['  era  files', '  1    12']
    """
    shown = [columns, *rows[:MOST_ROWS]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
    return lines + [f"  {format_more(len(rows) - MOST_ROWS)}"] * (len(rows) > MOST_ROWS)
