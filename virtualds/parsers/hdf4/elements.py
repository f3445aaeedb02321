"""The elements of HDF4 files: what data descriptors say, and the bytes of small elements.

HDF Specification and Developer's Guide (HDF 4.2): section 2 (data descriptors), 9.2 (tags), 10
(extended tags: linked blocks, external elements).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from virtualds.errors import FormatError, UnsupportedError
from virtualds.source_file import SourceFile
from virtualds.stores.scan_cache import fetch_ahead, open_blocks
from virtualds.stores.store import Range
from virtualds.urls import local_path, scheme_of

MAGIC = b"\x0e\x03\x13\x01"
NULL, LINKED, COMPRESSED, CHUNK = 1, 20, 40, 61
NUMBER_TYPE, OLD_GROUP, DIMENSIONS, DATA = 106, 700, 701, 702
LABELS, UNITS, FORMATS, SCALES, RANGE, COORDINATE_SYSTEM = 704, 705, 706, 703, 707, 708
LINK, NUMERIC_GROUP, CALIBRATION, FILL = 710, 720, 731, 732
VDATA, VDATA_VALUES, VGROUP = 1962, 1963, 1965
"""Tags of elements (section 9.2)."""
LARGE = (DATA, COMPRESSED, CHUNK, LINKED, SCALES)
"""Tags of elements that hold values, which a scan does not read."""
SMALL = 2**16
"""Bytes of elements that are fetched in advance."""
AT_ONCE = 256
"""Elements that are fetched at once."""
EXTENDED = 2**14
"""The bit of a tag that says that the element is an extended one."""
USERS = 2**15
"""The bit of a tag that HDF does not define."""
IN_BLOCKS, EXTERNAL, ENCODED, CHUNKED = 1, 2, 3, 5
"""Kinds of extended elements (section 10)."""
ABSENT = 2**32 - 1
"""Offset of an element that was never written."""
LARGEST = 2**31 - 1
"""The largest offset and length: the library takes larger numbers for negative ones."""
DESCRIPTOR = struct.Struct(">HHII")
BLOCK_HEADER = struct.Struct(">HI")

Key = tuple[int, int]
"""The tag and the reference number of an element."""


class Descriptor(NamedTuple):
    """Where an element lies; an extended one is a header that says where its values lie."""

    offset: int
    length: int
    is_extended: bool


Read = Callable[[int, int], bytes]
"""Returns bytes of a file by offset and length, fewer where the file ends."""


class Elements:
    """The elements of a file, by tag and reference number.

    Parameters
    ----------
    read : callable
        Returns bytes of the file by offset and length, fewer where the file ends.
    source : SourceFile

    Raises
    ------
    FormatError
        The descriptors are damaged.
    """

    def __init__(self, read: Read, source: SourceFile) -> None:
        self.source = source
        self._read = read
        self.descriptors = dict(_read_descriptors(read))
        self._fetch_small()

    def _fetch_small(self) -> None:
        """Fetch what a scan reads of a remote file in few requests."""
        wanted = sorted(
            (place.offset, place.length)
            for (tag, _), place in self.descriptors.items()
            if (place.is_extended or tag not in LARGE) and 0 < place.length <= SMALL
        )
        # the cache fetches nothing where it is asked for too much at once
        for first in range(0, len(wanted), AT_ONCE):
            fetch_ahead({self.source: wanted[first : first + AT_ONCE]})

    def list_refs(self, tag: int) -> list[int]:
        """Return the reference numbers of all elements of a tag, sorted."""
        return sorted(ref for found, ref in self.descriptors if found == tag)

    def find(self, key: Key) -> Descriptor | None:
        """Return where an element lies, None if there is none, or if it was never written.

        Raises
        ------
        FormatError
            It would lie where nothing can.
        """
        found = self.descriptors.get(key)
        if found is None or found.offset == ABSENT:
            return None
        if max(found.offset, found.length) > LARGEST:
            raise FormatError(
                f"element {key} has {found.length} bytes at byte {found.offset}, and files of HDF4 "
                f"end before 2 GiB; the file is damaged, fetch it again"
            )
        return found

    def read_range(self, offset: int, length: int) -> bytes:
        """Return bytes of the file.

        Raises
        ------
        FormatError
            The file is shorter.
        """
        return _read_exactly(self._read, offset, length)

    def read_raw(self, key: Key) -> bytes:
        """Return the bytes that a descriptor points at; no bytes if there are none."""
        place = self.find(key)
        return b"" if place is None else self.read_range(place.offset, place.length)

    def read(self, key: Key) -> bytes:
        """Return the bytes of an element that may lie in linked blocks."""
        place = self.find(key)
        if place is None or not place.is_extended:
            return self.read_raw(key)
        kind = self.find_kind(key)
        if kind != IN_BLOCKS:
            raise UnsupportedError(
                f"element {key} is metadata in an extended form ({kind}), which is not read; "
                f"read the file with pyhdf"
            )
        return b"".join(self.read_range(*piece) for piece in self.list_blocks(key))

    def find_kind(self, key: Key) -> int:
        """Return of which kind an extended element is, 0 for a plain or absent one."""
        place = self.find(key)
        if place is None or not place.is_extended:
            return 0
        return int(unpack(">H", self.read_range(place.offset, min(place.length, 2)))[0])

    def list_blocks(self, key: Key) -> list[Range]:
        """Return where the bytes of an element in linked blocks lie (section 10.3)."""
        _, left, _, count, ref = unpack(">HIIIH", self.read_raw(key))
        found: list[Range] = []
        tables = set[int]()
        while left > 0:
            if ref in tables or (LINKED, ref) not in self.descriptors:
                raise FormatError(
                    f"element {key} lacks {left} bytes of its linked blocks; the file is damaged, "
                    f"fetch it again"
                )
            tables.add(ref)
            table = self.read_raw((LINKED, ref))
            ref, *blocks = unpack(f">{1 + min(count, len(table) // 2 - 1)}H", table)
            for block in blocks:
                place = self.find((LINKED, block))
                if left <= 0:
                    break
                if place is None or not place.length:
                    raise UnsupportedError(
                        f"element {key} has linked blocks that were never written, which are not "
                        f"read; read the variable with pyhdf"
                    )
                found.append((place.offset, min(place.length, left)))
                left -= place.length
        return found


def unpack(form: str, data: bytes) -> tuple[Any, ...]:
    """Return the numbers that bytes begin with.

    Raises
    ------
    FormatError
        There are too few bytes.

    Examples
    --------
    >>> unpack(">HI", bytes([0, 1, 0, 0, 0, 2, 9]))
    (1, 2)
    """
    known = _compile(form)
    if len(data) < known.size:
        raise FormatError(
            f"a structure of {known.size} bytes has {len(data)}; the file is damaged, fetch it "
            f"again"
        )
    return known.unpack_from(data)


_compile = lru_cache(1024)(struct.Struct)


@contextmanager
def open_elements(source: SourceFile) -> Iterator[Elements]:
    """Open a file, local or remote, and read its descriptors."""
    if scheme_of(source.url) != "file":
        blocks = open_blocks(source)
        # no buffer lies before the blocks: elements are small, and far from each other
        yield Elements(_stop_at(blocks.size, blocks.read), source)
        return
    with open(local_path(source.url), "rb") as file:

        def read(at: int, count: int) -> bytes:
            file.seek(at)
            return file.read(count)

        yield Elements(_stop_at(os.fstat(file.fileno()).st_size, read), source)


def _stop_at(size: int, read: Read) -> Read:
    """Return a function that asks for no more bytes than a file has."""
    return lambda at, count: read(at, max(min(count, size - at), 0))


def _read_exactly(read: Read, offset: int, length: int) -> bytes:
    """Return bytes of a file, all of them."""
    data = read(offset, length)
    if len(data) < length:
        raise FormatError(
            f"an element reaches to byte {offset + length}, and the file ends at "
            f"{offset + len(data)}; it is truncated or damaged, fetch it again"
        )
    return data


def _read_descriptors(read: Read) -> Iterator[tuple[Key, Descriptor]]:
    """Follow the blocks of descriptors (section 2.2)."""
    place, seen, known = len(MAGIC), set[int](), set[Key]()
    while place:
        if place in seen:
            raise FormatError("its blocks of descriptors form a ring; fetch the file again")
        seen.add(place)
        begin = place + BLOCK_HEADER.size
        count, place = BLOCK_HEADER.unpack(_read_exactly(read, place, BLOCK_HEADER.size))
        data = _read_exactly(read, begin, count * DESCRIPTOR.size)
        for tag, ref, offset, length in DESCRIPTOR.iter_unpack(data):
            if tag != NULL:
                is_extended = bool(tag & EXTENDED and not tag & USERS)
                key = (tag - EXTENDED * is_extended, ref)
                if key in known:
                    raise FormatError(
                        f"element {key} is described twice; the file is damaged, fetch it again"
                    )
                known.add(key)
                yield key, Descriptor(offset, length, is_extended)
