"""Version 1 B-trees of chunks, the index of most HDF5 files, read level by level.

HDF5 File Format Specification 3.0, III.A.1. HDF5 finds a chunk by the keys on its way down, and its
own list of chunks (`H5Dchunk_iter`) shows only those of the last level. Where keys contradict each
other the list has chunks that HDF5 does not find.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import Ints
from virtualds.parsers.hdf5.chunk_indexes.form import (
    ChunkRows,
    Indexes,
    check_chunks,
    check_order,
    is_before,
    join_chunks,
    meet,
)
from virtualds.parsers.hdf5.structure.byte_rows import (
    Bytes,
    check_once,
    demand,
    is_defined,
    read_uints,
    take_parts,
)

HEAD = 8
"""Bytes of signature, type, level and number of entries of a node (III.A.1)."""
MASK_AND_LENGTH = 8
"""Bytes of a key before its position."""
OF_CHUNKS = 1
"""The type of a version 1 B-tree whose leaves are chunks."""
Entries = npt.NDArray[Any]


class _Nodes(NamedTuple):
    """Nodes of one level: whose they are, where they lie, and the keys that their parent gives.

    ``low`` and ``high`` are None for roots, which have no parent.
    """

    owner: Ints
    address: Ints
    low: Ints | None
    high: Ints | None

    def cut(self, part: slice | Ints) -> _Nodes:
        """Return some of the nodes."""
        low = None if self.low is None else self.low[part]
        high = None if self.high is None else self.high[part]
        return _Nodes(self.owner[part], self.address[part], low, high)


class _NodeForm(NamedTuple):
    """How nodes are laid out: bytes, most entries, and the form of an entry."""

    size: int
    most: int
    entries_at: int
    entry: np.dtype[Any]


@lru_cache(64)
def make_node_form(rank: int, half: int, offset_size: int) -> _NodeForm:
    """Return the form of a node; ``rank`` counts the axes and the bytes of an element."""
    # a key always has 8 bytes for each axis
    key = [("length", "<u4"), ("mask", "<u4"), ("place", "<i8", (rank,))]
    entry = np.dtype([*key, ("child", "u1", (offset_size,))])
    begin = HEAD + 2 * offset_size
    # the last key has no child
    size = begin + (2 * half + 1) * entry.itemsize - offset_size
    return _NodeForm(size, 2 * half, begin, entry)


def read_trees(indexes: Indexes) -> ChunkRows:
    """Read version 1 B-trees, all nodes of a level at once.

    Raises
    ------
    RowsError
        Nodes or keys contradict each other: HDF5 would not find some of the chunks.
    """
    rows, form, file = indexes.rows, indexes.form, indexes.file
    node = make_node_form(len(form.chunks) + 1, rows.half, rows.offset_size)
    roots = _Nodes(np.arange(len(file)), indexes.root, None, None)
    data = rows.take_rows(file, roots.address, node.size)
    levels = data[:, 5].astype(np.int64)
    leaves: list[ChunkRows] = []
    children: list[_Nodes] = []
    for level in range(int(levels.max()), -1, -1):
        joined = np.flatnonzero(levels == level)
        parts = _take_nodes(indexes, node, children)
        children = []
        if joined.size:
            parts = _chain((roots.cut(joined), data[joined]), parts)
        for nodes, part in parts:
            used, entries, last = _check_nodes(indexes, node, nodes, part, level)
            if level:
                below = _list_children(indexes, nodes, used, entries, last)
                children.append(_keep_wanted(indexes, below))
            else:
                leaves.append(_list_chunks(indexes, nodes, used, entries, last))
    found = join_chunks(leaves, len(form.chunks))
    # trees of fewer levels than others come in any place
    if (found.owner[1:] < found.owner[:-1]).any():
        found = found.at(np.argsort(found.owner, kind="stable"))
    return check_order(indexes, check_chunks(indexes, found))


def _chain(
    first: tuple[_Nodes, Bytes], rest: Iterator[tuple[_Nodes, Bytes]]
) -> Iterator[tuple[_Nodes, Bytes]]:
    yield first
    yield from rest


def _take_nodes(
    indexes: Indexes, node: _NodeForm, children: list[_Nodes]
) -> Iterator[tuple[_Nodes, Bytes]]:
    """Yield the nodes of a level in parts, those of an index in their order."""
    if not children:
        return
    nodes = _Nodes(*(np.concatenate(column) for column in zip(*children, strict=True)))
    if len(children) > 1:
        nodes = nodes.cut(np.argsort(nodes.owner, kind="stable"))
    file = indexes.file[nodes.owner]
    two = "a node of a B-tree has two parents"
    check_once(indexes.rows, file, nodes.owner, nodes.address, node.size, two)
    for part, data in take_parts(indexes.rows, file, nodes.address, node.size):
        yield nodes.cut(part), data


def _check_nodes(
    indexes: Indexes, node: _NodeForm, nodes: _Nodes, data: Bytes, level: int
) -> tuple[Ints, Entries, Ints]:
    """Return how many entries nodes have, these, and the last key of each node.

    A root that has lost its last chunk is a leaf without entries.
    """
    file, is_root = indexes.file[nodes.owner], nodes.low is None
    known = np.frombuffer(b"TREE" + bytes([OF_CHUNKS, level]), np.uint8)
    demand((data[:, :6] == known).all(axis=1), file, f"a B-tree lacks a node of level {level}")
    used = read_uints(data[:, 6:8])
    counts = f"a node of a B-tree has no entries, or more than {node.most}"
    fewest = 0 if is_root and level == 0 else 1
    demand((used >= fewest) & (used <= node.most), file, counts)
    if is_root:
        size = indexes.rows.offset_size
        for begin in (HEAD, HEAD + size):
            beside = read_uints(data[:, begin : begin + size])
            demand(~is_defined(beside, size), file, "the root of a B-tree has neighbours")
    stop = node.entries_at + node.most * node.entry.itemsize
    room = data[:, node.entries_at : stop].view(node.entry)
    entries = room[np.arange(node.most) < used[:, None]]
    return used, entries, _read_last_keys(node, data, used)


def _read_last_keys(node: _NodeForm, data: Bytes, used: Ints) -> Ints:
    """Return the positions in the keys behind the last entries."""
    places = node.entry["place"]
    begin = node.entries_at + used * node.entry.itemsize + MASK_AND_LENGTH
    at = begin[:, None] + np.arange(places.itemsize)
    return np.take_along_axis(data, at, 1).view("<i8")


def _check_keys(
    indexes: Indexes, nodes: _Nodes, used: Ints, first: Ints, final: Ints, last: Ints
) -> None:
    """Refuse nodes in which HDF5 would not find all entries.

    HDF5 looks for a chunk between the key of an entry and the next key, on every level. The last
    key of a node may be left over from a removed chunk, so it may be any greater key.
    """
    file = indexes.file[nodes.owner]
    steps = np.array((*indexes.form.chunks, indexes.form.itemsize))
    whole = (last % steps == 0).all(axis=1) & (last >= 0).all(axis=1)
    demand(whole, file, "a key of a node of a B-tree lies between chunks")
    greatest = "the last key of a node of a B-tree is not the greatest"
    demand(is_before(final, last), file, greatest)
    if nodes.low is None or nodes.high is None:
        return
    within = is_before(nodes.low, first, or_same=True) & is_before(final, nodes.high)
    demand(within, file, "a node of a B-tree has keys that its parent places elsewhere")


def _list_children(
    indexes: Indexes, nodes: _Nodes, used: Ints, entries: Entries, last: Ints
) -> _Nodes:
    """Return the children of nodes, with the keys that they lie between."""
    stop = np.cumsum(used)
    low = entries["place"]
    high = np.empty_like(low)
    high[:-1] = low[1:]
    high[stop - 1] = last
    owner = np.repeat(nodes.owner, used)
    file = indexes.file[owner]
    steps = np.array((*indexes.form.chunks, indexes.form.itemsize))
    whole = ((low % steps == 0) & (low >= 0)).all(axis=1)
    demand(whole, file, "a key of a node of a B-tree lies between chunks")
    demand(is_before(low, high), file, "the keys of a B-tree are not in order")
    _check_keys(indexes, nodes, used, low[stop - used], low[stop - 1], last)
    return _Nodes(owner, read_uints(entries["child"]), low, high)


def _keep_wanted(indexes: Indexes, nodes: _Nodes) -> _Nodes:
    """Return the nodes below which HDF5 would look for the chunks that are wanted."""
    if indexes.wanted is None or nodes.low is None or nodes.high is None:
        return nodes
    steps = np.array(indexes.form.chunks)
    low, high = (indexes.count_before((k[:, :-1] // steps).T) for k in (nodes.low, nodes.high))
    return nodes.cut(np.flatnonzero(meet(indexes.count_before(indexes.wanted), low, high)))


def _list_chunks(
    indexes: Indexes, nodes: _Nodes, used: Ints, entries: Entries, last: Ints
) -> ChunkRows:
    """Return the chunks that leaves list."""
    owner = np.repeat(nodes.owner, used)
    file, places = indexes.file, entries["place"]
    place = np.ascontiguousarray(places[:, :-1].T)
    whole = places[:, -1] == 0
    for values, chunk in zip(place, indexes.form.chunks, strict=True):
        whole &= values // chunk * chunk == values
    if not whole.all():
        demand(whole, file[owner], "a key of a B-tree is not the position of a chunk")
    some = used > 0
    stop = np.cumsum(used)[some]
    edge = places[stop - used[some]], places[stop - 1], last[some]
    _check_keys(indexes, nodes.cut(np.flatnonzero(some)), used[some], *edge)
    mask, length = (entries[name].astype(np.int64) for name in ("mask", "length"))
    return ChunkRows(owner, place, mask, read_uints(entries["child"]), length)
