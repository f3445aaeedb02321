"""The files along a dimension that a set knows, with their fingerprints, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.source_positions import split_blocks
from virtualds.formats.zarr_manifests.parquet_table import ParquetTable
from virtualds.source_file import SourceFile
from virtualds.stores.listing import NO_NUMBER, FileColumns, FileState
from virtualds.stores.responses import normalise_etag
from virtualds.urls import lies_under


def tabulate_sources(group: ManifestGroup, dim: str, root: str) -> FileColumns:
    """Return the files that follow each other along a dimension of a set.

    Parameters
    ----------
    group : ManifestGroup
    dim : str
    root : str
        The url of the set. Files in it are its own copies.
    """
    tables: dict[int | tuple[str, ...], FileColumns] = {}
    keys = [
        {_take_table(fragment.manifest, tables) for fragment in array.fragments}
        for array in _list_arrays(group, dim)
    ]
    found = FileColumns.join(list(tables.values()))
    if not len(found):
        return found
    doubtful = _find_doubtful(found, keys, tables)
    found = found.take(~pd.Index(found.urls).isin(doubtful))
    found = found.take(~pd.Index(found.urls).duplicated())
    if doubtful:
        used = _find_used(_list_arrays(group, dim), doubtful)
        found = FileColumns.join([found, FileColumns.of(map(_to_state, used))])
    own = np.fromiter((lies_under(url, root) for url in found.urls), bool, len(found))
    return found.take(~own)


def _list_arrays(group: ManifestGroup, dim: str) -> list[ManifestArray]:
    along = (v.data for v in group.variables.values() if dim in v.dims)
    return [data for data in along if isinstance(data, ManifestArray)]


def _take_table(
    manifest: ChunkManifest, tables: dict[int | tuple[str, ...], FileColumns]
) -> int | tuple[str, ...]:
    """Read the table of files of a manifest, unless it has been read; return its key."""
    table = manifest.counting.table if isinstance(manifest, LazyManifest) else None
    if isinstance(table, ParquetTable):
        # the columns as they are stored, and no object for each of a million files
        key: int | tuple[str, ...] = (table.store.root, *map(str, table.sources))
        if key not in tables:
            urls, sizes, mtimes, etags = table.sources.read_columns(table.store, NO_NUMBER)
            unknown = np.full(len(urls), np.nan)
            tidy = np.array([normalise_etag(etag) for etag in etags], object)
            tables[key] = FileColumns(urls, sizes, mtimes, tidy, unknown)
        return key
    listed = manifest.listed
    if id(listed) not in tables:
        tables[id(listed)] = FileColumns.of(map(_to_state, listed))
    return id(listed)


def _to_state(file: SourceFile) -> FileState:
    size, mtime = (NO_NUMBER if n is None else n for n in (file.size, file.mtime))
    return FileState(file.url, size, mtime, normalise_etag(file.etag))


def _find_doubtful(
    found: FileColumns,
    keys: Iterable[set[int | tuple[str, ...]]],
    tables: dict[int | tuple[str, ...], FileColumns],
) -> set[str]:
    """Return files that only some arrays list, or that are listed with different fingerprints.

    Arrays may share a table, and may keep one after others were written anew without a file.
    """
    distinct = {frozenset(some) for some in keys}
    if len(distinct) == 1:
        return set()
    listed = [{url for key in some for url in tables[key].urls} for some in distinct]
    doubtful = set.union(*listed) - set.intersection(*listed)
    frame = pd.DataFrame({"url": found.urls, "size": found.sizes, "mtime": found.mtimes})
    states = frame.assign(etag=found.etags).drop_duplicates()
    return doubtful | set(states["url"][states["url"].duplicated()])


def _find_used(arrays: Iterable[ManifestArray], urls: set[str]) -> Iterator[SourceFile]:
    """Yield those of some files that chunks lie in, each once."""
    found: dict[str, SourceFile] = {}
    for array in arrays:
        for fragment in array.fragments:
            for _, part in split_blocks(fragment.manifest):
                used = (file for file in part.pruned().sources if file.url in urls)
                found.update((file.url, file) for file in used)
    yield from found.values()
