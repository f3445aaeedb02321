"""Finding the parser or format of a file or folder: by the suffix of a set, or by its content.

Far away, what is surely needed is asked for first, and what may be needed all at once: a request
takes as long as hundreds of kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from virtualds.arrays.parser import Parser
from virtualds.datasets.registry import FORMATS, PARSERS, PLAIN_ZARR, is_recognised, load_plugins
from virtualds.errors import FormatError, list_details
from virtualds.formats import Format
from virtualds.importing import LateTable
from virtualds.reading.prefetch import fetch_many
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.archive_index import is_tar, is_zip
from virtualds.stores.block_cache import FIRST_PAGES, PAGE
from virtualds.stores.compressed import demand_uncompressed
from virtualds.stores.fence import is_claim
from virtualds.stores.listing import find_names
from virtualds.urls import join_path, scheme_of

Found = tuple[Parser | Format, SourceFile]
"""The reader of a file or folder, and the source that it reads."""

ARCHIVES = {"zip": is_zip, "tar": is_tar}
"""First bytes of archives, by the scheme of the files in them."""

MOST, *OTHERS = PARSERS.entries
READERS = LateTable[Parser | Format](MOST, *FORMATS, *OTHERS)
"""Every reader: HDF5, the format of most files, comes first."""

FOLDER_READERS: tuple[Parser | Format, ...] = (*FORMATS, PLAIN_ZARR)
"""Readers of folders, reference sets first: some also look like Zarr stores."""

HEAD_BYTES = 4096
"""First bytes that identify most files; a local file gives more in the same time."""


def detect_reader(url: str, options: StorageOptions | None) -> Found:
    """Return the reader of a file, a folder, or the only content of an archive."""
    told = _list_told_by_suffix(url)
    try:
        if (found := _find_among(FOLDER_READERS, url, options, told)) is not None:
            return found
    except PermissionError:
        # it may be missing: servers that list nothing may say no more; it is asked for once more
        told = ()
    head = b""
    store = find_store(url)
    try:
        source, head = store.read_head(url, options, HEAD_BYTES)
        reader = _find_by_bytes(head)
        is_hdf5 = reader is READERS[0]
        if not is_hdf5 and len(head) == HEAD_BYTES != source.size:
            source, head = store.read_head(url, options, FIRST_PAGES * PAGE)
            reader = _find_by_bytes(head)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        # object stores have no folders, and may refuse access to them
        if (found := _find_by_marker(url, options, told)) is not None:
            return found
        if not isinstance(error, FileNotFoundError):
            _demand_not_begun(url, options)
        raise
    if reader is not None:
        return give_options(reader, source, options)
    for scheme, is_archive in ARCHIVES.items():
        if is_archive(head):
            return _find_only_content(f"{scheme}://::{url}", options)
    # web servers show folders as pages
    is_page = head.lstrip()[:1] == b"<"
    if (not head or is_page) and (found := _find_by_marker(url, options, told)) is not None:
        return found
    if not head:
        _demand_not_begun(url, options)
    for parser in load_plugins():
        if not parser.markers and is_recognised(parser, head):
            return parser, source
    demand_data_in(url, head)
    demand_uncompressed(url, head, options)
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


def find_named(name: str, readers: Sequence[Parser | Format]) -> Parser | Format | None:
    """Return the reader of a name, None if there is none."""
    return next((reader for reader in readers if reader.name == name), None)


def give_options(
    reader: Parser | Format, source: SourceFile, options: StorageOptions | None
) -> Found:
    """Give a set the access options, which its files may need even if the set does not."""
    return reader, source._replace(options=options) if isinstance(reader, Format) else source


def demand_data_in(url: str, head: bytes) -> None:
    """Refuse a file that begins with ``head`` if that is no data.

    Raises
    ------
    FormatError
        The file is empty, or a page of a server.
    """
    if (what := _describe_non_data(head)) is not None:
        raise FormatError(f"{url}: {what}")


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
    if (found := _find_by_marker(root, options, ())) is not None:
        return found
    folders = {name.partition("/")[0] for name in names}
    if len(names) == 1 or (len(folders) == 1 and all("/" in name for name in names)):
        only = names[0] if len(names) == 1 else folders.pop()
        return detect_reader(join_path(root, only), options)
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


def _list_told_by_suffix(url: str) -> tuple[str, ...]:
    """Return the file that makes a remote folder a set of the format of its suffix, if it has one.

    A local folder is looked through in no time.
    """
    if scheme_of(url) == "file":
        return ()
    ends = url.rstrip("/")
    return next((f.markers[:1] for f in FORMATS if f.markers and ends.endswith(f.suffixes)), ())


def _find_by_marker(url: str, options: StorageOptions | None, tried: Sequence[str]) -> Found | None:
    """Return the reader of a folder, None if there is none; some files were looked at already."""
    # plugins are imported only if they are needed
    own: Callable[[], Sequence[Parser | Format]] = lambda: FOLDER_READERS  # noqa: E731
    denied: PermissionError | None = None
    for list_readers in (own, load_plugins):
        try:
            if (found := find_marked_by(list_readers(), url, options, tried)) is not None:
                return found
        except PermissionError as error:
            denied = denied or error
    if denied is not None:
        raise denied
    return None


def find_marked_by(
    readers: Sequence[Parser | Format],
    url: str,
    options: StorageOptions | None,
    tried: Sequence[str] = (),
) -> Found | None:
    """Return the first reader that recognises a folder, None if none does."""
    names = list(dict.fromkeys(name for reader in readers for name in reader.markers))
    if names and (listed := find_names(url, options)) is not None:
        names = [name for name in names if name.partition("/")[0] in listed]
    return _find_among(readers, url, options, [name for name in names if name not in tried])


def _find_among(
    readers: Sequence[Parser | Format],
    url: str,
    options: StorageOptions | None,
    names: Sequence[str],
) -> Found | None:
    """Return the first reader that recognises a folder by one of some files in it.

    Raises
    ------
    PermissionError
        None does, and one of the files must not be read.
    """
    denied: PermissionError | None = None
    for name, marker in _read_markers(url.rstrip("/"), names, options):
        if isinstance(marker, PermissionError):
            denied = marker
        for reader in readers:
            if isinstance(marker, bytes) and name in reader.markers and reader.detect(marker):
                return reader, SourceFile(url.rstrip("/"), options=options)
    if denied is not None:
        raise denied
    return None


def _read_markers(
    url: str, names: Sequence[str], options: StorageOptions | None
) -> Iterable[tuple[str, bytes | PermissionError | None]]:
    """Return some files of a folder: near ones as they are taken, far ones fetched at once."""
    if not find_store(url).reach.at_once:
        return ((name, _read_marker(url, name, options)) for name in names)
    found = fetch_many(names, lambda name: url, lambda name: _read_marker(url, name, options))
    return zip(names, found, strict=True)


def _read_marker(
    url: str, name: str, options: StorageOptions | None
) -> bytes | PermissionError | None:
    """Return a file of a folder, None if there is none, or why it must not be read."""
    try:
        return find_store(url).read_all(join_path(url, name), options)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    except PermissionError as error:
        # the user named the folder, not the file in it
        denied = type(error)(str(error).replace(join_path(url, name), url))
        denied.__cause__ = error
        return denied
