"""Fill values, read from the bytes of their messages, are those that h5py reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_messages import LIBVERS, messages_of, new_file, replace_message
from products import looped

from virtualds.parsers.hdf5.structure.messages import (
    DEFAULT_FILL,
    NO_FILL,
    FillState,
    MessageError,
    UnknownFormError,
    parse_fill_value,
    parse_old_fill_value,
)
from virtualds.parsers.hdf5.structure.object_header import FILL, OLD_FILL

FILLS = {
    "integer": np.array(-5, "<i2"),
    "big integer": np.array(70000, ">i4"),
    "zero": np.array(0, "u1"),
    "float": np.array(1e30, "<f8"),
    "not a number": np.array(np.nan, ">f4"),
    "text": np.array(b"none", "S7"),
    "compound": np.array((1, 2.5), [("a", "<i2"), ("b", ">f8")]),
    "opaque": np.array(b"abc", "V3"),
    "complex": np.array(1 - 2j, "<c8"),
}
TIMES = {
    "never": h5py.h5d.FILL_TIME_NEVER,
    "at once": h5py.h5d.FILL_TIME_ALLOC,
    "if chosen": h5py.h5d.FILL_TIME_IFSET,
}


def state_of(path: Path, name: str) -> int:
    with h5py.File(path) as file:
        found: int = file[name].id.get_create_plist().fill_value_defined()
    return found


def create(file: h5py.File, name: str, fill: Any, when: int | None = None) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if fill is not None:
        plist.set_fill_value(fill)
    if when is not None:
        plist.set_fill_time(when)
    kind = h5py.h5t.STD_I32LE if fill is None else h5py.h5t.py_create(fill.dtype)
    h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((3,)), plist)


@pytest.mark.parametrize("libver", LIBVERS)
def test_chosen_fill_values_are_those_that_h5py_reads(tmp_path: Path, libver: str) -> None:
    path = tmp_path / "a.h5"
    with new_file(path, libver) as file:
        for name, fill in FILLS.items():
            file.create_dataset(name, (3,), fill.dtype, fillvalue=fill)
    for name, fill in FILLS.items():
        (message,) = messages_of(path, name, FILL)
        found = parse_fill_value(message)
        assert found.state == state_of(path, name) == FillState.USER_DEFINED
        read = np.zeros((1,), fill.dtype)
        with h5py.File(path) as file:
            file[name].id.get_create_plist().get_fill_value(read)
        assert found.is_user_defined
        assert found.raw == read.tobytes() == fill.tobytes()
        for old in messages_of(path, name, OLD_FILL):
            assert parse_old_fill_value(old) == found
    assert len(messages_of(path, "zero", OLD_FILL)) == (libver == "earliest")


@looped("when", TIMES)
@looped("libver", LIBVERS)
def test_fill_values_that_nobody_chose_are_default(tmp_path: Path, libver: str, when: str) -> None:
    path = tmp_path / "a.h5"
    with new_file(path, libver) as file:
        create(file, "v", None, TIMES[when])
    (message,) = messages_of(path, "v", FILL)
    assert parse_fill_value(message) == DEFAULT_FILL
    assert state_of(path, "v") == FillState.DEFAULT


OTHER_FORMS = {
    "version 1": (FILL, b"\1\2\2\1\4\0\0\0\xfb\xff\xff\xff"),
    "undefined in version 1": (FILL, b"\1\2\2\0\4\0\0\0"),
    "default in version 1": (FILL, b"\1\2\2\1\0\0\0\0"),
    "undefined in version 2": (FILL, b"\2\2\2\0"),
    "undefined by its length": (FILL, b"\2\2\2\1\xff\xff\xff\xff"),
    "version 3": (FILL, b"\3\x29\4\0\0\0\7\0\0\0"),
    "undefined in version 3": (FILL, b"\3\x19"),
    "default in version 3": (FILL, b"\3\x09"),
    "chosen in the old message": (OLD_FILL, b"\4\0\0\0\7\0\0\0"),
    "nothing in the old message": (OLD_FILL, b"\0\0\0\0"),
}


@looped("form", OTHER_FORMS)
def test_fill_values_of_other_forms_are_those_that_h5py_reads(tmp_path: Path, form: str) -> None:
    kind, message = OTHER_FORMS[form]
    path = tmp_path / "a.h5"
    with new_file(path, "earliest") as file:
        create(file, "v", np.array(1, "<i4"))
    replace_message(path, "v", {FILL: b"", OLD_FILL: b""} | {kind: message})
    found = (parse_fill_value if kind == FILL else parse_old_fill_value)(message)
    assert found.state == state_of(path, "v")
    if found.is_user_defined:
        read = np.zeros((1,), "<i4")
        with h5py.File(path) as file:
            file["v"].id.get_create_plist().get_fill_value(read)
        assert read.tobytes() == found.raw


def test_a_dataset_without_a_message_has_no_fill_value(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with new_file(path, "earliest") as file:
        create(file, "v", np.array(1, "<i4"))
    replace_message(path, "v", {FILL: b"", OLD_FILL: b""})
    assert state_of(path, "v") == NO_FILL.state


DAMAGED = {
    "nothing": b"",
    "half": b"\2\2\2",
    "no length": b"\2\2\2\1\4\0",
    "half a value": b"\2\2\2\1\4\0\0\0\1",
    "half a value of version 3": b"\3\x29\4\0\0\0\1",
    "undefined and there": b"\3\x39\4\0\0\0\1\0\0\0",
}
UNKNOWN = {
    "version 0": b"\0\2\2\0",
    "version 4": b"\4\x09",
    "unknown flags": b"\3\x49",
    "more bytes than padding": b"\3\x09" + bytes(8),
    "more bytes behind a value": b"\2\2\2\1\1\0\0\0\1" + bytes(8),
}


@pytest.mark.parametrize("message", DAMAGED.values(), ids=DAMAGED)
def test_damaged_fill_values_are_refused(message: bytes) -> None:
    with pytest.raises(MessageError):
        parse_fill_value(message)


@pytest.mark.parametrize("message", UNKNOWN.values(), ids=UNKNOWN)
def test_fill_values_of_unknown_forms_are_declined(message: bytes) -> None:
    with pytest.raises(UnknownFormError):
        parse_fill_value(message)


def test_an_old_fill_value_that_is_cut_short_is_refused() -> None:
    for message in (b"", b"\4\0\0", b"\4\0\0\0\1\2\3"):
        with pytest.raises(MessageError):
            parse_old_fill_value(message)
