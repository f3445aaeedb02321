"""Version 1 B-trees of chunks, the index of most HDF5 files, read as a table.

HDF5 File Format Specification 3.0, III.A.1. HDF5 finds a chunk by the keys on its way down, and its
own list of chunks (`H5Dchunk_iter`) shows only those of the last level. Where keys contradict each
other the list has chunks that HDF5 does not find.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.parsers.hdf5.chunk_table import ChunkTable, to_table
from virtualds.parsers.hdf5.file_bytes import FileBytes
from virtualds.parsers.hdf5.superblock import FORMS

Nodes = npt.NDArray[Any]
Keys = list[list[int]]

OF_CHUNKS = 1
"""The type of a version 1 B-tree whose leaves are chunks."""
HEAD, LEVEL = Struct("<4sBBH"), 5
"""Signature, type, level and number of entries of a node; where the level is."""
KNOWN_BY = ("signature", "kind", "level")
"""Fields that identify a node."""
BETWEEN = "a key of a node of a B-tree lies between chunks"
"""The error of a key that is no multiple of the chunk shape."""


def read_tree(file: FileBytes, address: int, dims: Sequence[int]) -> ChunkTable:
    """Read a version 1 B-tree, level by level, all nodes of a level at once (III.A.1).

    Parameters
    ----------
    file : FileBytes
    address : int
        Of the root.
    dims : sequence of int
        Elements of a chunk along each axis, and last the bytes of an element.

    Returns
    -------
    numpy.ndarray
        Not yet checked by `demand_sound_table`.

    Raises
    ------
    FormatError
        Nodes or keys contradict each other: HDF5 would not find some of the chunks.
    """
    size = _make_node_form(len(dims), file.half, file.offset_size).itemsize - file.offset_size
    root = file.take(address, size)
    if root[LEVEL] == 0:
        return _read_leaf(file, root, dims)
    return _read_levels(file, address, root, dims)


def _read_leaf(file: FileBytes, root: bytes, dims: Sequence[int]) -> ChunkTable:
    """Read a root that is a leaf, as those of most datasets are, without arrays of nodes."""
    entry = _make_entry_form(len(dims), file.offset_size)
    signature, kind, _, used = HEAD.unpack_from(root)
    begin = HEAD.size + 2 * file.offset_size
    if (signature, kind) != (b"TREE", OF_CHUNKS) or used > 2 * file.half:
        file.refuse("the root of a B-tree is no node of chunks")
    neighbours = (file.unpack_address(root, at) for at in (HEAD.size, HEAD.size + file.offset_size))
    if any(map(file.is_defined, neighbours)):
        file.refuse("the root of a B-tree has neighbours")
    if not used:
        return np.empty((len(dims) + 2, 0), np.int64)
    stop = begin + used * entry.size
    columns = list(zip(*entry.iter_unpack(root[begin:stop]), strict=True))
    last = [place[-1] // wide for place, wide in zip(columns[2:], dims, strict=False)]
    closing = _make_key_form(len(dims)).unpack_from(root, stop)
    if last >= [place // wide for place, wide in zip(closing[2:], dims, strict=True)]:
        file.refuse("the last key of a node of a B-tree is not the greatest")
    if any(place % wide for place, wide in zip(closing[2:], dims, strict=True)):
        file.refuse(BETWEEN)
    length, mask, *place, element, child = columns
    if any(element) or max(child) >= file.end or max(map(max, place)) >= 2**63:
        file.refuse("an entry of a B-tree is no chunk")
    table = np.array([*place, mask, child, length], np.int64)
    table[-2] += file.base
    return table


@cache
def _make_entry_form(rank: int, offset_size: int) -> Struct:
    """Return an entry of a leaf: bytes, filter mask, a number for each axis, address."""
    return Struct(f"<II{rank}Q{FORMS[offset_size]}")


@cache
def _make_key_form(rank: int) -> Struct:
    return Struct(f"<II{rank}Q")


def _read_levels(file: FileBytes, address: int, root: bytes, dims: Sequence[int]) -> ChunkTable:
    form = _make_node_form(len(dims), file.half, file.offset_size)
    wide = np.array(dims, np.uint64)
    nodes = _to_nodes(file, [root], form)
    level, seen = int(nodes["level"][0]), {address}
    low: Keys | None = None
    high: Keys | None = None
    while True:
        _check_nodes(file, nodes, level)
        _check_keys(file, nodes, wide, low, high)
        used = np.arange(nodes["entries"].shape[1]) < nodes["used"][:, None]
        entries = nodes["entries"][used]
        if level == 0:
            return _list_chunks(file, entries)
        above = nodes["entries"][:, 1:][used[:, :-1]]
        low, high = _scale_keys(entries, wide), _scale_keys(above, wide)
        if not all(map(operator.lt, low, high)):
            file.refuse("the keys of a B-tree are not in order")
        children = entries["child"].tolist()
        if not seen.isdisjoint(children) or len(set(children)) < len(children):
            file.refuse("a node of a B-tree has two parents")
        seen.update(children)
        level -= 1
        nodes = _read_nodes(file, children, form)


@lru_cache(64)
def _make_node_form(rank: int, half: int, offset_size: int) -> np.dtype[Any]:
    """Return a node as a dtype; the last key is an entry too, though no child follows it."""
    address = f"<u{offset_size}"
    # a key always has 8 bytes for each axis
    key = [("length", "<u4"), ("mask", "<u4"), ("place", "<u8", (rank,))]
    entry = np.dtype([*key, ("child", address)])
    return np.dtype(
        [
            ("signature", "S4"),
            ("kind", "u1"),
            ("level", "u1"),
            ("used", "<u2"),
            ("left", address),
            ("right", address),
            ("entries", entry, (2 * half + 1,)),
        ]
    )


def _read_nodes(file: FileBytes, addresses: Sequence[int], form: np.dtype[Any]) -> Nodes:
    size = form.itemsize - file.offset_size
    return _to_nodes(file, file.take_all([(address, size) for address in addresses]), form)


def _to_nodes(file: FileBytes, parts: Iterable[bytes], form: np.dtype[Any]) -> Nodes:
    filler = bytes(file.offset_size)
    return np.frombuffer(b"".join(part + filler for part in parts), form)


def _check_nodes(file: FileBytes, nodes: Nodes, level: int) -> None:
    """Refuse nodes of another level, and nodes with no or too many entries."""
    used, most = nodes["used"], nodes["entries"].shape[1] - 1
    if any(
        node != (b"TREE", OF_CHUNKS, level)
        for node in zip(*(nodes[name].tolist() for name in KNOWN_BY), strict=True)
    ):
        file.refuse(f"a B-tree has something else than a node of level {level}")
    # a root that has lost its last chunk is a leaf without entries
    if used.max() > most or (used.min() == 0 and (level or len(used) > 1)):
        file.refuse(f"a node of a B-tree has {used.min()} to {used.max()} of {most} entries")
    left, right = nodes["left"].tolist(), nodes["right"].tolist()
    if len(used) == 1 and any(map(file.is_defined, left + right)):
        file.refuse("the root of a B-tree has neighbours")


def _check_keys(
    file: FileBytes, nodes: Nodes, wide: npt.NDArray[np.uint64], low: Keys | None, high: Keys | None
) -> None:
    """Refuse nodes in which HDF5 would not find all entries.

    HDF5 looks for a chunk between the key of an entry and the next key, on every level. The last
    key of a node may be left over from a removed chunk, so it may be any greater key.
    """
    used, row = nodes["used"], np.arange(len(nodes))
    if not used.all():
        return
    keys = nodes["entries"]["place"][np.arange(nodes["entries"].shape[1]) <= used[:, None]]
    if (keys % wide).any():
        file.refuse(BETWEEN)
    first = _scale_keys(nodes["entries"][:, 0], wide)
    last = _scale_keys(nodes["entries"][row, used - 1], wide)
    closing = _scale_keys(nodes["entries"][row, used], wide)
    if not all(map(operator.lt, last, closing)):
        file.refuse("the last key of a node of a B-tree is not the greatest")
    if low is None or high is None:
        return
    if not (all(map(operator.le, low, first)) and all(map(operator.lt, last, high))):
        file.refuse("a node of a B-tree has keys that its parent places elsewhere")


def _scale_keys(keys: Nodes, wide: npt.NDArray[np.uint64]) -> Keys:
    """Return keys as HDF5 compares them: counted in chunks, axis by axis."""
    found: Keys = (keys["place"] // wide).tolist()
    return found


def _list_chunks(file: FileBytes, entries: Nodes) -> ChunkTable:
    """Return the chunks that leaves list; `demand_sound_table` checks their order."""
    place = entries["place"]
    if place.size and (place[:, -1].any() or int(place.max()) >= 2**63):
        file.refuse("a key of a B-tree is no position of a chunk")
    return to_table(file, place[:, :-1].T, entries["mask"], entries["child"], entries["length"])
