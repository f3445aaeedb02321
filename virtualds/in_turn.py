"""Work that an executor does some way ahead of who takes what comes of it, item by item."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_turn(
    pool: Executor, work: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[tuple[Item, Future[Result]]]:
    """Yield items in their order, each with the future of its work; ``ahead`` are under way."""
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    rest = iter(items)
    while True:
        waiting.extend((i, pool.submit(work, i)) for i in islice(rest, ahead - len(waiting)))
        if not waiting:
            return
        yield waiting.popleft()
