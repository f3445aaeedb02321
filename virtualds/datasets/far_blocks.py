"""Blocks of dask for far arrays, and for those of very many chunks: several stored chunks each.

dask runs as many tasks at a time as there are threads. With a chunk in each block, as many requests
are on their way, and a server that is 20 ms away answers two threads a hundred times a second. A
block of many chunks sends their requests together, and joins those that are neighbours in a file.
And a million tasks take dask minutes, wherever the chunks lie, or where most of them are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from math import prod
from typing import Any, NamedTuple, overload

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.alignment import LARGE_BLOCK, to_preferred_chunks
from virtualds.errors import VirtualdsError
from virtualds.options import MIB
from virtualds.source_file import SourceFile
from virtualds.stores import find_store

FAR_BLOCK = 32 * MIB
"""Decoded bytes that chunks are joined to."""
MOST_TASKS = 100_000
"""Chunks of a near array that are blocks of their own; more are joined as far ones are."""

Lengths = int | tuple[int, ...]
"""Lengths of chunks along a dimension: all but the last alike, or each."""


class ChunkGrid(NamedTuple):
    """The stored chunks of one variable."""

    lengths: Mapping[Hashable, Lengths]
    array: ManifestArray

    @property
    def counts(self) -> dict[Hashable, int]:
        """How many chunks there are along every dimension."""
        return {
            dim: -(-size // max(n, 1)) if isinstance(n, int) else len(n)
            for (dim, n), size in zip(self.lengths.items(), self.array.shape, strict=True)
        }

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of the largest chunk."""
        longest = (n if isinstance(n, int) else max(n) for n in self.lengths.values())
        sizes = map(min, longest, self.array.shape)
        return prod(sizes) * self.array.dtype.itemsize

    def count_together(self) -> dict[Hashable, int]:
        """Return how many chunks along every dimension may make a block.

        They have `FAR_BLOCK` bytes at most, and are joined along the last dimensions first, since
        these are mostly neighbours in a file. xarray combines these blocks with the ones that a
        user wants along other dimensions, all of it at worst. So that this makes no block
        of more than `LARGE_BLOCK`, a dimension keeps as many blocks as that goes into the array.
        """
        found = {}
        least = max(1, -(-self.array.nbytes // LARGE_BLOCK))
        room = FAR_BLOCK // max(self.chunk_nbytes, 1)
        for dim, count in reversed(self.counts.items()):
            found[dim] = max(1, min(room, count // least))
            room //= found[dim]
        return found


Together = Mapping[tuple[Hashable, Lengths], int]
"""How many chunks make a block, by dimension and lengths."""


class PreferredChunks(dict[Hashable, Lengths]):
    """The chunks that are stored, as ``encoding["preferred_chunks"]``; to xarray, blocks.

    xarray asks for the sizes along all dimensions that a user leaves to the backend by
    ``get(dim, size)``. These may be more than one chunk. What it asks for otherwise are the
    chunks that requested blocks should not cut, and about which it warns.

    Parameters
    ----------
    lengths : mapping
    count_together : callable
        Returns how many chunks make a block.
    """

    def __init__(
        self, lengths: Mapping[Hashable, Lengths], count_together: Callable[[], Together]
    ) -> None:
        super().__init__(lengths)
        self._count_together = count_together

    @overload
    def get(self, dim: Hashable, default: None = None, /) -> Lengths | None: ...
    @overload
    def get(self, dim: Hashable, default: Any, /) -> Any: ...
    def get(self, dim: Hashable, default: Any = None, /) -> Any:
        """Return the sizes of blocks where a default is given, else those of chunks."""
        lengths = super().get(dim, default)
        if default is None or dim not in self:
            return lengths
        together = self._count_together().get((dim, lengths), 1)
        if isinstance(lengths, int) or together == 1:
            return lengths * together if isinstance(lengths, int) else lengths
        sums = np.add.reduceat(np.array(lengths), np.arange(0, len(lengths), together))
        return to_preferred_chunks(tuple(sums.tolist()))

    def __deepcopy__(self, memo: object) -> PreferredChunks:
        return PreferredChunks(self, self._count_together)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the stored chunks: blocks are chosen where a dataset is opened."""
        return dict, (dict(self),)


def prefer_far_blocks(
    variables: Mapping[Any, xr.Variable], arrays: Mapping[Any, ManifestArray]
) -> None:
    """Let xarray make blocks of several chunks of those variables whose arrays are far.

    Variables whose chunks have the same lengths along a dimension have the same blocks there.
    Nothing is looked at before xarray asks for the size of a block.
    """
    stored = {name: variables[name].encoding.get("preferred_chunks") for name in arrays}
    known = {
        name: ChunkGrid({dim: lengths[dim] for dim in variables[name].dims}, arrays[name])
        for name, lengths in stored.items()
        if isinstance(lengths, Mapping) and lengths.keys() == set(variables[name].dims)
    }

    @cache
    def count_together() -> Together:
        found: dict[tuple[Hashable, Lengths], int] = {}
        # the array of most chunks tells for all: one look at references does for a dataset
        largest = max(known.values(), key=lambda grid: grid.array.nchunks).array
        if largest.nchunks > MOST_TASKS or is_far(largest):
            for grid in known.values():
                for dim, count in grid.count_together().items():
                    key = dim, grid.lengths[dim]
                    found[key] = min(count, found.get(key, count))
        return found

    for name, grid in known.items():
        variables[name].encoding["preferred_chunks"] = PreferredChunks(grid.lengths, count_together)


def is_far(array: ManifestArray) -> bool:
    """Say whether chunks lie in a store that takes many requests at a time.

    Where references lie in a set, a few are read.
    """
    try:
        file = _find_file(array)
    except (VirtualdsError, OSError):
        # whoever reads the values is told what is wrong
        return False
    return file is not None and find_store(file.url).reach.at_once > 0


def _find_file(array: ManifestArray) -> SourceFile | None:
    """Return a file of the largest fragment, None if it has none where it is looked for."""
    manifest = max((f.manifest for f in array.fragments), key=lambda m: m.size, default=None)
    if manifest is None or not manifest.size:
        return None
    if manifest.is_in_set:
        ids = np.unique([0, manifest.size // 2, manifest.size - 1])
        manifest = manifest.at(ids).pruned()
    return next(iter(manifest.files), None)
