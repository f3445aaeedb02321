"""Differences that explain others: a dimension of another name, and files of another kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from virtualds.checks.diagnose.explanations import KIND, NAME, RENAMED, FoundChange
from virtualds.checks.diagnose.fact_runs import FactRuns, find_text
from virtualds.datasets.reference_systems import SYSTEM_ATTRIBUTES
from virtualds.datasets.renamed import find_renamed
from virtualds.datasets.structure import (
    ABSENT,
    ATTRIBUTE,
    DIMENSIONS,
    DTYPE,
    PRESENCE,
    ROLE,
    SIZE,
    SYSTEM,
    THERE,
    UNITS,
    VALUES,
    Fact,
)
from virtualds.quantities import name_some

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
