"""Write an aggregation file of many netCDF files, open it, and append one file.

Prints processor seconds, bytes and the most memory, for ``--files`` of ``--variables`` each. The
files are really there, since each is opened when the set is written, and when it is read. Each step
is a process of its own; ``refs.zarr`` of the same files is beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS = {
    "scan": "whole()",
    "write": "dataset = whole()\nbegin()\ndataset.virtual.to_manifest(target)",
    "open": "opened = xr.open_dataset(target, engine='virtual', decode_times=False)",
    "append": "part('later.nc').virtual.to_manifest(target, append_dim='time')",
}
PROGRAM = """
import json, resource, sys, time, warnings
import xarray as xr
import virtualds
from virtualds.backend import VirtualBackendEntrypoint

warnings.simplefilter("ignore")
target, begun = sys.argv[1], [time.process_time()]

def begin():
    begun.append(time.process_time())

def part(path):
    return virtualds.open_virtual_dataset(path)

def whole():
    how = dict(combine="nested", concat_dim="time", parallel=1)
    return virtualds.open_virtual_mfdataset("archive/*.nc", **how)

begin()
{step}
seconds = time.process_time() - begun[-1]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([round(seconds, 1), round(peak)]))
"""


def write_archive(folder: Path, files: int, variables: int) -> None:
    """Write files of one step; they are copies of one, with another time."""
    import h5py
    import numpy as np
    import xarray as xr

    fields = {f"v{n}": (("time", "x"), np.full((1, 8), float(n))) for n in range(variables)}
    first = xr.Dataset(fields, {"time": ("time", [0.0], {"units": "days since 2000-01-01"})})
    first.to_netcdf(folder / "first.nc", engine="netcdf4")
    content = (folder / "first.nc").read_bytes()
    (folder / "archive").mkdir()
    names = [*(f"archive/{n:06}.nc" for n in range(files)), "later.nc"]
    for number, name in enumerate(names):
        (folder / name).write_bytes(content)
        with h5py.File(folder / name, "r+") as file:
            file["time"][0] = number


def run(folder: Path, step: str, target: str) -> tuple[float, int]:
    """Return processor seconds and megabytes of one step."""
    code = PROGRAM.replace("{step}", STEPS[step])
    command = [sys.executable, "-c", code, target]
    found = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE)
    seconds, peak = json.loads(found.stdout)
    return seconds, peak


def main() -> None:
    """Measure all steps."""
    given: Any = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--files", type=int, default=10_000)
    given.add_argument("--variables", type=int, default=2)
    options = given.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_archive(folder, options.files, options.variables)
        print(f"scan: {run(folder, 'scan', 'none')} s, MB")
        for target in ("refs.nca", "refs.zarr"):
            for step in ("write", "open", "append"):
                print(f"{target} {step}: {run(folder, step, target)} s, MB")
        print(f"refs.nca: {(folder / 'refs.nca').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
