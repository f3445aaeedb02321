"""Deflate in its two wrappings.

- zlib (RFC 1950): Zarr v2 ``{"id": "zlib", "level": 1}``; Zarr v3 ``numcodecs.zlib``; HDF5
  filter 1, "deflate" (HDF5 file format, IV.A.2.l).
- gzip (RFC 1952): Zarr v2 ``{"id": "gzip", "level": 1}``; Zarr v3 ``gzip``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

from virtualds.codec import Buffer, Bytes, Codec, CodecError, check_length
from virtualds.decompressors import inflater, one_stream, streamed
from virtualds.libdeflate import libdeflate


@dataclass(frozen=True)
class Zlib(Codec):
    """A zlib stream (RFC 1950)."""

    level: int = field(default=1, compare=False)

    zarr_v2_id: ClassVar[str] = "zlib"
    hdf5_filter: ClassVar[int | None] = 1
    tiff_compressions: ClassVar[tuple[int, ...]] = (8, 32946)

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(int(config.get("level", 1)))

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(values[0] if values else 1)

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, "level": self.level}

    @property
    def encoding(self) -> dict[str, Any]:
        return {"zlib": True, "complevel": self.level}

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if nbytes is None:
            return self._decode_slowly(data, nbytes)
        fast = inflater()
        try:
            out = fast.zlib(data, nbytes)
        except fast.damage:
            return self._decode_slowly(data, nbytes)
        # libdeflate accepts a stream that is shorter than announced
        return out if len(out) == nbytes else self._decode_slowly(data, nbytes)

    @property
    def fills(self) -> bool:
        return libdeflate() is not None

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        library = libdeflate()
        if not (library and library.zlib_into(data, out)):
            super().decode_into(data, out)

    def _decode_slowly(self, data: Buffer, nbytes: int | None) -> bytes:
        """Inflate with the standard library, whose messages say what is wrong."""
        try:
            out = one_stream(zlib.decompressobj(), data, nbytes)
        except (zlib.error, ValueError, EOFError) as error:
            raise CodecError(f"zlib: {error}") from error
        check_length(self, len(out), nbytes)
        return out


@dataclass(frozen=True)
class Gzip(Codec):
    """One or more gzip members (RFC 1952)."""

    level: int = field(default=1, compare=False)

    zarr_v2_id: ClassVar[str] = "gzip"
    zarr_v3_name: ClassVar[str | None] = "gzip"

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(int(config.get("level", 1)))

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, "level": self.level}

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if nbytes is None or not _is_one_member(data, nbytes):
            return self._decode_members(data, nbytes)
        fast = inflater()
        try:
            out = fast.gzip(data, nbytes)
        except fast.damage:
            return self._decode_members(data, nbytes)
        return out if len(out) == nbytes else self._decode_members(data, nbytes)

    @property
    def fills(self) -> bool:
        return libdeflate() is not None

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        library = libdeflate()
        is_filled = library and _is_one_member(data, out.size) and library.gzip_into(data, out)
        if not is_filled:
            super().decode_into(data, out)

    def _decode_members(self, data: Buffer, nbytes: int | None) -> bytes:
        """Inflate member by member with the standard library, which says where each one ends."""
        try:
            out = streamed(partial(zlib.decompressobj, wbits=31), data, nbytes)
        except (zlib.error, ValueError, EOFError) as error:
            raise CodecError(f"gzip: {error}") from error
        check_length(self, len(out), nbytes)
        return out


def _is_one_member(data: Buffer, nbytes: int) -> bool:
    """Say whether the last four bytes, the length of the last member, are that of all of it."""
    return int.from_bytes(data[-4:], "little") == nbytes % 2**32
