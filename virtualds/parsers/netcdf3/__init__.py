"""netCDF files of the classic formats: CDF-1, CDF-2 (64-bit offset) and CDF-5 (64-bit data).

`virtualds.parsers.netcdf3.header` parses the header, which mostly takes one request. A variable
without records is one chunk, which readers cut as they need. Each record of a variable is a chunk,
since the records of all variables lie interleaved
(docs/explanation/decisions/0018-a-record-is-a-chunk.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, describe_left_out
from virtualds.arrays.parser import NativeReader, Parser
from virtualds.bounds import MOST_AXES, demand_axes
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import StridedReferences
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.netcdf3.header import (
    MAGIC,
    VERSIONS,
    MoreNeeded,
    NetCDF3Header,
    NetCDF3Variable,
    parse_header,
)
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.block_cache import FIRST_PAGES, PAGE
from virtualds.urls import path_or_url

LONGEST = 2**28
"""Bytes of the longest header that the parser reads."""
DASK_BLOCK = 2**24
"""Bytes of records that dask is advised to take at a time."""
FEW_RECORDS = 2**10
"""Offsets of up to so many records are held in memory: 8 KiB, and cheap to concatenate."""
GROWTH = 8
"""Each further request for a long header reaches so many times as far."""


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is of a classic format."""
    return head[:3] == MAGIC and len(head) > 3 and head[3] in VERSIONS


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the structure of a file; variables that reach past its end are among its `problems`.

    Parameters
    ----------
    source : SourceFile
        The file with its fingerprint.
    group : str, optional
        The root group: there is no other.
    skip : iterable of str
        Names of variables to leave out.

    Raises
    ------
    FormatError
        The header is damaged or truncated.
    FileNotFoundError
        There is no such group.
    UnsupportedError
        The server sends no parts of the file.
    """
    skipped = frozenset(skip)
    header, size = _read_header(source)
    records = header.count_records(size) if header.numrecs is None else header.numrecs
    name = path_or_url(source.url)
    variables, problems, left_out = {}, dict[str, VirtualdsError](), {}
    for variable in header.variables:
        if variable.name in skipped:
            left_out[variable.name] = describe_left_out(
                variable.dims, variable.dtype, variable.attributes
            )
            continue
        try:
            demand_axes(len(variable.dims), "it")
            _demand_whole(variable, header, records, source)
            data = _build_array(variable, header, records, source)
        except VirtualdsError as error:
            error.locate(f"variable {variable.name!r}", source.url)
            problems[variable.name] = error
            if len(variable.dims) > MOST_AXES:
                variable = replace(variable, dims=(), shape=(), has_records=False)
            data = ManifestArray.unreadable(
                _shape_of(variable, records), variable.dtype, f"{source.url}: {error}"
            )
        variables[variable.name] = _build_variable(variable, data, name)
    unlimited = header.record_dimension
    encoding = {"unlimited_dims": set() if unlimited is None else {unlimited}}
    found = ManifestGroup(variables, header.attributes, {}, encoding, problems, left_out=left_out)
    return found.group(group)


def _read_header(source: SourceFile) -> tuple[NetCDF3Header, int]:
    """Read the header of a file; return it with the size of the file."""
    size, url = source.size, source.url
    if size is None:
        raise UnsupportedError(
            f"{url}: the server sends no parts of it (it knows no byte ranges, or does not say how "
            f"long the file is); copy it to local disk"
        )
    store, data, wanted = find_store(url), b"", FIRST_PAGES * PAGE
    while True:
        wanted = min(wanted, size)
        [more] = store.get_ranges(source, [(len(data), wanted - len(data))])
        data += more
        try:
            return parse_header(data, url), size
        except MoreNeeded as error:
            if error.stop > size:
                raise FormatError(
                    f"{url}: it has {size} bytes, and its header needs {error.stop}; the file is "
                    f"truncated or damaged, fetch it again"
                ) from error
            if error.stop > LONGEST:
                raise FormatError(
                    f"{url}: its header would have more than {LONGEST} bytes; the file is damaged, "
                    f"fetch it again"
                ) from error
            wanted = min(max(error.stop + FIRST_PAGES * PAGE, GROWTH * wanted), LONGEST)


def _shape_of(variable: NetCDF3Variable, records: int) -> tuple[int, ...]:
    return (records, *variable.shape) if variable.has_records else variable.shape


def _demand_whole(
    variable: NetCDF3Variable, header: NetCDF3Header, records: int, source: SourceFile
) -> None:
    """Refuse a variable that reaches past the end of the file: missing bytes are no fill."""
    size = source.size or 0
    count = records if variable.has_records else 1
    if not count or not variable.nbytes:
        return
    stop = variable.begin + (count - 1) * header.record_size + variable.nbytes
    if stop > size:
        whole = (
            f", {header.count_records(size)} of {records} records" if variable.has_records else ""
        )
        raise FormatError(
            f"its values reach to byte {stop}, and the file has {size}{whole}; it is truncated, "
            f"fetch it again, or leave the variable out with drop_variables"
        )


def _build_array(
    variable: NetCDF3Variable, header: NetCDF3Header, records: int, source: SourceFile
) -> ManifestArray:
    """Return the values as references: one for each record, or one for all values."""
    shape = _shape_of(variable, records)
    axes = _make_axes(shape)
    nbytes = variable.nbytes * (records if variable.has_records else 1)
    # the records of the only variable that has any follow each other
    if variable.has_records and nbytes and header.record_size != variable.nbytes:
        axes = (ChunkAxis.regular(records, 1), *axes[1:])
        manifest = _build_manifest(variable, header.record_size, records, source)
    elif nbytes:
        manifest = ChunkManifest.in_file((1,) * len(shape), source, [variable.begin], [nbytes])
    else:
        manifest = ChunkManifest.missing(tuple(axis.nchunks for axis in axes))
    pipeline = _make_pipeline(variable.dtype, len(shape))
    fragment = Fragment.whole(axes, manifest)
    return ManifestArray.of_fragment(fragment, pipeline, variable.name)


def _build_manifest(
    variable: NetCDF3Variable, step: int, count: int, source: SourceFile
) -> ChunkManifest:
    """Return the references of every record, which lie ``step`` bytes apart."""
    grid = (count,) + (1,) * len(variable.shape)
    if count <= FEW_RECORDS:
        offsets = range(variable.begin, variable.begin + step * count, step)
        return ChunkManifest.in_file(grid, source, offsets, (variable.nbytes,) * count)
    table = StridedReferences(source, variable.begin, step, variable.nbytes, count)
    return ChunkManifest.of_table(table, grid)


@lru_cache(256)
def _make_axes(shape: tuple[int, ...]) -> tuple[ChunkAxis, ...]:
    """Return the axes of an array in one chunk."""
    return tuple(ChunkAxis.regular(n, max(n, 1)) for n in shape)


@lru_cache(256)
def _make_pipeline(dtype: np.dtype[Any], ndim: int) -> CodecPipeline:
    return CodecPipeline(dtype, layout=tuple(range(ndim)))


def _build_variable(variable: NetCDF3Variable, data: ManifestArray, name: str) -> ManifestVariable:
    """Return a variable; ``name`` is that of the file."""
    encoding: dict[str, Any] = {
        "dtype": variable.dtype.newbyteorder("="),
        "source": name,
        "original_shape": data.shape,
    }
    if data.nchunks > 1:
        records = max(DASK_BLOCK // variable.nbytes, 1)
        encoding["preferred_chunks"] = dict(
            zip(variable.dims, (min(records, data.shape[0]), *variable.shape), strict=True)
        )
    return ManifestVariable(variable.dims, data, variable.attributes, encoding)


PARSER = Parser(
    "netcdf3",
    (".nc3",),
    detect,
    read,
    natives=(
        NativeReader("netCDF4", engine="netcdf4"),
        NativeReader("scipy", engine="scipy", remote=True),
    ),
)
