"""The protocol of stores: ranges of bytes, and whole files, by url."""

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
    """A file of a folder, as a listing tells it.

    ``path`` is relative to the folder, with ``/``; ``file`` is what `Store.describe` says of it,
    without a size where the listing tells none; ``modified`` is in seconds since 1970, None if the
    store does not tell.
    """

    path: str
    file: SourceFile
    modified: float | None


class RequestLimits(NamedTuple):
    """How a store is asked best.

    Ranges with at most ``gap`` bytes between them are got as one, of at most ``run`` bytes, which
    is one request. ``at_once`` requests are under way to one host at a time; 0 says that whoever
    needs bytes reads them itself, since they are near.
    """

    gap: int
    run: int
    at_once: int


def make_far_limits() -> RequestLimits:
    """Return the reach with which a request costs what half a MiB more in another one does."""
    return RequestLimits(gap=2**19, run=2**23, at_once=get_options().max_requests)


class StoreError(OSError):
    """Bytes that cannot be had; ``item`` is the number of the range that failed.

    It stays inside the library: the caller turns it into an error that names the chunk and the
    variable.
    """

    def __init__(self, reason: str, item: int = 0) -> None:
        super().__init__(without_secrets(reason))
        self.item = item


class RequestError(StoreError):
    """A request that failed for good: no server answered, or not as it should."""


class ChangedError(StoreError):
    """A file is no longer of the version that was to be replaced: another writer was faster."""


def version_of(data: bytes) -> str:
    """Name a version by its bytes, for stores that do not name versions themselves.

    Times and inodes would not do: both return when files are replaced within one tick of the clock.
    """
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Store(Protocol):
    """A way to get bytes; any number of threads may ask at a time."""

    @property
    def reach(self) -> RequestLimits:
        """How it is asked best, by the settings in force."""

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range, each of exactly the length asked for.

        Raises
        ------
        StoreError
            The file is missing, unreadable, shorter, or no longer the one that was scanned.
        """

    def prefetch(self, file: SourceFile, ranges: Sequence[Range]) -> None:
        """Announce ranges that will be read soon: a hint, which never fails."""

    def check_unchanged(self, file: SourceFile) -> None:
        """Look whether a file is still the one that was scanned, where that needs no request.

        Raises
        ------
        StoreError
            It is not.
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
        """Return the file with its fingerprint, and its first bytes: fewer if it is shorter.

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
        """Create or replace a folder of files in one step, given by their paths inside it.

        The last file is the one that readers open first. Readers see the old folder or the new one.
        What is written of a folder that fails is removed.

        With ``expected``, a folder is replaced if this is still the version of its last file.

        Raises
        ------
        FileExistsError
            There is something of this name, and ``replace`` is false.
        ChangedError
            The last file has another version, or is gone: another writer was faster.
        UnsupportedError
            The store puts no folders in place in one step: only local disk does.
        """

    def demand_conditions(self, url: str, options: StorageOptions | None) -> None:
        """Refuse a store in which those who write a set at a url would not notice each other.

        What has to be tried for this is tried beside the set.

        Raises
        ------
        UnsupportedError
            `write_version` does not hold there.
        """

    def read_version(self, url: str, options: StorageOptions | None) -> tuple[bytes, str]:
        """Return a whole small file, and the name of the version that these bytes are.

        A version is named after the content, so an equal content may have an equal name.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        """

    def find_version(self, url: str, options: StorageOptions | None) -> str | None:
        """Return the name of the version that is there now, None if there is no such file."""

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Replace a file if its version is ``expected``; return the new version.

        With None the file is created, if there is none. Readers see the old bytes or the new ones.
        Of many who replace one version one succeeds, as long as all of them write with this method.
        After any other error than these the file may have been written.

        Raises
        ------
        ChangedError
            The file has another version, or exists, or is gone: another writer was faster.
        UnsupportedError
            The store cannot do this.
        """

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        """Create a file with a unique name, and the folders it lies in.

        Where the store can, a write that fails leaves nothing under that name.
        """

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        """Return all files below a folder as they are now, in the order of their names.

        The list is empty if there is no such folder. Files being written are listed under the
        temporary name they have, if any; the locks of files are not.
        """

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        """Remove files; those that are gone already are fine.

        Where folders exist without files, those that became empty are removed too, below the
        innermost folder that holds all of these files. That one stays, and all above it.
        """
