"""netCDF files of the classic formats: CDF-1, CDF-2 (64-bit offset) and CDF-5 (64-bit data).

Parsing the header usually takes one request. A variable without records is one chunk, which readers
divide as needed. Each record of a variable is a chunk, since the records of all variables are
interleaved (docs/explanation/decisions/0018-a-record-is-a-chunk.md).

The format is defined by the "NetCDF Classic Format Specification" (Unidata, in the NetCDF User's
Guide), and for CDF-5 by the "CDF-5 file format specification" (PnetCDF). All numbers are
big-endian.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from struct import unpack
from typing import Any, NamedTuple, TypeVar

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, describe_left_out
from virtualds.arrays.parser import NativeReader, Parser
from virtualds.bounds import MAX_AXES, check_axes
from virtualds.chunks.axes import MAX_AXIS_LENGTH, ChunkAxis
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import StridedReferences
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, make_damage_error
from virtualds.source_file import SourceFile, path_or_url
from virtualds.stores import find_store
from virtualds.stores.block_cache import FIRST_PAGES, PAGE_SIZE

MAGIC = b"CDF"
VERSIONS = (1, 2, 5)
"""Values of the byte after `MAGIC`: classic, 64-bit offset, 64-bit data."""
DIMENSIONS, VARIABLES, ATTRIBUTES, ABSENT = 0x0A, 0x0B, 0x0C, 0
"""Tags of lists (``NC_DIMENSION``, ``NC_VARIABLE``, ``NC_ATTRIBUTE``, ``ZERO``)."""
CHAR = 2
DTYPES = {
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
"""Dtypes by ``nc_type``; the types from 7 on exist only in CDF-5."""
MAX_CLASSIC_TYPE = 6
"""Largest ``nc_type`` of CDF-1 and CDF-2."""

Item = TypeVar("Item")


class IncompleteHeader(Exception):
    """Raised if the available bytes are not the whole header, which has at least ``stop`` bytes."""

    def __init__(self, stop: int) -> None:
        super().__init__(stop)
        self.stop = stop


class NetCDF3Dimension(NamedTuple):
    """A dimension; the record dimension has length 0."""

    name: str
    length: int


@dataclass(frozen=True)
class NetCDF3Variable:
    """A variable, as described in the header.

    ``shape`` is the shape of one record if ``has_records``; ``begin`` is the offset of its bytes.
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
        """The size in bytes of its values, or of its values in one record.

        The field ``vsize`` of the header is this size with padding, and overflows for large
        variables.
        """
        return int(self.dtype.itemsize * prod(self.shape))


@dataclass(frozen=True)
class NetCDF3Header:
    """The header of a file; ``numrecs`` is None if it must be computed from the file size."""

    dimensions: tuple[NetCDF3Dimension, ...]
    attributes: dict[str, Any]
    variables: tuple[NetCDF3Variable, ...]
    numrecs: int | None

    @property
    def record_dimension(self) -> str | None:
        """The name of the record dimension, or None if there is none."""
        return next((d.name for d in self.dimensions if not d.length), None)

    @property
    def record_variables(self) -> tuple[NetCDF3Variable, ...]:
        """The variables that have the record dimension."""
        return tuple(v for v in self.variables if v.has_records)

    @property
    def record_size(self) -> int:
        """The size of a record in bytes.

        The values of each variable are padded to 4 bytes, unless it is the only record variable
        ("Note on padding").
        """
        variables = self.record_variables
        if len(variables) == 1:
            return variables[0].nbytes
        return sum(-(-v.nbytes // 4) * 4 for v in variables)

    def count_records(self, size: int) -> int:
        """Return the number of complete records in a file of ``size`` bytes."""
        step, variables = self.record_size, [v for v in self.record_variables if v.nbytes]
        if not step or not variables:
            return 0
        return max(min((size - v.begin - v.nbytes) // step + 1 for v in variables), 0)


def parse_header(data: bytes, url: str) -> NetCDF3Header:
    """Return the header at the beginning of a file.

    Raises `IncompleteHeader` if the header is longer than ``data``, and `FormatError` if it is
    damaged.
    """
    parser = _HeaderParser(data, url)
    numrecs = parser.parse_numrecs()
    begin = parser.position
    for version, raw, header in [*_PARSED_HEADERS]:
        # files with the same structure often only differ in the number of records
        if version == parser.version and data.startswith(raw, begin):
            return replace(header, numrecs=numrecs)
    header = parser.parse_header(numrecs)
    _PARSED_HEADERS.appendleft((parser.version, bytes(data[begin : parser.position]), header))
    return header


_PARSED_HEADERS: deque[tuple[int, bytes, NetCDF3Header]] = deque(maxlen=4)
"""Most recently parsed headers: version, bytes after the number of records, and parsed header.

Groups share the attributes of these headers; datasets copy them.
"""


class _HeaderParser:
    """A parser of the bytes of a header, from ``position`` on."""

    def __init__(self, data: bytes, url: str) -> None:
        self.data, self.url = data, url
        self.position = 4
        self.version = data[3] if data[:3] == MAGIC and len(data) > 3 else 0
        if self.version not in VERSIONS:
            raise self.make_header_error(f"begins with {data[:4]!r}, not with CDF and 1, 2 or 5", 0)
        # sizes in bytes of NON_NEG, and of OFFSET
        self.count_width = 8 if self.version == 5 else 4
        self.offset_width = 4 if self.version == 1 else 8

    def make_header_error(self, problem: str, offset: int | None = None) -> FormatError:
        offset = self.position if offset is None else offset
        return make_damage_error(f"{self.url}: header, byte {offset}: {problem}")

    def parse_numrecs(self) -> int | None:
        if self.data.startswith(b"\xff" * self.count_width, self.position):
            self.position += self.count_width
            return None
        return self.parse_count()

    def parse_header(self, numrecs: int | None) -> NetCDF3Header:
        dimensions = tuple(self.parse_list(DIMENSIONS, "dimensions", self.parse_dimension))
        _check_unique(self, "dimension", [d.name for d in dimensions])
        if sum(not d.length for d in dimensions) > 1:
            raise self.make_header_error("more than one dimension has length 0")
        attributes = self.parse_attributes()
        variables = tuple(
            self.parse_list(VARIABLES, "variables", lambda: self.parse_variable(dimensions))
        )
        _check_unique(self, "variable", [v.name for v in variables])
        return NetCDF3Header(dimensions, attributes, variables, numrecs)

    def parse_list(self, tag: int, kind: str, read: Callable[[], Item]) -> list[Item]:
        """Parse a list: tag, length and items."""
        actual_tag, begin = self.parse_number(4), self.position - 4
        count = self.parse_number(self.count_width)
        if actual_tag == ABSENT and not count:
            return []
        if actual_tag != tag:
            raise self.make_header_error(
                f"tag {actual_tag:#x} where the list of {kind} begins ({tag:#x})", begin
            )
        # if the count is too large, the end of the data raises IncompleteHeader
        return [read() for _ in range(count)]

    def parse_dimension(self) -> NetCDF3Dimension:
        return NetCDF3Dimension(self.parse_name(), self.parse_count())

    def parse_attributes(self) -> dict[str, Any]:
        return dict(self.parse_list(ATTRIBUTES, "attributes", self.parse_attribute))

    def parse_attribute(self) -> tuple[str, Any]:
        name = self.parse_name()
        dtype = self.parse_type()
        count = self.parse_number(self.count_width)
        raw = self.read_padded(count * dtype.itemsize)
        if dtype == DTYPES[CHAR]:
            # as in netCDF4-python: a fill value remains bytes, text is UTF-8 without NULs
            text = raw.decode("utf-8", "replace").replace("\0", "")
            return name, np.bytes_(raw) if name == "_FillValue" else text
        values = np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))
        return name, values[0] if values.size == 1 else values

    def parse_variable(self, dimensions: tuple[NetCDF3Dimension, ...]) -> NetCDF3Variable:
        name = self.parse_name()
        count, offset = self.parse_number(self.count_width), self.position
        ids = unpack(
            f">{count}{'Q' if self.count_width == 8 else 'I'}",
            self.read_bytes(count * self.count_width),
        )
        if any(number >= len(dimensions) for number in ids):
            raise self.make_header_error(
                f"variable {name!r} has the dimensions {[*ids[:32]]}, and there are only "
                f"{len(dimensions)}",
                offset,
            )
        attributes = self.parse_attributes()
        dtype = self.parse_type()
        self.parse_number(self.count_width)
        begin = self.parse_number(self.offset_width)
        dims = [dimensions[number] for number in ids]
        if misplaced := [d.name for d in dims[1:] if not d.length]:
            raise self.make_header_error(
                f"variable {name!r} has the record dimension {misplaced[0]!r}, but not first"
            )
        has_records = bool(dims) and not dims[0].length
        shape = tuple(d.length for d in dims[has_records:])
        names = tuple(d.name for d in dims)
        return NetCDF3Variable(name, names, dtype, shape, has_records, begin, attributes)

    def parse_type(self) -> np.dtype[Any]:
        number = self.parse_number(4)
        last = max(DTYPES) if self.version == 5 else MAX_CLASSIC_TYPE
        if number not in DTYPES or number > last:
            raise self.make_header_error(
                f"type {number}, not one of 1 to {last}", self.position - 4
            )
        return DTYPES[number]

    def parse_name(self) -> str:
        raw, offset = self.read_padded(self.parse_number(self.count_width)), self.position
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise self.make_header_error(f"the name {raw[:64]!r} is not UTF-8", offset) from error
        # like netCDF-C, truncate names at the first NUL, which occurs in its test files
        text = text.partition("\0")[0]
        if not text:
            raise self.make_header_error(f"the name {raw[:64]!r}", offset)
        return text

    def parse_count(self) -> int:
        """Parse a length (NON_NEG), which must be a valid length of an axis."""
        count = self.parse_number(self.count_width)
        # CDF-1 limits counts to 2**31, but longer files exist
        if count >= MAX_AXIS_LENGTH:
            raise self.make_header_error(f"a length of {count}", self.position - self.count_width)
        return count

    def parse_number(self, width: int) -> int:
        # `read_bytes` is inlined, since most of a header is numbers
        stop = self.position + width
        raw = self.data[self.position : stop]
        if len(raw) < width:
            raise IncompleteHeader(stop)
        self.position = stop
        return int.from_bytes(raw, "big")

    def read_padded(self, count: int) -> bytes:
        """Read bytes and their padding, and return the bytes."""
        return self.read_bytes(count + -count % 4)[:count]

    def read_bytes(self, count: int) -> bytes:
        stop = self.position + count
        if stop > len(self.data):
            raise IncompleteHeader(stop)
        data = self.data[self.position : stop]
        self.position = stop
        return data


def _check_unique(parser: _HeaderParser, kind: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        duplicate = next(name for n, name in enumerate(names) if name in names[:n])
        raise parser.make_header_error(f"two {kind}s are called {duplicate!r}")


# ---------------------------------------------------------------------- netcdf3

MAX_HEADER = 2**28
"""Maximum size in bytes of a header."""
DASK_BLOCK_BYTES = 2**24
"""Size in bytes of a dask block of records."""
MAX_LISTED_RECORDS = 2**10
"""Maximum number of records whose offsets are stored as a list, which is cheap to concatenate."""
GROWTH_FACTOR = 8
"""Factor by which the requested bytes of a long header grow with each request."""


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` has a classic netCDF format."""
    return head[:3] == MAGIC and len(head) > 3 and head[3] in VERSIONS


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the structure of a file; variables that reach past its end are in `problems`.

    Only the root group exists.

    Raises `FormatError` if the header is damaged or truncated; `FileNotFoundError` if there is no
    such group; and `UnsupportedError` if the server does not support ranges.
    """
    skipped = frozenset(skip)
    header, size = _read_header(source)
    records = header.count_records(size) if header.numrecs is None else header.numrecs
    source_name = path_or_url(source.url)
    variables, problems, left_out = {}, dict[str, VirtualdsError](), {}
    for variable in header.variables:
        if variable.name in skipped:
            left_out[variable.name] = describe_left_out(
                variable.dims, variable.dtype, variable.attributes
            )
            continue
        try:
            check_axes(len(variable.dims), "it")
            _check_in_file(variable, header, records, source)
            data = _build_array(variable, header, records, source)
        except VirtualdsError as error:
            error.locate(f"variable {variable.name!r}", source.url)
            problems[variable.name] = error
            if len(variable.dims) > MAX_AXES:
                variable = replace(variable, dims=(), shape=(), has_records=False)
            data = ManifestArray.unreadable(
                _get_shape(variable, records), variable.dtype, f"{source.url}: {error}"
            )
        encoding: dict[str, Any] = {
            "dtype": variable.dtype.newbyteorder("="),
            "source": source_name,
            "original_shape": data.shape,
        }
        if data.nchunks > 1:
            rows = min(max(DASK_BLOCK_BYTES // variable.nbytes, 1), data.shape[0])
            chunk = (rows, *variable.shape)
            encoding["preferred_chunks"] = dict(zip(variable.dims, chunk, strict=True))
        variables[variable.name] = ManifestVariable(
            variable.dims, data, variable.attributes, encoding
        )
    unlimited = header.record_dimension
    group_encoding = {"unlimited_dims": set() if unlimited is None else {unlimited}}
    result = ManifestGroup(
        variables, header.attributes, {}, group_encoding, problems, left_out=left_out
    )
    return result.group(group)


def _read_header(source: SourceFile) -> tuple[NetCDF3Header, int]:
    """Return the header of a file, and the size of the file."""
    size, url = source.size, source.url
    if size is None:
        raise UnsupportedError(
            f"{url}: the server sends no parts of it (it does not support byte ranges, or does not "
            f"say how long the file is); copy it to local disk"
        )
    store, data, stop = find_store(url), b"", FIRST_PAGES * PAGE_SIZE
    while True:
        stop = min(stop, size)
        [next_bytes] = store.get_ranges(source, [(len(data), stop - len(data))])
        data += next_bytes
        try:
            return parse_header(data, url), size
        except IncompleteHeader as error:
            if error.stop > size:
                raise FormatError(
                    f"{url}: it has {size} bytes, and its header needs {error.stop}; the file is "
                    f"truncated or damaged, fetch it again"
                ) from error
            if error.stop > MAX_HEADER:
                raise make_damage_error(
                    f"{url}: its header would have more than {MAX_HEADER} bytes"
                ) from error
            stop = min(max(error.stop + FIRST_PAGES * PAGE_SIZE, GROWTH_FACTOR * stop), MAX_HEADER)


def _get_shape(variable: NetCDF3Variable, records: int) -> tuple[int, ...]:
    return (records, *variable.shape) if variable.has_records else variable.shape


def _check_in_file(
    variable: NetCDF3Variable, header: NetCDF3Header, records: int, source: SourceFile
) -> None:
    """Raise an error for a variable that reaches past the end of the file."""
    size = source.size or 0
    count = records if variable.has_records else 1
    if not count or not variable.nbytes:
        return
    stop = variable.begin + (count - 1) * header.record_size + variable.nbytes
    if stop > size:
        end = f", {header.count_records(size)} of {records} records" if variable.has_records else ""
        raise FormatError(
            f"its values reach to byte {stop}, and the file has {size}{end}; it is truncated, "
            f"fetch it again, or leave the variable out with drop_variables"
        )


def _build_array(
    variable: NetCDF3Variable, header: NetCDF3Header, records: int, source: SourceFile
) -> ManifestArray:
    """Return the values as references: one per record, or a single one."""
    shape = _get_shape(variable, records)
    axes = _make_axes(shape)
    nbytes = variable.nbytes * (records if variable.has_records else 1)
    # the records of a single record variable are contiguous
    if variable.has_records and nbytes and header.record_size != variable.nbytes:
        axes = (ChunkAxis.regular(records, 1), *axes[1:])
        manifest = _build_manifest(variable, header.record_size, records, source)
    elif nbytes:
        manifest = ChunkManifest.in_file((1,) * len(shape), source, [variable.begin], [nbytes])
    else:
        manifest = ChunkManifest.missing(tuple(axis.nchunks for axis in axes))
    pipeline = _make_pipeline(variable.dtype, len(shape))
    fragment = Fragment.whole(axes, manifest)
    return ManifestArray.from_fragment(fragment, pipeline, variable.name)


def _build_manifest(
    variable: NetCDF3Variable, step: int, count: int, source: SourceFile
) -> ChunkManifest:
    """Return the references to records that are ``step`` bytes apart."""
    grid = (count,) + (1,) * len(variable.shape)
    if count <= MAX_LISTED_RECORDS:
        offsets = range(variable.begin, variable.begin + step * count, step)
        return ChunkManifest.in_file(grid, source, offsets, (variable.nbytes,) * count)
    table = StridedReferences(source, variable.begin, step, variable.nbytes, count)
    return ChunkManifest.from_table(table, grid)


@lru_cache(256)
def _make_axes(shape: tuple[int, ...]) -> tuple[ChunkAxis, ...]:
    """Return the axes of an array with one chunk."""
    return tuple(ChunkAxis.regular(n, max(n, 1)) for n in shape)


@lru_cache(256)
def _make_pipeline(dtype: np.dtype[Any], ndim: int) -> CodecPipeline:
    return CodecPipeline(dtype, layout=tuple(range(ndim)))


PARSER = Parser(
    "netcdf3",
    (".nc3",),
    detect,
    read,
    natives=(
        NativeReader("netCDF4", engine="netcdf4"),
        NativeReader("scipy", engine="scipy", remote=True),
    ),
)
