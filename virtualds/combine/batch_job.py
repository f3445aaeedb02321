"""Open and prepare files in a worker, and join those of the same structure.

Files are opened together if their parser supports that, otherwise one by one, with retries after
temporary errors. If a reference set is being written, the worker also writes the references of the
joined files to it, and returns arrays that refer to the set. Jobs and outcomes are pickled and sent
between processes.
"""

from __future__ import annotations

import errno
import math
import os
import pickle
import platform
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import TOGETHER, ManifestGroup
from virtualds.arrays.parser import Parser, ReadTogether, SameStructureFiles, find_package_version
from virtualds.codecs.cf import PACKING_ATTRIBUTES
from virtualds.combine.concat_stored import Concatenator
from virtualds.combine.file_batch import (
    NO_PLAN,
    FileBatch,
    JoinableFiles,
    NeedsFullCombineError,
    as_batch,
    collect_files,
    find_plan,
)
from virtualds.combine.file_cache import FileCache
from virtualds.combine.file_coordinates import FileCoordinates, Opened, Source
from virtualds.combine.workers import (
    GROWTH,
    MAX_FILES_TOGETHER,
    PIECES_AHEAD,
    FileCount,
    LeftOut,
    NumberedFile,
    OpenOutcome,
    Outcomes,
    join_outcomes,
    list_unopened,
)
from virtualds.combine.xarray_combine import Combination
from virtualds.datasets.conversion import (
    find_decoding_plan,
    group_from_dataset,
    make_dataset_or_tree,
)
from virtualds.datasets.decoding import DecodingPlan, MisfitError, are_date_units
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import PARSERS, Location, reader_of
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions, fetch_coordinates
from virtualds.datasets.structure import CRS_ATTRIBUTES
from virtualds.errors import VirtualdsError, without_secrets
from virtualds.formats.referenced_files import KEEP_QUERY, check_unsigned
from virtualds.options import FILE_RETRIES, Options, check_choice, get_options, set_options
from virtualds.progress import INFO, ProgressOption, is_logged, log
from virtualds.reading import get_chunk_cache
from virtualds.reading.threads import ending_requests, fetch_many, iterate_results
from virtualds.source_file import StorageOptions, normalise_url
from virtualds.stores.access_rules import AccessPolicy
from virtualds.stores.requests import choose_wait, is_temporary, iterate_causes, log_failure, pause
from virtualds.stores.store import explain_write_errors
from virtualds.writing import Destination, WriteOptions

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import distributed

Parallel: TypeAlias = "int | Executor | Literal['dask'] | distributed.Client | None"

ON_ERROR = {"raise": "raise", "skip": "raise", "collect": "raise", "keep": "keep"}
"""The option ``on_error`` for opening each file, by the ``on_error`` of the build.

A file with an unreadable variable counts as unreadable, since the gap in the joined variable would
look like missing values.
"""


@dataclass(frozen=True)
class BuildOptions:
    """Options for opening many files, as in `virtualds.open_virtual_mfdataset`.

    Raises `ValueError` if ``on_error`` is unknown, or ``retries`` is negative.
    """

    parallel: Parallel = None
    on_error: str = "raise"
    retries: int = FILE_RETRIES
    progress: ProgressOption = None
    cache: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"retries={self.retries!r}: give a number, at least 0")

    @property
    def on_variable_error(self) -> str:
        """The option ``on_error`` for opening each file."""
        return ON_ERROR[self.on_error]

    @property
    def stops(self) -> bool:
        """Whether the build ends with the first file that cannot be opened."""
        return self.on_error in ("raise", "keep")


Key = TypeVar("Key")

MIN_TABLE_REFERENCES, PART_REFERENCES = 4096, 100_000
"""Default values of ``min_references`` and ``part_references`` of a `BuildTarget`."""


@dataclass(frozen=True)
class BuildTarget:
    """A reference set that several processes write in parts.

    An array with at least ``min_references`` references is written to a separate table. A worker
    writes references as soon as it has ``part_references`` of them.
    """

    destination: Destination
    min_references: int
    part_references: int

    @classmethod
    def begin(
        cls,
        url: Any,
        storage_options: Mapping[str, Any] | None,
        *,
        replace: bool = False,
        keep_query: bool = False,
    ) -> BuildTarget:
        """Prepare a set for writing in parts; raise an error now, before workers start."""
        choices = {KEEP_QUERY: keep_query}
        options = WriteOptions(mode="w" if replace else "w-", choices=choices)
        destination = Destination.of(Location.of(url, storage_options), options)
        return cls(destination.begin_parts(), MIN_TABLE_REFERENCES, PART_REFERENCES)

    @property
    def url(self) -> str:
        """The url of the set."""
        return str(self.destination.place.root)

    def write_arrays(self, arrays: Mapping[Key, ManifestArray]) -> dict[Key, ManifestArray]:
        """Write the arrays with many references, and return arrays that refer to the set instead.

        Raises an error for urls with a signature or a token in their query.
        """
        large = dict[Key, ManifestArray]()
        for key, array in arrays.items():
            # do not count fragments that are already in the set
            count = sum(f.manifest.size for f in array.fragments if not f.manifest.is_in_set)
            if count >= self.min_references:
                large[key] = array
        if not large:
            return {}
        # check urls before they can be read from the set
        if not self.destination.options.keep_query:
            check_unsigned(large.values(), self.url)
        with explain_write_errors(self.url):
            return self.destination.parts.write(large, self.destination.place)

    def commit(self, dataset: xr.Dataset) -> None:
        """Commit the whole dataset, whose parts the workers have written."""
        self.destination.create(partial(group_from_dataset, dataset))


@contextmanager
def abandon_on_error(target: BuildTarget | None) -> Iterator[None]:
    """Remove the parts of a set if the block raises an error."""
    try:
        yield
    except BaseException:
        if target is not None:
            # parts that cannot be removed now are removed when snapshots expire
            with suppress(OSError, VirtualdsError):
                target.destination.parts.abandon(target.destination.place)
        raise


# ---------------------------------------------------------------------- opening one file


def open_stored(
    url: Any, opening: OpenOptions, storage_options: Mapping[str, Any] | None = None
) -> FileBatch:
    """Open a file as a batch; errors are those of `virtualds.open_virtual_dataset`."""
    location = Location.of(url, storage_options)
    with location.cache_scan():
        return make_batch(url, location, open_group(location, opening), opening)


def make_batch(
    url: Any, location: Location, group: ManifestGroup, opening: OpenOptions
) -> FileBatch:
    """Load the values of loaded variables of a group, and return the batch of the file."""
    groups = dict(group.walk()) if opening.below else {"": group}
    if (plans := _find_plans(groups, opening)) is None:
        decoded = make_dataset_or_tree(location, group, opening)
        if (plans := _find_plans(groups, opening)) is None:
            return FileBatch((url,), group, NO_PLAN, opening, decoded=decoded)
    batches = dict[str, FileBatch]()
    try:
        fetch_coordinates(location.url, [*groups.values()], opening)
        for path, file_group in groups.items():
            stored = replace(file_group, groups={}) if opening.below else file_group
            batches[path] = FileBatch((url,), plans[path].load(stored), plans[path], opening)
    except VirtualdsError as error:
        error.add_note(without_secrets(f"file {location.url}"))
        raise
    first = batches.pop("")
    return replace(first, below=batches) if opening.below else first


def _find_plans(
    groups: Mapping[str, ManifestGroup], opening: OpenOptions
) -> dict[str, DecodingPlan] | None:
    """Return the decoding plans of groups, or None if there is no plan for one of them yet."""
    all_plans = {path: find_decoding_plan(group, opening) for path, group in groups.items()}
    plans = {path: plan for path, plan in all_plans.items() if plan is not None}
    return plans if len(plans) == len(all_plans) else None


# ---------------------------------------------------------------------- files

PrepareStep = Callable[[Any, Opened], Opened]
"""A step that gets a file and its dataset or tree, and returns the dataset or tree to combine."""


OPEN_ERRORS = (
    *(VirtualdsError, OSError, ValueError, TypeError, LookupError),
    *(AttributeError, RuntimeError, ArithmeticError),
)
"""Errors of damaged files, of failing servers, and of functions of the user."""


TEMPORARY_ERRNOS = frozenset(
    getattr(errno, name, None)
    for name in ("EAGAIN", "EBUSY", "EINTR", "EIO", "EMFILE", "ENFILE", "EREMOTEIO", "ESTALE")
) - {None}
"""Error numbers of network filesystems that are busy or restarting."""


def make_outcome(opened: FileBatch, *, is_cached: bool = False) -> OpenOutcome[Any]:
    """Return the outcome of opened files."""
    result = opened if opened.decoded is None else opened.decoded
    cached, way = len(opened) if is_cached else 0, opened.group.way
    ways = {way: FileCount(len(opened), min(opened.numbers))} if way is not None else {}
    return OpenOutcome(opened.numbers, result, cached=cached, references=opened.nchunks, ways=ways)


def may_open_later(error: BaseException) -> bool:
    """Return whether an error is temporary, so that opening the file again may succeed."""
    return is_temporary(error) or any(
        isinstance(cause, OSError) and cause.errno in TEMPORARY_ERRNOS
        for cause in iterate_causes(error)
    )


def list_steps(
    coordinates: Mapping[str, Source] | None,
    combination: Combination,
    preprocess: Callable[[Opened], Opened] | None,
) -> tuple[PrepareStep[Opened], ...]:
    """Return the steps for preparing the dataset of each file: coordinates, then preprocess."""
    if coordinates is not None and not isinstance(coordinates, Mapping):
        raise TypeError(
            f"coordinates {coordinates!r}: give a dict of names, and where their values come from"
        )
    if preprocess is not None and not callable(preprocess):
        raise TypeError(f"preprocess {preprocess!r}: give a function of a dataset or tree")
    steps: list[PrepareStep[Opened]] = []
    if coordinates:
        dims = tuple(dim for dim in combination.dims if isinstance(dim, str))
        steps.append(FileCoordinates(coordinates, dims if combination.dims else None))
    if preprocess is not None:
        steps.append(partial(_preprocess, preprocess))
    return tuple(steps)


def return_unchanged(file: Any, found: Opened) -> Opened:
    """Return a dataset unchanged; with this step, workers decode files to datasets."""
    return found


def _preprocess(preprocess: Callable[[Opened], Opened], file: Any, found: Opened) -> Opened:
    """Apply the function of the user to a dataset or tree, and check the type of the result."""
    prepared = preprocess(found)
    if not isinstance(prepared, type(found)):
        raise TypeError(
            f"preprocess: {preprocess!r} returned a {type(prepared).__name__}, but must return a "
            f"{type(found).__name__}"
        )
    return prepared


MIN_TASK_FILES = 8
"""Minimum number of files per task of a set that is written, so that its parts are not tiny."""
MAX_TASK_FILES = 16
"""Maximum number of files per task if files are opened one by one."""
FIRST_FILES = 16
"""Number of files that are opened before the first of them is prepared."""
PICKLE_ERRORS = (TypeError, AttributeError, ValueError, LookupError, ImportError)
"""Errors that pickling may raise, besides `pickle.PickleError`."""


@dataclass(frozen=True)
class BatchJob:
    """A job that opens files, prepares them, and joins those of the same structure.

    ``open`` opens a file as a batch, and ``steps`` then prepare its dataset or tree, in order.
    After a temporary error, a file is opened again up to ``retries`` times. ``cache`` stores opened
    files before the first step. With ``stops``, the first error ends the job.

    ``concatenator`` joins stored files, ``together`` opens files of the same structure together,
    and ``target`` is the set to which references are written; each may be None. With ``datasets``,
    prepared datasets are joined as well. ``dims`` are the dimensions along which files are joined,
    empty if coordinates decide. ``options``, ``process`` and ``version`` are the settings, the id
    and the version of this library of the process that created the job.
    """

    open: Callable[[Any], FileBatch]
    steps: tuple[PrepareStep[Any], ...] = ()
    retries: int = 0
    cache: FileCache | None = None
    stops: bool = True
    concatenator: Concatenator | None = None
    target: BuildTarget | None = None
    datasets: bool = False
    dims: tuple[Any, ...] = ()
    together: SameStructureOpener | None = None
    options: Options = field(default_factory=get_options)
    process: int = field(default_factory=os.getpid)
    version: str | None = field(default_factory=partial(find_package_version, "virtualds"))

    @classmethod
    def of(
        cls,
        opening: OpenOptions,
        building: BuildOptions,
        steps: tuple[PrepareStep[Any], ...] = (),
        options: StorageOptions | None = None,
    ) -> BatchJob:
        """Create the job from options.

        Raises `ValueError` if there is a cache and ``loadable_variables`` is a function.
        """
        cache = None
        if building.cache is not None:
            cache = FileCache(normalise_url(building.cache), opening, options)
        open_file = partial(open_stored, opening=opening, storage_options=options)
        together = SameStructureOpener(opening, options)
        return cls(open_file, steps, building.retries, cache, building.stops, together=together)

    def __call__(self, items: Sequence[NumberedFile]) -> list[OpenOutcome[Any]]:
        """Open and prepare files, and join those of the same structure; called in any process."""
        if (found := find_package_version("virtualds")) != self.version:
            raise RuntimeError(
                f"the worker {platform.node()!r} has virtualds {found}, and the process that "
                f"builds has {self.version}: install the same version on both"
            )
        if self._is_in_other_process and get_options() != self.options:
            set_options(**asdict(self.options))
        try:
            outcomes, opened = self._finish_batches(self._read_together(items))
            remaining = list_unopened(items, outcomes)
            prepared = self._open_each(remaining, opened)
            if self._is_in_other_process:
                prepared = map(_make_portable, prepared)
            return [*outcomes, *self._join(prepared, remaining)]
        finally:
            self.finish()

    @property
    def _is_in_other_process(self) -> bool:
        """Whether the job runs in a process other than the one that created it."""
        return os.getpid() != self.process

    def _open_each(
        self,
        items: Sequence[NumberedFile],
        opened: dict[int, OpenOutcome[Any]],
        pool: Executor | None = None,
        ahead: int = 0,
    ) -> Iterator[OpenOutcome[Any]]:
        """Prepare files one by one, after opening those that are not in ``opened`` yet.

        A ``pool`` opens ``ahead`` files ahead of those that are prepared.
        """
        alone = [item for item in items if item[0] not in opened]
        outcomes: Iterator[OpenOutcome[Any]] = map(self.open_file, alone)
        if pool is not None:
            ordered = iterate_results(pool, self.open_file, alone, ahead)
            outcomes = (future.result() for _, future in ordered)
        for item in items:
            # do not keep the file after it has been prepared
            found = opened.pop(item[0]) if item[0] in opened else next(outcomes)
            outcome = self.prepare(item, found)
            yield outcome
            if self.stops and outcome.error is not None:
                break

    def _read_together(self, items: Sequence[NumberedFile]) -> list[OpenOutcome[Any]]:
        """Return the outcomes of files in the cache, or read together; called in any thread."""
        hits = self.cache.look_up(items) if self.cache else ()
        if is_logged(INFO) and hits:
            log(INFO, f"{sum(map(len, hits)):,} files: from the cache")
        cached = [make_outcome(batch, is_cached=True) for batch in hits]
        batches = self._open_batches(list_unopened(items, cached))
        return [*cached, *map(make_outcome, batches)]

    def _finish_batches(
        self, outcomes: list[OpenOutcome[Any]]
    ) -> tuple[list[OpenOutcome[Any]], dict[int, OpenOutcome[Any]]]:
        """Move the references of batches to the target, and return their outcomes.

        Also returns the outcomes of single files by number, which still have to be prepared.
        """
        if self.steps:
            outcomes = [file for outcome in outcomes for file in split_outcome(outcome)]
        singles = {o.number: o for o in outcomes if len(o.numbers) == 1}
        together = [outcome for outcome in outcomes if len(outcome.numbers) > 1]
        written = self._move_references_to_set([outcome.opened for outcome in together])
        return [replace(o, opened=f) for o, f in zip(together, written, strict=True)], singles

    def _open_batches(self, items: Sequence[NumberedFile]) -> list[FileBatch]:
        """Open the files that can be read together, cache them, and return their batches."""
        batches = list[FileBatch]()
        if self.together is None:
            return batches
        compares_all = self.concatenator is not None and self.concatenator.compares_attributes

        start = time.perf_counter()
        try:
            with self.together.open_by_structure(items, compares_all) as structures:
                for files in structures:
                    try:
                        batches += self._make_batches(self.together.make_joinable(files, items))
                    except (*OPEN_ERRORS, NeedsFullCombineError, MisfitError):
                        continue
        except (VirtualdsError, OSError):
            # opening the files one by one finds the file with the error
            pass
        if self.cache is not None:
            for batch in batches:
                self.cache.add(batch)
        if is_logged(INFO) and batches:
            seconds = time.perf_counter() - start
            log(INFO, f"{sum(map(len, batches)):,} files: {TOGETHER}, {seconds:.3f} s")
        return batches

    def _make_batches(self, files: JoinableFiles) -> list[FileBatch]:
        """Return files of the same structure as batches.

        Raises `MisfitError` if files with errors are left out, and one of these files may have an
        error when it is decoded.
        """
        batches = list[FileBatch]()
        # cached batches must be independent of how the files are combined
        if self.concatenator is not None and not self.steps and self.cache is None:
            with suppress(NeedsFullCombineError):
                batches = [self.concatenator.join_files(files)]
        if not batches or not (self.stops or batches[0].is_whole):
            batches = collect_files(files)
        if not self.stops:
            for batch in batches:
                batch.check_decoding()
        return batches

    def finish(self) -> None:
        """Write pending files to the cache."""
        if self.cache is not None:
            self.cache.finish()

    @property
    def min_task_files(self) -> int:
        """Minimum number of files per task of another worker."""
        return MIN_TASK_FILES if self.target else 1

    @property
    def max_task_files(self) -> int:
        """Maximum number of files per task of another worker."""
        return MAX_FILES_TOGETHER if self.target or self.together else MAX_TASK_FILES

    @property
    def first_files(self) -> int:
        """Number of files that are opened before the first is prepared; small if this may fail."""
        return FIRST_FILES if self.steps else MAX_FILES_TOGETHER

    def open_here(self, number: int, items: Sequence[NumberedFile]) -> Outcomes:
        """Open files in ``number`` threads, and prepare them in this thread.

        Functions of the user, such as ``preprocess``, may not be thread-safe.
        """
        pool = ThreadPoolExecutor(number, thread_name_prefix="virtualds-open")
        try:
            with ending_requests() as context:

                def start(piece: Sequence[NumberedFile]) -> Future[list[OpenOutcome[Any]]]:
                    return pool.submit(context.copy().run, self._read_together, piece)

                pieces = self._split(items, number)
                read = ((piece, self._read_together(piece)) for piece in pieces)
                for piece, together in read if number == 1 else _read_ahead(start, pieces):
                    outcomes, opened = self._finish_batches(together)
                    yield from outcomes
                    remaining = list_unopened(piece, outcomes)
                    helpers = None if number == 1 else pool
                    prepared = self._open_each(remaining, opened, helpers, PIECES_AHEAD * number)
                    # without a target, files are joined later, to show each as soon as it is open
                    yield from self._join(prepared, remaining) if self.target else prepared
        finally:
            # if the build ends early, do not wait for slow servers
            pool.shutdown(wait=False, cancel_futures=True)
            self.finish()

    def _split(
        self, items: Sequence[NumberedFile], number: int
    ) -> Iterator[Sequence[NumberedFile]]:
        # with several threads, two pieces are in memory
        most = MAX_FILES_TOGETHER if number == 1 else MAX_FILES_TOGETHER // 2
        start, size = 0, min(max(self.first_files, number), most)
        while start < len(items):
            yield items[start : start + size]
            start, size = start + size, min(size * GROWTH, most)

    def open_file(self, item: NumberedFile) -> OpenOutcome[Any]:
        """Open a file with retries, and cache it; raise `OSError` if the cache is not writable."""
        number, file = item
        attempt = 0
        while True:
            attempt += 1
            try:
                opened = replace(self.open(file), numbers=(number,))
                # decode now if files that cannot be decoded are left out
                decoded = None if self.stops else opened.to_dataset()
                break
            except OPEN_ERRORS as error:
                if attempt > self.retries or not may_open_later(error):
                    return OpenOutcome((number,), error=error, is_fault=True)
                wait = choose_wait(attempt, error)
                log_failure(file, error, wait)
                pause(wait)
        damaged_parts = tuple(LeftOut.of(file, damage) for damage in opened.group.damaged.values())
        if self.cache is not None and not damaged_parts:
            # the cache does not store which parts were left out
            self.cache.add(opened)
        outcome = make_outcome(opened)
        if decoded is not None and self.steps:
            outcome = replace(outcome, opened=decoded, references=int(decoded.virtual.nchunks))
        return replace(outcome, damaged={number: damaged_parts}) if damaged_parts else outcome

    def prepare(self, item: NumberedFile, outcome: OpenOutcome[Any]) -> OpenOutcome[Any]:
        """Apply the steps to an opened file, and return the new outcome."""
        number, file = item
        if outcome.opened is None:
            return outcome
        prepared: Any = outcome.opened
        try:
            if self.steps and isinstance(prepared, FileBatch):
                prepared = prepared.to_dataset()
                # variables that were loaded while decoding have no references
                outcome = replace(outcome, references=int(prepared.virtual.nchunks))
            for step in self.steps:
                prepared = step(file, prepared)
        except OPEN_ERRORS as error:
            error.add_note(without_secrets(f"file {file}"))
            return OpenOutcome((number,), error=error)
        return replace(outcome, opened=prepared)

    def join_opened(
        self, outcomes: Sequence[OpenOutcome[Any]], items: Sequence[NumberedFile]
    ) -> list[OpenOutcome[Any]]:
        """Join files that were opened one by one, to save memory."""
        alone = [outcome for outcome in outcomes if len(outcome.numbers) == 1]
        joined = [outcome for outcome in outcomes if len(outcome.numbers) > 1]
        files = {outcome.number: items[outcome.number][1] for outcome in alone}
        return [*joined, *self._join_batch(alone, files)]

    def _join(
        self, outcomes: Iterable[OpenOutcome[Any]], items: Sequence[NumberedFile]
    ) -> Iterator[OpenOutcome[Any]]:
        """Join files of the same structure as they are opened, and yield outcomes."""
        files = dict(items)
        for batch in self._split_batches(outcomes):
            yield from self._join_batch(batch, files)

    def _split_batches(
        self, outcomes: Iterable[OpenOutcome[Any]]
    ) -> Iterator[list[OpenOutcome[Any]]]:
        """Yield lists of outcomes with a limited number of files and references."""
        batch, references = list[OpenOutcome[Any]](), 0
        limit = self.target.part_references if self.target else math.inf
        for outcome in outcomes:
            batch.append(outcome)
            references += outcome.references
            # yield a fatal error immediately
            is_last = self.stops and outcome.error is not None
            if is_last or references >= limit or len(batch) == MAX_FILES_TOGETHER:
                yield batch
                batch, references = [], 0
        if batch:
            yield batch

    def _join_batch(
        self, outcomes: list[OpenOutcome[Any]], files: Mapping[int, Any]
    ) -> Iterator[OpenOutcome[Any]]:
        """Join files of the same structure, move references to the target, and yield outcomes."""
        opened = {outcome.number: outcome for outcome in outcomes if outcome.opened is not None}
        singles, joined = dict(opened), list[FileBatch]()
        if self.concatenator is not None:
            stored = list[FileBatch]()
            for number, outcome in opened.items():
                batch = outcome.opened
                if not isinstance(batch, FileBatch):
                    batch = as_batch(files[number], batch) if self.datasets else None
                if batch is not None:
                    stored.append(replace(batch, numbers=outcome.numbers))
            joined = [
                batch for batch in self.concatenator.join_by_structure(stored) if len(batch) > 1
            ]
        for batch in joined:
            members = [singles.pop(number) for number in batch.numbers]
            [written] = self._move_references_to_set([batch])
            yield join_outcomes(members, written)
        written_singles = self._move_references_to_set(
            [outcome.opened for outcome in singles.values()]
        )
        by_number = dict(zip(singles, written_singles, strict=True))
        for outcome in outcomes:
            if outcome.opened is None:
                yield outcome
            elif outcome.number in by_number:
                yield replace(outcome, opened=by_number[outcome.number])

    def _move_references_to_set(self, files: Sequence[Any]) -> list[Any]:
        """Write arrays with many references to the target, and return files that refer to the set.

        Variables without joined dimensions are not written, as they are the same in all files.
        """
        if self.target is None:
            return list(files)
        arrays = {
            (n, name): array
            for n, file in enumerate(files)
            for name, array in self._find_growing_arrays(file).items()
        }
        written: list[dict[Any, ManifestArray]] = [{} for _ in files]
        for (n, name), array in self.target.write_arrays(arrays).items():
            written[n][name] = array
        return [
            _replace_arrays(f, own_arrays) if own_arrays else f
            for f, own_arrays in zip(files, written, strict=True)
        ]

    def _find_growing_arrays(self, file: Any) -> dict[Hashable, ManifestArray]:
        """Return the virtual arrays of a file that are joined with those of others, by name."""
        if isinstance(file, FileBatch):
            variables: Any = {n: (v.dims, v.data) for n, v in file.group.variables.items()}
        else:
            variables = {n: (v.dims, get_virtual_array(v)) for n, v in file.variables.items()}
        arrays = {n: v for n, v in variables.items() if isinstance(v[1], ManifestArray)}
        joined = {dim for dims, _ in arrays.values() for dim in dims}.intersection(self.dims)
        return {n: a for n, (dims, a) in arrays.items() if not joined or joined & set(dims)}


def _make_portable(outcome: OpenOutcome[Any]) -> OpenOutcome[Any]:
    """Return an outcome with another error if its own cannot be pickled.

    Such an error would break the pool of processes.
    """
    error = outcome.error
    try:
        pickle.loads(pickle.dumps(error))
    except (*PICKLE_ERRORS, pickle.PickleError):
        portable = RuntimeError(f"{type(error).__name__}: {error}")
        portable.__notes__ = getattr(error, "__notes__", [])
        return replace(outcome, error=portable)
    return outcome


def split_outcome(outcome: OpenOutcome[Any]) -> list[OpenOutcome[Any]]:
    """Split the outcome of a batch into outcomes of single files."""
    if len(outcome.numbers) == 1:
        return [outcome]
    files: Any = outcome.opened
    return [make_outcome(f, is_cached=bool(outcome.cached)) for f in files.list_files()]


def _replace_arrays(file: Any, arrays: Mapping[Any, ManifestArray]) -> Any:
    """Return an opened file with some of its arrays replaced."""
    if isinstance(file, FileBatch):
        variables = dict(file.group.variables)
        for name, array in arrays.items():
            variables[name] = replace(variables[name], data=array)
        return replace(file, group=replace(file.group, variables=variables))
    copied = file.copy()
    for name, array in arrays.items():
        copied.variables[name].data = array
    return copied


def _read_ahead(
    start: Callable[[Sequence[NumberedFile]], Future[list[OpenOutcome[Any]]]],
    pieces: Iterator[Sequence[NumberedFile]],
) -> Iterator[tuple[Sequence[NumberedFile], list[OpenOutcome[Any]]]]:
    """Yield pieces of the files in order, with the outcomes of those that are read together.

    One piece is fetched while another is decoded. Nothing is fetched ahead before the first piece
    is open, since it may fail, nor while files are opened alone, since each of these sends
    requests, too.
    """
    running: deque[tuple[Sequence[NumberedFile], Future[list[OpenOutcome[Any]]]]] = deque()
    most = 1
    while True:
        running.extend((piece, start(piece)) for piece in islice(pieces, most - len(running)))
        if not running:
            return
        piece, future = running.popleft()
        outcomes = future.result()
        are_together = sum(len(outcome.numbers) for outcome in outcomes) == len(piece)
        most = 2 if are_together else 1
        if not are_together:
            wait_for([following for _, following in running])
        yield piece, outcomes


# ---------------------------------------------------------------------- files read together

DECODING_ATTRIBUTES = frozenset(
    {
        *PACKING_ATTRIBUTES,
        *("units", "calendar", "_Encoding", "char_dim_name", "_ARRAY_DIMENSIONS"),
        *("coordinates", "bounds", "climatology", "grid_mapping", "ancillary_variables"),
        *("cell_measures", "formula_terms", "geometry", "node_coordinates", "node_count"),
        *("part_node_count", "interior_ring", "dimensions", "axis", "standard_name"),
        *CRS_ATTRIBUTES,
    }
)
"""Attributes that determine, now or in future, how xarray decodes a variable.

They are taken from the CF conventions 1.12, appendix A. Units of times are handled separately.
"""


CHAIN_SEPARATOR = "::"
"""Separator of files inside archives, and of chained fsspec urls."""


@dataclass(frozen=True)
class SameStructureOpener:
    """Opens files of the same structure together, if their parser supports that."""

    opening: OpenOptions
    options: StorageOptions | None = None

    @contextmanager
    def open_by_structure(
        self, items: Sequence[tuple[int, Any]], compares_all: bool
    ) -> Iterator[Sequence[SameStructureFiles]]:
        """Yield the files of each structure, which are open within the block.

        With ``compares_all``, files of the same structure have all attributes in common, and not
        only those that determine how xarray decodes a variable.
        """
        files = [file for _, file in items]
        if len(files) < 2 or not all(isinstance(file, str | os.PathLike) for file in files):
            yield ()
            return
        urls = [normalise_url(file) for file in files]
        first = Location.of(files[0], self.options)
        # use the parser of the first file for all files
        with first.cache_scan():
            is_plain = not any(CHAIN_SEPARATOR in url for url in urls)
            is_plain = (
                is_plain and self.opening.snapshot is None and not self.opening.parser_options
            )
            read: ReadTogether | None = None
            if is_plain and (self.opening.parser is not None or _may_be_read_together(first.url)):
                # `fetch_many` counts this request among those to its host
                [(parser, _)] = fetch_many(
                    [first.url], lambda url: url, lambda _: reader_of(first, self.opening.parser)
                )
                read = parser.read_together if isinstance(parser, Parser) else None
            if read is None:
                yield ()
                return
            AccessPolicy.from_argument(self.opening.allow)
            get_chunk_cache().count_opening()
            opening = self.opening

            def must_be_equal(name: str, value: Any) -> bool:
                may_differ = name == "units" and opening.decode_cf and are_date_units(value)
                return not may_differ and (compares_all or name in DECODING_ATTRIBUTES)

            arguments = opening.group, opening.skip, must_be_equal, opening.below
            with read(urls, self.options, *arguments) as structures:
                yield [files for files in structures if len(files.numbers) > 1]

    def make_joinable(
        self, alike: SameStructureFiles, items: Sequence[tuple[int, Any]]
    ) -> JoinableFiles:
        """Return files of the same structure as `JoinableFiles`.

        Raises `NeedsFullCombineError` if they have to be decoded one by one.
        """
        numbers, files = zip(*(items[n] for n in alike.numbers), strict=True)
        joinable = dict[str, JoinableFiles]()
        for path, same_files in {"": alike, **alike.below}.items():
            if not all(
                isinstance(v.data, ManifestArray) for v in same_files.group.variables.values()
            ):
                raise NeedsFullCombineError("some variables are read when they are needed")
            plan = find_plan(files[0], same_files.group, self.opening, self.options)
            joinable[path] = JoinableFiles(
                same_files, files, numbers, plan, self.opening, self.options
            )
        first = joinable.pop("")
        return replace(first, below=joinable) if self.opening.below else first


def _may_be_read_together(url: str) -> bool:
    """Return whether a url may belong to a parser that reads files together, by its suffix."""
    name, is_known = url.partition("?")[0].lower(), False
    for parser in PARSERS:
        if name.endswith(parser.suffixes):
            is_known = True
            if parser.read_together is not None:
                return True
    return not is_known
