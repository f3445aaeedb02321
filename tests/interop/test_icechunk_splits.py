"""Appends to Icechunk write what is new: manifests are split, and the rest is not read."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from large_sets import archive
from peers import peer

import virtualds
from virtualds.arrays.sources import move_files

icechunk: Any = peer("icechunk")
# these import it
references = import_module("virtualds.formats.icechunk.references")
targets = import_module("virtualds.formats.icechunk.write")

FILES, STEPS = 4, 20


def part(files: range, steps: int = STEPS) -> xr.Dataset:
    """Some files of an archive, a thousand references in each step, with a coordinate."""
    ds = archive(files, steps=steps)
    first = files[0] * STEPS
    return ds.assign_coords(time=np.arange(first, first + ds.sizes["time"]))


def manifests(target: Path) -> dict[str, int]:
    sizes = {path.name: path.stat().st_size for path in (target / "manifests").iterdir()}
    # those of the coordinate are small
    return {name: size for name, size in sizes.items() if size > 2000}


def splitting(target: Path) -> Any:
    config = icechunk.Repository.fetch_config(icechunk.local_filesystem_storage(str(target)))
    return config.manifest and config.manifest.splitting


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch) -> int:
    """Manifests of ten steps."""
    monkeypatch.setattr(targets, "SPLIT_REFERENCES", 10_000)
    return 10


def check(target: Path, *parts: xr.Dataset) -> None:
    """The repository holds these parts, one after the other."""
    found = virtualds.open_virtual_dataset(target)
    expected = xr.concat(parts, "time")
    assert found["time"].values.tolist() == expected["time"].values.tolist()
    assert (
        found["v"]
        .variable.data.manifest.loaded()
        .has_same_references(expected["v"].variable.data.manifest)
    )
    ours, theirs = (ds.virtual.sources[["url", "chunks"]] for ds in (found, expected))
    assert ours.sort_values("url").values.tolist() == theirs.sort_values("url").values.tolist()


def test_an_append_writes_the_manifest_that_it_begins(small_splits: int, tmp_path: Path) -> None:
    target = tmp_path / "refs.icechunk"
    parts = [part(range(FILES))]
    parts[0].virtual.to_manifest(target)
    before = manifests(target)
    assert len(before) == FILES * STEPS // small_splits
    for number in range(3):
        parts.append(part(range(FILES + number, FILES + number + 1), steps=STEPS))
        parts[-1].virtual.to_manifest(target, append_dim="time")
        now = manifests(target)
        new = {name: now[name] for name in now.keys() - before.keys()}
        assert len(new) == STEPS // small_splits
        assert sum(new.values()) < sum(before.values()) / 2
        before = now
    check(target, *parts)


def test_an_append_reads_no_reference_of_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "refs.icechunk"
    first, second = part(range(1)), part(range(1, 2))
    first.virtual.to_manifest(target)

    read = references.ExistingReferences.read_manifest

    def refuse(known: Any, path: str, grid: tuple[int, ...]) -> Any:
        assert path == "time", "references of the set are read"
        return read(known, path, grid)

    with monkeypatch.context() as patch:
        patch.setattr(references.ExistingReferences, "read_manifest", refuse)
        second.virtual.to_manifest(target, append_dim="time")
    check(target, first, second)


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "refs.icechunk"
    first, again = part(range(1)), part(range(1))
    known, changed = (
        ds.assign(v=(ds["v"].dims, move_files(ds["v"].variable.data, partial(resize, size=size))))
        for ds, size in ((first, 10**9), (again, 10**8))
    )
    known.virtual.to_manifest(target)
    later = changed.assign_coords(time=changed["time"].values + STEPS)
    with pytest.raises(virtualds.CombineError, match="has changed"):
        later.virtual.to_manifest(target, append_dim="time")


def resize(file: virtualds.SourceFile, size: int) -> virtualds.SourceFile:
    return file._replace(size=size)


def test_a_repository_without_splits_gets_them_with_an_append(
    small_splits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "refs.icechunk"
    parts = [part(range(n, n + 1)) for n in range(4)]
    find_required = targets._find_required_config

    def find_without_splits(*arguments: Any) -> Any:
        return find_required(*arguments)._replace(splits={})

    with monkeypatch.context() as patch:
        patch.setattr(targets, "_find_required_config", find_without_splits)
        parts[0].virtual.to_manifest(target)
    assert not splitting(target)
    parts[1].virtual.to_manifest(target, append_dim="time")
    assert splitting(target)
    before = manifests(target)
    parts[2].virtual.to_manifest(target, append_dim="time")
    assert len(manifests(target).keys() - before.keys()) == STEPS // small_splits
    check(target, *parts[:3])


def test_a_splitting_of_the_owner_stays(tmp_path: Path) -> None:
    target = tmp_path / "refs.icechunk"
    every = icechunk.ManifestSplitCondition.AnyArray()
    own = icechunk.ManifestSplittingConfig.from_dict(
        {every: {icechunk.ManifestSplitDimCondition.Any(): 7}}
    )
    config = icechunk.RepositoryConfig(manifest=icechunk.ManifestConfig(splitting=own))
    part(range(1)).virtual.to_manifest(target, config=config)
    part(range(1, 2)).virtual.to_manifest(target, append_dim="time")
    assert str(splitting(target)) == str(own)


def test_one_commit_writes_a_bounded_number_of_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "SPLIT_REFERENCES", 1)
    part(range(FILES)).virtual.to_manifest(tmp_path / "refs.icechunk")
    assert len(manifests(tmp_path / "refs.icechunk")) <= targets.MAX_SPLITS


def test_commits_of_others_are_read_again(tmp_path: Path) -> None:
    target = tmp_path / "refs.icechunk"
    first, second = part(range(1)), part(range(1, 2))
    first.virtual.to_manifest(target)
    storage = icechunk.local_filesystem_storage(str(target))
    session = icechunk.Repository.open(storage).writable_session("main")
    session.commit("by another tool", allow_empty=True)
    second.virtual.to_manifest(target, append_dim="time")
    check(target, first, second)


@pytest.mark.parametrize("mode", ["drop", "replace", "start"])
def test_chunks_that_move_are_written_where_they_are_now(mode: str, tmp_path: Path) -> None:
    target = tmp_path / "refs.icechunk"
    first, second = part(range(1, 3)), part(range(3, 4))
    first.virtual.to_manifest(target)
    if mode == "start":
        before = part(range(1))
        before.virtual.to_manifest(target, append_dim="time", position="start")
        check(target, before, first)
        return
    second.virtual.to_manifest(target, append_dim="time")
    url = "s3://bucket/some/long/prefix/product_000002.nc"
    if mode == "drop":
        virtualds.drop_sources(target, url, dim="time")
        check(target, first.isel(time=slice(0, STEPS)), second)
    else:
        again = part(range(2, 3))
        again.virtual.to_manifest(target, mode="replace-source", append_dim="time")
        check(target, first.isel(time=slice(0, STEPS)), again, second)


def write_values(path: Path, value: float) -> xr.Dataset:
    """A file of two variables, scanned; its size tells how often it was written."""
    names = ("u", "v")
    ds = xr.Dataset({name: ("x", np.full(5000, value)) for name in names}, attrs={"n": f"{value}"})
    ds.to_netcdf(path, engine="scipy")
    return virtualds.open_virtual_dataset(path)


@pytest.mark.parametrize("there", [["u"], ["u", "v"]])
def test_a_changed_file_is_refused_while_references_to_it_as_it_was_stay(
    there: list[str], tmp_path: Path
) -> None:
    target, source = tmp_path / "refs.icechunk", tmp_path / "a.nc"
    write_values(source, 1.0)[there].virtual.to_manifest(target)
    changed = write_values(source, 23.5)
    mode = "r+" if "v" in there else "a"
    with pytest.raises(virtualds.UnsupportedError, match="scanned twice"):
        changed[["v"]].virtual.to_manifest(target, mode=mode)
    assert list(virtualds.open_virtual_dataset(target)) == there
    with pytest.raises(virtualds.ReadError, match="changed"):
        virtualds.open_virtual_dataset(target)["u"].load()


def test_a_changed_file_is_written_anew_once_nothing_needs_it_as_it_was(tmp_path: Path) -> None:
    target, source, other = (tmp_path / name for name in ("refs.icechunk", "a.nc", "b.nc"))
    old, kept = write_values(source, 1.0), write_values(other, 2.0)
    old.assign(w=kept["u"]).virtual.to_manifest(target)
    changed = write_values(source, 23.5)
    changed.virtual.to_manifest(target, mode="a", on_duplicate="replace")
    found = xr.open_dataset(target, engine="virtual")
    assert {name: float(found[name][0]) for name in "uvw"} == {"u": 23.5, "v": 23.5, "w": 2.0}
