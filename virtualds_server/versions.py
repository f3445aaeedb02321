"""Versions of a served set or of served files, which are opened again after each change."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import xarray as xr

import virtualds
from virtualds.datasets.location import FOLDER_READERS, SET_SUFFIXES, Location, find_set_above
from virtualds.errors import without_secrets
from virtualds.source_file import local_path, normalise_url, scheme_of
from virtualds.stores.listing import fetch_state, find_matching_files, is_pattern, list_states
from virtualds_server.archive import Archive

if TYPE_CHECKING:
    from virtualds.datasets.zarr_adapter import VirtualStore

FORMATS = {"zarr": 3, "zarr2": 2}
"""Zarr formats by the first part of their url paths."""
SLOW_CHECK_FACTOR = 30
"""Factor by which the interval between slow checks is longer."""
# Zarr v3 first: most sets have it
ROOT_FILES = (
    *dict.fromkeys(("zarr.json", *(name for reader in FOLDER_READERS for name in reader.markers))),
)
"""Files at the root of a set or store that change whenever it changes."""

SET_FOLDER_SUFFIXES = tuple(suffix for suffix in SET_SUFFIXES if ".json" not in suffix)
VERSION_TIMEOUT = 2.0
"""Seconds after which a request for metadata gets the previous version, not the new one."""


class NotRepresentableError(virtualds.UnsupportedError):
    """Zarr cannot represent some arrays; ``reason`` names them, but not their files."""

    def __init__(self, zarr_format: int, problems: Mapping[str, Exception]) -> None:
        self.names = tuple(problems)
        listed = ", ".join(map(repr, problems))
        self.reason = (
            f"Zarr v{zarr_format} cannot represent {listed}; leave them out with drop_variables"
        )
        super().__init__(f"{self.reason} ({'; '.join(map(str, problems.values()))})")


@dataclass(frozen=True)
class ServedData:
    """A set, files, a dataset or a tree to serve, and how to open it.

    Parameters
    ----------
    name : str
        A name to show, without folders and secrets.
    open : callable
        Returns the first argument of `virtualds.zarr_store`: a url, a dataset or a tree.
    options : dict, optional
        Keyword arguments of `virtualds.zarr_store`.
    find_state : callable
        Returns a value that changes whenever ``open`` has to be called again.
    has_quick_check : bool
        Whether ``find_state`` is quick enough to be called for each request for metadata.
    is_private : bool
        Whether only the user who started the server has access, as with ``virtualds view``. Then
        the page and errors show folders and hosts, and nothing is served as Zarr, since web pages
        of any origin may read Zarr.
    code : str, optional
        A line of Python that opens it.
    """

    name: str
    open: Callable[[], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    find_state: Callable[[], Hashable] = lambda: None
    has_quick_check: bool = True
    is_private: bool = False
    code: str | None = None

    @classmethod
    def of(cls, url: Any, options: Mapping[str, Any]) -> ServedData:
        """Return a `ServedData` of the url of a set or file, or of a dataset or tree."""
        if isinstance(url, xr.Dataset | xr.DataTree):
            return cls(type(url).__name__, lambda: url, options)
        storage_options = options.get("storage_options")
        return cls(
            shorten_url(os.fspath(url)),
            lambda: url,
            options,
            partial(find_set_state, os.fspath(url), storage_options),
            code=f'xr.open_dataset({without_secrets(os.fspath(url))!r}, engine="virtual")',
        )

    @classmethod
    def of_files(
        cls,
        urls: Sequence[str],
        open: Callable[[], xr.Dataset | xr.DataTree],
        storage_options: Mapping[str, Any] | None,
    ) -> ServedData:
        """Return a `ServedData` of files and patterns, which ``open`` combines."""
        name = shorten_url(urls[0]) if len(urls) == 1 else f"{len(urls):,} files"
        find_state = partial(find_files_state, urls, storage_options)
        return cls(name, open, {}, find_state, has_quick_check=False)


def shorten_url(url: str) -> str:
    """Return the last part of the path of a url, without query and secrets.

    Examples
    --------
    >>> shorten_url("https://example.org/data/refs.zarr/?token=abc"), shorten_url("data/200?.nc")
    ('refs.zarr', '200?.nc')
    >>> shorten_url("https://me:pw@example.org")
    'example.org'
    """
    if "://" not in url:
        return without_secrets(url.rstrip("/").rpartition("/")[2])
    place = url.partition("?")[0].rpartition("://")[2].rstrip("/")
    host, slash, path = place.partition("/")
    return without_secrets(path.rpartition("/")[2] if slash else host.rpartition("@")[2])


def find_set_state(url: str, options: Mapping[str, Any] | None) -> Hashable:
    """Return the state of a file, or of the files at the root of a set."""
    location, _ = find_set_above(Location.of(url, options))
    if scheme_of(location.url) == "file":
        path = os.path.expanduser(local_path(location.url))
        paths = [path] if os.path.isfile(path) else [os.path.join(path, f) for f in ROOT_FILES]
        return tuple(map(_find_local_state, paths))
    root = location.url.rstrip("/")
    # a url with a query cannot be a folder
    inside = [f"{root}/{name}" for name in ROOT_FILES if "?" not in root]
    # HTTP servers also return a state for a folder, which does not change with its files
    for candidate in (*inside, root) if _may_be_folder(root) else (root, *inside):
        # S3 reports a missing object as forbidden to clients that may not list the bucket
        with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
            return str(fetch_state(candidate, location.options))
    return None


def _may_be_folder(url: str) -> bool:
    """Return whether a url looks like the url of a folder.

    Examples
    --------
    >>> [_may_be_folder(f"https://example.org/{name}") for name in ("a.zarr", "a", "a.nc", "a?n=1")]
    [True, True, False, False]
    """
    name = url.rpartition("/")[2]
    is_file = "?" in url or "::" in url
    return not is_file and ("." not in name or name.endswith(SET_FOLDER_SUFFIXES))


def _find_local_state(path: str) -> Hashable:
    with suppress(FileNotFoundError, NotADirectoryError):
        status = os.stat(path)
        return path, status.st_ino, status.st_size, status.st_mtime_ns
    return None


def find_files_state(urls: Iterable[str], options: Mapping[str, Any] | None) -> Hashable:
    """Return the states of all files that urls and patterns name."""
    states = list[Hashable]()
    for url in urls:
        if not is_pattern(url):
            states.append(find_set_state(url, options))
            continue
        url_options = Location.of_url(normalise_url(url), options).options
        try:
            states += map(str, list_states(normalise_url(url), url_options))
        except FileNotFoundError:
            # the pattern matches folders, such as Zarr stores, which have no state
            states += find_matching_files([url], options)
    return tuple(states)


# ---------------------------------------------------------------------- versions


class Version:
    """A version of a set or of files. Each of its stores is opened at the first request for it."""

    def __init__(self, number: int, state: Hashable, served: ServedData) -> None:
        self.number, self.state, self.served = number, state, served
        # servers in other processes have versions of the same number
        self.token = f"{number}-{secrets.token_hex(4)}"
        self._opened = served.open()
        self._stores: dict[int, VirtualStore] = {}
        self._archive: Archive | None = None
        # two locks, so that requests for chunks do not wait for the archive of the page
        self._lock, self._archive_lock = threading.Lock(), threading.Lock()

    def prepare(self) -> None:
        """Open the archive or store that most requests need."""
        if self.served.is_private:
            self.open_archive()
        else:
            self.open_store(3)

    def open_archive(self) -> Archive:
        """Return the archive, which is opened once."""
        with self._archive_lock:
            if self._archive is None:
                served = self.served
                self._archive = Archive.open(self._opened, served.options, served.is_private)
        return self._archive

    def open_store(self, zarr_format: int) -> VirtualStore:
        """Return the store of one Zarr format, which is opened once.

        Raises
        ------
        NotRepresentableError
            Zarr cannot represent some arrays. The metadata are then not consolidated, so that
            readers over HTTP, which cannot list a store, would not find the other arrays either.
        """
        with self._lock:
            if (store := self._stores.get(zarr_format)) is None:
                store = virtualds.zarr_store(
                    self._opened, readers="any", zarr_format=zarr_format, **self.served.options
                )
                if store.problems:
                    raise NotRepresentableError(zarr_format, store.problems)
                self._stores[zarr_format] = store
        return store


class VersionTracker:
    """Checks for changes, and opens new versions; its methods are thread-safe."""

    def __init__(self, served: ServedData, check_every: float) -> None:
        self.served = served
        self._check_every = (
            check_every if served.has_quick_check else check_every * SLOW_CHECK_FACTOR
        )
        self._lock = threading.Lock()
        self._current: Version | None = None
        self._error: Exception | None = None
        self._last_check = -float("inf")
        self._check_start = float("inf")

    def peek(self) -> Version | None:
        """Return the current version if it was checked recently and without error, else None."""
        return self._current if self._is_recent() and self._error is None else None

    def get(self, check_now: bool = False) -> Version:
        """Return the newest version, or one that was checked recently unless ``check_now``.

        Opening a new version may raise errors and take long. `find_timeout` returns how long to
        wait before calling `get_last` instead.
        """
        if not check_now and (recent := self.peek()) is not None:
            return recent
        with self._lock:
            if not self._is_recent() or (check_now and self.served.has_quick_check):
                self._check()
        return self.get_last()

    def find_timeout(self, check_now: bool) -> float | None:
        """Return the number of seconds to wait for a new version; None if no version is open."""
        if self._current is None:
            return None
        remaining = min(self._check_start + VERSION_TIMEOUT - time.monotonic(), VERSION_TIMEOUT)
        return remaining if check_now or remaining == VERSION_TIMEOUT else 0

    def get_last(self) -> Version:
        """Return the version of the last check, or raise its error."""
        if self._error is not None:
            # remove the traceback, which grows whenever the same error is raised again
            raise self._error.with_traceback(None)
        assert self._current is not None
        return self._current

    def _is_recent(self) -> bool:
        return time.monotonic() - self._last_check < self._check_every

    def _check(self) -> None:
        """Open a new version if the state has changed; store the error if that fails."""
        current = self._current
        self._check_start = time.monotonic()
        try:
            state = self.served.find_state()
            if current is None or current.state != state:
                number = 1 if current is None else current.number + 1
                version = Version(number, state, self.served)
                version.prepare()
                self._current = version
            self._error = None
        except Exception as error:  # noqa: BLE001
            self._error = error
        finally:
            self._last_check = time.monotonic()
            self._check_start = float("inf")


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error without secrets."""
    # timeouts of asyncio have no message
    text = f"{error}" or ("no answer in time" if isinstance(error, TimeoutError) else "")
    return without_secrets(f"{type(error).__name__}: {text}")
