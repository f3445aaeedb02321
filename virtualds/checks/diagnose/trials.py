"""Trials: combining two files shows the effect of a difference, so that it need not be guessed.

`EXPLANATIONS` describes the expected effect of a difference. `open_virtual_mfdataset` checks it by
combining the two files that differ, and the result shows the costs.
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
from virtualds.datasets.aggregation_writing import encode
from virtualds.datasets.from_dataset import group_from_dataset
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
"""Aspects that explain other differences, and that a report names in their place."""
TIME_UNITS, GRID = "units of time", "values of a grid"
Pair = tuple[str, str]


class UntestedDifference(NamedTuple):
    """A difference without a verdict.

    ``pair`` are the two files to try, ``is_time`` is whether the variable counts time, ``virtual``
    whether its values stay in the files, and ``is_dimension`` whether it is the coordinate of a
    dimension. ``among`` lists all files with the difference, if two files do not show it.
    ``renames`` are names of dimensions, and their names in the first file.
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
        """The variables and dimensions that the difference is about."""
        if self.fact.aspect in (RENAMED, NAME):
            return {*self.before.split(", "), *self.after.split(", ")}
        return {self.fact.subject}


class ChangeMeaning(NamedTuple):
    """A description of the effect of a difference when files are combined.

    ``price`` is what it always costs; ``remedy`` helps if it costs or blocks. A ``harmless``
    difference never prevents files from combining, so it is not tried. A ``leading`` one is a fault
    of the files rather than a matter of formats: it is listed first, with only its own remedy.
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
"""Remedies for values that differ, with the options of each, the simplest first."""
WRITE_ZARR = "write zarr-v3, which holds it"
EXPLANATIONS: dict[str, ChangeMeaning] = {
    PRESENCE: ChangeMeaning(
        "filled with fill values where it is missing (combine='nested'; 'by_coords' treats files "
        "with other variables as another dataset)",
        f"{LEAVE_OUT}, or add it in preprocess",
    ),
    SIZE: ChangeMeaning(
        "aligned by its coordinate",
        "pad= fills what shorter files lack; or select the common part in preprocess, or " + SPLIT,
        leading=True,
    ),
    DIMENSIONS: ChangeMeaning(
        "broadcast, and transposed to the order of the first file",
        "make the dimensions equal in preprocess (transpose, squeeze, rename)",
    ),
    DTYPE: ChangeMeaning("promoted as xarray promotes", SPLIT),
    ROLE: ChangeMeaning("", "preprocess with ds.set_coords or ds.reset_coords"),
    VALUES: ChangeMeaning(
        "the values of the first file are used", f"{LEAVE_OUT}, rename it in preprocess, or {SPLIT}"
    ),
    GRID: ChangeMeaning(
        "the coordinate of the first file is used",
        "leave out the files of the other grid, or open them apart",
        leading=True,
    ),
    RENAMED: ChangeMeaning(
        "variables get both dimensions",
        "rename it in preprocess",
        price="their values are repeated along the one that a file lacks",
        leading=True,
    ),
    NAME: ChangeMeaning(
        "both variables are there",
        "rename it in preprocess, if it is the same variable",
        price="each is filled where files have the other",
        leading=True,
    ),
    KIND: ChangeMeaning(
        "each variable is filled where files lack it",
        "leave out the files of the other kind, or open them apart",
        price="the files have no data variable in common",
        leading=True,
    ),
    SYSTEM: ChangeMeaning(
        "the system of the first file is kept",
        "open the files of each system apart, or reproject the files to one system first",
        leading=True,
    ),
    STORED: ChangeMeaning("each file is read with its own type"),
    CODECS: ChangeMeaning("each chunk is decoded with the codecs of its file"),
    SCALE: ChangeMeaning("each file keeps its own scale and offset"),
    FILL: ChangeMeaning("each file keeps its own fill value"),
    TIME_UNITS: ChangeMeaning("each file is decoded with its own units"),
    UNITS: ChangeMeaning(
        "the units of the first file are kept",
        "convert it in preprocess, if the values have other units",
        price="values are not converted",
    ),
    CALENDAR: ChangeMeaning(
        "dates of two calendars in one coordinate",
        f"{SPLIT}, or preprocess with ds.convert_calendar, if every day exists in both",
        price="they have no common order: the coordinate cannot be sorted or selected from",
    ),
    CHUNKS: ChangeMeaning("each file keeps its chunk lengths"),
    ATTRIBUTE: ChangeMeaning("the attribute of the first file is kept", harmless=True),
    OVERLAP: ChangeMeaning(
        "overlap='first' or 'last' takes common values from one of the files",
        "pass overlap='first' or 'last', or leave out one of the files",
    ),
    ORDER: ChangeMeaning(
        "sort=True orders the files by their coordinate",
        "remove sort=False, or give the files in order",
    ),
    GAP: ChangeMeaning(
        "the gap is not filled",
        "look for the missing files, or fill the axis after opening (ds.asfreq, ds.reindex)",
        price="times are missing in an otherwise regular axis",
        harmless=True,
    ),
    TOGETHER: ChangeMeaning("", "open the files one by one to find the cause"),
}
"""The effect of a difference when files are combined, by aspect."""


def explain_change(change: UntestedDifference) -> ChangeMeaning:
    """Describe the effect of a change when files are combined."""
    aspect = change.fact.aspect
    if aspect == UNITS and change.is_time:
        return EXPLANATIONS[TIME_UNITS]
    if aspect == VALUES and change.is_dimension:
        return EXPLANATIONS[GRID]
    if aspect.startswith(ATTRIBUTE) and aspect.removeprefix(ATTRIBUTE) in CRS_ATTRIBUTES:
        # a trial shows whether the attributes describe another CRS, or the same one in other words
        return EXPLANATIONS[ATTRIBUTE]._replace(harmless=False, remedy=EXPLANATIONS[SYSTEM].remedy)
    for several in (CHUNKS, ATTRIBUTE):
        if aspect.startswith(several):
            return EXPLANATIONS[several]
    return EXPLANATIONS[aspect]


# ---------------------------------------------------------------------- trying


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
        Its other options.
    preprocess : callable, optional
        The function of the user.
    """

    dims: tuple[str, ...]
    how: Mapping[str, Any]
    options: Mapping[str, Any]
    preprocess: Callable[[xr.Dataset], xr.Dataset] | None = None
    _alone: dict[str, xr.Dataset] = field(default_factory=dict, compare=False, repr=False)

    def open_alone(self, file: str) -> xr.Dataset:
        """Open a single file; the last one is cached."""
        if file not in self._alone:
            self._alone.clear()
            self._alone[file] = self.combine([file])
        return self._alone[file]

    def rename(self, names: Mapping[str, str]) -> TrialCombine:
        """Return a trial of files whose dimensions are renamed first."""

        def renamed(dataset: xr.Dataset) -> xr.Dataset:
            dataset = self.preprocess(dataset) if self.preprocess else dataset
            return dataset.rename({n: to for n, to in names.items() if n in dataset.dims})

        return replace(self, preprocess=renamed, _alone={})

    def combine(
        self, files: Sequence[str], alone: Callable[[xr.Dataset], xr.Dataset] | None = None
    ) -> xr.Dataset:
        """Return files combined, each reduced by ``alone``."""

        def prepared(dataset: xr.Dataset) -> xr.Dataset:
            dataset = self.preprocess(dataset) if self.preprocess else dataset
            return alone(dataset) if alone else dataset

        with warnings.catch_warnings():
            # the survey already reported the warnings of each file
            warnings.simplefilter("ignore")
            return open_virtual_mfdataset(
                list(files), preprocess=prepared, progress=False, **self.how, **self.options
            )


def judge_changes(
    files: Sequence[str],
    changes: Sequence[UntestedDifference],
    trial: TrialCombine,
    examples: Sequence[str],
) -> Iterator[Difference]:
    """Yield the verdicts of all changes between the first and the last of some files.

    Without changes, yield an error of files that do not combine although nothing differs.
    ``examples`` are files on which a remedy is tried: the two, and those that lack a variable.
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
        combined, tried = result, trial
        if change.renames:
            combined, tried = None, trial.rename(change.renames)
        try:
            differences.append(_judge_change(change, combined, tried, examples))
        except UnsupportedError as error:
            # such files cannot be combined in a trial, and the error gives the remedy
            failure = failure or error
    yield from differences
    if failure is not None and all(row.verdict != "blocks" for row in differences):
        yield _describe_failure(failure, (files[0], files[-1]), examples, trial)


def _describe_failure(
    error: Exception, pair: Pair, examples: Sequence[str], trial: TrialCombine
) -> Difference:
    """Describe an error that is not explained by a structural difference."""
    name, remedy = "", "" if isinstance(error, UnsupportedError) else EXPLANATIONS[TOGETHER].remedy
    # variables without the joined dimension are compared only when files are combined
    if isinstance(error, xr.MergeError):
        remedy = _find_keeping(examples, trial)
        name = "" if remedy in SIDE_BY_SIDE else _find_failing(examples, trial)
    change = UntestedDifference(Fact(name, TOGETHER), *pair, pair, 1)
    return _make_difference(change, "blocks", describe_error(error), remedy)


def _find_failing(files: Sequence[str], trial: TrialCombine) -> str:
    """Return the variable without which the files can be combined, or "" if there is none."""
    variables = [item for file in files for item in trial.open_alone(file).variables.items()]
    for name in dict.fromkeys(str(n) for n, v in variables if set(v.dims).isdisjoint(trial.dims)):
        with suppress(*OPEN_ERRORS):
            trial.combine(files, partial(xr.Dataset.drop_vars, names=name, errors="ignore"))
            return name
    return ""


def _find_keeping(
    files: Sequence[str],
    trial: TrialCombine,
    alone: Callable[[xr.Dataset], xr.Dataset] | None = None,
) -> str:
    """Return the simplest working remedy for differing values that loses no values."""
    for remedy, options in SIDE_BY_SIDE.items():
        try:
            replace(trial, options={**trial.options, **options}).combine(files, alone)
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
    """Return the change as a difference, with a verdict.

    Raises
    ------
    UnsupportedError
        Files like these cannot be combined in a trial at all.
    """
    meaning = explain_change(change)
    subject, aspect = change.fact
    prices = [meaning.price] if meaning.price else []
    if meaning.harmless:
        effect, remedy = "; ".join([meaning.how, *prices]), meaning.remedy if prices else ""
        return _make_difference(change, "costs" if prices else "combines", effect, remedy)
    select = partial(_reduce_others, change=change, trial=trial)
    try:
        if combined is None or change.among:
            # combine only the variables of the difference, of the files that show it
            combined = trial.combine(change.among or change.pair, select)
    except UnsupportedError:
        raise
    except OPEN_ERRORS as error:
        remedy = meaning.remedy
        if aspect == VALUES and not change.is_dimension:
            remedy = _find_keeping(examples, trial, select)
        return _make_difference(change, "blocks", describe_error(error), remedy)
    refused = _list_refused(change, combined, trial)
    prices += _find_costs(change, combined, trial)
    prices += [f"{', '.join(refused)} cannot hold that"] if refused else []
    effect = meaning.how
    if aspect == DTYPE and subject in combined.variables:
        effect = f"{effect}, to {combined.variables[subject].dtype}"
    elif aspect == VALUES and subject in combined.sizes:
        effect = f"the coordinates are united ({combined.sizes[subject]} elements)"
    goes_into_zarr = refused and "zarr-v3" not in refused and not meaning.leading
    remedies = [WRITE_ZARR] if goes_into_zarr else []
    remedies += [meaning.remedy] if prices and meaning.remedy else []
    verdict: Verdict = "costs" if prices else "combines"
    effect = "; ".join([effect, *prices])
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


def _reduce_others(
    dataset: xr.Dataset, *, change: UntestedDifference, trial: TrialCombine
) -> xr.Dataset:
    """Return the variables of a difference, at one position of dimensions that do not matter."""
    subject, aspect = change.fact
    if aspect == KIND:
        return dataset
    if aspect in (OVERLAP, ORDER):
        return dataset[[]].assign_coords({subject: dataset[subject]})
    named, joined = change.names, set(trial.dims)
    about = [n for n, v in dataset.variables.items() if n in named or named & set(v.dims)]
    if aspect not in (SIZE, VALUES, PRESENCE, ROLE, RENAMED, NAME):
        about = [n for n in about if n == subject]
    along = [n for n, v in dataset.variables.items() if joined & set(v.dims)]
    along.sort(key=lambda n: n in joined)
    # if these variables lack the joined dimension, keep one more variable that has it
    shows_length = aspect not in (PRESENCE, NAME) and set(about) & set(along)
    names = {*about, *(() if shows_length else along[:1])}
    if len(joined) > 1 or trial.how["combine"] == "by_coords":
        # files are ordered by their coordinates
        names |= joined & set(dataset.variables)
    reduced = dataset.drop_vars([n for n in dataset.variables if n not in names])
    others = {d: slice(0, 1) for d in reduced.dims if d not in (*joined, *named)}
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
CUTTING_ASPECTS = (CHUNKS, DIMENSIONS, PRESENCE, SIZE, VALUES)
"""Aspects in which differences may split an array into several fragments."""


def list_refusing_formats(dataset: xr.Dataset) -> list[str]:
    """Return the names of the formats that cannot store a dataset."""
    refused = list[str]()
    try:
        group = group_from_dataset(dataset)
    except UnsupportedError:
        return list(FORMAT_CHECKS)
    for name, hold in FORMAT_CHECKS.items():
        try:
            hold(group)
        except UnsupportedError:
            refused.append(name)
    return refused


def _list_variables(change: UntestedDifference, dataset: xr.Dataset) -> list[Hashable]:
    """Return the variables of a difference."""
    named = change.names if change.fact.aspect not in (OVERLAP, ORDER) else set()
    along = named if change.fact.aspect in (SIZE, VALUES, RENAMED) else set()
    return [n for n, v in dataset.variables.items() if n in named or along & set(v.dims)]


def _find_costs(
    change: UntestedDifference, combined: xr.Dataset, trial: TrialCombine
) -> Iterator[str]:
    """Yield descriptions of the costs of the combined dataset compared with a single file."""
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
    most = max((len(array.fragments) for array in arrays if array is not None), default=0)
    is_along = aspect in {f"{CHUNKS}{dim}" for dim in trial.dims}
    if most > 1 and aspect.startswith(CUTTING_ASPECTS) and not is_along:
        yield f"{most} fragments with different chunks"


def _list_refused(
    change: UntestedDifference, combined: xr.Dataset, trial: TrialCombine
) -> list[str]:
    """Return the formats that can store each file, but not the result."""
    names = _list_variables(change, combined)

    def list_refusing(dataset: xr.Dataset) -> list[str]:
        variables = dataset.variables
        return list_refusing_formats(xr.Dataset({n: variables[n] for n in names if n in variables}))

    refused = list_refusing(combined) if names else []
    before = list_refusing(trial.open_alone(change.pair[0])) if refused else []
    return [name for name in refused if name not in before]
