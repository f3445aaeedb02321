"""Zarr v3 ``packbits``: a few bits of each number, least significant bit first.

Registered in zarr-extensions. Zarr v2 ``packbits`` is another codec, of numcodecs, which begins
with the most significant bit; there this one is ``virtualds_bit_fields``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.codec import CodecError, OfOneType
from virtualds.codecs.libraries import Bytes

PADDING_BYTE = {"none": (0, 0), "first_byte": (1, 0), "last_byte": (0, 1)}
"""Bytes before and behind the bits, for the number of padding bits in their last byte."""

KEYS = {"padding_encoding", "first_bit", "last_bit"}
"""Keys of the configuration of ``packbits``."""

NUMBERS = 2**16
"""Numbers that are unpacked at a time: a multiple of eight, so that they begin with a byte."""


@dataclass(frozen=True)
class BitFields(OfOneType):
    """Some of the bits of booleans, integers, floats or parts of complex numbers.

    Decoding yields little-endian numbers. Bits below the stored ones are zero; bits above are zero,
    or, for signed integers, equal to the highest stored one.

    Parameters
    ----------
    dtype : str
        Dtype of the numbers.
    first_bit, last_bit : int
        The lowest and the highest bit that is stored.
    padding : str
        Where the number of padding bits stands: a key of `PADDING_BYTE`.

    Raises
    ------
    ValueError
        The dtype, the bits or the padding are invalid.
    """

    dtype: str
    first_bit: int
    last_bit: int
    padding: str = "none"

    zarr_v2_id: ClassVar[str] = "virtualds_bit_fields"
    registered_name: ClassVar[str | None] = "packbits"
    only_virtualds: ClassVar[bool] = True
    serialises: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "biufc":
            raise ValueError(f"packbits: {self.dtype} is not a number")
        if not 0 <= self.first_bit <= self.last_bit < self._all_bits:
            raise ValueError(
                f"packbits: bits {self.first_bit} to {self.last_bit} are outside {self._all_bits}"
            )
        if self.padding not in PADDING_BYTE:
            raise ValueError(f"packbits: padding {self.padding!r} is none of {list(PADDING_BYTE)}")

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        first, last = (_demand_int(config[name]) for name in ("first_bit", "last_bit"))
        return cls(str(config["dtype"]), first, last, str(config["padding_encoding"]))

    @classmethod
    def from_registry(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec from the configuration of ``packbits``."""
        if unknown := config.keys() - KEYS:
            raise ValueError(f"{min(unknown)!r} is not known")
        first, last = config.get("first_bit"), config.get("last_bit")
        said = {
            "dtype": dtype.newbyteorder("<").str,
            "first_bit": 0 if first is None else first,
            "last_bit": _count_bits(dtype) - 1 if last is None else last,
            "padding_encoding": config.get("padding_encoding", "none"),
        }
        return cls.from_zarr_v2(said)

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, "dtype": self.dtype, **self._parameters}

    def in_chain(self, itemsize: int) -> dict[str, Any]:
        return {"name": self.registered_name, "configuration": self._parameters}

    @property
    def _parameters(self) -> dict[str, Any]:
        bits = {"first_bit": self.first_bit, "last_bit": self.last_bit}
        return {"padding_encoding": self.padding, **bits}

    @property
    def _all_bits(self) -> int:
        """Bits of a number, or of either part of a complex one."""
        return _count_bits(np.dtype(self.dtype))

    @property
    def _parts(self) -> int:
        return 2 if np.dtype(self.dtype).kind == "c" else 1

    def encoded_size(self, nbytes: int) -> int | None:
        numbers = nbytes // np.dtype(self.dtype).itemsize * self._parts
        return -(-numbers * self._width // 8) + sum(PADDING_BYTE[self.padding])

    @property
    def _width(self) -> int:
        """Stored bits of a number, or of either part of a complex one."""
        return self.last_bit - self.first_bit + 1

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        packed, padding = self._split_header(np.frombuffer(data, np.uint8))
        each = np.dtype(self.dtype).itemsize // self._parts
        if nbytes is None:
            count = (8 * packed.size - (padding or 0)) // self._width
        else:
            count = nbytes // each
        filled = 8 * packed.size - count * self._width
        if count < 0 or not 0 <= filled < 8 or padding not in (None, filled):
            raise CodecError(
                f"packbits: {packed.size} bytes with {padding} padding bits do not hold {count} "
                f"numbers of {self._width} bits"
            )
        return self._unpack(packed, count, each).data

    def _split_header(self, data: Bytes) -> tuple[Bytes, int | None]:
        """Return the packed bytes, and the number of padding bits where it is stored."""
        before, behind = PADDING_BYTE[self.padding]
        if data.size < before + behind:
            raise CodecError("packbits: no bytes, where one holds the number of padding bits")
        packed = data[before : data.size - behind]
        return packed, int(data[0 if before else -1]) if before or behind else None

    def _unpack(self, packed: Bytes, count: int, each: int) -> Bytes:
        """Return the bytes of ``count`` numbers of ``each`` bytes."""
        width, all_bits = self._width, self._all_bits
        if all_bits == 1:
            return np.unpackbits(packed, count=count, bitorder="little")
        if width == all_bits:
            return packed
        signed = np.dtype(self.dtype).kind == "i"
        out = np.empty((count, each), np.uint8)
        for start in range(0, count, NUMBERS):
            some = out[start : start + NUMBERS]
            part = packed[start // 8 * width :]
            bits = np.unpackbits(part, count=len(some) * width, bitorder="little")
            fields = bits.reshape(len(some), width)
            spread = np.zeros((len(some), all_bits), np.uint8)
            spread[:, self.first_bit : self.last_bit + 1] = fields
            if signed:
                spread[:, self.last_bit + 1 :] = fields[:, -1:]
            some[:] = np.packbits(spread, axis=1, bitorder="little")
        return out.reshape(-1)


def _count_bits(dtype: np.dtype[Any]) -> int:
    if dtype.kind == "b":
        return 1
    return 8 * dtype.itemsize // (2 if dtype.kind == "c" else 1)


def _demand_int(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"packbits: {value!r} is not a number of bits")
    return value
