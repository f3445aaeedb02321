"""Urls: absolute, with a scheme, the rest taken to the letter.

Names in archives hold colons, spaces, ``#`` and ``%``; as in fsspec, what follows the scheme is the
name itself and is never unquoted.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePath, PureWindowsPath

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)(://|::)")


def scheme_of(url: str) -> str:
    """Return the scheme of a url, ``file`` for a bare path.

    Examples
    --------
    >>> scheme_of("s3://bucket/2001.nc"), scheme_of("/data/2001.nc")
    ('s3', 'file')
    """
    found = _SCHEME.match(url)
    scheme = found.group(1).lower() if found else "file"
    return "file" if scheme == "local" else scheme


def host_of(url: str) -> str:
    """Return scheme and host of a url: who is asked for it.

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
        It is neither a string nor a path.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a file is named by a path or url, got {path!r}")
    if scheme_of(text) != "file":
        return text
    return "file://" + PurePath(os.path.abspath(os.path.expanduser(local_path(text)))).as_posix()


def local_path(url: str) -> str:
    """Return the path of a ``file`` url or a bare path."""
    found = _SCHEME.match(url)
    path = url[found.end() :] if found else url
    # file:///C:/data: the slash before a drive letter belongs to the url
    is_drive = os.name == "nt" and path.startswith("/") and PureWindowsPath(path[1:]).drive
    return path[1:] if is_drive else path


def join_url(base: str, relative: str) -> str:
    """Return ``relative`` seen from the folder that ``base`` lies in."""
    folder, _, _ = base.rpartition("/")
    return f"{folder}/{relative}"


def lies_under(path: str, folder: str) -> bool:
    """Say whether a path is a folder's own or one within it.

    Examples
    --------
    >>> lies_under("/data/2001/a.nc", "/data"), lies_under("/data-2/a.nc", "/data")
    (True, False)
    """
    folder = folder.rstrip("/")
    return path == folder or path.startswith(f"{folder}/")
