"""Images in FITS tables, compressed tile by tile: each tile is a chunk in the heap of the table.

FITS Standard 4.0, section 10.1. Integers, and floats that lost nothing, are referenced tile by
tile. Where a tile needs what its row says, the whole table is one chunk, which astropy decodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from virtualds.chunks.fragment import ChunkAxis
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.codec import Codec
from virtualds.codecs.fits import FitsImage, PlioTile, RiceTile
from virtualds.codecs.hdf5 import Shuffle
from virtualds.codecs.zlib import Gzip
from virtualds.errors import UnsupportedError
from virtualds.parsers.fits.header import HeaderDataUnit, demand_certain_cards, make_damage
from virtualds.parsers.fits.tables import DESCRIPTOR, WORDS, find_place, find_places, read_rows
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
LOSSLESS: dict[str, Make] = {
    "GZIP_1": lambda dtype, how: (Gzip(),),
    "GZIP_2": lambda dtype, how: (Shuffle(dtype.itemsize), Gzip()),
}
"""Compressions of bytes."""
COMPRESSIONS = INTEGERS | LOSSLESS
"""Compressions of single tiles by ZCMPTYPE (table 36)."""
OF_WHOLE_IMAGES = ("RICE_1", "RICE_ONE", "GZIP_1", "GZIP_2", "HCOMPRESS_1", "NOCOMPRESS")
"""Compressions that astropy decodes, and survives where bytes are damaged."""


SCALES = ("ZSCALE", "ZZERO")
"""Columns, or keywords, with which integers become floats."""
ITEMS = {"B": 1, "I": 2, "J": 4}
"""Bytes of the elements in which tiles are counted."""


class Tiles(NamedTuple):
    """How the chunks of an image lie on it and in the file, and what decodes them."""

    axes: tuple[ChunkAxis, ...]
    manifest: ChunkManifest
    codecs: tuple[Codec, ...]


def show_image(part: HeaderDataUnit) -> HeaderDataUnit:
    """Return the image that a table holds, with the cards of an image."""
    kept = {name: value for name, value in part.cards.items() if not OF_TABLE.fullmatch(name)}
    kept = {name: value for name, value in kept.items() if not re.fullmatch(r"NAXIS\d*", name)}
    shown = {
        SUMS.get(name, name[1:]): value
        for name, value in part.cards.items()
        if re.fullmatch(r"Z(BITPIX|NAXIS\d*|HECKSUM|DATASUM)", name)
    }
    return replace(part, cards={**kept, **shown, "XTENSION": "IMAGE", "PCOUNT": 0, "GCOUNT": 1})


def find_tiles(
    part: HeaderDataUnit,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    file: BinaryIO,
    source: SourceFile,
) -> Tiles:
    """Return the tiles of an image of numbers of ``dtype``; one where its parts do not suffice.

    Raises
    ------
    FormatError
        The table has no tiles, or as many as do not fill the image.
    UnsupportedError
        Nothing here decodes them.
    """
    demand_certain_cards(part)
    numbers = range(len(shape), 0, -1)
    axes = tuple(_cut_axis(part, number, n) for number, n in zip(numbers, shape, strict=True))
    grid = tuple(axis.nchunks for axis in axes)
    offsets, lengths = _read_places(part, file, prod(grid))
    name = str(part.cards.get("ZCMPTYPE", "")).strip()
    scales = [find_place(part, column) is not None for column in SCALES]
    is_scaled, has_scale = all(scales), any(scales) or not part.cards.keys().isdisjoint(SCALES)
    is_lossless = dtype.kind != "f" or (name not in INTEGERS and not has_scale)
    if name in COMPRESSIONS and is_lossless and not is_scaled and lengths.all():
        codecs = _find_codecs(part, name, dtype)
        if name == "GZIP_1" and dtype.itemsize < WIDE and lengths.size:
            first = prod(axis.slabs(0, 1).encoded[0] for axis in axes)
            codecs = (*_widen(part, int(offsets[0] + lengths[0]), first, file), *codecs)
        manifest = ChunkManifest.build(
            grid, files=(source,), offset=offsets.reshape(grid), length=lengths.reshape(grid)
        )
        return Tiles(axes, manifest, codecs)
    if name not in OF_WHOLE_IMAGES or not (is_lossless or is_scaled):
        raise _make_refusal(part, name)
    axes = tuple(ChunkAxis.regular(n, max(n, 1)) for n in shape)
    manifest = ChunkManifest.build(
        tuple(axis.nchunks for axis in axes),
        files=(source,),
        offset=part.start,
        length=part.offset + part.nbytes - part.start,
    )
    return Tiles(axes, manifest, (FitsImage(dtype.str),))


def _find_codecs(part: HeaderDataUnit, name: str, dtype: np.dtype[Any]) -> tuple[Codec, ...]:
    """Return what decodes single tiles."""
    given = {
        str(value).strip().upper(): part.cards.get(key.replace("ZNAME", "ZVAL"))
        for key, value in part.cards.items()
        if re.fullmatch(r"ZNAME\d+", key)
    }
    try:
        return COMPRESSIONS[name](dtype, given)
    except (TypeError, ValueError) as error:
        raise make_damage(part, f"its parameters {given} make no sense ({error})") from error


def _make_refusal(part: HeaderDataUnit, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"FITS part {part.number}: it is an image compressed tile by tile ({name}) in a way that "
        f"is not decoded here; decompress it with funpack, read it with astropy, or leave it out "
        f"with drop_variables or on_error='skip'"
    )


def _widen(part: HeaderDataUnit, end: int, first: int, file: BinaryIO) -> tuple[Codec, ...]:
    """Return the codec of small integers if the first tile, which ends there, has wide ones."""
    file.seek(end - 4)
    # RFC 1952, section 2.3.1: a stream ends with its decoded length
    if int.from_bytes(file.read(4), "little") != WIDE * first:
        return ()
    stored = f">i{part.cards['ZBITPIX'] // 8}".replace(">i1", "|u1")
    return (codec_from_zarr_v2({"id": "astype", "encode_dtype": ">i4", "decode_dtype": stored}),)


def _cut_axis(part: HeaderDataUnit, number: int, length: int) -> ChunkAxis:
    # section 10.1.1: tiles are rows where nothing else is said
    tile = part.cards.get(f"ZTILE{number}", length if number == 1 else 1)
    if type(tile) is not int or tile < 1:
        raise make_damage(part, f"ZTILE{number} is {tile!r}")
    tile = max(min(tile, length), 1)
    last = length - (-(-length // tile) - 1) * tile
    return ChunkAxis.regular(length, tile, last=last)


def _read_places(part: HeaderDataUnit, file: BinaryIO, count: int) -> tuple[Any, Any]:
    """Return where tiles begin in the file, and their lengths in bytes."""
    found = find_place(part, "COMPRESSED_DATA")
    match = DESCRIPTOR.match(found.form.upper()) if found else None
    cells = read_rows(part, file)
    if found is None or match is None or match[2] not in ITEMS or len(cells) != count:
        raise make_damage(part, f"its {len(cells)} rows are not the places of {count} tiles")
    size = ITEMS[match[2]]
    places = find_places(part, cells, found.start, WORDS[match[1]], size)
    return places.offsets, places.counts * size
