"""Zarr v2 array metadata to and from our types.

Zarr storage specification version 2, "Metadata" and "Arrays". What such metadata cannot say about
an array is told as a list of reasons, so that a writer can name every obstacle before it writes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.bounds import demand_element, demand_table
from virtualds.chunks.alignment import regular_chunks
from virtualds.chunks.axis import ChunkAxis
from virtualds.chunks.columns import COLUMNS, INLINE, MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import compact
from virtualds.chunks.reference_table import MosaicTable
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.codec import NO_FILTERS
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError
from virtualds.json_values import NON_FINITE

V2_CHOICES = {"order": ("C", "F", None), "dimension_separator": (".", "/", None)}
"""What keys of ``.zarray`` may say, or be absent."""


@dataclass(frozen=True)
class ZarrArray:
    """An array as Zarr v2 knows it: one regular grid, one pipeline.

    Parameters
    ----------
    metadata : dict
        The content of ``.zarray``, its ``fill_value`` null.
    manifest : ChunkManifest
        The chunks over the whole grid.
    pipeline : CodecPipeline
        How every chunk decodes.
    """

    metadata: dict[str, Any]
    manifest: ChunkManifest
    pipeline: CodecPipeline


def obstacles(array: ManifestArray) -> list[str]:
    """Return why Zarr v2 metadata cannot describe an array; nothing if they can."""
    found = []
    if len(array.pipelines) > 1:
        found.append(_differing_pipelines(array))
    for pipeline in array.pipelines:
        if pipeline.packing is not None:
            found.append(_packed(array))
        elif pipeline.dtype.char in "gG":
            found.append(f"its type {pipeline.dtype} has another form on every machine")
        elif not _can_be_spelled(pipeline.dtype):
            found.append(f"its compound type {pipeline.dtype} has bytes between its members")
        elif memory_order(pipeline, array.ndim) is None:
            found.append(
                f"its stored axes are permuted or partly selected (layout {pipeline.layout})"
            )
        elif pipeline.dtype.newbyteorder("=") != array.dtype.newbyteorder("="):
            found.append(f"its values are converted from {pipeline.dtype} to {array.dtype}")
    if not found and _common_grid(array) is None:
        found.append(_no_common_grid(array))
    return list(dict.fromkeys(found))


def to_zarr_v2(array: ManifestArray) -> ZarrArray:
    """Describe an array that has no `obstacles`."""
    pipeline = array.pipelines[0] if array.fragments else all_fill(array)
    grid = _common_grid(array)
    if grid is None:
        raise UnsupportedError(f"{array.name}: {_no_common_grid(array)}")
    codecs = [codec.to_zarr_v2() for codec in pipeline.codecs]
    metadata = {
        "zarr_format": 2,
        "shape": list(array.shape),
        "chunks": list(grid),
        "dtype": dtype_to_zarr_v2(pipeline.dtype),
        "compressor": None,
        "filters": codecs or None,
        "fill_value": None,
        "order": memory_order(pipeline, array.ndim),
        "dimension_separator": ".",
    }
    # the last codec of a Zarr v2 array is its compressor; readers look for it there
    if codecs and not pipeline.codecs[-1].is_filter:
        metadata |= {"compressor": codecs[-1], "filters": codecs[:-1] or None}
    return ZarrArray(metadata, _whole_manifest(array, grid), pipeline)


def array_from_zarr_v2(metadata: Mapping[str, Any], manifest: ChunkManifest) -> ManifestArray:
    """Return the array that ``.zarray`` describes.

    Raises
    ------
    FormatError
        The fill value or dtype makes no sense.
    UnsupportedError
        A codec or dtype is not known.
    """
    shape, chunks = metadata["shape"], metadata["chunks"]
    dtype = dtype_from_zarr_v2(metadata["dtype"])
    steps = [*(metadata.get("filters") or ()), metadata.get("compressor")]
    fill = fill_from_zarr_v2(metadata.get("fill_value"), dtype)
    order = metadata.get("order") or "C"
    axes = tuple(ChunkAxis.regular(n, max(c, 1)) for n, c in zip(shape, chunks, strict=True))
    layout = tuple(range(len(shape)))
    if fill is None and dtype.kind in "mM":
        # what nobody laid down is no time, as zarr-python has it
        fill = "NaT"
    pipeline = CodecPipeline(
        dtype,
        codecs=tuple(codec_from_zarr_v2(step) for step in steps if step is not None),
        fill=None if fill is None else np.asarray(fill, dtype).tobytes(),
        layout=layout if order == "C" else layout[::-1],
    )
    return ManifestArray.of_fragment(Fragment((0,) * len(axes), axes, manifest), pipeline)


def check_zarr_v2(metadata: Any) -> None:
    """Refuse what cannot be ``.zarray``.

    Raises
    ------
    FormatError
        A key is missing, or shape and chunks make no sense.
    """
    if not isinstance(metadata, Mapping):
        raise FormatError(f".zarray: {metadata!r} is no object; the reference set is damaged")
    if absent := {"shape", "chunks", "dtype"} - metadata.keys():
        raise FormatError(f".zarray: there is no {min(absent)!r}; the reference set is damaged")
    shape, chunks = metadata["shape"], metadata["chunks"]
    # where there is nothing, kerchunk says chunks of nothing
    if not (
        is_shape(shape)
        and is_shape(chunks)
        and len(shape) == len(chunks)
        and all(c >= min(n, 1) for n, c in zip(shape, chunks, strict=True))
    ):
        raise FormatError(
            f".zarray: shape {shape!r} in chunks of {chunks!r}; the reference set is damaged"
        )
    for key, known in V2_CHOICES.items():
        if metadata.get(key) not in known:
            raise FormatError(
                f".zarray: {key} {metadata[key]!r}, where one of {known[:2]} belongs; the "
                f"reference set is damaged"
            )


def is_shape(value: Any) -> bool:
    """Say whether a value of JSON is a list of lengths."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def chunk_grid(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the chunks per axis that ``.zarray`` describes."""
    pairs = zip(metadata["shape"], metadata["chunks"], strict=True)
    return tuple(-(-n // max(c, 1)) for n, c in pairs)


def dtype_from_zarr_v2(spelled: Any) -> np.dtype[Any]:
    """Return a dtype from its Zarr v2 spelling ("Data type encoding").

    Raises
    ------
    FormatError
        It spells no dtype.
    """
    try:
        found: np.dtype[Any] = np.dtype(_descr(spelled))
    except (SyntaxError, TypeError, ValueError) as error:
        # numpy parses shapes in types as Python
        raise FormatError(
            f"dtype {spelled!r}: it is none of numpy's; the reference set is damaged"
        ) from error
    if not found.itemsize:
        raise FormatError(f"dtype {spelled!r}: it has no bytes; the reference set is damaged")
    if found.names and found.hasobject:
        raise FormatError(
            f"dtype {spelled!r}: a field holds Python objects, which are no bytes of a file; the "
            f"reference set is damaged"
        )
    demand_element(found.itemsize, f"dtype {spelled!r}")
    return found


def _descr(spelled: Any) -> Any:
    """Return a spelled dtype as numpy takes it: fields are tuples."""
    if isinstance(spelled, str):
        return spelled
    return [(name, _descr(kind), *map(tuple, shape)) for name, kind, *shape in spelled]


def dtype_to_zarr_v2(dtype: np.dtype[Any]) -> Any:
    """Return the Zarr v2 spelling of a dtype: text, or a list of fields for a compound one."""
    if dtype.names is None:
        return dtype.str
    spelled = []
    for name in dtype.names:
        base, shape = dtype[name].base, dtype[name].shape
        spelled.append([name, dtype_to_zarr_v2(base), *([list(shape)] if shape else [])])
    return spelled


def _can_be_spelled(dtype: np.dtype[Any]) -> bool:
    """Say whether Zarr v2 can spell a dtype: there are no bytes between its fields."""
    return not dtype.hasobject and dtype_from_zarr_v2(dtype_to_zarr_v2(dtype)) == dtype


def fill_from_zarr_v2(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value from its Zarr v2 spelling ("Fill value encoding").

    Raises
    ------
    FormatError
        It is none of that dtype.
    """
    try:
        return _fill_from_zarr_v2(value, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"fill_value {value!r}: it is no {dtype} ({error})") from error


def _fill_from_zarr_v2(value: Any, dtype: np.dtype[Any]) -> Any:
    if value is None or dtype.kind == "O":
        return None
    if dtype.kind == "U" and value == 0:
        return np.asarray("", dtype)[()]
    if dtype.kind in "SV":
        text = isinstance(value, str)
        raw = base64.b64decode(value, validate=True) if text else bytes(dtype.itemsize)
        if len(raw) > dtype.itemsize:
            raise ValueError(f"{len(raw)} bytes")
        return np.frombuffer(raw.ljust(dtype.itemsize, b"\0"), dtype)[0]
    if dtype.kind == "c":
        real, imaginary = (_fill_from_zarr_v2(part, np.dtype("f8")) for part in value)
        return np.asarray(complex(real, imaginary), dtype)[()]
    if isinstance(value, str) and dtype.kind == "f":
        value = NON_FINITE.get(value, value)
    return np.asarray(value).astype(dtype)[()]


def fill_to_zarr_v2(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the Zarr v2 spelling of a fill value ("Fill value encoding")."""
    scalar = np.asarray(value).astype(dtype)
    if dtype.kind in "SV":
        return base64.standard_b64encode(scalar.tobytes()).decode()
    if dtype.kind == "c":
        return [fill_to_zarr_v2(part, np.dtype("f8")) for part in (scalar.real, scalar.imag)]
    if dtype.kind in "mM":
        return int(scalar.astype("i8"))
    if dtype.kind == "f" and not np.isfinite(scalar):
        return "NaN" if np.isnan(scalar) else "Infinity" if scalar > 0 else "-Infinity"
    return scalar.item()


def fill_to_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the spelling of the attribute ``_FillValue`` that xarray reads in Zarr v3.

    Floats are base64 of eight bytes, little-endian (`xarray.backends.zarr.FillValueCoder`).
    """
    scalar = np.asarray(value).astype(dtype)
    if dtype.kind == "c":
        return [fill_to_attribute(part, np.dtype("f8")) for part in (scalar.real, scalar.imag)]
    if dtype.kind == "f":
        return base64.standard_b64encode(scalar.astype("<f8").tobytes()).decode()
    return fill_to_zarr_v2(value, dtype)


def fill_from_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the attribute ``_FillValue`` from the spelling of `fill_to_attribute`."""
    if dtype.kind == "c":
        real, imaginary = (fill_from_attribute(part, np.dtype("f8")) for part in value)
        return dtype.type(complex(real, imaginary))
    if dtype.kind == "f" and isinstance(value, str):
        raw = np.frombuffer(base64.standard_b64decode(value), "<f8")
        return raw.astype(dtype.newbyteorder("="))[0]
    return fill_from_zarr_v2(value, dtype)


def is_exact(fill: Any, dtype: np.dtype[Any]) -> bool:
    """Say whether a fill value has the dtype of its array, so that nothing is lost."""
    return np.ndim(fill) == 0 and np.asarray(fill).dtype == dtype.newbyteorder("=")


def storage_encoding(array: ManifestArray, dims: Sequence[str]) -> dict[str, Any]:
    """Return how an array of one pipeline is stored, as xarray's netCDF4 backend says it."""
    found = dict(NO_FILTERS)
    for codec in array.pipelines[0].codecs if array.pipelines else ():
        found |= codec.encoding
    chunks = _common_grid(array)
    if chunks is not None and chunks:
        found |= {"contiguous": False, "chunksizes": chunks}
        found["preferred_chunks"] = dict(zip(dims, chunks, strict=True))
    else:
        found |= {"contiguous": True, "chunksizes": None}
    return found


def all_fill(array: ManifestArray) -> CodecPipeline:
    """Return the pipeline of an array without any fragment: missing chunks of its fill value."""
    fill = np.asarray(array.fill_value, array.dtype).tobytes()
    return CodecPipeline(array.dtype, fill=fill, layout=tuple(range(array.ndim)))


def memory_order(pipeline: CodecPipeline, ndim: int) -> str | None:
    """Return the memory order that a layout is, or None if it is neither."""
    shown = [entry for entry in pipeline.layout if isinstance(entry, int)]
    if len(shown) != len(pipeline.layout):
        return None
    if shown == sorted(shown):
        return "C"
    return "F" if shown == list(range(ndim))[::-1] else None


def _common_grid(array: ManifestArray) -> tuple[int, ...] | None:
    """Return the chunk shape of the one regular grid on which all fragments lie, or None."""
    return regular_chunks(array.shape, array.fragments) if array.gaps_read_as_missing else None


def _whole_manifest(array: ManifestArray, chunks: tuple[int, ...]) -> ChunkManifest:
    """Return one manifest over the grid of the array, missing where no fragment lies."""
    grid = tuple(-(-n // c) for n, c in zip(array.shape, chunks, strict=True))
    if len(array.fragments) == 1 and array.manifest.shape == grid:
        return array.manifest
    if not array.fragments:
        return ChunkManifest.missing(grid)
    if any(f.manifest.is_in_set for f in array.fragments):
        return _mosaic(array, chunks, grid)
    demand_table(grid, sum(f.manifest.size for f in array.fragments), f"{array.name!r}")
    # fragments share a table of files once they are concatenated in a row
    flat = [f.manifest.reshape((f.manifest.size,)) for f in array.fragments]
    joined = ChunkManifest.concatenate(flat, 0)
    columns: dict[str, npt.NDArray[Any]] = {
        name: np.full(grid, MISSING if name == "file" else 0, kind)
        if name == "file" or compact(getattr(joined, name)).any()
        else np.broadcast_to(np.zeros((), kind), grid)
        for name, kind in COLUMNS.items()
    }
    begin = 0
    for fragment in array.fragments:
        box = tuple(
            slice(s // c, s // c + n)
            for s, c, n in zip(fragment.start, chunks, fragment.manifest.shape, strict=True)
        )
        part = slice(begin, begin := begin + fragment.manifest.size)
        for name, column in columns.items():
            if column.flags.writeable:
                column[box] = getattr(joined, name)[part].reshape(fragment.manifest.shape)
    return ChunkManifest(files=joined.files, inline=joined.inline, **columns)


def _mosaic(array: ManifestArray, chunks: tuple[int, ...], grid: tuple[int, ...]) -> ChunkManifest:
    """Return the manifest over the grid of the array without reading what lies in sets."""
    parts = tuple(
        (tuple(s // c for s, c in zip(f.start, chunks, strict=True)), f.manifest)
        for f in array.fragments
    )
    return LazyManifest(MosaicTable(grid, parts), grid)


def _packed(array: ManifestArray) -> str:
    """Say why the packing of an array could not be told as attributes."""
    if len({p.packing for p in array.pipelines}) > 1:
        return "its CF packing differs between files"
    if array.has_gaps:
        return f"its gaps are {array.fill_value!r}, for which its CF packing has no number"
    return f"its values were converted to {array.dtype} after they were unpacked"


def _differing_pipelines(array: ManifestArray) -> str:
    first = {number: _first_file(array, number) for number in range(min(2, len(array.pipelines)))}
    a, b = array.pipelines[:2]
    differing = [
        name
        for name in ("dtype", "codecs", "fill", "layout", "packing")
        if getattr(a, name) != getattr(b, name)
    ]
    return (
        f"its chunks decode in {len(array.pipelines)} ways ({', '.join(differing)} differ first "
        f"between {first[0]} and {first[1]})"
    )


def _first_file(array: ManifestArray, pipeline: int) -> str:
    """Return the file of the first chunk that decodes by a pipeline, the first in a file if any."""
    is_inline = False
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        found = manifest.file[manifest.pipeline == pipeline]
        if (in_files := found[found >= 0]).size:
            return manifest.files[int(in_files[0])].url
        is_inline |= bool((found == INLINE).any())
    return "an inline chunk" if is_inline else "a missing chunk"


def _no_common_grid(array: ManifestArray) -> str:
    for axis in range(array.ndim):
        for fragment in array.fragments:
            if fragment.axes[axis].chunk is None:
                slabs = fragment.axes[axis].slabs()
                lengths = slabs.encoded[:8].tolist()
                odd = int(np.argmax(slabs.encoded != slabs.encoded[0])) or 1
                first, other = (_file_of_slab(fragment, axis, i) for i in (0, odd))
                return (
                    f"its chunks along axis {axis} are no regular grid (they store {lengths} ...; "
                    f"{first} and {other} differ first)"
                )
    files = [_file_of_slab(f, 0, 0) for f in array.fragments[:2] if array.ndim]
    where = f" ({' and '.join(files)} differ first)" if len(files) == 2 else ""
    return (
        f"its {len(array.fragments)} fragments do not lie on one regular chunk grid without gaps"
        f"{where}"
    )


def _file_of_slab(fragment: Fragment, axis: int, slab: int) -> str:
    """Return the first file that chunks of one slab lie in."""
    manifest = fragment.manifest.take(axis, slice(slab, slab + 1)).loaded()
    found = manifest.file[manifest.file >= 0]
    return manifest.files[int(found[0])].url if found.size else "missing chunks"
