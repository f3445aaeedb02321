"""Columns of references, and tables of references whose rows a manifest indexes.

Columns are integers over a chunk grid, broadcast where they do not change.

A table has a row for each chunk of an array, and answers four questions: the rows with given
numbers, which rows may exist, how many rows each file has, and which of its files have given urls.
A manifest without columns is a view of a table: cropping, permuting and repeating axes only change
how rows are counted, as in a strided array.
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

from virtualds.errors import FormatError
from virtualds.source_file import NO_NUMBER, SourceFile, StorageOptions, find_valid_checksums
from virtualds.streams import decode_stream

if TYPE_CHECKING:
    from virtualds.chunks.manifest import ChunkManifest


Ints = npt.NDArray[np.int64]


def compute_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of C order, in elements.

    Examples
    --------
    >>> compute_strides((5, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


# ---------------------------------------------------------------------- columns

MISSING = -1
"""The file code of a missing chunk, which reads as its fill value."""

INLINE = -2
"""The file code of an inline chunk; its offset is its index in `ChunkManifest.inline`."""

Column = npt.NDArray[np.integer]

COLUMNS = {
    "file": np.int32,
    "offset": np.int64,
    "length": np.int64,
    "pipeline": np.uint16,
    "checksum": np.uint64,
}
"""The columns of a manifest, with their dtypes."""

CACHED_TABLES = 4
"""The number of joined tables that are cached: the arrays of a dataset usually share them."""

SMALL_COLUMN = 1024
"""The number of values of a column, or entries of a table, up to which none are compressed."""

PIECE = 2**18
"""The number of values of columns that are processed at a time, to limit temporary memory."""

SAMPLE = 2**16
"""The number of values that are packed in every way to find the most compact one."""

Item = TypeVar("Item", bound=Hashable)

Values = npt.NDArray[np.integer]

Flat = npt.NDArray[np.int64]

Key = tuple[slice, ...]
"""The position of a piece of a column."""


class Reference(NamedTuple):
    """One row of a manifest."""

    file: int
    offset: int
    length: int
    pipeline: int
    checksum: int


def digest(files: Sequence[SourceFile]) -> tuple[str, list[Any]]:
    """Return the key of a table of files: a hash of their urls, and their access options."""
    options: dict[StorageOptions | None, int] = {}
    lines = [repr((*f[:-1], options.setdefault(f.options, len(options)))) for f in files]
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text).hexdigest(), [*options]


def spread_column(name: str, value: Any, shape: tuple[int, ...]) -> Column:
    """Return a column over the grid; raise an error for values that its dtype cannot represent."""
    if type(value) is int:
        # too large a number raises an error below
        with suppress(OverflowError):
            return constant_column(name, value, shape)
    return fit_column(_as_column(name, np.asarray(value)), shape)


@lru_cache(4096)
def constant_column(name: str, value: int, shape: tuple[int, ...]) -> Column:
    """Return a read-only column of a single value.

    It equals the result of broadcasting, takes a tenth of the time, and is cached for many files.
    """
    kind = np.dtype(COLUMNS[name])
    raw = value.to_bytes(kind.itemsize, sys.byteorder, signed=kind.kind == "i")
    return np.ndarray(shape, kind, raw, 0, (0,) * len(shape))


def column_of_rows(name: str, rows: Sequence[int], shape: tuple[int, ...]) -> Column:
    """Return a column from a few values in C order."""
    if rows.count(rows[0]) == len(rows):
        return constant_column(name, rows[0], shape)
    return np.array(rows, COLUMNS[name]).reshape(shape)


def fit_column(column: Column, shape: tuple[int, ...]) -> Column:
    """Return a column in the shape of the grid; a constant column is stored as one number."""
    spread = np.broadcast_to(column, shape)
    if not column.size or not column.ndim:
        return spread
    first = column[(0,) * column.ndim]
    # not for the small columns of scans of many files, where it costs too much
    small = column.size <= PIECE
    pieces = [column] if small else (part for _, (part,) in split_columns(column))
    is_constant = all((part == first).all() for part in pieces)
    return np.broadcast_to(first, shape) if is_constant else spread


def split_columns(*columns: Column, most: int = PIECE) -> Iterator[tuple[Key, list[Column]]]:
    """Split columns along their longest axis; yield the position and the columns of each piece."""
    shape, spread = columns[0].shape, list(columns)
    if any(column.shape != shape for column in columns):
        shape = np.broadcast_shapes(*(column.shape for column in columns))
        spread = [np.broadcast_to(column, shape) for column in columns]
    size = prod(shape)
    if size <= most:
        yield (slice(None),) * len(shape), spread
        return
    axis = shape.index(max(shape))
    step = max(1, most * shape[axis] // size)
    for begin in range(0, shape[axis], step):
        key = (*(slice(None),) * axis, slice(begin, begin + step))
        yield key, [column[key] for column in spread]


def _as_column(name: str, values: npt.NDArray[Any]) -> Column:
    """Return integers in the dtype of their column; raise an error for those out of range."""
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


def take_rows(column: Column, ids: Ints, axis: int) -> Column:
    """Select rows of a column along an axis; a broadcast axis stays broadcast."""
    if column.strides[axis] == 0 and column.shape[axis]:
        shape = (*column.shape[:axis], ids.size, *column.shape[axis + 1 :])
        return np.broadcast_to(column[(slice(None),) * axis + (slice(0, 1),)], shape)
    return column.take(ids, axis=axis)


def map_compact(column: Column, change: Callable[[Column], Column]) -> Column:
    """Apply ``change`` to a column, once to each stored element."""
    return np.broadcast_to(change(compact(column)), column.shape)


def is_same_column(one: Column, other: Column) -> bool:
    """Return whether two columns of the same shape are equal; compares each stored element once."""
    a, b = compact(one), compact(other)
    return np.array_equal(a, b) if a.shape == b.shape else np.array_equal(one, other)


def renumber_files(numbers: Sequence[int]) -> Column | None:
    """Return the new value of every file index and code in a joined table, or None if all stay."""
    if numbers == list(range(len(numbers))):
        return None
    # negative codes index from the end of the table, and do not change
    return np.array([*numbers, INLINE, MISSING], np.int32)


def concatenate_columns(
    parts: Sequence[Column], axis: int, tables: Sequence[Column | None] | None = None
) -> Column:
    """Concatenate columns; axes along which no part changes stay broadcast.

    ``tables`` has, for each part, the new value of each file index, or None if they stay the same.
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
    """Return whether all parts repeat the same layer along ``axis``."""
    if not all(p.strides[axis] == 0 or p.shape[axis] == 1 for p in parts) or not parts[0].size:
        return False
    layer = (slice(None),) * axis + (0,)
    layers = [_look_up(p[layer], t) for p, t in zip(parts, tables, strict=True) if p.shape[axis]]
    return all(np.array_equal(layers[0], other) for other in layers[1:])


# ---------------------------------------------------------------------- tables of files


@dataclass(frozen=True, eq=False, slots=True)
class JoinedTable(Generic[Item]):
    """Tables joined into one that has each item once.

    ``items`` are the items of all parts, in the order of their first occurrence; ``numbers`` are,
    for every part, the indices of its items there.
    """

    parts: tuple[tuple[Item, ...], ...]
    items: tuple[Item, ...]
    numbers: tuple[list[int], ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[Item, ...]]) -> JoinedTable[Item]:
        """Join tables; the result for the same parts is created once.

        Otherwise a hundred variables of a million files would have a hundred equal tables.
        """
        for known in tuple(_known):
            # items are compared by identity
            if len(parts) == len(known.parts) and all(
                part is own or (len(part) == len(own) and all(map(is_, part, own)))
                for part, own in zip(parts, known.parts, strict=True)
            ):
                return known
        items: dict[Item, int] = {}
        numbers = tuple([items.setdefault(item, len(items)) for item in part] for part in parts)
        made = cls(tuple(parts), tuple(items), numbers)
        _known.append(made)
        return made


def drop_repeated_tables(tables: Iterable[tuple[Item, ...]]) -> list[tuple[Item, ...]]:
    """Return tables without repetition, compared by identity."""
    return list({id(table): table for table in tables}.values())


_known: deque[JoinedTable[Any]] = deque(maxlen=CACHED_TABLES)


# ---------------------------------------------------------------------- packing

LEVEL, RISE, EXPECTED = range(3)
"""Ways to encode a column: as values, as differences, or as deviations from expected
differences."""


class PackedColumn(NamedTuple):
    """A column as compressed differences from expected values, minus the least difference.

    ``way`` is `LEVEL`, `RISE` or `EXPECTED`; ``width`` is the size of a difference in bytes. The
    first bytes of all differences come first, then the second bytes, and so on.
    """

    shape: tuple[int, ...]
    way: int
    first: int
    least: int
    width: int
    data: bytes


class SmallColumn(NamedTuple):
    """A column of few values: their dtype, and their bytes in C order.

    numpy's own pickle of an array takes ten times as many bytes and as much time.
    """

    shape: tuple[int, ...]
    kind: str
    data: bytes


def pack(column: Values, steps: Values | None = None) -> int | SmallColumn | PackedColumn:
    """Encode a column in few bytes, for `unpack`; a column of one value becomes an integer.

    ``steps`` are the expected differences between neighbouring values in C order.
    """
    if column.size == 1:
        return int(column.flat[0])
    if column.size <= SMALL_COLUMN:
        small = narrow(column)
        return SmallColumn(small.shape, small.dtype.str, small.tobytes())
    flat = column.astype(np.int64, order="C").reshape(-1)
    rises = _find_rises(steps, column.shape)
    ways = (LEVEL, RISE) if rises is None else (LEVEL, RISE, EXPECTED)
    way = min(ways, key=lambda n: len(_pack_column(flat[:SAMPLE], rises, n, column.shape).data))
    return _pack_column(flat, rises, way, column.shape)


def unpack(packed: int | SmallColumn | PackedColumn, steps: Values | None = None) -> Values:
    """Return the column that was passed to `pack`, as integers of any width.

    It has the same shape; a single value is a scalar, and broadcasts.
    """
    if isinstance(packed, int):
        return np.array(packed, np.min_scalar_type(packed))
    if isinstance(packed, SmallColumn):
        return np.frombuffer(packed.data, packed.kind).reshape(packed.shape)
    # an entry of a cache may contain any shape
    data = decode_stream(zlib.decompressobj(), packed.data, None)
    planes = np.frombuffer(data, np.uint8).reshape(packed.width, -1)
    rest = np.ascontiguousarray(planes.T).view(f"<u{packed.width}").reshape(-1).astype(np.int64)
    rest += packed.least
    if packed.way != LEVEL:
        if packed.way == EXPECTED:
            rises = _find_rises(steps, packed.shape)
            rest[1:] += rises[:-1] if rises is not None else 0
        rest[0] = packed.first
        np.cumsum(rest, out=rest)
    return rest.reshape(packed.shape)


def _find_rises(steps: Values | None, shape: tuple[int, ...]) -> Flat | None:
    """Return the expected differences between neighbours, or None where they are unknown."""
    if steps is None or np.broadcast_shapes(steps.shape, shape) != shape:
        return None
    return np.broadcast_to(steps, shape).astype(np.int64).reshape(-1)


def _pack_column(flat: Flat, rises: Flat | None, way: int, shape: tuple[int, ...]) -> PackedColumn:
    rest = flat
    if way != LEVEL:
        rest = np.empty_like(flat)
        np.subtract(flat[1:], flat[:-1], out=rest[1:])
        if way == EXPECTED and rises is not None:
            rest[1:] -= rises[: flat.size - 1]
        # the first difference would be as large as the value; any other one packs better
        rest[0] = rest[1]
    least = int(rest.min())
    # 64-bit integers may wrap around here, and wrap back when they are unpacked
    small = (rest - least).view(np.uint64)
    width = np.min_scalar_type(int(small.max())).itemsize
    planes = np.ascontiguousarray(small.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T)
    return PackedColumn(shape, way, int(flat[0]), least, width, zlib.compress(planes.data, 1))


def narrow(column: Values) -> Values:
    """Convert a column to the narrowest integers that represent its values."""
    if not column.size:
        return column
    kind = np.promote_types(
        np.min_scalar_type(int(column.min())), np.min_scalar_type(int(column.max()))
    )
    return column.astype(kind, order="C") if kind.kind in "iu" else column


def pack_table(table: Any) -> Any:
    """Compress a table of files, for `unpack_table`; similar urls compress well."""
    return zlib.compress(pickle.dumps(table), 1) if len(table) > SMALL_COLUMN else table


def unpack_table(packed: Any) -> Any:
    """Return the table that was passed to `pack_table`."""
    return pickle.loads(zlib.decompress(packed)) if isinstance(packed, bytes) else packed


# ---------------------------------------------------------------------- checks
# Checks of references when a manifest is built.


def check_references(manifest: ChunkManifest) -> None:
    """Raise an error for the first reference that is invalid in `ChunkManifest.build`."""
    if not _is_in_one_file(manifest):
        _check_positions(manifest)
    column = compact(manifest.checksum)
    if column.size == 1 and not column.flat[0]:
        return
    if all(find_valid_checksums(part).all() for _, (part,) in split_columns(column)):
        return
    wrong = ~find_valid_checksums(column)
    raise FormatError(
        f"chunk {tuple(np.argwhere(wrong)[0].tolist())}: {column[wrong][0]} is not a checksum; "
        f"give 2**32 + CRC-32 of its bytes, or 0 for none"
    )


def _is_in_one_file(manifest: ChunkManifest) -> bool:
    """Return whether all chunks are in the only file, and all references are valid."""
    file = compact(manifest.file)
    if file.size != 1 or file.flat[0] != 0 or len(manifest.files) != 1:
        return False
    size = 2**62 if manifest.files[0].size is None else manifest.files[0].size
    columns = [compact(manifest.offset), compact(manifest.length)]
    small = manifest.offset.size <= PIECE
    pieces = [columns] if small else [some for _, some in split_columns(*columns)]
    return all(
        offset.min() >= 0 and length.min() > 0 and (offset <= size - length).all()
        for offset, length in pieces
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
    table = np.array([*sizes, len(manifest.inline), 2**62])
    for key, (codes, begins, counts) in split_columns(file, offset, length):
        ends = table[codes]
        inside = (begins >= 0) & np.where(
            codes == INLINE, begins < ends, (counts > 0) & (begins <= ends - counts)
        )
        bad = ~inside & (codes != MISSING)
        if bad.any():
            position = np.argwhere(bad)[0].tolist()
            first = [part.start or 0 for part in key] + [0] * (len(position) - len(key))
            _raise_reference_error(
                manifest, tuple(a + b for a, b in zip(first, position, strict=True))
            )


def _raise_reference_error(manifest: ChunkManifest, chunk_id: tuple[int, ...]) -> NoReturn:
    columns = (manifest.file, manifest.offset, manifest.length)
    file, offset, length = (int(column[chunk_id]) for column in columns)
    if file == INLINE:
        raise FormatError(
            f"chunk {chunk_id}: number {offset} of {len(manifest.inline)} inline chunks does "
            f"not exist; the reference is wrong"
        )
    source = manifest.files[file]
    raise FormatError(
        f"chunk {chunk_id}: bytes {offset} to {offset + length} of {source.url} "
        f"(size {source.size}) cannot be a chunk; fetch the source again if it is truncated, or "
        f"scan it "
        f"anew"
    )


def compact(column: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Return a column with one element along each broadcast axis, contiguous in memory."""
    return column[tuple(slice(0, 1) if step == 0 else slice(None) for step in column.strides)]


def narrow_column(column: Ints) -> npt.NDArray[np.integer]:
    """Convert a constant column to a broadcast scalar, any other to 32 bits if its values fit."""
    if column.size and (column == column[0]).all():
        return np.broadcast_to(column[:1].copy(), column.shape)
    small = column.max(initial=0) < 2**31
    return column.astype(np.int32) if small else column.copy()


def find_distinct(numbers: npt.NDArray[np.integer[Any]], count: int) -> Ints:
    """Return the distinct numbers from 0 to below ``count``, in ascending order."""
    if count > 16 * numbers.size:
        return np.unique(numbers[numbers >= 0]).astype(np.int64)
    # many times as fast for a small count; negative codes count from the end
    met = np.zeros(count - INLINE, bool)
    for _, (part,) in split_columns(numbers):
        met[part] = True
    return np.flatnonzero(met[:count])


def find_distinct_in_order(numbers: npt.NDArray[np.integer[Any]]) -> Ints:
    """Return the distinct numbers of a column in the order of their first occurrence.

    >>> find_distinct_in_order(np.array([[4, 4], [1, 4], [0, 1]])).tolist()
    [4, 1, 0]
    """
    compacted = compact(numbers)
    if not compacted.size:
        return np.zeros(0, np.int64)
    low, row = int(compacted.min()), compacted.size // len(compacted)
    met = np.full(int(compacted.max()) - low + 1, compacted.size, np.int64)
    step = max(1, PIECE // row)
    # of repeated positions the last one wins, so write them in reverse order
    for begin in range((len(compacted) - 1) // step * step, -1, -step):
        part, first = compacted[begin : begin + step].ravel(), begin * row
        met[part[::-1] - low] = np.arange(first + part.size - 1, first - 1, -1)
    there = np.flatnonzero(met < compacted.size)
    return (there + low)[np.argsort(met[there], kind="stable")]


# ---------------------------------------------------------------------- files of tables
# What a reference set stores about its files, so that references need not be read.


class SourceSummary(NamedTuple):
    """Facts that a reference set stores about its files, so that they need not be listed.

    ``name`` identifies the list. ``nbytes`` is None if not all sizes are known.
    """

    name: Hashable
    number: int
    nbytes: int | None
    first: str | None


class SourceColumns(NamedTuple):
    """Urls and fingerprints of files, one row per file; `NO_NUMBER` and None stand for unknown."""

    urls: npt.NDArray[np.object_]
    sizes: npt.NDArray[np.int64]
    mtimes: npt.NDArray[np.int64]
    etags: npt.NDArray[np.object_]

    @classmethod
    def of(cls, files: Iterable[SourceFile]) -> SourceColumns:
        """Return the columns of files."""
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

    def take(self, rows: npt.NDArray[np.bool_]) -> SourceColumns:
        """Return the rows selected by a boolean mask."""
        urls, sizes, mtimes, etags = self
        return SourceColumns(urls[rows], sizes[rows], mtimes[rows], etags[rows])


class CountedSources(NamedTuple):
    """The number of chunks in each file of a list.

    ``name`` identifies the list, and ``read_files`` reads it: arrays share lists.
    """

    name: Hashable
    chunks: Ints
    read_files: Callable[[], SourceColumns]


# ---------------------------------------------------------------------- tables


class ReferenceTable:
    """The references of one array, in C order of its chunks, stored outside the manifest.

    A format implements how rows are loaded, and which files it lists. It may override methods for
    which it need not read rows.
    """

    is_in_set: ClassVar[bool] = True
    """Whether the rows are in a reference set, and stay there when arrays are joined."""

    is_in_source: ClassVar[bool] = False
    """Whether the rows are looked up in the index of a source file: they are only for reading, and
    must be loaded before references are taken out of an array."""

    @property
    def has_pipelines(self) -> bool:
        """Whether every row has its own pipeline number; otherwise all have number 0."""
        return False

    @property
    def owner(self) -> Hashable:
        """The url of the set that contains the rows, or None if the set cannot reuse them."""
        return None

    @property
    def files(self) -> tuple[SourceFile, ...] | None:
        """The files to which the column ``file`` of loaded rows refers, if they are known."""
        return None

    @property
    def rest(self) -> int | None:
        """The pipeline of rows that are not listed, for a table with the others in memory."""
        return None

    @property
    def nbytes(self) -> int:
        """The size in bytes of the memory that the rows permanently occupy."""
        return 0

    @property
    def where(self) -> str:
        """The location of the rows, for people; it is available at no cost."""
        return ", whose references lie in a reference set"

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the rows at these indexes, in their shape, and their files."""
        raise NotImplementedError

    def find_existing_rows(self) -> Ints | None:
        """Return the indexes of the rows that may exist, ascending, or None if all rows may."""
        return None

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files of rows, and possibly other files of the set."""
        return self.files or ()

    def summarize_sources(self) -> SourceSummary | None:
        """Return the set's summary of these files, or None if they have to be listed."""
        return None

    def count_sources(self, start: int, stop: int) -> CountedSources | None:
        """Count the files of the rows ``start`` to ``stop``, or None if rows must be read."""
        return None

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return the files that have one of the urls."""
        return tuple(file for file in self.list_sources() if file.url in urls)

    def moved_into(self, locations: Sequence[tuple[SourceFile, int]]) -> ReferenceTable | None:
        """Return the table for files that are embedded in others, or None if rows must be read."""
        return None

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ReferenceTable | None:
        """Return the table with ``change`` applied to its files, or None if rows must be read."""
        return self.moved_into([(change(file), 0) for file in self.files or ()])

    def pruned(self, manifest: ChunkManifest) -> ChunkManifest:
        """Return a manifest of this table without references that its chunks do not need."""
        return manifest

    def get_if_loaded(self, rows: RowView) -> tuple[Ints | None, ChunkManifest] | None:
        """Return rows that are in memory, and their positions, or None if something must be read.

        Without positions, one row represents all, except for its offset.
        """
        return None


class RowView(NamedTuple):
    """A strided view of a table: the row of a chunk is ``first`` plus strides times its position.

    ``renumbered`` are the numbers that the table's pipelines have in the array, by default the
    same.
    """

    table: ReferenceTable
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int = 0
    renumbered: tuple[int, ...] | None = None

    @property
    def is_in_order(self) -> bool:
        """Whether the chunks, in C order, are consecutive rows that begin with the first one."""
        steps = zip(self.shape, self.strides, compute_strides(self.shape), strict=True)
        return self.first == 0 and all(n == 1 or stride == step for n, stride, step in steps)

    @property
    def only(self) -> int:
        """The pipeline of every chunk of a table without pipelines."""
        return self.renumbered[0] if self.renumbered else 0

    @property
    def rest(self) -> int | None:
        """The pipeline of missing chunks, if the table has one."""
        rest = self.table.rest
        return rest if rest is None or self.renumbered is None else self.renumbered[rest]

    # ------------------------------------------------------------------ other rows

    def crop(self, axis: int, ids: slice) -> RowView:
        """Return the chunks of a slice along an axis."""
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
        rest = iter(long)
        return self._replace(
            shape=shape, strides=tuple(0 if n == 1 else next(rest)[1] for n in shape)
        )

    def broadcast_to(self, shape: tuple[int, ...]) -> RowView:
        """Repeat the chunks along axes that have a single chunk."""
        pairs = zip(self.shape, self.strides, shape, strict=True)
        return self._replace(shape=shape, strides=tuple(0 if n == 1 else s for n, s, _ in pairs))

    def with_pipelines(self, numbers: Sequence[int]) -> RowView:
        """Renumber the pipelines: number ``i`` becomes ``numbers[i]``."""
        before = range(len(numbers)) if self.renumbered is None else self.renumbered
        after: tuple[int, ...] | None = tuple(numbers[i] for i in before)
        if not self.table.has_pipelines:
            number = numbers[self.only]
            after = (number,) if number else None
        return self._replace(renumbered=after)

    # ------------------------------------------------------------------ reading

    def load(self, numbers: Ints) -> ChunkManifest:
        """Return the rows at these indexes, in their shape."""
        found = self.table.load(numbers)
        return found if self.renumbered is None else found.with_pipelines(self.renumbered)

    def cross(self, positions: Sequence[Ints]) -> ChunkManifest:
        """Return the rows of the chunks at the intersections of the positions along all axes."""
        total: Ints = np.array(self.first, np.int64).reshape((1,) * len(positions))
        for axis, (stride, ids) in enumerate(zip(self.strides, positions, strict=True)):
            along = (1,) * axis + (-1,) + (1,) * (len(positions) - axis - 1)
            total = total + (stride * ids).reshape(along)
        return self.load(total)

    def at(self, ids: Ints) -> ChunkManifest:
        """Return the rows of the chunks at flat indexes in C order, in the shape of the indexes."""
        if self.is_in_order:
            return self.load(np.asarray(ids, np.int64))
        numbers = np.full(ids.shape, self.first, np.int64)
        # numpy cannot unravel indices of a grid without axes
        found = np.unravel_index(ids, self.shape) if self.shape else ()
        for stride, positions in zip(self.strides, found, strict=True):
            numbers += stride * positions
        return self.load(numbers)

    def find_existing(self) -> Ints | None:
        """Return the ascending flat indexes of the chunks that may exist, or None if all may."""
        numbers = self.table.find_existing_rows()
        if numbers is None:
            return None
        if self.is_in_order:
            return numbers[: np.searchsorted(numbers, prod(self.shape))]
        return self._find_chunks_of(numbers)

    def _find_chunks_of(self, numbers: Ints) -> Ints | None:
        """Return the chunks that refer to these rows, or None if several may refer to the same row.

        The strides of a crop or permutation are like the digits of a number: each is at least the
        span of all smaller ones.
        """
        shape, strides = self.shape, self.strides
        long = [axis for axis, count in enumerate(shape) if count != 1]
        long.sort(key=lambda axis: -abs(strides[axis]))
        spans = [abs(strides[axis]) * (shape[axis] - 1) for axis in long]
        if any(abs(strides[axis]) <= sum(spans[k + 1 :]) for k, axis in enumerate(long)):
            return None
        # an axis with a negative stride is counted from its end
        back = sum(strides[i] * (shape[i] - 1) for i in long if strides[i] < 0)
        rest = numbers - self.first - back
        inside, found, step = rest >= 0, np.zeros_like(numbers), compute_strides(shape)
        for axis in long:
            position, rest = np.divmod(rest, abs(strides[axis]))
            inside &= position < shape[axis]
            found += step[axis] * (position if strides[axis] > 0 else shape[axis] - 1 - position)
        return np.sort(found[inside & (rest == 0)])

    def find_range(self) -> tuple[int, int] | None:
        """Return the rows ``start, stop`` if each of them is used exactly once, or None."""
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
