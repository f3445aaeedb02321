"""The interface of reference formats, and the types of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import ReferenceTable
from virtualds.errors import public
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy
from virtualds.stores.fence import explain_vanished_files
from virtualds.stores.store import ListedFile

if TYPE_CHECKING:
    import pandas as pd

GRACE = timedelta(days=1)
"""The age up to which files of writers are kept, since a writer may still commit them."""


@dataclass(frozen=True)
class Expiry:
    """The snapshots of a set to remove: those that are ``older_than`` an age, except the newest.

    The newest ``keep`` snapshots, at least 1, are never removed. Files that belong to no snapshot
    are removed if they are older than ``grace``. A ``dry_run`` only lists what would be removed.
    """

    keep: int
    older_than: timedelta | None = None
    grace: timedelta = GRACE
    dry_run: bool = False


@public
@dataclass(frozen=True)
class Removal:
    """The snapshots and files that were removed from a set, or would be removed.

    Parameters
    ----------
    snapshots : list of str
        Ids of snapshots, the oldest first.
    files : list of str
        Urls of files.
    nbytes : int
        The size of these files in bytes.

    Examples
    --------
    >>> Removal(["20260101T000000000000-00000000"], [], 0)
    Removal of 1 snapshot and 0 files of 0 bytes
    """

    snapshots: list[str]
    files: list[str]
    nbytes: int

    @classmethod
    def of(cls, snapshots: list[str], listed: Sequence[ListedFile]) -> Removal:
        """Return the removal of files that a store has listed."""
        files = [entry.file for entry in listed]
        return cls(snapshots, [f.url for f in files], sum(f.size or 0 for f in files))

    def __repr__(self) -> str:
        plural = "" if len(self.snapshots) == 1 else "s"
        return (
            f"Removal of {len(self.snapshots)} snapshot{plural} and {len(self.files)} files of "
            f"{self.nbytes} bytes"
        )


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a group of a reference set.

    Parameters
    ----------
    group : str, optional
        Path of a group; the root group by default.
    skip : set of str
        Names of variables to leave out.
    allow : AccessPolicy
        The policy that says where the files of the set may be.
    snapshot : str, optional
        An earlier snapshot, for formats that have snapshots; by default the newest. Its name
        depends on the format.
    """

    group: str | None = None
    skip: frozenset[str] = frozenset()
    allow: AccessPolicy = DEFAULT_POLICY
    snapshot: str | None = None


READ_ALL = ReadOptions()
"""The options for reading all of the newest snapshot."""


class SetVersion(Protocol):
    """A version of a set that a writer has read and wants to change.

    Each format has its own class, with the data by which the next version can refer to unchanged
    parts: a parsed document, names and tokens of files.
    """

    @property
    def group(self) -> ManifestGroup:
        """The whole set; in a changed group, unchanged parts are the same objects or rows."""

    def is_current(self) -> bool:
        """Return whether the set still has this version."""


class Parts(NamedTuple):
    """The functions with which several processes write one set together.

    One process begins, all write, and one commits. ``begin`` takes the url, access options and
    whether to replace a set, and returns the location of the parts, which can be pickled.
    ``write`` takes arrays and the location, and returns arrays that refer to tables written there.
    ``commit`` takes a group of such arrays and the location, and creates the set; ``abandon`` takes
    the location, and removes its files. ``holds`` takes a table of references and the location, and
    returns whether the table is in that set.
    """

    begin: Callable[..., Any]
    write: Callable[[Mapping[Any, ManifestArray], Any], dict[Any, ManifestArray]]
    commit: Callable[..., None]
    abandon: Callable[[Any], None]
    holds: Callable[[ReferenceTable, Any], bool]


@dataclass(frozen=True)
class Format:
    """A reference format, with functions that read and commit sets.

    Every change of a set is a function from group to group, written once above the formats:
    `change_set` reads a version (``read_version``), calls the function, and commits the new group
    onto that version (``write`` with ``base``). The format compares the group with that version,
    and writes only the differences.

    Parameters
    ----------
    name : str
    suffixes : tuple of str
        Suffixes of file names that select the format for writing.
    detect : callable
        Takes the first bytes of a file, and returns whether it is of this format.
    read : callable
        Takes the file of a set and `ReadOptions`. Returns a group, as lazy as possible.
    write : callable
        Takes a group, the url of a set and its access options, and by keyword ``replace``, ``base``
        and choices. Commits the group: all of it, or nothing. Without ``base``, it creates a set,
        or replaces an existing set if ``replace`` is true; otherwise it raises `FileExistsError`.
        With ``base``, a result of ``read_version``, it creates the next version of that set: it
        writes the new parts of the group, and refers to parts that are already in the set. If the
        set no longer has that version, it raises `ConflictError` and changes nothing. Choices
        default to those of ``base``.
    read_version : callable
        Takes the url of a set, its access options, and where its files may be. Returns its newest
        `SetVersion`, as the base of a change; raises `FileNotFoundError` if there is no set.
    compact : callable, optional
        Takes a version, and returns the choices with which ``write`` stores the same references in
        fewer files, or None if there is nothing to join.
    markers : tuple of str
        For a format whose sets are folders: files that mark a folder as a set. ``detect`` takes the
        whole file.
    first_written : tuple of str
        For such a format: folders in it that a writer may create before it writes a marker.
    choices : tuple of str
        Keyword arguments of ``write`` besides those of every format.
    version_choices : tuple of str
        The choices that ``read_version`` also takes, to select the version.
    parts : Parts, optional
        For a format that several processes can write together.
    history : callable, optional
        For a format with snapshots: takes url and access options, and returns the ids and times of
        all snapshots, the newest last.
    expire : callable, optional
        For such a format: takes url, access options and an `Expiry`, and returns a `Removal`.
    library : str, optional
        The optional dependency that reads and writes the format, if any.
    read_object : callable, optional
        Takes an object of that library, `ReadOptions`, and the access options of files. Returns a
        group.
    to_dict : callable, optional
        For a format that is one JSON document: takes a group and the choices, and returns the
        document.
    holds : callable, optional
        Returns whether a new set would overwrite something; by default, whether there is a set at
        the url.
    has_rewritten_chunks : bool
        Whether a set may refer to rewritten chunks, which are in no source file.
    is_set : callable, optional
        For a format whose sets are files that a parser reads: takes the parser that recognises a
        file, and the file, and returns whether it is a set. ``detect`` is false then.
    obstacles : callable, optional
        For a format that cannot store every array: takes a virtual variable and the choices, and
        returns the reasons why it cannot store the variable.
    """

    name: str
    suffixes: tuple[str, ...]
    detect: Callable[[bytes], bool]
    read: Callable[..., ManifestGroup]
    write: Callable[..., None]
    read_version: Callable[..., SetVersion]
    compact: Callable[[Any], dict[str, Any] | None] | None = None
    markers: tuple[str, ...] = ()
    first_written: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    version_choices: tuple[str, ...] = ()
    history: Callable[[str, StorageOptions | None], list[tuple[str, str]]] | None = None
    expire: Callable[[str, StorageOptions | None, Expiry], Removal] | None = None
    parts: Parts | None = None
    library: str | None = None
    read_object: Callable[..., ManifestGroup] | None = None
    holds: Callable[..., bool] | None = None
    to_dict: Callable[..., dict[str, Any]] | None = None
    obstacles: Callable[..., list[str]] | None = None
    has_rewritten_chunks: bool = True
    is_set: Callable[..., bool] | None = None

    @property
    def has_staging_folder(self) -> bool:
        """Whether the format can move the chunks in a folder, given by its url, into a set."""
        return "staging_folder" in self.version_choices

    def list_snapshots(self, url: str, options: StorageOptions | None) -> pd.DataFrame:
        """Return a table with one row per snapshot of a set; empty if the format has none."""
        import pandas as pd

        rows = [] if self.history is None else self.history(url, options)
        table = pd.DataFrame(rows, columns=["snapshot", "time"])
        return table.assign(time=pd.to_datetime(table["time"]).dt.tz_localize(None))

    def expire_snapshots(self, url: str, options: StorageOptions | None, expiry: Expiry) -> Removal:
        """Remove snapshots and files that belong to none, and return what was removed."""
        return Removal([], [], 0) if self.expire is None else self.expire(url, options, expiry)


def change_set(
    format_: Format,
    url: str,
    change: Callable[[ManifestGroup], ManifestGroup],
    options: StorageOptions | None = None,
    allow: AccessPolicy = DEFAULT_POLICY,
    **choices: Any,
) -> None:
    """Change a set; raise `ConflictError` if another writer was faster.

    ``change`` takes the whole set and returns the new one; if it returns the same object, nothing
    is written. ``allow`` says where the files of the set may be. Choices of the format that are not
    given remain as before.
    """
    version_choices = {name: choices[name] for name in format_.version_choices if name in choices}
    base = format_.read_version(url, options, allow, **version_choices)
    # the set is read on demand, so another writer may remove files that are still needed
    with explain_vanished_files(base.is_current, url):
        after = change(base.group)
    if after is not base.group:
        format_.write(after, url, options, base=base, **choices)


def is_never_recognised(head: bytes) -> bool:
    """Return False, for formats that ``is_set`` recognises instead of first bytes."""
    return False


def replaces_by(mode: str) -> bool:
    """Return whether a write mode replaces an existing set."""
    if mode not in ("w-", "w"):
        raise ValueError(f"mode={mode!r}: give 'w-' (create) or 'w' (create or replace)")
    return mode == "w"
