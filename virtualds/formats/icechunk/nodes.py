"""Nodes and references of an Icechunk store, through the coroutines of its interface."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import prod
from typing import Any, NamedTuple

import icechunk
import numpy as np
from zarr.core.buffer import default_buffer_prototype

from virtualds.chunks.projection import Ints
from virtualds.errors import FormatError
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile
from virtualds.urls import kind_of

REQUESTS_AT_ONCE = 256
"""Chunks that are written at a time."""
MARKER = "zarr.json"


class References(NamedTuple):
    """Where the existing chunks of an array lie.

    ``places`` has a row for each; ``path`` indexes ``paths``; ``inline`` holds inline chunks by
    row. The path of a native chunk is its name among the chunks of the repository.
    """

    places: Ints
    kind: Ints
    path: Ints
    offset: Ints
    length: Ints
    paths: list[str]
    inline: dict[int, bytes]


async def fetch_documents(store: Any) -> dict[str, dict[str, Any]]:
    """Return the metadata of all nodes, by path."""
    found: dict[str, dict[str, Any]] = {}
    level = [""]
    while level:
        texts = await asyncio.gather(*(fetch_document(store, path) for path in level))
        nodes = {p: text for p, text in zip(level, texts, strict=True) if text is not None}
        found |= nodes
        groups = [p for p, node in nodes.items() if node.get("node_type") == "group"]
        listed = await asyncio.gather(*(_list_children(store, path) for path in groups))
        level = sorted(path for paths in listed for path in paths)
    return found


async def fetch_document(store: Any, path: str) -> dict[str, Any] | None:
    """Return the metadata of one node, None if there is no such node."""
    data = await store.get(_make_key(path, MARKER), default_buffer_prototype())
    if data is None:
        return None
    where = f"metadata of {path or 'the root'!r} in the repository"
    found = parse_json(data.to_bytes(), where)
    if not isinstance(found, dict):
        raise FormatError(f"{where}: they are not a JSON object; the repository is damaged")
    return found


async def _list_children(store: Any, path: str) -> list[str]:
    return [_make_key(path, name) async for name in store.list_dir(path) if name != MARKER]


def _make_key(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


async def fetch_references(store: Any, path: str) -> References:
    """Return the references of one array."""
    numbers: dict[str, int] = {}
    inline: dict[int, bytes] = {}
    batches: list[tuple[Any, ...]] = []
    total = 0
    async for where, kind, paths, offset, length, held in store.array_chunk_iterator(f"/{path}"):
        numbered = [numbers.setdefault(text, len(numbers)) for text in paths]
        batches.append((where, kind, np.array(numbered, np.int64), offset, length))
        inline |= {total + row: data for row, data in held.items()}
        total += len(paths)
    if not batches:
        none = np.zeros(0, np.int64)
        return References(none.reshape(0, 0), none, none, none, none, [], {})
    columns = [np.concatenate(parts).astype(np.int64) for parts in zip(*batches, strict=True)]
    places, kinds, rows, offsets, lengths = columns
    return References(places, kinds, rows, offsets, lengths, list(numbers), inline)


async def fetch_chunks(store: Any, keys: Sequence[str]) -> list[bytes]:
    """Return the bytes of chunks, in the order of their keys."""
    found: list[bytes] = []
    for start in range(0, len(keys), REQUESTS_AT_ONCE):
        some = keys[start : start + REQUESTS_AT_ONCE]
        got = await asyncio.gather(*(store.get(k, default_buffer_prototype()) for k in some))
        found += [data.to_bytes() for data in got]
    return found


async def remove_nodes(store: Any, paths: Sequence[str]) -> None:
    """Remove nodes, and all below them."""
    for path in paths:
        await store.delete_dir(path)


async def put_files(store: Any, files: Iterator[tuple[str, bytes]]) -> None:
    """Write files, many at a time."""
    buffer = default_buffer_prototype().buffer
    for key, data in files:
        some = [
            (key, data),
            *(pair for _, pair in zip(range(REQUESTS_AT_ONCE - 1), files, strict=False)),
        ]
        if any(name.endswith(MARKER) for name, _ in some):
            # write a group before its members
            for name, content in some:
                await store.set(name, buffer.from_bytes(content))
        else:
            await asyncio.gather(*(store.set(n, buffer.from_bytes(c)) for n, c in some))


def to_virtual_chunk(
    store: Any,
    path: str,
    places: Sequence[Sequence[int]],
    checks: Sequence[datetime | str | None],
    locations: Sequence[str],
    columns: tuple[Ints, Ints, Ints],
) -> Any:
    """Write references that are checked in different ways."""
    etags = [check if isinstance(check, str) else None for check in checks]
    times = [check if isinstance(check, datetime) else None for check in checks]
    taken = (column.tolist() for column in columns)
    specs = [
        icechunk.VirtualChunkSpec(place, locations[n], offset, length, etags[n], times[n])
        for place, n, offset, length in zip(places, *taken, strict=True)
    ]
    return store.set_virtual_refs(f"/{path}", specs)


def to_checksum(file: SourceFile) -> datetime | str | None:
    """Return the checksum of a file for Icechunk: mtime in full seconds, or etag."""
    if file.mtime is not None:
        return datetime.fromtimestamp(-(-file.mtime // 10**9), UTC)
    # our etag of a file in Google Cloud Storage is its generation, which Icechunk does not compare
    return None if kind_of(file.url) == "gs" else file.etag


def spread_over_box(
    box: tuple[int, ...], places: Ints, locations: Sequence[str], columns: tuple[Ints, Ints, Ints]
) -> tuple[list[str], Any, Any]:
    """Return the location, offset and length of every chunk of a box; an empty location is none."""
    flat = np.ravel_multi_index(tuple(places.T), box)
    names = np.full(prod(box), "", object)
    names[flat] = np.array([*locations, ""], object)[columns[0]]
    offset, length = (np.zeros(prod(box), np.uint64) for _ in columns[1:])
    offset[flat], length[flat] = columns[1:]
    return names.tolist(), offset, length
