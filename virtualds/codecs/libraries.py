"""The fastest installed libraries for zstd, LZ4, bzip2, LZMA and Blosc.

``docs/explanation/performance.md`` has the measurements. For damaged bytes the libraries raise
`DECODE_ERRORS`, which the codecs turn into `CodecError`.
"""

from __future__ import annotations

import bz2
import lzma
import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from virtualds.bounds import PIECE, Buffer, check_room, decode_streams, limit_decoded_size

Bytes = npt.NDArray[np.uint8]

DECODE_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    OSError,
    EOFError,
    MemoryError,
    lzma.LZMAError,
)
"""Errors for damaged bytes; a damaged length may ask for more memory than there is."""

CONTEXT_BYTES = 2**18
"""Bytes from which on numcodecs' zstd, which makes a context for every call, is as fast."""

RATIO = 256
"""More bytes than LZ4 makes of one."""

STORED_BYTES, STORED_BITS = 0x11, 0x14
"""Blosc's flags of blocks that are not split, and whose bytes, or bits, are shuffled."""

LARGEST_FRAME = 2**24
"""Bytes that Blosc unshuffles at most: it takes memory of thrice its block."""

_threads = threading.local()


# ---------------------------------------------------------------------- zstd and LZ4


def zstd(data: Buffer, nbytes: int | None) -> Buffer:
    """Decode zstd frames.

    numcodecs makes a context for every call, which takes longer than a chunk of 100 KB; zstandard
    keeps one for each thread. Data that zstandard does not decode to ``nbytes`` go to numcodecs.
    """
    # no memory is taken for a damaged length
    if nbytes and _find_zstd_size(data) in (-1, nbytes):
        try:
            found: bytes = _get_decompressor().decompress(
                data, max_output_size=nbytes, allow_extra_data=False
            )
            if len(found) == nbytes:
                return found
        except zstandard.ZstdError:
            # there may be several frames
            pass
    _check_end(data, limit_decoded_size(len(data)) if nbytes is None else nbytes)
    return _import_numcodecs_zstd()(data)


def _check_end(data: Buffer, most: int) -> None:
    """Refuse zstd frames that decode to more than ``most`` bytes, holding few of them at a time."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
            while part := stream.read(PIECE):
                most -= len(part)
                if most < 0:
                    raise ValueError("decoded to more bytes than expected")
    except zstandard.ZstdError:
        # numcodecs raises the error
        return


def zstd_into(data: Buffer, out: Bytes) -> None:
    """Decode zstd frames into contiguous memory that they fill."""
    if out.size >= CONTEXT_BYTES and _find_zstd_size(data) == out.size:
        _import_numcodecs_zstd()(data, out)
        return
    found = zstd(data, out.size)
    if len(found) != out.size:
        raise ValueError(f"decodes to {len(found)} bytes, not {out.size}")
    out[:] = np.frombuffer(found, np.uint8)


def _find_zstd_size(data: Buffer) -> int | None:
    """Return the decoded length of the first frame: -1 if it has none, None if it is no frame."""
    try:
        return int(zstandard.frame_content_size(data))
    except zstandard.ZstdError:
        return None


def _get_decompressor() -> zstandard.ZstdDecompressor:
    """Return the decompressor of this thread: no two threads may use one."""
    try:
        found: zstandard.ZstdDecompressor = _threads.zstd
    except AttributeError:
        found = _threads.zstd = zstandard.ZstdDecompressor()
    return found


@cache
def _import_numcodecs_zstd() -> Callable[..., Buffer]:
    from numcodecs import zstd

    decompress: Callable[..., Buffer] = zstd.decompress
    return decompress


def lz4(data: Buffer, nbytes: int | None, out: Bytes | None = None) -> Buffer:
    """Decode an LZ4 block behind its decoded length, as numcodecs frames it.

    The length takes four bytes, little-endian. The result lies in ``out``, if that is given.
    """
    size = int.from_bytes(data[:4], "little")
    check_room(size, nbytes, len(data))
    if size > RATIO * len(data):
        raise ValueError(
            f"{len(data)} bytes say they decode to {size}, more than LZ4 can make of them"
        )
    return _import_numcodecs_lz4()(data, out)


def lz4_block(data: Buffer, nbytes: int) -> Buffer:
    """Decode a bare LZ4 block."""
    return lz4(b"".join((nbytes.to_bytes(4, "little"), data)), nbytes)


@cache
def _import_numcodecs_lz4() -> Callable[..., Buffer]:
    from numcodecs import lz4

    decompress: Callable[..., Buffer] = lz4.decompress
    return decompress


# ---------------------------------------------------------------------- bzip2 and LZMA


def bzip2(data: Buffer, nbytes: int | None) -> bytes:
    """Decode bzip2 streams."""
    return decode_streams(bz2.BZ2Decompressor, data, nbytes, lenient=True)


def lzma_streams(data: Buffer, nbytes: int | None, config: Mapping[str, Any]) -> bytes:
    """Decode LZMA streams that numcodecs encoded with a configuration."""
    form = config.get("format", lzma.FORMAT_XZ)
    chain = config.get("filters") if form == lzma.FORMAT_RAW else None
    make = partial(lzma.LZMADecompressor, format=form, filters=chain)
    return decode_streams(make, data, nbytes, lenient=True)


# ---------------------------------------------------------------------- Blosc


def blosc(data: Buffer, nbytes: int | None, out: Bytes | None = None) -> Buffer:
    """Decode a Blosc chunk; the result lies in ``out``, if that is given.

    A chunk shorter than its header says is refused: Blosc would read past its end. Blosc chunk
    format 2: bytes 4 to 8 hold the decoded length, 12 to 16 the length of the chunk.
    """
    decoded, encoded = (int.from_bytes(data[i : i + 4], "little") for i in (4, 12))
    if len(data) < 16 or encoded > len(data):
        raise ValueError(f"{len(data)} bytes of a buffer of {max(encoded, 16)}")
    check_room(decoded, nbytes, len(data))
    if decoded >= 2**31:
        raise ValueError(f"{decoded} bytes are more than a buffer of Blosc has")
    found: Buffer = _import_blosc().decompress(data, out)
    return found


def unshuffle_stored(data: Buffer, out: Bytes, itemsize: int, block: int, flags: int) -> None:
    """Unshuffle bytes or bits with Blosc, given a chunk of uncompressed blocks.

    Blosc takes a block as uncompressed where it is as long as its decoded bytes; each block stands
    behind its length. All blocks have ``block`` bytes; the last may be shorter.

    Parameters
    ----------
    data : buffer
        Shuffled, in blocks of ``block`` bytes.
    out : array of bytes
        As long as ``data``, at most `LARGEST_FRAME`.
    itemsize : int
        Below 256.
    block : int
        A multiple of ``itemsize``.
    flags : int
        `STORED_BYTES` or `STORED_BITS`.
    """
    size = len(data)
    whole, rest = divmod(size, block)
    count = whole + (rest > 0)
    start = 16 + 4 * count
    frame = np.empty(start + 4 * count + size, np.uint8)
    frame[:4] = 2, 1, flags, itemsize
    frame[4:16].view("<u4")[:] = size, block, frame.size
    frame[16:start].view("<u4")[:] = start + np.arange(count) * (4 + block)
    source = np.frombuffer(data, np.uint8)
    end = start + whole * (4 + block)
    blocks = frame[start:end].reshape(whole, 4 + block)
    blocks[:, :4] = np.frombuffer(block.to_bytes(4, "little"), np.uint8)
    blocks[:, 4:] = source[: whole * block].reshape(whole, block)
    if rest:
        frame[end : end + 4] = np.frombuffer(rest.to_bytes(4, "little"), np.uint8)
        frame[end + 4 :] = source[whole * block :]
    _import_blosc().decompress(frame, out)


@cache
def _import_blosc() -> Any:
    from numcodecs import blosc

    # Blosc has one pool of threads for the process, behind a lock, and chunks are decoded in
    # parallel already. A user's True stays.
    if blosc.use_threads is None:
        blosc.use_threads = False
    return blosc
