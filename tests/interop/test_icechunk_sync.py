"""An Icechunk repository follows its files, each run as one commit."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from daily_files import days, native, opened, written
from peers import peer

import virtualds

icechunk = peer("icechunk")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def make(folder: Path, number: int, seed: int | None = None, age: float = 1000) -> Path:
    path = written(folder, f"{number}", days(4 * number, seed=seed))
    os.utime(path, (time.time() - age,) * 2)
    return path


def sync(target: Any, **how: Any) -> virtualds.SyncReport:
    return virtualds.sync("data/*.nc", target, concat_dim="time", **how)


def test_a_repository_follows_its_files(folder: Path) -> None:
    for number in (0, 1, 3):
        make(folder, number)
    assert len(sync("refs.icechunk").added) == 3
    assert sync("refs.icechunk").unchanged == 3
    make(folder, 2)
    make(folder, 1, seed=5, age=500)
    done = sync("refs.icechunk")
    assert (len(done.added), len(done.replaced), done.unchanged) == (1, 1, 2)
    paths = sorted(folder.iterdir())
    xr.testing.assert_identical(opened(Path("refs.icechunk")).load(), native(paths))
    # making the set, and one change of two files; a run without changes commits nothing
    commits = len(virtualds.snapshots("refs.icechunk"))
    assert sync("refs.icechunk").is_written is False
    assert len(virtualds.snapshots("refs.icechunk")) == commits
    paths[0].unlink()
    with pytest.raises(FileNotFoundError, match="not listed any more"):
        sync("refs.icechunk")
    assert len(sync("refs.icechunk", on_removed="drop").dropped) == 1
    found = opened(Path("refs.icechunk")).load()
    xr.testing.assert_equal(found, native(paths[1:]))
    assert len(virtualds.snapshots("refs.icechunk")) == commits + 1


def test_a_branch_follows_its_files(folder: Path) -> None:
    make(folder, 0)
    sync("refs.icechunk")
    storage = icechunk.local_filesystem_storage(str(folder.parent / "refs.icechunk"))
    repository = icechunk.Repository.open(storage)
    repository.create_branch("next", repository.lookup_branch("main"))
    make(folder, 1)
    assert len(sync("refs.icechunk", branch="next").added) == 1
    assert sync("refs.icechunk", branch="next").unchanged == 2
    assert len(sync("refs.icechunk").added) == 1


def test_the_array_of_icechunk_is_that_of_the_files(folder: Path) -> None:
    paths = [make(folder, number) for number in range(2)]
    sync("refs.icechunk")
    make(folder, 0, seed=3, age=500)
    sync("refs.icechunk")
    found = virtualds.open_virtual_dataset("refs.icechunk")
    assert np.array_equal(found["t"].values, native(paths)["t"].values)
    assert found.virtual.verify(against="native").ok
