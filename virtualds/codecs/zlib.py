"""Deflate streams in zlib or gzip format, or as members of zip archives, inflated by libdeflate.

- zlib (RFC 1950): Zarr v2 ``{"id": "zlib", "level": 1}``; Zarr v3 ``numcodecs.zlib``; HDF5
  filter 1, "deflate" (HDF5 file format, IV.A.2.l).
- gzip (RFC 1952): Zarr v2 ``{"id": "gzip", "level": 1}``; Zarr v3 ``gzip``.
- A member of a zip archive: its bytes from the local header to the next one (".ZIP File Format
  Specification", PKWARE, APPNOTE.TXT, 4.3), so a chunk includes its checksum. Only virtualds has a
  name for this codec.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from virtualds.codecs.codec import Codec
from virtualds.streams import Buffer, Bytes, decode_stream, decode_streams

Wrapper = Literal["zlib", "gzip", "deflate"]
"""The container of a deflated stream; ``deflate`` is a raw stream (RFC 1951)."""


@cache
def _import_deflate() -> Any:
    # conda's package of libdeflate has no Python bindings
    try:
        import deflate
    except ImportError:
        return None
    return deflate


def inflate_fast(wrapper: Wrapper, data: Buffer, nbytes: int | None) -> Buffer | None:
    """Inflate to ``nbytes`` bytes, or return None if libdeflate is missing or rejects the stream.

    Of several gzip members only the first is decoded; bytes after a stream are ignored.
    """
    library = _import_deflate()
    if library is None or nbytes is None:
        return None
    try:
        inflated: Buffer = getattr(library, f"{wrapper}_decompress")(data, nbytes)
    except (library.DeflateError, ValueError):
        return None
    # libdeflate accepts streams that are shorter than ``nbytes``
    return inflated if len(inflated) == nbytes else None


# ---------------------------------------------------------------------- zlib

INFLATE_ERRORS = (zlib.error, ValueError, EOFError)
"""Errors of the standard library for damaged streams."""

LIBDEFLATE_SUCCESS = 0
"""The value of ``enum libdeflate_result`` for a valid stream that fills the memory."""


@dataclass(frozen=True)
class Zlib(Codec):
    """A zlib stream (RFC 1950)."""

    level: int = field(default=1, compare=False)

    zarr_v2_id = "zlib"
    hdf5_filter = 1
    tiff_compressions = (8, 32946)
    decode_errors = INFLATE_ERRORS

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(values[0] if values else 1)

    @property
    def encoding(self) -> dict[str, Any]:
        return {"zlib": True, "complevel": self.level}

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        inflated = inflate_fast("zlib", data, nbytes)
        # the standard library has the clearest error messages
        return decode_stream(zlib.decompressobj(), data, nbytes) if inflated is None else inflated

    @property
    def fills_output(self) -> bool:
        return find_libdeflate() is not None

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        library = find_libdeflate()
        if not (library and library.inflate("zlib", data, out)):
            super().decode_into(data, out)


@dataclass(frozen=True)
class Gzip(Codec):
    """One or more gzip members (RFC 1952)."""

    level: int = field(default=1, compare=False)

    zarr_v2_id = "gzip"
    zarr_v3_name = "gzip"
    decode_errors = INFLATE_ERRORS

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        is_single = nbytes is not None and _is_one_member(data, nbytes)
        if is_single and (inflated := inflate_fast("gzip", data, nbytes)) is not None:
            return inflated
        # the standard library finds the end of each member
        return decode_streams(partial(zlib.decompressobj, wbits=31), data, nbytes)

    @property
    def fills_output(self) -> bool:
        return find_libdeflate() is not None

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        library = find_libdeflate()
        is_single = _is_one_member(data, out.size)
        if not (library and is_single and library.inflate("gzip", data, out)):
            super().decode_into(data, out)


def _is_one_member(data: Buffer, nbytes: int) -> bool:
    """Return whether the last four bytes, the length of the last member, equal ``nbytes``."""
    return int.from_bytes(data[-4:], "little") == nbytes % 2**32


# ---------------------------------------------------------------------- libdeflate


class Libdeflate:
    """The library libdeflate, which may be called from several threads.

    Parameters
    ----------
    library : ctypes.CDLL

    Raises
    ------
    AttributeError
        The library lacks its functions.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._allocate = library.libdeflate_alloc_decompressor
        self._allocate.argtypes, self._allocate.restype = [], ctypes.c_void_p
        self._free = library.libdeflate_free_decompressor
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        self._functions = {
            "zlib": library.libdeflate_zlib_decompress,
            "gzip": library.libdeflate_gzip_decompress,
        }
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for function in self._functions.values():
            # the decompressor, the input and its size, the output and its size, and a pointer to
            # the number of bytes written
            function.argtypes = [pointer, pointer, size, pointer, size, pointer]
            function.restype = ctypes.c_int
        self._threads = threading.local()

    def inflate(self, wrapper: Literal["zlib", "gzip"], data: Buffer, out: Bytes) -> bool:
        """Inflate one stream; return whether it is valid and fills the contiguous ``out``."""
        if not len(data):
            # np.frombuffer does not accept empty buffers
            return False
        source = np.frombuffer(data, np.uint8)
        address = self._get_decompressor().address
        # without a length argument, libdeflate accepts only streams that fill the memory
        result = self._functions[wrapper](
            address, source.ctypes.data, source.size, out.ctypes.data, out.size, None
        )
        return bool(result == LIBDEFLATE_SUCCESS)

    def _get_decompressor(self) -> _Decompressor:
        """Return the decompressor of the current thread, as threads must not share one."""
        try:
            decompressor: _Decompressor = self._threads.decompressor
        except AttributeError:
            decompressor = self._threads.decompressor = _Decompressor(self._allocate, self._free)
        return decompressor


class _Decompressor:
    """A decompressor of libdeflate, freed with its thread."""

    def __init__(self, allocate: Any, free: Any) -> None:
        self._free = free
        self.address = allocate()
        if not self.address:
            raise MemoryError("libdeflate has no memory for a decompressor")

    def __del__(self) -> None:
        self._free(self.address)


@cache
def find_libdeflate() -> Libdeflate | None:
    """Return the libdeflate that the package deflate contains, or None if it is not usable."""
    try:
        from deflate import _deflate

        return Libdeflate(ctypes.CDLL(_deflate.__file__))
    except (ImportError, OSError, AttributeError):
        return None


# ---------------------------------------------------------------------- zip member

HEADER = struct.Struct("<4s2xHH4xIII2H")
"""Signature, flags, method, CRC-32, both lengths, lengths of name and extra field (4.3.7)."""
MAGIC, DESCRIPTOR_MAGIC = b"PK\3\4", b"PK\7\x08"
STREAMED = 0x8
"""The flag of a member whose checksum follows its data (4.4.4)."""
STORED, DEFLATED = 0, 8
"""Compression methods (4.4.5)."""


class _MemberHeader(NamedTuple):
    is_streamed: bool
    method: int
    checksum: int
    data: memoryview
    """All bytes after the header."""


@dataclass(frozen=True)
class ZipMember(Codec):
    """A member of a zip archive with its local header, deflated or stored.

    Parameters
    ----------
    skip : int
        Bytes before the values in the member, such as the header of an ``.npy`` file.
    """

    skip: int = 0

    zarr_v2_id = "virtualds_zip_member"
    decode_errors = INFLATE_ERRORS

    def __post_init__(self) -> None:
        if self.skip < 0:
            raise ValueError(f"zip_member: {self.skip} bytes before the values")

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        header = _parse_header(data)
        expected = None if nbytes is None else nbytes + self.skip
        if header.method == STORED:
            content, checksum = _read_stored(header, expected)
        elif header.method == DEFLATED:
            content, checksum = _inflate(header, expected)
        else:
            raise ValueError(f"compression method {header.method} is not decoded")
        if zlib.crc32(content) not in checksum:
            raise ValueError(
                f"the CRC-32 is {zlib.crc32(content):#010x}, the archive says {checksum[0]:#010x}"
            )
        return memoryview(content)[self.skip :]


def _parse_header(data: Buffer) -> _MemberHeader:
    if len(data) < HEADER.size or bytes(data[:4]) != MAGIC:
        raise ValueError(f"{bytes(data[:4])!r} begins no member of a zip archive")
    _, flags, method, checksum, _, _, name, extra = HEADER.unpack_from(data)
    content = memoryview(data)[HEADER.size + name + extra :]
    return _MemberHeader(bool(flags & STREAMED), method, checksum, content)


def _read_stored(header: _MemberHeader, nbytes: int | None) -> tuple[Buffer, tuple[int, ...]]:
    """Return the bytes of a stored member, and its possible checksums."""
    if header.is_streamed and nbytes is None:
        raise ValueError("only the archive's list of members says where a stored member ends")
    content = header.data if nbytes is None else header.data[:nbytes]
    return content, _list_checksums(header, header.data[len(content) :])


def _inflate(header: _MemberHeader, nbytes: int | None) -> tuple[Buffer, tuple[int, ...]]:
    """Return the bytes of a deflated member, and its possible checksums."""
    # the end of a streamed member is unknown until its checksum is reached
    if nbytes and not header.is_streamed:
        inflated = inflate_fast("deflate", header.data, nbytes)
        if inflated is not None:
            return inflated, (header.checksum,)
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    data = decode_stream(stream, header.data, nbytes)
    return data, _list_checksums(header, memoryview(stream.unused_data))


def _list_checksums(header: _MemberHeader, trailer: memoryview) -> tuple[int, ...]:
    """Return the CRC-32 of a member; after streamed data, a signature may precede it (4.3.9)."""
    if not header.is_streamed:
        return (header.checksum,)
    if len(trailer) < 4:
        raise ValueError("it ends before its checksum")
    plain = int.from_bytes(trailer[:4], "little")
    is_signed = bytes(trailer[:4]) == DESCRIPTOR_MAGIC
    return (int.from_bytes(trailer[4:8], "little"), plain) if is_signed else (plain,)
