"""The columns of a manifest: integers over a chunk grid, broadcast where they do not change.

Projections: what a selection takes of a chunked axis; pure integers, no I/O.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, repeat
from math import prod
from operator import is_
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar, overload

import numpy as np
import numpy.typing as npt

from virtualds.bounds import decode_stream
from virtualds.errors import FormatError
from virtualds.source_file import SourceFile, StorageOptions, sound

if TYPE_CHECKING:
    from virtualds.chunks.manifest import ChunkManifest

Ints = npt.NDArray[np.int64]

AxisKey = slice | Ints
"""A key of one axis: a slice with start, stop and positive step, or rising positions."""


class Slabs(NamedTuple):
    """The three columns of consecutive slabs; ``edges`` has one element more than the others."""

    edges: Ints
    encoded: Ints
    inset: Ints


class SlabRun(NamedTuple):
    """The slabs ``first`` to ``stop`` of a projection, and whether they are taken whole."""

    first: int
    stop: int
    whole: bool


class Slices(Sequence[slice]):
    """A sequence of slices that are made on access: of a million slabs, few are needed."""

    __slots__ = ("_starts", "_step", "_stops")

    def __init__(self, starts: Ints, stops: Ints, step: int | None = None) -> None:
        self._starts, self._stops, self._step = starts, stops, step

    def __len__(self) -> int:
        return self._starts.size

    @overload
    def __getitem__(self, item: int) -> slice: ...
    @overload
    def __getitem__(self, item: slice) -> Slices: ...
    def __getitem__(self, item: int | slice) -> slice | Slices:
        starts, stops = self._starts[item], self._stops[item]
        if isinstance(item, slice):
            return Slices(starts, stops, self._step)
        return slice(int(starts), int(stops), self._step)

    def __iter__(self) -> Iterator[slice]:
        return map(slice, self._starts.tolist(), self._stops.tolist(), repeat(self._step))


class Projection(NamedTuple):
    """What a selection takes from each slab it meets.

    ``chunk[k]`` is the slab's number, ``encoded[k]`` the length of its stored chunk, ``inner[k]``
    selects within that, ``outer[k]`` is the stretch of the result that it fills. ``runs`` are the
    stretches of slabs that are taken alike: as they are stored, from the first element to the last,
    and of one length; or not.
    """

    chunk: Ints
    encoded: Ints
    inner: Sequence[AxisKey]
    outer: Sequence[slice]
    runs: list[SlabRun]

    def take_part(self, first: int, stop: int) -> Projection:
        """Return what is taken from some of the slabs, none of which counts as whole."""
        taken = slice(first, stop)
        chunk, encoded = self.chunk[taken], self.encoded[taken]
        runs = [SlabRun(0, chunk.size, False)]
        return Projection(chunk, encoded, self.inner[taken], self.outer[taken], runs)


EMPTY_PROJECTION = Projection(np.empty(0, np.int64), np.empty(0, np.int64), [], [], [])


def split_by_length(lengths: Ints) -> list[SlabRun]:
    """Return the stretches of equal lengths, of which 0 stands for slabs that are not whole."""
    bounds = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), lengths.size]
    return [SlabRun(a, b, bool(lengths[a])) for a, b in pairwise(bounds)]


def to_slice(positions: Ints) -> AxisKey:
    """Return rising positions, none of them twice, as a slice where they are evenly spaced."""
    if positions.size == 1:
        return slice(int(positions[0]), int(positions[0]) + 1, 1)
    steps = np.diff(positions)
    if (steps == steps[0]).all():
        return slice(int(positions[0]), int(positions[-1]) + 1, int(steps[0]))
    return positions


def count_from_front(positions: npt.NDArray[Any], size: int, axis: int) -> Ints:
    """Return positions along an axis, counted from its front; others are an `IndexError`."""
    if positions.dtype.kind not in "iu" and positions.size:
        raise IndexError(f"axis {axis}: {positions.dtype} cannot index; use integers or booleans")
    counted = positions.astype(np.int64)
    counted = np.where(counted < 0, counted + size, counted)
    if counted.size and not 0 <= counted.min() <= counted.max() < size:
        bad = positions[(counted < 0) | (counted >= size)][0]
        raise IndexError(
            f"axis {axis}: position {bad} lies outside {size} elements; count from either end of it"
        )
    return counted


def compute_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return how far apart neighbours along each axis lie in C order.

    Examples
    --------
    >>> compute_strides((5, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def find_runs(positions: Ints) -> list[tuple[int, int]]:
    """Return the stretches ``start, stop`` of consecutive rising positions."""
    if not positions.size:
        return []
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    bounds = [0, *cuts.tolist(), positions.size]
    return [(int(positions[a]), int(positions[b - 1]) + 1) for a, b in pairwise(bounds)]


# ---------------------------------------------------------------------- columns

MISSING = -1
"""The file code of a missing chunk, which reads as its fill value."""

INLINE = -2
"""The file code of a chunk held in the manifest; its offset is its index in `inline`."""

Column = npt.NDArray[np.integer]

COLUMNS = {
    "file": np.int32,
    "offset": np.int64,
    "length": np.int64,
    "pipeline": np.uint16,
    "checksum": np.uint64,
}
"""The columns of a manifest, with their dtypes."""

KEPT = 4
"""Joined tables that are kept for the next arrays: those of a dataset come one after the other."""

SMALL_COLUMN = 1024
"""Values of a column, or entries of a table, up to which packing does not pay."""

PIECE = 2**18
"""Values of columns that are looked at or changed at a time, so that memory holds the columns and
little else."""

SAMPLE = 2**16
"""Values that are packed in every way to find the shortest."""

Item = TypeVar("Item", bound=Hashable)

Values = npt.NDArray[np.integer]

Flat = npt.NDArray[np.int64]

Key = tuple[slice, ...]
"""Where a piece of a column lies."""


class Reference(NamedTuple):
    """One row of a manifest."""

    file: int
    offset: int
    length: int
    pipeline: int
    checksum: int


def digest(files: Sequence[SourceFile]) -> tuple[str, list[Any]]:
    """Return the identity of a table of files: a hash of the names, and the access options."""
    options: dict[StorageOptions | None, int] = {}
    lines = [repr((*f[:-1], options.setdefault(f.options, len(options)))) for f in files]
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text).hexdigest(), [*options]


def spread_column(name: str, value: Any, shape: tuple[int, ...]) -> Column:
    """Return a column over the grid, of integers that it can hold."""
    if type(value) is int:
        # too large a number is refused below
        with suppress(OverflowError):
            return constant_column(name, value, shape)
    return settle_column(_as_column(name, np.asarray(value)), shape)


@lru_cache(4096)
def constant_column(name: str, value: int, shape: tuple[int, ...]) -> Column:
    """Return a read-only column of one value.

    It equals the result of broadcasting, in a tenth of the time, and is cached for many files.
    """
    kind = np.dtype(COLUMNS[name])
    raw = value.to_bytes(kind.itemsize, sys.byteorder, signed=kind.kind == "i")
    return np.ndarray(shape, kind, raw, 0, (0,) * len(shape))


def column_of_rows(name: str, rows: Sequence[int], shape: tuple[int, ...]) -> Column:
    """Return a column of a few numbers in C order."""
    if rows.count(rows[0]) == len(rows):
        return constant_column(name, rows[0], shape)
    return np.array(rows, COLUMNS[name]).reshape(shape)


def settle_column(column: Column, shape: tuple[int, ...]) -> Column:
    """Give a column the shape of the grid; a constant one is held as one number."""
    spread = np.broadcast_to(column, shape)
    if not column.size or not column.ndim:
        return spread
    first = column[(0,) * column.ndim]
    # scans of many files, which have small columns, are not to wait for the cutting
    small = column.size <= PIECE
    pieces = [column] if small else (part for _, (part,) in cut_columns(column))
    is_constant = all((part == first).all() for part in pieces)
    return np.broadcast_to(first, shape) if is_constant else spread


def cut_columns(*columns: Column, most: int = PIECE) -> Iterator[tuple[Key, list[Column]]]:
    """Yield columns piece by piece along their longest axis, and where each piece lies."""
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
    """Return integers in the dtype of their column, refusing those it cannot hold."""
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
    """Take along an axis, leaving a broadcast axis broadcast."""
    if column.strides[axis] == 0 and column.shape[axis]:
        shape = (*column.shape[:axis], ids.size, *column.shape[axis + 1 :])
        return np.broadcast_to(column[(slice(None),) * axis + (slice(0, 1),)], shape)
    return column.take(ids, axis=axis)


def take_compact(column: Column, change: Callable[[Column], Column]) -> Column:
    """Change a column element by element, each stored element once."""
    return np.broadcast_to(change(compact(column)), column.shape)


def is_same_column(one: Column, other: Column) -> bool:
    """Say whether two columns of one shape are equal, each stored element compared once."""
    a, b = compact(one), compact(other)
    return np.array_equal(a, b) if a.shape == b.shape else np.array_equal(one, other)


def renumber_files(numbers: Sequence[int]) -> Column | None:
    """Return the number of every file and code in a joined table, None if all stay."""
    if numbers == list(range(len(numbers))):
        return None
    # negative codes index from the end of the table, and stay as they are
    return np.array([*numbers, INLINE, MISSING], np.int32)


def concatenate_columns(
    parts: Sequence[Column], axis: int, tables: Sequence[Column | None] | None = None
) -> Column:
    """Concatenate columns, keeping axes broadcast along which no part changes.

    ``tables`` have for each part what each of its numbers becomes, or None if they stay.
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
        place = joined[(slice(None),) * axis + (slice(begin, begin + part.shape[axis]),)]
        for key, (piece,) in cut_columns(part):
            place[key] = _look_up(piece, table)
        begin += part.shape[axis]
    return np.broadcast_to(joined, shape)


def _look_up(column: Column, table: Column | None) -> Column:
    return column if table is None else table[column]


def _is_constant(parts: Sequence[Column], axis: int, tables: Sequence[Column | None]) -> bool:
    """Say whether all parts repeat one and the same layer along ``axis``."""
    if not all(p.strides[axis] == 0 or p.shape[axis] == 1 for p in parts) or not parts[0].size:
        return False
    layer = (slice(None),) * axis + (0,)
    layers = [_look_up(p[layer], t) for p, t in zip(parts, tables, strict=True) if p.shape[axis]]
    return all(np.array_equal(layers[0], other) for other in layers[1:])


# ---------------------------------------------------------------------- tables of files


@dataclass(frozen=True, eq=False, slots=True)
class JoinedTable(Generic[Item]):
    """Tables joined into one, with each item once.

    ``items`` are those of all parts, in the order in which they come first; ``numbers`` are, for
    every part, the indices of its items there.
    """

    parts: tuple[tuple[Item, ...], ...]
    items: tuple[Item, ...]
    numbers: tuple[list[int], ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[Item, ...]]) -> JoinedTable[Item]:
        """Join tables; the result for the same parts is made once.

        Otherwise a hundred variables of a million files would hold a hundred equal tables.
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


_known: deque[JoinedTable[Any]] = deque(maxlen=KEPT)


# ---------------------------------------------------------------------- packing

LEVEL, RISE, EXPECTED = range(3)
"""Ways to encode a column: values, differences, and differences from the expected ones."""


class PackedColumn(NamedTuple):
    """A column as compressed differences from expected values, less the least difference.

    ``way`` is `LEVEL`, `RISE` or `EXPECTED`; ``width`` is the bytes of a difference. All first
    bytes stand before all second ones.
    """

    shape: tuple[int, ...]
    way: int
    first: int
    least: int
    width: int
    data: bytes


class SmallColumn(NamedTuple):
    """A column of few values: their dtype, and their bytes in C order.

    numpy's own pickle of an array takes ten times the bytes and the time.
    """

    shape: tuple[int, ...]
    kind: str
    data: bytes


def pack(column: Values, steps: Values | None = None) -> int | SmallColumn | PackedColumn:
    """Return a column in few bytes, for `unpack`; one value is an integer.

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
    """Return the column that `pack` was given, as integers of any width.

    It has the same shape; a single value has none, and broadcasts.
    """
    if isinstance(packed, int):
        return np.array(packed, np.min_scalar_type(packed))
    if isinstance(packed, SmallColumn):
        return np.frombuffer(packed.data, packed.kind).reshape(packed.shape)
    # an entry of a cache may say any shape
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
    """Return the expected differences between neighbours, None where they are unknown."""
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
    """Hold a column in the narrowest integers that keep its values."""
    if not column.size:
        return column
    kind = np.promote_types(
        np.min_scalar_type(int(column.min())), np.min_scalar_type(int(column.max()))
    )
    return column.astype(kind, order="C") if kind.kind in "iu" else column


def pack_table(table: Any) -> Any:
    """Return a table of files in few bytes, for `unpack_table`; similar urls compress well."""
    return zlib.compress(pickle.dumps(table), 1) if len(table) > SMALL_COLUMN else table


def unpack_table(packed: Any) -> Any:
    """Return the table that `pack_table` was given."""
    return pickle.loads(zlib.decompress(packed)) if isinstance(packed, bytes) else packed


# ---------------------------------------------------------------------- checks
# Of references, made when a manifest is built.


def check_references(manifest: ChunkManifest) -> None:
    """Refuse references that `ChunkManifest.build` refuses, naming the first."""
    if not _lies_in_one_file(manifest):
        _check_places(manifest)
    column = compact(manifest.checksum)
    if column.size == 1 and not column.flat[0]:
        return
    if all(sound(part).all() for _, (part,) in cut_columns(column)):
        return
    wrong = ~sound(column)
    raise FormatError(
        f"chunk {tuple(np.argwhere(wrong)[0].tolist())}: {column[wrong][0]} is not a checksum; "
        f"give 2**32 + CRC-32 of its bytes, or 0 for none"
    )


def _lies_in_one_file(manifest: ChunkManifest) -> bool:
    """Say whether all chunks lie in the only file, and all references are valid."""
    file = compact(manifest.file)
    if file.size != 1 or file.flat[0] != 0 or len(manifest.files) != 1:
        return False
    size = 2**62 if manifest.files[0].size is None else manifest.files[0].size
    columns = [compact(manifest.offset), compact(manifest.length)]
    small = manifest.offset.size <= PIECE
    pieces = [columns] if small else [some for _, some in cut_columns(*columns)]
    return all(
        offset.min() >= 0 and length.min() > 0 and (offset <= size - length).all()
        for offset, length in pieces
    )


def _check_places(manifest: ChunkManifest) -> None:
    file, offset, length = (compact(getattr(manifest, n)) for n in ("file", "offset", "length"))
    if file.size and not INLINE <= int(file.min()) <= int(file.max()) < len(manifest.files):
        raise FormatError(
            f"ChunkManifest: file numbers {file.min()} to {file.max()} of {len(manifest.files)} "
            f"files; {MISSING} is a missing chunk, {INLINE} an inline one"
        )
    sizes = [f.size if f.size is not None else 2**62 for f in manifest.files]
    # negative codes index from the end; offsets of inline chunks are indices, not bytes
    table = np.array([*sizes, len(manifest.inline), 2**62])
    for key, (codes, begins, counts) in cut_columns(file, offset, length):
        ends = table[codes]
        inside = (begins >= 0) & np.where(
            codes == INLINE, begins < ends, (counts > 0) & (begins <= ends - counts)
        )
        bad = ~inside & (codes != MISSING)
        if bad.any():
            place = np.argwhere(bad)[0].tolist()
            first = [cut.start or 0 for cut in key] + [0] * (len(place) - len(key))
            _refuse(manifest, tuple(a + b for a, b in zip(first, place, strict=True)))


def _refuse(manifest: ChunkManifest, chunk_id: tuple[int, ...]) -> NoReturn:
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
    """Return a column with one element along each broadcast axis, its elements in memory."""
    return column[tuple(slice(0, 1) if step == 0 else slice(None) for step in column.strides)]


def narrow_column(column: Ints) -> npt.NDArray[np.integer]:
    """Hold a constant column as a broadcast scalar, any other in 32 bits where it fits."""
    if column.size and (column == column[0]).all():
        return np.broadcast_to(column[:1].copy(), column.shape)
    small = column.max(initial=0) < 2**31
    return column.astype(np.int32) if small else column.copy()


def find_distinct(numbers: npt.NDArray[np.integer[Any]], count: int) -> Ints:
    """Return the distinct numbers from 0 to below ``count``, rising, of all that there are."""
    if count > 16 * numbers.size:
        return np.unique(numbers[numbers >= 0]).astype(np.int64)
    # many times as fast for a small count; negative codes count from the end
    met = np.zeros(count - INLINE, bool)
    for _, (part,) in cut_columns(numbers):
        met[part] = True
    return np.flatnonzero(met[:count])


def find_turn(numbers: npt.NDArray[np.integer[Any]]) -> Ints:
    """Return the distinct numbers of a column in the order in which they first come.

    >>> find_turn(np.array([[4, 4], [1, 4], [0, 1]])).tolist()
    [4, 1, 0]
    """
    held = compact(numbers)
    if not held.size:
        return np.zeros(0, np.int64)
    low, row = int(held.min()), held.size // len(held)
    met = np.full(int(held.max()) - low + 1, held.size, np.int64)
    step = max(1, PIECE // row)
    # the last of repeated places counts, so they are written from the end
    for begin in range((len(held) - 1) // step * step, -1, -step):
        part, first = held[begin : begin + step].ravel(), begin * row
        met[part[::-1] - low] = np.arange(first + part.size - 1, first - 1, -1)
    there = np.flatnonzero(met < held.size)
    return (there + low)[np.argsort(met[there], kind="stable")]
