"""Stores, which read and write bytes by url; `find_store` returns the store of a url."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from virtualds.source_file import OBJECT_SCHEME, SourceFile, scheme_of
from virtualds.stores.archive import ArchiveMember, ArchiveStore, read_tar_index, read_zip_index
from virtualds.stores.block_cache import InProcessStore
from virtualds.stores.fsspec import FsspecStore
from virtualds.stores.local import LocalStore
from virtualds.stores.store import Store

STORES: dict[str, Store] = {"file": LocalStore(), OBJECT_SCHEME: InProcessStore()}
"""Stores by scheme; fsspec serves all other schemes."""

ARCHIVES: dict[str, ArchiveStore] = {}
"""Stores of archives, by the first scheme of a chained url."""

_FSSPEC_STORE = FsspecStore()


CURRENT_SCAN: ContextVar[Any] = ContextVar("virtualds_scanned", default=None)
"""The store of the file or set that is being opened (`stores.scan_cache.ScannedStore`), or None.

It is set in the thread that opens the file, and in threads that run in a copy of its context.
"""


def find_store(url: str) -> Store:
    """Return the store that serves a url."""
    if (scanned := CURRENT_SCAN.get()) is not None and scanned.serves(url):
        return scanned  # type: ignore[no-any-return]
    return _find_archive_store(url) or STORES.get(scheme_of(url), _FSSPEC_STORE)


def _find_archive_store(url: str) -> ArchiveStore | None:
    return ARCHIVES.get(scheme_of(url)) if "::" in url else None


ARCHIVES |= {
    "zip": ArchiveStore(read_zip_index, find_store),
    "tar": ArchiveStore(read_tar_index, find_store),
}


def is_in_archive(file: SourceFile) -> bool:
    """Return whether a file is a member of an archive."""
    return _find_archive_store(file.url) is not None


def locate_outside_archives(files: Sequence[SourceFile]) -> list[tuple[SourceFile, int]]:
    """Return, for each file, the outermost archive that contains it, and its data offset there.

    A file outside archives is returned itself, with offset 0.
    """
    outermost = [(file, 0) for file in files]
    while in_archives := [
        n for n, (file, _) in enumerate(outermost) if _find_archive_store(file.url)
    ]:
        for store in ARCHIVES.values():
            numbers = [n for n in in_archives if _find_archive_store(outermost[n][0].url) is store]
            locations = store.locate_members([outermost[n][0] for n in numbers])
            for n, (file, begin) in zip(numbers, locations, strict=True):
                outermost[n] = file, outermost[n][1] + begin
    return outermost


def find_members(files: Sequence[SourceFile]) -> list[tuple[SourceFile, ArchiveMember] | None]:
    """Return the archive and the member of each file, or None for a file outside archives."""
    stores = [_find_archive_store(file.url) for file in files]
    pairs = zip(stores, files, strict=True)
    return [None if store is None else store.find_member(file) for store, file in pairs]


def read_heads(files: Sequence[SourceFile], length: int) -> list[bytes]:
    """Return the first bytes of one file, or of several members of one archive in one request."""
    if not files:
        return []
    if (store := _find_archive_store(files[0].url)) is not None:
        return store.read_heads(files, length)
    [file] = files
    return [bytes(find_store(file.url).get_ranges(file, [(0, min(length, file.size or 0))])[0])]


__all__ = [
    "CURRENT_SCAN",
    "STORES",
    "FsspecStore",
    "LocalStore",
    "find_members",
    "find_store",
    "locate_outside_archives",
    "read_heads",
]
