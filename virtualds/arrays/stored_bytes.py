"""How many bytes the chunks of an array take where they lie."""

from __future__ import annotations

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.columns import MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import compact
from virtualds.chunks.reference_table import iterate_references


def count_stored_bytes(array: ManifestArray) -> int:
    """Return the bytes of all chunks of an array, as they are stored.

    A chunk of which a selection shows a part counts whole.

    Examples
    --------
    >>> array = ManifestArray.from_arrays(
    ...     shape=(2, 4), chunks=(1, 4), dtype="f4", path="s3://bucket/a.nc",
    ...     offsets=[[1000], [1016]], lengths=16,
    ... )
    >>> count_stored_bytes(array)
    32
    """
    return sum(_count_of_manifest(fragment.manifest) for fragment in array.fragments)


def _count_of_manifest(manifest: ChunkManifest) -> int:
    if not manifest.is_loaded:
        return sum(int(part.length.sum()) for _, part in iterate_references(manifest))
    # axes along which nothing changes are counted once
    length, file = compact(manifest.length), compact(manifest.file)
    found = np.where(file == MISSING, 0, length)
    return int(found.sum()) * (manifest.size // max(1, found.size))
