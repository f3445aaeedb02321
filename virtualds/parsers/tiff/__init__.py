"""TIFF files through tifffile: BigTIFF, GeoTIFF and cloud optimised GeoTIFF too.

tifffile reads the headers and says which pages make one image; `virtualds.parsers.tiff.pages`
turns pages into references. Overviews are groups ``"1"``, ``"2"`` ..., further images
``"series_1"`` ...
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import NativeReader, NativeRegion, Parser, ReadNative, stored_values
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.extras import import_package
from virtualds.parsers.geo_keys import REFERENCE_SYSTEM, describe_system
from virtualds.parsers.tiff.pages import build_page_array, nodata_of, read_geo_keys
from virtualds.source_file import SourceFile
from virtualds.stores.scan_cache import describe_damage, open_source
from virtualds.urls import path_or_url

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""Byte order and version: of TIFF (6.0, section 2), then of BigTIFF."""
STORAGE_TAGS: dict[int, tuple[int, ...]] = {
    **dict.fromkeys((256, 257, 322, 323), (0,)),
    **dict.fromkeys((258, 259, 266, 277, 284, 317, 339), (1,)),
    278: (2**32 - 1,),
}
"""Tags that say how a page is stored (TIFF 6.0, section 8), and their values if they are not there:
lengths of the image and of tiles; bits, compression, order of bits, samples, planes, predictor,
format; rows of a strip."""
INTEGER_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}
"""Types of tags that are integers without a sign."""
TIFF_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""Errors that tifffile raises for damaged files."""
IMAGE = "band_data"
"""Name of the variable, as in rioxarray."""
DIMS = {"S": "band"}
"""Names of axes that are not tifffile's letters in lower case."""
TEXTS = {
    "ImageDescription": "TIFFTAG_IMAGEDESCRIPTION",
    "DocumentName": "TIFFTAG_DOCUMENTNAME",
    "Software": "TIFFTAG_SOFTWARE",
    "DateTime": "TIFFTAG_DATETIME",
    "Artist": "TIFFTAG_ARTIST",
    "HostComputer": "TIFFTAG_HOSTCOMPUTER",
    "Copyright": "TIFFTAG_COPYRIGHT",
}
"""Tags that are attributes, under the names that GDAL gives them."""
PIXEL_IS_POINT = 2


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is TIFF."""
    return head[:4] in SIGNATURES


def read(
    source: SourceFile, group: str | None = None, skip: Iterable[str] = (), *, below: bool = False
) -> ManifestGroup:
    """Read the structure of an image, or of one of its overviews.

    Parameters
    ----------
    source : SourceFile
        The file with its fingerprint.
    group : str, optional
        ``"1"``, ``"2"`` ... are overviews, ``"0"`` is the image in the root; ``"series_1"`` ... are
        further images.
    skip : iterable of str
        Names of variables to leave out.
    below : bool
        Whether an image and its overviews are siblings, since children share the axes of their
        parent in a tree. The image itself is the group ``"0"`` then, unless it is the only one.

    Raises
    ------
    UnsupportedError
        tifffile is not installed.
    FormatError
        The file is damaged or truncated.
    FileNotFoundError
        There is no such group.
    """
    tifffile = import_package("tifffile", source.url, "reading a TIFF file")
    skipped = frozenset(skip)
    with (
        describe_damage(source, "TIFF", TIFF_ERRORS),
        open_source(source) as file,
        tifffile.TiffFile(file, name=path_or_url(source.url)) as tiff,
    ):
        # counting pages ends even if they form a circle; listing images would not
        if not len(tiff.pages) or not tiff.series:
            raise FormatError(
                f"{source.url}: the TIFF file has no image; the file is damaged, fetch it again"
            )
        images = list(_list_images(tiff))
        for _, levels, number in images:
            _demand_all_tags(file, tiff.tiff, levels[number].keyframe)
        groups = {
            path: _build_group(source, levels, number, skipped) for path, levels, number in images
        }
    root = groups.pop("")
    nested: dict[str, ManifestGroup] = {}
    for path, found in groups.items():
        above, _, name = path.rpartition("/")
        if above:
            nested[above] = replace(nested[above], groups={**nested[above].groups, name: found})
        else:
            nested[name] = found
    found = _number_overviews(replace(root, groups=nested)).group(group)
    return _arrange_side_by_side(found) if below else found


def _number_overviews(found: ManifestGroup) -> ManifestGroup:
    """Add an image that has overviews as its group ``"0"``."""
    if not found.groups:
        return found
    itself = {"0": replace(found, groups={})}
    return replace(
        found, groups=itself | {n: _number_overviews(g) for n, g in found.groups.items()}
    )


def _arrange_side_by_side(found: ManifestGroup) -> ManifestGroup:
    if not found.groups:
        return found
    return ManifestGroup(
        groups={name: _arrange_side_by_side(g) for name, g in found.groups.items()}
    )


def _demand_all_tags(file: BinaryIO, form: Any, page: Any) -> None:
    """Refuse a page with tags that tifffile could not read and skipped.

    Without the tag of its type, an image would be read as one of another type.
    """
    file.seek(page.offset)
    [count] = struct.unpack(form.tagnoformat, file.read(form.tagnosize))
    entries = file.read(count * form.tagsize)
    codes = {
        struct.unpack_from(f"{form.byteorder}H", entries, place)[0]
        for place in range(0, len(entries), form.tagsize)
    }
    lacking = sorted(code for code in codes if code not in page.tags)
    if lacking:
        raise ValueError(f"tags {lacking} of the directory at byte {page.offset} cannot be read")


def _demand_alike_pages(series: Any) -> None:
    """Refuse an image of pages that are not stored alike: tifffile asks the first one for all."""
    first = series.keyframe
    expected = _read_storage_tags(first)
    for page in series.pages:
        # a page that none describes has no directory
        if page is None or page is first or not page.offset or page.parent is not first.parent:
            continue
        if (found := _read_storage_tags(page)) != expected:
            odd = sorted(code for code in expected if found[code] != expected[code])
            raise FormatError(
                f"TIFF pages {first.index} and {page.index} are of one image and have other tags "
                f"{odd}; the file is damaged, fetch it again, or read its pages with tifffile"
            )


def _read_storage_tags(page: Any) -> dict[int, tuple[int, ...]]:
    """Return the values of tags that say how a page is stored, or how many there are."""
    form, file = page.parent.tiff, page.parent.filehandle
    file.seek(page.offset)
    [count] = struct.unpack(form.tagnoformat, file.read(form.tagnosize))
    entries = file.read(count * form.tagsize)
    found = dict(STORAGE_TAGS)
    for place in range(0, len(entries), form.tagsize):
        code, kind = struct.unpack_from(form.tagformat1, entries, place)
        if code not in found:
            continue
        number, raw = struct.unpack_from(form.tagformat2, entries, place + 4)
        letter = INTEGER_TYPES.get(kind, "")
        if letter and number * struct.calcsize(letter) <= len(raw):
            found[code] = struct.unpack_from(f"{form.byteorder}{number}{letter}", raw)
        else:
            # the values lie elsewhere
            found[code] = (number,) * 2
    # a strip of more rows than the image has is one of all rows
    found[278] = min(found[278], found[257])
    return found


def _list_images(tiff: Any) -> Iterable[tuple[str, Any, int]]:
    """Yield each image: its path, the levels of its pyramid, and its own level."""
    for index, series in enumerate(tiff.series):
        name = f"series_{index}" if index else ""
        for level in range(len(series.levels)):
            path = [part for part in (name, str(level) if level else "") if part]
            yield "/".join(path), series.levels, level


def _build_group(
    source: SourceFile, levels: Any, level: int, skip: frozenset[str]
) -> ManifestGroup:
    """Return one image with its coordinates."""
    series, full = levels[level], levels[0].keyframe
    page = series.keyframe
    dims = tuple(DIMS.get(letter, letter.lower()) for letter in _name_axes(series))
    variables: dict[str, ManifestVariable] = {}
    problems: dict[str, VirtualdsError] = {}
    transform = _find_geotransform(full)
    if transform is not None:
        ratios = full.imagewidth / page.imagewidth, full.imagelength / page.imagelength
        transform = _coarsen(transform, *ratios)
    attributes, coordinates = _collect_attributes(full, page), _build_coordinates(transform, page)
    reference = _build_reference_system(full, transform)
    if reference is not None:
        attributes |= {"grid_mapping": REFERENCE_SYSTEM, "coordinates": REFERENCE_SYSTEM}
        coordinates[REFERENCE_SYSTEM] = reference
    if IMAGE not in skip:
        try:
            _demand_packing(attributes)
            array = _build_array(source, series)
        except VirtualdsError as error:
            error.locate(f"variable {IMAGE!r}", source.url)
            problems[IMAGE] = error
            array = ManifestArray.unreadable(series.shape, page.dtype or "u1", f"{error}")
        origin = path_or_url(source.url)
        encoding = {"source": origin, "original_shape": array.shape, "dtype": array.dtype}
        variables[IMAGE] = ManifestVariable(dims, array, attributes, encoding)
    variables |= {name: v for name, v in coordinates.items() if name not in skip}
    return ManifestGroup(variables, {}, {}, {"unlimited_dims": set()}, problems)


def _name_axes(series: Any) -> str:
    """Return the letters of the axes, each once."""
    found = ""
    for letter in str(series.axes):
        spare = (other for other in "QIABDEFGHJKLMNOPRTUVWZC" if other not in series.axes + found)
        found += next(spare) if letter in found else letter
    return found


def _build_array(source: SourceFile, series: Any) -> ManifestArray:
    """Return the values of an image."""
    page = series.keyframe
    _demand_alike_pages(series)
    lead = len(series.shape) - (2 + (page.samplesperpixel > 1))
    leading = tuple(int(n) for n in series.shape[:lead]) if lead >= 0 else ()
    array = build_page_array(source, list(series.pages), leading, page)
    if array.shape != tuple(series.shape):
        raise UnsupportedError(
            f"TIFF series of shape {tuple(series.shape)} made of pages of {tuple(page.shape)}: its "
            f"axes do not consist of whole pages; read it with tifffile's asarray()"
        )
    return array


# ---------------------------------------------------------------------- georeferencing


Affine = tuple[float, float, float, float, float, float]
"""As GDAL has it: x and y of the corner, then x = c + a * column + b * row, y = f + d * ... ."""


def _find_geotransform(page: Any) -> Affine | None:
    """Return where the outer corner of the first pixel lies, and how long pixels are.

    References
    ----------
    OGC GeoTIFF 1.1, section 7.1 (tags) and requirement class RasterType.
    """
    tags = {name: _read_numbers(page, name) for name in ("ModelPixelScaleTag", "ModelTiepointTag")}
    matrix = _read_numbers(page, "ModelTransformationTag")
    scale, tie = tags["ModelPixelScaleTag"], tags["ModelTiepointTag"]
    if len(matrix) == 16:
        a, b, _, c, d, e, _, f = matrix[:8]
    elif len(scale) >= 2 and len(tie) == 6:
        a, b, d, e = scale[0], 0.0, 0.0, -scale[1]
        c, f = tie[3] - tie[0] * a, tie[4] - tie[1] * e
    else:
        return None
    if (page.geotiff_tags or {}).get("GTRasterTypeGeoKey") == PIXEL_IS_POINT:
        # the tie point is the centre of a pixel
        c, f = c - 0.5 * (a + b), f - 0.5 * (d + e)
    return c, a, b, f, d, e


def _read_numbers(page: Any, tag: str) -> tuple[float, ...]:
    found = page.tags.get(tag)
    values = () if found is None else found.value
    return tuple(float(n) for n in values) if isinstance(values, tuple) else ()


def _coarsen(affine: Affine, columns: float, rows: float) -> Affine:
    c, a, b, f, d, e = affine
    return c, a * columns, b * rows, f, d * columns, e * rows


def _build_coordinates(affine: Affine | None, page: Any) -> dict[str, ManifestVariable]:
    """Return the coordinates of pixel centres, to the last bit as rasterio computes them.

    There are none for a rotated grid.
    """
    if affine is None or affine[2] or affine[4]:
        return {}
    c, a, _, f, _, e = affine
    x = np.arange(page.imagewidth) * a + (a * 0.5 + c)
    y = np.arange(page.imagelength) * e + (e * 0.5 + f)
    return {"y": ManifestVariable(("y",), y), "x": ManifestVariable(("x",), x)}


def _build_reference_system(page: Any, affine: Affine | None) -> ManifestVariable | None:
    """Return the variable whose attributes georeference the file, as rioxarray's, and GeoKeys."""
    keys = read_geo_keys(page.geotiff_tags or {})
    attributes = describe_system(keys)
    if affine is not None:
        attributes["GeoTransform"] = " ".join(repr(float(n)) for n in affine)
    attributes |= keys
    return ManifestVariable((), np.array(0), attributes) if attributes else None


# ---------------------------------------------------------------------- attributes


def _collect_attributes(full: Any, page: Any) -> dict[str, Any]:
    """Return the attributes of an image."""
    found: dict[str, Any] = {}
    for tag, name in TEXTS.items():
        if (known := full.tags.get(tag)) is not None and isinstance(known.value, str):
            found[name] = known.value
    keys = full.geotiff_tags or {}
    if "GTRasterTypeGeoKey" in keys:
        point = keys["GTRasterTypeGeoKey"] == PIXEL_IS_POINT
        found["AREA_OR_POINT"] = "Point" if point else "Area"
    found |= _parse_gdal_metadata(full)
    nodata = nodata_of(full)
    if nodata is not None:
        found["_FillValue"] = nodata
    elif (raw := full.tags.get("GDAL_NODATA")) is not None:
        found["nodata"] = str(raw.value)
    return found


def _parse_gdal_metadata(page: Any) -> dict[str, Any]:
    """Return the items of GDAL's metadata: of the image, and of its bands as far as they agree."""
    tag = page.tags.get("GDAL_METADATA")
    if tag is None:
        return {}
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(re.sub(r"\0+$", "", str(tag.value)))
    except ElementTree.ParseError:
        return {"GDAL_METADATA": str(tag.value)}
    found: dict[str, Any] = {}
    roles: dict[str, dict[int, str]] = {}
    for item in root.iter("Item"):
        name, text, sample = item.get("name") or "Item", item.text or "", item.get("sample")
        if sample is None:
            found[name] = text
            continue
        # GDAL, too, takes the number that the text begins with, or else the first band
        number = re.match(r"\s*[0-9]{1,9}", sample)
        band = int(number[0]) if number else 0
        if role := item.get("role"):
            roles.setdefault(role, {})[band] = text
        else:
            found[f"{name}_band_{band + 1}"] = text
    return found | _collect_band_attributes(roles, page.samplesperpixel)


def _collect_band_attributes(roles: Mapping[str, Mapping[int, str]], count: int) -> dict[str, Any]:
    """Return names, units and packing of bands; packing is CF's if all bands agree in all of it."""
    found: dict[str, Any] = {}
    for role, name in {"description": "long_name", "unittype": "units"}.items():
        texts = [roles.get(role, {}).get(band, "") for band in range(count)]
        if any(texts):
            found[name] = texts[0] if len(set(texts)) == 1 and count == 1 else texts
    numbers = {
        role: [_parse_number(roles.get(role, {}).get(n) or default) for n in range(count)]
        for role, default in {"scale": "1", "offset": "0"}.items()
    }
    if any(len(set(each)) > 1 or isinstance(each[0], str) for each in numbers.values()):
        # a part of the packing alone, which readers of CF apply, would give other numbers
        used = {role: each for role, each in numbers.items() if roles.get(role)}
        return found | {f"{role}s": each for role, each in used.items()}
    [scale], [offset] = map(set, numbers.values())
    found |= {} if scale == 1 else {"scale_factor": scale}
    return found | ({} if offset == 0 else {"add_offset": offset})


def _parse_number(text: str) -> float | str:
    """Return the number that a text begins with, as GDAL does; the text if there is none."""
    with suppress(ValueError):
        return float(text)
    # the decimal point may be a comma
    number = re.match(r"\s*[-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][-+]?[0-9]+)?", text)
    return float(number[0].replace(",", ".")) if number else text


def _demand_packing(attributes: Mapping[str, Any]) -> None:
    """Refuse an image whose scales or offsets are no numbers."""
    for name in ("scales", "offsets"):
        known = attributes.get(name)
        if odd := [n for n in known if isinstance(n, str)] if isinstance(known, list) else []:
            raise UnsupportedError(
                f"{name} of the bands in GDAL_METADATA, {odd}, are no numbers, so nobody can say "
                f"what the values are; set them anew with gdal_edit, or read the stored numbers "
                f"with tifffile's asarray()"
            )


def _open_tifffile(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    """Open a file with tifffile; keep the last image, since tifffile reads whole images."""
    import tifffile

    tiff = closing.enter_context(tifffile.TiffFile(target()))
    images: dict[str, Any] = {}

    def image_of(wanted: NativeRegion) -> Any:
        if wanted.group not in images:
            parts = [part for part in wanted.group.split("/") if part]
            is_named = bool(parts) and parts[0].startswith("series_")
            series = int(parts.pop(0).removeprefix("series_")) if is_named else 0
            level = int(parts[0]) if parts else 0
            images.clear()
            images[wanted.group] = tiff.series[series].levels[level].asarray()
        return images[wanted.group]

    return stored_values(image_of)


PARSER = Parser(
    "tiff",
    (".tif", ".tiff", ".btf", ".gtiff"),
    detect,
    read,
    takes=("below",),
    natives=(NativeReader("tifffile", _open_tifffile, remote=True),),
)
