"""Pcodec: numbers in bins, after differences where these are smaller.

Zarr v2 id ``pcodec``, Zarr v3 name ``numcodecs.pcodec``. Streams are of pco's standalone format,
which names the type of its numbers, and ends with a mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtualds.codec import Buffer, CodecError, SelfDescribing, check_length, needed_package


@dataclass(frozen=True)
class Pcodec(SelfDescribing):
    """A stream of pco's standalone format."""

    zarr_v2_id: ClassVar[str] = "pcodec"

    @property
    def serialises(self) -> bool:
        return True

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        standalone = needed_package("pcodec", "pcodec").standalone
        try:
            numbers = standalone.simple_decompress(bytes(data))
        except RuntimeError as error:
            raise CodecError(f"pcodec: {error}") from error
        # a stream of no numbers names no type
        found: bytes = b"" if numbers is None else numbers.tobytes()
        check_length(self, len(found), nbytes)
        return found
