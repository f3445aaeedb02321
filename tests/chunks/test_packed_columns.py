"""What pickles hold of a column comes back, and regular columns take hardly any bytes."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from products import looped

from virtualds.chunks.columns import MAX_UNCOMPRESSED, PackedColumn, narrow_dtype, pack, unpack

RNG = np.random.default_rng(2)
COUNT = 40_000
LIMITS = np.iinfo(np.int64)


def follows(lengths: Any) -> Any:
    return 4096 + np.cumsum(lengths) - lengths


LENGTHS = RNG.integers(500, 1500, COUNT)
# a column, what it is expected to rise by, and the bits of a value that are enough
COLUMNS: dict[str, tuple[Any, Any, float]] = {
    "of one value": (np.full(COUNT, 7), None, 0.2),
    "rising regularly": (np.arange(COUNT) * 1000, None, 0.5),
    "rising by what is known": (follows(LENGTHS), LENGTHS, 0.5),
    "rising by one number": (np.arange(COUNT) * 16, np.array([16]), 0.5),
    "beginning again in every file": (follows(LENGTHS) % 10**7, LENGTHS, 2),
    "random": (LENGTHS, None, 11.5),
    "in tiles": (np.arange(COUNT).reshape(200, 200).T * 3, None, 0.5),
    "known along one axis": (
        np.arange(COUNT).reshape(200, 200) * 5,
        np.full((1, 200), 5),
        0.5,
    ),
    "as far apart as can be": (RNG.choice([LIMITS.min, LIMITS.max], COUNT), None, 20),
    "checksums": (2**32 + RNG.integers(0, 2**32, COUNT, np.uint64), None, 33),
    "unknown and inline": (np.where(np.arange(COUNT) % 9, -1, -2).astype(np.int32), None, 1),
}


@looped("name", COLUMNS)
def test_a_column_comes_back_from_few_bytes(name: str) -> None:
    column, steps, bits = COLUMNS[name]
    packed = pack(column, steps)
    assert isinstance(packed, PackedColumn)
    assert len(packed.data) <= bits * COUNT / 8
    np.testing.assert_array_equal(unpack(packed, steps).astype(column.dtype), column)


SHAPES = hnp.array_shapes(max_dims=3, max_side=40)


@given(hnp.arrays(np.int64, SHAPES, elements=st.integers(LIMITS.min, LIMITS.max)))
def test_any_column_comes_back(column: Any) -> None:
    big = np.concatenate([column.ravel()] * (MAX_UNCOMPRESSED // column.size + 2))
    for steps in (None, big, big[:1]):
        for some in (big, column):
            known = steps if some is big else None
            np.testing.assert_array_equal(unpack(pack(some, known), known), some)


MAKERS: dict[str, Callable[[], Any]] = {
    "small": lambda: narrow_dtype(np.array([1, 300])),
    "none": lambda: narrow_dtype(np.empty((0, 3), np.int64)),
    "one": lambda: np.array([[2**40]]),
    "one below zero": lambda: np.array([-2], np.int32),
    "one that is large": lambda: np.array([2**64 - 1], np.uint64),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_packed_column_has_a_smaller_pickle_than_the_array(name: str) -> None:
    column = MAKERS[name]()
    packed = pack(column)
    assert len(pickle.dumps(packed, 5)) < len(pickle.dumps(column, 5))
    found = unpack(packed)
    assert found.size == column.size
    np.testing.assert_array_equal(found, column)
