"""CRC32C: a checksum beside the data, verified whenever a chunk is read.

Zarr v3 ``crc32c`` (codec specification, version 1.0): four bytes, little-endian, behind the data.
Zarr v2 ``{"id": "crc32c", "location": "end"}``, which in numcodecs may also stand before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from virtualds.codec import Buffer, Codec, CodecError, check_length, needed_package


@dataclass(frozen=True)
class Crc32c(Codec):
    """Four bytes of checksum.

    Parameters
    ----------
    location : str
        ``end`` or ``start``: where they stand.
    """

    location: str = "end"

    zarr_v2_id: ClassVar[str] = "crc32c"
    zarr_v3_name: ClassVar[str | None] = "crc32c"

    def __post_init__(self) -> None:
        if self.location not in ("start", "end"):
            raise ValueError(f"crc32c: location {self.location!r} is neither start nor end")

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(config.get("location") or "end")

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, "location": self.location}

    def to_zarr_v3(self, itemsize: int) -> dict[str, Any]:
        if self.location == "end":
            return {"name": "crc32c"}
        return {"name": "numcodecs.crc32c", "configuration": {"location": self.location}}

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes + 4

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        google_crc32c = needed_package("google_crc32c", "crc32c")
        view = memoryview(data)
        if len(view) < 4:
            raise CodecError(f"crc32c: {len(view)} bytes cannot hold a checksum")
        behind = self.location == "end"
        body, checksum = (view[:-4], view[-4:]) if behind else (view[4:], view[:4])
        found, stored = google_crc32c.value(bytes(body)), int.from_bytes(checksum, "little")
        if found != stored:
            raise CodecError(f"crc32c: checksum {found:#010x}, the chunk says {stored:#010x}")
        check_length(self, len(body), nbytes)
        return body
