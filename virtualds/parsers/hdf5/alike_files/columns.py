"""The variables of many files that match a blueprint: lengths, and where their chunks lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import concatenate
from virtualds.bounds import CHUNKS_PER_REFERENCE
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints, compute_strides
from virtualds.parsers.hdf5.alike_files.known_structure import (
    Dimension,
    KnownStructure,
    KnownVariable,
    Match,
    Variable,
)
from virtualds.parsers.hdf5.alike_files.many_files import ManyFiles
from virtualds.parsers.hdf5.chunk_indexes import read_indexes
from virtualds.parsers.hdf5.chunk_indexes.form import MASK_BYTES, ChunkRows, IndexForm
from virtualds.parsers.hdf5.objects import ADDRESS, CHUNK, CHUNK_LENGTH, DATA, LENGTH, LIMIT, SIZE
from virtualds.parsers.hdf5.structure.byte_rows import Bools, RowsError, is_defined, read_uints
from virtualds.parsers.hdf5.structure.messages import FILTERED_SINGLE, LayoutClass
from virtualds.source_file import SourceFile

MOST_MISSING = 10**4
"""Chunks of a file that may all be missing."""


@dataclass(frozen=True, eq=False)
class StoredColumns:
    """The chunks of one variable in many files.

    Parameters
    ----------
    chunks : int array, shape (files, axes)
        Elements of a chunk along each axis.
    shape : int array, shape (files, axes)
    owner : int array, shape (rows,)
        The number of the file of each chunk, in ascending order.
    place : int array, shape (axes, rows)
        Where each chunk begins in its file, in elements.
    address, length : int array, shape (rows,)
        Where its bytes lie.
    inline : tuple of bytes
        The elements themselves, of each file, where they lie in the metadata.
    """

    chunks: Ints
    shape: Ints
    owner: Ints
    place: Ints
    address: Ints
    length: Ints
    inline: tuple[bytes, ...] = ()

    def have_small_grids(self) -> npt.NDArray[np.bool_]:
        """Say which files may have a table of all chunks, with those that were never written."""
        # as floats, whose product does not overflow
        chunks = np.ceil(self.shape / self.chunks).prod(axis=1)
        references = np.bincount(self.owner, minlength=len(self.shape))
        small: npt.NDArray[np.bool_]
        small = chunks <= np.maximum(MOST_MISSING, CHUNKS_PER_REFERENCE * references)
        return small

    def take(self, places: Ints) -> StoredColumns:
        """Return the chunks of some files, in another order."""
        if len(places) == len(self.shape) and (places == np.arange(len(places))).all():
            return self
        rank = np.full(len(self.shape), -1)
        rank[places] = np.arange(len(places))
        owner = rank[self.owner]
        rows = np.flatnonzero(owner >= 0)
        rows = rows[np.argsort(owner[rows], kind="stable")]
        return StoredColumns(
            self.chunks[places],
            self.shape[places],
            owner[rows],
            self.place[:, rows],
            self.address[rows],
            self.length[rows],
            tuple(self.inline[n] for n in places.tolist()) if self.inline else (),
        )

    def get_values(
        self, heads: npt.NDArray[np.uint8], dtype: np.dtype[Any]
    ) -> list[npt.NDArray[Any]] | None:
        """Return the values in each file, if they lie in its first bytes without a codec.

        Parameters
        ----------
        heads : uint8 array, shape (files, bytes)
            The first bytes of each file.
        dtype : numpy dtype
            Of the stored values.

        Returns
        -------
        list of numpy.ndarray or None
            None if any has to be read: it lies elsewhere, or in several chunks.
        """
        count, rank = self.shape.shape
        alone = len(self.owner) == count and bool((self.owner == np.arange(count)).all())
        whole = rank == 1 or bool((self.shape == self.chunks).all())
        if self.inline or not alone or not whole:
            return None
        nbytes = self.shape.prod(axis=1) * dtype.itemsize
        if (self.address + nbytes > heads.shape[1]).any() or (nbytes > self.length).any():
            return None
        places = zip(
            heads, self.address.tolist(), nbytes.tolist(), self.shape.tolist(), strict=True
        )
        return [head[at : at + n].view(dtype).reshape(shape) for head, at, n, shape in places]

    def stack(self, sources: Sequence[SourceFile], first: ManifestArray) -> ManifestArray:
        """Return the variable of all files along a new first axis."""
        stacked = replace(
            self,
            chunks=np.insert(self.chunks, 0, 1, axis=1),
            shape=np.insert(self.shape, 0, 1, axis=1),
            place=np.insert(self.place, 0, 0, axis=0),
        )
        return stacked.join(sources, 0, first.insert_axis(0))

    def join(self, sources: Sequence[SourceFile], axis: int, first: ManifestArray) -> ManifestArray:
        """Return the variable of all files, one after the other along an axis.

        Parameters
        ----------
        sources : sequence of SourceFile
        axis : int
        first : ManifestArray
            The variable of the first file.
        """
        others = np.delete(self.chunks, axis, axis=1)
        cuts = np.flatnonzero((others[1:] != others[:-1]).any(axis=1)) + 1
        if not cuts.size:
            return self._join_alike(sources, axis, first)
        parts = []
        for start, stop in pairwise([0, *cuts.tolist(), len(self.shape)]):
            some = self.take(np.arange(start, stop))
            parts.append(some._join_alike(sources[start:stop], axis, first))
        return concatenate(parts, axis)

    def _join_alike(
        self, sources: Sequence[SourceFile], axis: int, first: ManifestArray
    ) -> ManifestArray:
        """Join files whose chunks have one length along all other axes."""
        lengths, chunk = self.shape[:, axis], self.chunks[:, axis]
        counts = -(-lengths // chunk)
        starts = np.cumsum(counts) - counts
        axes = [self._cut(other) for other in range(self.shape.shape[1])]
        axes[axis] = _cut_in_turn(lengths, chunk, counts)
        grid = tuple(one.nchunks for one in axes)
        flat = np.zeros(len(self.owner), np.int64)
        for other, stride in enumerate(compute_strides(grid)):
            at = self.place[other] // self.chunks[self.owner, other]
            flat += (at + starts[self.owner] if other == axis else at) * stride
        manifest = self._build_manifest(sources, grid, flat)
        fragment = Fragment.whole(tuple(axes), manifest)
        return ManifestArray.of_fragment(fragment, first.pipelines[0], first.name)

    def _cut(self, axis: int) -> ChunkAxis:
        """Return how an axis is cut that has one length in all files."""
        return ChunkAxis.regular(int(self.shape[0, axis]), int(self.chunks[0, axis]))

    def _build_manifest(
        self, sources: Sequence[SourceFile], grid: tuple[int, ...], flat: Ints
    ) -> ChunkManifest:
        is_whole = len(flat) == prod(grid) and bool((flat == np.arange(len(flat))).all())

        def spread(values: Ints, rest: int) -> Ints:
            if is_whole:
                return values.reshape(grid)
            column = np.full(prod(grid), rest, np.int64)
            column[flat] = values
            return column.reshape(grid)

        if self.inline:
            held = np.full_like(self.owner, INLINE)
            return ChunkManifest.build(
                grid,
                file=spread(held, MISSING),
                offset=spread(self.owner, 0),
                length=spread(self.length, 0),
                inline=self.inline,
            )
        return ChunkManifest.build(
            grid,
            files=sources,
            file=spread(self.owner, MISSING),
            offset=spread(self.address, 0),
            length=spread(self.length, 0),
        )


def _cut_in_turn(lengths: Ints, chunk: Ints, counts: Ints) -> ChunkAxis:
    """Return an axis along which files follow each other, each with chunks of its own."""
    encoded = np.repeat(chunk, counts)
    shown = encoded.copy()
    some = counts > 0
    last = np.cumsum(counts)[some] - 1
    shown[last] = (lengths - chunk * (counts - 1))[some]
    return ChunkAxis.from_slabs(shown, encoded)


UNLIMITED_AXIS = -1
"""The greatest length of an axis without one, in a column."""
LONGEST = 2**40
"""Most elements of a variable of a file that is read together with others."""


class FoundColumns(NamedTuple):
    """What was found in files that may match.

    Parameters
    ----------
    sound : bool array, shape (files,)
        Which files match in all respects.
    lengths : dict of Dimension to int array
    columns : dict of Variable to StoredColumns
        By variable; of files that do not match they have no chunks.
    """

    sound: Bools
    lengths: dict[Dimension, Ints]
    columns: dict[Variable, StoredColumns]


def read_columns(known: KnownStructure, match: Match, files: ManyFiles) -> FoundColumns | None:
    """Read where the chunks of all variables lie; None if no file matches.

    A file whose chunks cannot be read does not match.
    """
    sound = match.sound.copy()
    if not sound.any():
        return None
    shapes = {name: _read_shape(v, known, match) for name, v in known.variables.items()}
    lengths = _read_lengths(known, match, sound)
    for shape in shapes.values():
        sound &= shape.astype(float).prod(axis=1) <= LONGEST
    while True:
        try:
            columns = _read_chunks(known, match, files, shapes, sound)
        except RowsError as error:
            # each time there are fewer files left
            sound[list(error.files)] = False
            continue
        for found in columns.values():
            sound &= found.have_small_grids()
        return FoundColumns(sound, lengths, columns) if sound.any() else None


def _get_column(match: Match, known: KnownStructure, *key: object) -> Ints:
    slot = known.blueprint.notes.slots[key]
    return read_uints(match.get_column(slot))


def _read_shape(variable: KnownVariable, known: KnownStructure, match: Match) -> Ints:
    """Return the shape of a variable in each file."""
    count = len(match.sound)
    axes = range(len(variable.facts.space.limits))
    columns = [_get_column(match, known, variable.owner, LENGTH, axis) for axis in axes]
    columns += [np.full(count, n) for n in variable.within]
    return np.stack(columns, axis=1) if columns else np.zeros((count, 0), np.int64)


def _read_lengths(known: KnownStructure, match: Match, sound: Bools) -> dict[Dimension, Ints]:
    """Return how long each dimension is; files that contradict themselves do not match."""
    lengths: dict[Dimension, Ints] = {}
    for owner, axis in known.axes:
        found = _get_column(match, known, owner, LENGTH, axis)
        sound &= (found >= 0) & (found == lengths.setdefault(known.axes[owner, axis], found))
        if (owner, LIMIT, axis) in known.blueprint.notes.slots:
            sound &= found <= _get_column(match, known, owner, LIMIT, axis)
    return lengths


def _read_limits(variable: KnownVariable, known: KnownStructure, match: Match, shape: Ints) -> Ints:
    """Return the greatest length of each axis in each file, `UNLIMITED_AXIS` for none."""
    columns = []
    for axis, limit in enumerate(variable.facts.space.limits):
        if (variable.owner, LIMIT, axis) in known.blueprint.notes.slots:
            columns.append(_get_column(match, known, variable.owner, LIMIT, axis))
        else:
            columns.append(np.full(len(shape), UNLIMITED_AXIS) if limit is None else shape[:, axis])
    return np.stack(columns, axis=1) if columns else np.zeros((len(shape), 0), np.int64)


def _read_chunks(
    known: KnownStructure,
    match: Match,
    files: ManyFiles,
    shapes: dict[Variable, Ints],
    sound: Bools,
) -> dict[Variable, StoredColumns]:
    columns: dict[Variable, StoredColumns] = {}
    chunked: dict[Variable, Ints] = {}
    for name, variable in known.variables.items():
        layout = variable.facts.layout
        if layout.kind == LayoutClass.CHUNKED:
            chunked[name] = _read_chunk_lengths(variable, known, match, sound)
        elif layout.kind == LayoutClass.COMPACT:
            columns[name] = _read_compact(variable, known, match, shapes[name], sound)
        else:
            columns[name] = _read_contiguous(variable, known, match, files, shapes[name], sound)
    by_form: dict[IndexForm, list[tuple[Variable, Ints]]] = {}
    for name, chunks in chunked.items():
        variable = known.variables[name]
        limits = _read_limits(variable, known, match, shapes[name])
        for form, which in _split_by_form(variable, chunks, limits, sound):
            by_form.setdefault(form, []).append((name, which))
    parts: dict[Variable, list[StoredColumns]] = {name: [] for name in chunked}
    for form, members in by_form.items():
        for name, part in _read_indexes(form, members, known, match, files, shapes, chunked, sound):
            parts[name].append(part)
    return columns | {name: _merge(some) for name, some in parts.items() if some}


def _read_chunk_lengths(
    variable: KnownVariable, known: KnownStructure, match: Match, sound: Bools
) -> Ints:
    """Return the lengths of chunks in each file; those of files that do not match are not used."""
    axes = range(len(variable.facts.layout.dims) - 1)
    found = [_get_column(match, known, variable.owner, CHUNK_LENGTH, axis) for axis in axes]
    chunks = np.stack(found, axis=1) if found else np.zeros((len(sound), 0), np.int64)
    sound &= (chunks > 0).all(axis=1)
    return np.maximum(chunks, 1)


def _split_by_form(
    variable: KnownVariable, chunks: Ints, limits: Ints, sound: Bools
) -> Iterator[tuple[IndexForm, Ints]]:
    """Yield the files whose indexes have one form: lengths of chunks, and limits of axes."""
    which, form = np.flatnonzero(sound), IndexForm.of(variable.facts)
    rows = np.concatenate([chunks, limits], axis=1)[which]
    if (rows == rows[:1]).all():
        kinds, group = rows[:1], np.zeros(len(which), np.int64)
    else:
        kinds, group = np.unique(rows, axis=0, return_inverse=True)
    rank = chunks.shape[1]
    for number, kind in enumerate(kinds.tolist()):
        most = tuple(None if n == UNLIMITED_AXIS else n for n in kind[rank:])
        yield (
            replace(form, chunks=tuple(kind[:rank]), limits=most),
            which[group.ravel() == number],
        )


def _merge(parts: list[StoredColumns]) -> StoredColumns:
    """Return the chunks of all files, of which each part has those of some."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([part.owner for part in parts]), kind="stable")
    columns = zip(*((p.owner, p.place, p.address, p.length) for p in parts), strict=True)
    owner, place, address, length = (np.concatenate(some, axis=-1)[..., order] for some in columns)
    return StoredColumns(parts[0].chunks, parts[0].shape, owner, place, address, length)


def _count_bytes(variable: KnownVariable, shape: Ints) -> Ints:
    rank = len(variable.facts.space.limits)
    counted: Ints = shape[:, :rank].prod(axis=1) * variable.itemsize
    return counted


def _read_compact(
    variable: KnownVariable, known: KnownStructure, match: Match, shape: Ints, sound: Bools
) -> StoredColumns:
    slot = known.blueprint.notes.slots[variable.owner, DATA]
    nbytes = np.where(sound, _count_bytes(variable, shape), 0)
    sound &= nbytes <= slot.length
    parts = zip(match.get_column(slot), np.minimum(nbytes, slot.length).tolist(), strict=True)
    inline = tuple(row[:n].tobytes() for row, n in parts)
    return _as_one_chunk(shape, nbytes > 0, np.arange(len(shape)), nbytes, inline)


def _read_contiguous(
    variable: KnownVariable,
    known: KnownStructure,
    match: Match,
    files: ManyFiles,
    shape: Ints,
    sound: Bools,
) -> StoredColumns:
    address = _get_column(match, known, variable.owner, ADDRESS)
    nbytes = np.where(sound, _count_bytes(variable, shape), 0)
    there = is_defined(address, files.offset_size)
    if (variable.owner, SIZE) in known.blueprint.notes.slots:
        sound &= ~there | (_get_column(match, known, variable.owner, SIZE) >= nbytes)
    sound &= ~there | ((address >= 0) & (address <= files.ends - nbytes))
    return _as_one_chunk(shape, there & (nbytes > 0), address, nbytes)


def _as_one_chunk(
    shape: Ints, there: Bools, address: Ints, length: Ints, inline: tuple[bytes, ...] = ()
) -> StoredColumns:
    owner = np.flatnonzero(there)
    place = np.zeros((shape.shape[1], len(owner)), np.int64)
    chunks = np.maximum(shape, 1)
    return StoredColumns(chunks, shape, owner, place, address[owner], length[owner], inline)


def _read_indexes(
    form: IndexForm,
    members: list[tuple[Variable, Ints]],
    known: KnownStructure,
    match: Match,
    files: ManyFiles,
    shapes: dict[Variable, Ints],
    chunks: dict[Variable, Ints],
    sound: Bools,
) -> Iterator[tuple[Variable, StoredColumns]]:
    """Read the indexes of one form: of each variable that has some, in the files that have them."""
    rank = len(form.chunks)
    variables = [known.variables[name] for name, _ in members]
    which = [some for _, some in members]
    root = [
        _get_column(match, known, v.owner, ADDRESS)[some]
        for v, some in zip(variables, which, strict=True)
    ]
    shape = [shapes[name][some, :rank] for name, some in members]
    single = [
        _read_single(v, known, match, form)[:, some]
        for v, some in zip(variables, which, strict=True)
    ]
    length, mask = np.concatenate(single, axis=1)
    file = np.concatenate(which)
    found = read_indexes(
        files, form, file, np.concatenate(root), np.concatenate(shape), length, mask
    )
    sound[file[found.owner[found.mask != 0]]] = False
    ends = np.cumsum([len(some) for some in which])
    begins = np.searchsorted(found.owner, ends - [len(some) for some in which])
    stops = np.searchsorted(found.owner, ends)
    for (name, some), variable, begin, stop in zip(members, variables, begins, stops, strict=True):
        if variable.facts.filters and not variable.facts.layout.is_filtering_edges:
            whole = (shapes[name][some, :rank] % np.array(form.chunks) == 0).all(axis=1)
            sound[some[~whole]] = False
        rows = slice(int(begin), int(stop))
        yield name, _select_chunks(found, rows, file, variable, shapes[name], chunks[name])


def _read_single(
    variable: KnownVariable, known: KnownStructure, match: Match, form: IndexForm
) -> Ints:
    """Return bytes and filter mask of single chunks."""
    count = len(match.sound)
    if not variable.facts.layout.flags & FILTERED_SINGLE:
        return np.stack([np.full(count, form.nbytes), np.zeros(count, np.int64)])
    slot = known.blueprint.notes.slots[variable.owner, CHUNK]
    raw = match.get_column(slot)
    return np.stack([read_uints(raw[:, :-MASK_BYTES]), read_uints(raw[:, -MASK_BYTES:])])


def _select_chunks(
    found: ChunkRows,
    rows: slice,
    file: Ints,
    variable: KnownVariable,
    shape: Ints,
    chunks: Ints,
) -> StoredColumns:
    """Return the chunks of one variable; axes within elements are never cut."""
    owner = file[found.owner[rows]]
    within = np.zeros((len(variable.within), len(owner)), np.int64)
    axes = np.broadcast_to(np.array(variable.within, np.int64), (len(shape), len(variable.within)))
    return StoredColumns(
        np.concatenate([chunks, axes], axis=1),
        shape,
        owner,
        np.concatenate([found.place[:, rows], within]),
        found.address[rows],
        found.length[rows],
    )
