"""The report of a verification: counts, a strip of files, and a card for each kind of problem.

`KINDS` has the meaning and the remedy of each kind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import pandas as pd

from virtualds.errors import format_count, public, without_secrets
from virtualds.pictures import Block, Card, Heading, Report, Table
from virtualds.pictures.html import (
    CHANGED,
    MISSING,
    OK,
    SERIES,
    UNKNOWN,
    Markup,
    Shade,
    Span,
    draw_legend,
    draw_strip,
    element,
)

NOT_COMPARED = "not compared"


class State(NamedTuple):
    """The state of a file in the report."""

    sign: str
    name: str
    shade: Shade


OK_STATE = State("✓", "ok", OK)
MISSING_STATE = State("✗", "missing", MISSING)
CHANGED_STATE = State("!", "changed", CHANGED)
DAMAGED_STATE = State("✗", "unreadable or damaged", SERIES[4])
UNCHECKED_STATE = State("?", NOT_COMPARED, UNKNOWN)
WORST_FIRST = (MISSING_STATE, DAMAGED_STATE, CHANGED_STATE, UNCHECKED_STATE)


class ProblemKind(NamedTuple):
    """A kind of problem.

    ``counted`` follows the number of problems in the summary. In ``code``, ``{urls}`` stands for
    the files, ``set_url`` for the set, and ``found`` for the report.
    """

    counted: str
    meaning: str
    state: State
    remedy: str
    code: str = ""


DROP_CODE = "virtualds.drop_sources(set_url, {urls})"
RESCAN_CODE = """for url in {urls}:
    again = virtualds.open_virtual_dataset(url)
    again.virtual.to_manifest(set_url, mode="replace-source")"""
CHANGE_REMEDY = (
    "if the change was intended, scan the file again (virtualds sync does that for all); else "
    "restore it"
)
KINDS: dict[str, ProblemKind] = {
    "missing": ProblemKind(
        "missing",
        "the file does not exist",
        MISSING_STATE,
        "restore the file; name its new folder (virtualds rename-paths); or take it out of the set "
        "(virtualds drop-sources; or virtualds sync --on-removed drop, for all that are gone)",
        DROP_CODE,
    ),
    "unreachable": ProblemKind(
        "unreachable",
        "the file, or a part of it, cannot be read: no permission, no answer",
        DAMAGED_STATE,
        "check permissions, credentials and network, then verify again",
    ),
    "size": ProblemKind(
        "of another size",
        "the length of the file has changed since the scan",
        CHANGED_STATE,
        CHANGE_REMEDY,
        RESCAN_CODE,
    ),
    "etag": ProblemKind(
        "of another version",
        "the store reports another version than at the scan",
        CHANGED_STATE,
        CHANGE_REMEDY,
        RESCAN_CODE,
    ),
    "modified": ProblemKind(
        "modified later",
        "the file was modified after the scan",
        CHANGED_STATE,
        f"if it was copied without its time, copy it with cp -p or rsync -t; {CHANGE_REMEDY}",
        RESCAN_CODE,
    ),
    "range": ProblemKind(
        "outside of the file",
        "a reference is empty, negative, or extends past the end of its file",
        DAMAGED_STATE,
        "fetch the file again, or scan it again",
        RESCAN_CODE,
    ),
    "references": ProblemKind(
        "with unreadable references",
        "references of the set cannot be read",
        DAMAGED_STATE,
        "restore the set from a copy, or open an older snapshot of it",
    ),
    "undecodable": ProblemKind(
        "undecodable",
        "bytes of a chunk or a member do not decode, or do not match their checksum",
        DAMAGED_STATE,
        "fetch the file again; or take it out of the set",
        DROP_CODE,
    ),
    "differs": ProblemKind(
        "with other values",
        "a chunk differs from what the native reader gives, or is not a chunk of its file",
        DAMAGED_STATE,
        "scan the file again, and report the difference",
        RESCAN_CODE,
    ),
    NOT_COMPARED: ProblemKind(
        NOT_COMPARED,
        "not checked, with the reason",
        UNCHECKED_STATE,
        "the reason says what is needed",
    ),
}
"""Kinds of problems, the worst first."""

SHOWN_PROBLEMS = 10
"""Maximum number of problems of one kind that are shown; `Verification.to_dataframe` has all."""
WHERE_ALL = "see to_dataframe()"
MIN_SPAN_WIDTH = 0.006
"""Minimum width of bad files as a fraction of the strip, so that one of a million is visible."""
MAX_URLS = 5
"""Maximum number of urls in the code; if there are more, the code selects them from the report."""


class Problem(NamedTuple):
    """A problem, or a check that was not possible.

    ``chunk`` is the chunk id in the grid of the fragment, or None for a problem of a whole file or
    variable. ``variable`` is empty for a problem of a whole file.
    """

    url: str
    variable: str
    chunk: tuple[int, ...] | None
    kind: str
    message: str

    def __str__(self) -> str:
        chunk = f", chunk {self.chunk}" if self.chunk is not None else ""
        variable = f"{self.variable}{chunk}" if self.variable else ""
        text = ": ".join(part for part in (self.url, variable, self.message) if part)
        return without_secrets(text)


class FileRun(NamedTuple):
    """Consecutive files whose worst problems are of the same kind, or "" without problems."""

    kind: str
    files: int


def list_runs(urls: Iterable[str], problems: Sequence[Problem]) -> tuple[FileRun, ...]:
    """Group consecutive files by the kind of their worst problem.

    Examples
    --------
    >>> problem = Problem("b.nc", "", None, "missing", "there is no such file")
    >>> [run.files for run in list_runs(["a.nc", "b.nc", "c.nc", "d.nc"], [problem])]
    [1, 1, 2]
    """
    kinds = _find_worst_kinds(problems)
    runs = groupby(urls, key=lambda url: kinds.get(url, ""))
    return tuple(FileRun(kind, sum(1 for _ in members)) for kind, members in runs)


def _find_worst_kinds(problems: Sequence[Problem]) -> Mapping[str, str]:
    """Return the kind of the worst problem of each file."""
    order = list(KINDS)
    kinds: dict[str, str] = {}
    for problem in sorted(problems, key=lambda p: order.index(p.kind)):
        kinds.setdefault(problem.url, problem.kind)
    return kinds


# ---------------------------------------------------------------------- blocks


def draw_files(runs: Sequence[FileRun]) -> Markup | str:
    """Return a strip of all files in order with a legend, or "" if there are no files."""
    total = sum(run.files for run in runs)
    if not total:
        return ""
    counts = dict.fromkeys(
        (OK_STATE, CHANGED_STATE, MISSING_STATE, DAMAGED_STATE, UNCHECKED_STATE), 0
    )
    spans, start = [Span(0, 1, OK)], 0
    for run in runs:
        state = KINDS[run.kind].state if run.kind else OK_STATE
        counts[state] += run.files
        if state is not OK_STATE:
            low = min(start / total, 1 - MIN_SPAN_WIDTH)
            high = max((start + run.files) / total, low + MIN_SPAN_WIDTH)
            label = f"{format_count(run.files, 'file')} {state.name}"
            spans.append(Span(low, high, state.shade, label))
        start += run.files
    strip = draw_strip(spans, 1, title=f"{total:,} files in order")
    entries = [(s.shade, f"{s.sign} {n:,} {s.name}") for s, n in counts.items() if n]
    return element("div", strip, draw_legend(entries), style="--vds-height:22px;margin:8px 0")


def iterate_cards(problems: Sequence[Problem]) -> Iterator[Card]:
    """Yield a card for each kind of problem, with the first problems and the remedy."""
    for name, kind in KINDS.items():
        if members := [problem for problem in problems if problem.kind == name]:
            rows = [
                (p.url, p.variable, "" if p.chunk is None else str(p.chunk), p.message)
                for p in members[:SHOWN_PROBLEMS]
            ]
            head = ("file", "variable", "chunk", "what")
            table = Table(head, rows, max_rows=SHOWN_PROBLEMS, total=len(members), rest=WHERE_ALL)
            yield Card(
                f"{name} ({len(members):,})",
                [table],
                kind.meaning,
                kind.state.shade,
                kind.state.sign,
                kind.remedy,
                _format_code(kind, members),
            )


def _format_code(kind: ProblemKind, problems: Sequence[Problem]) -> str:
    """Return the code of the remedy, or "" if the kind has none or no problem names a file."""
    urls = list(dict.fromkeys(without_secrets(p.url) for p in problems if p.url))
    if not urls:
        return ""
    condition = f"kind == '{problems[0].kind}'"
    expression = f'found.to_dataframe().query("{condition}")["url"].unique()'
    if len(urls) <= MAX_URLS:
        expression = json.dumps(urls, ensure_ascii=False)
    return kind.code.format(urls=expression)


# ---------------------------------------------------------------------- report


@public
@dataclass(frozen=True, repr=False)
class Verification(Report):
    """The result of `ds.virtual.verify`.

    Parameters
    ----------
    against : str
        The argument: ``"fingerprint"``, ``"range"`` or ``"native"``.
    files : int
        Number of source files.
    fingerprinted : int
        Number of files whose modification time or etag was compared. Other files were only checked
        for existence, and for their size if it is recorded.
    references : int
        Number of chunks in files.
    missing, inline : int
        Number of missing chunks, and of chunks that are stored with the references.
    loaded : int
        Number of variables in memory, which have no references.
    sampled : int
        Number of chunks in the sample, from files that have not changed since the scan.
    compared : dict of str to int
        Number of chunks in the sample that are equal, bit for bit, to those of a native reader, by
        reader.
    problems : tuple of Problem
        All problems, and checks that were not possible.
    gaps : tuple of str
        Gaps in otherwise regular time coordinates. They are not problems of references: the
        archive may have no files for these times.
    runs : tuple of FileRun
        The states of all files in order.

    Raises
    ------
    ValueError
        A problem has an unknown kind.

    Examples
    --------
    >>> result = Verification("fingerprint", files=2, fingerprinted=2, references=24)
    >>> result.ok
    True
    >>> print(result)
    verified against fingerprint: ok
      files        2, 2 unchanged since the scan
      fingerprint  2 compared by time or etag
      chunks       24 in files, 0 missing, 0 inline; 0 variables in memory
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

    _title = "Verification"

    def __post_init__(self) -> None:
        if unknown := {problem.kind for problem in self.problems} - KINDS.keys():
            raise ValueError(f"Verification: unknown kinds of problems {sorted(unknown)}")

    @property
    def ok(self) -> bool:
        """Whether everything was checked and has no problem."""
        return not self.problems and not self._lacks_comparison

    @property
    def _lacks_comparison(self) -> bool:
        return self.against == "native" and not self.compared

    @property
    def bad_files(self) -> int:
        """Number of files with a problem."""
        return len({p.url for p in self.problems if p.kind != NOT_COMPARED and p.url})

    @property
    def counts(self) -> dict[str, int]:
        """Number of problems of each kind, the worst first."""
        by_kind = Counter(problem.kind for problem in self.problems)
        return {kind: by_kind[kind] for kind in KINDS if kind in by_kind}

    def to_dataframe(self) -> pd.DataFrame:
        """Return a table of problems with columns url, variable, chunk, kind and message."""
        return pd.DataFrame(list(self.problems), columns=list(Problem._fields))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        return {
            "ok": self.ok,
            **super().to_dict(),
            "bad_files": self.bad_files,
            "counts": self.counts,
        }

    def _iterate_blocks(self) -> Iterator[Block]:
        states = [KINDS[kind].state for kind in self.counts] or [UNCHECKED_STATE]
        worst = min(states, key=WORST_FIRST.index)
        state = OK_STATE if self.ok else worst
        yield Heading(self._summary, [self._facts], state.shade, state.sign)
        yield draw_files(self.runs)
        yield from iterate_cards(self.problems)

    @property
    def _summary(self) -> str:
        parts = [f"{n:,} {KINDS[kind].counted}" for kind, n in self.counts.items()]
        parts += ["nothing was compared"] if self._lacks_comparison else []
        return f"verified against {self.against}: {', '.join(parts) or 'ok'}"

    @property
    def _facts(self) -> dict[str, str]:
        others = self.files - self.fingerprinted
        note = f"; {others:,} only for existence, and size if known" if others else ""
        facts = {
            "files": f"{self.files:,}, {self.files - self.bad_files:,} unchanged since the scan",
            "fingerprint": f"{self.fingerprinted:,} compared by time or etag{note}",
            "chunks": f"{self.references:,} in files, {self.missing:,} missing, {self.inline:,} "
            f"inline; {format_count(self.loaded, 'variable')} in memory",
        }
        if self.against == "native":
            equal = ", ".join(f"{n:,} equal those of {name}" for name, n in self.compared.items())
            facts["sample"] = f"{self.sampled:,} chunks drawn: {equal or 'none compared'}"
        if self.gaps:
            others_note = f" and {len(self.gaps) - 1:,} more" if len(self.gaps) > 1 else ""
            facts["gaps"] = f"{self.gaps[0]}{others_note}"
        return facts
