"""The codecs of TIFF: predictors, LZW and PackBits.

Predictors: TIFF 6.0, section 14 (horizontal differencing), and Adobe's TIFF Technical Note 3
(floating point); LZW: section 13; PackBits: section 9. In Zarr v2 they have the names and
configurations of imagecodecs, in Zarr v3 the same behind ``numcodecs.``, so that other readers
decode little-endian samples and single bytes too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.bounds import Buffer, limit_decoded_size
from virtualds.codecs.codec import Codec, CodecError, Name, OfOneType, check_length
from virtualds.errors import UnsupportedError
from virtualds.extras import import_package


@dataclass(frozen=True)
class _Predictor(OfOneType):
    """The base class of predictors, which restart at each row, separately for each sample.

    Parameters
    ----------
    shape : tuple of int
        Rows, pixels and samples of a chunk; chunks with fewer rows decode too.
    dtype : str
        Dtype of the samples, encoded and decoded, with byte order.
    """

    shape: tuple[int, int, int]
    dtype: str

    known: ClassVar[str]
    """Dtype kinds of its samples."""
    tiff_predictor: ClassVar[int]
    """Number in the TIFF tag Predictor."""

    def __post_init__(self) -> None:
        kind = np.dtype(self.dtype)
        if min(self.shape) < 1 or kind.kind not in self.known or kind.itemsize > 8:
            raise ValueError(f"rows of {self.shape} {kind} have no differences")

    @classmethod
    def names(cls) -> Iterator[Name]:
        yield from super().names()
        yield Name("tiff_predictor", cls.tiff_predictor, cls.from_predictor)

    @classmethod
    def from_predictor(cls, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Self:
        """Build the codec for chunks of a shape, and samples in the byte order of the file."""
        return cls(shape, dtype.str)

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        shape = tuple(int(n) for n in config.get("shape") or ())
        axis, dist = int(config.get("axis", -1)), int(config.get("dist", 1))
        if axis % max(len(shape), 1) == 1 and len(shape) == 2:
            # tifffile writes two axes for one sample per pixel
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

    def _to_samples(self, data: Buffer, nbytes: int | None, dtype: Any) -> Any:
        """Return encoded samples as rows, pixels, samples."""
        check_length(self, len(data), nbytes)
        _, pixels, samples = self.shape
        row = pixels * samples * np.dtype(self.dtype).itemsize
        if not row or len(data) % row:
            raise CodecError(f"{self.zarr_v2_id}: {len(data)} bytes are not rows of {row}")
        parts = np.dtype(self.dtype).itemsize // np.dtype(dtype).itemsize
        return np.frombuffer(data, dtype).reshape(len(data) // row, pixels * parts, samples)


@dataclass(frozen=True)
class Differences(_Predictor):
    """Differences from the sample to the left, modulo its range (predictor 2)."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_delta"
    known: ClassVar[str] = "iufc"
    tiff_predictor: ClassVar[int] = 2

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        dtype = np.dtype(self.dtype)
        # the differences of floats are those of their bits
        bits = np.dtype(f"{dtype.byteorder}u{dtype.itemsize}")
        found = np.cumsum(
            self._to_samples(data, nbytes, bits), axis=1, dtype=bits.newbyteorder("=")
        )
        out: memoryview = found.astype(bits, copy=False).reshape(-1).view(np.uint8).data
        return out


@dataclass(frozen=True)
class FloatDifferences(_Predictor):
    """Differences of the bytes of floats, the highest bytes of a row first (predictor 3).

    The order of the bytes is the same in files of either byte order.
    """

    zarr_v2_id: ClassVar[str] = "imagecodecs_floatpred"
    known: ClassVar[str] = "f"
    tiff_predictor: ClassVar[int] = 3

    @classmethod
    def from_predictor(cls, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Self:
        """Build the codec for chunks of a shape; it decodes to little-endian floats."""
        return cls(shape, dtype.newbyteorder("<").str)

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        size = np.dtype(self.dtype).itemsize
        found = self._to_samples(data, nbytes, np.uint8)
        planes = np.cumsum(found, axis=1, dtype=np.uint8).reshape(len(found), size, -1)
        # the highest byte comes first in the file, and last in a little-endian number
        if np.dtype(self.dtype).newbyteorder("<") == np.dtype(self.dtype):
            planes = planes[:, ::-1]
        return np.ascontiguousarray(planes.transpose(0, 2, 1)).reshape(-1).data


@dataclass(frozen=True)
class _Bytes(Codec):
    """The base class of compressors of bytes."""

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        name = self.zarr_v2_id.removeprefix("imagecodecs_")
        imagecodecs = import_package("imagecodecs", name)
        decode = getattr(imagecodecs, f"{name}_decode")
        most = limit_decoded_size(len(data)) if nbytes is None else nbytes
        try:
            # room for one byte more shows a stream that is too long
            out: bytes = decode(bytes(data), out=most + 1)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"{name}: {error}") from error
        if nbytes is None and len(out) > most:
            raise CodecError(f"{name}: decoded to more than the expected {most} bytes")
        check_length(self, len(out), nbytes)
        return out


class Lzw(_Bytes):
    """TIFF's LZW, with codes of 9 to 12 bits."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_lzw"
    tiff_compressions: ClassVar[tuple[int, ...]] = (5,)


class PackBits(_Bytes):
    """Runs of bytes, from the Macintosh."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_packbits"
    tiff_compressions: ClassVar[tuple[int, ...]] = (32773,)
