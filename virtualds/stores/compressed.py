"""Files that are compressed as a whole: no range of their bytes is a chunk of the file within.

What to do about them is said here, for files and for members of archives.
"""

from __future__ import annotations

from typing import NamedTuple

from virtualds.errors import UnsupportedError
from virtualds.source_file import StorageOptions
from virtualds.urls import path_or_url, scheme_of


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
