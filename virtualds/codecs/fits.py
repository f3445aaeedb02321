"""Codecs of FITS (FITS Standard 4.0): unsigned integers, compressed images, and columns of tables.

- Unsigned integers are stored as signed ones (section 4.4.2.5, table 11): ``BZERO`` is
  2**(bits - 1), or -128 for signed bytes, and adding it flips the highest bit.
- Tile-compressed images (section 10) are decoded as a whole by astropy, because the scale of a tile
  and the seed of its dithering are in the row of the table, not in the bytes of the tile. The
  encoded bytes are a whole HDU, header and table.
- Tiles that do not need values of their row are decoded one by one: Rice (section 10.4.1), by
  imagecodecs, and PLIO (section 10.4.3).
- `ColumnBytes` extracts the bytes of one column from rows. The other codecs convert logical values,
  bits, text, and numbers in text (sections 7.2.5 and 7.3.3) to NumPy's values.

In Zarr, only our names for them exist.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.codecs.codec import DECODE_ERRORS, Codec, SingleTypeCodec
from virtualds.importing import import_package
from virtualds.streams import Buffer


@dataclass(frozen=True)
class SignFlip(Codec):
    """Big-endian integers whose highest bit is flipped.

    Parameters
    ----------
    elementsize : int
        Bytes per integer.
    """

    elementsize: int

    zarr_v2_id = "virtualds_sign_flip"
    added_bytes = 0

    def __post_init__(self) -> None:
        if self.elementsize < 1:
            raise ValueError(f"sign_flip: integers of {self.elementsize} bytes; give at least 1")

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if len(data) % self.elementsize:
            raise ValueError(f"{len(data)} bytes are not integers of {self.elementsize}")
        out = np.array(np.frombuffer(data, np.uint8))
        out[:: self.elementsize] ^= 0x80
        return out.data


# ---------------------------------------------------------------------- fits image

BLOCK_BYTES, CARD_BYTES = 2880, 80
"""Sizes in bytes of a block and of a card (sections 3.1 and 4.1)."""
IMAGE_KEYWORDS = re.compile(
    rb"(XTENSION|BITPIX|NAXIS\d*|PCOUNT|GCOUNT|TFIELDS|THEAP|T(FORM|TYPE|NULL|SCAL|ZERO)\d+|BLANK"
    rb"|Z(IMAGE|CMPTYPE|BITPIX|NAXIS\d*|TILE\d+|NAME\d+|VAL\d+|QUANTIZ|DITHER0|BLANK))"
)
"""Keywords that define how the table contains the image."""
EMPTY_PRIMARY = b"".join(
    f"{name:8}= {value:>20}".encode().ljust(CARD_BYTES)
    for name, value in (("SIMPLE", "T"), ("BITPIX", 8), ("NAXIS", 0), ("EXTEND", "T"))
)
"""The header of a file without a primary image."""
END_CARD = b"END".ljust(CARD_BYTES)
HCOMPRESS_SHAPE = struct.Struct(">II")
"""Rows and columns of an HCOMPRESS stream."""
MAX_ITEMSIZE = 8
"""Maximum size in bytes of a pixel."""
RICE_NAMES, MAX_RICE_BLOCK = ("RICE_1", "RICE_ONE"), 2**16
"""Names of Rice's algorithm, and the maximum number of pixels that it codes together; the standard
allows 16 and 32."""

ASTROPY_DECODERS = "astropy.io.fits.hdu.compressed._compression"
DECODE_FAILURES = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError),
    *(AssertionError, TypeError, ValueError, zlib.error),
)
"""Errors that astropy raises for invalid headers or tiles."""


@dataclass(frozen=True)
class FitsImage(SingleTypeCodec):
    """An image in tiles: the header of a table, the table, and its heap.

    Parameters
    ----------
    dtype : str
        Dtype of the pixels, from ZBITPIX.
    """

    dtype: str

    zarr_v2_id = "virtualds_fits_image"

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "iuf":
            raise ValueError(f"fits_image: {self.dtype} is not a numeric type")

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        fits = import_package("astropy.io.fits", "fits_image")
        # astropy has no public name for the error class of its decoders
        decoders = import_package(ASTROPY_DECODERS, "fits_image")
        file = _make_file(memoryview(data))
        try:
            values = _read_image(fits, file, np.dtype(self.dtype), nbytes)
        except (*DECODE_FAILURES, fits.VerifyError, decoders.CfitsioException) as error:
            raise ValueError(f"astropy: {error}") from error
        return _to_bytes(values, np.dtype(self.dtype))


def _make_file(part: memoryview) -> BytesIO:
    """Return a FITS file of one HDU, with only the cards that decoding needs."""
    cards = list(_split_header(part))
    header = (
        b"".join(card for card in cards if IMAGE_KEYWORDS.fullmatch(card[:8].rstrip())) + END_CARD
    )
    start = -(-(len(cards) + 1) * CARD_BYTES // BLOCK_BYTES) * BLOCK_BYTES
    pieces = (EMPTY_PRIMARY + END_CARD, header, part[start:])
    return BytesIO(b"".join(b for piece in pieces for b in (piece, _pad(piece))))


def _pad(piece: Buffer) -> bytes:
    # headers are padded with blanks (section 3.3.1); what follows the data is not read
    return b" " * (-len(piece) % BLOCK_BYTES)


def _split_header(part: memoryview) -> Iterator[bytes]:
    """Yield the cards before the END card."""
    for start in range(0, len(part) - CARD_BYTES + 1, CARD_BYTES):
        card = bytes(part[start : start + CARD_BYTES])
        if card == END_CARD:
            return
        yield card
    raise ValueError("a header has no END card")


def _read_image(fits: Any, file: BytesIO, dtype: np.dtype[Any], nbytes: int | None) -> Any:
    """Return the pixels, after checking their number."""
    with fits.open(file, do_not_scale_image_data=True) as parts:
        image = parts[1]
        shape, bits = image.shape, image.header["BITPIX"]
        if abs(bits) // 8 != dtype.itemsize or prod(shape) * dtype.itemsize != nbytes:
            raise ValueError(f"{shape} pixels of {bits} bits are not {nbytes} bytes")
        _check_streams(fits, file, image)
        return np.ascontiguousarray(image.data)


def _check_streams(fits: Any, file: BytesIO, image: Any) -> None:
    """Raise an error for streams that are longer than their tiles, before decoding them.

    The decoder of HCOMPRESS does not allocate memory: it writes past the tile, and ends the
    process.
    """
    axes = zip(image.shape, image.tile_shape, strict=True)
    lengths = ([min(n, size - start) for start in range(0, size, n)] for size, n in axes)
    # in the order of the rows
    tiles = [prod(tile) for tile in product(*lengths)]
    with fits.open(BytesIO(file.getbuffer()), disable_image_compression=True) as parts:
        rows, algorithm = parts[1].data, image.compression_type
        if algorithm in RICE_NAMES:
            _check_rice(parts[1].header)
        descriptors = rows.view(np.ndarray)
        for name, check in (
            ("COMPRESSED_DATA", STREAM_CHECKS.get(algorithm)),
            ("GZIP_COMPRESSED_DATA", _has_gzip_size),
        ):
            # the fallback column often exists but is empty
            if check is None or name not in rows.names or not descriptors[name][:, 0].any():
                continue
            for stream, pixels in zip(rows[name], tiles, strict=True):
                if len(stream) and not check(np.asarray(stream).tobytes(), pixels):
                    raise ValueError(f"a stream is not one of {pixels} pixels")


def _check_rice(header: Mapping[str, Any]) -> None:
    """Check Rice parameters (table 37), as some invalid ones crash the decoder."""
    names = [name for name in header if re.fullmatch(r"ZNAME\d+", name)]
    values = {str(header[name]).upper(): header.get(f"ZVAL{name[5:]}") for name in names}
    block, word = values.get("BLOCKSIZE", 32), values.get("BYTEPIX", 4)
    is_sound = type(block) is int and 0 < block <= MAX_RICE_BLOCK
    if not is_sound or type(word) is not int or word not in (1, 2, 4):
        raise ValueError(f"blocks of {block!r} pixels, and {word!r} bytes for each")


def _has_hcompress_size(stream: bytes, pixels: int) -> bool:
    # rows and columns follow the first two bytes (section 10.4.4)
    return len(stream) >= 10 and prod(HCOMPRESS_SHAPE.unpack_from(stream, 2)) == pixels


def _has_gzip_size(stream: bytes, pixels: int) -> bool:
    limit = MAX_ITEMSIZE * pixels
    return len(zlib.decompressobj(wbits=31).decompress(stream, limit + 1)) <= limit


STREAM_CHECKS = {
    "HCOMPRESS_1": _has_hcompress_size,
    "GZIP_1": _has_gzip_size,
    "GZIP_2": _has_gzip_size,
}
"""Functions that check the number of pixels of a stream; other decoders check it themselves."""


# ---------------------------------------------------------------------- fits tiles

HEADER_WORDS = 3
"""Words of the header of a line list in the old form."""


@dataclass(frozen=True)
class RiceTile(SingleTypeCodec):
    """Integers compressed by Rice's algorithm.

    Parameters
    ----------
    dtype : str
        Dtype of the pixels.
    block : int
        Pixels that are coded together.
    word : int
        The size in bytes of a number in the algorithm.
    """

    dtype: str
    block: int
    word: int

    zarr_v2_id = "virtualds_fits_rice"
    decode_errors = DECODE_ERRORS

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "iu" or self.word not in (1, 2, 4) or self.block < 1:
            raise ValueError(
                f"fits_rice: {self.dtype} in blocks of {self.block}, {self.word} bytes"
            )

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "rcomp")
        dtype = np.dtype(self.dtype)
        count = _count_pixels(nbytes, dtype)
        # single bytes are unsigned (section 10.4.1)
        word = np.dtype("u1" if self.word == 1 else f"i{self.word}")
        pixels = imagecodecs.rcomp_decode(bytes(data), (count,), word, nblock=self.block)
        return _to_bytes(pixels, dtype)


@dataclass(frozen=True)
class PlioTile(SingleTypeCodec):
    """Integers of a mask, encoded as a line list of IRAF.

    Parameters
    ----------
    dtype : str
        Dtype of the pixels.
    """

    dtype: str

    zarr_v2_id = "virtualds_fits_plio"

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "iu":
            raise ValueError(f"fits_plio: {self.dtype} is not an integer type")

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        dtype = np.dtype(self.dtype)
        count = _count_pixels(nbytes, dtype)
        if len(data) % 2:
            raise ValueError(f"{len(data)} bytes are not words of 2")
        return _to_bytes(_decode_line_list(np.frombuffer(data, ">i2").tolist(), count), dtype)


def _count_pixels(nbytes: int | None, dtype: np.dtype[Any]) -> int:
    if nbytes is None or nbytes % dtype.itemsize:
        raise ValueError(f"{nbytes} bytes are not a whole number of {dtype}")
    return nbytes // dtype.itemsize


def _to_bytes(pixels: npt.NDArray[Any], dtype: np.dtype[Any]) -> Buffer:
    out: memoryview = pixels.astype(dtype, copy=False).reshape(-1).view(np.uint8).data
    return out


def _decode_line_list(words: list[int], count: int) -> npt.NDArray[np.int32]:
    """Decode a line list, which has runs of one value among zeros, to pixels."""
    out = np.zeros(count, np.int32)
    index, stop = _find_instructions(words)
    x, value = 0, 1
    while index < stop:
        code, number = divmod(words[index], 4096)
        index += 1
        if code == 1:
            # the value has two words, low bits first
            if index >= stop:
                raise ValueError("a list ends within a value")
            value = (words[index] << 12) + number
            index += 1
        elif code in (2, 3, 6, 7):
            value += number if code in (2, 6) else -number
            out[x : x + (code > 3)] = value
            x += code > 3
        elif code in (0, 4, 5):
            # zeros, a run of the value, or zeros that end with the value
            start = {0: x + number, 4: x, 5: max(x + number - 1, x)}[code]
            x += number
            out[start:x] = value
        else:
            raise ValueError(f"{code} is not an instruction")
        if x > count:
            raise ValueError(f"a list goes beyond its {count} pixels")
    return out


def _find_instructions(words: list[int]) -> tuple[int, int]:
    """Return start and stop of the instructions in a line list."""
    if len(words) > HEADER_WORDS - 1 and words[2] > 0:
        start, stop = HEADER_WORDS, words[2]
    elif len(words) > 4:
        start, stop = words[1], (words[4] << 15) + words[3]
    else:
        start, stop = 0, -1
    if not 0 <= start <= stop <= len(words):
        raise ValueError(f"{len(words)} words have no header of a list")
    return start, stop


# ---------------------------------------------------------------------- table columns


@dataclass(frozen=True)
class ColumnBytes(Codec):
    """The bytes of one column of a table, which are interleaved with the bytes of other columns.

    A chunk begins and ends with the column. The last chunk of a table has fewer rows; it decodes to
    a whole chunk that ends with zeros, which are outside the array.

    Parameters
    ----------
    row : int
        Bytes from one row to the next.
    width : int
        The size in bytes of the column in a row.
    """

    row: int
    width: int

    zarr_v2_id = "virtualds_row_bytes"

    def __post_init__(self) -> None:
        if not 1 <= self.width <= self.row:
            raise ValueError(f"row_bytes: {self.width} bytes of rows of {self.row}")

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        before, remainder = divmod(len(data) - self.width, self.row)
        row_count = before + 1 if nbytes is None else nbytes // self.width
        if remainder or not 0 <= before < row_count:
            raise ValueError(f"{len(data)} bytes are not 1 to {row_count} rows")
        out = np.zeros((row_count, self.width), np.uint8)
        stored = np.frombuffer(data, np.uint8)
        out[:before] = stored[: before * self.row].reshape(before, self.row)[:, : self.width]
        out[before] = stored[before * self.row :]
        return out.reshape(-1).data


@dataclass(frozen=True)
class Logicals(Codec):
    """Logical values: ``T`` is true; ``F``, and zero for "undefined", are false.

    Parameters
    ----------
    has_ones : bool
        Whether the byte 1 is true, as old versions of astropy write variable-length arrays.
    """

    has_ones: bool = False

    zarr_v2_id = "virtualds_logicals"
    added_bytes = 0

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, **({"has_ones": True} if self.has_ones else {})}

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        stored = np.frombuffer(data, np.uint8)
        values = stored == ord("T")
        if self.has_ones:
            values |= stored == 1
        out: memoryview = values.view(np.uint8).data
        return out


@dataclass(frozen=True)
class RowBits(Codec):
    """Bits as booleans, the highest bit first; each row begins with a new byte.

    Parameters
    ----------
    bits : int
        Bits of a row.
    """

    bits: int

    zarr_v2_id = "virtualds_row_bits"

    def __post_init__(self) -> None:
        if self.bits < 1:
            raise ValueError(f"row_bits: rows of {self.bits} bits")

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes // self.bits * -(-self.bits // 8)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        packed = np.frombuffer(data, np.uint8)
        row = -(-self.bits // 8)
        if packed.size % row:
            raise ValueError(f"{packed.size} bytes are not rows of {row}")
        return np.unpackbits(packed.reshape(-1, row), axis=1, count=self.bits).reshape(-1).data


@dataclass(frozen=True)
class PaddedText(Codec):
    """ASCII strings that are terminated by NUL, or padded with blanks.

    They decode to numpy strings of the same length, little-endian, without trailing blanks.

    Parameters
    ----------
    width : int
        Characters of a text.
    """

    width: int

    zarr_v2_id = "virtualds_padded_text"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"padded_text: texts of {self.width} characters")

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes // 4

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        characters = np.frombuffer(data, np.uint8)
        if characters.size % self.width:
            raise ValueError(f"{characters.size} bytes are not texts of {self.width}")
        texts = characters.reshape(-1, self.width)
        if (texts > 127).any():
            raise ValueError("there are characters that are not ASCII")
        # section 7.3.3.1: characters after a NUL are undefined
        texts = texts * np.logical_and.accumulate(texts != 0, axis=1)
        is_blank = np.logical_and.accumulate(((texts == 32) | (texts == 0))[:, ::-1], axis=1)
        return np.where(is_blank[:, ::-1], 0, texts).astype("<u4").reshape(-1).view(np.uint8).data


@dataclass(frozen=True)
class TextNumbers(Codec):
    """Numbers as text, in the format of Fortran.

    Parameters
    ----------
    width : int
        Characters of a number.
    dtype : str
        Dtype of the numbers: integers or floats.
    null : str
        Text that means "no value": NaN for floats, the minimum for integers. Blanks mean that
        too; if this is empty, blank integers are zero.
    """

    width: int
    dtype: str
    null: str = ""

    zarr_v2_id = "virtualds_text_numbers"
    decode_errors = (ValueError, OverflowError)

    def __post_init__(self) -> None:
        if self.width < 1 or np.dtype(self.dtype).kind not in "if":
            raise ValueError(f"text_numbers: {self.dtype} of {self.width} characters")

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes // np.dtype(self.dtype).itemsize * self.width

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if len(data) % self.width:
            raise ValueError(f"{len(data)} bytes are not texts of {self.width}")
        if not data:
            return data
        # rows past the end of the array contain zeros
        texts = np.char.strip(np.frombuffer(data, f"S{self.width}"))
        dtype = np.dtype(self.dtype)
        is_null = (texts == b"") | (texts == self.null.strip().encode("ascii", "replace"))
        texts = np.char.replace(np.char.replace(texts, b"D", b"E"), b"d", b"e")
        out = np.where(is_null, b"0", texts).astype(dtype)
        out[is_null] = self.missing_value
        return out.view(np.uint8).data

    @property
    def missing_value(self) -> Any:
        """The decoded missing value."""
        dtype = np.dtype(self.dtype)
        if dtype.kind == "f":
            return np.nan
        return np.iinfo(dtype).min if self.null.strip() else 0
