"""Sets that many processes write: all or nothing, and no process holds all references."""

from __future__ import annotations

import os
import time
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from builds import parts_of
from programs import run_code
from transforms import assert_identical

import virtualds
from virtualds.combine import batch_job as target_module

NESTED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = []
    for number in range(6):
        dataset = xr.Dataset(
            {"t": (("time", "x"), np.full((4, 3), float(number)))},
            {"time": np.arange(4 * number, 4 * number + 4)},
        )
        found.append(tmp_path / f"{number}.nc")
        dataset.to_netcdf(found[-1], encoding={"t": {"chunksizes": (1, 3)}})
    return found


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "MIN_TABLE_REFERENCES", 1)


@pytest.mark.parametrize("name", ["refs.json", "refs.parquet"])
def test_other_formats_are_refused_before_a_file_is_opened(name: str, tmp_path: Path) -> None:
    with pytest.raises(virtualds.UnsupportedError, match=r"(?s)many processes.*zarr-v3 does"):
        virtualds.open_virtual_mfdataset([tmp_path / "none.nc"], to=tmp_path / name)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("dir://refs.zarr", "memory, S3, Google Cloud and Azure, not on dir"),
        ("below/refs.zarr", r"refs\.zarr: cannot be written .*is a file, not a folder"),
    ],
    ids=["a store without conditions", "below a file"],
)
def test_a_target_that_refuses_the_set_does_so_before_a_file_is_opened(
    target: str, told: str, files: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "below").write_text("mine")
    opened: list[xr.Dataset] = []

    def note(dataset: xr.Dataset) -> xr.Dataset:
        opened.append(dataset)
        return dataset

    with pytest.raises((virtualds.UnsupportedError, NotADirectoryError), match=told):
        virtualds.open_virtual_mfdataset(
            files,
            **NESTED,
            preprocess=note,
            to=target if "://" in target else tmp_path / target,
            target_options={"path": str(tmp_path)} if "://" in target else None,
        )
    assert not opened


def test_a_folder_that_is_no_set_is_left_alone(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other.zarr").mkdir()
    (tmp_path / "other.zarr" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not a reference set"):
        virtualds.open_virtual_mfdataset(files, **NESTED, to=tmp_path / "other.zarr")
    assert [p.name for p in (tmp_path / "other.zarr").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("there", [True, False], ids=["over a set", "where nothing is"])
def test_a_build_that_fails_leaves_the_old_set(
    there: bool, files: list[Path], tmp_path: Path, early: None
) -> None:
    target = tmp_path / "refs.zarr"
    if there:
        virtualds.open_virtual_mfdataset(files[:2], **NESTED, to=target)
    before = sorted(target.rglob("*"))
    xr.Dataset({"t": (("time", "y"), np.zeros((2, 2)))}).to_netcdf(tmp_path / "odd.nc")
    with pytest.raises(ValueError, match="time"):
        virtualds.open_virtual_mfdataset(
            [*files, tmp_path / "odd.nc"], **NESTED, to=target, mode="w"
        )
    assert sorted(target.rglob("*")) == before
    assert target.exists() == there


def test_files_may_be_ordered_by_their_coordinate(
    files: list[Path], tmp_path: Path, early: None
) -> None:
    given = [files[n] for n in (1, 0, 2, 3, 5, 4)]
    with ThreadPoolExecutor(1) as pool:
        found = virtualds.open_virtual_mfdataset(given, parallel=pool, to=tmp_path / "refs.zarr")
    assert_identical(found, virtualds.open_virtual_mfdataset(files))
    assert parts_of(tmp_path / "refs.zarr")


def test_files_that_are_not_joined_as_stored_are_written(
    files: list[Path], tmp_path: Path, early: None
) -> None:
    xr.load_dataset(files[1]).assign(extra=("x", np.arange(3.0))).to_netcdf(tmp_path / "odd.nc")
    given = [files[0], tmp_path / "odd.nc", *files[2:]]
    expected = virtualds.open_virtual_mfdataset(given, **NESTED)
    found = virtualds.open_virtual_mfdataset(given, **NESTED, to=tmp_path / "refs.zarr")
    assert_identical(found, expected)
    # parts that were written before that came out are of no use: what is there was written after
    folders = [path.parent.parent.name for path in parts_of(tmp_path / "refs.zarr")]
    document = (tmp_path / "refs.zarr" / "zarr.json").read_text()
    assert folders
    assert all(folder in document for folder in folders)


KILLED = """
import os, sys
import virtualds
import virtualds.combine.batch_job as target

target.MIN_TABLE_REFERENCES = 1
target.BuildTarget.commit = lambda self, dataset: os._exit(9)
virtualds.open_virtual_mfdataset(
    sys.argv[2:], combine="nested", concat_dim="time", to=sys.argv[1], mode="w"
)
"""


def test_a_crash_before_the_commit_leaves_the_set_and_removable_parts(
    files: list[Path], tmp_path: Path, early: None
) -> None:
    target = tmp_path / "refs.zarr"
    kept = virtualds.open_virtual_mfdataset(files[:2], **NESTED, to=target)
    needed = parts_of(target)
    assert run_code(KILLED, target, *files).returncode == 9
    assert_identical(virtualds.open_virtual_dataset(target), kept)
    left = sorted({*parts_of(target)} - {*needed})
    assert left
    # somebody may still be about to commit what is new
    virtualds.expire_snapshots(target)
    assert set(left) <= {*parts_of(target)}
    for path in left:
        os.utime(path, (time.time() - 2e5,) * 2)
    virtualds.expire_snapshots(target)
    assert parts_of(target) == needed
    assert_identical(virtualds.open_virtual_dataset(target), kept)


def test_an_existing_set_is_replaced_only_on_request(files: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    kept = virtualds.open_virtual_mfdataset(files[:2], **NESTED, to=target)
    with pytest.raises(FileExistsError, match=r"mode='w'.*append_dim="):
        # it is looked at before any file
        virtualds.open_virtual_mfdataset([tmp_path / "none.nc"], **NESTED, to=target)
    assert_identical(virtualds.open_virtual_dataset(target), kept)
    found = virtualds.open_virtual_mfdataset(files, **NESTED, to=target, mode="w")
    assert_identical(found, virtualds.open_virtual_mfdataset(files, **NESTED))


def test_a_build_that_was_interrupted_simply_runs_again(
    files: list[Path], tmp_path: Path, early: None
) -> None:
    target = tmp_path / "refs.zarr"
    script = KILLED.replace(', mode="w"', "")
    assert run_code(script, target, *files).returncode == 9
    assert target.exists()
    with pytest.raises(FileNotFoundError, match="a writer is creating the set"):
        virtualds.open_virtual_dataset(target)
    found = virtualds.open_virtual_mfdataset(files, **NESTED, to=target)
    assert_identical(found, virtualds.open_virtual_mfdataset(files, **NESTED))


def test_removed_parts_are_noticed_before_the_commit(
    files: list[Path], tmp_path: Path, early: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "refs.zarr"
    commit = target_module.BuildTarget.commit

    def robbed(self: Any, dataset: xr.Dataset) -> None:
        parts_of(target)[0].unlink()
        commit(self, dataset)

    monkeypatch.setattr(target_module.BuildTarget, "commit", robbed)
    with pytest.raises(virtualds.ReadError, match=r"1 parts .* are gone"):
        virtualds.open_virtual_mfdataset(files, **NESTED, to=target)
    assert not [path for path in target.rglob("*") if path.is_file()]


def test_an_append_to_a_set_of_many_writers_writes_only_new_records(
    files: list[Path], tmp_path: Path, early: None
) -> None:
    target = tmp_path / "refs.zarr"
    virtualds.open_virtual_mfdataset(files[:4], **NESTED, to=target)
    for path in files[4:]:
        virtualds.open_virtual_dataset(path).virtual.to_manifest(target, append_dim="time")
    assert_identical(
        virtualds.open_virtual_dataset(target), virtualds.open_virtual_mfdataset(files, **NESTED)
    )


FILES, REFERENCES = 60, 20_000


def huge(dataset: xr.Dataset) -> xr.Dataset:
    """Put an array of many references into the place of a small one."""
    generator = np.random.default_rng(int(dataset["time"][0]))
    lengths = generator.integers(1000, 3000, REFERENCES)
    array = virtualds.ManifestArray.from_arrays(
        shape=(4, REFERENCES),
        chunks=(4, 1),
        dtype="f8",
        path="s3://bucket/file.nc",
        offsets=np.cumsum(lengths)[None],
        lengths=lengths[None],
    )
    return dataset.assign(t=(("time", "x"), array))


def test_the_client_never_holds_all_references(files: list[Path], tmp_path: Path) -> None:
    given = files[:1] * FILES
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        tracemalloc.start()
        try:
            found = virtualds.open_virtual_mfdataset(
                given,
                **NESTED,
                sort=False,
                overlap="keep",
                preprocess=huge,
                parallel=pool,
                to=tmp_path / "refs.zarr",
            )
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    array = found["t"].variable._data
    assert array.nchunks == FILES * REFERENCES
    # offset and length alone are two numbers of eight bytes
    assert peak < array.nchunks * 16 / 4
    assert array.nbytes_virtual < 1_000_000
