"""Decodes the bytes of chunks into their places in the result, tiny ones as boxes of many."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.bounds import Buffer
from virtualds.chunks.columns import COLUMNS, Column, Ints, Projection
from virtualds.chunks.fragment import Fragment
from virtualds.codecs.codec import Codec, CodecError
from virtualds.codecs.libraries import Bytes
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis
from virtualds.options import count_cores
from virtualds.reading.tasks import (
    Batch,
    ChunkSelection,
    Task,
    batch_tasks,
    group_equal_slabs,
    plan_box_tasks,
    plan_distinct_tasks,
    store_of,
)
from virtualds.stores.store import Range, RequestLimits, Store

# ---------------------------------------------------------------------- tiles
# Tiles: boxes of tiny chunks that are placed as a whole.
#
# Tiles save Python's work per chunk. The chunks of a tile lie in one file, have one pipeline and
# one size, and are wanted whole; they are decoded side by side, and moved into the result by one
# transposed copy.


TINY_CHUNK = 32 * 1024
"""Decoded bytes of a chunk up to which it is read in tiles."""

MOST_TILE_CHUNKS = 2**13
"""Chunks of a tile at most, unless one row of the grid has more."""

FEWEST_CHUNKS = 16
"""Average chunks of a box from which on tiles pay."""

LARGEST_TILE = 2**20
"""Decoded bytes of a tile of near chunks at most, so that the CPU's cache holds it."""

SMALLEST_TILE = 2**17
"""Decoded bytes below which a tile is not cut further to give every core some."""


class Tile(NamedTuple):
    """Chunks of one file, alike, that fill a box of the result, in C order of the chunk grid.

    ``store`` is that of the file.

    ``grid`` counts the chunks along every axis; ``encoded`` are the elements of each. Chunk by
    chunk, ``offset``, ``length`` and ``checksum`` are as in the manifest.
    """

    fragment: Fragment
    pipelines: Sequence[CodecPipeline]
    file: int
    store: Store
    pipeline: int
    encoded: tuple[int, ...]
    grid: tuple[int, ...]
    outer: tuple[slice, ...]
    offset: Ints
    length: Ints
    checksum: Column

    @property
    def ranges(self) -> list[Range]:
        """Where the bytes of every chunk lie."""
        return list(zip(self.offset.tolist(), self.length.tolist(), strict=True))

    @property
    def checksums(self) -> Iterable[int]:
        """The checksum of every chunk."""
        chunks: list[int] = self.checksum.tolist()
        return chunks

    def plan_ranges(self, reach: RequestLimits) -> list[tuple[Range, int]]:
        """Return the ranges to ask for, and how many chunks lie in each, if the tile is a comb.

        The chunks of a comb are plain stretches of bytes at equal, small distances, so that they
        need no work one by one. Other tiles have no teeth.
        """
        steps, length = np.diff(self.offset), int(self.length[0])
        if not steps.size or not length <= steps[0] <= length + reach.gap:
            return []
        alike = (steps == steps[0]).all() and (self.length == length).all()
        if not alike or self.checksum.any() or self.pipelines[self.pipeline].codecs:
            return []
        most = max(reach.run // int(steps[0]), 1)
        found = []
        for first in range(0, self.offset.size, most):
            count = min(most, self.offset.size - first)
            span = (count - 1) * int(steps[0]) + length
            found.append(((int(self.offset[first]), span), count))
        return found

    def extract_rows(self, found: Sequence[Buffer], teeth: Sequence[tuple[Range, int]]) -> Bytes:
        """Return the chunks of a comb one behind the other, out of the bytes of its teeth."""
        step, length = int(self.offset[1] - self.offset[0]), int(self.length[0])
        if len(found) == 1 and step == length:
            # one tooth without gaps needs no copy
            return np.frombuffer(found[0], np.uint8)
        rows, first = np.empty((self.offset.size, length), np.uint8), 0
        for data, (_, some) in zip(found, teeth, strict=True):
            rows[first : first + some] = np.ndarray((some, length), np.uint8, data, 0, (step, 1))
            first += some
        return rows.reshape(-1)


def plan_box_batches(part: ChunkSelection) -> Iterator[Batch | Tile]:
    """Yield the work of a selection of a fragment: tiles where they pay, and batches."""
    if not _is_worth_tiling(part):
        yield from batch_tasks(part, plan_box_tasks(part.fragment, part.projections))
        return
    for runs in product(*(p.runs for p in part.projections)):
        inside = [p.take_part(r.first, r.stop) for p, r in zip(part.projections, runs, strict=True)]
        if all(run.whole for run in runs) and _count_chunk_bytes(part, inside) <= TINY_CHUNK:
            yield from _plan_tiles(part, inside)
        else:
            yield from batch_tasks(part, plan_distinct_tasks(part.fragment, inside))


def _is_worth_tiling(part: ChunkSelection) -> bool:
    """Say whether there are many chunks in few boxes of equal ones, none of them shown twice."""
    boxes = prod(len(p.runs) for p in part.projections)
    chunks = prod(p.chunk.size for p in part.projections)
    if (
        not part.projections
        or chunks < FEWEST_CHUNKS * boxes
        or _find_least_bytes(part) > TINY_CHUNK
    ):
        return False
    axes = range(len(part.projections))
    return all(group_equal_slabs(part.fragment, part.projections, axis) is None for axis in axes)


def _find_least_bytes(part: ChunkSelection) -> float:
    """Return the decoded bytes of the smallest chunk that is taken whole, infinity if none is.

    Cutting a selection of large chunks into boxes would only separate neighbours in a file.
    """
    shortest = (
        min((int(p.encoded[run.first]) for run in p.runs if run.whole), default=inf)
        for p in part.projections
    )
    return prod(shortest) * max(p.dtype.itemsize for p in part.pipelines)


def _count_chunk_bytes(part: ChunkSelection, inside: Sequence[Projection]) -> int:
    """Return the decoded bytes of a chunk of a box."""
    elements = prod(int(p.encoded[0]) for p in inside)
    return elements * max(p.dtype.itemsize for p in part.pipelines)


def _plan_tiles(part: ChunkSelection, inside: Sequence[Projection]) -> Iterator[Batch | Tile]:
    """Yield the tiles of a box of equal chunks that are taken whole."""
    nbytes = _count_chunk_bytes(part, inside)
    grid = [p.chunk.size for p in inside]
    most = _limit_tile_bytes(part, inside, nbytes * prod(grid))
    for box in _cut_boxes(grid, nbytes, most):
        some = [p.take_part(first, stop) for p, (first, stop) in zip(inside, box, strict=True)]
        tile = _plan_tile(part, some)
        yield from [tile] if tile else batch_tasks(part, plan_distinct_tasks(part.fragment, some))


def _limit_tile_bytes(part: ChunkSelection, inside: Sequence[Projection], nbytes: int) -> int:
    """Return how many decoded bytes a tile of a box of ``nbytes`` has at most.

    As many as a long request where the file is far, else so few that every core gets some tiles.
    """
    file = part.fragment.manifest.file[tuple(p.chunk[0] for p in inside)]
    store = store_of(part.fragment, int(file))
    if store is not None and store.reach.at_once:
        return store.reach.run
    return min(LARGEST_TILE, max(SMALLEST_TILE, nbytes // (4 * count_cores())))


def _cut_boxes(
    grid: Sequence[int], chunk_bytes: int, most: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Cut a grid into boxes that are stretches of it in C order, of at most ``most`` bytes."""
    axis, rest = len(grid) - 1, chunk_bytes
    while axis > 0 and rest * grid[axis] <= most:
        rest *= grid[axis]
        axis -= 1
    step = max(1, min(most // max(rest, 1), MOST_TILE_CHUNKS // prod(grid[axis + 1 :])))
    along = [(i, min(i + step, grid[axis])) for i in range(0, grid[axis], step)]
    leading = ([(i, i + 1) for i in range(n)] for n in grid[:axis])
    yield from product(*leading, along, *([(0, n)] for n in grid[axis + 1 :]))


def _plan_tile(part: ChunkSelection, inside: Sequence[Projection]) -> Tile | None:
    """Return the tile of a box; None if its chunks are not alike, or lie in no file."""
    where = np.ix_(*(p.chunk for p in inside))
    cells = {name: getattr(part.fragment.manifest, name)[where].ravel() for name in COLUMNS}
    file, pipeline = (cells[name] for name in ("file", "pipeline"))
    store = store_of(part.fragment, int(file[0]))
    if store is None or (file != file[0]).any() or (pipeline != pipeline[0]).any():
        return None
    return Tile(
        part.fragment,
        part.pipelines,
        int(file[0]),
        store,
        int(pipeline[0]),
        tuple(int(p.encoded[0]) for p in inside),
        tuple(p.chunk.size for p in inside),
        tuple(slice(p.outer[0].start, p.outer[-1].stop) for p in inside),
        cells["offset"],
        cells["length"],
        cells["checksum"],
    )


# ---------------------------------------------------------------------- chunks


Array = npt.NDArray[Any]

MOST_KEPT = 8 * 2**20
"""Bytes of scratch memory that a thread keeps of each kind."""

_thread = threading.local()


class Decoder:
    """Decodes chunks of one pipeline, with ``encoded`` stored elements along every axis."""

    def __init__(self, pipeline: CodecPipeline, encoded: tuple[int, ...]) -> None:
        self.pipeline, self.encoded = pipeline, encoded
        self.shape = pipeline.stored_shape(encoded)
        self.nbytes = pipeline.dtype.itemsize * prod(self.shape)
        self.is_plain = not pipeline.codecs
        sizes = pipeline.encoded_sizes(self.nbytes)
        steps = [
            _DecodeStep(codec, size, f"step {number}" if codec.fills and size is not None else None)
            for number, (codec, size) in enumerate(zip(pipeline.codecs, sizes, strict=False))
        ]
        # if the last step decodes into given memory, that may be the result itself
        self._last = steps.pop(0).codec if steps and steps[0].room else None
        self._steps = steps[::-1]
        self._hidden = tuple(
            e.index if isinstance(e, FixedAxis) else slice(None) for e in pipeline.layout
        )
        shown = [e for e in pipeline.layout if isinstance(e, int)]
        self._order = None if shown == sorted(shown) else tuple(np.argsort(shown).tolist())
        # then the bytes of a chunk have the layout of the array
        is_hidden = any(isinstance(e, FixedAxis) for e in pipeline.layout)
        self._is_straight = pipeline.packing is None and self._order is None and not is_hidden

    def decode(self, data: Buffer, *, to_keep: bool = False) -> Array:
        """Return the stored numbers of a chunk.

        Without ``to_keep`` they are valid until this thread decodes the next chunk. Bytes that do
        not decode to a chunk of this size are a `CodecError`.
        """
        data = self._undo_codecs(data)
        if self._last:
            decoded = np.empty(self.nbytes, np.uint8) if to_keep else get_scratch(self.nbytes)
            self._last.decode_into(data, decoded)
            data = decoded.data
        elif to_keep and isinstance(data, memoryview):
            # a view of fetched bytes, or of scratch memory that the next chunk will overwrite
            data = bytes(data)
        return np.frombuffer(data, self.pipeline.dtype).reshape(self.shape)

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        """Write the bytes of the stored numbers into ``out``, which has their length."""
        data = self._undo_codecs(data)
        if self._last:
            self._last.decode_into(data, out)
        else:
            out[:] = np.frombuffer(data, np.uint8)

    def show(self, stored: Array, grid: tuple[int, ...] = ()) -> Array:
        """Return stored chunks along the axes of the array; axes of a grid stay in front."""
        before = len(grid)
        chunk = stored[(*(slice(None),) * before, *self._hidden, ...)]
        if self._order is not None:
            chunk = chunk.transpose(*range(before), *(before + i for i in self._order))
        # only axes of one element are added: no copy
        return chunk.reshape((*grid, *self.encoded))

    def find_target(self, task: Task, out: Array) -> Array | None:
        """Return the box of the result that a whole chunk fills as stored; None if there is none.

        It has the shape of the chunk.
        """
        if not self._is_straight or task.points or task.more or self.pipeline.dtype != out.dtype:
            return None
        target: Array = out[(*task.outer, ...)]
        return target if target.shape == self.encoded else None

    def _undo_codecs(self, data: Buffer) -> Buffer:
        """Undo the codecs from the last one on, except one that decodes into the result."""
        for codec, size, room in self._steps:
            if size is not None and room:
                decoded = get_scratch(size, room)
                codec.decode_into(data, decoded)
                data = decoded.data
            else:
                data = codec.decode(data, size)
                hold(data)
        if self._last is None and len(data) != self.nbytes:
            raise CodecError(
                f"decoded to {len(data)} bytes where a chunk of {self.shape} has {self.nbytes}"
            )
        return data


class Decoders:
    """The decoders of a batch, each made for the first of its chunks."""

    def __init__(self, pipelines: Sequence[CodecPipeline]) -> None:
        self._pipelines = pipelines
        self._made: dict[tuple[int, tuple[int, ...]], Decoder] = {}

    def of(self, task: Task) -> Decoder:
        """Return the decoder for the chunk of a task."""
        key = task.pipeline, task.encoded
        if (found := self._made.get(key)) is None:
            found = self._made[key] = Decoder(self._pipelines[task.pipeline], task.encoded)
        return found


class _DecodeStep(NamedTuple):
    """A codec to undo, and the decoded size where it is known.

    ``room`` is the kind of scratch memory to decode into; None if the codec allocates memory.
    """

    codec: Codec
    size: int | None
    room: str | None


def place_missing(pipeline: CodecPipeline, task: Task, out: Array) -> None:
    """Fill the parts of the result that a missing chunk covers."""
    for _, outer in task.places:
        out[outer] = pipeline.missing_value


def place(decoder: Decoder, data: Buffer, task: Task, out: Array) -> None:
    """Decode a chunk and write its selected part into the result."""
    target = decoder.find_target(task, out)
    if target is not None and target.flags.c_contiguous:
        decoder.decode_into(data, target.reshape(-1).view(np.uint8))
    else:
        place_stored(decoder, decoder.decode(data), task, out)


def place_stored(decoder: Decoder, stored: Array, task: Task, out: Array) -> None:
    """Write the selected part of a decoded chunk into the result, place by place."""
    chunk = decoder.show(stored)
    for inner, outer in task.places:
        _write(decoder.pipeline, _select(chunk, inner, task.points), out, outer)


def place_tile(decoder: Decoder, data: Sequence[Buffer], tile: Tile, out: Array) -> None:
    """Decode the chunks of a tile and write them into the result."""
    count = len(data)
    rows = get_scratch(count * decoder.nbytes, "tile").reshape(count, decoder.nbytes)
    for number, (row, encoded) in enumerate(zip(rows, data, strict=True)):
        try:
            decoder.decode_into(encoded, row)
        except CodecError as error:
            raise TileError(number, error) from error
    place_rows(decoder, rows.reshape(-1), tile, out)


def place_rows(decoder: Decoder, rows: Buffer | Bytes, tile: Tile, out: Array) -> None:
    """Write the decoded chunks of a tile, one behind the other, into the result."""
    pipeline, ndim = decoder.pipeline, len(tile.grid)
    stored = np.frombuffer(rows, pipeline.dtype).reshape(*tile.grid, *decoder.shape)
    # chunk numbers along every axis, each followed by the elements within them
    shown = decoder.show(stored, tile.grid)
    shown = shown.transpose([i for axis in range(ndim) for i in (axis, ndim + axis)])
    box = list(chain.from_iterable(zip(tile.grid, tile.encoded, strict=True)))
    target = out[tile.outer].reshape(box)
    _write(pipeline, shown, target, (slice(None),) * target.ndim)


class TileError(CodecError):
    """A chunk of a tile that does not decode; ``item`` is its number."""

    def __init__(self, item: int, error: CodecError) -> None:
        super().__init__(str(error))
        self.item = item


def _select(chunk: Array, inner: tuple[Any, ...], points: tuple[int, ...]) -> Array:
    """Return the selected part of a chunk, with its pointwise axes joined in front."""
    if points:
        others = [i for i in range(chunk.ndim) if i not in points]
        chunk = chunk.transpose((*points, *others))
        chunk = chunk[tuple(inner[i] for i in points)]
        inner = (slice(None), *(inner[i] for i in others))
    for axis, key in enumerate(inner):
        chunk = chunk[(slice(None),) * axis + (key,)]
    return chunk


def _write(pipeline: CodecPipeline, stored: Array, out: Array, outer: tuple[Any, ...]) -> None:
    """Unpack stored numbers into the result."""
    packing = pipeline.packing
    if packing is None:
        out[outer] = stored
    elif packing.dtype == out.dtype and all(isinstance(k, slice) for k in outer):
        # the ellipsis keeps an array of no axes an array
        packing.decode_into(out[(*outer, ...)], stored)
    else:
        out[outer] = packing.decode(stored)


# ---------------------------------------------------------------------- memory of a thread


def get_scratch(nbytes: int, kind: str = "chunk") -> npt.NDArray[np.uint8]:
    """Return memory of this thread, valid until the thread asks for this kind again."""
    if nbytes > MOST_KEPT:
        return np.empty(nbytes, np.uint8)
    name = f"scratch for a {kind}"
    kept: npt.NDArray[np.uint8] | None = getattr(_thread, name, None)
    if kept is None or kept.size < nbytes:
        kept = np.empty(nbytes, np.uint8)
        setattr(_thread, name, kept)
    return kept[:nbytes]


def hold(decoded: Buffer) -> None:
    """Keep the memory that a codec allocated until this thread holds the next."""
    _thread.decoded = decoded if len(decoded) <= MOST_KEPT else None
