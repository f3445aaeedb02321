"""Concatenate files of the same structure without creating a dataset for each.

Creating a dataset for each file, and combining all with xarray, takes longer than reading the
files. Files of the same structure differ only along one dimension. So xarray combines the datasets
of two files, and their variables with the dimension are then extended to all files, which are
sorted by their coordinate. `NeedsFullCombineError` is raised if the result might differ from that
of xarray.
"""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.concatenate import concatenate, reorder
from virtualds.arrays.group import find_dim_sizes
from virtualds.chunks.columns import Ints
from virtualds.combine.file_batch import (
    UNPICKLABLE,
    FileBatch,
    JoinableFiles,
    NeedsFullCombineError,
    guess_dimension,
)
from virtualds.combine.xarray_combine import COMBINE_ERRORS, Combination, check_lengths
from virtualds.datasets.decoding import (
    DecodingPlan,
    MisfitError,
    VariableDecoding,
    all_decode_alike,
    build_index,
    decode_together,
    decode_whole,
    have_same_attributes,
)
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.structure import select_crs_attributes

Array = npt.NDArray[Any]

MIN_FILES = 3
"""Minimum number of files that are joined before decoding; fewer save no time."""
SUPPORTED_OPTIONS: dict[str, tuple[str, ...]] = {
    # other values also concatenate data variables without the dimension
    "data_vars": ("minimal",),
    "coords": ("minimal",),
    # "no_conflicts" compares with a dataset that earlier files have filled, and "identical" also
    # compares attributes, which joining may change
    "compat": ("equals", "override"),
    # "left", "right" and "inner" depend on coordinate values that only some files have
    "join": ("outer", "exact", "override"),
    # "drop_conflicts" depends on all files, and a function may do anything
    "combine_attrs": ("override", "drop", "no_conflicts", "identical"),
}
"""Values of xarray's options for which some files can be joined without knowing the others."""


@dataclass(frozen=True)
class Concatenator:
    """Joins files whose variables differ along one dimension only.

    ``combination`` is how all files are combined. With ``needs_order``, the coordinate of the
    dimension, if there is one, must be strictly monotonic. Raises `NeedsFullCombineError` for
    options that are not supported.
    """

    combination: Combination
    needs_order: bool

    def __post_init__(self) -> None:
        combination = self.combination
        if combination.combine == "nested" and not isinstance(combination.concat_dim, str):
            raise NeedsFullCombineError(f"they are joined along {combination.concat_dim!r}")
        for name, value in combination.options.items():
            if not isinstance(value, str) or value not in SUPPORTED_OPTIONS.get(name, ()):
                raise NeedsFullCombineError(f"{name}={value!r}")
        if missing := SUPPORTED_OPTIONS.keys() - combination.options.keys():
            raise NeedsFullCombineError(f"{min(missing)} is not given")

    def join(self, batches: Sequence[FileBatch]) -> Any:
        """Return the dataset or tree that xarray would return for all files.

        Raises `NeedsFullCombineError` if the result might differ.
        """
        if sum(map(len, batches)) < MIN_FILES:
            raise NeedsFullCombineError("there are too few files")
        groups = _list_groups(batches)
        try:
            for group_batches in groups.values():
                self._check_structures(group_batches)
            given = np.arange(sum(map(len, batches)))
            samples = _make_samples(batches, given)
            dim = self._find_dimension(samples)
            for group_batches in groups.values():
                self._check_values(group_batches, dim)
            ordering_path = _find_ordering_group(groups, dim) if self._sorts_files else ""
            # a list of a million numbers takes five times the memory of an array
            given_order = np.argsort(np.concatenate([np.asarray(b.numbers) for b in batches]))
            order = self._find_order(groups[ordering_path], dim, given_order)
            if (order[:2] != given[:2]).any():
                samples = _make_samples(batches, order)
            check_lengths(["the first", "the second"], samples, (dim,))
            combined = self.combination(samples)
            if isinstance(combined, xr.Dataset):
                _check_first(combined, samples[0], dim)
                return self._extend(combined, batches, order, dim)
            _check_first(combined[ordering_path or "/"], samples[0][ordering_path or "/"], dim)
            nodes = {
                f"/{path}": self._extend(
                    combined[path or "/"].to_dataset(False),
                    group_batches,
                    order,
                    dim,
                    inherits=bool(path),
                )
                for path, group_batches in groups.items()
            }
            return xr.DataTree.from_dict(nodes, name=combined.name)
        except (*COMBINE_ERRORS, MisfitError, OverflowError, KeyError) as error:
            raise NeedsFullCombineError(f"{error}") from error

    def join_by_structure(self, files: Sequence[FileBatch]) -> list[FileBatch]:
        """Join files that were opened one by one, and return a batch for each structure."""
        joined: list[FileBatch] = []
        for group in self._group_by_structure(files):
            try:
                joined.append(self.join_files(JoinableFiles.of(group)))
            except NeedsFullCombineError:
                # differences between these files are detected when all files are joined
                joined += group
        return joined

    def _group_by_structure(self, files: Sequence[FileBatch]) -> list[list[FileBatch]]:
        """Group files by their structure."""
        groups: dict[Any, list[FileBatch]] = {}
        keys: dict[int, Any] = {}
        for file in files:
            key: tuple[Any, ...] = ()
            for path, group_batch in file.walk():
                schema_id = id(group_batch.plan.schema)
                if schema_id not in keys:
                    keys[schema_id] = self._make_key(group_batch.plan.schema)
                key += path, keys[schema_id]
                if self.compares_attributes:
                    key += (_pickle_key(dict(group_batch.group.attributes)) or id(file),)
            groups.setdefault(key, []).append(file)
        return list(groups.values())

    def _make_key(self, plan: DecodingPlan) -> Any:
        """Return a hashable key of the decoding of a plan, with the compared attributes."""
        select_attributes = dict if self.compares_attributes else select_crs_attributes
        description = [
            (
                *(name, part.name, part.stored, part.decoded, part.is_loaded, part.decodes),
                *(
                    part.attributes_without_date_units,
                    part.dated_by,
                    select_attributes(part.attributes),
                ),
            )
            for name, part in plan.parts.items()
        ]
        return _pickle_key((description, sorted(map(str, plan.coordinates)))) or id(plan)

    def join_files(self, files: JoinableFiles) -> FileBatch:
        """Join files of the same structure into one batch, which may be joined with others later.

        Raises `NeedsFullCombineError` if joining might change the result.
        """
        if len(files.urls) < 2:
            raise NeedsFullCombineError("there is nothing to join")
        try:
            is_nested = self.combination.combine == "nested"
            dim = str(self.combination.concat_dim) if is_nested else guess_dimension(files)
            if dim is None:
                raise NeedsFullCombineError("they do not follow each other along a dimension")
            if self.needs_order and all(dim not in group.lengths for group in files.walk()):
                raise NeedsFullCombineError("they have no elements to sort them by")
            for group in files.walk():
                self._check_sizes(group, dim)
                for plan in group.find_plans_of_other_lengths(dim):
                    self.check_plans(group.plan, plan)
            parts = [part for group in files.walk() for part in group.plan.parts.values()]
            # values of decoded datasets are already in memory
            if files.indexes is None and any(
                p.is_loaded and self._is_taken_from_first(p) for p in parts
            ):
                # sort first, since the values of the first file are used
                batch = self._sort(files, dim).collect(dim, self._is_taken_from_first)
            else:
                batch = files.collect(dim)
            files_by_path = {"": files, **(files.below or {})}
            return batch.map_groups(
                lambda group, path: replace(
                    group, same=group.same | self._compare_virtual(files_by_path[path], dim)
                )
            )
        except COMBINE_ERRORS as error:
            # differences between these files are detected when all files are joined
            raise NeedsFullCombineError(f"{error}") from error

    def _compare_virtual(self, files: JoinableFiles, dim: str) -> frozenset[str]:
        """Return the names of small virtual variables that are equal in all files."""
        names = [
            name
            for name, part in files.plan.parts.items()
            if dim not in part.decoded[0]
            and not part.is_loaded
            and not self._is_taken_from_first(part)
        ]
        return frozenset(n for n in names if not files.is_too_large(n) and files.are_same(n))

    def _sort(self, files: JoinableFiles, dim: str) -> JoinableFiles:
        """Sort files by their coordinate; return them unchanged if the order is not known yet."""
        group_with_index = next(
            (group for group in files.walk() if group.plan.find_index(dim)), None
        )
        if group_with_index is None or not self._sorts_files:
            return files
        name = str(group_with_index.plan.find_index(dim))
        parts = group_with_index.load(name, dim)
        given_order = np.arange(len(parts))
        try:
            values = decode_together(group_with_index.list_parts(name), list(parts), dim)
        except MisfitError:
            return files
        order = self._order_values(values, np.array(list(map(len, parts))), given_order)
        return files if order is None or (order == given_order).all() else files.take(order)

    @property
    def _sorts_files(self) -> bool:
        """Whether files are sorted by their coordinate."""
        return self.combination.combine == "by_coords" or (
            self.needs_order and self.combination.arrangement.sort
        )

    def _order_values(self, values: Array, lengths: Ints, given_order: Ints) -> Ints | None:
        """Return the order of files by their coordinate values, see `find_order`."""
        return find_order(values, lengths, given_order, self.combination.combine == "nested")

    def _find_order(self, batches: Sequence[FileBatch], dim: str, given_order: Ints) -> Ints:
        """Return the order in which to join the files, as indexes into the files of all batches.

        Raises `NeedsFullCombineError` if their coordinate does not determine an order.
        """
        name = batches[0].plan.find_index(dim)
        if name is None or not self._sorts_files:
            return given_order
        lengths = np.array([n for batch in batches for n in batch.get_lengths(dim)])
        order = self._order_values(_decode_files(name, batches, dim), lengths, given_order)
        if order is None:
            raise NeedsFullCombineError("their coordinate does not put them in order")
        return order

    def _find_dimension(self, datasets: Sequence[xr.Dataset]) -> str:
        """Return the dimension along which xarray would join the datasets of two files."""
        if self.combination.combine == "nested":
            if self.combination.find_new_dims(list(datasets)):
                raise NeedsFullCombineError("they are stacked along a new dimension")
            return str(self.combination.concat_dim)
        first, second = datasets
        if set(first.dims) != set(second.dims) or first.xindexes.keys() != second.xindexes.keys():
            raise NeedsFullCombineError("their variables differ")
        if any(dim in first.variables and dim not in first.indexes for dim in first.dims):
            raise NeedsFullCombineError("a dimension has a coordinate without an index")
        indexes = {dim: first.indexes[dim] for dim in first.dims if dim in first.indexes}
        differing_dims = [
            dim for dim, index in indexes.items() if not index.equals(second.indexes[dim])
        ]
        if len(differing_dims) != 1:
            raise NeedsFullCombineError(f"coordinates differ along {differing_dims}")
        return str(differing_dims[0])

    def _check_structures(self, batches: Sequence[FileBatch]) -> None:
        """Raise `NeedsFullCombineError` if variables or compared attributes differ."""
        first = batches[0]
        batch_by_plan = {id(batch.plan): batch for batch in batches}
        for batch in batch_by_plan.values():
            self.check_plans(first.plan, batch.plan)
        if self.compares_attributes:
            attributes = first.group.attributes
            if not all(have_same_attributes(attributes, b.group.attributes) for b in batches[1:]):
                raise NeedsFullCombineError("their attributes differ")

    def check_plans(self, left: DecodingPlan, right: DecodingPlan) -> None:
        """Raise `NeedsFullCombineError` if two plans decode to different variables."""
        if list(left.parts) != list(right.parts) or left.coordinates != right.coordinates:
            raise NeedsFullCombineError("their variables differ")
        for name, part in left.parts.items():
            descriptions = [
                (p.name, p.decoded, p.stored[0], p.is_loaded) for p in (part, right.parts[name])
            ]
            if descriptions[0] != descriptions[1]:
                raise NeedsFullCombineError(f"{name!r} is of different kinds")
            attributes = part.attributes, right.parts[name].attributes
            if not self.compares_attributes:
                attributes = (
                    select_crs_attributes(attributes[0]),
                    select_crs_attributes(attributes[1]),
                )
            if not have_same_attributes(*attributes):
                raise NeedsFullCombineError(f"the attributes of {name!r} differ")

    def _check_sizes(self, files: JoinableFiles, dim: str) -> None:
        """Raise `NeedsFullCombineError` if lengths along other dimensions than ``dim`` differ."""
        lengths = files.lengths
        if any(
            (sizes != sizes[0]).any() for other_dim, sizes in lengths.items() if other_dim != dim
        ):
            raise NeedsFullCombineError("their sizes differ")
        if self.needs_order and dim in lengths and (lengths[dim] <= 0).any():
            raise NeedsFullCombineError("one has no elements to sort it by")

    def _check_values(self, batches: Sequence[FileBatch], dim: str) -> None:
        """Raise `NeedsFullCombineError` if variables without the dimension ``dim`` differ."""
        files = JoinableFiles.of(batches)
        self._check_sizes(files, dim)
        for name, part in files.plan.parts.items():
            if dim not in part.decoded[0] and not self._is_taken_from_first(part):
                if not all_decode_alike(
                    [decoding for b in batches for decoding in b.list_parts(name)]
                ):
                    raise NeedsFullCombineError(f"{name!r} decodes differently")
                if not part.is_loaded and files.is_too_large(name):
                    raise NeedsFullCombineError(f"{name!r} is too large to compare")
                if not (all(b.has_same(name) for b in batches) and files.are_same(name)):
                    raise NeedsFullCombineError(f"{name!r} differs")

    @property
    def compares_attributes(self) -> bool:
        """Whether the attributes of all files are compared; if not, those of the first are used."""
        return self.combination.options["combine_attrs"] not in ("override", "drop")

    def _is_taken_from_first(self, part: VariableDecoding) -> bool:
        """Return whether a variable without the dimension is taken from the first file."""
        if part.is_index:
            option_value = self.combination.combine == "nested" and self.combination.options["join"]
        else:
            option_value = self.combination.options["compat"]
        return bool(option_value == "override")

    def _extend(
        self,
        combined: xr.Dataset,
        batches: Sequence[FileBatch],
        order: Ints,
        dim: str,
        *,
        inherits: bool = False,
    ) -> xr.Dataset:
        """Return the combined dataset of two files, extended to all files along ``dim``."""
        names = {part.name: name for name, part in batches[0].plan.parts.items()}
        dropped = names.keys() - combined.variables.keys()
        if inherits:
            # coordinates are inherited from the groups above
            dropped -= {part.name for part in batches[0].plan.parts.values() if part.is_index}
        if dropped or not combined.variables.keys() <= names.keys():
            raise NeedsFullCombineError("variables were made or dropped")
        lengths = np.array([n for batch in batches for n in batch.get_lengths(dim)])
        variables = {
            decoded_name: _join_variable(
                names[str(decoded_name)], variable, batches, dim, lengths, order
            )
            for decoded_name, variable in combined.variables.items()
        }
        indexes = dict(combined.xindexes)
        if dim in indexes:
            variables[dim], indexes[dim] = build_index(dim, variables[dim])
            self._check_order(indexes[dim])
        extended = (
            xr.Coordinates(variables, indexes).to_dataset().reset_coords(list(combined.data_vars))
        )
        extended.attrs, extended.encoding = combined.attrs, combined.encoding
        return extended

    def _check_order(self, index: xr.Index) -> None:
        """Raise `NeedsFullCombineError` if an index has no order, but has to have one."""
        pandas_index = index.to_pandas_index()
        is_ordered = pandas_index.is_monotonic_increasing or pandas_index.is_monotonic_decreasing
        if self.needs_order and not (is_ordered and pandas_index.is_unique):
            raise NeedsFullCombineError("they have to be sorted")


def _list_groups(batches: Sequence[FileBatch]) -> dict[str, list[FileBatch]]:
    """Return the batches of each group, by path.

    Raises `NeedsFullCombineError` if files differ in their groups, or the groups of a file do not
    form a valid tree.
    """
    trees = [dict(batch.walk()) for batch in batches]
    if any(list(tree) != list(trees[0]) for tree in trees):
        raise NeedsFullCombineError("their groups differ")
    if not all(batch.is_aligned for batch in batches):
        raise NeedsFullCombineError("their groups have coordinates of their own")
    return {path: [tree[path] for tree in trees] for path in trees[0]}


def _find_ordering_group(groups: Mapping[str, Sequence[FileBatch]], dim: str) -> str:
    """Return the path of the group whose coordinate determines the order of the files.

    Raises `NeedsFullCombineError` if a group with the dimension neither has nor inherits it.
    """
    ordering_path = next(
        (path for path, (first, *_) in groups.items() if first.plan.find_index(dim)), None
    )
    for path, (first, *_) in groups.items():
        inherits = (
            not ordering_path or path == ordering_path or path.startswith(f"{ordering_path}/")
        )
        if ordering_path is not None and dim in find_dim_sizes(first.group) and not inherits:
            raise NeedsFullCombineError("their groups have no common coordinate")
    return ordering_path or ""


def _join_variable(
    name: str,
    combined: xr.Variable,
    batches: Sequence[FileBatch],
    dim: str,
    lengths: Ints,
    order: Ints,
) -> xr.Variable:
    """Return a combined variable of two files, extended to all files with their ``lengths``."""
    parts = [batch.plan.parts[name] for batch in batches]
    if (combined.dims, combined.dtype) != parts[0].decoded:
        raise NeedsFullCombineError(f"{name!r} became something else")
    if dim not in combined.dims:
        return combined
    data: Any
    if parts[0].is_loaded:
        data = _decode_files(name, batches, dim, order)
    elif get_virtual_array(combined) is None:
        raise NeedsFullCombineError(f"{name!r} is read when it is needed")
    else:
        arrays = [array for batch in batches for array in _decode_virtual(batch, name)]
        axis = combined.dims.index(dim)
        data = reorder(concatenate(arrays, axis), axis, lengths, order)
    return xr.Variable(combined.dims, data, combined.attrs, combined.encoding)


def _decode_files(
    name: str, batches: Sequence[FileBatch], dim: str, order: Ints | None = None
) -> Array:
    """Return the decoded values of a loaded variable of all files, in their order by default."""
    parts = [part for batch in batches for part in batch.list_parts(name)]
    is_in_order = order is None or bool((order[1:] > order[:-1]).all())
    is_whole = all(
        len(batch) == 1 or (batch.dim == dim and dim in batch.group.variables[name].dims)
        for batch in batches
    )
    if is_in_order and is_whole and all_decode_alike(parts):
        # views of the values of a million files would take more memory than the values
        arrays: list[Any] = [batch.group.variables[name].data for batch in batches]
        if (decoded := decode_whole(parts[0], arrays, dim)) is not None:
            return decoded
    values = [file_values for batch in batches for file_values in batch.list_values(name)]
    if order is not None:
        ordered = order.tolist()
        parts, values = [parts[n] for n in ordered], [values[n] for n in ordered]
    return decode_together(parts, values, dim)


def _pickle_key(value: Any) -> bytes | None:
    """Return a pickle that is equal for equal values, or None if they cannot be pickled."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 5)
    # without memoization, the result does not depend on which objects are identical
    pickler.fast = True
    try:
        pickler.dump(value)
    except UNPICKLABLE:
        return None
    return buffer.getvalue()


def _decode_virtual(batch: FileBatch, name: str) -> list[Any]:
    """Return the decoded arrays of a virtual variable: one if possible, otherwise one per file."""
    parts, variable = batch.list_parts(name), batch.group.variables[name]
    if len(batch) == 1:
        return [parts[0].decode_array(variable)]
    # only a batch that was joined along the dimension has the data of all its files
    if batch.dim is not None and all(part is parts[0] for part in parts):
        return [parts[0].unpack(variable)]
    return [
        part.unpack(batch.cut_variable(name, file_index)) for file_index, part in enumerate(parts)
    ]


def find_order(values: Array, lengths: Ints, given_order: Ints, is_nested: bool) -> Ints | None:
    """Return the indexes of files sorted by a coordinate, or None if they have no order.

    Files have no order if they overlap, or if some increase and others decrease. ``values`` are the
    concatenated coordinates of all files, ``lengths`` the number of values of each, and
    ``given_order`` the indexes of the files in the given order. With ``is_nested``, that order is
    kept for text, and for decreasing files of one element each. Otherwise files are sorted as by
    `xarray.combine_by_coords`.

    >>> find_order(np.array([5, 6, 1, 2]), np.array([2, 2]), np.array([0, 1]), True)
    array([1, 0])
    >>> find_order(np.array([5, 6, 6, 7]), np.array([2, 2]), np.array([0, 1]), True) is None
    True
    """
    is_text = values.dtype.kind in "SUT" or (
        values.dtype.hasobject and any(isinstance(value, str | bytes) for value in values[:1])
    )
    if is_nested and is_text:
        return given_order
    if not lengths.all():
        return None
    ends = np.cumsum(lengths)
    firsts, lasts = values[ends - lengths], values[ends - 1]
    given_firsts = firsts[given_order]
    if len(values) == len(ends) and is_nested and (given_firsts[1:] < given_firsts[:-1]).all():
        return given_order

    def is_true_in_files(compare: Callable[[Array, Array], Any]) -> bool:
        """Return whether a comparison holds for all neighbouring values within a file."""
        holds = np.asarray(compare(values[1:], values[:-1]))
        holds[ends[:-1] - 1] = True
        return bool(holds.all())

    if is_true_in_files(operator.gt):
        order = np.argsort(firsts, kind="stable")
        is_disjoint = firsts[order][1:] > lasts[order][:-1]
    elif is_true_in_files(operator.lt):
        order = np.argsort(firsts, kind="stable")[::-1]
        is_disjoint = firsts[order][1:] < lasts[order][:-1]
    else:
        return None
    # missing values are not equal to themselves
    return order if is_disjoint.all() and not (firsts != firsts).any() else None


def _make_samples(batches: Sequence[FileBatch], order: Ints) -> list[Any]:
    """Return the datasets or trees of the first two files in an order.

    Raises `NeedsFullCombineError` if the batch of the first file has some values of another file.
    """
    sizes = np.array([len(batch) for batch in batches])
    starts = np.cumsum(sizes) - sizes
    batch_indexes = np.searchsorted(starts, order[:2], side="right") - 1
    file_indexes = (order[:2] - starts[batch_indexes]).tolist()
    if file_indexes[0] and not batches[batch_indexes[0]].is_whole:
        raise NeedsFullCombineError("the first file was joined after others")
    pairs = zip(batch_indexes.tolist(), file_indexes, strict=True)
    return [batches[owner].cut(place).to_dataset() for owner, place in pairs]


def _check_first(combined: Any, first: Any, dim: str) -> None:
    """Raise `NeedsFullCombineError` if the combined dataset does not begin with the first file.

    xarray sorts two files of one element each in increasing order, even if all files decrease.
    """
    if dim in combined.indexes and dim in first.indexes:
        index = first.indexes[dim]
        if not combined.indexes[dim][: index.size].equals(index):
            raise NeedsFullCombineError("two files have another order than all files")
