"""Arranging files before they are combined: their order, their place in a grid, and cropping."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.chunks.projection import Ints
from virtualds.datasets.keywords import check_choice
from virtualds.datasets.lazy import get_virtual_array, is_unread
from virtualds.errors import CombineError


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


Overlap = Literal["error", "first", "last", "keep"]
OVERLAPS = ("error", "first", "last", "keep")
CROPPING_OVERLAPS = ("first", "last")
"""Ways to treat overlaps that crop files: values of other files are removed."""
REMEDY = (
    "pass overlap='first' or overlap='last' to take such values from the first or the last file "
    "that has them, or overlap='keep' to have them several times"
)


class FileSlice(NamedTuple):
    """A file, or what is left of it: stretches as (dimension, start, stop)."""

    file: int
    crop: tuple[tuple[Hashable, int, int], ...] = ()

    def of(self, dataset: Any) -> Any:
        """Return the remaining part of the dataset or tree of the file."""
        return dataset.isel({d: slice(*cut) for d, *cut in self.crop}) if self.crop else dataset


Nested = list[Any]
"""Numbers of files, or parts of files, nested as `xarray.combine_nested` expects them."""


@dataclass(frozen=True)
class Arrangement:
    """How files are ordered, and how overlaps are treated.

    Parameters
    ----------
    sort : bool
        Whether files that are not nested are ordered by their coordinates.
    overlap : {"error", "first", "last", "keep"}
        What to do with values of a coordinate that several files have: the first, or the last, of
        the files in the given order counts.

    Raises
    ------
    ValueError
        ``overlap`` has an unknown value.
    """

    sort: bool = True
    overlap: Overlap = "error"

    def __post_init__(self) -> None:
        check_choice("overlap", self.overlap, OVERLAPS)

    def arrange_parts(
        self, files: Nested, extents: Mapping[int, Extent], dims: tuple[Any, ...]
    ) -> Nested:
        """Return parts of files in their places, nested as xarray expects them.

        Parameters
        ----------
        files : list
            Numbers of files, nested as given; files that are not nested form a grid by their
            coordinates if there are several dimensions.
        extents : mapping of int to Extent
        dims : tuple of str or None
            The dimensions to join along, the outermost first; None merges. Without any, xarray
            orders files by their coordinates.

        Raises
        ------
        CombineError
            Files overlap, or a file has no coordinate to arrange it by.
        """
        if not dims:
            return self._order_by_coordinates(flatten_nested(files), extents)
        grid = _Grid(extents, self.overlap)
        if not any(isinstance(item, list) for item in files):
            files = grid.sort_files(files, dims) if self.sort else files
            return grid.nest_parts(grid.nest_files(files, dims), dims)
        if is_ragged(files):
            raise CombineError(
                "files in nested lists: the lists have different lengths; give all files in one "
                "list, to be put into a grid by their coordinates"
            )
        # nested lists already give the order
        return grid.nest_parts(files, dims)

    def check(self, combined: Extent, extents: Iterable[Extent]) -> None:
        """Refuse a result that repeats a value of a coordinate more often than any file.

        Most overlaps of files are found earlier. The rest are overlaps that by_coords accepts, and
        those of rows in which files have different coordinates.

        Raises
        ------
        CombineError
        """
        if self.overlap != "keep":
            _check_unique(combined, list(extents))

    def _order_by_coordinates(
        self, files: Sequence[int], extents: Mapping[int, Extent]
    ) -> list[FileSlice]:
        """Return parts of files for `xarray.combine_by_coords`, which orders them."""
        if self.overlap == "keep":
            return [FileSlice(number) for number in files]
        groups: dict[Any, list[int]] = {}
        for number in files:
            groups.setdefault(extents[number].variables[None], []).append(number)
        grid = _Grid(extents, self.overlap)
        found: list[FileSlice] = []
        for group in groups.values():
            dims = grid.find_differing_dims(group)
            if dims and self.overlap in CROPPING_OVERLAPS:
                found += flatten_nested(grid.nest_parts(grid.nest_files(group, dims), dims))
            else:
                one_place = not dims and len(group) > 1
                found += map(FileSlice, [grid.find_counting_file(group)] if one_place else group)
        # a file without elements has no place by coordinate
        return [part for part in found if all(start < stop for _, start, stop in part.crop)]


def crop_datasets(parts: Nested, opened: Mapping[int, Any]) -> Nested:
    """Return the datasets of parts, in the same nesting."""
    return [
        crop_datasets(part, opened) if isinstance(part, list) else part.of(opened[part.file])
        for part in parts
    ]


@dataclass(frozen=True)
class _Grid:
    """Files with their extents, to be arranged along dimensions."""

    extents: Mapping[int, Extent]
    overlap: Overlap

    def find_differing_dims(self, files: Sequence[int]) -> tuple[Hashable, ...]:
        """Return the dimensions along which files have different coordinates."""
        first = self.extents[files[0]].indexes
        others = [self.extents[n].indexes for n in files[1:]]
        return tuple(
            dim
            for dim, index in first.items()
            if not all(dim in other and index.equals(other[dim]) for other in others)
        )

    def find_counting_file(self, files: Sequence[int]) -> int:
        """Return the file that counts among files with the same coordinates.

        Raises
        ------
        CombineError
            No file counts, or the files may belong to different places.
        """
        extents = [self.extents[number] for number in files]
        first, last = extents[0], extents[-1]
        same = f"{first.file} and {last.file} have the same coordinates"
        bare = sorted(map(str, first.variables.keys() - first.indexes.keys() - {None}))
        if bare or not first.indexes:
            lacking = f"none along {', '.join(map(repr, bare))}" if bare else "no coordinate"
            raise CombineError(
                f"{same}, but {lacking} to tell where they lie; give them one (coordinates=...), "
                f"or name the dimension to join along (combine='nested', concat_dim=...)"
            )
        dims = ", ".join(map(repr, first.indexes))
        if self.overlap not in CROPPING_OVERLAPS:
            raise CombineError(f"overlap along {dims}: {same}; {REMEDY}")
        if any(extent.variables != first.variables for extent in extents):
            raise CombineError(
                f"overlap={self.overlap!r} along {dims}: {same}, but not the same variables, so "
                f"that data would be lost; drop variables before (preprocess=...)"
            )
        return files[0] if self.overlap == "first" else files[-1]

    def nest_files(self, files: Nested, dims: tuple[Any, ...]) -> Nested:
        """Nest files: those with the same coordinate along the first dimension are one row."""
        if len(dims) < 2:
            return files
        rows: dict[Any, list[int]] = {}
        for number in files:
            rows.setdefault(_key_of(self._get_index(number, dims[0])), []).append(number)
        return [self.nest_files(row, dims[1:]) for row in rows.values()]

    def sort_files(self, files: Nested, dims: tuple[Any, ...]) -> Nested:
        """Return files in the order of their coordinates; all rows of a grid share one order."""
        ranks = [self._rank_files(files, dim, of_rows=len(dims) > 1) for dim in dims]
        return [files[n] for n in np.lexsort(ranks[::-1]).tolist()]

    def _rank_files(self, files: Nested, dim: Any, of_rows: bool) -> Sequence[int]:
        """Return the rank of every file by its coordinate, or by that of its row."""
        indexes = [self._find_common(number, dim) for number in files]
        known = [index for index in indexes if index is not None]
        if len(known) < len(files):
            return [0] * len(files)
        ranks: list[int] = np.argsort(DimensionLine(known).find_order()).tolist()
        if not of_rows:
            return ranks
        first: dict[Any, int] = {}
        return [first.setdefault(_key_of(i), rank) for i, rank in zip(known, ranks, strict=True)]

    def _get_index(self, number: int, dim: Any) -> pd.Index[Any]:
        extent = self.extents[number]
        if dim not in extent.indexes:
            raise CombineError(
                f"{extent.file}: it has no coordinate {dim!r} in memory to be put into a grid by; "
                f"give it one (coordinates=...), or nest the list of files"
            )
        return extent.indexes[dim]

    def nest_parts(self, nodes: Nested, dims: tuple[Any, ...]) -> Nested:
        """Return nested numbers as nested parts, arranged along every dimension."""
        if not dims:
            # xarray reports that the files are nested deeper than there are dimensions
            return [self._nest_below(node, dims) for node in nodes]
        return [
            _crop(self._nest_below(nodes[piece.file], dims[1:]), dims[0], piece, whole)
            for piece, whole in self._split_pieces(nodes, dims)
            if whole or not self._is_scalar(nodes[piece.file], dims[0])
        ]

    def _is_scalar(self, node: Any, dim: Any) -> bool:
        """Say whether files lack a dimension, so that they cannot be cut along it."""
        return any(dim in self.extents[number].scalars for number in flatten_nested([node]))

    def _nest_below(self, node: Any, dims: tuple[Any, ...]) -> Any:
        return self.nest_parts(node, dims) if isinstance(node, list) else FileSlice(node)

    def _split_pieces(
        self, nodes: Nested, dims: tuple[Any, ...]
    ) -> Iterator[tuple[FileStretch, bool]]:
        """Yield stretches of nodes along the first dimension, and whether each is a whole node."""
        indexes = [self._find_common(node, dims[0]) for node in nodes]
        known = [index for index in indexes if index is not None]
        if len(known) < len(indexes):
            yield from ((FileStretch(n, 0, 0), True) for n in range(len(nodes)))
            return
        line = DimensionLine(known)
        # the files given first, or last, count where files overlap
        order = np.argsort([min(flatten_nested([node])) for node in nodes], kind="stable")
        order = order[::-1] if self.overlap == "last" else order
        if self.overlap != "keep" and (pairs := line.find_sharing_pairs(order)):
            self._check(nodes, dims, line, pairs)
        for piece in (
            line.cut(order) if self.overlap in CROPPING_OVERLAPS else _list_whole_pieces(line)
        ):
            yield piece, piece.stop - piece.start == known[piece.file].size

    def _find_common(self, node: Any, dim: Any) -> pd.Index[Any] | None:
        """Return the coordinate of a node, if all files in it have the same."""
        if not isinstance(dim, str):
            return None
        indexes = [self.extents[n].indexes.get(dim) for n in flatten_nested([node])]
        first = indexes[0]
        same = first is not None and all(i is not None and first.equals(i) for i in indexes[1:])
        return first if same else None

    def _check(
        self,
        nodes: Nested,
        dims: tuple[Any, ...],
        line: DimensionLine,
        pairs: list[tuple[int, int]],
    ) -> None:
        """Refuse overlaps that are not allowed, or would lose more than duplicate values."""
        if self.overlap == "error":
            raise self._explain_overlap(nodes, dims[0], line, pairs)
        for one, other in pairs:
            if self._describe_content(nodes[one], dims) != self._describe_content(
                nodes[other], dims
            ):
                files = [self.extents[flatten_nested([nodes[n]])[0]].file for n in (one, other)]
                raise CombineError(
                    f"overlap={self.overlap!r} along {dims[0]!r}: {files[0]} and {files[1]} "
                    f"overlap, but do not hold the same variables and cells of the grid, so that "
                    f"data would be lost; drop variables, or select before (preprocess=...)"
                )

    def _describe_content(self, node: Any, dims: tuple[Any, ...]) -> Any:
        """Return the variables of a node along its dimension, and their places along the others."""
        return {
            (
                self.extents[n].variables.get(dims[0]),
                *(_key_of(self.extents[n].indexes.get(dim, pd.Index([]))) for dim in dims[1:]),
            )
            for n in flatten_nested([node])
        }

    def _explain_overlap(
        self, nodes: Nested, dim: Any, line: DimensionLine, pairs: list[tuple[int, int]]
    ) -> CombineError:
        one, other = pairs[0]
        values = line.find_shared(one, other)
        files = [self.extents[flatten_nested([nodes[n]])[0]].file for n in (one, other)]
        more = f" ({len(pairs) - 1} more pairs of files overlap)" if len(pairs) > 1 else ""
        return CombineError(
            f"overlap along {dim!r}: {files[0]} and {files[1]} both have {values.size} of its "
            f"values, {_format_values(values)}{more}; {REMEDY}"
        )


def _check_unique(combined: Extent, extents: Sequence[Extent]) -> None:
    for dim, index in combined.indexes.items():
        having = [extent for extent in extents if dim in extent.indexes]
        if index.is_unique or not having:
            continue
        values = _find_multiplied(index, [extent.indexes[dim] for extent in having])
        if values.size:
            files = [o.file for o in having if o.indexes[dim].isin(values[:1]).any()]
            raise CombineError(
                f"overlap along {dim!r}: {values.size} of its values, {_format_values(values)}, "
                f"would be there several times, the first from {files[0]} and {files[-1]}; {REMEDY}"
            )


def _find_multiplied(index: pd.Index[Any], parts: Iterable[pd.Index[Any]]) -> pd.Index[Any]:
    """Return the values that an index has more often than any part of it."""
    values = index[index.duplicated() & index.notna()].unique()
    most = np.zeros(values.size, np.int64)
    for part in parts:
        np.maximum(most, _count_values(part, values), out=most)
    return values[_count_values(index, values) > most]


def _count_values(index: pd.Index[Any], values: pd.Index[Any]) -> npt.NDArray[np.int64]:
    """Return how often an index has each of some distinct values."""
    places = values.get_indexer(index)
    return np.bincount(places[places >= 0], minlength=values.size)


def _format_values(values: pd.Index[Any]) -> str:
    return f"{values[0]}" if values.size == 1 else f"from {values[0]} to {values[-1]}"


def _list_whole_pieces(line: DimensionLine) -> list[FileStretch]:
    return [FileStretch(n, 0, index.size) for n, index in enumerate(line.indexes)]


def _crop(node: Any, dim: Any, piece: FileStretch, whole: bool) -> Any:
    """Cut a part, or all parts below, unless it stays whole."""
    if whole:
        return node
    if isinstance(node, list):
        return [_crop(item, dim, piece, whole) for item in node]
    return FileSlice(node.file, (*node.crop, (dim, piece.start, piece.stop)))


def flatten_nested(nodes: Nested) -> list[Any]:
    """Return the elements of nested lists, in order."""
    return [leaf for n in nodes for leaf in (flatten_nested(n) if isinstance(n, list) else [n])]


def _key_of(index: pd.Index[Any]) -> Any:
    return tuple(index.tolist())


def is_ragged(nested: Nested) -> bool:
    """Say whether lists at the same depth differ in length or in nesting."""
    level: list[Any] = [nested]
    while any(isinstance(node, list) for node in level):
        if len({len(node) if isinstance(node, list) else -1 for node in level}) > 1:
            return True
        level = [item for node in level for item in node]
    return False


def is_row_wise(given: Nested, parts: Nested) -> bool:
    """Say whether parts may be an incomplete grid, with neighbouring cells in rows."""
    if not any(isinstance(item, list) for item in given):
        return any(isinstance(item, list) for item in parts)
    return any(part.crop for part in flatten_nested(parts))


def combine_by_rows(
    nested: Nested, dims: Sequence[Any], combine: Callable[[Nested, Any], Any]
) -> Any:
    """Combine datasets of a grid that may lack cells: first each row, then the rows.

    Parameters
    ----------
    nested : list
    dims : sequence of str or None
        The outermost first.
    combine : callable
        Takes a list of datasets and a dimension.
    """
    rows = [combine_by_rows(row, dims[1:], combine) for row in nested] if len(dims) > 1 else nested
    return combine(rows, dims[0])
