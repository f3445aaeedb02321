"""Keep writers of one repository apart, so that no commit is lost.

Icechunk commits by a conditional write. Local disk has none, so a lock keeps our own writers apart.
A server of an object store may ignore conditions, so it must first prove that it keeps them.
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
    """Exclude unnoticed commits of other writers during the block.

    The place of an object of Icechunk is unknown; its owner is responsible.

    Raises
    ------
    UnsupportedError
        The server ignores conditional writes, or the filesystem has no locks.
    """
    if place is not None and place.kind == "local":
        path = os.path.realpath(place.arguments["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with hold_lock(lock_of(path)):
            yield
        return
    if place is not None and place.kind in ("s3", "gcs", "azure"):
        find_store(url).demand_conditions(url, options)
    yield
