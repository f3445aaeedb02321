"""Combining many files into one virtual dataset, or one tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import xarray as xr

from virtualds.combine.batch_job import (
    BatchJob,
    BuildOptions,
    BuildTarget,
    Parallel,
    abandon_on_error,
    keep_dataset,
    list_steps,
)
from virtualds.combine.build import Build, describe_build
from virtualds.combine.file_batch import FileBatch
from virtualds.combine.file_coordinates import Source
from virtualds.combine.ordering import Arrangement, Files, Overlap, Paths
from virtualds.combine.report import BuildReport
from virtualds.combine.workers import choose_workers, find_client
from virtualds.combine.xarray_combine import CHOICES, OF_XARRAY, Combination
from virtualds.datasets.keywords import make_strict, select_fields
from virtualds.datasets.location import name_both_options
from virtualds.datasets.open import open_dataset_or_tree
from virtualds.datasets.open_options import (
    Loadable,
    OpenOptions,
    demand_variables,
    make_optional,
)
from virtualds.formats import replaces_by
from virtualds.options import FILE_RETRIES
from virtualds.progress import ProgressOption
from virtualds.stores.access_rules import Allow
from virtualds.stores.requests import explain_interrupt

Preprocess = Callable[[xr.Dataset], xr.Dataset]


@make_strict(more=OF_XARRAY)
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
    sort: bool = True,
    overlap: Overlap = "error",
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
        coordinates of the files arrange as a grid.
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
        concatenated (along a new dimension, data variables and coordinates that differ). The others
        must be equal in all files; ``compat="override"`` takes them from the first file without
        comparing.
    attrs_file : str or path, optional
        The file that gives the attributes of the dataset.
    coordinates : mapping of str to FromName, FromAttribute or callable, optional
        Coordinates that the files do not hold, by name: from the file name, from an attribute, or
        from a function of url and dataset. A coordinate along the joined dimension becomes a
        dimension of every file without it. ``preprocess`` sees these coordinates.
    sort : bool, default True
        Whether to order the files by their coordinate, if it holds numbers or dates, instead of
        keeping the given order. Files in nested lists keep their order.
    overlap : {"error", "first", "last", "keep"}
        What to do with coordinate values that several files have: raise; take each from the first,
        or the last, of these files in the given order, and sort all by the coordinate; or keep all.
    loadable_variables, drop_variables, group, storage_options, decode_cf, parser, parser_options
        As in `open_virtual_dataset`. One of the files must have a variable for a name that is
        loaded; with ``preprocess``, or if files are left out, none need have it.
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
        A folder, or its url, that caches what opening each file gave, before ``preprocess``. An
        unchanged file costs one request. So an interrupted job resumes where it stopped, and a
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
        With ``to``: whether to write urls that contain a password, signature or token, which are
        refused otherwise.

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
        An argument has an unknown value, ``attrs_file`` is none of the files, or the files do not
        combine; the notes name the files.
    CombineError
        Files overlap, or are of several coordinate reference systems; a coordinate cannot be found,
        or ``concat_dim`` looks like a misspelt dimension of the files.
    UnsupportedError
        Many processes cannot write the format of ``to`` together, or it cannot hold the dataset.
    FileExistsError
        ``to`` exists, and ``mode`` is ``"w-"`` or ``to`` is not a reference set.
    ConflictError
        Another writer replaced the set during the commit.

    Warns
    -----
    CombineWarning
        Values are repeated along a dimension that only some files have, or grids are united.

    Examples
    --------
    >>> vds = open_virtual_mfdataset(
    ...     "data/*.nc", combine="nested", concat_dim="time"
    ... )  # doctest: +SKIP
    """
    request = _Request.of(locals())
    replaces = replaces_by(mode)
    target = None
    with name_both_options(to):
        if to is not None:
            target = BuildTarget.begin(to, target_options, replace=replaces, keep_query=keep_query)
        job = replace(
            request.build.job,
            target=target,
            datasets=bool(request.build.job.steps) or target is not None,
            dims=request.build.combination.dims,
        )
        whole = replace(request.build, job=job)
        combined: xr.Dataset
        with explain_interrupt(lambda: describe_build(cache, to)), abandon_on_error(target):
            combined, found, report = whole.build_dataset()
            request.finish(combined, combined.variables, found, report)
            if target is not None:
                target.commit(combined)
        if target is not None:
            # names were judged by the variables of the files
            loading = make_optional(request.opening.loadable_variables)
            again = OpenOptions(loadable_variables=loading, decode_cf=decode_cf, allow=allow)
            combined = open_dataset_or_tree(target.url, again, target_options or storage_options)
    combined.virtual.report = report
    return combined


@make_strict()
def open_virtual_mfdatatree(
    paths: Paths,
    *,
    concat_dim: Any,
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
    sort: bool = True,
    overlap: Overlap = "error",
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
    combine : {"nested"}
        As in `open_virtual_mfdataset`; coordinates alone do not put trees in order.
    preprocess : callable, optional
        Applied to the tree of every file.
    parallel : int, Executor, "dask" or distributed.Client, optional
        As in `open_virtual_mfdataset`.
    data_vars, coords, compat, join, combine_attrs
        As in `xarray.concat`, with the defaults of `open_virtual_mfdataset`.
    attrs_file : str or path, optional
        The file that gives the attributes of all groups.
    coordinates, sort, overlap
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
        ``attrs_file`` is none of the files, or the trees do not combine; the notes name the files.

    Examples
    --------
    >>> tree = open_virtual_mfdatatree("data/*.h5", concat_dim="time")  # doctest: +SKIP
    """
    if combine != "nested":
        raise ValueError(
            f"combine={combine!r}: trees are joined along concat_dim, with combine='nested'; to "
            f"combine a group by coordinates, call open_virtual_mfdataset(group=...)"
        )
    request = _Request.of(locals(), below=True)
    combined: xr.DataTree
    with explain_interrupt(lambda: describe_build(cache, None)):
        combined, found, report = request.build.build_dataset()
    names = [name for node in combined.subtree for name in node.variables]
    request.finish(combined, names, found, report)
    combined.virtual.report = report
    return combined


@dataclass(frozen=True)
class _Request:
    """What a call asks for: how files become a dataset, and which of them gives its attributes."""

    build: Build
    opening: OpenOptions
    checks_names: bool
    attrs_file: int | None

    @classmethod
    def of(cls, given: Mapping[str, Any], *, below: bool = False) -> _Request:
        """Return what the arguments of a call ask for; ``below``: files are opened as trees."""
        building = select_fields(BuildOptions, given)
        omits = not building.stops
        how = {"on_error": building.on_variable_error, "below": below, "omits_damaged": omits}
        opening = select_fields(OpenOptions, {**given, **how})
        merging = {name: given[name] for name in CHOICES} | given.get("kwargs", {})
        arrangement = select_fields(Arrangement, given)
        combination = Combination(given["combine"], given["concat_dim"], merging, arrangement)
        preprocess = given["preprocess"]
        steps = list_steps(given["coordinates"], combination, preprocess)
        files = Files.of(given["paths"], given["storage_options"])
        if not steps and find_client(building.parallel) is not None:
            # only the workers of a cluster may be able to read the files
            steps = (keep_dataset,)
        job = BatchJob.of(opening, building, steps, files.options)
        workers = choose_workers(building.parallel, files)
        build = Build(files, job, workers, combination, building)
        named = given["attrs_file"]
        number = None if named is None else files.find_file(named, "attrs_file")
        return cls(build, opening, preprocess is None, number)

    def finish(
        self, combined: Any, names: Iterable[Hashable], found: Sequence[Any], report: BuildReport
    ) -> None:
        """Refuse names to load that no file has, and set the attributes of the result.

        If there is no such variable, or the file with the attributes is left out, that is a
        `ValueError`.
        """
        if self.checks_names and not report.left_out:
            where = "any file" if report.files > 1 else "the file"
            opening = self.opening
            demand_variables(opening.loadable_variables, names, opening.skip, where)
        if self.attrs_file is not None:
            file = self._find_dataset(self.attrs_file, found)
            is_tree = isinstance(combined, xr.DataTree)
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
            f"attrs_file {self.build.files.flat[number]}: this file is left out, since it cannot "
            f"be opened; name another"
        )
