"""Arrays whose parts differ only in what missing chunks would read as, if there were any.

A netCDF file without ``_FillValue`` has HDF5's fill value, and a reference set of it has none: the
two are laid end to end whenever a set is appended to.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from virtualds.array import ManifestArray
from virtualds.chunks.columns import MISSING
from virtualds.chunks.manifest import ChunkManifest


def with_one_fill(array: ManifestArray) -> ManifestArray:
    """Return an array with one pipeline, where missing chunks are all that speaks against it.

    Whatever lies in a reference set may be missing there.
    """
    pipelines = array.pipelines
    if len({replace(p, fill=None) for p in pipelines}) != 1 or len(pipelines) == 1:
        return array
    count = len(pipelines)
    filling = {n for f in array.fragments for n in _filling(f.manifest, count)}
    if array.has_gaps or len(filling) > 1:
        return array
    fragments = tuple(
        replace(f, manifest=f.manifest.with_pipelines([0] * count)) for f in array.fragments
    )
    kept = pipelines[filling.pop() if filling else 0]
    return replace(array, pipelines=(kept,), fragments=fragments)


def _filling(manifest: ChunkManifest, count: int) -> list[int]:
    """Return the pipelines that missing chunks have, or may have, out of ``count``."""
    found: list[int] = manifest.used_pipelines(count).tolist()
    if not manifest.is_in_set:
        manifest = manifest.loaded()
        found = np.unique(manifest.pipeline[manifest.file == MISSING]).tolist()
    return found
