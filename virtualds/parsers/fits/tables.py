"""Tables of FITS files: a group for each table, a variable for each column.

FITS Standard 4.0, section 7. The columns are interleaved row by row. A wide column, or one of a
single row, has a chunk for each row. A narrow column has chunks of many rows, from which a codec
extracts its bytes. Variable-length arrays (section 7.3.5), whose rows contain their positions in
the heap, are one ragged array, with a variable that counts the elements of each row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, build_variable
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.codec import Codec
from virtualds.codecs.fits import ColumnBytes, Logicals, PaddedText, RowBits, SignFlip, TextNumbers
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import UnsupportedError, VirtualdsError, make_damage_error
from virtualds.parsers.fits.header import (
    AxisNames,
    HeaderDataUnit,
    check_unambiguous,
    make_hdu_error,
    select_attributes,
)
from virtualds.source_file import SourceFile

DESCRIPTOR_FORM = re.compile(r"[01]?([PQ])([LXBIJKAEDCM])")
"""Matches TFORM of variable-length arrays: the letters of the descriptors and the elements."""
DESCRIPTOR_DTYPES: dict[str, np.dtype[Any]] = {"P": np.dtype(">i4"), "Q": np.dtype(">i8")}
"""Dtypes of the two numbers of a descriptor: element count, and offset in the heap."""
MAX_ROW_BYTES = 2**28
"""Maximum bytes of rows to read for their descriptors."""


class ArrayLocations(NamedTuple):
    """The offsets of arrays in the file, in bytes, and their numbers of elements, by row."""

    offsets: Any
    counts: Any


def read_table_rows(hdu: HeaderDataUnit, file: BinaryIO) -> Any:
    """Return the bytes of a table, of shape (rows, bytes per row).

    Raises `FormatError` if the file has fewer rows, and `UnsupportedError` if there are too many to
    be read while a file is scanned.
    """
    rows, row = hdu.shape if len(hdu.shape) == 2 else (0, 0)
    if rows * row > MAX_ROW_BYTES:
        raise UnsupportedError(
            f"FITS part {hdu.number}: {rows * row} bytes of rows say where its arrays lie, more "
            f"than the {MAX_ROW_BYTES} that are read for that; read it with astropy, or leave it "
            "out with drop_variables or on_error='skip'"
        )
    file.seek(hdu.offset)
    data = file.read(rows * row)
    if len(data) < rows * row:
        raise make_hdu_error(hdu, "the file ends within its rows")
    return np.frombuffer(data, np.uint8).reshape(rows, row)


def locate_heap_arrays(
    hdu: HeaderDataUnit, rows: Any, start: int, descriptor_dtype: np.dtype[Any], itemsize: int
) -> ArrayLocations:
    """Return the locations of arrays whose descriptors begin at byte ``start`` of each row.

    Raises `FormatError` if an array is outside the heap.
    """
    pairs = np.ascontiguousarray(rows[:, start : start + 2 * descriptor_dtype.itemsize]).view(
        descriptor_dtype
    )
    counts, offsets = pairs.astype(np.int64).T
    heap = hdu.cards.get("THEAP", rows.size)
    if type(heap) is not int or heap < 0:
        raise make_hdu_error(hdu, f"THEAP is {heap!r}")
    # check the counts first, so that the multiplication does not overflow
    room = hdu.nbytes - heap
    is_inside = (counts >= 0) & (counts <= room) & (offsets >= 0) & (offsets <= room)
    if not (is_inside & (offsets + counts * itemsize * is_inside <= room) | (counts == 0)).all():
        raise make_hdu_error(hdu, f"an array lies outside the {room} bytes of its heap")
    return ArrayLocations(hdu.offset + heap + offsets, counts)


# ---------------------------------------------------------------------- columns

BINARY_FORM = re.compile(r"(\d*)([LXBIJKAEDCMPQ])(\d*)", re.IGNORECASE)
"""Matches TFORM of a binary table (section 7.3.1): repeat count, type, and additional text."""
TEXT_FORM = re.compile(r"([AIJFED])(\d+)(\.\d+)?", re.IGNORECASE)
"""Matches TFORM of an ASCII table (section 7.2.1): type, and number of characters."""
TDIM_VALUE = re.compile(r"\(\s*(\d+\s*(?:,\s*\d+\s*)*)\)")
"""Matches TDIM, the lengths of axes, the fastest first; as in astropy, any text may follow."""
DTYPES = {
    **{"L": "?", "X": "?", "B": ">u1", "I": ">i2", "J": ">i4", "K": ">i8"},
    **{"A": "S1", "E": ">f4", "D": ">f8", "C": ">c8", "M": ">c16", "P": ">i8", "Q": ">c16"},
}
"""Stored types by letter (table 18); for descriptors (P and Q), only the size is right."""
UNSIGNED = {("I", 2**15): ">u2", ("J", 2**31): ">u4", ("K", 2**63): ">u8"}
"""Types of integers with an offset of TZERO, by letter and TZERO (table 19)."""
COLUMN_KEYWORD = re.compile(r"(T[A-Z]+?)(\d+)")
"""Matches keywords of one column: a name, and the number of the column."""
STRUCTURE_KEYWORDS = re.compile(
    rf"XTENSION|BITPIX|NAXIS[12]?|PCOUNT|GCOUNT|TFIELDS|THEAP|{COLUMN_KEYWORD.pattern}"
)
"""Matches keywords that are not attributes of the whole table."""
STORAGE_KEYWORDS = {"TFORM", "TTYPE", "TBCOL", "TDIM", "TSCAL", "TZERO", "TNULL", "TUNIT"}
"""Keywords of columns that do not become attributes of the same name."""
MAX_COLUMNS = 999
"""Largest value of TFIELDS."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    start, width : int
        Its offset in a row and its width, in bytes.
    shape : tuple of int
        Shape of its values in one row.
    dtype : numpy dtype
    codecs : tuple of Codec
        The codecs of its bytes.
    attributes : dict
    """

    start: int
    width: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    codecs: tuple[Codec, ...] = ()
    attributes: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class VariableLengthColumn:
    """A column of variable-length arrays, whose values are in the heap.

    Parameters
    ----------
    start : int
        The offset of its descriptors in a row, in bytes.
    descriptor_dtype : numpy dtype
        The dtype of the two numbers of a descriptor.
    values : Column
        The description of one element.
    """

    start: int
    descriptor_dtype: np.dtype[Any]
    values: Column


ASCII_TO_UNICODE = {"id": "astype", "encode_dtype": "|u1", "decode_dtype": "<u4"}
"""Configuration of the codec that converts ASCII characters to numpy strings."""
DECODED_ELEMENTS = {
    "L": Column(0, 1, (), np.dtype("?"), (Logicals(has_ones=True),)),
    "A": Column(0, 1, (), np.dtype("<U1"), (codec_from_zarr_v2(ASCII_TO_UNICODE),)),
}
"""Columns of elements of variable-length arrays that need a codec, by letter."""


class ColumnStart(NamedTuple):
    """The start of a column of a binary table in a row, and its TFORM."""

    start: int
    form: str


def find_column_start(hdu: HeaderDataUnit, column_name: str) -> ColumnStart | None:
    """Return the position of a column, or None if a binary table has no such column."""
    start, count = 0, hdu.cards.get("TFIELDS")
    for number in range(1, (count if type(count) is int else 0) + 1):
        form = str(hdu.cards.get(f"TFORM{number}", "")).strip()
        if str(hdu.cards.get(f"TTYPE{number}", "")).strip() == column_name:
            return ColumnStart(start, form)
        if (match := BINARY_FORM.match(form)) is None:
            raise make_hdu_error(hdu, f"TFORM{number} is {form!r}")
        start += _count_bytes(match)
    return None


def find_columns(
    hdu: HeaderDataUnit, source: SourceFile
) -> Iterator[tuple[str, Column | VariableLengthColumn | VirtualdsError]]:
    """Yield the name of each column, and the column or the error of reading it.

    Raises `FormatError` if the header lacks the positions of columns, or the file is truncated.
    """
    check_unambiguous(hdu)
    rows, row = hdu.shape if len(hdu.shape) == 2 else (0, 0)
    count = hdu.cards.get("TFIELDS")
    if len(hdu.shape) != 2 or type(count) is not int or not 0 <= count <= MAX_COLUMNS:
        raise make_hdu_error(hdu, f"NAXIS is {len(hdu.shape)} and TFIELDS is {count!r}")
    if source.size is not None and hdu.offset + rows * row > source.size:
        raise make_hdu_error(hdu, f"its rows reach past the {source.size} bytes of the file")
    start, used_names = 0, set[str]()
    for number in range(1, count + 1):
        name = str(hdu.cards.get(f"TTYPE{number}", "")).strip().replace("/", "_")
        name = name or f"col{number}"
        name = name if name not in used_names else f"{name}_col{number}"
        used_names.add(name)
        start, column = _make_column(hdu, number, start, row)
        yield name, column
    if count and hdu.kind != "TABLE" and start != row:
        # CFITSIO reports an error as well; astropy assumes that rows end with the columns
        raise make_hdu_error(hdu, f"its columns have {start} bytes of a row, and NAXIS1 is {row}")


def _make_column(
    hdu: HeaderDataUnit, number: int, start: int, row: int
) -> tuple[int, Column | VariableLengthColumn | VirtualdsError]:
    """Return the start of the next column, and this column or the error of reading it."""
    form = str(hdu.cards.get(f"TFORM{number}", "")).strip()
    is_text = hdu.kind == "TABLE"
    match = (TEXT_FORM if is_text else BINARY_FORM).match(form)
    if match is None:
        raise make_hdu_error(hdu, f"TFORM{number} is {form!r}")
    if is_text:
        start = hdu.cards.get(f"TBCOL{number}", 0)
        if type(start) is not int or start < 1 or not int(match[2]):
            raise make_hdu_error(hdu, f"TBCOL{number} is {start!r}, TFORM{number} is {form!r}")
        column = _make_text_column(match, start - 1, hdu.cards.get(f"TNULL{number}"))
        next_start = 0
    else:
        column = _make_binary_column(match, start, hdu.cards.get(f"TDIM{number}"))
        next_start = start + _count_bytes(match)
    if column.start + column.width > row or next_start > row:
        raise make_hdu_error(hdu, f"column {number} reaches past the {row} bytes of a row")
    letter = match[1 if is_text else 2].upper()
    try:
        if letter in "PQ" and not is_text:
            return next_start, _make_variable_length_column(hdu, number, column.start, form)
        return next_start, _scale_column(column, letter, number, hdu.cards)
    except VirtualdsError as error:
        return next_start, error


def _make_variable_length_column(
    hdu: HeaderDataUnit, number: int, start: int, form: str
) -> VariableLengthColumn:
    """Return a column of variable-length arrays."""
    match = DESCRIPTOR_FORM.match(form.upper())
    if match is None or match[2] == "X" or form[:1] == "0":
        raise UnsupportedError(
            f"FITS part {hdu.number}: it has variable-length arrays ({form}) that are not read "
            f"here; read it with astropy, or leave it out with drop_variables or on_error='skip'"
        )
    stored = np.dtype(DTYPES[match[2]])
    element = DECODED_ELEMENTS.get(match[2], Column(0, stored.itemsize, (), stored))
    values = _scale_column(element, match[2], number, hdu.cards)
    if (lengths := hdu.cards.get(f"TDIM{number}")) is not None:
        values = replace(values, attributes={**(values.attributes or {}), "TDIM": lengths})
    return VariableLengthColumn(start, DESCRIPTOR_DTYPES[match[1]], values)


def _make_text_column(match: re.Match[str], start: int, null: Any) -> Column:
    """Return a column of an ASCII table, in the dtype that astropy returns."""
    letter, width = match[1].upper(), int(match[2])
    if letter == "A":
        return Column(start, width, (), np.dtype(f"<U{max(width, 1)}"), (PaddedText(width),))
    integer = "<i2" if width <= 4 else "<i4" if width <= 9 else "<i8"
    dtype = {"I": integer, "J": "<i8"}.get(letter, "<f8")
    codec = TextNumbers(width, dtype, "" if null is None else str(null))
    fills = letter in "IJ" and codec.missing_value
    fill_attributes = {"_FillValue": np.dtype(dtype).type(codec.missing_value)} if fills else {}
    return Column(start, width, (), np.dtype(dtype), (codec,), fill_attributes)


def _count_bytes(match: re.Match[str]) -> int:
    """Return the number of bytes per row of a binary column."""
    repeat, letter = _parse_repeat(match), match[2].upper()
    return -(-repeat // 8) if letter == "X" else repeat * np.dtype(DTYPES[letter]).itemsize


def _parse_repeat(match: re.Match[str]) -> int:
    # many writers put the length of a string after the letter, as in ASCII tables
    is_swapped = match[2].upper() == "A" and not match[1] and match[3]
    return int(match[3]) if is_swapped else int(match[1] or 1)


def _make_binary_column(match: re.Match[str], start: int, lengths: Any) -> Column:
    """Return a column of a binary table, without its scaling."""
    repeat, letter, width = _parse_repeat(match), match[2].upper(), _count_bytes(match)
    dtype = np.dtype(DTYPES[letter])
    shape: tuple[int, ...] = () if repeat == 1 and letter != "X" else (repeat,)
    tdim = TDIM_VALUE.match(lengths) if isinstance(lengths, str) and letter != "X" else None
    # TDIM has the fastest axis first
    axes = () if tdim is None else tuple(map(int, tdim[1].split(",")))[::-1]
    # like astropy, ignore lengths that exceed the existing elements
    if axes and prod(axes) <= repeat:
        shape, width = axes, prod(axes) * dtype.itemsize
    if letter == "A":
        length = shape[-1] if shape else 1
        texts = shape[:-1]
        codecs = (PaddedText(length),) if length else ()
        return Column(start, width, texts, np.dtype(f"<U{max(length, 1)}"), codecs)
    if letter == "X":
        return Column(start, width, shape, dtype, (RowBits(repeat),) if repeat else ())
    return Column(start, width, shape, dtype, (Logicals(),) if letter == "L" else ())


def _scale_column(column: Column, letter: str, number: int, cards: Mapping[str, Any]) -> Column:
    """Return the column scaled according to the cards, in the precision of astropy."""
    attributes = dict(column.attributes or {})
    scale, zero, null = (cards.get(f"{name}{number}") for name in ("TSCAL", "TZERO", "TNULL"))
    scale, zero = 1 if scale is None else scale, 0 if zero is None else zero
    for name, value in ((f"TSCAL{number}", scale), (f"TZERO{number}", zero)):
        if type(value) not in (int, float):
            raise make_damage_error(f"{name} is {value!r}")
    if column.dtype.kind == "c" and (scale, zero) != (1, 0):
        raise UnsupportedError(
            f"FITS column {number}: its complex numbers are scaled (TSCAL{number}, TZERO{number}), "
            f"which astropy does only to their real parts; leave it out with drop_variables or "
            f"on_error='skip'"
        )
    is_number = column.dtype.kind in "iuf"
    dtype, codecs = column.dtype, column.codecs
    unsigned_dtype = UNSIGNED.get((letter, zero)) if scale == 1 and not codecs else None
    if unsigned_dtype is not None:
        dtype = np.dtype(unsigned_dtype)
        codecs = (SignFlip(dtype.itemsize),)
    elif is_number and (scale, zero) != (1, 0):
        attributes |= {"scale_factor": np.float64(scale)} if scale != 1 else {}
        attributes |= {"add_offset": np.float64(zero)} if zero != 0 else {}
    if type(null) is int and not codecs:
        native_dtype = dtype.newbyteorder("=")
        # floats cannot represent all 64-bit integers
        is_representable = dtype.kind in "iu" and np.iinfo(dtype).min <= null <= np.iinfo(dtype).max
        is_fill = is_representable and (dtype.itemsize < 8 or bool(attributes))
        attributes |= {"_FillValue": native_dtype.type(null)} if is_fill else {"TNULL": null}
    elif type(null) is int and unsigned_dtype is not None:
        attributes["TNULL"] = null
    if (unit := cards.get(f"TUNIT{number}")) is not None:
        attributes["units"] = unit
    # other cards of the column are attributes, whose names omit its number
    for name, value in cards.items():
        match = COLUMN_KEYWORD.fullmatch(name)
        if match and int(match[2]) == number and match[1] not in STORAGE_KEYWORDS:
            attributes[match[1]] = int(value) if isinstance(value, bool) else value
    return replace(column, dtype=dtype, codecs=codecs, attributes=attributes)


# ---------------------------------------------------------------------- tables

CHUNK_BYTES = 2**20
"""Size in bytes of the rows in a chunk."""
MIN_WIDE_COLUMN = 2**12
"""Minimum bytes per row of a column that gets a chunk per row."""


def read_table(
    hdu: HeaderDataUnit, file: BinaryIO, source: SourceFile, skipped: frozenset[str]
) -> ManifestGroup:
    """Return the columns of a table as variables; unreadable columns are in `problems`."""
    axes, read_rows = AxisNames("axis"), cache(partial(read_table_rows, hdu, file))
    variables: dict[str, ManifestVariable] = {}
    problems = dict[str, VirtualdsError]()
    try:
        columns = dict(find_columns(hdu, source))
    except VirtualdsError as error:
        # the positions of the columns are unknown
        columns = {"rows": error}
    for name, column in columns.items():
        if name in skipped:
            continue
        try:
            if isinstance(column, VirtualdsError):
                raise column
            if isinstance(column, VariableLengthColumn):
                variables |= _build_ragged(hdu, name, column, columns.keys(), read_rows(), source)
            else:
                array, dims = _build_array(hdu, column, source), axes.name(name, column.shape)
                variables[name] = build_variable(array, ("row", *dims), source, column.attributes)
        except VirtualdsError as error:
            error.locate(f"column {name!r}", source.url)
            problems[name] = error
            placeholder = ManifestArray.unreadable((), "V1", f"{error}")
            variables[name] = ManifestVariable((), placeholder, {})
    variables = {name: variable for name, variable in variables.items() if name not in skipped}
    attributes = select_attributes(hdu.cards, STRUCTURE_KEYWORDS)
    return ManifestGroup(variables, attributes, problems=problems)


def _build_ragged(
    hdu: HeaderDataUnit,
    name: str,
    column: VariableLengthColumn,
    names: Collection[str],
    rows: Any,
    source: SourceFile,
) -> dict[str, ManifestVariable]:
    """Return a contiguous ragged array: all elements, and the count per row (CF 9.3.3)."""
    width = column.values.width
    locations = locate_heap_arrays(hdu, rows, column.start, column.descriptor_dtype, width)
    array = _build_elements(locations, column.values, source)
    counts = Column(column.start, column.descriptor_dtype.itemsize, (), column.descriptor_dtype)
    count_name, dim = f"{name}_count", f"{name}_sample"
    while count_name in names:
        count_name += "_"
    attributes = {"long_name": f"elements of {name} in each row", "sample_dimension": dim}
    count = _build_array(hdu, counts, source)
    return {
        name: build_variable(array, (dim,), source, column.values.attributes),
        count_name: build_variable(count, ("row",), source, attributes),
    }


def _build_array(hdu: HeaderDataUnit, column: Column, source: SourceFile) -> ManifestArray:
    """Return the values of a column as references."""
    rows, row = hdu.shape
    begin = hdu.offset + column.start
    if not rows or not column.width:
        return _make_array(hdu, column, "", rows, 0, 0)
    if column.width == row and not column.codecs:
        return _make_array(hdu, column, source, rows, begin, rows * row)
    if column.width >= MIN_WIDE_COLUMN or rows == 1:
        offsets = begin + row * np.arange(rows, dtype=np.int64)
        return _make_array(hdu, column, source, 1, offsets, column.width)
    step = min(max(CHUNK_BYTES // row, 1), rows)
    first = np.arange(0, rows, step, dtype=np.int64)
    lengths = row * (np.minimum(step, rows - first) - 1) + column.width
    codecs = (*column.codecs, ColumnBytes(row, column.width))
    column = replace(column, codecs=codecs)
    return _make_array(hdu, column, source, step, begin + row * first, lengths)


def _build_elements(locations: ArrayLocations, column: Column, source: SourceFile) -> ManifestArray:
    """Return all elements of variable-length arrays, in the order of rows.

    Consecutive arrays are one chunk.
    """
    is_nonempty = locations.counts > 0
    offsets, counts = locations.offsets[is_nonempty], locations.counts[is_nonempty]
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
    return ManifestArray.from_fragment(Fragment.whole((axis,), manifest), pipeline)


def _make_array(
    hdu: HeaderDataUnit,
    column: Column,
    source: SourceFile | str,
    step: int,
    offsets: Any,
    lengths: Any,
) -> ManifestArray:
    """Return an array with chunks of ``step`` rows, at one offset or at several."""
    shape = (hdu.shape[0], *column.shape)
    per_row = (slice(None), *(None for _ in column.shape))
    return ManifestArray.from_arrays(
        shape=shape,
        chunks=(max(step, 1), *(max(n, 1) for n in column.shape)),
        dtype=column.dtype,
        path=source,
        offsets=offsets[per_row] if np.ndim(offsets) else offsets,
        lengths=lengths[per_row] if np.ndim(lengths) else lengths,
        codecs=column.codecs,
    )
