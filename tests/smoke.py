"""Try an installed virtualds: the main job, on two files, with nothing but its own dependencies.

Run it as ``python -I tests/smoke.py``: ``-I`` keeps the checkout out, so that the installed package
is tried. ``make dist`` does so with the wheel and with the source of the packages that it builds.
"""

import platform
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

import h5py
import numpy as np
import xarray as xr

import virtualds

SCALE = 0.01
LAT = np.array([-45.0, 0.0, 45.0])
MONTHS = {"2001-01.nc": (0, 31, 4), "2001-02.nc": (31, 28, 5)}
"""By file: its first day, its days, its level of compression. A month is a chunk."""


def count_up(first: int, days: int) -> np.ndarray:
    """The stored numbers of some days: each number occurs once."""
    return np.arange(first * 3, (first + days) * 3, dtype="<i2").reshape(days, 3)


def write_month(path: Path, first: int, days: int, level: int) -> None:
    """Write a file of netCDF4's form with h5py, which virtualds depends on."""
    with h5py.File(path, "w") as file:
        file["time"] = np.arange(first, first + days)
        file["time"].attrs["units"] = "days since 2001-01-01"
        file["lat"] = LAT
        stored = file.create_dataset(
            "t2m", data=count_up(first, days), chunks=(days, 3), compression=level, shuffle=True
        )
        stored.attrs["scale_factor"] = SCALE
        for axis, name in enumerate(("time", "lat")):
            file[name].make_scale(name)
            stored.dims[axis].attach_scale(file[name])


def check_dataset(ds: xr.Dataset) -> None:
    np.testing.assert_array_equal(ds["t2m"].values, count_up(0, 59) * SCALE, strict=True)
    np.testing.assert_array_equal(ds["lat"].values, LAT, strict=True)
    days = np.datetime64("2001-01-01") + np.arange(59)
    np.testing.assert_array_equal(ds["time"].values, days)


def run_program(*arguments: str) -> str:
    """Run the installed command, and return what it prints."""
    program = Path(sysconfig.get_path("scripts")) / "virtualds"
    return subprocess.run(
        [program, *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def do_the_main_job(folder: Path) -> None:
    for name, month in MONTHS.items():
        write_month(folder / name, *month)
    references = folder / "refs.zarr"
    files = sorted(folder.glob("*.nc"))
    vds = virtualds.open_virtual_mfdataset(files, combine="nested", concat_dim="time")
    vds.virtual.to_manifest(references)
    with xr.open_dataset(references, engine="virtual") as ds:
        check_dataset(ds)
    with xr.open_dataset(references, engine="virtual", chunks={}) as ds:
        check_dataset(ds)
    shown = run_program("info", str(references))
    assert "t2m" in shown, shown


def main() -> None:
    if not Path(virtualds.__file__).is_relative_to(sysconfig.get_path("purelib")):
        sys.exit(f"{virtualds.__file__} is not installed: run `python -I {__file__}`")
    installed = version("virtualds")
    assert installed in run_program("--version")
    with tempfile.TemporaryDirectory() as folder:
        do_the_main_job(Path(folder))
    print(f"virtualds {installed} works on Python {platform.python_version()}")


if __name__ == "__main__":
    main()
