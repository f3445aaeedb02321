"""Comparing the files of a set with those that are there now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from virtualds.source_file import NO_NUMBER, StorageOptions
from virtualds.stores.listing import FileColumns
from virtualds.syncing.list_files import fetch_states

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
    """

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    unchanged: int = 0

    def __str__(self) -> str:
        names = ("new", "changed", "removed", "waiting")
        counts = ", ".join(f"{len(getattr(self, name)):,} {name}" for name in names)
        return f"files listed: {counts}, {self.unchanged:,} unchanged"

    @classmethod
    def between(cls, known: FileColumns, listed: FileColumns, settle: float, now: float) -> Changes:
        """Compare the files of a set with the listed ones.

        A file that was modified less than ``settle`` seconds before or after ``now`` waits; the
        clock of a server may be ahead.
        """
        place = _find_places(known, listed)
        there = place >= 0
        differs = np.zeros(len(listed), bool)
        differs[there] = _differ(listed.take(there), known.take(place[there]))
        young = (differs | ~there) & (np.abs(now - listed.modified) < settle)
        gone = np.ones(len(known), bool)
        gone[place[there]] = False
        return cls(
            new=tuple(listed.urls[~there & ~young]),
            changed=tuple(listed.urls[differs & ~young]),
            removed=tuple(known.urls[gone]),
            waiting=tuple(listed.urls[young]),
            unchanged=int(np.count_nonzero(there & ~differs)),
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
    return np.asarray(pd.Index(known.urls).get_indexer(pd.Index(listed.urls)))


def _differ(some: FileColumns, others: FileColumns) -> Mask:
    """Say for each pair of states whether what both know differs."""
    found = np.zeros(len(some), bool)
    for a, b in ((some.sizes, others.sizes), (some.mtimes, others.mtimes)):
        found |= (a != b) & (a != NO_NUMBER) & (b != NO_NUMBER)
    etags = (some.etags != others.etags) & (some.etags != "") & (others.etags != "")
    return np.asarray(found | etags.astype(bool))
