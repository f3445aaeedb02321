"""A manifest is columns: taking, joining and permuting it is the same on every row."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from virtualds import ChunkManifest, FormatError, SourceFile
from virtualds.chunks import columns as manifest_columns
from virtualds.chunks.columns import COLUMNS, INLINE, MISSING
from virtualds.source_file import CHECKSUM_FLAG, StorageOptions

SIZE = 10_000
FILES = [SourceFile(f"s3://bucket/{name}.nc", size=SIZE, mtime=7) for name in "abcd"]

Rows = np.ndarray[Any, Any]


def rows(manifest: ChunkManifest) -> Rows:
    """What every chunk means, tables looked up: an object array over the grid."""
    found = np.empty(manifest.shape, object)
    for where in np.ndindex(manifest.shape):
        row = manifest.lookup(where)
        if row.file == MISSING:
            found[where] = ("missing", row.pipeline)
        elif row.file == INLINE:
            found[where] = (manifest.inline[row.offset], row.checksum, row.pipeline)
        else:
            found[where] = (manifest.files[row.file], *row[1:3], row.checksum, row.pipeline)
    return found


@st.composite
def columns(draw: st.DrawFn, shape: tuple[int, ...], low: int, high: int) -> Any:
    """Numbers over a grid, constant along some axes."""
    varying = tuple(n if draw(st.booleans()) else 1 for n in shape)
    values = draw(hnp.arrays(np.int64, varying, elements=st.integers(low, high)))
    return np.broadcast_to(values, shape)


@st.composite
def checksums(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Checksums of all, some or none of the chunks."""
    values = CHECKSUM_FLAG + draw(columns(shape, 0, CHECKSUM_FLAG - 1))
    return np.where(draw(columns(shape, 0, 1)), values, 0)


@st.composite
def manifests(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> ChunkManifest:
    if shape is None:
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    files = draw(st.permutations(FILES))[: draw(st.integers(1, 4))]
    held = [b"one", b"two"][: draw(st.integers(0, 2))]
    file = draw(columns(shape, INLINE if held else MISSING, len(files) - 1))
    offset = draw(columns(shape, 0, 100))
    if held:
        offset = np.where(file == INLINE, offset % len(held), offset)
    return ChunkManifest.build(
        shape,
        files=files,
        file=file,
        offset=offset,
        length=draw(columns(shape, 1, 100)),
        pipeline=draw(columns(shape, 0, 3)),
        checksum=draw(checksums(shape)),
        inline=held,
    )


@st.composite
def grids_along_an_axis(draw: st.DrawFn, count: int) -> tuple[list[ChunkManifest], int]:
    """Manifests that differ in length along one axis, and that axis."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=3))
    axis = draw(st.integers(0, len(shape) - 1))
    lengths = [draw(st.integers(1, 3)) for _ in range(count)]
    grids = [(*shape[:axis], n, *shape[axis + 1 :]) for n in lengths]
    return [draw(manifests(grid)) for grid in grids], axis


# ---------------------------------------------------------------------- taking


def ids(size: int) -> st.SearchStrategy[Any]:
    return hnp.arrays(np.int64, st.integers(0, 6), elements=st.integers(-1, size - 1))


@given(grids_along_an_axis(1), st.data())
def test_taking_is_indexing_the_rows(drawn: Any, data: st.DataObject) -> None:
    [manifest], axis = drawn
    chosen = data.draw(ids(manifest.shape[axis]))
    expected = rows(manifest).take(chosen, axis)
    for where in np.ndindex(expected.shape):
        if chosen[where[axis]] == -1:
            expected[where] = ("missing", expected[where][-1])
    assert (rows(manifest.take(axis, chosen)) == expected).all()


@given(grids_along_an_axis(1), st.data())
def test_taking_twice_is_taking_once(drawn: Any, data: st.DataObject) -> None:
    [manifest], axis = drawn
    a = data.draw(ids(manifest.shape[axis]).filter(len))
    b = data.draw(ids(a.size))
    twice = manifest.take(axis, a).take(axis, b)
    once = manifest.take(axis, np.where(b == -1, -1, a[b]))
    real = twice.file != MISSING
    assert (real == (once.file != MISSING)).all()
    assert (rows(twice)[real] == rows(once)[real]).all()


@given(grids_along_an_axis(1), st.data())
def test_taking_a_slice_is_slicing_the_rows(drawn: Any, data: st.DataObject) -> None:
    [manifest], axis = drawn
    start = data.draw(st.integers(0, manifest.shape[axis]))
    key = slice(start, data.draw(st.integers(start, manifest.shape[axis])))
    where = (slice(None),) * axis + (key,)
    assert (rows(manifest.take(axis, key)) == rows(manifest)[where]).all()


@given(manifests(), st.data())
def test_transposing_permutes_the_rows(manifest: ChunkManifest, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(manifest.shape))))
    assert (rows(manifest.transpose(order)) == rows(manifest).transpose(order)).all()


@given(manifests())
def test_axes_of_one_chunk_come_and_go(manifest: ChunkManifest) -> None:
    there = manifest.reshape((1, *manifest.shape, 1))
    assert there.reshape(manifest.shape).has_same_references(manifest)
    assert (rows(there).reshape(manifest.shape) == rows(manifest)).all()


# ---------------------------------------------------------------------- joining


@given(grids_along_an_axis(3))
def test_concatenating_lays_the_rows_end_to_end(drawn: Any) -> None:
    parts, axis = drawn
    joined = ChunkManifest.concatenate(parts, axis)
    assert (rows(joined) == np.concatenate([rows(m) for m in parts], axis)).all()
    assert {name: getattr(joined, name).dtype for name in COLUMNS} == COLUMNS


@given(grids_along_an_axis(3))
def test_concatenating_is_associative(drawn: Any) -> None:
    (a, b, c), axis = drawn
    join = ChunkManifest.concatenate
    left = join([join([a, b], axis), c], axis)
    right = join([a, join([b, c], axis)], axis)
    assert left.has_same_references(join([a, b, c], axis))
    assert (rows(left) == rows(right)).all()


def test_files_that_several_parts_share_stand_once_in_the_table() -> None:
    part = ChunkManifest.build((2,), files=FILES[:2], file=[0, 1], offset=[1, 2], length=3)
    other = ChunkManifest.build((2,), files=FILES[1:3], file=[0, 1], offset=[1, 2], length=3)
    joined = ChunkManifest.concatenate([part, other, part], 0)
    assert joined.files == tuple(FILES[:3])
    assert joined.file.tolist() == [0, 1, 1, 2, 0, 1]


def test_variables_of_the_same_files_share_their_table() -> None:
    files = [SourceFile(f"s3://bucket/{number}.nc") for number in range(20)]

    def variable(offset: int) -> ChunkManifest:
        parts = [ChunkManifest.build((1,), files=[f], offset=offset, length=8) for f in files]
        halves = parts[:10], parts[10:]
        return ChunkManifest.concatenate([ChunkManifest.concatenate(h, 0) for h in halves], 0)

    first, second = variable(0), variable(100)
    assert first.files is second.files
    assert [first.files[number] for number in first.file] == files
    assert second.offset.tolist() == [100] * 20


def test_tables_of_equal_length_but_other_files_are_not_taken_for_each_other() -> None:
    def joined(*urls: str) -> ChunkManifest:
        parts = [ChunkManifest.build((1,), files=[SourceFile(u)], length=8) for u in urls]
        return ChunkManifest.concatenate(parts, 0)

    assert [f.url for f in joined("a:/1", "a:/2").files] == ["a:/1", "a:/2"]
    assert [f.url for f in joined("a:/1", "a:/3").files] == ["a:/1", "a:/3"]
    assert joined("a:/1", "a:/1").files == (SourceFile("a:/1"),)


def test_files_of_one_name_but_another_fingerprint_are_two() -> None:
    changed = FILES[0]._replace(mtime=8)
    parts = [ChunkManifest.build((1,), files=[f], length=3) for f in (FILES[0], changed)]
    assert ChunkManifest.concatenate(parts, 0).files == (FILES[0], changed)


def test_inline_chunks_keep_their_bytes() -> None:
    parts = [
        ChunkManifest.build((1,), file=INLINE, length=3, inline=[name]) for name in (b"abc", b"xyz")
    ]
    joined = rows(ChunkManifest.concatenate(parts, 0)).tolist()
    assert joined == [(b"abc", 0, 0), (b"xyz", 0, 0)]


def test_the_chunk_of_a_scalar_is_chosen_by_its_number() -> None:
    manifest = ChunkManifest.build((), files=FILES[:1], offset=1, length=3)
    assert rows(manifest.at(np.array([0, 0]))).tolist() == [rows(manifest)[()]] * 2


@pytest.mark.parametrize("piece", [1, 4, 2**18])
def test_files_stand_in_the_order_in_which_they_come(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a table that is looked through in pieces."""
    monkeypatch.setattr(manifest_columns, "PIECE_SIZE", piece)
    file = [[2, 2], [3, 2], [0, 3], [0, 0], [1, 2]]
    manifest = ChunkManifest.build((5, 2), files=FILES, file=file, length=3)
    turned = manifest.with_files_in_order(0)
    assert turned.files == (FILES[2], FILES[3], FILES[0], FILES[1])
    assert (rows(turned) == rows(manifest)).all()


# ---------------------------------------------------------------------- doing no more than needed


def test_operations_that_change_nothing_return_the_manifest_itself() -> None:
    manifest = ChunkManifest.build(
        (2,), files=FILES[:2], file=[0, 1], offset=[1, 2], length=3, pipeline=[0, 1]
    )
    assert manifest.prune() is manifest
    assert manifest.with_pipelines([0, 1]) is manifest
    assert ChunkManifest.concatenate([manifest], 0) is manifest


def test_equal_constant_columns_of_many_files_are_one_object() -> None:
    one, other = (ChunkManifest.build((2, 3), files=[f], length=4) for f in FILES[:2])
    assert all(getattr(one, name) is getattr(other, name) for name in COLUMNS)


def test_a_manifest_is_not_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = ChunkManifest.build((2,), files=FILES, offset=[1, 2], length=3)
    monkeypatch.delattr(np, "array_equal")
    assert manifest.has_same_references(manifest)


def test_few_chunks_of_one_file_are_checked_by_their_least_and_greatest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An archive is mostly files of a few chunks each, and numpy's calls are what a scan costs."""
    # what checksums are checked by
    monkeypatch.delattr(manifest_columns, "find_valid_checksums")
    manifest = ChunkManifest.build((2,), files=FILES[:1], offset=[1, 2], length=3)
    monkeypatch.delattr(ChunkManifest, "build")
    assert ChunkManifest.in_file((2,), FILES[0], [4, 4], [5, 5]).offset.strides == (0,)
    assert manifest.offset.tolist() == [1, 2]


def test_layers_that_are_equal_are_held_once() -> None:
    """However many chunks they have."""
    part = ChunkManifest.build((1, 5000), files=FILES[:1], offset=[np.arange(5000)], length=1)
    assert ChunkManifest.concatenate([part] * 3, 0).nbytes == part.nbytes


# ---------------------------------------------------------------------- size


def test_a_constant_column_costs_nothing() -> None:
    manifest = ChunkManifest.build((1000, 100), files=FILES, file=0, offset=5, length=20)
    assert manifest.nbytes < 32
    assert manifest.take(0, np.arange(500)).nbytes < 32
    assert ChunkManifest.missing((10**6, 10**6)).nbytes < 32
    assert all(column.strides == (0, 0) for column in (manifest.offset, manifest.length))


def test_a_column_given_in_full_but_constant_costs_nothing() -> None:
    full = ChunkManifest.build((50, 2), files=FILES, offset=np.full((50, 2), 5), length=20)
    assert full.nbytes < 32


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4, 4)])
def test_many_files_of_one_size_take_at_most_twenty_bytes_per_chunk(
    shape: tuple[int, ...],
) -> None:
    parts = [
        ChunkManifest.build(
            shape,
            files=[SourceFile(f"file:///data/{year}.nc", size=10**6)],
            offset=4096 + 500 * np.arange(np.prod(shape)).reshape(shape),
            length=400 + np.arange(np.prod(shape)).reshape(shape),
        )
        for year in range(500)
    ]
    joined = ChunkManifest.concatenate(parts, 0)
    assert joined.nbytes <= 20 * joined.size
    assert joined.pipeline.strides == (0, 0, 0)
    assert joined.file.strides[1:] == (0, 0)


def test_files_with_one_chunk_at_one_place_cost_four_bytes_each() -> None:
    parts = [
        ChunkManifest.build((1, 1), files=[SourceFile(f"file:///{n}")], offset=6, length=400)
        for n in range(300)
    ]
    joined = ChunkManifest.concatenate(parts, 0)
    assert joined.nbytes <= 4 * 300 + 32


def test_checksums_cost_eight_bytes_where_they_are_and_nothing_elsewhere() -> None:
    checksums = CHECKSUM_FLAG + np.arange(500)
    with_them = ChunkManifest.build((500,), files=FILES, length=4, checksum=checksums)
    without = ChunkManifest.build((500,), files=FILES, length=4)
    assert with_them.nbytes - without.nbytes == 8 * 499
    assert without.checksum.strides == (0,)
    joined = ChunkManifest.concatenate([without, without.take(0, np.arange(9))], 0)
    assert joined.checksum.strides == (0,)
    both = ChunkManifest.concatenate([with_them, without], 0)
    assert both.checksum.dtype == np.uint64
    assert both.checksum.tolist() == [*range(CHECKSUM_FLAG, CHECKSUM_FLAG + 500), *[0] * 500]


@given(manifests())
def test_a_pickle_gives_the_manifest_back(manifest: ChunkManifest) -> None:
    again = pickle.loads(pickle.dumps(manifest))
    assert again.has_same_references(manifest)
    assert again.nbytes == manifest.nbytes
    assert {name: getattr(again, name).dtype for name in COLUMNS} == COLUMNS


def test_a_pickle_is_small() -> None:
    constant = ChunkManifest.build((10**4, 10**4), files=FILES[:1], offset=5, length=20)
    assert len(pickle.dumps(constant)) < 1500
    rising = ChunkManifest.build(
        (1000,), files=[SourceFile("file:///x")], offset=np.arange(1000), length=200
    )
    assert len(pickle.dumps(rising)) < 2 * 1000 + 1500


# ---------------------------------------------------------------------- refusing


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": 0},
        {"length": -5},
        {"offset": -1},
        {"offset": SIZE},
        {"offset": SIZE - 3, "length": 4},
        {"offset": 2**63 - 2, "length": 4},
    ],
    ids=str,
)
def test_a_reference_that_cannot_be_right_is_refused_by_name(wrong: dict[str, int]) -> None:
    good = {"offset": 10, "length": 4, "file": 1}
    table = {name: np.full((2, 3), value) for name, value in good.items()}
    for name, value in wrong.items():
        table[name][1, 2] = value
    with pytest.raises(FormatError, match=r"chunk \(1, 2\).*s3://bucket/b\.nc"):
        ChunkManifest.build((2, 3), files=FILES, **table)


def test_the_last_byte_of_a_file_may_be_referred_to() -> None:
    assert ChunkManifest.build((1,), files=FILES, offset=SIZE - 4, length=4).size == 1


def test_a_file_of_unknown_size_is_believed() -> None:
    unknown = [SourceFile("s3://bucket/a.nc")]
    assert ChunkManifest.build((1,), files=unknown, offset=2**40, length=2**31).size == 1


@pytest.mark.parametrize("number", [4, -3])
def test_a_file_that_is_not_in_the_table_is_refused(number: int) -> None:
    with pytest.raises(FormatError, match=str(number)):
        ChunkManifest.build((2,), files=FILES, file=[0, number], length=4)


def test_a_file_number_without_any_file_is_refused() -> None:
    with pytest.raises(FormatError):
        ChunkManifest.build((2,), length=4)


@pytest.mark.parametrize("number", [2, -1])
def test_an_inline_chunk_that_is_not_held_is_refused(number: int) -> None:
    with pytest.raises(FormatError, match="inline"):
        ChunkManifest.build((2,), file=INLINE, offset=[0, number], length=1, inline=[b"a", b"b"])


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_does_not_fit_the_grid_is_refused(name: str) -> None:
    table: dict[str, Any] = {"file": 0, "offset": 0, "length": 4, "pipeline": 0}
    for wrong in (np.full(3, 1), np.arange(1, 4)):
        with pytest.raises(ValueError):
            ChunkManifest.build((2,), files=FILES, **table | {name: wrong})


@pytest.mark.parametrize(
    ("name", "value"),
    [("pipeline", 70_000), ("offset", 1.5), ("file", 2**32), ("length", 2**63), ("checksum", -1)],
)
def test_a_number_that_a_column_cannot_hold_is_refused(name: str, value: Any) -> None:
    table: dict[str, Any] = {"file": 0, "offset": 0, "length": 4, "pipeline": 0}
    with pytest.raises((ValueError, OverflowError)):
        ChunkManifest.build((2,), files=FILES, **table | {name: [0, value]})


@pytest.mark.parametrize("number", [1, CHECKSUM_FLAG - 1, 2 * CHECKSUM_FLAG, 2**62])
def test_a_number_that_is_no_checksum_is_refused(number: int) -> None:
    with pytest.raises(FormatError, match=rf"chunk \(1,\): {number} is not a checksum"):
        ChunkManifest.build((2,), files=FILES, length=4, checksum=[0, number])


def test_columns_of_different_shapes_are_no_manifest() -> None:
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="one shape"):
        ChunkManifest((), one, two, one, one, one)


def test_an_empty_grid_refers_to_nothing() -> None:
    manifest = ChunkManifest.build((0, 3), files=FILES)
    assert (manifest.size, manifest.nbytes) == (0, 0)
    assert pickle.loads(pickle.dumps(manifest)).shape == (0, 3)


# ---------------------------------------------------------------------- the same


@given(manifests())
def test_a_manifest_is_the_same_as_its_copy_only(manifest: ChunkManifest) -> None:
    copy = ChunkManifest.concatenate([manifest], 0) if manifest.shape else manifest
    assert manifest.has_same_references(copy)
    moved = manifest.with_files(lambda f: f._replace(url=f.url + "x"))
    assert not manifest.has_same_references(moved)
    assert (rows(moved.with_files(lambda f: f._replace(url=f.url[:-1]))) == rows(manifest)).all()


def test_manifests_with_other_checksums_are_not_the_same() -> None:
    found = [
        ChunkManifest.build((2,), files=FILES, length=4, checksum=[0, checksum])
        for checksum in (0, CHECKSUM_FLAG, CHECKSUM_FLAG + 1)
    ]
    assert [a.has_same_references(b) for a in found for b in found] == [
        a is b for a in found for b in found
    ]


def test_pipelines_are_renumbered() -> None:
    manifest = ChunkManifest.build((3,), file=MISSING, pipeline=[0, 2, 1])
    assert manifest.with_pipelines([5, 6, 7]).pipeline.tolist() == [5, 7, 6]
    assert manifest.with_pipelines([0, 1, 2]) is manifest
    constant = ChunkManifest.missing((10**6,)).with_pipelines([3])
    assert (int(constant.pipeline[7]), constant.nbytes < 32) == (3, True)


def test_storage_options_count_but_do_not_show() -> None:
    options = StorageOptions(key="AKIA", secret="hush")
    file = FILES[0]._replace(options=options)
    assert "hush" not in f"{options} {options!r} {file} {file!r} {[file]!r}"
    assert "secret" in repr(options)
    assert file != FILES[0]._replace(options=StorageOptions(key="AKIA", secret="other"))
    assert len({file, FILES[0]._replace(options=StorageOptions(secret="hush", key="AKIA"))}) == 1
    assert pickle.loads(pickle.dumps(options)) == options


ROWS: dict[str, tuple[tuple[int, ...], list[int], list[int]]] = {
    "chunks of several lengths": ((2, 2), [100, 164, 300, 364], [64, 60, 64, 61]),
    "chunks of one length": ((3, 1), [100, 164, 228], [64, 64, 64]),
    "one chunk": ((1, 1), [100], [64]),
    "one chunk of no axes": ((), [100], [64]),
    "no chunks": ((0, 2), [], []),
    "up to the end": ((1,), [936], [64]),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_one_file_make_what_columns_make(name: str) -> None:
    shape, offsets, lengths = ROWS[name]
    file = SourceFile("file:///a.nc", size=1000)
    columns = (np.array(column, np.int64).reshape(shape) for column in (offsets, lengths))
    built = ChunkManifest.build(shape, files=[file], offset=next(columns), length=next(columns))
    found = ChunkManifest.in_file(shape, file, offsets, lengths)
    assert found.has_same_references(built)
    assert found.nbytes == built.nbytes


WRONG_ROWS: dict[str, tuple[list[int], list[int]]] = {
    "before the file": ([0, -1], [8, 8]),
    "past its end": ([0, 993], [8, 8]),
    "of no length": ([0, 8], [8, 0]),
    "of negative length": ([0, 8], [8, -8]),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_rows_that_cannot_be_right_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match=r"chunk \(1,\): bytes"):
        ChunkManifest.in_file((2,), SourceFile("file:///a.nc", size=1000), *WRONG_ROWS[name])


def test_names_of_other_libraries_say_what_to_call_instead() -> None:
    manifest: Any = ChunkManifest.missing((2,))
    with pytest.raises(AttributeError, match="ChunkManifest has no 'get_entry': lookup"):
        manifest.get_entry()
