"""Object headers: their messages are found, and damage of them is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from hdf5_messages import messages_of

import virtualds
from virtualds import FormatError, SourceFile
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, Message, read_messages
from virtualds.parsers.hdf5.structure.object_header import (
    DATATYPE,
    LAYOUT,
    LINK,
    find_shared_heap,
    read_links,
)


@pytest.mark.parametrize("times", [False, True])
def test_messages_stand_behind_the_times_and_the_storage_of_attributes(
    times: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_obj_track_times(times)
        plist.set_attr_phase_change(20, 10)
        space = h5py.h5s.create_simple((3,))
        made = h5py.Dataset(h5py.h5d.create(file.id, b"v", h5py.h5t.STD_I32LE, space, dcpl=plist))
        made[:] = [5, 6, 7]
        made.attrs["units"] = "m"
        address = h5py.h5o.get_info(made.id).addr
    flags = path.read_bytes()[address + 5]
    assert (flags & 0x10, bool(flags & 0x20)) == (0x10, times)
    assert len(messages_of(path, "v", LAYOUT)) == 1
    with virtualds.set_options(hdf5="auto"):
        found = virtualds.open_virtual_dataset(path)["v"]
    np.testing.assert_array_equal(found, [5, 6, 7])
    assert found.attrs["units"] == "m"


@pytest.mark.parametrize("libver", ["v110", "v108"])
def test_a_changed_bit_of_a_superblock_is_an_error(libver: str, tmp_path: Path) -> None:
    """Also if it is one of the checksum, as HDF5 has it."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=(libver, libver)) as file:
        file["v"] = np.arange(3)
    sound = path.read_bytes()
    # version, addresses of the end and of the root group, checksum
    for at in (11, 28, 36, 44, 47):
        damaged = bytearray(sound)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(OSError, match="Unable to synchronously open file"):
            h5py.File(path)
        with pytest.raises(FormatError, match="checksum"):
            virtualds.open_virtual_dataset(path)


def test_damaged_objects_are_named_in_the_order_of_their_group(tmp_path: Path) -> None:
    path, names = tmp_path / "a.h5", [f"v{number}" for number in range(8)]
    with h5py.File(path, "w", libver="latest") as file:
        for name in names:
            file[name] = np.arange(3)
    data = bytearray(path.read_bytes())
    root = int.from_bytes(data[36:44], "little")
    at = data.find(b"OHDR")
    while at >= 0:
        data[at + 8] ^= 0x40 * (at != root)
        at = data.find(b"OHDR", at + 4)
    path.write_bytes(data)
    with pytest.raises(FormatError) as raised:
        virtualds.open_virtual_dataset(path)
    told = "\n".join([str(raised.value), *raised.value.__notes__])
    assert re.findall(r"variable '(v\d)'", told) == names


def test_a_changed_bit_of_a_continuation_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for name in "vw":
            file[name] = np.arange(3)
        # it does not fit into the block that the header begins with, and that cannot grow
        file["v"].attrs["numbers"] = np.arange(200)
        address = h5py.h5o.get_info(file["v"].id).addr
    sound = path.read_bytes()
    [begin] = [n for n in range(len(sound)) if sound[n : n + 4] == b"OCHK"]
    # a value of an attribute, which nothing else holds
    at = sound.index(np.arange(200).tobytes(), begin)
    raw = bytearray(sound)
    raw[at] ^= 1
    path.write_bytes(raw)
    damaged = FileBytes(SourceFile(path.as_uri()))
    try:
        with pytest.raises(FormatError, match="has a wrong checksum"):
            read_messages(damaged, address)
    finally:
        damaged.close()
    with pytest.raises(FormatError, match=r"variable 'v' of .*checksum"):
        virtualds.open_virtual_dataset(path)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[FileBytes]:
    h5py.File(tmp_path / "a.h5", "w").close()
    file = FileBytes(SourceFile((tmp_path / "a.h5").as_uri()))
    yield file
    file.close()


def test_a_link_whose_target_is_cut_short_is_an_error(file: FileBytes) -> None:
    # version, flags for a type, soft, a name of one byte, and a target of two
    whole = bytes([1, 0x08, 1, 1]) + b"a" + bytes([2, 0]) + b"/b"
    [link] = read_links(file, [Message(LINK, 0, whole)])
    assert (link.name, link.target) == (b"a", b"/b")
    for damaged in (whole[:-1], whole[:-2], whole[:-4] + bytes(2)):
        with pytest.raises(FormatError, match="target of a link is cut short"):
            read_links(file, [Message(LINK, 0, damaged)])


def test_a_shared_message_of_a_file_without_a_table_is_an_error(file: FileBytes) -> None:
    with pytest.raises(FormatError, match="no table of them"):
        find_shared_heap(file, DATATYPE)


def test_compact_values_that_are_cut_short_are_an_error(tmp_path: Path) -> None:
    # what is cut off looks like padding
    values = np.array([1, 2, 3, 4, 5, 6, 7, 0], "u1")
    with h5py.File(tmp_path / "a.h5", "w", libver="earliest") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(values.shape)
        made = h5py.h5d.create(file.id, b"v", h5py.h5t.STD_U8LE, space, plist)
        h5py.Dataset(made)[:] = values
    sound = (tmp_path / "a.h5").read_bytes()
    whole, cut = (size + values.tobytes() for size in (b"\x08\0", b"\x07\0"))
    assert sound.count(whole) == 1
    (tmp_path / "a.h5").write_bytes(sound.replace(whole, cut))
    # when the file is opened, not when they are read
    with pytest.raises(FormatError, match=r"variable 'v' of (?s:.*) damaged"):
        virtualds.open_virtual_dataset(tmp_path / "a.h5", loadable_variables=[])
