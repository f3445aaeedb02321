"""What the files of an archive say, file after file, kept as the places where it changes.

Files of one archive are alike. A fact that never changes takes one entry, however many files there
are, and the structure of a file is not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.datasets.structure import CALENDAR, CHUNKS, DTYPE, PRESENCE, SIZE, Fact, Facts

MOST_VALUES = 32
"""Texts of a fact up to which each makes a row, and an era, of its own."""
TIMES = ("datetime64", "timedelta64")
"""What the names of numpy's types of time begin with; others have a calendar."""
FactRun = tuple[int, str | None]
"""From which file on a fact has a text; None is: it is not there."""


@dataclass
class FactRuns:
    """The course of every fact through the files that could be opened, in order.

    Parameters
    ----------
    runs : dict of Fact to list of Run
        Where each fact changes.
    count : int
        Number of files so far.
    """

    runs: dict[Fact, list[FactRun]] = field(default_factory=dict)
    count: int = 0
    _texts: dict[str, str] = field(default_factory=dict)
    _subjects: set[str] = field(default_factory=lambda: {""})

    def add(self, facts: Facts) -> None:
        """Add the next file."""
        for fact, text in facts.items():
            if fact not in self.runs:
                lacked = self.count and (fact.aspect == PRESENCE or fact.subject in self._subjects)
                self.runs[fact] = [(0, None if lacked and fact.aspect != SIZE else text)]
            if self.runs[fact][-1][1] != text:
                self.runs[fact].append((self.count, self._texts.setdefault(text, text)))
        for fact, runs in self.runs.items():
            # of a variable that is not there, nothing else is said either
            if fact not in facts and runs[-1][1] is not None and _is_implied(fact, facts):
                runs.append((self.count, None))
        self._subjects |= {fact.subject for fact in facts if fact.aspect == PRESENCE}
        self.count += 1

    def changing(self) -> dict[Fact, list[FactRun]]:
        """Return the courses of the facts that change."""
        return {fact: runs for fact, runs in self.runs.items() if len(runs) > 1}

    def counts(self, fact: Fact) -> Counter[str | None]:
        """Return how many files have each text of a fact, in the order of their first files."""
        found: Counter[str | None] = Counter()
        for (start, text), (stop, _) in pairwise([*self.runs[fact], (self.count, None)]):
            found[text] += stop - start
        return found

    def counts_time(self, subject: str) -> bool:
        """Say whether a variable counts time, in some file at least."""
        texts = [text for _, text in self.runs.get(Fact(subject, DTYPE), ())]
        return Fact(subject, CALENDAR) in self.runs or any(
            text is not None and text.startswith(TIMES) for text in texts
        )

    def column(self, fact: Fact) -> npt.NDArray[np.int64]:
        """Return a number for every file: which of its texts a fact has there."""
        column = self._numbers(fact, {})
        if fact.aspect.startswith(CHUNKS):
            dim = fact.aspect.removeprefix(CHUNKS)
            return _number_keys(self._as_cut(column, fact, Fact(dim, SIZE)))
        return column

    def _numbers(self, fact: Fact, texts: dict[str | None, int]) -> npt.NDArray[np.int64]:
        """Return a number for every file, and note which text it stands for."""
        starts = [start for start, _ in self.runs[fact]]
        numbers = [texts.setdefault(text, len(texts)) for _, text in self.runs[fact]]
        return np.repeat(numbers, np.diff([*starts, self.count]))

    def _as_cut(
        self, column: npt.NDArray[np.int64], chunks: Fact, size: Fact
    ) -> npt.NDArray[np.int64]:
        """Give chunks one number that cut dimensions of different sizes into equally many pieces.

        A month that is stored as one chunk, or as two halves, is so whatever its length.
        """
        lengths: dict[str | None, int] = {}
        sizes: dict[str | None, int] = {}
        of_size = self._numbers(size, sizes)
        self._numbers(chunks, lengths)
        found = column.copy()
        numbers: dict[int, int] = {}
        for text, number in lengths.items():
            here = column == number
            there = {t for t, n in sizes.items() if n in set(of_size[here].tolist())}
            pieces = {_count_pieces(text, other) for other in there}
            if len(pieces) == 1 and (count := pieces.pop()):
                found[here] = numbers.setdefault(count, number)
        return found

    def eras(self, facts: Sequence[Fact]) -> npt.NDArray[np.int64]:
        """Return the number of the era of every file: files that agree in all of ``facts``."""
        key = np.zeros(self.count, np.int64)
        for fact in facts:
            column = self.column(fact)
            key = _number_keys(key * (int(column.max(initial=0)) + 1) + column)
        return key


def is_steady(counts: Counter[Any]) -> bool:
    """Say whether texts hold for stretches of an archive, and are not each file's own."""
    return len(counts) <= min(max(2, counts.total() // 2), MOST_VALUES)


def _count_pieces(chunk: str | None, size: str | None) -> int:
    """Return into how many pieces chunks cut a dimension evenly, 0 if they do not.

    >>> [_count_pieces(*ends) for ends in (("31", "31"), ("14", "28"), ("5", "31"), ("31", "28"))]
    [1, 2, 7, 0]
    """
    if not (chunk and size and chunk.isdecimal() and size.isdecimal() and int(chunk)):
        return 0
    count = -(-int(size) // int(chunk))
    return count if count and -(-int(size) // count) == int(chunk) else 0


def _is_implied(fact: Fact, facts: Facts) -> bool:
    if fact.aspect in (PRESENCE, SIZE):
        return fact.aspect == PRESENCE
    return not fact.subject or Fact(fact.subject, PRESENCE) in facts


def _number_keys(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return keys as small numbers, in the order in which they come first."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.empty(first.size, np.int64)
    order[np.argsort(first)] = np.arange(first.size)
    return order[inverse]
