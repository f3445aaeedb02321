"""Glob patterns, on disk and in stores."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from virtualds.errors import without_secrets
from virtualds.log import INFO, tell, tells
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import BUCKETS
from virtualds.stores.errors import explain_open_errors
from virtualds.stores.filesystems import use_filesystem
from virtualds.stores.fsspec import describe_errors
from virtualds.stores.retry import Request, retry_request
from virtualds.urls import ARCHIVES, host_of, local_path, scheme_of

WEB = ("http", "https")
"""Schemes whose urls have question marks and brackets of their own."""


def find_matching(patterns: Iterable[str], options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the files that match patterns, sorted by name for each pattern.

    A name that is no pattern, or that is the name of a local file, stands for itself.

    Parameters
    ----------
    patterns : iterable of str
        Paths or urls, with ``*``, ``?``, ``[...]`` and ``**``; http urls only with ``*``, where
        the server shows folders as pages of links.
    options : dict, optional
        Access options, for fsspec.

    Raises
    ------
    FileNotFoundError
        No file matches a pattern.

    Examples
    --------
    >>> find_matching(["200[12].nc", "refs.json"])
    ['2001.nc', '2002.nc', 'refs.json']
    """
    return [
        file for pattern in patterns for file in _match_pattern(pattern, StorageOptions.of(options))
    ]


def names_files(name: str) -> bool:
    """Say whether a name is a pattern, and not itself the name of a local file."""
    scheme = scheme_of(name)
    if scheme in ARCHIVES or not is_pattern(name, scheme):
        return False
    return scheme != "file" or not os.path.lexists(os.path.expanduser(local_path(name)))


def _match_pattern(pattern: str, options: StorageOptions | None) -> list[str]:
    scheme = scheme_of(pattern)
    if scheme in ARCHIVES or not is_pattern(pattern, scheme):
        return [pattern]
    begun = time.perf_counter()
    found = _match_local(pattern) if scheme == "file" else _match_remote(pattern, options)
    if tells(INFO):
        tell(INFO, f"{pattern}: {len(found):,} files match, {time.perf_counter() - begun:.3f} s")
    if not found:
        raise FileNotFoundError(
            f"{without_secrets(pattern)}: no file matches this pattern; check the path"
        )
    return found


def is_pattern(name: str, scheme: str) -> bool:
    """Say whether a name of a scheme is a pattern, by its characters."""
    return "*" in name if scheme in WEB else glob.has_magic(name)


def _match_local(pattern: str) -> list[str]:
    path = os.path.expanduser(local_path(pattern))
    return [pattern] if os.path.lexists(path) else sorted(glob.glob(path, recursive=True))


def _match_remote(pattern: str, options: StorageOptions | None) -> list[str]:
    def list_matching(filesystem: Any, path: str) -> list[str]:
        filesystem.invalidate_cache()
        return sorted(spell_like(pattern, filesystem, name) for name in filesystem.glob(path))

    asked = Request("LIST", pattern)
    with explain_open_errors(pattern), describe_errors(pattern):
        return retry_request(lambda _: use_filesystem(pattern, options, list_matching), asked)


def spell_like(url: str, filesystem: Any, path: str) -> str:
    """Return the url of a path in a filesystem, with the scheme and the bucket of another url.

    fsspec itself knows one scheme of several, and no account of ``abfs://box@account.../path``.
    """
    host = host_of(url)
    if "::" in url or scheme_of(url) not in BUCKETS or glob.has_magic(host):
        return str(filesystem.unstrip_protocol(path))
    return f"{host}/{path.partition('/')[2]}".rstrip("/")
