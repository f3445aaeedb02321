"""How much is tried: numbers of examples, seeds, rounds and files are multiplied by one option.

A run of all tests tries what finds most breaks; ``make soak`` tries many times as much, overnight,
and runs the tests with the marker ``soak``, and all cases of those with the marker ``sampled``.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import pytest

_effort = 1


def add_option(parser: pytest.Parser) -> None:
    """Let ``pytest --effort 10`` try ten times as much."""
    text = "try so many times as much; with more than 1, tests marked soak run, too"
    parser.addoption("--effort", type=int, default=1, metavar="N", help=text)


def set_effort(config: pytest.Config) -> None:
    """Take the option from the command line, before the first test is collected."""
    global _effort
    _effort = config.getoption("effort")


def times(count: int) -> int:
    """Return how many to try, where a run of all tests tries `count`."""
    return count * _effort


def leave_for_a_soak(items: list[Any], config: pytest.Config) -> None:
    """Deselect what only a soak runs, unless more is to be tried.

    That is what is marked ``soak``; and of a test marked ``sampled(3)`` two of three cases. Which
    ones depends on its name, so tests of the same cases take turns: each case is in some of them.
    """
    if _effort > 1:
        return
    places: Counter[str] = Counter()
    left, kept = [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        sampled = item.get_closest_marker("sampled")
        places[name] += 1
        turn = zlib.crc32(name.encode()) + places[name]
        is_left = item.get_closest_marker("soak") or (sampled and turn % sampled.args[0])
        (left if is_left else kept).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def others_soaked(cases: Iterable[Any], tried: Collection[Any]) -> list[Any]:
    """Return all cases of a test; those that are not `tried` run in a soak only."""
    return [
        case
        if case in tried
        else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.soak)
        for case in cases
    ]
