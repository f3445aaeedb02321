"""A source format in one file: rows of floats behind ``TOY1`` and the length of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np

import virtualds
from virtualds.arrays.parser import NativeReader, ReadNative, make_stored_reader

HEADER = 8


def detect(head: bytes) -> bool:
    return head[:4] == b"TOY1"


def read(
    source: virtualds.SourceFile, group: str | None = None, skip: Iterable[str] = ()
) -> virtualds.ManifestGroup:
    with virtualds.open_source(source) as file:
        columns = int.from_bytes(file.read(HEADER)[4:], "little")
        rows = (file.seek(0, 2) - HEADER) // (4 * columns)
    array = virtualds.ManifestArray.from_arrays(
        shape=(rows, columns),
        chunks=(1, columns),
        dtype="<f4",
        path=source,
        offsets=HEADER + 4 * columns * np.arange(rows).reshape(rows, 1),
        lengths=4 * columns,
    )
    found = {"t": virtualds.ManifestVariable(("y", "x"), array, {"units": "K"})}
    return virtualds.ManifestGroup({n: v for n, v in found.items() if n not in skip}).group(group)


def open_numpy(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    columns = int(np.fromfile(target(), "<u4", 1, offset=4)[0])
    values = np.fromfile(target(), "<f4", offset=HEADER).reshape(-1, columns)
    return make_stored_reader(lambda wanted: values)


parser = virtualds.Parser(
    "toy", (".toy",), detect, read, natives=(NativeReader("numpy", open_numpy),)
)
