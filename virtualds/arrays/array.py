"""`ManifestArray`, the virtual array: constructors, reading, and display.

`FragmentedArray` has the methods that keep an array virtual, `DuckArray` the protocols, operators
and methods of numpy arrays, and `virtualds.arrays` the numpy functions that use them. All other
operations read the values that they need.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from virtualds.arrays.display import format_html, format_summary
from virtualds.chunks.axes import ChunkAxis, make_regular_axes
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.fragment import Fragment, find_whole_blocks
from virtualds.chunks.manifest import ARRAY_NAME_HINTS, ChunkManifest, ForeignNameHints
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.cf import MISSING_VALUES
from virtualds.codecs.codec import Codec, CodecError, Unreadable
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import (
    CombineError,
    CopyWarning,
    UnsupportedError,
    format_bytes,
    public,
    warn_user,
)
from virtualds.options import get_options
from virtualds.reading import read, read_points
from virtualds.source_file import SourceFile, from_crc32, normalise_url

# ---------------------------------------------------------------------- protocols of numpy

NUMPY_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Implementations of numpy's functions for virtual arrays, registered by `virtualds.arrays`."""
UFUNCS: dict[np.ufunc, Callable[..., Any]] = {}
"""Lazy implementations of ufuncs, registered by `virtualds.arrays`."""


def _make_loading_method(name: str) -> Callable[..., Any]:
    """Return a method that loads the values and calls the `numpy.ndarray` method ``name``."""

    def method(self: DuckArray, *args: Any, **kwargs: Any) -> Any:
        return getattr(np.asarray(self), name)(*load_arguments(args), **load_arguments(kwargs))

    method.__name__ = name
    method.__doc__ = f"Load the values, then do what `numpy.ndarray.{name}` does."
    return method


class DuckArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Base class that calls registered implementations of numpy functions, or loads the values.

    Loading calls ``__array__``, which may raise an error for too many bytes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        raise NotImplementedError

    # ------------------------------------------------------------------ protocols

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        if func in NUMPY_FUNCTIONS:
            result = NUMPY_FUNCTIONS[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        loaded_args, loaded_kwargs = load_arguments((args, dict(kwargs)))
        return func(*loaded_args, **loaded_kwargs)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc in UFUNCS and method == "__call__" and not kwargs:
            result = UFUNCS[ufunc](*inputs)
            if result is not NotImplemented:
                return result
        if "out" in kwargs and kwargs.get("where", True) is True:
            # values in files cannot be written: an in-place operation returns a new array
            kwargs["out"] = tuple(
                np.empty(out.shape, out.dtype) if isinstance(out, DuckArray) else out
                for out in kwargs["out"]
            )
        return getattr(ufunc, method)(*load_arguments(inputs), **load_arguments(kwargs))

    def __getitem__(self, key: Any) -> Any:
        return NUMPY_FUNCTIONS[np.ndarray.__getitem__](self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            f"virtual array {self.shape} {self.dtype}: no item assignment, its values lie in "
            f"files; load it first (ds = ds.virtual.load()), or choose values with where()"
        )

    # ------------------------------------------------------------------ operators

    def __eq__(self, other: Any) -> Any:
        return self._compare(operator.eq, np.equal, other)

    def __ne__(self, other: Any) -> Any:
        return self._compare(operator.ne, np.not_equal, other)

    def _compare(self, compare: Callable[..., Any], ufunc: np.ufunc, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", True) is None:
            return NotImplemented
        lazy = UFUNCS[ufunc](self, other) if ufunc in UFUNCS else NotImplemented
        # for incomparable dtypes, operators return unequal, whereas ufuncs raise
        return compare(np.asarray(self), load_arguments(other)) if lazy is NotImplemented else lazy

    # unlike np.power, the operator ** uses np.square and np.sqrt for some exponents

    def __pow__(self, other: Any) -> Any:
        return np.asarray(self) ** load_arguments(other)

    def __ipow__(self, other: Any) -> Any:
        values = np.asarray(self)
        values **= load_arguments(other)
        return values

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len({self!r}): the array has no axes; use .size")
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    # ------------------------------------------------------------------ methods

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """Return the array in another shape."""
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, **kwargs)

    def ravel(self, order: Any = "C") -> Any:
        """Return the array flattened to one dimension."""
        return np.ravel(self, order)

    flatten = ravel

    def squeeze(self, axis: Any = None) -> Any:
        """Remove axes of length 1."""
        return np.squeeze(self, axis)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """Exchange two axes."""
        return np.swapaxes(self, axis1, axis2)

    def conj(self) -> Any:
        """Return the complex conjugate; a real array is returned unchanged."""
        return self if self.dtype.kind != "c" else np.conj(np.asarray(self))

    conjugate = conj

    @property
    def real(self) -> Any:
        """The real part; a real array itself."""
        return self if self.dtype.kind != "c" else np.asarray(self).real

    @property
    def imag(self) -> Any:
        """The imaginary part; zeros for a real array."""
        return np.zeros_like(self) if self.dtype.kind != "c" else np.asarray(self).imag

    # methods that load the values, listed one by one for type checkers
    all = _make_loading_method("all")
    any = _make_loading_method("any")
    argmax = _make_loading_method("argmax")
    argmin = _make_loading_method("argmin")
    argpartition = _make_loading_method("argpartition")
    argsort = _make_loading_method("argsort")
    byteswap = _make_loading_method("byteswap")
    choose = _make_loading_method("choose")
    clip = _make_loading_method("clip")
    compress = _make_loading_method("compress")
    cumprod = _make_loading_method("cumprod")
    cumsum = _make_loading_method("cumsum")
    diagonal = _make_loading_method("diagonal")
    dot = _make_loading_method("dot")
    item = _make_loading_method("item")
    max = _make_loading_method("max")
    mean = _make_loading_method("mean")
    min = _make_loading_method("min")
    nonzero = _make_loading_method("nonzero")
    prod = _make_loading_method("prod")
    round = _make_loading_method("round")
    searchsorted = _make_loading_method("searchsorted")
    std = _make_loading_method("std")
    sum = _make_loading_method("sum")
    take = _make_loading_method("take")
    tobytes = _make_loading_method("tobytes")
    tolist = _make_loading_method("tolist")
    trace = _make_loading_method("trace")
    var = _make_loading_method("var")
    view = _make_loading_method("view")


def load_arguments(value: Any, *types: type) -> Any:
    """Replace virtual arrays, and instances of ``types``, in (nested) arguments by their values."""
    if isinstance(value, (DuckArray, *types)):
        return np.asarray(value)
    if isinstance(value, tuple | list):
        return type(value)(load_arguments(item, *types) for item in value)
    if isinstance(value, dict):
        return {name: load_arguments(item, *types) for name, item in value.items()}
    return value


# ---------------------------------------------------------------------- fill values
# Values of elements outside all fragments.


def has_missing_value(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype can represent a missing value (NaN or NaT)."""
    return dtype.kind in MISSING_VALUES


def get_default_fill(dtype: np.dtype[Any]) -> Any:
    """Return the fill value of elements outside all fragments: NaN or NaT, else zero."""
    # not cached for structured dtypes, whose scalars are mutable
    return _compute_fill(dtype) if dtype.names else _cached_fill(dtype)


def _compute_fill(dtype: np.dtype[Any]) -> Any:
    if has_missing_value(dtype):
        return np.array(MISSING_VALUES[dtype.kind]).astype(dtype)[()]
    return np.zeros((), dtype)[()]


_cached_fill = lru_cache(1024)(_compute_fill)


def fills_with(pipeline: CodecPipeline, value: Any) -> bool:
    """Return whether missing chunks with this pipeline read as ``value``."""
    try:
        return is_same_scalar(pipeline.missing_value, value)
    except CodecError:
        return False  # some fill values cannot be decoded as dates


def is_same_scalar(a: Any, b: Any) -> bool:
    """Return whether two scalars are the same value: NaN is NaN, and -0.0 is not 0.0."""
    left, right = np.asarray(a), np.asarray(b)
    if left.dtype.kind == right.dtype.kind == "c":
        return is_same_scalar(a.real, b.real) and is_same_scalar(a.imag, b.imag)
    if a != b:
        return bool(a != a and b != b)
    common_dtype = np.result_type(left, right)
    return left.astype(common_dtype).tobytes() == right.astype(common_dtype).tobytes()


# ---------------------------------------------------------------------- arrays of fragments
# Cropping, permuting and repeating axes change only the chunk grid; no values are read.


@dataclass(frozen=True, eq=False, repr=False)
class FragmentedArray:
    """Base class of `virtualds.ManifestArray`: all methods that read no values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill_value: Any
    pipelines: tuple[CodecPipeline, ...]
    fragments: tuple[Fragment, ...]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for fragment in self.fragments:
            if fragment.shape == self.shape and not any(fragment.start):
                continue
            is_inside = len(fragment.start) == len(self.shape) and all(
                a >= 0 and b <= n
                for a, b, n in zip(fragment.start, fragment.stop, self.shape, strict=True)
            )
            if not is_inside:
                raise ValueError(
                    f"ManifestArray: a fragment from {fragment.start} to {fragment.stop} does not "
                    f"lie inside {self.shape}; crop it, or give the array a shape that holds it"
                )
        for pipeline in self.pipelines:
            array_axes = [entry for entry in pipeline.layout if isinstance(entry, int)]
            if len(set(array_axes)) < len(array_axes) or not set(array_axes) <= set(
                range(self.ndim)
            ):
                raise ValueError(
                    f"ManifestArray: chunks are stored with the axes {array_axes}, which are not "
                    f"distinct axes of an array with {self.ndim} axes; correct the layout"
                )

    # ------------------------------------------------------------------ describing

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def label(self) -> str:
        """Name and shape of the array, for error messages."""
        return f"{self.name or 'virtual array'} {self.shape}"

    @property
    def nbytes(self) -> int:
        """Size of the decoded values in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def nbytes_virtual(self) -> int:
        """Size in bytes of the references, in memory."""
        axes = sum(axis.nbytes for f in self.fragments for axis in f.axes)
        return axes + sum(f.manifest.nbytes for f in self.fragments)

    @property
    def nchunks(self) -> int:
        """Number of chunks in the grids of all fragments, including missing chunks."""
        return sum(f.manifest.size for f in self.fragments)

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The smallest dask chunks, per axis, that consist of whole stored chunks."""
        return find_whole_blocks(self.shape, self.fragments, self.dtype.itemsize)

    @property
    def manifest(self) -> ChunkManifest:
        """The manifest of the only fragment.

        Raises
        ------
        UnsupportedError
            The array has none or several; use `fragments`.
        """
        if len(self.fragments) != 1:
            raise UnsupportedError(
                f"ManifestArray.manifest: the array has {len(self.fragments)} fragments, each with "
                f"a manifest of its own; use .fragments"
            )
        return self.fragments[0].manifest

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """The distinct files that contain chunks."""
        return tuple(dict.fromkeys(file for f in self.fragments for file in f.manifest.sources))

    @property
    def listed_sources(self) -> tuple[SourceFile, ...]:
        """The distinct files that reference sets list, with or without chunks.

        For arrays in reference sets, this does not read all references.
        """
        return tuple(
            dict.fromkeys(file for f in self.fragments for file in f.manifest.listed_files)
        )

    @property
    def has_gaps(self) -> bool:
        """Whether some elements are in no fragment."""
        return sum(prod(f.shape) for f in self.fragments) < self.size

    @property
    def gaps_read_as_missing(self) -> bool:
        """Whether elements in no fragment have the value of a missing chunk."""
        return not self.has_gaps or all(fills_with(p, self.fill_value) for p in self.pipelines)

    def has_same_references(self, other: FragmentedArray) -> bool:
        """Return whether both arrays have the same chunk references, and so the same values."""
        return self is other or (
            self.shape == other.shape
            and self.dtype == other.dtype
            and self.pipelines == other.pipelines
            and len(self.fragments) == len(other.fragments)
            and (not self.has_gaps or is_same_scalar(self.fill_value, other.fill_value))
            and all(
                a.start == b.start
                and a.axes == b.axes
                and a.manifest.has_same_references(b.manifest)
                for a, b in zip(self.fragments, other.fragments, strict=True)
            )
        )

    # ------------------------------------------------------------------ staying virtual

    def crop(self, axis: int, start: int, stop: int) -> Self:
        """Return the elements from ``start`` up to ``stop`` along one axis."""
        if (start, stop) == (0, self.shape[axis]):
            return self
        stop = max(start, stop)
        cropped = (f.crop(axis, start, stop) for f in self.fragments)
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return replace(
            self, shape=shape, fragments=tuple(f for f in cropped if f is not None)
        ).prune()

    def flip(self, axis: int) -> Self:
        """Reverse the order of the elements along one axis."""
        flipped = tuple(p.flip(axis) for p in self.pipelines)
        # chunks of length 1 along the axis need no flip
        parts = [
            (
                f.flip(axis, self.shape[axis]),
                self.pipelines if f.axes[axis].stored_lengths() <= {1} else flipped,
            )
            for f in self.fragments
        ]
        return self._from_parts(self.shape, parts).prune()

    def transpose(self, *axes: Any) -> Self:
        """Permute the axes; without arguments, reverse them."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        order = tuple(range(self.ndim))[::-1] if order is None else order
        order = tuple(int(np.arange(self.ndim)[i]) for i in order)
        if sorted(order) != list(range(self.ndim)):
            raise ValueError(
                f"transpose {self.label}: {order} is not a permutation of its axes; name each of "
                f"the {self.ndim} once"
            )
        return replace(
            self,
            shape=tuple(self.shape[i] for i in order),
            pipelines=tuple(p.transpose(order) for p in self.pipelines),
            fragments=tuple(f.transpose(order) for f in self.fragments),
        )

    @property
    def T(self) -> Self:
        """The array with its axes reversed."""
        return self.transpose()

    def insert_axis(self, axis: int) -> Self:
        """Insert an axis of length 1."""
        return replace(
            self,
            shape=(*self.shape[:axis], 1, *self.shape[axis:]),
            pipelines=tuple(p.insert_axis(axis) for p in self.pipelines),
            fragments=tuple(f.insert_axis(axis) for f in self.fragments),
        )

    def drop_axis(self, axis: int) -> Self:
        """Remove an axis of length 1."""
        parts = []
        for fragment in self.fragments:
            _, encoded, inset = (int(c[0]) for c in fragment.axes[axis].slabs())
            pipelines = [p.drop_axis(axis, encoded, inset) for p in self.pipelines]
            parts.append((fragment.drop_axis(axis), pipelines))
        return self._from_parts((*self.shape[:axis], *self.shape[axis + 1 :]), parts)

    def _from_parts(
        self, shape: tuple[int, ...], parts: Sequence[tuple[Fragment, Sequence[CodecPipeline]]]
    ) -> Self:
        """Return an array of fragments, each with its own version of the pipelines."""
        all_pipelines = zip(*(pipelines for _, pipelines in parts), strict=True)
        index_of = {p: n for n, p in enumerate(dict.fromkeys(chain.from_iterable(all_pipelines)))}
        fragments = []
        for fragment, pipelines in parts:
            numbers = [index_of[p] for p in pipelines]
            fragments.append(replace(fragment, manifest=fragment.manifest.with_pipelines(numbers)))
        return replace(self, shape=shape, pipelines=tuple(index_of), fragments=tuple(fragments))

    def repeat(self, axis: int, count: int) -> Self:
        """Repeat an axis of length 1 ``count`` times."""
        shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        repeated = tuple(f.repeat(axis, count) for f in self.fragments) if count else ()
        return replace(self, shape=shape, fragments=repeated)

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """Broadcast the array to a shape, as `numpy.broadcast_to` does."""
        if len(shape) < self.ndim:
            raise self._make_broadcast_error(shape)
        result = self
        for _ in range(len(shape) - self.ndim):
            result = result.insert_axis(0)
        for axis, (old, new) in enumerate(zip(result.shape, shape, strict=True)):
            if old == 1 and new != 1:
                result = result.repeat(axis, new)
            elif old != new:
                raise self._make_broadcast_error(shape)
        return result

    def _make_broadcast_error(self, shape: Sequence[int]) -> ValueError:
        return ValueError(
            f"broadcast_to {self.label}: it does not broadcast to {tuple(shape)}; only axes of one "
            f"element are repeated, and new ones come first"
        )

    def keep_ranges(self, axis: int, ranges: Sequence[tuple[int, int]]) -> Self:
        """Keep the given ranges of an axis; all other elements become the fill value."""
        kept_fragments = []
        for start, stop in ranges:
            cropped = (f.crop(axis, start, stop) for f in self.fragments)
            kept_fragments += [f.shift(axis, start) for f in cropped if f is not None]
        return replace(self, fragments=tuple(kept_fragments)).prune()

    def prune(self) -> Self:
        """Return the array without the files and pipelines that no chunk uses."""
        pruned, count = map_manifests(self, ChunkManifest.prune), len(self.pipelines)
        if count < 2 and self.fragments:
            return pruned
        used_by_fragment = [f.manifest.used_pipelines(count) for f in pruned.fragments]
        used = np.unique(np.concatenate(used_by_fragment)).tolist() if used_by_fragment else []
        numbers = [used.index(i) if i in used else 0 for i in range(count)]
        renumbered = map_manifests(pruned, lambda manifest: manifest.with_pipelines(numbers))
        return replace(renumbered, pipelines=tuple(self.pipelines[i] for i in used))


AnyArray = TypeVar("AnyArray", bound=FragmentedArray)


def map_manifests(array: AnyArray, change: Callable[[ChunkManifest], ChunkManifest]) -> AnyArray:
    """Apply a function to the manifests of all fragments; an unchanged array is the same object."""
    manifests = [change(fragment.manifest) for fragment in array.fragments]
    fragments = [
        fragment if manifest is fragment.manifest else replace(fragment, manifest=manifest)
        for fragment, manifest in zip(array.fragments, manifests, strict=True)
    ]
    is_same = all(map(operator.is_, fragments, array.fragments))
    return array if is_same else replace(array, fragments=tuple(fragments))


# ---------------------------------------------------------------------- virtual arrays


COPY_WARNING_BYTES = 2**23
"""Maximum number of bytes that indexing, casting or writing loads without a warning."""


@public
@dataclass(frozen=True, eq=False, repr=False)
class ManifestArray(FragmentedArray, DuckArray, ForeignNameHints):
    """An array of chunks in files, which are read when values are needed.

    It is a duck array: xarray concatenates, merges, slices, transposes and reindexes it without
    reading a byte. All other operations read just the values that they need.

    Parameters
    ----------
    shape : tuple of int
        Elements per axis.
    dtype : numpy dtype
        The dtype of the values, after decoding CF packing.
    fill_value : scalar
        The value of elements that are in no fragment.
    pipelines : tuple of CodecPipeline
        How bytes are decoded; the column ``pipeline`` of manifests indexes this tuple.
    fragments : tuple of Fragment
        Rectangular regions of the array that do not overlap.
    name : str
        Name of the array in error messages.

    Raises
    ------
    ValueError
        A fragment has another number of axes or is outside the array, or a pipeline stores axes
        that the array does not have.

    Examples
    --------
    >>> array = ManifestArray.from_arrays(
    ...     shape=(2, 4), chunks=(1, 4), dtype="f4", path="s3://bucket/a.nc",
    ...     offsets=[[1000], [1016]], lengths=16,
    ... )
    >>> array[1:, :2].shape, array.nchunks
    ((1, 2), 2)
    """

    _NAME_HINTS: ClassVar[Mapping[str, str]] = ARRAY_NAME_HINTS

    # ------------------------------------------------------------------ building

    @classmethod
    def from_arrays(
        cls,
        *,
        shape: Sequence[int],
        chunks: Sequence[int],
        dtype: npt.DTypeLike,
        path: str | SourceFile | npt.ArrayLike,
        offsets: npt.ArrayLike,
        lengths: npt.ArrayLike,
        codecs: Sequence[Codec | Mapping[str, Any]] = (),
        fill_value: Any = None,
        checksums: npt.ArrayLike | None = None,
    ) -> ManifestArray:
        """Build an array from the byte ranges of the chunks of a regular grid.

        Parameters
        ----------
        shape, chunks : sequence of int
            Elements of the array, and of every chunk, per axis. Edge chunks are padded.
        dtype : dtype
            The stored dtype.
        path : str, SourceFile or array of str over the chunk grid
            Url of the file of all chunks, or of each; an empty string is a missing chunk. A
            `SourceFile` has a fingerprint, so that readers detect changes of the file.
        offsets, lengths : int or array of int over the chunk grid
            The byte range of each chunk.
        codecs : sequence of Codec or of Zarr v2 configurations
            The codecs, in the order of encoding.
        fill_value : scalar, optional
            The value of missing chunks; zero by default.
        checksums : int or array of int over the chunk grid, optional
            CRC-32 (`zlib.crc32`) of the stored bytes of each chunk; None, also as an element of an
            array, for no checksum. Reading verifies it, and therefore reads the whole chunk, even
            if it is uncompressed.

        Raises
        ------
        FormatError
            A reference is empty or negative.
        ValueError
            The columns do not fit the chunk grid, or a checksum is not a 32-bit integer.
        """
        axes = make_regular_axes(shape, chunks)
        grid = tuple(axis.nchunks for axis in axes)
        files, numbers = _build_file_table(path)
        manifest = ChunkManifest.build(
            grid,
            files=files,
            file=numbers,
            offset=offsets,
            length=lengths,
            checksum=from_crc32(checksums),
        )
        target_dtype = np.dtype(dtype)
        pipeline = CodecPipeline(
            dtype=target_dtype,
            codecs=tuple(c if isinstance(c, Codec) else codec_from_zarr_v2(c) for c in codecs),
            fill=None if fill_value is None else np.asarray(fill_value, target_dtype).tobytes(),
            layout=tuple(range(len(axes))),
        )
        return cls.from_fragment(Fragment.whole(axes, manifest), pipeline)

    @classmethod
    def from_fragment(
        cls, fragment: Fragment, pipeline: CodecPipeline, name: str = ""
    ) -> ManifestArray:
        """Return an array of one fragment, with values as stored."""
        # xarray swaps the byte order of numbers, but not of compound types, and misreads text that
        # is not in native byte order
        is_native = pipeline.dtype.names or pipeline.dtype.kind == "U"
        dtype = pipeline.decoded_dtype if is_native else pipeline.dtype
        return cls(fragment.shape, dtype, get_default_fill(dtype), (pipeline,), (fragment,), name)

    @classmethod
    def full(cls, shape: Sequence[int], fill_value: Any, dtype: npt.DTypeLike) -> ManifestArray:
        """Return an array without chunks, whose elements all have the fill value."""
        target_dtype = np.dtype(dtype)
        return cls(
            tuple(shape), target_dtype, np.asarray(fill_value).astype(target_dtype)[()], (), ()
        )

    @classmethod
    def from_values(cls, values: npt.NDArray[Any]) -> ManifestArray:
        """Return an array with one inline chunk, which contains ``values``."""
        if values.dtype.hasobject:
            raise CombineError(
                f"concatenate: values of dtype {values.dtype} cannot join a virtual array; load "
                f"the virtual part first (ds.virtual.load())"
            )
        return cls.from_bytes(values.shape, values.dtype, values.tobytes())

    @classmethod
    def unreadable(cls, shape: Sequence[int], dtype: npt.DTypeLike, reason: str) -> ManifestArray:
        """Return an array that raises an error with ``reason`` when its values are read."""
        target_dtype = np.dtype(dtype)
        # an object dtype cannot be stored in a chunk
        stored_dtype = (
            np.dtype(f"V{target_dtype.itemsize}") if target_dtype.hasobject else target_dtype
        )
        return cls.from_bytes(tuple(shape), stored_dtype, b"", (Unreadable(reason),))

    @classmethod
    def from_bytes(
        cls,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        data: bytes,
        codecs: tuple[Codec, ...] = (),
    ) -> ManifestArray:
        """Return an array with one inline chunk, the encoded bytes ``data``."""
        axes = tuple(ChunkAxis.regular(n, max(n, 1)) for n in shape)
        grid = tuple(axis.nchunks for axis in axes)
        manifest = ChunkManifest.build(grid, file=INLINE, length=len(data), inline=(data,))
        pipeline = CodecPipeline(dtype, codecs, layout=tuple(range(len(shape))))
        return cls.from_fragment(Fragment.whole(axes, manifest), pipeline)

    # ------------------------------------------------------------------ other types of values

    def astype(
        self,
        dtype: npt.DTypeLike,
        order: Any = "K",
        casting: Any = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Any:
        """Convert to another dtype: lazily if the cast is lossless, else by reading the values.

        An order of "C" or "F" requires an array in memory, so it also reads the values; zarr passes
        one before it encodes a chunk.
        """
        # numpy completes dtypes without a length or unit, such as "S" or "M8"
        target = np.empty(0, self.dtype).astype(dtype, casting=casting).dtype
        if order in ("C", "F"):
            return np.asarray(self).astype(target, order, casting, subok, copy)
        if target == self.dtype:
            return self
        is_numeric = target.kind in "biufc" and target.char not in "gG"
        is_longer = target.kind in "SUMm" and target.kind == self.dtype.kind
        if (is_numeric or is_longer) and np.can_cast(self.dtype, target, "safe"):
            fill = np.asarray(self.fill_value).astype(target)[()]
            return replace(self, dtype=target, fill_value=fill)
        self.warn_of_copy(self.size * target.itemsize, f"a cast to {target}")
        return np.asarray(self).astype(target, order, casting, subok, copy)

    # ------------------------------------------------------------------ reading

    def read(self, key: tuple[Any, ...] | None = None) -> npt.NDArray[Any]:
        """Read values into memory, without applying ``load_limit``.

        Parameters
        ----------
        key : tuple of int, slice or 1-D array, one per axis; optional
            Orthogonal (outer) index; everything by default.

        Raises
        ------
        ReadError
            Bytes cannot be read, have changed, or do not decode.
        """
        return read(self, (slice(None),) * self.ndim if key is None else key)

    def read_points(self, key: tuple[Any, ...]) -> npt.NDArray[Any]:
        """Read a pointwise index without applying ``load_limit``; the axes of points come first."""
        return read_points(self, key)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError(
                f"{self.label}: values that lie in files cannot be returned without a copy; "
                f"leave out copy=False"
            )
        self.check_limit(self.nbytes)
        values = self.read()
        return values if dtype is None else values.astype(dtype, copy=False)

    def check_limit(self, nbytes: int) -> None:
        """Raise an error if loading ``nbytes`` exceeds `set_options(load_limit=...)`.

        Raises
        ------
        UnsupportedError
            ``nbytes`` exceeds the limit.
        """
        limit = get_options().load_limit
        if nbytes > limit:
            raise UnsupportedError(
                f"{self.label}: this would load "
                f"{nbytes:,} bytes, more than the limit of {limit:,}; "
                f"select less, call ds.virtual.to_lazy(chunks={{}}) for dask arrays, "
                f"ds.virtual.load() to load it all the same, or raise "
                f"virtualds.set_options(load_limit=...)"
            )

    def warn_of_copy(self, nbytes: int, operation: str) -> None:
        """Warn that an operation loads values that a user may expect to stay virtual."""
        if nbytes > COPY_WARNING_BYTES:
            warn_user(
                f"{self.label}: {operation} loads {format_bytes(nbytes)}, and a set to which the "
                "result is written holds a copy of them. Slices without a step, flips, integers, "
                "and casts to wider dtypes stay virtual. To copy nothing, write the dataset as "
                "it is and do this after opening the set, or use dask arrays "
                f"(ds.virtual.to_lazy(chunks={{}}))",
                CopyWarning,
            )

    # ------------------------------------------------------------------ copies, hashes, dask

    def copy(self, order: Any = "C") -> EagerArray:
        """Return an array that reads its values when it is indexed.

        `dask.array.from_array` copies an array and then indexes it chunk by chunk, so that xarray's
        ``.chunk()`` gives chunks of numpy arrays.
        """
        return EagerArray(*(getattr(self, f.name) for f in fields(self)))

    def __copy__(self) -> ManifestArray:
        return self

    def __deepcopy__(self, memo: Any) -> ManifestArray:
        return self

    def __hash__(self) -> int:
        return id(self)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        parts = [(f.start, f.axes, f.manifest) for f in self.fragments]
        identity = (self.shape, self.dtype, self.fill_value, self.pipelines, parts)
        return ("virtualds", *map(normalize_token, identity))

    # ------------------------------------------------------------------ representations

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shape} {self.dtype}: {format_summary(self)}>"

    def _repr_inline_(self, max_width: int) -> str:
        summary = f"virtual: {format_summary(self)}"
        # omit the number of fragments rather than truncate it
        return summary if len(summary) <= max_width else summary.partition(" in ")[0][:max_width]

    def _repr_html_(self) -> str:
        return format_html(self)


class EagerArray(ManifestArray):
    """A virtual array that reads its values when it is indexed; see `ManifestArray.copy`."""

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Dask chunks of whole stored chunks, from which `dask.array.from_array` starts."""
        return self.blocks

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        return np.asarray(super().__getitem__(key))

    def warn_of_copy(self, nbytes: int, operation: str) -> None:
        """Do not warn, since the values are meant to be loaded."""


def _build_file_table(
    path: str | SourceFile | npt.ArrayLike,
) -> tuple[list[SourceFile], npt.ArrayLike]:
    """Return the distinct files of an array of urls, and the index of the file of each chunk."""
    if isinstance(path, SourceFile):
        return [path], 0
    if isinstance(path, str):
        return [SourceFile(normalise_url(path))], 0
    urls, numbers = np.unique(np.asarray(path, dtype=str), return_inverse=True)
    numbers = numbers.reshape(np.shape(path))
    if urls.size and urls[0] == "":
        return [SourceFile(normalise_url(str(n))) for n in urls[1:]], np.where(
            numbers == 0, MISSING, numbers - 1
        )
    return [SourceFile(normalise_url(str(n))) for n in urls], numbers


def unpack(array: ManifestArray) -> tuple[ManifestArray, dict[str, Any] | None]:
    """Return the array before CF decoding, and its packing attributes, if all chunks share them.

    Otherwise return the array unchanged, and None.
    """
    packings = {p.packing for p in array.pipelines}
    dtypes = {p.dtype for p in array.pipelines}
    if len(packings) != 1 or len(dtypes) != 1:
        return array, None
    packing, dtype = packings.pop(), dtypes.pop()
    if (packing.dtype if packing else dtype.newbyteorder("=")) != array.dtype:
        return array, None
    pipelines: dict[CodecPipeline, None] = {replace(p, packing=None): None for p in array.pipelines}
    fill = get_default_fill(dtype)
    if array.has_gaps:
        if not array.gaps_read_as_missing:
            return array, None
        fill = array.pipelines[0].fill_value
    packed = replace(array, dtype=dtype, fill_value=fill, pipelines=tuple(pipelines))
    return packed, dict(packing.attributes) if packing else None
