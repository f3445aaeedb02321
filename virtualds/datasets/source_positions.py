"""The sources of a dataset, and their positions along a dimension.

Tables in a set may list files without chunks of an array; where that matters, the references are
read piece by piece.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.bounds import demand_joinable
from virtualds.chunks.columns import drop_repeated_tables
from virtualds.chunks.lazy_manifest import find_listed
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.reference_table import iterate_references
from virtualds.datasets.lazy import get_virtual_array

Stretch = tuple[int, int]
"""Start and stop along a dimension."""


def list_arrays_along(dataset: xr.Dataset, dim: str) -> Iterable[tuple[int, ManifestArray]]:
    """Yield the virtual arrays that have a dimension, with its axis."""
    for variable in dataset.variables.values():
        data = get_virtual_array(variable)
        if data is not None and dim in variable.dims:
            yield variable.dims.index(dim), data


def urls_of(dataset: xr.Dataset) -> set[str]:
    """Return the urls of all sources, including unused ones in stored tables."""
    arrays = map(get_virtual_array, dataset.variables.values())
    return _list_urls(array for array in arrays if array is not None)


def list_urls_along(dataset: xr.Dataset, dim: str) -> set[str]:
    """Return the urls of sources that follow each other along a dimension."""
    return _list_urls(array for _, array in list_arrays_along(dataset, dim))


def find_urls_along(dataset: xr.Dataset, dim: str, urls: Collection[str]) -> set[str]:
    """Return those of some urls that are listed along a dimension, without listing all."""
    fragments = (f for _, array in list_arrays_along(dataset, dim) for f in array.fragments)
    return {file.url for f in fragments for file in find_listed(f.manifest, urls)}


def _list_urls(arrays: Iterable[ManifestArray]) -> set[str]:
    """Return the urls in the tables of arrays; most arrays of a dataset share one table."""
    listed = (f.manifest.listed for array in arrays for f in array.fragments)
    return {file.url for table in drop_repeated_tables(listed) for file in table}


def find_used_along(dataset: xr.Dataset, dim: str, urls: set[str]) -> set[str]:
    """Return the urls that chunks along a dimension really use; tables may list more."""
    wanted, used = find_urls_along(dataset, dim, urls), set[str]()
    for _, array in list_arrays_along(dataset, dim):
        for fragment in array.fragments:
            if wanted <= used:
                return used
            for _, part in iterate_references(fragment.manifest):
                used |= wanted & {file.url for file in part.pruned().sources}
    return used


def lies_in(array: ManifestArray, urls: set[str]) -> bool:
    """Say whether a chunk of an array lies in some files; tables may list more."""
    if urls.isdisjoint(file.url for file in array.listed_sources):
        return False
    return any(
        not urls.isdisjoint(file.url for file in part.pruned().sources)
        for fragment in array.fragments
        for _, part in iterate_references(fragment.manifest)
    )


def find_positions(dataset: xr.Dataset, dim: str, urls: set[str]) -> npt.NDArray[np.bool_]:
    """Say for every position along a dimension whether data there come from some sources."""
    size = dataset.sizes[dim]
    demand_joinable(size, f"dimension {dim!r} of {size:,} elements")
    found = np.zeros(size, bool)
    if not urls:
        return found
    for axis, array in list_arrays_along(dataset, dim):
        if not urls.isdisjoint(file.url for file in array.listed_sources):
            for slabs, part, edges in iterate_slabs(array, axis):
                numbers = [n for n, file in enumerate(part.files) if file.url in urls]
                mark_slabs(found, edges, slabs[np.isin(part.file, numbers)])
    return found


def iterate_slabs(array: ManifestArray, axis: int) -> Iterator[tuple[Ints, ChunkManifest, Ints]]:
    """Yield the chunks of an array block by block, behind the slab of an axis that each lies in.

    The last item says where the slabs begin and end along the axis.
    """
    for fragment in array.fragments:
        for ids, part in iterate_references(fragment.manifest):
            slabs = np.unravel_index(ids, fragment.manifest.shape)[axis]
            yield np.asarray(slabs, np.int64), part, fragment.edges(axis)


def mark_slabs(found: npt.NDArray[np.bool_], edges: Ints, slabs: Ints) -> None:
    """Mark all positions of some slabs."""
    met = np.zeros(len(edges) - 1, bool)
    met[slabs] = True
    found[edges[0] : edges[-1]] |= np.repeat(met, np.diff(edges))


def find_stretches(dataset: xr.Dataset, dim: str, urls: set[str]) -> dict[str, list[Stretch]]:
    """Return the stretches along a dimension that come from each of some sources.

    Sources without any are not among them.
    """
    found: dict[str, set[Stretch]] = {}
    for axis, array in list_arrays_along(dataset, dim):
        for slabs, part, edges in iterate_slabs(array, axis):
            wanted = np.array([*(file.url in urls for file in part.files), False, False])
            there = np.flatnonzero(wanted[part.file])
            files, where = np.unique(np.stack([part.file[there], slabs[there]]), axis=1)
            ends = zip(edges[where].tolist(), edges[where + 1].tolist(), strict=True)
            for number, stretch in zip(files.tolist(), ends, strict=True):
                found.setdefault(part.files[number].url, set()).add(stretch)
    return {url: _join_stretches(some) for url, some in found.items()}


def _join_stretches(stretches: Iterable[Stretch]) -> list[Stretch]:
    joined: list[Stretch] = []
    for begin, stop in sorted(stretches):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((begin, stop))
    return joined


def find_only_dimension(present: xr.Dataset, urls: set[str]) -> str:
    """Return the only dimension along which sources follow each other."""
    found = list_dims_between(present, urls)
    if len(found) != 1:
        raise ValueError(
            f"append_dim: sources follow each other along {found or 'no dimension'}; name the "
            f"dimension"
        )
    return found[0]


def list_dims_between(present: xr.Dataset, urls: set[str]) -> list[str]:
    """Return the dimensions along which some sources have only a part of the positions."""
    met = {str(dim): find_positions(present, str(dim), urls) for dim in present.dims}
    return [dim for dim, there in met.items() if there.any() and not there.all()]
