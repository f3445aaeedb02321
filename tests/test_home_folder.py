"""``~`` is the home folder wherever a path is given."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds import open_virtual_dataset, open_virtual_mfdataset


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with two files, an archive and a set; the working folder is another one."""
    found, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    found.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("HOME", str(found))
    monkeypatch.setenv("USERPROFILE", str(found))
    monkeypatch.chdir(elsewhere)
    for number in range(2):
        x = np.arange(3) + 3 * number
        xr.Dataset({"v": ("x", x * 1.0), "x": x}).to_netcdf(found / f"{number}.nc")
    with zipfile.ZipFile(found / "a.zip", "w") as archive:
        archive.write(found / "0.nc", "0.nc")
    open_virtual_dataset(found / "0.nc").virtual.to_manifest(found / "refs.zarr")
    return found


BOTH = ["~/0.nc", "~/1.nc"]
USES: dict[str, Callable[[], object]] = {
    "a file": lambda: open_virtual_dataset("~/0.nc"),
    "a file in an archive": lambda: open_virtual_dataset("zip://0.nc::~/a.zip"),
    "an engine": lambda: xr.open_dataset("~/refs.zarr", engine="virtual").load(),
    "a tree": lambda: virtualds.open_virtual_datatree("~/0.nc"),
    "a pattern": lambda: open_virtual_mfdataset("~/*.nc"),
    "files": lambda: open_virtual_mfdataset(BOTH),
    "a cache": lambda: open_virtual_mfdataset(BOTH, cache="~/cache"),
    "a target": lambda: open_virtual_mfdataset(BOTH, to="~/to.zarr"),
    "allow": lambda: open_virtual_dataset("~/refs.zarr", allow="~"),
    **{
        f"a set {suffix}": lambda suffix=suffix: open_virtual_dataset("~/0.nc").virtual.to_manifest(
            f"~/new{suffix}"
        )
        for suffix in (".json", ".parquet", ".zarr")
    },
    "a copy": lambda: open_virtual_dataset("~/0.nc").virtual.materialize("~/own.zarr"),
    "a conversion": lambda: virtualds.convert("~/refs.zarr", "~/converted.json"),
    "snapshots": lambda: virtualds.snapshots("~/refs.zarr"),
    "a diagnosis": lambda: virtualds.diagnose("~/*.nc"),
}


@pytest.mark.parametrize("use", USES)
def test_the_home_folder_is_meant(use: str, home: Path) -> None:
    USES[use]()
    # nothing was written into a folder of that name
    assert not list(Path.cwd().iterdir())
