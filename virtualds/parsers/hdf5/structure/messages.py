"""Parsers of messages of object headers: dataspaces, fill values, filters and layouts.

HDF5 File Format Specification 3.0, IV.A.2. The parsers are functions of bytes. They do not know the
file, so callers add it to errors (`raise_with_file`). Many files contain the same messages, so
parsed messages are cached by their bytes. Callers must pass plain bytes, since tracked bytes are
not hashable.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, NoReturn

from virtualds.parsers.hdf5.structure.file_bytes import FileBytes

# ---------------------------------------------------------------------- bytes of a message


MAX_PADDING = 7
"""Maximum number of bytes after a message: version 1 headers pad messages to 8 bytes (IV.A.1.a)."""


class MessageError(ValueError):
    """Raised for a message that is inconsistent or truncated."""


class UnknownFormError(ValueError):
    """Raised for a message of a form that virtualds does not support."""


MESSAGE_ERRORS = (MessageError, UnknownFormError)
"""Errors of the parsers of messages."""


def read_bytes(data: bytes, offset: int, length: int) -> bytes:
    """Return exactly ``length`` bytes at an offset."""
    if offset + length > len(data):
        raise MessageError(f"a message of {len(data)} bytes needs {offset + length}")
    return data[offset : offset + length]


def read_uint(data: bytes, offset: int, size: int) -> int:
    """Return the little-endian unsigned integer at an offset."""
    return int.from_bytes(read_bytes(data, offset, size), "little")


def read_uints(data: bytes, offset: int, size: int, count: int) -> tuple[int, ...]:
    """Return consecutive unsigned integers at an offset."""
    raw = read_bytes(data, offset, size * count)
    return tuple(
        int.from_bytes(raw[at : at + size], "little") for at in range(0, size * count, size)
    )


def read_address(data: bytes, offset: int, size: int) -> int | None:
    """Return the address at an offset, or None if it is undefined (all bits set, II.A)."""
    address = read_uint(data, offset, size)
    return None if address == (1 << 8 * size) - 1 else address


def check_end(data: bytes, stop: int) -> None:
    """Raise an error for a message that is truncated, or longer than its content."""
    if stop > len(data):
        raise MessageError(f"a message of {len(data)} bytes needs {stop}")
    if stop + MAX_PADDING < len(data):
        raise UnknownFormError(f"a message with {len(data) - stop} bytes more than it needs")


def raise_with_file(file: FileBytes, error: Exception) -> NoReturn:
    """Raise the error of a damaged or unknown message with the url of the file."""
    if isinstance(error, MessageError):
        file.raise_damaged(str(error))
    file.raise_unsupported(str(error))


class TypeClass(IntEnum):
    """Datatype classes (HDF5 file format, IV.A.2.d, Datatype message)."""

    INTEGER = 0
    FLOAT = 1
    TIME = 2
    STRING = 3
    BITFIELD = 4
    OPAQUE = 5
    COMPOUND = 6
    REFERENCE = 7
    ENUM = 8
    VLEN = 9
    ARRAY = 10
    COMPLEX = 11


# ---------------------------------------------------------------------- dataspaces
# Dataspace messages: the shape of a dataset or attribute.
#
# HDF5 File Format Specification 3.0, IV.A.2.b, versions 1 and 2.


class SpaceClass(IntEnum):
    """Classes of dataspaces (IV.A.2.b, version 2, "Type")."""

    SCALAR = 0
    SIMPLE = 1
    NULL = 2


HAS_LIMITS, HAS_ORDER = 0b01, 0b10
"""Flags of maximum lengths, and of an order of axes, which HDF5 has never written."""
UNLIMITED = 2**64 - 1
"""Maximum length of an unlimited axis (H5S_UNLIMITED).

In lengths of fewer bytes, HDF5 writes the largest number, which it reads as a limit.
"""
MAX_AXES = 32
"""Maximum number of axes of a dataset (H5S_MAX_RANK)."""


class Dataspace(NamedTuple):
    """A dataspace.

    Parameters
    ----------
    kind : SpaceClass
    shape : tuple of int or None
        None if there are no elements (a null dataspace), which differs from a length of 0.
    limits : tuple of (int or None)
        The maximum length of each axis, or None if there is no limit.
    offset : int
        The offset of the first length in the message.
    has_limits : bool
        Whether the maximum lengths follow in the message.
    """

    kind: SpaceClass
    shape: tuple[int, ...] | None
    limits: tuple[int | None, ...]
    offset: int
    has_limits: bool = False


@lru_cache(4096)
def parse_dataspace(data: bytes, length_size: int = 8) -> Dataspace:
    """Parse the dataspace of a message, with lengths of ``length_size`` bytes."""
    version, rank, flags, class_number = read_bytes(data, 0, 4)
    if version not in (1, 2):
        raise UnknownFormError(f"a dataspace of version {version}")
    # version 1 of the message has no class, but five reserved bytes
    kind = class_number if version == 2 else SpaceClass.SIMPLE if rank else SpaceClass.SCALAR
    if kind not in set(SpaceClass) or flags & ~HAS_LIMITS:
        raise UnknownFormError(f"a dataspace of class {kind} with flags {flags:#x}")
    if rank > (MAX_AXES if kind == SpaceClass.SIMPLE else 0):
        raise MessageError(f"a dataspace of class {kind} has {rank} axes")
    begin = 8 if version == 1 else 4
    count = rank * (2 if flags & HAS_LIMITS else 1)
    lengths = read_uints(data, begin, length_size, count)
    check_end(data, begin + count * length_size)
    shape, max_shape = lengths[:rank], lengths[-rank:]
    if any(n > limit for n, limit in zip(shape, max_shape, strict=True)):
        raise MessageError(f"a dataspace has the shape {shape}, and at most {max_shape}")
    limits = tuple(None if n == UNLIMITED else n for n in max_shape)
    stored_shape = None if kind == SpaceClass.NULL else shape
    return Dataspace(SpaceClass(kind), stored_shape, limits, begin, bool(flags & HAS_LIMITS))


# ---------------------------------------------------------------------- fill values
# Fill Value messages: the value of elements that have not been written.
#
# HDF5 File Format Specification 3.0, IV.A.2.e (the old message) and IV.A.2.f, versions 1 to 3. This
# is not the attribute ``_FillValue``.


class FillState(IntEnum):
    """The origin of a fill value (H5D_fill_value_t)."""

    UNDEFINED = 0
    DEFAULT = 1
    USER_DEFINED = 2


UNDEFINED_FLAG, USER_DEFINED_FLAG, KNOWN_FLAGS = 0x10, 0x20, 0x3F
"""Flags of version 3; other flags determine when space is allocated and filled."""
MIN_NEGATIVE = 2**31
"""Smallest length that represents a negative number, which means that there is no value."""


class FillValue(NamedTuple):
    """A storage fill value.

    Parameters
    ----------
    state : FillState
    raw : bytes
        The stored element, in the type of the dataset; empty unless it is user-defined. In
        variable-length types, it refers to the heap.
    """

    state: FillState
    raw: bytes = b""

    @property
    def is_user_defined(self) -> bool:
        """Whether it is user-defined."""
        return self.state == FillState.USER_DEFINED


NO_FILL, DEFAULT_FILL = FillValue(FillState.UNDEFINED), FillValue(FillState.DEFAULT)
"""The undefined fill value, also of a dataset without a message, and the default of HDF5."""


@lru_cache(4096)
def parse_fill_value(data: bytes) -> FillValue:
    """Parse the fill value of a message."""
    version = read_uint(data, 0, 1)
    if version in (1, 2):
        # the first bytes are the space allocation time and the fill time
        defined, begin = bool(read_uint(data, 3, 1)), 4
        sized = defined
    elif version == 3:
        flags, begin = read_uint(data, 1, 1), 2
        if flags & ~KNOWN_FLAGS:
            raise UnknownFormError(f"a fill value with flags {flags:#x}")
        defined, sized = not flags & UNDEFINED_FLAG, bool(flags & USER_DEFINED_FLAG)
        if sized and not defined:
            raise MessageError("a fill value is both undefined and user-defined")
    else:
        raise UnknownFormError(f"a fill value of version {version}")
    if sized:
        return _parse_value(data, begin)
    check_end(data, begin)
    return DEFAULT_FILL if defined else NO_FILL


@lru_cache(1024)
def parse_old_fill_value(data: bytes) -> FillValue:
    """Parse an old Fill Value message, which is overridden by a new one."""
    fill_value = _parse_value(data, 0)
    return fill_value if fill_value.is_user_defined else NO_FILL


def _parse_value(data: bytes, begin: int) -> FillValue:
    """Parse a value that is preceded by its length."""
    size = read_uint(data, begin, 4)
    if size >= MIN_NEGATIVE:
        check_end(data, begin + 4)
        return NO_FILL
    raw = read_bytes(data, begin + 4, size)
    check_end(data, begin + 4 + size)
    return FillValue(FillState.USER_DEFINED, raw) if size else DEFAULT_FILL


# ---------------------------------------------------------------------- filters
# Filter Pipeline messages: the encoding of chunks.
#
# HDF5 File Format Specification 3.0, IV.A.2.l, versions 1 and 2.


FILTERS = 0x0B
"""Type of the Filter Pipeline message (IV.A.2)."""
MAX_FILTERS = 32
"""Maximum number of filters of a pipeline."""
FIRST_NAMED_FILTER = 256
"""First number of filters that are not part of HDF5, which have a name in version 2."""


class Filter(NamedTuple):
    """A filter of a dataset.

    Parameters
    ----------
    number : int
        The number of the filter, as registered with The HDF Group.
    flags : int
        Bit 0: the filter is optional, so chunks may have skipped it.
    values : tuple of int
        The parameters ("client data").
    """

    number: int
    flags: int
    values: tuple[int, ...]


@lru_cache(1024)
def parse_filter_pipeline(data: bytes) -> tuple[Filter, ...]:
    """Parse the filters of a message, in the order of encoding."""
    version, count = read_bytes(data, 0, 2)
    if version not in (1, 2):
        raise UnknownFormError(f"a filter pipeline of version {version}")
    if count > MAX_FILTERS:
        raise MessageError(f"a pipeline has {count} filters")
    # version 1 of the message has six reserved bytes
    offset, filters = 8 if version == 1 else 2, []
    for _ in range(count):
        parsed, offset = _parse_filter(data, offset, version)
        filters.append(parsed)
    check_end(data, offset)
    return tuple(filters)


def _parse_filter(data: bytes, offset: int, version: int) -> tuple[Filter, int]:
    """Return the filter at an offset, and the offset of its end."""
    number = read_uint(data, offset, 2)
    named = version == 1 or number >= FIRST_NAMED_FILTER
    length = read_uint(data, offset + 2, 2) if named else 0
    offset += 4 if named else 2
    flags, count = read_uints(data, offset, 2, 2)
    if version == 1 and length % 8:
        raise MessageError(f"the name of a filter has {length} bytes")
    begin = offset + 4 + length
    values = read_uints(data, begin, 4, count)
    # version 1 of the message pads parameters to 8 bytes
    padding = 4 * (count % 2) if version == 1 else 0
    return Filter(number, flags, values), begin + 4 * count + padding


# ---------------------------------------------------------------------- layouts
# Data Layout messages: the location of the elements of a dataset.
#
# HDF5 File Format Specification 3.0, IV.A.2.i, versions 1 to 4, and version 5 of HDF5 2.0.


EXTERNAL_FILES = 0x07
"""Type of the message of a dataset whose elements are in external files (IV.A.2.h)."""


class LayoutClass(IntEnum):
    """Classes of layouts."""

    COMPACT = 0
    CONTIGUOUS = 1
    CHUNKED = 2
    VIRTUAL = 3


class IndexKind(IntEnum):
    """Kinds of chunk indexes, by their number in version 4 of the layout message.

    The first is the index of earlier versions, where it has no number.
    """

    B_TREE_1 = 0
    SINGLE = 1
    IMPLICIT = 2
    FIXED_ARRAY = 3
    EXTENSIBLE_ARRAY = 4
    B_TREE_2 = 5


PARAMETER_SIZES = {
    IndexKind.SINGLE: (),
    IndexKind.IMPLICIT: (),
    IndexKind.FIXED_ARRAY: (1,),
    IndexKind.EXTENSIBLE_ARRAY: (1, 1, 1, 1, 1),
    IndexKind.B_TREE_2: (4, 1, 1),
}
"""Sizes in bytes of the parameters of an index, in order."""
UNFILTERED_EDGES, FILTERED_SINGLE = 0b01, 0b10
"""Flags of unfiltered chunks that reach past the end, and of a filtered single chunk."""


class Layout(NamedTuple):
    """The location of the elements of a dataset.

    Parameters
    ----------
    kind : LayoutClass
    address : int or None
        The address of contiguous elements, of the index of chunks (of the chunk itself, if it is
        the only one), or of the collection of the heap that lists the sources of a virtual dataset.
        It is None if nothing is stored.
    size : int or None
        The size of contiguous elements in bytes, or None in versions 1 and 2 of the message,
        which lack it.
    data : bytes
        Compact elements.
    dims : tuple of int
        The chunk shape, followed by the size of an element in bytes.
    index_kind : IndexKind or None
        The kind of index of a chunked dataset.
    flags : int
        The flags of a chunked dataset: `UNFILTERED_EDGES` and `FILTERED_SINGLE`.
    offset : int
        The offset in the message of the address, or of compact elements.
    parameters : tuple of int
        The parameters of the index. A filtered single chunk has its size in bytes and its filter
        mask instead, a virtual dataset the number of the object in the collection. In the message,
        they are right before the address, or, for a virtual dataset, right after it.
    dims_at : (int, int)
        The offset of ``dims`` in the message, and the size of each in bytes.
    """

    kind: LayoutClass
    address: int | None = None
    size: int | None = None
    data: bytes = b""
    dims: tuple[int, ...] = ()
    index_kind: IndexKind | None = None
    flags: int = 0
    offset: int = 0
    parameters: tuple[int, ...] = ()
    dims_at: tuple[int, int] = (0, 0)

    @property
    def is_filtering_edges(self) -> bool:
        """Whether chunks that reach past the end are filtered."""
        return not self.flags & UNFILTERED_EDGES


@lru_cache(4096)
def parse_layout(data: bytes, offset_size: int = 8, length_size: int = 8) -> Layout:
    """Parse a data layout message; the sizes of addresses and lengths are in bytes."""
    version = read_uint(data, 0, 1)
    if not 1 <= version <= 5:
        raise UnknownFormError(f"a data layout of version {version}")
    class_number = read_uint(data, 2 if version < 3 else 1, 1)
    if class_number > (LayoutClass.CHUNKED if version < 4 else LayoutClass.VIRTUAL):
        raise UnknownFormError(f"a data layout of version {version} and class {class_number}")
    kind = LayoutClass(class_number)
    if version < 3:
        layout, stop = _parse_layout_v1(data, kind, offset_size)
    elif kind == LayoutClass.CHUNKED and version > 3:
        layout, stop = _parse_chunked(data, offset_size, length_size)
    else:
        layout, stop = _parse_layout_v3(data, kind, offset_size, length_size)
    check_end(data, stop)
    return layout


def _parse_layout_v1(data: bytes, kind: LayoutClass, offset_size: int) -> tuple[Layout, int]:
    """Parse a data layout message of version 1 or 2.

    It has dimensionality, class, five reserved bytes, address, and dimensions.

    Compact elements have no address, and are preceded by their size.
    """
    rank = _check_rank(read_uint(data, 1, 1), 2 if kind == LayoutClass.CHUNKED else 0)
    if kind == LayoutClass.COMPACT:
        return _parse_compact(data, 8 + 4 * rank, 4)
    if kind == LayoutClass.CHUNKED:
        return _parse_old_chunked(data, 8, offset_size, rank)
    stop = 8 + offset_size + 4 * rank
    return Layout(kind, read_address(data, 8, offset_size), offset=8), stop


def _parse_layout_v3(
    data: bytes, kind: LayoutClass, offset_size: int, length_size: int
) -> tuple[Layout, int]:
    """Parse a data layout message of version 3 or later: the class, and its properties.

    Chunked layouts are parsed only in version 3; `_parse_chunked` parses those of later versions.
    """
    if kind == LayoutClass.COMPACT:
        return _parse_compact(data, 2, 2)
    if kind == LayoutClass.CHUNKED:
        return _parse_old_chunked(data, 3, offset_size, _check_rank(read_uint(data, 2, 1), 2))
    address, begin = read_address(data, 2, offset_size), 2 + offset_size
    if kind == LayoutClass.VIRTUAL:
        # the number of the object in a collection of the heap
        return Layout(kind, address, offset=2, parameters=(read_uint(data, begin, 4),)), begin + 4
    size = read_uint(data, begin, length_size)
    return Layout(kind, address, size, offset=2), begin + length_size


def _parse_chunked(data: bytes, offset_size: int, length_size: int) -> tuple[Layout, int]:
    """Parse a data layout message of version 4 or 5 whose class is chunked.

    It has class, flags, dimensionality, width of the dimensions, dimensions, index, and address.
    """
    flags, rank, width = read_bytes(data, 2, 3)
    if flags & ~(UNFILTERED_EDGES | FILTERED_SINGLE):
        raise UnknownFormError(f"a data layout with flags {flags:#x}")
    if not 0 < width <= 8:
        raise MessageError(f"a layout has lengths of {width} bytes")
    dims = _read_dims(data, 5, width, _check_rank(rank, 2))
    offset = 5 + width * rank
    number = read_uint(data, offset, 1)
    if number not in PARAMETER_SIZES:
        raise UnknownFormError(f"a chunk index of type {number}")
    index = IndexKind(number)
    widths = PARAMETER_SIZES[index]
    if index == IndexKind.SINGLE and flags & FILTERED_SINGLE:
        widths = (length_size, 4)
    offset, parameters = offset + 1, []
    for size in widths:
        parameters.append(read_uint(data, offset, size))
        offset += size
    address = read_address(data, offset, offset_size)
    layout = Layout(
        LayoutClass.CHUNKED,
        address,
        dims=dims,
        index_kind=index,
        flags=flags,
        offset=offset,
        parameters=tuple(parameters),
        dims_at=(5, width),
    )
    return layout, offset + offset_size


def _check_rank(rank: int, extra: int) -> int:
    # the size of an element is one of these lengths, the last
    if not extra <= rank <= MAX_AXES + 1:
        raise MessageError(f"a layout has {rank} lengths")
    return rank


def _parse_compact(data: bytes, offset: int, width: int) -> tuple[Layout, int]:
    size = read_uint(data, offset, width)
    raw = read_bytes(data, offset + width, size)
    begin = offset + width
    return Layout(LayoutClass.COMPACT, size=size, data=raw, offset=begin), begin + size


def _parse_old_chunked(data: bytes, offset: int, offset_size: int, rank: int) -> tuple[Layout, int]:
    """Parse the address of a version 1 B-tree, and the chunk shape."""
    dims = _read_dims(data, offset + offset_size, 4, rank)
    address = read_address(data, offset, offset_size)
    kind, index = LayoutClass.CHUNKED, IndexKind.B_TREE_1
    at = offset + offset_size
    layout = Layout(kind, address, dims=dims, index_kind=index, offset=offset, dims_at=(at, 4))
    return layout, at + 4 * rank


def _read_dims(data: bytes, offset: int, width: int, rank: int) -> tuple[int, ...]:
    dims = read_uints(data, offset, width, rank)
    if not all(dims):
        raise MessageError(f"chunks of {dims[:-1]}, of elements of {dims[-1:]} bytes")
    return dims
