"""The files along a dimension that a set knows, with their fingerprints, as columns."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import pandas as pd

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.reference_table import iterate_references
from virtualds.datasets.duplicates import is_copy
from virtualds.formats.zarr_manifests.parquet_table import ParquetTable
from virtualds.source_file import NO_NUMBER, SourceFile
from virtualds.stores.listing import FileColumns, FileState
from virtualds.stores.responses import normalise_etag
from virtualds.urls import lies_under


def tabulate_sources(group: ManifestGroup, dim: str, root: str) -> FileColumns:
    """Return the files that follow each other along a dimension of a set.

    Parameters
    ----------
    group : ManifestGroup
    dim : str
    root : str
        The url of the set. Files in it are its own copies, and so are rewritten chunks.
    """
    arrays = [
        v.data
        for v in group.variables.values()
        if dim in v.dims and isinstance(v.data, ManifestArray)
    ]
    found = _read_shared_table(arrays)
    if found is None:
        manifests = [fragment.manifest for array in arrays for fragment in array.fragments]
        found = FileColumns.join([_find_used(manifest) for manifest in manifests])
        found = _take_each_once(found)
    own = (lies_under(url, root) or is_copy(url) for url in found.urls)
    return found.take(~np.fromiter(own, bool, len(found)))


def _take_each_once(found: FileColumns) -> FileColumns:
    """Return one row for each file, that of the array which knows most of it."""
    unknown = np.sum(
        [found.sizes == NO_NUMBER, found.mtimes == NO_NUMBER, found.etags == ""], axis=0
    )
    order = np.argsort(unknown, kind="stable")
    kept = order[~pd.Index(found.urls[order]).duplicated()]
    return found.take(np.sort(kept))


def _read_shared_table(arrays: list[ManifestArray]) -> FileColumns | None:
    """Return the table of files that all arrays share, None if there are several.

    A set writes an array with a new table when a file leaves it, and keeps the tables of others. So
    only where all have one table, all of its files are used.
    """
    tables = []
    for array in arrays:
        some = [fragment.manifest for fragment in array.fragments]
        if any(manifest.is_in_set or manifest.listed for manifest in some):
            table = _parquet_of(some[0])
            if len(some) != 1 or table is None:
                return None
            tables.append(table)
    if len({(table.store.root, *table.sources) for table in tables}) != 1:
        return None
    return _read_columns(tables[0])


def _parquet_of(manifest: ChunkManifest) -> ParquetTable | None:
    """Return the table behind a manifest if it is one of Parquet, and counts all of its rows."""
    if not isinstance(manifest, LazyManifest):
        return None
    table = manifest.counting.table
    is_whole = isinstance(table, ParquetTable) and table.rows == prod(manifest.shape)
    return table if is_whole and isinstance(table, ParquetTable) else None


def _read_columns(table: ParquetTable) -> FileColumns:
    """Return the table of files as it is stored, without an object for each of a million files."""
    urls, sizes, mtimes, etags = table.sources.read_columns(table.store)
    tidy = np.array([normalise_etag(etag) for etag in etags], object)
    return FileColumns(urls, sizes, mtimes, tidy, np.full(len(urls), np.nan))


def _find_used(manifest: ChunkManifest) -> FileColumns:
    """Return the files that chunks of a manifest lie in; tables may list more."""
    if (table := _parquet_of(manifest)) is not None:
        return _read_columns(table).take(table.count_sources(0, table.rows).chunks > 0)
    return FileColumns.of(map(_to_state, dict.fromkeys(_list_used(manifest))))


def _list_used(manifest: ChunkManifest) -> Iterator[SourceFile]:
    for _, part in iterate_references(manifest):
        yield from part.pruned().sources


def _to_state(file: SourceFile) -> FileState:
    size, mtime = (NO_NUMBER if n is None else n for n in (file.size, file.mtime))
    return FileState(file.url, size, mtime, normalise_etag(file.etag))
