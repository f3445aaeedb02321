"""Chunk indexes of HDF5 datasets, read as columns.

HDF5 File Format Specification 3.0, III.A and VII. Indexes of the same layout, in one file or in
many, are read together. B-trees are in `trees`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from virtualds.chunks.columns import Ints, compute_strides
from virtualds.parsers.hdf5.chunk_indexes.layout import (
    MAX_INT64,
    ChunkRows,
    Indexes,
    IndexLayout,
    check_chunks,
    find_positions,
    find_requested_elements,
    group_by_header,
    intersect,
    is_element_size,
    join_chunks,
    parse_elements,
    read_index_headers,
    sort_chunks,
)
from virtualds.parsers.hdf5.chunk_indexes.trees import read_old_trees, read_trees
from virtualds.parsers.hdf5.structure import (
    CHECKSUM_BYTES,
    Bools,
    ByteRows,
    Bytes,
    UnknownRowsError,
    check_single_parents,
    have_checksums,
    is_defined,
    read_row_batches,
    read_uints,
    require,
)
from virtualds.parsers.hdf5.structure.messages import IndexKind

# ---------------------------------------------------------------------- no index, or a single chunk
# VII.A and VII.B: a single chunk, and consecutive chunks.


def find_single_chunks(indexes: Indexes, length: Ints, mask: Ints) -> ChunkRows:
    """Return the chunks of datasets that have a single chunk (VII.A)."""
    count, layout = len(indexes.file), indexes.layout
    single = (indexes.shape == np.array(layout.chunks)).all(axis=1)
    require(np.asarray(single), indexes.file, "a dataset of one chunk does not have its shape")
    position = np.zeros((len(layout.chunks), count), np.int64)
    return check_chunks(indexes, ChunkRows(np.arange(count), position, mask, indexes.root, length))


def compute_implicit_chunks(indexes: Indexes) -> ChunkRows:
    """Return the consecutive chunks of datasets with an implicit index (VII.B)."""
    layout, file, ends = indexes.layout, indexes.file, indexes.rows.ends
    is_possible = not layout.has_filters and None not in layout.limits
    require(np.full(len(file), is_possible), file, "chunks that may grow have no index")
    nbytes = prod(layout.maximum_grid) * layout.nbytes
    is_inside = (indexes.root >= 0) & (indexes.root <= ends[file] - min(nbytes, 2**62))
    require(is_inside, file, "chunks lie past the end of the file")
    for lengths, limit in zip(indexes.shape.T, layout.limits, strict=True):
        require(lengths <= (limit or 0), file, "a shape exceeds the maximum shape")
    grids, inverse = np.unique(
        -(-indexes.shape // np.array(layout.chunks)), axis=0, return_inverse=True
    )
    parts = []
    for number, grid in enumerate(grids.tolist()):
        parts.append(_compute_grid_chunks(indexes, np.flatnonzero(inverse.ravel() == number), grid))
    return sort_chunks(check_chunks(indexes, join_chunks(parts, len(layout.chunks))))


def _compute_grid_chunks(indexes: Indexes, owner: Ints, grid: list[int]) -> ChunkRows:
    """Return the implicit chunks of datasets with the same grid."""
    layout = indexes.layout
    if indexes.requested is None:
        position = np.indices(grid).reshape(len(grid), -1)
    else:
        position = indexes.requested.copy()
    offset = np.zeros(position.shape[1], np.int64)
    for values, stride in zip(position, compute_strides(layout.maximum_grid), strict=True):
        offset += values * (stride * layout.nbytes)
    position *= np.array(layout.chunks)[:, None]
    address = (indexes.root[owner, None] + offset).ravel()
    position, owners = np.tile(position, (1, len(owner))), np.repeat(owner, len(offset))
    lengths = np.full(len(owners), layout.nbytes)
    return ChunkRows(owners, position, np.zeros_like(owners), address, lengths)


# ---------------------------------------------------------------------- arrays
# VII.C and VII.D: fixed and extensible arrays, the indexes for at most one unlimited axis since
# HDF5 1.10.


BLOCK_PREFIX_BYTES = 6
"""Size in bytes of a block before the address of its header: signature, version and client."""


class ElementRuns(NamedTuple):
    """Runs of elements: their arrays, the indexes of their first elements, and their bytes."""

    owner: Ints
    first: Ints
    raw: Bytes


def check_versions(indexes: Indexes, heads: Bytes, name: str) -> None:
    """Require headers of version 0, whose client id is that of filtered or unfiltered chunks."""
    version, client = heads[:, 4], heads[:, 5]
    supported = (version == 0) & (client < 2)
    if not supported.all():
        first = int(np.flatnonzero(~supported)[0])
        unknown = f"{name} of version {version[first]} and client {client[first]}"
        require(supported, indexes.file, unknown, UnknownRowsError)
    same = client == indexes.layout.has_filters
    require(same, indexes.file, f"{name} and the filters of its dataset contradict each other")


def check_blocks(indexes: Indexes, owner: Ints, data: Bytes, signature: bytes) -> None:
    """Raise an error for blocks that are damaged, or belong to another array."""
    size, client = indexes.rows.offset_size, int(indexes.layout.has_filters)
    head = np.frombuffer(signature + bytes([0, client]), np.uint8)
    matches = (data[:, :6] == head).all(axis=1)
    matches &= read_uints(data[:, 6 : 6 + size]) == indexes.root[owner]
    problem = f"a block {signature.decode()} of an array of chunks is missing"
    is_valid = matches & have_checksums(data)
    require(is_valid, indexes.file[owner], f"{problem}, or has a wrong checksum")


def read_blocks(
    indexes: Indexes,
    owner: Ints,
    first: Ints,
    address: Ints,
    begin: int,
    nbytes: int,
    signature: bytes,
) -> Iterator[ElementRuns]:
    """Yield the elements of data blocks, which are ``nbytes`` bytes from ``begin`` of each."""
    size = begin + nbytes + CHECKSUM_BYTES
    for part, data in read_row_batches(indexes.rows, indexes.file[owner], address, size):
        check_blocks(indexes, owner[part], data, signature)
        yield ElementRuns(owner[part], first[part], data[:, begin:-CHECKSUM_BYTES])


class Pages(NamedTuple):
    """The pages of data blocks.

    ``first`` and ``address`` are those of the first page of each block; ``written`` is a mask of
    the pages of each block; ``elements`` is the number of elements of a page.
    """

    owner: Ints
    first: Ints
    address: Ints
    written: Bools
    elements: int


def read_pages(
    indexes: Indexes, pages: Pages, element: int, requested: Ints | None, name: str
) -> Iterator[ElementRuns]:
    """Yield the elements of written pages; other pages have undefined contents."""
    size = pages.elements * element + CHECKSUM_BYTES
    start = pages.first[:, None] + np.arange(pages.written.shape[1]) * pages.elements
    is_needed = pages.written & intersect(requested, start, start + pages.elements)
    block, page = np.nonzero(is_needed)
    owner, first, address = pages.owner[block], start[is_needed], pages.address[block] + page * size
    file = indexes.file[owner]
    for part, data in read_row_batches(indexes.rows, file, address, size):
        wrong = f"a page of {name} has a wrong checksum"
        require(have_checksums(data), file[part], wrong)
        yield ElementRuns(owner[part], first[part], data[:, :-CHECKSUM_BYTES])


def join_runs(
    indexes: Indexes, runs: Iterable[ElementRuns], element: int, used: Ints | None = None
) -> ChunkRows:
    """Return the chunks of all elements, of ``element`` bytes each.

    ``used`` is the number of elements of each array that may be used, by default all.
    """
    chunks = [_parse_runs(indexes, part, element, used) for part in runs]
    joined = join_chunks(chunks, len(indexes.layout.chunks))
    return sort_chunks(check_chunks(indexes, joined))


def _parse_runs(indexes: Indexes, runs: ElementRuns, element: int, used: Ints | None) -> ChunkRows:
    """Return the chunks of the used elements of runs."""
    size = indexes.rows.offset_size
    count = runs.raw.shape[1] // element
    raw = np.ascontiguousarray(runs.raw).reshape(-1, element)
    number = (runs.first[:, None] + np.arange(count)).ravel()
    owner = np.repeat(runs.owner, count)
    exists = is_defined(read_uints(raw[:, :size]), size)
    if used is not None:
        exists &= number < used[owner]
    if not exists.all():
        owner, number, raw = owner[exists], number[exists], raw[exists]
    position = find_positions(indexes.layout, number)
    # arrays have elements for the maximum shape; HDF5 ignores those past the shape
    inside = (position < indexes.shape[owner].T).all(axis=0)
    if not inside.all():
        owner, position, raw = owner[inside], position[:, inside], raw[inside]
    return ChunkRows(owner, position, *parse_elements(indexes.layout, raw, size))


# ---------------------------------------------------------------------- fixed arrays
# HDF5 File Format Specification 3.0, VII.C. An array has an element for each chunk of the maximum
# shape; a long one is divided into pages.


class _FixedArrayLayout(NamedTuple):
    """The layout in a header: size of an element, and elements of a page and of the array."""

    element: int
    page: int
    elements: int

    @property
    def pages(self) -> int:
        """Number of pages, or 0 for an array without pages."""
        return -(-self.elements // self.page) if self.elements > self.page else 0


def read_fixed_arrays(indexes: Indexes) -> ChunkRows:
    """Return the chunks of fixed arrays (VII.C)."""
    rows = indexes.rows
    heads = read_index_headers(
        indexes, 8 + rows.length_size + rows.offset_size, b"FAHD", "fixed array"
    )
    check_versions(indexes, heads, "a fixed array")
    return group_by_header(indexes, heads, slice(6, 8 + rows.length_size), _read_equal_fixed)


def _read_equal_fixed(indexes: Indexes, heads: Bytes) -> ChunkRows:
    """Return the chunks of arrays whose headers differ only in the address of the data block."""
    rows, layout, file = indexes.rows, indexes.layout, indexes.file
    begin = 8 + rows.length_size
    block = read_uints(heads[:, begin : begin + rows.offset_size])
    count = int(read_uints(heads[:1, 8:begin])[0])
    array = _FixedArrayLayout(int(heads[0, 6]), 1 << int(min(heads[0, 7], 62)), count)
    is_valid = is_element_size(layout, array.element, rows.offset_size)
    is_valid = is_valid and count == prod(layout.maximum_grid) and None not in layout.limits
    require(np.full(len(file), is_valid), file, "the header of a fixed array contradicts itself")
    owner = np.flatnonzero(is_defined(block, rows.offset_size))
    longer = "a fixed array is longer than its file"
    require(rows.ends[file[owner]] // array.element >= count, file[owner], longer)
    first = np.zeros(len(owner), np.int64)
    if array.pages:
        runs = _read_fixed_pages(indexes, array, owner, first, block[owner])
    else:
        start, nbytes = BLOCK_PREFIX_BYTES + rows.offset_size, count * array.element
        runs = read_blocks(indexes, owner, first, block[owner], start, nbytes, b"FADB")
    return join_runs(indexes, runs, array.element)


def _read_fixed_pages(
    indexes: Indexes, array: _FixedArrayLayout, owner: Ints, first: Ints, block: Ints
) -> Iterator[ElementRuns]:
    """Yield the elements of arrays that are divided into pages, of which the last is shorter."""
    start = BLOCK_PREFIX_BYTES + indexes.rows.offset_size
    size = start + -(-array.pages // 8) + CHECKSUM_BYTES
    data = indexes.rows.read_rows(indexes.file[owner], block, size)
    check_blocks(indexes, owner, data, b"FADB")
    # the most significant bit comes first
    bits = np.unpackbits(data[:, start:-CHECKSUM_BYTES], axis=1, count=array.pages)
    written, requested, full = bits.astype(bool), find_requested_elements(indexes), array.pages - 1
    end = block + size + full * (array.page * array.element + CHECKSUM_BYTES)
    rest = array.elements - full * array.page
    for pages in (
        Pages(owner, first, block + size, written[:, :full], array.page),
        Pages(owner, first + full * array.page, end, written[:, full:], rest),
    ):
        yield from read_pages(indexes, pages, array.element, requested, "a fixed array")


# ---------------------------------------------------------------------- extensible arrays
# HDF5 File Format Specification 3.0, VII.D. `H5Dchunk_iter` of HDF5, up to 2.0, returns wrong
# positions if the unlimited axis is not the first.

INCONSISTENT_HEADER = "the header of an extensible array contradicts itself"
"""Error message for an inconsistent header."""


class _ExtensibleArrayLayout(NamedTuple):
    """The layout in a header (VII.D, "Extensible Array Header")."""

    element: int
    max_bits: int
    index_elements: int
    min_elements: int
    pointers: int
    page_bits: int

    @property
    def page(self) -> int:
        """The number of elements of a page; longer data blocks are divided into pages."""
        return 1 << self.page_bits

    @property
    def supers(self) -> int:
        """Maximum number of super blocks of the array."""
        return 1 + self.max_bits - (self.min_elements.bit_length() - 1)

    @property
    def supers_in_index(self) -> int:
        """The number of super blocks whose data blocks are listed in the index block."""
        return 2 * (self.pointers.bit_length() - 1)

    @property
    def blocks_in_index(self) -> int:
        """The number of data blocks that the index block lists."""
        return 2 * (self.pointers - 1)

    @property
    def number_size(self) -> int:
        """The size in bytes of the index of the first element of a block."""
        return -(-self.max_bits // 8)


class _Arrays(NamedTuple):
    """Arrays of one layout.

    ``used`` is the number of elements of each array that may be used; ``requested`` are the indexes
    of the requested elements, or None for all.
    """

    indexes: Indexes
    layout: _ExtensibleArrayLayout
    used: Ints
    requested: Ints | None


class _DataBlocks(NamedTuple):
    """Data blocks of one length: the index of the first element of each, and its pages.

    ``pages`` is a mask of the pages that were written, of length 0 for blocks without pages.
    """

    owner: Ints
    first: Ints
    address: Ints
    pages: Bools


def read_extensible_arrays(indexes: Indexes) -> ChunkRows:
    """Return the chunks of extensible arrays (VII.D)."""
    size = 12 + 6 * indexes.rows.length_size + indexes.rows.offset_size
    heads = read_index_headers(indexes, size, b"EAHD", "extensible array")
    check_versions(indexes, heads, "an extensible array")
    return group_by_header(indexes, heads, slice(6, 12), _read_equal_headers)


def _read_equal_headers(indexes: Indexes, heads: Bytes) -> ChunkRows:
    """Return the chunks of arrays whose headers differ only in addresses and element counts."""
    rows, file = indexes.rows, indexes.file
    layout = _parse_layout(indexes, heads)
    begin = 12 + 4 * rows.length_size
    used = read_uints(heads[:, begin : begin + rows.length_size])
    require(used >= 0, file, INCONSISTENT_HEADER)
    begin += 2 * rows.length_size
    block = read_uints(heads[:, begin : begin + rows.offset_size])
    owner = np.flatnonzero(is_defined(block, rows.offset_size))
    arrays = _Arrays(indexes, layout, used, find_requested_elements(indexes))
    runs = _iterate_runs(arrays, owner, block[owner])
    return join_runs(indexes, runs, layout.element, used)


def _parse_layout(indexes: Indexes, heads: Bytes) -> _ExtensibleArrayLayout:
    """Parse the layout of arrays from their common header."""
    layout, limits = _ExtensibleArrayLayout(*heads[0, 6:12].tolist()), indexes.layout.limits
    powers = all(n and not n & (n - 1) for n in (layout.min_elements, layout.pointers))
    is_valid = powers and layout.supers_in_index <= layout.supers and layout.max_bits <= 64
    is_valid = is_valid and is_element_size(
        indexes.layout, layout.element, indexes.rows.offset_size
    )
    # blocks listed in the index block have no pages
    is_valid = is_valid and layout.min_elements << layout.supers_in_index // 2 <= layout.page
    is_valid = is_valid and limits.count(None) == 1 and 0 not in limits
    is_valid = is_valid and max(indexes.layout.maximum_grid) < 2**63
    require(np.full(len(heads), is_valid), indexes.file, INCONSISTENT_HEADER)
    return layout


def _iterate_runs(arrays: _Arrays, owner: Ints, block: Ints) -> Iterator[ElementRuns]:
    """Yield runs of all used elements."""
    indexes, layout = arrays.indexes, arrays.layout
    size = indexes.rows.offset_size
    start = BLOCK_PREFIX_BYTES + size
    begin = start + layout.index_elements * layout.element
    super_start = begin + layout.blocks_in_index * size
    stop = super_start + (layout.supers - layout.supers_in_index) * size
    parts: list[tuple[Ints, Ints, Ints]] = []
    file = indexes.file[owner]
    for part, data in read_row_batches(indexes.rows, file, block, stop + CHECKSUM_BYTES):
        owners = owner[part]
        check_blocks(indexes, owners, data, b"EAIB")
        yield ElementRuns(owners, np.zeros(len(owners), np.int64), data[:, start:begin])
        blocks = _read_addresses(data[:, begin:super_start], size)
        parts.append((owners, blocks, _read_addresses(data[:, super_start:stop], size)))
    if parts:
        named = map(np.concatenate, zip(*parts, strict=True))
        for length, data_blocks in _find_data_blocks(arrays, *named).items():
            yield from _read_blocks(arrays, length, data_blocks)


def _read_addresses(fields: Bytes, size: int) -> Ints:
    return read_uints(fields.reshape(len(fields), fields.shape[1] // size, size))


def _find_data_blocks(
    arrays: _Arrays, array: Ints, blocks: Ints, supers: Ints
) -> dict[int, list[_DataBlocks]]:
    """Return the existing data blocks, by the number of their elements.

    ``blocks`` and ``supers`` are the addresses of data blocks and super blocks in the index block
    of each ``array``.

    Super block ``n`` has ``2**(n // 2)`` data blocks of ``min_elements * 2**((n + 1) // 2)``
    elements.
    """
    layout, size = arrays.layout, arrays.indexes.rows.offset_size
    data_blocks: dict[int, list[_DataBlocks]] = {}
    first, start = layout.index_elements, 0
    for number in range(layout.supers):
        owner = np.flatnonzero(first < arrays.used[array])
        if not owner.size:
            break
        count, length = 1 << number // 2, layout.min_elements << (number + 1) // 2
        if number < layout.supers_in_index:
            address = blocks[owner, start : start + count]
            pages = np.zeros((*address.shape, 0), bool)
            start += count
        elif intersect(
            arrays.requested, np.array(first), np.array(min(first + count * length, MAX_INT64))
        ):
            super_address = supers[owner, number - layout.supers_in_index]
            owner, super_address = (
                column[is_defined(super_address, size)] for column in (owner, super_address)
            )
            address, pages = _read_super_blocks(arrays, array[owner], super_address, count, length)
        else:
            first += count * length
            continue
        # index of the first element of each block of an array
        begin = first + np.arange(count) * length
        owners, at = np.nonzero(
            is_defined(address, size) & intersect(arrays.requested, begin, begin + length)
        )
        if owners.size:
            owners, selected = array[owner[owners]], (owners, at)
            found = _DataBlocks(owners, first + at * length, address[selected], pages[selected])
            data_blocks.setdefault(length, []).append(found)
        first += count * length
    return data_blocks


def _read_super_blocks(
    arrays: _Arrays, owner: Ints, super_address: Ints, count: int, length: int
) -> tuple[Ints, Bools]:
    """Return the data block addresses in super blocks, and a mask of their written pages."""
    indexes, layout = arrays.indexes, arrays.layout
    pages = length // layout.page if length > layout.page else 0
    bits = BLOCK_PREFIX_BYTES + indexes.rows.offset_size + layout.number_size
    begin = bits + count * -(-pages // 8)
    stop = begin + count * indexes.rows.offset_size
    file = indexes.file[owner]
    longer = "a super block of an extensible array is longer than its file"
    require(indexes.rows.ends[file] >= stop, file, longer)
    data = indexes.rows.read_rows(file, super_address, stop + CHECKSUM_BYTES)
    check_blocks(indexes, owner, data, b"EASB")
    address = _read_addresses(data[:, begin:stop], indexes.rows.offset_size)
    # one stream of bits for all blocks, the most significant bit first
    stream = np.unpackbits(data[:, bits:begin], axis=1, count=count * pages)
    return address, stream.reshape(len(data), count, pages).astype(bool)


def _read_blocks(
    arrays: _Arrays, length: int, data_blocks: list[_DataBlocks]
) -> Iterator[ElementRuns]:
    """Yield the elements of data blocks of one length, by pages if they have pages."""
    indexes, layout = arrays.indexes, arrays.layout
    start = BLOCK_PREFIX_BYTES + indexes.rows.offset_size + layout.number_size
    nbytes = 0 if length > layout.page else length * layout.element
    size = start + nbytes + CHECKSUM_BYTES
    owner, first, address, written = map(np.concatenate, zip(*data_blocks, strict=True))
    file = indexes.file[owner]
    twice = "an extensible array has a data block twice"
    check_single_parents(indexes.rows, file, owner, address, size, twice)
    yield from read_blocks(indexes, owner, first, address, start, nbytes, b"EADB")
    pages = Pages(owner, first, address + size, written, min(length, layout.page))
    name = "an extensible array"
    yield from read_pages(indexes, pages, layout.element, arrays.requested, name)


# ---------------------------------------------------------------------- all kinds of index


READERS: dict[int, Callable[[Indexes], ChunkRows]] = {
    IndexKind.B_TREE_1: read_old_trees,
    IndexKind.IMPLICIT: compute_implicit_chunks,
    IndexKind.FIXED_ARRAY: read_fixed_arrays,
    IndexKind.EXTENSIBLE_ARRAY: read_extensible_arrays,
    IndexKind.B_TREE_2: read_trees,
}
"""Readers by kind of index; a single chunk is in the layout message."""


def read_indexes(
    rows: ByteRows,
    layout: IndexLayout,
    file: Ints,
    root: Ints,
    shape: Ints,
    length: Ints | None = None,
    mask: Ints | None = None,
    requested: Ints | None = None,
) -> ChunkRows:
    """Return the chunks of datasets whose indexes have the same layout.

    Parameters
    ----------
    rows : ByteRows
    layout : IndexLayout
    file : int64 array, shape (n,)
        The file of each dataset.
    root : int64 array, shape (n,)
        The address in the layout message, as returned by `read_uints`.
    shape : int64 array, shape (n, ndim)
    length, mask : int64 array, shape (n,), optional
        Size and filter mask of single chunks, from the layout message.
    requested : int64 array, shape (ndim, k), optional
        Chunks to look up in the index of a single dataset, as positions in the chunk grid in C
        order. Only the required parts of the index are read; the result also has the other chunks
        of these parts.

    Returns
    -------
    ChunkRows
    """
    defined = np.flatnonzero(is_defined(root, rows.offset_size))
    if not defined.size:
        return ChunkRows.empty(len(layout.chunks))
    indexes = Indexes(rows, layout, file, root, shape, requested).at(defined)
    if layout.kind != IndexKind.SINGLE:
        chunks = READERS[layout.kind](indexes)
    else:
        sizes = np.full(len(file), layout.nbytes) if length is None else length
        masks = np.zeros(len(file), np.int64) if mask is None else mask
        chunks = find_single_chunks(indexes, sizes[defined], masks[defined])
    return chunks._replace(owner=defined[chunks.owner])
