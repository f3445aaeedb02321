"""Diagnosing an archive: how its files differ, and whether they combine."""

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
from virtualds.combine import open_virtual_mfdataset
from virtualds.combine.batch_job import BatchJob, BuildOptions, list_steps
from virtualds.combine.file_coordinates import Source, add_from_pattern
from virtualds.combine.ordering import Arrangement, Files, Paths
from virtualds.combine.workers import choose_workers
from virtualds.combine.xarray_combine import CHOICES, PASSED_TO_XARRAY, Combination, check_name
from virtualds.datasets.keywords import check_arguments, find_arguments, select_fields
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.structure import DIMENSIONS, SIZE, VALUES, Fact
from virtualds.progress import ProgressOption

EXCLUDED_OPTIONS = {"paths", "attrs_file", "to", "target_options"}
"""Arguments that trials never pass on, since they must not write a set."""
OPTIONS = frozenset(find_arguments(open_virtual_mfdataset)) - EXCLUDED_OPTIONS
MANY_FILE_OPTIONS = {"parallel", "progress"}
"""Arguments for opening many files, which trials of two files do not need."""


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

    Only the structure of the files is read, and what opening a file loads: coordinates and scalars.
    Files with the same structure form an era. For each difference, `open_virtual_mfdataset`
    combines the two files on either side of it; the result shows whether the difference combines,
    costs something, or blocks. Variables without the joined dimension are read and compared only in
    these trials.

    Parameters
    ----------
    urls : str, or sequence of str or paths
        A pattern, as in `open_virtual_mfdataset`, or the files, in order.
    sample : int, optional
        How many files to examine, evenly spread, besides the first and the last; None means all.
    combine, concat_dim : str, or list of str, optional
        As in `open_virtual_mfdataset`; with ``concat_dim``, files are nested. By default the files
        are joined along the unlimited dimension, or the dimension whose coordinate or size differs;
        the report names it and the reason. Tiles have several.
    preprocess, coordinates
        As in `open_virtual_mfdataset`. Without ``concat_dim``, every given coordinate is a
        dimension.
    progress : bool or callable, optional
        As in `open_virtual_mfdataset`, for the examined files.
    **options
        As in `open_virtual_mfdataset`: ``group``, ``storage_options``, ``join``, ``parallel`` and
        so on; but not ``to`` and ``attrs_file``.

    Returns
    -------
    Diagnosis
        The report, shown as text, and as HTML in notebooks. Files that cannot be opened form eras
        of their own.

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
    >>> found = diagnose("20*.nc")
    >>> len(found.eras), found.joined, found.blocks
    (1, ('time',), False)
    """
    arrangement = select_fields(Arrangement, options)
    building = select_fields(BuildOptions, options)
    opening = select_fields(OpenOptions, {**options, "on_error": building.on_variable_error})
    files = Files.of(urls, options.get("storage_options"))
    if (newest := options.pop("newest", None)) is not None:
        files = files.select_newest(newest)
    chosen = _sample_files(files.flat, sample)
    combine_options: dict[str, Any] | None = None
    # the coordinates of the user become dimensions, unless the user names the joined dimension
    if combine is not None or concat_dim is not None or coordinates:
        usual = "by_coords" if concat_dim is None else "nested"
        combine_options = {"combine": combine or usual, "concat_dim": concat_dim}
    merging = {name: options[name] for name in CHOICES if name in options}
    dims = combine_options or {"combine": "by_coords", "concat_dim": None}
    combination = Combination(**dims, options=merging, arrangement=arrangement)
    coordinates = add_from_pattern(files.pattern, combination.dims, coordinates)
    steps = list_steps(coordinates, combination, preprocess)
    # without steps, files of a batch are examined together
    examining = (Examination(steps),) if steps else ()
    job = replace(BatchJob.of(opening, building, examining, files.options), stops=False)
    workers = choose_workers(building.parallel, files)
    survey = survey_files(chosen, job, workers, progress, len(chosen) == len(files.flat))
    joined = tuple(dim for dim in combination.dims if dim is not None)
    reason = "as given"
    if combination.dims:
        runs = survey.facts.runs
        for dim in set(joined) - {fact.subject for fact in runs}:
            # the user may have misspelt the name
            check_name(dim, [fact.subject for fact in runs if fact.aspect == SIZE])
    else:
        joined, reason = guess_dimensions(survey)
    if combine_options is None:
        combine_options = {"combine": "nested", "concat_dim": next(iter(joined), None)}
        combine_options = {"combine": "by_coords"} if len(joined) > 1 else combine_options
    tried = {name: value for name, value in options.items() if name not in MANY_FILE_OPTIONS}
    tried["coordinates"] = coordinates
    trial = TrialCombine(joined, combine_options, tried, preprocess)
    differences = find_differences(survey, trial)
    eras, ranges = find_eras(survey, joined)
    return Diagnosis(
        files=len(files.flat),
        examined=len(chosen),
        joined=joined,
        reason=reason,
        formats=find_formats(survey, differences, trial),
        eras=eras,
        differences=differences,
        stretches=ranges,
    )


def _sample_files(files: Sequence[Any], sample: int | None) -> Sequence[Any]:
    """Return the first file, the last file, and some evenly spread files between them."""
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
    values = {d: len(facts.count_texts(Fact(d, VALUES))) for d in dims if Fact(d, VALUES) in runs}
    sizes = [dim for dim in dims if len(facts.count_texts(Fact(dim, SIZE))) > 1]
    moving = [dim for dim in dims if values.get(dim, 0) > 1]
    still = {dim for dim in values if dim not in moving and facts.count > 1}
    firsts = [
        (first[0][1] or "").split(", ")[0]
        for fact, first in runs.items()
        if fact.aspect == DIMENSIONS and first[0][1] != "none"
    ]
    firsts = [dim for dim in firsts if dim not in still]
    leading = [max(firsts, key=firsts.count)] if firsts else []
    candidates = (
        ("the unlimited dimension", [d for d in dims if d in survey.unlimited and d not in still]),
        ("its coordinate differs from file to file", moving),
        ("its size differs from file to file", [d for d in sizes if d not in values]),
        ("the first dimension of most variables", leading),
    )
    nothing = "none differs; name a new one with concat_dim", list[str]()
    reason, chosen = next(
        ((reason, dims_found) for reason, dims_found in candidates if dims_found), nothing
    )
    if not chosen:
        return (), reason
    # dimensions along which most files follow each other
    spans = {dim: survey.spans.get(dim, ()) for dim in chosen}
    apart = [d for d in chosen if 2 * len(list(find_overlapping(spans[d]))) < len(spans[d]) - 1]
    alone = [dim for dim in apart if dim in moving]
    times = [dim for dim in alone or chosen if facts.counts_time(dim)]
    tiles = tuple(dim for dim in chosen if dim in moving)
    if len(tiles) > 1 and len(alone) != 1 and not times:
        return tiles, reason
    return (max(times or alone or chosen, key=lambda d: values.get(d, 0) * (d in moving)),), reason
