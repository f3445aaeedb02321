"""Files in zip and tar archives: ranges of a member are ranges of the archive.

A member has fsspec's url, ``zip://member::url of the archive``. The store caches the list of
members of an archive. It is read-only.
"""

from __future__ import annotations

import struct
import tarfile
import threading
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from virtualds.errors import FormatError, UnsupportedError
from virtualds.options import get_options
from virtualds.source_file import PRESENT, SourceFile, StorageOptions, find_mismatch
from virtualds.stores.block_cache import FIRST_PAGES, PAGE, BlockFile, OutsideError
from virtualds.stores.store import (
    ListedFile,
    Range,
    Store,
    StoreError,
)
from virtualds.streams import decode_stream
from virtualds.urls import join_path, path_or_url, scheme_of, split_archive_url

# ---------------------------------------------------------------------- files compressed as a whole
# No range of their bytes is a chunk of the file inside. The errors here name the remedy, for files
# and for members of archives.


COMPRESSIONS = {
    b"\x1f\x8b": ("gzip", "gzip"),
    b"\x1f\x9d": ("compress", None),
    b"BZh": ("bzip2", "bz2"),
    b"\xfd7zXZ\0": ("xz", "xz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd"),
}
"""Compression programs and their names in fsspec, by the first bytes of their output."""

TARS = (".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
"""Suffixes of compressed tar archives whose members fsspec can read."""


def check_uncompressed(url: str, head: bytes, options: StorageOptions | None = None) -> None:
    """Raise an error for a file that begins like a compressed one."""
    for program, name in (how for magic, how in COMPRESSIONS.items() if head.startswith(magic)):
        if url.partition("?")[0].endswith(TARS):
            shown = url if scheme_of(url) == "tar" else f"tar://MEMBER::{url}"
            raise make_compressed_error(url, program, shown)
        how = f", compression={name!r}{', **storage_options' if options else ''}"
        raise make_compressed_error(url, program, url if name else None, how)


def make_member_error(url: str) -> UnsupportedError:
    """Return the error for a deflated member of a zip archive of which a part is needed."""
    return make_compressed_error(url, "deflate", url)


def make_compressed_error(
    url: str, program: str, shown: str | None, how: str = ""
) -> UnsupportedError:
    """Return the error for a compressed file, and how fsspec opens it, if it can."""
    reason = f"{url}: it is compressed as a whole by {program}, so its chunks are no byte ranges"
    if shown is None:
        return UnsupportedError(f"{reason}; decompress it")
    return UnsupportedError(
        f"{reason}; decompress it, or open it in memory:\n"
        f"  with fsspec.open({path_or_url(shown)!r}{how}) as file:\n"
        f"      ds = virtualds.open_virtual_dataset(file.read())\n"
        f"  ds.virtual.materialize('copy.zarr')  # to keep it"
    )


# ---------------------------------------------------------------------- members
# Zip archives are described by the ".ZIP File Format Specification" (PKWARE, APPNOTE.TXT), tar
# archives by POSIX.1-2017, "pax" (ustar Interchange Format). Python's standard library parses both.


AHEAD = 2**16
"""The number of bytes that are read at a time, unless more are requested."""

TAIL = 2**16 + 22
"""The number of bytes at the end of a zip archive that contain its end record (APPNOTE, 4.3.16)."""

LOCAL_HEADER = 30
"""The size in bytes of a local file header before name and extra field (APPNOTE, 4.3.7)."""

LOCAL_MAGIC = b"PK\3\4"
"""First bytes of a local file header."""

ZIP_MAGIC = (LOCAL_MAGIC, b"PK\5\6")
"""First bytes of an archive with members, and of an empty archive."""

REFERENCES = {0x7A76: "vz", 0x7A77: "wz"}
"""Extra fields of members that are references to other files ("ZIP binding" of refkv, 11.3)."""

ENCRYPTED, STREAMED = 0x1, 0x8
"""General purpose flags (APPNOTE, 4.4.4)."""

BLOCK = 512
"""The size in bytes of a tar block."""

METHODS = {9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz"}
"""Compression methods that are not supported (APPNOTE, 4.4.5); 0 is none, 8 is deflate."""

MAX_HEADER = LOCAL_HEADER + 2 * (2**16 - 1)
"""The size in bytes of the longest local header."""

DESCRIPTOR = 24
"""The size in bytes of the longest record after the data of a streamed member (APPNOTE, 4.3.9)."""

Read = Callable[[Sequence[Range]], Sequence[bytes]]
"""A function that takes ranges of an archive, and returns their bytes."""

GUESSED, MAX_GUESSED = 8, 256
"""The initial and the maximum number of headers that are fetched together."""

HEADERS = 4 * BLOCK
"""The number of bytes that contain the header of most tar members: one block, or three with an
extended name."""


class ArchiveMember(NamedTuple):
    """A file in an archive.

    ``offset`` is the offset of its data, or None if its header at ``header`` must be read first.
    ``problem`` says why its data are not a byte range of the archive, and what to do. ``checksum``
    is the checksum of the whole member, as in manifests; tar archives have none. ``packed`` is the
    deflated size of a member that decodes to ``length`` bytes. ``entry`` is the distance in bytes
    from its header to what follows the member in a zip archive.
    """

    length: int
    offset: int | None
    header: int
    problem: str | None = None
    checksum: int = 0
    packed: int | None = None
    entry: int = 0


Index = Mapping[str, ArchiveMember]


def is_zip(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a zip archive."""
    return head.startswith(ZIP_MAGIC)


def is_tar(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a tar archive."""
    return head[257:262] == b"ustar"


def read_zip_index(read: Read, size: int, where: str) -> Index:
    """Return the members of a zip archive, from its central directory."""
    with (
        _describe_errors(where),
        zipfile.ZipFile(BlockFile(_PrefetchedArchive(read, size, max(size - TAIL, 0)))) as archive,
    ):
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        stops = sorted({entry.header_offset for entry in archive.infolist()})
        stops.append(archive.start_dir)
    _check_no_references(entries, where)
    next_of = dict(pairwise(stops))
    return {entry.filename: _parse_zip_member(entry, next_of, size, where) for entry in entries}


def _parse_zip_member(
    entry: zipfile.ZipInfo, next_of: Mapping[int, int], size: int, where: str
) -> ArchiveMember:
    stored, header = entry.compress_size, entry.header_offset
    whole, reach = next_of[header] - header, header + LOCAL_HEADER + stored
    if header < 0 or reach > min(next_of[header], size):
        raise FormatError(
            f"{where}: the member {entry.filename!r} reaches to byte {reach} of {size}, where "
            f"something else lies; the archive is damaged, fetch it again"
        )
    # if the next header follows the data exactly, there is no extra field
    name = entry.orig_filename.encode("utf-8" if entry.flag_bits & 0x800 else "cp437", "replace")
    least = LOCAL_HEADER + len(name)
    tight = whole == least + stored and not entry.flag_bits & STREAMED
    is_packed = entry.compress_type == zipfile.ZIP_DEFLATED
    return ArchiveMember(
        entry.file_size if is_packed else stored,
        header + least if tight else None,
        header,
        _find_zip_problem(entry),
        PRESENT + entry.CRC,
        stored if is_packed else None,
        # there may be something else between two members
        min(whole, MAX_HEADER + stored + DESCRIPTOR),
    )


def _check_no_references(entries: Sequence[zipfile.ZipInfo], where: str) -> None:
    """Raise an error for an archive whose members are references instead of data."""
    for entry in entries:
        offset = 0
        # zipfile has checked that the fields fill the bytes
        while offset + 4 <= len(entry.extra):
            kind, length = struct.unpack_from("<HH", entry.extra, offset)
            if field := REFERENCES.get(kind):
                raise UnsupportedError(
                    f"{where}: its member {entry.filename!r} is a reference to another file (extra "
                    f"field {field!r} of refkv, as in .vzip), which is not read; open the files "
                    f"that the archive was made of"
                )
            offset += 4 + length


def _find_zip_problem(entry: zipfile.ZipInfo) -> str | None:
    if entry.flag_bits & ENCRYPTED:
        return "it is encrypted; unpack the archive"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        method = METHODS.get(entry.compress_type, f"method {entry.compress_type}")
        return (
            f"the member is compressed by {method}; unpack the archive, or pack it again without "
            f"compression (zip -0)"
        )
    if entry.compress_type == zipfile.ZIP_STORED and entry.file_size != entry.compress_size:
        return f"it has {entry.compress_size} bytes stored of {entry.file_size}; fetch it again"
    return None


def parse_data_offset(header: bytes, offset: int, where: str) -> int:
    """Return the data offset of the zip member whose local header is at ``offset``."""
    if not header.startswith(LOCAL_MAGIC) or len(header) < LOCAL_HEADER:
        raise FormatError(
            f"{where}: there is no header of a member at byte {offset}; the archive is damaged, "
            f"fetch it again"
        )
    name, extra = struct.unpack_from("<HH", header, 26)
    return int(offset + LOCAL_HEADER + name + extra)


def read_tar_index(read: Read, size: int, where: str) -> Index:
    """Return the members of a tar archive, from their headers."""
    window = BlockFile(_PrefetchedArchive(read, size, 0))
    check_uncompressed(where, window.read(BLOCK))
    window.seek(0)
    found = {}
    with _describe_errors(where), tarfile.TarFile(fileobj=window, mode="r") as archive:
        for entry in archive:
            if entry.isdir():
                continue
            problem = None if entry.isreg() else "it is not a regular file"
            if entry.issparse():
                problem = "it is stored with holes (a sparse file); unpack the archive"
            elif entry.islnk() or entry.issym():
                problem = f"it is a link to {entry.linkname!r}; name that one"
            name = entry.name.removeprefix("./")
            found[name] = ArchiveMember(entry.size, entry.offset_data, entry.offset, problem)
        end = archive.offset
        window.seek(end)
        last = window.read(BLOCK)
    if len(last) < BLOCK or any(last):
        # members after a damaged header would be lost silently
        raise FormatError(
            f"{where}: at byte {end} there is neither a member nor the end of the archive; it is "
            f"truncated or damaged, fetch it again"
        )
    return found


@contextmanager
def _describe_errors(where: str) -> Iterator[None]:
    """Raise a `FormatError` in place of the errors of Python's modules for damaged archives."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        struct.error,
        ValueError,
        NotImplementedError,
        IndexError,
        OverflowError,
        EOFError,
        OutsideError,
    ) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{where}: it is not a sound archive ({error}); it is truncated or damaged, fetch "
            f"it again"
        ) from error


class _PrefetchedArchive:
    """Reads an archive from front to back, and guesses which ranges will be read next.

    The last range is cached. Ranges at a constant distance from each other, such as the headers of
    members of the same size, are fetched together. A wrong guess costs only its bytes.
    """

    def __init__(self, read: Read, size: int, start: int) -> None:
        self._read, self.size = read, size
        self._guessed: dict[int, bytes] = {}
        # tarfile looks at the byte before a header
        self._last, self._step, self._count = -1, 0, GUESSED
        [self._held] = read([(start, min(TAIL, size - start))]) if size else [b""]
        self._start = start

    def read(self, offset: int, length: int) -> bytes:
        begin = offset - self._start
        if begin < 0 or begin + length > len(self._held):
            self._start, begin = offset, 0
            self._held = self._guessed.pop(offset, b"")
            if len(self._held) < length:
                self._held = self._fetch(offset, min(max(length, AHEAD), self.size - offset))
        return self._held[begin : begin + length]

    def _fetch(self, offset: int, length: int) -> bytes:
        """Return a range, and fetch with it the ranges that are likely to be read next."""
        step, self._step = self._step, offset - self._last
        self._last, wanted = offset, [(offset, length)]
        if step == self._step > AHEAD:
            last = min(offset + self._count * step, self.size - HEADERS)
            wanted += [(n, HEADERS) for n in range(offset + step, last + 1, step)]
            self._count = min(2 * self._count, MAX_GUESSED)
            self._last = wanted[-1][0]
        found = self._read(wanted)
        self._guessed = {offset: data for (offset, _), data in zip(wanted, found, strict=True)}
        return found[0]


# ---------------------------------------------------------------------- their store


HELD_ARCHIVES = 16
"""The number of archives, the most recently used ones, whose lists of members are cached."""

EXTRA = 256
"""The number of bytes that are read for the name and extra field of a local header."""

MAX_DEFLATE_OVERHEAD = 64
"""Maximum number of bytes by which deflate enlarges incompressible data."""

ReadIndex = Callable[[Read, int, str], Index]


@dataclass(frozen=True)
class _ListedArchive:
    """An archive as it was when its members were listed."""

    file: SourceFile
    members: Index
    head: bytes
    """Its first bytes, which include the header of its first member."""
    begins: dict[int, int] = field(default_factory=dict, compare=False)
    """The offsets of data, by the offsets of the headers that have been read."""

    def find_data_offset(self, member: ArchiveMember, offset: int = 0, data: bytes = b"") -> int:
        """Return the offset of the data of a member; parse its header in ``data`` if necessary."""
        if member.offset is not None:
            return member.offset
        if member.header not in self.begins:
            self.begins[member.header] = parse_data_offset(data, offset, self.file.url)
        return self.begins[member.header]

    def find_head(self, member: ArchiveMember, length: int) -> Range:
        """Return the range of the first bytes of a member, with its header if necessary."""
        count = _count_stored(member, length)
        if member.offset is not None:
            return member.offset, count
        count += LOCAL_HEADER + EXTRA
        return member.header, min(count, (self.file.size or 0) - member.header)


class ArchiveStore(Store):
    """The members of archives of one kind; ``read_index`` lists them.

    ``store_for`` returns the store of an archive's own url.
    """

    refusal = "virtualds does not write into archives; write beside it"

    def __init__(self, read_index: ReadIndex, store_for: Callable[[str], Store]) -> None:
        self._read_index, self._store_for = read_index, store_for
        self._archives: OrderedDict[tuple[str, StorageOptions | None], _ListedArchive] = (
            OrderedDict()
        )
        self._lock = threading.Lock()

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
        self._read_headers(archive, [member])
        begin = archive.find_data_offset(member)
        moved = [(begin + offset, length) for offset, length in ranges]
        found = self._store_for(archive.file.url).get_ranges(archive.file, moved)
        for item, data in enumerate(found):
            # the archive has one checksum for a whole member, and none for its parts
            if len(data) == member.length and (reason := find_mismatch(data, member.checksum)):
                raise StoreError(f"the archive is damaged: of all its bytes, {reason}", item)
        return found

    def check_unchanged(self, file: SourceFile) -> None:
        """Raise an error for an archive that has changed since it was scanned."""
        archive, _ = self._find_member(file)
        self._store_for(archive.file.url).check_unchanged(archive.file)

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        archive = self._open_archive(url, options)
        return _describe_member(url, archive, _find_member(archive, url), options)

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return the member, as `describe` does, and its first bytes, with one request."""
        archive = self._open_archive(url, options, fresh=True)
        member = _find_member(archive, url)
        file = _describe_member(url, archive, member, options)
        # of the first bytes, the cached ones are enough if there are any
        begin = member.header + LOCAL_HEADER + EXTRA if member.offset is None else member.offset
        held = (len(archive.head) - begin) // PAGE * PAGE
        length = held if 0 < held < min(length, member.length) else length
        [head] = self._read_heads(archive, [member], length)
        if len(head) == member.length and find_mismatch(head, member.checksum):
            # get_ranges raises the error
            return file, self.get_ranges(file, [(0, len(head))])[0]
        return file, head

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        """Return all members below a folder."""
        archive = self._open_archive(url, options, fresh=True)
        folder = split_archive_url(url).member.strip("/")
        start = f"{folder}/" if folder else ""
        return [
            ListedFile(path, _describe_member(join_path(url, path), archive, member, options), None)
            for name, member in sorted(archive.members.items())
            if (path := name.removeprefix(start)) and name.startswith(start)
        ]

    def locate_members(self, files: Sequence[SourceFile]) -> list[tuple[SourceFile, int]]:
        """Return the archive of each member, and the offset of its data there."""
        found = [self._find_member(file) for file in files]
        by_archive: dict[SourceFile, tuple[_ListedArchive, list[ArchiveMember]]] = {}
        for file, (archive, member) in zip(files, found, strict=True):
            if member.packed is not None:
                raise make_member_error(file.url)
            by_archive.setdefault(archive.file, (archive, []))[1].append(member)
        for archive, members in by_archive.values():
            self._read_headers(archive, members)
        known = [(by_archive[archive.file][0], member) for archive, member in found]
        return [(archive.file, archive.find_data_offset(member)) for archive, member in known]

    def read_heads(self, files: Sequence[SourceFile], length: int) -> list[bytes]:
        """Return the first bytes of members of one archive, with one request for all."""
        found = [self._find_member(file) for file in files]
        return self._read_heads(found[0][0], [member for _, member in found], length)

    def find_member(self, file: SourceFile) -> tuple[SourceFile, ArchiveMember]:
        """Return the archive of a member, and the position of the member in it."""
        archive, member = self._find_member(file)
        return archive.file, member

    # ------------------------------------------------------------------ archives

    def _read_heads(
        self, archive: _ListedArchive, members: Sequence[ArchiveMember], length: int
    ) -> list[bytes]:
        """Return the first bytes of members, reading each with its header."""
        spans = [archive.find_head(member, length) for member in members]
        found = self._fetch(archive, spans)
        return [
            self._read_prefix(archive, member, length, offset, data)
            for member, (offset, _), data in zip(members, spans, found, strict=True)
        ]

    def _read_prefix(
        self, archive: _ListedArchive, member: ArchiveMember, length: int, offset: int, data: bytes
    ) -> bytes:
        """Return the first bytes of a member, from bytes of its archive at ``offset``."""
        begin, count = archive.find_data_offset(member, offset, data), _count_stored(member, length)
        head = data[begin - offset :][:count]
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

    def _read_whole(self, archive: _ListedArchive, member: ArchiveMember) -> bytes:
        """Return all bytes of a member of a zip archive, with one request for header and data."""
        store, span = self._store_for(archive.file.url), (member.header, member.entry)
        [entry] = store.get_ranges(archive.file, [span])
        data = entry[archive.find_data_offset(member, member.header, entry) - member.header :]
        try:
            if member.packed is None:
                found = data[: member.length]
            else:
                found = decode_stream(zlib.decompressobj(-zlib.MAX_WBITS), data, None)
        except (zlib.error, ValueError, EOFError) as error:
            raise StoreError(f"the archive is damaged: {error}") from error
        if reason := find_mismatch(found, member.checksum):
            raise StoreError(f"the archive is damaged: of all its bytes, {reason}")
        return found

    def _find_member(self, file: SourceFile) -> tuple[_ListedArchive, ArchiveMember]:
        """Return the archive of a member, as it was when the member was scanned."""
        for fresh in (False, True):
            archive = self._open_archive(file.url, file.options, fresh=fresh)
            member = _find_member(archive, file.url)
            known = _describe_member(file.url, archive, member, file.options)
            pairs = zip(file.fingerprint, known.fingerprint, strict=True)
            if all(a == b for a, b in pairs if a is not None and b is not None):
                return archive, member
        if get_options().check_sources:
            raise StoreError(
                f"the archive was modified after it was scanned: {known.fingerprint}, it was "
                f"{file.fingerprint} (size of the member, time and etag of the archive)"
            )
        return archive, member

    def _open_archive(
        self, url: str, options: StorageOptions | None, *, fresh: bool = False
    ) -> _ListedArchive:
        """Return an archive with its members; ``fresh`` checks whether a cached one has changed."""
        parent = split_archive_url(url).archive
        given: Mapping[str, Any] = options or {}
        # those under the scheme of the archive, as in fsspec, or all others
        own = given.get(scheme_of(parent))
        if not isinstance(own, Mapping):
            own = {name: value for name, value in given.items() if name != scheme_of(url)}
        inner = StorageOptions.of(own)
        key = (parent, inner)
        with self._lock:
            known = self._archives.get(key)
        store = self._store_for(parent)
        if known is not None and (not fresh or store.describe(parent, inner) == known.file):
            # a size alone does not prove that bytes are still the same
            is_sure = not fresh or known.file.mtime is not None or known.file.etag is not None
            return known if is_sure else replace(known, head=b"")
        archive = self._read_listing(store, parent, inner)
        with self._lock:
            self._archives[key] = archive
            self._archives.move_to_end(key)
            while len(self._archives) > HELD_ARCHIVES:
                self._archives.popitem(last=False)
        return archive

    def _read_listing(
        self, store: Store, url: str, options: StorageOptions | None
    ) -> _ListedArchive:
        file, head = store.read_head(url, options, FIRST_PAGES * PAGE)
        if file.size is None:
            raise UnsupportedError(
                f"{url}: the server sends no parts of files, which reading a member needs; copy "
                f"the archive to local disk"
            )

        archive = _ListedArchive(file, {}, head)
        return replace(
            archive,
            members=self._read_index(lambda wanted: self._fetch(archive, wanted), file.size, url),
        )

    def _fetch(self, archive: _ListedArchive, ranges: Sequence[Range]) -> list[bytes]:
        """Return ranges of an archive, from its cached beginning if that contains all of them."""
        held = [archive.head[offset : offset + length] for offset, length in ranges]
        missing = [n for n, data in enumerate(held) if len(data) < ranges[n][1]]
        if missing:
            store = self._store_for(archive.file.url)
            found = store.get_ranges(archive.file, [ranges[n] for n in missing])
            for n, data in zip(missing, found, strict=True):
                held[n] = bytes(data)
        return held

    def _read_headers(self, archive: _ListedArchive, members: Sequence[ArchiveMember]) -> None:
        """Read the headers of members whose data offset is unknown."""
        odd = (member for member in members if member.offset is None)
        unknown = {member.header: member for member in odd if member.header not in archive.begins}
        headers = self._store_for(archive.file.url).get_ranges(
            archive.file, [(offset, LOCAL_HEADER) for offset in unknown]
        )
        for (offset, member), header in zip(unknown.items(), headers, strict=True):
            archive.find_data_offset(member, offset, header)


def _count_stored(member: ArchiveMember, length: int) -> int:
    """Return the number of stored bytes that certainly contain the first bytes of a member."""
    if member.packed is None:
        return min(length, member.length)
    return min(length + MAX_DEFLATE_OVERHEAD, member.packed)


def _find_member(archive: _ListedArchive, url: str) -> ArchiveMember:
    name = split_archive_url(url).member
    if (member := archive.members.get(name)) is None:
        folder = f"{name.strip('/')}/" if name.strip("/") else ""
        if any(other.startswith(folder) for other in archive.members):
            raise IsADirectoryError(f"{url}: it is a folder of {archive.file.url}")
        raise FileNotFoundError(f"{url}: there is no {name!r} in {archive.file.url}")
    return member


def _describe_member(
    url: str, archive: _ListedArchive, member: ArchiveMember, options: StorageOptions | None
) -> SourceFile:
    """Return a member as a file, with its own size, and the time and etag of the archive."""
    if member.problem is not None:
        raise UnsupportedError(f"{url}: {member.problem}")
    return SourceFile(url, member.length, archive.file.mtime, archive.file.etag, options)
