"""Connect virtual arrays with xarray's lazy indexing and with the variables that hold them.

This is the only module that uses `xarray.core.indexing`, which xarray's guide "How to add a new
backend" documents: `LazilyIndexedArray` and the explicit indexers exist only there. It is also the
only module that uses ``Variable._data``: no public attribute shows what a variable holds without
loading it.

It also chooses dask blocks of several stored chunks, for remote arrays and for arrays of very many
chunks.

dask runs as many tasks at a time as it has threads. With one chunk per block, there are only as
many requests in flight: two threads get a hundred answers a second from a server 20 ms away. A
block of many chunks requests them concurrently, and merges the requests of adjacent chunks of a
file. Besides, dask takes minutes to schedule a million tasks, even if most chunks are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache, reduce
from math import prod
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from virtualds.arrays import select_virtually
from virtualds.arrays.array import ManifestArray, map_manifests
from virtualds.arrays.concatenate import concatenate
from virtualds.arrays.group import Data
from virtualds.arrays.sources import load_deferred
from virtualds.chunks.fragment import LARGE_BLOCK, snap_blocks, to_preferred_chunks
from virtualds.chunks.tables import load_compactly
from virtualds.errors import UnsupportedError, VirtualdsError, locating
from virtualds.options import MIB
from virtualds.stores import find_store


class VirtualBackendArray(BackendArray):
    """An array that `xarray.open_dataset` indexes lazily; ``name`` is for errors.

    xarray decodes its values unless ``is_decoded``.
    """

    __slots__ = ("data", "dtype", "is_decoded", "name", "shape")

    def __init__(self, data: Data, name: str, is_decoded: bool = False) -> None:
        self.data = data
        self.name = name
        self.is_decoded = is_decoded
        self.shape = data.shape
        self.dtype = data.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> npt.NDArray[Any]:
        if isinstance(self.data, np.ndarray):
            adapter = indexing.NumpyIndexingAdapter(self.data)  # type: ignore[no-untyped-call]
            return np.asarray(indexing.apply_indexer(adapter, key))
        with locating(f"variable {self.name!r}"):
            if not isinstance(self.data, ManifestArray):
                outer = indexing.IndexingSupport.OUTER
                values = indexing.explicit_indexing_adapter(key, self.shape, outer, self.data.read)
                return np.asarray(values)
            if isinstance(key, indexing.VectorizedIndexer):
                return self.data.read_points(key.tuple)
            return self.data.read(key.tuple)

    def async_getitem(self, key: indexing.ExplicitIndexer) -> Coroutine[Any, Any, npt.NDArray[Any]]:
        """Read in a thread; the reader has its own threads."""
        return asyncio.to_thread(self.__getitem__, key)


def get_virtual_array(variable: xr.Variable) -> ManifestArray | None:
    """Return the virtual array of a variable, or None if its data are of another kind.

    ``Variable.data`` would load a lazy array.
    """
    data = variable._data
    return data if isinstance(data, ManifestArray) else None


def is_lazy(variable: xr.Variable) -> bool:
    """Return whether a variable is still lazy: its values are read on access."""
    data = variable._data
    return isinstance(data, indexing.ExplicitlyIndexed) and not variable._in_memory


def to_lazy(data: Data, name: str, is_decoded: bool = False) -> indexing.LazilyIndexedArray:
    """Return a lazy array that xarray reads on first access and then caches."""
    return indexing.LazilyIndexedArray(VirtualBackendArray(data, name, is_decoded))


SELECTING_TYPES = (indexing.LazilyIndexedArray, indexing.LazilyVectorizedIndexedArray)
"""Classes that xarray wraps around an array to select from it."""
WRAPPING_TYPES = (
    indexing.CopyOnWriteArray,
    indexing.MemoryCachedArray,
    indexing.ImplicitToExplicitIndexingAdapter,
)
"""Classes that xarray wraps around an array without selecting."""


class Layers(NamedTuple):
    """A virtual array, and the selections that xarray's lazy arrays apply to it.

    ``keys`` are the selections, innermost first. Each has one entry per axis, and whether these are
    broadcast against each other. ``is_computed`` says whether xarray computes with the array.
    """

    array: ManifestArray
    keys: tuple[tuple[tuple[Any, ...], bool], ...]
    is_computed: bool


def layers_of(data: Any) -> Layers | None:
    """Return the layers of an xarray lazy array, or None if it does not wrap a virtual array."""
    if isinstance(data, ManifestArray):
        return Layers(data, (), False)
    if isinstance(data, VirtualBackendArray):
        is_virtual = data.is_decoded and isinstance(data.data, ManifestArray)
        return layers_of(data.data) if is_virtual else None
    inner = layers_of(getattr(data, "array", None)) if is_wrapper(data) else None
    if inner is None or isinstance(data, WRAPPING_TYPES):
        return inner
    if isinstance(data, SELECTING_TYPES):
        is_vectorized = isinstance(data.key, indexing.VectorizedIndexer)
        return inner._replace(keys=(*inner.keys, (data.key.tuple, is_vectorized)))
    return inner._replace(is_computed=True)


def is_wrapper(data: Any) -> bool:
    """Return whether an object is one of xarray's wrappers of arrays."""
    return isinstance(data, (indexing.ExplicitlyIndexed, *WRAPPING_TYPES))


def find_layers(variable: xr.Variable) -> Layers | None:
    """Return the layers below a variable, or None if it does not wrap a virtual array."""
    return layers_of(variable._data)


# ---------------------------------------------------------------------- dask blocks

REMOTE_BLOCK_BYTES = 32 * MIB
"""Maximum decoded size in bytes of a block into which chunks are joined."""
MAX_TASKS = 100_000
"""Maximum number of chunks of which each becomes a block, in a local array; more are joined."""

Lengths = int | tuple[int, ...]
"""Lengths of chunks along a dimension: one length for all but the last, or the length of each."""


class ChunkGrid(NamedTuple):
    """The grid of stored chunks of one variable."""

    lengths: Mapping[Hashable, Lengths]
    array: ManifestArray

    @property
    def counts(self) -> dict[Hashable, int]:
        """The number of chunks along every dimension."""
        return {
            dim: -(-size // max(n, 1)) if isinstance(n, int) else len(n)
            for (dim, n), size in zip(self.lengths.items(), self.array.shape, strict=True)
        }

    @property
    def chunk_nbytes(self) -> int:
        """The decoded size of the largest chunk, in bytes."""
        longest = (n if isinstance(n, int) else max(n) for n in self.lengths.values())
        sizes = map(min, longest, self.array.shape)
        return prod(sizes) * self.array.dtype.itemsize

    def count_chunks_per_block(self) -> dict[Hashable, int]:
        """Return the number of chunks along each dimension that form one block.

        A block has at most `REMOTE_BLOCK_BYTES`. Chunks are joined along the last dimensions first,
        where they are mostly adjacent in a file. A user may ask for any blocks along the other
        dimensions, at worst for the whole length. So that no block then exceeds `LARGE_BLOCK`,
        every dimension has at least as many blocks as the array has multiples of `LARGE_BLOCK`.
        """
        counts = {}
        min_blocks = max(1, -(-self.array.nbytes // LARGE_BLOCK))
        chunks_left = REMOTE_BLOCK_BYTES // max(self.chunk_nbytes, 1)
        for dim, count in reversed(self.counts.items()):
            counts[dim] = max(1, min(chunks_left, count // min_blocks))
            chunks_left //= counts[dim]
        return counts


ChunksPerBlock = Mapping[tuple[Hashable, Lengths], int]
"""The number of chunks that form a block, by dimension and lengths."""


class PreferredChunks(dict[Hashable, Lengths]):
    """The stored chunks as ``encoding["preferred_chunks"]``, and the blocks that xarray asks for.

    For dimensions whose blocks a user leaves to the backend, xarray calls ``get(dim, size)``. The
    result may span several chunks; ``count_chunks_per_block`` returns how many. Any other access
    asks for the stored chunks, and xarray warns about requested blocks that cut them.
    """

    def __init__(
        self,
        lengths: Mapping[Hashable, Lengths],
        count_chunks_per_block: Callable[[], ChunksPerBlock],
    ) -> None:
        super().__init__(lengths)
        self._count_together = count_chunks_per_block

    @overload
    def get(self, dim: Hashable, default: None = None, /) -> Lengths | None: ...
    @overload
    def get(self, dim: Hashable, default: Any, /) -> Any: ...
    def get(self, dim: Hashable, default: Any = None, /) -> Any:
        """Return the sizes of blocks if a default is given, else the sizes of stored chunks."""
        lengths = super().get(dim, default)
        if default is None or dim not in self:
            return lengths
        together = self._count_together().get((dim, lengths), 1)
        if isinstance(lengths, int) or together == 1:
            return lengths * together if isinstance(lengths, int) else lengths
        sums = np.add.reduceat(np.array(lengths), np.arange(0, len(lengths), together))
        return to_preferred_chunks(tuple(sums.tolist()))

    def __deepcopy__(self, memo: object) -> PreferredChunks:
        return PreferredChunks(self, self._count_together)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the stored chunks: blocks are chosen when a dataset is opened."""
        return dict, (dict(self),)


def enlarge_blocks(
    variables: Mapping[Any, xr.Variable], arrays: Mapping[Any, ManifestArray]
) -> None:
    """Make xarray choose blocks of several chunks for variables that are remote or very large.

    Variables whose chunks have the same lengths along a dimension have the same blocks there.
    Nothing is computed until xarray asks for the size of a block.
    """
    stored = {name: variables[name].encoding.get("preferred_chunks") for name in arrays}
    grids = {
        name: ChunkGrid({dim: lengths[dim] for dim in variables[name].dims}, arrays[name])
        for name, lengths in stored.items()
        if isinstance(lengths, Mapping) and lengths.keys() == set(variables[name].dims)
    }

    @cache
    def count_chunks_per_block() -> ChunksPerBlock:
        counts: dict[tuple[Hashable, Lengths], int] = {}
        # the array with most chunks represents all, so that references are read once per dataset
        largest = max(grids.values(), key=lambda grid: grid.array.nchunks).array
        if largest.nchunks > MAX_TASKS or is_remote_array(largest):
            for grid in grids.values():
                for dim, count in grid.count_chunks_per_block().items():
                    key = dim, grid.lengths[dim]
                    counts[key] = min(count, counts.get(key, count))
        return counts

    for name, grid in grids.items():
        variables[name].encoding["preferred_chunks"] = PreferredChunks(
            grid.lengths, count_chunks_per_block
        )


def is_remote_array(array: ManifestArray) -> bool:
    """Return whether chunks are in a remote store, which serves many requests at once.

    If the references are stored in a set, a few of them are read.
    """
    # a file of the largest fragment is representative
    manifest = max((f.manifest for f in array.fragments), key=lambda m: m.size, default=None)
    if manifest is None or not manifest.size:
        return False
    try:
        if manifest.is_in_set:
            ids = np.unique([0, manifest.size // 2, manifest.size - 1])
            manifest = manifest.at(ids).prune()
        file = next(iter(manifest.files), None)
    except (VirtualdsError, OSError):
        # the error is raised when the values are read
        return False
    return file is not None and find_store(file.url).request_limits.max_requests > 0


# ---------------------------------------------------------------------- lazy variables
# A dataset from ``xr.open_dataset(url, engine="virtual")`` reads on access. As long as its
# variables have only been sliced, transposed or concatenated, they still consist of chunks of
# files, and can be written as references.


GRAPH_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of other libraries when they compute with virtual arrays that cannot be read."""


def restore_references(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset in which lazy variables are virtual again, if they refer to chunks of files.

    Raises `UnsupportedError` if values are computed from such chunks, or if references cannot
    express the selection.
    """
    changed = {}
    for name, variable in dataset.variables.items():
        try:
            array = find_references(variable)
        except UnsupportedError as error:
            error.locate(f"variable {name!r}")
            raise
        if array is not None and array is not get_virtual_array(variable):
            data: Any = array
            changed[name] = variable.copy(data=data)
    return replace_variables(dataset, changed) if changed else dataset


def replace_variables(
    dataset: xr.Dataset,
    changed: Mapping[Hashable, xr.Variable],
    indexes: Mapping[Hashable, xr.Index] | None = None,
) -> xr.Dataset:
    """Return a dataset with some variables replaced, and their ``indexes``."""
    variables = {**dataset.variables, **changed}
    coords = {name: variables[name] for name in dataset.coords}
    result = xr.Dataset(
        {name: variables[name] for name in dataset.data_vars},
        xr.Coordinates(coords, indexes={**dataset.xindexes, **(indexes or {})}),
        dataset.attrs,
    )
    result.encoding = dataset.encoding
    return result


def find_references(variable: xr.Variable) -> ManifestArray | None:
    """Return the virtual array of a variable, also below lazy arrays, or None if there is none.

    Raises `UnsupportedError` if its values come from one but references cannot express them.
    """
    if (array := get_virtual_array(variable)) is not None:
        return array
    if (layers := find_layers(variable)) is not None:
        return _apply_selection(layers)
    return None if variable.chunks is None else _find_below_dask(variable.data)


def _apply_selection(layers: Layers) -> ManifestArray:
    """Apply the selections of xarray's lazy arrays to the virtual array below them."""
    array = None
    if not layers.is_computed:
        array = load_deferred(_to_class(ManifestArray, layers.array))
    for key, is_vectorized in layers.keys:
        array = None if array is None else select_virtually(array, key, is_vectorized)
    if array is None:
        raise _make_unsupported_error("xarray computes with them, or selects many single elements")
    return array


def _make_unsupported_error(reason: str) -> UnsupportedError:
    """Return the error for values that references cannot express."""
    return UnsupportedError(
        f"references cannot express its values, which lie in source files: {reason}; open the "
        f"source with virtualds.open_virtual_dataset, which shows what stays virtual, or call "
        f"ds.load() to write values"
    )


def _to_class(kind: type[ManifestArray], array: ManifestArray) -> ManifestArray:
    """Return an array as an instance of another class with the same fields."""
    return kind(*(getattr(array, field.name) for field in fields(array)))


# ---------------------------------------------------------------------- dask graphs


class UnreadableArray(ManifestArray):
    """A virtual array on which a dask graph may run selections, but which it must not read."""

    def read(self, key: tuple[Any, ...] | None = None) -> npt.NDArray[Any]:
        """Raise an error instead of reading."""
        raise UnsupportedError(f"{self.label}: this array must not be read")

    def read_points(self, key: tuple[Any, ...]) -> npt.NDArray[Any]:
        """Raise an error instead of reading."""
        return self.read(key)


def _find_below_dask(data: Any) -> ManifestArray | None:
    """Return the virtual array from which a dask array selects, or None if there is none."""
    from dask.core import flatten
    from dask.local import get_sync

    graph, keys = data.__dask_graph__(), data.__dask_keys__()
    # the name that dask gives to an in-memory array, which it only slices into blocks
    if (layers := _find_layers(graph.get(f"original-{data.name}"))) is not None:
        return _apply_selection(layers)
    tasks = dict(graph.cull(set(flatten(keys))))  # type: ignore[no-untyped-call]
    sources = {key: found for key, task in tasks.items() if (found := _find_layers(task))}
    if not sources:
        if any(map(_uses_virtual, tasks.values())):
            raise _make_unsupported_error(
                "dask holds them within its tasks; open them without inline_array=True"
            )
        return None
    arrays = {}
    for key, layers in sources.items():
        # lazy arrays cannot be concatenated by reference
        loaded = map_manifests(_apply_selection(layers), load_compactly)
        arrays[key] = _to_class(UnreadableArray, loaded)
    # run the graph on virtual arrays: slices and transposes are virtual arrays, computations fail
    first = reduce(lambda blocks, _: blocks[0], range(max(data.ndim, 1)), keys)
    try:
        # one block is enough to see whether anything is computed
        for requested in (first, keys):
            joinable = get_sync(tasks | arrays, requested)
        array = _join_blocks(joinable, data.ndim)
    except (UnsupportedError, *GRAPH_ERRORS) as error:
        raise _make_unsupported_error("dask computes with them") from error
    if (array.shape, array.dtype) != (data.shape, data.dtype):
        raise _make_unsupported_error("dask changes their shape or data type")
    return _to_class(ManifestArray, array)


def _find_layers(task: Any) -> Layers | None:
    """Return the layers of an entry of a graph, or None if it does not wrap a virtual array."""
    return layers_of(getattr(task, "value", task))


def _uses_virtual(task: Any) -> bool:
    """Return whether an argument of a task is a virtual array."""
    if isinstance(task, tuple | list):
        parts: Iterable[Any] = task
    elif isinstance(task, Mapping):
        parts = task.values()
    else:
        parts = (*getattr(task, "args", ()), *getattr(task, "kwargs", {}).values())
    return _find_layers(task) is not None or any(map(_uses_virtual, parts))


def _join_blocks(blocks: Any, ndim: int, axis: int = 0) -> ManifestArray:
    """Concatenate the blocks of a graph, nested once per axis, if all are virtual."""
    if isinstance(blocks, list | tuple):
        parts = [_join_blocks(block, ndim, axis + 1) for block in blocks]
        return concatenate(parts, axis) if ndim else parts[0]
    if not isinstance(blocks, ManifestArray):
        raise TypeError(f"a block is {type(blocks).__name__}")
    return blocks


def find_virtual(variable: xr.Variable) -> ManifestArray | None:
    """Return the virtual array that a variable holds or selects from, or None if there is none."""
    try:
        return find_references(variable)
    except UnsupportedError:
        return None


# ---------------------------------------------------------------------- lazy arrays


def to_lazy_copy(
    dataset: xr.Dataset, arrays: Mapping[Hashable, ManifestArray], chunks: Any
) -> xr.Dataset:
    """Return a dataset in which the given virtual arrays are replaced by lazy ones.

    With ``chunks`` None they are xarray's lazy arrays, else dask arrays, as from
    `xarray.open_dataset`.
    """
    variables = {
        name: xr.Variable(
            (v := dataset.variables[name]).dims,
            to_lazy(array, str(name), is_decoded=True),
            v.attrs,
            v.encoding
            | {
                "preferred_chunks": dict(
                    zip(v.dims, map(to_preferred_chunks, array.blocks), strict=True)
                )
            },
        )
        for name, array in arrays.items()
    }
    enlarge_blocks(variables, arrays)
    lazy = replace_variables(dataset, variables)
    if chunks is None:
        return lazy
    return lazy.assign(
        {
            n: lazy[n].variable.chunk(_choose_blocks(lazy[n].variable, a, chunks))
            for n, a in arrays.items()
        }
    )


def _choose_blocks(
    variable: xr.Variable, array: ManifestArray, chunks: Any
) -> dict[Hashable, tuple[int, ...]]:
    """Return the requested blocks; those that dask may choose consist of whole chunks."""
    from dask.array.core import normalize_chunks

    stored_blocks, preferred = array.blocks, variable.encoding["preferred_chunks"]
    requested = chunks if isinstance(chunks, Mapping) else dict.fromkeys(variable.dims, chunks)
    sizes = [requested.get(dim) or preferred.get(dim, size) for dim, size in variable.sizes.items()]
    normalized = normalize_chunks(  # type: ignore[no-untyped-call]
        tuple(sizes), shape=array.shape, dtype=array.dtype, previous_chunks=stored_blocks
    )
    return {
        dim: snap_blocks(blocks, stored_sizes) if isinstance(request, str) else blocks
        for dim, request, blocks, stored_sizes in zip(
            variable.dims, sizes, normalized, stored_blocks, strict=True
        )
    }


def expand_variable(dataset: xr.Dataset, name: Hashable, dims: Sequence[Hashable]) -> xr.Variable:
    """Return a variable in memory with exactly ``dims``, repeated along those that it lacks."""
    variable = dataset.variables[name]
    sizes = {dim: dataset.sizes[dim] for dim in dims}
    expanded = variable.set_dims(sizes).transpose(*sizes)  # type: ignore[no-untyped-call]
    return xr.Variable(expanded.dims, np.array(expanded.values), variable.attrs, variable.encoding)
