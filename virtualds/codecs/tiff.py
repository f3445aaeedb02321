"""Codecs of TIFF: its predictors, LZW, PackBits, and JPEG with tables kept in the header.

Predictors are laid down by TIFF 6.0, section 14 (horizontal differencing), and Adobe's TIFF
Technical Note 3 (floating point); LZW by section 13, PackBits by section 9, JPEG by TIFF Technical
Note 2. In Zarr v2 they have the names and configurations that imagecodecs gives them, in Zarr v3
the same behind ``numcodecs.``: what is little-endian, or of single bytes, others decode too.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.codec import Buffer, Codec, CodecError, check_length, needed_package
from virtualds.errors import UnsupportedError

FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Second bytes of the markers before a frame header (ITU-T T.81, table B.1)."""
BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Second bytes of markers that no segment follows."""


@dataclass(frozen=True)
class _Predictor(Codec):
    """What two predictors share: each row begins anew, each sample has its own.

    Parameters
    ----------
    shape : tuple of int
        Rows, pixels and samples of a chunk; one with fewer rows decodes too.
    dtype : str
        Of the samples, decoded ones too, in their byte order.
    """

    shape: tuple[int, int, int]
    dtype: str

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        shape = tuple(int(n) for n in config.get("shape") or ())
        axis, dist = int(config.get("axis", -1)), int(config.get("dist", 1))
        if axis % max(len(shape), 1) == 1 and len(shape) == 2:
            # of images with one sample per pixel, as tifffile writes it
            shape, axis = (*shape, 1), 1
        if len(shape) != 3 or axis not in (1, -2) or dist != 1 or not config.get("dtype"):
            raise UnsupportedError(
                f"{cls.zarr_v2_id} {dict(config)}: only differences between the pixels of rows are "
                f"decoded; open the data with zarr-python and imagecodecs"
            )
        return cls((shape[0], shape[1], shape[2]), str(config["dtype"]))

    def to_zarr_v2(self) -> dict[str, Any]:
        how = {"shape": list(self.shape), "dtype": self.dtype, "axis": -2, "dist": 1}
        return {"id": self.zarr_v2_id, **how}

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes

    def _samples(self, data: Buffer, nbytes: int | None, dtype: Any) -> Any:
        """Return encoded samples as rows, pixels, samples."""
        check_length(self, len(data), nbytes)
        _, pixels, samples = self.shape
        row = pixels * samples * np.dtype(self.dtype).itemsize
        if not row or len(data) % row:
            raise CodecError(f"{self.zarr_v2_id}: {len(data)} bytes are no rows of {row}")
        return np.frombuffer(data, dtype).reshape(len(data) // row, -1, samples)


@dataclass(frozen=True)
class Differences(_Predictor):
    """Each sample as its difference from the one to the left, modulo its range (predictor 2)."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_delta"

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        dtype = np.dtype(self.dtype)
        # floats are differenced by their bits
        bits = np.dtype(f"{dtype.byteorder}u{dtype.itemsize}")
        found = np.cumsum(self._samples(data, nbytes, bits), axis=1, dtype=bits.newbyteorder("="))
        out: memoryview = found.astype(bits, copy=False).reshape(-1).view(np.uint8).data
        return out


@dataclass(frozen=True)
class FloatDifferences(_Predictor):
    """Floats by rows: first the highest bytes of all, then the next, each as differences.

    That is predictor 3. The bytes lie so in files of either byte order.
    """

    zarr_v2_id: ClassVar[str] = "imagecodecs_floatpred"

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        size = np.dtype(self.dtype).itemsize
        found = self._samples(data, nbytes, np.uint8)
        planes = np.cumsum(found, axis=1, dtype=np.uint8).reshape(len(found), size, -1)
        # the highest byte comes first in the file, and last in a little-endian number
        if np.dtype(self.dtype).newbyteorder("<") == np.dtype(self.dtype):
            planes = planes[:, ::-1]
        return np.ascontiguousarray(planes.transpose(0, 2, 1)).reshape(-1).data


@dataclass(frozen=True)
class _Bytes(Codec):
    """What compressors of plain bytes share."""

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls()

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id}

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        name = self.zarr_v2_id.removeprefix("imagecodecs_")
        imagecodecs = needed_package("imagecodecs", name, "images")
        decode = getattr(imagecodecs, f"{name}_decode")
        try:
            out: bytes = decode(bytes(data))
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"{name}: {error}") from error
        check_length(self, len(out), nbytes)
        return out


class Lzw(_Bytes):
    """LZW as TIFF has it: codes of 9 to 12 bits."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_lzw"


class PackBits(_Bytes):
    """Runs of bytes, as Macintosh had them."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_packbits"


@dataclass(frozen=True)
class Jpeg(Codec):
    """One JPEG image of 8 bits per sample.

    Parameters
    ----------
    tables : bytes or None
        Tables that the image refers to and does not hold.
    stored : int or None
        Photometric interpretation of what was compressed; None is what the image says.
    shown : int or None
        That of what is decoded; None is the same.
    """

    tables: bytes | None = None
    stored: int | str | None = None
    shown: int | str | None = None

    zarr_v2_id: ClassVar[str] = "imagecodecs_jpeg"

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        if config.get("header") is not None:
            raise UnsupportedError(
                f"{cls.zarr_v2_id}: images without a header of their own are not decoded; open the "
                f"data with zarr-python and imagecodecs"
            )
        tables = config.get("tables")
        tables = base64.b64decode(tables) if isinstance(tables, str) else tables
        return cls(tables, config.get("colorspace_jpeg"), config.get("colorspace_data"))

    def to_zarr_v2(self) -> dict[str, Any]:
        tables = None if self.tables is None else base64.b64encode(self.tables).decode()
        return {
            "id": self.zarr_v2_id,
            "tables": tables,
            "colorspace_jpeg": self.stored,
            "colorspace_data": self.shown,
        }

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = needed_package("imagecodecs", "jpeg", "images")
        # a damaged header would have memory allotted for another image
        pixels = _pixels(memoryview(data))
        if nbytes is not None and (nbytes % pixels or not 1 <= nbytes // pixels <= 4):
            raise CodecError(f"jpeg: an image of {pixels} pixels where {nbytes} bytes belong")
        try:
            out: bytes = imagecodecs.jpeg8_decode(
                bytes(data), tables=self.tables, colorspace=self.stored, outcolorspace=self.shown
            ).tobytes()
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"jpeg: {error}") from error
        check_length(self, len(out), nbytes)
        return out


def _pixels(data: memoryview) -> int:
    """Return how many pixels an image has, according to its frame header (ITU-T T.81, B.2.2)."""
    place = 2
    while place + 9 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker in FRAMES:
            lines, samples = (
                int.from_bytes(data[place + i : place + i + 2], "big") for i in (5, 7)
            )
            if not lines * samples:
                break
            return lines * samples
        # segments say how long they are; before a marker there may be any number of 0xFF
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        place += 1 if marker == 0xFF else 2 if marker in BARE else 2 + length
    raise CodecError(f"jpeg: {len(data)} bytes hold no frame header")
