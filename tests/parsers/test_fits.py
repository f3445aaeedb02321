"""FITS files: what astropy reads of them is what is read through references."""

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
from transforms import TRANSFORMS, assert_identical

import virtualds
from virtualds import FormatError, UnsupportedError


def image(dtype: str, shape: tuple[int, ...] = (7, 9), **cards: Any) -> fits.PrimaryHDU:
    rng = np.random.default_rng(3)
    if np.dtype(dtype).kind == "f":
        return fits.PrimaryHDU(rng.normal(size=shape).astype(dtype), fits.Header(cards))
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return fits.PrimaryHDU(values, fits.Header(cards))


def scaled(dtype: str, **cards: Any) -> fits.PrimaryHDU:
    """An image whose cards about scaling are written over the values as they are."""
    made = image(dtype)
    values = made.data.copy()
    if "BLANK" in cards:
        values[2, 3:6] = cards["BLANK"]
    made = fits.PrimaryHDU(values, do_not_scale_image_data=True)
    made.header.update(cards)
    return made


IMAGES: dict[str, Any] = {
    **{dtype: lambda dtype=dtype: image(dtype) for dtype in ("u1", "i2", "i4", "i8", "f4", "f8")},
    **{f"meant {dtype}": lambda dtype=dtype: image(dtype) for dtype in ("i1", "u2", "u4", "u8")},
    "one axis": lambda: image("i2", (11,)),
    "three axes": lambda: image("f4", (3, 5, 7)),
    "long unsigned": lambda: image("u2", (3, 900, 800)),
    **{
        f"scaled {dtype}": lambda dtype=dtype: scaled(dtype, BSCALE=0.01, BZERO=273.15)
        for dtype in ("u1", "i2", "i4", "i8", "f4", "f8")
    },
    "scale alone": lambda: scaled("i2", BSCALE=0.1),
    "zero alone": lambda: scaled("i2", BZERO=-100.0),
    **{
        f"blank {dtype}": lambda dtype=dtype: scaled(dtype, BLANK=7)
        for dtype in ("u1", "i2", "i4", "i8")
    },
    **{
        f"scaled and blank {dtype}": lambda dtype=dtype: scaled(
            dtype, BSCALE=0.5, BZERO=3.0, BLANK=5
        )
        for dtype in ("u1", "i2", "i4")
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fits")


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.fits"
    if not path.exists():
        if "scale" in name or "blank" in name or "zero" in name:
            made = IMAGES[name]()
            # astropy would take the cards of scaling away when it writes
            fits.PrimaryHDU(made.data).writeto(path)
            cards = {k: made.header[k] for k in ("BSCALE", "BZERO", "BLANK") if k in made.header}
            patch(path, cards)
        else:
            IMAGES[name]().writeto(path)
    return path


def patch(path: Path, cards: dict[str, Any]) -> None:
    """Write cards into a header of one block, before its end."""
    data = bytearray(path.read_bytes())
    end = data.index(b"END     ")
    text = b"".join(str(fits.Card(k, v)).encode().ljust(80) for k, v in cards.items()) + b"END"
    data[end : end + len(text)] = text
    path.write_bytes(data)


@looped("name", IMAGES)
def test_values_are_those_of_astropy(name: str, folder: Path) -> None:
    path = written(folder, name)
    expected = fits.getdata(path)
    found = virtualds.open_virtual_dataset(path)["PRIMARY"]
    assert found.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found.values, expected)
    np.testing.assert_array_equal(found[..., 2:5].values, expected[..., 2:5])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", IMAGES)
@looped("suffix", [None, ".json", ".parquet", ".zarr"], quick=1)
def test_transforming_and_opening_commute(name: str, suffix: str | None, folder: Path) -> None:
    path = written(folder, name)
    native = virtualds.open_virtual_dataset(path)
    opened = native
    if suffix is not None:
        native.virtual.to_manifest(path.with_suffix(suffix))
        opened = xr.open_dataset(path.with_suffix(suffix), engine="virtual")
    values = fits.getdata(path)
    values = values.astype(values.dtype.newbyteorder("="))
    native = native.assign(PRIMARY=native["PRIMARY"].copy(data=values))
    few = list(TRANSFORMS.values())[: 3 if name == "long unsigned" else None]
    for change in few:
        assert_identical(change(opened), change(native))


def test_zero_may_be_blank(tmp_path: Path) -> None:
    # the standard says so (4.4.2.5); astropy takes a zero for no blank at all
    fits.PrimaryHDU(np.array([0, 1, 2], "i2")).writeto(tmp_path / "a.fits")
    patch(tmp_path / "a.fits", {"BLANK": 0})
    found = virtualds.open_virtual_dataset(tmp_path / "a.fits")["PRIMARY"]
    np.testing.assert_array_equal(found, [np.nan, 1, 2])


def several(path: Path) -> Path:
    """An observation: a primary header alone, three images of one shape, one of another."""
    primary = fits.PrimaryHDU()
    primary.header["TELESCOP"], primary.header["EXPTIME"] = "JWST", 12.5
    primary.header["LONGWORD"] = "x" * 50 + "'" + "y" * 100
    primary.header["HIERARCH ESO DET ID"] = 5
    primary.header["OK"] = True
    primary.header.add_history("first")
    primary.header.add_history("second")
    made = [primary]
    for name, dtype, shape in (
        ("SCI", "f4", (5, 6)), ("ERR", "f4", (5, 6)), ("DQ", "u2", (5, 6)), ("WIDE", "i2", (8, 6)),
    ):  # fmt: skip
        made.append(fits.ImageHDU(image(dtype, shape).data, name=name))
    made[1].header["BUNIT"] = "MJy/sr"
    made.append(fits.ImageHDU(image("f4", (5, 6)).data, name="SCI", ver=2))
    made.append(fits.ImageHDU(image("f4", (5, 6)).data))
    made.append(fits.ImageHDU(name="NONE"))
    fits.HDUList(made).writeto(path)
    return path


def test_images_of_extensions_are_variables(tmp_path: Path) -> None:
    path = several(tmp_path / "a.fits")
    ds = virtualds.open_virtual_dataset(path)
    assert list(ds) == ["SCI", "ERR", "DQ", "WIDE", "SCI_2", "HDU6"]
    assert ds.WIDE.dims == ("naxis2_WIDE", "naxis1")
    assert ds.SCI.dims == ds.DQ.dims == ("naxis2", "naxis1")
    with fits.open(path) as file:
        for name, number in {"SCI": 1, "DQ": 3, "WIDE": 4, "SCI_2": 5, "HDU6": 6}.items():
            np.testing.assert_array_equal(ds[name], file[number].data)
        assert ds.attrs["LONGWORD"] == file[0].header["LONGWORD"]
    assert ds.SCI.attrs["BUNIT"] == "MJy/sr"
    assert (ds.attrs["TELESCOP"], ds.attrs["EXPTIME"], ds.attrs["ESO DET ID"]) == ("JWST", 12.5, 5)
    assert ds.attrs["HISTORY"] == "first\nsecond"
    assert ds.attrs["OK"] == 1
    none = virtualds.open_virtual_dataset(path, group="NONE")
    assert none.attrs["EXTNAME"] == "NONE"


def table() -> fits.BinTableHDU:
    return fits.BinTableHDU.from_columns([fits.Column("a", "D", array=[1.0, 2.0])], name="EVENTS")


def assert_images_are_those_of_astropy(path: Path) -> None:
    """All images of a file, in their order: values, types and the values of cards."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*could not be read")
        ds = virtualds.open_virtual_dataset(path, on_error="skip")
    with fits.open(path) as file:
        images = [
            hdu
            for hdu in file
            if type(hdu) in (fits.PrimaryHDU, fits.ImageHDU, fits.CompImageHDU)
            and hdu.header["NAXIS"]
        ]
        assert len(images) == len(ds.data_vars)
        for hdu, found in zip(images, ds.data_vars.values(), strict=True):
            assert found.dtype == hdu.data.dtype.newbyteorder("=")
            np.testing.assert_array_equal(found.values, hdu.data)
            for name in found.attrs.keys() & set(hdu.header) - {"COMMENT", "HISTORY"}:
                assert found.attrs[name] == hdu.header[name]


@pytest.mark.full
def test_headers_with_any_number_of_cards_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.fits"
    values = image("f4").data
    counts = set()
    for more in range(81):
        cards = fits.Header([(f"CARD{number}", number) for number in range(more)])
        fits.HDUList(
            [
                fits.PrimaryHDU(values, cards),
                fits.ImageHDU(values + 1, cards, name="SCI"),
                fits.ImageHDU(values + 2),
            ]
        ).writeto(path, overwrite=True)
        assert_images_are_those_of_astropy(path)
        counts |= {path.read_bytes().index(b"END" + b" " * 77) // 80}
    # END is the first card of a block, and the last one
    assert {35, 36, 71, 72} < counts


OTHERS = {
    "table": lambda: table(),
    "heap": lambda: fits.BinTableHDU.from_columns(
        [fits.Column("a", "PD()", array=np.array([np.arange(3.0), np.arange(700.0)], object))]
    ),
    "text table": lambda: fits.TableHDU.from_columns([fits.Column("x", "I5", array=[1, 2, 3])]),
    "compressed": lambda: fits.CompImageHDU(np.arange(4000, dtype="i2").reshape(50, 80)),
    "header alone": lambda: fits.ImageHDU(name="NONE"),
    "whole blocks": lambda: fits.ImageHDU(np.arange(2880, dtype="u2")),
    "no pixels": lambda: fits.ImageHDU(np.zeros((0, 5))),
    "five axes": lambda: fits.ImageHDU(np.arange(120).reshape(2, 3, 4, 5, 1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_images_behind_any_other_part_are_found(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.fits"
    values = image("f4").data
    made = [image("i2"), OTHERS[name](), fits.ImageHDU(values), OTHERS[name]()]
    fits.HDUList([*made, fits.ImageHDU(values + 1)]).writeto(path)
    assert_images_are_those_of_astropy(path)


def test_images_behind_random_groups_are_found(tmp_path: Path) -> None:
    data = fits.GroupData(
        np.arange(24.0).reshape(2, 3, 4), bitpix=-32, parnames=["u"], pardata=[np.arange(2.0)]
    )
    fits.HDUList([fits.GroupsHDU(data), fits.ImageHDU(image("f4").data)]).writeto(
        tmp_path / "a.fits"
    )
    assert_images_are_those_of_astropy(tmp_path / "a.fits")


def test_strings_over_several_cards_are_whole(tmp_path: Path) -> None:
    texts = [
        *("x" * n for n in (0, 1, 67, 68, 69, 135, 136, 500)),
        *("a'b", "'", "''", "a' b", "a'/b", "it''s '' here", "a & b", "'quoted'"),
        # quotes at every place where a card may end
        *("y" * n + "'" + "z" * 80 for n in range(60, 70)),
        *("y" * n + "'' " + "z" * 80 for n in range(60, 70)),
        *("'" * n for n in (30, 66, 67, 68, 200)),
    ]
    cards = fits.Header([(f"TEXT{number}", text) for number, text in enumerate(texts)])
    fits.PrimaryHDU(image("i2").data, cards).writeto(tmp_path / "a.fits")
    found = virtualds.open_virtual_dataset(tmp_path / "a.fits").attrs
    assert [found.get(f"TEXT{number}") for number in range(len(texts))] == texts


def test_images_that_were_appended_or_streamed_are_found(tmp_path: Path) -> None:
    path, values = tmp_path / "a.fits", image("f4").data
    fits.PrimaryHDU(values).writeto(path, checksum=True)
    fits.append(path, values + 1)
    fits.append(path, (values * 100).astype("u2"))
    assert_images_are_those_of_astropy(path)
    stream = fits.StreamingHDU(tmp_path / "b.fits", fits.PrimaryHDU(values).header)
    stream.write(values)
    stream.close()
    assert_images_are_those_of_astropy(tmp_path / "b.fits")


def test_special_records_behind_the_last_part_are_passed_over(tmp_path: Path) -> None:
    # section 3.5; astropy takes them for damage
    values = image("f4").data
    fits.PrimaryHDU(values).writeto(tmp_path / "a.fits")
    with open(tmp_path / "a.fits", "ab") as file:
        file.write(b"\1" * 2880)
    np.testing.assert_array_equal(
        virtualds.open_virtual_dataset(tmp_path / "a.fits").PRIMARY, values
    )


def test_a_header_after_bytes_of_no_part_is_an_error(tmp_path: Path) -> None:
    path = several(tmp_path / "a.fits")
    data = path.read_bytes()
    # the second part says that it has no elements
    place = data.index(b"NAXIS1  =", 2880)
    path.write_bytes(data[: place + 10] + b"0".rjust(20) + data[place + 30 :])
    with pytest.raises(FormatError, match="where no other begins"):
        virtualds.open_virtual_dataset(path)


def test_a_header_that_does_not_begin_a_block_is_an_error(tmp_path: Path) -> None:
    path = several(tmp_path / "a.fits")
    data = path.read_bytes()
    place = data.rindex(b"XTENSION=")
    path.write_bytes(data[:place] + b" " * 80 + data[place:])
    with pytest.raises(FormatError, match="where no other begins"):
        virtualds.open_virtual_dataset(path)


def foreign() -> fits.ImageHDU:
    """An extension of a kind that no standard knows."""
    return fits.ImageHDU(np.arange(8, dtype="u1"), fits.Header([("FOREIGN", 1)]), name="FOREIGN")


def test_parts_that_cannot_be_referenced_are_refused_by_name(tmp_path: Path) -> None:
    fits.HDUList([image("i2"), foreign()]).writeto(tmp_path / "a.fits")
    data = (tmp_path / "a.fits").read_bytes()
    (tmp_path / "a.fits").write_bytes(data.replace(b"'IMAGE   '", b"'FOREIGN '"))
    with pytest.raises(UnsupportedError, match="FOREIGN extension"):
        virtualds.open_virtual_dataset(tmp_path / "a.fits")
    rest = virtualds.open_virtual_dataset(tmp_path / "a.fits", drop_variables=["FOREIGN"])
    np.testing.assert_array_equal(rest.PRIMARY, image("i2").data)
    with pytest.warns(UserWarning, match="FOREIGN"):
        assert list(virtualds.open_virtual_dataset(tmp_path / "a.fits", on_error="skip")) == [
            "PRIMARY"
        ]


def test_damage_is_an_error(tmp_path: Path) -> None:
    data = written(tmp_path, "i2").read_bytes()
    path = tmp_path / "damaged.fits"
    for size in range(9, 2880 + 7 * 9 * 2, 97):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError):
            virtualds.open_virtual_dataset(path)
    for old, new in (
        (b"BITPIX  =                   16", b"BITPIX  =                   17"),
        (b"NAXIS   =                    2", b"NAXIS   =                   -2"),
        (b"NAXIS1  =                    9", b"NAXIS1  =                   -9"),
        (b"NAXIS1  =                    9", b"NAXIS1  =              9999999"),
        (b"NAXIS1  =                    9", b"NOTHING =                    9"),
        (b"NAXIS   =                    2", b"NAXIS   = 'two'                "[:30]),
    ):
        assert old in data
        path.write_bytes(data.replace(old, new))
        with pytest.raises(FormatError):
            virtualds.open_virtual_dataset(path)


def test_headers_cost_few_requests_over_http(tmp_path: Path) -> None:
    several(tmp_path / "a.fits")
    with counting_server(tmp_path) as (url, counts):
        ds = virtualds.open_virtual_dataset(f"{url}/a.fits")
        assert counts.of("a.fits") == 1
        np.testing.assert_array_equal(ds.SCI, fits.getdata(tmp_path / "a.fits", 1))


def test_a_header_without_its_end_does_not_take_in_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "two.fits"
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(np.arange(6.0))]).writeto(path)
    data = bytearray(path.read_bytes())
    place = data.index(b"END     ")
    assert place < 2880
    data[place + 3] = 0x5A
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"XTENSION occurs in card 37.*END is missing") as caught:
        virtualds.open_virtual_dataset(path)
    assert "two.fits" in str(caught.value)


def test_of_other_keywords_the_first_one_counts_as_in_astropy(tmp_path: Path) -> None:
    image = fits.PrimaryHDU(np.arange(6.0))
    text = "a text so long that one card does not hold it, and a second one has to go on with it"
    cards = [("EXPTIME", 1.5), ("OTHER", 2.5), ("NOTE", "short"), ("OTHER2", text), ("LONG", text)]
    image.header.extend([*cards, ("COMMENT", "= no value")])
    image.writeto(tmp_path / "a.fits")
    data = (tmp_path / "a.fits").read_bytes()
    for old, new in ((b"OTHER   ", b"EXPTIME "), (b"OTHER2  ", b"NOTE    ")):
        data = data.replace(old, new)
    (tmp_path / "a.fits").write_bytes(data)
    found = virtualds.open_virtual_dataset(tmp_path / "a.fits").PRIMARY.attrs
    native = fits.getheader(tmp_path / "a.fits")
    for name in ("EXPTIME", "NOTE", "LONG"):
        assert found[name] == native[name]
    assert found["COMMENT"] == str(native["COMMENT"]) == "= no value"


def test_the_name_that_fpack_makes_up_gives_way_to_that_of_the_image(tmp_path: Path) -> None:
    image = fits.CompImageHDU(np.arange(64, dtype="i4").reshape(8, 8), name="COMPRESSED_IMAGE")
    image.header["OTHER"] = "ccd00"
    fits.HDUList([fits.PrimaryHDU(), image]).writeto(tmp_path / "a.fits")
    data = (tmp_path / "a.fits").read_bytes()
    (tmp_path / "a.fits").write_bytes(data.replace(b"OTHER   ", b"EXTNAME "))
    with fits.open(tmp_path / "a.fits") as native:
        assert native[1].name == "ccd00"
    found = virtualds.open_virtual_dataset(tmp_path / "a.fits")
    assert list(found) == ["ccd00"]
    assert found.ccd00.attrs["EXTNAME"] == "ccd00"


@pytest.mark.parametrize("keyword", ["BITPIX", "NAXIS2", "BZERO"])
def test_a_repeated_structural_keyword_is_an_error(keyword: str, tmp_path: Path) -> None:
    made = scaled("i2", BSCALE=0.5, BZERO=3.0)
    made.header.append(("OTHER", 1), end=True)
    made.writeto(tmp_path / "twice.fits")
    data = (tmp_path / "twice.fits").read_bytes()
    (tmp_path / "twice.fits").write_bytes(data.replace(b"OTHER   ", keyword.ljust(8).encode()))
    with pytest.raises(FormatError, match=f"{keyword} occurs twice"):
        virtualds.open_virtual_dataset(tmp_path / "twice.fits")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"BSCALE  =", b"bscale  ="),
        (b"BSCALE  =", b"BSCALE= "),
        (b"BZERO   =", b" BZERO  ="),
        (b"EXTNAME =", b"ExtName ="),
    ],
)
def test_keywords_are_read_as_astropy_reads_them(old: bytes, new: bytes, tmp_path: Path) -> None:
    """The standard has capital letters and column 9, and files in the wild have others."""
    image = fits.ImageHDU(np.arange(6, dtype="i2"), name="SCI")
    image.header.update(BSCALE=0.5, BZERO=3.0)
    fits.HDUList([fits.PrimaryHDU(), image]).writeto(tmp_path / "a.fits")
    data = (tmp_path / "a.fits").read_bytes()
    assert data.count(old) == 1
    card = data[data.index(old) :][:80]
    written = (new + card[len(old) :]).ljust(80)[:80]
    (tmp_path / "a.fits").write_bytes(data.replace(card, written))
    with fits.open(tmp_path / "a.fits") as native:
        expected = native[1].data
        assert native[1].name == "SCI"
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(tmp_path / "a.fits").SCI, expected)


@pytest.mark.parametrize("keyword", ["BSCALE", "BZERO", "NAXIS1", "EXTNAME", "EXTVER"])
def test_a_card_about_values_or_names_without_a_value_is_an_error(
    keyword: str, tmp_path: Path
) -> None:
    image = fits.ImageHDU(np.arange(6, dtype="i2"), name="SCI", ver=2)
    image.header.update(BSCALE=0.5, BZERO=3.0)
    fits.HDUList([fits.PrimaryHDU(), image]).writeto(tmp_path / "a.fits")
    data = (tmp_path / "a.fits").read_bytes()
    card = keyword.ljust(8).encode()
    for sign in (b"  ", b"= "[::-1], b"=1"):
        (tmp_path / "a.fits").write_bytes(data.replace(card + b"= ", card + sign))
        with pytest.raises(FormatError, match=rf"part 1: {keyword} occurs on a card without"):
            virtualds.open_virtual_dataset(tmp_path / "a.fits")
