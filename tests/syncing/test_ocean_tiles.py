"""Nights of an ocean model that writes a file for each month and tile, and is started again.

Files are those of NEMO, of which every process of XIOS writes its part (``type="multiple_file"``):
dimensions without coordinates, and attributes ``DOMAIN_...`` that say where a part lies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from nights import assert_same_bits, date, opened_below

import virtualds

ROWS, COLUMNS, LEVELS = (0, 5, 9), (0, 6, 12, 17), 3
"""Edges of six tiles, which differ in size as the processes of a model do."""
TILES = range(6)
VARIABLES = {"T": ("thetao", "zos"), "U": ("uo",)}
STEPS = 6
MEANT = ("units", "calendar", "bounds", "coordinates")
"""Attributes of which xarray makes something."""
PATTERN = "output/{run}/ORCA2_5d_{begin}_{end}_grid_{grid}_{tile}.nc"


def place(axis: int) -> Any:
    """Return what makes the coordinate of a dimension of what XIOS says of a file."""

    def coordinate(url: str, ds: xr.Dataset) -> Any:
        first = ds.attrs["DOMAIN_position_first"][axis] - 1
        return np.arange(first, first + ds.attrs["DOMAIN_size_local"][axis])

    return coordinate


@dataclass
class Ocean:
    """The files of the model, and the set that follows them."""

    folder: Path
    written: int = 0
    natively: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def publish(
        self, run: int, month: int, tiles: Iterable[int] = TILES, grids: str = "TU", first: int = 0
    ) -> list[Path]:
        """Write some tiles of a month, or of its last steps."""
        paths = []
        for tile in tiles:
            for grid in grids:
                name = f"ORCA2_5d_2000{month:02}{1 + 5 * first:02}_2000{month:02}30_grid_{grid}"
                path = self.folder / f"output/run_{run}/{name}_{tile:04}.nc"
                path.parent.mkdir(parents=True, exist_ok=True)
                self.written += 1
                write_tile(
                    path, tile, grid, 30 * (month - 1) + 5 * np.arange(first, STEPS), self.written
                )
                paths.append(date(path))
        return paths

    def sync(self, **more: Any) -> virtualds.SyncReport:
        """One night; nothing is opened but what is new or has changed."""
        how: Any = {
            "concat_dim": ["time_counter", "y", "x"],
            "coordinates": {"x": place(0), "y": place(1)},
            "newest": "run",
            "tree": "/grid_{grid}",
            "on_removed": "drop",
            "on_error": "collect",
            "settle": 0,
            **more,
        }
        with opened_below(self.folder / "output") as opened:
            done = virtualds.sync(f"{self.folder}/{PATTERN}", self.folder / "ocean.zarr", **how)
        urls = {*done.added, *done.replaced, *(lost.url for lost in done.failed)}
        assert urls == {path.as_uri() for path in opened}
        return done

    def check(self, *without: Path) -> int:
        """The set is what netCDF4 reads of the newest files; give the number of its times."""
        newest = {}
        for path in sorted((self.folder / "output").glob("*/*.nc")):
            if path not in without:
                newest[path.name] = path
        with xr.open_datatree(self.folder / "ocean.zarr", engine="virtual") as tree:
            for grid in (node.name[-1] for node in tree.leaves):
                paths = [path for name, path in newest.items() if f"grid_{grid}" in name]
                expected = self.read_natively(grid, paths)
                found = tree[f"grid_{grid}"].to_dataset().load()
                assert_same_bits(found, expected, attributes=False)
        return found.sizes["time_counter"]

    def read_natively(self, grid: str, paths: list[Path]) -> xr.Dataset:
        """What netCDF4 reads of tiles, put where they belong; what no tile has is missing."""
        parts = [self.load(path) for path in paths]
        seconds = np.unique(np.concatenate([part["time_counter"] for part in parts]))
        sizes = {
            "time_counter": len(seconds),
            "y": ROWS[-1],
            "x": COLUMNS[-1],
            f"depth{grid.lower()}": LEVELS,
        }
        sizes |= {"axis_nbounds": 2}
        made: dict[str, Any] = {}
        for part in parts:
            for name, (dims, values, attrs) in part["variables"].items():
                shape = [sizes[dim] for dim in dims]
                whole = made.setdefault(name, (dims, np.full(shape, np.nan, values.dtype), attrs))[
                    1
                ]
                at = {"time_counter": np.searchsorted(seconds, part["time_counter"])}
                for dim, axis in (("x", 0), ("y", 1)):
                    at[dim] = part["first"][axis] + np.arange(part["size"][axis])
                whole[np.ix_(*(at.get(dim, np.arange(sizes[dim])) for dim in dims))] = values
        ds = xr.Dataset(made).assign_coords(x=np.arange(sizes["x"]), y=np.arange(sizes["y"]))
        return xr.decode_cf(ds.set_coords(["x", "y"]))

    def load(self, path: Path) -> dict[str, Any]:
        key = path, path.stat().st_mtime_ns
        if key not in self.natively:
            with netCDF4.Dataset(path) as file:
                file.set_auto_mask(False)
                variables = {
                    name: (
                        v.dimensions,
                        v[...],
                        {k: v.getncattr(k) for k in v.ncattrs() if k in MEANT},
                    )
                    for name, v in file.variables.items()
                }
                self.natively[key] = {
                    "variables": variables,
                    "time_counter": variables["time_counter"][1],
                    "first": file.DOMAIN_position_first - 1,
                    "size": file.DOMAIN_size_local,
                }
        return self.natively[key]


def write_tile(path: Path, tile: int, grid: str, days: Any, seed: int) -> None:
    row, column = divmod(tile, len(COLUMNS) - 1)
    y, x = np.arange(*ROWS[row : row + 2]), np.arange(*COLUMNS[column : column + 2])
    rng = np.random.default_rng(seed)
    depth = f"depth{grid.lower()}"
    with netCDF4.Dataset(path, "w") as file:
        sizes = {"axis_nbounds": 2, "x": len(x), "y": len(y), depth: LEVELS, "time_counter": None}
        for name, size in sizes.items():
            file.createDimension(name, size)
        file.setncatts(
            {
                "name": path.stem,
                "Conventions": "CF-1.6",
                "DOMAIN_number_total": np.int32(len(TILES)),
                "DOMAIN_number": np.int32(tile),
                "DOMAIN_dimensions_ids": np.array([2, 3], "i4"),
                "DOMAIN_size_global": np.array([COLUMNS[-1], ROWS[-1]], "i4"),
                "DOMAIN_size_local": np.array([len(x), len(y)], "i4"),
                "DOMAIN_position_first": np.array([x[0] + 1, y[0] + 1], "i4"),
                "DOMAIN_position_last": np.array([x[-1] + 1, y[-1] + 1], "i4"),
                "DOMAIN_type": "box",
            }
        )
        lat, lon = np.meshgrid(-60.0 + 10 * y, -180.0 + 16 * x, indexing="ij")
        for name, values in (("nav_lat", lat + lon / 100), ("nav_lon", lon)):
            file.createVariable(name, "f4", ("y", "x"))[:] = values
        file.createVariable(depth, "f4", (depth,))[:] = [5, 50, 500]
        middle = (days + 2.5) * 86400.0
        for name in ("time_counter", "time_centered"):
            made = file.createVariable(name, "f8", ("time_counter",), chunksizes=(1,))
            made.setncatts(
                {
                    "units": "seconds since 1900-01-01 00:00:00",
                    "calendar": "360_day",
                    "bounds": f"{name}_bounds",
                }
            )
            made[:] = middle
            bounds = file.createVariable(
                f"{name}_bounds", "f8", ("time_counter", "axis_nbounds"), chunksizes=(1, 2)
            )
            bounds[:] = middle[:, None] + [-216000, 216000]
        for name in VARIABLES[grid]:
            dims = ("time_counter", *([] if name == "zos" else [depth]), "y", "x")
            shape = [len(days), *(sizes[dim] for dim in dims[1:])]
            made = file.createVariable(
                name,
                "f4",
                dims,
                zlib=True,
                complevel=1,
                chunksizes=(1, *shape[1:]),
                fill_value=np.float32(1e20),
            )
            made.coordinates = "time_centered nav_lat nav_lon"
            made.set_auto_mask(False)
            made[:] = rng.normal(10, 5, shape).astype("f4")


# some seconds of processor time: 54 files
@pytest.mark.full
def test_tiles_come_late_or_broken_and_runs_are_started_again(tmp_path: Path) -> None:
    ocean = Ocean(tmp_path)
    # a month, of which a tile is late
    ocean.publish(1, 1, [tile for tile in TILES if tile != 4])
    assert len(ocean.sync().added) == 10
    assert ocean.check() == 6
    # the tile, and another month, of which the transfer of a tile broke off
    ocean.publish(1, 1, [4])
    broken, *_ = reversed(ocean.publish(1, 2))
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-3000])
    done = ocean.sync()
    assert (len(done.added), [lost.url for lost in done.failed]) == (13, [broken.as_uri()])
    assert ocean.check(broken) == 12
    # the tile is whole, and the next month
    broken.write_bytes(whole)
    date(broken)
    ocean.publish(1, 3)
    assert len(ocean.sync().added) == 13
    assert ocean.check() == 18
    quiet = ocean.sync()
    assert (quiet.is_written, quiet.unchanged) == (False, 36)
    # started again from the end of the second month, and gone on
    ocean.publish(2, 3)
    ocean.publish(2, 4, grids="T")
    done = ocean.sync()
    assert (len(done.added), len(done.dropped), len(done.shadowed)) == (18, 12, 12)
    ocean.check()
    # a tile of the first month is gone
    (tmp_path / "output/run_1/ORCA2_5d_20000101_20000130_grid_U_0003.nc").unlink()
    assert len(ocean.sync().dropped) == 1
    ocean.check()


def test_a_restart_within_a_month_is_refused_and_names_both_files(tmp_path: Path) -> None:
    ocean = Ocean(tmp_path)
    before = ocean.publish(1, 1, grids="T")
    ocean.sync()
    # the second run began in the middle of the month, so its files are no versions of the first
    after = ocean.publish(2, 1, grids="T", first=3)
    with pytest.raises(virtualds.CombineError) as error:
        ocean.sync()
    assert after[0].name in str(error.value) and before[0].name in str(error.value)
    ocean.check(*after)
    # unless the later run counts where both have something
    done = ocean.sync(overlap="last")
    assert len(done.added) == len(TILES)
    ocean.check()


# some seconds of processor time
@pytest.mark.full
def test_a_restart_within_a_month_comes_tile_by_tile_and_goes_again(tmp_path: Path) -> None:
    ocean = Ocean(tmp_path)
    ocean.publish(1, 1)
    ocean.publish(1, 2, [tile for tile in TILES if tile != 3])
    ocean.sync(overlap="last")
    ocean.check()
    # the second run began in the middle of the second month, and some of its tiles are late
    ocean.publish(2, 2, range(3), first=2)
    done = ocean.sync(overlap="last")
    assert (len(done.added), done.shadowed) == (6, ())
    ocean.check()
    ocean.publish(2, 2, range(3, 6), first=2)
    ocean.publish(1, 2, [3])
    ocean.publish(2, 3)
    assert len(ocean.sync(overlap="last").added) == 6 + 2 + 12
    ocean.check()
    assert not ocean.sync(overlap="last").is_written
    # it was a mistake, so the first run counts again
    for path in (tmp_path / "output/run_2").iterdir():
        path.unlink()
    done = ocean.sync(overlap="last")
    assert (len(done.dropped), len(done.replaced)) == (24, 12)
    assert ocean.check() == 12
