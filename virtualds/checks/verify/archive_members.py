"""Whether the members of zip archives are those of which the archives hold checksums.

References into an archive are to parts of its members, and one checksum is that of all of a member.
So members are read from end to end.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from virtualds.checks.verify.report import Problem
from virtualds.checks.verify.sources import HEAD_BYTES
from virtualds.errors import VirtualdsError
from virtualds.source_file import PRESENT, SourceFile
from virtualds.stores import find_store
from virtualds.stores.archive_index import (
    LOCAL_HEADER,
    ArchiveMember,
    is_zip,
    parse_data_offset,
    read_zip_index,
)
from virtualds.stores.store import Store

PIECE = 2**23
"""Bytes of a member that are read at a time."""


def find_damaged_members(files: Iterable[SourceFile]) -> Iterator[Problem]:
    """Yield a problem for every member of an archive whose bytes are not those of its checksum.

    Files that are no zip archives are passed over.
    """
    for file in sorted(files, key=lambda file: file.url):
        store = find_store(file.url)
        try:
            if is_zip(_fetch_range(store, file, 0, HEAD_BYTES)):
                yield from _find_damaged_in(store, file)
        except (OSError, VirtualdsError) as error:
            yield Problem(file.url, "", None, "unreachable", f"its members: {error}")


def _find_damaged_in(store: Store, file: SourceFile) -> Iterator[Problem]:
    size = store.describe(file.url, file.options).size or 0
    index = read_zip_index(
        lambda start, count: _fetch_range(store, file, start, count), size, file.url
    )
    for name, member in index.items():
        # no reference leads into others
        if (
            member.problem is None
            and (found := _compute_checksum(store, file, member)) != member.checksum
        ):
            text = (
                f"the CRC-32 of the member {name!r} is {found - PRESENT:#010x}, the archive says "
                f"{member.checksum - PRESENT:#010x}; the archive is damaged, fetch it again"
            )
            yield Problem(file.url, "", None, "undecodable", text)


def _compute_checksum(store: Store, file: SourceFile, member: ArchiveMember) -> int:
    """Return the checksum of a member as it lies there now."""
    place = member.offset
    if place is None:
        header = _fetch_range(store, file, member.header, LOCAL_HEADER)
        place = parse_data_offset(header, member.header, file.url)
    found = 0
    for start in range(place, place + member.length, PIECE):
        count = min(PIECE, place + member.length - start)
        found = zlib.crc32(_fetch_range(store, file, start, count), found)
    return PRESENT + found


def _fetch_range(store: Store, file: SourceFile, start: int, count: int) -> bytes:
    count = count if file.size is None else min(count, file.size - start)
    return bytes(store.get_ranges(file, [(start, count)])[0]) if count > 0 else b""
