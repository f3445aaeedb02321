"""Upkeep of sets: join their small files, move their sources, remove what writers have left."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.sources import PrefixChange, move_file, move_group
from virtualds.datasets.keywords import make_strict
from virtualds.datasets.location import Location, format_there
from virtualds.datasets.write import (
    Destination,
    WriteOptions,
    name_missing_set,
    retry_on_conflict,
)
from virtualds.errors import ReadError, UnsupportedError, without_secrets
from virtualds.formats import GRACE, Expiry, Format, Removal
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.local import list_left_over, remove_paths
from virtualds.stores.store import explain_write_errors
from virtualds.urls import local_path, normalise_url, scheme_of

Result = TypeVar("Result")
SAMPLE = 20
"""Moved files that are looked at before a set is changed."""


@make_strict()
def compact(
    url: str | os.PathLike[str],
    *,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> bool:
    """Join the small files that many appends have left in a reference set, in one commit.

    Source files are not opened. Before the commit, the joined references are compared with those of
    the set, one by one.

    Parameters
    ----------
    url : str or path
        The set. kerchunk-parquet: small records become large ones; on local disk alone, and readers
        of the old records get a `ReadError` that says to open the set again. zarr-v3: the tables of
        an array become one, but for a table that is much larger than all beside it; earlier
        snapshots keep theirs until they expire. icechunk: the library writes the manifests of the
        branch ``main`` anew. kerchunk-json is one file already.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    bool
        Whether the set was changed.

    Raises
    ------
    FileNotFoundError
        There is no reference set.
    ConflictError
        Another writer was faster; the set is unchanged.
    UnsupportedError
        The store cannot replace the files of such a set in one step.

    Examples
    --------
    >>> import virtualds
    >>> vds = virtualds.open_virtual_dataset("2001.nc")
    >>> vds.virtual.to_manifest("small.parquet", record_size=1)
    >>> compact("small.parquet")
    True
    >>> compact("small.parquet")
    False
    """
    location = Location.of_url(url, storage_options)
    form = _find_format(location)
    return _settle(location, conflict, partial(_compact, form, location))


@make_strict()
def rename_paths(
    url: str | os.PathLike[str],
    change: Mapping[str, str] | Callable[[str], str],
    *,
    sample: int | None = SAMPLE,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Give the sources of a reference set other urls, in place and in one commit.

    The archive was moved or copied: the references stay as they are, and only the urls change. A
    zarr-v3 set gets a new table of files; the other formats have a url in each reference, and write
    those that differ.

    Parameters
    ----------
    url : str or path
        The set.
    change : dict or callable
        Old prefix of urls to new prefix, or a function of a url.
    sample : int or None, default 20
        How many of the moved files to look at before the commit, spread over all of them; None is
        all, 0 none. Each must exist, and have the size and the etag that the set notes.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    storage_options : dict, optional
        Access options of the set, for fsspec.

    Returns
    -------
    int
        How many files have another url now.

    Raises
    ------
    ValueError
        No source has the old prefix.
    ReadError
        A moved file of the sample is not the one that the set refers to; the set is unchanged.
    FileNotFoundError
        There is no reference set.
    ConflictError
        Another writer was faster; the set is unchanged.
    UnsupportedError
        The store cannot replace the files of such a set in one step, or a new url holds a secret.

    Examples
    --------
    >>> import os, shutil, virtualds
    >>> virtualds.open_virtual_dataset("2001.nc").virtual.to_manifest("moved.json")
    >>> os.makedirs("elsewhere")
    >>> shutil.copy("2001.nc", "elsewhere")
    'elsewhere/2001.nc'
    >>> rename_paths("moved.json", {"2001.nc": "elsewhere/2001.nc"})
    1
    """
    location = Location.of_url(url, storage_options)
    rename = change if callable(change) else PrefixChange.of(change)
    count = 0

    def move(group: ManifestGroup) -> ManifestGroup:
        nonlocal count
        after, moved = _move_sources(group, location.url, rename)
        count = len(moved)
        most = count if sample is None else min(sample, count)
        # the first and the last among them
        for place in np.unique(np.linspace(0, count - 1, most).astype(int)).tolist():
            _check_present(moved[place], location.url)
        return after

    options = WriteOptions(mode="r+", conflict=conflict)
    Destination(location, _find_format(location), options).change(move)
    return count


@make_strict()
def clean_up(
    url: str | os.PathLike[str],
    *,
    older_than: timedelta = GRACE,
    dry_run: bool = False,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Removal:
    """Remove the temporary files that killed writers have left in a set and beside it.

    Of a zarr-v3 set, files that belong to no snapshot go, too. Snapshots stay
    (`expire_snapshots`), and so do all files that the set does not own.

    Parameters
    ----------
    url : str or path
        The set.
    older_than : timedelta, default 1 day
        Only files of at least this age go: younger ones may belong to a writer at work.
    dry_run : bool, default False
        Whether to remove nothing, and only list what would go.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    Removal
        The urls of the removed files, and their bytes.

    Raises
    ------
    FileNotFoundError
        There is no reference set.

    Examples
    --------
    >>> import virtualds
    >>> virtualds.open_virtual_dataset("2001.nc").virtual.to_manifest("tidy.json")
    >>> clean_up("tidy.json")
    Removal of 0 snapshots and 0 files of 0 bytes
    """
    location = Location.of_url(url, storage_options)
    form, found = _find_format(location), Removal([], [], 0)
    # the library of a format keeps its own files in order
    if form.expire is not None and form.library is None:
        expiry = Expiry(sys.maxsize, grace=older_than, dry_run=dry_run)
        expire = partial(form.expire, location.url, location.options, expiry)
        found = _settle(location, conflict, expire)
    if scheme_of(location.url) == "file":
        path = os.path.realpath(local_path(location.url))
        left = list_left_over(path, older_than.total_seconds())
        if not dry_run:
            remove_paths(one.path for one in left)
        urls = [normalise_url(one.path) for one in left]
        nbytes = found.nbytes + sum(one.nbytes for one in left)
        found = Removal([], sorted({*found.files, *urls}), nbytes)
    return found


def _find_format(location: Location) -> Format:
    found = format_there(location)
    if found is None:
        raise FileNotFoundError(
            f"{location.target}: there is no reference set; check the path, or write one with "
            f"ds.virtual.to_manifest"
        )
    return found


def _compact(form: Format, location: Location) -> bool:
    """Commit the references of a set once more, if fewer files can hold them."""
    if form.compact is None:
        return False
    base = form.read_version(location.url, location.options)
    choices = form.compact(base)
    if choices is not None:
        write: Any = form.write
        write(base.group, location.url, location.options, base=base, **choices)
    return choices is not None


def _move_sources(
    group: ManifestGroup, url: str, rename: Callable[[str], str]
) -> tuple[ManifestGroup, list[SourceFile]]:
    """Return the set of a url with its sources at other urls, and those that have moved.

    A prefix that is that of no file is a `ValueError`, a new url with a secret an
    `UnsupportedError`.
    """
    seen, moved = set[str](), dict[SourceFile, None]()

    def follow(file: SourceFile) -> SourceFile:
        if file.url.startswith(f"{url.rstrip('/')}/"):
            # the set holds it itself, and moves with it
            return file
        seen.add(file.url)
        found = move_file(file, rename)
        if found.url != file.url:
            moved[found] = None
        return found

    after = move_group(group, follow)
    if isinstance(rename, PrefixChange):
        rename.demand_used(seen)
    if not moved:
        raise ValueError(f"{url}: rename_paths would change the url of no source")
    for file in moved:
        if (shown := without_secrets(file.url)) != file.url:
            raise UnsupportedError(
                f"{url}: {shown} would have a password, or a signature or token in its query; give "
                f"plain urls, and storage_options to read them"
            )
    return after, list(moved)


def _check_present(file: SourceFile, url: str) -> None:
    """Refuse a file that is not the one that the set of a url refers to."""
    try:
        found = find_store(file.url).describe(file.url, file.options)
    except OSError as error:
        raise ReadError(
            f"{url}: {file.url} cannot be read ({error}), and nothing has changed; check the new "
            f"path, or pass sample=0 to look at no file"
        ) from error
    for what, known, now in (("size", file.size, found.size), ("etag", file.etag, found.etag)):
        if None not in (known, now) and known != now:
            raise ReadError(
                f"{url}: {file.url} has the {what} {now!r}, and the set refers to one with "
                f"{known!r}, and nothing has changed; check the new path, or scan the file again"
            )


# ---------------------------------------------------------------------- snapshots


@make_strict()
def snapshots(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """List the snapshots of a reference set that can be opened, the newest last.

    Parameters
    ----------
    url : str or path
        A set in the format zarr-v3; other formats keep no snapshots.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    pandas.DataFrame
        One row for each snapshot: ``snapshot``, its id for ``open_virtual_dataset(url,
        snapshot=...)``, and ``time``, when it was written (UTC).

    Raises
    ------
    UnsupportedError
        The format keeps no snapshots.

    Examples
    --------
    >>> import virtualds
    >>> virtualds.open_virtual_dataset("2001.nc").virtual.to_manifest("2001.zarr", mode="w")
    >>> snapshots("2001.zarr").columns.to_list()
    ['snapshot', 'time']
    """
    location = Location.of_url(url, storage_options)
    return _find_keeper(location).list_snapshots(location.target, location.options)


@make_strict()
def expire_snapshots(
    url: str | os.PathLike[str],
    *,
    keep: int = 1,
    older_than: timedelta | None = None,
    dry_run: bool = False,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Removal:
    """Delete earlier snapshots of a reference set, and the files that only they need.

    A reader that still has one of them open gets a `ReadError` that says so. Remains of killed
    writers are removed too, after a day.

    Parameters
    ----------
    url : str or path
        A set in the format zarr-v3; other formats keep no snapshots.
    keep : int, default 1
        How many of the newest snapshots stay.
    older_than : timedelta, optional
        Delete only snapshots of at least this age.
    dry_run : bool, default False
        Whether to delete nothing, and only list what would go.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    Removal
        The ids of the deleted snapshots, the urls of the deleted files, and their bytes.

    Raises
    ------
    UnsupportedError
        The format keeps no snapshots.
    ConflictError
        Another writer was faster; the set is unchanged.
    ValueError
        ``keep`` is less than 1.

    Examples
    --------
    >>> import virtualds
    >>> for _ in range(3):
    ...     virtualds.open_virtual_dataset("2001.nc").virtual.to_manifest("2001.zarr", mode="w")
    >>> len(expire_snapshots("2001.zarr", keep=1, dry_run=True).snapshots)
    2
    >>> len(expire_snapshots("2001.zarr", keep=1).snapshots)
    2
    """
    if keep < 1:
        raise ValueError(f"keep {keep!r}: the newest snapshot is the set; keep at least 1")
    location = Location.of(url, storage_options)
    expiry = Expiry(keep, older_than, dry_run=dry_run)
    expire = partial(_find_keeper(location).expire_snapshots, location.target, location.options)
    return _settle(location, conflict, partial(expire, expiry))


def _find_keeper(location: Location) -> Format:
    """Return the format of a set that keeps snapshots."""
    found = _find_format(location)
    if found.history is None:
        raise UnsupportedError(
            f"{location.target}: {found.name} keeps no snapshots; zarr-v3 does (virtualds.convert)"
        )
    return found


def _settle(location: Location, conflict: str, change: Callable[[], Result]) -> Result:
    """Make a change to a set, and settle conflicts with other writers."""

    def attempt() -> Result:
        with explain_write_errors(location.target), name_missing_set(location):
            return change()

    return retry_on_conflict(attempt, conflict)
