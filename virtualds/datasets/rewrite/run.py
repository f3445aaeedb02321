"""Rewriting: reads the values of chunks that a format cannot hold, and encodes and stores them.

Blocks of chunks are read, encoded and written one after the other, on all cores, so that memory
holds a few blocks, whatever the size of the archive.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import COLUMNS, INLINE, compact, digest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.datasets.rewrite.encodings import Mask, grid_of
from virtualds.datasets.rewrite.plan import VariablePlan
from virtualds.datasets.source_positions import SUFFIX, find_copy_folder
from virtualds.errors import AccessError, UnsupportedError, VirtualdsError
from virtualds.formats import ReadOptions, zarr_manifests
from virtualds.formats.zarr_manifests import read
from virtualds.options import MIB
from virtualds.reading.threads import run_all
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import AccessPolicy
from virtualds.stores.requests import explain_interrupt
from virtualds.urls import normalise_url, scheme_of

# ---------------------------------------------------------------------- files of chunks
# The files of rewritten chunks: a folder beside the set, named by what they were made of.
#
# A file holds the chunks of one block. Its name says variable, a hash of references and encoding,
# and position. So a killed rewrite goes on where it stopped, and never takes chunks of another
# state of the sources.


MAGIC = b"VDSCHNK1"
"""The last bytes of a file of chunks."""
ROW, TAIL = 16, 16
"""Bytes of a row, and of what comes behind the rows."""


Rows = list[tuple[int, int]]
"""Chunks of a file, one after the other: the number of the cell in C order, and the length."""


def encode_file(chunks: Sequence[tuple[int, bytes]]) -> bytes:
    """Return chunks as a file: their bytes, then their rows, their count and `MAGIC`."""
    rows = np.array([(cell, len(data)) for cell, data in chunks], "<i8")
    tail = rows.tobytes() + np.array([len(chunks)], "<i8").tobytes() + MAGIC
    return b"".join([*(data for _, data in chunks), tail])


def decode_rows(read: Callable[[int, int], bytes], size: int) -> Rows | None:
    """Return the rows of a file of a size; None if the file is none of ours, or damaged.

    ``read`` takes an offset and a length.
    """
    if size < TAIL:
        return None
    tail = read(size - TAIL, TAIL)
    count = int.from_bytes(tail[:8], "little")
    if tail[8:] != MAGIC or count * ROW > size - TAIL:
        return None
    begin = size - TAIL - count * ROW
    rows = np.frombuffer(read(begin, count * ROW), "<i8").reshape(-1, 2)
    whole = bool((rows[:, 1] >= 0).all()) and int(rows[:, 1].sum()) == begin
    return list(map(tuple, rows.tolist())) if whole else None


@dataclass(frozen=True)
class ChunkFiles:
    """The folder of one variable's rewritten chunks.

    Parameters
    ----------
    folder : str
        Its url.
    options : StorageOptions, optional
    """

    folder: str
    options: StorageOptions | None

    @classmethod
    def of(cls, root: str, plan: VariablePlan, options: StorageOptions | None) -> ChunkFiles:
        """Return the folder of a variable below the folder of all."""
        return cls(f"{root}/{plan.path}/{_identify(plan)}", options)

    def list_present(self) -> dict[str, SourceFile]:
        """Return the files that an earlier run has written, by name."""
        found = find_store(self.folder).list_files(self.folder, self.options)
        return {one.path: one.file for one in found if one.file.size is not None}

    def read_rows(self, file: SourceFile) -> Rows | None:
        """Return the rows of a file that an earlier run has written."""
        store = find_store(file.url)

        def read(offset: int, length: int) -> bytes:
            return store.get_ranges(file, [(offset, length)])[0] if length else b""

        return decode_rows(read, file.size or 0)

    def put(self, name: str, chunks: Sequence[tuple[int, bytes]]) -> SourceFile:
        """Write chunks to a file: under its name lies all of it or nothing."""
        url, data = f"{self.folder}/{name}", encode_file(chunks)
        find_store(url).write_file(url, data, self.options)
        return SourceFile(url, len(data), options=self.options)


def name_folder(target: Any) -> str:
    """Return the url of the folder of all rewritten chunks beside a set."""
    return f"{str(target).rstrip('/')}{SUFFIX}"


def choose_waiting_room(target: Any) -> str:
    """Return a folder where chunks wait until a format takes them into the set itself.

    It lies beside a local set, and else in a folder of temporary files that only this user owns.

    Raises
    ------
    AccessError
        Somebody else owns the folder.
    """
    if isinstance(target, str) and scheme_of(target) == "file":
        return name_folder(target)
    user = os.getuid() if hasattr(os, "getuid") else 0
    path = os.path.join(tempfile.gettempdir(), f"virtualds-{user}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != user):
        raise AccessError(f"{path}: it belongs to another user; remove it, or set TMPDIR")
    name = hashlib.sha256(str(target).encode()).hexdigest()[:16] if isinstance(target, str) else "o"
    return normalise_url(os.path.join(path, f"{name}{SUFFIX}"))


def _identify(plan: VariablePlan) -> str:
    """Return a hash of all that decides about the bytes of rewritten chunks."""
    found = hashlib.sha256()
    for part in _list_identity(plan.array, plan):
        found.update(part)
        found.update(b"\0")
    return found.hexdigest()[:16]


def _list_identity(array: ManifestArray, plan: VariablePlan) -> Iterator[Any]:
    yield repr((array.shape, array.dtype.str, repr(array.fill_value), plan.main)).encode()
    yield repr(_describe_packings([*array.pipelines, plan.main.pipeline])).encode()
    yield repr(array.pipelines).encode()
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        yield repr((fragment.start, digest(manifest.files)[0])).encode()
        for axis in fragment.axes:
            yield from (np.ascontiguousarray(column).data for column in axis.slabs())
        for name in COLUMNS:
            yield np.ascontiguousarray(compact(getattr(manifest, name))).data
        yield from manifest.inline


def _describe_packings(pipelines: Iterable[Any]) -> list[Any]:
    return [dict(p.packing.attributes) if p.packing else None for p in pipelines]


# ---------------------------------------------------------------------- originals
# The references of a rewritten variable as it was, kept beside its chunks for `verify`.


NAME = "original.zarr"
"""The set that holds the references, in the folder of the rewritten chunks."""
VARIABLE = "values"
"""The name of the variable in that set."""


@dataclass(frozen=True)
class Original:
    """A variable before it was rewritten.

    Parameters
    ----------
    array : ManifestArray
    chunks, order : tuple of int
        The chunk shape of its main encoding, and its axes in the order in which they are stored.
    is_decoded : bool
        Whether the array has the values of packed numbers.
    """

    array: ManifestArray
    chunks: tuple[int, ...]
    order: tuple[int, ...]
    is_decoded: bool

    def read(self, cell: int) -> npt.NDArray[Any]:
        """Return the values of a cell."""
        return self.array.read(self._find_box(cell))

    def show(self, stored: npt.NDArray[Any], cell: int) -> npt.NDArray[Any]:
        """Return the elements of a chunk that the array shows."""
        whole = stored.reshape([self.chunks[axis] for axis in self.order])
        box = self._find_box(cell)
        return whole.transpose(np.argsort(self.order))[tuple(slice(b.stop - b.start) for b in box)]

    def _find_box(self, cell: int) -> tuple[slice, ...]:
        grid = grid_of(self.array.shape, self.chunks)
        place = np.unravel_index(cell, grid) if grid else ()
        sizes = zip(place, self.chunks, self.array.shape, strict=True)
        return tuple(slice(int(i) * c, min((int(i) + 1) * c, n)) for i, c, n in sizes)


def keep_original(plan: VariablePlan, files: ChunkFiles) -> None:
    """Write the references of a variable before it is rewritten, beside its chunks."""
    main = plan.main
    noted = {
        "chunks": list(main.chunks),
        "order": list(main.order),
        "is_decoded": int(main.pipeline.packing is not None),
    }
    group = ManifestGroup({VARIABLE: plan.variable}, noted)
    # a store without conditional writes has no place for a set; verify says so then
    with suppress(UnsupportedError):
        zarr_manifests.write(group, f"{files.folder}/{NAME}", files.options, replace=True)


def find_original(file: SourceFile) -> Original | None:
    """Return the variable that the chunks of a file were made of; None if it is no such file."""
    folder = find_copy_folder(file.url)
    if folder is None:
        return None
    place = SourceFile(f"{folder}/{NAME}", options=file.options)
    try:
        group = read.read(place, ReadOptions(allow=AccessPolicy.of(None)))
    except FileNotFoundError:
        return None
    array, noted = group.variables[VARIABLE].data, group.attributes
    if not isinstance(array, ManifestArray):
        return None
    chunks, order = (tuple(np.atleast_1d(noted[n]).tolist()) for n in ("chunks", "order"))
    return Original(array, chunks, order, bool(noted["is_decoded"]))


# ---------------------------------------------------------------------- blocks
# Boxes of cells that are read together: none cuts a stored chunk, and each fits in memory.


BLOCK = 8 * MIB
"""Bytes that are read at a time, if chunks are not larger: an interrupt waits no longer."""
LARGEST_BLOCK = 64 * MIB
"""Bytes of a block above which chunks are decoded several times."""

Box = tuple[slice, ...]
"""Elements of an array, per axis."""


def list_blocks(array: ManifestArray, chunks: Sequence[int], wanted: Mask) -> list[Box]:
    """Return boxes of whole cells that hold all wanted cells of a grid, in C order."""
    itemsize = array.dtype.itemsize
    edges = [
        np.intersect1d(np.cumsum((0, *lengths)), np.append(np.arange(0, size, chunk), size))
        for lengths, size, chunk in zip(array.blocks, array.shape, chunks, strict=True)
    ]
    edges = _limit_blocks(edges, chunks, itemsize)
    spans = [list(zip(e[:-1].tolist(), e[1:].tolist(), strict=True)) for e in edges]
    found = [box for box in product(*spans) if _view(wanted, box, chunks).any()]
    whole = [box for box in found if _view(wanted, box, chunks).all()]
    rest = [_crop(box, wanted, chunks) for box in found if not _view(wanted, box, chunks).all()]
    for axis in reversed(range(array.ndim)):
        whole = _merge(whole, axis, BLOCK // max(itemsize, 1))
    return [tuple(slice(a, b) for a, b in box) for box in sorted([*whole, *rest])]


def list_cells(box: Box, chunks: Sequence[int]) -> Iterable[tuple[tuple[int, ...], Box]]:
    """Yield the cells of a box, each with its elements."""
    ranges = [range(s.start // c, -(-s.stop // c)) for s, c in zip(box, chunks, strict=True)]
    for cell in product(*ranges):
        yield (
            cell,
            tuple(
                slice(i * c - s.start, min((i + 1) * c, s.stop) - s.start)
                for i, c, s in zip(cell, chunks, box, strict=True)
            ),
        )


Span = tuple[tuple[int, int], ...]


def _view(wanted: Mask, box: Span, chunks: Sequence[int]) -> Mask:
    where = tuple(slice(a // c, -(-b // c)) for (a, b), c in zip(box, chunks, strict=True))
    return np.asarray(wanted[where])


def _crop(box: Span, wanted: Mask, chunks: Sequence[int]) -> Span:
    """Return the least box of whole cells that holds the wanted cells of a box."""
    found = []
    inside = np.nonzero(_view(wanted, box, chunks))
    for (start, stop), chunk, cells in zip(box, chunks, inside, strict=True):
        first = start // chunk
        low, high = (first + int(cells.min())) * chunk, (first + int(cells.max()) + 1) * chunk
        found.append((max(low, start), min(high, stop)))
    return tuple(found)


def _limit_blocks(edges: list[Ints], chunks: Sequence[int], itemsize: int) -> list[Ints]:
    """Cut axes at edges of cells, the first axes first, until blocks fit in memory."""
    longest = [int(np.diff(e).max(initial=1)) for e in edges]
    for axis, chunk in enumerate(chunks):
        rest = prod(longest) // longest[axis] * itemsize
        if rest * longest[axis] <= LARGEST_BLOCK:
            break
        length = max(chunk, LARGEST_BLOCK // max(rest, 1) // chunk * chunk)
        size = int(edges[axis][-1])
        edges[axis] = np.append(np.arange(0, size, length), size)
        longest[axis] = min(length, size)
    return edges


def _merge(boxes: list[Span], axis: int, most: int) -> list[Span]:
    """Join neighbours along an axis while they have no more elements than ``most``."""
    found: list[Span] = []
    for box in sorted(boxes, key=lambda b: (b[:axis], b[axis + 1 :], b[axis])):
        last = found[-1] if found else None
        if (
            last is not None
            and (last[:axis], last[axis + 1 :]) == (box[:axis], box[axis + 1 :])
            and last[axis][1] == box[axis][0]
        ):
            joined = (*last[:axis], (last[axis][0], box[axis][1]), *last[axis + 1 :])
            if prod(b - a for a, b in joined) <= most:
                found[-1] = joined
                continue
        found.append(box)
    return found


# ---------------------------------------------------------------------- runs


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
    said = f"the chunks that are done stay in {root}; the same call goes on from there"
    done: dict[str, ManifestVariable] = {}
    for path, plan in plans.items():
        writer = _ChunkWriter(plan, ChunkFiles.of(root, plan, options), tell)
        try:
            with explain_interrupt(lambda: said):
                done[path] = plan.finish(writer.write_all())
                if keep and writer.has_files:
                    keep_original(plan, writer.files)
        except VirtualdsError as error:
            error.locate(f"variable {path!r}")
            raise
    return group.map_variables(lambda path, variable: done.get(path, variable))


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
