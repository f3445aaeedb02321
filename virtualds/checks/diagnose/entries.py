"""What a report shows of differences: those that one thing mends stand in one entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from virtualds.checks.diagnose.findings import Difference
from virtualds.quantities import name_some

MOST_NAMES = 5
"""Variables that a line names; of more it gives the number."""


@dataclass(frozen=True)
class EntryLine:
    """Variables that differ in the same way.

    Parameters
    ----------
    rows : tuple of Difference
        At least one; they differ in their variable only.
    """

    rows: tuple[Difference, ...]

    @property
    def first(self) -> Difference:
        """The first of the rows, for what they have in common."""
        return self.rows[0]

    @property
    def names(self) -> str:
        """The names of the variables."""
        return name_some((row.variable for row in self.rows), MOST_NAMES)


@dataclass(frozen=True)
class Entry:
    """Differences with one verdict, remedy and line of code.

    Parameters
    ----------
    lines : tuple of EntryLine
        At least one.
    """

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
        entries.setdefault(_find_mending(key), []).append(EntryLine(tuple(found)))
    return [Entry(tuple(lines)) for lines in entries.values()]


def _find_mending(row: Difference) -> tuple[object, ...]:
    """Return what a difference shares with those that the same thing mends."""
    is_alone = row.leads or not row.remedy
    return (row,) if is_alone else (row.verdict, row.remedy, row.code)
