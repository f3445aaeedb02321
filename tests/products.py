"""Which cases of a test with many are tried in the quick suite, and which in the full one only."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence, Set
from typing import Any, TypeVar

import pytest

Row, Column, Turn = TypeVar("Row"), TypeVar("Column"), TypeVar("Turn")


def every_pair(
    rows: Iterable[Row], columns: Iterable[Column], turns: Sequence[Turn]
) -> Iterator[tuple[Row, Column, Turn]]:
    """Every row with every column, in turn with each of the rest: so all pairs of the three."""
    columns = list(columns)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            yield row, column, turns[(i + j) % len(turns)]


def few_quick(cases: Iterable[Row], quick: Collection[Row]) -> list[Any]:
    """Return all cases of a parameter; those that are not in `quick` run in the full suite only."""
    full = pytest.mark.full
    return [case if case in quick else pytest.param(case, marks=full) for case in cases]


def leave_for_the_full_suite(items: Iterable[pytest.Item]) -> None:
    """Mark those cases of products `full` whose values stand in other cases too."""
    products: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("product"):
            products[item.nodeid.partition("[")[0]].append(item)
    for cases in products.values():
        marker = cases[0].get_closest_marker("product")
        times = marker.kwargs.get("times", 1) if marker else 1
        chosen = representatives([set(values(case)) for case in cases], times)
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker("full")


def values(case: pytest.Function) -> Iterator[Hashable]:
    """Of each parameter its value; of a tuple that of each place."""
    for name, value in case.callspec.params.items():
        for place, part in enumerate(value if isinstance(value, tuple) else (value,)):
            # the same object is the same value: many values have no hash
            yield name, place, id(part)


def representatives(rows: Sequence[Set[Hashable]], times: int = 1) -> set[int]:
    """The numbers of some rows in which every value stands so often, if it does so in all.

    Rows go first that hold most values which do not stand so often yet.
    """
    seen: Counter[Hashable] = Counter()
    chosen: set[int] = set()
    # shuffled, so that values which stand often enough are not always the first of their kind
    numbers = random.Random(0).sample(range(len(rows)), len(rows))
    for fresh in range(max(map(len, rows)), 0, -1):
        for number in numbers:
            row = rows[number]
            if number not in chosen and sum(seen[value] < times for value in row) >= fresh:
                chosen.add(number)
                seen.update(row)
    return chosen
