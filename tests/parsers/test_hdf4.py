"""HDF4 files: what pyhdf reads of them is what is read through references."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyhdf.V  # noqa: F401  (gives `HDF.vgstart`)
import pytest
import xarray as xr
from counting_server import counting_server
from hdf4_files import CASES, CODERS, KINDS, create, cut, put, read, split, written
from products import looped
from pyhdf.error import HDF4Error
from pyhdf.HDF import HC, HDF
from pyhdf.SD import SD, SDC

import virtualds
from virtualds import FormatError, UnsupportedError
from virtualds.arrays.array import ManifestArray
from virtualds.codecs.codec import CodecError
from virtualds.codecs.hdf import BitField, RunLength, SkippingHuffman
from virtualds.parsers import hdf4
from virtualds.parsers.hdf4.elements import (
    CHUNK,
    COMPRESSED,
    DATA,
    EXTENDED,
    EXTERNAL,
    VDATA,
    VDATA_VALUES,
    PiecewiseArray,
)
from virtualds.source_file import SourceFile


def opened(path: Path, **options: Any) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path, decode_cf=False, **options)


def assert_read(variable: Any, native: xr.Variable) -> None:
    assert variable.dtype == native.dtype
    assert variable.shape == native.shape
    assert variable.values.tobytes() == native.values.tobytes()
    assert variable.attrs.keys() == native.attrs.keys()
    for name, value in native.attrs.items():
        np.testing.assert_array_equal(variable.attrs[name], value)


@looped("name", CASES)
def test_values_types_and_attributes_are_those_of_pyhdf(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path / "a.hdf")
    ds, expected = opened(tmp_path / "a.hdf"), read(tmp_path / "a.hdf")
    assert ds.variables.keys() == expected.keys()
    for variable, native in expected.items():
        assert_read(ds[variable], native)


@looped("name", sorted(CASES.keys() - {"records_of_one_dimension"}))
def test_dimensions_are_those_of_pyhdf(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path / "a.hdf")
    ds = opened(tmp_path / "a.hdf")
    for variable, native in read(tmp_path / "a.hdf").items():
        assert ds[variable].dims == native.dims


def test_records_of_another_number_have_a_dimension_of_their_own(tmp_path: Path) -> None:
    CASES["records_of_one_dimension"](tmp_path / "a.hdf")
    ds = opened(tmp_path / "a.hdf")
    assert ds["t"].dims == ("time", "y")
    assert ds["short"].dims == ("time_short", "y")
    assert ds.encoding["unlimited_dims"] == {"time", "time_short"}


def test_attributes_of_the_file_are_those_of_the_dataset(tmp_path: Path) -> None:
    CASES["attributes"](tmp_path / "a.hdf")
    ds = opened(tmp_path / "a.hdf")
    assert ds.attrs["title"] == "a title"
    assert ds.attrs["counts"].tolist() == [1, 2, 3]
    assert ds.attrs["number"] == 0.1
    assert ds["t"].attrs["_FillValue"].dtype == np.float32


def test_scales_with_values_are_coordinates(tmp_path: Path) -> None:
    CASES["scales"](tmp_path / "a.hdf")
    ds = virtualds.open_virtual_dataset(tmp_path / "a.hdf")
    assert ds.indexes["y"].tolist() == [10.0, 20.0, 30.0, 40.0]
    assert ds["y"].attrs["units"] == "degrees_north"
    assert ds["t"].sel(y=20.0, x=3).values == ds["t"][1, 2].values


# ---------------------------------------------------------------------- scale and offset


def calibrated(path: Path, **attributes: float) -> xr.Dataset:
    """A data set that SDsetcal calibrates, or that has attributes."""

    def fill(file: SD) -> None:
        values = np.array([-100, 0, 7], "i2")
        dataset = create(file, "t", values, ("x",))
        dataset[:] = values
        if attributes:
            for name, value in attributes.items():
                dataset.attr(name).set(SDC.FLOAT64, value)
        else:
            dataset.setcal(0.01, 0.0, -15000.0, 0.0, SDC.INT16)

    written(path, fill)
    return virtualds.open_virtual_dataset(path)


def test_calibration_of_the_library_is_decoded_as_the_library_defines_it(tmp_path: Path) -> None:
    ds = calibrated(tmp_path / "a.hdf")
    np.testing.assert_allclose(ds["t"].values, [149.0, 150.0, 150.07], rtol=1e-14)
    assert ds["t"].attrs["hdf4_add_offset"] == -15000.0


def test_an_offset_of_unknown_meaning_is_not_applied(tmp_path: Path) -> None:
    ds = calibrated(tmp_path / "a.hdf", scale_factor=0.01, add_offset=-15000.0)
    assert ds["t"].values.tolist() == [-100, 0, 7]
    assert ds["t"].attrs == {"hdf4_scale_factor": 0.01, "hdf4_add_offset": -15000.0}


def test_a_scale_without_offset_means_the_same_in_hdf4_and_in_cf(tmp_path: Path) -> None:
    ds = calibrated(tmp_path / "a.hdf", scale_factor=0.5, add_offset=0.0)
    assert ds["t"].values.tolist() == [-50.0, 0.0, 3.5]


# ---------------------------------------------------------------------- references


def data_of(path: Path, name: str) -> Any:
    return hdf4.read(SourceFile(path.as_uri(), path.stat().st_size)).variables[name].data


def test_each_chunk_is_a_range_of_the_file(tmp_path: Path) -> None:
    CASES["three_axes_of_chunks"](tmp_path / "a.hdf")
    [fragment] = data_of(tmp_path / "a.hdf", "t").fragments
    assert fragment.manifest.shape == (4, 2, 1)
    assert len(fragment.manifest.dict()) == 8


def test_chunks_that_were_never_written_have_no_reference(tmp_path: Path) -> None:
    CASES["missing_chunks"](tmp_path / "a.hdf")
    [fragment] = data_of(tmp_path / "a.hdf", "filled").fragments
    assert sorted(fragment.manifest.dict()) == ["1.2", "1.3"]


def test_blocks_of_whole_records_are_chunks(tmp_path: Path) -> None:
    CASES["records_in_many_blocks"](tmp_path / "a.hdf")
    data = data_of(tmp_path / "a.hdf", "b")
    assert isinstance(data, ManifestArray)
    assert data.nchunks > 1


@pytest.mark.parametrize("coder", CODERS)
def test_encoded_values_in_several_blocks_are_read_when_needed(coder: str, tmp_path: Path) -> None:
    CASES["encoded"](tmp_path / "a.hdf")
    split(tmp_path / "a.hdf", COMPRESSED, 100)
    assert isinstance(data_of(tmp_path / "a.hdf", coder), PiecewiseArray)
    ds, native = opened(tmp_path / "a.hdf"), read(tmp_path / "a.hdf")[coder]
    assert_read(ds[coder], native)
    part = ds[coder].isel(y=slice(3, 30, 7), x=[4, 9, 2])
    assert (part.values == native.values[3:30:7][:, [4, 9, 2]]).all()
    ds.virtual.to_manifest(tmp_path / "refs.zarr", on_unsupported="rewrite")
    with xr.open_dataset(tmp_path / "refs.zarr", engine="virtual", decode_cf=False) as again:
        assert_read(again[coder], native)


def test_blocks_that_end_within_a_row_are_read_when_needed(tmp_path: Path) -> None:
    CASES["types"](tmp_path / "a.hdf")
    split(tmp_path / "a.hdf", DATA, 13)
    assert isinstance(data_of(tmp_path / "a.hdf", "f8"), PiecewiseArray)
    ds, expected = opened(tmp_path / "a.hdf"), read(tmp_path / "a.hdf")
    for name, native in expected.items():
        assert_read(ds[name], native)


def test_metadata_in_several_blocks_are_read(tmp_path: Path) -> None:
    CASES["chunks"](tmp_path / "a.hdf")
    split(tmp_path / "a.hdf", VDATA_VALUES, 10)
    assert_read(opened(tmp_path / "a.hdf")["_f8"], read(tmp_path / "a.hdf")["_f8"])


@pytest.mark.parametrize("name", ["chunks", "encoded", "records", "little_endian"])
def test_written_sets_hold_the_same_values(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path / "a.hdf")
    opened(tmp_path / "a.hdf").virtual.to_manifest(tmp_path / "refs.zarr")
    expected = read(tmp_path / "a.hdf")
    with xr.open_dataset(tmp_path / "refs.zarr", engine="virtual", decode_cf=False) as again:
        for variable, native in expected.items():
            assert again[variable].values.tobytes() == native.values.tobytes()


def test_values_in_another_file_are_references_to_it(tmp_path: Path) -> None:
    values = np.arange(24, dtype="i4").reshape(4, 6)

    def fill(file: SD) -> None:
        dataset = create(file, "t", values, ("y", "x"))
        dataset.setexternalfile("beside.dat", 8)
        dataset[:] = values

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        written(Path("a.hdf"), fill)
    ds = opened(tmp_path / "a.hdf")
    assert (ds["t"].values == values).all()
    [url] = {place["path"] for place in data_of(tmp_path / "a.hdf", "t").manifest.dict().values()}
    assert url.endswith("/beside.dat")
    (tmp_path / "beside.dat").unlink()
    with pytest.raises(FormatError, match=r"beside\.dat"):
        opened(tmp_path / "a.hdf")


def test_a_chunk_in_another_file_is_refused_and_not_read_from_this_one(tmp_path: Path) -> None:
    def fill(file: SD) -> None:
        dataset = create(file, "t", np.zeros((4, 4), "i2"), ("y", "x"))
        cut(dataset, (4, 4))
        dataset[:] = np.zeros((4, 4), "i2")

    written(tmp_path / "a.hdf", fill)
    (tmp_path / "beside.dat").write_bytes(bytes(32))
    data = bytearray((tmp_path / "a.hdf").read_bytes())
    header = struct.pack(">HIII", EXTERNAL, 32, 0, 10) + b"beside.dat"
    for place in range(10, 2410, 12):
        tag, ref, *_ = struct.unpack_from(">HHII", data, place)
        if tag == CHUNK:
            moved = (tag | EXTENDED, ref, len(data), len(header))
            struct.pack_into(">HHII", data, place, *moved)
    (tmp_path / "a.hdf").write_bytes(data + header)
    with pytest.raises(UnsupportedError, match="in another file"):
        opened(tmp_path / "a.hdf")


# ---------------------------------------------------------------------- damage and costs


@pytest.mark.parametrize("name", ["chunks", "records_in_many_blocks", "attributes"])
def test_a_truncated_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path / "a.hdf")
    whole = (tmp_path / "a.hdf").read_bytes()
    for part in range(1, 20):
        (tmp_path / "a.hdf").write_bytes(whole[: len(whole) * part // 20])
        with pytest.raises(FormatError, match=r"a\.hdf"):
            opened(tmp_path / "a.hdf")


@pytest.mark.parametrize(
    ("case", "old", "new", "why"),
    [
        # the numbers of a method of compression, and of the machine that wrote floats
        ("encoded", b"\0\0\0\x04\0\x06", b"\0\0\0\x05\0\x06", "szip"),
        ("types", b"\x01\x05\x20\x01", b"\x01\x05\x20\x02", "another machine"),
        ("types", b"\x01\x06\x40\x01", b"\x01\x07\x40\x01", "number type 7"),
    ],
)
def test_what_nothing_here_decodes_is_refused_by_name(
    case: str, old: bytes, new: bytes, why: str, tmp_path: Path
) -> None:
    CASES[case](tmp_path / "a.hdf")
    names = opened(tmp_path / "a.hdf").variables.keys()
    data = (tmp_path / "a.hdf").read_bytes()
    assert data.count(old) == 1
    (tmp_path / "a.hdf").write_bytes(data.replace(old, new))
    with pytest.raises(UnsupportedError, match=why):
        opened(tmp_path / "a.hdf")
    with pytest.warns(UserWarning, match=why):
        ds = opened(tmp_path / "a.hdf", on_error="skip")
    assert len(ds.variables) == len(names) - 1


def test_an_element_that_is_encoded_within_itself_is_refused(tmp_path: Path) -> None:
    CASES["encoded"](tmp_path / "a.hdf")
    data = bytearray((tmp_path / "a.hdf").read_bytes())
    for place in range(10, 2410, 12):
        tag, ref, offset, length = struct.unpack_from(">HHII", data, place)
        if tag == DATA | EXTENDED:
            # its header says that the values are element 1, whose header it is
            data[offset + 8 : offset + 10] = b"\0\x01"
            header = offset, length
    for place in range(10, 2410, 12):
        tag, ref, *_ = struct.unpack_from(">HHII", data, place)
        if (tag, ref) == (COMPRESSED, 1):
            struct.pack_into(">HHII", data, place, tag | EXTENDED, ref, *header)
    (tmp_path / "a.hdf").write_bytes(data)
    with pytest.raises(FormatError, match="several times"):
        opened(tmp_path / "a.hdf")


def test_a_huge_grid_of_no_chunks_takes_no_memory(tmp_path: Path) -> None:
    def fill(file: SD) -> None:
        dataset = create(file, "t", np.zeros((1, 1), "u1"), ("y", "x"), shape=(2**20, 2**20))
        cut(dataset, (2, 2), "deflate")

    written(tmp_path / "a.hdf", fill)
    ds = opened(tmp_path / "a.hdf")
    assert ds["t"].shape == (2**20, 2**20)
    assert ds["t"][5, 5].values == 129


ODD_FILLS = {
    "text": (SDC.CHAR, "-9999"),
    "word": (SDC.CHAR, "none"),
    "several": (SDC.FLOAT32, [1.5, 2.0]),
    "fraction": (SDC.FLOAT64, -9.7),
    "large": (SDC.INT32, 100_000),
}


@pytest.mark.filterwarnings("ignore:.*multiple fill values:xarray.SerializationWarning")
@pytest.mark.parametrize("kind", ["i2", "f4", "u1"])
def test_a_fill_value_of_another_type_is_taken_as_the_library_takes_it(
    kind: str, tmp_path: Path
) -> None:
    values = np.arange(24, dtype=kind).reshape(4, 6)

    def fill(file: SD) -> None:
        for name, odd in ODD_FILLS.items():
            for written_rows in (0, 2, 4):
                dataset = create(file, f"{name}_{written_rows}", values, ("y", "x"))
                dataset.attr("_FillValue").set(*odd)
                if written_rows == 2:
                    cut(dataset, (2, 6), "deflate")
                if written_rows:
                    dataset[:written_rows] = values[:written_rows]

    written(tmp_path / "a.hdf", fill)
    stored, decoded = opened(tmp_path / "a.hdf"), virtualds.open_virtual_dataset(tmp_path / "a.hdf")
    for name, native in read(tmp_path / "a.hdf").items():
        assert stored[name].values.tobytes() == native.values.tobytes(), name
        expected = xr.decode_cf(xr.Dataset({name: native}))[name]
        np.testing.assert_array_equal(decoded[name].values, expected.values, name)


def test_a_fill_value_that_is_too_short_refuses_only_what_was_never_written(tmp_path: Path) -> None:
    def fill(file: SD) -> None:
        for name in ("whole", "absent"):
            dataset = create(file, name, np.zeros(3, "i4"), ("x",))
            dataset.attr("_FillValue").set(SDC.CHAR, "-")
            if name == "whole":
                dataset[:] = np.arange(3, dtype="i4")

    written(tmp_path / "a.hdf", fill)
    with pytest.raises(UnsupportedError, match=r"variable 'absent'.*_FillValue is shorter"):
        opened(tmp_path / "a.hdf")
    found = opened(tmp_path / "a.hdf", drop_variables=["absent"])
    assert found["whole"].values.tolist() == [0, 1, 2]


def test_attributes_of_vgroups_hide_no_data_sets(tmp_path: Path) -> None:
    """Their flags and the list of attributes lie before the version (HDF4, `vpackvg`)."""
    CASES["scales"](tmp_path / "a.hdf")
    native = read(tmp_path / "a.hdf")
    file = HDF(str(tmp_path / "a.hdf"), HC.WRITE)
    groups = file.vgstart()
    own = groups.create("swath")
    found = [groups.attach(ref, write=1) for ref in list_refs(groups)]
    assert {"CDF0.0", "Var0.0", "Dim0.0"} <= {group._class for group in found}
    for number, group in enumerate([own, *found]):
        for attribute in range(number % 3 + 1):
            group.attr(f"a{attribute}").set(HC.INT32, [1, 2])
        assert group._version == 4
        group.detach()
    groups.end()
    file.close()
    ds = opened(tmp_path / "a.hdf")
    assert ds.variables.keys() == native.keys() == read(tmp_path / "a.hdf").keys()
    for name, expected in native.items():
        assert_read(ds[name], expected)


def list_refs(groups: Any) -> list[int]:
    """The reference numbers of all Vgroups of a file."""
    found, ref = [], -1
    while True:
        try:
            ref = groups.getid(ref)
        except HDF4Error:
            return found
        found.append(ref)


@pytest.mark.parametrize("tag", [DATA, COMPRESSED])
def test_values_that_are_gone_are_refused_and_not_filled(tag: int, tmp_path: Path) -> None:
    CASES["encoded"](tmp_path / "a.hdf")
    data = bytearray((tmp_path / "a.hdf").read_bytes())
    for place in range(10, 2410, 12):
        if int.from_bytes(data[place : place + 2], "big") & ~EXTENDED == tag:
            data[place + 2] = 99
    (tmp_path / "a.hdf").write_bytes(data)
    with pytest.raises(FormatError, match="is missing"):
        opened(tmp_path / "a.hdf")
    with pytest.warns(UserWarning, match="is missing"):
        assert not opened(tmp_path / "a.hdf", on_error="skip").variables


@pytest.mark.parametrize("case", ["three_axes_of_chunks", "attributes"])
def test_tables_whose_two_versions_differ_are_refused(case: str, tmp_path: Path) -> None:
    """The library asks the last one; where it does not know that, it shows memory of others."""
    CASES[case](tmp_path / "a.hdf")
    whole = (tmp_path / "a.hdf").read_bytes()
    found = 0
    for place in range(10, 2410, 12):
        tag, _, offset, length = struct.unpack_from(">HHII", whole, place)
        if tag != VDATA:
            continue
        found += 1
        longer, other = bytearray(whole), bytearray(whole)
        longer[place + 11] += 1
        other[offset + length - 4] += 1
        for damaged in (longer, other):
            (tmp_path / "a.hdf").write_bytes(damaged)
            with pytest.raises(FormatError, match=r"Vdata .* of version 3, and of version"):
                opened(tmp_path / "a.hdf")
    assert found > 2


@pytest.mark.parametrize("case", ["types", "records_in_many_blocks", "encoded", "chunks"])
def test_values_whose_dimensions_are_lost_are_not_taken_for_one_value(
    case: str, tmp_path: Path
) -> None:
    CASES[case](tmp_path / "a.hdf")
    damaged = (tmp_path / "a.hdf").read_bytes().replace(b"Dim0.0", b"Xim0.0")
    (tmp_path / "a.hdf").write_bytes(damaged)
    with pytest.raises(FormatError, match=r"no dimensions|its shape is \(\)"):
        opened(tmp_path / "a.hdf")


def test_one_value_in_two_blocks_is_read(tmp_path: Path) -> None:
    def fill(file: SD) -> None:
        create(file, "t", np.zeros(1), ("x",))[:] = [280.5]

    written(tmp_path / "a.hdf", fill)
    whole = (tmp_path / "a.hdf").read_bytes()
    (tmp_path / "a.hdf").write_bytes(whole.replace(b"Dim0.0", b"Xim0.0"))
    split(tmp_path / "a.hdf", DATA, 4)
    found = opened(tmp_path / "a.hdf")["t"]
    assert found.shape == ()
    assert found.values == 280.5


def test_a_number_type_of_another_tag_is_refused(tmp_path: Path) -> None:
    CASES["old"](tmp_path / "a.hdf")
    pairs = struct.pack(">6H", 106, 4, 106, 4, 106, 4)
    whole = (tmp_path / "a.hdf").read_bytes()
    assert whole.count(pairs) == 1
    for number in range(3):
        place = whole.index(pairs) + 4 * number
        (tmp_path / "a.hdf").write_bytes(whole[:place] + b"\x80" + whole[place + 1 :])
        with pytest.raises(FormatError, match="number types of tags"):
            opened(tmp_path / "a.hdf")


@pytest.mark.parametrize("place", [4, 8])
def test_an_element_beyond_two_gibibytes_is_damage(place: int, tmp_path: Path) -> None:
    """The library takes its length for a negative one, and fills the values."""
    CASES["types"](tmp_path / "a.hdf")
    data = bytearray((tmp_path / "a.hdf").read_bytes())
    first = next(n for n in range(10, 2410, 12) if data[n : n + 2] == DATA.to_bytes(2, "big"))
    data[first + place] = 255
    (tmp_path / "a.hdf").write_bytes(data)
    with pytest.raises(FormatError, match=r"variable 'i1'(.|\n)*before 2 GiB"):
        opened(tmp_path / "a.hdf")
    assert opened(tmp_path / "a.hdf", drop_variables=["i1"])["u1"].shape == (4, 6)


@pytest.mark.parametrize("extended", [0, EXTENDED])
def test_an_element_that_is_described_twice_is_refused(extended: int, tmp_path: Path) -> None:
    CASES["types"](tmp_path / "a.hdf")
    data = bytearray((tmp_path / "a.hdf").read_bytes())
    places = range(10, 2410, 12)
    first = next(n for n in places if data[n : n + 2] == DATA.to_bytes(2, "big"))
    free = next(n for n in places if data[n : n + 2] == b"\0\1")
    ref = int.from_bytes(data[first + 2 : first + 4], "big")
    struct.pack_into(">HHII", data, free, DATA | extended, ref, 10, 24)
    (tmp_path / "a.hdf").write_bytes(data)
    with pytest.raises(FormatError, match=rf"element \({DATA}, {ref}\) is described twice"):
        opened(tmp_path / "a.hdf")
    with pytest.raises(HDF4Error):
        SD(str(tmp_path / "a.hdf"))


@pytest.mark.parametrize(
    ("case", "form", "numbers", "why"),
    [
        # the length of a chunk: places of chunks would lie outside
        ("missing_chunks", ">6I", (1, 30, 10, 1, 41, 10), "chunks of .* elements, not 100"),
        # the tag of values among the members of a Vgroup, after those of five Vdatas
        ("scales", ">4H", (VDATA, DATA, 106, 701), "values only for old programs"),
    ],
)
def test_values_that_a_header_hides_are_not_filled(
    case: str, form: str, numbers: Any, why: str, tmp_path: Path
) -> None:
    CASES[case](tmp_path / "a.hdf")
    whole = (tmp_path / "a.hdf").read_bytes()
    sound = struct.pack(form, *numbers)
    assert sound in whole
    place = whole.index(sound) + (2 if case == "scales" else 23)
    (tmp_path / "a.hdf").write_bytes(whole[:place] + b"\x7f" + whole[place + 1 :])
    with pytest.raises(FormatError, match=why):
        opened(tmp_path / "a.hdf")


def test_a_length_of_an_unknown_class_is_none(tmp_path: Path) -> None:
    """The library shows the length of another dimension then."""
    CASES["types"](tmp_path / "a.hdf")
    whole = (tmp_path / "a.hdf").read_bytes()
    (tmp_path / "a.hdf").write_bytes(whole.replace(b"DimVal0.1", b"Dim\xdaal0.1"))
    with pytest.raises(FormatError, match="dimension 'y' has no length"):
        opened(tmp_path / "a.hdf")


def test_blocks_of_descriptors_in_a_ring_are_refused(tmp_path: Path) -> None:
    data = hdf4.MAGIC + bytes([0, 1, 0, 0, 0, 4]) + bytes([0, 1]) + bytes(10)
    (tmp_path / "a.hdf").write_bytes(data)
    with pytest.raises(FormatError, match="cycle"):
        opened(tmp_path / "a.hdf")


@pytest.mark.parametrize(
    ("codec", "data", "nbytes"),
    [
        (RunLength(), b"\x80", 3),
        (RunLength(), b"\x05ab", 6),
        (RunLength(), b"\x8a\0", 4),
        (SkippingHuffman(2), b"\x80", 6),
        (SkippingHuffman(2), b"\0\0", 2),
        (SkippingHuffman(1), b"\x80\0", None),
        (BitField(2, 9, 10, extends_sign=False, fills_ones=False), b"\0", 2),
    ],
)
def test_damaged_chunks_are_codec_errors(codec: Any, data: bytes, nbytes: int | None) -> None:
    with pytest.raises(CodecError):
        codec.decode(data, nbytes)


def test_a_small_file_costs_one_request_over_http(tmp_path: Path) -> None:
    CASES["chunks"](tmp_path / "a.hdf")
    with counting_server(tmp_path) as (url, counts):
        ds = opened(f"{url}/a.hdf")
        assert counts.of("a.hdf") == 1
        assert ds["deflate_i2"].shape == (30, 41)


def test_a_large_file_costs_few_requests_over_http(tmp_path: Path) -> None:
    def fill(file: SD) -> None:
        noise = np.random.default_rng(3).integers(0, 2**31, (400, 2000), "i4")
        for name in "abcdef":
            dataset = create(file, name, noise, ("y", "x"))
            dataset.units = "K"
            cut(dataset, (100, 1000), "deflate")
            dataset[:] = noise

    written(tmp_path / "a.hdf", fill)
    assert (tmp_path / "a.hdf").stat().st_size > 15e6
    with counting_server(tmp_path) as (url, counts):
        opened(f"{url}/a.hdf")
        assert counts.of("a.hdf") <= 50
        assert counts.sent < 2e6


def test_every_number_type_has_a_case(tmp_path: Path) -> None:
    CASES["types"](tmp_path / "a.hdf")
    dtypes = {v.dtype.str[1:] for v in read(tmp_path / "a.hdf").values()}
    assert dtypes == set(KINDS)


@looped("name", CASES, quick=len(CASES) // 3)
def test_verification_compares_each_case_with_pyhdf_or_says_why_not(
    name: str, tmp_path: Path
) -> None:
    CASES[name](tmp_path / "a.hdf")
    found = opened(tmp_path / "a.hdf").virtual.verify(None, "native")
    # the reason names pyhdf where it cannot read what is there
    assert found.counts.keys() <= {"not compared"}, found
    assert found.ok or "pyhdf" in f"{found}" or not found.references


def test_a_data_set_that_is_left_out_keeps_characters_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf"

    def fill(file: SD) -> None:
        for name, values in (
            ("t", np.zeros(4, "f4")),
            ("flag", np.frombuffer(b"abcdefgh", "S1").reshape(2, 4)),
        ):
            put(create(file, name, values, ("y", "four")[-values.ndim :]), values)

    written(path, fill)
    for names in ([], ["t"]):
        found = virtualds.open_virtual_dataset(path, drop_variables=names)
        assert found["flag"].dims == ("y", "four") and found["flag"].dtype == "S1"
