"""A build holds columns of its files, and no file: its peak over its result hardly grows."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server

import virtualds

JOINED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
MARK = 1.2345678e300
"""A time that stands for that of the file."""
KILOBYTE = 1_000
ONE_BATCH = 48 * 2**20
"""What a batch of files takes while it is read, and what a first build imports."""


def write_many(folder: Path, count: int) -> list[Path]:
    """Write files of one structure that differ in their time."""
    folder.mkdir()
    paths = [folder / f"{number:06}.nc" for number in range(count)]
    with h5py.File(paths[0], "w") as file:
        file.create_dataset("time", data=[MARK]).make_scale("time")
        file["time"].attrs["units"] = "days since 1900-01-01"
        file.create_dataset("x", data=np.arange(8.0)).make_scale("x")
        for name in "ab":
            values = np.ones((1, 8), "f4")
            variable = file.create_dataset(name, data=values, chunks=(1, 8), compression="gzip")
            for axis, scale in enumerate(("time", "x")):
                variable.dims[axis].attach_scale(file[scale])
    template = paths[0].read_bytes()
    before, after = template.split(struct.pack("<d", MARK))
    for number, path in enumerate(paths):
        path.write_bytes(before + struct.pack("<d", number) + after)
    return paths


def measure(build: Callable[[], Any]) -> tuple[int, Any]:
    """Return the peak of a build over its result, in bytes, and the result."""
    tracemalloc.start()
    try:
        found = build()
        held, peak = tracemalloc.get_traced_memory()
        return peak - held, found
    finally:
        tracemalloc.stop()


def check(found: xr.Dataset, count: int) -> None:
    assert found.sizes["time"] == count
    assert found.virtual.report.opened == count
    np.testing.assert_array_equal(found["a"][:: count // 4].values, 1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_many(tmp_path_factory.mktemp("many") / "files", 20_000)


@pytest.mark.full
@pytest.mark.parametrize("order", ["in order", "in reverse"])
def test_a_build_of_local_files_takes_at_most_a_kilobyte_a_file(
    order: str, files: list[Path]
) -> None:
    given = files if order == "in order" else files[::-1]
    over, found = measure(lambda: virtualds.open_virtual_mfdataset(given, **JOINED))
    check(found, len(files))
    assert over < KILOBYTE * len(files) + ONE_BATCH


@pytest.mark.full
def test_a_build_that_writes_its_set_takes_no_more_for_more_files(
    files: list[Path], tmp_path: Path
) -> None:
    """Names of files are held: they are the table of the set."""
    taken = []
    for count in (5_000, 20_000):
        target = tmp_path / f"{count}.zarr"
        over, found = measure(
            lambda some=files[:count], to=target: virtualds.open_virtual_mfdataset(
                some, to=to, **JOINED
            )
        )
        check(found, count)
        taken.append(over)
    assert taken[1] - taken[0] < KILOBYTE * 15_000


@pytest.mark.full
def test_a_build_of_remote_files_takes_at_most_a_kilobyte_a_file(tmp_path: Path) -> None:
    paths = write_many(tmp_path / "files", 2_000)
    with counting_server(tmp_path / "files") as (url, counts):
        urls = [f"{url}/{path.name}" for path in paths]
        for given in (urls, urls[::-1]):
            counts.requests.clear()
            over, found = measure(
                lambda some=given: virtualds.open_virtual_mfdataset(some, **JOINED)
            )
            assert len(counts.requests) == len(urls)
            assert over < KILOBYTE * len(urls) + ONE_BATCH
            check(found, len(urls))


@pytest.mark.full
@pytest.mark.parametrize("writes", [False, True])
def test_the_client_of_a_cluster_takes_at_most_a_kilobyte_a_file(
    writes: bool, files: list[Path], tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed")
    some = files[:4_000]
    options: dict[str, Any] = {"to": tmp_path / "set.zarr"} if writes else {}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        over, found = measure(
            lambda: virtualds.open_virtual_mfdataset(some, parallel=client, **options, **JOINED)
        )
        check(found, len(some))
    assert over < KILOBYTE * len(some) + ONE_BATCH
