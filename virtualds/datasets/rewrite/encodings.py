"""The main encoding of a variable, and how values become chunks of it, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray, fills_with
from virtualds.bounds import Buffer, demand_table
from virtualds.chunks.columns import COLUMNS, MISSING, Ints
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.cf_packing import Decoding, Packing
from virtualds.codecs.cf_time import TimePacking
from virtualds.codecs.codec import Codec
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis
from virtualds.errors import UnsupportedError
from virtualds.formats.zarr.data_types import pack_members
from virtualds.reading.stored_chunks import replace_chunks

Array = npt.NDArray[Any]

LOSSLESS = {
    *("blosc", "bz2", "gzip", "lz4", "lzma", "shuffle", "zlib", "zstd"),
    *("adler32", "crc32", "fletcher32"),
}
"""Ids of numcodecs that encode without loss, as our codecs decode."""


@dataclass(frozen=True)
class MainEncoding:
    """How all chunks of a variable are encoded in the set, and how long each is per axis."""

    pipeline: CodecPipeline
    chunks: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a chunk before codecs."""
        return prod(self.chunks) * self.pipeline.dtype.itemsize

    @property
    def is_encodable(self) -> bool:
        """Whether chunks of it can be made without loss."""
        shown = [entry for entry in self.pipeline.layout if isinstance(entry, int)]
        whole = len(shown) == len(self.pipeline.layout)
        stored = prod(self.chunks[axis] for axis in shown) == prod(self.chunks)
        return whole and stored and all(map(is_lossless, self.pipeline.codecs))

    def describe(self) -> str:
        """Return the encoding in a few words, for tables."""
        codecs = [name_of(codec) for codec in self.pipeline.codecs] or ["uncompressed"]
        packing = self.pipeline.packing
        packed = ", packed" if packing and not packing.is_identity else ""
        return f"{self.pipeline.dtype}{packed}, {' '.join(codecs)}, chunks {self.chunks}"

    def encode(self, values: Array) -> bytes:
        """Return values as the bytes of a chunk; the chunk is filled where they end before it.

        An `UnsupportedError` is raised if the packing cannot hold the values to the last bit.
        """
        stored = pack(values, self.pipeline)
        if stored.shape != self.chunks:
            padded = np.full(self.chunks, self.pipeline.fill_value, self.pipeline.dtype)
            padded[tuple(slice(0, n) for n in stored.shape)] = stored
            stored = padded
        return self._encode_stored(stored)

    def encode_fill(self) -> bytes:
        """Return a chunk full of the value of a missing chunk."""
        fill = np.full(self.chunks, self.pipeline.fill_value, self.pipeline.dtype)
        return self._encode_stored(fill)

    def _encode_stored(self, stored: Array) -> bytes:
        data = np.ascontiguousarray(stored.transpose(self.order)).view(np.uint8).reshape(-1).data
        for encode in self._encoders:
            data = encode(data)
        return bytes(data)

    def demand_exact(self, data: bytes, values: Array) -> None:
        """Check that a chunk decodes to its values."""
        found: Buffer = data
        for codec in reversed(self.pipeline.codecs):
            found = codec.decode(found, None)
        shape = [self.chunks[axis] for axis in self.order]
        stored = np.frombuffer(found, self.pipeline.dtype).reshape(shape)
        shown = stored.transpose(np.argsort(self.order))[tuple(map(slice, values.shape))]
        if not is_same(unpack_numbers(shown, self.pipeline), values):
            raise UnsupportedError(
                f"{self.describe()} does not hold the values to the last bit; choose another "
                f"encoding with main_encoding="
            )

    @cached_property
    def order(self) -> list[int]:
        """The axes in the order in which they are stored."""
        shown = [entry for entry in self.pipeline.layout if isinstance(entry, int)]
        return [axis for axis in range(len(self.chunks)) if axis not in shown] + shown

    @cached_property
    def _encoders(self) -> list[Callable[[Any], Any]]:
        import numcodecs

        return [numcodecs.get_codec(c.to_zarr_v2()).encode for c in self.pipeline.codecs]


def is_lossless(codec: Codec) -> bool:
    """Say whether a codec of numcodecs encodes without loss what ours decodes."""
    return not codec.maps_arrays and name_of(codec) in LOSSLESS


def name_of(codec: Codec) -> str:
    """Return the id of a codec in Zarr v2."""
    return str(getattr(codec, "id", codec.zarr_v2_id))


# ---------------------------------------------------------------------- packing


def can_hold(main: CodecPipeline, other: CodecPipeline) -> bool:
    """Say whether a packing can hold, as far as is known before reading, what another one holds."""
    ours, theirs = main.packing, other.packing
    if ours is None or (ours.is_identity and main.dtype == ours.dtype):
        return True
    if isinstance(ours, TimePacking) and ours.units == describe_epoch(ours.dtype)["units"]:
        return main.dtype == np.int64
    if isinstance(ours, TimePacking) and isinstance(theirs, TimePacking):
        alike = (ours.units, ours.calendar) == (theirs.units, theirs.calendar)
        return alike and np.can_cast(other.dtype, main.dtype, "safe")
    if not (isinstance(ours, Packing) and isinstance(theirs, Packing)):
        return False
    numbers = (theirs.integer or other.dtype, ours.integer or main.dtype)
    return (
        ours.dtype == theirs.dtype
        and repr((ours.scale_factor, ours.add_offset))
        == repr((theirs.scale_factor, theirs.add_offset))
        and np.can_cast(*numbers, "safe")
    )


def pack(values: Array, pipeline: CodecPipeline) -> Array:
    """Return the stored numbers of values."""
    packing = pipeline.packing
    if packing is None:
        return values.astype(pipeline.dtype, copy=False)
    if isinstance(packing, TimePacking):
        stored = _pack_times(values, pipeline, packing)
    else:
        stored = _pack_numbers(values, pipeline, packing)
    if not is_same(unpack_numbers(stored, pipeline), values):
        raise UnsupportedError(
            f"packing with {dict(packing.attributes)} as {pipeline.dtype} would change values; "
            f"store them unpacked: main_encoding={{variable: {{'dtype': {values.dtype.name!r}}}}}"
        )
    return stored


def _pack_numbers(values: Array, pipeline: CodecPipeline, packing: Any) -> Array:
    found = values
    if packing.add_offset is not None:
        found = found - packing.add_offset
    if packing.scale_factor is not None:
        found = found / packing.scale_factor
    kind = packing.integer or pipeline.dtype.newbyteorder("=")
    absent = np.isnan(values) if values.dtype.kind in "fc" else np.zeros(values.shape, bool)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        found = np.clip(np.rint(np.where(absent, 0, found)), limits.min, limits.max)
    with np.errstate(all="ignore"):
        stored = np.asarray(found).astype(kind)
    if packing.fills and absent.any():
        stored[absent] = np.asarray(packing.fills[0]).astype(kind)
    return stored.astype(pipeline.dtype)


def _pack_times(values: Array, pipeline: CodecPipeline, packing: TimePacking) -> Array:
    if packing.attributes.get("units") == describe_epoch(values.dtype)["units"]:
        return values.view(np.int64).astype(pipeline.dtype)
    encoding = {**packing.attributes, "dtype": pipeline.dtype}
    variable = xr.Variable(("element",), values.ravel(), encoding=encoding)
    try:
        stored = xr.conventions.encode_cf_variable(variable).values
    except (ValueError, OverflowError) as error:
        raise UnsupportedError(f"{packing.units!r}: {error}") from error
    return stored.reshape(values.shape).astype(pipeline.dtype)


def unpack_numbers(stored: Array, pipeline: CodecPipeline) -> Array:
    """Return the values of stored numbers."""
    native = stored.astype(stored.dtype.newbyteorder("="))
    return pipeline.packing.decode(native) if pipeline.packing else native


def is_same(one: Array, other: Array) -> bool:
    """Say whether values are equal bit for bit; NaN is NaN, however it is spelled."""
    native = [np.ascontiguousarray(a.astype(other.dtype.newbyteorder("="))) for a in (one, other)]
    if other.dtype.names:
        # bytes between the members of compound types are anything
        native = [pack_members(a) for a in native]
    if native[0].tobytes() == native[1].tobytes():
        return True
    if one.dtype.kind not in "fc":
        return False
    present = ~(np.isnan(native[0]) & np.isnan(native[1]))
    return bool(native[0][present].tobytes() == native[1][present].tobytes())


def describe_epoch(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the attributes of dates or durations that are stored as numpy holds them."""
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


def plain_pipeline(
    dtype: np.dtype[Any], fill_value: Any, ndim: int, codecs: tuple[Codec, ...], bare: bool
) -> CodecPipeline:
    """Return a pipeline that holds any values of a dtype.

    ``bare`` says that the variable has no attributes of packing, so that it may get some: the
    fill value of floats, and the epoch of dates.
    """
    kind = dtype.newbyteorder("=")
    layout = tuple(range(ndim))
    if bare and kind.kind in "mM":
        epoch = TimePacking.from_attributes(describe_epoch(kind), kind)
        least = np.int64(np.iinfo(np.int64).min).tobytes()
        return CodecPipeline(np.dtype(np.int64), codecs, least, layout, epoch)
    packing: Decoding | None = None
    if bare and kind.kind == "f":
        packing = Packing.from_attributes(kind, {"_FillValue": kind.type(np.nan)}, kind)
    fill = np.asarray(fill_value).astype(kind).tobytes()
    return CodecPipeline(kind, codecs, fill, layout, packing)


def strip_flat_axes(pipeline: CodecPipeline, chunks: tuple[int, ...]) -> CodecPipeline:
    """Return a pipeline without stored axes along which a chunk has one element."""
    layout = tuple(
        entry
        for entry in pipeline.layout
        if (entry.length if isinstance(entry, FixedAxis) else chunks[entry]) > 1
    )
    return replace(pipeline, layout=layout)


# ---------------------------------------------------------------------- cells
# Which chunks of an array stay references on the grid of its main encoding; pure integers.


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Cells:
    """The cells of the grid of a main encoding, and whether each of them stays a reference."""

    array: ManifestArray
    main: MainEncoding

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks per axis."""
        return grid_of(self.array.shape, self.main.chunks)

    @property
    def nbytes(self) -> int:
        """Bytes of the cells that are not references, before codecs, found without a table."""
        count = prod(self.grid) if self._fills_gaps else int(np.count_nonzero(self._covered))
        kept = sum(int(np.count_nonzero(mask)) for _, mask in self._known)
        return (count - kept) * self.main.nbytes

    @cached_property
    def rewritten(self) -> Mask:
        """Cells whose values are to be encoded."""
        references = sum(f.manifest.size for f in self.array.fragments)
        demand_table(self.grid, references, f"{self.array.name!r}")
        found = np.array(self._covered)
        for fragment, mask in self._known:
            found.reshape(-1)[self._find_cells(fragment, np.flatnonzero(mask))] = False
        return found

    @property
    def gaps(self) -> Mask:
        """Cells that no file covers, with another value than missing chunks have."""
        return ~self._covered if self._fills_gaps else np.zeros(self.grid, bool)

    @property
    def missing(self) -> Mask:
        """Cells that are missing chunks in the set."""
        return np.asarray((self.kept.file == MISSING) & ~self.rewritten & ~self.gaps)

    @cached_property
    def kept(self) -> ChunkManifest:
        """The references that stay, over the grid; missing elsewhere."""
        flat = [f.manifest.loaded().reshape((f.manifest.size,)) for f, _ in self._known]
        rows = [np.flatnonzero(mask) for _, mask in self._known]
        joined = ChunkManifest.concatenate(
            [ChunkManifest.missing((0,)), *(m.at(one) for m, one in zip(flat, rows, strict=True))],
            0,
        )
        cells = [self._find_cells(f, one) for (f, _), one in zip(self._known, rows, strict=True)]
        where = np.concatenate([np.zeros(0, np.int64), *cells])
        columns = {name: getattr(joined, name) for name in COLUMNS if name != "pipeline"}
        empty = ChunkManifest.missing(self.grid)
        return replace_chunks(empty, where, joined.files, joined.inline, **columns).pruned()

    @property
    def _fills_gaps(self) -> bool:
        """Whether gaps need chunks, since missing ones have another value."""
        return self.array.has_gaps and not fills_with(self.main.pipeline, self.array.fill_value)

    @cached_property
    def _covered(self) -> Mask:
        """Cells that fragments touch."""
        if not self.array.has_gaps:
            return np.broadcast_to(True, self.grid)
        found = np.zeros(self.grid, bool)
        for fragment in self.array.fragments:
            if 0 not in fragment.shape:
                ends = zip(fragment.start, fragment.stop, self.main.chunks, strict=True)
                found[tuple(slice(begin // c, -(-end // c)) for begin, end, c in ends)] = True
        return found

    @cached_property
    def _known(self) -> list[tuple[Fragment, Mask]]:
        """Fragments, and which of their chunks stay references: cells in the main encoding."""
        array, chunks = self.array, self.main.chunks
        wanted = strip_flat_axes(self.main.pipeline, chunks)
        stripped = [strip_flat_axes(p, chunks) for p in array.pipelines]
        # chunks that exist need no equal fill
        same = [replace(p, fill=None) == replace(wanted, fill=None) for p in stripped]
        alike, fills = (
            np.array(same, bool),
            np.array([p.fill == wanted.fill for p in stripped], bool),
        )
        found = []
        for fragment in array.fragments:
            mask = np.ones((), bool)
            for axis, length in enumerate(chunks):
                edges, encoded, inset = fragment.axes[axis].slabs()
                begin, end = edges[:-1] + fragment.start[axis], edges[1:] + fragment.start[axis]
                whole = (end - begin == length) | (end == array.shape[axis])
                along = (inset == 0) & (begin % length == 0) & (encoded == length) & whole
                mask = mask & along.reshape((-1,) + (1,) * (array.ndim - axis - 1))
            if mask.any():
                manifest = fragment.manifest.loaded()
                there = (manifest.file != MISSING) | fills[manifest.pipeline]
                mask = mask & alike[manifest.pipeline] & there
            found.append((fragment, np.broadcast_to(mask, fragment.manifest.shape)))
        return found

    def _find_cells(self, fragment: Fragment, rows: Ints) -> Ints:
        """Return the cells, as numbers in C order, in which chunks begin."""
        cells, grid = np.zeros(rows.size, np.int64), self.grid
        places = np.unravel_index(rows, fragment.manifest.shape) if grid else ()
        for axis, place in enumerate(places):
            begin = fragment.axes[axis].slabs().edges[:-1] + fragment.start[axis]
            cells = cells * grid[axis] + (begin // self.main.chunks[axis])[place]
        return cells


def grid_of(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of chunks per axis."""
    return tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
