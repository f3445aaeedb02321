"""Zarr v3 with chunk manifests: as its page says, lazily, whole or not there, and on good terms."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from archives import KINDS, Archives
from cases import CASES, Archive
from transforms import assert_identical, packed

import virtualds
from formats.independent_reader import Set, Unknown
from virtualds import AccessError, FormatError, ManifestArray, ReadError, UnsupportedError
from virtualds.formats import zarr_v3
from virtualds.group import ManifestGroup, ManifestVariable
from virtualds.lazy_manifest import LazyManifest
from virtualds.manifest import SourceFile
from virtualds.stores.local import LocalStore
from virtualds.zarr_v3 import manifest_files, manifests

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
    return zarr_v3.read(SourceFile(f"file://{path}"), **options)


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
    for module in (manifests, manifest_files):
        monkeypatch.setattr(module, "RECORD_SIZE", 10)
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", KINDS)
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


@pytest.mark.parametrize("form", ["inline", "parquet"])
@pytest.mark.parametrize("name", CASES)
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


def test_what_is_written_is_what_the_page_lists(tmp_path: Path, small_records: int) -> None:
    ds, _ = grid_of_chunks(tmp_path, 5, 3)
    ds = ds.assign(w=("y", np.arange(5.0)), name=("y", list("abcde")))
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    files = (p.relative_to(tmp_path / "refs.zarr") for p in (tmp_path / "refs.zarr").rglob("*"))
    names = {str(p) for p in files if (tmp_path / "refs.zarr" / p).is_file()}
    assert set(without_ids(names)) == {
        "zarr.json", "v/zarr.json", "w/zarr.json", "name/zarr.json", "w/c/0", "name/c/0",
        "v/manifest.<id>.0/0.parquet", "v/manifest.<id>.0/1.parquet",
        "__virtualds__/<id>/zarr.json", "__virtualds__/<id>/begun",
        "__virtualds__/<id>/sources/0.parquet",
    }  # fmt: skip
    root = root_of(tmp_path / "refs.zarr")
    nodes = root["consolidated_metadata"]["metadata"]
    for name in ("v", "w", "name"):
        copy = json.loads((tmp_path / "refs.zarr" / name / "zarr.json").read_bytes())
        assert copy == nodes[name]
    assert json.loads(
        (
            tmp_path / f"refs.zarr/__virtualds__/{root['attributes']['virtualds']['snapshot']}"
            "/zarr.json"
        ).read_bytes()
    ) == root  # fmt: skip


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


def test_there_is_no_other_form(tmp_path: Path) -> None:
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


def test_nested_groups_are_a_tree_again(tmp_path: Path) -> None:
    leaf = ManifestGroup({"v": ManifestVariable(("x",), np.arange(3.0))}, {"n": np.int16(3)})
    tree = ManifestGroup({"v": ManifestVariable(("x",), np.arange(5))}, groups={"a": leaf})
    zarr_v3.write(tree, f"file://{tmp_path}/refs.zarr")
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


def test_opening_reads_the_root_and_coordinates(
    asked: Counter[str], small_records: int, tmp_path: Path
) -> None:
    for form in ("json", "parquet"):
        ds, values = grid_of_chunks(tmp_path)
        ds = ds.assign_coords(y=np.arange(20))
        ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest=form)
        asked.clear()
        found = virtual(tmp_path / "refs.zarr")
        repr(found)
        found["v"].data._repr_html_()
        assert set(asked) == {"zarr.json"}, form
        repr(lazy(tmp_path / "refs.zarr"))
        assert set(without_ids(asked)) <= {"zarr.json", "y/c/0", "y/values.<id>/c/0"}, form
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


def test_what_is_kept_of_records_is_bounded(
    asked: Counter[str], small_records: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(manifests, "KEPT", 4)
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    found = read(tmp_path / "refs.zarr").variables["v"].data
    np.testing.assert_array_equal(np.asarray(found), values)
    assert len(found.fragments[0].manifest._table.store._kept) == 4


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


def test_views_of_what_lies_in_a_set_are_written_without_being_read(
    asked: Counter[str], small_records: int, tmp_path: Path
) -> None:
    ds, values = grid_of_chunks(tmp_path)
    ds.virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    view = virtual(tmp_path / "refs.zarr").isel(y=slice(3, 17)).transpose("x", "y")
    asked.clear()
    view.virtual.to_manifest(tmp_path / "refs.zarr")
    assert not [name for name in asked if name.endswith(".parquet")]
    np.testing.assert_array_equal(lazy(tmp_path / "refs.zarr")["v"].values, values[3:17].T)
    np.testing.assert_array_equal(Set(tmp_path / "refs.zarr").read("v"), values[3:17].T)
