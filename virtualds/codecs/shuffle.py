"""Byte shuffle: the first bytes of all elements, then the second bytes, and so on.

Zarr v2 ``{"id": "shuffle", "elementsize": 4}``; Zarr v3 ``numcodecs.shuffle``; HDF5 filter 2,
"shuffle", whose client data is the element size (HDF5 file format, IV.A.2.l).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.codec import KEY, Codec, check_length
from virtualds.codecs.libraries import LARGEST_FRAME, STORED_BYTES, Bytes, unshuffle_stored

Unshuffle = Callable[[Buffer, Bytes, int], None]

VECTORISED = (2, 4, 8)
"""Element sizes that zlib-into unshuffles."""

TILED = (2, 4, 8, 16)
"""Element sizes for which Blosc has fast code; others it unshuffles byte by byte."""

FEW_BYTES = 2**15
"""Bytes from which on Blosc is faster than numpy, in spite of the cost of a call."""

LONG = 8
"""Element size from which on numpy transposes few bytes faster than it copies planes."""


@dataclass(frozen=True)
class Shuffle(Codec):
    """Elements whose bytes of equal rank are gathered; trailing bytes stay in place."""

    itemsize: int = field(default=4, metadata={KEY: "elementsize"})

    zarr_v2_id: ClassVar[str] = "shuffle"
    hdf5_filter: ClassVar[int | None] = 2
    is_filter: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.itemsize < 1:
            raise ValueError(f"shuffle: elements of {self.itemsize} bytes; give at least 1")

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(values[0] if values else itemsize)

    @classmethod
    def from_zarr_v3(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        size = config.get("elementsize")
        return cls(dtype.itemsize if size is None else int(size))

    @property
    def encoding(self) -> dict[str, Any]:
        return {"shuffle": True}

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if self.itemsize == 1:
            return data
        out = np.empty(len(data), np.uint8)
        self.decode_into(data, out)
        return out.data

    @property
    def fills(self) -> bool:
        return self.itemsize > 1

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        check_length(self, len(data), out.size)
        rest = len(data) % self.itemsize
        if rest:
            source = memoryview(data)
            out[-rest:] = np.frombuffer(source[-rest:], np.uint8)
            data, out = source[:-rest], out[:-rest]
        if len(data):
            _find_unshuffle(self.itemsize)(data, out, self.itemsize)


@cache
def _find_unshuffle(itemsize: int) -> Unshuffle:
    """Return zlib-into's unshuffle where it is installed, else the portable one."""
    if itemsize not in VECTORISED:
        return unshuffle_portably
    try:
        from zlib_into import unshuffle
    except ImportError:
        return unshuffle_portably
    return lambda data, out, itemsize: unshuffle(data, out.data, itemsize)


def unshuffle_portably(data: Buffer, out: Bytes, itemsize: int) -> None:
    """Unshuffle with numpy and, for longer chunks, Blosc, which are always installed."""
    if itemsize in TILED and FEW_BYTES <= len(data) <= LARGEST_FRAME:
        unshuffle_stored(data, out, itemsize, len(data), STORED_BYTES)
    elif itemsize < LONG or len(data) >= FEW_BYTES:
        unshuffle_by_planes(data, out, itemsize)
    else:
        planes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
        np.copyto(out.reshape(-1, itemsize), planes.T)


def unshuffle_by_planes(data: Buffer, out: Bytes, itemsize: int) -> None:
    """Unshuffle plane by plane, the order in which numpy touches the least memory."""
    planes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
    elements = out.reshape(-1, itemsize)
    for rank in range(itemsize):
        elements[:, rank] = planes[rank]
