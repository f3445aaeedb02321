"""What is said of bytes that cannot be had, or do not decode: where they lie, and what for."""

from __future__ import annotations

from virtualds.chunks.columns import INLINE, MISSING
from virtualds.errors import ReadError
from virtualds.read.load import chunk_read
from virtualds.read.plan import Readable
from virtualds.read.tasks import Batch
from virtualds.read.tiles import Tile

PLACES = {INLINE: "bytes held inline", MISSING: "the fill value of a missing chunk"}
"""What is named instead of a file."""


def failure(source: Readable, work: Batch | Tile, number: int, reason: str) -> ReadError:
    """Return an error that says which bytes of which file were meant for which chunk."""
    url = PLACES[work.file] if work.file < 0 else work.fragment.manifest.files[work.file].url
    offset, length = work.ranges[number]
    error = ReadError(
        f"{url}, bytes {offset} to {offset + length}: {reason}; restore the file, or scan it again"
    )
    chunk = _chunk_id(source, work, offset)
    error.add_note(f"variable {source.name or '(unnamed)'}, chunk {chunk}")
    return error


def _chunk_id(source: Readable, work: Batch | Tile, offset: int) -> tuple[int, ...]:
    """Return which chunk bytes belong to; uncompressed chunks are read in pieces."""
    for fragment in source.fragments:
        if (found := chunk_read(fragment, work.fragment, work.file, offset)) is not None:
            return found
    return ()
