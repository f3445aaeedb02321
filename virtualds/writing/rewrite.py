"""Rewrite chunks that a format cannot store: read their values, and encode them again.

Blocks of chunks are read, encoded and written on all cores; only a few blocks are in memory at a
time.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import COLUMNS, INLINE, Ints, compact, hash_files
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.location import ZARR_V3, Location
from virtualds.datasets.source_positions import SUFFIX, find_copy_folder
from virtualds.errors import AccessError, UnsupportedError, format_details, locating
from virtualds.formats import Format, ReadOptions
from virtualds.options import MIB
from virtualds.progress import Advance, ProgressOption, count_progress
from virtualds.reading import replace_chunks
from virtualds.reading.threads import run_all
from virtualds.source_file import SourceFile, StorageOptions, normalise_url, scheme_of
from virtualds.stores import find_store
from virtualds.stores.access_rules import AccessPolicy
from virtualds.stores.requests import explain_interrupt
from virtualds.writing.rewrite_plan import (
    MainEncoding,
    Mask,
    Obstacles,
    VariablePlan,
    compute_grid_shape,
    plan_rewriting,
)

# ---------------------------------------------------------------------- options


@dataclass(frozen=True)
class RewriteOptions:
    """Options for rewriting chunks that a format cannot store.

    ``main_encoding`` is by variable, ``rewrite_limit`` the maximum number of bytes to rewrite
    (before codecs), and ``progress`` as in ``ds.virtual.to_manifest``. Raises `ValueError` for
    options that exclude each other.
    """

    on_unsupported: str = "error"
    main_encoding: Mapping[str, Any] = field(default_factory=dict)
    rewrite_limit: int | None = None
    progress: ProgressOption = None

    def __post_init__(self) -> None:
        if self.on_unsupported not in ("error", "rewrite"):
            raise ValueError(
                f"on_unsupported={self.on_unsupported!r}: give 'error', or 'rewrite', which "
                f"re-encodes the chunks that the format cannot hold"
            )
        limit = self.rewrite_limit
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ValueError(f"rewrite_limit={limit!r}: give a number of bytes, or None")
        if not self.rewrites and (limit is not None or self.main_encoding):
            raise ValueError(
                "rewrite_limit and main_encoding are for rewriting; pass on_unsupported='rewrite', "
                "or leave them out"
            )

    @property
    def rewrites(self) -> bool:
        """Whether chunks may be rewritten."""
        return self.on_unsupported == "rewrite"

    def check_within_limit(self, plans: Mapping[str, VariablePlan], target: str) -> None:
        """Raise an error if the plans rewrite more bytes than ``rewrite_limit``."""
        total = sum(plan.nbytes for plan in plans.values())
        if self.rewrite_limit is None or total <= self.rewrite_limit:
            return
        details = [
            f"{path}: {plan.nchunks:,} chunks, {plan.nbytes:,} bytes: {'; '.join(plan.reasons)}"
            for path, plan in plans.items()
        ]
        message = (
            f"{target}: {total:,} bytes would have to be rewritten, more than rewrite_limit="
            f"{self.rewrite_limit:,}; raise the limit, leave these variables out (ds.drop_vars), "
            f"or choose another format: ds.virtual.cost(format) shows what each costs"
        )
        raise UnsupportedError(format_details(message, details))


# ---------------------------------------------------------------------- the target of rewriting


@dataclass(frozen=True)
class RewriteTarget:
    """Rewrites the chunks of a set that its format cannot store unchanged."""

    location: Location
    format: Format
    rewriting: RewriteOptions
    choices: Mapping[str, Any]

    @property
    def is_needed(self) -> bool:
        """Whether chunks may have to be rewritten, for the format or for ``main_encoding``."""
        is_limited = self.format.obstacles is not None
        return self.rewriting.rewrites and (is_limited or bool(self.rewriting.main_encoding))

    @property
    def root(self) -> str:
        """The url of the folder of rewritten chunks."""
        if self.format.has_staging_folder:
            return choose_staging_folder(self.location.target)
        return make_chunk_folder_url(self.location.url)

    @property
    def options(self) -> StorageOptions | None:
        """The access options of the folder of rewritten chunks."""
        same = scheme_of(self.root) == scheme_of(self.location.url)
        return self.location.options if same else None

    @property
    def writer_arguments(self) -> dict[str, Any]:
        """Arguments for ``write`` of the format, by which it moves rewritten chunks to the set."""
        return (
            {"staging_folder": self.root}
            if self.is_needed and self.format.has_staging_folder
            else {}
        )

    def apply(self, group: ManifestGroup) -> ManifestGroup:
        """Return a group with chunks rewritten for the format, or to the given main encodings.

        Raises `UnsupportedError` before anything is written if a variable cannot be rewritten, or
        if ``rewrite_limit`` would be exceeded.
        """
        if not self.is_needed:
            return group
        name, rewriting = str(self.location.url), self.rewriting
        obstacles = bind_obstacles(self.format, self.choices)
        plans = plan_rewriting(group, obstacles, rewriting.main_encoding, name)
        if not plans:
            return group
        rewriting.check_within_limit(plans, name)
        total = sum(plan.nbytes for plan in plans.values())
        rewritten: dict[str, ManifestVariable] = {}
        message = f"the chunks that are done stay in {self.root}; the same call goes on from there"
        with (
            count_progress(rewriting.progress, "rewriting", total, "B") as advance,
            explain_interrupt(lambda: message),
        ):
            for path, plan in plans.items():
                with locating(f"variable {path!r}"):
                    rewritten[path] = self._rewrite(plan, advance)
        return group.map_variables(lambda path, variable: rewritten.get(path, variable))

    def _rewrite(self, plan: VariablePlan, advance: Advance) -> ManifestVariable:
        """Return a variable rewritten to its main encoding; chunks of an earlier run are reused."""
        identity = hashlib.sha256()
        for part in _iterate_identity(plan.array, plan.main):
            identity.update(part)
            identity.update(b"\0")
        folder = f"{self.root}/{plan.path}/{identity.hexdigest()[:16]}"
        writer = _ChunkWriter(plan, folder, self.options, advance)
        rewritten = plan.finish(writer.write_all())
        if writer.has_files and not self.format.has_staging_folder:
            # `verify` needs the original references of rewritten chunks
            write_original(plan, folder, self.options)
        return rewritten

    def clear(self, group: ManifestGroup) -> None:
        """Remove the chunks that the format has moved into the set."""
        if not self.writer_arguments:
            return
        moved_urls = [
            file.url
            for array in group.list_arrays()
            for file in array.sources
            if file.url.startswith(f"{self.root}/")
        ]
        if moved_urls:
            # removing a file that does not exist also removes empty folders up to its parent
            unused_url = f"{self.root}.{secrets.token_hex(8)}"
            find_store(self.root).remove([*moved_urls, unused_url], self.options)


def bind_obstacles(form: Format, choices: Mapping[str, Any]) -> Obstacles:
    """Return a function that lists the reasons why a format cannot store a variable."""
    if form.obstacles is None:
        return lambda variable: []
    return partial(form.obstacles, **choices)


# ---------------------------------------------------------------------- files of chunks
# Files of rewritten chunks are in a folder next to the set. A file has the chunks of one block. Its
# path consists of the variable, a hash of references and encoding, and the position, so that an
# interrupted rewrite can be resumed, and never uses chunks of another version of the sources.


MAGIC = b"VDSCHNK1"
"""Last bytes of a file of rewritten chunks."""
ROW, TAIL = 16, 16
"""Size in bytes of a row, and of the trailer after the rows."""


Rows = list[tuple[int, int]]
"""The chunks of a file, in order: the flat id of the cell, and the length in bytes."""


def read_rows(file: SourceFile) -> Rows | None:
    """Return the rows of a file of rewritten chunks, or None if it is damaged or not one."""
    store, size = find_store(file.url), file.size or 0
    if size < TAIL:
        return None
    [tail] = store.get_ranges(file, [(size - TAIL, TAIL)])
    count = int.from_bytes(tail[:8], "little")
    begin = size - TAIL - count * ROW
    if tail[8:] != MAGIC or begin < 0:
        return None
    data = store.get_ranges(file, [(begin, count * ROW)])[0] if count else b""
    rows = np.frombuffer(data, "<i8").reshape(-1, 2)
    is_complete = bool((rows[:, 1] >= 0).all()) and int(rows[:, 1].sum()) == begin
    return list(map(tuple, rows.tolist())) if is_complete else None


def make_chunk_folder_url(target: Any) -> str:
    """Return the url of the folder of rewritten chunks next to a set."""
    return f"{str(target).rstrip('/')}{SUFFIX}"


def choose_staging_folder(target: Any) -> str:
    """Return the url of a folder for chunks that the format will move into the set.

    The folder is next to a local set, and otherwise in a temporary folder that belongs to this
    user.
    """
    if isinstance(target, str) and scheme_of(target) == "file":
        return make_chunk_folder_url(target)
    user = os.getuid() if hasattr(os, "getuid") else 0
    path = os.path.join(tempfile.gettempdir(), f"virtualds-{user}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != user):
        raise AccessError(f"{path}: it belongs to another user; remove it, or set TMPDIR")
    name = hashlib.sha256(str(target).encode()).hexdigest()[:16] if isinstance(target, str) else "o"
    return normalise_url(os.path.join(path, f"{name}{SUFFIX}"))


def _iterate_identity(array: ManifestArray, main: MainEncoding) -> Iterator[Any]:
    """Yield all properties that determine the bytes of rewritten chunks."""
    packings = [p.packing for p in (*array.pipelines, main.pipeline)]
    yield repr((array.shape, array.dtype.str, repr(array.fill_value), main)).encode()
    yield repr([dict(packing.attributes) if packing else None for packing in packings]).encode()
    yield repr(array.pipelines).encode()
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        yield repr((fragment.start, hash_files(manifest.files)[0])).encode()
        for axis in fragment.axes:
            yield from (np.ascontiguousarray(column).data for column in axis.slabs())
        for name in COLUMNS:
            yield np.ascontiguousarray(compact(getattr(manifest, name))).data
        yield from manifest.inline


# ---------------------------------------------------------------------- originals
# The original references of a rewritten variable are stored with its chunks for `verify`.


NAME = "original.zarr"
"""Name of the set with the original references, in the folder of the rewritten chunks."""
VARIABLE = "values"
"""Name of the variable in that set."""


@dataclass(frozen=True)
class Original:
    """A variable before it was rewritten.

    ``chunks`` is the chunk shape of the main encoding, and ``order`` the axes in the order in which
    they are stored. ``is_decoded`` says whether the array already unpacks packed numbers.
    """

    array: ManifestArray
    chunks: tuple[int, ...]
    order: tuple[int, ...]
    is_decoded: bool

    def read(self, cell: int) -> npt.NDArray[Any]:
        """Return the original values of a cell."""
        return self.array.read(self._find_box(cell))

    def clip_to_array(self, stored: npt.NDArray[Any], cell: int) -> npt.NDArray[Any]:
        """Return the elements of a stored chunk that are inside the array, with its axes."""
        chunk_values = stored.reshape([self.chunks[axis] for axis in self.order])
        box = self._find_box(cell)
        return chunk_values.transpose(np.argsort(self.order))[
            tuple(slice(b.stop - b.start) for b in box)
        ]

    def _find_box(self, cell: int) -> tuple[slice, ...]:
        """Return the region of a cell in the array."""
        grid = compute_grid_shape(self.array.shape, self.chunks)
        chunk_id = np.unravel_index(cell, grid) if grid else ()
        sizes = zip(chunk_id, self.chunks, self.array.shape, strict=True)
        return tuple(slice(int(i) * c, min((int(i) + 1) * c, n)) for i, c, n in sizes)


def write_original(plan: VariablePlan, folder: str, options: StorageOptions | None) -> None:
    """Write the original references of a variable next to its rewritten chunks."""
    main = plan.main
    attributes = {
        "chunks": list(main.chunks),
        "order": list(main.order),
        "is_decoded": int(main.pipeline.packing is not None),
    }
    group = ManifestGroup({VARIABLE: plan.variable}, attributes)
    # stores without conditional writes cannot store it; `verify` reports that
    with suppress(UnsupportedError):
        ZARR_V3.write(group, f"{folder}/{NAME}", options, replace=True)


def find_original(file: SourceFile) -> Original | None:
    """Return the original variable of a file of rewritten chunks, or None for other files."""
    folder = find_copy_folder(file.url)
    if folder is None:
        return None
    original_set = SourceFile(f"{folder}/{NAME}", options=file.options)
    try:
        group = ZARR_V3.read(original_set, ReadOptions(allow=AccessPolicy.from_argument(None)))
    except FileNotFoundError:
        return None
    array, attributes = group.variables[VARIABLE].data, group.attributes
    if not isinstance(array, ManifestArray):
        return None
    chunks, order = (tuple(np.atleast_1d(attributes[n]).tolist()) for n in ("chunks", "order"))
    return Original(array, chunks, order, bool(attributes["is_decoded"]))


# ---------------------------------------------------------------------- blocks
# Blocks are boxes of cells that are read together, do not cut stored chunks, and fit in memory.


BLOCK = 8 * MIB
"""The size in bytes of blocks, unless a chunk is larger."""
MAX_BLOCK = 64 * MIB
"""The maximum size in bytes of a block; larger stored chunks are decoded more than once."""

Box = tuple[slice, ...]
"""A rectangular region of an array: a slice for each axis."""


def list_blocks(array: ManifestArray, chunks: Sequence[int], mask: Mask) -> list[Box]:
    """Return boxes of whole cells that cover all cells of a mask, in C order.

    A box is split, along its first axes first, while it is too large or has cells outside the mask.
    """
    pairs = zip(array.shape, chunks, strict=True)
    cells = [np.append(np.arange(0, size, chunk), size) for size, chunk in pairs]
    lengths = zip(array.blocks, cells, strict=True)
    stored_edges = [np.intersect1d(np.cumsum((0, *extent)), edges) for extent, edges in lengths]
    boxes: list[Box] = [tuple(slice(0, size) for size in array.shape)]
    blocks = []
    while boxes:
        box = boxes.pop()
        slices = zip(box, chunks, strict=True)
        mask_in_box = mask[tuple(slice(s.start // c, -(-s.stop // c)) for s, c in slices)]
        if not mask_in_box.any():
            continue
        nbytes = prod(s.stop - s.start for s in box) * max(array.dtype.itemsize, 1)
        parts = (
            _cut_box(box, stored_edges, nbytes, BLOCK)
            if nbytes > BLOCK or not mask_in_box.all()
            else []
        )
        if not parts and nbytes > MAX_BLOCK:
            parts = _cut_box(box, cells, nbytes, MAX_BLOCK)
        boxes += reversed(parts)
        if not parts and mask_in_box.all():
            blocks.append(box)
        elif not parts:
            # crop the box to the cells of the mask
            cropped = []
            for extent, chunk, cell in zip(box, chunks, np.nonzero(mask_in_box), strict=True):
                first, low, high = extent.start // chunk, int(cell.min()), int(cell.max()) + 1
                ends = (first + low) * chunk, (first + high) * chunk
                cropped.append(slice(max(ends[0], extent.start), min(ends[1], extent.stop)))
            blocks.append(tuple(cropped))
    return blocks


def _cut_box(box: Box, edges: Sequence[Ints], nbytes: int, max_bytes: int) -> list[Box]:
    """Return two parts of a box, split at ``max_bytes`` or in half, or an empty list."""
    for axis, (extent, cuts) in enumerate(zip(box, edges, strict=True)):
        first = np.searchsorted(cuts, extent.start, "right")
        last = np.searchsorted(cuts, extent.stop)
        inner = cuts[first:last]
        if inner.size:
            length = max_bytes * (extent.stop - extent.start) // nbytes
            index = int(np.searchsorted(inner, extent.start + length, "right")) - 1
            edge = int(inner[max(index, 0) if nbytes > max_bytes else inner.size // 2])
            halves = slice(extent.start, edge), slice(edge, extent.stop)
            return [(*box[:axis], half, *box[axis + 1 :]) for half in halves]
    return []


# ---------------------------------------------------------------------- writing


MAX_INLINE_BYTES = 512
"""Maximum size in bytes of a rewritten chunk that is stored inline."""


@dataclass
class _ChunkWriter:
    """Writes the chunks of one variable to a folder, or inline if they are small."""

    plan: VariablePlan
    folder: str
    options: StorageOptions | None
    advance: Advance
    stop: threading.Event = field(default_factory=threading.Event)
    is_checked: bool = False
    has_files: bool = False
    written: list[tuple[Ints, Ints, SourceFile | list[bytes]]] = field(default_factory=list)
    """Cells, lengths of their chunks, and either the chunks or the file in which they are
    concatenated."""

    def write_all(self) -> ChunkManifest:
        """Write all chunks, and return the manifest of the variable."""
        plan, main = self.plan, self.plan.main
        if plan.filled.any():
            self._write_shared(plan.filled, main.encode_fill())
        if plan.cells.gaps.any():
            gap = np.full(main.chunks, plan.array.fill_value, plan.array.dtype)
            self._write_shared(plan.cells.gaps, main.encode(gap))
        self.advance(main.nbytes * int(np.count_nonzero(plan.filled | plan.cells.gaps)))
        blocks = list_blocks(plan.array, main.chunks, plan.cells.rewritten)
        present: dict[str, SourceFile] = {}
        if blocks:
            listed = find_store(self.folder).list_files(self.folder, self.options)
            present = {
                stored.path: stored.file for stored in listed if stored.file.size is not None
            }
        run_all(iter(blocks), lambda box: self._write_block(box, present))
        self.has_files = bool(blocks) and main.nbytes > MAX_INLINE_BYTES
        return self._build_manifest()

    def _write_block(self, box: Box, present: Mapping[str, SourceFile]) -> None:
        """Write the chunks of a block, unless a file of an earlier run has them."""
        try:
            # the name has the first and last cell of the block along each axis
            pairs = zip(box, self.plan.main.chunks, strict=True)
            name = ".".join(f"{s.start // c}-{-(-s.stop // c) - 1}" for s, c in pairs) or "0"
            if name in present and (rows := read_rows(present[name])) is not None:
                cells, lengths = np.array(rows, np.int64).reshape(-1, 2).T
                self.written.append((cells, lengths, present[name]))
                self.advance(self.plan.main.nbytes * len(rows))
                return
            chunks = list(self._encode_block(box))
            if self.stop.is_set():
                return
            file = None if self.plan.main.nbytes <= MAX_INLINE_BYTES else self._put(name, chunks)
            self._record(np.array([cell for cell, _ in chunks]), [data for _, data in chunks], file)
        except BaseException:
            # an interrupt is raised in one thread only, so stop all others
            self.stop.set()
            raise

    def _encode_block(self, box: Box) -> Iterator[tuple[int, bytes]]:
        """Yield the flat index and the encoded chunk of each rewritten cell of a block."""
        main, rewritten = self.plan.main, self.plan.cells.rewritten
        values = self.plan.array.read(box)
        slices = list(zip(box, main.chunks, strict=True))
        for cell in product(*(range(s.start // c, -(-s.stop // c)) for s, c in slices)):
            if self.stop.is_set():
                return
            if rewritten[cell]:
                inside = tuple(
                    slice(i * c - s.start, min((i + 1) * c, s.stop) - s.start)
                    for i, (s, c) in zip(cell, slices, strict=True)
                )
                part = values[inside]
                data = main.encode(part)
                if not self.is_checked:
                    main.check_exact(data, part)
                    self.is_checked = True
                yield int(np.ravel_multi_index(cell, rewritten.shape)) if cell else 0, data
                self.advance(main.nbytes)

    def _write_shared(self, mask: Mask, data: bytes) -> None:
        """Write one chunk for all cells of a mask."""
        name = hashlib.sha256(data).hexdigest()[:16]
        file = None if len(data) <= MAX_INLINE_BYTES else self._put(name, [(-1, data)])
        self._record(np.flatnonzero(mask), [data], file)

    def _put(self, name: str, chunks: Sequence[tuple[int, bytes]]) -> SourceFile:
        """Write chunks to one file, and return the file."""
        url, rows = f"{self.folder}/{name}", [(cell, len(data)) for cell, data in chunks]
        # the chunks, their rows, and the number of rows
        tail = np.array(rows, "<i8").tobytes() + np.array([len(chunks)], "<i8").tobytes() + MAGIC
        data = b"".join([*(data for _, data in chunks), tail])
        find_store(url).write_file(url, data, self.options)
        return SourceFile(url, len(data), options=self.options)

    def _record(self, cells: Ints, chunks: list[bytes], file: SourceFile | None) -> None:
        """Record written chunks, with their file unless they are inline."""
        self.written.append((cells, np.array([*map(len, chunks)]), file or chunks))

    def _build_manifest(self) -> ChunkManifest:
        """Return the manifest of kept references and written chunks."""
        kept_cells = self.plan.cells.kept
        files, inline = list(kept_cells.files), list(kept_cells.inline)
        rows: list[Any] = [np.zeros((4, 0), np.int64)]
        for cells, lengths, place in self.written:
            if isinstance(place, SourceFile):
                file, offsets = len(files), np.cumsum(lengths) - lengths
                files.append(place)
            else:
                file, offsets = INLINE, len(inline) + np.arange(len(place))
                inline += place
            rows.append(np.stack(np.broadcast_arrays(cells, file, offsets, lengths)))
        cells, file, offset, length = np.concatenate(rows, axis=1)
        columns = {"file": file, "offset": offset, "length": length, "checksum": 0}
        return replace_chunks(kept_cells, cells, files, inline, **columns)
