"""Filter pipelines, read from the bytes of their messages, are those that h5py reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from hdf5_messages import LIBVERS, messages_of, new_file

from virtualds.parsers.hdf5.structure.messages import (
    FILTERS,
    MessageError,
    UnknownFormError,
    parse_filter_pipeline,
)

OPTIONAL = h5py.h5z.FLAG_OPTIONAL
UNREGISTERED = 305


def _add_many(plist: Any) -> None:
    for number in range(15):
        plist.set_filter(UNREGISTERED + number, OPTIONAL, (number,) * number)


def _add_all_of_hdf5(plist: Any) -> None:
    plist.set_shuffle()
    plist.set_deflate(1)
    plist.set_fletcher32()


PIPELINES: dict[str, Callable[[Any], None]] = {
    "deflate": lambda plist: plist.set_deflate(9),
    "shuffle": lambda plist: plist.set_shuffle(),
    "checksum": lambda plist: plist.set_fletcher32(),
    "lzf": lambda plist: plist.set_filter(h5py.h5z.FILTER_LZF, OPTIONAL),
    "nbit": lambda plist: plist.set_filter(h5py.h5z.FILTER_NBIT),
    "scale and offset": lambda plist: plist.set_scaleoffset(h5py.h5z.SO_INT, 3),
    "no parameters": lambda plist: plist.set_filter(UNREGISTERED, OPTIONAL),
    "odd parameters": lambda plist: plist.set_filter(UNREGISTERED, OPTIONAL, (1, 2**32 - 1, 3)),
    "even parameters": lambda plist: plist.set_filter(UNREGISTERED, OPTIONAL, (4, 5)),
    "many parameters": lambda plist: plist.set_filter(UNREGISTERED, OPTIONAL, tuple(range(16))),
    "many filters": _add_many,
    "all of HDF5": _add_all_of_hdf5,
}


@pytest.mark.parametrize("libver", LIBVERS)
def test_filters_are_those_that_h5py_reads(tmp_path: Path, libver: str) -> None:
    path = tmp_path / "a.h5"
    with new_file(path, libver) as file:
        for name, add in PIPELINES.items():
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((4,))
            add(plist)
            space = h5py.h5s.create_simple((10,))
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.STD_I32LE, space, plist)
    for name in PIPELINES:
        (message,) = messages_of(path, name, FILTERS)
        with h5py.File(path) as file:
            plist = file[name].id.get_create_plist()
            known = [plist.get_filter(i)[:3] for i in range(plist.get_nfilters())]
        assert [tuple(one) for one in parse_filter_pipeline(message)] == known, name


def test_all_parameters_of_a_filter_are_read() -> None:
    # h5py gives the first 16
    values = tuple(range(100, 133))
    raw = b"".join(n.to_bytes(4, "little") for n in values)
    (found,) = parse_filter_pipeline(b"\2\1\5\0\0\0\x21\0" + raw)
    assert found == (5, 0, values)


def old(*filters: bytes) -> bytes:
    return bytes([1, len(filters), 0, 0, 0, 0, 0, 0]) + b"".join(filters)


DEFLATE = b"\1\0\x08\0\1\0\1\0deflate\0\6\0\0\0\0\0\0\0"
DAMAGED = {
    "nothing": b"",
    "no filter": b"\2\1",
    "half a filter": old(DEFLATE)[:-5],
    "half a filter of two": old(DEFLATE, DEFLATE)[:-12],
    "half of version 2": b"\2\1\1\0\1\0\1\0\6\0\0",
    "too many filters": b"\2\x21" + b"\1\0\0\0\0\0" * 33,
    "a name that is not padded": old(b"\1\0\x07\0\1\0\0\0deflate"),
    "a name past the end": b"\2\1\0\x7d\xff\0\1\0\0\0abc",
}
UNKNOWN = {
    "version 0": b"\0\0",
    "version 3": b"\3\0",
    "more bytes than padding": old(DEFLATE) + bytes(8),
}


@pytest.mark.parametrize("message", DAMAGED.values(), ids=DAMAGED)
def test_damaged_pipelines_are_refused(message: bytes) -> None:
    with pytest.raises(MessageError):
        parse_filter_pipeline(message)


@pytest.mark.parametrize("message", UNKNOWN.values(), ids=UNKNOWN)
def test_pipelines_of_unknown_forms_are_declined(message: bytes) -> None:
    with pytest.raises(UnknownFormError):
        parse_filter_pipeline(message)
