"""The codecs of TIFF below a byte: integers of a few bits, reversed bits, and fax.

TIFF 6.0, section 8 (BitsPerSample, FillOrder), sections 10 and 11 (fax: ITU-T T.4 and T.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.codec import KEY, Codec, CodecError, OfOneType, check_length
from virtualds.errors import UnsupportedError
from virtualds.extras import import_package

REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Every byte with its bits in reversed order."""
UNCOMPRESSED_MODE = 2
"""Bit of T4Options (TIFF 6.0, section 11)."""


@dataclass(frozen=True)
class PackedIntegers(OfOneType):
    """Integers of 1 to 31 bits, the highest bit first; each run of them begins with a byte.

    Parameters
    ----------
    dtype : str
        Dtype of the decoded integers, or booleans.
    bits : int
        Bits of an integer.
    run : int
        Integers of a run: those of a row.
    """

    dtype: str
    bits: int = field(metadata={KEY: "bitspersample"})
    run: int = field(metadata={KEY: "runlen"})

    zarr_v2_id: ClassVar[str] = "imagecodecs_packints"

    def __post_init__(self) -> None:
        kind = np.dtype(self.dtype)
        most = 1 if kind.kind == "b" else 8 * kind.itemsize
        if kind.kind not in "bu" or not 1 <= self.bits <= min(most, 31) or self.run < 1:
            raise ValueError(f"packints: runs of {self.run} {kind} of {self.bits} bits")

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

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "packints")
        row = -(-self.run * self.bits // 8)
        whole = len(data) if nbytes is None else self.encoded_size(nbytes)
        if not whole or whole % row or len(data) < whole:
            raise CodecError(f"packints: {len(data)} bytes are not {whole} in rows of {row}")
        dtype = np.dtype(self.dtype)
        try:
            # what lies behind the rows is padding
            found: Any = imagecodecs.packints_decode(
                bytes(memoryview(data)[:whole]), dtype.newbyteorder("="), self.bits, runlen=self.run
            )
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"packints: {error}") from error
        out: bytes = found.astype(dtype, copy=False).tobytes()
        check_length(self, len(out), nbytes)
        return out


@dataclass(frozen=True)
class ReversedBits(Codec):
    """Bytes whose bits are stored in reversed order (FillOrder 2)."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_bitorder"

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        check_length(self, len(data), nbytes)
        return bytes(data).translate(REVERSED)


@dataclass(frozen=True)
class Fax(Codec):
    """Fax: one byte for each pixel, 0 or 1.

    Parameters
    ----------
    width : int
        Pixels of a row.
    compression : int
        Number in the TIFF tag Compression: 2 for runs alone, 3 for group 3, 4 for group 4.
    options : int
        Value of the TIFF tag T4Options, which says how group 3 is written.
    """

    width: int
    compression: int = 4
    options: int = 0

    # sets have it since group 4 was the only one
    zarr_v2_id: ClassVar[str] = "virtualds_fax4"
    only_virtualds: ClassVar[bool] = True
    tiff_compressions: ClassVar[tuple[int, ...]] = (2, 3, 4)

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

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "fax")
        if not hasattr(imagecodecs, "ccittfax4_decode"):
            raise UnsupportedError("fax: decoding it needs imagecodecs 2026.3.6 or newer")
        if nbytes is None or nbytes % self.width or not len(data):
            raise CodecError(f"fax: {len(data)} bytes are not {nbytes} in rows of {self.width}")
        size = nbytes // self.width, self.width
        try:
            if self.compression == 2:
                found: Any = imagecodecs.ccittrle_decode(bytes(data), *size)
            elif self.compression == 3:
                found = imagecodecs.ccittfax3_decode(bytes(data), *size, t4options=self.options)
            else:
                found = imagecodecs.ccittfax4_decode(bytes(data), *size)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"fax: {error}") from error
        out: bytes = found.tobytes()
        check_length(self, len(out), nbytes)
        return out
