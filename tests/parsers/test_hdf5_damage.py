"""Damaged lists of scales and heaps: an error or the values, never the end of the process."""

from __future__ import annotations

import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

CHILD = """
import sys
from virtualds import VirtualdsError
from virtualds.api import open_group
print("ready", flush=True)
for line in sys.stdin:
    try:
        open_group(line.strip(), parser="hdf5")
        print("opened", flush=True)
    except (VirtualdsError, FileNotFoundError) as error:
        print("refused", flush=True)
    except BaseException as error:
        print(f"failed with {error!r}"[:300], flush=True)
"""
MOST_SECONDS = 20


class Child:
    """A process that opens files, and may be killed."""

    def __init__(self) -> None:
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
        if not select.select([self.process.stdout], [], [], MOST_SECONDS)[0]:
            return "came to no end"
        return self.process.stdout.readline().strip() or "ended the process"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


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


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("name", PLACES, ids=lambda name: name.decode().strip("\0"))
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
            assert child.open(path) in ("opened", "refused"), f"byte {place} is {value}"
