"""Data Layout messages: where the elements of a dataset lie.

HDF5 File Format Specification 3.0, IV.A.2.i. Versions 1 to 5 are known.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from virtualds.parsers.hdf5.structure.message_bytes import (
    MessageError,
    UnknownFormError,
    cache_by_bytes,
    demand_end,
    read_address,
    read_bytes,
    read_uint,
    read_uints,
)

EXTERNAL_FILES = 0x07
"""The type of the message that lists other files (IV.A.2.h): a contiguous dataset with it has no
address, and its elements lie in those files."""


class LayoutClass(IntEnum):
    """Classes of layouts."""

    COMPACT = 0
    CONTIGUOUS = 1
    CHUNKED = 2
    VIRTUAL = 3


class IndexKind(IntEnum):
    """Indexes of chunks: the first up to version 3, the others by their number of version 4."""

    B_TREE_1 = 0
    SINGLE = 1
    IMPLICIT = 2
    FIXED_ARRAY = 3
    EXTENSIBLE_ARRAY = 4
    B_TREE_2 = 5


PARAMETERS = {
    IndexKind.SINGLE: (),
    IndexKind.IMPLICIT: (),
    IndexKind.FIXED_ARRAY: (1,),
    IndexKind.EXTENSIBLE_ARRAY: (1, 1, 1, 1, 1),
    IndexKind.B_TREE_2: (4, 1, 1),
}
"""Bytes of the parameters of an index, in their order."""
BARE_EDGES, FILTERED_SINGLE = 0b01, 0b10
"""Flags of chunks: those that reach past the end are not filtered; the only chunk is."""
MOST_AXES = 32
"""Most axes of a dataset (H5S_MAX_RANK); of chunks, the bytes of an element follow them."""


class Layout(NamedTuple):
    """Where the elements of a dataset lie.

    Parameters
    ----------
    kind : LayoutClass
    address : int or None
        Of contiguous elements, of the index of chunks (of the chunk itself, if it is the only one),
        or of the collection of the heap that lists the sources of a virtual dataset; None where
        nothing is stored.
    size : int or None
        Bytes of contiguous elements; None in versions 1 and 2, which do not say.
    data : bytes
        Compact elements.
    dims : tuple of int
        Elements of a chunk along each axis, and last the bytes of an element.
    index_kind : IndexKind or None
        Of chunks.
    flags : int
        Of chunks: `BARE_EDGES` and `FILTERED_SINGLE`.
    place : int
        Of the address in the message, or of compact elements.
    parameters : tuple of int
        Of the index; of a filtered single chunk its bytes and its filter mask; of a virtual dataset
        the number of the object in the collection. They lie right before the address, and right
        behind it in a virtual dataset.
    dims_at : (int, int)
        Where ``dims`` lie in the message, and the bytes of each.
    """

    kind: LayoutClass
    address: int | None = None
    size: int | None = None
    data: bytes = b""
    dims: tuple[int, ...] = ()
    index_kind: IndexKind | None = None
    flags: int = 0
    place: int = 0
    parameters: tuple[int, ...] = ()
    dims_at: tuple[int, int] = (0, 0)

    @property
    def is_filtering_edges(self) -> bool:
        """Whether chunks that reach past the end are filtered."""
        return not self.flags & BARE_EDGES


@cache_by_bytes(4096)
def parse_layout(data: bytes, offset_size: int = 8, length_size: int = 8) -> Layout:
    """Return the layout of a message, of a file with addresses and lengths of so many bytes.

    Raises
    ------
    MessageError
        It contradicts itself.
    UnknownFormError
        Its version, its class, or its index is unknown.
    """
    version = read_uint(data, 0, 1)
    if not 1 <= version <= 5:
        raise UnknownFormError(f"a data layout of version {version}")
    of_class = read_uint(data, 2 if version < 3 else 1, 1)
    parse = (OLD if version < 3 else V3 if version == 3 else V4).get(of_class)
    if parse is None:
        raise UnknownFormError(f"a data layout of version {version} and class {of_class}")
    found, stop = parse(data, offset_size, length_size)
    demand_end(data, stop)
    return found


def _parse_old_compact(data: bytes, offset_size: int, length_size: int) -> tuple[Layout, int]:
    """Read versions 1 and 2: dimensionality, class, five reserved bytes, dimensions, size."""
    return _read_compact(data, 8 + 4 * _read_old_rank(data, 0), 4)


def _read_old_rank(data: bytes, extra: int) -> int:
    return _demand_rank(read_uint(data, 1, 1), extra)


def _demand_rank(rank: int, extra: int) -> int:
    if not extra <= rank <= MOST_AXES + 1:
        raise MessageError(f"a layout has {rank} lengths")
    return rank


def _read_compact(data: bytes, place: int, width: int) -> tuple[Layout, int]:
    size = read_uint(data, place, width)
    raw = read_bytes(data, place + width, size)
    begin = place + width
    return Layout(LayoutClass.COMPACT, size=size, data=raw, place=begin), begin + size


def _parse_old_contiguous(data: bytes, offset_size: int, length_size: int) -> tuple[Layout, int]:
    """Read versions 1 and 2: dimensionality, class, five reserved bytes, address, dimensions."""
    stop = 8 + offset_size + 4 * _read_old_rank(data, 0)
    return Layout(LayoutClass.CONTIGUOUS, read_address(data, 8, offset_size), place=8), stop


def _parse_old_chunked(data: bytes, offset_size: int, length_size: int) -> tuple[Layout, int]:
    """Read versions 1 and 2: dimensionality, class, five reserved bytes, address, dimensions."""
    return _read_tree(data, 8, offset_size, _read_old_rank(data, 2))


def _read_tree(data: bytes, place: int, offset_size: int, rank: int) -> tuple[Layout, int]:
    """Read the address of a version 1 B-tree, and the dimensions of chunks."""
    dims = _read_dims(data, place + offset_size, 4, rank)
    address = read_address(data, place, offset_size)
    kind, index = LayoutClass.CHUNKED, IndexKind.B_TREE_1
    at = place + offset_size
    found = Layout(kind, address, dims=dims, index_kind=index, place=place, dims_at=(at, 4))
    return found, at + 4 * rank


def _read_dims(data: bytes, place: int, width: int, rank: int) -> tuple[int, ...]:
    dims = read_uints(data, place, width, rank)
    if not all(dims):
        raise MessageError(f"chunks of {dims[:-1]}, of elements of {dims[-1:]} bytes")
    return dims


def _parse_compact(data: bytes, offset_size: int, length_size: int) -> tuple[Layout, int]:
    """Read version 3 and later: class, size, elements."""
    return _read_compact(data, 2, 2)


def _parse_contiguous(data: bytes, offset_size: int, length_size: int) -> tuple[Layout, int]:
    """Read version 3 and later: class, address, size."""
    size = read_uint(data, 2 + offset_size, length_size)
    found = Layout(LayoutClass.CONTIGUOUS, read_address(data, 2, offset_size), size, place=2)
    return found, 2 + offset_size + length_size


def _parse_chunked_3(data: bytes, offset_size: int, length_size: int) -> tuple[Layout, int]:
    """Read version 3: class, dimensionality, address, dimensions."""
    return _read_tree(data, 3, offset_size, _demand_rank(read_uint(data, 2, 1), 2))


def _parse_chunked_4(data: bytes, offset_size: int, length_size: int) -> tuple[Layout, int]:
    """Read versions 4 and 5: class, flags, dimensionality, width, dimensions, index, address."""
    flags, rank, width = read_bytes(data, 2, 3)
    if flags & ~(BARE_EDGES | FILTERED_SINGLE):
        raise UnknownFormError(f"a data layout with flags {flags:#x}")
    if not 0 < width <= 8:
        raise MessageError(f"a layout has lengths of {width} bytes")
    dims = _read_dims(data, 5, width, _demand_rank(rank, 2))
    place = 5 + width * rank
    number = read_uint(data, place, 1)
    if number not in PARAMETERS:
        raise UnknownFormError(f"a chunk index of type {number}")
    index = IndexKind(number)
    widths = PARAMETERS[index]
    if index == IndexKind.SINGLE and flags & FILTERED_SINGLE:
        widths = (length_size, 4)
    place, parameters = place + 1, []
    for size in widths:
        parameters.append(read_uint(data, place, size))
        place += size
    address = read_address(data, place, offset_size)
    found = Layout(
        LayoutClass.CHUNKED,
        address,
        dims=dims,
        index_kind=index,
        flags=flags,
        place=place,
        parameters=tuple(parameters),
        dims_at=(5, width),
    )
    return found, place + offset_size


def _parse_virtual(data: bytes, offset_size: int, length_size: int) -> tuple[Layout, int]:
    """Read version 4 and later: class, address of a collection of the heap, number of an object."""
    address = read_address(data, 2, offset_size)
    number = read_uint(data, 2 + offset_size, 4)
    return Layout(LayoutClass.VIRTUAL, address, place=2, parameters=(number,)), 6 + offset_size


Parse = Callable[[bytes, int, int], tuple[Layout, int]]
OLD: dict[int, Parse] = {
    LayoutClass.COMPACT: _parse_old_compact,
    LayoutClass.CONTIGUOUS: _parse_old_contiguous,
    LayoutClass.CHUNKED: _parse_old_chunked,
}
V3: dict[int, Parse] = {
    LayoutClass.COMPACT: _parse_compact,
    LayoutClass.CONTIGUOUS: _parse_contiguous,
    LayoutClass.CHUNKED: _parse_chunked_3,
}
V4: dict[int, Parse] = V3 | {
    LayoutClass.CHUNKED: _parse_chunked_4,
    LayoutClass.VIRTUAL: _parse_virtual,
}
"""Parsers by class, for versions 1 and 2, 3, and later: the layout, and where it ends."""
