"""Tables of source files joined into one: the arrays of a dataset share theirs, and its making."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

KEPT = 4
"""Joined tables that are held for the next array; arrays of a dataset come one after the other."""


@dataclass(frozen=True, eq=False, slots=True)
class JoinedTable(Generic[Item]):
    """Tables joined into one, each item once, and where in it the items of each table are.

    Parameters
    ----------
    parts : tuple of tuples
    items : tuple
        The items of all parts, in the order in which they come first.
    numbers : tuple of lists of int
        For every part the numbers that its items have in ``items``.
    """

    parts: tuple[tuple[Item, ...], ...]
    items: tuple[Item, ...]
    numbers: tuple[list[int], ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[Item, ...]]) -> JoinedTable[Item]:
        """Return tables as one; that of the same items in the same order is made once.

        A hundred variables of a million files would hold a hundred equal tables of a million.
        """
        for known in tuple(_known):
            if known._is_of(parts):
                return known
        items: dict[Item, int] = {}
        numbers = tuple([items.setdefault(item, len(items)) for item in part] for part in parts)
        made = cls(tuple(parts), tuple(items), numbers)
        _known.append(made)
        return made

    def _is_of(self, parts: Sequence[tuple[Item, ...]]) -> bool:
        """Say whether these are the very parts, without a look at what is in the items."""
        return len(parts) == len(self.parts) and all(
            part is own or (len(part) == len(own) and all(map(is_, part, own)))
            for part, own in zip(parts, self.parts, strict=True)
        )


def each_once(tables: Iterable[tuple[Item, ...]]) -> list[tuple[Item, ...]]:
    """Return every table once that several arrays share."""
    return list({id(table): table for table in tables}.values())


_known: deque[JoinedTable[Any]] = deque(maxlen=KEPT)
