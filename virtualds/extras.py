"""Packages that extras of virtualds bring, imported where they are needed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from virtualds.errors import UnsupportedError
from virtualds.importing import importing


def import_package(name: str, what: str, extra: str = "filters", use: str = "decoding it") -> Any:
    """Import a package of an extra.

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
            f"{what}: {use} needs {name}; pip install 'virtualds[{extra}]'"
        ) from error


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
    return import_package("eccodes", what, "grib", use)


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
