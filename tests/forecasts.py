"""An archive of forecasts whose files come one by one, and the plain arrays that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import virtualds

INITS, LEADS, MEMBERS = 3, 4, 2
Cell = tuple[int, int, int]
"""Number of the initial time, first lead time, and member."""
LEADS_IN_FILE = 2
CELLS: list[Cell] = list(product(range(INITS), range(0, LEADS, LEADS_IN_FILE), range(MEMBERS)))
REGION = {"init": "auto", "lead": "auto", "member": "auto"}


def coordinates() -> dict[str, Any]:
    return {
        "init": pd.date_range("2024-01-01", periods=INITS, freq="6h"),
        "lead": np.arange(LEADS) * 6,
        "member": np.arange(MEMBERS),
    }


@dataclass(frozen=True)
class Forecasts:
    """Files of one initial time, two lead times and one member each."""

    folder: Path

    def values(self) -> xr.Dataset:
        """All values, as plain arrays."""
        shape = (INITS, LEADS, MEMBERS, 4, 6)
        random = np.random.default_rng(5)
        packed = random.integers(-300, 300, shape).astype("i2")
        return xr.Dataset(
            {
                "t2m": (("init", "lead", "member", "y", "x"), random.random(shape, "f4")),
                "rain": (("init", "lead", "member", "y", "x"), packed * 0.5),
                "valid": (
                    ("init", "lead", "member"),
                    random.random(shape[:3]),
                    {"long_name": "no index"},
                ),
            },
            {**coordinates(), "y": np.arange(4.0), "x": np.arange(6.0)},
        )

    def path(self, cell: Cell, **other: Any) -> Path:
        """The file of a cell; ``other`` changes how ``t2m`` is stored, or ``rain`` in it that."""
        described = "".join(f"-{name}={value}" for name, value in other.items())
        path = self.folder / f"{'-'.join(map(str, cell))}{described}.nc"
        if not path.exists():
            how: dict[str, Any] = {"zlib": True, "shuffle": True, "chunksizes": (1, 1, 1, 4, 6)}
            packed = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": np.int16(-999)}
            encoding = {
                "t2m": how | {name: value for name, value in other.items() if name != "rain"},
                "rain": how | other.get("rain", packed),
                "valid": {"chunksizes": (1, 1, 1), "_FillValue": None},
                "init": {"units": "hours since 2024-01-01", "dtype": "i4"},
            }
            self.of(cell).to_netcdf(path, engine="netcdf4", encoding=encoding)
        return path

    def of(self, cell: Cell) -> xr.Dataset:
        """The values of a cell."""
        init, lead, member = cell
        return self.values().isel(
            init=[init], lead=slice(lead, lead + LEADS_IN_FILE), member=[member]
        )

    def virtual(self, cell: Cell, **other: Any) -> xr.Dataset:
        """The file of a cell, opened virtually."""
        path = self.path(cell, **other)
        found = virtualds.open_virtual_dataset(path, loadable_variables=["init", "lead", "member"])
        return found.drop_vars(["y", "x"])

    def template(self) -> xr.Dataset:
        """All coordinates, and no references."""
        return virtualds.template(virtualds.open_virtual_dataset(
            self.path((0, 0, 0)), loadable_variables=["init", "lead", "member", "y", "x"]
        ), coordinates())  # fmt: skip

    def expected(self, cells: list[Cell]) -> xr.Dataset:
        """What a set has when some cells are filled."""
        found = self.values()
        filled = np.zeros((INITS, LEADS, MEMBERS), bool)
        for init, lead, member in cells:
            filled[init, lead : lead + LEADS_IN_FILE, member] = True
        mask = xr.DataArray(filled, dims=("init", "lead", "member"))
        return found.where(mask)


def fill(url: Any, cell: xr.Dataset, **how: Any) -> None:
    cell.virtual.to_manifest(url, region=REGION, **how)


def iterate_names(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
