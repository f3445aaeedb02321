"""Values in memory as native arrays of Zarr v3, which any reader of Zarr reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.codecs.vlen_text import encode_text, to_text_objects
from virtualds.formats.zarr.data_types import data_type_to_v3, fill_value_to_v3

TEXT = "string"
"""The data type of strings of any length (zarr-extensions, ``data-types/string``)."""
COMPRESSED_FROM = 4096
"""Chunks of arrays of at least so many bytes are compressed."""
CHUNK_GROWTH = 8
"""A chunk is written again with the values behind it if it is at most so many times as long."""
MOST_GROWING = 3
"""Most chunks of values that grow; far away each costs a request to open the set."""
CHUNK_BYTES = 2**26
"""Most bytes of a chunk, unless one row is longer."""
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}


class NativeArray(NamedTuple):
    """An array as plain Zarr: the content of ``zarr.json``, and its chunks by index."""

    metadata: dict[str, Any]
    chunks: Iterator[tuple[tuple[int, ...], bytes]]


def values_to_v3(values: npt.NDArray[Any], known: Sequence[int] = ()) -> NativeArray | None:
    """Describe values in memory; None if plain Zarr has no form for them.

    Parameters
    ----------
    values : ndarray
    known : sequence of int
        Lengths of the chunks, along the first axis, of what a set has of these values: what is
        new behind them becomes chunks of its own, so that the others may stay.

    Raises
    ------
    UnsupportedError
        There are other objects among their strings.
    """
    text = values.dtype.kind in "OUT"
    kind = TEXT if text else data_type_to_v3(values.dtype)
    if kind is None:
        return None
    if text:
        values = to_text_objects(values)
    rows = max(values.nbytes // max(len(values), 1), 1) if values.ndim else 1
    shape = [max(n, 1) for n in values.shape]
    lengths: Sequence[int] = ()
    if shape:
        shape[0] = min(shape[0], max(CHUNK_BYTES // rows, 1))
    if values.nbytes >= COMPRESSED_FROM and not text:
        lengths = _grow_chunks(known, len(values), shape[0])
    grid: dict[str, Any] = {"name": "regular", "configuration": {"chunk_shape": shape}}
    if lengths:
        cuts = {"kind": "inline", "chunk_shapes": [list(lengths), *shape[1:]]}
        grid = {"name": "rectilinear", "configuration": cuts}
    codecs: list[dict[str, Any]] = [_bytes_codec(values.dtype)]
    if values.nbytes >= COMPRESSED_FROM:
        codecs.append(ZSTD)
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(values.shape),
        "data_type": kind,
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "" if text else fill_value_to_v3(_zero_of(values.dtype), values.dtype),
        "codecs": codecs,
    }
    compress = len(codecs) > 1
    if not lengths:
        return NativeArray(metadata, encode_chunks(values, tuple(shape), compress))
    blocks = np.split(values, np.cumsum(lengths)[:-1])
    encoded = (next(encode_chunks(block, block.shape, compress))[1] for block in blocks)
    places = ((number, *(0,) * (values.ndim - 1)) for number in range(len(blocks)))
    return NativeArray(metadata, zip(places, encoded, strict=False))


def _grow_chunks(known: Sequence[int], size: int, most: int) -> Sequence[int]:
    """Return the lengths of chunks, of which all but the last few stay as they were.

    A chunk is written again with what is behind it once that is not much shorter: so each value is
    written a few times, and few chunks are left. Nothing is returned where they are regular.
    """
    if not known or not 0 < sum(known) < size or max(known) > most:
        return ()
    found = [*known, size - sum(known)]
    while len(found) > 1 and (found[-2] <= CHUNK_GROWTH * found[-1] or len(found) > MOST_GROWING):
        if found[-2] + found[-1] > most:
            return ()
        found[-2:] = [found[-2] + found[-1]]
    return found if len(found) > 1 else ()


def _zero_of(dtype: np.dtype[Any]) -> Any:
    return np.zeros((), dtype)[()]


def _bytes_codec(dtype: np.dtype[Any]) -> dict[str, Any]:
    if dtype.kind == "O":
        return {"name": "vlen-utf8"}
    if dtype.itemsize == 1 or (dtype.kind in "SV" and not dtype.names):
        return {"name": "bytes"}
    order = "big" if dtype.str.startswith(">") else "little"
    return {"name": "bytes", "configuration": {"endian": order}}


def encode_chunks(
    values: npt.NDArray[Any], shape: tuple[int, ...], compress: bool = False
) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Yield encoded chunks; those at the edge are padded."""
    import numcodecs

    grid = [-(-n // c) for n, c in zip(values.shape, shape, strict=True)]
    for place in product(*map(range, grid)):
        box: Any = tuple(slice(i * c, i * c + c) for i, c in zip(place, shape, strict=True))
        # the ellipsis keeps a string without axes an array
        block = values[(*box, ...)]
        if block.shape != shape:
            padding = [(0, c - n) for c, n in zip(shape, block.shape, strict=True)]
            rest = "" if values.dtype.kind == "O" else _zero_of(values.dtype)
            whole = np.full(shape, rest, values.dtype)
            whole[
                tuple(slice(0, c - after) for c, (_, after) in zip(shape, padding, strict=True))
            ] = block
            block = whole
        text = values.dtype.kind == "O"
        data = encode_text(block) if text else block.tobytes()
        yield place, bytes(numcodecs.Zstd(level=3).encode(data)) if compress else data
