"""Open many files, and combine them into one virtual dataset or tree."""

from __future__ import annotations

import ctypes
import inspect
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import xarray as xr

from virtualds.chunks.columns import release_joined_tables
from virtualds.combine.batch_job import (
    BatchJob,
    BuildOptions,
    BuildTarget,
    Parallel,
    abandon_on_error,
    list_steps,
    return_unchanged,
    split_outcome,
)
from virtualds.combine.concat_stored import MIN_FILES, Concatenator
from virtualds.combine.file_batch import FileBatch, NeedsFullCombineError, as_batch
from virtualds.combine.file_coordinates import Source, add_from_pattern
from virtualds.combine.ordering import (
    Arrangement,
    FileExtent,
    Files,
    Overlap,
    Paths,
    crop_datasets,
    flatten_nested,
    is_incomplete_grid,
    list_groups,
    separate_layers,
)
from virtualds.combine.report import DAMAGED, BuildReport, OutcomeCounter, make_schema_section
from virtualds.combine.workers import (
    MAX_FILES_TOGETHER,
    EnumeratedFiles,
    LeftOut,
    OpenOutcome,
    Workers,
    choose_workers,
    find_client,
)
from virtualds.combine.xarray_combine import (
    CHOICES,
    PASSED_TO_XARRAY,
    Combination,
    combine_with_file_names,
    warn_about_differences,
)
from virtualds.datasets.location import explain_both_options
from virtualds.datasets.open import open_dataset_or_tree
from virtualds.datasets.open_options import Loadable, OpenOptions, check_variables, make_optional
from virtualds.datasets.structure import CRSByVariable, check_one_crs, find_crs_by_variable
from virtualds.errors import (
    CombineError,
    VirtualdsError,
    format_count,
    format_details,
    warn_user,
    without_secrets,
)
from virtualds.formats import replaces_by
from virtualds.options import FILE_RETRIES, check_arguments, select_fields, to_names
from virtualds.pictures import format_text
from virtualds.progress import INFO, ProgressOption, is_logged, log, report_progress
from virtualds.stores.access_rules import Allow
from virtualds.stores.requests import explain_interrupt

Preprocess = Callable[[xr.Dataset], xr.Dataset]


@check_arguments(more=PASSED_TO_XARRAY)
def open_virtual_mfdataset(
    paths: Paths,
    *,
    combine: Literal["by_coords", "nested"] = "by_coords",
    concat_dim: Any = None,
    preprocess: Preprocess | None = None,
    parallel: Parallel = None,
    data_vars: Any = "minimal",
    coords: Any = "minimal",
    compat: str = "equals",
    join: Any = "outer",
    combine_attrs: Any = "override",
    attrs_file: str | os.PathLike[str] | None = None,
    coordinates: Mapping[str, Source] | None = None,
    newest: str | None = None,
    sort: bool = True,
    overlap: Overlap = "error",
    pad: str | Iterable[str] | None = None,
    loadable_variables: Loadable = None,
    drop_variables: str | Iterable[str] | None = None,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    decode_cf: bool = True,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    on_error: Literal["raise", "skip", "collect", "keep"] = "raise",
    retries: int = FILE_RETRIES,
    progress: ProgressOption = None,
    cache: str | os.PathLike[str] | None = None,
    allow: Allow = None,
    snapshot: str | None = None,
    to: str | os.PathLike[str] | None = None,
    mode: str = "w-",
    target_options: Mapping[str, Any] | None = None,
    keep_query: bool = False,
    **kwargs: Any,
) -> xr.Dataset:
    """Open many source files as one dataset of virtual arrays.

    Parameters
    ----------
    paths : str, or sequence of str or paths
        A glob pattern for local or remote files, or the files themselves, without globbing. With
        ``combine="nested"``, nested lists of files; or one list for several dimensions, which the
        coordinates of the files arrange as a grid. A name in braces matches text within one part
        of a path: ``{member}``, a number ``{lead:d}``, or a date ``{time:%Y%m%d}``. If it is also
        in ``concat_dim``, it is the coordinate of files that have none of their own.
    combine : {"by_coords", "nested"}, default "by_coords"
        As in `xarray.open_mfdataset`.
    concat_dim : str, or list of str or None, optional
        With ``combine="nested"``: the dimension to concatenate along; None merges. If no file has
        the dimension, files are stacked along it, as with `xarray.open_mfdataset`.
    preprocess : callable, optional
        Applied to the dataset of every file.
    parallel : int, Executor, "dask" or distributed.Client, optional
        What opens the files. By default, threads open remote files, so that few requests wait for
        each other, and local files are opened one after another. A number is the number of
        processes for local files, including this one, or of threads if any file is remote. Any
        executor of `concurrent.futures` works; ``"dask"`` means the current dask client. Functions
        for other processes, such as ``preprocess``, must be picklable.
    data_vars, coords, compat, join, combine_attrs
        As in `xarray.open_mfdataset`. By default only variables with the joined dimension are
        concatenated (along a new dimension: data variables, and coordinates that differ). The
        others must be equal in all files; ``compat="override"`` takes them from the first file
        without comparing.
    attrs_file : str or path, optional
        The file that gives the attributes of the dataset.
    coordinates : mapping of str to FromName, FromAttribute or callable, optional
        Coordinates that the files do not hold, by name: from the file name, from an attribute, or
        from a function of url and dataset. A coordinate along the joined dimension becomes a
        dimension of every file without it. ``preprocess`` sees these coordinates.
    newest : str, optional
        A name of the pattern, such as ``"version"``. Among files whose paths only differ in it, the
        file with the highest number, date or text is used (``v10`` comes after ``v9``).
    sort : bool, default True
        Whether to order the files by their coordinate, if it holds numbers or dates, instead of
        keeping the given order. Files in nested lists keep their order.
    overlap : {"error", "first", "last", "keep"}
        What to do with coordinate values that several files have: raise; take each from the first,
        or the last, of these files in the given order, and sort by the coordinate; or keep all.
    pad : str, or iterable of str, optional
        Dimensions that are not joined, whose lengths may differ between files, such as
        ``"scanline"``: the result is as long as the longest file, and the others are missing (NaN,
        NaT, an empty string) after their end. Nothing is copied. A variable without such a value
        needs a ``fill_value``, a dict by variable. Elements are matched by position: of a
        coordinate of such a dimension, and of other variables that are not concatenated, the
        longest is taken, and those of all files must be its beginning.
    loadable_variables, drop_variables, group, storage_options, decode_cf, parser, parser_options
        As in `open_virtual_dataset`. Each name to load must match a variable of at least one file,
        except with ``preprocess``, or if files are left out.
    on_error : {"raise", "skip", "collect", "keep"}
        What to do with a file that cannot be opened, or that has an unreadable variable: raise;
        leave out the whole file, with one warning that names all such files (``"skip"``) or without
        a warning (``"collect"``). If only a part of a file is damaged, such as a GRIB message, only
        that part is left out. ``ds.virtual.report`` lists the files and parts, and the reasons.
        ``"keep"`` keeps unreadable variables, which raise when they are read, and raises for files.
        If no file is left, the error of the first file is raised. Files that do not combine always
        raise.
    retries : int, default 2
        How often to open a file again after a transient error, waiting longer each time. In
        addition, single requests are repeated (``set_options(retries=...)``).
    progress : bool or callable, optional
        Whether to show a progress bar; by default on a terminal and in notebooks, after one second.
        A function is called with a `Progress` whenever files are done, and at the end with the
        report.
    cache : str or path, optional
        A folder, or its url, that caches every opened file, before ``preprocess``. An unchanged
        file then costs one request, so that an interrupted job resumes where it stopped, and a
        daily job opens only new files.
    allow, snapshot
        As in `open_virtual_dataset`, for every file.
    to : str or path, optional
        The reference set to write, in the format zarr-v3. The workers that open files write their
        references, and this process only commits, so that no process holds all references. The
        opened set is returned. An interrupted build has committed nothing and can be repeated.
    mode : {"w-", "w"}
        With ``to``: ``"w-"`` creates the set, ``"w"`` creates or replaces it.
    target_options : dict, optional
        Access options of the set, for fsspec.
    keep_query : bool, default False
        With ``to``: whether to write urls that contain a password, signature or token, which are an
        error otherwise.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    FileNotFoundError
        No file matches, or a file is missing.
    TypeError
        There is no such argument.
    ValueError
        An argument has an unknown value, ``attrs_file`` is not one of the files, or the files do
        not combine; the notes name the files.
    CombineError
        Files overlap, or are of several coordinate reference systems; a coordinate cannot be found,
        or ``concat_dim`` looks like a misspelt dimension of the files.
    UnsupportedError
        Several processes cannot write the format of ``to`` at once, or it cannot store the dataset.
    FileExistsError
        ``to`` exists, and ``mode`` is ``"w-"`` or ``to`` is not a reference set.
    ConflictError
        Another writer replaced the set during the commit.

    Warns
    -----
    CombineWarning
        Values are repeated along a dimension that only some files have, or different grids are
        merged into one.

    Examples
    --------
    >>> vds = open_virtual_mfdataset(
    ...     "data/*.nc", combine="nested", concat_dim="time"
    ... )  # doctest: +SKIP
    """
    build = Build.of(locals())
    replaces = replaces_by(mode)
    target = None
    with explain_both_options(to):
        if to is not None:
            target = BuildTarget.begin(to, target_options, replace=replaces, keep_query=keep_query)
        joins = bool(build.job.steps) or target is not None
        job = replace(build.job, target=target, datasets=joins, dims=build.combination.dims)
        combined: xr.Dataset
        with explain_interrupt(lambda: describe_build(cache, to)), abandon_on_error(target):
            combined, report = replace(build, job=job).build_dataset()
            if target is not None:
                target.commit(combined)
        if target is not None:
            # files may be left out or preprocessed, so names to load need not match a variable
            loading = make_optional(build.opening.loadable_variables)
            again = OpenOptions(loadable_variables=loading, decode_cf=decode_cf, allow=allow)
            # the combined dataset takes as much memory as the set that is opened next
            del combined
            release_joined_tables()
            _return_freed_memory()
            combined = open_dataset_or_tree(target.url, again, target_options or storage_options)
    combined.virtual.report = report
    return combined


def _return_freed_memory() -> None:
    """Return memory that Python has freed to the system, where the C library is glibc.

    Glibc keeps the memory of the small arrays of single files, once they are joined, for other
    small arrays. Only a few large ones follow, so a million files would take a fifth more memory.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@check_arguments()
def open_virtual_mfdatatree(
    paths: Paths,
    *,
    concat_dim: Any,
    tree: str | None = None,
    combine: Literal["nested"] = "nested",
    preprocess: Callable[[xr.DataTree], xr.DataTree] | None = None,
    parallel: Parallel = None,
    data_vars: Any = "minimal",
    coords: Any = "minimal",
    compat: str = "equals",
    join: Any = "outer",
    combine_attrs: Any = "override",
    attrs_file: str | os.PathLike[str] | None = None,
    coordinates: Mapping[str, Source] | None = None,
    newest: str | None = None,
    sort: bool = True,
    overlap: Overlap = "error",
    pad: str | Iterable[str] | None = None,
    loadable_variables: Loadable = None,
    drop_variables: str | Iterable[str] | None = None,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    decode_cf: bool = True,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    on_error: Literal["raise", "skip", "collect", "keep"] = "raise",
    retries: int = FILE_RETRIES,
    progress: ProgressOption = None,
    cache: str | os.PathLike[str] | None = None,
    allow: Allow = None,
    snapshot: str | None = None,
) -> xr.DataTree:
    """Open many source files with groups as one tree of virtual arrays.

    Groups are joined one by one; every file must have the same groups. Variables without the
    dimension must be equal in all files and are kept, as with `open_virtual_mfdataset`. This needs
    xarray 2025.11 or later, whose `xarray.combine_nested` joins trees.

    Parameters
    ----------
    paths : str, or sequence of str or paths
        As in `open_virtual_mfdataset`.
    concat_dim : str, or list of str or None
        The dimension to concatenate along.
    tree : str, optional
        The path of a group, made of names of the pattern, such as ``"/{model}/{variable}"``. Files
        with the same path are joined, and their tree is put there. Files of different groups may
        differ.
    combine : {"nested"}
        As in `open_virtual_mfdataset`; coordinates alone do not order trees.
    preprocess : callable, optional
        Applied to the tree of every file.
    parallel : int, Executor, "dask" or distributed.Client, optional
        As in `open_virtual_mfdataset`.
    data_vars, coords, compat, join, combine_attrs
        As in `xarray.concat`, with the defaults of `open_virtual_mfdataset`.
    attrs_file : str or path, optional
        The file that gives the attributes of all groups; with ``tree``, of those below its path.
    coordinates, newest, sort, overlap, pad
        As in `open_virtual_mfdataset`. A function receives the root of the tree as a dataset.
        Overlaps are cut in all groups, which must have the same coordinate.
    loadable_variables, drop_variables, group, storage_options, decode_cf, parser, parser_options
        As in `open_virtual_datatree`, for every file.
    allow, snapshot
        As in `open_virtual_mfdataset`.
    on_error, retries, progress, cache
        As in `open_virtual_mfdataset`; the report is at ``tree.virtual.report``.

    Returns
    -------
    xarray.DataTree

    Raises
    ------
    FileNotFoundError
        No file matches, or a file is missing.
    ValueError
        ``attrs_file`` is not one of the files, or the trees do not combine; the notes name the
        files.

    Examples
    --------
    >>> tree = open_virtual_mfdatatree("data/*.h5", concat_dim="time")  # doctest: +SKIP
    """
    if combine != "nested":
        raise ValueError(
            f"combine={combine!r}: trees are joined along concat_dim, with combine='nested'; to "
            f"combine a group by coordinates, call open_virtual_mfdataset(group=...)"
        )
    build = Build.of(locals(), below=True)
    combined: xr.DataTree
    with explain_interrupt(lambda: describe_build(cache, None)):
        combined, report = build.build_dataset() if tree is None else build.build_tree(tree)
    combined.virtual.report = report
    return combined


def open_layers(paths: Paths, **arguments: Any) -> list[xr.Dataset]:
    """Open files as layers, which are datasets of files that do not overlap.

    Each file is completely in one layer, for any ``overlap``; the caller decides which file has
    precedence. Arguments are those of `open_virtual_mfdataset`.
    """
    with explain_interrupt(lambda: describe_build(arguments.get("cache"), None)):
        return Build.of_call(paths, **arguments).build_layers()


# ---------------------------------------------------------------------- building


@dataclass(frozen=True)
class Build:
    """A call of `open_virtual_mfdataset` or `open_virtual_mfdatatree`.

    ``job`` opens and prepares files, and ``workers`` run it in this process, in other processes, or
    on a cluster. ``opening`` are the options for opening each file, ``combination`` those for
    combining files, and ``building`` those for errors and progress. With ``checks_names``, each
    name in ``loadable_variables`` must match a variable. ``attrs_file`` is the index of the file
    from which the result takes its attributes.
    """

    files: Files
    job: BatchJob
    workers: Workers
    combination: Combination
    building: BuildOptions
    opening: OpenOptions
    checks_names: bool
    attrs_file: int | None

    @classmethod
    def of(cls, arguments: Mapping[str, Any], *, below: bool = False) -> Build:
        """Create the build from the arguments of a call; ``below`` opens files as trees."""
        building = select_fields(BuildOptions, arguments)
        omits = not building.stops
        reading = {"on_error": building.on_variable_error, "below": below, "omits_damaged": omits}
        opening = select_fields(OpenOptions, {**arguments, **reading})
        xarray_options = {name: arguments[name] for name in CHOICES} | arguments.get("kwargs", {})
        arrangement = select_fields(Arrangement, arguments)
        pad = to_names("pad", arguments["pad"])
        combination = Combination(
            arguments["combine"], arguments["concat_dim"], xarray_options, arrangement, pad
        )
        preprocess = arguments["preprocess"]
        paths, newest = arguments["paths"], arguments["newest"]
        files = paths if isinstance(paths, Files) else Files.of(paths, arguments["storage_options"])
        files = files if newest is None else files.select_newest(newest)
        explicit = arguments["coordinates"]
        coordinates = add_from_pattern(files.pattern, combination.dims, explicit)
        steps = list_steps(coordinates, combination, preprocess)
        job = BatchJob.of(opening, building, steps, files.options)
        workers = choose_workers(building.parallel, files)
        attrs_file = arguments["attrs_file"]
        attrs_number = None if attrs_file is None else files.find_file(attrs_file, "attrs_file")
        checks_names = preprocess is None
        return cls(files, job, workers, combination, building, opening, checks_names, attrs_number)

    @classmethod
    def of_call(cls, paths: Paths, **arguments: Any) -> Build:
        """Create the build of a call of `open_virtual_mfdataset` with these arguments."""
        bound = inspect.signature(open_virtual_mfdataset).bind(paths, **arguments)
        bound.apply_defaults()
        return cls.of(bound.arguments)

    def build_dataset(self) -> tuple[Any, BuildReport]:
        """Open and combine the files, and return the dataset or tree, and the report."""
        start = time.monotonic()
        concatenator = self._find_concatenator()
        outcomes, report = self._open(concatenator)
        with self._explain_names():
            built = None if concatenator is None else self._join(concatenator, outcomes)
            if built is None:
                batches = [o.opened for o in outcomes if isinstance(o.opened, FileBatch)]
                if not all(b.is_whole for b in batches) or (batches and self._is_on_cluster):
                    # open the files again, since some variables were only loaded from the first,
                    # or to decode in the workers, which may have access that this process lacks
                    outcomes, report = self._open(None)
                outcomes, report = _decode_batches(outcomes, report)
                built = self.combine(outcomes)
        if is_logged(INFO):
            seconds = time.monotonic() - start - report.seconds
            log(INFO, f"{report.files} files: combined, {seconds:.3f} s after they were opened")
        self._finish(built, outcomes, report)
        # free the memory of the files for what is done with the dataset next
        del outcomes
        _return_freed_memory()
        return built, report

    def build_tree(self, template: str) -> tuple[xr.DataTree, BuildReport]:
        """Open all files, and combine those that get the same group path from a template."""
        groups = self.files.group_by(template)
        outcomes, report = self._open(None)
        by_number = {file.number: file for outcome in outcomes for file in split_outcome(outcome)}
        nodes: dict[str, xr.Dataset] = {}
        for path, numbers in groups.items():
            group_outcomes = []
            for place, number in enumerate(numbers):
                if (outcome := by_number.get(number)) is not None:
                    opened = outcome.opened
                    if isinstance(opened, FileBatch):
                        opened = replace(opened, numbers=(place,))
                    group_outcomes.append(replace(outcome, numbers=(place,), opened=opened))
            if not group_outcomes:
                continue
            attrs_file = self.attrs_file
            group_build = replace(
                self,
                files=self.files.select(numbers),
                attrs_file=numbers.index(attrs_file) if attrs_file in numbers else None,
                checks_names=False,
            )
            with group_build._explain_names():
                built = group_build._combine_opened(group_outcomes, report)
            for name, node in built.subtree_with_keys:
                below = "" if name == "." else name
                nodes["/" + f"{path}/{below}".strip("/")] = node.to_dataset(inherit=False)
        combined = xr.DataTree.from_dict(nodes)
        replace(self, attrs_file=None)._finish(combined, outcomes, report)
        return combined, report

    def build_layers(self) -> list[xr.Dataset]:
        """Open all files, and combine the files of each layer, see `open_layers`."""
        outcomes, report = _decode_batches(*self._open(None))
        dims, names = self.combination.dims, self.files.flat
        by_number: dict[int, Any] = {outcome.number: outcome for outcome in outcomes}
        extents = {
            n: FileExtent.of(names[n], outcome.opened, dims) for n, outcome in by_number.items()
        }
        strict = replace(self.combination.arrangement, overlap="error")
        layer_build = replace(self, combination=replace(self.combination, arrangement=strict))
        with self._explain_names():
            layers = [
                layer_build.combine([by_number[n] for n in sorted(numbers)])
                for numbers in separate_layers(extents, dims).values()
            ]
        for layer in layers:
            layer_build._finish(layer, outcomes, report)
        return layers

    def _combine_opened(self, outcomes: Sequence[OpenOutcome[Any]], report: BuildReport) -> Any:
        """Return the dataset or tree of opened files."""
        concatenator = self._find_concatenator()
        built = None if concatenator is None else self._join(concatenator, outcomes)
        if built is None:
            outcomes, _ = _decode_batches(outcomes, report)
            built = self.combine(outcomes)
        self._finish(built, outcomes, report)
        return built

    @contextmanager
    def _explain_names(self) -> Iterator[None]:
        """Add a note to errors about the names of the url pattern that vary between files."""
        try:
            yield
        except ValueError as error:
            if note := self.files.describe_names(self.combination.dims):
                error.add_note(note)
            raise

    def _find_concatenator(self) -> Concatenator | None:
        """Return a concatenator of stored files, or None if the options do not allow it."""
        is_nested = any(isinstance(item, list | tuple) for item in self.files.nested)
        if is_nested or len(self.files.flat) < MIN_FILES:
            return None
        by_coords, arrangement = (
            self.combination.combine == "by_coords",
            self.combination.arrangement,
        )
        checks_order = arrangement.sort or arrangement.overlap != "keep"
        try:
            # files with a monotonic coordinate need neither sorting nor cropping
            return Concatenator(self.combination, needs_order=by_coords or checks_order)
        except NeedsFullCombineError:
            return None

    def _open(self, joiner: Concatenator | None) -> tuple[list[OpenOutcome[Any]], BuildReport]:
        """Open the files; workers join those of the same structure, and write to a target."""
        few = len(self.files.flat) < MIN_FILES
        together, steps = None if few else self.job.together, self.job.steps
        if joiner is None and not steps and self._is_on_cluster:
            steps = (return_unchanged,)
        job = replace(self.job, concatenator=joiner, together=together, steps=steps)
        return replace(self, job=job).open_files()

    @property
    def _is_on_cluster(self) -> bool:
        """Whether workers may have access to files that this process has no access to."""
        return find_client(self.building.parallel) is not None

    @property
    def _access_errors(self) -> tuple[type[Exception], ...]:
        """Errors of reading that may only mean that this process has no access to files."""
        return (VirtualdsError, OSError) if self._is_on_cluster else ()

    def _join(self, concatenator: Concatenator, outcomes: Sequence[OpenOutcome[Any]]) -> Any:
        """Concatenate stored files; return None if the result might differ from that of xarray."""
        names = self.files.flat
        batches: list[Any] = [outcome.opened for outcome in outcomes]
        if self.job.datasets:
            batches = [as_batch(names[o.number], o.opened) for o in outcomes]
        if all(isinstance(batch, FileBatch) for batch in batches):
            numbered = zip(batches, outcomes, strict=True)
            with suppress(NeedsFullCombineError, *self._access_errors):
                return concatenator.join([replace(b, numbers=o.numbers) for b, o in numbered])
        return None

    def open_files(self) -> tuple[list[OpenOutcome[Any]], BuildReport]:
        """Open all files, and return their outcomes in the order of the files, and the report."""
        items = EnumeratedFiles(self.files.flat)
        outcomes = list[OpenOutcome[Any]]()
        failed: dict[int, Exception] = {}
        settled = 0
        with report_progress(self.building.progress, "opening", len(items)) as show:
            count = OutcomeCounter(len(items), show)
            with closing(self.workers(self.job, items)) as results:
                for outcome in self._raise_first(results, outcomes):
                    count.add(outcome)
                    if outcome.error is not None:
                        failed[outcome.number] = outcome.error
                        continue
                    outcomes.append(outcome)
                    if len(outcomes) - settled == MAX_FILES_TOGETHER:
                        # save memory by joining files that were opened one by one
                        outcomes[settled:] = self.job.join_opened(outcomes[settled:], items)
                        settled = len(outcomes)
            names = self.files.flat
            left_out = (LeftOut.of(names[n], failed[n]) for n in sorted(failed))
            report = count.finish(left_out, names)
            if not outcomes:
                error = failed[min(failed)]
                error.add_note(
                    f"none of {len(failed)} files could be opened; this is the error of the first"
                )
                raise error
        if is_logged(INFO):
            log(INFO, f"{report.summary}, {report.seconds:.3f} s")
            if report.read:
                log(INFO, f"HDF5 files: {report.read}")
            if len(report.schemas) > 1:
                log(INFO, format_text([make_schema_section(report.schemas)]))
        if self.building.on_error == "skip":
            unopened = f"{len(report.left_out)} of {report.files} files could not be opened"
            damaged = format_count(len(report.damaged), DAMAGED)
            for message, losses in (
                (f"{unopened}, and are left out", report.left_out),
                (f"{damaged} left out of files that were opened", report.damaged),
            ):
                if losses:
                    warn_user(format_details(f"{message}:", map(str, losses)))
        return sorted(outcomes, key=lambda outcome: outcome.number), report

    def combine(self, opened: Sequence[OpenOutcome[Any]]) -> Any:
        """Arrange the datasets or trees of files, and combine them with xarray."""
        names, combination = self.files.flat, self.combination
        # use the order of the files, so that errors name the first one
        opened_files: Mapping[int, Any] = {outcome.number: outcome.opened for outcome in opened}
        combination.check_dims(list(opened_files.values()))
        opened_files = combination.pad_datasets(opened_files, names)
        dims = combination.dims
        groups: dict[str, dict[str, CRSByVariable]] = defaultdict(dict)
        for number, each in opened_files.items():
            for path, part in list_groups(each).items():
                groups[path][without_secrets(str(names[number]))] = find_crs_by_variable(part)
        for systems in groups.values():
            check_one_crs(systems)
        extents = {n: FileExtent.of(names[n], opened_files[n], dims) for n in opened_files}
        if (
            dims
            and len(opened_files) < len(names)
            and not self.files.are_positions_kept(opened_files)
        ):
            raise CombineError(
                f"{names[min(set(range(len(names))) - opened_files.keys())]}: this file is left "
                f"out of nested lists, but its row is not, so that other files would take its "
                f"place; leave out the whole row, or give all files in one list, so that their "
                f"coordinates give their places in the grid"
            )
        numbers = self.files.nest({number: number for number in opened_files})
        parts = combination.arrangement.arrange_parts(numbers, extents, dims)
        placed = [part.file for part in flatten_nested(parts)]
        files, datasets = [names[n] for n in placed], [opened_files[n] for n in placed]
        combine = combination.combine_rows if is_incomplete_grid(numbers, parts) else combination
        joined = None if combination.concat_dim is None else dims
        nested = crop_datasets(parts, opened_files)
        combined = combine_with_file_names(combine, joined, nested, files, datasets)
        combination.arrangement.check(FileExtent.of("the result", combined), extents.values())
        warn_about_differences(
            combination, {str(names[n]): opened_files[n] for n in placed}, combined
        )
        return combined

    def _raise_first(
        self, outcomes: Iterable[OpenOutcome[Any]], opened: Sequence[OpenOutcome[Any]]
    ) -> Iterator[OpenOutcome[Any]]:
        """Yield outcomes, then raise the fatal error of the first file in the given order."""
        done, awaited = set[int](), set[int]()
        first, error = len(self.files.flat), None
        for outcome in outcomes:
            done.update(outcome.numbers)
            awaited.difference_update(outcome.numbers)
            stops = not outcome.is_fault or self.building.stops
            if outcome.error is not None and stops and outcome.number < first:
                first, error = outcome.number, outcome.error
                awaited = set(range(first)) - done
            if error is None:
                yield outcome
            elif not awaited:
                break
        if error is not None:
            # decode the files before it, since a decoding error of one of them takes precedence
            batches: list[Any] = [o.opened for o in opened if isinstance(o.opened, FileBatch)]
            before = [(n, at, b) for b in batches for at, n in enumerate(b.numbers) if n < first]
            for _, place, batch in sorted(before, key=lambda item: item[0]):
                with suppress(*self._access_errors):
                    batch.cut(place).to_dataset()
            raise error

    def _finish(
        self, combined: Any, outcomes: Sequence[OpenOutcome[Any]], report: BuildReport
    ) -> None:
        """Check that all names to load exist, and set the attributes of the result.

        Raises `ValueError` if the file with the attributes was left out.
        """
        is_tree = isinstance(combined, xr.DataTree)
        if self.checks_names and not report.left_out:
            parts = combined.subtree if is_tree else [combined]
            names = [name for part in parts for name in part.variables]
            where = "any file" if report.files > 1 else "the file"
            opening = self.opening
            check_variables(opening.loadable_variables, names, opening.skip, where)
        if self.attrs_file is not None:
            attributes = self._find_attributes(self.attrs_file, outcomes)
            for path, part in combined.subtree_with_keys if is_tree else [("", combined)]:
                part.attrs = dict(attributes["" if path == "." else path])

    def _find_attributes(self, number: int, outcomes: Sequence[Any]) -> dict[str, Any]:
        """Return the attributes of the dataset, or of each group by its path, of one file."""
        for outcome in outcomes:
            if number in outcome.numbers:
                opened = outcome.opened
                if isinstance(opened, FileBatch):
                    file = opened.cut(outcome.numbers.index(number))
                    if file.decoded is None:
                        return {p: b.plan.select_attributes(b.group) for p, b in file.walk()}
                    opened = file.decoded
                return {path.strip("/"): group.attrs for path, group in list_groups(opened).items()}
        raise ValueError(
            f"attrs_file {self.files.flat[number]}: this file is left out, since it cannot "
            f"be opened; name another"
        )


def _decode_batches(
    outcomes: Sequence[OpenOutcome[Any]], report: BuildReport
) -> tuple[list[OpenOutcome[Any]], BuildReport]:
    """Decode batches; return an outcome per file with its dataset, in order, and the report."""
    if not any(isinstance(outcome.opened, FileBatch) for outcome in outcomes):
        return sorted(outcomes, key=lambda outcome: outcome.number), report
    each = [
        replace(o, opened=o.opened.to_dataset()) if isinstance(o.opened, FileBatch) else o
        for outcome in outcomes
        for o in split_outcome(outcome)
    ]
    # variables that were loaded while decoding have no references
    datasets: list[Any] = [outcome.opened for outcome in each]
    counts = (dataset.virtual.nchunks for dataset in datasets)
    ordered = sorted(each, key=lambda outcome: outcome.number)
    return ordered, replace(report, references=sum(counts))


def describe_build(cache: object, target: object) -> str:
    """Return a note about the state after an interrupted build, and how to resume it."""
    state = "no set was written" if target is None else f"{target} is as it was"
    if cache is None:
        return (
            f"interrupted: {state}; run it again. With cache= a folder, the next run does not open "
            f"again what this one has opened"
        )
    return f"interrupted: {state}; run it again to go on with the files that are not in the cache"
