"""Order files: nested as given, sorted, or arranged in a grid by their coordinates.

Overlapping files are cropped. The result is nested as `xarray.combine_nested` expects.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.chunks.columns import Ints
from virtualds.datasets.lazy import get_virtual_array, is_lazy
from virtualds.datasets.location import format_of_object
from virtualds.errors import CombineError, format_names
from virtualds.options import check_choice
from virtualds.source_file import StorageOptions, normalise_url, scheme_of
from virtualds.stores.listing import PathPattern, find_matching_files, is_pattern

# ---------------------------------------------------------------------- nested lists

Nested = list[Any]
"""Nested lists of files, indexes of files, `FileSlice` objects or datasets."""
IndexedElements = list[tuple[tuple[int, ...], Any]]
"""Elements of nested lists, in order, each after its indexes in the lists, outermost first."""
Paths = str | os.PathLike[str] | Sequence[Any]


def list_indexed(nested: Iterable[Any]) -> IndexedElements:
    """Return the elements of nested lists with their indexes, in order."""
    elements: IndexedElements = []
    for number, item in enumerate(nested):
        inner = list_indexed(item) if isinstance(item, list | tuple) else [((), item)]
        elements += [((number, *indexes), element) for indexes, element in inner]
    return elements


def flatten_nested(nested: Iterable[Any]) -> list[Any]:
    """Return the elements of nested lists, in order."""
    return [element for _, element in list_indexed(nested)]


def map_nested(change: Callable[[Any], Any], node: Any) -> Any:
    """Apply a function to all elements of nested lists, or to one element."""
    return [map_nested(change, item) for item in node] if isinstance(node, list) else change(node)


def is_full_grid(elements: IndexedElements) -> bool:
    """Return whether nested lists form a full grid: an element for each combination of indexes.

    >>> is_full_grid(list_indexed([[1, 2], [3, 4]])), is_full_grid(list_indexed([[1, 2], [3]]))
    (True, False)
    """
    indexes = [element_indexes for element_indexes, _ in elements]
    sizes = [len(set(numbers)) for numbers in zip(*indexes, strict=False)]
    return len(set(map(len, indexes))) <= 1 and math.prod(sizes) == len(indexes)


def _nest(elements: IndexedElements) -> Nested:
    """Return nested lists of elements, given with their indexes; gaps are closed."""
    rows: dict[int, IndexedElements] = {}
    for (number, *inner_indexes), element in elements:
        rows.setdefault(number, []).append((tuple(inner_indexes), element))
    return [_nest(row) if row[0][0] else row[0][1] for row in rows.values()]


@dataclass(frozen=True)
class Files:
    """The files of a call, in order and with their nesting, and their access options.

    Raises `FileNotFoundError` if no files are given.

    >>> files = Files([["a.nc", "b.nc"], ["c.nc"]])
    >>> files.flat, files.nest({0: 1.0, 2: 3.0})
    (('a.nc', 'b.nc', 'c.nc'), [[1.0], [3.0]])
    """

    nested: Nested
    options: StorageOptions | None = None
    pattern: PathPattern | None = None
    """The pattern of the urls, if it has names."""

    def __post_init__(self) -> None:
        if not self.flat:
            raise FileNotFoundError(
                f"files={self.nested!r}: the list of files is empty; give paths, urls, or a pattern"
            )

    @classmethod
    def of(cls, paths: Paths, storage_options: Mapping[str, Any] | None = None) -> Files:
        """Return the files of a glob pattern, or of a list, whose items are not globbed."""
        options = StorageOptions.of(storage_options)
        if isinstance(paths, str):
            return cls(find_matching_files([paths], storage_options), options, find_pattern(paths))
        if not isinstance(paths, Iterable | os.PathLike):
            raise TypeError(
                f"a pattern, or a list of paths or urls, is expected, got {type(paths).__name__}"
            )
        files = cls([paths] if isinstance(paths, os.PathLike) else list(paths), options)
        for file in files.flat:
            if not isinstance(file, str | os.PathLike) and format_of_object(file) is None:
                raise TypeError(
                    f"a path or url is expected, got {type(file).__name__}; open objects with "
                    f"open_virtual_dataset, and combine the datasets with xr.concat"
                )
        return files

    @cached_property
    def flat(self) -> tuple[Any, ...]:
        """All files, in order."""
        return tuple(flatten_nested(self.nested))

    @cached_property
    def are_remote(self) -> bool:
        """Whether any file is remote."""
        return any(
            isinstance(file, str | os.PathLike) and scheme_of(os.fspath(file)) != "file"
            for file in self.flat
        )

    @cached_property
    def facts(self) -> list[dict[str, str]]:
        """The texts that the names of the pattern match, for each file."""
        if self.pattern is None:
            return [{} for _ in self.flat]
        return [self.pattern.find_facts(normalise_url(file)) for file in self.flat]

    def select_newest(self, name: str) -> Files:
        """Select the newest of the files whose urls only differ in the text of ``name``."""
        pattern = self.pattern or PathPattern("")
        check_names(pattern, [name], "newest")
        urls = map(normalise_url, self.flat)
        return self.select(find_newest(split_version(pattern, url, name) for url in urls))

    def group_by(self, template: str) -> dict[str, list[int]]:
        """Return the indexes of files, by the group path that the template gives them.

        Raises `ValueError` if the template has a name that the pattern lacks, or a wildcard.
        """
        pattern = PathPattern(template)
        check_names(self.pattern, pattern.names, f"tree={template!r}")
        if any(sign in template for sign in "*?[,"):
            raise ValueError(
                f"tree={template!r}: a group path consists of names in braces and plain text, "
                f"such as '/{{model}}/{{variable}}'"
            )
        groups: dict[str, list[int]] = {}
        for number, facts in enumerate(self.facts):
            groups.setdefault(pattern.fill(facts).strip("/"), []).append(number)
        return groups

    def select(self, numbers: Iterable[int]) -> Files:
        """Select files by index, as one list."""
        return replace(self, nested=[self.flat[number] for number in numbers])

    def describe_names(self, dims: Container[Any]) -> str:
        """Return a note about names, other than ``dims``, whose text varies between files."""
        if self.pattern is None:
            return ""
        texts = {name: {facts[name]: None for facts in self.facts} for name in self.pattern.names}
        varying = [
            name
            for name, texts_of_name in texts.items()
            if len(texts_of_name) > 1 and name not in dims
        ]
        if not varying:
            return ""
        examples = "; ".join(
            f"{{{name}}} is {format_names(list(texts[name]), 3)}" for name in varying
        )
        return (
            f"the names of the files vary: {examples}. To join along a name, add it to concat_dim; "
            f"to give each a group, use open_virtual_mfdatatree(..., tree='/{{{varying[0]}}}'); to "
            f"use only the newest, pass newest={varying[-1]!r}"
        )

    def nest(self, results: Mapping[int, Any]) -> Nested:
        """Return results, given by file index, nested like the files.

        Files without a result, and lists without any results, are omitted.
        """
        return _nest(
            [(indexes, results[number]) for indexes, number in self._list_remaining(results)]
        )

    def are_positions_kept(self, remaining: Container[int]) -> bool:
        """Return whether the remaining files keep their positions in the nested lists.

        They do if only whole rows are missing; otherwise later files would move up.
        """
        return is_full_grid(self._list_remaining(remaining))

    def _list_remaining(self, remaining: Container[int]) -> IndexedElements:
        """Return the indexes of the remaining files in the nested lists, with their file index."""
        elements = enumerate(list_indexed(self.nested))
        return [(indexes, number) for number, (indexes, _) in elements if number in remaining]

    def find_file(self, file: str | os.PathLike[str], argument: str) -> int:
        """Return the index of a file; the error names the argument that refers to it."""
        urls = [normalise_url(other) for other in self.flat]
        if (url := normalise_url(file)) not in urls:
            raise ValueError(
                f"{argument} {url}: it is not one of the {len(urls)} files; give one of them"
            )
        return urls.index(url)


def find_pattern(paths: object) -> PathPattern | None:
    """Return the pattern of ``paths`` if it is a string with names in braces, otherwise None."""
    if not isinstance(paths, str) or not is_pattern(paths):
        return None
    pattern = PathPattern.from_url(normalise_url(paths))
    return pattern if pattern.names else None


def check_names(pattern: PathPattern | None, names: Iterable[str], argument: str) -> None:
    """Raise `ValueError` if a pattern lacks a name that ``argument`` requires."""
    present = () if pattern is None else pattern.names
    if absent := [name for name in names if name not in present]:
        listing = ", ".join(f"{{{name}}}" for name in present) or "no names"
        raise ValueError(
            f"{argument}: the pattern has no {{{absent[0]}}}, but {listing}; write {{{absent[0]}}} "
            f"in place of this part of the paths"
        )


Version = tuple[Any, Any]
"""The url of a file without its version, and the sort key of the version."""


def split_version(pattern: PathPattern, url: str, name: str) -> Version:
    """Return the url of a file without its version, and the sort key of the version.

    A url that the pattern does not match is a file without versions.
    """
    parts = pattern.split(url, name)
    if parts is None:
        return url, ()
    unversioned_url, text = parts
    return unversioned_url, (
        pattern.read(name, text) if pattern.specs[name] else to_natural_key(text),
        text,
    )


def find_newest(versions: Iterable[Version]) -> list[int]:
    """Return the indexes of the newest versions, in order.

    >>> find_newest([("tas", 9), ("tas", 10), ("pr", 9)])
    [1, 2]
    """
    newest: dict[Any, tuple[int, Any]] = {}
    for number, (unversioned_url, version) in enumerate(versions):
        if unversioned_url not in newest or version >= newest[unversioned_url][1]:
            newest[unversioned_url] = number, version
    return sorted(number for number, _ in newest.values())


def to_natural_key(text: str) -> list[tuple[bool, int, str]]:
    """Return a natural sort key of a string, which compares the numbers in it by value.

    >>> sorted(["v10", "v9", "v9b"], key=to_natural_key)
    ['v9', 'v9b', 'v10']
    """
    pieces = re.split(r"(\d+)", text)
    return [(n % 2 == 0, int(t) if n % 2 else 0, t) for n, t in enumerate(pieces) if t]


# ---------------------------------------------------------------------- along one dimension

COMPARABLE = {"i": "numbers", "u": "numbers", "f": "numbers", "M": "dates", "m": "durations"}
"""Names of sortable values by dtype kind; values of the same name can be compared."""


class FileRange(NamedTuple):
    """A range of elements of a file along a dimension."""

    file: int
    start: int
    stop: int


@dataclass(frozen=True)
class DimensionIndexes:
    """The pandas indexes of one or more files along a dimension, in the given order."""

    indexes: Sequence[pd.Index[Any]]

    def find_order(self) -> Ints:
        """Return the numbers of files, sorted by the first value of each.

        Files with decreasing coordinates are sorted in descending order. The given order is kept if
        it is sorted already, or if values cannot be ordered (text, missing values, some files
        increasing and others decreasing).

        >>> line = DimensionIndexes([pd.Index([5, 6]), pd.Index([1, 2, 3]), pd.Index([8])])
        >>> line.find_order().tolist()
        [1, 0, 2]
        """
        sign, steps = self._direction, np.diff(self._firsts)
        if sign is None or (sign == 0 and ((steps >= 0).all() or (steps <= 0).all())):
            return np.arange(len(self.indexes))
        ordered = np.flatnonzero(self._sizes)[np.argsort(self._firsts * (sign or 1), kind="stable")]
        return np.concatenate([ordered, np.flatnonzero(self._sizes == 0)])

    def find_overlapping_pairs(self, order: Ints) -> list[tuple[int, int]]:
        """Return pairs of files (by number) that share a value, the preferred file first."""
        owners = self._find_value_files(order)
        repeated = np.flatnonzero(owners != self._files)
        pairs = np.stack([owners[repeated], self._files[repeated]], axis=1)
        _, first_rows = np.unique(pairs, axis=0, return_index=True)
        return [(int(first), int(second)) for first, second in pairs[np.sort(first_rows)]]

    def find_shared(self, first: int, second: int) -> pd.Index[Any]:
        """Return the values that two files share, in the order of the second file."""
        index = self.indexes[second]
        return index[index.isin(self.indexes[first]) & index.notna()].unique()

    def cut(self, order: Ints) -> list[FileRange]:
        """Return ranges that contain each value once, from the first file in ``order`` that has it.

        Ranges are sorted by the coordinate, or are in the given order of the files if it cannot be
        ordered. A file without remaining values has an empty range.

        >>> line = DimensionIndexes([pd.Index([1, 2, 3, 4]), pd.Index([2, 3])])
        >>> [tuple(piece) for piece in line.cut(np.array([1, 0]))]
        [(0, 0, 1), (1, 0, 2), (0, 3, 4)]
        """
        positions = np.flatnonzero(self._find_value_files(order) == self._files)
        if (sign := self._direction) is not None:
            # files of single elements have no direction, but may decrease from file to file
            is_decreasing = self._firsts.size > 1 and bool((np.diff(self._firsts) <= 0).all())
            sign = sign or (-1 if is_decreasing else 1)
            positions = positions[np.argsort(self._codes[positions] * sign, kind="stable")]
        files = self._files[positions]
        breaks = (np.diff(positions) != 1) | (np.diff(files) != 0)
        starts = np.flatnonzero(np.r_[True, breaks])[: positions.size]
        ends = np.r_[starts[1:], positions.size][: starts.size] - 1
        offsets = self._starts[files[starts]]
        rows = np.stack([files[starts], positions[starts] - offsets, positions[ends] - offsets + 1])
        unused = np.setdiff1d(np.arange(len(self.indexes)), files)
        ranges = [FileRange(*row) for row in rows.T.tolist()]
        return ranges + [FileRange(number, 0, 0) for number in unused.tolist()]

    def _find_value_files(self, order: Ints) -> Ints:
        """Return, for each element, the number of the file from which its value is taken."""
        # the last element is that of missing values, whose code is -1
        first: Ints = np.full(int(self._codes.max(initial=-1)) + 2, len(self.indexes))
        np.minimum.at(first, self._codes, np.argsort(order)[self._files])
        return np.where(self._codes < 0, self._files, order[first[self._codes]])

    @cached_property
    def _direction(self) -> int | None:
        """1 if all files increase, -1 if all decrease, 0 for single elements, otherwise None."""
        if not self._is_comparable or (self._codes < 0).any():
            return None
        steps = np.diff(self._codes)[np.diff(self._files) == 0]
        is_increasing, is_decreasing = bool((steps >= 0).all()), bool((steps <= 0).all())
        return int(is_increasing) - int(is_decreasing) if is_increasing or is_decreasing else None

    @cached_property
    def _codes(self) -> Ints:
        """The integer codes of all elements: equal for equal values, -1 for missing values."""
        values = self.indexes[0].append(list(self.indexes[1:]))
        codes: Ints = pd.factorize(values, sort=self._is_comparable)[0].astype(np.int64)
        return codes

    @cached_property
    def _sizes(self) -> Ints:
        """The number of elements of each file."""
        return np.array([index.size for index in self.indexes], np.int64)

    @cached_property
    def _starts(self) -> Ints:
        """The start of each file among all elements."""
        return np.cumsum(self._sizes) - self._sizes

    @cached_property
    def _files(self) -> Ints:
        """The file number of each element."""
        return np.repeat(np.arange(len(self.indexes)), self._sizes)

    @cached_property
    def _firsts(self) -> Ints:
        """The code of the first value of each file with elements."""
        return self._codes[self._starts[self._sizes > 0]]

    @cached_property
    def _is_comparable(self) -> bool:
        """Whether the values of all files can be compared."""
        kinds = {
            f"times of the calendar {index.calendar}"
            if isinstance(index, xr.CFTimeIndex)
            else COMPARABLE.get(index.dtype.kind)
            for index in self.indexes
            if index.size
        }
        return len(kinds) == 1 and None not in kinds


# ---------------------------------------------------------------------- extents of files


def list_groups(opened: Any, *, inherit: bool = False) -> dict[str, xr.Dataset]:
    """Return the groups of a tree by path, or a dataset as the root group."""
    if isinstance(opened, xr.Dataset):
        return {"/": opened}
    return {node.path: node.to_dataset(inherit=inherit) for node in opened.subtree}


@dataclass(frozen=True)
class FileExtent:
    """The coordinates and variables of a file that determine its position among other files.

    ``file`` is its name in error messages. ``indexes`` are its coordinates by dimension.
    ``variables`` are the names of variables along each dimension, and, with the key None, those of
    all data variables. ``scalars`` are dimensions for which it only has a scalar coordinate.
    """

    file: str
    indexes: Mapping[Hashable, pd.Index[Any]]
    variables: Mapping[Hashable | None, frozenset[Hashable]]
    scalars: frozenset[Hashable] = frozenset()

    @classmethod
    def of(
        cls, file: Any, opened: xr.Dataset | xr.DataTree, joined: Iterable[Hashable] = ()
    ) -> FileExtent:
        """Return the extent of the dataset or tree of a file.

        A tree has a coordinate if it is the same in all groups with its dimension. If a file lacks
        a ``joined`` dimension, a scalar coordinate of that name is used.
        """
        groups = list_groups(opened, inherit=True)
        indexes_by_dim: dict[Hashable, list[Any]] = {}
        for group in groups.values():
            for dim in group.dims:
                # the coordinate of the dimension, if it is in memory
                index = group.xindexes.get(dim)
                is_pandas = type(index) is xr.indexes.PandasIndex
                indexes_by_dim.setdefault(dim, []).append(index.index if is_pandas else None)  # type: ignore[union-attr]
        variables = [(path, n, v) for path, g in groups.items() for n, v in g.variables.items()]
        data = frozenset((path, n) for path, g in groups.items() for n in g.data_vars)
        scalar_lists = {
            dim: _list_scalars(groups, dim) for dim in joined if dim not in indexes_by_dim
        }
        scalars = {dim: indexes[0] for dim, indexes in scalar_lists.items() if _are_equal(indexes)}
        names_along = {
            dim: frozenset((path, n) for path, n, v in variables if dim in v.dims)
            for dim in indexes_by_dim
        }
        return cls(
            str(file),
            {dim: indexes[0] for dim, indexes in indexes_by_dim.items() if _are_equal(indexes)}
            | scalars,
            {**names_along, **dict.fromkeys(scalars, data), None: data},
            frozenset(scalars),
        )


def _are_equal(indexes: Sequence[pd.Index[Any] | None]) -> bool:
    """Return whether all indexes exist and are equal; False for an empty sequence."""
    first, *others = indexes or [None]
    return first is not None and all(o is not None and first.equals(o) for o in others)


def _list_scalars(groups: Mapping[str, xr.Dataset], name: Hashable) -> list[pd.Index[Any] | None]:
    """Return the scalar coordinate of each group as an index of one element; None if not scalar."""
    variables = [group.coords[name].variable for group in groups.values() if name in group.coords]
    return [
        None
        if v.dims or get_virtual_array(v) is not None or is_lazy(v)
        else xr.Variable(("_",), v.values.reshape(1)).to_index()
        for v in variables
    ]


# ---------------------------------------------------------------------- arranging

Overlap = Literal["error", "first", "last", "keep"]
OVERLAPS = ("error", "first", "last", "keep")
CROPPING_OVERLAPS = ("first", "last")
"""Choices of ``overlap`` that crop files, so that each coordinate value is in one file."""
OVERLAP_REMEDY = (
    "pass overlap='first' or overlap='last' to take such values from the first or the last file "
    "that has them, or overlap='keep' to have them several times"
)


@dataclass(frozen=True)
class FileSlice:
    """A file, or the part of it in ranges ``crop`` (dimension, start, stop)."""

    file: int
    crop: tuple[tuple[Hashable, int, int], ...] = ()

    def cut(self, crop_range: tuple[Hashable, int, int]) -> FileSlice:
        """Return the slice cropped to a further range (dimension, start, stop)."""
        return replace(self, crop=(*self.crop, crop_range))


def crop_datasets(parts: Nested, opened: Mapping[int, Any]) -> Nested:
    """Return the cropped datasets or trees of nested file slices, in the same nesting."""

    def crop(part: FileSlice) -> Any:
        dataset = opened[part.file]
        return dataset.isel({d: slice(*cut) for d, *cut in part.crop}) if part.crop else dataset

    cropped: Nested = map_nested(crop, parts)
    return cropped


def separate_layers(
    extents: Mapping[int, FileExtent], dims: tuple[Hashable, ...]
) -> dict[tuple[int, ...], list[int]]:
    """Divide files into layers, each a grid of files that do not overlap.

    Files with the same coordinate along the first dimension form a row. The rows of a layer share
    no value, and the files of each row are divided into layers along the other dimensions.

    >>> def extent(*times):
    ...     return FileExtent("", {"time": pd.Index(times)}, {})
    >>> separate_layers({0: extent(1, 2), 1: extent(2, 3), 2: extent(3, 4)}, ("time",))
    {(0, 0): [0, 2], (1, 0): [1]}
    """
    if not dims:
        # all files have the same coordinates
        return {(layer,): [number] for layer, number in enumerate(extents)}
    rows: dict[Any, dict[int, FileExtent]] = {}
    for number, extent in extents.items():
        index = extent.indexes.get(dims[0], pd.Index([]))
        rows.setdefault(_key_of(index), {})[number] = extent
    layers: dict[tuple[int, ...], list[int]] = {}
    values_by_layer: list[set[Any]] = []
    for values, row in rows.items():
        layer = next(
            (
                n
                for n, layer_values in enumerate(values_by_layer)
                if layer_values.isdisjoint(values)
            ),
            len(values_by_layer),
        )
        values_by_layer += [set()] if layer == len(values_by_layer) else []
        values_by_layer[layer].update(values)
        for inner_layer, numbers in separate_layers(row, dims[1:]).items():
            layers.setdefault((layer, *inner_layer), []).extend(numbers)
    return layers


def is_incomplete_grid(files: Nested, parts: Nested) -> bool:
    """Return whether the arranged parts may form a grid that lacks cells."""
    if not any(isinstance(item, list) for item in files):
        return any(isinstance(item, list) for item in parts)
    return any(part.crop for part in flatten_nested(parts))


@dataclass(frozen=True)
class Arrangement:
    """The options for ordering files and for overlaps, as in `open_virtual_mfdataset`."""

    sort: bool = True
    overlap: Overlap = "error"

    def __post_init__(self) -> None:
        check_choice("overlap", self.overlap, OVERLAPS)

    def arrange_parts(
        self, files: Nested, extents: Mapping[int, FileExtent], dims: tuple[Any, ...]
    ) -> Nested:
        """Return file slices nested as xarray expects, given nested indexes of files.

        With several ``dims``, outermost first, files that are not nested are arranged in a grid by
        their coordinates; the dimension None merges files. Without ``dims``, xarray orders the
        files. Raises `CombineError` if files overlap, or a file lacks a coordinate for this.
        """
        grid = _Grid(extents, self.overlap)
        if not dims:
            return self._order_by_coordinates(flatten_nested(files), grid)
        if not any(isinstance(item, list) for item in files):
            files = grid.sort_files(files, dims) if self.sort else files
            return grid.nest_parts(grid.nest_files(files, dims), dims)
        if not is_full_grid(list_indexed(files)):
            raise CombineError(
                "files in nested lists: the lists have different lengths; give all files in one "
                "list, which their coordinates arrange as a grid"
            )
        # nested lists determine the order
        return grid.nest_parts(files, dims)

    def _order_by_coordinates(self, files: Sequence[int], grid: _Grid) -> list[FileSlice]:
        """Return file slices for `xarray.combine_by_coords`, which sorts them."""
        if self.overlap == "keep":
            return [FileSlice(number) for number in files]
        groups: dict[Any, list[int]] = {}
        for number in files:
            groups.setdefault(grid.extents[number].variables[None], []).append(number)
        slices: list[FileSlice] = []
        for group in groups.values():
            dims = grid.find_differing_dims(group)
            if dims and self.overlap in CROPPING_OVERLAPS:
                slices += flatten_nested(grid.nest_parts(grid.nest_files(group, dims), dims))
            else:
                have_same_coordinates = not dims and len(group) > 1
                slices += map(
                    FileSlice, [grid.find_preferred_file(group)] if have_same_coordinates else group
                )
        # omit files without elements, which cannot be ordered by the coordinate
        return [part for part in slices if all(start < stop for _, start, stop in part.crop)]

    def check(self, combined: FileExtent, extents: Iterable[FileExtent]) -> None:
        """Raise `CombineError` if the result repeats a coordinate value more often than any file.

        Most overlaps are detected earlier, except for those that `xarray.combine_by_coords`
        accepts, and those between rows whose files have different coordinates.
        """
        all_extents = list(extents)
        for dim, index in combined.indexes.items() if self.overlap != "keep" else ():
            extents_with_dim = [extent for extent in all_extents if dim in extent.indexes]
            if index.is_unique or not extents_with_dim:
                continue
            values = index[index.duplicated() & index.notna()].unique()
            counts = [_count_values(extent.indexes[dim], values) for extent in extents_with_dim]
            values = values[_count_values(index, values) > np.max(counts, axis=0)]
            if values.size:
                files = [e.file for e in extents_with_dim if e.indexes[dim].isin(values[:1]).any()]
                raise CombineError(
                    f"overlap along {dim!r}: {values.size} of its values, "
                    f"{_format_values(values)}, would occur several times, the first from "
                    f"{files[0]} and {files[-1]}; {OVERLAP_REMEDY}"
                )


def _count_values(index: pd.Index[Any], values: pd.Index[Any]) -> npt.NDArray[np.int64]:
    """Return how often each of the unique ``values`` occurs in an index."""
    positions = values.get_indexer(index)
    return np.bincount(positions[positions >= 0], minlength=values.size)


def _format_values(values: pd.Index[Any]) -> str:
    """Format a value, or the range of several."""
    return f"{values[0]}" if values.size == 1 else f"from {values[0]} to {values[-1]}"


@dataclass(frozen=True)
class _Grid:
    """Arranges files by their extents; a node is the index of a file, or a nested list of them."""

    extents: Mapping[int, FileExtent]
    overlap: Overlap

    def find_differing_dims(self, files: Sequence[int]) -> tuple[Hashable, ...]:
        """Return the dimensions along which the coordinates of files differ."""
        dims = self.extents[files[0]].indexes
        return tuple(dim for dim in dims if self._find_common(list(files), dim) is None)

    def find_preferred_file(self, files: Sequence[int]) -> int:
        """Return the file that ``overlap`` selects among files with equal coordinates."""
        extents = [self.extents[number] for number in files]
        first, last = extents[0], extents[-1]
        subject = f"{first.file} and {last.file} have the same coordinates"
        without_index = sorted(map(str, first.variables.keys() - first.indexes.keys() - {None}))
        if without_index or not first.indexes:
            reason = (
                f"none along {', '.join(map(repr, without_index))}"
                if without_index
                else "no coordinate"
            )
            raise CombineError(
                f"{subject}, but {reason} to tell where they lie; give them one (coordinates=...), "
                f"or name the dimension to join along (combine='nested', concat_dim=...)"
            )
        dims = ", ".join(map(repr, first.indexes))
        if self.overlap not in CROPPING_OVERLAPS:
            raise CombineError(f"overlap along {dims}: {subject}; {OVERLAP_REMEDY}")
        if any(extent.variables != first.variables for extent in extents):
            raise CombineError(
                f"overlap={self.overlap!r} along {dims}: {subject}, but not the same variables, so "
                f"that data would be lost; drop variables first (preprocess=...)"
            )
        return files[0] if self.overlap == "first" else files[-1]

    def nest_files(self, files: Sequence[int], dims: tuple[Any, ...]) -> Nested:
        """Return nested files; those with the same coordinate along the first dim form a row."""
        if len(dims) < 2:
            return list(files)
        rows: dict[Any, list[int]] = {}
        for number in files:
            extent = self.extents[number]
            if dims[0] not in extent.indexes:
                raise CombineError(
                    f"{extent.file}: it has no coordinate {dims[0]!r} in memory, which gives "
                    f"files their place in a grid; give it one (coordinates=...), or nest the list "
                    f"of files"
                )
            rows.setdefault(_key_of(extent.indexes[dims[0]]), []).append(number)
        return [self.nest_files(row, dims[1:]) for row in rows.values()]

    def sort_files(self, files: Nested, dims: tuple[Any, ...]) -> Nested:
        """Sort files by their coordinates, so that all rows of a grid have the same order."""
        ranks = [self._rank_files(files, dim, of_rows=len(dims) > 1) for dim in dims]
        return [files[n] for n in np.lexsort(ranks[::-1]).tolist()]

    def _rank_files(self, files: Nested, dim: Any, of_rows: bool) -> Sequence[int]:
        """Return the rank of each file (or of its row) in the order of a coordinate."""
        indexes = self._list_common(files, dim)
        if indexes is None:
            return [0] * len(files)
        ranks: list[int] = np.argsort(DimensionIndexes(indexes).find_order()).tolist()
        if not of_rows:
            return ranks
        first: dict[Any, int] = {}
        return [first.setdefault(_key_of(i), rank) for i, rank in zip(indexes, ranks, strict=True)]

    def nest_parts(self, nodes: Nested, dims: tuple[Any, ...]) -> Nested:
        """Return nested file slices, cropped and ordered along all dimensions."""
        # if lists are deeper than dims, xarray raises an error
        indexes = self._list_common(nodes, dims[0]) if dims else None
        if indexes is None:
            return [self._nest_below(node, dims) for node in nodes]
        slices = []
        for number, start, stop in self._crop_nodes(nodes, dims, DimensionIndexes(indexes)):
            part, files = self._nest_below(nodes[number], dims), flatten_nested([nodes[number]])
            if stop - start == indexes[number].size:
                slices.append(part)
            # files that lack a dimension cannot be cropped along it
            elif not any(dims[0] in self.extents[n].scalars for n in files):
                slices.append(
                    map_nested(partial(FileSlice.cut, crop_range=(dims[0], start, stop)), part)
                )
        return slices

    def _nest_below(self, node: Any, dims: tuple[Any, ...]) -> Any:
        """Return the file slices of a node, nested along the remaining dimensions."""
        return self.nest_parts(node, dims[1:]) if isinstance(node, list) else FileSlice(node)

    def _crop_nodes(
        self, nodes: Nested, dims: tuple[Any, ...], line: DimensionIndexes
    ) -> Iterable[FileRange]:
        """Return the ranges of nodes to use along the first dimension.

        Raises `CombineError` for overlaps that are not allowed, or that would lose data.
        """
        # order nodes by precedence
        order = np.argsort([min(flatten_nested([node])) for node in nodes], kind="stable")
        order = order[::-1] if self.overlap == "last" else order
        pairs = line.find_overlapping_pairs(order) if self.overlap != "keep" else []
        for first, second in pairs:
            contents = [self._list_content(nodes[n], dims) for n in (first, second)]
            files = [self.extents[flatten_nested([nodes[n]])[0]].file for n in (first, second)]
            if self.overlap == "error":
                values = line.find_shared(first, second)
                more = f" ({len(pairs) - 1} more pairs of files overlap)" if len(pairs) > 1 else ""
                raise CombineError(
                    f"overlap along {dims[0]!r}: {files[0]} and {files[1]} both have {values.size} "
                    f"of its values, {_format_values(values)}{more}; {OVERLAP_REMEDY}"
                )
            if contents[0] != contents[1]:
                raise CombineError(
                    f"overlap={self.overlap!r} along {dims[0]!r}: {files[0]} and {files[1]} "
                    f"overlap, but do not hold the same variables and cells of the grid, so that "
                    f"data would be lost; drop variables, or select first (preprocess=...)"
                )
        if self.overlap in CROPPING_OVERLAPS:
            return line.cut(order)
        return (FileRange(n, 0, index.size) for n, index in enumerate(line.indexes))

    def _list_common(self, nodes: Nested, dim: Any) -> list[pd.Index[Any]] | None:
        """Return the coordinate of each node, or None if a node has no common coordinate."""
        indexes = [self._find_common(node, dim) for node in nodes]
        present = [index for index in indexes if index is not None]
        return present if len(present) == len(nodes) else None

    def _find_common(self, node: Any, dim: Any) -> pd.Index[Any] | None:
        """Return the coordinate that all files of a node share, or None."""
        indexes = [self.extents[n].indexes.get(dim) for n in flatten_nested([node])]
        return indexes[0] if _are_equal(indexes) else None

    def _list_content(self, node: Any, dims: tuple[Any, ...]) -> Any:
        """Return the variables of a node along its dimension, and its other coordinates."""
        return {
            (
                self.extents[n].variables.get(dims[0]),
                *(_key_of(self.extents[n].indexes.get(dim, pd.Index([]))) for dim in dims[1:]),
            )
            for n in flatten_nested([node])
        }


def _key_of(index: pd.Index[Any]) -> Any:
    """Return a hashable key of the values of an index."""
    return tuple(index.tolist())
