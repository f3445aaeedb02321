"""The superblock of an HDF5 file: sizes of numbers, and where everything begins.

HDF5 File Format Specification 3.0, II.A, "Format Signature and Superblock".
"""

from __future__ import annotations

from typing import NamedTuple

from virtualds.parsers.hdf5.structure.byte_rows import CHECKSUM_BYTES
from virtualds.parsers.hdf5.structure.notes import free, note_address, note_checksum, note_slot

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""Format signature, at byte 0, 512, 1024, 2048 ... (II.A)."""
LONGEST = 128
"""More bytes than a superblock has with addresses of 8 bytes."""
FORMS = {2: "H", 4: "I", 8: "Q"}
"""Codes of `struct` by the bytes of an address or length; the specification also allows 16 and 32
bytes."""
DEFAULT_HALF = 32
"""Half of the children of a node of chunks, where the file does not say (version 0)."""
GROUP_HALF, LEAF_HALF = 16, 4
"""The same of groups, and half of the symbols of a node (versions 2 and 3)."""
BEING_WRITTEN = 0b101
"""Flags of a file that a writer has open, alone or beside readers (version 3)."""
END_OF_FILE = "end of file"
"""The slot of the end of the file: no file may be shorter."""


class Superblock(NamedTuple):
    """What a superblock says.

    Parameters
    ----------
    offset_size, length_size : int
        Bytes of an address, and of a length.
    root : int
        Address of the header of the root group.
    end : int
        Where the file ends, counted from its first byte.
    driver, extension : int
        Addresses of the driver information and of the superblock extension, undefined if there is
        none.
    half, group_half, leaf_half : int
        Half of the most children of a node of a version 1 B-tree of chunks, and of one of groups;
        half of the most symbols of a node.
    is_being_written : bool
        Whether a writer has the file open, or died before it closed it.
    checksum : int or None
        Where the checksum is, if there is one.
    """

    offset_size: int
    length_size: int
    root: int
    end: int
    driver: int
    extension: int
    half: int = DEFAULT_HALF
    group_half: int = GROUP_HALF
    leaf_half: int = LEAF_HALF
    is_being_written: bool = False
    checksum: int | None = None


class UnknownSuperblockError(ValueError):
    """A superblock has an unknown form; the message says which."""


def measure_superblock(head: bytes) -> int:
    """Return how many bytes the superblock at the beginning of some bytes has.

    Raises
    ------
    UnknownSuperblockError
        Its form is unknown.
    """
    version = head[8]
    offset, length = head[13:15] if version < 2 else head[9:11]
    if version > 3:
        raise UnknownSuperblockError(f"a superblock of version {version}")
    if offset not in FORMS or length not in FORMS:
        raise UnknownSuperblockError(f"addresses of {offset} bytes and lengths of {length}")
    if version > 1:
        return 12 + 4 * offset + CHECKSUM_BYTES
    # the addresses, and the symbol table entry of the root group (III.C)
    return 24 + 4 * version + 4 * offset + 2 * offset + 24


def parse_superblock(data: bytes) -> Superblock:
    """Return what the bytes of a superblock say."""
    return _parse_old(data) if data[8] < 2 else _parse_new(data)


def _parse_old(data: bytes) -> Superblock:
    """Read versions 0 and 1."""
    version, size = data[8], data[13]
    begin = 24 + 4 * version
    free(data, 20, 24)
    note_slot(data, begin + 2 * size, size, END_OF_FILE)
    # the name, the cache and the scratch pad of the root group
    free(data, begin + 4 * size, begin + 5 * size)
    free(data, begin + 6 * size, len(data))
    return Superblock(
        size,
        data[14],
        root=_read_address(data, begin + 5 * size, size),
        end=_parse(data, begin + 2 * size, size),
        driver=_parse(data, begin + 3 * size, size),
        extension=_undefined(size),
        half=_parse(data, 24, 2) if version else DEFAULT_HALF,
        group_half=_parse(data, 18, 2),
        leaf_half=_parse(data, 16, 2),
    )


def _parse_new(data: bytes) -> Superblock:
    """Read versions 2 and 3."""
    size = data[9]
    note_slot(data, 12 + 2 * size, size, END_OF_FILE)
    place = 12 + 4 * size
    note_checksum(data, place, CHECKSUM_BYTES)
    return Superblock(
        size,
        data[10],
        root=_read_address(data, 12 + 3 * size, size),
        end=_parse(data, 12 + 2 * size, size),
        driver=_undefined(size),
        extension=_read_address(data, 12 + size, size),
        is_being_written=data[8] == 3 and bool(data[11] & BEING_WRITTEN),
        checksum=place,
    )


def _parse(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little")


def _read_address(data: bytes, place: int, size: int) -> int:
    value = _parse(data, place, size)
    return value if value == _undefined(size) else note_address(data, place, size, value)


def _undefined(size: int) -> int:
    return (1 << 8 * size) - 1
