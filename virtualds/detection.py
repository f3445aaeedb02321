"""Which parser or format reads what lies at a url: by its name, or by what lies there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from virtualds.archive_index import is_tar, is_zip
from virtualds.errors import FormatError
from virtualds.fence import is_claim
from virtualds.formats import FORMATS, Format
from virtualds.manifest import SourceFile, StorageOptions
from virtualds.parsers import PARSERS, Parser, plugins, recognises
from virtualds.scan import described, head_of
from virtualds.stores import store_for
from virtualds.urls import below

Found = tuple[Parser | Format, SourceFile]
"""Who reads a file or folder, and what it is to read."""

ARCHIVES = {"zip": is_zip, "tar": is_tar}
"""What an archive begins with, by the scheme of files in it."""

READERS: tuple[Parser | Format, ...] = (*FORMATS, *PARSERS)
"""Reference sets first: some are Zarr stores to those who do not know better."""

USUAL = PARSERS[0]
"""What most files are of."""
FEW = 4096
"""Bytes that mostly tell such a file: more of a local one take as long to read as to open it."""


def named(name: str, url: str, options: StorageOptions | None) -> Found:
    """Return the parser or format of a name.

    Raises
    ------
    ValueError
        There is none of this name.
    OSError
        The file does not exist or may not be read.
    """
    known: dict[str, Parser | Format] = {reader.name: reader for reader in READERS}
    if name not in known:
        # those of other packages are imported only if they are needed; none may stand in for ours
        known = {**{parser.name: parser for parser in plugins()}, **known}
    if name not in known:
        raise ValueError(f"parser {name!r}: there are {sorted(known)}")
    reader = known[name]
    if reader.markers:
        return reader, SourceFile(url, options=options)
    return _told(reader, described(url, options), options)


def detected(url: str, options: StorageOptions | None) -> Found:
    """Return the parser or format of a file by its first bytes, of a folder by the file in it.

    Raises
    ------
    FormatError
        The file is none that is known.
    OSError
        There is no such file, and no such folder that is known; or it may not be read.
    """
    head = b""
    try:
        source, head = head_of(url, options, FEW)
        if (reader := _by_bytes(head)) is not USUAL and len(head) == FEW != source.size:
            source, head = head_of(url, options)
            reader = _by_bytes(head)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        # object stores know no folders, and may say that one may not look at them
        if (found := _marked(url, options)) is not None:
            return found
        if not isinstance(error, FileNotFoundError):
            _demand_not_begun(url, options)
        raise
    if reader is not None:
        return _told(reader, source, options)
    for scheme, is_archive in ARCHIVES.items():
        if is_archive(head):
            return _only_content(f"{scheme}://::{url}", options)
    # web servers show folders as pages
    is_page = head.lstrip()[:1] == b"<"
    if (not head or is_page) and (found := _marked(url, options)) is not None:
        return found
    if not head:
        _demand_not_begun(url, options)
    for parser in plugins():
        if not parser.markers and recognises(parser, head):
            return parser, source
    if (what := _what_it_is(head)) is not None:
        raise FormatError(f"{url}: {what}")
    names = [reader.name for reader in (*READERS, *plugins())]
    raise FormatError(
        f"{url}: begins with {head[:8]!r}, which is none of {names}; name it with parser=, "
        f"or open the file with xarray's own engines"
    )


def is_set_folder(url: str) -> bool:
    """Say whether a folder is a reference set, by the file that makes it one."""
    return _marked_by(FORMATS, url, None) is not None


def _told(reader: Parser | Format, source: SourceFile, options: StorageOptions | None) -> Found:
    """Give a set the access options: its files may need them where the set itself does not."""
    return reader, source._replace(options=options) if isinstance(reader, Format) else source


def demand_data(url: str, options: StorageOptions | None) -> None:
    """Refuse what comes in place of data: where a reader failed that somebody named.

    Raises
    ------
    FormatError
        The file is empty, or a page of a server.
    """
    try:
        _, head = head_of(url, options, FEW)
    except OSError:
        return
    if (what := _what_it_is(head)) is not None:
        raise FormatError(f"{url}: {what}")


def _what_it_is(head: bytes) -> str | None:
    """Return what a file is that comes in place of data, and what to do; None if it is no such."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:200].lower()
    if not head:
        return "the file is empty; fetch it again, or write it anew"
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return (
            "it is an HTML page, such as a server shows in place of a file (a login, an error, a "
            "list of files); check the url, and log in with storage_options"
        )
    if text.startswith((b"<?xml", b"<error")):
        return (
            "it is an XML document, such as a server sends in place of a file (an error); open it "
            "in a browser to see what it says, check the url and storage_options"
        )
    return None


def _by_bytes(head: bytes) -> Parser | Format | None:
    """Return who reads a file that begins so, None if it is nobody of ours."""
    return next((r for r in READERS if not r.markers and r.detect(head)), None)


def _only_content(root: str, options: StorageOptions | None) -> Found:
    """Return the parser or format of what an archive holds, if that is one thing."""
    # the list is that of the archive as it is now, also if another one was there before
    names = [file.path for file in store_for(root).list_files(root, options)]
    if (found := _marked(root, options)) is not None:
        return found
    folders = {name.partition("/")[0] for name in names}
    if len(names) == 1 or (len(folders) == 1 and all("/" in name for name in names)):
        return detected(below(root, names[0] if len(names) == 1 else folders.pop()), options)
    scheme, _, url = root.partition("::")
    if not names:
        raise FormatError(f"{url}: the archive is empty; fetch it again, or pack it anew")
    raise FormatError(
        f"{url}: the archive holds {len(names)} files, {names[:5]!r}...; name one of them as "
        f"{scheme}MEMBER::{url}"
    )


def _demand_not_begun(url: str, options: StorageOptions | None) -> None:
    """Take a folder for none in which somebody is creating a set, or has given it up.

    Raises
    ------
    FileNotFoundError
        It is one.
    """
    store = store_for(url)
    folders = [name for form in FORMATS for name in form.first_written]
    begun = False
    for name in folders:
        with suppress(OSError):
            begun |= bool(store.list_files(below(url, name), options))
    for name in (name for form in FORMATS for name in form.markers):
        with suppress(OSError):
            begun |= is_claim(store.read_all(below(url, name), options))
    if begun:
        raise FileNotFoundError(
            f"{url}: this folder is no reference set; perhaps somebody is creating one in it, then "
            f"open it when that is done, or, if it has failed, create it again; else check the path"
        )


def _marked(url: str, options: StorageOptions | None) -> Found | None:
    """Return the parser or format of a folder, None if it is of none."""
    return _marked_by(READERS, url, options) or _marked_by(plugins(), url, options)


def _marked_by(
    readers: Sequence[Parser | Format], url: str, options: StorageOptions | None
) -> Found | None:
    """Return which of some readers reads a folder, None if none does."""
    url, denied = url.rstrip("/"), None
    names = dict.fromkeys(name for reader in readers for name in reader.markers)
    for name in names:
        try:
            marker = store_for(url).read_all(below(url, name), options)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue
        except PermissionError as error:
            # what was named is the folder
            denied = type(error)(str(error).replace(below(url, name), url))
            denied.__cause__ = error
            continue
        for reader in readers:
            if name in reader.markers and reader.detect(marker):
                return reader, SourceFile(url, options=options)
    if denied is not None:
        raise denied
    return None
