"""Extensible arrays, the index of HDF5 1.10 for datasets with one unlimited axis, read as a table.

HDF5 File Format Specification 3.0, VII.D. HDF5's own list of chunks (`H5Dchunk_iter`, up to 2.0)
has them at wrong positions where the unlimited axis is not the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.parsers.hdf5.chunk_table import ChunkTable, to_table
from virtualds.parsers.hdf5.file_bytes import FileBytes
from virtualds.parsers.hdf5.object_header import CHECKSUM_BYTES, is_sound

Bytes = npt.NDArray[np.uint8]

MASK = 4
"""Bytes of a filter mask."""


class _ArrayHeader(NamedTuple):
    """The header of an extensible array (VII.D, "Extensible Array Header")."""

    has_filters: bool
    element: int
    max_bits: int
    in_index: int
    least: int
    pointers: int
    page_bits: int
    used: int
    block: int

    @property
    def page(self) -> int:
        """Elements of a page: longer data blocks are cut into pages."""
        return 1 << self.page_bits

    @property
    def supers(self) -> int:
        """Most super blocks of the array."""
        return 1 + self.max_bits - (self.least.bit_length() - 1)

    @property
    def supers_in_index(self) -> int:
        """Super blocks whose data blocks the index block itself names."""
        return 2 * (self.pointers.bit_length() - 1)

    @property
    def blocks_in_index(self) -> int:
        """Data blocks that the index block names."""
        return 2 * (self.pointers - 1)

    @property
    def number_size(self) -> int:
        """Bytes of the number of the first element of a block."""
        return -(-self.max_bits // 8)


class _DataBlock(NamedTuple):
    """A data block: the number of its first element, its address, and which pages are written."""

    first: int
    address: int
    pages: npt.NDArray[np.bool_] | None


def read_extensible_array(
    file: FileBytes,
    address: int,
    dims: Sequence[int],
    limits: Sequence[int | None],
) -> ChunkTable:
    """Read an extensible array (VII.D).

    Parameters
    ----------
    file : FileBytes
    address : int
        Of its header.
    dims : sequence of int
        Elements of a chunk along each axis, and last the bytes of an element.
    limits : sequence of int or None
        The greatest length of each axis, None for the unlimited one.

    Returns
    -------
    numpy.ndarray
        Not yet checked by `demand_sound_table`.

    Raises
    ------
    FormatError
        It is damaged.
    UnsupportedError
        It has an unknown form.
    """
    head = _read_header(file, address)
    numbers, rows = [np.empty(0, np.int64)], [np.empty((0, head.element), np.uint8)]
    if file.is_defined(head.block):
        for first, elements in _read_runs(file, address, head):
            count = min(len(elements), max(head.used - first, 0))
            numbers.append(np.arange(first, first + count))
            rows.append(elements[:count])
    number, raw = np.concatenate(numbers), np.concatenate(rows)
    place, mask, length = _parse_elements(file, head, raw, prod(dims))
    there = place != np.uint64((1 << 8 * file.offset_size) - 1)
    position = _find_positions(file, number[there], dims[:-1], limits)
    table = to_table(file, position, mask[there], place[there], length[there])
    # numbers are in C order only if the unlimited axis is the first
    return table[:, np.lexsort(position[::-1])]


def _read_header(file: FileBytes, address: int) -> _ArrayHeader:
    size = 12 + 6 * file.length_size + file.offset_size + CHECKSUM_BYTES
    data = file.take(address, size)
    if data[:4] != b"EAHD" or not is_sound(data):
        file.refuse(f"there is no extensible array at {address}, or its checksum is wrong")
    if data[4] or data[5] > 1:
        file.decline(f"an extensible array of version {data[4]} and client {data[5]}")
    used = file.unpack_length(data, 12 + 4 * file.length_size)
    block = file.unpack_address(data, 12 + 6 * file.length_size)
    element, bits, in_index, least, pointers, page = data[6:12]
    head = _ArrayHeader(bool(data[5]), element, bits, in_index, least, pointers, page, used, block)
    narrowest = file.offset_size + (MASK + 1) * head.has_filters
    powers = all(n and not n & (n - 1) for n in (head.least, head.pointers))
    if head.element < narrowest or head.element - narrowest > 7 or not powers:
        file.refuse("the header of an extensible array contradicts itself")
    if not head.supers_in_index <= head.supers or head.max_bits > 64 or head.used >= 2**63:
        file.refuse("the header of an extensible array contradicts itself")
    return head


def _read_runs(file: FileBytes, address: int, head: _ArrayHeader) -> Iterator[tuple[int, Bytes]]:
    """Yield runs of written elements: the number of the first, and the bytes of all."""
    start = 6 + file.offset_size
    begin = start + head.in_index * head.element
    in_supers = begin + head.blocks_in_index * file.offset_size
    count = head.supers - head.supers_in_index
    size = in_supers + count * file.offset_size + CHECKSUM_BYTES
    data = file.take(head.block, size)
    _check_block(file, data, b"EAIB", address)
    yield 0, np.frombuffer(data[start:begin], np.uint8).reshape(-1, head.element)
    blocks = _read_addresses(file, data, begin, head.blocks_in_index)
    supers = _read_addresses(file, data, in_supers, count)
    seen: set[int] = set()
    for length, some in _list_data_blocks(file, address, head, blocks, supers).items():
        addresses = [block.address for block in some]
        if not seen.isdisjoint(addresses) or len(set(addresses)) < len(addresses):
            file.refuse("an extensible array has a data block twice")
        seen.update(addresses)
        yield from _read_blocks(file, address, head, length, some)


def _list_data_blocks(
    file: FileBytes, address: int, head: _ArrayHeader, blocks: Sequence[int], supers: Sequence[int]
) -> dict[int, list[_DataBlock]]:
    """Return the data blocks that are there, by the number of their elements.

    Super block ``n`` has ``2**(n // 2)`` data blocks of ``least * 2**((n + 1) // 2)`` elements.
    """
    found: dict[int, list[_DataBlock]] = {}
    first, left = head.in_index, list(blocks)
    for number in range(head.supers):
        if first >= head.used:
            break
        count, length = 1 << number // 2, head.least << (number + 1) // 2
        listed: Sequence[int] = []
        pages: Iterable[Any] = repeat(None)
        if number < head.supers_in_index:
            listed, left = left[:count], left[count:]
        else:
            place = supers[number - head.supers_in_index]
            if file.is_defined(place):
                listed, pages = _read_super_block(file, address, head, place, count, length)
        for at, (where, which) in enumerate(zip(listed, pages, strict=False)):
            if file.is_defined(where):
                found.setdefault(length, []).append(_DataBlock(first + at * length, where, which))
        first += count * length
    return found


def _read_super_block(
    file: FileBytes, address: int, head: _ArrayHeader, place: int, count: int, length: int
) -> tuple[Sequence[int], Iterable[Any]]:
    """Return the data blocks of a super block, and which of their pages were written."""
    pages = length // head.page if length > head.page else 0
    bits = 6 + file.offset_size + head.number_size
    begin = bits + count * -(-pages // 8)
    data = file.take(place, begin + count * file.offset_size + CHECKSUM_BYTES)
    _check_block(file, data, b"EASB", address)
    listed = _read_addresses(file, data, begin, count)
    if not pages:
        return listed, repeat(None)
    # one stream of bits for all blocks, the most significant bit first
    stream = np.unpackbits(np.frombuffer(data[bits:begin], np.uint8))[: count * pages]
    return listed, list(stream.reshape(count, pages).astype(bool))


def _read_blocks(
    file: FileBytes, address: int, head: _ArrayHeader, length: int, blocks: Sequence[_DataBlock]
) -> Iterator[tuple[int, Bytes]]:
    """Yield the elements of data blocks of one length, page by page where they have pages."""
    start = 6 + file.offset_size + head.number_size
    if length <= head.page:
        size = start + length * head.element + CHECKSUM_BYTES
        taken = file.take_all([(block.address, size) for block in blocks])
        for block, data in zip(blocks, taken, strict=True):
            _check_block(file, data, b"EADB", address)
            yield block.first, _split_rows(data[start:-CHECKSUM_BYTES], head.element)
        return
    size = head.page * head.element + CHECKSUM_BYTES
    for block in blocks:
        _check_block(file, file.take(block.address, start + CHECKSUM_BYTES), b"EADB", address)
        # an unwritten page may hold any bytes
        written = np.flatnonzero(block.pages).tolist() if block.pages is not None else []
        begin = block.address + start + CHECKSUM_BYTES
        taken = file.take_all([(begin + page * size, size) for page in written])
        for page, data in zip(written, taken, strict=True):
            if not is_sound(data):
                file.refuse("a page of an extensible array has a wrong checksum")
            yield block.first + page * head.page, _split_rows(data[:-CHECKSUM_BYTES], head.element)


def _check_block(file: FileBytes, data: bytes, signature: bytes, address: int) -> None:
    if data[:4] != signature or file.unpack_address(data, 6) != address or not is_sound(data):
        file.refuse(f"a block {signature.decode()} of an extensible array is missing or damaged")


def _read_addresses(file: FileBytes, data: bytes, begin: int, count: int) -> list[int]:
    found: list[int] = np.frombuffer(data, f"<u{file.offset_size}", count, begin).tolist()
    return found


def _split_rows(data: bytes, width: int) -> Bytes:
    return np.frombuffer(data, np.uint8).reshape(-1, width)


def _parse_elements(
    file: FileBytes, head: _ArrayHeader, raw: Bytes, nbytes: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the addresses, filter masks and lengths of chunks from the elements of an array.

    Chunks without filters have all the same length, and their elements are addresses alone.
    """
    at = file.offset_size
    address = _to_uints(raw[:, :at])
    if not head.has_filters:
        same = np.full(len(raw), nbytes, np.int64)
        return address, np.zeros(len(raw), np.int64), same
    length = _to_uints(raw[:, at : head.element - MASK])
    if length.size and int(length.max()) >= 2**63:
        file.refuse("a chunk is longer than any file")
    return address, _to_uints(raw[:, head.element - MASK :]), length.astype(np.int64)


def _to_uints(raw: Bytes) -> npt.NDArray[np.uint64]:
    """Return unsigned integers of up to eight bytes each."""
    wide = np.zeros((len(raw), 8), np.uint8)
    wide[:, : raw.shape[1]] = raw
    return wide.view("<u8")[:, 0]


def _find_positions(
    file: FileBytes,
    number: npt.NDArray[np.int64],
    chunks: Sequence[int],
    limits: Sequence[int | None],
) -> npt.NDArray[np.int64]:
    """Return the positions of chunks from their numbers.

    HDF5 numbers chunks over the greatest extent, with the unlimited axis in front.
    """
    order = sorted(range(len(chunks)), key=lambda axis: limits[axis] is not None)
    place = np.empty((len(chunks), len(number)), np.int64)
    for axis in reversed(order[1:]):
        count = -(-(limits[axis] or 0) // chunks[axis])
        if not 0 < count < 2**63:
            file.refuse(f"an axis of {count} chunks")
        number, place[axis] = np.divmod(number, count)
    place[order[0]] = number
    return place * np.array(chunks, np.int64)[:, None]
