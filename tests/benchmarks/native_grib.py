"""What cfgrib finds in GRIB files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import xarray as xr
from found import Found

ROW_ORDER, *COUNTS = KEYS = ("alternativeRowScanning", "Nj", "Ni")
"""Keys of ecCodes that tell where values lie, for which cfgrib is asked besides."""
NOT_COMPARED = {"history", "coordinates", *(f"GRIB_{key}" for key in KEYS)}
"""Attributes that say how cfgrib was called, and what xarray makes coordinates of."""


def read_grib(path: Path) -> Iterator[Found]:
    """Yield the variables of all datasets of a file, each dataset with a number as its group."""
    for number, dataset in enumerate(open_datasets(path)):
        yield Found(str(number), "", attributes=select_attributes(dataset))
        for name, variable in dataset.variables.items():
            attributes = select_attributes(variable)
            yield Found(str(number), str(name), order_points(variable), attributes)


def open_datasets(path: Path) -> list[xr.Dataset]:
    """Return the one dataset that cfgrib makes of a file of one type of level, else all."""
    import cfgrib

    how: dict[str, Any] = {
        "backend_kwargs": {
            "indexpath": "",
            "errors": "raise",
            "read_keys": KEYS,
        },
        "decode_timedelta": True,
    }
    with suppress(Exception):
        one = xr.open_dataset(path, engine="cfgrib", **how).load()
        if len({array.attrs.get("GRIB_typeOfLevel") for array in one.data_vars.values()}) == 1:
            return [one]
    return [dataset.load() for dataset in cfgrib.open_datasets(path, **how)]


def select_attributes(owner: Any) -> dict[Any, Any]:
    """Return the attributes that a file has without regard to who reads it."""
    return {name: value for name, value in owner.attrs.items() if name not in NOT_COMPARED}


def order_points(variable: xr.Variable) -> Any:
    """Return values where ecCodes' iterator puts them; cfgrib takes them for rows as they come."""
    values, keys = variable.values, variable.attrs
    if values.ndim > 1 and keys.get("GRIB_jPointsAreConsecutive"):
        # columns (flag 0x20 of the scanning mode)
        *more, ny, nx = values.shape
        return values.reshape(*more, nx, ny)
    if keys.get(f"GRIB_{ROW_ORDER}") and keys["GRIB_gridType"] == "mercator":
        # rows to and fro (flag 0x10), which ecCodes turns itself in other grids
        rows = values.reshape(-1, *(keys[f"GRIB_{name}"] for name in COUNTS)).copy()
        rows[:, 1::2] = rows[:, 1::2, ::-1]
        return rows.reshape(values.shape)
    return values
