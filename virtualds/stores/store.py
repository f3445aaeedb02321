"""`Store`, the base class of stores, which read and write bytes by url; and their errors."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, NoReturn

from virtualds.errors import (
    AccessError,
    FormatError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
    without_secrets,
)
from virtualds.options import get_options
from virtualds.source_file import SourceFile, StorageOptions, local_path

Range = tuple[int, int]
"""Offset and length, in bytes."""


class ListedFile(NamedTuple):
    """A file in the listing of a folder.

    ``path`` is relative to the folder, with slashes. ``file`` is as returned by `Store.describe`,
    possibly without a size. ``modified`` is in seconds since 1970, or None if unknown.
    """

    path: str
    file: SourceFile
    modified: float | None


class RequestLimits(NamedTuple):
    """The maximum size of requests to a store, and the maximum number of concurrent requests.

    Ranges with at most ``max_gap`` bytes between them are joined into requests of at most
    ``max_bytes``. A host gets at most ``max_requests`` concurrent requests. If that is 0, the store
    is local, and the thread that needs bytes reads them itself.
    """

    max_gap: int
    max_bytes: int
    max_requests: int


class StoreError(OSError):
    """Raised if a store cannot read bytes; ``item`` is the index of the range that failed.

    ``remedy`` is advice that the store can give better than its callers. Callers convert this error
    to one that names chunk and variable.
    """

    def __init__(self, reason: str, item: int = 0, remedy: str = "") -> None:
        self.reason, self.item, self.remedy = without_secrets(reason), item, remedy
        super().__init__(f"{self.reason} ({remedy})" if remedy else self.reason)


class RequestError(StoreError):
    """Raised if a request fails after all retries, without a response or with a wrong one."""


class ChangedError(StoreError):
    """Raised if a file does not have the expected version, because another writer was faster."""


def hash_version(data: bytes) -> str:
    """Return a hash of bytes as the version of a file, for stores without versions.

    Modification times and inodes do not identify versions: a file that is replaced twice within a
    clock tick may get the same ones again.
    """
    return hashlib.blake2b(data, digest_size=16).hexdigest()


TEMPORARY_NAME_LENGTH = 40
"""Number of characters of a file name in its temporary name."""


def make_temporary_name(path: str) -> str:
    """Return an unused temporary path in the folder of a path."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name[:TEMPORARY_NAME_LENGTH]}.{secrets.token_hex(8)}")


class Store(ABC):
    """Reads and writes bytes by url; thread-safe.

    By default a store is read-only; ``read_only_message`` is the error message for writes, with the
    remedy.
    """

    read_only_message: ClassVar[str] = "nothing can be written there; write to another url"

    @property
    def request_limits(self) -> RequestLimits:
        """The limits of requests, with the current options.

        The default is for a remote store, where the latency of a request equals the transfer of
        half a MiB.
        """
        return RequestLimits(
            max_gap=2**19, max_bytes=2**23, max_requests=get_options().max_requests
        )

    @abstractmethod
    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of each range, of exactly the requested length.

        Raises `StoreError` for a file that is missing, unreadable, too short, or has changed since
        it was scanned.
        """

    def prefetch(self, file: SourceFile, ranges: Sequence[Range]) -> None:  # noqa: B027
        """Hint that ranges will be read soon; raises no errors."""

    def check_unchanged(self, file: SourceFile) -> None:  # noqa: B027
        """Raise `StoreError` if a file has changed since it was scanned, without a request."""

    @abstractmethod
    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return the file of a url with its fingerprint; raise `OSError` if it is not readable."""

    @abstractmethod
    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return the file, as `describe` does, and its first ``length`` bytes (or fewer)."""

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole small file."""
        file = self.describe(url, options)
        return self.get_ranges(file, [(0, file.size)])[0] if file.size else b""

    def read_with_version(self, url: str, options: StorageOptions | None) -> tuple[bytes, str]:
        """Return the bytes of a whole small file, and their version.

        The version may be a hash, so equal contents may have equal versions.
        """
        data = self.read_all(url, options)
        return data, hash_version(data)

    def find_version(self, url: str, options: StorageOptions | None) -> str | None:
        """Return the current version of a file, or None if there is no such file."""
        try:
            return self.read_with_version(url, options)[1]
        except FileNotFoundError:
            return None

    @abstractmethod
    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        """Return all current files below a folder, sorted by name; none if there is no such folder.

        An unfinished file is listed under its temporary name. Lock files are not listed.
        """

    # ------------------------------------------------------------------ writing

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        """Create or replace a file atomically: readers see the old bytes or the new ones.

        Without ``replace``, an existing file raises `FileExistsError`.
        """
        self._raise_read_only(url)

    def write_folder(
        self,
        url: str,
        files: Iterable[tuple[str, bytes | None]],
        options: StorageOptions | None,
        *,
        replace: bool,
        expected: str | None = None,
    ) -> None:
        """Create or replace a folder atomically.

        ``files`` are relative paths and bytes; None for a file that is taken from the old folder.
        The last one is the marker, which readers open first. If writing fails, the store removes
        what it has written. If ``expected`` is given, the folder is replaced only if the marker of
        the old folder has that version.

        Raises
        ------
        FileExistsError
            The url exists, and ``replace`` is false.
        ChangedError
            The marker has another version, or no longer exists: another writer was faster.
        UnsupportedError
            The store cannot replace a folder atomically: only local disk can.
        """
        self._raise_read_only(url)

    def check_conditions(self, url: str, options: StorageOptions | None) -> None:
        """Raise an error if `write_version` is not safe in this store.

        A store that has to test this writes temporary files next to the url.
        """
        self._raise_read_only(url)

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Replace a file if its version is ``expected``; return the new version.

        If ``expected`` is None, the file must not exist. Readers see the old bytes or the new ones.
        If several writers replace the same version, exactly one of them succeeds. After an error
        that is not listed here, the file may have been written.

        Raises
        ------
        ChangedError
            The file has another version, or unexpectedly exists or does not: another writer was
            faster.
        UnsupportedError
            The store has no conditional writes.
        """
        self._raise_read_only(url)

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        """Create a file with a unique name, and its parent folders.

        A failed write leaves an existing file unchanged, since two writers of equal content use the
        same name.
        """
        self._raise_read_only(url)

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        """Remove files, ignoring those that no longer exist.

        On local disk, folders that become empty are removed as well, except for the innermost
        common folder of all files and its parents.
        """
        for url in urls:
            self._raise_read_only(url)

    def _raise_read_only(self, url: str) -> NoReturn:
        raise UnsupportedError(f"{url}: {self.read_only_message}")


# ---------------------------------------------------------------------- errors


CLIENT_ERRORS = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("gcsfs.retry", "HttpError"),
    ("gcsfs.retry", "NonRetryableError"),
    ("google.auth.exceptions", "GoogleAuthError"),
)
"""Errors of client libraries that are not an OSError: module and name."""


def list_store_errors() -> tuple[type[BaseException], ...]:
    """Return the error classes that a request may raise, of the libraries that are imported."""
    loaded = ((sys.modules.get(module), name) for module, name in CLIENT_ERRORS)
    # older versions of a library may not have the class
    return OSError, *(getattr(module, name) for module, name in loaded if hasattr(module, name))


REMEDIES = {
    errno.ENOSPC: "make room on the disk, or write elsewhere",
    errno.EDQUOT: "make room in your quota, or write elsewhere",
    errno.EROFS: "write elsewhere",
    errno.ENOENT: "make its folder first",
    errno.ENOTDIR: "a part of its path is a file, not a folder; write elsewhere",
}
"""Remedies for write errors, by error number."""


@contextmanager
def explain_open_errors(url: str) -> Iterator[None]:
    """Add the url and the remedy to errors of a file that cannot be opened."""
    try:
        yield
    except PermissionError as error:
        if isinstance(error, AccessError):
            raise
        url = without_secrets(url)
        # errors of stores already name the url and the remedy
        message = str(error) if error.errno is None and url in str(error) else None
        raise AccessError(
            message or f"{url}: permission denied; ask for read access to it"
        ) from error.__cause__
    except FileNotFoundError as error:
        url, message = without_secrets(url), without_secrets(str(error))
        if error.errno is None and url in message:
            if message == str(error):
                raise
            raise FileNotFoundError(message) from None
        # an error of the operating system has no further information
        missing = "file or set" if error.errno is not None else f"file or group ({message})"
        raise FileNotFoundError(f"{url}: there is no such {missing}; check the path") from None
    except RequestError as error:
        url = without_secrets(url)
        message = str(error) if url in str(error) else f"{url}: {error}"
        # callers decide by the cause whether the error is temporary
        raise ReadError(message) from error.__cause__ or error
    except (StoreError, IsADirectoryError) as error:
        url = without_secrets(url)
        if isinstance(error, IsADirectoryError):
            raise FormatError(
                f"{url}: this folder is neither a reference set nor a Zarr store; to open files in "
                f"it, give a pattern to virtualds.open_virtual_mfdataset"
            ) from None
        if isinstance(error.__cause__, ImportError):
            raise ReadError(f"{url}: {error}") from None
        raise FormatError(
            f"{url}: cannot be opened ({error}); give a path, or a url of a scheme that fsspec "
            f"knows"
        ) from error


@contextmanager
def explain_write_errors(url: Any) -> Iterator[None]:
    """Add the url and the remedy to errors of writing a set, which may name other files."""
    try:
        yield
    except (VirtualdsError, FileExistsError):
        raise
    except PermissionError as error:
        if error.errno is None and (message := str(error)).startswith(str(url)):
            # errors of stores already name the url and the remedy
            raise AccessError(message) from error.__cause__
        reason = error.strerror or str(error)
        raise AccessError(
            f"{url}: no permission to write ({reason}); ask for write access, or write elsewhere"
        ) from error
    except StoreError as error:
        raise ReadError(f"{url}: cannot be written ({error})") from error
    except OSError as error:
        if error.errno is None:
            raise
        remedy = REMEDIES.get(error.errno, "solve that, or write elsewhere")
        if error.errno == errno.ENOENT and os.path.isdir(os.path.dirname(local_path(str(url)))):
            remedy = "another process may have removed a file of it meanwhile; try again"
        message = f"{url}: cannot be written ({error.strerror}); {remedy}"
        raise type(error)(error.errno, message) from error
