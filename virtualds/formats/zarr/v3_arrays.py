"""Virtual arrays to and from Zarr v3 array metadata and parts of manifests.

Plain Zarr comes first: one pipeline as codecs, chunks as a regular or a ``rectilinear`` grid. Other
arrays (several pipelines, CF packing that differs between files, hidden elements of chunks, several
fragments) use the chunk grid `FRAGMENTS` and the codec `PIPELINES`. These are names of extensions
that a reader must understand; ``docs/reference/formats/zarr-v3.md`` specifies them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray, default_fill
from virtualds.chunks.fragment import ChunkAxis, Fragment, RegularAxis
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v3
from virtualds.codecs.cf_packing import Decoding, Packing
from virtualds.codecs.cf_time import TimePacking
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis
from virtualds.errors import FormatError, UnsupportedError
from virtualds.formats.zarr.codecs import codecs_to_v3, pipeline_from_v3
from virtualds.formats.zarr.data_types import (
    data_type_from_v3,
    data_type_to_v3,
    fill_value_from_v3,
    fill_value_to_v3,
)
from virtualds.formats.zarr.v2_obstacles import build_fill_pipeline
from virtualds.formats.zarr.v2_types import dtype_from_zarr_v2, dtype_to_zarr_v2
from virtualds.formats.zarr.v3_metadata import axes_from_v3, check_extras, find_origins, grid_to_v3
from virtualds.json_values import from_json, to_json

FRAGMENTS, PIPELINES, NUMPY_TYPE = "virtualds.fragments", "virtualds.pipelines", "virtualds.numpy"
"""Names of our extensions: a chunk grid, a codec, and a data type."""
EVEN_AXIS = ("size", "chunk", "hidden", "last")
LISTED_AXIS = ("lengths", "stored", "hidden")
PIPELINE = ("dtype", "codecs", "fill", "layout", "packing")
"""Keys of an axis of a fragment, in its two forms, and of a pipeline: readers know all of them."""
MOST_EMPTY = 2**20
"""Most slabs of an axis without elements."""


class ManifestPart(NamedTuple):
    """Chunks of a manifest: where they lie in the grid of a fragment."""

    fragment: int
    origin: tuple[int, ...]
    manifest: ChunkManifest


Manifests = Callable[[list[tuple[int, ...]], int], list[ManifestPart]]
"""Takes the grids of fragments and the number of pipelines, 0 if plain; returns the chunks."""


# ---------------------------------------------------------------------- writing


def array_to_v3(array: ManifestArray) -> tuple[dict[str, Any], list[ManifestPart]]:
    """Describe an array in Zarr v3, in plain Zarr if possible.

    Returns
    -------
    metadata : dict
        The content of ``zarr.json``, without attributes, dimensions and storage transformers.
    parts : list of ManifestPart
        Where the chunks lie.

    Raises
    ------
    UnsupportedError
        Its values have another form on every machine, or cannot be read at all.
    """
    if any(p.dtype.char in "gG" for p in array.pipelines) or array.dtype.char in "gG":
        raise UnsupportedError(f"its type {array.dtype} has another form on every machine")
    return _describe_plain(array) or extended_to_v3(array)


def is_extended(metadata: Mapping[str, Any]) -> bool:
    """Say whether an array uses our extensions."""
    grid = metadata.get("chunk_grid")
    return isinstance(grid, Mapping) and grid.get("name") == FRAGMENTS


def _describe_plain(array: ManifestArray) -> tuple[dict[str, Any], list[ManifestPart]] | None:
    """Describe an array in plain Zarr; None if that cannot express it."""
    if len(array.pipelines) > 1:
        return None
    pipeline = array.pipelines[0] if array.fragments else build_fill_pipeline(array)
    same = pipeline.packing is None and pipeline.decoded_dtype == array.dtype.newbyteorder("=")
    kind = data_type_to_v3(pipeline.dtype)
    grid = grid_to_v3(array) if same and kind is not None else None
    if grid is None:
        return None
    codecs = codecs_to_v3(pipeline, array.ndim, grid["configuration"].get("chunk_shape"))
    if codecs is None:
        return None
    metadata = _build_metadata(array.shape, kind, grid, pipeline.fill_value, pipeline.dtype, codecs)
    origins = find_origins(array, axes_from_v3(array.shape, grid))
    parts = [ManifestPart(0, o, f.manifest) for o, f in zip(origins, array.fragments, strict=True)]
    return metadata, parts


def extended_to_v3(array: ManifestArray) -> tuple[dict[str, Any], list[ManifestPart]]:
    """Describe an array with our extensions, fragment by fragment."""
    kind = data_type_to_v3(array.dtype)
    if kind is None:
        kind = {"name": NUMPY_TYPE, "configuration": {"dtype": dtype_to_json(array.dtype)}}
    fragments = [
        {"start": list(f.start), "axes": [_axis_to_json(axis) for axis in f.axes]}
        for f in array.fragments
    ]
    grid = {"name": FRAGMENTS, "configuration": {"fragments": fragments}}
    pipelines = [_pipeline_to_json(p) for p in array.pipelines]
    codecs = [{"name": PIPELINES, "configuration": {"pipelines": pipelines}}]
    metadata = _build_metadata(array.shape, kind, grid, array.fill_value, array.dtype, codecs)
    parts = [
        ManifestPart(number, (0,) * array.ndim, f.manifest)
        for number, f in enumerate(array.fragments)
    ]
    return metadata, parts


def _build_metadata(
    shape: tuple[int, ...], kind: Any, grid: Any, fill: Any, dtype: np.dtype[Any], codecs: Any
) -> dict[str, Any]:
    extended = isinstance(kind, Mapping) and kind.get("name") == NUMPY_TYPE
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": kind,
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _bytes_to_json(fill, dtype) if extended else fill_value_to_v3(fill, dtype),
        "codecs": codecs,
    }


def _axis_to_json(axis: ChunkAxis) -> dict[str, Any]:
    if isinstance(axis, RegularAxis):
        return {"size": axis.length, "chunk": axis.step, "hidden": axis.hidden, "last": axis.last}
    slabs = axis.slabs()
    columns = {"lengths": np.diff(slabs.edges), "stored": slabs.encoded, "hidden": slabs.inset}
    return {name: _encode_run_lengths(column.tolist()) for name, column in columns.items()}


def _encode_run_lengths(values: list[int]) -> list[list[int]]:
    return [[value, len(list(run))] for value, run in groupby(values)]


def _pipeline_to_json(pipeline: CodecPipeline) -> dict[str, Any]:
    layout = [
        {"length": e.length, "index": e.index} if isinstance(e, FixedAxis) else e
        for e in pipeline.layout
    ]
    found = {
        "dtype": dtype_to_json(pipeline.dtype),
        "codecs": [codec.to_zarr_v3(pipeline.dtype.itemsize) for codec in pipeline.codecs],
        "fill": None if pipeline.fill is None else base64.b64encode(pipeline.fill).decode(),
        "layout": layout,
    }
    if pipeline.packing is not None:
        found["packing"] = _packing_to_json(pipeline.packing)
    return found


def _packing_to_json(packing: Decoding) -> dict[str, Any]:
    attributes, types = to_json(packing.attributes)
    return {"dtype": packing.dtype.str, "attributes": attributes, "types": types}


def dtype_to_json(dtype: np.dtype[Any]) -> Any:
    """Return any dtype without objects as JSON, with the padding of compound types."""
    if dtype.names is None:
        return dtype_to_zarr_v2(dtype)
    members = []
    for name in dtype.names:
        kind, offset = dtype.fields[name][:2]  # type: ignore[index]
        members.append([name, dtype_to_json(kind.base), list(kind.shape), offset])
    return {"itemsize": dtype.itemsize, "members": members}


def _bytes_to_json(value: Any, dtype: np.dtype[Any]) -> str:
    return base64.b64encode(np.asarray(value).astype(dtype).tobytes()).decode()


# ---------------------------------------------------------------------- reading


def array_from_v3(metadata: Mapping[str, Any], manifests: Manifests) -> ManifestArray:
    """Return the array that metadata describe.

    Parameters
    ----------
    metadata : mapping
        The content of ``zarr.json``.
    manifests : callable
        Where the chunks lie.

    Raises
    ------
    FormatError
        The metadata are invalid.
    UnsupportedError
        They use an unknown codec, type or grid.
    """
    shape = tuple(metadata["shape"])
    if is_extended(metadata):
        return _build_array(shape, metadata, manifests)
    pipeline = pipeline_from_v3(metadata)
    axes = axes_from_v3(shape, metadata["chunk_grid"])
    grid = tuple(axis.nchunks for axis in axes)
    count: int = prod(grid)
    parts = manifests([grid], 0) if count else []
    if not parts and count:
        # the cut of an array without references is that of references to come
        parts = [ManifestPart(0, (0,) * len(grid), ChunkManifest.missing(grid))]
    if len(parts) == 1 and parts[0].manifest.shape == grid:
        return ManifestArray.of_fragment(place_part(parts[0], axes), pipeline)
    fragments = tuple(place_part(part, axes) for part in parts)
    return ManifestArray(
        shape, pipeline.decoded_dtype, pipeline.missing_value, (pipeline,), fragments
    )


def place_part(
    part: ManifestPart, axes: tuple[ChunkAxis, ...], start: tuple[int, ...] = ()
) -> Fragment:
    """Return a part of the chunks of some axes as a fragment."""
    start = start or (0,) * len(axes)
    if part.manifest.shape == tuple(axis.nchunks for axis in axes):
        return Fragment(start, axes, part.manifest)
    begin, cut = [], []
    for axis, first, count in zip(axes, part.origin, part.manifest.shape, strict=True):
        low, high = axis.edges_at(np.array([first, first + count])).tolist()
        begin.append(low)
        cut.append(axis if (low, high) == (0, axis.size) else axis.crop(low, high)[0])
    begin = [a + b for a, b in zip(begin, start, strict=True)]
    return Fragment(tuple(begin), tuple(cut), part.manifest)


def _build_array(
    shape: tuple[int, ...], metadata: Mapping[str, Any], manifests: Manifests
) -> ManifestArray:
    grid = metadata["chunk_grid"]["configuration"]
    check_extras(grid, {"fragments"})
    said = [_fragment_from_json(fragment, shape) for fragment in grid["fragments"]]
    [codec] = metadata["codecs"]
    if codec["name"] != PIPELINES:
        raise UnsupportedError(f"codec {codec['name']!r} in an array of fragments")
    check_extras(codec["configuration"], {"pipelines"})
    pipelines = tuple(map(_pipeline_from_json, codec["configuration"]["pipelines"]))
    kind = metadata["data_type"]
    if isinstance(kind, Mapping) and kind.get("name") == NUMPY_TYPE:
        dtype = dtype_from_json(kind["configuration"]["dtype"])
        fill = np.frombuffer(base64.b64decode(metadata["fill_value"]), dtype)[0]
    else:
        dtype = data_type_from_v3(kind)
        fill = fill_value_from_v3(metadata["fill_value"], dtype)
    count = max(len(pipelines), 1)
    parts = manifests([tuple(a.nchunks for a in axes) for _, axes in said], count) if said else []
    fragments = [place_part(p, said[p.fragment][1], said[p.fragment][0]) for p in parts]
    if fragments and not pipelines:
        raise FormatError("chunks, and no pipeline that decodes them")
    found = ManifestArray(shape, dtype, default_fill(dtype), pipelines, tuple(fragments))
    return replace(found, fill_value=fill)


def _fragment_from_json(
    said: Mapping[str, Any], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[ChunkAxis, ...]]:
    """Return where a fragment of an array of this shape begins, and its chunk axes."""
    check_extras(said, {"start", "axes"})
    axes = zip(said["axes"], shape, strict=True)
    return tuple(said["start"]), tuple(_axis_from_json(axis, size) for axis, size in axes)


def _axis_from_json(said: Mapping[str, Any], size: int) -> ChunkAxis:
    """Return the chunk axis of a fragment; the array has ``size`` elements along it."""
    check_extras(said, {*EVEN_AXIS, *LISTED_AXIS})
    if "size" in said:
        numbers = [said[name] for name in EVEN_AXIS]
        if any(type(n) is not int for n in numbers):
            raise FormatError(f"{dict(said)} does not cut an axis; the metadata is damaged")
        return ChunkAxis.regular(numbers[0], numbers[1], inset=numbers[2], last=numbers[3])
    runs = [np.array(said[name]).reshape(-1, 2) for name in LISTED_AXIS]
    # checked before memory is allocated
    whole = all(run.dtype.kind == "i" and (run >= 0).all() for run in runs)
    counts = {sum(run[:, 1].tolist()) for run in runs}
    if not whole or len(counts) != 1 or counts.pop() > size + MOST_EMPTY:
        raise FormatError(
            f"lengths {said['lengths']!r:.80}, stored {said['stored']!r:.80}, hidden "
            f"{said['hidden']!r:.80} do not cut an axis of {size}; the metadata is damaged"
        )
    return ChunkAxis.from_slabs(*(np.repeat(run[:, 0], run[:, 1]) for run in runs))


def _pipeline_from_json(said: Mapping[str, Any]) -> CodecPipeline:
    check_extras(said, PIPELINE)
    dtype = dtype_from_json(said["dtype"])
    codecs = tuple(
        codec_from_zarr_v3(c["name"], c.get("configuration", {}), dtype) for c in said["codecs"]
    )
    layout = tuple(map(_layout_from_json, said["layout"]))
    fill = None if said["fill"] is None else base64.b64decode(said["fill"])
    packing = _packing_from_json(said["packing"], dtype) if "packing" in said else None
    return CodecPipeline(dtype, codecs, fill, layout, packing)


def _layout_from_json(said: Any) -> FixedAxis | int:
    """Return a stored axis: a number is that axis of the array."""
    if not isinstance(said, Mapping):
        return int(said)
    check_extras(said, {"length", "index"})
    return FixedAxis(said["length"], said["index"])


def _packing_from_json(said: Mapping[str, Any], stored: np.dtype[Any]) -> Decoding | None:
    check_extras(said, {"dtype", "attributes", "types"})
    types = said["types"]
    attributes = {n: from_json(v, types.get(n)) for n, v in said["attributes"].items()}
    dtype = np.dtype(said["dtype"])
    if dtype.kind in "mM":
        return TimePacking.from_attributes(attributes, dtype)
    return Packing.from_attributes(stored, attributes, dtype)


def dtype_from_json(said: Any) -> np.dtype[Any]:
    """Return the dtype that `dtype_to_json` describes."""
    if not isinstance(said, Mapping):
        return dtype_from_zarr_v2(said)
    names, kinds, shapes, offsets = zip(*said["members"], strict=True)
    formats = [(dtype_from_json(k), tuple(s)) for k, s in zip(kinds, shapes, strict=True)]
    spelled: Any = {
        "names": list(names),
        "formats": formats,
        "offsets": list(offsets),
        "itemsize": said["itemsize"],
    }
    found: np.dtype[Any] = np.dtype(spelled)
    return found
