"""The codecs of TIFF: predictors, LZW, PackBits, fax, integers of a few bits, and reversed bits.

Predictors: TIFF 6.0, section 14 (horizontal differencing), and Adobe's TIFF Technical Note 3
(floating point); LZW: section 13; PackBits: section 9; fax: sections 10 and 11, and ITU-T T.4 and
T.6; bits: section 8 (BitsPerSample, FillOrder). In Zarr v2 they have the names and configurations
of imagecodecs, in Zarr v3 the same with the prefix ``numcodecs.``, so that other readers decode
little-endian samples and single bytes too. For fax, only our name exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.codecs.codec import CONFIG_KEY, DECODE_ERRORS, Codec, CodecName, SingleTypeCodec
from virtualds.errors import UnsupportedError
from virtualds.importing import import_package
from virtualds.streams import Buffer, limit_decoded_size

BIT_REVERSAL = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Translation table that reverses the bits of a byte."""
UNCOMPRESSED_MODE = 2
"""Bit of T4Options (TIFF 6.0, section 11)."""


@dataclass(frozen=True)
class PackedIntegers(SingleTypeCodec):
    """Integers of 1 to 31 bits, the highest bit first; each run begins with a new byte.

    Parameters
    ----------
    dtype : str
        Dtype of the decoded integers, or booleans.
    bits : int
        Bits of an integer.
    run : int
        Number of integers in a run, which is a row.
    """

    dtype: str
    bits: int = field(metadata={CONFIG_KEY: "bitspersample"})
    run: int = field(metadata={CONFIG_KEY: "runlen"})

    zarr_v2_id = "imagecodecs_packints"
    decode_errors = DECODE_ERRORS

    def __post_init__(self) -> None:
        dtype = np.dtype(self.dtype)
        max_bits = 1 if dtype.kind == "b" else 8 * dtype.itemsize
        if dtype.kind not in "bu" or not 1 <= self.bits <= min(max_bits, 31) or self.run < 1:
            raise ValueError(f"packints: runs of {self.run} {dtype} of {self.bits} bits")

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        if config.get("bitorder") not in (None, ">"):
            raise UnsupportedError(
                f"{cls.zarr_v2_id}: integers that begin with their lowest bit are not decoded; "
                f"open the data with zarr-python and imagecodecs"
            )
        return super().from_zarr_v2(config)

    def encoded_size(self, nbytes: int) -> int | None:
        runs = nbytes // np.dtype(self.dtype).itemsize // self.run
        return runs * -(-self.run * self.bits // 8)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "packints")
        row = -(-self.run * self.bits // 8)
        encoded_length = len(data) if nbytes is None else self.encoded_size(nbytes)
        if not encoded_length or encoded_length % row or len(data) < encoded_length:
            raise ValueError(f"{len(data)} bytes are not {encoded_length} in rows of {row}")
        dtype = np.dtype(self.dtype)
        # bytes after the rows are padding
        integers: Any = imagecodecs.packints_decode(
            bytes(memoryview(data)[:encoded_length]),
            dtype.newbyteorder("="),
            self.bits,
            runlen=self.run,
        )
        out: bytes = integers.astype(dtype, copy=False).tobytes()
        return out


@dataclass(frozen=True)
class ReversedBits(Codec):
    """Bytes whose bits are stored in reversed order (FillOrder 2)."""

    zarr_v2_id = "imagecodecs_bitorder"
    added_bytes = 0

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        return bytes(data).translate(BIT_REVERSAL)


@dataclass(frozen=True)
class Fax(Codec):
    """Fax compression, decoded to one byte per pixel, 0 or 1.

    Parameters
    ----------
    width : int
        Pixels of a row.
    compression : int
        Number in the TIFF tag Compression: 2 for runs only, 3 for group 3, 4 for group 4.
    options : int
        Value of the TIFF tag T4Options, the variant of group 3.
    """

    width: int
    compression: int = 4
    options: int = 0

    # the id and the default come from older sets, which only have group 4
    zarr_v2_id = "virtualds_fax4"
    tiff_compressions = (2, 3, 4)
    decode_errors = DECODE_ERRORS

    def __post_init__(self) -> None:
        if self.width < 1 or self.compression not in self.tiff_compressions:
            raise ValueError(f"fax: rows of {self.width} pixels, compression {self.compression}")
        if self.options & UNCOMPRESSED_MODE:
            raise UnsupportedError(
                "fax of group 3 in uncompressed mode: no decoder reads it; convert it with "
                "gdal_translate"
            )

    @classmethod
    def from_tiff(cls, page: Any) -> Self:
        tag = page.tags.get("T4Options") if page.compression == 3 else None
        width = page.tilewidth if page.is_tiled else page.imagewidth
        return cls(width, int(page.compression), 0 if tag is None else int(tag.value))

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "fax")
        if not hasattr(imagecodecs, "ccittfax4_decode"):
            raise UnsupportedError("fax: decoding it needs imagecodecs 2026.3.6 or newer")
        if nbytes is None or nbytes % self.width or not len(data):
            raise ValueError(f"{len(data)} bytes are not {nbytes} in rows of {self.width}")
        size = nbytes // self.width, self.width
        if self.compression == 2:
            pixels: Any = imagecodecs.ccittrle_decode(bytes(data), *size)
        elif self.compression == 3:
            pixels = imagecodecs.ccittfax3_decode(bytes(data), *size, t4options=self.options)
        else:
            pixels = imagecodecs.ccittfax4_decode(bytes(data), *size)
        out: bytes = pixels.tobytes()
        return out


# ---------------------------------------------------------------------- tiff


@dataclass(frozen=True)
class _Predictor(SingleTypeCodec):
    """Base class of predictors, which restart at each row, separately for each sample.

    Parameters
    ----------
    shape : tuple of int
        Rows, pixels and samples of a chunk; chunks with fewer rows decode too.
    dtype : str
        Dtype of the samples, encoded and decoded, with byte order.
    """

    shape: tuple[int, int, int]
    dtype: str

    dtype_kinds: ClassVar[str]
    """Dtype kinds of its samples."""
    tiff_predictor: ClassVar[int]
    """Number in the TIFF tag Predictor."""
    added_bytes = 0

    def __post_init__(self) -> None:
        dtype = np.dtype(self.dtype)
        if min(self.shape) < 1 or dtype.kind not in self.dtype_kinds or dtype.itemsize > 8:
            raise ValueError(f"rows of {self.shape} {dtype} have no differences")

    @classmethod
    def names(cls) -> Iterator[CodecName]:
        yield from super().names()
        yield CodecName("tiff_predictor", cls.tiff_predictor, cls.for_chunks)

    @classmethod
    def for_chunks(cls, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Self:
        """Build the codec for chunks of this shape and dtype, in the byte order of the file."""
        return cls(shape, dtype.str)

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        shape = tuple(int(n) for n in config.get("shape") or ())
        axis, dist = int(config.get("axis", -1)), int(config.get("dist", 1))
        if axis % max(len(shape), 1) == 1 and len(shape) == 2:
            # tifffile uses two axes for one sample per pixel
            shape, axis = (*shape, 1), 1
        if len(shape) != 3 or axis not in (1, -2) or dist != 1 or not config.get("dtype"):
            raise UnsupportedError(
                f"{cls.zarr_v2_id} {dict(config)}: only differences between the pixels of rows are "
                f"decoded; open the data with zarr-python and imagecodecs"
            )
        return cls((shape[0], shape[1], shape[2]), str(config["dtype"]))

    def to_zarr_v2(self) -> dict[str, Any]:
        return {**super().to_zarr_v2(), "axis": -2, "dist": 1}

    def _to_samples(self, data: Buffer, dtype: Any) -> Any:
        """Return the encoded samples with axes for rows, pixels and samples."""
        _, pixels, samples = self.shape
        row = pixels * samples * np.dtype(self.dtype).itemsize
        if not row or len(data) % row:
            raise ValueError(f"{len(data)} bytes are not rows of {row}")
        parts = np.dtype(self.dtype).itemsize // np.dtype(dtype).itemsize
        return np.frombuffer(data, dtype).reshape(len(data) // row, pixels * parts, samples)


@dataclass(frozen=True)
class Differences(_Predictor):
    """Differences from the sample to the left, modulo its range (predictor 2)."""

    zarr_v2_id = "imagecodecs_delta"
    dtype_kinds = "iufc"
    tiff_predictor = 2

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        dtype = np.dtype(self.dtype)
        # the differences of floats are those of their bits
        bits = np.dtype(f"{dtype.byteorder}u{dtype.itemsize}")
        samples = np.cumsum(self._to_samples(data, bits), axis=1, dtype=bits.newbyteorder("="))
        out: memoryview = samples.astype(bits, copy=False).reshape(-1).view(np.uint8).data
        return out


@dataclass(frozen=True)
class FloatDifferences(_Predictor):
    """Differences of the bytes of floats, the highest bytes of a row first (predictor 3).

    The order of the bytes is the same in files of either byte order.
    """

    zarr_v2_id = "imagecodecs_floatpred"
    dtype_kinds = "f"
    tiff_predictor = 3

    @classmethod
    def for_chunks(cls, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Self:
        """Build the codec for chunks of this shape; it decodes to little-endian floats."""
        return cls(shape, dtype.newbyteorder("<").str)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        size = np.dtype(self.dtype).itemsize
        row_bytes = self._to_samples(data, np.uint8)
        planes = np.cumsum(row_bytes, axis=1, dtype=np.uint8).reshape(len(row_bytes), size, -1)
        # the highest byte is first in the file, and last in a little-endian number
        if np.dtype(self.dtype).newbyteorder("<") == np.dtype(self.dtype):
            planes = planes[:, ::-1]
        return np.ascontiguousarray(planes.transpose(0, 2, 1)).reshape(-1).data


@dataclass(frozen=True)
class _ByteCompressor(Codec):
    """Base class of codecs that compress bytes."""

    decode_errors = DECODE_ERRORS

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        name = self.zarr_v2_id.removeprefix("imagecodecs_")
        imagecodecs = import_package("imagecodecs", name)
        decode = getattr(imagecodecs, f"{name}_decode")
        max_bytes = limit_decoded_size(len(data)) if nbytes is None else nbytes
        # an additional byte reveals streams that are too long
        out: bytes = decode(bytes(data), out=max_bytes + 1)
        if nbytes is None and len(out) > max_bytes:
            raise ValueError(f"decoded to more than {max_bytes} bytes, the limit")
        return out


class Lzw(_ByteCompressor):
    """TIFF's LZW, with codes of 9 to 12 bits."""

    zarr_v2_id = "imagecodecs_lzw"
    tiff_compressions = (5,)


class PackBits(_ByteCompressor):
    """Run-length encoding of bytes, from the Macintosh."""

    zarr_v2_id = "imagecodecs_packbits"
    tiff_compressions = (32773,)
