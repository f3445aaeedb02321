"""Reference formats: the interface that each of them implements, and the words of their upkeep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.table import Table
from virtualds.errors import public
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy
from virtualds.stores.fence import explain_vanished_files
from virtualds.stores.store import ListedFile

if TYPE_CHECKING:
    import pandas as pd

GRACE = timedelta(days=1)
"""Files of writers younger than this stay: a writer may be about to commit them."""


@dataclass(frozen=True)
class Expiry:
    """Which snapshots of a set go: of those that are ``older_than`` an age, all but the newest.

    ``keep`` of the newest stay, at least 1. Files that belong to no snapshot, old or new, go from
    the age ``grace`` on. In a ``dry_run`` everything stays, and is only listed.
    """

    keep: int
    older_than: timedelta | None = None
    grace: timedelta = GRACE
    dry_run: bool = False


@public
@dataclass(frozen=True)
class Removal:
    """What a cleaning removed from a set, or would remove.

    Parameters
    ----------
    snapshots : list of str
        Ids of snapshots, the oldest first.
    files : list of str
        Urls of files.
    nbytes : int
        Bytes of these files.

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
        urls = [one.file.url for one in listed]
        return cls(snapshots, urls, sum(one.file.size or 0 for one in listed))

    def __repr__(self) -> str:
        many = "" if len(self.snapshots) == 1 else "s"
        return (
            f"Removal of {len(self.snapshots)} snapshot{many} and {len(self.files)} files of "
            f"{self.nbytes} bytes"
        )


@dataclass(frozen=True)
class ReadOptions:
    """Which group of a reference set is read, and how.

    Parameters
    ----------
    group : str, optional
        Path of a group; the root group by default.
    skip : set of str
        Names of variables to leave out.
    allow : AccessPolicy
        Where the files that the set refers to may lie.
    snapshot : str, optional
        An earlier snapshot, of a format that keeps snapshots; by default the newest. Formats say
        how they name snapshots.
    """

    group: str | None = None
    skip: frozenset[str] = frozenset()
    allow: AccessPolicy = ANYWHERE
    snapshot: str | None = None


READ_ALL = ReadOptions()
"""How all of the newest snapshot is read."""


class SetVersion(Protocol):
    """A version of a set, as a writer has read it: what a change begins with.

    The class of a format also keeps what the format needs in order to name, in the next version,
    what stays: a parsed document, names and tokens of files.
    """

    @property
    def group(self) -> ManifestGroup:
        """The whole set. What a change leaves alone stays the same object, or the same rows."""

    def is_current(self) -> bool:
        """Say whether the set still has this version."""


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
    holds: Callable[[Table, Any], bool]


@dataclass(frozen=True)
class Format:
    """A reference format: it reads and it commits.

    Every change of a set is a function from group to group, written once above the formats:
    `change_set` reads a version (``read_version``), calls the function, and commits the new group
    onto that version (``write`` with ``base``). How little is written for it is the format's own
    affair: it compares the group with the version.

    Parameters
    ----------
    name : str
    suffixes : tuple of str
        Ends of file names that choose it for writing.
    detect : callable
        Takes the first bytes of a file and says whether it is of this format.
    read : callable
        Takes the file of a set and `ReadOptions`. Reads a group, as far as possible lazily, in
        order to open it.
    write : callable
        Takes a group, the url of a set and its access options, and by keyword ``replace``,
        ``base`` and choices. Commits the group: all of it, or nothing. Without ``base`` it makes a
        set, or replaces whatever set there is if ``replace`` is true; else that is a
        `FileExistsError`. With ``base``, which ``read_version`` returned, it makes the next version
        of that set: it writes what is new in the group, and names what lies in the set already. If
        the set no longer has that version, that is a `ConflictError`, and nothing has changed.
        Choices that are not given are those of ``base``.
    read_version : callable
        Takes the url of a set, its access options, and where its files may lie. Returns its newest
        `SetVersion`, in order to change it; without a set that is a `FileNotFoundError`.
    compact : callable, optional
        Takes a version, and returns the choices with which ``write`` holds the same references in
        fewer files, None if there is nothing to join.
    markers : tuple of str
        For a format that is a folder: a folder with one of these files is a set. ``detect`` takes
        the whole file.
    first_written : tuple of str
        For such a format: folders in it that a writer may make before it writes a marker.
    choices : tuple of str
        Keyword arguments that ``write`` takes beyond those of every format.
    places : tuple of str
        Those of them that ``read_version`` takes, too: they say which version that is.
    parts : Parts, optional
        Of a format that many processes can write together.
    history : callable, optional
        Of a format that keeps earlier snapshots: takes url and access options, and returns the ids
        and times of all, the newest last.
    expire : callable, optional
        Of such a format: takes url, access options and an `Expiry`, and returns a `Removal`.
    library : str, optional
        The library that reads and writes it, where it is an extra of that name.
    read_object : callable, optional
        Takes an object of that library, `ReadOptions`, and the access options of files. Reads a
        group.
    to_dict : callable, optional
        Of a format that is one JSON document: takes a group and the choices, and returns that.
    holds : callable, optional
        Says whether the place of a new set is taken; by default whether there is a set at the url.
    obstacles : callable, optional
        Of a format that cannot hold every array: takes a virtual variable, and its choices, and
        returns why it cannot hold the variable.
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
    places: tuple[str, ...] = ()
    history: Callable[[str, StorageOptions | None], list[tuple[str, str]]] | None = None
    expire: Callable[[str, StorageOptions | None, Expiry], Removal] | None = None
    parts: Parts | None = None
    library: str | None = None
    read_object: Callable[..., ManifestGroup] | None = None
    holds: Callable[..., bool] | None = None
    to_dict: Callable[..., dict[str, Any]] | None = None
    obstacles: Callable[..., list[str]] | None = None

    @property
    def takes_in(self) -> bool:
        """Whether it takes the url of a folder whose chunks it is to hold in the set itself."""
        return "takes_in" in self.places

    def list_snapshots(self, url: str, options: StorageOptions | None) -> pd.DataFrame:
        """Return a row for each snapshot of a set, none if the format keeps none."""
        import pandas as pd

        found = [] if self.history is None else self.history(url, options)
        table = pd.DataFrame(found, columns=["snapshot", "time"])
        return table.assign(time=pd.to_datetime(table["time"]).dt.tz_localize(None))

    def expire_snapshots(self, url: str, options: StorageOptions | None, which: Expiry) -> Removal:
        """Remove snapshots of a set, and files of none; nothing if the format keeps none."""
        return Removal([], [], 0) if self.expire is None else self.expire(url, options, which)


def change_set(
    form: Format,
    url: str,
    change: Callable[[ManifestGroup], ManifestGroup],
    options: StorageOptions | None = None,
    allow: AccessPolicy = ANYWHERE,
    **choices: Any,
) -> None:
    """Change a set, unless another writer was faster, which is a `ConflictError`.

    ``change`` takes the whole set and returns the new one; if it returns the same, nothing is
    written. ``allow`` says where the files of the set may lie. Choices of the format that are not
    given are as before.
    """
    places = {name: choices[name] for name in form.places if name in choices}
    base = form.read_version(url, options, allow, **places)
    # what lies in the set is read on demand, and gone where another writer has replaced it
    with explain_vanished_files(base.is_current, url):
        after = change(base.group)
    if after is not base.group:
        form.write(after, url, options, base=base, **choices)


def replaces_by(mode: str) -> bool:
    """Say whether a mode of writing replaces an existing set."""
    if mode not in ("w-", "w"):
        raise ValueError(f"mode={mode!r}: give 'w-' (create) or 'w' (create or replace)")
    return mode == "w"
