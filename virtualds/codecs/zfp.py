"""ZFP, a codec for arrays of numbers.

HDF5 filter 32013, H5Z-ZFP, registered with The HDF Group; client data: versions, then the header of
the zfp stream in words of 32 bits, lowest first, which the chunks leave out. In Zarr a stream is
imagecodecs' ``imagecodecs_zfp``; a stream of HDF5, which lacks the header, is ``virtualds_zfp`` in
Zarr v2, ``virtualds.zfp`` in Zarr v3. numcodecs' ``zfpy`` is a stream that begins with its header.
Zarr v3 ``zfp``, registered in zarr-extensions, has no header: mode, type and shape come from the
metadata; in Zarr v2 that is ``virtualds_zfp_chunk``.

The header (``zfp_read_header`` of zfp 1.0, "full"): 8 bits each of ``zfp`` and the codec's version,
52 bits of type and shape, 12 bits of mode, and 52 more where these are all set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor, frexp, prod
from typing import Any, Literal, Self

import numpy as np

from virtualds.codecs.codec import (
    CONFIG_KEY,
    Codec,
    Json,
    SelfDescribingCodec,
    ShapedCodec,
    check_length,
)
from virtualds.errors import UnsupportedError
from virtualds.importing import import_package
from virtualds.streams import Buffer

MAGIC = int.from_bytes(b"zfp\x05", "little")
"""First bytes of a header; 5 is the codec version that zfp 0.5 to 1.0 write."""

SWAPPED_MAGIC = int.from_bytes(b"zfp\x05", "big")
"""The same bytes in the words of a big-endian machine."""

META_OFFSET, MODE_OFFSET, SHORT_HEADER_BITS = 32, 84, 96
"""The offsets in bits at which type and shape begin, the mode begins, and a short mode ends."""

LONG_MODE, LONG_MODE_BITS = 0xFFF, 52
"""The value of the short mode that precedes a long mode, and the bits of a long mode."""

MAX_RATE = 2048
"""Short modes below this value are the number of bits of a block, minus one."""

ITEMSIZES = (4, 8, 4, 8)
"""The size in bytes of the types by number: int32, int64, float32, float64."""

BLOCK_SIDE = 4
"""Elements of a block along every axis."""

HEADER_BYTES = 20
"""Length of the longest header."""

TYPES = {"<i4": 0, "<i8": 1, "<f4": 2, "<f8": 3}
"""The codes of types in a header."""

PROMOTED = {"|i1": "<i4", "|u1": "<i4", "<i2": "<i4", "<u2": "<i4", "<f2": "<f4"}
"""Types to which narrower types are converted for encoding."""

MAX_BITS, MAX_PLANES = 16658, 64
"""Maximum numbers of bits and bit planes of a block."""

MIN_EXPONENT, BIAS = -1074, 16495
"""The lowest exponent of a bit plane, at which all planes are kept; headers add the bias to it."""

Limits = tuple[int, int, int, int]
"""Limits of a block: minimum and maximum bits, maximum bit planes, exponent of the lowest plane."""


@dataclass(frozen=True)
class Zfp(Codec):
    """A zfp stream whose header is stored elsewhere.

    Parameters
    ----------
    header : tuple of int
        The header as 32-bit words, the least significant first. H5Z-ZFP on a big-endian machine
        writes these words, and the decoded values, in big-endian order.
    """

    header: tuple[int, ...]

    zarr_v2_id = "virtualds_zfp"
    hdf5_filter = 32013
    decode_errors = (RuntimeError, ValueError)

    def __post_init__(self) -> None:
        if self._bits & 0xFFFFFFFF != MAGIC or len(self.header) * 32 < self.length:
            raise UnsupportedError(
                f"zfp: {self.header} is not the header of a zfp stream of version 5; leave the "
                f"variable out with drop_variables"
            )

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(tuple(values[1:]))

    @property
    def _is_swapped(self) -> bool:
        """Whether a big-endian machine wrote the header."""
        return self.header[:1] == (SWAPPED_MAGIC,)

    @property
    def _bits(self) -> int:
        order: Literal["big", "little"] = "big" if self._is_swapped else "little"
        words = (word.to_bytes(4, order) for word in self.header)
        return int.from_bytes(b"".join(words), "little")

    @property
    def _mode(self) -> int:
        return self._bits >> MODE_OFFSET & LONG_MODE

    @property
    def length(self) -> int:
        """The length of the header in bits."""
        return SHORT_HEADER_BITS + LONG_MODE_BITS * (self._mode == LONG_MODE)

    @property
    def _min_block_bits(self) -> int:
        """Minimum number of bits of a block."""
        if self._mode == LONG_MODE:
            return (self._bits >> SHORT_HEADER_BITS & 0x7FFF) + 1
        return self._mode + 1 if self._mode < MAX_RATE else 1

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEMSIZES[self._bits >> META_OFFSET & 3]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a chunk without axes of length 1, from 48 bits with the lengths minus one."""
        rank = (self._bits >> META_OFFSET + 2 & 3) + 1
        bits_per_axis = 48 // rank
        lengths = self._bits >> META_OFFSET + 4
        return tuple(
            (lengths >> bits_per_axis * i & (1 << bits_per_axis) - 1) + 1
            for i in reversed(range(rank))
        )

    def compute_max_bytes(self, bits: int) -> int:
        """Return the maximum number of bytes that decoding a stream of ``bits`` bits may read.

        zfp reads as many bits as the blocks require, even past the end of the stream: at most every
        bit plane, a test per plane and element, and the exponent.
        """
        blocks = self.blocks
        if bits < blocks * self._min_block_bits:
            raise ValueError(f"{bits} bits for {blocks} blocks of {self._min_block_bits} bits")
        max_block_bits: int = max(
            self._min_block_bits, BLOCK_SIDE ** len(self.shape) * (8 * self.itemsize + 1) + 128
        )
        return max(-(-bits // 8), -(-blocks * max_block_bits // 8))

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return prod(-(-n // BLOCK_SIDE) for n in self.shape)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        return self.decode_padded(data, nbytes, b"\0")

    def decode_padded(self, data: Buffer, nbytes: int | None, padding: bytes) -> bytes:
        """Decode a stream that is padded with the byte ``padding``."""
        check_length(self, prod(self.shape) * self.itemsize, nbytes)
        max_bytes = self.compute_max_bytes(8 * len(data))
        return self.decode_whole(
            self._build_stream(bytes(data).ljust(max_bytes, padding), max_bytes)
        )

    def decode_whole(self, stream: bytes) -> bytes:
        """Decode a padded stream that begins with its header."""
        imagecodecs = import_package("imagecodecs", "zfp")
        out = imagecodecs.zfp_decode(stream)
        # as in h5py: numbers in the byte order of the writing machine, not of the dataset
        decoded: bytes = (out.byteswap() if self._is_swapped else out).tobytes()
        return decoded

    def _build_stream(self, data: Buffer, max_bytes: int) -> bytes:
        """Return a stream of up to ``max_bytes`` bytes behind its header, padded with zeros."""
        start, shift = divmod(self.length, 8)
        stream = np.zeros(start + 2 + max_bytes, np.uint8)
        body = np.frombuffer(data, np.uint8)
        stream[start : start + body.size] = body << shift
        if shift:
            stream[start + 1 : start + 1 + body.size] |= body >> (8 - shift)
        header = (self._bits & (1 << self.length) - 1).to_bytes(start + 1, "little")
        stream[: start + 1] |= np.frombuffer(header, np.uint8)
        return stream.tobytes()


@dataclass(frozen=True)
class Zfpy(SelfDescribingCodec):
    """A zfp stream that begins with its header.

    imagecodecs decodes it bit for bit as the package zfpy does.
    """

    zarr_v2_id = "zfpy"
    is_array_to_bytes = True
    decode_errors = Zfp.decode_errors

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        stream = bytes(data)
        words = np.frombuffer(stream[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"), "<u4")
        try:
            header = Zfp(tuple(words.tolist()))
        except UnsupportedError as error:
            raise ValueError(f"no header of a zfp stream: {stream[:HEADER_BYTES]!r}") from error
        check_length(self, prod(header.shape) * header.itemsize, nbytes)
        max_bytes = header.compute_max_bytes(8 * len(stream) - header.length)
        return header.decode_whole(stream.ljust(HEADER_BYTES + max_bytes, b"\0"))


# ---------------------------------------------------------------------- without a header


@dataclass(frozen=True)
class ZfpChunk(ShapedCodec):
    """A chunk as one zfp stream without a header."""

    # decoding depends on the configuration, so it is compared
    config: Json = field(metadata={CONFIG_KEY: "configuration"})

    zarr_v2_id = "virtualds_zfp_chunk"
    registered_name = "zfp"
    decode_errors = Zfp.decode_errors

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._encoded_dtype not in TYPES:
            raise UnsupportedError(
                f"codec 'zfp' of {np.dtype(self.dtype)}: no specification says how it becomes a "
                f"type of zfp; open the data with the library that wrote them"
            )
        if len(self.shape) > 4:
            raise ValueError(f"zfp: chunks of {self.shape} have more than 4 axes")
        bits_per_axis = 48 // max(len(self.shape), 1)
        if any(n > 1 << bits_per_axis for n in self.shape):
            raise UnsupportedError(
                f"codec 'zfp' of chunks of {self.shape}: axes of more than {1 << bits_per_axis} "
                f"elements are not decoded; open the data with the library that wrote them"
            )
        _check_limits(self._limits)

    @property
    def _encoded_dtype(self) -> str:
        return PROMOTED.get(self.dtype, self.dtype)

    @property
    def _zfp_shape(self) -> tuple[int, ...]:
        """The shape in zfp, in which every array has at least one axis."""
        return self.shape or (1,)

    @property
    def _limits(self) -> Limits:
        config = self.parameters
        names, make = MODES[config.pop("mode")]
        if config.keys() != set(names):
            raise ValueError(f"zfp: got {sorted(config)}, not {list(names)}")
        return make(self._encoded_dtype, len(self._zfp_shape), *(config[name] for name in names))

    @property
    def header(self) -> Zfp:
        """The header that the stream would have in another container."""
        min_bits, max_bits, planes, exponent = self._limits
        fields = [
            (MAGIC, 32),
            (TYPES[self._encoded_dtype], 2),
            (len(self._zfp_shape) - 1, 2),
            *((n - 1, 48 // len(self._zfp_shape)) for n in reversed(self._zfp_shape)),
            (LONG_MODE, 12),
            (max(min_bits, 1) - 1, 15),
            (min(max_bits, 1 << 15) - 1, 15),
            (planes - 1, 7),
            (max(exponent, MIN_EXPONENT - 1) + BIAS, 15),
        ]
        bits = shift = 0
        for value, width in fields:
            bits |= value << shift
            shift += width
        return Zfp(tuple(np.frombuffer(bits.to_bytes(HEADER_BYTES, "little"), "<u4").tolist()))

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        header, expected = self.header, prod(self.shape) * np.dtype(self.dtype).itemsize
        check_length(self, expected, nbytes)
        bits = header.blocks * self._limits[0]
        # streams end with a word of at most 64 bits
        if self._has_fixed_rate and not -(-bits // 8) <= len(data) <= -(-bits // 64) * 8:
            raise ValueError(
                f"{len(data)} bytes, not {header.blocks} blocks of {self._limits[0]} bits"
            )
        decoded = header.decode_padded(data, None, b"\0")
        # a truncated stream decodes without an error, to values that depend on the padding
        if not self._has_fixed_rate and decoded != header.decode_padded(data, None, b"\xff"):
            raise ValueError(f"{len(data)} bytes end before the last of its blocks does")
        return self._narrow(decoded)

    @property
    def _has_fixed_rate(self) -> bool:
        """Whether all blocks have the same number of bits."""
        min_bits, max_bits, *_ = self._limits
        return min_bits == max_bits

    def _narrow(self, data: bytes) -> bytes:
        dtype = np.dtype(self.dtype)
        if self.dtype not in PROMOTED:
            return data
        wide = np.frombuffer(data, np.dtype(self._encoded_dtype).newbyteorder("="))
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                return wide.astype(dtype).tobytes()
        bits, limits = 8 * dtype.itemsize, np.iinfo(dtype)
        lowest = 1 << (bits - 1) if dtype.kind == "u" else 0
        return ((wide >> (31 - bits)) + lowest).clip(limits.min, limits.max).astype(dtype).tobytes()


def _check_limits(limits: Limits) -> None:
    min_bits, max_bits, planes, exponent = limits
    if any(type(n) is not int for n in limits):
        raise ValueError(f"zfp: {limits} are not all integers")
    is_valid = 0 <= min_bits <= min(max_bits, 1 << 15) and max_bits > 0
    is_valid = is_valid and 0 < planes <= MAX_PLANES
    if not is_valid or exponent + BIAS >= 1 << 15:
        raise ValueError(
            f"zfp: blocks of {min_bits} to {max_bits} bits and {planes} planes down to {exponent}"
        )


def _make_rate_limits(dtype: str, rank: int, rate: float) -> Limits:
    # a block of floats contains at least its exponent
    min_bits = {"<f4": 9, "<f8": 12}.get(dtype, 0)
    bits = max(floor(BLOCK_SIDE**rank * _check_number(rate) + 0.5), min_bits)
    return bits, bits, MAX_PLANES, MIN_EXPONENT


def _make_precision_limits(dtype: str, rank: int, precision: int) -> Limits:
    planes = min(precision, MAX_PLANES) if precision else MAX_PLANES
    return 1, MAX_BITS, planes, MIN_EXPONENT


def _make_accuracy_limits(dtype: str, rank: int, tolerance: float) -> Limits:
    if dtype not in ("<f4", "<f8"):
        raise ValueError("zfp: integers have no fixed accuracy")
    exponent = frexp(tolerance)[1] - 1 if _check_number(tolerance) else MIN_EXPONENT
    return 1, MAX_BITS, MAX_PLANES, exponent


def _check_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**15:
        raise ValueError(f"zfp: {value!r} is neither a rate nor a tolerance")
    return value


MODES: dict[str, tuple[tuple[str, ...], Callable[..., Limits]]] = {
    "reversible": ((), lambda dtype, rank: (1, MAX_BITS, MAX_PLANES, MIN_EXPONENT - 1)),
    "expert": (
        ("minbits", "maxbits", "maxprec", "minexp"),
        lambda dtype, rank, minbits, maxbits, maxprec, minexp: (minbits, maxbits, maxprec, minexp),
    ),
    "fixed_rate": (("rate",), _make_rate_limits),
    "fixed_precision": (("precision",), _make_precision_limits),
    "fixed_accuracy": (("tolerance",), _make_accuracy_limits),
}
"""Modes of zfp by their names in the registry: parameters, and the limits that they set."""
