"""Codecs that numcodecs decodes as fast as anything: zstd, lz4, Blosc and their like.

Zarr v2 ids as listed; Zarr v3 names are ``numcodecs.<id>``, or the bare id where it is registered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

from virtualds.codec import Buffer, Codec, CodecError, check_length

NUMCODECS_IDS = frozenset({"zstd", "lz4", "blosc", "bz2", "lzma", "delta", "fixedscaleoffset"})


@dataclass(frozen=True, slots=True)
class Numcodecs(Codec):
    """A codec of numcodecs, held as its canonical JSON configuration."""

    config: str

    zarr_v2_id: ClassVar[str] = "numcodecs"

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(json.dumps(dict(config), sort_keys=True))

    def to_zarr_v2(self) -> dict[str, Any]:
        return dict(json.loads(self.config))

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        try:
            out = memoryview(_instance(self.config).decode(data)).cast("B")
        except (RuntimeError, ValueError, OSError, EOFError) as error:
            raise CodecError(f"{json.loads(self.config)['id']}: {error}") from error
        check_length(self, len(out), nbytes)
        return out


@cache
def _instance(config: str) -> Any:
    import numcodecs

    return numcodecs.get_codec(json.loads(config))
