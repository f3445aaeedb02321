"""Joining alike files as they are stored.

Making a dataset of every file, and joining all in xarray, takes longer than reading the files. If
files are alike, only the values along one dimension differ. So xarray joins the datasets of two
files, and the variables with the dimension are then joined for all files. Files are refused with an
`NeedsFullCombineError` if the result might differ from that of xarray.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.combine.stored_file import (
    ConcatenatedFiles,
    FileInConcat,
    StoredFile,
    concat_stored,
    sample,
)
from virtualds.combine.xarray_combine import COMBINE_ERRORS, Combination
from virtualds.datasets.decoding import (
    MisfitError,
    VariableDecoding,
    all_decode_alike,
    build_index,
    decode_together,
    has_same_attributes,
)
from virtualds.datasets.lazy import get_virtual_array

FEWEST_FILES = 3
"""Most files of which every file becomes a dataset."""
CERTAIN: dict[str, tuple[str, ...]] = {
    # with other choices, data variables without the dimension are concatenated too
    "data_vars": ("minimal",),
    "coords": ("minimal",),
    # "no_conflicts" compares with the first dataset after later ones filled it, "identical" also
    # compares attributes, which joining may have changed
    "compat": ("equals", "override"),
    # "left", "right" and "inner" keep elements of other coordinates that only some files have
    "join": ("outer", "exact", "override"),
    # "drop_conflicts" compares all files, and a function may do anything
    "combine_attrs": ("override", "drop", "no_conflicts", "identical"),
}
"""Required options, with the values that allow joining neighbours without the other files."""


class NeedsFullCombineError(Exception):
    """Joining the files as they are stored might change the result."""


@dataclass(frozen=True)
class Concatenator:
    """Joins files whose variables differ along one dimension only.

    Parameters
    ----------
    combination : Combination
        How all files are to be combined.
    rises : bool
        Whether the coordinate of the dimension, if there is one, must increase.

    Raises
    ------
    NeedsFullCombineError
        The result for each file depends on all files.
    """

    combination: Combination
    rises: bool

    def __post_init__(self) -> None:
        given = self.combination
        if given.combine == "nested" and not isinstance(given.concat_dim, str):
            raise NeedsFullCombineError(f"they are joined along {given.concat_dim!r}")
        for name, value in given.options.items():
            if not isinstance(value, str) or value not in CERTAIN.get(name, ()):
                raise NeedsFullCombineError(f"{name}={value!r}")
        if missing := CERTAIN.keys() - given.options.keys():
            raise NeedsFullCombineError(f"{min(missing)} is not given")

    def join(self, files: Sequence[StoredFile | FileInConcat]) -> xr.Dataset:
        """Return what combining the datasets of all files gives.

        Raises
        ------
        NeedsFullCombineError
            The result might differ.
        """
        if len(files) < FEWEST_FILES:
            raise NeedsFullCombineError("there is nothing to be saved")
        try:
            few = [sample(file) for file in files[:2]]
            dim = self._find_dimension(few)
            pattern = self.combination(few)
            stored = list(concat_stored(files, dim))
            self._check(stored, dim)
            return self._grow(pattern, stored, dim)
        except (*COMBINE_ERRORS, MisfitError, OverflowError) as error:
            raise NeedsFullCombineError(str(error)) from error

    def join_stretch(
        self, files: Sequence[StoredFile], opener: Callable[[Any], Any]
    ) -> ConcatenatedFiles:
        """Return neighbouring files as one file, to be joined to others later.

        Raises
        ------
        NeedsFullCombineError
            Joining might change the result.
        """
        if len(files) < 2:
            raise NeedsFullCombineError("there is nothing to join")
        try:
            dim = self._find_stored_dimension(files)
            self._check(files, dim)
            lengths = tuple(_list_sizes(file).get(dim, 0) for file in files)
            urls = tuple(file.url for file in files)
            return ConcatenatedFiles(_concat_files(files, dim), dim, urls, lengths, opener)
        except COMBINE_ERRORS as error:
            # remaining differences are found when all files are joined
            raise NeedsFullCombineError(str(error)) from error

    def _find_stored_dimension(self, files: Sequence[StoredFile]) -> str:
        """Return the dimension along which files seem to follow each other."""
        if self.combination.combine == "nested":
            return str(self.combination.concat_dim)
        parts, (one, other) = files[0].outline.parts, files[:2]
        indexes = [name for name, part in parts.items() if part.is_index]
        differ = [n for n in indexes if one.values[n].tobytes() != other.values[n].tobytes()]
        if len(differ) != 1:
            raise NeedsFullCombineError("they do not follow each other along one dimension")
        return str(parts[differ[0]].name)

    def _find_dimension(self, datasets: Sequence[xr.Dataset]) -> str:
        if self.combination.combine == "nested":
            if self.combination.find_new_dims(list(datasets)):
                raise NeedsFullCombineError("they are stacked along a new dimension")
            return str(self.combination.concat_dim)
        one, other = datasets
        if set(one.dims) != set(other.dims) or one.xindexes.keys() != other.xindexes.keys():
            raise NeedsFullCombineError("their variables differ")
        if any(dim in one.variables and dim not in one.indexes for dim in one.dims):
            raise NeedsFullCombineError("a dimension has a coordinate without an index")
        indexes = {dim: one.indexes[dim] for dim in one.dims if dim in one.indexes}
        differ = [dim for dim, index in indexes.items() if not index.equals(other.indexes[dim])]
        if len(differ) != 1:
            raise NeedsFullCombineError(f"coordinates differ along {differ}")
        return str(differ[0])

    def _check(self, files: Sequence[StoredFile], dim: str) -> None:
        """Refuse files that differ in more than values along a dimension."""
        first = files[0]
        distinct = {id(file.outline): file for file in files}
        for file in distinct.values():
            self._check_structure(first, file, dim)
        if self._heeds_attributes:
            attributes = first.group.attributes
            if not all(
                has_same_attributes(attributes, file.group.attributes) for file in files[1:]
            ):
                raise NeedsFullCombineError("their attributes differ")
        for name, part in first.outline.parts.items():
            if dim not in part.decoded[0] and not self._counts_once(part):
                self._check_same(name, files)

    def _check_structure(self, first: StoredFile, file: StoredFile, dim: str) -> None:
        one, other = first.outline, file.outline
        if list(one.parts) != list(other.parts) or one.coordinates != other.coordinates:
            raise NeedsFullCombineError("their variables differ")
        sizes = _list_sizes(file)
        if _drop_size(sizes, dim) != _drop_size(_list_sizes(first), dim):
            raise NeedsFullCombineError("their sizes differ")
        if self.rises and not sizes.get(dim):
            raise NeedsFullCombineError("one has no element to be put in order by")
        for name, part in one.parts.items():
            if not _is_same_kind(part, other.parts[name]):
                raise NeedsFullCombineError(f"{name!r} is of different kinds")
            if self._heeds_attributes and not has_same_attributes(
                part.attributes, other.parts[name].attributes
            ):
                raise NeedsFullCombineError(f"the attributes of {name!r} differ")

    @property
    def _heeds_attributes(self) -> bool:
        """Whether the attributes of later files matter."""
        return self.combination.options["combine_attrs"] not in ("override", "drop")

    def _counts_once(self, part: VariableDecoding) -> bool:
        """Say whether a variable without the dimension is taken from the first file."""
        if part.is_index:
            choice = self.combination.combine == "nested" and self.combination.options["join"]
        else:
            choice = self.combination.options["compat"]
        return bool(choice == "override")

    def _check_same(self, name: str, files: Sequence[StoredFile]) -> None:
        """Refuse a variable without the dimension that differs between files."""
        parts = [file.outline.parts[name] for file in files]
        if not all_decode_alike(parts):
            raise NeedsFullCombineError(f"{name!r} means something else")
        values = files[0].get_stored_values(name)
        if values is None or values.dtype.hasobject:
            raise NeedsFullCombineError(f"{name!r} takes more to compare")
        raw = values.tobytes()
        for file in files[1:]:
            if (other := file.get_stored_values(name)) is None or other.tobytes() != raw:
                raise NeedsFullCombineError(f"{name!r} differs")

    def _grow(self, pattern: xr.Dataset, files: Sequence[StoredFile], dim: str) -> xr.Dataset:
        """Return the dataset of two files, extended by all files along a dimension."""
        names = {part.name: name for name, part in files[0].outline.parts.items()}
        if pattern.variables.keys() != names.keys():
            raise NeedsFullCombineError("variables were made or dropped")
        variables = {
            shown: self._join_variable(names[str(shown)], variable, files, dim)
            for shown, variable in pattern.variables.items()
        }
        indexes = dict(pattern.xindexes)
        if dim in indexes:
            variables[dim], indexes[dim] = build_index(dim, variables[dim])
            self._check_order(indexes[dim])
        whole = (
            xr.Coordinates(variables, indexes).to_dataset().reset_coords(list(pattern.data_vars))
        )
        whole.attrs, whole.encoding = pattern.attrs, pattern.encoding
        return whole

    def _check_order(self, index: xr.Index) -> None:
        found = index.to_pandas_index()
        if self.rises and not (found.is_monotonic_increasing and found.is_unique):
            raise NeedsFullCombineError("they are to be put in order")

    def _join_variable(
        self, name: str, found: xr.Variable, files: Sequence[StoredFile], dim: str
    ) -> xr.Variable:
        parts = [file.outline.parts[name] for file in files]
        if (found.dims, found.dtype) != parts[0].decoded:
            raise NeedsFullCombineError(f"{name!r} became something else")
        if dim not in found.dims:
            return found
        data: Any
        if parts[0].is_loaded:
            values = [file.load_values_by_file(name) for file in files]
            of_files = [p for p, some in zip(parts, values, strict=True) for _ in some]
            data = decode_together(of_files, list(chain.from_iterable(values)), dim)
        elif get_virtual_array(found) is None:
            raise NeedsFullCombineError(f"{name!r} is read when it is needed")
        else:
            stored = [file.group.variables[name] for file in files]
            arrays: list[Any] = [p.decode_array(v) for p, v in zip(parts, stored, strict=True)]
            data = np.concatenate(arrays, axis=found.dims.index(dim))
        return xr.Variable(found.dims, data, found.attrs, found.encoding)


def _concat_files(files: Sequence[StoredFile], dim: str) -> StoredFile:
    """Return files that decode alike, joined as they are stored.

    Raises
    ------
    NeedsFullCombineError
        The files cannot be joined as they are stored.
    """
    first, apart = files[0], dict[str, list[Any]]()
    variables, values = dict(first.group.variables), dict(first.values)
    growing = {n: p for n, p in first.outline.parts.items() if dim in p.stored[0]}
    for name, part in growing.items():
        axis = part.stored[0].index(dim)
        data: list[Any] = [file.group.variables[name].data for file in files]
        if not all_decode_alike([file.outline.parts[name] for file in files]):
            raise NeedsFullCombineError(f"{name!r} means something else")
        if part.depends_on_values and not part.is_loaded:
            raise NeedsFullCombineError(f"{name!r} is looked at file by file")
        if not all(isinstance(d, ManifestArray | np.ndarray) for d in data):
            raise NeedsFullCombineError(f"{name!r} is read when it is needed")
        variables[name] = replace(variables[name], data=np.concatenate(data, axis=axis))
        if part.is_loaded:
            # some variables decode differently because of other variables in their file
            apart[name] = [file.values[name] for file in files]
            values[name] = np.concatenate(apart[name], axis=axis)
    if not growing:
        raise NeedsFullCombineError(f"nothing has {dim!r}")
    group = replace(first.group, variables=variables)
    return replace(first, group=group, values=values, apart=apart)


def _is_same_kind(one: VariableDecoding, other: VariableDecoding) -> bool:
    first, second = ((p.name, p.decoded, p.stored[0], p.is_loaded) for p in (one, other))
    return first == second


def _list_sizes(file: StoredFile) -> dict[Hashable, int]:
    variables = file.group.variables.values()
    return {d: n for v in variables for d, n in zip(v.dims, v.data.shape, strict=True)}


def _drop_size(sizes: dict[Hashable, int], dim: str) -> dict[Hashable, int]:
    """Return the length of every dimension but one."""
    return {d: n for d, n in sizes.items() if d != dim}
