"""Tables of FITS files: a group for each, a variable for each column.

FITS Standard 4.0, section 7. The rows of all columns lie interleaved. A wide column, or one of a
single row, has a chunk for each row. A narrow column has chunks of many rows, from which a codec
takes its bytes. Arrays of varying length are one ragged array, with a variable that counts the
elements of each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, BinaryIO

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.codecs.table_columns import RowBytes
from virtualds.errors import VirtualdsError
from virtualds.parsers.fits.axes import AxisNames
from virtualds.parsers.fits.columns import PER_COLUMN, Column, VaryingColumn, find_columns
from virtualds.parsers.fits.header import HeaderDataUnit
from virtualds.parsers.fits.heap import Places, find_places, read_rows
from virtualds.source_file import SourceFile

PIECE = 2**20
"""Bytes of the rows of a chunk."""
WIDE = 2**12
"""Bytes of a column, in one row, that are worth a chunk of their own."""


def read_table(
    part: HeaderDataUnit,
    file: BinaryIO,
    source: SourceFile,
    encoding: Mapping[str, Any],
    skipped: frozenset[str],
) -> ManifestGroup:
    """Return the columns of a table as variables; those that cannot be read are its problems."""
    table = _Table(part, file, source, encoding)
    problems = dict[str, VirtualdsError]()
    try:
        columns = dict(find_columns(part, source))
    except VirtualdsError as error:
        # nobody can tell where any of its columns lies
        columns = {"rows": error}
    for name, column in columns.items():
        if name in skipped:
            continue
        try:
            table.take(name, column, frozenset(columns))
        except VirtualdsError as error:
            error.locate(f"column {name!r}", source.url)
            problems[name] = error
            hidden = ManifestArray.unreadable((), "V1", f"{error}")
            table.variables[name] = ManifestVariable((), hidden, {})
    variables = {name: made for name, made in table.variables.items() if name not in skipped}
    return ManifestGroup(variables, _select_attributes(part.cards), problems=problems)


class _Table:
    """The variables of a table, and what they share: dimensions, and rows that are read once."""

    def __init__(
        self,
        part: HeaderDataUnit,
        file: BinaryIO,
        source: SourceFile,
        encoding: Mapping[str, Any],
    ) -> None:
        self.variables: dict[str, ManifestVariable] = {}
        self._part, self._source, self._encoding = part, source, encoding
        self._axes = AxisNames("axis")
        self._read_rows = cache(partial(read_rows, part, file))

    def take(
        self, name: str, column: Column | VaryingColumn | VirtualdsError, taken: frozenset[str]
    ) -> None:
        """Add the variables of a column.

        Raises
        ------
        VirtualdsError
            It cannot be read.
        """
        if isinstance(column, VirtualdsError):
            raise column
        if isinstance(column, VaryingColumn):
            self._take_varying(name, column, taken)
            return
        array = _build_array(self._part, column, self._source)
        self._add(name, ("row", *self._axes.name(name, column.shape)), array, column.attributes)

    def _take_varying(self, name: str, column: VaryingColumn, taken: frozenset[str]) -> None:
        """Add a contiguous ragged array: all elements, and how many each row has (CF 9.3.3)."""
        width = column.values.width
        places = find_places(self._part, self._read_rows(), column.start, column.words, width)
        array = _build_samples(places, column.values, self._source)
        counts = Column(column.start, column.words.itemsize, (), column.words)
        of_rows = f"{name}_count"
        while of_rows in taken:
            of_rows += "_"
        dim = f"{name}_sample"
        self._add(name, (dim,), array, column.values.attributes)
        about = {"long_name": f"elements of {name} in each row", "sample_dimension": dim}
        self._add(of_rows, ("row",), _build_array(self._part, counts, self._source), about)

    def _add(
        self,
        name: str,
        dims: tuple[str, ...],
        array: ManifestArray,
        attributes: Mapping[str, Any] | None,
    ) -> None:
        own = {**self._encoding, "original_shape": array.shape, "dtype": array.dtype}
        self.variables[name] = ManifestVariable(dims, array, attributes or {}, own)


def _select_attributes(cards: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cards about the table as a whole."""
    structure = {"XTENSION", "BITPIX", "NAXIS", "NAXIS1", "NAXIS2", "PCOUNT", "GCOUNT", "TFIELDS"}
    return {
        name: int(value) if isinstance(value, bool) else value
        for name, value in cards.items()
        if name not in structure | {"THEAP"} and not PER_COLUMN.fullmatch(name)
    }


def _build_array(part: HeaderDataUnit, column: Column, source: SourceFile) -> ManifestArray:
    """Return the values of a column as references."""
    rows, row = part.shape
    begin = part.offset + column.start
    if not rows or not column.width:
        return _make_array(part, column, "", rows, 0, 0)
    if column.width == row and not column.codecs:
        return _make_array(part, column, source, rows, begin, rows * row)
    if column.width >= WIDE or rows == 1:
        offsets = begin + row * np.arange(rows, dtype=np.int64)
        return _make_array(part, column, source, 1, offsets, column.width)
    step = min(max(PIECE // row, 1), rows)
    first = np.arange(0, rows, step, dtype=np.int64)
    lengths = row * (np.minimum(step, rows - first) - 1) + column.width
    codecs = (*column.codecs, RowBytes(row, column.width))
    column = replace(column, codecs=codecs)
    return _make_array(part, column, source, step, begin + row * first, lengths)


def _build_samples(places: Places, column: Column, source: SourceFile) -> ManifestArray:
    """Return all elements of arrays in the heap, in the order of rows.

    Arrays that lie one behind the other are one chunk.
    """
    is_there = places.counts > 0
    offsets, counts = places.offsets[is_there], places.counts[is_there]
    follows = offsets[1:] == (offsets + counts * column.width)[:-1]
    begins = np.flatnonzero(np.concatenate([[True], ~follows])[: offsets.size])
    samples = np.add.reduceat(counts, begins) if begins.size else counts
    axis = ChunkAxis.from_slabs(samples, samples)
    manifest = ChunkManifest.build(
        (axis.nchunks,),
        files=(source,),
        offset=offsets[begins],
        length=samples * column.width,
    )
    pipeline = CodecPipeline(column.dtype, column.codecs, layout=(0,))
    return ManifestArray.of_fragment(Fragment.whole((axis,), manifest), pipeline)


def _make_array(
    part: HeaderDataUnit,
    column: Column,
    source: SourceFile | str,
    step: int,
    offsets: Any,
    lengths: Any,
) -> ManifestArray:
    """Return an array with chunks of ``step`` rows, at one or many places."""
    shape = (part.shape[0], *column.shape)
    in_rows = (slice(None), *(None for _ in column.shape))
    return ManifestArray.from_arrays(
        shape=shape,
        chunks=(max(step, 1), *(max(n, 1) for n in column.shape)),
        dtype=column.dtype,
        path=source,
        offsets=offsets[in_rows] if np.ndim(offsets) else offsets,
        lengths=lengths[in_rows] if np.ndim(lengths) else lengths,
        codecs=column.codecs,
    )
