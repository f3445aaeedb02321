"""Lazy datasets of xarray and dask are written as references if they still refer to chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds import ManifestArray, UnsupportedError

CHUNKS: tuple[Any, ...] = (None, {}, {"time": 7})
Change = Callable[[xr.Dataset], xr.Dataset]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed field, dates, strings, and a coordinate of two dimensions, in chunks."""
    path = tmp_path_factory.mktemp("lazy") / "a.nc"
    hours = np.arange(200).reshape(20, 10) * np.timedelta64(1, "h")
    xr.Dataset(
        {
            "t": (("time", "lat", "lon"), np.arange(20.0 * 10 * 12).reshape(20, 10, 12) / 2),
            "dates": (("time", "lat"), np.datetime64("2000-01-01", "ns") + hours),
            "names": ("lat", np.array(list("abcdefghij"), object)),
        },
        {"time": np.arange(20), "area": (("lat", "lon"), np.arange(120.0).reshape(10, 12))},
    ).to_netcdf(
        path,
        engine="netcdf4",
        encoding={
            "t": {"chunksizes": (3, 5, 12), "dtype": "i2", "scale_factor": 0.5, "_FillValue": -9},
            "dates": {"chunksizes": (3, 5)},
        },
    )
    return path


def written(dataset: xr.Dataset, target: Path) -> xr.Dataset:
    """Write a dataset, and return what the set refers to."""
    dataset.virtual.to_manifest(target)
    return virtualds.open_virtual_dataset(target, loadable_variables=[])


VIRTUAL: dict[str, Change] = {
    "as opened": lambda ds: ds,
    "slices": lambda ds: ds.isel(time=slice(2, 9), lat=slice(1, 9)),
    "labels": lambda ds: ds.sel(time=slice(3, 8)),
    "integers": lambda ds: ds.isel(time=3, lat=2),
    "steps": lambda ds: ds.isel(time=slice(1, None, 2)),
    "backwards": lambda ds: ds.isel(time=slice(None, None, -1)),
    "a list": lambda ds: ds.isel(time=[1, 2, 3, 7]),
    "two lists": lambda ds: ds.isel(time=[1, 2, 3, 7], lat=[5, 0]),
    "nothing": lambda ds: ds.isel(time=slice(0, 0)),
    "renamed": lambda ds: ds.rename(t="q", lat="y"),
    "transposed": lambda ds: ds.transpose(),
    "selected and transposed": lambda ds: ds.isel(lat=2).transpose("lon", ...),
    "transposed and selected": lambda ds: ds.transpose("lon", ...).isel(lon=slice(1), time=[4]),
    "one axis transposed": lambda ds: ds.isel(lat=2, lon=3).transpose(),
    "selected twice": lambda ds: ds.isel(time=slice(2, 15)).isel(time=slice(None, None, 3)),
    "described otherwise": lambda ds: ds.assign_attrs(title="other"),
}


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("name", VIRTUAL)
@pytest.mark.filterwarnings("ignore:The specified chunks separate")
def test_selections_keep_their_references(
    name: str, chunks: Any, path: Path, tmp_path: Path
) -> None:
    change = VIRTUAL[name]
    dataset = change(xr.open_dataset(path, engine="virtual", chunks=chunks))
    with virtualds.set_options(load_limit=200):
        assert dataset.virtual.sources["url"].tolist() == [path.as_uri()]
        found = written(dataset, tmp_path / "refs.zarr")
    field = "q" if name == "renamed" else "t"
    assert isinstance(found[field].variable.data, ManifestArray)
    assert found["dates"].variable.data.sources == dataset.virtual.arrays["dates"].sources
    again = xr.open_dataset(tmp_path / "refs.zarr", engine="virtual")
    xr.testing.assert_identical(again.load(), change(xr.open_dataset(path)).load())


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
@pytest.mark.parametrize("chunks", CHUNKS[:2], ids=str)
def test_a_set_is_written_as_references_again(
    chunks: Any, suffix: str, path: Path, tmp_path: Path
) -> None:
    virtualds.open_virtual_dataset(path).virtual.to_manifest(tmp_path / f"a{suffix}")
    opened = xr.open_dataset(tmp_path / f"a{suffix}", engine="virtual", chunks=chunks)
    found = written(opened.isel(time=slice(3, 9)), tmp_path / f"b{suffix}")
    assert found["t"].variable.data.sources[0].url == path.as_uri()


@pytest.mark.parametrize("chunks", CHUNKS[:2], ids=str)
def test_looking_at_references_reads_nothing(chunks: Any, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a.nc"
    copy.write_bytes(path.read_bytes())
    dataset = xr.open_dataset(copy, engine="virtual", chunks=chunks).drop_vars("names")
    copy.unlink()
    part = dataset.isel(time=slice(3, 9)).transpose("lat", ...)
    assert part.virtual.nchunks == 9
    part.virtual.to_manifest(tmp_path / "refs.zarr")


ORIGINS: dict[str, Callable[[Path], xr.Dataset]] = {
    "chunked afterwards": lambda p: xr.open_dataset(p, engine="virtual").chunk(time=5),
    "virtual, chunked": lambda p: virtualds.open_virtual_dataset(p).chunk(time=5),
    "to_lazy": lambda p: virtualds.open_virtual_dataset(p).virtual.to_lazy(),
    "to_lazy, with dask": lambda p: virtualds.open_virtual_dataset(p).virtual.to_lazy({}),
    "not decoded": lambda p: xr.open_dataset(p, engine="virtual", decode_cf=False),
    "many files": lambda p: xr.open_mfdataset([p], engine="virtual"),
    "joined": lambda p: xr.concat(
        [
            xr.open_dataset(p, engine="virtual", chunks={}).isel(time=slice(n, n + 6))
            for n in (0, 6)
        ],
        "time",
        data_vars="minimal",
    ),
}


@pytest.mark.parametrize("name", ORIGINS)
def test_lazy_datasets_of_any_origin_keep_their_references(
    name: str, path: Path, tmp_path: Path
) -> None:
    dataset = ORIGINS[name](path)
    found = written(dataset, tmp_path / "refs.zarr")
    assert found["t"].variable.data.sources[0].url == path.as_uri()
    decode = name != "not decoded"
    again = xr.open_dataset(tmp_path / "refs.zarr", engine="virtual", decode_cf=decode)
    xr.testing.assert_equal(again.load(), dataset.load())


COMPUTED: dict[str, Change] = {
    "arithmetic": lambda ds: ds.assign(t=ds["t"] * 2),
    "a mean": lambda ds: ds[["t"]].mean("time"),
    "a mean of everything": lambda ds: ds[["t"]].mean(),
    "gaps filled": lambda ds: ds.assign(t=ds["t"].fillna(0)),
    "other chunks, then a mean": lambda ds: ds[["t"]].chunk(time=-1).mean("time"),
    "a function": lambda ds: ds.assign(t=xr.apply_ufunc(np.sin, ds["t"], dask="parallelized")),
    "blocks that a function makes": lambda ds: ds.assign(
        t=ds["t"].copy(data=ds["t"].data.map_blocks(lambda block: np.zeros(block.shape)))
    ),
}


def points(dataset: xr.Dataset) -> xr.Dataset:
    """Select single elements."""
    place = {dim: xr.DataArray([0, n], dims="p") for n, dim in enumerate(("time", "lat"), 1)}
    return dataset.isel(place)


REFUSED: list[Any] = [
    *(
        pytest.param(change, {}, id=name)
        for name, change in COMPUTED.items()
        if "zeros" not in name
    ),
    *(pytest.param(points, chunks, id=f"points, {chunks}") for chunks in CHUNKS[:2]),
    pytest.param(lambda ds: xr.decode_cf(ds), None, id="decoded afterwards"),
]


@pytest.mark.parametrize(("change", "chunks"), REFUSED)
def test_computed_values_are_refused(
    change: Change, chunks: Any, path: Path, tmp_path: Path
) -> None:
    decode = change is not REFUSED[-1].values[0]
    opened = xr.open_dataset(path, engine="virtual", chunks=chunks, decode_cf=decode)
    dataset = change(opened.drop_vars("names"))
    with pytest.raises(UnsupportedError, match="open_virtual_dataset") as caught:
        dataset.virtual.to_manifest(tmp_path / "refs.zarr")
    assert "variable 't': " in str(caught.value)
    assert not (tmp_path / "refs.zarr").exists()
    assert "t" not in dataset.virtual.arrays
    dataset.load().virtual.to_manifest(tmp_path / "refs.zarr")


def test_arrays_within_tasks_are_refused(path: Path, tmp_path: Path) -> None:
    dataset = xr.open_dataset(path, engine="virtual", chunks={}, inline_array=True)
    with pytest.raises(UnsupportedError, match="inline_array"):
        dataset.virtual.to_manifest(tmp_path / "refs.zarr")


@pytest.mark.parametrize("chunks", CHUNKS[:2], ids=str)
@pytest.mark.parametrize("suffix", [".json", ".zarr"])
def test_the_limit_bounds_values_that_writing_loads(
    suffix: str, chunks: Any, path: Path, tmp_path: Path
) -> None:
    # xarray makes objects of dates, which chunks cannot become one by one
    times = xr.coders.CFDatetimeCoder(use_cftime=True)
    objects = xr.open_dataset(path, engine="virtual", chunks=chunks, decode_times=times)[["dates"]]
    foreign = xr.open_dataset(path, engine="netcdf4", chunks=chunks)[["t"]]
    for dataset in (objects, foreign):
        target = tmp_path / f"refs{suffix}"
        with virtualds.set_options(load_limit=1599), pytest.raises(UnsupportedError, match="limit"):
            dataset.virtual.to_manifest(target)
        dataset.virtual.to_manifest(target, mode="w")
        again = xr.open_dataset(target, engine="virtual", decode_times=times).load()
        xr.testing.assert_equal(again, dataset.load())


@pytest.mark.parametrize("chunks", CHUNKS[:2], ids=str)
def test_lazy_datasets_are_appended_as_references(chunks: Any, path: Path, tmp_path: Path) -> None:
    opened = xr.open_dataset(path, engine="virtual", chunks=chunks)
    whole = opened.drop_vars(["names", "area"])
    target = tmp_path / "refs.zarr"
    for part in (slice(0, 6), slice(6, 20)):
        whole.isel(time=part).virtual.to_manifest(target, append_dim="time")
    found = virtualds.open_virtual_dataset(target)
    assert found.virtual.sources["chunks"].tolist() == whole.virtual.sources["chunks"].tolist()
    xr.testing.assert_equal(found.virtual.load(), whole.load())


@pytest.mark.parametrize("chunks", CHUNKS[:2], ids=str)
def test_lazy_datasets_replace_their_source_as_references(
    chunks: Any, path: Path, tmp_path: Path
) -> None:
    target = tmp_path / "refs.zarr"
    before = virtualds.open_virtual_dataset(path).drop_vars(["names", "area"])
    before.isel(time=slice(0, 12)).virtual.to_manifest(target)
    opened = xr.open_dataset(path, engine="virtual", chunks=chunks).drop_vars(["names", "area"])
    opened.virtual.to_manifest(target, mode="replace-source", append_dim="time")
    found = virtualds.open_virtual_dataset(target)
    assert found.virtual.sources["chunks"].tolist() == before.virtual.sources["chunks"].tolist()
    xr.testing.assert_equal(found.virtual.load(), opened.load())
