"""Metadata of Zarr stores that no writer of today writes, or that makes no sense."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from products import looped
from virtual_arrays import counted_reads
from zarr_stores import LITTLE, UTF8, ZSTD, named, v2, v3

import virtualds
from virtualds.errors import FormatError, ReadError, UnsupportedError
from virtualds.formats.zarr.data_types import DTYPES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def changed(path: Path, **changes: Any) -> Path:
    """Change the metadata of the array of a store."""
    file = next(f for f in (path / "a/.zarray", path / "a/zarr.json") if f.exists())
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return path


# ---------------------------------------------------------------------- Zarr v2


def by_hand(path: Path, dtype: Any, fill: Any, data: bytes, **more: Any) -> Any:
    """Write an array of two chunks, of which the first is there, and read it."""
    (path / "a").mkdir(parents=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    (path / "a/.zarray").write_text(json.dumps(v2(dtype, fill, (2,), (1,), **more).array))
    (path / "a/0").write_bytes(data)
    return virtualds.open_virtual_dataset(path, decode_cf=False).a


def test_records_hold_arrays_and_records(tmp_path: Path) -> None:
    kind = [["r", "|u1"], ["z", "<f4", [2, 2]], ["bar", [["baz", ">f4"], ["qux", "<i4", [3]]]]]
    dtype = np.dtype(
        [("r", "u1"), ("z", "<f4", (2, 2)), ("bar", [("baz", ">f4"), ("qux", "<i4", (3,))])]
    )
    raw = bytes(range(dtype.itemsize))
    fill = bytes(range(100, 100 + dtype.itemsize))
    found = by_hand(tmp_path, kind, base64.b64encode(fill).decode(), raw)
    assert found.dims == ("dim_2",)
    expected = np.frombuffer(raw + fill, dtype)
    for name in ("r", "z"):
        np.testing.assert_array_equal(found.values[name], expected[name])
    for name in ("baz", "qux"):
        np.testing.assert_array_equal(found.values["bar"][name], expected["bar"][name])


FILLS: dict[str, tuple[Any, Any, bytes, Any]] = {
    "zero for bytes": ("|S2", 0, b"ab", b""),
    "zero for letters": ("<U1", 0, b"a\0\0\0", ""),
    "zero for records": ([["x", "<i2"]], 0, b"\1\0", (0,)),
    "zero for raw bytes": ("|V2", 0, b"ab", b"\0\0"),
    "NaN in both parts": ("<c8", ["NaN", "-Infinity"], bytes(8), complex(np.nan, -np.inf)),
    "no time": ("<M8[s]", "NaT", bytes(8), np.datetime64("NaT", "s")),
    "false for a number": ("<i2", False, b"\1\0", 0),
    "base64 that is short": ("|S4", "YQ==", b"abcd", b"a"),
}


@pytest.mark.parametrize("name", FILLS)
def test_spellings_of_fill_values(tmp_path: Path, name: str) -> None:
    dtype, fill, data, expected = FILLS[name]
    found = by_hand(tmp_path, dtype, fill, data).values[1]
    np.testing.assert_equal(
        found.tobytes() if dtype == "|V2" else found.tolist(),
        (None if isinstance(expected, np.datetime64) else expected),
    )


def test_attributes_and_dimensions_may_be_absent(tmp_path: Path) -> None:
    found = by_hand(tmp_path, "<i2", None, b"\7\0")
    assert found.attrs == {} and found.values.tolist() == [7, 0]


DAMAGED_V2: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an unknown order": ({"order": "K"}, FormatError, "order 'K'"),
    "an unknown separator": ({"dimension_separator": "-"}, FormatError, "separator '-'"),
    "a length that is no integer": ({"shape": [7.0, 10]}, FormatError, r"shape \[7.0, 10\]"),
    "a dtype that is not closed": ({"dtype": "<f4,("}, FormatError, "<f4,"),
    "a dtype of no bytes": ({"dtype": "<U0", "fill_value": None}, FormatError, "no bytes"),
    "no dtype": ({"dtype": "<q9"}, FormatError, "<q9"),
    "text for a number": ({"fill_value": "many"}, FormatError, "many"),
    "a long fill value": ({"dtype": "|S1", "fill_value": "YWJj"}, FormatError, "3 bytes"),
    "no base64": ({"dtype": "|S4", "fill_value": "?"}, FormatError, "fill_value"),
    "an unknown filter": ({"filters": [{"id": "magic"}]}, UnsupportedError, "magic"),
    "pickles": ({"dtype": "|O", "filters": [{"id": "pickle"}]}, UnsupportedError, "pickle"),
    "json2": ({"dtype": "|O", "filters": [{"id": "json2"}]}, UnsupportedError, "json2"),
    "objects in fields": (
        {"dtype": [["a", "<i4"], ["b", "|O"]]},
        FormatError,
        "field holds Python",
    ),
    "objects in a field of text": ({"dtype": "i4, O"}, FormatError, "field holds Python"),
    "objects without filters": ({"dtype": "|O"}, UnsupportedError, "None"),
    "ragged arrays": ({"dtype": "|O", "filters": [{"id": "vlen-array"}]}, UnsupportedError, "vlen"),
}


@looped("name", DAMAGED_V2)
def test_invalid_metadata_of_version_2_are_named(tmp_path: Path, name: str) -> None:
    changes, error, message = DAMAGED_V2[name]
    v2("<i4", 0).write(tmp_path / "s")
    with pytest.raises(error, match=message) as caught:
        virtualds.open_virtual_dataset(changed(tmp_path / "s", **changes))
    assert "variable 'a' of" in str(caught.value)


@pytest.mark.parametrize("spelled", [[7.0, 10], [True, 10]], ids=str)
def test_a_length_that_equals_an_integer_is_none(tmp_path: Path, spelled: Any) -> None:
    """Whatever a sound store has left in a cache."""
    for name, store in {"v2": v2("<i4", 0), "v3": v3("int32", 0)}.items():
        store.write(tmp_path / name)
        virtualds.open_virtual_dataset(tmp_path / name)
        shape = [int(spelled[0]), 10]
        virtualds.open_virtual_dataset(changed(tmp_path / name, shape=shape), on_error="keep")
        with pytest.raises(FormatError, match="shape"):
            virtualds.open_virtual_dataset(changed(tmp_path / name, shape=spelled))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ["..", "b/../../a", "."])
def test_names_do_not_lead_out_of_a_store(tmp_path: Path, version: int, name: str) -> None:
    store = (v2("<i4", 0) if version == 2 else v3("int32")).array
    if version == 2:
        document: Any = {"zarr_consolidated_format": 1, "metadata": {f"{name}/.zarray": store}}
    else:
        document = {"zarr_format": 3, "node_type": "group"}
        document |= {"consolidated_metadata": {"metadata": {name: store}}}
    (tmp_path / (".zmetadata" if version == 2 else "zarr.json")).write_text(json.dumps(document))
    with pytest.raises(FormatError, match="not a name"):
        virtualds.open_virtual_dataset(tmp_path)
    v2("<i4", 0).write(tmp_path / "s")
    with pytest.raises(ValueError, match="no part of a path"):
        virtualds.open_virtual_dataset(tmp_path / "s", group=f"x/{name}/..")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("group", ["a/b", "/a//b/", "a\\b", "\\a\\\\b"])
def test_paths_of_groups_are_normalised(tmp_path: Path, version: int, group: str) -> None:
    xr.Dataset({"v": ("x", np.arange(3))}).to_zarr(
        tmp_path / "s", group="a/b", zarr_format=version, consolidated=False
    )
    assert virtualds.open_virtual_dataset(tmp_path / "s", group=group).v.values.tolist() == [
        0,
        1,
        2,
    ]


# ---------------------------------------------------------------------- Zarr v3


def test_groups_without_metadata_are_implied(tmp_path: Path) -> None:
    v3("int32", 5).write(tmp_path / "s/deep/down")
    (tmp_path / "s/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    found = virtualds.open_virtual_dataset(tmp_path / "s", group="deep/down")
    assert found.a.shape == (7, 10)


DAMAGED_V3: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an extension": ({"magic": {"name": "x"}}, UnsupportedError, "'magic'"),
    "a storage transformer": ({"storage_transformers": [{"name": "x"}]}, UnsupportedError, "'x'"),
    "a grid": ({"chunk_grid": {"name": "hexagons"}}, UnsupportedError, "hexagons"),
    "a data type": ({"data_type": "int7"}, UnsupportedError, "int7"),
    "keys": ({"chunk_key_encoding": {"name": "hashed"}}, UnsupportedError, "hashed"),
    "a separator": ({"chunk_key_encoding": named("v2", separator="-")}, FormatError, "'-'"),
    "a codec": ({"codecs": [LITTLE, {"name": "magic"}]}, UnsupportedError, "magic"),
    "a codec that makes bytes": ({"codecs": [{"name": "vlen-array"}]}, UnsupportedError, "vlen-"),
    "strings through bytes": ({"data_type": "string", "fill_value": ""}, UnsupportedError, "vlen"),
    "strings filtered": (
        {"data_type": "string", "fill_value": "", "codecs": [{"name": "numcodecs.delta"}, UTF8]},
        UnsupportedError,
        "delta",
    ),
    "a number for a string": (
        {"data_type": "string", "fill_value": 3, "codecs": [UTF8]},
        FormatError,
        "not a string",
    ),
}


@looped("name", DAMAGED_V3)
def test_unknown_metadata_of_version_3_are_named(tmp_path: Path, name: str) -> None:
    changes, error, message = DAMAGED_V3[name]
    v3("int32", 0).write(tmp_path / "s")
    with pytest.raises(error, match=message) as caught:
        virtualds.open_virtual_dataset(changed(tmp_path / "s", **changes))
    assert "variable 'a' of" in str(caught.value)


def test_a_transformer_that_need_not_be_understood_is_passed_over(tmp_path: Path) -> None:
    v3("int32", 0).write(tmp_path / "s")
    transformer = {"name": "hint", "must_understand": False}
    changed(tmp_path / "s", storage_transformers=[transformer])
    assert virtualds.open_virtual_dataset(tmp_path / "s").a.values[1, 2] == 12


def test_a_rectilinear_grid(tmp_path: Path) -> None:
    grid = named("rectilinear", kind="inline", chunk_shapes=[[3, 4], [[4, 2], 2]])
    v3("uint8", 9, {"name": "bytes"}).write(tmp_path / "s")
    shutil_chunks = tmp_path / "s/a/c"
    for file in [f for f in shutil_chunks.rglob("*") if f.is_file()]:
        file.unlink()
    values = np.arange(70, dtype="u1").reshape(7, 10)
    cuts = [slice(0, 3), slice(3, 7)], [slice(0, 4), slice(4, 8), slice(8, 10)]
    for i, rows in enumerate(cuts[0]):
        for j, columns in enumerate(cuts[1]):
            (shutil_chunks / str(i)).mkdir(exist_ok=True)
            (shutil_chunks / str(i) / str(j)).write_bytes(values[rows, columns].tobytes())
    changed(tmp_path / "s", chunk_grid=grid)
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(tmp_path / "s").a, values)


# ---------------------------------------------------------------------- strings of varying length

STRINGS: dict[str, tuple[Any, str]] = {
    "v2": (v2("|O", None, filters=[{"id": "vlen-utf8"}]), "a/0.1"),
    "v3": (v3("string", "", UTF8, ZSTD), "a/c/0/1"),
}


@pytest.mark.parametrize("name", STRINGS)
def test_many_strings_are_read_on_demand(tmp_path: Path, name: str) -> None:
    store, _ = STRINGS[name]
    store.write(tmp_path / "s")
    with virtualds.set_options(small_variable=0), counted_reads() as read:
        found = virtualds.open_virtual_dataset(tmp_path / "s")
    # xarray looks at the first value, whether it is a date
    assert len(read.ranges) <= 1
    with counted_reads() as read:
        assert found.a.isel(y=1, x=6).values == "ü16"
    assert len(read.ranges) == 1
    expected = zarr.open_array(tmp_path / "s/a", mode="r")[...].astype(object)
    np.testing.assert_array_equal(
        found.a.isel(y=[5, 0, 2], x=slice(1, None, 4)), expected[[5, 0, 2], 1::4]
    )
    np.testing.assert_array_equal(found.a, expected)


def _no_data(data: bytes) -> bytes:
    return b""


def _other_count(data: bytes) -> bytes:
    return bytes([99]) + data[1:]


def _cut(data: bytes) -> bytes:
    return data[:-3]


@pytest.mark.parametrize("damage", [_other_count, _cut, _no_data])
@pytest.mark.parametrize("name", STRINGS)
def test_damaged_strings_are_an_error(tmp_path: Path, name: str, damage: Any) -> None:
    store, chunk = STRINGS[name]
    store.write(tmp_path / "s")
    file = tmp_path / "s" / chunk
    file.write_bytes(damage(file.read_bytes()))
    with virtualds.set_options(small_variable=0), pytest.raises((ReadError, FormatError)):
        virtualds.open_virtual_dataset(tmp_path / "s").load()


def test_strings_that_are_gone_are_an_error(tmp_path: Path) -> None:
    store, chunk = STRINGS["v3"]
    store.write(tmp_path / "s")
    with virtualds.set_options(small_variable=0):
        found = virtualds.open_virtual_dataset(tmp_path / "s")
    (tmp_path / "s" / chunk).unlink()
    with pytest.raises(ReadError, match="c/0/1"):
        found.load()


BYTES = {
    "v2": v2("|O", base64.b64encode(b"?").decode(), (2,), (1,), filters=[{"id": "vlen-bytes"}]),
    "v3": v3("variable_length_bytes", "Pw==", {"name": "vlen-bytes"}, shape=(2,), chunks=(1,)),
    "v3 as numbers": v3("bytes", [63], {"name": "vlen-bytes"}, shape=(2,), chunks=(1,)),
}


@pytest.mark.parametrize("name", BYTES)
def test_byte_strings_are_read_and_written(tmp_path: Path, name: str) -> None:
    store = BYTES[name]
    root = tmp_path / "s"
    (root / "a/c").mkdir(parents=True)
    (root / ("zarr.json" if store.version == 3 else ".zgroup")).write_text(
        json.dumps({"zarr_format": store.version, "node_type": "group"})
    )
    (root / "a" / ("zarr.json" if store.version == 3 else ".zarray")).write_text(
        json.dumps(store.array)
    )
    data = numcodecs.VLenBytes().encode(np.array([b"\xff\0x"], object))
    (root / "a" / ("c/0" if store.version == 3 else "0")).write_bytes(data)
    found = virtualds.open_virtual_dataset(root, decode_cf=False)
    assert found.a.values.tolist() == [b"\xff\0x", b"?"]
    found.a.attrs.clear()
    for suffix in (".json", ".virtual.zarr", ".parquet"):
        found.virtual.to_manifest(tmp_path / f"refs{suffix}")
        again = virtualds.open_virtual_dataset(tmp_path / f"refs{suffix}")
        assert again.a.values.tolist() == [b"\xff\0x", b"?"]


def test_the_dtype_says_what_the_objects_are() -> None:
    assert xr.coding.strings.check_vlen_dtype(DTYPES["vlen-utf8"]) is str
