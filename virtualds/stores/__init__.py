"""The stores: where bytes come from; a table of stores by url scheme."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

from virtualds.source_file import SourceFile
from virtualds.stores.archive import ArchiveStore, Entry, read_tar_index, read_zip_index
from virtualds.stores.fsspec import FsspecStore
from virtualds.stores.held import HeldStore
from virtualds.stores.local import LocalStore
from virtualds.stores.store import Store
from virtualds.urls import HELD, scheme_of

STORES: dict[str, Store] = {"file": LocalStore(), HELD: HeldStore()}
"""Stores by scheme; fsspec serves all other schemes."""

ARCHIVES: dict[str, ArchiveStore] = {}
"""Stores of files in archives, by the scheme before the url of the archive."""

_ANY_OTHER = FsspecStore()


class ScanningStore(Store, Protocol):
    """A store that holds what is fetched of some urls."""

    def answers_for(self, url: str) -> bool:
        """Say whether it answers for a url."""


SCANNED: ContextVar[ScanningStore | None] = ContextVar("virtualds_scanned", default=None)
"""The store of the file or set that is being opened: in the thread that opens it, and in those that
read for it, which work in a copy of its context. No other thread sees it."""


def find_store(url: str) -> Store:
    """Return the store that answers for a url."""
    if (scanned := SCANNED.get()) is not None and scanned.answers_for(url):
        return scanned
    return _archives_of(url) or STORES.get(scheme_of(url), _ANY_OTHER)


def _archives_of(url: str) -> ArchiveStore | None:
    return ARCHIVES.get(scheme_of(url)) if "::" in url else None


ARCHIVES |= {
    "zip": ArchiveStore(read_zip_index, find_store),
    "tar": ArchiveStore(read_tar_index, find_store),
}


def is_in_archive(file: SourceFile) -> bool:
    """Say whether a file is a member of an archive."""
    return _archives_of(file.url) is not None


def locate_outside_archives(files: Sequence[SourceFile]) -> list[tuple[SourceFile, int]]:
    """Return for each file the plain file that holds its bytes, and their offset in it.

    Raises
    ------
    StoreError
        An archive cannot be read, or has changed.
    """
    found = [(file, 0) for file in files]
    while inside := [n for n, (file, _) in enumerate(found) if _archives_of(file.url)]:
        for store in ARCHIVES.values():
            numbers = [n for n in inside if _archives_of(found[n][0].url) is store]
            places = store.locate_members([found[n][0] for n in numbers])
            for n, (file, begin) in zip(numbers, places, strict=True):
                found[n] = file, found[n][1] + begin
    return found


def find_archive_checksums(files: Sequence[SourceFile]) -> list[int]:
    """Return the checksum of each whole file from its archive, 0 where there is none.

    Raises
    ------
    StoreError
        An archive cannot be read, or has changed.
    """
    found = [0] * len(files)
    for store in ARCHIVES.values():
        numbers = [n for n, file in enumerate(files) if _archives_of(file.url) is store]
        checksums = store.find_checksums([files[n] for n in numbers])
        for n, checksum in zip(numbers, checksums, strict=True):
            found[n] = checksum
    return found


def find_archive_entries(files: Sequence[SourceFile]) -> list[Entry]:
    """Return where members of zip archives lie with their headers, if one of them is deflated.

    The list is empty if none is, or if there are other files.
    """
    store = ARCHIVES["zip"]
    if not files or any(_archives_of(file.url) is not store for file in files):
        return []
    found = store.locate_entries(files)
    return found if any(entry.is_packed for entry in found) else []


def find_archive_headers(files: Sequence[SourceFile]) -> list[tuple[SourceFile, int]]:
    """Return for each member of one archive the archive, and the offset of the member's header.

    The data follow within few bytes. The list is empty for files outside archives.
    """
    store = _archives_of(files[0].url) if files else None
    return [] if store is None else store.locate_headers(files)


def read_heads(files: Sequence[SourceFile], length: int) -> list[bytes]:
    """Return the first bytes of a file, or of members of one archive, all at once."""
    if not files:
        return []
    if (store := _archives_of(files[0].url)) is not None:
        return store.read_heads(files, length)
    [file] = files
    return [bytes(find_store(file.url).get_ranges(file, [(0, min(length, file.size or 0))])[0])]


__all__ = [
    "SCANNED",
    "STORES",
    "FsspecStore",
    "LocalStore",
    "find_archive_checksums",
    "find_archive_entries",
    "find_archive_headers",
    "find_store",
    "locate_outside_archives",
    "read_heads",
]
