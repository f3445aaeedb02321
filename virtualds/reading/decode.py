"""Decodes chunks into the result, one by one or in tiles of tiny chunks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.codecs.codec import Codec, CodecError
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis
from virtualds.reading.tasks import Task, Tile
from virtualds.streams import Buffer, Bytes

Array = npt.NDArray[Any]

MAX_SCRATCH_BYTES = 8 * 2**20
"""Maximum size in bytes of the scratch memory of each kind that a thread keeps."""

_thread = threading.local()


class Decoder:
    """Decodes chunks of one pipeline and one shape: ``encoded`` elements along each axis."""

    def __init__(self, pipeline: CodecPipeline, encoded: tuple[int, ...]) -> None:
        self.pipeline, self.encoded = pipeline, encoded
        self.shape = pipeline.stored_shape(encoded)
        self.nbytes = pipeline.dtype.itemsize * prod(self.shape)
        self.is_plain = not pipeline.codecs
        sizes = pipeline.encoded_sizes(self.nbytes)
        steps = [
            _DecodeStep(
                codec, size, f"step {number}" if codec.fills_output and size is not None else None
            )
            for number, (codec, size) in enumerate(zip(pipeline.codecs, sizes, strict=False))
        ]
        # a final codec that can decode into an output buffer may decode into the result itself
        self._final_codec = steps.pop(0).codec if steps and steps[0].scratch_kind else None
        self._steps = steps[::-1]
        self._stored_index = tuple(
            e.index
            if isinstance(e, FixedAxis)
            else slice(None, None, -1 if e in pipeline.flipped else None)
            for e in pipeline.layout
        )
        array_axes = [e for e in pipeline.layout if isinstance(e, int)]
        self._order = (
            None if array_axes == sorted(array_axes) else tuple(np.argsort(array_axes).tolist())
        )
        # whether the bytes of a decoded chunk have the layout of the array
        is_hidden = any(isinstance(e, FixedAxis) for e in pipeline.layout)
        is_permuted = self._order is not None or is_hidden or bool(pipeline.flipped)
        self._has_array_layout = pipeline.packing is None and not is_permuted

    def decode(self, data: Buffer, *, copy: bool = False) -> Array:
        """Return the stored values of a chunk.

        Without ``copy``, they are valid until this thread decodes the next chunk. Raises
        `CodecError` for bytes that do not decode to the size of a chunk.
        """
        data = self._undo_codecs(data)
        if self._final_codec:
            decoded = np.empty(self.nbytes, np.uint8) if copy else get_scratch(self.nbytes)
            self._final_codec.decode_into(data, decoded)
            data = decoded.data
        elif copy and isinstance(data, memoryview):
            # copy a view of fetched bytes, or of scratch memory that the next chunk overwrites
            data = bytes(data)
        return np.frombuffer(data, self.pipeline.dtype).reshape(self.shape)

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        """Decode a chunk into ``out``, which has the size of the decoded chunk."""
        data = self._undo_codecs(data)
        if self._final_codec:
            self._final_codec.decode_into(data, out)
        else:
            out[:] = np.frombuffer(data, np.uint8)

    def to_array_axes(self, stored: Array, grid: tuple[int, ...] = ()) -> Array:
        """Return decoded chunks with the axes of the array, after the axes ``grid`` of chunks."""
        grid_ndim = len(grid)
        chunk = stored[(*(slice(None),) * grid_ndim, *self._stored_index, ...)]
        if self._order is not None:
            chunk = chunk.transpose(*range(grid_ndim), *(grid_ndim + i for i in self._order))
        # only axes of length 1 are added, so this makes no copy
        return chunk.reshape((*grid, *self.encoded))

    def find_target(self, task: Task, out: Array) -> Array | None:
        """Return the view of the result that a whole chunk can be decoded into, or None.

        The view has the shape of the chunk.
        """
        if (
            not self._has_array_layout
            or task.point_axes
            or task.other_pairs
            or self.pipeline.dtype != out.dtype
        ):
            return None
        target: Array = out[(*task.outer, ...)]
        return target if target.shape == self.encoded else None

    def _undo_codecs(self, data: Buffer) -> Buffer:
        """Undo the codecs in reverse order, except the one that decodes into the result."""
        for codec, size, scratch_kind in self._steps:
            if size is not None and scratch_kind:
                decoded = get_scratch(size, scratch_kind)
                codec.decode_into(data, decoded)
                data = decoded.data
            else:
                data = codec.decode(data, size)
                # keep the buffer alive until this thread decodes the next one
                _thread.decoded = data if len(data) <= MAX_SCRATCH_BYTES else None
        if self._final_codec is None and len(data) != self.nbytes:
            raise CodecError(
                f"decoded to {len(data)} bytes where a chunk of {self.shape} has {self.nbytes}"
            )
        return data


class Decoders:
    """The decoders of a batch, created on first use."""

    def __init__(self, pipelines: Sequence[CodecPipeline]) -> None:
        self._pipelines = pipelines
        self._decoders: dict[tuple[int, tuple[int, ...]], Decoder] = {}

    def get(self, task: Task) -> Decoder:
        """Return the decoder for the chunk of a task."""
        key = task.pipeline, task.encoded
        if (decoder := self._decoders.get(key)) is None:
            decoder = self._decoders[key] = Decoder(self._pipelines[task.pipeline], task.encoded)
        return decoder


class _DecodeStep(NamedTuple):
    """A codec to undo, and its decoded size in bytes if that is known.

    ``scratch_kind`` names the scratch memory to decode into, or is None if the codec allocates its
    output.
    """

    codec: Codec
    size: int | None
    scratch_kind: str | None


def fill_missing(pipeline: CodecPipeline, task: Task, out: Array) -> None:
    """Write the fill value into the parts of the result that a missing chunk covers."""
    for _, outer in task.pairs:
        out[outer] = pipeline.missing_value


def write_chunk(decoder: Decoder, data: Buffer, task: Task, out: Array) -> None:
    """Decode a chunk and write its selection into the result."""
    target = decoder.find_target(task, out)
    if target is not None and target.flags.c_contiguous:
        decoder.decode_into(data, target.reshape(-1).view(np.uint8))
    else:
        write_stored(decoder, decoder.decode(data), task, out)


def write_stored(decoder: Decoder, stored: Array, task: Task, out: Array) -> None:
    """Write the selection of a decoded chunk into the result."""
    chunk = decoder.to_array_axes(stored)
    for inner, outer in task.pairs:
        _write(decoder.pipeline, _select(chunk, inner, task.point_axes), out, outer)


def write_tile(decoder: Decoder, data: Sequence[Buffer], tile: Tile, out: Array) -> None:
    """Decode the chunks of a tile and write them into the result."""
    count = len(data)
    rows = get_scratch(count * decoder.nbytes, "tile").reshape(count, decoder.nbytes)
    for number, (row, encoded) in enumerate(zip(rows, data, strict=True)):
        try:
            decoder.decode_into(encoded, row)
        except CodecError as error:
            raise TileError(number, error) from error
    write_rows(decoder, rows.reshape(-1), tile, out)


def write_rows(decoder: Decoder, rows: Buffer | Bytes, tile: Tile, out: Array) -> None:
    """Write the decoded chunks of a tile, which are concatenated in ``rows``, into the result."""
    pipeline, ndim = decoder.pipeline, len(tile.grid)
    stored = np.frombuffer(rows, pipeline.dtype).reshape(*tile.grid, *decoder.shape)
    # alternate the axes of the chunk grid and of the chunks
    values = decoder.to_array_axes(stored, tile.grid)
    values = values.transpose([i for axis in range(ndim) for i in (axis, ndim + axis)])
    box = list(chain.from_iterable(zip(tile.grid, tile.encoded, strict=True)))
    target = out[tile.outer].reshape(box)
    _write(pipeline, values, target, (slice(None),) * target.ndim)


class TileError(CodecError):
    """Raised for the chunk of a tile that cannot be decoded; ``item`` is its index."""

    def __init__(self, item: int, error: CodecError) -> None:
        super().__init__(str(error))
        self.item = item


def _select(chunk: Array, inner: tuple[Any, ...], point_axes: tuple[int, ...]) -> Array:
    """Index a decoded chunk; the axes ``point_axes`` are indexed together and come first."""
    if point_axes:
        others = [i for i in range(chunk.ndim) if i not in point_axes]
        chunk = chunk.transpose((*point_axes, *others))
        chunk = chunk[tuple(inner[i] for i in point_axes)]
        inner = (slice(None), *(inner[i] for i in others))
    for axis, key in enumerate(inner):
        chunk = chunk[(slice(None),) * axis + (key,)]
    return chunk


def _write(pipeline: CodecPipeline, stored: Array, out: Array, outer: tuple[Any, ...]) -> None:
    """Write stored values into the result, undoing CF packing."""
    packing = pipeline.packing
    if packing is None:
        out[outer] = stored
    elif packing.dtype == out.dtype and all(isinstance(k, slice) for k in outer):
        # the ellipsis makes the index of a 0-d array return an array
        packing.decode_into(out[(*outer, ...)], stored)
    else:
        out[outer] = packing.decode(stored)


# ---------------------------------------------------------------------- scratch memory


def get_scratch(nbytes: int, kind: str = "chunk") -> npt.NDArray[np.uint8]:
    """Return scratch memory of this thread, valid until it requests the same kind again."""
    if nbytes > MAX_SCRATCH_BYTES:
        return np.empty(nbytes, np.uint8)
    name = f"{kind}_scratch"
    memory: npt.NDArray[np.uint8] | None = getattr(_thread, name, None)
    if memory is None or memory.size < nbytes:
        memory = np.empty(nbytes, np.uint8)
        setattr(_thread, name, memory)
    return memory[:nbytes]
