"""Outlines: how the variables of a group decode, kept for all groups that are alike.

The files of an archive mostly decode alike. What xarray made of one group is noted in an
`DecodingPlan`, which holds for every group whose names, shapes, types, attributes and encoding are
the same.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.datasets.decoding import VariableDecoding, encoding_of, name_variable_in_errors


@dataclass(frozen=True, eq=False)
class DecodingPlan:
    """How the variables of a group decode.

    Parameters
    ----------
    parts : dict of str to Part
        By the names of the variables as stored.
    coordinates : frozenset
        Names of those that are coordinates.
    used : frozenset of str
        Attributes of the group that decoding uses up.
    """

    parts: Mapping[str, VariableDecoding]
    coordinates: frozenset[Hashable]
    used: frozenset[str]

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return _unpickle_plan, (self._pickled,)

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps((self.parts, self.coordinates, self.used), 5)

    def values(self, group: ManifestGroup) -> dict[str, npt.NDArray[Any]]:
        """Return what is loaded of a group, as stored, by the names of variables as stored.

        Raises
        ------
        ReadError
            Bytes cannot be had, have changed, or do not decode.
        """
        found = {}
        for name, part in self.parts.items():
            if part.is_loaded:
                with name_variable_in_errors(part):
                    found[name] = part.values(group.variables[name])
        return found


@lru_cache(64)
def _unpickle_plan(pickled: bytes) -> DecodingPlan:
    """Return the outline of a pickle: one for all groups that have it, also here."""
    return DecodingPlan(*pickle.loads(pickled))


def make_plan_key(group: ManifestGroup, *options: Any) -> bytes | None:
    """Return all of a group that an outline depends on; None if that cannot be told.

    Equal bytes are equal structures: they are a pickle of it.
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
            dict(v.attributes),
            _select_shared_encoding(v),
        )
        for name, v in group.variables.items()
    ]
    try:
        return pickle.dumps((variables, group.attributes.get("coordinates"), options), 5)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None


def _describe_data(data: Any) -> tuple[bool, ...]:
    """Return what besides its type matters of a variable's data."""
    if not isinstance(data, ManifestArray):
        return (isinstance(data, np.ndarray),)
    return data.has_gaps, False


def _is_packed(variable: ManifestVariable) -> bool:
    """Say whether chunks are unpacked already, each as its own file says."""
    data = variable.data
    return isinstance(data, ManifestArray) and any(p.packing is not None for p in data.pipelines)


def _select_shared_encoding(variable: ManifestVariable) -> dict[str, Any]:
    """Return the encoding that files of one structure share."""
    return {name: v for name, v in encoding_of(variable).items() if name != "source"}


class DecodingPlans:
    """The latest used outlines, by what `make_plan_key` gives of groups that they hold for.

    Parameters
    ----------
    most : int
        How many are kept.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, DecodingPlan] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes | None) -> DecodingPlan | None:
        """Return the outline of a key, if there is one."""
        with self._lock:
            if key is None or key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def put(self, key: bytes, outline: DecodingPlan) -> None:
        """Keep an outline."""
        with self._lock:
            self._kept[key] = outline
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
