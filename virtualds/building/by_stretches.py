"""Building by stretches: whoever opens files that are alike joins them as they are stored.

What comes from another process then is one array for each variable, not one for each file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from virtualds.building.alike import Alike
from virtualds.building.opening import Item, Job, Outcome
from virtualds.building.stored_file import Member, StoredFile
from virtualds.building.tree import UnlikeError


@dataclass(frozen=True)
class StretchJob:
    """Opens files as another job does, and joins those that were given together.

    Parameters
    ----------
    job : Job
    alike : Alike
        How all files are joined.
    """

    job: Job[Any]
    alike: Alike

    def __call__(self, items: Sequence[Item]) -> list[Outcome[Any]]:
        """Open neighbouring files, and join them if they are alike."""
        outcomes = self.job(items)
        files = [o.found for o in outcomes if isinstance(o.found, StoredFile)]
        if len(files) < len(outcomes):
            return outcomes
        try:
            stretch = self.alike.stretch(files, self.job.open)
        except UnlikeError:
            return outcomes
        members = (Member(stretch, place) for place in range(len(files)))
        return [replace(o, found=m) for o, m in zip(outcomes, members, strict=True)]

    @property
    def smallest(self) -> int:
        """How many files it is worth giving to somebody else at least."""
        return self.job.smallest

    def opened(self, item: Item) -> Outcome[Any]:
        """Open a file."""
        return self.job.opened(item)

    def prepared(self, item: Item, outcome: Outcome[Any]) -> Outcome[Any]:
        """Do what is to be done with an opened file."""
        return self.job.prepared(item, outcome)

    def gathered(self, outcomes: Iterator[Outcome[Any]]) -> Iterator[Outcome[Any]]:
        """Leave files that come one by one as they are."""
        return self.job.gathered(outcomes)
