"""A cut of an axis answers like a list of its elements, however it is held."""

import copy
import pickle
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from products import looped

from virtualds import ChunkAxis, ChunkManifest, Fragment
from virtualds.chunks.axes import AxisKey, IrregularAxis, Projection, RegularAxis, Slices, to_slice
from virtualds.chunks.columns import find_distinct
from virtualds.chunks.fragment import (
    _find_shared_blocks,
    find_rectilinear_chunks,
    find_whole_blocks,
)


class Element(NamedTuple):
    """Where a logical element lies: its slab, its place in the stored chunk, that one's length."""

    slab: int
    within: int
    encoded: int


def elements(axis: ChunkAxis) -> list[Element]:
    """Every element of an axis, read off its three columns one by one."""
    edges, encoded, inset = axis.slabs()
    return [
        Element(i, int(inset[i]) + k, int(encoded[i]))
        for i, (a, b) in enumerate(pairwise(edges.tolist()))
        for k in range(b - a)
    ]


def renumbered(found: list[Element], by: int) -> list[Element]:
    return [e._replace(slab=e.slab + by) for e in found]


@st.composite
def regular_axes(draw: st.DrawFn) -> RegularAxis:
    size, chunk = draw(st.integers(0, 30)), draw(st.integers(1, 9))
    inset = draw(st.integers(0, chunk - 1))
    shown = (inset + size) % chunk or chunk
    last = draw(st.integers(shown, chunk)) if size else chunk
    return ChunkAxis.regular(size, chunk, inset=inset, last=last)


@st.composite
def irregular_axes(draw: st.DrawFn) -> ChunkAxis:
    slabs = draw(
        st.lists(
            st.tuples(st.integers(1, 6), st.integers(0, 3), st.integers(0, 3)),
            min_size=1,
            max_size=6,
        )
    )
    shown, hidden, after = (np.array(column) for column in zip(*slabs, strict=True))
    return ChunkAxis.from_slabs(shown, hidden + shown + after, hidden)


AXES = regular_axes() | irregular_axes()


@st.composite
def axes_with_ranges(draw: st.DrawFn, ranges: int) -> tuple[ChunkAxis, list[tuple[int, int]]]:
    """An axis and ranges, each within the one before."""
    axis = draw(AXES)
    size, found = axis.size, []
    for _ in range(ranges):
        start = draw(st.integers(0, size))
        stop = draw(st.integers(start, size))
        found.append((start, stop))
        size = stop - start
    return axis, found


# ---------------------------------------------------------------------- describing


@given(AXES)
def test_the_elements_are_as_many_as_the_size(axis: ChunkAxis) -> None:
    found = elements(axis)
    assert len(found) == axis.size == axis.lengths.sum()
    assert {e.slab for e in found} == set(range(axis.nchunks))
    assert all(0 <= e.within < e.encoded for e in found)


@given(AXES)
@example(ChunkAxis.regular(5, 3, last=2))
def test_stored_lengths_are_those_of_the_slabs(axis: ChunkAxis) -> None:
    assert axis.stored_lengths() == set(axis.slabs().encoded.tolist())


@given(AXES)
def test_locate_finds_the_slab_of_every_element(axis: ChunkAxis) -> None:
    located = axis.locate(np.arange(axis.size))
    assert located.tolist() == [e.slab for e in elements(axis)]


@given(AXES, st.data())
def test_some_slabs_are_a_part_of_all_slabs(axis: ChunkAxis, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, axis.nchunks))
    stop = data.draw(st.integers(first, axis.nchunks))
    part, whole = axis.slabs(first, stop), axis.slabs()
    assert part.edges.tolist() == whole.edges[first : stop + 1].tolist()
    assert part.encoded.tolist() == whole.encoded[first:stop].tolist()
    assert part.inset.tolist() == whole.inset[first:stop].tolist()


@given(regular_axes())
def test_a_regular_axis_is_recognised_by_its_columns(axis: RegularAxis) -> None:
    _, encoded, inset = axis.slabs()
    found = ChunkAxis.from_slabs(axis.lengths, encoded, inset)
    assert isinstance(found, RegularAxis)
    assert elements(found) == elements(axis)
    if axis.nchunks > 1:
        assert found == axis


@given(AXES)
def test_an_axis_equals_itself_built_again_and_hashes_alike(axis: ChunkAxis) -> None:
    columns = axis.lengths, axis.slabs().encoded, axis.slabs().inset
    one, two = ChunkAxis.from_slabs(*columns), ChunkAxis.from_slabs(*columns)
    assert one == two
    assert hash(one) == hash(two)
    assert one != ChunkAxis.regular(axis.size + 1, 5)


@given(AXES)
def test_an_axis_equals_its_pickle_and_its_copy(axis: ChunkAxis) -> None:
    for again in (pickle.loads(pickle.dumps(axis)), copy.deepcopy(axis)):
        assert (again, hash(again), repr(again)) == (axis, hash(axis), repr(axis))
        assert (again.size, again.nchunks) == (axis.size, axis.nchunks)
        box = Fragment.whole((again,), ChunkManifest.missing((axis.nchunks,)))
        assert pickle.loads(pickle.dumps(box)).shape == (axis.size,)


@pytest.mark.parametrize(
    ("axis", "chunk"),
    [
        (ChunkAxis.regular(10, 4), 4),
        (ChunkAxis.regular(10, 10), 10),
        (ChunkAxis.regular(10, 16), 16),
        (ChunkAxis.regular(10, 16, last=10), 10),
        (ChunkAxis.regular(10, 16, last=12), None),
        (ChunkAxis.regular(10, 4, last=2), None),
        (ChunkAxis.regular(10, 4, inset=1), None),
        (ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31]), None),
        (ChunkAxis.from_slabs([4, 4, 2], [4, 4, 4]), 4),
    ],
)
def test_chunk_is_what_zarr_v2_can_say(axis: ChunkAxis, chunk: int | None) -> None:
    assert axis.chunk == chunk


def test_a_regular_axis_of_any_length_takes_four_integers() -> None:
    axis = ChunkAxis.regular(10**12, 7)
    assert axis.nbytes == 32
    assert axis.nchunks == -(-(10**12) // 7)
    assert axis.locate(np.array([10**12 - 1])).tolist() == [axis.nchunks - 1]
    cut, kept = axis.crop(10**11 + 1, 10**11 + 9)
    assert (cut.size, kept.stop - kept.start) == (8, cut.nchunks)
    joined = ChunkAxis.concatenate([ChunkAxis.regular(700, 7)] * 1000)
    assert joined == ChunkAxis.regular(700_000, 7)
    assert joined.nbytes == 32


def test_no_column_is_made_of_the_slabs_of_a_regular_axis() -> None:
    """There is no memory for columns of so many slabs."""
    axis = ChunkAxis.regular(7 * 10**15, 7)
    assert axis.crop(7, 7 * 10**15 - 1) == (
        ChunkAxis.regular(7 * 10**15 - 8, 7),
        slice(1, 10**15),
    )
    assert ChunkAxis.concatenate([axis, axis]) == ChunkAxis.regular(14 * 10**15, 7)
    assert axis.stored_lengths() == {7}


def test_an_axis_alone_is_not_joined() -> None:
    axis = ChunkAxis.from_slabs([2, 3, 1], [2, 3, 4])
    assert ChunkAxis.concatenate([axis]) is axis


def test_different_numbers_are_sorted_only_where_most_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # there is no memory to look through so many
    assert find_distinct(np.array([10**15, 3, 3]), 10**16).tolist() == [3, 10**15]
    monkeypatch.delattr(np, "unique")
    assert find_distinct(np.array([4, 1, 4]), 5).tolist() == [1, 4]


def test_one_slab_per_file_takes_at_most_sixteen_bytes() -> None:
    months = np.tile([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], 1000)
    axis = ChunkAxis.concatenate([ChunkAxis.regular(n, n) for n in months.tolist()])
    assert isinstance(axis, IrregularAxis)
    assert axis.nbytes <= 16 * months.size


@looped(
    "build",
    [
        lambda: ChunkAxis.regular(-1, 4),
        lambda: ChunkAxis.regular(4, 0),
        lambda: ChunkAxis.regular(4, -4),
        lambda: ChunkAxis.regular(4, 4, inset=4),
        lambda: ChunkAxis.regular(4, 4, inset=-1),
        lambda: ChunkAxis.regular(10, 4, last=1),
        lambda: ChunkAxis.regular(10, 4, last=5),
        lambda: ChunkAxis.from_slabs([5, 5], [5, 4]),
        lambda: ChunkAxis.from_slabs([5, 5], [5, 5], [0, 1]),
        lambda: ChunkAxis.from_slabs([5, -5], [5, 5]),
        lambda: ChunkAxis.from_slabs([5, 4], [9, 9], [-1, 0]),
        lambda: ChunkAxis.from_slabs([5, 4], [5, 5, 5]),
    ],
)
def test_impossible_axes_are_refused(build: object) -> None:
    with pytest.raises(ValueError):
        build()  # type: ignore[operator]


# ---------------------------------------------------------------------- cropping and joining


@given(axes_with_ranges(1))
def test_a_crop_shows_the_same_elements(drawn: tuple[ChunkAxis, list[tuple[int, int]]]) -> None:
    axis, [(start, stop)] = drawn
    cut, kept = axis.crop(start, stop)
    assert cut.nchunks == kept.stop - kept.start
    assert renumbered(elements(cut), kept.start) == elements(axis)[start:stop]


@given(axes_with_ranges(2))
def test_cropping_twice_is_cropping_once(drawn: tuple[ChunkAxis, list[tuple[int, int]]]) -> None:
    axis, [(a, b), (c, d)] = drawn
    once, kept_once = axis.crop(a, b)
    twice, kept_twice = once.crop(c, d)
    direct, kept = axis.crop(a + c, a + d)
    assert twice == direct
    if direct.size:
        assert kept_once.start + kept_twice.start == kept.start


@given(axes_with_ranges(1))
def test_a_crop_of_a_regular_axis_is_as_small(
    drawn: tuple[ChunkAxis, list[tuple[int, int]]],
) -> None:
    axis, [(start, stop)] = drawn
    cut, _ = axis.crop(start, stop)
    if isinstance(axis, RegularAxis):
        assert isinstance(cut, RegularAxis)


@given(st.lists(AXES, min_size=1, max_size=4))
def test_concatenated_axes_lie_end_to_end(axes: list[ChunkAxis]) -> None:
    expected: list[Element] = []
    chunks = 0
    for axis in axes:
        expected += renumbered(elements(axis), chunks)
        chunks += axis.nchunks
    assert elements(ChunkAxis.concatenate(axes)) == expected


@given(st.lists(AXES, min_size=3, max_size=3))
def test_concatenating_is_associative(axes: list[ChunkAxis]) -> None:
    a, b, c = axes
    join = ChunkAxis.concatenate
    left, right, flat = join([join([a, b]), c]), join([a, join([b, c])]), join(axes)
    assert elements(left) == elements(right) == elements(flat)
    if flat.size and sum(axis.size > 0 for axis in axes) > 1:
        assert left == right == flat


@given(axes_with_ranges(1))
def test_the_parts_of_an_axis_make_it_again(
    drawn: tuple[ChunkAxis, list[tuple[int, int]]],
) -> None:
    axis, [(start, stop)] = drawn
    parts = [axis.crop(0, start)[0], axis.crop(start, stop)[0], axis.crop(stop, axis.size)[0]]
    assert [e.within for e in elements(ChunkAxis.concatenate(parts))] == [
        e.within for e in elements(axis)
    ]


# ---------------------------------------------------------------------- projecting


def projected(found: Projection, size: int) -> list[tuple[int, int] | None]:
    """What a projection puts into each place of the result."""
    out: list[tuple[int, int] | None] = [None] * size
    for chunk, inner, outer in zip(found.chunk, found.inner, found.outer, strict=True):
        if isinstance(inner, slice):
            within = list(range(inner.start, inner.stop, inner.step))
        else:
            within = inner.tolist()
        places = range(outer.start, outer.stop)
        assert len(within) == len(places) > 0
        for place, position in zip(places, within, strict=True):
            assert out[place] is None, "a place is filled twice"
            out[place] = (int(chunk), position)
    return out


@st.composite
def keys(draw: st.DrawFn, size: int) -> tuple[AxisKey, np.ndarray]:
    """A key in normal form, and the positions that it means."""
    chosen = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=12, unique=True))
    rising = np.array(sorted(chosen))
    if draw(st.booleans()):
        return rising, rising
    step = draw(st.integers(1, 5))
    key = slice(int(rising[0]), int(rising[-1]) + 1, step)
    return key, np.arange(key.start, key.stop, step)


@given(AXES, st.integers(0, 5), st.integers(0, 5), st.data())
def test_a_projection_covers_exactly_what_is_selected(
    axis: ChunkAxis, before: int, after: int, data: st.DataObject
) -> None:
    """The axis begins ``before`` elements into the array, which goes on for ``after``."""
    total = before + axis.size + after
    if not total:
        return
    key, positions = data.draw(keys(total))
    expected = [
        elements(axis)[p - before][:2] if before <= p < before + axis.size else None
        for p in positions.tolist()
    ]
    found = axis.project(key, before)
    assert projected(found, positions.size) == expected
    assert (np.diff(found.chunk) > 0).all()
    bounds = [run.first for run in found.runs] + [run.stop for run in found.runs[-1:]]
    assert bounds == sorted({0, found.chunk.size, *bounds})[: len(bounds)]
    for run in found.runs:
        encoded = {int(axis.slabs(c, c + 1).encoded[0]) for c in found.chunk[run.first : run.stop]}
        taken = {
            (inner.start, inner.stop, inner.step) if isinstance(inner, slice) else inner.tobytes()
            for inner in found.inner[run.first : run.stop]
        }
        assert not run.is_whole or [(0, n, 1) for n in encoded] == list(taken)


def test_slices_are_those_of_a_list() -> None:
    found = Slices(np.array([0, 4, 9]), np.array([4, 9, 11]), 1)
    meant = [slice(0, 4, 1), slice(4, 9, 1), slice(9, 11, 1)]
    assert ([*found], len(found), found[-1]) == (meant, 3, meant[-1])
    assert [*found[1:]] == meant[1:]


@given(st.lists(st.integers(0, 50), min_size=1, unique=True).map(sorted))
def test_as_slice_means_the_same_positions(positions: list[int]) -> None:
    found = to_slice(np.array(positions))
    if isinstance(found, slice):
        assert list(range(found.start, found.stop, found.step)) == positions
    else:
        assert found.tolist() == positions
        assert len(positions) > 2


def test_projecting_reads_only_the_slabs_of_the_selection() -> None:
    axis = ChunkAxis.regular(10**12, 10)
    found = axis.project(slice(10**11 + 5, 10**11 + 25, 1))
    assert found.chunk.tolist() == [10**10, 10**10 + 1, 10**10 + 2]
    assert [*found.inner] == [slice(5, 10, 1), slice(0, 10, 1), slice(0, 5, 1)]
    assert [*found.outer] == [slice(0, 5), slice(5, 15), slice(15, 20)]


@pytest.mark.parametrize(("gap", "filling"), [(6, [3, 3]), (7, [3, 3, 1]), (0, [])])
def test_gaps_between_fragments_are_cut_like_the_chunks_before_them(
    gap: int, filling: list[int]
) -> None:
    axis = ChunkAxis.from_slabs([3, 3], [3, 3])
    parts = [Fragment((at,), (axis,), ChunkManifest.missing((2,))) for at in (0, 6 + gap)]
    found = find_rectilinear_chunks((12 + gap,), parts)
    assert found is not None
    assert [lengths.tolist() for lengths in found] == [[3, 3, *filling, 3, 3]]


def test_a_fragment_shows_the_slabs_of_a_stretch_and_nothing_beyond_it() -> None:
    fragment = Fragment.whole((ChunkAxis.regular(6, 2),), ChunkManifest.missing((3,)))
    assert fragment.count_slabs([[(0, 6)]]) == 3
    assert fragment.count_slabs([[(1, 3), (5, 6)]]) == 3
    assert fragment.crop(0, 6, 8) is None
    assert fragment.crop(0, 5, 8) is not None


# ---------------------------------------------------------------------- blocks of many fragments


def stack_rows(rows: list[ChunkAxis]) -> list[Fragment]:
    """A fragment for each row of an array, each with its own cut along the row."""
    one = ChunkAxis.regular(1, 1)
    return [
        Fragment((row, 0), (one, axis), ChunkManifest.missing((1, axis.nchunks)))
        for row, axis in enumerate(rows)
    ]


ROWS = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 9)), min_size=1, max_size=6)


@given(ROWS)
@example([(12, 5), (7, 5), (12, 4)])
def test_blocks_cut_no_chunk_of_any_row(rows: list[tuple[int, int]]) -> None:
    size = max(length for length, _ in rows)
    axes = [ChunkAxis.regular(length, chunk) for length, chunk in rows]
    _, found = find_whole_blocks((len(rows), size), stack_rows(axes), 1)
    edges = [set(axis.slabs().edges.tolist()) for axis in axes]
    wanted = {
        at for at in {0, size}.union(*edges) if all(at in own or at >= max(own) for own in edges)
    }
    assert np.diff(sorted(wanted)).tolist() == list(found)


def test_fragments_that_are_cut_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [100, 120, 90, 110] * 50
    fragments = stack_rows([ChunkAxis.regular(length, 50) for length in lengths])
    asked, slabs = list[ChunkAxis](), RegularAxis.slabs
    monkeypatch.setattr(RegularAxis, "slabs", lambda axis: asked.append(axis) or slabs(axis))
    _find_shared_blocks.cache_clear()
    assert find_whole_blocks((200, 120), fragments, 4)[1] == (50, 50, 20)
    assert len(asked) <= 30


def test_arrays_that_are_cut_alike_share_the_lengths_of_their_blocks() -> None:
    def cut() -> tuple[int, ...]:
        months = ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31])
        fragment = Fragment.whole((months,), ChunkManifest.missing((3,)))
        return find_whole_blocks((90,), [fragment], 4)[0]

    assert cut() == (31, 28, 31)
    # so a dataset of many variables counts a million chunks once
    assert cut() is cut()


def test_axes_that_differ_between_the_edges_that_are_hashed_differ() -> None:
    lengths = np.full(10_000, 30)
    other = lengths.copy()
    other[5_001:5_003] = 29, 31
    first, again, differing = (
        ChunkAxis.from_slabs(found, found + 1) for found in (lengths, lengths.copy(), other)
    )
    assert first == again and hash(first) == hash(again)
    # a hash of all edges would take longer than most uses
    assert hash(first) == hash(differing)
    assert first != differing and len({first, again, differing}) == 2
