"""What cf-python does in an environment of its own: it reads, or writes, the files of many cases.

Run as a program: ``python cf_python_side.py FOLDER``. Each folder in it is a case. If it has
``write.json``, its entries are the arguments of `cf.write`, which writes ``agg.nc`` from the fields
of all files whose names are numbers. Then ``agg.nc`` is read, and the values of every variable of
it are written to ``cf.npz``, and their properties to ``cf.json``, or the error to ``cf.txt``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np


def read_all(cf: Any, path: str) -> dict[str, Any]:
    """Return the values of each variable by its name in the file, NaN where there are none."""
    found: dict[str, Any] = {}
    for field in cf.read(path):
        parts = [field, *field.constructs.filter_by_data().values()]
        for part in [*parts, *(p.bounds for p in parts if getattr(p, "has_bounds", bool)())]:
            name = part.nc_get_variable(None)
            if name is None or not hasattr(part, "array"):
                continue
            values = part.array
            if values.dtype.kind in "iuf" and np.ma.is_masked(values):
                values = np.ma.filled(values.astype("f8"), np.nan)
            # netCDF's name of a variable that is no coordinate of the dimension of its name
            found[name.removeprefix("_nc4_non_coord_")] = np.ma.getdata(values)
    return found


def read_properties(cf: Any, path: str) -> dict[str, Any]:
    """Return the properties of each field and construct by its name in the file."""
    found: dict[str, Any] = {}
    for field in cf.read(path):
        for part in [field, *field.constructs.filter_by_data().values()]:
            if (name := part.nc_get_variable(None)) is not None:
                found[name] = {n: str(v) for n, v in part.properties().items()}
    return found


def run(folder: Path) -> None:
    """Do what one case wants."""
    import cf
    import dask

    # the HDF5 of netCDF4 is for one thread, and threads of dask have crashed the process
    dask.config.set(scheduler="synchronous")
    os.chdir(folder)
    try:
        if Path("write.json").exists():
            options = json.loads(Path("write.json").read_text())
            cf.write(cf.read("[0-9].nc", **options.pop("read", {})), "agg.nc", **options)
        found = read_all(cf, "agg.nc")
        Path("cf.json").write_text(json.dumps(read_properties(cf, "agg.nc")))
    except Exception:  # noqa: BLE001
        # the test shows whatever it was
        Path("cf.txt").write_text(traceback.format_exc())
    else:
        np.savez(
            "cf.npz", **{n: v.astype("U") if v.dtype.kind == "O" else v for n, v in found.items()}
        )


if __name__ == "__main__":
    for place in sorted(Path(sys.argv[1]).resolve().iterdir()):
        run(place)
