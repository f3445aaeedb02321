"""Which files the references of a set mean, and which it may mean.

A reference set is data from somebody else: what it names is made absolute, and judged, before
anything is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualds.errors import AccessError, ReadError
from virtualds.manifest import SourceFile, StorageOptions
from virtualds.stores import store_for
from virtualds.urls import join_url, normalise_url, scheme_of


class ReferencedFiles:
    """The files behind the urls of one set, each looked at once.

    Parameters
    ----------
    source : SourceFile
        The set. Relative urls are seen from the folder that it lies in.
    noted : mapping of url to [size, mtime, etag]
        Fingerprints that the set has noted.
    """

    def __init__(self, source: SourceFile, noted: Mapping[str, Any]) -> None:
        self._source = source
        self._noted = noted
        self._files: dict[str, SourceFile] = {}
        self._sizes: dict[SourceFile, int | None] = {}

    def file(self, url: str) -> SourceFile:
        """Return the file that a url of the set means, with the fingerprint noted for it.

        Raises
        ------
        AccessError
            A remote set refers to a local file.
        """
        if url not in self._files:
            absolute = _resolve(url, self._source.url)
            size, mtime, etag = self._noted.get(url) or (None, None, None)
            options = _options_for(absolute, self._source)
            self._files[url] = SourceFile(absolute, size, mtime, etag, options)
        return self._files[url]

    def size(self, file: SourceFile) -> int | None:
        """Return the length of a file that is a chunk as a whole.

        Raises
        ------
        ReadError
            The file cannot be had.
        """
        if file.size is not None:
            return file.size
        if file not in self._sizes:
            try:
                found = store_for(file.url).describe(file.url, file.options)
            except OSError as error:
                raise unreachable(file.url, error) from error
            self._sizes[file] = found.size
        return self._sizes[file]


def unreachable(url: str, error: OSError) -> ReadError:
    """Return the error that says that a file of a set cannot be had."""
    return ReadError(f"{url}: it is referred to, but cannot be read ({error}); restore the file")


def _resolve(url: str, base: str) -> str:
    """Return a url of the set as an absolute one, refusing local files behind a remote set."""
    relative = scheme_of(url) == "file" and "://" not in url and not url.startswith("/")
    absolute = join_url(base, url) if relative else normalise_url(url)
    if _is_local(absolute) and scheme_of(base) != "file":
        raise AccessError(
            f"{base}: it refers to the local file {absolute}, which a remote set may not; copy the "
            f"set to local disk if you trust it"
        )
    return absolute


def _is_local(url: str) -> bool:
    """Say whether a url leads to local files, behind a chain of fsspec's filesystems too."""
    *outer, last = url.split("::")
    return scheme_of(last) == "file" or any(scheme_of(f"{part}://") == "file" for part in outer)


def _options_for(url: str, source: SourceFile) -> StorageOptions | None:
    """Pass access options on to remote files, but never to a host that the user did not name."""
    if source.options is None or scheme_of(url) == "file":
        return None
    host = url.split("/", 3)[:3]
    local = scheme_of(source.url) == "file"
    return source.options if local or host == source.url.split("/", 3)[:3] else None
