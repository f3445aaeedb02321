"""Where the bytes of every chunk lie: columns over a chunk grid.

A manifest has one row per chunk. Its columns are arrays with the shape of the chunk grid; along an
axis where a column does not change it is broadcast (stride 0) and takes no memory. Two primitives
make everything else: `ChunkManifest.take` and `ChunkManifest.concatenate`.
"""

from __future__ import annotations

import hashlib
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from virtualds.errors import FormatError
from virtualds.grid import Ints, compact, distinct
from virtualds.joined_table import JoinedTable
from virtualds.packed_columns import narrow, pack, pack_table, unpack, unpack_table
from virtualds.source_file import SourceFile, StorageOptions, sound

MISSING = -1
"""The file code of a chunk that does not exist: it reads as its fill value."""


INLINE = -2
"""The file code of a chunk held in the manifest; its offset counts `ChunkManifest.inline`."""


Column = npt.NDArray[np.integer]


COLUMNS = {
    "file": np.int32,
    "offset": np.int64,
    "length": np.int64,
    "pipeline": np.uint16,
    "checksum": np.uint64,
}


class Reference(NamedTuple):
    """One row of a manifest."""

    file: int
    offset: int
    length: int
    pipeline: int
    checksum: int


class References(Protocol):
    """The columns of `virtualds.ChunkManifest`, and the tables that they count."""

    @property
    def files(self) -> tuple[SourceFile, ...]: ...
    @property
    def file(self) -> npt.NDArray[Any]: ...
    @property
    def offset(self) -> npt.NDArray[Any]: ...
    @property
    def length(self) -> npt.NDArray[Any]: ...
    @property
    def checksum(self) -> npt.NDArray[Any]: ...
    @property
    def inline(self) -> tuple[bytes, ...]: ...


@dataclass(frozen=True, eq=False, slots=True)
class ChunkManifest:
    """Columns over a chunk grid that say where each chunk's bytes lie.

    Parameters
    ----------
    files : tuple of SourceFile
        The table that the column ``file`` counts.
    file : int32 array, shape of the chunk grid
        Number of the chunk's file, or `MISSING` or `INLINE`.
    offset, length : int64 array, shape of the chunk grid
        Where the chunk lies in its file, in bytes.
    pipeline : uint16 array, shape of the chunk grid
        Number of the `CodecPipeline` in the table of the array.
    checksum : uint64 array, shape of the chunk grid
        2**32 + CRC-32 of the chunk's bytes as they lie in the file, or 0 for none.
    inline : tuple of bytes
        Chunks held here.

    Raises
    ------
    ValueError
        The columns differ in shape.

    Examples
    --------
    >>> manifest = ChunkManifest.build(
    ...     (2, 1), files=[SourceFile("s3://bucket/a.nc")], offset=[[1000], [1016]], length=16
    ... )
    >>> manifest.lookup((1, 0)).offset, manifest.take(0, slice(1, 2)).shape
    (1016, (1, 1))
    """

    files: tuple[SourceFile, ...]
    file: Column
    offset: Column
    length: Column
    pipeline: Column
    checksum: Column
    inline: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        shapes = {name: getattr(self, name).shape for name in COLUMNS}
        if len(set(shapes.values())) != 1:
            raise ValueError(f"ChunkManifest: columns of one grid have one shape, got {shapes}")

    @classmethod
    def build(
        cls,
        shape: tuple[int, ...],
        *,
        files: Sequence[SourceFile] = (),
        file: npt.ArrayLike = 0,
        offset: npt.ArrayLike = 0,
        length: npt.ArrayLike = 0,
        pipeline: npt.ArrayLike = 0,
        checksum: npt.ArrayLike = 0,
        inline: Sequence[bytes] = (),
    ) -> ChunkManifest:
        """Build a manifest from columns or scalars, checking every reference.

        Raises
        ------
        FormatError
            A reference is empty, negative, or reaches past the end of its file, or a checksum is
            neither 0 nor 2**32 + CRC-32.
        ValueError
            A column holds other than integers, or does not fit the grid.
        """
        given = (file, offset, length, pipeline, checksum)
        columns = {
            name: as_grid_column(name, value, shape)
            for name, value in zip(COLUMNS, given, strict=True)
        }
        manifest = cls(files=tuple(files), inline=tuple(inline), **columns)
        check_references(manifest)
        return manifest

    @classmethod
    def in_file(
        cls,
        shape: tuple[int, ...],
        file: SourceFile,
        offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> ChunkManifest:
        """Build a manifest of a few chunks of one file, in C order, checking every reference.

        It is what `build` makes of the same numbers, in a third of the time: what a scan of many
        files is made of.

        Raises
        ------
        FormatError
            As `build`.
        """
        last = 2**62 if file.size is None else file.size
        ends = map(operator.add, offsets, lengths)
        if not offsets or min(offsets) < 0 or min(lengths) <= 0 or max(ends) > last:
            columns = (np.array(c, np.int64).reshape(shape) for c in (offsets, lengths))
            return cls.build(shape, files=(file,), offset=next(columns), length=next(columns))
        return cls(
            files=(file,),
            file=constant_column("file", 0, shape),
            offset=column_of_rows("offset", offsets, shape),
            length=column_of_rows("length", lengths, shape),
            pipeline=constant_column("pipeline", 0, shape),
            checksum=constant_column("checksum", 0, shape),
        )

    @classmethod
    def missing(cls, shape: tuple[int, ...]) -> ChunkManifest:
        """Return a manifest of chunks that do not exist."""
        return cls.build(shape, file=MISSING)

    @property
    def shape(self) -> tuple[int, ...]:
        """Chunks per axis."""
        return self.file.shape

    @property
    def size(self) -> int:
        """Number of chunks of the grid, missing ones too."""
        return self.file.size

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """The files of the table, each once."""
        return tuple(dict.fromkeys(self.files))

    @property
    def listed(self) -> tuple[SourceFile, ...]:
        """The files of the table, and, of a lazy manifest, all that its set lists for it."""
        return self.files

    @property
    def nbytes(self) -> int:
        """Bytes that the references take in memory, the table of files not counted."""
        columns = sum(compact(getattr(self, name)).nbytes for name in COLUMNS)
        return columns + sum(len(chunk) for chunk in self.inline)

    def lookup(self, chunk_id: tuple[int, ...]) -> Reference:
        """Return the row of one chunk."""
        return Reference(*(int(getattr(self, name)[chunk_id]) for name in COLUMNS))

    def at(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of flat numbers in C order, in the shape of the numbers."""
        where = np.unravel_index(ids, self.shape) if self.shape else (np.zeros_like(ids),)
        columns = self if self.shape else self.reshape((1,))
        return columns._map(lambda column: column[where])

    @property
    def is_loaded(self) -> bool:
        """Whether the columns are in memory."""
        return True

    @property
    def is_in_set(self) -> bool:
        """Whether the references lie in a reference set, and are read from there when needed."""
        return False

    def loaded(self) -> ChunkManifest:
        """Return the manifest with its columns in memory."""
        return self

    def take(self, axis: int, ids: slice | Ints) -> ChunkManifest:
        """Return the chunks ``ids`` along ``axis``; an id of -1 is a missing chunk."""
        if isinstance(ids, slice):
            where = (slice(None),) * axis + (ids,)
            return self._map(lambda column: column[where])
        taken = self._map(lambda column: take_rows(column, ids, axis))
        absent = ids == -1
        if not absent.any():
            return taken
        mask = absent.reshape((-1,) + (1,) * (len(self.shape) - axis - 1))
        return replace(taken, file=np.where(mask, np.int32(MISSING), taken.file))

    @staticmethod
    def concatenate(manifests: Sequence[ChunkManifest], axis: int) -> ChunkManifest:
        """Lay manifests end to end along ``axis``, merging their tables of files."""
        if len(manifests) == 1:
            return manifests[0]
        manifests = [m.loaded() for m in manifests]
        table = JoinedTable.of([m.files for m in manifests])
        columns = {name: [getattr(m, name) for m in manifests] for name in COLUMNS}
        columns["file"] = list(map(renumber_files, columns["file"], table.numbers))
        inline: dict[bytes, int] = {}
        for k, m in enumerate(manifests):
            if m.inline:
                numbers = np.array([inline.setdefault(chunk, len(inline)) for chunk in m.inline])
                file, offset = compact(m.file), compact(m.offset)
                held = file == INLINE
                moved = np.where(held, numbers[np.where(held, offset, 0)], offset)
                columns["offset"][k] = np.broadcast_to(moved, m.shape)
        joined = {name: concatenate_columns(parts, axis) for name, parts in columns.items()}
        return ChunkManifest(files=table.items, inline=tuple(inline), **joined)

    def transpose(self, axes: Sequence[int]) -> ChunkManifest:
        """Permute the axes of the grid."""
        return self._map(lambda column: column.transpose(axes))

    def reshape(self, shape: tuple[int, ...]) -> ChunkManifest:
        """Insert or remove axes of one chunk."""
        return self._map(lambda column: column.reshape(shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> ChunkManifest:
        """Repeat the chunks along axes of one chunk."""
        return self._map(lambda column: np.broadcast_to(column, shape))

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ChunkManifest:
        """Return the manifest with every source file replaced by what ``change`` makes of it."""
        return replace(self, files=tuple(map(change, self.files)))

    def relocated(self, places: Sequence[tuple[SourceFile, int]]) -> ChunkManifest:
        """Return the manifest with every file being a piece of another one.

        Parameters
        ----------
        places : sequence of SourceFile and int
            For every file of the table, the one that it lies in, and at which byte it begins there.
        """
        files: dict[SourceFile, int] = {}
        numbers = [files.setdefault(file, len(files)) for file, _ in places]
        # the codes of what lies in no file count from the end
        table = np.array([*numbers, INLINE, MISSING], np.int32)
        shift = np.array([*(begin for _, begin in places), 0, 0], np.int64)
        offset = compact(self.offset) + shift[compact(self.file)]
        return replace(
            self,
            files=tuple(files),
            file=settle_column(table[compact(self.file)], self.shape),
            offset=settle_column(offset, self.shape),
        )

    def checked(self, checksums: npt.NDArray[np.uint64]) -> ChunkManifest:
        """Return the manifest with checksums for chunks that have none; 0 is none.

        Parameters
        ----------
        checksums : array of uint64
            Over the grid of chunks, or of a shape that broadcasts to it.
        """
        known = compact(self.checksum)
        found = np.where(known == 0, checksums, known)
        return replace(self, checksum=settle_column(found, self.shape))

    def pruned(self) -> ChunkManifest:
        """Return the manifest with only those files in its table that a chunk lies in."""
        file = compact(self.file)
        used = distinct(file[file >= 0], len(self.files))
        if used.size == len(self.files):
            return self
        table = np.full(len(self.files) + 2, MISSING, np.int32)
        table[used] = np.arange(used.size)
        table[-2:] = INLINE, MISSING
        kept = tuple(map(self.files.__getitem__, used.tolist()))
        return replace(self, files=kept, file=take_compact(self.file, lambda column: table[column]))

    def with_pipelines(self, numbers: Sequence[int]) -> ChunkManifest:
        """Renumber the pipelines: number ``i`` becomes ``numbers[i]``."""
        if list(numbers) == list(range(len(numbers))):
            return self
        table = np.asarray(numbers, np.uint16)
        return replace(self, pipeline=take_compact(self.pipeline, lambda c: table[c]))

    def used_pipelines(self, count: int) -> Ints:
        """Return the numbers of the pipelines that chunks have, or may have, out of ``count``."""
        return np.unique(compact(self.pipeline))

    def same(self, other: ChunkManifest) -> bool:
        """Say whether both refer to the same bytes, chunk by chunk, through the same tables."""
        return self is other or (
            self.shape == other.shape
            and self.files == other.files
            and self.inline == other.inline
            and all(np.array_equal(getattr(self, n), getattr(other, n)) for n in COLUMNS)
        )

    def _map(self, change: Callable[[Column], Column]) -> ChunkManifest:
        columns: dict[str, Any] = {name: change(getattr(self, name)) for name in COLUMNS}
        return replace(self, **columns)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what stands behind broadcast axes once, in few bytes."""
        columns = {name: compact(getattr(self, name)) for name in COLUMNS}
        packed = {name: pack(column) for name, column in columns.items() if name != "offset"}
        packed["offset"] = pack(columns["offset"], columns["length"])
        files = pack_table(self.files)
        return {"files": files, "inline": self.inline, "shape": self.shape} | packed

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        object.__setattr__(self, "files", unpack_table(state["files"]))
        object.__setattr__(self, "inline", state["inline"])
        for name, kind in COLUMNS.items():
            if isinstance(state[name], int):
                column = constant_column(name, state[name], state["shape"])
            else:
                steps = unpack(state["length"]) if name == "offset" else None
                found = unpack(state[name], steps).astype(kind, copy=False)
                column = np.broadcast_to(found, state["shape"])
            object.__setattr__(self, name, column)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """Name the references for dask: equal ones alike, at the cost of the memory they take."""
        from dask.base import normalize_token

        columns = (narrow(compact(getattr(self, name))) for name in COLUMNS)
        return (
            "virtualds-references",
            self.shape,
            *map(normalize_token, (digest(self.files), self.inline, *columns)),
        )


def digest(files: Sequence[SourceFile]) -> tuple[str, list[Any]]:
    """Return what tells tables of files apart: a hash of names, and the few access options."""
    options: dict[StorageOptions | None, int] = {}
    lines = [repr((*f[:-1], options.setdefault(f.options, len(options)))) for f in files]
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text).hexdigest(), [*options]


def as_grid_column(name: str, value: Any, shape: tuple[int, ...]) -> Column:
    """Return a column over the grid, of integers that it can hold."""
    if type(value) is int:
        # too large a number is told of below
        with suppress(OverflowError):
            return constant_column(name, value, shape)
    return settle_column(_as_column(name, np.asarray(value)), shape)


@lru_cache(4096)
def constant_column(name: str, value: int, shape: tuple[int, ...]) -> Column:
    """Return a column of one value, which nobody can write to.

    It is what broadcasting returns, in a tenth of the time, and mostly the same for many files.
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
    """Give a column the shape of the grid, holding one that does not change as one number."""
    spread = np.broadcast_to(column, shape)
    if column.size and column.ndim and (column == column.flat[0]).all():
        return np.broadcast_to(column.reshape(-1)[0], shape)
    return spread


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


def check_references(manifest: References) -> None:
    """Refuse references that cannot be right, naming the first.

    Raises
    ------
    FormatError
        A reference is empty, negative, or reaches past the end of its file, or a checksum is
        neither 0 nor 2**32 + CRC-32.
    """
    if not _lies_in_one_file(manifest):
        _check_places(manifest)
    _check_checksums(compact(manifest.checksum))


def _lies_in_one_file(manifest: References) -> bool:
    """Say whether all chunks lie in the only file, and are none of them wrong."""
    file = compact(manifest.file)
    if file.size != 1 or file.flat[0] != 0 or len(manifest.files) != 1:
        return False
    offset, length = compact(manifest.offset), compact(manifest.length)
    size = manifest.files[0].size
    last = (2**62 if size is None else size) - length
    return bool(offset.min() >= 0 and length.min() > 0 and (offset <= last).all())


def _check_places(manifest: References) -> None:
    file, offset, length = (compact(getattr(manifest, n)) for n in ("file", "offset", "length"))
    if file.size and not INLINE <= int(file.min()) <= int(file.max()) < len(manifest.files):
        raise FormatError(
            f"ChunkManifest: file numbers {file.min()} to {file.max()} of {len(manifest.files)} "
            f"files; {MISSING} is a missing chunk, {INLINE} an inline one"
        )
    sizes = [f.size if f.size is not None else 2**62 for f in manifest.files]
    # negative codes count from the end; what is held inline is counted, not measured
    ends = np.array([*sizes, len(manifest.inline), 2**62])[file]
    inside = (offset >= 0) & np.where(
        file == INLINE, offset < ends, (length > 0) & (offset <= ends - length)
    )
    bad = ~inside & (file != MISSING)
    if bad.any():
        _refuse(manifest, tuple(int(i) for i in np.argwhere(bad)[0]))


def _check_checksums(column: npt.NDArray[Any]) -> None:
    if column.size == 1 and not column.flat[0]:
        return
    wrong = ~sound(column)
    if wrong.any():
        raise FormatError(
            f"chunk {tuple(np.argwhere(wrong)[0].tolist())}: {column[wrong][0]} is no checksum; "
            f"give 2**32 + CRC-32 of its bytes, or 0 for none"
        )


def _refuse(manifest: References, chunk_id: tuple[int, ...]) -> NoReturn:
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
        f"(size {source.size}) are no chunk; fetch the source again if it is truncated, or scan it "
        f"anew"
    )


def take_rows(column: Column, ids: Ints, axis: int) -> Column:
    """Take along an axis, leaving a broadcast axis broadcast."""
    if column.strides[axis] == 0 and column.shape[axis]:
        shape = (*column.shape[:axis], ids.size, *column.shape[axis + 1 :])
        return np.broadcast_to(column[(slice(None),) * axis + (slice(0, 1),)], shape)
    return column.take(ids, axis=axis)


def take_compact(column: Column, change: Callable[[Column], Column]) -> Column:
    """Change a column element by element at the cost of the memory it takes."""
    return np.broadcast_to(change(compact(column)), column.shape)


def renumber_files(file: Column, numbers: Sequence[int]) -> Column:
    """Return the column ``file`` where the files have other numbers."""
    # negative codes count from the end, so that they stand for themselves
    table = np.array([*numbers, INLINE, MISSING], np.int32)
    return take_compact(file, lambda column: table[column])


def concatenate_columns(parts: Sequence[Column], axis: int) -> Column:
    """Concatenate columns, keeping axes broadcast along which no part changes."""
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    fixed = [j != axis and all(part.strides[j] == 0 for part in parts) for j in range(len(shape))]
    key = tuple(slice(0, 1) if f else slice(None) for f in fixed)
    small = [part[key] for part in parts]
    if _is_constant(small, axis):
        first = small[0][(slice(None),) * axis + (slice(0, 1),)]
        return np.broadcast_to(first, shape)
    return np.broadcast_to(np.concatenate(small, axis=axis), shape)


def _is_constant(parts: Sequence[Column], axis: int) -> bool:
    """Say whether all parts repeat one and the same layer along ``axis``."""
    if not all(p.strides[axis] == 0 or p.shape[axis] == 1 for p in parts) or not parts[0].size:
        return False
    layer = (slice(None),) * axis + (0,)
    head = parts[0][layer]
    return all(np.array_equal(head, part[layer]) for part in parts[1:] if part.shape[axis])
