"""The header of a netCDF file of the classic formats: bytes in, dimensions and variables out.

Written after the "NetCDF Classic Format Specification" (Unidata, in the NetCDF User's Guide), and
for CDF-5 after the "CDF-5 file format specification" (PnetCDF). Every number is big-endian.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from struct import unpack
from typing import Any, NamedTuple, TypeVar

import numpy as np

from virtualds.chunks.fragment import LONGEST_AXIS
from virtualds.errors import FormatError

MAGIC = b"CDF"
VERSIONS = (1, 2, 5)
"""Classic, 64-bit offset, 64-bit data: the byte after `MAGIC`."""
DIMENSIONS, VARIABLES, ATTRIBUTES, ABSENT = 0x0A, 0x0B, 0x0C, 0
"""Tags of lists (``NC_DIMENSION``, ``NC_VARIABLE``, ``NC_ATTRIBUTE``, ``ZERO``)."""
CHAR = 2
TYPES = {
    1: np.dtype("i1"),
    CHAR: np.dtype("S1"),
    3: np.dtype(">i2"),
    4: np.dtype(">i4"),
    5: np.dtype(">f4"),
    6: np.dtype(">f8"),
    7: np.dtype("u1"),
    8: np.dtype(">u2"),
    9: np.dtype(">u4"),
    10: np.dtype(">i8"),
    11: np.dtype(">u8"),
}
"""Dtypes by ``nc_type``; only CDF-5 has those from 7 on."""
OF_CLASSIC = 6
"""The last type that CDF-1 and CDF-2 have."""

Item = TypeVar("Item")


class MoreNeeded(Exception):
    """The header is longer than the bytes given, and reaches at least to ``stop``."""

    def __init__(self, stop: int) -> None:
        super().__init__(stop)
        self.stop = stop


class NetCDF3Dimension(NamedTuple):
    """A dimension; the record dimension has length 0."""

    name: str
    length: int


@dataclass(frozen=True)
class NetCDF3Variable:
    """A variable of the header.

    ``shape`` is that of one record where ``has_records``; ``begin`` is where its bytes begin.
    """

    name: str
    dims: tuple[str, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    has_records: bool
    begin: int
    attributes: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of its values, or of its part of one record.

        The field ``vsize`` of the header says the same, padded, and overflows for large variables.
        """
        return int(self.dtype.itemsize * prod(self.shape))


@dataclass(frozen=True)
class NetCDF3Header:
    """The header of a file; ``numrecs`` is None where the size of the file gives it."""

    dimensions: tuple[NetCDF3Dimension, ...]
    attributes: dict[str, Any]
    variables: tuple[NetCDF3Variable, ...]
    numrecs: int | None

    @property
    def record_dimension(self) -> str | None:
        """The name of the record dimension, None if there is none."""
        return next((d.name for d in self.dimensions if not d.length), None)

    @property
    def of_records(self) -> tuple[NetCDF3Variable, ...]:
        """The variables that have records."""
        return tuple(v for v in self.variables if v.has_records)

    @property
    def record_size(self) -> int:
        """Bytes from one record to the next.

        The part of each variable is padded to 4 bytes, unless it is the only one ("Note on
        padding").
        """
        variables = self.of_records
        if len(variables) == 1:
            return variables[0].nbytes
        return sum(_pad_length(v.nbytes) for v in variables)

    def count_records(self, size: int) -> int:
        """Return how many records a file of this size holds as a whole."""
        step, variables = self.record_size, [v for v in self.of_records if v.nbytes]
        if not step or not variables:
            return 0
        return max(min((size - v.begin - v.nbytes) // step + 1 for v in variables), 0)


def parse_header(data: bytes, where: str) -> NetCDF3Header:
    """Return the header that a file begins with.

    Raises
    ------
    MoreNeeded
        The header is longer than ``data``.
    FormatError
        It is damaged; ``where`` names the file.
    """
    parser = _Parser(data, where)
    numrecs = parser.parse_numrecs()
    begin = parser.at
    for version, raw, known in [*_KNOWN]:
        # in files of one structure all but the number of records is often the same
        if version == parser.version and data.startswith(raw, begin):
            return replace(known, numrecs=numrecs)
    header = parser.parse_header(numrecs)
    _KNOWN.appendleft((parser.version, bytes(data[begin : parser.at]), header))
    return header


_KNOWN: deque[tuple[int, bytes, NetCDF3Header]] = deque(maxlen=4)
"""Headers that were parsed last: the version, the bytes after the number of records, and what they
say. Groups share their attributes, which datasets copy."""


def _pad_length(nbytes: int) -> int:
    return -(-nbytes // 4) * 4


class _Parser:
    """A walk over the bytes of a header."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where = data, where
        self.at = 4
        self.version = data[3] if data[:3] == MAGIC and len(data) > 3 else 0
        if self.version not in VERSIONS:
            raise self.describe_damage(f"begins with {data[:4]!r}, not with CDF and 1, 2 or 5", 0)
        # bytes of NON_NEG, and of the OFFSET of variables
        self.wide = 8 if self.version == 5 else 4
        self.wide_offset = 4 if self.version == 1 else 8

    def describe_damage(self, found: str, place: int | None = None) -> FormatError:
        place = self.at if place is None else place
        return FormatError(
            f"{self.where}: header, byte {place}: {found}; the file is damaged, fetch it again"
        )

    def parse_numrecs(self) -> int | None:
        if self.data[self.at : self.at + self.wide] == b"\xff" * self.wide:
            self.at += self.wide
            return None
        return self.parse_count()

    def parse_header(self, numrecs: int | None) -> NetCDF3Header:
        dimensions = tuple(self.parse_list(DIMENSIONS, "dimensions", self.parse_dimension))
        _demand_unique(self, "dimension", [d.name for d in dimensions])
        if sum(not d.length for d in dimensions) > 1:
            raise self.describe_damage("more than one dimension has no length")
        attributes = self.parse_attributes()
        variables = tuple(
            self.parse_list(VARIABLES, "variables", lambda: self.parse_variable(dimensions))
        )
        _demand_unique(self, "variable", [v.name for v in variables])
        return NetCDF3Header(dimensions, attributes, variables, numrecs)

    def parse_list(self, tag: int, what: str, read: Callable[[], Item]) -> list[Item]:
        """Read a list: its tag, its length, its items."""
        found, begin = self.parse_number(4), self.at - 4
        count = self.parse_number(self.wide)
        if found == ABSENT and not count:
            return []
        if found != tag:
            raise self.describe_damage(
                f"tag {found:#x} where the list of {what} begins ({tag:#x})", begin
            )
        # a count that is too large runs past the data, which raises MoreNeeded
        return [read() for _ in range(count)]

    def parse_dimension(self) -> NetCDF3Dimension:
        return NetCDF3Dimension(self.parse_name(), self.parse_count())

    def parse_attributes(self) -> dict[str, Any]:
        return dict(self.parse_list(ATTRIBUTES, "attributes", self.parse_attribute))

    def parse_attribute(self) -> tuple[str, Any]:
        name = self.parse_name()
        kind = self.parse_type()
        count = self.parse_number(self.wide)
        raw = self.take_padded(count * kind.itemsize)
        if kind == TYPES[CHAR]:
            # as netCDF4-python: a fill value stays bytes, text is UTF-8 without its zeros
            text = raw.decode("utf-8", "replace").replace("\0", "")
            return name, np.bytes_(raw) if name == "_FillValue" else text
        values = np.frombuffer(raw, kind).astype(kind.newbyteorder("="))
        return name, values[0] if values.size == 1 else values

    def parse_variable(self, dimensions: tuple[NetCDF3Dimension, ...]) -> NetCDF3Variable:
        name = self.parse_name()
        count, place = self.parse_number(self.wide), self.at
        ids = unpack(f">{count}{'Q' if self.wide == 8 else 'I'}", self.take(count * self.wide))
        if any(number >= len(dimensions) for number in ids):
            raise self.describe_damage(
                f"variable {name!r} has the dimensions {[*ids[:32]]}, and there are only "
                f"{len(dimensions)}",
                place,
            )
        attributes = self.parse_attributes()
        kind = self.parse_type()
        self.parse_number(self.wide)
        begin = self.parse_number(self.wide_offset)
        dims = [dimensions[number] for number in ids]
        if any(not d.length for d in dims[1:]):
            raise self.describe_damage(
                f"variable {name!r} has the record dimension {dims[-1].name!r} among its others"
            )
        has_records = bool(dims) and not dims[0].length
        shape = tuple(d.length for d in dims[has_records:])
        names = tuple(d.name for d in dims)
        return NetCDF3Variable(name, names, kind, shape, has_records, begin, attributes)

    def parse_type(self) -> np.dtype[Any]:
        number = self.parse_number(4)
        last = max(TYPES) if self.version == 5 else OF_CLASSIC
        if number not in TYPES or number > last:
            raise self.describe_damage(f"type {number}, not one of 1 to {last}", self.at - 4)
        return TYPES[number]

    def parse_name(self) -> str:
        raw, place = self.take_padded(self.parse_number(self.wide)), self.at
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise self.describe_damage(f"the name {raw[:64]!r} is not UTF-8", place) from error
        # netCDF-C ends a name at its first zero, and its own test files have such names
        text = text.partition("\0")[0]
        if not text:
            raise self.describe_damage(f"the name {raw[:64]!r}", place)
        return text

    def parse_count(self) -> int:
        """Take a length (NON_NEG), which is never negative, and not longer than an axis can be."""
        found = self.parse_number(self.wide)
        # CDF-1 limits counts to 2**31, but longer files exist
        if found >= LONGEST_AXIS:
            raise self.describe_damage(f"a length of {found}", self.at - self.wide)
        return found

    def parse_number(self, width: int) -> int:
        # most of a header is numbers, so `take` is inlined
        stop = self.at + width
        raw = self.data[self.at : stop]
        if len(raw) < width:
            raise MoreNeeded(stop)
        self.at = stop
        return int.from_bytes(raw, "big")

    def take_padded(self, count: int) -> bytes:
        """Take bytes and their padding, and return the bytes."""
        return self.take(count + -count % 4)[:count]

    def take(self, count: int) -> bytes:
        stop = self.at + count
        if stop > len(self.data):
            raise MoreNeeded(stop)
        taken = self.data[self.at : stop]
        self.at = stop
        return taken


def _demand_unique(parser: _Parser, what: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for n, name in enumerate(names) if name in names[:n])
        raise parser.describe_damage(f"two {what}s are called {twice!r}")
