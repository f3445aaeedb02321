"""What has to be known of a file to put it in its place among others: little, of much data."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import xarray as xr

from virtualds.datasets.lazy import is_unread, virtual_data


@dataclass(frozen=True)
class Extent:
    """What has to be known of a file to put it in its place.

    Parameters
    ----------
    file : str
        As errors name it.
    indexes : mapping of str to pandas.Index
        Its coordinates, by dimension.
    variables : mapping of str to names
        Its variables along each dimension; under None, all that are no coordinates.
    scalars : frozenset of str
        Dimensions that it lacks, and has a scalar coordinate for.
    """

    file: str
    indexes: Mapping[Hashable, pd.Index[Any]]
    variables: Mapping[Hashable | None, frozenset[Hashable]]
    scalars: frozenset[Hashable] = frozenset()

    @classmethod
    def of(
        cls, file: Any, opened: xr.Dataset | xr.DataTree, joined: Iterable[Hashable] = ()
    ) -> Extent:
        """Return the extent of the dataset, or tree, of a file.

        A tree has the coordinates in which all its groups with that dimension agree. Of a dimension
        that is ``joined``, and that the file lacks, a scalar of that name is the coordinate.
        """
        groups = _groups(opened)
        indexes: dict[Hashable, Any] = {}
        for group in groups.values():
            for dim in group.dims:
                index = _index(group, dim)
                known = indexes.setdefault(dim, index)
                if known is None or index is None or not known.equals(index):
                    indexes[dim] = None
        variables = [(path, n, v) for path, g in groups.items() for n, v in g.variables.items()]
        along: dict[Hashable | None, frozenset[Hashable]] = {
            dim: frozenset((path, n) for path, n, v in variables if dim in v.dims)
            for dim in indexes
        }
        data = frozenset((path, n) for path, g in groups.items() for n in g.data_vars)
        lacking = {dim: _scalar(groups, dim) for dim in joined if dim not in indexes}
        scalars = {dim: index for dim, index in lacking.items() if index is not None}
        indexes, along = indexes | scalars, along | dict.fromkeys(scalars, data)
        known_indexes = {dim: index for dim, index in indexes.items() if index is not None}
        return cls(str(file), known_indexes, {**along, None: data}, frozenset(scalars))


def _groups(opened: xr.Dataset | xr.DataTree) -> dict[str, xr.Dataset]:
    if isinstance(opened, xr.Dataset):
        return {"/": opened}
    return {node.path: node.to_dataset() for node in opened.subtree}


def _scalar(groups: Mapping[str, xr.Dataset], name: Hashable) -> pd.Index[Any] | None:
    """Return a scalar coordinate as what it is once datasets are stacked along it."""
    found = [group.coords[name].variable for group in groups.values() if name in group.coords]
    held = [v for v in found if not v.dims and virtual_data(v) is None and not is_unread(v)]
    indexes = [xr.Variable(("_",), v.values.reshape(1)).to_index() for v in held]
    same = bool(found) and len(held) == len(found) and all(map(indexes[0].equals, indexes))
    return indexes[0] if same else None


def _index(dataset: xr.Dataset, dim: Hashable) -> pd.Index[Any] | None:
    """Return the coordinate of a dimension, if it has one that is in memory."""
    index = dataset.xindexes.get(dim)
    if isinstance(index, xr.indexes.PandasMultiIndex):
        return None
    return index.index if isinstance(index, xr.indexes.PandasIndex) else None
