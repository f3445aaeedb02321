"""The table of what rewriting costs: a pandas table that is readable on 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

import pandas as pd

from virtualds.errors import without_secrets
from virtualds.pictures.html import cell, element, table
from virtualds.quantities import format_bytes, format_count

COLUMNS = ["variable", "chunks", "rewritten", "bytes", "encoding", "reason"]
WIDTH = 80
"""Letters of a line, if words allow that."""
MOST_ROWS = 20
"""Variables that a text shows; the table has them all."""


class CostTable(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """A row for each virtual variable: what rewriting it costs, and why.

    It is a pandas table in all but its looks; what is made of it is a plain one.

    Examples
    --------
    >>> row = ("t", 8, 7, 30380, "float32, zlib, chunks (31, 5)", "chunk lengths vary")
    >>> CostTable([row, ("lat", 1, 0, 0, "", "")], columns=COLUMNS)
    7 of 9 chunks to rewrite, 30.4 kB decoded
      t: 7 of 8 chunks, 30.4 kB
          as float32, zlib, chunks (31, 5)
          since chunk lengths vary
      lat: nothing
    """

    def __repr__(self) -> str:
        rows = [line for n in range(min(len(self), MOST_ROWS)) for line in self._describe_row(n)]
        more = len(self) - MOST_ROWS
        rest = [f"  ... and {more:,} more variables"] if more > 0 else []
        return without_secrets("\n".join([self._summary, *rows, *rest]))

    def _repr_html_(self) -> str:
        cells = [
            (r.variable, f"{r.chunks:,}", f"{r.rewritten:,}", format_bytes(r.bytes), *r[5:])
            for r in self.itertuples()
        ]
        head = element("div", self._summary, class_="vds-title")
        return without_secrets(cell(head, table(COLUMNS, cells, numbers=[1, 2, 3])))

    @property
    def _summary(self) -> str:
        return (
            f"{self['rewritten'].sum():,} of {format_count(int(self['chunks'].sum()), 'chunk')} to "
            f"rewrite, {format_bytes(self['bytes'].sum())} decoded"
        )

    def _describe_row(self, number: int) -> Iterator[str]:
        row = self.iloc[number]
        if not row["rewritten"]:
            yield f"  {row['variable']}: nothing"
            return
        of = format_count(int(row["chunks"]), "chunk")
        yield f"  {row['variable']}: {row['rewritten']:,} of {of}, {format_bytes(row['bytes'])}"
        for text in (f"as {row['encoding']}", f"since {row['reason']}"):
            yield from wrap(
                *(text, WIDTH),
                initial_indent=" " * 6,
                subsequent_indent=" " * 8,
                break_long_words=False,
                break_on_hyphens=False,
            )
