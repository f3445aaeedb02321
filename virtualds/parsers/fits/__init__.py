"""FITS files: the primary image, image extensions, tables, and images compressed in tables.

FITS Standard 4.0. Scaling becomes CF packing, so that values equal those of astropy. Features that
cannot be referenced raise an error that names them.

An image that is compressed tile by tile (section 10.1) has a chunk in the heap of a table for each
tile. Integers, and losslessly compressed floats, are referenced tile by tile. If a tile needs
values of its row, the whole table is one chunk, which astropy decodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, build_variable
from virtualds.arrays.parser import (
    NativeReader,
    NativeReadError,
    NativeRegion,
    Parser,
    ReadNative,
    select_region,
)
from virtualds.bounds import check_axes
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.codec import Codec
from virtualds.codecs.fits import FitsImage, PlioTile, RiceTile, SignFlip
from virtualds.codecs.hdf import Shuffle
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.codecs.zlib import Gzip
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.fits.header import (
    FPACK_NAME,
    AxisNames,
    HeaderDataUnit,
    check_unambiguous,
    make_hdu_error,
    read_hdus,
    select_attributes,
)
from virtualds.parsers.fits.tables import (
    DESCRIPTOR_DTYPES,
    DESCRIPTOR_FORM,
    find_column_start,
    locate_heap_arrays,
    read_table,
    read_table_rows,
)
from virtualds.source_file import SourceFile
from virtualds.stores.scan_cache import describe_damage, open_source

TABLE_KEYWORDS = re.compile(
    r"(T(FORM|TYPE|DIM|SCAL|ZERO|NULL|UNIT|DISP)\d+|TFIELDS|THEAP|Z(IMAGE|CMPTYPE|BITPIX|NAXIS\d*"
    r"|TILE\d+|NAME\d+|VAL\d+|SIMPLE|TENSION|EXTEND|PCOUNT|GCOUNT|HECKSUM|DATASUM|QUANTIZ|DITHER0"
    r"|MASKCMP|BLANK|BLOCKED)|CHECKSUM|DATASUM)"
)
"""Matches keywords that define how a table contains an image."""
WIDENED_BYTES = 4
"""Size in bytes to which old writers widen all integers for gzip."""
CHECKSUM_KEYWORDS = {"ZHECKSUM": "CHECKSUM"}
"""Keywords of the uncompressed image that are not derived by removing a Z."""

MakeCodecs = Callable[[np.dtype[Any], Mapping[str, Any]], tuple[Codec, ...]]
"""A function that makes codecs from the dtype of pixels and the parameters of the compression."""


def _make_rice(dtype: np.dtype[Any], cards: Mapping[str, Any]) -> tuple[Codec, ...]:
    return (RiceTile(dtype.str, int(cards.get("BLOCKSIZE", 32)), int(cards.get("BYTEPIX", 4))),)


INTEGER_COMPRESSIONS: dict[str, MakeCodecs] = {
    "RICE_1": _make_rice,
    "RICE_ONE": _make_rice,
    "PLIO_1": lambda dtype, parameters: (PlioTile(dtype.str),),
}
"""Compressions of integers."""
LOSSLESS_COMPRESSIONS: dict[str, MakeCodecs] = {
    "GZIP_1": lambda dtype, parameters: (Gzip(),),
    "GZIP_2": lambda dtype, parameters: (Shuffle(dtype.itemsize), Gzip()),
}
"""Compressions of pixels of any type."""
COMPRESSIONS = INTEGER_COMPRESSIONS | LOSSLESS_COMPRESSIONS
"""Compressions of single tiles by ZCMPTYPE (table 36)."""
WHOLE_IMAGE_COMPRESSIONS = ("RICE_1", "RICE_ONE", "GZIP_1", "GZIP_2", "HCOMPRESS_1", "NOCOMPRESS")
"""Compressions that astropy decodes without crashing on damaged bytes."""


SCALE_NAMES = ("ZSCALE", "ZZERO")
"""Names of columns or keywords that convert integers to floats."""
ITEM_SIZES = {"B": 1, "I": 2, "J": 4}
"""Sizes in bytes of the elements of tiles, by letter."""


class Tiles(NamedTuple):
    """The tiles of an image: its chunk axes, the references of the chunks, and their codecs."""

    axes: tuple[ChunkAxis, ...]
    manifest: ChunkManifest
    codecs: tuple[Codec, ...]


def to_image(hdu: HeaderDataUnit) -> HeaderDataUnit:
    """Convert a table with a compressed image to an HDU with the cards of the image."""
    image_cards = {
        name: value
        for name, value in hdu.cards.items()
        if not TABLE_KEYWORDS.fullmatch(name) and not re.fullmatch(r"NAXIS\d*", name)
    }
    restored = {
        CHECKSUM_KEYWORDS.get(name, name[1:]): value
        for name, value in hdu.cards.items()
        if re.fullmatch(r"Z(BITPIX|NAXIS\d*|HECKSUM|DATASUM)", name)
    }
    return replace(
        hdu, cards={**image_cards, **restored, "XTENSION": "IMAGE", "PCOUNT": 0, "GCOUNT": 1}
    )


def find_tiles(
    hdu: HeaderDataUnit,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    file: BinaryIO,
    source: SourceFile,
) -> Tiles:
    """Return the tiles of an image of ``dtype``, or the whole table as one chunk if necessary.

    Raises `FormatError` if the table has no tiles, or its tiles do not fill the image, and
    `UnsupportedError` if no codec decodes the tiles.
    """
    check_unambiguous(hdu)
    numbers = range(len(shape), 0, -1)
    axes = tuple(_build_tile_axis(hdu, number, n) for number, n in zip(numbers, shape, strict=True))
    grid = tuple(axis.nchunks for axis in axes)
    offsets, lengths = _locate_tiles(hdu, file, prod(grid))
    compression = str(hdu.cards.get("ZCMPTYPE", "")).strip()
    scales = [find_column_start(hdu, column) is not None for column in SCALE_NAMES]
    is_scaled, has_scale = all(scales), any(scales) or not hdu.cards.keys().isdisjoint(SCALE_NAMES)
    is_lossless = dtype.kind != "f" or (compression not in INTEGER_COMPRESSIONS and not has_scale)
    if compression in COMPRESSIONS and is_lossless and not is_scaled and lengths.all():
        codecs = _find_codecs(hdu, compression, dtype)
        if compression == "GZIP_1" and dtype.itemsize < WIDENED_BYTES and lengths.size:
            first = prod(axis.slabs(0, 1).encoded[0] for axis in axes)
            codecs = (*_make_widening(hdu, int(offsets[0] + lengths[0]), first, file), *codecs)
        manifest = ChunkManifest.build(
            grid, files=(source,), offset=offsets.reshape(grid), length=lengths.reshape(grid)
        )
        return Tiles(axes, manifest, codecs)
    if compression not in WHOLE_IMAGE_COMPRESSIONS or not (is_lossless or is_scaled):
        raise _make_unsupported_error(hdu, compression)
    axes = tuple(ChunkAxis.regular(n, max(n, 1)) for n in shape)
    manifest = ChunkManifest.build(
        tuple(axis.nchunks for axis in axes),
        files=(source,),
        offset=hdu.start,
        length=hdu.offset + hdu.nbytes - hdu.start,
    )
    return Tiles(axes, manifest, (FitsImage(dtype.str),))


def _find_codecs(hdu: HeaderDataUnit, name: str, dtype: np.dtype[Any]) -> tuple[Codec, ...]:
    """Return the codecs of single tiles."""
    parameters = {
        str(value).strip().upper(): hdu.cards.get(key.replace("ZNAME", "ZVAL"))
        for key, value in hdu.cards.items()
        if re.fullmatch(r"ZNAME\d+", key)
    }
    try:
        return COMPRESSIONS[name](dtype, parameters)
    except (TypeError, ValueError) as error:
        raise make_hdu_error(hdu, f"its parameters {parameters} make no sense ({error})") from error


def _make_unsupported_error(hdu: HeaderDataUnit, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"FITS part {hdu.number}: it is an image compressed tile by tile ({name}) in a way that "
        f"is not decoded here; decompress it with funpack, read it with astropy, or leave it out "
        f"with drop_variables or on_error='skip'"
    )


def _make_widening(hdu: HeaderDataUnit, end: int, first: int, file: BinaryIO) -> tuple[Codec, ...]:
    """Return the codec for widened integers if the first tile, before ``end``, has them."""
    file.seek(end - 4)
    # RFC 1952, section 2.3.1: a stream ends with its decoded length
    if int.from_bytes(file.read(4), "little") != WIDENED_BYTES * first:
        return ()
    stored = f">i{hdu.cards['ZBITPIX'] // 8}".replace(">i1", "|u1")
    return (codec_from_zarr_v2({"id": "astype", "encode_dtype": ">i4", "decode_dtype": stored}),)


def _build_tile_axis(hdu: HeaderDataUnit, number: int, length: int) -> ChunkAxis:
    # section 10.1.1: tiles are rows by default
    tile = hdu.cards.get(f"ZTILE{number}", length if number == 1 else 1)
    if type(tile) is not int or tile < 1:
        raise make_hdu_error(hdu, f"ZTILE{number} is {tile!r}")
    tile = max(min(tile, length), 1)
    last = length - (-(-length // tile) - 1) * tile
    return ChunkAxis.regular(length, tile, last=last)


def _locate_tiles(hdu: HeaderDataUnit, file: BinaryIO, count: int) -> tuple[Any, Any]:
    """Return the offsets and lengths in bytes of tiles in the file."""
    column_start = find_column_start(hdu, "COMPRESSED_DATA")
    match = DESCRIPTOR_FORM.match(column_start.form.upper()) if column_start else None
    rows = read_table_rows(hdu, file)
    if column_start is None or match is None or match[2] not in ITEM_SIZES or len(rows) != count:
        raise make_hdu_error(hdu, f"its {len(rows)} rows do not locate {count} tiles")
    size = ITEM_SIZES[match[2]]
    locations = locate_heap_arrays(hdu, rows, column_start.start, DESCRIPTOR_DTYPES[match[1]], size)
    return locations.offsets, locations.counts * size


# ---------------------------------------------------------------------- fits

SIGNATURE = b"SIMPLE  ="
DTYPES = {8: ">u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
"""Stored types by BITPIX (section 4.4.1.1)."""
UNSIGNED = {(8, -128): "i1", (16, 2**15): ">u2", (32, 2**31): ">u4", (64, 2**63): ">u8"}
"""Types of integers with an offset of BZERO, by BITPIX and BZERO (table 11)."""
TABLE_KINDS = ("BINTABLE", "A3DTABLE", "TABLE")
"""Kinds of extensions that are tables; the second is an old name of the first."""
STRUCTURE_KEYWORDS = re.compile(
    r"SIMPLE|XTENSION|BITPIX|NAXIS\d*|PCOUNT|GCOUNT|EXTEND|GROUPS|BSCALE|BZERO|BLANK"
)
"""Matches keywords that only describe how an image is stored."""
CHUNK_BYTES = 4 * 2**20
"""Size in bytes of a chunk with a codec; uncompressed values need no chunks."""


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is FITS."""
    return head[:9] == SIGNATURE


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the structure of all images and tables of a file.

    Tables are groups; image extensions without data are groups with attributes only.

    Raises `FormatError` if the file is damaged or truncated, and `FileNotFoundError` if there is no
    such group.
    """
    skipped = frozenset(skip)
    reader = _FitsReader(source, skipped)
    with describe_damage(source, "FITS", (ValueError,)), open_source(source) as file:
        units = list(read_hdus(file, source))
        named: dict[str, HeaderDataUnit] = {}
        for hdu in units:
            # unique names of EXTNAME, EXTVER and number, as in astropy
            name = str(hdu.cards.get("EXTNAME", "")).strip().replace("/", "_")
            name = name or (FPACK_NAME if hdu.is_compressed else "")
            name = name or (f"HDU{hdu.number}" if hdu.number else "PRIMARY")
            if (version := hdu.cards.get("EXTVER", 1)) != 1:
                name = f"{name}_{version}"
            named[name if name not in named else f"{name}_HDU{hdu.number}"] = hdu
        for name, hdu in named.items():
            if name not in skipped:
                reader.add(name, hdu, file)
    attributes = select_attributes(units[0].cards, STRUCTURE_KEYWORDS)
    encoding = {"unlimited_dims": set[str]()}
    groups, problems = reader.groups, reader.problems
    return ManifestGroup(reader.variables, attributes, groups, encoding, problems).group(group)


class _FitsReader:
    """Collects the variables of a file, with their shared dimensions."""

    def __init__(self, source: SourceFile, skipped: frozenset[str]) -> None:
        self.source = source
        self._skipped = skipped
        self.variables: dict[str, ManifestVariable] = {}
        self.groups: dict[str, ManifestGroup] = {}
        self.problems: dict[str, VirtualdsError] = {}
        self._axes = AxisNames("naxis")

    def add(self, name: str, hdu: HeaderDataUnit, file: BinaryIO) -> None:
        """Add an HDU of the file: a variable, a group or a problem."""
        if hdu.kind in TABLE_KINDS and not hdu.is_compressed:
            self.groups[name] = read_table(hdu, file, self.source, self._skipped)
            return
        try:
            _check_image(hdu)
            if hdu.shape:
                self.variables[name] = self._read_image(name, hdu, file)
            elif hdu.number:
                attributes = select_attributes(hdu.cards, STRUCTURE_KEYWORDS)
                self.groups[name] = ManifestGroup({}, attributes)
        except UnsupportedError as error:
            error.locate(f"part {name!r}", self.source.url)
            self.problems[name] = error
            self.variables[name] = ManifestVariable(
                (), ManifestArray.unreadable((), "V1", f"{error}"), {}
            )

    def _read_image(self, name: str, hdu: HeaderDataUnit, file: BinaryIO) -> ManifestVariable:
        end = hdu.offset + hdu.nbytes
        if self.source.size is not None and end > self.source.size:
            raise FormatError(
                f"{self.source.url}: the data of {name!r} would end at byte {end} of "
                f"{self.source.size}; the file is truncated, fetch it again"
            )
        image = to_image(hdu) if hdu.is_compressed else hdu
        check_axes(len(image.shape), "it")
        unsigned_dtype = _find_unsigned_dtype(image.cards)
        stored = np.dtype(DTYPES[image.bitpix])
        dtype = stored if unsigned_dtype is None else np.dtype(unsigned_dtype)
        codecs = () if unsigned_dtype is None else (SignFlip(dtype.itemsize),)
        if hdu.is_compressed:
            tiles = find_tiles(hdu, image.shape, stored, file, self.source)
            fragment = Fragment.whole(tiles.axes, tiles.manifest)
            layout = tuple(range(len(image.shape)))
            pipeline = CodecPipeline(dtype, (*codecs, *tiles.codecs), layout=layout)
            array = ManifestArray.from_fragment(fragment, pipeline)
        else:
            array = self._build_plain_array(hdu, dtype, codecs)
        attributes = _find_packing(image.cards, dtype, unsigned_dtype)
        attributes |= select_attributes(image.cards, STRUCTURE_KEYWORDS)
        dims = self._axes.name(name, image.shape)
        return build_variable(array, dims, self.source, attributes)

    def _build_plain_array(
        self, hdu: HeaderDataUnit, dtype: np.dtype[Any], codecs: tuple[Codec, ...]
    ) -> ManifestArray:
        chunks = _choose_chunks(hdu.shape, dtype.itemsize) if codecs else hdu.shape
        grid = tuple(n // c if c else 0 for n, c in zip(hdu.shape, chunks, strict=True))
        size = prod(chunks) * dtype.itemsize
        return ManifestArray.from_arrays(
            shape=hdu.shape,
            chunks=tuple(max(c, 1) for c in chunks),
            dtype=dtype,
            path=self.source,
            offsets=hdu.offset + size * np.arange(prod(grid), dtype=np.int64).reshape(grid),
            lengths=size if prod(grid) else 0,
            codecs=codecs,
        )


def _check_image(hdu: HeaderDataUnit) -> None:
    if hdu.is_compressed:
        return
    if hdu.kind == "IMAGE" and hdu.cards.get("GROUPS") is not True:
        return
    what = "random groups" if hdu.kind == "IMAGE" else f"a {hdu.kind} extension"
    raise UnsupportedError(
        f"FITS part {hdu.number}: it is {what}, and only images and tables can be referenced; "
        f"read it with astropy, or leave it out with drop_variables or on_error='skip'"
    )


def _find_unsigned_dtype(cards: Mapping[str, Any]) -> str | None:
    """Return the dtype of integers that are stored with a flipped sign bit, or None for others."""
    if cards.get("BSCALE", 1) != 1:
        return None
    return UNSIGNED.get((cards["BITPIX"], cards.get("BZERO", 0)))


def _choose_chunks(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return a chunk shape that divides an image evenly, along its first axes if possible."""
    chunks = list(shape)
    for axis in range(len(shape)):
        while prod(chunks) * itemsize > CHUNK_BYTES and chunks[axis] > 1:
            chunks[axis] = next(
                (n for n in range(chunks[axis] // 2, 1, -1) if chunks[axis] % n == 0), 1
            )
    return tuple(chunks)


def _find_packing(
    cards: Mapping[str, Any], dtype: np.dtype[Any], unsigned_dtype: str | None
) -> dict[str, Any]:
    """Return scale, zero point and blanks as CF attributes, in the precision of astropy."""
    if unsigned_dtype is not None:
        # the standard does not define BLANK for shifted integers
        return {"BLANK": cards["BLANK"]} if "BLANK" in cards else {}
    packing: dict[str, Any] = {}
    # as in section 5.3, single precision is enough for 8 and 16 bits
    is_wide = dtype.itemsize == 8 if dtype.kind == "f" else dtype.kind == "i" and dtype.itemsize > 2
    scale_type = np.float64 if is_wide else np.float32
    scale, zero = cards.get("BSCALE", 1), cards.get("BZERO", 0)
    if (scale, zero) != (1, 0):
        packing = {"scale_factor": scale_type(scale), "add_offset": scale_type(zero)}
    blank = cards.get("BLANK")
    if type(blank) is int and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if limits.min <= blank <= limits.max:
            packing["_FillValue"] = dtype.newbyteorder("=").type(blank)
    return packing


def _open_astropy(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    """Open a file with astropy, both without and with scaling."""
    from astropy.io import fits  # type: ignore[import-untyped]

    stored, scaled = (
        closing.enter_context(fits.open(target(), memmap=False, do_not_scale_image_data=is_raw))
        for is_raw in (True, False)
    )

    def read_part(request: NativeRegion) -> Any:
        # astropy only returns unsigned integers if scaling is enabled
        for unit in scaled if request.decoded or request.has_codecs else stored:
            file_info = unit.fileinfo()
            # images in tables are decoded with their headers
            if file_info["hdrLoc"] <= request.offset < file_info["datLoc"] + file_info["datSpan"]:
                if isinstance(unit, fits.BinTableHDU | fits.TableHDU):
                    return _read_column(unit, request)
                return np.asarray(unit.section[request.region] if request.region else unit.data)
        raise NativeReadError("it has no image or table there")

    return read_part


def _read_column(unit: Any, request: NativeRegion) -> Any:
    """Return a region of a column as astropy decodes it."""
    columns = {column.name: column for column in unit.columns}
    column = columns.get(request.variable)
    if column is None:
        raise NativeReadError("it has no column of that name")
    values = np.asarray(unit.data[column.name])
    is_variable_length = values.dtype.kind == "O"
    if is_variable_length:
        values = np.concatenate([np.zeros(0, "?"), *(np.ravel(array) for array in values)])
    has_scale = {column.bscale, column.bzero} - {None, "", 0, 1}
    # astropy returns integers if `bzero` only flips their sign bit, and scales others to floats
    is_scaled = has_scale and values.dtype.kind == "f" and not request.decoded
    # astropy does not change the dtype of variable-length arrays for scaled values
    if column.null is not None or is_scaled or (has_scale and is_variable_length):
        raise NativeReadError("it shows other numbers for undefined values, or scales them")
    # astropy removes trailing blanks only from single strings
    values = np.char.rstrip(_truncate_at_nul(values)) if values.dtype.kind == "U" else values
    return select_region(values, request)


def _truncate_at_nul(texts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Truncate strings at the first NUL, after which characters are undefined (7.3.3.1)."""
    characters = np.ascontiguousarray(texts)[..., None].view(np.uint32)
    truncated = characters * np.logical_and.accumulate(characters != 0, axis=-1)
    result: np.ndarray[Any, Any] = truncated.astype(np.uint32).view(texts.dtype)[..., 0]
    return result


PARSER = Parser(
    "fits",
    (".fits", ".fit", ".fts"),
    detect,
    read,
    natives=(NativeReader("astropy", _open_astropy, remote=True),),
)
