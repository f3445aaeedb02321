"""The report of a diagnosis: eras and differences, as text, HTML or a table."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pandas as pd

from virtualds.errors import without_secrets
from virtualds.public import public

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

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"Difference: verdict {self.verdict!r}; there are {VERDICTS}")


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
        listed = {key: list(found[key]) for key in ("joined", "formats", "eras")}
        return found | listed | {"differences": rows}

    def __repr__(self) -> str:
        columns, eras = self._format_eras()
        lines = [*self._format_heading(), "", *format_text_table(columns, eras)]
        for verdict in VERDICTS:
            found = self.of(verdict)
            if found:
                lines += ["", f"{verdict}: {TITLES[verdict]} ({len(found)})"]
            lines += [line for row in found[:MOST_ROWS] for line in self._format_difference(row)]
            lines += [f"  {format_more(len(found) - MOST_ROWS)}"] * (len(found) > MOST_ROWS)
        return without_secrets("\n".join(lines))

    def _repr_html_(self) -> str:
        heading = "".join(f"<div>{html.escape(line)}</div>" for line in self._format_heading())
        tables = [format_html_table(f"eras ({len(self.eras)})", *self._format_eras())]
        for verdict in VERDICTS:
            rows = [self._format_cells(d) for d in self.of(verdict)]
            if rows:
                caption = f"{verdict}: {TITLES[verdict]} ({len(rows)})"
                tables.append(format_html_table(caption, COLUMNS, rows))
        return without_secrets(f"<div>{heading}{''.join(tables)}</div>")

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
            f"{self.files:,} file{'s' * (self.files != 1)}{place}{looked}: {_format_summary(self)}",
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

    def _format_difference(self, row: Difference) -> list[str]:
        """Return a difference as a few lines of text."""
        subject = f"{row.variable}: " if row.variable else ""
        files = f"{row.files:,} file{'s' * (row.files != 1)}"
        return [
            f"  {subject}{row.aspect}: {cut_text(row.before)} -> {cut_text(row.after)}",
            f"      from {self._shorten(row.first_file)} ({files})",
            f"      {row.how}",
            *([f"      do: {row.remedy}"] if row.remedy else []),
        ]

    def _format_cells(self, row: Difference) -> Row:
        """Return a difference as cells of a table."""
        return (
            row.variable,
            row.aspect,
            cut_text(row.before),
            cut_text(row.after),
            self._shorten(row.first_file),
            f"{row.files:,}",
            row.how,
            row.remedy,
        )


TITLES: dict[Verdict, str] = {
    "blocks": "these files do not combine",
    "costs": "they combine, at a cost",
    "combines": "they combine",
}


COLUMNS = ("variable", "what", "before", "after", "first file", "files", "result", "do")


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


MOST_ROWS = 20
"""Rows of a table that are shown; `Diagnosis.to_dataframe` has them all."""


MOST_LETTERS = 60


Row = Sequence[str]


def cut_text(text: str, letters: int = MOST_LETTERS) -> str:
    """Return a text in one line, cut if it is too long.

    >>> cut_text("a long text", 8)
    'a lon...'
    """
    line = " ".join(text.split())
    return line if len(line) <= letters else f"{line[: letters - 3]}..."


def format_more(count: int) -> str:
    """Say how many rows are not shown."""
    return f"... and {count:,} more; to_dataframe() has all"


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


def format_html_table(caption: str, columns: Row, rows: Sequence[Row]) -> str:
    """Return a collapsible HTML table with escaped cells."""
    head = "".join(f"<th style='text-align:left'>{html.escape(c)}</th>" for c in columns)
    body = "".join(f"<tr>{_format_cells(row)}</tr>" for row in rows[:MOST_ROWS])
    left = len(rows) - MOST_ROWS
    rest = f"<tr><td colspan='{len(columns)}'>{format_more(left)}</td></tr>" if left > 0 else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}{rest}</tbody></table>"
    return f"<details open><summary>{html.escape(caption)}</summary>{table}</details>"


def _format_cells(row: Row) -> str:
    return "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
