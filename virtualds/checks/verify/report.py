"""The report of a verification: counts, and a row for each problem."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from virtualds.errors import without_secrets
from virtualds.public import public

KINDS: dict[str, str] = {
    "missing": "the file does not exist",
    "unreachable": "the file, or a part of it, cannot be read: no permission, no answer",
    "size": "the length of the file has changed since the scan",
    "etag": "the store reports another version than at the scan",
    "modified": "the file was modified after the scan",
    "range": "a reference is empty, negative, or extends past the end of its file",
    "references": "references of the set cannot be read",
    "undecodable": "bytes of a chunk or a member do not decode, or do not match their checksum",
    "differs": "a chunk differs from what the native reader gives, or is not a chunk of its file",
    "not compared": "not checked, with the reason",
}
"""The kinds of problems, the gravest first."""
NOT_COMPARED = "not compared"

SHOWN_PROBLEMS = 10
"""Problems of one kind that the text shows; `Verification.to_dataframe` has them all."""


class Problem(NamedTuple):
    """Something that is wrong, or that was not checked.

    ``chunk`` is the chunk id in the grid of its fragment; None if the problem concerns a whole file
    or variable. ``variable`` is empty if it concerns a whole file.
    """

    url: str
    variable: str
    chunk: tuple[int, ...] | None
    kind: str
    message: str

    def __str__(self) -> str:
        at = f", chunk {self.chunk}" if self.chunk is not None else ""
        who = f"{self.variable}{at}" if self.variable else ""
        text = ": ".join(part for part in (self.url, who, self.message) if part)
        return without_secrets(text)


@public
@dataclass(frozen=True)
class Verification:
    """The result of `ds.virtual.verify`.

    Parameters
    ----------
    against : str
        The argument: ``"fingerprint"``, ``"range"`` or ``"native"``.
    files : int
        Number of source files. Each was checked once.
    fingerprinted : int
        Files whose modification time or etag was recorded and compared. The other files exist, and
        have their recorded size, if there is one.
    references : int
        Chunks that lie in files.
    missing, inline : int
        Chunks that do not exist, and chunks that are stored among the references.
    loaded : int
        Variables with values in memory, which have no references.
    sampled : int
        Chunks that were drawn, from files that have not changed since the scan.
    compared : dict of str to int
        Number of drawn chunks that equal, bit for bit, what a native reader gives, by reader.
    problems : tuple of Problem
        All problems, and everything that was not checked.
    gaps : tuple of str
        Where times are missing in an otherwise regular coordinate. That is no problem of
        references: the archive may have no files there.

    Raises
    ------
    ValueError
        A problem has an unknown kind.

    Examples
    --------
    >>> found = Verification("fingerprint", files=2, fingerprinted=2, references=24)
    >>> found.ok
    True
    >>> print(found)
    verified against fingerprint: ok
      files       2, 2 unchanged since the scan
      fingerprint 2 compared by time or etag
      chunks      24 in files, 0 missing, 0 inline; 0 variables in memory
    """

    against: str
    files: int = 0
    fingerprinted: int = 0
    references: int = 0
    missing: int = 0
    inline: int = 0
    loaded: int = 0
    sampled: int = 0
    compared: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    gaps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := {problem.kind for problem in self.problems} - KINDS.keys():
            raise ValueError(f"Verification: unknown kinds of problems {sorted(unknown)}")

    @property
    def ok(self) -> bool:
        """Whether everything was checked and nothing is wrong."""
        return not self.problems and not self._compared_nothing

    @property
    def _compared_nothing(self) -> bool:
        return self.against == "native" and not self.compared

    @property
    def bad_files(self) -> int:
        """Number of files with a known problem."""
        return len({p.url for p in self.problems if p.kind != NOT_COMPARED and p.url})

    @property
    def counts(self) -> dict[str, int]:
        """Number of problems of each kind, the gravest first."""
        found = Counter(problem.kind for problem in self.problems)
        return {kind: found[kind] for kind in KINDS if kind in found}

    def to_dataframe(self) -> pd.DataFrame:
        """Return the problems, one row each: url, variable, chunk, kind and message."""
        return pd.DataFrame(list(self.problems), columns=list(Problem._fields))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary that JSON can hold."""
        rows = [problem._asdict() for problem in self.problems]
        lists = [row | {"chunk": row["chunk"] and list(row["chunk"])} for row in rows]
        plain = asdict(self) | {"problems": lists, "compared": dict(self.compared)}
        plain["gaps"] = list(self.gaps)
        return {"ok": self.ok, **plain, "bad_files": self.bad_files, "counts": self.counts}

    def __str__(self) -> str:
        lines = [self._verdict, *(f"  {name:<11} {text}" for name, text in self._rows.items())]
        for kind in self.counts:
            found = [problem for problem in self.problems if problem.kind == kind]
            lines.append(f"{kind} ({len(found):,}): {KINDS[kind]}")
            lines += [f"  {problem}" for problem in found[:SHOWN_PROBLEMS]]
            if len(found) > SHOWN_PROBLEMS:
                lines.append(f"  ... and {len(found) - SHOWN_PROBLEMS:,} more, see to_dataframe()")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shown = [p for kind in self.counts for p in self._list_first(kind)]
        cells = ((p.kind, p.url, p.variable, "" if p.chunk is None else p.chunk, p.message)
                 for p in shown)  # fmt: skip
        more = len(self.problems) - len(shown)
        rest = f"<p>... and {more:,} more, see to_dataframe()</p>" if more else ""
        problems = (
            _format_table(("kind", "file", "variable", "chunk", "what"), cells) if shown else ""
        )
        rows = _format_table((), self._rows.items())
        verdict = html.escape(self._verdict)
        return without_secrets(f"<div><b>{verdict}</b>{rows}{problems}{rest}</div>")

    def _list_first(self, kind: str) -> list[Problem]:
        return [problem for problem in self.problems if problem.kind == kind][:SHOWN_PROBLEMS]

    @property
    def _verdict(self) -> str:
        parts = [f"{n:,} {kind}" for kind, n in self.counts.items()]
        parts += ["nothing was compared"] if self._compared_nothing else []
        return f"verified against {self.against}: {', '.join(parts) or 'ok'}"

    @property
    def _rows(self) -> dict[str, str]:
        others = self.files - self.fingerprinted
        weaker = f"; {others:,} only for existence, and size if known" if others else ""
        rows = {
            "files": f"{self.files:,}, {self.files - self.bad_files:,} unchanged since the scan",
            "fingerprint": f"{self.fingerprinted:,} compared by time or etag{weaker}",
            "chunks": f"{self.references:,} in files, {self.missing:,} missing, {self.inline:,} "
            f"inline; {self.loaded:,} variables in memory",
        }
        if self.against == "native":
            equal = ", ".join(f"{n:,} equal those of {name}" for name, n in self.compared.items())
            rows["sample"] = f"{self.sampled:,} chunks drawn: {equal or 'none compared'}"
        if self.gaps:
            more = f" and {len(self.gaps) - 1:,} more" if len(self.gaps) > 1 else ""
            rows["gaps"] = f"{self.gaps[0]}{more}"
        return rows


def _format_table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return an HTML table with escaped cells."""
    names = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in head)
    lines = [f"<tr>{names}</tr>"] if names else []
    for row in rows:
        cells = "".join(
            f"<td style='text-align:left'>{html.escape(str(cell))}</td>" for cell in row
        )
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"
