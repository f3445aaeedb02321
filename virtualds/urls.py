"""Functions for urls, which are absolute and have a scheme.

Urls are not percent-encoded: as in fsspec, the text after the scheme is the name itself, which may
contain colons, spaces, ``#`` and ``%``.
"""

from __future__ import annotations

import os
import posixpath
import re
from functools import lru_cache
from pathlib import PurePath, PureWindowsPath
from typing import NamedTuple

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
            f"a path or url is expected, got {type(path).__name__}; give that, bytes, an open "
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
