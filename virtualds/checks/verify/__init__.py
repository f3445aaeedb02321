"""Verify references: check files and byte ranges, and compare values with native readers."""

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
    fetch_states,
    find_chunks_past_end,
    find_damaged_members,
    survey_references,
)
from virtualds.options import check_choice
from virtualds.progress import ProgressOption, count_progress

__all__ = ["Problem", "Verification", "verify_arrays"]

AGAINST = ("fingerprint", "range", "native")
"""Values of ``against``. Each includes the checks of the previous ones."""
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
    """Return a report on whether the references of arrays are still valid.

    Parameters
    ----------
    arrays : dict of str to ManifestArray
    loaded : int
        Number of other variables in memory.
    unread : iterable of str
        Other lazy variables, which are not virtual arrays.
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
    survey = survey_references(arrays)
    states = fetch_states(survey.ends, progress)
    ranges = []
    if against != "fingerprint":
        # references that extend past the current end of their files
        sizes = {
            file: size
            for file, end in survey.ends.items()
            if (size := states.sizes.get(file)) is not None and end > size
        }
        ranges = list(find_chunks_past_end(arrays, sizes)) if sizes else []
    compared = ComparisonResult()
    if against == "native":
        members = find_damaged_members(states.archives)
        total = min(count_sampled(arrays, sample), survey.references)
        with count_progress(progress, "comparing", total, "chunk") as advance:
            chunks = sample_chunks(arrays, sample, seed)
            compared = compare_chunks(chunks, states.unchanged, advance)
        compared.problems += members
    not_virtual = [Problem("", name, None, NOT_COMPARED, NOT_VIRTUAL) for name in unread]
    problems = (*survey.problems, *states.problems, *ranges, *compared.problems, *not_virtual)
    locations = dict.fromkeys((file.url, file.options) for file in survey.ends)
    verification = Verification(
        against=against,
        files=states.file_count,
        fingerprinted=states.fingerprinted,
        references=survey.references,
        missing=survey.missing,
        inline=survey.inline,
        loaded=loaded,
        sampled=compared.sampled,
        compared=dict(compared.equal),
        gaps=tuple(gaps),
        problems=problems,
        runs=list_runs((url for url, _ in locations), problems),
    )
    if verification.ok or verification.problems:
        return verification
    # no other problem explains why no chunk was compared
    if verification.references:
        remedy = "take a larger sample"
    elif verification.loaded:
        remedy = "open it with loadable_variables=[] to compare the variables that lie in files"
    else:
        remedy = "against='range' checks everything here"
    text = (
        f"no chunk was compared: {verification.references:,} lie in files, "
        f"{verification.missing:,} are missing, {verification.inline:,} inline, "
        f"and {verification.loaded:,} variables are in memory; {remedy}"
    )
    return replace(verification, problems=(Problem("", "", None, NOT_COMPARED, text),))
