"""What a diagnosis finds: eras, where they lie, and differences, which are shown as entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

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


def format_more(count: int) -> list[str]:
    """Return a line that says how many of so many rows are not shown, if any."""
    return [f"... and {count - MOST_ROWS:,} more; to_dataframe() has all"] * (count > MOST_ROWS)


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
