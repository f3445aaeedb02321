"""Who reads HDF5 files in comparisons: virtualds by its own reader, and by the HDF5 library."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from fuzz.hdf5_described import describe_dataset, describe_group
from fuzz.outcomes import Failure, Finding, Outcome, Values, corner, failure_of, values_of
from numpy.exceptions import DTypePromotionError
from numpy.lib.recfunctions import repack_fields

import virtualds
from virtualds.errors import VirtualdsError
from virtualds.parsers import hdf5
from virtualds.stores import find_store

Items = Iterator[tuple[str, Values | Failure]]
DESCRIPTION, VALUES = 0, 1
"""What a job asks for."""
NOT_ALIKE = (VirtualdsError, FileNotFoundError, ValueError, DTypePromotionError)
"""What may be raised where files are joined: so xarray says that they differ."""


def read_with(reader: str, way: int, folder: str, alike: bool) -> Outcome:
    """Read the files of a folder, whose structure is read by ``"auto"`` or by ``"library"``."""
    typed = NOT_ALIKE if alike else (VirtualdsError, FileNotFoundError)
    paths = sorted(str(path) for path in Path(folder).iterdir() if path.suffix == ".nc")
    return _outcome(reader, lambda: _joined(paths) if alike else _alone(paths[0], way), typed)


def read_file(job: tuple[str, str]) -> tuple[Outcome, str]:
    """Describe a file as one reader reads it, and say who did: ``"auto"`` may leave it to h5py."""
    reader, path = job
    with _Openings() as openings:
        typed = (VirtualdsError, FileNotFoundError)
        found = _outcome(reader, lambda: _alone(path, DESCRIPTION), typed)
    return found, openings.explain(path)


class _Openings:
    """Whether h5py opens files within the block."""

    def __enter__(self) -> _Openings:
        self._original, self.count = h5py.File, 0
        h5py.File = self._open
        return self

    def __exit__(self, *_: object) -> None:
        h5py.File = self._original

    def _open(self, *given: Any, **named: Any) -> Any:
        self.count += 1
        return self._original(*given, **named)

    def explain(self, path: str) -> str:
        """Return who read the structure of a file, and why the library, if the parser says so.

        The parser need only have a function ``explain_reader`` that takes the source.
        """
        if hasattr(hdf5, "explain_reader"):
            return str(hdf5.explain_reader(find_store(f"file://{path}").describe(path, None)))
        return "h5py opened it" if self.count else "ours"


def _outcome(reader: str, read: Callable[[], Items], typed: tuple[Any, ...]) -> Outcome:
    with warnings.catch_warnings(), virtualds.set_options(hdf5=reader):
        warnings.simplefilter("ignore")
        try:
            return Outcome(None, dict(read()))
        except Exception as error:  # noqa: BLE001
            return Outcome(failure_of(error, isinstance(error, typed)), {})


def _alone(path: str, way: int) -> Items:
    group = read_group(path)
    if way == DESCRIPTION:
        yield from describe_group(group)
        return
    for where, part in group.walk():
        for name, variable in part.variables.items():
            try:
                yield f"{where}/{name}", values_of(_packed(variable.read()))
            except VirtualdsError as error:
                yield f"{where}/{name}", failure_of(error, True)


def _packed(values: Any) -> Any:
    """Return values without the bytes between fields, which mean nothing."""
    found = np.asarray(values)
    return found.astype(repack_fields(found.dtype, recurse=True)) if found.dtype.names else found


def read_group(path: str) -> Any:
    """Return all groups of a file, as the parser reads them."""
    url = f"file://{path}"
    return hdf5.read(find_store(url).describe(url, None), below=True)


def _joined(paths: list[str]) -> Items:
    dataset = virtualds.open_virtual_mfdataset(
        paths, combine="nested", concat_dim="time", compat="override", overlap="keep",
        decode_cf=False, on_error="keep", sort=False,
    )  # fmt: skip
    yield from describe_dataset(dataset)


# ---------------------------------------------------------------------- h5py


def by_h5py(folder: str) -> Outcome:
    """Read by h5py itself what it reads as numpy's types or text."""
    [path] = Path(folder).glob("*.nc")
    found: dict[str, Values | Failure] = {}
    with h5py.File(path) as file:
        names: list[str] = []
        file.visit(names.append)
        for name in names:
            try:
                values = _h5py_values(file[name])
            except Exception as error:  # noqa: BLE001
                found[name] = failure_of(error, True)
                continue
            if values is not None:
                found[name if "/" in name else f"/{name}"] = values_of(_packed(values))
    return Outcome(None, found)


def _h5py_values(one: Any) -> Any:
    if not isinstance(one, h5py.Dataset) or one.shape is None:
        return None
    key = corner(one.shape, one.dtype.itemsize)
    if not one.dtype.hasobject:
        return one[key]
    if h5py.check_string_dtype(one.dtype) is not None:
        text = one.asstr(errors="replace")[key]
        return np.asarray(text, object)
    return None


def different_values(ours: Outcome, theirs: Outcome) -> list[Finding]:
    """Return where values differ that both have, in the same shape and type."""
    found = []
    for name, mine in ours.found.items():
        other = theirs.found.get(name)
        if not isinstance(mine, Values) or not isinstance(other, Values):
            continue
        alike = mine.shape == other.shape and mine.dtype == other.dtype
        if alike and mine.digest != other.digest:
            found.append(Finding("difference", "values", f"{name}: {mine}\nh5py: {other}"))
    return found


# ---------------------------------------------------------------------- jobs of workers


def ours(job: tuple[str, str, int]) -> Outcome:
    """Read one file by our own reader."""
    folder, _, way = job
    return read_with("auto", way, folder, False)


def library(job: tuple[str, str, str, int]) -> Outcome:
    """Read one file by the library, or by h5py itself."""
    folder, _, _, way = job
    return by_h5py(folder) if way == VALUES else read_with("library", way, folder, False)


def ours_alike(job: tuple[str, str, int]) -> Outcome:
    """Join files by our own reader; values are those of the description."""
    return Outcome(None, {}) if job[2] == VALUES else read_with("auto", DESCRIPTION, job[0], True)


def library_alike(job: tuple[str, str, str, int]) -> Outcome:
    """Join files by the library."""
    return Outcome(None, {}) if job[3] == VALUES else read_with("library", 0, job[0], True)
