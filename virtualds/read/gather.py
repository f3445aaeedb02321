"""Small things are got from many files, far ones many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from virtualds.read.ahead import Ahead, Way
from virtualds.read.pool import run_all

Entry = TypeVar("Entry")
Bytes = TypeVar("Bytes")

SMALL = 2**12
"""Bytes that an answer is taken to have."""


def gathered(
    items: Sequence[Entry], url_of: Callable[[Entry], str | None], fetch: Callable[[Entry], Bytes]
) -> list[Bytes]:
    """Return what ``fetch`` returns of every item, in their order.

    Parameters
    ----------
    items : sequence
    url_of : callable
        Which file an item is got from, None if from none.
    fetch : callable
        Is called in several threads.

    Raises
    ------
    Exception
        What ``fetch`` raises.
    """
    found: dict[int, Bytes] = {}

    def way_of(number: int) -> Way | None:
        url = url_of(items[number])
        return None if url is None else Way.to(url, SMALL)

    def fetch_one(number: int) -> tuple[Bytes]:
        return (fetch(items[number]),)

    def finish(answer: tuple[int, Any]) -> None:
        number, got = answer
        found[number] = fetch_one(number)[0] if got is None else got[0]

    run_all(Ahead(iter(range(len(items))), way_of, fetch_one), finish)
    return [found[number] for number in range(len(items))]
