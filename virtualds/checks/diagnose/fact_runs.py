"""Facts about the files of an archive, stored as the places where each fact changes.

Files of one archive are alike, so a fact that never changes takes one entry, whatever the number of
files. The structure of each file is not kept.
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
"""A fact with at most this many texts gets a row, and an era, for each of them."""
TIMES = ("datetime64", "timedelta64")
"""How numpy's names of time types begin; other time types have a calendar."""
FactRun = tuple[int, str | None]
"""The first file of a run, and the text of the fact from there on; None if it is absent."""


@dataclass
class FactRuns:
    """The runs of every fact through the readable files, in order.

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
        """Add the facts of the next file."""
        for fact, text in facts.items():
            if fact not in self.runs:
                lacked = self.count and (fact.aspect == PRESENCE or fact.subject in self._subjects)
                self.runs[fact] = [(0, None if lacked and fact.aspect != SIZE else text)]
            if self.runs[fact][-1][1] != text:
                self.runs[fact].append((self.count, self._texts.setdefault(text, text)))
        for fact, runs in self.runs.items():
            # an absent variable has no other facts
            if fact not in facts and runs[-1][1] is not None and _is_implied(fact, facts):
                runs.append((self.count, None))
        self._subjects |= {fact.subject for fact in facts if fact.aspect == PRESENCE}
        self.count += 1

    def find_changing(self) -> dict[Fact, list[FactRun]]:
        """Return the runs of the facts that change."""
        return {fact: runs for fact, runs in self.runs.items() if len(runs) > 1}

    def count_texts(self, fact: Fact) -> Counter[str | None]:
        """Return how many files have each text of a fact, in the order of their first files."""
        there = self._find_presence(fact)
        found: Counter[str | None] = Counter()
        for (start, text), (stop, _) in pairwise([*self.runs[fact], (self.count, None)]):
            found[text] += stop - start if there is None else int(there[start:stop].sum())
        return found

    def _find_presence(self, fact: Fact) -> npt.NDArray[np.bool_] | None:
        """Return which files have the variable of a fact, None if all have.

        The runs of what a variable is like go on through files that lack it.
        """
        presence = Fact(fact.subject, PRESENCE)
        runs = self.runs.get(presence, ())
        if fact.aspect in (PRESENCE, SIZE) or all(text is not None for _, text in runs):
            return None
        numbers: dict[str | None, int] = {}
        column = self._number_texts(presence, numbers)
        return np.asarray(column != numbers[None])

    def counts_time(self, subject: str) -> bool:
        """Say whether a variable counts time in at least one file."""
        texts = [text for _, text in self.runs.get(Fact(subject, DTYPE), ())]
        return Fact(subject, CALENDAR) in self.runs or any(
            text is not None and text.startswith(TIMES) for text in texts
        )

    def number_texts(self, fact: Fact) -> npt.NDArray[np.int64]:
        """Return, for each file, the number of the text that a fact has there."""
        column = self._number_texts(fact, {})
        if fact.aspect.startswith(CHUNKS):
            dim = fact.aspect.removeprefix(CHUNKS)
            return _number_keys(self._merge_cut(column, fact, Fact(dim, SIZE)))
        return column

    def _number_texts(self, fact: Fact, texts: dict[str | None, int]) -> npt.NDArray[np.int64]:
        """Return, for each file, the number of its text, and add new texts to ``texts``."""
        starts = [start for start, _ in self.runs[fact]]
        numbers = [texts.setdefault(text, len(texts)) for _, text in self.runs[fact]]
        return np.repeat(numbers, np.diff([*starts, self.count]))

    def _merge_cut(
        self, column: npt.NDArray[np.int64], chunks: Fact, size: Fact
    ) -> npt.NDArray[np.int64]:
        """Give the same number to chunks that cut dimensions of any size into equally many pieces.

        A month stored as one chunk, or as two halves, is cut alike whatever its length.
        """
        lengths: dict[str | None, int] = {}
        sizes: dict[str | None, int] = {}
        of_size = self._number_texts(size, sizes)
        self._number_texts(chunks, lengths)
        found = column.copy()
        numbers: dict[int, int] = {}
        for text, number in lengths.items():
            here = column == number
            there = {t for t, n in sizes.items() if n in set(of_size[here].tolist())}
            pieces = {_count_pieces(text, other) for other in there}
            if len(pieces) == 1 and (count := pieces.pop()):
                found[here] = numbers.setdefault(count, number)
        return found

    def number_eras(self, facts: Sequence[Fact]) -> npt.NDArray[np.int64]:
        """Return the era of every file; files of one era agree in all of ``facts``."""
        key = np.zeros(self.count, np.int64)
        for fact in facts:
            column = self.number_texts(fact)
            key = _number_keys(key * (int(column.max(initial=0)) + 1) + column)
        return key


def find_text(runs: Sequence[FactRun], number: int) -> str | None:
    """Return the text of a fact in one file."""
    return [text for start, text in runs if start <= number][-1]


def is_steady(counts: Counter[Any]) -> bool:
    """Say whether texts hold for stretches of files instead of changing with every file."""
    return len(counts) <= min(max(2, counts.total() // 2), MOST_VALUES)


def _count_pieces(chunk: str | None, size: str | None) -> int:
    """Return how many even pieces chunks cut a dimension into, 0 if the pieces are uneven.

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
    """Return keys as small numbers, in order of first appearance."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.empty(first.size, np.int64)
    order[np.argsort(first)] = np.arange(first.size)
    return order[inverse]
