"""Opens one file, repeatedly if failures are temporary, and prepares what it holds.

Jobs are sent to other processes and machines, and outcomes are sent back.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import xarray as xr

from virtualds.arrays.group import ReadWay
from virtualds.combine.build_options import BuildOptions
from virtualds.combine.file_batch import FileBatch, OpenedAlone, open_stored
from virtualds.combine.file_cache import FileCache
from virtualds.combine.file_coordinates import FileCoordinates, Source
from virtualds.combine.progress import LeftOut
from virtualds.combine.xarray_combine import Combination
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import VirtualdsError, without_secrets
from virtualds.log import INFO, tell, tells
from virtualds.source_file import StorageOptions
from virtualds.stores.retry import choose_wait, list_causes, may_pass, pause, tell_failure
from virtualds.urls import normalise_url

Opened = TypeVar("Opened", xr.Dataset, xr.DataTree)


PrepareStep = Callable[[Any, Opened], Opened]
"""Takes a file and its dataset or tree, and returns the dataset or tree to combine."""


NumberedFile = tuple[int, Any]
"""The number of a file in the order of the files, and the file."""


OPEN_ERRORS = (
    *(VirtualdsError, OSError, ValueError, TypeError, LookupError),
    *(AttributeError, RuntimeError, ArithmeticError),
)
"""Errors that a damaged file, a dead server or a function of the user raises."""


PASSING_NUMBERS = frozenset(
    getattr(errno, name, None)
    for name in ("EAGAIN", "EBUSY", "EINTR", "EIO", "EMFILE", "ENFILE", "EREMOTEIO", "ESTALE")
) - {None}
"""Errors of a cluster's filesystem that is busy, or whose server restarts."""


MOST = 256
"""Most files that are opened together."""


@dataclass(frozen=True)
class Outcome(Generic[Opened]):
    """The result of opening a file, or several at once: what was opened, or an error.

    Parameters
    ----------
    numbers : tuple of int
        The numbers of the files; only files that were joined are several.
    found : FileBatch, Dataset or DataTree, optional
    error : Exception, optional
        Why nothing was opened.
    is_fault : bool
        Whether the file could not be opened; false if it was opened, and preparing it failed.
    cached : int
        How many of the files came from the cache.
    references : int
        How many chunks the virtual arrays of the files have.
    ways : mapping of int to ReadWay
        By the number of the file: how it was read, if its parser says it.
    damaged : mapping of int to tuple of LeftOut
        By the number of the file: damaged parts that were left out of it.

    Raises
    ------
    ValueError
        There are both something that was opened and an error, or neither.
    """

    numbers: tuple[int, ...]
    found: Opened | None = None
    error: Exception | None = None
    is_fault: bool = False
    cached: int = 0
    references: int = 0
    ways: Mapping[int, ReadWay] = field(default_factory=dict)
    damaged: Mapping[int, tuple[LeftOut, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.found is None) == (self.error is None):
            raise ValueError(f"Outcome {self.numbers}: give either what was opened or an error")

    @property
    def number(self) -> int:
        """The lowest number of a file."""
        return min(self.numbers)


def make_outcome(opened: FileBatch | OpenedAlone, *, is_cached: bool = False) -> Outcome[Any]:
    """Return the outcome of files that were opened."""
    found = opened if isinstance(opened, FileBatch) else opened.decoded
    cached, way = len(opened) if is_cached else 0, opened.group.way
    ways = dict.fromkeys(opened.numbers, way) if way is not None else {}
    return Outcome(opened.numbers, found, cached=cached, references=opened.nchunks, ways=ways)


def join_outcomes(outcomes: Sequence[Outcome[Any]], found: Any) -> Outcome[Any]:
    """Return the outcome of files that were opened one by one, and joined to ``found``."""
    return Outcome(
        tuple(number for outcome in outcomes for number in outcome.numbers),
        found,
        cached=sum(outcome.cached for outcome in outcomes),
        references=sum(outcome.references for outcome in outcomes),
        ways={n: way for outcome in outcomes for n, way in outcome.ways.items()},
        damaged={n: parts for outcome in outcomes for n, parts in outcome.damaged.items()},
    )


def list_unopened(
    items: Sequence[NumberedFile], found: Sequence[Outcome[Any]]
) -> list[NumberedFile]:
    """Return the files that have no outcome yet."""
    done = {number for outcome in found for number in outcome.numbers}
    return [item for item in items if item[0] not in done]


@dataclass(frozen=True)
class OpenJob(Generic[Opened]):
    """How one file becomes a dataset or tree that is ready to be combined with others.

    Parameters
    ----------
    open : callable
        Takes a file and returns a `FileBatch` or an `OpenedAlone`.
    steps : tuple of callables
        The functions that prepare the dataset or tree, one after the other.
    retries : int
        How often to open a file again if a failure is temporary.
    cache : FileCache, optional
        Keeps files as they were opened, before the first step.
    stops : bool
        Whether to leave the files after one that fails.
    """

    open: Callable[[Any], FileBatch | OpenedAlone]
    steps: tuple[PrepareStep[Opened], ...] = ()
    retries: int = 0
    cache: FileCache | None = None
    stops: bool = True

    def look_up(self, items: Sequence[NumberedFile]) -> Sequence[FileBatch | OpenedAlone]:
        """Return those of some files that are in the cache."""
        found = self.cache.look_up(items) if self.cache else ()
        if tells(INFO) and found:
            tell(INFO, f"{sum(map(len, found)):,} files: from the cache")
        return found

    def finish(self) -> None:
        """Write to the cache what was opened."""
        if self.cache is not None:
            self.cache.finish()

    def open_file(self, item: NumberedFile) -> Outcome[Opened]:
        """Open a file, and cache it.

        Raises
        ------
        OSError
            The cache cannot be written.
        """
        number, file = item
        attempt = 0
        while True:
            attempt += 1
            try:
                opened = replace(self.open(file), numbers=(number,))
                # a file that does not decode is left out
                decoded = None if self.stops else opened.to_dataset()
                break
            except OPEN_ERRORS as error:
                if attempt > self.retries or not is_passing(error):
                    return Outcome((number,), error=error, is_fault=True)
                wait = choose_wait(attempt, error)
                tell_failure(file, error, wait)
                pause(wait)
        lost = tuple(LeftOut.of(file, damage) for damage in opened.group.damaged.values())
        if self.cache is not None and not lost:
            # what is cached says nothing of what was left out
            self.cache.add(opened)
        outcome = make_outcome(opened)
        if decoded is not None and self.steps:
            outcome = replace(outcome, found=decoded, references=int(decoded.virtual.nchunks))
        return replace(outcome, damaged={number: lost}) if lost else outcome

    def prepare(self, item: NumberedFile, outcome: Outcome[Opened]) -> Outcome[Opened]:
        """Apply the steps to an opened file."""
        number, file = item
        if outcome.found is None:
            return outcome
        found: Any = outcome.found
        try:
            if self.steps and isinstance(found, FileBatch):
                found = found.to_dataset()
                # decoding may have loaded variables
                outcome = replace(outcome, references=int(found.virtual.nchunks))
            for step in self.steps:
                found = step(file, found)
        except OPEN_ERRORS as error:
            error.add_note(without_secrets(f"file {file}"))
            return Outcome((number,), error=error)
        return replace(outcome, found=found)


def is_passing(error: BaseException) -> bool:
    """Say whether opening failed for a temporary reason."""
    return may_pass(error) or any(
        isinstance(cause, OSError) and cause.errno in PASSING_NUMBERS
        for cause in list_causes(error)
    )


def make_job(
    opening: OpenOptions,
    building: BuildOptions,
    steps: tuple[PrepareStep[Any], ...] = (),
    options: StorageOptions | None = None,
) -> OpenJob[Any]:
    """Return the job that opens and prepares each file.

    Parameters
    ----------
    opening : OpenOptions
    building : BuildOptions
    steps : tuple of callables
        The functions that prepare what was opened.
    options : StorageOptions, optional
        Access options of the files.

    Raises
    ------
    ValueError
        There is a cache, and ``loadable_variables`` is a function: the cache cannot know it again.
    """
    cache = None
    if building.cache is not None:
        cache = FileCache(normalise_url(building.cache), opening, options)
    open_file = partial(open_stored, opening=opening, storage_options=options)
    return OpenJob(open_file, steps, building.retries, cache, building.stops)


def list_steps(
    coordinates: Mapping[str, Source] | None,
    combination: Combination,
    preprocess: Callable[[Opened], Opened] | None,
) -> tuple[PrepareStep[Opened], ...]:
    """Return the steps that prepare a file for a combination."""
    if coordinates is not None and not isinstance(coordinates, Mapping):
        raise TypeError(
            f"coordinates {coordinates!r}: give a dict of names, and where their values come from"
        )
    if preprocess is not None and not callable(preprocess):
        raise TypeError(f"preprocess {preprocess!r}: give a function of a dataset or tree")
    steps: list[PrepareStep[Opened]] = []
    if coordinates:
        named = tuple(dim for dim in combination.dims if isinstance(dim, str))
        steps.append(FileCoordinates(coordinates, named if combination.dims else None))
    if preprocess is not None:
        steps.append(partial(_preprocess, preprocess))
    return tuple(steps)


def keep_dataset(file: Any, found: Opened) -> Opened:
    """Return a dataset unchanged: so files are decoded where they are opened."""
    return found


def _preprocess(preprocess: Callable[[Opened], Opened], file: Any, found: Opened) -> Opened:
    prepared = preprocess(found)
    if not isinstance(prepared, type(found)):
        raise TypeError(
            f"preprocess: {preprocess!r} returned a {type(prepared).__name__}, but must return a "
            f"{type(found).__name__}"
        )
    return prepared
