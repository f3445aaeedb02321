"""The protocol of stores, which read and write ranges of bytes and whole files by url."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from virtualds.errors import without_secrets
from virtualds.options import get_options
from virtualds.source_file import SourceFile, StorageOptions

Range = tuple[int, int]
"""Offset and length, in bytes."""


class ListedFile(NamedTuple):
    """A file that the listing of a folder names.

    ``path`` is relative to the folder and has slashes. ``file`` is what `Store.describe` returns,
    without a size if the listing gives none. ``modified`` counts seconds since 1970; it is None if
    the listing gives no time.
    """

    path: str
    file: SourceFile
    modified: float | None


class RequestLimits(NamedTuple):
    """How large requests to a store are, and how many run at the same time.

    Ranges with at most ``gap`` bytes between them become one request of at most ``run`` bytes. One
    host gets at most ``at_once`` requests at the same time. If ``at_once`` is 0, the store is near,
    and the thread that needs bytes reads them itself.
    """

    gap: int
    run: int
    at_once: int


def make_far_limits() -> RequestLimits:
    """Return limits for far stores, where a request costs as much as half a MiB of bytes."""
    return RequestLimits(gap=2**19, run=2**23, at_once=get_options().max_requests)


class StoreError(OSError):
    """A store cannot deliver bytes; ``item`` is the number of the range that failed.

    ``remedy`` says what to do, where the store knows that better than its callers.
    This error stays inside the library: callers turn it into an error that names the chunk and the
    variable. If ``remedy`` is known, it is a part of the text; ``reason`` is the text without it.
    """

    def __init__(self, reason: str, item: int = 0, remedy: str = "") -> None:
        self.reason, self.item, self.remedy = without_secrets(reason), item, remedy
        super().__init__(f"{self.reason} ({remedy})" if remedy else self.reason)


class RequestError(StoreError):
    """A request failed for good: no server answered, or a server gave a wrong answer."""


class ChangedError(StoreError):
    """Another writer was faster: a file no longer has the version that was to be replaced."""


def version_of(data: bytes) -> str:
    """Return a hash of bytes as the name of a version, for stores that name no versions.

    Modification times and inodes cannot name versions: a file that is replaced twice within one
    tick of the clock may have the same ones again.
    """
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Store(Protocol):
    """Reads and writes bytes by url; many threads may use a store at the same time."""

    @property
    def reach(self) -> RequestLimits:
        """How large requests are, and how many run at once, under the settings in force."""

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range; each has exactly the requested length.

        Raises
        ------
        StoreError
            The file is missing, unreadable, shorter, or no longer the one that was scanned.
        """

    def prefetch(self, file: SourceFile, ranges: Sequence[Range]) -> None:
        """Announce ranges that the caller will read soon; this hint never fails."""

    def check_unchanged(self, file: SourceFile) -> None:
        """Check that a file is still the one that was scanned, if that takes no request.

        Raises
        ------
        StoreError
            The file has changed.
        """

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return the file with its fingerprint.

        Raises
        ------
        OSError
            The file does not exist or may not be read.
        """

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return the file with its fingerprint, and its first bytes: all if the file is short.

        Raises
        ------
        OSError
            The file does not exist or may not be read.
        """

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole small file."""

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        """Create or replace a file as a whole: readers see the old bytes or the new ones.

        Raises
        ------
        FileExistsError
            The file exists and ``replace`` is false.
        """

    def write_folder(
        self,
        url: str,
        files: Iterable[tuple[str, bytes]],
        options: StorageOptions | None,
        *,
        replace: bool,
        expected: str | None = None,
    ) -> None:
        """Create or replace a folder in one step; ``files`` are paths inside it, and bytes.

        The last file is the one that readers open first. Readers see the old folder or the new one.
        If writing fails, the store removes what it has written.

        If ``expected`` is given, the store replaces the folder only if the last file of the old
        folder has that version.

        Raises
        ------
        FileExistsError
            The name is taken, and ``replace`` is false.
        ChangedError
            The last file has another version, or is gone: another writer was faster.
        UnsupportedError
            The store cannot replace a folder in one step: only local disk can.
        """

    def demand_conditions(self, url: str, options: StorageOptions | None) -> None:
        """Refuse a store where two writers of the set at a url would not notice each other.

        A store that has to try this writes its trial files beside the set.

        Raises
        ------
        UnsupportedError
            `write_version` does not keep its promise in this store.
        """

    def read_version(self, url: str, options: StorageOptions | None) -> tuple[bytes, str]:
        """Return a whole small file, and the name of the version that has these bytes.

        The content gives a version its name, so equal contents may have equal names.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        """

    def find_version(self, url: str, options: StorageOptions | None) -> str | None:
        """Return the name of the current version of a file, None if there is no such file."""

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Replace a file if its version is ``expected``; return the new version.

        If ``expected`` is None, the store creates the file, on condition that there is none.
        Readers see the old bytes or the new ones. If many writers replace one version with this
        method, exactly one of them succeeds. After an error that is not listed here the file may
        have been written.

        Raises
        ------
        ChangedError
            The file has another version, or exists, or is gone: another writer was faster.
        UnsupportedError
            The store has no conditional writes.
        """

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        """Create a file with a unique name, and the folders above it.

        A write that fails changes nothing under that name: two writers of the same content give it
        the same name.
        """

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        """Return all files below a folder as they are now, in the order of their names.

        The list is empty if there is no such folder. A file that a writer has not finished is
        listed under its temporary name. Lock files are not listed.
        """

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        """Remove files; a file that is gone already is no error.

        In stores that have empty folders, folders that became empty are removed, too. The innermost
        folder that holds all of the files stays, and so do the folders above it.
        """
