"""Comparing the files of a set with those that are there now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from virtualds.source_file import NO_NUMBER, StorageOptions
from virtualds.stores.access_rules import is_nameable
from virtualds.stores.listing import FileColumns
from virtualds.syncing.list_files import fetch_states
from virtualds.urls import local_path

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Changes:
    """How the files that are there differ from those of a set.

    Parameters
    ----------
    new, changed, removed, waiting : tuple of str
        Urls. ``removed`` are those that the set has, and that are not listed; ``waiting`` are new
        or changed so recently that they may still be written.
    unchanged : int
        Number of files that are as the set knows them.
    repeated : tuple of str
        Other names of listed files, by links; no other field has them.
    """

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    unchanged: int = 0
    repeated: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ("new", "changed", "removed", "waiting")
        counts = ", ".join(f"{len(getattr(self, name)):,} {name}" for name in names)
        return f"files listed: {counts}, {self.unchanged:,} unchanged"

    @classmethod
    def between(
        cls,
        known: FileColumns,
        listed: FileColumns,
        settle: float,
        now: float,
        *,
        every_name: bool = False,
    ) -> Changes:
        """Compare the files of a set with the listed ones.

        A file that was modified less than ``settle`` seconds before or after ``now`` waits; the
        clock of a server may be ahead. Second names of files are left out, unless ``every_name``
        counts.
        """
        place = _find_places(known, listed)
        there = place >= 0
        differs = np.zeros(len(listed), bool)
        differs[there] = _differ(listed.take(there), known.take(place[there]))
        young = (differs | ~there) & (np.abs(now - listed.modified) < settle)
        gone = np.ones(len(known), bool)
        gone[place[there]] = False
        fresh = ~there & ~young
        searched = np.zeros_like(fresh) if every_name else fresh
        repeated = _find_second_names(listed, searched)
        return cls(
            new=tuple(listed.urls[fresh & ~repeated]),
            changed=tuple(listed.urls[differs & ~young]),
            removed=tuple(known.urls[gone]),
            waiting=tuple(listed.urls[young]),
            unchanged=int(np.count_nonzero(there & ~differs)),
            repeated=tuple(listed.urls[repeated]),
        )

    def still_needed(self, before: FileColumns, now: FileColumns) -> Changes:
        """Return what is left to do after another writer has changed the set.

        What the other writer added, replaced or dropped stays as it is: its listing may be newer
        than ours.
        """
        rows, old = pd.Index(now.urls), pd.Index(before.urls)

        def keep_untouched(urls: Sequence[str]) -> tuple[str, ...]:
            """Return those that the set has, and knows as it did before."""
            there = [url for url in urls if url in here]
            moved = _differ(now.take(rows.get_indexer(there)), before.take(old.get_indexer(there)))
            return tuple(url for url, is_moved in zip(there, moved, strict=True) if not is_moved)

        here = set(now.urls)
        new = tuple(url for url in self.new if url not in here)
        changed = keep_untouched(self.changed)
        done = len(self.new) + len(self.changed) - len(new) - len(changed)
        return replace(
            self,
            new=new,
            changed=changed,
            removed=keep_untouched(self.removed),
            unchanged=self.unchanged + done,
        )


def _find_second_names(listed: FileColumns, fresh: Mask) -> Mask:
    """Say for each new file whether it is, by a link, another listed one.

    Of several new names, the first counts that a set may hold and that is no symbolic link.
    """
    found = np.zeros(len(listed), bool)
    if not fresh.any():
        return found
    # only names of one size and one time are looked at
    group = pd.MultiIndex.from_arrays([listed.sizes, listed.mtimes]).factorize()[0]
    count = np.bincount(group)
    alike = (listed.mtimes != NO_NUMBER) & (count[group] > 1)
    alike &= np.isin(group, group[alike & fresh])
    names: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(alike).tolist():
        with suppress(OSError):
            there = os.stat(local_path(listed.urls[row]))
            names.setdefault((there.st_dev, there.st_ino), []).append(row)
    for rows in names.values():
        if len(rows) > 1:
            first = min(rows, key=lambda row: (fresh[row], *_rank_name(str(listed.urls[row])), row))
            found[rows] = fresh[rows]
            found[first] = False
    return found


def _rank_name(url: str) -> tuple[bool, bool]:
    return not is_nameable(url), os.path.islink(local_path(url))


def complete(
    listed: FileColumns, known: FileColumns, options: StorageOptions | None
) -> FileColumns:
    """Ask for the state of files of which a listing does not tell what is needed, each once.

    Of a file that a set knows, its size and etag are compared; of any other, the time says whether
    it may still be written. Files that are gone are left out.
    """
    place = _find_places(known, listed)
    there = place >= 0
    asked = np.isnan(listed.modified) & ~there
    of_set, now = known.take(place[there]), listed.take(there)
    lacks_size = (now.sizes == NO_NUMBER) & (of_set.sizes != NO_NUMBER)
    lacks_etag = (now.etags == "") & (of_set.etags != "")
    asked[there] = lacks_size | lacks_etag
    return _ask_again(listed, asked, options) if asked.any() else listed


def _ask_again(listed: FileColumns, asked: Mask, options: StorageOptions | None) -> FileColumns:
    states = fetch_states(listed.urls[asked].tolist(), options)
    answered = FileColumns.of(state for state in states if state is not None)
    found = FileColumns.join([listed.take(~asked), answered])
    return found.take(np.argsort(found.urls, kind="stable"))


def _find_places(known: FileColumns, listed: FileColumns) -> npt.NDArray[np.intp]:
    """Return the row of every listed file among the known ones, -1 for a new file."""
    # names need not be UTF-8, as texts of Arrow must be
    names = (pd.Index(files.urls, dtype=object) for files in (known, listed))
    return np.asarray(next(names).get_indexer(next(names)))


def _differ(some: FileColumns, others: FileColumns) -> Mask:
    """Say for each pair of states whether what both know differs."""
    found = np.zeros(len(some), bool)
    for a, b in ((some.sizes, others.sizes), (some.mtimes, others.mtimes)):
        found |= (a != b) & (a != NO_NUMBER) & (b != NO_NUMBER)
    etags = (some.etags != others.etags) & (some.etags != "") & (others.etags != "")
    return np.asarray(found | etags.astype(bool))
