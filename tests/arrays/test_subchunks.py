"""Uncompressed chunks are cut into byte ranges that hold the same values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import times
from hypothesis import given, settings
from hypothesis import strategies as st
from products import looped

from virtualds import ManifestArray, UnsupportedError
from virtualds.arrays.concatenate import concatenate
from virtualds.arrays.subchunks import can_be_split, split_chunks
from virtualds.codecs.zlib import Zlib
from virtualds.source_file import SourceFile, compute_checksum

VALUES = np.arange(6 * 4 * 5, dtype="i2").reshape(6, 4, 5)


def in_file(path: Path, values: np.ndarray[Any, Any], chunks: tuple[int, ...]) -> ManifestArray:
    """An array of chunks in C order, those at the edges padded."""
    grid = tuple(-(-n // c) for n, c in zip(values.shape, chunks, strict=True))
    whole = np.full([n * c for n, c in zip(grid, chunks, strict=True)], -1, values.dtype)
    whole[tuple(map(slice, values.shape))] = values
    length = int(np.prod(chunks)) * values.dtype.itemsize
    offsets = np.zeros(grid, np.int64)
    with path.open("wb") as file:
        file.write(b"head")
        for place in np.ndindex(*grid):
            box = tuple(slice(i * c, i * c + c) for i, c in zip(place, chunks, strict=True))
            offsets[place] = file.tell()
            file.write(whole[box].tobytes())
    return ManifestArray.from_arrays(
        shape=values.shape, chunks=chunks, dtype=values.dtype, path=str(path),
        offsets=offsets, lengths=length,
    )  # fmt: skip


@looped(
    "chunks, lengths, grid",
    [
        ((6, 4, 5), {0: 1}, (6, 1, 1)),
        ((6, 4, 5), {0: 2}, (3, 1, 1)),
        ((6, 4, 5), {0: 4}, (2, 1, 1)),
        ((6, 4, 5), {0: 1, 1: 1}, (6, 4, 1)),
        ((6, 4, 5), {0: 1, 1: 3}, (6, 2, 1)),
        ((6, 4, 5), {0: 1, 1: 1, 2: 2}, (6, 4, 3)),
        ((3, 4, 5), {0: 1}, (6, 1, 1)),
        ((3, 2, 5), {0: 1, 1: 1}, (6, 4, 1)),
        ((1, 4, 5), {1: 2}, (6, 2, 1)),
        ((4, 4, 5), {0: 2}, (3, 1, 1)),
        ((4, 3, 5), {0: 1}, (6, 2, 1)),
        ((6, 4, 5), {0: 6}, (1, 1, 1)),
        ((6, 4, 5), {0: 100}, (1, 1, 1)),
    ],
)
def test_pieces_hold_the_values(
    chunks: tuple[int, ...], lengths: dict[int, int], grid: tuple[int, ...], tmp_path: Path
) -> None:
    cut = split_chunks(in_file(tmp_path / "a.bin", VALUES, chunks), lengths)
    assert cut.manifest.shape == grid
    np.testing.assert_array_equal(cut.read(), VALUES)
    for key in ((slice(1, 5), 2, slice(None)), (3, slice(None), slice(1, 3))):
        np.testing.assert_array_equal(cut[key].read(), VALUES[key])


def test_an_array_that_has_such_chunks_stays_itself(tmp_path: Path) -> None:
    array = in_file(tmp_path / "a.bin", VALUES, (2, 4, 5))
    assert split_chunks(array, {0: 2}) is array
    assert split_chunks(array, {0: 3}) is array


def test_months_become_one_regular_grid(tmp_path: Path) -> None:
    lengths = [31, 29, 31, 30]
    parts = [
        np.random.default_rng(n).integers(0, 99, (days, 2, 3)) for n, days in enumerate(lengths)
    ]
    arrays = [in_file(tmp_path / f"{n}.bin", one, one.shape) for n, one in enumerate(parts)]
    whole = concatenate(arrays, 0)
    assert whole.fragments[0].axes[0].chunk is None
    cut = split_chunks(whole, {0: 1})
    assert [f.axes[0].chunk for f in cut.fragments] == [1]
    np.testing.assert_array_equal(cut.read(), np.concatenate(parts))


def test_hidden_elements_along_the_cut_axis_are_left_out(tmp_path: Path) -> None:
    array = in_file(tmp_path / "a.bin", VALUES, (6, 4, 5))[1:6]
    cut = split_chunks(array, {0: 1})
    assert cut.fragments[0].axes[0].chunk == 1
    np.testing.assert_array_equal(cut.read(), VALUES[1:6])
    inner = in_file(tmp_path / "a.bin", VALUES, (6, 4, 5))[:, 1:3]
    np.testing.assert_array_equal(split_chunks(inner, {0: 2}).read(), VALUES[:, 1:3])


@settings(max_examples=times(20))
@given(
    order=st.permutations(range(3)),
    box=st.tuples(*(st.tuples(st.integers(0, n - 1), st.integers(1, n)) for n in VALUES.shape)),
    length=st.integers(1, 4),
)
def test_any_view_that_can_be_cut_keeps_its_values(
    order: list[int], box: tuple[tuple[int, int], ...], length: int, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "views.bin"
    view = tuple(slice(a, max(b, a + 1)) for a, b in box)
    array = in_file(path, VALUES, (3, 4, 5))[view].transpose(*order)
    expected = VALUES[view].transpose(*order)
    # the axis that varies slowest in the file
    cut = split_chunks(array, {order.index(0): length})
    np.testing.assert_array_equal(cut.read(), expected)
    assert max(cut.fragments[0].axes[order.index(0)].stored_lengths()) <= max(length, 1)


def test_an_axis_that_is_not_shown_stays_in_the_piece(tmp_path: Path) -> None:
    array = in_file(tmp_path / "a.bin", VALUES, (6, 4, 5))
    np.testing.assert_array_equal(split_chunks(array[:, 2], {0: 1}).read(), VALUES[:, 2])
    with pytest.raises(UnsupportedError, match="does not show"):
        split_chunks(array[2], {0: 1})


def test_inline_and_missing_chunks_are_cut(tmp_path: Path) -> None:
    inline = ManifestArray.from_values(VALUES)
    np.testing.assert_array_equal(split_chunks(inline, {0: 2}).read(), VALUES)
    path = tmp_path / "a.bin"
    path.write_bytes(VALUES[:3].tobytes())
    gappy = ManifestArray.from_arrays(
        shape=VALUES.shape, chunks=(3, 4, 5), dtype="i2", path=[[[str(path)]], [[""]]],
        offsets=0, lengths=VALUES[:3].nbytes, fill_value=-7,
    )  # fmt: skip
    found = split_chunks(gappy, {0: 1})
    assert found.manifest.shape == (6, 1, 1)
    np.testing.assert_array_equal(found.read()[:3], VALUES[:3])
    assert (found.read()[3:] == -7).all()


def test_pieces_have_no_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(VALUES.tobytes())
    whole = ManifestArray.from_arrays(
        shape=VALUES.shape, chunks=VALUES.shape, dtype="i2", path=str(path), offsets=0,
        lengths=VALUES.nbytes, checksums=compute_checksum(VALUES.tobytes()) - 2**32,
    )  # fmt: skip
    cut = split_chunks(whole, {0: 1})
    assert not cut.manifest.checksum.any()
    np.testing.assert_array_equal(cut.read(), VALUES)


def compressed() -> ManifestArray:
    return ManifestArray.from_arrays(
        shape=(4,), chunks=(4,), dtype="i2", path="/a", offsets=0, lengths=8, codecs=[Zlib(1)]
    )


def of_another_length() -> ManifestArray:
    return ManifestArray.from_arrays(
        shape=(4,), chunks=(4,), dtype="i2", path="/a", offsets=0, lengths=9
    )


@pytest.mark.parametrize(
    ("array", "lengths", "match"),
    [
        (compressed, {0: 1}, "compressed"),
        (of_another_length, {0: 1}, "has 9 bytes, and its elements 8"),
    ],
)
def test_chunks_whose_parts_are_no_byte_ranges_are_refused(
    array: Any, lengths: Mapping[int, int], match: str
) -> None:
    with pytest.raises(UnsupportedError, match=match):
        split_chunks(array(), lengths)
    assert can_be_split(array()) == (array is of_another_length)


def test_the_error_names_the_axis_to_cut_first(tmp_path: Path) -> None:
    array = in_file(tmp_path / "a.bin", VALUES, (6, 4, 5))
    with pytest.raises(UnsupportedError, match="cut 'time' into pieces of 1"):
        split_chunks(array, {1: 1}, ("time", "y", "x"))
    with pytest.raises(UnsupportedError, match="cut axis 0 into"):
        split_chunks(array, {1: 1})


def test_files_keep_their_fingerprints(tmp_path: Path) -> None:
    file = SourceFile("s3://bucket/a.nc", 240, 5, "etag")
    array = ManifestArray.from_arrays(
        shape=VALUES.shape, chunks=VALUES.shape, dtype="i2", path=file, offsets=0, lengths=240
    )
    assert split_chunks(array, {0: 1}).sources == (file,)
