"""Endless sound HDF5 files for cases: each file is read as it is, and then damaged many times."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
from fuzz.hdf5_files import write
from fuzz.mutations import Files, Seed

PER_FILE = 50
"""Cases of a file, or of files that are alike; the first of them has no damage."""
VARIANTS = 3
"""Files that are alike."""
OTHERWISE = 10**6
"""Added to the number of a file that HDF5 could not write."""


class Series:
    """The sound files of all cases, each made when its first case is tried.

    Parameters
    ----------
    variants : int
        How many files that are alike are read together; 1 is a file alone.
    """

    def __init__(self, variants: int = 1) -> None:
        self._variants = variants
        self._made = lru_cache(4)(self._make)

    def of_case(self, number: int) -> tuple[Seed, bool]:
        """Return the files of a case, and whether they stay sound."""
        return self._made(number // PER_FILE), number % PER_FILE == 0

    def _make(self, number: int) -> Seed:
        numbers = range(self._variants) if self._variants > 1 else (None,)
        for attempt in range(number, number + 9 * OTHERWISE, OTHERWISE):
            files: Files = {}
            for variant in numbers:
                files |= write_apart(attempt, variant)
            names = [name for name in files if name.endswith(".nc")]
            if len(names) == self._variants:
                places = {name: _places(files.pop(f"{name}.npy")) for name in names}
                return Seed(f"file {attempt}", files, "0.nc", places=places)
        raise RuntimeError(f"HDF5 cannot write file {number}")


def write_apart(number: int, variant: int | None = None) -> Files:
    """Write a file, and where its metadata lie, in a process of its own; HDF5 may fail, or crash.

    Values of external datasets lie beside the file.
    """
    with TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path = Path(folder) / f"{variant or 0}.nc"

        def work() -> None:
            os.chdir(folder)
            write(path, number, variant)
            np.save(f"{path.name}.npy", find_metadata(path.read_bytes()))

        if not _succeeds(work):
            return {}
        return {one.name: one.read_bytes() for one in Path(folder).iterdir()}


def _places(data: bytes) -> Any:
    return np.load(io.BytesIO(data))


def _succeeds(work: Callable[[], Any]) -> bool:
    pid = os.fork()
    if not pid:  # pragma: no cover
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def find_metadata(data: bytes) -> Any:
    """Return the places of bytes that are no values of datasets, and not zero."""
    is_raw = np.zeros(len(data), bool)
    with h5py.File(io.BytesIO(data)) as file:
        for start, size in _raw_ranges(file):
            is_raw[start : start + size] = True
    places = np.flatnonzero(~is_raw & (np.frombuffer(data, np.uint8) != 0))
    return places.astype(np.uint32)


def _raw_ranges(file: h5py.File) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []

    def look(name: str, one: Any) -> None:
        if not isinstance(one, h5py.Dataset) or one.shape is None:
            return
        if one.chunks:
            one.id.chunk_iter(lambda chunk: found.append((chunk.byte_offset, chunk.size)))
        elif (start := one.id.get_offset()) is not None:
            found.append((start, one.id.get_storage_size()))

    file.visititems(look)
    return found
