"""The files with groups that trees are tested with: one function writes one file.

Whatever `xr.open_datatree` makes of its file is what virtualds has to make of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import xarray as xr
from cases import netcdf, numbers

Write = Callable[[Path], None]


@dataclass(frozen=True)
class TreeCase:
    """A kind of file with groups, and how xarray itself opens it."""

    write: Write
    engine: str = "netcdf4"
    suffix: str = ".nc"
    options: Mapping[str, Any] = field(default_factory=dict)

    def native(self, path: Path, **options: Any) -> xr.DataTree:
        """What xarray itself makes of the file, in memory."""
        with xr.open_datatree(path, engine=self.engine, **self.options, **options) as tree:
            return tree.load()


TREES: dict[str, TreeCase] = {}


def tree(**how: Any) -> Callable[[Write], Write]:
    """Make a case of a function that writes a file."""

    def register(write: Write) -> Write:
        TREES[write.__name__] = TreeCase(write, **how)
        return write

    return register


def parts_of_a_model(path: Path, first: int = 0, days: int = 4) -> None:
    """A file of one of several times: packed values, groups in groups, groups without variables."""
    with netcdf(path, time=None, x=3) as file:
        file.title = "root"
        time = file.createVariable("time", "f8", ("time",))
        time.units = "days since 2000-01-01"
        time[:] = np.arange(first, first + days)
        file.createVariable("x", "i4", ("x",))[:] = [1, 2, 3]
        v = file.createVariable("v", "i2", ("time", "x"), zlib=True, chunksizes=(2, 3))
        v.scale_factor = 0.5
        v[:] = np.arange(3 * first, 3 * (first + days)).reshape(days, 3)
        surface = file.createGroup("surface")
        surface.source = "model"
        t = surface.createVariable("t", "f4", ("time", "x"), zlib=True, chunksizes=(2, 3))
        t.coordinates = "height"
        t[:] = numbers(days, 3, seed=first)
        surface.createVariable("height", "f4", ("x",))[:] = [10, 20, 30]
        soil = surface.createGroup("soil")
        soil.createDimension("layer", 2)
        soil.createVariable("q", "f4", ("time", "layer"))[:] = numbers(days, 2, seed=first)
        soil.createVariable("layer", "f4", ("layer",))[:] = [0.1, 0.2]
        fixed = file.createGroup("fixed")
        fixed.createDimension("z", 4)
        fixed.createVariable("c", "f8", ("z",))[:] = np.arange(4)
        file.createGroup("empty").note = "nothing"
        file["empty"].createGroup("deeper")


tree()(parts_of_a_model)


@tree()
def coordinates_repeated_below(path: Path) -> None:
    """A child that has the coordinate of its parent, too: a tree holds it once."""
    with netcdf(path, x=3) as file:
        file.createVariable("x", "i4", ("x",))[:] = [1, 2, 3]
        child = file.createGroup("child")
        child.createDimension("x", 3)
        child.createVariable("x", "i4", ("x",))[:] = [1, 2, 3]
        child.createVariable("v", "f4", ("x",))[:] = [1, 2, 3]


@tree()
def unlimited_dimensions_that_groups_share(path: Path) -> None:
    """Every group writes another number of records; all are as long as the longest."""
    with netcdf(path, time=None) as file:
        file.createVariable("time", "f8", ("time",))[:] = np.arange(2)
        file.createVariable("v", "f4", ("time",), zlib=True)[:1] = 1
        a = file.createGroup("a")
        a.createVariable("w", "f4", ("time",))[:] = np.arange(7)
        a.createGroup("b").createVariable("w", "i4", ("time",))[:] = np.arange(4)


@tree()
def names_that_mean_different_things(path: Path) -> None:
    """Sister groups have dimensions and variables of one name and of different lengths."""
    with netcdf(path, y=2) as file:
        file.createVariable("v", "f4", ("y",))[:] = [1, 2]
        for name, n in (("left", 3), ("right", 5)):
            group = file.createGroup(name)
            group.createDimension("x", n)
            group.createVariable("x", "i4", ("x",))[:] = np.arange(n)
            group.createVariable("v", "f4", ("y", "x"))[:] = numbers(2, n)


@tree()
def many_floors(path: Path) -> None:
    with netcdf(path, x=2) as file:
        file.createVariable("x", "i4", ("x",))[:] = [1, 2]
        group = file
        for floor in range(40):
            group = group.createGroup(f"g{floor}")
            group.floor = floor
        group.createVariable("v", "f4", ("x",))[:] = [1, 2]


@tree()
def only_groups(path: Path) -> None:
    with netcdf(path) as file:
        for name in ("zz", "a b", "größe", "a.b", "0"):
            group = file.createGroup(name)
            group.createDimension("x", 2)
            group.createVariable("v", "f4", ("x",))[:] = [1, 2]


@tree()
def nothing_at_all(path: Path) -> None:
    with netcdf(path):
        pass


@tree()
def strings_and_attributes(path: Path) -> None:
    with netcdf(path, x=2, n=3) as file:
        group = file.createGroup("g")
        for owner in (file, group):
            owner.number = np.float32(0.1)
            owner.setncattr("several", np.array([1, 2], "i2"))
        group.createVariable("name", str, ("x",))[:] = np.array(["a", "größe"], object)
        group.createVariable("letters", "S1", ("x", "n"))[:] = np.array([list("abc"), list("def")])
        group.createVariable("scalar", "i4", ())[:] = 7


@tree()
def axes_without_scales(path: Path) -> None:
    """The dimensions that netCDF invents are numbered throughout the file."""
    with h5py.File(path, "w") as file:
        file["v"] = numbers(3, 4)
        file["a/v"] = numbers(5, 4)
        file["a/b/v"] = numbers(6, 2)
        file["c/v"] = numbers(3, 2)


@tree(engine="h5netcdf")
def written_by_h5netcdf(path: Path) -> None:
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"x": 4}
        file.create_variable("x", ("x",), "i4", data=np.arange(4))
        group = file.create_group("a/b")
        group.dimensions["y"] = 2
        group.create_variable("v", ("y", "x"), "f4", data=numbers(2, 4), chunks=(1, 4))
        group.attrs["title"] = "deep"


def written_by_xarray() -> xr.DataTree:
    """A tree in memory, with inherited coordinates."""
    root = xr.Dataset(
        {"v": (("time", "x"), numbers(4, 3))},
        coords={"time": np.arange("2000-01", "2000-05", dtype="M8[M]").astype("M8[ns]")}
        | {"x": [1.0, 2.0, 3.0], "run": 3, "month": ("time", [1, 2, 3, 4])},
        attrs={"title": "root"},
    )
    below = xr.Dataset({"w": (("time", "y"), numbers(4, 2))}, {"y": [5, 6]}, {"title": "below"})
    other = xr.Dataset({"u": ("x", np.arange(3))}, {"place": ("x", [1.5, 2.5, 3.5])})
    return xr.DataTree.from_dict({"/": root, "/below/more": below, "/other": other})


@tree()
def a_tree_of_xarray(path: Path) -> None:
    written_by_xarray().to_netcdf(path, engine="netcdf4")


@tree(engine="zarr", suffix=".zstore", options={"chunks": None})
def a_zarr_store_of_version_2(path: Path) -> None:
    written_by_xarray().to_zarr(path, zarr_format=2)


@tree(engine="zarr", suffix=".zstore", options={"chunks": None})
def a_zarr_store_of_version_3(path: Path) -> None:
    written_by_xarray().to_zarr(path, zarr_format=3)


@tree(engine="zarr", suffix=".zstore", options={"chunks": None, "consolidated": False})
def a_zarr_store_without_consolidated_metadata(path: Path) -> None:
    written_by_xarray().to_zarr(path, zarr_format=3, consolidated=False)


class Forest:
    """The files of the cases, each written once when it is asked for; do not write to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._native: dict[str, xr.DataTree] = {}

    def path(self, name: str) -> Path:
        """Return the file of a case."""
        path = self.folder / f"{name}{TREES[name].suffix}"
        if not path.exists():
            TREES[name].write(path)
        return path

    def native(self, name: str) -> xr.DataTree:
        """Return what xarray itself makes of the file of a case."""
        if name not in self._native:
            self._native[name] = TREES[name].native(self.path(name))
        return self._native[name]
