"""A sparse manifest is a manifest: what can be done with columns gives the same, in few bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from dask.base import tokenize
from products import looped

from virtualds import ChunkManifest, SourceFile, UnsupportedError
from virtualds.chunks.columns import COLUMNS, MISSING, Ints
from virtualds.chunks.manifest import (
    BLOCK_CHUNKS,
    MIN_SPARSE_GRID,
    gather_references,
    iterate_references,
)
from virtualds.chunks.tables import (
    SparseReferences,
    TiledReferences,
    build_sparse,
    join_manifests,
    overlay,
    split_layers,
)

SHAPE = (4, 5, 3)
HUGE = (1000, 1000, 1000)
FILES = [SourceFile("file:///a"), SourceFile("file:///b")]


def rows(count: int, pipeline: int = 0) -> ChunkManifest:
    each = np.arange(count)
    return ChunkManifest.build(
        (count,), files=FILES, file=each % 2, offset=each * 10, length=each + 1, pipeline=pipeline
    )


def sparse(
    numbers: list[int], shape: tuple[int, ...] = SHAPE, missing_pipeline: int = 0
) -> ChunkManifest:
    placed = SparseReferences(
        np.array(numbers, np.int64), rows(len(numbers), missing_pipeline), missing_pipeline
    )
    return ChunkManifest.from_table(placed, shape)


def columns_of(manifest: ChunkManifest) -> dict[str, Ints]:
    """The columns, with files by name and nothing about missing chunks but their pipeline."""
    loaded = manifest.loaded()
    urls = np.array([file.url for file in loaded.files] + ["missing"])
    there = loaded.file != MISSING
    found = {n: np.where(there, getattr(loaded, n), 0) for n in COLUMNS if n != "pipeline"}
    return found | {"file": urls[loaded.file], "pipeline": np.asarray(loaded.pipeline)}


def assert_same(one: ChunkManifest, other: ChunkManifest) -> None:
    a, b = columns_of(one), columns_of(other)
    for name in COLUMNS:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


CHANGES: dict[str, Callable[[ChunkManifest], ChunkManifest]] = {
    "nothing": lambda m: m,
    "a crop": lambda m: m.take(0, slice(1, 3)).take(2, slice(0, 2)),
    "a step": lambda m: m.take(1, slice(0, 5, 2)),
    "backwards": lambda m: m.take(1, slice(4, None, -1)),
    "chosen": lambda m: m.take(1, np.array([0, 2, 2, 4])),
    "chosen and missing": lambda m: m.take(0, np.array([-1, 3])),
    "transposed": lambda m: m.transpose((2, 0, 1)),
    "an axis more": lambda m: m.take(1, slice(2, 3)).reshape((4, 3)),
    "repeated": lambda m: m.take(1, slice(2, 3)).broadcast_to((4, 2, 3)),
    "nothing left": lambda m: m.take(0, slice(0, 0)),
    "pruned": lambda m: m.take(0, slice(2, 4)).prune(),
    "renumbered": lambda m: m.with_pipelines([3, 1]),
    "moved": lambda m: m.with_files(lambda file: file._replace(url=file.url + "c")),
    "within another": lambda m: m.relocate([(SourceFile("file:///all"), 7)] * len(m.files)),
    "pickled": lambda m: pickle.loads(pickle.dumps(m)),
}


@looped("change", CHANGES)
@looped("numbers", [[0, 7, 13, 14, 33, 59], list(range(60)), []])
def test_it_gives_what_columns_give(change: str, numbers: list[int]) -> None:
    one = sparse(numbers)
    assert_same(CHANGES[change](one), CHANGES[change](one.loaded()))
    found = CHANGES[change](one)
    dense = CHANGES[change](one.loaded())
    known = found.find_existing()
    there = np.flatnonzero(dense.file.ravel() != MISSING)
    if known is not None:
        np.testing.assert_array_equal(known, there)
    ids, gathered = gather_references(found)
    np.testing.assert_array_equal(ids, there)
    assert_same(gathered, dense.at(there))


def test_it_says_when_it_is_the_same() -> None:
    one = sparse([1, 5])
    assert one.has_same_references(sparse([1, 5])) and not one.has_same_references(sparse([1, 6]))
    assert one.has_same_references(one.loaded()) and one.loaded().has_same_references(one)
    assert not one.has_same_references(
        sparse([1, 5], missing_pipeline=1)
    ) and not one.has_same_references(sparse([1, 5], (5, 4, 3)))
    assert tokenize(one) == tokenize(sparse([1, 5])) != tokenize(sparse([1, 6]))
    missing = [ChunkManifest.missing(HUGE) for _ in range(2)]
    assert missing[0].has_same_references(missing[1])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_huge_grids_are_joined_by_their_references(axis: int) -> None:
    parts = [
        sparse([0, 10**8 + 3, 10**9 - 1], HUGE),
        ChunkManifest.missing(HUGE),
        sparse([17], HUGE),
    ]
    joined = join_manifests(parts, axis)
    assert not joined.is_loaded and joined.nbytes < 1000
    assert joined.size == 3 * 10**9
    assert joined.find_existing().size == 4
    for number, part in enumerate(parts):
        cut = joined.take(axis, slice(1000 * number, 1000 * number + 1000))
        ids, found = gather_references(cut)
        wanted, expected = gather_references(part)
        np.testing.assert_array_equal(ids, wanted)
        assert_same(found, expected)


def test_a_few_chunks_of_a_huge_grid_are_looked_up() -> None:
    one = sparse([10**8 + 3], HUGE)
    assert one.lookup((100, 0, 3)).length == 1 and one.lookup((100, 0, 2)).file == MISSING
    crop = one.take(0, slice(99, 102)).take(1, slice(0, 2)).take(2, slice(0, 5))
    assert np.count_nonzero(crop.file != MISSING) == 1


def test_few_references_are_held_by_position_and_many_as_columns() -> None:
    assert not build_sparse(np.array([3]), rows(1), (MIN_SPARSE_GRID + 1,)).is_loaded
    assert build_sparse(np.array([3]), rows(1), (MIN_SPARSE_GRID,)).is_loaded
    many = np.arange(MIN_SPARSE_GRID)
    assert build_sparse(many, rows(MIN_SPARSE_GRID), (MIN_SPARSE_GRID + 1,)).is_loaded
    nothing = build_sparse(many[:0], rows(0), HUGE, 2)
    assert nothing.is_loaded and nothing.nbytes < 100 and nothing.lookup((0, 0, 0)).pipeline == 2


# ---------------------------------------------------------------------- layers


def test_the_uppermost_reference_counts() -> None:
    base, other = sparse([0, 7, 33]), sparse([0, 1], (2, 2, 2)).with_files(
        lambda file: file._replace(url="file:///upper")
    )  # fmt: skip
    laid = overlay(base, (2, 1, 0), other)
    expected = base.loaded()
    urls = columns_of(expected)["file"].astype(object)
    urls[2, 1, 0] = urls[2, 1, 1] = "file:///upper"
    np.testing.assert_array_equal(columns_of(laid)["file"], urls)
    assert [origin for origin, _ in split_layers(laid)] == [(0, 0, 0), (2, 1, 0)]
    again = overlay(laid, (0, 0, 0), sparse([59]))
    assert len(split_layers(again)) == 3
    np.testing.assert_array_equal(again.find_existing(), [0, 7, 33, 34, 59])


def test_layers_are_cut_with_what_they_make_up() -> None:
    laid = overlay(sparse([0, 7, 33]), (2, 1, 0), sparse([0, 1], (2, 2, 2)))
    for begin, stop in ((0, 2), (1, 4), (2, 3)):
        cut = laid.take(0, slice(begin, stop))
        whole = ChunkManifest.from_table(TiledReferences(cut.shape, split_layers(cut)), cut.shape)
        assert_same(whole, cut)
        renumbered = split_layers(cut.with_pipelines([4]))
        assert all((part.pipeline == 4).all() for _, part in renumbered)
    assert split_layers(ChunkManifest.missing(SHAPE)) == ()


def test_references_are_listed_block_by_block() -> None:
    for manifest in (sparse([0, 7, 13, 33]), sparse([0, 7, 13, 33]).loaded()):
        found = list(iterate_references(manifest, block_size=3))
        np.testing.assert_array_equal(np.concatenate([ids for ids, _ in found]), [0, 7, 13, 33])
        assert len(found) > 1


def test_columns_of_a_grid_that_is_almost_empty_are_refused_before_they_take_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for place in ("chunks.manifest", "bounds"):
        monkeypatch.setattr(f"virtualds.{place}.MAX_CHUNKS", 50)
    assert sparse([5, 7], (5, 10)).loaded().size == 50
    with pytest.raises(UnsupportedError, match="almost empty"):
        sparse([5, 7], (1000, 1000)).loaded()


def test_a_manifest_without_references_gathers_none() -> None:
    ids, found = gather_references(ChunkManifest.missing((3,)))
    assert (ids.shape, found.shape) == ((0,), (0,))


def test_references_are_gathered_from_all_blocks() -> None:
    count = BLOCK_CHUNKS + 5
    ids, found = gather_references(rows(count))
    assert (ids.size, found.shape) == (count, (count,))


def test_gathered_references_have_the_files_that_they_use_and_no_others() -> None:
    """A block is a part of a table of maybe a million files."""
    count = BLOCK_CHUNKS + 5
    files = tuple(SourceFile(f"file:///{number}.nc") for number in range(9))
    numbers = np.arange(count) // BLOCK_CHUNKS + 3
    whole = ChunkManifest.build((count,), files=files, file=numbers, length=1)
    ids, found = gather_references(whole)
    assert ids.size == count
    assert found.files == files[3:5]
    assert np.bincount(found.file).tolist() == [BLOCK_CHUNKS, 5]


def test_the_pipelines_of_gaps_count_as_used() -> None:
    assert sparse([1, 4], missing_pipeline=1).used_pipelines(3).tolist() == [1]
    assert rows(2, 1).used_pipelines(3).tolist() == [1]
    apart = SparseReferences(np.array([1, 4]), rows(2, 2), 0)
    assert ChunkManifest.from_table(apart, SHAPE).used_pipelines(3).tolist() == [0, 2]


def test_what_exists_in_a_transposed_manifest_is_known_without_loading() -> None:
    found = sparse([1, 5], (2, 3)).transpose((1, 0)).find_existing()
    assert found is not None and sorted(found.tolist()) == [2, 5]
