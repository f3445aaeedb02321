"""Chunk indexes read as columns: of every kind, of one file and of many at once."""

from __future__ import annotations

import ctypes
import itertools
import re
import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from effort import times
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs.jenkins import jenkins_lookup3
from products import looped
from written_chunks import full, sparse

from virtualds import FormatError, SourceFile
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.parsers.hdf5 import storage
from virtualds.parsers.hdf5.chunk_indexes import read_indexes
from virtualds.parsers.hdf5.chunk_indexes.layout import ChunkRows, IndexLayout
from virtualds.parsers.hdf5.structure import ByteRows, RowsError
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, read_messages
from virtualds.parsers.hdf5.structure.messages import FILTERED_SINGLE, parse_layout
from virtualds.parsers.hdf5.structure.object_header import LAYOUT

Ints = npt.NDArray[np.int64]
Limits = tuple[int | None, ...]


class Case(NamedTuple):
    """A dataset, the kind of its index, and how it is written."""

    kind: int
    libver: str
    shape: tuple[int, ...]
    limits: Limits
    chunks: tuple[int, ...]
    early: bool = False
    half: int | None = None


TREE, SINGLE, IMPLICIT, FIXED, EXTENSIBLE, TREE_2 = range(6)
CASES = {
    "a leaf": Case(TREE, "earliest", (5, 6), (5, None), (2, 4)),
    "a leaf of 1.8": Case(TREE, "v108", (5, 6), (None, None), (2, 4)),
    "two levels": Case(TREE, "earliest", (100,), (100,), (1,)),
    "three levels": Case(TREE, "earliest", (800, 4), (None, 4), (1, 1)),
    "many levels of small nodes": Case(TREE, "earliest", (30, 4), (None, 4), (1, 1), half=2),
    "small nodes of 1.8": Case(TREE, "v108", (30, 4), (None, 4), (1, 1), half=3),
    "five axes": Case(TREE, "earliest", (3, 2, 4, 3, 2), (None,) * 5, (2, 1, 2, 2, 1)),
    "a single chunk": Case(SINGLE, "latest", (5, 6), (5, 6), (5, 6)),
    "a single chunk of 1.10": Case(SINGLE, "v110", (7,), (7,), (7,)),
    "no index": Case(IMPLICIT, "latest", (5, 6), (7, 9), (2, 4), early=True),
    "no index, one axis": Case(IMPLICIT, "v110", (5,), (5,), (2,), early=True),
    "a fixed array": Case(FIXED, "v110", (5, 6, 3), (7, 9, 3), (2, 4, 2)),
    "a fixed array with pages": Case(FIXED, "latest", (36, 36), (37, 60), (1, 1)),
    "an extensible array": Case(EXTENSIBLE, "v114", (5, 6), (None, 6), (2, 4)),
    "an extensible array along the second axis": Case(
        EXTENSIBLE, "latest", (5, 6, 3), (7, None, 3), (2, 1, 2)
    ),
    "an extensible array with super blocks": Case(
        EXTENSIBLE, "latest", (3, 700), (4, None), (1, 1)
    ),
    "a version 2 B-tree": Case(TREE_2, "v110", (5, 6), (None, None), (2, 4)),
    "a version 2 B-tree of two levels": Case(TREE_2, "latest", (9, 30), (None, None), (1, 1)),
    "a version 2 B-tree of three levels": Case(TREE_2, "latest", (8,) * 4, (None,) * 4, (1,) * 4),
}
FILTERS = (None, "gzip")


def create(path: Path, case: Case, compression: str | None = None, **sizes: Any) -> h5py.File:
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    if case.half is not None:
        # h5py has no name for it, but links the library that does
        library = ctypes.CDLL(h5py.h5p.__file__)
        assert library.H5Pset_istore_k(ctypes.c_int64(plist.id), case.half) >= 0
    for name, value in sizes.items():
        getattr(plist, f"set_{name}")(*value)
    bounds = {
        "earliest": h5py.h5f.LIBVER_EARLIEST, "v108": h5py.h5f.LIBVER_V18,
        "v110": h5py.h5f.LIBVER_V110, "v114": h5py.h5f.LIBVER_V114,
        "latest": h5py.h5f.LIBVER_LATEST,
    }  # fmt: skip
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(bounds[case.libver], h5py.h5f.LIBVER_LATEST)
    file = h5py.File(h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, plist, access))
    create_plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if case.early:
        create_plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    create_plist.set_fill_value(np.array(-1, "i4"))
    create_plist.set_chunk(case.chunks)
    if compression:
        create_plist.set_deflate(1)
    most = tuple(h5py.h5s.UNLIMITED if n is None else n for n in case.limits)
    space = h5py.h5s.create_simple(case.shape, most)
    h5py.h5d.create(file.id, b"v", h5py.h5t.NATIVE_INT32, space, create_plist)
    return file


def shorter_and_longer(dataset: h5py.Dataset) -> None:
    full(dataset)
    for change in (lambda n: max(n - 3, 1), lambda n: n + 5):
        pairs = zip(dataset.shape, dataset.maxshape, strict=True)
        dataset.resize(tuple(min(change(n), most or change(n)) for n, most in pairs))
    dataset[tuple(n - 1 for n in dataset.shape)] = 7


def unwritten(dataset: h5py.Dataset) -> None:
    pass


WRITTEN = (full, sparse, shorter_and_longer, unwritten)


class Told(NamedTuple):
    """What the metadata of a dataset say, as columns of one dataset."""

    index_layout: IndexLayout
    root: Ints
    shape: Ints
    length: Ints
    mask: Ints

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.root, self.shape, self.length, self.mask


def open_bytes(path: Path) -> FileBytes:
    return FileBytes(SourceFile(path.as_uri()))


def tell(path: Path, file: FileBytes) -> Told:
    with h5py.File(path) as opened:
        dataset = opened["v"]
        # HDF5 adds the base
        messages = read_messages(file, h5py.h5o.get_info(dataset.id).addr)
        filters, limits, shape = dataset.compression is not None, dataset.maxshape, dataset.shape
    [data] = [message.data for message in messages if message.kind == LAYOUT]
    layout = parse_layout(data, file.offset_size, file.length_size)
    dims, undefined = layout.dims, (1 << 8 * file.offset_size) - 1
    single = layout.parameters if layout.flags & FILTERED_SINGLE else (prod(dims), 0)
    root = undefined if layout.address is None else layout.address
    index_layout = IndexLayout(layout.index_kind, dims[:-1], dims[-1], limits, filters)
    column = [np.array([n], np.uint64).view(np.int64) for n in (root, *single[:2])]
    return Told(index_layout, column[0], np.array([shape]), column[1], column[2])


def tell_alone(path: Path) -> Told:
    file = open_bytes(path)
    try:
        return tell(path, file)
    finally:
        file.close()


def read_as(path: Path, told: Told) -> ChunkRows:
    """Read an index where it is told to lie, which HDF5 may not be asked about if it is damaged."""
    file = open_bytes(path)
    try:
        return read_indexes(file, told.index_layout, np.zeros(1, np.int64), *told.columns)
    finally:
        file.close()


def read_alone(path: Path) -> tuple[Told, ChunkRows]:
    told = tell_alone(path)
    return told, read_as(path, told)


class SeveralFiles:
    """The bytes of several files, each read by itself."""

    def __init__(self, files: Sequence[FileBytes]) -> None:
        self.files = files
        first = files[0]
        self.offset_size, self.length_size, self.istore_k = (
            first.offset_size, first.length_size, first.istore_k
        )  # fmt: skip
        self.ends = np.concatenate([file.ends for file in files])

    def read_rows(self, file: Ints, address: Ints, length: int) -> npt.NDArray[np.uint8]:
        found = np.empty((len(address), length), np.uint8)
        wrong = (address < 0) | (address > self.ends[file] - length)
        if wrong.any():
            raise RowsError(frozenset(file[wrong].tolist()), "rows past the end")
        for number in np.unique(file):
            which = np.flatnonzero(file == number)
            found[which] = self.files[number].read_rows(which * 0, address[which], length)
        return found


def read_together(paths: Sequence[Path], told: Sequence[Told]) -> ChunkRows:
    files = [open_bytes(path) for path in paths]
    rows: ByteRows = SeveralFiles(files)
    columns = (np.concatenate(some) for some in zip(*(t.columns for t in told), strict=True))
    try:
        return read_indexes(rows, told[0].index_layout, np.arange(len(paths)), *columns)
    finally:
        for file in files:
            file.close()


def assemble(path: Path, told: Told, found: ChunkRows) -> npt.NDArray[np.int32]:
    """Decode all chunks into an array of the fill value."""
    raw, index_layout = path.read_bytes(), told.index_layout
    base = raw.index(b"\x89HDF")
    values = np.full(told.shape[0], -1, np.int32)
    for place, mask, address, length in zip(
        found.position.T.tolist(), *(column.tolist() for column in found[2:]), strict=True
    ):
        data = raw[base + address : base + address + length]
        if index_layout.has_filters and not mask & 1:
            data = zlib.decompress(data)
        chunk = np.frombuffer(data, np.int32).reshape(index_layout.chunks)
        box = tuple(slice(p, p + c) for p, c in zip(place, index_layout.chunks, strict=True))
        room = values[box]
        values[box] = chunk[tuple(slice(n) for n in room.shape)]
    return values


def check_as_read_by_hdf5(
    path: Path, told: Told, found: ChunkRows, parts: Sequence[Any] = ((),)
) -> None:
    """Compare the values of parts, by default all, and what HDF5 lists."""
    values, listed = assemble(path, told, found), list[Any]()
    with h5py.File(path) as file:
        shape, userblock = file["v"].shape, file.userblock_size
        for part in parts:
            np.testing.assert_array_equal(values[part], file["v"][part])
        # whoever asks for one chunk after the other waits for HDF5, which begins anew
        file["v"].id.chunk_iter(listed.append)
    # HDF5's own list has chunks of extensible arrays in wrong places
    if told.index_layout.kind != EXTENSIBLE:
        columns = zip(*found.position.tolist(), *(c.tolist() for c in found[2:]), strict=True)
        within = [
            (*one.chunk_offset, one.filter_mask, one.byte_offset - userblock, one.size)
            for one in listed
            if all(p < n for p, n in zip(one.chunk_offset, shape, strict=True))
        ]
        assert sorted(columns) == sorted(within)


@pytest.mark.parametrize("name", CASES)
@looped("compression", FILTERS)
def test_every_index_has_the_chunks_that_hdf5_reads(
    name: str, compression: str | None, tmp_path: Path
) -> None:
    case = CASES[name]
    for number, write in enumerate(WRITTEN):
        path = tmp_path / f"{number}.h5"
        with create(path, case, compression) as file:
            write(file["v"])
        told, found = read_alone(path)
        if not (compression and case.early):
            assert told.index_layout.kind == case.kind
        check_as_read_by_hdf5(path, told, found)
        order = np.lexsort((*found.position[::-1], found.owner))
        np.testing.assert_array_equal(order, np.arange(len(order)))


@looped("compression", FILTERS, quick=1)
@looped("name", CASES)
def test_several_files_at_once_give_what_each_gives_alone(
    name: str, compression: str | None, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{number}.h5" for number in range(len(WRITTEN))]
    for path, write in zip(paths, WRITTEN, strict=True):
        with create(path, CASES[name], compression) as file:
            write(file["v"])
    found = read_together(paths, [tell_alone(path) for path in paths])
    for number, path in enumerate(paths):
        alone, mine = read_alone(path)[1], found.owner == number
        for one, all_of_them in zip(alone[1:], found[1:], strict=True):
            np.testing.assert_array_equal(one, all_of_them[..., mine])
    assert (np.diff(found.owner) >= 0).all()


def look_up(path: Path, told: Told, places: Ints) -> ChunkRows:
    file = open_bytes(path)
    try:
        columns = told.index_layout, np.zeros(1, np.int64), *told.columns
        return read_indexes(file, *columns, requested=places)
    finally:
        file.close()


@looped("compression", FILTERS, quick=1)
@looped("name", CASES, quick=len(CASES) // 3)
def test_a_lookup_finds_what_the_whole_index_has(
    name: str, compression: str | None, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    for number, write in enumerate(WRITTEN):
        path = tmp_path / f"{number}.h5"
        with create(path, CASES[name], compression) as file:
            write(file["v"])
        told, whole = read_alone(path)
        steps = np.array(told.index_layout.chunks)[:, None]
        grid = tuple((-(-told.shape[0] // steps[:, 0])).tolist())
        size = int(np.prod(grid))
        numbers = np.ravel_multi_index(tuple(whole.position // steps), grid)
        for count in {1, 2, 7, 100, size}:
            for _ in range(4):
                some = np.sort(generator.choice(size, min(count, size), replace=False))
                found = look_up(path, told, np.stack(np.unravel_index(some, grid)))
                at = np.ravel_multi_index(tuple(found.position // steps), grid)
                wanted, right = found.at(np.isin(at, some)), whole.at(np.isin(numbers, some))
                for one, other in zip(wanted, right, strict=True):
                    np.testing.assert_array_equal(one, other)


BLOCKS = [b"TREE\x01", *(b"FAHD FADB EAHD EAIB EADB EASB BTHD BTLF BTIN".split())]


@looped("name", CASES, quick=len(CASES) // 3)
def test_damage_names_only_the_file_that_has_it(name: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.h5" for number in range(4)]
    for path in paths:
        with create(path, CASES[name], "gzip") as file:
            full(file["v"])
    sound, told = paths[2].read_bytes(), [tell_alone(path) for path in paths]
    there = [block for block in BLOCKS if block in sound]
    for block, past in itertools.product(there, (1, 6)):
        raw = bytearray(sound)
        raw[sound.index(block) + past] ^= 0xFF
        paths[2].write_bytes(raw)
        with pytest.raises(RowsError) as error:
            read_together(paths, told)
        assert error.value.files == {2}
    assert there or CASES[name].kind == SINGLE
    paths[2].write_bytes(sound)
    read_together(paths, told)


@pytest.mark.parametrize("kind", [FIXED, EXTENSIBLE, TREE, TREE_2])
@pytest.mark.parametrize("compression", FILTERS)
def test_no_changed_byte_of_an_index_gives_other_values(
    compression: str | None, kind: int, tmp_path: Path
) -> None:
    name = next(name for name in CASES if CASES[name].kind == kind)
    path = tmp_path / "a.h5"
    with create(path, CASES[name], compression) as file:
        full(file["v"])
    sound = path.read_bytes()
    told, expected = read_alone(path)
    # what a version 1 B-tree says of a chunk has no checksum
    free = {"mask", "address", "length"} if kind == TREE else set()
    refused = 0
    for block in BLOCKS:
        if block not in sound:
            continue
        for place in range(sound.index(block), min(sound.index(block) + 120, len(sound))):
            for bit in (1, 128):
                raw = bytearray(sound)
                raw[place] ^= bit
                path.write_bytes(raw)
                try:
                    found = read_as(path, told)
                except RowsError as error:
                    refused += 1
                    assert error.files == {0}
                    continue
                for field in set(ChunkRows._fields) - free:
                    np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))
    assert refused


@pytest.mark.parametrize("compression", FILTERS)
@pytest.mark.parametrize("limit", [300_000, None])
def test_a_changed_bit_of_a_page_is_an_error(
    limit: int | None, compression: str | None, tmp_path: Path
) -> None:
    case = Case(EXTENSIBLE if limit is None else FIXED, "latest", (300_000,), (limit,), (1,))
    path = tmp_path / "a.h5"
    # extensible arrays have pages from element 131,060 on
    places = [131_100, 200_000, 299_999]
    with create(path, case, compression) as file:
        for place in places:
            file["v"][place] = place
    sound, (told, found) = path.read_bytes(), read_alone(path)
    for address in found.address.tolist():
        said = []
        for there in re.finditer(re.escape(address.to_bytes(8, "little")), sound):
            raw = bytearray(sound)
            raw[there.start()] ^= 8
            path.write_bytes(raw)
            try:
                read_as(path, told)
            except RowsError as error:
                said.append(f"{error}")
        # other bytes of the file may be like the element of the chunk
        assert [text for text in said if re.search("a page of .* wrong checksum", text)], said


def test_a_lookup_in_a_tree_whose_keys_are_not_in_order_loses_no_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with create(path, CASES["two levels"]) as file:
        full(file["v"])
    sound, (told, whole) = path.read_bytes(), read_alone(path)
    # behind the head of the root: a key of two numbers and two positions, and an address
    root, step = int(told.root[0]) + 24, 8 + 2 * 8 + 8
    used = int.from_bytes(sound[root - 18 : root - 16], "little")
    refused = 0
    for one, other in itertools.combinations(range(used + 1), 2):
        raw = bytearray(sound)
        begin, end = root + one * step, root + other * step
        raw[begin : begin + 24], raw[end : end + 24] = (
            sound[end : end + 24],
            sound[begin : begin + 24],
        )
        path.write_bytes(raw)
        for number in range(len(whole.address)):
            try:
                found = look_up(path, told, whole.position[:, number : number + 1])
            except RowsError:
                refused += 1
                continue
            assert whole.address[number] in found.address
    assert refused


HEADS = {FIXED: (b"FAHD", 28), EXTENSIBLE: (b"EAHD", 72), TREE_2: (b"BTHD", 38)}
"""Signatures of headers with checksums, and their bytes."""


@pytest.mark.parametrize("compression", FILTERS)
@pytest.mark.parametrize("kind", HEADS)
def test_a_forged_header_leads_to_no_chunk_outside_of_the_shape_or_the_file(
    kind: int, compression: str | None, tmp_path: Path
) -> None:
    name = next(name for name in CASES if CASES[name].kind == kind)
    path = tmp_path / "a.h5"
    with create(path, CASES[name], compression) as file:
        full(file["v"])
    sound, (signature, size) = path.read_bytes(), HEADS[kind]
    told, begin = tell_alone(path), sound.rindex(signature)
    refused = 0
    for place, value in itertools.product(range(6, size - 4), (0, 1, 2, 9, 64, 127, 128, 255)):
        head = bytearray(sound[begin : begin + size - 4])
        head[place] = value
        checksum = jenkins_lookup3(bytes(head)).to_bytes(4, "little")
        path.write_bytes(sound[:begin] + head + checksum + sound[begin + size :])
        try:
            found = read_as(path, told)
        except RowsError as error:
            refused += 1
            assert error.files == {0}
            continue
        assert (found.position < told.shape.T).all()
        assert (found.address + found.length <= len(sound)).all()
    assert refused > 100


@looped("compression", FILTERS)
@looped("size", [4, 8])
@looped("kind", [FIXED, TREE, TREE_2])
def test_narrow_addresses_behind_a_user_block_are_read(
    kind: int, size: int, compression: str | None, tmp_path: Path
) -> None:
    # with addresses of 4 bytes HDF5 does not read its own extensible arrays
    name = next(name for name in CASES if CASES[name].kind == kind)
    path = tmp_path / "a.h5"
    with create(path, CASES[name], compression, sizes=(size, size), userblock=(2048,)) as file:
        full(file["v"])
    check_as_read_by_hdf5(path, *read_alone(path))


@pytest.mark.parametrize("compression", FILTERS)
@pytest.mark.parametrize("limit", [300_000, None])
def test_pages_that_were_not_written_are_skipped(
    limit: int | None, compression: str | None, tmp_path: Path
) -> None:
    case = Case(EXTENSIBLE if limit is None else FIXED, "latest", (300_000,), (limit,), (1,))
    path = tmp_path / "a.h5"
    places = [0, 1023, 1024, 131_000, 131_100, 200_000, 299_999]
    with create(path, case, compression) as file:
        for place in places:
            file["v"][place] = place
    told, found = read_alone(path)
    assert found.position[0].tolist() == places
    # HDF5 takes a second for all of them
    parts = [slice(max(place - 2, 0), place + 3) for place in places]
    check_as_read_by_hdf5(path, told, found, parts)


@st.composite
def datasets(draw: Callable[..., Any]) -> tuple[Case, str | None, list[int], int]:
    ndim = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 9 if ndim < 3 else 4)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    grows = [draw(st.sampled_from([0, 3, None])) for _ in range(ndim)]
    limits = tuple(None if g is None else n + g for n, g in zip(shape, grows, strict=True))
    chunks = tuple(
        c if most is None else min(c, most) for c, most in zip(chunks, limits, strict=True)
    )
    libver = draw(st.sampled_from(["earliest", "v108", "v110", "v114", "latest"]))
    size = int(np.prod(shape))
    written = draw(st.lists(st.integers(0, size - 1), max_size=30))
    case = Case(0, libver, shape, limits, chunks, draw(st.booleans()))
    return case, draw(st.sampled_from(FILTERS)), written, draw(st.integers(-3, 3))


@given(datasets())
@settings(max_examples=times(50), deadline=None)
def test_any_dataset_has_the_chunks_that_hdf5_reads(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Case, str | None, list[int], int]
) -> None:
    case, compression, written, change = drawn
    path = tmp_path_factory.getbasetemp() / "any.h5"
    with create(path, case, compression) as file:
        dataset = file["v"]
        for number in written:
            dataset[np.unravel_index(number, case.shape)] = number
        pairs = zip(case.shape, case.limits, strict=True)
        dataset.resize(tuple(min(max(n + change, 0), n + 3 if m is None else m) for n, m in pairs))
    check_as_read_by_hdf5(path, *read_alone(path))


def test_the_commonest_index_is_read_without_arrays_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path / "a.h5", CASES["a leaf"]) as file:
        full(file["v"])

    def fail(*_: Any) -> None:
        raise FormatError("read as many indexes are")

    monkeypatch.setattr(storage, "read_indexes", fail)
    group = open_group(Location.of(tmp_path / "a.h5"), OpenOptions(parser="hdf5"))
    np.testing.assert_array_equal(group.variables["v"].read(), np.arange(30).reshape(5, 6))
