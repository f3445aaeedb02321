"""Datasets of virtual arrays: loading, the accessor, and combining in xarray."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import fsspec
import netCDF4
import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive, numbers
from products import looped
from virtual_arrays import path_of, virtual
from xarray.coding.variables import NativeEndiannessArray
from xarray.core import indexing

import virtualds
from virtualds import (
    FormatError,
    ManifestArray,
    ReadError,
    UnsupportedError,
    open_virtual_dataset,
)
from virtualds.datasets.lazy import layers_of, to_lazy
from virtualds.datasets.structure import digest_values, iterate_crs_names
from virtualds.source_file import normalise_url


def virtual_names(ds: xr.Dataset) -> set[Any]:
    return {name for name, v in ds.variables.items() if isinstance(v.data, ManifestArray)}


@pytest.fixture(scope="module")
def path(archive: Archive) -> Path:
    """``v``, ``p(time, y, x)`` of more than 16 KiB, and their coordinates."""
    return archive.path("larger_than_small")


@pytest.fixture
def vds(path: Path) -> xr.Dataset:
    return open_virtual_dataset(path)


@pytest.fixture
def native(archive: Archive) -> xr.Dataset:
    return archive.native("larger_than_small")


# ---------------------------------------------------------------------- what is loaded

LOADABLE: dict[str, tuple[Any, set[str]]] = {
    "default": (None, {"v", "p"}),
    "nothing": ([], {"v", "p", "time", "y", "x"}),
    "a name": ("v", {"p", "time", "y", "x"}),
    "names": (["v", "y"], {"p", "time", "x"}),
    "a pattern": ("?", {"time"}),
    "patterns": (["ti*", "[vp]"], {"y", "x"}),
    "a set": ({"v", "p"}, {"time", "y", "x"}),
    "a generator": ((n for n in ("v", "p")), {"time", "y", "x"}),
    "everything": ("*", set()),
    "a pattern that matches none": ("nothing*", {"v", "p", "time", "y", "x"}),
    "a predicate": (lambda name, v: v.ndim == 1, {"v", "p"}),
    "a predicate on names": (lambda name, v: name == "p", {"v", "time", "y", "x"}),
}


@pytest.mark.parametrize("which", LOADABLE)
def test_the_requested_variables_are_loaded(which: str, path: Path, native: xr.Dataset) -> None:
    loadable, expected = LOADABLE[which]
    ds = open_virtual_dataset(path, loadable_variables=loadable)
    assert virtual_names(ds) == expected
    assert set(ds.indexes) == {"time", "y", "x"} - expected
    for name in native.variables:
        np.testing.assert_array_equal(ds[name].values, native[name].values)


def test_the_default_of_loading_does_not_depend_on_sizes(tmp_path: Path) -> None:
    """So that all files of an archive are opened alike, whatever their length."""
    coordinates = {"x": [1.0, 2.0], "height": ("x", [5.0, 6.0]), "crs": 0}
    ds = xr.Dataset({"v": ("x", [3.0, 4.0])}, coordinates)
    ds.to_netcdf(tmp_path / "small.nc")
    opened = open_virtual_dataset(tmp_path / "small.nc")
    assert virtual_names(opened) == {"v"}
    with virtualds.set_options(small_variable=8):
        assert virtual_names(open_virtual_dataset(tmp_path / "small.nc")) == {"v", "height"}


def test_variables_that_only_exist_as_values_are_loaded_by_default(archive: Archive) -> None:
    opened = open_virtual_dataset(archive.path("time_in_noleap"))
    assert opened["time"].dtype == object
    assert virtual_names(opened).isdisjoint({"time"})


def test_an_error_of_variables_that_decode_only_as_a_whole_says_how_to_load_them(
    archive: Archive,
) -> None:
    with pytest.raises(UnsupportedError, match="loadable_variables=") as caught:
        open_virtual_dataset(archive.path("time_in_noleap"), loadable_variables=[])
    assert "variable 'time': " in str(caught.value)


def test_dropped_variables_are_not_parsed(path: Path) -> None:
    assert set(open_virtual_dataset(path, drop_variables="v")) == {"p"}
    assert set(open_virtual_dataset(path, drop_variables=["v", "p", "nothing"])) == set()


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@looped("name", CASES)
def test_without_decoding_values_are_as_stored(name: str, archive: Archive) -> None:
    case = CASES[name]
    ds = open_virtual_dataset(
        archive.path(name), group=case.group, decode_cf=False, loadable_variables=[]
    )
    expected = case.native(archive.path(name), decode_cf=False)
    loaded = ds.virtual.load()
    for variable in expected.variables:
        found = loaded[variable].variable.to_base_variable()
        xr.testing.assert_identical(found, expected[variable].variable.to_base_variable())
        if expected[variable].dtype.kind not in "OUT":
            assert found.dtype == expected[variable].dtype.newbyteorder("=")


# ---------------------------------------------------------------------- the accessor


def test_the_accessor_counts_chunks_and_bytes_of_references(vds: xr.Dataset, path: Path) -> None:
    # v: 3 × 2 × 3 chunks; p: 12 × 1 × 1
    assert vds.virtual.nchunks == 18 + 12
    assert 0 < vds.virtual.nbytes < 40 * vds.virtual.nchunks
    assert open_virtual_dataset(path, loadable_variables="*").virtual.nchunks == 0


def test_sources_is_a_table_of_files(vds: xr.Dataset, path: Path) -> None:
    table = vds.virtual.sources
    assert list(table.columns) == ["url", "chunks", "size", "modified", "etag"]
    assert table["url"].tolist() == [normalise_url(path)]
    assert table["chunks"].tolist() == [30]
    assert table["size"].tolist() == [path.stat().st_size]
    assert table["modified"].astype("int64").tolist() == [path.stat().st_mtime_ns]
    assert xr.Dataset({"a": 1}).virtual.sources.empty


def test_an_ordinary_dataset_has_the_accessor_too(native: xr.Dataset) -> None:
    assert native.virtual.nchunks == 0
    xr.testing.assert_identical(native.virtual.load(), native)


def test_loading_gives_numpy_everywhere(vds: xr.Dataset, native: xr.Dataset) -> None:
    with virtualds.set_options(load_limit=0):
        loaded = vds.virtual.load()
    assert virtual_names(loaded) == set()
    xr.testing.assert_identical(loaded, native)
    assert virtual_names(vds) == {"v", "p"}


def test_an_implicit_load_obeys_the_limit(vds: xr.Dataset) -> None:
    with virtualds.set_options(load_limit=100):
        with pytest.raises(UnsupportedError, match=r"(?s)v \(12, 30, 50\).*load_limit"):
            vds["v"].to_numpy()
        assert float(vds["v"][0, 0, 0]) == vds["v"].data.read((0, 0, 0))


MOVES: dict[str, Callable[[Path, Path], Any]] = {
    "a prefix": lambda old, new: {str(old.parent): str(new.parent)},
    "a url prefix": lambda old, new: {f"file://{old.parent}": f"file://{new.parent}"},
    "the longest prefix": lambda old, new: {"/": "/nowhere", str(old.parent): str(new.parent)},
    "a function": lambda old, new: lambda url: url.replace(str(old.parent), str(new.parent)),
}


@pytest.mark.parametrize("which", MOVES)
def test_references_follow_moved_files(which: str, tmp_path: Path, native: xr.Dataset) -> None:
    old, new = tmp_path / "old" / "a.nc", tmp_path / "new" / "a.nc"
    old.parent.mkdir()
    CASES["larger_than_small"].write(old)
    vds = open_virtual_dataset(old)
    old.parent.rename(new.parent)
    with pytest.raises(ReadError, match=r"a\.nc"):
        vds.virtual.load()
    moved = vds.virtual.rename_paths(MOVES[which](old, new))
    assert moved.virtual.sources["url"].tolist() == [f"file://{new}"]
    xr.testing.assert_identical(moved.virtual.load(), native)


@pytest.mark.parametrize("name", ["refs.json", "refs.parquet"])
def test_checksums_follow_moved_files_and_are_left_out_where_there_is_no_place(
    name: str, tmp_path: Path
) -> None:
    values = np.arange(12.0).reshape(3, 4)
    array = virtual(values, tmp_path, chunks=(1, 4), missing=[1], checksums=True)
    values[1] = 0
    ds = xr.Dataset({"v": (("y", "x"), array)})
    to = tmp_path / "moved.bin"
    path_of(array).rename(to)
    moved = ds.virtual.rename_paths({str(path_of(array)): str(to)})
    assert (moved["v"].data.manifest.checksum == array.manifest.checksum).all()
    moved.virtual.to_manifest(tmp_path / name)
    again = open_virtual_dataset(tmp_path / name)["v"].data
    assert not again.manifest.loaded().checksum.any()
    np.testing.assert_array_equal(again.read(), values)
    to.write_bytes(to.read_bytes()[:-1] + b"?")
    with virtualds.set_options(check_sources=False), pytest.raises(ReadError, match="CRC-32"):
        moved["v"].chunk({"y": 1}).compute()


def test_a_prefix_that_fits_nothing_is_refused(vds: xr.Dataset) -> None:
    with pytest.raises(ValueError, match="no source begins with"):
        vds.virtual.rename_paths({"/not/there": "/anywhere"})


LAZY: dict[str, tuple[Any, Any]] = {
    "xarray's own": (None, None),
    "the files' chunks": ({}, {"v": ((5, 5, 2), (20, 10), (20, 20, 10)), "p": ((1,) * 12,)}),
    "chunks of mine": ({"time": 6}, {"v": ((6, 6), (20, 10), (20, 20, 10)), "p": ((6, 6),)}),
    "one number": (25, {"v": ((12,), (25, 5), (25, 25))}),
}


@pytest.mark.parametrize("which", LAZY)
def test_lazy_datasets_have_the_values(which: str, vds: xr.Dataset, native: xr.Dataset) -> None:
    chunks, expected = LAZY[which]
    lazy = vds.virtual.to_lazy(chunks)
    assert virtual_names(lazy) == set()
    for name, lengths in (expected or {}).items():
        assert lazy[name].chunks[: len(lengths)] == lengths
    if expected is None:
        assert not lazy.chunks
    xr.testing.assert_identical(lazy.compute(), native)
    xr.testing.assert_identical(
        lazy.isel(time=slice(3, 8), x=-1).compute(), native.isel(time=slice(3, 8), x=-1)
    )


def test_lazy_variables_are_read_when_they_are_looked_at(tmp_path: Path) -> None:
    CASES["larger_than_small"].write(tmp_path / "a.nc")
    lazy = open_virtual_dataset(tmp_path / "a.nc").virtual.to_lazy()
    lazy["v"].load()
    (tmp_path / "a.nc").unlink()
    assert lazy["v"].values.shape == (12, 30, 50)
    with pytest.raises(ReadError, match=r"a\.nc") as caught:
        lazy["p"].load()
    assert str(caught.value).startswith("variable 'p' of file://")


# ---------------------------------------------------------------------- pickling and dask


def test_arrays_pickle_with_their_storage_options(archive: Archive) -> None:
    fsspec.filesystem("memory").pipe("/pickles/a.nc", archive.path("contiguous").read_bytes())
    ds = open_virtual_dataset(
        "memory://pickles/a.nc", loadable_variables=[], storage_options={"asynchronous": False}
    )
    again = pickle.loads(pickle.dumps(ds))
    assert again["v"].data.sources == ds["v"].data.sources
    assert again["v"].data.sources[0].options == {"asynchronous": False}
    assert again["v"].data.has_same_references(ds["v"].data)
    xr.testing.assert_identical(again.virtual.load(), ds.virtual.load())


def ragged(folder: Path) -> tuple[xr.Dataset, xr.Dataset]:
    """Months of 31, 28 and 31 days joined; virtual and native."""
    paths = []
    for number, days in enumerate((31, 28, 31)):
        paths.append(folder / f"{number}.nc")
        with netCDF4.Dataset(paths[-1], "w") as file:
            file.createDimension("time", None)
            file.createDimension("x", 8)
            v = file.createVariable("v", "f4", ("time", "x"), chunksizes=(10, 8), zlib=True)
            v[:] = numbers(days, 8, seed=number)
    how: dict[str, Any] = {
        "dim": "time",
        "data_vars": "minimal",
        "join": "override",
        "coords": "minimal",
        "compat": "override",
    }
    found = xr.concat([open_virtual_dataset(p, loadable_variables=[]) for p in paths], **how)
    return found, xr.concat([xr.load_dataset(p) for p in paths], **how)


def test_dask_chunks_are_ragged_where_the_files_are(tmp_path: Path) -> None:
    found, expected = ragged(tmp_path)
    lazy = found.virtual.to_lazy(chunks={})
    assert lazy["v"].chunks == ((10, 10, 10, 1, 10, 10, 8, 10, 10, 10, 1), (8,))
    with dask.config.set(scheduler="threads"):
        xr.testing.assert_identical(lazy.compute(), expected.load())


def test_dask_arrays_are_computed_in_other_processes(
    cluster: Any, tmp_path: Path, path: Path, native: xr.Dataset
) -> None:
    lazy = xr.open_dataset(path, engine="virtual", chunks={})
    assert lazy["v"].chunks == ((5, 5, 2), (20, 10), (20, 20, 10))
    xr.testing.assert_identical(lazy.compute(), native)
    xr.testing.assert_allclose(lazy.mean("time").compute(), native.mean("time"))
    found, expected = ragged(tmp_path)
    computed = found.virtual.to_lazy(chunks={}).sum("x").compute()
    xr.testing.assert_allclose(computed, expected.sum("x").load())


def test_errors_come_back_from_other_processes(cluster: Any, tmp_path: Path) -> None:
    CASES["larger_than_small"].write(tmp_path / "a.nc")
    lazy = xr.open_dataset(tmp_path / "a.nc", engine="virtual", chunks={})
    (tmp_path / "a.nc").unlink()
    with pytest.raises(ReadError, match=r"a\.nc"):
        lazy["v"].sum().compute()


# ---------------------------------------------------------------------- xarray combines them


def write_month(path: Path, month: int, east: int = 0) -> None:
    """``t(time, x)`` of more than 16 KiB, packed; ``area(x)``, which is the same every month."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 500)
        file.month = month
        time = file.createVariable("time", "i4", ("time",))
        time.units = "days since 2001-01-01"
        time[:] = 30 * month + np.arange(20)
        file.createVariable("x", "f8", ("x",))[:] = np.arange(500) + 500 * east
        t = file.createVariable(
            "t", "i2", ("time", "x"), fill_value=-9, zlib=True, chunksizes=(8, 500)
        )
        t.scale_factor, t.add_offset = np.float32(0.01 * (month + 1)), np.float32(month)
        t.set_auto_maskandscale(False)
        t[:] = numbers(20, 500, dtype="i2", seed=month + 10 * east)
        area = file.createVariable("area", "f8", ("x",), contiguous=True)
        area[:] = numbers(500, dtype="f8", seed=east)


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    folder = tmp_path_factory.mktemp("months")
    paths = {}
    for month in range(3):
        for east in range(2):
            paths[month, east] = folder / f"{month}_{east}.nc"
            write_month(paths[month, east], month, east)
    return paths


MINIMAL: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "combine_attrs": "override"}
Months = dict[tuple[int, int], xr.Dataset]

COMBINATIONS: dict[str, Callable[[Months], xr.Dataset]] = {
    "concat": lambda m: xr.concat(
        [m[0, 0], m[1, 0], m[2, 0]], dim="time", compat="override", join="exact", **MINIMAL
    ),
    "concat that compares": lambda m: xr.concat(
        [m[0, 0], m[1, 0]], dim="time", compat="equals", join="exact", **MINIMAL
    ),
    "concat with an outer join": lambda m: xr.concat(
        [m[0, 0], m[1, 1]], dim="time", compat="override", join="outer", **MINIMAL
    ),
    "concat along a new dimension": lambda m: xr.concat(
        [m[0, 0][["t"]], m[1, 0][["t"]].assign_coords(time=m[0, 0].time)],
        dim="run", data_vars="all", coords="minimal", compat="override", join="exact",
    ),
    "concat of every variable": lambda m: xr.concat(
        [m[0, 0], m[1, 0]], dim="time", data_vars="all", coords="minimal", compat="override",
        join="exact",
    ),
    "merge": lambda m: xr.merge(
        [m[0, 0][["t"]], m[0, 0][["area"]]], compat="override", join="outer"
    ),
    "merge that compares": lambda m: xr.merge([m[0, 0], m[0, 0]], compat="equals", join="outer"),
    "merge with an outer join": lambda m: xr.merge(
        [m[0, 0][["t"]], m[1, 0][["t"]].rename(t="u")], compat="override", join="outer"
    ),
    "combine_by_coords": lambda m: xr.combine_by_coords(
        list(m.values()), compat="override", join="outer", **MINIMAL
    ),
    "combine_nested": lambda m: xr.combine_nested(
        [[m[0, 0], m[0, 1]], [m[1, 0], m[1, 1]], [m[2, 0], m[2, 1]]],
        concat_dim=["time", "x"], compat="override", join="outer", **MINIMAL,
    ),
    "a missing tile": lambda m: xr.combine_nested(
        [[m[0, 0], m[0, 1]], [m[1, 0], m[1, 1].isel(time=slice(5))]],
        concat_dim=["time", "x"], compat="override", join="outer", **MINIMAL,
    ),
    "a missing month": lambda m: xr.concat(
        [m[0, 0], m[2, 0]], dim="time", compat="override", join="exact", **MINIMAL
    ).reindex(time=np.arange("2001-01-01", "2001-04-01", dtype="datetime64[D]").astype("M8[ns]")),
    "a variable that one file lacks": lambda m: xr.concat(
        [m[0, 0], m[1, 0].drop_vars("t")], dim="time", compat="override", join="exact", **MINIMAL
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", COMBINATIONS)
def test_xarray_combines_virtual_datasets_as_it_combines_others(
    which: str, months: dict[tuple[int, int], Path]
) -> None:
    combine = COMBINATIONS[which]
    virtual = {
        key: open_virtual_dataset(path, loadable_variables=["time", "x"])
        for key, path in months.items()
    }
    # `area` has 4 kB and may be looked at to compare it, `t` has 40 kB
    with virtualds.set_options(load_limit=5000):
        found = combine(virtual)
    expected = combine({key: xr.load_dataset(path) for key, path in months.items()})
    loaded = found.virtual.load()
    xr.testing.assert_identical(loaded, expected)
    assert {n: v.dtype for n, v in loaded.variables.items()} == {
        n: v.dtype for n, v in expected.variables.items()
    }
    assert virtual_names(found) == set(expected.data_vars)


def test_combining_reads_no_byte(tmp_path: Path) -> None:
    for month in range(2):
        write_month(tmp_path / f"{month}.nc", month)
    parts = [
        open_virtual_dataset(tmp_path / f"{n}.nc", loadable_variables=["time", "x"])
        for n in range(2)
    ]
    for month in range(2):
        (tmp_path / f"{month}.nc").unlink()
    both = xr.concat(parts, dim="time", compat="override", join="outer", **MINIMAL)
    assert both.sizes == {"time": 40, "x": 500}
    part = both.isel(time=slice(15, 25), x=slice(100, 200)).transpose("x", "time")
    assert virtual_names(part) == {"t", "area"}
    repr(both)
    both._repr_html_()
    with pytest.raises(ReadError):
        np.asarray(part["t"])


def test_files_that_differ_are_found_by_their_references(
    months: dict[tuple[int, int], Path],
) -> None:
    parts = [
        open_virtual_dataset(months[0, east], loadable_variables=["time", "x"]).drop_vars("x")
        for east in range(2)
    ]
    with pytest.raises(ValueError, match="area"):
        xr.concat(
            parts, dim="time", compat="equals", join="override", data_vars=["t"], coords="minimal"
        )


# ---------------------------------------------------------------------- back to a group


def test_computed_values_are_written(path: Path, tmp_path: Path, native: xr.Dataset) -> None:
    vds = open_virtual_dataset(path)
    ds = vds.assign(anomaly=vds["v"].isel(time=0) - 1, flag=("time", np.arange(12) > 3), n=3)
    ds.virtual.to_manifest(tmp_path / "refs.json")
    again = xr.open_dataset(tmp_path / "refs.json", engine="virtual").load()
    expected = native.assign(
        anomaly=native["v"].isel(time=0) - 1, flag=("time", np.arange(12) > 3), n=3
    )
    xr.testing.assert_identical(again, expected)


CHANGES: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "nothing": lambda ds: ds,
    "attributes": lambda ds: ds.assign_attrs(history="changed"),
    "rename": lambda ds: ds.rename(v="w", time="t"),
    "transpose": lambda ds: ds.transpose("x", "y", "time"),
    "a slice of whole chunks": lambda ds: ds.isel(time=slice(5, 10)),
    "a slice from the start": lambda ds: ds.isel(time=slice(0, 5)),
    "expand": lambda ds: ds.expand_dims(run=[1]),
    "coordinates": lambda ds: ds.set_coords("p"),
    "one step": lambda ds: ds[["p"]].isel(time=[3]),
    "gaps of whole chunks": lambda ds: (
        ds[["p"]].isel(time=slice(1, 11)).reindex(time=ds.indexes["time"])
    ),
}


@pytest.mark.parametrize("which", CHANGES)
def test_changed_datasets_are_written_or_refused_but_never_wrong(
    which: str, path: Path, tmp_path: Path, native: xr.Dataset
) -> None:
    change = CHANGES[which]
    changed = change(open_virtual_dataset(path))
    try:
        changed.virtual.to_manifest(tmp_path / "refs.json")
    except UnsupportedError as error:
        assert "refs.json" in str(error)
        assert which in ("transpose", "expand")
        return
    again = xr.open_dataset(tmp_path / "refs.json", engine="virtual").load()
    xr.testing.assert_identical(again, change(native))


@pytest.mark.parametrize("mode", ["r", "W", ""])
def test_an_unknown_mode_is_refused(mode: str, vds: xr.Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mode"):
        vds.virtual.to_manifest(tmp_path / "refs.json", mode=mode)


def test_the_suffix_chooses_the_format(vds: xr.Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pass format="):
        vds.virtual.to_manifest(tmp_path / "refs.xyz")
    with pytest.raises(ValueError, match="give one of"):
        vds.virtual.to_manifest(tmp_path / "refs.json", format="grib")
    vds.virtual.to_manifest(tmp_path / "refs.xyz", format="kerchunk-json", mode="w")
    xr.open_dataset(tmp_path / "refs.xyz", engine="virtual").close()


def test_a_variable_without_a_name_survives(tmp_path: Path) -> None:
    array = xr.DataArray(numbers(4))
    array.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    ds = open_virtual_dataset(tmp_path / "a.nc", loadable_variables=[])
    ds.virtual.to_manifest(tmp_path / "refs.json")
    native = xr.load_dataset(tmp_path / "a.nc")
    xr.testing.assert_identical(
        xr.open_dataset(tmp_path / "refs.json", engine="virtual").load(), native
    )


def test_a_scalar_that_is_named_like_a_dimension_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 3)
        file.createVariable("x", "f4", ())
        file.createVariable("v", "f4", ("x",))[:] = numbers(3)
    for opened in (open_virtual_dataset, lambda p: xr.open_dataset(p, engine="virtual")):
        with pytest.raises(FormatError, match="variable 'x' is a scalar"):
            opened(path)
    assert list(open_virtual_dataset(path, drop_variables="x")) == ["v"]


def test_what_xarray_computes_is_no_selection_of_a_virtual_array(vds: xr.Dataset) -> None:
    array = vds["v"].variable.data
    selected = indexing.LazilyIndexedArray(to_lazy(array, "v", True))
    swapped = NativeEndiannessArray(indexing.LazilyIndexedArray(to_lazy(array, "v", True)))
    found = [layers_of(one) for one in (selected, swapped)]
    assert [layers.is_computed for layers in found if layers is not None] == [False, True]


def test_different_values_with_the_same_first_one_have_different_digests() -> None:
    assert digest_values(np.array([1, 2])) != digest_values(np.array([1, 3]))


def test_only_grid_mappings_have_a_reference_system() -> None:
    system = xr.Variable((), 0, {"grid_mapping_name": "latitude_longitude"})
    ds = xr.Dataset({"v": ("x", [1], {"grid_mapping": "crs"}), "w": ("x", [2]), "crs": system})
    assert [name for name, _ in iterate_crs_names(ds)] == ["crs"]
