"""Pcodec: numbers in bins, after differences where these are smaller.

Zarr v2 id ``pcodec``, Zarr v3 name ``numcodecs.pcodec``. Streams are of pco's standalone format,
which names the type of its numbers, and ends with a mark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from virtualds.codec import Buffer, Codec, CodecError, check_length, needed_package


@dataclass(frozen=True)
class Pcodec(Codec):
    """A stream of pco's standalone format.

    Parameters
    ----------
    config : str
        The whole configuration, as JSON; only encoding needs it.
    """

    config: str = field(compare=False)

    zarr_v2_id: ClassVar[str] = "pcodec"

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(json.dumps(dict(config), sort_keys=True))

    def to_zarr_v2(self) -> dict[str, Any]:
        return dict(json.loads(self.config))

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
