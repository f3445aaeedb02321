"""Packages that extras of virtualds bring, imported where they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from virtualds.errors import UnsupportedError


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
