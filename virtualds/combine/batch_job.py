"""The job of a worker: opening and preparing files, and joining those of the same structure.

If a parser can read files together, they are opened together; all others are opened one by one,
with retries after temporary failures. A batch of files has one array per variable, not one per
file. If a set is being written, the same worker writes the references of the joined files, and
sends back where it wrote them. Jobs and outcomes are pickled, and sent between processes and
machines.
"""

from __future__ import annotations

import errno
import math
import os
import pickle
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import TOGETHER
from virtualds.arrays.parser import Parser, ReadTogether, SameStructureFiles
from virtualds.codecs.cf import PACKING_ATTRIBUTES
from virtualds.combine.concat_stored import Concatenator
from virtualds.combine.file_batch import (
    FileBatch,
    JoinableFiles,
    NeedsFullCombineError,
    as_batch,
    collect_files,
    find_plan,
    open_stored,
)
from virtualds.combine.file_cache import FileCache
from virtualds.combine.file_coordinates import FileCoordinates, Opened, Source
from virtualds.combine.workers import (
    GROWTH,
    MAX_FILES_TOGETHER,
    PIECES_AHEAD,
    LeftOut,
    NumberedFile,
    Outcome,
    Outcomes,
    join_outcomes,
    list_unopened,
)
from virtualds.combine.xarray_combine import Combination
from virtualds.datasets.decoding import MisfitError, are_date_units
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.keywords import check_choice
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import Location, reader_of
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.registry import PARSERS
from virtualds.datasets.structure import CRS_ATTRIBUTES
from virtualds.errors import VirtualdsError, without_secrets
from virtualds.formats.referenced_files import KEEP_QUERY, check_unsigned
from virtualds.options import FILE_RETRIES, Options, get_options, set_options
from virtualds.progress import INFO, ProgressOption, is_logged, log
from virtualds.reading.fetch import chunk_cache
from virtualds.reading.threads import iterate_results
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import AccessPolicy
from virtualds.stores.requests import choose_wait, is_temporary, iterate_causes, log_failure, pause
from virtualds.stores.store import explain_write_errors
from virtualds.urls import normalise_url
from virtualds.writing.write import Destination, WriteOptions

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import distributed

Parallel: TypeAlias = "int | Executor | Literal['dask'] | distributed.Client | None"

ON_ERROR = {"raise": "raise", "skip": "raise", "collect": "raise", "keep": "keep"}
"""How unreadable variables of a file are treated, by how the build treats unreadable files.

If a variable of a file cannot be read, the build leaves out the whole file. Otherwise the gap in
the joined variable would look like missing values.
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
        """What to do about variables of a file that cannot be read."""
        return ON_ERROR[self.on_error]

    @property
    def stops(self) -> bool:
        """Whether the first file that cannot be opened ends the build."""
        return self.on_error in ("raise", "keep")


Key = TypeVar("Key")

LEAST, ENOUGH = 4096, 100_000
"""The arguments ``least`` and ``enough`` of a `BuildTarget`."""


@dataclass(frozen=True)
class BuildTarget:
    """A set that several processes are writing in parts.

    An array with at least ``least`` references gets its own table. A worker writes its references
    as soon as it has ``enough``.
    """

    destination: Destination
    least: int
    enough: int

    @classmethod
    def begin(
        cls,
        url: Any,
        storage_options: Mapping[str, Any] | None,
        *,
        replace: bool = False,
        keep_query: bool = False,
    ) -> BuildTarget:
        """Prepare a set for writing in parts, or fail before the workers start."""
        choices = {KEEP_QUERY: keep_query}
        options = WriteOptions(mode="w" if replace else "w-", choices=choices)
        destination = Destination.of(Location.of(url, storage_options), options)
        return cls(destination.begin_parts(), LEAST, ENOUGH)

    @property
    def url(self) -> str:
        """The url of the set."""
        return str(self.destination.place.root)

    def write_arrays(self, arrays: Mapping[Key, ManifestArray]) -> dict[Key, ManifestArray]:
        """Write the arrays with many references; return arrays that refer to what was written.

        Raises an error for urls with a signature or a token in their query.
        """
        many = dict[Key, ManifestArray]()
        for key, array in arrays.items():
            # arrays that were written before refer to a set
            count = sum(f.manifest.size for f in array.fragments if not f.manifest.is_in_set)
            if count >= self.least:
                many[key] = array
        if not many:
            return {}
        # check before writing, since other users may be able to read the set
        if not self.destination.options.keep_query:
            check_unsigned(many.values(), self.url)
        with explain_write_errors(self.url):
            return self.destination.parts.write(many, self.destination.place)

    def commit(self, dataset: xr.Dataset) -> None:
        """Commit the dataset of the whole set, whose parts the workers have written."""
        self.destination.create(partial(group_from_dataset, dataset))


@contextmanager
def abandon_on_error(target: BuildTarget | None) -> Iterator[None]:
    """Remove the parts of a set if the block raises an error."""
    try:
        yield
    except BaseException:
        if target is not None:
            # otherwise they are removed when snapshots expire
            with suppress(OSError, VirtualdsError):
                target.destination.parts.abandon(target.destination.place)
        raise


# ---------------------------------------------------------------------- files

PrepareStep = Callable[[Any, Opened], Opened]
"""A function of a file and its dataset or tree that returns the dataset or tree to combine."""


OPEN_ERRORS = (
    *(VirtualdsError, OSError, ValueError, TypeError, LookupError),
    *(AttributeError, RuntimeError, ArithmeticError),
)
"""Errors that a damaged file, a failing server or a user's function raises."""


TEMPORARY_ERRNOS = frozenset(
    getattr(errno, name, None)
    for name in ("EAGAIN", "EBUSY", "EINTR", "EIO", "EMFILE", "ENFILE", "EREMOTEIO", "ESTALE")
) - {None}
"""Error numbers of a cluster filesystem that is busy, or whose server restarts."""


def make_outcome(opened: FileBatch, *, is_cached: bool = False) -> Outcome[Any]:
    """Create the outcome of files that were opened."""
    found = opened if opened.decoded is None else opened.decoded
    cached, way = len(opened) if is_cached else 0, opened.group.way
    ways = dict.fromkeys(opened.numbers, way) if way is not None else {}
    return Outcome(opened.numbers, found, cached=cached, references=opened.nchunks, ways=ways)


def may_open_later(error: BaseException) -> bool:
    """Return whether opening failed for a temporary reason."""
    return is_temporary(error) or any(
        isinstance(cause, OSError) and cause.errno in TEMPORARY_ERRNOS
        for cause in iterate_causes(error)
    )


def list_steps(
    coordinates: Mapping[str, Source] | None,
    combination: Combination,
    preprocess: Callable[[Opened], Opened] | None,
) -> tuple[PrepareStep[Opened], ...]:
    """Return the steps that prepare the dataset of each file for combining."""
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


def return_unchanged(file: Any, found: Opened) -> Opened:
    """Return a dataset unchanged: a step that only causes files to be decoded in the worker."""
    return found


def _preprocess(preprocess: Callable[[Opened], Opened], file: Any, found: Opened) -> Opened:
    prepared = preprocess(found)
    if not isinstance(prepared, type(found)):
        raise TypeError(
            f"preprocess: {preprocess!r} returned a {type(prepared).__name__}, but must return a "
            f"{type(found).__name__}"
        )
    return prepared


MIN_TASK_FILES = 8
"""Minimum number of files that are written together: many small parts make many small files."""
MAX_TASK_FILES = 16
"""Maximum number of files of a task that opens them one by one: larger ones save little time."""
FIRST_FILES = 16
"""How many files are opened before the first of them is prepared."""
PICKLE_ERRORS = (TypeError, AttributeError, ValueError, LookupError, ImportError)
"""Errors that pickling may raise besides `pickle.PickleError`, depending on the library."""


@dataclass(frozen=True)
class BatchJob:
    """A job that opens files, prepares them, and joins those of the same structure.

    ``open`` returns a file as a batch, and ``steps`` prepare its dataset or tree, one after the
    other. After a temporary failure, a file is opened again up to ``retries`` times. ``cache``
    stores files as they were opened, before the first step. With ``stops``, the first failure ends
    the job.

    ``concatenator`` joins files as they are stored, ``together`` opens files of the same structure
    together, and ``target`` is the set to which references are written; each may be None. With
    ``datasets``, the datasets of files are joined as well. ``dims`` are the dimensions along which
    all files are joined, empty if coordinates decide. A worker adopts ``options``. ``process`` is
    the id of the process that created the job.
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

    @classmethod
    def of(
        cls,
        opening: OpenOptions,
        building: BuildOptions,
        steps: tuple[PrepareStep[Any], ...] = (),
        options: StorageOptions | None = None,
    ) -> BatchJob:
        """Create the job that opens files with these options, and prepares each.

        Raises `ValueError` if there is a cache and ``loadable_variables`` is a function, which the
        cache could not compare.
        """
        cache = None
        if building.cache is not None:
            cache = FileCache(normalise_url(building.cache), opening, options)
        open_file = partial(open_stored, opening=opening, storage_options=options)
        together = SameStructureOpener(opening, options)
        return cls(open_file, steps, building.retries, cache, building.stops, together=together)

    def __call__(self, items: Sequence[NumberedFile]) -> list[Outcome[Any]]:
        """Open some files, prepare them, and join those of the same structure, in any process."""
        if self._is_in_other_process and get_options() != self.options:
            set_options(**asdict(self.options))
        try:
            found, opened = self.open_together(items)
            rest = list_unopened(items, found)
            return [*found, *self._join(self._open_each(rest, opened), rest)]
        finally:
            self.finish()

    @property
    def _is_in_other_process(self) -> bool:
        return os.getpid() != self.process

    def _open_each(
        self, items: Sequence[NumberedFile], opened: Mapping[int, Outcome[Any]]
    ) -> Iterator[Outcome[Any]]:
        """Open and prepare, one by one, all files that were not opened together."""
        for item in items:
            outcome = self.prepare(item, opened.get(item[0]) or self.open_file(item))
            yield _make_portable(outcome) if self._is_in_other_process else outcome
            if self.stops and outcome.error is not None:
                break

    def open_together(
        self, items: Sequence[NumberedFile]
    ) -> tuple[list[Outcome[Any]], dict[int, Outcome[Any]]]:
        """Open those files that can be read together, or are in the cache.

        Returns the outcomes that are ready, and, by number, those of files that still have to be
        prepared.
        """
        kept = self.cache.look_up(items) if self.cache else ()
        if is_logged(INFO) and kept:
            log(INFO, f"{sum(map(len, kept)):,} files: from the cache")
        cached = [make_outcome(one, is_cached=True) for one in kept]
        batches = self._open_batches(list_unopened(items, cached))
        outcomes = [*cached, *map(make_outcome, batches)]
        if self.steps:
            outcomes = [file for outcome in outcomes for file in _list_files(outcome)]
        alone = {o.number: o for o in outcomes if len(o.numbers) == 1}
        together = [outcome for outcome in outcomes if len(outcome.numbers) > 1]
        relieved = self._move_references_to_set([outcome.found for outcome in together])
        return [replace(o, found=f) for o, f in zip(together, relieved, strict=True)], alone

    def _open_batches(self, items: Sequence[NumberedFile]) -> list[FileBatch]:
        """Return the batches of the files that can be read together."""
        found = list[FileBatch]()
        if self.together is None:
            return found
        compares_all = self.concatenator is not None and self.concatenator.compares_attributes

        begun = time.perf_counter()
        try:
            with self.together.open_by_structure(items, compares_all) as listed:
                for files in listed:
                    try:
                        found += self._make_batches(self.together.make_joinable(files, items))
                    except (*OPEN_ERRORS, NeedsFullCombineError, MisfitError):
                        continue
        except (VirtualdsError, OSError):
            # opening the files one by one shows which of them fails, and why
            pass
        if self.cache is not None:
            for batch in found:
                self.cache.add(batch)
        if is_logged(INFO) and found:
            seconds = time.perf_counter() - begun
            log(INFO, f"{sum(map(len, found)):,} files: {TOGETHER}, {seconds:.3f} s")
        return found

    def _make_batches(self, files: JoinableFiles) -> list[FileBatch]:
        """Return files of the same structure as batches.

        Raises `MisfitError` if files that do not decode are to be left out, and one of these may
        not decode.
        """
        found = list[FileBatch]()
        # what is cached must suit any way of combining the files
        if self.concatenator is not None and not self.steps and self.cache is None:
            with suppress(NeedsFullCombineError):
                found = [self.concatenator.join_files(files)]
        if not found or not (self.stops or found[0].is_whole):
            found = collect_files(files)
        if not self.stops:
            for batch in found:
                batch.check_decoding()
        return found

    def finish(self) -> None:
        """Write the opened files to the cache."""
        if self.cache is not None:
            self.cache.finish()

    @property
    def smallest(self) -> int:
        """Minimum number of files of a task that is worth giving to another worker."""
        return MIN_TASK_FILES if self.target else 1

    @property
    def largest(self) -> int:
        """Maximum number of files of a task for another worker."""
        return MAX_FILES_TOGETHER if self.target or self.together else MAX_TASK_FILES

    @property
    def first(self) -> int:
        """How many files are opened before the first is prepared: few if that may fail."""
        return FIRST_FILES if self.steps else MAX_FILES_TOGETHER

    def open_here(self, number: int, items: Sequence[NumberedFile]) -> Outcomes:
        """Open files in this thread, or in several, and prepare them in this one.

        Functions of the user may not be thread-safe.
        """
        pool = ThreadPoolExecutor(number, thread_name_prefix="virtualds-open")
        start, size = 0, min(max(self.first, number), MAX_FILES_TOGETHER)
        try:
            while start < len(items):
                batch = items[start : start + size]
                start, size = start + size, min(size * GROWTH, MAX_FILES_TOGETHER)
                found, opened = self.open_together(batch)
                yield from found
                rest = list_unopened(batch, found)
                alone = [item for item in rest if item[0] not in opened]
                outcomes: Iterator[Outcome[Any]] = map(self.open_file, alone)
                if number > 1:
                    ordered = iterate_results(
                        pool, self.open_file, alone, ahead=PIECES_AHEAD * number
                    )
                    outcomes = (future.result() for _, future in ordered)
                each = (
                    self.prepare(item, opened.pop(item[0]) if item[0] in opened else next(outcomes))
                    for item in rest
                )
                yield from self.gather(each, rest)
        finally:
            # do not wait for servers if the build ends early
            pool.shutdown(wait=False, cancel_futures=True)
            self.finish()

    def open_file(self, item: NumberedFile) -> Outcome[Any]:
        """Open a file and cache it; raise `OSError` if the cache cannot be written."""
        number, file = item
        attempt = 0
        while True:
            attempt += 1
            try:
                opened = replace(self.open(file), numbers=(number,))
                # if it does not decode, it is left out
                decoded = None if self.stops else opened.to_dataset()
                break
            except OPEN_ERRORS as error:
                if attempt > self.retries or not may_open_later(error):
                    return Outcome((number,), error=error, is_fault=True)
                wait = choose_wait(attempt, error)
                log_failure(file, error, wait)
                pause(wait)
        lost = tuple(LeftOut.of(file, damage) for damage in opened.group.damaged.values())
        if self.cache is not None and not lost:
            # cached files have no record of parts that were left out
            self.cache.add(opened)
        outcome = make_outcome(opened)
        if decoded is not None and self.steps:
            outcome = replace(outcome, found=decoded, references=int(decoded.virtual.nchunks))
        return replace(outcome, damaged={number: lost}) if lost else outcome

    def prepare(self, item: NumberedFile, outcome: Outcome[Any]) -> Outcome[Any]:
        """Apply the steps to an opened file, and return the new outcome."""
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

    def gather(
        self, outcomes: Iterator[Outcome[Any]], items: Sequence[NumberedFile]
    ) -> Iterator[Outcome[Any]]:
        """Join files as they come, if their references are written to a set and so released."""
        return outcomes if self.target is None else self._join(outcomes, items)

    def join_opened(
        self, outcomes: Sequence[Outcome[Any]], items: Sequence[NumberedFile]
    ) -> list[Outcome[Any]]:
        """Join the files that were opened one by one, so that they take less memory."""
        alone = [outcome for outcome in outcomes if len(outcome.numbers) == 1]
        joined = [outcome for outcome in outcomes if len(outcome.numbers) > 1]
        files = {outcome.number: items[outcome.number][1] for outcome in alone}
        return [*joined, *self._join_batch(alone, files)]

    def _join(
        self, outcomes: Iterable[Outcome[Any]], items: Sequence[NumberedFile]
    ) -> Iterator[Outcome[Any]]:
        files = dict(items)
        for batch in self._split_batches(outcomes):
            yield from self._join_batch(batch, files)

    def _split_batches(self, outcomes: Iterable[Outcome[Any]]) -> Iterator[list[Outcome[Any]]]:
        """Yield outcomes in batches that fit in the memory of a worker."""
        batch, references = list[Outcome[Any]](), 0
        enough = self.target.enough if self.target else math.inf
        for outcome in outcomes:
            batch.append(outcome)
            references += outcome.references
            # an error is reported immediately
            is_last = self.stops and outcome.error is not None
            if is_last or references >= enough or len(batch) == MAX_FILES_TOGETHER:
                yield batch
                batch, references = [], 0
        if batch:
            yield batch

    def _join_batch(
        self, outcomes: list[Outcome[Any]], files: Mapping[int, Any]
    ) -> Iterator[Outcome[Any]]:
        """Join the files of a batch where possible, and yield the outcomes."""
        opened = {outcome.number: outcome for outcome in outcomes if outcome.found is not None}
        alone, joined = dict(opened), list[FileBatch]()
        if self.concatenator is not None:
            found = [self._to_batch(files[n], o) for n, o in opened.items()]
            stored = [file for file in found if file is not None]
            joined = [
                batch for batch in self.concatenator.join_by_structure(stored) if len(batch) > 1
            ]
        for batch in joined:
            members = [alone.pop(number) for number in batch.numbers]
            [relieved] = self._move_references_to_set([batch])
            yield join_outcomes(members, relieved)
        relieved_files = self._move_references_to_set([outcome.found for outcome in alone.values()])
        by_number = dict(zip(alone, relieved_files, strict=True))
        for outcome in outcomes:
            if outcome.found is None:
                yield outcome
            elif outcome.number in by_number:
                yield replace(outcome, found=by_number[outcome.number])

    def _to_batch(self, file: Any, outcome: Outcome[Any]) -> FileBatch | None:
        found = outcome.found
        if not isinstance(found, FileBatch):
            found = as_batch(file, found) if self.datasets else None
        return found if found is None else replace(found, numbers=outcome.numbers)

    def _move_references_to_set(self, files: Sequence[Any]) -> list[Any]:
        """Return files or datasets with their references moved to the set, if there are many.

        Variables without any of the dimensions are equal in all files, and are not written.
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
            _replace_arrays(f, mine) if mine else f for f, mine in zip(files, written, strict=True)
        ]

    def _find_growing_arrays(self, file: Any) -> dict[Hashable, ManifestArray]:
        """Return those virtual arrays of a file that will be joined with those of other files."""
        arrays = _find_arrays(file)
        joined = {dim for dims, _ in arrays.values() for dim in dims}.intersection(self.dims)
        return {n: a for n, (dims, a) in arrays.items() if not joined or joined & set(dims)}


def _make_portable(outcome: Outcome[Any]) -> Outcome[Any]:
    """Return the outcome with an error that can be pickled.

    An error that cannot be pickled would break the whole pool of processes.
    """
    error = outcome.error
    try:
        pickle.loads(pickle.dumps(error))
    except (*PICKLE_ERRORS, pickle.PickleError):
        portable = RuntimeError(f"{type(error).__name__}: {error}")
        portable.__notes__ = getattr(error, "__notes__", [])
        return replace(outcome, error=portable)
    return outcome


def _list_files(outcome: Outcome[Any]) -> list[Outcome[Any]]:
    """Return one outcome per file."""
    if len(outcome.numbers) == 1:
        return [outcome]
    files: Any = outcome.found
    return [make_outcome(f, is_cached=bool(outcome.cached)) for f in files.list_files()]


def _find_arrays(file: Any) -> dict[Hashable, tuple[tuple[Hashable, ...], ManifestArray]]:
    """Return the virtual arrays of an opened file, with their dimensions."""
    if isinstance(file, FileBatch):
        found: Any = {n: (v.dims, v.data) for n, v in file.group.variables.items()}
    else:
        found = {n: (v.dims, get_virtual_array(v)) for n, v in file.variables.items()}
    return {n: found[n] for n in found if isinstance(found[n][1], ManifestArray)}


def _replace_arrays(file: Any, arrays: Mapping[Any, ManifestArray]) -> Any:
    """Return an opened file with some of its arrays replaced."""
    if isinstance(file, FileBatch):
        variables = dict(file.group.variables)
        for name, array in arrays.items():
            variables[name] = replace(variables[name], data=array)
        return replace(file, group=replace(file.group, variables=variables))
    found = file.copy()
    for name, array in arrays.items():
        found.variables[name].data = array
    return found


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
"""Attributes that may determine how xarray decodes a variable, besides its values (CF conventions
1.12, appendix A), and some that may do so in the future. Units of dates are handled separately."""


PLAIN_SEPARATOR = "::"
"""Separates the parts of urls of files in archives, and of chained fsspec urls."""


@dataclass(frozen=True)
class SameStructureOpener:
    """Opens files of the same structure together, if their parser can."""

    opening: OpenOptions
    options: StorageOptions | None = None

    @contextmanager
    def open_by_structure(
        self, items: Sequence[tuple[int, Any]], compares_all: bool
    ) -> Iterator[Sequence[SameStructureFiles]]:
        """Yield the files of each structure, open until the end of the block.

        With ``compares_all``, files of the same structure agree in all attributes, not only in
        those that determine how xarray decodes a variable.
        """
        files = [file for _, file in items]
        if len(files) < 2 or not all(isinstance(file, str | os.PathLike) for file in files):
            yield ()
            return
        urls = [normalise_url(file) for file in files]
        first = Location.of(files[0], self.options)
        # the first file shows which parser all files need, and often how they decode
        with first.cache_scan():
            plain = not any(PLAIN_SEPARATOR in url for url in urls)
            plain = plain and self.opening.snapshot is None and not self.opening.parser_options
            read: ReadTogether | None = None
            if plain and (self.opening.parser is not None or _may_be_read_together(first.url)):
                parser, _ = reader_of(first, self.opening.parser)
                read = parser.read_together if isinstance(parser, Parser) else None
            if read is None:
                yield ()
                return
            AccessPolicy.of(self.opening.allow)
            chunk_cache().open()
            opening = self.opening

            def must_be_equal(name: str, value: Any) -> bool:
                is_column = name == "units" and opening.decode_cf and are_date_units(value)
                return not is_column and (compares_all or name in DECODING_ATTRIBUTES)

            wanted = opening.group, opening.skip, must_be_equal, opening.below
            with read(urls, self.options, *wanted) as found:
                yield [alike for alike in found if len(alike.numbers) > 1]

    def make_joinable(
        self, alike: SameStructureFiles, items: Sequence[tuple[int, Any]]
    ) -> JoinableFiles:
        """Return files of the same structure in a form that can be joined.

        Raises `NeedsFullCombineError` if they have to be decoded one by one.
        """
        numbers, files = zip(*(items[n] for n in alike.numbers), strict=True)
        found = dict[str, JoinableFiles]()
        for path, one in {"": alike, **alike.below}.items():
            if not all(isinstance(v.data, ManifestArray) for v in one.group.variables.values()):
                raise NeedsFullCombineError("some variables are read when they are needed")
            plan = find_plan(files[0], one.group, self.opening, self.options)
            found[path] = JoinableFiles(one, files, numbers, plan, self.opening, self.options)
        first = found.pop("")
        return replace(first, below=found) if self.opening.below else first


def _may_be_read_together(url: str) -> bool:
    """Return whether a file may be read together with others, judging by its name alone."""
    name, is_known = url.partition("?")[0].lower(), False
    for parser in PARSERS:
        if name.endswith(parser.suffixes):
            is_known = True
            if parser.read_together is not None:
                return True
    return not is_known
