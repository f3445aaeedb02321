"""What is served, and its versions: a set that changes is opened again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import xarray as xr

import virtualds
from virtualds.datasets.location import Location, find_set_above
from virtualds.errors import without_secrets
from virtualds.stores.listing import fetch_state, find_matching, list_states, names_files
from virtualds.urls import local_path, normalise_url, scheme_of

if TYPE_CHECKING:
    from virtualds.datasets.zarr_adapter import VirtualStore

FORMATS = {"zarr": 3, "zarr2": 2}
"""The versions of Zarr that are served, by the first part of their paths."""
SELDOM = 30
"""How many times as seldom a state is looked for that takes long to find."""
ROOT_FILES = (
    *("zarr.json", ".zmetadata", ".zgroup", ".zarray"),
    *("repo", "refs/branch.main/ref.json"),
)
"""Files in the folder of a set or a store that change with it; the last two are of Icechunk."""


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
    """

    name: str
    open: Callable[[], Any]
    opening: Mapping[str, Any] = field(default_factory=dict)
    find_state: Callable[[], Hashable] = lambda: None
    is_quick: bool = True

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
    """
    path = url.partition("?")[0] if "://" in url else url
    return path.rstrip("/").rpartition("/")[2]


def find_set_state(url: str, options: Mapping[str, Any] | None) -> Hashable:
    """Return the state of a file, or of the file in the folder of a set that changes with it."""
    location, _ = find_set_above(Location.of(url, options))
    if scheme_of(location.url) == "file":
        path = os.path.expanduser(local_path(location.url))
        found = [path] if os.path.isfile(path) else [os.path.join(path, f) for f in ROOT_FILES]
        return tuple(_find_local_state(one) for one in found)
    root = location.url.rstrip("/")
    for one in (root, *(f"{root}/{name}" for name in ROOT_FILES)):
        with suppress(FileNotFoundError, IsADirectoryError):
            return str(fetch_state(one, location.options))
    return None


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
        self.number, self.state = number, state
        self._served = served
        self._opened = served.open()
        self._stores: dict[int, VirtualStore] = {}
        self._lock = threading.Lock()

    def open_store(self, zarr_format: int) -> VirtualStore:
        """Return the store of one version of Zarr.

        Raises
        ------
        UnsupportedError
            Zarr cannot represent some arrays. Over HTTP nothing lists a store, so that readers
            would not find the others either.
        """
        with self._lock:
            if (found := self._stores.get(zarr_format)) is None:
                found = virtualds.zarr_store(
                    self._opened, readers="any", zarr_format=zarr_format, **self._served.opening
                )
                if found.problems:
                    listed = "; ".join(f"{error}" for error in found.problems.values())
                    names = ", ".join(repr(path) for path in found.problems)
                    raise virtualds.UnsupportedError(
                        f"{self._served.name}: Zarr v{zarr_format} has no form for {names}; leave "
                        f"them out with drop_variables ({listed})"
                    )
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

    def peek(self) -> Version | None:
        """Return the version that was the newest a moment ago, or None if nobody has looked."""
        is_recent = time.monotonic() - self._checked < self._check_every
        return self._current if is_recent and self._error is None else None

    def get(self, at_once: bool = False) -> Version:
        """Return the newest version, or with ``at_once`` false one that was so a moment ago.

        Raises what opening raises. While another thread opens a version, the one before it serves,
        unless ``at_once``.
        """
        if not at_once and (recent := self.peek()) is not None:
            return recent
        if not self._lock.acquire(blocking=at_once or self._current is None):
            assert self._current is not None
            return self._current
        try:
            is_recent = time.monotonic() - self._checked < self._check_every
            if not is_recent or (at_once and self.served.is_quick):
                self._look()
        finally:
            self._lock.release()
        if self._error is not None:
            # without the frames of the request that met it first
            raise self._error.with_traceback(None)
        assert self._current is not None
        return self._current

    def _look(self) -> None:
        """Open the newest version, unless it is open already; keep the error if that fails."""
        before = self._current
        try:
            state = self.served.find_state()
            if before is None or before.state != state:
                number = 1 if before is None else before.number + 1
                version = Version(number, state, self.served)
                version.open_store(3)
                self._current = version
            self._error = None
        except (OSError, ValueError, RuntimeError) as error:
            self._error = error
        finally:
            self._checked = time.monotonic()


def describe_error(error: BaseException) -> str:
    """Return what an error says, without secrets."""
    return without_secrets(f"{type(error).__name__}: {error}")
