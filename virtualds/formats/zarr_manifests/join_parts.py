"""Join the parts of the manifest of an array, which many additions have left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.reference_table import TiledReferences
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr_manifests.source_table import RECORD_SIZE

MOST_JSON = 4096
"""Most chunks of an array whose manifest goes into JSON, and of a part that is small."""


def join_small_parts(
    parts: list[ManifestPart], is_new: Callable[[ManifestPart], bool]
) -> list[ManifestPart]:
    """Join neighbours that are small, so that small additions do not leave many small tables.

    What workers have just written is left to them: to join it, all of it would be read again here.
    """
    found: list[ManifestPart] = []
    for part in parts:
        joins = bool(found) and not is_new(found[-1]) and not is_new(part)
        axis = _find_small_joint(found[-1], part) if joins else None
        if axis is None:
            found.append(part)
        else:
            joined = ChunkManifest.concatenate([found[-1].manifest, part.manifest], axis)
            found[-1] = found[-1]._replace(manifest=joined)
    return found


def join_all_parts(parts: list[ManifestPart]) -> list[ManifestPart]:
    """Join all neighbours, of any size, until no two of them make a box."""
    found, before = list(parts), len(parts) + 1
    while len(found) < before:
        before = len(found)
        for axis in reversed(range(max((len(part.origin) for part in found), default=0))):
            found = _join_along(found, axis)
    return found


def _join_along(parts: list[ManifestPart], axis: int) -> list[ManifestPart]:
    """Join parts that follow each other along an axis and agree on the others."""

    def cut(part: ManifestPart) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        origin, shape = part.origin, part.manifest.shape
        return (
            part.fragment,
            origin[:axis] + origin[axis + 1 :],
            shape[:axis] + shape[axis + 1 :],
        )

    # fragments may have fewer axes
    with_axis = [part for part in parts if len(part.origin) > axis]
    found = [part for part in parts if len(part.origin) <= axis]
    ordered = sorted(with_axis, key=lambda part: (*cut(part), part.origin[axis]))
    for _, alike in groupby(ordered, key=cut):
        run: list[ManifestPart] = []
        for part in alike:
            if run and run[-1].origin[axis] + run[-1].manifest.shape[axis] != part.origin[axis]:
                found.append(_join_run(run, axis))
                run = []
            run.append(part)
        found.append(_join_run(run, axis))
    return found


def _join_run(run: Sequence[ManifestPart], axis: int) -> ManifestPart:
    """Return neighbours as one part, whose references are read when they are written."""
    first = run[0]
    if len(run) == 1:
        return first
    manifests = [part.manifest for part in run]
    if any(map(_has_pipelines, manifests)):
        # a table of tiles has none
        return first._replace(manifest=ChunkManifest.concatenate(manifests, axis))
    length = sum(manifest.shape[axis] for manifest in manifests)
    grid = (*first.manifest.shape[:axis], length, *first.manifest.shape[axis + 1 :])
    places = (tuple(np.subtract(part.origin, first.origin).tolist()) for part in run)
    table = TiledReferences(grid, tuple(zip(places, manifests, strict=True)))
    return first._replace(manifest=LazyManifest(table, grid))


def _has_pipelines(manifest: ChunkManifest) -> bool:
    """Say whether chunks may have another pipeline than the first."""
    if isinstance(manifest, LazyManifest):
        return manifest.counting.table.has_pipelines or any(manifest.counting.renumbered or ())
    return bool(manifest.pipeline.any())


def _find_small_joint(left: ManifestPart, right: ManifestPart) -> int | None:
    """Return the axis along which two parts, one of them small, fit into a record, or None."""
    sizes = sorted((left.manifest.size, right.manifest.size))
    if left.fragment != right.fragment or sum(sizes) > RECORD_SIZE or sizes[0] > MOST_JSON:
        return None
    sides = zip(left.origin, left.manifest.shape, right.origin, right.manifest.shape, strict=True)
    axes = [(axis, a + n == b) for axis, (a, n, b, m) in enumerate(sides) if (a, n) != (b, m)]
    return axes[0][0] if len(axes) == 1 and axes[0][1] else None
