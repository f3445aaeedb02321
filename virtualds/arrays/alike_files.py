"""Files of one structure, whose variables are joined as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import Ints
from virtualds.source_file import StorageOptions

Array = npt.NDArray[Any]


class Absent(Enum):
    """The class of `ABSENT`."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT
"""Stands for the attribute of a file that does not have it."""
OfEachFile = Mapping[tuple[str, str], Sequence[Any]]
"""By variable, "" for the group itself, and name: the value in each file."""


class AlikeFiles(Protocol):
    """Files that have the variables of one group, with other values.

    They differ in the values of variables, in where chunks lie, and in how long dimensions are. The
    attributes that decoding heeds are equal in all of them.
    """

    @property
    def group(self) -> ManifestGroup:
        """The group as the first of the files has it."""

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the files among those that were asked for."""

    @property
    def lengths(self) -> Mapping[str, Ints]:
        """How long each dimension is in each file; -1 for none."""

    @property
    def attributes(self) -> OfEachFile:
        """The attributes that differ, with the value in each file, or `ABSENT`."""

    @property
    def encodings(self) -> OfEachFile:
        """What of the encoding differs, in the same form."""

    @property
    def below(self) -> Mapping[str, AlikeFiles]:
        """The groups below the group, by path, if they are wanted."""

    def take(self, places: Ints) -> AlikeFiles:
        """Return some of the files, in another order."""

    def join(self, name: str, dim: str) -> ManifestArray | Array:
        """Return a variable of all files, one after the other along a dimension.

        All its other dimensions must have one length in all files.
        """

    def get_values(self, name: str) -> Sequence[Array] | None:
        """Return the stored values of a variable in each file, None if they must be read."""

    def stack(self, name: str) -> ManifestArray:
        """Return a virtual variable of one shape, of all files along a new first axis."""


Heeds = Callable[[str, Any], bool]
"""Takes an attribute's name, and its value in one file or None if only the parser sees it; says
whether it must be equal in all files of a structure."""


class ReadAlike(Protocol):
    """Reads files together where they have one structure."""

    def __call__(
        self,
        urls: Sequence[str],
        options: StorageOptions | None,
        group: str | None,
        skip: Iterable[str],
        heeds: Heeds,
        below: bool = False,
    ) -> AbstractContextManager[Sequence[AlikeFiles]]:
        """Give the files of each structure, which are open until the end of the block.

        The files in none have to be read one by one. With ``below``, so are the groups below the
        one that is wanted. Attributes that ``heeds`` says yes to are
        equal in all files of a structure. No error is raised for a file: one that cannot be read
        is left to be read by itself.
        """


@dataclass(frozen=True, eq=False)
class ListedFiles:
    """Files that were read one by one (`AlikeFiles`): at least one, all with the same variables."""

    groups: Sequence[ManifestGroup]
    numbers: Sequence[int] = field(default=())

    @property
    def group(self) -> ManifestGroup:
        """The first group."""
        return self.groups[0]

    @cached_property
    def lengths(self) -> Mapping[str, Ints]:
        """How long each dimension is in each file; -1 for none."""
        sizes = [list_sizes(group) for group in self.groups]
        dims = dict.fromkeys(dim for found in sizes for dim in found)
        return {d: np.array([found.get(d, -1) for found in sizes], np.int64) for d in dims}

    @cached_property
    def attributes(self) -> OfEachFile:
        """The attributes that differ."""
        return self._find_different(lambda owner: owner.attributes)

    @cached_property
    def encodings(self) -> OfEachFile:
        """What of the encoding differs."""
        return self._find_different(lambda owner: owner.encoding)

    def _find_different(self, get: Callable[[Any], Mapping[str, Any]]) -> OfEachFile:
        owners: dict[str, list[Any]] = {"": list(self.groups)}
        for name in self.group.variables:
            owners[name] = [group.variables[name] for group in self.groups]
        return {
            (name, key): [one.get(key, ABSENT) for one in found]
            for name, of_each in owners.items()
            for found in [[get(owner) for owner in of_each]]
            for key in dict.fromkeys(key for one in found for key in one)
            if not all(
                is_same_value(found[0].get(key, ABSENT), one.get(key, ABSENT)) for one in found[1:]
            )
        }

    @cached_property
    def below(self) -> Mapping[str, ListedFiles]:
        """The groups below the group, by path, of files that have the same ones."""
        trees = [dict(group.walk()) for group in self.groups]
        paths = [path for path in trees[0] if path]
        return {path: ListedFiles([tree[path] for tree in trees], self.numbers) for path in paths}

    def take(self, places: Ints) -> ListedFiles:
        """Return some of the files, in another order."""
        columns = (self.groups, self.numbers)
        return ListedFiles(*([column[n] for n in places.tolist()] for column in columns))

    def join(self, name: str, dim: str) -> ManifestArray | Array:
        """Return a variable of all files, one after the other along a dimension."""
        axis = self.group.variables[name].dims.index(dim)
        joined: ManifestArray | Array = concatenate_alike(self._list_data(name), axis)
        return joined

    def get_values(self, name: str) -> Sequence[Array] | None:
        """Return the stored values of a variable in each file, None if they must be read."""
        found = self._list_data(name)
        return found if all(isinstance(one, np.ndarray) for one in found) else None

    def stack(self, name: str) -> ManifestArray:
        """Return a virtual variable of all files along a new first axis."""
        stacked: Any = concatenate_alike(
            [array.insert_axis(0) for array in self._list_data(name)], 0
        )
        return stacked  # type: ignore[no-any-return]

    def _list_data(self, name: str) -> list[Any]:
        return [group.variables[name].data for group in self.groups]


def concatenate_alike(data: Sequence[Any], axis: int) -> Any:
    """Concatenate the data of files; they keep the byte order that they all have."""
    joined: Any = np.concatenate(data, axis=axis)
    first = data[0]
    if joined.dtype == first.dtype or any(one.dtype != first.dtype for one in data):
        return joined
    is_virtual = isinstance(joined, ManifestArray)
    return replace(joined, dtype=first.dtype) if is_virtual else joined.astype(first.dtype)


def is_same_value(one: Any, other: Any) -> bool:
    """Say whether two attributes are of one type, and the same to the bit."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, np.ndarray | np.generic):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return (
            is_same_value(one.tolist(), other.tolist())
            if one.dtype.hasobject
            else (one.tobytes() == other.tobytes())
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same_value, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same_value(one[key], other[key]) for key in one)
    # as text, missing numbers equal themselves, and zeros have a sign
    return repr(one) == repr(other) if isinstance(one, float | complex) else bool(one == other)


def select_own(owner: str, columns: OfEachFile, place: int, known: Mapping[str, Any]) -> Any:
    """Return attributes, or the encoding, of one of several files, given those of another.

    ``owner`` is the variable, or "" for the group; ``columns`` have what differs between the files.
    """
    own = {name: values[place] for (of, name), values in columns.items() if of == owner}
    if not own:
        return known
    return {n: v for n, v in {**known, **own}.items() if v is not ABSENT}


def list_sizes(group: ManifestGroup) -> dict[str, int]:
    """Return the length of each dimension of the variables of a group."""
    variables = group.variables.values()
    return {d: n for v in variables for d, n in zip(v.dims, v.data.shape, strict=True)}
