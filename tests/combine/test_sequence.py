"""Order and overlaps along one dimension agree with plain dictionaries and xarray."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from products import looped

from virtualds.combine.concat_stored import find_order
from virtualds.combine.ordering import DimensionIndexes, FileRange

ROUND = np.array([1, 2, 3])


def calendar(*days: int, name: str = "360_day") -> pd.Index[Any]:
    return xr.date_range("2000-01-01", periods=40, calendar=name, use_cftime=True)[list(days)]


@looped(
    "indexes, order",
    [
        ([[4, 5], [1, 2, 3], [6]], [1, 0, 2]),
        ([[1, 2], [3, 4], [5, 6]], [0, 1, 2]),
        ([[2, 1], [6, 5], [4, 3]], [1, 2, 0]),
        ([[5], [3], [1]], [0, 1, 2]),
        ([[5], [1], [3]], [1, 2, 0]),
        ([[5, 6], [3, 4], [1, 2]], [2, 1, 0]),
        ([[3, 9], [1, 5], [1, 2]], [1, 2, 0]),
        ([[5, 6], [2, 1], [3, 4]], [0, 1, 2]),
        ([[5.0, np.nan], [1.0, 2.0]], [0, 1]),
        ([["b"], ["c"], ["a"]], [0, 1, 2]),
        ([["b"], [3], [1]], [0, 1, 2]),
        ([[4], [], [2], [3.5]], [2, 3, 0, 1]),
        ([[], []], [0, 1]),
        ([[7]], [0]),
    ],
)
def test_files_go_in_the_order_of_their_coordinate(indexes: list[Any], order: list[int]) -> None:
    assert DimensionIndexes([pd.Index(values) for values in indexes]).find_order().tolist() == order


@pytest.mark.parametrize(
    "make",
    [
        lambda *days: pd.Index(
            [np.datetime64("2000-01-01", "ns") + np.timedelta64(d, "ns") for d in days]
        ),
        lambda *days: pd.Index([np.timedelta64(d, "s") for d in days]),
        lambda *days: pd.Index(days, dtype="u1"),
        calendar,
    ],
)
def test_numbers_dates_durations_and_calendars_have_an_order(make: Any) -> None:
    line = DimensionIndexes([make(4, 5), make(1, 2, 3, 4)])
    assert line.find_order().tolist() == [1, 0]
    assert line.cut(np.array([1, 0])) == [FileRange(1, 0, 4), FileRange(0, 1, 2)]
    assert line.find_shared(0, 1).equals(make(4))


def test_different_calendars_have_no_order() -> None:
    line = DimensionIndexes([calendar(4), calendar(1, name="noleap"), calendar(2)])
    assert line.find_order().tolist() == [0, 1, 2]


@looped(
    "indexes, order, pieces",
    [
        # spin-up, a day of 25 hours, a file twice
        ([[1, 2, 3, 4], [3, 4, 5]], [0, 1], [(0, 0, 4), (1, 2, 3)]),
        ([[1, 2, 3, 4], [3, 4, 5]], [1, 0], [(0, 0, 2), (1, 0, 3)]),
        ([[0, 1, 2], [2, 3, 4]], [0, 1], [(0, 0, 3), (1, 1, 3)]),
        ([[1, 2], [1, 2]], [0, 1], [(0, 0, 2), (1, 0, 0)]),
        ([[1, 2], [1, 2]], [1, 0], [(1, 0, 2), (0, 0, 0)]),
        # one within the other
        ([[1, 2, 3, 4, 5], [2, 3]], [0, 1], [(0, 0, 5), (1, 0, 0)]),
        ([[1, 2, 3, 4, 5], [2, 3]], [1, 0], [(0, 0, 1), (1, 0, 2), (0, 3, 5)]),
        ([[1, 2, 3], [1.5, 2, 2.5]], [1, 0], [(0, 0, 1), (1, 0, 3), (0, 2, 3)]),
        # falling
        ([[5, 4, 3], [4, 3, 2]], [0, 1], [(0, 0, 3), (1, 2, 3)]),
        ([[3], [2], [2], [1]], [0, 1, 2, 3], [(0, 0, 1), (1, 0, 1), (3, 0, 1), (2, 0, 0)]),
        # nothing in common: only the order changes
        ([[4, 5], [1, 2]], [0, 1], [(1, 0, 2), (0, 0, 2)]),
        # no order: only what is there already goes
        ([["b", "a"], ["c", "a"]], [0, 1], [(0, 0, 2), (1, 0, 1)]),
        ([["b", "a"], ["c", "a"]], [1, 0], [(0, 0, 1), (1, 0, 2)]),
        # repeated in a file, missing: left alone
        ([[1, 1, 2], [2, 2, 3]], [0, 1], [(0, 0, 3), (1, 2, 3)]),
        ([[np.nan, 1], [np.nan, 1]], [0, 1], [(0, 0, 2), (1, 0, 1)]),
    ],
)
def test_overlapping_files_are_cut_into_stretches(
    indexes: Any, order: list[int], pieces: list[Any]
) -> None:
    line = DimensionIndexes([pd.Index(values) for values in indexes])
    assert line.cut(np.array(order)) == [FileRange(*piece) for piece in pieces]


@pytest.mark.parametrize(
    ("indexes", "pairs"),
    [
        ([[1, 2], [2, 3], [3, 4]], [(0, 1), (1, 2)]),
        ([[1, 2, 3], [4], [3], [2, 3]], [(0, 2), (0, 3)]),
        ([[1, 1], [2, 2]], []),
        ([[np.nan], [np.nan]], []),
        ([[1, 3, 5], [2, 4]], []),
        ([["a"], ["b"], ["a"]], [(0, 2)]),
    ],
)
def test_overlapping_files_are_found(indexes: Any, pairs: list[Any]) -> None:
    line = DimensionIndexes([pd.Index(values) for values in indexes])
    assert line.find_overlapping_pairs(np.arange(len(indexes))) == pairs


@st.composite
def intervals(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Stretches of a coordinate with gaps, all rising or all falling, and an order of them."""
    sign = draw(st.sampled_from([1, -1]))
    files = draw(st.lists(st.sets(st.integers(0, 12), max_size=6), min_size=1, max_size=6))
    order = draw(st.permutations(range(len(files))))
    return [[sign * v for v in sorted(values)] for values in files], order


@given(intervals())
def test_every_value_comes_once_in_order_from_the_first_file_that_has_it(
    case: tuple[list[list[int]], list[int]],
) -> None:
    files, order = case
    owner: dict[int, int] = {}
    for number in order:
        for value in files[number]:
            owner.setdefault(value, number)
    line = DimensionIndexes([pd.Index(values, dtype="i8") for values in files])
    pieces = line.cut(np.array(order))
    found = [(v, p.file) for p in pieces for v in files[p.file][p.start : p.stop]]
    values = [value for value, _ in found]
    assert values in (sorted(owner), sorted(owner, reverse=True))
    if any(len(f) > 1 and f[0] > f[1] for f in files):
        assert values == sorted(owner, reverse=True)
    elif any(len(f) > 1 for f in files):
        assert values == sorted(owner)
    assert dict(found) == owner
    assert {piece.file for piece in pieces} == set(range(len(files)))
    assert len(pieces) == len(set(pieces))


@given(intervals())
def test_sorting_changes_nothing_but_the_order(case: tuple[list[list[int]], list[int]]) -> None:
    files, order = case
    line = DimensionIndexes([pd.Index(files[n], dtype="i8") for n in order])
    found = line.find_order()
    assert sorted(found.tolist()) == list(range(len(files)))
    firsts = [files[order[n]][0] for n in found.tolist() if files[order[n]]]
    assert firsts in (sorted(firsts), sorted(firsts, reverse=True))


def test_text_and_falling_files_of_one_element_stay_in_the_given_order() -> None:
    lengths, given = np.array([1, 1, 1]), np.array([2, 0, 1])
    assert find_order(np.array(["c", "a", "b"]), lengths, given, True) is given
    assert find_order(np.array([2, 1, 3]), lengths, given, True) is given
    assert find_order(np.array([2, 1, 3]), lengths, given, False).tolist() == [1, 0, 2]
