"""Upgrading sets of earlier versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from virtualds.datasets.conflicts import retry_on_conflict
from virtualds.datasets.location import Location, format_there
from virtualds.stores.store import explain_write_errors


def upgrade(
    url: str | os.PathLike[str],
    *,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> bool:
    """Upgrade the metadata of a reference set to this version, in one commit.

    References and values are not rewritten, and earlier snapshots still open. A set that is up to
    date is not changed. After the upgrade, versions of virtualds that are too old refuse the set.

    Parameters
    ----------
    url : str or path
        Url of the set.
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
        The store has no conditional writes.

    Examples
    --------
    >>> import virtualds
    >>> virtualds.open_virtual_dataset("2001.nc").virtual.to_manifest("2001.zarr")
    >>> upgrade("2001.zarr")
    False
    """
    location = Location.of(url, storage_options)
    found = format_there(location)
    if found is None:
        raise FileNotFoundError(f"{location.url}: there is no reference set; check the path")

    def attempt() -> bool:
        with explain_write_errors(location.target):
            return found.upgrade is not None and found.upgrade(location.url, location.options)

    return retry_on_conflict(attempt, conflict)
