"""Zarr v3 with chunk manifests: as its page says, lazily, whole or not there, and on good terms."""

from __future__ import annotations

import base64
import gzip
import json
import os
import pickle
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import h5py
import independent_reader
import numcodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from archives import KINDS, Archives
from cases import CASES, Archive
from independent_reader import Set, Unknown
from products import few_quick, looped
from transforms import assert_identical, packed
from virtual_arrays import PLAIN, ZLIB
from virtual_arrays import virtual as stored

import virtualds
from virtualds import AccessError, FormatError, ManifestArray, ReadError, UnsupportedError
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.codecs.numcodecs import _import_blosc
from virtualds.formats import ReadOptions, zarr_manifests
from virtualds.formats.zarr import v3_arrays
from virtualds.formats.zarr.v3_arrays import values_to_v3
from virtualds.formats.zarr_manifests import parquet_table, set_files
from virtualds.formats.zarr_manifests import snapshots as zarr_v3
from virtualds.source_file import SourceFile
from virtualds.stores.local import LocalStore

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

FORMS = ("inline", "json", "parquet")


def lazy(path: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(path, engine="virtual", **options)


def virtual(path: Any, **options: Any) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path, loadable_variables=[], **options)


def read(path: Path, **options: Any) -> ManifestGroup:
    return zarr_v3.read(SourceFile(f"file://{path}"), ReadOptions(**options))


def root_of(path: Path) -> Any:
    return json.loads((path / "zarr.json").read_bytes())


def node_of(path: Path, name: str = "v") -> Any:
    return root_of(path)["consolidated_metadata"]["metadata"][name]


def chain_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def grid_of_chunks(folder: Path, rows: int = 20, columns: int = 5) -> tuple[xr.Dataset, Any]:
    """A dataset of an array of one element a chunk, and its values."""
    values = np.arange(rows * columns, dtype="<i4").reshape(rows, columns)
    (folder / "data.bin").write_bytes(values.tobytes())
    array = ManifestArray.from_arrays(
        shape=values.shape, chunks=(1, 1), dtype="<i4", path=str(folder / "data.bin"),
        offsets=np.arange(values.size).reshape(values.shape) * 4, lengths=4,
    )  # fmt: skip
    return xr.Dataset({"v": (("y", "x"), array)}), values


@pytest.fixture
def small_records(monkeypatch: pytest.MonkeyPatch) -> int:
    """Records of ten rows instead of 100,000, in what is written and in what is read."""
    for module in (parquet_table, parquet_table):
        monkeypatch.setattr(module, "RECORD_SIZE", 10)
    monkeypatch.setattr(independent_reader, "RECORD", 10)
    return 10


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What files were read as a whole, measured, or read in part, and how often."""
    found: Counter[str] = Counter()

    def counted(name: str, path: Callable[..., str]) -> None:
        method = getattr(LocalStore, name)

        def count(self: LocalStore, *args: Any) -> Any:
            found[path(*args)] += 1
            return method(self, *args)

        monkeypatch.setattr(LocalStore, name, count)

    inside = lambda url, *rest: url.rpartition("/refs.zarr/")[2]  # noqa: E731
    counted("read_all", inside)
    counted("describe", lambda url, options: f"size of {url.rpartition('/')[2]}")
    counted("get_ranges", lambda file, ranges: inside(file.url))
    counted("read_into", lambda file, ranges, targets: inside(file.url))
    return found


def without_ids(names: Any) -> Counter[str]:
    """File names with the ids of snapshots as ``<id>``."""
    import re

    found: Counter[str] = Counter()
    for name, count in Counter(names).items():
        found[re.sub(r"\d{8}T\d{12}-[0-9a-f]{8}", "<id>", name)] += count
    return found


# ---------------------------------------------------------------------- as the page says


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return Archives(tmp_path_factory.mktemp("archives"))


NOT_READ_BY_HAND = {"codecs_that_differ": "blosc"}
"""Archives that need what the independent reader does not know."""


def by_hand(path: Path) -> xr.Dataset:
    """What the independent reader makes of a set, decoded by xarray where Zarr is plain."""
    found = Set(path)
    raw = {}
    for name, node in found.nodes.items():
        if node["node_type"] == "array":
            attributes = dict(node["attributes"])
            fill = attributes.get("_FillValue")
            if isinstance(fill, str):
                attributes["_FillValue"] = np.frombuffer(base64.b64decode(fill), "<f8")[0]
            raw[name] = (node["dimension_names"], found.read(name), attributes)
    return xr.decode_cf(xr.Dataset(raw))


def assert_same_values(found: xr.Dataset, expected: xr.Dataset) -> None:
    assert set(found.variables) == set(expected.variables)
    for name, variable in expected.variables.items():
        ours = found.variables[name]
        assert ours.dims == variable.dims
        if variable.dtype.kind not in "OUT":
            assert packed(ours.dtype) == packed(variable.dtype), name
        np.testing.assert_array_equal(ours.values, variable.values, err_msg=str(name))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", few_quick(KINDS, list(KINDS)[::2]))
@looped("form", FORMS)
def test_the_page_says_enough_to_read_an_archive(
    name: str, form: str, archives: Archives, tmp_path: Path
) -> None:
    parts = [virtualds.open_virtual_dataset(path) for path in archives.files(name)]
    combined = KINDS[name].combine(parts)
    combined.virtual.to_manifest(
        tmp_path / "refs.zarr", manifest=form, relative_paths=form == "json"
    )
    if name in NOT_READ_BY_HAND:
        with pytest.raises(Unknown, match=NOT_READ_BY_HAND[name]):
            by_hand(tmp_path / "refs.zarr")
        return
    assert_same_values(by_hand(tmp_path / "refs.zarr"), archives.native(name))


REFUSED_BY_HAND = {
    "imagecodecs", "virtualds.", "blosc", "struct", "fields of Zarr v2", "packed times", "standard",
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", few_quick(CASES, list(CASES)[::5]))
@looped("form", ["inline", "parquet"])
def test_the_page_says_enough_to_read_a_file(
    name: str, form: str, archive: Archive, tmp_path: Path
) -> None:
    path, group = archive.path(name), CASES[name].group
    ds = virtualds.open_virtual_dataset(path, group=group)
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest=form)
    raw = lazy(tmp_path / "refs.zarr", decode_cf=False)
    found = Set(tmp_path / "refs.zarr")
    for variable, node in found.nodes.items():
        try:
            values = found.read(variable)
        except Unknown as error:
            assert any(one in str(error) for one in REFUSED_BY_HAND), error
            continue
        np.testing.assert_array_equal(values, raw.variables[variable].values, err_msg=variable)
        assert node["dimension_names"] == list(raw.variables[variable].dims)


# ---------------------------------------------------------------------- the layout


def test_a_set_consists_of_the_files_that_the_page_lists(
    tmp_path: Path, small_records: int
) -> None:
    ds, _ = grid_of_chunks(tmp_path, 5, 3)
    ds = ds.assign(w=("y", np.arange(5.0)), name=("y", list("abcde")))
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    files = (p.relative_to(tmp_path / "refs.zarr") for p in (tmp_path / "refs.zarr").rglob("*"))
    names = {str(p) for p in files if (tmp_path / "refs.zarr" / p).is_file()}
    assert set(without_ids(names)) == {
        "zarr.json", "v/zarr.json", "w/zarr.json", "name/zarr.json", "w/c/0", "name/c/0",
        "v/manifest.<id>.0/0.parquet", "v/manifest.<id>.0/1.parquet",
        "__virtualds__/<id>/zarr.json.gz", "__virtualds__/<id>/begun",
        "__virtualds__/<id>/sources/0.parquet",
    }  # fmt: skip
    root = root_of(tmp_path / "refs.zarr")
    nodes = root["consolidated_metadata"]["metadata"]
    for name in ("v", "w", "name"):
        copy = json.loads((tmp_path / "refs.zarr" / name / "zarr.json").read_bytes())
        assert copy == nodes[name]
    # only the root repeats what chunks hold, and lists earlier snapshots
    notes = root["attributes"]["virtualds"]
    assert (notes.pop("history"), len(notes.pop("copies"))) == ([], 2)
    kept = tmp_path / f"refs.zarr/__virtualds__/{notes['snapshot']}/zarr.json.gz"
    assert json.loads(gzip.decompress(kept.read_bytes())) == root


@pytest.mark.parametrize(
    ("count", "form"), [(16, "inline"), (17, "json"), (4096, "json"), (4097, "parquet")]
)
def test_the_form_follows_the_number_of_chunks(count: int, form: str, tmp_path: Path) -> None:
    ds, values = grid_of_chunks(tmp_path, count, 1)
    ds.virtual.to_manifest(tmp_path / "refs.zarr")
    (transformer,) = node_of(tmp_path / "refs.zarr")["storage_transformers"]
    manifest = transformer["configuration"].get("manifest")
    kind = "parquet" if manifest is None else "json" if isinstance(manifest, str) else "inline"
    assert kind == form
    np.testing.assert_array_equal(lazy(tmp_path / "refs.zarr")["v"].values, values)


def test_an_unknown_form_of_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'inline', 'json', 'parquet'"):
        xr.Dataset().virtual.to_manifest(tmp_path / "refs.zarr", manifest="yaml")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_references(form: str, archive: Archive, tmp_path: Path) -> None:
    vds = virtual(archive.path("chunked_and_filtered"))
    vds.virtual.to_manifest(tmp_path / "refs.zarr", manifest=form)
    again = virtual(tmp_path / "refs.zarr")
    for name, variable in vds.data_vars.items():
        ours, theirs = again[name].variable.data, variable.variable.data
        assert ours.sources == theirs.sources
        (a,), (b,) = ours.fragments, theirs.fragments
        assert a.axes == b.axes
        for column in ("offset", "length", "checksum"):
            assert (getattr(a.manifest, column) == getattr(b.manifest, column)).all()


def gapped_dataset(folder: Path) -> xr.Dataset:
    """Two files of different fills and codecs, of both of which chunks are missing."""
    parts = []
    for fill, codecs in ((5, ZLIB), (7, PLAIN)):
        part = stored(np.arange(4, dtype="i4"), folder, chunks=[1], codecs=codecs, missing=(1, 3))
        filled = replace(part.pipelines[0], fill=np.int32(fill).tobytes())
        parts.append(replace(part, pipelines=(filled,)))
    return xr.Dataset({"v": ("x", np.concatenate(parts))})


@pytest.mark.parametrize("form", FORMS)
def test_missing_chunks_have_the_fill_value_of_their_file(form: str, tmp_path: Path) -> None:
    gapped_dataset(tmp_path).virtual.to_manifest(tmp_path / "refs.zarr", manifest=form)
    for again in (lazy, virtual):
        found = again(tmp_path / "refs.zarr")["v"].values
        assert found.tolist() == [0, 5, 2, 5, 0, 7, 2, 7]


def test_chunks_without_an_entry_have_the_first_pipeline(tmp_path: Path) -> None:
    gapped_dataset(tmp_path).virtual.to_manifest(tmp_path / "refs.zarr", manifest="inline")
    root = root_of(tmp_path / "refs.zarr")
    [transformer] = root["consolidated_metadata"]["metadata"]["v"]["storage_transformers"]
    entries = transformer["configuration"]["manifest"]
    assert [entries.pop(f"0.{number}") for number in (1, 3)] == [{}, {}]
    (tmp_path / "refs.zarr/zarr.json").write_text(json.dumps(root))
    for again in (lazy, virtual):
        found = again(tmp_path / "refs.zarr")["v"].values
        assert found.tolist() == [0, 5, 2, 5, 0, 7, 2, 7]


def test_nested_groups_are_a_tree_again(tmp_path: Path) -> None:
    leaf = ManifestGroup({"v": ManifestVariable(("x",), np.arange(3.0))}, {"n": np.int16(3)})
    tree = ManifestGroup({"v": ManifestVariable(("x",), np.arange(5))}, groups={"a": leaf})
    zarr_manifests.write(tree, f"file://{tmp_path}/refs.zarr")
    found = read(tmp_path / "refs.zarr")
    assert [path for path, _ in found.walk()] == ["", "a"]
    assert type(found.group("a").attributes["n"]) is np.int16
    assert found.group("a").variables["v"].read().tolist() == [0.0, 1.0, 2.0]
    assert lazy(tmp_path / "refs.zarr", group="a")["v"].values.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "refs.zarr", group="b")


@pytest.mark.parametrize("name", ["..", "__v", "zarr.json", "a\\b"])
def test_names_that_zarr_reserves_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="reserves"):
        xr.Dataset({name: ("x", [1.0])}).virtual.to_manifest(tmp_path / "refs.zarr")
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------------- lazily


ON_THE_WAY = {"size of refs.zarr", ".zmetadata"}
"""Where somebody looks who does not know which format it is."""


def test_opening_reads_the_root_and_coordinates(
    asked: Counter[str], small_records: int, tmp_path: Path
) -> None:
    for form in ("json", "parquet"):
        ds, values = grid_of_chunks(tmp_path)
        ds = ds.assign_coords(y=np.arange(20))
        ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest=form, mode="w")
        asked.clear()
        found = virtual(tmp_path / "refs.zarr")
        repr(found)
        found["v"].data._repr_html_()
        assert set(asked) <= {"zarr.json", *ON_THE_WAY}, form
        repr(lazy(tmp_path / "refs.zarr"))
        coordinates = {"y/c/0", "y/values.<id>/c/0"}
        assert set(without_ids(asked)) <= {"zarr.json", *ON_THE_WAY, *coordinates}, form
        np.testing.assert_array_equal(found["v"].values, values)


def test_a_value_costs_two_records_and_a_chunk(
    asked: Counter[str], small_records: int, tmp_path: Path
) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    for found in (lazy(tmp_path / "refs.zarr"), virtual(tmp_path / "refs.zarr")):
        asked.clear()
        assert found["v"].isel(y=7, x=3).values == values[7, 3]
        assert without_ids(asked.elements()) == Counter(
            {
                "v/manifest.<id>.0/3.parquet": 1,
                "__virtualds__/<id>/sources/0.parquet": 1,
                f"file://{tmp_path}/data.bin": 1,
            }
        )


SELECTIONS: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], set[int]]] = {
    "two rows of one record": (lambda ds: ds.isel(y=slice(6, 8)), {3}),
    "rows far apart": (lambda ds: ds.isel(y=[0, 19]), {0, 9}),
    "one column": (lambda ds: ds.isel(x=0, y=slice(0, 4)), {0, 1}),
    "cropped twice": (lambda ds: ds.isel(y=slice(4, 12)).isel(y=slice(2, 4), x=[1]), {3}),
    "transposed": (lambda ds: ds.transpose("x", "y").isel(y=slice(18, None)), {9}),
    "nothing": (lambda ds: ds.isel(y=slice(0, 0)), set()),
}


@pytest.mark.parametrize("which", SELECTIONS)
def test_a_selection_reads_the_records_that_it_needs(
    which: str, asked: Counter[str], small_records: int, tmp_path: Path
) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    found = virtual(tmp_path / "refs.zarr")
    asked.clear()
    select, records = SELECTIONS[which]
    expected = select(xr.Dataset({"v": (("y", "x"), values)}))
    np.testing.assert_array_equal(select(found)["v"].values, expected["v"].values)
    tables = {n for n in asked if "manifest." in n}
    assert {int(n.rpartition("/")[2].partition(".")[0]) for n in tables} == records
    assert all(asked[n] == 1 for n in tables)


def test_the_cache_of_records_is_bounded(
    asked: Counter[str], small_records: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(set_files, "CACHED_RECORDS", 4)
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    found = read(tmp_path / "refs.zarr").variables["v"].data
    np.testing.assert_array_equal(np.asarray(found), values)
    assert len(found.fragments[0].manifest.table.store._cache) == 4


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_pickles_are_small_and_hold_no_references(
    form: str, asked: Counter[str], tmp_path: Path
) -> None:
    ds, values = grid_of_chunks(tmp_path, 100, 10)
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest=form)
    found = virtual(tmp_path / "refs.zarr")["v"].data
    found.read((3, slice(None)))
    asked.clear()
    data = pickle.dumps(found)
    assert len(data) < 3000
    again = pickle.loads(data)
    from dask.base import tokenize

    assert tokenize(again) == tokenize(found)
    assert not asked
    np.testing.assert_array_equal(again.read((slice(None),) * 2), values)


@pytest.mark.parametrize("form", FORMS)
def test_dask_reads_lazy_arrays_in_chunks(form: str, small_records: int, tmp_path: Path) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest=form)
    found = lazy(tmp_path / "refs.zarr", chunks={"y": 4})
    np.testing.assert_array_equal(found["v"].values, values)


def test_views_of_arrays_in_a_set_are_written_without_reading_references(
    asked: Counter[str], small_records: int, tmp_path: Path
) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    view = virtual(tmp_path / "refs.zarr").isel(y=slice(3, 17)).transpose("x", "y")
    asked.clear()
    view.virtual.to_manifest(tmp_path / "refs.zarr", mode="w")
    # which files it refers to is judged; the references themselves are not read
    tables = [name for name in asked if name.endswith(".parquet")]
    assert not [name for name in tables if "/sources/" not in name]
    np.testing.assert_array_equal(lazy(tmp_path / "refs.zarr")["v"].values, values[3:17].T)
    np.testing.assert_array_equal(Set(tmp_path / "refs.zarr").read("v"), values[3:17].T)


# ---------------------------------------------------------------------- whole or not there


def test_an_existing_set_is_replaced_or_refused(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    one, two = (xr.Dataset({name: ("x", [1.0])}) for name in ("a", "b"))
    one.virtual.to_manifest(target, mode="w-")
    with pytest.raises(FileExistsError):
        two.virtual.to_manifest(target, mode="w-")
    assert list(lazy(target)) == ["a"]
    two.virtual.to_manifest(target, mode="w")
    assert list(lazy(target)) == ["b"]
    assert os.listdir(tmp_path) == ["refs.zarr"]


AXES = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (2, 1), (3, 0)]
"""How many axes an array in memory has before a set is replaced, and afterwards."""


@pytest.mark.parametrize(("before", "after"), AXES)
def test_an_array_in_memory_may_have_other_axes_in_a_set_that_is_replaced(
    before: int, after: int, tmp_path: Path
) -> None:
    """The key of one chunk is then the folder of another: ``t/c/0`` and ``t/c/0/0``."""
    path = tmp_path / "refs.zarr"
    for ndim in (before, after, before, None, after):
        ds = xr.Dataset({"u": ("a", np.arange(3.0))})
        if ndim is not None:
            ds["t"] = (tuple("abcd"[:ndim]), np.full((3,) * ndim, float(ndim)))
        ds.virtual.to_manifest(path, mode="w")
        assert_identical(xr.open_dataset(path, engine="virtual"), ds)
    first = virtualds.snapshots(path)["snapshot"].iloc[0]
    assert xr.open_dataset(path, engine="virtual", snapshot=first)["t"].ndim == before


@pytest.mark.parametrize("what", ["folder", "plain zarr", "other zarr.json"])
def test_a_file_or_folder_that_is_no_set_is_never_replaced(what: str, tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    if what == "plain zarr":
        xr.Dataset({"mine": ("x", [1.0])}).to_zarr(target, zarr_format=3)
    else:
        target.mkdir()
        (target / ("mine" if what == "folder" else "zarr.json")).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError):
        xr.Dataset({"v": ("x", [1.0])}).virtual.to_manifest(target)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("replaced", [False, True], ids=["new", "over an old one"])
@pytest.mark.parametrize("at", range(6))
def test_a_failing_write_leaves_nothing_behind(
    at: int, replaced: bool, small_records: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "refs.zarr"
    if replaced:
        xr.Dataset({"old": ("x", [1.0])}).virtual.to_manifest(target)
    ds, _ = grid_of_chunks(tmp_path, 5, 5)
    before = sorted(tmp_path.rglob("*"))
    count = iter(range(99))

    def failing(name: str) -> None:
        write = getattr(LocalStore, name)

        def maybe(self: LocalStore, *args: Any) -> Any:
            if next(count) == at:
                raise KeyboardInterrupt
            return write(self, *args)

        monkeypatch.setattr(LocalStore, name, maybe)

    failing("write_file")
    failing("write_version")
    ds = ds.assign(w=("y", np.arange(5.0)))
    with pytest.raises(KeyboardInterrupt):
        ds.virtual.to_manifest(target, manifest="parquet", mode="w")
    assert sorted(tmp_path.rglob("*")) == before
    if replaced:
        assert lazy(target)["old"].values == [1.0]


@pytest.mark.parametrize("form", FORMS)
def test_readers_and_snapshots_outlive_a_new_one(
    form: str, small_records: int, tmp_path: Path
) -> None:
    target = tmp_path / "refs.zarr"
    ds, values = grid_of_chunks(tmp_path)
    ds = ds.assign(w=("y", np.arange(20.0)))
    ds.virtual.to_manifest(target, manifest=form)
    first = root_of(target)["attributes"]["virtualds"]["snapshot"]
    opened = [lazy(target), virtual(target)]
    turned = ds.isel(y=slice(None, None, -1)).virtual.load()
    turned.virtual.to_manifest(target, manifest=form, mode="w")
    np.testing.assert_array_equal(lazy(target)["v"].values, values[::-1])
    for found in opened:
        np.testing.assert_array_equal(found["v"].values, values)
        np.testing.assert_array_equal(found["w"].values, np.arange(20.0))
    ((name, _),) = root_of(target)["attributes"]["virtualds"]["history"]
    assert name == first
    earlier = read(target, snapshot=first)
    np.testing.assert_array_equal(earlier.variables["v"].read(), values)
    np.testing.assert_array_equal(earlier.variables["w"].read(), np.arange(20.0))
    with pytest.raises(FileNotFoundError, match="no snapshot 'none'"):
        read(target, snapshot="none")


@pytest.mark.parametrize("form", FORMS)
def test_a_set_may_be_moved(form: str, small_records: int, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    ds, values = grid_of_chunks(tmp_path / "a", 3, 4)
    ds = ds.assign_coords(y=np.arange(3.0), name=("x", list("abcd")))
    target = tmp_path / "a" / "refs.zarr"
    ds.virtual.to_manifest(target, manifest=form, relative_paths=True)
    # values that were written a second time lie in a folder of their own
    ds.assign_coords(y=np.arange(1.0, 4.0)).virtual.to_manifest(
        target, manifest=form, relative_paths=True, mode="w"
    )
    (tmp_path / "a").rename(tmp_path / "b")
    found = lazy(tmp_path / "b" / "refs.zarr").load()
    np.testing.assert_array_equal(found["v"].values, values)
    assert found["y"].values.tolist() == [1.0, 2.0, 3.0]
    assert found["name"].values.tolist() == list("abcd")
    np.testing.assert_array_equal(Set(tmp_path / "b" / "refs.zarr").read("v"), values)


# ---------------------------------------------------------------------- written by others

VALUES = np.arange(12, dtype="<i2").reshape(4, 3)
ENTRY = {"path": "../data.bin", "offset": 17, "length": 12}


def by_others(folder: Path, manifest: Any, consolidated: bool = True, **changes: Any) -> Path:
    """A set of zarr-python to one array of which a chunk manifest was added by hand."""
    ds = xr.Dataset({"v": (("y", "x"), VALUES), "w": ("y", np.arange(4.0))}, attrs={"of": "others"})
    ds["v"].attrs["units"] = "K"
    encoding: Any = {"v": {"chunks": (2, 3), "compressors": None, "_FillValue": 7}}
    path = folder / "refs.zarr"
    ds.to_zarr(path, mode="a", zarr_format=3, encoding=encoding, consolidated=consolidated)
    shutil.rmtree(path / "v" / "c")
    (folder / "data.bin").write_bytes(b"x" * 5 + VALUES.tobytes())
    (folder / "whole.bin").write_bytes(VALUES[:2].tobytes())
    said = (
        {"manifest": manifest}
        if not isinstance(manifest, dict) or "parts" not in manifest
        else manifest
    )
    name = "chunk-manifest-parquet" if said is manifest else "chunk-manifest-json"
    if isinstance(manifest, (str, bytes)):
        data = manifest if isinstance(manifest, bytes) else manifest.encode()
        (path / "v" / "manifest.json").write_bytes(data)
        said = {"manifest": "./manifest.json"}
    transformers = {"storage_transformers": [{"name": name, "configuration": said}]}
    files = [path / "zarr.json"] if consolidated else []
    for file in [*files, path / "v" / "zarr.json"]:
        document = json.loads(file.read_bytes())
        node = document
        if file.parent == path:
            node = document["consolidated_metadata"]["metadata"]["v"]
        node |= transformers | changes
        file.write_text(json.dumps(document))
    return path


FIRST = {"path": "../data.bin", "offset": 5, "length": 12}
RAW = base64.b64encode(VALUES[2:].tobytes()).decode()
CRC = f"crc32:{zlib.crc32(VALUES[2:].tobytes()):08x}"
SPELLINGS: dict[str, dict[str, Any]] = {
    "ranges": {"0.0": FIRST, "1.0": ENTRY},
    "a whole file": {"0.0": {"path": "../whole.bin"}, "1.0": ENTRY},
    "the rest of a file": {"0.0": FIRST, "1.0": {"path": "../data.bin", "offset": 17}},
    "inline": {"0.0": FIRST, "1.0": {"data": RAW}},
    "with checksums": {"0.0": FIRST, "1.0": {**ENTRY, "checksum": CRC}},
    "with a checksum of data": {"0.0": FIRST, "1.0": {"data": RAW, "checksum": CRC}},
    "with other checksums": {"0.0": FIRST, "1.0": {**ENTRY, "checksum": "md5:0"}},
    "with more keys": {"0.0": {**FIRST, "note": 5}, "1.0": ENTRY},
    "a prefix of all": {"./": {"path": "../store/"}},
    "a prefix": {"c/": {"path": "../store/c/"}},
    "the longest prefix": {"c/": {"path": "../none/"}, "c/0/": {"path": "../store/c/0/"},
                           "1.0": ENTRY},
}  # fmt: skip


@looped("stored", ["inline", "in a file"])
@looped("which", SPELLINGS)
def test_every_spelling_is_read(which: str, stored: str, tmp_path: Path) -> None:
    for row in (0, 1):
        (tmp_path / f"store/c/{row}").mkdir(parents=True)
        (tmp_path / f"store/c/{row}/0").write_bytes(VALUES[2 * row : 2 * row + 2].tobytes())
    manifest = SPELLINGS[which]
    path = by_others(tmp_path, manifest if stored == "inline" else json.dumps(manifest))
    for options in ({}, {"mask_and_scale": False}):
        found = lazy(path, **options)
        np.testing.assert_array_equal(found["w"].values, np.arange(4.0))
        expected = VALUES if options else np.where(VALUES == 7, np.nan, VALUES)
        np.testing.assert_array_equal(found["v"].values, expected)
    assert found.attrs == {"of": "others"}
    assert virtual(path)["v"].attrs == {"units": "K"}


@pytest.mark.parametrize("more", [{}, {"1.0": {}}, {"./": {"path": "../no/"}}])
def test_missing_chunks_read_as_fill(more: Any, tmp_path: Path) -> None:
    path = by_others(tmp_path, {"0.0": FIRST} | more, fill_value=7)
    values = lazy(path, mask_and_scale=False)["v"].values
    np.testing.assert_array_equal(values[:2], VALUES[:2])
    assert (values[2:] == 7).all()


def test_a_chunk_that_the_manifest_calls_missing_is_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "store/c/0").mkdir(parents=True)
    (tmp_path / "store/c/0/0").write_bytes(VALUES[:2].tobytes())
    path = by_others(tmp_path, {"c/": {"path": "../store/c/"}, "0.0": {}}, fill_value=7)
    assert (lazy(path, mask_and_scale=False)["v"].values == 7).all()


def test_only_those_whole_files_are_measured_that_are_read(
    asked: Counter[str], tmp_path: Path
) -> None:
    manifest = {"0.0": {"path": "../whole.bin"}, "1.0": {"path": "../none.bin"}}
    found = lazy(by_others(tmp_path, manifest), mask_and_scale=False)["v"]
    assert not [name for name in asked if name.endswith(".bin")]
    np.testing.assert_array_equal(found[:2].values, VALUES[:2])
    assert asked["size of whole.bin"] == 1
    with pytest.raises(ReadError, match=r"none\.bin"):
        found[2:].values  # noqa: B018


def test_a_huge_announced_shape_takes_no_memory(tmp_path: Path) -> None:
    path = by_others(tmp_path, {"0.0": FIRST, "1.0": ENTRY}, shape=[4 * 10**12, 3], fill_value=7)
    found = lazy(path, mask_and_scale=False, drop_variables=["w"])["v"]
    np.testing.assert_array_equal(found[:4].values, VALUES)
    assert (found[10**12 : 10**12 + 5].values == 7).all()


def test_sets_need_not_be_consolidated(tmp_path: Path) -> None:
    path = by_others(tmp_path, SPELLINGS["ranges"], consolidated=False)
    found = lazy(path, parser="zarr-v3", mask_and_scale=False)
    np.testing.assert_array_equal(found["v"].values, VALUES)
    np.testing.assert_array_equal(found["w"].values, np.arange(4.0))


@pytest.mark.parametrize("wrong", ["entry", "record"])
def test_checksums_are_verified(wrong: str, tmp_path: Path) -> None:
    checksum = zlib.crc32(b"other")
    if wrong == "entry":
        manifest: Any = {"0.0": FIRST, "1.0": {**ENTRY, "checksum": f"crc32:{checksum:08x}"}}
    else:
        manifest = tables(tmp_path, checksum=pa.array([0, 2**32 + checksum], pa.uint64()))
    found = lazy(by_others(tmp_path, manifest), mask_and_scale=False)["v"]
    np.testing.assert_array_equal(found[:2].values, VALUES[:2])
    with pytest.raises(ReadError, match="checksum"):
        found[2:].values  # noqa: B018


@pytest.mark.parametrize("where", ["file", "inline"])
def test_checksums_of_strings_are_verified(where: str, tmp_path: Path) -> None:
    data = bytes(numcodecs.VLenUTF8().encode(np.array(["a", "b"], object)))
    (tmp_path / "s.bin").write_bytes(data)
    inline = {"data": base64.b64encode(data).decode()}
    held = {"path": (tmp_path / "s.bin").as_uri(), "offset": 0, "length": len(data)}
    node = {"zarr_format": 3, "node_type": "array", "shape": [2], "dimension_names": ["x"]}
    node |= {"data_type": "string", "fill_value": "", "codecs": [{"name": "vlen-utf8"}]}
    node |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}}
    node |= {"chunk_key_encoding": {"name": "default"}, "attributes": {}}
    for checksum in (zlib.crc32(data), zlib.crc32(b"other")):
        entry = {**(inline if where == "inline" else held), "checksum": f"crc32:{checksum:08x}"}
        transformer = {"name": "chunk-manifest-json", "configuration": {"manifest": {"0": entry}}}
        nodes = {"s": node | {"storage_transformers": [transformer]}}
        root = {"zarr_format": 3, "node_type": "group", "attributes": {"virtualds": {"version": 1}}}
        root |= {"consolidated_metadata": {"kind": "inline", "metadata": nodes}}
        path = tmp_path / f"{checksum}.zarr"
        path.mkdir()
        (path / "zarr.json").write_text(json.dumps(root))
        if checksum == zlib.crc32(data):
            assert lazy(path)["s"].values.tolist() == ["a", "b"]
        else:
            located = {"file": f"s.bin, bytes 0 to {len(data)}", "inline": "bytes held inline"}
            with pytest.raises(ReadError, match=f"{located[where]}: their CRC-32 is"):
                lazy(path)["s"].values  # noqa: B018


def tables(folder: Path, said: Any = (), sources: Any = (), part: Any = (), **columns: Any) -> Any:
    """Tables of references and sources by hand, and what the metadata say of them."""
    rows = {"source": [0, 1], "offset": [5, 17], "length": [12, 12], **columns}
    files = {"path": ["../data.bin"] * 2, "size": [29, None], "mtime": pa.nulls(2, pa.int64()),
             "etag": pa.nulls(2, pa.string()), **dict(sources)}  # fmt: skip
    for name, table in (("refs", rows), ("files", files)):
        (folder / "refs.zarr" / "v" / name).mkdir(parents=True)
        known = {key: column for key, column in table.items() if column is not None}
        pq.write_table(pa.table(known), folder / "refs.zarr" / "v" / name / "0.parquet")
    table = {"path": "./refs", "rows": 2, "sources": ["./files", 2], **dict(said)}
    return {"parts": [{"origin": [0, 0], "shape": [2, 1], "first": 0, "strides": [1, 1],
                       "table": table, **dict(part)}]}  # fmt: skip


RECORDS: dict[str, dict[str, Any]] = {
    "ranges": {},
    "inline": {"source": [0, -2], "data": [None, VALUES[2:].tobytes()]},
    "backwards": {"part": {"first": 1, "strides": [-1, 0]}, "offset": [17, 5]},
    "64 bits": {"source": pa.array([0, 1], pa.int64())},
}


@pytest.mark.parametrize("which", RECORDS)
def test_tables_by_hand_are_read(which: str, tmp_path: Path) -> None:
    manifest = tables(tmp_path, **RECORDS[which])
    found = lazy(by_others(tmp_path, manifest), mask_and_scale=False)["v"]
    np.testing.assert_array_equal(found.values, VALUES)


def test_chunks_in_no_part_are_missing(tmp_path: Path) -> None:
    manifest = tables(tmp_path, part={"origin": [1, 0], "shape": [1, 1], "first": 1})
    values = lazy(by_others(tmp_path, manifest, fill_value=7), mask_and_scale=False)["v"].values
    np.testing.assert_array_equal(values[2:], VALUES[2:])
    assert (values[:2] == 7).all()


def test_zarr_python_reads_native_arrays(tmp_path: Path) -> None:
    ds, _ = grid_of_chunks(tmp_path)
    ds = ds.assign(w=("y", np.arange(20.0)), name=("y", list("abcdefghijklmnopqrst")))
    ds = ds.assign(large=(("a", "b"), np.arange(10_000.0).reshape(100, 100)))
    ds.virtual.to_manifest(tmp_path / "refs.zarr")
    group = zarr.open_group(tmp_path / "refs.zarr", mode="r", use_consolidated=False)
    for name in ("w", "name", "large"):
        assert group[name][:].tolist() == ds[name].values.tolist()


def test_coordinates_of_many_steps_take_few_bytes(tmp_path: Path) -> None:
    ds, _ = grid_of_chunks(tmp_path)
    steps = np.arange(100_000.0)
    ds.assign(steps=("t", steps)).virtual.to_manifest(tmp_path / "refs.zarr")
    stored = sum(path.stat().st_size for path in (tmp_path / "refs.zarr/steps/c").iterdir())
    assert stored < steps.nbytes / 50
    assert (zarr.open_array(tmp_path / "refs.zarr/steps", mode="r")[:] == steps).all()


def test_chunks_that_are_too_large_for_blosc_are_compressed_by_zstd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert v3_arrays.BLOSC_BYTES == numcodecs.blosc.MAX_BUFFERSIZE
    row = np.arange(1000.0)[None]
    for limit, name in ((8000, "blosc"), (7999, "zstd")):
        monkeypatch.setattr(v3_arrays, "BLOSC_BYTES", limit)
        target = tmp_path / f"{name}.zarr"
        xr.Dataset({"row": (("y", "x"), row)}).virtual.to_manifest(target)
        found = zarr.open_array(target / "row", mode="r")
        assert found.metadata.to_dict()["codecs"][-1]["name"] == name
        assert (found[:] == row).all()


def test_equal_values_become_equal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # in threads, as by default, Blosc writes blocks in the order in which they are done
    monkeypatch.setattr(numcodecs.blosc, "use_threads", None)
    _import_blosc.cache_clear()
    values = np.arange(2.0**20) / 3
    encoded = [values_to_v3(values) for _ in range(8)]
    assert len({data for array in encoded if array for _, data in array.chunks}) == 1
    # tests after this one are without threads again
    _import_blosc.cache_clear()


def test_zarr_python_refuses_virtual_arrays(archive_files: list[Path], tmp_path: Path) -> None:
    virtual(archive_files[0]).isel(lat=slice(1, 5)).virtual.to_manifest(tmp_path / "refs.zarr")
    assert node_of(tmp_path / "refs.zarr", "t")["chunk_grid"]["name"] == "virtualds.fragments"
    with pytest.raises(ValueError, match=r"virtualds\.(fragments|manifest)"):
        zarr.open_group(tmp_path / "refs.zarr", mode="r", use_consolidated=False)["t"]


# ---------------------------------------------------------------------- nonsense

EXTRA = {"name": "sharding", "must_understand": True}
UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "transformer": ({"storage_transformers": [{"name": "content-addressed"}]},
                    "'content-addressed'"),
    "grid": ({"chunk_grid": {"name": "hexagonal", "configuration": {}}}, "'hexagonal'"),
    "codec": ({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}},
                          {"name": "lzma9"}]}, "'lzma9'"),
    "data type": ({"data_type": "int128"}, "'int128'"),
    "chunk key encoding": ({"chunk_key_encoding": {"name": "template"}}, "'template'"),
    "key": ({"compass": EXTRA}, "'compass'"),
    "codec of fragments": ({"chunk_grid": {"name": "virtualds.fragments",
                                           "configuration": {"fragments": []}}}, "'bytes'"),
}  # fmt: skip


@pytest.mark.parametrize("which", UNKNOWN)
def test_unknown_metadata_are_refused_by_name(which: str, tmp_path: Path) -> None:
    changes, name = UNKNOWN[which]
    path = by_others(tmp_path, SPELLINGS["ranges"], **changes)
    with pytest.raises(UnsupportedError, match=name) as caught:
        virtual(path, parser="zarr-v3")
    assert "variable 'v' of" in chain_of(caught.value)


def test_a_key_that_need_not_be_understood_is_passed_over(tmp_path: Path) -> None:
    path = by_others(tmp_path, SPELLINGS["ranges"], compass={"must_understand": False})
    np.testing.assert_array_equal(lazy(path, mask_and_scale=False)["v"].values, VALUES)


ROOTS: dict[str, Callable[[Any], Any]] = {
    "no object": lambda root: [1],
    "no group": lambda root: root | {"node_type": "array"},
    "of Zarr v2": lambda root: root | {"zarr_format": 2},
    "another layout": lambda root: root | {"attributes": {"virtualds": {"version": 2}}},
    "attributes": lambda root: root | {"attributes": [1]},
    "notes": lambda root: root | {"attributes": {"virtualds": 5}},
    "notes of arrays": lambda root: root | {"attributes": {"virtualds": {"arrays": [1]}}},
    "notes of one array": lambda root: root | {"attributes": {"virtualds": {"arrays": {"v": 1}}}},
    "notes of values": lambda root: (
        root | {"attributes": {"virtualds": {"values": {"w": {"chunks": 1}}}}}
    ),
    "consolidated": lambda root: root | {"consolidated_metadata": [1]},
    "nodes": lambda root: root | {"consolidated_metadata": {"metadata": [1]}},
    "a node": lambda root: root | {"consolidated_metadata": {"metadata": {"v": 1}}},
    "a node of no kind": lambda root: root | {"consolidated_metadata": {"metadata": {"v": {}}}},
    "a node outside": lambda root: with_node(root, "../v"),
    "a node without a name": lambda root: with_node(root, "a//v"),
    "a node among snapshots": lambda root: with_node(root, "__virtualds__/v"),
    "a node on Windows": lambda root: with_node(root, "a\\v"),
}


def with_node(root: Any, path: str) -> Any:
    nodes = root["consolidated_metadata"]["metadata"]
    return root | {"consolidated_metadata": {"metadata": {path: nodes["v"]}}}


@looped("which", ROOTS)
def test_a_damaged_root_is_named(which: str, tmp_path: Path) -> None:
    path = by_others(tmp_path, SPELLINGS["ranges"])
    (path / "zarr.json").write_text(json.dumps(ROOTS[which](root_of(path))))
    with pytest.raises(FormatError, match=r"refs\.zarr"):
        virtual(path, parser="zarr-v3")


@pytest.mark.parametrize("text", ["", "{", "nonsense", '{"a": 1, "a": 2}', "[" * 100_000])
def test_a_root_that_is_no_json_is_named(text: str, tmp_path: Path) -> None:
    path = by_others(tmp_path, SPELLINGS["ranges"])
    (path / "zarr.json").write_text(text)
    with pytest.raises(FormatError, match=r"zarr\.json"):
        virtual(path, parser="zarr-v3")


def with_entry(entry: Any) -> dict[str, Any]:
    return {"0.0": FIRST, "1.0": entry}


BAD_MANIFESTS: dict[str, Any] = {
    "no object": "[1]",
    "no JSON": "nonsense",
    "empty": "",
    "not UTF-8": b"\xff\xfe",
    "a key twice": '{"0.0": {}, "0.0": {}}',
    "an entry of text": with_entry("../data.bin"),
    "an entry of nothing": with_entry(None),
    "a path that is none": with_entry({**ENTRY, "path": 5}),
    "an empty path": with_entry({**ENTRY, "path": ""}),
    "an offset of text": with_entry({**ENTRY, "offset": "17"}),
    "half an offset": with_entry({**ENTRY, "offset": 1.5}),
    "a negative offset": with_entry({**ENTRY, "offset": -1}),
    "a huge offset": with_entry({**ENTRY, "offset": 2**64}),
    "an end beyond all": with_entry({**ENTRY, "offset": 2**63 - 1}),
    "no length": with_entry({**ENTRY, "length": 0}),
    "true": with_entry({**ENTRY, "length": True}),
    "an offset behind the file": with_entry({"path": "../data.bin", "offset": 500}),
    "data that are no base64": with_entry({"data": "???"}),
    "data that are a number": with_entry({"data": 5}),
    "a checksum that is none": with_entry({**ENTRY, "checksum": "crc32:xyz"}),
    "a checksum of a number": with_entry({**ENTRY, "checksum": 5}),
    "a pipeline of text": with_entry({**ENTRY, "pipeline": "0"}),
    "a pipeline that is not there": with_entry({**ENTRY, "pipeline": 3}),
    "a huge pipeline": with_entry({**ENTRY, "pipeline": 2**20}),
    "a chunk outside": {"0.0": FIRST, "2.0": ENTRY},
    "a chunk of other axes": {"0.0": FIRST, "1": ENTRY},
    "a chunk that counts backwards": {"0.0": FIRST, "-1.0": ENTRY},
    "a chunk in other digits": {"0.0": FIRST, "\u0661.0": ENTRY},
    "a chunk twice": {"1.0": FIRST, "01.0": ENTRY},
    "a chunk with a plus": {"0.0": FIRST, "+1.0": ENTRY},
    "a prefix without a path": {"c/": {}},
    "a prefix of text": {"c/": "../store"},
}


@looped("stored", ["inline", "in a file"])
@looped("which", BAD_MANIFESTS)
def test_bad_manifests_are_format_errors_that_name_them(
    which: str, stored: str, tmp_path: Path
) -> None:
    manifest = BAD_MANIFESTS[which]
    if stored == "inline" and not isinstance(manifest, dict):
        return
    path = by_others(
        tmp_path,
        manifest
        if stored == "inline"
        else manifest
        if isinstance(manifest, (str, bytes))
        else json.dumps(manifest),
    )
    with pytest.raises(FormatError) as caught:
        virtual(path)["v"].values  # noqa: B018
    name = "zarr.json" if stored == "inline" else "v/manifest.json"
    assert f"refs.zarr/{name}" in chain_of(caught.value) or (
        stored == "inline" and "variable 'v' of" in chain_of(caught.value)
    )


@looped(
    "noted",
    [
        *([1], 5, "abc", None, False, [], {"size": 1}, [1, 2, "a", 3]),
        *([1.5, None, None], [None, "x", None], [None, None, 5]),
        *([True, None, None], [None, False, None], [2**63, None, None], [-(2**63), None, None]),
    ],
)
def test_a_fingerprint_that_is_none_is_a_fault_of_the_set(noted: Any, tmp_path: Path) -> None:
    path = by_others(tmp_path, SPELLINGS["ranges"])
    root = root_of(path)
    (said,) = root["consolidated_metadata"]["metadata"]["v"]["storage_transformers"]
    said["configuration"]["sources"] = {"../data.bin": noted}
    (path / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(FormatError, match=r"data\.bin"):
        virtual(path)["v"].values  # noqa: B018


BAD_TABLES: dict[str, dict[str, Any]] = {
    "a source that is not there": {"source": [0, 2]},
    "a source of no kind": {"source": [0, -3]},
    "no sources": {"source": None},
    "missing numbers": {"offset": [5, None]},
    "a negative offset": {"offset": [5, -17]},
    "an offset of text": {"offset": ["5", "17"]},
    "half an offset": {"offset": [5.0, 17.5]},
    "a length of nothing": {"length": [12, 0]},
    "bytes behind the file": {"source": [0, 0], "offset": [5, 500]},
    "inline without data": {"source": [0, -2]},
    "inline without a value": {"source": [0, -2], "data": pa.array([None, None], pa.binary())},
    "a checksum without its mark": {"checksum": pa.array([0, 5], pa.uint64())},
    "one row": {"source": [0], "offset": [5], "length": [12]},
    "a pipeline that is not there": {"pipeline": [0, 9], "said": {"pipelines": True}},
    "no pipelines": {"said": {"pipelines": True}},
    "one source": {"sources": {"path": ["../data.bin"], "size": [29], "mtime": [None],
                               "etag": [None]}},
    "a source without a path": {"sources": {"path": ["../data.bin", None]}},
    "paths of numbers": {"sources": {"path": [1, 2]}},
    "no paths": {"sources": {"path": None}},
    "a size of text": {"sources": {"size": ["29", "29"]}},
    "more rows": {"said": {"rows": 1}},
    "rows of text": {"said": {"rows": "2"}},
    "a table outside": {"said": {"path": "../../refs"}},
    "an absolute table": {"said": {"path": "/refs"}},
    "sources outside": {"said": {"sources": ["../../../files", 2]}},
    "sources of no form": {"said": {"sources": "./files"}},
    "a part outside the grid": {"part": {"origin": [1, 0]}},
    "a part before the grid": {"part": {"origin": [-1, 0]}},
    "a part of other axes": {"part": {"origin": [0], "shape": [2], "strides": [1]}},
    "a part of negative shape": {"part": {"shape": [-1, 1]}},
    "strides of others": {"part": {"strides": [1]}},
    "strides that leave the table": {"part": {"strides": [2, 1]}},
    "strides of half": {"part": {"strides": [0.5, 1]}},
    "a negative row": {"part": {"first": -1}},
    "another fragment": {"part": {"fragment": 1}},
    "a fragment from behind": {"part": {"fragment": -1}},
    "no table": {"part": {"table": None}},
}  # fmt: skip


@looped("which", BAD_TABLES)
def test_bad_tables_are_format_errors_that_name_them(which: str, tmp_path: Path) -> None:
    path = by_others(tmp_path, tables(tmp_path, **BAD_TABLES[which]))
    with pytest.raises(FormatError) as caught:
        virtual(path)["v"].values  # noqa: B018
    text = chain_of(caught.value)
    assert "0.parquet" in text or "variable 'v' of" in text, text


@pytest.mark.parametrize("data", [None, b"", b"nonsense"])
@pytest.mark.parametrize("name", ["refs", "files"])
def test_lost_records_are_errors_that_name_them(name: str, data: Any, tmp_path: Path) -> None:
    path = by_others(tmp_path, tables(tmp_path))
    file = path / "v" / name / "0.parquet"
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(ReadError if data is None else FormatError, match=f"{name}/0.parquet"):
        virtual(path)["v"].values  # noqa: B018


def axes(**changes: Any) -> Any:
    whole = {"size": 3, "chunk": 3, "hidden": 0, "last": 3}
    cut = {"lengths": [[2, 2]], "stored": [[2, 2]], "hidden": [[0, 2]]} | changes
    cut = {key: value for key, value in cut.items() if value is not None}
    return {"fragments": [{"start": [0, 0], "axes": [cut, whole]}]}


def pack_slabs(columns: Any = ([2, 2], [2, 2], [0, 0]), **changes: Any) -> dict[str, Any]:
    data = np.array(columns, changes.get("type", "|u1"))
    packed = base64.b64encode(numcodecs.Zstd().encode(data.tobytes())).decode()
    return {"slabs": data.shape[-1], "type": "|u1", "packed": packed} | changes


UNLISTED = dict.fromkeys(("lengths", "stored", "hidden"))
BAD_PACKED = {
    "of another type": pack_slabs(type="<i2"),
    "of no type": pack_slabs() | {"type": 1},
    "of too few slabs": pack_slabs(slabs=1),
    "of too many slabs": pack_slabs(slabs=3),
    "of very many slabs": pack_slabs(slabs=10**15),
    "of a part of a slab": pack_slabs(slabs=2.0),
    "without a number": pack_slabs(slabs=None),
    "that is no base64": pack_slabs(packed="???"),
    "that is no text": pack_slabs(packed=7),
    "that is no zstd": pack_slabs(packed="AAAA"),
    "beyond the array": pack_slabs([[2, 3], [2, 3], [0, 0]]),
    "not stored": pack_slabs([[2, 2], [2, 1], [0, 0]]),
    "that overflow": pack_slabs([[2**63, 2**63 + 4], [2**63, 2**63 + 4], [0, 0]], type="<u8"),
}

PIPELINE = {"dtype": "<i2", "codecs": [], "fill": None, "layout": [0, 1]}
BAD_EXTENSIONS: dict[str, tuple[Any, Any]] = {
    "no fragments": ({}, [PIPELINE]),
    "slabs without end": (axes(lengths=[[0, 10**15]], stored=[[2, 10**15]], hidden=[[0, 10**15]]),
                          [PIPELINE]),
    "slabs of text": (axes(lengths="ab"), [PIPELINE]),
    "half a slab": (axes(lengths=[[1.5, 2]]), [PIPELINE]),
    "negative slabs": (axes(lengths=[[2, -2]]), [PIPELINE]),
    "no slabs": (axes(lengths=[]), [PIPELINE]),
    "slabs that are not stored": (axes(stored=[[1, 2]]), [PIPELINE]),
    "columns of other lengths": (axes(hidden=[[0, 1]]), [PIPELINE]),
    "no column": (axes(hidden=None), [PIPELINE]),
    **{f"slabs {name}": (axes(**UNLISTED, **axis), [PIPELINE])
       for name, axis in BAD_PACKED.items()},
    "slabs outside": (axes(lengths=[[3, 2]], stored=[[3, 2]]), [PIPELINE]),
    "an axis of text": (axes(size="4", chunk=2, last=2, hidden=0), [PIPELINE]),
    "an axis without chunks": (axes(size=4, chunk=0, last=0, hidden=0), [PIPELINE]),
    "one axis": ({"fragments": [{"start": [0], "axes": axes()["fragments"][0]["axes"][:1]}]},
                 [PIPELINE]),
    "three axes": ({"fragments": [{"start": [0, 0], "axes": axes()["fragments"][0]["axes"] * 2}]},
                   [PIPELINE]),
    "a start outside": ({"fragments": [{**axes()["fragments"][0], "start": [-1, 0]}]}, [PIPELINE]),
    "no pipelines": (axes(), []),
    "a pipeline of text": (axes(), ["zlib"]),
    "a dtype that is none": (axes(), [PIPELINE | {"dtype": "wind"}]),
    "a fill of another length": (axes(), [PIPELINE | {"fill": "AAAA"}]),
    "a fill that is no base64": (axes(), [PIPELINE | {"fill": "???"}]),
    "a layout of text": (axes(), [PIPELINE | {"layout": "ab"}]),
    "packing without types": (axes(), [PIPELINE | {"packing": {"dtype": "<f8", "attributes": {}}}]),
    "times without units": (axes(), [PIPELINE | {"packing": {
        "dtype": "<M8[s]", "attributes": {}, "types": {}}}]),
}  # fmt: skip


@looped("which", BAD_EXTENSIONS)
def test_bad_extensions_are_format_errors_that_name_the_variable(
    which: str, tmp_path: Path
) -> None:
    grid, pipelines = BAD_EXTENSIONS[which]
    path = by_others(
        tmp_path,
        {"0.0.0": FIRST, "0.1.0": ENTRY},
        chunk_grid={"name": "virtualds.fragments", "configuration": grid},
        codecs=[{"name": "virtualds.pipelines", "configuration": {"pipelines": pipelines}}],
    )
    with pytest.raises(FormatError) as caught:
        virtual(path)["v"].values  # noqa: B018
    assert "refs.zarr" in chain_of(caught.value)


@pytest.mark.parametrize("cut", [{}, UNLISTED | pack_slabs()], ids=["listed", "packed"])
def test_a_sound_extension_is_read_among_bad_ones(cut: Any, tmp_path: Path) -> None:
    path = by_others(
        tmp_path,
        {"0.0.0": FIRST, "0.1.0": ENTRY},
        chunk_grid={"name": "virtualds.fragments", "configuration": axes(**cut)},
        codecs=[{"name": "virtualds.pipelines", "configuration": {"pipelines": [PIPELINE]}}],
    )
    np.testing.assert_array_equal(lazy(path, mask_and_scale=False)["v"].values, VALUES)


@looped("which", BAD_PACKED)
def test_a_packed_grid_that_is_damaged_is_refused(which: str, tmp_path: Path) -> None:
    cut = [BAD_PACKED[which], {"size": 3, "chunk": 3, "hidden": 0, "last": 3}]
    grid = {"name": "virtualds.axes", "configuration": {"axes": cut}}
    with pytest.raises(FormatError) as caught:
        virtual(by_others(tmp_path, {"0.0": FIRST, "1.0": ENTRY}, chunk_grid=grid))["v"]
    assert "refs.zarr" in chain_of(caught.value)


WHOLE = {"size": 3, "chunk": 3, "hidden": 0, "last": 3}
BAD_AXES = {
    "one axis": [pack_slabs()],
    "three axes": [pack_slabs(), WHOLE, WHOLE],
    "an axis that ends before the array": [pack_slabs([[2, 1], [2, 1], [0, 0]]), WHOLE],
    "an axis of text": ["wind", WHOLE],
    "text": "wind",
}


@looped("which", BAD_AXES)
def test_axes_that_do_not_divide_the_array_are_refused(which: str, tmp_path: Path) -> None:
    grid = {"name": "virtualds.axes", "configuration": {"axes": BAD_AXES[which]}}
    with pytest.raises(FormatError) as caught:
        virtual(by_others(tmp_path, {"0.0": FIRST, "1.0": ENTRY}, chunk_grid=grid))["v"]
    assert "refs.zarr" in chain_of(caught.value)


def test_a_packed_grid_is_read(tmp_path: Path) -> None:
    grid = {"name": "virtualds.axes", "configuration": {"axes": [pack_slabs(), WHOLE]}}
    path = by_others(tmp_path, {"0.0": FIRST, "1.0": ENTRY}, chunk_grid=grid)
    np.testing.assert_array_equal(lazy(path, mask_and_scale=False)["v"].values, VALUES)


def write_ragged(folder: Path, count: int, hidden: int = 0) -> tuple[xr.Dataset, Any]:
    """A dataset of ``v(time)`` in chunks of 1 to 3 elements, the first without some elements."""
    stored = np.random.default_rng(5).integers(hidden + 1, 4, count)
    values = np.arange(stored.sum(), dtype="<i4")
    (folder / "ragged.bin").write_bytes(values.tobytes())
    starts = np.cumsum(stored) - stored
    chunks = [
        ManifestArray.from_arrays(
            shape=(n,), chunks=(n,), dtype="<i4", path=str(folder / "ragged.bin"),
            offsets=[start * 4], lengths=n * 4,
        )
        for start, n in zip(starts.tolist(), stored.tolist(), strict=True)
    ]  # fmt: skip
    whole = xr.Dataset({"v": ("time", np.concatenate(chunks))})
    return whole.isel(time=slice(hidden, None)), values[hidden:]


@pytest.mark.parametrize(
    ("hidden", "grid"),
    [(0, "virtualds.axes"), (1, "virtualds.fragments")],
    ids=["plain", "cropped"],
)
def test_lengths_of_very_many_chunks_are_packed(hidden: int, grid: str, tmp_path: Path) -> None:
    vds, values = write_ragged(tmp_path, 4000, hidden)
    path = tmp_path / "refs.zarr"
    vds.virtual.to_manifest(path)
    node = node_of(path)
    assert node["chunk_grid"]["name"] == grid
    # two bits for each length, where a list takes six bytes
    assert len(json.dumps(node["chunk_grid"])) < 2500
    np.testing.assert_array_equal(lazy(path)["v"].values, values)
    np.testing.assert_array_equal(Set(path).read("v"), values)
    again = virtual(path)
    assert again["v"].data.fragments[0].axes == vds["v"].data.fragments[0].axes


def test_a_list_of_lengths_that_grows_is_packed(tmp_path: Path) -> None:
    vds, values = write_ragged(tmp_path, 2000)
    path, middle = tmp_path / "refs.zarr", 1000
    vds.isel(time=slice(0, middle)).virtual.to_manifest(path)
    assert node_of(path)["chunk_grid"]["name"] != "virtualds.axes"
    vds.isel(time=slice(middle, None)).virtual.to_manifest(path, append_dim="time")
    assert node_of(path)["chunk_grid"]["name"] in ("virtualds.axes", "virtualds.fragments")
    assert "packed" in json.dumps(node_of(path)["chunk_grid"])
    np.testing.assert_array_equal(lazy(path)["v"].values, values)
    np.testing.assert_array_equal(Set(path).read("v"), values)


def test_strings_that_do_not_decode_are_read_errors(tmp_path: Path) -> None:
    text = np.array(["a" * n for n in range(400)], object)
    xr.Dataset({"name": ("x", text)}).virtual.to_manifest(tmp_path / "refs.zarr")
    assert lazy(tmp_path / "refs.zarr")["name"].values.tolist() == text.tolist()
    chunk = tmp_path / "refs.zarr" / "name" / "c" / "0"
    chunk.write_bytes(b"x" * len(chunk.read_bytes()))
    with pytest.raises(ReadError, match="strings"):
        lazy(tmp_path / "refs.zarr")


# ---------------------------------------------------------------------- stores and trust


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


def test_a_set_in_memory(memory: Any, archive: Archive) -> None:
    ds = virtualds.open_virtual_dataset(archive.path("contiguous"), loadable_variables="*")
    target = "memory://bucket/refs.zarr"
    ds.virtual.to_manifest(target)
    xr.testing.assert_identical(lazy(target).load(), archive.native("contiguous"))
    with pytest.raises(FileExistsError):
        ds.virtual.to_manifest(target, mode="w-")
    xr.Dataset({"w": ("x", [1.0])}).virtual.to_manifest(target, mode="w")
    assert list(lazy(target)) == ["w"]


@pytest.mark.parametrize("form", few_quick(FORMS, ["parquet"]))
def test_a_set_in_s3(
    form: str, s3_folder: str, s3_server: dict[str, Any], archive_files: list[Path]
) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server)
    for path in archive_files:
        filesystem.put(str(path), f"{s3_folder}/{path.name}")
    vds = xr.concat(
        [
            virtualds.open_virtual_dataset(f"{s3_folder}/{p.name}", storage_options=s3_server)
            for p in archive_files
        ],
        "time",
    )
    target = f"{s3_folder}/sets/refs.zarr"
    for _ in range(2):
        vds.virtual.to_manifest(
            target, storage_options=s3_server, manifest=form, relative_paths=True, mode="w"
        )
    found = lazy(target, storage_options=s3_server)
    with xr.open_mfdataset(archive_files, combine="nested", concat_dim="time") as native:
        assert_identical(found, native.load())
    text = b"".join(filesystem.cat(filesystem.find(target)).values())
    assert b"nothing" not in text


def test_files_inside_a_set_need_no_permission(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    ds, values = grid_of_chunks(tmp_path / "data")
    ds = ds.assign_coords(y=np.arange(20), name=("y", list("abcdefghijklmnopqrst")))
    for _ in range(2):
        ds.virtual.to_manifest(tmp_path / "refs.zarr", mode="w")
        ds = ds.assign_coords(y=np.arange(20) + 1)
    found = lazy(tmp_path / "refs.zarr", allow=tmp_path / "data").load()
    np.testing.assert_array_equal(found["v"].values, values)
    nothing = lazy(tmp_path / "refs.zarr", allow=[])
    assert nothing["y"].values.tolist() == list(range(1, 21))
    with pytest.raises(AccessError, match=r"lies under none of \[\]"):
        nothing["v"].values  # noqa: B018


def test_a_link_in_a_set_leads_nowhere_if_only_some_folders_may_be_read(tmp_path: Path) -> None:
    xr.Dataset({"v": ("x", [1.0, 2.0])}).virtual.to_manifest(tmp_path / "refs.zarr")
    chunk = tmp_path / "refs.zarr" / "v" / "c" / "0"
    chunk.rename(tmp_path / "secret")
    chunk.symlink_to(tmp_path / "secret")
    assert lazy(tmp_path / "refs.zarr")["v"].values.tolist() == [1.0, 2.0]
    with pytest.raises((AccessError, ReadError), match="lies under none of"):
        lazy(tmp_path / "refs.zarr", allow=[])["v"].values  # noqa: B018


def test_options_do_not_get_into_the_set(memory: Any, tmp_path: Path, archive: Archive) -> None:
    memory.pipe("/bucket/a.nc", archive.path("contiguous").read_bytes())
    ds = virtualds.open_virtual_dataset(
        "memory://bucket/a.nc", loadable_variables=[], storage_options={"secret": "hunter2"}
    )
    for form in FORMS:
        ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest=form, mode="w")
    for file in (tmp_path / "refs.zarr").rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes()


@pytest.mark.parametrize("form", FORMS)
def test_fingerprints_travel(form: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.create_dataset("v", data=np.arange(8), chunks=(2,))
    ds = virtual(tmp_path / "a.nc")
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest=form)
    again = virtual(tmp_path / "refs.zarr")
    assert again["v"].data.sources == ds["v"].data.sources
    os.utime(tmp_path / "a.nc", ns=(0, 0))
    with pytest.raises(ReadError, match="modified after"):
        again["v"].values  # noqa: B018
