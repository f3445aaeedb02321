"""What a store is: whoever can get ranges of bytes, and whole files, of a url."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Any, Protocol

from virtualds.manifest import SourceFile, StorageOptions

Range = tuple[int, int]
"""Offset and length, in bytes."""


class StoreError(OSError):
    """Bytes that cannot be had; ``item`` is the number of the range that failed.

    It stays inside the library: whoever asked for the bytes turns it into an error that also says
    what they were for.
    """

    def __init__(self, reason: str, item: int = 0) -> None:
        super().__init__(reason)
        self.item = item


class Store(Protocol):
    """A way to get bytes."""

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range, each of exactly the length asked for.

        Raises
        ------
        StoreError
            The file is missing, unreadable, shorter, or no longer the one that was scanned.
        """

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return the file with its fingerprint.

        Raises
        ------
        OSError
            The file does not exist or may not be read.
        """

    def open(self, url: str, options: StorageOptions | None) -> IO[bytes] | Any:
        """Return the file opened for reading, seekable."""

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
    ) -> None:
        """Create or replace a folder of files, given by their paths inside it.

        The last file is the one that readers open first. Where the store can, readers see the old
        folder or the new one; where it cannot (object stores), the last file is put in place when
        all others are. What is written of a folder that fails is removed.

        Raises
        ------
        FileExistsError
            There is something of this name, and ``replace`` is false.
        """
