"""Upkeep of sets: join small files, move references to other urls, remove what nobody needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from virtualds.public import public
from virtualds.source_file import SourceFile
from virtualds.stores.store import ListedFile

GRACE = timedelta(days=1)
"""Files of writers younger than this stay: a writer may be about to commit them."""

MoveFile = Callable[[SourceFile], SourceFile]
"""Takes a source file, and returns it with its new url, or unchanged."""
CheckMoved = Callable[[Sequence[SourceFile]], None]
"""Takes the files that have moved, and raises an error if they must not be committed."""


@dataclass(frozen=True)
class Expiry:
    """Which snapshots of a set go.

    Parameters
    ----------
    keep : int
        How many of the newest stay, at least 1.
    older_than : timedelta, optional
        Only snapshots of at least this age go.
    grace : timedelta
        Files that belong to no snapshot, old or new, go from this age on.
    dry_run : bool
        Whether everything stays, and is only listed.
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
