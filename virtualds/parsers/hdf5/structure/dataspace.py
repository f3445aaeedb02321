"""Dataspace messages: how many elements a dataset or an attribute has.

HDF5 File Format Specification 3.0, IV.A.2.b. Versions 1 and 2 are known.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from virtualds.parsers.hdf5.structure.message_bytes import (
    MessageError,
    UnknownFormError,
    cache_by_bytes,
    demand_end,
    read_bytes,
    read_uints,
)


class SpaceClass(IntEnum):
    """Classes of dataspaces (IV.A.2.b, version 2, "Type")."""

    SCALAR = 0
    SIMPLE = 1
    NULL = 2


HAS_LIMITS, HAS_ORDER = 0b01, 0b10
"""Flags: the greatest lengths follow; so does an order of axes, which HDF5 never wrote."""
UNLIMITED = 2**64 - 1
"""The greatest length of an axis that may grow (H5S_UNLIMITED). Lengths of fewer bytes cannot hold
it: HDF5 writes the greatest that they can, and reads that as a limit."""
MOST_AXES = 32
"""Most axes of a dataset (H5S_MAX_RANK)."""


class Dataspace(NamedTuple):
    """A dataspace.

    Parameters
    ----------
    kind : SpaceClass
    shape : tuple of int or None
        None where there are no elements (a null dataspace), which is not a length of 0.
    limits : tuple of (int or None)
        The greatest length of each axis, None where there is no limit.
    place : int
        Of the first length in the message.
    has_limits : bool
        Whether the greatest lengths follow in the message.
    """

    kind: SpaceClass
    shape: tuple[int, ...] | None
    limits: tuple[int | None, ...]
    place: int
    has_limits: bool = False


@cache_by_bytes(4096)
def parse_dataspace(data: bytes, length_size: int = 8) -> Dataspace:
    """Return the dataspace of a message, of a file with lengths of so many bytes.

    Raises
    ------
    MessageError
        It contradicts itself.
    UnknownFormError
        It is of an unknown version.
    """
    version, rank, flags, of_class = read_bytes(data, 0, 4)
    if version not in (1, 2):
        raise UnknownFormError(f"a dataspace of version {version}")
    # version 1 has no classes, and five reserved bytes
    kind = of_class if version == 2 else SpaceClass.SIMPLE if rank else SpaceClass.SCALAR
    if kind not in set(SpaceClass) or flags & ~HAS_LIMITS:
        raise UnknownFormError(f"a dataspace of class {kind} with flags {flags:#x}")
    if rank > (MOST_AXES if kind == SpaceClass.SIMPLE else 0):
        raise MessageError(f"a dataspace of class {kind} has {rank} axes")
    begin = 8 if version == 1 else 4
    count = rank * (2 if flags & HAS_LIMITS else 1)
    lengths = read_uints(data, begin, length_size, count)
    demand_end(data, begin + count * length_size)
    shape, most = lengths[:rank], lengths[-rank:]
    if any(n > limit for n, limit in zip(shape, most, strict=True)):
        raise MessageError(f"a dataspace has the shape {shape}, and at most {most}")
    limits = tuple(None if n == UNLIMITED else n for n in most)
    held = None if kind == SpaceClass.NULL else shape
    return Dataspace(SpaceClass(kind), held, limits, begin, bool(flags & HAS_LIMITS))
