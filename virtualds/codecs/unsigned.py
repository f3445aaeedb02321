"""Unsigned integers stored as signed ones in FITS, which has no unsigned types.

FITS Standard 4.0, section 4.4.2.5, table 11: ``BZERO`` is 2**(bits - 1) (-128 for signed bytes).
Adding it flips the highest bit. Zarr has no name for that; here it is ``virtualds_sign_flip`` in
Zarr v2, with a dot in Zarr v3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.codec import Codec, CodecError, check_length


@dataclass(frozen=True)
class SignFlip(Codec):
    """Big-endian integers whose highest bit is flipped.

    Parameters
    ----------
    elementsize : int
        Bytes per integer.
    """

    elementsize: int

    zarr_v2_id: ClassVar[str] = "virtualds_sign_flip"
    only_virtualds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.elementsize < 1:
            raise ValueError(f"sign_flip: integers of {self.elementsize} bytes; give at least 1")

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        check_length(self, len(data), nbytes)
        if len(data) % self.elementsize:
            raise CodecError(f"sign_flip: {len(data)} bytes are not integers of {self.elementsize}")
        out = np.array(np.frombuffer(data, np.uint8))
        out[:: self.elementsize] ^= 0x80
        return out.data
