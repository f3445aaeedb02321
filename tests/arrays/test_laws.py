"""Laws of the model: arrays of any make are joined, cropped and turned as their values are."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from virtual_arrays import PLAIN, SHUFFLED, ZLIB, exactly, no_reads, positions, slices, virtual

from virtualds import ManifestArray
from virtualds.chunks.axes import find_runs
from virtualds.codecs.cf import Packing

Values = np.ndarray[Any, Any]
Pair = tuple[Values, ManifestArray]

DTYPES = ("<i2", ">i4", "u1", "<f4", ">f8", "<f8")
FILLS = (0.0, -0.0, np.nan, 5.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("laws")


# ---------------------------------------------------------------------- drawing archives


@st.composite
def packings(draw: st.DrawFn, stored: np.dtype[Any]) -> Packing:
    """CF packings as files have them."""
    number = st.sampled_from((None, 0.1, np.float32(0.3), -2.0, 100.0))
    fills = draw(st.sets(st.sampled_from((1, 3, 4)), max_size=2))
    integer = None
    if stored.kind in "iu" and draw(st.booleans()):
        integer = np.dtype(f"{'u' if stored.kind == 'i' else 'i'}{stored.itemsize}")
    return Packing(
        np.dtype(draw(st.sampled_from(("f4", "f8")))),
        integer=integer,
        fills=tuple(sorted(fills)),
        scale_factor=draw(number),
        add_offset=draw(number),
    )


@st.composite
def files(draw: st.DrawFn, folder: Path, shape: Sequence[int]) -> Pair:
    """The decoded values of one file of an archive, and a virtual array of them."""
    kind = np.dtype(draw(st.sampled_from(DTYPES)))
    stored = (np.arange(np.prod(shape, dtype=int)) % 97).astype(kind).reshape(shape)
    chunks = tuple(draw(st.integers(1, n + 2)) for n in shape)
    grid = tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
    some = st.sets(st.integers(0, max(int(np.prod(grid)) - 1, 0)), max_size=2)
    inline, missing = draw(some), draw(some)
    fill = kind.type(draw(st.sampled_from((0, 3, 7))))
    for number, where in enumerate(np.ndindex(grid)):
        if number in missing:
            stored[tuple(slice(i * c, i * c + c) for i, c in zip(where, chunks, strict=True))] = (
                fill
            )
    array = virtual(
        stored,
        folder,
        chunks=chunks,
        codecs=draw(st.sampled_from((PLAIN, ZLIB, SHUFFLED))),
        inline=sorted(inline),
        missing=sorted(missing),
        reverse_layout=draw(st.booleans()),
    )
    packing = draw(st.none() | packings(kind))
    [pipeline] = array.pipelines
    pipeline = replace(pipeline, packing=packing, fill=np.asarray(fill, kind).tobytes())
    dtype = pipeline.decoded_dtype
    array = replace(array, pipelines=(pipeline,), dtype=dtype, fill_value=dtype.type(0))
    values = stored.astype(kind.newbyteorder("="))
    return packing.decode(values) if packing else values, array


def keep(draw: st.DrawFn, pair: Pair) -> Pair:
    """Some stretches along each axis, the rest filled: what outer joins leave."""
    values, array = pair
    mask = np.ones(values.shape, bool)
    for axis, n in enumerate(values.shape):
        along = draw(hnp.arrays(bool, n, elements=st.sampled_from((True, True, False))))
        mask &= along.reshape((-1,) + (1,) * (values.ndim - axis - 1))
    fill = values.dtype.type(draw(st.sampled_from(FILLS)) if values.dtype.kind == "f" else 5)
    kept = np.where(mask, array, fill)
    assert isinstance(kept, ManifestArray)
    return np.where(mask, values, fill), kept


def crop(draw: st.DrawFn, pair: Pair) -> Pair:
    key = tuple(draw(slices(n, steps=(1,))) for n in pair[0].shape)
    return pair[0][key], pair[1][key]


def turn(draw: st.DrawFn, pair: Pair) -> Pair:
    """Permute the axes twice, back to the shape."""
    order = draw(st.permutations(range(pair[0].ndim)))
    back = np.argsort(order)
    return pair[0], pair[1].transpose(tuple(order)).transpose(tuple(back))


def flip(draw: st.DrawFn, pair: Pair) -> Pair:
    """Some of the axes from the last element to the first."""
    axes = draw(st.sets(st.integers(0, pair[0].ndim - 1)))
    flipped = np.flip(pair[1], tuple(axes))
    assert isinstance(flipped, ManifestArray)
    assert flipped.nchunks == pair[1].nchunks
    return np.flip(pair[0], tuple(axes)), flipped


def alone(draw: st.DrawFn, pair: Pair) -> Pair:
    return pair


@st.composite
def archives(draw: st.DrawFn, folder: Path, shape: Sequence[int], depth: int = 3) -> Pair:
    """Files laid end to end along any axis, and what they make likewise, cut and filled between."""
    cut = [axis for axis, n in enumerate(shape) if n > 1]
    if depth and cut and draw(st.booleans()):
        axis = draw(st.sampled_from(cut))
        at = draw(st.integers(1, shape[axis] - 1))
        lengths = [at, shape[axis] - at]
        shapes = [(*shape[:axis], n, *shape[axis + 1 :]) for n in lengths]
        parts = [draw(archives(folder, s, depth - 1)) for s in shapes]
        pair = (
            np.concatenate([values for values, _ in parts], axis=axis),
            np.concatenate([array for _, array in parts], axis=axis),
        )
    else:
        pair = draw(files(folder, shape))
    change = draw(st.sampled_from((alone, alone, keep, turn, flip)))
    return change(draw, pair)


def shapes(dims: int = 3, side: int = 7) -> st.SearchStrategy[tuple[int, ...]]:
    return hnp.array_shapes(min_dims=1, max_dims=dims, max_side=side)


@st.composite
def rows(draw: st.DrawFn, folder: Path, count: int) -> tuple[int, list[Pair]]:
    """An axis, and archives that can be laid end to end along it."""
    shape = draw(shapes(side=5))
    axis = draw(st.integers(0, len(shape) - 1))
    sizes = [draw(st.integers(1, 5)) for _ in range(count)]
    return axis, [draw(archives(folder, (*shape[:axis], n, *shape[axis + 1 :]), 1)) for n in sizes]


# ---------------------------------------------------------------------- laws


@given(data=st.data())
def test_an_archive_is_its_values(folder: Path, data: st.DataObject) -> None:
    with no_reads():
        values, array = data.draw(archives(folder, data.draw(shapes())))
        for _ in range(data.draw(st.integers(0, 2))):
            change = data.draw(st.sampled_from((crop, keep, turn, flip)))
            values, array = change(data.draw, (values, array))
    exactly(array, values)
    key = tuple(data.draw(slices(n) | positions(n)) for n in values.shape)
    expected = values
    for axis, k in enumerate(key):
        expected = expected[(slice(None),) * axis + (k,)]
    exactly(array.read(key), expected)
    again = pickle.loads(pickle.dumps(array))
    assert again.has_same_references(array)
    exactly(again, values)


@given(data=st.data())
def test_points_of_an_archive_are_its_values(folder: Path, data: st.DataObject) -> None:
    values, array = data.draw(archives(folder, data.draw(shapes())))
    count = data.draw(st.integers(1, 5))
    key = tuple(
        data.draw(hnp.arrays(np.int64, count, elements=st.integers(-n, n - 1)))
        for n in values.shape
    )
    exactly(array[key], values[key])


@given(data=st.data())
def test_joining_is_associative(folder: Path, data: st.DataObject) -> None:
    axis, parts = data.draw(rows(folder, 3))
    expected = np.concatenate([values for values, _ in parts], axis)
    a, b, c = (array for _, array in parts)
    with no_reads():
        together = np.concatenate([a, b, c], axis)
        left = np.concatenate([np.concatenate([a, b], axis), c], axis)
        right = np.concatenate([a, np.concatenate([b, c], axis)], axis)
    if len({v.dtype for v, _ in parts}) == 1:
        for joined in (together, left, right):
            exactly(joined, expected)
    assert together.shape == left.shape == right.shape == expected.shape


@given(data=st.data())
def test_a_crop_of_joined_arrays_is_the_join_of_cropped_arrays(
    folder: Path, data: st.DataObject
) -> None:
    axis, parts = data.draw(rows(folder, 2))
    one, two = (array for _, array in parts)
    start = data.draw(st.integers(0, one.shape[axis]))
    stop = data.draw(st.integers(0, two.shape[axis]))
    with no_reads():
        joined = np.concatenate([one, two], axis)
        late = joined.crop(axis, start, one.shape[axis] + stop)
        head, tail = one.crop(axis, start, one.shape[axis]), two.crop(axis, 0, stop)
        early = np.concatenate([head, tail], axis)
    exactly(early, late)


@given(data=st.data())
def test_a_transpose_of_joined_arrays_is_the_join_of_transposed_arrays(
    folder: Path, data: st.DataObject
) -> None:
    axis, parts = data.draw(rows(folder, 2))
    order = data.draw(st.permutations(range(parts[0][0].ndim)))
    arrays = [array for _, array in parts]
    with no_reads():
        late = np.transpose(np.concatenate(arrays, axis), order)
        early = np.concatenate([np.transpose(a, order) for a in arrays], order.index(axis))
    exactly(early, late)


@given(data=st.data())
def test_a_flip_of_joined_arrays_is_the_join_of_flipped_arrays(
    folder: Path, data: st.DataObject
) -> None:
    axis, parts = data.draw(rows(folder, 2))
    arrays = [array for _, array in parts]
    with no_reads():
        late = np.flip(np.concatenate(arrays, axis), axis)
        early = np.concatenate([np.flip(a, axis) for a in arrays[::-1]], axis)
    exactly(early, late)


@given(data=st.data())
def test_flipping_twice_gives_the_same_references(folder: Path, data: st.DataObject) -> None:
    values, array = data.draw(archives(folder, data.draw(shapes())))
    axes = tuple(data.draw(st.permutations(range(array.ndim))))[: data.draw(st.integers(1, 3))]
    with no_reads():
        flipped = np.flip(array, axes)
        back = np.flip(flipped, axes[::-1])
        # a flip leaves out what no chunk needs
        assert back.prune().has_same_references(array.prune())
    exactly(flipped, np.flip(values, axes))


@given(data=st.data())
def test_falling_positions_select_as_in_numpy(folder: Path, data: st.DataObject) -> None:
    """Any slices and runs of positions, backwards too, of what has been flipped and joined."""
    values, array = data.draw(archives(folder, data.draw(shapes())))
    for _ in range(2):
        axis = data.draw(st.integers(0, values.ndim - 1))
        size = values.shape[axis]
        if not size:
            break
        runs = data.draw(st.lists(slices(size, steps=(1, -1, -2, 2)), min_size=1, max_size=3))
        key = np.concatenate([np.arange(size)[run] for run in runs])
        array, values = np.take(array, key, axis), values.take(key, axis)
    exactly(array, values)


@given(data=st.data())
def test_taking_twice_is_taking_once(folder: Path, data: st.DataObject) -> None:
    _, array = data.draw(archives(folder, data.draw(shapes())))
    for fragment in array.fragments:
        manifest = fragment.manifest
        axis = data.draw(st.integers(0, len(manifest.shape) - 1))
        ids = hnp.arrays(
            np.int64, st.integers(1, 5), elements=st.integers(0, manifest.shape[axis] - 1)
        )
        a = data.draw(ids)
        b = data.draw(hnp.arrays(np.int64, st.integers(0, 5), elements=st.integers(0, a.size - 1)))
        assert manifest.take(axis, a).take(axis, b).has_same_references(manifest.take(axis, a[b]))


@given(data=st.data())
def test_arrays_that_are_ragged_along_one_axis_join_to_one_fragment(
    folder: Path, data: st.DataObject
) -> None:
    shape = data.draw(shapes())
    axis = data.draw(st.integers(0, len(shape) - 1))
    chunks = [data.draw(st.integers(1, n + 2)) for n in shape]
    arrays = []
    for _ in range(data.draw(st.integers(2, 5))):
        length, chunk = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
        values = np.ones((*shape[:axis], length, *shape[axis + 1 :]), "f4")
        cut = [*chunks[:axis], chunk, *chunks[axis + 1 :]]
        codecs = data.draw(st.sampled_from((PLAIN, ZLIB)))
        arrays.append(virtual(values, folder, chunks=cut, codecs=codecs))
    assert len(np.concatenate(arrays, axis).fragments) == 1


@pytest.mark.full
@given(data=st.data())
def test_gaps_are_kept_whatever_fills_them(folder: Path, data: st.DataObject) -> None:
    """Stretches of an array that are kept in any order, joined with other such, filled again."""
    shape = data.draw(shapes())
    axis = data.draw(st.integers(0, len(shape) - 1))
    pairs = [keep(data.draw, data.draw(archives(folder, shape, 1))) for _ in range(3)]
    with no_reads():
        joined = np.concatenate([array for _, array in pairs], axis)
    expected = np.concatenate([values for values, _ in pairs], axis)
    if len({values.dtype for values, _ in pairs}) == 1:
        exactly(joined, expected)
    values, array = keep(data.draw, (np.asarray(joined), joined))
    exactly(array, values)
    stretches = find_runs(np.flatnonzero(np.ones(joined.shape[axis])))
    exactly(joined.keep_ranges(axis, stretches), joined)
