"""Joining alike files as they are stored.

Making a dataset of every file, and joining all in xarray, takes longer than reading the files. If
files are alike, only the values along one dimension differ. So xarray joins the datasets of two
files, and the variables with the dimension are then joined for all files. Files are refused with an
`NeedsFullCombineError` if the result might differ from that of xarray.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr

from virtualds.combine.joinable import JoinableFiles, NeedsFullCombineError, OpenedFiles
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
    build_index,
    decode_together,
    has_same_attributes,
)
from virtualds.datasets.decoding_cache import DecodingPlan
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.reference_systems import select_system

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
            self._check_structures(stored)
            self._check_values(OpenedFiles(stored), dim)
            return self._grow(pattern, stored, dim)
        except (*COMBINE_ERRORS, MisfitError, OverflowError) as error:
            raise NeedsFullCombineError(f"{error}") from error

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
        self._check_structures(files)
        return self.join_neighbours(OpenedFiles(files), [file.url for file in files], opener)

    def join_neighbours(
        self, files: JoinableFiles, urls: Sequence[Any], opener: Callable[[Any], Any]
    ) -> ConcatenatedFiles:
        """Return neighbouring files of one structure as one file, to be joined to others later.

        Raises
        ------
        NeedsFullCombineError
            Joining might change the result.
        """
        try:
            dim = self._find_stored_dimension(files)
            self._check_values(files, dim)
            lengths = tuple(files.lengths[dim].tolist()) if dim in files.lengths else ()
            return ConcatenatedFiles(_concat_files(files, dim), dim, tuple(urls), lengths, opener)
        except COMBINE_ERRORS as error:
            # remaining differences are found when all files are joined
            raise NeedsFullCombineError(f"{error}") from error

    def _find_stored_dimension(self, files: JoinableFiles) -> str:
        """Return the dimension along which files seem to follow each other."""
        if self.combination.combine == "nested":
            return str(self.combination.concat_dim)
        parts = files.first.outline.parts
        differ = []
        for name, part in parts.items():
            if part.is_index:
                one, other, *_ = files.load(name, part.stored[0][0])
                differ += [name] if one.tobytes() != other.tobytes() else []
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

    def _check_structures(self, files: Sequence[StoredFile]) -> None:
        """Refuse files that have other variables, or other attributes that matter."""
        first = files[0]
        distinct = {id(file.outline): file for file in files}
        for file in distinct.values():
            self.check_plans(first.outline, file.outline)
        if self.heeds_attributes:
            attributes = first.group.attributes
            if not all(
                has_same_attributes(attributes, file.group.attributes) for file in files[1:]
            ):
                raise NeedsFullCombineError("their attributes differ")

    def check_plans(self, one: DecodingPlan, other: DecodingPlan) -> None:
        """Refuse files that decode to other variables.

        Raises
        ------
        NeedsFullCombineError
        """
        if list(one.parts) != list(other.parts) or one.coordinates != other.coordinates:
            raise NeedsFullCombineError("their variables differ")
        for name, part in one.parts.items():
            if not _is_same_kind(part, other.parts[name]):
                raise NeedsFullCombineError(f"{name!r} is of different kinds")
            given = part.attributes, other.parts[name].attributes
            if not self.heeds_attributes:
                given = select_system(given[0]), select_system(given[1])
            if not has_same_attributes(*given):
                raise NeedsFullCombineError(f"the attributes of {name!r} differ")

    def _check_values(self, files: JoinableFiles, dim: str) -> None:
        """Refuse files of one structure that differ in more than values along a dimension."""
        lengths = files.lengths
        if any((size != size[0]).any() for other, size in lengths.items() if other != dim):
            raise NeedsFullCombineError("their sizes differ")
        if self.rises and (dim not in lengths or (lengths[dim] <= 0).any()):
            raise NeedsFullCombineError("one has no element to be put in order by")
        for name, part in files.first.outline.parts.items():
            if dim not in part.decoded[0] and not self._counts_once(part):
                files.check_same(name)

    @property
    def heeds_attributes(self) -> bool:
        """Whether the attributes of later files matter."""
        return self.combination.options["combine_attrs"] not in ("override", "drop")

    def _counts_once(self, part: VariableDecoding) -> bool:
        """Say whether a variable without the dimension is taken from the first file."""
        if part.is_index:
            choice = self.combination.combine == "nested" and self.combination.options["join"]
        else:
            choice = self.combination.options["compat"]
        return bool(choice == "override")

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


def _concat_files(files: JoinableFiles, dim: str) -> StoredFile:
    """Return files that decode alike, joined as they are stored.

    Raises
    ------
    NeedsFullCombineError
        The files cannot be joined as they are stored.
    """
    first, apart = files.first, dict[str, Sequence[Any]]()
    variables, values = dict(first.group.variables), dict[str, Any]()
    parts = first.outline.parts
    if not any(dim in part.stored[0] for part in parts.values()):
        raise NeedsFullCombineError(f"nothing has {dim!r}")
    for name, part in parts.items():
        if dim not in part.stored[0]:
            if part.is_loaded:
                values[name] = files.load_first(name)
            continue
        if part.depends_on_values and not part.is_loaded:
            raise NeedsFullCombineError(f"{name!r} is looked at file by file")
        variables[name] = replace(variables[name], data=files.join(name, dim))
        if part.is_loaded:
            # some variables decode differently because of other variables in their file
            apart[name] = files.load(name, dim)
            values[name] = np.concatenate(apart[name], axis=part.stored[0].index(dim))
    group = replace(first.group, variables=variables)
    return replace(first, group=group, values=values, apart=apart)


def _is_same_kind(one: VariableDecoding, other: VariableDecoding) -> bool:
    first, second = ((p.name, p.decoded, p.stored[0], p.is_loaded) for p in (one, other))
    return first == second
