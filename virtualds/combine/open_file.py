"""What is done with one file: it is opened, again where that may help, and prepared.

A job goes to other processes and machines, and so does what came of it.
"""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import xarray as xr

from virtualds.combine.build_options import BuildOptions
from virtualds.combine.file_cache import FileCache, open_to_keep
from virtualds.combine.file_coordinates import FileCoordinates, Source
from virtualds.combine.stored_file import StoredFile
from virtualds.combine.xarray_combine import Combination
from virtualds.datasets.open import open_dataset_or_tree
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import VirtualdsError, without_secrets
from virtualds.options import Options, get_options, set_options
from virtualds.source_file import StorageOptions
from virtualds.stores.retry import choose_wait, list_causes, may_pass, pause
from virtualds.urls import normalise_url

Opened = TypeVar("Opened", xr.Dataset, xr.DataTree)


PrepareStep = Callable[[Any, Opened], Opened]
"""Takes a file and what was opened of it, and returns what is to become of that."""


NumberedFile = tuple[int, Any]
"""The number of a file among all, and the file."""


OPEN_ERRORS = (
    *(VirtualdsError, OSError, ValueError, TypeError, LookupError),
    *(AttributeError, RuntimeError, ArithmeticError),
)
"""What a damaged file, a dead server or somebody's function raises."""


PASSING_NUMBERS = frozenset(
    getattr(errno, name, None)
    for name in ("EAGAIN", "EBUSY", "EINTR", "EIO", "EMFILE", "ENFILE", "EREMOTEIO", "ESTALE")
) - {None}
"""What the filesystems of a cluster answer while they are busy, or a server of theirs restarts."""


PICKLE_ERRORS = (TypeError, AttributeError, ValueError, LookupError, ImportError)
"""What pickling an error of somebody else's may end with, besides `pickle.PickleError`."""


LARGEST = 16
"""Files of a piece: a task lasts about as long as handing out many of them takes."""


MOST = 256
"""Most files that are opened together."""


@dataclass(frozen=True)
class Outcome(Generic[Opened]):
    """What became of a file.

    Parameters
    ----------
    number : int
        Which file it was.
    found : Dataset or DataTree, optional
    error : Exception, optional
        Why there is none.
    is_fault : bool
        Whether the error is one of the file, not of what was to be done with it.
    cached : bool
        Whether it came from the cache.
    references : int
        Chunks of its virtual arrays.

    Raises
    ------
    ValueError
        It has both a dataset and an error, or neither.
    """

    number: int
    found: Opened | None = None
    error: Exception | None = None
    is_fault: bool = False
    cached: bool = False
    references: int = 0

    def __post_init__(self) -> None:
        if (self.found is None) == (self.error is None):
            raise ValueError(f"Outcome {self.number}: a file is opened, or there is an error")


class FileWork(Protocol):
    """What is done with files, by whoever does it."""

    @property
    def smallest(self) -> int:
        """How many files it is worth giving to somebody else at least."""

    @property
    def largest(self) -> int:
        """How many files somebody else is given at a time at most."""

    def __call__(self, items: Sequence[NumberedFile]) -> list[Outcome[Any]]:
        """Open some files and prepare them, in this or another process."""

    def open_together(
        self, items: Sequence[NumberedFile]
    ) -> tuple[list[Outcome[Any]], Sequence[NumberedFile]]:
        """Open those of some neighbouring files that can be read together; return the others."""

    def open_file(self, item: NumberedFile) -> Outcome[Any]:
        """Open a file."""

    def prepare(self, item: NumberedFile, outcome: Outcome[Any]) -> Outcome[Any]:
        """Do what is to be done with an opened file."""

    def gather(
        self, outcomes: Iterator[Outcome[Any]], items: Sequence[NumberedFile]
    ) -> Iterator[Outcome[Any]]:
        """Make of files that were opened and prepared one by one, in order, what comes of them."""


@dataclass(frozen=True)
class OpenJob(Generic[Opened]):
    """How one file becomes a dataset, or a tree, to be combined with others.

    Parameters
    ----------
    open : callable
        Takes a file and returns what is in it, of a job with a cache as `Scanned`.
    steps : tuple of callables
        What is then done with it, one after the other.
    retries : int
        How often a file is opened again, where it failed for a reason that may pass.
    cache : FileCache, optional
        Where files are kept as they were opened, before any step.
    stops : bool
        Whether the files after one that fails are not looked at.
    """

    open: Callable[[Any], Opened]
    steps: tuple[PrepareStep[Opened], ...] = ()
    retries: int = 0
    cache: FileCache | None = None
    stops: bool = True
    options: Options = field(default_factory=get_options)
    process: int = field(default_factory=os.getpid)

    def __call__(self, items: Sequence[NumberedFile]) -> list[Outcome[Opened]]:
        """Open some files and prepare them, in this or another process."""
        return list(self.open_each(items))

    def open_each(self, items: Sequence[NumberedFile]) -> Iterator[Outcome[Opened]]:
        """Open some files and prepare them one by one, in this or another process."""
        self.take_settings()
        for item in items:
            outcome = self.prepare(item, self.open_file(item))
            yield _make_portable(outcome) if self._is_away else outcome
            if self.stops and outcome.error is not None:
                break

    def take_settings(self) -> None:
        """Make a worker do what the process that sent it the job would have done."""
        if self._is_away and get_options() != self.options:
            set_options(**asdict(self.options))

    @property
    def _is_away(self) -> bool:
        return os.getpid() != self.process

    def open_together(
        self, items: Sequence[NumberedFile]
    ) -> tuple[list[Outcome[Opened]], Sequence[NumberedFile]]:
        """Open none of the files together: what is done with each may depend on its dataset."""
        return [], items

    def open_again(self, file: Any) -> Any:
        """Open a file once more, and prepare it.

        Raises
        ------
        Exception
            It cannot be opened any more.
        """
        outcome = self.prepare((0, file), self.open_file((0, file)))
        if outcome.error is not None:
            raise outcome.error
        return outcome.found

    @property
    def smallest(self) -> int:
        """How many files it is worth giving to somebody else at least."""
        return 1

    @property
    def largest(self) -> int:
        """How many files somebody else is given at a time at most."""
        return LARGEST

    def gather(
        self, outcomes: Iterator[Outcome[Opened]], items: Sequence[NumberedFile]
    ) -> Iterator[Outcome[Opened]]:
        """Make of files that were opened and prepared one by one, in order, what comes of them."""
        return outcomes

    def open_file(self, item: NumberedFile) -> Outcome[Opened]:
        """Open a file, or take it from the cache.

        Raises
        ------
        OSError
            The cache cannot be used.
        """
        number, file = item
        kept = self.cache.look_up(file) if self.cache else None
        if kept is not None and kept.found is not None:
            return Outcome(
                number, kept.found, cached=True, references=_count_references(kept.found)
            )
        outcome = self._open_file(number, file)
        if self.cache and kept is not None and outcome.found is not None:
            scanned: Any = outcome.found
            self.cache.keep(kept, scanned)
            return replace(outcome, found=scanned.found)
        return outcome

    def _open_file(self, number: int, file: Any) -> Outcome[Opened]:
        attempt = 0
        while True:
            attempt += 1
            try:
                found = self.open(file)
                return Outcome(number, found, references=_count_references(found))
            except OPEN_ERRORS as error:
                if attempt > self.retries or not is_passing(error):
                    return Outcome(number, error=error, is_fault=True)
                pause(choose_wait(attempt, error))

    def prepare(self, item: NumberedFile, outcome: Outcome[Opened]) -> Outcome[Opened]:
        """Do what is to be done with an opened file."""
        number, file = item
        if outcome.found is None:
            return outcome
        found = outcome.found
        try:
            for step in self.steps:
                found = step(file, found)
        except OPEN_ERRORS as error:
            error.add_note(without_secrets(f"file {file}"))
            return Outcome(number, error=error)
        return replace(outcome, found=found)


def _count_references(found: Any) -> int:
    counted = found if isinstance(found, StoredFile) else found.virtual
    return int(counted.nchunks)


def is_passing(error: BaseException) -> bool:
    """Say whether opening failed for a reason that may pass."""
    return may_pass(error) or any(
        isinstance(cause, OSError) and cause.errno in PASSING_NUMBERS
        for cause in list_causes(error)
    )


def _make_portable(outcome: Outcome[Opened]) -> Outcome[Opened]:
    """Return the outcome with an error that comes through a pickle as what it is.

    One that does not would take the whole pool of processes along.
    """
    error = outcome.error
    try:
        pickle.loads(pickle.dumps(error))
    except (*PICKLE_ERRORS, pickle.PickleError):
        told = RuntimeError(f"{type(error).__name__}: {error}")
        told.__notes__ = getattr(error, "__notes__", [])
        return replace(outcome, error=told)
    return outcome


def make_job(
    opening: OpenOptions,
    building: BuildOptions,
    steps: tuple[PrepareStep[Any], ...] = (),
    options: StorageOptions | None = None,
    read: Callable[..., Any] = open_dataset_or_tree,
) -> OpenJob[Any]:
    """Return what is done with each file, whatever is made of them.

    Parameters
    ----------
    opening : OpenOptions
    building : BuildOptions
    steps : tuple of callables
        What is done with what was opened.
    options : StorageOptions, optional
        Access options of the files.
    read : callable
        Takes a file, ``opening`` and ``options``, and opens it; not asked if there is a cache.

    Raises
    ------
    ValueError
        There is a cache, and nobody can tell what was kept.
    """
    kept = None
    if building.cache is not None:
        kept = FileCache(normalise_url(building.cache), opening, options)
        read = open_to_keep
    open_file = partial(read, opening=opening, storage_options=options)
    return OpenJob(open_file, steps, building.retries, kept, building.stops)


def list_steps(
    coordinates: Mapping[str, Source] | None,
    combination: Combination,
    preprocess: Callable[[Opened], Opened] | None,
) -> tuple[PrepareStep[Opened], ...]:
    """Return how what was opened is prepared for a combination."""
    if coordinates is not None and not isinstance(coordinates, Mapping):
        raise TypeError(
            f"coordinates: a dict of what gives their values, by name; got {coordinates!r}"
        )
    if preprocess is not None and not callable(preprocess):
        raise TypeError(f"preprocess: a function of what was opened, got {preprocess!r}")
    steps: list[PrepareStep[Opened]] = []
    if coordinates:
        named = tuple(dim for dim in combination.dims if isinstance(dim, str))
        steps.append(FileCoordinates(coordinates, named if combination.dims else None))
    if preprocess is not None:
        steps.append(partial(_preprocess, preprocess))
    return tuple(steps)


def _preprocess(preprocess: Callable[[Opened], Opened], file: Any, found: Opened) -> Opened:
    prepared = preprocess(found)
    if not isinstance(prepared, type(found)):
        raise TypeError(
            f"preprocess: it returns a {type(found).__name__}, but {preprocess!r} returned "
            f"{type(prepared).__name__}"
        )
    return prepared
