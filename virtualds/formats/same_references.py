"""The proof that a set which is written in another way has the references that it had."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from virtualds.chunks.manifest import ChunkManifest, iterate_blocks
from virtualds.errors import FormatError
from virtualds.formats.kerchunk.changed_rows import find_same_rows
from virtualds.formats.zarr.v3_arrays import ManifestPart

BLOCK = 100_000
"""References that are compared at a time."""


def demand_same_parts(
    before: Mapping[str, list[ManifestPart]], after: Mapping[str, list[ManifestPart]], url: str
) -> None:
    """Refuse to commit a set whose references are not, chunk by chunk, those that it had.

    Parameters
    ----------
    before, after : mapping of str to list of ManifestPart
        The parts of each array, joined as far as they can be.
    url : str
        Of the set.

    Raises
    ------
    FormatError
        A reference differs.
    """
    for name in dict.fromkeys([*before, *after]):
        old, new = (sorted(parts.get(name, []), key=_place_of) for parts in (before, after))
        same = list(map(_place_of, old)) == list(map(_place_of, new))
        if not same or not all(map(_is_same, old, new)):
            raise FormatError(
                f"{url}: the references of {name!r} would differ after this change; nothing has "
                f"been written, please report it"
            )


def demand_same_rows(rows: ChunkManifest, written: ChunkManifest, url: str) -> None:
    """Refuse a record that does not hold the references that it was made of.

    Raises
    ------
    FormatError
        A reference differs.
    """
    if not find_same_rows(rows, written).all():
        raise FormatError(
            f"{url}: this record would hold other references; nothing has been written, please "
            f"report it"
        )


def _place_of(part: ManifestPart) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return part.fragment, part.origin, part.manifest.shape


def _is_same(before: ManifestPart, after: ManifestPart) -> bool:
    """Say whether two parts refer to the same bytes in the same way, chunk by chunk."""
    if (
        not before.manifest.is_loaded
        and before.manifest.__reduce__() == after.manifest.__reduce__()
    ):
        # the same rows of the same table
        return True
    for ids, rows in iterate_blocks(before.manifest, most=BLOCK):
        others = after.manifest.at(ids)
        alike = all(
            np.array_equal(getattr(rows, name), getattr(others, name))
            for name in ("pipeline", "checksum")
        )
        if not alike or not find_same_rows(rows, others).all():
            return False
    return True
