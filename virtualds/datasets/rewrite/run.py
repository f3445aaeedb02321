"""Rewriting: reads the values of chunks that a format cannot hold, and encodes and stores them.

Blocks of chunks are read, encoded and written one after the other, on all cores, so that memory
holds a few blocks, whatever the size of the archive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import COLUMNS, INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.rewrite.blocks import Box, list_blocks, list_cells
from virtualds.datasets.rewrite.cells import Mask
from virtualds.datasets.rewrite.chunk_files import ChunkFiles
from virtualds.datasets.rewrite.encodings import Array
from virtualds.datasets.rewrite.plan import VariablePlan
from virtualds.errors import VirtualdsError
from virtualds.reading.threads import run_all
from virtualds.source_file import SourceFile, StorageOptions

TINY = 512
"""Bytes up to which an encoded chunk is held in the set itself."""

Tell = Callable[[int], object]
"""Takes the number of bytes that have just been rewritten, before codecs."""


def rewrite_group(
    group: ManifestGroup,
    plans: Mapping[str, VariablePlan],
    root: str,
    options: StorageOptions | None,
    tell: Tell,
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
    """
    done: dict[str, ManifestVariable] = {}
    for path, plan in plans.items():
        writer = _ChunkWriter(plan, ChunkFiles.of(root, plan, options), tell)
        try:
            done[path] = plan.finish(writer.write_all())
        except VirtualdsError as error:
            error.add_note(f"variable {path!r}")
            raise
        except KeyboardInterrupt as error:
            error.add_note(
                f"the chunks that are done stay in {root}; the same call goes on from there"
            )
            raise
    return _replace_variables(group, done)


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
    lengths: dict[str, int] = field(default_factory=dict)
    tiny: dict[str, bytes] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)
    checked: bool = False

    def write_all(self) -> ChunkManifest:
        """Write all chunks, and return the manifest of the variable."""
        cells, main = self.plan.cells, self.plan.main
        self.lengths = self.files.list_present()
        if self.plan.filled.any():
            self._put("fill", main.encode_fill())
        if cells.gaps.any():
            gap = np.full(main.chunks, self.plan.array.fill_value, self.plan.array.dtype)
            self._put("gap", main.encode(gap))
        waiting = self._find_waiting()
        self.tell(main.nbytes * int(self.plan.nchunks - np.count_nonzero(waiting)))
        if waiting.any():
            blocks = list_blocks(self.plan.array, main.chunks, waiting)
            run_all(iter(blocks), lambda box: self._write_block(box, waiting))
        return self._build_manifest()

    def _find_waiting(self) -> Mask:
        """Return the cells that no earlier run has written."""
        waiting = self.plan.cells.rewritten.copy()
        for cell in np.argwhere(waiting):
            waiting[tuple(cell)] = _name(tuple(cell.tolist())) not in self.lengths
        return waiting

    def _write_block(self, box: Box, waiting: Mask) -> None:
        try:
            values = self.plan.array.read(box)
            for cell, part in list_cells(box, self.plan.main.chunks):
                if self.stopping.is_set():
                    return
                if waiting[cell]:
                    self._write_cell(cell, values[part])
        except BaseException:
            # an interrupt reaches one thread only
            self.stopping.set()
            raise

    def _write_cell(self, cell: tuple[int, ...], values: Array) -> None:
        main = self.plan.main
        data = main.encode(values)
        if not self.checked:
            main.demand_exact(data, values)
            self.checked = True
        self._put(_name(cell), data)
        self.tell(main.nbytes)

    def _put(self, name: str, data: bytes) -> None:
        if len(data) <= TINY:
            self.tiny[name] = data
        elif name not in self.lengths:
            self.files.put(name, data)
            self.lengths[name] = len(data)

    def _build_manifest(self) -> ChunkManifest:
        """Return the references that stay, and those to the chunks that were written."""
        kept = self.plan.cells.kept
        files, inline = list(kept.files), list(kept.inline)
        columns = {name: np.array(getattr(kept, name)) for name in COLUMNS if name != "pipeline"}
        for name, where in self._list_written():
            if (held := self.tiny.get(name)) is not None:
                row = (INLINE, len(inline), len(held), 0)
                inline.append(held)
            else:
                length, url = self.lengths[name], f"{self.files.folder}/{name}"
                row = (len(files), 0, length, 0)
                files.append(SourceFile(url, length, options=self.files.options))
            for column, value in zip(columns.values(), row, strict=True):
                column[where] = value
        return ChunkManifest.build(kept.shape, files=files, inline=inline, **columns)

    def _list_written(self) -> Iterator[tuple[str, Any]]:
        """Yield the names of chunks that were written, and the cells that are such a chunk."""
        for name, where in (("fill", self.plan.filled), ("gap", self.plan.cells.gaps)):
            if where.any():
                yield name, where
        for cell in map(tuple, np.argwhere(self.plan.cells.rewritten).tolist()):
            yield _name(cell), cell


def _name(cell: tuple[int, ...]) -> str:
    """Return the name of the chunk of a cell."""
    return ".".join(map(str, cell)) or "0"
