"""Derive the eras and differences of an archive from facts, and write code that fixes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from virtualds.checks.diagnose.facts import MAX_VALUES, FactRuns, FileSurvey, UnreadableFile
from virtualds.checks.diagnose.report import (
    VERDICTS,
    CoordinateSpan,
    Difference,
    Era,
    EraFile,
    EraStretch,
    arrange_eras,
    find_disordered,
    find_overlapping,
    find_time_gaps,
)
from virtualds.checks.diagnose.trials import (
    EXPLANATIONS,
    FORMAT_CHECKS,
    GAP,
    KIND,
    NAME,
    OPENING,
    ORDER,
    OVERLAP,
    RENAMED,
    SIDE_BY_SIDE,
    TOGETHER,
    Pair,
    TrialCombine,
    UntestedDifference,
    judge_changes,
    list_refusing_formats,
)
from virtualds.combine.batch_job import OPEN_ERRORS
from virtualds.datasets.structure import (
    ABSENT,
    ATTRIBUTE,
    CALENDAR,
    CHUNKS,
    CODECS,
    CODES,
    CRS_ATTRIBUTES,
    DIMENSIONS,
    DTYPE,
    FILL,
    KINDS,
    NUMBERS,
    PRESENCE,
    ROLE,
    SCALE,
    SIZE,
    STORED,
    SYSTEM,
    TEXTS,
    UNITS,
    VALUES,
    Fact,
    find_code,
    find_renamed,
    format_rename,
    list_differing,
    text_of,
)
from virtualds.errors import format_names, without_secrets
from virtualds.options import to_names

REPEATED_ARGUMENTS = (
    *("combine", "concat_dim", "data_vars", "coords", "compat", "join", "combine_attrs"),
    *("sort", "overlap", "group", "drop_variables", "decode_cf", "on_error"),
)
"""Arguments of `diagnose` that the code repeats, which are short and contain no secrets."""
OPENING_ARGUMENTS = ("group", "decode_cf")
"""Arguments that the code repeats when it opens a single file."""
MAX_EXCLUDED = 20
"""Maximum number of unreadable files that the code excludes by name."""

Arguments = Mapping[str, Any]


class ExpectedProperties(NamedTuple):
    """The properties of the first file from which another file differs.

    ``size`` is the length of the dimension of the coordinate variable, and ``is_resized`` whether
    the other file has another length. ``attribute`` is the name of an attribute in which its CRS
    differs, and ``values`` are its values as text.
    """

    text: str
    size: str | None = None
    is_resized: bool = False
    attribute: str | None = None
    values: Sequence[str] = ()


@dataclass(frozen=True)
class Fix:
    """A change to the call of `open_virtual_mfdataset`.

    Parameters
    ----------
    arguments : mapping
        Values of arguments.
    drops : tuple of str
        Variables to leave out.
    steps : tuple of str
        Expressions that convert the dataset ``ds`` of a file.
    condition : str
        A condition on the dataset ``{ds}`` of a file; other files are left out. ``{first}`` is the
        dataset of the first file.
    """

    arguments: Arguments = field(default_factory=dict)
    drops: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    condition: str = ""


NO_FIX = Fix()


def is_fault(row: Difference) -> bool:
    """Return whether a difference must be fixed before others can be."""
    return row.verdict == "blocks" or (row.verdict == "costs" and row.leads)


def find_fix(row: Difference, expected: ExpectedProperties) -> Fix:
    """Return the fix of a difference, which may be `NO_FIX`."""
    if row.verdict == "combines":
        return NO_FIX
    if (options := SIDE_BY_SIDE.get(row.remedy)) is not None:
        return Fix(options)
    find = _select_first_system if expected.attribute is not None else _FIXES.get(row.aspect)
    return NO_FIX if find is None else find(row, expected)


def write_remedy(
    row: Difference,
    fix: Fix,
    fixes: Sequence[Fix],
    arguments: Arguments,
    first: str,
    unreadable: Sequence[str],
) -> str:
    """Return the code that fixes a difference, or "" if there is none.

    Parameters
    ----------
    row : Difference
    fix : Fix
        The fix of the difference.
    fixes : sequence of Fix
        All fixes that the code has to apply, including ``fix``.
    arguments : mapping
        The arguments of `open_virtual_mfdataset` in the trial; ``preprocess`` is the name of the
        function of the user.
    first : str
        The first file that can be opened.
    unreadable : sequence of str
        Files that cannot be opened.
    """
    if row.verdict == "combines":
        return ""
    if row.aspect == GAP:
        return "print(vds.virtual.gaps)"
    if fix != NO_FIX:
        return _write_call(fixes, arguments, first, unreadable)
    if row.aspect == TOGETHER and row.remedy == EXPLANATIONS[TOGETHER].remedy:
        return f"virtualds.open_virtual_dataset({_quote(without_secrets(row.first_file))})"
    if row.refused and "zarr-v3" not in row.refused:
        return 'vds.virtual.to_manifest("refs.zarr")'
    return ""


def _write_call(
    fixes: Sequence[Fix], trial_arguments: Arguments, first: str, unreadable: Sequence[str]
) -> str:
    """Return the code of a call, or "" if it would be too long or contain a secret."""
    arguments = dict(trial_arguments)
    for fix in fixes:
        arguments |= fix.arguments
    if drops := [name for fix in fixes for name in fix.drops]:
        before = to_names("drop_variables", trial_arguments.get("drop_variables"))
        arguments["drop_variables"] = list(dict.fromkeys([*before, *drops]))
    steps = list(dict.fromkeys(step for fix in fixes for step in fix.steps))
    function = _write_function(steps, trial_arguments.get("preprocess"))
    conditions = list(dict.fromkeys(fix.condition for fix in fixes if fix.condition))
    uses_first = any("{first}" in condition for condition in conditions)
    named_files = [*unreadable, *([first] if uses_first else [])]
    has_secrets = any(without_secrets(file) != file for file in named_files)
    if conditions and (has_secrets or len(unreadable) > MAX_EXCLUDED):
        return ""
    keywords = [
        f"{name}={_quote(value)}"
        for name, value in arguments.items()
        if name in REPEATED_ARGUMENTS and value is not None
    ]
    prefix = ""
    if conditions and steps:
        prefix, function = f"fix = {function}; ", "fix"
    keywords += [f"preprocess={function}"] if function else []
    files = "files"
    if conditions:
        files = _write_file_list(conditions, function, trial_arguments, first, unreadable)
    prefix = f"import numpy as np; {prefix}" if "np." in files else prefix
    return f"{prefix}vds = virtualds.open_virtual_mfdataset({', '.join([files, *keywords])})"


def _write_function(steps: Sequence[str], user_function: str | None) -> str:
    """Return the code of a function that applies ``user_function``, then the steps in order."""
    if not steps:
        return user_function or ""
    if user_function:
        steps = [f"{user_function}(ds)", *steps]
    pipes = (f".pipe(lambda ds: {step})" for step in steps[1:])
    return f"lambda ds: {steps[0]}{''.join(pipes)}"


def _write_file_list(
    conditions: Sequence[str],
    function: str,
    arguments: Arguments,
    first: str,
    unreadable: Sequence[str],
) -> str:
    """Return the code of the list of files that satisfy conditions."""
    keywords = [
        f"{n}={_quote(arguments[n])}" for n in OPENING_ARGUMENTS if arguments.get(n) is not None
    ]

    def write_open(file: str) -> str:
        call = f"virtualds.open_virtual_dataset({', '.join([file, *keywords])})"
        return f"{function}({call})" if function else call

    text = " and ".join(conditions).replace("{first}", write_open(_quote(first)))
    dataset = write_open("f")
    if text.count("{ds}") > 1:
        dataset = f"(ds := {dataset})"
    text = text.replace("{ds}", dataset, 1).replace("{ds}", "ds")
    exclusion = [f"str(f) not in {_quote(list(unreadable))}"] if unreadable else []
    return f"[f for f in files if {' and '.join([*exclusion, text])}]"


def _quote(value: Any) -> str:
    """Return the code of a value, with strings in double quotes as in JSON."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, list | tuple):
        return repr(value)
    return f"[{', '.join(map(_quote, value))}]"


def _rename_dims_back(row: Difference, expected: ExpectedProperties) -> Fix:
    pairs = zip(row.after.split(", "), row.before.split(", "), strict=True)
    return Fix(steps=(format_rename(dict(pairs)).removeprefix("lambda ds: "),))


def _rename_variable_back(row: Difference, expected: ExpectedProperties) -> Fix:
    before, after = _quote(row.before), _quote(row.after)
    return Fix(steps=(f"ds.rename({{{after}: {before}}} if {after} in ds else {{}})",))


def _select_first_grid(row: Difference, expected: ExpectedProperties) -> Fix:
    """Select the files on the grid of the first file; drop a variable that is not a coordinate."""
    if expected.size is None:
        return Fix(drops=(row.variable,))
    if expected.is_resized:
        return _select_first_size(row, expected)
    name = _quote(row.variable)
    return Fix(condition=f"({name} not in {{ds}} or {{ds}}[{name}].equals({{first}}.get({name})))")


def _select_first_size(row: Difference, expected: ExpectedProperties) -> Fix:
    name, size = _quote(row.variable), expected.size
    return Fix(condition=f"{{ds}}.sizes.get({name}, {size}) == {size}")


def _select_first_system(row: Difference, expected: ExpectedProperties) -> Fix:
    """Select the files with the CRS of the first file, by an attribute that differs or its name."""
    name = _quote(row.variable)
    attributes = f'getattr({{ds}}.get({name}), "attrs", {{}})'
    if expected.attribute is not None:
        attribute = _quote(expected.attribute)
        value = f"{attributes}.get({attribute})"
        if any("..." in text for text in expected.values):
            # long values are truncated in facts, so compare with the first file
            return Fix(condition=f"{value} in (None, {{first}}[{name}].attrs.get({attribute}))")
        # the attribute may be a number, several numbers or text
        texts = _quote(["None", *expected.values])
        return Fix(condition=f"str(np.array({value}).tolist()) in {texts}")
    title = expected.text.partition(" (")[2].removesuffix(")") or expected.text
    if row.aspect != SYSTEM or "=" in title or title in row.after:
        return NO_FIX
    return Fix(condition=f"{_quote(title)} in str({attributes} or {_quote(title)})")


def _transpose(row: Difference, expected: ExpectedProperties) -> Fix:
    dims = expected.text.split(", ")
    if dims == ["none"] or sorted(dims) != sorted(row.after.split(", ")):
        return NO_FIX
    dims_code = ", ".join(map(_quote, dims))
    condition = f"n in ds and set(ds[n].dims) == {{{dims_code}}}"
    names = f"[{_quote(row.variable)}] if {condition}"
    return Fix(steps=(f"ds.assign({{n: ds[n].transpose({dims_code}) for n in {names}}})",))


def _change_role(row: Difference, expected: ExpectedProperties) -> Fix:
    is_coordinate = expected.text == "coordinate"
    method, members = ("set_coords", "ds") if is_coordinate else ("reset_coords", "ds.coords")
    return Fix(steps=(f"ds.{method}([n for n in [{_quote(row.variable)}] if n in {members}])",))


NO_LEAP_DAYS = ("noleap", "365_day")
LEAP_DAYS = ("standard", "gregorian", "proleptic_gregorian")


def _convert_calendar(row: Difference, expected: ExpectedProperties) -> Fix:
    """Convert to the calendar of the first file if it has all days of the other calendar."""
    if expected.size is None or expected.text not in LEAP_DAYS or row.after not in NO_LEAP_DAYS:
        return NO_FIX
    name = _quote(row.variable)
    call = f"ds.convert_calendar({_quote(expected.text)}, dim={name}) if {name} in ds.dims else ds"
    return Fix(steps=(call,))


_FIXES: dict[str, Callable[[Difference, ExpectedProperties], Fix]] = {
    OPENING: lambda row, expected: Fix({"on_error": "collect"}),
    PRESENCE: lambda row, expected: Fix(drops=(row.variable,)),
    SIZE: _select_first_size,
    VALUES: _select_first_grid,
    RENAMED: _rename_dims_back,
    NAME: _rename_variable_back,
    KIND: lambda row, expected: Fix(condition=f"{_quote(row.before.split(', ')[0])} in {{ds}}"),
    SYSTEM: _select_first_system,
    ROLE: _change_role,
    DIMENSIONS: _transpose,
    CALENDAR: _convert_calendar,
    OVERLAP: lambda row, expected: Fix({"overlap": "last"}),
    ORDER: lambda row, expected: Fix({"sort": True}),
    TOGETHER: lambda row, expected: Fix(drops=(row.variable,)) if row.variable else NO_FIX,
}
"""Functions that return the fix of a difference, by aspect."""


# ---------------------------------------------------------------------- eras

FILE_SPECIFIC_ASPECTS = (ATTRIBUTE, SCALE, FILL, UNITS, VALUES)
"""Aspects that may differ in every file, and then form no eras."""


def find_eras(
    survey: FileSurvey, joined: Sequence[str]
) -> tuple[tuple[Era, ...], tuple[EraStretch, ...]]:
    """Return the eras of an archive, those of unreadable files last, and their stretches."""
    facts = survey.facts
    changing = [f for f in facts.changing if not _is_joined(survey, f, joined)]
    numbers = facts.number_eras([fact for fact in changing if _forms_eras(facts, fact)])
    spans = dict(survey.spans.get(joined[0], ())) if len(joined) == 1 else {}
    eras = [
        _make_era(survey, np.flatnonzero(numbers == n).tolist(), spans)
        for n in range(int(numbers.max(initial=-1)) + 1)
    ]
    # an unreadable file is placed before the readable file that follows it
    files = [
        ((n, 1), EraFile(file, era, True, spans.get(n)))
        for n, (file, era) in enumerate(zip(survey.files, numbers.tolist(), strict=True))
    ]
    for unreadable in survey.group_unreadable():
        files += [((file.before, 0), EraFile(file.name, len(eras), False)) for file in unreadable]
        eras.append(_make_unreadable_era(unreadable))
    ordered = [file for _, file in sorted(files, key=lambda item: item[0])]
    is_time = bool(spans) and facts.is_time(joined[0])
    return tuple(eras), arrange_eras(ordered, is_time)


def _forms_eras(facts: FactRuns, fact: Fact) -> bool:
    """Return whether a fact has few texts, rather than another one in every file."""
    if fact.aspect.startswith(CHUNKS):
        return len(set(facts.index_values(fact).tolist())) <= MAX_VALUES
    counts = facts.count_texts(fact)
    limit = MAX_VALUES
    if fact.aspect.startswith(FILE_SPECIFIC_ASPECTS):
        limit = min(limit, max(2, counts.total() // 2))
    return len(counts) <= limit


def _make_era(survey: FileSurvey, members: Sequence[int], spans: dict[int, CoordinateSpan]) -> Era:
    era_spans = [spans[n] for n in members if n in spans]
    bounds = []
    if era_spans:
        # dates of two calendars cannot be ordered
        with suppress(TypeError):
            bounds = [min(s.start for s in era_spans), max(s.stop for s in era_spans)]
    first_file, last_file = survey.files[members[0]], survey.files[members[-1]]
    return Era(len(members), first_file, last_file, *map(text_of, bounds))


def _make_unreadable_era(files: Sequence[UnreadableFile]) -> Era:
    return Era(len(files), files[0].name, files[-1].name, reason=files[0].reason)


# ---------------------------------------------------------------------- differences


def find_differences(survey: FileSurvey, trial: TrialCombine) -> tuple[Difference, ...]:
    """Return all differences with their verdicts, the worst first."""
    changes_by_pair: dict[Pair, list[UntestedDifference]] = {}
    for change in _find_changes(survey, trial.dims):
        changes_by_pair.setdefault(change.pair, []).append(change)
    differences = [
        _make_open_difference(survey, unreadable, trial) for unreadable in survey.group_unreadable()
    ]
    for pair, changes in changes_by_pair.items():
        numbers = survey.files.index(pair[0]), survey.files.index(pair[1])
        causes = find_causes(changes, survey.facts, numbers)
        differences += judge_changes(pair, causes, trial, _list_examples(survey, numbers))
    if not any(row.verdict == "blocks" for row in differences):
        # facts do not show all obstacles, so also combine the first files, and the first and last
        files = survey.files
        samples = (tuple(files[:2]), tuple(files[:3]), (*files[:1], *files[-1:]))
        for sample in dict.fromkeys(sample for sample in samples if len(set(sample)) > 1):
            if sample not in changes_by_pair:
                numbers = files.index(sample[0]), files.index(sample[-1])
                differences += judge_changes(sample, (), trial, _list_examples(survey, numbers))
    differences.sort(key=lambda row: (VERDICTS.index(row.verdict), not row.leads))
    return tuple(_add_code(differences, survey, trial))


def _make_open_difference(
    survey: FileSurvey, unreadable: Sequence[UnreadableFile], trial: TrialCombine
) -> Difference:
    """Return the difference for files that cannot be opened."""
    era, reason = _make_unreadable_era(unreadable), unreadable[0].reason
    # without any readable file, on_error does not apply and the first error is raised
    skips_files = trial.options.get("on_error") in ("skip", "collect")
    is_left_out = unreadable[0].is_fault and skips_files and bool(survey.files)
    return Difference(
        *("", OPENING, "can be opened in full", "cannot", era.first_file, era.files),
        "costs" if is_left_out else "blocks",
        f"on_error leaves out the file, or only its damaged part: {reason}"
        if is_left_out
        else reason,
        "repair or leave out the files",
    )


def _add_code(
    rows: Sequence[Difference], survey: FileSurvey, trial: TrialCombine
) -> Iterator[Difference]:
    """Yield differences with the code that fixes them.

    The code also fixes all faults, without which it would fail.
    """
    arguments = {**trial.how, **trial.options}
    if trial.preprocess is not None:
        arguments["preprocess"] = "preprocess"
    first, unreadable = next(iter(survey.files), ""), [file.name for file in survey.unreadable]
    renames: dict[str, str] = {}
    for row in rows:
        if row.aspect == RENAMED:
            renames |= zip(row.after.split(", "), row.before.split(", "), strict=True)
    fixes = []
    for row in rows:
        if row.aspect in (SIZE, VALUES):
            # the code renames dimensions before it selects files
            row = replace(row, variable=renames.get(row.variable, row.variable))
        fixes.append(find_fix(row, _find_expected(row, survey)))
    faults = [fix for row, fix in zip(rows, fixes, strict=True) if is_fault(row)]
    for row, fix in zip(rows, fixes, strict=True):
        all_fixes = [*faults, *([fix] if fix not in faults else [])]
        yield replace(row, code=write_remedy(row, fix, all_fixes, arguments, first, unreadable))


def _find_expected(row: Difference, survey: FileSurvey) -> ExpectedProperties:
    """Return the properties of the first file from which another file differs."""
    facts = survey.facts
    size = Fact(row.variable, SIZE)
    runs = facts.runs.get(Fact(row.variable, row.aspect), [])
    text = next((text for _, text in runs if text), row.before)
    expected, length = facts.find_text(size, 0), None
    if expected is not None:
        length = facts.find_text(size, survey.files.index(row.first_file))
    return ExpectedProperties(
        text, expected, length != expected, *_find_system_attribute(row, survey)
    )


def _find_system_attribute(row: Difference, survey: FileSurvey) -> tuple[str | None, list[str]]:
    """Return an attribute that distinguishes the CRS of the first file, and its values there.

    For a difference of an attribute, it is that attribute. For a CRS, it is an attribute that does
    not contain the title.
    """
    attribute, facts = row.aspect.removeprefix(ATTRIBUTE), survey.facts
    if row.aspect != SYSTEM and (attribute == row.aspect or attribute not in CRS_ATTRIBUTES):
        return None, []
    fact_by_name = {
        fact.aspect.removeprefix(ATTRIBUTE): fact
        for fact in facts.runs
        if fact.subject == row.variable and fact.aspect.startswith((ATTRIBUTE, SYSTEM))
    }
    number = survey.files.index(row.first_file)
    before = {name: facts.find_first(fact) for name, fact in fact_by_name.items()}
    after = {name: facts.find_text(fact, number) for name, fact in fact_by_name.items()}
    differing = list_differing(*map(_restore_code, (before, after)))
    candidates: tuple[str, ...] = (attribute,)
    if row.aspect == SYSTEM:
        is_code = find_code({TEXTS[0]: before[SYSTEM]}) is not None
        candidates = (*KINDS, *NUMBERS, *CODES, *(TEXTS if is_code else ()))
    name = next((name for name in differing if name in candidates and name in fact_by_name), None)
    if name is None:
        return None, []
    texts = dict.fromkeys(text for _, text in facts.runs[fact_by_name[name]] if text)
    return name, [t for t in texts if not list_differing({name: before[name]}, {name: t})]


def _restore_code(texts: dict[str, str | None]) -> dict[str, str]:
    """Return the attributes of a CRS, with the code from its title in place of a truncated one."""
    present = {name: text for name, text in texts.items() if text is not None}
    title = present.pop(SYSTEM, "").partition(" ")[0]
    return present | ({TEXTS[0]: title} if find_code({TEXTS[0]: title}) else {})


def _list_examples(survey: FileSurvey, numbers: tuple[int, int]) -> list[str]:
    """Return two files, and the first files with and without each variable that some files lack."""
    runs = (runs for f, runs in survey.facts.changing.items() if f.aspect == PRESENCE)
    starts = dict.fromkeys(start for fact_runs in runs for start, _ in fact_runs)
    return [survey.files[n] for n in sorted({*numbers, *list(starts)[:MAX_VALUES]})]


def find_formats(
    survey: FileSurvey, differences: Sequence[Difference], trial: TrialCombine
) -> tuple[str, ...]:
    """Return the formats that can store all trials and the first three files."""
    refused = {name for row in differences for name in row.refused}
    try:
        refused.update(
            list_refusing_formats(trial.combine(survey.files[:3]))
            if survey.files
            else FORMAT_CHECKS
        )
    except OPEN_ERRORS:
        return ()  # one of the differences reports the obstacle
    return tuple(name for name in FORMAT_CHECKS if name not in refused)


def _find_changes(survey: FileSurvey, joined: Sequence[str]) -> Iterator[UntestedDifference]:
    """Yield the changes of facts, then overlaps, disorder and gaps along the joined dimension."""
    for fact in survey.facts.changing:
        if not _is_joined(survey, fact, joined) and not _is_implied(survey, fact, joined):
            yield from _find_fact_changes(survey, fact)
    if len(joined) != 1:
        return
    [dim], files = joined, survey.files
    joined_spans = survey.spans.get(dim, [])
    spans = dict(joined_spans)
    for aspect, pairs in (
        (OVERLAP, find_overlapping(joined_spans)),
        (ORDER, find_disordered(joined_spans)),
    ):
        conflicts = [pair for pair in pairs if _has_common_variable(survey, *pair)]
        if conflicts:
            first, second = conflicts[0]
            among = tuple(files[n] for n in sorted({n for pair in conflicts for n in pair}))
            ends, file_pair = (str(spans[first]), str(spans[second])), (files[first], files[second])
            yield UntestedDifference(
                Fact(dim, aspect), *ends, file_pair, len(conflicts), among=among
            )
    if survey.is_whole and not survey.unreadable and survey.facts.is_time(dim):
        gaps = list(find_time_gaps(joined_spans))
        for first, second in gaps[:1]:
            before, after = text_of(spans[first].stop), text_of(spans[second].start)
            if first == second:
                before, after = f"within {spans[first]}", "not all of its steps"
            pair = (files[first], files[second])
            yield UntestedDifference(Fact(dim, GAP), before, after, pair, len(gaps))


def _find_fact_changes(survey: FileSurvey, fact: Fact) -> Iterator[UntestedDifference]:
    """Yield a change of a fact for each text, or a single one if there are many texts."""
    facts, runs = survey.facts, survey.facts.runs[fact]
    counts = facts.count_texts(fact)
    is_file_specific = fact.aspect.startswith(FILE_SPECIFIC_ASPECTS)
    has_many = len(counts) > (3 if is_file_specific else MAX_VALUES)
    seen, equivalent = {runs[0][1]}, _list_equivalent_lengths(facts, fact)
    for (_, before), (start, after) in pairwise(runs):
        if after in seen:
            continue
        seen.add(after)
        count, text = counts[after], ABSENT if after is None else after
        if after in equivalent:
            count = sum(counts[other] for other in equivalent)
            lengths = sorted({int(length) for length in equivalent})
            text = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else str(lengths[0])
            seen.update(equivalent)
        elif has_many:
            count = facts.count - counts[runs[0][1]]
            text = f"{text} (and {len(counts) - 2:,} others)" if len(counts) > 2 else text
        yield UntestedDifference(
            fact,
            ABSENT if before is None else before,
            text,
            (survey.files[start - 1], survey.files[start]),
            count,
            facts.is_time(fact.subject),
            Fact(fact.subject, CODECS) in facts.runs,
            is_dimension=Fact(fact.subject, SIZE) in facts.runs,
        )
        if has_many:
            return


def _list_equivalent_lengths(facts: FactRuns, fact: Fact) -> list[str]:
    """Return other chunk lengths that give as many chunks per file as in the first file."""
    if not fact.aspect.startswith(CHUNKS):
        return []
    runs, numbers = facts.runs[fact], facts.index_values(fact)
    texts = dict.fromkeys(text for start, text in runs if numbers[start] == numbers[0])
    return [text for text in texts if text is not None and text != runs[0][1]]


def _is_joined(survey: FileSurvey, fact: Fact, joined: Sequence[str]) -> bool:
    """Return whether a fact is a size or values along a joined dimension, which always differ."""
    if fact.aspect != VALUES:
        return fact.aspect == SIZE and fact.subject in joined
    texts = (text or "" for _, text in survey.facts.runs.get(Fact(fact.subject, DIMENSIONS), ()))
    return any(dim in joined for text in texts for dim in text.split(", "))


def _is_implied(survey: FileSurvey, fact: Fact, joined: Sequence[str]) -> bool:
    """Return whether another difference implies this one."""
    is_joined = fact.aspect.removeprefix(CHUNKS) in joined
    changing = survey.facts.changing
    if fact.aspect in (STORED, CODECS) and Fact(fact.subject, ROLE) in changing:
        # opening loads coordinates, but not data variables
        return True
    if fact.aspect == STORED:
        return Fact(fact.subject, DTYPE) in changing
    if fact.aspect == SIZE:
        # a coordinate with another length also has other values
        return Fact(fact.subject, VALUES) in changing
    if fact.aspect.startswith(CHUNKS):
        # a variable with a single chunk has chunks as long as its dimension
        size = Fact(fact.aspect.removeprefix(CHUNKS), SIZE)
        follows = size in changing and not survey.facts.index_values(fact).any()
        return Fact(fact.subject, DIMENSIONS) in changing or (follows and not is_joined)
    return False


def _has_common_variable(survey: FileSurvey, *files: int) -> bool:
    """Return whether files have a data variable in common, without which they cannot overlap."""
    presence = [fact for fact in survey.facts.runs if fact.aspect == PRESENCE]
    presence = [fact for fact in presence if fact.subject not in survey.spans]
    return not presence or any(all(survey.facts.find_text(f, n) for n in files) for f in presence)


# ---------------------------------------------------------------------- causes

UNCHANGED_BY_RENAMING = (ROLE, DIMENSIONS, DTYPE, UNITS, f"{ATTRIBUTE}standard_name")
"""Aspects in which a renamed variable must be equal to the variable that it replaces."""
MAX_NAMES = 5
"""Maximum number of variables of a file that a difference names."""


def find_causes(
    changes: Sequence[UntestedDifference], facts: FactRuns, numbers: tuple[int, int]
) -> list[UntestedDifference]:
    """Return the changes between two files, with causes in place of changes that they explain.

    Parameters
    ----------
    changes : sequence of UntestedDifference
        All changes between the two files.
    facts : FactRuns
        The facts of all files.
    numbers : tuple of int
        The indexes of the two files.
    """
    # a difference of a CRS includes those of its attributes
    systems = {change.fact.subject for change in changes if change.fact.aspect == SYSTEM}
    changes = [
        c
        for c in changes
        if c.fact.subject not in systems
        or c.fact.aspect.removeprefix(ATTRIBUTE) not in CRS_ATTRIBUTES
    ]
    if (cause := _find_other_kind(changes, facts, numbers)) is not None:
        return [cause, *(c for c in changes if c.fact.aspect != PRESENCE)]
    causes: list[UntestedDifference] = []
    renames: dict[str, str] = {}
    if (cause := _find_renamed_dims(changes, facts, numbers[1])) is not None:
        renames = dict(zip(cause.after.split(", "), cause.before.split(", "), strict=True))
        causes = [cause, *_find_renamed_grids(cause, renames, facts, numbers)]
        changes = [c for c in changes if not _is_explained(c, renames)]
    if (cause := _find_renamed_variable(changes, renames, facts, numbers)) is not None:
        causes.append(cause)
        changes = [c for c in changes if c.fact.aspect != PRESENCE]
    return [*causes, *changes]


def _find_other_kind(
    changes: Sequence[UntestedDifference], facts: FactRuns, numbers: tuple[int, int]
) -> UntestedDifference | None:
    """Return the difference of data variables if two files have none in common."""
    before, after = (
        [
            fact.subject
            for fact in facts.runs
            if fact.aspect == ROLE
            and facts.find_text(fact, number) == "data variable"
            and facts.find_text(Fact(fact.subject, PRESENCE), number)
        ]
        for number in numbers
    )
    dropped = [c for c in changes if c.fact.aspect == PRESENCE and c.after == ABSENT]
    if not dropped or not before or not after or set(before) & set(after):
        return None
    count = max(change.files for change in dropped)
    old, new = (format_names(names, MAX_NAMES, "others") for names in (before, after))
    return UntestedDifference(Fact("", KIND), old, new, dropped[0].pair, count)


def _find_renamed_variable(
    changes: Sequence[UntestedDifference],
    renames: Mapping[str, str],
    facts: FactRuns,
    numbers: tuple[int, int],
) -> UntestedDifference | None:
    """Return the difference of a name if one data variable replaces a similar one.

    ``renames`` are the renamed dimensions of the second file.
    """
    presence_changes = [c for c in changes if c.fact.aspect == PRESENCE]
    removed = [c for c in presence_changes if c.after == ABSENT]
    added = [c for c in presence_changes if c.before == ABSENT]
    if len(presence_changes) != 2 or not removed or not added:
        return None
    names = removed[0].fact.subject, added[0].fact.subject
    before, after = (
        {aspect: facts.find_text(Fact(name, aspect), n) for aspect in UNCHANGED_BY_RENAMING}
        for name, n in zip(names, numbers, strict=True)
    )
    after[DIMENSIONS] = _rename_dims(after[DIMENSIONS] or "", renames)
    if before != after or before[ROLE] != "data variable":
        return None
    return UntestedDifference(Fact(names[0], NAME), *names, added[0].pair, added[0].files)


def _find_renamed_dims(
    changes: Iterable[UntestedDifference], facts: FactRuns, number: int
) -> UntestedDifference | None:
    """Return the difference of dimension names if it explains a change."""
    presence = [fact for fact in facts.runs if fact.aspect == PRESENCE]
    names_in_file = [fact.subject for fact in presence if facts.find_text(fact, number)]
    renamed: dict[str, str] = {}
    files = 0
    for change in changes:
        if change.fact.aspect == DIMENSIONS:
            pairs = find_renamed(change.before.split(", "), change.after.split(", "), names_in_file)
            renamed |= pairs
            files, pair = (change.files if pairs else files), change.pair
    if not renamed:
        return None
    before, after = ", ".join(renamed.values()), ", ".join(renamed)
    return UntestedDifference(Fact(before, RENAMED), before, after, pair, files)


def _find_renamed_grids(
    cause: UntestedDifference, renames: Mapping[str, str], facts: FactRuns, numbers: tuple[int, int]
) -> Iterator[UntestedDifference]:
    """Yield differences of renamed dimensions that also have another coordinate or length."""
    for new, old in renames.items():
        for aspect in (VALUES, SIZE):
            old_fact, new_fact = Fact(old, aspect), Fact(new, aspect)
            before = facts.find_text(old_fact, numbers[0])
            after = facts.find_text(new_fact, numbers[1])
            if before is None or after is None:
                continue
            # if files without renaming have the same text, they have a difference of their own
            if after not in {text for _, text in facts.runs[old_fact]}:
                count = min(facts.count_texts(new_fact)[after], cause.files)
                change = UntestedDifference(old_fact, before, after, cause.pair, count)
                yield change._replace(is_dimension=True, renames=renames)
            break


def _rename_dims(text: str, renames: Mapping[str, str]) -> str:
    return ", ".join(renames.get(dim, dim) for dim in text.split(", "))


def _is_explained(change: UntestedDifference, renames: Mapping[str, str]) -> bool:
    """Return whether renamed dimensions explain a change."""
    if change.fact.aspect == PRESENCE:
        return change.fact.subject in (*renames, *renames.values())
    has_other_dims = change.fact.aspect == DIMENSIONS
    return has_other_dims and _rename_dims(change.after, renames) == change.before
