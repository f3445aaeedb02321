"""ZFP: blocks of four to the power of the rank, transformed and cut off by bit planes.

HDF5 filter 32013, H5Z-ZFP, registered with The HDF Group; client data: versions, then the header of
the zfp stream in words of 32 bits, lowest first, which the chunks leave out. In Zarr streams have
the name that imagecodecs gives them, ``imagecodecs_zfp``, but those of HDF5 lack the header, so
that they have a name of their own: ``virtualds_zfp`` in Zarr v2, ``virtualds.zfp`` in Zarr v3. What
numcodecs calls ``zfpy`` are streams with their header in front.

The header (``zfp_read_header`` of zfp 1.0, "full"): 8 bits each of ``zfp`` and the codec's version,
52 bits of type and shape, 12 bits of mode, and 52 more where these are all set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.codec import Buffer, Codec, CodecError, SelfDescribing, check_length, needed_package
from virtualds.errors import UnsupportedError

MAGIC = int.from_bytes(b"zfp\x05", "little")
"""What a header begins with; 5 is the version of the codec that zfp 0.5 to 1.0 write."""
META, MODE, BEHIND = 32, 84, 96
"""Where type and shape begin, where the mode does, and what follows a short one, in bits."""
LONG_MODE, LONG = 0xFFF, 52
"""The mode that says that more of it follows, and how many bits."""
RATES = 2048
"""Modes below it say how many bits a block takes, less one."""
ITEMSIZES = (4, 8, 4, 8)
"""Of the types by their number: int32, int64, float32, float64."""
SIDE = 4
"""Elements of a block along every axis."""
HEADER = 20
"""Bytes that hold the longest header."""


@dataclass(frozen=True)
class Zfp(Codec):
    """A zfp stream whose header is kept elsewhere.

    Parameters
    ----------
    header : tuple of int
        Words of 32 bits, lowest first.
    """

    header: tuple[int, ...]

    zarr_v2_id: ClassVar[str] = "virtualds_zfp"
    only_virtualds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self._bits & 0xFFFFFFFF != MAGIC or len(self.header) * 32 < self.length:
            raise UnsupportedError(
                f"zfp: {self.header} is no header of a zfp stream of version 5; leave the "
                f"variable out with drop_variables"
            )

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(tuple(int(word) for word in config["header"]))

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(tuple(values[1:]))

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, "header": list(self.header)}

    @property
    def _bits(self) -> int:
        return sum(word << 32 * i for i, word in enumerate(self.header))

    @property
    def _mode(self) -> int:
        return self._bits >> MODE & LONG_MODE

    @property
    def length(self) -> int:
        """The length of the header in bits."""
        return BEHIND + LONG * (self._mode == LONG_MODE)

    @property
    def _fewest(self) -> int:
        """How many bits a block takes at least."""
        if self._mode == LONG_MODE:
            return (self._bits >> BEHIND & 0x7FFF) + 1
        return self._mode + 1 if self._mode < RATES else 1

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEMSIZES[self._bits >> META & 3]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a chunk, without axes of one element; 48 bits hold the lengths less one."""
        rank = (self._bits >> META + 2 & 3) + 1
        each = 48 // rank
        lengths = self._bits >> META + 4
        return tuple((lengths >> each * i & (1 << each) - 1) + 1 for i in reversed(range(rank)))

    def room(self, bits: int) -> int:
        """Return how many bytes blocks ask for at most, of which there are so many bits.

        zfp reads as many bits as the blocks ask for, wherever the stream ends. At most these are
        every bit plane, a test per plane and element, and the exponent.
        """
        blocks = prod(-(-n // SIDE) for n in self.shape)
        if bits < blocks * self._fewest:
            raise CodecError(f"zfp: {bits} bits for {blocks} blocks of {self._fewest} bits")
        most: int = max(self._fewest, SIDE ** len(self.shape) * (8 * self.itemsize + 1) + 128)
        return max(-(-bits // 8), -(-blocks * most // 8))

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        check_length(self, prod(self.shape) * self.itemsize, nbytes)
        return self.decode_whole(self._stream(data, self.room(8 * len(data))), nbytes)

    def decode_whole(self, stream: bytes, nbytes: int | None) -> bytes:
        """Return the decoded bytes of a stream with its header, and zeros behind it."""
        imagecodecs = needed_package("imagecodecs", "zfp")
        try:
            out = imagecodecs.zfp_decode(stream)
        except (RuntimeError, ValueError) as error:
            raise CodecError(f"zfp: {error}") from error
        # h5py reads the numbers of the machine that wrote, whatever the type of the dataset says
        found: bytes = out.tobytes()
        check_length(self, len(found), nbytes)
        return found

    def _stream(self, data: Buffer, room: int) -> bytes:
        """Return a stream with its header, and with zeros behind it."""
        start, shift = divmod(self.length, 8)
        stream = np.zeros(start + 2 + room, np.uint8)
        body = np.frombuffer(data, np.uint8)
        stream[start : start + body.size] = body << shift
        if shift:
            stream[start + 1 : start + 1 + body.size] |= body >> (8 - shift)
        known = (self._bits & (1 << self.length) - 1).to_bytes(start + 1, "little")
        stream[: start + 1] |= np.frombuffer(known, np.uint8)
        return stream.tobytes()


@dataclass(frozen=True)
class Zfpy(SelfDescribing):
    """A zfp stream that begins with its header.

    It is decoded by imagecodecs, as that of HDF5 is, bit for bit as the package zfpy does.
    """

    zarr_v2_id: ClassVar[str] = "zfpy"

    @property
    def serialises(self) -> bool:
        return True

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        stream = bytes(data)
        words = np.frombuffer(stream[:HEADER].ljust(HEADER, b"\0"), "<u4")
        try:
            header = Zfp(tuple(words.tolist()))
        except UnsupportedError as error:
            raise CodecError(f"zfpy: no header of a zfp stream: {stream[:HEADER]!r}") from error
        check_length(self, prod(header.shape) * header.itemsize, nbytes)
        room = header.room(8 * len(stream) - header.length)
        return header.decode_whole(stream.ljust(HEADER + room, b"\0"), nbytes)
