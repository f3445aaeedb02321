"""HDF5's filters nbit and scaleoffset: numbers with fewer bits than their type.

- nbit: HDF5 filter 5; client data: number of values, flag "nothing to pack", elements in a chunk,
  class, then for an atomic type size, byte order, precision, offset.
- scaleoffset: HDF5 filter 6; client data: scale type, scale factor, elements in a chunk, class,
  size, sign, byte order, flag "has a fill value", fill value in words of 32 bits, lowest first.

The HDF5 file format, IV.A.2.l, names both; ``H5Znbit.c`` and ``H5Zscaleoffset.c`` define them: the
bits of the elements in order, most significant first, without a gap. Zarr has no name for either;
here they are ``virtualds_nbit`` and ``virtualds_scaleoffset`` in Zarr v2, with a dot in Zarr v3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from virtualds.bounds import Buffer
from virtualds.codecs.codec import Codec, CodecError, check_length
from virtualds.errors import UnsupportedError

Unsigned = npt.NDArray[np.unsignedinteger[Any]]

ATOMIC = 1
"""Class of nbit's client data; arrays are 2, compounds 3."""

FLOAT = 1
"""Class of scaleoffset's client data; integers are 0."""

BY_DECIMALS, BY_BITS = 0, 2
"""Scale types: decimal digits that floats keep, bits that integers take."""

HEADER = 21
"""Bytes before scaleoffset's bits: 4 of their number, 1 of the minimum's size, 16 for it."""

SIZES = (1, 2, 4, 8)
"""Bytes of the elements that are decoded."""

ROWS = 8192
"""Rows of eight numbers that are unpacked at a time: few enough for the cache."""

WORD = 8
"""Bytes of the longest word that bits are read with."""


@dataclass(frozen=True)
class Nbit(Codec):
    """The significant bits of integers or floats; the others are zero.

    Decoding yields the elements in the layout of their HDF5 type, neither shifted nor extended by a
    sign.

    Parameters
    ----------
    dtype : str
        Unsigned integers of the size and byte order of the elements.
    precision, offset : int
        Number of significant bits, and of the bits below them. Where all bits are significant, the
        elements are not packed.
    elements : int
        Elements per chunk.
    """

    dtype: str
    precision: int
    offset: int
    elements: int

    zarr_v2_id: ClassVar[str] = "virtualds_nbit"
    only_virtualds: ClassVar[bool] = True
    hdf5_filter: ClassVar[int | None] = 5

    def __post_init__(self) -> None:
        dtype = np.dtype(self.dtype)
        if dtype.kind != "u":
            raise ValueError(f"elements of {dtype} are not unsigned integers")
        bits = 8 * dtype.itemsize
        if not (0 < self.precision <= bits - self.offset and self.offset >= 0):
            raise UnsupportedError(
                f"nbit: {self.precision} bits above {self.offset} do not fit into {bits}; "
                f"leave the variable out with drop_variables"
            )

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        if len(values) >= 3 and values[1] and itemsize in SIZES:
            return cls(f"<u{itemsize}", 8 * itemsize, 0, values[2])
        if len(values) < 8 or values[3] != ATOMIC or values[4] not in SIZES or values[5] > 1:
            raise UnsupportedError(
                f"HDF5 filter 5 (nbit) of an element of {itemsize} bytes with client data "
                f"{tuple(values)}: only integers and floats of {SIZES} bytes are unpacked, no "
                f"compounds and arrays; leave the variable out with drop_variables"
            )
        return cls(f"{'<>'[values[5]]}u{values[4]}", values[6], values[7], values[2])

    @property
    def _as_they_are(self) -> bool:
        return self.precision == 8 * np.dtype(self.dtype).itemsize

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes if self._as_they_are else None

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if self._as_they_are:
            check_length(self, len(data), nbytes)
            return data
        dtype = np.dtype(self.dtype)
        check_length(self, self.elements * dtype.itemsize, nbytes)
        found = unpack_bits(data, self.elements, self.precision, dtype.itemsize)
        found <<= self.offset
        # no copy in the byte order of the machine
        return found.astype(dtype, copy=False).view(np.uint8).data


@dataclass(frozen=True)
class ScaleOffset(Codec):
    """Differences from a minimum: of integers, or of floats times a power of ten.

    Parameters
    ----------
    dtype : str
        Dtype of the elements.
    factor : int
        Decimal digits that floats keep; bits that integers take, 0 if each chunk has its own.
    elements : int
        Elements per chunk.
    fill : int or None
        The bits of the fill value, for which the highest difference stands; None if there is none.
    """

    dtype: str
    factor: int
    elements: int
    fill: int | None

    zarr_v2_id: ClassVar[str] = "virtualds_scaleoffset"
    only_virtualds: ClassVar[bool] = True
    hdf5_filter: ClassVar[int | None] = 6

    def __post_init__(self) -> None:
        kind = np.dtype(self.dtype)
        if kind.kind not in "iuf" or kind.itemsize not in SIZES or self.elements < 0:
            raise ValueError(f"{self.elements} elements of {kind} cannot be scaled")
        if self.fill is not None and not 0 <= self.fill < 1 << 8 * kind.itemsize:
            raise ValueError(f"the bits of the fill value, {self.fill}, are out of bounds")

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        if len(values) != 20 or _kind_of(values) is None or values[6] > 1:
            raise UnsupportedError(
                f"HDF5 filter 6 (scaleoffset) with client data {tuple(values)}: only "
                f"integers of {SIZES} bytes and floats of 4 or 8 are decoded; leave the variable "
                f"out with drop_variables"
            )
        factor = values[1] - (values[1] >> 31 << 32)
        fill = (values[8] | values[9] << 32) % (1 << 8 * values[4]) if values[7] else None
        return cls(f"{'<>'[values[6]]}{_kind_of(values)}{values[4]}", factor, values[2], fill)

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        dtype = np.dtype(self.dtype)
        size = self.elements * dtype.itemsize
        check_length(self, size, nbytes)
        if dtype.kind != "f" and self.factor == 8 * dtype.itemsize:
            check_length(self, len(data), size)
            return data
        view = memoryview(data)
        bits, least = self._read_header(view, dtype.itemsize)
        if bits == 8 * dtype.itemsize:
            found = _read_full_width(view[HEADER:], self.elements, dtype.itemsize)
        else:
            found = unpack_bits(view[HEADER:], self.elements, bits, dtype.itemsize)
            found = self._restore(found, bits, least, dtype)
        # no copy in the byte order of the machine
        stored = np.dtype(f"u{dtype.itemsize}").newbyteorder(dtype.byteorder)
        return found.astype(stored, copy=False).view(np.uint8).data

    def _read_header(self, data: memoryview, itemsize: int) -> tuple[int, Unsigned]:
        """Return the bits per element, and the bits of the minimum as an array of one."""
        if len(data) < HEADER:
            raise CodecError(f"{self.zarr_v2_id}: {len(data)} bytes hold no header of {HEADER}")
        bits = int.from_bytes(data[:4], "little")
        if bits > 8 * itemsize:
            raise CodecError(f"{self.zarr_v2_id}: {bits} bits for elements of {itemsize} bytes")
        least = bytes(data[5 : 5 + min(data[4], 8)]).ljust(8, b"\0")
        return bits, np.frombuffer(least[:itemsize], f"<u{itemsize}").astype(f"u{itemsize}")

    def _restore(
        self, found: Unsigned, bits: int, least: Unsigned, dtype: np.dtype[Any]
    ) -> Unsigned:
        """Turn differences from the minimum into the bits of the elements, in place."""
        filled = found == (1 << bits) - 1
        if dtype.kind == "f":
            native = dtype.newbyteorder("=")
            # HDF5 computes in the precision of the elements; damage may give NaN or infinity
            with np.errstate(all="ignore"):
                values = found.view(f"i{dtype.itemsize}").astype(native)
                values /= np.float64(_compute_power_of_ten(self.factor)).astype(native)
                values += least.view(native)
            found = values.view(found.dtype)
        else:
            found += least
        if self.fill is not None:
            found[filled] = self.fill
        return found


def unpack_bits(data: Buffer, count: int, bits: int, itemsize: int) -> Unsigned:
    """Return the numbers of a stream of bits, ``bits`` of them per number.

    Eight numbers take ``bits`` bytes and make a row of a table, in which the numbers of one column
    lie in the same bytes. The stream is copied once, so that a word can be read at its end.

    Parameters
    ----------
    data : buffer
        The stream, most significant bit first; bytes behind the numbers are ignored.
    count : int
        Number of numbers.
    bits : int
        Bits per number, from 0 to ``8 * itemsize``.
    itemsize : int
        Bytes of each returned number.

    Raises
    ------
    CodecError
        The stream is too short.

    Examples
    --------
    >>> unpack_bits(bytes([0x12, 0x34, 0x56]), 2, 12, 2)
    array([ 291, 1110], dtype=uint16)
    """
    size = -(-count * bits // 8)
    if len(data) < size:
        raise CodecError(f"{len(data)} bytes hold no {count} numbers of {bits} bits")
    rows = -(-count // 8)
    stream = np.zeros(rows * bits + WORD, np.uint8)
    stream[:size] = np.frombuffer(data, np.uint8, size)
    out = np.zeros((rows, 8), f"u{itemsize}")
    for start in range(0, rows, ROWS) if bits else ():
        _unpack_rows(stream[start * bits :], bits, out[start : start + ROWS])
    return out.reshape(-1)[:count]


def _unpack_rows(stream: npt.NDArray[np.uint8], bits: int, out: Unsigned) -> None:
    """Unpack rows of eight numbers each, place by place, through words that overlap."""
    word = 4 if bits <= 32 else WORD
    for place in range(8):
        first, skipped = divmod(place * bits, 8)
        words = np.ndarray(len(out), f">u{word}", stream, first, (bits,)).astype(f"u{word}")
        words <<= skipped
        words >>= 8 * word - bits
        if (missing := skipped + bits - 8 * word) > 0:
            behind = np.ndarray(len(out), np.uint8, stream, first + word, (bits,))
            words |= behind >> (8 - missing)
        out[:, place] = words


def _read_full_width(data: Buffer, count: int, itemsize: int) -> Unsigned:
    """Return numbers that take all of their bits, which HDF5 stores little-endian."""
    if len(data) < count * itemsize:
        raise CodecError(f"{len(data)} bytes hold no {count} numbers of {itemsize} bytes")
    return np.frombuffer(data, f"<u{itemsize}", count)


def _compute_power_of_ten(exponent: int) -> float:
    try:
        return float(10.0**exponent)
    except OverflowError:
        return math.inf


def _kind_of(values: Sequence[int]) -> str | None:
    """Return the dtype kind in scaleoffset's client data, None if they are not known."""
    scale, size, signed = values[0], values[4], values[5]
    if values[3] == FLOAT:
        return "f" if scale == BY_DECIMALS and size in (4, 8) else None
    # a negative factor means that each chunk has its own
    known = scale == BY_BITS and size in SIZES and (values[1] <= 8 * size or values[1] >> 31)
    return "ui"[signed] if known and signed < 2 else None
