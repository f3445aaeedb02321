"""The report of a verification: counts, the files as a strip, and a card for each kind of problem.

One table has the meaning and the remedy of each kind of problem.
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
from virtualds.pictures.blocks import Block, Card, Heading, Report, Table
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
    """The state of a file, for a reader."""

    sign: str
    name: str
    shade: Shade


SOUND = State("✓", "ok", OK)
LOST = State("✗", "missing", MISSING)
OTHER = State("!", "changed", CHANGED)
DAMAGED = State("✗", "unreadable or damaged", SERIES[4])
UNSEEN = State("?", NOT_COMPARED, UNKNOWN)


class Kind(NamedTuple):
    """A kind of problem: how it is counted, its meaning, its remedy, and code for it.

    In the code ``{urls}`` are the files, ``set_url`` is the set, and ``found`` is the report.
    """

    counted: str
    meaning: str
    state: State
    remedy: str
    code: str = ""


TAKE_OUT = "virtualds.drop_sources(set_url, {urls})"
SCAN_AGAIN = """for url in {urls}:
    again = virtualds.open_virtual_dataset(url)
    again.virtual.to_manifest(set_url, mode="replace-source")"""
CHANGE = (
    "if the change was meant, scan the file again (virtualds sync does that for all); else "
    "restore it"
)
KINDS: dict[str, Kind] = {
    "missing": Kind(
        "missing",
        "the file does not exist",
        LOST,
        "restore the file; name its new folder (virtualds rename-paths); or take it out of the set "
        "(virtualds drop-sources; or virtualds sync --on-removed drop, for all that are gone)",
        TAKE_OUT,
    ),
    "unreachable": Kind(
        "unreachable",
        "the file, or a part of it, cannot be read: no permission, no answer",
        DAMAGED,
        "check permissions, credentials and network, then verify again",
    ),
    "size": Kind(
        "of another size",
        "the length of the file has changed since the scan",
        OTHER,
        CHANGE,
        SCAN_AGAIN,
    ),
    "etag": Kind(
        "of another version",
        "the store reports another version than at the scan",
        OTHER,
        CHANGE,
        SCAN_AGAIN,
    ),
    "modified": Kind(
        "modified later",
        "the file was modified after the scan",
        OTHER,
        f"if it was copied without its time, copy it with cp -p or rsync -t; {CHANGE}",
        SCAN_AGAIN,
    ),
    "range": Kind(
        "outside of the file",
        "a reference is empty, negative, or extends past the end of its file",
        DAMAGED,
        "fetch the file again, or scan it again",
        SCAN_AGAIN,
    ),
    "references": Kind(
        "with unreadable references",
        "references of the set cannot be read",
        DAMAGED,
        "restore the set from a copy, or open an older snapshot of it",
    ),
    "undecodable": Kind(
        "undecodable",
        "bytes of a chunk or a member do not decode, or do not match their checksum",
        DAMAGED,
        "fetch the file again; or take it out of the set",
        TAKE_OUT,
    ),
    "differs": Kind(
        "with other values",
        "a chunk differs from what the native reader gives, or is not a chunk of its file",
        DAMAGED,
        "scan the file again, and report the difference",
        SCAN_AGAIN,
    ),
    NOT_COMPARED: Kind(
        NOT_COMPARED,
        "not checked, with the reason",
        UNSEEN,
        "the reason says what is needed",
    ),
}
"""The kinds of problems, the worst first."""

SHOWN_PROBLEMS = 10
"""Maximum number of problems of one kind that are shown; `Verification.to_dataframe` has all."""
WHERE_ALL = "see to_dataframe()"
NARROWEST = 0.006
"""The minimum share of the strip for a run of bad files, so that one of a million is visible."""
MAX_URLS = 5
"""Maximum number of files that the code names; it selects more from ``found``, the report."""


class Problem(NamedTuple):
    """A problem, or a check that could not be made.

    ``chunk`` is the chunk id in the grid of its fragment, or None if the problem concerns a whole
    file or variable. ``variable`` is empty if it concerns a whole file.
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


class FileRun(NamedTuple):
    """Consecutive files with the same worst kind of problem, or "" for none."""

    kind: str
    files: int


def list_runs(urls: Iterable[str], problems: Sequence[Problem]) -> tuple[FileRun, ...]:
    """Return the runs of consecutive files that have the same worst kind of problem.

    Examples
    --------
    >>> gone = Problem("b.nc", "", None, "missing", "there is no such file")
    >>> [run.files for run in list_runs(["a.nc", "b.nc", "c.nc", "d.nc"], [gone])]
    [1, 1, 2]
    """
    kinds = _find_worst(problems)
    runs = groupby(urls, key=lambda url: kinds.get(url, ""))
    return tuple(FileRun(kind, sum(1 for _ in members)) for kind, members in runs)


def _find_worst(problems: Sequence[Problem]) -> Mapping[str, str]:
    order = list(KINDS)
    worst: dict[str, str] = {}
    for problem in sorted(problems, key=lambda p: order.index(p.kind)):
        worst.setdefault(problem.url, problem.kind)
    return worst


# ---------------------------------------------------------------------- blocks


def draw_files(runs: Sequence[FileRun]) -> Markup | str:
    """Return all files as a strip, in order, with a legend; "" if there are no files."""
    total = sum(run.files for run in runs)
    if not total:
        return ""
    counts = dict.fromkeys((SOUND, OTHER, LOST, DAMAGED, UNSEEN), 0)
    spans, start = [Span(0, 1, OK)], 0
    for run in runs:
        state = KINDS[run.kind].state if run.kind else SOUND
        counts[state] += run.files
        if state is not SOUND:
            low = min(start / total, 1 - NARROWEST)
            label = f"{format_count(run.files, 'file')} {state.name}"
            spans.append(
                Span(low, max((start + run.files) / total, low + NARROWEST), state.shade, label)
            )
        start += run.files
    legend_rows = [(s.shade, f"{s.sign} {n:,} {s.name}") for s, n in counts.items() if n]
    drawn = draw_strip(spans, 1, title=f"{total:,} files in order")
    return element("div", drawn, draw_legend(legend_rows), style="--vds-height:22px;margin:8px 0")


def iterate_cards(problems: Sequence[Problem]) -> Iterator[Card]:
    """Yield a card for each kind of problem, with the first problems and the remedy."""
    for name, kind in KINDS.items():
        if of_kind := [problem for problem in problems if problem.kind == name]:
            rows = [
                (p.url, p.variable, "" if p.chunk is None else str(p.chunk), p.message)
                for p in of_kind[:SHOWN_PROBLEMS]
            ]
            head = ("file", "variable", "chunk", "what")
            table = Table(head, rows, max_rows=SHOWN_PROBLEMS, total=len(of_kind), rest=WHERE_ALL)
            yield Card(
                f"{name} ({len(of_kind):,})",
                [table],
                kind.meaning,
                kind.state.shade,
                kind.state.sign,
                kind.remedy,
                _write_code(kind, of_kind),
            )


def _write_code(kind: Kind, problems: Sequence[Problem]) -> str:
    """Return the code of a remedy, or "" if there is none or no file is at fault."""
    urls = list(dict.fromkeys(without_secrets(p.url) for p in problems if p.url))
    if not urls:
        return ""
    condition = f"kind == '{problems[0].kind}'"
    bad_urls = f'found.to_dataframe().query("{condition}")["url"].unique()'
    if len(urls) <= MAX_URLS:
        bad_urls = json.dumps(urls, ensure_ascii=False)
    return kind.code.format(urls=bad_urls)


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
        Number of source files. Each was checked once.
    fingerprinted : int
        Files whose modification time or etag was recorded and compared. The other files exist, and
        have their recorded size, if there is one.
    references : int
        Chunks in files.
    missing, inline : int
        Chunks that do not exist, and chunks that are stored among the references.
    loaded : int
        Variables with values in memory, which have no references.
    sampled : int
        Chunks that were drawn, from files that have not changed since the scan.
    compared : dict of str to int
        Number of drawn chunks that equal, bit for bit, what a native reader returns, by reader.
    problems : tuple of Problem
        All problems, and everything that was not checked.
    gaps : tuple of str
        Where times are missing in an otherwise regular coordinate. That is not a problem of
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
        """Number of problems of each kind, the worst first."""
        by_kind = Counter(problem.kind for problem in self.problems)
        return {kind: by_kind[kind] for kind in KINDS if kind in by_kind}

    def to_dataframe(self) -> pd.DataFrame:
        """Return the problems, one row per problem: url, variable, chunk, kind and message."""
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
        states = [KINDS[kind].state for kind in self.counts] or [UNSEEN]
        worst = min(states, key=[LOST, DAMAGED, OTHER, UNSEEN].index)
        state = SOUND if self.ok else worst
        yield Heading(self._verdict, [self._rows], state.shade, state.sign)
        yield draw_files(self.runs)
        yield from iterate_cards(self.problems)

    @property
    def _verdict(self) -> str:
        parts = [f"{n:,} {KINDS[kind].counted}" for kind, n in self.counts.items()]
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
            f"inline; {format_count(self.loaded, 'variable')} in memory",
        }
        if self.against == "native":
            equal = ", ".join(f"{n:,} equal those of {name}" for name, n in self.compared.items())
            rows["sample"] = f"{self.sampled:,} chunks drawn: {equal or 'none compared'}"
        if self.gaps:
            more = f" and {len(self.gaps) - 1:,} more" if len(self.gaps) > 1 else ""
            rows["gaps"] = f"{self.gaps[0]}{more}"
        return rows
