"""Tables of FITS files: every column is what astropy makes of it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from astropy.io import fits
from counting_server import counting_server
from products import looped

import virtualds
from virtualds import FormatError, UnsupportedError
from virtualds.codecs.codec import CodecError
from virtualds.codecs.fits import ColumnBytes, Logicals, PaddedText, RowBits, TextNumbers

ROWS = 12_345
"""So many that the rows are several chunks, the last one shorter."""


def columns(rows: int = ROWS) -> list[fits.Column]:
    rng = np.random.default_rng(5)

    def integers(kind: str, *more: int) -> Any:
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, (rows, *more), kind, endpoint=True)

    floats = rng.normal(size=(rows, 6))
    return [
        fits.Column("bytes", "B", array=integers("u1")),
        fits.Column("short", "I", array=integers("i2")),
        fits.Column("int", "J", array=integers("i4"), unit="s"),
        fits.Column("long", "K", array=integers("i8"), null=-1),
        fits.Column("ushort", "I", bzero=2**15, array=integers("u2")),
        fits.Column("uint", "J", bzero=2**31, array=integers("u4")),
        fits.Column("ulong", "K", bzero=2**63, array=integers("u8")),
        fits.Column("single", "E", array=floats[:, 0], unit="Jy", disp="F8.3"),
        fits.Column("double", "D", array=floats[:, 1]),
        fits.Column("complex", "C", array=floats[:, 2] + 1j * floats[:, 3]),
        fits.Column("precise", "M", array=floats[:, 2] + 1j * floats[:, 3]),
        fits.Column("vector", "3E", array=floats[:, :3]),
        fits.Column("matrix", "6D", dim="(3,2)", array=floats.reshape(rows, 2, 3)),
        fits.Column("flag", "L", array=floats[:, 0] > 0),
        fits.Column("flags", "2L", array=floats[:, :2] > 0),
        fits.Column("bits", "11X", array=rng.random((rows, 11)) > 0.5),
        fits.Column("text", "9A", array=[f"star {n}" for n in range(rows)]),
        fits.Column("texts", "8A", dim="(4,2)", array=[[f"a{n % 7}", "b"] for n in range(rows)]),
        fits.Column("letter", "A", array=["xyz"[n % 3] for n in range(rows)]),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def catalogue(folder: Path) -> Path:
    """An image, a table of many columns, another image, a table of one row, one without rows."""
    image = np.arange(12.0).reshape(3, 4)
    units = [
        fits.PrimaryHDU(image),
        fits.BinTableHDU.from_columns(columns(), name="STARS"),
        fits.ImageHDU(image + 1, name="SECOND"),
        fits.BinTableHDU.from_columns(columns(1), name="ONE"),
        fits.BinTableHDU.from_columns([fits.Column("a", "J"), fits.Column("b", "3A")], name="NONE"),
    ]
    units[1].header["OBSERVER"] = "Hubble"
    fits.HDUList(units).writeto(folder / "catalogue.fits")
    return folder / "catalogue.fits"


def native(values: Any) -> Any:
    """What astropy shows of a column, one value after the other, in native byte order."""
    values = np.asarray(values)
    values = np.char.rstrip(values) if values.dtype.kind == "U" else values
    return values.astype(values.dtype.newbyteorder("="))


def assert_columns_are_those_of_astropy(path: Path, group: str, number: int) -> None:
    found = virtualds.open_virtual_dataset(path, group=group)
    data = fits.getdata(path, number)
    assert list(found) == list(data.names)
    for name in data.names:
        expected = native(data[name])
        assert found[name].dtype == expected.dtype, name
        np.testing.assert_array_equal(found[name].values, expected, err_msg=name)
        np.testing.assert_array_equal(found[name][-5:-1].values, expected[-5:-1], err_msg=name)


@pytest.mark.parametrize("group", ["STARS", "ONE"])
def test_columns_are_those_of_astropy(group: str, catalogue: Path) -> None:
    assert_columns_are_those_of_astropy(catalogue, group, {"STARS": 1, "ONE": 3}[group])


def test_a_table_without_rows_has_columns_without_values(catalogue: Path) -> None:
    found = virtualds.open_virtual_dataset(catalogue, group="NONE")
    assert {name: found[name].values.shape for name in found} == {"a": (0,), "b": (0,)}


def test_a_table_is_a_group_and_leaves_images_alone(catalogue: Path) -> None:
    image = np.arange(12.0).reshape(3, 4)
    ds = virtualds.open_virtual_dataset(catalogue)
    assert list(ds) == ["PRIMARY", "SECOND"]
    np.testing.assert_array_equal(ds.SECOND, image + 1)
    tree = virtualds.open_virtual_datatree(catalogue)
    assert set(tree.children) == {"STARS", "ONE", "NONE"}
    assert tree["STARS"].attrs["OBSERVER"] == "Hubble"
    stars = tree["STARS"]
    assert stars["single"].attrs == {"units": "Jy", "TDISP": "F8.3"}
    assert stars["matrix"].dims == ("row", "axis2", "axis1")
    assert stars["vector"].dims == ("row", "axis1")
    assert stars["bits"].dims == ("row", "axis1_bits")


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
def test_columns_are_the_same_through_references(
    suffix: str, catalogue: Path, tmp_path: Path
) -> None:
    ds = virtualds.open_virtual_dataset(catalogue, group="STARS")
    ds.virtual.to_manifest(tmp_path / f"refs{suffix}")
    opened = xr.open_dataset(tmp_path / f"refs{suffix}", engine="virtual")
    xr.testing.assert_identical(opened.load(), ds.load())


def test_verify_compares_columns_with_astropy(catalogue: Path) -> None:
    ds = virtualds.open_virtual_dataset(catalogue, group="STARS")
    found = ds.drop_vars("long").virtual.verify(None, "native")
    assert found.ok and [name.split()[0] for name in found.compared] == ["astropy"]


def test_letters_behind_the_end_of_a_text_are_no_difference(tmp_path: Path) -> None:
    """They are undefined (FITS Standard 4.0, section 7.3.3.1), and astropy shows them."""
    made = [fits.Column("text", "5A", array=["ab", "c"]), fits.Column("pair", "10A", dim="(5,2)")]
    path = with_cards(tmp_path / "a.fits", {}, made)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"ab\0\0\0", b"ab\0\0x").replace(b"c\0\0\0\0", b"c \0y "))
    found = virtualds.open_virtual_dataset(path, group="T")
    assert found["text"].values.tolist() == ["ab", "c"]
    assert found["pair"].values.tolist() == [["", ""], ["", ""]]
    assert found.virtual.verify(None, "native").ok


def test_wide_columns_are_read_alone(tmp_path: Path) -> None:
    values = np.arange(4 * 2000.0).reshape(4, 2000)
    made = [fits.Column(name, "2000D", array=values + n) for n, name in enumerate("abc")]
    fits.BinTableHDU.from_columns(made, name="T").writeto(tmp_path / "wide.fits")
    with counting_server(tmp_path) as (url, counts):
        ds = virtualds.open_virtual_dataset(f"{url}/wide.fits", group="T")
        before = counts.sent
        np.testing.assert_array_equal(ds.b[2], values[2] + 1)
        assert counts.sent - before < 2 * values[2].nbytes


# ---------------------------------------------------------------------- scaling


def with_cards(path: Path, cards: dict[str, Any], made: list[fits.Column]) -> Path:
    """Write a table, then cards as they are, which astropy would apply to the values."""
    table = fits.BinTableHDU.from_columns(made, name="T")
    for name, value in cards.items():
        table.header["X" + name[1:]] = value
    fits.HDUList([fits.PrimaryHDU(np.arange(6.0)), table]).writeto(path)
    data = path.read_bytes()
    for name in cards:
        data = data.replace(b"X" + name[1:].ljust(7).encode(), name.ljust(8).encode())
    path.write_bytes(data)
    return path


# astropy itself fails where TZERO of long integers is not that of unsigned ones
@looped("form", ["B", "I", "J", "E", "D"])
@looped("cards", [{"TSCAL1": 0.1}, {"TZERO1": -3.5}, {"TSCAL1": 0.1, "TZERO1": 7}])
def test_scaled_columns_are_those_of_astropy(form: str, cards: Any, tmp_path: Path) -> None:
    made = [fits.Column("a", form, array=np.arange(100)), fits.Column("b", "J", array=range(100))]
    path = with_cards(tmp_path / "a.fits", cards, made)
    assert_columns_are_those_of_astropy(path, "T", 1)
    assert virtualds.open_virtual_dataset(path, group="T").a.dtype == np.float64


@pytest.mark.parametrize("text", ["(2,3)", "( 2 , 3 ) x", " (2,3)", "2,3", "(2;3)", "(2,9)"])
def test_lengths_of_axes_are_read_as_astropy_reads_them(text: str, tmp_path: Path) -> None:
    made = [fits.Column("a", "6E", array=np.arange(24.0).reshape(4, 6)), fits.Column("b", "J")]
    path = with_cards(tmp_path / "a.fits", {"TDIM1": text}, made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fits.verify.VerifyWarning)
        assert_columns_are_those_of_astropy(path, "T", 1)


def test_a_table_on_whose_rows_readers_disagree_is_refused(tmp_path: Path) -> None:
    made = [fits.Column("a", "2J", array=np.arange(8).reshape(4, 2)), fits.Column("b", "L")]
    sound = with_cards(tmp_path / "a.fits", {}, made).read_bytes()
    end = sound.index(b"END" + b" " * 77, 2880)
    for damaged, said in (
        (sound.replace(b"'2J      '", b"'1J      '"), "have 5 bytes of a row, and NAXIS1 is 9"),
        (sound[: end + 30] + b"$" + sound[end + 31 :], "the END card"),
    ):
        assert damaged != sound
        (tmp_path / "a.fits").write_bytes(damaged)
        with pytest.raises(FormatError, match=said):
            virtualds.open_virtual_dataset(tmp_path / "a.fits", group="T")


def test_scaled_complex_numbers_are_refused_and_other_columns_read(tmp_path: Path) -> None:
    # astropy scales their real parts, and drops the others
    made = [fits.Column("a", "C", array=[1 + 2j, 3j]), fits.Column("b", "J", array=[5, 6])]
    path = with_cards(tmp_path / "a.fits", {"TSCAL1": 2.0}, made)
    with pytest.raises(UnsupportedError, match=r"'a'.*complex"):
        virtualds.open_virtual_dataset(path, group="T")
    rest = virtualds.open_virtual_dataset(path, group="T", drop_variables=["a"])
    assert rest.b.values.tolist() == [5, 6]


@pytest.mark.parametrize("form", ["B", "I", "J"])
def test_undefined_integers_are_nan(form: str, tmp_path: Path) -> None:
    made = [fits.Column("a", form, null=3, array=np.arange(9)), fits.Column("b", "B")]
    fits.BinTableHDU.from_columns(made, name="T").writeto(tmp_path / "a.fits")
    found = virtualds.open_virtual_dataset(tmp_path / "a.fits", group="T").a
    np.testing.assert_array_equal(found, [0, 1, 2, np.nan, 4, 5, 6, 7, 8])


def test_long_integers_stay_what_they_are(tmp_path: Path) -> None:
    # floats do not hold them
    made = [fits.Column("a", "K", null=3, array=[2**60 + 1, 3]), fits.Column("b", "B")]
    fits.BinTableHDU.from_columns(made, name="T").writeto(tmp_path / "a.fits")
    found = virtualds.open_virtual_dataset(tmp_path / "a.fits", group="T").a
    assert found.values.tolist() == [2**60 + 1, 3]
    assert found.attrs["TNULL"] == 3


# ---------------------------------------------------------------------- tables in text


def test_columns_in_text_are_those_of_astropy(tmp_path: Path) -> None:
    made = [
        fits.Column("name", "A6", array=["M31", "NGC 1", "x"]),
        fits.Column("short", "I4", array=[1, -2, 999]),
        fits.Column("int", "I9", array=[1, -200_000, 999]),
        fits.Column("long", "I18", array=[1, -(2**50), 999]),
        fits.Column("fixed", "F9.3", array=[1.5, -2.25, 0]),
        fits.Column("single", "E15.7", array=[1.5e10, -2e-7, 0]),
        fits.Column("double", "D25.17", array=[1 / 3, -2e-70, 0]),
    ]
    fits.TableHDU.from_columns(made, name="T").writeto(tmp_path / "a.fits")
    assert_columns_are_those_of_astropy(tmp_path / "a.fits", "T", 1)


@pytest.mark.parametrize(
    ("dtype", "null", "expected"),
    [("<f8", "", [1e5, np.nan, -1]), ("<i4", "", [100000, 0, -1]), ("<i4", "-1", None)],
)
def test_numbers_in_text_that_are_not_there(dtype: str, null: str, expected: Any) -> None:
    texts = b"1D5   " + b" " * 6 + b"    -1" if dtype == "<f8" else b"100000" + b" " * 10 + b"-1"
    found = np.frombuffer(TextNumbers(6, dtype, null).decode(texts, None), dtype)
    least = np.iinfo("i4").min
    np.testing.assert_array_equal(found, expected or [100000, least, least])


def test_a_text_without_a_value_may_hold_the_letter_of_an_exponent() -> None:
    texts = b"1D5   " + b"INDEF "
    found = np.frombuffer(TextNumbers(6, "<f8", "INDEF").decode(texts, None), "<f8")
    np.testing.assert_array_equal(found, [1e5, np.nan])


# ---------------------------------------------------------------------- varying length

COUNTS = [3, 0, 4, 1, 2, 0]
VARYING = {
    "PB()": "u1",
    "PI()": "i2",
    "PJ()": "i4",
    "QK()": "i8",
    "PE()": "f4",
    "QD()": "f8",
    "PC()": "c8",
    "QM()": "c16",
    "PL()": "?",
}


def ragged(path: Path, forms: dict[str, str], cards: dict[str, Any] | None = None) -> Path:
    """Write an image, and a table with a variable-length column for each name and form."""
    made = [fits.Column("n", "J", array=COUNTS)]
    for number, (name, form) in enumerate(forms.items()):
        arrays = [np.arange(7 * i, 7 * i + n) + number for i, n in enumerate(COUNTS)]
        rows = np.empty(len(COUNTS), object)
        rows[:] = [(a % 3 == 0) if "L" in form else a.astype(VARYING[form]) for a in arrays]
        made.append(fits.Column(name, form, array=rows))
    return with_cards(path, cards or {}, made)


def assert_arrays_are_those_of_astropy(path: Path, name: str) -> xr.Dataset:
    ds = virtualds.open_virtual_dataset(path, group="T")
    counts = ds[f"{name}_count"]
    assert counts.attrs["sample_dimension"] == ds[name].dims[0] == f"{name}_sample"
    found = np.split(ds[name].values, counts.values.cumsum()[:-1])
    with fits.open(path) as parts:
        for one, expected in zip(found, parts["T"].data[name], strict=True):
            assert one.dtype == native(expected).dtype
            np.testing.assert_array_equal(one, native(expected))
    return ds


@pytest.mark.parametrize("form", VARYING)
def test_arrays_of_varying_length_are_those_of_astropy(form: str, tmp_path: Path) -> None:
    path = ragged(tmp_path / "a.fits", {"a": form, "b": "PI()"})
    ds = assert_arrays_are_those_of_astropy(path, "a")
    assert ds.a.data.nchunks == 1
    assert ds.n.values.tolist() == ds.a_count.values.tolist() == COUNTS
    np.testing.assert_array_equal(ds.a[4:7], ds.a.values[4:7])
    assert_arrays_are_those_of_astropy(path, "b")


@pytest.mark.parametrize(
    ("form", "scale", "zero", "dtype"),
    [("PI()", 1, 2**15, "u2"), ("PJ()", 0.5, 3, "f8"), ("PE()", 1, -1, "f8")],
)
def test_arrays_of_varying_length_are_scaled(
    form: str, scale: float, zero: int, dtype: str, tmp_path: Path
) -> None:
    # astropy gives such numbers the type that they are stored in
    path = ragged(tmp_path / "a.fits", {"a": form}, {"TSCAL2": scale, "TZERO2": zero})
    stored = virtualds.open_virtual_dataset(ragged(tmp_path / "b.fits", {"a": form}), group="T").a
    ds = virtualds.open_virtual_dataset(path, group="T")
    assert ds.a.dtype == dtype
    np.testing.assert_array_equal(ds.a, stored.values.astype("f8") * scale + zero)
    assert not ds[["a"]].virtual.verify(None, "native").compared


def test_letters_of_varying_length_are_joined_to_texts(tmp_path: Path) -> None:
    texts = np.array(["M31", "", "NGC 1"], object)
    fits.BinTableHDU.from_columns([fits.Column("a", "PA()", array=texts)], name="T").writeto(
        tmp_path / "a.fits"
    )
    ds = virtualds.open_virtual_dataset(tmp_path / "a.fits", group="T")
    ds.virtual.to_manifest(tmp_path / "refs.json")
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "refs.json", engine="virtual"), ds)
    found = np.split(ds.a.values, ds.a_count.values.cumsum()[:-1])
    assert ["".join(letters) for letters in found] == texts.tolist()


def test_arrays_that_do_not_lie_in_order_are_read_in_order(tmp_path: Path) -> None:
    path = ragged(tmp_path / "a.fits", {"a": "PJ()"})
    with fits.open(path, mode="update", disable_image_compression=True) as parts:
        place = parts["T"].fileinfo()["datLoc"]
    data = bytearray(path.read_bytes())
    first, third = (slice(place + 12 * i + 4, place + 12 * i + 12) for i in (0, 2))
    data[first], data[third] = data[third], data[first]
    path.write_bytes(data)
    ds = assert_arrays_are_those_of_astropy(path, "a")
    assert ds.a.data.nchunks == 3
    ds.virtual.to_manifest(tmp_path / "refs.zarr")
    opened = xr.open_dataset(tmp_path / "refs.zarr", engine="virtual")
    xr.testing.assert_identical(opened.load(), ds.load())


def test_verify_compares_arrays_of_varying_length_with_astropy(tmp_path: Path) -> None:
    path = ragged(tmp_path / "a.fits", {"a": "PJ()", "b": "QD()"})
    ds = virtualds.open_virtual_dataset(path, group="T").drop_vars(["a_count", "b_count"])
    found = ds.virtual.verify(None, "native")
    assert found.ok and [name.split()[0] for name in found.compared] == ["astropy"]


def test_a_name_that_is_taken_is_not_that_of_counts(tmp_path: Path) -> None:
    path = ragged(tmp_path / "a.fits", {"a": "PJ()", "a_count": "PI()"})
    ds = virtualds.open_virtual_dataset(path, group="T")
    assert list(ds) == ["n", "a", "a_count_", "a_count", "a_count_count"]
    assert ds["a_count_"].values.tolist() == COUNTS


@pytest.mark.parametrize("place", [4, 8])
def test_an_array_outside_the_heap_is_an_error(place: int, tmp_path: Path) -> None:
    path = ragged(tmp_path / "a.fits", {"a": "PJ()"})
    with fits.open(path) as parts:
        begin = parts["T"].fileinfo()["datLoc"] + place
    data = bytearray(path.read_bytes())
    data[begin : begin + 4] = (1000).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(FormatError, match="heap"):
        virtualds.open_virtual_dataset(path, group="T")


# ---------------------------------------------------------------------- refusals


def test_bits_of_varying_length_are_refused_by_name(tmp_path: Path) -> None:
    path = ragged(tmp_path / "a.fits", {"a": "PB()", "b": "PJ()"})
    path.write_bytes(path.read_bytes().replace(b"'PB(4)", b"'PX(4)"))
    with pytest.raises(UnsupportedError, match=r"'a'.*variable-length .*\(PX\(4\)\)"):
        virtualds.open_virtual_dataset(path, group="T")
    rest = virtualds.open_virtual_dataset(path, group="T", drop_variables=["a"])
    assert list(rest) == ["n", "b", "b_count"]
    # the image is read all the same
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(path).PRIMARY, np.arange(6.0))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"TFORM1  = 'J ", b"TFORM1  = 'W "),
        (b"TFORM1  = 'J ", b"TFORM1  = '9J"),
        (b"XCOMM1  = 'abc", b"TSCAL1  = 'abc"),
        (b"TFIELDS =                    2", b"TFIELDS =                   -2"),
        (b"NAXIS2  =                    3", b"NAXIS2  =              3000000"),
    ],
)
def test_a_damaged_table_is_an_error(old: bytes, new: bytes, tmp_path: Path) -> None:
    made = [fits.Column("a", "J", array=[1, 2, 3]), fits.Column("b", "I", array=[1, 2, 3])]
    table = fits.BinTableHDU.from_columns(made, name="T")
    table.header["XCOMM1"] = "abc"
    fits.HDUList([fits.PrimaryHDU(np.arange(6.0)), table]).writeto(tmp_path / "a.fits")
    data = (tmp_path / "a.fits").read_bytes()
    assert old in data
    (tmp_path / "a.fits").write_bytes(data.replace(old, new))
    with pytest.raises(FormatError):
        virtualds.open_virtual_dataset(tmp_path / "a.fits", group="T")


@pytest.mark.parametrize("keyword", ["TZERO1", "TFORM1", "TNULL2"])
def test_a_card_about_values_that_stands_twice_or_has_none_is_an_error(
    keyword: str, tmp_path: Path
) -> None:
    made = [fits.Column("a", "J", array=[1, 2]), fits.Column("b", "J", array=[5, 6])]
    path = with_cards(tmp_path / "a.fits", {"TZERO1": 4.0, "TNULL2": 5, "TCOMM1": "x"}, made)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"TCOMM1  ", keyword.ljust(8).encode()))
    with pytest.raises(FormatError, match=f"{keyword} occurs twice"):
        virtualds.open_virtual_dataset(path, group="T")
    card = keyword.ljust(8).encode()
    path.write_bytes(data.replace(card + b"= ", card + b"=="))
    with pytest.raises(FormatError, match=f"{keyword} occurs on a card without a value"):
        virtualds.open_virtual_dataset(path, group="T")
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(path).PRIMARY, np.arange(6.0))


@looped(
    "codec, data, nbytes",
    [
        (ColumnBytes(8, 4), bytes(15), 8),
        (ColumnBytes(8, 4), bytes(20), 8),
        (ColumnBytes(8, 4), b"", 8),
        (Logicals(), b"TF", 3),
        (Logicals(has_ones=True), b"TF", 3),
        (RowBits(11), bytes(3), 11),
        (PaddedText(4), b"abc", 16),
        (PaddedText(2), b"\xff\xff", 8),
        (TextNumbers(3, "<i4"), b"1.5", 4),
        (TextNumbers(3, "<i4"), b"12", 4),
    ],
)
def test_damaged_columns_are_errors(codec: Any, data: bytes, nbytes: int) -> None:
    with pytest.raises(CodecError):
        codec.decode(data, nbytes)
