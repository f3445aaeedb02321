"""Combine two files that differ, to find the effect of the difference.

`EXPLANATIONS` describes the expected effects. A trial with `open_virtual_mfdataset` shows whether
the two files combine, and at what cost.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import xarray as xr

from virtualds.arrays.group import ManifestGroup
from virtualds.checks.diagnose.report import Difference, Verdict, describe_error
from virtualds.combine import open_virtual_mfdataset
from virtualds.combine.batch_job import OPEN_ERRORS
from virtualds.combine.xarray_combine import CONCATENATING_OPTIONS, format_options
from virtualds.datasets.aggregation.writing import encode
from virtualds.datasets.conversion import group_from_dataset
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.structure import (
    ATTRIBUTE,
    CALENDAR,
    CHUNKS,
    CODECS,
    CRS_ATTRIBUTES,
    DIMENSIONS,
    DTYPE,
    FILL,
    PRESENCE,
    ROLE,
    SCALE,
    SIZE,
    STORED,
    SYSTEM,
    UNITS,
    VALUES,
    Fact,
)
from virtualds.errors import UnsupportedError
from virtualds.formats.zarr.write_plan import Hierarchy, plan_writing

OVERLAP, ORDER, TOGETHER, OPENING = "overlap", "order", "together", "opening"
GAP = "gap"
RENAMED, NAME, KIND = "name of the dimension", "name of the variable", "data variables"
"""Aspects of causes, which a report shows in place of the differences that they explain."""
TIME_UNITS, GRID = "units of time", "values of a grid"
Pair = tuple[str, str]


class UntestedDifference(NamedTuple):
    """A difference before its trial.

    ``pair`` are the two files to combine, or ``among`` if two files do not show the difference.
    ``is_time`` is whether the variable contains times, ``virtual`` whether its values are not
    loaded, and ``is_dimension`` whether it is a dimension coordinate. ``renames`` maps renamed
    dimensions to their names in the first file.
    """

    fact: Fact
    before: str
    after: str
    pair: Pair
    files: int
    is_time: bool = False
    virtual: bool = False
    among: tuple[str, ...] = ()
    is_dimension: bool = False
    renames: Mapping[str, str] = {}

    @property
    def names(self) -> set[str]:
        """The variables or dimensions of the difference."""
        if self.fact.aspect in (RENAMED, NAME):
            return {*self.before.split(", "), *self.after.split(", ")}
        return {self.fact.subject}


class ExpectedEffect(NamedTuple):
    """The expected effect of a difference.

    ``how`` says what happens to it, ``price`` what it always costs, and ``remedy`` what helps if it
    costs or blocks. A ``harmless`` difference never blocks, so it needs no trial. A ``leading``
    difference is a fault of the files, not a limit of a format: it is listed first, with only its
    own remedy.
    """

    how: str
    remedy: str = ""
    price: str = ""
    harmless: bool = False
    leading: bool = False


SPLIT = "open the eras separately"
LEAVE_OUT = "leave out the variable with drop_variables"
SIDE_BY_SIDE: dict[str, Mapping[str, str]] = {
    f"{format_options(options)} keeps the values of every file; or {LEAVE_OUT}": options
    for options in CONCATENATING_OPTIONS
}
"""Remedies for values that differ, and their options, the simplest first."""
WRITE_ZARR = "write zarr-v3, which holds it"
EXPLANATIONS: dict[str, ExpectedEffect] = {
    PRESENCE: ExpectedEffect(
        "filled with fill values where it is missing (combine='nested'; 'by_coords' treats files "
        "with other variables as another dataset)",
        f"{LEAVE_OUT}, or add it in preprocess",
    ),
    SIZE: ExpectedEffect(
        "aligned by its coordinate",
        "pad= fills what shorter files lack; or select the common part in preprocess, or " + SPLIT,
        leading=True,
    ),
    DIMENSIONS: ExpectedEffect(
        "broadcast, and transposed to the order of the first file",
        "make the dimensions equal in preprocess (transpose, squeeze, rename)",
    ),
    DTYPE: ExpectedEffect("promoted as xarray promotes", SPLIT),
    ROLE: ExpectedEffect("", "preprocess with ds.set_coords or ds.reset_coords"),
    VALUES: ExpectedEffect(
        "the values of the first file are used", f"{LEAVE_OUT}, rename it in preprocess, or {SPLIT}"
    ),
    GRID: ExpectedEffect(
        "the coordinate of the first file is used",
        "leave out the files of the other grid, or open them separately",
        leading=True,
    ),
    RENAMED: ExpectedEffect(
        "variables get both dimensions",
        "rename it in preprocess",
        price="their values are repeated along the one that a file lacks",
        leading=True,
    ),
    NAME: ExpectedEffect(
        "both variables exist",
        "rename it in preprocess, if it is the same variable",
        price="each is filled where files have the other",
        leading=True,
    ),
    KIND: ExpectedEffect(
        "each variable is filled where files lack it",
        "leave out the files of the other kind, or open them separately",
        price="the files have no data variable in common",
        leading=True,
    ),
    SYSTEM: ExpectedEffect(
        "the system of the first file is kept",
        "open the files of each system apart, or reproject the files to one system first",
        leading=True,
    ),
    STORED: ExpectedEffect("each file is read with its own type"),
    CODECS: ExpectedEffect("each chunk is decoded with the codecs of its file"),
    SCALE: ExpectedEffect("each file keeps its own scale and offset"),
    FILL: ExpectedEffect("each file keeps its own fill value"),
    TIME_UNITS: ExpectedEffect("each file is decoded with its own units"),
    UNITS: ExpectedEffect(
        "the units of the first file are kept",
        "convert it in preprocess, if the values have other units",
        price="values are not converted",
    ),
    CALENDAR: ExpectedEffect(
        "dates of two calendars in one coordinate",
        f"{SPLIT}, or preprocess with ds.convert_calendar, if every day exists in both",
        price="they have no common order: the coordinate cannot be sorted or selected from",
    ),
    CHUNKS: ExpectedEffect("each file keeps its chunk lengths"),
    ATTRIBUTE: ExpectedEffect("the attribute of the first file is kept", harmless=True),
    OVERLAP: ExpectedEffect(
        "overlap='first' or 'last' takes common values from one of the files",
        "pass overlap='first' or 'last', or leave out one of the files",
    ),
    ORDER: ExpectedEffect(
        "sort=True orders the files by their coordinate",
        "remove sort=False, or give the files in order",
    ),
    GAP: ExpectedEffect(
        "the gap is not filled",
        "look for the missing files, or fill the axis after opening (ds.asfreq, ds.reindex)",
        price="times are missing in an otherwise regular axis",
        harmless=True,
    ),
    TOGETHER: ExpectedEffect("", "open the files one by one to find the cause"),
}
"""The expected effects of differences, by aspect."""


def explain_change(change: UntestedDifference) -> ExpectedEffect:
    """Return the expected effect of a change."""
    aspect = change.fact.aspect
    if aspect == UNITS and change.is_time:
        return EXPLANATIONS[TIME_UNITS]
    if aspect == VALUES and change.is_dimension:
        return EXPLANATIONS[GRID]
    if aspect.startswith(ATTRIBUTE) and aspect.removeprefix(ATTRIBUTE) in CRS_ATTRIBUTES:
        # a trial shows whether the attributes describe different CRSs
        return EXPLANATIONS[ATTRIBUTE]._replace(harmless=False, remedy=EXPLANATIONS[SYSTEM].remedy)
    for prefix in (CHUNKS, ATTRIBUTE):
        if aspect.startswith(prefix):
            return EXPLANATIONS[prefix]
    return EXPLANATIONS[aspect]


# ---------------------------------------------------------------------- trials


@dataclass(frozen=True)
class TrialCombine:
    """Combines a few files with the arguments of the user.

    Parameters
    ----------
    dims : tuple of str
        The dimensions to join along.
    how : dict
        The arguments ``combine`` and ``concat_dim`` of `open_virtual_mfdataset`.
    options : dict
        Its other arguments.
    preprocess : callable, optional
        The ``preprocess`` of the user.
    """

    dims: tuple[str, ...]
    how: Mapping[str, Any]
    options: Mapping[str, Any]
    preprocess: Callable[[xr.Dataset], xr.Dataset] | None = None
    _last_file: dict[str, xr.Dataset] = field(default_factory=dict, compare=False, repr=False)

    def open_file(self, file: str) -> xr.Dataset:
        """Return the dataset of a single file; the last one is cached."""
        if file not in self._last_file:
            self._last_file.clear()
            self._last_file[file] = self.combine([file])
        return self._last_file[file]

    def rename(self, names: Mapping[str, str]) -> TrialCombine:
        """Return a trial that first renames the dimensions of each file."""

        def preprocess(dataset: xr.Dataset) -> xr.Dataset:
            dataset = self.preprocess(dataset) if self.preprocess else dataset
            return dataset.rename({n: to for n, to in names.items() if n in dataset.dims})

        return replace(self, preprocess=preprocess, _last_file={})

    def combine(
        self, files: Sequence[str], reduce: Callable[[xr.Dataset], xr.Dataset] | None = None
    ) -> xr.Dataset:
        """Return the combined dataset of files; ``reduce`` is applied to the dataset of each."""

        def preprocess(dataset: xr.Dataset) -> xr.Dataset:
            dataset = self.preprocess(dataset) if self.preprocess else dataset
            return reduce(dataset) if reduce else dataset

        with warnings.catch_warnings():
            # the survey has issued the warnings of each file
            warnings.simplefilter("ignore")
            return open_virtual_mfdataset(
                list(files), preprocess=preprocess, progress=False, **self.how, **self.options
            )


def judge_changes(
    files: Sequence[str],
    changes: Sequence[UntestedDifference],
    trial: TrialCombine,
    examples: Sequence[str],
) -> Iterator[Difference]:
    """Yield changes between the first and the last of some files as differences with verdicts.

    If no change explains why the files do not combine, also yield a difference with the error.
    ``examples`` are files for trials of remedies: the two files, and files that lack a variable.
    """
    result: xr.Dataset | None = None
    failure: Exception | None = None
    if not changes or any(not explain_change(change).harmless for change in changes):
        try:
            result = trial.combine(files)
        except OPEN_ERRORS as error:
            failure = error
    differences = list[Difference]()
    for change in changes:
        combined, change_trial = result, trial
        if change.renames:
            combined, change_trial = None, trial.rename(change.renames)
        try:
            differences.append(_judge_change(change, combined, change_trial, examples))
        except UnsupportedError as error:
            # no trial can combine such files, and the error has a remedy
            failure = failure or error
    yield from differences
    if failure is not None and all(row.verdict != "blocks" for row in differences):
        yield _make_failure_difference(failure, (files[0], files[-1]), examples, trial)


def _make_failure_difference(
    error: Exception, pair: Pair, examples: Sequence[str], trial: TrialCombine
) -> Difference:
    """Return a difference with an error that no difference of structure explains."""
    name, remedy = "", "" if isinstance(error, UnsupportedError) else EXPLANATIONS[TOGETHER].remedy
    # values of variables without the joined dimension are not facts
    if isinstance(error, xr.MergeError):
        remedy = _find_lossless_remedy(examples, trial)
        name = "" if remedy in SIDE_BY_SIDE else _find_conflicting_variable(examples, trial)
    change = UntestedDifference(Fact(name, TOGETHER), *pair, pair, 1)
    return _make_difference(change, "blocks", describe_error(error), remedy)


def _find_conflicting_variable(files: Sequence[str], trial: TrialCombine) -> str:
    """Return the variable without which the files combine, or "" if there is none."""
    variables = [item for file in files for item in trial.open_file(file).variables.items()]
    for name in dict.fromkeys(str(n) for n, v in variables if set(v.dims).isdisjoint(trial.dims)):
        with suppress(*OPEN_ERRORS):
            trial.combine(files, partial(xr.Dataset.drop_vars, names=name, errors="ignore"))
            return name
    return ""


def _find_lossless_remedy(
    files: Sequence[str],
    trial: TrialCombine,
    reduce: Callable[[xr.Dataset], xr.Dataset] | None = None,
) -> str:
    """Return the first of `SIDE_BY_SIDE` with which the files combine, else another remedy."""
    for remedy, options in SIDE_BY_SIDE.items():
        try:
            replace(trial, options={**trial.options, **options}).combine(files, reduce)
        except OPEN_ERRORS:
            continue
        return remedy
    return EXPLANATIONS[VALUES].remedy


def _judge_change(
    change: UntestedDifference,
    combined: xr.Dataset | None,
    trial: TrialCombine,
    examples: Sequence[str],
) -> Difference:
    """Return a change as a difference with a verdict.

    Raises
    ------
    UnsupportedError
        No trial can combine such files.
    """
    expected = explain_change(change)
    subject, aspect = change.fact
    costs = [expected.price] if expected.price else []
    if expected.harmless:
        effect, remedy = "; ".join([expected.how, *costs]), expected.remedy if costs else ""
        return _make_difference(change, "costs" if costs else "combines", effect, remedy)
    reduce = partial(_select_variables, change=change, trial=trial)
    try:
        if combined is None or change.among:
            # another difference blocks, or two files are not enough
            combined = trial.combine(change.among or change.pair, reduce)
    except UnsupportedError:
        raise
    except OPEN_ERRORS as error:
        remedy = expected.remedy
        if aspect == VALUES and not change.is_dimension:
            remedy = _find_lossless_remedy(examples, trial, reduce)
        return _make_difference(change, "blocks", describe_error(error), remedy)
    refused = _list_newly_refusing(change, combined, trial)
    costs += _find_costs(change, combined, trial)
    costs += [f"{', '.join(refused)} cannot hold that"] if refused else []
    effect = expected.how
    if aspect == DTYPE and subject in combined.variables:
        effect = f"{effect}, to {combined.variables[subject].dtype}"
    elif aspect == VALUES and subject in combined.sizes:
        effect = f"the coordinates are united ({combined.sizes[subject]} elements)"
    suggests_zarr = refused and "zarr-v3" not in refused and not expected.leading
    remedies = [WRITE_ZARR] if suggests_zarr else []
    remedies += [expected.remedy] if costs and expected.remedy else []
    verdict: Verdict = "costs" if costs else "combines"
    effect = "; ".join([effect, *costs])
    return _make_difference(change, verdict, effect, ", or ".join(remedies), refused)


def _make_difference(
    change: UntestedDifference,
    verdict: Verdict,
    how: str,
    remedy: str = "",
    refused: Iterable[str] = (),
) -> Difference:
    against, file = change.pair
    return Difference(
        *(*change.fact, change.before, change.after, file, change.files, verdict, how, remedy),
        refused=tuple(refused),
        against=against,
        leads=explain_change(change).leading,
    )


def _select_variables(
    dataset: xr.Dataset, *, change: UntestedDifference, trial: TrialCombine
) -> xr.Dataset:
    """Return the variables of a difference, with size 1 along all other dimensions."""
    subject, aspect = change.fact
    if aspect == KIND:
        return dataset
    if aspect in (OVERLAP, ORDER):
        return dataset[[]].assign_coords({subject: dataset[subject]})
    subjects, joined = change.names, set(trial.dims)
    selected = [n for n, v in dataset.variables.items() if n in subjects or subjects & set(v.dims)]
    if aspect not in (SIZE, VALUES, PRESENCE, ROLE, RENAMED, NAME):
        selected = [name for name in selected if name == subject]
    with_joined = [n for n, v in dataset.variables.items() if joined & set(v.dims)]
    with_joined.sort(key=lambda name: name in joined)
    names = set(selected)
    if aspect in (PRESENCE, NAME) or names.isdisjoint(with_joined):
        # files need a variable with the joined dimension
        names |= set(with_joined[:1])
    if len(joined) > 1 or trial.how["combine"] == "by_coords":
        # files are ordered by their coordinates
        names |= joined & set(dataset.variables)
    reduced = dataset.drop_vars([n for n in dataset.variables if n not in names])
    others = {d: slice(0, 1) for d in reduced.dims if d not in (*joined, *subjects)}
    return reduced.isel(others).drop_vars([d for d in others if d in reduced.variables])


# ---------------------------------------------------------------------- costs


FORMAT_CHECKS: dict[str, Callable[[ManifestGroup], object]] = {
    "kerchunk-json": lambda group: Hierarchy.of(group, "diagnosis", "kerchunk"),
    "kerchunk-parquet": lambda group: Hierarchy.of(group, "diagnosis", "kerchunk"),
    "icechunk": lambda group: plan_writing(group, "memory://diagnosis", grids=("regular",)),
    "zarr-v3": lambda group: plan_writing(group, "memory://diagnosis", grids=()),
    "cfa": lambda group: encode(group, "memory://diagnosis"),
}
"""Functions that raise an error for a group that a format cannot store."""
FRAGMENTING_ASPECTS = (CHUNKS, DIMENSIONS, PRESENCE, SIZE, VALUES)
"""Aspects whose differences may split an array into several fragments."""


def list_refusing_formats(dataset: xr.Dataset) -> list[str]:
    """Return the names of the formats that cannot store a dataset."""
    refusing = list[str]()
    try:
        group = group_from_dataset(dataset)
    except UnsupportedError:
        return list(FORMAT_CHECKS)
    for name, check in FORMAT_CHECKS.items():
        try:
            check(group)
        except UnsupportedError:
            refusing.append(name)
    return refusing


def _list_variables(change: UntestedDifference, dataset: xr.Dataset) -> list[Hashable]:
    """Return the variables of a difference."""
    names = change.names if change.fact.aspect not in (OVERLAP, ORDER) else set()
    dims = names if change.fact.aspect in (SIZE, VALUES, RENAMED) else set()
    return [n for n, v in dataset.variables.items() if n in names or dims & set(v.dims)]


def _find_costs(
    change: UntestedDifference, combined: xr.Dataset, trial: TrialCombine
) -> Iterator[str]:
    """Yield descriptions of what combining costs compared with single files."""
    subject, aspect = change.fact
    if aspect == VALUES and subject in combined.sizes:
        yield "elements that a file lacks are filled (join='exact' refuses that)"
    if aspect in (OVERLAP, ORDER):
        index = combined.indexes[subject]
        if not index.is_unique:
            yield "duplicate coordinate values"
        if not (index.is_monotonic_increasing or index.is_monotonic_decreasing):
            yield "the coordinate is not monotonic"
    variables = [combined.variables[name] for name in _list_variables(change, combined)]
    arrays = [get_virtual_array(variable) for variable in variables]
    if change.virtual and any(array is None for array in arrays):
        yield "its values are read into memory"
    fragments = max((len(array.fragments) for array in arrays if array is not None), default=0)
    is_along_joined = aspect in {f"{CHUNKS}{dim}" for dim in trial.dims}
    if fragments > 1 and aspect.startswith(FRAGMENTING_ASPECTS) and not is_along_joined:
        yield f"{fragments} fragments with different chunks"


def _list_newly_refusing(
    change: UntestedDifference, combined: xr.Dataset, trial: TrialCombine
) -> list[str]:
    """Return the formats that can store a single file, but not the combined dataset."""
    names = _list_variables(change, combined)

    def list_refusing(dataset: xr.Dataset) -> list[str]:
        variables = dataset.variables
        return list_refusing_formats(xr.Dataset({n: variables[n] for n in names if n in variables}))

    refusing = list_refusing(combined) if names else []
    refusing_file = list_refusing(trial.open_file(change.pair[0])) if refusing else []
    return [name for name in refusing if name not in refusing_file]
