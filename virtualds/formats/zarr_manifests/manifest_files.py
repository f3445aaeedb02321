"""The files of chunk manifests: entries of JSON, records of Parquet, and tables of sources."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import INLINE, MISSING, Ints
from virtualds.chunks.manifest import ChunkManifest, gather_references, iterate_blocks
from virtualds.formats.kerchunk.records import encode_inline
from virtualds.formats.referenced_files import Fingerprint, NumberedFiles
from virtualds.formats.zarr.document import DOTTED_KEYS
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr_manifests.parquet_table import (
    COUNTS,
    MOST_RUNS,
    RECORD_SIZE,
    Counts,
    SourceTable,
    add_counts,
    count_numbers,
    find_equal_runs,
    list_path_ranges,
)
from virtualds.progress import Advance
from virtualds.source_file import PRESENT

MOST_ENTRIES = 2**16
"""Chunks of a grid of which the missing ones get an entry too."""


def encode_entries(
    parts: Iterable[ManifestPart], name: Callable[[str], str], numbered: bool
) -> dict[str, dict[str, Any]]:
    """Return the chunks of parts as entries of JSON.

    ``name`` takes a url, and returns the path to write. ``numbered`` says whether keys begin with
    the number of the fragment.
    """
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        ids, manifest = _list_entries(part.manifest, numbered)
        paths = [name(file.url) for file in manifest.files]
        columns = ("file", "offset", "length", "pipeline", "checksum")
        rows = zip(*(getattr(manifest, c).ravel().tolist() for c in columns), strict=True)
        keys = DOTTED_KEYS.list_keys(ids, part.manifest.shape, part.origin)
        for key, row in zip(keys, rows, strict=True):
            found[f"{part.fragment}.{key}" if numbered else key] = _to_entry(row, paths, manifest)
    return found


def _list_entries(manifest: ChunkManifest, numbered: bool) -> tuple[Ints, ChunkManifest]:
    """Return the chunks that get an entry: all of them, or, of a large grid, those that exist.

    Where most are missing an entry would only say so, or which pipeline a missing chunk has.
    """
    if manifest.size > MOST_ENTRIES or (manifest.rest is not None and not numbered):
        return gather_references(manifest)
    return np.arange(manifest.size), manifest.loaded().reshape((manifest.size,))


def _to_entry(
    row: tuple[int, int, int, int, int], paths: list[str], manifest: ChunkManifest
) -> dict[str, Any]:
    file, offset, length, pipeline, checksum = row
    found: dict[str, Any] = {"pipeline": pipeline} if pipeline else {}
    if file == MISSING:
        return found
    if file == INLINE:
        found["data"] = base64.b64encode(manifest.inline[offset]).decode()
    else:
        found |= {"path": paths[file], "offset": offset, "length": length}
    return found | ({"checksum": f"crc32:{checksum - PRESENT:08x}"} if checksum else {})


class TableWriter:
    """Writes tables of references, and the table of the files that they number.

    ``put`` writes a file of the set, of a path that no other writer uses; ``name`` takes a url, and
    returns the path to write.
    """

    def __init__(self, put: Callable[[str, bytes], None], name: Callable[[str], str]) -> None:
        self._put = put
        self._sources = NumberedFiles(name)

    def _number_sources(self, rows: ChunkManifest) -> npt.NDArray[np.int32]:
        """Return the number of the file of each row in the table of sources."""
        # negative codes index from the end, so they map to themselves
        known = np.array([*self._sources.number_all(rows.files), INLINE, MISSING], np.int32)
        found: npt.NDArray[np.int32] = known[rows.file]
        return found

    def write_table(
        self, folder: str, manifest: ChunkManifest, pipelines: bool, advance: Advance
    ) -> Counts:
        """Write the rows of all chunks, in C order; return how many lie in each file.

        ``pipelines`` says whether rows have a pipeline.
        """
        import pyarrow as pa

        counted, names = list[tuple[int, Ints]](), ("files", "chunks")
        for record, (_, rows) in enumerate(iterate_blocks(manifest, most=RECORD_SIZE)):
            some = rows.pruned()
            numbers = self._number_sources(some)
            counted.append(count_numbers(numbers))
            self._put(f"{folder}/{record}.parquet", _encode_record(some, numbers, pipelines))
            advance(rows.size)
        length = max((low + counts.size for low, counts in counted), default=0)
        runs = find_equal_runs(add_counts(counted, length))
        if len(runs) <= MOST_RUNS:
            return Counts(tuple((files, chunks) for files, chunks in runs.tolist()))
        arrays = {name: pa.array(column) for name, column in zip(names, runs.T, strict=True)}
        self._put(f"{folder}/{COUNTS}", _encode_parquet(arrays, names))
        return Counts(path=COUNTS)

    def write_placed(
        self, folder: str, numbers: Ints, rows: ChunkManifest, advance: Advance
    ) -> None:
        """Write the rows of some chunks, with their numbers, which rise."""
        for record, begin in enumerate(range(0, rows.size, RECORD_SIZE)):
            some = slice(begin, begin + RECORD_SIZE)
            part = rows.take(0, some).pruned()
            data = _encode_record(part, self._number_sources(part), False, numbers[some])
            self._put(f"{folder}/{record}.parquet", data)
            advance(part.size)

    def write_sources(self, folder: str) -> SourceTable:
        """Write the table of files, when all tables are written."""
        rows = self._sources.list_rows()
        write_source_rows(folder, rows, self._put)
        ranges = list_path_ranges([path for path, _ in rows])
        return SourceTable(folder, len(rows), tuple((first, last) for first, last in ranges))


def _encode_record(
    rows: ChunkManifest, source: npt.NDArray[np.int32], pipelines: bool, numbers: Ints | None = None
) -> bytes:
    import pyarrow as pa

    there = rows.file >= 0
    columns: dict[str, Any] = {
        "source": source,
        "offset": np.where(there, rows.offset, 0),
        "length": np.where(rows.file == MISSING, 0, rows.length),
    }
    if numbers is not None:
        columns["chunk"] = numbers
    if pipelines:
        columns["pipeline"] = np.asarray(rows.pipeline, np.uint16)
    if rows.checksum.any():
        columns["checksum"] = np.asarray(rows.checksum, np.uint64)
    arrays = {name: pa.array(column) for name, column in columns.items()}
    if (rows.file == INLINE).any():
        arrays["data"] = encode_inline(rows, rows.file)
    return _encode_parquet(arrays, ("source", "offset", "length", "chunk"))


def write_source_rows(
    folder: str, rows: Sequence[tuple[str, Fingerprint]], put: Callable[[str, bytes], None]
) -> None:
    """Write the records of a table of files, given by written path and fingerprint."""
    import pyarrow as pa

    kinds = {"path": pa.string(), "size": pa.int64(), "mtime": pa.int64(), "etag": pa.string()}
    for record, first in enumerate(range(0, len(rows), RECORD_SIZE)):
        some = rows[first : first + RECORD_SIZE]
        columns = zip(*((path, *known) for path, known in some), strict=True)
        arrays = {n: pa.array(c, kinds[n]) for n, c in zip(kinds, columns, strict=True)}
        put(f"{folder}/{record}.parquet", _encode_parquet(arrays, ()))


def _encode_parquet(arrays: Mapping[str, Any], delta: tuple[str, ...]) -> bytes:
    """Return columns as a Parquet file; ``delta`` columns are written as differences."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(dict(arrays)),
        sink,
        compression="zstd",
        use_dictionary=[name for name in arrays if name in ("etag", "pipeline")],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in delta if name in arrays},
        write_statistics=False,
    )
    return bytes(sink.getvalue())
