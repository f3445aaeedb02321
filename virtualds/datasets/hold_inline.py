"""Read the small chunks of a manifest, and hold their bytes in it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import numpy as np

from virtualds.chunks.columns import INLINE, settle_column
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.datasets.copy_plain_zarr import ManifestChunks
from virtualds.reading.fetch import join_ranges
from virtualds.reading.threads import cores, in_turn
from virtualds.source_file import find_mismatch
from virtualds.stores import find_store
from virtualds.stores.store import StoreError


def hold_small_chunks(manifest: ChunkManifest, name: str, most: int) -> ChunkManifest:
    """Return a manifest that holds its chunks of at most ``most`` bytes.

    Chunks are read as in any read: near ones by one request, many files at a time, and checked
    against their checksums. Equal ranges are read once.

    Parameters
    ----------
    manifest : ChunkManifest
    name : str
        Name of the array in errors.
    most : int

    Raises
    ------
    ReadError
        A chunk cannot be read, has changed, or does not match its checksum.
    """
    chunks = ManifestChunks(manifest, name)
    if not ((chunks.file >= 0) & (chunks.length <= most)).any():
        return manifest
    ids, which = chunks.find_distinct()
    small = chunks.length[ids] <= most
    held = _read_chunks(chunks, ids[small])
    return _place_inline(chunks, np.flatnonzero(small), which, held)


def _read_chunks(chunks: ManifestChunks, ids: Ints) -> list[bytes]:
    """Return the bytes of chunks, in their order."""
    found: dict[int, bytes] = {}
    batches = list(chunks.split_batches(ids))
    # a local disk is read by as many threads as there are cores
    width = _count_threads(chunks, batches[0])
    with ThreadPoolExecutor(min(width, len(batches)), thread_name_prefix="virtualds") as pool:
        try:
            turns = in_turn(pool, lambda batch: _fetch(chunks, batch), batches, 2 * width)
            for batch, future in turns:
                found |= zip(batch.tolist(), future.result(), strict=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[one] for one in ids.tolist()]


def _count_threads(chunks: ManifestChunks, batch: Ints) -> int:
    file = chunks.manifest.files[int(chunks.file[batch[0]])]
    return find_store(file.url).reach.at_once or cores()


def _fetch(chunks: ManifestChunks, batch: Ints) -> Sequence[bytes]:
    """Return the bytes of chunks of one file, near ones by one request."""
    file = chunks.manifest.files[int(chunks.file[batch[0]])]
    store = find_store(file.url)
    ranges = list(zip(chunks.offset[batch].tolist(), chunks.length[batch].tolist(), strict=True))
    runs = join_ranges(ranges, store.reach.gap, store.reach.run)
    try:
        fetched = store.get_ranges(file, [(run.offset, run.length) for run in runs])
    except StoreError:
        # one by one, to find the chunk that fails
        return list(chain.from_iterable(chunks.fetch(np.array([one])) for one in batch))
    found = [b""] * len(ranges)
    for run, data in zip(runs, fetched, strict=True):
        for member in run.members:
            offset, length = ranges[member]
            found[member] = bytes(data[offset - run.offset : offset - run.offset + length])
    for number, expected in enumerate(chunks.checksum[batch].tolist()):
        if find_mismatch(found[number], expected):
            [found[number]] = chunks.fetch(batch[number : number + 1])
    return found


def _place_inline(
    chunks: ManifestChunks, small: Ints, which: Ints, held: list[bytes]
) -> ChunkManifest:
    """Return the manifest with chunks held in place of references; ``which`` ranges are held."""
    manifest = chunks.manifest
    distinct = {data: n for n, data in enumerate(dict.fromkeys(held), len(manifest.inline))}
    places = [distinct[data] for data in held]
    table = np.full(int(which.max()) + 1 if which.size else 0, -1, np.int64)
    table[small] = places
    there = np.flatnonzero(chunks.file >= 0)
    rows, number = there[table[which] >= 0], table[which][table[which] >= 0]
    file, offset = chunks.file.copy(), chunks.offset.copy()
    file[rows], offset[rows] = INLINE, number
    shape = manifest.shape
    return replace(
        manifest,
        inline=(*manifest.inline, *distinct),
        file=settle_column(file.reshape(shape), shape),
        offset=settle_column(offset.reshape(shape), shape),
    ).pruned()
