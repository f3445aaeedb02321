"""Packages that extras of virtualds bring, imported where they are needed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from virtualds.errors import UnsupportedError
from virtualds.importing import importing

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
    "zarr": ("zarr",),
}
"""The packages of each extra, as in pyproject.toml.

Messages name the packages themselves. virtualds is on no index yet, and who installs an extra by
its name from there would get what anyone has put under this name.
"""


def say_install(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    Examples
    --------
    >>> say_install("s3")
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
    """Return the package of an extra that brings a module.

    Examples
    --------
    >>> find_package("cast_value_rs"), find_package("astropy.io.fits")
    ('cast-value-rs', 'astropy')
    """
    return module.partition(".")[0].replace("_", "-")


def import_eccodes(what: str, use: str = "decoding it") -> Any:
    """Import eccodes, after pyproj where it is installed: see `import_pyproj`.

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
    """Import pyproj with the PROJ that it brings along.

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
