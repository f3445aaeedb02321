"""Where new data belong in a set: at an end, by coordinate, or in place of existing sources."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.chunks.projection import find_runs
from virtualds.datasets.duplicates import borders_copies
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.source_positions import find_positions, lies_in, urls_of
from virtualds.errors import CombineError

Stretch = tuple[int, int]
"""Start and stop along a dimension."""


# ---------------------------------------------------------------------- placing new data


def cut_along(dataset: xr.Dataset, dim: str, stretch: Stretch) -> xr.Dataset:
    """Return the part of a dataset that a stretch along a dimension covers."""
    return dataset.isel({dim: slice(*stretch)})


def _place_by_coordinate(
    present: xr.Dataset, added: Sequence[xr.Dataset], dim: str
) -> list[xr.Dataset]:
    """Cut the set and the new data so that the coordinate stays monotonic."""
    sign = _find_direction(present, dim)
    index = present.indexes[dim]
    runs = [run for part in added for run in _find_runs_between(part, index, dim, sign)]
    runs.sort(key=lambda run: run[1], reverse=sign == -1)
    pieces, last = [], 0
    for place, _, part in runs:
        pieces += [cut_along(present, dim, (last, place)), part]
        last = place
    pieces.append(cut_along(present, dim, (last, index.size)))
    joined = [piece for piece in pieces if piece.sizes[dim]]
    _check_order(joined, dim, sign)
    return joined


def _find_direction(present: xr.Dataset, dim: str) -> int:
    """Return 1 if the coordinate of the set increases, -1 if it decreases."""
    if dim not in present.indexes:
        raise CombineError(
            f"position='coordinate': the set has no index along {dim!r}; append at an end"
        )
    index = present.indexes[dim]
    if index.is_monotonic_increasing:
        return 1
    if index.is_monotonic_decreasing:
        return -1
    raise CombineError(
        f"position='coordinate': the coordinate {dim!r} of the set is not monotonic; append "
        f"at an end"
    )


def _find_runs_between(
    part: xr.Dataset, index: pd.Index[Any], dim: str, sign: int
) -> Iterator[tuple[int, Any, xr.Dataset]]:
    """Yield the runs of new data with no data of the set between them.

    Each run comes with the position of the set that it goes before, its first value, and its data.
    """
    values = part.indexes[dim]
    place = np.asarray(index[::sign].searchsorted(values))
    place = place if sign == 1 else index.size - place
    before, after = (values[:-1], values[1:])[::sign]
    turns = np.asarray(after < before)
    cuts = [0, *(np.flatnonzero((np.diff(place) != 0) | turns) + 1).tolist(), values.size]
    for begin, stop in pairwise(cuts):
        yield int(place[begin]), values[begin], cut_along(part, dim, (begin, stop))


def _check_order(pieces: Sequence[xr.Dataset], dim: str, sign: int) -> None:
    """Refuse parts that overlap, because no order of them is monotonic."""
    for left, right in pairwise(pieces):
        a, b = left.indexes[dim][-1], right.indexes[dim][0]
        if not (a < b if sign == 1 else a > b):
            raise CombineError(
                f"position='coordinate': {a} and {b} along {dim!r} overlap; sort the new dataset, "
                f"or leave out what overlaps"
            )


POSITIONS: dict[str, Callable[[xr.Dataset, Sequence[xr.Dataset], str], list[xr.Dataset]]] = {
    "end": lambda present, added, dim: [present, *added],
    "start": lambda present, added, dim: [*added, present],
    "coordinate": _place_by_coordinate,
}
"""Functions that order the set and the new data, by ``position``."""


def pair_stretches(
    present: xr.Dataset, new: xr.Dataset, dim: str
) -> list[tuple[Stretch, xr.Dataset]]:
    """Return the stretches of the set to replace, with their replacements."""
    known = urls_of(present)
    shared = urls_of(new) & known
    if not shared:
        return [(_find_stretch_of_values(present, new, dim), new)]
    if unknown := sorted(urls_of(new) - known):
        raise CombineError(
            f"replace-source: {unknown[0]} is not a source of the set; append it "
            f"(append_dim={dim!r})"
        )
    return [_pair_source(present, new, dim, url) for url in sorted(shared)]


def _pair_source(
    present: xr.Dataset, new: xr.Dataset, dim: str, url: str
) -> tuple[Stretch, xr.Dataset]:
    run = _find_one_run(find_positions(new, dim, {url}), url, "the new dataset")
    part = cut_along(new, dim, run)
    there = _find_one_run(find_positions(present, dim, {url}), url, "the set")
    if not borders_copies(present, dim, *there):
        return there, part
    found = _find_stretch_of_values(present, part, dim)
    if found[0] > there[0] or found[1] < there[1]:
        raise CombineError(
            f"replace-source: positions {there[0]} to {there[1]} along {dim!r} of the set come "
            f"from {url}, and chunks beside them were rewritten or are held in the set, but the "
            f"new dataset has other values of {dim!r}, so that nothing says what it replaces; "
            f"write the set anew (mode='w')"
        )
    return found, part


def _find_one_run(met: npt.NDArray[np.bool_], url: str, where: str) -> Stretch:
    runs = find_runs(np.flatnonzero(met))
    if len(runs) != 1:
        raise CombineError(
            f"replace-source: {url} has {len(runs)} stretches of {where}; it can be replaced where "
            f"it has one"
        )
    return runs[0]


def _find_stretch_of_values(present: xr.Dataset, new: xr.Dataset, dim: str) -> Stretch:
    """Return where the set has the values of the new coordinate."""
    if dim in present.indexes and dim in new.indexes and present.indexes[dim].is_unique:
        found = present.indexes[dim].get_indexer(new.indexes[dim])
        if found.size and found[0] >= 0 and (np.diff(found) == 1).all():
            return int(found[0]), int(found[-1]) + 1
    raise CombineError(
        f"replace-source: the set has neither the sources of the new dataset nor its values "
        f"along {dim!r} as one stretch; append it (append_dim={dim!r})"
    )


def find_replaced_static(
    present: xr.Dataset, new: xr.Dataset, dim: str | None
) -> dict[Hashable, Any]:
    """Return variables without the dimension whose source in the set is replaced."""
    urls = urls_of(new)
    static = {
        name: variable
        for name, variable in new.variables.items()
        if dim not in variable.dims
        and name in present.variables
        and (array := get_virtual_array(present.variables[name])) is not None
        and lies_in(array, urls)
    }
    for name, variable in static.items():
        _check_sizes(present.drop_vars(list(static)), name, variable)
    return static


def _check_sizes(others: xr.Dataset, name: Hashable, variable: xr.Variable) -> None:
    for dim, size in variable.sizes.items():
        if others.sizes.get(dim, size) != size:
            raise CombineError(
                f"replace-source: {name!r} has {size} elements along {dim!r} now, other variables "
                f"of the set have {others.sizes[dim]}; write the set anew (mode='w')"
            )
