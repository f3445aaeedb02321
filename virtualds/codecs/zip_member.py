"""Members of zip archives: chunks that are compressed by the archive that they lie in.

The encoded bytes are those of the archive, from the local header of the member to the next one
(".ZIP File Format Specification", PKWARE, APPNOTE.TXT, 4.3). So a chunk brings its checksum along.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from virtualds.bounds import Buffer, decode_stream
from virtualds.codecs.codec import Codec, CodecError, check_length
from virtualds.codecs.inflate import find_inflater

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
