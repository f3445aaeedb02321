"""The files of chunk manifests: entries of JSON, records of Parquet, and tables of sources."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest, gather_references, iterate_blocks
from virtualds.chunks.projection import Ints
from virtualds.errors import UnsupportedError
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr_manifests.parquet_table import (
    COUNTS,
    MOST_RUNS,
    Counts,
    add_counts,
    count_numbers,
    find_equal_runs,
)
from virtualds.formats.zarr_manifests.set_files import Fingerprint
from virtualds.formats.zarr_manifests.source_table import RECORD_SIZE
from virtualds.source_file import PRESENT, SourceFile

MOST_ENTRIES = 2**16
"""Chunks of a grid of which the missing ones get an entry too."""


class SourceNumbering:
    """The table of sources of one snapshot, which grows as references are written.

    Parameters
    ----------
    name : callable
        Takes a url, and returns the path to write.
    """

    def __init__(self, name: Callable[[str], str]) -> None:
        self.name = name
        self.files: dict[str, SourceFile] = {}
        self._numbers: dict[str, int] = {}
        self._together: dict[tuple[int, ...], tuple[tuple[SourceFile, ...], list[int]]] = {}

    def __len__(self) -> int:
        return len(self.files)

    def number(self, file: SourceFile) -> int:
        """Return the number of a file.

        Raises
        ------
        UnsupportedError
            It is there already, with another fingerprint.
        """
        known = self.files.setdefault(file.url, file)
        if (joined := known.joined_with(file)) is None:
            raise UnsupportedError(
                f"{file.url}: it was scanned twice and had changed in between (size, time, etag "
                f"{known.fingerprint} and {file.fingerprint}); scan it again"
            )
        self.files[file.url] = joined
        return self._numbers.setdefault(file.url, len(self._numbers))

    def number_all(self, files: tuple[SourceFile, ...]) -> list[int]:
        """Return the numbers of files; the last answer is kept, since arrays share files.

        Raises
        ------
        UnsupportedError
            A file is there already, with another fingerprint.
        """
        key = (len(files), *map(id, files[:1] + files[-1:]))
        known, numbers = self._together.get(key, ((), []))
        if len(known) != len(files) or not all(map(is_, known, files)):
            numbers = list(map(self.number, files))
            self._together[key] = files, numbers
        return numbers


def list_fingerprints(
    parts: Iterable[ManifestPart], name: Callable[[str], str], *, every: bool = False
) -> dict[str, Fingerprint]:
    """Return the fingerprints of the files of parts, or of every file, by written path."""
    known = SourceNumbering(name)
    for part in parts:
        for file in part.manifest.sources:
            known.number(file)
    return {name(f.url): f.fingerprint for f in known.files.values() if every or any(f.fingerprint)}


def encode_entries(
    parts: Iterable[ManifestPart], name: Callable[[str], str], numbered: bool
) -> dict[str, dict[str, Any]]:
    """Return the chunks of parts as entries of JSON.

    Parameters
    ----------
    parts : iterable of ManifestPart
    name : callable
        Takes a url, and returns the path to write.
    numbered : bool
        Whether keys begin with the number of the fragment.
    """
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        ids, manifest = _list_entries(part.manifest)
        paths = [name(file.url) for file in manifest.files]
        columns = ("file", "offset", "length", "pipeline", "checksum")
        rows = zip(*(getattr(manifest, c).ravel().tolist() for c in columns), strict=True)
        for place, row in zip(_list_places(part, ids), rows, strict=True):
            key = ".".join(map(str, place)) or "0"
            found[f"{part.fragment}.{key}" if numbered else key] = _to_entry(row, paths, manifest)
    return found


def _list_entries(manifest: ChunkManifest) -> tuple[Ints, ChunkManifest]:
    """Return the chunks that get an entry: all of them, or, of a large grid, those that exist."""
    if manifest.size > MOST_ENTRIES:
        return gather_references(manifest)
    return np.arange(manifest.size), manifest.loaded().reshape((manifest.size,))


def _list_places(part: ManifestPart, ids: Ints) -> Iterable[tuple[int, ...]]:
    """Return the places of chunks in the grid of their fragment."""
    if not part.origin:
        return [()] * ids.size
    places = np.unravel_index(ids, part.manifest.shape)
    moved = ((place + begin).tolist() for place, begin in zip(places, part.origin, strict=True))
    return zip(*moved, strict=True)


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


class TableRecords:
    """The records of a table of all chunks of a manifest, in C order, and what they count.

    Parameters
    ----------
    manifest : ChunkManifest
    sources : SourceNumbering
    pipelines : bool
        Whether rows have a pipeline.
    """

    def __init__(self, manifest: ChunkManifest, sources: SourceNumbering, pipelines: bool) -> None:
        self._manifest = manifest
        self._sources = sources
        self._pipelines = pipelines
        self._counted: list[tuple[int, Ints]] = []

    def encode(self) -> Iterator[bytes]:
        """Yield the records."""
        for _, rows in iterate_blocks(self._manifest, most=RECORD_SIZE):
            some = rows.pruned()
            numbers = _number_sources(some, self._sources)
            self._counted.append(count_numbers(numbers))
            yield _encode_record(some, numbers, self._pipelines)

    def encode_counts(self) -> tuple[Counts, bytes | None]:
        """Return the counts of the encoded records, and the file that holds them, if one does."""
        length = max((low + counts.size for low, counts in self._counted), default=0)
        counted = add_counts(self._counted, length)
        runs = find_equal_runs(counted)
        if len(runs) <= MOST_RUNS:
            return Counts(tuple((files, chunks) for files, chunks in runs.tolist())), None
        return Counts(path=COUNTS), _encode_runs(runs)


def _encode_runs(runs: Ints) -> bytes:
    import pyarrow as pa

    files, chunks = runs.T
    arrays = {"files": pa.array(files), "chunks": pa.array(chunks)}
    return _encode_parquet(arrays, tuple(arrays))


def encode_placed_records(
    numbers: Ints, rows: ChunkManifest, sources: SourceNumbering
) -> Iterator[bytes]:
    """Yield the records of a table of some chunks, with the number of each.

    Parameters
    ----------
    numbers : int64 array, shape (n,)
        Of the chunks, rising.
    rows : ChunkManifest, shape (n,)
    sources : SourceNumbering
        As in `encode_records`.
    """
    for begin in range(0, rows.size, RECORD_SIZE):
        some = slice(begin, begin + RECORD_SIZE)
        part = rows.take(0, some).pruned()
        yield _encode_record(part, _number_sources(part, sources), False, numbers[some])


def _number_sources(rows: ChunkManifest, sources: SourceNumbering) -> npt.NDArray[np.int32]:
    """Return the number of the file of each row in the table of sources."""
    # negative codes index from the end, so they map to themselves
    known = np.array([*sources.number_all(rows.files), INLINE, MISSING], np.int32)
    found: npt.NDArray[np.int32] = known[rows.file]
    return found


def _encode_record(
    rows: ChunkManifest, source: npt.NDArray[np.int32], pipelines: bool, numbers: Ints | None = None
) -> bytes:
    import pyarrow as pa

    held = rows.file == INLINE
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
    if held.any():
        data: list[bytes | None] = [None] * rows.size
        for row, number in zip(
            np.flatnonzero(held).tolist(), rows.offset[held].tolist(), strict=True
        ):
            data[row] = rows.inline[number]
        arrays["data"] = pa.array(data, pa.binary())
    return _encode_parquet(arrays, ("source", "offset", "length", "chunk"))


def list_source_rows(sources: SourceNumbering) -> list[tuple[str, Fingerprint]]:
    """Return the written paths and the fingerprints of the files of a table."""
    return [(sources.name(file.url), file.fingerprint) for file in sources.files.values()]


def encode_source_rows(rows: Sequence[tuple[str, Fingerprint]]) -> Iterator[bytes]:
    """Yield the records of a table of files, given by written path and fingerprint."""
    import pyarrow as pa

    kinds = {"path": pa.string(), "size": pa.int64(), "mtime": pa.int64(), "etag": pa.string()}
    for first in range(0, len(rows), RECORD_SIZE):
        some = rows[first : first + RECORD_SIZE]
        columns = zip(*((path, *known) for path, known in some), strict=True)
        yield _encode_parquet(
            {n: pa.array(c, kinds[n]) for n, c in zip(kinds, columns, strict=True)}, ()
        )


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
