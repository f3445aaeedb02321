"""Files in zip and tar archives: ranges of a member are ranges of the archive.

A member has fsspec's url, ``zip://member::url of the archive``. The store keeps the list of members
of an archive. It does not write.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from virtualds.bounds import decode_stream
from virtualds.errors import UnsupportedError
from virtualds.options import get_options
from virtualds.source_file import SourceFile, StorageOptions, find_mismatch
from virtualds.stores.archive_index import (
    LOCAL_HEADER,
    ArchiveMember,
    Index,
    Read,
    make_member_error,
    parse_data_offset,
)
from virtualds.stores.block_cache import FIRST_PAGES, PAGE
from virtualds.stores.store import (
    ListedFile,
    Range,
    ReadOnlyStore,
    RequestLimits,
    Store,
    StoreError,
    make_far_limits,
)
from virtualds.urls import join_path, scheme_of, split_archive_url

HELD_ARCHIVES = 16
"""Archives whose lists of members are kept, the latest used ones."""

EXTRA = 256
"""Bytes that are read for the name and extra field of a local header."""

SWOLLEN = 64
"""Bytes that data which do not compress may have more once they are deflated."""

ReadIndex = Callable[[Read, int, str], Index]


@dataclass(frozen=True)
class _Archive:
    """An archive as it was when its members were listed."""

    file: SourceFile
    members: Index
    head: bytes
    """Its first bytes, which hold those of a lone member."""
    begins: dict[int, int] = field(default_factory=dict, compare=False)
    """Where data begin, by the places of the headers that have been read."""

    def find_begin(self, member: ArchiveMember, place: int, data: bytes) -> int:
        """Return where the data of a member begin; if need be from ``data``, its header."""
        if member.offset is not None:
            return member.offset
        if member.header not in self.begins:
            self.begins[member.header] = parse_data_offset(data, place, self.file.url)
        return self.begins[member.header]

    def limit_head(self, member: ArchiveMember, length: int) -> int:
        """Return how many first bytes of a member to read: those that are held, if they do."""
        begin = member.header + LOCAL_HEADER + EXTRA if member.offset is None else member.offset
        held = (len(self.head) - begin) // PAGE * PAGE
        return held if 0 < held < min(length, member.length) else length

    def find_head(self, member: ArchiveMember, length: int) -> Range:
        """Return the range that has the first bytes of a member, with its header if need be."""
        count = _count_stored(member, length)
        if member.offset is not None:
            return member.offset, count
        count += LOCAL_HEADER + EXTRA
        return member.header, min(count, (self.file.size or 0) - member.header)


class Entry(NamedTuple):
    """A member of a zip archive with its header: where it lies, and whether it is deflated."""

    archive: SourceFile
    begin: int
    length: int
    is_packed: bool


class ArchiveStore(ReadOnlyStore):
    """The members of archives of one kind.

    Parameters
    ----------
    read_index : callable
        Takes a function that reads bytes of an archive, its size and its name; returns its members.
    store_for : callable
        Returns the store of an archive's own url.
    """

    refusal = "archives; write beside it"

    def __init__(self, read_index: ReadIndex, store_for: Callable[[str], Store]) -> None:
        self._read_index, self._store_for = read_index, store_for
        self._archives: OrderedDict[tuple[str, StorageOptions | None], _Archive] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def reach(self) -> RequestLimits:
        """The limits of a far store, which suit near ones too."""
        return make_far_limits()

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range of a member."""
        archive, member = self._find_member(file)
        is_whole = all(wanted == (0, member.length) for wanted in ranges)
        if member.packed is not None and not is_whole:
            raise make_member_error(file.url)
        if ranges and is_whole and (member.packed is not None or member.offset is None):
            return [self._read_whole(archive, member)] * len(ranges)
        for item, (offset, length) in enumerate(ranges):
            if offset + length > member.length:
                raise StoreError(
                    f"the member has {member.length} bytes, not {offset + length}", item
                )
        [begin] = self._find_offsets(archive, [member])
        moved = [(begin + offset, length) for offset, length in ranges]
        found = self._store_for(archive.file.url).get_ranges(archive.file, moved)
        for item, data in enumerate(found):
            # the archive has one checksum for a whole member, and none for its parts
            if len(data) == member.length and (reason := find_mismatch(data, member.checksum)):
                raise StoreError(f"the archive is damaged: of all its bytes, {reason}", item)
        return found

    def prefetch(self, file: SourceFile, ranges: Sequence[Range]) -> None:
        """Do nothing: this store reads few bytes."""

    def check_unchanged(self, file: SourceFile) -> None:
        """Refuse an archive that has changed since it was scanned."""
        archive, _ = self._find_member(file)
        self._store_for(archive.file.url).check_unchanged(archive.file)

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return a member with its size, and with time and etag of the archive."""
        archive = self._open_archive(url, options)
        return _describe_member(url, archive, _find_member(archive, url), options)

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return a member as `describe` does, and its first bytes, with one request for both."""
        archive = self._open_archive(url, options, fresh=True)
        member = _find_member(archive, url)
        file = _describe_member(url, archive, member, options)
        [head] = self._read_heads(archive, [member], archive.limit_head(member, length))
        if len(head) == member.length and find_mismatch(head, member.checksum):
            # get_ranges raises the error
            return file, self.get_ranges(file, [(0, len(head))])[0]
        return file, head

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole member."""
        file = self.describe(url, options)
        return self.get_ranges(file, [(0, file.size or 0)])[0] if file.size else b""

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        """Return all members below a folder.

        Raises
        ------
        UnsupportedError
            A member is compressed, encrypted or otherwise not stored as plain bytes.
        """
        archive = self._open_archive(url, options, fresh=True)
        folder = split_archive_url(url).member.strip("/")
        start = f"{folder}/" if folder else ""
        return [
            ListedFile(path, _describe_member(join_path(url, path), archive, member, options), None)
            for name, member in sorted(archive.members.items())
            if (path := name.removeprefix(start)) and name.startswith(start)
            if _is_plain(member, join_path(url, path))
        ]

    def locate_members(self, files: Sequence[SourceFile]) -> list[tuple[SourceFile, int]]:
        """Return for each member its archive, and the offset of its data there."""
        found = [self._find_member(file) for file in files]
        for file, (_, member) in zip(files, found, strict=True):
            if member.packed is not None:
                raise make_member_error(file.url)
        offsets: dict[int, int] = {}
        by_archive: dict[SourceFile, list[int]] = {}
        for number, (archive, _) in enumerate(found):
            by_archive.setdefault(archive.file, []).append(number)
        for numbers in by_archive.values():
            begins = self._find_offsets(found[numbers[0]][0], [found[n][1] for n in numbers])
            offsets |= dict(zip(numbers, begins, strict=True))
        return [(archive.file, offsets[n]) for n, (archive, _) in enumerate(found)]

    def find_checksums(self, files: Sequence[SourceFile]) -> list[int]:
        """Return the checksum of each whole member, 0 where the archive has none."""
        return [member.checksum for _, member in map(self._find_member, files)]

    def locate_headers(self, files: Sequence[SourceFile]) -> list[tuple[SourceFile, int]]:
        """Return for each member its archive, and the offset of its header there."""
        return [(archive.file, member.header) for archive, member in map(self._find_member, files)]

    def read_heads(self, files: Sequence[SourceFile], length: int) -> list[bytes]:
        """Return the first bytes of members of one archive, with one request for all."""
        found = [self._find_member(file) for file in files]
        return self._read_heads(found[0][0], [member for _, member in found], length)

    def locate_entries(self, files: Sequence[SourceFile]) -> list[Entry]:
        """Return for each member of a zip archive where it lies with its header."""
        return [
            Entry(archive.file, member.header, member.entry, member.packed is not None)
            for archive, member in map(self._find_member, files)
        ]

    # ------------------------------------------------------------------ archives

    def _read_heads(
        self, archive: _Archive, members: Sequence[ArchiveMember], length: int
    ) -> list[bytes]:
        """Return the first bytes of members; one range has a header and what follows it."""
        spans = [archive.find_head(member, length) for member in members]
        found = self._fetch(archive, spans)
        return [
            self._take_head(archive, member, length, place, data)
            for member, (place, _), data in zip(members, spans, found, strict=True)
        ]

    def _take_head(
        self, archive: _Archive, member: ArchiveMember, length: int, place: int, data: bytes
    ) -> bytes:
        """Return the first bytes of a member, from bytes of its archive at ``place``."""
        begin, count = archive.find_begin(member, place, data), _count_stored(member, length)
        head = data[begin - place :][:count]
        if len(head) < count:
            [head] = self._store_for(archive.file.url).get_ranges(archive.file, [(begin, count)])
        if member.packed is None:
            return head
        try:
            found = zlib.decompressobj(-zlib.MAX_WBITS).decompress(head, length)
        except zlib.error as error:
            raise StoreError(f"the archive is damaged: {error}") from error
        if len(found) < min(length, member.length):
            return self._read_whole(archive, member)[:length]
        return found

    def _read_whole(self, archive: _Archive, member: ArchiveMember) -> bytes:
        """Return all bytes of a member of a zip archive, with one request for header and data."""
        store, span = self._store_for(archive.file.url), (member.header, member.entry)
        [entry] = store.get_ranges(archive.file, [span])
        data = entry[archive.find_begin(member, member.header, entry) - member.header :]
        try:
            found = data[: member.length] if member.packed is None else _inflate(data)
        except (zlib.error, ValueError, EOFError) as error:
            raise StoreError(f"the archive is damaged: {error}") from error
        if reason := find_mismatch(found, member.checksum):
            raise StoreError(f"the archive is damaged: of all its bytes, {reason}")
        return found

    def _find_member(self, file: SourceFile) -> tuple[_Archive, ArchiveMember]:
        """Return the archive of a member, as it was when the member was scanned."""
        archive = self._open_archive(file.url, file.options)
        known = _describe_member(file.url, archive, _find_member(archive, file.url), file.options)
        if _is_changed(file, known):
            archive = self._open_archive(file.url, file.options, fresh=True)
            known = _describe_member(
                file.url, archive, _find_member(archive, file.url), file.options
            )
        if get_options().check_sources and _is_changed(file, known):
            raise StoreError(
                f"the archive was modified after it was scanned: {known.fingerprint}, it was "
                f"{file.fingerprint} (size of the member, time and etag of the archive)"
            )
        return archive, _find_member(archive, file.url)

    def _open_archive(
        self, url: str, options: StorageOptions | None, *, fresh: bool = False
    ) -> _Archive:
        """Return an archive with its members; ``fresh`` checks that a kept one has not changed."""
        parent = split_archive_url(url).archive
        inner = _options_of(parent, scheme_of(url), options)
        key = (parent, inner)
        with self._lock:
            known = self._archives.get(key)
        store = self._store_for(parent)
        if known is not None and (not fresh or store.describe(parent, inner) == known.file):
            # a size alone does not show that bytes are still the same
            is_sure = not fresh or known.file.mtime is not None or known.file.etag is not None
            return known if is_sure else replace(known, head=b"")
        archive = self._list_archive(store, parent, inner)
        with self._lock:
            self._archives[key] = archive
            self._archives.move_to_end(key)
            while len(self._archives) > HELD_ARCHIVES:
                self._archives.popitem(last=False)
        return archive

    def _list_archive(self, store: Store, url: str, options: StorageOptions | None) -> _Archive:
        file, head = store.read_head(url, options, FIRST_PAGES * PAGE)
        if file.size is None:
            raise UnsupportedError(
                f"{url}: the server sends no parts of files, which reading a member needs; copy "
                f"the archive to local disk"
            )

        archive = _Archive(file, {}, head)
        return replace(
            archive,
            members=self._read_index(lambda wanted: self._fetch(archive, wanted), file.size, url),
        )

    def _fetch(self, archive: _Archive, ranges: Sequence[Range]) -> list[bytes]:
        """Return ranges of an archive that has just been opened; its beginning is held."""
        held = [archive.head[place : place + length] for place, length in ranges]
        missing = [n for n, data in enumerate(held) if len(data) < ranges[n][1]]
        if missing:
            store = self._store_for(archive.file.url)
            found = store.get_ranges(archive.file, [ranges[n] for n in missing])
            for n, data in zip(missing, found, strict=True):
                held[n] = bytes(data)
        return held

    def _find_offsets(self, archive: _Archive, members: Sequence[ArchiveMember]) -> list[int]:
        """Return the offsets of members, from their headers where necessary."""
        unknown = {m.header: m for m in members if m.offset is None}
        unknown = {place: m for place, m in unknown.items() if place not in archive.begins}
        headers = self._store_for(archive.file.url).get_ranges(
            archive.file, [(place, LOCAL_HEADER) for place in unknown]
        )
        for (place, member), header in zip(unknown.items(), headers, strict=True):
            archive.find_begin(member, place, header)
        return [archive.find_begin(member, member.header, b"") for member in members]


def _inflate(data: bytes) -> bytes:
    return decode_stream(zlib.decompressobj(-zlib.MAX_WBITS), data, None)


def _count_stored(member: ArchiveMember, length: int) -> int:
    """Return how many stored bytes surely hold the first bytes of a member."""
    if member.packed is None:
        return min(length, member.length)
    return min(length + SWOLLEN, member.packed)


def _find_member(archive: _Archive, url: str) -> ArchiveMember:
    name = split_archive_url(url).member
    if (member := archive.members.get(name)) is None:
        folder = f"{name.strip('/')}/" if name.strip("/") else ""
        if any(other.startswith(folder) for other in archive.members):
            raise IsADirectoryError(f"{url}: it is a folder of {archive.file.url}")
        raise FileNotFoundError(f"{url}: there is no {name!r} in {archive.file.url}")
    _is_plain(member, url)
    return member


def _is_plain(member: ArchiveMember, url: str) -> bool:
    if member.problem is not None:
        raise UnsupportedError(f"{url}: {member.problem}")
    return True


def _describe_member(
    url: str, archive: _Archive, member: ArchiveMember, options: StorageOptions | None
) -> SourceFile:
    return SourceFile(url, member.length, archive.file.mtime, archive.file.etag, options)


def _is_changed(file: SourceFile, known: SourceFile) -> bool:
    """Say whether fingerprints differ, as far as both are known."""
    pairs = zip(file.fingerprint, known.fingerprint, strict=True)
    return any(a != b for a, b in pairs if a is not None and b is not None)


def _options_of(parent: str, scheme: str, options: StorageOptions | None) -> StorageOptions | None:
    """Return the options of an archive: those under its scheme, as in fsspec, or all others."""
    given: Mapping[str, Any] = options or {}
    found = given.get(scheme_of(parent))
    if isinstance(found, Mapping):
        return StorageOptions.of(found)
    return StorageOptions.of({name: v for name, v in given.items() if name != scheme})
