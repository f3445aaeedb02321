"""Szip: the entropy coder of CCSDS 121.0-B, as HDF5 uses it.

HDF5 filter 4, "szip"; client data: options mask, pixels per block, bits per pixel, pixels per
scanline (HDF5 file format, IV.A.2.l). A chunk begins with its decoded length, four bytes. In Zarr
it has the name that imagecodecs gives it, ``imagecodecs_szip``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.codec import Buffer, Codec, CodecError, check_length, needed_package
from virtualds.decompressors import demand_room

PARAMETERS = ("options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline")
HEADER = 4
NEAREST_NEIGHBOUR = 32
"""Bit of the options mask for nearest-neighbour preprocessing; without it, entropy coding alone."""


@dataclass(frozen=True)
class Szip(Codec):
    """Szip with the parameters of its HDF5 filter."""

    options_mask: int
    pixels_per_block: int
    bits_per_pixel: int
    pixels_per_scanline: int

    zarr_v2_id: ClassVar[str] = "imagecodecs_szip"
    zarr_v3_name: ClassVar[str | None] = "imagecodecs_szip"

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
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
        imagecodecs = needed_package("imagecodecs", "szip")
        parameters = {name: getattr(self, name) for name in PARAMETERS}
        # a header of its own says how many bytes there will be (H5Zszip.c)
        size = int.from_bytes(data[:HEADER], "little")
        try:
            demand_room(size, nbytes, len(data))
            room = np.empty(size, np.uint8)
            found = imagecodecs.szip_decode(
                bytes(data[HEADER:]), header=False, out=room, **parameters
            )
        except (OverflowError, RuntimeError, ValueError) as error:
            raise CodecError(f"szip: {error}") from error
        # where the stream ends early, the rest of the memory is as it was
        check_length(self, len(found), size)
        return room.data
