"""Keep a kerchunk Parquet set in order: join its records, and move its sources.

The records of a set have fixed names, so both write the set anew beside the old one, and exchange
the folders: on local disk alone. A reader of the old set gets an error that says to open it again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from virtualds.chunks.manifest import ChunkManifest
from virtualds.formats.kerchunk.parquet import (
    RECORD_SIZE,
    ParquetSet,
    demand_exchange,
    files_of,
    hierarchy_of,
)
from virtualds.formats.kerchunk.parquet_append import find_set, replace_folder
from virtualds.formats.markers import ZMETADATA
from virtualds.formats.same_references import demand_same_rows
from virtualds.formats.zarr.v2_write import RELATIVE
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.fence import explain_vanished_files

ROOM = 10_000
"""References in a record, at least, after records were joined: more will follow."""


def join_records(url: str, options: StorageOptions | None = None) -> bool:
    """Write the references of a set in larger records; say whether that takes fewer of them.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    UnsupportedError
        The set does not lie on local disk.
    """
    url = url.rstrip("/")
    found, version, _ = find_set(url, options)
    counts = [array.manifest.size for array in found.read_arrays().values()]
    size = min(RECORD_SIZE, max([ROOM, *counts]))
    if _count_records(counts, size) >= _count_records(counts, found.records.size):
        return False
    demand_exchange(url)
    with _explained(found, version):
        relative = bool(found.notes.get(RELATIVE))
        hierarchy = hierarchy_of(found.read_tree(), url, relative=relative)
        files = files_of(hierarchy, size, partial(_check_record, found))
        replace_folder(found, version, files)
    return True


def _count_records(counts: list[int], size: int) -> int:
    return sum(-(-count // size) for count in counts)


def _check_record(found: ParquetSet, rows: ChunkManifest, data: bytes) -> None:
    """Prove that a record holds the references of its rows."""
    url = found.source.url
    demand_same_rows(rows, found.records.parse(data, url).take(0, slice(0, rows.size)), url)


def _explained(found: ParquetSet, version: str) -> Any:
    """Turn errors of files that vanish into a conflict, if another writer replaced the set."""
    url, options = found.source.url, found.source.options
    marker = f"{url}/{ZMETADATA}"
    return explain_vanished_files(
        lambda: find_store(url).find_version(marker, options) == version, url
    )
