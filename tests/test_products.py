"""The quick suite tries each value of a product, the full one each combination."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from products import every_pair, representatives

pytest_plugins = ["pytester"]

ROWS = [{("a", a), ("b", b), ("c", c)} for a, b, c in product(range(7), range(4), range(3))]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_every_value_is_represented_so_often(times: int) -> None:
    chosen = [ROWS[number] for number in representatives(ROWS, times)]
    counts = {value: sum(value in row for row in chosen) for value in set.union(*ROWS)}
    assert min(counts.values()) == times
    # the longest table decides how many there are, give or take the last rows
    assert 7 * times <= len(chosen) <= 7 * times + 4


def test_a_value_that_stands_nowhere_else_is_represented() -> None:
    assert representatives([{1, 2}, {1, 3}, {1, 2}, {4}]) >= {1, 3}


def test_the_same_cases_are_chosen_each_time() -> None:
    assert representatives(ROWS) == representatives(ROWS)


def test_every_pair_of_three_tables_is_tried() -> None:
    rows, columns, turns = range(20), range(9), "abcdefg"
    cases = list(every_pair(rows, columns, turns))
    assert len(cases) == len(rows) * len(columns)
    assert {(i, t) for i, _, t in cases} == set(product(rows, turns))
    assert {(j, t) for _, j, t in cases} == set(product(columns, turns))


def test_a_plain_run_tries_all_and_the_quick_one_each_value(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nmarkers =\n    full: long\n    product(times=1): sampled\n"
        "    every: all\n    alike: as others\n"
    )
    tests = Path(__file__).parent
    pytester.makeconftest(
        f"import sys; sys.path.insert(0, {str(tests)!r})\n"
        "import pytest\nfrom products import leave_for_the_full_suite\n\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items): leave_for_the_full_suite(items)\n"
    )
    pytester.makepyfile(
        "import pytest\n\n"
        "@pytest.mark.product\n"
        "@pytest.mark.parametrize('a', range(3))\n"
        "@pytest.mark.parametrize('b', range(5))\n"
        "def test_sampled(a, b): pass\n\n"
        "@pytest.mark.every\n"
        "@pytest.mark.parametrize('a', range(3))\n"
        "def test_whole(a): pass\n\n"
        "@pytest.mark.parametrize('a', range(7))\n"
        "def test_some(a): pass\n\n"
        "@pytest.mark.full\n"
        "def test_long(): pass\n"
    )
    pytester.runpytest("-p", "no:asyncio").assert_outcomes(passed=15 + 3 + 7 + 1)
    quick = pytester.runpytest("-p", "no:asyncio", "-m", "not full")
    quick.assert_outcomes(passed=5 + 3 + 1, deselected=10 + 6 + 1)
    more = pytester.runpytest("-p", "no:asyncio", "-m", "not full or alike")
    more.assert_outcomes(passed=5 + 3 + 7, deselected=10 + 1)


LOOPED = """
import pytest
from products import looped

SEEN, NUMBERS = [], []
MANY = 5 * 2 * 4

@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("one, two", [(1, "a"), pytest.param(2, "b")])
@looped("column", "abcd", quick=2)
def test_turns(row, one, two, column, tmp_path):
    assert not any(tmp_path.iterdir())
    (tmp_path / "mine").touch()
    SEEN.append((row, two, column))

@looped("number", range(100), quick=1)
def test_a_number(number):
    NUMBERS.append(number)

@looped("number", range(100), quick=1)
def test_another_number(number):
    NUMBERS.append(number)

@looped("one, two", [(1, 2), (3, 4)])
@looped("three", [5, 6])
def test_stacked(one, two, three, monkeypatch):
    assert not hasattr(pytest, "patched")
    monkeypatch.setattr(pytest, "patched", True, raising=False)
    assert (one, two, three) != (3, 4, 6)

def test_what_was_seen():
    assert len(SEEN) == len(set(SEEN))
    assert {row for row, _, _ in SEEN} == set(range(5))
    assert {column for _, _, column in SEEN} == set("abcd")
    assert len(SEEN) == MANY
    # of the same values, tests with other names try others first
    assert NUMBERS[0] != NUMBERS[1]
"""


def test_a_loop_tries_each_case_and_names_the_one_that_fails(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    full: long\n")
    pytester.makeconftest(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n")
    pytester.makepyfile(LOOPED)
    whole = pytester.runpytest("-p", "no:asyncio")
    whole.assert_outcomes(passed=5 * 2 * 2 + 2 * 2 + 1, failed=1)
    whole.stdout.fnmatch_lines(["*in the case {'three': 6}*", "*in the case {'one': 3, 'two': 4}*"])
    pytester.makepyfile(LOOPED.replace("5 * 2 * 4", "5 * 2 * 2"))
    quick = pytester.runpytest("-p", "no:asyncio", "-m", "not full")
    quick.assert_outcomes(passed=5 * 2 + 2 + 1, failed=1, deselected=5 * 2 + 2)


@pytest.mark.full
def test_a_soak_runs_what_is_left_out_else(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    soak: long\n    sampled(every): some\n")
    pytester.makeconftest(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from effort import add_option, leave_for_a_soak, set_effort\n\n"
        "pytest_addoption, pytest_configure = add_option, set_effort\n"
        "def pytest_collection_modifyitems(items, config): leave_for_a_soak(items, config)\n"
    )
    pytester.makepyfile(
        "import pytest\nfrom effort import others_soaked, times\n\n"
        "@pytest.mark.parametrize('n', others_soaked([1, 2, 3], [1]))\n"
        "def test_long(n): pass\n\n"
        "@pytest.mark.sampled(3)\n"
        "@pytest.mark.parametrize('n', range(9))\n"
        "def test_some(n): pass\n\n"
        "@pytest.mark.parametrize('n', range(times(2)))\n"
        "def test_many(n): pass\n"
    )
    # in processes, since the module of the effort is that of this run
    options = ("-p", "no:asyncio", "-p", "no:hypothesispytest")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1 + 3 + 2, deselected=2 + 6)
    pytester.runpytest_subprocess(*options, "--effort=2").assert_outcomes(passed=3 + 9 + 4)
