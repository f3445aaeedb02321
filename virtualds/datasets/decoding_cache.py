"""Decoding plans, which groups of equal structure share.

The files of an archive mostly decode alike. A `DecodingPlan` holds how xarray decoded one group,
and applies to every group with equal names, shapes, dtypes, attributes and encoding.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from virtualds.arrays.alike_files import OfEachFile
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.datasets.decoding import (
    VariableDecoding,
    encoding_of,
    is_dated,
    name_variable_in_errors,
)


@dataclass(frozen=True, eq=False)
class DecodingPlan:
    """How the variables of a group decode.

    Parameters
    ----------
    parts : dict of str to Part
        By name of the stored variable.
    coordinates : frozenset
        Names of the coordinates.
    used : frozenset of str
        Attributes of the group that decoding consumes.
    """

    parts: Mapping[str, VariableDecoding]
    coordinates: frozenset[Hashable]
    used: frozenset[str]

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return _unpickle_plan, (self._pickled,)

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps((self.parts, self.coordinates, self.used), 5)

    def with_units_of(self, group: ManifestGroup) -> DecodingPlan:
        """Return the plan of a group like the known one, whose dates may count from another one."""
        parts = {
            name: part.with_units(units)
            for name, part in self.parts.items()
            if part.dated is not None
            and (units := group.variables[part.dated].attributes["units"]) != part.units
        }
        return replace(self, parts={**self.parts, **parts}) if parts else self

    def find_index(self, dim: Hashable) -> str | None:
        """Return the variable that is the coordinate of a dimension, None if there is none."""
        found = (name for name, part in self.parts.items() if part.name == dim and part.is_index)
        return next(found, None)

    def list_parts(self, name: str, attributes: OfEachFile, count: int) -> list[VariableDecoding]:
        """Return how a variable decodes in each of several files.

        Parameters
        ----------
        name : str
        attributes : mapping of (str, str) to sequence
            The attributes that differ, with the value in each file.
        count : int
            How many files there are.

        Raises
        ------
        MisfitError
            Dates of a file have no units of dates.
        """
        part = self.parts[name]
        units = None if part.dated is None else attributes.get((part.dated, "units"))
        if units is None:
            return [part] * count
        known = {part.units: part}
        for one in units:
            if one not in known:
                known[one] = part.with_units(one)
        return [known[one] for one in units]

    def load(self, group: ManifestGroup) -> ManifestGroup:
        """Return a group with the stored values of its loaded variables in memory.

        Raises
        ------
        ReadError
            Bytes cannot be read, have changed, or do not decode.
        """
        variables = dict(group.variables)
        for name, part in self.parts.items():
            if part.is_loaded:
                with name_variable_in_errors(part):
                    variables[name] = part.load(group.variables[name])
        return replace(group, variables=variables)


@lru_cache(64)
def _unpickle_plan(pickled: bytes) -> DecodingPlan:
    """Return the plan of a pickle; all groups with it share one plan, also in this process."""
    return DecodingPlan(*pickle.loads(pickled))


def make_plan_key(group: ManifestGroup, decodes: bool, *options: Any) -> bytes | None:
    """Return everything in a group that a plan depends on; None if that cannot be pickled.

    Equal bytes mean equal structures, but for the dates from which dates count: they are a pickle
    of it.
    """
    if group.problems or any(map(_is_packed, group.variables.values())):
        return None
    variables = [
        (
            name,
            v.dims,
            _describe_data(v.data),
            v.data.dtype,
            v.data.shape,
            _select_shared_attributes(v) if decodes else dict(v.attributes),
            _select_shared_encoding(v),
        )
        for name, v in group.variables.items()
    ]
    gone = [(n, v.dims, v.data.dtype, dict(v.attributes)) for n, v in group.left_out.items()]
    try:
        return pickle.dumps(
            (variables, gone, group.attributes.get("coordinates"), decodes, options), 5
        )
    except (pickle.PicklingError, TypeError, AttributeError):
        return None


def _describe_data(data: Any) -> tuple[bool, ...]:
    """Return what besides its type matters of a variable's data."""
    if not isinstance(data, ManifestArray):
        return (isinstance(data, np.ndarray),)
    return data.has_gaps, False


def _is_packed(variable: ManifestVariable) -> bool:
    """Say whether the chunks are unpacked already, by the packing of each file."""
    data = variable.data
    return isinstance(data, ManifestArray) and any(p.packing is not None for p in data.pipelines)


def _select_shared_attributes(variable: ManifestVariable) -> dict[str, Any]:
    """Return the attributes that files of one structure share."""
    found = dict(variable.attributes)
    if variable.data.dtype.kind in "iuf" and is_dated(found.get("units")):
        found["units"] = DATED
    return found


def _select_shared_encoding(variable: ManifestVariable) -> dict[str, Any]:
    """Return the encoding that files of one structure share."""
    return {name: v for name, v in encoding_of(variable).items() if name != "source"}


DATED = ("units of dates",)
"""Stands for the units of dates in a key."""


class DecodingPlans:
    """The most recently used plans, by the key of `make_plan_key`.

    Parameters
    ----------
    most : int
        Number of plans to keep.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, DecodingPlan] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes | None) -> DecodingPlan | None:
        """Return the plan of a key, None if there is none."""
        with self._lock:
            if key is None or key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def put(self, key: bytes, outline: DecodingPlan) -> None:
        """Add a plan."""
        with self._lock:
            self._kept[key] = outline
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
