"""Reference formats: the interface that each of them implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.reference_table import ReferenceTable
from virtualds.formats.read_options import READ_ALL, ReadOptions
from virtualds.formats.upkeep import Expiry, Removal, Upkeep
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy


class ReadSet(Protocol):
    """Reads a group of a reference set."""

    def __call__(self, source: SourceFile, how: ReadOptions = READ_ALL) -> ManifestGroup: ...


class ReadObject(Protocol):
    """Reads a group of an object that the user opened with the library of a format."""

    def __call__(
        self, opened: Any, how: ReadOptions = READ_ALL, options: StorageOptions | None = None
    ) -> ManifestGroup: ...


class WriteSet(Protocol):
    """Writes a reference set, all of it or nothing."""

    def __call__(
        self,
        group: ManifestGroup,
        url: str,
        options: StorageOptions | None = None,
        *,
        replace: bool = True,
    ) -> None: ...


class UpdateSet(Protocol):
    """Changes a set, unless another writer has changed it meanwhile.

    Raises
    ------
    ConflictError
        Another writer was faster; nothing has changed.
    """

    def __call__(
        self,
        url: str,
        change: Callable[[ManifestGroup], ManifestGroup],
        options: StorageOptions | None = None,
        allow: AccessPolicy = ANYWHERE,
    ) -> None: ...


class History(NamedTuple):
    """Lists and expires the earlier snapshots of a set."""

    listed: Callable[[str, StorageOptions | None], list[tuple[str, str]]]
    expire: Callable[[str, StorageOptions | None, Expiry], Removal]


class Parts(NamedTuple):
    """How many processes write a set together: one begins, all write, and one commits.

    ``begin`` takes the url, access options and whether a set may be replaced, and returns the place
    of parts, which pickles. ``write`` takes arrays and that place, and returns arrays whose
    references lie there. ``commit`` takes a group of such arrays and the place, and makes the set;
    ``abandon`` takes the place, and removes its files. ``holds`` takes a table of references and
    the place, and says whether the table lies in the set there.
    """

    begin: Callable[..., Any]
    write: Callable[[Mapping[Any, ManifestArray], Any], dict[Any, ManifestArray]]
    commit: Callable[..., None]
    abandon: Callable[[Any], None]
    holds: Callable[[ReferenceTable, Any], bool]


@dataclass(frozen=True)
class Format:
    """A reference format.

    Parameters
    ----------
    name : str
    suffixes : tuple of str
        Ends of file names that choose it for writing.
    detect : callable
        Takes the first bytes of a file and says whether it is of this format.
    read, write, update : callable
    markers : tuple of str
        For a format that is a folder: a folder with one of these files is a set. ``detect`` takes
        the whole file.
    first_written : tuple of str
        For such a format: folders in it that a writer may make before it writes a marker.
    choices : tuple of str
        Keyword arguments that ``write`` takes beyond those of every format.
    parts : Parts, optional
        Of a format that many processes can write together.
    upgrade : callable, optional
        Of a format that has changed: takes url and access options, writes the metadata in their
        present form, and says whether they had another form.
    history : History, optional
        Of a format that keeps earlier snapshots: lists and expires them.
    upkeep : Upkeep, optional
        Joins small files of a set, and moves its references to other urls.
    library : str, optional
        The library that reads and writes it, where it is an extra of that name.
    read_object : callable, optional
        Reads an object of that library.
    to_dict : callable, optional
        Of a format that is one JSON document: takes a group and the choices, and returns that.
    holds : callable, optional
        Says whether the place of a new set is taken; by default whether there is a set at the url.
    obstacles : callable, optional
        Of a format that cannot hold every array: takes a virtual variable, and its choices, and
        returns why it cannot hold the variable.
    takes_in : bool
        Whether ``write`` and ``update`` take the url of a folder, ``takes_in``, whose chunks they
        hold in the set itself.
    """

    name: str
    suffixes: tuple[str, ...]
    detect: Callable[[bytes], bool]
    read: ReadSet
    write: WriteSet
    update: UpdateSet
    markers: tuple[str, ...] = ()
    first_written: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    upgrade: Callable[[str, StorageOptions | None], bool] | None = None
    history: History | None = None
    parts: Parts | None = None
    upkeep: Upkeep | None = None
    library: str | None = None
    read_object: ReadObject | None = None
    holds: Callable[..., bool] | None = None
    to_dict: Callable[..., dict[str, Any]] | None = None
    obstacles: Callable[..., list[str]] | None = None
    takes_in: bool = False


def replaces_by(mode: str) -> bool:
    """Say whether a mode of writing replaces an existing set.

    Raises
    ------
    ValueError
        There is no such mode.
    """
    if mode not in ("w-", "w"):
        raise ValueError(f"mode={mode!r}: give 'w-' (create) or 'w' (create or replace)")
    return mode == "w"
