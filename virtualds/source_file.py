"""Source files: urls, fingerprints, access options, checksums of chunks.

Urls are absolute and have a scheme. They are not percent-encoded: as in fsspec, the text after the
scheme is the name itself, which may contain colons, spaces, ``#`` and ``%``.
"""

from __future__ import annotations

import os
import posixpath
import re
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import PurePath, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.errors import public, without_secrets

NO_NUMBER = np.iinfo(np.int64).min
"""The value for an unknown size or time in a column of integers."""


class StorageOptions(dict[str, Any]):
    """Access options of a file: hashable, with a repr that hides their values."""

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> StorageOptions | None:
        """Return the access options that a user has passed, or None if there are none."""
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(
                f"storage_options: got {type(options).__name__}; give a dict of options for fsspec"
            )
        if not options:
            return None
        return options if isinstance(options, cls) else cls(options)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self)))

    def __repr__(self) -> str:
        return f"<options {sorted(self)}>"


@public
class SourceFile(NamedTuple):
    """A file with chunks, and its fingerprint at the time of the scan.

    ``size`` is in bytes, ``mtime`` in nanoseconds since 1970; None means unknown.

    Examples
    --------
    >>> SourceFile("s3://bucket/a.nc", size=2048).size
    2048
    """

    url: str
    size: int | None = None
    mtime: int | None = None
    etag: str | None = None
    options: StorageOptions | None = None

    def __repr__(self) -> str:
        pairs = zip(self._fields, (without_secrets(self.url), *self[1:]), strict=True)
        return f"SourceFile({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    @property
    def fingerprint(self) -> tuple[int | None, int | None, str | None]:
        """Size, modification time and etag."""
        return self.size, self.mtime, self.etag

    def merge(self, other: SourceFile) -> SourceFile | None:
        """Merge two scans of a file, or return None if they contradict each other.

        Examples
        --------
        >>> file = SourceFile("s3://bucket/a.nc", size=2048)
        >>> file.merge(file._replace(etag="e")).etag
        'e'
        >>> file.merge(file._replace(size=1))
        """
        if self.fingerprint == other.fingerprint:
            return self
        pairs = list(zip(self.fingerprint, other.fingerprint, strict=True))
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
            return None
        merged: list[Any] = [a if b is None else b for a, b in pairs]
        size, mtime, etag = merged
        return self._replace(size=size, mtime=mtime, etag=etag)


CHECKSUM_FLAG = 2**32
"""The number that is added to a CRC-32, so that 0 can mean "no checksum"."""


def compute_checksum(data: bytes | bytearray | memoryview) -> int:
    """Return the checksum of bytes as in manifests: `CHECKSUM_FLAG` + CRC-32 (RFC 1952, section 8).

    Examples
    --------
    >>> hex(compute_checksum(b"123456789"))
    '0x1cbf43926'
    """
    return CHECKSUM_FLAG + zlib.crc32(data)


def describe_mismatch(data: bytes | bytearray | memoryview, expected: int) -> str | None:
    """Return how the checksum of bytes differs, or None if it is as expected or 0 is expected.

    Examples
    --------
    >>> describe_mismatch(b"123456789", compute_checksum(b"12345678"))
    'their CRC-32 is 0xcbf43926, the reference says 0x9ae0daaf'
    """
    if not expected or (actual := compute_checksum(data)) == expected:
        return None
    crc32, expected_crc32 = actual - CHECKSUM_FLAG, expected - CHECKSUM_FLAG
    return f"their CRC-32 is {crc32:#010x}, the reference says {expected_crc32:#010x}"


def compute_tail_checksum(head: bytes, checksum: int, tail_length: int) -> int:
    """Return the checksum of a tail from its length, the head, and the checksum of head + tail.

    Parameters
    ----------
    head : bytes
        The bytes before the tail.
    checksum : int
        The checksum of head and tail.
    tail_length : int

    Notes
    -----
    A CRC is linear: the CRC of head and tail is the CRC of the head, continued over as many zeros
    as the tail has bytes, xor the CRC of the tail.

    Examples
    --------
    >>> tail = compute_tail_checksum(b"12345", compute_checksum(b"123456789"), 4)
    >>> tail == compute_checksum(b"6789")
    True
    """
    # zlib inverts the register before and after
    inverted = CHECKSUM_FLAG - 1
    continued = zlib.crc32(bytes(tail_length), zlib.crc32(head) ^ inverted) ^ inverted
    return CHECKSUM_FLAG + ((checksum - CHECKSUM_FLAG) ^ continued)


def from_crc32(values: npt.ArrayLike | None) -> npt.NDArray[np.uint64]:
    """Convert CRC-32 values to checksums of a manifest; None means no checksum.

    Raises
    ------
    ValueError
        The values are not integers of 32 bits.

    Examples
    --------
    >>> from_crc32([0, None]).tolist()
    [4294967296, 0]
    """
    crcs: npt.NDArray[Any] = np.asarray(values)
    is_present = np.array(True)
    if crcs.dtype == object:
        is_present = np.array([crc is not None for crc in crcs.ravel()], bool).reshape(crcs.shape)
        crcs = np.array(np.where(is_present, crcs, 0).tolist())
    if crcs.size and crcs.dtype.kind not in "iu":
        raise ValueError(f"checksums: {crcs.dtype} given; give integers, or None for none")
    if crcs.size and not 0 <= int(crcs.min()) <= int(crcs.max()) < CHECKSUM_FLAG:
        raise ValueError(
            f"checksums: {crcs.min()} to {crcs.max()} are not CRC-32 values; give 0 to 2**32 - 1"
        )
    return np.where(is_present, crcs.astype(np.uint64) + np.uint64(CHECKSUM_FLAG), np.uint64(0))


def find_valid_checksums(checksums: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Return a mask of the values that are valid checksums: 0, or `CHECKSUM_FLAG` plus a CRC-32."""
    is_valid: npt.NDArray[np.bool_] = (checksums == 0) | (checksums >> 32 == 1)
    return is_valid


# ---------------------------------------------------------------------- urls

ARCHIVES = frozenset({"zip", "tar"})
"""Schemes of members of archives, as in ``zip://2001.nc::s3://bucket/data.zip``."""

OBJECT_SCHEME = "held"
"""The scheme of urls of bytes and open files in this process."""

KINDS: dict[str, tuple[str, ...]] = {
    "s3": ("s3", "s3a"),
    "gs": ("gs", "gcs"),
    "az": ("az", "abfs", "abfss"),
}
"""Kinds of object stores that virtualds implements itself, and their schemes."""

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)(://|::)")


@lru_cache(4096)
def scheme_of(url: str) -> str:
    """Return the scheme of a url, or ``file`` for a bare path.

    Examples
    --------
    >>> scheme_of("s3://bucket/2001.nc"), scheme_of("/data/2001.nc")
    ('s3', 'file')
    """
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else "file"
    return "file" if scheme == "local" else scheme


def kind_of(url: str) -> str:
    """Return the kind of store of a url: a key of `KINDS`, or else the scheme.

    Examples
    --------
    >>> kind_of("gcs://bucket/2001.nc"), kind_of("sftp://host/2001.nc")
    ('gs', 'sftp')
    """
    scheme = scheme_of(url)
    return next((kind for kind, schemes in KINDS.items() if scheme in schemes), scheme)


def host_of(url: str) -> str:
    """Return the scheme and the host or bucket of a url.

    Examples
    --------
    >>> host_of("s3://bucket/a/b.nc")
    's3://bucket'
    """
    scheme, _, rest = url.rpartition("::")[2].partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def normalise_url(path: str | os.PathLike[str]) -> str:
    """Return the absolute url, with scheme, of a path or url.

    Raises
    ------
    TypeError
        The path is neither a string nor path-like.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise TypeError(
            f"a path or url is expected, got {type(path).__name__}; give one, or bytes, an open "
            f"binary file, or a dict of references"
        )
    if _is_in_archive(text):
        link, _, archive = text.partition("::")
        return f"{link}::{normalise_url(archive)}"
    if scheme_of(text) != "file":
        return text
    path = os.path.abspath(os.path.expanduser(local_path(text)))
    return "file://" + (path if os.sep == "/" else PurePath(path).as_posix())


def local_path(url: str) -> str:
    """Return the path of a ``file`` url or a bare path."""
    match = _SCHEME.match(url)
    path = url[match.end() :] if match else url
    # file:///C:/data: the slash before a drive letter belongs to the url
    is_drive = os.name == "nt" and path.startswith("/") and PureWindowsPath(path[1:]).drive
    return path[1:] if is_drive else path


def path_or_url(url: str) -> str:
    """Return the path of a local file, or the url of a remote file, for messages.

    Examples
    --------
    >>> path_or_url("file:///data/a.nc"), path_or_url("s3://data/a.nc")
    ('/data/a.nc', 's3://data/a.nc')
    """
    return local_path(url) if scheme_of(url) == "file" else url


def join_url(base: str, relative: str) -> str:
    """Return the url of a path relative to the parent folder of ``base``."""
    if _is_in_archive(base):
        member, archive = split_archive_url(base)
        folder = member.rpartition("/")[0]
        return join_path(f"{scheme_of(base)}://{folder}::{archive}", relative)
    folder, _, _ = base.rpartition("/")
    return f"{folder}/{relative}"


def make_relative(url: str, base: str) -> str:
    """Return a url relative to the parent folder of ``base``, or the url itself on another host.

    Examples
    --------
    >>> make_relative("s3://bucket/data/2001.nc", "s3://bucket/sets/refs.json")
    '../data/2001.nc'
    >>> make_relative("file:///data/2001.nc", "file:///data/refs.json")
    './2001.nc'
    """
    if "::" in url or "::" in base or url.split("/")[:3] != base.split("/")[:3]:
        return url
    relative = posixpath.relpath(url, base.rpartition("/")[0])
    # the beginning of a bare name may look like a scheme
    return relative if relative.startswith("../") else f"./{relative}"


class ArchiveUrl(NamedTuple):
    """A file or folder in an archive: its path there, and the url of the archive."""

    member: str
    archive: str


def split_archive_url(url: str) -> ArchiveUrl:
    """Return the parts of the url of a file in an archive.

    Examples
    --------
    >>> split_archive_url("zip://a/b.nc::s3://bucket/c.zip")
    ArchiveUrl(member='a/b.nc', archive='s3://bucket/c.zip')
    """
    link, _, archive = url.partition("::")
    return ArchiveUrl(link.partition("://")[2].removeprefix("/"), archive)


def _is_in_archive(url: str) -> bool:
    return scheme_of(url) in ARCHIVES and "::" in url


def join_path(folder: str, path: str) -> str:
    """Return the url of a path below a folder.

    Examples
    --------
    >>> join_path("s3://bucket/store", "zarr.json")
    's3://bucket/store/zarr.json'
    >>> join_path("zip://::s3://bucket/a.zip", "zarr.json")
    'zip://zarr.json::s3://bucket/a.zip'
    """
    if not _is_in_archive(folder):
        return f"{folder.rstrip('/')}/{path}"
    member, archive = split_archive_url(folder)
    inside = f"{member.rstrip('/')}/{path}".lstrip("/")
    return f"{scheme_of(folder)}://{inside}::{archive}"


def name_of(url: str) -> str:
    """Return the last part of a url, or the name of the archive for the root of an archive.

    Examples
    --------
    >>> name_of("file:///data/2001.zarr"), name_of("zip://::s3://bucket/2001.zarr.zip")
    ('2001.zarr', '2001.zarr')
    """
    if not _is_in_archive(url):
        return local_path(url).rstrip("/").rpartition("/")[2]
    member, archive = split_archive_url(url)
    return member.rstrip("/").rpartition("/")[2] or name_of(archive).removesuffix(
        f".{scheme_of(url)}"
    )


def is_in_folder(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or inside it.

    Examples
    --------
    >>> is_in_folder("/data/2001/a.nc", "/data"), is_in_folder("/data-2/a.nc", "/data")
    (True, False)
    """
    folder = folder.rstrip("/")
    return path == folder or path.startswith(f"{folder}/")


SIDECARS = {".idx": "", ".index": ".grib2", ".dmrpp": ""}
"""Suffixes of sidecar files of wgrib2, ECMWF and OPeNDAP, and the suffix that replaces them in the
name of the data file."""


def find_sidecar_target(url: str) -> str | None:
    """Return the url of the data file of a sidecar, from their names; None for other files.

    Examples
    --------
    >>> find_sidecar_target("s3://bucket/gfs.f003.idx"), find_sidecar_target("s3://bucket/2001.nc")
    ('s3://bucket/gfs.f003', None)
    """
    for suffix, data_suffix in SIDECARS.items():
        if url.endswith(suffix):
            return url.removesuffix(suffix) + data_suffix
    return None
