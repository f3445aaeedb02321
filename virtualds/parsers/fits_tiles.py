"""Images in FITS tables, compressed tile by tile: each tile is a chunk in the heap of the table.

FITS Standard 4.0, section 10.1. Integers, and floats that lost nothing, are referenced. Floats that
were made integers have a scale for each tile, and are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, BinaryIO

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.axis import ChunkAxis
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.codec import Codec
from virtualds.codecs.fits_tiles import PlioTile, RiceTile
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.codecs.shuffle import Shuffle
from virtualds.codecs.zlib import Gzip
from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.fits_header import HeaderDataUnit
from virtualds.parsers.fits_tables import find_place
from virtualds.source_file import SourceFile

OF_TABLE = re.compile(
    r"(T(FORM|TYPE|DIM|SCAL|ZERO|NULL|UNIT|DISP)\d+|TFIELDS|THEAP|Z(IMAGE|CMPTYPE|BITPIX|NAXIS\d*"
    r"|TILE\d+|NAME\d+|VAL\d+|SIMPLE|TENSION|EXTEND|PCOUNT|GCOUNT|HECKSUM|DATASUM|QUANTIZ|DITHER0"
    r"|MASKCMP|BLANK|BLOCKED)|CHECKSUM|DATASUM)"
)
"""Keywords that say how the table holds the image."""
WIDE = 4
"""Bytes in which old writers give all integers to gzip."""
SUMS = {"ZHECKSUM": "CHECKSUM"}
"""Keywords of the uncompressed image that are not spelled with a Z before them."""
DESCRIPTOR = re.compile(r"1?([PQ])([BIJ])")
"""TFORM of a column with the place of tiles: its words, and what tiles are counted in."""

Make = Callable[[np.dtype[Any], Mapping[str, Any]], tuple[Codec, ...]]
"""Makes codecs from the type of the pixels and the parameters of the compression."""


def _make_rice(dtype: np.dtype[Any], how: Mapping[str, Any]) -> tuple[Codec, ...]:
    return (RiceTile(dtype.str, int(how.get("BLOCKSIZE", 32)), int(how.get("BYTEPIX", 4))),)


INTEGERS: dict[str, Make] = {
    "RICE_1": _make_rice,
    "RICE_ONE": _make_rice,
    "PLIO_1": lambda dtype, how: (PlioTile(dtype.str),),
}
"""Compressions of integers."""
COMPRESSIONS: dict[str, Make] = {
    **INTEGERS,
    "GZIP_1": lambda dtype, how: (Gzip(),),
    "GZIP_2": lambda dtype, how: (Shuffle(dtype.itemsize), Gzip()),
}
"""Compressions by ZCMPTYPE (table 36)."""


def show_image(part: HeaderDataUnit) -> HeaderDataUnit:
    """Return the image that a table holds, with the cards of an image."""
    kept = {name: value for name, value in part.cards.items() if not OF_TABLE.fullmatch(name)}
    kept = {name: value for name, value in kept.items() if not re.fullmatch(r"NAXIS\d*", name)}
    shown = {
        SUMS.get(name, name[1:]): value
        for name, value in part.cards.items()
        if re.fullmatch(r"Z(BITPIX|NAXIS\d*|HECKSUM|DATASUM)", name)
    }
    return HeaderDataUnit(
        part.number, {**kept, **shown, "XTENSION": "IMAGE", "PCOUNT": 0, "GCOUNT": 1}, part.offset
    )


def find_codecs(part: HeaderDataUnit, dtype: np.dtype[Any]) -> tuple[Codec, ...]:
    """Return what decodes the tiles of an image to numbers of ``dtype``.

    Raises
    ------
    UnsupportedError
        No codec decodes them.
    """
    name = str(part.cards.get("ZCMPTYPE", "")).strip()
    make = COMPRESSIONS.get(name)
    is_float = dtype.kind == "f"
    scaled = [n for n in ("ZSCALE", "ZZERO") if find_place(part, n) or n in part.cards]
    if make is None or (is_float and (scaled or name in INTEGERS)):
        how = f" with {' and '.join(scaled)} for each tile" if is_float and scaled else ""
        raise UnsupportedError(
            f"FITS part {part.number}: it is an image compressed tile by tile ({name}{how}), which "
            f"is not decoded here; decompress it with funpack, read it with astropy, or leave it "
            f"out with drop_variables or on_error='skip'"
        )
    given = {
        str(value).strip().upper(): part.cards.get(key.replace("ZNAME", "ZVAL"))
        for key, value in part.cards.items()
        if re.fullmatch(r"ZNAME\d+", key)
    }
    try:
        return make(dtype, given)
    except (TypeError, ValueError) as error:
        raise _make_damage(part, f"its parameters {given} make no sense ({error})") from error


def build_tiles(
    part: HeaderDataUnit,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    codecs: tuple[Codec, ...],
    file: BinaryIO,
    source: SourceFile,
) -> ManifestArray:
    """Return the image as references to its tiles.

    Raises
    ------
    FormatError
        The table has no tiles, or as many as do not fill the image.
    UnsupportedError
        Tiles lie in several columns.
    """
    has_planes = any(isinstance(codec, Shuffle) for codec in codecs)
    axes = tuple(
        _cut_axis(part, number, n)
        for number, n in zip(range(len(shape), 0, -1), shape, strict=True)
    )
    grid = tuple(axis.nchunks for axis in axes)
    offsets, lengths = _read_places(part, file, prod(grid))
    if codecs[-1:] == (Gzip(),) and not has_planes and offsets.size and dtype.itemsize < WIDE:
        first = prod(axis.slabs(0, 1).encoded[0] for axis in axes)
        file.seek(int(offsets[0]) + int(lengths[0]) - 4)
        # RFC 1952, section 2.3.1: a stream ends with its decoded length
        if int.from_bytes(file.read(4), "little") == WIDE * first:
            codecs = (*codecs[:-1], *_widen(part), Gzip())
    manifest = ChunkManifest.build(
        grid, files=(source,), offset=offsets.reshape(grid), length=lengths.reshape(grid)
    )
    pipeline = CodecPipeline(dtype=dtype, codecs=codecs, layout=tuple(range(len(shape))))
    return ManifestArray.of_fragment(Fragment((0,) * len(shape), axes, manifest), pipeline)


def _widen(part: HeaderDataUnit) -> tuple[Codec, ...]:
    """Return the codec of small integers that a writer has stored in four bytes each."""
    stored = f">i{part.cards['ZBITPIX'] // 8}".replace(">i1", "|u1")
    return (codec_from_zarr_v2({"id": "astype", "encode_dtype": ">i4", "decode_dtype": stored}),)


def _cut_axis(part: HeaderDataUnit, number: int, length: int) -> ChunkAxis:
    # section 10.1.1: tiles are rows where nothing else is said
    tile = part.cards.get(f"ZTILE{number}", length if number == 1 else 1)
    if type(tile) is not int or tile < 1:
        raise _make_damage(part, f"ZTILE{number} is {tile!r}")
    tile = max(min(tile, length), 1)
    last = length - (-(-length // tile) - 1) * tile
    return ChunkAxis.regular(length, tile, last=last)


def _read_places(part: HeaderDataUnit, file: BinaryIO, count: int) -> tuple[Any, Any]:
    """Return where tiles begin in the file, and their lengths, in bytes."""
    rows, row = part.shape if len(part.shape) == 2 else (0, 0)
    found = find_place(part, "COMPRESSED_DATA")
    match = found and DESCRIPTOR.match(found.form)
    if not found or not match or rows != count:
        raise _make_damage(part, f"its {rows} rows are not the places of {count} tiles")
    file.seek(part.offset)
    data = file.read(rows * row)
    if len(data) < rows * row:
        raise _make_damage(part, "the file ends within its rows")
    word, size = {"P": ">i4", "Q": ">i8"}[match[1]], {"B": 1, "I": 2, "J": 4}[match[2]]
    cells = np.frombuffer(data, np.uint8).reshape(rows, row)
    width = 2 * np.dtype(word).itemsize
    places = np.ascontiguousarray(cells[:, found.start : found.start + width]).view(word)
    lengths, offsets = places.astype(np.int64).T
    if not lengths.all():
        raise UnsupportedError(
            f"FITS part {part.number}: some tiles of its image are compressed in another way than "
            f"the others; decompress it with funpack, read it with astropy, or leave it out with "
            f"drop_variables or on_error='skip'"
        )
    heap = part.cards.get("THEAP", rows * row)
    if type(heap) is not int or heap < 0:
        raise _make_damage(part, f"THEAP is {heap!r}")
    return part.offset + heap + offsets, lengths * size


def _make_damage(part: HeaderDataUnit, what: str) -> FormatError:
    return FormatError(f"FITS part {part.number}: {what}; the file is damaged, fetch it again")
