"""xarray's own backend tests, with files written by netCDF4 and read by ``engine="virtual"``.

Every test of `xarray.tests.test_backends.TestNetCDF4Data` (which is `NetCDF4Base` and what it
inherits) runs twice: reading the netCDF file itself, and reading kerchunk JSON made from it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import xarray as xr
from xarray.tests import test_backends
from xarray.tests.conftest import time_unit, use_dask
from xarray.tests.test_backends import DatasetIOBase
from xarray.tests.test_backends import TestNetCDF4Data as NetCDF4Suite

from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.formats.kerchunk import json

__all__ = ["time_unit", "use_dask"]

pytestmark = pytest.mark.filterwarnings("default")

# Importing xarray's tests sets this for the whole process, so that what other tests leave open
# would fail them in a run of all tests only.
xr.set_options(warn_for_unclosed_files=False)

xarray_open_dataset = xr.open_dataset


def _ours(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without those that only the netCDF4 engine knows."""
    return {n: v for n, v in options.items() if n not in ("engine", "auto_complex")}


def open_directly(path: Any, **options: Any) -> xr.Dataset:
    """Open a netCDF file by ``engine="virtual"``."""
    return xarray_open_dataset(path, engine="virtual", **_ours(options))


def open_through_kerchunk(path: Any, **options: Any) -> xr.Dataset:
    """Write kerchunk JSON of a netCDF file, and open that by ``engine="virtual"``."""
    group = options.get("group")
    tree = open_group(Location.of(path), OpenOptions(group))
    for part in reversed(group.strip("/").split("/") if group else []):
        tree = ManifestGroup(groups={part: tree})
    refs = f"{os.fspath(path)}.json"
    json.write(tree, f"file://{refs}")
    return xarray_open_dataset(refs, engine="virtual", **_ours(options))


class VirtualSuite(NetCDF4Suite):
    """The suite with another way to open files."""

    opener: Callable[..., xr.Dataset]

    @pytest.fixture(autouse=True)
    def _open_by_us(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(test_backends, "open_dataset", self.opener)
        with xr.set_options(warn_for_unclosed_files=True):
            yield

    @contextlib.contextmanager
    def open(self, path: Any, **options: Any) -> Iterator[xr.Dataset]:
        with self.opener(path, **options) as dataset:
            yield dataset

    # netCDF backends cannot load asynchronously, and so skip this test; we can
    test_load_async = DatasetIOBase.test_load_async


class TestDirectly(VirtualSuite):
    """netCDF files themselves."""

    opener = staticmethod(open_directly)


# one in three: how a set is decoded is the same code
@pytest.mark.sampled(3)
class TestThroughKerchunk(VirtualSuite):
    """kerchunk JSON made from netCDF files."""

    opener = staticmethod(open_through_kerchunk)


# the suite itself is xarray's to run
del NetCDF4Suite, VirtualSuite
