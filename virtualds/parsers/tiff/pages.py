"""Pages of TIFF files as virtual arrays: where tiles and strips lie, and how they decode.

tifffile reads the pages. Sources: TIFF 6.0 (strips in section 3, tiles in section 15), BigTIFF, and
GDAL's way to leave out tiles (offset and length 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.bounds import Buffer, demand_table
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_tiff, known_names, predictor_from_tiff
from virtualds.codecs.codec import Codec, CodecError
from virtualds.codecs.images import CONTIGUOUS, Image, Jpeg, Jpeg2000, JpegXl, Lerc, Png, Webp
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.codecs.tiff import Fax, PackedIntegers, ReversedBits
from virtualds.errors import FormatError, UnsupportedError
from virtualds.source_file import SourceFile

IMAGES: tuple[type[Codec], ...] = (Jpeg, Webp, Png, Jpeg2000, JpegXl, Lerc)
PLAIN, UNPREDICTED = 1, 1
"""Compression and predictor of pages that have none."""
LARGEST_TRIED = 2**26
"""Bytes of the largest strip that a scan decodes: see `_is_padded`."""


def build_page_array(
    source: SourceFile, pages: Sequence[Any], leading: Sequence[int], keyframe: Any
) -> ManifestArray:
    """Return pages of one kind as an array.

    Parameters
    ----------
    source : SourceFile
    pages : sequence
        Pages of tifffile in C order of the leading axes, None for a missing page; or the first
        page alone, if all others follow it without a gap.
    leading : sequence of int
        Lengths of the axes before those of a page.
    keyframe : TiffPage
        The page that says how all are stored.

    Returns
    -------
    ManifestArray
        After the leading axes come rows and columns; samples, if there are several, come last, or
        before the rows if each has its plane.

    Raises
    ------
    UnsupportedError
        Something is stored in a way that chunks cannot express, or that no codec decodes.
    FormatError
        The file contradicts itself.
    """
    _demand_array(keyframe)
    cut = _cut_axes(keyframe)
    grid = tuple(axis.nchunks for axis in cut)
    demand_table((*leading, *grid), _count_described(pages, keyframe), "TIFF series")
    offsets, lengths = _find_byte_ranges(pages, leading, keyframe, prod(grid))
    if _is_padded(keyframe, offsets, lengths):
        cut = _cut_axes(keyframe, padded=True)
    if int(keyframe.compression) == PLAIN and not _is_packed(keyframe):
        # what lies behind the rows of the image is padding
        lengths = np.minimum(
            lengths.reshape(-1, *grid), _find_plain_lengths(cut, keyframe)
        ).reshape(-1)
    there = lengths > 0
    manifest = ChunkManifest.build(
        (*leading, *grid),
        files=[source],
        file=np.where(there, 0, MISSING).reshape(*leading, *grid),
        offset=np.where(there, offsets, 0).reshape(*leading, *grid),
        length=lengths.reshape(*leading, *grid),
    )
    axes = (*(ChunkAxis.regular(n, 1) for n in leading), *cut)
    codecs, dtype = _find_codecs(keyframe, tuple(int(axis.slabs(0, 1).encoded[0]) for axis in cut))
    layout = tuple(range(len(axes)))
    nodata = nodata_of(keyframe)
    fill = None if nodata is None else np.asarray(nodata, dtype).tobytes()
    pipeline = CodecPipeline(dtype, codecs, fill, layout)
    array = ManifestArray.of_fragment(Fragment.whole(axes, manifest), pipeline)
    return replace(array, fill_value=pipeline.missing_value)


def _count_described(pages: Sequence[Any], keyframe: Any) -> int:
    """Return how many chunks pages describe one by one."""
    there = [page for page in pages if page is not None]
    return sum(1 if keyframe.is_contiguous else len(page.dataoffsets) for page in there)


def _find_plain_lengths(cut: Sequence[ChunkAxis], page: Any) -> Any:
    """Return how many bytes the chunks of a page have that is not compressed."""
    found: Any = np.int64(page.dtype.itemsize)
    for axis in cut:
        found = np.multiply.outer(found, axis.slabs().encoded)
    return found


def _demand_array(page: Any) -> None:
    """Refuse a page that chunks cannot express or no codec decodes."""
    bits, compression = page.bitspersample, int(page.compression)
    is_jpeg, is_image = compression in Jpeg.tiff_compressions, _is_image(page)
    is_fax = compression in Fax.tiff_compressions
    refused = {
        f"{bits} bits per sample of format {page.sampleformat}": page.dtype is None
        or (8 * page.dtype.itemsize != bits and not is_image and not _is_packed(page)),
        # GDAL swaps the bytes of such samples, tifffile does not
        f"{bits} bits per sample of {page.dtype} in big-endian order": bits == 24
        and page.parent.byteorder == ">",
        f"fax of {page.dtype}": is_fax and (page.dtype != bool or page.samplesperpixel > 1),
        f"compression {_name(page.compression)}": compression not in (PLAIN, *known_names("tiff")),
        f"predictor {_name(page.predictor)}": int(page.predictor)
        not in (UNPREDICTED, *known_names("tiff_predictor"))
        and (not is_image or compression in Lerc.tiff_compressions),
        f"predictor {_name(page.predictor)} of {bits} bits": int(page.predictor) != UNPREDICTED
        and _is_packed(page),
        "volumes (ImageDepth)": page.imagedepth > 1 or page.tiledepth > 1,
        "subsampled colours": page.is_subsampled
        and (not is_jpeg or page.planarconfig != CONTIGUOUS),
        "different formats of samples": _is_different(page, 339) or _is_different(page, 258),
    }
    if found := [what for what, is_so in refused.items() if is_so]:
        raise UnsupportedError(
            f"TIFF with {' and '.join(found)}: chunks cannot express it, or no codec decodes it; "
            f"read it with tifffile's asarray(), or convert it with gdal_translate"
        )


def _name(value: Any) -> str:
    """Return the number of a tag, with the name that tifffile has for it."""
    return f"{getattr(value, 'name', 'unknown')} ({int(value)})"


def _is_image(page: Any) -> bool:
    """Say whether each chunk is an image, whose decoder returns whole samples."""
    return any(int(page.compression) in image.tiff_compressions for image in IMAGES)


def _is_packed(page: Any) -> bool:
    """Say whether samples are integers, or booleans, of fewer bits than their dtype has."""
    if page.dtype is None or not isinstance(page.bitspersample, int):
        return False
    most = 1 if page.dtype.kind == "b" else 8 * page.dtype.itemsize - 1
    return page.dtype.kind in "bu" and page.bitspersample <= min(most, 31)


def _is_different(page: Any, code: int) -> bool:
    tag = page.tags.get(code)
    values = tag.value if tag is not None else ()
    return isinstance(values, tuple) and len(set(values)) > 1


def _is_padded(page: Any, offsets: Any, lengths: Any) -> bool:
    """Say whether the last strip holds as many rows as the others, some beyond the image.

    By TIFF 6.0, section 3, it ends with the image. Some writers pad it, and only decoding shows
    that. So the first of the last strips is decoded, unless that would take long beside a scan.
    """
    rows = _count_strip_rows(page)
    compression = int(page.compression)
    # the decoder of fax is told how many rows there are
    if page.is_tiled or compression in (PLAIN, *Fax.tiff_compressions):
        return False
    if not page.imagelength % rows:
        return False
    count = ceil(page.imagelength / rows)
    last, sizes = (column.reshape(-1, count)[:, -1] for column in (offsets, lengths))
    samples = page.samplesperpixel if page.planarconfig == CONTIGUOUS else 1
    bits = page.bitspersample if _is_packed(page) else 8 * page.dtype.itemsize
    full: int = rows * -(-page.imagewidth * samples * bits // 8)
    there = np.flatnonzero((sizes > 0) & (sizes <= LARGEST_TRIED) & (last > 0))
    pipeline = (*_reverse_bits(page), codec_from_tiff(compression, page))
    if not there.size or full > LARGEST_TRIED:
        return False
    file = page.parent.filehandle
    file.seek(int(last[there[0]]))
    try:
        found: Buffer = file.read(int(sizes[there[0]]))
        for codec in pipeline:
            found = codec.decode(found, full if codec is pipeline[-1] else len(found))
    except (CodecError, UnsupportedError):
        # reading the strip raises the error
        return False
    return len(found) == full


def _count_strip_rows(page: Any) -> int:
    """Return how many rows a whole strip has, which may be more than the image has."""
    tag = page.tags.get("RowsPerStrip")
    # tifffile cuts its own value to the image
    said = tag.value if tag and isinstance(tag.value, int) else 0
    return max(int(page.rowsperstrip), said)


def _cut_axes(page: Any, *, padded: bool = False) -> tuple[ChunkAxis, ...]:
    """Return the chunk axes of a page as stored: samples last, or planes first."""
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
        raise FormatError(
            f"TIFF of {rows} x {columns} pixels in chunks of {height} x {width}: there are no "
            f"values; the file is damaged, fetch it again"
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
    """Return the offsets and lengths of all chunks, two flat arrays; length 0 means no chunk."""
    if len(pages) == 1 and prod(leading) > 1:
        return _find_contiguous_ranges(pages[0], prod(leading))
    if len(pages) != prod(leading):
        raise UnsupportedError(
            f"TIFF series of {len(pages)} pages for axes of {tuple(leading)}: pages do not fill "
            f"them; read it with tifffile's asarray()"
        )
    found = [_find_page_ranges(page, keyframe, count) for page in pages]
    offsets, lengths = (np.concatenate(column) for column in zip(*found, strict=True))
    return offsets, lengths


def _find_contiguous_ranges(page: Any, count: int) -> Any:
    """Return the places of pages that follow the first one without a gap, as ImageJ writes them."""
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
        places = offsets[0] + step * np.arange(count, dtype=np.int64)
        return places, np.full(count, step, np.int64)
    if offsets.size != count or lengths.size != count:
        raise FormatError(
            f"TIFF page {page.index}: {offsets.size} offsets and {lengths.size} lengths of "
            f"{count} chunks; the file is damaged, fetch it again"
        )
    return offsets, np.where(offsets == 0, 0, lengths)


def _find_codecs(page: Any, chunk: tuple[int, ...]) -> tuple[tuple[Codec, ...], np.dtype[Any]]:
    """Return how chunks decode, and the dtype they decode to."""
    dtype = page.dtype.newbyteorder(page.parent.byteorder)
    compression, predictor = int(page.compression), int(page.predictor)
    last = () if compression == PLAIN else (codec_from_tiff(compression, page),)
    if last and isinstance(last[0], Fax | Image | Jpeg):
        # images have the order of the machine, and no predictors; GDAL puts numbers into LERC as
        # they lie in the file
        order = page.parent.byteorder if isinstance(last[0], Lerc) else "<"
        return (*last, *_reverse_bits(page)), dtype.newbyteorder(order)
    last = (*last, *_reverse_bits(page))
    together = len(chunk) == 3 and page.planarconfig == CONTIGUOUS
    rows, columns, samples = chunk if together else (*chunk[-2:], 1)
    if _is_packed(page):
        dtype = dtype.newbyteorder("<")
        return (PackedIntegers(dtype.str, page.bitspersample, columns * samples), *last), dtype
    # libtiff has no predictor without compression
    if predictor == UNPREDICTED or compression == PLAIN:
        return last, dtype
    found = predictor_from_tiff(predictor, (rows, columns, samples), dtype)
    return (found, *last), np.dtype(found.dtype)


def _reverse_bits(page: Any) -> tuple[Codec, ...]:
    """Return the codec of reversed bits, if the page needs it; images do not."""
    return (ReversedBits(),) if page.fillorder == 2 and not _is_image(page) else ()


def nodata_of(page: Any) -> Any:
    """Return GDAL's value for pixels without data, None if no pixel can have it."""
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


def read_geo_keys(tags: Mapping[str, Any]) -> dict[str, Any]:
    """Return GeoKeys as attributes: numbers, strings, lists of numbers."""
    return {name: _to_plain(value) for name, value in tags.items()}


def _to_plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    return int(value) if isinstance(value, int) else value
