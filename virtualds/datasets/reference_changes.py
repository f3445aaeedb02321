"""What every format lets a writer do to references on the way: cut chunks, and hold small ones.

``subchunk`` and ``inline_threshold`` change the group that a format is given, so that no format
knows of them. Tables of references that the target set has, and that are read on demand, stay as
they are. Of small sets, which are read as a whole, the chunks are cut and held as the new ones.

Virtual arrays behind lazy arrays of xarray and dask, and lazy arrays in place of virtual ones.

A dataset from ``xr.open_dataset(url, engine="virtual")`` reads on access. If its values were only
selected, transposed or concatenated, they are still chunks of files, and can be written as
references.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from numbers import Integral
from typing import Any

import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import concatenate
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.numpy_functions import select_virtually
from virtualds.arrays.sources import load_deferred
from virtualds.arrays.subchunks import can_be_cut, cut_chunks
from virtualds.chunks.alignment import snap_blocks, to_preferred_chunks
from virtualds.chunks.columns import INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import hold_in_memory
from virtualds.datasets.keywords import format_suggestion
from virtualds.datasets.lazy import (
    Layers,
    find_layers,
    get_virtual_array,
    layers_of,
    prefer_far_blocks,
    to_lazy,
)
from virtualds.errors import UnsupportedError, locating
from virtualds.formats.referenced_files import IsKnown
from virtualds.reading.stored_chunks import StoredChunks, replace_chunks

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


# ---------------------------------------------------------------------- reference changes


def hold_small_chunks(manifest: ChunkManifest, name: str, most: int) -> ChunkManifest:
    """Return a manifest that holds its chunks of at most ``most`` bytes; ``name`` is for errors.

    Chunks are read as in any read: near ones by one request, many files at a time, and checked
    against their checksums. Equal ranges are read once.
    """
    chunks = StoredChunks(manifest, name)
    is_small = (chunks.file >= 0) & (chunks.length <= most)
    if not is_small.any():
        return manifest
    rows, new, which = chunks.read_distinct(is_small, lambda data: data)
    old = chunks.manifest
    numbers = len(old.inline) + which
    inline = (*old.inline, *new)
    return replace_chunks(old, rows, old.files, inline, file=INLINE, offset=numbers).pruned()


# ---------------------------------------------------------------------- what a user asks for

Subchunk = Mapping[str, int | Mapping[str, int]]
ChangeArray = Callable[[str, ManifestVariable, ManifestArray], ManifestArray]
"""Takes the path of a variable, the variable and its array; returns another array."""


@dataclass(frozen=True)
class ReferenceChanges:
    """How chunks are cut, and which are held in the set, as for ``ds.virtual.to_manifest``.

    A `TypeError` or `ValueError` is raised for what is no mapping or number.
    """

    subchunk: Any = None
    inline_threshold: Any = None

    def __post_init__(self) -> None:
        most = self.inline_threshold
        if most is not None and not (_is_integer(most) and most >= 0):
            raise ValueError(f"inline_threshold={most!r}: give a number of bytes, at least 0")
        if self.subchunk is not None:
            _check_subchunk(self.subchunk)

    def apply(self, group: ManifestGroup, is_known: IsKnown) -> ManifestGroup:
        """Return a group with its chunks cut and held; those of known tables stay.

        Chunks that cannot be cut are an `UnsupportedError`, those that cannot be read a
        `ReadError`.
        """
        if self.subchunk:
            cutter = _Cutter(self.subchunk, is_known)
            group = _change_arrays(group, cutter.cut)
            cutter.demand_done(group)
        if self.inline_threshold:
            most = int(self.inline_threshold)
            group = _change_arrays(group, lambda path, _, array: _hold(array, path, most, is_known))
        return group


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_subchunk(given: Any) -> None:
    wanted = "give a dict of dimensions, or of variables, such as {'time': 1}"
    if not isinstance(given, Mapping):
        raise TypeError(f"subchunk {given!r}: {wanted}")
    for name, length in given.items():
        if isinstance(length, Mapping):
            if any(isinstance(inner, Mapping) for inner in length.values()):
                raise TypeError(f"subchunk {given!r}: {wanted}")
            _check_subchunk(length)
        elif not _is_integer(length) or length < 1:
            raise ValueError(f"subchunk {name}={length!r}: give a number of elements, at least 1")


def _change_arrays(group: ManifestGroup, change: ChangeArray) -> ManifestGroup:
    """Return a group, and those below it, with other virtual arrays."""

    def changed(path: str, variable: ManifestVariable) -> ManifestVariable:
        if not isinstance(variable.data, ManifestArray):
            return variable
        with locating(f"variable {path!r}"):
            array = change(path, variable, variable.data)
        return variable if array is variable.data else replace(variable, data=array)

    return group.map_variables(changed)


# ---------------------------------------------------------------------- cutting


@dataclass
class _Cutter:
    """Cuts the arrays that a user names by dimension or variable, and notes what it saw."""

    subchunk: Subchunk
    is_known: IsKnown
    is_done: bool = False

    def cut(self, path: str, variable: ManifestVariable, array: ManifestArray) -> ManifestArray:
        """Return an array with its chunks cut, itself if it is compressed."""
        names = (path, path.rpartition("/")[2])
        of_variables = (self.subchunk[name] for name in names if name in self.subchunk)
        named = next((one for one in of_variables if isinstance(one, Mapping)), None)
        wanted = self.subchunk if named is None else named
        lengths = {
            axis: int(wanted[dim])  # type: ignore[arg-type]  # checked at the beginning
            for axis, dim in enumerate(variable.dims)
            if dim in wanted and not isinstance(wanted[dim], Mapping)
        }
        if not lengths:
            return array
        known = [f for f in array.fragments if _is_inside(f.manifest, self.is_known)]
        # a set that grows was cut when it was written
        self.is_done |= bool(known) or all(
            max(f.axes[axis].stored_lengths(), default=0) <= length
            for f in array.fragments
            for axis, length in lengths.items()
        )
        if named is None and not can_be_cut(array):
            return array
        new = [f for f in array.fragments if not any(f is one for one in known)]
        found = cut_chunks(replace(array, fragments=tuple(new)), lengths, variable.dims)
        self.is_done |= found.nchunks != sum(f.manifest.size for f in new)
        return replace(array, fragments=(*known, *found.fragments))

    def demand_done(self, group: ManifestGroup) -> None:
        """Refuse a wish that has changed nothing: no such names, or compressed chunks."""
        names = {name for _, part in group.walk() for name in part.variables}
        names |= {dim for _, variable in group.walk_variables() for dim in variable.dims}
        for name in self.subchunk:
            if name.rpartition("/")[2] not in names:
                raise ValueError(
                    f"subchunk {name!r}: there is no such dimension or variable"
                    f"{format_suggestion(name, names)}"
                )
        if not self.is_done:
            raise UnsupportedError(
                f"subchunk {dict(self.subchunk)!r}: no variable has uncompressed chunks that are "
                f"longer, and parts of compressed chunks are not ranges of bytes; leave it out"
            )


def _is_inside(manifest: ChunkManifest, is_known: IsKnown) -> bool:
    """Say whether references lie in the target set."""
    return manifest.table is not None and is_known(manifest.table)


# ---------------------------------------------------------------------- holding


def _hold(array: ManifestArray, path: str, most: int, is_known: IsKnown) -> ManifestArray:
    """Return an array with its small chunks in memory."""
    fragments = []
    for fragment in array.fragments:
        manifest = fragment.manifest
        if not _is_inside(manifest, is_known):
            manifest = hold_small_chunks(manifest, path, most)
        fragments.append(
            fragment if manifest is fragment.manifest else replace(fragment, manifest=manifest)
        )
    changed = any(a is not b for a, b in zip(fragments, array.fragments, strict=True))
    return replace(array, fragments=tuple(fragments)) if changed else array
