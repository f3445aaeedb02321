"""Reads local files into existing memory: that of a thread, or the result itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy.typing as npt

from virtualds.bounds import Buffer
from virtualds.reading.decode import Decoder, get_scratch
from virtualds.reading.tasks import Task
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.local import LocalStore
from virtualds.stores.preadv import count_row_bytes
from virtualds.stores.store import Range, StoreError

Array = npt.NDArray[Any]

DIRECT_BYTES = 2**16
"""Bytes of a chunk from which on it is read straight into the result."""

DIRECT_ROW_BYTES = 2**10
"""Bytes of a row of the result from which on the system copies it as fast as numpy."""


def find_local_store(file: SourceFile) -> LocalStore | None:
    """Return the store of a local file, which reads into given memory; else None."""
    store = find_store(file.url)
    return store if isinstance(store, LocalStore) else None


def fetch_ranges(file: SourceFile, ranges: Sequence[Range]) -> Sequence[Buffer]:
    """Return ranges of a file; those of a local file are valid until this thread's next call."""
    if (store := find_local_store(file)) is None:
        return find_store(file.url).get_ranges(file, ranges)
    lengths = [length for _, length in ranges]
    try:
        room = get_scratch(sum(lengths), "run").data
    except MemoryError as error:
        raise StoreError(f"there is no memory for {sum(lengths)} bytes") from error
    found = [room[e - n : e] for n, e in zip(lengths, accumulate(lengths), strict=True)]
    store.read_into(file, ranges, found)
    return found


def find_direct_target(decoder: Decoder, task: Task, out: Array) -> Array | None:
    """Return the box of the result that a chunk can be read straight into, if it is worth a call.

    It is None for chunks that must be checked first: with a checksum, or of a wrong length.
    """
    if not decoder.is_plain or task.checksum or task.length < DIRECT_BYTES:
        return None
    target = decoder.find_target(task, out)
    if target is None or target.nbytes != task.length or count_row_bytes(target) < DIRECT_ROW_BYTES:
        return None
    return target
