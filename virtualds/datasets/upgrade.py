"""Sets that earlier versions have written, brought to what this one writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from virtualds.datasets.conflicts import retry_on_conflict
from virtualds.datasets.location import Location, format_there
from virtualds.stores.errors import explain_write_errors


def upgrade(
    url: str | os.PathLike[str],
    *,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> bool:
    """Write the metadata of a reference set as this version writes them, in one commit.

    References and values stay where they are, and earlier snapshots can be opened as before. A set
    that needs nothing is left as it is. Versions of virtualds that are older than what the set
    needs refuse to open it afterwards.

    Parameters
    ----------
    url : str or path
        Of the set.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    bool
        Whether there was something to do.

    Raises
    ------
    FileNotFoundError
        There is no reference set.
    ConflictError
        Another writer was faster; nothing has changed.
    UnsupportedError
        The store knows no conditional writes.

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
