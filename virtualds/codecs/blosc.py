"""HDF5's LZ4 and bitshuffle filters, which compress block by block, and frames of Blosc2.

- LZ4: HDF5 filter 32004; client data: block size. In Zarr ``imagecodecs_lz4h5``, as imagecodecs
  calls it.
- bitshuffle: HDF5 filter 32008; client data: two version numbers, bytes per element, elements per
  block (0 for the default), compressor (0 none, 2 LZ4, 3 zstd), level. Without a compressor it is
  ``imagecodecs_bitshuffle`` in Zarr v2, and ``numcodecs.imagecodecs_bitshuffle`` in Zarr v3, where
  the bare name means an array codec; with a compressor, only our name for it exists in Zarr.
- Blosc2: HDF5 filter 32026; client data: revision, version, type size, chunk size, level, shuffle,
  compressor, and the chunk's shape if it is a b2nd array. A chunk is one contiguous frame, a
  super-chunk or a b2nd array, with everything that decoding needs (``README_CFRAME_FORMAT.rst`` and
  ``README_B2ND_METALAYER.rst`` of c-blosc2). In Zarr, only our name for frames exists.

All numbers within a chunk of blocks are big-endian: its decoded length (8 bytes), that of its
blocks (4), and before each block its compressed length (4). An LZ4 block as long as its decoded
bytes is stored uncompressed ("HDF5 LZ4 filter" of The HDF Group's hdf5_plugins). Bitshuffle stores
the last elements, fewer than eight, unshuffled at the end (``bshuf_h5filter.c`` of
kiyo-masui/bitshuffle).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import numpy as np

from virtualds.codecs.codec import CONFIG_KEY, DECODE_ERRORS, Codec, check_length
from virtualds.codecs.numcodecs import (
    MAX_BLOSC_BYTES,
    STORED_BITS,
    decode_lz4_block,
    decode_zstd,
    unshuffle_stored,
)
from virtualds.errors import UnsupportedError
from virtualds.importing import import_package
from virtualds.streams import Buffer, check_decoded_size

Decompress = Callable[[memoryview, int], Buffer]

HEADER_BYTES = 12
"""Size in bytes of the header of a chunk."""

MAX_CLIENT_VALUE = 2**31
"""Upper limit of item sizes and block sizes in client data, which have 32 bits."""

LENGTH_BYTES = 4
"""Size in bytes of the length field before each block."""

DEFAULT_BLOCK_BYTES = 8192
"""Default size in bytes of a block of bitshuffle."""

MIN_ELEMENTS = 128
"""Minimum number of elements of a default block of bitshuffle."""

COMPRESSORS = {0: "", 2: "lz4", 3: "zstd"}
"""Compressors by their number in bitshuffle's client data."""

DECOMPRESS: dict[str, Decompress] = {"lz4": decode_lz4_block, "zstd": decode_zstd}


@dataclass(frozen=True)
class Lz4Blocks(Codec):
    """LZ4 blocks in the container format of the HDF5 filter."""

    zarr_v2_id = "imagecodecs_lz4h5"
    zarr_v3_name = "imagecodecs_lz4h5"
    hdf5_filter = 32004
    decode_errors = DECODE_ERRORS

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        view = memoryview(data)
        size, block = _parse_header(view, nbytes)
        block_count, last_length = divmod(size, block)
        lengths = [block] * block_count + [last_length] * (last_length > 0)
        parts = list(_decompress_blocks(view, lengths, _decode_lz4_or_stored))
        # a single block needs no copy
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True)
class Bitshuffle(Codec):
    """Elements whose bits of the same significance are grouped within blocks.

    Parameters
    ----------
    itemsize : int
        Bytes per element.
    block : int
        Elements per block, 0 for the default.
    """

    itemsize: int = 1
    block: int = field(default=0, metadata={CONFIG_KEY: "blocksize"})

    zarr_v2_id = "imagecodecs_bitshuffle"
    hdf5_filter = 32008
    decode_errors = DECODE_ERRORS
    added_bytes = 0

    def __post_init__(self) -> None:
        is_valid = 0 < self.itemsize < MAX_CLIENT_VALUE and 0 <= self.block < MAX_CLIENT_VALUE
        if not is_valid or self.block % 8:
            raise UnsupportedError(
                f"bitshuffle: blocks of {self.block} elements of {self.itemsize} bytes, which are "
                f"not multiples of 8 elements; leave the variable out with drop_variables"
            )

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Codec:
        """Build the codec from client data, as `BitshuffleBlocks` if they name a compressor."""
        size, block, number = [*values[2:5], *(itemsize, 0, 0)[len(values[2:5]) :]]
        if number not in COMPRESSORS:
            raise UnsupportedError(
                f"HDF5 filter 32008 (bitshuffle) with compressor {number}: not one of "
                f"{COMPRESSORS}; leave the variable out with drop_variables"
            )
        if number:
            return BitshuffleBlocks(size, COMPRESSORS[number])
        return cls(size, block)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        # the last elements (fewer than eight) are not shuffled
        end = len(data) // (8 * self.itemsize) * 8 * self.itemsize
        view = memoryview(data)
        shuffled = _unshuffle_bits(view[:end], self.itemsize, self.block)
        return shuffled if end == len(view) else b"".join((shuffled, view[end:]))


@dataclass(frozen=True)
class BitshuffleBlocks(Codec):
    """Blocks of elements whose bits of the same significance are grouped and compressed.

    Parameters
    ----------
    itemsize : int
        Bytes per element.
    compressor : str
        ``lz4`` or ``zstd``.
    """

    itemsize: int
    compressor: str

    zarr_v2_id = "virtualds_bitshuffle"
    decode_errors = DECODE_ERRORS

    def __post_init__(self) -> None:
        if not 0 < self.itemsize < MAX_CLIENT_VALUE or self.compressor not in DECOMPRESS:
            raise UnsupportedError(
                f"bitshuffle: compressor {self.compressor!r} of elements of {self.itemsize} bytes "
                f"is not one of {sorted(DECOMPRESS)}; leave the variable out with drop_variables"
            )

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        view = memoryview(data)
        size, block = _parse_header(view, nbytes)
        group_bytes = 8 * self.itemsize
        if block % group_bytes:
            raise ValueError(f"blocks of {block} bytes are not a multiple of {group_bytes}")
        block_count, last_length = divmod(size // group_bytes * group_bytes, block)
        lengths = [block] * block_count + [last_length] * (last_length > 0)
        tail = size % group_bytes
        end = len(view) - tail
        parts = list(_decompress_blocks(view[:end], lengths, DECOMPRESS[self.compressor]))
        # joining the blocks costs a copy, but allows a single call of unshuffle
        whole_blocks = _unshuffle_bits(b"".join(parts), self.itemsize, block // self.itemsize)
        return b"".join((whole_blocks, view[end:])) if tail else whole_blocks


def _parse_header(data: memoryview, nbytes: int | None) -> tuple[int, int]:
    """Return the decoded length of a chunk and of its blocks, in bytes."""
    if len(data) < HEADER_BYTES:
        raise ValueError(f"{len(data)} bytes are too few for a header of {HEADER_BYTES}")
    size, block = int.from_bytes(data[:8], "big"), int.from_bytes(data[8:HEADER_BYTES], "big")
    check_decoded_size(size, nbytes, len(data))
    if not block or size // block * LENGTH_BYTES > len(data):
        raise ValueError(f"{size} bytes in blocks of {block}")
    return size, block


def _decompress_blocks(
    data: memoryview, lengths: Sequence[int], decompress: Decompress
) -> Iterator[Buffer]:
    """Yield the blocks of a chunk, decompressed to ``lengths``.

    Stored lengths are checked, so that decompressors only get the bytes of their block.
    """
    offset = HEADER_BYTES
    for length in lengths:
        start = offset + LENGTH_BYTES
        offset = start + int.from_bytes(data[offset:start], "big")
        if offset > len(data) or start > len(data):
            raise ValueError(f"{len(data)} bytes end within a block")
        block = decompress(data[start:offset], length)
        if len(block) != length:
            raise ValueError(f"a block decodes to {len(block)} bytes, not {length}")
        yield block
    if offset != len(data):
        raise ValueError(f"{len(data) - offset} bytes follow the last block")


def _decode_lz4_or_stored(data: memoryview, nbytes: int) -> Buffer:
    return data if len(data) == nbytes else decode_lz4_block(data, nbytes)


@cache
def _import_imagecodecs() -> Any:
    try:
        import imagecodecs
    except ImportError:
        return None
    return imagecodecs


def _unshuffle_bits(data: Buffer, itemsize: int, block: int) -> Buffer:
    """Unshuffle bits in blocks of ``block`` elements.

    Without imagecodecs, Blosc does this at two thirds of the speed; the order of the bits is the
    same.
    """
    size = block or max(DEFAULT_BLOCK_BYTES // itemsize // 8 * 8, MIN_ELEMENTS)
    library = _import_imagecodecs()
    if library is not None:
        return bytes(library.bitshuffle_decode(data, itemsize=itemsize, blocksize=size))
    if itemsize > 255:
        raise UnsupportedError(
            f"bitshuffle: elements of {itemsize} bytes need imagecodecs; pip install imagecodecs"
        )
    out = np.empty(len(data), np.uint8)
    step = max(MAX_BLOSC_BYTES // (size * itemsize), 1) * size * itemsize
    for start in range(0, len(data), step):
        part = memoryview(data)[start : start + step]
        length = min(size * itemsize, len(part))
        unshuffle_stored(part, out[start : start + step], itemsize, length, STORED_BITS)
    return out.data


# ---------------------------------------------------------------------- blosc2

BLOSC2_ERRORS = (
    RuntimeError,
    ValueError,
    SyntaxError,
    TypeError,
    MemoryError,
    OverflowError,
    SystemError,
)
"""Errors of blosc2 for damaged frames: dtypes are parsed as Python, sizes may be negative."""


@dataclass(frozen=True)
class Blosc2Frame(Codec):
    """A contiguous frame of Blosc2."""

    level: int = field(default=5, compare=False)

    zarr_v2_id = "virtualds_blosc2_frame"
    hdf5_filter = 32026
    decode_errors = BLOSC2_ERRORS

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(values[4] if len(values) > 4 else 5)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        blosc2 = import_package("blosc2", "blosc2")
        frame = bytes(data)
        # without a copy: the super-chunk keeps the frame alive
        super_chunk = blosc2.schunk_from_cframe(frame, copy=False)
        if super_chunk.nchunks != 1:
            raise ValueError(f"the frame has {super_chunk.nchunks} chunks, not 1")
        if "b2nd" not in super_chunk.meta:
            check_length(self, int(super_chunk.nbytes), nbytes)
            single: bytes = super_chunk.decompress_chunk(0)
            return single
        # the blocks of an array are not in C order, and may be padded
        array = blosc2.ndarray_from_cframe(frame, copy=False)
        if array.nbytes > array.schunk.nbytes:
            raise ValueError(
                f"an array of {array.nbytes} bytes, and {array.schunk.nbytes} in its frame"
            )
        check_length(self, int(array.nbytes), nbytes)
        out: bytes = array[...].tobytes()
        return out
