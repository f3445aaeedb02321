"""Late imports: modules of this package, and optional packages.

Modules of this package are imported by one thread at a time.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar, overload

from virtualds.errors import UnsupportedError

Entry = TypeVar("Entry")


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause garbage collection during work that makes many objects and no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ImportLock:
    """A lock around late imports, which also pauses garbage collection.

    Only one thread at a time may import. Python locks a module before its package, but a package
    that imports the module locks them in the other order. If two threads do so at once, one of them
    gets a partly initialised module or an error.

    Imports make no garbage, and garbage collection would take a third of their time.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pauses: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self.lock.acquire()
        self.pauses.append(pause_garbage_collection())
        self.pauses[-1].__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        self.pauses.pop().__exit__(None, None, None)
        self.lock.release()


importing = ImportLock()

if hasattr(os, "register_at_fork"):
    # a child process has no other threads, so nothing there would release the lock
    os.register_at_fork(
        before=importing.lock.acquire,
        after_in_parent=importing.lock.release,
        after_in_child=importing.lock.release,
    )


@dataclass(frozen=True)
class LazyFunction:
    """A function whose module is imported at the first call.

    Parameters
    ----------
    location : str
        Module and name in the syntax of entry points, ``module:name``.
    needs : tuple of str, optional
        If the module imports an optional library: the requirement and the remedy, for messages.

    Raises
    ------
    UnsupportedError
        The optional library is not installed, or too old.

    Examples
    --------
    >>> LazyFunction("virtualds.errors:format_bytes")(2048)
    '2.0 kB'
    """

    location: str
    needs: tuple[str, str] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Import and call the function."""
        try:
            function = import_object(self.location)
        except (ImportError, AttributeError) as error:
            if self.needs is None:
                raise
            requirement, remedy = self.needs
            raise UnsupportedError(f"{requirement} ({error}); {remedy}") from error
        return function(*args, **kwargs)


class LazyTable(Sequence[Entry]):
    """A sequence whose entries are imported when they are read.

    Parameters
    ----------
    *entries : str or object
        The entries, or their locations ``module:name``. The most frequent ones should come first,
        since a search imports all entries up to the match.

    Examples
    --------
    >>> table = LazyTable("virtualds.source_file:scheme_of", "virtualds.parsers.grib:PARSER")
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
            return LazyTable(*self.entries[index])
        entry = self.entries[index]
        return import_object(entry) if isinstance(entry, str) else entry


def import_object(location: str) -> Any:
    """Return the object at a location ``module:name``."""
    module, _, name = location.partition(":")
    with importing:
        return getattr(import_module(module), name)


# ---------------------------------------------------------------------- extras

EXTRAS = {
    "azure": ("azure-identity", "obstore"),
    "demo": ("matplotlib", "netCDF4"),
    "distributed": ("distributed",),
    "filters": ("blosc2", "cast-value-rs", "fastcrc", "imagecodecs", "pcodec"),
    "fits": ("astropy", "imagecodecs"),
    "gcs": ("aiohttp", "gcsfs"),
    "grib": ("eccodes",),
    "icechunk": ("icechunk",),
    "images": ("imagecodecs", "pyproj", "tifffile"),
    "plot": ("matplotlib",),
    "remote": ("aiohttp", "azure-identity", "botocore", "gcsfs", "obstore"),
    "s3": ("botocore", "obstore"),
    "serve": ("starlette", "uvicorn", "zarr"),
    "zarr": ("zarr",),
}
"""The packages of each extra, as in pyproject.toml.

Messages name these packages rather than extras: virtualds is not on a package index yet, where
anyone could publish another package under its name.
"""


def format_install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    Examples
    --------
    >>> format_install_command("s3")
    'pip install botocore obstore'
    """
    return f"pip install {' '.join(EXTRAS[extra])}"


def import_package(name: str, required_by: str, use: str = "decoding it") -> Any:
    """Import a module of an optional package.

    ``required_by`` is the codec or file that needs it, and ``use`` the purpose, for the message.

    Raises
    ------
    UnsupportedError
        The package is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{required_by}: {use} needs {name}; pip install {find_distribution(name)}"
        ) from error


def find_distribution(module: str) -> str:
    """Return the name under which pip installs a module of an extra.

    Examples
    --------
    >>> find_distribution("cast_value_rs"), find_distribution("astropy.io.fits")
    ('cast-value-rs', 'astropy')
    """
    return module.partition(".")[0].replace("_", "-")


def import_eccodes(required_by: str, use: str = "decoding it") -> Any:
    """Import eccodes, and before it pyproj if it is installed; see `import_pyproj`.

    Raises
    ------
    UnsupportedError
        As in `import_package`.
    """
    if "eccodes" not in sys.modules:
        with suppress(ImportError):
            import_pyproj()
    return import_package("eccodes", required_by, use)


def import_pyproj() -> Any:
    """Import pyproj with its own PROJ library.

    Wheels of eccodes load another PROJ library with global symbols. A pyproj that is imported after
    them would call functions of that library and crash.
    """
    # Windows has no global symbols: it looks up functions by library
    if sys.platform == "win32":
        return import_module("pyproj")
    with importing:
        flags = sys.getdlopenflags()
        sys.setdlopenflags(flags | getattr(os, "RTLD_DEEPBIND", 0))
        try:
            return import_module("pyproj")
        finally:
            sys.setdlopenflags(flags)
