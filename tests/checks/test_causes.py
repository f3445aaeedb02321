"""A diagnosis names the mistake of an archive first, with the line of code that mends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds.checks.diagnose.report import fold_differences
from virtualds.checks.diagnose.trials import KIND, NAME, RENAMED

pytestmark = pytest.mark.filterwarnings("ignore::virtualds.CombineWarning")

Change = Callable[[xr.Dataset], xr.Dataset]
LENGTHS = (31, 28, 31, 30, 31, 30)


def write(folder: Path, changes: dict[int, Change]) -> list[str]:
    """Months of compressed fields, each a chunk, of which some are changed."""
    begin, paths = np.datetime64("2001-01-01", "ns"), []
    for number, days in enumerate(LENGTHS):
        values = np.random.default_rng(number).random((days, 4, 5)).astype("f4")
        ds = xr.Dataset(
            dict.fromkeys("tp", (("time", "lat", "lon"), values)),
            {
                "time": begin + np.arange(days) * np.timedelta64(1, "D"),
                "lat": np.linspace(-60, 60, 4),
                "lon": np.arange(5.0),
            },
        )
        begin += days * np.timedelta64(1, "D")
        ds = changes.get(number, lambda ds: ds)(ds)
        storage = {
            name: {"zlib": True, "chunksizes": v.shape}
            for name, v in ds.data_vars.items()
            if v.ndim
        }
        paths.append(str(folder / f"{number}.nc"))
        ds.to_netcdf(paths[-1], encoding=storage)
    return paths


def other_grid(ds: xr.Dataset) -> xr.Dataset:
    return ds.interp(lat=np.linspace(-60, 60, 5)).astype("f4")


def other_kind(ds: xr.Dataset) -> xr.Dataset:
    return xr.Dataset({"depth": ("station", np.arange(4.0))})


CAUSES: dict[str, tuple[dict[int, Change], tuple[str, str, str, str], int]] = {
    "a dimension of another name": (
        {3: lambda ds: ds.rename(lat="latitude")},
        ("lat", RENAMED, "lat", "latitude"),
        6,
    ),
    "two dimensions of other names, in several files": (
        {n: lambda ds: ds.rename(lat="y", lon="x") for n in (3, 4)},
        ("lat, lon", RENAMED, "lat, lon", "y, x"),
        6,
    ),
    "a dimension of another name, without coordinate": (
        {
            n: lambda ds, n=n: ds.drop_vars("lat").rename_dims({"lat": "y"} if n == 3 else {})  # type: ignore[misc]
            for n in range(6)
        },
        ("lat", RENAMED, "lat", "y"),
        6,
    ),
    "another grid": ({3: other_grid}, ("lat", "values", "(4 values", "(5 values"), 5),
    "another grid without coordinate": (
        {
            n: lambda ds, n=n: ds.isel(lat=slice(3 if n == 3 else 4)).drop_vars("lat")  # type: ignore[misc]
            for n in range(6)
        },
        ("lat", "size", "4", "3"),
        5,
    ),
    "a grid whose numbers were rounded": (
        {3: lambda ds: ds.assign_coords(lat=ds["lat"] + 1e-6)},
        ("lat", "values", "(4 values", "(4 values"),
        5,
    ),
    "a file of another kind": ({3: other_kind}, ("", KIND, "t, p", "depth"), 5),
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_mistake_of_the_files_comes_first_and_its_line_mends_it(
    name: str, tmp_path: Path
) -> None:
    changes, (variable, aspect, before, after), kept = CAUSES[name]
    files = write(tmp_path, changes)
    found = virtualds.diagnose(files)
    row = found.differences[0]
    assert (row.variable, row.aspect, row.files) == (variable, aspect, len(changes) % 6 or 1)
    assert before in row.before and after in row.after
    assert (row.against, row.first_file) == (files[2], files[3])
    assert row.code in str(found) and "2.nc" in str(found).split("from 3.nc")[1].split("\n")[0]
    # what the mistake explains has no row of its own
    aspects = [other.aspect for other in found.differences[1:]]
    assert not {"presence", "dimensions", "size", "chunks along lat"} & set(aspects), found
    space: dict[str, Any] = {"virtualds": virtualds, "files": files}
    exec(row.code, space)
    days = sum(
        length for n, length in enumerate(LENGTHS) if kept == 6 or n not in changes or n != 3
    )
    assert dict(space["vds"].sizes) == {"time": days, "lat": 4, "lon": 5}
    assert space["vds"]["t"].dims == ("time", "lat", "lon")


def test_a_grid_of_another_size_is_never_overridden(tmp_path: Path) -> None:
    [row] = [
        row
        for row in virtualds.diagnose(write(tmp_path, {3: other_grid})).differences
        if row.aspect == "values"
    ]
    assert "override" not in row.code


def renamed(ds: xr.Dataset) -> xr.Dataset:
    return ds.rename(lat="latitude")


def numbered(ds: xr.Dataset, number: int) -> xr.Dataset:
    """With a field of its own, without time."""
    return ds.assign(area=("lat", np.full(4, float(number)))).set_coords("area")


FAULTS: dict[str, tuple[dict[int, Change], set[int], set[str]]] = {
    # the changes; the files that a line leaves out; the aspects of the cards
    "a name and a grid": ({2: renamed, 3: other_grid}, {3}, {RENAMED, "values"}),
    "a grid and a name": ({2: other_grid, 3: renamed}, {2}, {RENAMED, "values"}),
    "two grids and a part of one": (
        {
            2: other_grid,
            3: lambda ds: ds.assign_coords(lat=ds["lat"] + 1),
            4: lambda ds: ds.isel(lon=slice(3)),
        },
        {2, 3, 4},
        {"values"},
    ),
    "a name and an order of dimensions": (
        {2: renamed, 3: lambda ds: ds.transpose("lon", "time", "lat")},
        set(),
        {RENAMED, "dimensions"},
    ),
    "another kind and a grid": ({2: other_kind, 4: other_grid}, {2, 4}, {KIND, "values", "gap"}),
    "a role and a name": ({2: lambda ds: ds.set_coords("p"), 3: renamed}, set(), {RENAMED, "role"}),
    "values and a name": (
        {n: lambda ds, n=n: numbered(ds, n // 2) for n in range(5)}  # type: ignore[misc]
        | {5: lambda ds: renamed(numbered(ds, 2))},
        set(),
        {RENAMED, "values"},
    ),
    "a variable of another name, and a grid": (
        {n: lambda ds: ds.rename(p="q") for n in (3, 5)} | {4: other_grid},
        {4},
        {NAME, "values"},
    ),
    "a name and a grid in one file": (
        {3: lambda ds: renamed(other_grid(ds))},
        {3},
        {RENAMED, "values"},
    ),
    "a name of two files, and a grid of one of them": (
        {2: renamed, 4: lambda ds: renamed(other_grid(ds))},
        {4},
        {RENAMED, "values"},
    ),
    "names of a dimension and a variable, and a grid, in one file": (
        {3: lambda ds: renamed(other_grid(ds)).rename(p="q")},
        {3},
        {RENAMED, NAME, "values"},
    ),
    "names of a dimension and a variable in one file": (
        {3: lambda ds: renamed(ds).rename(p="q")},
        set(),
        {RENAMED, NAME},
    ),
    "values of a coordinate that the last file lacks": (
        {n: lambda ds, n=n: numbered(ds, n // 2) for n in range(5)},  # type: ignore[misc]
        set(),
        {"values"},
    ),
    "a scalar that the first file lacks": (
        {n: lambda ds, n=n: ds.assign(h=float(n // 2)) for n in range(1, 6)},  # type: ignore[misc]
        set(),
        {"values"},
    ),
    "a field without time that a file lacks": (
        {n: lambda ds, n=n: numbered(ds, n // 2).reset_coords() for n in (0, 2, 3, 4, 5)},  # type: ignore[misc]
        set(),
        {"together"},
    ),
    "a damaged file, a name and a grid": (
        {1: renamed, 2: other_grid, 5: lambda ds: ds.assign_attrs(damaged=1)},
        {2, 5},
        {"opening", RENAMED, "values"},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_line_of_every_card_works_on_all_files_whatever_else_is_wrong(
    name: str, tmp_path: Path
) -> None:
    changes, left_out, aspects = FAULTS[name]
    files = write(tmp_path, changes)
    if "damaged" in name:
        Path(files[5]).write_bytes(Path(files[5]).read_bytes()[:500])
    found = virtualds.diagnose(files)
    rows = [r for r in found.differences if r.verdict != "combines" and "chunks" not in r.aspect]
    assert {row.aspect for row in rows} == aspects, found
    days = sum(days for n, days in enumerate(LENGTHS) if n not in left_out)
    begins = [xr.load_dataset(files[n])["t"].isel(time=0) for n in set(range(6)) - left_out]
    for row in rows:
        space: dict[str, Any] = {"virtualds": virtualds, "files": files}
        if row.code.startswith("print"):
            continue
        exec(row.code, space)
        assert dict(space["vds"].sizes) == {"time": days, "lat": 4, "lon": 5}, row
        assert space["vds"]["t"].dims == ("time", "lat", "lon")
        assert set(space["vds"].data_vars) == {"t", "p"}, row
        for expected in begins:
            first = space["vds"]["t"].sel(time=expected["time"])
            np.testing.assert_array_equal(np.sort(first, None), np.sort(expected, None))


def test_a_length_of_a_dimension_of_another_name_has_its_own_row(tmp_path: Path) -> None:
    def change(ds: xr.Dataset, number: int) -> xr.Dataset:
        ds = ds.drop_vars("lat")
        return ds.isel(lat=slice(3)).rename(lat="y") if number == 3 else ds

    files = write(tmp_path, {n: lambda ds, n=n: change(ds, n) for n in range(6)})  # type: ignore[misc]
    rows = [row for row in virtualds.diagnose(files).differences if row.leads]
    assert {(row.aspect, row.before, row.after, row.files) for row in rows} == {
        ("size", "4", "3", 1),
        (RENAMED, "lat", "y", 1),
    }
    for row in rows:
        space: dict[str, Any] = {"virtualds": virtualds, "files": files}
        exec(row.code, space)
        assert dict(space["vds"].sizes) == {"time": sum(LENGTHS) - LENGTHS[3], "lat": 4, "lon": 5}


def test_a_fault_of_one_file_counts_one_file(tmp_path: Path) -> None:
    found = virtualds.diagnose(write(tmp_path, {2: other_grid, 3: renamed}))
    assert [row.files for row in found.differences if row.leads] == [1, 1]


def test_a_variable_of_another_name_in_half_of_the_files_costs(tmp_path: Path) -> None:
    files = write(tmp_path, {n: lambda ds: ds.rename(p="q") for n in (3, 4, 5)})
    found = virtualds.diagnose(files)
    row = found.differences[0]
    assert (row.variable, row.aspect, row.before, row.after) == ("p", NAME, "p", "q")
    assert row.verdict == "costs" and row.files == 3
    assert "presence" not in {other.aspect for other in found.differences}
    space: dict[str, Any] = {"virtualds": virtualds, "files": files}
    exec(row.code, space)
    assert set(space["vds"].data_vars) == {"t", "p"}


def test_months_are_one_row_whatever_their_lengths(tmp_path: Path) -> None:
    found = virtualds.diagnose(write(tmp_path, {}))
    rows = [row for row in found.differences if row.aspect == "chunks along time"]
    assert [(r.variable, r.before, r.after, r.files) for r in rows] == [
        (name, "31", "28 to 30", 3) for name in "tp"
    ]
    assert "t, p: chunks along time" in " ".join(str(found).split())
    assert found.differences[0].how in str(found)


def test_chunks_that_cut_months_in_other_ways_keep_a_row_of_their_own(tmp_path: Path) -> None:
    files = write(tmp_path, {})
    later = xr.load_dataset(files[5]).drop_encoding()
    later.to_netcdf(files[5], encoding={n: {"zlib": True, "chunksizes": (10, 4, 5)} for n in "tp"})
    rows = virtualds.diagnose(files).differences
    found = [(r.after, r.files) for r in rows if r.aspect == "chunks along time"]
    assert sorted(found) == [("10", 1)] * 2 + [("28 to 30", 2)] * 2


def test_what_one_line_mends_is_one_entry(tmp_path: Path) -> None:
    packing = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -9, "zlib": True}
    files = write(tmp_path, {})
    for path in files:
        ds = xr.load_dataset(path).drop_encoding()
        scale = 0.01 if path < files[3] else 0.02
        storage = {n: packing | {"scale_factor": scale, "chunksizes": ds[n].shape} for n in "tp"}
        ds.to_netcdf(path, encoding=storage)
    found = virtualds.diagnose(files)
    assert len(found.of("costs")) == 4
    [entry] = fold_differences(found.of("costs"))
    assert [line.names for line in entry.lines] == ["t, p", "t, p"]
    assert str(found).count("write zarr-v3") == 1
    assert found._repr_html_().count('class="vds-card"') == 1
