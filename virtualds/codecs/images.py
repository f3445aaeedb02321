"""Images of imagecodecs, one for each tile or strip: WebP, PNG, JPEG 2000, JPEG XL and LERC.

In Zarr they have the names and configurations of imagecodecs. Decoded numbers have the byte order
of the machine, as other readers of these names return them. Sizes in headers are checked before a
decoder allocates memory for them: RFC 2083, 11.2.1 (PNG); RFC 9649, 2.4 to 2.7 (WebP); ITU-T T.800,
A.5.1 (JPEG 2000); `virtualds.codecs.jpegxl` (JPEG XL); the second version of LERC ("Lerc2 ").
"""

from __future__ import annotations

import struct
import zlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import zstandard

from virtualds.bounds import Buffer
from virtualds.codecs.codec import Codec, CodecError, SelfDescribing, check_length
from virtualds.codecs.jpegxl import parse_jpegxl_header
from virtualds.extras import import_package

SIZE_OF_JPEG2000 = b"\xff\x4f\xff\x51"
"""Markers before the sizes of a JPEG 2000 codestream (ITU-T T.800, table A.2)."""

LERC, ZSTD, HEADER = b"Lerc2 ", b"\x28\xb5\x2f\xfd", 64
"""First bytes of LERC and of Zstandard, and bytes that hold the header of LERC."""


@dataclass(frozen=True)
class Image(SelfDescribing):
    """The base class of images."""

    options: ClassVar[tuple[str, ...]] = ()
    """Keys of the configuration that decoding takes."""

    @staticmethod
    @abstractmethod
    def count_pixels(data: bytes) -> int:
        """Return lines times samples of a line, from the header."""

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        name = self.zarr_v2_id.removeprefix("imagecodecs_")
        imagecodecs = import_package("imagecodecs", name)
        stream = bytes(data)
        self._check_pixels(name, stream, nbytes)
        config = self.to_zarr_v2()
        how = {key: config[key] for key in self.options if key in config}
        try:
            found: Any = getattr(imagecodecs, f"{name}_decode")(stream, **how)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"{name}: {error}") from error
        out: bytes = found.tobytes()
        check_length(self, len(out), nbytes)
        return out

    def _check_pixels(self, name: str, stream: bytes, nbytes: int | None) -> None:
        """Refuse an image of another size, before memory is allocated for it."""
        try:
            pixels = type(self).count_pixels(stream)
        except (struct.error, IndexError) as error:
            raise CodecError(f"{name}: {len(stream)} bytes hold no header") from error
        if nbytes is not None and (not 0 < pixels <= nbytes or nbytes % pixels):
            raise CodecError(f"{name}: an image of {pixels} pixels, not of {nbytes} bytes")


def _count_png(data: bytes) -> int:
    width, height = struct.unpack_from(">II", data, 16)
    return int(width * height)


def _count_webp(data: bytes) -> int:
    kind = data[12:16]
    if kind == b"VP8X":
        return (int.from_bytes(data[24:27], "little") + 1) * (
            int.from_bytes(data[27:30], "little") + 1
        )
    if kind == b"VP8L":
        [bits] = struct.unpack_from("<I", data, 21)
        return int(((bits & 0x3FFF) + 1) * ((bits >> 14 & 0x3FFF) + 1))
    width, height = struct.unpack_from("<HH", data, 26)
    return int((width & 0x3FFF) * (height & 0x3FFF))


def _count_jpeg2000(data: bytes) -> int:
    place = data.find(SIZE_OF_JPEG2000)
    if place < 0:
        raise IndexError(place)
    right, bottom, left, top = struct.unpack_from(">IIII", data, place + 8)
    return int((right - left) * (bottom - top))


def _count_jpegxl(data: bytes) -> int:
    head = parse_jpegxl_header(data)
    return head.lines * head.samples


def _count_lerc(data: bytes) -> int:
    if not data.startswith(LERC):
        data = _begin_decoding(data)
    [version] = struct.unpack_from("<i", data, 6)
    # a checksum stands before the sizes since the third revision
    rows, columns = struct.unpack_from("<ii", data, 14 if version >= 3 else 10)
    return int(rows * columns)


def _begin_decoding(data: bytes) -> bytes:
    """Return the first bytes of a LERC image that deflate or Zstandard compressed once more."""
    try:
        if data.startswith(ZSTD):
            with zstandard.ZstdDecompressor().stream_reader(data) as stream:
                return bytes(stream.read(HEADER))
        return zlib.decompressobj().decompress(data, HEADER)
    except (zlib.error, zstandard.ZstdError) as error:
        raise CodecError(f"lerc: {error}") from error


class Webp(Image):
    """WebP of three or four samples."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_webp"
    tiff_compressions: ClassVar[tuple[int, ...]] = (50001, 34927)
    options: ClassVar[tuple[str, ...]] = ("hasalpha",)
    count_pixels = staticmethod(_count_webp)

    @classmethod
    def from_tiff(cls, page: Any) -> Codec:
        """Build the codec; opaque images may lack the alpha channel that the page has."""
        has_alpha = {"hasalpha": True} if page.samplesperpixel == 4 else {}
        return cls.from_zarr_v2({"id": cls.zarr_v2_id, **has_alpha})


class Png(Image):
    """PNG."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_png"
    tiff_compressions: ClassVar[tuple[int, ...]] = (34933,)
    count_pixels = staticmethod(_count_png)


class Jpeg2000(Image):
    """JPEG 2000, as a codestream or a file."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_jpeg2k"
    tiff_compressions: ClassVar[tuple[int, ...]] = (33003, 33004, 33005, 34712)
    count_pixels = staticmethod(_count_jpeg2000)


class JpegXl(Image):
    """JPEG XL."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_jpegxl"
    tiff_compressions: ClassVar[tuple[int, ...]] = (50002, 52546)
    count_pixels = staticmethod(_count_jpegxl)


class Lerc(Image):
    """LERC, which may be compressed once more."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_lerc"
    tiff_compressions: ClassVar[tuple[int, ...]] = (34887,)
    count_pixels = staticmethod(_count_lerc)
