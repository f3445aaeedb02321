"""Strided manifests: chunks of one length at equal distances in one file.

Records of a classic netCDF file lie like this, a million of them for each variable. Three numbers
describe them; offsets are computed for the chunks that are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.source_file import SourceFile


@dataclass(frozen=True)
class StridedReferences:
    """References to ``count`` chunks of one length in one file, each ``step`` behind the last.

    Parameters
    ----------
    file : SourceFile
    first, step, length : int
        Where the first chunk begins, how far apart chunks begin, and how long each is, in bytes.
    count : int

    Raises
    ------
    FormatError
        The chunks do not lie inside the file.
    """

    file: SourceFile
    first: int
    step: int
    length: int
    count: int

    has_pipelines: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # if the first and the last chunk are valid, all between them are
        self.load(np.array([0, self.count - 1], np.int64))

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the file that they lie in."""
        if not ids.size:
            return ChunkManifest.missing(ids.shape)
        offset = self.first + self.step * ids
        return ChunkManifest.build(ids.shape, files=(self.file,), offset=offset, length=self.length)

    def list_numbers(self) -> None:
        """Return None: all chunks exist."""

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return the file."""
        return (self.file,)

    def summarize_sources(self) -> None:
        """Return None: there is one file, and no list."""


class StridedManifest(LazyManifest):
    """A manifest that counts the chunks of an `StridedReferences`.

    Access is as cheap as with columns; joining it with other manifests makes columns.

    Examples
    --------
    >>> file = SourceFile("file:///a.nc", size=2**30)
    >>> references = StridedReferences(file, first=96, step=24, length=8, count=10**6)
    >>> records = StridedManifest(references, (10**6,))
    >>> records.lookup((999_999,)).offset, records.nbytes
    (24000072, 32)
    """

    __slots__ = ()

    _table: StridedReferences

    @property
    def _where(self) -> str:
        return " of 1 file"

    @property
    def is_in_set(self) -> bool:
        """Whether the references lie in a reference set: they do not."""
        return False

    @property
    def nbytes(self) -> int:
        """Bytes that the references take in memory: those of four numbers."""
        return 32

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The table that the column ``file`` counts."""
        return self._table.list_sources()

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """The file that the chunks lie in."""
        return self._table.list_sources()

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ChunkManifest:
        """Return the manifest with its source file replaced by what ``change`` makes of it."""
        return self._locate_in(change(self._table.file), 0)

    def relocated(self, places: Sequence[tuple[SourceFile, int]]) -> ChunkManifest:
        """Return the manifest with its file being a piece of another one."""
        [(file, begin)] = places
        return self._locate_in(file, begin)

    def _locate_in(self, file: SourceFile, begin: int) -> StridedManifest:
        table = replace(self._table, file=file, first=self._table.first + begin)
        return StridedManifest(table, self._shape, self._strides, self._base, self._renumbered)
