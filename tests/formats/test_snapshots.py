"""A set keeps its earlier states until they are let go of, and what is needed never goes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xarray as xr
from daily_files import append, days, native, opened, virtual, written
from products import few_quick
from transforms import assert_identical

import virtualds
from virtualds import SourceFile
from virtualds.formats import replaces_by
from virtualds.formats.kerchunk.records import _is_filled
from virtualds.formats.referenced_files import warn_of_unreadable
from virtualds.formats.zarr import MANIFEST_KEYS, add_manifest_keys
from virtualds.formats.zarr_manifests.write_snapshot import MAX_COPIED_COORDINATE, ChunkCopies
from virtualds.stores.access_rules import AccessPolicy
from virtualds.stores.local import LocalStore
from virtualds.stores.store import ChangedError


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "refs.zarr"


def grown(folder: Path, target: Path, count: int = 4) -> list[Path]:
    """The files of a set that was appended to as often as there are more than one."""
    files = [written(folder, f"{n}", days(4 * n)) for n in range(count)]
    for path in files:
        append(path, target)
    return files


def names(target: Path) -> list[str]:
    return list(virtualds.snapshots(target)["snapshot"])


def test_every_snapshot_can_be_opened_by_its_id(tmp_path: Path, target: Path) -> None:
    files = grown(tmp_path, target)
    listed = virtualds.snapshots(target)
    assert listed["time"].is_monotonic_increasing
    assert len(listed) == len(files)
    for count, name in enumerate(listed["snapshot"], 1):
        expected = native(files[:count])
        assert_identical(xr.open_dataset(target, engine="virtual", snapshot=name), expected)
        assert_identical(virtualds.open_virtual_dataset(target, snapshot=name), expected)
    with pytest.raises(FileNotFoundError, match="there is no snapshot 'x'"):
        virtualds.open_virtual_dataset(target, snapshot="x")


def test_replacing_a_set_keeps_what_it_was(tmp_path: Path, target: Path) -> None:
    files = [written(tmp_path, f"{n}", days(4 * n, seed=n)) for n in range(2)]
    virtual(files[0]).virtual.to_manifest(target)
    before = opened(target)
    virtual(files[1]).virtual.to_manifest(target, mode="w")
    assert_identical(before, native(files[:1]))
    assert_identical(opened(target), native(files[1:]))
    assert_identical(
        xr.open_dataset(target, engine="virtual", snapshot=names(target)[0]), native(files[:1])
    )


def test_an_opened_set_keeps_its_values_while_others_append(tmp_path: Path, target: Path) -> None:
    first = written(tmp_path, "first", days(0))
    append(first, target)
    readers = [opened(target), virtual(target)]
    for number in range(1, 4):
        append(written(tmp_path, f"{number}", days(4 * number)), target)
    for reader in readers:
        assert_identical(reader, native([first]))


@pytest.mark.parametrize("form", few_quick(["inline", "json", "parquet"], ["parquet"]))
def test_expiring_snapshots_removes_files_that_no_snapshot_needs(
    form: str, tmp_path: Path, target: Path
) -> None:
    files = [written(tmp_path, f"{n}", days(4 * n)) for n in range(4)]
    for path in files:
        append(path, target, manifest=form)
    count = len(list(target.rglob("*")))
    old, *kept = names(target)
    assert virtualds.expire_snapshots(target, keep=3).snapshots == [old]
    assert names(target) == kept
    for number, name in enumerate(kept, 2):
        assert_identical(
            xr.open_dataset(target, engine="virtual", snapshot=name), native(files[:number])
        )
    assert len(virtualds.expire_snapshots(target).snapshots) == 2
    assert names(target) == kept[-1:]
    assert_identical(opened(target), native(files))
    assert len(list(target.rglob("*"))) < count
    left = [path for path in target.rglob("*") if any(n in path.name for n in (old, *kept[:1]))]
    # A snapshot names the tables of before that it has not changed, such as those of `height`.
    metadata = (target / "zarr.json").read_text()
    assert [path for path in left if path.is_file() and path.name not in metadata] == []
    assert form != "inline" or left == []
    append(written(tmp_path, "more", days(16)), target)
    assert_identical(opened(target), native([*files, tmp_path / "more.nc"]))


def test_a_reader_of_what_has_gone_is_told(tmp_path: Path, target: Path) -> None:
    again = written(tmp_path, "again", days(0, seed=8))
    virtual(again).virtual.to_manifest(target, manifest="parquet")
    reader = virtual(target)
    virtual(again).isel(time=[0, 1]).virtual.to_manifest(target, manifest="parquet", mode="w")
    virtualds.expire_snapshots(target)
    with pytest.raises(virtualds.ReadError, match="its snapshot has expired"):
        reader["t"].values  # noqa: B018


def test_only_those_of_an_age_go(tmp_path: Path, target: Path) -> None:
    grown(tmp_path, target, 3)
    assert virtualds.expire_snapshots(target, older_than=timedelta(hours=1)).snapshots == []
    time.sleep(0.01)
    assert len(virtualds.expire_snapshots(target, keep=2, older_than=timedelta(0)).snapshots) == 1


def test_files_of_killed_writers_are_removed_after_a_day(tmp_path: Path, target: Path) -> None:
    files = grown(tmp_path, target, 2)
    left = target / "t" / "manifest.20200101T000000000000-00000000.0" / "0.parquet"
    fresh = target / "t" / "manifest.20200102T000000000000-00000000.0" / "0.parquet"
    foreign = target / "notes.txt"
    for path in (left, fresh, foreign):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"?")
    long_ago = time.time() - 2 * 86400
    for path in (left, foreign):
        os.utime(path, (long_ago, long_ago))
    virtualds.expire_snapshots(target, keep=9)
    assert not left.exists()
    assert fresh.exists()
    assert foreign.exists()
    assert_identical(opened(target), native(files))


def test_chunks_in_the_set_that_a_table_of_files_lists_stay(tmp_path: Path, target: Path) -> None:
    source = written(tmp_path, "a", days(0))
    copy = virtual(source).virtual.materialize(target)
    copy.virtual.to_manifest(target, manifest="parquet", mode="w")
    for path in target.rglob("*"):
        os.utime(path, (0, 0))
    virtualds.expire_snapshots(target)
    assert_identical(opened(target), native([source]))


def test_formats_without_snapshots_say_so(tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    virtual(written(tmp_path, "a", days(0))).virtual.to_manifest(target)
    for ask in (
        lambda: virtualds.snapshots(target),
        lambda: virtualds.expire_snapshots(target),
        lambda: virtualds.open_virtual_dataset(target, snapshot="x"),
        lambda: virtualds.open_virtual_dataset(tmp_path / "a.nc", snapshot="x"),
    ):
        with pytest.raises(virtualds.UnsupportedError, match="has no snapshots"):
            ask()
    with pytest.raises(ValueError, match="keep at least 1"):
        virtualds.expire_snapshots(tmp_path / "refs.zarr", keep=0)


def interrupt_next_write(
    patch: pytest.MonkeyPatch, meanwhile: Callable[[], Any], *, is_kept: bool
) -> None:
    """Have a store refuse the next change of a root, which it has kept or not.

    Stores repeat a request whose answer is lost; the server refuses the second one.
    """
    write = LocalStore.write_version

    def write_once(store: LocalStore, *told: Any) -> str:
        patch.undo()
        if is_kept:
            write(store, *told)
        meanwhile()
        raise ChangedError("412")

    patch.setattr(LocalStore, "write_version", write_once)


def test_a_change_that_was_made_is_no_conflict_though_others_came_after_it(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [written(tmp_path, f"{n}", days(4 * n)) for n in range(3)]
    append(files[0], target)
    interrupt_next_write(monkeypatch, lambda: append(files[2], target), is_kept=True)
    append(files[1], target)
    assert_identical(opened(target), native(files))
    assert len(names(target)) == 3


def test_a_change_that_was_not_made_is_a_conflict(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [written(tmp_path, f"{n}", days(4 * n)) for n in range(3)]
    append(files[0], target)
    interrupt_next_write(monkeypatch, lambda: append(files[2], target), is_kept=False)
    with pytest.raises(virtualds.ConflictError):
        append(files[1], target)
    assert_identical(opened(target), native([files[0], files[2]]))


@pytest.mark.parametrize("other", ["an append", "an expiry of fewer"])
def test_an_expiry_that_was_outrun_removes_nothing(
    other: str, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(tmp_path, target, 4)
    more = written(tmp_path, "more", days(16))
    meanwhile: Callable[[], Any] = {
        "an append": lambda: append(more, target),
        "an expiry of fewer": lambda: virtualds.expire_snapshots(target, keep=3),
    }[other]
    interrupt_next_write(monkeypatch, meanwhile, is_kept=False)
    with pytest.raises(virtualds.ConflictError):
        virtualds.expire_snapshots(target, keep=1)
    for name in names(target):
        xr.open_dataset(target, engine="virtual", snapshot=name).load()


def test_small_chunks_are_copied_up_to_a_limit_and_notes_are_not_empty(tmp_path: Path) -> None:
    copies = ChunkCopies(None)
    copies.add("v", "small", bytes(MAX_COPIED_COORDINATE))
    copies.add("v", "large", bytes(MAX_COPIED_COORDINATE + 1))
    assert copies._copies["v"].keys() == {"small"}
    xr.Dataset({"v": ("x", [1.0])}).virtual.to_manifest(tmp_path / "refs.zarr")
    assert '"sources"' not in (tmp_path / "refs.zarr" / "zarr.json").read_text()


def test_a_set_is_created_or_replaced_and_readers_without_manifests_reject_it() -> None:
    assert [replaces_by(mode) for mode in ("w-", "w")] == [False, True]
    with pytest.raises(ValueError, match="mode='a'"):
        replaces_by("a")
    node = {"chunk_key_encoding": {"name": "v2"}, "storage_transformers": [{"name": "x"}]}
    assert add_manifest_keys(node)["chunk_key_encoding"]["name"] == MANIFEST_KEYS
    assert add_manifest_keys({"name": "v"}) == {"name": "v"}


def test_a_set_may_refer_to_files_in_itself_whatever_else_is_allowed() -> None:
    root, allow = "s3://bucket/refs.zarr", AccessPolicy.from_argument("/data")
    # warnings are errors in these tests
    warn_of_unreadable([SourceFile(f"{root}/chunks/0")], root, allow)
    with pytest.warns(virtualds.AccessWarning, match=r"such as s3://bucket/0\.nc"):
        warn_of_unreadable([SourceFile("s3://bucket/0.nc")], root, allow)


def test_an_empty_column_of_any_type_has_no_values() -> None:
    for column, is_filled in ((["x"], True), ([1], False), ([1.5], False), ([None], False)):
        assert _is_filled(pa.array(column)) == is_filled
