"""The filters of HDF5, and the compressions of HDF4, that have no codec of their own in Zarr.

- shuffle: the first bytes of all elements, then the second bytes, and so on. Zarr v2
  ``{"id": "shuffle", "elementsize": 4}``; Zarr v3 ``numcodecs.shuffle``; HDF5 filter 2; client
  data: element size.
- LZF, the compressor of h5py: HDF5 filter 32000; client data: revision of the filter, version of
  LibLZF, bytes of a chunk. In Zarr it is imagecodecs' ``imagecodecs_lzf``, without imagecodecs'
  header.
- szip, the entropy coder of CCSDS 121.0-B: HDF5 filter 4; client data: options mask, pixels per
  block, bits per pixel, pixels per scanline. A chunk begins with its decoded length, four bytes. In
  Zarr it is imagecodecs' ``imagecodecs_szip``.
- nbit: HDF5 filter 5; client data: number of values, flag "nothing to pack", elements in a chunk,
  class, then for an atomic type size, byte order, precision, offset.
- scaleoffset: HDF5 filter 6; client data: scale type, scale factor, elements in a chunk, class,
  size, sign, byte order, flag "has a fill value", fill value in words of 32 bits, lowest first.

The HDF5 file format, IV.A.2.l, names the filters below 256; ``H5Znbit.c`` and ``H5Zscaleoffset.c``
define the last two: the bits of the elements in order, most significant first, without a gap.

HDF4 has run-length, skipping Huffman and n-bit (HDF Specification and Developer's Guide, HDF 4.2,
section 10.6, "compressed elements"). In Zarr, only our names for these, nbit and scaleoffset exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from virtualds.codecs.codec import CONFIG_KEY, Codec, check_length
from virtualds.codecs.numcodecs import MAX_BLOSC_BYTES, STORED_BYTES, unshuffle_stored
from virtualds.errors import UnsupportedError
from virtualds.importing import import_package
from virtualds.streams import Buffer, Bytes, check_decoded_size, limit_decoded_size

Unshuffle = Callable[[Buffer, Bytes, int], None]

ZLIB_INTO_ITEMSIZES = (2, 4, 8)
"""Element sizes that zlib-into unshuffles."""

FAST_BLOSC_ITEMSIZES = (2, 4, 8, 16)
"""Element sizes for which Blosc has fast code; it unshuffles others byte by byte."""

MIN_BLOSC_BYTES = 2**15
"""Minimum number of bytes for which Blosc is faster than numpy, despite the cost of a call."""

MIN_TRANSPOSED_SIZE = 8
"""Minimum element size for which transposing few bytes is faster than copying byte planes."""


@dataclass(frozen=True)
class Shuffle(Codec):
    """Elements whose bytes of the same significance are grouped; trailing bytes stay in place."""

    itemsize: int = field(default=4, metadata={CONFIG_KEY: "elementsize"})

    zarr_v2_id = "shuffle"
    hdf5_filter = 2
    is_filter = True
    added_bytes = 0

    def __post_init__(self) -> None:
        if self.itemsize < 1:
            raise ValueError(f"shuffle: elements of {self.itemsize} bytes; give at least 1")

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(values[0] if values else itemsize)

    @classmethod
    def from_zarr_v3(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        size = config.get("elementsize")
        return cls(dtype.itemsize if size is None else int(size))

    @property
    def encoding(self) -> dict[str, Any]:
        return {"shuffle": True}

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if self.itemsize == 1:
            return data
        out = np.empty(len(data), np.uint8)
        self.decode_into(data, out)
        return out.data

    @property
    def fills_output(self) -> bool:
        return self.itemsize > 1

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        check_length(self, len(data), out.size)
        tail = len(data) % self.itemsize
        if tail:
            source = memoryview(data)
            out[-tail:] = np.frombuffer(source[-tail:], np.uint8)
            data, out = source[:-tail], out[:-tail]
        if len(data):
            _find_unshuffle(self.itemsize)(data, out, self.itemsize)


@cache
def _find_unshuffle(itemsize: int) -> Unshuffle:
    """Return zlib-into's unshuffle if it is installed, otherwise `unshuffle_portably`."""
    if itemsize not in ZLIB_INTO_ITEMSIZES:
        return unshuffle_portably
    try:
        from zlib_into import unshuffle
    except ImportError:
        return unshuffle_portably
    return lambda data, out, itemsize: unshuffle(data, out.data, itemsize)


def unshuffle_portably(data: Buffer, out: Bytes, itemsize: int) -> None:
    """Unshuffle with NumPy or, for longer chunks, with Blosc; both are always installed."""
    if itemsize in FAST_BLOSC_ITEMSIZES and MIN_BLOSC_BYTES <= len(data) <= MAX_BLOSC_BYTES:
        unshuffle_stored(data, out, itemsize, len(data), STORED_BYTES)
    elif itemsize < MIN_TRANSPOSED_SIZE or len(data) >= MIN_BLOSC_BYTES:
        unshuffle_by_planes(data, out, itemsize)
    else:
        planes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
        np.copyto(out.reshape(-1, itemsize), planes.T)


def unshuffle_by_planes(data: Buffer, out: Bytes, itemsize: int) -> None:
    """Unshuffle one byte plane after the other, which needs the fewest memory accesses."""
    planes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
    elements = out.reshape(-1, itemsize)
    for rank in range(itemsize):
        elements[:, rank] = planes[rank]


# ---------------------------------------------------------------------- lzf

MAX_EXPANSION = 140
"""Limit for the ratio of decoded to encoded length, which is at most 264 to 3."""


@dataclass(frozen=True)
class Lzf(Codec):
    """An LZF stream, which does not contain its decoded length."""

    zarr_v2_id = "imagecodecs_lzf"
    zarr_v3_name = "imagecodecs_lzf"
    hdf5_filter = 32000
    decode_errors = (RuntimeError, ValueError)

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        if config.get("header", True):
            raise UnsupportedError(
                "imagecodecs_lzf: streams with the header of imagecodecs (header: true) are not "
                "decoded; open the data with zarr-python"
            )
        return cls()

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls()

    def to_zarr_v2(self) -> dict[str, Any]:
        return {**super().to_zarr_v2(), "header": False}

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "lzf")
        if not len(data):
            # the decoder reads the first byte before it checks the length
            raise ValueError("there are no bytes")
        max_bytes = MAX_EXPANSION * len(data) if nbytes is None else nbytes
        return bytes(imagecodecs.lzf_decode(data, header=False, out=max_bytes))


# ---------------------------------------------------------------------- szip

SZIP_HEADER = 4
"""The size in bytes of the decoded length before a stream."""

NEAREST_NEIGHBOUR = 32
"""Bit of the options mask for nearest-neighbour preprocessing; without it, only entropy coding."""

MAX_SCANLINE = 4096
"""Maximum number of pixels of a scanline (SZ_MAX_PIXELS_PER_SCANLINE of szlib.h)."""

MAX_BLOCK = 64
"""Maximum number of pixels of a block (in libaec; 32 in szlib)."""


@dataclass(frozen=True)
class Szip(Codec):
    """Szip with the parameters of its HDF5 filter."""

    options_mask: int
    pixels_per_block: int
    bits_per_pixel: int
    pixels_per_scanline: int

    zarr_v2_id = "imagecodecs_szip"
    zarr_v3_name = "imagecodecs_szip"
    hdf5_filter = 4
    decode_errors = (OverflowError, RuntimeError, ValueError)

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        if not config.get("header", True):
            raise UnsupportedError(
                f"{cls.zarr_v2_id}: chunks that do not begin with their decoded length are not "
                f"decoded; open the data with zarr-python and imagecodecs"
            )
        return super().from_zarr_v2(config)

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(*values)

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, "header": True} | super().to_zarr_v2()

    @property
    def encoding(self) -> dict[str, Any]:
        coding = "nn" if self.options_mask & NEAREST_NEIGHBOUR else "ec"
        return {"szip": {"coding": coding, "pixels_per_block": self.pixels_per_block}}

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        # the header contains the decoded length (H5Zszip.c)
        size = int.from_bytes(data[:SZIP_HEADER], "little")
        stream = bytes(data[SZIP_HEADER:])
        check_decoded_size(size, nbytes, len(data))
        if 0 < self.pixels_per_scanline <= MAX_SCANLINE and self._padding:
            return self._decode_padded(stream, size)
        return self._decode_plain(stream, size, self)

    @property
    def _padding(self) -> int:
        """Pixels that the encoder adds to each scanline, to fill whole blocks."""
        block = self.pixels_per_block
        return -self.pixels_per_scanline % block if 0 < block <= MAX_BLOCK else 0

    def _decode_plain(self, stream: bytes, size: int, parameters: Szip) -> memoryview:
        """Decode a stream to ``size`` bytes with the given parameters."""
        imagecodecs = import_package("imagecodecs", "szip")
        out = np.empty(size, np.uint8)
        decoded = imagecodecs.szip_decode(stream, header=False, out=out, **asdict(parameters))
        # if the stream ends early, libaec leaves the end of the buffer unwritten
        check_length(self, len(decoded), size)
        return out.data

    def _decode_padded(self, stream: bytes, size: int) -> memoryview:
        """Decode scanlines that are longer in the stream than in the chunk.

        If libaec drops the padding, it does not report a stream that ends early, and returns
        unwritten memory. So the padded scanlines are decoded, and truncated here.
        """
        bits = self.bits_per_pixel
        # libaec codes numbers of 32 and 64 bits as bytes: first all first bytes, then all second
        planes = bits // 8 if bits in (32, 64) else 1
        width = 1 if planes > 1 or bits <= 8 else 2 if bits <= 16 else 4
        length = self.pixels_per_scanline + self._padding
        parameters = replace(
            self, bits_per_pixel=8 if planes > 1 else bits, pixels_per_scanline=length
        )
        lines = -(-size // (self.pixels_per_scanline * width))
        padded = np.frombuffer(
            self._decode_plain(stream, lines * length * width, parameters), np.uint8
        )
        cut = padded.reshape(lines, length * width)[:, : self.pixels_per_scanline * width]
        trimmed = cut.reshape(-1)[:size]
        out: memoryview = trimmed.reshape(planes, -1).T.reshape(-1).data
        return out


# ---------------------------------------------------------------------- hdf5 nbit

Unsigned = npt.NDArray[np.unsignedinteger[Any]]

ATOMIC = 1
"""Class of nbit's client data; arrays are 2, compounds 3."""

FLOAT = 1
"""Class of scaleoffset's client data for floats; integers are 0."""

BY_DECIMALS, BY_BITS = 0, 2
"""Scale types: decimal digits kept of floats, bits of integers."""

SCALEOFFSET_HEADER = 21
"""Size in bytes of scaleoffset's header: 4 for the bits per element, 1 for the size of the minimum,
16 for the minimum."""

ITEMSIZES = (1, 2, 4, 8)
"""The supported element sizes in bytes."""

ROWS_PER_BATCH = 8192
"""Number of rows of eight numbers that are unpacked at a time, to fit into the CPU's cache."""

MAX_WORD_BYTES = 8
"""Size in bytes of the longest word with which bits are read."""


@dataclass(frozen=True)
class Nbit(Codec):
    """The significant bits of integers or floats; the others are zero.

    Decoding returns the elements in the layout of their HDF5 type, neither shifted nor
    sign-extended.

    Parameters
    ----------
    dtype : str
        Unsigned integers of the size and byte order of the elements.
    precision, offset : int
        Number of significant bits, and of the bits below them. If all bits are significant, the
        elements are not packed.
    elements : int
        Elements per chunk.
    """

    dtype: str
    precision: int
    offset: int
    elements: int

    zarr_v2_id = "virtualds_nbit"
    hdf5_filter = 5

    def __post_init__(self) -> None:
        dtype = np.dtype(self.dtype)
        if dtype.kind != "u":
            raise ValueError(f"elements of {dtype} are not unsigned integers")
        bits = 8 * dtype.itemsize
        if not (0 < self.precision <= bits - self.offset and self.offset >= 0):
            raise UnsupportedError(
                f"nbit: {self.precision} bits above {self.offset} do not fit into {bits}; "
                f"leave the variable out with drop_variables"
            )

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        if len(values) >= 3 and values[1] and itemsize in ITEMSIZES:
            return cls(f"<u{itemsize}", 8 * itemsize, 0, values[2])
        if len(values) < 8 or values[3] != ATOMIC or values[4] not in ITEMSIZES or values[5] > 1:
            raise UnsupportedError(
                f"HDF5 filter 5 (nbit) of an element of {itemsize} bytes with client data "
                f"{tuple(values)}: only integers and floats of {ITEMSIZES} bytes are unpacked, no "
                f"compounds or arrays; leave the variable out with drop_variables"
            )
        return cls(f"{'<>'[values[5]]}u{values[4]}", values[6], values[7], values[2])

    @property
    def _has_all_bits(self) -> bool:
        return self.precision == 8 * np.dtype(self.dtype).itemsize

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes if self._has_all_bits else None

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if self._has_all_bits:
            return data
        dtype = np.dtype(self.dtype)
        check_length(self, self.elements * dtype.itemsize, nbytes)
        numbers = unpack_bits(data, self.elements, self.precision, dtype.itemsize)
        numbers <<= self.offset
        # without a copy if the byte order is native
        return numbers.astype(dtype, copy=False).view(np.uint8).data


@dataclass(frozen=True)
class ScaleOffset(Codec):
    """Differences from a minimum: of integers, or of floats multiplied by a power of ten.

    Parameters
    ----------
    dtype : str
        Dtype of the elements.
    factor : int
        Decimal digits kept of floats; bits of integers, 0 if each chunk has its own number.
    elements : int
        Elements per chunk.
    fill : int or None
        The bits of the fill value, which is stored as the highest difference, or None.
    """

    dtype: str
    factor: int
    elements: int
    fill: int | None

    zarr_v2_id = "virtualds_scaleoffset"
    hdf5_filter = 6

    def __post_init__(self) -> None:
        dtype = np.dtype(self.dtype)
        if dtype.kind not in "iuf" or dtype.itemsize not in ITEMSIZES or self.elements < 0:
            raise ValueError(f"{self.elements} elements of {dtype} cannot be scaled")
        if self.fill is not None and not 0 <= self.fill < 1 << 8 * dtype.itemsize:
            raise ValueError(f"the bits of the fill value, {self.fill}, are out of bounds")

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        if len(values) != 20 or _find_dtype_kind(values) is None or values[6] > 1:
            raise UnsupportedError(
                f"HDF5 filter 6 (scaleoffset) with client data {tuple(values)}: only integers of "
                f"{ITEMSIZES} bytes and floats of 4 or 8 are decoded; leave the variable out with "
                "drop_variables"
            )
        factor = values[1] - (values[1] >> 31 << 32)
        fill = (values[8] | values[9] << 32) % (1 << 8 * values[4]) if values[7] else None
        return cls(
            f"{'<>'[values[6]]}{_find_dtype_kind(values)}{values[4]}", factor, values[2], fill
        )

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        dtype = np.dtype(self.dtype)
        size = self.elements * dtype.itemsize
        check_length(self, size, nbytes)
        if dtype.kind != "f" and self.factor == 8 * dtype.itemsize:
            check_length(self, len(data), size)
            return data
        view = memoryview(data)
        bits, minimum = self._read_header(view, dtype.itemsize)
        packed = view[SCALEOFFSET_HEADER:]
        if bits == 8 * dtype.itemsize:
            # HDF5 stores numbers without unused bits in little-endian order
            if len(packed) < size:
                raise ValueError(
                    f"{len(packed)} bytes are too few for {self.elements} numbers of "
                    f"{dtype.itemsize} bytes"
                )
            numbers: Unsigned = np.frombuffer(packed, f"<u{dtype.itemsize}", self.elements)
        else:
            numbers = unpack_bits(packed, self.elements, bits, dtype.itemsize)
            numbers = self._restore(numbers, bits, minimum, dtype)
        # without a copy if the byte order is native
        stored = np.dtype(f"u{dtype.itemsize}").newbyteorder(dtype.byteorder)
        return numbers.astype(stored, copy=False).view(np.uint8).data

    def _read_header(self, data: memoryview, itemsize: int) -> tuple[int, Unsigned]:
        """Return the number of bits per element, and the bits of the minimum as an array of one."""
        if len(data) < SCALEOFFSET_HEADER:
            raise ValueError(f"{len(data)} bytes are too few for a header of {SCALEOFFSET_HEADER}")
        bits = int.from_bytes(data[:4], "little")
        if bits > 8 * itemsize:
            raise ValueError(f"{bits} bits for elements of {itemsize} bytes")
        minimum = bytes(data[5 : 5 + min(data[4], 8)]).ljust(8, b"\0")
        return bits, np.frombuffer(minimum[:itemsize], f"<u{itemsize}").astype(f"u{itemsize}")

    def _restore(
        self, differences: Unsigned, bits: int, minimum: Unsigned, dtype: np.dtype[Any]
    ) -> Unsigned:
        """Convert differences from the minimum to the bits of the elements; may overwrite them."""
        is_fill = differences == (1 << bits) - 1
        if dtype.kind == "f":
            native = dtype.newbyteorder("=")
            # HDF5 computes in the precision of the elements; damaged bytes may be NaN or infinity
            with np.errstate(all="ignore"):
                values = differences.view(f"i{dtype.itemsize}").astype(native)
                values /= np.float64(_compute_power_of_ten(self.factor)).astype(native)
                values += minimum.view(native)
            differences = values.view(differences.dtype)
        else:
            differences += minimum
        if self.fill is not None:
            differences[is_fill] = self.fill
        return differences


def unpack_bits(data: Buffer, count: int, bits: int, itemsize: int) -> Unsigned:
    """Return the numbers in a stream of bits that has ``bits`` bits per number.

    Eight numbers take ``bits`` bytes and form a row of a table, in which the numbers of one column
    begin at the same bit of their rows. The stream is copied once, so that a word can be read at
    its end.

    Raises `ValueError` if the stream is too short.

    Parameters
    ----------
    data : buffer
        The stream, most significant bit first; bytes after the numbers are ignored.
    count : int
        Number of numbers.
    bits : int
        Bits per number, from 0 to ``8 * itemsize``.
    itemsize : int
        The size in bytes of each returned number.

    Examples
    --------
    >>> unpack_bits(bytes([0x12, 0x34, 0x56]), 2, 12, 2)
    array([ 291, 1110], dtype=uint16)
    """
    size = -(-count * bits // 8)
    if len(data) < size:
        raise ValueError(f"{len(data)} bytes are too few for {count} numbers of {bits} bits")
    rows = -(-count // 8)
    stream = np.zeros(rows * bits + MAX_WORD_BYTES, np.uint8)
    stream[:size] = np.frombuffer(data, np.uint8, size)
    out = np.zeros((rows, 8), f"u{itemsize}")
    for start in range(0, rows, ROWS_PER_BATCH) if bits else ():
        _unpack_rows(stream[start * bits :], bits, out[start : start + ROWS_PER_BATCH])
    return out.reshape(-1)[:count]


def _unpack_rows(stream: npt.NDArray[np.uint8], bits: int, out: Unsigned) -> None:
    """Unpack rows of eight numbers each, column by column, from words that overlap."""
    word = 4 if bits <= 32 else MAX_WORD_BYTES
    for column in range(8):
        first, skipped = divmod(column * bits, 8)
        words = np.ndarray(len(out), f">u{word}", stream, first, (bits,)).astype(f"u{word}")
        words <<= skipped
        words >>= 8 * word - bits
        if (missing := skipped + bits - 8 * word) > 0:
            last_bytes = np.ndarray(len(out), np.uint8, stream, first + word, (bits,))
            words |= last_bytes >> (8 - missing)
        out[:, column] = words


def _compute_power_of_ten(exponent: int) -> float:
    try:
        return float(10.0**exponent)
    except OverflowError:
        return math.inf


def _find_dtype_kind(values: Sequence[int]) -> str | None:
    """Return the dtype kind that scaleoffset's client data specify, or None if it is unknown."""
    scale, size, signed = values[0], values[4], values[5]
    if values[3] == FLOAT:
        return "f" if scale == BY_DECIMALS and size in (4, 8) else None
    # a negative factor means that each chunk has its own number of bits
    is_integer = (
        scale == BY_BITS and size in ITEMSIZES and (values[1] <= 8 * size or values[1] >> 31)
    )
    return "ui"[signed] if is_integer and signed < 2 else None


# ---------------------------------------------------------------------- hdf4

RUN_FLAG, LENGTH_MASK = 0x80, 0x7F
"""Masks of the control byte: whether it begins a run, and the length minus the minimum length."""
MIN_RUN, MIN_LITERAL = 3, 1
SYMBOL_COUNT = 256
"""Number of leaves of a tree of the Huffman code, one for each byte."""


@dataclass(frozen=True)
class RunLength(Codec):
    """Runs of equal bytes, and literal bytes between them."""

    zarr_v2_id = "virtualds_hdf4_rle"

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        source, offset, out = bytes(data), 0, bytearray()
        max_bytes = limit_decoded_size(len(source)) if nbytes is None else nbytes
        while offset < len(source) and len(out) < max_bytes:
            head = source[offset]
            if head & RUN_FLAG:
                out += source[offset + 1 : offset + 2] * ((head & LENGTH_MASK) + MIN_RUN)
                offset += 2
            else:
                stop = offset + 1 + (head & LENGTH_MASK) + MIN_LITERAL
                out += source[offset + 1 : stop]
                offset = stop
        if nbytes is None and offset < len(source):
            raise ValueError(f"{len(source)} bytes decode to more than {max_bytes}")
        return out


@dataclass(frozen=True)
class SkippingHuffman(Codec):
    """Bytes in adaptive Huffman codes, one tree for each byte of a number.

    The trees are splayed around each byte (Jones 1988, "Application of splay trees to data
    compression", Communications of the ACM 31).

    Parameters
    ----------
    skip : int
        The number of trees, used in turn.
    """

    skip: int

    zarr_v2_id = "virtualds_hdf4_skphuff"

    def __post_init__(self) -> None:
        if not 1 <= self.skip <= 64:
            raise ValueError(f"skipping Huffman: {self.skip} trees")

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if nbytes is None:
            raise ValueError("the decoded length is not known")
        if nbytes > 8 * len(data):
            raise ValueError(f"{len(data)} bytes are too few for the codes of {nbytes} bytes")
        bits = iter(np.unpackbits(np.frombuffer(data, np.uint8)).tolist())
        trees = [_SplayTree() for _ in range(self.skip)]
        try:
            # in a generator, StopIteration at the end of the bits would become a RuntimeError
            return bytes([trees[number % self.skip].decode_byte(bits) for number in range(nbytes)])
        except StopIteration:
            raise ValueError(f"the codes end before {nbytes} bytes") from None


class _SplayTree:
    """A binary tree of bytes: node 0 is the root, nodes from 256 on are leaves."""

    def __init__(self) -> None:
        self.left = [2 * node for node in range(SYMBOL_COUNT)]
        self.right = [2 * node + 1 for node in range(SYMBOL_COUNT)]
        self.up = [node // 2 for node in range(2 * SYMBOL_COUNT)]

    def decode_byte(self, bits: Any) -> int:
        """Return the next byte, and splay the tree around it."""
        left, right, up = self.left, self.right, self.up
        node = 0
        while node < SYMBOL_COUNT:
            node = right[node] if next(bits) else left[node]
        symbol = node - SYMBOL_COUNT
        while node and (parent := up[node]):
            above = up[parent]
            other = left[above]
            if parent == other:
                other = right[above]
                right[above] = node
            else:
                left[above] = node
            if left[parent] == node:
                left[parent] = other
            else:
                right[parent] = other
            up[node], up[other] = above, parent
            node = above
        return symbol


@dataclass(frozen=True)
class BitField(Codec):
    """Some adjacent bits of numbers, the highest bit and byte first.

    Parameters
    ----------
    size : int
        The size in bytes of a number.
    first : int
        The highest stored bit; 0 is the lowest bit of a number.
    count : int
        Number of stored bits.
    extends_sign : bool
        Whether the bits above the stored ones are copies of the highest stored bit.
    fills_ones : bool
        Whether the other bits are ones.
    """

    size: int
    first: int
    count: int
    extends_sign: bool
    fills_ones: bool

    zarr_v2_id = "virtualds_hdf4_nbit"

    def __post_init__(self) -> None:
        if self.size not in (1, 2, 4, 8) or not 1 <= self.count <= self.first + 1 <= 8 * self.size:
            raise ValueError(
                f"n-bit: {self.count} bits from bit {self.first} of {self.size} bytes downwards"
            )

    def encoded_size(self, nbytes: int) -> int | None:
        return -(-(nbytes // self.size) * self.count // 8)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        numbers = (8 * len(data) // self.count) if nbytes is None else nbytes // self.size
        bits = np.unpackbits(np.frombuffer(data, np.uint8))
        if bits.size < numbers * self.count:
            raise ValueError(f"{len(data)} bytes are too few for {numbers} times {self.count} bits")
        stored = bits[: numbers * self.count].reshape(numbers, self.count)
        bit_rows = np.full((numbers, 8 * self.size), self.fills_ones, np.uint8)
        bits_above = 8 * self.size - 1 - self.first
        if self.extends_sign:
            bit_rows[:, :bits_above] = stored[:, :1]
        bit_rows[:, bits_above : bits_above + self.count] = stored
        return np.packbits(bit_rows).tobytes()
