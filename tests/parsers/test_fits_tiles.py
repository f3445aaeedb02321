"""Images that FITS tables hold in compressed tiles: what astropy reads of them is read here."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from astropy.io import fits
from counting_server import counting_server
from products import looped

import virtualds
from virtualds import FormatError, ReadError, UnsupportedError
from virtualds.codecs.codec import CodecError
from virtualds.codecs.fits import FitsImage, PlioTile, RiceTile

TILES: dict[str, Any] = {"rows": None, "squares": (16, 20), "one": (70, 90)}


def write(path: Path, values: Any, **options: Any) -> Path:
    """Write an image without compression, a compressed one, and one behind it."""
    image = fits.ImageHDU(np.arange(6.0), name="BEHIND")
    made = fits.CompImageHDU(values, name="TILES", **options)
    made.header["BUNIT"] = "adu"
    fits.HDUList([fits.PrimaryHDU(), made, image]).writeto(path)
    return path


def assert_image_is_that_of_astropy(path: Path) -> xr.Dataset:
    ds = virtualds.open_virtual_dataset(path)
    expected = fits.getdata(path, "TILES")
    expected = expected.astype(expected.dtype.newbyteorder("="))
    assert ds.TILES.dtype == expected.dtype
    np.testing.assert_array_equal(ds.TILES, expected)
    np.testing.assert_array_equal(ds.TILES[..., 30:33, 41:], expected[..., 30:33, 41:])
    np.testing.assert_array_equal(ds.BEHIND, np.arange(6.0))
    assert ds.TILES.attrs["BUNIT"] == "adu"
    assert not [name for name in ds.TILES.attrs if name[:1] == "Z" or name[:5] == "TFORM"]
    return ds


@looped("tiles", TILES, quick=1)
@looped("dtype", ["u1", "i2", "u2", "i4", "u4"])
@looped("how", ["RICE_1", "GZIP_1", "GZIP_2"])
def test_integers_are_those_of_astropy(how: str, dtype: str, tiles: str, tmp_path: Path) -> None:
    values = np.random.default_rng(2).normal(120, 30, (70, 90)).clip(0, 255).astype(dtype)
    path = write(tmp_path / "a.fits", values, compression_type=how, tile_shape=TILES[tiles])
    assert_image_is_that_of_astropy(path)


@pytest.mark.parametrize("how", ["GZIP_1", "GZIP_2"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_floats_that_lost_nothing_are_those_of_astropy(
    how: str, dtype: str, tmp_path: Path
) -> None:
    values = np.random.default_rng(2).normal(120, 30, (70, 90)).astype(dtype)
    path = write(tmp_path / "a.fits", values, compression_type=how, quantize_level=0.0)
    assert_image_is_that_of_astropy(path)


@pytest.mark.parametrize(("bits", "dtype"), [(8, "u1"), (16, "i2")])
def test_small_integers_in_wide_ones_are_those_of_astropy(
    bits: int, dtype: str, tmp_path: Path
) -> None:
    # as old versions of CFITSIO write them
    values = np.arange(70 * 90, dtype="i4").reshape(70, 90) % 200
    path = write(tmp_path / "a.fits", values, compression_type="GZIP_1")
    old, new = (b"ZBITPIX =" + str(n).rjust(21).encode() for n in (32, bits))
    path.write_bytes(path.read_bytes().replace(old, new))
    ds = assert_image_is_that_of_astropy(path)
    assert ds.TILES.dtype == dtype
    np.testing.assert_array_equal(ds.TILES, values)


@pytest.mark.parametrize("tiles", TILES)
def test_masks_are_those_of_astropy(tiles: str, tmp_path: Path) -> None:
    values = np.zeros((70, 90), "i4")
    values[3:20, 10:33] = 7
    values[5, ::9] = 8
    values[8:60, 50] = 2**20
    # astropy's writer ends the process where values change often
    values[9] = np.arange(90) // 15 * 5000
    values[66:] = np.arange(90) // 20
    path = write(tmp_path / "a.fits", values, compression_type="PLIO_1", tile_shape=TILES[tiles])
    assert_image_is_that_of_astropy(path)


def test_cubes_are_those_of_astropy(tmp_path: Path) -> None:
    values = np.arange(3 * 40 * 50, dtype="i2").reshape(3, 40, 50) ** 2
    path = write(tmp_path / "a.fits", values, tile_shape=(1, 16, 50))
    ds = assert_image_is_that_of_astropy(path)
    assert ds.TILES.encoding["original_shape"] == (3, 40, 50)


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
def test_tiles_are_the_same_through_references(suffix: str, tmp_path: Path) -> None:
    values = np.arange(70 * 90, dtype="u2").reshape(70, 90)
    ds = virtualds.open_virtual_dataset(write(tmp_path / "a.fits", values))
    ds.virtual.to_manifest(tmp_path / f"refs{suffix}")
    opened = xr.open_dataset(tmp_path / f"refs{suffix}", engine="virtual")
    xr.testing.assert_identical(opened.load(), ds.load())


# ---------------------------------------------------------------------- whole images

METHODS = {"NO_DITHER": -1, "SUBTRACTIVE_DITHER_1": 1, "SUBTRACTIVE_DITHER_2": 2}


def floats(dtype: str) -> Any:
    values = np.random.default_rng(2).normal(120, 30, (70, 90)).astype(dtype)
    # the second way to dither keeps zeros
    values[3:9, 5:80] = 0
    values[20, 7:50] = np.nan
    return values


@looped("tiles", TILES, quick=1)
@looped("method", METHODS, quick=1)
@looped("dtype", ["f4", "f8"])
@looped("how", ["RICE_1", "GZIP_1", "GZIP_2", "HCOMPRESS_1"])
def test_floats_that_were_made_integers_are_those_of_astropy(
    how: str, dtype: str, method: str, tiles: str, tmp_path: Path
) -> None:
    shape = (10, 90) if how == "HCOMPRESS_1" and tiles == "rows" else TILES[tiles]
    options = {"quantize_level": 16.0, "quantize_method": METHODS[method], "dither_seed": 42}
    # astropy does not write undefined pixels so
    values = np.nan_to_num(floats(dtype)) if how == "HCOMPRESS_1" else floats(dtype)
    path = write(tmp_path / "a.fits", values, compression_type=how, tile_shape=shape, **options)
    ds = assert_image_is_that_of_astropy(path)
    assert ds.TILES.data.nchunks == 1


def test_tiles_that_did_not_become_integers_are_those_of_astropy(tmp_path: Path) -> None:
    # rows of one value have no noise that says how coarse integers may be
    values = floats("f4")
    values[40:50] = np.linspace(-1e30, 1e30, 90, dtype="f4")
    path = write(tmp_path / "a.fits", values, quantize_level=16.0)
    with fits.open(path, disable_image_compression=True) as parts:
        assert {0} < {len(tile) for tile in parts["TILES"].data["COMPRESSED_DATA"]}
    assert_image_is_that_of_astropy(path)


@looped("shape", [(10, 90), (70, 90), (32, 32)], quick=1)
@looped("dtype", ["u1", "i2", "u2", "i4"])
@looped("how", ["HCOMPRESS_1", "NOCOMPRESS"])
def test_integers_in_whole_images_are_those_of_astropy(
    how: str, dtype: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    values = np.random.default_rng(2).normal(120, 30, (70, 90)).clip(0, 255).astype(dtype)
    path = write(tmp_path / "a.fits", values, compression_type=how, tile_shape=shape)
    assert_image_is_that_of_astropy(path)


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
def test_whole_images_are_the_same_through_references(suffix: str, tmp_path: Path) -> None:
    ds = virtualds.open_virtual_dataset(
        write(tmp_path / "a.fits", floats("f4"), quantize_level=16.0)
    )
    ds.virtual.to_manifest(tmp_path / f"refs{suffix}")
    opened = xr.open_dataset(tmp_path / f"refs{suffix}", engine="virtual")
    xr.testing.assert_identical(opened.load(), ds.load())


def test_verify_compares_whole_images_with_astropy(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", floats("f4"), quantize_level=16.0)
    found = virtualds.open_virtual_dataset(path).virtual.verify(None, "native")
    assert found.ok and [name.split()[0] for name in found.compared] == ["astropy"]


def test_a_whole_image_costs_one_request(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", floats("f4"), quantize_level=16.0)
    with counting_server(tmp_path) as (url, counts):
        ds = virtualds.open_virtual_dataset(f"{url}/a.fits")
        before = len(counts.requests)
        np.testing.assert_array_equal(ds.TILES[3:5], fits.getdata(path, "TILES")[3:5])
        assert len(counts.requests) - before == 1


def test_scales_that_are_no_columns_are_refused_by_name(tmp_path: Path) -> None:
    # the standard allows it, astropy does not apply them
    values = np.random.default_rng(2).normal(120, 30, (70, 90)).astype("f4")
    path = write(tmp_path / "a.fits", values, compression_type="GZIP_1", quantize_level=0.0)
    old, new = b"BUNIT   = 'adu     '          ", b"ZSCALE  =                  2.0"
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(UnsupportedError, match=r"(?s)'TILES'.*GZIP_1.*funpack"):
        virtualds.open_virtual_dataset(path)
    rest = virtualds.open_virtual_dataset(path, drop_variables=["TILES"])
    np.testing.assert_array_equal(rest.BEHIND, np.arange(6.0))


def test_a_scale_without_its_zero_is_refused_by_name(tmp_path: Path) -> None:
    stream = gzip.compress(np.arange(64, dtype=">i4").tobytes())
    made = [
        fits.Column("COMPRESSED_DATA", "PB()", array=np.array([np.frombuffer(stream, "u1")], "O")),
        fits.Column("ZSCALE", "D", array=[2.0]),
    ]
    write_tiles(tmp_path / "a.fits", made)
    with pytest.raises(UnsupportedError, match=r"'TILES'"):
        virtualds.open_virtual_dataset(tmp_path / "a.fits")


def test_a_stream_of_another_size_than_its_tile_is_an_error(tmp_path: Path) -> None:
    # the decoder would write behind the tile, and end the process
    values = np.arange(70 * 90, dtype="i2").reshape(70, 90)
    path = write(tmp_path / "a.fits", values, compression_type="HCOMPRESS_1", tile_shape=(70, 90))
    begin = b"\xdd\x99" + (70).to_bytes(4, "big")
    assert begin in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(begin, b"\xdd\x99" + (7000).to_bytes(4, "big")))
    with pytest.raises(ReadError, match="stream"):
        virtualds.open_virtual_dataset(path).TILES.load()


def write_tiles(path: Path, made: list[fits.Column]) -> None:
    """Write a table as an image of 8 x 8 floats in one tile."""
    table = fits.BinTableHDU.from_columns(made, name="TILES")
    said = {"ZIMAGE": True, "ZCMPTYPE": "GZIP_1", "ZBITPIX": -32, "ZNAXIS": 2}
    table.header.update(said | {f"{name}{n}": 8 for name in ("ZNAXIS", "ZTILE") for n in (1, 2)})
    fits.HDUList([fits.PrimaryHDU(), table]).writeto(path)


def test_a_tile_that_swells_is_an_error(tmp_path: Path) -> None:
    stream = gzip.compress(bytes(10**7))
    made = [
        fits.Column("COMPRESSED_DATA", "PB()", array=np.array([np.frombuffer(stream, "u1")], "O")),
        fits.Column("ZSCALE", "D", array=[1.0]),
        fits.Column("ZZERO", "D", array=[0.0]),
    ]
    write_tiles(tmp_path / "a.fits", made)
    with pytest.raises(ReadError, match="a stream is not one of 64 pixels"):
        virtualds.open_virtual_dataset(tmp_path / "a.fits").TILES.load()


WRONG_CARDS = [
    (b"TTYPE1", b"0"),
    # the decoder of astropy would end the process
    *((card, value) for card in (b"ZVAL1", b"ZVAL2") for value in (b"-1", b"0", b"T", b"'a'")),
    (b"ZVAL1", b"99999999999"),
    (b"ZVAL2", b"3"),
]


def replace_card(data: bytes, name: bytes, value: bytes) -> bytes:
    start = data.index(name.ljust(8) + b"=")
    return data[: start + 10] + value.rjust(20).ljust(70) + data[start + 80 :]


@looped(
    "change",
    [
        lambda data: data[:-40],
        lambda data: data[:80],
        lambda data: data.replace(
            b"ZNAXIS1 =                   90", b"ZNAXIS1 =                    9"
        ),
        lambda data: data.replace(
            b"ZBITPIX =                  -32", b"ZBITPIX =                  -64"
        ),
        lambda data: data[:-400] + bytes(400),
        *(lambda data, old=old, new=new: replace_card(data, old, new) for old, new in WRONG_CARDS),
    ],
)
def test_damaged_whole_images_are_errors(change: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", floats("f4"), quantize_level=16.0)
    entry = virtualds.open_virtual_dataset(path).TILES.data.fragments[0].manifest.lookup((0, 0))
    data = path.read_bytes()[entry.offset : entry.offset + entry.length]
    codec = FitsImage(">f4")
    assert len(codec.decode(data, 70 * 90 * 4)) == 70 * 90 * 4
    with pytest.raises(CodecError):
        codec.decode(change(data), 70 * 90 * 4)


def test_images_without_a_name_have_that_of_astropy(tmp_path: Path) -> None:
    made = [fits.CompImageHDU(np.full((8, 8), n, "i2")) for n in range(2)]
    fits.HDUList([fits.PrimaryHDU(), *made]).writeto(tmp_path / "a.fits")
    data = (tmp_path / "a.fits").read_bytes()
    assert data.count(b"EXTNAME = ") == 2
    (tmp_path / "a.fits").write_bytes(data.replace(b"EXTNAME = ", b"OTHER   = "))
    with fits.open(tmp_path / "a.fits") as native:
        assert [unit.name for unit in native[1:]] == ["COMPRESSED_IMAGE"] * 2
    found = virtualds.open_virtual_dataset(tmp_path / "a.fits")
    assert list(found) == ["COMPRESSED_IMAGE", "COMPRESSED_IMAGE_HDU2"]


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"ZTILE1  =                   90", b"ZTILE1  =                   -9"),
        (b"ZTILE2  =                    1", b"ZTILE2  =                    2"),
        (b"ZVAL1   =                   32", b"ZVAL1   =                   -1"),
        (b"BUNIT   = 'adu     '          ", b"THEAP   =            560000000"),
        (b"BUNIT   = 'adu     '          ", b"THEAP   = 'adu     '          "),
        (b"ZBITPIX =                   16", b"ZBITPIX =                   17"),
    ],
)
def test_a_damaged_table_of_tiles_is_an_error(old: bytes, new: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", np.arange(70 * 90, dtype="i2").reshape(70, 90))
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    with pytest.raises(FormatError):
        virtualds.open_virtual_dataset(path)


@pytest.mark.parametrize(
    ("words", "nbytes"),
    [
        ([], 8),
        ([0, 7, -100, 9, 0, 0, 0], 8),
        ([0, 7, -100, 8, 0, 0, 0, 1 << 12], 8),
        ([0, 7, -100, 8, 0, 0, 0, (4 << 12) + 9], 8),
        ([0, 0, 4, -4096], 8),
    ],
)
def test_damaged_masks_are_errors(words: list[int], nbytes: int) -> None:
    with pytest.raises(CodecError):
        PlioTile(">i4").decode(np.array(words, ">i2").tobytes(), nbytes)


def test_damaged_tiles_are_errors() -> None:
    with pytest.raises(CodecError):
        RiceTile(">i4", 32, 4).decode(b"\0\0", 400)
    with pytest.raises(CodecError):
        RiceTile(">i4", 32, 4).decode(b"", 400)
