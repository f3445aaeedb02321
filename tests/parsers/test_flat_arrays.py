"""Arrays of numpy, of safetensors and of flat files are what the native libraries read."""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import xarray as xr
from counting_server import counting_server
from effort import times
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from products import looped

import virtualds
from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.flat_arrays import MAX_HEADER, parse_numpy_header

RNG = np.random.default_rng(0)
PAIR = np.dtype([("level", ">i2"), ("value", "<f8"), ("name", "S3")])
ARRAYS: dict[str, Any] = {
    "floats": RNG.normal(size=(4, 5, 6)),
    "big-endian": RNG.normal(size=(4, 5)).astype(">f4"),
    "fortran": np.asfortranarray(RNG.normal(size=(4, 5, 6)).astype("f4")),
    "scalar": np.array(3.5),
    "empty": np.zeros((0, 3), "i4"),
    "bool": RNG.normal(size=7) > 0,
    "complex": RNG.normal(size=3) * (1 + 2j),
    "bytes": np.array([b"a", b"bcd"]),
    "half": RNG.normal(size=9).astype("f2"),
    "structured": np.array([(1, 2.5, b"abc"), (3, 4.5, b"d")], PAIR),
    "fortran structured": np.asfortranarray(np.zeros((2, 3), PAIR)),
    "dates": np.array(["2001-01-01", "NaT"], "M8[s]"),
    "large": RNG.normal(size=(600, 700)),
}


def saved(path: Path, array: Any, version: tuple[int, int] | None = None) -> Path:
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, version)
    return path


def test_single_bytes_are_not_joined(tmp_path: Path) -> None:
    """numpy does not; xarray joins them in netCDF along an axis that only they have."""
    letters = np.array([list("abc"), list("def")], "S1")
    saved(tmp_path / "a.npy", letters)
    np.savez(tmp_path / "a.npz", array=letters, x=letters[0])
    letters.tofile(tmp_path / "a.bin")
    flat = virtualds.open_flat(
        tmp_path / "a.bin", dtype="S1", shape=(2, 3), dims=("y", "x"), name="array"
    )
    opened = [virtualds.open_virtual_dataset(tmp_path / f"a.{end}") for end in ("npy", "npz")]
    for number, vds in enumerate((*opened, flat)):
        assert vds.virtual.arrays.keys() == set(vds.data_vars)
        np.testing.assert_array_equal(vds["array"].values, letters, strict=True)
        for suffix in (".zarr", ".json", ".parquet"):
            vds.virtual.to_manifest(tmp_path / f"{number}{suffix}")
            found = xr.open_dataset(tmp_path / f"{number}{suffix}", engine="virtual")
            np.testing.assert_array_equal(found["array"].values, letters, strict=True)


@pytest.mark.filterwarnings("ignore:Stored array in format")
@looped("version", [None, (2, 0), (3, 0)])
@looped("name", ARRAYS)
def test_an_npy_file_is_what_numpy_reads(name: str, version: Any, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", ARRAYS[name], version)
    found = virtualds.open_virtual_dataset(path, decode_cf=False, loadable_variables=[])
    expected = np.load(path)
    assert found.array.dims == tuple(f"dim_{n}" for n in range(expected.ndim))
    assert found.array.shape == expected.shape
    np.testing.assert_array_equal(found.array.values, expected)
    assert found.array.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")


@looped("suffix", [".json", ".parquet", ".zarr"])
@looped("name", ["floats", "big-endian", "fortran", "large", "empty"])
def test_an_npy_file_goes_through_every_format(name: str, suffix: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", ARRAYS[name])
    virtualds.open_virtual_dataset(path).virtual.to_manifest(tmp_path / f"refs{suffix}")
    with xr.open_dataset(tmp_path / f"refs{suffix}", engine="virtual") as found:
        np.testing.assert_array_equal(found.array, np.load(path))


def test_part_of_an_npy_file_is_read_as_such(tmp_path: Path) -> None:
    saved(tmp_path / "a.npy", ARRAYS["large"])
    with counting_server(tmp_path) as (url, counts):
        found = virtualds.open_virtual_dataset(f"{url}/a.npy")
        before = counts.sent
        np.testing.assert_array_equal(found.array[400:402].values, ARRAYS["large"][400:402])
        assert counts.of("a.npy") == 2
        assert counts.sent - before < 2**17


def test_objects_are_refused_by_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, "a", None], object), allow_pickle=True)
    with pytest.raises(UnsupportedError, match=r"(?s)Python objects.*drop_variables"):
        virtualds.open_virtual_dataset(tmp_path / "a.npy")


def test_a_truncated_npy_file_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", ARRAYS["floats"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"reaches to byte \d+, and the file has \d+"):
        virtualds.open_virtual_dataset(path)


SAVES = pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
MANY = {name: array for name, array in ARRAYS.items() if name != "dates"}


@SAVES
def test_an_npz_file_has_a_variable_for_each_array(save: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save(path, **MANY)
    found = virtualds.open_virtual_dataset(path, decode_cf=False, loadable_variables=[])
    with np.load(path) as expected:
        assert set(found.variables) == set(expected.files)
        for name in expected.files:
            np.testing.assert_array_equal(found[name].values, expected[name])
        again = pickle.loads(pickle.dumps(found))
        np.testing.assert_array_equal(again["large"][400:402], expected["large"][400:402])
    assert found["floats"].dims == ("floats_dim_0", "floats_dim_1", "floats_dim_2")
    assert {file.url for file in found["large"].data.sources} == {path.as_uri()}


@SAVES
def test_an_npz_file_on_a_server_takes_few_requests(save: Any, tmp_path: Path) -> None:
    save(tmp_path / "a.npz", a=ARRAYS["floats"], b=ARRAYS["large"], c=ARRAYS["half"])
    with counting_server(tmp_path) as (url, counts):
        found = virtualds.open_virtual_dataset(f"{url}/a.npz", loadable_variables=[])
        # its beginning, its end, and what is at the beginning of three members
        assert counts.of("a.npz") <= 8
        np.testing.assert_array_equal(found.c, ARRAYS["half"])


@SAVES
@pytest.mark.parametrize(("length", "requests"), [(5_000, 8), (50_000, 24)])
def test_the_headers_of_many_members_come_together(
    length: int, requests: int, save: Any, tmp_path: Path
) -> None:
    arrays = {f"v{n}": np.arange(length, dtype="f8") + n for n in range(20)}
    save(tmp_path / "a.npz", **arrays)
    with counting_server(tmp_path) as (url, counts):
        found = virtualds.open_virtual_dataset(f"{url}/a.npz", loadable_variables=[])
        # small members are read along, of large ones the beginning is asked for
        assert counts.of("a.npz") <= requests
        np.testing.assert_array_equal(found.v7, arrays["v7"])


def test_one_array_of_objects_does_not_cost_the_others(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.arange(4), b=np.array([None], object))
    with pytest.raises(UnsupportedError, match="Python objects"):
        virtualds.open_virtual_dataset(tmp_path / "a.npz")
    with pytest.warns(UserWarning, match="b: values of dtype object"):
        found = virtualds.open_virtual_dataset(tmp_path / "a.npz", on_error="skip")
    assert list(found.variables) == ["a"]
    found = virtualds.open_virtual_dataset(tmp_path / "a.npz", drop_variables="b")
    assert found.a.values.tolist() == [0, 1, 2, 3]


def test_an_npz_file_with_other_members_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        buffer = io.BytesIO()
        np.save(buffer, np.arange(3))
        archive.writestr("a.npy", buffer.getvalue())
        archive.writestr("README", b"hello")
    with pytest.raises(FormatError, match=r"'README' among its arrays"):
        virtualds.open_virtual_dataset(tmp_path / "a.npz")
    found = virtualds.open_virtual_dataset(f"zip://a.npy::{tmp_path}/a.npz")
    assert found.array.values.tolist() == [0, 1, 2]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Stored array in format")
@settings(max_examples=times(100))
@given(st.data())
def test_headers_of_any_dtype_are_understood(data: st.DataObject) -> None:
    dtype = data.draw(
        npst.scalar_dtypes() | npst.array_dtypes(allow_subarrays=True) | npst.byte_string_dtypes()
    )
    shape = data.draw(npst.array_shapes(min_dims=0, min_side=0))
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.zeros(shape, dtype, order="F"))
    raw = buffer.getvalue()
    found = parse_numpy_header(raw, "it")
    assert (found.dtype, found.shape) == (dtype, shape)
    assert found.offset == len(raw) - np.zeros(shape, dtype).nbytes


SOUND = io.BytesIO()
np.save(SOUND, np.zeros((3, 4), PAIR))


@settings(max_examples=times(100))
@given(st.data())
def test_a_damaged_header_is_an_error(data: st.DataObject) -> None:
    raw = bytearray(SOUND.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 127))] = data.draw(st.integers(0, 255))
    try:
        found = parse_numpy_header(bytes(raw), "it")
    except FormatError as error:
        assert "it: " in str(error)
    else:
        assert isinstance(found.shape, tuple)


@pytest.mark.parametrize("text", ["(" * 9000, "-" * 9000, "{" * 9000, "[" * 200 + "]" * 200])
def test_python_that_is_nested_without_end_is_an_error(text: str) -> None:
    raw = b"\x93NUMPY\2\0" + struct.pack("<I", len(text)) + text.encode()
    with pytest.raises(FormatError, match="its header"):
        parse_numpy_header(raw, "it")


def test_a_header_without_end_is_not_read() -> None:
    raw = b"\x93NUMPY\2\0" + struct.pack("<I", 2**32 - 1)
    with pytest.raises(FormatError, match=f"more than the {MAX_HEADER}"):
        parse_numpy_header(raw, "it")


# ---------------------------------------------------------------------- safetensors

TENSORS: dict[str, Any] = {
    kind: (RNG.normal(size=(3, 4)) * 50).astype(kind)
    for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")
} | {"scalar": np.array(2.5), "none": np.zeros((0, 2), "f4"), "layer.0.weight": np.ones(3, "f4")}


def test_safetensors_are_what_their_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(TENSORS, path, metadata={"format": "np"})
    found = virtualds.open_virtual_dataset(path, loadable_variables=[])
    assert found.attrs == {"format": "np"}
    expected = safetensors.numpy.load_file(path)
    assert set(found.variables) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name].values, tensor)


def _tensors(path: Path, header: bytes, data: bytes = bytes(64)) -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


TENSOR = b'{"a":{"dtype":"%s","shape":%s,"data_offsets":%s}}'
DAMAGED = {
    "of another type": (
        TENSOR % (b"BF16", b"[2]", b"[0,4]"),
        UnsupportedError,
        "(?s)BF16.*open_flat",
    ),
    "too long": (TENSOR % (b"F32", b"[20]", b"[0,80]"), FormatError, "reaches to byte"),
    "of another length": (TENSOR % (b"F32", b"[2]", b"[0,4]"), FormatError, "has 4 bytes"),
    "negative": (TENSOR % (b"F32", b"[-2]", b"[0,8]"), FormatError, "is not a shape"),
    "of a float shape": (TENSOR % (b"F32", b"[2.0]", b"[0,8]"), FormatError, "is not a shape"),
    "too long for an axis": (
        TENSOR % (b"F32", b"[4611686018427387904,0]", b"[0,0]"),
        FormatError,
        "is not a shape",
    ),
    "turned": (TENSOR % (b"F32", b"[2]", b"[8,0]"), FormatError, "is described as"),
    "no tensor": (b'{"a":5}', FormatError, "is described as"),
    "no JSON": (b'{"a', FormatError, "not JSON"),
    "huge": (TENSOR % (b"F32", b"[4611686018427387903,9]", b"[0,8]"), FormatError, "reaches"),
}


@looped("name", DAMAGED)
def test_impossible_tensors_are_refused_by_name(name: str, tmp_path: Path) -> None:
    header, kind, message = DAMAGED[name]
    with pytest.raises(kind, match=message):
        virtualds.open_virtual_dataset(_tensors(tmp_path / "a.safetensors", header))


def test_tensors_that_share_bytes_are_refused_and_others_read(tmp_path: Path) -> None:
    """Offset and length agree, and the offset is that of another tensor."""
    header = {
        name: {"dtype": "U8", "shape": [3], "data_offsets": [start, start + 3]}
        for name, start in {"a": 0, "b": 2, "c": 5}.items()
    }
    path = _tensors(tmp_path / "a.safetensors", json.dumps(header).encode())
    with pytest.raises(FormatError, match="shares bytes with tensor 'b'") as caught:
        virtualds.open_virtual_dataset(path)
    assert "shares bytes with tensor 'a'" in str(caught.value.__notes__)
    with pytest.warns(UserWarning, match="could not be read"):
        found = virtualds.open_virtual_dataset(path, on_error="skip")
    assert list(found) == ["c"]


def test_a_safetensors_header_beyond_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(struct.pack("<Q", 5000) + b'{"a"')
    with pytest.raises(FormatError, match="truncated or damaged"):
        virtualds.open_virtual_dataset(tmp_path / "a")


# ---------------------------------------------------------------------- flat files


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "u1", ">i2"])
def test_a_flat_file_is_read_as_declared(order: Any, dtype: str, tmp_path: Path) -> None:
    values = (RNG.normal(size=(4, 5, 6)) * 9).astype(dtype)
    path = tmp_path / "a.bin"
    path.write_bytes(b"head" + values.tobytes(order) + b"tail")
    found = virtualds.open_flat(
        path, dtype=dtype, shape=(4, 5, 6), offset=4, order=order, dims=("z", "y", "x"), name="v"
    )
    assert found.v.dims == ("z", "y", "x")
    np.testing.assert_array_equal(found.v.values, values)
    np.testing.assert_array_equal(found.v[1:3, 2].values, values[1:3, 2])


def test_flat_files_are_combined_and_written(tmp_path: Path) -> None:
    for year in range(3):
        np.full((2, 3), year, ">i2").tofile(tmp_path / f"{year}.bin")
    parts = [
        virtualds.open_flat(tmp_path / f"{year}.bin", dtype=">i2", shape=(-1, 3), dims=("t", "x"))
        for year in range(3)
    ]
    xr.concat(parts, "t").virtual.to_manifest(tmp_path / "refs.json")
    with xr.open_dataset(tmp_path / "refs.json", engine="virtual") as found:
        assert found.array.values[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_flat_file_in_an_archive_is_opened(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.bin", np.arange(5, dtype="<i4").tobytes())
    found = virtualds.open_flat(f"zip://a.bin::{tmp_path}/a.zip", dtype="<i4", shape=-1, dims="x")
    assert found.array.values.tolist() == [0, 1, 2, 3, 4]


def test_a_part_of_a_deflated_member_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.bin", bytes(100))
    with pytest.raises(UnsupportedError, match="compressed as a whole by deflate"):
        virtualds.open_flat(f"zip://a.bin::{tmp_path}/a.zip", dtype="<i4", shape=9, dims="x")


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "too long": ({"shape": 6}, FormatError, "reaches to byte 24, and the file has 20"),
    "no whole number": ({"shape": (-1, 3)}, FormatError, "not a whole number of 12"),
    "two open axes": ({"shape": (-1, -1)}, ValueError, "one of them may be -1"),
    "a length below 0": ({"shape": (-2,)}, ValueError, "at least 0"),
    "an offset below 0": ({"shape": 2, "offset": -4}, ValueError, "offset -4"),
    "other names": ({"shape": 5, "dims": ("a", "b")}, ValueError, "give every axis a name"),
    "one name twice": ({"shape": (5, 1), "dims": ("a", "a")}, ValueError, "give every axis a name"),
    "another order": ({"shape": 5, "order": "A"}, ValueError, "give 'C' or 'F'"),
    "objects": ({"shape": 2, "dtype": "O"}, UnsupportedError, "Python objects"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_impossible_flat_files_are_refused(name: str, tmp_path: Path) -> None:
    how, kind, message = MISTAKES[name]
    (tmp_path / "a.bin").write_bytes(bytes(20))
    with pytest.raises(kind, match=message):
        virtualds.open_flat(tmp_path / "a.bin", **({"dtype": "<i4"} | how))


def test_a_missing_flat_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        virtualds.open_flat(tmp_path / "a.bin", dtype="<i4", shape=5)


def test_an_empty_file_is_an_array_without_elements(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"")
    assert virtualds.open_flat(path, dtype="i1", shape=-1, dims="x").sizes == {"x": 0}
