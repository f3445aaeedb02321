"""From what the files of an archive say to its eras and differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from virtualds.checks.diagnose.explanations import GAP, OPENING, ORDER, OVERLAP, Change, Pair
from virtualds.checks.diagnose.fact_runs import MOST_VALUES, Run, is_steady
from virtualds.checks.diagnose.guess_dimension import Placed, Span, disordered, gaps, overlapping
from virtualds.checks.diagnose.report import VERDICTS, Difference, Era
from virtualds.checks.diagnose.scan_files import Survey
from virtualds.checks.diagnose.trial_combine import HOLD, Trial, combining, judged, refused_by
from virtualds.combine.open_file import FAULTS
from virtualds.datasets.structure import (
    ABSENT,
    ATTRIBUTE,
    CHUNKS,
    CODECS,
    DIMENSIONS,
    DTYPE,
    FILL,
    PRESENCE,
    SCALE,
    SIZE,
    STORED,
    THERE,
    UNITS,
    VALUES,
    Fact,
    text_of,
)

OWN = (ATTRIBUTE, SCALE, FILL, UNITS, VALUES)
"""What files may have each for themselves; such texts are no eras."""


def eras_of(survey: Survey, joined: Sequence[str]) -> tuple[Era, ...]:
    """Return the eras of an archive, and after them the files that cannot be opened."""
    changing = [f for f in survey.courses.changing() if not _is_joined(survey, f, joined)]
    making = [f for f in changing if _makes_eras(survey, f)]
    numbers = survey.courses.eras(making)
    placed = dict(survey.spans.get(joined[0], ())) if len(joined) == 1 else {}
    found = [
        _era(survey, np.flatnonzero(numbers == n).tolist(), placed)
        for n in range(int(numbers.max(initial=-1)) + 1)
    ]
    return (*found, *(era for era, _ in _unreadable(survey)))


def _makes_eras(survey: Survey, fact: Fact) -> bool:
    counts = survey.courses.counts(fact)
    if fact.aspect.startswith(CHUNKS):
        return not _is_many(len(set(survey.courses.column(fact).tolist())))
    return is_steady(counts) or (not fact.aspect.startswith(OWN) and not _is_many(len(counts)))


def _is_many(count: int) -> bool:
    return count > MOST_VALUES


def _era(survey: Survey, members: Sequence[int], placed: dict[int, Span]) -> Era:
    files = [survey.files[members[0]], survey.files[members[-1]]]
    found = [placed[n] for n in members if n in placed]
    try:
        bounds = [min(s.start for s in found), max(s.stop for s in found)] if found else []
    except TypeError:
        bounds = []  # dates of two calendars have no order
    return Era(len(members), *files, *map(text_of, bounds))


def _unreadable(survey: Survey) -> Iterator[tuple[Era, bool]]:
    """Yield the files that cannot be opened, by their errors, and whether it is their fault."""
    kinds: dict[tuple[str, bool], list[tuple[str, str]]] = {}
    for file, (reason, is_fault) in survey.unreadable:
        kinds.setdefault((reason.partition(":")[0], is_fault), []).append((file, reason))
    for (_, is_fault), found in kinds.items():
        (first, reason), (last, _) = found[0], found[-1]
        yield Era(len(found), first, last, reason=reason), is_fault


# ---------------------------------------------------------------------- differences


def differences_of(survey: Survey, trial: Trial) -> tuple[Difference, ...]:
    """Return all differences, judged, the worst first."""
    by_pair: dict[Pair, list[Change]] = {}
    for change in _changes(survey, trial.dims):
        by_pair.setdefault(change.pair, []).append(change)
    # if no file is left, the first error is raised
    leaves_out = trial.leaves_out and bool(survey.files)
    found = [
        _opening(era, leaves_out=is_fault and leaves_out) for era, is_fault in _unreadable(survey)
    ]
    found += [row for pair, changes in by_pair.items() for row in judged(pair, changes, trial)]
    for files in _ends(survey.files) if not any(d.verdict == "blocks" for d in found) else ():
        if files not in by_pair:
            found += combining(files, trial)
    return tuple(sorted(found, key=lambda d: VERDICTS.index(d.verdict)))


def _ends(files: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the first two files, the first three, and the first and the last."""
    found = (tuple(files[:2]), tuple(files[:3]), (*files[:1], *files[-1:]))
    return [some for some in dict.fromkeys(found) if len(set(some)) > 1]


def formats_for(survey: Survey, differences: Sequence[Difference], trial: Trial) -> tuple[str, ...]:
    """Return the formats that can hold all that was tried, and the first three files."""
    refused = {name for row in differences for name in row.refused}
    try:
        refused.update(refused_by(trial.combined(survey.files[:3])) if survey.files else HOLD)
    except FAULTS:
        return ()  # what blocks is told
    return tuple(name for name in HOLD if name not in refused)


def _opening(era: Era, *, leaves_out: bool) -> Difference:
    """Say what becomes of files that cannot be opened."""
    reason = era.reason or ""
    return Difference(
        "",
        OPENING,
        "can be opened",
        "cannot",
        era.first_file,
        era.files,
        "costs" if leaves_out else "blocks",
        f"left out by on_error: {reason}" if leaves_out else reason,
        "repair or leave out the files",
    )


def _changes(survey: Survey, joined: Sequence[str]) -> Iterator[Change]:
    """Yield what differs, fact after fact; then files that lie over each other, or out of order."""
    for fact, runs in survey.courses.changing().items():
        if not _is_joined(survey, fact, joined) and not _follows(survey, fact):
            yield from _of_fact(survey, fact, runs)
    if len(joined) != 1:
        return
    placed = survey.spans.get(joined[0], [])
    spans = dict(placed)
    for aspect, pairs in ((OVERLAP, overlapping(placed)), (ORDER, disordered(placed))):
        sharing = [pair for pair in pairs if _share(survey, *pair)]
        if sharing:
            first, second = sharing[0]
            before, after = (str(spans[n]) for n in sharing[0])
            pair = (survey.files[first], survey.files[second])
            among = tuple(survey.files[n] for n in sorted({n for two in sharing for n in two}))
            fact = Fact(joined[0], aspect)
            yield Change(fact, before, after, pair, len(sharing), among=among)
    if survey.is_whole and not survey.unreadable and survey.courses.counts_time(joined[0]):
        yield from _gaps(survey, joined[0], placed)


def _gaps(survey: Survey, dim: str, placed: Sequence[Placed]) -> Iterator[Change]:
    """Tell the first gap in times, and how many there are."""
    spans, found = dict(placed), list(gaps(placed))
    if found:
        first, second = found[0]
        files = (survey.files[first], survey.files[second])
        before, after = text_of(spans[first].stop), text_of(spans[second].start)
        if first == second:
            before, after = f"within {spans[first]}", "not all of its steps"
        yield Change(Fact(dim, GAP), before, after, files, len(found))


def _of_fact(survey: Survey, fact: Fact, runs: Sequence[Run]) -> Iterator[Change]:
    counts = survey.courses.counts(fact)
    told = {runs[0][1]}
    for (_, before), (place, after) in pairwise(runs):
        if after in told:
            continue
        told.add(after)
        count, text = counts[after], _text(after)
        if _is_collapsed(fact, len(counts)):
            count = survey.courses.count - counts[runs[0][1]]
            text = f"{text} (and {len(counts) - 2:,} others)" if len(counts) > 2 else text
        pair = (survey.files[place - 1], survey.files[place])
        yield Change(
            fact,
            _text(before),
            text,
            pair,
            count,
            survey.courses.counts_time(fact.subject),
            _is_virtual(survey, fact),
        )
        if _is_collapsed(fact, len(counts)):
            return


def _is_collapsed(fact: Fact, count: int) -> bool:
    """Say whether a fact has so many texts that one row tells of all."""
    return _is_many(count) or (count > 3 and fact.aspect.startswith(OWN))


def _text(text: str | None) -> str:
    return ABSENT if text is None else text


def _is_joined(survey: Survey, fact: Fact, joined: Sequence[str]) -> bool:
    """Say whether a fact is to differ: where a file lies along what is joined, and its length."""
    if fact.aspect == SIZE:
        return fact.subject in joined
    return fact.aspect == VALUES and not set(_dims(survey, fact.subject)).isdisjoint(joined)


def _follows(survey: Survey, fact: Fact) -> bool:
    """Say whether a difference is told by another one."""
    changing = survey.courses.changing()
    if fact.aspect == STORED:
        return Fact(fact.subject, DTYPE) in changing
    if fact.aspect == SIZE:
        # a coordinate of another length has other values
        return Fact(fact.subject, VALUES) in changing
    if fact.aspect.startswith(CHUNKS):
        # what lies in one piece is as long as its dimension
        return Fact(fact.subject, DIMENSIONS) in changing
    return False


def _dims(survey: Survey, subject: str) -> list[str]:
    runs = survey.courses.runs.get(Fact(subject, DIMENSIONS), [(0, None)])
    return [dim for _, text in runs for dim in (text or "").split(", ")]


def _is_virtual(survey: Survey, fact: Fact) -> bool:
    return Fact(fact.subject, CODECS) in survey.courses.runs


def _share(survey: Survey, first: int, second: int) -> bool:
    """Say whether two files have a variable in common: others lie beside each other."""
    runs = survey.courses.runs
    names = {fact.subject for fact in runs if fact.aspect == PRESENCE} - set(survey.spans)
    return not names or any(
        _at(runs[Fact(name, PRESENCE)], first) == THERE == _at(runs[Fact(name, PRESENCE)], second)
        for name in names
    )


def _at(runs: Sequence[Run], number: int) -> str | None:
    """Return the text of a fact in one file."""
    return [text for start, text in runs if start <= number][-1]
