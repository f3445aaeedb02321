"""Damaged lists of scales and heaps: an error or the values, never the end of the process."""

from __future__ import annotations

import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from products import few_quick

import virtualds
from virtualds import FormatError

CHILD = """
import sys, zlib
from virtualds import VirtualdsError
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
print("ready", flush=True)
for line in sys.stdin:
    try:
        group = open_group(Location.of(line.strip()), OpenOptions(parser="hdf5"))
        found = {name: variable.attributes for name, variable in group.variables.items()}
        print("opened", len(repr(found)), zlib.crc32(repr(found).encode()), flush=True)
    except (VirtualdsError, FileNotFoundError) as error:
        print("refused", flush=True)
    except BaseException as error:
        print(f"failed with {error!r}"[:300], flush=True)
"""
MAX_SECONDS = 20


class Child:
    """A process that opens files, and may be killed: then the next test has a new one."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def open(self, path: Path) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], MAX_SECONDS)[0]:
            self.close()
            return "came to no end"
        if said := self.process.stdout.readline().strip():
            return said
        self.close()
        return "ended the process"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def running() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


@pytest.fixture
def child(running: Child) -> Child:
    """The process that tests share, since it takes longer to start than to open many files."""
    if running.process.poll() is not None:
        running.start()
    return running


def sound(path: Path, libver: str) -> bytes:
    with h5py.File(path, "w", libver=libver) as file:
        for name in "xy":
            file[name] = np.arange(4.0)
            file[name].make_scale(name)
        file.create_dataset("v", data=np.arange(16.0).reshape(4, 4), chunks=(2, 2))
        for axis, name in enumerate("xy"):
            file["v"].dims[axis].attach_scale(file[name])
        file["v"].attrs["units"] = "metres"
        file["v"].attrs["words"] = np.array(["a", "bcd"], h5py.string_dtype())
    return path.read_bytes()


# what is damaged, how much of it follows its name, and how much of that is looked at
PLACES = {b"CLASS\0": 64, b"DIMENSION_LIST\0": 96, b"units\0": 64, b"words\0": 80, b"GCOL": 240}


@pytest.mark.sampled(2)
@pytest.mark.product
@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize(
    "name", few_quick(PLACES, [b"GCOL"]), ids=lambda name: name.decode().strip("\0")
)
def test_damage_of_attributes_and_heaps_neither_aborts_nor_stalls(
    name: bytes, libver: str, child: Child, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    raw = sound(path, libver)
    begin = next(re.finditer(re.escape(name), raw)).start() - 12
    for place in range(begin, begin + PLACES[name]):
        for value in {0, 255, raw[place] ^ 8} - {raw[place]}:
            damaged = bytearray(raw)
            damaged[place] = value
            path.write_bytes(damaged)
            said = child.open(path).partition(" ")[0]
            assert said in ("opened", "refused"), f"byte {place} is {value}: {said}"


def many(path: Path) -> bytes:
    """Write a variable that refers to a heap, and attributes that lie in another."""
    text = h5py.string_dtype()
    with h5py.File(path, "w", libver="latest") as file:
        made = file.create_dataset("v", (3,), [("n", "i4"), ("t", text)], chunks=(2,))
        made[:] = [(1, "a"), (2, "bcd"), (3, "")]
        file["w"] = np.array(["x", "yz"], text)
        for number in range(12):
            file["w"].attrs[f"attribute {number}"] = number
        file["w"].attrs["words"] = np.array(["a", "bcd"], text)
        # too long for the heap
        file["w"].attrs["huge"] = np.arange(600.0)
    return path.read_bytes()


# signatures of blocks, and how much of them is looked at
BLOCKS = {b"FRHP": 146, b"FHDB": 300, b"BTHD": 38, b"BTLF": 290, b"GCOL": 200}


@pytest.mark.full
@pytest.mark.parametrize("name", BLOCKS, ids=bytes.decode)
def test_damage_of_heaps_and_their_indexes_changes_no_attribute(
    name: bytes, child: Child, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    raw = many(path)
    sound = child.open(path)
    assert sound.startswith("opened")
    for found in re.finditer(name, raw):
        # what is behind is left for blocks that follow
        for place in range(found.start(), min(found.start() + BLOCKS[name], len(raw)), 2):
            damaged = bytearray(raw)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            said = child.open(path)
            if name == b"GCOL":
                said = said.partition(" ")[0].replace("opened", sound)
            assert said in (sound, "refused"), f"byte {place}: {said}"


def test_an_axis_longer_than_any_is_an_error_of_its_variable(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["v"] = np.arange(77, dtype="i1")
        file["w"] = 1.0
    length = (77).to_bytes(8, "little")
    raw = path.read_bytes()
    assert raw.count(length * 2) == 1
    path.write_bytes(raw.replace(length * 2, (2**62).to_bytes(8, "little") * 2))
    with pytest.raises(FormatError, match="axis"):
        virtualds.open_virtual_dataset(path)
    assert "w" in virtualds.open_virtual_dataset(path, drop_variables="v").variables


def spoil_name(raw: bytearray) -> None:
    """Move the name of the first link of a group past its heap (III.B, symbol table node)."""
    at = raw.index(b"SNOD") + 8
    raw[at : at + 8] = (2**40).to_bytes(8, "little")


def spoil_object(raw: bytearray) -> None:
    """Give the object of that link a version that no header has (IV.A.1.a)."""
    at = raw.index(b"SNOD") + 16
    raw[int.from_bytes(raw[at : at + 8], "little")] = 9


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(spoil_name, "cannot list the group '/'"), (spoil_object, r"cannot open '/v' \(.*version")],
)
def test_what_hdf5_cannot_open_is_named_with_its_file_and_the_cause(
    spoil: Callable[[bytearray], None], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "spoilt.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["v"] = np.arange(3)
    raw = bytearray(path.read_bytes())
    spoil(raw)
    path.write_bytes(raw)
    with pytest.raises(FormatError, match=rf"(?s)spoilt\.h5: HDF5 {words}.*fetch it again"):
        virtualds.open_virtual_dataset(path)
