"""Plan how to rewrite variables: the main encoding, the chunks to rewrite, and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray, fills_with, unpack
from virtualds.arrays.concatenate import build_fill_pipeline
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.bounds import check_table
from virtualds.chunks.axes import make_regular_axes
from virtualds.chunks.columns import COLUMNS, INLINE, MISSING, Ints
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.cf import PACKING_ATTRIBUTES, Decoding, Packing, TimePacking
from virtualds.codecs.codec import Codec
from virtualds.codecs.hdf import Shuffle
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis
from virtualds.codecs.zlib import Zlib
from virtualds.errors import (
    UnsupportedError,
    VirtualdsError,
    format_bytes,
    format_count,
    make_unsupported_error,
)
from virtualds.formats.zarr.data_types import pack_members, to_packed
from virtualds.pictures import Block, Heading, Table, draw, format_text
from virtualds.pictures.html import to_notebook_html
from virtualds.reading import replace_chunks
from virtualds.source_file import SourceFile
from virtualds.streams import Buffer

# ---------------------------------------------------------------------- choosing encodings
# The main encoding of a variable is the encoding that needs the fewest bytes to be rewritten.


Obstacles = Callable[[ManifestVariable], list[str]]
"""Takes a virtual variable, and returns the reasons why a format cannot store it."""
MAX_CANDIDATES = 48
"""Maximum number of encodings of a variable that are compared."""
MAX_ELEMENTS = 2**20
"""Maximum number of elements in new chunks of a variable, unless a single row is longer."""
COMPRESSION_LEVEL = 4
"""Compression level for encodings whose own codecs have no encoder."""


CHOICES = ("chunks", "codecs", "dtype")
"""Keys of ``main_encoding`` of a variable."""
Choices = Mapping[str, Any]
"""``main_encoding`` of a variable; missing keys are chosen automatically."""


def _apply_choices(
    choices: Choices, main: MainEncoding, dims: tuple[str, ...]
) -> Iterator[MainEncoding]:
    """Yield an encoding with the chosen codecs and chunks, if it has the chosen dtype."""
    dtype, codecs, chunks = (choices.get(name) for name in ("dtype", "codecs", "chunks"))
    pipeline = main.pipeline
    if dtype is not None and np.dtype(dtype) != pipeline.dtype:
        return
    if codecs is not None:
        codec_chain = tuple(c if isinstance(c, Codec) else codec_from_zarr_v2(c) for c in codecs)
        pipeline = replace(pipeline, codecs=codec_chain, layout=tuple(range(len(main.chunks))))
    if isinstance(chunks, Mapping):
        if unknown := set(chunks) - set(dims):
            raise ValueError(f"main_encoding: chunks along {unknown}; give dimensions of {dims}")
        pairs = zip(dims, main.chunks, strict=True)
        chunks = [chunks.get(dim, length) for dim, length in pairs]
    yield MainEncoding(pipeline, main.chunks if chunks is None else tuple(map(int, chunks)))


def choose_encoding(variable: ManifestVariable, obstacles: Obstacles, choices: Choices) -> Cells:
    """Return the cells of a variable in the main encoding that costs least.

    Raises `UnsupportedError` if the format can store no encoding that the user allows.
    """
    array: ManifestArray = variable.data  # type: ignore[assignment]
    costs = {main: Cells(array, main).nbytes for main in _iterate_candidates(variable, choices)}
    why = "there is no encoding that the format could hold"
    for main in sorted(costs, key=lambda candidate: costs[candidate]):
        reason = _explain_unsuitable(variable, main, costs[main], obstacles)
        if reason is None:
            return Cells(array, main)
        why = reason
    raise UnsupportedError(f"its chunks cannot be rewritten: {why}")


def _iterate_candidates(variable: ManifestVariable, choices: Choices) -> Iterator[MainEncoding]:
    """Yield the encodings of chunks, then a plain encoding for each that represents all values."""
    candidates = list(islice(_iterate_existing_encodings(variable), MAX_CANDIDATES))
    dims = variable.dims
    array: ManifestArray = variable.data  # type: ignore[assignment]
    if not candidates:
        # without chunks, choose chunks of whole rows
        shape = array.shape
        rows = max(1, min(shape[0], MAX_ELEMENTS // prod(shape[1:]))) if shape else 1
        candidates = [MainEncoding(build_fill_pipeline(array), (rows, *shape[1:])[: array.ndim])]
    for main in (*candidates, *(_make_plain(variable, main) for main in candidates)):
        yield from _apply_choices(choices, main, dims)


def _iterate_existing_encodings(variable: ManifestVariable) -> Iterator[MainEncoding]:
    """Yield the encodings of chunks, beginning with that of the most elements."""
    array: ManifestArray = variable.data  # type: ignore[assignment]
    sizes: dict[MainEncoding, int] = {}
    for fragment in array.fragments:
        chunks: tuple[int, ...] = ()
        for axis in fragment.axes:
            # choose the chunk length that covers most of the axis
            lengths, counts = np.unique(axis.slabs().encoded, return_counts=True)
            chunks += (int(lengths[np.argmax(lengths * counts)]) if lengths.size else 1,)
        if 0 in fragment.shape:
            continue
        for number in fragment.manifest.used_pipelines(len(array.pipelines)).tolist():
            pipeline = drop_axes_of_length_one(array.pipelines[number], chunks)
            # rewritten chunks are not flipped
            main = MainEncoding(replace(pipeline, flipped=()), chunks)
            sizes[main] = sizes.get(main, 0) + int(np.prod(fragment.shape))
    yield from sorted(sizes, key=lambda main: -sizes[main])


def _make_plain(variable: ManifestVariable, main: MainEncoding) -> MainEncoding:
    """Return an encoding with the chunk shape of ``main`` that can represent all values."""
    array: ManifestArray = variable.data  # type: ignore[assignment]
    dtype = to_packed(array.dtype)
    has_no_packing = not set(PACKING_ATTRIBUTES) & variable.attributes.keys()
    size = 8 if has_no_packing and dtype.kind in "mM" else dtype.itemsize
    codecs = main.pipeline.codecs
    # adapt shuffle to the element size, and replace the codecs if one has no encoder
    shuffle: tuple[Codec, ...] = (Shuffle(size),) if size > 1 else ()
    if all(map(is_lossless, codecs)):
        pairs = (shuffle if get_codec_id(codec) == "shuffle" else (codec,) for codec in codecs)
        codecs = tuple(chain.from_iterable(pairs))
    else:
        codecs = (*shuffle, Zlib(COMPRESSION_LEVEL))
    fill = array.fill_value
    return MainEncoding(
        make_plain_pipeline(dtype, fill, array.ndim, codecs, has_no_packing), main.chunks
    )


def _explain_unsuitable(
    variable: ManifestVariable, main: MainEncoding, nbytes: int, obstacles: Obstacles
) -> str | None:
    """Return the reason why an encoding cannot be the main encoding, or None."""
    array: ManifestArray = variable.data  # type: ignore[assignment]
    if main.pipeline.decoded_dtype != array.dtype.newbyteorder("=") and not array.dtype.names:
        return f"its values are {array.dtype}, and {main.describe()} decodes to others"
    if nbytes and not main.is_encodable:
        return f"there is no encoder for {main.describe()}"
    if nbytes and not all(can_represent(main.pipeline, p) for p in array.pipelines):
        return f"{main.describe()} would change values that are packed in another way"
    if array.has_gaps and not fills_with(main.pipeline, array.fill_value):
        try:
            pack(np.full(1, array.fill_value, array.dtype), main.pipeline)
        except UnsupportedError:
            return f"{main.describe()} cannot represent gaps of {array.fill_value}"
    single_chunk = ChunkManifest.build(
        (1,) * len(main.chunks), file=INLINE, length=1, inline=(b"\0",)
    )
    try:
        reasons = obstacles(apply_main_encoding(variable, main, single_chunk))
    except VirtualdsError as error:
        return f"{error}"
    return "; ".join(reasons) or None


def apply_main_encoding(
    variable: ManifestVariable,
    main: MainEncoding,
    manifest: ChunkManifest,
    shape: tuple[int, ...] | None = None,
) -> ManifestVariable:
    """Return the stored variable with the chunks of a manifest, all in the main encoding."""
    array: ManifestArray = variable.data  # type: ignore[assignment]
    shape = main.chunks if shape is None else shape
    fragment = Fragment.whole(make_regular_axes(shape, main.chunks), manifest)
    encoded = ManifestArray(
        shape,
        main.pipeline.decoded_dtype,
        array.fill_value,
        (main.pipeline,),
        (fragment,),
        array.name,
    )
    plain, packed = unpack(encoded)
    return replace(variable, data=plain, attributes=variable.attributes | (packed or {}))  # type: ignore[operator]


# ---------------------------------------------------------------------- costs
# The table of costs is a pandas DataFrame whose text fits in 80 columns.


HEADINGS = ["variable", "chunks", "rewritten", "bytes", "encoding", "reason"]
WIDTH = 80
"""Maximum length of lines in characters, unless a word is longer."""


class CostTable(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """A table with one row per virtual variable: what rewriting it costs, and why.

    It is a pandas DataFrame with its own representation; tables derived from it are plain.

    Examples
    --------
    >>> row = ("t", 8, 7, 30380, "float32, zlib", "chunk lengths vary")
    >>> CostTable([row, ("lat", 1, 0, 0, "", "")], columns=HEADINGS)
    7 of 9 chunks to rewrite, 30.4 kB decoded
    variable  chunks  rewritten  bytes    encoding          reason
    t         8       7          30.4 kB  float32, zlib     chunk lengths vary
    lat       1       0          0 bytes
    """

    def __repr__(self) -> str:
        return format_text(self._iterate_blocks(), WIDTH)

    def _repr_html_(self) -> str:
        return to_notebook_html(*map(draw, self._iterate_blocks()))

    def _iterate_blocks(self) -> Iterator[Block]:
        yield Heading(
            f"{self['rewritten'].sum():,} of {format_count(int(self['chunks'].sum()), 'chunk')} to "
            f"rewrite, {format_bytes(self['bytes'].sum())} decoded"
        )
        rows = [
            (r.variable, f"{r.chunks:,}", f"{r.rewritten:,}", format_bytes(r.bytes), *r[5:])
            for r in self.itertuples()
        ]
        yield Table(HEADINGS, rows, (1, 2, 3))


# ---------------------------------------------------------------------- plans


PLACEHOLDER = SourceFile("file:///rewritten")
"""Stands for the file of chunks that are not written yet when obstacles are listed."""


@dataclass(frozen=True)
class VariablePlan:
    """The plan for rewriting a variable, for the format or because ``main_encoding`` names it.

    ``cells`` are the cells of the main encoding, and ``reasons`` say why the format cannot store
    the variable. ``filled`` is a mask of missing chunks that must be written, because the format
    cannot store their fill value.
    """

    path: str
    variable: ManifestVariable
    cells: Cells
    filled: Mask
    reasons: tuple[str, ...]

    @classmethod
    def of(
        cls, path: str, variable: ManifestVariable, obstacles: Obstacles, choices: Choices | None
    ) -> VariablePlan | None:
        """Return the plan of a variable, or None if it can be written unchanged."""
        if not isinstance(variable.data, ManifestArray) or not variable.data.size:
            return None
        reasons = obstacles(variable)
        if not reasons and choices is None:
            return None
        cells = choose_encoding(variable, obstacles, choices or {})
        plan = cls(path, variable, cells, np.zeros(cells.grid, bool), tuple(reasons))
        if cells.missing.any():
            kept, written = cells.kept, np.flatnonzero(plan.to_write)
            files = (*kept.files, PLACEHOLDER)
            row = {"file": len(kept.files), "offset": 0, "length": 1}
            assumed = replace_chunks(kept, written, files, kept.inline, **row)
            if obstacles(plan.finish(assumed)):
                plan = replace(plan, filled=cells.missing)
        return plan

    @property
    def array(self) -> ManifestArray:
        """The array before rewriting."""
        return self.cells.array

    @property
    def main(self) -> MainEncoding:
        """The main encoding."""
        return self.cells.main

    @property
    def to_write(self) -> Mask:
        """The cells that are written as chunks."""
        return self.cells.rewritten | self.cells.gaps | self.filled

    @property
    def nchunks(self) -> int:
        """The number of chunks to write; equal chunks count separately, but are written once."""
        return int(np.count_nonzero(self.to_write))

    @property
    def nbytes(self) -> int:
        """The size of the chunks to write in bytes, before codecs."""
        return self.nchunks * self.main.nbytes

    def finish(self, manifest: ChunkManifest) -> ManifestVariable:
        """Return the rewritten variable with a manifest of chunks in the main encoding."""
        return apply_main_encoding(self.variable, self.main, manifest, self.array.shape)


def plan_rewriting(
    group: ManifestGroup, obstacles: Obstacles, main_encoding: Mapping[str, Any], target: str
) -> dict[str, VariablePlan]:
    """Return the plans of all variables to rewrite, by path."""
    variables = dict(group.walk_variables())
    if unknown := set(main_encoding) - variables.keys():
        raise ValueError(f"main_encoding of {sorted(unknown)}: give names of {sorted(variables)}")
    plans, problems = {}, []
    for path, variable in variables.items():
        choices = main_encoding.get(path)
        if path in main_encoding and (
            not isinstance(choices, Mapping) or not choices.keys() <= set(CHOICES)
        ):
            raise ValueError(f"main_encoding of {path!r}: {choices!r}; give a dict of {CHOICES}")
        try:
            plan = VariablePlan.of(path, variable, obstacles, choices)
        except UnsupportedError as error:
            problems.append(f"{path}: {error}")
            continue
        if plan is not None:
            plans[path] = plan
    if problems:
        remedy = "load these variables first (ds.virtual.load()), or leave them out (ds.drop_vars)"
        raise make_unsupported_error(target, "the format", problems, remedy)
    return plans


def build_cost_table(group: ManifestGroup, plans: Mapping[str, VariablePlan]) -> CostTable:
    """Return the cost of rewriting and its reasons, one row per virtual variable."""
    rows: list[tuple[Any, ...]] = []
    for path, variable in group.walk_variables():
        if (plan := plans.get(path)) is not None:
            reason = "; ".join(plan.reasons) or "main_encoding says so"
            costs = (prod(plan.cells.grid), plan.nchunks, plan.nbytes)
            rows.append((path, *costs, plan.main.describe(), reason))
        elif isinstance(variable.data, ManifestArray):
            rows.append((path, variable.data.nchunks, 0, 0, "", ""))
    return CostTable(rows, columns=HEADINGS)


# ---------------------------------------------------------------------- encodings


Array = npt.NDArray[Any]

LOSSLESS = {
    *("blosc", "bz2", "gzip", "lz4", "lzma", "shuffle", "zlib", "zstd"),
    *("adler32", "crc32", "fletcher32"),
}
"""Ids of codecs whose lossless encoders in numcodecs match the decoders of virtualds."""


@dataclass(frozen=True)
class MainEncoding:
    """The main encoding of a variable, or a candidate: a pipeline and a chunk shape."""

    pipeline: CodecPipeline
    chunks: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size of a chunk in bytes, before codecs."""
        return prod(self.chunks) * self.pipeline.dtype.itemsize

    @property
    def is_encodable(self) -> bool:
        """Whether chunks can be encoded without loss."""
        array_axes = [entry for entry in self.pipeline.layout if isinstance(entry, int)]
        has_no_fixed_axes = len(array_axes) == len(self.pipeline.layout)
        has_all_axes = prod(self.chunks[axis] for axis in array_axes) == prod(self.chunks)
        return has_no_fixed_axes and has_all_axes and all(map(is_lossless, self.pipeline.codecs))

    def describe(self) -> str:
        """Return a short description of the encoding, for tables and errors."""
        codecs = [get_codec_id(codec) for codec in self.pipeline.codecs] or ["uncompressed"]
        packing = self.pipeline.packing
        packed = ", packed" if packing and not packing.is_identity else ""
        return f"{self.pipeline.dtype}{packed}, {' '.join(codecs)}, chunks {self.chunks}"

    def encode(self, values: Array) -> bytes:
        """Return values as an encoded chunk, padded with the fill value.

        Raises `UnsupportedError` if the packing cannot represent the values exactly.
        """
        stored = pack(values, self.pipeline)
        if stored.shape != self.chunks:
            padded = np.full(self.chunks, self.pipeline.fill_value, self.pipeline.dtype)
            padded[tuple(slice(0, n) for n in stored.shape)] = stored
            stored = padded
        return self._encode_stored(stored)

    def encode_fill(self) -> bytes:
        """Return an encoded chunk of fill values."""
        fill = np.full(self.chunks, self.pipeline.fill_value, self.pipeline.dtype)
        return self._encode_stored(fill)

    def _encode_stored(self, stored: Array) -> bytes:
        """Return stored numbers as an encoded chunk."""
        data = np.ascontiguousarray(stored.transpose(self.order)).view(np.uint8).reshape(-1).data
        for encode in self._encoders:
            data = encode(data)
        return bytes(data)

    def check_exact(self, data: bytes, values: Array) -> None:
        """Raise an error if an encoded chunk does not decode to its values."""
        encoded: Buffer = data
        for codec in reversed(self.pipeline.codecs):
            encoded = codec.decode(encoded, None)
        shape = [self.chunks[axis] for axis in self.order]
        stored = np.frombuffer(encoded, self.pipeline.dtype).reshape(shape)
        decoded = stored.transpose(np.argsort(self.order))[tuple(map(slice, values.shape))]
        if not are_bit_identical(unpack_numbers(decoded, self.pipeline), values):
            raise UnsupportedError(
                f"{self.describe()} does not hold the values to the last bit; choose another "
                f"encoding with main_encoding="
            )

    @cached_property
    def order(self) -> list[int]:
        """The axes in the order in which they are stored."""
        array_axes = [entry for entry in self.pipeline.layout if isinstance(entry, int)]
        return [axis for axis in range(len(self.chunks)) if axis not in array_axes] + array_axes

    @cached_property
    def _encoders(self) -> list[Callable[[Any], Any]]:
        """The encoders of the codecs, in order."""
        import numcodecs

        return [numcodecs.get_codec(c.to_zarr_v2()).encode for c in self.pipeline.codecs]


def is_lossless(codec: Codec) -> bool:
    """Return whether numcodecs has a lossless encoder that matches a codec."""
    return not codec.is_array_to_array and get_codec_id(codec) in LOSSLESS


def get_codec_id(codec: Codec) -> str:
    """Return the Zarr v2 id of a codec."""
    return str(getattr(codec, "id", codec.zarr_v2_id))


# ---------------------------------------------------------------------- packing


def can_represent(main: CodecPipeline, other: CodecPipeline) -> bool:
    """Return whether the packing of a pipeline can represent the values of another pipeline."""
    packing, other_packing = main.packing, other.packing
    if packing is None or (packing.is_identity and main.dtype == packing.dtype):
        return True
    if (
        isinstance(packing, TimePacking)
        and packing.units == make_time_attributes(packing.dtype)["units"]
    ):
        return main.dtype == np.int64
    if isinstance(packing, TimePacking) and isinstance(other_packing, TimePacking):
        has_same_units = (packing.units, packing.calendar) == (
            other_packing.units,
            other_packing.calendar,
        )
        return has_same_units and np.can_cast(other.dtype, main.dtype, "safe")
    if not (isinstance(packing, Packing) and isinstance(other_packing, Packing)):
        return False
    numbers = (other_packing.integer or other.dtype, packing.integer or main.dtype)
    return (
        packing.dtype == other_packing.dtype
        and repr((packing.scale_factor, packing.add_offset))
        == repr((other_packing.scale_factor, other_packing.add_offset))
        and np.can_cast(*numbers, "safe")
    )


def pack(values: Array, pipeline: CodecPipeline) -> Array:
    """Return values packed to stored numbers, or raise an error if that changes them."""
    packing = pipeline.packing
    if packing is None:
        return values.astype(pipeline.dtype, copy=False)
    if isinstance(packing, TimePacking):
        stored = _pack_times(values, pipeline, packing)
    else:
        stored = _pack_numbers(values, pipeline, packing)
    if not are_bit_identical(unpack_numbers(stored, pipeline), values):
        raise UnsupportedError(
            f"packing with {dict(packing.attributes)} as {pipeline.dtype} would change values; "
            f"store them unpacked: main_encoding={{variable: {{'dtype': {values.dtype.name!r}}}}}"
        )
    return stored


def _pack_numbers(values: Array, pipeline: CodecPipeline, packing: Any) -> Array:
    """Return numbers packed by scale factor, offset and fill value."""
    packed = values
    if packing.add_offset is not None:
        packed = packed - packing.add_offset
    if packing.scale_factor is not None:
        packed = packed / packing.scale_factor
    kind = packing.integer or pipeline.dtype.newbyteorder("=")
    is_missing = np.isnan(values) if values.dtype.kind in "fc" else np.zeros(values.shape, bool)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        packed = np.clip(np.rint(np.where(is_missing, 0, packed)), limits.min, limits.max)
    with np.errstate(all="ignore"):
        stored = np.asarray(packed).astype(kind)
    if packing.fills and is_missing.any():
        stored[is_missing] = np.asarray(packing.fills[0]).astype(kind)
    return stored.astype(pipeline.dtype)


def _pack_times(values: Array, pipeline: CodecPipeline, packing: TimePacking) -> Array:
    """Return times packed by units and calendar."""
    if packing.attributes.get("units") == make_time_attributes(values.dtype)["units"]:
        return values.view(np.int64).astype(pipeline.dtype)
    encoding = {**packing.attributes, "dtype": pipeline.dtype}
    variable = xr.Variable(("element",), values.ravel(), encoding=encoding)
    try:
        stored = xr.conventions.encode_cf_variable(variable).values
    except (ValueError, OverflowError) as error:
        raise UnsupportedError(f"{packing.units!r}: {error}") from error
    return stored.reshape(values.shape).astype(pipeline.dtype)


def unpack_numbers(stored: Array, pipeline: CodecPipeline) -> Array:
    """Return stored numbers unpacked to values."""
    native = stored.astype(stored.dtype.newbyteorder("="))
    return pipeline.packing.decode(native) if pipeline.packing else native


def are_bit_identical(left: Array, right: Array) -> bool:
    """Return whether values are bit-identical, except that all NaN are equal."""
    native = [np.ascontiguousarray(a.astype(right.dtype.newbyteorder("="))) for a in (left, right)]
    if right.dtype.names:
        # padding between the members of compound types is undefined
        native = [pack_members(a) for a in native]
    if native[0].tobytes() == native[1].tobytes():
        return True
    if left.dtype.kind not in "fc":
        return False
    present = ~(np.isnan(native[0]) & np.isnan(native[1]))
    return bool(native[0][present].tobytes() == native[1][present].tobytes())


def make_time_attributes(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the attributes of times or durations that are stored as the integers of numpy."""
    names = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
    if dtype.kind not in "mM":
        return {"units": None}
    unit = names.get(np.datetime_data(dtype)[0])
    if dtype.kind == "m":
        return {"units": unit, "_FillValue": np.int64(np.iinfo(np.int64).min)}
    return {
        "units": f"{unit} since 1970-01-01",
        "calendar": "proleptic_gregorian",
        "_FillValue": np.int64(np.iinfo(np.int64).min),
    }


def make_plain_pipeline(
    dtype: np.dtype[Any], fill_value: Any, ndim: int, codecs: tuple[Codec, ...], may_pack: bool
) -> CodecPipeline:
    """Return a pipeline that can represent any value of a dtype.

    With ``may_pack``, the variable has no packing attributes, so the pipeline may add some: the
    fill value of floats, and the units of times.
    """
    native = dtype.newbyteorder("=")
    layout = tuple(range(ndim))
    if may_pack and native.kind in "mM":
        epoch = TimePacking.from_attributes(make_time_attributes(native), native)
        nat = np.int64(np.iinfo(np.int64).min).tobytes()
        return CodecPipeline(np.dtype(np.int64), codecs, nat, layout, epoch)
    packing: Decoding | None = None
    if may_pack and native.kind == "f":
        packing = Packing.from_attributes(native, {"_FillValue": native.type(np.nan)}, native)
    fill = np.asarray(fill_value).astype(native).tobytes()
    return CodecPipeline(native, codecs, fill, layout, packing)


def drop_axes_of_length_one(pipeline: CodecPipeline, chunks: tuple[int, ...]) -> CodecPipeline:
    """Return a pipeline without the stored axes along which chunks have length 1."""
    layout = tuple(
        entry
        for entry in pipeline.layout
        if (entry.length if isinstance(entry, FixedAxis) else chunks[entry]) > 1
    )
    return replace(pipeline, layout=layout)


# ---------------------------------------------------------------------- cells
# Cells of the grid of the main encoding may be kept as references to existing chunks.


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Cells:
    """The cells of the chunk grid of a main encoding, some of which are kept as references."""

    array: ManifestArray
    main: MainEncoding

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of cells along each axis."""
        return compute_grid_shape(self.array.shape, self.main.chunks)

    @property
    def nbytes(self) -> int:
        """Size in bytes, before codecs, of the cells that are not kept as references."""
        count = prod(self.grid) if self._fills_gaps else int(np.count_nonzero(self._covered))
        kept_count = sum(int(np.count_nonzero(mask)) for _, mask in self._kept_chunks)
        return (count - kept_count) * self.main.nbytes

    @cached_property
    def rewritten(self) -> Mask:
        """Mask of the cells whose values must be encoded."""
        references = sum(f.manifest.size for f in self.array.fragments)
        check_table(self.grid, references, f"{self.array.name!r}")
        mask_of_rewritten = np.array(self._covered)
        for fragment, mask in self._kept_chunks:
            mask_of_rewritten.reshape(-1)[self._find_cells(fragment, np.flatnonzero(mask))] = False
        return mask_of_rewritten

    @property
    def gaps(self) -> Mask:
        """Mask of cells in gaps, if the fill value of gaps differs from that of missing chunks."""
        return ~self._covered if self._fills_gaps else np.zeros(self.grid, bool)

    @property
    def missing(self) -> Mask:
        """Mask of the cells that remain missing chunks."""
        return np.asarray((self.kept.file == MISSING) & ~self.rewritten & ~self.gaps)

    @cached_property
    def kept(self) -> ChunkManifest:
        """The kept references, as a manifest of the grid; all other cells are missing."""
        flat = [f.manifest.loaded().reshape((f.manifest.size,)) for f, _ in self._kept_chunks]
        rows = [np.flatnonzero(mask) for _, mask in self._kept_chunks]
        joined = ChunkManifest.concatenate(
            [
                ChunkManifest.missing((0,)),
                *(m.at(chunk_rows) for m, chunk_rows in zip(flat, rows, strict=True)),
            ],
            0,
        )
        cells = [
            self._find_cells(f, chunk_rows)
            for (f, _), chunk_rows in zip(self._kept_chunks, rows, strict=True)
        ]
        cell_ids = np.concatenate([np.zeros(0, np.int64), *cells])
        columns = {name: getattr(joined, name) for name in COLUMNS if name != "pipeline"}
        empty = ChunkManifest.missing(self.grid)
        return replace_chunks(empty, cell_ids, joined.files, joined.inline, **columns).prune()

    @property
    def _fills_gaps(self) -> bool:
        """Whether gaps must be written as chunks, since missing chunks read as another value."""
        return self.array.has_gaps and not fills_with(self.main.pipeline, self.array.fill_value)

    @cached_property
    def _covered(self) -> Mask:
        """Mask of the cells that fragments overlap."""
        if not self.array.has_gaps:
            return np.broadcast_to(True, self.grid)
        covered = np.zeros(self.grid, bool)
        for fragment in self.array.fragments:
            if 0 not in fragment.shape:
                ends = zip(fragment.start, fragment.stop, self.main.chunks, strict=True)
                covered[tuple(slice(begin // c, -(-end // c)) for begin, end, c in ends)] = True
        return covered

    @cached_property
    def _kept_chunks(self) -> list[tuple[Fragment, Mask]]:
        """Fragments, each with a mask of the chunks that are cells in the main encoding."""
        array, chunks = self.array, self.main.chunks
        required = drop_axes_of_length_one(self.main.pipeline, chunks)
        stripped = [drop_axes_of_length_one(p, chunks) for p in array.pipelines]
        # existing chunks do not depend on the fill value
        is_same = [replace(p, fill=None) == replace(required, fill=None) for p in stripped]
        is_same_pipeline = np.array(is_same, bool)
        has_same_fill = np.array([p.fill == required.fill for p in stripped], bool)
        kept = []
        for fragment in array.fragments:
            mask = np.ones((), bool)
            for axis, length in enumerate(chunks):
                edges, encoded, inset = fragment.axes[axis].slabs()
                begin, end = edges[:-1] + fragment.start[axis], edges[1:] + fragment.start[axis]
                is_whole = (end - begin == length) | (end == array.shape[axis])
                is_cell = (inset == 0) & (begin % length == 0) & (encoded == length) & is_whole
                mask = mask & is_cell.reshape((-1,) + (1,) * (array.ndim - axis - 1))
            if mask.any():
                manifest = fragment.manifest.loaded()
                exists = (manifest.file != MISSING) | has_same_fill[manifest.pipeline]
                mask = mask & is_same_pipeline[manifest.pipeline] & exists
            kept.append((fragment, np.broadcast_to(mask, fragment.manifest.shape)))
        return kept

    def _find_cells(self, fragment: Fragment, rows: Ints) -> Ints:
        """Return the flat indices of the cells in which chunks begin."""
        cells, grid = np.zeros(rows.size, np.int64), self.grid
        chunk_indexes = np.unravel_index(rows, fragment.manifest.shape) if grid else ()
        for axis, chunk_index in enumerate(chunk_indexes):
            begin = fragment.axes[axis].slabs().edges[:-1] + fragment.start[axis]
            cells = cells * grid[axis] + (begin // self.main.chunks[axis])[chunk_index]
        return cells


def compute_grid_shape(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of chunks along each axis of a regular grid."""
    return tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
