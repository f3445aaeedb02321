"""The codecs of TIFF below a byte: integers of a few bits, reversed bits, and fax.

TIFF 6.0, section 8 (BitsPerSample, FillOrder), section 11 (fax: ITU-T T.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.codec import Codec, CodecError, OfOneType, check_length
from virtualds.errors import UnsupportedError
from virtualds.extras import import_package

REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Every byte with its bits in reversed order."""


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
    bits: int
    run: int

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
        return cls(str(config["dtype"]), int(config["bitspersample"]), int(config["runlen"]))

    def to_zarr_v2(self) -> dict[str, Any]:
        how = {"dtype": self.dtype, "bitspersample": self.bits, "runlen": self.run}
        return {"id": self.zarr_v2_id, **how}

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

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls()

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id}

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        check_length(self, len(data), nbytes)
        return bytes(data).translate(REVERSED)


@dataclass(frozen=True)
class Fax(Codec):
    """Fax of group 4: one byte for each pixel, 0 or 1.

    Parameters
    ----------
    width : int
        Pixels of a row.
    """

    width: int

    zarr_v2_id: ClassVar[str] = "virtualds_fax4"
    only_virtualds: ClassVar[bool] = True
    tiff_compressions: ClassVar[tuple[int, ...]] = (4,)

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"fax: rows of {self.width} pixels")

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(int(config["width"]))

    @classmethod
    def from_tiff(cls, page: Any) -> Self:
        return cls(page.tilewidth if page.is_tiled else page.imagewidth)

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, "width": self.width}

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "fax4")
        if nbytes is None or nbytes % self.width:
            raise CodecError(f"fax4: {nbytes} bytes are not rows of {self.width}")
        try:
            found: Any = imagecodecs.ccittfax4_decode(bytes(data), nbytes // self.width, self.width)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"fax4: {error}") from error
        out: bytes = found.tobytes()
        check_length(self, len(out), nbytes)
        return out
