"""Pcodec, a codec for numbers.

Zarr v2 id ``pcodec``, Zarr v3 name ``numcodecs.pcodec``. Streams have pco's standalone format,
which holds the type of its numbers and ends with a mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from virtualds.bounds import Buffer, limit_decoded_size
from virtualds.codecs.codec import CodecError, SelfDescribing, check_length
from virtualds.extras import import_package

TYPES = ("f4", "f8", "i4", "i8", "i2", "u4", "u8", "u2", "f2", "i1", "u1")
"""Dtypes that a stream may have."""

OTHER_TYPE = "does not match"
"""Part of pco's error for memory of another dtype."""


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
    """Decode numbers of any type into memory of ``most`` bytes.

    The memory is taken here: pco would take as much as a stream asks for.
    """
    told = CodecError("pcodec: numbers of no type that is known")
    for name in TYPES:
        # one number more shows a stream that is too long
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
