"""Sets of very many references, and a count of what is read and written of a set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds.stores.local import LocalStore

STEPS, ROWS, COLUMNS = 100, 10, 100
"""Chunks of one file of the set along its axes: as many references as a record has."""

METADATA = 8192
"""Bytes that are enough for what a set says besides its references, sources apart."""


def archive(files: range, steps: int = STEPS) -> xr.Dataset:
    """Some files of an archive; their bytes are nowhere, and nobody asks for them."""
    grid = (steps, ROWS, COLUMNS)
    # lengths as compression leaves them
    lengths = np.random.default_rng(files[0]).integers(500, 1500, grid)
    offsets = 4096 + np.cumsum(lengths).reshape(grid) - lengths
    parts = [
        virtualds.ManifestArray.from_arrays(
            shape=(steps, ROWS * 10, COLUMNS * 10),
            chunks=(1, 10, 10),
            dtype="f4",
            path=f"s3://bucket/some/long/prefix/product_{number:06d}.nc",
            offsets=offsets,
            lengths=lengths,
        )
        for number in files
    ]
    return xr.Dataset({"v": (("time", "y", "x"), np.concatenate(parts, axis=0))})


@dataclass
class Traffic:
    """What was read and written of a set: files, how often they were read, and bytes."""

    read: Counter[str] = field(default_factory=Counter)
    nbytes_read: int = 0
    written: dict[str, int] = field(default_factory=dict)

    @property
    def nbytes_written(self) -> int:
        return sum(self.written.values())


@contextmanager
def counted(target: Path) -> Iterator[Traffic]:
    """Count what is read within the block, and see what has been written when it ends."""
    traffic, before = Traffic(), contents(target)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("read_all", "get_ranges", "read_into"):
            patch.setattr(LocalStore, name, _counting(getattr(LocalStore, name), traffic, target))
        yield traffic
    now = contents(target)
    traffic.written = {p: size for p, (size, _) in now.items() if now[p] != before.get(p)}


def _counting(method: Callable[..., Any], traffic: Traffic, target: Path) -> Callable[..., Any]:
    def call(self: LocalStore, where: Any, *rest: Any) -> Any:
        found = method(self, where, *rest)
        url = where if isinstance(where, str) else where.url
        traffic.read[url.rpartition(f"/{target.name}/")[2]] += 1
        asked = [(0, len(found))] if isinstance(found, bytes) else rest[0]
        traffic.nbytes_read += sum(length for _, length in asked)
        return found

    return call


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size of every file of a set, and which file it is."""
    found = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {p.relative_to(folder).as_posix(): (s.st_size, s.st_ino) for p, s in found.items()}
