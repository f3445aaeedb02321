"""JPEG and JPEG-LS images.

JPEG streams: ITU-T T.81; in TIFF, with tables in its header: TIFF Technical Note 2. Their Zarr v2
id is imagecodecs' ``imagecodecs_jpeg``. Zarr v3 ``jpeg``, registered in zarr-extensions, is one
image per chunk; its Zarr v2 id is ``virtualds_jpeg``, since ``imagecodecs_jpeg`` may have any
shape. JPEG-LS (ITU-T T.87) is HDF5 filter 32018, and ``imagecodecs_jpegls`` in Zarr v2.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.codec import Codec, CodecError, Shaped, check_length
from virtualds.errors import UnsupportedError
from virtualds.extras import import_package

FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Second bytes of the markers before a frame header (ITU-T T.81, table B.1)."""

APP14 = 0xEE
"""Second byte of Adobe's marker, whose segment ends with the colour transform."""

END = b"\xff\xd9"
"""Marker behind an image."""

BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Second bytes of markers without a segment."""

TRANSFORMS = {0: "rgb", 1: "ycbcr"}
"""Colours of three components, by the number in Adobe's marker."""

SUBSAMPLING: dict[Any, Any] = {
    "4:4:4": [[1, 1], [1, 1], [1, 1]],
    "4:2:2": [[2, 1], [1, 1], [1, 1]],
    "4:4:0": [[1, 2], [1, 1], [1, 1]],
    "4:2:0": [[2, 2], [1, 1], [1, 1]],
}
"""Sampling factors of components, by their names in drafts of the registry."""

KEYS = {"quality", "encoded_color_space", "subsampling"}
"""Keys of the configuration of ``jpeg``."""

LONGEST_SIDE = 65535
"""Lines of an image, and samples of a line."""

YCBCR, RGB, CMYK, GRAY = 6, 2, 5, 1
"""Photometric interpretations of TIFF."""

CONTIGUOUS = 1
"""TIFF's planar configuration where the samples of a pixel lie side by side."""

JPEGLS_END = b"\xff\xd9"
"""Marker behind a JPEG-LS image (annex C); a bit stuffed behind 0xff keeps it out of the data."""

START_OF_FRAME = b"\xff\xf7"
"""Marker before the frame header of JPEG-LS."""

MOST = 2**20
"""More bytes than JPEG-LS makes of one: a bit is a run of at most 32768 elements."""


@dataclass(frozen=True)
class Jpeg(Codec):
    """One JPEG image of 8 to 16 bits per sample; more than 8 decode to two bytes.

    Parameters
    ----------
    tables : bytes or None
        Tables that the image refers to and does not hold.
    stored : int or None
        Photometric interpretation of the compressed samples; None takes it from the image.
    shown : int or None
        Photometric interpretation of the decoded samples; None is the same.
    """

    tables: bytes | None = None
    stored: int | str | None = None
    shown: int | str | None = None

    zarr_v2_id: ClassVar[str] = "imagecodecs_jpeg"
    tiff_compressions: ClassVar[tuple[int, ...]] = (7,)

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
        if not isinstance(tables, bytes | None) or not all(_is_colours(one) for one in colours):
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
            # without a JFIF header a decoder would guess that three components are YCbCr
            stored = RGB if page.photometric == RGB and not page.is_jfif else None
            shown = {YCBCR: RGB, RGB: RGB, CMYK: 4}.get(page.photometric)
        return cls(page.jpegtables, stored, shown if page.planarconfig == CONTIGUOUS else GRAY)

    def to_zarr_v2(self) -> dict[str, Any]:
        tables = None if self.tables is None else base64.b64encode(self.tables).decode()
        return {
            "id": self.zarr_v2_id,
            "tables": tables,
            "colorspace_jpeg": self.stored,
            "colorspace_data": self.shown,
        }

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "jpeg")
        # a damaged header would make the decoder allocate memory for another image
        head = parse_jpeg_header(memoryview(data))
        pixels = head.lines * head.samples
        most = 4 if head.bits <= 8 else 8
        if nbytes is not None and (nbytes % pixels or not 1 <= nbytes // pixels <= most):
            raise CodecError(f"jpeg: an image of {pixels} pixels, not of {nbytes} bytes")
        _check_whole(data)
        try:
            out: bytes = imagecodecs.jpeg8_decode(
                bytes(data), tables=self.tables, colorspace=self.stored, outcolorspace=self.shown
            ).tobytes()
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"jpeg: {error}") from error
        check_length(self, len(out), nbytes)
        return out


def _is_colours(value: Any) -> bool:
    """Say whether a value may be a photometric interpretation: a number of TIFF, or a name."""
    return value is None or isinstance(value, str) or (type(value) is int and 0 <= value < 2**16)


@dataclass(frozen=True)
class JpegChunk(Shaped):
    """A chunk of bytes as one JPEG image, grey or of three components."""

    zarr_v2_id: ClassVar[str] = "virtualds_jpeg"
    registered_name: ClassVar[str | None] = "jpeg"

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.dtype(self.dtype) != np.uint8:
            raise ValueError(f"jpeg: {self.dtype} is not uint8")
        if len(self.shape) not in (2, 3) or self._components not in (1, 3):
            raise ValueError(f"jpeg: chunks of {self.shape} are not images of 1 or 3 components")
        if max(self.shape) > LONGEST_SIDE:
            raise ValueError(f"jpeg: chunks of {self.shape} are longer than {LONGEST_SIDE}")
        if unknown := self.parameters.keys() - KEYS:
            raise ValueError(f"{min(unknown)!r} is not known")
        _check_quality(self.parameters.get("quality", 90))
        _check_colours(self._components, self.parameters)

    @property
    def _components(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "jpeg")
        head = parse_jpeg_header(memoryview(data))
        found, expected = head[:4], (*self.shape[:2], self._components, 8)
        if found != expected:
            raise CodecError(
                f"jpeg: an image of {found} lines, samples, components and bits, not {expected}"
            )
        _check_whole(bytes(memoryview(data)[-2:]))
        colours = TRANSFORMS.get(head.transform) if self._components == 3 else None
        try:
            out: bytes = imagecodecs.jpeg8_decode(
                bytes(data), colorspace=colours, outcolorspace=colours and "rgb"
            ).tobytes()
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"jpeg: {error}") from error
        check_length(self, len(out), prod(self.shape) if nbytes is None else nbytes)
        return out


def _check_whole(data: Buffer) -> None:
    """Refuse a truncated image, which libjpeg would fill up.

    The data of an image hold no end marker (ITU-T T.81, B.1.1.5).
    """
    if END not in bytes(data):
        raise CodecError("jpeg: the image has no end")


def _check_quality(quality: Any) -> None:
    if type(quality) is not int or not 0 <= quality <= 100:
        raise ValueError(f"jpeg: quality {quality!r} is not within 0 to 100")


def _check_colours(components: int, config: Mapping[str, Any]) -> None:
    """Refuse colours and subsamplings that do not fit the number of components."""
    colours, said = config.get("encoded_color_space"), config.get("subsampling")
    factors: Any = SUBSAMPLING.get(said, said) if isinstance(said, str) else said
    if components == 1:
        if colours is not None or factors not in (None, [[1, 1]]):
            raise ValueError(f"jpeg: colours {colours!r} or subsampling {said!r} of a grey image")
        return
    if colours not in ("ycbcr", "rgb"):
        raise ValueError(f"jpeg: encoded_color_space {colours!r} is neither ycbcr nor rgb")
    if factors is None:
        return
    first, *others = factors
    sound = others == [[1, 1], [1, 1]] and len(first) == 2 and all(n in range(1, 5) for n in first)
    if not sound or (colours == "rgb" and first != [1, 1]):
        raise ValueError(f"jpeg: subsampling {said!r} of {colours}")


class ImageHeader(NamedTuple):
    """The header of a JPEG image."""

    lines: int
    samples: int
    components: int
    bits: int
    transform: int
    """Colour transform of Adobe's marker; -1 without one."""


def parse_jpeg_header(data: memoryview) -> ImageHeader:
    """Parse the frame header (ITU-T T.81, B.2.2), and Adobe's marker before it.

    Raises
    ------
    CodecError
        There is no frame header, or its image has no pixels.
    """
    transform = -1
    for marker, place in _find_segments(data):
        if marker == APP14 and data[place + 4 : place + 9].tobytes() == b"Adobe":
            transform = data[place + 15] if place + 15 < len(data) else -1
        if marker in FRAMES:
            lines, samples = (
                int.from_bytes(data[place + i : place + i + 2], "big") for i in (5, 7)
            )
            if not lines * samples:
                break
            return ImageHeader(lines, samples, data[place + 9], data[place + 4], transform)
    raise CodecError(f"jpeg: {len(data)} bytes hold no frame header")


def _find_segments(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the second byte and the place of every marker before the data of the image."""
    place = 2
    while place + 9 < len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        yield marker, place
        # segments hold their length; before a marker there may be any number of 0xFF
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        place += 1 if marker == 0xFF else 2 if marker in BARE else 2 + length


# ---------------------------------------------------------------------- JPEG-LS


@dataclass(frozen=True)
class JpegLs(Codec):
    """One JPEG-LS image of one component."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_jpegls"
    hdf5_filter: ClassVar[int | None] = 32018

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        if len(values) < 2 or values[1] != 1:
            raise UnsupportedError(
                f"HDF5 filter 32018 (FCIDECOMP) with client data {tuple(values)}: only images of "
                f"one component are decoded; leave the variable out with drop_variables"
            )
        return cls()

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "jpegls")
        # a damaged header would make the decoder allocate memory for another image
        check_length(self, _count_image_bytes(memoryview(data)), nbytes)
        if JPEGLS_END not in bytes(data):
            # CharLS would read beyond the bytes
            raise CodecError("jpegls: the image has no end")
        try:
            out: bytes = imagecodecs.jpegls_decode(bytes(data)).tobytes()
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"jpegls: {error}") from error
        check_length(self, len(out), nbytes)
        return out


def _count_image_bytes(data: memoryview) -> int:
    """Return the decoded bytes of an image, from its frame header."""
    place = 2
    while place + 10 <= len(data):
        if data[place : place + 2] == START_OF_FRAME:
            bits, components = data[place + 4], data[place + 9]
            lines, samples = (
                int.from_bytes(data[place + i : place + i + 2], "big") for i in (5, 7)
            )
            size = lines * samples * components * (1 if bits <= 8 else 2)
            if size > MOST * len(data):
                raise CodecError(f"jpegls: {size} bytes of an image out of {len(data)}")
            return size
        # other segments hold their length, which counts its own two bytes
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    raise CodecError(f"jpegls: {len(data)} bytes hold no frame header")
