"""Messages of HDF5 files, and types made from the bytes of messages, for tests of their parsers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import h5py
from h5py import h5t

from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, read_messages
from virtualds.parsers.hdf5.structure.object_header import DATATYPE, read_message_data
from virtualds.source_file import SourceFile


def messages_of(path: Path, dataset: str, kind: int) -> list[bytes]:
    """Return the messages of one type that a dataset has."""
    with h5py.File(path) as file:
        address = h5py.h5o.get_info(file[dataset].id).addr
    found = FileBytes(SourceFile(path.as_uri()))
    try:
        return [
            read_message_data(found, m) for m in read_messages(found, address) if m.kind == kind
        ]
    finally:
        found.close()


def type_message(path: Path, dataset: str) -> bytes:
    (message,) = messages_of(path, dataset, DATATYPE)
    return message


# ---------------------------------------------------------------------- messages (IV.A.2.d)


def head(of_class: int, size: int, bits: int = 0, version: int = 1) -> bytes:
    return bytes([version << 4 | of_class]) + bits.to_bytes(3, "little") + struct.pack("<I", size)


def size_of(message: bytes) -> int:
    return int.from_bytes(message[4:8], "little")


def integer(size: int, offset: int = 0, precision: int = 0, bits: int = 8) -> bytes:
    return head(0, size, bits) + struct.pack("<HH", offset, precision or 8 * size)


def bitfield(size: int, offset: int = 0, precision: int = 0, bits: int = 0) -> bytes:
    return head(4, size, bits) + struct.pack("<HH", offset, precision or 8 * size)


def floating(
    size: int,
    exponent: int,
    fraction: int,
    bias: int | None = None,
    form: int = 0x20,
    precision: int = 0,
    version: int = 1,
) -> bytes:
    precision = precision or 8 * size
    bias = 2 ** (exponent - 1) - 1 if bias is None else bias
    where = precision, fraction, exponent, 0, fraction, bias
    return head(1, size, form | (precision - 1) << 8, version) + struct.pack("<HHBBBBI", 0, *where)


def text(size: int, padding: int, charset: int = 0) -> bytes:
    return head(3, size, padding | charset << 4)


def opaque(size: int, tag: bytes = b"") -> bytes:
    tag = tag.ljust(-(-len(tag) // 8) * 8, b"\0")
    return head(5, size, len(tag)) + tag


def sequence(base: bytes, bits: int = 0) -> bytes:
    return head(9, 16, bits) + base


def varying_text(charset: int = 0, padding: int = 0) -> bytes:
    return sequence(integer(1, bits=0), 1 | padding << 4 | charset << 8)


def array(base: bytes, *dims: int) -> bytes:
    size = size_of(base)
    for n in dims:
        size *= n
    return (
        head(10, size, version=3) + bytes([len(dims)]) + struct.pack(f"<{len(dims)}I", *dims) + base
    )


def compound(size: int, *members: tuple[str | bytes, int, bytes]) -> bytes:
    """Return a compound of version 3, which has no padding."""
    width = -(-size.bit_length() // 8)
    found = head(6, size, len(members), 3)
    for name, offset, member in members:
        raw = name.encode() if isinstance(name, str) else name
        found += raw + b"\0" + offset.to_bytes(width, "little") + member
    return found


def old_compound(size: int, *members: tuple[str, int, bytes, tuple[int, ...]]) -> bytes:
    """Return a compound of version 1, whose members may have axes of their own."""
    found = head(6, size, len(members), 1)
    for name, offset, member, dims in members:
        raw = name.encode() + b"\0"
        four = (*dims, 0, 0, 0, 0)[:4]
        found += raw.ljust(-(-len(raw) // 8) * 8, b"\0")
        found += struct.pack("<IB3x4x4x4I", offset, len(dims), *four) + member
    return found


def enum(base: bytes, **members: int) -> bytes:
    names = b"".join(name.encode() + b"\0" for name in members)
    order = "big" if base[1] & 1 else "little"
    size = size_of(base)
    values = b"".join((n % 256**size).to_bytes(size, order) for n in members.values())
    return head(8, size, len(members), 3) + base + names + values


def complex_of(base: bytes, bits: int = 1) -> bytes:
    return head(11, 2 * size_of(base), bits, 5) + base


def decode(message: bytes) -> Any:
    """Return the type of a message as h5py opens it."""
    return h5t.decode(b"\x03\0" + message)


# ---------------------------------------------------------------------- files

LIBVERS = ("earliest", "v108", "v110", "latest")


def new_file(path: Path, libver: str, sizes: tuple[int, int] = (8, 8)) -> h5py.File:
    """Return a new file, with addresses and lengths of so many bytes."""
    versions = h5py.h5f
    low = {
        "earliest": versions.LIBVER_EARLIEST,
        "v108": versions.LIBVER_V18,
        "v110": versions.LIBVER_V110,
        "latest": versions.LIBVER_LATEST,
    }
    access, create = h5py.h5p.create(h5py.h5p.FILE_ACCESS), h5py.h5p.create(h5py.h5p.FILE_CREATE)
    access.set_libver_bounds(low[libver], versions.LIBVER_LATEST)
    create.set_sizes(*sizes)
    flags = versions.ACC_TRUNC
    return h5py.File(versions.create(str(path).encode(), flags, fcpl=create, fapl=access))


def replace_message(path: Path, dataset: str, others: dict[int, bytes]) -> None:
    """Put other messages of types into the header of a dataset, without bytes for none.

    A message may be shorter than the one that was there: the rest becomes a message to ignore.
    """
    with h5py.File(path) as file:
        address = h5py.h5o.get_info(file[dataset].id).addr
    data = bytearray(path.read_bytes())
    assert data[address] == 1, "headers of other versions have checksums"
    count = int.from_bytes(data[address + 2 : address + 4], "little")
    place = address + 16
    for _ in range(count):
        kind, length = struct.unpack_from("<HH", data, place)
        message = others.get(kind)
        if message is not None:
            assert len(message) <= length
            struct.pack_into("<H", data, place, kind if message else 0)
            data[place + 8 : place + 8 + length] = message.ljust(length, b"\0")
        place += 8 + length
    path.write_bytes(data)
