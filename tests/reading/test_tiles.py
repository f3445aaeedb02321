"""Tiny chunks are placed by the tile, and nobody can tell."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_arrays import PLAIN, SHUFFLED, ZLIB, exactly, path_of, slices, virtual

from virtualds import ManifestArray, ReadError, set_options
from virtualds.codecs.cf import Packing
from virtualds.reading.plan import plan_selection
from virtualds.reading.tasks import Batch, Tile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiles")


def work(array: ManifestArray, key: Any = None) -> list[Batch | Tile]:
    return list(plan_selection(array, key or (slice(None),) * array.ndim).batches)


CODECS = {"plain": PLAIN, "zlib": ZLIB, "shuffled": SHUFFLED}


@given(data=st.data())
def test_any_box_of_tiny_chunks_is_numpys(folder: Path, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.integers(8, 30)) for _ in range(data.draw(st.integers(1, 3))))
    chunks = tuple(data.draw(st.integers(1, 3)) for _ in shape)
    values = np.random.default_rng(0).integers(-99, 99, shape).astype(">i4")
    some = st.lists(st.integers(0, 40), max_size=3)
    array = virtual(
        values,
        folder,
        chunks=chunks,
        codecs=CODECS[data.draw(st.sampled_from(sorted(CODECS)))],
        inline=data.draw(some),
        reverse_layout=data.draw(st.booleans()),
        checksums=data.draw(st.booleans()),
    )
    exactly(array.read(), values)
    key = tuple(data.draw(slices(n)) for n in shape)
    exactly(array.read(key), values[key])
    order = data.draw(st.permutations(range(len(shape))))
    exactly(np.transpose(array, order).read(), values.transpose(order))


@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
def test_equal_chunks_are_few_tiles(folder: Path, codecs: Any) -> None:
    values = np.arange(40 * 50 * 60.0).reshape(40, 50, 60)
    array = virtual(values, folder, chunks=(1, 10, 10), codecs=codecs)
    found = work(array)
    assert all(isinstance(one, Tile) for one in found)
    assert len(found) <= 10
    assert sum(len(one.ranges) for one in found) == 40 * 5 * 6
    exactly(array.read(), values)


def test_chunks_at_the_edge_of_the_grid_are_read_one_by_one(folder: Path) -> None:
    values = np.arange(45 * 47).reshape(45, 47)
    array = virtual(values, folder, chunks=(4, 4), codecs=ZLIB)
    found = work(array)
    tiles = [one for one in found if isinstance(one, Tile)]
    assert sum(len(tile.ranges) for tile in tiles) == 11 * 11
    assert sum(len(one.ranges) for one in found) == 12 * 12
    exactly(array.read(), values)
    exactly(array.read((slice(3, 40), slice(2, 45))), values[3:40, 2:45])


def test_the_last_tile_may_be_a_single_chunk(folder: Path) -> None:
    values = np.arange(33 * 8192, dtype="f4").reshape(33, 8192)
    array = virtual(values, folder, chunks=(1, 8192))
    last = work(array)[-1]
    assert isinstance(last, Tile) and len(last.ranges) == 1
    exactly(array.read(), values)


def test_months_of_tiny_chunks_are_tiles_each(folder: Path) -> None:
    """An axis of several lengths is cut where the length changes."""
    months = [np.full((n, 40, 40), n, "f4") for n in (31, 28, 31, 30)]
    parts = [virtual(m, folder, chunks=(m.shape[0], 4, 4), codecs=SHUFFLED) for m in months]
    array = np.concatenate(parts)
    found = work(array)
    assert all(isinstance(one, Tile) for one in found)
    assert len(found) <= 16
    exactly(array.read(), np.concatenate(months))


def test_files_within_a_tile_are_told_apart(folder: Path) -> None:
    """Each row of chunks lies in a file of its own, and so does each column."""
    values = np.arange(20 * 30.0).reshape(20, 30)
    rows = [virtual(values[i : i + 1], folder, chunks=(1, 2)) for i in range(20)]
    exactly(np.concatenate(rows).read(), values)
    columns = [virtual(values[:, i : i + 1], folder, chunks=(1, 1)) for i in range(30)]
    exactly(np.concatenate(columns, axis=1).read(), values)


def test_chunks_of_several_pipelines_and_none_lie_side_by_side(folder: Path) -> None:
    values = np.random.default_rng(2).normal(size=(6, 40, 40)).astype("f4")
    parts = [
        virtual(values[i : i + 1], folder, chunks=(1, 4, 4), codecs=codecs, missing=[7 * i])
        for i, codecs in enumerate((ZLIB, SHUFFLED, PLAIN) * 2)
    ]
    for i in range(6):
        row, column = divmod(7 * i, 10)
        values[i, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 0
    exactly(np.concatenate(parts).read(), values)


def test_packed_numbers_are_unpacked_by_the_tile(folder: Path) -> None:
    values = np.arange(-800, 800, dtype="i2").reshape(40, 40)
    packing = Packing(np.dtype("f4"), None, (np.int16(-5),), np.float32(0.5), np.float32(3))
    array = virtual(values, folder, chunks=(4, 4), codecs=SHUFFLED)
    [pipeline] = array.pipelines
    unpacked = replace(pipeline, packing=packing)
    array = ManifestArray(array.shape, packing.dtype, np.nan, (unpacked,), array.fragments)
    expected = values.astype("f4") * np.float32(0.5) + np.float32(3)
    expected[values == -5] = np.nan
    assert any(isinstance(one, Tile) for one in work(array))
    exactly(array.read(), expected)


@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
def test_a_damaged_chunk_of_a_tile_is_named(folder: Path, codecs: Any) -> None:
    values = np.random.default_rng(3).normal(size=(40, 40))
    array = virtual(values, folder, chunks=(4, 4), codecs=codecs, checksums=codecs == PLAIN)
    path, where = path_of(array), (3, 4)
    offset = int(array.manifest.offset[where])
    content = bytearray(path.read_bytes())
    content[offset + 5 : offset + 15] = b"\xff" * 10
    path.write_bytes(content)
    with (
        set_options(check_sources=False),
        pytest.raises(ReadError, match=f"bytes {offset} to") as caught,
    ):
        array.read()
    assert "chunk (3, 4)" in "".join(caught.value.__notes__)


def test_the_first_chunk_that_a_short_file_lacks_is_named(folder: Path) -> None:
    """Though it is asked for together with its neighbours."""
    values = np.arange(40 * 40.0).reshape(40, 40)
    array = virtual(values, folder, chunks=(4, 4))
    path = path_of(array)
    offset = int(array.manifest.offset[7, 2])
    path.write_bytes(path.read_bytes()[: offset + 3])
    with set_options(check_sources=False), pytest.raises(ReadError, match=f"bytes {offset} to"):
        array.read()
