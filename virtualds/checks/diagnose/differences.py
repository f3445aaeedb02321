"""From the facts of each file to the eras and differences of the archive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from virtualds.checks.diagnose.facts import (
    MOST_VALUES,
    FactRun,
    FactRuns,
    FileSurvey,
    UnreadableFile,
    find_text,
    is_steady,
)
from virtualds.checks.diagnose.findings import VERDICTS, Difference, Era, EraStretch
from virtualds.checks.diagnose.places import (
    CoordinateSpan,
    EraFile,
    PlacedFile,
    find_disordered,
    find_overlapping,
    find_time_gaps,
    place_eras,
)
from virtualds.checks.diagnose.remedies import Usual, find_mend, is_fault, write_remedy
from virtualds.checks.diagnose.trials import (
    FORMAT_CHECKS,
    GAP,
    KIND,
    NAME,
    OPENING,
    ORDER,
    OVERLAP,
    RENAMED,
    FoundChange,
    Pair,
    TrialCombine,
    judge_changes,
    judge_unchanged,
    list_refusing_formats,
)
from virtualds.combine.open_file import OPEN_ERRORS
from virtualds.datasets.reference_systems import (
    CODES,
    KINDS,
    NUMBERS,
    SYSTEM_ATTRIBUTES,
    TEXTS,
    find_code,
    list_differing,
)
from virtualds.datasets.renamed import find_renamed
from virtualds.datasets.structure import (
    ABSENT,
    ATTRIBUTE,
    CHUNKS,
    CODECS,
    DIMENSIONS,
    DTYPE,
    FILL,
    PRESENCE,
    ROLE,
    SCALE,
    SIZE,
    STORED,
    SYSTEM,
    THERE,
    UNITS,
    VALUES,
    Fact,
    text_of,
)
from virtualds.quantities import name_some

OWN_ASPECTS = (ATTRIBUTE, SCALE, FILL, UNITS, VALUES)
"""Aspects that often differ in every file; they make no eras then."""


def find_eras(
    survey: FileSurvey, joined: Sequence[str]
) -> tuple[tuple[Era, ...], tuple[EraStretch, ...]]:
    """Return the eras of an archive, unreadable files last, and their places."""
    changing = [f for f in survey.facts.find_changing() if not _is_joined(survey, f, joined)]
    making = [f for f in changing if _makes_eras(survey, f)]
    numbers = survey.facts.number_eras(making)
    placed = dict(survey.spans.get(joined[0], ())) if len(joined) == 1 else {}
    found = [
        _make_era(survey, np.flatnonzero(numbers == n).tolist(), placed)
        for n in range(int(numbers.max(initial=-1)) + 1)
    ]
    eras = (*found, *(era for era, _ in _find_unreadable(survey)))
    files = _list_files(survey, numbers.tolist(), len(found), placed)
    return eras, place_eras(files, bool(placed) and survey.facts.counts_time(joined[0]))


def _list_files(
    survey: FileSurvey, numbers: Sequence[int], readable: int, placed: dict[int, CoordinateSpan]
) -> list[EraFile]:
    """Return all files in order; ``numbers`` are the eras of those that can be opened."""
    opened = [
        ((n, 1), EraFile(file, era, True, placed.get(n)))
        for n, (file, era) in enumerate(zip(survey.files, numbers, strict=True))
    ]
    lost = [
        ((found.before, 0), EraFile(file, readable + kind, False))
        for kind, members in enumerate(_group_unreadable(survey))
        for file, found in members
    ]
    return [file for _, file in sorted([*opened, *lost], key=lambda item: item[0])]


def _makes_eras(survey: FileSurvey, fact: Fact) -> bool:
    counts = survey.facts.count_texts(fact)
    if fact.aspect.startswith(CHUNKS):
        return not _is_many(len(set(survey.facts.number_texts(fact).tolist())))
    return is_steady(counts) or (
        not fact.aspect.startswith(OWN_ASPECTS) and not _is_many(len(counts))
    )


def _is_many(count: int) -> bool:
    return count > MOST_VALUES


def _make_era(survey: FileSurvey, members: Sequence[int], placed: dict[int, CoordinateSpan]) -> Era:
    files = [survey.files[members[0]], survey.files[members[-1]]]
    found = [placed[n] for n in members if n in placed]
    try:
        bounds = [min(s.start for s in found), max(s.stop for s in found)] if found else []
    except TypeError:
        bounds = []  # dates of two calendars cannot be ordered
    return Era(len(members), *files, *map(text_of, bounds))


def _find_unreadable(survey: FileSurvey) -> Iterator[tuple[Era, bool]]:
    """Yield unreadable files by error, and whether the files themselves are at fault."""
    for found in _group_unreadable(survey):
        (first, why), (last, _) = found[0], found[-1]
        yield Era(len(found), first, last, reason=why.reason), why.is_fault


def _group_unreadable(survey: FileSurvey) -> list[list[tuple[str, UnreadableFile]]]:
    """Return unreadable files by error."""
    kinds: dict[tuple[str, bool], list[tuple[str, UnreadableFile]]] = {}
    for file, found in survey.unreadable:
        key = (found.reason.partition(":")[0], found.is_fault)
        kinds.setdefault(key, []).append((file, found))
    return list(kinds.values())


# ---------------------------------------------------------------------- differences


def find_differences(survey: FileSurvey, trial: TrialCombine) -> tuple[Difference, ...]:
    """Return all differences with their verdicts, the worst first."""
    by_pair: dict[Pair, list[FoundChange]] = {}
    for change in _find_changes(survey, trial.dims):
        by_pair.setdefault(change.pair, []).append(change)
    # on_error does not apply if no file can be opened: the first error is raised
    leaves_out = trial.leaves_out and bool(survey.files)
    found = [
        _describe_opening(era, leaves_out=is_fault and leaves_out)
        for era, is_fault in _find_unreadable(survey)
    ]
    for pair, changes in by_pair.items():
        numbers = survey.files.index(pair[0]), survey.files.index(pair[1])
        causes = put_causes(changes, survey.facts, numbers)
        found += judge_changes(pair, causes, trial, _list_examples(survey, numbers))
    for files in (
        _select_ends(survey.files) if not any(d.verdict == "blocks" for d in found) else ()
    ):
        if files not in by_pair:
            numbers = survey.files.index(files[0]), survey.files.index(files[-1])
            found += judge_unchanged(files, trial, _list_examples(survey, numbers))
    found.sort(key=lambda row: (VERDICTS.index(row.verdict), not row.leads))
    return tuple(_add_code(found, survey, trial))


def _add_code(
    rows: Sequence[Difference], survey: FileSurvey, trial: TrialCombine
) -> Iterator[Difference]:
    """Yield differences with the line of code that does something about each.

    Every line mends the faults of the files, too, without which it would not work on all files.
    """
    given = {**trial.how, **trial.options}
    if trial.preprocess is not None:
        given["preprocess"] = "preprocess"
    first, lost = next(iter(survey.files), ""), [file for file, _ in survey.unreadable]
    renames: dict[str, str] = {}
    for row in rows:
        if row.aspect == RENAMED:
            renames |= zip(row.after.split(", "), row.before.split(", "), strict=True)
    # the lines rename dimensions before they choose files
    called = [
        replace(row, variable=renames.get(row.variable, row.variable))
        if row.aspect in (SIZE, VALUES)
        else row
        for row in rows
    ]
    mends = [find_mend(row, _list_usual(row, survey)) for row in called]
    faults = [mend for row, mend in zip(rows, mends, strict=True) if is_fault(row)]
    for row, mend in zip(rows, mends, strict=True):
        needed = [*faults, *([mend] if mend not in faults else [])]
        yield replace(row, code=write_remedy(row, mend, needed, given, first, lost))


def _list_usual(row: Difference, survey: FileSurvey) -> Usual:
    """Return what the first file has where another one differs."""
    runs = survey.facts.runs
    sizes = runs.get(Fact(row.variable, SIZE), [])
    length = find_text(sizes, survey.files.index(row.first_file)) if sizes else None
    text = next((t for _, t in runs.get(Fact(row.variable, row.aspect), ()) if t), row.before)
    usual = sizes[0][1] if sizes else None
    attribute, texts = _find_system_attribute(row, survey)
    return Usual(text, usual, length != usual, attribute, texts)


def _find_system_attribute(row: Difference, survey: FileSurvey) -> tuple[str | None, list[str]]:
    """Return an attribute in which the system of the first file differs, and its texts there.

    A row of an attribute is about that one; that of a system is not about titles, nor about texts
    that have one, which the line looks for.
    """
    own = row.aspect.removeprefix(ATTRIBUTE)
    if row.aspect != SYSTEM and (own == row.aspect or own not in SYSTEM_ATTRIBUTES):
        return None, []
    runs = {
        fact.aspect.removeprefix(ATTRIBUTE): found
        for fact, found in survey.facts.runs.items()
        if fact.subject == row.variable and fact.aspect.startswith((ATTRIBUTE, SYSTEM))
    }
    here = survey.files.index(row.first_file)
    before = {n: next((t for _, t in found if t is not None), None) for n, found in runs.items()}
    after = {n: find_text(found, here) for n, found in runs.items()}
    differing = list_differing(*map(_restore_code, (before, after)))
    wanted: tuple[str, ...] = (own,)
    if row.aspect == SYSTEM:
        is_code = find_code({TEXTS[0]: before[SYSTEM]}) is not None
        wanted = (*KINDS, *NUMBERS, *CODES, *(TEXTS if is_code else ()))
    name = next((name for name in differing if name in wanted and name in runs), None)
    if name is None:
        return None, []
    texts = [t for _, t in runs[name] if t and not list_differing({name: before[name]}, {name: t})]
    return name, list(dict.fromkeys(texts))


def _restore_code(texts: dict[str, str | None]) -> dict[str, str]:
    """Return the attributes of a system, with its code in place of texts that are cut."""
    found = {name: text for name, text in texts.items() if text is not None}
    title = found.pop(SYSTEM, "").partition(" ")[0]
    return found | ({TEXTS[0]: title} if find_code({TEXTS[0]: title}) else {})


def _list_examples(survey: FileSurvey, numbers: tuple[int, int]) -> list[str]:
    """Return two files, and the first files of those with, and of those without, some variables."""
    runs = (runs for f, runs in survey.facts.find_changing().items() if f.aspect == PRESENCE)
    starts = dict.fromkeys(start for found in runs for start, _ in found)
    return [survey.files[n] for n in sorted({*numbers, *list(starts)[:MOST_VALUES]})]


def _select_ends(files: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the first two files, the first three, and the first and the last."""
    found = (tuple(files[:2]), tuple(files[:3]), (*files[:1], *files[-1:]))
    return [some for some in dict.fromkeys(found) if len(set(some)) > 1]


def find_formats(
    survey: FileSurvey, differences: Sequence[Difference], trial: TrialCombine
) -> tuple[str, ...]:
    """Return the formats that can hold all trials and the first three files."""
    refused = {name for row in differences for name in row.refused}
    try:
        refused.update(
            list_refusing_formats(trial.combine(survey.files[:3]))
            if survey.files
            else FORMAT_CHECKS
        )
    except OPEN_ERRORS:
        return ()  # a difference reports what blocks
    return tuple(name for name in FORMAT_CHECKS if name not in refused)


def _describe_opening(era: Era, *, leaves_out: bool) -> Difference:
    """Describe what happens to files that cannot be opened."""
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


def _find_changes(survey: FileSurvey, joined: Sequence[str]) -> Iterator[FoundChange]:
    """Yield the changes of each fact; then files that overlap, or are out of order."""
    for fact, runs in survey.facts.find_changing().items():
        if not _is_joined(survey, fact, joined) and not _is_implied(survey, fact, joined):
            yield from _find_fact_changes(survey, fact, runs)
    if len(joined) != 1:
        return
    placed = survey.spans.get(joined[0], [])
    spans = dict(placed)
    for aspect, pairs in ((OVERLAP, find_overlapping(placed)), (ORDER, find_disordered(placed))):
        sharing = [pair for pair in pairs if _has_common_variable(survey, *pair)]
        if sharing:
            first, second = sharing[0]
            before, after = (str(spans[n]) for n in sharing[0])
            pair = (survey.files[first], survey.files[second])
            among = tuple(survey.files[n] for n in sorted({n for two in sharing for n in two}))
            fact = Fact(joined[0], aspect)
            yield FoundChange(fact, before, after, pair, len(sharing), among=among)
    if survey.is_whole and not survey.unreadable and survey.facts.counts_time(joined[0]):
        yield from _find_gap_changes(survey, joined[0], placed)


def _find_gap_changes(
    survey: FileSurvey, dim: str, placed: Sequence[PlacedFile]
) -> Iterator[FoundChange]:
    """Yield the first gap in a time axis, with the number of gaps."""
    spans, found = dict(placed), list(find_time_gaps(placed))
    if found:
        first, second = found[0]
        files = (survey.files[first], survey.files[second])
        before, after = text_of(spans[first].stop), text_of(spans[second].start)
        if first == second:
            before, after = f"within {spans[first]}", "not all of its steps"
        yield FoundChange(Fact(dim, GAP), before, after, files, len(found))


def _find_fact_changes(
    survey: FileSurvey, fact: Fact, runs: Sequence[FactRun]
) -> Iterator[FoundChange]:
    counts = survey.facts.count_texts(fact)
    seen, alike = {runs[0][1]}, _list_alike_texts(survey, fact)
    for (_, before), (place, after) in pairwise(runs):
        if after in seen:
            continue
        seen.add(after)
        count, text = counts[after], _to_text(after)
        if after in alike:
            count, text = sum(counts[other] for other in alike), _sum_up(alike)
            seen.update(alike)
        elif _is_collapsed(fact, len(counts)):
            count = survey.facts.count - counts[runs[0][1]]
            text = f"{text} (and {len(counts) - 2:,} others)" if len(counts) > 2 else text
        pair = (survey.files[place - 1], survey.files[place])
        yield FoundChange(
            fact,
            _to_text(before),
            text,
            pair,
            count,
            survey.facts.counts_time(fact.subject),
            _is_virtual(survey, fact),
            is_dimension=Fact(fact.subject, SIZE) in survey.facts.runs,
        )
        if _is_collapsed(fact, len(counts)):
            return


def _list_alike_texts(survey: FileSurvey, fact: Fact) -> list[str]:
    """Return the chunk lengths that cut longer and shorter files as those of the first are cut."""
    if not fact.aspect.startswith(CHUNKS):
        return []
    runs, numbers = survey.facts.runs[fact], survey.facts.number_texts(fact)
    texts = dict.fromkeys(text for start, text in runs if numbers[start] == numbers[0])
    return [text for text in texts if text is not None and text != runs[0][1]]


def _sum_up(lengths: Sequence[str]) -> str:
    """Return lengths of chunks as one text.

    >>> _sum_up(["28", "30", "29"]), _sum_up(["28"])
    ('28 to 30', '28')
    """
    ends = sorted({int(text) for text in lengths})
    return f"{ends[0]} to {ends[-1]}" if len(ends) > 1 else str(ends[0])


def _is_collapsed(fact: Fact, count: int) -> bool:
    """Say whether a fact has so many values that one row stands for all."""
    return _is_many(count) or (count > 3 and fact.aspect.startswith(OWN_ASPECTS))


def _to_text(text: str | None) -> str:
    return ABSENT if text is None else text


def _is_joined(survey: FileSurvey, fact: Fact, joined: Sequence[str]) -> bool:
    """Say whether a fact always differs: the coordinate, or the size, of the joined dimension."""
    if fact.aspect == SIZE:
        return fact.subject in joined
    return fact.aspect == VALUES and not set(_dims_of(survey, fact.subject)).isdisjoint(joined)


def _is_implied(survey: FileSurvey, fact: Fact, joined: Sequence[str]) -> bool:
    """Say whether another difference already implies this one."""
    is_joined = fact.aspect.removeprefix(CHUNKS) in joined
    changing = survey.facts.find_changing()
    if fact.aspect in (STORED, CODECS) and Fact(fact.subject, ROLE) in changing:
        # coordinates may be loaded where data variables are not
        return True
    if fact.aspect == STORED:
        return Fact(fact.subject, DTYPE) in changing
    if fact.aspect == SIZE:
        # a coordinate with another length also has other values
        return Fact(fact.subject, VALUES) in changing
    if fact.aspect.startswith(CHUNKS):
        # a variable with a single chunk has chunks as long as its dimension
        size = Fact(fact.aspect.removeprefix(CHUNKS), SIZE)
        follows = size in changing and not survey.facts.number_texts(fact).any()
        return Fact(fact.subject, DIMENSIONS) in changing or (follows and not is_joined)
    return False


def _dims_of(survey: FileSurvey, subject: str) -> list[str]:
    runs = survey.facts.runs.get(Fact(subject, DIMENSIONS), [(0, None)])
    return [dim for _, text in runs for dim in (text or "").split(", ")]


def _is_virtual(survey: FileSurvey, fact: Fact) -> bool:
    return Fact(fact.subject, CODECS) in survey.facts.runs


def _has_common_variable(survey: FileSurvey, first: int, second: int) -> bool:
    """Say whether two files share a variable; files without shared variables do not overlap."""
    runs = survey.facts.runs
    names = {fact.subject for fact in runs if fact.aspect == PRESENCE} - set(survey.spans)
    return not names or any(
        find_text(runs[Fact(name, PRESENCE)], first)
        == THERE
        == find_text(runs[Fact(name, PRESENCE)], second)
        for name in names
    )


# ---------------------------------------------------------------------- causes

LIKENESS = (ROLE, DIMENSIONS, DTYPE, UNITS, f"{ATTRIBUTE}standard_name")
"""What a variable of another name has in common with that in whose place it came."""
MOST_NAMES = 5
"""Variables of a file that a row names."""


def put_causes(
    changes: Sequence[FoundChange], facts: FactRuns, numbers: tuple[int, int]
) -> list[FoundChange]:
    """Return the changes between two files, with a cause in place of those that it explains.

    Parameters
    ----------
    changes : sequence of FoundChange
        All changes that were first seen between the two files.
    facts : FactRuns
        The facts of all files.
    numbers : tuple of int
        Which of the readable files the two are.
    """
    changes = [c for c in changes if not _describes_changed_system(c, changes)]
    if (cause := _find_other_kind(changes, facts, numbers)) is not None:
        return [cause, *(c for c in changes if c.fact.aspect != PRESENCE)]
    causes: list[FoundChange] = []
    renames: dict[str, str] = {}
    if (cause := _find_renamed_dims(changes, facts, numbers[1])) is not None:
        renames = dict(zip(cause.after.split(", "), cause.before.split(", "), strict=True))
        causes = [cause, *_find_renamed_grids(cause, renames, facts, numbers)]
        changes = [c for c in changes if not _is_explained(c, renames)]
    if (cause := _find_renamed_variable(changes, renames, facts, numbers)) is not None:
        causes.append(cause)
        changes = [c for c in changes if c.fact.aspect != PRESENCE]
    return [*causes, *changes]


def _describes_changed_system(change: FoundChange, others: Sequence[FoundChange]) -> bool:
    """Say whether a change is one of the attributes of a reference system that has its own row."""
    subject, aspect = change.fact
    systems = {other.fact.subject for other in others if other.fact.aspect == SYSTEM}
    return subject in systems and aspect.removeprefix(ATTRIBUTE) in SYSTEM_ATTRIBUTES


def _find_other_kind(
    changes: Sequence[FoundChange], facts: FactRuns, numbers: tuple[int, int]
) -> FoundChange | None:
    """Return that two files have no data variable in common, if so."""
    before, after = (_list_data_variables(facts, number) for number in numbers)
    lost = [c for c in changes if c.fact.aspect == PRESENCE and c.after == ABSENT]
    if not lost or not before or not after or set(before) & set(after):
        return None
    count = max(change.files for change in lost)
    old, new = (name_some(names, MOST_NAMES, "others") for names in (before, after))
    return FoundChange(Fact("", KIND), old, new, lost[0].pair, count)


def _list_data_variables(facts: FactRuns, number: int) -> list[str]:
    return [
        fact.subject
        for fact, runs in facts.runs.items()
        if fact.aspect == ROLE
        and find_text(runs, number) == "data variable"
        and find_text(facts.runs[fact._replace(aspect=PRESENCE)], number) == THERE
    ]


def _find_renamed_variable(
    changes: Sequence[FoundChange],
    renames: Mapping[str, str],
    facts: FactRuns,
    numbers: tuple[int, int],
) -> FoundChange | None:
    """Return that one data variable came in the place of another one like it, if so.

    ``renames`` are the dimensions of other names in the second file.
    """
    found = [c for c in changes if c.fact.aspect == PRESENCE]
    lost = [c for c in found if c.after == ABSENT]
    came = [c for c in found if c.before == ABSENT]
    if len(found) != 2 or not lost or not came:
        return None
    names = lost[0].fact.subject, came[0].fact.subject
    pairs = list(zip(names, numbers, strict=True))
    one, other = ([_find_text(facts, Fact(n, a), f) for a in LIKENESS] for n, f in pairs)
    dims = LIKENESS.index(DIMENSIONS)
    other[dims] = _rename_dims(other[dims] or "", renames)
    if one != other or one[0] != "data variable":
        return None
    return FoundChange(Fact(names[0], NAME), *names, came[0].pair, came[0].files)


def _find_text(facts: FactRuns, fact: Fact, number: int) -> str | None:
    return find_text(facts.runs[fact], number) if fact in facts.runs else None


def _find_renamed_dims(
    changes: Iterable[FoundChange], facts: FactRuns, number: int
) -> FoundChange | None:
    """Return that dimensions have other names in the second file, if that explains a change."""
    taken = [
        fact.subject
        for fact, runs in facts.runs.items()
        if fact.aspect == PRESENCE and find_text(runs, number) == THERE
    ]
    renamed: dict[str, str] = {}
    files = 0
    for change in changes:
        if change.fact.aspect == DIMENSIONS:
            found = find_renamed(change.before.split(", "), change.after.split(", "), taken)
            renamed |= found
            files, pair = (change.files, change.pair) if found else (files, change.pair)
    if not renamed:
        return None
    before, after = ", ".join(renamed.values()), ", ".join(renamed)
    return FoundChange(Fact(before, RENAMED), before, after, pair, files)


def _find_renamed_grids(
    cause: FoundChange, renames: Mapping[str, str], facts: FactRuns, numbers: tuple[int, int]
) -> Iterator[FoundChange]:
    """Yield the dimensions of other names that have another coordinate, or length, too."""
    for new, old in renames.items():
        for aspect in (VALUES, SIZE):
            known = Fact(new, aspect)
            before = _find_text(facts, Fact(old, aspect), numbers[0])
            after = _find_text(facts, known, numbers[1])
            if before is None or after is None:
                continue
            # what is known by the usual name has a row already
            if after not in {text for _, text in facts.runs[Fact(old, aspect)]}:
                count = min(facts.count_texts(known)[after], cause.files)
                found = FoundChange(Fact(old, aspect), before, after, cause.pair, count)
                yield found._replace(is_dimension=True, renames=renames)
            break


def _rename_dims(text: str, renames: Mapping[str, str]) -> str:
    return ", ".join(renames.get(dim, dim) for dim in text.split(", "))


def _is_explained(change: FoundChange, renames: Mapping[str, str]) -> bool:
    """Say whether other names of dimensions explain a change."""
    if change.fact.aspect == PRESENCE:
        return change.fact.subject in (*renames, *renames.values())
    is_of_dims = change.fact.aspect == DIMENSIONS
    return is_of_dims and _rename_dims(change.after, renames) == change.before
