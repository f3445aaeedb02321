"""The report of a verification: counts, and a row for each problem.

What a verification finds: problems, and the state of the files in order.

What to do about each kind of problem that a verification finds: a table.

A verification as HTML: the files as a strip, and a card for each kind of problem.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import pandas as pd

from virtualds.errors import format_count, public, without_secrets
from virtualds.pictures.html import (
    CHANGED,
    MISSING,
    OK,
    SERIES,
    UNKNOWN,
    Markup,
    Shade,
    Span,
    cell,
    draw_card,
    draw_heading,
    element,
    facts,
    key,
    page,
    strip,
    table,
)

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


class FileRun(NamedTuple):
    """Files after one another with the same gravest kind of problem; "" is none."""

    kind: str
    files: int


def list_runs(urls: Iterable[str], problems: Sequence[Problem]) -> tuple[FileRun, ...]:
    """Return how many files after one another have the same gravest kind of problem.

    Examples
    --------
    >>> gone = Problem("b.nc", "", None, "missing", "there is no such file")
    >>> [run.files for run in list_runs(["a.nc", "b.nc", "c.nc", "d.nc"], [gone])]
    [1, 1, 2]
    """
    kinds = _find_gravest(problems)
    runs = groupby(urls, key=lambda url: kinds.get(url, ""))
    return tuple(FileRun(kind, sum(1 for _ in members)) for kind, members in runs)


def _find_gravest(problems: Sequence[Problem]) -> Mapping[str, str]:
    order = list(KINDS)
    found: dict[str, str] = {}
    for problem in sorted(problems, key=lambda p: order.index(p.kind)):
        found.setdefault(problem.url, problem.kind)
    return found


# ---------------------------------------------------------------------- remedies


class Remedy(NamedTuple):
    """What to do about a kind of problem, and code that does it.

    In the code ``{urls}`` are the files, ``set_url`` is the set, and ``found`` is the report.
    """

    words: str
    code: str = ""


TAKE_OUT = "virtualds.drop_sources(set_url, {urls})"
SCAN_AGAIN = """for url in {urls}:
    again = virtualds.open_virtual_dataset(url)
    again.virtual.to_manifest(set_url, mode="replace-source")"""
CHANGED_FILE = Remedy(
    "if the change was meant, scan the file again (virtualds sync does that for all); else "
    "restore it",
    SCAN_AGAIN,
)
OTHER_TIME = Remedy(
    "if it was copied without its time, copy it with cp -p or rsync -t; if the change was meant, "
    "scan the file again (virtualds sync does that for all); else restore it",
    SCAN_AGAIN,
)
REMEDIES: dict[str, Remedy] = {
    "missing": Remedy(
        "restore the file; name its new folder (virtualds rename-paths); or take it out of the set "
        "(virtualds drop-sources; or virtualds sync --on-removed drop, for all that are gone)",
        TAKE_OUT,
    ),
    "unreachable": Remedy("check permissions, credentials and network, then verify again"),
    "size": CHANGED_FILE,
    "etag": CHANGED_FILE,
    "modified": OTHER_TIME,
    "range": Remedy("fetch the file again, or scan it again", SCAN_AGAIN),
    "references": Remedy("restore the set from a copy, or open an older snapshot of it"),
    "undecodable": Remedy("fetch the file again; or take it out of the set", TAKE_OUT),
    "differs": Remedy("scan the file again, and report the difference", SCAN_AGAIN),
    NOT_COMPARED: Remedy("the reason says what is needed"),
}


# ---------------------------------------------------------------------- html report

NARROWEST = 0.006
"""Least part of the strip that a run of bad files takes, so that one of a million is seen."""


MOST_URLS = 5
"""Most files that the code names; it selects more of them from ``found``, the report."""


class State(NamedTuple):
    """The state of a file, for a reader."""

    sign: str
    name: str
    shade: Shade


SOUND = State("✓", "ok", OK)
LOST = State("✗", "missing", MISSING)
OTHER = State("!", "changed", CHANGED)
DAMAGED = State("✗", "unreadable or damaged", SERIES[4])
UNSEEN = State("?", "not compared", UNKNOWN)
STATES: dict[str, State] = {
    "": SOUND,
    "missing": LOST,
    "size": OTHER,
    "etag": OTHER,
    "modified": OTHER,
    NOT_COMPARED: UNSEEN,
}
"""The states of files, by their gravest kind of problem; all others are damage."""


def draw_verdict(
    verdict: str, rows: Mapping[str, str], problems: Sequence[Problem], ok: bool
) -> Markup:
    """Return the verdict, with what was counted below it."""
    states = [STATES.get(problem.kind, DAMAGED) for problem in problems] or [UNSEEN]
    worst = min(states, key=[LOST, DAMAGED, OTHER, UNSEEN].index)
    state = SOUND if ok else worst
    return draw_heading(f"{state.sign} {verdict}", facts(rows), shade=state.shade)


def draw_files(runs: Sequence[FileRun]) -> Markup | None:
    """Return all files as a strip, in order, with a key; None if there are no files."""
    total = sum(run.files for run in runs)
    if not total:
        return None
    counts = dict.fromkeys((SOUND, OTHER, LOST, DAMAGED, UNSEEN), 0)
    spans, start = [Span(0, 1, OK)], 0
    for run in runs:
        state = STATES.get(run.kind, DAMAGED)
        counts[state] += run.files
        if state is not SOUND:
            low = min(start / total, 1 - NARROWEST)
            words = f"{format_count(run.files, 'file')} {state.name}"
            spans.append(
                Span(low, max((start + run.files) / total, low + NARROWEST), state.shade, words)
            )
        start += run.files
    shown = [(s.shade, f"{s.sign} {n:,} {s.name}") for s, n in counts.items() if n]
    drawn = strip(spans, 1, title=f"{total:,} files in order")
    return element("div", drawn, key(shown), style="--vds-height:22px;margin:8px 0")


def draw_problems(problems: Sequence[Problem]) -> Iterator[Markup]:
    """Yield a card for each kind of problem, with the first of them and the remedy."""
    for kind, meaning in KINDS.items():
        found = [problem for problem in problems if problem.kind == kind]
        if found:
            state, remedy = STATES.get(kind, DAMAGED), REMEDIES[kind]
            yield draw_card(
                f"{state.sign} {kind}",
                _list_rows(found),
                note=f"{len(found):,}: {meaning}",
                shade=state.shade,
                remedy=remedy.words,
                code=_write_code(remedy, found),
            )


def _write_code(remedy: Remedy, problems: Sequence[Problem]) -> str:
    """Return the code of a remedy, "" if there is none or no file is at fault."""
    urls = list(dict.fromkeys(without_secrets(p.url) for p in problems if p.url))
    if not urls:
        return ""
    kind = f"kind == '{problems[0].kind}'"
    listed = f'found.to_dataframe().query("{kind}")["url"].unique()'
    if len(urls) <= MOST_URLS:
        listed = json.dumps(urls, ensure_ascii=False)
    return remedy.code.format(urls=listed)


def _list_rows(problems: Sequence[Problem]) -> Markup:
    """Return the first problems as a table, without columns that say nothing."""
    head = ("file", "variable", "chunk", "what")
    rows = [
        (p.url, p.variable, "" if p.chunk is None else str(p.chunk), p.message)
        for p in problems[:SHOWN_PROBLEMS]
    ]
    told = [column for column in range(len(head)) if any(row[column] for row in rows)]
    return table(
        [head[column] for column in told],
        [[row[column] for column in told] for row in rows],
        total=len(problems),
    )


# ---------------------------------------------------------------------- report


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
            f"inline; {format_count(self.loaded, 'variable')} in memory",
        }
        if self.against == "native":
            equal = ", ".join(f"{n:,} equal those of {name}" for name, n in self.compared.items())
            rows["sample"] = f"{self.sampled:,} chunks drawn: {equal or 'none compared'}"
        if self.gaps:
            more = f" and {len(self.gaps) - 1:,} more" if len(self.gaps) > 1 else ""
            rows["gaps"] = f"{self.gaps[0]}{more}"
        return rows
