"""Files of some days each: what may differ between the files of an archive, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

FILES = 5


def day(number: int, steps: int = 2, **more: Any) -> xr.Dataset:
    """Some steps of a field, with what does not depend on time."""
    time = 10.0 * number + np.arange(float(steps))
    field = number + np.arange(steps * 4.0).reshape(steps, 4)
    fixed = {"mask": ("x", np.arange(4)), "x_bnds": (("x", "nv"), np.arange(8.0).reshape(4, 2))}
    coords = {
        "time": ("time", time, {"units": "days since 2000-01-01"}),
        "x": ("x", [0.0, 0.5, 1.0, 1.5], {"bounds": "x_bnds"}),
        "height": 2.0,
    }
    made = xr.Dataset({"v": (("time", "x"), field), **fixed}, coords, {"title": "days"})
    return made.assign(more)


def at(values: Any, **attributes: Any) -> Any:
    return ("time", np.asarray(values), {"units": "days since 2000-01-01", **attributes})


def timed(number: int, values: Any, **attributes: Any) -> xr.Dataset:
    return day(number).assign_coords(time=at(values, **attributes))


Make = Callable[[int], xr.Dataset]
ALIKE: dict[str, Make] = {
    "days": day,
    "months of different lengths": lambda n: day(n, steps=2 + n % 3),
    "whole hours": lambda n: timed(n, [24 * n, 24 * n + 1], units="hours since 1900-01-01"),
    "whole hours as floats of 4 bytes": lambda n: timed(
        n, np.array([24 * n, 24 * n + 1], "f4"), units="hours since 1900-01-01"
    ),
    "fractions of a day": lambda n: timed(n, [n, n + 1 / 3]),
    "some fractions of a day, some whole": lambda n: timed(n, [n, n + (0.1 if n == 3 else 0.5)]),
    "seconds with nanoseconds": lambda n: timed(
        n, [n + 1e-9, n + 0.123456789], units="seconds since 2000-01-01"
    ),
    "units that differ": lambda n: timed(n, [n, n + 0.5], units=f"days since {2000 + n}-01-01"),
    "bounds that count from their own day": lambda n: timed(
        n, [0, 1], units=f"days since 2000-01-{2 * n + 1:02}", bounds="time_bnds"
    ).assign(time_bnds=(("time", "nv"), np.array([[0, 1], [1, 2]]))),
    "halves of days, and seconds, of their own": lambda n: timed(
        n, [0.0, 0.5], units=f"days since 2000-0{2 + n}-29 0{n % 2}:30:00"
    ).assign(seen=at([5, 6 + n], units=f"seconds since {1995 + n}-12-31 23:59:59")),
    "another calendar of their own years": lambda n: timed(
        n, [360 * n % 7, 360 + n], units=f"days since {2000 + 2 * n}-02-30", calendar="360_day"
    ),
    "dates in other words": lambda n: timed(n, [3, 4], units=f"days since {2000 + n}-1-1T0:0"),
    "dates that are missing": lambda n: day(n, seen=at([n, np.nan if n == 2 else n])),
    "dates with a fill value": lambda n: day(
        n, seen=at([n, -999 if n == 2 else n], _FillValue=-999)
    ),
    "durations": lambda n: day(n, since=("time", [n, n + 0.25], {"units": "hours"})),
    "another calendar": lambda n: timed(n, [30 * n, 30 * n + 1], calendar="360_day"),
    "packed": lambda n: day(
        n, p=("time", np.array([n, -1], "i2"), {"scale_factor": 0.1, "_FillValue": -1})
    ),
    "packed, and loaded": lambda n: day(n).assign_coords(
        p=("time", np.array([n, -1], "i2"), {"scale_factor": 0.1, "_FillValue": -1})
    ),
    "characters": lambda n: day(n).assign_coords(name=("time", np.array([f"a{n}", "b"], "S2"))),
    "flags": lambda n: day(n, ok=("time", np.array([n % 2, 1], "i1"), {"dtype": "bool"})),
    "no coordinate along time": lambda n: day(n).drop_vars("time"),
    "descriptions of the day": lambda n: day(n).assign_attrs(history=f"made on day {n}"),
    "falling times, kept so": lambda n: timed(n, [-2.0 * n, -2.0 * n - 1]),
}
UNLIKE: dict[str, Make] = {
    "strings of any length": lambda n: day(n).assign_coords(name=("time", [f"name{n}", f"{n}"])),
    "a scalar that differs": lambda n: day(n).assign_coords(height=2.0 + n),
    "a mask that differs": lambda n: day(n, mask=("x", np.arange(4) * n)),
    "a mask that differs late": lambda n: day(n, mask=("x", np.arange(4) * (n // 4))),
    "another length of x": lambda n: day(n).isel(x=slice(3 + (n == 3))),
    "other elements of x": lambda n: day(n).assign_coords(x=[0.0, 1.0, 2.0, 3.0 + n // 3]),
    "a variable more": lambda n: day(n, **({"w": ("time", [1.0, 2.0])} if n == 3 else {})),
    "an axis less": lambda n: day(n) if n != 1 else day(n).drop_vars("x"),
    "nothing at all": lambda n: day(n) if n != 1 else xr.Dataset(),
    "a variable as a coordinate": lambda n: day(n).set_coords("v" if n == 3 else []),
    "another type": lambda n: day(n, w=("time", np.array([1, 2], "i2" if n == 3 else "i4"))),
    "a date that no other type holds": lambda n: timed(
        n, [1e6 * (n == 3) + n, 1e6 * (n == 3) + n + 1]
    ),
    "units that are no dates in one": lambda n: day(
        n, w=at([1, 2], units="metres of this height" if n == 3 else "days since 2000-01-01")
    ),
    "dates of other centuries": lambda n: timed(
        n, [1, 2], units=f"days since {1000 + 300 * n}-01-01", calendar="proleptic_gregorian"
    ),
    "strings of other lengths": lambda n: day(n).assign_coords(
        name=("time", np.array(["a" * (n + 1), "b"], "S"))
    ),
}
CASES = {**ALIKE, **UNLIKE}
FilesOf = Callable[[str], list[Path]]
"""Returns the files of a case."""


def write(folder: Path, make: Make) -> list[Path]:
    paths = [folder / f"{number}.nc" for number in range(FILES)]
    for number, path in enumerate(paths):
        make(number).to_netcdf(path)
    return paths
