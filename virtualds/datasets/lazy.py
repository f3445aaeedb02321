"""Virtual arrays behind xarray's lazy indexing, and inside variables.

This is the only module that uses `xarray.core.indexing`, which xarray's guide "How to add a new
backend" documents: `LazilyIndexedArray` and the explicit indexers exist only there. It is also the
only module that uses ``Variable._data``: no public attribute shows what a variable holds without
loading it.

Blocks of dask for far arrays, and for those of very many chunks: several stored chunks each.

dask runs as many tasks at a time as there are threads. With a chunk in each block, as many requests
are on their way, and a server that is 20 ms away answers two threads a hundred times a second. A
block of many chunks sends their requests together, and joins those that are neighbours in a file.
And a million tasks take dask minutes, wherever the chunks lie, or where most of them are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache, reduce
from math import prod
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import concatenate
from virtualds.arrays.group import Data
from virtualds.arrays.numpy_functions import select_virtually
from virtualds.arrays.sources import load_deferred
from virtualds.chunks.alignment import LARGE_BLOCK, snap_blocks, to_preferred_chunks
from virtualds.chunks.tables import hold_in_memory
from virtualds.errors import UnsupportedError, VirtualdsError, locating
from virtualds.options import MIB
from virtualds.stores import find_store


class VirtualBackendArray(BackendArray):
    """An array that `xarray.open_dataset` indexes lazily; ``name`` is for errors.

    xarray decodes its values unless they ``is_decoded`` already.
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
                found = indexing.explicit_indexing_adapter(key, self.shape, outer, self.data.read)
                return np.asarray(found)
            if isinstance(key, indexing.VectorizedIndexer):
                return self.data.read_points(key.tuple)
            return self.data.read(key.tuple)

    def async_getitem(self, key: indexing.ExplicitIndexer) -> Coroutine[Any, Any, npt.NDArray[Any]]:
        """Read in a thread; the reader has its own threads."""
        return asyncio.to_thread(self.__getitem__, key)


def get_virtual_array(variable: xr.Variable) -> ManifestArray | None:
    """Return the virtual array of a variable, None if it holds anything else.

    ``Variable.data`` would load a lazy array.
    """
    data = variable._data
    return data if isinstance(data, ManifestArray) else None


def is_unread(variable: xr.Variable) -> bool:
    """Say whether a variable is read from a file on access."""
    data = variable._data
    return isinstance(data, indexing.ExplicitlyIndexed) and not variable._in_memory


def to_lazy(data: Data, name: str, is_decoded: bool = False) -> indexing.LazilyIndexedArray:
    """Return a lazy array that xarray reads on first access, and then keeps."""
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
    """The array below xarray's lazy arrays, and what they do with it.

    ``keys`` are the selections, the innermost first: for each its entries, one per axis, and
    whether they broadcast together. ``is_computed`` says whether values are computed from the
    array.
    """

    array: ManifestArray
    keys: tuple[tuple[tuple[Any, ...], bool], ...]
    is_computed: bool


def layers_of(data: Any) -> Layers | None:
    """Return the layers of a lazy array of xarray, None if there is no virtual array below."""
    if isinstance(data, ManifestArray):
        return Layers(data, (), False)
    if isinstance(data, VirtualBackendArray):
        is_ours = data.is_decoded and isinstance(data.data, ManifestArray)
        return layers_of(data.data) if is_ours else None
    below = layers_of(getattr(data, "array", None)) if is_wrapper(data) else None
    if below is None or isinstance(data, WRAPPING_TYPES):
        return below
    if isinstance(data, SELECTING_TYPES):
        together = isinstance(data.key, indexing.VectorizedIndexer)
        return below._replace(keys=(*below.keys, (data.key.tuple, together)))
    return below._replace(is_computed=True)


def is_wrapper(data: Any) -> bool:
    """Say whether an object is a wrapper of xarray."""
    return isinstance(data, (indexing.ExplicitlyIndexed, *WRAPPING_TYPES))


def find_layers(variable: xr.Variable) -> Layers | None:
    """Return the virtual array of a variable, also below lazy arrays of xarray."""
    return layers_of(variable._data)


# ---------------------------------------------------------------------- far blocks

FAR_BLOCK = 32 * MIB
"""Decoded bytes that chunks are joined to."""
MOST_TASKS = 100_000
"""Chunks of a near array that are blocks of their own; more are joined as far ones are."""

Lengths = int | tuple[int, ...]
"""Lengths of chunks along a dimension: all but the last alike, or each."""


class ChunkGrid(NamedTuple):
    """The stored chunks of one variable."""

    lengths: Mapping[Hashable, Lengths]
    array: ManifestArray

    @property
    def counts(self) -> dict[Hashable, int]:
        """How many chunks there are along every dimension."""
        return {
            dim: -(-size // max(n, 1)) if isinstance(n, int) else len(n)
            for (dim, n), size in zip(self.lengths.items(), self.array.shape, strict=True)
        }

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of the largest chunk."""
        longest = (n if isinstance(n, int) else max(n) for n in self.lengths.values())
        sizes = map(min, longest, self.array.shape)
        return prod(sizes) * self.array.dtype.itemsize

    def count_together(self) -> dict[Hashable, int]:
        """Return how many chunks along every dimension may make a block.

        They have `FAR_BLOCK` bytes at most, and are joined along the last dimensions first, since
        these are mostly neighbours in a file. xarray combines these blocks with the ones that a
        user wants along other dimensions, all of it at worst. So that this makes no block
        of more than `LARGE_BLOCK`, a dimension keeps as many blocks as that goes into the array.
        """
        found = {}
        least = max(1, -(-self.array.nbytes // LARGE_BLOCK))
        room = FAR_BLOCK // max(self.chunk_nbytes, 1)
        for dim, count in reversed(self.counts.items()):
            found[dim] = max(1, min(room, count // least))
            room //= found[dim]
        return found


Together = Mapping[tuple[Hashable, Lengths], int]
"""How many chunks make a block, by dimension and lengths."""


class PreferredChunks(dict[Hashable, Lengths]):
    """The chunks that are stored, as ``encoding["preferred_chunks"]``; to xarray, blocks.

    xarray asks for the sizes along all dimensions that a user leaves to the backend by ``get(dim,
    size)``. These may be more than one chunk: ``count_together`` returns how many make a block.
    What xarray asks for otherwise are the chunks that requested blocks should not cut, and about
    which it warns.
    """

    def __init__(
        self, lengths: Mapping[Hashable, Lengths], count_together: Callable[[], Together]
    ) -> None:
        super().__init__(lengths)
        self._count_together = count_together

    @overload
    def get(self, dim: Hashable, default: None = None, /) -> Lengths | None: ...
    @overload
    def get(self, dim: Hashable, default: Any, /) -> Any: ...
    def get(self, dim: Hashable, default: Any = None, /) -> Any:
        """Return the sizes of blocks where a default is given, else those of chunks."""
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
        """Pickle the stored chunks: blocks are chosen where a dataset is opened."""
        return dict, (dict(self),)


def prefer_far_blocks(
    variables: Mapping[Any, xr.Variable], arrays: Mapping[Any, ManifestArray]
) -> None:
    """Let xarray make blocks of several chunks of those variables whose arrays are far.

    Variables whose chunks have the same lengths along a dimension have the same blocks there.
    Nothing is looked at before xarray asks for the size of a block.
    """
    stored = {name: variables[name].encoding.get("preferred_chunks") for name in arrays}
    known = {
        name: ChunkGrid({dim: lengths[dim] for dim in variables[name].dims}, arrays[name])
        for name, lengths in stored.items()
        if isinstance(lengths, Mapping) and lengths.keys() == set(variables[name].dims)
    }

    @cache
    def count_together() -> Together:
        found: dict[tuple[Hashable, Lengths], int] = {}
        # the array of most chunks tells for all: one look at references does for a dataset
        largest = max(known.values(), key=lambda grid: grid.array.nchunks).array
        if largest.nchunks > MOST_TASKS or is_far(largest):
            for grid in known.values():
                for dim, count in grid.count_together().items():
                    key = dim, grid.lengths[dim]
                    found[key] = min(count, found.get(key, count))
        return found

    for name, grid in known.items():
        variables[name].encoding["preferred_chunks"] = PreferredChunks(grid.lengths, count_together)


def is_far(array: ManifestArray) -> bool:
    """Say whether chunks lie in a store that takes many requests at a time.

    Where references lie in a set, a few are read.
    """
    # of the largest fragment, a file tells it
    manifest = max((f.manifest for f in array.fragments), key=lambda m: m.size, default=None)
    if manifest is None or not manifest.size:
        return False
    try:
        if manifest.is_in_set:
            ids = np.unique([0, manifest.size // 2, manifest.size - 1])
            manifest = manifest.at(ids).pruned()
        file = next(iter(manifest.files), None)
    except (VirtualdsError, OSError):
        # whoever reads the values is told what is wrong
        return False
    return file is not None and find_store(file.url).reach.at_once > 0


# ---------------------------------------------------------------------- references behind them
# A dataset from ``xr.open_dataset(url, engine="virtual")`` reads on access. If its values were only
# selected, transposed or concatenated, they are still chunks of files, and can be written as
# references.


GRAPH_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of other libraries when they are given virtual arrays that cannot be read."""


def restore_references(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset whose lazy variables are virtual, if they refer to chunks of files.

    An `UnsupportedError` is raised if values are computed from such chunks, or if no references can
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


def replace_variables(dataset: xr.Dataset, changed: Mapping[Hashable, xr.Variable]) -> xr.Dataset:
    """Return a dataset with some variables replaced, and the same indexes."""
    variables = {**dataset.variables, **changed}
    coords = {name: variables[name] for name in dataset.coords}
    found = xr.Dataset(
        {name: variables[name] for name in dataset.data_vars},
        xr.Coordinates(coords, indexes=dict(dataset.xindexes)),
        dataset.attrs,
    )
    found.encoding = dataset.encoding
    return found


def find_references(variable: xr.Variable) -> ManifestArray | None:
    """Return the virtual array of a variable, also behind lazy arrays; None if there is none.

    An `UnsupportedError` is raised if its values come from one, but references cannot express them.
    """
    if (array := get_virtual_array(variable)) is not None:
        return array
    if (layers := find_layers(variable)) is not None:
        return _apply_selection(layers)
    return None if variable.chunks is None else _find_behind_dask(variable.data)


def _apply_selection(layers: Layers) -> ManifestArray:
    """Return the virtual array that xarray's lazy arrays select, with its references."""
    array = None
    if not layers.is_computed:
        array = load_deferred(_cast_class(ManifestArray, layers.array))
    for key, together in layers.keys:
        array = None if array is None else select_virtually(array, key, together)
    if array is None:
        raise _unsupported_error("xarray computes with them, or selects many single elements")
    return array


def _unsupported_error(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"references cannot express its values, which lie in source files: {why}; open the source "
        f"with virtualds.open_virtual_dataset, which shows what stays virtual, or call ds.load() "
        f"to write values"
    )


def _cast_class(kind: type[ManifestArray], array: ManifestArray) -> ManifestArray:
    return kind(*(getattr(array, field.name) for field in fields(array)))


# ---------------------------------------------------------------------- dask graphs


class UnreadArray(ManifestArray):
    """A virtual array that a dask graph may select from, but not read."""

    def read(self, key: tuple[Any, ...] | None = None) -> npt.NDArray[Any]:
        """Refuse to read."""
        raise UnsupportedError(f"{self.label}: this array must not be read")

    def read_points(self, key: tuple[Any, ...]) -> npt.NDArray[Any]:
        """Refuse to read."""
        return self.read(key)


def _find_behind_dask(data: Any) -> ManifestArray | None:
    """Return the virtual array behind a dask array, None if there is none."""
    from dask.core import flatten

    graph, keys = data.__dask_graph__(), data.__dask_keys__()
    # the name that dask gives to an array in memory, which it only cuts into blocks
    if (layers := _find_layers(graph.get(f"original-{data.name}"))) is not None:
        return _apply_selection(layers)
    needed = dict(graph.cull(set(flatten(keys))))  # type: ignore[no-untyped-call]
    sources = {key: found for key, task in needed.items() if (found := _find_layers(task))}
    if not sources:
        if any(map(_uses_virtual, needed.values())):
            raise _unsupported_error(
                "dask holds them within its tasks; open them without inline_array=True"
            )
        return None
    arrays = {}
    for key, layers in sources.items():
        array = _apply_selection(layers)
        # lazy references cannot be concatenated
        loaded = tuple(replace(f, manifest=hold_in_memory(f.manifest)) for f in array.fragments)
        arrays[key] = _cast_class(UnreadArray, replace(array, fragments=loaded))
    array = _run_graph(needed | arrays, keys, data.ndim)
    if (array.shape, array.dtype) != (data.shape, data.dtype):
        raise _unsupported_error("dask changes their shape or data type")
    return _cast_class(ManifestArray, array)


def _find_layers(task: Any) -> Layers | None:
    """Return the layers of an entry of a graph, None if it holds no virtual array."""
    return layers_of(getattr(task, "value", task))


def _uses_virtual(task: Any) -> bool:
    """Say whether an argument of a task is a virtual array."""
    if isinstance(task, tuple | list):
        parts: Iterable[Any] = task
    elif isinstance(task, Mapping):
        parts = task.values()
    else:
        parts = (*getattr(task, "args", ()), *getattr(task, "kwargs", {}).values())
    return _find_layers(task) is not None or any(map(_uses_virtual, parts))


def _run_graph(graph: Mapping[Any, Any], keys: Any, ndim: int) -> ManifestArray:
    """Run a graph on virtual arrays instead of values, and join the blocks.

    Slices and transposes of virtual arrays are virtual arrays; computations fail.
    """
    from dask.local import get_sync

    first = reduce(lambda blocks, _: blocks[0], range(max(ndim, 1)), keys)
    try:
        # one block shows whether anything is computed
        for wanted in (first, keys):
            found = get_sync(graph, wanted)
        return _join_blocks(found, ndim)
    except (UnsupportedError, *GRAPH_ERRORS) as error:
        raise _unsupported_error("dask computes with them") from error


def _join_blocks(blocks: Any, ndim: int, axis: int = 0) -> ManifestArray:
    """Join the blocks of a graph, nested once per axis, if all are virtual."""
    if isinstance(blocks, list | tuple):
        parts = [_join_blocks(block, ndim, axis + 1) for block in blocks]
        return concatenate(parts, axis) if ndim else parts[0]
    if not isinstance(blocks, ManifestArray):
        raise TypeError(f"a block is {type(blocks).__name__}")
    return blocks


def find_virtual(variable: xr.Variable) -> ManifestArray | None:
    """Return the virtual array that a variable holds or selects from, None if it has none."""
    try:
        return find_references(variable)
    except UnsupportedError:
        return None


# ---------------------------------------------------------------------- lazy arrays


def to_lazy_copy(
    dataset: xr.Dataset, arrays: Mapping[Hashable, ManifestArray], chunks: Any
) -> xr.Dataset:
    """Return a dataset with lazy variables in place of virtual ones, whose arrays are given.

    With ``chunks`` None they are lazy arrays of xarray, else of dask, as `xarray.open_dataset`
    makes them.
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
    prefer_far_blocks(variables, arrays)
    lazy = replace_variables(dataset, variables)
    if chunks is None:
        return lazy
    return lazy.assign(
        {
            n: lazy[n].variable.chunk(_chunks_of(lazy[n].variable, a, chunks))
            for n, a in arrays.items()
        }
    )


def _chunks_of(
    variable: xr.Variable, array: ManifestArray, chunks: Any
) -> dict[Hashable, tuple[int, ...]]:
    """Return the requested blocks; where dask may choose, of whole chunks."""
    from dask.array.core import normalize_chunks

    whole, preferred = array.blocks, variable.encoding["preferred_chunks"]
    named = chunks if isinstance(chunks, Mapping) else dict.fromkeys(variable.dims, chunks)
    asked = [named.get(dim) or preferred.get(dim, size) for dim, size in variable.sizes.items()]
    found = normalize_chunks(  # type: ignore[no-untyped-call]
        tuple(asked), shape=array.shape, dtype=array.dtype, previous_chunks=whole
    )
    return {
        dim: snap_blocks(blocks, stored) if isinstance(how, str) else blocks
        for dim, how, blocks, stored in zip(variable.dims, asked, found, whole, strict=True)
    }
