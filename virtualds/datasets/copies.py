"""Chunks of a set that name no source: rewritten ones in files of the set, and bytes held in it.

A set does not note which source such a chunk was made of.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.chunks.columns import INLINE
from virtualds.chunks.reference_table import iterate_references
from virtualds.datasets.source_positions import (
    find_positions,
    list_arrays_along,
    list_urls_along,
)

SUFFIX = ".chunks"
"""What the name of the folder of rewritten chunks has behind the name of the set."""
_NATIVE = re.compile(r".*/chunks/[0-9A-HJKMNP-TV-Z]{20}")
"""Chunks that an Icechunk repository holds itself: https://icechunk.io/en/latest/reference/spec/."""
_FILE = re.compile(rf"(?P<folder>.*{re.escape(SUFFIX)}/.+/[0-9a-f]{{16}})/[^/]+")


def find_copy_folder(url: str) -> str | None:
    """Return the folder of the rewritten chunks that a file holds; None if it holds none.

    Examples
    --------
    >>> find_copy_folder("file:///refs.json.chunks/t/96aab4ec04814378/2-4.0-0")
    'file:///refs.json.chunks/t/96aab4ec04814378'
    >>> find_copy_folder("file:///2001.nc")
    """
    found = _FILE.fullmatch(url)
    return None if found is None else found["folder"]


def is_copy(url: str) -> bool:
    """Say whether a file holds chunks that a set made itself."""
    return find_copy_folder(url) is not None or _NATIVE.fullmatch(url) is not None


def borders_copies(dataset: xr.Dataset, dim: str, begin: int, stop: int) -> bool:
    """Say whether a position beside a stretch has copies, and no chunk in a source.

    The copies may be of the source of the stretch, which is longer then than its references show.
    """
    sides = ((begin - 1, begin), (stop, stop + 1))
    inside = [slice(*side) for side in sides if side[0] >= 0 and side[1] <= dataset.sizes[dim]]
    return any(find_copies(dataset.isel({dim: side}), dim).any() for side in inside)


def find_copies(dataset: xr.Dataset, dim: str) -> npt.NDArray[np.bool_]:
    """Say for every position whether there are copies, and no chunk in a source."""
    urls = list_urls_along(dataset, dim)
    copies = {url for url in urls if is_copy(url)}
    found = find_positions(dataset, dim, copies)
    for _, array in list_arrays_along(dataset, dim):
        for fragment in array.fragments:
            for _, part in iterate_references(fragment.manifest):
                found |= bool((part.file == INLINE).any())
    return found & ~find_positions(dataset, dim, urls - copies)
