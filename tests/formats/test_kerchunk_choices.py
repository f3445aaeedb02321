"""What kerchunk sets may be told: Zarr v3 metadata, and urls that start from the set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive
from products import looped
from range_server import range_server
from transforms import assert_identical, without_gaps
from virtual_arrays import virtual as make_virtual

import virtualds
from virtualds import UnsupportedError, VirtualdsError
from virtualds.formats.zarr.v2_arrays import _find_first_file

pytestmark = pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")


def lazy(given: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(given, engine="virtual", **options)


# ---------------------------------------------------------------------- Zarr v3 metadata

ONLY_IN_V3 = {"zarr_v3"}
"""Cases whose stored axes are permuted, for which Zarr v2 has no form."""
ONLY_IN_V2 = {"compound_types_within_others"}
"""Cases with arrays in compound types, for which Zarr v3 has no plain form."""


@looped("name", CASES, quick=len(CASES) // 4)
def test_every_case_that_v2_metadata_hold_is_held_by_v3_metadata(
    name: str, archive: Archive
) -> None:
    case = CASES[name]
    vds = virtualds.open_virtual_dataset(archive.path(name), group=case.group)
    try:
        vds.virtual.to_manifest(None, zarr_format=2)
        in_v2 = True
    except VirtualdsError:
        in_v2 = False
    try:
        refs = vds.virtual.to_manifest(None, zarr_format=3)
    except UnsupportedError:
        assert name in ONLY_IN_V2 or not in_v2
        assert name not in ONLY_IN_V3
        return
    assert name not in ONLY_IN_V2
    assert refs is not None
    json.dumps(refs, allow_nan=False)
    assert_identical(lazy(refs), without_gaps(archive.native(name)))


def test_v3_metadata_have_the_keys_of_a_zarr_store(archive_files: list[Path]) -> None:
    refs = virtualds.open_virtual_dataset(archive_files[0]).virtual.to_manifest(None, zarr_format=3)
    assert refs is not None
    keys = refs["refs"]
    assert {"zarr.json", "t/zarr.json", "t/c/0/0/0", "lat/c/0"} <= keys.keys()
    assert not [key for key in keys if ".z" in key]
    node = json.loads(keys["t/zarr.json"])
    assert (node["zarr_format"], node["dimension_names"]) == (3, ["time", "lat", "lon"])
    assert "storage_transformers" not in node


def test_groups_have_v3_metadata(archive_files: list[Path], tmp_path: Path) -> None:
    ds = virtualds.open_virtual_dataset(archive_files[0])
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"a": 1}), "/g/h": ds})
    tree.virtual.to_manifest(tmp_path / "refs.json", zarr_format=3)
    found = xr.open_datatree(tmp_path / "refs.json", engine="virtual")
    assert found.attrs == {"a": 1}
    assert_identical(found["g/h"].to_dataset(), ds.virtual.load())


@pytest.mark.parametrize("templates", [False, True])
def test_a_set_with_v3_metadata_grows_as_it_is(
    templates: bool, archive_files: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "refs.json"
    for path in archive_files:
        vds = virtualds.open_virtual_dataset(path)
        first = {"zarr_format": 3, "templates": templates} if not target.exists() else {}
        vds.virtual.to_manifest(target, append_dim="time", **first)
    document = json.loads(target.read_text())
    assert "zarr.json" in document["refs"]
    assert bool(document.get("templates")) == templates
    with xr.open_mfdataset(archive_files, combine="nested", concat_dim="time") as native:
        assert_identical(lazy(target), native.load())
    # another writer may choose v2
    virtualds.drop_sources(target, str(archive_files[1]))
    assert "zarr.json" in json.loads(target.read_text())["refs"]


def test_sources_are_compared_through_v3_metadata(
    archive_files: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "2001.nc"
    shutil.copy2(archive_files[0], path)
    refs = virtualds.open_virtual_dataset(path).virtual.to_manifest(None, zarr_format=3)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(virtualds.ReadError, match="scanned"):
        lazy(refs)["t"].load()


@pytest.mark.parametrize("codecs", [(), ({"id": "zlib", "level": 1},)], ids=["plain", "zlib"])
def test_rectilinear_chunks_are_cut_or_refused_by_name(codecs: Any, tmp_path: Path) -> None:
    parts = []
    for number, days in enumerate((31, 28)):
        (tmp_path / f"{number}.bin").write_bytes(np.arange(days, dtype="f8").tobytes())
        array = virtualds.ManifestArray.from_arrays(
            shape=(days,), chunks=(days,), dtype="f8", path=str(tmp_path / f"{number}.bin"),
            offsets=0, lengths=days * 8, codecs=codecs,
        )  # fmt: skip
        parts.append(xr.Dataset({"t": ("time", array)}))
    vds = xr.concat(parts, "time")
    if codecs:
        with pytest.raises(UnsupportedError, match="t: chunk lengths"):
            vds.virtual.to_manifest(None, zarr_format=3)
        return
    for subchunk in (None, {"time": 1}):
        refs = vds.virtual.to_manifest(None, zarr_format=3, subchunk=subchunk)["refs"]
        assert len([key for key in refs if key.startswith("t/c/")]) == 59


@pytest.mark.parametrize("given", [1, 4, "3", True])
def test_there_are_two_versions(given: Any, archive_files: list[Path], tmp_path: Path) -> None:
    vds = virtualds.open_virtual_dataset(archive_files[0])
    with pytest.raises(ValueError, match="give 2 or 3"):
        vds.virtual.to_manifest(tmp_path / "refs.json", zarr_format=given)


# ---------------------------------------------------------------------- relative urls

KINDS: dict[str, dict[str, Any]] = {
    "refs.json": {},
    "templates.json": {"templates": True},
    "v3.json": {"zarr_format": 3},
    "v3-templates.json": {"zarr_format": 3, "templates": True},
    "refs.json.gz": {},
    "refs.parquet": {},
    "refs.zarr": {},
}


@pytest.fixture
def moved(archive_files: list[Path], tmp_path: Path) -> Path:
    """A folder with ``data/2001.nc`` and ``data/2002.nc``, which is moved later."""
    (tmp_path / "here" / "data").mkdir(parents=True)
    for path in archive_files:
        shutil.copy2(path, tmp_path / "here" / "data")
    return tmp_path / "here"


def virtual(paths: list[Path]) -> xr.Dataset:
    parts = [virtualds.open_virtual_dataset(path) for path in paths]
    return xr.concat(parts, "time", data_vars="minimal", coords="minimal")


@pytest.mark.parametrize("inside", ["sets", "data", "."], ids=["beside", "among", "above"])
@pytest.mark.parametrize("name", KINDS)
def test_a_set_and_its_archive_moved_together_still_open(
    name: str, inside: str, moved: Path, archive_files: list[Path], tmp_path: Path
) -> None:
    files = sorted((moved / "data").iterdir())
    (moved / inside).mkdir(exist_ok=True)
    virtual(files).virtual.to_manifest(moved / inside / name, relative_paths=True, **KINDS[name])
    with xr.open_mfdataset(archive_files, combine="nested", concat_dim="time") as native:
        expected = native.load()
    assert_identical(lazy(moved / inside / name), expected)
    moved.rename(tmp_path / "there")
    found = lazy(tmp_path / "there" / inside / name)
    assert_identical(found, expected)
    urls = [file.url for file in found.virtual.arrays["t"].sources]
    assert urls == [f"file://{tmp_path}/there/data/{year}.nc" for year in (2001, 2002)]


@pytest.mark.parametrize("name", KINDS)
def test_a_set_that_moved_grows_by_relative_urls(name: str, moved: Path, tmp_path: Path) -> None:
    first, second = sorted((moved / "data").iterdir())
    virtual([first]).virtual.to_manifest(moved / name, relative_paths=True, **KINDS[name])
    moved.rename(tmp_path / "there")
    moved = tmp_path / "there"
    second = moved / "data" / second.name
    virtual([second]).virtual.to_manifest(moved / name, append_dim="time")
    moved.rename(tmp_path / "finally")
    found = lazy(tmp_path / "finally" / name)
    assert [file.url.rpartition("/")[0] for file in found.virtual.arrays["t"].sources] == [
        f"file://{tmp_path}/finally/data"
    ] * 2
    assert found.virtual.verify().ok
    assert found["t"].load().sizes["time"] == 24


@pytest.mark.parametrize("name", ["refs.json", "refs.parquet"])
def test_urls_can_become_relative_and_absolute_with_an_append(name: str, moved: Path) -> None:
    first, second = sorted((moved / "data").iterdir())
    virtual([first]).virtual.to_manifest(moved / name)
    virtual([second]).virtual.to_manifest(moved / name, append_dim="time", relative_paths=True)
    text = stored_text(moved / name)
    assert "./data/2001.nc" in text
    assert "file://" not in text
    assert_identical(lazy(moved / name), virtual([first, second]).virtual.load())


def stored_text(target: Path) -> str:
    """All urls of a set."""
    if target.is_file():
        return target.read_text()
    import pyarrow.parquet as pq

    found = [(target / ".zmetadata").read_text()]
    for record in target.rglob("*.parq"):
        found += map(str, pq.read_table(record)["path"].to_pylist())
    return "\n".join(found)


def test_templates_of_relative_urls_name_folders(moved: Path) -> None:
    files = sorted((moved / "data").iterdir())
    virtual(files).virtual.to_manifest(moved / "a.json", relative_paths=True, templates=True)
    assert json.loads((moved / "a.json").read_text())["templates"] == {"u0": "./data"}


def test_files_on_other_hosts_keep_their_urls(moved: Path) -> None:
    files = sorted((moved / "data").iterdir())
    vds = virtual(files).virtual.rename_paths(lambda url: url.replace("file:///", "s3://bucket/"))
    vds.virtual.to_manifest(moved / "refs.json", relative_paths=True)
    assert '"s3://bucket/' in (moved / "refs.json").read_text()


@pytest.mark.parametrize("name", KINDS)
def test_a_set_on_a_server_finds_its_neighbours(name: str, moved: Path) -> None:
    files = sorted((moved / "data").iterdir())
    virtual(files).virtual.to_manifest(moved / name, relative_paths=True, **KINDS[name])
    with range_server(moved) as (host, _):
        found = lazy(f"{host}/{name}")
        assert {file.url for file in found.virtual.arrays["t"].sources} == {
            f"{host}/data/{path.name}" for path in files
        }
        assert_identical(found, virtual(files).virtual.load())


def test_names_that_look_like_urls_are_found(moved: Path) -> None:
    odd = moved / "x::y 1%20#.nc"
    shutil.copy2(moved / "data" / "2001.nc", odd)
    virtual([odd]).virtual.to_manifest(moved / "refs.json", relative_paths=True)
    assert_identical(lazy(moved / "refs.json"), virtual([odd]).virtual.load())


@pytest.mark.parametrize("choices", [{}, {"relative_paths": True}, {"templates": True}])
def test_a_set_with_notes_as_an_object_is_read_moved_and_appended_to(
    choices: dict[str, Any], moved: Path
) -> None:
    """As versions before 0.1 have written it."""
    first, second = sorted((moved / "data").glob("*.nc"))[:2]
    target, known = moved / "refs.json", moved / "known.json"
    virtual([first]).virtual.to_manifest(target, **choices)
    virtual([first]).virtual.to_manifest(known, **choices)
    document = json.loads(target.read_text())
    document["virtualds"] = json.loads(document["virtualds"])
    target.write_text(json.dumps(document))
    for path in (target, known):
        virtual([second]).virtual.to_manifest(path, append_dim="time")
    assert target.read_bytes() == known.read_bytes()


def test_chunks_that_are_in_no_file_are_told_apart(tmp_path: Path) -> None:
    values = np.zeros(2, "f4")
    assert _find_first_file(make_virtual(values, tmp_path, inline=[0]), 0) == "an inline chunk"
    assert _find_first_file(make_virtual(values, tmp_path, missing=[0]), 0) == "a missing chunk"
