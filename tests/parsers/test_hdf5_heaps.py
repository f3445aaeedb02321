"""Dense attributes, shared types, and the heap of strings: what h5py reads, or an error."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import virtualds
from virtualds import FormatError, ReadError, VirtualdsError
from virtualds.arrays.group import ManifestGroup
from virtualds.parsers.hdf5 import objects, read
from virtualds.parsers.hdf5.data_types import read_attribute
from virtualds.parsers.hdf5.group_reader import HDF5Array
from virtualds.parsers.hdf5.objects import HDF5Files
from virtualds.source_file import normalise_url
from virtualds.stores.scan_cache import describe_file

TEXT = h5py.string_dtype()
NUMBERS = h5py.vlen_dtype(np.dtype("i4"))


def scanned(path: Path) -> ManifestGroup:
    """Return the root group of a file, with its problems noted in it."""
    return read(describe_file(normalise_url(str(path)), {}))


def listed(group: h5py.Group) -> list[str]:
    """Return the names of attributes as HDF5 lists them."""
    found: list[str] = []
    h5py.h5a.iterate(
        group.id, lambda raw, *_: found.append(raw.decode()), index_type=h5py.h5.INDEX_CRT_ORDER
    )
    return found


def check_attributes(path: Path) -> int:
    """Compare the attributes of all groups of a file with h5py's; return how many are dense."""
    source, dense = describe_file(normalise_url(str(path)), {}), 0
    with HDF5Files(source) as files:
        found = objects.read_members(objects.open_root(files, source))
        for name, place in (found.groups | found.datasets).items():
            group = files.open(source)[name]
            names = place.attribute_names
            assert names == listed(group), name
            for one in names:
                want = group.attrs[one]
                want = want.decode() if isinstance(want, bytes) else want
                np.testing.assert_array_equal(read_attribute(place, one), want)
            in_header = sum(message.kind == 0x0C for message in place.messages)
            dense += len(names) - in_header
    return dense


def value(number: int) -> Any:
    """Return the value of an attribute: numbers, text, and strings of varying length."""
    return (np.arange(number + 2.0), f"ü{number}" * (number % 90), np.bytes_(b"x" * (number + 1)))[
        number % 3
    ]


def write_many(file: h5py.File, tracked: bool) -> None:
    for count in (0, 1, 8, 9, 30, 200):
        group = file.create_group(f"{count} attributes", track_order=tracked)
        for number in range(count):
            group.attrs[f"näme {number * 7919 % 10007}"] = value(number)


def write_huge(file: h5py.File, tracked: bool) -> None:
    group = file.create_group("huge", track_order=tracked)
    for size in (10, 600, 9_000, 100_000):
        group.attrs[f"of {size}"] = np.arange(size, dtype="i4")
    group.attrs["text"] = np.bytes_(b"x" * 70_000)


def write_holes(file: h5py.File, tracked: bool) -> None:
    group = file.create_group("holes", track_order=tracked)
    for number in range(60):
        group.attrs[f"a{number}"] = "x" * (number * 37 % 700)
    for number in range(0, 60, 3):
        del group.attrs[f"a{number}"]
    for number in range(0, 60, 6):
        group.attrs[f"a{number}"] = "y" * (number * 91 % 1200)
    group = file.create_group("emptied", track_order=tracked)
    for number in range(20):
        group.attrs[f"a{number}"] = number
    for number in range(20):
        del group.attrs[f"a{number}"]


def write_deep(file: h5py.File, tracked: bool) -> None:
    group = file.create_group("deep", track_order=tracked)
    # indirect blocks within indirect blocks, and a tree of more than two levels
    for number in range(700):
        group.attrs[f"a{number}"] = np.full(230, number, "i4")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tracked", [False, True], ids=["untracked", "tracked"])
@pytest.mark.parametrize("libver", ["earliest", "latest", "v108", "v110"])
@pytest.mark.parametrize("write", [write_many, write_huge, write_holes], ids=lambda w: w.__name__)
def test_attributes_outside_of_headers_are_those_of_h5py(
    write: Callable[[h5py.File, bool], None], libver: str, tracked: bool, tmp_path: Path
) -> None:
    if write is write_huge and libver == "earliest":
        pytest.skip("an old header has no room for them")
    bounds = libver if libver in ("earliest", "latest") else (libver, "latest")
    with h5py.File(tmp_path / "a.h5", "w", libver=bounds) as file:
        write(file, tracked)
    dense = check_attributes(tmp_path / "a.h5")
    assert (dense > 3) == (libver != "earliest" or (tracked and write is not write_huge))


def test_heaps_of_many_blocks_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        write_deep(file, tracked=False)
    assert check_attributes(tmp_path / "a.h5") == 700


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_attributes_of_committed_types_are_those_of_h5py(libver: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        file["number"], file["text"] = np.dtype("f4"), TEXT
        for count in (3, 30):
            group = file.create_group(f"{count}")
            for number in range(count):
                group.attrs.create(f"n{number}", np.arange(3.0), dtype=file["number"])
            group.attrs.create("t", "abc", dtype=file["text"])
    check_attributes(tmp_path / "a.h5")


def hdf5_of_h5py() -> ctypes.CDLL:
    """Return the library that h5py has loaded; it alone makes files that share messages."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split()[-1] for line in lines if "h5py.libs/libhdf5-" in line}
    if len(paths) != 1:
        pytest.skip("the library of h5py is not found")
    return ctypes.CDLL(paths.pop())


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_messages_that_objects_share_are_read(libver: str, tmp_path: Path) -> None:
    library = hdf5_of_h5py()
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    kinds = (0x1000, 0x0002 | 0x0008)
    assert library.H5Pset_shared_mesg_nindexes(ctypes.c_int64(plist.id), 2) >= 0
    for number, kind in enumerate(kinds):
        asked = (ctypes.c_int64(plist.id), number, kind, 1)
        assert library.H5Pset_shared_mesg_index(*asked) >= 0
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    if libver == "latest":
        access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    path = tmp_path / "a.h5"
    with h5py.File(h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, plist, access)) as file:
        for count in (2, 30):
            for name in "ab":
                group = file.create_group(f"{name}{count}")
                for number in range(count):
                    group.attrs[f"n{number}"] = np.arange(number + 2)
                    group.attrs[f"t{number}"] = f"text {number}"
    assert b"SMTB" in path.read_bytes()
    check_attributes(path)


COMPOUND = np.dtype([("n", "i2"), ("text", TEXT), ("list", NUMBERS), ("more", TEXT, (2,))])


def write_variables(file: h5py.File) -> None:
    words = np.array(["a", "", "grün", "x" * 5000, "b"], object)
    file.create_dataset("text", data=words, dtype=TEXT)
    file.create_dataset("chunked", data=words, dtype=TEXT, chunks=(2,))
    file.create_dataset("filtered", data=words, dtype=TEXT, chunks=(2,), compression="gzip")
    file.create_dataset("square", (3, 4), TEXT, chunks=(2, 3))[1:, 1:] = words[:3]
    file.create_dataset("never written", (5,), TEXT)
    file.create_dataset("scalar", data="abc", dtype=TEXT)
    file.create_dataset("empty", (0,), TEXT)
    file.create_dataset("filled", (4,), TEXT, fillvalue="fill")
    file.create_dataset("grown", (3,), TEXT, maxshape=(None,), chunks=(4,))[:] = words[:3]
    file["grown"].resize((9,))
    file.create_dataset("shrunk", (9,), TEXT, maxshape=(None,), chunks=(4,))[:] = "x"
    file["shrunk"].resize((2,))
    file["type"] = TEXT
    file.create_dataset("committed", data=words, dtype=file["type"])
    lists = file.create_dataset("lists", (3,), NUMBERS)
    lists[0], lists[2] = [1, 2, 3], []
    records = file.create_dataset("records", (4,), COMPOUND)
    records[1] = (1, "a", np.array([4, 5], "i4"), ["b", "c"])
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    kind, space = h5py.h5t.py_create(TEXT, logical=True), h5py.h5s.create_simple((5,))
    made = h5py.h5d.create(file.id, b"compact", kind, space, plist)
    h5py.Dataset(made)[:] = words


def plain(values: Any) -> Any:
    """Return values in a form in which they can be compared."""
    if isinstance(values, np.ndarray | np.void):
        return plain(values.tolist())
    if isinstance(values, list | tuple):
        return [plain(one) for one in values]
    return values.decode() if isinstance(values, bytes) else values


@pytest.mark.parametrize("small", [0, 2**20], ids=["when asked for", "when scanned"])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_variables_that_refer_to_the_heap_are_those_of_h5py(
    libver: str, small: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        write_variables(file)
    with virtualds.set_options(small_variable=small):
        group = scanned(path)
    assert not group.problems
    with h5py.File(path) as file:
        for name, variable in group.variables.items():
            found = variable.data
            assert isinstance(found, HDF5Array) == (not small and 0 not in found.shape)
            if isinstance(found, HDF5Array):
                found = found.read((slice(None),) * found.ndim)
            want = file[name][()]
            assert plain(found) == plain(want), name


def test_variables_of_a_virtual_dataset_of_strings_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["text"] = np.array(["a", "bc", "d"], TEXT)
    layout = h5py.VirtualLayout((3,), TEXT)
    layout[:] = h5py.VirtualSource("part.h5", "text", (3,))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    found = scanned(tmp_path / "a.h5").variables["v"].data
    assert plain(found) == ["a", "bc", "d"]
    raw = (tmp_path / "part.h5").read_bytes()
    (tmp_path / "part.h5").write_bytes(raw.replace(b"GCOL", b"GCOX"))
    problems = scanned(tmp_path / "a.h5").problems
    assert "no global heap" in str(problems["v"])


def put(raw: bytearray, place: int, number: int, width: int) -> None:
    raw[place : place + width] = number.to_bytes(width, "little")


def references(raw: bytes) -> int:
    """Return where the reference to the word of 3 bytes lies in a file of one such word."""
    return raw.index((3).to_bytes(4, "little") + raw.index(b"GCOL").to_bytes(8, "little"))


DAMAGE: dict[str, Callable[[bytearray, int, int], None]] = {
    "an object that is not there": lambda raw, ref, heap: put(raw, ref + 12, 99, 4),
    "object 0": lambda raw, ref, heap: put(raw, ref + 12, 0, 4),
    "a length past the object": lambda raw, ref, heap: put(raw, ref, 2**31, 4),
    "a collection that is none": lambda raw, ref, heap: put(raw, ref + 4, heap + 8, 8),
    "a collection past the end": lambda raw, ref, heap: put(raw, ref + 4, 2**40, 8),
    "an object without end": lambda raw, ref, heap: put(raw, heap + 24, 2**63, 8),
    "free space of no bytes": lambda raw, ref, heap: put(raw, heap + 16, 0, 16),
    "a collection of 2**60 bytes": lambda raw, ref, heap: put(raw, heap + 8, 2**60, 8),
}
WAYS: dict[str, Callable[[h5py.File], Any]] = {
    "contiguous": lambda file: file.create_dataset("v", (1,), TEXT),
    "chunked": lambda file: file.create_dataset("v", (1,), TEXT, chunks=(1,)),
    "in a compound": lambda file: file.create_dataset("v", (1,), [("n", "i4"), ("t", TEXT)]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("small", [0, 2**20], ids=["when asked for", "when scanned"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_heap_is_an_error_before_hdf5_follows_it(
    name: str, way: str, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        made = WAYS[way](file)
        made[0] = (7, "abc") if made.dtype.names else "abc"
    raw = bytearray(path.read_bytes())
    DAMAGE[name](raw, references(raw), raw.index(b"GCOL"))
    path.write_bytes(raw)
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *_: pytest.fail("HDF5 was asked"))
    with virtualds.set_options(small_variable=small):
        group = scanned(path)
    if small:
        error: VirtualdsError = group.problems["v"]
        assert isinstance(error, FormatError)
        assert "variable 'v' of" in str(error)
    else:
        with pytest.raises(ReadError, match="v") as caught:
            group.variables["v"].data.read((slice(None),))
        error = caught.value
    assert str(path) in str(error)
    assert "fetch the file again" in str(error)


def test_a_fill_value_is_looked_at_before_hdf5_follows_it(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (4,), TEXT, fillvalue="abc")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"GCOL", b"GCOX"))
    assert "no global heap" in str(scanned(path).problems["v"])


def test_one_object_a_million_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("v", (200,), TEXT)[0] = "x" * 10**6
    raw = bytearray(path.read_bytes())
    begin = raw.index((10**6).to_bytes(4, "little") + raw.index(b"GCOL").to_bytes(8, "little"))
    raw[begin : begin + 3200] = raw[begin : begin + 16] * 200
    path.write_bytes(raw)
    assert "more bytes than the file" in str(scanned(path).problems["v"])
