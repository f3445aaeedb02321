"""Layouts, read from the bytes of their messages, are those that h5py reads."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_messages import LIBVERS, messages_of, new_file, replace_message
from products import looped

from virtualds.parsers.hdf5.structure.messages import (
    EXTERNAL_FILES,
    IndexKind,
    Layout,
    LayoutClass,
    MessageError,
    UnknownFormError,
    parse_layout,
)
from virtualds.parsers.hdf5.structure.object_header import LAYOUT

GZIP: dict[str, Any] = {"compression": "gzip"}
CHUNKED: dict[str, tuple[dict[str, Any], IndexKind]] = {
    "single": ({"shape": (4, 6), "chunks": (4, 6)}, IndexKind.SINGLE),
    "filtered single": ({"shape": (4, 6), "chunks": (4, 6), **GZIP}, IndexKind.SINGLE),
    "fixed array": ({"shape": (40, 6), "chunks": (4, 6)}, IndexKind.FIXED_ARRAY),
    "filtered fixed array": (
        {"shape": (40, 6), "chunks": (4, 600), "maxshape": (40, 600), **GZIP},
        IndexKind.FIXED_ARRAY,
    ),
    "extensible array": (
        {"shape": (40, 6), "chunks": (3, 300), "maxshape": (None, 600)},
        IndexKind.EXTENSIBLE_ARRAY,
    ),
    "tree": ({"shape": (40, 6), "chunks": (4, 6), "maxshape": (None, None)}, IndexKind.B_TREE_2),
    "long chunks": ({"shape": (70000,), "chunks": (69000,)}, IndexKind.FIXED_ARRAY),
}
SIGNATURES = {
    IndexKind.B_TREE_1: b"TREE",
    IndexKind.FIXED_ARRAY: b"FAHD",
    IndexKind.EXTENSIBLE_ARRAY: b"EAHD",
    IndexKind.B_TREE_2: b"BTHD",
}
"""Of the first block of an index (IV.A.2.i, VII)."""
SIZES = [(8, 8), (4, 4), (8, 4), (4, 8)]


def layout_of(path: Path, name: str, sizes: tuple[int, int] = (8, 8)) -> Layout:
    (message,) = messages_of(path, name, LAYOUT)
    return parse_layout(message, *sizes)


@looped("sizes", SIZES)
@looped("libver", LIBVERS, quick=1)
def test_chunks_are_those_that_h5py_reads(
    tmp_path: Path, libver: str, sizes: tuple[int, int]
) -> None:
    path, old = tmp_path / "a.h5", libver in ("earliest", "v108")
    # HDF5 cannot open an extensible array where lengths have fewer than 8 bytes
    cases = {
        name: one
        for name, one in CHUNKED.items()
        if old or sizes[1] == 8 or one[1] != IndexKind.EXTENSIBLE_ARRAY
    }
    with new_file(path, libver, sizes) as file:
        for name, (options, _) in cases.items():
            file.create_dataset(name, dtype="i4", data=np.ones(options["shape"], "i4"), **options)
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_chunk((5,))
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        space = h5py.h5s.create_simple((20,))
        h5py.h5d.create(file.id, b"implicit", h5py.h5t.STD_I32LE, space, early)
        file.create_dataset("empty", (9,), "i8", chunks=(3,))
    data = path.read_bytes()
    kinds = {name: kind for name, (_, kind) in cases.items()}
    for name, kind in (kinds | {"implicit": IndexKind.IMPLICIT}).items():
        found = layout_of(path, name, sizes)
        with h5py.File(path) as file:
            dataset = file[name]
            first = dataset.id.get_chunk_info(0)
            assert found.dims == (*dataset.chunks, dataset.dtype.itemsize)
        (message,) = messages_of(path, name, LAYOUT)
        stored = message[found.offset : found.offset + sizes[0]]
        assert int.from_bytes(stored, "little") == found.address
        assert found.kind == LayoutClass.CHUNKED
        assert found.index_kind == (IndexKind.B_TREE_1 if old else kind)
        assert found.address is not None
        if signature := SIGNATURES.get(found.index_kind):
            assert data[found.address : found.address + 4] == signature
        else:
            assert found.address == first.byte_offset
        if name == "filtered single" and not old:
            assert found.parameters == (first.size, first.filter_mask)
    with h5py.File(path) as file:
        assert file["empty"].id.get_num_chunks() == 0
    assert layout_of(path, "empty", sizes).address is None


@looped("sizes", SIZES)
@looped("libver", LIBVERS)
def test_contiguous_and_compact_elements_are_those_that_h5py_reads(
    tmp_path: Path, libver: str, sizes: tuple[int, int]
) -> None:
    path = tmp_path / "a.h5"
    values = np.arange(7, dtype="i2")
    with new_file(path, libver, sizes) as file:
        file["contiguous"] = values
        file.create_dataset("empty", (7,), "i2")
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((7,))
        made = h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I16LE, space, compact)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    with h5py.File(path) as file:
        offset, size = file["contiguous"].id.get_offset(), file["contiguous"].id.get_storage_size()
    assert layout_of(path, "contiguous", sizes) == Layout(
        LayoutClass.CONTIGUOUS, offset, size, offset=2
    )
    assert layout_of(path, "empty", sizes) == Layout(LayoutClass.CONTIGUOUS, None, 14, offset=2)
    expected = Layout(LayoutClass.COMPACT, size=14, data=values.tobytes(), offset=4)
    assert layout_of(path, "compact", sizes) == expected


@pytest.mark.parametrize("libver", LIBVERS)
def test_a_virtual_dataset_names_the_collection_of_its_sources(tmp_path: Path, libver: str) -> None:
    path = tmp_path / "a.h5"
    with new_file(path, libver) as file:
        file["source"] = np.arange(4)
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource(path, "source", (4,))
        file.create_virtual_dataset("v", layout)
    found = layout_of(path, "v")
    assert found.kind == LayoutClass.VIRTUAL
    assert found.address is not None and found.parameters == (1,)
    assert path.read_bytes()[found.address : found.address + 4] == b"GCOL"


def test_elements_in_other_files_have_a_message_and_no_address(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with new_file(path, "earliest") as file:
        file.create_dataset("v", (4,), "i4", external=[(tmp_path / "raw", 0, 16)])
    assert len(messages_of(path, "v", EXTERNAL_FILES)) == 1
    assert layout_of(path, "v") == Layout(LayoutClass.CONTIGUOUS, None, 16, offset=2)


def test_chunks_at_the_edge_may_be_unfiltered() -> None:
    for flags in (0, 1):
        found = parse_layout(bytes([4, 2, flags, 2, 1, 5, 4, IndexKind.IMPLICIT]) + ADDRESS)
        assert found.is_filtering_edges == (not flags)
        expected = Layout(LayoutClass.CHUNKED, 0, None, b"", (5, 4), IndexKind.IMPLICIT, flags, 8)
        assert found == expected._replace(dims_at=(5, 1))


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


@pytest.mark.parametrize("version", [1, 2])
def test_layouts_of_the_first_versions_are_those_that_h5py_reads(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "a.h5"
    values = np.arange(20, dtype="i4")
    with new_file(path, "earliest") as file:
        file.create_dataset("chunked", data=values, chunks=(6,))
        file.create_dataset("contiguous", data=values)
    known = {name: layout_of(path, name) for name in ("chunked", "contiguous")}
    chunked, contiguous = known["chunked"], known["contiguous"]
    assert chunked.address is not None and contiguous.address is not None
    start = bytes([version, 2, 2, 0, 0, 0, 0, 0])
    message = start + chunked.address.to_bytes(8, "little") + words(6, 4)
    replace_message(path, "chunked", {LAYOUT: message})
    assert parse_layout(message) == chunked._replace(offset=8, dims_at=(16, 4))
    start = bytes([version, 1, 1, 0, 0, 0, 0, 0])
    message = start + contiguous.address.to_bytes(8, "little") + words(20)
    replace_message(path, "contiguous", {LAYOUT: message})
    assert parse_layout(message) == contiguous._replace(size=None, offset=8)
    with h5py.File(path) as file:
        assert (file["chunked"][:] == values).all()
        assert (file["contiguous"][:] == values).all()
        assert file["contiguous"].id.get_offset() == contiguous.address


def test_a_compact_layout_of_the_first_version_has_its_size_behind_its_axes() -> None:
    message = bytes([1, 2, 0, 0, 0, 0, 0, 0]) + words(1, 3) + words(3) + b"abc"
    assert parse_layout(message) == Layout(LayoutClass.COMPACT, size=3, data=b"abc", offset=20)


ADDRESS = bytes(8)
DAMAGED = {
    "nothing": b"",
    "no class": b"\3",
    "half an address": b"\3\1" + ADDRESS[:4],
    "no size": b"\3\1" + ADDRESS,
    "half of compact elements": b"\3\0\4\0abc",
    "chunks without axes": b"\3\2\1" + ADDRESS + words(4),
    "chunks of too many axes": b"\3\2\x22" + ADDRESS + words(*[1] * 34),
    "chunks of no length": b"\3\2\2" + ADDRESS + words(0, 4),
    "half the lengths": b"\3\2\3" + ADDRESS + words(5, 4),
    "lengths of no bytes": b"\4\2\0\2\0" + b"\3" + bytes(9),
    "lengths of nine bytes": b"\4\2\0\2\x09" + b"\1" * 18 + b"\2" + ADDRESS,
    "no index": b"\4\2\0\2\1\5\4",
    "half the parameters": b"\4\2\0\2\1\5\4\4\1\1",
    "half the address of an index": b"\4\2\0\2\1\5\4\2" + ADDRESS[:7],
    "no number of an object": b"\4\3" + ADDRESS,
    "old and short": b"\1\2\2\0\0\0\0\0" + ADDRESS + words(6),
    "old chunks without axes": b"\1\1\2\0\0\0\0\0" + ADDRESS + words(4),
    "old and compact and short": b"\1\1\0\0\0\0\0\0" + words(3) + words(3) + b"ab",
}
UNKNOWN = {
    "version 0": b"\0\1\1",
    "version 6": b"\6\1\1",
    "class 4": b"\4\4" + ADDRESS,
    "virtual in version 3": b"\3\3" + ADDRESS + words(1),
    "virtual in version 1": b"\1\1\3\0\0\0\0\0" + ADDRESS,
    "an unknown index": b"\4\2\0\2\1\5\4\6" + ADDRESS,
    "a version 1 tree in version 4": b"\4\2\0\2\1\5\4\0" + ADDRESS,
    "unknown flags": b"\4\2\4\2\1\5\4\2" + ADDRESS,
    "more bytes than padding": b"\3\1" + ADDRESS * 3,
}


@looped("message", DAMAGED.values())
def test_damaged_layouts_are_refused(message: bytes) -> None:
    with pytest.raises(MessageError):
        parse_layout(message)


@pytest.mark.parametrize("message", UNKNOWN.values(), ids=UNKNOWN)
def test_layouts_of_unknown_forms_are_declined(message: bytes) -> None:
    with pytest.raises(UnknownFormError):
        parse_layout(message)
