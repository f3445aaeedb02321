"""Read and decode arrays of variable-length strings on demand.

numpy represents such strings as objects, so chunks cannot be decoded directly into the result.
Therefore these arrays are not virtual arrays.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.group import count_selected, resolve_index
from virtualds.bounds import check_selection
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import INLINE, MISSING, Ints
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v2, codec_from_zarr_v3
from virtualds.codecs.codec import Codec, CodecError
from virtualds.errors import FormatError, ReadError, UnsupportedError
from virtualds.formats.referenced_files import fetch_chunk
from virtualds.formats.zarr.codecs import parse_order
from virtualds.formats.zarr.data_types import decode_bytes, decode_strings, parse_extension
from virtualds.formats.zarr.v3_arrays import Manifests, axes_from_v3, build_part_fragment
from virtualds.options import get_options
from virtualds.reading.threads import HostSlot, Prefetcher, run_all
from virtualds.streams import Buffer

Objects = npt.NDArray[Any]
ChunkIndex = tuple[int, ...]

TEXT, BYTES = "vlen-utf8", "vlen-bytes"
"""Codecs of variable-length strings (zarr-extensions; also ids of Zarr v2)."""
SERIALISERS = {
    "string": TEXT,
    "variable_length_utf8": TEXT,
    "bytes": BYTES,
    "variable_length_bytes": BYTES,
}
"""The codec of a data type of Zarr v3."""
DTYPES = {TEXT: np.dtype("O", metadata={"element_type": str}), BYTES: np.dtype("O")}
"""Dtypes of the values; xarray recognises strings by the metadata of the dtype."""
DECODE = {TEXT: decode_strings, BYTES: decode_bytes}
STRING_ERRORS = (CodecError, ValueError, RuntimeError, OSError, EOFError, MemoryError, zlib.error)
"""Errors of decoding damaged bytes."""


@dataclass(frozen=True, eq=False)
class VariableLengthArray:
    """A chunked array of strings or bytes; ``serialiser`` is `TEXT` or `BYTES`.

    ``codecs`` are in the order in which they encode a chunk. ``layout`` is the axis of the array
    for each stored axis, and ``fill`` the value of missing chunks.
    """

    shape: tuple[int, ...]
    serialiser: str
    codecs: tuple[Codec, ...]
    layout: tuple[int, ...]
    fill: str | bytes
    fragments: tuple[Fragment, ...]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values: objects."""
        return DTYPES[self.serialiser]

    def load_if_small(self) -> tuple[Objects | VariableLengthArray, dict[str, Any]]:
        """Return the values if the array is small, else the array, and the encoding of a variable.

        xarray immediately converts strings with the dtype ``str`` in the encoding, like those of
        netCDF. Strings of a large array have the dtype of objects, so that they are not read.
        """
        is_large = prod(self.shape) * self.dtype.itemsize > get_options().small_variable
        kind = self.dtype if is_large or self.serialiser != TEXT else str
        encoding = {"dtype": kind, "original_shape": self.shape}
        return (self if is_large else self.read((slice(None),) * self.ndim)), encoding

    def read(self, key: Sequence[Any]) -> Objects:
        """Return a selection; the key has an int, a slice, or a 1-D array of positions per axis."""
        counts = list(map(count_selected, key, self.shape))
        check_selection(max(prod(counts), *counts, 0) * self.dtype.itemsize)
        positions = list(map(resolve_index, key, self.shape))
        out = np.full(
            [positions_along_axis.size for positions_along_axis in positions], self.fill, self.dtype
        )
        for fragment in self.fragments:
            self._read_fragment(fragment, positions, out)
        dropped = tuple(i for i, k in enumerate(key) if not isinstance(k, slice) and not np.ndim(k))
        return out.squeeze(dropped)

    def _read_fragment(self, fragment: Fragment, positions: Sequence[Ints], out: Objects) -> None:
        """Read the selected elements of a fragment into ``out``."""
        columns = zip(fragment.axes, fragment.start, positions, strict=True)
        selected = [
            _find_selected_chunks(axis, chunk_id - start) for axis, start, chunk_id in columns
        ]
        if not all(selected):
            return
        manifest, first = fragment.manifest, [min(chunks) for chunks in selected]
        for axis, chunks in enumerate(selected):
            manifest = manifest.take(axis, slice(min(chunks), max(chunks) + 1))
        manifest = manifest.loaded()
        chunk_ids = (
            tuple(p - f for p, f in zip(at, first, strict=True)) for at in product(*selected)
        )
        existing = (chunk_id for chunk_id in chunk_ids if manifest.file[chunk_id] != MISSING)

        def find_slot(chunk_id: ChunkIndex) -> HostSlot | None:
            row = manifest.lookup(chunk_id)
            url = None if row.file == INLINE else manifest.files[row.file].url
            return None if url is None else HostSlot.from_url(url, row.length)

        def fetch(chunk_id: ChunkIndex) -> bytes:
            return fetch_chunk(manifest, chunk_id)

        def finish(item: tuple[ChunkIndex, bytes | None]) -> None:
            chunk_id, data = item
            number = tuple(p + f for p, f in zip(chunk_id, first, strict=True))
            selections = [chunks[n] for chunks, n in zip(selected, number, strict=True)]
            data = fetch(chunk_id) if data is None else data
            try:
                values = self.decode(data, [selection.encoded for selection in selections])
            except STRING_ERRORS as error:
                row = manifest.lookup(chunk_id)
                is_inline = row.file == INLINE
                url = "bytes held inline" if is_inline else manifest.files[row.file].url
                problem = ReadError(
                    f"{url}: the strings of a chunk do not decode ({error}); restore the file"
                )
                problem.add_note(f"chunk {number}")
                raise problem from error
            outer, inner = ([s[i] for s in selections] for i in (1, 0))
            out[np.ix_(*outer)] = values[np.ix_(*inner)]

        run_all(Prefetcher(existing, find_slot, fetch), finish)

    def decode(self, data: Buffer, encoded: Sequence[int]) -> Objects:
        """Return the strings of a chunk with the stored shape ``encoded``, in axes of the array."""
        for codec in self.codecs[::-1]:
            data = codec.decode(data, None)
        shape = [encoded[axis] for axis in self.layout]
        # check the count first, since damaged bytes could request any amount of memory
        if (count := int.from_bytes(data[:4], "little")) != prod(shape):
            raise ValueError(f"{count} strings, not {prod(shape)}")
        values = DECODE[self.serialiser](bytes(data)).reshape(shape)
        return values.transpose(np.argsort(self.layout))


# ---------------------------------------------------------------------- Zarr v2


def strings_from_zarr_v2(
    metadata: Mapping[str, Any], manifest: ChunkManifest
) -> tuple[VariableLengthArray, str | bytes | None]:
    """Return the array of a ``.zarray`` with dtype ``|O``, and its fill value or None.

    Without a fill value, missing chunks read as empty strings.
    """
    first, *rest = metadata.get("filters") or [{"id": None}]
    serialiser = first.get("id")
    if serialiser not in DECODE:
        raise UnsupportedError(
            f"objects through filter {serialiser!r}: only those through {sorted(DECODE)} are "
            f"read, as anything else may be code, or no array at all; write the array again"
        )
    steps = [*rest, metadata.get("compressor")]
    codecs = tuple(codec_from_zarr_v2(step) for step in steps if step is not None)
    shape, chunks = tuple(metadata["shape"]), metadata["chunks"]
    axes = tuple(ChunkAxis.regular(n, max(c, 1)) for n, c in zip(shape, chunks, strict=True))
    layout = tuple(range(len(shape)))
    layout = layout if metadata.get("order") != "F" else layout[::-1]
    value = metadata.get("fill_value")
    # for bytes, 0 means no fill value
    is_none = value is None or (serialiser == BYTES and value == 0)
    fill = None if is_none else _decode_fill(str(value), serialiser)
    fragments = (Fragment.whole(axes, manifest),)
    empty = fill if fill is not None else "" if serialiser == TEXT else b""
    return VariableLengthArray(shape, serialiser, codecs, layout, empty, fragments), fill


# ---------------------------------------------------------------------- selections


class _AxisSelection(NamedTuple):
    """A selection along an axis of a chunk: positions in it and in the result, and its length."""

    inner: Ints
    outer: Ints
    encoded: int


def _find_selected_chunks(axis: ChunkAxis, positions: Ints) -> dict[int, _AxisSelection]:
    """Return the selection within each chunk along an axis, by the index of the chunk."""
    outer = np.flatnonzero((positions >= 0) & (positions < axis.size))
    inside = positions[outer]
    chunk = axis.locate(inside)
    selections = {}
    for number in np.unique(chunk).tolist():
        edges, encoded, inset = axis.slabs(number, number + 1)
        member = chunk == number
        inner = inside[member] - edges[0] + inset[0]
        selections[number] = _AxisSelection(inner, outer[member], int(encoded[0]))
    return selections


# ---------------------------------------------------------------------- Zarr v3


def is_variable_length(metadata: Mapping[str, Any]) -> bool:
    """Return whether the elements of an array are variable-length strings."""
    return parse_extension(metadata["data_type"], "data_type")[0] in SERIALISERS


def strings_from_v3(metadata: Mapping[str, Any], manifests: Manifests) -> VariableLengthArray:
    """Return the array of strings that a ``zarr.json`` describes."""
    shape = tuple(metadata["shape"])
    serialiser = SERIALISERS[parse_extension(metadata["data_type"], "data_type")[0]]
    layout, codecs = tuple(range(len(shape))), []
    chain = [parse_extension(entry, "codec") for entry in metadata["codecs"]]
    names = [name for name, _ in chain]
    if names.count(serialiser) != 1:
        raise UnsupportedError(
            f"codecs {names}: variable-length strings are read only if {serialiser!r} encodes "
            f"them; open the data with zarr-python"
        )
    position = names.index(serialiser)
    for name, config in chain[:position]:
        if name != "transpose":
            raise UnsupportedError(
                f"codec {name!r} before {serialiser!r}: variable-length strings are only "
                f"transposed; open the data with zarr-python"
            )
        layout = tuple(layout[i] for i in parse_order(config, len(shape)))
    for name, config in chain[position + 1 :]:
        codecs.append(codec_from_zarr_v3(name, config, np.dtype("u1")))
    axes = axes_from_v3(shape, metadata["chunk_grid"])
    grid = tuple(axis.nchunks for axis in axes)
    parts = manifests([grid], 0) if prod(grid) else []
    fragments = tuple(build_part_fragment(part, axes) for part in parts)
    fill = _decode_fill(metadata["fill_value"], serialiser)
    return VariableLengthArray(shape, serialiser, tuple(codecs), layout, fill, fragments)


def _decode_fill(value: Any, serialiser: str) -> str | bytes:
    """Return a fill value; that of bytes is base64 or a list of numbers."""
    try:
        if serialiser == BYTES:
            is_string = isinstance(value, str)
            return base64.b64decode(value, validate=True) if is_string else bytes(list(value))
    except (TypeError, ValueError) as error:
        raise FormatError(f"fill_value {value!r}: it is not base64 of bytes ({error})") from error
    if not isinstance(value, str):
        raise FormatError(f"fill_value {value!r}: it is not a string; the metadata is damaged")
    return value
