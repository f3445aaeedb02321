"""What tests of archives share in which something happens every night: opened files, and bits."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

_OPENED: list[Counter[Path]] = []
"""Those who count now; the hook itself cannot be taken back."""
_HOOKS: list[bool] = []
CLOCK = iter(range(1_000_000_000, 2_000_000_000))
"""Times of files, all long ago, and no two alike."""


def _note(event: str, given: tuple[Any, ...]) -> None:
    if _OPENED and event == "open" and isinstance(given[0], str | bytes):
        path = Path(os.fsdecode(given[0]))
        for counter in _OPENED:
            counter[path] += 1


@contextmanager
def opened_below(folder: Path) -> Iterator[Counter[Path]]:
    """Count how often this process opens each file of a folder."""
    if not _HOOKS:
        _HOOKS.append(True)
        sys.addaudithook(_note)
    counter: Counter[Path] = Counter()
    _OPENED.append(counter)
    try:
        yield counter
    finally:
        _OPENED.remove(counter)
        for path in [path for path in counter if not path.is_relative_to(folder) or path.is_dir()]:
            del counter[path]


def date(path: Path) -> Path:
    """Give a file that was written just now a time of its own."""
    os.utime(path, (next(CLOCK),) * 2)
    return path


def assert_same_bits(found: xr.Dataset, expected: xr.Dataset, attributes: bool = True) -> None:
    """Two datasets have the same variables, to the bit, in any order, and the same attributes."""
    assert set(found.variables) == set(expected.variables)
    assert set(found.coords) == set(expected.coords)
    for name, wanted in expected.variables.items():
        variable = found.variables[name]
        shown, native = (
            (name, v.dims, v.dtype, {k: str(v.attrs[k]) for k in v.attrs if attributes})
            for v in (variable, wanted)
        )
        assert shown == native, f"{shown}, natively {native}"
        if wanted.dtype == object:
            assert np.array_equal(variable.values, wanted.values), name
        else:
            assert variable.values.tobytes() == wanted.values.tobytes(), name
