"""HDF5 and netCDF4 files, through h5py.

A netCDF4 file is an HDF5 file with conventions: dimensions are dimension scales (HDF5 Dimension
Scale Specification 1.0; netCDF-C documentation, "NetCDF-4 File Format"), and some attributes serve
only them. What this parser cannot say with byte ranges it refuses by name, or reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.array import ManifestArray
from virtualds.codecs import Codec, codec_from_hdf5
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.fragment import CodecPipeline, Fragment
from virtualds.grid import ChunkAxis
from virtualds.group import Data, ManifestGroup, ManifestVariable
from virtualds.manifest import INLINE, MISSING, ChunkManifest, SourceFile
from virtualds.stores import store_for
from virtualds.urls import local_path, scheme_of
from virtualds.zarr_metadata import NO_FILTERS

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""Format signature, at byte 0, 512, 1024, 2048 ... (HDF5 file format, II.A)."""

RESERVED = frozenset(
    {
        "CLASS",
        "NAME",
        "REFERENCE_LIST",
        "DIMENSION_LIST",
        "_Netcdf4Dimid",
        "_Netcdf4Coordinates",
        "_nc3_strict",
        "_NCProperties",
    }
)
"""Attributes that serve dimension scales and the netCDF library, not the user."""

DIMENSION_ONLY = b"This is a netCDF dimension but not a netCDF variable"
"""Start of the NAME of a scale that stands for a dimension without a variable."""
NOT_A_COORDINATE = "_nc4_non_coord_"
"""Prefix that netCDF-C gives a variable named like a dimension that it is not the scale of."""

COMPACT, CONTIGUOUS, CHUNKED = 0, 1, 2
"""Layout classes (HDF5 file format, IV.A.2.i, Data Layout message)."""
BLOCK = 512
"""Chunks that are gathered before they become columns."""
UNLIMITED = 2**64 - 1
"""The greatest length of an axis that may grow (H5S_UNLIMITED)."""


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is HDF5."""
    places = itertools.takewhile(lambda n: n < len(head), (0, *(512 << k for k in range(16))))
    return any(head[n : n + 8] == SIGNATURE for n in places)


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the structure of one group of a file.

    Parameters
    ----------
    source : SourceFile
        The file with its fingerprint.
    group : str, optional
        Path of the group; the root group by default.
    skip : iterable of str
        Names of variables to leave out.

    Raises
    ------
    FormatError
        The file is damaged or truncated.
    FileNotFoundError
        There is no such group.
    UnsupportedError
        A variable holds what byte ranges cannot express.
    """
    import h5py

    if group is not None and not isinstance(group, str):
        raise ValueError(f"group must be a string or None, got {group!r}")
    local = scheme_of(source.url) == "file"
    target: Any = (
        local_path(source.url) if local else store_for(source.url).open(source.url, source.options)
    )
    try:
        with h5py.File(target, "r", locking="best-effort" if local else None) as file:
            return _Reader(file, source, frozenset(skip)).read(group)
    except (OSError, RuntimeError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | VirtualdsError):
            raise
        raise FormatError(
            f"{source.url}: HDF5 cannot read it ({error}); the file is damaged or truncated, "
            f"fetch it again"
        ) from error
    finally:
        if not local:
            target.close()


Names = list[tuple["_Dataset", tuple[str | None, ...]]]


class _Reader:
    """The walk over one group, with what its datasets share."""

    def __init__(self, file: Any, source: SourceFile, skip: frozenset[str]) -> None:
        self.file = file
        self.source = source
        self.skip = skip

    def read(self, path: str | None) -> ManifestGroup:
        group = self._descend(path)
        datasets, children, links = _members(group)
        for link in links:
            if link not in self.skip:
                raise UnsupportedError(
                    f"{self.source.url}: {link!r} is a soft or external link, which is not "
                    f"followed; leave it out with drop_variables, and open what it points to"
                )
        dims = _Dimensions(datasets.values(), self._scales_above(group))
        variables = {}
        for name, names in dims.of.items():
            shown = name.removeprefix(NOT_A_COORDINATE)
            if shown in self.skip:
                continue
            try:
                variables[shown] = self._variable(datasets[name], names, dims.lengths)
            except VirtualdsError as error:
                error.add_note(f"variable {shown!r} of {self.source.url}")
                raise
        return ManifestGroup(
            variables,
            _attributes(group),
            dict.fromkeys(children, ManifestGroup()),
            {"unlimited_dims": dims.unlimited_here},
        )

    def _descend(self, path: str | None) -> Any:
        import h5py

        found = self.file
        for part in (path or "").strip("/").split("/"):
            if part:
                found = found.get(part)
                if not isinstance(found, h5py.Group):
                    raise FileNotFoundError(
                        f"{self.source.url}: there is no group {path!r}; look at its groups with "
                        f"h5py or ncdump -h"
                    )
        return found

    def _scales_above(self, group: Any) -> list[_Dataset]:
        """Return the dimension scales of the groups above a group, outermost first."""
        found: list[_Dataset] = []
        while group.name != "/":
            group = group.parent
            found = [d for d in _members(group)[0].values() if d.is_scale] + found
        return found

    def _variable(
        self, dataset: _Dataset, dims: tuple[str, ...], lengths: Mapping[str, int]
    ) -> ManifestVariable:
        attributes = _attributes(dataset)
        shape = tuple(lengths.get(dim, n) for dim, n in zip(dims, dataset.shape, strict=True))
        stored = _stored_type(dataset)
        encoding: dict[str, Any] = {"dtype": stored.declared}
        data: Data
        if stored.dtype is None:
            data = _strings(dataset, shape)
        else:
            data = self._array(dataset, stored.dtype, dims, encoding)
            if shape != data.shape:
                data = replace(data, shape=shape, fill_value=data.pipelines[0].fill_value)
        if stored.dtype is not None and stored.dtype.kind == "S" and "_FillValue" in attributes:
            fill = attributes["_FillValue"]
            attributes["_FillValue"] = np.bytes_(fill.encode() if isinstance(fill, str) else fill)
        if "least_significant_digit" in attributes:
            encoding["least_significant_digit"] = attributes.pop("least_significant_digit")
        encoding |= {"source": self._name_of_source(), "original_shape": shape}
        return ManifestVariable(dims, data, attributes, encoding)

    def _name_of_source(self) -> str:
        url = self.source.url
        return local_path(url) if scheme_of(url) == "file" else url

    def _array(
        self,
        dataset: _Dataset,
        dtype: np.dtype[Any],
        dims: tuple[str, ...],
        encoding: dict[str, Any],
    ) -> ManifestArray:
        plist = dataset.id.get_create_plist()
        layout = plist.get_layout()
        if plist.get_external_count():
            raise _unsupported("its values lie in external files")
        if layout not in (COMPACT, CONTIGUOUS, CHUNKED):
            raise _unsupported("it is a virtual dataset (VDS), put together from other files")
        encoding |= NO_FILTERS
        pipeline = CodecPipeline(
            dtype, fill=_fill(plist, dtype), layout=tuple(range(len(dataset.shape)))
        )
        if layout == CHUNKED:
            chunks = plist.get_chunk()
            codecs = _codecs(plist, dtype.itemsize)
            for codec in codecs:
                encoding |= codec.encoding
            encoding |= {"contiguous": False, "chunksizes": chunks}
            encoding["preferred_chunks"] = dict(zip(dims, chunks, strict=True))
            return _chunked(dataset, replace(pipeline, codecs=codecs), chunks, self.source)
        encoding |= {"contiguous": True, "chunksizes": None}
        return _in_one_piece(dataset, pipeline, layout, self.source)


# ---------------------------------------------------------------------- structure


class _Dataset:
    """A dataset with what the walk asks it more than once."""

    __slots__ = ("address", "attrs", "id", "is_scale", "name", "shape")

    def __init__(self, name: str, found: Any) -> None:
        import h5py

        self.name = name
        self.id = found
        # a dataset without dataspace (H5S_NULL) has no shape; it holds nothing
        self.shape: tuple[int, ...] = found.shape or ()
        self.is_scale: bool = h5py.h5ds.is_scale(found)
        self.address: int = h5py.h5o.get_info(found).addr
        self.attrs = h5py.AttributeManager(self)

    @property
    def is_bare(self) -> bool:
        """Whether it is a scale that stands for a dimension without a variable."""
        import h5py

        return self.is_scale and h5py.h5ds.get_scale_name(self.id).startswith(DIMENSION_ONLY)

    @property
    def is_unlimited(self) -> bool:
        """Whether its first axis may grow."""
        return self.grows[:1] == (True,)

    @property
    def grows(self) -> tuple[bool, ...]:
        """Whether each axis may grow."""
        return tuple(n == UNLIMITED for n in self.id.get_space().get_simple_extent_dims(True))


def _members(group: Any) -> tuple[dict[str, _Dataset], list[str], list[str]]:
    """Return the datasets of a group, and the names of its groups and of its soft links.

    All are in the order of creation.
    """
    import h5py

    datasets, children, links = {}, [], []
    for raw in _in_order(lambda order, add: group.id.links.iterate(add, idx_type=order)):
        name = raw.decode("utf-8", "surrogateescape")
        if group.id.links.get_info(raw).type != h5py.h5l.TYPE_HARD:
            links.append(name)
            continue
        found = h5py.h5o.open(group.id, raw)
        if isinstance(found, h5py.h5d.DatasetID):
            datasets[name] = _Dataset(name, found)
        elif isinstance(found, h5py.h5g.GroupID):
            children.append(name)
    return datasets, children, links


def _append(names: list[bytes], name: bytes, *rest: Any) -> None:
    names.append(name)


def _in_order(iterate: Callable[[int, Callable[..., None]], None]) -> list[bytes]:
    """Return names in the order of creation where the file kept it, else in alphabetical order."""
    import h5py

    for order in (h5py.h5.INDEX_CRT_ORDER, h5py.h5.INDEX_NAME):
        names: list[bytes] = []
        try:
            iterate(order, partial(_append, names))
        except RuntimeError:
            continue
        return names
    raise FormatError("HDF5 cannot list a group; the file is damaged")


class _Dimensions:
    """The dimensions of a group, as the netCDF library names them.

    Axes with a scale have its name. The others are the first dimension of the group that has their
    length, and may grow or not as they may, but never one twice in one variable; where there is
    none, it is invented: ``phony_dim_0``, ``phony_dim_1`` and so on (netCDF-C,
    ``nc4_rec_match_dimscales``).
    """

    def __init__(self, datasets: Iterable[_Dataset], above: Iterable[_Dataset]) -> None:
        here = [d for d in datasets if d.is_scale]
        self._scales = {d.address: d for d in [*above, *here]}
        self._by_id = {
            int(d.attrs["_Netcdf4Dimid"]): d.name
            for d in self._scales.values()
            if "_Netcdf4Dimid" in d.attrs
        }
        named = [(d, self._look_up(d)) for d in datasets]
        self.lengths = self._unlimited_lengths(named)
        self._elsewhere = len(self._scales) - len(here)
        self._here = [
            (d.name, self.lengths.get(d.name, prod(d.shape[:1])), d.is_unlimited) for d in here
        ]
        self.of = {d.name: self._complete(d, dims) for d, dims in named if not d.is_bare}
        self.unlimited_here = {name for name, _, grows in self._here if grows}

    def _unlimited_lengths(self, named: Names) -> dict[str, int]:
        """Return the length of every unlimited dimension: the longest variable along it."""
        lengths = {d.name: 0 for d in self._scales.values() if d.is_unlimited}
        for dataset, dims in named:
            for dim, n in zip(dims, dataset.shape, strict=True):
                if dim in lengths:
                    lengths[dim] = max(n, lengths[dim])
        return lengths

    def _look_up(self, dataset: _Dataset) -> tuple[str | None, ...]:
        rank = len(dataset.shape)
        if dataset.is_scale:
            if rank > 1 and "_Netcdf4Coordinates" in dataset.attrs:
                return tuple(self._by_id.get(int(i)) for i in dataset.attrs["_Netcdf4Coordinates"])
            return (dataset.name, *([None] * (rank - 1)))[:rank]
        return tuple(self._attached(dataset, axis) for axis in range(rank))

    def _attached(self, dataset: _Dataset, axis: int) -> str | None:
        """Return the name of the first scale of an axis."""
        import h5py

        found: list[Any] = []
        if h5py.h5ds.get_num_scales(dataset.id, axis):
            h5py.h5ds.iterate(dataset.id, axis, found.append)
        if not found:
            return None
        address = h5py.h5o.get_info(found[0]).addr
        if address in self._scales:
            return self._scales[address].name
        return str(h5py.Dataset(found[0]).name).rpartition("/")[2]

    def _complete(self, dataset: _Dataset, names: tuple[str | None, ...]) -> tuple[str, ...]:
        """Name the axes that have no scale."""
        taken = [name for name in names if name is not None]
        if len(taken) == len(names):
            return tuple(taken)
        complete = []
        for name, size, grows in zip(names, dataset.shape, dataset.grows, strict=True):
            if name is None:
                name = self._fitting(size, grows, taken)
                taken.append(name)
            complete.append(name)
        return tuple(complete)

    def _fitting(self, size: int, grows: bool, taken: list[str]) -> str:
        """Return a dimension for an axis without scale, inventing one if none fits."""
        for name, length, may_grow in self._here:
            if (length, may_grow) == (size, grows) and name not in taken:
                return name
        name = f"phony_dim_{self._elsewhere + len(self._here)}"
        # to the netCDF library, length 0 means unlimited
        self._here.append((name, size, grows or not size))
        return name


# ---------------------------------------------------------------------- attributes


def _attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes of a group or dataset that are the user's."""
    return {
        name: _attribute(owner, name) for name in _attribute_names(owner) if name not in RESERVED
    }


def _attribute_names(owner: Any) -> list[str]:
    """Return the names of all attributes, in the order of creation where the file kept it."""
    import h5py

    names = _in_order(lambda order, add: h5py.h5a.iterate(owner.id, add, index_type=order))
    return [name.decode("utf-8", "surrogateescape") for name in names]


def _attribute(owner: Any, name: str) -> Any:
    """Return one attribute the way netCDF4-python returns it.

    Strings are str, several of them a list; one number is a scalar, several are an array.
    """
    import h5py

    try:
        value = owner.attrs[name]
    except (OSError, TypeError) as error:
        raise UnsupportedError(
            f"attribute {name!r}: its type cannot be read ({error}); leave the variable out with "
            f"drop_variables"
        ) from error
    if isinstance(value, h5py.Empty):
        return "" if value.dtype.kind in "SUO" else np.empty(0, value.dtype)
    if isinstance(value, str | bytes):
        return _text(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "SO":
        texts = [_text(item) for item in value.ravel().tolist()]
        if not all(isinstance(text, str) for text in texts):
            raise UnsupportedError(
                f"attribute {name!r}: arrays of varying length have no equal in xarray; leave the "
                f"variable out with drop_variables"
            )
        return texts[0] if len(texts) == 1 else texts
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.ravel()[0]
    return value.astype(value.dtype.newbyteorder("=")) if isinstance(value, np.ndarray) else value


def _text(value: Any) -> Any:
    """Return a string, what is no UTF-8 in it replaced as the netCDF library does."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").replace("\0", "")
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "replace").replace("\0", "")
    return value


# ---------------------------------------------------------------------- types and filters


class _Stored:
    """The dtype of the stored numbers (None for strings of varying length) and the declared one."""

    def __init__(self, dtype: np.dtype[Any] | None, declared: Any) -> None:
        self.dtype = dtype
        self.declared = declared


def _stored_type(dataset: _Dataset) -> _Stored:
    import h5py

    kind = dataset.id.get_type()
    if isinstance(kind, h5py.h5t.TypeEnumID):
        return _enum_type(kind)
    dtype = dataset.id.dtype
    if h5py.check_string_dtype(dtype) is not None and dtype.kind == "O":
        return _Stored(None, str)
    if dtype.kind in "iufcS" and dtype.itemsize and dtype.subdtype is None:
        return _Stored(np.dtype(dtype.str), np.dtype(dtype.str))
    raise _unsupported(f"its type {dtype} (HDF5 class {kind.get_class()}) has no equal in numpy")


def _enum_type(kind: Any) -> _Stored:
    """Return an enum as its integers, with the names in the metadata as xarray holds them."""
    base = np.dtype(kind.get_super().dtype.str)
    members = {
        kind.get_member_name(i).decode(): kind.get_member_value(i)
        for i in range(kind.get_nmembers())
    }
    declared = np.dtype(base, metadata={"enum": members, "enum_name": _type_name(kind)})
    return _Stored(base, declared)


def _type_name(kind: Any) -> str:
    import h5py

    if not kind.committed():
        return "enum"
    name = h5py.h5i.get_name(kind)
    return name.decode().rpartition("/")[2] if name else "enum"


def _unsupported(cause: str) -> UnsupportedError:
    return UnsupportedError(
        f"{cause}, which byte ranges cannot express; leave the variable out with drop_variables, "
        f"or open the file with xarray's own engines"
    )


def _codecs(plist: Any, itemsize: int) -> tuple[Codec, ...]:
    """Return the filters of a dataset, in the order in which they encoded."""
    found = (plist.get_filter(i) for i in range(plist.get_nfilters()))
    return tuple(codec_from_hdf5(number, values, itemsize) for number, _, values, _ in found)


def _fill(plist: Any, dtype: np.dtype[Any]) -> bytes | None:
    """Return the storage fill value as bytes; it is not the attribute ``_FillValue``."""
    import h5py

    if plist.fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED:
        return None
    fill = np.zeros((1,), dtype)
    plist.get_fill_value(fill)
    return fill.tobytes()


# ---------------------------------------------------------------------- data


def _chunked(
    dataset: _Dataset, pipeline: CodecPipeline, chunks: tuple[int, ...], source: SourceFile
) -> ManifestArray:
    axes = tuple(ChunkAxis.regular(n, c) for n, c in zip(dataset.shape, chunks, strict=True))
    grid = tuple(axis.nchunks for axis in axes)
    index = _chunk_index(dataset, len(grid))
    if not index.size:
        return _array(axes, ChunkManifest.missing(grid), (pipeline,))
    place, mask, offset, length = index[:-3], index[-3], index[-2], index[-1]
    pipelines, number = _by_mask(pipeline, mask)
    inside = np.ones(mask.size, bool)
    flat = np.zeros(mask.size, np.int64)
    for first, size, chunk, stride in zip(
        place, dataset.shape, chunks, _strides(grid), strict=True
    ):
        # shrinking a dataset can leave chunks behind that lie outside of it
        inside &= first < size
        flat += first // chunk * stride

    def spread(values: npt.NDArray[Any], rest: int, kind: Any) -> npt.NDArray[Any]:
        column = np.full(prod(grid), rest, kind)
        column[flat[inside]] = values[inside]
        return column.reshape(grid)

    manifest = ChunkManifest.build(
        grid,
        files=(source,),
        file=spread(np.zeros(mask.size, np.int32), MISSING, np.int32),
        offset=spread(offset, 0, np.int64),
        length=spread(length, 0, np.int64),
        pipeline=spread(number, 0, np.uint16),
    )
    return _array(axes, manifest, pipelines)


def _chunk_index(dataset: _Dataset, ndim: int) -> npt.NDArray[np.int64]:
    """Return the position, filter mask, offset and length of every chunk that was written.

    The table has a column per chunk. It grows in blocks: a list of a million rows would take a
    hundred times the memory, and the garbage collector would walk it again and again.
    """
    tables: list[npt.NDArray[np.int64]] = []
    rows: list[Any] = []
    append = rows.append

    def settle() -> None:
        place, *rest = zip(*rows, strict=True)
        table = np.empty((ndim + 3, len(rows)), np.int64)
        flat = np.fromiter(itertools.chain.from_iterable(place), np.int64, len(rows) * ndim)
        table[:ndim] = flat.reshape(-1, ndim).T
        table[ndim:] = rest
        tables.append(table)
        rows.clear()

    def collect(row: Any) -> None:
        append(row)
        if len(rows) == BLOCK:
            settle()

    dataset.id.chunk_iter(collect)
    if rows:
        settle()
    return np.concatenate(tables, axis=1) if tables else np.empty((ndim + 3, 0), np.int64)


def _strides(grid: tuple[int, ...]) -> list[int]:
    return [prod(grid[i + 1 :]) for i in range(len(grid))]


def _by_mask(
    pipeline: CodecPipeline, masks: npt.NDArray[np.int64]
) -> tuple[tuple[CodecPipeline, ...], npt.NDArray[np.int64]]:
    """Return a pipeline per filter mask: bit ``i`` says that filter ``i`` was skipped.

    HDF5 file format, III.A.1, "Version 1 B-trees", field "Filter Mask".
    """
    if not masks.any():
        return (pipeline,), np.zeros(masks.size, np.int64)
    distinct, number = np.unique(masks, return_inverse=True)
    pipelines = tuple(
        replace(
            pipeline,
            codecs=tuple(c for i, c in enumerate(pipeline.codecs) if not int(mask) >> i & 1),
        )
        for mask in distinct
    )
    return pipelines, number.ravel()


def _in_one_piece(
    dataset: _Dataset, pipeline: CodecPipeline, layout: int, source: SourceFile
) -> ManifestArray:
    """Return a compact or contiguous dataset as one chunk."""
    import h5py

    axes = tuple(ChunkAxis.regular(n, max(n, 1)) for n in dataset.shape)
    grid = tuple(axis.nchunks for axis in axes)
    nbytes = prod(dataset.shape) * pipeline.dtype.itemsize
    if layout == COMPACT:
        # it lies in the object header, at no address that HDF5 tells
        values = np.empty(dataset.shape, pipeline.dtype)
        if values.size:
            dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
        manifest = ChunkManifest.build(grid, file=INLINE, length=nbytes, inline=(values.tobytes(),))
    elif (offset := dataset.id.get_offset()) is None:
        manifest = ChunkManifest.missing(grid)
    else:
        manifest = ChunkManifest.build(grid, files=(source,), offset=offset, length=nbytes)
    return _array(axes, manifest, (pipeline,))


def _array(
    axes: tuple[ChunkAxis, ...], manifest: ChunkManifest, pipelines: tuple[CodecPipeline, ...]
) -> ManifestArray:
    array = ManifestArray.of_fragment(Fragment((0,) * len(axes), axes, manifest), pipelines[0])
    return replace(array, pipelines=pipelines)


def _strings(dataset: _Dataset, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Read strings of varying length: they lie in a heap, where no byte range can point."""
    import h5py

    kind = np.dtype("O", metadata={"element_type": str})
    values = np.full(shape, "", kind)
    if prod(dataset.shape):
        found = np.asarray(h5py.Dataset(dataset.id).asstr(errors="replace")[()], dtype=object)
        box: Any = (*(slice(0, n) for n in dataset.shape), ...)
        values[box] = found
    return values
