"""Combining datasets block by block, where that gives what combining them at once gives.

Blocks of neighbours are combined, and then blocks of blocks. That is the same where the outcome of
joining neighbours does not depend on what else there is. Under which options it does not is the
table `NEIGHBOURLY`; that datasets are alike in structure is looked at here. Everything else is
refused with an `UnlikeError`: it is to be combined at once, in one place.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

from virtualds.building.combining import WRONG, Combination
from virtualds.lazy import virtual_data

NEIGHBOURLY: dict[str, tuple[Any, ...]] = {
    # "different" looks at all datasets to decide for each
    "data_vars": ("minimal", "all"),
    "coords": ("minimal", "all"),
    # "no_conflicts" compares with the first dataset what later ones fill in, "identical" also
    # attributes, which joining may have changed
    "compat": ("equals", "override"),
    # "left" and "right" lose of a block what its own first or last dataset does not have, and
    # "inner" leaves it to the order of unsorted ones in which order elements come
    "join": ("outer", "exact", "override"),
    # "drop_conflicts" forgets what it has dropped, and nobody knows what a function does
    "combine_attrs": ("override", "drop", "no_conflicts", "identical"),
}
"""Options, all of which must be given, by which neighbours are joined whatever else there is."""

WIDENED = "SUiuf"
"""Kinds of dtypes, as numpy calls them, that may differ in width."""
RISING, FALLING = 1, -1
Schema = tuple[tuple[Any, ...], ...]


class UnlikeError(Exception):
    """Datasets of which it is not certain that they combine by blocks as they do at once."""


class Place(NamedTuple):
    """Where a block lies along the dimension by whose coordinate datasets are ordered.

    ``first`` and ``last`` are the first values of its first and of its last dataset, ``directions``
    those in which the coordinate of each of them may be said to go, and ``sorted`` the one in which
    they were joined. Of a block of one dataset, the dimension is not known: they are None.
    """

    dim: Hashable | None = None
    first: Any = None
    last: Any = None
    directions: frozenset[int] = frozenset()
    sorted: int | None = None


NOWHERE = Place()


@dataclass(frozen=True)
class Block:
    """Neighbours that have been combined.

    Parameters
    ----------
    dataset : Dataset
    schema : tuple
        That of every one of them; see `schema_of`.
    place : Place
        Where they lie, if that is told by coordinates.
    """

    dataset: xr.Dataset
    schema: Schema
    place: Place = NOWHERE


@dataclass(frozen=True)
class Tree:
    """Combines datasets into blocks, and blocks into the whole.

    Parameters
    ----------
    combination : Combination
        How all of them are to be combined.

    Raises
    ------
    UnlikeError
        It does not go by blocks.
    """

    combination: Combination

    def __post_init__(self) -> None:
        said = self.combination
        if said.combine == "nested" and not isinstance(said.concat_dim, str):
            raise UnlikeError(f"they are joined along {said.concat_dim!r}")
        for name, value in said.options.items():
            if name not in NEIGHBOURLY or not isinstance(value, str):
                raise UnlikeError(f"{name}={value!r}")
            if value not in NEIGHBOURLY[name]:
                raise UnlikeError(f"{name}={value!r}")
        if missing := NEIGHBOURLY.keys() - said.options.keys():
            raise UnlikeError(f"nothing is said of {min(missing)}")

    @property
    def is_ordered(self) -> bool:
        """Whether coordinates say in which order datasets come."""
        return self.combination.combine == "by_coords"

    def block(self, datasets: Sequence[xr.Dataset]) -> Block:
        """Combine neighbours.

        Raises
        ------
        UnlikeError
            They are not alike, or do not combine: at once, xarray says why.
        """
        schema = schema_of(datasets[0])
        return self.join([Block(dataset, schema_of(dataset)) for dataset in datasets], schema)

    def join(self, blocks: Sequence[Block], schema: Schema | None = None) -> Block:
        """Combine neighbouring blocks.

        Raises
        ------
        UnlikeError
            They are not alike, or do not combine: at once, xarray says why.
        """
        schema = blocks[0].schema if schema is None else schema
        if any(block.schema != schema for block in blocks):
            raise UnlikeError("their variables differ")
        dim, place = self.combination.concat_dim, NOWHERE
        if self.is_ordered and len(blocks) == 1:
            return blocks[0]
        try:
            if self.is_ordered:
                blocks, place = in_order(blocks)
                dim = place.dim
            parts = [block.dataset for block in blocks]
            if any(_dims_of(part) != _dims_of(parts[0]) for part in parts[1:]):
                raise UnlikeError("a coordinate was stacked along a new dimension in some of them")
            joined: xr.Dataset = self.combination.along(parts, dim)
        except WRONG as error:
            raise UnlikeError(str(error)) from error
        return Block(joined, schema, place)

    def finished(self, block: Block) -> xr.Dataset:
        """Return the block of all datasets as the dataset that combining them at once gives.

        Raises
        ------
        UnlikeError
            The order of the datasets is not that of their coordinate.
        """
        if not self.is_ordered:
            return block.dataset
        if block.place.dim is not None:
            index = block.dataset.indexes[block.place.dim]
            if not (index.is_monotonic_increasing or index.is_monotonic_decreasing):
                raise UnlikeError(f"{block.place.dim!r} goes up and down")
        # what it does besides joining along a dimension, it does to one dataset as well
        found: Any = xr.combine_by_coords([block.dataset], **self.combination.options)
        whole: xr.Dataset = found
        return whole


def _dims_of(dataset: xr.Dataset) -> dict[Hashable, tuple[Hashable, ...]]:
    return {name: variable.dims for name, variable in dataset.variables.items()}


def schema_of(dataset: xr.Dataset) -> Schema:
    """Return what decides how the variables of a dataset are combined with those of others."""
    return tuple(
        (name, variable.dims, _kind(variable), name in dataset.coords, name in dataset.xindexes)
        for name, variable in dataset.variables.items()
    )


def _kind(variable: xr.Variable) -> tuple[str, bool]:
    # within a kind the widest wins, in any order; between kinds numpy goes by who meets whom
    name = variable.dtype.kind if variable.dtype.kind in WIDENED else variable.dtype.str
    return name, virtual_data(variable) is not None


# ---------------------------------------------------------------------- by coordinates


def in_order(blocks: Sequence[Block]) -> tuple[list[Block], Place]:
    """Return blocks in the order of their coordinate, and where all of them lie.

    Raises
    ------
    UnlikeError
        Coordinates differ along no or several dimensions, or blocks do not lie apart.
    """
    dim = _dimension(blocks)
    places = [_place(block, dim) for block in blocks]
    directions = frozenset.intersection(*(place.directions for place in places))
    if not directions:
        raise UnlikeError(f"{dim!r} goes up in some and down in others")
    direction = RISING if RISING in directions else FALLING
    if any(place.sorted not in (None, direction) for place in places):
        raise UnlikeError(f"blocks were sorted along {dim!r} in another direction")
    order = sorted(range(len(blocks)), key=lambda n: places[n].first, reverse=direction == FALLING)
    for one, other in pairwise(order):
        end, begin = places[one].last, places[other].first
        # of two that begin alike, xarray says that they are no line
        if not (end < begin if direction == RISING else end > begin):
            raise UnlikeError(f"blocks along {dim!r} do not lie apart")
    first, last = places[order[0]].first, places[order[-1]].last
    return [blocks[n] for n in order], Place(dim, first, last, directions, direction)


def _dimension(blocks: Sequence[Block]) -> Hashable:
    """Return the only dimension along which the coordinates of blocks differ."""
    first = blocks[0].dataset
    if any(dim in first.variables and dim not in first.indexes for dim in first.dims):
        raise UnlikeError("a dimension has a coordinate without an index")
    differing = {
        dim
        for dim in first.dims
        if dim in first.indexes
        and any(not b.dataset.indexes[dim].equals(first.indexes[dim]) for b in blocks[1:])
    }
    differing |= {block.place.dim for block in blocks} - {None}
    if len(differing) != 1:
        raise UnlikeError(f"coordinates differ along {sorted(map(str, differing))}")
    [dim] = differing
    return dim


def _place(block: Block, dim: Hashable) -> Place:
    """Return where a block lies along a dimension."""
    if block.place.dim is not None:
        return block.place
    index: pd.Index[Any] = block.dataset.indexes[dim]
    if not index.size:
        raise UnlikeError(f"it has no elements along {dim!r}")
    directions = {RISING} if index.is_monotonic_increasing else set[int]()
    directions |= {FALLING} if index.is_monotonic_decreasing else set()
    return Place(dim, index[0], index[0], frozenset(directions))
