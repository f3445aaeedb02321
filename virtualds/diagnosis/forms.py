"""Tables in text and in HTML, and how much of them is shown."""

from __future__ import annotations

import html
from collections.abc import Sequence

MOST_ROWS = 20
"""Rows of a table that are shown; a table for machines has them all."""
MOST_LETTERS = 60

Row = Sequence[str]


def cut(text: str, letters: int = MOST_LETTERS) -> str:
    """Return a text in one line, its end left out where it is long.

    >>> cut("a long text", 8)
    'a lon...'
    """
    line = " ".join(text.split())
    return line if len(line) <= letters else f"{line[: letters - 3]}..."


def more(count: int) -> str:
    """Say how many rows are not shown."""
    return f"... and {count:,} more; to_dataframe() has all"


def text_table(columns: Row, rows: Sequence[Row]) -> list[str]:
    """Return lines with columns of equal width.

    >>> text_table(("era", "files"), [("1", "12")])
    ['  era  files', '  1    12']
    """
    shown = [columns, *rows[:MOST_ROWS]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
    return lines + [f"  {more(len(rows) - MOST_ROWS)}"] * (len(rows) > MOST_ROWS)


def html_table(caption: str, columns: Row, rows: Sequence[Row]) -> str:
    """Return a table that can be folded, everything in it escaped."""
    head = "".join(f"<th style='text-align:left'>{html.escape(c)}</th>" for c in columns)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows[:MOST_ROWS])
    left = len(rows) - MOST_ROWS
    rest = f"<tr><td colspan='{len(columns)}'>{more(left)}</td></tr>" if left > 0 else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}{rest}</tbody></table>"
    return f"<details open><summary>{html.escape(caption)}</summary>{table}</details>"


def _cells(row: Row) -> str:
    return "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
