"""Which parser or format reads what lies at a url: by its name, or by what lies there."""

from __future__ import annotations

from virtualds.errors import FormatError
from virtualds.formats import FORMATS, Format
from virtualds.manifest import SourceFile, StorageOptions
from virtualds.parsers import PARSERS, Parser
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
    known = {reader.name: reader for reader in READERS}
    if name not in known:
        raise ValueError(f"parser {name!r}: there are {sorted(known)}")
    reader = known[name]
    if reader.markers:
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
        if not reader.markers and reader.detect(head):
            return reader, source
    if not head and (found := _marked(url, options)) is not None:
        return found
    names = [reader.name for reader in READERS]
    raise FormatError(
        f"{url}: begins with {head[:8]!r}, which is none of {names}; name it with parser=, "
        f"or open the file with xarray's own engines"
    )


def _marked(url: str, options: StorageOptions | None) -> Found | None:
    """Return the parser or format of a folder, None if it is of none."""
    url, denied = url.rstrip("/"), None
    names = dict.fromkeys(name for reader in READERS for name in reader.markers)
    for name in names:
        try:
            marker = store_for(url).read_all(f"{url}/{name}", options)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
            continue
        for reader in READERS:
            if name in reader.markers and reader.detect(marker):
                return reader, SourceFile(url, options=options)
    if denied is not None:
        raise denied
    return None
