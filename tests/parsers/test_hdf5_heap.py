"""What attributes name in the global heap is looked at before HDF5 reads it: damage has a name."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from virtualds import FormatError
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group

NUMBER, LENGTH, DATA = 16, 24, 32
"""Where the first object of a collection has its number, its length and its bytes (III.E)."""
IN_HEAP: dict[str, tuple[int, bytes, str]] = {
    "another signature": (0, b"X", "no global heap"),
    "another version": (4, b"\2", "no global heap"),
    "a number twice": (NUMBER + 16 + 8, b"\1", "contradicts itself"),
    "an object beyond the collection": (LENGTH, b"\xff\xff", "contradicts itself"),
    "a collection beyond the file": (8, b"\xff\xff\xff\xff", "it names bytes"),
    "free space of nothing": (NUMBER, bytes(16), "contradicts itself"),
}
"""What is written at which byte of the collection, and how it is told."""
IN_REFERENCE: dict[str, tuple[int, bytes, str]] = {
    "more elements than there are": (0, b"\xff", "has 5 bytes of an object of 255"),
    "a place of no heap": (4, b"\x08", "no global heap"),
    "object 0": (12, b"\0", "has no object 0"),
    "an object that is not there": (12, b"\x63", "has no object 99"),
}
"""What is written at which byte of a reference to the heap."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file whose only collection holds the words of one attribute."""
    with h5py.File(tmp_path / "a.h5", "w", libver="earliest") as file:
        file["v"] = np.arange(3.0)
        file["v"].attrs["words"] = np.array(["first", "second"], h5py.string_dtype())
    return tmp_path / "a.h5"


def put(path: Path, place: int, value: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[place : place + len(value)] = value
    path.write_bytes(raw)


@pytest.mark.parametrize("which", IN_HEAP)
def test_a_damaged_collection_is_an_error(which: str, path: Path) -> None:
    place, value, reason = IN_HEAP[which]
    put(path, path.read_bytes().index(b"GCOL") + place, value)
    with pytest.raises(FormatError, match=reason):
        open_group(Location.of(path))


@pytest.mark.parametrize("which", IN_REFERENCE)
def test_a_damaged_reference_to_the_heap_is_an_error(which: str, path: Path) -> None:
    place, value, reason = IN_REFERENCE[which]
    raw = path.read_bytes()
    heap = raw.index(b"GCOL").to_bytes(8, "little")
    put(path, raw.index(heap, raw.index(b"words\0")) - 4 + place, value)
    with pytest.raises(FormatError, match=reason):
        open_group(Location.of(path))


def test_an_undamaged_heap_is_read(path: Path) -> None:
    assert open_group(Location.of(path)).variables["v"].attributes["words"] == ["first", "second"]


def test_a_list_of_scales_for_other_axes_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["x"] = np.arange(3.0)
        file["x"].make_scale("x")
        for name in "vw":
            file[name] = np.zeros((3, 3))
            file[name].dims[0].attach_scale(file["x"])
        listed = np.empty(3, h5py.vlen_dtype(h5py.ref_dtype))
        listed[:] = [np.array([file["x"].ref], h5py.ref_dtype)] * 3
        del file["w"].attrs["DIMENSION_LIST"]
        file["w"].attrs.create("DIMENSION_LIST", listed, dtype=listed.dtype)
    with pytest.raises(FormatError, match="not a list of scales for each of 2 axes"):
        open_group(Location.of(path))


@pytest.mark.parametrize("offsets, lengths", [(4, 4), (8, 4), (4, 8)])
def test_a_heap_with_lengths_of_four_bytes_is_read(
    offsets: int, lengths: int, tmp_path: Path
) -> None:
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plist.set_sizes(offsets, lengths)
    made = h5py.h5f.create(bytes(tmp_path / "b.h5"), h5py.h5f.ACC_TRUNC, plist)
    words = ["first", "a second word", "", "fourth"]
    with h5py.File(made) as file:
        scale = file.create_dataset("x", data=np.arange(4))
        scale.make_scale("x")
        file["v"] = np.array(words, h5py.string_dtype())
        file["v"].dims[0].attach_scale(scale)
        file["v"].attrs["words"] = np.array(words, h5py.string_dtype())
    found = open_group(Location.of(tmp_path / "b.h5")).variables["v"]
    assert found.dims == ("x",)
    assert found.read().tolist() == words
    assert list(found.attributes["words"]) == words
