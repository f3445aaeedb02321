"""Dataspaces, read from the bytes of their messages, are those that h5py reads."""

from __future__ import annotations

import struct
from pathlib import Path

import h5py
import pytest
from hdf5_messages import LIBVERS, messages_of, new_file
from products import looped

from virtualds.parsers.hdf5.structure.messages import (
    Dataspace,
    MessageError,
    SpaceClass,
    UnknownFormError,
    parse_dataspace,
)
from virtualds.parsers.hdf5.structure.object_header import DATASPACE

UNLIMITED = h5py.h5s.UNLIMITED
# at most eight, since HDF5 cannot read more members of a group with lengths of 2 bytes
SHAPES = {
    "no elements": ((0, 3), (0, 3)),
    "unlimited": ((5, 0), (UNLIMITED, UNLIMITED)),
    "limited": ((5, 7), (10, 7)),
    # HDF5 cannot open one unlimited axis where lengths have fewer than 8 bytes
    "partly unlimited": ((5, 7, 2), (UNLIMITED, UNLIMITED, 2)),
    "many axes": ((1,) * 32, (2,) * 32),
    "long": ((2**15,), (2**16 - 2,)),
}


@looped("size", [2, 4, 8])
@looped("libver", LIBVERS)
def test_dataspaces_are_those_that_h5py_reads(tmp_path: Path, libver: str, size: int) -> None:
    path = tmp_path / "a.h5"
    with new_file(path, libver, sizes=(8, size)) as file:
        for name, (shape, limits) in SHAPES.items():
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((1,) * len(shape))
            space = h5py.h5s.create_simple(shape, limits)
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.STD_I8LE, space, plist)
        for name, kind in (("scalar", h5py.h5s.SCALAR), ("null", h5py.h5s.NULL)):
            space = h5py.h5s.create(kind)
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.STD_I8LE, space)
    for name in (*SHAPES, "scalar", "null"):
        (message,) = messages_of(path, name, DATASPACE)
        found = parse_dataspace(message, size)
        with h5py.File(path) as file:
            shape, space = file[name].shape, file[name].id.get_space()
            limits = space.get_simple_extent_dims(True)
            assert found.kind == space.get_simple_extent_type()
        assert found.shape == shape
        if shape:
            assert int.from_bytes(message[found.offset : found.offset + size], "little") == shape[0]
        # HDF5 takes "unlimited" for a number where lengths have fewer than 8 bytes
        assert found.limits == tuple(None if n == UNLIMITED else n for n in limits or ())


def lengths(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


DAMAGED = {
    "nothing": b"",
    "half": b"\2\1\0",
    "too few lengths": b"\2\2\0\1" + lengths(3),
    "no limits": b"\2\1\1\1" + lengths(3),
    "axes of a scalar": b"\2\1\0\0" + lengths(3),
    "axes of nothing": b"\2\1\0\2" + lengths(3),
    "too many axes": b"\2\x21\0\1" + lengths(*[1] * 33),
    "longer than its limit": b"\2\1\1\1" + lengths(3, 2),
    "half of version 1": b"\1\1\0\0\0\0\0\0\3\0\0\0",
}
UNKNOWN = {
    "version 0": b"\0\0\0\0",
    "version 3": b"\3\0\0\0",
    "class 3": b"\2\0\0\3",
    "an order of axes": b"\1\1\2\0\0\0\0\0" + lengths(3, 0),
    "more bytes than padding": b"\2\1\0\1" + lengths(3, 3),
}


@pytest.mark.parametrize("message", DAMAGED.values(), ids=DAMAGED)
def test_damaged_dataspaces_are_refused(message: bytes) -> None:
    with pytest.raises(MessageError):
        parse_dataspace(message)


@pytest.mark.parametrize("message", UNKNOWN.values(), ids=UNKNOWN)
def test_dataspaces_of_unknown_forms_are_declined(message: bytes) -> None:
    with pytest.raises(UnknownFormError):
        parse_dataspace(message)


def test_padding_is_no_part_of_a_dataspace() -> None:
    found = Dataspace(SpaceClass.SIMPLE, (3,), (3,), offset=4)
    assert parse_dataspace(b"\2\1\0\1" + lengths(3) + bytes(4)) == found
