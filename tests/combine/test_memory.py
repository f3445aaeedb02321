"""A build holds columns of its files, and no file: its peak over its result hardly grows."""

from __future__ import annotations

import gc
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
from effort import others_soaked, times

import virtualds
from virtualds.combine import batch_job

JOINED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
MARK = 1.2345678e300
"""A time that stands for that of the file."""
KILOBYTE = 1_000
FEW, MANY = 800, 3_000
"""Numbers of files whose peaks are compared: what a batch takes, and what is imported, is in both.
"""


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
        # what waits for the garbage collector is not held by the result
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
        return peak - held, found
    finally:
        tracemalloc.stop()


def check(found: xr.Dataset, count: int) -> None:
    assert found.sizes["time"] == count
    assert found.virtual.report.opened == count
    np.testing.assert_array_equal(found["a"][:: count // 4].values, 1)


def check_growth(
    build: Callable[[list[Any]], xr.Dataset], files: list[Any], most: int = KILOBYTE
) -> None:
    """Check that a build of all files takes few bytes more for each than a build of some."""
    # once for what is imported
    build(files[:20])
    taken = []
    for count in (len(files) * FEW // MANY, len(files)):
        over, found = measure(lambda some=files[:count]: build(some))  # type: ignore[misc]
        check(found, count)
        taken.append(over)
    assert taken[1] - taken[0] < most * (len(files) - len(files) * FEW // MANY)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_many(tmp_path_factory.mktemp("many") / "files", times(MANY))


# Each builds from some thousand files, since what a file takes is only seen of many: 5 s and more.
pytestmark = pytest.mark.full


@pytest.mark.parametrize("order", ["in order", "in reverse"])
def test_a_build_of_local_files_takes_at_most_a_kilobyte_a_file(
    order: str, files: list[Path]
) -> None:
    given = files if order == "in order" else files[::-1]
    check_growth(lambda some: virtualds.open_virtual_mfdataset(some, **JOINED), given)


def test_a_build_that_writes_its_set_takes_no_more_for_more_files(
    files: list[Path], tmp_path: Path
) -> None:
    """Names of files are held: they are the table of the set."""
    check_growth(
        lambda some: virtualds.open_virtual_mfdataset(
            some, to=tmp_path / f"{len(some)}.zarr", **JOINED
        ),
        files,
    )


def test_a_build_of_remote_files_takes_at_most_a_kilobyte_a_file(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # those that are fetched at the same time are in memory, of few files and of many
    monkeypatch.setattr(batch_job, "MAX_FILES_TOGETHER", 32)
    with counting_server(files[0].parent) as (url, counts):
        # the smaller build is large enough to have as many files in memory at a time as the larger
        urls = [f"{url}/{path.name}" for path in files][::-1]

        def build(some: list[Any]) -> xr.Dataset:
            counts.requests.clear()
            found = virtualds.open_virtual_mfdataset(some, **JOINED)
            assert len(counts.requests) == len(some)
            return found

        check_growth(build, urls)


@pytest.mark.parametrize("writes", others_soaked([False, True], [True]))
def test_the_client_of_a_cluster_takes_at_most_one_kilobyte_and_a_half_a_file(
    writes: bool, files: list[Path], cluster: Any, tmp_path: Path
) -> None:
    def build(some: list[Any]) -> xr.Dataset:
        options: dict[str, Any] = {"to": tmp_path / f"{len(some)}.zarr"} if writes else {}
        return virtualds.open_virtual_mfdataset(some, parallel=cluster, **options, **JOINED)

    # the workers send urls, sizes and times, which the result of a build with ``to=`` does not hold
    check_growth(build, files[: len(files) // 2], KILOBYTE * 3 // 2)
