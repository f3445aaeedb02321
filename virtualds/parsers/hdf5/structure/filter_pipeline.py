"""Filter Pipeline messages: what was done to the bytes of chunks.

HDF5 File Format Specification 3.0, IV.A.2.l. Versions 1 and 2 are known.
"""

from __future__ import annotations

from typing import NamedTuple

from virtualds.parsers.hdf5.structure.message_bytes import (
    MessageError,
    UnknownFormError,
    cache_by_bytes,
    demand_end,
    read_bytes,
    read_uint,
    read_uints,
)

FILTERS = 0x0B
"""The type of the message (IV.A.2)."""
MOST_FILTERS = 32
"""Most filters of a pipeline."""
RESERVED = 256
"""The first number of filters that do not come with HDF5; in version 2 the others have no name."""


class Filter(NamedTuple):
    """A filter of a dataset.

    Parameters
    ----------
    number : int
        Its number, as registered with The HDF Group.
    flags : int
        Bit 0: the filter was optional, so that a chunk may have skipped it.
    values : tuple of int
        Its parameters ("client data").
    """

    number: int
    flags: int
    values: tuple[int, ...]


@cache_by_bytes(1024)
def parse_filter_pipeline(data: bytes) -> tuple[Filter, ...]:
    """Return the filters of a message, in the order in which they encoded.

    Raises
    ------
    MessageError
        It contradicts itself.
    UnknownFormError
        It is of an unknown version.
    """
    version, count = read_bytes(data, 0, 2)
    if version not in (1, 2):
        raise UnknownFormError(f"a filter pipeline of version {version}")
    if count > MOST_FILTERS:
        raise MessageError(f"a pipeline has {count} filters")
    # version 1 has six reserved bytes
    place, found = 8 if version == 1 else 2, []
    for _ in range(count):
        one, place = _parse_filter(data, place, version)
        found.append(one)
    demand_end(data, place)
    return tuple(found)


def _parse_filter(data: bytes, place: int, version: int) -> tuple[Filter, int]:
    """Return the filter at a place, and where it ends."""
    number = read_uint(data, place, 2)
    named = version == 1 or number >= RESERVED
    length = read_uint(data, place + 2, 2) if named else 0
    place += 4 if named else 2
    flags, count = read_uints(data, place, 2, 2)
    if version == 1 and length % 8:
        raise MessageError(f"the name of a filter has {length} bytes")
    begin = place + 4 + length
    values = read_uints(data, begin, 4, count)
    # version 1 fills parameters up to 8 bytes
    padding = 4 * (count % 2) if version == 1 else 0
    return Filter(number, flags, values), begin + 4 * count + padding
