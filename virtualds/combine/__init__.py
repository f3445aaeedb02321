"""Opening many files as one virtual dataset, or one tree of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import xarray as xr

from virtualds.combine.arguments import (
    OF_XARRAY,
    demand_file_number,
    find_dataset_of_file,
    make_build,
    take_attributes,
)
from virtualds.combine.build import DatasetBuilder
from virtualds.combine.build_options import RETRIES, BuildOptions, Parallel
from virtualds.combine.dask_jobs import find_client
from virtualds.combine.file_coordinates import Source
from virtualds.combine.files import Files, Paths
from virtualds.combine.open_file import list_steps
from virtualds.combine.ordering import Arrangement, Overlap
from virtualds.combine.progress import ProgressOption
from virtualds.combine.stored_file import open_stored
from virtualds.combine.write_target import BuildTarget, abandon_on_error
from virtualds.combine.xarray_combine import Combination
from virtualds.datasets.keywords import make_strict
from virtualds.datasets.open import open_dataset_or_tree, open_virtual_dataset
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.what_to_load import Loadable
from virtualds.formats import replaces_by
from virtualds.stores.access_rules import Allow

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
    on_error: Literal["raise", "skip", "collect", "keep"] = "raise",
    retries: int = RETRIES,
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
        A glob pattern, of local files or of a store, or the files, to the letter. With
        ``combine="nested"`` nested lists of them, or, for several dimensions too, one list, which
        is made a grid by the coordinates of the files.
    combine : {"by_coords", "nested"}, default "by_coords"
        As in `xarray.open_mfdataset`.
    concat_dim : str, or list of str or None, optional
        With ``combine="nested"``: the dimension to join along; None merges. Where no file has it,
        files are stacked along it, as `xarray.open_mfdataset` does.
    preprocess : callable, optional
        Applied to the dataset of every file.
    parallel : int, Executor, "dask" or distributed.Client, optional
        Who opens the files. By default remote ones are opened in threads, so that requests
        wait for each other as little as may be, and local ones one after another. A number is
        that of processes for local files, this one among them, and of threads if any is remote.
        Any executor of `concurrent.futures` will do; ``"dask"`` is the current client of dask.
        What other processes are to call, ``preprocess`` among it, must pickle.
    data_vars, coords, compat, join, combine_attrs
        As in `xarray.open_mfdataset`. By default only variables that have the joined dimension are
        joined along it (along a new one, data variables and coordinates that differ), and the
        others must be equal in all files; ``compat="override"`` takes them from the first file
        without a look.
    attrs_file : str or path, optional
        Which of the files the attributes of the dataset are those of.
    coordinates : mapping of str to FromName, FromAttribute or callable, optional
        Coordinates that the files do not hold, by name: from the name of the file, from an
        attribute, or from a function of its url and its dataset. One that is joined along
        becomes a dimension of every file that lacks it. They are there before ``preprocess``.
    sort : bool, default True
        Whether files that are joined along a dimension go in the order of their coordinate, if
        it is of numbers or dates, rather than as they are given; files in nested lists do not.
    overlap : {"error", "first", "last", "keep"}
        What to do about values of a joined coordinate that several files have: raise; take each
        from the first, or the last, such file, of the files as they are given, and put all in the
        order of the coordinate; or keep all.
    loadable_variables, drop_variables, group, storage_options, decode_cf, parser
        As in `open_virtual_dataset`.
    on_error : {"raise", "skip", "collect", "keep"}
        What to do about a file that cannot be opened, or of which a variable cannot be read:
        raise; leave it out as a whole, with one warning that names such files, or, with
        ``"collect"``, without. ``ds.virtual.report`` says which are left out, and why. ``"keep"``
        keeps variables that cannot be read, which raise when they are read, and raises about
        files. If no file is left, the error of the first one is raised, and files that do not
        combine are always an error.
    retries : int, default 2
        How often a file is opened again that failed for a reason that may pass, waiting longer
        each time. Requests are repeated besides (``set_options(retries=...)``).
    progress : bool or callable, optional
        Whether to show a bar; by default on a terminal and in notebooks, if it takes more than a
        second. Or what is called with a `Progress` whenever files are done, and once more with
        the report at the end.
    cache : str or path, optional
        A folder, or its url, in which what opening each file gave is kept, before ``preprocess``.
        Files that have not changed since are taken from there for one look at each, so that a job
        that was interrupted goes on where it was, and one that runs every day opens what is new.
    allow, snapshot
        As in `open_virtual_dataset`, for every file.
    to : str or path, optional
        A reference set in the format zarr-v3, to be created. Whoever opens files writes their
        references into it, and here it is only committed, so that no process ever holds all of
        them. What is returned is the set, opened. A build that is interrupted has committed
        nothing, and can simply be run again.
    mode : {"w-", "w"}
        With ``to``: ``"w-"`` creates the set, ``"w"`` creates or replaces it.
    target_options : dict, optional
        Access options of the set, for fsspec.
    keep_query : bool, default False
        With ``to``: whether urls are written that have a signature or token in their query, which
        is refused otherwise.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    FileNotFoundError
        No file matches, or one is missing.
    TypeError
        There is no such argument.
    ValueError
        An argument has no such value, ``attrs_file`` is none of the files, or they do not combine;
        the notes name the files.
    CombineError
        Files overlap, a coordinate is not to be had, or ``concat_dim`` is nearly the name of a
        dimension that there is.
    UnsupportedError
        ``to`` is of a format that many processes cannot write together, or that cannot hold the
        dataset.
    FileExistsError
        There is something called ``to``, and ``mode`` is ``"w-"`` or it is no reference set.
    ConflictError
        Another writer has replaced the set in the moment in which it was committed.

    Examples
    --------
    >>> vds = open_virtual_mfdataset(
    ...     "data/*.nc", combine="nested", concat_dim="time"
    ... )  # doctest: +SKIP
    """
    building = BuildOptions(parallel, on_error, retries, progress, cache)
    on_problem = building.on_variable_error
    opening = OpenOptions(
        group, drop_variables, parser, on_problem, allow, snapshot, loadable_variables, decode_cf
    )
    merging = {
        "data_vars": data_vars,
        "coords": coords,
        "compat": compat,
        "join": join,
        "combine_attrs": combine_attrs,
    }
    combination = Combination(combine, concat_dim, merging | kwargs, Arrangement(sort, overlap))
    steps = list_steps(coordinates, combination, preprocess)
    files, client = Files.of(paths, storage_options), find_client(parallel)
    # steps take datasets, the cache keeps them; what is to be left out has to fail when it is
    # opened, and so has what only the workers of a cluster may be able to read
    taken = steps or cache or client or not building.stops
    read: Any = open_dataset_or_tree if taken or files.are_remote else open_stored
    build = make_build(files, opening, building, steps, read)
    number = demand_file_number(attrs_file, build)
    replaces = replaces_by(mode)
    target = None
    if to is not None:
        target = BuildTarget.begin(to, target_options, replace=replaces, keep_query=keep_query)
    joins_datasets = client is not None or target is not None
    whole = DatasetBuilder(build, combination, target, joins_datasets)
    with abandon_on_error(target):
        combined, found, report = whole.built()
        if number is not None:
            take_attributes(combined, find_dataset_of_file(number, build, found))
        if target is not None:
            target.commit(combined)
    if target is not None:
        combined = open_virtual_dataset(
            target.url,
            loadable_variables=loadable_variables,
            storage_options=target_options or storage_options,
            decode_cf=decode_cf,
            allow=allow,
        )
    combined.virtual.report = report
    return combined


@make_strict()
def open_virtual_mfdatatree(
    paths: Paths,
    *,
    concat_dim: Any,
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
    on_error: Literal["raise", "skip", "collect", "keep"] = "raise",
    retries: int = RETRIES,
    progress: ProgressOption = None,
    cache: str | os.PathLike[str] | None = None,
    allow: Allow = None,
    snapshot: str | None = None,
) -> xr.DataTree:
    """Open many source files with groups as one tree of virtual arrays, joined group by group.

    Every file has the same groups. What has no such dimension must be equal in all files and stays
    as it is, as with `open_virtual_mfdataset`. It takes an xarray whose `xarray.combine_nested`
    joins trees, 2025.11 or later.

    Parameters
    ----------
    paths : str, or sequence of str or paths
        As in `open_virtual_mfdataset`.
    concat_dim : str, or list of str or None
        The dimension to join along.
    preprocess : callable, optional
        Applied to the tree of every file.
    parallel : int, Executor, "dask" or distributed.Client, optional
        As in `open_virtual_mfdataset`.
    data_vars, coords, compat, join, combine_attrs
        As in `xarray.concat`, with the defaults of `open_virtual_mfdataset`.
    attrs_file : str or path, optional
        Which of the files the attributes of all groups are those of.
    coordinates, sort, overlap
        As in `open_virtual_mfdataset`. A function is given the root of the tree as a dataset, and
        what overlaps is cut in all groups, which must have the same coordinate.
    loadable_variables, drop_variables, group, storage_options, decode_cf, parser, allow, snapshot
        As in `open_virtual_datatree`, for every file.
    on_error, retries, progress, cache
        As in `open_virtual_mfdataset`; the report is at ``tree.virtual.report``.

    Returns
    -------
    xarray.DataTree

    Raises
    ------
    FileNotFoundError
        No file matches, or one is missing.
    ValueError
        ``attrs_file`` is none of the files, or the trees do not combine; the notes name the files.

    Examples
    --------
    >>> tree = open_virtual_mfdatatree("data/*.h5", concat_dim="time")  # doctest: +SKIP
    """
    building = BuildOptions(parallel, on_error, retries, progress, cache)
    on_problem = building.on_variable_error
    opening = OpenOptions(
        group, drop_variables, parser, on_problem, allow, snapshot, loadable_variables, decode_cf
    )
    merging = {
        "data_vars": data_vars,
        "coords": coords,
        "compat": compat,
        "join": join,
        "combine_attrs": combine_attrs,
    }
    combination = Combination("nested", concat_dim, merging, Arrangement(sort, overlap))
    steps = list_steps(coordinates, combination, preprocess)
    files = Files.of(paths, storage_options)
    build = make_build(files, replace(opening, below=True), building, steps)
    number = demand_file_number(attrs_file, build)
    found, report = build.opened()
    combined: xr.DataTree = build.combined(combination, found)
    if number is not None:
        take_attributes(combined, find_dataset_of_file(number, build, found))
    combined.virtual.report = report
    return combined
