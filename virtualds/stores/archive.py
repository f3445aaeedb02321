"""Files in zip and tar archives, read as byte ranges of the archive.

A member has the url that fsspec uses, ``zip://member::url of the archive``. The store caches the
list of members of each archive, and is read-only.
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
from virtualds.source_file import (
    CHECKSUM_FLAG,
    SourceFile,
    StorageOptions,
    describe_mismatch,
    join_path,
    path_or_url,
    scheme_of,
    split_archive_url,
)
from virtualds.stores.block_cache import FIRST_PAGES, PAGE_SIZE, BlockFile, SeekError
from virtualds.stores.store import (
    ListedFile,
    Range,
    Store,
    StoreError,
)
from virtualds.streams import decode_stream

# ---------------------------------------------------------------------- files compressed as a whole
# Chunks of the decompressed file are not byte ranges of such a file. The errors show how to open
# it.


COMPRESSIONS = {
    b"\x1f\x8b": ("gzip", "gzip"),
    b"\x1f\x9d": ("compress", None),
    b"BZh": ("bzip2", "bz2"),
    b"\xfd7zXZ\0": ("xz", "xz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd"),
}
"""Compression programs, and the names of the formats in fsspec, by magic bytes."""

TAR_SUFFIXES = (".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
"""Suffixes of compressed tar archives whose members fsspec can read."""


def check_uncompressed(url: str, head: bytes, options: StorageOptions | None = None) -> None:
    """Raise `UnsupportedError` for a file with the magic bytes of a compression program."""
    for program, name in (names for magic, names in COMPRESSIONS.items() if head.startswith(magic)):
        if url.partition("?")[0].endswith(TAR_SUFFIXES):
            fsspec_url = url if scheme_of(url) == "tar" else f"tar://MEMBER::{url}"
            raise make_compressed_error(url, program, fsspec_url)
        arguments = f", compression={name!r}{', **storage_options' if options else ''}"
        raise make_compressed_error(url, program, url if name else None, arguments)


def make_member_error(url: str) -> UnsupportedError:
    """Return the error for reading a part of a deflated member of a zip archive."""
    return make_compressed_error(url, "deflate", url)


def make_compressed_error(
    url: str, program: str, fsspec_url: str | None, arguments: str = ""
) -> UnsupportedError:
    """Return the error for a compressed file, with the call of fsspec that opens it, if any."""
    reason = f"{url}: it is compressed as a whole by {program}, so its chunks are not byte ranges"
    if fsspec_url is None:
        return UnsupportedError(f"{reason}; decompress it")
    return UnsupportedError(
        f"{reason}; decompress it, or open it in memory:\n"
        f"  with fsspec.open({path_or_url(fsspec_url)!r}{arguments}) as file:\n"
        f"      ds = virtualds.open_virtual_dataset(file.read())\n"
        f"  ds.virtual.materialize('copy.zarr')  # to keep it"
    )


# ---------------------------------------------------------------------- members
# Zip archives are described by the ".ZIP File Format Specification" (PKWARE, APPNOTE.TXT), tar
# archives by POSIX.1-2017, "pax" (ustar Interchange Format). Python's standard library parses both.


READ_AHEAD = 2**16
"""Number of bytes to read at a time, unless more are requested."""

ZIP_TAIL = 2**16 + 22
"""Maximum bytes of the end record of a zip archive, with its comment (APPNOTE, 4.3.16)."""

LOCAL_HEADER_SIZE = 30
"""Size in bytes of a local file header without name and extra field (APPNOTE, 4.3.7)."""

LOCAL_MAGIC = b"PK\3\4"
"""First bytes of a local file header."""

ZIP_MAGIC = (LOCAL_MAGIC, b"PK\5\6")
"""First bytes of an archive with members, and of an archive without."""

REFERENCE_FIELDS = {0x7A76: "vz", 0x7A77: "wz"}
"""Ids of extra fields of members that refer to other files ("ZIP binding" of refkv, 11.3)."""

ENCRYPTED, STREAMED = 0x1, 0x8
"""General purpose flags (APPNOTE, 4.4.4)."""

TAR_BLOCK = 512
"""Size in bytes of a tar block."""

UNSUPPORTED_METHODS = {9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz"}
"""Compression methods that are not supported (APPNOTE, 4.4.5); 0 is none, 8 is deflate."""

MAX_HEADER = LOCAL_HEADER_SIZE + 2 * (2**16 - 1)
"""Maximum size in bytes of a local file header."""

MAX_DESCRIPTOR = 24
"""Maximum size in bytes of the data descriptor after a streamed member (APPNOTE, 4.3.9)."""

Read = Callable[[Sequence[Range]], Sequence[bytes]]
"""A function that takes byte ranges of an archive, and returns their bytes."""

MIN_GUESSED, MAX_GUESSED = 8, 256
"""Initial and maximum number of headers that are prefetched together."""

TAR_HEADER_BYTES = 4 * TAR_BLOCK
"""Number of bytes to read for the header of a tar member: one block, three for most long names."""


class ArchiveMember(NamedTuple):
    """A file in an archive.

    ``offset`` is the offset of its data, or None if the header at ``header`` must be read first.
    ``problem`` is the reason why it cannot be read, and the remedy. ``checksum`` is that of the
    whole member, as in manifests; 0 in tar archives. ``deflated_size`` is the size in bytes of
    the deflated data, or None. ``entry_size`` is the size in bytes of header and data in a zip
    archive.
    """

    length: int
    offset: int | None
    header: int
    problem: str | None = None
    checksum: int = 0
    deflated_size: int | None = None
    entry_size: int = 0


Index = Mapping[str, ArchiveMember]


def is_zip(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a zip archive."""
    return head.startswith(ZIP_MAGIC)


def is_tar(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a tar archive."""
    return head[257:262] == b"ustar"


def read_zip_index(read: Read, size: int, url: str) -> Index:
    """Read the members of a zip archive from its central directory."""
    with (
        _describe_errors(url),
        zipfile.ZipFile(
            BlockFile(_PrefetchedArchive(read, size, max(size - ZIP_TAIL, 0)))
        ) as archive,
    ):
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        stops = sorted({entry.header_offset for entry in archive.infolist()})
        stops.append(archive.start_dir)
    _check_no_references(entries, url)
    next_header = dict(pairwise(stops))
    return {entry.filename: _parse_zip_member(entry, next_header, size, url) for entry in entries}


def _parse_zip_member(
    entry: zipfile.ZipInfo, next_header: Mapping[int, int], size: int, url: str
) -> ArchiveMember:
    stored, header = entry.compress_size, entry.header_offset
    entry_size, data_stop = next_header[header] - header, header + LOCAL_HEADER_SIZE + stored
    if header < 0 or data_stop > min(next_header[header], size):
        raise FormatError(
            f"{url}: the member {entry.filename!r} extends to byte {data_stop} of {size}, beyond "
            f"the next member or the end; the archive is damaged, fetch it again"
        )
    # there is no extra field if only name and data fit before the next header
    name = entry.orig_filename.encode("utf-8" if entry.flag_bits & 0x800 else "cp437", "replace")
    min_header = LOCAL_HEADER_SIZE + len(name)
    has_no_extra = entry_size == min_header + stored and not entry.flag_bits & STREAMED
    is_deflated = entry.compress_type == zipfile.ZIP_DEFLATED
    return ArchiveMember(
        entry.file_size if is_deflated else stored,
        header + min_header if has_no_extra else None,
        header,
        _find_zip_problem(entry),
        CHECKSUM_FLAG + entry.CRC,
        stored if is_deflated else None,
        # there may be other data before the next member
        min(entry_size, MAX_HEADER + stored + MAX_DESCRIPTOR),
    )


def _check_no_references(entries: Sequence[zipfile.ZipInfo], url: str) -> None:
    """Raise an error if a member of an archive refers to another file."""
    for entry in entries:
        offset = 0
        # zipfile has validated the lengths of the fields
        while offset + 4 <= len(entry.extra):
            field_id, length = struct.unpack_from("<HH", entry.extra, offset)
            if field := REFERENCE_FIELDS.get(field_id):
                raise UnsupportedError(
                    f"{url}: its member {entry.filename!r} is a reference to another file (extra "
                    f"field {field!r} of refkv, as in .vzip), which is not read; open the files "
                    f"that the archive was made of"
                )
            offset += 4 + length


def _find_zip_problem(entry: zipfile.ZipInfo) -> str | None:
    if entry.flag_bits & ENCRYPTED:
        return "it is encrypted; unpack the archive"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        method = UNSUPPORTED_METHODS.get(entry.compress_type, f"method {entry.compress_type}")
        return (
            f"the member is compressed by {method}; unpack the archive, or pack it again without "
            f"compression (zip -0)"
        )
    if entry.compress_type == zipfile.ZIP_STORED and entry.file_size != entry.compress_size:
        return f"{entry.compress_size} of its {entry.file_size} bytes are stored; fetch it again"
    return None


def parse_data_offset(header: bytes, offset: int, url: str) -> int:
    """Return the offset of the data of a zip member from its local header at ``offset``."""
    if not header.startswith(LOCAL_MAGIC) or len(header) < LOCAL_HEADER_SIZE:
        raise FormatError(
            f"{url}: there is no header of a member at byte {offset}; the archive is damaged, "
            f"fetch it again"
        )
    name, extra = struct.unpack_from("<HH", header, 26)
    return int(offset + LOCAL_HEADER_SIZE + name + extra)


def read_tar_index(read: Read, size: int, url: str) -> Index:
    """Read the members of a tar archive from their headers."""
    archive_file = BlockFile(_PrefetchedArchive(read, size, 0))
    check_uncompressed(url, archive_file.read(TAR_BLOCK))
    archive_file.seek(0)
    members = {}
    with _describe_errors(url), tarfile.TarFile(fileobj=archive_file, mode="r") as archive:
        for entry in archive:
            if entry.isdir():
                continue
            problem = None if entry.isreg() else "it is not a regular file"
            if entry.issparse():
                problem = "it is stored with holes (a sparse file); unpack the archive"
            elif entry.islnk() or entry.issym():
                problem = f"it is a link to {entry.linkname!r}; open that member"
            name = entry.name.removeprefix("./")
            members[name] = ArchiveMember(entry.size, entry.offset_data, entry.offset, problem)
        end = archive.offset
        archive_file.seek(end)
        last = archive_file.read(TAR_BLOCK)
    if len(last) < TAR_BLOCK or any(last):
        # otherwise members after a damaged header would be ignored silently
        raise FormatError(
            f"{url}: at byte {end} there is neither a member nor the end of the archive; it is "
            f"truncated or damaged, fetch it again"
        )
    return members


@contextmanager
def _describe_errors(url: str) -> Iterator[None]:
    """Convert the errors of `zipfile` and `tarfile` for damaged archives to `FormatError`."""
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
        SeekError,
    ) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{url}: it is not a sound archive ({error}); it is truncated or damaged, fetch "
            f"it again"
        ) from error


class _PrefetchedArchive:
    """Reads an archive sequentially, and prefetches the ranges that are likely to be read next.

    The last range is cached. Ranges at a constant distance from each other, such as the headers of
    members of equal size, are fetched together.
    """

    def __init__(self, read: Read, size: int, start: int) -> None:
        self._read, self.size = read, size
        self._prefetched: dict[int, bytes] = {}
        # tarfile also reads the byte before a header
        self._last, self._step, self._count = -1, 0, MIN_GUESSED
        [self._buffer] = read([(start, min(ZIP_TAIL, size - start))]) if size else [b""]
        self._start = start

    def read(self, offset: int, length: int) -> bytes:
        begin = offset - self._start
        if begin < 0 or begin + length > len(self._buffer):
            self._start, begin = offset, 0
            self._buffer = self._prefetched.pop(offset, b"")
            if len(self._buffer) < length:
                self._buffer = self._fetch(offset, min(max(length, READ_AHEAD), self.size - offset))
        return self._buffer[begin : begin + length]

    def _fetch(self, offset: int, length: int) -> bytes:
        """Fetch a range, together with the ranges that are likely to be read next."""
        step, self._step = self._step, offset - self._last
        self._last, ranges = offset, [(offset, length)]
        if step == self._step > READ_AHEAD:
            last = min(offset + self._count * step, self.size - TAR_HEADER_BYTES)
            ranges += [(n, TAR_HEADER_BYTES) for n in range(offset + step, last + 1, step)]
            self._count = min(2 * self._count, MAX_GUESSED)
            self._last = ranges[-1][0]
        fetched = self._read(ranges)
        self._prefetched = {offset: data for (offset, _), data in zip(ranges, fetched, strict=True)}
        return fetched[0]


# ---------------------------------------------------------------------- the store


CACHED_ARCHIVES = 16
"""Number of archives whose members are cached, in an LRU cache."""

EXTRA_BYTES = 256
"""Number of bytes to read for the name and extra field of a local header."""

MAX_DEFLATE_OVERHEAD = 64
"""Maximum number of bytes by which deflate enlarges incompressible data."""

ReadIndex = Callable[[Read, int, str], Index]


@dataclass(frozen=True)
class _ListedArchive:
    """An archive, and its members when it was listed."""

    file: SourceFile
    members: Index
    head: bytes
    """The first bytes of the archive, with the header of its first member."""
    data_offsets: dict[int, int] = field(default_factory=dict, compare=False)
    """Offset of the data by the offset of the local header, for headers that have been read."""

    def find_data_offset(self, member: ArchiveMember, offset: int = 0, data: bytes = b"") -> int:
        """Return the offset of the data of a member.

        If it is unknown, it is parsed from the local header in ``data``, which are the bytes of the
        archive at ``offset``.
        """
        if member.offset is not None:
            return member.offset
        if member.header not in self.data_offsets:
            self.data_offsets[member.header] = parse_data_offset(data, offset, self.file.url)
        return self.data_offsets[member.header]

    def find_head(self, member: ArchiveMember, length: int) -> Range:
        """Return the range of the first bytes of a member, with its header if it must be read."""
        count = _count_stored(member, length)
        if member.offset is not None:
            return member.offset, count
        count += LOCAL_HEADER_SIZE + EXTRA_BYTES
        return member.header, min(count, (self.file.size or 0) - member.header)


class ArchiveStore(Store):
    """The members of zip or tar archives.

    ``read_index`` reads the members of an archive, and ``get_store`` returns the store of a url.
    """

    read_only_message = "virtualds does not write into archives; write beside it"

    def __init__(self, read_index: ReadIndex, get_store: Callable[[str], Store]) -> None:
        self._read_index, self._get_store = read_index, get_store
        self._archives: OrderedDict[tuple[str, StorageOptions | None], _ListedArchive] = (
            OrderedDict()
        )
        self._lock = threading.Lock()

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of ranges of a member."""
        archive, member = self._find_member(file)
        is_whole = all(range_ == (0, member.length) for range_ in ranges)
        if member.deflated_size is not None and not is_whole:
            raise make_member_error(file.url)
        if ranges and is_whole and (member.deflated_size is not None or member.offset is None):
            return [self._read_whole(archive, member)] * len(ranges)
        for item, (offset, length) in enumerate(ranges):
            if offset + length > member.length:
                raise StoreError(
                    f"the member has {member.length} bytes, not {offset + length}", item
                )
        self._read_headers(archive, [member])
        begin = archive.find_data_offset(member)
        moved = [(begin + offset, length) for offset, length in ranges]
        fetched = self._get_store(archive.file.url).get_ranges(archive.file, moved)
        for item, data in enumerate(fetched):
            # the checksum is that of the whole member
            if len(data) == member.length and (reason := describe_mismatch(data, member.checksum)):
                raise StoreError(f"the archive is damaged (bytes of the member: {reason})", item)
        return fetched

    def check_unchanged(self, file: SourceFile) -> None:
        """Raise an error if the archive has changed since it was scanned."""
        archive, _ = self._find_member(file)
        self._get_store(archive.file.url).check_unchanged(archive.file)

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        archive = self._open_archive(url, options)
        return _describe_member(url, archive, _find_member(archive, url), options)

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return the file of a member and its first bytes, with one request."""
        archive = self._open_archive(url, options, fresh=True)
        member = _find_member(archive, url)
        file = _describe_member(url, archive, member, options)
        # return only the cached first bytes, if there are any
        begin = (
            member.header + LOCAL_HEADER_SIZE + EXTRA_BYTES
            if member.offset is None
            else member.offset
        )
        cached = (len(archive.head) - begin) // PAGE_SIZE * PAGE_SIZE
        length = cached if 0 < cached < min(length, member.length) else length
        [head] = self._read_heads(archive, [member], length)
        if len(head) == member.length and describe_mismatch(head, member.checksum):
            # get_ranges raises an error for the wrong checksum
            return file, self.get_ranges(file, [(0, len(head))])[0]
        return file, head

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        """List all members below a folder of the archive."""
        archive = self._open_archive(url, options, fresh=True)
        folder = split_archive_url(url).member.strip("/")
        start = f"{folder}/" if folder else ""
        return [
            ListedFile(path, _describe_member(join_path(url, path), archive, member, options), None)
            for name, member in sorted(archive.members.items())
            if (path := name.removeprefix(start)) and name.startswith(start)
        ]

    def locate_members(self, files: Sequence[SourceFile]) -> list[tuple[SourceFile, int]]:
        """Return, for each member, its archive and the offset of its data."""
        pairs = [self._find_member(file) for file in files]
        by_archive: dict[SourceFile, tuple[_ListedArchive, list[ArchiveMember]]] = {}
        for file, (archive, member) in zip(files, pairs, strict=True):
            if member.deflated_size is not None:
                raise make_member_error(file.url)
            by_archive.setdefault(archive.file, (archive, []))[1].append(member)
        for archive, members in by_archive.values():
            self._read_headers(archive, members)
        members_with_archive = [(by_archive[archive.file][0], member) for archive, member in pairs]
        return [
            (archive.file, archive.find_data_offset(member))
            for archive, member in members_with_archive
        ]

    def read_heads(self, files: Sequence[SourceFile], length: int) -> list[bytes]:
        """Return the first bytes of several members of one archive, with one request."""
        pairs = [self._find_member(file) for file in files]
        return self._read_heads(pairs[0][0], [member for _, member in pairs], length)

    def find_member(self, file: SourceFile) -> tuple[SourceFile, ArchiveMember]:
        """Return the archive of a file, and its member there."""
        archive, member = self._find_member(file)
        return archive.file, member

    # ------------------------------------------------------------------ archives

    def _read_heads(
        self, archive: _ListedArchive, members: Sequence[ArchiveMember], length: int
    ) -> list[bytes]:
        """Return the first bytes of members, fetching each together with its header."""
        spans = [archive.find_head(member, length) for member in members]
        fetched = self._fetch(archive, spans)
        return [
            self._read_prefix(archive, member, length, offset, data)
            for member, (offset, _), data in zip(members, spans, fetched, strict=True)
        ]

    def _read_prefix(
        self, archive: _ListedArchive, member: ArchiveMember, length: int, offset: int, data: bytes
    ) -> bytes:
        """Return the first bytes of a member from ``data``, bytes of the archive at ``offset``."""
        begin, count = archive.find_data_offset(member, offset, data), _count_stored(member, length)
        head = data[begin - offset :][:count]
        if len(head) < count:
            [head] = self._get_store(archive.file.url).get_ranges(archive.file, [(begin, count)])
        if member.deflated_size is None:
            return head
        try:
            decoded = zlib.decompressobj(-zlib.MAX_WBITS).decompress(head, length)
        except zlib.error as error:
            raise StoreError(f"the archive is damaged: {error}") from error
        if len(decoded) < min(length, member.length):
            return self._read_whole(archive, member)[:length]
        return decoded

    def _read_whole(self, archive: _ListedArchive, member: ArchiveMember) -> bytes:
        """Read and decode a whole member of a zip archive, with one request for header and data."""
        store, span = self._get_store(archive.file.url), (member.header, member.entry_size)
        [entry] = store.get_ranges(archive.file, [span])
        data = entry[archive.find_data_offset(member, member.header, entry) - member.header :]
        try:
            if member.deflated_size is None:
                decoded = data[: member.length]
            else:
                decoded = decode_stream(zlib.decompressobj(-zlib.MAX_WBITS), data, None)
        except (zlib.error, ValueError, EOFError) as error:
            raise StoreError(f"the archive is damaged: {error}") from error
        if reason := describe_mismatch(decoded, member.checksum):
            raise StoreError(f"the archive is damaged (bytes of the member: {reason})")
        return decoded

    def _find_member(self, file: SourceFile) -> tuple[_ListedArchive, ArchiveMember]:
        """Return the archive and the member of a scanned file, after checking its fingerprint."""
        for fresh in (False, True):
            archive = self._open_archive(file.url, file.options, fresh=fresh)
            member = _find_member(archive, file.url)
            current = _describe_member(file.url, archive, member, file.options)
            pairs = zip(file.fingerprint, current.fingerprint, strict=True)
            if all(a == b for a, b in pairs if a is not None and b is not None):
                return archive, member
        if get_options().check_sources:
            raise StoreError(
                f"the archive was modified after it was scanned: {current.fingerprint}, it was "
                f"{file.fingerprint} (size of the member, time and etag of the archive)"
            )
        return archive, member

    def _open_archive(
        self, url: str, options: StorageOptions | None, *, fresh: bool = False
    ) -> _ListedArchive:
        """Return an archive with its members; ``fresh`` checks a cached one for changes."""
        parent = split_archive_url(url).archive
        all_options: Mapping[str, Any] = options or {}
        # as in fsspec, options may be nested by the scheme of the archive's own url
        archive_options = all_options.get(scheme_of(parent))
        if not isinstance(archive_options, Mapping):
            archive_options = {
                name: value for name, value in all_options.items() if name != scheme_of(url)
            }
        inner = StorageOptions.of(archive_options)
        key = (parent, inner)
        with self._lock:
            cached = self._archives.get(key)
            if cached is not None:
                self._archives.move_to_end(key)
        store = self._get_store(parent)
        if cached is not None and (not fresh or store.describe(parent, inner) == cached.file):
            # without time and etag, the content may have changed even if the size has not
            is_unchanged = (
                not fresh or cached.file.mtime is not None or cached.file.etag is not None
            )
            return cached if is_unchanged else replace(cached, head=b"")
        archive = self._read_listing(store, parent, inner)
        with self._lock:
            self._archives[key] = archive
            while len(self._archives) > CACHED_ARCHIVES:
                self._archives.popitem(last=False)
        return archive

    def _read_listing(
        self, store: Store, url: str, options: StorageOptions | None
    ) -> _ListedArchive:
        file, head = store.read_head(url, options, FIRST_PAGES * PAGE_SIZE)
        if file.size is None:
            raise UnsupportedError(
                f"{url}: the server does not support byte ranges, which reading a member needs; "
                f"copy the archive to local disk"
            )

        archive = _ListedArchive(file, {}, head)
        return replace(
            archive,
            members=self._read_index(lambda ranges: self._fetch(archive, ranges), file.size, url),
        )

    def _fetch(self, archive: _ListedArchive, ranges: Sequence[Range]) -> list[bytes]:
        """Return the bytes of ranges of an archive, from its cached first bytes if possible."""
        parts = [archive.head[offset : offset + length] for offset, length in ranges]
        missing = [n for n, data in enumerate(parts) if len(data) < ranges[n][1]]
        if missing:
            store = self._get_store(archive.file.url)
            fetched = store.get_ranges(archive.file, [ranges[n] for n in missing])
            for n, data in zip(missing, fetched, strict=True):
                parts[n] = bytes(data)
        return parts

    def _read_headers(self, archive: _ListedArchive, members: Sequence[ArchiveMember]) -> None:
        """Read the local headers of members whose data offset is unknown."""
        without_offset = (member for member in members if member.offset is None)
        unknown = {
            member.header: member
            for member in without_offset
            if member.header not in archive.data_offsets
        }
        headers = self._get_store(archive.file.url).get_ranges(
            archive.file, [(offset, LOCAL_HEADER_SIZE) for offset in unknown]
        )
        for (offset, member), header in zip(unknown.items(), headers, strict=True):
            archive.find_data_offset(member, offset, header)


def _count_stored(member: ArchiveMember, length: int) -> int:
    """Return the number of stored bytes that contain the first ``length`` bytes of a member."""
    if member.deflated_size is None:
        return min(length, member.length)
    return min(length + MAX_DEFLATE_OVERHEAD, member.deflated_size)


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
    """Return the file of a member: its own size, and the time and etag of the archive."""
    if member.problem is not None:
        raise UnsupportedError(f"{url}: {member.problem}")
    return SourceFile(url, member.length, archive.file.mtime, archive.file.etag, options)
