"""A small archive of real files, and what is done with each, for processes that import little."""

from pathlib import Path

import numpy as np
import xarray as xr


def write(path: Path, number: int) -> None:
    """Write ``v(time, x)`` and its coordinates."""
    ds = xr.Dataset(
        {"v": (("time", "x"), number + np.arange(8.0).reshape(2, 4)), "s": 1.5},
        {"time": [2.0 * number, 2.0 * number + 1], "x": np.arange(4)},
        {"title": "a small archive"},
    )
    ds.to_netcdf(path, encoding={"v": {"chunksizes": (1, 4)}})


def halved(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.isel(x=slice(2)).assign_attrs(history="halved")


def refusing(dataset: xr.Dataset, first: float) -> xr.Dataset:
    if dataset["time"].values[0] >= first:
        raise KeyError(f"nothing at {dataset['time'].values[0]}")
    return dataset
