"""Blocks of far arrays hold many requests, never too many bytes, and the same values."""

from __future__ import annotations

import pickle
import shutil
import warnings
from itertools import combinations, permutations
from math import prod
from pathlib import Path
from typing import Any

import dask
import h5py
import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from memory import peak

import virtualds
from virtualds import ManifestArray
from virtualds.chunks.fragment import LARGE_BLOCK
from virtualds.datasets import lazy as far_blocks
from virtualds.datasets.conversion import group_from_dataset
from virtualds.datasets.decoding import encoding_of

STEPS, SIDE = 24, 192
VALUES = np.random.default_rng(7).normal(size=(STEPS, SIDE, SIDE)).round(2)


def write_files(folder: Path) -> xr.Dataset:
    """Write a file for each step, in four chunks, and refer to all of them."""
    folder.mkdir()
    for number, values in enumerate(VALUES):
        with h5py.File(folder / f"{number:02}.nc", "w") as file:
            how: Any = {"chunks": (1, SIDE // 2, SIDE // 2), "compression": "gzip"}
            field = file.create_dataset("v", data=values[None], **how)
            for axis, name in enumerate(("time", "y", "x")):
                scale = file.create_dataset(name, data=np.arange(field.shape[axis]) + number)
                scale.make_scale(name)
                field.dims[axis].attach_scale(scale)
    parts = [virtualds.open_virtual_dataset(p) for p in sorted(folder.glob("*.nc"))]
    return xr.concat([part.drop_vars(["y", "x"]) for part in parts], "time")


OPENERS: dict[str, Any] = {
    ".zarr": lambda ds, path, chunks: xr.open_dataset(path, engine="virtual", chunks=chunks),
    ".parquet": lambda ds, path, chunks: xr.open_dataset(path, engine="virtual", chunks=chunks),
    ".json": lambda ds, path, chunks: xr.open_mfdataset([path], engine="virtual", chunks=chunks),
    "to_lazy": lambda ds, path, chunks: ds.virtual.to_lazy(chunks),
}


@pytest.mark.parametrize("opener", OPENERS)
def test_far_blocks_take_no_more_requests_than_no_dask(opener: str, tmp_path: Path) -> None:
    ds, path = write_files(tmp_path / "files"), tmp_path / f"refs{opener}"
    with counting_server(tmp_path) as (url, counts):
        far = ds.virtual.rename_paths({f"file://{tmp_path}": url})
        if opener != "to_lazy":
            far.virtual.to_manifest(path)
        found = OPENERS[opener](far, path, {})
        assert found["v"].chunks == ((STEPS,), (SIDE,), (SIDE,))
        np.testing.assert_array_equal(found["v"].values, VALUES)
        assert len(counts.requests) == STEPS
        exact = OPENERS[opener](far, path, {"time": 1, "y": SIDE // 2, "x": SIDE // 2})
        assert exact["v"].data.npartitions == 4 * STEPS
        np.testing.assert_array_equal(exact["v"].values, VALUES)


def test_a_mean_that_is_repeated_sends_no_request(tmp_path: Path) -> None:
    ds = write_files(tmp_path / "files")
    with counting_server(tmp_path) as (url, counts):
        lazy = ds.virtual.rename_paths({f"file://{tmp_path}": url}).virtual.to_lazy({})["v"]
        first = lazy.mean().compute()
        assert len(counts.requests) == STEPS
        assert lazy.mean().compute() == first
        np.testing.assert_array_equal(lazy.values, VALUES)
        assert len(counts.requests) == STEPS


def test_near_blocks_are_chunks(tmp_path: Path) -> None:
    ds = write_files(tmp_path / "files")
    ds.virtual.to_manifest(tmp_path / "refs.zarr")
    found = xr.open_dataset(tmp_path / "refs.zarr", engine="virtual", chunks={})
    assert found["v"].data.npartitions == 4 * STEPS


def test_a_far_set_that_cannot_be_read_opens_as_it_does_without_dask(tmp_path: Path) -> None:
    path = tmp_path / "refs.parquet"
    write_files(tmp_path / "files").virtual.to_manifest(path)
    for file in (path / "v").glob("refs*"):
        file.unlink()
    with pytest.raises(virtualds.ReadError):
        xr.open_dataset(path, engine="virtual", chunks={})["v"].compute()


def test_a_mean_takes_the_memory_of_a_block_for_each_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = 2**18
    monkeypatch.setattr(far_blocks, "REMOTE_BLOCK_BYTES", block)
    ds = write_files(tmp_path / "files")
    with counting_server(tmp_path) as (url, _):
        far = ds.virtual.rename_paths({f"file://{tmp_path}": url})
        lazy = far.virtual.to_lazy({})["v"]
        assert max(map(prod, zip(*lazy.chunks, strict=False))) * 8 <= block
        found: list[Any] = []
        threads = dask.config.set(scheduler="threads", num_workers=2)
        with threads, virtualds.set_options(chunk_cache=0):
            lazy[:2].mean().compute()
            # a result, encoded bytes, and what dask and sockets take
            most = 2 * 2 * block + 2**20
            # other work of the machine can hold up one thread between two blocks, but not each time
            assert any(peak(lambda: found.append(lazy.mean().compute())) < most for _ in range(3))
        np.testing.assert_allclose(found[0], VALUES.mean())


# ---------------------------------------------------------------------- what a user asks for


def far_field(shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "f4") -> ManifestArray:
    grid = tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
    return ManifestArray.from_arrays(
        shape=shape, chunks=chunks, dtype=dtype, path="http://127.0.0.1:9/a", lengths=4,
        offsets=np.arange(prod(grid)).reshape(grid) * 4, codecs=[{"id": "zlib", "level": 1}],
    )  # fmt: skip


DIMS = ("time", "z", "y", "x")
# shape and chunks; how many chunks the blocks of chunks={} have along each dimension
FIELDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "small": ((100, 256, 256), (1, 128, 128), (100, 2, 2)),
    "maps": ((8760, 721, 1440), (1, 721, 1440), (8, 1, 1)),
    "tiled maps": ((8760, 720, 1440), (1, 360, 720), (32, 1, 1)),
    "a long series": ((10**7,), (1000,), (8388,)),
    "large chunks": ((1000, 4000, 4000), (10, 1000, 1000), (1, 1, 1)),
    "large maps": ((1000, 20000, 20000), (1, 1000, 1000), (1, 1, 1)),
    "levels": ((1000, 37, 721, 1440), (1, 1, 721, 1440), (1, 1, 1, 1)),
    "empty": ((0, 100), (1, 100), (1, 1)),
}


@pytest.mark.parametrize("name", FIELDS)
def test_no_request_of_a_user_makes_a_block_huge(name: str) -> None:
    """Dimensions that a user wants whole multiply with blocks along the others."""
    shape, chunks, together = FIELDS[name]
    ds = xr.Dataset({"v": (DIMS[-len(shape) :], far_field(shape, chunks))})
    found = ds.virtual.to_lazy({})["v"]
    first = tuple(lengths[0] for lengths in found.chunks)
    wanted = tuple(min(c * n, size) for c, n, size in zip(chunks, together, shape, strict=True))
    assert first == wanted
    for count in range(len(shape)):
        for whole in combinations(range(len(shape)), count):
            block = prod(shape[i] if i in whole else first[i] for i in range(len(shape))) * 4
            stored = prod(shape[i] if i in whole else chunks[i] for i in range(len(shape))) * 4
            assert block <= max(stored, LARGE_BLOCK)


def test_variables_that_share_chunks_share_the_smallest_blocks() -> None:
    shape, chunks = (400, 256, 256), (1, 128, 128)
    ds = xr.Dataset(
        {
            "t": (DIMS[1:], far_field(shape, chunks)),
            "u": (DIMS[1:], far_field(shape, chunks, "f8")),
            "p": (DIMS[2:3], far_field((256,), (128,))),
        }
    )
    alone = [ds[[name]].virtual.to_lazy({})[name].chunks for name in ("t", "u")]
    # along each dimension as few chunks as the variable that may join the fewest
    least = tuple(min(pair, key=max) for pair in zip(*alone, strict=True))
    assert least not in alone
    for names in permutations(ds.data_vars):
        lazy = ds[list(names)].virtual.to_lazy({})
        assert lazy["t"].chunks == lazy["u"].chunks == least
    assert lazy["u"].data.npartitions < ds["u"].data.nchunks


def test_near_chunks_are_joined_where_there_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_blocks, "MAX_TASKS", 1000)
    for chunks, tasks in ((1000, 1000), (1001, 1)):
        array = ManifestArray.from_arrays(
            shape=(chunks, 4), chunks=(1, 4), dtype="i2", path="/data/a", lengths=8,
            offsets=8 * np.arange(chunks)[:, None],
        )  # fmt: skip
        lazy = xr.Dataset({"v": (DIMS[2:], array)}).virtual.to_lazy({})
        assert lazy["v"].data.npartitions == tasks


def test_months_are_joined_whole() -> None:
    parts = [far_field((n, 4), (n, 4)) for n in (31, 28, 31, 30)]
    ds = xr.Dataset({"v": (DIMS[2:], np.concatenate(parts))})
    assert ds.virtual.to_lazy({})["v"].chunks == ((120,), (4,))


def test_a_block_that_cuts_no_chunk_is_not_warned_about(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": (DIMS[:1], far_field((100,), (5,)))})
    ds.virtual.to_manifest(tmp_path / "refs.zarr")

    def open_in_blocks(length: int) -> Any:
        return xr.open_dataset(tmp_path / "refs.zarr", engine="virtual", chunks={"time": length})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_in_blocks(15)["v"].chunks[0][:2] == (15, 15)
    with pytest.warns(UserWarning, match="separate the stored chunks"):
        open_in_blocks(7)


def test_the_encoding_names_the_stored_chunks(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": (DIMS[:1], far_field((100,), (5,)))})
    ds.virtual.to_manifest(tmp_path / "refs.zarr")
    found = xr.open_dataset(tmp_path / "refs.zarr", engine="virtual")["v"].encoding
    assert found["preferred_chunks"] == {"time": 5}
    again = pickle.loads(pickle.dumps(found["preferred_chunks"]))
    assert (type(again), again) == (dict, {"time": 5})


def test_opening_without_dask_looks_at_no_reference(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": (DIMS[:1], far_field((100,), (5,)))})
    ds.virtual.to_manifest(tmp_path / "refs.parquet")
    shutil.rmtree(tmp_path / "refs.parquet" / "v")
    assert xr.open_dataset(tmp_path / "refs.parquet", engine="virtual").sizes == {"time": 100}


def test_the_encoding_names_two_chunks_of_different_lengths() -> None:
    parts = [xr.Dataset({"v": (DIMS[:1], far_field((size,), (size,)))}) for size in (3, 4)]
    group = group_from_dataset(xr.concat(parts, "time"))
    assert encoding_of(group.variables["v"])["preferred_chunks"] == {"time": (3, 4)}
