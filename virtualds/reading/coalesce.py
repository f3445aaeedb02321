"""Joins ranges of bytes that lie close together: pure integers, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from virtualds.stores.store import Range


class JoinedRange(NamedTuple):
    """A stretch of a file that holds ranges; ``members`` are their numbers, by rising offset."""

    offset: int
    length: int
    members: list[int]


def join_ranges(ranges: Sequence[Range], gap: int, most: int) -> list[JoinedRange]:
    """Join ranges of one file into runs, in time n log n.

    Parameters
    ----------
    ranges : sequence of (offset, length)
        In any order; they may overlap.
    gap : int
        Bytes between two ranges up to which both are joined.
    most : int
        Bytes of a run, unless a range alone is longer.

    Returns
    -------
    list of JoinedRange
        By rising offset. Every range lies in exactly one of them.

    Examples
    --------
    >>> join_ranges([(0, 10), (100, 10), (12, 8)], gap=4, most=1000)
    [JoinedRange(offset=0, length=20, members=[0, 2]),
     JoinedRange(offset=100, length=10, members=[1])]
    """
    runs: list[JoinedRange] = []
    begin = end = 0
    members: list[int] = []
    for offset, length, number in sorted((o, n, i) for i, (o, n) in enumerate(ranges)):
        if members and (offset - end > gap or offset + length - begin > most):
            runs.append(JoinedRange(begin, end - begin, members))
            members = []
        if not members:
            begin = end = offset
        end = max(end, offset + length)
        members.append(number)
    if members:
        runs.append(JoinedRange(begin, end - begin, members))
    return runs


def split_portions(runs: Sequence[JoinedRange], most: int) -> Iterator[list[JoinedRange]]:
    """Cut runs, in their order, into lists of at most ``most`` bytes, or of one run.

    Examples
    --------
    >>> runs = join_ranges([(0, 600), (1000, 300), (2000, 700)], gap=0, most=1000)
    >>> [[run.length for run in some] for some in split_portions(runs, most=1000)]
    [[600, 300], [700]]
    """
    some: list[JoinedRange] = []
    nbytes = 0
    for run in runs:
        if some and nbytes + run.length > most:
            yield some
            some, nbytes = [], 0
        some.append(run)
        nbytes += run.length
    if some:
        yield some
