"""Verifying references: files, byte ranges, and values against a native reader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from virtualds.checks.verify.chunks import (
    ComparisonResult,
    check_sample,
    compare_chunks,
    count_sampled,
    sample_chunks,
)
from virtualds.checks.verify.report import NOT_COMPARED, Problem, Verification, list_runs
from virtualds.checks.verify.sources import (
    Arrays,
    FileStates,
    ReferenceSurvey,
    fetch_states,
    find_chunks_past_end,
    find_damaged_members,
    survey_references,
)
from virtualds.datasets.keywords import check_choice
from virtualds.progress import ProgressOption, count_progress
from virtualds.source_file import SourceFile

__all__ = ["Problem", "Verification", "verify_arrays"]

AGAINST = ("fingerprint", "range", "native")
"""The choices of ``against``; each includes the choices before it."""
NOT_VIRTUAL = (
    "not a virtual array: xarray or dask reads its values; open the set with "
    "open_virtual_dataset to verify it"
)


def verify_arrays(
    arrays: Arrays,
    *,
    loaded: int,
    unread: Iterable[str],
    gaps: Iterable[str] = (),
    sample: Any,
    against: str,
    seed: int,
    progress: ProgressOption = None,
) -> Verification:
    """Check whether the references of arrays are still valid.

    Parameters
    ----------
    arrays : dict of str to ManifestArray
    loaded : int
        Number of other variables with values in memory.
    unread : iterable of str
        Other variables with lazy values that are not virtual arrays.
    gaps : iterable of str
        Gaps in coordinates.
    sample, against, seed, progress
        As in `ds.virtual.verify`.

    Raises
    ------
    ValueError
        ``sample`` or ``against`` has an unknown value.
    """
    check_choice("against", against, AGAINST)
    sample = check_sample(sample)
    known = survey_references(arrays)
    states = fetch_states(known.ends, progress)
    ranges = [] if against == "fingerprint" else _find_out_of_range(arrays, known, states)
    compared = ComparisonResult()
    if against == "native":
        members = find_damaged_members(states.archives)
        most = min(count_sampled(arrays, sample), known.references)
        with count_progress(progress, "comparing", most, "chunk") as advance:
            compared = compare_chunks(sample_chunks(arrays, sample, seed), states.sound, advance)
        compared.problems += members
    strange = [Problem("", name, None, NOT_COMPARED, NOT_VIRTUAL) for name in unread]
    problems = (*known.problems, *states.problems, *ranges, *compared.problems, *strange)
    locations = dict.fromkeys((file.url, file.options) for file in known.ends)
    found = Verification(
        against=against,
        files=states.locations,
        fingerprinted=states.fingerprinted,
        references=known.references,
        missing=known.missing,
        inline=known.inline,
        loaded=loaded,
        sampled=compared.sampled,
        compared=dict(compared.equal),
        gaps=tuple(gaps),
        problems=problems,
        runs=list_runs((url for url, _ in locations), problems),
    )
    # any other problem already explains why nothing was compared
    return (
        found
        if found.ok or found.problems
        else replace(found, problems=(_make_no_comparison_problem(found),))
    )


def _make_no_comparison_problem(found: Verification) -> Problem:
    """Return the problem that says why no chunk was compared."""
    text = (
        f"no chunk was compared: {found.references:,} lie in files, {found.missing:,} are missing, "
        f"{found.inline:,} inline, and {found.loaded:,} variables are in memory; "
    )
    if found.references:
        remedy = "take a larger sample"
    elif found.loaded:
        remedy = "open it with loadable_variables=[] to compare the variables that lie in files"
    else:
        remedy = "against='range' checks everything here"
    return Problem("", "", None, NOT_COMPARED, text + remedy)


def _find_out_of_range(arrays: Arrays, known: ReferenceSurvey, states: FileStates) -> list[Problem]:
    """Return the references that reach past the current end of their files."""
    sizes: dict[SourceFile, int] = {
        file: size
        for file, end in known.ends.items()
        if (size := states.sizes.get(file)) is not None and end > size
    }
    return list(find_chunks_past_end(arrays, sizes)) if sizes else []
