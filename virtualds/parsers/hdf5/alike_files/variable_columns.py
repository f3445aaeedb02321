"""The variables of many files that match a blueprint: lengths, and where their chunks lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from virtualds.chunks.projection import Ints
from virtualds.parsers.hdf5.alike_files.blueprint import Match
from virtualds.parsers.hdf5.alike_files.known_structure import KnownStructure, KnownVariable
from virtualds.parsers.hdf5.alike_files.many_files import ManyFiles
from virtualds.parsers.hdf5.alike_files.stored_columns import StoredColumns
from virtualds.parsers.hdf5.chunk_indexes import read_indexes
from virtualds.parsers.hdf5.chunk_indexes.form import MASK_BYTES, ChunkRows, IndexForm
from virtualds.parsers.hdf5.dataset_facts import ADDRESS, CHUNK, DATA, LENGTH, SIZE
from virtualds.parsers.hdf5.structure.byte_rows import Bools, RowsError, is_defined, read_uints
from virtualds.parsers.hdf5.structure.layout import FILTERED_SINGLE, LayoutClass

LONGEST = 2**40
"""Most elements of a variable of a file that is read together with others."""


class FoundColumns(NamedTuple):
    """What was found in files that may match.

    Parameters
    ----------
    sound : bool array, shape (files,)
        Which files match in all respects.
    lengths : dict of str to int array
        By dimension.
    columns : dict of str to StoredColumns
        By variable; of files that do not match they have no chunks.
    """

    sound: Bools
    lengths: dict[str, Ints]
    columns: dict[str, StoredColumns]


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


def _read_lengths(known: KnownStructure, match: Match, sound: Bools) -> dict[str, Ints]:
    """Return how long each dimension is; files that contradict themselves do not match."""
    lengths: dict[str, Ints] = {}
    for (owner, axis), (dim, limit) in known.axes.items():
        found = _get_column(match, known, owner, LENGTH, axis)
        sound &= (found >= 0) & (found == lengths.setdefault(dim, found))
        if limit is not None:
            sound &= found <= limit
    return lengths


def _read_chunks(
    known: KnownStructure,
    match: Match,
    files: ManyFiles,
    shapes: dict[str, Ints],
    sound: Bools,
) -> dict[str, StoredColumns]:
    columns: dict[str, StoredColumns] = {}
    by_form: dict[IndexForm, list[str]] = {}
    for name, variable in known.variables.items():
        layout = variable.facts.layout
        if layout.kind == LayoutClass.CHUNKED:
            by_form.setdefault(IndexForm.of(variable.facts), []).append(name)
        elif layout.kind == LayoutClass.COMPACT:
            columns[name] = _read_compact(variable, known, match, shapes[name], sound)
        else:
            columns[name] = _read_contiguous(variable, known, match, files, shapes[name], sound)
    for form, names in by_form.items():
        columns |= _read_indexes(form, names, known, match, files, shapes, sound)
    return columns


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
    return StoredColumns(None, shape, owner, place, address[owner], length[owner], inline)


def _read_indexes(
    form: IndexForm,
    names: list[str],
    known: KnownStructure,
    match: Match,
    files: ManyFiles,
    shapes: dict[str, Ints],
    sound: Bools,
) -> dict[str, StoredColumns]:
    """Read the indexes of all variables of one form in all files that match so far."""
    which, rank = np.flatnonzero(sound), len(form.chunks)
    variables = [known.variables[name] for name in names]
    root = [_get_column(match, known, v.owner, ADDRESS)[which] for v in variables]
    shape = [shapes[name][which, :rank] for name in names]
    single = [_read_single(v, known, match, form)[:, which] for v in variables]
    length, mask = np.concatenate(single, axis=1)
    found = read_indexes(
        files,
        form,
        np.tile(which, len(names)),
        np.concatenate(root),
        np.concatenate(shape),
        length,
        mask,
    )
    sound[which[found.owner[found.mask != 0] % len(which)]] = False
    columns = {}
    for number, (name, variable) in enumerate(zip(names, variables, strict=True)):
        if variable.facts.filters and not variable.facts.layout.is_filtering_edges:
            sound &= (shapes[name][:, :rank] % np.array(form.chunks) == 0).all(axis=1)
        rows = slice(*np.searchsorted(found.owner, len(which) * np.array([number, number + 1])))
        columns[name] = _select_chunks(found, rows, which, number, variable, shapes[name])
    return columns


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
    which: Ints,
    number: int,
    variable: KnownVariable,
    shape: Ints,
) -> StoredColumns:
    """Return the chunks of one variable; axes within elements are never cut."""
    owner = which[found.owner[rows] - number * len(which)]
    within = np.zeros((len(variable.within), len(owner)), np.int64)
    return StoredColumns(
        (*variable.facts.layout.dims[:-1], *variable.within),
        shape,
        owner,
        np.concatenate([found.place[:, rows], within]),
        found.address[rows],
        found.length[rows],
    )
