"""The files of a set, and the chunks in each, are known without its references."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from large_sets import archive, counted

import virtualds
from virtualds import ChunkManifest, FormatError
from virtualds.chunks.columns import MISSING
from virtualds.formats.zarr_manifests import join_parts, parquet_table
from virtualds.formats.zarr_manifests.parquet_table import SourceTable, write_source_rows
from virtualds.formats.zarr_manifests.set_files import SetFiles

FILES = 12


def dense() -> xr.Dataset:
    """As many chunks in every file: one run."""
    return archive(range(FILES), steps=10)


def irregular() -> xr.Dataset:
    """Other numbers of chunks in every file, some missing: more runs than metadata hold."""
    parts = [archive(range(n, n + 1), steps=1 + n % 5) for n in range(30)]
    array = xr.concat(parts, "time")["v"].variable.data
    file = np.array(array.manifest.file)
    file[::7, 3] = MISSING
    columns = {name: getattr(array.manifest, name) for name in ("offset", "length")}
    holed = ChunkManifest.build(file.shape, files=array.manifest.files, file=file, **columns)
    fragments = (replace(array.fragments[0], manifest=holed),)
    return xr.Dataset({"v": (("time", "y", "x"), replace(array, fragments=fragments))})


def variables() -> xr.Dataset:
    """Two variables of the same files."""
    whole = dense()
    return whole.assign(w=whole["v"])


MAKERS: dict[str, Callable[[], xr.Dataset]] = {
    "one run": dense,
    "many runs": irregular,
    "two variables": variables,
}

SELECTIONS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "whole": lambda ds: ds,
    "transposed": lambda ds: ds.transpose("x", "time", "y"),
    "a crop": lambda ds: ds.isel(time=slice(7, 29)),
    "a column": lambda ds: ds.isel(x=slice(20, 30)),
    "the crop of a crop": lambda ds: ds.isel(time=slice(3, None), y=slice(10, 40)),
    "twice": lambda ds: xr.concat([ds, ds], "time"),
    "nothing": lambda ds: ds.isel(time=slice(0, 0)),
}


def sort(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values("url", ignore_index=True)


def strip_counts(target: Path) -> None:
    """Make a set as writers leave it that do not count."""
    root = json.loads((target / "zarr.json").read_bytes())
    for node in root["consolidated_metadata"]["metadata"].values():
        for part in node["storage_transformers"][0]["configuration"]["parts"]:
            del part["table"]["counts"]
    root["attributes"]["virtualds"].pop("sources", None)
    (target / "zarr.json").write_text(json.dumps(root))
    for path in target.rglob("counts.parquet"):
        path.unlink()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("counts", ["noted", "not noted"])
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("which", MAKERS)
def test_sources_of_a_set_are_those_of_its_references(
    which: str, selection: str, counts: str, tmp_path: Path
) -> None:
    whole, select = MAKERS[which](), SELECTIONS[selection]
    whole.virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    if counts == "not noted":
        strip_counts(tmp_path / "refs.zarr")
    found = select(virtualds.open_virtual_dataset(tmp_path / "refs.zarr")).virtual.sources
    expected = select(whole).virtual.sources
    expected = expected[expected["chunks"] > 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(sort(found), sort(expected), check_dtype=False)


CHANGES: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda target: None,
    "an append": lambda target: archive(range(50, 52), steps=3).virtual.to_manifest(
        target, append_dim="time"
    ),
    "an append of what came from one of its files": lambda target: archive(
        range(3, 4), steps=3
    ).virtual.to_manifest(target, append_dim="time", on_duplicate="skip"),
    "files dropped": lambda target: virtualds.drop_sources(
        target, "s3://bucket/some/long/prefix/product_000004.nc", dim="time"
    ),
    "moved files": lambda target: virtualds.rename_paths(
        target, {"s3://bucket/some": "s3://other/some"}, sample=0
    ),
    "joined tables": virtualds.compact,
}


@pytest.mark.parametrize("change", CHANGES)
def test_counts_follow_changes_of_a_set(change: str, tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    dense().virtual.to_manifest(target, manifest="parquet")
    CHANGES[change](target)
    noted = virtualds.open_virtual_dataset(target).virtual.sources
    shutil.copytree(target, tmp_path / "stripped.zarr")
    strip_counts(tmp_path / "stripped.zarr")
    read = virtualds.open_virtual_dataset(tmp_path / "stripped.zarr").virtual
    pd.testing.assert_frame_equal(noted, read.sources)
    assert noted["chunks"].sum() == read.nchunks


@pytest.mark.parametrize("which", ["one run", "two variables"])
def test_sources_read_the_table_of_files_and_no_references(which: str, tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    MAKERS[which]().virtual.to_manifest(target, manifest="parquet")
    ds = virtualds.open_virtual_dataset(target)
    with counted(target) as traffic:
        assert len(ds.virtual.sources) == FILES
    [path] = traffic.read
    assert path.endswith("/sources/0.parquet")
    assert traffic.read.total() == 1


def test_counts_in_many_runs_are_one_file_more(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    irregular().virtual.to_manifest(target, manifest="parquet")
    ds = virtualds.open_virtual_dataset(target)
    with counted(target) as traffic:
        assert len(ds.virtual.sources) == 30
    names = sorted(path.rpartition("/")[2] for path in traffic.read)
    assert names == ["0.parquet", "counts.parquet"]


DAMAGES: dict[str, Any] = {
    "more files than there are": {"runs": [[FILES + 1, 1000]]},
    "more chunks than there are": {"runs": [[FILES, 100_000]]},
    "below nothing": {"runs": [[FILES, -1]]},
    "no pairs": {"runs": [FILES]},
    "text": {"runs": [["12", "1"]]},
    "another file": {"path": "../../../../secret.parquet"},
    "no form": {},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_counts_that_cannot_be_are_refused(damage: str, tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    dense().virtual.to_manifest(target, manifest="parquet")
    root = json.loads((target / "zarr.json").read_bytes())
    [transformer] = root["consolidated_metadata"]["metadata"]["v"]["storage_transformers"]
    table = transformer["configuration"]["parts"][0]["table"]
    table["counts"] = {"must_understand": False, **DAMAGES[damage]}
    (target / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(FormatError, match="damaged"):
        _ = virtualds.open_virtual_dataset(target).virtual.sources


# ---------------------------------------------------------------------- many files

RECORD = 1000
"""Rows of a record here, in place of 100,000."""
MANY = 2 * RECORD + RECORD // 2
"""Files of a set whose table of files has three records."""


@pytest.fixture
def short_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that tables of a few files fill."""
    for module in (parquet_table, parquet_table, join_parts):
        monkeypatch.setattr(module, "RECORD_SIZE", RECORD)


def many(
    files: range, size: int = 100, offset: int = 0, name: str = "s3://bucket/days/day_{:07d}.nc"
) -> xr.Dataset:
    """One chunk in each of many files."""
    grid = (len(files),)
    sources = [virtualds.SourceFile(name.format(number), size=size) for number in files]
    manifest = ChunkManifest.build(
        grid, files=sources, file=np.arange(len(files)), offset=offset, length=4
    )
    axes = (virtualds.ChunkAxis.regular(len(files), 1),)
    pipeline = virtualds.CodecPipeline(dtype=np.dtype("f4"), codecs=(), fill=None, layout=(0,))
    fragment = virtualds.Fragment((0,), axes, manifest)
    return xr.Dataset({"v": ("time", virtualds.ManifestArray.from_fragment(fragment, pipeline))})


def append(files: range, target: Path) -> None:
    many(files).virtual.to_manifest(target, append_dim="time", manifest="parquet")


@pytest.fixture
def target(short_records: None, tmp_path: Path) -> Path:
    """A set of many files."""
    many(range(MANY)).virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    return tmp_path / "refs.zarr"


def test_an_append_reads_no_record_of_files_that_cannot_have_the_new_ones(target: Path) -> None:
    with counted(target) as traffic:
        append(range(MANY, MANY + 5), target)
    assert set(traffic.read) == {"zarr.json"}
    assert traffic.read.total() <= 2
    grown = virtualds.open_virtual_dataset(target).virtual.sources
    assert grown["url"].tolist()[-1] == f"s3://bucket/days/day_{MANY + 4:07d}.nc"
    assert len(grown) == MANY + 5


def test_a_changed_file_is_found(target: Path) -> None:
    again = many(range(1234, 1235), size=99, offset=8)
    with pytest.raises(virtualds.CombineError, match="has changed"):
        again.virtual.to_manifest(target, append_dim="time")


def test_files_are_looked_for_in_the_records_that_may_have_them(target: Path) -> None:
    [fragment] = virtualds.open_virtual_dataset(target)["v"].variable.data.fragments
    known, unknown = (f"s3://bucket/days/day_{number}.nc" for number in ("0001234", "0001234b"))
    with counted(target) as traffic:
        [found] = fragment.manifest.find_listed_files({known, unknown, "s3://other/a.nc"})
    assert (found.url, found.size) == (known, 100)
    assert [path.rpartition("/")[2] for path in traffic.read] == ["1.parquet"]


def test_a_second_append_still_knows_the_first_and_last_files(target: Path) -> None:
    append(range(MANY, MANY + RECORD), target)
    last = MANY + RECORD
    with counted(target) as traffic:
        append(range(last, last + 5), target)
    assert set(traffic.read) == {"zarr.json"}


def noted_ranges(target: Path) -> dict[str, list[list[str]]]:
    root = json.loads((target / "zarr.json").read_bytes())
    found: dict[str, list[list[str]]] = root["attributes"]["virtualds"].get("sources", {})
    return found


def note_ranges(target: Path) -> None:
    """Note the first and last path of a table of relative paths."""
    [folder] = (target / "__virtualds__").glob("*/sources")
    root = json.loads((target / "zarr.json").read_bytes())
    paths = pd.read_parquet(folder / "0.parquet")["path"]
    notes = {str(folder.relative_to(target)): [[paths.min(), paths.max()]]}
    root["attributes"]["virtualds"]["sources"] = notes
    (target / "zarr.json").write_text(json.dumps(root))


@pytest.mark.parametrize("noted", [False, True])
def test_files_of_relative_paths_are_found_also_when_the_set_has_moved(
    noted: bool, tmp_path: Path
) -> None:
    """From `sets` to `days`: `../days/day_0000700.nc` still leads to the same file."""
    name = f"file://{tmp_path}/days/day_{{:07d}}.nc"
    target, moved = tmp_path / "sets" / "refs.zarr", tmp_path / "days" / "refs.zarr"
    many(range(1500), name=name).virtual.to_manifest(
        target, relative_paths=True, manifest="parquet"
    )
    assert noted_ranges(target) == {}
    if noted:
        note_ranges(target)
        assert len(noted_ranges(target)) == 1
    again = many(range(700, 701), size=99, offset=8, name=name)
    with pytest.raises(virtualds.CombineError, match="has changed"):
        again.virtual.to_manifest(target, append_dim="time")
    moved.parent.mkdir()
    target.rename(moved)
    with pytest.raises(virtualds.CombineError, match="has changed"):
        again.virtual.to_manifest(moved, append_dim="time")


def test_files_are_found_when_the_set_has_moved_above_them(tmp_path: Path) -> None:
    name = f"file://{tmp_path}/archive/day_{{:07d}}.nc"
    target, moved = tmp_path / "refs.zarr", tmp_path / "archive"
    many(range(1500), name=name).virtual.to_manifest(target, manifest="parquet")
    assert len(noted_ranges(target)) == 1
    target.rename(moved)
    again = many(range(700, 701), size=99, offset=8, name=name)
    with pytest.raises(virtualds.CombineError, match="has changed"):
        again.virtual.to_manifest(moved, append_dim="time")


def test_a_large_set_without_notes_still_finds_changed_files(target: Path) -> None:
    strip_counts(target)
    again = many(range(1234, 1235), size=99, offset=8)
    with pytest.raises(virtualds.CombineError, match="has changed"):
        again.virtual.to_manifest(target, append_dim="time")


ODD = [
    "S3://bucket/days/upper.nc",
    "s3://bucket/days/../days/dots.nc",
    "https://EXAMPLE.org:443/days/host.nc",
    "https://example.org/day.nc?version=1",
    "/data/day with spaces.nc",
    "../beside.nc",
    "./inside/chunk",
    "s3://bucket/days/.hidden.nc",
    "s3://bucket//double.nc",
    "zip://a.nc::s3://bucket/days.zip",
    "s3://bucket/äöü/ü.nc",
    "file:///data/plain.nc",
]


def test_urls_of_columns_are_those_of_single_files(tmp_path: Path) -> None:
    rows = [(path, (number, None, None)) for number, path in enumerate(ODD)]
    written: dict[str, bytes] = {}
    write_source_rows("sources", rows, written.__setitem__)
    [data] = written.values()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "0.parquet").write_bytes(data)
    store, table = SetFiles(f"file://{tmp_path}", None), SourceTable("files", len(ODD))
    files = table.read_files(store, np.arange(len(ODD)))
    assert table.read_columns(store).urls.tolist() == [file.url for file in files]
