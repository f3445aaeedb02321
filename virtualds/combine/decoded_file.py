"""Datasets as files that are stored decoded, so that alike ones are joined as stored."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.combine.stored_file import FileInConcat, StoredFile
from virtualds.datasets.decoding import VariableDecoding, build_index
from virtualds.datasets.decoding_cache import DecodingPlan, DecodingPlans
from virtualds.datasets.lazy import get_virtual_array, is_unread
from virtualds.datasets.open_options import OpenOptions

_OUTLINES = DecodingPlans()
"""Plans by structure: alike datasets share one, which is pickled once."""
UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError)
"""Errors of pickling attributes of other libraries."""


class DecodedPart(VariableDecoding):
    """A variable that is stored decoded."""

    def decode_array(self, stored: ManifestVariable) -> ManifestArray:
        """Return the array of a variable that stays virtual."""
        array: Any = stored.data
        return array  # type: ignore[no-any-return]

    def decode_values(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values unchanged."""
        return values


@dataclass(frozen=True, eq=False)
class DecodedFile(StoredFile):
    """The dataset of a file, as if it were stored decoded.

    Parameters
    ----------
    indexes : tuple of str
        Names of the indexes, in their order.
    """

    indexes: tuple[Hashable, ...] = ()

    def to_dataset(self) -> xr.Dataset:
        """Return the dataset."""
        group = self.group
        variables: dict[Hashable, xr.Variable] = {
            name: xr.Variable(v.dims, v.data, v.attributes, v.encoding)
            for name, v in group.variables.items()
        }
        indexes: dict[Hashable, xr.Index] = {}
        for name in self.indexes:
            variables[name], indexes[name] = build_index(name, variables[name])
        data = [name for name in variables if name not in self.outline.coordinates]
        found = xr.Coordinates(variables, indexes).to_dataset().reset_coords(data)
        found.attrs, found.encoding = dict(group.attributes), dict(group.encoding)
        return found


def as_stored(url: Any, opened: Any) -> StoredFile | FileInConcat | None:
    """Return an opened file as a file that can be joined, None if that is impossible."""
    if isinstance(opened, StoredFile | FileInConcat):
        return opened
    return decoded_file(url, opened) if isinstance(opened, xr.Dataset) else None


def decoded_file(url: Any, dataset: xr.Dataset) -> DecodedFile | None:
    """Return a dataset as a file; None if a variable is neither virtual nor in memory.

    None also if an index is more than the coordinate of a dimension.
    """
    plain = {n for n, index in dataset.xindexes.items() if type(index) is xr.indexes.PandasIndex}
    if plain != {n for n, v in dataset.variables.items() if v.dims == (n,)}:
        return None
    variables = {
        str(name): ManifestVariable(v.dims, data, v.attrs, v.encoding)  # type: ignore[arg-type]
        for name, v in dataset.variables.items()
        if isinstance(name, str) and (data := _data(v)) is not None
    }
    if len(variables) < len(dataset.variables) or plain != set(dataset.xindexes):
        return None
    outline = _outline(dataset, variables)
    if outline is None:
        return None
    values = {n: v.data for n, v in variables.items() if isinstance(v.data, np.ndarray)}
    group = ManifestGroup(variables, dataset.attrs, encoding=dataset.encoding)
    opening = OpenOptions(decode_cf=False)
    return DecodedFile(url, group, outline, values, opening, indexes=tuple(dataset.xindexes))


def _data(variable: xr.Variable) -> ManifestArray | npt.NDArray[Any] | None:
    """Return virtual data or values in memory, None for other data."""
    if (virtual := get_virtual_array(variable)) is not None:
        return virtual
    if is_unread(variable) or variable.chunks is not None:
        return None
    data = variable.values if isinstance(variable, xr.IndexVariable) else variable.data
    return data if isinstance(data, np.ndarray) and data.dtype == variable.dtype else None


def _outline(dataset: xr.Dataset, variables: dict[str, ManifestVariable]) -> DecodingPlan | None:
    """Return a plan that changes nothing; None if the structure cannot be pickled."""
    described = [
        (name, v.dims, v.data.dtype, isinstance(v.data, np.ndarray), dict(v.attributes))
        for name, v in variables.items()
    ]
    try:
        key = pickle.dumps((described, list(dataset.coords), list(dataset.xindexes)), 5)
    except UNPICKLABLE:
        return None
    if (known := _OUTLINES.get(key)) is None:
        known = DecodingPlan(dict(_parts(variables)), frozenset(dataset.coords), frozenset())
        _OUTLINES.put(key, known)
    return known


def _parts(variables: dict[str, ManifestVariable]) -> Iterator[tuple[str, VariableDecoding]]:
    for name, v in variables.items():
        data: Any = v.data
        yield (
            name,
            DecodedPart(
                name=name,
                stored=(v.dims, data.dtype),
                decoded=(v.dims, data.dtype),
                attributes=v.attributes,
                encoding={},
                declared={},
                inherited={},
                is_loaded=isinstance(data, np.ndarray),
                packing=None,
                decodes=False,
            ),
        )
