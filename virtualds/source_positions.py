"""Which sources a dataset of virtual arrays has, and where along a dimension.

Tables that lie in a set may list files that no chunk of an array lies in; where that matters, they
are read piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.array import ManifestArray
from virtualds.lazy import virtual_data
from virtualds.lazy_manifest import BLOCK
from virtualds.manifest import ChunkManifest


def arrays_along(dataset: xr.Dataset, dim: str) -> Iterable[tuple[int, ManifestArray]]:
    """Yield the virtual arrays along a dimension, with their axis of it."""
    for variable in dataset.variables.values():
        data = virtual_data(variable)
        if data is not None and dim in variable.dims:
            yield variable.dims.index(dim), data


def urls_of(dataset: xr.Dataset) -> set[str]:
    """Return the urls of all sources, and of those that stored tables list besides."""
    arrays = map(virtual_data, dataset.variables.values())
    return {file.url for array in arrays if array is not None for file in array.listed_sources}


def urls_along(dataset: xr.Dataset, dim: str) -> set[str]:
    """Return the urls of sources that follow each other along a dimension."""
    return {file.url for _, array in arrays_along(dataset, dim) for file in array.listed_sources}


def used_along(dataset: xr.Dataset, dim: str, urls: set[str]) -> set[str]:
    """Return which of some sources chunks along a dimension lie in; tables may list others too."""
    wanted, used = urls & urls_along(dataset, dim), set[str]()
    for axis, array in arrays_along(dataset, dim):
        for fragment in array.fragments:
            if wanted <= used:
                return used
            for part in _blocks_along(fragment.manifest, axis):
                used |= wanted & {file.url for file in part.pruned().sources}
    return used


def lies_in(array: ManifestArray, urls: set[str]) -> bool:
    """Say whether a chunk of an array lies in some files; tables may list others too."""
    if urls.isdisjoint(file.url for file in array.listed_sources):
        return False
    return any(
        not urls.isdisjoint(file.url for file in part.pruned().sources)
        for fragment in array.fragments
        for part in _blocks_along(fragment.manifest, 0)
    )


def positions_of(dataset: xr.Dataset, dim: str, urls: set[str]) -> npt.NDArray[np.bool_]:
    """Say of every position along a dimension whether something at it comes from some sources."""
    found = np.zeros(dataset.sizes[dim], bool)
    if not urls:
        return found
    for axis, array in arrays_along(dataset, dim):
        if not urls.isdisjoint(file.url for file in array.listed_sources):
            for fragment in array.fragments:
                edges = fragment.start[axis] + fragment.axes[axis].slabs().edges
                hits = np.flatnonzero(_slabs_of(fragment.manifest, axis, urls))
                for slab in hits.tolist():
                    found[edges[slab] : edges[slab + 1]] = True
    return found


def _slabs_of(manifest: ChunkManifest, axis: int, urls: set[str]) -> npt.NDArray[np.bool_]:
    """Say of every slab of an axis whether a chunk of it lies in some files."""
    parts = []
    for part in _blocks_along(manifest, axis):
        numbers = [n for n, file in enumerate(part.files) if file.url in urls]
        others = tuple(i for i in range(len(part.shape)) if i != axis)
        parts.append(np.isin(part.file, numbers).any(axis=others))
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def _blocks_along(manifest: ChunkManifest, axis: int) -> Iterable[ChunkManifest]:
    """Yield a manifest piece by piece, each in memory and none of them large."""
    if not manifest.shape:
        yield manifest.loaded()
        return
    count = manifest.shape[axis]
    step = max(1, BLOCK // max(1, manifest.size // max(1, count)))
    for begin in range(0, count, step):
        yield manifest.take(axis, slice(begin, min(begin + step, count))).loaded()
