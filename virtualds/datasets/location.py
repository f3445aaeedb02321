"""Locations of files and sets, and the parser or format that reads them.

A `Location` is made once, where a user names a file or a set, and passed on. Its reader is found
once: by the name of a parser or format, or by content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from virtualds.arrays.parser import Parser
from virtualds.datasets.objects import find_meaning
from virtualds.datasets.registry import (
    FORMATS,
    PARSERS,
    PLAIN_ZARR,
    format_of_object,
    is_recognised,
    load_plugins,
)
from virtualds.errors import FormatError, list_details, without_secrets
from virtualds.formats import Format
from virtualds.importing import LateTable
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy
from virtualds.stores.archive_index import is_tar, is_zip
from virtualds.stores.block_cache import FIRST_PAGES, PAGE
from virtualds.stores.fence import is_claim
from virtualds.stores.scan_cache import hold_scan
from virtualds.stores.store import StoreError
from virtualds.urls import join_path, normalise_url, scheme_of

Found = tuple[Parser | Format, SourceFile]
"""The reader of a file or folder, and the source that it reads."""

ARCHIVES = {"zip": is_zip, "tar": is_tar}
"""First bytes of archives, by the scheme of the files in them."""

MOST, *OTHERS = PARSERS.entries
READERS = LateTable[Parser | Format](MOST, *FORMATS, *OTHERS)
"""Every reader: that of most files comes first."""

FOLDER_READERS: tuple[Parser | Format, ...] = (*FORMATS, PLAIN_ZARR)
"""Readers of folders, reference sets first: some also look like Zarr stores."""

HEAD_BYTES = 4096
"""First bytes that identify most files; a local file gives more in the same time."""


# ---------------------------------------------------------------------- locations


@dataclass(frozen=True, repr=False)
class Location:
    """The location of a file or a set.

    Parameters
    ----------
    url : str
        Absolute, with scheme; for an object, its name in messages.
    options : StorageOptions, optional
        Access options.
    opened : object, optional
        An object of a format's library, in place of a url.
    given : str
        The location as the user gave it.
    policy : AccessPolicy
        How the files are opened that a set refers to, where an object or ``reference://`` says it.

    Examples
    --------
    >>> Location.of("s3://bucket/2001.nc", {"anon": True})
    Location('s3://bucket/2001.nc', <options ['anon']>)
    """

    url: str
    options: StorageOptions | None = None
    opened: Any = None
    given: str = ""
    policy: AccessPolicy = ANYWHERE

    def __repr__(self) -> str:
        return f"Location({without_secrets(self.url)!r}, {self.options!r})"

    @classmethod
    def of(cls, given: Any, options: Mapping[str, Any] | None = None) -> Location:
        """Return the location that a user gives: a path, a url, or an object.

        Raises
        ------
        TypeError
            ``given`` is neither, or the options are no dict.
        """
        if (meant := find_meaning(given, options)) is not None:
            shown = given if isinstance(given, str) else meant.url
            return cls(meant.url, meant.options, None, shown, meant.policy)
        form = format_of_object(given)
        if form is None:
            return cls.of_url(given, options)
        name = f"<{type(given).__name__} of {form.name}>"
        return cls(name, StorageOptions.of(options), given, name)

    @classmethod
    def of_url(
        cls, given: str | os.PathLike[str], options: Mapping[str, Any] | None = None
    ) -> Location:
        """Return the location of a path or url.

        Raises
        ------
        TypeError
            ``given`` is neither, or the options are no dict.
        """
        return cls(normalise_url(given), StorageOptions.of(options), None, os.fspath(given))

    @property
    def target(self) -> Any:
        """The url, or the object, that formats write to."""
        return self.url if self.opened is None else self.opened

    @property
    def format(self) -> Format | None:
        """The format whose library opened the object, None for a url."""
        return format_of_object(self.opened)

    def hold_scan(self) -> AbstractContextManager[None]:
        """Hold what is fetched of a remote file until the end of the block; nothing of a local."""
        if scheme_of(self.url) == "file":
            return nullcontext()
        return hold_scan(self.url, self.options)


# ---------------------------------------------------------------------- readers


def reader_of(location: Location, name: str | None = None) -> Found:
    """Return the named parser or format, or the one that recognises the file or folder.

    A file is recognised by its first bytes, a folder by its metadata file.

    Raises
    ------
    ValueError
        No parser or format has this name.
    FormatError
        The file has no known format.
    OSError
        The file or folder does not exist or has no known format, or must not be read.
    """
    if not name:
        return _detected(location.url, location.options)
    url, options = location.url, location.options
    # plugins are imported only if needed; none may replace a parser of this package
    reader = _find_named(name, READERS) or _find_named(name, load_plugins())
    if reader is None:
        known = sorted(reader.name for reader in (*READERS, *load_plugins()))
        raise ValueError(f"parser={name!r}: give one of {', '.join(map(repr, known))}")
    if reader.markers:
        return reader, SourceFile(url, options=options)
    return _give_options(reader, find_store(url).describe(url, options), options)


def format_for(
    location: Location,
    name: str | None = None,
    asked: Sequence[Callable[[Location], Format | None]] | None = None,
) -> Format:
    """Return the named format, or the format of the existing set, or that of the suffix.

    Parameters
    ----------
    location : Location
    name : str, optional
    asked : sequence of callable, optional
        Functions that find the format, in this order; by default `format_by_suffix`, then
        `format_there`.

    Raises
    ------
    ValueError
        No format has this name, or none was found.
    """
    if name is not None:
        known = {form.name: form for form in FORMATS}
        if name not in known:
            raise ValueError(f"format={name!r}: give one of {', '.join(map(repr, sorted(known)))}")
        return known[name]
    for ask in asked or (format_by_suffix, format_there):
        if (form := ask(location)) is not None:
            return form
    suffixes = (f"{form.name} ({', '.join(form.suffixes)})" for form in FORMATS)
    raise ValueError(
        f"{location.url}: the suffix of its name chooses no format; pass format=, or give it a "
        f"suffix of {', '.join(suffixes)}"
    )


def format_by_suffix(location: Location) -> Format | None:
    """Return the format of the suffix of a url, or of the library of an object."""
    name = location.url.rstrip("/")
    chosen = (form for form in FORMATS if name.endswith(form.suffixes))
    return location.format or next(chosen, None)


def format_there(location: Location) -> Format | None:
    """Return the format of the existing set, None if there is none."""
    if location.format is not None:
        return location.format
    try:
        found, _ = reader_of(location)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, StoreError, FormatError):
        return None
    return found if isinstance(found, Format) else None


def demand_data(location: Location) -> None:
    """Refuse files without data, to explain why a named reader failed.

    Raises
    ------
    FormatError
        The file is empty, or a page of a server.
    """
    try:
        _, head = find_store(location.url).read_head(location.url, location.options, HEAD_BYTES)
    except OSError:
        return
    if (what := _describe_non_data(head)) is not None:
        raise FormatError(f"{location.url}: {what}")


def is_set_folder(url: str) -> bool:
    """Say whether a folder is a reference set, by its metadata file."""
    return _find_marked_by(FORMATS, url, None) is not None


# ---------------------------------------------------------------------- detection


def _detected(url: str, options: StorageOptions | None) -> Found:
    """Return the reader of a file, a folder, or the only content of an archive."""
    head = b""
    store = find_store(url)
    try:
        source, head = store.read_head(url, options, HEAD_BYTES)
        if (reader := _find_by_bytes(head)) is not READERS[0] and len(
            head
        ) == HEAD_BYTES != source.size:
            source, head = store.read_head(url, options, FIRST_PAGES * PAGE)
            reader = _find_by_bytes(head)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        # object stores have no folders, and may refuse access to them
        if (found := _find_by_marker(url, options)) is not None:
            return found
        if not isinstance(error, FileNotFoundError):
            _demand_not_begun(url, options)
        raise
    if reader is not None:
        return _give_options(reader, source, options)
    for scheme, is_archive in ARCHIVES.items():
        if is_archive(head):
            return _find_only_content(f"{scheme}://::{url}", options)
    # web servers show folders as pages
    is_page = head.lstrip()[:1] == b"<"
    if (not head or is_page) and (found := _find_by_marker(url, options)) is not None:
        return found
    if not head:
        _demand_not_begun(url, options)
    for parser in load_plugins():
        if not parser.markers and is_recognised(parser, head):
            return parser, source
    if (what := _describe_non_data(head)) is not None:
        raise FormatError(f"{url}: {what}")
    if head.lstrip()[:1] == b"{":
        raise FormatError(
            f"{url}: the file is JSON, but not a reference set; check the path, or give a set that "
            f"kerchunk or virtualds has written"
        )
    names = ", ".join(reader.name for reader in (*READERS, *load_plugins()))
    raise FormatError(
        f"{url}: begins with {head[:8]!r}, which no known format does; name the format with "
        f"parser=, or open the file with one of xarray's other engines\n  known: {names}"
    )


def _find_named(name: str, readers: Sequence[Parser | Format]) -> Parser | Format | None:
    return next((reader for reader in readers if reader.name == name), None)


def _give_options(
    reader: Parser | Format, source: SourceFile, options: StorageOptions | None
) -> Found:
    """Give a set the access options, which its files may need even if the set does not."""
    return reader, source._replace(options=options) if isinstance(reader, Format) else source


def _describe_non_data(head: bytes) -> str | None:
    """Describe a file without data and the remedy; None if it may hold data."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:200].lower()
    if not head:
        return "the file is empty; fetch it again, or write it anew"
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return (
            "the file is an HTML page, such as a server shows in place of a file (a login, an "
            "error, a list of files); check the url, and log in with storage_options"
        )
    if text.startswith((b"<?xml", b"<error")):
        return (
            "the file is an XML document, such as a server sends in place of a file (an error); "
            "open it in a browser to see what it says, check the url and storage_options"
        )
    return None


def _find_by_bytes(head: bytes) -> Parser | Format | None:
    """Return the parser or format for the first bytes of a file, None if there is none."""
    return next((r for r in READERS if not r.markers and r.detect(head)), None)


def _find_only_content(root: str, options: StorageOptions | None) -> Found:
    """Return the parser or format of the only file or folder in an archive."""
    # the archive may have been replaced, so its members are listed again
    names = [file.path for file in find_store(root).list_files(root, options)]
    if (found := _find_by_marker(root, options)) is not None:
        return found
    folders = {name.partition("/")[0] for name in names}
    if len(names) == 1 or (len(folders) == 1 and all("/" in name for name in names)):
        return _detected(join_path(root, names[0] if len(names) == 1 else folders.pop()), options)
    scheme, _, url = root.partition("::")
    if not names:
        raise FormatError(f"{url}: the archive is empty; fetch it again, or pack it anew")
    raise FormatError(
        list_details(
            f"{url}: the archive holds {len(names)} files; name one of them, such as "
            f"{scheme}{names[0]}::{url}",
            names,
        )
    )


def _demand_not_begun(url: str, options: StorageOptions | None) -> None:
    """Refuse a folder with an unfinished set.

    Raises
    ------
    FileNotFoundError
        The folder holds an unfinished set.
    """
    store = find_store(url)
    folders = [name for form in FORMATS for name in form.first_written]
    begun = False
    for name in folders:
        with suppress(OSError):
            begun |= bool(store.list_files(join_path(url, name), options))
    for name in (name for form in FORMATS for name in form.markers):
        with suppress(OSError):
            begun |= is_claim(store.read_all(join_path(url, name), options))
    if begun:
        raise FileNotFoundError(
            f"{url}: this folder is not a complete reference set; if a writer is creating the set, "
            f"open it later; if that writer has failed, create the set again; else check the path"
        )


def _find_by_marker(url: str, options: StorageOptions | None) -> Found | None:
    """Return the reader of a folder, None if there is none."""
    known = _find_marked_by(FOLDER_READERS, url, options)
    return known or _find_marked_by(load_plugins(), url, options)


def _find_marked_by(
    readers: Sequence[Parser | Format], url: str, options: StorageOptions | None
) -> Found | None:
    """Return the first reader that recognises a folder, None if none does."""
    url, denied = url.rstrip("/"), None
    names = dict.fromkeys(name for reader in readers for name in reader.markers)
    for name in names:
        try:
            marker = find_store(url).read_all(join_path(url, name), options)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue
        except PermissionError as error:
            # the user named the folder, not the file in it
            denied = type(error)(str(error).replace(join_path(url, name), url))
            denied.__cause__ = error
            continue
        for reader in readers:
            if name in reader.markers and reader.detect(marker):
                return reader, SourceFile(url, options=options)
    if denied is not None:
        raise denied
    return None
