"""Modules of this package that are imported where a call needs them, by one thread at a time."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar, overload

from virtualds.errors import UnsupportedError

Entry = TypeVar("Entry")


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, which finds nothing here and takes as long as the work."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class Importing:
    """What the face, or a table, does around imports of what lies behind it.

    One thread at a time imports. Python locks a module and then its package; a package that imports
    this module locks them the other way round. Where two threads do so at once, one of them gets
    half a module, or an error.

    Garbage collection is paused: modules make no garbage, and to look through all that xarray and
    they have made takes as long as a third of the imports.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pauses: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self.lock.acquire()
        self.pauses.append(pause_garbage_collection())
        self.pauses[-1].__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.pauses.pop().__exit__(None, None, None)
        self.lock.release()


importing = Importing()

if hasattr(os, "register_at_fork"):
    # a child process has none of the other threads, so nobody there would release the lock
    os.register_at_fork(
        before=importing.lock.acquire,
        after_in_parent=importing.lock.release,
        after_in_child=importing.lock.release,
    )


@dataclass(frozen=True)
class Late:
    """A function of a module that is imported when the function is called.

    Parameters
    ----------
    place : str
        Module and name, as entry points are written.
    needs : tuple of str, optional
        Of a module that imports an optional library: what it needs, and what to do.

    Raises
    ------
    UnsupportedError
        That library is not installed, or too old.

    Examples
    --------
    >>> Late("virtualds.quantities:format_bytes")(2048)
    '2.0 kB'
    """

    place: str
    needs: tuple[str, str] | None = None

    def __call__(self, *given: Any, **options: Any) -> Any:
        """Call the function."""
        try:
            function = import_named(self.place)
        except (ImportError, AttributeError) as error:
            if self.needs is None:
                raise
            what, remedy = self.needs
            raise UnsupportedError(f"{what} ({error}); {remedy}") from error
        return function(*given, **options)


class LateTable(Sequence[Entry]):
    """A table whose entries are imported one after another, as far as it is read.

    Parameters
    ----------
    *entries : str or object
        The entries, or module and name of each, as entry points are written. What most calls look
        for comes first.

    Examples
    --------
    >>> table = LateTable("virtualds.urls:scheme_of", "virtualds.parsers.grib:PARSER")
    >>> table[0]("s3://bucket/2001.nc")
    's3'
    """

    def __init__(self, *entries: str | Entry) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(index, slice):
            return LateTable(*self.entries[index])
        entry = self.entries[index]
        return import_named(entry) if isinstance(entry, str) else entry


def import_named(place: str) -> Any:
    """Import what lies at a place: a module and a name, as entry points are written."""
    module, _, name = place.partition(":")
    with importing:
        return getattr(import_module(module), name)
