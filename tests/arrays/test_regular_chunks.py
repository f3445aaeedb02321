"""Cutting uncompressed chunks changes no value, and gives a regular grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from virtualds import ManifestArray
from virtualds.arrays.concatenate import concatenate
from virtualds.arrays.subchunks import to_regular_chunks
from virtualds.chunks.fragment import find_regular_chunks

SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(1, 5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chunks")


def write(folder: Path, number: int, shape: Sequence[int], chunk: Sequence[int]) -> ManifestArray:
    """Write an array whose chunks lie one after the other, behind a head of 16 bytes."""
    grid = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
    count = int(np.prod(grid)) * int(np.prod(chunk))
    path = folder / f"{number}-{'x'.join(map(str, (*shape, *chunk)))}.bin"
    if not path.exists():
        values = np.random.default_rng(number).integers(0, 2**31, count, "i4")
        path.write_bytes(bytes(16) + values.tobytes())
    nbytes = int(np.prod(chunk)) * 4
    offsets = 16 + nbytes * np.arange(np.prod(grid)).reshape(grid)
    return ManifestArray.from_arrays(
        shape=shape, chunks=chunk, dtype="i4", path=str(path), offsets=offsets, lengths=nbytes
    )


@st.composite
def arrays(draw: st.DrawFn, folder: Path) -> ManifestArray:
    """Files of several lengths in a row, cropped, indexed and permuted."""
    _, y, x = draw(SHAPES)
    parts = []
    for number in range(draw(st.integers(1, 3))):
        shape = (draw(st.integers(1, 7)), y, x)
        chunk = shape if draw(st.booleans()) else tuple(draw(st.integers(1, n)) for n in shape)
        parts.append(write(folder, number, shape, chunk))
    array = concatenate(parts, 0)
    for axis, size in enumerate(array.shape):
        if draw(st.booleans()):
            start = draw(st.integers(0, size - 1))
            array = array.crop(axis, start, draw(st.integers(start + 1, size)))
    if draw(st.booleans()):
        array = array.transpose(draw(st.permutations(range(3))))
    if draw(st.booleans()):
        axis = draw(st.integers(0, 2))
        start = draw(st.integers(0, array.shape[axis] - 1))
        array = array.crop(axis, start, start + 1).drop_axis(axis)
    return array


@given(st.data())
@settings(max_examples=times(66), suppress_health_check=list(HealthCheck))
def test_values_are_those_of_the_whole_chunks(folder: Path, data: Any) -> None:
    array = data.draw(arrays(folder))
    for permuted in (False, True):
        found = to_regular_chunks(array, permuted=permuted)
        np.testing.assert_array_equal(found.read(), array.read())
        assert found.shape == array.shape


@given(st.data())
@settings(max_examples=times(33), suppress_health_check=list(HealthCheck))
def test_one_file_after_the_other_is_always_a_regular_grid(folder: Path, data: Any) -> None:
    lengths = data.draw(st.lists(st.integers(1, 31), min_size=1, max_size=4))
    parts = [write(folder, n, (days, 2, 3), (days, 2, 3)) for n, days in enumerate(lengths)]
    array = concatenate(parts, 0)
    start = data.draw(st.integers(0, array.shape[0] - 1))
    found = to_regular_chunks(array.crop(0, start, array.shape[0]))
    assert find_regular_chunks(found.shape, found.fragments) is not None
    edges = [n - start for n in np.cumsum([0, *lengths]) if n > start]
    assert found.fragments[0].axes[0].chunk == np.gcd.reduce(edges)


def test_chunks_with_codecs_stay_as_they_are(folder: Path) -> None:
    whole = write(folder, 0, (7, 2, 3), (3, 2, 3))
    coded = ManifestArray.from_arrays(
        shape=(7, 2, 3), chunks=(3, 2, 3), dtype="i4", path=str(folder / "a.bin"),
        offsets=whole.manifest.offset, lengths=72, codecs=[{"id": "zlib", "level": 1}],
    ).crop(0, 1, 7)  # fmt: skip
    assert to_regular_chunks(coded) is coded


def test_a_chunk_of_another_length_than_its_elements_is_not_cut(folder: Path) -> None:
    array = ManifestArray.from_arrays(
        shape=(6, 2), chunks=(3, 2), dtype="i4", path=str(folder / "a.bin"),
        offsets=[[0], [24]], lengths=[[24], [20]],
    ).crop(0, 1, 6)  # fmt: skip
    assert to_regular_chunks(array) is array


def test_pieces_have_no_checksum(folder: Path) -> None:
    array = ManifestArray.from_arrays(
        shape=(6, 2), chunks=(3, 2), dtype="i4", path=str(folder / "a.bin"),
        offsets=[[0], [24]], lengths=24, checksums=[[7], [8]],
    )  # fmt: skip
    assert to_regular_chunks(array).manifest.checksum.all()
    assert not to_regular_chunks(array.crop(0, 1, 6)).manifest.checksum.any()
