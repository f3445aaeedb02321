"""kerchunk in Parquet: what is written reads the same, lazily, and is whole or not there."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
from cases import CASES, Archive
from products import few_quick, looped
from range_server import range_server
from transforms import without_gaps

import virtualds
from virtualds import (
    AccessError,
    FormatError,
    ManifestArray,
    ReadError,
    UnsupportedError,
)
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.formats.kerchunk import json as kerchunk_json
from virtualds.formats.kerchunk import parquet as kerchunk_parquet
from virtualds.formats.kerchunk import records as kerchunk_records
from virtualds.source_file import SourceFile
from virtualds.stores.local import LocalStore
from virtualds.writing import prepare_write

pytestmark = pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")


def lazy(path: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(path, engine="virtual", **options)


def virtual(path: Any) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path, loadable_variables=[])


def read(path: Path) -> ManifestGroup:
    return kerchunk_parquet.read(SourceFile(f"file://{path}"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What files of sets were read, and how often."""
    found: Counter[str] = Counter()
    read_all = LocalStore.read_all

    def counted(self: LocalStore, url: str, options: Any) -> bytes:
        data = read_all(self, url, options)
        inside = url.rpartition("/refs.parquet/")[2]
        found[inside] += 1
        return data

    monkeypatch.setattr(LocalStore, "read_all", counted)
    return found


def grid_of_chunks(folder: Path, rows: int = 20, columns: int = 5) -> tuple[xr.Dataset, Any]:
    """A set of an array of one element a chunk, and its values."""
    values = np.arange(rows * columns, dtype="<i4").reshape(rows, columns)
    (folder / "data.bin").write_bytes(values.tobytes())
    array = ManifestArray.from_arrays(
        shape=values.shape, chunks=(1, 1), dtype="<i4", path=str(folder / "data.bin"),
        offsets=np.arange(values.size).reshape(values.shape) * 4, lengths=4,
    )  # fmt: skip
    return xr.Dataset({"v": (("y", "x"), array)}), values


# ---------------------------------------------------------------------- one set, two formats


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", few_quick(CASES, list(CASES)[::3]))
def test_both_formats_of_kerchunk_hold_the_same(
    name: str, archive: Archive, tmp_path: Path
) -> None:
    group = open_group(Location.of(archive.path(name)), OpenOptions(CASES[name].group))
    as_json, as_parquet = tmp_path / "refs.json", tmp_path / "refs.parquet"
    try:
        kerchunk_json.write(group, f"file://{as_json}")
    except UnsupportedError as error:
        with pytest.raises(UnsupportedError) as caught:
            kerchunk_parquet.write(group, f"file://{as_parquet}")
        same = str(error).replace("refs.json", "refs.parquet")
        assert str(caught.value) == same.replace("kerchunk-json", "kerchunk-parquet")
        assert os.listdir(tmp_path) == []
        return
    kerchunk_parquet.write(group, f"file://{as_parquet}", record_size=3)
    # each read from the other and written again
    kerchunk_parquet.write(
        kerchunk_json.read(SourceFile(f"file://{as_json}")), f"file://{tmp_path}/2.parquet"
    )
    kerchunk_json.write(read(as_parquet), f"file://{tmp_path}/2.json")
    kerchunk_json.write(read(tmp_path / "2.parquet"), f"file://{tmp_path}/3.json")
    documents = [json.loads((tmp_path / n).read_bytes()) for n in ("refs.json", "2.json", "3.json")]
    for document in documents[1:]:
        assert document["refs"] == documents[0]["refs"]
        assert document["virtualds"] == documents[0]["virtualds"]


@pytest.mark.full
@looped("name", CASES)
def test_loaded_variables_are_held_inline(name: str, archive: Archive, tmp_path: Path) -> None:
    native = archive.native(name)
    native.virtual.to_manifest(tmp_path / "refs.parq")
    xr.testing.assert_identical(lazy(tmp_path / "refs.parq").load(), without_gaps(native))


def test_nested_groups_are_a_tree_again(tmp_path: Path) -> None:
    leaf = ManifestGroup({"v": ManifestVariable(("x",), np.arange(3.0))}, {"n": np.int16(3)})
    tree = ManifestGroup({"v": ManifestVariable(("x",), np.arange(5))}, groups={"a": leaf})
    kerchunk_parquet.write(tree, f"file://{tmp_path}/refs.parquet")
    found = read(tmp_path / "refs.parquet")
    assert [path for path, _ in found.walk()] == ["", "a"]
    assert type(found.group("a").attributes["n"]) is np.int16
    assert found.group("a").variables["v"].read().tolist() == [0.0, 1.0, 2.0]
    assert lazy(tmp_path / "refs.parquet", group="a")["v"].values.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("how", ["path", "url", "trailing slash", "named"])
def test_a_folder_is_found_however_it_is_called(how: str, tmp_path: Path) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs", format="kerchunk-parquet")
    names = {"url": f"file://{tmp_path}/refs", "trailing slash": f"{tmp_path}/refs/"}
    options = {"parser": "kerchunk-parquet"} if how == "named" else {}
    found = lazy(names.get(how, tmp_path / "refs"), **options)
    np.testing.assert_array_equal(found["v"].values, values)


def test_other_folders_are_no_sets(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".zmetadata").write_text('{"metadata":{}}')
    for name in ("empty", "other"):
        with pytest.raises(FormatError, match=name):
            lazy(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        lazy(tmp_path / "none.parquet")


# ---------------------------------------------------------------------- lazily


def test_opening_reads_the_metadata_alone(opened: Counter[str], tmp_path: Path) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=10)
    assert len(os.listdir(tmp_path / "refs.parquet" / "v")) == 10
    opened.clear()
    found = lazy(tmp_path / "refs.parquet")
    repr(found)
    vds = virtual(tmp_path / "refs.parquet")
    repr(vds)
    vds["v"].data._repr_html_()
    assert set(opened) == {".zmetadata"}, opened
    assert vds.virtual.nbytes < 100
    np.testing.assert_array_equal(found["v"].values, values)
    assert opened.total() == len(opened) - 1 + opened[".zmetadata"]
    assert len(opened) == 11


SELECTIONS: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], set[int]]] = {
    "one element": (lambda ds: ds.isel(y=3, x=2), {1}),
    "one row": (lambda ds: ds.isel(y=4), {2}),
    "two rows of one record": (lambda ds: ds.isel(y=slice(6, 8)), {3}),
    "rows far apart": (lambda ds: ds.isel(y=[0, 19]), {0, 9}),
    "a mask": (lambda ds: ds.isel(y=np.arange(20) % 19 == 0), {0, 9}),
    "steps": (lambda ds: ds.isel(y=slice(1, None, 8)), {0, 4, 8}),
    "backwards": (lambda ds: ds.isel(y=slice(1, None, -1)), {0}),
    "one column": (lambda ds: ds.isel(x=0, y=slice(0, 4)), {0, 1}),
    "points": (lambda ds: ds.isel(y=xr.DataArray([0, 10]), x=xr.DataArray([4, 0])), {0, 5}),
    "cropped twice": (lambda ds: ds.isel(y=slice(4, 12)).isel(y=slice(2, 4), x=[1]), {3}),
    "transposed": (lambda ds: ds.transpose("x", "y").isel(y=slice(18, None)), {9}),
    "expanded": (lambda ds: ds.expand_dims("z").isel(y=2), {1}),
    "nothing": (lambda ds: ds.isel(y=slice(0, 0)), set()),
}


@pytest.mark.parametrize("opener", [lazy, virtual])
@pytest.mark.parametrize("which", SELECTIONS)
def test_a_selection_reads_the_records_that_it_needs(
    which: str, opener: Any, opened: Counter[str], tmp_path: Path
) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=10)
    found = opener(tmp_path / "refs.parquet")
    opened.clear()
    select, records = SELECTIONS[which]
    expected = select(xr.Dataset({"v": (("y", "x"), values)}))
    np.testing.assert_array_equal(select(found)["v"].values, expected["v"].values)
    if which in ("points", "one column") and opener is virtual:
        return  # a virtual array that is indexed point by point is read as its box
    if which == "expanded" and opener is lazy:
        return  # xarray loads what is lazy to give it another axis
    assert opened == Counter({f"v/refs.{n}.parq": 1 for n in records})


def test_the_cache_of_records_is_bounded(
    opened: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kerchunk_records, "MAX_CACHED_ROWS", 30)
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=10)
    found = read(tmp_path / "refs.parquet").variables["v"].data
    opened.clear()
    for _ in range(2):
        np.testing.assert_array_equal(found.read((slice(0, 6), slice(None))), values[:6])
    assert opened.total() == 3
    np.testing.assert_array_equal(np.asarray(found), values)
    np.testing.assert_array_equal(found.read((slice(0, 6), slice(None))), values[:6])
    assert opened.total() == 3 + 7 + 3
    assert len(found.manifest.table.records._cache) == 3


def test_a_lazy_array_is_pickled_without_its_references(
    opened: Counter[str], tmp_path: Path
) -> None:
    ds, values = grid_of_chunks(tmp_path, 100, 100)
    ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=1000)
    found = virtual(tmp_path / "refs.parquet")["v"].data
    found.read((3, slice(None)))
    opened.clear()
    data = pickle.dumps(found)
    assert len(data) < 3000
    again = pickle.loads(data)
    from dask.base import tokenize

    assert tokenize(again) == tokenize(found)
    assert again.manifest.has_same_references(found.manifest)
    assert not opened
    np.testing.assert_array_equal(again.read((slice(None),) * 2), values)


def test_dask_reads_lazy_arrays_in_chunks(tmp_path: Path) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=7)
    found = lazy(tmp_path / "refs.parquet", chunks={"y": 4})
    np.testing.assert_array_equal(found["v"].values, values)


def test_views_of_lazy_manifests_are_those_of_loaded_ones(tmp_path: Path) -> None:
    ds, _ = grid_of_chunks(tmp_path, 6, 4)
    ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=5)
    found = read(tmp_path / "refs.parquet").variables["v"].data.manifest
    assert not found.is_loaded
    whole = found.loaded()
    assert whole.is_loaded
    views: list[Callable[[ChunkManifest], ChunkManifest]] = [
        lambda m: m,
        lambda m: m.take(0, slice(1, 5, 2)).take(1, slice(None, None, -1)),
        lambda m: m.transpose((1, 0)).take(0, slice(1, 3)),
        lambda m: m.take(0, np.array([3, -1, 3, 0])),
        lambda m: m.take(1, np.array([-1, -1])),
        lambda m: m.take(0, slice(2, 3)).reshape((4,)).reshape((1, 4, 1)),
        lambda m: m.take(0, slice(2, 3)).broadcast_to((3, 4)),
        lambda m: m.take(1, slice(1, 1)),
        lambda m: m.at(np.array([[23, 0], [7, 7]])),
        lambda m: m.transpose((1, 0)).at(np.array([1, 20])),
        lambda m: ChunkManifest.concatenate([m, m], 1),
        lambda m: m.with_files(lambda file: file._replace(url="s3://a/b")),
        lambda m: m.with_pipelines([0]),
        lambda m: m.prune(),
    ]
    for view in views:
        ours, theirs = view(found), view(whole)
        assert ours.shape == theirs.shape
        assert ours.size == theirs.size
        assert (ours.file == theirs.file).all()
        there = theirs.file >= 0  # the rest of a missing row is anything
        assert (ours.offset[there] == theirs.offset[there]).all()
        assert (ours.length[there] == theirs.length[there]).all()
        assert ours.has_same_references(theirs) or not there.all() or not there.size
        assert (ours.pipeline == theirs.pipeline).all()


def test_errors_name_the_chunk_of_a_lazy_array(tmp_path: Path) -> None:
    ds, _ = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=10)
    os.truncate(tmp_path / "data.bin", 4 * 93)
    # a slice of a virtual dataset is an array of its own
    opened = {"(18, 3)": xr.open_dataset, "(0, 1)": virtualds.open_virtual_dataset}
    for place, opener in opened.items():
        options = {"engine": "virtual"} if opener is xr.open_dataset else {}
        found = opener(tmp_path / "refs.parquet", **options)["v"]
        with virtualds.set_options(check_sources=False), pytest.raises(ReadError) as caught:
            found[18:, 2:].values  # noqa: B018
        assert f"chunk {place}" in " ".join(caught.value.__notes__)


def test_only_those_whole_files_are_measured_that_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = [f"{n}.bin" for n in range(9)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(np.full(6, number, "<i2").tobytes())
    path = by_hand(tmp_path, {"path": names, "offset": [0] * 9, "size": [0] * 9}, record_size=9)
    document = json.loads((path / ".zmetadata").read_text())
    document["metadata"]["v/.zarray"] = ZARRAY | {"shape": [18, 3]}
    (path / ".zmetadata").write_text(json.dumps(document))
    found = lazy(path, mask_and_scale=False)["v"]
    described: list[str] = []
    describe = LocalStore.describe

    def counted(self: LocalStore, url: str, options: Any) -> SourceFile:
        described.append(url.rpartition("/")[2])
        return describe(self, url, options)

    monkeypatch.setattr(LocalStore, "describe", counted)
    for _ in range(2):
        assert found[3:6].values.ravel().tolist() == [1] * 3 + [2] * 6
    assert [name for name in described if name != ".zmetadata"] == ["1.bin", "2.bin"]


# ---------------------------------------------------------------------- whole or not there


def test_an_existing_set_is_replaced_or_refused(tmp_path: Path) -> None:
    target = tmp_path / "refs.parquet"
    one, two = (xr.Dataset({name: ("x", [1.0])}) for name in ("a", "b"))
    one.virtual.to_manifest(target, mode="w-")
    with pytest.raises(FileExistsError):
        two.virtual.to_manifest(target, mode="w-")
    assert list(lazy(target)) == ["a"]
    two.virtual.to_manifest(target, mode="w")
    assert list(lazy(target)) == ["b"]
    assert sorted(os.listdir(target)) == [".zmetadata", "b"]
    assert os.listdir(tmp_path) == ["refs.parquet"]


@pytest.mark.parametrize("what", ["folder", "file", "zarr"])
def test_a_file_or_folder_that_is_no_set_is_never_replaced(what: str, tmp_path: Path) -> None:
    target = tmp_path / "refs.parquet"
    if what == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine").write_text("mine")
    if what == "zarr":
        (target / ".zmetadata").write_text('{"metadata": {}}')
    with pytest.raises(FileExistsError, match="exists already"):
        xr.Dataset({"v": ("x", [1.0])}).virtual.to_manifest(target)
    assert os.listdir(tmp_path) == ["refs.parquet"]
    assert what == "file" or (target / "mine").read_text() == "mine"


@pytest.mark.parametrize("at", range(4))
def test_a_failing_write_leaves_the_old_set(
    at: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    xr.Dataset({"old": ("x", [1.0])}).virtual.to_manifest(tmp_path / "refs.parquet")
    ds, _ = grid_of_chunks(tmp_path)
    before = sorted(os.listdir(tmp_path))
    count = iter(range(99))
    record = kerchunk_records.encode_record

    def failing(*args: Any) -> bytes:
        if next(count) == at:
            raise KeyboardInterrupt
        return record(*args)

    monkeypatch.setattr(kerchunk_parquet, "encode_record", failing)
    with pytest.raises(KeyboardInterrupt):
        ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=10, mode="w")
    assert lazy(tmp_path / "refs.parquet")["old"].values == [1.0]
    assert sorted(os.listdir(tmp_path)) == before


def test_where_names_cannot_be_exchanged_it_takes_two_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from virtualds.stores import local

    monkeypatch.setattr(local.ctypes, "CDLL", lambda *args, **options: object())
    test_an_existing_set_is_replaced_or_refused(tmp_path)


def test_a_reader_never_mixes_two_writings(tmp_path: Path) -> None:
    ds, values = grid_of_chunks(tmp_path)
    target = tmp_path / "refs.parquet"
    ds.virtual.to_manifest(target, record_size=10)
    found = lazy(target)
    np.testing.assert_array_equal(found["v"][0].values, values[0])
    ds.isel(y=slice(None, None, -1)).virtual.load().virtual.to_manifest(
        target, record_size=1, mode="w"
    )
    np.testing.assert_array_equal(found["v"][0].values, values[0])
    with pytest.raises(ReadError, match="open it again"):
        found["v"][10].values  # noqa: B018
    with pytest.raises(ReadError, match="open it again"):
        found["v"][0:].values  # noqa: B018


def test_a_lost_record_is_an_error_and_no_fill(tmp_path: Path) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=10)
    (tmp_path / "refs.parquet" / "v" / "refs.4.parq").unlink()
    found = lazy(tmp_path / "refs.parquet")
    np.testing.assert_array_equal(found["v"][:8].values, values[:8])
    with pytest.raises(ReadError, match=r"refs\.4\.parq"):
        found["v"][8].values  # noqa: B018


def test_a_set_is_written_over_itself(tmp_path: Path) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=10)
    half = virtual(tmp_path / "refs.parquet").isel(y=slice(5, None))
    half.virtual.to_manifest(tmp_path / "refs.parquet", record_size=4, mode="w")
    np.testing.assert_array_equal(lazy(tmp_path / "refs.parquet")["v"].values, values[5:])


@pytest.mark.parametrize("size", [0, -1, 1.5, "10", True])
def test_the_record_size_is_a_number(size: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="record_size"):
        xr.Dataset().virtual.to_manifest(tmp_path / "refs.parquet", record_size=size)


def test_names_that_are_no_folders_are_refused(tmp_path: Path) -> None:
    for name in ("..", "a\\b", "a\0b"):
        with pytest.raises(UnsupportedError, match="rename it"):
            xr.Dataset({name: ("x", [1.0])}).virtual.to_manifest(tmp_path / "refs.parquet")
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------------- what is on disk


def test_the_layout_is_that_of_fsspec(tmp_path: Path) -> None:
    ds, _ = grid_of_chunks(tmp_path, 3, 2)
    ds.assign(w=("y", [1.0, 2.0, 3.0])).virtual.to_manifest(tmp_path / "r.parq", record_size=4)
    files = {str(p.relative_to(tmp_path / "r.parq")) for p in (tmp_path / "r.parq").rglob("*")}
    assert files == {".zmetadata", "v", "v/refs.0.parq", "v/refs.1.parq", "w", "w/refs.0.parq"}
    document = json.loads((tmp_path / "r.parq" / ".zmetadata").read_bytes())
    assert document["record_size"] == 4
    assert document["metadata"]["v/.zarray"]["shape"] == [3, 2]
    url = f"file://{tmp_path}/data.bin"
    last = pq.read_table(tmp_path / "r.parq" / "v" / "refs.1.parq")
    assert last.to_pydict() == {
        "path": [url, url, None, None], "offset": [16, 20, 0, 0], "size": [4, 4, 0, 0],
        "raw": [None] * 4,
    }  # fmt: skip
    assert pa.types.is_dictionary(last.schema.field("path").type)
    loaded = pq.read_table(tmp_path / "r.parq" / "w" / "refs.0.parq").to_pydict()
    assert loaded["path"] == [None] * 4
    assert loaded["raw"] == [np.array([1.0, 2.0, 3.0]).tobytes(), None, None, None]


VALUES = np.arange(12, dtype="<i2").reshape(4, 3)
ZARRAY = {
    "zarr_format": 2, "shape": [4, 3], "chunks": [2, 3], "dtype": "<i2", "compressor": None,
    "filters": None, "fill_value": 7, "order": "C",
}  # fmt: skip


def by_hand(folder: Path, table: Any, **changes: Any) -> Path:
    """A set that somebody else wrote, of one record."""
    metadata = {
        ".zgroup": {"zarr_format": 2},
        "v/.zarray": ZARRAY,
        "v/.zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]},
    }
    (folder / "refs" / "v").mkdir(parents=True)
    document = {"metadata": metadata, "record_size": 3} | changes
    (folder / "refs" / ".zmetadata").write_text(json.dumps(document))
    (folder / "data.bin").write_bytes(b"x" * 5 + VALUES.tobytes())
    (folder / "whole.bin").write_bytes(VALUES[:2].tobytes())
    if isinstance(table, bytes):
        (folder / "refs" / "v" / "refs.0.parq").write_bytes(table)
    elif table is not None:
        pq.write_table(pa.table(table), folder / "refs" / "v" / "refs.0.parq")
    return folder / "refs"


RAW = VALUES[2:].tobytes()
NAN = float("nan")
TABLES: dict[str, Any] = {
    "ranges": {"path": ["data.bin"] * 2 + [None], "offset": [5, 17, 0], "size": [12, 12, 0],
               "raw": pa.nulls(3)},
    "no raw": {"path": ["data.bin"] * 2 + [None], "offset": [5, 17, 0], "size": [12, 12, 0]},
    "NaN of pandas": {"path": ["data.bin"] * 2 + [None], "offset": [5.0, 17.0, NAN],
                      "size": [12.0, 12.0, NAN], "raw": [NAN] * 3},
    "null numbers": {"path": ["data.bin"] * 2 + [None], "offset": [5, 17, None],
                     "size": [12, 12, None]},
    "not padded": {"path": ["data.bin"] * 2, "offset": [5, 17], "size": [12, 12]},
    "large strings": {"path": pa.array(["data.bin"] * 2, pa.large_string()), "offset": [5, 17],
                      "size": [12, 12]},
    "32 bits": {"path": ["data.bin"] * 2, "offset": pa.array([5, 17], pa.int32()),
                "size": pa.array([12, 12], pa.uint32())},
    "categories": {"path": pa.array(["data.bin"] * 2).dictionary_encode(), "offset": [5, 17],
                   "size": [12, 12]},
    "whole file": {"path": ["whole.bin", "data.bin"], "offset": [0, 17], "size": [0, 12]},
    "inline": {"path": ["data.bin", None], "offset": [5, 0], "size": [12, 0], "raw": [None, RAW]},
    "inline in large binary": {"path": ["data.bin", None], "offset": [5, 0], "size": [12, 0],
                               "raw": pa.array([None, RAW], pa.large_binary())},
    "all inline": {"path": pa.array([np.nan] * 2), "offset": [0, 0], "size": [0, 0],
                   "raw": [VALUES[:2].tobytes(), RAW]},
    "raw alone": {"raw": [VALUES[:2].tobytes(), RAW]},
    "raw before path": {"path": ["data.bin"] * 2, "offset": [5, 1], "size": [12, 1],
                        "raw": [None, RAW]},
}  # fmt: skip


@looped("which", TABLES)
def test_every_spelling_is_read(which: str, tmp_path: Path) -> None:
    path = by_hand(tmp_path, TABLES[which])
    np.testing.assert_array_equal(lazy(path, mask_and_scale=False)["v"].values, VALUES)


def test_a_huge_announced_shape_takes_no_memory(tmp_path: Path) -> None:
    path = by_hand(tmp_path, TABLES["not padded"], record_size=10**15)
    document = json.loads((path / ".zmetadata").read_text())
    huge = ZARRAY | {"shape": [4 * 10**12, 3]}
    document["metadata"]["v/.zarray"] = huge
    (path / ".zmetadata").write_text(json.dumps(document))
    found = lazy(path, mask_and_scale=False)["v"]
    np.testing.assert_array_equal(found[:4].values, VALUES)
    assert (found[10**12 : 10**12 + 5].values == 7).all()


@pytest.mark.parametrize("missing", ["row", "record"])
def test_missing_chunks_read_as_fill(missing: str, tmp_path: Path) -> None:
    table = {"path": ["data.bin", None], "offset": [5, 0], "size": [12, 0]}
    path = by_hand(tmp_path, table if missing == "row" else None)
    values = lazy(path, mask_and_scale=False)["v"].values
    assert (values[2:] == 7).all()
    assert (values[:2] == (VALUES[:2] if missing == "row" else 7)).all()


def test_an_append_encodes_what_is_noted_of_files_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10^6 files that is almost all of the marker, which an append writes twice."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        ds, _ = grid_of_chunks(tmp_path / name, 2, 2)
        texts = list[str]()

        def encode(*given: Any, texts: list[str] = texts, **options: Any) -> str:
            texts.append(json.dumps(*given, **options))
            return texts[-1]

        with monkeypatch.context() as patch:
            patch.setattr(kerchunk_parquet, "json", SimpleNamespace(dumps=encode))
            ds.virtual.to_manifest(tmp_path / "refs.parquet", append_dim="y", mode="a")
    assert sum(text.count("/old/data.bin") for text in texts) == 1
    marker = json.loads((tmp_path / "refs.parquet" / ".zmetadata").read_bytes())
    noted = marker["virtualds"]["files"]
    assert [name.split("/")[-2] for name in noted] == ["old", "new"]


def test_records_that_others_left_out_are_left_out_by_a_change(tmp_path: Path) -> None:
    table = {"path": ["data.bin"], "offset": [5], "size": [12]}
    path = by_hand(tmp_path, table, record_size=1)
    document = json.loads((path / ".zmetadata").read_text())
    document["metadata"]["v/.zarray"] = ZARRAY | {"shape": [80, 3]}
    document["metadata"]["w/.zarray"] = ZARRAY | {"shape": [80, 3]}
    document["metadata"]["w/.zattrs"] = {"_ARRAY_DIMENSIONS": ["y", "x"]}
    (path / ".zmetadata").write_text(json.dumps(document))
    virtualds.edit(path, rename={"v": "u"}, format="kerchunk-parquet")
    assert {str(p.relative_to(path)) for p in path.rglob("*.parq")} == {"u/refs.0.parq"}
    found = lazy(path, mask_and_scale=False)
    np.testing.assert_array_equal(found["u"][:2].values, VALUES[:2])
    assert (found["u"][2:].values == 7).all() and (found["w"].values == 7).all()


def test_a_set_of_others_that_lacks_no_record_is_changed_without_listing_its_chunks(
    tmp_path: Path,
) -> None:
    path = by_hand(tmp_path, TABLES["ranges"])
    base = kerchunk_parquet.read_version(f"file://{path}")
    assert base.records.token is None
    [fragment] = base.group.variables["v"].data.fragments
    assert fragment.manifest.find_existing() is None


def test_metadata_may_stand_as_text(tmp_path: Path) -> None:
    document = {
        "v/.zarray": json.dumps(ZARRAY),
        "v/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["y", "x"]}),
    }
    path = by_hand(tmp_path, TABLES["ranges"], metadata=document)
    np.testing.assert_array_equal(lazy(path, mask_and_scale=False)["v"].values, VALUES)


NONSENSE: dict[str, dict[str, Any]] = {
    "no record size": {"record_size": None},
    "record size of text": {"record_size": "3"},
    "record size of nothing": {"record_size": 0},
    "metadata that are a list": {"metadata": [1]},
    "metadata that are a number": {"metadata": {"v/.zarray": 3}},
    "metadata of bad text": {"metadata": {"v/.zarray": "{no"}},
    "a path upwards": {"metadata": {"../v/.zarray": ZARRAY}},
    "a path to the root": {"metadata": {"//v/.zarray": ZARRAY}},
}


def parquet(**table: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink)
    return sink.getvalue()


BAD_RECORDS: dict[str, Any] = {
    "no parquet": b"nonsense",
    "a column whose name is no text": parquet(path=["data.bin"]).replace(b"path", b"\x80ath"),
    "empty": b"",
    "too long": {"path": ["data.bin"] * 4, "offset": [5] * 4, "size": [12] * 4},
    "negative": {"path": ["data.bin"], "offset": [-5], "size": [12]},
    "offset of text": {"path": ["data.bin"], "offset": ["a"], "size": [12]},
    "an empty file": {"path": ["empty.bin"], "offset": [0], "size": [0]},
}


@pytest.mark.parametrize("which", NONSENSE)
def test_nonsense_is_a_format_error_that_names_the_set(which: str, tmp_path: Path) -> None:
    path = by_hand(tmp_path, TABLES["ranges"], **NONSENSE[which])
    with pytest.raises(FormatError) as caught:
        virtual(path)
    assert "refs" in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


@pytest.mark.parametrize("which", BAD_RECORDS)
def test_bad_records_are_format_errors_that_name_them(which: str, tmp_path: Path) -> None:
    (tmp_path / "empty.bin").write_bytes(b"")
    path = by_hand(tmp_path, BAD_RECORDS[which])
    with pytest.raises(FormatError) as caught:
        virtual(path)["v"].values  # noqa: B018
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "refs.0.parq" in text


def test_a_row_of_a_url_that_there_is_not_is_damage() -> None:
    numbers = pa.array([0, 5], pa.int32())
    column = pa.DictionaryArray.from_arrays(numbers, pa.array(["data.bin"]), safe=False)
    with pytest.raises(FormatError, match="column path has 1 urls"):
        kerchunk_records.read_urls(pa.table({"path": column}))


def test_a_record_whose_token_is_no_text_is_of_another_writing(tmp_path: Path) -> None:
    ds, _ = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.parquet")
    record = tmp_path / "refs.parquet" / "v" / "refs.0.parq"
    table = pq.read_table(record)
    pq.write_table(table.replace_schema_metadata({"virtualds": b"\xb7"}), record)
    with pytest.raises(ReadError, match="another version of the set"):
        lazy(tmp_path / "refs.parquet")["v"].load()


# ---------------------------------------------------------------------- stores and trust


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


def test_a_set_is_written_to_and_read_from_any_store(memory: Any, archive: Archive) -> None:
    ds = virtualds.open_virtual_dataset(archive.path("contiguous"), loadable_variables="*")
    ds.virtual.to_manifest("memory://bucket/refs.parquet")
    again = lazy("memory://bucket/refs.parquet")
    xr.testing.assert_identical(again.load(), archive.native("contiguous"))
    with pytest.raises(FileExistsError):
        ds.virtual.to_manifest("memory://bucket/refs.parquet", mode="w-")
    with pytest.raises(UnsupportedError, match="one step"):
        xr.Dataset({"w": ("x", [1.0])}).virtual.to_manifest(
            "memory://bucket/refs.parquet", mode="w"
        )
    xr.testing.assert_identical(again.load(), archive.native("contiguous"))
    memory.rm("/bucket/refs.parquet", recursive=True)
    xr.Dataset({"w": ("x", [1.0])}).virtual.to_manifest("memory://bucket/refs.parquet", mode="w")
    assert sorted(memory.find("/bucket")) == [
        "/bucket/refs.parquet/.zmetadata", "/bucket/refs.parquet/w/refs.0.parq",
    ]  # fmt: skip


def test_a_new_set_that_fails_in_a_store_is_not_there_and_can_be_created_again(
    memory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ds, values = grid_of_chunks(tmp_path)
    url = "memory://bucket/refs.parquet"
    record, calls = kerchunk_records.encode_record, io.StringIO()

    def failing(*args: Any) -> bytes:
        if calls.write("x") and calls.tell() > 2:
            raise KeyboardInterrupt
        return record(*args)

    with monkeypatch.context() as patch:
        patch.setattr(kerchunk_parquet, "encode_record", failing)
        with pytest.raises(KeyboardInterrupt):
            ds.virtual.to_manifest(url, record_size=10)
    with pytest.raises(FileNotFoundError, match="create the set again"):
        virtual(url)
    with pytest.raises(FileNotFoundError, match="create the set again"):
        virtualds.drop_sources(url, "a.nc")
    assert prepare_write(url).format.name == "kerchunk-parquet"
    # by default a set is created: there must be none
    ds.virtual.to_manifest(url)
    with pytest.raises(FileExistsError):
        prepare_write(url)
    # a set in the memory of the process may refer to its files
    found = virtualds.open_virtual_dataset(url)
    np.testing.assert_array_equal(found["v"].values, values)


@pytest.mark.parametrize("url", ["/etc/passwd", "file:///etc/passwd", "simplecache::/etc/passwd"])
def test_a_remote_set_may_not_refer_to_local_files(url: str, tmp_path: Path) -> None:
    path = by_hand(tmp_path, {"path": [url], "offset": [0], "size": [12]})
    with range_server(tmp_path) as (host, _), pytest.raises(AccessError, match="local file"):
        virtual(f"{host}/{path.name}")["v"].values  # noqa: B018


def test_options_do_not_get_into_the_set(memory: Any, tmp_path: Path, archive: Archive) -> None:
    memory.pipe("/bucket/a.nc", archive.path("contiguous").read_bytes())
    ds = virtualds.open_virtual_dataset(
        "memory://bucket/a.nc", loadable_variables=[], storage_options={"secret": "hunter2"}
    )
    ds.virtual.to_manifest(tmp_path / "refs.parquet")
    for file in (tmp_path / "refs.parquet").rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes()


def test_fingerprints_travel(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.create_dataset("v", data=np.arange(8), chunks=(2,))
    ds = virtual(tmp_path / "a.nc")
    ds.virtual.to_manifest(tmp_path / "refs.parquet", record_size=3)
    again = virtual(tmp_path / "refs.parquet")
    assert again["v"].data.sources == ds["v"].data.sources
    assert again.virtual.sources.equals(ds.virtual.sources)
    os.utime(tmp_path / "a.nc", ns=(0, 0))
    with pytest.raises(ReadError, match="modified after"):
        again["v"].values  # noqa: B018
