"""Version 2 B-trees of chunks, the index of datasets with several unlimited axes.

HDF5 File Format Specification 3.0, III.A.2. Records lie in nodes of all levels; each node says how
many records lie below it, so that every record has a known place in the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from virtualds.chunks.columns import Ints
from virtualds.parsers.hdf5.chunk_indexes.form import (
    LAST,
    ChunkRows,
    Indexes,
    check_chunks,
    check_order,
    group_alike,
    is_element_size,
    join_chunks,
    meet,
    parse_elements,
    take_heads,
)
from virtualds.parsers.hdf5.structure.byte_rows import (
    CHECKSUM_BYTES,
    Bools,
    Bytes,
    UnknownRowsError,
    check_once,
    compute_checksums,
    demand,
    is_defined,
    read_uints,
    take_parts,
)

PLAIN, FILTERED = 10, 11
"""Types of records: of chunks without and with filters (III.A.2)."""
HEAD = 16
"""Bytes of the header of a tree before the address of its root."""
BEFORE_RECORDS = 6
"""Bytes of a node before its records: signature, version and type."""
DEEPEST = 32
"""More levels than any tree has: it would hold more records than there are addresses."""


class _TreeForm(NamedTuple):
    """What trees with the same header share: bytes of nodes and records, levels below the root.

    ``most`` has the records that a node of each level may hold, the leaves first, and ``total``
    the bytes of the number of all records below a node.
    """

    size: int
    record: int
    depth: int
    most: tuple[int, ...]
    total: tuple[int, ...]

    @property
    def count_size(self) -> int:
        """Bytes of the number of records of a node."""
        return _count_bytes(self.most[0])


class _Nodes(NamedTuple):
    """Nodes of one level: whose, where, their records, and all records up to their last one.

    ``begin`` counts the records of all trees that come before.
    """

    owner: Ints
    address: Ints
    records: Ints
    begin: Ints
    total: Ints

    def cut(self, part: slice | Bools) -> _Nodes:
        """Return some of the nodes."""
        return _Nodes(*(column[part] for column in self))


class _Records(NamedTuple):
    """Records, and their places in the order of all."""

    number: Ints
    raw: Bytes


def read_trees(indexes: Indexes) -> ChunkRows:
    """Read version 2 B-trees, all nodes of a level at once.

    Raises
    ------
    RowsError
        They are damaged.
    UnknownRowsError
        They have an unknown form.
    """
    rows, file = indexes.rows, indexes.file
    size = HEAD + rows.offset_size + 2 + rows.length_size
    heads = take_heads(indexes, size, b"BTHD", "version 2 B-tree")
    kind = FILTERED if indexes.form.has_filters else PLAIN
    demand(heads[:, 4] == 0, file, "a B-tree of an unknown version", UnknownRowsError)
    demand(heads[:, 5] == kind, file, f"a B-tree has no records of type {kind}")
    return group_alike(indexes, heads, slice(6, 14), _read_alike)


def _read_alike(indexes: Indexes, heads: Bytes) -> ChunkRows:
    """Read trees whose headers differ in their roots alone."""
    rows, file = indexes.rows, indexes.file
    form = _make_form(indexes, heads)
    address, rest = heads[:, HEAD : HEAD + rows.offset_size], heads[:, HEAD + rows.offset_size :]
    root, count = read_uints(address), read_uints(rest[:, :2])
    total = read_uints(rest[:, 2 : 2 + rows.length_size])
    there = is_defined(root, rows.offset_size)
    fits = (total >= 0) & (total <= rows.ends[file] // form.record) & (there | (total == 0))
    demand(fits, file, "a B-tree has more records than its file has room for")
    owner = np.flatnonzero(there)
    begin = np.cumsum(total) - total
    nodes = _Nodes(owner, root[owner], count[owner], begin[owner], total[owner])
    parts: list[_Records] = []
    for level in range(form.depth, -1, -1):
        children: list[_Nodes] = []
        for some, data in _take_nodes(indexes, form, nodes, level):
            raw = _read_records(form, some, data, level)
            if level:
                below, number = _list_children(indexes, form, some, data, level)
                if indexes.wanted is not None:
                    below = below.cut(_find_needed(indexes, some, raw, indexes.wanted))
                children.append(below)
            else:
                number = _count_up(some.begin, some.records)
            parts.append(_Records(number, raw))
        if not children:
            break
        nodes = _Nodes(*(np.concatenate(column) for column in zip(*children, strict=True)))
    if indexes.wanted is not None:
        return _order_records(indexes, parts)
    return _join_records(indexes, form, total, parts)


def _find_needed(indexes: Indexes, nodes: _Nodes, raw: Bytes, wanted: Ints) -> Bools:
    """Say below which children of nodes chunks may lie that are wanted.

    ``raw`` has the records of the nodes, which lie between the children.
    """
    steps = np.array(indexes.form.chunks)[:, None]
    place = _parse_records(indexes, np.repeat(nodes.owner, nodes.records), raw).place
    before = indexes.count_before(place // steps)
    edges = np.concatenate(([-1], before, [LAST]))
    at = _count_up(np.cumsum(nodes.records) - nodes.records, nodes.records + 1)
    return meet(indexes.count_before(wanted), edges[at] + 1, edges[at + 1])


def _order_records(indexes: Indexes, parts: list[_Records]) -> ChunkRows:
    """Return the records of one tree that were read as rows, in their order."""
    ndim = len(indexes.form.chunks)
    if not parts:
        return ChunkRows.empty(ndim)
    number, raw = (np.concatenate(column) for column in zip(*parts, strict=True))
    owner = np.zeros(len(number), np.int64)
    found = _parse_records(indexes, owner, raw[np.argsort(number)])
    return check_order(indexes, check_chunks(indexes, found))


def _make_form(indexes: Indexes, heads: Bytes) -> _TreeForm:
    """Return the form of trees from the header that they share."""
    offset_size, file = indexes.rows.offset_size, indexes.file
    size, record, depth = (
        int(read_uints(heads[:1, a:b])[0]) for a, b in ((6, 10), (10, 12), (12, 14))
    )
    element = record - 8 * len(indexes.form.chunks)
    fits = is_element_size(indexes.form, element, offset_size) and depth <= DEEPEST
    room = size - BEFORE_RECORDS - CHECKSUM_BYTES
    most, total = [room // record if record else 0], [0]
    below = most[0]
    count = _count_bytes(below)
    for level in range(1, depth + 1 if fits else 0):
        # pointers to nodes that are no leaves also give the number of all records below
        total.append(_count_bytes(below) if level > 1 else 0)
        pointer = offset_size + count + total[-1]
        most.append((room - pointer) // (record + pointer))
        below = (most[-1] + 1) * below + most[-1]
    sound = fits and min(most) >= 1
    demand(np.full(len(file), sound), file, "the header of a B-tree contradicts itself")
    return _TreeForm(size, record, depth, tuple(most), tuple(total))


def _count_bytes(number: int) -> int:
    """Return the bytes that a number takes."""
    return -(-number.bit_length() // 8)


def _take_nodes(
    indexes: Indexes, form: _TreeForm, nodes: _Nodes, level: int
) -> Iterator[tuple[_Nodes, Bytes]]:
    """Yield checked nodes of a level in parts."""
    file = indexes.file[nodes.owner]
    two = "a node of a B-tree has two parents"
    check_once(indexes.rows, file, nodes.owner, nodes.address, form.size, two)
    counts = "a node of a B-tree has another number of records than it says"
    fits = nodes.records <= form.most[level]
    demand(fits & (nodes.total >= nodes.records), file, counts)
    if not level:
        demand(nodes.total == nodes.records, file, counts)
    head = (b"BTIN" if level else b"BTLF") + bytes(
        [0, FILTERED if indexes.form.has_filters else PLAIN]
    )
    pointer = indexes.rows.offset_size + form.count_size + form.total[level] if level else 0
    for part, data in take_parts(indexes.rows, file, nodes.address, form.size):
        some = nodes.cut(part)
        known = (data[:, : len(head)] == np.frombuffer(head, np.uint8)).all(axis=1)
        demand(known, file[part], f"a B-tree lacks a node of level {level}")
        stop = BEFORE_RECORDS + some.records * form.record + (some.records + bool(level)) * pointer
        sums = compute_checksums([row[:n] for row, n in zip(data, stop.tolist(), strict=True)])
        stated = np.take_along_axis(data, stop[:, None] + np.arange(CHECKSUM_BYTES), 1)
        demand(sums == read_uints(stated), file[part], "a node of a B-tree has a wrong checksum")
        yield some, data


def _count_up(begin: Ints, count: Ints) -> Ints:
    """Return the numbers from each beginning on, so many of each."""
    return np.arange(count.sum()) + np.repeat(begin - np.cumsum(count) + count, count)


def _read_records(form: _TreeForm, nodes: _Nodes, data: Bytes, level: int) -> Bytes:
    """Return the records that nodes hold themselves."""
    most = form.most[level]
    stop = BEFORE_RECORDS + most * form.record
    room = data[:, BEFORE_RECORDS:stop].view(f"V{form.record}")
    picked = room[np.arange(most) < nodes.records[:, None]]
    return picked.view(np.uint8).reshape(-1, form.record)


def _list_children(
    indexes: Indexes, form: _TreeForm, nodes: _Nodes, data: Bytes, level: int
) -> tuple[_Nodes, Ints]:
    """Return the children of nodes, and the numbers of the records between them."""
    at, most = indexes.rows.offset_size, form.most[level]
    pointer = at + form.count_size + form.total[level]
    begin = BEFORE_RECORDS + nodes.records * form.record
    fields = np.take_along_axis(data, begin[:, None] + np.arange((most + 1) * pointer), 1)
    used = np.arange(most + 1) <= nodes.records[:, None]
    raw = fields.reshape(len(data), most + 1, pointer)[used]
    count = read_uints(raw[:, at : at + form.count_size])
    total = read_uints(raw[:, at + form.count_size :]) if level > 1 else count
    children = nodes.records + 1
    start = np.cumsum(children) - children
    owner = np.repeat(nodes.owner, children)
    wrong = "a node of a B-tree has another number of records than it says"
    within = (total >= 0) & (total <= np.repeat(nodes.total, children))
    demand(within, indexes.file[owner], wrong)
    exact = np.add.reduceat(total, start) + nodes.records == nodes.total
    demand(exact, indexes.file[nodes.owner], wrong)
    # every child is followed by one record, but for the last child of a node
    step = total + 1
    before = np.cumsum(step) - step
    first = np.repeat(nodes.begin - before[start], children) + before
    number = np.delete(first + total, start + nodes.records)
    return _Nodes(owner, read_uints(raw[:, :at]), count, first, total), number


def _join_records(
    indexes: Indexes, form: _TreeForm, total: Ints, parts: list[_Records]
) -> ChunkRows:
    """Return all records in their order as rows."""
    raw = np.empty((int(total.sum()), form.record), np.uint8)
    while parts:
        part = parts.pop()
        raw[part.number] = part.raw
    owner = np.repeat(np.arange(len(total)), total)
    slices = [slice(begin, begin + 2**16) for begin in range(0, len(raw), 2**16)]
    columns = [_parse_records(indexes, owner[part], raw[part]) for part in slices]
    del raw, owner
    found = join_chunks(columns, len(indexes.form.chunks))
    return check_order(indexes, check_chunks(indexes, found))


def _parse_records(indexes: Indexes, owner: Ints, raw: Bytes) -> ChunkRows:
    """Return records as rows; they count positions in chunks."""
    chunks = indexes.form.chunks
    stop = raw.shape[1] - 8 * len(chunks)
    columns = parse_elements(indexes.form, raw[:, :stop], indexes.rows.offset_size)
    place = np.ascontiguousarray(read_uints(raw[:, stop:].reshape(-1, len(chunks), 8)).T)
    for values, chunk in zip(place, chunks, strict=True):
        countable = (values >= 0) & (values <= LAST // chunk)
        demand(countable, indexes.file[owner], "a chunk lies outside of the shape")
        values *= chunk
    return ChunkRows(owner, place, *columns)
