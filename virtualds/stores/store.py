"""The protocol of stores, which read and write ranges of bytes and whole files by url; errors."""

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
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.urls import local_path

Range = tuple[int, int]
"""Offset and length, in bytes."""


class ListedFile(NamedTuple):
    """A file in the listing of a folder.

    ``path`` is relative to the folder and has slashes. ``file`` is as returned by `Store.describe`,
    without a size if the listing has none. ``modified`` is in seconds since 1970, or None if the
    listing has no time.
    """

    path: str
    file: SourceFile
    modified: float | None


class RequestLimits(NamedTuple):
    """The size of requests to a store, and how many may run at the same time.

    Ranges with at most ``gap`` bytes between them become one request of at most ``run`` bytes. One
    host gets at most ``at_once`` requests at the same time. If ``at_once`` is 0, the store is
    local, and the thread that needs bytes reads them itself.
    """

    gap: int
    run: int
    at_once: int


class StoreError(OSError):
    """A store cannot deliver bytes; ``item`` is the index of the range that failed.

    ``remedy`` says what to do, if the store knows this better than its callers. This error stays
    inside the library: callers convert it to an error that names the chunk and the variable. The
    text of the error consists of ``reason`` and ``remedy``.
    """

    def __init__(self, reason: str, item: int = 0, remedy: str = "") -> None:
        self.reason, self.item, self.remedy = without_secrets(reason), item, remedy
        super().__init__(f"{self.reason} ({remedy})" if remedy else self.reason)


class RequestError(StoreError):
    """A request failed after all retries: no server responded, or the response was wrong."""


class ChangedError(StoreError):
    """Another writer came first, so a file no longer has the expected version."""


def version_of(data: bytes) -> str:
    """Return a hash of bytes as the name of a version, for stores without names of versions.

    Modification times and inodes cannot identify versions: a file that is replaced twice within one
    clock tick may have the same ones again.
    """
    return hashlib.blake2b(data, digest_size=16).hexdigest()


NAME_PART = 40
"""The number of characters of the name of a file with which its temporary name begins."""


def make_temporary_name(path: str) -> str:
    """Return an unused name beside a path."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name[:NAME_PART]}.{secrets.token_hex(8)}")


class Store(ABC):
    """Reads and writes bytes by url; a store may be used by many threads at the same time.

    By default a store is read-only; ``refusal`` is the error message, with the remedy.
    """

    refusal: ClassVar[str] = "nothing can be written there; write to another url"

    @property
    def reach(self) -> RequestLimits:
        """The limits of requests under the current settings.

        By default a store is remote, and a request takes as long as transferring half a MiB.
        """
        return RequestLimits(gap=2**19, run=2**23, at_once=get_options().max_requests)

    @abstractmethod
    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range; each has exactly the requested length.

        A file that is missing, unreadable, shorter, or no longer the one that was scanned is a
        `StoreError`.
        """

    def prefetch(self, file: SourceFile, ranges: Sequence[Range]) -> None:  # noqa: B027
        """Announce ranges that the caller will read soon; this hint never fails."""

    def check_unchanged(self, file: SourceFile) -> None:  # noqa: B027
        """Raise a `StoreError` if a file has changed since its scan; sends no request."""

    @abstractmethod
    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return the file with its fingerprint; raise `OSError` if it is not readable."""

    @abstractmethod
    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return the file as `describe` does, and its first bytes, or all bytes if it is short."""

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole small file."""
        file = self.describe(url, options)
        return self.get_ranges(file, [(0, file.size)])[0] if file.size else b""

    def read_version(self, url: str, options: StorageOptions | None) -> tuple[bytes, str]:
        """Return a whole small file, and the name of the version that has these bytes.

        The name may depend on the content only, so equal contents may have equal names.
        """
        data = self.read_all(url, options)
        return data, version_of(data)

    def find_version(self, url: str, options: StorageOptions | None) -> str | None:
        """Return the name of the current version of a file, or None if there is no such file."""
        try:
            return self.read_version(url, options)[1]
        except FileNotFoundError:
            return None

    @abstractmethod
    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        """Return all files below a folder as they are now, sorted by name.

        The list is empty if there is no such folder. A file that a writer has not finished is
        listed under its temporary name. Lock files are not listed.
        """

    # ------------------------------------------------------------------ writing

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        """Create or replace a file as a whole: readers see the old bytes or the new ones.

        Without ``replace``, a file that exists raises `FileExistsError`.
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
        """Create or replace a folder in one step; ``files`` are paths inside it, and their bytes.

        None instead of bytes means the file at this path in the replaced folder.

        The last file is the one that readers open first. Readers see the old folder or the new one.
        If writing fails, the store removes what it has written.

        If ``expected`` is given, the store replaces the folder only if the last file of the old
        folder has that version.

        Raises
        ------
        FileExistsError
            The name is taken, and ``replace`` is false.
        ChangedError
            The last file has another version, or no longer exists: another writer came first.
        UnsupportedError
            The store cannot replace a folder in one step: only local disk can.
        """
        self._raise_read_only(url)

    def check_conditions(self, url: str, options: StorageOptions | None) -> None:
        """Raise an error if writers of a set would not notice each other in this store.

        Then `write_version` is not safe. A store that has to test this writes its test files beside
        the set.
        """
        self._raise_read_only(url)

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Replace a file if its version is ``expected``; return the new version.

        If ``expected`` is None, the store creates the file, provided that there is none. Readers
        see the old bytes or the new ones. If many writers replace one version with this method,
        exactly one of them succeeds. After an error that is not listed here the file may have been
        written.

        Raises
        ------
        ChangedError
            The file has another version, or exists, or no longer exists: another writer came first.
        UnsupportedError
            The store has no conditional writes.
        """
        self._raise_read_only(url)

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        """Create a file with a unique name, and its parent folders.

        A failed write changes nothing under that name: two writers of the same content use the same
        name.
        """
        self._raise_read_only(url)

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        """Remove files; a file that no longer exists is not an error.

        In stores with empty folders, folders that became empty are removed, too. The innermost
        common folder of the files stays, and so do its parents.
        """
        for url in urls:
            self._raise_read_only(url)

    def _raise_read_only(self, url: str) -> NoReturn:
        raise UnsupportedError(f"{url}: {self.refusal}")


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
"""Errors of the libraries below fsspec that are not an OSError: module and name."""


def list_store_errors() -> tuple[type[BaseException], ...]:
    """Return the errors that a request may raise; only imported libraries can raise theirs."""
    loaded = ((sys.modules.get(module), name) for module, name in CLIENT_ERRORS)
    # a module that is not imported, or an older version, lacks this name
    return OSError, *(getattr(module, name) for module, name in loaded if hasattr(module, name))


REMEDIES = {
    errno.ENOSPC: "make room on the disk, or write elsewhere",
    errno.EDQUOT: "make room in your quota, or write elsewhere",
    errno.EROFS: "write elsewhere",
    errno.ENOENT: "make its folder first",
    errno.ENOTDIR: "a part of its path is a file, not a folder; write elsewhere",
}
"""The remedy, by the system's error number."""


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
        # the system says no more than that
        what = "file or set" if error.errno is not None else f"file or group ({message})"
        raise FileNotFoundError(f"{url}: there is no such {what}; check the path") from None
    except RequestError as error:
        url = without_secrets(url)
        message = str(error) if url in str(error) else f"{url}: {error}"
        # the cause shows whether it may pass
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
    """Add the url and the remedy to errors of writing a set.

    The errors may name a file of the set, or a temporary one.
    """
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
