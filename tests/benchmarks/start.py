"""How long a first call takes: processor seconds of new processes, medians, all calls in turn.

    python tests/benchmarks/start.py [--runs 9]

Every call is a new process, and what other programs do on the machine counts little: seconds are
those of this process alone (user and system), and the calls take turns. The last column is what a
call takes beyond the one that it should cost little more than.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import xarray as xr

import virtualds

OPEN = "import xarray as xr; xr.open_dataset({name!r}, engine={engine!r})"
OPEN_BY_CLASS = "import xarray as xr, virtualds; " + (
    "xr.open_dataset({name!r}, engine=virtualds.VirtualBackendEntrypoint)"
)
OTHERS = "import importlib.metadata as m; " + (
    "[e.load() for e in m.entry_points(group='xarray.backends') if e.name != 'virtual']; "
)
"""xarray loads the engines of all packages for an engine that is not its own."""


def list_calls() -> dict[str, tuple[Sequence[str], str]]:
    """Return the arguments of Python for each call, and which call it is compared with."""
    calls: dict[str, tuple[Sequence[str], str]] = {
        "import xarray": (("-c", "import xarray"), ""),
        "import virtualds": (("-c", "import virtualds"), "import xarray"),
        "virtualds --help": (("-m", "virtualds_cli", "--help"), ""),
        "virtualds info 2001.nc": (("-m", "virtualds_cli", "info", "2001.nc"), "import xarray"),
    }
    for engine in ("netcdf4", "h5netcdf"):
        calls[f"{engine}: 2001.nc"] = (("-c", OPEN.format(name="2001.nc", engine=engine)), "")
    with_others = OTHERS + OPEN.format(name="2001.nc", engine="netcdf4")
    calls["netcdf4, all engines loaded"] = (("-c", with_others), "")
    for name in ("2001.nc", "refs.zarr", "refs.json", "refs.parquet"):
        code = OPEN.format(name=name, engine="virtual")
        calls[f"virtual: {name}"] = (("-c", code), "netcdf4, all engines loaded")
        code = OPEN_BY_CLASS.format(name=name)
        calls[f"virtual, by its class: {name}"] = (("-c", code), "netcdf4: 2001.nc")
    return calls


def make_inputs(folder: Path) -> None:
    """Write a small netCDF-4 file, and sets of it."""
    time = np.datetime64("2001-01-01", "ns") + np.arange(12) * np.timedelta64(30, "D")
    values = np.random.default_rng(0).normal(size=(12, 45, 90)).astype("f4")
    ds = xr.Dataset({"t": (("time", "lat", "lon"), values)}, {"time": time})
    encoding = {"t": {"zlib": True, "chunksizes": (1, 45, 90)}}
    ds.to_netcdf(folder / "2001.nc", engine="netcdf4", encoding=encoding)
    vds = virtualds.open_virtual_dataset(folder / "2001.nc")
    for suffix in (".zarr", ".json", ".parquet"):
        vds.virtual.to_manifest(folder / f"refs{suffix}", mode="w")


def measure(arguments: Sequence[str], folder: Path) -> float:
    """Run Python, and return the seconds that its process took."""
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execv(sys.executable, [sys.executable, *arguments])
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"python {' '.join(arguments)} failed")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    calls = list_calls()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_inputs(folder)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        # the first round compiles modules and fills the page cache
        for number in range(runs + 1):
            for name, (arguments, _) in calls.items():
                taken = measure(arguments, folder)
                seconds[name] += [taken] if number else []
    found = {name: median(taken) for name, taken in seconds.items()}
    for name, (_, other) in calls.items():
        beyond = f"{found[name] - found[other]:+.2f} beyond {other}" if other else ""
        print(f"{name:36} {found[name]:5.2f} s  {beyond}".rstrip())


if __name__ == "__main__":
    main()
