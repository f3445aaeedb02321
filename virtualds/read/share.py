"""Slabs that show one stored chunk are read together.

A strided view, a repeated axis and a broadcast one show a chunk several times. What is alike along
an axis is found before tasks are made, so that a chunk is fetched and decoded once and placed as
often as it is shown; an axis without repeats costs one look at one line of its grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import COLUMNS
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints, Projection

IntColumn = npt.NDArray[np.integer]


def alike_along(
    fragment: Fragment, projections: Sequence[Projection], axis: int
) -> list[Ints] | None:
    """Group the slabs that a projection meets by the chunks that they show; None if all differ.

    The groups hold places in the projection, rising.
    """
    grid = [p.chunk for p in projections]
    if grid[axis].size == 1:
        return None
    line = [ids if i == axis else ids[:1] for i, ids in enumerate(grid)]
    first = _layers(fragment.manifest, line, axis)
    if any(rows.shape[1] == 1 and (rows[1:] > rows[:-1]).all() for rows in first):
        return None
    probe = _mixed(first, grid[axis].size)
    if np.unique(probe).size == probe.size:
        return None
    layers = _layers(fragment.manifest, grid, axis)
    layers.append(projections[axis].encoded.reshape(-1, 1))
    _, shown, group = np.unique(
        _mixed(layers, grid[axis].size), return_index=True, return_inverse=True
    )
    if shown.size == group.size or any((a[shown[group]] != a).any() for a in layers):
        return None
    order = np.argsort(shown[group], kind="stable")
    return np.split(order, np.flatnonzero(np.diff(shown[group][order])) + 1)


def _layers(manifest: ChunkManifest, grid: Sequence[Ints], axis: int) -> list[IntColumn]:
    """Return the columns that change along an axis, as one row for each of its slabs."""
    found = []
    for name in COLUMNS:
        column = getattr(manifest, name)
        if column.strides[axis] == 0:
            continue
        ids = [i[:1] if step == 0 else i for i, step in zip(grid, column.strides, strict=True)]
        found.append(np.moveaxis(column[np.ix_(*ids)], axis, 0).reshape(grid[axis].size, -1))
    return found


def _mixed(layers: Sequence[IntColumn], count: int) -> Ints:
    """Return one number per row, which rows that differ have in common by chance alone."""
    rng = np.random.default_rng(0)
    total = np.zeros(count, np.int64)
    for rows in layers:
        weights = rng.integers(2**62, size=rows.shape[1]) * 2 + 1
        total += rows.astype(np.int64, copy=False) @ weights
    return total
