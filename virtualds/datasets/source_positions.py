"""The sources of a dataset, and their positions along a dimension.

Tables in a set may list files without chunks of an array; where that matters, the references are
read piece by piece.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.bounds import demand_joinable
from virtualds.chunks.columns import drop_repeated_tables
from virtualds.chunks.lazy_manifest import find_listed
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.reference_table import iterate_references
from virtualds.datasets.lazy import get_virtual_array


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
            for fragment in array.fragments:
                edges = fragment.start[axis] + fragment.axes[axis].slabs().edges
                hits = np.flatnonzero(_find_slabs(fragment.manifest, axis, urls))
                for slab in hits.tolist():
                    found[edges[slab] : edges[slab + 1]] = True
    return found


def _find_slabs(manifest: ChunkManifest, axis: int, urls: set[str]) -> npt.NDArray[np.bool_]:
    """Say for every slab of an axis whether a chunk of it lies in some files."""
    found = np.zeros(manifest.shape[axis], bool)
    for ids, part in iterate_references(manifest):
        numbers = [n for n, file in enumerate(part.files) if file.url in urls]
        met = ids[np.isin(part.file, numbers)]
        found[np.unravel_index(met, manifest.shape)[axis]] = True
    return found


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
