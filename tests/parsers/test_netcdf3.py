"""Files of the classic formats are read as the netCDF library reads them, or refused."""

import os
import pickle
import struct
import tempfile
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from effort import times
from hypothesis import given, settings
from hypothesis import strategies as st
from products import looped
from scipy.io import netcdf_file

import virtualds
from virtualds.errors import FormatError, ReadError, VirtualdsError
from virtualds.parsers.netcdf3 import (
    MAX_LISTED_RECORDS,
    IncompleteHeader,
    NetCDF3Header,
    parse_header,
)
from virtualds.stores.block_cache import FIRST_PAGES, PAGE_SIZE

FORMS = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")
HOW: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
MILLION = 1_000_000
forms = pytest.mark.parametrize("form", FORMS)


def write(path: Path, form: str = FORMS[0], records: int = 4, attribute: str = "") -> Path:
    """Two record variables, of which one is padded, and one without records."""
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        file.note = attribute
        file.createVariable("fixed", "f8", ("x",))[:] = [1, 2, 3]
        v = file.createVariable("v", "f4", ("time", "x"))
        w = file.createVariable("w", "i2", ("time", "x"))
        if records:
            v[:] = np.arange(3 * records).reshape(records, 3)
            w[:] = np.arange(3 * records).reshape(records, 3)
    return path


def native(path: Path) -> xr.Dataset:
    with xr.open_dataset(path, engine="netcdf4") as found:
        return found.load()


def assert_native(path: Path) -> xr.Dataset:
    found = virtualds.open_virtual_dataset(path)
    xr.testing.assert_identical(found.virtual.load(), native(path))
    return found


def test_a_file_of_scipy_is_what_xarray_reads_with_scipy(tmp_path: Path) -> None:
    write(tmp_path / "a.nc")
    with xr.open_dataset(tmp_path / "a.nc", engine="scipy") as expected:
        found = virtualds.open_virtual_dataset(tmp_path / "a.nc")
        xr.testing.assert_identical(found.virtual.load(), expected.load())
        for name in expected.variables:
            assert found[name].encoding["dtype"] == expected[name].encoding["dtype"]


# ---------------------------------------------------------------------- records


def test_a_record_is_a_chunk_and_a_plain_variable_is_one(tmp_path: Path) -> None:
    found = assert_native(write(tmp_path / "a.nc", records=5))
    assert {name: found[name].data.nchunks for name in ("fixed", "v", "w")} == {
        "fixed": 1,
        "v": 5,
        "w": 5,
    }


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A million records of four variables; the last record is 7, all others are zeros."""
    path = tmp_path_factory.mktemp("million") / "a.nc"
    with netcdf_file(path, "w", version=2) as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        for n in range(4):
            file.createVariable(f"v{n}", "f8", ("time", "x"))[:] = np.full((1, 3), 7.0)
    raw = path.read_bytes()
    record = 4 * 3 * 8
    head, last = raw[:-record], raw[-record:]
    with path.open("wb") as handle:
        handle.write(head[:4] + struct.pack(">I", MILLION) + head[8:])
        handle.truncate(len(head) + MILLION * record)
        handle.seek(-record, 2)
        handle.write(last)
    return path


def test_a_million_records_take_no_memory(million: Path, tmp_path: Path) -> None:
    """Neither when the file is opened and cropped, nor when a record is read, nor in a pickle."""

    def use(path: Path) -> xr.Dataset:
        found = virtualds.open_virtual_dataset(path, loadable_variables=[])
        cropped = found.isel(time=slice(10, None))
        assert cropped.isel(time=-1)[names[0]].values.tolist() == expected
        assert cropped[names[1]].isel(time=5, x=slice(0, 2)).load().shape == (2,)
        return cropped

    names, expected = ["v", "w"], [45, 46, 47]
    use(write(tmp_path / "small.nc", records=16))
    names, expected = ["v0", "v3"], [7, 7, 7]
    tracemalloc.start()
    try:
        found = use(million)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**19
    assert found.sizes["time"] == MILLION - 10
    assert found.virtual.nbytes < 1000
    assert len(pickle.dumps(found)) < 20_000


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
def test_records_that_are_computed_are_written_and_joined(suffix: str, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.nc", records=MAX_LISTED_RECORDS + 1 + n) for n in range(2)]
    opened = [virtualds.open_virtual_dataset(path) for path in paths]
    assert not any(ds.v.data.manifest.is_loaded for ds in opened)
    joined = xr.concat(opened, "time", **HOW)
    assert len(joined.v.data.fragments) == 1
    expected = xr.concat([native(path) for path in paths], "time", **HOW)
    for number, (found, meant) in enumerate([(opened[0], native(paths[0])), (joined, expected)]):
        target = tmp_path / f"refs{number}{suffix}"
        found.virtual.to_manifest(target)
        with xr.open_dataset(target, engine="virtual") as again:
            xr.testing.assert_equal(again.load(), meant)


def test_records_in_an_archive_are_found_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", records=MAX_LISTED_RECORDS + 1)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(path, "a.nc")
    found = virtualds.open_virtual_dataset(f"zip://a.nc::{tmp_path / 'a.zip'}")
    assert not found.v.data.manifest.is_loaded
    xr.testing.assert_identical(found.virtual.load(), native(path))


@pytest.mark.parametrize("kind", ["i1", "i2", "f4", "S1"])
def test_the_records_of_an_only_variable_are_not_padded(kind: str, tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w", format=FORMS[0]) as file:
        file.createDimension("time", None)
        v = file.createVariable("v", kind, ("time",))
        v[:] = np.array([b"a", b"b", b"c", b"d", b"e"]) if kind == "S1" else np.arange(5)
    assert_native(tmp_path / "a.nc")
    plain = virtualds.open_virtual_dataset(
        tmp_path / "a.nc", loadable_variables=[], decode_cf=False
    )
    assert plain.v.data.nchunks == 1


@forms
def test_uncounted_records_are_counted_by_the_size_of_the_file(form: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", form)
    expected = native(path)
    raw = bytearray(path.read_bytes())
    width = 8 if form == FORMS[2] else 4
    raw[4 : 4 + width] = b"\xff" * width
    path.write_bytes(raw)
    found = virtualds.open_virtual_dataset(path)
    xr.testing.assert_identical(found.virtual.load(), expected)
    # the bytes that pad the last variable of the last record may be absent, others may not
    path.write_bytes(raw[:-2])
    assert virtualds.open_virtual_dataset(path).sizes["time"] == 4
    path.write_bytes(raw[:-3])
    assert virtualds.open_virtual_dataset(path).sizes["time"] == 3


@forms
def test_a_record_that_is_cut_off_is_an_error_and_no_fill(form: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", form)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(FormatError, match=r"(?s)3 of 4 records.*truncated") as caught:
        virtualds.open_virtual_dataset(path)
    assert "variable 'w' of" in str(caught.value)
    with pytest.warns(UserWarning, match="truncated"):
        found = virtualds.open_virtual_dataset(path, on_error="skip")
    assert set(found.variables) == {"fixed", "v"}
    assert found.v[3].values.tolist() == [9, 10, 11]
    with pytest.warns(UserWarning, match="truncated"):
        kept = virtualds.open_virtual_dataset(path, on_error="keep")
    with pytest.raises(VirtualdsError, match="truncated"):
        kept.w.values  # noqa: B018


def test_of_values_without_records_none_are_counted(tmp_path: Path) -> None:
    with netcdf_file(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 5)
        file.createVariable("v", "f8", ("x",))[:] = np.arange(5)
    (tmp_path / "a.nc").write_bytes((tmp_path / "a.nc").read_bytes()[:-3])
    with pytest.raises(FormatError, match=r"the file has \d+\nit is truncated"):
        virtualds.open_virtual_dataset(tmp_path / "a.nc")


def test_a_variable_larger_than_its_header_can_express_is_read(tmp_path: Path) -> None:
    """Its vsize is 2**32 - 1, or less (specification, "Note on vsize")."""
    with netcdf_file(tmp_path / "small.nc", "w", version=2) as small:
        small.createDimension("x", 5)
        small.createVariable("v", "f8", ("x",))[:] = np.arange(5)
    raw = bytearray((tmp_path / "small.nc").read_bytes())
    count = 2**30 + 3
    place = raw.index(struct.pack(">i", 1) + b"x\0\0\0") + 8
    raw[place : place + 4] = struct.pack(">I", count)
    place = len(raw) - 5 * 8 - 12
    raw[place : place + 4] = b"\xff" * 4
    with (tmp_path / "large.nc").open("wb") as file:
        file.write(raw)
        file.truncate(len(raw) - 5 * 8 + count * 8)
    found = virtualds.open_virtual_dataset(tmp_path / "large.nc")
    assert found.v.shape == (count,)
    assert found.v[:6].values.tolist() == [0, 1, 2, 3, 4, 0]
    assert found.v[-1].values == 0


@forms
@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
def test_files_are_concatenated_and_written(form: str, suffix: str, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.nc", form, records=n + 2) for n in range(3)]
    found = virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="time", **HOW)
    found.virtual.to_manifest(tmp_path / f"refs{suffix}")
    expected = xr.concat([native(path) for path in paths], "time", **HOW)
    with xr.open_dataset(tmp_path / f"refs{suffix}", engine="virtual") as again:
        xr.testing.assert_equal(again.load(), expected)


def test_a_classic_file_has_no_groups(tmp_path: Path) -> None:
    write(tmp_path / "a.nc")
    with pytest.raises(FileNotFoundError, match="there is no 'b'"):
        virtualds.open_virtual_dataset(tmp_path / "a.nc", group="b")
    assert "v" in virtualds.open_virtual_dataset(tmp_path / "a.nc", group="/")


# ---------------------------------------------------------------------- over a network


@pytest.mark.parametrize(
    ("length", "requests"), [(0, 1), (FIRST_PAGES * PAGE_SIZE, 2), (5_000_000, 2)]
)
def test_a_header_on_a_server_takes_a_request_or_two(
    length: int, requests: int, tmp_path: Path
) -> None:
    write(tmp_path / "a.nc", attribute="x" * length)
    with counting_server(tmp_path) as (url, counts):
        found = virtualds.open_virtual_dataset(f"{url}/a.nc", loadable_variables=[])
        assert counts.of("a.nc") == requests
        assert counts.sent < 8 * (length + FIRST_PAGES * PAGE_SIZE)
        assert found.v[3].values.tolist() == [9, 10, 11]


# ---------------------------------------------------------------------- headers


def parsed(raw: bytes) -> NetCDF3Header:
    return parse_header(raw, "it")


NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=9
).filter(lambda name: name == name.strip())


@settings(max_examples=times(13))
@given(data=st.data())
def test_headers_of_the_netcdf_library_are_understood(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("headers") / "a.nc"
    form = data.draw(st.sampled_from(FORMS))
    kinds = ["i1", "i2", "i4", "f4", "f8", "S1"]
    kinds += ["u1", "u2", "u4", "i8", "u8"] if form == FORMS[2] else []
    sizes = data.draw(st.lists(st.integers(1, 4), max_size=3))
    with netCDF4.Dataset(path, "w", format=form) as file:
        dims = [f"d{n}" for n in range(len(sizes))]
        for name, size in zip(dims, sizes, strict=True):
            file.createDimension(name, size)
        file.createDimension("time", None)
        for n in range(data.draw(st.integers(0, 4))):
            of = tuple(data.draw(st.permutations(dims)))[: data.draw(st.integers(0, 3))]
            of = ("time", *of) if data.draw(st.booleans()) else of
            v = file.createVariable(f"v{n}", data.draw(st.sampled_from(kinds)), of)
            v.set_auto_maskandscale(False)
            v.setncattr("text", data.draw(NAMES))
            v.setncattr("numbers", np.arange(data.draw(st.integers(1, 5)), dtype="i2"))
            if "time" in of and data.draw(st.booleans()) and v.dtype.kind != "S":
                v[: data.draw(st.integers(1, 3))] = 1
    assert_native(path)


def _sound() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [write(Path(folder) / form, form, 2, "abc").read_bytes() for form in FORMS]


SOUND = _sound()


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_a_cut_header_says_how_many_bytes_it_needs(number: int) -> None:
    raw = SOUND[number]
    begin = min(v.begin for v in parsed(raw).variables)
    for length in range(4, begin - 8):
        try:
            parsed(raw[:length])
        except IncompleteHeader as error:
            assert length < error.stop <= begin


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=times(66))
@given(data=st.data())
def test_a_damaged_file_is_opened_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = bytearray(data.draw(st.sampled_from(SOUND)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(3, len(raw) - 1))] = data.draw(
            st.integers(0, 255) | st.sampled_from([0x7F, 0xFF])
        )
    raw = raw[: data.draw(st.integers(4, len(raw)) | st.just(len(raw)))]
    path = tmp_path_factory.mktemp("damaged") / "a.nc"
    path.write_bytes(raw)
    try:
        found = virtualds.open_virtual_dataset(
            path, loadable_variables=[], decode_cf=False, on_error="keep"
        )
    except (VirtualdsError, FileNotFoundError):
        return
    for variable in found.variables.values():
        if variable.size < 1000:
            with suppress(VirtualdsError):
                variable.values  # noqa: B018


def _header(*parts: Any) -> bytes:
    """A CDF-1 header: numbers take four bytes, names their length and padding."""
    out = [b"CDF\1"]
    for part in parts:
        if isinstance(part, str):
            raw = part.encode()
            out.append(struct.pack(">I", len(raw)) + raw + bytes(-len(raw) % 4))
        else:
            out.append(struct.pack(">I", part))
    return b"".join(out)


NONE = (0, 0)
DAMAGED = {
    "another tag": (_header(0, 0x0B, 1), "tag 0xb where the list of dimensions"),
    "two record dimensions": (
        _header(0, 0x0A, 2, "a", 0, "b", 0, *NONE, *NONE),
        "more than one dimension",
    ),
    "one name twice": (_header(0, 0x0A, 2, "a", 1, "a", 2, *NONE), "two dimensions are called 'a'"),
    "a negative length": (
        b"CDF\5" + struct.pack(">QIQQ4sq", 0, 0x0A, 1, 1, b"a", -4) + bytes(24),
        "a length of 18446744073709551612",
    ),
    "a length that no axis has": (
        b"CDF\5" + struct.pack(">QIQQ4sq", 0, 0x0A, 1, 1, b"a", 2**62) + bytes(24),
        "a length of 4611686018427387904",
    ),
    "records that no axis has": (
        b"CDF\5" + struct.pack(">QIQQ4sq", 2**62, 0x0A, 1, 1, b"a", 0) + bytes(24),
        "a length of 4611686018427387904",
    ),
    "another type": (
        _header(0, *NONE, 0x0C, 1, "a", 7, 1, 0, *NONE),
        "type 7, not one of 1 to 6",
    ),
    "no such dimension": (
        _header(0, 0x0A, 1, "a", 1, *NONE, 0x0B, 1, "v", 1, 5, *NONE, 4, 4, 0),
        r"dimensions \[5\], and there are only 1",
    ),
    "records within": (
        _header(0, 0x0A, 2, "a", 1, "t", 0, *NONE, 0x0B, 1, "v", 2, 0, 1, *NONE, 4, 4, 0),
        "record dimension 't', but not first",
    ),
    "an empty name": (_header(0, 0x0A, 1, "", 1, *NONE, *NONE), "the name b''"),
    "a name beyond the file": (_header(0, 0x0A, 1, 2**31), "its header needs"),
    "many items": (_header(0, 0x0A, 2**31), "its header needs"),
    "many values": (_header(0, *NONE, 0x0C, 1, "a", 6, 2**31), "its header needs"),
}


@looped("name", DAMAGED)
def test_a_damaged_header_is_an_error_that_says_where(name: str, tmp_path: Path) -> None:
    raw, message = DAMAGED[name]
    (tmp_path / "a.nc").write_bytes(raw)
    with pytest.raises(FormatError, match=message) as caught:
        virtualds.open_virtual_dataset(tmp_path / "a.nc")
    assert "a.nc: " in str(caught.value)


def test_a_missing_record_among_many_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", records=MAX_LISTED_RECORDS + 1)
    found = virtualds.open_virtual_dataset(path)
    assert found.w[::1].values.tolist() == native(path).w.values.tolist()
    os.truncate(path, path.stat().st_size - 8)
    with (
        virtualds.set_options(check_sources=False),
        pytest.raises(ReadError) as caught,
    ):
        found.w.values  # noqa: B018
    assert any(f"chunk ({MAX_LISTED_RECORDS}, 0)" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("zeros", [1, 3, 4])
def test_names_that_are_padded_with_zeros_end_at_the_first(zeros: int, tmp_path: Path) -> None:
    pad, path = "\0" * zeros, tmp_path / "a.nc"
    # a dimension, an attribute of two letters, a variable of one attribute: CDF-1
    attribute = (0x0C, 1, f"units{pad}", 2, 2, 0x6D730000)
    head = (0, 0x0A, 1, f"x{pad}", 3, *attribute, 0x0B, 1, f"v{pad}", 1, 0, *attribute, 4, 12)
    begin = len(_header(*head, 0))
    path.write_bytes(_header(*head, begin) + struct.pack(">3i", 1, 2, 3))
    found = assert_native(path)
    assert found.v.dims == ("x",)
    np.testing.assert_array_equal(found.v, [1, 2, 3])


def test_a_name_of_zeros_alone_is_damage(tmp_path: Path) -> None:
    (tmp_path / "a.nc").write_bytes(_header(0, 0x0A, 1, "\0\0", 3, *NONE, *NONE))
    with pytest.raises(FormatError, match="the name"):
        virtualds.open_virtual_dataset(tmp_path / "a.nc")
