"""Join the parts of the manifest of an array, which many additions have left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from math import prod

import numpy as np

from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.reference_table import TiledReferences
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr_manifests.source_table import RECORD_SIZE

MOST_JSON = 4096
"""Most chunks of an array whose manifest goes into JSON, and of a part that is small."""
MOST_GROWTH = 4
"""A table is written again, joined with a neighbour, if it is at most so many times as large."""
MOST_SMALL = 16
"""Most neighbouring tables that could be joined, and are left apart."""


def join_small_parts(
    parts: list[ManifestPart],
    is_new: Callable[[ManifestPart], bool],
    is_stored: Callable[[ManifestPart], bool],
) -> list[ManifestPart]:
    """Join neighbours that are small, so that small additions do not leave many small tables.

    A large table that the set has is not written again for a few references: each reference is
    written a few times, not with every addition. What workers have just written is left to them:
    to join it, all of it would be read again here.
    """
    found: list[_Run] = []
    for part in parts:
        found.append(_Run(part, is_new(part), is_stored(part)))
        while len(found) > 1 and (axis := found[-2].find_paying_joint(found[-1])) is not None:
            right = found.pop()
            found[-1].append(right, axis)
    # data that are put between others cut tables
    while True:
        joints = [
            (left.size + right.size, place, axis)
            for place, (left, right) in enumerate(pairwise(found))
            if (axis := left.find_joint(right)) is not None
        ]
        if len(joints) < MOST_SMALL:
            return [run.merge() for run in found]
        _, place, axis = min(joints)
        found[place].append(found.pop(place + 1), axis)


class _Run:
    """Neighbouring parts that are written as one table.

    Parameters
    ----------
    part : ManifestPart
        The first of them.
    is_new : bool
        Whether another process has just written it, so that it stays alone.
    is_stored : bool
        Whether the set has it already.
    """

    def __init__(self, part: ManifestPart, is_new: bool, is_stored: bool) -> None:
        self.parts, self.shape = [part], part.manifest.shape
        self.is_new, self.is_stored = is_new, is_stored
        self._axis: int | None = None

    @property
    def size(self) -> int:
        """Number of chunks."""
        return prod(self.shape)

    def find_joint(self, right: _Run) -> int | None:
        """Return the axis along which two runs, one of them small, fit into a record, or None."""
        small, large = sorted((self.size, right.size))
        one, other = self.parts[0], right.parts[0]
        fits = one.fragment == other.fragment and small + large <= RECORD_SIZE
        if not fits or small > MOST_JSON or self.is_new or right.is_new:
            return None
        sides = zip(one.origin, self.shape, other.origin, right.shape, strict=True)
        axes = [(axis, a + n == b) for axis, (a, n, b, m) in enumerate(sides) if (a, n) != (b, m)]
        return axes[0][0] if len(axes) == 1 and axes[0][1] else None

    def find_paying_joint(self, right: _Run) -> int | None:
        """Return the axis of a joint if no table is written again that is much larger; or None."""
        small, large = sorted((self, right), key=lambda run: run.size)
        pays = not large.is_stored or large.size <= MOST_GROWTH * small.size
        return self.find_joint(right) if pays else None

    def append(self, right: _Run, axis: int) -> None:
        """Take in the neighbour behind it along an axis."""
        if {self._axis, right._axis} <= {None, axis}:
            self.parts += right.parts
        else:
            self.parts = [self.merge(), right.merge()]
        length = self.shape[axis] + right.shape[axis]
        self.shape = (*self.shape[:axis], length, *self.shape[axis + 1 :])
        self.is_stored, self._axis = False, axis

    def merge(self) -> ManifestPart:
        """Return the parts as one."""
        if len(self.parts) == 1:
            return self.parts[0]
        manifests = [part.manifest for part in self.parts]
        return self.parts[0]._replace(
            manifest=ChunkManifest.concatenate(manifests, self._axis or 0)
        )


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
