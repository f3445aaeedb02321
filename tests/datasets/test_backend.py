"""``xr.open_dataset(x, engine="virtual")`` behaves as every engine of xarray does."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive
from counting_server import counting_server
from products import looped
from programs import run_code

import virtualds
from virtualds import FormatError, ReadError
from virtualds.backend import VirtualBackendEntrypoint

pytestmark = pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")

ENGINE = VirtualBackendEntrypoint()


def lazy(path: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(path, engine="virtual", **options)


@pytest.fixture(scope="module", params=["source", "kerchunk-json"])
def path(
    request: pytest.FixtureRequest, archive: Archive, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """``v``, ``p(time, y, x)`` and their coordinates, as a netCDF4 file and as references to it."""
    source = archive.path("larger_than_small")
    if request.param == "source":
        return source
    target = tmp_path_factory.mktemp("refs") / "refs.json"
    ds = virtualds.open_virtual_dataset(source, loadable_variables=[])
    ds.virtual.to_manifest(target)
    return target


@pytest.fixture
def native(archive: Archive) -> xr.Dataset:
    return archive.native("larger_than_small")


# ---------------------------------------------------------------------- which files are ours

GUESSES: dict[str, tuple[Any, bool]] = {
    "a reference set by its name": ("refs.refs.json", True),
    "another": (Path("/data/x.virtual.json"), True),
    "a folder of references by its name": ("x.refs.parquet", True),
    "any Parquet": ("x.parquet", False),
    "one that is remote": ("s3://bucket/x.refs.json", True),
    "any JSON": ("refs.json", False),
    "netCDF": ("a.nc", False),
    "HDF5": ("a.h5", False),
    "Zarr": ("a.zarr", False),
    "bytes": (b"\x89HDF\r\n\x1a\n", False),
    "a number": (3, False),
    "none": (None, False),
}


@looped("which", GUESSES)
def test_suffixes_of_reference_sets_are_recognised(which: str) -> None:
    name, ours = GUESSES[which]
    # none of these files exists: opening them would fail
    assert ENGINE.guess_can_open(name) is ours


FOLDERS: dict[str, tuple[Callable[[xr.Dataset, Path], Any], bool]] = {
    "zarr-v3": (lambda ds, path: ds.virtual.to_manifest(path, format="zarr-v3"), True),
    "kerchunk-parquet": (
        lambda ds, path: ds.virtual.to_manifest(path, format="kerchunk-parquet"),
        True,
    ),
    "plain Zarr": (lambda ds, path: ds.virtual.load().to_zarr(path, zarr_format=3), False),
    "plain Zarr of version 2": (
        lambda ds, path: ds.virtual.load().to_zarr(path, zarr_format=2),
        False,
    ),
    "an empty folder": (lambda ds, path: path.mkdir(), False),
    "a file": (lambda ds, path: path.write_bytes(b"x"), False),
    "nothing": (lambda ds, path: None, False),
}


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("which", FOLDERS)
def test_a_local_set_is_recognised_by_its_metadata_file(
    which: str, archive: Archive, tmp_path: Path
) -> None:
    make, ours = FOLDERS[which]
    path = tmp_path / "s.zarr"
    make(virtualds.open_virtual_dataset(archive.path("larger_than_small")), path)
    for name in (path, str(path), f"file://{path}"):
        assert ENGINE.guess_can_open(name) is ours


@pytest.mark.parametrize("spelling", [Path, str, "{}/".format])
def test_xarray_opens_a_local_set_by_itself(
    spelling: Callable[[Any], Any], archive: Archive, tmp_path: Path
) -> None:
    vds = virtualds.open_virtual_dataset(archive.path("larger_than_small"))
    vds.virtual.to_manifest(tmp_path / "s.zarr")
    expected, path = archive.native("larger_than_small"), spelling(tmp_path / "s.zarr")
    # xarray asks engines in the order of their names, and that of Zarr owns such a name too
    assert xr.backends.plugins.guess_engine(path) == "virtual"
    xr.testing.assert_identical(xr.open_dataset(path).load(), expected)
    xr.testing.assert_identical(xr.open_datatree(path).to_dataset().load(), expected)
    xr.testing.assert_identical(xr.open_groups(path)["/"].load(), expected)


def test_plain_zarr_stays_with_the_engine_of_zarr(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": ("x", [1.0])})
    ds.to_zarr(tmp_path / "s.zarr", zarr_format=3, consolidated=False)
    assert xr.backends.plugins.guess_engine(str(tmp_path / "s.zarr")) == "zarr"


def test_guessing_opens_no_file_with_a_known_suffix(tmp_path: Path) -> None:
    opened: list[Any] = []
    sys.addaudithook(lambda event, args: opened.append(args) if event == "open" else None)
    ENGINE.guess_can_open(tmp_path / "a.refs.json")
    ENGINE.guess_can_open("memory://bucket/a.json")
    assert not [args for args in opened if "a.refs.json" in str(args)]


def test_guessing_asks_nothing_of_a_server(archive: Archive, tmp_path: Path) -> None:
    vds = virtualds.open_virtual_dataset(archive.path("larger_than_small"))
    vds.virtual.to_manifest(tmp_path / "s.zarr")
    with counting_server(tmp_path) as (url, counts):
        for name in (f"{url}/s.zarr", f"{url}/s.zarr/", f"zip://s.zarr::{url}/s.zip"):
            assert not ENGINE.guess_can_open(name)
    assert not counts.requests


def test_xarray_knows_the_engine(archive: Archive) -> None:
    assert isinstance(xr.backends.list_engines()["virtual"], VirtualBackendEntrypoint)
    # others own the names of netCDF files
    assert xr.backends.plugins.guess_engine(str(archive.path("contiguous"))) != "virtual"


@pytest.mark.parametrize("what", [3, object(), [b"bytes"], xr.Dataset()])
def test_only_names_and_files_are_opened(what: Any) -> None:
    with pytest.raises(TypeError, match="path or url"):
        lazy(what)


@pytest.mark.parametrize("what", [b"bytes", {"version": 1, "refs": {}}])
def test_objects_without_a_known_format_are_refused(what: Any) -> None:
    with pytest.raises(FormatError):
        lazy(what)


# ---------------------------------------------------------------------- options of xarray

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "decode_cf=False": ("cf_conventions", {"decode_cf": False}),
    "mask_and_scale=False": ("packed_int16", {"mask_and_scale": False}),
    "mask_and_scale by name": (
        "packed_int16", {"mask_and_scale": {"f4": False, "f8_filled": False}},
    ),
    "decode_times=False": ("cf_conventions", {"decode_times": False}),
    "decode_times of a resolution": (
        "time_in_days", {"decode_times": xr.coders.CFDatetimeCoder(time_unit="s")},
    ),
    "cftime": ("time_in_days", {"decode_times": xr.coders.CFDatetimeCoder(use_cftime=True)}),
    "decode_timedelta": ("numbers_in_units_of_time", {"decode_timedelta": True}),
    "no decode_timedelta": ("timedelta_of_xarray", {"decode_timedelta": False}),
    "decode_coords=False": ("two_dimensional_coordinates", {"decode_coords": False}),
    "decode_coords='all'": ("cf_conventions", {"decode_coords": "all"}),
    "concat_characters=False": ("character_arrays", {"concat_characters": False}),
    "drop one variable": ("cf_conventions", {"drop_variables": "t"}),
    "drop variables": ("cf_conventions", {"drop_variables": ["t", "lat_bnds", "nothing"]}),
    "drop a coordinate": ("cf_conventions", {"drop_variables": ["lat"]}),
}  # fmt: skip


@looped("which", OPTIONS)
def test_options_mean_what_they_mean_to_the_native_engine(which: str, archive: Archive) -> None:
    name, options = OPTIONS[which]
    found = lazy(archive.path(name), **options).load()
    expected = CASES[name].native(archive.path(name), **options)
    xr.testing.assert_identical(found, expected)
    for variable in expected.variables:
        assert found[variable].dtype == expected[variable].dtype


def write_times(path: Path) -> None:
    """Dates and durations that are no coordinates, with missing ones, and scaled numbers."""
    hours = np.arange(30).reshape(10, 3)
    when = np.datetime64("2000-01-01", "ns") + hours.astype("m8[h]")
    when[1, 1] = np.datetime64("NaT")
    ds = xr.Dataset(
        {
            "when": (("time", "x"), when),
            "last": (("time", "x"), hours.astype("m8[h]").astype("m8[ns]")),
            "t": (("time", "x"), hours * 0.5),
        }
    )
    scaled = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -9}
    dates = {"units": "hours since 2000-01-01", "dtype": "int32", "_FillValue": -1}
    coding = {"when": dates, "last": {"dtype": "int64"}, "t": scaled}
    ds.to_netcdf(path, engine="netcdf4", encoding=coding)


OF_TIMES: dict[str, dict[str, Any]] = {
    "numbers as they are": {"mask_and_scale": False},
    "one variable as it is": {"mask_and_scale": {"when": False}},
    "no times": {"decode_times": False},
    "no times of one variable": {"decode_times": {"when": False}},
    "dates in seconds": {"decode_times": xr.coders.CFDatetimeCoder(time_unit="s")},
    "no durations": {"decode_timedelta": False},
    "durations in seconds": {"decode_timedelta": xr.coders.CFTimedeltaCoder(time_unit="s")},
    "durations, numbers as they are": {"decode_timedelta": True, "mask_and_scale": False},
    "nothing decoded": {"decode_cf": False},
}


@looped("chunks", [None, {}], quick=1)
@looped("which", OF_TIMES)
def test_options_mean_the_same_for_times(which: str, chunks: Any, tmp_path: Path) -> None:
    path, options = tmp_path / "times.nc", {"chunks": chunks, **OF_TIMES[which]}
    write_times(path)
    with xr.open_dataset(path, engine="netcdf4", **options) as known:
        found, part = lazy(path, **options), {"time": slice(1, 9, 3)}
        xr.testing.assert_identical(found.isel(part).load(), known.isel(part).load())


def test_groups_are_opened_by_path(archive: Archive) -> None:
    found = lazy(archive.path("groups_root"), group="a/b").load()
    xr.testing.assert_identical(found, archive.native("groups_grandchild"))
    with pytest.raises(FileNotFoundError, match="'z'"):
        lazy(archive.path("groups_root"), group="z")


def test_an_unknown_option_is_refused(path: Path) -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        lazy(path, no_such_option=1)


def test_access_options_go_to_the_store(path: Path, native: xr.Dataset) -> None:
    if path.suffix == ".json":
        pytest.skip("a remote set may not refer to local files")
    fsspec.filesystem("memory").pipe("/backend/a.nc", path.read_bytes())
    ds = lazy("memory://backend/a.nc", storage_options={"asynchronous": False})
    xr.testing.assert_identical(ds.load(), native)


# ---------------------------------------------------------------------- laziness


def test_opening_reads_no_values(tmp_path: Path) -> None:
    CASES["larger_than_small"].write(tmp_path / "a.nc")
    ds = lazy(tmp_path / "a.nc", create_default_indexes=False)
    (tmp_path / "a.nc").unlink()
    assert ds["v"].shape == (12, 30, 50)
    repr(ds["v"].variable)
    with pytest.raises(ReadError, match=r"a\.nc") as caught:
        ds["v"].variable.load()
    assert str(caught.value).startswith("variable 'v' of file://")


INDEXERS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "a box": lambda ds: ds.isel(time=slice(2, 9), y=slice(19, 22), x=7),
    "strides": lambda ds: ds.isel(time=slice(None, None, 5), x=slice(49, 2, -7)),
    "positions": lambda ds: ds.isel(time=[3, 1, 1], y=[0, -1]),
    "a mask": lambda ds: ds.isel(time=np.arange(12) % 3 == 0),
    "points": lambda ds: ds.isel(
        time=xr.DataArray([0, 11, 5], dims="p"), x=xr.DataArray([49, 0, 20], dims="p")
    ),
    "points in two dimensions": lambda ds: ds.isel(
        y=xr.DataArray([[0, 29], [5, 6]], dims=("p", "q")),
        x=xr.DataArray([[1, 2], [3, 4]], dims=("p", "q")),
    ),
    "points and a slice": lambda ds: ds.isel(
        time=slice(1, 3), y=xr.DataArray([2, 2], dims="p"), x=xr.DataArray([0, 1], dims="p")
    ),
    "labels": lambda ds: ds.sel(time="2001-01-03", y=slice(3, 5), x=[1, 40]),
    "nearest": lambda ds: ds.sel(x=3.4, method="nearest"),
    "one after another": lambda ds: ds.isel(time=slice(2, None)).isel(time=slice(None, -3), x=[1]),
    "a reduction": lambda ds: ds.max(("y", "x")),
    "a coarsening": lambda ds: ds.coarsen(time=4).mean(),
    "groups": lambda ds: ds.groupby("time.dayofweek").mean(),
    "shifted": lambda ds: ds.shift(time=2),
    "stacked": lambda ds: ds.stack(z=("y", "x")).isel(z=[0, 77, 3]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("chunks", [None, {}, {"time": 5}])
@pytest.mark.parametrize("which", INDEXERS)
def test_selections_are_those_of_the_native_engine(
    which: str, chunks: Any, path: Path, native: xr.Dataset
) -> None:
    select = INDEXERS[which]
    found = select(lazy(path, chunks=chunks)).compute()
    assert_same = xr.testing.assert_identical if chunks is None else xr.testing.assert_allclose
    assert_same(found, select(native))


def test_values_are_kept_once_they_are_read(tmp_path: Path) -> None:
    CASES["larger_than_small"].write(tmp_path / "a.nc")
    ds = lazy(tmp_path / "a.nc")
    first = ds["v"].values
    (tmp_path / "a.nc").unlink()
    np.testing.assert_array_equal(ds["v"].values, first)


async def test_datasets_load_asynchronously(path: Path, native: xr.Dataset) -> None:
    ds = lazy(path)
    xr.testing.assert_identical(await ds.load_async(), native)


async def test_several_selections_load_at_once(path: Path, native: xr.Dataset) -> None:
    parts = [lazy(path)["v"].isel(time=n) for n in range(12)]
    loaded = await asyncio.gather(*(part.load_async() for part in parts))
    for number, part in enumerate(loaded):
        xr.testing.assert_identical(part, native["v"].isel(time=number))


# ---------------------------------------------------------------------- other processes


def test_a_lazy_dataset_pickles(path: Path, native: xr.Dataset) -> None:
    again = pickle.loads(pickle.dumps(lazy(path)))
    xr.testing.assert_identical(again.load(), native)


def test_a_pickle_is_read_where_nothing_is_imported_yet(
    path: Path, tmp_path: Path, native: xr.Dataset
) -> None:
    (tmp_path / "ds.pickle").write_bytes(pickle.dumps(lazy(path, chunks={})))
    code = "import pickle, sys; print(float(pickle.load(open(sys.argv[1], 'rb'))['v'].sum()))"
    out = run_code(code, tmp_path / "ds.pickle", check=True)
    np.testing.assert_allclose(float(out.stdout), float(native["v"].sum()), rtol=1e-4)


def test_dask_chunks_are_the_files_chunks(path: Path) -> None:
    ds = lazy(path, chunks={})
    assert ds["v"].chunks == ((5, 5, 2), (20, 10), (20, 20, 10))
    assert ds["p"].chunks == ((1,) * 12, (30,), (50,))


# ---------------------------------------------------------------------- many, and errors


def test_many_sets_are_opened_by_xarray(archive_files: list[Path], tmp_path: Path) -> None:
    targets = []
    for source in archive_files:
        targets.append(tmp_path / f"{source.stem}.json")
        ds = virtualds.open_virtual_dataset(source, loadable_variables=[])
        ds.virtual.to_manifest(targets[-1], mode="w")
    how: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    found = xr.open_mfdataset(targets, engine="virtual", join="outer", **how)
    expected = xr.concat([xr.load_dataset(p) for p in archive_files], "time", join="outer", **how)
    xr.testing.assert_identical(found.compute(), expected)


def test_a_dataset_made_from_references_is_saved_as_netcdf(
    path: Path, tmp_path: Path, native: xr.Dataset
) -> None:
    lazy(path).to_netcdf(tmp_path / "copy.nc", engine="netcdf4")
    xr.testing.assert_identical(xr.load_dataset(tmp_path / "copy.nc"), native)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.json"):
        lazy(tmp_path / "missing.json")


def test_a_file_of_unknown_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.refs.json").write_text(json.dumps([1, 2]))
    with pytest.raises(FormatError, match=r"a\.refs\.json"):
        lazy(tmp_path / "a.refs.json")


def test_a_missing_source_is_named_with_its_variable(tmp_path: Path) -> None:
    CASES["larger_than_small"].write(tmp_path / "a.nc")
    ds = virtualds.open_virtual_dataset(tmp_path / "a.nc", loadable_variables=["time", "y", "x"])
    ds.virtual.to_manifest(tmp_path / "refs.json")
    os.remove(tmp_path / "a.nc")
    opened = lazy(tmp_path / "refs.json")
    with pytest.raises(ReadError, match=r"a\.nc") as caught:
        opened["p"].load()
    assert str(caught.value).startswith("variable 'p' of file://")
