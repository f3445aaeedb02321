"""Fill Value messages: what HDF5 reads where nothing was written.

HDF5 File Format Specification 3.0, IV.A.2.e (the old message) and IV.A.2.f. Versions 1 to 3 are
known. The attribute ``_FillValue`` is another thing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from virtualds.parsers.hdf5.structure.message_bytes import (
    MessageError,
    UnknownFormError,
    cache_by_bytes,
    demand_end,
    read_bytes,
    read_uint,
)


class FillState(IntEnum):
    """Who chose a fill value (H5D_fill_value_t)."""

    UNDEFINED = 0
    DEFAULT = 1
    CHOSEN = 2


UNDEFINED_FLAG, CHOSEN_FLAG, KNOWN_FLAGS = 0x10, 0x20, 0x3F
"""Flags of version 3; the others say when space is allocated, and when it is filled."""
NEGATIVE = 2**31
"""The first length that stands for a negative number: then there is no value."""


class FillValue(NamedTuple):
    """A storage fill value.

    Parameters
    ----------
    state : FillState
    raw : bytes
        The element as it lies in the file, in the type of the dataset; empty unless the writer
        chose it. Of types of varying length it refers to the heap.
    """

    state: FillState
    raw: bytes = b""

    @property
    def is_chosen(self) -> bool:
        """Whether the writer of the dataset chose it."""
        return self.state == FillState.CHOSEN

    def view_as(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return a chosen value as an array of one element, where stored bytes are values.

        Raises
        ------
        MessageError
            It has another size than the elements.
        """
        if len(self.raw) != dtype.itemsize:
            raise MessageError(f"a fill value has {len(self.raw)} bytes of {dtype.itemsize}")
        return np.frombuffer(self.raw, dtype)


NO_FILL, DEFAULT_FILL = FillValue(FillState.UNDEFINED), FillValue(FillState.DEFAULT)
"""What a dataset without a message has, and what HDF5 writes where nobody chose a value."""


@cache_by_bytes(4096)
def parse_fill_value(data: bytes) -> FillValue:
    """Return the fill value of a message.

    Raises
    ------
    MessageError
        It contradicts itself.
    UnknownFormError
        It is of an unknown version.
    """
    version = read_uint(data, 0, 1)
    if version in (1, 2):
        # when to allocate and when to fill come first
        defined, begin = bool(read_uint(data, 3, 1)), 4
        sized = defined
    elif version == 3:
        flags, begin = read_uint(data, 1, 1), 2
        if flags & ~KNOWN_FLAGS:
            raise UnknownFormError(f"a fill value with flags {flags:#x}")
        defined, sized = not flags & UNDEFINED_FLAG, bool(flags & CHOSEN_FLAG)
        if sized and not defined:
            raise MessageError("a fill value is both undefined and there")
    else:
        raise UnknownFormError(f"a fill value of version {version}")
    if sized:
        return _parse_value(data, begin)
    demand_end(data, begin)
    return DEFAULT_FILL if defined else NO_FILL


@cache_by_bytes(1024)
def parse_old_fill_value(data: bytes) -> FillValue:
    """Return the fill value of a message of the old type, which another message overrules.

    Raises
    ------
    MessageError
        It is cut short.
    """
    found = _parse_value(data, 0)
    return found if found.is_chosen else NO_FILL


def _parse_value(data: bytes, begin: int) -> FillValue:
    """Read a length and a value of so many bytes."""
    size = read_uint(data, begin, 4)
    if size >= NEGATIVE:
        demand_end(data, begin + 4)
        return NO_FILL
    raw = read_bytes(data, begin + 4, size)
    demand_end(data, begin + 4 + size)
    return FillValue(FillState.CHOSEN, raw) if size else DEFAULT_FILL
