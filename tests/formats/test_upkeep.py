"""Sets are kept in order: joined, moved and cleaned, with the references that they had."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from conftest import write_year

import virtualds
from virtualds import (
    ChunkManifest,
    ConflictError,
    ManifestArray,
    ReadError,
    SourceFile,
    UnsupportedError,
)
from virtualds.errors import FormatError
from virtualds.formats.kerchunk.records import RecordFolder
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr_manifests import snapshots
from virtualds.formats.zarr_manifests.join_parts import join_all_parts
from virtualds.formats.zarr_manifests.parquet_table import ParquetTable
from virtualds.stores.local import LocalStore

SUFFIXES = ["json", "json.gz", "parquet", "zarr"]
DAYS = 40


def references(url: Any, **how: Any) -> dict[str, Any]:
    """All references of a set: of each variable the place of every chunk."""
    found = {}
    for name, array in virtualds.open_virtual_dataset(url, **how).virtual.arrays.items():
        rows = [fragment.manifest.loaded() for fragment in array.fragments]
        found[name] = [
            (manifest.files[file].url if file >= 0 else file, offset, length)
            for manifest in rows
            for file, offset, length in zip(
                *(getattr(manifest, n).ravel().tolist() for n in ("file", "offset", "length")),
                strict=True,
            )
        ]
    return found


def count_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def numbered(folder: Path, begin: int, end: int, width: int = 2) -> xr.Dataset:
    """Numbers in chunks of one, in a file of their own."""
    path = folder / f"{begin}.bin"
    values = np.arange(begin, end, dtype="<i4")[:, None] * np.ones(width, "<i4")
    path.write_bytes(values.tobytes())
    offsets = np.arange((end - begin) * width).reshape(end - begin, width) * 4
    array = ManifestArray.from_arrays(
        shape=(end - begin, width), chunks=(1, 1), dtype="<i4", path=str(path),
        offsets=offsets, lengths=4,
    )  # fmt: skip
    return xr.Dataset({"v": (("time", "x"), array)}, {"time": np.arange(begin, end)})


def grown(target: Path, folder: Path, count: int, step: int = 1, **choices: Any) -> xr.Dataset:
    """A set after so many appends, and what it is to hold."""
    folder.mkdir()
    parts = [numbered(folder, n, n + step) for n in range(0, count * step, step)]
    parts[0].virtual.to_manifest(target, **choices)
    for part in parts[1:]:
        part.virtual.to_manifest(target, append_dim="time")
    values = np.arange(count * step, dtype="<i4")[:, None] * np.ones(2, "<i4")
    return xr.Dataset({"v": (("time", "x"), values)}, {"time": np.arange(count * step)})


def opened(target: Any, **how: Any) -> xr.Dataset:
    return xr.open_dataset(target, engine="virtual", **how).load()


# ---------------------------------------------------------------------- join


def test_the_records_of_many_appends_become_few(tmp_path: Path) -> None:
    target = tmp_path / "refs.parquet"
    grown(target, tmp_path / "in", DAYS)
    before = references(target)
    files = count_files(target)
    # sources are not needed
    shutil.rmtree(tmp_path / "in")
    assert virtualds.compact(target)
    # a record of one variable for each append, of the other for every second one
    assert files > DAYS
    assert count_files(target) == 3
    assert sum(p.stat().st_size for p in target.rglob("*")) < 30_000
    assert not virtualds.compact(target)
    assert references(target) == before
    assert len(before["v"]) == 2 * DAYS


def test_a_joined_set_reads_and_grows_as_before(tmp_path: Path) -> None:
    for suffix in ("parquet", "zarr"):
        target = tmp_path / f"refs.{suffix}"
        expected = grown(target, tmp_path / suffix, 12)
        virtualds.compact(target)
        xr.testing.assert_identical(opened(target), expected)
        numbered(tmp_path / suffix, 12, 20).virtual.to_manifest(target, append_dim="time")
        assert opened(target)["v"].values[:, 1].tolist() == list(range(20))


def test_readers_of_small_records_are_told_to_open_the_set_again(tmp_path: Path) -> None:
    target = tmp_path / "refs.parquet"
    grown(target, tmp_path / "in", 5)
    reader = xr.open_dataset(target, engine="virtual")
    virtualds.compact(target)
    with pytest.raises(ReadError, match="open it again"):
        reader.load()


def tables(target: Path, name: str = "v") -> int:
    """How many tables hold the references of a variable."""
    node = json.loads((target / "zarr.json").read_bytes())
    node = node["consolidated_metadata"]["metadata"][name]
    return len(node["storage_transformers"][0]["configuration"]["parts"])


def test_the_tables_of_large_appends_become_one(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    grown(target, tmp_path / "in", 3, step=2500)
    old = virtualds.snapshots(target)["snapshot"].iloc[-1]
    before = references(target)
    assert tables(target) == 3
    # sources are not needed
    shutil.rmtree(tmp_path / "in")
    assert virtualds.compact(target)
    assert tables(target) == 1
    assert not virtualds.compact(target)
    assert references(target) == before
    # earlier snapshots need the old tables; they go with the snapshots
    files = count_files(target)
    assert references(target, snapshot=old) == before
    virtualds.expire_snapshots(target)
    assert count_files(target) < files
    assert references(target) == before


def test_joined_tables_read_as_before(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    expected = grown(target, tmp_path / "in", 3, step=2500)
    virtualds.compact(target)
    virtualds.expire_snapshots(target)
    some = {"time": slice(2490, 2510)}
    found = xr.open_dataset(target, engine="virtual").isel(some).load()
    xr.testing.assert_identical(found, expected.isel(some))


def test_parts_that_were_inserted_in_any_order_are_joined(tmp_path: Path) -> None:
    target, folder = tmp_path / "refs.zarr", tmp_path / "in"
    folder.mkdir()
    for begin in (0, 5000, 2500):
        numbered(folder, begin, begin + 2500).virtual.to_manifest(
            target, append_dim="time", position="coordinate"
        )
    assert tables(target) > 1
    assert virtualds.compact(target)
    assert tables(target) == 1
    found = xr.open_dataset(target, engine="virtual")["v"][::500, 0].values
    assert found.tolist() == list(range(0, 7500, 500))


def test_parts_are_joined_with_their_pipelines_until_no_two_make_a_box() -> None:
    def part(origin: tuple[int, int], shape: tuple[int, int], fragment: int = 0) -> ManifestPart:
        rows = np.arange(shape[0])[:, None] + origin[0]
        columns = np.arange(shape[1]) + origin[1]
        number = 10 * rows + columns
        manifest = ChunkManifest.build(
            shape, files=(SourceFile("file:///a"),), file=0, offset=number, length=1,
            pipeline=number % 3,
        )  # fmt: skip
        return ManifestPart(fragment, origin, manifest)

    # a frame of four around a gap, and the parts of another fragment
    parts = [part((0, 0), (1, 2)), part((0, 2), (1, 2)), part((1, 0), (2, 1)), part((1, 3), (2, 1))]
    parts += [part((n, 0), (1, 4), 1) for n in (2, 0, 1)]
    joined = join_all_parts(parts)
    found = {(p.fragment, p.origin): p.manifest for p in joined}
    assert {key: manifest.shape for key, manifest in found.items()} == {
        (0, (0, 0)): (1, 4), (0, (1, 0)): (2, 1), (0, (1, 3)): (2, 1), (1, (0, 0)): (3, 4),
    }  # fmt: skip
    last = found[1, (0, 0)]
    numbers = 10 * np.arange(3)[:, None] + np.arange(4)
    np.testing.assert_array_equal(last.offset, numbers)
    np.testing.assert_array_equal(last.pipeline, numbers % 3)


def test_a_set_of_one_file_has_nothing_to_join(tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    grown(target, tmp_path / "in", 3)
    before = target.read_bytes()
    assert not virtualds.compact(target)
    assert target.read_bytes() == before


@pytest.mark.parametrize("kind", [RecordFolder, ParquetTable])
def test_references_that_come_out_differently_are_not_committed(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof reads what was written: here the reading goes wrong."""
    target = tmp_path / ("refs.parquet" if kind is RecordFolder else "refs.zarr")
    grown(target, tmp_path / "in", 3, step=2500 if kind is ParquetTable else 1)
    before = (target / (".zmetadata" if kind is RecordFolder else "zarr.json")).read_bytes()
    name = "parse" if kind is RecordFolder else "load"
    method = getattr(kind, name)

    def wrong(self: Any, *args: Any) -> Any:
        found = method(self, *args)
        if kind is ParquetTable and self.rows < 15_000:
            return found
        return found._map(lambda column: np.zeros_like(column))

    monkeypatch.setattr(kind, name, wrong)
    with pytest.raises(FormatError, match=r"(?s)nothing has been written"):
        virtualds.compact(target)
    monkeypatch.undo()
    assert (target / (".zmetadata" if kind is RecordFolder else "zarr.json")).read_bytes() == before


@pytest.mark.parametrize("suffix", ["parquet", "zarr"])
def test_who_joins_and_meets_another_writer_gets_an_error(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / f"refs.{suffix}"
    grown(target, tmp_path / "in", 3, step=2500 if suffix == "zarr" else 1)
    last = xr.open_dataset(target, engine="virtual").sizes["time"]
    late = numbered(tmp_path / "in", last, last + 1)
    name = "_exchange_version" if suffix == "parquet" else "write_version"
    method, first = getattr(LocalStore, name), [True]

    def slow(self: Any, *args: Any) -> Any:
        if first and first.pop():
            late.virtual.to_manifest(target, append_dim="time")
        return method(self, *args)

    monkeypatch.setattr(LocalStore, name, slow)
    with pytest.raises(ConflictError, match="another writer"):
        virtualds.compact(target)
    assert virtualds.compact(target, conflict="retry")
    assert xr.open_dataset(target, engine="virtual").sizes["time"] == last + 1


def test_records_in_object_stores_stay(tmp_path: Path) -> None:
    url = "memory://joined/refs.parquet"
    ds = numbered(tmp_path, 0, 5).virtual.rename_paths({str(tmp_path): "memory://joined"})
    ds.virtual.to_manifest(url, record_size=1)
    with pytest.raises(UnsupportedError, match="zarr-v3"):
        virtualds.compact(url)


@pytest.mark.parametrize(
    "ask", [virtualds.compact, virtualds.clean_up, lambda url: virtualds.rename_paths(url, {})]
)
def test_what_is_no_set_is_an_error(ask: Callable[[Any], Any], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no reference set"):
        ask(tmp_path / "none.zarr")


# ---------------------------------------------------------------------- moved sources


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    """The folder that three years of files have been moved to, from ``old/deep``."""
    folder = tmp_path / "old" / "deep"
    folder.mkdir(parents=True)
    for year in (2001, 2002, 2003):
        write_year(folder / f"{year}.nc", year)
    return tmp_path / "new" / "deep"


def write_and_move(target: Path, moved: Path, **choices: Any) -> xr.Dataset:
    """Write a set of the files, move them, and return what it is to hold."""
    old = sorted((moved.parent.parent / "old" / "deep").glob("*.nc"))
    with xr.open_mfdataset(old, data_vars="minimal", combine_attrs="override") as found:
        expected = found.load()
    vds = virtualds.open_virtual_mfdataset(old)
    vds.virtual.to_manifest(target, **choices)
    moved.parent.parent.joinpath("old").rename(moved.parent)
    return expected


CHOICES: list[tuple[str, dict[str, Any]]] = [
    ("json", {}),
    ("json", {"templates": True}),
    ("json", {"relative_paths": True}),
    ("json", {"relative_paths": True, "templates": True}),
    ("json", {"relative_paths": True, "zarr_format": 3}),
    ("json.zst", {}),
    ("parquet", {}),
    ("parquet", {"relative_paths": True}),
    ("parquet", {"record_size": 5}),
    ("zarr", {}),
    ("zarr", {"manifest": "inline"}),
    ("zarr", {"manifest": "json"}),
    ("zarr", {"manifest": "parquet"}),
    ("zarr", {"manifest": "parquet", "relative_paths": True}),
]


@pytest.mark.parametrize(("suffix", "choices"), CHOICES, ids=str)
def test_a_set_follows_its_archive(
    suffix: str, choices: dict[str, Any], moved: Path, tmp_path: Path
) -> None:
    target = tmp_path / f"refs.{suffix}"
    expected = write_and_move(target, moved, **choices)
    assert virtualds.rename_paths(target, {str(tmp_path / "old"): str(tmp_path / "new")}) == 3
    xr.testing.assert_equal(opened(target), expected)
    sources = virtualds.open_virtual_dataset(target)[["t"]].virtual.sources
    assert {Path(url).parent for url in sources["url"].str.removeprefix("file://")} == {moved}
    # the copy has the size that was noted, and another time
    assert sources["size"].notna().all()
    assert sources["modified"].isna().all()
    # a set that has moved goes on to grow
    write_year(moved / "2004.nc", 2004)
    last = virtualds.open_virtual_dataset(moved / "2004.nc")
    last.virtual.to_manifest(target, append_dim="time")
    assert opened(target).sizes["time"] == 48


def test_only_texts_of_urls_change(moved: Path, tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    write_and_move(target, moved, templates=True)
    before = json.loads(target.read_bytes())
    virtualds.rename_paths(target, {str(tmp_path / "old"): str(tmp_path / "new")})
    after = json.loads(target.read_bytes())
    # templates are enough
    assert after["refs"] == before["refs"]
    assert after["templates"] == {"u0": f"file://{moved}"}


@pytest.mark.parametrize("suffix", ["json", "parquet", "zarr"])
def test_variables_of_the_moved_files_are_added_and_changes_of_them_found(
    suffix: str, moved: Path, tmp_path: Path
) -> None:
    """A moved file has no time of change in the set; what is added later notes it."""
    target = tmp_path / f"refs.{suffix}"
    write_and_move(target, moved)
    virtualds.rename_paths(target, {str(tmp_path / "old"): str(tmp_path / "new")})
    vds = virtualds.open_virtual_mfdataset(str(moved / "*.nc"))
    vds[["t"]].rename(t="again").virtual.to_manifest(target, mode="a")
    found = opened(target)
    np.testing.assert_array_equal(found["again"], found["t"])
    os.utime(moved / "2002.nc", (10**9, 10**9))
    virtualds.edit(target, drop_variables="t")
    virtualds.edit(target, rename={"again": "t"})
    done = virtualds.sync(str(moved / "*.nc"), target, concat_dim="time", settle=0)
    assert [Path(url).name for url in done.replaced] == ["2002.nc"]


@pytest.mark.parametrize(("suffix", "choices"), [c for c in CHOICES if "relative_paths" in c[1]])
def test_relative_urls_stay_relative(
    suffix: str, choices: dict[str, Any], moved: Path, tmp_path: Path
) -> None:
    target = tmp_path / f"refs.{suffix}"
    expected = write_and_move(target, moved, **choices)
    virtualds.rename_paths(target, {str(tmp_path / "old"): str(tmp_path / "new")})
    sources = virtualds.open_virtual_dataset(target)[["t"]].virtual.sources
    assert sources["size"].notna().all()
    # the set and its archive move together
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(tmp_path / "new", elsewhere)
    xr.testing.assert_equal(opened(Path(shutil.move(target, elsewhere))), expected)


def test_a_template_above_the_moved_folder_is_left_alone(moved: Path, tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    expected = write_and_move(target, moved, templates=True)
    document = json.loads(target.read_bytes())
    document["templates"] = {"u0": f"file://{tmp_path}"}
    text = json.dumps(document).replace("{{u0}}/", "{{u0}}/old/deep/")
    target.write_text(text)
    virtualds.rename_paths(target, {str(tmp_path / "old"): str(tmp_path / "new")})
    assert json.loads(target.read_bytes())["templates"] == {"u0": f"file://{tmp_path}"}
    xr.testing.assert_equal(opened(target), expected)


def test_a_variable_that_cannot_be_read_cannot_move(moved: Path, tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    write_and_move(target, moved)
    document = json.loads(target.read_bytes())
    metadata = json.loads(document["refs"]["t/.zarray"])
    document["refs"]["t/.zarray"] = json.dumps(metadata | {"compressor": {"id": "unknown"}})
    target.write_text(json.dumps(document))
    before = target.read_bytes()
    with pytest.raises(virtualds.UnsupportedError, match=r"'t' of .*codec 'unknown'"):
        virtualds.rename_paths(target, {str(tmp_path / "old"): str(tmp_path / "new")})
    assert target.read_bytes() == before


def test_tables_of_references_stay_and_earlier_snapshots_keep_their_urls(
    moved: Path, tmp_path: Path
) -> None:
    target = tmp_path / "refs.zarr"
    write_and_move(target, moved, manifest="parquet")
    before = {p for p in target.rglob("*.parquet") if "manifest." in str(p)}
    old = virtualds.snapshots(target)["snapshot"].iloc[-1]
    virtualds.rename_paths(target, {str(tmp_path / "old"): str(tmp_path / "new")})
    assert {p for p in target.rglob("*.parquet") if "manifest." in str(p)} == before
    sources = virtualds.open_virtual_dataset(target, snapshot=old)[["t"]].virtual.sources
    assert sources["url"].str.contains("/old/deep/").all()
    # the new snapshot needs old tables, and old snapshots their own tables of files
    virtualds.expire_snapshots(target)
    assert opened(target).sizes["time"] == 36


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_set_stays_if_its_archive_is_not_there(suffix: str, moved: Path, tmp_path: Path) -> None:
    target = tmp_path / f"refs.{suffix}"
    write_and_move(target, moved)
    before = {p: p.read_bytes() for p in [target, *target.rglob("*")] if p.is_file()}
    new = {str(tmp_path / "old"): str(tmp_path / "new")}
    wrong: list[tuple[dict[str, str], type[Exception], str]] = [
        ({str(tmp_path / "old"): str(tmp_path / "nowhere")}, ReadError, "cannot be read"),
        ({str(tmp_path / "elsewhere"): str(tmp_path / "new")}, ValueError, "no source begins"),
        ({str(tmp_path / "old"): "https://me:secret@host/data"}, UnsupportedError, "password"),
    ]
    for change, kind, message in wrong:
        with pytest.raises(kind, match=message):
            virtualds.rename_paths(target, change)
    with open(moved / "2003.nc", "ab") as file:
        file.write(b"more")
    with pytest.raises(ReadError, match="has the size"):
        virtualds.rename_paths(target, new)
    assert {p: p.read_bytes() for p in [target, *target.rglob("*")] if p.is_file()} == before
    assert virtualds.rename_paths(target, new, sample=0) == 3


def test_what_the_set_holds_itself_stays_in_it(tmp_path: Path) -> None:
    """The set lies in the folder whose files have moved to another one."""
    target, inner = tmp_path / "refs.zarr", tmp_path / "inner"
    inner.mkdir()
    for year in (2001, 2002):
        write_year(tmp_path / f"{year}.nc", year)
        vds = virtualds.open_virtual_dataset(tmp_path / f"{year}.nc")
        vds.virtual.to_manifest(target, append_dim="time")
    expected = opened(target)
    for path in tmp_path.glob("*.nc"):
        path.rename(inner / path.name)
    assert virtualds.rename_paths(target, {str(tmp_path): str(inner)}, sample=None) == 2
    xr.testing.assert_identical(opened(target), expected)


def test_a_function_may_change_urls(moved: Path, tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    expected = write_and_move(target, moved)
    virtualds.rename_paths(target, lambda url: url.replace("/old/", "/new/"), sample=None)
    xr.testing.assert_equal(opened(target), expected)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_rename_that_meets_another_writer_is_an_error(
    suffix: str, moved: Path, tmp_path: Path
) -> None:
    target = tmp_path / f"refs.{suffix}"
    write_and_move(target, moved)
    write_year(moved / "2004.nc", 2004)
    rival = [virtualds.open_virtual_dataset(moved / "2004.nc")]

    def change(url: str) -> str:
        if rival:
            rival.pop().virtual.to_manifest(target, append_dim="time")
        return url.replace("/old/", "/new/")

    with pytest.raises(ConflictError, match="another writer"):
        virtualds.rename_paths(target, change)
    virtualds.rename_paths(target, change)
    assert opened(target).sizes["time"] == 48


def test_moving_reads_no_reference_of_tables(
    moved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "refs.zarr"
    write_and_move(target, moved, manifest="parquet")
    read: list[str] = []
    method = LocalStore.read_all

    def noted(self: LocalStore, url: str, options: Any) -> bytes:
        read.append(url)
        return method(self, url, options)

    monkeypatch.setattr(LocalStore, "read_all", noted)
    virtualds.rename_paths(target, {str(tmp_path / "old"): str(tmp_path / "new")})
    assert not [url for url in read if "/manifest." in url]
    assert [url for url in read if "/sources" in url]


# ---------------------------------------------------------------------- what killed writers leave


def left_by_killed_writers(target: Path, age: float) -> list[Path]:
    """Make temporary files of an age, as writers name them."""
    beside = [target.parent / f".{target.name}.{'0' * 15}1"]
    inside = [target / "v" / f".refs.0.parq.{'0' * 15}2"] if target.is_dir() else []
    for path in [*beside, *inside]:
        path.write_bytes(b"left")
        then = time.time() - age
        os.utime(path, (then, then))
    folder = target.parent / f".{target.name}.{'0' * 15}3"
    folder.mkdir()
    (folder / "part").write_bytes(b"1234567")
    for path in (folder / "part", folder):
        os.utime(path, (time.time() - age,) * 2)
    return [*beside, *inside, folder]


@pytest.mark.parametrize("suffix", ["json", "parquet", "zarr"])
def test_what_killed_writers_left_is_listed_and_removed(suffix: str, tmp_path: Path) -> None:
    target = tmp_path / f"refs.{suffix}"
    expected = grown(target, tmp_path / "in", 3)
    old = left_by_killed_writers(target, 2 * 86400)
    notes = tmp_path / ".refs.notes"
    notes.write_text("mine")
    listed = virtualds.clean_up(target, dry_run=True)
    assert listed.files == sorted(f"file://{path}" for path in old)
    assert listed.nbytes == 4 * (len(old) - 1) + 7
    assert all(path.exists() for path in old)
    assert virtualds.clean_up(target) == listed
    assert not any(path.exists() for path in old)
    assert virtualds.clean_up(target).files == []
    assert notes.exists()
    xr.testing.assert_identical(opened(target), expected)


def test_files_of_writers_at_work_stay(tmp_path: Path) -> None:
    target = tmp_path / "refs.parquet"
    grown(target, tmp_path / "in", 2)
    fresh = left_by_killed_writers(target, 3600)
    assert virtualds.clean_up(target).files == []
    assert all(path.exists() for path in fresh)
    assert len(virtualds.clean_up(target, older_than=timedelta(minutes=30)).files) == len(fresh)


def test_a_dry_run_lists_what_expiring_removes(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    grown(target, tmp_path / "in", 6)
    before = {p: p.read_bytes() for p in target.rglob("*") if p.is_file()}
    listed = virtualds.expire_snapshots(target, keep=2, dry_run=True)
    assert {p: p.read_bytes() for p in target.rglob("*") if p.is_file()} == before
    assert len(listed.snapshots) == 4
    found = virtualds.expire_snapshots(target, keep=2)
    assert found == listed
    gone = [p for p in before if not p.exists()]
    assert sorted(f"file://{p}" for p in gone) == sorted(found.files)
    assert found.nbytes == sum(len(before[p]) for p in gone) > 0
    assert repr(found).startswith("Removal of 4 snapshots and ")


def test_orphans_of_no_snapshot_are_cleaned_up_and_snapshots_stay(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    grown(target, tmp_path / "in", 3)
    orphan = target / "v" / "manifest.20200101T000000000000-00000000.0" / "0.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"?")
    os.utime(orphan, (0, 0))
    assert virtualds.clean_up(target).files == [f"file://{orphan}"]
    assert len(virtualds.snapshots(target)) == 3


def test_a_cleaning_that_meets_another_one_is_a_conflict_or_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for conflict in ("raise", "retry"):
        target = tmp_path / f"{conflict}.zarr"
        grown(target, tmp_path / f"in-{conflict}", 4)
        list_expired = snapshots._list_expired

        def meet(*given: Any, at: Path = target, known: Any = list_expired) -> Any:
            """Let another process expire snapshots as soon as this one has looked at the set."""
            monkeypatch.setattr(snapshots, "_list_expired", known)
            virtualds.expire_snapshots(at, keep=1)
            return known(*given)

        monkeypatch.setattr(snapshots, "_list_expired", meet)
        if conflict == "raise":
            with pytest.raises(ConflictError, match="another writer was faster"):
                virtualds.clean_up(target)
        else:
            assert virtualds.clean_up(target, conflict=conflict).files == []
        assert len(virtualds.snapshots(target)) == 1


def test_a_set_whose_snapshot_lacks_a_file_is_named_as_damaged(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    grown(target, tmp_path / "in", 3)
    oldest = virtualds.snapshots(target)["snapshot"][0]
    (target / "__virtualds__" / oldest / "zarr.json.gz").unlink()
    with pytest.raises(FormatError, match=rf"a snapshot of the set needs is gone .*{oldest}"):
        virtualds.clean_up(target)


def test_sets_in_memory_are_cleaned_up_as_far_as_there_is_something(tmp_path: Path) -> None:
    url = "memory://tidy/refs.zarr"
    ds = numbered(tmp_path, 0, 5).virtual.rename_paths({str(tmp_path): "memory://tidy"})
    ds.virtual.to_manifest(url)
    assert virtualds.clean_up(url) == virtualds.Removal([], [], 0)
