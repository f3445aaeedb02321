"""A dask cluster builds what one process builds, and no process holds all references."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from builds import assert_same, assert_same_set, parts_of
from products import few_quick
from programs import run_code

import virtualds
from virtualds.combine import batch_job as target_module

pytest.importorskip("distributed")

FILES = 24


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files of different lengths, packed in different ways, with what lies beside time."""
    folder = tmp_path_factory.mktemp("archive")
    begin = 0
    for number in range(FILES):
        length = 5 + number % 3
        generator = np.random.default_rng(number)
        time = np.arange(begin, begin + length)
        begin += length
        dataset = xr.Dataset(
            {
                "t": (("time", "y", "x"), generator.normal(size=(length, 4, 6)).astype("f4")),
                "packed": (("time", "x"), generator.normal(size=(length, 6)).round(1)),
                "mask": (("y", "x"), np.arange(24.0).reshape(4, 6)),
            },
            {"time": ("time", time, {"units": "days since 2000-01-01"}), "x": np.arange(6.0)},
            {"title": f"number {number}"},
        )
        packing = {"dtype": "i2", "scale_factor": 0.1 * (1 + number // 12), "_FillValue": -99}
        encoding = {"t": {"chunksizes": (2, 4, 3), "zlib": True}, "packed": packing}
        dataset.to_netcdf(folder / f"{number:03}.nc", encoding=encoding)
    return f"{folder}/*.nc"


NESTED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
WAYS: dict[str, dict[str, Any]] = {
    "nested": NESTED,
    "by coordinates": {},
    # what a tree might get wrong is combined at once
    "at once": {**NESTED, "combine_attrs": "drop_conflicts"},
    "attributes of one file": {**NESTED, "attrs_file": True},
}


@pytest.mark.parametrize("way", few_quick(WAYS, ("nested", "at once")))
def test_a_cluster_gives_what_one_process_gives(way: str, archive: str, cluster: Any) -> None:
    options = dict(WAYS[way])
    if "attrs_file" in options:
        options["attrs_file"] = archive.replace("*", "007")
    expected = virtualds.open_virtual_mfdataset(archive, **options)
    found = virtualds.open_virtual_mfdataset(archive, parallel=cluster, **options)
    assert_same(found, expected)
    assert found.virtual.report.opened == FILES


def counted(dataset: xr.Dataset, folder: Path) -> xr.Dataset:
    """Leave a mark for every time that a file is opened."""
    (folder / secrets.token_hex(8)).touch()
    return dataset


@pytest.mark.product
@pytest.mark.parametrize("who", ["this process", "an executor", "a cluster"])
@pytest.mark.parametrize("target", [True, False], ids=["into a set", "into memory"])
def test_files_that_are_alike_are_opened_once_and_come_together(
    who: str, target: bool, archive: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    files = [archive.replace("*", f"{number:03}") for number in range(12)] * 4
    options = NESTED | {"sort": False, "overlap": "keep"}
    if target:
        options["to"] = tmp_path / "all.zarr"
    with ThreadPoolExecutor(2) as pool:
        by = {"this process": lambda: None, "an executor": lambda: pool}
        parallel = by.get(who, lambda: request.getfixturevalue("cluster"))()
        found = virtualds.open_virtual_mfdataset(
            files, parallel=parallel, preprocess=partial(counted, folder=marks), **options
        )
    assert found.virtual.report.opened == len(files)
    assert len(list(marks.iterdir())) == len(files)


def without_mask(dataset: xr.Dataset, titles: set[str]) -> xr.Dataset:
    return dataset.drop_vars("mask") if dataset.attrs["title"] in titles else dataset


@pytest.mark.parametrize(
    "which",
    few_quick(["unlike in a block", "blocks unlike", "blocks over each other"], ["blocks unlike"]),
)
def test_a_fallback_to_combining_at_once_shows_no_traceback(
    which: str, archive: str, cluster: Any
) -> None:
    """Whoever looks at the terminal sees no traceback where nothing is wrong."""
    files = [archive.replace("*", f"{number:03}") for number in range(FILES)]
    titles = {f"number {number}" for number in ((7,) if which == "unlike in a block" else range(6))}
    options: dict[str, Any] = NESTED | {"preprocess": partial(without_mask, titles=titles)}
    if which == "blocks over each other":
        files, options = [*files[::2], *files[1::2]], {}
    expected = virtualds.open_virtual_mfdataset(files, **options)
    before = cluster.get_worker_logs()
    found = virtualds.open_virtual_mfdataset(files, parallel=cluster, **options)
    assert_same(found, expected)
    after = cluster.get_worker_logs()
    told = [line for worker in after for line in after[worker] if line not in before[worker]]
    assert not [line for line in told if line[0] in ("WARNING", "ERROR")]


@pytest.fixture
def written_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few references be worth a table; what a target begins with goes along with it."""
    monkeypatch.setattr(target_module, "MIN_TABLE_REFERENCES", 1)


@pytest.mark.parametrize(
    "who", few_quick(["this process", "an executor", "a cluster"], ["a cluster"])
)
def test_workers_write_the_set_that_one_process_would(
    who: str, archive: str, request: pytest.FixtureRequest, tmp_path: Path, written_early: None
) -> None:
    virtualds.open_virtual_mfdataset(archive, **NESTED).virtual.to_manifest(tmp_path / "one.zarr")
    expected = virtualds.open_virtual_dataset(tmp_path / "one.zarr")
    with ThreadPoolExecutor(2) as pool:
        by = {"this process": lambda: None, "an executor": lambda: pool}
        parallel = by.get(who, lambda: request.getfixturevalue("cluster"))()
        found = virtualds.open_virtual_mfdataset(
            archive, **NESTED, parallel=parallel, to=tmp_path / "all.zarr"
        )
    assert found.virtual.report.opened == FILES
    assert len(parts_of(tmp_path / "all.zarr")) > 2
    assert_same_set(found, expected)


def dies_once(dataset: xr.Dataset, mark: Path, at: str) -> xr.Dataset:
    """Kill the process that prepares a file, the first time that it does."""
    if dataset.attrs["title"] == at and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return dataset


@pytest.mark.full
@pytest.mark.parametrize("target", [True, False], ids=["into a set", "into memory"])
def test_a_killed_worker_neither_loses_nor_doubles_files(
    target: bool, archive: str, cluster: Any, tmp_path: Path, written_early: None
) -> None:
    """It takes the blocks along that it has combined; somebody else writes them once more."""
    mark = tmp_path / "killed"
    prepare = partial(dies_once, mark=mark, at="number 17")
    expected = virtualds.open_virtual_mfdataset(archive, **NESTED)
    folder = tmp_path / "all.zarr"
    options = {"to": folder} if target else {}
    found = virtualds.open_virtual_mfdataset(
        archive, **NESTED, parallel=cluster, preprocess=prepare, **options
    )
    assert mark.exists()
    assert found.virtual.report.opened == FILES
    if not target:
        assert_same(found, expected)
        return
    expected.virtual.to_manifest(tmp_path / "one.zarr")
    assert_same_set(found, virtualds.open_virtual_dataset(tmp_path / "one.zarr"))
    document = (folder / "zarr.json").read_text()
    # what was written for nothing is gone
    assert all(path.parent.parent.name in document for path in parts_of(folder))


OVERRIDING: dict[str, Any] = NESTED | {
    "data_vars": "minimal",
    "coords": "minimal",
    "compat": "override",
    "combine_attrs": "override",
}
"""As files are joined whose variables need no comparison."""


def fill_memory(files: dict[str, bytes]) -> None:
    """Put files where only this process sees them."""
    fsspec.filesystem("memory").pipe(files)


@pytest.mark.parametrize(
    "how", few_quick(["alike", "unlike", "attributes of one file"], ["alike", "unlike"])
)
def test_files_that_only_workers_can_open_are_built(
    how: str, archive: str, cluster: Any, tmp_path: Path
) -> None:
    paths = [archive.replace("*", f"{number:03}") for number in range(12)]
    if how == "unlike":
        # the other one has no mask
        with xr.open_dataset(paths[7]) as seventh:
            seventh.load().drop_vars("mask").to_netcdf(tmp_path / "other.nc")
        paths[7] = f"{tmp_path}/other.nc"
    names = [f"/archive/{how}/{number:03}.nc" for number in range(12)]
    contents = dict(zip(names, (Path(path).read_bytes() for path in paths), strict=True))
    urls = [f"memory:/{name}" for name in names]

    def build(files: list[str], **options: Any) -> xr.Dataset:
        if how == "attributes of one file":
            options["attrs_file"] = files[3]
        return virtualds.open_virtual_mfdataset(files, **OVERRIDING, **options)

    cluster.run(fill_memory, contents)
    found = build(urls, parallel=cluster)
    assert not fsspec.filesystem("memory").exists(names[0])
    expected = build(paths)
    assert found.virtual.nchunks == expected.virtual.nchunks
    fill_memory(contents)
    xr.testing.assert_identical(found.load(), expected.load())


def waits_for_others(dataset: xr.Dataset, marks: Path, at: str, others: int) -> xr.Dataset:
    """Leave a mark for each file; be stuck at one file until others have left theirs."""
    (marks / dataset.attrs["title"]).touch()
    end = time.monotonic() + 60
    while dataset.attrs["title"] == at and len(list(marks.iterdir())) < others:
        if time.monotonic() > end:
            raise RuntimeError("the other files wait for this one")
        time.sleep(0.01)
    return dataset


@pytest.mark.full
def test_no_file_waits_for_a_slow_one(archive: str, cluster: Any, tmp_path: Path) -> None:
    expected = virtualds.open_virtual_mfdataset(archive, **NESTED)
    prepare = partial(waits_for_others, marks=tmp_path, at="number 2", others=FILES - 4)
    found = virtualds.open_virtual_mfdataset(
        archive, **NESTED, parallel=cluster, preprocess=prepare
    )
    assert_same(found, expected)


BUILD = """
import os, signal, sys
from distributed import Client, LocalCluster
import virtualds

def stop(step):
    if step.done >= 10 and sys.argv[4] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)

def unchanged(dataset):
    return dataset

if __name__ == "__main__":
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options, host="127.0.0.1") as cluster, Client(cluster) as client:
        found = virtualds.open_virtual_mfdataset(
            sys.argv[1], combine="nested", concat_dim="time", cache=sys.argv[2], to=sys.argv[3],
            parallel=client, progress=stop, preprocess=unchanged,
        )
        print(found.virtual.report.cached)
"""


@pytest.mark.full
def test_a_client_that_was_killed_takes_up_what_its_workers_have_opened(
    archive: str, tmp_path: Path
) -> None:
    arguments = [archive, tmp_path / "cache", tmp_path / "all.zarr"]
    killed = run_code(BUILD, *arguments, "killed")
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(FileNotFoundError):
        virtualds.open_virtual_dataset(tmp_path / "all.zarr")
    again = run_code(BUILD, *arguments, "whole")
    assert again.returncode == 0, again.stderr
    assert int(again.stdout.split()[-1]) >= 10
    virtualds.open_virtual_mfdataset(archive, **NESTED).virtual.to_manifest(tmp_path / "one.zarr")
    assert_same_set(
        virtualds.open_virtual_dataset(tmp_path / "all.zarr"),
        virtualds.open_virtual_dataset(tmp_path / "one.zarr"),
    )


@pytest.mark.full
def test_a_worker_of_another_version_is_an_error(archive: str, tmp_path: Path) -> None:
    import distributed

    other = tmp_path / "other" / "virtualds-9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: virtualds\nVersion: 9.9\n")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as workers,
        distributed.Client(workers) as client,
    ):
        client.run(lambda: sys.path.insert(0, str(other.parent)))
        with pytest.raises(RuntimeError, match=r"has virtualds 9\.9, and the process that builds"):
            virtualds.open_virtual_mfdataset(
                archive, **NESTED, parallel=client, to=tmp_path / "all.zarr"
            )
    assert not (tmp_path / "all.zarr" / "zarr.json").exists()
