"""Which file gives which values along one dimension, and in which order, by index arithmetic."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.chunks.projection import Ints
from virtualds.datasets.lazy import get_virtual_array, is_unread


class FileStretch(NamedTuple):
    """A stretch of a file along the dimension."""

    file: int
    start: int
    stop: int


@dataclass(frozen=True)
class DimensionLine:
    """The coordinates of files along one dimension.

    Parameters
    ----------
    indexes : sequence of pandas.Index
        The index of each file, in the given order; at least one.
    """

    indexes: Sequence[pd.Index[Any]]

    def find_order(self) -> Ints:
        """Return the files in the order of their first values, or as given if that is in order.

        Files with decreasing coordinates are ordered to decrease. If values have no order (text,
        missing values, some files increasing and others decreasing), the given order stays.

        Examples
        --------
        >>> line = DimensionLine([pd.Index([5, 6]), pd.Index([1, 2, 3]), pd.Index([8])])
        >>> line.find_order().tolist()
        [1, 0, 2]
        """
        sign = self._direction
        filled = np.flatnonzero(self._sizes)
        firsts = self._codes[self._begins[filled]]
        if sign is None or (sign == 0 and _is_monotonic(firsts)):
            return np.arange(len(self.indexes))
        ordered = filled[np.argsort(firsts * (sign or 1), kind="stable")]
        return np.concatenate([ordered, np.flatnonzero(self._sizes == 0)])

    def find_sharing_pairs(self, order: Ints) -> list[tuple[int, int]]:
        """Return pairs of files with a common value, each after the first file that has it."""
        owners = self._find_owners(order)
        lost = np.flatnonzero(~self._mask_kept(owners))
        pairs = np.stack([owners[self._codes[lost]], self._files[lost]], axis=1)
        _, places = np.unique(pairs, axis=0, return_index=True)
        return [(int(one), int(other)) for one, other in pairs[np.sort(places)]]

    def find_shared(self, first: int, second: int) -> pd.Index[Any]:
        """Return the values that two files have in common, in the order of the second."""
        found = self.indexes[second]
        return found[found.isin(self.indexes[first]) & found.notna()].unique()

    def cut(self, order: Ints) -> list[FileStretch]:
        """Return stretches that have every value once, from the first file in ``order``.

        They follow the coordinate, or, if it has no order, the given order of the files. A file
        without remaining values is an empty stretch.

        Examples
        --------
        >>> line = DimensionLine([pd.Index([1, 2, 3, 4]), pd.Index([2, 3])])
        >>> [tuple(piece) for piece in line.cut(np.array([1, 0]))]
        [(0, 0, 1), (1, 0, 2), (0, 3, 4)]
        """
        kept = np.flatnonzero(self._mask_kept(self._find_owners(order)))
        if self._direction is not None:
            sign = self._direction or (-1 if self._falls_from_file_to_file else 1)
            kept = kept[np.argsort(self._codes[kept] * sign, kind="stable")]
        found = self._find_runs(kept)
        gone = np.setdiff1d(np.arange(len(self.indexes)), [piece.file for piece in found])
        return found + [FileStretch(n, 0, 0) for n in gone.tolist()]

    def _find_runs(self, places: Ints) -> list[FileStretch]:
        """Return elements as stretches of their files."""
        if not places.size:
            return []
        files = self._files[places]
        cuts = np.flatnonzero((np.diff(places) != 1) | (np.diff(files) != 0)) + 1
        begins, ends = np.r_[0, cuts], np.r_[cuts, places.size] - 1
        offsets = self._begins[files[begins]]
        rows = np.stack([files[begins], places[begins] - offsets, places[ends] - offsets + 1])
        return [FileStretch(*row) for row in rows.T.tolist()]

    def _find_owners(self, order: Ints) -> Ints:
        """Return, for every distinct value, the first file that has it."""
        present = self._codes >= 0
        rank = np.argsort(order)[self._files[present]]
        first: Ints = np.full(int(self._codes.max(initial=-1)) + 1, len(self.indexes))
        np.minimum.at(first, self._codes[present], rank)
        owners: Ints = order[first]
        return owners

    def _mask_kept(self, owners: Ints) -> npt.NDArray[np.bool_]:
        """Say for every element whether its file gives this value."""
        kept = self._codes < 0
        kept[~kept] = owners[self._codes[~kept]] == self._files[~kept]
        return kept

    @property
    def _falls_from_file_to_file(self) -> bool:
        firsts = self._codes[self._begins[self._sizes > 0]]
        return firsts.size > 1 and bool((np.diff(firsts) <= 0).all())

    @cached_property
    def _direction(self) -> int | None:
        """Return 1 or -1 if files increase or decrease, 0 if neither, None if they disagree."""
        if not self._is_ordered or (self._codes < 0).any():
            return None
        steps = np.diff(self._codes)[np.diff(self._files) == 0]
        rises, falls = bool((steps >= 0).all()), bool((steps <= 0).all())
        return int(rises) - int(falls) if rises or falls else None

    @cached_property
    def _codes(self) -> Ints:
        """Return a number for every element: equal for equal values, -1 for missing ones."""
        values = self.indexes[0].append(list(self.indexes[1:]))
        codes: Ints = pd.factorize(values, sort=self._is_ordered)[0].astype(np.int64)
        return codes

    @cached_property
    def _sizes(self) -> Ints:
        return np.array([index.size for index in self.indexes], np.int64)

    @cached_property
    def _begins(self) -> Ints:
        """Return where each file begins among all elements."""
        return np.cumsum(self._sizes) - self._sizes

    @cached_property
    def _files(self) -> Ints:
        """Return the file of every element."""
        return np.repeat(np.arange(len(self.indexes)), self._sizes)

    @cached_property
    def _is_ordered(self) -> bool:
        """Say whether the values of all files can be compared."""
        kinds = {_kind_of(index) for index in self.indexes if index.size}
        return len(kinds) == 1 and None not in kinds


def _is_monotonic(values: Ints) -> bool:
    steps = np.diff(values)
    return bool((steps >= 0).all() or (steps <= 0).all())


def _kind_of(index: pd.Index[Any]) -> str | None:
    """Return the kind of values of an index; None if they have no order, like text."""
    if isinstance(index, xr.CFTimeIndex):
        return f"times of the calendar {index.calendar}"
    return KINDS.get(index.dtype.kind)


KINDS = {"i": "numbers", "u": "numbers", "f": "numbers", "M": "dates", "m": "durations"}
"""Kinds of dtypes with ordered values."""


@dataclass(frozen=True)
class Extent:
    """Everything that decides the place of a file.

    Parameters
    ----------
    file : str
        Its name in errors.
    indexes : mapping of str to pandas.Index
        Its coordinates, by dimension.
    variables : mapping of str to names
        Its variables along each dimension; under None, all that are not coordinates.
    scalars : frozenset of str
        Dimensions that the file lacks but has a scalar coordinate for.
    """

    file: str
    indexes: Mapping[Hashable, pd.Index[Any]]
    variables: Mapping[Hashable | None, frozenset[Hashable]]
    scalars: frozenset[Hashable] = frozenset()

    @classmethod
    def of(
        cls, file: Any, opened: xr.Dataset | xr.DataTree, joined: Iterable[Hashable] = ()
    ) -> Extent:
        """Return the extent of the dataset or tree of a file.

        A tree has the coordinates in which all its groups with that dimension agree. If a file
        lacks a ``joined`` dimension, a scalar of that name is the coordinate.
        """
        groups = _list_groups(opened)
        indexes: dict[Hashable, Any] = {}
        for group in groups.values():
            for dim in group.dims:
                index = _find_index(group, dim)
                known = indexes.setdefault(dim, index)
                if known is None or index is None or not known.equals(index):
                    indexes[dim] = None
        variables = [(path, n, v) for path, g in groups.items() for n, v in g.variables.items()]
        along: dict[Hashable | None, frozenset[Hashable]] = {
            dim: frozenset((path, n) for path, n, v in variables if dim in v.dims)
            for dim in indexes
        }
        data = frozenset((path, n) for path, g in groups.items() for n in g.data_vars)
        lacking = {dim: _find_scalar_index(groups, dim) for dim in joined if dim not in indexes}
        scalars = {dim: index for dim, index in lacking.items() if index is not None}
        indexes, along = indexes | scalars, along | dict.fromkeys(scalars, data)
        known_indexes = {dim: index for dim, index in indexes.items() if index is not None}
        return cls(str(file), known_indexes, {**along, None: data}, frozenset(scalars))


def _list_groups(opened: xr.Dataset | xr.DataTree) -> dict[str, xr.Dataset]:
    if isinstance(opened, xr.Dataset):
        return {"/": opened}
    return {node.path: node.to_dataset() for node in opened.subtree}


def _find_scalar_index(groups: Mapping[str, xr.Dataset], name: Hashable) -> pd.Index[Any] | None:
    """Return a scalar coordinate as the index that stacking gives it."""
    found = [group.coords[name].variable for group in groups.values() if name in group.coords]
    held = [v for v in found if not v.dims and get_virtual_array(v) is None and not is_unread(v)]
    indexes = [xr.Variable(("_",), v.values.reshape(1)).to_index() for v in held]
    same = bool(found) and len(held) == len(found) and all(map(indexes[0].equals, indexes))
    return indexes[0] if same else None


def _find_index(dataset: xr.Dataset, dim: Hashable) -> pd.Index[Any] | None:
    """Return the coordinate of a dimension, if it has one in memory."""
    index = dataset.xindexes.get(dim)
    if isinstance(index, xr.indexes.PandasMultiIndex):
        return None
    return index.index if isinstance(index, xr.indexes.PandasIndex) else None
