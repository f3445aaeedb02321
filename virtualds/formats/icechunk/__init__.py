"""Read and write Icechunk repositories: plain Zarr v3 with references and native chunks.

Only the library of Icechunk reads and writes the format. ``docs/reference/formats/icechunk.md``
describes what this package passes to the library, and how references come back.
"""

from __future__ import annotations

from virtualds.errors import UnsupportedError
from virtualds.formats import Expiry, Removal
from virtualds.source_file import StorageOptions

MAGIC = "ICE🧊CHUNK".encode()
"""The first bytes of Icechunk files (Icechunk specification, "File layout")."""


def detect(marker: bytes) -> bool:
    """Return whether the marker of a folder belongs to a repository."""
    return marker.startswith(MAGIC) or (marker.startswith(b"{") and b'"snapshot"' in marker)


def expire(url: str, options: StorageOptions | None, expiry: Expiry) -> Removal:
    """Raise an error, since other branches and tags may need the files that would be removed."""
    raise UnsupportedError(
        f"{url}: only Icechunk can expire its snapshots, since it knows its branches and tags; "
        f"use Repository.expire_snapshots and Repository.garbage_collect"
    )
