"""Image codecs: JPEG, JPEG-LS, JPEG XL, and others; each chunk, tile or strip is one image.

- JPEG (ITU-T T.81). In TIFF, the tables may be in the TIFF header (TIFF Technical Note 2). In Zarr
  v2 it is ``imagecodecs_jpeg`` of imagecodecs. Zarr v3 ``jpeg``, registered in zarr-extensions,
  requires one image per chunk; its Zarr v2 id is ``virtualds_jpeg``, since ``imagecodecs_jpeg``
  does not restrict the shape of a chunk.
- JPEG-LS (ITU-T T.87): HDF5 filter 32018, and ``imagecodecs_jpegls`` in Zarr v2.
- JPEG XL: Zarr v3 ``jpegxl``, registered in zarr-extensions: a chunk is one image, whose frames,
  lines, samples of a line, and channels are its axes, without axes for a single frame or channel.
  Its Zarr v2 id is ``virtualds_jpegxl``.
- WebP, PNG, JPEG 2000, JPEG XL and LERC with the names and configurations of imagecodecs. Decoded
  numbers have the byte order of the machine, as in other readers of these names.

No decoder is given the expected shape and dtype, so sizes in headers are checked here before memory
is allocated for them: RFC 2083, 11.2.1 (PNG); RFC 9649, 2.4 to 2.7 (WebP); ITU-T T.800, A.5.1 (JPEG
2000); ISO/IEC 18181-1, annex D, and 18181-2 for the boxes around it (JPEG XL); the second version
of LERC ("Lerc2 ").
"""

from __future__ import annotations

import base64
import struct
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import zstandard

from virtualds.codecs.codec import (
    DECODE_ERRORS,
    Codec,
    SelfDescribingCodec,
    ShapedCodec,
    check_length,
)
from virtualds.errors import UnsupportedError
from virtualds.importing import import_package
from virtualds.streams import Buffer

FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Second bytes of the markers before a frame header (ITU-T T.81, table B.1)."""

APP14 = 0xEE
"""Second byte of Adobe's marker, whose segment ends with the colour transform."""

END_OF_IMAGE = b"\xff\xd9"
"""Marker at the end of an image."""

MARKERS_WITHOUT_SEGMENT = frozenset({0x01, *range(0xD0, 0xD9)})
"""Second bytes of markers without a segment."""

RGB_TRANSFORM = 0
"""Adobe's colour transform for components that are red, green and blue."""

SUBSAMPLING: dict[Any, Any] = {
    "4:4:4": [[1, 1], [1, 1], [1, 1]],
    "4:2:2": [[2, 1], [1, 1], [1, 1]],
    "4:4:0": [[1, 2], [1, 1], [1, 1]],
    "4:2:0": [[2, 2], [1, 1], [1, 1]],
}
"""Sampling factors of components, by their names in drafts of the registry."""

JPEG_KEYS = {"quality", "encoded_color_space", "subsampling"}
"""Keys of the configuration of ``jpeg``."""

MAX_SIDE = 65535
"""Maximum number of lines of an image, and of samples of a line."""

YCBCR, RGB, CMYK, GRAY = 6, 2, 5, 1
"""Photometric interpretations of TIFF."""

CONTIGUOUS = 1
"""TIFF's planar configuration in which the samples of a pixel are adjacent."""

JPEGLS_FRAME_MARKERS = frozenset({0xF7})
"""Second byte of the marker before the frame header of JPEG-LS (ITU-T T.87, C.1.1)."""

MAX_JPEGLS_EXPANSION = 2**20
"""Limit for the ratio of decoded to encoded length: a bit is a run of at most 32768 elements."""


@dataclass(frozen=True)
class Jpeg(Codec):
    """One JPEG image of 8 to 16 bits per sample; samples of more than 8 bits decode to two bytes.

    Parameters
    ----------
    tables : bytes or None
        Tables that the image refers to but does not contain.
    stored : int, str or None
        Colour space of the compressed samples, or None to detect it from the image.
    shown : int, str or None
        Colour space of the decoded samples, or None for the decoder's default.
    """

    tables: bytes | None = None
    stored: int | str | None = None
    shown: int | str | None = None

    zarr_v2_id = "imagecodecs_jpeg"
    tiff_compressions = (7,)
    decode_errors = DECODE_ERRORS

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        if config.get("header") is not None:
            raise UnsupportedError(
                f"{cls.zarr_v2_id}: images without their own header are not decoded; open the data "
                f"with zarr-python and imagecodecs"
            )
        tables = config.get("tables")
        tables = base64.b64decode(tables) if isinstance(tables, str) else tables
        colours = config.get("colorspace_jpeg"), config.get("colorspace_data")
        if not isinstance(tables, bytes | None) or not all(
            _is_colour_space(colour) for colour in colours
        ):
            raise ValueError(f"{colours} are not colour spaces, or the tables are not bytes")
        return cls(tables, *colours)

    @classmethod
    def from_tiff(cls, page: Any) -> Self:
        if page.dtype not in (np.uint8, np.uint16):
            raise UnsupportedError(
                f"JPEG of {page.dtype}: only unsigned integers are decoded; use tifffile's "
                f"asarray()"
            )
        stored = shown = None
        if not page.extrasamples:
            # without a JFIF header a decoder would assume that three components are YCbCr
            stored = RGB if page.photometric == RGB and not page.is_jfif else None
            shown = {YCBCR: RGB, RGB: RGB, CMYK: 4}.get(page.photometric)
        return cls(page.jpegtables, stored, shown if page.planarconfig == CONTIGUOUS else GRAY)

    def to_zarr_v2(self) -> dict[str, Any]:
        tables = None if self.tables is None else base64.b64encode(self.tables).decode()
        colours = {"colorspace_jpeg": self.stored, "colorspace_data": self.shown}
        return {"id": self.zarr_v2_id, "tables": tables, **colours}

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "jpeg")
        # check the size first, as decoders allocate the memory that a header requests
        head = parse_jpeg_header(memoryview(data))
        pixels = head.lines * head.samples
        max_pixel_bytes = 4 if head.bits <= 8 else 8
        if nbytes is not None and (nbytes % pixels or not 1 <= nbytes // pixels <= max_pixel_bytes):
            raise ValueError(f"an image of {pixels} pixels, not of {nbytes} bytes")
        _check_end_marker(data)
        out: bytes = imagecodecs.jpeg8_decode(
            bytes(data), tables=self.tables, colorspace=self.stored, outcolorspace=self.shown
        ).tobytes()
        return out


def _is_colour_space(value: Any) -> bool:
    """Return whether a value is None, a TIFF photometric interpretation or a name of one."""
    return value is None or isinstance(value, str) or (type(value) is int and 0 <= value < 2**16)


@dataclass(frozen=True)
class JpegChunk(ShapedCodec):
    """A chunk of bytes as one JPEG image, greyscale or with three components."""

    zarr_v2_id = "virtualds_jpeg"
    registered_name = "jpeg"
    decode_errors = DECODE_ERRORS

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.dtype(self.dtype) != np.uint8:
            raise ValueError(f"jpeg: {self.dtype} is not uint8")
        if len(self.shape) not in (2, 3) or self._components not in (1, 3):
            raise ValueError(f"jpeg: chunks of {self.shape} are not images of 1 or 3 components")
        if max(self.shape) > MAX_SIDE:
            raise ValueError(f"jpeg: chunks of {self.shape} are longer than {MAX_SIDE}")
        if unknown := self.parameters.keys() - JPEG_KEYS:
            raise ValueError(f"{min(unknown)!r} is not known")
        quality = self.parameters.get("quality", 90)
        if type(quality) is not int or not 0 <= quality <= 100:
            raise ValueError(f"jpeg: quality {quality!r} is not within 0 to 100")
        _check_colour_space(self._components, self.parameters)

    @property
    def _components(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "jpeg")
        head = parse_jpeg_header(memoryview(data))
        actual, expected = head[:4], (*self.shape[:2], self._components, 8)
        if actual != expected:
            raise ValueError(
                f"an image of {actual} lines, samples, components and bits, not {expected}"
            )
        _check_end_marker(bytes(memoryview(data)[-2:]))
        # libjpeg assumes YCbCr if there is also a JFIF marker
        is_rgb = head.transform == RGB_TRANSFORM and self._components == 3
        colours = "rgb" if is_rgb else None
        out: bytes = imagecodecs.jpeg8_decode(
            bytes(data), colorspace=colours, outcolorspace=colours
        ).tobytes()
        return out


def _check_end_marker(data: Buffer) -> None:
    """Raise an error for a truncated image, which libjpeg would silently pad.

    The data of an image contain no end marker (ITU-T T.81, B.1.1.5): after 0xff, JPEG stuffs a
    byte, and JPEG-LS a bit (ITU-T T.87, annex C).
    """
    if END_OF_IMAGE not in bytes(data):
        raise ValueError("the image has no end marker")


def _check_colour_space(components: int, config: Mapping[str, Any]) -> None:
    """Check that colour space and subsampling fit the number of components."""
    colours, chosen = config.get("encoded_color_space"), config.get("subsampling")
    factors: Any = SUBSAMPLING.get(chosen, chosen) if isinstance(chosen, str) else chosen
    if components == 1:
        if colours is not None or factors not in (None, [[1, 1]]):
            raise ValueError(f"jpeg: colours {colours!r} or subsampling {chosen!r} of a grey image")
        return
    if colours not in ("ycbcr", "rgb"):
        raise ValueError(f"jpeg: encoded_color_space {colours!r} is neither ycbcr nor rgb")
    if factors is None:
        return
    first, *others = factors
    is_valid = (
        others == [[1, 1], [1, 1]] and len(first) == 2 and all(n in range(1, 5) for n in first)
    )
    if not is_valid or (colours == "rgb" and first != [1, 1]):
        raise ValueError(f"jpeg: subsampling {chosen!r} of {colours}")


class JpegHeader(NamedTuple):
    """The header of a JPEG image."""

    lines: int
    samples: int
    components: int
    bits: int
    transform: int
    """Adobe's colour transform, or -1 if there is none."""


def parse_jpeg_header(
    data: memoryview, frame_markers: frozenset[int] = FRAME_MARKERS
) -> JpegHeader:
    """Parse the frame header (ITU-T T.81, B.2.2), and Adobe's marker before it.

    Raises `ValueError` if there is no frame header, or its image has no pixels.
    """
    offset, transform = 2, -1
    while offset + 9 < len(data) and data[offset] == 0xFF:
        marker = data[offset + 1]
        if marker == APP14 and data[offset + 4 : offset + 9].tobytes() == b"Adobe":
            transform = data[offset + 15] if offset + 15 < len(data) else -1
        if marker in frame_markers:
            lines, samples = (
                int.from_bytes(data[offset + i : offset + i + 2], "big") for i in (5, 7)
            )
            if not lines * samples:
                break
            return JpegHeader(lines, samples, data[offset + 9], data[offset + 4], transform)
        # segments contain their length; any number of 0xFF may precede a marker
        length = int.from_bytes(data[offset + 2 : offset + 4], "big")
        offset += 1 if marker == 0xFF else 2 if marker in MARKERS_WITHOUT_SEGMENT else 2 + length
    raise ValueError(f"{len(data)} bytes contain no frame header")


# ---------------------------------------------------------------------- JPEG-LS


@dataclass(frozen=True)
class JpegLs(Codec):
    """One JPEG-LS image of one component."""

    zarr_v2_id = "imagecodecs_jpegls"
    hdf5_filter = 32018
    decode_errors = DECODE_ERRORS

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        if len(values) < 2 or values[1] != 1:
            raise UnsupportedError(
                f"HDF5 filter 32018 (FCIDECOMP) with client data {tuple(values)}: only images of "
                f"one component are decoded; leave the variable out with drop_variables"
            )
        return cls()

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "jpegls")
        # a damaged header would make the decoder allocate memory for another image
        head = parse_jpeg_header(memoryview(data), JPEGLS_FRAME_MARKERS)
        size = head.lines * head.samples * head.components * (1 if head.bits <= 8 else 2)
        if size > MAX_JPEGLS_EXPANSION * len(data):
            raise ValueError(f"{size} bytes of an image out of {len(data)}")
        check_length(self, size, nbytes)
        # CharLS would read past the end
        _check_end_marker(data)
        out: bytes = imagecodecs.jpegls_decode(bytes(data)).tobytes()
        return out


# ---------------------------------------------------------------------- jpegxl

EXPONENT_BITS = {"|u1": 0, "<u2": 0, "<f2": 5, "<f4": 8}
"""Bits of the exponent by dtype; integers have none."""

EXTRA_CHANNELS = {1: 0, 2: 1, 3: 0, 4: 1}
"""Channels other than colours, by the number of all channels."""

JPEGXL_KEYS = {
    "bitspersample",
    "decodingspeed",
    "distance",
    "effort",
    "lossless",
    "photometric",
    "primaries",
    "transfer",
    "usecontainer",
}
"""Keys of the configuration of ``jpegxl``."""

CODESTREAM_START = b"\xff\x0a"
"""First bytes of a codestream."""

JPEGXL_HEADER_BYTES = 128
"""Length of the start of a codestream that contains all headers that are read."""

LENGTHS = ((1, 9), (1, 13), (1, 18), (1, 30))

RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
"""Ratios of samples per line to lines; the code of a ratio is its index plus one."""

TICKS = ((100, 0), (1000, 0), (1, 10), (1, 30)), ((1, 0), (1001, 0), (1, 8), (1, 10))
LOOPS = ((0, 0), (0, 3), (0, 16), (0, 32))
INTEGER_BITS = ((8, 0), (10, 0), (12, 0), (1, 6))
FLOAT_BITS = ((32, 0), (16, 0), (24, 0), (1, 6))
CHANNELS = ((0, 0), (1, 0), (2, 4), (1, 12))


class JpegXlHeader(NamedTuple):
    """The header of a JPEG XL image."""

    lines: int
    samples: int
    bits: int = 8
    exponent: int = 0
    """Bits of the exponent of floats; 0 for integers."""
    extra: int = 0
    """Channels other than colours."""
    is_animated: bool = False
    """Whether there may be more than one frame."""


@dataclass(frozen=True)
class JpegXlChunk(ShapedCodec):
    """A chunk as one JPEG XL image, whose header contains everything that decoding needs."""

    zarr_v2_id = "virtualds_jpegxl"
    registered_name = "jpegxl"
    decode_errors = DECODE_ERRORS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in EXPONENT_BITS:
            raise ValueError(f"jpegxl: {self.dtype} is not one of {list(EXPONENT_BITS)}")
        is_valid = len(self.shape) in (2, 3, 4) and prod(self._channel_shape) in EXTRA_CHANNELS
        # chunks have no axes for a single frame or channel
        if not is_valid or 1 in self._frame_shape + self._channel_shape:
            raise ValueError(f"jpegxl: chunks of {self.shape} are not images")
        if unknown := self.parameters.keys() - JPEGXL_KEYS:
            raise ValueError(f"{min(unknown)!r} is not known")

    @property
    def _channel_shape(self) -> tuple[int, ...]:
        """The shape of the channel axis: one length, or empty."""
        has_channel_axis = len(self.shape) == 4 or (
            len(self.shape) == 3 and self.shape[-1] <= max(EXTRA_CHANNELS)
        )
        return self.shape[-1:] if has_channel_axis else ()

    @property
    def _frame_shape(self) -> tuple[int, ...]:
        """The shape of the frame axis: one length, or empty."""
        return self.shape[: len(self.shape) - len(self._channel_shape) - 2]

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "jpegxl")
        stream = bytes(data)
        head = parse_jpegxl_header(stream)
        self._check(head)
        decoded: Any = imagecodecs.jpegxl_decode(stream, keeporientation=True)
        if decoded.shape != self.shape:
            raise ValueError(f"an image of {decoded.shape}, not {self.shape}")
        if head.bits < 8 * decoded.itemsize and int(decoded.max()) >> head.bits:
            raise ValueError(
                f"the decoder scales up numbers of {head.bits} bits; install a newer imagecodecs"
            )
        out: bytes = decoded.astype(self.dtype, casting="safe", copy=False).tobytes()
        return out

    def _check(self, head: JpegXlHeader) -> None:
        """Raise an error if the header does not fit the chunk."""
        first = len(self._frame_shape)
        actual, expected = head[:2], self.shape[first : first + 2]
        extra = EXTRA_CHANNELS[prod(self._channel_shape)]
        if (
            actual != expected
            or head.extra != extra
            or (self._frame_shape and not head.is_animated)
        ):
            raise ValueError(
                f"an image of {actual} pixels, {head.extra} channels besides colours and "
                f"{'several frames' if head.is_animated else 'one frame'}, not of {self.shape}"
            )
        bits, exponent = 8 * np.dtype(self.dtype).itemsize, EXPONENT_BITS[self.dtype]
        if head.exponent != exponent or head.bits > bits or (exponent and head.bits != bits):
            raise ValueError(
                f"numbers of {head.bits} bits, {head.exponent} of them of an exponent, "
                f"not of {self.dtype}"
            )


# ---------------------------------------------------------------------- headers


class _BitReader:
    """A reader of bits, least significant bit of each byte first."""

    def __init__(self, data: bytes) -> None:
        self._bits, self._remaining = int.from_bytes(data, "little"), 8 * len(data)

    def read(self, count: int) -> int:
        if count > self._remaining:
            raise ValueError("the headers of the image are truncated")
        bits = self._bits & (1 << count) - 1
        self._bits >>= count
        self._remaining -= count
        return bits

    def read_number(self, *encodings: tuple[int, int]) -> int:
        """Read a number in one of four encodings, each an offset and a number of bits."""
        offset, count = encodings[self.read(2)]
        return offset + self.read(count)


def parse_jpegxl_header(data: bytes) -> JpegXlHeader:
    """Parse the headers of an image.

    Raises `ValueError` if the bytes are not an image, or are truncated.
    """
    bits = _BitReader(_find_codestream(data)[len(CODESTREAM_START) :])
    lines, samples = _read_size(bits)
    # a flag for default metadata
    if bits.read(1):
        return JpegXlHeader(lines, samples)
    is_animated = bool(bits.read(1)) and _is_animated(bits)
    is_float = bits.read(1)
    depth = bits.read_number(*(FLOAT_BITS if is_float else INTEGER_BITS))
    exponent = bits.read(4) + 1 if is_float else 0
    # flag: 16 bits suffice for decoding
    bits.read(1)
    return JpegXlHeader(lines, samples, depth, exponent, bits.read_number(*CHANNELS), is_animated)


def _find_codestream(data: bytes) -> bytes:
    """Return the start of the codestream, without the boxes of the container."""
    offset = 0
    while offset + 8 <= len(data) and data[:2] != CODESTREAM_START:
        length, kind = (
            int.from_bytes(data[offset : offset + 4], "big"),
            data[offset + 4 : offset + 8],
        )
        start = offset + 8
        if length == 1:
            length, start = int.from_bytes(data[start : start + 8], "big"), start + 8
        # a partial codestream begins with its index
        start += 4 if kind == b"jxlp" else 0
        if kind in (b"jxlc", b"jxlp") and data[start : start + 2] == CODESTREAM_START:
            return data[start : start + JPEGXL_HEADER_BYTES]
        offset += length or len(data)
        if length and length < 8:
            break
    if data[:2] != CODESTREAM_START:
        raise ValueError(f"{len(data)} bytes contain no image")
    return data[:JPEGXL_HEADER_BYTES]


def _read_size(bits: _BitReader) -> tuple[int, int]:
    """Return lines, and samples of a line."""
    is_multiple_of_8 = bits.read(1)
    lines = _read_length(bits, is_multiple_of_8)
    if ratio := bits.read(3):
        across, down = RATIOS[ratio - 1]
        return lines, lines * across // down
    return lines, _read_length(bits, is_multiple_of_8)


def _read_length(bits: _BitReader, is_multiple_of_8: int) -> int:
    return 8 * (bits.read(5) + 1) if is_multiple_of_8 else bits.read_number(*LENGTHS)


def _is_animated(bits: _BitReader) -> bool:
    """Read the extra fields, and return whether there may be several frames."""
    # orientation, for display only
    bits.read(3)
    if bits.read(1):
        _read_size(bits)
    if bits.read(1):
        raise ValueError("an image with a preview is not decoded")
    if not bits.read(1):
        return False
    for encodings in (*TICKS, LOOPS):
        bits.read_number(*encodings)
    bits.read(1)
    return True


# ---------------------------------------------------------------------- images

JPEG2000_START = b"\xff\x4f\xff\x51"
"""Markers before the sizes of a JPEG 2000 codestream (ITU-T T.800, table A.2)."""

LERC_MAGIC, ZSTD_MAGIC, LERC_HEADER_BYTES = b"Lerc2 ", b"\x28\xb5\x2f\xfd", 64
"""First bytes of LERC and of Zstandard, and the size in bytes of LERC's header."""


@dataclass(frozen=True)
class Image(SelfDescribingCodec):
    """Base class of the image codecs of imagecodecs."""

    decode_errors = DECODE_ERRORS
    options: ClassVar[tuple[str, ...]] = ()
    """Keys of the configuration that decoding uses."""

    @staticmethod
    @abstractmethod
    def count_pixels(data: bytes) -> int:
        """Return the number of lines times the samples of a line, from the header."""

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        name = self.zarr_v2_id.removeprefix("imagecodecs_")
        imagecodecs = import_package("imagecodecs", name)
        stream = bytes(data)
        # check the size before the decoder allocates memory
        try:
            pixels = type(self).count_pixels(stream)
        except (struct.error, IndexError) as error:
            raise ValueError(f"{len(stream)} bytes contain no header") from error
        if nbytes is not None and (not 0 < pixels <= nbytes or nbytes % pixels):
            raise ValueError(f"an image of {pixels} pixels, not of {nbytes} bytes")
        config = self.to_zarr_v2()
        decode_options = {key: config[key] for key in self.options if key in config}
        out: bytes = getattr(imagecodecs, f"{name}_decode")(stream, **decode_options).tobytes()
        return out


class Webp(Image):
    """A WebP image with three or four samples per pixel."""

    zarr_v2_id = "imagecodecs_webp"
    tiff_compressions = (50001, 34927)
    options = ("hasalpha",)

    @classmethod
    def from_tiff(cls, page: Any) -> Codec:
        """Build the codec; opaque images may lack the alpha channel that the page has."""
        has_alpha = {"hasalpha": True} if page.samplesperpixel == 4 else {}
        return cls.from_zarr_v2({"id": cls.zarr_v2_id, **has_alpha})

    @staticmethod
    def count_pixels(data: bytes) -> int:
        kind = data[12:16]
        if kind == b"VP8X":
            width, height = (int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
            return (width + 1) * (height + 1)
        if kind == b"VP8L":
            [bits] = struct.unpack_from("<I", data, 21)
            return int(((bits & 0x3FFF) + 1) * ((bits >> 14 & 0x3FFF) + 1))
        width, height = struct.unpack_from("<HH", data, 26)
        return int((width & 0x3FFF) * (height & 0x3FFF))


class Png(Image):
    """A PNG image."""

    zarr_v2_id = "imagecodecs_png"
    tiff_compressions = (34933,)

    @staticmethod
    def count_pixels(data: bytes) -> int:
        width, height = struct.unpack_from(">II", data, 16)
        return int(width * height)


class Jpeg2000(Image):
    """A JPEG 2000 image, as a codestream or a file."""

    zarr_v2_id = "imagecodecs_jpeg2k"
    tiff_compressions = (33003, 33004, 33005, 34712)

    @staticmethod
    def count_pixels(data: bytes) -> int:
        offset = data.find(JPEG2000_START)
        if offset < 0:
            raise IndexError(offset)
        right, bottom, left, top = struct.unpack_from(">IIII", data, offset + 8)
        return int((right - left) * (bottom - top))


class JpegXl(Image):
    """A JPEG XL image."""

    zarr_v2_id = "imagecodecs_jpegxl"
    tiff_compressions = (50002, 52546)

    @staticmethod
    def count_pixels(data: bytes) -> int:
        head = parse_jpegxl_header(data)
        return head.lines * head.samples


class Lerc(Image):
    """A LERC image, possibly compressed with deflate or Zstandard."""

    zarr_v2_id = "imagecodecs_lerc"
    tiff_compressions = (34887,)

    @staticmethod
    def count_pixels(data: bytes) -> int:
        try:
            if data.startswith(ZSTD_MAGIC):
                with zstandard.ZstdDecompressor().stream_reader(data) as stream:
                    data = bytes(stream.read(LERC_HEADER_BYTES))
            elif not data.startswith(LERC_MAGIC):
                data = zlib.decompressobj().decompress(data, LERC_HEADER_BYTES)
        except (zlib.error, zstandard.ZstdError) as error:
            raise ValueError(f"{error}") from error
        [version] = struct.unpack_from("<i", data, 6)
        # since the third revision, a checksum precedes the sizes
        rows, columns = struct.unpack_from("<ii", data, 14 if version >= 3 else 10)
        return int(rows * columns)
