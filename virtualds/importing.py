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
    """Pause garbage collection, which would find nothing here and take as long as the work."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class Importing:
    """A lock around late imports, with garbage collection paused.

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
    # a child process has no other threads, so nothing there would release the lock
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
    location : str
        Module and name, as entry points are written.
    needs : tuple of str, optional
        Of a module that imports an optional library: what it needs, and what to do.

    Raises
    ------
    UnsupportedError
        That library is not installed, or too old.

    Examples
    --------
    >>> Late("virtualds.errors:format_bytes")(2048)
    '2.0 kB'
    """

    location: str
    needs: tuple[str, str] | None = None

    def __call__(self, *given: Any, **options: Any) -> Any:
        """Call the function."""
        try:
            function = import_named(self.location)
        except (ImportError, AttributeError) as error:
            if self.needs is None:
                raise
            what, remedy = self.needs
            raise UnsupportedError(f"{what} ({error}); {remedy}") from error
        return function(*given, **options)


class LateTable(Sequence[Entry]):
    """A table whose entries are imported one by one, only as far as it is read.

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


def import_named(location: str) -> Any:
    """Return the object that ``location`` names: a module and a name, as in entry points."""
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

Messages name the packages themselves. virtualds is on no index yet: installing an extra by its name
from there would get what anyone has put under this name.
"""


def format_install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    Examples
    --------
    >>> format_install_command("s3")
    'pip install botocore obstore'
    """
    return f"pip install {' '.join(EXTRAS[extra])}"


def import_package(name: str, what: str, use: str = "decoding it") -> Any:
    """Import a module of a package of an extra.

    Raises
    ------
    UnsupportedError
        The package is not installed. In the message ``what`` names the codec or file that needs it,
        and ``use`` the purpose.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{what}: {use} needs {name}; pip install {find_package(name)}"
        ) from error


def find_package(module: str) -> str:
    """Return the package of an extra that provides a module.

    Examples
    --------
    >>> find_package("cast_value_rs"), find_package("astropy.io.fits")
    ('cast-value-rs', 'astropy')
    """
    return module.partition(".")[0].replace("_", "-")


def import_eccodes(what: str, use: str = "decoding it") -> Any:
    """Import eccodes, after pyproj if it is installed: see `import_pyproj`.

    Raises
    ------
    UnsupportedError
        As in `import_package`.
    """
    if "eccodes" not in sys.modules:
        with suppress(ImportError):
            import_pyproj()
    return import_package("eccodes", what, use)


def import_pyproj() -> Any:
    """Import pyproj with its own PROJ library.

    eccodes' wheels load another PROJ and offer its functions to all libraries that are loaded
    later. A pyproj that is imported later, by whatever program, would call these, and end the
    process.
    """
    # Windows looks a function up in the library that is named beside it
    if sys.platform == "win32":
        return import_module("pyproj")
    with importing:
        flags = sys.getdlopenflags()
        sys.setdlopenflags(flags | getattr(os, "RTLD_DEEPBIND", 0))
        try:
            return import_module("pyproj")
        finally:
            sys.setdlopenflags(flags)
