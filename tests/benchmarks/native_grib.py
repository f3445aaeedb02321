"""What cfgrib finds in GRIB files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from found import Found

OF_READING = {"history", "coordinates"}
"""Attributes that say how cfgrib was called, and what xarray makes coordinates of."""
ROW_ORDER = "GRIB_alternativeRowScanning"


def read_grib(path: Path) -> Iterator[Found]:
    """Yield the variables of all datasets of a file, each dataset with a number as its group."""
    for number, dataset in enumerate(open_datasets(path)):
        yield Found(str(number), "", attributes=select_attributes(dataset))
        for name, variable in dataset.variables.items():
            attributes = select_attributes(variable)
            yield Found(str(number), str(name), order_points(variable), attributes)


def open_datasets(path: Path) -> list[xr.Dataset]:
    """Return the one dataset that cfgrib makes of a file; where it cannot, all of them."""
    import cfgrib

    how: dict[str, Any] = {
        "backend_kwargs": {"indexpath": "", "errors": "raise", "read_keys": [ROW_ORDER[5:]]},
        "decode_timedelta": True,
    }
    with suppress(Exception):
        return [xr.open_dataset(path, engine="cfgrib", **how).load()]
    return [dataset.load() for dataset in cfgrib.open_datasets(path, **how)]


def select_attributes(owner: Any) -> dict[Any, Any]:
    """Return the attributes that a file has without regard to who reads it."""
    return {
        name: value for name, value in owner.attrs.items() if name not in {*OF_READING, ROW_ORDER}
    }


def order_points(variable: xr.Variable) -> Any:
    """Return values where ecCodes' iterator puts them, which cfgrib leaves as they are coded.

    Points by columns (flag 0x20 of the scanning mode) come as if they were rows; rows to and fro
    (flag 0x10) are turned by ecCodes itself for some grids only.
    """
    values = variable.values
    if variable.attrs.get("GRIB_jPointsAreConsecutive") and values.ndim > 1:
        *more, ny, nx = values.shape
        values = np.swapaxes(values.reshape(*more, nx, ny), -1, -2)
    return values
