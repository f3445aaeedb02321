"""Which parser or format reads what lies at a url: by its name, or by what lies there."""

from __future__ import annotations

from collections.abc import Sequence

from virtualds.errors import FormatError
from virtualds.formats import FORMATS, Format
from virtualds.manifest import SourceFile, StorageOptions
from virtualds.parsers import PARSERS, Parser, plugins, recognises
from virtualds.scan import described, head_of
from virtualds.stores import store_for

Found = tuple[Parser | Format, SourceFile]
"""Who reads a file or folder, and what it is to read."""

READERS: tuple[Parser | Format, ...] = (*FORMATS, *PARSERS)
"""Reference sets first: some are Zarr stores to those who do not know better."""


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
    if _markers(reader):
        return reader, SourceFile(url, options=options)
    return reader, described(url, options)


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
        source, head = head_of(url, options)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        # object stores know no folders, and may say that one may not look at them
        if (found := _marked(url, options)) is None:
            raise
        return found
    for reader in READERS:
        if not _markers(reader) and reader.detect(head):
            return reader, source
    if not head and (found := _marked(url, options)) is not None:
        return found
    for parser in plugins():
        if not parser.markers and recognises(parser, head):
            return parser, source
    names = [reader.name for reader in (*READERS, *plugins())]
    raise FormatError(
        f"{url}: begins with {head[:8]!r}, which is none of {names}; name it with parser=, "
        f"or open the file with xarray's own engines"
    )


def _marked(url: str, options: StorageOptions | None) -> Found | None:
    """Return the parser or format of a folder, None if it is of none."""
    return _marked_by(READERS, url, options) or _marked_by(plugins(), url, options)


def _marked_by(
    readers: Sequence[Parser | Format], url: str, options: StorageOptions | None
) -> Found | None:
    """Return which of some readers reads a folder, None if none does."""
    url, denied = url.rstrip("/"), None
    names = dict.fromkeys(name for reader in readers for name in _markers(reader))
    for name in names:
        try:
            marker = store_for(url).read_all(f"{url}/{name}", options)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
            continue
        for reader in readers:
            if name in _markers(reader) and reader.detect(marker):
                return reader, SourceFile(url, options=options)
    if denied is not None:
        raise denied
    return None


def _markers(reader: Parser | Format) -> tuple[str, ...]:
    """Return the files that make a folder what is read here; none if it reads files."""
    if isinstance(reader, Parser):
        return reader.markers
    return () if reader.marker is None else (reader.marker,)
