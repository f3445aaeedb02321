"""How the values of an HDF4 data set are stored: plain, in blocks, encoded, in chunks, elsewhere.

HDF Specification and Developer's Guide (HDF 4.2), section 10: linked blocks, external, compressed
and chunked elements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.bounds import check_table
from virtualds.chunks.axes import ChunkAxis, make_regular_axes
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.codec import Codec
from virtualds.codecs.hdf import BitField, RunLength, SkippingHuffman
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.codecs.zlib import Zlib
from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.hdf4.elements import (
    CHUNKED,
    CODE,
    COMPRESSED,
    DATA,
    ENCODED,
    EXTERNAL,
    IN_BLOCKS,
    Elements,
    Key,
    Pieces,
    decode_text,
    find_dtype,
    read_records,
    unpack,
)
from virtualds.parsers.hdf5.objects import find_referenced_file, list_beside
from virtualds.source_file import SourceFile
from virtualds.stores.store import Range

PLAIN, RUN_LENGTH, N_BIT, SKIPPING_HUFFMAN, DEFLATE, SZIP = 0, 1, 2, 3, 4, 5
"""Ways to encode (section 10.6)."""
OTHERS = {SZIP: "szip", 6: "JPEG", 7: "JPEG", 12: "IMCOMP"}
MOST_AXES = 32
"""Axes that a data set may have (MAX_VAR_DIMS)."""


@dataclass(frozen=True)
class Stored:
    """Where the bytes of an element lie, and how they are encoded."""

    file: SourceFile
    pieces: tuple[Range, ...]
    nbytes: int
    codecs: tuple[Codec, ...] = ()


def find_stored(elements: Elements, key: Key) -> Stored | None:
    """Return where the bytes of an element lie, None if they were never written.

    Raises
    ------
    FormatError
        The file is damaged.
    UnsupportedError
        Nothing here reads an element of this kind.
    """
    if key not in elements.descriptors:
        # what was never written has a descriptor, too
        raise FormatError(
            f"element {key} with its values is not there; the file is damaged, fetch it again"
        )
    place = elements.find(key)
    if place is None or not place.length:
        return None
    kind = elements.find_kind(key)
    if not place.is_extended:
        return Stored(elements.source, ((place.offset, place.length),), place.length)
    if kind == IN_BLOCKS:
        pieces = _join_neighbours(elements.list_blocks(key))
        length = sum(n for _, n in pieces)
        return Stored(elements.source, pieces, length) if length else None
    if kind == ENCODED:
        return _find_encoded(elements, key)
    if kind == EXTERNAL:
        return _find_external(elements, key)
    raise UnsupportedError(
        f"its values are an extended element of kind {kind}, which is not read; read it with pyhdf"
    )


def _join_neighbours(pieces: list[Range]) -> tuple[Range, ...]:
    """Return ranges, those that follow each other as one."""
    found: list[Range] = []
    for offset, length in pieces:
        if found and sum(found[-1]) == offset:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((offset, length))
    return tuple(found)


def _find_encoded(elements: Elements, key: Key) -> Stored | None:
    header = elements.read_raw(key)
    _, _, length, ref, _, coder = unpack(">HHIHHH", header)
    if elements.find_kind((COMPRESSED, ref)) not in (0, IN_BLOCKS):
        raise FormatError(
            f"element {key} is encoded several times over; the file is damaged, fetch it again"
        )
    found = find_stored(elements, (COMPRESSED, ref))
    if found is None:
        if length:
            raise FormatError(
                f"none of its {length} bytes are there; the file is damaged, fetch it again"
            )
        return None
    return replace(found, nbytes=length, codecs=_find_codecs(coder, header[14:]))


def _find_codecs(coder: int, how: bytes) -> tuple[Codec, ...]:
    if coder == PLAIN:
        return ()
    if coder == DEFLATE:
        return (Zlib(*unpack(">H", how)),)
    if coder == RUN_LENGTH:
        return (RunLength(),)
    try:
        if coder == SKIPPING_HUFFMAN:
            return (SkippingHuffman(*unpack(">I", how)),)
        if coder == N_BIT:
            kind, extends, fills, first, count = unpack(">iHHii", how)
            size = find_dtype(kind & CODE).itemsize
            return (BitField(size, first, count, bool(extends), bool(fills)),)
    except ValueError as error:
        raise FormatError(f"{error}; the file is damaged, fetch it again") from error
    raise UnsupportedError(
        f"its values are compressed by {OTHERS.get(coder, f'method {coder}')}, which nothing here "
        f"decodes; read it with the HDF4 library, or leave it out with drop_variables or "
        f"on_error='skip'"
    )


def _find_external(elements: Elements, key: Key) -> Stored:
    """Return the values in a file beside this one (section 10.4)."""
    data = elements.read_raw(key)
    _, length, offset, count = unpack(">HIII", data)
    name = decode_text(data[14 : 14 + count])
    file = find_referenced_file(name, elements.source, (list_beside,))
    if file.size is not None and offset + length > file.size:
        raise FormatError(
            f"{file.url}: it has {file.size} bytes, and {elements.source.url} needs "
            f"{offset + length} of it; fetch it again"
        )
    return Stored(file, ((offset, length),), length)


# ---------------------------------------------------------------------- arrays


@dataclass(frozen=True)
class Wanted:
    """The array that a data set is: its reference number, shape, type and fill value.

    ``fill`` is None where nobody knows what the library reads where nothing was written.
    """

    ref: int | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: bytes | None

    @property
    def key(self) -> Key:
        """The element with the values."""
        return DATA, self.ref or 0

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return prod(self.shape) * self.dtype.itemsize

    def pipeline(self, codecs: tuple[Codec, ...]) -> CodecPipeline:
        """Return how chunks become values."""
        return CodecPipeline(self.dtype, codecs, self.fill, tuple(range(len(self.shape))))

    def build(
        self, axes: tuple[ChunkAxis, ...], manifest: ChunkManifest, codecs: tuple[Codec, ...]
    ) -> ManifestArray:
        """Return the array of some chunks.

        Raises
        ------
        UnsupportedError
            A chunk was never written, and nobody knows what the library reads there.
        """
        if self.fill is None and (manifest.file == MISSING).any():
            raise UnsupportedError(
                f"a part of it was never written, and its _FillValue is shorter than a value "
                f"({self.dtype.itemsize} bytes); read it with pyhdf, or leave it out with "
                f"drop_variables or on_error='skip'"
            )
        fragment = Fragment.whole(axes, manifest)
        return ManifestArray.of_fragment(fragment, self.pipeline(codecs))


def measure(elements: Elements, ref: int | None) -> int:
    """Return how many bytes of values a data set has."""
    key = (DATA, ref or 0)
    if elements.find_kind(key) == CHUNKED:
        return _read_chunk_header(elements, key).nbytes
    stored = find_stored(elements, key) if ref is not None else None
    return 0 if stored is None else stored.nbytes


def build_array(elements: Elements, wanted: Wanted) -> ManifestArray | npt.NDArray[Any] | Pieces:
    """Return the values of a data set as references; where none can be, as what is read on demand.

    Raises
    ------
    FormatError
        The file is damaged, or lacks values.
    UnsupportedError
        Nothing here reads or decodes such values.
    """
    if wanted.ref is not None and elements.find_kind(wanted.key) == CHUNKED:
        return _build_chunks(elements, wanted)
    stored = find_stored(elements, wanted.key) if wanted.ref is not None and wanted.nbytes else None
    if stored is None:
        axes = make_regular_axes(wanted.shape, tuple(max(n, 1) for n in wanted.shape))
        grid = tuple(axis.nchunks for axis in axes)
        return wanted.build(axes, ChunkManifest.missing(grid), ())
    if stored.nbytes < wanted.nbytes:
        raise FormatError(
            f"it has {stored.nbytes} of {wanted.nbytes} bytes; the file is damaged or was not "
            f"written to its end, leave the variable out with drop_variables"
        )
    if not wanted.shape and stored.nbytes > wanted.nbytes:
        raise FormatError(
            f"it has no dimensions, and {stored.nbytes} bytes where one value has "
            f"{wanted.nbytes}; the file is damaged, fetch it again"
        )
    if len(stored.pieces) == 1:
        return _build_whole(wanted, stored)
    return _build_rows(wanted, stored)


def _build_whole(wanted: Wanted, stored: Stored) -> ManifestArray:
    """Return an array that is one chunk."""
    [(offset, length)] = stored.pieces
    length = length if stored.codecs else min(length, wanted.nbytes)
    axes = make_regular_axes(wanted.shape, wanted.shape)
    manifest = ChunkManifest.in_file((1,) * len(axes), stored.file, [offset], [length])
    return wanted.build(axes, manifest, stored.codecs)


def _build_rows(wanted: Wanted, stored: Stored) -> ManifestArray | Pieces:
    """Return an array in several pieces: each a chunk of some rows, if all are whole rows."""
    row = wanted.nbytes // prod(wanted.shape[:1])
    pieces, left = list[Range](), wanted.nbytes
    for offset, length in stored.pieces:
        if left > 0:
            pieces.append((offset, min(length, left)))
        left -= length
    if stored.codecs or not wanted.shape or any(length % row for _, length in pieces):
        return Pieces(
            stored.file, stored.pieces, stored.nbytes, wanted.shape, wanted.pipeline(stored.codecs)
        )
    offsets, lengths = map(list, zip(*pieces, strict=True))
    rows = np.array(lengths) // row
    axes = (
        ChunkAxis.from_slabs(rows, rows),
        *make_regular_axes(wanted.shape[1:], wanted.shape[1:]),
    )
    grid = (len(pieces), *(1,) * (len(wanted.shape) - 1))
    return wanted.build(axes, ChunkManifest.in_file(grid, stored.file, offsets, lengths), ())


# ---------------------------------------------------------------------- chunks


@dataclass(frozen=True)
class _ChunkHeader:
    """The description of a chunked element (section 10.7)."""

    nbytes: int
    table: int
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    fill: bytes


def _read_chunk_header(elements: Elements, key: Key) -> _ChunkHeader:
    data = elements.read_raw(key)
    _, _, version, _, length, of_chunk, size, _, table, _, _, rank = unpack(">HIBIIIIHHHHI", data)
    if version or not 1 <= rank <= MOST_AXES:
        raise FormatError(
            f"a chunked element of version {version} has {rank} axes; the file is damaged, fetch "
            f"it again"
        )
    axes = unpack(f">{3 * rank}I", data[35:])
    if (found := prod(axes[2::3])) != of_chunk:
        raise FormatError(
            f"chunks of {axes[2::3]} have {found} elements, not {of_chunk}; the file is damaged, "
            f"fetch it again"
        )
    rest = data[35 + 12 * rank :]
    (count,) = unpack(">I", rest)
    return _ChunkHeader(length * size, table, axes[1::3], axes[2::3], rest[4 : 4 + count])


def _build_chunks(elements: Elements, wanted: Wanted) -> ManifestArray:
    header = _read_chunk_header(elements, wanted.key)
    if header.shape != wanted.shape or 0 in header.chunks:
        raise FormatError(
            f"its shape is {wanted.shape}, and its chunks of {header.chunks} are those of "
            f"{header.shape}; the file is damaged, fetch it again"
        )
    axes = make_regular_axes(wanted.shape, header.chunks)
    grid = tuple(axis.nchunks for axis in axes)
    size = prod(header.chunks) * wanted.dtype.itemsize
    fill = header.fill if len(header.fill) == wanted.dtype.itemsize else wanted.fill
    wanted = replace(wanted, fill=fill)
    record = np.dtype([("origin", ">u4", (len(grid),)), ("tag", ">u2"), ("ref", ">u2")])
    rows = read_records(elements, header.table, record)
    if not rows.size:
        return wanted.build(axes, ChunkManifest.missing(grid), ())
    check_table(grid, rows.size, "its chunks")
    file, offset, length = (np.zeros(grid, np.int64) for _ in range(3))
    file[...] = MISSING
    codecs: tuple[Codec, ...] | None = None
    for origin, tag, ref in rows.tolist():
        place = tuple(origin)
        stored = find_stored(elements, (tag, ref))
        # chunks behind the end are left where a file was made smaller
        if stored is None or any(n >= most for n, most in zip(place, grid, strict=True)):
            continue
        _check_one_way(stored, elements.source, size, codecs)
        codecs = stored.codecs
        file[place] = 0
        [(offset[place], length[place])] = stored.pieces
    manifest = ChunkManifest.build(
        grid, files=(elements.source,), file=file, offset=offset, length=length
    )
    return wanted.build(axes, manifest, codecs or ())


def _check_one_way(
    stored: Stored, source: SourceFile, size: int, codecs: tuple[Codec, ...] | None
) -> None:
    """Refuse chunks that are not encoded as others are, or whose bytes no range of a file holds."""
    if stored.nbytes != size:
        raise FormatError(
            f"a chunk of {size} bytes has {stored.nbytes}; the file is damaged, fetch it again"
        )
    is_one_range = stored.file == source and len(stored.pieces) == 1
    if codecs not in (None, stored.codecs) or not is_one_range:
        raise UnsupportedError(
            "its chunks are encoded in several ways, or lie in linked blocks or in another file, "
            "which is not read; read it with pyhdf"
        )
