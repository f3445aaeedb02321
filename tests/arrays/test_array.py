"""A virtual array behaves like the values that it stands for, and stays virtual where it can."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.base
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from products import looped
from virtual_arrays import (
    PLAIN,
    SHUFFLED,
    ZLIB,
    counted_reads,
    exactly,
    no_reads,
    path_of,
    positions,
    slices,
    stored_arrays,
    virtual,
)

import virtualds
from virtualds import ChunkManifest, CombineError, Fragment, ManifestArray, UnsupportedError
from virtualds.arrays import MAX_EXTRA_SLABS, select_virtually
from virtualds.arrays.array import get_default_fill, is_same_scalar
from virtualds.arrays.group import ManifestVariable
from virtualds.arrays.parser import NativeRegion, make_stored_reader
from virtualds.codecs.cf import Packing
from virtualds.reading.plan import plan_selection

Values = np.ndarray[Any, Any]
Pair = tuple[Values, ManifestArray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    """``(6, 8, 5)`` of float32 with a NaN, and the same in compressed chunks."""
    values = np.random.default_rng(0).normal(size=(6, 8, 5)).astype("f4")
    values[1, 2, 3] = np.nan
    return values, virtual(values, folder, chunks=(2, 3, 5), codecs=SHUFFLED)


# ---------------------------------------------------------------------- compositions

MOST = 4000
"""Elements beyond which compositions stop growing."""


def crop(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    key = tuple(draw(slices(n, steps=(1,))) for n in x.shape)
    return lambda a: a[key]


def integers_and_ellipsis(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    if not x.ndim or 0 in x.shape:
        return lambda a: a[...]
    at = draw(st.integers(-x.shape[-1], x.shape[-1] - 1))
    return lambda a: a[..., at, None]


def transpose(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    order = draw(st.permutations(range(x.ndim)))
    return lambda a: np.transpose(a, order)


def reverse_axes(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    return lambda a: a.T


def moveaxis(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    count = draw(st.integers(0, x.ndim))
    source = draw(st.permutations(range(x.ndim)))[:count]
    target = draw(st.permutations(range(-x.ndim, 0)))[:count]
    return lambda a: np.moveaxis(a, source, target)


def swapaxes(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    if not x.ndim:
        return lambda a: a
    one, two = (draw(st.integers(-x.ndim, x.ndim - 1)) for _ in range(2))
    return lambda a: np.swapaxes(a, one, two)


def expand_dims(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    if x.ndim > 4:
        return lambda a: a
    count = draw(st.integers(1, 2))
    size = x.ndim + count
    place = st.integers(-size, size - 1)
    axes = draw(st.lists(place, min_size=count, max_size=count, unique_by=lambda i: i % size))
    return lambda a: np.expand_dims(a, axes[0] if count == 1 else tuple(axes))


def squeeze(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    if not ones or draw(st.booleans()):
        return np.squeeze
    axis = draw(st.sampled_from([*ones, ones[0] - x.ndim]))
    return lambda a: np.squeeze(a, axis=axis)


def ones_in_the_shape(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    if 0 in x.shape:
        return lambda a: a
    shape = [n for n in x.shape if n != 1]
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return lambda a: np.reshape(a, tuple(shape))


def broadcast_to(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    lead = draw(st.sampled_from([(), (2,), (1,)])) if x.ndim < 5 else ()
    shape = (*lead, *(draw(st.integers(1, 3)) if n == 1 else n for n in x.shape))
    return lambda a: np.broadcast_to(a, shape)


def concatenate(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    if not x.ndim or x.size > MOST:
        return lambda a: a
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    part = draw(slices(x.shape[axis], steps=(1,)))
    key = (slice(None),) * (axis % x.ndim) + (part,)
    parts = draw(st.permutations([lambda a: a, lambda a: a[key], lambda a: a]))
    return lambda a: np.concatenate([f(a) for f in parts], axis=axis)


def join_with_fill(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    if not x.ndim or x.size > MOST:
        return lambda a: a
    return lambda a: np.concatenate([a, np.ones_like(a), a], axis=0)


def join_with_memory(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    if not x.ndim or x.size > MOST:
        return lambda a: a
    more = np.full(x.shape, 5, x.dtype)
    return lambda a: np.concatenate([more, a], axis=-1)


def stack(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    if x.ndim > 4 or x.size > MOST:
        return lambda a: a
    axis = draw(st.integers(-x.ndim - 1, x.ndim))
    return lambda a: np.stack([a, a], axis=axis)


def where(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    mask = np.ones(x.shape, bool)
    for axis, n in enumerate(x.shape):
        along = draw(hnp.arrays(bool, n, elements=st.sampled_from([True, True, True, False])))
        mask &= along.reshape((-1,) + (1,) * (x.ndim - axis - 1))
    fill = np.ones((), x.dtype)
    return lambda a: np.where(mask, a, fill)


def take(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    """Any positions, in any order: virtual while they are few."""
    if not x.ndim:
        return lambda a: a
    axis = draw(st.integers(0, x.ndim - 1))
    key = draw(positions(x.shape[axis]) | slices(x.shape[axis]))
    return lambda a: a[(slice(None),) * axis + (key,)]


def widen(draw: st.DrawFn, x: Values) -> Callable[[Any], Any]:
    kind = {"u": "f4", "i": "f8"}.get(x.dtype.kind, "c16")
    return lambda a: a.astype(kind) if np.can_cast(x.dtype, kind, "safe") else a


OPERATIONS = (
    crop, integers_and_ellipsis, transpose, reverse_axes, moveaxis, swapaxes, expand_dims, squeeze,
    ones_in_the_shape, broadcast_to, concatenate, join_with_fill, join_with_memory, stack, where,
    take, widen,
)  # fmt: skip


@given(data=st.data())
def test_virtual_operations_in_any_order_are_numpys(folder: Path, data: st.DataObject) -> None:
    values, array = data.draw(stored_arrays(folder, dtypes=("<i2", "<f4", "u1")))
    for _ in range(data.draw(st.integers(1, 5))):
        build = data.draw(st.sampled_from(OPERATIONS))
        operation = build(data.draw, values)
        values = np.asarray(operation(values))
        with no_reads():
            array = operation(array)
        assert isinstance(array, ManifestArray), f"{build.__name__} read the values"
        assert array.shape == values.shape
        if values.size > 5 * MOST:
            break
    exactly(array, values)
    again = pickle.loads(pickle.dumps(array))
    assert again.has_same_references(array)
    exactly(again, values)


@pytest.mark.parametrize("build", OPERATIONS, ids=lambda f: f.__name__)
@given(data=st.data())
def test_each_virtual_operation_is_numpys(folder: Path, build: Any, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=4))
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype("i4")
    array = virtual(values, folder, chunks=[2] * len(shape), codecs=ZLIB)
    operation = build(data.draw, values)
    with no_reads():
        found = operation(array)
    assert isinstance(found, ManifestArray)
    exactly(np.asarray(found), operation(values))


@looped(
    "function, arguments",
    [
        (np.squeeze, (0,)),
        (np.transpose, ((0, 0, 1),)),
        (np.transpose, ((0, 1),)),
        (np.broadcast_to, ((6, 8, 4),)),
        (np.broadcast_to, ((8, 5),)),
        (np.expand_dims, (9,)),
        (np.expand_dims, ((0, 0),)),
        (np.moveaxis, (0, 7)),
        (np.moveaxis, ((0, 1), (0,))),
        (np.swapaxes, (0, 5)),
    ],
)
def test_calls_that_numpy_refuses_are_refused(pair: Pair, function: Any, arguments: Any) -> None:
    values, array = pair
    with pytest.raises((ValueError, IndexError)):
        function(values, *arguments)
    with pytest.raises((ValueError, IndexError)):
        function(array, *arguments)


# ---------------------------------------------------------------------- indexing


@st.composite
def numpy_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Keys as numpy reads them: with None, Ellipsis, masks of several axes, arrays together."""
    key: list[Any] = []
    axis = 0
    together = draw(st.sampled_from([(), (1,), (3,), (2, 1), (2, 3)]))
    while axis < len(shape):
        n = shape[axis]
        kind = draw(st.sampled_from(["slice", "int", "array", "mask", "none", "stop", "mask2"]))
        if kind == "stop":
            break
        if kind == "none":
            key.append(None)
            if len(key) > 6:
                break
            continue
        if kind == "slice":
            key.append(draw(slices(n)))
        elif kind == "int":
            key.append(draw(st.sampled_from([int, np.int64]))(draw(st.integers(-n, n - 1))))
        elif kind == "array":
            key.append(draw(hnp.arrays(np.int64, together, elements=st.integers(-n, n - 1))))
        elif kind == "mask" or axis + 1 == len(shape):
            key.append(draw(hnp.arrays(bool, n)))
        else:
            key.append(draw(hnp.arrays(bool, shape[axis : axis + 2])))
            axis += 1
        axis += 1
    if draw(st.booleans()):
        # what stands behind an ellipsis has to fit the last axes
        whole = axis == len(shape)
        key.insert(draw(st.integers(0, len(key))) if whole else len(key), Ellipsis)
    return tuple(key)


@given(data=st.data())
def test_indexing_is_numpys(pair: Pair, data: st.DataObject) -> None:
    values, array = pair
    key = data.draw(numpy_keys(values.shape))
    try:
        expected = values[key]
    except IndexError:
        with pytest.raises(IndexError):
            array[key]
        return
    exactly(array[key], expected)


INDEXES: dict[str, Any] = {
    "int": 3,
    "negative int": -1,
    "numpy int": np.int16(2),
    "ellipsis": ...,
    "ellipsis in the middle": (0, ..., 1),
    "array without axes": np.array(2),
    "list": [1, 0],
    "empty list": [],
    "list of bools": [True, False, True, False, False, True],
    "mask": np.arange(6) % 2 == 0,
    "mask of all axes": np.arange(240).reshape(6, 8, 5) % 7 == 0,
    "mask of two axes": np.arange(48).reshape(6, 8) % 5 == 0,
    "mask and list": (np.arange(6) < 2, [1, 2]),
    "ix_": np.ix_([5, 0, 0], [1, 2], [4]),
    "two lists": ([0, 1], [2, 3]),
    "two lists apart": ([0, 1], slice(None), [2, 3]),
    "int and list apart": (0, slice(None), [2, 3]),
    "int beside list": (slice(None), 0, [2, 3]),
    "int before lists": (1, [0, 1], [2, 3]),
    "none": None,
    "none and list": (None, [0, 1], slice(2)),
    "none apart": ([0, 1], None, 1),
    "outer apart": (np.array([[0], [1]]), slice(None), np.array([[2, 3]])),
    "ellipsis of no axes apart": (slice(None), 0, ..., [1, 2]),
    "outer": (np.array([[0], [1]]), np.array([[2, 3]])),
    "points": (np.array([[0, 1], [2, 3]]), np.array([[2, 3], [4, 5]]), 0),
    "True": True,
    "False": False,
    "True and int": (True, 0),
}


@looped("name", INDEXES)
def test_each_way_to_index_is_numpys(pair: Pair, name: str) -> None:
    values, array = pair
    exactly(array[INDEXES[name]], values[INDEXES[name]])


@looped(
    "key",
    [6, -7, (0, 0, 0, 0), [6], [-7], (0, [8]), [True] * 5, np.ones((6, 7), bool), 1.0, "a", [1.0]],
)
def test_keys_that_numpy_refuses_are_index_errors(pair: Pair, key: Any) -> None:
    values, array = pair
    with pytest.raises(IndexError):
        values[key]
    with pytest.raises((IndexError, TypeError)):
        array[key]


def test_iterating_gives_virtual_rows(pair: Pair) -> None:
    values, array = pair
    with no_reads():
        rows = list(array)
    assert len(rows) == len(array) == len(values)
    assert all(isinstance(row, ManifestArray) for row in rows)
    exactly(np.stack([np.asarray(row) for row in rows]), values)
    with pytest.raises(TypeError):
        len(array[0, 0, 0])


@pytest.mark.parametrize(
    "key",
    [
        slice(1, 5), (0, slice(2, 3)), [5, 0, 0], (slice(None), slice(None, None, -1)),
        np.arange(6) != 2, (..., None), np.ix_([1, 2], [3, 4]),
    ],
    ids=str,
)  # fmt: skip
def test_few_stretches_stay_virtual(pair: Pair, key: Any) -> None:
    with no_reads():
        assert isinstance(pair[1][key], ManifestArray)


def test_very_many_stretches_are_read(folder: Path) -> None:
    array = virtual(np.arange(10_000), folder, chunks=(1000,), codecs=ZLIB)
    with counted_reads() as store:
        found = array[::2]
    assert isinstance(found, np.ndarray)
    assert store.nbytes == array.manifest.length.sum()
    exactly(found, np.arange(0, 10_000, 2))


STRIDES: dict[str, Any] = {
    "two axes backwards": (slice(None), slice(None, None, -1), slice(None, None, -1)),
    "every third of all": (slice(None, None, 3),) * 3,
    "one axis of large steps": (slice(None), slice(None, None, 5), slice(None)),
    "one after another": (slice(None), slice(None), [3, 3, 2, 9, 4, 0]),
    "few of much": ([5, 0], slice(None, None, 20), slice(1, None, 20)),
}


@pytest.mark.parametrize("name", STRIDES)
def test_a_strided_selection_is_planned_near_the_cost_of_the_whole(folder: Path, name: str) -> None:
    values = np.arange(6 * 40 * 40).reshape(6, 40, 40)
    array = virtual(values, folder, chunks=(2, 40, 20), codecs=ZLIB)
    with counted_reads() as store:
        found = array[STRIDES[name]]
        if isinstance(found, ManifestArray):
            tasks = [t for b in plan_selection(found, (slice(None),) * 3).batches for t in b.tasks]
            assert len(tasks) <= array.nchunks
            assert sum(len(list(t.pairs)) for t in tasks) <= MAX_EXTRA_SLABS + 2 * array.nchunks
        exactly(found, values[STRIDES[name]])
    assert len(store.ranges) <= array.nchunks


def test_pieces_along_two_axes_count_together(folder: Path) -> None:
    array = virtual(np.zeros((60, 60)), folder, codecs=ZLIB)
    assert isinstance(array[::2], ManifestArray)
    assert isinstance(array[::2, ::2], np.ndarray)
    assert isinstance(array[::10, ::10], ManifestArray)
    assert isinstance(array[::2][:, ::2], np.ndarray)


# ---------------------------------------------------------------------- reading


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "add": lambda a: a + 1,
    "add to the right": lambda a: 1 + a,
    "itself": lambda a: a * a,
    "negative": lambda a: -a,
    "greater": lambda a: a > 0,
    "equal to a number": lambda a: a == a[0, 0, 0],
    "unequal": lambda a: a != a,
    "isnan": lambda a: np.isnan(a),
    "not nan": lambda a: ~np.isnan(a),
    "both": lambda a: np.isnan(a) & (a == a),
    "sum": lambda a: np.nansum(a, axis=0),
    "mean": lambda a: np.mean(a, axis=(1, 2)),
    "max": lambda a: np.max(a),
    "any": lambda a: np.any(np.isnan(a)),
    "all": lambda a: np.all(np.isnan(a)),
    "all along": lambda a: np.all(a == a, axis=0),
    "count": lambda a: np.count_nonzero(np.isnan(a)),
    "reduce": lambda a: np.add.reduce(a, axis=1),
    "out": lambda a: np.add(a, 1, out=np.empty(a.shape, "f4")),
    "where of a mask": lambda a: np.where(a > 0, a, 0),
    "where of itself": lambda a: np.where(np.isnan(a), 0, a),
    "sort": lambda a: np.sort(a, axis=0),
    "diff": lambda a: np.diff(a, axis=0),
    "strides": lambda a: a[::2, ::-2],
    "reshape": lambda a: np.reshape(a, (48, 5)),
    "ravel": lambda a: np.ravel(a),
    "einsum": lambda a: np.einsum("ijk->k", a),
    "tensordot": lambda a: np.tensordot(a, np.ones(5, "f4"), 1),
    "clip": lambda a: np.clip(a, 0, 1),
    "round": lambda a: np.round(a, 1),
    "pad": lambda a: np.pad(a, 1),
    "roll": lambda a: np.roll(a, 1, axis=0),
    "percentile": lambda a: np.nanpercentile(a, 50),
    "narrowing": lambda a: a.astype("f2"),
    "concatenate flat": lambda a: np.concatenate([a, a], axis=None),
    "concatenate as": lambda a: np.concatenate([a, a], dtype="f8"),
    "in place": lambda a: __import__("operator").iadd(a.copy() if hasattr(a, "copy") else a, 1),
}


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@looped("name", FUNCTIONS)
def test_any_other_use_reads_the_values(pair: Pair, name: str) -> None:
    values, array = pair
    function = FUNCTIONS[name]
    exactly(function(array), function(values))


def test_an_array_in_place_stays_what_it_was(pair: Pair) -> None:
    values, array = pair
    other = array
    other += 1
    exactly(other, values + 1)
    exactly(array, values)


@pytest.mark.parametrize(
    "indices", [[2, 0, 0], [-1], [[0, 1], [1, 2]], [True, False, True]], ids=str
)
def test_take_is_that_of_numpy(indices: list[Any]) -> None:
    """To whom booleans are the numbers 0 and 1, not a mask as in indexing."""
    values = np.arange(12.0).reshape(4, 3)
    array = ManifestArray.from_values(values)
    found = np.asarray(np.take(array, indices, axis=1))
    np.testing.assert_array_equal(found, np.take(values, indices, axis=1))


def test_a_number_is_taken_from_an_array_of_one(folder: Path) -> None:
    array = virtual(np.array([[3]]), folder)
    assert bool(array)
    assert (int(array[0, 0]), float(array[0, 0])) == (3, 3.0)
    assert not virtual(np.array(0.0), folder)
    with pytest.raises((TypeError, ValueError)):
        bool(virtual(np.array([1, 2]), folder))


def test_only_a_copy_gives_values(pair: Pair) -> None:
    values, array = pair
    with pytest.raises(ValueError, match="copy"):
        np.asarray(array, copy=False)
    exactly(np.array(array, "f8"), values.astype("f8"))
    exactly(np.asarray(array, copy=True), values)


def test_reading_more_than_the_limit_is_refused_with_what_to_do(pair: Pair) -> None:
    values, array = pair
    named = replace(array, name="t2m")
    with virtualds.set_options(load_limit=values.nbytes - 1), no_reads():
        for use in (
            np.asarray,
            lambda a: a + 1,
            np.sum,
            lambda a: a[::2, ::2, ::2] + np.asarray(a),
            lambda a: a == 0,
            lambda a: np.asarray(a == a),
        ):
            with pytest.raises(UnsupportedError) as caught:
                use(named)
            for remedy in ("t2m", "to_lazy", "load()", "set_options(load_limit", "(6, 8, 5)"):
                assert remedy in str(caught.value)
        assert named[0].shape == (8, 5)
    with virtualds.set_options(load_limit=values.nbytes):
        exactly(named, values)
    with virtualds.set_options(load_limit=0):
        exactly(named.read(), values)


def test_the_limit_counts_what_a_selection_reads(folder: Path) -> None:
    array = virtual(np.arange(10_000), folder, chunks=(1000,), codecs=ZLIB)
    with virtualds.set_options(load_limit=8 * 100):
        assert array[::100].shape == (100,)
        with pytest.raises(UnsupportedError):
            array[::2]
        with pytest.raises(UnsupportedError):
            array[np.arange(0, 10_000, 2).reshape(2, -1)]


# ---------------------------------------------------------------------- dtypes


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [("i2", "i4"), ("i2", "f4"), ("u1", "i2"), ("i4", "f8"), ("f4", "f8"), ("f4", "c8"),
     (">i2", "<i2"), (">f4", "<f4"), ("?", "i1")],
)  # fmt: skip
def test_a_cast_to_a_wider_dtype_reads_nothing(folder: Path, stored: str, wanted: str) -> None:
    values = np.arange(12).reshape(3, 4).astype(stored)
    array = virtual(values, folder, chunks=(2, 2), codecs=SHUFFLED)
    with no_reads():
        found = array.astype(wanted)
    assert isinstance(found, ManifestArray)
    exactly(found, values.astype(wanted))
    exactly(found[1:, 2], values.astype(wanted)[1:, 2])


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [("i4", "i2"), ("i8", "f4"), ("f8", "f4"), ("f4", "i4"), ("i4", "S11"), ("i8", "M8[s]"),
     ("f8", "g"), ("S3", "S2"), ("i4", "O")],
)  # fmt: skip
def test_a_cast_to_any_other_dtype_reads_the_values(folder: Path, stored: str, wanted: str) -> None:
    values = np.arange(12).reshape(3, 4).astype(stored)
    found = virtual(values, folder, codecs=SHUFFLED, padding=values[0, 0]).astype(wanted)
    assert isinstance(found, np.ndarray)
    if wanted == "O":
        assert found.tolist() == values.tolist()
    else:
        exactly(found, values.astype(wanted))


def test_a_cast_with_an_order_in_memory_reads_the_values(folder: Path) -> None:
    values = np.arange(12, dtype="i2").reshape(3, 4)
    array = virtual(values, folder, chunks=(2, 2), codecs=SHUFFLED)
    for order, dtype in (("C", "i2"), ("F", "i2"), ("C", "i4"), ("F", "f4")):
        found = array.astype(dtype, order=order)
        assert isinstance(found, np.ndarray)
        assert found.flags[f"{order}_CONTIGUOUS"]
        exactly(found, values.astype(dtype))
    assert array.astype("i2", order="A") is array


def test_the_same_dtype_is_the_same_array(pair: Pair, folder: Path) -> None:
    assert pair[1].astype("f4") is pair[1]
    for dtype, open_ended in (("S5", "S"), ("U3", "U"), ("M8[s]", "M8"), ("m8[ms]", "m8")):
        array = virtual(np.zeros(3, "i8").astype(dtype), folder)
        assert array.astype(open_ended) is array


def test_a_cast_that_is_not_allowed_is_refused_without_reading(pair: Pair) -> None:
    with no_reads(), pytest.raises(TypeError, match="safe"):
        pair[1].astype("i2", casting="safe")


@looped("one, two",
    [("i2", "i4"), ("i4", "f4"), ("f4", "f8"), ("u1", "i1"), ("i8", "u8"), (">i4", "<i4"),
     ("?", "i2"), ("S3", "S5"), ("U2", "U4"), ("M8[s]", "M8[ns]"), ("m8[D]", "m8[s]"),
     ("i4", "S3")])  # fmt: skip
def test_arrays_of_two_dtypes_join_like_numpys(folder: Path, one: str, two: str) -> None:
    first, second = (np.arange(6).astype("i8").reshape(2, 3).astype(kind) for kind in (one, two))
    expected = np.concatenate([first, second])
    arrays = [virtual(x, folder, codecs=ZLIB) for x in (first, second)]
    exactly(np.concatenate(arrays), expected)
    exactly(np.concatenate(arrays[::-1]), np.concatenate([second, first]))
    exactly(np.concatenate([arrays[0], second]), expected)


def test_result_type_and_can_cast_look_at_the_dtype_only(pair: Pair) -> None:
    with no_reads():
        assert np.result_type(pair[1], np.float64) == np.float64
        assert np.result_type(pair[1], 1.0) == np.result_type(pair[0], 1.0)
        assert np.can_cast(pair[1], np.float64)
        assert not np.can_cast(pair[1], np.int64)


# ---------------------------------------------------------------------- joining


def test_codecs_chunks_fills_and_layouts_may_differ(folder: Path) -> None:
    """What would be one array with one chunk shape elsewhere is any number of them here."""
    rng = np.random.default_rng(5)
    parts, arrays = [], []
    for n, (chunks, codecs, reverse, kind) in enumerate(
        [((2, 4), PLAIN, False, "f4"), ((3, 4), ZLIB, True, ">f4"), ((1, 3), SHUFFLED, False, "f4"),
         ((5, 9), SHUFFLED, True, "f8"), ((3, 4), ZLIB, False, "f4")]
    ):  # fmt: skip
        values = rng.normal(size=(n + 2, 7)).astype(kind)
        parts.append(values)
        arrays.append(virtual(values, folder, chunks=chunks, codecs=codecs, reverse_layout=reverse))
    with no_reads():
        joined = np.concatenate(arrays)
    exactly(joined, np.concatenate(parts))
    exactly(joined[3:17:2, ::-1], np.concatenate(parts)[3:17:2, ::-1])
    points = np.array([0, 19, 5, 8]), np.array([6, 0, 3, 3])
    exactly(joined[points], np.concatenate(parts)[points])


def test_files_with_different_packing_are_decoded_each_by_its_own(folder: Path) -> None:
    stored = np.arange(12, dtype="i2").reshape(3, 4)
    parts, arrays = [], []
    for scale, fill in ((0.1, 3), (0.5, 5)):
        packing = Packing(np.dtype("f8"), fills=(np.int16(fill),), scale_factor=scale)
        array = virtual(stored, folder, chunks=(2, 4), codecs=ZLIB, missing=[1])
        [pipeline] = array.pipelines
        packed = replace(pipeline, packing=packing, fill=np.int16(fill).tobytes())
        arrays.append(replace(array, dtype=packing.dtype, fill_value=0.0, pipelines=(packed,)))
        values = packing.decode(stored)
        values[2:] = np.nan
        parts.append(values)
    for axis in (0, 1):
        joined = np.concatenate(arrays, axis=axis)
        assert isinstance(joined, ManifestArray)
        assert len(joined.pipelines) == 2
        exactly(joined, np.concatenate(parts, axis=axis))
    exactly(np.stack(arrays, axis=1)[:, 1], parts[1])


def test_months_of_any_length_are_one_fragment(folder: Path) -> None:
    lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    parts = [np.full((n, 2), i, "i2") for i, n in enumerate(lengths)]
    arrays = [virtual(p, folder, chunks=(len(p), 2), codecs=ZLIB) for p in parts]
    joined = np.concatenate(arrays)
    assert len(joined.fragments) == 1
    assert joined.nchunks == 12
    exactly(joined, np.concatenate(parts))
    with counted_reads() as store:
        exactly(joined[31 + 27 : 31 + 29], np.array([[1, 1], [2, 2]], "i2"))
    assert len(store.ranges) == 2


def test_gaps_of_two_fill_values_are_kept_apart(folder: Path) -> None:
    array = virtual(np.arange(4.0), folder, codecs=ZLIB)
    nothing, zeros = (ManifestArray.full((4,), fill, "f8") for fill in (np.nan, 0.0))
    exactly(
        np.concatenate([nothing, array, zeros]), np.array([*[np.nan] * 4, *range(4), *[0.0] * 4])
    )
    mask = np.arange(4) > 1
    first, second = np.where(mask, array, 7.0), np.where(mask, array, 8.0)
    exactly(np.concatenate([first, first]), np.array([7.0, 7, 2, 3, 7, 7, 2, 3]))
    with no_reads():
        found = np.concatenate([first, second])
        again = np.where(np.arange(8) != 7, found, 9.0)
    exactly(found, np.array([7.0, 7, 2, 3, 8, 8, 2, 3]))
    exactly(again, np.array([7.0, 7, 2, 3, 8, 8, 2, 9]))
    exactly(np.concatenate([first, again[1:]]), np.array([7.0, 7, 2, 3, 7, 2, 3, 8, 8, 2, 9]))
    eights = np.where(np.arange(8) != 7, found, 8.0)
    exactly(np.concatenate([first, eights]), np.array([7.0, 7, 2, 3, 7, 7, 2, 3, 8, 8, 2, 8]))
    zeros = [np.where(mask, array, fill) for fill in (0.0, -0.0)]
    exactly(np.concatenate(zeros), np.array([0.0, 0, 2, 3, -0.0, -0.0, 2, 3]))


def test_many_ways_to_decode_are_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtualds.arrays.concatenate.MAX_PIPELINES", 2)
    arrays = [virtual(np.zeros(3, kind), folder, name="t") for kind in ("f4", ">f4", "i2")]
    assert len(np.concatenate(arrays[:2]).pipelines) == 2
    with pytest.raises(CombineError, match=r"t \(3,\).*2 ways\njoin fewer"):
        np.concatenate(arrays)


def test_arrays_that_do_not_fit_are_refused_by_name(folder: Path) -> None:
    one = virtual(np.zeros((2, 3)), folder, name="t")
    two = virtual(np.zeros((2, 4)), folder, name="t")
    with pytest.raises(CombineError) as caught:
        np.concatenate([one, two])
    for part in ("t", "(2, 3)", "(2, 4)", path_of(one).name, path_of(two).name, "axis 0"):
        assert part in str(caught.value)
    exactly(np.concatenate([one, two], axis=1), np.zeros((2, 7)))
    for wrong in (lambda: np.concatenate([one, two[0]]), lambda: np.stack([one, two])):
        with pytest.raises(CombineError):
            wrong()
    with pytest.raises(CombineError):
        np.concatenate([one, one], axis=2)


def test_objects_in_memory_do_not_join_references(folder: Path) -> None:
    texts = np.array(["a", "b"], object)
    array = virtual(np.array([1, 2]), folder)
    assert np.concatenate([array, texts]).tolist() == [1, 2, "a", "b"]
    with pytest.raises(CombineError, match="object"):
        ManifestArray.from_values(texts)


@given(
    hnp.arrays(
        st.sampled_from(["i2", "f8", "S2", "M8[s]"]), hnp.array_shapes(min_dims=0, min_side=0)
    )
)
def test_values_in_memory_become_an_inline_chunk(values: Values) -> None:
    array = ManifestArray.from_values(values)
    with no_reads():
        exactly(array, values)
        exactly(ManifestArray.from_values(values.T), values.T)


# ---------------------------------------------------------------------- equality


def certain_of(one: Any, two: Any) -> bool:
    """Equal as xarray finds out, without reading a byte."""
    with no_reads():
        return bool(xr.Variable(tuple("abc")[: one.ndim], one).equals(
            xr.Variable(tuple("abc")[: two.ndim], two)
        ))  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "i4", "M8[ns]", "m8[s]", "?", "c8", "S4", "u1"])
def test_the_same_references_are_equal_without_reading(folder: Path, dtype: str) -> None:
    values = np.arange(12).reshape(3, 4).astype(dtype)
    if values.dtype.kind in "fcMm":
        values[0, 0] = np.array("NaT" if values.dtype.kind in "Mm" else np.nan).astype(dtype)
    array = virtual(values, folder, chunks=(2, 2), codecs=ZLIB, padding=values[1, 1])
    again = pickle.loads(pickle.dumps(array))
    for one, two in ((array, array), (array, again), (array[1:], again[1:]), (array.T, again.T)):
        assert certain_of(one, two)
    with no_reads():
        one, two = (xr.Variable(("a", "b"), a, {"units": "K"}) for a in (array, again))
        assert one.identical(two)
        assert one.broadcast_equals(two)
        if array.dtype.kind not in "fcMm":
            assert np.all(array == again)
    assert np.all(array == again) == np.all(values == values)


def test_other_references_are_equal_by_their_values(folder: Path) -> None:
    values = np.array([1.0, np.nan, 3.0])
    one, same = (virtual(values, folder, codecs=c) for c in (ZLIB, PLAIN))
    other = virtual(np.array([1.0, np.nan, 4.0]), folder, codecs=ZLIB)
    assert not one.has_same_references(same)
    assert xr.Variable("x", one).equals(xr.Variable("x", same))
    assert xr.Variable("x", one).equals(xr.Variable("x", values))
    assert not xr.Variable("x", one).equals(xr.Variable("x", other))
    assert not xr.Variable("x", one).equals(xr.Variable("x", one[:2]))
    missing = np.where(np.array([True, False, True]), one, 0.0)
    assert not xr.Variable("x", one).equals(xr.Variable("x", missing))


def test_references_are_the_same_only_with_the_same_tables(folder: Path) -> None:
    array = virtual(np.arange(4, dtype="i4"), folder, chunks=(2,), codecs=ZLIB)
    [pipeline], [fragment] = array.pipelines, array.fragments
    later = fragment.manifest.with_files(lambda f: f._replace(mtime=1))
    for other in (
        replace(array, dtype=np.dtype("i8")),
        replace(array, pipelines=(replace(pipeline, codecs=()),)),
        replace(array, pipelines=(replace(pipeline, fill=b"abcd"),)),
        replace(array, fragments=(replace(fragment, manifest=later),)),
        array[:2],
        array[None],
        array[::-1],
        np.where(np.arange(4) > 0, array, np.int32(0)),
    ):
        assert not array.has_same_references(other)
    filled = [np.where(np.arange(4) > 0, array, np.int32(n)) for n in (0, 0, 1)]
    assert filled[0].has_same_references(filled[1])
    assert not filled[0].has_same_references(filled[2])


def test_bools_whose_chunks_lack_nothing_are_not_their_fill(folder: Path) -> None:
    mask = replace(virtual(np.array([True, False]), folder), fill_value=np.True_)
    one, other = (virtual(np.array(v), folder) for v in ([1, 2], [1, 3]))
    assert not np.all((one == other) | mask)
    assert np.all((one == one) | mask)
    filled = np.where(np.array([False, False]), mask, np.True_)
    with no_reads():
        assert np.all((one == other) | filled)


def test_numbers_have_the_byte_order_of_the_file_text_and_records_that_of_the_machine(
    folder: Path,
) -> None:
    """As xarray swaps that of numbers only."""
    record = np.dtype([("a", ">i2"), ("b", ">f8")])
    for stored, dtype in [
        (">f4", ">f4"),
        (">i8", ">i8"),
        (">U3", "=U3"),
        (record, record.newbyteorder("=")),
    ]:
        assert virtual(np.ones(3, stored), folder).dtype == np.dtype(dtype)


def test_a_comparison_is_an_array_of_bools(pair: Pair) -> None:
    values, array = pair
    found = array == array
    assert (found.dtype, found.shape, found.ndim, found.size) == (bool, (6, 8, 5), 3, 240)
    exactly(found, values == values)
    exactly(found[1:3, 2], (values == values)[1:3, 2])
    exactly(found.astype("i1"), (values == values).astype("i1"))
    exactly(np.sum(found, axis=0), np.sum(values == values, axis=0))
    exactly(~found, values != values)
    exactly(found | np.isnan(values), np.ones(values.shape, bool))
    assert np.all(found) == np.all(values == values)
    assert "equal" in repr(found)


def test_the_truth_of_a_comparison_is_that_of_its_value(folder: Path) -> None:
    one, two = (virtual(np.array(x), folder) for x in (1.0, 2.0))
    assert bool(one == two) is False
    assert bool(one == one[()]) is True
    assert bool(np.isnan(one)) is False
    with pytest.raises(ValueError, match="ambiguous"):
        bool(virtual(np.arange(3.0), folder) == virtual(np.arange(3.0), folder))


# ---------------------------------------------------------------------- new arrays like one


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda a: np.zeros_like(a), np.zeros),
        (lambda a: np.ones_like(a), np.ones),
        (lambda a: np.full_like(a, 1), np.ones),
        (lambda a: np.full_like(a, 1, dtype="i2"), lambda s: np.ones(s, "i2")),
        (lambda a: np.zeros_like(a, dtype=bool), lambda s: np.zeros(s, bool)),
        (lambda a: np.ones_like(a, shape=(2, 3)), lambda s: np.ones((2, 3))),
    ],
)
def test_an_array_of_one_value_has_no_bytes_behind_it(pair: Pair, make: Any, expected: Any) -> None:
    with no_reads():
        found = make(pair[1].astype("f8"))
        assert isinstance(found, ManifestArray)
        assert (found.nchunks, found.nbytes_virtual) == (0, 0)
        exactly(found, expected(pair[0].shape))
        assert np.empty_like(pair[1]).shape == pair[0].shape


def test_a_full_array_is_cropped_joined_and_indexed(folder: Path) -> None:
    full = ManifestArray.full((3, 4), 7, "i4")
    with no_reads():
        exactly(full[1:, ::2], np.full((2, 2), 7, "i4"))
        exactly(np.concatenate([full, full.T[:3, :]], axis=1), np.full((3, 7), 7, "i4"))
        exactly(full[[0, 1], [1, 2]], np.full(2, 7, "i4"))
        exactly(full.read_points((np.array([0]), slice(1, 3))), np.full((1, 2), 7, "i4"))


# ---------------------------------------------------------------------- being an object


def test_copies_are_the_array_itself(pair: Pair) -> None:
    array = pair[1]
    assert copy.copy(array) is copy.deepcopy(array) is np.copy(array) is array
    assert isinstance(hash(array), int)
    assert not np.shares_memory(array, array)


def test_a_pickle_reads_the_same_and_is_small(pair: Pair) -> None:
    values, array = pair
    joined = np.concatenate([array[:3], array[3:]])
    exactly(pickle.loads(pickle.dumps(joined)), values)
    big = ManifestArray.from_arrays(
        shape=(10**6, 100, 100), chunks=(1, 100, 100), dtype="f4", path="s3://bucket/a.nc",
        offsets=0, lengths=40_000,
    )  # fmt: skip
    assert len(pickle.dumps(big)) < 4000


def test_dask_names_equal_arrays_alike_and_others_otherwise(pair: Pair, folder: Path) -> None:
    values, array = pair
    name = dask.base.tokenize(array)
    array.read()
    again = pickle.loads(pickle.dumps(array))
    assert dask.base.tokenize(array) == dask.base.tokenize(again) == name
    irregular = np.concatenate([array[:3], array[2:]])
    twice = np.concatenate([array[:3], array[2:]])
    assert dask.base.tokenize(irregular) == dask.base.tokenize(twice)
    [fragment] = array.fragments
    checksum = np.broadcast_to(np.uint64(2**32), fragment.manifest.shape)
    checked = replace(fragment, manifest=replace(fragment.manifest, checksum=checksum))
    others = [
        replace(array, fragments=(checked,)),
        array[1:], array.T, array[None], array.astype("f8"), irregular, array[::-1],
        virtual(values, folder, chunks=(2, 3, 5), codecs=SHUFFLED),
        np.where(np.arange(6)[:, None, None] * np.ones((6, 8, 5)) > 0, array, np.float32(0)),
        np.where(np.arange(6)[:, None, None] * np.ones((6, 8, 5)) > 0, array, np.float32(1)),
    ]  # fmt: skip
    assert len({name, *map(dask.base.tokenize, others)}) == len(others) + 1


def test_looking_at_an_array_reads_nothing_and_says_what_it_is(pair: Pair) -> None:
    array = replace(pair[1], name="t2m")
    with no_reads():
        text, line, page = repr(array), array._repr_inline_(80), array._repr_html_()
        assert text == "<ManifestArray (6, 8, 5) float32: 9 chunks of 1 file>"
        assert line == "virtual: 9 chunks of 1 file"
        assert array._repr_inline_(7) == "virtual"
        parts = np.concatenate([array, np.concatenate([array[:, 2:], array[:, :2]], 1)])
        assert parts._repr_inline_(80).endswith(" of 1 file in 2 fragments")
        assert parts._repr_inline_(40).endswith(" of 1 file")
        assert path_of(array).name in page
        assert "shuffle, zlib" in page
        whole = np.concatenate([array[:, :, :2], array[1:3, :, :2].astype("f8")])
        assert "9 chunks" in repr(whole) or "chunks of 1 file" in repr(whole)
        assert "virtual: 9 chunks of 1 file" in repr(xr.Dataset({"t": (("a", "b", "c"), array)}))
        xr.Variable(("a", "b", "c"), array)._repr_html_()
        for odd in (ManifestArray.full((2,), 0, "i4"), array[0, 0, 0], np.ones_like(array)[:0]):
            assert repr(odd)
            assert odd._repr_html_()


def test_html_escapes_names(folder: Path) -> None:
    array = ManifestArray.from_arrays(
        shape=(1,), chunks=(1,), dtype="f4", path="s3://b/<script>.nc", offsets=0, lengths=4
    )
    assert "<script>" not in array._repr_html_()


def test_the_repr_distinguishes_sizes(pair: Pair) -> None:
    values, array = pair
    assert (array.nbytes, array.size, array.ndim) == (values.nbytes, 240, 3)
    assert (np.shape(array), np.ndim(array), np.size(array)) == ((6, 8, 5), 3, 240)
    assert np.size(array, 1) == 8
    assert array.nchunks == 9
    assert array.nbytes_virtual < 20 * 9 + 3 * 32
    assert not array.has_gaps
    assert np.where(values > 9e9, array, np.float32(0)).has_gaps
    assert len(array.sources) == 1


def test_the_manifest_of_several_fragments_is_not_one(folder: Path) -> None:
    one, two = (virtual(np.zeros((2, 4)), folder, chunks=(2, c)) for c in (2, 3))
    assert one.manifest.shape == (1, 2)
    for array, count in ((np.concatenate([one, two]), 2), (ManifestArray.full((2,), 0, "i4"), 0)):
        with pytest.raises(UnsupportedError, match=f"{count} fragments"):
            _ = array.manifest


def test_a_fragment_outside_of_its_array_is_refused(folder: Path) -> None:
    array = virtual(np.zeros((2, 4)), folder)
    for shape in ((1, 4), (2,), (2, 4, 1)):
        with pytest.raises(ValueError, match=r"does not lie inside|zip"):
            replace(array, shape=shape)


@pytest.mark.parametrize("layout", [(0, 2), (1, 1), (-1, 0)])
def test_a_layout_of_axes_that_there_are_not_is_refused(
    layout: tuple[int, ...], folder: Path
) -> None:
    array = virtual(np.zeros((2, 4)), folder)
    pipeline = replace(array.pipelines[0], layout=layout)
    with pytest.raises(ValueError, match="not distinct axes of an array with 2 axes"):
        replace(array, pipelines=(pipeline,))


# ---------------------------------------------------------------------- by hand


def test_columns_by_hand_name_files_and_missing_chunks(tmp_path: Path) -> None:
    one, two = tmp_path / "one.bin", tmp_path / "two.bin"
    one.write_bytes(np.arange(8, dtype="i4").tobytes())
    two.write_bytes(np.arange(100, 104, dtype="i4").tobytes())
    array = ManifestArray.from_arrays(
        shape=(7, 2),
        chunks=(2, 2),
        dtype="i4",
        path=[[str(one)], [str(two)], [""], [f"file://{one}"]],
        offsets=[[0], [0], [0], [16]],
        lengths=16,
        fill_value=-5,
    )
    assert len(array.sources) == 2
    expected = [[0, 1], [2, 3], [100, 101], [102, 103], [-5, -5], [-5, -5], [4, 5]]
    assert np.asarray(array).tolist() == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"offsets": [0, 1, 2]},
        {"offsets": [7, 7, 7]},
        {"lengths": [16]},
        {"lengths": 0},
        {"lengths": -1},
        {"offsets": -1},
        {"chunks": (2,)},
        {"chunks": (0, 2)},
        {"path": ["a", "b", "c"]},
    ],
    ids=str,
)
def test_columns_by_hand_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "shape": (4, 2), "chunks": (2, 2), "dtype": "i4", "path": "/x", "offsets": 0, "lengths": 16
    }  # fmt: skip
    if wrong == {"lengths": [16]}:
        ManifestArray.from_arrays(**right | wrong)
        return
    with pytest.raises(ValueError):
        ManifestArray.from_arrays(**right | wrong)


# ---------------------------------------------------------------------- doing no more than needed


def test_operations_that_change_nothing_look_at_no_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = virtual(np.arange(12).reshape(4, 3), tmp_path, chunks=(2, 3))
    monkeypatch.delattr(Fragment, "stop")
    monkeypatch.delattr(ChunkManifest, "has_same_references")
    monkeypatch.delattr(ChunkManifest, "used_pipelines")
    assert array.crop(0, 0, 4) is array
    assert array.has_same_references(array)
    assert replace(array, name="w").prune().shape == (4, 3)


def test_complex_fill_values_are_the_same_if_both_parts_are() -> None:
    nan = np.nan
    assert is_same_scalar(complex(nan, 1), np.complex64(complex(nan, 1)))
    assert not is_same_scalar(complex(nan, 1), complex(nan, 2))
    assert not is_same_scalar(complex(nan, 0), complex(nan, nan))
    assert not is_same_scalar(complex(0, -0.0), complex(0, 0.0))


def test_the_fill_of_a_type_is_one_object() -> None:
    kind = np.dtype("M8[s]")
    assert get_default_fill(kind) is get_default_fill(kind)


def test_a_position_that_repeats_is_one_repeated_fragment(tmp_path: Path) -> None:
    array = virtual(np.arange(12).reshape(4, 3), tmp_path, chunks=(2, 3))
    found = array[np.full(1000, 1)]
    assert isinstance(found, ManifestArray)
    assert len(found.fragments) == 1


def test_numbers_have_the_byte_order_in_which_they_are_stored(folder: Path) -> None:
    values = np.arange(3, dtype=">i2")
    assert virtual(values, folder).dtype == values.dtype


def test_squeezing_drops_all_axes_of_length_one(folder: Path) -> None:
    assert np.squeeze(virtual(np.zeros((1, 3, 1)), folder)).shape == (3,)


def test_a_variable_is_read_as_values(pair: Pair) -> None:
    values, array = pair
    found = ManifestVariable(("z", "y", "x"), array).read()
    assert type(found) is np.ndarray
    exactly(found, values)


def test_a_selection_of_whole_chunks_stays_virtual(pair: Pair) -> None:
    _, array = pair
    found = select_virtually(array, (slice(2, 4), slice(None), slice(None)), vectorized=False)
    assert found is not None and found.shape == (2, 8, 5)


def test_no_repeats_have_no_references(folder: Path) -> None:
    assert virtual(np.ones((1, 3)), folder).repeat(0, 0).fragments == ()


def test_values_in_memory_are_stacked_on_a_virtual_array(pair: Pair) -> None:
    values, array = pair
    exactly(np.asarray(np.stack([array, values])), np.stack([values, values]))


def test_a_reader_of_stored_values_reads_no_decoded_ones() -> None:
    wanted = NativeRegion("", "v", (3,), (slice(0, 2),), 0, False, decoded=True)
    read = make_stored_reader(lambda region: np.arange(3))
    assert read(wanted) is None
    assert read(wanted._replace(decoded=False)).tolist() == [0, 1]
