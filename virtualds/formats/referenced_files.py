"""The files that the references of a set name, and the check that it may name them.

A reference set may come from another person: this module makes its urls absolute, and checks them,
before any file is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from virtualds.chunks.columns import INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.errors import FormatError, ReadError, VirtualdsError
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import (
    ANYWHERE,
    AccessPolicy,
    is_own,
    is_same_host,
    resolve_url,
)
from virtualds.stores.local import WITHIN
from virtualds.urls import HELD, scheme_of

UNKNOWN = (None, None, None)
"""The fingerprint of a file without a note in the set: size, time and etag."""


class ReferencedFiles:
    """The files behind the urls of one set, each checked once.

    Parameters
    ----------
    source : SourceFile
        The set. Relative urls start from its folder.
    noted : mapping of url to [size, mtime, etag]
        Fingerprints that the set notes.
    allow : AccessPolicy
        Where they may lie.
    """

    def __init__(
        self, source: SourceFile, noted: Mapping[str, Any], allow: AccessPolicy = ANYWHERE
    ) -> None:
        self._source = source
        self._noted = noted
        self._allow = allow
        self._files: dict[str, SourceFile] = {}
        self._sizes: dict[SourceFile, int | None] = {}

    def get_file(self, url: str) -> SourceFile:
        """Return the file that a url of the set means, with the fingerprint noted for it."""
        if url not in self._files:
            meant = resolve_url(self._add_protocol(url), self._source.url)
            self._allow.check(meant, self._source.url)
            known = self._check_fingerprint(url, self._noted.get(url, UNKNOWN))
            self._files[url] = SourceFile(meant, *known, self._get_options(meant))
        return self._files[url]

    def _add_protocol(self, url: str) -> str:
        """Give a url without a scheme the one that the user says, where the user says one."""
        protocol = self._allow.protocol
        return f"{protocol}://{url.lstrip('/')}" if protocol and "://" not in url else url

    def make_file(self, url: str, fingerprint: Any) -> SourceFile:
        """Return the file that a url of the set means, with a fingerprint from elsewhere."""
        found = self.get_file(url)
        size, mtime, etag = self._check_fingerprint(url, fingerprint)
        return found._replace(size=size, mtime=mtime, etag=etag)

    def _check_fingerprint(self, url: str, noted: Any) -> tuple[int | None, int | None, str | None]:
        """Return the noted fingerprint of a file; JSON may hold anything else."""
        match noted:
            case (size, mtime, (str() | None) as etag) if _is_int64(size) and _is_int64(mtime):
                return size, mtime, etag
        raise FormatError(
            f"{self._source.url}: {noted!r:.80} is noted of {url}, which is not a size, time and "
            f"etag; write the set anew"
        )

    def _get_options(self, url: str) -> StorageOptions | None:
        """Pass access options on to remote files, but only to hosts that the user named."""
        if scheme_of(url) == "file":
            folders = self._allow.folders
            return StorageOptions({WITHIN: folders}) if folders else None
        if self._allow.options is not None or scheme_of(self._source.url) == HELD:
            return self._allow.options
        named = is_own(self._source.url) or is_same_host(url, self._source.url)
        return self._source.options if named else None

    def get_size(self, file: SourceFile) -> int | None:
        """Return the length of a file that is a whole chunk."""
        if file.size is not None:
            return file.size
        if file not in self._sizes:
            try:
                found = find_store(file.url).describe(file.url, file.options)
            except OSError as error:
                raise unreachable_error(file.url, error) from error
            self._sizes[file] = found.size
        return self._sizes[file]


def _is_int64(value: Any) -> bool:
    return value is None or (type(value) is int and abs(value) < 2**63)


def fetch_chunk(manifest: ChunkManifest, chunk_id: tuple[int, ...]) -> bytes:
    """Return the bytes of one chunk of a loaded manifest that is not missing."""
    row = manifest.lookup(chunk_id)
    if row.file == INLINE:
        return manifest.inline[row.offset]
    file = manifest.files[row.file]
    try:
        return find_store(file.url).get_ranges(file, [(row.offset, row.length)])[0]
    except OSError as error:
        raise unreachable_error(file.url, error) from error


def unreachable_error(url: str, error: OSError) -> ReadError:
    """Return the error of a referenced file that cannot be reached."""
    return ReadError(f"{url}: it is referred to, but cannot be read ({error}); restore the file")


MALFORMED_ERRORS = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Errors of code that takes metadata as well-formed; numpy parses types as Python."""


@contextmanager
def explain_malformed(url: str) -> Iterator[None]:
    """Turn errors of code that takes metadata as well-formed into a `FormatError`."""
    try:
        yield
    except MALFORMED_ERRORS as error:
        if isinstance(error, VirtualdsError):
            raise
        raise malformed_error(url, error) from error


def malformed_error(url: str, error: Exception) -> FormatError:
    """Return the error of a set that does not follow its specification."""
    return FormatError(
        f"{url}: its metadata or references are not of the form that the specification "
        f"lays down ({type(error).__name__}: {error}); the set is damaged, write it anew"
    )
