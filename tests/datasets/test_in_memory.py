"""Sources and sets come from memory and go into it: bytes, open files, dicts, objects of fsspec."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from cases import Archive
from range_server import range_server
from transforms import assert_identical

import virtualds
from virtualds import AccessError, ReadError, UnsupportedError
from virtualds.datasets.location import Location, _open_references
from virtualds.source_file import StorageOptions


@pytest.fixture
def source(archive_files: list[Path]) -> Path:
    return archive_files[0]


@pytest.fixture
def native(source: Path) -> xr.Dataset:
    with xr.open_dataset(source) as found:
        return found.load()


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


def virtual(given: Any, **options: Any) -> xr.Dataset:
    return virtualds.open_virtual_dataset(given, **options)


def lazy(given: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(given, engine="virtual", **options)


OPEN: list[Any] = []
"""Files that a test has opened."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def keep(file: Any) -> Any:
    OPEN.append(file)
    return file


def put(memory: Any, source: Path) -> Any:
    memory.pipe("/in/2001.nc", source.read_bytes())
    return memory


# ---------------------------------------------------------------------- sources

HELD: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "BytesIO": lambda path: io.BytesIO(path.read_bytes()),
    "gzip file": lambda path: keep(
        gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(path.read_bytes())))
    ),
    "fsspec, decompressed": lambda path: keep(
        fsspec.open(put_compressed(path), "rb", compression="gzip").open()
    ),
}
"""Objects whose bytes have no other name."""
NAMED: dict[str, Callable[[Path], Any]] = {
    "open file": lambda path: keep(path.open("rb")),
    "raw file": lambda path: keep(path.open("rb", buffering=0)),
    "file of fsspec": lambda path: keep(fsspec.open(str(path), "rb").open()),
    "file of fsspec, not open": lambda path: fsspec.open(str(path), "rb"),
    "file in memory": lambda path: put(fsspec.filesystem("memory"), path).open("/in/2001.nc"),
}
"""Objects that mean a file which has a url."""


def put_compressed(path: Path) -> str:
    fsspec.filesystem("memory").pipe("/in/2001.nc.gz", gzip.compress(path.read_bytes()))
    return "memory://in/2001.nc.gz"


@pytest.mark.parametrize("opened", [virtual, lazy], ids=["open_virtual_dataset", "engine"])
@pytest.mark.parametrize("kind", [*HELD, *NAMED])
def test_a_source_is_opened_from_an_object(
    kind: str, opened: Callable[..., xr.Dataset], source: Path, native: xr.Dataset, memory: Any
) -> None:
    assert_identical(opened((HELD | NAMED)[kind](source)), native)


@pytest.mark.parametrize("name", ["contiguous", "classic_of_scipy", "strings_of_varying_length"])
def test_formats_are_known_by_the_bytes_in_memory(name: str, archive: Archive) -> None:
    assert_identical(virtual(archive.path(name).read_bytes()), archive.native(name))


def test_an_archive_in_memory_is_opened(source: Path, native: xr.Dataset) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(source, "2001.nc")
    assert_identical(virtual(packed), native)


def test_an_open_file_is_the_file_of_its_name(
    source: Path, native: xr.Dataset, tmp_path: Path
) -> None:
    with source.open("rb") as file:
        vds = virtual(file)
    assert vds.virtual.sources["url"].tolist() == [f"file://{source}"]
    vds.virtual.to_manifest(tmp_path / "refs.json")
    assert_identical(lazy(tmp_path / "refs.json"), native)


def test_a_file_of_fsspec_keeps_its_access_options(source: Path) -> None:
    with fsspec.filesystem("file", auto_mkdir=True).open(str(source), "rb") as opened:
        assert Location.of(opened) == Location(
            f"file://{source}", StorageOptions({"auto_mkdir": True}), None, f"file://{source}"
        )


def test_an_open_file_whose_name_means_another_file_by_now_is_read_itself(
    source: Path, native: xr.Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "a.nc"
    path.write_bytes(source.read_bytes())
    with path.open("rb") as file:
        path.unlink()
        path.write_bytes(b"something else")
        vds = virtual(file)
        assert_identical(vds, native)
        file.close()
        with pytest.raises(ReadError, match="keep it open"):
            vds["t"].values  # noqa: B018


def test_values_are_read_after_the_object_is_gone(source: Path, native: xr.Dataset) -> None:
    buffer = io.BytesIO(source.read_bytes())
    vds = virtual(buffer)
    buffer.seek(0)
    buffer.write(b"changed afterwards")
    buffer.close()
    assert_identical(vds, native)


def test_bytes_go_to_other_processes_and_open_files_do_not(
    source: Path, native: xr.Dataset
) -> None:
    assert_identical(pickle.loads(pickle.dumps(virtual(source.read_bytes()))), native)
    held = virtual(HELD["gzip file"](source))
    with pytest.raises(UnsupportedError, match="open it by its path"):
        pickle.dumps(held)


def test_dask_reads_bytes(source: Path, native: xr.Dataset) -> None:
    ds = lazy(io.BytesIO(source.read_bytes()), chunks={"time": 5})
    assert ds["t"].chunks is not None
    xr.testing.assert_identical(ds.compute(), native)


def test_bytes_are_verified_against_native_readers(source: Path) -> None:
    assert virtual(source.read_bytes()).virtual.verify(sample=None, against="native").ok


@pytest.mark.parametrize("name", ["refs.json", "refs.parquet", "refs.zarr", None])
@pytest.mark.parametrize("keep_query", [False, True])
def test_references_to_bytes_are_not_written(
    name: str | None, keep_query: bool, source: Path, tmp_path: Path
) -> None:
    vds = virtual(source.read_bytes())
    target = None if name is None else tmp_path / name
    with pytest.raises(UnsupportedError, match=r"(?s)only in the memory.*rename_paths.*load"):
        vds.virtual.to_manifest(target, keep_query=keep_query)
    assert not [*tmp_path.iterdir()]


def test_references_to_bytes_are_written_once_they_point_at_a_copy(
    source: Path, native: xr.Dataset, tmp_path: Path
) -> None:
    vds = virtual(source.read_bytes())
    vds = vds.virtual.rename_paths(lambda url: str(source))
    assert vds["t"].data.sources[0].options is None
    vds.virtual.to_manifest(tmp_path / "refs.json")
    assert_identical(lazy(tmp_path / "refs.json"), native)


def test_bytes_become_a_set_as_values_or_copies(
    source: Path, native: xr.Dataset, tmp_path: Path
) -> None:
    vds = virtual(source.read_bytes())
    vds.virtual.load().virtual.to_manifest(tmp_path / "values.zarr")
    vds.virtual.materialize(tmp_path / "copy.zarr")
    vds.virtual.to_manifest(tmp_path / "inline.json", inline_threshold=10**6)
    for name in ("values.zarr", "copy.zarr", "inline.json"):
        xr.testing.assert_equal(lazy(tmp_path / name).load(), native)


def test_a_set_cannot_name_bytes_of_a_process(source: Path, tmp_path: Path) -> None:
    vds = virtual(source.read_bytes())
    url = vds["t"].data.sources[0].url
    document = virtual(source).virtual.to_manifest(None)
    assert document is not None
    document["refs"]["t/0.0.0"][0] = url
    found = virtual(document, loadable_variables=[])
    with pytest.raises(ReadError, match="leads nowhere else"):
        found["t"][0].values  # noqa: B018
    assert vds["t"].values.size


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (5, "got int"),
        ([b"a"], "got (list|bytes)"),
        (io.StringIO("a"), "'rb'"),
        (fsspec.filesystem("memory"), "a filesystem is not a file"),
    ],
)
@pytest.mark.parametrize("opened", [virtual, lazy], ids=["open_virtual_dataset", "engine"])
def test_other_objects_are_refused_by_name(
    given: Any, match: str, opened: Callable[..., xr.Dataset]
) -> None:
    with pytest.raises(TypeError, match=match):
        opened(given)


# ---------------------------------------------------------------------- sets

Given = tuple[Any, dict[str, Any]]


def as_json(folder: Path) -> str:
    return str(folder / "refs.json")


SETS: dict[str, Callable[[dict[str, Any], Path], Given]] = {
    "dict": lambda refs, folder: (refs, {}),
    "dict of version 0": lambda refs, folder: (refs["refs"], {}),
    "dict with bytes": lambda refs, folder: (
        {k: v.encode() if isinstance(v, str) else v for k, v in refs["refs"].items()}, {},
    ),
    "filesystem": lambda refs, folder: (fsspec.filesystem("reference", fo=refs), {}),
    "positional": lambda refs, folder: (
        fsspec.get_filesystem_class("reference")(refs, remote_protocol="file"), {},
    ),
    "filesystem of a file": lambda refs, folder: (
        fsspec.filesystem("reference", fo=as_json(folder), remote_protocol="file"), {},
    ),
    "filesystem of Parquet": lambda refs, folder: (
        fsspec.filesystem("reference", fo=str(folder / "refs.parquet"), lazy=True), {},
    ),
    "mapper": lambda refs, folder: (fsspec.get_mapper("reference://", fo=refs), {}),
    "mapper of a file": lambda refs, folder: (
        fsspec.get_mapper("reference://", fo=as_json(folder)), {},
    ),
    "url, dict": lambda refs, folder: (
        "reference://", {"storage_options": {"fo": refs, "remote_protocol": "file"}},
    ),
    "url, file": lambda refs, folder: (
        "reference://", {"storage_options": {"fo": as_json(folder), "target_protocol": "file"}},
    ),
    "chain": lambda refs, folder: (f"reference::{as_json(folder)}", {}),
    "open set": lambda refs, folder: (NAMED["open file"](folder / "refs.json"), {}),
    "bytes of a set": lambda refs, folder: (Path(as_json(folder)).read_bytes(), {}),
}  # fmt: skip


# fsspec reads Parquet with what pandas calls old
@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
@pytest.mark.parametrize("opened", [virtual, lazy], ids=["open_virtual_dataset", "engine"])
@pytest.mark.parametrize("kind", SETS)
def test_a_set_is_opened_from_an_object(
    kind: str,
    opened: Callable[..., xr.Dataset],
    source: Path,
    native: xr.Dataset,
    tmp_path: Path,
) -> None:
    vds = virtual(source)
    for name in ("refs.json", "refs.parquet"):
        vds.virtual.to_manifest(tmp_path / name)
    refs = json.loads((tmp_path / "refs.json").read_text())
    given, options = SETS[kind](refs, tmp_path)
    assert_identical(opened(given, **options), native)


def test_urls_without_a_protocol_have_that_of_the_filesystem(
    source: Path, native: xr.Dataset, memory: Any
) -> None:
    memory.pipe("/in/2001.nc", source.read_bytes())
    refs = virtual("memory://in/2001.nc").virtual.to_manifest(None)
    assert refs is not None
    for value in refs["refs"].values():
        if isinstance(value, list):
            value[0] = value[0].removeprefix("memory://")
    for how in ({"remote_protocol": "memory"}, {"fs": memory}):
        assert_identical(lazy("reference://", storage_options={"fo": refs, **how}), native)
        assert_identical(lazy(fsspec.filesystem("reference", fo=refs, **how)), native)


def test_options_of_remote_files_go_to_the_files_and_not_to_the_set(
    source: Path, tmp_path: Path
) -> None:
    virtual(source).virtual.to_manifest(tmp_path / "refs.json", relative_paths=False)
    document = json.loads((tmp_path / "refs.json").read_text())
    for value in document["refs"].values():
        if isinstance(value, list):
            value[0] = "s3://elsewhere/2001.nc"
    (tmp_path / "refs.json").write_text(json.dumps(document))
    given = {"fo": as_json(tmp_path), "target_options": {"auto_mkdir": True}}
    access = {"remote_protocol": "s3", "remote_options": {"anon": True}}
    for found in (
        virtual("reference://", storage_options={**given, **access}, loadable_variables=[]),
        virtual(document, storage_options={"anon": True}, loadable_variables=[]),
    ):
        assert {file.options["anon"] for file in found["t"].data.sources if file.options} == {True}
        assert all(set(file.options or ()) == {"anon"} for file in found["t"].data.sources)


def test_templates_are_overridden(source: Path, native: xr.Dataset) -> None:
    refs = virtual(source).virtual.to_manifest(None, templates=True)
    assert refs is not None
    refs["templates"]["u0"] = "file:///nowhere"
    given = {"fo": refs, "template_overrides": {"u0": f"file://{source.parent}"}}
    assert_identical(lazy("reference://", storage_options=given), native)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({}, ValueError, "'fo'"),
        ({"fo": "refs.json", "unheard_of": 1}, UnsupportedError, "unheard_of"),
        ({"fo": "a.json", "template_overrides": {"u": "v"}}, UnsupportedError, "as a dict"),
        ({"fo": {}, "fs": {"s3": {}}}, UnsupportedError, "one filesystem"),
    ],
)
def test_options_of_references_that_mean_nothing_here_are_refused(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        lazy("reference://", storage_options=options)


def test_allow_holds_for_sets_in_memory(source: Path, native: xr.Dataset, tmp_path: Path) -> None:
    refs = virtual(source).virtual.to_manifest(None)
    for given in (refs, fsspec.filesystem("reference", fo=refs)):
        assert_identical(virtual(given, allow=source.parent), native)
        with pytest.raises(AccessError, match="lies under none of"):
            virtual(given, allow=tmp_path)


def test_a_remote_set_behind_a_filesystem_of_references_is_guarded(
    source: Path, tmp_path: Path
) -> None:
    virtual(source).virtual.to_manifest(tmp_path / "refs.json")
    with range_server(tmp_path) as (host, _):
        for given, options in (
            ("reference://", {"storage_options": {"fo": f"{host}/refs.json"}}),
            (f"reference::{host}/refs.json", {}),
        ):
            with pytest.raises(AccessError, match="local file"):
                virtual(given, **options)
            assert virtual(given, allow=source.parent, **options).sizes["time"] == 12


def test_other_dicts_are_no_sets() -> None:
    with pytest.raises(virtualds.FormatError, match="references"):
        virtual({"a": 1})
    with pytest.raises(TypeError, match="neither JSON nor bytes"):
        virtual({".zgroup": object()})


# ---------------------------------------------------------------------- into memory


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_set_is_written_to_a_dict(zarr_format: int, source: Path, native: xr.Dataset) -> None:
    vds = virtual(source)
    refs = vds.virtual.to_manifest(None, format="kerchunk-json", zarr_format=zarr_format)
    assert refs is not None
    json.dumps(refs, allow_nan=False)
    assert_identical(virtual(refs), native)
    tree = virtualds.open_virtual_datatree(source)
    found = tree.virtual.to_manifest(None, zarr_format=zarr_format)
    assert_identical(virtual(found), native)


def test_a_dict_equals_what_is_written(source: Path, tmp_path: Path) -> None:
    vds = virtual(source)
    assert vds.virtual.to_manifest(tmp_path / "refs.json") is None
    assert vds.virtual.to_manifest(None) == json.loads((tmp_path / "refs.json").read_text())


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"format": "zarr-v3"}, UnsupportedError, "one document"),
        ({"append_dim": "time"}, ValueError, "always new"),
        ({"mode": "w"}, ValueError, "always new"),
        ({"storage_options": {"anon": True}}, ValueError, "storage_options"),
        ({"conflict": "retry"}, ValueError, "^conflict with url None"),
        ({"allow": "s3://bucket"}, ValueError, "^allow with url None"),
        ({"on_unsupported": "rewrite"}, UnsupportedError, "a dict is in no folder"),
        ({"relative_paths": True}, ValueError, "no folder"),
        ({"record_size": 3}, TypeError, "no option"),
        ({"zarr_format": 4}, ValueError, "give 2 or 3"),
    ],
)
def test_a_dict_takes_no_options_of_files(
    options: dict[str, Any], error: type[Exception], match: str, source: Path
) -> None:
    with pytest.raises(error, match=match):
        virtual(source).virtual.to_manifest(None, **options)


def test_a_dict_has_the_group_that_a_user_names(source: Path, native: xr.Dataset) -> None:
    refs = virtual(source).virtual.to_manifest(None, group="/a/b")
    assert_identical(virtual(refs, group="a/b"), native)


def test_a_dict_holds_no_secrets(source: Path) -> None:
    secret = virtual(source).virtual.rename_paths(lambda _: "https://example.org/a.nc?token=abc")
    with pytest.raises(UnsupportedError, match="token=\\.\\.\\."):
        secret.virtual.to_manifest(None)
    assert "token=abc" in json.dumps(secret.virtual.to_manifest(None, keep_query=True))


# ---------------------------------------------------------------------- stores of zarr-python


def test_a_dataset_that_was_never_written_is_a_store_of_zarr(
    archive_files: list[Path],
) -> None:
    parts = [virtual(path) for path in archive_files]
    vds = xr.concat(parts, "time", data_vars="minimal", coords="minimal")
    with xr.open_mfdataset(archive_files, combine="nested", concat_dim="time") as native:
        found = xr.open_zarr(virtualds.zarr_store(vds), consolidated=False)
        xr.testing.assert_equal(found.load(), native.load())
    assert "t" not in zarr.open_group(virtualds.zarr_store(vds, drop_variables="t"), mode="r")


def test_trees_and_groups_are_stores_of_zarr(source: Path) -> None:
    ds = virtual(source)
    tree = xr.DataTree.from_dict({"/": xr.Dataset(), "/a/b": ds})
    root = zarr.open_group(virtualds.zarr_store(tree), mode="r")
    np.testing.assert_array_equal(root["a/b/lat"][:], ds["lat"].values)
    inner = zarr.open_group(virtualds.zarr_store(tree, group="a/b", drop_variables="t"), mode="r")
    assert sorted(inner.array_keys()) == ["lat", "lon", "time"]
    assert virtualds.zarr_store(ds) != virtualds.zarr_store(ds)
    with pytest.raises(ValueError, match="it is open already"):
        virtualds.zarr_store(ds, allow=source.parent)


def test_objects_are_stores_of_zarr_and_are_converted(source: Path, tmp_path: Path) -> None:
    refs = virtual(source).virtual.to_manifest(None)
    values = zarr.open_group(virtualds.zarr_store(refs), mode="r")["t"][:]
    np.testing.assert_array_equal(
        values, zarr.open_group(virtualds.zarr_store(source), mode="r")["t"][:]
    )
    virtualds.convert(refs, tmp_path / "refs.zarr")
    xr.testing.assert_identical(lazy(tmp_path / "refs.zarr").load(), lazy(source).load())


def test_references_may_be_mappings_of_any_kind(source: Path, native: xr.Dataset) -> None:
    document = virtual(source).virtual.to_manifest(None, format="kerchunk-json")
    held = {"version": 1, "refs": MappingProxyType(document["refs"])}
    xr.testing.assert_identical(lazy(held).load(), lazy(document).load())


@pytest.mark.parametrize("name", ["target_options", "ref_storage_args"])
def test_options_of_a_set_behind_a_filesystem_of_references_have_two_names(name: str) -> None:
    given = {"fo": "s3://bucket/refs.json", name: {"anon": True}}
    assert _open_references(given, None).options == StorageOptions.of({"anon": True})
