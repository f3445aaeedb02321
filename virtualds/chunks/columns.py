"""Columns of chunk references, and tables of references outside a manifest.

A column is an integer array over a chunk grid; axes along which it is constant are broadcast.

A table has one row per chunk of an array. It loads rows, and knows which of them may exist, how
many chunks each file has, and which files have given urls. A manifest without columns is a strided
view of a table, so that cropping, permuting and repeating axes change only strides.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import zlib
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from virtualds.errors import FormatError
from virtualds.source_file import NO_NUMBER, SourceFile, StorageOptions, find_valid_checksums
from virtualds.streams import decode_stream

if TYPE_CHECKING:
    from virtualds.chunks.manifest import ChunkManifest


Ints = npt.NDArray[np.int64]


def compute_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of C order, in elements (not bytes).

    Examples
    --------
    >>> compute_strides((5, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


# ---------------------------------------------------------------------- columns

MISSING = -1
"""File code of a missing chunk, which reads as the fill value."""

INLINE = -2
"""File code of an inline chunk, whose offset is its index in `ChunkManifest.inline`."""

Column = npt.NDArray[np.integer]

COLUMNS = {
    "file": np.int32,
    "offset": np.int64,
    "length": np.int64,
    "pipeline": np.uint16,
    "checksum": np.uint64,
}
"""The columns of a manifest and their dtypes."""

MAX_CACHED_TABLES = 4
"""Maximum number of cached `JoinedTable` objects; the arrays of a dataset usually share one."""

MAX_UNCOMPRESSED = 1024
"""Maximum number of values of a column, or of entries of a table, that is pickled uncompressed."""

PIECE_SIZE = 2**18
"""Number of values of a column that are processed at a time, to limit temporary memory."""

SAMPLE_SIZE = 2**16
"""Number of values on which all encodings of a column are tried."""

Item = TypeVar("Item", bound=Hashable)

Values = npt.NDArray[np.integer]

Flat = npt.NDArray[np.int64]

Key = tuple[slice, ...]
"""The index of a piece of a column."""


class Reference(NamedTuple):
    """The reference of one chunk: a row of a manifest."""

    file: int
    offset: int
    length: int
    pipeline: int
    checksum: int


def hash_files(files: Sequence[SourceFile]) -> tuple[str, list[Any]]:
    """Return a hash of the urls and fingerprints of files, and their distinct access options."""
    options: dict[StorageOptions | None, int] = {}
    lines = [repr((*f[:-1], options.setdefault(f.options, len(options)))) for f in files]
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text).hexdigest(), [*options]


def build_columns(values: Iterable[Any], shape: tuple[int, ...]) -> dict[str, Column]:
    """Convert values or arrays to the columns of a grid; raise `ValueError` if out of range."""
    return {name: _build_column(name, v, shape) for name, v in zip(COLUMNS, values, strict=True)}


def _build_column(name: str, values: Any, shape: tuple[int, ...]) -> Column:
    if type(values) is int:
        # the code below raises an error with more details
        with suppress(OverflowError):
            return make_constant_column(name, values, shape)
    return fit_column(_as_column(name, np.asarray(values)), shape)


@lru_cache(4096)
def make_constant_column(name: str, value: int, shape: tuple[int, ...]) -> Column:
    """Return a read-only column with the same value everywhere.

    The result equals that of `numpy.broadcast_to`, which takes ten times as long.
    """
    kind = np.dtype(COLUMNS[name])
    raw = value.to_bytes(kind.itemsize, sys.byteorder, signed=kind.kind == "i")
    return np.ndarray(shape, kind, raw, 0, (0,) * len(shape))


def fit_column(column: Column, shape: tuple[int, ...]) -> Column:
    """Broadcast a column to the chunk grid; a constant column is reduced to one element."""
    spread = np.broadcast_to(column, shape)
    if not column.size or not column.ndim:
        return spread
    first = column[(0,) * column.ndim]
    # splitting costs too much for the small columns in scans of many files
    small = column.size <= PIECE_SIZE
    pieces = [column] if small else (part for _, (part,) in split_columns(column))
    is_constant = all((part == first).all() for part in pieces)
    return np.broadcast_to(first, shape) if is_constant else spread


def split_columns(
    *columns: Column, piece_size: int = PIECE_SIZE
) -> Iterator[tuple[Key, list[Column]]]:
    """Split columns along their longest axis; yield the index and the columns of each piece."""
    spread = list(np.broadcast_arrays(*columns))
    shape, size = spread[0].shape, spread[0].size
    if size <= piece_size:
        yield (slice(None),) * len(shape), spread
        return
    axis = shape.index(max(shape))
    step = max(1, piece_size * shape[axis] // size)
    for begin in range(0, shape[axis], step):
        key = (*(slice(None),) * axis, slice(begin, begin + step))
        yield key, [column[key] for column in spread]


def _as_column(name: str, values: npt.NDArray[Any]) -> Column:
    """Convert integers to the dtype of their column; raise an error if any is out of range."""
    kind = np.dtype(COLUMNS[name])
    if values.dtype == kind:
        return values
    if values.size and values.dtype.kind not in "iu":
        raise ValueError(f"ChunkManifest: column {name!r} holds integers, got {values.dtype}")
    limits = np.iinfo(kind.str)
    if values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        raise ValueError(
            f"ChunkManifest: column {name!r} holds {kind}, got {values.min()} to {values.max()}"
        )
    return values.astype(kind, copy=False)


def take_along(column: Column, ids: Ints, axis: int) -> Column:
    """Take elements of a column along an axis; a broadcast axis stays broadcast."""
    if column.strides[axis] == 0 and column.shape[axis]:
        shape = (*column.shape[:axis], ids.size, *column.shape[axis + 1 :])
        return np.broadcast_to(column[(slice(None),) * axis + (slice(0, 1),)], shape)
    return column.take(ids, axis=axis)


def map_compact(column: Column, change: Callable[[Column], Column]) -> Column:
    """Apply ``change`` to a column without repeating it along broadcast axes."""
    return np.broadcast_to(change(compact(column)), column.shape)


def is_same_column(left: Column, right: Column) -> bool:
    """Return whether two columns of the same shape are equal."""
    a, b = compact(left), compact(right)
    return np.array_equal(a, b) if a.shape == b.shape else np.array_equal(left, right)


def renumber_files(numbers: npt.ArrayLike) -> Column | None:
    """Return a lookup array from old to new file codes, or None if no code changes."""
    found = np.asarray(numbers, np.int32)
    if np.array_equal(found, np.arange(found.size)):
        return None
    # the negative codes index from the end, and do not change
    return np.append(found, np.array([INLINE, MISSING], np.int32))


def concatenate_columns(
    parts: Sequence[Column], axis: int, tables: Sequence[Column | None] | None = None
) -> Column:
    """Concatenate columns; axes along which no column varies stay broadcast.

    ``tables`` has, for each column, the lookup array of `renumber_files`, or None.
    """
    tables = [None] * len(parts) if tables is None else tables
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    fixed = [j != axis and all(part.strides[j] == 0 for part in parts) for j in range(len(shape))]
    key = tuple(slice(0, 1) if f else slice(None) for f in fixed)
    small = [part[key] for part in parts]
    if _is_constant(small, axis, tables):
        first = small[0][(slice(None),) * axis + (slice(0, 1),)]
        return np.broadcast_to(_look_up(first, tables[0]), shape)
    whole = [1 if f else n for f, n in zip(fixed, shape, strict=True)]
    joined, begin = np.empty(whole, parts[0].dtype), 0
    for part, table in zip(small, tables, strict=True):
        target = joined[(slice(None),) * axis + (slice(begin, begin + part.shape[axis]),)]
        for key, (piece,) in split_columns(part):
            target[key] = _look_up(piece, table)
        begin += part.shape[axis]
    return np.broadcast_to(joined, shape)


def _look_up(column: Column, table: Column | None) -> Column:
    return column if table is None else table[column]


def _is_constant(parts: Sequence[Column], axis: int, tables: Sequence[Column | None]) -> bool:
    """Return whether all columns are equal, and constant along ``axis``."""
    if not all(p.strides[axis] == 0 or p.shape[axis] == 1 for p in parts) or not parts[0].size:
        return False
    layer = (slice(None),) * axis + (0,)
    layers = [_look_up(p[layer], t) for p, t in zip(parts, tables, strict=True) if p.shape[axis]]
    return all(np.array_equal(layers[0], other) for other in layers[1:])


# ---------------------------------------------------------------------- tables of files


@dataclass(frozen=True, eq=False, slots=True)
class JoinedTable(Generic[Item]):
    """Several tables of files merged into one without duplicates.

    ``items`` are the distinct items of all parts, in the order of their first occurrence;
    ``numbers`` are, for each part, the indexes of its items in ``items``.
    """

    parts: tuple[tuple[Item, ...], ...]
    items: tuple[Item, ...]
    numbers: tuple[npt.NDArray[np.int32], ...]

    @classmethod
    def join(cls, parts: Sequence[tuple[Item, ...]]) -> JoinedTable[Item]:
        """Join tables; the result is cached, so that the variables of a dataset share one table."""
        for cached in tuple(_joined_tables):
            # items are compared by identity
            if len(parts) == len(cached.parts) and all(
                part is cached_part
                or (len(part) == len(cached_part) and all(map(is_, part, cached_part)))
                for part, cached_part in zip(parts, cached.parts, strict=True)
            ):
                return cached
        items: dict[Item, int] = {}
        numbers = tuple(
            np.array([items.setdefault(item, len(items)) for item in part], np.int32)
            for part in parts
        )
        joined = cls(tuple(parts), tuple(items), numbers)
        _joined_tables.append(joined)
        return joined


def drop_repeated_tables(tables: Iterable[tuple[Item, ...]]) -> list[tuple[Item, ...]]:
    """Return the distinct tables, compared by identity."""
    return list({id(table): table for table in tables}.values())


_joined_tables: deque[JoinedTable[Any]] = deque(maxlen=MAX_CACHED_TABLES)


def release_joined_tables() -> None:
    """Release the cached joined tables, which may have millions of files."""
    _joined_tables.clear()


# ---------------------------------------------------------------------- packing

VALUES, DIFFERENCES, DEVIATIONS = range(3)
"""Encodings of a packed column: values, differences, or deviations from expected differences."""


class PackedColumn(NamedTuple):
    """A compressed column of values, differences or deviations, each minus their minimum.

    ``encoding`` is `VALUES`, `DIFFERENCES` or `DEVIATIONS`, ``minimum`` the minimum, and ``width``
    the bytes per item. The items are shuffled: first the first bytes of all, then the second bytes,
    and so on.
    """

    shape: tuple[int, ...]
    encoding: int
    first: int
    minimum: int
    width: int
    data: bytes


class SmallColumn(NamedTuple):
    """A column of few values: the dtype, and the bytes in C order.

    Pickling a NumPy array takes ten times the space and time.
    """

    shape: tuple[int, ...]
    dtype: str
    data: bytes


def pack(column: Values, steps: Values | None = None) -> int | SmallColumn | PackedColumn:
    """Encode a column compactly, for `unpack`; a column of one value becomes an integer.

    ``steps`` are the expected differences between neighbours in C order.
    """
    if column.size == 1:
        return int(column.flat[0])
    if column.size <= MAX_UNCOMPRESSED:
        small = narrow_dtype(column)
        return SmallColumn(small.shape, small.dtype.str, small.tobytes())
    flat = column.astype(np.int64, order="C").reshape(-1)
    expected_steps = _broadcast_steps(steps, column.shape)
    encodings = (
        (VALUES, DIFFERENCES) if expected_steps is None else (VALUES, DIFFERENCES, DEVIATIONS)
    )
    encoding = min(
        encodings,
        key=lambda n: len(_pack_column(flat[:SAMPLE_SIZE], expected_steps, n, column.shape).data),
    )
    return _pack_column(flat, expected_steps, encoding, column.shape)


def unpack(packed: int | SmallColumn | PackedColumn, steps: Values | None = None) -> Values:
    """Decode the result of `pack` to integers of any width, in the shape of the column.

    A column of one value becomes a 0-d array, which broadcasts.
    """
    if isinstance(packed, int):
        return np.array(packed, np.min_scalar_type(packed))
    if isinstance(packed, SmallColumn):
        return np.frombuffer(packed.data, packed.dtype).reshape(packed.shape)
    # the shape may come from a damaged cache entry
    data = decode_stream(zlib.decompressobj(), packed.data, None)
    planes = np.frombuffer(data, np.uint8).reshape(packed.width, -1)
    values = np.ascontiguousarray(planes.T).view(f"<u{packed.width}").reshape(-1).astype(np.int64)
    values += packed.minimum
    if packed.encoding != VALUES:
        if packed.encoding == DEVIATIONS:
            expected_steps = _broadcast_steps(steps, packed.shape)
            values[1:] += expected_steps[:-1] if expected_steps is not None else 0
        values[0] = packed.first
        np.cumsum(values, out=values)
    return values.reshape(packed.shape)


def _broadcast_steps(steps: Values | None, shape: tuple[int, ...]) -> Flat | None:
    """Return the expected differences between neighbours as a flat array.

    Return None if there are none, or if their shape does not fit.
    """
    if steps is None or np.broadcast_shapes(steps.shape, shape) != shape:
        return None
    return np.broadcast_to(steps, shape).astype(np.int64).reshape(-1)


def _pack_column(
    flat: Flat, expected_steps: Flat | None, encoding: int, shape: tuple[int, ...]
) -> PackedColumn:
    values = flat
    if encoding != VALUES:
        values = np.empty_like(flat)
        np.subtract(flat[1:], flat[:-1], out=values[1:])
        if encoding == DEVIATIONS and expected_steps is not None:
            values[1:] -= expected_steps[: flat.size - 1]
        # the first value is stored separately, so any small number packs well here
        values[0] = values[1]
    minimum = int(values.min())
    # 64-bit integers may wrap around, and wrap back in `unpack`
    offsets = (values - minimum).view(np.uint64)
    width = np.min_scalar_type(int(offsets.max())).itemsize
    planes = np.ascontiguousarray(offsets.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T)
    return PackedColumn(
        shape, encoding, int(flat[0]), minimum, width, zlib.compress(planes.data, 1)
    )


def narrow_dtype(column: Values) -> Values:
    """Convert a column to the narrowest integer dtype that can represent its values."""
    if not column.size:
        return column
    kind = np.promote_types(
        np.min_scalar_type(int(column.min())), np.min_scalar_type(int(column.max()))
    )
    return column.astype(kind, order="C") if kind.kind in "iu" else column


def pack_table(table: Any) -> Any:
    """Compress a long table of files, for `unpack_table`; return a short one unchanged."""
    return zlib.compress(pickle.dumps(table), 1) if len(table) > MAX_UNCOMPRESSED else table


def unpack_table(packed: Any) -> Any:
    """Decode the result of `pack_table`."""
    return pickle.loads(zlib.decompress(packed)) if isinstance(packed, bytes) else packed


# ---------------------------------------------------------------------- checks
# Checks of the references of a new manifest.


def check_references(manifest: ChunkManifest) -> None:
    """Raise `FormatError` for the first invalid reference or checksum of a manifest."""
    _check_positions(manifest)
    column = compact(manifest.checksum)
    if column.size == 1 and not column.flat[0]:
        return
    if all(find_valid_checksums(part).all() for _, (part,) in split_columns(column)):
        return
    invalid = ~find_valid_checksums(column)
    raise FormatError(
        f"chunk {tuple(np.argwhere(invalid)[0].tolist())}: {column[invalid][0]} is not a checksum; "
        f"give 2**32 + CRC-32 of its bytes, or 0 for none"
    )


def _check_positions(manifest: ChunkManifest) -> None:
    file, offset, length = (compact(getattr(manifest, n)) for n in ("file", "offset", "length"))
    if file.size and not INLINE <= int(file.min()) <= int(file.max()) < len(manifest.files):
        raise FormatError(
            f"ChunkManifest: file numbers {file.min()} to {file.max()} of {len(manifest.files)} "
            f"files; {MISSING} is a missing chunk, {INLINE} an inline one"
        )
    sizes = [f.size if f.size is not None else 2**62 for f in manifest.files]
    # negative codes index from the end; offsets of inline chunks are indices, not bytes
    ends_by_code = np.array([*sizes, len(manifest.inline), 2**62])
    for key, (codes, begins, counts) in split_columns(file, offset, length):
        ends = ends_by_code[codes]
        is_valid = (begins >= 0) & np.where(
            codes == INLINE, begins < ends, (counts > 0) & (begins <= ends - counts)
        )
        is_invalid = ~is_valid & (codes != MISSING)
        if is_invalid.any():
            position = np.argwhere(is_invalid)[0].tolist()
            first = [part.start or 0 for part in key] + [0] * (len(position) - len(key))
            _raise_reference_error(
                manifest, tuple(a + b for a, b in zip(first, position, strict=True))
            )


def _raise_reference_error(manifest: ChunkManifest, chunk_id: tuple[int, ...]) -> NoReturn:
    columns = (manifest.file, manifest.offset, manifest.length)
    file, offset, length = (int(column[chunk_id]) for column in columns)
    if file == INLINE:
        raise FormatError(
            f"chunk {chunk_id}: there is no inline chunk {offset}, only {len(manifest.inline)} of "
            f"them; correct the reference"
        )
    source = manifest.files[file]
    raise FormatError(
        f"chunk {chunk_id}: bytes {offset} to {offset + length} of {source.url} "
        f"(size {source.size}) cannot be a chunk; fetch the source again if it is truncated, or "
        f"scan it again"
    )


def compact(column: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Reduce the broadcast axes of a column to length 1."""
    return column[tuple(slice(0, 1) if step == 0 else slice(None) for step in column.strides)]


def take_flat(column: Column, ids: Ints) -> Column:
    """Return the values at flat ids, in the shape of ``ids``; a constant column stays constant."""
    if column.size and not any(column.strides):
        first = column[(0,) * column.ndim].tobytes()
        return np.ndarray(ids.shape, column.dtype, first, 0, (0,) * ids.ndim)
    if column.flags.c_contiguous:
        return column.reshape(-1)[ids]
    return column[np.unravel_index(ids, column.shape)]


def find_rows(chunk_ids: Ints, ids: Ints) -> Ints:
    """Return the index of each id in ascending ``chunk_ids``, or -1 if it is not there."""
    first = int(np.searchsorted(chunk_ids, ids[0])) if ids.size else 0
    if np.array_equal(chunk_ids[first : first + ids.size], ids):
        # a table that is read from start to end is asked for consecutive rows
        return np.arange(first, first + ids.size)
    index = np.searchsorted(chunk_ids, ids)
    return np.where(np.append(chunk_ids, -1)[index] == ids, index, -1)


def narrow_column(column: Ints) -> npt.NDArray[np.integer]:
    """Reduce the memory of a 1-D column: broadcast a constant, use 32 bits if values fit."""
    if column.size and (column == column[0]).all():
        return np.broadcast_to(column[:1].copy(), column.shape)
    small = column.max(initial=0) < 2**31
    return column.astype(np.int32) if small else column.copy()


def find_distinct(numbers: npt.NDArray[np.integer[Any]], count: int) -> Ints:
    """Return the distinct non-negative numbers of a column, ascending; all are below ``count``."""
    if count > 16 * numbers.size:
        return np.unique(numbers[numbers >= 0]).astype(np.int64)
    # much faster for a small count; negative codes index from the end
    is_present = np.zeros(count - INLINE, bool)
    for _, (part,) in split_columns(numbers):
        is_present[part] = True
    return np.flatnonzero(is_present[:count])


def find_distinct_in_order(numbers: npt.NDArray[np.integer[Any]]) -> Ints:
    """Return the distinct numbers of a column in the order of their first occurrence.

    >>> find_distinct_in_order(np.array([[4, 4], [1, 4], [0, 1]])).tolist()
    [4, 1, 0]
    """
    distinct: Ints = pd.unique(compact(numbers).ravel()).astype(np.int64)
    return distinct


# ---------------------------------------------------------------------- source files of tables
# Properties of files that a reference set stores, so that references need not be read.


class SourceSummary(NamedTuple):
    """Totals of the files of a reference set, which it stores so that files need not be listed.

    ``name`` identifies the list of files, ``number`` is their count, ``nbytes`` their total size,
    None if some sizes are unknown, and ``first`` the url of the first.
    """

    name: Hashable
    number: int
    nbytes: int | None
    first: str | None


class SourceColumns(NamedTuple):
    """Columns of urls and fingerprints of files; unknown values are `NO_NUMBER` or None."""

    urls: npt.NDArray[np.object_]
    sizes: npt.NDArray[np.int64]
    mtimes: npt.NDArray[np.int64]
    etags: npt.NDArray[np.object_]

    @classmethod
    def from_files(cls, files: Iterable[SourceFile]) -> SourceColumns:
        """Build the columns from files."""
        rows = [
            (
                file.url,
                NO_NUMBER if file.size is None else file.size,
                NO_NUMBER if file.mtime is None else file.mtime,
                file.etag,
            )
            for file in files
        ]
        urls, sizes, mtimes, etags = zip(*rows, strict=True) if rows else ((),) * 4
        return cls(
            np.array(urls, object),
            np.array(sizes, np.int64),
            np.array(mtimes, np.int64),
            np.array(etags, object),
        )

    def take(self, mask: npt.NDArray[np.bool_]) -> SourceColumns:
        """Select files by a boolean mask."""
        urls, sizes, mtimes, etags = self
        return SourceColumns(urls[mask], sizes[mask], mtimes[mask], etags[mask])


class CountedSources(NamedTuple):
    """The number of chunks in each file of a list of files.

    ``name`` identifies the list, which arrays may share, and ``read_files`` reads it.
    """

    name: Hashable
    chunks: Ints
    read_files: Callable[[], SourceColumns]


# ---------------------------------------------------------------------- tables


class ReferenceTable:
    """Chunk references of one array, in C order, stored outside the manifest.

    A reference format implements `load` and `list_sources`, and overrides other methods that need
    no rows in this format.
    """

    is_in_set: ClassVar[bool] = True
    """Whether the rows are in a reference set, and are not loaded when arrays are joined."""

    is_in_source: ClassVar[bool] = False
    """Whether rows are looked up in the index of a source file when values are read; they must be
    loaded before references are written."""

    @property
    def has_pipelines(self) -> bool:
        """Whether rows may have different pipelines; otherwise all have pipeline 0."""
        return False

    @property
    def owner(self) -> Hashable:
        """The url of the set that contains the rows, or None if a new version cannot reuse them."""
        return None

    @property
    def files(self) -> tuple[SourceFile, ...] | None:
        """The files that the column ``file`` of loaded rows indexes, or None if not known yet."""
        return None

    @property
    def missing_pipeline(self) -> int | None:
        """The pipeline of missing chunks, for a sparse table in memory; else None."""
        return None

    @property
    def nbytes(self) -> int:
        """Size in bytes of the memory that the table occupies, without caches."""
        return 0

    @property
    def repr_suffix(self) -> str:
        """The location of the rows, for the repr of a manifest."""
        return ", whose references lie in a reference set"

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the references at some row indexes, in the shape of ``ids``."""
        raise NotImplementedError

    def find_existing_rows(self) -> Ints | None:
        """Return the ascending indexes of rows that may exist, or None if all may."""
        return None

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return the files of all rows, and possibly other files of the set."""
        return self.files or ()

    def iterate_file_tables(self) -> Iterator[tuple[SourceFile, ...]]:
        """Yield the tables of files that `list_sources` joins."""
        yield self.list_sources()

    def summarize_sources(self) -> SourceSummary | None:
        """Return the totals that the set stores of its files, or None if they must be listed."""
        return None

    def count_sources(self, start: int, stop: int) -> CountedSources | None:
        """Return how many rows of a range lie in each file, or None if rows must be read."""
        return None

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return the files whose url is in ``urls``."""
        return tuple(file for file in self.list_sources() if file.url in urls)

    def relocate(self, locations: Sequence[tuple[SourceFile, int]]) -> ReferenceTable | None:
        """Return the table with offsets in the containing files, or None if rows must be read.

        ``locations`` has, for each file, the file that contains it, and its offset there.
        """
        return None

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ReferenceTable | None:
        """Return the table with ``change`` applied to each file, or None if rows must be read."""
        return self.relocate([(change(file), 0) for file in self.files or ()])

    def prune(self, manifest: ChunkManifest) -> ChunkManifest:
        """Return a manifest, a view of this table, without references and files it does not use."""
        return manifest

    def get_if_loaded(self, rows: RowView) -> tuple[Ints | None, ChunkManifest] | None:
        """Return flat chunk ids and their references if they are in memory, else None.

        If the ids are None, one reference stands for all chunks, except for its offset.
        """
        return None


class RowView(NamedTuple):
    """A strided view of a table: the row of a chunk is ``first`` plus its chunk id times strides.

    ``pipeline_map`` maps the pipelines of the table to those of the array; None if they are equal.
    """

    table: ReferenceTable
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int = 0
    pipeline_map: tuple[int, ...] | None = None

    @property
    def is_in_order(self) -> bool:
        """Whether the chunks, in C order, are consecutive rows from row 0."""
        steps = zip(self.shape, self.strides, compute_strides(self.shape), strict=True)
        return self.first == 0 and all(n == 1 or stride == step for n, stride, step in steps)

    @property
    def only_pipeline(self) -> int:
        """The pipeline of every chunk of a table without pipelines."""
        return self.pipeline_map[0] if self.pipeline_map else 0

    @property
    def missing_pipeline(self) -> int | None:
        """The pipeline of missing chunks, if the table is sparse."""
        missing_pipeline = self.table.missing_pipeline
        return (
            missing_pipeline
            if missing_pipeline is None or self.pipeline_map is None
            else self.pipeline_map[missing_pipeline]
        )

    # ------------------------------------------------------------------ other views

    def crop(self, axis: int, ids: slice) -> RowView:
        """Slice the chunks along an axis."""
        start, stop, step = ids.indices(self.shape[axis])
        stride = self.strides[axis]
        return self._replace(
            shape=_replace_item(self.shape, axis, len(range(start, stop, step))),
            strides=_replace_item(self.strides, axis, stride * step),
            first=self.first + start * stride,
        )

    def transpose(self, axes: Sequence[int]) -> RowView:
        """Permute the axes."""
        shape, strides = (tuple(v[i] for i in axes) for v in (self.shape, self.strides))
        return self._replace(shape=shape, strides=strides)

    def reshape(self, shape: tuple[int, ...]) -> RowView | None:
        """Insert or remove axes that have a single chunk; return None for other shapes."""
        long = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        if [n for n in shape if n != 1] != [n for n, _ in long]:
            return None
        strides = (stride for _, stride in long)
        return self._replace(
            shape=shape, strides=tuple(0 if n == 1 else next(strides) for n in shape)
        )

    def broadcast_to(self, shape: tuple[int, ...]) -> RowView:
        """Repeat the chunks along axes that have a single chunk."""
        pairs = zip(self.shape, self.strides, shape, strict=True)
        return self._replace(shape=shape, strides=tuple(0 if n == 1 else s for n, s, _ in pairs))

    def with_pipelines(self, numbers: Sequence[int]) -> RowView:
        """Renumber the pipelines: pipeline ``i`` becomes ``numbers[i]``."""
        present = range(len(numbers)) if self.pipeline_map is None else self.pipeline_map
        new: tuple[int, ...] | None = tuple(numbers[i] for i in present)
        if not self.table.has_pipelines:
            number = numbers[self.only_pipeline]
            new = (number,) if number else None
        return self._replace(pipeline_map=new)

    # ------------------------------------------------------------------ reading

    def load(self, numbers: Ints) -> ChunkManifest:
        """Return the references at some row indexes, in the shape of ``numbers``."""
        loaded = self.table.load(numbers)
        return loaded if self.pipeline_map is None else loaded.with_pipelines(self.pipeline_map)

    def load_mesh(self, positions: Sequence[Ints]) -> ChunkManifest:
        """Return the references of an open mesh of chunks: one array of positions per axis."""
        row_ids: Ints = np.array(self.first, np.int64).reshape((1,) * len(positions))
        for axis, (stride, ids) in enumerate(zip(self.strides, positions, strict=True)):
            along = (1,) * axis + (-1,) + (1,) * (len(positions) - axis - 1)
            row_ids = row_ids + (stride * ids).reshape(along)
        return self.load(row_ids)

    def at(self, ids: Ints) -> ChunkManifest:
        """Return the references of chunks by their flat ids, in the shape of ``ids``."""
        if self.is_in_order:
            return self.load(np.asarray(ids, np.int64))
        row_ids = np.full(ids.shape, self.first, np.int64)
        # np.unravel_index does not accept a grid without axes
        chunk_index = np.unravel_index(ids, self.shape) if self.shape else ()
        for stride, positions in zip(self.strides, chunk_index, strict=True):
            row_ids += stride * positions
        return self.load(row_ids)

    def find_existing(self) -> Ints | None:
        """Return the ascending flat ids of chunks that may exist, or None if all may."""
        numbers = self.table.find_existing_rows()
        if numbers is None:
            return None
        if self.is_in_order:
            return numbers[: np.searchsorted(numbers, prod(self.shape))]
        return self._find_chunks_in_rows(numbers)

    def _find_chunks_in_rows(self, numbers: Ints) -> Ints | None:
        """Return the flat ids of the chunks of some rows; None if chunks may share a row.

        In a crop or permutation, each stride exceeds the span of all smaller ones, so that a row
        index determines the chunk id like the digits of a number.
        """
        shape, strides = self.shape, self.strides
        long = [axis for axis, count in enumerate(shape) if count != 1]
        long.sort(key=lambda axis: -abs(strides[axis]))
        spans = [abs(strides[axis]) * (shape[axis] - 1) for axis in long]
        if any(abs(strides[axis]) <= sum(spans[k + 1 :]) for k, axis in enumerate(long)):
            return None
        # an axis with a negative stride is counted from its end
        reversed_span = sum(strides[i] * (shape[i] - 1) for i in long if strides[i] < 0)
        remainder = numbers - self.first - reversed_span
        is_inside, chunk_ids, step = remainder >= 0, np.zeros_like(numbers), compute_strides(shape)
        for axis in long:
            position, remainder = np.divmod(remainder, abs(strides[axis]))
            is_inside &= position < shape[axis]
            chunk_ids += step[axis] * (
                position if strides[axis] > 0 else shape[axis] - 1 - position
            )
        return np.sort(chunk_ids[is_inside & (remainder == 0)])

    def find_range(self) -> tuple[int, int] | None:
        """Return the range ``(start, stop)`` of rows if the view has each row once, else None."""
        low, length = self.first, 1
        long = [(s, n) for s, n in zip(self.strides, self.shape, strict=True) if n != 1]
        for stride, count in sorted(long, key=lambda pair: abs(pair[0])):
            if abs(stride) != length:
                return None
            low += min(stride, 0) * (count - 1)
            length *= count
        return low, low + length


def _replace_item(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])
