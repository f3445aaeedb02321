"""Convert virtual arrays to Zarr v3 array metadata with parts of manifests, and back.

Plain Zarr is preferred: one pipeline as codecs, chunks on a regular or ``rectilinear`` grid (Zarr
core specification version 3.0, "Array metadata", and zarr-extensions). Sets have the grid `AXES` in
place of a ``rectilinear`` one that would list very many lengths. Other arrays (several
pipelines, CF packing that differs between files, hidden elements of chunks, several fragments) use
the chunk grid `FRAGMENTS` and the codec `PIPELINES`. Readers must understand these extensions;
``docs/reference/formats/zarr-v3.md`` specifies them.
"""

from __future__ import annotations

import base64
import marshal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray, get_default_fill
from virtualds.arrays.concatenate import build_fill_pipeline
from virtualds.chunks.axes import MAX_AXIS_LENGTH, ChunkAxis, RegularAxis
from virtualds.chunks.columns import Ints
from virtualds.chunks.fragment import (
    Fragment,
    find_origin,
    find_rectilinear_chunks,
    find_regular_chunks,
)
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import RecordCache
from virtualds.codecs import codec_from_zarr_v3
from virtualds.codecs.cf import Decoding, Packing, TimePacking
from virtualds.codecs.numcodecs import compress_zarr_v3, decode_zstd
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis
from virtualds.errors import FormatError, UnsupportedError, make_damage_error
from virtualds.formats.zarr import PLAIN_KEYS
from virtualds.formats.zarr.codecs import codecs_to_v3, pipeline_from_v3
from virtualds.formats.zarr.data_types import (
    data_type_from_v3,
    data_type_to_v3,
    dtype_from_zarr_v2,
    dtype_to_zarr_v2,
    encode_strings,
    fill_value_from_v3,
    fill_value_to_v3,
    parse_extension,
    to_string_objects,
)
from virtualds.json_values import from_json, is_shape, to_json
from virtualds.streams import Buffer

AXES, FRAGMENTS = "virtualds.axes", "virtualds.fragments"
"""Names of chunk grids of virtualds."""
PIPELINES, NUMPY_TYPE = "virtualds.pipelines", "virtualds.numpy"
"""Names of other extensions of virtualds: a codec, and a data type."""
EVEN_AXIS_KEYS = ("size", "chunk", "hidden", "last")
LISTED_AXIS_KEYS = ("lengths", "stored", "hidden")
PACKED_AXIS_KEYS = ("slabs", "type", "packed")
"""Keys of an axis in its three forms."""
PACKED_TYPES = ("|u1", "<u2", "<u4", "<u8")
MAX_RUNS = 1000
"""Maximum number of runs of equal chunk lengths that metadata list; longer lists are packed."""
MAX_SHARED_BYTES = 2**26
"""Maximum size of all axes that later arrays of the same chunks may share."""
PIPELINE_KEYS = ("dtype", "codecs", "fill", "layout", "flipped", "packing")
MAX_EMPTY = 2**20
"""Maximum number of slabs without elements along an axis."""
REQUIRED_KEYS = (
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
)
"""Keys that the metadata of an array must have."""
OPTIONAL_KEYS = ("attributes", "dimension_names", "storage_transformers")
GRIDS = {"regular": "chunk_shape", "rectilinear": "chunk_shapes"}
"""Supported grids, and the key of chunk lengths in their configurations."""
TEXT = "string"
"""The data type of variable-length strings (zarr-extensions, ``data-types/string``)."""
COMPRESSED_FROM = 4096
"""The minimum size in bytes of an array whose chunks are compressed."""
MAX_JOIN_RATIO = 8
"""The maximum ratio of the length of a chunk to that of new values at which both are joined."""
MAX_UNFINISHED = 3
"""The maximum number of chunks, of different lengths, into which appends divide values. Opening a
remote set takes one request for each."""
CHUNK_BYTES = 2**23
"""The maximum size in bytes of a chunk, unless one row is longer.

For the first and the last date of an axis, a reader decodes two chunks, which fit into its scratch
memory."""
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
"""The compressor of strings, of elements that are bytes, and of chunks too large for Blosc."""
BLOSC = {"cname": "zstd", "clevel": 3, "blocksize": 0}
"""The configuration of the compressor of numbers, without ``typesize`` and ``shuffle``."""
BLOSC_BYTES = 2**31 - 17
"""The maximum size in bytes of a chunk that Blosc compresses (``BLOSC_MAX_BUFFERSIZE``)."""


class ManifestPart(NamedTuple):
    """A manifest of chunks, and its position in the grid of a fragment."""

    fragment: int
    origin: tuple[int, ...]
    manifest: ChunkManifest


Manifests = Callable[[list[tuple[int, ...]], int], list[ManifestPart]]
"""A function that returns the parts of the manifests of an array, given the grids of its fragments
and the number of its pipelines (0 for plain Zarr)."""


# ---------------------------------------------------------------------- writing


def array_to_v3(
    array: ManifestArray, *, packed: bool = False
) -> tuple[dict[str, Any], list[ManifestPart]]:
    """Return the Zarr v3 form of an array, in plain Zarr if possible.

    Returns the content of ``zarr.json``, without attributes, dimensions and storage transformers,
    and the parts of the manifest. With ``packed`` the grid is `AXES` where plain Zarr would list
    more than `MAX_RUNS` chunk lengths.
    """
    if any(p.dtype.char in "gG" for p in array.pipelines) or array.dtype.char in "gG":
        raise UnsupportedError(f"its type {array.dtype} has a form that depends on the machine")
    return _describe_plain(array, packed) or extended_to_v3(array)


def is_extended(metadata: Mapping[str, Any]) -> bool:
    """Return whether an array consists of fragments (grid `FRAGMENTS`)."""
    grid = metadata.get("chunk_grid")
    return isinstance(grid, Mapping) and grid.get("name") == FRAGMENTS


def _describe_plain(
    array: ManifestArray, packed: bool
) -> tuple[dict[str, Any], list[ManifestPart]] | None:
    """Return the form of an array in plain Zarr, or None if there is none."""
    if len(array.pipelines) > 1:
        return None
    pipeline = array.pipelines[0] if array.fragments else build_fill_pipeline(array)
    is_unpacked = pipeline.packing is None and pipeline.decoded_dtype == array.dtype.newbyteorder(
        "="
    )
    data_type = data_type_to_v3(pipeline.dtype)
    grid = grid_to_v3(array, packed=packed) if is_unpacked and data_type is not None else None
    if grid is None:
        return None
    codecs = codecs_to_v3(pipeline, array.ndim, grid["configuration"].get("chunk_shape"))
    if codecs is None:
        return None
    fill = fill_value_to_v3(pipeline.fill_value, pipeline.dtype)
    metadata = build_metadata(array.shape, data_type, grid, fill, codecs)
    axes = axes_from_v3(array.shape, grid)
    parts = [ManifestPart(0, find_origin(f, axes), f.manifest) for f in array.fragments]
    return metadata, parts


def extended_to_v3(array: ManifestArray) -> tuple[dict[str, Any], list[ManifestPart]]:
    """Return the form of an array with the extensions of virtualds, by fragment."""
    data_type, dtype = data_type_to_v3(array.dtype), array.dtype
    if data_type is not None:
        fill = fill_value_to_v3(array.fill_value, dtype)
    else:
        data_type = {"name": NUMPY_TYPE, "configuration": {"dtype": dtype_to_json(dtype)}}
        raw = np.asarray(array.fill_value).astype(dtype).tobytes()
        fill = base64.b64encode(raw).decode()
    fragments = [
        {"start": list(f.start), "axes": [_axis_to_json(axis) for axis in f.axes]}
        for f in array.fragments
    ]
    grid = {"name": FRAGMENTS, "configuration": {"fragments": fragments}}
    pipelines = [_pipeline_to_json(p) for p in array.pipelines]
    codecs = [{"name": PIPELINES, "configuration": {"pipelines": pipelines}}]
    metadata = build_metadata(array.shape, data_type, grid, fill, codecs)
    parts = [
        ManifestPart(number, (0,) * array.ndim, f.manifest)
        for number, f in enumerate(array.fragments)
    ]
    return metadata, parts


def build_metadata(
    shape: tuple[int, ...], data_type: Any, grid: Any, fill: Any, codecs: Any
) -> dict[str, Any]:
    """Return the content of ``zarr.json``; data type, grid, fill value and codecs are JSON."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": grid,
        "chunk_key_encoding": PLAIN_KEYS.to_json(),
        "fill_value": fill,
        "codecs": codecs,
    }


def _axis_to_json(axis: ChunkAxis) -> dict[str, Any]:
    """Return a chunk axis as JSON."""
    if isinstance(axis, RegularAxis):
        return {"size": axis.size, "chunk": axis.step, "hidden": axis.inset, "last": axis.last}
    slabs = axis.slabs()
    columns = [np.diff(slabs.edges), slabs.encoded, slabs.inset]
    if not any(map(_has_many_runs, columns)):
        runs = (find_equal_runs(column).tolist() for column in columns)
        return dict(zip(LISTED_AXIS_KEYS, runs, strict=True))
    greatest = max(int(column.max(initial=0)) for column in columns)
    dtype = np.min_scalar_type(greatest).newbyteorder("<")
    data = np.concatenate(columns).astype(dtype).tobytes()
    packed = base64.b64encode(compress_zarr_v3(data, ZSTD)).decode()
    return {"slabs": axis.nchunks, "type": dtype.str, "packed": packed}


def _has_many_runs(values: Ints) -> bool:
    """Return whether numbers have more than `MAX_RUNS` runs of equal numbers."""
    return bool(np.count_nonzero(np.diff(values)) >= MAX_RUNS)


def find_equal_runs(values: Ints) -> Ints:
    """Return runs of equal numbers as pairs of the number and the length of the run.

    Examples
    --------
    >>> find_equal_runs(np.array([3, 3, 1])).tolist()
    [[3, 2], [1, 1]]
    """
    starts = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
    counts = np.diff(starts, append=values.size)
    return np.stack([values[starts], counts], axis=1)


def _read_runs(items: Sequence[Any]) -> Ints | None:
    """Return numbers, and pairs of a number and how often it occurs, as an array of pairs.

    Return None if there is anything else, or a number below 0.
    """
    if not set(map(type, items)) <= {int, list, tuple}:
        return None
    # a million runs take a second if Python looks at each, or makes a list of each
    pairs = [item for item in items if type(item) is not int]
    if not set(map(len, pairs)) <= {2} or not set(map(type, chain.from_iterable(pairs))) <= {int}:
        return None
    is_pair = np.fromiter((type(item) is not int for item in items), bool, len(items))
    runs = np.ones((len(items), 2), np.int64)
    try:
        runs[is_pair] = np.fromiter(chain.from_iterable(pairs), np.int64).reshape(-1, 2)
        runs[~is_pair, 0] = [item for item in items if type(item) is int]
    except OverflowError:
        return None
    return runs if (runs >= 0).all() else None


def _pipeline_to_json(pipeline: CodecPipeline) -> dict[str, Any]:
    """Return a pipeline as JSON."""
    layout = [
        {"length": e.length, "index": e.index} if isinstance(e, FixedAxis) else e
        for e in pipeline.layout
    ]
    document = {
        "dtype": dtype_to_json(pipeline.dtype),
        "codecs": [codec.to_zarr_v3(pipeline.dtype.itemsize) for codec in pipeline.codecs],
        "fill": None if pipeline.fill is None else base64.b64encode(pipeline.fill).decode(),
        "layout": layout,
    }
    if pipeline.flipped:
        # readers of version 1.1 refuse unknown keys
        document["flipped"] = list(pipeline.flipped)
    if (packing := pipeline.packing) is not None:
        attributes, types = to_json(packing.attributes)
        document["packing"] = {"dtype": packing.dtype.str, "attributes": attributes, "types": types}
    return document


def dtype_to_json(dtype: np.dtype[Any]) -> Any:
    """Return any dtype without objects as JSON, including the padding of compound types."""
    if dtype.names is None:
        return dtype_to_zarr_v2(dtype)
    members = []
    for name in dtype.names:
        kind, offset = dtype.fields[name][:2]  # type: ignore[index]
        members.append([name, dtype_to_json(kind.base), list(kind.shape), offset])
    return {"itemsize": dtype.itemsize, "members": members}


# ---------------------------------------------------------------------- reading


def array_from_v3(metadata: Mapping[str, Any], manifests: Manifests) -> ManifestArray:
    """Return the array that a ``zarr.json`` describes."""
    shape = tuple(metadata["shape"])
    if is_extended(metadata):
        return _extended_from_v3(shape, metadata, manifests)
    pipeline = pipeline_from_v3(metadata)
    axes = axes_from_v3(shape, metadata["chunk_grid"])
    grid = tuple(axis.nchunks for axis in axes)
    count: int = prod(grid)
    parts = manifests([grid], 0) if count else []
    if not parts and count:
        # keep the grid of an array without references, to which references may be appended
        parts = [ManifestPart(0, (0,) * len(grid), ChunkManifest.missing(grid))]
    if len(parts) == 1 and parts[0].manifest.shape == grid:
        return ManifestArray.from_fragment(build_part_fragment(parts[0], axes), pipeline)
    fragments = tuple(build_part_fragment(part, axes) for part in parts)
    return ManifestArray(
        shape, pipeline.decoded_dtype, pipeline.missing_value, (pipeline,), fragments
    )


def build_part_fragment(
    part: ManifestPart, axes: tuple[ChunkAxis, ...], start: tuple[int, ...] = ()
) -> Fragment:
    """Return the fragment of a part of a manifest on chunk axes."""
    start = start or (0,) * len(axes)
    if part.manifest.shape == tuple(axis.nchunks for axis in axes):
        return Fragment(start, axes, part.manifest)
    begin, fragment_axes = [], []
    for axis, first, count in zip(axes, part.origin, part.manifest.shape, strict=True):
        low, high = axis.edges_at(np.array([first, first + count])).tolist()
        begin.append(low)
        fragment_axes.append(axis if (low, high) == (0, axis.size) else axis.crop(low, high)[0])
    begin = [a + b for a, b in zip(begin, start, strict=True)]
    return Fragment(tuple(begin), tuple(fragment_axes), part.manifest)


def _extended_from_v3(
    shape: tuple[int, ...], metadata: Mapping[str, Any], manifests: Manifests
) -> ManifestArray:
    """Return an array that uses the extensions of virtualds."""
    grid = metadata["chunk_grid"]["configuration"]
    check_keys(grid, {"fragments"})
    starts_and_axes: list[tuple[tuple[int, ...], tuple[ChunkAxis, ...]]] = []
    for fragment in grid["fragments"]:
        check_keys(fragment, {"start", "axes"})
        axes = zip(fragment["axes"], shape, strict=True)
        fragment_axes = tuple(_read_axis(axis, size) for axis, size in axes)
        starts_and_axes.append((tuple(fragment["start"]), fragment_axes))
    [codec] = metadata["codecs"]
    if codec["name"] != PIPELINES:
        raise UnsupportedError(f"codec {codec['name']!r} in an array of fragments")
    check_keys(codec["configuration"], {"pipelines"})
    pipelines = tuple(map(_pipeline_from_json, codec["configuration"]["pipelines"]))
    data_type = metadata["data_type"]
    if isinstance(data_type, Mapping) and data_type.get("name") == NUMPY_TYPE:
        dtype = dtype_from_json(data_type["configuration"]["dtype"])
        fill = np.frombuffer(base64.b64decode(metadata["fill_value"]), dtype)[0]
    else:
        dtype = data_type_from_v3(data_type)
        fill = fill_value_from_v3(metadata["fill_value"], dtype)
    count = max(len(pipelines), 1)
    parts = (
        manifests([tuple(a.nchunks for a in axes) for _, axes in starts_and_axes], count)
        if starts_and_axes
        else []
    )
    fragments = [
        build_part_fragment(p, starts_and_axes[p.fragment][1], starts_and_axes[p.fragment][0])
        for p in parts
    ]
    if fragments and not pipelines:
        raise FormatError("there are chunks, but no pipeline that decodes them")
    array = ManifestArray(shape, dtype, get_default_fill(dtype), pipelines, tuple(fragments))
    return replace(array, fill_value=fill)


def _read_axis(config: Mapping[str, Any], size: int) -> ChunkAxis:
    """Return the chunk axis of JSON; the array has ``size`` elements along it."""
    # check before the cache is read, since lists of the grid ``rectilinear`` are also keys of it
    check_keys(config, {*EVEN_AXIS_KEYS, *LISTED_AXIS_KEYS, *PACKED_AXIS_KEYS})
    return _share_axis(config, size, partial(_axis_from_json, config, size))


def _axis_from_json(config: Mapping[str, Any], size: int) -> ChunkAxis:
    """Return the chunk axis of JSON whose keys have been checked."""
    if "size" in config:
        numbers = [config[name] for name in EVEN_AXIS_KEYS]
        if any(type(n) is not int for n in numbers):
            raise make_damage_error(
                f"{dict(config)} does not divide an axis into chunks", "metadata"
            )
        return ChunkAxis.regular(numbers[0], numbers[1], inset=numbers[2], last=numbers[3])
    if "packed" in config:
        return ChunkAxis.from_slabs(*_unpack_slabs(config, size))
    runs = [run for name in LISTED_AXIS_KEYS if (run := _read_runs(config[name])) is not None]
    # check before memory is allocated
    counts = {sum(run[:, 1].tolist()) for run in runs}
    if len(runs) < len(LISTED_AXIS_KEYS) or len(counts) != 1 or counts.pop() > size + MAX_EMPTY:
        raise make_damage_error(
            f"lengths {config['lengths']!r:.80}, stored {config['stored']!r:.80}, hidden "
            f"{config['hidden']!r:.80} do not divide an axis of {size}",
            "metadata",
        )
    return ChunkAxis.from_slabs(*(np.repeat(run[:, 0], run[:, 1]) for run in runs))


def _unpack_slabs(config: Mapping[str, Any], size: int) -> npt.NDArray[Any]:
    """Return the three columns of slabs of a packed axis."""
    count, name, text = (config[key] for key in PACKED_AXIS_KEYS)
    try:
        # check before memory is allocated
        if name not in PACKED_TYPES or type(count) is not int or not 0 <= count <= size + MAX_EMPTY:
            raise ValueError(f"{count!r:.80} slabs of type {name!r:.80}")
        dtype = np.dtype(name)
        nbytes = len(LISTED_AXIS_KEYS) * count * dtype.itemsize
        data = decode_zstd(base64.b64decode(text, validate=True), nbytes)
        columns = np.frombuffer(data, dtype).reshape(len(LISTED_AXIS_KEYS), count)
        # as floats, since sums of huge numbers overflow
        if columns.max(initial=0) >= MAX_AXIS_LENGTH or columns[0].sum(dtype=float) > size:
            raise ValueError("the slabs are too long")
    except (ValueError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise make_damage_error(
            f"a packed axis does not divide {size} elements ({error})", "metadata"
        ) from None
    return columns


def _pipeline_from_json(config: Mapping[str, Any]) -> CodecPipeline:
    """Return the pipeline that `_pipeline_to_json` describes."""
    check_keys(config, PIPELINE_KEYS)
    dtype = dtype_from_json(config["dtype"])
    codecs = tuple(
        codec_from_zarr_v3(c["name"], c.get("configuration", {}), dtype) for c in config["codecs"]
    )
    layout: list[FixedAxis | int] = []
    for entry in config["layout"]:
        # a number is an axis of the array
        if isinstance(entry, Mapping):
            check_keys(entry, {"length", "index"})
            layout.append(FixedAxis(entry["length"], entry["index"]))
        else:
            layout.append(int(entry))
    fill = None if config["fill"] is None else base64.b64decode(config["fill"])
    packing = _packing_from_json(config["packing"], dtype) if "packing" in config else None
    flipped = config.get("flipped", [])
    is_list = isinstance(flipped, list)
    if not is_list or any(type(axis) is not int or axis not in layout for axis in flipped):
        raise make_damage_error(f"flipped {flipped!r:.80} of {layout}", "metadata")
    return CodecPipeline(dtype, codecs, fill, tuple(layout), packing, tuple(flipped))


def _packing_from_json(config: Mapping[str, Any], stored: np.dtype[Any]) -> Decoding | None:
    """Return the CF decoding of stored numbers that a pipeline describes."""
    check_keys(config, {"dtype", "attributes", "types"})
    types = config["types"]
    attributes = {n: from_json(v, types.get(n)) for n, v in config["attributes"].items()}
    dtype = np.dtype(config["dtype"])
    if dtype.kind in "mM":
        return TimePacking.from_attributes(attributes, dtype)
    return Packing.from_attributes(stored, attributes, dtype)


def dtype_from_json(value: Any) -> np.dtype[Any]:
    """Return the dtype that `dtype_to_json` describes."""
    if not isinstance(value, Mapping):
        return dtype_from_zarr_v2(value)
    names, kinds, shapes, offsets = zip(*value["members"], strict=True)
    formats = [(dtype_from_json(k), tuple(s)) for k, s in zip(kinds, shapes, strict=True)]
    fields: Any = {
        "names": list(names),
        "formats": formats,
        "offsets": list(offsets),
        "itemsize": value["itemsize"],
    }
    dtype: np.dtype[Any] = np.dtype(fields)
    return dtype


# ---------------------------------------------------------------------- checks


def check_zarr_v3(metadata: Any) -> None:
    """Raise an error for an invalid ``zarr.json`` of an array."""
    if not isinstance(metadata, Mapping):
        raise make_damage_error(f"zarr.json: {metadata!r} is not an object", "metadata")
    for key, value in (("zarr_format", 3), ("node_type", "array")):
        if (found := metadata.get(key)) != value:
            raise FormatError(f"zarr.json: its {key} is {found!r}, not {value!r}")
    if missing := set(REQUIRED_KEYS) - metadata.keys():
        raise make_damage_error(f"zarr.json: there is no {min(missing)!r}", "metadata")
    shape, names = metadata["shape"], metadata.get("dimension_names")
    if not is_shape(shape):
        raise make_damage_error(f"zarr.json: shape {shape!r}", "metadata")
    if names is not None and not (
        isinstance(names, list | tuple)
        and len(names) == len(shape)
        and all(name is None or isinstance(name, str) for name in names)
    ):
        raise make_damage_error(
            f"zarr.json: dimension_names {names!r} of shape {shape!r}", "metadata"
        )
    for key, kind in (("codecs", list | tuple), ("attributes", Mapping)):
        if key in metadata and not isinstance(metadata[key], kind):
            raise make_damage_error(f"zarr.json: {key} {metadata[key]!r}", "metadata")
    check_keys(metadata, {*REQUIRED_KEYS, *OPTIONAL_KEYS})


def check_keys(metadata: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise an error for unknown keys, unless readers may ignore them (``must_understand``)."""
    if not isinstance(metadata, Mapping):
        raise make_damage_error(f"zarr.json: {metadata!r:.80} is not an object", "metadata")
    for key in sorted(metadata.keys() - set(known)):
        value = metadata[key]
        if not isinstance(value, Mapping) or value.get("must_understand") is not False:
            raise UnsupportedError(
                f"zarr.json: {key!r} is unknown to virtualds, and readers must understand it; "
                f"update virtualds, or open the data with the library that wrote them"
            )


# ---------------------------------------------------------------------- grids


def grid_to_v3(array: ManifestArray, *, packed: bool = False) -> dict[str, Any] | None:
    """Return the chunk grid on which all fragments of an array are, or None.

    The grid is ``regular`` if possible, else ``rectilinear``, or with ``packed`` `AXES` if that
    lists very many lengths. There is none if chunks have hidden elements, if fragments are chunked
    differently, or if gaps between fragments have another value than missing chunks.
    """
    if not array.gaps_read_as_missing:
        return None
    chunks = find_regular_chunks(array.shape, array.fragments)
    if chunks is None and not array.size:
        # fragments without elements have no chunks, so their positions do not matter
        chunks = find_regular_chunks(array.shape, ())
    if chunks is not None:
        return {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}
    lengths = find_rectilinear_chunks(array.shape, array.fragments)
    if lengths is None:
        return None
    if packed and any(map(_has_many_runs, lengths)):
        axes = map(_divide_axis, array.shape, lengths)
        return {"name": AXES, "configuration": {"axes": list(map(_axis_to_json, axes))}}
    # runs of length 1 are written as a single number
    runs = [find_equal_runs(row).tolist() for row in lengths]
    shapes = [[n if count == 1 else [n, count] for n, count in pairs] for pairs in runs]
    return {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": shapes}}


def axes_from_v3(shape: Sequence[int], chunk_grid: Any) -> tuple[ChunkAxis, ...]:
    """Return the chunk axes of an array from its ``chunk_grid``.

    Chunks beyond the end of an axis are left out.

    Examples
    --------
    >>> months = {"kind": "inline", "chunk_shapes": [[31, 28, [31, 2]]]}
    >>> (axis,) = axes_from_v3((118,), {"name": "rectilinear", "configuration": months})
    >>> axis.lengths.tolist()
    [31, 28, 31, 28]
    """
    name, config = parse_extension(chunk_grid, "chunk_grid")
    if name == AXES:
        return _read_axes(shape, config)
    if name not in GRIDS:
        raise UnsupportedError(
            f"chunk_grid {name!r}: it is not one of {sorted([AXES, *GRIDS])}; open the data with "
            f"the library that wrote them"
        )
    if name == "rectilinear" and config.get("kind") != "inline":
        raise UnsupportedError(
            f"chunk_grid 'rectilinear' of kind {config.get('kind')!r}: only 'inline' is supported; "
            f"open the data with the library that wrote them"
        )
    lengths_by_axis = config.get(GRIDS[name])
    if (
        not isinstance(lengths_by_axis, Sequence)
        or isinstance(lengths_by_axis, str)
        or len(lengths_by_axis) != len(shape)
    ):
        raise make_damage_error(
            f"chunk_grid {name!r}: {GRIDS[name]} {lengths_by_axis!r} of shape {list(shape)}",
            "metadata",
        )
    make_axis = _make_regular_axis if name == "regular" else _build_axis
    pairs = zip(shape, lengths_by_axis, strict=True)
    return tuple(make_axis(size, lengths, axis) for axis, (size, lengths) in enumerate(pairs))


def _read_axes(shape: Sequence[int], config: Mapping[str, Any]) -> tuple[ChunkAxis, ...]:
    """Return the chunk axes of the grid `AXES`."""
    check_keys(config, {"axes"})
    pairs = zip(config["axes"], shape, strict=True)
    axes = tuple(_read_axis(axis, size) for axis, size in pairs)
    if tuple(axis.size for axis in axes) != tuple(shape):
        raise make_damage_error(
            f"chunk_grid {AXES!r}: axes of {[axis.size for axis in axes]} elements of shape "
            f"{list(shape)}",
            "metadata",
        )
    return axes


class _AxisCache(RecordCache[ChunkAxis]):
    """A cache of axes with a limited size in bytes."""

    def weigh(self, record: ChunkAxis) -> int:
        """Return the size of an axis in bytes."""
        return record.nbytes


_AXES = _AxisCache(MAX_SHARED_BYTES)
"""Axes by the size of the array, and the lengths of chunks as in JSON."""


def _share_axis(lengths: Any, size: int, make: Callable[[], ChunkAxis]) -> ChunkAxis:
    """Return the axis that ``make`` returns, the same object for arrays of the same chunks."""
    try:
        # marshal takes a ninth of the time of pickle. Version 2 writes equal lists equally.
        key = marshal.dumps(lengths, 2)
    except ValueError:
        # lists that are nested too deeply make no axis
        return make()
    return _AXES.get((size, key), make)


def _make_regular_axis(size: int, length: Any, axis: int) -> ChunkAxis:
    """Return an axis with chunks of one length."""
    # some writers have chunks of length 0 along empty axes
    if type(length) is not int or length < min(size, 1):
        raise _make_axis_error(size, length, axis)
    return ChunkAxis.regular(size, max(length, 1))


def _build_axis(size: int, lengths: Any, axis: int) -> ChunkAxis:
    """Return an axis with chunks of one length, or of listed lengths."""
    if not isinstance(lengths, list | tuple):
        return _make_regular_axis(size, lengths, axis)
    return _share_axis(lengths, size, partial(_build_listed_axis, size, lengths, axis))


def _build_listed_axis(size: int, lengths: Sequence[Any], axis: int) -> ChunkAxis:
    """Return an axis with chunks of listed lengths."""
    runs = _read_runs(lengths)
    if runs is None or (runs < 1).any():
        raise _make_axis_error(size, lengths, axis)
    values, counts = runs.T
    # chunks beyond the end are not counted
    counts = np.minimum(counts, -(-size // values))
    # as floats, since the sum may overflow integers; so huge chunks are refused, even at the end
    if not size <= (counts * values).sum(dtype=float) < MAX_AXIS_LENGTH:
        raise _make_axis_error(size, lengths, axis)
    starts = np.cumsum(values * counts) - values * counts
    counts = np.minimum(counts, np.maximum(-((starts - size) // values), 0))
    if len(distinct := np.unique(values[counts > 0])) == 1:
        return ChunkAxis.regular(size, int(distinct[0]))
    return _divide_axis(size, np.repeat(values, counts))


def _divide_axis(size: int, stored: Ints) -> ChunkAxis:
    """Return the axis of chunks of stored lengths, of which the last may extend beyond the end."""
    edges = np.minimum(np.concatenate([[0], np.cumsum(stored)]), size)
    return ChunkAxis.from_slabs(np.diff(edges), stored)


def _make_axis_error(size: int, lengths: Any, axis: int) -> FormatError:
    """Return the error for chunks that do not cover an axis."""
    return make_damage_error(
        f"chunk_grid: chunks of {lengths!r} along axis {axis} do not cover its {size} elements",
        "metadata",
    )


def count_chunks(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the number of chunks of an array along each axis."""
    axes = axes_from_v3(metadata["shape"], metadata["chunk_grid"])
    return tuple(axis.nchunks for axis in axes)


class NativeArray(NamedTuple):
    """An array as plain Zarr: the content of ``zarr.json``, and its chunks by index."""

    metadata: dict[str, Any]
    chunks: Iterator[tuple[tuple[int, ...], bytes]]


def values_to_v3(values: npt.NDArray[Any], existing: Sequence[int] = ()) -> NativeArray | None:
    """Return values in memory as plain Zarr, or None if that cannot express them.

    ``existing`` are the lengths, along the first axis, of the chunks of these values that a set
    already has. New values become separate chunks, so that existing chunks need not change.
    """
    is_text = values.dtype.kind in "OUT"
    data_type = TEXT if is_text else data_type_to_v3(values.dtype)
    if data_type is None:
        return None
    if is_text:
        values = to_string_objects(values)
    row_nbytes = max(values.nbytes // max(len(values), 1), 1) if values.ndim else 1
    shape = [max(n, 1) for n in values.shape]
    lengths: Sequence[int] = ()
    if shape:
        shape[0] = min(shape[0], max(CHUNK_BYTES // row_nbytes, 1))
    if values.nbytes >= COMPRESSED_FROM and not is_text:
        lengths = _extend_chunks(existing, len(values), shape[0])
    grid: dict[str, Any] = {"name": "regular", "configuration": {"chunk_shape": shape}}
    if lengths:
        configuration = {"kind": "inline", "chunk_shapes": [list(lengths), *shape[1:]]}
        grid = {"name": "rectilinear", "configuration": configuration}
    codecs: list[dict[str, Any]] = [_find_serialiser(values.dtype)]
    if values.nbytes >= COMPRESSED_FROM:
        codecs.append(_choose_compressor(values.dtype, prod(shape) * values.dtype.itemsize))
    fill = "" if is_text else fill_value_to_v3(np.zeros((), values.dtype)[()], values.dtype)
    metadata = build_metadata(values.shape, data_type, grid, fill, codecs)
    return NativeArray(metadata, _encode_chunks(values, grid, codecs[1:]))


def _extend_chunks(existing: Sequence[int], size: int, max_length: int) -> Sequence[int]:
    """Return the lengths of chunks after an append, or an empty sequence for regular chunks.

    Only the last few chunks change: a chunk is joined with the values after it when these are not
    much shorter. So each value is written only a few times, and there are few chunks.
    """
    if not existing or not 0 < sum(existing) < size or max(existing) > max_length:
        return ()
    lengths = [*existing, size - sum(existing)]
    while len(lengths) > 1 and (
        lengths[-2] <= MAX_JOIN_RATIO * lengths[-1] or len(lengths) > MAX_UNFINISHED
    ):
        if lengths[-2] + lengths[-1] > max_length:
            return ()
        lengths[-2:] = [lengths[-2] + lengths[-1]]
    return lengths if len(lengths) > 1 else ()


def _choose_compressor(dtype: np.dtype[Any], nbytes: int) -> dict[str, Any]:
    """Return the codec that compresses values of a data type, in chunks of up to ``nbytes``.

    Coordinates are mostly numbers with equal first bytes. Shuffled, they take a tenth of the bytes,
    and a fourth of the time to decode.
    """
    if dtype.kind not in "iufcmM" or dtype.itemsize == 1 or nbytes > BLOSC_BYTES:
        return ZSTD
    shuffled = {"typesize": dtype.itemsize, "shuffle": "shuffle"}
    return {"name": "blosc", "configuration": {**BLOSC, **shuffled}}


def _find_serialiser(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the codec that converts values to bytes, as `encode_chunk` does."""
    if dtype.kind == "O":
        return {"name": "vlen-utf8"}
    if dtype.itemsize == 1 or (dtype.kind in "SV" and not dtype.names):
        return {"name": "bytes"}
    order = "big" if dtype.str.startswith(">") else "little"
    return {"name": "bytes", "configuration": {"endian": order}}


def encode_chunk(values: npt.NDArray[Any], shape: tuple[int, ...]) -> Buffer:
    """Return values as an uncompressed chunk, padded to a shape; it may be a view of the values."""
    is_text = values.dtype.kind == "O"
    if values.shape != shape:
        padded = np.full(shape, "", object) if is_text else np.zeros(shape, values.dtype)
        padded[tuple(slice(0, n) for n in values.shape)] = values
        values = padded
    if is_text:
        return encode_strings(values)
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _encode_chunks(
    values: npt.NDArray[Any], grid: dict[str, Any], compressors: Sequence[dict[str, Any]]
) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Yield the index and the bytes of each chunk; chunks at the edge are padded."""
    slabs = [axis.slabs() for axis in axes_from_v3(values.shape, grid)]
    for chunk_id in product(*(range(slab.encoded.size) for slab in slabs)):
        pairs = list(zip(slabs, chunk_id, strict=True))
        box: Any = tuple(slice(*slab.edges[i : i + 2].tolist()) for slab, i in pairs)
        shape = tuple(int(slab.encoded[i]) for slab, i in pairs)
        # with the ellipsis, numpy returns an array also for a 0-D string
        data = encode_chunk(values[(*box, ...)], shape)
        for compressor in compressors:
            data = compress_zarr_v3(data, compressor)
        yield chunk_id, bytes(data)
