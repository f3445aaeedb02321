"""Comparing the members of zip archives with the checksums in the archives.

References point to parts of members, but a checksum covers a whole member. So members are read from
end to end.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress

from virtualds.checks.verify.findings import Problem
from virtualds.checks.verify.sources import HEAD_BYTES
from virtualds.errors import VirtualdsError
from virtualds.source_file import PRESENT, SourceFile
from virtualds.stores import find_store
from virtualds.stores.archive import (
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
    """Yield a problem for every archive member whose bytes do not match its checksum.

    Files that are not zip archives are skipped.
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
    index = read_zip_index(lambda wanted: store.get_ranges(file, wanted), size, file.url)
    for name, member in index.items():
        # no reference points into a member with a problem
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
    """Return the checksum of the bytes that a member has now."""
    place = member.offset
    if place is None:
        header = _fetch_range(store, file, member.header, LOCAL_HEADER)
        place = parse_data_offset(header, member.header, file.url)
    stored = member.length if member.packed is None else member.packed
    parts: Iterable[bytes] = (
        _fetch_range(store, file, start, min(PIECE, place + stored - start))
        for start in range(place, place + stored, PIECE)
    )
    found = 0
    # what was inflated before the damage has another checksum
    with suppress(zlib.error):
        for part in parts if member.packed is None else _inflate(parts):
            found = zlib.crc32(part, found)
    return PRESENT + found


def _inflate(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a deflated member, a piece at a time."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    for part in parts:
        while part:
            yield stream.decompress(part, PIECE)
            part = stream.unconsumed_tail


def _fetch_range(store: Store, file: SourceFile, start: int, count: int) -> bytes:
    count = count if file.size is None else min(count, file.size - start)
    return bytes(store.get_ranges(file, [(start, count)])[0]) if count > 0 else b""
