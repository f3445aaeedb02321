"""Libraries of others that tests need, or the reason why one is not there."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

SINCE = {"icechunk": (3, 12), "virtualizarr": (3, 12)}
"""The first Python for which libraries are made."""


def peer(name: str) -> Any:
    """Import a module of another library; if it is not there, skip with the reason that is true."""
    library = name.partition(".")[0]
    if sys.version_info < SINCE.get(library, (3,)):
        wanted = ".".join(map(str, SINCE[library]))
        pytest.skip(f"{library} needs Python {wanted}", allow_module_level=True)
    # a library that is there and cannot be imported is an error
    return pytest.importorskip(name, exc_type=ModuleNotFoundError)


ENVIRONMENTS = {
    "CF_PYTHON": "cf-python 3.21, which reads and writes CF-1.13",
    "CF_PYTHON_3_16": "cf-python 3.16, which reads and writes CFA-0.6.2",
}
"""Variables of the environment that name a Python with a library that this one does not have."""


def peer_python(variable: str) -> str:
    """Return the path of a Python with another library; if none is named, skip and say which."""
    found = os.environ.get(variable)
    if not found:
        pytest.skip(f"no Python has {ENVIRONMENTS[variable]}: name one with {variable}")
    return found
