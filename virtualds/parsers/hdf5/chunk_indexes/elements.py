"""Elements of fixed and extensible arrays as rows of chunks.

HDF5 File Format Specification 3.0, VII.C and VII.D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from virtualds.chunks.projection import Ints
from virtualds.parsers.hdf5.chunk_indexes.form import (
    ChunkRows,
    Indexes,
    check_chunks,
    join_chunks,
    parse_elements,
    sort_chunks,
)
from virtualds.parsers.hdf5.structure.byte_rows import (
    Bytes,
    UnknownRowsError,
    demand,
    have_checksums,
    is_defined,
    read_uints,
)


class Run(NamedTuple):
    """Runs of elements: whose they are, the number of the first of each, and their bytes.

    ``size`` has the bytes of an element; ``used`` how many elements of each array may be used.
    """

    owner: Ints
    first: Ints
    raw: Bytes
    size: int
    used: Ints | None = None


def demand_versions(indexes: Indexes, heads: Bytes, what: str) -> None:
    """Demand headers of version 0, whose client says whether chunks have filters."""
    version, client = heads[:, 4], heads[:, 5]
    known = (version == 0) & (client < 2)
    if not known.all():
        first = int(np.flatnonzero(~known)[0])
        unknown = f"{what} of version {version[first]} and client {client[first]}"
        demand(known, indexes.file, unknown, UnknownRowsError)
    same = client == indexes.form.has_filters
    demand(same, indexes.file, f"{what} and the filters of its dataset contradict each other")


def check_blocks(indexes: Indexes, owner: Ints, data: Bytes, signature: bytes) -> None:
    """Refuse blocks that are damaged, or of another array."""
    size, client = indexes.rows.offset_size, int(indexes.form.has_filters)
    head = np.frombuffer(signature + bytes([0, client]), np.uint8)
    known = (data[:, :6] == head).all(axis=1)
    known &= read_uints(data[:, 6 : 6 + size]) == indexes.root[owner]
    what = f"a block {signature.decode()} of an array of chunks is missing"
    sound = known & have_checksums(data)
    demand(sound, indexes.file[owner], f"{what}, or has a wrong checksum")


def join_runs(indexes: Indexes, runs: Iterable[Run], find: Callable[[Ints], Ints]) -> ChunkRows:
    """Return the chunks of all elements that are there, by ``find`` from their numbers."""
    found = [_parse_run(indexes, run, find) for run in runs]
    joined = join_chunks(found, len(indexes.form.chunks))
    return sort_chunks(check_chunks(indexes, joined))


def _parse_run(indexes: Indexes, run: Run, find: Callable[[Ints], Ints]) -> ChunkRows:
    """Return the chunks of elements that are there and may be used."""
    size = indexes.rows.offset_size
    count = run.raw.shape[1] // run.size
    raw = np.ascontiguousarray(run.raw).reshape(-1, run.size)
    number = (run.first[:, None] + np.arange(count)).ravel()
    owner = np.repeat(run.owner, count)
    there = is_defined(read_uints(raw[:, :size]), size)
    if run.used is not None:
        there &= number < np.repeat(run.used, count)
    if not there.all():
        owner, number, raw = owner[there], number[there], raw[there]
    place = find(number)
    # arrays number the chunks of the greatest shape; HDF5 never looks past the shape
    inside = (place < indexes.shape[owner].T).all(axis=0)
    if not inside.all():
        owner, place, raw = owner[inside], place[:, inside], raw[inside]
    return ChunkRows(owner, place, *parse_elements(indexes.form, raw, size))
