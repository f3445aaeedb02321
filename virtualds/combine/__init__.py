"""Combining many files into one virtual dataset, or one tree."""

from __future__ import annotations

import inspect
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import xarray as xr

from virtualds.combine.batch_job import (
    BatchJob,
    BuildOptions,
    BuildTarget,
    Parallel,
    abandon_on_error,
    list_steps,
    return_unchanged,
)
from virtualds.combine.concat_stored import MIN_FILES, Concatenator
from virtualds.combine.file_batch import FileBatch, NeedsFullCombineError, as_batch
from virtualds.combine.file_coordinates import Source, add_from_pattern
from virtualds.combine.ordering import (
    Arrangement,
    Extent,
    Files,
    Overlap,
    Paths,
    crop_datasets,
    flatten_nested,
    is_incomplete_grid,
    list_groups,
    separate_layers,
)
from virtualds.combine.report import DAMAGED, BuildReport, OutcomeCounter, list_schemas
from virtualds.combine.workers import (
    MAX_FILES_TOGETHER,
    LeftOut,
    NumberedFile,
    Outcome,
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
from virtualds.datasets.keywords import check_arguments, select_fields, to_names
from virtualds.datasets.location import explain_both_options
from virtualds.datasets.open import open_dataset_or_tree
from virtualds.datasets.open_options import Loadable, OpenOptions, check_variables, make_optional
from virtualds.datasets.structure import CRSByVariable, check_one_crs, find_crs_by_variable
from virtualds.errors import CombineError, format_count, format_details, warn_user, without_secrets
from virtualds.formats import replaces_by
from virtualds.options import FILE_RETRIES
from virtualds.pictures.blocks import format_text
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
        each other, and local files are opened one after another. A number is that of processes for
        local files, including this one, and of threads if any file is remote. Any executor of
        `concurrent.futures` works; ``"dask"`` means the current dask client. Functions for other
        processes, such as ``preprocess``, must pickle.
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
        A name of the pattern, such as ``"version"``: of files whose paths differ in nothing else,
        only the one with the highest number, date or text is used (``v10`` comes after ``v9``).
    sort : bool, default True
        Whether to order the files by their coordinate, if it holds numbers or dates, instead of
        keeping the given order. Files in nested lists keep their order.
    overlap : {"error", "first", "last", "keep"}
        What to do with coordinate values that several files have: raise; take each from the first,
        or the last, of these files in the given order, and sort by the coordinate; or keep all.
    pad : str, or iterable of str, optional
        Dimensions that are not joined, whose lengths may differ between files, such as
        ``"scanline"``: the result is as long as the longest file, and the others are missing (NaN,
        NaT, an empty string) behind their end. Nothing is copied. A variable without such a value
        needs a ``fill_value``, a dict by variable. Elements are matched by position: of a
        coordinate of such a dimension, and of other variables that are not concatenated, the
        longest is taken, and those of all files must be its beginning.
    loadable_variables, drop_variables, group, storage_options, decode_cf, parser, parser_options
        As in `open_virtual_dataset`. Each name to load must match a variable of at least one file,
        except with ``preprocess``, or if files are left out.
    on_error : {"raise", "skip", "collect", "keep"}
        What to do with a file that cannot be opened, or that has an unreadable variable: raise;
        leave out the whole file, with one warning that names all such files (``"skip"``) or without
        a warning (``"collect"``). Of a damaged part of a file, such as a message of GRIB, only that
        part is left out. ``ds.virtual.report`` lists the files and parts, and the reasons.
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
            combined = open_dataset_or_tree(target.url, again, target_options or storage_options)
    combined.virtual.report = report
    return combined


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


def open_layers(paths: Paths, **how: Any) -> list[xr.Dataset]:
    """Open files of a grid as few datasets, in each of which no two files have the same cell.

    Each file is in one of them as a whole, whatever ``overlap`` says. Arguments are those of
    `open_virtual_mfdataset`; the caller chooses which file each cell is taken from.
    """
    given = inspect.signature(open_virtual_mfdataset).bind(paths, **how)
    given.apply_defaults()
    with explain_interrupt(lambda: describe_build(how.get("cache"), None)):
        return Build.of(given.arguments).build_layers()


# ---------------------------------------------------------------------- building


@dataclass(frozen=True)
class Build:
    """How files are opened and combined into one dataset or tree.

    ``job`` opens and prepares the files, and ``workers`` run it: in this process, in other
    processes, or on a cluster. ``opening`` are the options with which each file is opened, and
    ``combination`` those with which the files are combined. ``building`` is what to do about files
    that cannot be opened, and how to show progress. With ``checks_names``, every name to load must
    match a variable. ``attrs_file`` is the index of the file whose attributes the result gets.
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
    def of(cls, given: Mapping[str, Any], *, below: bool = False) -> Build:
        """Create the build for the arguments of a call; ``below`` opens files as trees."""
        building = select_fields(BuildOptions, given)
        omits = not building.stops
        how = {"on_error": building.on_variable_error, "below": below, "omits_damaged": omits}
        opening = select_fields(OpenOptions, {**given, **how})
        merging = {name: given[name] for name in CHOICES} | given.get("kwargs", {})
        arrangement = select_fields(Arrangement, given)
        pad = to_names("pad", given["pad"])
        combination = Combination(given["combine"], given["concat_dim"], merging, arrangement, pad)
        preprocess = given["preprocess"]
        paths, newest = given["paths"], given["newest"]
        files = paths if isinstance(paths, Files) else Files.of(paths, given["storage_options"])
        files = files if newest is None else files.select_newest(newest)
        named = given["coordinates"]
        coordinates = add_from_pattern(files.pattern, combination.dims, named)
        steps = list_steps(coordinates, combination, preprocess)
        if not steps and find_client(building.parallel) is not None:
            # the workers of a cluster may have access to the files when this process has not
            steps = (return_unchanged,)
        job = BatchJob.of(opening, building, steps, files.options)
        workers = choose_workers(building.parallel, files)
        first = given["attrs_file"]
        number = None if first is None else files.find_file(first, "attrs_file")
        judges = preprocess is None
        return cls(files, job, workers, combination, building, opening, judges, number)

    def build_dataset(self) -> tuple[Any, BuildReport]:
        """Open and combine the files; return the dataset or tree, and the report."""
        begun = time.monotonic()
        alike = self._find_concatenator()
        found, report = self._open(alike)
        with self._explain_names():
            built = None if alike is None else self._join(alike, found)
            if built is None:
                if any(isinstance(o.found, FileBatch) and not o.found.is_whole for o in found):
                    # some variables were loaded from the first files only
                    found, report = self._open(None)
                found, report = _list_datasets(found, report)
                built = self.combine(found)
        if is_logged(INFO):
            seconds = time.monotonic() - begun - report.seconds
            log(INFO, f"{report.files} files: combined, {seconds:.3f} s after they were opened")
        self._finish(built, found, report)
        return built, report

    def build_tree(self, template: str) -> tuple[xr.DataTree, BuildReport]:
        """Open all files at once, and combine those of each group that a template names."""
        groups = self.files.group_by(template)
        found, report = self._open(None)
        each = {outcome.number: outcome for outcome in _split(found)}
        nodes: dict[str, xr.Dataset] = {}
        for path, numbers in groups.items():
            some = [_renumber(each[n], at) for at, n in enumerate(numbers) if n in each]
            if not some:
                continue
            first = self.attrs_file
            here = replace(
                self,
                files=self.files.select(numbers),
                attrs_file=numbers.index(first) if first in numbers else None,
                checks_names=False,
            )
            with here._explain_names():
                built = here._combine_opened(some, report)
            for name, node in built.subtree_with_keys:
                below = "" if name == "." else name
                nodes["/" + f"{path}/{below}".strip("/")] = node.to_dataset(inherit=False)
        combined = xr.DataTree.from_dict(nodes)
        replace(self, attrs_file=None)._finish(combined, found, report)
        return combined, report

    def build_layers(self) -> list[xr.Dataset]:
        """Open all files, and combine those of each layer of the grid."""
        found, report = _list_datasets(*self._open(None))
        dims, names = self.combination.dims, self.files.flat
        each: dict[int, Any] = {outcome.number: outcome for outcome in found}
        extents = {n: Extent.of(names[n], outcome.found, dims) for n, outcome in each.items()}
        alone = replace(self.combination.arrangement, overlap="error")
        here = replace(self, combination=replace(self.combination, arrangement=alone))
        with self._explain_names():
            layers = [
                here.combine([each[n] for n in sorted(numbers)])
                for numbers in separate_layers(extents, dims).values()
            ]
        for layer in layers:
            here._finish(layer, found, report)
        return layers

    def _combine_opened(self, found: Sequence[Outcome[Any]], report: BuildReport) -> Any:
        """Combine files that were opened one by one."""
        alike = self._find_concatenator()
        built = None if alike is None else self._join(alike, found)
        if built is None:
            found, _ = _list_datasets(found, report)
            built = self.combine(found)
        self._finish(built, found, report)
        return built

    @contextmanager
    def _explain_names(self) -> Iterator[None]:
        """Add to errors which names of the pattern vary between files."""
        try:
            yield
        except ValueError as error:
            if note := self.files.describe_names(self.combination.dims):
                error.add_note(note)
            raise

    def _find_concatenator(self) -> Concatenator | None:
        """Return the object that concatenates files as stored, or None if that is of no use."""
        lists = any(isinstance(item, list | tuple) for item in self.files.nested)
        if lists or len(self.files.flat) < MIN_FILES:
            return None
        by_coords, how = self.combination.combine == "by_coords", self.combination.arrangement
        arranges = how.sort or how.overlap != "keep"
        try:
            # sorting changes nothing if the coordinates of the files already increase
            return Concatenator(self.combination, rises=by_coords or arranges)
        except NeedsFullCombineError:
            return None

    def _open(self, alike: Concatenator | None) -> tuple[list[Outcome[Any]], BuildReport]:
        """Open the files; the workers join those of the same structure, and write references."""
        few = len(self.files.flat) < MIN_FILES
        together = None if few else self.job.together
        job = replace(self.job, concatenator=alike, together=together)
        return replace(self, job=job).open_files()

    def _join(self, alike: Concatenator, found: Sequence[Outcome[Any]]) -> Any:
        """Concatenate files as they are stored, or return None if the result might differ."""
        names = self.files.flat
        batches: list[Any] = [outcome.found for outcome in found]
        if self.job.datasets:
            batches = [as_batch(names[o.number], o.found) for o in found]
        if all(isinstance(batch, FileBatch) for batch in batches):
            numbered = zip(batches, found, strict=True)
            with suppress(NeedsFullCombineError):
                return alike.join([replace(b, numbers=o.numbers) for b, o in numbered])
        return None

    def open_files(self) -> tuple[list[Outcome[Any]], BuildReport]:
        """Open all files; return their outcomes in the order of the files, and a report."""
        items: Sequence[NumberedFile] = list(enumerate(self.files.flat))
        found = list[Outcome[Any]]()
        failed: dict[int, Exception] = {}
        settled = 0
        with report_progress(self.building.progress, "opening", len(items)) as show:
            count = OutcomeCounter(len(items), show)
            with closing(self.workers(self.job, items)) as outcomes:
                for outcome in self._raise_first(outcomes, found):
                    count.add(outcome)
                    if outcome.error is not None:
                        failed[outcome.number] = outcome.error
                        continue
                    found.append(outcome)
                    if len(found) - settled == MAX_FILES_TOGETHER:
                        # files that were opened one by one take less memory when they are joined
                        found[settled:] = self.job.join_opened(found[settled:], items)
                        settled = len(found)
            names = self.files.flat
            left_out = (LeftOut.of(names[n], failed[n]) for n in sorted(failed))
            report = count.finish(left_out, names)
            if not found:
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
                log(INFO, format_text([list_schemas(report.schemas)]))
        if self.building.on_error == "skip":
            _warn_of_losses(report)
        return sorted(found, key=lambda outcome: outcome.number), report

    def combine(self, opened: Sequence[Outcome[Any]]) -> Any:
        """Arrange the datasets or trees of files, and combine them."""
        names, combination = self.files.flat, self.combination
        # in the order of the files, not of the workers, so that errors name files in this order
        found: Mapping[int, Any] = {outcome.number: outcome.found for outcome in opened}
        combination.check_dims(list(found.values()))
        found = combination.pad_datasets(found, names)
        dims = combination.dims
        groups: dict[str, dict[str, CRSByVariable]] = defaultdict(dict)
        for number, each in found.items():
            for path, part in list_groups(each).items():
                groups[path][without_secrets(str(names[number]))] = find_crs_by_variable(part)
        for systems in groups.values():
            check_one_crs(systems)
        extents = {n: Extent.of(names[n], found[n], dims) for n in found}
        if dims and len(found) < len(names) and not self.files.keep_positions(found):
            raise CombineError(
                f"{names[min(set(range(len(names))) - found.keys())]}: this file is left out of "
                f"nested lists, but its row is not, so that other files would take its place; "
                f"leave out the whole row, or give all files in one list, so that their "
                f"coordinates give their places in the grid"
            )
        numbers = self.files.nest({number: number for number in found})
        parts = combination.arrangement.arrange_parts(numbers, extents, dims)
        placed = [part.file for part in flatten_nested(parts)]
        files, datasets = [names[n] for n in placed], [found[n] for n in placed]
        combine = combination.combine_rows if is_incomplete_grid(numbers, parts) else combination
        joined = None if combination.concat_dim is None else dims
        nested = crop_datasets(parts, found)
        combined = combine_with_file_names(combine, joined, nested, files, datasets)
        combination.arrangement.check(Extent.of("the result", combined), extents.values())
        warn_about_differences(combination, {str(names[n]): found[n] for n in placed}, combined)
        return combined

    def _raise_first(
        self, outcomes: Iterable[Outcome[Any]], found: Sequence[Outcome[Any]]
    ) -> Iterator[Outcome[Any]]:
        """Yield outcomes; raise the fatal error of the first file that has one, in given order."""
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
            # decode the files before it: an error in one of them comes first
            batches: list[Any] = [o.found for o in found if isinstance(o.found, FileBatch)]
            before = [(n, at, b) for b in batches for at, n in enumerate(b.numbers) if n < first]
            for _, place, batch in sorted(before, key=lambda item: item[0]):
                batch.cut(place).to_dataset()
            raise error

    def _finish(self, combined: Any, found: Sequence[Outcome[Any]], report: BuildReport) -> None:
        """Raise an error for names to load that no file has, and set the attributes of the result.

        Also raises `ValueError` if the file with the attributes was left out.
        """
        is_tree = isinstance(combined, xr.DataTree)
        if self.checks_names and not report.left_out:
            parts = combined.subtree if is_tree else [combined]
            names = [name for part in parts for name in part.variables]
            where = "any file" if report.files > 1 else "the file"
            opening = self.opening
            check_variables(opening.loadable_variables, names, opening.skip, where)
        if self.attrs_file is not None:
            file = self._find_dataset(self.attrs_file, found)
            for path, part in combined.subtree_with_keys if is_tree else [("", combined)]:
                part.attrs = file[path].attrs if is_tree else file.attrs

    def _find_dataset(self, number: int, found: Sequence[Any]) -> Any:
        """Return the dataset or tree of one file."""
        for outcome in found:
            if number in outcome.numbers:
                opened = outcome.found
                if isinstance(opened, FileBatch):
                    return opened.cut(outcome.numbers.index(number)).to_dataset()
                return opened
        raise ValueError(
            f"attrs_file {self.files.flat[number]}: this file is left out, since it cannot "
            f"be opened; name another"
        )


def _split(found: Sequence[Outcome[Any]]) -> Iterator[Outcome[Any]]:
    """Yield an outcome for each file."""
    for outcome in found:
        batch = outcome.found
        files = batch.list_files() if isinstance(batch, FileBatch) else ()
        yield from [replace(outcome, numbers=f.numbers, found=f) for f in files] or [outcome]


def _renumber(outcome: Outcome[Any], number: int) -> Outcome[Any]:
    """Return the outcome of a file as that of a file with a different index."""
    batch = outcome.found
    found = replace(batch, numbers=(number,)) if isinstance(batch, FileBatch) else batch
    return replace(outcome, numbers=(number,), found=found)


def _list_datasets(
    found: Sequence[Outcome[Any]], report: BuildReport
) -> tuple[list[Outcome[Any]], BuildReport]:
    """Return an outcome with a dataset for each file, in the order of the files."""
    if not any(isinstance(outcome.found, FileBatch) for outcome in found):
        return sorted(found, key=lambda outcome: outcome.number), report
    each = [
        replace(one, found=one.found.to_dataset()) if isinstance(one.found, FileBatch) else one
        for one in _split(found)
    ]
    # decoding may have loaded variables, which then have no references
    datasets: list[Any] = [outcome.found for outcome in each]
    counts = (dataset.virtual.nchunks for dataset in datasets)
    ordered = sorted(each, key=lambda outcome: outcome.number)
    return ordered, replace(report, references=sum(counts))


def _warn_of_losses(report: BuildReport) -> None:
    """Warn about what was left out: files, and parts of files."""
    of_all = f"{len(report.left_out)} of {report.files} files could not be opened, and are left out"
    parts = f"{format_count(len(report.damaged), DAMAGED)} left out of files that were opened"
    for said, lost in ((of_all, report.left_out), (parts, report.damaged)):
        if lost:
            warn_user(format_details(f"{said}:", map(str, lost)))


def describe_build(cache: object, target: object) -> str:
    """Return a note on what an interrupted build leaves behind, and how to resume it."""
    left = "no set was written" if target is None else f"{target} is as it was"
    if cache is None:
        return (
            f"interrupted: {left}; run it again. With cache= a folder, the next run does not open "
            f"again what this one has opened"
        )
    return f"interrupted: {left}; run it again to go on with the files that are not in the cache"
