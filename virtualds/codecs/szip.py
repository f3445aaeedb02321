"""Szip: the entropy coder of CCSDS 121.0-B, as HDF5 uses it.

HDF5 filter 4, "szip"; client data: options mask, pixels per block, bits per pixel, pixels per
scanline (HDF5 file format, IV.A.2.l). A chunk begins with its decoded length, four bytes. In Zarr
it is imagecodecs' ``imagecodecs_szip``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.bounds import Buffer, demand_room
from virtualds.codecs.codec import Codec, CodecError, check_length
from virtualds.errors import UnsupportedError
from virtualds.extras import import_package

PARAMETERS = ("options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline")

HEADER = 4
"""Bytes of the decoded length before a stream."""

NEAREST_NEIGHBOUR = 32
"""Bit of the options mask for nearest-neighbour preprocessing; without it, entropy coding alone."""

LONGEST_SCANLINE = 4096
"""Pixels that a scanline has at most (SZ_MAX_PIXELS_PER_SCANLINE of szlib.h)."""

LARGEST_BLOCK = 64
"""Pixels that a block has at most (libaec; szlib has 32)."""


@dataclass(frozen=True)
class Szip(Codec):
    """Szip with the parameters of its HDF5 filter."""

    options_mask: int
    pixels_per_block: int
    bits_per_pixel: int
    pixels_per_scanline: int

    zarr_v2_id: ClassVar[str] = "imagecodecs_szip"
    zarr_v3_name: ClassVar[str | None] = "imagecodecs_szip"
    hdf5_filter: ClassVar[int | None] = 4

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        if not config.get("header", True):
            raise UnsupportedError(
                f"{cls.zarr_v2_id}: chunks that do not begin with their decoded length are not "
                f"decoded; open the data with zarr-python and imagecodecs"
            )
        return cls(*(int(config[name]) for name in PARAMETERS))

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(*values)

    def to_zarr_v2(self) -> dict[str, Any]:
        parameters = {name: getattr(self, name) for name in PARAMETERS}
        return {"id": self.zarr_v2_id, "header": True, **parameters}

    @property
    def encoding(self) -> dict[str, Any]:
        coding = "nn" if self.options_mask & NEAREST_NEIGHBOUR else "ec"
        return {"szip": {"coding": coding, "pixels_per_block": self.pixels_per_block}}

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        # the header holds the decoded length (H5Zszip.c)
        size = int.from_bytes(data[:HEADER], "little")
        stream = bytes(data[HEADER:])
        try:
            demand_room(size, nbytes, len(data))
            if 0 < self.pixels_per_scanline <= LONGEST_SCANLINE and self._spare:
                return self._decode_padded(stream, size)
            return self._decode(stream, size, self)
        except (OverflowError, RuntimeError, ValueError) as error:
            raise CodecError(f"szip: {error}") from error

    @property
    def _spare(self) -> int:
        """Pixels that the encoder adds to each scanline, to fill whole blocks."""
        block = self.pixels_per_block
        return -self.pixels_per_scanline % block if 0 < block <= LARGEST_BLOCK else 0

    def _decode(self, stream: bytes, size: int, coded: Szip) -> memoryview:
        """Decode ``size`` bytes of a stream that was coded with these parameters."""
        imagecodecs = import_package("imagecodecs", "szip")
        parameters = {name: getattr(coded, name) for name in PARAMETERS}
        room = np.empty(size, np.uint8)
        found = imagecodecs.szip_decode(stream, header=False, out=room, **parameters)
        # where the stream ends early, the rest of the memory is not written
        check_length(self, len(found), size)
        return room.data

    def _decode_padded(self, stream: bytes, size: int) -> memoryview:
        """Decode scanlines that are longer in the stream than in the chunk.

        Where libaec drops the padding, it does not report a stream that ends early, and returns
        unwritten memory. So the padded scanlines are decoded, and cut here.
        """
        bits = self.bits_per_pixel
        # libaec codes numbers of 32 and 64 bits as bytes: first all first bytes, then all second
        planes = bits // 8 if bits in (32, 64) else 1
        width = 1 if planes > 1 or bits <= 8 else 2 if bits <= 16 else 4
        length = self.pixels_per_scanline + self._spare
        coded = replace(self, bits_per_pixel=8 if planes > 1 else bits, pixels_per_scanline=length)
        lines = -(-size // (self.pixels_per_scanline * width))
        whole = np.frombuffer(self._decode(stream, lines * length * width, coded), np.uint8)
        cut = whole.reshape(lines, length * width)[:, : self.pixels_per_scanline * width]
        found = cut.reshape(-1)[:size]
        out: memoryview = found.reshape(planes, -1).T.reshape(-1).data
        return out
