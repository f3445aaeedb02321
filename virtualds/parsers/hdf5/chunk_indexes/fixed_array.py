"""Fixed arrays, the index of HDF5 1.10 for datasets without unlimited axes.

HDF5 File Format Specification 3.0, VII.C. An array has an element for each chunk of the greatest
shape; a long one is cut into pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from virtualds.chunks.columns import Ints
from virtualds.parsers.hdf5.chunk_indexes.form import (
    ChunkRows,
    Indexes,
    Run,
    check_blocks,
    check_versions,
    find_numbers,
    find_places,
    group_alike,
    is_element_size,
    join_runs,
    meet,
    take_heads,
)
from virtualds.parsers.hdf5.structure.byte_rows import (
    CHECKSUM_BYTES,
    Bytes,
    demand,
    have_checksums,
    is_defined,
    read_uints,
    take_parts,
)

BEFORE_HEADER = 6
"""Bytes of a block before the address of its header: signature, version and client."""


class _ArrayForm(NamedTuple):
    """What arrays with the same header share: bytes of an element, elements of a page and all."""

    element: int
    page: int
    elements: int

    @property
    def pages(self) -> int:
        """Pages, 0 for an array that is not cut."""
        return -(-self.elements // self.page) if self.elements > self.page else 0


def read_fixed_arrays(indexes: Indexes) -> ChunkRows:
    """Read fixed arrays (VII.C).

    Raises
    ------
    RowsError
        They are damaged.
    UnknownRowsError
        They have an unknown form.
    """
    rows = indexes.rows
    heads = take_heads(indexes, 8 + rows.length_size + rows.offset_size, b"FAHD", "fixed array")
    check_versions(indexes, heads, "a fixed array")
    return group_alike(indexes, heads, slice(6, 8 + rows.length_size), _read_alike)


def _read_alike(indexes: Indexes, heads: Bytes) -> ChunkRows:
    """Read arrays whose headers differ in the address of their data block alone."""
    rows, form, file = indexes.rows, indexes.form, indexes.file
    begin = 8 + rows.length_size
    block = read_uints(heads[:, begin : begin + rows.offset_size])
    count = int(read_uints(heads[:1, 8:begin])[0])
    array = _ArrayForm(int(heads[0, 6]), 1 << int(min(heads[0, 7], 62)), count)
    is_sound = is_element_size(form, array.element, rows.offset_size)
    is_sound = is_sound and count == prod(form.greatest_grid) and None not in form.limits
    demand(np.full(len(file), is_sound), file, "the header of a fixed array contradicts itself")
    owner = np.flatnonzero(is_defined(block, rows.offset_size))
    longer = "a fixed array is longer than its file"
    demand(rows.ends[file[owner]] // array.element >= count, file[owner], longer)
    read = _read_pages if array.pages else _read_blocks
    order = list(range(len(form.chunks)))
    runs = read(indexes, array, owner, block[owner])

    def place(number: Ints) -> Ints:
        return find_places(form, number, order, form.greatest_grid)

    return join_runs(indexes, runs, place)


def _read_blocks(indexes: Indexes, array: _ArrayForm, owner: Ints, block: Ints) -> Iterator[Run]:
    """Yield the elements of arrays that are not cut into pages."""
    start = BEFORE_HEADER + indexes.rows.offset_size
    size = start + array.elements * array.element + CHECKSUM_BYTES
    first = np.zeros(len(owner), np.int64)
    for part, data in take_parts(indexes.rows, indexes.file[owner], block, size):
        check_blocks(indexes, owner[part], data, b"FADB")
        yield Run(owner[part], first[part], data[:, start:-CHECKSUM_BYTES], array.element)


def _read_pages(indexes: Indexes, array: _ArrayForm, owner: Ints, block: Ints) -> Iterator[Run]:
    """Yield the elements of the pages that were written: any other page may hold any bytes."""
    rows, file = indexes.rows, indexes.file
    start = BEFORE_HEADER + rows.offset_size
    size = start + -(-array.pages // 8) + CHECKSUM_BYTES
    data = rows.take_rows(file[owner], block, size)
    check_blocks(indexes, owner, data, b"FADB")
    # the most significant bit comes first
    bits = np.unpackbits(data[:, start:-CHECKSUM_BYTES], axis=1, count=array.pages)
    which, page = np.nonzero(bits)
    if indexes.wanted is not None:
        form, order = indexes.form, list(range(len(indexes.form.chunks)))
        wanted = find_numbers(form, indexes.wanted, order, form.greatest_grid)
        needed = meet(wanted, page * array.page, (page + 1) * array.page)
        which, page = which[needed], page[needed]
    length = array.page * array.element + CHECKSUM_BYTES
    address = block[which] + size + page * length
    last = page == array.pages - 1
    rest = array.elements - (array.pages - 1) * array.page
    for some, count in ((~last, array.page), (last, rest)):
        owners, first = owner[which[some]], page[some] * array.page
        length = count * array.element + CHECKSUM_BYTES
        for part, data in take_parts(rows, file[owners], address[some], length):
            wrong = "a page of a fixed array has a wrong checksum"
            demand(have_checksums(data), file[owners[part]], wrong)
            raw = data[:, :-CHECKSUM_BYTES]
            yield Run(owners[part], first[part], raw, array.element)
