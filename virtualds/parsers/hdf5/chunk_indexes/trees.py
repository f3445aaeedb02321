"""B-trees of chunks, which are read level by level.

HDF5 File Format Specification 3.0, III.A.1 and III.A.2. Version 1 is the index of most files.
Version 2 is the index of datasets with several unlimited axes since HDF5 1.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import Ints
from virtualds.parsers.hdf5.chunk_indexes.layout import (
    MAX_INT64,
    ChunkRows,
    Indexes,
    check_chunks,
    check_order,
    group_by_header,
    intersect,
    is_before,
    is_element_size,
    join_chunks,
    parse_elements,
    read_index_headers,
)
from virtualds.parsers.hdf5.structure import (
    CHECKSUM_BYTES,
    NODE_PREFIX_BYTES,
    Bools,
    Bytes,
    RowsError,
    TreeLayout,
    UnknownRowsError,
    check_single_parents,
    compute_checksums,
    is_defined,
    read_row_batches,
    read_uints,
    require,
)

# ---------------------------------------------------------------------- version 1
# HDF5 File Format Specification 3.0, III.A.1. HDF5 finds a chunk by the keys of all levels, but
# lists chunks (`H5Dchunk_iter`) only by those of the last level. If keys are inconsistent, it lists
# chunks that it does not find.


NODE_HEADER_BYTES = 8
"""Size in bytes of signature, type, level and number of entries of a node (III.A.1)."""
KEY_PREFIX_BYTES = 8
"""Size in bytes of a key before the position: length and filter mask."""
CHUNK_TREE = 1
"""Type of a version 1 B-tree whose leaves are chunks."""
Entries = npt.NDArray[Any]


class _OldNodes(NamedTuple):
    """Nodes of one level: owners, addresses, and the keys around them in their parents.

    ``low`` and ``high`` are None for roots.
    """

    owner: Ints
    address: Ints
    low: Ints | None
    high: Ints | None

    def select(self, part: slice | Ints) -> _OldNodes:
        """Return the nodes at ``part``."""
        low = None if self.low is None else self.low[part]
        high = None if self.high is None else self.high[part]
        return _OldNodes(self.owner[part], self.address[part], low, high)


class _NodeLayout(NamedTuple):
    """The layout of nodes: size, maximum number, offset and dtype of entries."""

    size: int
    max_entries: int
    entries_at: int
    entry: np.dtype[Any]


@lru_cache(64)
def make_node_layout(rank: int, istore_k: int, offset_size: int) -> _NodeLayout:
    """Return the layout of a node; ``rank`` is the number of axes plus one, as in keys."""
    # positions have 8 bytes per axis, regardless of the size of a length
    key = [("length", "<u4"), ("mask", "<u4"), ("position", "<i8", (rank,))]
    entry = np.dtype([*key, ("child", "u1", (offset_size,))])
    begin = NODE_HEADER_BYTES + 2 * offset_size
    # the last key has no child
    size = begin + (2 * istore_k + 1) * entry.itemsize - offset_size
    return _NodeLayout(size, 2 * istore_k, begin, entry)


def read_old_trees(indexes: Indexes) -> ChunkRows:
    """Return the chunks of version 1 B-trees; all nodes of a level are read together."""
    rows, layout, file = indexes.rows, indexes.layout, indexes.file
    node = make_node_layout(len(layout.chunks) + 1, rows.istore_k, rows.offset_size)
    roots = _OldNodes(np.arange(len(file)), indexes.root, None, None)
    data = rows.read_rows(file, roots.address, node.size)
    levels = data[:, 5].astype(np.int64)
    leaves: list[ChunkRows] = []
    children: list[_OldNodes] = []
    for level in range(int(levels.max()), -1, -1):
        starting = np.flatnonzero(levels == level)
        parts = _read_old_nodes(indexes, node, children)
        children = []
        if starting.size:
            parts = chain([(roots.select(starting), data[starting])], parts)
        for nodes, part in parts:
            used, entries, last = _check_nodes(indexes, node, nodes, part, level)
            if level:
                below = _find_old_children(indexes, nodes, used, entries, last)
                children.append(_select_requested(indexes, below))
            else:
                leaves.append(_find_leaf_chunks(indexes, nodes, used, entries, last))
    chunks = join_chunks(leaves, len(layout.chunks))
    # trees of different depths are not read in order
    if (chunks.owner[1:] < chunks.owner[:-1]).any():
        chunks = chunks.at(np.argsort(chunks.owner, kind="stable"))
    return check_order(indexes, check_chunks(indexes, chunks))


def _read_old_nodes(
    indexes: Indexes, node: _NodeLayout, children: list[_OldNodes]
) -> Iterator[tuple[_OldNodes, Bytes]]:
    """Yield the nodes of a level in parts; the nodes of each index are in order."""
    if not children:
        return
    nodes = _OldNodes(*(np.concatenate(column) for column in zip(*children, strict=True)))
    if len(children) > 1:
        nodes = nodes.select(np.argsort(nodes.owner, kind="stable"))
    file = indexes.file[nodes.owner]
    reason = "a node of a B-tree has two parents"
    check_single_parents(indexes.rows, file, nodes.owner, nodes.address, node.size, reason)
    for part, data in read_row_batches(indexes.rows, file, nodes.address, node.size):
        yield nodes.select(part), data


def _check_nodes(
    indexes: Indexes, node: _NodeLayout, nodes: _OldNodes, data: Bytes, level: int
) -> tuple[Ints, Entries, Ints]:
    """Return the number of entries of nodes, the entries, and the last key of each node.

    A root whose last chunk was removed is a leaf without entries.
    """
    file, is_root = indexes.file[nodes.owner], nodes.low is None
    signature = np.frombuffer(b"TREE" + bytes([CHUNK_TREE, level]), np.uint8)
    require((data[:, :6] == signature).all(axis=1), file, f"a B-tree lacks a node of level {level}")
    used = read_uints(data[:, 6:8])
    counts = f"a node of a B-tree has no entries, or more than {node.max_entries}"
    min_entries = 0 if is_root and level == 0 else 1
    require((used >= min_entries) & (used <= node.max_entries), file, counts)
    if is_root:
        size = indexes.rows.offset_size
        for begin in (NODE_HEADER_BYTES, NODE_HEADER_BYTES + size):
            sibling = read_uints(data[:, begin : begin + size])
            require(~is_defined(sibling, size), file, "the root of a B-tree has neighbours")
    stop = node.entries_at + node.max_entries * node.entry.itemsize
    room = data[:, node.entries_at : stop].view(node.entry)
    entries = room[np.arange(node.max_entries) < used[:, None]]
    return used, entries, _read_last_keys(node, data, used)


def _read_last_keys(node: _NodeLayout, data: Bytes, used: Ints) -> Ints:
    """Return the positions in the last keys of nodes, which follow their last entries."""
    positions = node.entry["position"]
    begin = node.entries_at + used * node.entry.itemsize + KEY_PREFIX_BYTES
    at = begin[:, None] + np.arange(positions.itemsize)
    return np.take_along_axis(data, at, 1).view("<i8")


def _check_keys(
    indexes: Indexes, nodes: _OldNodes, used: Ints, first: Ints, final: Ints, last: Ints
) -> None:
    """Raise an error for nodes in which HDF5 would not find all entries.

    HDF5 searches for a chunk between the key of an entry and the next key, on each level. The last
    key of a node may be that of a removed chunk, so it may be any greater key.
    """
    file = indexes.file[nodes.owner]
    steps = np.array((*indexes.layout.chunks, indexes.layout.itemsize))
    is_valid = (last % steps == 0).all(axis=1) & (last >= 0).all(axis=1)
    require(is_valid, file, "a key of a node of a B-tree lies between chunks")
    greatest = "the last key of a node of a B-tree is not the greatest"
    require(is_before(final.T, last.T), file, greatest)
    if nodes.low is None or nodes.high is None:
        return
    within = is_before(nodes.low.T, first.T, or_same=True) & is_before(final.T, nodes.high.T)
    require(within, file, "a node of a B-tree has keys that its parent places elsewhere")


def _find_old_children(
    indexes: Indexes, nodes: _OldNodes, used: Ints, entries: Entries, last: Ints
) -> _OldNodes:
    """Return the child nodes, with the keys before and after each."""
    stop = np.cumsum(used)
    low = entries["position"]
    high = np.empty_like(low)
    high[:-1] = low[1:]
    high[stop - 1] = last
    owner = np.repeat(nodes.owner, used)
    file = indexes.file[owner]
    steps = np.array((*indexes.layout.chunks, indexes.layout.itemsize))
    is_valid = ((low % steps == 0) & (low >= 0)).all(axis=1)
    require(is_valid, file, "a key of a node of a B-tree lies between chunks")
    require(is_before(low.T, high.T), file, "the keys of a B-tree are not in order")
    _check_keys(indexes, nodes, used, low[stop - used], low[stop - 1], last)
    return _OldNodes(owner, read_uints(entries["child"]), low, high)


def _select_requested(indexes: Indexes, nodes: _OldNodes) -> _OldNodes:
    """Return the nodes in which HDF5 would search for the requested chunks."""
    if indexes.requested is None or nodes.low is None or nodes.high is None:
        return nodes
    steps = np.array(indexes.layout.chunks)
    low, high = (indexes.find_flat_indexes((k[:, :-1] // steps).T) for k in (nodes.low, nodes.high))
    return nodes.select(
        np.flatnonzero(intersect(indexes.find_flat_indexes(indexes.requested), low, high))
    )


def _find_leaf_chunks(
    indexes: Indexes, nodes: _OldNodes, used: Ints, entries: Entries, last: Ints
) -> ChunkRows:
    """Return the chunks of leaf nodes."""
    owner = np.repeat(nodes.owner, used)
    file, keys = indexes.file, entries["position"]
    position = np.ascontiguousarray(keys[:, :-1].T)
    is_valid = keys[:, -1] == 0
    for values, chunk in zip(position, indexes.layout.chunks, strict=True):
        is_valid &= values // chunk * chunk == values
    if not is_valid.all():
        require(is_valid, file[owner], "a key of a B-tree is not the position of a chunk")
    nonempty = used > 0
    stop = np.cumsum(used)[nonempty]
    edge = keys[stop - used[nonempty]], keys[stop - 1], last[nonempty]
    _check_keys(indexes, nodes.select(np.flatnonzero(nonempty)), used[nonempty], *edge)
    mask, length = (entries[name].astype(np.int64) for name in ("mask", "length"))
    return ChunkRows(owner, position, mask, read_uints(entries["child"]), length)


# ---------------------------------------------------------------------- version 2
# HDF5 File Format Specification 3.0, III.A.2. Records are in nodes of all levels; each node has the
# number of records below it, so that every record has a known position in the order.

UNFILTERED, FILTERED = 10, 11
"""Types of records of chunks without and with filters (III.A.2)."""
TREE_HEADER_BYTES = 16
"""Size in bytes of the header of a tree before the address of its root."""


class _Nodes(NamedTuple):
    """Nodes of one level.

    ``records`` and ``total`` are the numbers of records of a node without and with its descendants;
    ``begin`` is the number of records of all trees that come before.
    """

    owner: Ints
    address: Ints
    records: Ints
    begin: Ints
    total: Ints

    def select(self, part: slice | Bools) -> _Nodes:
        """Return the nodes at ``part``."""
        return _Nodes(*(column[part] for column in self))


class _Records(NamedTuple):
    """Records, and their positions among all records."""

    number: Ints
    raw: Bytes


def read_trees(indexes: Indexes) -> ChunkRows:
    """Return the chunks of version 2 B-trees; all nodes of a level are read together."""
    rows, file = indexes.rows, indexes.file
    size = TREE_HEADER_BYTES + rows.offset_size + 2 + rows.length_size
    heads = read_index_headers(indexes, size, b"BTHD", "version 2 B-tree")
    kind = FILTERED if indexes.layout.has_filters else UNFILTERED
    require(heads[:, 4] == 0, file, "a B-tree of an unknown version", UnknownRowsError)
    require(heads[:, 5] == kind, file, f"a B-tree has no records of type {kind}")
    return group_by_header(indexes, heads, slice(6, 14), _read_equal_headers)


def _read_equal_headers(indexes: Indexes, heads: Bytes) -> ChunkRows:
    """Return the chunks of trees whose headers differ only in their roots."""
    rows, file = indexes.rows, indexes.file
    layout = _parse_layout(indexes, heads)
    address, counts = (
        heads[:, TREE_HEADER_BYTES : TREE_HEADER_BYTES + rows.offset_size],
        heads[:, TREE_HEADER_BYTES + rows.offset_size :],
    )
    root, count = read_uints(address), read_uints(counts[:, :2])
    total = read_uints(counts[:, 2 : 2 + rows.length_size])
    exists = is_defined(root, rows.offset_size)
    is_possible = (
        (total >= 0) & (total <= rows.ends[file] // layout.record) & (exists | (total == 0))
    )
    require(is_possible, file, "a B-tree has more records than its file has room for")
    owner = np.flatnonzero(exists)
    begin = np.cumsum(total) - total
    nodes = _Nodes(owner, root[owner], count[owner], begin[owner], total[owner])
    parts: list[_Records] = []
    for level in range(layout.depth, -1, -1):
        children: list[_Nodes] = []
        for level_nodes, data in _read_tree_nodes(indexes, layout, nodes, level):
            raw = _read_records(layout, level_nodes, data, level)
            if level:
                below, number = _find_children(indexes, layout, level_nodes, data, level)
                if indexes.requested is not None:
                    below = below.select(
                        _find_required_children(indexes, level_nodes, raw, indexes.requested)
                    )
                children.append(below)
            else:
                number = _make_ranges(level_nodes.begin, level_nodes.records)
            parts.append(_Records(number, raw))
        if not children:
            break
        nodes = _Nodes(*(np.concatenate(column) for column in zip(*children, strict=True)))
    if indexes.requested is not None:
        return _order_records(indexes, parts)
    return _join_records(indexes, layout, total, parts)


def _find_required_children(indexes: Indexes, nodes: _Nodes, raw: Bytes, requested: Ints) -> Bools:
    """Return whether each child node may lead to requested chunks.

    ``raw`` are the records of the nodes, which are between the children.
    """
    steps = np.array(indexes.layout.chunks)[:, None]
    position = _parse_records(indexes, np.repeat(nodes.owner, nodes.records), raw).position
    before = indexes.find_flat_indexes(position // steps)
    edges = np.concatenate(([-1], before, [MAX_INT64]))
    at = _make_ranges(np.cumsum(nodes.records) - nodes.records, nodes.records + 1)
    return intersect(indexes.find_flat_indexes(requested), edges[at] + 1, edges[at + 1])


def _order_records(indexes: Indexes, parts: list[_Records]) -> ChunkRows:
    """Return the chunks of the records of one tree, in order."""
    ndim = len(indexes.layout.chunks)
    if not parts:
        return ChunkRows.empty(ndim)
    number, raw = (np.concatenate(column) for column in zip(*parts, strict=True))
    owner = np.zeros(len(number), np.int64)
    records = _parse_records(indexes, owner, raw[np.argsort(number)])
    return check_order(indexes, check_chunks(indexes, records))


def _parse_layout(indexes: Indexes, heads: Bytes) -> TreeLayout:
    """Parse the layout of trees from their common header."""
    size, record, depth = (
        int(read_uints(heads[:1, a:b])[0]) for a, b in ((6, 10), (10, 12), (12, 14))
    )
    layout = TreeLayout.from_header(size, record, depth, indexes.rows.offset_size)
    element = record - 8 * len(indexes.layout.chunks)
    if layout is None or not is_element_size(indexes.layout, element, indexes.rows.offset_size):
        every = frozenset(indexes.file.tolist())
        raise RowsError(every, "the header of a B-tree contradicts itself")
    return layout


def _read_tree_nodes(
    indexes: Indexes, layout: TreeLayout, nodes: _Nodes, level: int
) -> Iterator[tuple[_Nodes, Bytes]]:
    """Yield checked nodes of a level in parts."""
    file = indexes.file[nodes.owner]
    reason = "a node of a B-tree has two parents"
    check_single_parents(indexes.rows, file, nodes.owner, nodes.address, layout.size, reason)
    counts = "a node of a B-tree does not have as many records as it says"
    is_possible = nodes.records <= layout.max_records[level]
    require(is_possible & (nodes.total >= nodes.records), file, counts)
    if not level:
        require(nodes.total == nodes.records, file, counts)
    head = (b"BTIN" if level else b"BTLF") + bytes(
        [0, FILTERED if indexes.layout.has_filters else UNFILTERED]
    )
    for part, data in read_row_batches(indexes.rows, file, nodes.address, layout.size):
        selected = nodes.select(part)
        matches = (data[:, : len(head)] == np.frombuffer(head, np.uint8)).all(axis=1)
        require(matches, file[part], f"a B-tree lacks a node of level {level}")
        stop = (
            NODE_PREFIX_BYTES
            + selected.records * layout.record
            + (selected.records + bool(level)) * layout.pointer[level]
        )
        sums = compute_checksums([row[:n] for row, n in zip(data, stop.tolist(), strict=True)])
        stated = np.take_along_axis(data, stop[:, None] + np.arange(CHECKSUM_BYTES), 1)
        require(sums == read_uints(stated), file[part], "a node of a B-tree has a wrong checksum")
        yield selected, data


def _make_ranges(begin: Ints, count: Ints) -> Ints:
    """Return ranges of ``count`` integers from each ``begin``, concatenated."""
    return np.arange(count.sum()) + np.repeat(begin - np.cumsum(count) + count, count)


def _read_records(layout: TreeLayout, nodes: _Nodes, data: Bytes, level: int) -> Bytes:
    """Return the records that nodes contain."""
    most = layout.max_records[level]
    stop = NODE_PREFIX_BYTES + most * layout.record
    room = data[:, NODE_PREFIX_BYTES:stop].view(f"V{layout.record}")
    picked = room[np.arange(most) < nodes.records[:, None]]
    return picked.view(np.uint8).reshape(-1, layout.record)


def _find_children(
    indexes: Indexes, layout: TreeLayout, nodes: _Nodes, data: Bytes, level: int
) -> tuple[_Nodes, Ints]:
    """Return the child nodes, and the indexes of the records between them."""
    at, most = indexes.rows.offset_size, layout.max_records[level]
    pointer = layout.pointer[level]
    begin = NODE_PREFIX_BYTES + nodes.records * layout.record
    fields = np.take_along_axis(data, begin[:, None] + np.arange((most + 1) * pointer), 1)
    used = np.arange(most + 1) <= nodes.records[:, None]
    raw = fields.reshape(len(data), most + 1, pointer)[used]
    count = read_uints(raw[:, at : at + layout.count_size])
    total = read_uints(raw[:, at + layout.count_size :]) if level > 1 else count
    children = nodes.records + 1
    start = np.cumsum(children) - children
    owner = np.repeat(nodes.owner, children)
    wrong = "a node of a B-tree does not have as many records as it says"
    within = (total >= 0) & (total <= np.repeat(nodes.total, children))
    require(within, indexes.file[owner], wrong)
    exact = np.add.reduceat(total, start) + nodes.records == nodes.total
    require(exact, indexes.file[nodes.owner], wrong)
    # each child is followed by a record, except for the last child of a node
    step = total + 1
    before = np.cumsum(step) - step
    first = np.repeat(nodes.begin - before[start], children) + before
    number = np.delete(first + total, start + nodes.records)
    return _Nodes(owner, read_uints(raw[:, :at]), count, first, total), number


def _join_records(
    indexes: Indexes, layout: TreeLayout, total: Ints, parts: list[_Records]
) -> ChunkRows:
    """Return the chunks of all records, in order."""
    raw = np.empty((int(total.sum()), layout.record), np.uint8)
    while parts:
        part = parts.pop()
        raw[part.number] = part.raw
    owner = np.repeat(np.arange(len(total)), total)
    slices = [slice(begin, begin + 2**16) for begin in range(0, len(raw), 2**16)]
    columns = [_parse_records(indexes, owner[part], raw[part]) for part in slices]
    del raw, owner
    chunks = join_chunks(columns, len(indexes.layout.chunks))
    return check_order(indexes, check_chunks(indexes, chunks))


def _parse_records(indexes: Indexes, owner: Ints, raw: Bytes) -> ChunkRows:
    """Return the chunks of records, whose positions are in units of chunks."""
    chunks = indexes.layout.chunks
    stop = raw.shape[1] - 8 * len(chunks)
    columns = parse_elements(indexes.layout, raw[:, :stop], indexes.rows.offset_size)
    position = np.ascontiguousarray(read_uints(raw[:, stop:].reshape(-1, len(chunks), 8)).T)
    for values, chunk in zip(position, chunks, strict=True):
        is_valid = (values >= 0) & (values <= MAX_INT64 // chunk)
        require(is_valid, indexes.file[owner], "a chunk lies outside of the shape")
        values *= chunk
    return ChunkRows(owner, position, *columns)
