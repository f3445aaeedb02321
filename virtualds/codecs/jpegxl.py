"""JPEG XL images of integers or floats, of one or more frames.

Zarr v3 ``jpegxl``, registered in zarr-extensions: a chunk is one image, whose frames, lines,
samples of a line, and channels are its axes, without axes of one frame or one channel. Its Zarr v2
id is ``virtualds_jpegxl``. The decoder does not know the expected shape and dtype, so the headers
are read here (ISO/IEC 18181-1, annex D; boxes around them: ISO/IEC 18181-2).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.codec import CodecError, Shaped, check_length
from virtualds.extras import import_package

EXPONENTS = {"|u1": 0, "<u2": 0, "<f2": 5, "<f4": 8}
"""Bits of the exponent by dtype; integers have none."""

EXTRA = {1: 0, 2: 1, 3: 0, 4: 1}
"""Channels that are not colours, by the number of all channels."""

KEYS = {
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

BARE = b"\xff\x0a"
"""First bytes of a codestream."""

HEADERS = 128
"""Bytes of a codestream that hold all headers that are read."""

LENGTHS = ((1, 9), (1, 13), (1, 18), (1, 30))

RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
"""Ratios of samples per line to lines, by their number less one."""

TICKS = ((100, 0), (1000, 0), (1, 10), (1, 30)), ((1, 0), (1001, 0), (1, 8), (1, 10))
LOOPS = ((0, 0), (0, 3), (0, 16), (0, 32))
INTEGER_BITS = ((8, 0), (10, 0), (12, 0), (1, 6))
FLOAT_BITS = ((32, 0), (16, 0), (24, 0), (1, 6))
CHANNELS = ((0, 0), (1, 0), (2, 4), (1, 12))


class ImageHeader(NamedTuple):
    """The header of a JPEG XL image."""

    lines: int
    samples: int
    bits: int = 8
    exponent: int = 0
    """Bits of the exponent of floats; 0 for integers."""
    extra: int = 0
    """Channels that are not colours."""
    frames: bool = False
    """Whether there may be more than one frame."""


@dataclass(frozen=True)
class JpegXlChunk(Shaped):
    """A chunk as one JPEG XL image, whose header holds all that decoding needs."""

    zarr_v2_id: ClassVar[str] = "virtualds_jpegxl"
    registered_name: ClassVar[str | None] = "jpegxl"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in EXPONENTS:
            raise ValueError(f"jpegxl: {self.dtype} is none of {list(EXPONENTS)}")
        sound = len(self.shape) in (2, 3, 4) and prod(self._channels) in EXTRA
        # chunks have no axes of one frame or one channel
        if not sound or 1 in self._frames + self._channels:
            raise ValueError(f"jpegxl: chunks of {self.shape} are not images")
        if unknown := self.parameters.keys() - KEYS:
            raise ValueError(f"{min(unknown)!r} is not known")

    @property
    def _channels(self) -> tuple[int, ...]:
        """The length of the axis of channels, if there is one."""
        named = len(self.shape) == 4 or (len(self.shape) == 3 and self.shape[-1] <= max(EXTRA))
        return self.shape[-1:] if named else ()

    @property
    def _frames(self) -> tuple[int, ...]:
        """The length of the axis of frames, if there is one."""
        return self.shape[: len(self.shape) - len(self._channels) - 2]

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "jpegxl")
        stream = bytes(data)
        head = parse_jpegxl_header(stream)
        self._check(head)
        try:
            found: Any = imagecodecs.jpegxl_decode(stream, keeporientation=True)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"jpegxl: {error}") from error
        if found.shape != self.shape:
            raise CodecError(f"jpegxl: an image of {found.shape}, not {self.shape}")
        if head.bits < 8 * found.itemsize and int(found.max()) >> head.bits:
            raise CodecError(
                f"jpegxl: the decoder spreads numbers of {head.bits} bits; install a newer "
                f"imagecodecs"
            )
        out: bytes = found.astype(self.dtype, casting="safe", copy=False).tobytes()
        check_length(self, len(out), nbytes)
        return out

    def _check(self, head: ImageHeader) -> None:
        """Refuse an image that does not fit the chunk, before memory is allocated for it."""
        first = len(self._frames)
        found, expected = head[:2], self.shape[first : first + 2]
        extra = EXTRA[prod(self._channels)]
        if found != expected or head.extra != extra or (self._frames and not head.frames):
            raise CodecError(
                f"jpegxl: an image of {found} pixels, {head.extra} channels besides colours and "
                f"{'several frames' if head.frames else 'one frame'}, not of {self.shape}"
            )
        bits, exponent = 8 * np.dtype(self.dtype).itemsize, EXPONENTS[self.dtype]
        if head.exponent != exponent or head.bits > bits or (exponent and head.bits != bits):
            raise CodecError(
                f"jpegxl: numbers of {head.bits} bits, {head.exponent} of them of an exponent, "
                f"not of {self.dtype}"
            )


# ---------------------------------------------------------------------- headers


class _Bits:
    """Bits, the lowest of a byte first."""

    def __init__(self, data: bytes) -> None:
        self._bits, self._left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, count: int) -> int:
        if count > self._left:
            raise CodecError("jpegxl: the headers of the image have no end")
        found = self._bits & (1 << count) - 1
        self._bits >>= count
        self._left -= count
        return found

    def read_number(self, *ways: tuple[int, int]) -> int:
        """Read a number in one of four ways, each with a summand and a number of bits."""
        least, count = ways[self.take(2)]
        return least + self.take(count)


def parse_jpegxl_header(data: bytes) -> ImageHeader:
    """Parse the headers of an image.

    Raises
    ------
    CodecError
        The bytes are no image, or are cut off.
    """
    bits = _Bits(_find_codestream(data)[len(BARE) :])
    lines, samples = _read_size(bits)
    # a flag for default metadata
    if bits.take(1):
        return ImageHeader(lines, samples)
    frames = bool(bits.take(1)) and _is_animated(bits)
    is_float = bits.take(1)
    depth = bits.read_number(*(FLOAT_BITS if is_float else INTEGER_BITS))
    exponent = bits.take(4) + 1 if is_float else 0
    # flag: 16 bits suffice for decoding
    bits.take(1)
    return ImageHeader(lines, samples, depth, exponent, bits.read_number(*CHANNELS), frames)


def _find_codestream(data: bytes) -> bytes:
    """Return the beginning of the image, without the boxes around it."""
    place = 0
    while place + 8 <= len(data) and data[:2] != BARE:
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        start = place + 8
        if length == 1:
            length, start = int.from_bytes(data[start : start + 8], "big"), start + 8
        # a partial codestream begins with its number
        start += 4 if kind == b"jxlp" else 0
        if kind in (b"jxlc", b"jxlp") and data[start : start + 2] == BARE:
            return data[start : start + HEADERS]
        place += length or len(data)
        if length and length < 8:
            break
    if data[:2] != BARE:
        raise CodecError(f"jpegxl: {len(data)} bytes hold no image")
    return data[:HEADERS]


def _read_size(bits: _Bits) -> tuple[int, int]:
    """Return lines, and samples of a line."""
    eights = bits.take(1)
    lines = _read_length(bits, eights)
    if ratio := bits.take(3):
        across, down = RATIOS[ratio - 1]
        return lines, lines * across // down
    return lines, _read_length(bits, eights)


def _read_length(bits: _Bits, eights: int) -> int:
    return 8 * (bits.take(5) + 1) if eights else bits.read_number(*LENGTHS)


def _is_animated(bits: _Bits) -> bool:
    """Say whether there may be several frames, and skip the other fields."""
    # orientation, for display only
    bits.take(3)
    if bits.take(1):
        _read_size(bits)
    if bits.take(1):
        raise CodecError("jpegxl: an image with a preview is not decoded")
    if not bits.take(1):
        return False
    for ways in (*TICKS, LOOPS):
        bits.read_number(*ways)
    bits.take(1)
    return True
