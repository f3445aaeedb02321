"""Which cases of a test with many are tried in the quick suite, and which in the full one only.

Cases that cannot fail alone are a loop in one test (`looped`): a test of its own costs ten times
what most cases take, and its collection as much again.
"""

from __future__ import annotations

import functools
import inspect
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

Row, Column, Turn = TypeVar("Row"), TypeVar("Column"), TypeVar("Turn")


PARAM = type(pytest.param())


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


def looped(names: str, values: Iterable[Any], quick: int | None = None) -> Callable[..., Any]:
    """Try all values in one test, as ``pytest.mark.parametrize`` tries each in a test of its own.

    Each case has a folder ``tmp_path`` of its own, and what it patches with ``monkeypatch`` is
    taken back. A failure names the case.

    Parameters
    ----------
    names : str
        The parameters, separated by commas.
    values : iterable
        Their values.
    quick : int, optional
        How many of the values the quick suite tries. These take turns: where the test has other
        parameters, each of their values comes with the next of these. Which come first depends on
        the name of the test, so that tests of the same values take turns, too. The rest is a test
        of the full suite.
    """
    keys, values = [name.strip() for name in names.split(",")], list(values)
    turn = f"turn_of_{'_'.join(keys)}"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        asked = inspect.signature(test).parameters
        first = zlib.crc32(test.__name__.encode())

        @functools.wraps(test)
        def run(request: pytest.FixtureRequest, **given: Any) -> None:
            chosen, part = range(len(values)), given.pop(turn, None)
            if part is not None:
                # of a fixture with parameters, these, not what the fixture made of them
                others = {n: v for n, v in request.node.callspec.params.items() if n != turn}
                row = first + sum(_places(run, others))
                few = {(row * quick + n) % len(values) for n in range(quick or 0)}
                chosen = [n for n in chosen if (n in few) == (part == "quick")]
            if "request" in asked:
                given["request"] = request
            for number in chosen:
                value = values[number]
                case = dict(zip(keys, value if len(keys) > 1 else [value], strict=True))
                with named_case(case):
                    test(**_apart(given, number), **case)
                if "monkeypatch" in given:
                    given["monkeypatch"].undo()

        fixtures = [p for p in asked.values() if p.name not in {*keys, "request"}]
        wanted = ["request"] if quick is None else ["request", turn]
        kind = inspect.Parameter.KEYWORD_ONLY
        more = [inspect.Parameter(name, kind) for name in wanted]
        run.__signature__ = inspect.Signature([p.replace(kind=kind) for p in fixtures] + more)
        if quick is None:
            return run
        parts = ["quick", pytest.param("rest", marks=pytest.mark.full)]
        return pytest.mark.parametrize(turn, parts)(run)

    return decorate


def _places(test: Any, given: dict[str, Any]) -> Iterator[int]:
    """The place of each value that a test got, in the list that it is from."""
    for mark in test.pytestmark:
        names = mark.args[0] if mark.name == "parametrize" else ()
        names = names.split(", ") if isinstance(names, str) else names
        if names and given.keys() >= set(names):
            got = [id(given[name]) for name in names]
            rows = [
                row.values if isinstance(row, PARAM) else row if len(names) > 1 else [row]
                for row in mark.args[1]
            ]
            yield [[id(value) for value in row] for row in rows].index(got)


def _apart(given: dict[str, Any], number: int) -> dict[str, Any]:
    """Give a case a folder of its own."""
    if "tmp_path" not in given:
        return given
    folder = given["tmp_path"] / str(number)
    folder.mkdir()
    return given | {"tmp_path": folder}


@contextmanager
def named_case(case: Any) -> Iterator[None]:
    """Name the case of a loop in what fails within."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {case!r:.500}")
        raise


def leave_for_the_full_suite(items: Iterable[pytest.Item]) -> None:
    """Mark cases `full`, but for a few that represent what their test promises.

    Of products that are as many as have each value; of what is marked ``every`` all; else one, and
    the others are marked ``alike``, too. Which one depends on the name of the test, so tests of the
    same cases take turns.
    """
    tests: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        quick = not item.get_closest_marker("full") and not item.get_closest_marker("every")
        if isinstance(item, pytest.Function) and quick:
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        marker = cases[0].get_closest_marker("product")
        if marker:
            rows = [set(values(case)) for case in cases]
            chosen = representatives(rows, marker.kwargs.get("times", 1))
        else:
            chosen = {zlib.crc32(name.encode()) % len(cases)}
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker("full")
                if not marker:
                    case.add_marker("alike")


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
