"""Checksums as codecs: CRC-32C of Zarr v3, and Fletcher-32 of HDF5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from virtualds.codecs.codec import Codec
from virtualds.streams import Buffer

Checksum = Callable[[Buffer], int]

Registers = npt.NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78
"""Castagnoli's polynomial, its highest power in the lowest bit."""

ALL_BITS = 0xFFFFFFFF
"""Initial value of a register, and the mask with which the result is XORed."""

MIN_NUMPY_BYTES = 2**16
"""Minimum number of bytes for which NumPy is faster than a loop."""

LANE_BYTES = 1024
"""Size in bytes of a lane; NumPy updates the registers of all lanes together, byte by byte."""

ROW_WORDS = 360
"""Number of words that Fletcher-32 sums at a time, so that no partial sum overflows 32 bits."""

MAX_ROWS = 65536
"""Number of rows whose sums by column do not overflow 32 bits."""

MAX_NUMCODECS_BYTES = 2**17
"""Size in bytes up to which numcodecs' Fletcher-32 is faster, although it holds the GIL."""


@dataclass(frozen=True)
class Crc32c(Codec):
    """A chunk followed or preceded by its CRC-32C, in four bytes.

    Parameters
    ----------
    location : str
        ``end`` or ``start``: where the checksum is.
    """

    location: str = "end"

    zarr_v2_id = "crc32c"
    zarr_v3_name = "crc32c"
    added_bytes = 4

    def __post_init__(self) -> None:
        if self.location not in ("start", "end"):
            raise ValueError(f"crc32c: location {self.location!r} is neither start nor end")

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(config.get("location") or "end")

    def to_zarr_v3(self, itemsize: int) -> dict[str, Any]:
        if self.location == "end":
            return {"name": self.zarr_v3_name}
        return {"name": self.prefixed_name(), "configuration": {"location": self.location}}

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        view = memoryview(data)
        if len(view) < 4:
            raise ValueError(f"{len(view)} bytes cannot hold a checksum")
        is_at_end = self.location == "end"
        body, checksum = (view[:-4], view[-4:]) if is_at_end else (view[4:], view[:4])
        actual, stored = choose_crc32c()(body), int.from_bytes(checksum, "little")
        if actual != stored:
            raise ValueError(f"checksum {actual:#010x}, the chunk says {stored:#010x}")
        return body


@cache
def choose_crc32c() -> Checksum:
    """Return the fastest installed CRC-32C function."""
    with suppress(ImportError):
        # the name of CRC-32C in fastcrc is iscsi
        from fastcrc.crc32 import iscsi

        fastest: Checksum = iscsi
        return fastest
    with suppress(ImportError):
        from google_crc32c import value

        return lambda data: int(value(bytes(data)))
    return crc32c


def crc32c(data: Buffer) -> int:
    """Compute the CRC-32C with NumPy alone, in lanes whose registers are then combined.

    A register is linear in its start value and in the data: the register of two parts is that of
    the first, updated with as many zeros as the second has bytes, plus that of the second.

    Examples
    --------
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    raw = np.frombuffer(data, np.uint8)
    register, table = np.array([ALL_BITS], np.uint32), _build_table()
    # for few lanes, the loop is faster
    lane_count = raw.size // LANE_BYTES if raw.size >= MIN_NUMPY_BYTES else 0
    lanes = np.zeros(lane_count, np.uint32)
    lane_bytes = lane_count * LANE_BYTES
    for column in raw[:lane_bytes].reshape(lane_count, LANE_BYTES).T if lane_count else ():
        lanes = _update_registers(lanes, column, table)
    lane_tables = _build_lane_tables()
    for lane in lanes:
        # update with a lane of zeros, a linear map that has a table for each byte of a register
        parts = register.astype("<u4").view(np.uint8)
        register = np.bitwise_xor.reduce(lane_tables[np.arange(4), parts], keepdims=True) ^ lane
    result, updates = int(register[0]), table.tolist()
    for byte in raw[lane_bytes:].tobytes():
        result = updates[(result ^ byte) & 0xFF] ^ result >> 8
    return result ^ ALL_BITS


def _update_registers(registers: Registers, data: Any, table: Registers) -> Registers:
    """Update registers with one byte each."""
    updated: Registers = table[(registers ^ data) & np.uint32(0xFF)] ^ (registers >> np.uint32(8))
    return updated


@cache
def _build_table() -> Registers:
    """Return the update table: the register for each value of its lowest byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(POLYNOMIAL)
    return table


@cache
def _build_lane_tables() -> Registers:
    """Return, for each value of each register byte, the register after a lane of zeros."""
    registers = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    for _ in range(LANE_BYTES):
        registers = _update_registers(registers, np.uint32(0), _build_table())
    return registers


# ---------------------------------------------------------------------- Fletcher-32


@dataclass(frozen=True)
class Fletcher32(Codec):
    """A chunk followed by its Fletcher-32 checksum, in four bytes."""

    zarr_v2_id = "fletcher32"
    hdf5_filter = 3
    is_filter = True
    added_bytes = 4

    @property
    def encoding(self) -> dict[str, Any]:
        return {"fletcher32": True}

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        view = memoryview(data)
        if len(view) < 4:
            raise ValueError(f"{len(view)} bytes cannot hold a checksum")
        body, stored = view[:-4], int.from_bytes(view[-4:], "little")
        if 0 < len(body) < MAX_NUMCODECS_BYTES and not len(body) % 2 and _is_verified(data):
            return body
        actual = fletcher32(body)
        # HDF5 before 1.6.3 wrote both halves with swapped bytes; later versions read both
        swapped = int.from_bytes(view[-4:-2], "big") | int.from_bytes(view[-2:], "big") << 16
        if actual not in (stored, swapped):
            raise ValueError(f"checksum {actual:#010x}, the chunk says {stored:#010x}")
        return body


def fletcher32(data: Buffer) -> int:
    """Compute the Fletcher-32 checksum of ``data``.

    Both sums are taken modulo 65535 as weighted sums over rows of words, so that numpy does the
    additions: with ``n`` words ``w[i]``, the sums are ``sum(w)`` and ``sum((n - i) * w[i])``. Words
    are read as little-endian, which numpy adds faster: swapping the bytes of a word multiplies it
    by 256 modulo 65535.
    """
    raw = np.frombuffer(data, np.uint8)
    if raw.size % 2:
        raw = np.append(raw, np.uint8(0))
    words = raw.view("<u2")
    count = words.size
    rows = count // ROW_WORDS
    table = words[: rows * ROW_WORDS].reshape(rows, ROW_WORDS)
    tail = words[rows * ROW_WORDS :].astype(np.int64)
    by_row = table.sum(axis=1, dtype=np.uint32).astype(np.int64)
    sum_dtype = np.uint32 if rows < MAX_ROWS else np.int64
    by_column = table.sum(axis=0, dtype=sum_dtype).astype(np.int64)
    total = int(by_row.sum()) + int(tail.sum())
    # element (r, c) is n - r * ROW_WORDS - c positions before the end
    weight = int((by_row % 65535 * ((count - np.arange(rows) * ROW_WORDS) % 65535)).sum())
    weight -= int((by_column % 65535 * np.arange(ROW_WORDS)).sum())
    weight += int((tail * np.arange(tail.size, 0, -1)).sum())
    return _fold(256 * weight) << 16 | _fold(256 * total) if total else 0


def _is_verified(data: Buffer) -> bool:
    """Return whether numcodecs accepts the checksum of an even number of bytes."""
    try:
        _import_numcodecs().decode(data)
    except RuntimeError:
        return False
    return True


@cache
def _import_numcodecs() -> Any:
    from numcodecs.fletcher32 import Fletcher32

    return Fletcher32()


def _fold(value: int) -> int:
    """Reduce modulo 65535 as repeated folding does: a sum other than zero never becomes zero.

    ``weight`` was reduced before, so it may be zero where the true sum is not.
    """
    return (value - 1) % 65535 + 1
