"""Pcodec: numbers in bins, after differences where these are smaller.

Zarr v2 id ``pcodec``, Zarr v3 name ``numcodecs.pcodec``. Streams are of pco's standalone format,
which names the type of its numbers, and ends with a mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from virtualds.bounds import Buffer, limit_decoded_size
from virtualds.codecs.codec import CodecError, SelfDescribing, check_length, import_package

TYPES = ("f4", "f8", "i4", "i8", "i2", "u4", "u8", "u2", "f2", "i1", "u1")
"""What numbers of a stream may be."""
OTHER_TYPE = "does not match"
"""What pco says of memory for numbers of another type."""


@dataclass(frozen=True)
class Pcodec(SelfDescribing):
    """A stream of pco's standalone format."""

    zarr_v2_id: ClassVar[str] = "pcodec"
    serialises: ClassVar[bool] = True

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        standalone = import_package("pcodec", "pcodec").standalone
        found = _decode_numbers(
            standalone, bytes(data), limit_decoded_size(len(data)) if nbytes is None else nbytes
        )
        check_length(self, len(found), nbytes)
        return found


def _decode_numbers(standalone: Any, data: bytes, most: int) -> bytes:
    """Decode numbers of whichever type they are into memory for ``most`` bytes of them.

    Asked for new memory, pco takes as much as a stream says.
    """
    told = CodecError("pcodec: numbers of no type that is known")
    for name in TYPES:
        # one number more, so that what is longer shows
        room = np.empty(most // np.dtype(name).itemsize + 1, name)
        try:
            progress = standalone.simple_decompress_into(data, room)
        except RuntimeError as error:
            if OTHER_TYPE not in str(error):
                told = CodecError(f"pcodec: {error}")
            continue
        found = room[: progress.n_processed].tobytes()
        if not progress.finished or len(found) > most:
            raise CodecError(f"pcodec: {len(data)} bytes decode to more than {most}")
        return found
    raise told
