"""Rewriting: reads the values of chunks that a format cannot hold, and encodes and stores them.

Blocks of chunks are read, encoded and written one after the other, on all cores, so that memory
holds a few blocks, whatever the size of the archive.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import COLUMNS, INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.rewrite.blocks import Box, list_blocks, list_cells
from virtualds.datasets.rewrite.cells import Mask
from virtualds.datasets.rewrite.chunk_files import ChunkFiles, Rows
from virtualds.datasets.rewrite.originals import keep_original
from virtualds.datasets.rewrite.plan import VariablePlan
from virtualds.errors import VirtualdsError
from virtualds.reading.threads import run_all
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.retry import explain_interrupt

TINY = 512
"""Bytes up to which chunks are held in the set itself."""

Tell = Callable[[int], object]
"""Takes the number of bytes that have just been rewritten, before codecs."""


def rewrite_group(
    group: ManifestGroup,
    plans: Mapping[str, VariablePlan],
    root: str,
    options: StorageOptions | None,
    tell: Tell,
    *,
    keep: bool,
) -> ManifestGroup:
    """Return a group whose planned variables have all chunks in their main encodings.

    Parameters
    ----------
    group : ManifestGroup
    plans : mapping of str to VariablePlan
        By path of the variable.
    root : str
        Url of the folder of rewritten chunks. Those that it has already are not written again.
    options : StorageOptions, optional
        Access options of the folder.
    tell : callable
    keep : bool
        Whether the chunks stay in the folder, and `verify` is to know what they were made of.
    """
    done: dict[str, ManifestVariable] = {}
    for path, plan in plans.items():
        writer = _ChunkWriter(plan, ChunkFiles.of(root, plan, options), tell)
        try:
            with explain_interrupt(lambda: _describe_interrupt(root)):
                done[path] = plan.finish(writer.write_all())
                if keep and writer.has_files:
                    keep_original(plan, writer.files)
        except VirtualdsError as error:
            error.locate(f"variable {path!r}")
            raise
    return _replace_variables(group, done)


def _describe_interrupt(root: str) -> str:
    return f"the chunks that are done stay in {root}; the same call goes on from there"


def _replace_variables(
    group: ManifestGroup, done: Mapping[str, ManifestVariable], path: str = ""
) -> ManifestGroup:
    prefix = f"{path}/" if path else ""
    return replace(
        group,
        variables={name: done.get(prefix + name, v) for name, v in group.variables.items()},
        groups={n: _replace_variables(g, done, prefix + n) for n, g in group.groups.items()},
    )


@dataclass
class _ChunkWriter:
    """Writes the chunks of one variable."""

    plan: VariablePlan
    files: ChunkFiles
    tell: Tell
    stopping: threading.Event = field(default_factory=threading.Event)
    checked: bool = False
    has_files: bool = False

    def write_all(self) -> ChunkManifest:
        """Write all chunks, and return the manifest of the variable."""
        plan, main = self.plan, self.plan.main
        table = _ChunkTable(plan.cells.kept)
        if plan.filled.any():
            table.add_shared(plan.filled, main.encode_fill(), self._put)
        if plan.cells.gaps.any():
            gap = np.full(main.chunks, plan.array.fill_value, plan.array.dtype)
            table.add_shared(plan.cells.gaps, main.encode(gap), self._put)
        self.tell(main.nbytes * int(np.count_nonzero(plan.filled | plan.cells.gaps)))
        blocks = list_blocks(plan.array, main.chunks, plan.cells.rewritten)
        present = self.files.list_present() if blocks else {}
        run_all(iter(blocks), lambda box: self._write_block(box, present, table))
        self.has_files = bool(blocks) and self.plan.main.nbytes > TINY
        return table.build()

    def _write_block(self, box: Box, present: Mapping[str, SourceFile], table: _ChunkTable) -> None:
        try:
            name = _name_box(box, self.plan.main.chunks)
            if name in present and (rows := self.files.read_rows(present[name])) is not None:
                table.add_file(present[name], rows)
                self.tell(self.plan.main.nbytes * len(rows))
                return
            chunks = list(self._encode_block(box))
            if self.stopping.is_set():
                return
            if self.plan.main.nbytes <= TINY:
                table.add_inline(chunks)
            else:
                file = self.files.put(name, chunks)
                table.add_file(file, [(cell, len(data)) for cell, data in chunks])
        except BaseException:
            # an interrupt reaches one thread only
            self.stopping.set()
            raise

    def _encode_block(self, box: Box) -> Iterator[tuple[int, bytes]]:
        """Yield the cells of a block that are rewritten, by number, and their chunks."""
        main, wanted = self.plan.main, self.plan.cells.rewritten
        values = self.plan.array.read(box)
        for cell, part in list_cells(box, main.chunks):
            if self.stopping.is_set():
                return
            if wanted[cell]:
                data = main.encode(values[part])
                if not self.checked:
                    main.demand_exact(data, values[part])
                    self.checked = True
                yield int(np.ravel_multi_index(cell, wanted.shape)) if cell else 0, data
                self.tell(main.nbytes)

    def _put(self, data: bytes) -> SourceFile:
        """Write a chunk that many cells are."""
        name = hashlib.sha256(data).hexdigest()[:16]
        return self.files.put(name, [(-1, data)])


class _ChunkTable:
    """The references of a variable; many threads add those that were written."""

    def __init__(self, kept: ChunkManifest) -> None:
        self._files, self._inline = list(kept.files), list(kept.inline)
        self._shape = kept.shape
        self._columns = {n: np.array(getattr(kept, n)) for n in COLUMNS if n != "pipeline"}
        self._lock = threading.Lock()

    def add_file(self, file: SourceFile, rows: Rows) -> None:
        """Add the chunks of a file."""
        cells, lengths = np.array(rows, np.int64).reshape(-1, 2).T
        offsets = np.cumsum(lengths) - lengths
        with self._lock:
            self._set(
                np.unravel_index(cells, self._shape or (1,)), len(self._files), offsets, lengths
            )
            self._files.append(file)

    def add_inline(self, chunks: Sequence[tuple[int, bytes]]) -> None:
        """Add chunks that the set holds itself."""
        cells, held = zip(*chunks, strict=True)
        with self._lock:
            numbers = np.arange(len(held)) + len(self._inline)
            lengths = np.array([len(data) for data in held])
            where = np.unravel_index(np.array(cells), self._shape or (1,))
            self._set(where, INLINE, numbers, lengths)
            self._inline += held

    def add_shared(self, where: Mask, data: bytes, put: Callable[[bytes], SourceFile]) -> None:
        """Add a chunk that many cells are."""
        if len(data) <= TINY:
            self._set(where, INLINE, len(self._inline), len(data))
            self._inline.append(data)
        else:
            self._set(where, len(self._files), 0, len(data))
            self._files.append(put(data))

    def _set(self, where: Any, file: int, offset: Any, length: Any) -> None:
        values = {"file": file, "offset": offset, "length": length, "checksum": 0}
        for name, value in values.items():
            self._columns[name][where if self._shape else ...] = np.squeeze(value)

    def build(self) -> ChunkManifest:
        """Return the manifest."""
        return ChunkManifest.build(
            self._shape, files=self._files, inline=self._inline, **self._columns
        )


def _name_box(box: Box, chunks: Sequence[int]) -> str:
    """Return the name of the file of a block: its first and last cell per axis."""
    pairs = zip(box, chunks, strict=True)
    return ".".join(f"{s.start // c}-{-(-s.stop // c) - 1}" for s, c in pairs) or "0"
