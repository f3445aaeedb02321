"""The members of zip and tar archives, found by reading few bytes; files compressed as a whole.

Zip archives are described by the ".ZIP File Format Specification" (PKWARE, APPNOTE.TXT), tar
archives by POSIX.1-2017, "pax" (ustar Interchange Format). Python's own modules parse both.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

from virtualds.errors import FormatError, UnsupportedError
from virtualds.source_file import PRESENT, StorageOptions
from virtualds.stores.store import Range
from virtualds.urls import path_or_url, scheme_of

# ---------------------------------------------------------------------- files compressed as a whole
# No range of their bytes is a chunk of the file within. What to do about them is said here, for
# files and for members of archives.


class Compression(NamedTuple):
    """A program that compresses files, and its name in fsspec, if it has one."""

    program: str
    fsspec: str | None


COMPRESSIONS = {
    b"\x1f\x8b": Compression("gzip", "gzip"),
    b"\x1f\x9d": Compression("compress", None),
    b"BZh": Compression("bzip2", "bz2"),
    b"\xfd7zXZ\0": Compression("xz", "xz"),
    b"\x28\xb5\x2f\xfd": Compression("zstd", "zstd"),
}
"""The programs by the first bytes of what they make."""

TARS = (".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
"""Suffixes of compressed tar archives, of which fsspec reads members."""


def demand_uncompressed(url: str, head: bytes, options: StorageOptions | None = None) -> None:
    """Refuse a file that begins as a compressed one does.

    Raises
    ------
    UnsupportedError
        It does.
    """
    found = next((how for magic, how in COMPRESSIONS.items() if head.startswith(magic)), None)
    if found is None:
        return
    if url.partition("?")[0].endswith(TARS):
        shown = url if scheme_of(url) == "tar" else f"tar://MEMBER::{url}"
        raise make_compressed_error(url, found.program, _call_fsspec(shown))
    call = found.fsspec and _call_fsspec(
        url, f", compression={found.fsspec!r}", ", **storage_options" if options else ""
    )
    raise make_compressed_error(url, found.program, call)


def make_member_error(url: str) -> UnsupportedError:
    """Return the error of a deflated member of a zip archive, of which a part is wanted."""
    return make_compressed_error(url, "deflate", _call_fsspec(url))


def make_compressed_error(url: str, program: str, call: str | None) -> UnsupportedError:
    """Return the error of a compressed file, with the lines that open it by a call of fsspec."""
    reason = f"{url}: it is compressed as a whole by {program}, so its chunks are no byte ranges"
    if call is None:
        return UnsupportedError(f"{reason}; decompress it")
    return UnsupportedError(
        f"{reason}; decompress it, or open it in memory:\n"
        f"  with {call} as file:\n"
        f"      ds = virtualds.open_virtual_dataset(file.read())\n"
        f"  ds.virtual.materialize('copy.zarr')  # to keep it"
    )


def _call_fsspec(url: str, *options: str) -> str:
    shown = path_or_url(url)
    return f"fsspec.open({shown!r}{''.join(options)})"


# ---------------------------------------------------------------------- members


AHEAD = 2**16
"""Bytes that are read at a time, unless more are asked for."""

TAIL = 2**16 + 22
"""Bytes at the end of a zip archive among which its last record begins (APPNOTE, 4.3.16)."""

LOCAL_HEADER = 30
"""Bytes of a local file header before name and extra field (APPNOTE, 4.3.7)."""

LOCAL_MAGIC = b"PK\3\4"
"""First bytes of a local file header."""

ZIP_MAGIC = (LOCAL_MAGIC, b"PK\5\6")
"""First bytes of an archive with members, and of one without."""

REFERENCES = {0x7A76: "vz", 0x7A77: "wz"}
"""Extra fields of members that are references to other files ("ZIP binding" of refkv, 11.3)."""

ENCRYPTED, STREAMED = 0x1, 0x8
"""General purpose flags (APPNOTE, 4.4.4)."""

BLOCK = 512
"""Bytes of a tar block."""

METHODS = {9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz"}
"""Compression methods that are not read (APPNOTE, 4.4.5); 0 is none, 8 is deflate."""

LONGEST_HEADER = LOCAL_HEADER + 2 * (2**16 - 1)
"""Bytes of the longest local header."""

DESCRIPTOR = 24
"""Bytes of the longest record behind the data of a streamed member (APPNOTE, 4.3.9)."""

Read = Callable[[Sequence[Range]], Sequence[bytes]]
"""Takes ranges of an archive, and returns their bytes."""

GUESSED, MOST_GUESSED = 8, 256
"""Headers that are fetched together where members have one size: at first, and at most."""

HEADERS = 4 * BLOCK
"""Bytes that hold the headers of most tar members: one block, or three with extended names."""


class OutsideError(OSError):
    """A seek before the first byte of an archive."""


class ArchiveMember(NamedTuple):
    """A file in an archive.

    ``offset`` is where its bytes begin, None where its header at ``header`` must be read first.
    ``problem`` says why its bytes are not plain bytes of the archive, and what to do.
    ``checksum`` is that of the whole member, in the form of manifests; tar archives have none.
    ``packed`` is the number of deflated bytes, of a member whose ``length`` bytes are deflated.
    ``entry`` is the number of bytes from its header to what follows the member, in a zip archive.
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
    """Say whether a file that begins with ``head`` is a zip archive."""
    return head.startswith(ZIP_MAGIC)


def is_tar(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is a tar archive."""
    return head[257:262] == b"ustar"


def read_zip_index(read: Read, size: int, where: str) -> Index:
    """Return the members of a zip archive, from its central directory.

    Raises
    ------
    FormatError
        The archive is damaged or truncated.
    UnsupportedError
        Its members are references.
    """
    with (
        _describe_errors(where),
        zipfile.ZipFile(_Window(read, size, max(size - TAIL, 0))) as archive,
    ):
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        stops = sorted({entry.header_offset for entry in archive.infolist()})
        stops.append(archive.start_dir)
    _refuse_references(entries, where)
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
    # where the next header follows the data exactly, there is no extra field
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
        # something else may lie between two members
        min(whole, LONGEST_HEADER + stored + DESCRIPTOR),
    )


def _refuse_references(entries: Sequence[zipfile.ZipInfo], where: str) -> None:
    """Refuse an archive of references: the bytes of its members are no data."""
    for entry in entries:
        place = 0
        # zipfile has found that the fields fill the bytes
        while place + 4 <= len(entry.extra):
            kind, length = struct.unpack_from("<HH", entry.extra, place)
            if field := REFERENCES.get(kind):
                raise UnsupportedError(
                    f"{where}: its member {entry.filename!r} is a reference to another file (extra "
                    f"field {field!r} of refkv, as in .vzip), which is not read; open the files "
                    f"that the archive was made of"
                )
            place += 4 + length


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


def parse_data_offset(header: bytes, place: int, where: str) -> int:
    """Return the data offset of the zip member whose local header lies at ``place``.

    Raises
    ------
    FormatError
        There is no such header.
    """
    if not header.startswith(LOCAL_MAGIC) or len(header) < LOCAL_HEADER:
        raise FormatError(
            f"{where}: there is no header of a member at byte {place}; the archive is damaged, "
            f"fetch it again"
        )
    name, extra = struct.unpack_from("<HH", header, 26)
    return int(place + LOCAL_HEADER + name + extra)


def read_tar_index(read: Read, size: int, where: str) -> Index:
    """Return the members of a tar archive, from the header of each.

    Raises
    ------
    FormatError
        The archive is damaged or truncated.
    UnsupportedError
        It is compressed.
    """
    window = _Window(read, size, 0)
    demand_uncompressed(where, window.read(BLOCK))
    window.seek(0)
    found = {}
    with _describe_errors(where), tarfile.TarFile(fileobj=window, mode="r") as archive:
        for entry in archive:
            if not entry.isdir():
                name = entry.name.removeprefix("./")
                found[name] = ArchiveMember(
                    entry.size, entry.offset_data, entry.offset, _find_tar_problem(entry)
                )
        end = archive.offset
        window.seek(end)
        last = window.read(BLOCK)
    if len(last) < BLOCK or any(last):
        # members behind a damaged header would be lost silently
        raise FormatError(
            f"{where}: at byte {end} there is neither a member nor the end of the archive; it is "
            f"truncated or damaged, fetch it again"
        )
    return found


def _find_tar_problem(entry: tarfile.TarInfo) -> str | None:
    if entry.issparse():
        return "it is stored with holes (a sparse file); unpack the archive"
    if entry.islnk() or entry.issym():
        return f"it is a link to {entry.linkname!r}; name that one"
    return None if entry.isreg() else "it is not a regular file"


@contextmanager
def _describe_errors(where: str) -> Iterator[None]:
    """Turn the errors of Python's modules for damaged archives into `FormatError`."""
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


class _Window(io.RawIOBase):
    """An archive as a file object that holds the piece that was read last.

    Pieces that are read at one distance from each other, as the headers of members of one size are,
    are fetched together. A wrong guess costs nothing but its bytes.
    """

    def __init__(self, read: Read, size: int, start: int) -> None:
        self._read, self._size, self._place = read, size, 0
        self._guessed: dict[int, bytes] = {}
        # tarfile looks at the byte before a header
        self._last, self._step, self._count = -1, 0, GUESSED
        [self._held] = read([(start, min(TAIL, size - start))]) if size else [b""]
        self._start = start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            # an OSError, which zipfile expects where an archive is shorter than a record
            raise OutsideError(f"byte {start + offset} of an archive")
        self._place = start + offset
        return self._place

    def read(self, count: int | None = -1, /) -> bytes:
        """Return bytes up to the end of the archive, without memory for more."""
        left = max(self._size - self._place, 0)
        count = left if count is None or count < 0 else min(count, left)
        begin = self._place - self._start
        if begin < 0 or begin + count > len(self._held):
            self._start, begin = self._place, 0
            self._held = self._guessed.pop(self._place, b"")
            if len(self._held) < count:
                self._held = self._fetch(min(max(count, AHEAD), left)) if left else b""
        self._place += count
        return self._held[begin : begin + count]

    def _fetch(self, length: int) -> bytes:
        """Return bytes from here on, and fetch what is likely to be read next along with them."""
        step, self._step = self._step, self._place - self._last
        self._last, wanted = self._place, [(self._place, length)]
        if step == self._step > AHEAD:
            last = min(self._place + self._count * step, self._size - HEADERS)
            wanted += [(n, HEADERS) for n in range(self._place + step, last + 1, step)]
            self._count = min(2 * self._count, MOST_GUESSED)
            self._last = wanted[-1][0]
        found = self._read(wanted)
        self._guessed = {place: data for (place, _), data in zip(wanted, found, strict=True)}
        return found[0]
