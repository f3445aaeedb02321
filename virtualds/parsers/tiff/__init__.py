"""Parser of TIFF files with tifffile, including BigTIFF, GeoTIFF and cloud optimised GeoTIFF.

tifffile reads the headers and groups pages into images. The parser converts pages to references to
their tiles and strips. Overviews are groups ``"1"``, ``"2"`` ..., further images ``"series_1"`` ...

Sources: TIFF 6.0 (strips in section 3, tiles in section 15), BigTIFF, and GDAL's convention for
missing tiles (offset and length 0).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import ceil, prod
from typing import Any, BinaryIO

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, build_variable
from virtualds.arrays.parser import (
    NativeReader,
    NativeRegion,
    Parser,
    ReadNative,
    make_stored_reader,
)
from virtualds.bounds import check_table
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_tiff, list_codec_names, predictor_from_tiff
from virtualds.codecs.codec import Codec, CodecError
from virtualds.codecs.images import CONTIGUOUS, Image, Jpeg, Jpeg2000, JpegXl, Lerc, Png, Webp
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.codecs.tiff import Fax, PackedIntegers, ReversedBits
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, make_damage_error
from virtualds.importing import import_package
from virtualds.parsers.geo_keys import REFERENCE_SYSTEM, describe_crs
from virtualds.source_file import SourceFile, path_or_url
from virtualds.stores.scan_cache import describe_damage, open_source
from virtualds.streams import Buffer

IMAGE_CODECS: tuple[type[Codec], ...] = (Jpeg, Webp, Png, Jpeg2000, JpegXl, Lerc)
UNCOMPRESSED, NO_PREDICTOR = 1, 1
"""Values of the tags Compression and Predictor for pages without them."""
MAX_TRIAL_BYTES = 2**26
"""Maximum size in bytes of a strip that a scan decodes, see `_is_padded`."""


def build_page_array(
    source: SourceFile, pages: Sequence[Any], leading: Sequence[int], keyframe: Any
) -> ManifestArray:
    """Return pages with the same storage as an array.

    Raises `UnsupportedError` if the storage cannot be expressed by chunks, or no codec supports it,
    and `FormatError` if the file contradicts itself.

    Parameters
    ----------
    source : SourceFile
    pages : sequence
        Pages of tifffile in C order of the leading axes, with None for a missing page; or only the
        first page, if all pages are contiguous.
    leading : sequence of int
        Lengths of the axes before the axes of a page.
    keyframe : TiffPage
        The page that defines the storage of all pages.

    Returns
    -------
    ManifestArray
        The axes are the leading axes, rows and columns. If there are several samples, they are the
        last axis, or if each has a plane, the axis before the rows.
    """
    _check_page(keyframe)
    page_axes = _build_axes(keyframe)
    grid = tuple(axis.nchunks for axis in page_axes)
    check_table((*leading, *grid), _count_chunks(pages, keyframe), "TIFF series")
    offsets, lengths = _find_byte_ranges(pages, leading, keyframe, prod(grid))
    if _is_padded(keyframe, offsets, lengths):
        page_axes = _build_axes(keyframe, padded=True)
    if int(keyframe.compression) == UNCOMPRESSED and not _is_packed(keyframe):
        # the bytes after the rows of the image are padding
        image_lengths: Any = np.int64(keyframe.dtype.itemsize)
        for axis in page_axes:
            image_lengths = np.multiply.outer(image_lengths, axis.slabs().encoded)
        lengths = np.minimum(lengths.reshape(-1, *grid), image_lengths).reshape(-1)
    exists = lengths > 0
    manifest = ChunkManifest.build(
        (*leading, *grid),
        files=[source],
        file=np.where(exists, 0, MISSING).reshape(*leading, *grid),
        offset=np.where(exists, offsets, 0).reshape(*leading, *grid),
        length=lengths.reshape(*leading, *grid),
    )
    axes = (*(ChunkAxis.regular(n, 1) for n in leading), *page_axes)
    codecs, dtype = _find_codecs(
        keyframe, tuple(int(axis.slabs(0, 1).encoded[0]) for axis in page_axes)
    )
    layout = tuple(range(len(axes)))
    nodata = get_nodata(keyframe)
    fill = None if nodata is None else np.asarray(nodata, dtype).tobytes()
    pipeline = CodecPipeline(dtype, codecs, fill, layout)
    array = ManifestArray.from_fragment(Fragment.whole(axes, manifest), pipeline)
    return replace(array, fill_value=pipeline.missing_value)


def _count_chunks(pages: Sequence[Any], keyframe: Any) -> int:
    """Return the number of chunks in the tags of the pages."""
    existing = [page for page in pages if page is not None]
    return sum(1 if keyframe.is_contiguous else len(page.dataoffsets) for page in existing)


def _check_page(page: Any) -> None:
    """Raise an error for a page that cannot be represented as chunks, or that no codec decodes."""
    bits, compression = page.bitspersample, int(page.compression)
    is_jpeg, is_image = compression in Jpeg.tiff_compressions, _is_image(page)
    is_fax = compression in Fax.tiff_compressions
    unsupported = {
        f"{bits} bits per sample of format {page.sampleformat}": page.dtype is None
        or (8 * page.dtype.itemsize != bits and not is_image and not _is_packed(page)),
        # GDAL swaps the bytes of such samples, tifffile does not
        f"{bits} bits per sample of {page.dtype} in big-endian order": bits == 24
        and page.parent.byteorder == ">",
        f"fax of {page.dtype}": is_fax and (page.dtype != bool or page.samplesperpixel > 1),
        f"compression {_format_tag(page.compression)}": compression
        not in (UNCOMPRESSED, *list_codec_names("tiff")),
        f"predictor {_format_tag(page.predictor)}": int(page.predictor)
        not in (NO_PREDICTOR, *list_codec_names("tiff_predictor"))
        and (not is_image or compression in Lerc.tiff_compressions),
        f"predictor {_format_tag(page.predictor)} of {bits} bits": int(page.predictor)
        != NO_PREDICTOR
        and _is_packed(page),
        "volumes (ImageDepth)": page.imagedepth > 1 or page.tiledepth > 1,
        "subsampled colours": page.is_subsampled
        and (not is_jpeg or page.planarconfig != CONTIGUOUS),
        "different formats of samples": _has_different_values(page, 339)
        or _has_different_values(page, 258),
    }
    if reasons := [reason for reason, is_unsupported in unsupported.items() if is_unsupported]:
        raise UnsupportedError(
            f"TIFF with {' and '.join(reasons)}: chunks cannot express it, or no codec decodes it; "
            f"read it with tifffile's asarray(), or convert it with gdal_translate"
        )


def _format_tag(value: Any) -> str:
    """Format the number of a tag with its name in tifffile."""
    return f"{getattr(value, 'name', 'unknown')} ({int(value)})"


def _is_image(page: Any) -> bool:
    """Return whether chunks are images, whose decoder returns samples of whole bytes."""
    return any(int(page.compression) in image.tiff_compressions for image in IMAGE_CODECS)


def _is_packed(page: Any) -> bool:
    """Return whether samples are integers or booleans with fewer bits than their dtype."""
    if page.dtype is None or not isinstance(page.bitspersample, int):
        return False
    max_bits = 1 if page.dtype.kind == "b" else 8 * page.dtype.itemsize - 1
    return page.dtype.kind in "bu" and page.bitspersample <= min(max_bits, 31)


def _has_different_values(page: Any, code: int) -> bool:
    tag = page.tags.get(code)
    values = tag.value if tag is not None else ()
    return isinstance(values, tuple) and len(set(values)) > 1


def _is_padded(page: Any, offsets: Any, lengths: Any) -> bool:
    """Return whether the last strip is padded to as many rows as the others.

    According to TIFF 6.0, section 3, it ends with the image. Some writers pad it, which can only be
    found by decoding. So the last strip of the first page is decoded, unless that would take much
    longer than the scan.
    """
    rows = _count_strip_rows(page)
    compression = int(page.compression)
    # the fax decoder needs the number of rows
    if page.is_tiled or compression in (UNCOMPRESSED, *Fax.tiff_compressions):
        return False
    if not page.imagelength % rows:
        return False
    count = ceil(page.imagelength / rows)
    last, sizes = (column.reshape(-1, count)[:, -1] for column in (offsets, lengths))
    samples = page.samplesperpixel if page.planarconfig == CONTIGUOUS else 1
    bits = page.bitspersample if _is_packed(page) else 8 * page.dtype.itemsize
    full_size: int = rows * -(-page.imagewidth * samples * bits // 8)
    candidates = np.flatnonzero((sizes > 0) & (sizes <= MAX_TRIAL_BYTES) & (last > 0))
    pipeline = (*_reverse_bits(page), codec_from_tiff(compression, page))
    if not candidates.size or full_size > MAX_TRIAL_BYTES:
        return False
    file = page.parent.filehandle
    file.seek(int(last[candidates[0]]))
    try:
        data: Buffer = file.read(int(sizes[candidates[0]]))
        for codec in pipeline:
            data = codec.decode(data, full_size if codec is pipeline[-1] else len(data))
    except (CodecError, UnsupportedError):
        # reading the strip raises the error
        return False
    return len(data) == full_size


def _count_strip_rows(page: Any) -> int:
    """Return the number of rows of a strip, which may exceed the rows of the image."""
    tag = page.tags.get("RowsPerStrip")
    # tifffile limits its attribute to the image
    rows_per_strip = tag.value if tag and isinstance(tag.value, int) else 0
    return max(int(page.rowsperstrip), rows_per_strip)


def _build_axes(page: Any, *, padded: bool = False) -> tuple[ChunkAxis, ...]:
    """Return the chunk axes of a page as stored, with samples last, or planes first."""
    rows, columns, samples = page.imagelength, page.imagewidth, page.samplesperpixel
    if page.is_tiled:
        height, width, last = page.tilelength, page.tilewidth, None
    elif page.is_contiguous:
        height, width, last = rows, columns, None
    elif padded:
        height, width, last = _count_strip_rows(page), columns, None
    else:
        # the last strip ends with the image
        height, width = min(page.rowsperstrip, rows), columns
        last = rows - (ceil(rows / height) - 1) * height if height else None
    if not (rows and columns and samples and height and width):
        raise make_damage_error(
            f"TIFF of {rows} x {columns} pixels in chunks of {height} x {width}: there are no "
            "values"
        )
    plane = (ChunkAxis.regular(rows, height, last=last), ChunkAxis.regular(columns, width))
    if samples == 1:
        return plane
    if page.planarconfig == CONTIGUOUS:
        return (*plane, ChunkAxis.regular(samples, samples))
    return (ChunkAxis.regular(samples, 1), *plane)


def _find_byte_ranges(
    pages: Sequence[Any], leading: Sequence[int], keyframe: Any, count: int
) -> Any:
    """Return the offsets and lengths of all chunks as flat arrays; missing chunks have length 0."""
    if len(pages) == 1 and prod(leading) > 1:
        return _find_contiguous_ranges(pages[0], prod(leading))
    if len(pages) != prod(leading):
        raise UnsupportedError(
            f"TIFF series of {len(pages)} pages for axes of {tuple(leading)}: pages do not fill "
            f"them; read it with tifffile's asarray()"
        )
    page_ranges = [_find_page_ranges(page, keyframe, count) for page in pages]
    offsets, lengths = (np.concatenate(column) for column in zip(*page_ranges, strict=True))
    return offsets, lengths


def _find_contiguous_ranges(page: Any, count: int) -> Any:
    """Return the byte ranges of contiguous pages, as in ImageJ."""
    if not page.is_contiguous:
        raise UnsupportedError(
            f"TIFF series of {count} pages that describes only the first, which is not "
            f"contiguous; read it with tifffile's asarray()"
        )
    size = page.nbytes
    planes = page.samplesperpixel if page.planarconfig != CONTIGUOUS else 1
    steps = np.arange(count * planes, dtype=np.int64) * (size // planes)
    return page.dataoffsets[0] + steps, np.full(steps.size, size // planes, np.int64)


def _find_page_ranges(page: Any, keyframe: Any, count: int) -> Any:
    if page is None:
        return np.zeros(count, np.int64), np.zeros(count, np.int64)
    offsets = np.asarray(page.dataoffsets, np.int64)
    lengths = np.asarray(page.databytecounts, np.int64)
    if keyframe.is_contiguous:
        step = keyframe.nbytes // count
        starts = offsets[0] + step * np.arange(count, dtype=np.int64)
        return starts, np.full(count, step, np.int64)
    if offsets.size != count or lengths.size != count:
        raise make_damage_error(
            f"TIFF page {page.index}: {offsets.size} offsets and {lengths.size} lengths of {count} "
            "chunks"
        )
    return offsets, np.where(offsets == 0, 0, lengths)


def _find_codecs(page: Any, chunk: tuple[int, ...]) -> tuple[tuple[Codec, ...], np.dtype[Any]]:
    """Return the codecs of chunks, and the decoded dtype."""
    dtype = page.dtype.newbyteorder(page.parent.byteorder)
    compression, predictor = int(page.compression), int(page.predictor)
    last = () if compression == UNCOMPRESSED else (codec_from_tiff(compression, page),)
    if last and isinstance(last[0], Fax | Image | Jpeg):
        # these codecs return little-endian samples without a predictor; only LERC values have the
        # byte order of the file, as GDAL writes them
        order = page.parent.byteorder if isinstance(last[0], Lerc) else "<"
        return (*last, *_reverse_bits(page)), dtype.newbyteorder(order)
    last = (*last, *_reverse_bits(page))
    is_interleaved = len(chunk) == 3 and page.planarconfig == CONTIGUOUS
    rows, columns, samples = chunk if is_interleaved else (*chunk[-2:], 1)
    if _is_packed(page):
        dtype = dtype.newbyteorder("<")
        return (PackedIntegers(dtype.str, page.bitspersample, columns * samples), *last), dtype
    # libtiff has no predictor without compression
    if predictor == NO_PREDICTOR or compression == UNCOMPRESSED:
        return last, dtype
    predictor_codec = predictor_from_tiff(predictor, (rows, columns, samples), dtype)
    return (predictor_codec, *last), np.dtype(predictor_codec.dtype)


def _reverse_bits(page: Any) -> tuple[Codec, ...]:
    """Return the codec for reversed bits, which image codecs do not need."""
    return (ReversedBits(),) if page.fillorder == 2 and not _is_image(page) else ()


def get_nodata(page: Any) -> Any:
    """Return GDAL's nodata value, or None if no pixel can have it."""
    tag = page.tags.get("GDAL_NODATA")
    if tag is None or page.dtype is None or page.dtype.kind not in "iuf":
        return None
    try:
        text = str(tag.value).strip("\0 ")
        number: Any = float(text) if page.dtype.kind == "f" else _parse_integer(text)
        with np.errstate(over="ignore"):
            value = page.dtype.type(number)
    except (ValueError, OverflowError):
        return None
    return value


def _parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if number != int(number):
            raise
        return int(number)


def _to_builtin(value: Any) -> Any:
    """Return a GeoKey as an attribute: a number, a string or a list of numbers."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple):
        return [_to_builtin(item) for item in value]
    return int(value) if isinstance(value, int) else value


# ---------------------------------------------------------------------- tiff

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""First bytes of TIFF (6.0, section 2) and BigTIFF: byte order and version."""
STORAGE_TAGS: dict[int, tuple[int, ...]] = {
    **dict.fromkeys((256, 257, 322, 323), (0,)),
    **dict.fromkeys((258, 259, 266, 277, 284, 317, 339), (1,)),
    278: (2**32 - 1,),
}
"""Tags that define how a page is stored (TIFF 6.0, section 8), and their defaults.

These are the lengths of the image and of tiles; bits, compression, order of bits, samples, planes,
predictor, format; rows of a strip.
"""
INTEGER_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}
"""Types of tags that are unsigned integers."""
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
VARIABLE_NAME = "band_data"
"""Name of the variable, as in rioxarray."""
DIM_NAMES = {"S": "band"}
"""Names of axes that are not the letter of tifffile in lower case."""
TEXT_ATTRIBUTES = {
    "ImageDescription": "TIFFTAG_IMAGEDESCRIPTION",
    "DocumentName": "TIFFTAG_DOCUMENTNAME",
    "Software": "TIFFTAG_SOFTWARE",
    "DateTime": "TIFFTAG_DATETIME",
    "Artist": "TIFFTAG_ARTIST",
    "HostComputer": "TIFFTAG_HOSTCOMPUTER",
    "Copyright": "TIFFTAG_COPYRIGHT",
}
"""Names in GDAL of the tags that become attributes."""
PIXEL_IS_POINT = 2


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is TIFF."""
    return head[:4] in SIGNATURES


def read(
    source: SourceFile, group: str | None = None, skip: Iterable[str] = (), *, below: bool = False
) -> ManifestGroup:
    """Read the structure of an image, or of one of its overviews.

    Raises `UnsupportedError` if tifffile is not installed; `FormatError` if the file is damaged or
    truncated; and `FileNotFoundError` if there is no such group.

    Parameters
    ----------
    group : str, optional
        ``"1"``, ``"2"`` ... are overviews, ``"0"`` is the image in the root; ``"series_1"`` ... are
        further images.
    below : bool
        Whether the image becomes the group ``"0"`` next to its overviews, if it has any, since
        children in a tree share the axes of their parent.
    """
    tifffile = import_package("tifffile", source.url, "reading a TIFF file")
    skipped = frozenset(skip)
    with (
        describe_damage(source, "TIFF", TIFF_ERRORS),
        open_source(source) as file,
        tifffile.TiffFile(file, name=path_or_url(source.url)) as tiff,
    ):
        # count the pages first, which terminates even if they form a cycle
        if not len(tiff.pages) or not tiff.series:
            raise make_damage_error(f"{source.url}: the TIFF file has no image")
        pyramids = [list(series.levels) for series in tiff.series]
        for levels in pyramids:
            for level in levels:
                _check_readable_tags(file, tiff.tiff, level.keyframe)
        image, *others = [
            [_build_group(source, levels, number, skipped) for number in range(len(levels))]
            for levels in pyramids
        ]
    groups = {f"series_{n}": _nest_levels(levels, {}, below) for n, levels in enumerate(others, 1)}
    return _nest_levels(image, groups, below).group(group)


def _nest_levels(
    levels: list[ManifestGroup], groups: dict[str, ManifestGroup], below: bool
) -> ManifestGroup:
    """Return the first level of an image, with groups of all levels and other groups below it.

    With ``below``, the first level is only in the group ``"0"``. A single level without other
    groups is returned unchanged.
    """
    numbered = {str(number): level for number, level in enumerate(levels)} | groups
    if len(numbered) == 1:
        return levels[0]
    return ManifestGroup(groups=numbered) if below else replace(levels[0], groups=numbered)


def _check_readable_tags(file: BinaryIO, form: Any, page: Any) -> None:
    """Raise an error for a page with tags that tifffile could not read and skipped.

    Without these tags, the image could be read wrongly.
    """
    entries = _read_directory(page, form, file)
    codes = {
        struct.unpack_from(f"{form.byteorder}H", entries, offset)[0]
        for offset in range(0, len(entries), form.tagsize)
    }
    unread = sorted(code for code in codes if code not in page.tags)
    if unread:
        raise ValueError(f"tags {unread} of the directory at byte {page.offset} cannot be read")


def _read_directory(page: Any, form: Any, file: Any) -> bytes:
    """Return the entries of the tags of a page."""
    file.seek(page.offset)
    [count] = struct.unpack(form.tagnoformat, file.read(form.tagnosize))
    return file.read(count * form.tagsize)  # type: ignore[no-any-return]


def _check_same_storage(series: Any) -> None:
    """Raise an error if the storage of pages differs, since tifffile compares only some tags."""
    first = series.keyframe
    expected = _read_storage_tags(first)
    for page in series.pages:
        # a page without a description has no directory
        if page is None or page is first or not page.offset or page.parent is not first.parent:
            continue
        if (values := _read_storage_tags(page)) != expected:
            differing = sorted(code for code in expected if values[code] != expected[code])
            raise FormatError(
                f"TIFF pages {first.index} and {page.index} are of one image and have other tags "
                f"{differing}; the file is damaged, fetch it again, or read its pages with tifffile"
            )


def _read_storage_tags(page: Any) -> dict[int, tuple[int, ...]]:
    """Return the values of the storage tags of a page; of long tags, only the number of values."""
    form = page.parent.tiff
    entries = _read_directory(page, form, page.parent.filehandle)
    values = dict(STORAGE_TAGS)
    for offset in range(0, len(entries), form.tagsize):
        code, type_code = struct.unpack_from(form.tagformat1, entries, offset)
        if code not in values:
            continue
        number, raw = struct.unpack_from(form.tagformat2, entries, offset + 4)
        letter = INTEGER_TYPES.get(type_code, "")
        if letter and number * struct.calcsize(letter) <= len(raw):
            values[code] = struct.unpack_from(f"{form.byteorder}{number}{letter}", raw)
        else:
            # the tag contains the offset of the values, which are not read
            values[code] = (number,) * 2
    # a strip with more rows than the image contains all rows
    values[278] = min(values[278], values[257])
    return values


def _build_group(
    source: SourceFile, levels: Any, level: int, skip: frozenset[str]
) -> ManifestGroup:
    """Return one level of an image, with its coordinates."""
    series, full_page = levels[level], levels[0].keyframe
    page = series.keyframe
    dims = tuple(DIM_NAMES.get(letter, letter.lower()) for letter in _name_axes(series))
    variables: dict[str, ManifestVariable] = {}
    problems: dict[str, VirtualdsError] = {}
    transform = _find_geotransform(full_page)
    if transform is not None:
        c, a, b, f, d, e = transform
        columns, rows = (
            full_page.imagewidth / page.imagewidth,
            full_page.imagelength / page.imagelength,
        )
        transform = c, a * columns, b * rows, f, d * columns, e * rows
    attributes = _collect_attributes(full_page)
    coordinates = _build_coordinates(transform, page)
    reference = _build_grid_mapping(full_page, transform)
    if reference is not None:
        attributes |= {"grid_mapping": REFERENCE_SYSTEM, "coordinates": REFERENCE_SYSTEM}
        coordinates[REFERENCE_SYSTEM] = reference
    if VARIABLE_NAME not in skip:
        try:
            for name in ("scales", "offsets"):
                numbers = attributes.get(name)
                listed = numbers if isinstance(numbers, list) else []
                if invalid := [number for number in listed if isinstance(number, str)]:
                    raise UnsupportedError(
                        f"{name} of the bands in GDAL_METADATA, {invalid}, are not numbers, so "
                        "nobody can say what the values are; set them again with gdal_edit, or "
                        "read the stored numbers with tifffile's asarray()"
                    )
            array = _build_array(source, series)
        except VirtualdsError as error:
            error.locate(f"variable {VARIABLE_NAME!r}", source.url)
            problems[VARIABLE_NAME] = error
            array = ManifestArray.unreadable(series.shape, page.dtype or "u1", f"{error}")
        variables[VARIABLE_NAME] = build_variable(array, dims, source, attributes)
    variables |= {name: v for name, v in coordinates.items() if name not in skip}
    return ManifestGroup(variables, {}, {}, {"unlimited_dims": set()}, problems)


def _name_axes(series: Any) -> str:
    """Return the letters of the axes, where repeated letters are replaced by unused ones."""
    names = ""
    for letter in str(series.axes):
        unused = (other for other in "QIABDEFGHJKLMNOPRTUVWZC" if other not in series.axes + names)
        names += next(unused) if letter in names else letter
    return names


def _build_array(source: SourceFile, series: Any) -> ManifestArray:
    """Return the values of an image."""
    page = series.keyframe
    _check_same_storage(series)
    leading_ndim = len(series.shape) - (2 + (page.samplesperpixel > 1))
    leading = tuple(int(n) for n in series.shape[:leading_ndim]) if leading_ndim >= 0 else ()
    array = build_page_array(source, list(series.pages), leading, page)
    if array.shape != tuple(series.shape):
        raise UnsupportedError(
            f"TIFF series of shape {tuple(series.shape)} made of pages of {tuple(page.shape)}: its "
            f"axes do not consist of whole pages; read it with tifffile's asarray()"
        )
    return array


# ---------------------------------------------------------------------- georeferencing


Affine = tuple[float, float, float, float, float, float]
"""Geotransform of GDAL, ``(c, a, b, f, d, e)``.

The upper left corner of a pixel is x = c + a * column + b * row, y = f + d * column + e * row.
"""


def _find_geotransform(page: Any) -> Affine | None:
    """Return the affine transformation from pixels to coordinates, or None without one.

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
    entry = page.tags.get(tag)
    values = () if entry is None else entry.value
    return tuple(float(n) for n in values) if isinstance(values, tuple) else ()


def _build_coordinates(affine: Affine | None, page: Any) -> dict[str, ManifestVariable]:
    """Return the coordinates of pixel centres, bit-identical to those of rasterio.

    Returns none for a rotated grid.
    """
    if affine is None or affine[2] or affine[4]:
        return {}
    c, a, _, f, _, e = affine
    x = np.arange(page.imagewidth) * a + (a * 0.5 + c)
    y = np.arange(page.imagelength) * e + (e * 0.5 + f)
    return {"y": ManifestVariable(("y",), y), "x": ManifestVariable(("x",), x)}


def _build_grid_mapping(page: Any, affine: Affine | None) -> ManifestVariable | None:
    """Return the grid mapping variable of the file, with GeoKeys as attributes."""
    keys = {name: _to_builtin(value) for name, value in (page.geotiff_tags or {}).items()}
    attributes = describe_crs(keys)
    if affine is not None:
        attributes["GeoTransform"] = " ".join(repr(float(n)) for n in affine)
    attributes |= keys
    return ManifestVariable((), np.array(0), attributes) if attributes else None


# ---------------------------------------------------------------------- attributes


def _collect_attributes(full_page: Any) -> dict[str, Any]:
    """Return the attributes of an image."""
    attributes: dict[str, Any] = {}
    for tag, name in TEXT_ATTRIBUTES.items():
        if (entry := full_page.tags.get(tag)) is not None and isinstance(entry.value, str):
            attributes[name] = entry.value
    keys = full_page.geotiff_tags or {}
    if "GTRasterTypeGeoKey" in keys:
        point = keys["GTRasterTypeGeoKey"] == PIXEL_IS_POINT
        attributes["AREA_OR_POINT"] = "Point" if point else "Area"
    attributes |= _parse_gdal_metadata(full_page)
    nodata = get_nodata(full_page)
    if nodata is not None:
        attributes["_FillValue"] = nodata
    elif (raw := full_page.tags.get("GDAL_NODATA")) is not None:
        attributes["nodata"] = str(raw.value)
    return attributes


def _parse_gdal_metadata(page: Any) -> dict[str, Any]:
    """Return the items of the GDAL metadata of an image and its bands as attributes."""
    tag = page.tags.get("GDAL_METADATA")
    if tag is None:
        return {}
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(re.sub(r"\0+$", "", str(tag.value)))
    except ElementTree.ParseError:
        return {"GDAL_METADATA": str(tag.value)}
    attributes: dict[str, Any] = {}
    roles: dict[str, dict[int, str]] = {}
    for item in root.iter("Item"):
        name, text, sample = item.get("name") or "Item", item.text or "", item.get("sample")
        if sample is None:
            attributes[name] = text
            continue
        # like GDAL, use the number at the start of the text, or else the first band
        number = re.match(r"\s*[0-9]{1,9}", sample)
        band = int(number[0]) if number else 0
        if role := item.get("role"):
            roles.setdefault(role, {})[band] = text
        else:
            attributes[f"{name}_band_{band + 1}"] = text
    return attributes | _collect_band_attributes(roles, page.samplesperpixel)


def _collect_band_attributes(roles: Mapping[str, Mapping[int, str]], count: int) -> dict[str, Any]:
    """Return names, units and packing of bands; if all have the same packing, as CF attributes."""
    attributes: dict[str, Any] = {}
    for role, name in {"description": "long_name", "unittype": "units"}.items():
        texts = [roles.get(role, {}).get(band, "") for band in range(count)]
        if any(texts):
            attributes[name] = texts[0] if len(set(texts)) == 1 and count == 1 else texts
    numbers = {
        role: [_parse_number(roles.get(role, {}).get(n) or default) for n in range(count)]
        for role, default in {"scale": "1", "offset": "0"}.items()
    }
    if any(len(set(n)) > 1 or isinstance(n[0], str) for n in numbers.values()):
        # incomplete packing attributes would make CF readers compute wrong values
        used = {role: each for role, each in numbers.items() if roles.get(role)}
        return attributes | {f"{role}s": each for role, each in used.items()}
    [scale], [offset] = map(set, numbers.values())
    attributes |= {} if scale == 1 else {"scale_factor": scale}
    return attributes | ({} if offset == 0 else {"add_offset": offset})


def _parse_number(text: str) -> float | str:
    """Return the number at the start of a string, as GDAL does, or the string if there is none."""
    with suppress(ValueError):
        return float(text)
    # the decimal point may be a comma
    number = re.match(r"\s*[-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][-+]?[0-9]+)?", text)
    return float(number[0].replace(",", ".")) if number else text


def _open_tifffile(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    """Open a file with tifffile, which reads whole images; the last image is cached."""
    import tifffile

    tiff = closing.enter_context(tifffile.TiffFile(target()))
    images: dict[str, Any] = {}

    def read_image(region: NativeRegion) -> Any:
        if region.group not in images:
            parts = [part for part in region.group.split("/") if part]
            is_named = bool(parts) and parts[0].startswith("series_")
            series = int(parts.pop(0).removeprefix("series_")) if is_named else 0
            level = int(parts[0]) if parts else 0
            images.clear()
            images[region.group] = tiff.series[series].levels[level].asarray()
        return images[region.group]

    return make_stored_reader(read_image)


PARSER = Parser(
    "tiff",
    (".tif", ".tiff", ".btf", ".gtiff"),
    detect,
    read,
    takes=("below",),
    natives=(NativeReader("tifffile", _open_tifffile, remote=True),),
)
