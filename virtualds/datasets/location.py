"""Locations of files and sets, and the parser or format that reads them.

A `Location` is made once, where a user names a file or a set, and passed on. Its reader is found
once: by the name of a parser or format, or by content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from virtualds.arrays.parser import Parser
from virtualds.datasets.detection import (
    HEAD_BYTES,
    READERS,
    Found,
    demand_data_in,
    detect_reader,
    find_marked_by,
    find_named,
    give_options,
)
from virtualds.datasets.objects import find_meaning
from virtualds.datasets.registry import (
    FORMATS,
    format_of_object,
    load_plugins,
)
from virtualds.errors import FormatError, UnsupportedError, without_secrets
from virtualds.formats import Format
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy
from virtualds.stores.compressed import demand_uncompressed
from virtualds.stores.scan_cache import hold_scan
from virtualds.stores.store import StoreError
from virtualds.urls import normalise_url, scheme_of

# ---------------------------------------------------------------------- locations


@contextmanager
def name_both_options(target: Any) -> Iterator[None]:
    """Say in errors about credentials which options are for the files, and which for a set.

    ``target`` is None if no set is written.
    """
    try:
        yield
    except PermissionError as error:
        if target is not None and "storage_options" in str(error):
            error.add_note(
                f"storage_options are for the files that are opened, target_options for the set "
                f"{without_secrets(str(target))}"
            )
        raise


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
        return detect_reader(location.url, location.options)
    url, options = location.url, location.options
    # plugins are imported only if needed; none may replace a parser of this package
    reader = find_named(name, READERS) or find_named(name, load_plugins())
    if reader is None:
        known = sorted(reader.name for reader in (*READERS, *load_plugins()))
        raise ValueError(f"parser={name!r}: give one of {', '.join(map(repr, known))}")
    if reader.markers:
        return reader, SourceFile(url, options=options)
    return give_options(reader, find_store(url).describe(url, options), options)


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
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, StoreError):
        return None
    except (FormatError, UnsupportedError):
        return None
    return found if isinstance(found, Format) else None


def demand_data(location: Location, reader: Parser | Format) -> None:
    """Refuse files without data, to explain why a named reader failed.

    Raises
    ------
    FormatError
        The file is empty, or a page of a server.
    UnsupportedError
        It is a source file that is compressed as a whole; reference sets may be.
    """
    try:
        _, head = find_store(location.url).read_head(location.url, location.options, HEAD_BYTES)
    except OSError:
        return
    demand_data_in(location.url, head)
    if isinstance(reader, Parser):
        demand_uncompressed(location.url, head, location.options)


def is_set_folder(url: str) -> bool:
    """Say whether a folder is a reference set, by its metadata file."""
    return find_marked_by(FORMATS, url, None) is not None
