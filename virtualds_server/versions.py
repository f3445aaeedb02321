"""What is served, and its versions: a set that changes is opened again."""

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
from virtualds.stores.listing import fetch_state, find_matching, list_states, names_files
from virtualds.urls import local_path, normalise_url, scheme_of
from virtualds_server.archive import Archive

if TYPE_CHECKING:
    from virtualds.datasets.zarr_adapter import VirtualStore

FORMATS = {"zarr": 3, "zarr2": 2}
"""The versions of Zarr that are served, by the first part of their paths."""
SELDOM = 30
"""How many times as seldom a state is looked for that takes long to find."""
# most sets are of Zarr v3
ROOT_FILES = (*dict.fromkeys(("zarr.json", *(m for one in FOLDER_READERS for m in one.markers))),)
"""Files in the folder of a set or a store that change with it."""

SET_FOLDERS = tuple(suffix for suffix in SET_SUFFIXES if ".json" not in suffix)
"""Suffixes of sets that are folders."""
PATIENCE = 2.0
"""Seconds for which a request for metadata waits for a new version that is being opened. Then it
gets the version before."""


class NoFormError(virtualds.UnsupportedError):
    """Zarr has no form for some arrays; ``reason`` says so without what names their files."""

    def __init__(self, zarr_format: int, problems: Mapping[str, Exception]) -> None:
        self.names = tuple(problems)
        listed = ", ".join(map(repr, problems))
        self.reason = (
            f"Zarr v{zarr_format} has no form for {listed}; leave them out with drop_variables"
        )
        super().__init__(f"{self.reason} ({'; '.join(f'{one}' for one in problems.values())})")


@dataclass(frozen=True)
class Served:
    """What a server serves.

    Parameters
    ----------
    name : str
        What readers see: no path, and no secret.
    open : callable
        Returns what `virtualds.zarr_store` takes: a url, or a dataset or tree.
    opening : dict, optional
        More arguments of `virtualds.zarr_store`.
    find_state : callable
        Returns something that is equal as long as ``open`` would return the same.
    is_quick : bool
        Whether ``find_state`` is so quick that each request for metadata may call it.
    is_private : bool
        Whether only the person who started the server looks at it, as with ``virtualds view``. Then
        the page and errors name folders and hosts, and nothing is served as Zarr, which pages of
        any origin may read.
    code : str, optional
        A line of Python that opens it.
    """

    name: str
    open: Callable[[], Any]
    opening: Mapping[str, Any] = field(default_factory=dict)
    find_state: Callable[[], Hashable] = lambda: None
    is_quick: bool = True
    is_private: bool = False
    code: str | None = None

    @classmethod
    def of(cls, url: Any, opening: Mapping[str, Any]) -> Served:
        """Return a set, a file, or a dataset or tree, to be served."""
        if isinstance(url, xr.Dataset | xr.DataTree):
            return cls(type(url).__name__, lambda: url, opening)
        options = opening.get("storage_options")
        return cls(
            name_file(os.fspath(url)),
            lambda: url,
            opening,
            partial(find_set_state, os.fspath(url), options),
            code=f'xr.open_dataset({without_secrets(os.fspath(url))!r}, engine="virtual")',
        )

    @classmethod
    def of_files(
        cls,
        urls: Sequence[str],
        open: Callable[[], xr.Dataset | xr.DataTree],
        options: Mapping[str, Any] | None,
    ) -> Served:
        """Return files and patterns to be served, which ``open`` combines."""
        name = name_file(urls[0]) if len(urls) == 1 else f"{len(urls):,} files"
        return cls(name, open, {}, partial(find_files_state, urls, options), is_quick=False)


def name_file(url: str) -> str:
    """Return the name of a file without its folder.

    Examples
    --------
    >>> name_file("https://example.org/data/refs.zarr/?token=abc"), name_file("data/200?.nc")
    ('refs.zarr', '200?.nc')
    >>> name_file("https://me:pw@example.org")
    'example.org'
    """
    if "://" not in url:
        return without_secrets(url.rstrip("/").rpartition("/")[2])
    place = url.partition("?")[0].rpartition("://")[2].rstrip("/")
    host, slash, path = place.partition("/")
    return without_secrets(path.rpartition("/")[2] if slash else host.rpartition("@")[2])


def find_set_state(url: str, options: Mapping[str, Any] | None) -> Hashable:
    """Return the state of a file, or of the file in the folder of a set that changes with it."""
    location, _ = find_set_above(Location.of(url, options))
    if scheme_of(location.url) == "file":
        path = os.path.expanduser(local_path(location.url))
        found = [path] if os.path.isfile(path) else [os.path.join(path, f) for f in ROOT_FILES]
        return tuple(_find_local_state(one) for one in found)
    root = location.url.rstrip("/")
    # a query is of one file
    inside = [f"{root}/{name}" for name in ROOT_FILES if "?" not in root]
    # servers of HTTP answer for folders, too, whose state says nothing of the files in them
    for one in (*inside, root) if _may_be_folder(root) else (root, *inside):
        # S3 refuses to say that a file is missing to those who may not list its folder
        with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
            return str(fetch_state(one, location.options))
    return None


def _may_be_folder(url: str) -> bool:
    """Return whether a name looks like that of a set in a folder.

    Examples
    --------
    >>> [_may_be_folder(f"https://example.org/{name}") for name in ("a.zarr", "a", "a.nc", "a?n=1")]
    [True, True, False, False]
    """
    name = url.rpartition("/")[2]
    return "?" not in url and "::" not in url and ("." not in name or name.endswith(SET_FOLDERS))


def _find_local_state(path: str) -> Hashable:
    with suppress(FileNotFoundError, NotADirectoryError):
        found = os.stat(path)
        return path, found.st_ino, found.st_size, found.st_mtime_ns
    return None


def find_files_state(urls: Iterable[str], options: Mapping[str, Any] | None) -> Hashable:
    """Return the states of files, and of those that match patterns."""
    return tuple(one for url in urls for one in _iterate_file_states(url, options))


def _iterate_file_states(url: str, options: Mapping[str, Any] | None) -> Iterable[Hashable]:
    if not names_files(url):
        return [find_set_state(url, options)]
    given = Location.of_url(normalise_url(url), options).options
    try:
        return map(str, list_states(normalise_url(url), given))
    except FileNotFoundError:
        # folders, such as stores of Zarr, have no state
        return find_matching([url], options)


# ---------------------------------------------------------------------- versions


class Version:
    """One version of what is served; its stores are opened when a request asks for them."""

    def __init__(self, number: int, state: Hashable, served: Served) -> None:
        self.number, self.state, self.served = number, state, served
        # other processes count their versions, too
        self.token = f"{number}-{secrets.token_hex(4)}"
        self._opened = served.open()
        self._stores: dict[int, VirtualStore] = {}
        self._archive: Archive | None = None
        # two locks, so that readers of chunks do not wait until the archive of the page is open
        self._lock, self._archive_lock = threading.Lock(), threading.Lock()

    def prepare(self) -> None:
        """Open what most requests ask for."""
        if self.served.is_private:
            self.open_archive()
        else:
            self.open_store(3)

    def open_archive(self) -> Archive:
        """Return the archive, opened once."""
        with self._archive_lock:
            if self._archive is None:
                served = self.served
                self._archive = Archive.open(self._opened, served.opening, served.is_private)
        return self._archive

    def open_store(self, zarr_format: int) -> VirtualStore:
        """Return the store of one version of Zarr.

        Raises
        ------
        NoFormError
            Zarr cannot represent some arrays. Over HTTP nothing lists a store, so that readers
            would not find the others either.
        """
        with self._lock:
            if (found := self._stores.get(zarr_format)) is None:
                found = virtualds.zarr_store(
                    self._opened, readers="any", zarr_format=zarr_format, **self.served.opening
                )
                if found.problems:
                    raise NoFormError(zarr_format, found.problems)
                self._stores[zarr_format] = found
        return found


class Follower:
    """The newest version of what is served; methods are called in any thread."""

    def __init__(self, served: Served, check_every: float) -> None:
        self.served = served
        self._check_every = check_every if served.is_quick else check_every * SELDOM
        self._lock = threading.Lock()
        self._current: Version | None = None
        self._error: Exception | None = None
        self._checked = -float("inf")
        self._looks_since = float("inf")

    def peek(self) -> Version | None:
        """Return the version that was the newest a moment ago, or None if nobody has looked."""
        is_recent = time.monotonic() - self._checked < self._check_every
        return self._current if is_recent and self._error is None else None

    def get(self, at_once: bool = False) -> Version:
        """Return the newest version, or with ``at_once`` false one that was so a moment ago.

        Raises what opening raises. It may take as long as opening does; `find_patience` says when
        to `answer` with the version before.
        """
        if not at_once and (recent := self.peek()) is not None:
            return recent
        with self._lock:
            is_recent = time.monotonic() - self._checked < self._check_every
            if not is_recent or (at_once and self.served.is_quick):
                self._look()
        return self.answer()

    def find_patience(self, at_once: bool) -> float | None:
        """Return how many seconds to wait for the newest version; None if there is no other."""
        if self._current is None:
            return None
        left = min(self._looks_since + PATIENCE - time.monotonic(), PATIENCE)
        return left if at_once or left == PATIENCE else 0

    def answer(self) -> Version:
        """Return the version that was found last, or raise the error of looking for it."""
        if self._error is not None:
            # without the frames of the request that met it first
            raise self._error.with_traceback(None)
        assert self._current is not None
        return self._current

    def _look(self) -> None:
        """Open the newest version, unless it is open already; keep the error if that fails."""
        before = self._current
        self._looks_since = time.monotonic()
        try:
            state = self.served.find_state()
            if before is None or before.state != state:
                number = 1 if before is None else before.number + 1
                version = Version(number, state, self.served)
                version.prepare()
                self._current = version
            self._error = None
        except Exception as error:  # noqa: BLE001
            self._error = error
        finally:
            self._checked = time.monotonic()
            self._looks_since = float("inf")


def describe_error(error: BaseException) -> str:
    """Return what an error says, without secrets."""
    # asyncio's timeouts say nothing
    text = f"{error}" or ("no answer in time" if isinstance(error, TimeoutError) else "")
    return without_secrets(f"{type(error).__name__}: {text}")
