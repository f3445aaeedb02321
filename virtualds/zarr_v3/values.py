"""Values in memory as native arrays of Zarr v3: plain chunks that any reader of Zarr reads."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.errors import ReadError, UnsupportedError
from virtualds.text import checked_text, decoded_text, encoded_text
from virtualds.zarr_v3.data_types import data_type_to_v3, fill_value_to_v3

TEXT = "string"
"""The data type of strings of any length (zarr-extensions, ``data-types/string``)."""
COMPRESSED_FROM = 4096
"""Bytes of an array from which on its chunks are compressed."""
CHUNK = 2**26
"""Bytes that a chunk has at most, where its rows are shorter."""
DAMAGE = (ValueError, RuntimeError, OSError, EOFError, MemoryError, zlib.error)
"""What numcodecs raises for damaged bytes."""
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}


class NativeArray(NamedTuple):
    """An array as plain Zarr: the content of ``zarr.json``, and its chunks by their places."""

    metadata: dict[str, Any]
    chunks: Iterator[tuple[tuple[int, ...], bytes]]


def values_to_v3(values: npt.NDArray[Any]) -> NativeArray | None:
    """Describe values in memory; None if plain Zarr has no form for them.

    Raises
    ------
    UnsupportedError
        There is something else among their strings.
    """
    text = values.dtype.kind in "OUT"
    kind = TEXT if text else data_type_to_v3(values.dtype)
    if kind is None:
        return None
    if text:
        values = checked_text(values)
    rows = max(values.nbytes // max(len(values), 1), 1) if values.ndim else 1
    shape = [max(n, 1) for n in values.shape]
    if shape:
        shape[0] = min(shape[0], max(CHUNK // rows, 1))
    codecs: list[dict[str, Any]] = [_bytes_codec(values.dtype)]
    if values.nbytes >= COMPRESSED_FROM:
        codecs.append(ZSTD)
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(values.shape),
        "data_type": kind,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "" if text else fill_value_to_v3(_zero(values.dtype), values.dtype),
        "codecs": codecs,
    }
    return NativeArray(metadata, _chunks(values, tuple(shape), len(codecs) > 1))


def _zero(dtype: np.dtype[Any]) -> Any:
    return np.zeros((), dtype)[()]


def _bytes_codec(dtype: np.dtype[Any]) -> dict[str, Any]:
    if dtype.kind == "O":
        return {"name": "vlen-utf8"}
    if dtype.itemsize == 1 or (dtype.kind in "SV" and not dtype.names):
        return {"name": "bytes"}
    order = "big" if dtype.str.startswith(">") else "little"
    return {"name": "bytes", "configuration": {"endian": order}}


def _chunks(
    values: npt.NDArray[Any], shape: tuple[int, ...], compress: bool
) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Yield chunks, those at the edge padded, as they are stored."""
    import numcodecs

    grid = [-(-n // c) for n, c in zip(values.shape, shape, strict=True)]
    for place in product(*map(range, grid)):
        box: Any = tuple(slice(i * c, i * c + c) for i, c in zip(place, shape, strict=True))
        # the ellipsis keeps a string without axes an array
        block = values[(*box, ...)]
        if block.shape != shape:
            padding = [(0, c - n) for c, n in zip(shape, block.shape, strict=True)]
            rest = "" if values.dtype.kind == "O" else _zero(values.dtype)
            whole = np.full(shape, rest, values.dtype)
            whole[
                tuple(slice(0, c - after) for c, (_, after) in zip(shape, padding, strict=True))
            ] = block
            block = whole
        text = values.dtype.kind == "O"
        data = encoded_text(block) if text else block.tobytes()
        yield place, bytes(numcodecs.Zstd(level=3).encode(data)) if compress else data


def is_text(metadata: Mapping[str, Any]) -> bool:
    """Say whether an array is one of strings of any length."""
    return metadata.get("data_type") == TEXT


def text_from_chunks(
    metadata: Mapping[str, Any], chunks: Mapping[tuple[int, ...], bytes]
) -> npt.NDArray[Any]:
    """Decode an array of strings from all chunks that there are.

    Raises
    ------
    ReadError
        A chunk does not decode.
    UnsupportedError
        A codec is not known.
    """
    import numcodecs

    grid = metadata["chunk_grid"]
    names = [codec["name"] for codec in metadata["codecs"]]
    if grid["name"] != "regular" or names[:1] != ["vlen-utf8"] or set(names[1:]) - {"zstd", "gzip"}:
        raise UnsupportedError(f"strings on grid {grid['name']!r} through codecs {names}")
    shape = tuple(grid["configuration"]["chunk_shape"])
    found = np.full(
        tuple(metadata["shape"]),
        metadata["fill_value"],
        np.dtype("O", metadata={"element_type": str}),
    )
    decoders = {"zstd": numcodecs.Zstd, "gzip": numcodecs.GZip}
    for place, data in chunks.items():
        try:
            for name in names[:0:-1]:
                data = bytes(decoders[name]().decode(data))
            # before as much memory is taken as damaged bytes may ask for
            if (count := int.from_bytes(data[:4], "little")) != prod(shape):
                raise ValueError(f"{count} strings where {prod(shape)} belong")
            block = decoded_text(data).reshape(shape)
        except DAMAGE as error:
            raise ReadError(
                f"chunk {place} of strings does not decode ({error}); restore the file"
            ) from error
        box = tuple(
            slice(i * c, min(i * c + c, n))
            for i, c, n in zip(place, shape, found.shape, strict=True)
        )
        found[box] = block[tuple(slice(0, b.stop - b.start) for b in box)]
    return found
