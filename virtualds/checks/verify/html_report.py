"""A verification as HTML: the files as a strip, and a card for each kind of problem."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from virtualds.checks.verify.findings import KINDS, NOT_COMPARED, SHOWN_PROBLEMS, FileRun, Problem
from virtualds.checks.verify.remedies import REMEDIES, Remedy
from virtualds.errors import without_secrets
from virtualds.pictures.html import Markup, element, facts, table
from virtualds.pictures.palette import CHANGED, MISSING, OK, SERIES, UNKNOWN, Shade
from virtualds.pictures.reports import draw_card, draw_heading
from virtualds.pictures.svg import Span, key, strip
from virtualds.quantities import format_count

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
