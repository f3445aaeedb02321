"""Listing the snapshots of a set, and deleting old ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pandas as pd

from virtualds.datasets.conflicts import name_missing_set, retry_on_conflict
from virtualds.datasets.keywords import make_strict
from virtualds.datasets.location import Location, format_by_suffix, format_for, format_there
from virtualds.errors import UnsupportedError
from virtualds.formats import History
from virtualds.formats.upkeep import Expiry, Removal
from virtualds.source_file import StorageOptions
from virtualds.stores.store import explain_write_errors


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
    with name_missing_set(location):
        return build_snapshot_table(_history_of(location), location.target, location.options)


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
    history = _history_of(location)

    expiry = Expiry(keep, older_than, dry_run=dry_run)

    def attempt() -> Removal:
        with explain_write_errors(location.target), name_missing_set(location):
            return history.expire(location.target, location.options, expiry)

    return retry_on_conflict(attempt, conflict)


def _history_of(location: Location) -> History:
    # only existing snapshots count, whatever their names
    target = format_for(location, asked=(format_there, format_by_suffix))
    if target.history is None:
        raise UnsupportedError(
            f"{location.target}: {target.name} keeps no snapshots; zarr-v3 does (virtualds.convert)"
        )
    return target.history


def build_snapshot_table(
    history: History, url: str, options: StorageOptions | None
) -> pd.DataFrame:
    """Return a row for each snapshot of a set."""
    table = pd.DataFrame(history.listed(url, options), columns=["snapshot", "time"])
    return table.assign(time=pd.to_datetime(table["time"]).dt.tz_localize(None))
