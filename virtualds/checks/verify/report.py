"""The report of a verification: counts, and a row for each problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd

from virtualds.checks.verify.findings import KINDS, NOT_COMPARED, SHOWN_PROBLEMS, FileRun, Problem
from virtualds.checks.verify.html_report import draw_files, draw_problems, draw_verdict
from virtualds.checks.verify.remedies import REMEDIES
from virtualds.errors import without_secrets
from virtualds.pictures.html import Markup, cell, page
from virtualds.public import public


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
    runs : tuple of FileRun
        The state of all files, in order.

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
    runs: tuple[FileRun, ...] = ()

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
        plain["runs"] = [run._asdict() for run in self.runs]
        return {"ok": self.ok, **plain, "bad_files": self.bad_files, "counts": self.counts}

    def __str__(self) -> str:
        lines = [self._verdict, *(f"  {name:<11} {text}" for name, text in self._rows.items())]
        for kind in self.counts:
            found = [problem for problem in self.problems if problem.kind == kind]
            lines.append(f"{kind} ({len(found):,}): {KINDS[kind]}")
            lines += [f"  {problem}" for problem in found[:SHOWN_PROBLEMS]]
            if len(found) > SHOWN_PROBLEMS:
                lines.append(f"  ... and {len(found) - SHOWN_PROBLEMS:,} more, see to_dataframe()")
            lines.append(f"  do: {REMEDIES[kind].words}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return without_secrets(cell(*self._draw()))

    def to_html(self) -> str:
        """Return the report as a page of its own.

        Examples
        --------
        >>> page = Verification("fingerprint", files=2, fingerprinted=2).to_html()
        >>> "verified against fingerprint: ok" in page
        True
        """
        return without_secrets(page("Verification", *self._draw()))

    def _draw(self) -> list[Markup | None]:
        return [
            draw_verdict(self._verdict, self._rows, self.problems, self.ok),
            draw_files(self.runs),
            *draw_problems(self.problems),
        ]

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
