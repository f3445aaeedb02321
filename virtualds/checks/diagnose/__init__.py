"""Diagnose an archive: find how its files differ, and whether they combine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import xarray as xr

from virtualds.checks.diagnose.differences import find_differences, find_eras, find_formats
from virtualds.checks.diagnose.facts import Examination, FileSurvey, survey_files
from virtualds.checks.diagnose.report import Diagnosis, find_overlapping
from virtualds.checks.diagnose.trials import TrialCombine
from virtualds.combine import Build, open_virtual_mfdataset
from virtualds.combine.batch_job import BatchJob
from virtualds.combine.file_coordinates import Source, add_from_pattern
from virtualds.combine.ordering import Paths
from virtualds.combine.xarray_combine import PASSED_TO_XARRAY, check_name
from virtualds.datasets.structure import DIMENSIONS, SIZE, VALUES, Fact
from virtualds.options import check_arguments, find_arguments
from virtualds.progress import ProgressOption

EXCLUDED_OPTIONS = {"paths", "attrs_file", "to", "target_options"}
"""Arguments of `open_virtual_mfdataset` that trials must not pass, since they write a set."""
OPTIONS = frozenset(find_arguments(open_virtual_mfdataset)) - EXCLUDED_OPTIONS
MANY_FILE_OPTIONS = {"parallel", "progress", "newest"}
"""Arguments for choosing and opening many files, which a trial of two files does not need."""


@check_arguments(more=OPTIONS.union(PASSED_TO_XARRAY))
def diagnose(
    urls: Paths,
    *,
    sample: int | None = None,
    combine: Literal["by_coords", "nested"] | None = None,
    concat_dim: Any = None,
    preprocess: Callable[[xr.Dataset], xr.Dataset] | None = None,
    coordinates: Mapping[str, Source] | None = None,
    progress: ProgressOption = None,
    **options: Any,
) -> Diagnosis:
    """Find how the files of an archive differ, and whether they still combine.

    Only the structure of the files is read, and values that opening loads: coordinates and scalars.
    Files with the same structure form an era. For each difference, `open_virtual_mfdataset`
    combines the two files on either side of it. This trial shows whether the difference combines,
    costs something, or blocks. Variables without the joined dimension are only compared in trials.

    Parameters
    ----------
    urls : str, or sequence of str or paths
        A pattern, as in `open_virtual_mfdataset`, or the files in order.
    sample : int, optional
        How many files to examine besides the first and the last, evenly spread. None means all.
    combine, concat_dim : str, or list of str, optional
        As in `open_virtual_mfdataset`; with ``concat_dim``, ``combine`` is ``"nested"`` by default.
        Without both, the files are joined along the unlimited dimension, or along the dimension
        whose coordinate or size differs, or along several dimensions of tiles. The report names
        them and the reason.
    preprocess, coordinates
        As in `open_virtual_mfdataset`. Without ``concat_dim``, files are joined along each of the
        ``coordinates``.
    progress : bool or callable, optional
        As in `open_virtual_mfdataset`.
    **options
        As in `open_virtual_mfdataset`: ``group``, ``storage_options``, ``join``, ``parallel`` and
        so on, except ``to`` and ``attrs_file``.

    Returns
    -------
    Diagnosis
        A report. Files that cannot be opened form eras of their own.

    Raises
    ------
    FileNotFoundError
        No file matches.
    TypeError
        `open_virtual_mfdataset` has no such option.
    ValueError
        ``sample`` is less than 1, or an option has an unknown value.

    Examples
    --------
    >>> diagnosis = diagnose("20*.nc")
    >>> len(diagnosis.eras), diagnosis.joined, diagnosis.blocks
    (1, ('time',), False)
    """
    combine_options: dict[str, Any] | None = None
    if combine is not None or concat_dim is not None or coordinates:
        default = "by_coords" if concat_dim is None else "nested"
        combine_options = {"combine": combine or default, "concat_dim": concat_dim}
    build = Build.of_call(
        urls, preprocess=preprocess, coordinates=coordinates, **(combine_options or {}), **options
    )
    files, combination, steps = build.files, build.combination, build.job.steps
    sampled = _sample_files(files.flat, sample)
    # a file with a damaged part is reported, rather than opened without the part
    opening = replace(build.opening, omits_damaged=False)
    # without steps, the files of a batch are examined together
    job_steps = (Examination(steps),) if steps else ()
    job = replace(BatchJob.of(opening, build.building, job_steps, files.options), stops=False)
    survey = survey_files(sampled, job, build.workers, progress, len(sampled) == len(files.flat))
    joined = tuple(dim for dim in combination.dims if dim is not None)
    reason = "as given"
    if combination.dims:
        runs = survey.facts.runs
        for dim in set(joined) - {fact.subject for fact in runs}:
            # no file has the name: it may be misspelt
            check_name(dim, [fact.subject for fact in runs if fact.aspect == SIZE])
    else:
        joined, reason = guess_dimensions(survey)
    if combine_options is None:
        combine_options = {"combine": "nested", "concat_dim": next(iter(joined), None)}
        combine_options = {"combine": "by_coords"} if len(joined) > 1 else combine_options
    trial_options = {name: v for name, v in options.items() if name not in MANY_FILE_OPTIONS}
    # trials get lists of files, which have no pattern
    trial_options["coordinates"] = add_from_pattern(files.pattern, combination.dims, coordinates)
    trial = TrialCombine(joined, combine_options, trial_options, preprocess)
    differences = find_differences(survey, trial)
    eras, stretches = find_eras(survey, joined)
    return Diagnosis(
        files=len(files.flat),
        examined=len(sampled),
        joined=joined,
        reason=reason,
        formats=find_formats(survey, differences, trial),
        eras=eras,
        differences=differences,
        stretches=stretches,
    )


def _sample_files(files: Sequence[Any], sample: int | None) -> Sequence[Any]:
    """Return the first file, the last file, and ``sample`` evenly spread files between them."""
    if sample is None:
        return files
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 1:
        raise ValueError(f"sample {sample!r}: give a number of files, at least 1, or None for all")
    numbers = np.unique(np.linspace(0, len(files) - 1, sample + 2).round().astype(int))
    return [files[n] for n in numbers]


def guess_dimensions(survey: FileSurvey) -> tuple[tuple[str, ...], str]:
    """Return the dimensions to join along, and the reason for the choice."""
    facts, runs = survey.facts, survey.facts.runs
    dims = [fact.subject for fact in runs if fact.aspect == SIZE]
    # number of distinct coordinates by dimension
    counts = {d: len(facts.count_texts(Fact(d, VALUES))) for d in dims if Fact(d, VALUES) in runs}
    varying_sizes = [dim for dim in dims if len(facts.count_texts(Fact(dim, SIZE))) > 1]
    varying = [dim for dim in dims if counts.get(dim, 0) > 1]
    constant = {dim for dim in counts if dim not in varying and facts.count > 1}
    first_dims = [
        (first[0][1] or "").split(", ")[0]
        for fact, first in runs.items()
        if fact.aspect == DIMENSIONS and first[0][1] != "none"
    ]
    first_dims = [dim for dim in first_dims if dim not in constant]
    unlimited = [dim for dim in dims if dim in survey.unlimited and dim not in constant]
    candidates_by_reason = {
        "the unlimited dimension": unlimited,
        "its coordinate differs from file to file": varying,
        "its size differs from file to file": [d for d in varying_sizes if d not in counts],
        "the first dimension of most variables": sorted(
            first_dims, key=first_dims.count, reverse=True
        )[:1],
    }
    reason = next((reason for reason, dims in candidates_by_reason.items() if dims), None)
    if reason is None:
        return (), "none differs; name a new one with concat_dim"
    candidates = candidates_by_reason[reason]
    # prefer dimensions along which most files do not overlap, and among them times
    spans = {dim: survey.spans.get(dim, ()) for dim in candidates}
    sequential = [
        dim
        for dim in candidates
        if dim in varying and 2 * len(list(find_overlapping(spans[dim]))) < len(spans[dim]) - 1
    ]
    times = [dim for dim in sequential or candidates if facts.is_time(dim)]
    tiles = tuple(dim for dim in candidates if dim in varying)
    if len(tiles) > 1 and len(sequential) != 1 and not times:
        return tiles, reason
    preferred = times or sequential or candidates
    return (max(preferred, key=lambda dim: counts.get(dim, 0) * (dim in varying)),), reason
