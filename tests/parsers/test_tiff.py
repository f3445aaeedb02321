"""TIFF files: what tifffile reads of them is what is read through references."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import PIL.Image
import pytest
import tifffile
import xarray as xr
from counting_server import counting_server
from products import looped
from transforms import TRANSFORMS, assert_identical

import virtualds
from virtualds import FormatError, UnsupportedError
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.codec import CodecError
from virtualds.codecs.images import Jpeg
from virtualds.codecs.tiff import Fax


@dataclass(frozen=True)
class Image:
    """Values, and how tifffile writes them."""

    shape: tuple[int, ...] = (70, 90)
    dtype: str = "u2"
    options: dict[str, Any] = field(default_factory=dict)
    file: dict[str, Any] = field(default_factory=dict)
    dims: tuple[str, ...] = ("y", "x")

    def write(self, path: Path) -> Path:
        values = smooth(self.shape, self.dtype)
        with tifffile.TiffWriter(path, **self.file) as file:
            file.write(values, **{"metadata": None, **self.options})
        return path


def smooth(shape: tuple[int, ...], dtype: str) -> Any:
    """Values that compress, and use both signs where there are two."""
    rng = np.random.default_rng(7)
    steps = rng.normal(0, 3, shape).cumsum(-1)
    return (steps - steps.min() if dtype[0] == "u" else steps).astype(dtype)


TILES: dict[str, Any] = {"tile": (32, 48)}
FILL_ORDER = (266, "H", 1, 2, True)
RGB: dict[str, Any] = {"shape": (64, 80, 3), "dtype": "u1", "dims": ("y", "x", "band")}
PLANES: dict[str, Any] = {"shape": (3, 70, 90), "dims": ("band", "y", "x")}
SEPARATE: dict[str, Any] = {"planarconfig": "separate", "photometric": "rgb"}
IMAGES: dict[str, Image] = {
    "contiguous": Image(),
    "one strip": Image(options={"rowsperstrip": 70, "compression": "zlib"}),
    "strips": Image(options={"rowsperstrip": 16, "compression": "zlib"}),
    "whole strips": Image(options={"rowsperstrip": 14, "compression": "zlib", "predictor": 2}),
    "tiles": Image(options=TILES),
    "big-endian": Image(options=TILES | {"compression": "zlib"}, file={"byteorder": ">"}),
    "bigtiff": Image(options=TILES, file={"bigtiff": True}),
    "big-endian bigtiff": Image(file={"bigtiff": True, "byteorder": ">"}),
    "zstd": Image(options=TILES | {"compression": "zstd"}),
    "lzma": Image(options=TILES | {"compression": "lzma"}),
    "lzma strips": Image(options={"rowsperstrip": 9, "compression": "lzma", "predictor": 2}),
    "lzw": Image(options=TILES | {"compression": "lzw"}),
    "lzw strips": Image(options={"rowsperstrip": 9, "compression": "lzw", "predictor": 2}),
    "packbits": Image(dtype="u1", options=TILES | {"compression": "packbits"}),
    **{
        f"predictor 2 of {dtype}{order}": Image(
            dtype=dtype,
            options=TILES | {"compression": "zlib", "predictor": 2},
            file={"byteorder": order},
        )
        for dtype in ("u1", "i2", "u4", "i8")
        for order in "<>"
    },
    **{
        f"predictor 3 of {dtype}{order}": Image(
            dtype=dtype,
            options=TILES | {"compression": "zlib", "predictor": 3},
            file={"byteorder": order},
        )
        for dtype in ("f2", "f4", "f8")
        for order in "<>"
    },
    "predictor 2 of rgb": Image(**RGB, options=TILES | {"compression": "lzw", "predictor": 2}),
    "predictor 3 of pixels": Image(
        **RGB | {"dtype": "f4"},
        options=TILES | {"compression": "zlib", "predictor": 3, "photometric": "rgb"},
    ),
    "rgb": Image(**RGB, options={"photometric": "rgb"}),
    "rgba tiles": Image((64, 80, 4), "u1", TILES | {"extrasamples": (2,)}, {}, RGB["dims"]),
    "planes": Image(**PLANES, options=SEPARATE | {"rowsperstrip": 20, "compression": "zlib"}),
    "tiled planes": Image(**PLANES, options=SEPARATE | TILES | {"compression": "zlib"}),
    "contiguous planes": Image(**PLANES, options=SEPARATE),
    "predicted planes": Image(
        **PLANES, options=SEPARATE | TILES | {"compression": "zlib", "predictor": 2}
    ),
    "gray jpeg": Image((64, 80), "u1", {"tile": (32, 32), "compression": "jpeg"}),
    "rgb jpeg": Image(
        **RGB, options={"tile": (32, 32), "compression": "jpeg", "photometric": "rgb"}
    ),
    "ycbcr jpeg in strips": Image(
        **RGB, options={"rowsperstrip": 24, "compression": "jpeg", "photometric": "ycbcr"}
    ),
    "12-bit jpeg": Image(
        dtype="u2", options={"tile": (32, 32), "compression": "jpeg", "bitspersample": 12}
    ),
    "webp": Image(**RGB, options=TILES | {"compression": "webp"}),
    "webp with alpha": Image(
        (64, 80, 4), "u1", TILES | {"compression": "webp", "extrasamples": (2,)}, {}, RGB["dims"]
    ),
    "png": Image(options=TILES | {"compression": "png"}),
    "jpeg 2000": Image(**RGB, options=TILES | {"compression": "jpeg2000"}),
    "jpeg xl": Image(**RGB, options=TILES | {"compression": "jpegxl"}),
    "lerc": Image(dtype="f4", options=TILES | {"compression": "lerc"}),
    "lerc in strips": Image(**RGB, options={"rowsperstrip": 16, "compression": "lerc"}),
    "lerc in deflate": Image(
        options=TILES | {"compression": "lerc", "compressionargs": {"compression": "deflate"}}
    ),
    "lerc in zstd": Image(
        options=TILES | {"compression": "lerc", "compressionargs": {"compression": "zstd"}}
    ),
    "bilevel": Image(dtype="bool"),
    "bilevel tiles": Image(dtype="bool", options=TILES | {"compression": "zlib"}),
    **{
        f"{bits} bits": Image(dtype=dtype, options={"bitspersample": bits, "rowsperstrip": 14})
        for bits, dtype in {2: "u1", 4: "u1", 7: "u1", 12: "u2", 31: "u4"}.items()
    },
    "5 bits of pixels": Image(**RGB, options={"bitspersample": 5, "photometric": "rgb"}),
    "4 bits of planes": Image(**PLANES | {"dtype": "u1"}, options=SEPARATE | {"bitspersample": 4}),
    "reversed bits": Image(options={"extratags": [FILL_ORDER]}),
    "reversed bits of strips": Image(
        options={"extratags": [FILL_ORDER], "compression": "lzw", "rowsperstrip": 14}
    ),
    "complex": Image(dtype="c8"),
    "pages": Image((4, 30, 40), "i2", {"photometric": "minisblack"}, {}, ("i", "y", "x")),
    "compressed pages": Image(
        (4, 30, 40), "i2", {"photometric": "minisblack", "compression": "zlib", "tile": (16, 16)},
        {}, ("i", "y", "x"),
    ),
    "named axes": Image(
        (2, 3, 30, 40), "u2", {"metadata": {"axes": "TZYX"}, "photometric": "minisblack"}, {},
        ("t", "z", "y", "x"),
    ),
    "pages of rgb": Image(
        (2, 30, 40, 3), "u1", {"photometric": "rgb", "compression": "zlib"}, {},
        ("i", "y", "x", "band"),
    ),
    "imagej": Image(
        (3, 2, 30, 40), "u2", {"metadata": {"axes": "TZYX"}, "photometric": "minisblack"},
        {"imagej": True}, ("t", "z", "y", "x"),
    ),
    "ome": Image(
        (2, 3, 30, 40), "u2", {"metadata": {"axes": "CZYX"}, "photometric": "minisblack"},
        {"ome": True}, ("c", "z", "y", "x"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the images are, each written once when it is asked for."""
    return tmp_path_factory.mktemp("tiff")


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.tif"
    return path if path.exists() else IMAGES[name].write(path)


@looped("name", IMAGES, quick=len(IMAGES) // 3)
def test_values_and_axes_are_those_of_tifffile(name: str, folder: Path) -> None:
    path = written(folder, name)
    expected = tifffile.imread(path)
    found = virtualds.open_virtual_dataset(path)["band_data"]
    assert found.dims == IMAGES[name].dims
    assert found.dtype == expected.dtype
    assert found.values.tobytes() == expected.tobytes()
    # a part of one chunk, and of several
    np.testing.assert_array_equal(found[..., 3:20, 2:60].values, expected[..., 3:20, 2:60])


def from_the_source(path: Path) -> xr.Dataset:
    return xr.open_dataset(path, engine="virtual")


def virtually(path: Path) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path)


def through(suffix: str) -> Callable[[Path], xr.Dataset]:
    def open_references(path: Path) -> xr.Dataset:
        target = path.with_suffix(suffix)
        if not target.exists():
            virtualds.open_virtual_dataset(path).virtual.to_manifest(target)
        return xr.open_dataset(target, engine="virtual")

    return open_references


OPENERS = {
    "source": from_the_source,
    "virtual": virtually,
    **{suffix: through(suffix) for suffix in (".json", ".parquet", ".zarr")},
}
RAGGED = {"strips", "lzw strips", "lzma strips", "planes"}
"""Images whose last strips are shorter, which kerchunk's formats cannot say."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", IMAGES)
@looped("opener", OPENERS, quick=1)
def test_transforming_and_opening_commute(name: str, opener: str, folder: Path) -> None:
    path = written(folder, name)
    if name in RAGGED and opener in (".json", ".parquet"):
        with pytest.raises(UnsupportedError):
            OPENERS[opener](path)
        return
    opened = OPENERS[opener](path)
    native = virtually(path)
    native["band_data"] = native["band_data"].copy(data=tifffile.imread(path))
    # transforms take turns: what they do to an array is not up to how its image is stored
    turn = [*IMAGES].index(name) + [*OPENERS].index(opener)
    for change in list(TRANSFORMS.values())[turn % 4 :: 4]:
        assert_identical(change(opened), change(native))


# ---------------------------------------------------------------------- georeference


def keys(point: bool = False, model: int = 1, code: int = 32618) -> tuple[int, ...]:
    """A directory of GeoKeys: model, raster type, and the code of the system."""
    name = 3072 if model == 1 else 2048
    entries = (1024, 0, 1, model, 1025, 0, 1, 2 if point else 1, name, 0, 1, code)
    return (1, 1, 0, 3, *entries)


def geo(*tags: tuple[int, str, Any], nodata: str | None = None, xml: str | None = None) -> Any:
    """Extra tags, as tifffile takes them."""
    found = [(code, kind, len(value), value, True) for code, kind, value in tags]
    if nodata is not None:
        found.append((42113, "s", 0, nodata, True))
    if xml is not None:
        found.append((42112, "s", 0, xml, True))
    return {"extratags": found}


SCALE = (33550, "d", (30.0, 20.0, 0.0))
TIE = (33922, "d", (0.0, 0.0, 0.0, 500000.0, 4000000.0, 0.0))
MATRIX = (
    34264, "d", (30.0, 0.0, 0.0, 500000.0, 0.0, -20.0, 0.0, 4e6, *[0.0] * 7, 1.0),
)  # fmt: skip
ROTATED = (34264, "d", (30.0, 1.0, 0.0, 5e5, 2.0, -20.0, 0.0, 4e6, *[0.0] * 7, 1.0))


def georeferenced(path: Path, *tags: Any, dtype: str = "i2", **more: Any) -> Path:
    Image(dtype=dtype, options=TILES | geo(*tags, **more)).write(path)
    return path


@pytest.mark.parametrize("place", [(SCALE, TIE), (MATRIX,)], ids=["scale", "matrix"])
@pytest.mark.parametrize("point", [False, True])
def test_coordinates_are_the_centres_of_pixels(place: Any, point: bool, tmp_path: Path) -> None:
    path = georeferenced(tmp_path / "a.tif", *place, (34735, "H", keys(point)))
    ds = virtualds.open_virtual_dataset(path)
    half = 0 if point else 0.5
    np.testing.assert_allclose(ds.x, 500000 + 30 * (np.arange(90) + half), rtol=0, atol=1e-6)
    np.testing.assert_allclose(ds.y, 4000000 - 20 * (np.arange(70) + half), rtol=0, atol=1e-6)
    assert ds.spatial_ref.attrs["spatial_ref"].endswith('AUTHORITY["EPSG","32618"]]')
    assert ds.spatial_ref.attrs["longitude_of_central_meridian"] == -75
    assert ds.spatial_ref.attrs["GTModelTypeGeoKey"] == 1
    assert ds.band_data.attrs["AREA_OR_POINT"] == ("Point" if point else "Area")
    assert ds.band_data.attrs["grid_mapping"] == "spatial_ref"
    assert "spatial_ref" in ds.coords
    corner = [float(n) for n in ds.spatial_ref.attrs["GeoTransform"].split()]
    assert corner == [
        500000 - 15 * point, 30, 0, 4000000 + 10 * point, 0, -20
    ]  # fmt: skip


def test_rotated_pixels_have_no_coordinates_but_a_transform(tmp_path: Path) -> None:
    path = georeferenced(tmp_path / "a.tif", ROTATED, (34735, "H", keys()))
    ds = virtualds.open_virtual_dataset(path)
    assert not {"x", "y"} & set(ds.coords)
    assert ds.spatial_ref.attrs["GeoTransform"] == "500000.0 30.0 1.0 4000000.0 2.0 -20.0"


@pytest.mark.parametrize(
    ("model", "code", "begins"),
    [
        (1, 32618, 'PROJCS["WGS 84 / UTM zone 18N"'), (2, 4326, 'GEOGCS["WGS 84"'),
        (1, 32767, None), (3, 4978, None),
    ],
)  # fmt: skip
def test_a_system_that_has_a_code_is_written_as_text(
    model: int, code: int, begins: str | None, tmp_path: Path
) -> None:
    tags = (SCALE, TIE, (34735, "H", keys(model=model, code=code)))
    attrs = virtualds.open_virtual_dataset(
        georeferenced(tmp_path / "a.tif", *tags)
    ).spatial_ref.attrs
    assert attrs.get("spatial_ref", "")[: len(begins or "x")] == (begins or "")
    assert attrs.get("crs_wkt") == attrs.get("spatial_ref")


NODATA = {
    "i2": ("-1", -1), "u1": ("255", 255),
    "f4": ("-3.4028234663852886e+38", np.float32(-3.4028235e38)),
    "f8": ("nan", np.nan), "u2": ("-9999", None), "i4": ("1.5", None),
}  # fmt: skip


@pytest.mark.parametrize("dtype", NODATA)
def test_nodata_is_a_fill_value_if_a_pixel_can_have_it(dtype: str, tmp_path: Path) -> None:
    text, value = NODATA[dtype]
    path = georeferenced(tmp_path / "a.tif", dtype=dtype, nodata=text)
    attrs = virtualds.open_virtual_dataset(path, decode_cf=False).band_data.attrs
    if value is None:
        assert attrs["nodata"] == text
        assert "_FillValue" not in attrs
    else:
        np.testing.assert_equal(attrs["_FillValue"], value)
        assert attrs["_FillValue"].dtype == np.dtype(dtype)


def test_names_units_and_packing_of_bands_are_attributes(tmp_path: Path) -> None:
    xml = (
        "<GDALMetadata><Item name='SENSOR'>OLI</Item>"
        "<Item name='DESCRIPTION' sample='0' role='description'>red</Item>"
        "<Item name='DESCRIPTION' sample='2' role='description'>blue</Item>"
        "<Item name='SCALE' sample='0' role='scale'>0.5</Item>"
        "<Item name='SCALE' sample='1' role='scale'>0.5</Item>"
        "<Item name='SCALE' sample='2' role='scale'>0.5</Item>"
        "<Item name='OFFSET' sample='1' role='offset'>3</Item></GDALMetadata>"
    )
    image = Image(**RGB, options=TILES | {"photometric": "rgb"} | geo(xml=xml))
    path = image.write(tmp_path / "a.tif")
    attrs = virtualds.open_virtual_dataset(path, decode_cf=False).band_data.attrs
    assert attrs["long_name"] == ["red", "", "blue"]
    assert (attrs["scales"], attrs["offsets"]) == ([0.5, 0.5, 0.5], [0.0, 3.0, 0.0])
    assert attrs["SENSOR"] == "OLI"
    assert not {"scale_factor", "add_offset"} & set(attrs)


def test_no_value_gets_a_part_of_the_packing_of_its_band(tmp_path: Path) -> None:
    ones = {"scale": (1.0,) * 3, "offset": (0.0,) * 3}
    for given in (
        {"scale": (2.0,) * 3, "offset": (1.0, 5.0, 5.0)},
        {"scale": (2.0, 2.0, 3.0), "offset": (5.0,) * 3},
        {"scale": (2.0, 2.0, 3.0), "offset": (1.0, 5.0, 5.0)},
        {"offset": (1.0, 1.0, 5.0)},
        {"scale": (2.0,) * 3, "offset": (5.0,) * 3},
    ):
        items = "".join(
            f"<Item name='{role.upper()}' sample='{band}' role='{role}'>{number}</Item>"
            for role, numbers in given.items()
            for band, number in enumerate(numbers)
        )
        xml = f"<GDALMetadata>{items}</GDALMetadata>"
        image = Image(**RGB, options=TILES | {"photometric": "rgb"} | geo(xml=xml))
        path = image.write(tmp_path / "a.tif")
        stored = virtualds.open_virtual_dataset(path, decode_cf=False).band_data.values
        found = virtualds.open_virtual_dataset(path).band_data
        scales, offsets = (np.array((ones | given)[role]) for role in ("scale", "offset"))
        whole = stored * scales[0] + offsets[0]
        if len({*scales}) == len({*offsets}) == 1:
            np.testing.assert_array_equal(found.values, whole)
            continue
        # the numbers of the file, and what each band is to be packed by
        np.testing.assert_array_equal(found.values, stored)
        assert {f"{role}s": found.attrs.get(f"{role}s") for role in given} == {
            f"{role}s": list(numbers) for role, numbers in given.items()
        }


def test_odd_items_of_gdal_are_read_as_gdal_reads_them(tmp_path: Path) -> None:
    def opened(*items: str, **how: Any) -> xr.DataArray:
        xml = f"<GDALMetadata>{''.join(items)}<Item name='SENSOR'>OLI</Item></GDALMetadata>"
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.tif"
        georeferenced(path, xml=xml)
        found = virtualds.open_virtual_dataset(path, decode_cf=False, **how)
        assert set(found.variables) >= {"band_data"} or how
        return found.get("band_data", found)

    # what rasterio has for these, of GDAL 3.12
    for text, scale in {"2": 2.0, "0,5": 0.5, " 2 m": 2.0, "1e1": 10.0, "": None}.items():
        for band in ("0", "x", "0 of 1"):
            attrs = opened(f"<Item sample='{band}' role='scale'>{text}</Item>").attrs
            assert (attrs.get("scale_factor"), attrs["SENSOR"]) == (scale, "OLI")
    attrs = opened(
        "<Item name='A' sample='x'>1</Item><Item sample='&#178;'>2</Item><Item>3</Item>"
    ).attrs
    assert (attrs["A_band_1"], attrs["Item_band_1"], attrs["Item"]) == ("1", "2", "3")
    odd = "<Item sample='0' role='scale'>abc</Item>"
    with pytest.raises(UnsupportedError, match=r"scales of the bands in GDAL_METADATA, \['abc'\]"):
        opened(odd)
    with pytest.warns(UserWarning, match="band_data"):
        assert "band_data" not in opened(odd, on_error="skip")


# ---------------------------------------------------------------------- trees


def pyramid(path: Path, cloud: bool = False) -> Path:
    """An image with two overviews, as GDAL writes them, or in sub-IFDs."""
    values = smooth((512, 384), "u2")
    how = {"tile": (64, 64), "compression": "zlib", "metadata": None}
    with tifffile.TiffWriter(path) as file:
        extra = geo(SCALE, TIE, (34735, "H", keys()))
        file.write(values, **how, **extra, subifds=0 if cloud else 2)
        for step in (2, 4):
            file.write(values[::step, ::step], **how, subfiletype=1)
    return path


@pytest.mark.parametrize("cloud", [True, False], ids=["pages", "sub-IFDs"])
def test_overviews_are_groups_on_the_same_ground(cloud: bool, tmp_path: Path) -> None:
    path = pyramid(tmp_path / "a.tif", cloud)
    full = virtualds.open_virtual_dataset(path)
    for level in (1, 2):
        ds = virtualds.open_virtual_dataset(path, group=str(level))
        np.testing.assert_array_equal(ds.band_data, tifffile.imread(path, level=level))
        step = 2**level
        # the centre of a coarse pixel is the mean of those of the fine ones
        np.testing.assert_allclose(ds.x, full.x.values.reshape(-1, step).mean(1))
        np.testing.assert_allclose(ds.y, full.y.values.reshape(-1, step).mean(1))
    tree = virtualds.open_virtual_datatree(path)
    assert list(tree.children) == ["0", "1", "2"]
    np.testing.assert_array_equal(tree["0/band_data"], full.band_data)
    assert tree["2"].to_dataset()["band_data"].shape == (128, 96)
    with pytest.raises(FileNotFoundError, match="'3'"):
        virtualds.open_virtual_dataset(path, group="3")


def test_further_images_are_groups(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for shape in ((20, 30), (8, 9, 3)):
            file.write(smooth(shape, "u1"), metadata=None)
    second = virtualds.open_virtual_dataset(tmp_path / "a.tif", group="series_1")
    assert second.band_data.dims == ("y", "x", "band")
    np.testing.assert_array_equal(second.band_data, smooth((8, 9, 3), "u1"))


# ---------------------------------------------------------------------- tiles that are not there


def without_a_tile(path: Path, nodata: str | None) -> Path:
    """A file one of whose tiles has offset and length 0."""
    Image(dtype="i2", options=TILES | geo(nodata=nodata)).write(path)
    with tifffile.TiffFile(path, mode="r+") as file:
        for name in ("TileOffsets", "TileByteCounts"):
            tag = file.pages[0].tags[name]
            tag.overwrite([*tag.value[:2], 0, *tag.value[3:]])
    return path


@pytest.mark.parametrize("nodata", [None, "-7"])
def test_tiles_that_are_not_there_are_nodata_or_zero(nodata: str | None, tmp_path: Path) -> None:
    path = without_a_tile(tmp_path / "a.tif", nodata)
    found = virtualds.open_virtual_dataset(path, decode_cf=False).band_data
    expected = tifffile.imread(path)
    assert (expected[32:64, :48] == int(nodata or 0)).all()
    np.testing.assert_array_equal(found, expected)
    decoded = virtualds.open_virtual_dataset(path).band_data
    assert bool(decoded[40, 3].isnull()) is (nodata is not None)


# ---------------------------------------------------------------------- what is refused, and how


REFUSED: dict[str, tuple[Image, str]] = {
    "jpeg xr": (Image(**RGB, options=TILES | {"compression": "jpegxr"}), r"JPEGXR \(34934\)"),
    "volume": (
        Image((16, 32, 32), options={"volumetric": True, "tile": (16, 16, 16)}), "volumes"
    ),
    "24 bits big-endian": (
        Image(dtype="u4", options={"bitspersample": 24}, file={"byteorder": ">"}),
        "24 bits .* big-endian",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_images_without_chunks_or_codec_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    image, what = REFUSED[kind]
    try:
        path = image.write(tmp_path / "a.tif")
    except (ValueError, RuntimeError, NotImplementedError) as error:
        pytest.skip(f"tifffile does not write it here: {error}")
    with pytest.raises(UnsupportedError, match=what):
        virtualds.open_virtual_dataset(path)
    with pytest.warns(UserWarning, match="band_data"):
        kept = virtualds.open_virtual_dataset(path, on_error="skip")
    assert "band_data" not in kept


DAMAGED = ["strips", "tiles", "lzw", "predictor 3 of f4<", "rgb jpeg", "lerc in zstd", "12 bits"]


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_an_error_and_never_other_values(kind: str, tmp_path: Path) -> None:
    data = IMAGES[kind].write(tmp_path / "whole.tif").read_bytes()
    expected = tifffile.imread(tmp_path / "whole.tif")
    path = tmp_path / "damaged.tif"
    outcomes = set()
    for size in range(0, len(data), max(len(data) // 60, 1)):
        path.write_bytes(data[:size])
        outcomes.add(outcome(path, expected))
    rng = np.random.default_rng(1)
    for _ in range(60):
        # in the header, which tifffile and we may both take at its word: it has to end well
        damaged = bytearray(data)
        damaged[rng.integers(4, 300)] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        outcome(path, None)
    assert "FormatError" in outcomes
    assert outcomes <= {"FormatError", "UnsupportedError", "ReadError", "equal"}


def outcome(path: Path, expected: Any) -> str:
    """What becomes of reading a file."""
    try:
        found = virtualds.open_virtual_dataset(path).get("band_data")
        if found is None or found.size > 10**7:
            return "other"
        values = found.values
    except virtualds.VirtualdsError as error:
        return type(error).__name__
    return "equal" if expected is not None and np.array_equal(values, expected) else "other"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("back", [0, 1])
def test_circles_of_pages_come_to_an_end(back: int, tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as file:
        for _ in range(3):
            file.write(np.arange(12, dtype="u2").reshape(3, 4), metadata=None)
    with tifffile.TiffFile(path) as file:
        pages = [page.offset for page in file.pages]
        tags = [len(page.tags) for page in file.pages]
    with path.open("r+b") as raw:
        # the last page says that another follows, which came before it
        raw.seek(pages[2] + 2 + 12 * tags[2])
        raw.write(struct.pack("<I", pages[back]))
    opened = virtualds.open_virtual_dataset(path)
    assert opened["band_data"].sizes["y"] == 3


@pytest.mark.parametrize("tag", ["SampleFormat", "BitsPerSample", "Predictor", "Compression"])
@pytest.mark.parametrize("bigtiff", [False, True])
def test_a_tag_that_cannot_be_read_is_damage_and_not_its_default(
    tag: str, bigtiff: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.tif"
    values = np.arange(64 * 48, dtype="f4").reshape(64, 48)
    tifffile.imwrite(path, values, bigtiff=bigtiff, compression="deflate", predictor=True)
    with tifffile.TiffFile(path) as file:
        place = file.pages[0].tags[tag].offset
    with path.open("r+b") as raw:
        # the type of the tag's values, which is none
        raw.seek(place + 2)
        raw.write(b"\x77\x77")
    with pytest.raises(FormatError, match="cannot be read"):
        virtualds.open_virtual_dataset(path)


@pytest.mark.parametrize("number", [0, 4])
def test_pages_of_one_image_that_are_stored_otherwise_are_refused(
    number: int, tmp_path: Path
) -> None:
    """Of the pages of ImageJ, tifffile reads the first header alone."""
    path = IMAGES["imagej"].write(tmp_path / "a.tif")
    data = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tiff:
        tag = tiff.pages[number].aspage().tags["BitsPerSample"]
    assert data[tag.valueoffset] == 16
    data[tag.valueoffset] = 8
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"and have other tags \[258\]"):
        virtualds.open_virtual_dataset(path)


def test_chunks_whose_bytes_are_damaged_are_named(tmp_path: Path) -> None:
    path = IMAGES["strips"].write(tmp_path / "a.tif")
    with tifffile.TiffFile(path) as file:
        place = file.pages[0].dataoffsets[1]
    with path.open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\xff" * 20)
    with pytest.raises(virtualds.ReadError, match="band_data"):
        virtualds.open_virtual_dataset(path).band_data.values  # noqa: B018


def test_an_image_that_is_cut_off_is_an_error_and_not_filled_up() -> None:
    pixels = np.arange(64 * 48, dtype="u1").reshape(64, 48)
    whole = imagecodecs.jpeg8_encode(pixels, level=90)
    assert len(Jpeg().decode(whole + b"\0", pixels.size)) == pixels.size
    for kept in (len(whole) - 1, len(whole) // 2):
        with pytest.raises(CodecError, match="no end"):
            Jpeg().decode(whole[:kept], pixels.size)


def test_without_tifffile_the_package_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    path = IMAGES["tiles"].write(tmp_path / "a.tif")
    monkeypatch.setitem(__import__("sys").modules, "tifffile", None)
    with pytest.raises(UnsupportedError, match=r"pip install tifffile$"):
        virtualds.open_virtual_dataset(path)


# ---------------------------------------------------------------------- far away


def test_a_header_costs_one_request_over_http(tmp_path: Path) -> None:
    pyramid(tmp_path / "a.tif", cloud=True)
    with counting_server(tmp_path) as (url, counts):
        ds = virtualds.open_virtual_dataset(f"{url}/a.tif")
        assert counts.of("a.tif") == 1
        sent = counts.sent
        values = ds.band_data[:64, :64].values
        assert counts.of("a.tif") == 2
        assert counts.sent - sent < 64 * 64 * 2
        np.testing.assert_array_equal(values, tifffile.imread(tmp_path / "a.tif")[:64, :64])


def test_the_header_of_a_large_file_costs_few_requests(tmp_path: Path) -> None:
    # GDAL and tifffile write the directory of an image behind its tiles unless told otherwise
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**16, (2048, 2048)).astype("u2")
    tifffile.imwrite(tmp_path / "a.tif", values, tile=(256, 256), compression="zlib", metadata=None)
    with counting_server(tmp_path) as (url, counts):
        ds = virtualds.open_virtual_dataset(f"{url}/a.tif")
        assert counts.of("a.tif") <= 3
        assert counts.sent < 2**20
        np.testing.assert_array_equal(ds.band_data[700:710, 5], values[700:710, 5])


def test_many_images_are_one_dataset(tmp_path: Path) -> None:
    for number in range(3):
        values = smooth((70, 90), "i2") + np.int16(number)
        tifffile.imwrite(tmp_path / f"{number}.tif", values, **TILES, compression="zlib")
    vds = virtualds.open_virtual_mfdataset(
        [tmp_path / f"{n}.tif" for n in range(3)],
        combine="nested",
        concat_dim="time",
        data_vars="all",
    )
    vds.virtual.to_manifest(tmp_path / "refs.json")
    again = xr.open_dataset(tmp_path / "refs.json", engine="virtual")
    for number in range(3):
        expected = tifffile.imread(tmp_path / f"{number}.tif")
        np.testing.assert_array_equal(again.band_data[number], expected)


def test_a_stack_of_scenes_costs_a_request_for_each(tmp_path: Path) -> None:
    days = [f"2024-01-{day:02}" for day in (1, 4, 9)]
    for number, day in enumerate(days):
        values = smooth((70, 90), "i2") + np.int16(number)
        place = geo(SCALE, TIE, (34735, "H", keys()))
        tifffile.imwrite(tmp_path / f"scene_{day}.tif", values, metadata=None, **TILES, **place)
    when = virtualds.FromName(r"_(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)")
    with counting_server(tmp_path) as (url, counts):
        vds = virtualds.open_virtual_mfdataset(
            [f"{url}/scene_{day}.tif" for day in days],
            combine="nested",
            concat_dim="time",
            data_vars="all",
            coordinates={"time": when},
        )
        assert len(counts.requests) == len(days)
        assert list(vds.time.dt.strftime("%Y-%m-%d").values) == days
        assert vds.x.dims == ("x",)
        assert vds.spatial_ref.dims == ()
        assert "crs_wkt" in vds.spatial_ref.attrs
        for number, day in enumerate(days):
            expected = tifffile.imread(tmp_path / f"scene_{day}.tif")
            np.testing.assert_array_equal(vds.band_data[number], expected)


def test_other_readers_of_zarr_decode_what_they_know(folder: Path) -> None:
    import imagecodecs.numcodecs
    import zarr
    from zarr.storage import FsspecStore

    imagecodecs.numcodecs.register_codecs(verbose=False)
    for name in (
        *("predictor 2 of u4<", "predictor 2 of u4>", "predictor 2 of rgb"),
        *("predictor 3 of f4<", "predictor 3 of f4>", "packbits"),
    ):
        through(".json")(written(folder, name))
        references = json.loads((folder / f"{name}.json").read_text())
        import fsspec

        system = fsspec.filesystem("reference", fo=references, asynchronous=True)
        store = FsspecStore(system, read_only=True)
        found = zarr.open_group(store, mode="r", zarr_format=2)["band_data"][...]
        np.testing.assert_array_equal(found, tifffile.imread(folder / f"{name}.tif"))


def padded_strips(path: Path, values: Any, rows: int, **how: Any) -> None:
    """Write an image whose last strip holds as many rows as the others, as some writers do."""
    axis = 1 if "planarconfig" in how else 0
    length = values.shape[axis]
    beyond = [(0, 0)] * values.ndim
    beyond[axis] = (0, -length % rows)
    whole = np.pad(values, beyond, constant_values=77)
    tifffile.imwrite(path, whole, rowsperstrip=rows, metadata=None, **how)
    with tifffile.TiffFile(path) as file:
        tag, order = file.pages.first.tags["ImageLength"], file.byteorder
    data = bytearray(path.read_bytes())
    struct.pack_into(order + {3: "H", 4: "I"}[int(tag.dtype)], data, tag.valueoffset, length)
    path.write_bytes(data)


PADDED: dict[str, dict[str, Any]] = {
    "plain": {},
    "lzw": {"compression": "lzw"},
    "packbits": {"compression": "packbits"},
    "deflate": {"compression": 8},
    "old deflate": {"compression": 32946},
    "zstd": {"compression": "zstd"},
    "lzma": {"compression": "lzma"},
    "jpeg": {"compression": "jpeg"},
    "predicted": {"compression": "zlib", "predictor": 2},
}
"""How strips are compressed of which the last holds rows that the image does not have."""


@looped("compression", PADDED)
@looped("shape", [(50, 40), (50, 40, 3), (49, 31), (9, 31)], quick=1)
def test_bytes_of_a_strip_beyond_the_image_are_dropped(
    shape: tuple[int, ...], compression: str, tmp_path: Path
) -> None:
    values = np.random.default_rng(2).integers(0, 20, shape).astype("u1")
    colours = {"photometric": "rgb"} if len(shape) == 3 else {}
    padded_strips(tmp_path / "a.tif", values, 16, **PADDED[compression], **colours)
    # tifffile refuses some strips that are longer than it expects, libtiff cuts all
    if compression in ("plain", "lzw", "lzma", "jpeg"):
        values = tifffile.imread(tmp_path / "a.tif")
    else:
        values = imagecodecs.tiff_decode((tmp_path / "a.tif").read_bytes())
    assert values.shape == shape
    dataset = virtualds.open_virtual_dataset(tmp_path / "a.tif")
    np.testing.assert_array_equal(dataset.band_data, values)
    np.testing.assert_array_equal(dataset.band_data[-3:, 3:9], values[-3:, 3:9])
    for suffix in (".zarr",) if compression == "plain" else (".zarr", ".json"):
        dataset.virtual.to_manifest(tmp_path / f"refs{suffix}")
        again = xr.open_dataset(tmp_path / f"refs{suffix}", engine="virtual")
        np.testing.assert_array_equal(again.band_data, values)


@pytest.mark.parametrize("dtype", ["<i2", ">f4"])
def test_padded_strips_of_any_numbers_are_read(dtype: str, tmp_path: Path) -> None:
    how = {"compression": "zlib", "predictor": True, "byteorder": dtype[0]}
    values = smooth((50, 40), dtype)
    padded_strips(tmp_path / "a.tif", values, 16, **how)
    found = virtualds.open_virtual_dataset(tmp_path / "a.tif").band_data
    np.testing.assert_array_equal(found, values)


def test_the_padded_strips_of_every_plane_are_read(tmp_path: Path) -> None:
    values = smooth((3, 50, 40), "u2")
    padded_strips(tmp_path / "a.tif", values, 16, compression="zlib", **SEPARATE)
    found = virtualds.open_virtual_dataset(tmp_path / "a.tif").band_data
    assert found.shape == values.shape
    np.testing.assert_array_equal(found, values)


@looped("compression", sorted(PADDED.keys() - {"plain"}))
@looped("padded", [True, False])
def test_a_damaged_last_strip_is_an_error_when_it_is_read(
    padded: bool, compression: str, tmp_path: Path
) -> None:
    path, values = tmp_path / "a.tif", smooth((50, 40), "u1")
    if padded:
        padded_strips(path, values, 16, **PADDED[compression])
    else:
        tifffile.imwrite(path, values, rowsperstrip=16, metadata=None, **PADDED[compression])
    with tifffile.TiffFile(path) as file:
        place, size = file.pages.first.dataoffsets[-1], file.pages.first.databytecounts[-1]
        sound = file.pages.first.segments()
        before = np.concatenate([next(sound)[0][0, :, :, 0] for _ in range(3)])
    data = bytearray(path.read_bytes())
    data[place : place + size] = b"\x80" * size
    path.write_bytes(data)
    found = virtualds.open_virtual_dataset(path).band_data
    np.testing.assert_array_equal(found[:48], before)
    with pytest.raises(virtualds.ReadError, match="decode"):
        found[48:].values  # noqa: B018


def test_whether_strips_are_padded_costs_one_request_at_most(tmp_path: Path) -> None:
    values = np.random.default_rng(3).integers(0, 2**16, (1500, 1000)).astype("u2")
    for name, rows in {"whole": 100, "cut": 64}.items():
        tifffile.imwrite(
            tmp_path / f"{name}.tif", values, rowsperstrip=rows, compression="zlib", metadata=None
        )
    with counting_server(tmp_path) as (url, counts):
        for name in ("whole", "cut"):
            virtualds.open_virtual_dataset(f"{url}/{name}.tif")
        assert counts.of("cut.tif") <= counts.of("whole.tif") + 1
        assert counts.sent < 2**21


# ---------------------------------------------------------------------- bits


def test_fax_of_group_4_is_read(tmp_path: Path) -> None:
    """Rows of 4 white and 12 black pixels: one in full, the others as the row above."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((8, 16), bool), photometric="miniswhite")
    # ITU-T T.6, 2.2: horizontal mode, 4 white, 12 black; seven rows without a change; two ends
    text = "001" + "1011" + "0000111" + "11" * 7 + "000000000001" * 2
    bits = text.ljust(-(-len(text) // 8) * 8, "0")
    data = int(bits, 2).to_bytes(len(bits) // 8, "big")
    with tifffile.TiffFile(path, mode="r+") as file:
        tags = file.pages.first.tags
        tags["Compression"].overwrite(4)
        tags["StripByteCounts"].overwrite(len(data))
        file.filehandle.seek(tags["StripOffsets"].value[0])
        file.filehandle.write(data)
    found = virtualds.open_virtual_dataset(path).band_data
    np.testing.assert_array_equal(found.values, np.tile(np.arange(16) >= 4, (8, 1)))
    np.testing.assert_array_equal(found.values, tifffile.imread(path))


def test_fax_of_every_kind_is_what_its_writer_reads(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((37, 61)) < np.linspace(0, 1, 61)
    kinds: dict[str, list[dict[int, int]]] = {
        "tiff_ccitt": [{}], "group3": [{}, {292: 1}, {292: 4}, {292: 5}], "group4": [{}],
    }  # fmt: skip
    for kind, ways in kinds.items():
        # rows to a strip; the order of bits in a byte
        for tags, rows, order in itertools.product(ways, (37, 8), (1, 2)):
            path = tmp_path / f"{kind}{tags}{rows}{order}.tif"
            how = tags | {278: rows, 266: order}
            PIL.Image.fromarray(values).save(path, compression=kind, tiffinfo=how)
            found = virtualds.open_virtual_dataset(path)
            np.testing.assert_array_equal(found.band_data, values, err_msg=path.name)
            np.testing.assert_array_equal(found.band_data, PIL.Image.open(path))
            if order == 1 and tags == ways[-1]:
                found.virtual.to_manifest(path.with_suffix(".zarr"))
                again = xr.open_dataset(path.with_suffix(".zarr"), engine="virtual")
                np.testing.assert_array_equal(again.band_data, values)
    fax = {"id": "virtualds_fax4", "width": 8, "compression": 3, "options": 0}
    with pytest.raises(CodecError, match="0 bytes are not 64"):
        codec_from_zarr_v2(fax).decode(b"", 64)
    with pytest.raises(UnsupportedError, match="uncompressed mode"):
        codec_from_zarr_v2(fax | {"options": 2})


IMAGE_CODECS = ["webp", "png", "jpeg2k", "jpegxl", "lerc"]


@pytest.mark.parametrize("name", IMAGE_CODECS)
def test_damaged_images_are_errors_of_the_codec(name: str) -> None:
    values = smooth((40, 50, 3), "u1")
    stream = getattr(imagecodecs, f"{name}_encode")(values)
    codec = codec_from_zarr_v2({"id": f"imagecodecs_{name}"})
    assert len(codec.decode(stream, values.nbytes)) == values.nbytes
    for size in (0, 5, 20, 40):
        with pytest.raises(CodecError, match=name):
            codec.decode(stream[:size], values.nbytes)
    with pytest.raises(CodecError, match="not of 5999 bytes"):
        codec.decode(stream, values.nbytes - 1)


@pytest.mark.parametrize("name", IMAGE_CODECS)
def test_a_header_that_asks_for_too_much_is_refused_before_decoding(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = getattr(imagecodecs, f"{name}_encode")(smooth((40, 50, 3), "u1"))
    called: list[Any] = []
    monkeypatch.setattr(imagecodecs, f"{name}_decode", lambda *a, **k: called.append(a))
    with pytest.raises(CodecError, match="an image of 2000 pixels"):
        codec_from_zarr_v2({"id": f"imagecodecs_{name}"}).decode(stream, 1500)
    assert not called


def test_sets_written_when_fax_was_of_group_4_alone_open() -> None:
    known = codec_from_zarr_v2({"id": "virtualds_fax4", "width": 8})
    assert known == Fax(8, compression=4)


def test_overviews_are_verified_as_the_images_that_they_are(tmp_path: Path) -> None:
    path = pyramid(tmp_path / "a.tif")
    for level in ("1", "2"):
        found = virtualds.open_virtual_dataset(path, group=level).virtual.verify(None, "native")
        assert found.ok and sum(found.compared.values()) > 0, found
