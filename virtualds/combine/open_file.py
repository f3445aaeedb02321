"""What is done with one file: it is opened, again where that may help, and prepared.

A job goes to other processes and machines, and so does what came of it.
"""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import xarray as xr

from virtualds.combine.file_cache import FileCache, format_choices, scanned
from virtualds.combine.file_coordinates import FileCoordinates, Source
from virtualds.combine.stored_file import StoredFile
from virtualds.combine.xarray_combine import Combination
from virtualds.datasets.keywords import check_choice
from virtualds.datasets.open import dataset_of, datatree_of, open_virtual_datatree
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

    def opened(self, item: NumberedFile) -> Outcome[Any]:
        """Open a file."""

    def prepared(self, item: NumberedFile, outcome: Outcome[Any]) -> Outcome[Any]:
        """Do what is to be done with an opened file."""

    def gathered(
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

    Raises
    ------
    ValueError
        ``retries`` is negative.
    """

    open: Callable[[Any], Opened]
    steps: tuple[PrepareStep[Opened], ...] = ()
    retries: int = 0
    cache: FileCache | None = None
    stops: bool = True
    options: Options = field(default_factory=get_options)
    process: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"retries {self.retries!r}: it is a number of at least 0")

    def __call__(self, items: Sequence[NumberedFile]) -> list[Outcome[Opened]]:
        """Open some files and prepare them, in this or another process."""
        return list(self.each(items))

    def each(self, items: Sequence[NumberedFile]) -> Iterator[Outcome[Opened]]:
        """Open some files and prepare them one by one, in this or another process."""
        away = os.getpid() != self.process
        if away and get_options() != self.options:
            # a worker does what the process that sent it the job would have done
            set_options(**asdict(self.options))
        for item in items:
            outcome = self.prepared(item, self.opened(item))
            yield _make_portable(outcome) if away else outcome
            if self.stops and outcome.error is not None:
                break

    def again(self, file: Any) -> Any:
        """Open a file once more, and prepare it.

        Raises
        ------
        Exception
            It cannot be opened any more.
        """
        outcome = self.prepared((0, file), self.opened((0, file)))
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

    def gathered(
        self, outcomes: Iterator[Outcome[Opened]], items: Sequence[NumberedFile]
    ) -> Iterator[Outcome[Opened]]:
        """Make of files that were opened and prepared one by one, in order, what comes of them."""
        return outcomes

    def opened(self, item: NumberedFile) -> Outcome[Opened]:
        """Open a file, or take it from the cache.

        Raises
        ------
        OSError
            The cache cannot be used.
        """
        number, file = item
        kept = self.cache.look(file) if self.cache else None
        if kept is not None and kept.found is not None:
            return Outcome(
                number, kept.found, cached=True, references=_count_references(kept.found)
            )
        outcome = self._opened(number, file)
        if self.cache and kept is not None and outcome.found is not None:
            scanned: Any = outcome.found
            self.cache.keep(kept, scanned)
            return replace(outcome, found=scanned.found)
        return outcome

    def _opened(self, number: int, file: Any) -> Outcome[Opened]:
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

    def prepared(self, item: NumberedFile, outcome: Outcome[Opened]) -> Outcome[Opened]:
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


ON_ERROR = {"raise": "raise", "skip": "raise", "collect": "raise", "keep": "keep"}
"""What is done about files that fail, and then about variables of a file that do.

A file of which a variable cannot be read is left out as a whole: nobody is to take what is missing
of it for missing values.
"""


def choose_variable_on_error(on_error: str) -> str:
    """Return what is done about variables of a file, given what is done about files.

    Raises
    ------
    ValueError
        There is no such thing.
    """
    check_choice("on_error", on_error, ON_ERROR)
    return ON_ERROR[on_error]


def make_job(
    opener: Callable[..., Opened],
    choices: Mapping[str, Any],
    *,
    steps: tuple[PrepareStep[Opened], ...],
    storage_options: Mapping[str, Any] | None,
    on_error: str,
    retries: int,
    cache: str | os.PathLike[str] | None,
) -> OpenJob[Opened]:
    """Return what is done with each file, whatever is made of them.

    Parameters
    ----------
    opener : callable
        Takes a file and ``choices``, and returns what is in it.
    choices : dict
        All that decides what that is; files that are kept in a cache are kept by it.
    steps : tuple of callables
        What is then done with what was opened.
    storage_options, on_error, retries, cache
        As `open_virtual_mfdataset` has them.

    Raises
    ------
    ValueError
        ``on_error`` or ``retries`` are none that there are, or nobody can tell what was kept.
    """
    decided = {name: _make_repeatable(value) for name, value in choices.items()}
    decided["on_error"] = choose_variable_on_error(on_error)
    open_file: Any = opener
    kept = None
    if cache is not None:
        key = format_choices(opener=opener.__name__, **decided)
        is_tree = opener is open_virtual_datatree
        make: Any = datatree_of if is_tree else dataset_of
        options = StorageOptions.of(storage_options)
        how = tuple(decided[name] for name in ("loadable_variables", "decode_cf", "on_error"))
        kept = FileCache(normalise_url(cache), key, make, how, options)
        open_file = partial(scanned, make=make, below=is_tree)
    return OpenJob(
        partial(open_file, storage_options=storage_options, **decided),
        steps,
        retries,
        kept,
        stops=on_error in ("raise", "keep"),
    )


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


def _make_repeatable(value: Any) -> Any:
    """Return what can be gone through once for every file."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _preprocess(preprocess: Callable[[Opened], Opened], file: Any, found: Opened) -> Opened:
    prepared = preprocess(found)
    if not isinstance(prepared, type(found)):
        raise TypeError(
            f"preprocess: it returns a {type(found).__name__}, but {preprocess!r} returned "
            f"{type(prepared).__name__}"
        )
    return prepared
