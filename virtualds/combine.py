"""Opening many files as one virtual dataset, or one tree of them."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import xarray as xr

from virtualds.access import Allow
from virtualds.api import open_virtual_dataset, open_virtual_datatree
from virtualds.dataset import Loadable
from virtualds.errors import VirtualdsError
from virtualds.options import get_options
from virtualds.structure import first_difference
from virtualds.urls import local_path, normalise_url, scheme_of

Paths = str | os.PathLike[str] | Sequence[Any]
Opened = TypeVar("Opened", xr.Dataset, xr.DataTree)
Preprocess = Callable[[xr.Dataset], xr.Dataset]

THREADS = 32
"""Remote files that are opened at once; more would only wait for each other."""


def open_virtual_mfdataset(
    paths: Paths,
    *,
    combine: Literal["by_coords", "nested"] = "by_coords",
    concat_dim: Any = None,
    preprocess: Preprocess | None = None,
    parallel: Executor | None = None,
    data_vars: Any = "minimal",
    coords: Any = "minimal",
    compat: str = "equals",
    join: Any = "outer",
    combine_attrs: Any = "override",
    attrs_file: str | os.PathLike[str] | None = None,
    loadable_variables: Loadable = None,
    drop_variables: str | Iterable[str] | None = None,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    decode_cf: bool = True,
    parser: str | None = None,
    on_error: str = "raise",
    allow: Allow = None,
    snapshot: str | None = None,
    **kwargs: Any,
) -> xr.Dataset:
    """Open many source files as one dataset of virtual arrays.

    Parameters
    ----------
    paths : str, or sequence of str or paths
        A glob pattern, or the files in order; nested lists with ``combine="nested"``.
    combine : {"by_coords", "nested"}, default "by_coords"
        As in `xarray.open_mfdataset`.
    concat_dim : str, or list of str or None, optional
        With ``combine="nested"``: the dimension to join along; None merges.
    preprocess : callable, optional
        Applied to the dataset of every file.
    parallel : concurrent.futures.Executor, optional
        Where to open the files. By default remote ones are opened in threads, so that requests
        wait for each other as little as may be, and local ones one after another.
    data_vars, coords, compat, join, combine_attrs
        As in `xarray.open_mfdataset`. By default only variables that have the joined dimension are
        joined along it, and the others must be equal in all files; ``compat="override"`` takes
        them from the first file without a look.
    attrs_file : str or path, optional
        Which of the files the attributes of the dataset are those of.
    loadable_variables, drop_variables, group, storage_options, decode_cf, parser, on_error
        As in `open_virtual_dataset`.
    allow, snapshot
        As in `open_virtual_dataset`, for every file.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    FileNotFoundError
        No file matches, or one is missing.
    ValueError
        ``attrs_file`` is none of the files, or they do not combine; the notes name the files.

    Examples
    --------
    >>> vds = open_virtual_mfdataset(
    ...     "data/*.nc", combine="nested", concat_dim="time"
    ... )  # doctest: +SKIP
    """
    files = _listed(paths)
    opened = partial(
        open_virtual_dataset,
        loadable_variables=loadable_variables,
        drop_variables=drop_variables,
        group=group,
        storage_options=storage_options,
        decode_cf=decode_cf,
        parser=parser,
        on_error=on_error,
        allow=allow,
        snapshot=snapshot,
    )
    flat = _flat(files, paths)
    number = None if attrs_file is None else _place(attrs_file, flat)
    results = _opened(flat, opened, preprocess, parallel)
    options = {
        "data_vars": data_vars,
        "coords": coords,
        "compat": compat,
        "join": join,
        "combine_attrs": combine_attrs,
    }
    with _naming(flat, results, concat_dim):
        combined: xr.Dataset = _combined(
            combine, concat_dim, _shaped(files, iter(results)), options | kwargs
        )
    if number is not None:
        combined.attrs = results[number].attrs
    return combined


def open_virtual_mfdatatree(
    paths: Paths,
    *,
    concat_dim: Any,
    preprocess: Callable[[xr.DataTree], xr.DataTree] | None = None,
    parallel: Executor | None = None,
    data_vars: Any = "minimal",
    coords: Any = "minimal",
    compat: str = "equals",
    join: Any = "outer",
    combine_attrs: Any = "override",
    loadable_variables: Loadable = None,
    drop_variables: str | Iterable[str] | None = None,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    decode_cf: bool = True,
    on_error: str = "raise",
    allow: Allow = None,
) -> xr.DataTree:
    """Open many source files with groups as one tree of virtual arrays, joined group by group.

    Every file has the same groups. What has no such dimension must be equal in all files and stays
    as it is, as with `open_virtual_mfdataset`. It takes an xarray whose `xarray.combine_nested`
    joins trees, 2025.11 or later.

    Parameters
    ----------
    paths : str, or sequence of str or paths
        A glob pattern, or the files in order; nested lists for several dimensions.
    concat_dim : str, or list of str or None
        The dimension to join along.
    preprocess : callable, optional
        Applied to the tree of every file.
    parallel : concurrent.futures.Executor, optional
        As in `open_virtual_mfdataset`.
    data_vars, coords, compat, join, combine_attrs
        As in `xarray.concat`, with the defaults of `open_virtual_mfdataset`.
    loadable_variables, drop_variables, group, storage_options, decode_cf, on_error, allow
        As in `open_virtual_datatree`.

    Returns
    -------
    xarray.DataTree

    Raises
    ------
    FileNotFoundError
        No file matches, or one is missing.
    ValueError
        The trees do not combine; the notes name the files.

    Examples
    --------
    >>> tree = open_virtual_mfdatatree("data/*.h5", concat_dim="time")  # doctest: +SKIP
    """
    files = _listed(paths)
    opened = partial(
        open_virtual_datatree,
        loadable_variables=loadable_variables,
        drop_variables=drop_variables,
        group=group,
        storage_options=storage_options,
        decode_cf=decode_cf,
        on_error=on_error,
        allow=allow,
    )
    flat = _flat(files, paths)
    results = _opened(flat, opened, preprocess, parallel)
    options = {
        "data_vars": data_vars,
        "coords": coords,
        "compat": compat,
        "join": join,
        "combine_attrs": combine_attrs,
    }
    with _naming(flat, results, concat_dim):
        shaped = _shaped(files, iter(results))
        combined: xr.DataTree = _combined("nested", concat_dim, shaped, options)
    return combined


def files_of(paths: Paths) -> list[Any]:
    """Return the files of a pattern, or those given, in order.

    Raises
    ------
    FileNotFoundError
        There are none.
    """
    return _flat(_listed(paths), paths)


def _flat(files: Iterable[Any], paths: Paths) -> list[Any]:
    flat = list(_flatten(files))
    if not flat:
        raise FileNotFoundError(f"no file matches {paths!r}; check the path")
    return flat


@contextmanager
def _naming(files: Sequence[Any], opened: Sequence[Opened], concat_dim: Any) -> Iterator[None]:
    """Name the files that do not combine, and the first that differs from the first one."""
    try:
        yield
    except (ValueError, TypeError, VirtualdsError) as error:
        error.add_note(f"while combining {len(files)} files, {files[0]} to {files[-1]}")
        joined = concat_dim if isinstance(concat_dim, list | None) else [concat_dim]
        if (difference := first_difference(files, opened, joined)) is not None:
            error.add_note(difference)
        raise


def _opened(
    files: Sequence[Any],
    opened: Callable[[Any], Opened],
    preprocess: Callable[[Opened], Opened] | None,
    parallel: Executor | None,
) -> list[Opened]:
    """Open files, in order; the first error in their order is raised."""
    each = partial(_preprocessed, opened=opened, preprocess=preprocess)
    if parallel is not None:
        return list(parallel.map(each, files))
    if len(files) == 1 or not any(map(_is_remote, files)):
        return list(map(each, files))
    threads = min(len(files), get_options().max_requests, THREADS)
    with ThreadPoolExecutor(threads, thread_name_prefix="virtualds-open") as pool:
        datasets = pool.map(opened, files)
        try:
            # nobody said that the user's function may run in threads
            return list(map(preprocess, datasets) if preprocess else datasets)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _is_remote(file: Any) -> bool:
    return isinstance(file, str | os.PathLike) and scheme_of(os.fspath(file)) != "file"


def _preprocessed(
    path: Any, opened: Callable[[Any], Opened], preprocess: Callable[[Opened], Opened] | None
) -> Opened:
    found = opened(path)
    return preprocess(found) if preprocess else found


def _place(attrs_file: str | os.PathLike[str], files: Sequence[Any]) -> int:
    """Return which of the files gives the attributes."""
    urls = [normalise_url(file) for file in files]
    if (url := normalise_url(attrs_file)) not in urls:
        raise ValueError(f"attrs_file {url}: it is none of the {len(urls)} files; give one of them")
    return urls.index(url)


def _combined(combine: str, concat_dim: Any, datasets: Any, options: dict[str, Any]) -> Any:
    if combine == "nested":
        return xr.combine_nested(datasets, concat_dim=concat_dim, **options)
    if combine != "by_coords":
        raise ValueError(f"combine {combine!r}: there are 'by_coords' and 'nested'")
    if concat_dim is not None:
        raise ValueError("concat_dim is for combine='nested'; by_coords finds it by coordinates")
    return xr.combine_by_coords(datasets, **options)


def _listed(paths: Paths) -> list[Any]:
    """Return the files of a pattern, sorted, or those given."""
    if isinstance(paths, str) and scheme_of(paths) == "file" and glob.has_magic(paths):
        return sorted(glob.glob(local_path(paths), recursive=True))
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _flatten(files: Iterable[Any]) -> Iterable[Any]:
    for item in files:
        if isinstance(item, list | tuple):
            yield from _flatten(item)
        else:
            yield item


def _shaped(files: Iterable[Any], datasets: Any) -> list[Any]:
    """Return datasets nested as the files were."""
    return [
        _shaped(item, datasets) if isinstance(item, list | tuple) else next(datasets)
        for item in files
    ]
