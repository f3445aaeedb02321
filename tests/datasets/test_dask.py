"""Virtual arrays in dask: blocks, the size of tasks, and simultaneous reads."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import h5py
import numpy as np
import pytest
import xarray as xr
from dask.base import tokenize
from products import looped

import virtualds
from virtualds import ManifestArray, ReadError
from virtualds.reading.threads import run_all

SUFFIXES = (".zarr", ".parquet", ".json")
MB = 10**6


# ---------------------------------------------------------------------- where dask cuts


def write(path: Path, days: int, chunks: tuple[int, int], first: int = 0) -> np.ndarray[Any, Any]:
    """Write ``v(time, x)``, compressed in chunks, and return its values."""
    values = np.arange(first * 24, (first + days) * 24, dtype="f4").reshape(days, 24)
    with h5py.File(path, "w") as file:
        field = file.create_dataset("v", data=values, chunks=chunks, compression="gzip")
        for axis, name in enumerate(("time", "x")):
            scale = file.create_dataset(name, data=np.arange(values.shape[axis], dtype="f8"))
            scale.make_scale(name)
            field.dims[axis].attach_scale(scale)
    return values


MONTHS = (31, 28, 31)
# files along time: days and chunks of each, then the blocks of chunks={}
ARCHIVES: dict[str, tuple[list[tuple[int, tuple[int, int]]], Any]] = {
    "regular": ([(30, (10, 24))] * 3, ((10,) * 9, (24,))),
    "months": ([(n, (n, 24)) for n in MONTHS], ((31, 28, 31), (24,))),
    "padded": (
        [(n, (10, 12)) for n in MONTHS],
        ((10, 10, 10, 1, 10, 10, 8, 10, 10, 10, 1), (12, 12)),
    ),
    "another grid": ([(10, (5, 8)), (10, (10, 12))], ((5, 5, 10), (24,))),
    "a finer grid": ([(10, (10, 12)), (10, (10, 6))], ((10, 10), (12, 12))),
}  # fmt: skip


def joined(name: str, folder: Path) -> tuple[xr.Dataset, np.ndarray[Any, Any]]:
    parts, values, first = [], [], 0
    for number, (days, chunks) in enumerate(ARCHIVES[name][0]):
        path = folder / f"{number}.nc"
        values.append(write(path, days, chunks, first))
        parts.append(virtualds.open_virtual_dataset(path, loadable_variables=["x"]))
        first += days
    how: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    return xr.concat(parts, "time", join="override", **how), np.concatenate(values)


def edges(lengths: Any) -> set[int]:
    return set(np.cumsum(lengths).tolist())


OPENERS: dict[str, Callable[[xr.Dataset, Path, Any], xr.Dataset]] = {
    "engine": lambda ds, path, chunks: xr.open_dataset(path, engine="virtual", chunks=chunks),
    "many": lambda ds, path, chunks: xr.open_mfdataset([path], engine="virtual", chunks=chunks),
    "to_lazy": lambda ds, path, chunks: ds.virtual.to_lazy(chunks),
}


@looped("opener", OPENERS)
@looped("name", ARCHIVES, quick=len(ARCHIVES) // 3)
def test_blocks_are_the_stored_chunks(name: str, opener: str, tmp_path: Path) -> None:
    ds, values = joined(name, tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.zarr")
    found = OPENERS[opener](ds, tmp_path / "refs.zarr", {})
    assert found["v"].chunks == ARCHIVES[name][1]
    np.testing.assert_array_equal(found["v"].values, values)


OPENERS_AUTO = OPENERS | {"chunk": lambda ds, path, chunks: ds.chunk(chunks)}


@looped("opener", OPENERS_AUTO)
@looped("name", ARCHIVES, quick=len(ARCHIVES) // 3)
def test_automatic_blocks_are_whole_chunks_near_the_size_that_dask_wants(
    name: str, opener: str, tmp_path: Path
) -> None:
    ds, values = joined(name, tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.zarr")
    limit = 60 * 24 * 4
    with dask.config.set({"array.chunk-size": limit}):
        found = OPENERS_AUTO[opener](ds, tmp_path / "refs.zarr", "auto")["v"]
    for blocks, stored in zip(found.chunks, ARCHIVES[name][1], strict=True):
        assert edges(blocks) <= edges(stored)
    largest = max(np.prod(c) for c in np.array(np.meshgrid(*found.chunks)).reshape(2, -1).T)
    assert largest * 4 <= 1.25 * limit
    assert len(found.chunks[0]) < max(4, len(ARCHIVES[name][1][0]))
    np.testing.assert_array_equal(found.values, values)


def test_chunks_longer_than_a_block_are_not_cut_by_to_lazy(tmp_path: Path) -> None:
    ds, values = joined("months", tmp_path)
    with dask.config.set({"array.chunk-size": 20 * 24 * 4}):
        found = ds.virtual.to_lazy("auto")["v"]
    assert found.chunks == (MONTHS, (24,))
    np.testing.assert_array_equal(found.values, values)


def test_tiny_chunks_are_gathered_if_dask_may_choose() -> None:
    ds = references(1, kind="regular")
    assert ds.virtual.to_lazy("auto")["v"].chunks == ((1,), (1000,), (1000,))
    near = ds.virtual.rename_paths({"s3://bucket": "file:///archive"})
    assert near.virtual.to_lazy({})["v"].data.numblocks == (1, 100, 100)


def test_a_gap_is_cut_as_what_lies_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "0.nc", 10, (5, 24))
    ds = virtualds.open_virtual_dataset(tmp_path / "0.nc", loadable_variables=[])
    padded = ds[["v"]].drop_vars(["time", "x"]).pad(time=(0, 23), constant_values=np.nan)
    assert isinstance(padded["v"].data, ManifestArray)
    assert padded.virtual.to_lazy({})["v"].chunks == ((5, 5, 5, 5, 5, 5, 3), (24,))


def test_fragments_that_share_no_edge_are_cut_where_blocks_would_be_huge() -> None:
    def part(chunk: int) -> ManifestArray:
        shape = (1000, 1_000_000)
        return ManifestArray.from_arrays(
            shape=shape, chunks=(1000, chunk), dtype="f4", path="s3://b/a", lengths=4,
            offsets=np.arange(-(-shape[1] // chunk))[None] * 4, codecs=[{"id": "zlib", "level": 1}],
        )  # fmt: skip

    time, x = np.concatenate([part(1009), part(1013)]).blocks
    assert time == (1000, 1000)
    assert x[:2] == (1009, 1009)
    assert sum(x) == 1_000_000


# ---------------------------------------------------------------------- what it carries about


def references(steps: int, kind: str = "compressed") -> xr.Dataset:
    """Return 10,000 references a step, a file each; their bytes are nowhere."""
    grid = (steps, 100, 100)
    lengths = np.full(grid, 1000)
    if kind == "compressed":
        lengths = np.random.default_rng(5).integers(500, 1500, grid)
    offsets = 4096 + np.cumsum(lengths.reshape(steps, -1), 1).reshape(grid) - lengths
    urls = np.array([f"s3://bucket/some/long/prefix/{i:06d}.nc" for i in range(steps)])
    files = [
        ManifestArray.from_arrays(
            shape=(1, 1000, 1000), chunks=(1, 10, 10), dtype="f4", path=url,
            offsets=offsets[i : i + 1], lengths=lengths[i : i + 1],
            codecs=[{"id": "zlib", "level": 1}],
        )
        for i, url in enumerate(urls.tolist())
    ]  # fmt: skip
    return xr.Dataset({"v": (("time", "y", "x"), np.concatenate(files))})


def carried(field: xr.DataArray) -> tuple[int, int, int]:
    """Return the bytes of the graph of a mean, of its largest task but the array, and blocks."""
    (mean,) = dask.optimize(field.mean().data)
    graph = dict(mean.__dask_graph__())
    tasks = [len(cloudpickle.dumps(t)) for k, t in graph.items() if "original" not in str(k)]
    return len(cloudpickle.dumps(graph)), max(tasks), field.data.npartitions


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two million references in the formats that are read when needed."""
    folder = tmp_path_factory.mktemp("large")
    ds = references(200)
    for suffix in (".zarr", ".parquet"):
        ds.virtual.to_manifest(folder / f"refs{suffix}")
    return folder


@pytest.mark.full
@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
def test_the_graph_of_two_million_references_in_a_set_is_that_of_its_blocks(
    suffix: str, sets: Path
) -> None:
    found = xr.open_dataset(sets / f"refs{suffix}", engine="virtual", chunks="auto")["v"]
    total, task, blocks = carried(found)
    assert task < 2000
    assert total < 100_000 + 2000 * blocks


@pytest.mark.full
@pytest.mark.parametrize(("kind", "bound"), [("regular", MB // 5), ("compressed", 3 * MB)])
def test_two_million_references_in_memory_are_carried_once(kind: str, bound: int) -> None:
    """Lengths that compression leaves are 10 bits each here, of which nothing can be left out."""
    ds, whole = references(200, kind), {"time": 100, "y": -1, "x": -1}
    for lazy in (ds.chunk(time=100), ds.virtual.to_lazy(whole)):
        total, task, _ = carried(lazy["v"])
        assert task < 2000
        assert total < bound
    again = pickle.loads(pickle.dumps(ds["v"].data))
    assert tokenize(again) == tokenize(ds["v"].data)
    assert again.has_same_references(ds["v"].data)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_tasks_are_small_in_every_format(suffix: str, tmp_path: Path) -> None:
    references(10).virtual.to_manifest(tmp_path / f"refs{suffix}")
    steps = {"time": 1, "y": -1, "x": -1}
    found = xr.open_dataset(tmp_path / f"refs{suffix}", engine="virtual", chunks=steps)["v"]
    total, task, blocks = carried(found)
    assert task < 2000
    assert total < 150_000 + 2000 * blocks


def test_names_are_those_of_references() -> None:
    one, two, other = references(2), references(2), references(2, "regular")
    assert tokenize(one["v"].data) == tokenize(two["v"].data)
    assert tokenize(one["v"].data) != tokenize(other["v"].data)
    assert tokenize(one["v"].data) != tokenize(one["v"].data[:, :-1])
    moved = one.virtual.rename_paths({"s3://bucket/some": "s3://bucket/other"})
    assert tokenize(one["v"].data) != tokenize(moved["v"].data)


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
def test_pickles_of_one_opening_share_what_was_read(suffix: str, tmp_path: Path) -> None:
    choice = {"manifest": "parquet"} if suffix == ".zarr" else {}
    references(2).virtual.to_manifest(tmp_path / f"refs{suffix}", **choice)
    found = virtualds.open_virtual_dataset(tmp_path / f"refs{suffix}")["v"].data
    data = pickle.dumps(found), pickle.dumps(found[1:])
    first = pickle.loads(data[0]).manifest.loaded()
    shutil.rmtree(tmp_path / f"refs{suffix}")
    again = pickle.loads(data[1])
    assert again.shape == (1, 1000, 1000)
    assert again.manifest.loaded().has_same_references(first.take(0, slice(1, 2)).prune())


# ---------------------------------------------------------------------- sets that change


def field(path: Path, value: float) -> xr.Dataset:
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=np.full((60, 50), value), chunks=(1, 50), compression="gzip")
    return virtualds.open_virtual_dataset(path, loadable_variables=[])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_set_that_was_replaced_gives_its_old_values_or_none(suffix: str, tmp_path: Path) -> None:
    url = tmp_path / f"refs{suffix}"
    field(tmp_path / "1.nc", 1).virtual.to_manifest(url)
    data = cloudpickle.dumps(xr.open_dataset(url, engine="virtual", chunks="auto")["v"])
    field(tmp_path / "2.nc", 2).virtual.to_manifest(url, mode="w")
    try:
        assert (pickle.loads(data).values == 1).all()
    except ReadError as error:
        assert "replaced" in str(error)
    assert (xr.open_dataset(url, engine="virtual", chunks="auto")["v"].values == 2).all()


def test_a_set_of_others_that_was_replaced_gives_no_values(tmp_path: Path) -> None:
    url = tmp_path / "refs.parquet"

    def of_others(value: float) -> None:
        field(tmp_path / f"{value}.nc", value).virtual.to_manifest(url, mode="w")
        marker = (url / ".zmetadata").read_text()
        # others note nothing about the writing of a set
        (url / ".zmetadata").write_text(marker.replace('"virtualds"', '"of nobody"'))

    of_others(1)
    opened = xr.open_dataset(url, engine="virtual", chunks="auto")["v"]
    data, name = cloudpickle.dumps(opened), tokenize(virtualds.open_virtual_dataset(url)["v"].data)
    assert (pickle.loads(data).values == 1).all()
    fresh = cloudpickle.dumps(xr.open_dataset(url, engine="virtual", chunks="auto")["v"])
    of_others(2)
    assert tokenize(virtualds.open_virtual_dataset(url)["v"].data) != name
    with pytest.raises(ReadError, match="replaced"):
        pickle.loads(fresh).compute()


# ---------------------------------------------------------------------- who reads at a time


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray[Any, Any]]:
    folder = tmp_path_factory.mktemp("blocks")
    values = np.arange(400 * 64 * 64, dtype="f4").reshape(400, 64, 64)
    with h5py.File(folder / "a.nc", "w") as file:
        how = {"chunks": (2, 32, 32), "compression": "gzip", "shuffle": True}
        file.create_dataset("v", data=values, **how)
    ds = virtualds.open_virtual_dataset(folder / "a.nc", loadable_variables=[]).rename(
        phony_dim_0="time"
    )
    ds.virtual.to_manifest(folder / "refs.zarr", manifest="parquet")
    return folder / "refs.zarr", values


SCHEDULERS: dict[str, dict[str, Any]] = {
    "one thread": {"scheduler": "synchronous"},
    "threads": {"scheduler": "threads", "num_workers": 16},
    "processes": {"scheduler": "processes", "num_workers": 2},
}


@pytest.mark.full
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_many_blocks_are_read_at_once(scheduler: str, blocks: Any) -> None:
    path, values = blocks
    with dask.config.set(**SCHEDULERS[scheduler]):
        found = xr.open_dataset(path, engine="virtual", chunks={"time": 6})["v"]
        np.testing.assert_array_equal(found.values, values)


@pytest.mark.full
def test_workers_read_many_blocks_at_once(cluster: Any, blocks: Any) -> None:
    path, values = blocks
    found = xr.open_dataset(path, engine="virtual", chunks={})["v"]
    assert found.data.npartitions == 800
    np.testing.assert_array_equal(found.compute(), values)
    virtual = virtualds.open_virtual_dataset(path)["v"].chunk("auto")
    np.testing.assert_array_equal(virtual.compute(), values)


@pytest.mark.full
@pytest.mark.parametrize("suffix", ["", ".zarr", ".parquet"])
def test_workers_read_out_of_two_million_references(
    cluster: Any, suffix: str, tmp_path: Path
) -> None:
    grid = (200, 100, 100)
    stored = np.random.default_rng(3).normal(size=10**6).astype("f4")
    stored.tofile(tmp_path / "a.bin")
    places = (np.arange(np.prod(grid)) % 10**4).reshape(grid)
    array = ManifestArray.from_arrays(
        shape=(200, 1000, 1000), chunks=(1, 10, 10), dtype="f4", path=str(tmp_path / "a.bin"),
        offsets=places * 400, lengths=400,
    )  # fmt: skip
    ds = xr.Dataset({"v": (("time", "y", "x"), array)})
    if suffix:
        ds.virtual.to_manifest(tmp_path / f"refs{suffix}")
        ds = xr.open_dataset(tmp_path / f"refs{suffix}", engine="virtual", chunks="auto")
    else:
        ds = ds.chunk("auto")
    assert carried(ds["v"])[0] < 1 * MB
    part = ds["v"][100:103]
    assert part.data.npartitions < 30
    np.testing.assert_allclose(part.mean(("y", "x")).compute(), stored.mean(), rtol=1e-3)


def test_a_forked_child_reads(blocks: Any) -> None:
    path, values = blocks
    array = virtualds.open_virtual_dataset(path)["v"].data
    array.read()  # the parent has threads and open files by now
    if not (child := os.fork()):
        os._exit(0 if (array.read() == values).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_reading_within_what_reads_comes_to_an_end(blocks: Any) -> None:
    path, values = blocks
    array = virtualds.open_virtual_dataset(path)["v"].data
    found: dict[int, Any] = {}

    def step(number: int) -> None:
        found[number] = array.read((slice(number, number + 50), slice(None), slice(None)))

    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda _: run_all(iter(range(0, 400, 50)), step), range(8)):
            pass
    np.testing.assert_array_equal(np.concatenate([found[n] for n in sorted(found)]), values)
