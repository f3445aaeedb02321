"""Parts of a manifest that lie over each other: how few new references join many old ones.

A fill of a region adds one small table of references, with the number of the chunk of each, and
leaves older tables as they are. Small tables are joined with the next one, so that many fills leave
few tables, and each reference is written a few times at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from virtualds.chunks.manifest import ChunkManifest, gather_references
from virtualds.chunks.projection import Ints
from virtualds.chunks.tables import PlacedReferences, TiledReferences, is_sparse, split_layers
from virtualds.errors import FormatError
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr_manifests.parquet_table import ParquetTable
from virtualds.formats.zarr_manifests.source_table import RECORD_SIZE

SMALL_TABLE = 4096
"""References of a table that is always joined with the next one."""

IsStored = Callable[[ChunkManifest], bool]
"""Says whether a manifest counts the rows of a table of the set that is written."""


# ---------------------------------------------------------------------- reading


def lay_parts(
    parts: list[ManifestPart], grids: list[tuple[int, ...]], pipelines: int
) -> list[ManifestPart]:
    """Return parts of which none lie over each other: one for each fragment where some do.

    Parameters
    ----------
    parts : list of ManifestPart
        The last one that has a chunk counts.
    grids : list of tuple of int
        Chunks per axis of every fragment.
    pipelines : int
        Number of pipelines of the array.
    """
    layered = {part.fragment for part in parts if _is_placed(part.manifest)}
    found = [part for part in parts if part.fragment not in layered]
    for fragment in sorted(layered):
        own = [part for part in parts if part.fragment == fragment]
        found.append(_lay_fragment(own, grids[fragment], pipelines))
    return found


def _is_placed(manifest: ChunkManifest) -> bool:
    table = manifest.table_of(ParquetTable)
    return table is not None and table.begins is not None


def _lay_fragment(parts: list[ManifestPart], grid: tuple[int, ...], count: int) -> ManifestPart:
    used = {n for part in parts for n in part.manifest.used_pipelines(count).tolist()}
    if len(used) != 1:
        raise FormatError(
            f"chunks of fragment {parts[0].fragment} lie over each other and are decoded in "
            f"{len(used)} ways; the set is damaged"
        )
    layers = tuple((p.origin, p.manifest.with_pipelines([0] * count)) for p in parts)
    whole = ChunkManifest.of_table(TiledReferences(grid, layers), grid)
    return ManifestPart(parts[0].fragment, (0,) * len(grid), whole.with_pipelines([used.pop()]))


# ---------------------------------------------------------------------- writing


def arrange_layers(
    parts: Iterable[ManifestPart], is_stored: IsStored, pipelines: bool
) -> Iterator[ManifestPart]:
    """Yield parts as they are written, each as one table.

    Parameters
    ----------
    parts : iterable of ManifestPart
        None lie over each other.
    is_stored : callable
    pipelines : bool
        Whether the array has pipelines, of which missing chunks have one too.

    Yields
    ------
    ManifestPart
        With a manifest that lies in the set, with one of its box that has few references, which are
        written with the number of their chunk, or with one of which all rows are written.
    """
    for part in parts:
        used = part.manifest.used_pipelines(2)
        if used.size != 1 or not _has_layers(part.manifest, is_stored):
            yield part
        else:
            yield from _place_layers(part, _join_layers(part.manifest, is_stored), pipelines)


def flatten_layers(parts: Iterable[ManifestPart], pipelines: bool) -> Iterator[ManifestPart]:
    """Yield each part as one table, whatever lies in the set already."""
    for part in parts:
        known = part.manifest.find_existing()
        if (
            known is None
            or not is_sparse(part.manifest.size, known.size)
            or part.manifest.used_pipelines(2).size != 1
        ):
            yield part
        else:
            whole = _OldLayer((0,) * len(part.manifest.shape), part.manifest)
            found = [_gather_layer(whole, part.manifest.shape)] if known.size else []
            yield from _place_layers(part, found, pipelines)


def count_layers(part: ManifestPart) -> int:
    """Count the tables that a part is written in."""
    return max(len(split_layers(part.manifest)), 1)


def _place_layers(
    part: ManifestPart, layers: Sequence[_OldLayer | _NewLayer], pipelines: bool
) -> Iterator[ManifestPart]:
    """Yield the layers of a part where they lie in the array."""
    if not layers and pipelines:
        # a table without rows says how missing chunks are decoded
        layers = [_NewLayer(np.zeros(0, np.int64), ChunkManifest.missing((0,)))]
    [used] = part.manifest.used_pipelines(2).tolist()
    for layer in layers:
        origin, manifest = layer
        if isinstance(layer, _NewLayer):
            origin, manifest = layer.place(part.manifest.shape, used)
        moved = tuple(a + b for a, b in zip(part.origin, origin, strict=True))
        yield ManifestPart(part.fragment, moved, manifest)


def _has_layers(manifest: ChunkManifest, is_stored: IsStored) -> bool:
    """Say whether a manifest consists of layers, or of few references on a huge grid."""
    if is_stored(manifest):
        return False
    if manifest.table_of(TiledReferences) is not None:
        return True
    known = manifest.find_existing()
    return known is not None and is_sparse(manifest.size, known.size)


class _OldLayer(NamedTuple):
    """A manifest that is written as it is, and where it begins."""

    origin: tuple[int, ...]
    manifest: ChunkManifest


class _NewLayer(NamedTuple):
    """References that are written with the numbers of their chunks, which rise."""

    numbers: Ints
    rows: ChunkManifest

    def under(self, upper: _NewLayer) -> _NewLayer:
        """Return these references with others laid over them."""
        kept = np.flatnonzero(~np.isin(self.numbers, upper.numbers, assume_unique=True))
        numbers = np.concatenate([self.numbers[kept], upper.numbers])
        rows = ChunkManifest.concatenate([self.rows.at(kept), upper.rows], 0)
        order = np.argsort(numbers)
        return _NewLayer(numbers[order], rows.at(order))

    def place(self, grid: tuple[int, ...], pipeline: int) -> _OldLayer:
        """Return the smallest box of a grid with all these chunks."""
        places = np.stack(np.unravel_index(self.numbers, grid))
        low = places.min(1, initial=max(grid)) if self.numbers.size else np.zeros(len(grid), int)
        box = tuple((places.max(1, initial=0) - low + 1).tolist())
        numbers = np.asarray(np.ravel_multi_index(tuple(places - low[:, None]), box), np.int64)
        placed = PlacedReferences(numbers, self.rows, pipeline)
        return _OldLayer(tuple(low.tolist()), ChunkManifest.of_table(placed, box))


def _join_layers(manifest: ChunkManifest, is_stored: IsStored) -> list[_OldLayer | _NewLayer]:
    """Return the layers of a manifest, new ones as few as possible."""
    found: list[_OldLayer | _NewLayer] = []
    for origin, layer in split_layers(manifest):
        if is_stored(layer) or _is_full(layer):
            found.append(_OldLayer(origin, layer))
            continue
        new = _gather_layer(_OldLayer(origin, layer), manifest.shape)
        last = found[-1] if found else None
        if isinstance(last, _NewLayer):
            found[-1] = last.under(new)
        elif new.numbers.size:
            found.append(new)
    while len(found) > 1 and _are_joined(found[-2], found[-1]):
        last, before = found.pop(), found.pop()
        if isinstance(last, _NewLayer) and isinstance(before, _OldLayer):
            found.append(_gather_layer(before, manifest.shape).under(last))
    return found


def _is_full(manifest: ChunkManifest) -> bool:
    """Say whether all rows of a manifest are to be written, since few chunks may be missing."""
    known = manifest.find_existing()
    return manifest.size > RECORD_SIZE and (
        known is None or not is_sparse(manifest.size, known.size)
    )


def _are_joined(before: _OldLayer | _NewLayer, last: _OldLayer | _NewLayer) -> bool:
    """Say whether a small table of the set is written again, joined with new references."""
    if not (isinstance(before, _OldLayer) and isinstance(last, _NewLayer)):
        return False
    table = before.manifest.table_of(ParquetTable)
    if table is None or table.begins is None:
        return False
    old, new = table.rows, last.numbers.size
    return old <= max(2 * new, SMALL_TABLE) and old + new <= RECORD_SIZE


def _gather_layer(layer: _OldLayer, grid: tuple[int, ...]) -> _NewLayer:
    """Return the references of a layer by the numbers of their chunks in a grid."""
    ids, rows = gather_references(layer.manifest)
    inner = np.stack(np.unravel_index(ids, layer.manifest.shape))
    places = tuple(inner + np.reshape(layer.origin, (-1, 1)))
    return _NewLayer(np.asarray(np.ravel_multi_index(places, grid), np.int64), rows)
