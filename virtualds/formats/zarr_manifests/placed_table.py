"""Chunk manifests in Parquet whose rows say which chunk they are: few references on a huge grid.

``docs/reference/formats/zarr-v3.md`` specifies the form. Rows rise by the number of their chunk, so
that one record is read for one chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.reference_table import SourceSummary
from virtualds.chunks.sparse_manifest import spread_rows
from virtualds.errors import FormatError
from virtualds.formats.zarr_manifests.parquet_table import ParquetTable
from virtualds.formats.zarr_manifests.source_table import RECORD_SIZE, SetRecords, SourceTable
from virtualds.source_file import SourceFile


@dataclass(frozen=True)
class PlacedTable:
    """References with the numbers of their chunks; chunks of other numbers are missing.

    Parameters
    ----------
    references : ParquetTable
        A row for each chunk that exists.
    begins : tuple of int
        The number of the first chunk of every record.

    Raises
    ------
    FormatError
        There are more or fewer records than numbers.
    """

    references: ParquetTable
    begins: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.begins) != -(-self.references.rows // RECORD_SIZE):
            raise FormatError(
                f"{self.folder}: {self.references.rows} chunks in {len(self.begins)} records of "
                f"{RECORD_SIZE}; the set is damaged"
            )

    @property
    def store(self) -> SetRecords:
        """The set that the table lies in."""
        return self.references.store

    @property
    def folder(self) -> str:
        """The path of the records in the set."""
        return self.references.folder

    @property
    def sources(self) -> SourceTable:
        """The table of files."""
        return self.references.sources

    @property
    def has_pipelines(self) -> bool:
        """Whether every chunk has its own pipeline number."""
        return self.references.has_pipelines

    def describe_rows(self) -> dict[str, Any]:
        """Return what metadata say of its rows."""
        return {"chunks": self.references.rows, "begins": list(self.begins)}

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        flat = ids.ravel()
        record = np.searchsorted(np.array(self.begins, np.int64), flat, "right") - 1
        row = np.full(flat.size, -1)
        for number in np.unique(record[record >= 0]).tolist():
            wanted, known = record == number, self._read_numbers(number)
            place = np.searchsorted(known, flat[wanted])
            there = np.append(known, -1)[place] == flat[wanted]
            row[wanted] = np.where(there, number * RECORD_SIZE + place, -1)
        rows = self.references.load(row[row >= 0])
        return spread_rows(rows, row >= 0).reshape(ids.shape)

    def _read_numbers(self, record: int) -> Ints:
        """Return the numbers of the chunks of a record."""
        path = f"{self.folder}/{record}.parquet"
        found, where = self.store.read_record(path).get("chunk"), f"{self.store.root}/{path}"
        rows = min(RECORD_SIZE, self.references.rows - record * RECORD_SIZE)
        if not isinstance(found, np.ndarray) or found.shape != (rows,):
            raise FormatError(f"{where}: it does not say which {rows} chunks it has")
        if found[0] != self.begins[record] or (found[1:] <= found[:-1]).any():
            raise FormatError(f"{where}: the numbers of its chunks do not rise")
        return found.astype(np.int64, copy=False)

    def list_numbers(self) -> Ints:
        """Return the numbers of the chunks that exist."""
        found = [self._read_numbers(record) for record in range(len(self.begins))]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files of the table of sources."""
        return self.references.list_sources()

    def summarize_sources(self) -> SourceSummary:
        """Return a summary of the table of sources."""
        return self.references.summarize_sources()
