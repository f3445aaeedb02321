"""Files are read into arrays of any strides, and what cannot be read is said."""

import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from virtualds import SourceFile
from virtualds.stores import local
from virtualds.stores.local import LocalStore, count_row_bytes, read_into_array

Array = np.ndarray[Any, Any]
BYTES = np.random.default_rng(5).bytes(100_000)
OFFSET = 37

# How to take an array out of a larger one, and the bytes of its rows.
TARGETS: dict[str, tuple[Callable[[], Array], int]] = {
    "all of an array": (lambda: np.zeros((3, 4, 5), "i4"), 240),
    "a box": (lambda: np.zeros((9, 50, 40), "i4")[2:5, 10:20, 8:16], 32),
    "whole rows of a box": (lambda: np.zeros((9, 50, 40), "i4")[2:5, 10:20], 1600),
    "axes of one element": (lambda: np.zeros((5, 1, 6, 1), "i2")[:, :, 1:3], 4),
    "single elements": (lambda: np.zeros((6, 7), "f8")[:, 2], 8),
    "backwards": (lambda: np.zeros((6, 7), "f8")[::-1], 56),
    "backwards along the last axis": (lambda: np.zeros((6, 7), "f8")[:, ::-1], 8),
    "every other": (lambda: np.zeros(40, "u1")[::2], 1),
    "the other order": (lambda: np.zeros((4, 5), "c16", order="F"), 16),
    "more rows than one call takes": (lambda: np.zeros((2500, 9), "u2")[:, 3:7], 8),
    "no axes": (lambda: np.zeros((), "f4"), 4),
    "a record": (lambda: np.zeros((3, 4), "i2, S5")[:, 1:], 21),
}


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(BYTES)
    number = os.open(tmp_path / "file", os.O_RDONLY)
    yield number
    os.close(number)


@pytest.mark.parametrize(("make", "length"), TARGETS.values(), ids=TARGETS)
def test_an_array_holds_the_bytes_of_the_file_in_its_order(
    make: Callable[[], Array], length: int, handle: int
) -> None:
    target = make()
    assert count_row_bytes(target) == length
    assert read_into_array(handle, OFFSET, target) == target.nbytes
    assert target.tobytes() == BYTES[OFFSET : OFFSET + target.nbytes]


def test_a_store_reads_into_memory_and_into_arrays_of_any_strides(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BYTES)
    arrays = [make() for make, _ in TARGETS.values()]
    targets = [*arrays, memoryview(bytearray(100))]
    ranges = [(OFFSET, target.nbytes) for target in targets]
    LocalStore().read_into(SourceFile(f"file://{tmp_path}/file"), ranges, targets)
    for target in targets:
        assert target.tobytes() == BYTES[OFFSET : OFFSET + target.nbytes]


@pytest.mark.parametrize(("make", "length"), TARGETS.values(), ids=TARGETS)
def test_nothing_else_is_written(make: Callable[[], Array], length: int, handle: int) -> None:
    target = make()
    owner = target if target.base is None else target.base
    read_into_array(handle, OFFSET, target)
    target[...] = np.zeros((), target.dtype)
    assert not any(owner.tobytes())


@pytest.mark.parametrize("most", [1, 2, 3, 1000])
def test_any_number_of_calls_comes_to_the_same(
    handle: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MAX_ROWS", most)
    target = np.zeros((7, 9, 11), "i4")[:, 2:6, 1:8]
    assert read_into_array(handle, 0, target) == target.nbytes
    assert target.tobytes() == BYTES[: target.nbytes]


@pytest.mark.parametrize("there", [0, 1, 27, 28, 29, 100, 783])
def test_a_file_that_ends_within_says_how_much_there_was(handle: int, there: int) -> None:
    target = np.zeros((7, 9, 11), "i4")[:, 2:6, 1:8]
    assert read_into_array(handle, len(BYTES) - there, target) == there
    assert target.tobytes() == BYTES[len(BYTES) - there :] + bytes(target.nbytes - there)


def test_a_call_that_stops_within_a_row_goes_on_there(
    handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call reads 2 GiB at most; here it is 30 bytes, of rows of 28."""

    def some(handle: int, rows: Array, offset: int) -> int:
        rows, left = rows.copy(), 30
        for row in rows:
            row[1] = min(int(row[1]), left)
            left -= int(row[1])
        return real(handle, rows[rows[:, 1] > 0], offset)

    real = local._preadv
    monkeypatch.setattr(local, "_preadv", some)
    target = np.zeros((7, 9, 11), "i4")[:, 2:6, 1:8]
    assert read_into_array(handle, OFFSET, target) == target.nbytes
    assert target.tobytes() == BYTES[OFFSET : OFFSET + target.nbytes]


@pytest.mark.parametrize("target", [np.zeros(4), np.zeros((4, 8))[:, :4]], ids=["one", "rows"])
def test_an_error_of_reading_is_an_error_of_the_system(tmp_path: Path, target: Array) -> None:
    with open(tmp_path / "new", "wb") as file, pytest.raises(OSError, match="descriptor"):
        read_into_array(file.fileno(), 0, target)


def locked(target: Array) -> Array:
    target.flags.writeable = False
    return target


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (locked(np.zeros(4)), "read-only"),
        (np.array([None, "text"]), "Python objects"),
        (np.zeros(3, "i4, O")[::2], "Python objects"),
    ],
    ids=["read-only", "objects", "fields that are objects"],
)
def test_read_only_arrays_and_arrays_of_objects_are_left_alone(
    handle: int, target: Array, why: str
) -> None:
    before = target.tolist()
    with pytest.raises(ValueError, match=why):
        read_into_array(handle, 0, target)
    assert target.tolist() == before


def test_a_table_has_as_many_rows_as_one_call_takes() -> None:
    """A column of many rows takes no memory of its own."""
    many = np.zeros((2**16, 2), "u1")[:, 0]
    tracemalloc.start()
    with tempfile.TemporaryFile() as file:
        file.write(bytes(range(256)) * 2**8)
        file.flush()
        assert read_into_array(file.fileno(), 0, many) == many.size
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert many.tobytes() == bytes(range(256)) * 2**8
    assert peak < 2**19


def test_a_long_row_is_read_by_several_calls(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_BYTES", 1000)
    target = np.zeros((3, 5000), "u1")[:, :3001]
    assert read_into_array(handle, OFFSET, target) == target.nbytes
    assert target.tobytes() == BYTES[OFFSET : OFFSET + target.nbytes]
