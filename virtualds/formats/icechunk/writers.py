"""Several writers of one repository: none of them may lose what another has committed.

Icechunk commits by a conditional write. On local disk there is none, so a lock keeps our own
writers apart. A server that speaks S3 may ignore conditions, so it has to prove that it keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from virtualds.formats.icechunk.locations import ObjectLocation
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.file_lock import hold_lock
from virtualds.stores.local import lock_of


@contextmanager
def exclude_other_writers(
    place: ObjectLocation | None, url: str, options: StorageOptions | None
) -> Iterator[None]:
    """Write to a repository that nobody else commits to unnoticed.

    Of an object of Icechunk nobody knows the place: its owner has opened it.

    Raises
    ------
    UnsupportedError
        The server ignores conditional writes, or the filesystem knows no locks.
    """
    if place is not None and place.kind == "local":
        path = os.path.realpath(place.arguments["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with hold_lock(lock_of(path)):
            yield
        return
    if place is not None and place.kind == "s3":
        find_store(url).demand_conditions(url, options)
    yield
