"""Reading takes no more steps, memory and requests than a selection needs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory import peak
from virtual_arrays import PLAIN, ZLIB, exactly, virtual

from virtualds import ChunkAxis, ManifestArray, reading
from virtualds.chunks.axes import Slices
from virtualds.codecs.cf import Packing
from virtualds.reading import tasks
from virtualds.reading.plan import normalise_key, plan_selection
from virtualds.reading.tasks import group_equal_slabs
from virtualds.source_file import SourceFile
from virtualds.stores.local import LocalStore

ALL = (slice(None), slice(None))


def rows_of_64_kib(count: int, codecs: Any) -> ManifestArray:
    """An array of chunks one behind the other."""
    return ManifestArray.from_arrays(
        shape=(count, 2**16), chunks=(1, 2**16), dtype="u1", path="file:///a.bin",
        offsets=np.arange(count).reshape(-1, 1) * 2**16, lengths=2**16, codecs=codecs,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "codecs", "batches"),
    [(1024, PLAIN, 16), (1024, ZLIB, 64), (64, ZLIB, 8), (16, ZLIB, 4)],
    ids=["plain", "compressed", "few", "fewer"],
)
def test_batches_are_as_large_as_pays_and_give_every_core_some(
    count: int, codecs: Any, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "count_cores", lambda: 2)
    assert len(list(plan_selection(rows_of_64_kib(count, codecs), ALL).batches)) == batches


def test_a_million_chunks_are_planned_some_at_a_time() -> None:
    """And what is the same of all of them is no list."""
    array = ManifestArray.from_arrays(
        shape=(10**5, 10**5), chunks=(100, 100), dtype="f8", path="file:///a.bin",
        offsets=np.arange(10**6).reshape(1000, 1000) * 80_000, lengths=80_000, codecs=ZLIB,
    )  # fmt: skip
    assert peak(lambda: next(plan_selection(array, ALL).batches)) < 6 * 10**6


def test_rows_in_the_order_of_their_file_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    array = rows_of_64_kib(20, ZLIB)
    monkeypatch.delattr(np, "lexsort")
    monkeypatch.delattr(np, "unique")
    assert len([task for batch in plan_selection(array, ALL).batches for task in batch.tasks]) == 20


def test_positions_in_order_are_not_put_in_order() -> None:
    assert normalise_key(np.array([1, 2, 5]), 9, 0).step is None
    assert normalise_key([True, False, True], 3, 0).step is None
    assert normalise_key([5, 1], 9, 0).step is not None


def test_all_slices_of_a_projection_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ChunkAxis.regular(9, 4).project(slice(1, 9, 1))
    monkeypatch.delattr(Slices, "__getitem__")
    assert [*found.outer] == [slice(0, 3), slice(3, 7), slice(7, 8)]


def test_rows_of_one_file_after_the_other_are_left_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(40_000.0).reshape(200, 200)
    parts = [virtual(values, tmp_path, chunks=(50, 200), codecs=ZLIB) for _ in range(2)]
    joined = np.concatenate(parts)
    monkeypatch.delattr(tasks, "_reorder")
    exactly(joined.read(), np.concatenate([values, values]))


@pytest.mark.parametrize("codecs", [PLAIN, ZLIB], ids=["plain", "compressed"])
def test_a_chunk_that_is_all_of_the_result_is_decoded_there(
    codecs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(20_000.0).reshape(100, 200)
    array = virtual(values, tmp_path, chunks=(50, 200), codecs=codecs)
    monkeypatch.delattr(tasks, "write_stored")
    exactly(array.read(), values)


def test_an_array_of_one_chunk_is_not_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(40.0)
    array = virtual(values, tmp_path, codecs=ZLIB)
    monkeypatch.delattr(reading, "plan_selection")
    exactly(array.read(), values)


def test_of_near_files_no_more_is_in_memory_than_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = LocalStore.read_into, []

    def noted(self: LocalStore, file: SourceFile, ranges: Sequence[Any], into: Any) -> None:
        asked.append(sum(length for _, length in ranges))
        read(self, file, ranges, into)

    monkeypatch.setattr(LocalStore, "read_into", noted)
    monkeypatch.setattr(tasks, "count_cores", lambda: 1)
    values = np.arange(2.0**20).reshape(1024, 1024)
    array = virtual(values, tmp_path, chunks=(64, 1024), reverse_layout=True)
    exactly(array.read(), values)
    assert sum(asked) == values.nbytes
    assert max(asked) <= tasks.PLAIN_BATCH_BYTES < values.nbytes


def test_plain_chunks_of_a_tile_are_placed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those, too, that are verified one by one."""
    values = np.arange(10_000).reshape(100, 100)
    array = virtual(values, tmp_path, chunks=(10, 10), checksums=True)
    monkeypatch.delattr(reading, "write_tile")
    exactly(array.read(), values)


def test_packed_numbers_are_unpacked_into_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(20_000, dtype="i2").reshape(100, 200)
    stored = virtual(values, tmp_path, chunks=(50, 200), codecs=ZLIB)
    packing = Packing(np.dtype("f8"), scale_factor=0.5)
    pipelines = (replace(stored.pipelines[0], packing=packing),)
    array = replace(stored, dtype=packing.dtype, fill_value=0.0, pipelines=pipelines)
    monkeypatch.delattr(Packing, "decode")
    exactly(array.read(), values * 0.5)


def test_rows_of_a_tile_without_gaps_are_not_copied(tmp_path: Path) -> None:
    values = np.arange(10_000).reshape(100, 100)
    (tile,) = plan_selection(virtual(values, tmp_path, chunks=(10, 10)), ALL).batches
    teeth = [((int(tile.offset[0]), values.nbytes), 100)]
    data = memoryview(bytes(values.nbytes))
    assert np.shares_memory(tile.extract_rows([data], teeth), np.frombuffer(data, np.uint8))


def test_few_tiny_chunks_are_no_tiles(tmp_path: Path) -> None:
    array = virtual(np.arange(81).reshape(9, 9), tmp_path, chunks=(3, 3), codecs=ZLIB)
    (batch,) = plan_selection(array, ALL).batches
    assert isinstance(batch, tasks.Batch)


def test_large_chunks_are_got_as_they_lie_whether_taken_whole_or_not() -> None:
    array = ManifestArray.from_arrays(
        shape=(40, 2**16 + 10), chunks=(1, 2**16), dtype="u1", path="file:///a.bin",
        offsets=np.arange(80).reshape(40, 2) * 100, lengths=100, codecs=ZLIB,
    )  # fmt: skip
    (batch,) = plan_selection(array, ALL).batches
    assert len(batch.ranges) == 80


def test_a_small_plain_chunk_is_read_whole(tmp_path: Path) -> None:
    array = virtual(np.arange(500.0).reshape(50, 10), tmp_path)
    (batch,) = plan_selection(array, (3, slice(None))).batches
    assert [length for _, length in batch.ranges] == [4000]


def test_one_line_of_a_grid_tells_that_its_chunks_differ() -> None:
    array = ManifestArray.from_arrays(
        shape=(1000, 1000), chunks=(1, 1), dtype="u1", path="file:///a.bin",
        offsets=np.arange(10**6)[::-1].reshape(1000, 1000), lengths=1,
    )  # fmt: skip
    (fragment,) = array.fragments
    projections = [axis.project(slice(0, 1000, 1)) for axis in fragment.axes]
    assert peak(lambda: group_equal_slabs(fragment, projections, 0)) < 10**6


def test_small_chunks_are_not_looked_for_among_the_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(plan_selection.__globals__, "check_chunk")
    assert plan_selection(rows_of_64_kib(20, ZLIB), ALL).is_covered
