"""A set with a group for each path made of names follows its files in one commit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner

import virtualds
from virtualds import ManifestGroup, ManifestVariable
from virtualds.syncing import _remove_group, files
from virtualds.writing import EMPTY, Destination, add_group
from virtualds_cli.program import main


def write(folder: Path, model: str, variable: str, version: str, year: int, value: float) -> Path:
    path = folder / model / variable / version / f"{variable}_{year}.nc"
    path.parent.mkdir(parents=True, exist_ok=True)
    time = pd.date_range(f"{year}-01-01", periods=2, freq="MS")
    data = np.full((2, 3), float(value)) + np.arange(3)
    xr.Dataset({variable: (("time", "x"), data)}, {"time": time}).to_netcdf(path)
    return path


def sync(folder: Path, target: Path, **how: object) -> virtualds.SyncReport:
    how = {
        "tree": "/{model}/{variable}",
        "newest": "version",
        "concat_dim": "time",
        "settle": 0,
        "on_removed": "drop",
    } | how
    return virtualds.sync(
        f"{folder}/{{model}}/{{variable}}/{{version}}/*_{{year}}.nc", target, **how
    )


def check(target: Path, files: dict[str, list[Path]]) -> None:
    with xr.open_datatree(target, engine="virtual") as tree:
        assert {node.path for node in tree.leaves} == set(files)
        for path, some in files.items():
            wanted = xr.open_mfdataset(sorted(some, key=lambda p: p.name)).load()
            xr.testing.assert_identical(tree[path].to_dataset().load(), wanted)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("name", ["set.zarr", "set.json"])
def test_groups_come_grow_and_go(folder: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    one = write(folder, "M1", "tas", "v1", 2001, 1)
    two = write(folder, "M1", "pr", "v1", 2001, 2)
    assert len(sync(folder, target).added) == 2
    files = {"/M1/tas": [one], "/M1/pr": [two]}
    check(target, files)
    assert not sync(folder, target).is_written
    # a new group, a new year in one group, a new version in another
    files["/M2/tas"] = [write(folder, "M2", "tas", "v1", 2001, 3)]
    files["/M1/tas"].append(write(folder, "M1", "tas", "v1", 2002, 4))
    newer = write(folder, "M1", "pr", "v2", 2001, 5)
    done = sync(folder, target)
    assert (len(done.added), done.dropped) == (3, (two.as_uri(),))
    files["/M1/pr"] = [newer]
    check(target, files)
    # a retracted version, and a group without files
    newer.unlink()
    files.pop("/M2/tas")[0].unlink()
    files["/M1/pr"] = [two]
    sync(folder, target)
    check(target, files)
    assert not sync(folder, target).is_written


def test_files_that_are_gone_are_an_error_for_all_groups(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set.zarr"
    write(folder, "M1", "tas", "v1", 2001, 1)
    gone = write(folder, "M2", "tas", "v1", 2001, 2)
    sync(folder, target)
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=r"M2/tas.*not listed any more, out of 2 files"):
        sync(folder, target, on_removed="error")
    kept = sync(folder, target, on_removed="keep")
    assert (kept.is_written, kept.kept) == (False, (gone.as_uri(),))


def test_groups_that_others_made_stay(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set.zarr"
    one = write(folder, "M1", "tas", "v1", 2001, 1)
    other = xr.Dataset({"mask": ("x", [1, 2, 3])})
    path = tmp_path / "mask.nc"
    other.to_netcdf(path)
    sync(folder, target)
    virtualds.open_virtual_dataset(path).virtual.to_manifest(target, group="masks", mode="a")
    second = write(folder, "M1", "tas", "v1", 2002, 2)
    assert sync(folder, target).added == (second.as_uri(),)
    with xr.open_datatree(target, engine="virtual") as tree:
        assert tree["/masks"]["mask"].values.tolist() == [1, 2, 3]
        assert tree["/M1/tas"].sizes["time"] == 4
    assert one.exists()


def test_a_plain_path_puts_all_files_into_one_group(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set.zarr"
    one = write(folder, "M1", "tas", "v1", 2001, 1)
    sync(folder, target, tree="/observed/tas")
    check(target, {"/observed/tas": [one]})
    two = write(folder, "M1", "tas", "v1", 2002, 2)
    sync(folder, target, tree="/observed/tas")
    check(target, {"/observed/tas": [one, two]})


def test_a_file_that_does_not_fit_its_group_changes_none(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set.zarr"
    one, two = (write(folder, model, "tas", "v1", 2001, 1) for model in ("M1", "M2"))
    sync(folder, target)
    write(folder, "M1", "tas", "v1", 2002, 2)
    odd = write(folder, "M2", "tas", "v1", 2002, 2)
    xr.Dataset({"pr": ("time", [1.0])}, {"time": [9]}).to_netcdf(odd)
    with pytest.raises(virtualds.CombineError, match="M2"):
        sync(folder, target)
    check(target, {"/M1/tas": [one], "/M2/tas": [two]})


def test_no_group_grows_beyond_the_coordinate_of_a_group_above_it(tmp_path: Path) -> None:
    target, pattern = tmp_path / "set.zarr", f"{tmp_path}/{{model}}_*.nc"
    how = {"concat_dim": "step", "tree": "/{model}", "settle": 0}
    steps = xr.Dataset({"v": ("step", [1.0, 2.0])})
    steps.to_netcdf(tmp_path / "a_1.nc")
    steps.to_netcdf(tmp_path / "b_1.nc")
    virtualds.sync(pattern, target, **how)
    xr.Dataset(coords={"step": [10, 20]}).virtual.to_manifest(target, mode="a")
    steps.to_netcdf(tmp_path / "a_2.nc")
    with pytest.raises(virtualds.CombineError, match="/a would have 4 elements along 'step'"):
        virtualds.sync(pattern, target, **how)


def test_a_grid_in_each_group(tmp_path: Path) -> None:
    folder, target = tmp_path / "data", tmp_path / "set.zarr"
    pattern = f"{folder}/{{member}}/{{variable}}/v1/*_{{year}}.nc"
    how = {"concat_dim": ["member", "time"], "tree": "/{variable}", "settle": 0}
    for member, variable, year in [("r1", "tas", 2001), ("r2", "tas", 2002), ("r1", "pr", 2001)]:
        write(folder, member, variable, "v1", year, year)
        virtualds.sync(pattern, target, **how)
    with xr.open_datatree(target, engine="virtual") as tree:
        tas, pr = tree["/tas"].to_dataset().load(), tree["/pr"].to_dataset().load()
    assert (dict(tas.sizes), dict(pr.sizes)) == (
        {"member": 2, "time": 4, "x": 3},
        {"member": 1, "time": 2, "x": 3},
    )
    assert np.isnan(tas["tas"].sel(member="r1", time="2002")).all()
    assert tas["tas"].sel(member="r2", time="2002").values[0, 0] == 2002


def test_the_command_line_keeps_a_tree(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set.zarr"
    one = write(folder, "M1", "tas", "v1", 2001, 1)
    pattern = f"{folder}/{{model}}/{{variable}}/{{version}}/*_{{year}}.nc"
    how = ["--concat-dim", "time", "--tree", "/{model}/{variable}", "--newest", "version"]
    done = CliRunner().invoke(main, ["sync", pattern, str(target), *how, "--settle", "0"])
    assert done.exit_code == 0, done.output
    check(target, {"/M1/tas": [one]})


def test_files_are_opened_before_the_set_is_locked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, events = tmp_path / "set.zarr", list[str]()
    gone = write(folder, "M1", "tas", "v1", 2001, 1)
    changed = write(folder, "M1", "tas", "v1", 2002, 2)
    sync(folder, target, newest=None)
    gone.unlink()
    write(folder, "M1", "tas", "v1", 2002, 3)
    os.utime(changed, (1, 1))
    write(folder, "M1", "tas", "v1", 2003, 4)
    open_many, change = files.open_virtual_mfdataset, Destination.change

    def open_noted(*given: Any, **how: Any) -> Any:
        events.append("open")
        return open_many(*given, **how)

    def change_noted(*given: Any) -> Any:
        events.append("change")
        return change(*given)

    monkeypatch.setattr(files, "open_virtual_mfdataset", open_noted)
    monkeypatch.setattr(Destination, "change", change_noted)
    done = sync(folder, target, newest=None)
    assert (len(done.added), len(done.replaced), len(done.dropped)) == (1, 1, 1)
    assert events == ["open", "open", "change"]


def test_a_group_goes_with_those_above_it_that_have_nothing_else() -> None:
    held = ManifestGroup({"v": ManifestVariable(("x",), np.arange(2))})
    root = add_group(add_group(add_group(EMPTY, "a", held), "a/b", held), "c/d", held)
    assert [path for path, _ in _remove_group(root, "a/b").walk()] == ["", "a", "c", "c/d"]
    assert [path for path, _ in _remove_group(root, "c/d").walk()] == ["", "a", "a/b"]
