"""Fetching: the bytes of every batch are had from its store, decoded and placed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from virtualds.checksum import mismatch
from virtualds.codecs import Buffer, CodecError
from virtualds.errors import ReadError
from virtualds.manifest import INLINE, MISSING
from virtualds.read.decode import place, place_missing
from virtualds.read.load import chunk_read
from virtualds.read.memory import hold
from virtualds.read.plan import Batch, Readable, Selection, Task
from virtualds.read.pool import run_all
from virtualds.store import StoreError
from virtualds.stores import store_for

Array = npt.NDArray[Any]


def execute(source: Readable, selection: Selection, out: Array) -> None:
    """Carry out a planned selection into ``out``.

    Raises
    ------
    ReadError
        Bytes cannot be had, have changed, or do not decode; it names file, bytes, chunk and
        variable.
    """
    if not selection.covered:
        out[...] = source.fill_value
    run_all(selection.batches, lambda batch: _carry_out(source, batch, out))


def _carry_out(source: Readable, batch: Batch, out: Array) -> None:
    fetched = _fetch(source, batch)
    for task, data in zip(batch.tasks, fetched, strict=True):
        pipeline = batch.pipelines[task.pipeline]
        try:
            if batch.file == MISSING:
                place_missing(pipeline, task, out)
            else:
                if reason := mismatch(data, task.checksum):
                    raise _error(source, batch, task, reason)
                place(pipeline, data, task, out)
        except CodecError as error:
            raise _error(source, batch, task, f"the bytes do not decode: {error}") from error
    hold("fetched", fetched, sum(map(len, fetched)))


def _fetch(source: Readable, batch: Batch) -> Sequence[Buffer]:
    manifest = batch.fragment.manifest
    if batch.file == MISSING:
        return [b""] * len(batch.tasks)
    if batch.file == INLINE:
        return [manifest.inline[task.offset] for task in batch.tasks]
    file = manifest.files[batch.file]
    ranges = [(task.offset, task.length) for task in batch.tasks]
    try:
        return store_for(file.url).get_ranges(file, ranges)
    except StoreError as error:
        raise _error(source, batch, batch.tasks[error.item], str(error)) from error.__cause__


def _error(source: Readable, batch: Batch, task: Task, reason: str) -> ReadError:
    """Return an error that says which bytes of which file were meant for which chunk."""
    manifest = batch.fragment.manifest
    codes = {INLINE: "bytes held inline", MISSING: "the fill value of a missing chunk"}
    url = codes[batch.file] if batch.file < 0 else manifest.files[batch.file].url
    error = ReadError(
        f"{url}, bytes {task.offset} to {task.offset + task.length}: {reason}; "
        f"restore the file, or scan it again"
    )
    error.add_note(f"variable {source.name or '(unnamed)'}, chunk {_chunk_id(source, batch, task)}")
    return error


def _chunk_id(source: Readable, batch: Batch, task: Task) -> tuple[int, ...]:
    """Return which chunk of the array bytes belong to; uncompressed chunks are read in pieces."""
    for fragment in source.fragments:
        found = chunk_read(fragment, batch.fragment, batch.file, task.offset)
        if found is not None:
            return found
    return ()
