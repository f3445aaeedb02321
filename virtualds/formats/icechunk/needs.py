"""What the configuration of an Icechunk repository has to say before references are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from virtualds.formats.icechunk.locations import ObjectLocation, find_containers
from virtualds.formats.zarr.v3_metadata import axes_from_v3
from virtualds.formats.zarr.write_plan import PlannedArray, WritePlan
from virtualds.source_file import SourceFile

SPLIT_REFERENCES = 2**15
"""References of one manifest of an array, about: an append writes no more than these again."""
MOST_SPLITS = 32
"""Manifests of an array that one commit writes: Icechunk looks through all references for each."""


class Split(NamedTuple):
    """Along which axis the manifests of an array are split, and every how many chunks."""

    axis: int
    chunks: int


class Needs(NamedTuple):
    """Places of files by the prefix of their urls, and splits by the path of an array."""

    containers: Mapping[str, ObjectLocation]
    splits: Mapping[str, Split]


NOTHING_NEEDED = Needs({}, {})


def list_needs(
    planned: WritePlan,
    is_own: Callable[[str], bool],
    is_there: Callable[[Any], bool],
    nodes: Mapping[str, Any] | None = None,
) -> Needs:
    """Return what a plan needs.

    Parameters
    ----------
    planned : WritePlan
    is_own : callable
        Takes a url; says whether the file belongs to the repository.
    is_there : callable
        Takes a manifest; says whether the repository has its references already.
    nodes : mapping, optional
        The metadata of what is there, by path.
    """
    arrays = {p: n for p, n in planned.nodes.items() if isinstance(n, PlannedArray)}
    parts = (part for node in arrays.values() for part in node.parts)
    files = (file for p in parts if not is_there(p.manifest) for file in p.manifest.sources)
    outside = dict.fromkeys(file for file in files if not is_own(file.url))
    return Needs(_find_places(outside), dict(_list_splits(planned, arrays, nodes or {})))


def _find_places(files: Mapping[SourceFile, None]) -> dict[str, ObjectLocation]:
    return find_containers((file.url, file.options) for file in files)


def _list_splits(
    planned: WritePlan, arrays: Mapping[str, PlannedArray], nodes: Mapping[str, Any]
) -> Iterator[tuple[str, Split]]:
    for path, node in arrays.items():
        grid = _count_chunks(node.metadata)
        if not grid or not node.parts:
            continue
        group = planned.notes.get("groups", {}).get(path.rpartition("/")[0], {})
        axis = _find_growing(grid, node.metadata, nodes.get(path), group)
        around = max(prod(grid) // max(grid[axis], 1), 1)
        # rounded up, so that there are no more than these
        few = -(-grid[axis] // MOST_SPLITS)
        yield path, Split(axis, max(1, SPLIT_REFERENCES // around, few))


def _find_growing(
    grid: tuple[int, ...], metadata: Mapping[str, Any], there: Any, group: Mapping[str, Any]
) -> int:
    """Return the axis that grows: now, or later where a file says so; else the first one."""
    if there is not None and "chunk_grid" in there:
        before = _count_chunks(there)
        grown = [i for i, (n, m) in enumerate(zip(before, grid, strict=False)) if n < m]
        if grown:
            return grown[0]
    unlimited = group.get("unlimited_dims", ())
    names = metadata.get("dimension_names") or ()
    return next((axis for axis, name in enumerate(names) if name in unlimited), 0)


def _count_chunks(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    axes = axes_from_v3(metadata["shape"], metadata["chunk_grid"])
    return tuple(axis.nchunks for axis in axes)
