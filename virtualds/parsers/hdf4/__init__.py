"""Parser of HDF4 files: scientific data sets, with their dimensions and attributes.

Raster images, palettes, annotations and separate tables (Vdatas) are ignored, since they are not
arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, describe_left_out
from virtualds.arrays.parser import (
    NativeReader,
    NativeReadError,
    NativeRegion,
    Parser,
    ReadNative,
    select_region,
)
from virtualds.bounds import check_table
from virtualds.chunks.axes import ChunkAxis, make_regular_axes
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.codec import Codec
from virtualds.codecs.hdf import BitField, RunLength, SkippingHuffman
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.codecs.zlib import Zlib
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, make_damage_error
from virtualds.parsers.hdf4.datasets import (
    DatasetGroup,
    ScientificDataset,
    convert_to_cf,
    group_by_structure,
    make_unique_name,
    read_datasets,
    read_old_datasets,
)
from virtualds.parsers.hdf4.elements import (
    CHUNKED,
    CODE_MASK,
    COMPRESSED,
    DATA,
    ENCODED,
    EXTERNAL,
    LINKED_BLOCKS,
    MAGIC,
    MAX_AXES,
    Elements,
    Key,
    PiecewiseArray,
    decode_text,
    find_dtype,
    open_elements,
    read_records,
    unpack,
)
from virtualds.parsers.hdf5.objects import find_referenced_file, list_beside
from virtualds.source_file import SourceFile, path_or_url
from virtualds.stores.scan_cache import describe_damage
from virtualds.stores.store import Range

# ---------------------------------------------------------------------- storage of values
# Values are contiguous, in linked blocks, in other files, compressed, or in chunks (HDF
# Specification and Developer's Guide, HDF 4.2, section 10).


PLAIN, RUN_LENGTH, N_BIT, SKIPPING_HUFFMAN, DEFLATE, SZIP = 0, 1, 2, 3, 4, 5
"""Encodings (section 10.6)."""
UNSUPPORTED_METHODS = {SZIP: "szip", 6: "JPEG", 7: "JPEG", 12: "IMCOMP"}


@dataclass(frozen=True)
class StoredElement:
    """The location and encoding of the bytes of an element."""

    file: SourceFile
    pieces: tuple[Range, ...]
    nbytes: int
    codecs: tuple[Codec, ...] = ()


def find_stored_element(elements: Elements, key: Key) -> StoredElement | None:
    """Return the location of the bytes of an element, or None if they were never written."""
    if key not in elements.descriptors:
        # even elements that were never written have a descriptor
        raise make_damage_error(f"element {key} with its values is missing")
    descriptor = elements.find(key)
    if descriptor is None or not descriptor.length:
        return None
    kind = elements.find_kind(key)
    if not descriptor.is_extended:
        return StoredElement(
            elements.source, ((descriptor.offset, descriptor.length),), descriptor.length
        )
    if kind == LINKED_BLOCKS:
        pieces: list[Range] = []
        for offset, length in elements.list_blocks(key):
            if pieces and sum(pieces[-1]) == offset:
                # consecutive blocks are one piece
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + length)
            else:
                pieces.append((offset, length))
        total = sum(n for _, n in pieces)
        return StoredElement(elements.source, tuple(pieces), total) if total else None
    if kind == ENCODED:
        return _find_encoded_element(elements, key)
    if kind == EXTERNAL:
        return _find_external_element(elements, key)
    raise UnsupportedError(
        f"its values are an extended element of kind {kind}, which is not read; read it with pyhdf"
    )


def _find_encoded_element(elements: Elements, key: Key) -> StoredElement | None:
    header = elements.read_raw(key)
    _, _, length, ref, _, coder = unpack(">HHIHHH", header)
    if elements.find_kind((COMPRESSED, ref)) not in (0, LINKED_BLOCKS):
        raise make_damage_error(f"element {key} is encoded several times over")
    element = find_stored_element(elements, (COMPRESSED, ref))
    if element is None:
        if length:
            raise make_damage_error(f"none of its {length} bytes exist")
        return None
    return replace(element, nbytes=length, codecs=_find_codecs(coder, header[14:]))


def _find_codecs(coder: int, parameters: bytes) -> tuple[Codec, ...]:
    if coder == PLAIN:
        return ()
    if coder == DEFLATE:
        return (Zlib(*unpack(">H", parameters)),)
    if coder == RUN_LENGTH:
        return (RunLength(),)
    try:
        if coder == SKIPPING_HUFFMAN:
            return (SkippingHuffman(*unpack(">I", parameters)),)
        if coder == N_BIT:
            type_code, extends, fills, first, count = unpack(">iHHii", parameters)
            size = find_dtype(type_code & CODE_MASK).itemsize
            return (BitField(size, first, count, bool(extends), bool(fills)),)
    except ValueError as error:
        raise make_damage_error(f"{error}") from error
    raise UnsupportedError(
        f"its values are compressed by {UNSUPPORTED_METHODS.get(coder, f'method {coder}')}, which "
        "virtualds does not decode; read it with the HDF4 library, or leave it out with "
        "drop_variables or on_error='skip'"
    )


def _find_external_element(elements: Elements, key: Key) -> StoredElement:
    """Return the location of values in another file (section 10.4)."""
    data = elements.read_raw(key)
    _, length, offset, count = unpack(">HIII", data)
    name = decode_text(data[14 : 14 + count])
    file = find_referenced_file(name, elements.source, (list_beside,))
    if file.size is not None and offset + length > file.size:
        raise FormatError(
            f"{file.url}: it has {file.size} bytes, and {elements.source.url} needs "
            f"{offset + length} of it; fetch it again"
        )
    return StoredElement(file, ((offset, length),), length)


# ---------------------------------------------------------------------- arrays


@dataclass(frozen=True)
class ArraySpec:
    """The array of a data set: its reference number, shape, dtype and fill value.

    ``fill`` is None if the value that the library returns for unwritten elements is unknown.
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
        """The size in bytes of the values."""
        return prod(self.shape) * self.dtype.itemsize

    def make_pipeline(self, codecs: tuple[Codec, ...]) -> CodecPipeline:
        """Return the codec pipeline of the chunks."""
        return CodecPipeline(self.dtype, codecs, self.fill, tuple(range(len(self.shape))))

    def build(
        self, axes: tuple[ChunkAxis, ...], manifest: ChunkManifest, codecs: tuple[Codec, ...]
    ) -> ManifestArray:
        """Build the array from its chunks."""
        if self.fill is None and (manifest.file == MISSING).any():
            raise UnsupportedError(
                f"a part of it was never written, and its _FillValue is shorter than a value "
                f"({self.dtype.itemsize} bytes); read it with pyhdf, or leave it out with "
                f"drop_variables or on_error='skip'"
            )
        fragment = Fragment.whole(axes, manifest)
        return ManifestArray.from_fragment(fragment, self.make_pipeline(codecs))


def build_array(
    elements: Elements, spec: ArraySpec
) -> ManifestArray | npt.NDArray[Any] | PiecewiseArray:
    """Return the values of a data set as references, or as an array that reads on demand."""
    if spec.ref is not None and elements.find_kind(spec.key) == CHUNKED:
        return _build_chunked(elements, spec)
    stored = (
        find_stored_element(elements, spec.key) if spec.ref is not None and spec.nbytes else None
    )
    if stored is None:
        axes = make_regular_axes(spec.shape, tuple(max(n, 1) for n in spec.shape))
        grid = tuple(axis.nchunks for axis in axes)
        return spec.build(axes, ChunkManifest.missing(grid), ())
    if stored.nbytes < spec.nbytes:
        raise FormatError(
            f"it has {stored.nbytes} of {spec.nbytes} bytes; the file is damaged or was not "
            f"written to its end, leave the variable out with drop_variables"
        )
    if not spec.shape and stored.nbytes > spec.nbytes:
        raise make_damage_error(
            f"it has no dimensions, and {stored.nbytes} bytes where one value has {spec.nbytes}"
        )
    if len(stored.pieces) == 1:
        return _build_single_chunk(spec, stored)
    return _build_row_chunks(spec, stored)


def _build_single_chunk(spec: ArraySpec, stored: StoredElement) -> ManifestArray:
    """Return an array with a single chunk."""
    [(offset, length)] = stored.pieces
    length = length if stored.codecs else min(length, spec.nbytes)
    axes = make_regular_axes(spec.shape, spec.shape)
    manifest = ChunkManifest.in_file((1,) * len(axes), stored.file, [offset], [length])
    return spec.build(axes, manifest, stored.codecs)


def _build_row_chunks(spec: ArraySpec, stored: StoredElement) -> ManifestArray | PiecewiseArray:
    """Return an array in several pieces, with a chunk per piece if all pieces consist of rows."""
    row = spec.nbytes // prod(spec.shape[:1])
    pieces, remaining = list[Range](), spec.nbytes
    for offset, length in stored.pieces:
        if remaining > 0:
            pieces.append((offset, min(length, remaining)))
        remaining -= length
    if stored.codecs or not spec.shape or any(length % row for _, length in pieces):
        return PiecewiseArray(
            stored.file, stored.pieces, stored.nbytes, spec.shape, spec.make_pipeline(stored.codecs)
        )
    offsets, lengths = map(list, zip(*pieces, strict=True))
    rows = np.array(lengths) // row
    axes = (
        ChunkAxis.from_slabs(rows, rows),
        *make_regular_axes(spec.shape[1:], spec.shape[1:]),
    )
    grid = (len(pieces), *(1,) * (len(spec.shape) - 1))
    return spec.build(axes, ChunkManifest.in_file(grid, stored.file, offsets, lengths), ())


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
    _, _, version, _, length, chunk_size, size, _, table, _, _, rank = unpack(">HIBIIIIHHHHI", data)
    if version or not 1 <= rank <= MAX_AXES:
        raise make_damage_error(f"a chunked element of version {version} has {rank} axes")
    axes = unpack(f">{3 * rank}I", data[35:])
    if (chunk_elements := prod(axes[2::3])) != chunk_size:
        raise make_damage_error(
            f"chunks of {axes[2::3]} have {chunk_elements} elements, not {chunk_size}"
        )
    tail = data[35 + 12 * rank :]
    (count,) = unpack(">I", tail)
    return _ChunkHeader(length * size, table, axes[1::3], axes[2::3], tail[4 : 4 + count])


def _build_chunked(elements: Elements, spec: ArraySpec) -> ManifestArray:
    header = _read_chunk_header(elements, spec.key)
    if header.shape != spec.shape or 0 in header.chunks:
        raise make_damage_error(
            f"its shape is {spec.shape}, and its chunks of {header.chunks} are those of "
            f"{header.shape}"
        )
    axes = make_regular_axes(spec.shape, header.chunks)
    grid = tuple(axis.nchunks for axis in axes)
    size = prod(header.chunks) * spec.dtype.itemsize
    fill = header.fill if len(header.fill) == spec.dtype.itemsize else spec.fill
    spec = replace(spec, fill=fill)
    record = np.dtype([("origin", ">u4", (len(grid),)), ("tag", ">u2"), ("ref", ">u2")])
    rows = read_records(elements, header.table, record)
    if not rows.size:
        return spec.build(axes, ChunkManifest.missing(grid), ())
    check_table(grid, rows.size, "its chunks")
    file, offset, length = (np.zeros(grid, np.int64) for _ in range(3))
    file[...] = MISSING
    codecs: tuple[Codec, ...] | None = None
    for origin, tag, ref in rows.tolist():
        chunk_id = tuple(origin)
        stored = find_stored_element(elements, (tag, ref))
        # a data set that has shrunk may still have chunks past its end
        if stored is None or any(n >= count for n, count in zip(chunk_id, grid, strict=True)):
            continue
        if stored.nbytes != size:
            raise make_damage_error(f"a chunk of {size} bytes has {stored.nbytes}")
        is_one_range = stored.file == elements.source and len(stored.pieces) == 1
        if codecs not in (None, stored.codecs) or not is_one_range:
            raise UnsupportedError(
                "its chunks are encoded in several ways, or lie in linked blocks or in another "
                "file, which is not read; read it with pyhdf"
            )
        codecs = stored.codecs
        file[chunk_id] = 0
        [(offset[chunk_id], length[chunk_id])] = stored.pieces
    manifest = ChunkManifest.build(
        grid, files=(elements.source,), file=file, offset=offset, length=length
    )
    return spec.build(axes, manifest, codecs or ())


# ---------------------------------------------------------------------- files

DEFAULT_FILLS: dict[str, Any] = {
    **{"S": b"\0", "i1": -127, "u1": 129, "i2": -32767, "u2": 32769, "i4": -(2**31) + 1},
    **{"u4": 2**31 + 1, "f": 9.969209968386869e36, "i8": 0, "u8": 0},
}
"""Values of unwritten elements without a fill value, by kind and size in bytes."""


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is HDF4."""
    return head[: len(MAGIC)] == MAGIC


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the structure of all scientific data sets of a file.

    The groups are the root, and the grids of HDF-EOS2 if the file has several.

    Raises `FormatError` if the file is damaged or truncated, and `FileNotFoundError` if there is no
    such group.
    """
    with (
        describe_damage(source, "HDF4", (ValueError, OverflowError)),
        open_elements(source) as elements,
    ):
        datasets = read_datasets(elements) or read_old_datasets(elements)
        skipped = frozenset(skip)
        parts = {
            name: _read_group(elements, part, skipped)
            for name, part in group_by_structure(datasets).items()
        }
    root = replace(parts.pop(""), attributes=datasets.attributes, groups=parts)
    problems = {f":{name}": error for name, error in datasets.problems.items()}
    return replace(root, problems={**problems, **root.problems}).group(group)


def _read_group(elements: Elements, part: DatasetGroup, skipped: frozenset[str]) -> ManifestGroup:
    lengths = {name: v.data.shape[0] for name, v in part.coordinates.items() if v.dims}
    reader = _VariableReader(elements, skipped, lengths)
    used_names = set(part.coordinates)
    for dataset in part.members:
        if not dataset.is_scale or dataset.ref is not None:
            name = make_unique_name(dataset.name, used_names)
            used_names.add(name)
            reader.add(name, dataset)
    encoding = {"unlimited_dims": reader.unlimited}
    variables, left_out = reader.variables | part.coordinates, reader.left_out
    group = ManifestGroup(variables, {}, {}, encoding, reader.problems, left_out=left_out)
    return group.leave_out(skipped)


class _VariableReader:
    """Collects the variables of a group, with their shared dimensions."""

    def __init__(
        self, elements: Elements, skipped: frozenset[str], lengths: dict[str, int]
    ) -> None:
        self.variables: dict[str, ManifestVariable] = {}
        self.problems: dict[str, VirtualdsError] = {}
        self.left_out: dict[str, ManifestVariable] = {}
        self.unlimited: set[str] = set()
        self._elements = elements
        self._skipped = skipped
        self._lengths = lengths

    def add(self, name: str, dataset: ScientificDataset) -> None:
        """Add a data set: a variable, or a problem if it cannot be read."""
        if name in self._skipped:
            with suppress(VirtualdsError):
                dims = self._name_dimensions(name, dataset, self._find_shape(dataset))
                self.left_out[name] = describe_left_out(
                    dims, _get_dtype(dataset), convert_to_cf(dataset.attributes)
                )
            return
        shape: tuple[int, ...] = ()
        try:
            shape = self._find_shape(dataset)
            data: Any = dataset.values
            if data is None:
                spec = ArraySpec(dataset.ref, shape, _get_dtype(dataset), _find_fill(dataset))
                data = build_array(self._elements, spec)
        except VirtualdsError as error:
            error.locate(f"variable {name!r}", self._elements.source.url)
            self.problems[name] = error
            dtype = dataset.dtype if isinstance(dataset.dtype, np.dtype) else "V1"
            data = ManifestArray.unreadable(shape, dtype, f"{error}")
        self.problems |= {
            f"{name}:{attribute}": error for attribute, error in dataset.problems.items()
        }
        dims = self._name_dimensions(name, dataset, shape)
        self.variables[name] = self._to_variable(dataset, dims, data)

    def _find_shape(self, dataset: ScientificDataset) -> tuple[int, ...]:
        lengths = [d.length for d in dataset.dimensions]
        if None in lengths[1:]:
            raise FormatError("its unlimited dimension is not the first; fetch the file again")
        if not lengths or lengths[0] is not None:
            return tuple(n for n in lengths if n is not None)
        inner = tuple(n for n in lengths[1:] if n is not None)
        row, key = prod(inner) * _get_dtype(dataset).itemsize, (DATA, dataset.ref or 0)
        if not row or dataset.ref is None:
            return (0, *inner)
        if self._elements.find_kind(key) == CHUNKED:
            return (_read_chunk_header(self._elements, key).nbytes // row, *inner)
        stored = find_stored_element(self._elements, key)
        return (0 if stored is None else stored.nbytes // row, *inner)

    def _name_dimensions(
        self, name: str, dataset: ScientificDataset, shape: tuple[int, ...]
    ) -> tuple[str, ...]:
        """Return the names of axes; an axis whose length differs from before gets a new name."""
        names: list[str] = []
        for dimension, length in zip(dataset.dimensions, shape, strict=False):
            dim = dimension.name.replace("/", "_")
            if dim in names or self._lengths.setdefault(dim, length) != length:
                dim = f"{dim}_{name}" if dim not in names else f"{dim}_{len(names) + 1}"
                self._lengths[dim] = length
            if dimension.length is None:
                self.unlimited.add(dim)
            names.append(dim)
        return tuple(names)

    def _to_variable(
        self, dataset: ScientificDataset, dims: tuple[str, ...], data: Any
    ) -> ManifestVariable:
        encoding: dict[str, Any] = {
            "dtype": data.dtype.newbyteorder("="),
            "source": path_or_url(self._elements.source.url),
            "original_shape": data.shape,
        }
        return ManifestVariable(dims, data, convert_to_cf(dataset.attributes), encoding)


def _get_dtype(dataset: ScientificDataset) -> np.dtype[Any]:
    """Return the dtype of a data set, or raise its error."""
    if isinstance(dataset.dtype, VirtualdsError):
        raise dataset.dtype
    return dataset.dtype


def _find_fill(dataset: ScientificDataset) -> bytes | None:
    """Return the value that the library returns for unwritten elements, or None if unknown.

    The library uses the first bytes in memory of ``_FillValue``, regardless of its type.
    """
    dtype = _get_dtype(dataset)
    attribute = dataset.attributes.get("_FillValue")
    if attribute is None:
        fill = DEFAULT_FILLS.get(dtype.str[1:], DEFAULT_FILLS.get(dtype.kind))
        return np.asarray(fill).astype(dtype).tobytes()
    values = np.atleast_1d(attribute)
    raw = values.astype(values.dtype.newbyteorder("<")).tobytes()[: dtype.itemsize]
    if len(raw) < dtype.itemsize:
        return None
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).tobytes()


def _open_pyhdf(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    """Open a file with pyhdf, which returns values as stored."""
    from pyhdf.error import HDF4Error
    from pyhdf.SD import SD

    file = SD(str(target()))
    closing.callback(file.end)
    names = [file.select(number).info()[0] for number in range(file.info()[0])]

    def read_part(request: NativeRegion) -> Any:
        if request.decoded:
            return None
        if names.count(request.variable) != 1:
            raise NativeReadError("it does not have exactly one data set of that name")
        try:
            values = file.select(names.index(request.variable)).get()
        except HDF4Error as error:
            raise NativeReadError(f"{error}") from error
        return select_region(np.asarray(values), request)

    return read_part


PARSER = Parser(
    "hdf4",
    (".hdf", ".hdf4", ".h4"),
    detect,
    read,
    natives=(NativeReader("pyhdf", _open_pyhdf),),
)
