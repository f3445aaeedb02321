"""Arrays of varying length in FITS tables: their rows say where they lie in the heap.

FITS Standard 4.0, section 7.3.5.
"""

from __future__ import annotations

import re
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from virtualds.errors import UnsupportedError
from virtualds.parsers.fits.header import HeaderDataUnit, make_damage

DESCRIPTOR = re.compile(r"[01]?([PQ])([LXBIJKAEDCM])")
"""TFORM of such a column, in capitals: words of its descriptors, elements of its arrays."""
WORDS: dict[str, np.dtype[Any]] = {"P": np.dtype(">i4"), "Q": np.dtype(">i8")}
"""A descriptor is two of them: elements, and bytes from the begin of the heap."""
MOST_ROWS = 2**28
"""Bytes of rows that are read for their descriptors."""


class Places(NamedTuple):
    """Where arrays begin in the file, in bytes, and how many elements they have, by row."""

    offsets: Any
    counts: Any


def read_rows(part: HeaderDataUnit, file: BinaryIO) -> Any:
    """Return the bytes of the rows of a table, shape (rows, bytes of a row).

    Raises
    ------
    FormatError
        There are fewer.
    UnsupportedError
        They are too many to be read while a file is scanned.
    """
    rows, row = part.shape if len(part.shape) == 2 else (0, 0)
    if rows * row > MOST_ROWS:
        raise UnsupportedError(
            f"FITS part {part.number}: {rows * row} bytes of rows say where its arrays lie, more "
            f"than the {MOST_ROWS} that are read for that; read it with astropy, or leave it out "
            f"with drop_variables or on_error='skip'"
        )
    file.seek(part.offset)
    data = file.read(rows * row)
    if len(data) < rows * row:
        raise make_damage(part, "the file ends within its rows")
    return np.frombuffer(data, np.uint8).reshape(rows, row)


def find_places(
    part: HeaderDataUnit, cells: Any, start: int, words: np.dtype[Any], itemsize: int
) -> Places:
    """Return the places of arrays whose descriptors begin at byte ``start`` of each row.

    Raises
    ------
    FormatError
        An array lies outside the heap.
    """
    pairs = np.ascontiguousarray(cells[:, start : start + 2 * words.itemsize]).view(words)
    counts, offsets = pairs.astype(np.int64).T
    heap = part.cards.get("THEAP", cells.size)
    if type(heap) is not int or heap < 0:
        raise make_damage(part, f"THEAP is {heap!r}")
    # what is far too large would overflow when it is multiplied
    room = part.nbytes - heap
    is_there = (counts >= 0) & (counts <= room) & (offsets >= 0) & (offsets <= room)
    if not (is_there & (offsets + counts * itemsize * is_there <= room) | (counts == 0)).all():
        raise make_damage(part, f"an array lies outside the {room} bytes of its heap")
    return Places(part.offset + heap + offsets, counts)
