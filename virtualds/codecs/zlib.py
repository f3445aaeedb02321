"""Deflate, wrapped as zlib or gzip.

- zlib (RFC 1950): Zarr v2 ``{"id": "zlib", "level": 1}``; Zarr v3 ``numcodecs.zlib``; HDF5
  filter 1, "deflate" (HDF5 file format, IV.A.2.l).
- gzip (RFC 1952): Zarr v2 ``{"id": "gzip", "level": 1}``; Zarr v3 ``gzip``.

Inflates zlib streams with the fastest library that is installed.

Members of zip archives: chunks that are compressed by the archive that they lie in.

The encoded bytes are those of the archive, from the local header of the member to the next one
(".ZIP File Format Specification", PKWARE, APPNOTE.TXT, 4.3). So a chunk brings its checksum along.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from virtualds.bounds import Buffer, decode_stream, decode_streams
from virtualds.codecs.codec import Codec, CodecError, check_length
from virtualds.codecs.libraries import Bytes

SPARE = 64
"""Bytes of room beyond the last one, which libraries like zlib need to find the end."""


@dataclass(frozen=True)
class Inflater:
    """A library for streams of a known decoded length; it ignores bytes behind them.

    Parameters
    ----------
    zlib, gzip, deflate : callable
        Take a stream and the decoded length; the result may have another length. Of several gzip
        members only the first is decoded. ``deflate`` is a stream without a wrapper (RFC 1951).
    damage : tuple of exception types
        Errors that they raise.
    """

    zlib: Callable[[Buffer, int], Buffer]
    gzip: Callable[[Buffer, int], Buffer]
    deflate: Callable[[Buffer, int], Buffer]
    damage: tuple[type[Exception], ...]


def _make_libdeflate() -> Inflater:
    import deflate

    damage = (deflate.DeflateError, ValueError)
    return Inflater(
        deflate.zlib_decompress, deflate.gzip_decompress, deflate.deflate_decompress, damage
    )


def _make_isal() -> Inflater:
    from isal import isal_zlib

    return _wrap_zlib_like(isal_zlib)


def _make_zlib_ng() -> Inflater:
    from zlib_ng import zlib_ng

    return _wrap_zlib_like(zlib_ng)


def _make_python_zlib() -> Inflater:
    return _wrap_zlib_like(zlib)


def _wrap_zlib_like(module: Any) -> Inflater:
    def inflate(wbits: int, data: Buffer, nbytes: int) -> bytes:
        stream = module.decompressobj(wbits)
        found: bytes = stream.decompress(data, nbytes + SPARE)
        # the checksum is checked at the end of the stream only
        if not stream.eof:
            raise module.error("the stream is longer than its room, or ends before its end mark")
        return found

    return Inflater(
        partial(inflate, 15), partial(inflate, 31), partial(inflate, -15), (module.error,)
    )


INFLATERS = (_make_libdeflate, _make_isal, _make_zlib_ng, _make_python_zlib)
"""The fastest first; Python's own is always there."""


@cache
def find_inflater() -> Inflater:
    """Return the fastest library for deflate that is installed."""
    for library in INFLATERS[:-1]:
        try:
            return library()
        except ImportError:
            continue
    return _make_python_zlib()


# ---------------------------------------------------------------------- zlib

SUCCESS = 0
"""Of ``enum libdeflate_result``: the stream fills the memory, and is not damaged."""


@dataclass(frozen=True)
class Zlib(Codec):
    """A zlib stream (RFC 1950)."""

    level: int = field(default=1, compare=False)

    zarr_v2_id: ClassVar[str] = "zlib"
    hdf5_filter: ClassVar[int | None] = 1
    tiff_compressions: ClassVar[tuple[int, ...]] = (8, 32946)

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(values[0] if values else 1)

    @property
    def encoding(self) -> dict[str, Any]:
        return {"zlib": True, "complevel": self.level}

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if nbytes is None:
            return self._decode_slowly(data, nbytes)
        fast = find_inflater()
        try:
            out = fast.zlib(data, nbytes)
        except fast.damage:
            return self._decode_slowly(data, nbytes)
        # libdeflate accepts a stream that is shorter than announced
        return out if len(out) == nbytes else self._decode_slowly(data, nbytes)

    @property
    def fills(self) -> bool:
        return find_libdeflate() is not None

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        library = find_libdeflate()
        if not (library and library.inflate_zlib(data, out)):
            super().decode_into(data, out)

    def _decode_slowly(self, data: Buffer, nbytes: int | None) -> bytes:
        """Inflate with the standard library, whose errors are the clearest."""
        try:
            out = decode_stream(zlib.decompressobj(), data, nbytes)
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

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if nbytes is None or not _is_one_member(data, nbytes):
            return self._decode_members(data, nbytes)
        fast = find_inflater()
        try:
            out = fast.gzip(data, nbytes)
        except fast.damage:
            return self._decode_members(data, nbytes)
        return out if len(out) == nbytes else self._decode_members(data, nbytes)

    @property
    def fills(self) -> bool:
        return find_libdeflate() is not None

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        library = find_libdeflate()
        is_filled = library and _is_one_member(data, out.size) and library.inflate_gzip(data, out)
        if not is_filled:
            super().decode_into(data, out)

    def _decode_members(self, data: Buffer, nbytes: int | None) -> bytes:
        """Inflate member by member with the standard library, which finds the end of each."""
        try:
            out = decode_streams(partial(zlib.decompressobj, wbits=31), data, nbytes)
        except (zlib.error, ValueError, EOFError) as error:
            raise CodecError(f"gzip: {error}") from error
        check_length(self, len(out), nbytes)
        return out


def _is_one_member(data: Buffer, nbytes: int) -> bool:
    """Say whether the last four bytes, the length of the last member, equal ``nbytes``."""
    return int.from_bytes(data[-4:], "little") == nbytes % 2**32


# ---------------------------------------------------------------------- libdeflate


class Libdeflate:
    """libdeflate, called from any number of threads.

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
        self._zlib = _declare_types(library.libdeflate_zlib_decompress)
        self._gzip = _declare_types(library.libdeflate_gzip_decompress)
        self._threads = threading.local()

    def inflate_zlib(self, data: Buffer, out: Bytes) -> bool:
        """Inflate a zlib stream; say whether it is sound and fills ``out``, which is contiguous."""
        return self._inflate(self._zlib, data, out)

    def inflate_gzip(self, data: Buffer, out: Bytes) -> bool:
        """Inflate one gzip member; say whether it is sound and fills ``out``."""
        return self._inflate(self._gzip, data, out)

    def _inflate(self, function: Any, data: Buffer, out: Bytes) -> bool:
        if not len(data):
            # np.frombuffer refuses empty buffers
            return False
        source = np.frombuffer(data, np.uint8)
        decompressor = self._get_decompressor()
        # without a length argument, libdeflate accepts only streams that fill the memory
        result = function(
            decompressor.address, _address_of(source), source.size, _address_of(out), out.size, None
        )
        return bool(result == SUCCESS)

    def _get_decompressor(self) -> _Decompressor:
        """Return the decompressor of this thread: no two threads may use one."""
        try:
            found: _Decompressor = self._threads.decompressor
        except AttributeError:
            found = self._threads.decompressor = _Decompressor(self._allocate, self._free)
        return found


class _Decompressor:
    """A decompressor of libdeflate, freed with its thread."""

    def __init__(self, allocate: Any, free: Any) -> None:
        self._free = free
        self.address = allocate()
        if not self.address:
            raise MemoryError("libdeflate has no memory for a decompressor")

    def __del__(self) -> None:
        self._free(self.address)


def _declare_types(function: Any) -> Any:
    """Declare a function of a decompressor, stream and its size, memory and its size.

    Its last argument receives the number of bytes.
    """
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    function.argtypes = [pointer, pointer, size, pointer, size, pointer]
    function.restype = ctypes.c_int
    return function


def _address_of(array: Bytes) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


@cache
def find_libdeflate() -> Libdeflate | None:
    """Return libdeflate, or None where the package deflate lacks it or hides its functions."""
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
"""The flag of a member whose checksum stands behind its data (4.4.4)."""
STORED, DEFLATED = 0, 8
"""Compression methods (4.4.5)."""


class _Header(NamedTuple):
    is_streamed: bool
    method: int
    checksum: int
    data: memoryview
    """All bytes behind the header."""


@dataclass(frozen=True)
class ZipMember(Codec):
    """A member of a zip archive with its local header, deflated or stored.

    Parameters
    ----------
    skip : int
        Bytes before the values in the member, such as the header of an ``.npy`` file.
    """

    skip: int = 0

    zarr_v2_id: ClassVar[str] = "virtualds_zip_member"
    only_virtualds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.skip < 0:
            raise ValueError(f"zip_member: {self.skip} bytes before the values")

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        header = _parse_header(data)
        expected = None if nbytes is None else nbytes + self.skip
        if header.method == STORED:
            found, checksum = _take_stored(header, expected)
        elif header.method == DEFLATED:
            found, checksum = _inflate(header, expected)
        else:
            raise CodecError(f"zip_member: compression method {header.method} is not decoded")
        if zlib.crc32(found) not in checksum:
            raise CodecError(
                f"zip_member: the CRC-32 is {zlib.crc32(found):#010x}, the archive says "
                f"{checksum[0]:#010x}"
            )
        values = memoryview(found)[self.skip :]
        check_length(self, len(values), nbytes)
        return values


def _parse_header(data: Buffer) -> _Header:
    if len(data) < HEADER.size or bytes(data[:4]) != MAGIC:
        raise CodecError(f"zip_member: {bytes(data[:4])!r} begins no member of a zip archive")
    _, flags, method, checksum, _, _, name, extra = HEADER.unpack_from(data)
    rest = memoryview(data)[HEADER.size + name + extra :]
    return _Header(bool(flags & STREAMED), method, checksum, rest)


def _take_stored(header: _Header, nbytes: int | None) -> tuple[Buffer, tuple[int, ...]]:
    """Return the bytes of a stored member, and the checksums that it may have."""
    if header.is_streamed and nbytes is None:
        raise CodecError("zip_member: only its list of members says where a stored member ends")
    found = header.data if nbytes is None else header.data[:nbytes]
    return found, _list_checksums(header, header.data[len(found) :])


def _inflate(header: _Header, nbytes: int | None) -> tuple[Buffer, tuple[int, ...]]:
    """Return the bytes of a deflated member, and the checksums that it may have."""
    if nbytes and not header.is_streamed:
        fast = find_inflater()
        try:
            found = fast.deflate(header.data, nbytes)
        except fast.damage:
            # the standard library says what is wrong
            pass
        else:
            return found, (header.checksum,)
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = decode_stream(stream, header.data, nbytes)
    except (zlib.error, ValueError, EOFError) as error:
        raise CodecError(f"zip_member: {error}") from error
    return data, _list_checksums(header, memoryview(stream.unused_data))


def _list_checksums(header: _Header, behind: memoryview) -> tuple[int, ...]:
    """Return the CRC-32 of a member; behind streamed data, a signature may come first (4.3.9)."""
    if not header.is_streamed:
        return (header.checksum,)
    if len(behind) < 4:
        raise CodecError("zip_member: it ends before its checksum")
    plain = int.from_bytes(behind[:4], "little")
    is_signed = bytes(behind[:4]) == DESCRIPTOR_MAGIC
    return (int.from_bytes(behind[4:8], "little"), plain) if is_signed else (plain,)
