"""Files of a few days each, and sets that grow by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds import writing
from virtualds.datasets.location import FORMATS

SUFFIXES = {
    form.name: form.suffixes[0]
    for form in FORMATS
    if form.library is None or find_spec(form.library)
}
"""The suffixes of the formats that can be written here."""

HOLDING = {name: suffix for name, suffix in SUFFIXES.items() if name != "cfa"}
"""Those whose sets hold references to parts of variables, rewritten chunks and values alone."""


def needs_parts(target: Path) -> None:
    """Skip a test of what no aggregation file holds: parts of variables, or files that are gone."""
    if target.suffix == SUFFIXES["cfa"]:
        pytest.skip("an aggregation file refers to whole variables of files that are there")


EPOCH = "days since 2000-01-01"


def days(first: int, count: int = 4, seed: int | None = None) -> xr.Dataset:
    """Some days of an archive: a field, a track along time, bounds, and a grid that stays."""
    random = np.random.default_rng(first if seed is None else seed)
    time = np.datetime64("2000-01-01") + np.arange(first, first + count)
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), random.normal(size=(count, 4, 6)).astype("f4")),
            "n": (("time", "lat"), random.integers(0, 9, (count, 4))),
            "height": (("lat", "lon"), np.arange(24.0).reshape(4, 6)),
        },
        {"time": time.astype("M8[ns]"), "lat": np.arange(4.0), "lon": np.arange(6) * 2.0},
        {"title": "days"},
    )


def written(folder: Path, name: str, ds: xr.Dataset, **encoding: Any) -> Path:
    path = folder / f"{name}.nc"
    settings = {
        "t": {"zlib": True, "shuffle": True, "chunksizes": (2, 4, 3)},
        "n": {"chunksizes": (2, 4)},
        "time": {"units": EPOCH, "dtype": "i8"},
    }
    settings = {k: v | encoding.get(k, {}) for k, v in settings.items() if k in ds.variables}
    ds.to_netcdf(path, engine="netcdf4", encoding=settings)
    return path


def virtual(path: Path) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path)


def native(paths: Sequence[Path]) -> xr.Dataset:
    parts = [xr.load_dataset(path, engine="netcdf4") for path in paths]
    return xr.concat(
        parts, "time", data_vars="minimal", coords="minimal", compat="override", join="exact"
    )


def opened(target: Path) -> xr.Dataset:
    return xr.open_dataset(target, engine="virtual")


def append(path: Path, target: Path, **how: Any) -> None:
    virtual(path).virtual.to_manifest(target, append_dim="time", **how)


def content(folder: Path) -> dict[str, bytes]:
    """All files of a set."""
    files = [folder] if folder.is_file() else [p for p in folder.rglob("*") if p.is_file()]
    return {str(path): path.read_bytes() for path in files}


@contextmanager
def rival(change: Any, may_come_later: bool = False) -> Iterator[None]:
    """Let another writer make a change once, between what the first one reads and writes.

    A first one that has nothing to write is not met; the other may then come after it.
    """
    changes, judge = [change], writing.check_admissible

    def judged(*given: Any, **more: Any) -> None:
        judge(*given, **more)
        if changes:
            changes.pop()()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "check_admissible", judged)
        yield
    if may_come_later and changes:
        changes.pop()()
    assert not changes
