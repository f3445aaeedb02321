"""Where new data belong in a set: at an end, by coordinate, or in place of existing sources."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from virtualds.datasets.duplicates import borders, find_copies
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.source_positions import Stretch, find_stretches, lies_in, urls_of
from virtualds.errors import CombineError


class Piece(NamedTuple):
    """A stretch along a dimension, of the set or of the new data."""

    is_new: bool
    begin: int
    stop: int


def cut_along(dataset: xr.Dataset, dim: str, stretch: Stretch) -> xr.Dataset:
    """Return the part of a dataset that a stretch along a dimension covers."""
    return dataset.isel({dim: slice(*stretch)})


def put_between(size: int, new: Iterable[tuple[Stretch, Piece]]) -> list[Piece]:
    """Return the pieces of a set of some size with new ones in place of stretches, which rise."""
    pieces, last = [], 0
    for (begin, stop), piece in new:
        pieces += [Piece(False, last, begin), piece]
        last = stop
    pieces.append(Piece(False, last, size))
    return [piece for piece in pieces if piece.stop > piece.begin]


# ---------------------------------------------------------------------- placing new data


def place_pieces(
    present: xr.Dataset, new: xr.Dataset, runs: Sequence[Stretch], dim: str, position: str
) -> list[Piece]:
    """Return the order of the set and of stretches of new data: at an end, or by coordinate."""
    size = present.sizes[dim]
    if position != "coordinate":
        place = size if position == "end" else 0
        return put_between(size, (((place, place), Piece(True, *run)) for run in runs))
    sign = _find_direction(present, dim)
    index, values = present.indexes[dim], new.indexes[dim]
    found = [
        (place, Piece(True, *run))
        for begin, stop in runs
        for place, run in _find_runs_between(values[begin:stop], begin, index, sign)
    ]
    found.sort(key=lambda item: values[item[1].begin], reverse=sign == -1)
    pieces = put_between(size, (((place, place), piece) for place, piece in found))
    _check_order(pieces, index, values, dim, sign)
    return pieces


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
    values: pd.Index[Any], begin: int, index: pd.Index[Any], sign: int
) -> Iterator[tuple[int, Stretch]]:
    """Yield the runs of new data with no data of the set between them.

    Each run comes behind the position of the set that it goes before; ``begin`` is the position of
    the first of the values.
    """
    place = np.asarray(index[::sign].searchsorted(values))
    place = place if sign == 1 else index.size - place
    before, after = (values[:-1], values[1:])[::sign]
    turns = np.asarray(after < before)
    cuts = [0, *(np.flatnonzero((np.diff(place) != 0) | turns) + 1).tolist(), values.size]
    for first, last in pairwise(cuts):
        yield int(place[first]), (begin + first, begin + last)


def _check_order(
    pieces: Sequence[Piece], index: pd.Index[Any], values: pd.Index[Any], dim: str, sign: int
) -> None:
    """Refuse parts that overlap, because no order of them is monotonic."""
    for left, right in pairwise(pieces):
        a, b = (
            (values if left.is_new else index)[left.stop - 1],
            (values if right.is_new else index)[right.begin],
        )
        if not (a < b if sign == 1 else a > b):
            raise CombineError(
                f"position='coordinate': {a} and {b} along {dim!r} overlap; sort the new dataset, "
                f"or leave out what overlaps"
            )


POSITIONS = ("end", "start", "coordinate")
"""Where new data may go."""


# ---------------------------------------------------------------------- replacing data


def pair_stretches(present: xr.Dataset, new: xr.Dataset, dim: str) -> list[tuple[Stretch, Piece]]:
    """Return the stretches of the set to replace, rising, with their replacements."""
    known = urls_of(present)
    shared = urls_of(new) & known
    if not shared:
        whole = Piece(True, 0, new.sizes[dim])
        return [(_find_stretch_of_values(present, new, dim), whole)]
    if unknown := sorted(urls_of(new) - known):
        raise CombineError(
            f"replace-source: {unknown[0]} is not a source of the set; append it "
            f"(append_dim={dim!r})"
        )
    now, before = (find_stretches(dataset, dim, shared) for dataset in (new, present))
    copies = find_copies(present, dim)
    found = []
    for url in sorted(shared):
        run = _demand_one_run(now.get(url, []), url, "the new dataset")
        there = _demand_one_run(before.get(url, []), url, "the set")
        if borders(copies, there):
            there = _find_stretch_with_copies(present, new, dim, url, run, there)
        found.append((there, Piece(True, *run)))
    return sorted(found)


def _find_stretch_with_copies(
    present: xr.Dataset, new: xr.Dataset, dim: str, url: str, run: Stretch, there: Stretch
) -> Stretch:
    """Return where the set has the values of a source, of which it may have copies."""
    found = _find_stretch_of_values(present, cut_along(new, dim, run), dim)
    if found[0] > there[0] or found[1] < there[1]:
        raise CombineError(
            f"replace-source: positions {there[0]} to {there[1]} along {dim!r} of the set come "
            f"from {url}, and chunks beside them were rewritten or are held in the set, but the "
            f"new dataset has other values of {dim!r}, so that nothing says what it replaces; "
            f"write the set anew (mode='w')"
        )
    return found


def _demand_one_run(runs: Sequence[Stretch], url: str, where: str) -> Stretch:
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
