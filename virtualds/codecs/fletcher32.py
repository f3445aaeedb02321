"""Fletcher32: a checksum behind the data, verified whenever a chunk is read.

Zarr v2 ``{"id": "fletcher32"}``; Zarr v3 ``numcodecs.fletcher32``; HDF5 filter 3 (HDF5 file format,
IV.A.2.l). The sums run over big-endian 16-bit words (RFC 1146 describes the idea); HDF5 stores them
in the last four bytes of the chunk, little-endian.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.codec import Buffer, Codec, CodecError

ROW = 360
"""Words that are summed at a time: so few that no partial sum overflows 32 bits."""
ROWS = 65536
"""Rows whose sums by column do not overflow 32 bits."""
FEW = 2**17
"""Bytes below which numcodecs is faster, though no other thread runs meanwhile."""


@dataclass(frozen=True)
class Fletcher32(Codec):
    """Four bytes of checksum at the end of the chunk."""

    zarr_v2_id: ClassVar[str] = "fletcher32"
    hdf5_filter: ClassVar[int | None] = 3
    is_filter: ClassVar[bool] = True

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls()

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id}

    @property
    def encoding(self) -> dict[str, Any]:
        return {"fletcher32": True}

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes + 4

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        view = memoryview(data)
        if len(view) < 4:
            raise CodecError(f"fletcher32: {len(view)} bytes cannot hold a checksum")
        body, stored = view[:-4], int.from_bytes(view[-4:], "little")
        if 0 < len(body) < FEW and not len(body) % 2 and _verified(data):
            return body
        found = fletcher32(body)
        # HDF5 before 1.6.3 wrote both halves with their bytes swapped, and reads either
        swapped = int.from_bytes(view[-4:-2], "big") | int.from_bytes(view[-2:], "big") << 16
        if found not in (stored, swapped):
            raise CodecError(f"fletcher32: checksum {found:#010x}, the chunk says {stored:#010x}")
        return body


def fletcher32(data: Buffer) -> int:
    """Return the checksum of ``data``.

    Both sums are taken modulo 65535 as weighted sums over rows of words, so that numpy does the
    adding: with ``n`` words ``w[i]``, the sums are ``sum(w)`` and ``sum((n - i) * w[i])``. Words
    are taken as if they were little-endian, which numpy adds faster: to swap the bytes of a word is
    to multiply it by 256 modulo 65535.
    """
    raw = np.frombuffer(data, np.uint8)
    if raw.size % 2:
        raw = np.append(raw, np.uint8(0))
    words = raw.view("<u2")
    count = words.size
    rows = count // ROW
    table = words[: rows * ROW].reshape(rows, ROW)
    tail = words[rows * ROW :].astype(np.int64)
    by_row = table.sum(axis=1, dtype=np.uint32).astype(np.int64)
    narrow = np.uint32 if rows < ROWS else np.int64
    by_column = table.sum(axis=0, dtype=narrow).astype(np.int64)
    total = int(by_row.sum()) + int(tail.sum())
    # element (r, c) stands n - r * ROW - c places before the end
    weight = int((by_row % 65535 * ((count - np.arange(rows) * ROW) % 65535)).sum())
    weight -= int((by_column % 65535 * np.arange(ROW)).sum())
    weight += int((tail * np.arange(tail.size, 0, -1)).sum())
    return _fold(256 * weight) << 16 | _fold(256 * total) if total else 0


def _verified(data: Buffer) -> bool:
    """Whether numcodecs finds the checksum right; it takes no odd number of bytes."""
    try:
        _numcodecs().decode(data)
    except RuntimeError:
        return False
    return True


@cache
def _numcodecs() -> Any:
    from numcodecs.fletcher32 import Fletcher32

    return Fletcher32()


def _fold(value: int) -> int:
    """Reduce modulo 65535 the way repeated folding does: a sum that is not zero never becomes it.

    ``weight`` has been reduced on the way, so it may be zero where the true sum is not.
    """
    return (value - 1) % 65535 + 1
