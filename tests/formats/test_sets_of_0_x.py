"""Sets that version 0.x wrote, with other names inside the library, are still read and grow.

`tests/data/sets_of_0_x` holds them as text, with a placeholder for the folder of their sources.
Classic netCDF files of scipy have the same bytes in every version: they are made anew here, with
the time of change that the sets have noted.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy.io import netcdf_file

import virtualds

SETS = Path(__file__).parents[1] / "data" / "sets_of_0_x"
PLACEHOLDER = "file:///SOURCES"
CHANGED_NS = 10**18


def write_source(path: Path, number: int) -> Path:
    """Write the file that the sets call by this number: two days of three heights."""
    with netcdf_file(path, "w", version=2) as file:
        file.title = b"of a test"
        file.createDimension("time", 2)
        file.createDimension("x", 3)
        day = file.createVariable("day", "i4", ("time",))
        day.units = b"days since 2000-01-01"
        day[:] = np.arange(2) + 2 * number
        file.createVariable("height", "f8", ("x",))[:] = [0.5, 1.5, 2.5]
        t = file.createVariable("t", "i2", ("time", "x"))
        t.scale_factor = 0.5
        t.add_offset = 10.0
        t[:] = np.arange(6).reshape(2, 3) + 6 * number
    os.utime(path, ns=(CHANGED_NS, CHANGED_NS))
    return path


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    return [write_source(tmp_path / f"{number}.nc", number) for number in range(3)]


def earlier_set(name: str, folder: Path) -> Path:
    """Return a copy of a set that refers to sources in a folder."""
    if (SETS / name).is_dir():
        shutil.copytree(SETS / name, folder / name)
    else:
        shutil.copy(SETS / name, folder / name)
    for path in [folder / name, *(folder / name).rglob("*")]:
        if path.is_file():
            path.write_text(path.read_text().replace(PLACEHOLDER, folder.as_uri()))
    return folder / name


def native(sources: list[Path]) -> xr.Dataset:
    return xr.concat(
        [xr.load_dataset(path, engine="scipy") for path in sources],
        "time",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="exact",
    )


def of_set(path: Path, **options: str) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path, **options).virtual.load()


def append(path: Path, source: Path) -> None:
    new = virtualds.open_virtual_dataset(source, loadable_variables=[])
    new.virtual.to_manifest(path, append_dim="time")


@pytest.mark.parametrize(("name", "held"), [("kerchunk.json", 1), ("two_snapshots.zarr", 2)])
def test_an_earlier_set_is_read_and_appended_to(
    name: str, held: int, sources: list[Path], tmp_path: Path
) -> None:
    path = earlier_set(name, tmp_path)
    xr.testing.assert_identical(of_set(path), native(sources[:held]))
    append(path, sources[held])
    xr.testing.assert_identical(of_set(path), native(sources[: held + 1]))


def test_earlier_snapshots_are_read_before_and_after_an_append(
    sources: list[Path], tmp_path: Path
) -> None:
    path = earlier_set("two_snapshots.zarr", tmp_path)
    earlier = virtualds.snapshots(path)["snapshot"].to_list()
    assert len(earlier) == 2
    append(path, sources[2])
    assert virtualds.snapshots(path)["snapshot"].to_list()[:2] == earlier
    for count, snapshot in enumerate(earlier, start=1):
        xr.testing.assert_identical(of_set(path, snapshot=snapshot), native(sources[:count]))


def test_an_earlier_tree_is_read_and_its_root_appended_to(
    sources: list[Path], tmp_path: Path
) -> None:
    path = earlier_set("tree.zarr", tmp_path)
    later = native([sources[1]]).rename(time="later", x="place")
    for held in (1, 2):
        xr.testing.assert_identical(of_set(path), native(sources[:held]))
        xr.testing.assert_identical(of_set(path, group="later"), later)
        if held == 1:
            append(path, sources[1])


def test_a_source_that_is_not_what_an_earlier_set_noted_is_refused(
    sources: list[Path], tmp_path: Path
) -> None:
    path = earlier_set("kerchunk.json", tmp_path)
    os.utime(sources[0], ns=(CHANGED_NS + 10**10, CHANGED_NS))
    of_set(path)
    os.utime(sources[0], ns=(CHANGED_NS, CHANGED_NS + 10**10))
    with pytest.raises(virtualds.ReadError, match=r"0\.nc"):
        of_set(path)
