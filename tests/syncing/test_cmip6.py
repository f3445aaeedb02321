"""Ten nights of a CMIP6 archive: one set follows three models with a calendar each.

Names, folders, groups of variables and what happens are those of the Earth System Grid Federation:
https://pcmdi.llnl.gov/CMIP6/Guide/dataUsers.html and the Data Reference Syntax behind it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from nights import assert_same_bits, date, opened_below

import virtualds

MONTHS = 12
"""Months of a file; those of the federation have decades."""


@dataclass(frozen=True)
class Model:
    """What differs between the models of the archive."""

    institution: str
    calendar: str
    days: tuple[float, ...]
    grid: str
    forcing: int = 1
    ocean: tuple[str, str] = ("j", "i")

    def time(self, year: int, epoch: int = 1850) -> tuple[Any, Any]:
        """The middle of each month of a year, and its bounds, in days since 1850."""
        lengths = np.array(self.days)
        if self.calendar == "proleptic_gregorian":
            begins = np.arange(f"{year}-01", f"{year + 1}-02", dtype="M8[M]").astype("M8[D]")
            edges = (begins - np.datetime64(f"{epoch}-01-01")).astype("f8")
        else:
            edges = (year - epoch) * sum(self.days) + np.r_[0.0, np.cumsum(lengths)]
        bounds = np.stack([edges[:-1], edges[1:]], 1)
        return bounds.mean(1), bounds


NOLEAP = (31.0, 28.0, 31.0, 30.0, 31.0, 30.0, 31.0, 31.0, 30.0, 31.0, 30.0, 31.0)
MODELS = {
    "UKESM1-0-LL": Model("MOHC", "360_day", (30.0,) * 12, "gn", forcing=2),
    "GFDL-ESM4": Model("NOAA-GFDL", "noleap", NOLEAP, "gr1", ocean=("y", "x")),
    "MPI-ESM1-2-LR": Model("MPI-M", "proleptic_gregorian", NOLEAP, "gn"),
}
VARIABLES = {
    "tas": ("Amon", "K", "air_temperature"),
    "pr": ("Amon", "kg m-2 s-1", "precipitation_flux"),
    "psl": ("Amon", "Pa", "air_pressure_at_mean_sea_level"),
    "tos": ("Omon", "degC", "sea_surface_temperature"),
}
V1, V2 = "v20190406", "v20200820"
BNDS = {"bnds": 2}
PATTERN = (
    "CMIP6/CMIP/{institution_id}/{source_id}/historical/{member_id}/{table_id}/{variable_id}"
    "/{grid_label}/{version}/{variable_id}_{table_id}_{source_id}_historical_{member_id}"
    "_{grid_label}_{time_range}.nc"
)


@dataclass
class Federation:
    """The files of the archive, and the set that follows them."""

    folder: Path
    natively: dict[Any, xr.Dataset] = field(default_factory=dict)
    written: int = 0

    @property
    def target(self) -> Path:
        return self.folder / "cmip6.zarr"

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "CMIP6").rglob("*.nc"))

    def path(self, source: str, variable: str, run: int, year: int, version: str) -> Path:
        """Where a file of a year lies."""
        model, (table, *_) = MODELS[source], VARIABLES[variable]
        member = f"r{run}i1p1f{model.forcing}"
        name = f"{variable}_{table}_{source}_historical_{member}_{model.grid}"
        facets = (model.institution, source, "historical", member, table, variable, model.grid)
        folder = self.folder.joinpath("CMIP6/CMIP", *facets, version)
        return folder / f"{name}_{year}01-{year}12.nc"

    def publish(self, source: str, variable: str, run: int, year: int, version: str = V1) -> Path:
        """Write a file as the models do, with values that no other file has."""
        path, model = self.path(source, variable, run, year, version), MODELS[source]
        path.parent.mkdir(parents=True, exist_ok=True)
        self.written += 1
        # UKESM counts days in every file from 1850, others from the beginning of the file
        epoch = 1850 if source == "UKESM1-0-LL" else year
        with netCDF4.Dataset(path, "w") as file:
            file.setncatts(
                {
                    "Conventions": "CF-1.7 CMIP-6.2",
                    "source_id": source,
                    "variant_label": path.name.split("_")[4],
                    "tracking_id": f"hdl:21.14100/{self.written:032x}",
                }
            )
            _write_axes(file, model, variable, model.time(year, epoch), epoch)
            table, units, name = VARIABLES[variable]
            dims = model.ocean if table == "Omon" else ("lat", "lon")
            sizes = [len(file.dimensions[dim]) for dim in dims]
            rng = np.random.default_rng(self.written)
            values = rng.normal(280, 9, (MONTHS, *sizes)).astype("f4").round(2)
            if table == "Omon":
                values[:, 1, 1:3] = 1e20
            storage = {"zlib": True, "complevel": 1, "chunksizes": (1, *sizes)}
            made = file.createVariable(
                variable, "f4", ("time", *dims), fill_value=np.float32(1e20), **storage
            )
            made.set_auto_mask(False)
            made.setncatts(
                {
                    "standard_name": name,
                    "units": units,
                    "missing_value": np.float32(1e20),
                    "coordinates": {"tas": "height", "tos": "latitude longitude"}.get(variable, ""),
                }
            )
            made[:] = values
        return date(path)

    def publish_all(self, source: str, runs: tuple[int, ...], years: tuple[int, ...]) -> list[Path]:
        return [
            self.publish(source, variable, run, year)
            for variable in VARIABLES
            for run in runs
            for year in years
        ]

    def sync(self, again: int = 0) -> virtualds.SyncReport:
        """One night; of the files that have not changed at most so many are opened again."""
        with opened_below(self.folder / "CMIP6") as opened:
            done = virtualds.sync(
                f"{self.folder}/{PATTERN}",
                self.target,
                tree="/{source_id}/{variable_id}",
                concat_dim=["member_id", "time"],
                newest="version",
                on_removed="drop",
                on_error="collect",
                settle=0,
            )
        urls = {*done.added, *done.replaced, *(lost.url for lost in done.failed)}
        assert urls <= {path.as_uri() for path in opened}
        assert len(opened) <= len(urls) + again
        return done

    def check(self, *without: Path) -> dict[str, dict[str, int]]:
        """The set is what netCDF4 makes of the newest files; give the sizes of its groups."""
        groups: dict[str, dict[str, dict[str, Path]]] = {}
        # the newest version comes last
        for path in sorted(set(self.files) - set(without), key=lambda p: p.parent.name):
            variable, _, source, _, member, *_, years = path.stem.split("_")
            members = groups.setdefault(f"/{source}/{variable}", {})
            members.setdefault(member, {})[years] = path
        with xr.open_datatree(self.target, engine="virtual") as tree:
            assert {node.path for node in tree.leaves} == set(groups)
            for group, members in groups.items():
                found = tree[group].to_dataset().load()
                state = [
                    (p, p.stat().st_mtime_ns) for row in members.values() for p in row.values()
                ]
                make = partial(self.combine, group.split("/")[2], members)
                assert_same_bits(found, self.once(frozenset(state), make))
            return {node.path: dict(node.sizes) for node in tree.leaves}

    def combine(self, variable: str, members: dict[str, dict[str, Path]]) -> xr.Dataset:
        """What xarray makes of the files of some members: times that one lacks are missing."""
        rows = []
        for member in sorted(members):
            parts = [self.load(path) for _, path in sorted(members[member].items())]
            rows.append(xr.concat(parts, "time", **MINIMAL).assign_coords(member_id=member))
        values = xr.concat([row[variable] for row in rows], "member_id", join="outer", **FIRST)
        bounds = xr.concat([row["time_bnds"].drop_vars("member_id") for row in rows], "time")
        joined = rows[0].drop_dims("time").drop_vars("member_id").assign({variable: values})
        joined["time_bnds"] = bounds.drop_duplicates("time").sortby("time").variable
        return joined

    def load(self, path: Path) -> xr.Dataset:
        return self.once(
            (path, path.stat().st_mtime_ns), lambda: xr.load_dataset(path, engine="netcdf4")
        )

    def once(self, key: Any, make: Callable[[], xr.Dataset]) -> xr.Dataset:
        """What native readers make of files, which are read once as long as they do not change."""
        if key not in self.natively:
            self.natively[key] = make()
        return self.natively[key]


MINIMAL: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "equals"}
FIRST: Any = {"coords": "minimal", "compat": "override"}


def _write_axes(file: Any, model: Model, variable: str, time: Any, epoch: int) -> None:
    """Write the coordinates of a file: a regular grid, or the curved one of an ocean model."""
    for name, size in {"time": None, "bnds": 2}.items():
        file.createDimension(name, size)
    middle, bounds = time
    made = file.createVariable("time", "f8", ("time",), chunksizes=(1,))
    made.setncatts(
        {
            "bounds": "time_bnds",
            "units": f"days since {epoch}-01-01",
            "calendar": model.calendar,
            "axis": "T",
        }
    )
    made[:] = middle
    file.createVariable("time_bnds", "f8", ("time", "bnds"), chunksizes=(1, 2))[:] = bounds
    if variable == "tos":
        file.createDimension(model.ocean[0], 4)
        file.createDimension(model.ocean[1], 5)
        j, i = np.meshgrid(np.arange(4.0), np.arange(5.0), indexing="ij")
        for name, values in (("latitude", 20 * j - 30 + i), ("longitude", 70 * i + 5 * j)):
            file.createVariable(name, "f8", model.ocean)[:] = values
        return
    for name, edges in (("lat", np.linspace(-90, 90, 5)), ("lon", np.linspace(0, 360, 7))):
        file.createDimension(name, len(edges) - 1)
        made = file.createVariable(name, "f8", (name,))
        made.bounds = f"{name}_bnds"
        made[:] = (edges[1:] + edges[:-1]) / 2
        both = np.stack([edges[:-1], edges[1:]], 1)
        file.createVariable(f"{name}_bnds", "f8", (name, "bnds"))[:] = both
    if variable == "tas":
        height = file.createVariable("height", "f8", ())
        height.units = "m"
        height[...] = 2.0


# some twelve seconds of processor time: a hundred files, and ten times all groups
@pytest.mark.full
def test_ten_nights_of_three_models(tmp_path: Path) -> None:
    esgf = Federation(tmp_path)
    # first night: two members of two models
    for source in ("UKESM1-0-LL", "GFDL-ESM4"):
        esgf.publish_all(source, runs=(1, 2), years=(1850, 1851))
    assert len(esgf.sync().added) == len(esgf.files) == 32
    assert esgf.check()["/GFDL-ESM4/tas"] == {"member_id": 2, "time": 24, "lat": 4, "lon": 6} | BNDS
    # second: nothing has happened
    quiet = esgf.sync()
    assert (quiet.is_written, quiet.unchanged) == (False, 32)
    # third: a third model, new years of another, and a new member, of which a file is late
    esgf.publish_all("MPI-ESM1-2-LR", runs=(1, 2, 3), years=(1850, 1851))
    esgf.publish_all("GFDL-ESM4", runs=(1, 2), years=(1852,))
    esgf.publish_all("UKESM1-0-LL", runs=(3,), years=(1850, 1852))
    # the bounds of a grid are compared with those of a file of its group
    done = esgf.sync(again=6)
    assert (len(done.added), done.unchanged) == (24 + 8 + 8, 32)
    assert (
        esgf.check()["/UKESM1-0-LL/psl"] == {"member_id": 3, "time": 36, "lat": 4, "lon": 6} | BNDS
    )
    # fourth: the late files
    late = esgf.publish_all("UKESM1-0-LL", runs=(3,), years=(1851,))
    assert sorted(esgf.sync(again=3).added) == sorted(path.as_uri() for path in late)
    esgf.check()
    # fifth: precipitation of a member in a new version
    old = [esgf.path("GFDL-ESM4", "pr", 1, year, V1) for year in (1850, 1851, 1852)]
    new = [esgf.publish("GFDL-ESM4", "pr", 1, year, V2) for year in (1850, 1851, 1852)]
    done = esgf.sync(again=1)
    assert sorted(done.added) == [path.as_uri() for path in new]
    assert sorted(done.dropped) == sorted(done.shadowed) == [path.as_uri() for path in old]
    esgf.check()
    # sixth: a transfer broke off
    whole = esgf.publish("MPI-ESM1-2-LR", "tos", 2, 1853).read_bytes()
    broken = esgf.path("MPI-ESM1-2-LR", "tos", 2, 1853, V1)
    broken.write_bytes(whole[: len(whole) // 3])
    date(broken)
    after = esgf.publish("MPI-ESM1-2-LR", "tos", 3, 1853)
    done = esgf.sync()
    assert ([lost.url for lost in done.failed], done.added) == (
        [broken.as_uri()],
        (after.as_uri(),),
    )
    esgf.check(broken)
    # seventh: the file is whole
    broken.write_bytes(whole)
    date(broken)
    assert esgf.sync(again=1).added == (broken.as_uri(),)
    esgf.check()
    # eighth: the new version is retracted, and so is the pressure of a member altogether
    shutil.rmtree(new[0].parent)
    gone = [esgf.path("UKESM1-0-LL", "psl", 2, year, V1) for year in (1850, 1851)]
    shutil.rmtree(gone[0].parent)
    done = esgf.sync(again=6)
    assert sorted(done.added) == [path.as_uri() for path in old]
    assert sorted(done.dropped) == sorted(path.as_uri() for path in new + gone)
    assert esgf.check()["/UKESM1-0-LL/psl"]["member_id"] == 2
    # ninth: a model is gone
    shutil.rmtree(tmp_path / "CMIP6/CMIP/MPI-M")
    assert len(esgf.sync().dropped) == 24 + 2
    assert {group.split("/")[1] for group in esgf.check()} == {"UKESM1-0-LL", "GFDL-ESM4"}
    # tenth: a file was replaced without a new version, and all other files are as they were
    changed = esgf.publish("GFDL-ESM4", "tos", 2, 1851)
    done = esgf.sync()
    assert (done.replaced, done.unchanged) == ((changed.as_uri(),), len(esgf.files) - 1)
    esgf.check()
    assert not esgf.sync().is_written


def test_a_new_version_in_other_parts_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    esgf = Federation(tmp_path)
    old = [esgf.publish("GFDL-ESM4", "tas", 1, year) for year in (1850, 1851)]
    esgf.sync()
    whole = esgf.publish("GFDL-ESM4", "tas", 1, 1850, V2)
    new = whole.rename(str(whole).replace("185001-185012", "185001-185112"))
    with pytest.raises(virtualds.CombineError) as error:
        esgf.sync()
    assert new.as_uri() in str(error.value) and old[0].as_uri() in str(error.value)
    esgf.check(new)
    # what people do: the old version is withdrawn
    for path in old:
        path.unlink()
    assert esgf.sync().added == (new.as_uri(),)
    esgf.check()


def test_a_version_counts_once_its_files_are_whole(tmp_path: Path) -> None:
    esgf = Federation(tmp_path)
    years = (1850, 1851)
    for variable, run in [("tos", 1), ("tos", 2), ("pr", 1)]:
        for year in years:
            esgf.publish("UKESM1-0-LL", variable, run, year)
    esgf.sync()
    # of a new version one file is broken, so the old one stays in its place
    new, broken = (esgf.publish("UKESM1-0-LL", "tos", 2, year, V2) for year in years)
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-500])
    done = esgf.sync(again=1)
    assert (done.added, [lost.url for lost in done.failed]) == ((new.as_uri(),), [broken.as_uri()])
    esgf.check(broken)
    broken.write_bytes(whole)
    date(broken)
    assert len(esgf.sync(again=1).dropped) == 1
    esgf.check()
    # and the new version is retracted
    shutil.rmtree(new.parent)
    assert len(esgf.sync(again=1).added) == 2
    assert esgf.check()["/UKESM1-0-LL/tos"]["time"] == 24
