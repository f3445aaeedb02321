"""Diagnosing an archive: how its files differ, and whether they combine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import xarray as xr

from virtualds.checks.diagnose.differences import find_differences, find_eras, find_formats
from virtualds.checks.diagnose.facts import Examination, FactRuns, FileSurvey, survey_files
from virtualds.checks.diagnose.places import PlacedFile, find_overlapping
from virtualds.checks.diagnose.report import Diagnosis
from virtualds.checks.diagnose.trials import TrialCombine
from virtualds.combine import open_virtual_mfdataset
from virtualds.combine.alike_files import AlikeOpener
from virtualds.combine.batch_job import BatchJob
from virtualds.combine.build_options import BuildOptions
from virtualds.combine.file_coordinates import Source
from virtualds.combine.open_file import list_steps, make_job
from virtualds.combine.ordering import Arrangement, Files, Paths
from virtualds.combine.workers import choose_workers
from virtualds.combine.xarray_combine import CHOICES, OF_XARRAY, Combination, check_name
from virtualds.datasets.keywords import list_arguments, make_strict
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.structure import DIMENSIONS, SIZE, VALUES, Fact
from virtualds.progress import ProgressOption

NOT_TRIED = {"paths", "attrs_file", "to", "target_options"}
"""Arguments that a trial never passes on: it must not write a set."""
OPTIONS = frozenset(list_arguments(open_virtual_mfdataset)) - NOT_TRIED
MANY_FILE_OPTIONS = {"parallel", "progress"}
"""Arguments for opening many files, which a trial of two files does not need."""


Options = TypeVar("Options", Arrangement, BuildOptions, OpenOptions)


@make_strict(more=OPTIONS.union(OF_XARRAY))
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
        A glob pattern, or the files, in order.
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
    arrangement = _select(Arrangement, options)
    building = _select(BuildOptions, options)
    opening = _select(OpenOptions, {**options, "on_error": building.on_variable_error})
    files = Files.of(urls, options.get("storage_options"))
    chosen = _sample_files(files.flat, sample)
    how = _find_given(combine, concat_dim, coordinates)
    merging = {name: options[name] for name in CHOICES if name in options}
    dims = how or {"combine": "by_coords", "concat_dim": None}
    combination = Combination(**dims, options=merging, arrangement=arrangement)
    steps = list_steps(coordinates, combination, preprocess)
    # without steps, files that are read together stay together
    examining = (Examination(steps),) if steps else ()
    one = replace(make_job(opening, building, examining, files.options), stops=False)
    job = BatchJob(one, together=AlikeOpener(opening, files.options))
    workers = choose_workers(building.parallel, files)
    survey = survey_files(chosen, job, workers, progress, len(chosen) == len(files.flat))
    if combination.dims:
        _check_dims(combination.dims, survey)
        joining = JoinedDimensions(tuple(d for d in combination.dims if d is not None), "as given")
    else:
        joining = guess_dimensions(survey)
    tried = {name: value for name, value in options.items() if name not in MANY_FILE_OPTIONS}
    tried["coordinates"] = coordinates
    trial = TrialCombine(joining.dims, how or _to_arguments(joining.dims), tried, preprocess)
    differences = find_differences(survey, trial)
    eras, stretches = find_eras(survey, joining.dims)
    return Diagnosis(
        files=len(files.flat),
        examined=len(chosen),
        joined=joining.dims,
        reason=joining.reason,
        formats=find_formats(survey, differences, trial),
        eras=eras,
        differences=differences,
        stretches=stretches,
    )


def _find_given(combine: str | None, concat_dim: Any, coordinates: Any) -> dict[str, Any] | None:
    """Return the given way to combine files, None if it has to be found."""
    if combine is None and concat_dim is not None:
        return {"combine": "nested", "concat_dim": concat_dim}
    # given coordinates become dimensions, unless the joined dimension is given
    if combine is not None or coordinates:
        return {"combine": combine or "by_coords", "concat_dim": concat_dim}
    return None


def _check_dims(dims: Sequence[Any], survey: FileSurvey) -> None:
    """Refuse a dimension to join along that looks like a misspelt dimension of the files.

    Raises
    ------
    CombineError
    """
    facts = survey.facts.runs
    for dim in set(dims) - {None, *(fact.subject for fact in facts)}:
        check_name(dim, [fact.subject for fact in facts if fact.aspect == SIZE])


def _to_arguments(dims: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that combine files along the found dimensions."""
    if len(dims) > 1:
        return {"combine": "by_coords"}
    return {"combine": "nested", "concat_dim": next(iter(dims), None)}


def _select(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Return those of the given options that are of one kind."""
    return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})


def _sample_files(files: Sequence[Any], sample: int | None) -> Sequence[Any]:
    """Return the first file, the last file, and some evenly spread files between them."""
    if sample is None:
        return files
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 1:
        raise ValueError(f"sample {sample!r}: give a number of files, at least 1, or None for all")
    numbers = np.unique(np.linspace(0, len(files) - 1, sample + 2).round().astype(int))
    return [files[n] for n in numbers]


# ---------------------------------------------------------------------- joined dimensions


class JoinedDimensions(NamedTuple):
    """The dimensions to join along, and how they were found."""

    dims: tuple[str, ...]
    reason: str


def guess_dimensions(survey: FileSurvey) -> JoinedDimensions:
    """Find the dimensions to join along."""
    facts = survey.facts
    dims = [fact.subject for fact in facts.runs if fact.aspect == SIZE]
    moving = {dim: count for dim in dims if (count := _count_coordinates(facts, dim)) > 1}
    still = {dim for dim in dims if _count_coordinates(facts, dim) == 1 and facts.count > 1}
    for name, chosen in (
        ("the unlimited dimension", [d for d in dims if d in survey.unlimited and d not in still]),
        ("its coordinate differs from file to file", list(moving)),
        ("its size differs from file to file", _find_changing_dims(facts, dims)),
        ("the first dimension of most variables", _find_leading(facts, still)),
    ):
        if chosen:
            return JoinedDimensions(_find_foremost(facts, chosen, moving, survey.spans), name)
    return JoinedDimensions((), "none differs; name a new one with concat_dim")


def _count_coordinates(facts: FactRuns, dim: str) -> int:
    """Return how many different coordinates a dimension has, 0 without any."""
    fact = Fact(dim, VALUES)
    return len(facts.count_texts(fact)) if fact in facts.runs else 0


def _find_changing_dims(facts: FactRuns, dims: Iterable[str]) -> list[str]:
    bare = (dim for dim in dims if not _count_coordinates(facts, dim))
    return [dim for dim in bare if len(facts.count_texts(Fact(dim, SIZE))) > 1]


def _find_leading(facts: FactRuns, still: set[str]) -> list[str]:
    """Return the dimension that comes first in most variables."""
    firsts = [
        (runs[0][1] or "").split(", ")[0]
        for fact, runs in facts.runs.items()
        if fact.aspect == DIMENSIONS and runs[0][1] != "none"
    ]
    counted = [dim for dim in firsts if dim not in still]
    return [max(counted, key=counted.count)] if counted else []


def _find_foremost(
    facts: FactRuns,
    dims: Sequence[str],
    moving: Mapping[str, int],
    placed: Mapping[str, Sequence[PlacedFile]],
) -> tuple[str, ...]:
    """Return the dimension along which files follow each other, or the dimensions of tiles."""
    alone = [dim for dim in dims if dim in moving and _is_apart(placed.get(dim, ()))]
    times = [dim for dim in alone or dims if facts.counts_time(dim)]
    tiles = tuple(dim for dim in dims if dim in moving)
    if len(tiles) > 1 and len(alone) != 1 and not times:
        return tiles
    return (max(times or alone or dims, key=lambda dim: moving.get(dim, 0)),)


def _is_apart(placed: Sequence[PlacedFile]) -> bool:
    """Say whether files follow each other, with few exceptions."""
    return 2 * len(list(find_overlapping(placed))) < len(placed) - 1
