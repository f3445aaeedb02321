"""Combine datasets with xarray, name the files in errors, and warn about differences.

xarray combines files with different dimensions or grids without an error: it broadcasts variables
along dimensions that only other files have, and takes the union of different grids, so that most of
the result is missing. Both are detected from names, sizes and coordinates, without reading data.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from virtualds.arrays.array import has_missing_value
from virtualds.bounds import ALWAYS_ALLOWED, check_joinable
from virtualds.combine.ordering import (
    Arrangement,
    Nested,
    flatten_nested,
    is_full_grid,
    list_groups,
    list_indexed,
)
from virtualds.datasets.lazy import expand_variable, get_virtual_array
from virtualds.datasets.padding import Padding
from virtualds.datasets.source_positions import put_boxes
from virtualds.datasets.structure import (
    describe_worst_difference,
    digest_values,
    find_renamed,
    format_rename,
)
from virtualds.errors import (
    CombineError,
    CombineWarning,
    VirtualdsError,
    format_names,
    warn_user,
    without_secrets,
)
from virtualds.options import check_choice, guess_name

Indexes = Mapping[Any, "pd.Index[Any]"]
"""The pandas index of each dimension."""
Combine = Callable[[Nested], Any]
"""A function that combines nested lists of datasets."""
COMBINE_ERRORS = (ValueError, TypeError, VirtualdsError)
"""Errors of combining datasets that do not fit together."""
FILL_VALUE_REMEDY = (
    "give one (fill_value={{{name!r}: {value}}}), convert it to float in preprocess= "
    "(ds.assign({name}=ds.{name}.astype('f8')) stays virtual), or leave it out "
    "(drop_variables={name!r})"
)
"""The remedy for padded variables whose dtype has no missing value."""
COMBINE_METHODS = ("by_coords", "nested")
PASSED_TO_XARRAY = ("fill_value",)
"""Keyword arguments that are passed on to xarray unchanged."""
CHOICES: dict[str, tuple[str, ...]] = {
    "data_vars": ("minimal", "different", "all"),
    "coords": ("minimal", "different", "all"),
    "compat": ("equals", "identical", "broadcast_equals", "no_conflicts", "override"),
    "join": ("outer", "inner", "left", "right", "exact", "override"),
    "combine_attrs": ("override", "drop", "identical", "no_conflicts", "drop_conflicts"),
}
"""The strings that options of xarray accept; some options also accept names or a function."""


@dataclass(frozen=True)
class Combination:
    """Combines datasets with a method of xarray, along dimensions and with options.

    ``arrangement`` is how datasets are ordered beforehand, and ``pad`` are dimensions along which
    shorter datasets are padded. Raises `ValueError` for an unknown method or value of an option.
    """

    combine: str
    concat_dim: Any
    options: dict[str, Any] = field(default_factory=dict)
    arrangement: Arrangement = field(default_factory=Arrangement)
    pad: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("combine", self.combine, COMBINE_METHODS)
        for name, value in ((n, v) for n, v in self.options.items() if n in CHOICES):
            # some options accept names or functions, and None in newer versions of xarray
            if isinstance(value, str) or (value is None and name in ("compat", "join")):
                check_choice(name, value, CHOICES[name])
        if invalid := [dim for dim in self.dims if not isinstance(dim, str | None)]:
            raise TypeError(
                f"concat_dim={invalid[0]!r}: give the name of a dimension, None, or a list of these"
            )
        if self.combine == "by_coords" and self.concat_dim is not None:
            raise ValueError(
                f"concat_dim {self.concat_dim!r} is for combine='nested': pass that too, or leave "
                f"concat_dim out, since 'by_coords' finds dimensions by coordinates"
            )

    @property
    def dims(self) -> tuple[Any, ...]:
        """The dimensions to join along, outermost first; empty if coordinates determine them."""
        if self.combine == "by_coords":
            return ()
        has_several = isinstance(self.concat_dim, list | tuple)
        return tuple(self.concat_dim) if has_several else (self.concat_dim,)

    def __call__(self, datasets: Nested) -> Any:
        """Combine nested datasets or trees, and return the result."""
        if self.combine == "by_coords":
            return xr.combine_by_coords(datasets, **self.options)
        if len(self.dims) == 1:
            return self._concatenate(datasets, self.dims[0])
        elements = list_indexed(datasets)
        depths = {len(indexes) for indexes, _ in elements}
        is_grid = is_full_grid(elements) and depths == {len(self.dims)}
        if is_grid and self.find_new_dims(datasets):
            combined: Any = datasets
            for dim in self.dims:
                # outermost first, as in xarray, since this determines the order of new dimensions
                combined = self._stack(combined, dim)
            return combined
        return xr.combine_nested(datasets, concat_dim=self.concat_dim, **self.options)

    def _stack(self, datasets: Nested, dim: Any) -> Any:
        """Concatenate nested lists along the outermost dimension, cell by cell."""
        if not isinstance(datasets[0], list):
            return self._concatenate(datasets, dim)
        return [self._stack(list(cells), dim) for cells in zip(*datasets, strict=True)]

    def combine_rows(self, datasets: Nested, level: int = 0) -> Any:
        """Combine an incomplete grid: first each row, then all rows by an outer join.

        ``level`` is the index in ``dims`` of the dimension of the outermost list.
        """
        dim = self.dims[level]
        if level + 1 == len(self.dims):
            return self._concatenate(datasets, dim)
        rows = [self.combine_rows(row, level + 1) for row in datasets]
        if all(isinstance(row, xr.DataTree) and row.is_leaf for row in rows):
            # these trees only have a root
            return xr.DataTree(self._join_rows([row.to_dataset() for row in rows], dim))
        return self._join_rows(rows, dim)

    def _join_rows(self, rows: list[Any], dim: Any) -> Any:
        """Concatenate rows along a dimension; rows may lack positions along other dimensions."""
        rows = self._expand_coordinates(rows)
        shared = self._list_shared(rows, dim)
        if shared:
            combined = self._concatenate([row.drop_vars(list(shared)) for row in rows], dim)
        else:
            combined = self._concatenate(rows, dim)
        for name, dims in shared.items():
            indexes = {d: combined.indexes[d] for d in dims}
            join = self._join_shared if len(dims) == 1 else self._join_cells
            joined_variable = join(rows, name, indexes)
            is_coordinate = name in rows[0].coords
            combined = (combined.assign_coords if is_coordinate else combined.assign)(
                {name: joined_variable}
            )
        return combined

    def _expand_coordinates(self, rows: list[Any]) -> list[Any]:
        """Return rows whose coordinates are expanded to the same grid dimensions in all rows.

        In a row with one position, a coordinate may be a scalar, such as the valid time of a single
        step. xarray would broadcast it to the positions that the row lacks.
        """
        if not all(isinstance(row, xr.Dataset) for row in rows):
            return rows
        grid_dims: dict[Any, dict[Any, None]] = {}
        for row in rows:
            for name in row.coords.keys() - row.indexes.keys():
                along = [d for d in row.coords[name].dims if d in self.dims]
                grid_dims.setdefault(name, {}).update(dict.fromkeys(along))
        return [
            row.assign_coords(
                {
                    name: expand_variable(row, name, [*dims, *row.variables[name].dims])
                    for name, dims in grid_dims.items()
                    if name in row.coords and _lacks_dims(row.variables[name], dims)
                }
            )
            for row in rows
        ]

    def _list_shared(self, rows: list[Any], dim: Any) -> dict[Any, list[Any]]:
        """Return variables without the dimension ``dim`` that are incomplete in single rows.

        An example is the bounds of times if members have different times; xarray would raise an
        error, as the bounds differ. Returns the grid dimensions along which rows lack positions, by
        variable.
        """
        first = rows[0]
        if dim not in _list_dims(rows) or not all(isinstance(row, xr.Dataset) for row in rows):
            # variables are stacked along a new dimension
            return {}
        other_dims = [d for d in self.dims if d != dim and d in first.indexes]
        differing = set()
        for other_dim in other_dims:
            indexes = [row.indexes.get(other_dim) for row in rows]
            # without an index, a row lacks no positions
            if all(index is not None for index in indexes) and not all(
                map(first.indexes[other_dim].equals, indexes)
            ):
                differing.add(other_dim)
        shared = {}
        for name, variable in first.variables.items():
            grid_dims = [d for d in other_dims if d in variable.dims]
            option = "coords" if name in first.coords else "data_vars"
            if self.options.get(option) == "all":
                continue
            others = [row.variables[name] for row in rows if name in row.variables]
            if len(grid_dims) > 1:
                # a row may lack any cells, so the dtype must have a missing value
                dtypes = {other.dtype for other in others}
                is_shared = len(dtypes) == 1 and has_missing_value(variable.dtype)
            else:
                is_shared = not differing.isdisjoint(grid_dims)
            is_shared &= dim not in variable.dims and name not in variable.dims
            if is_shared and [other.dims for other in others] == [variable.dims] * len(rows):
                shared[name] = grid_dims
        return shared

    def _join_shared(self, rows: Sequence[xr.Dataset], name: Any, indexes: Indexes) -> Any:
        """Join a variable along one dimension: each position from the first row that has it.

        Raises `CombineError` if a later row has other values there, unless ``compat`` is
        ``"override"``.
        """
        [(dim, index)] = indexes.items()
        positions = np.stack([row.indexes[dim].get_indexer(index) for row in rows])
        owners = (positions >= 0).argmax(axis=0)
        selected = positions[owners, np.arange(index.size)]
        cuts = np.flatnonzero((np.diff(owners) != 0) | (np.diff(selected) != 1)) + 1
        pieces = [
            rows[owners[a]].variables[name].isel({dim: slice(selected[a], selected[b - 1] + 1)})
            for a, b in pairwise([0, *cuts.tolist(), index.size])
        ]
        joined: Any = pieces[0]
        if len(pieces) > 1:
            joined = xr.Variable.concat(pieces, dim)  # type: ignore[no-untyped-call]
        compares = self.options.get("compat") != "override"
        for number, row in enumerate(rows) if compares else ():
            repeated = np.flatnonzero((positions[number] >= 0) & (owners != number))
            expected = joined.isel({dim: repeated})
            if not expected.equals(row.variables[name].isel({dim: positions[number][repeated]})):
                raise _make_conflict_error(row, name, dim)
        joined.attrs, joined.encoding = dict(rows[0][name].attrs), dict(rows[0][name].encoding)
        return joined

    def _join_cells(self, rows: Sequence[xr.Dataset], name: Any, indexes: Indexes) -> Any:
        """Join a variable along several dimensions: each cell from the first row that has it.

        Raises `CombineError` in the same cases as `_join_shared`.
        """
        # later rows overwrite earlier ones
        order = rows[::-1] if (is_first := self.options.get("compat") == "override") else rows
        joined = order[0][name].reindex(indexes).variable
        for row in order[1:]:
            positions = {dim: index.get_indexer(row.indexes[dim]) for dim, index in indexes.items()}
            new = row.variables[name]
            try:
                data: Any = put_boxes(joined, new, positions, replaced=None if is_first else ())
            except CombineError as error:
                raise _make_conflict_error(row, name, *indexes) from error
            joined = joined if data is None else joined.copy(data=data)
        return joined

    def _concatenate(self, datasets: Nested, dim: Any) -> Any:
        """Concatenate datasets along a dimension, or stack them along a new one.

        For a new dimension, "minimal", which xarray rejects, is replaced: data variables are
        stacked, and coordinates if they differ, as by `xarray.open_mfdataset`.
        """
        options = self.options
        is_minimal = all(options.get(name, "") == "minimal" for name in ("data_vars", "coords"))
        if dim is not None and is_minimal and dim not in _list_dims(datasets):
            coords = "minimal" if options.get("compat") == "override" else "different"
            options = options | {"data_vars": "all", "coords": coords}
        return xr.combine_nested(datasets, concat_dim=dim, **options)

    def pad_datasets(self, opened: Mapping[int, Any], names: Sequence[Any]) -> Mapping[int, Any]:
        """Pad datasets or trees, given by file index, to the same lengths.

        Each group of a tree is padded at least to the length of its parent group.
        """
        if not self.pad:
            return opened
        padding = Padding(self.pad, self.options.get("fill_value"), FILL_VALUE_REMEDY)
        padding.check_dims(_list_dims([*opened.values()]), self.dims)
        is_new = bool(self.find_new_dims([*opened.values()]))
        nodes: dict[int, dict[str, xr.Dataset]] = {n: list_groups(o) for n, o in opened.items()}
        lengths: dict[str, dict[Any, int]] = {}
        for path in dict.fromkeys(path for groups in nodes.values() for path in groups):
            parts = {number: groups[path] for number, groups in nodes.items() if path in groups}
            files = [without_secrets(str(names[number])) for number in parts]
            parent_lengths = lengths.get(path.rpartition("/")[0] or "/", {})
            padded = padding.pad(
                files,
                [*parts.values()],
                () if is_new else self._list_not_concatenated([*parts.values()]),
                compares=self.options.get("compat") != "override",
                min_sizes=parent_lengths,
            )
            sizes = [parent_lengths, *(part.sizes for part in padded)]
            lengths[path] = {
                dim: max(part_sizes.get(dim, 0) for part_sizes in sizes) for dim in self.pad
            }
            for number, part in zip(parts, padded, strict=True):
                nodes[number][path] = part
        return {
            number: xr.DataTree.from_dict(nodes[number], name=file.name)
            if isinstance(file, xr.DataTree)
            else nodes[number]["/"]
            for number, file in opened.items()
        }

    def _list_not_concatenated(self, parts: Sequence[xr.Dataset]) -> set[Any]:
        """Return the variables that must be equal in all files, as they are not concatenated."""
        joined = {*self.dims} or _find_joined(self, dict(enumerate(parts))) - {*self.pad}
        not_concatenated, concatenated = set[Any](), set[Any]()
        for part in parts:
            for name, variable in part.variables.items():
                option = self.options.get("coords" if name in part.coords else "data_vars")
                is_not_concatenated = option == "minimal" or (
                    isinstance(option, list) and name not in option
                )
                is_not_concatenated &= joined.isdisjoint(variable.dims)
                (not_concatenated if is_not_concatenated else concatenated).add(name)
        return not_concatenated - concatenated

    def find_new_dims(self, datasets: Nested) -> list[Any]:
        """Return the dimensions of ``dims`` that no dataset has."""
        present = _list_dims(datasets)
        return [dim for dim in self.dims if dim is not None and dim not in present]

    def check_dims(self, datasets: Nested) -> None:
        """Raise `CombineError` if a new dimension looks like a misspelt one of the datasets."""
        for dim in self.find_new_dims(datasets):
            if not any(dim in part.variables for part in _list_parts(datasets)):
                check_name(dim, _list_dims(datasets))


def _make_conflict_error(row: xr.Dataset, name: Any, *dims: Any) -> CombineError:
    """Return an error for a variable whose values at the same coordinates differ between rows."""
    kind = "coords" if name in row.coords else "data_vars"
    return CombineError(
        f"{name}: files with the same {' and '.join(map(repr, dims))} have different values; to "
        f"keep both, pass {kind}='all'; to use the first, compat='override'"
    )


def check_name(dim: str, dims: Iterable[Any]) -> None:
    """Raise `CombineError` if a dimension that no file has looks like a misspelt one."""
    present = list(map(str, dims))
    if dim not in present and (other := guess_name(dim, present)):
        raise CombineError(
            f"concat_dim={dim!r}: no file has this dimension (existing: {present}); did you "
            f"mean {other!r}? To stack files along a new one, pass preprocess=lambda ds: "
            f"ds.expand_dims({dim!r})"
        )


def _list_parts(datasets: Nested) -> Iterator[Any]:
    """Yield datasets, or the nodes of trees, each with its own dimensions."""
    for opened in flatten_nested(datasets):
        yield from opened.subtree if isinstance(opened, xr.DataTree) else (opened,)


def _list_dims(datasets: Nested) -> dict[Any, None]:
    """Return the unique dimensions of datasets or trees, as the keys of a dict."""
    return dict.fromkeys(dim for part in _list_parts(datasets) for dim in part.dims)


# ---------------------------------------------------------------------- notes of errors

CONCATENATING_OPTIONS: tuple[dict[str, str], ...] = (
    {"coords": "different"},
    {"data_vars": "different"},
    {"coords": "different", "data_vars": "different"},
)
"""Options that concatenate variables that differ between files, in the order of trial."""
OVERRIDE_ADVICE = re.compile(r"[^.]*compat='override'\.?")
"""Advice of xarray that would use the values of the first file for all files."""


def combine_with_file_names(
    combine: Combine,
    dims: Sequence[Any] | None,
    datasets: Nested,
    files: Sequence[Any],
    opened: Sequence[Any],
) -> Any:
    """Combine nested datasets; add notes to errors, with the first file that does not fit.

    ``dims`` are the dimensions to join along, if given; ``files`` and ``opened`` are the files and
    their datasets, in order.
    """
    names = [without_secrets(str(file)) for file in files]
    check_lengths(names, opened, dims)
    try:
        return combine(datasets)
    except COMBINE_ERRORS as error:
        error.add_note(f"while combining {len(files)} files, {names[0]} to {names[-1]}")
        if dims is None and isinstance(combine, Combination) and combine.combine == "nested":
            error.add_note("concat_dim is not given, so the files are merged; pass concat_dim=")
        if isinstance(error, xr.MergeError):
            # remove advice that would change values
            texts = (
                OVERRIDE_ADVICE.sub("", a).strip() if isinstance(a, str) else a for a in error.args
            )
            error.args = tuple(texts)
            remedy = "rename the variable in preprocess, or open them apart"
            for options in CONCATENATING_OPTIONS if isinstance(combine, Combination) else ():
                other = replace(combine, options=combine.options | options)  # type: ignore[type-var,attr-defined]
                if _can_combine(other, datasets):
                    remedy = f"pass {format_options(options)}"
                    break
            error.add_note(f"to keep the values of every file, {remedy}")
        present = _list_dims(list(opened))
        for dim in dims or ():
            if dim is not None and dim not in present:
                error.add_note(
                    f"no file has the dimension {dim!r}, so the files are stacked along it"
                )
        if (number := _find_first_failing(combine, datasets)) is not None:
            before = f"the {number} before it" if number > 1 else names[0]
            error.add_note(f"{names[number]} is the first file that does not combine with {before}")
        if (difference := describe_worst_difference(names, opened, dims)) is not None:
            error.add_note(difference)
        if ragged := _list_ragged_dims(opened, dims or ()):
            pad = repr(ragged[0] if len(ragged) == 1 else ragged)
            error.add_note(f"to fill what shorter files lack with missing values, pass pad={pad}")
        error.add_note("virtualds.diagnose(files) shows all differences, and what to do about each")
        raise


def _list_ragged_dims(opened: Iterable[Any], joined: Collection[Any]) -> list[str]:
    """Return the dimensions without coordinates whose length differs between datasets."""
    sizes: dict[tuple[str, Any], set[int]] = defaultdict(set)
    for dataset in opened:
        for path, part in list_groups(dataset, inherit=True).items():
            for dim, size in part.sizes.items():
                if dim not in joined and dim not in part.indexes:
                    sizes[path, dim].add(size)
    return list(dict.fromkeys(str(dim) for (_, dim), lengths in sizes.items() if len(lengths) > 1))


def format_options(options: Mapping[str, str]) -> str:
    """Format options as keyword arguments, such as ``coords="different"``."""
    return ", ".join(f'{name}="{value}"' for name, value in options.items())


def _find_first_failing(combine: Combine, datasets: Nested) -> int | None:
    """Return the index of the first dataset that does not combine with those before it, or None.

    This is a galloping search. It returns None for nested lists.
    """
    if len(datasets) < 2 or any(isinstance(item, list) for item in datasets):
        return None
    works, fails = 1, 2
    while fails < len(datasets) and _can_combine(combine, datasets[:fails]):
        works, fails = fails, min(2 * fails, len(datasets))
    while fails - works > 1:
        middle = (works + fails) // 2
        if _can_combine(combine, datasets[:middle]):
            works = middle
        else:
            fails = middle
    return works


def _can_combine(combine: Combine, datasets: Nested) -> bool:
    """Return whether datasets combine without an error."""
    try:
        combine(datasets)
    except COMBINE_ERRORS:
        return False
    return True


# ---------------------------------------------------------------------- comparisons of indexes

Parts = Mapping[Any, xr.Dataset]
"""The dataset or the group of each file, by the name or the index of the file."""


def _group_by_variables(parts: Iterable[Any], dim: Any = None) -> list[list[Any]]:
    """Group datasets by the names of their variables with a dimension, or of data variables."""
    groups: dict[frozenset[Any], list[Any]] = defaultdict(list)
    for part in parts:
        names = part.data_vars if dim is None else part.variables
        groups[frozenset(n for n in names if dim is None or dim in names[n].dims)].append(part)
    return [*groups.values()]


def _list_indexes(
    parts: Iterable[Any], dims: Collection[Any] | None = None
) -> dict[Any, list[Any]]:
    """Return the indexes of datasets along all or some dimensions, by dimension."""
    indexes: dict[Any, list[pd.Index[Any]]] = defaultdict(list)
    for part in parts:
        for dim, index in part.indexes.items():
            if dim in (part.sizes if dims is None else dims):
                indexes[dim].append(index)
    return indexes


def _have_differences(indexes: Sequence[pd.Index[Any]]) -> bool:
    """Return whether some indexes differ."""
    return not all(map(indexes[0].equals, indexes[1:]))


# ---------------------------------------------------------------------- long dimensions

INDEX_BYTES = 8
"""Bytes per element of an index that xarray creates."""


def check_lengths(files: Sequence[str], opened: Sequence[Any], dims: Sequence[Any] | None) -> None:
    """Raise an error for dimensions so long that xarray would run out of memory.

    Concatenation creates a mask as long as the joined dimension; reindexing creates an index for
    other dimensions. Dimensions with an index are already in memory. ``dims`` are the dimensions
    along which files are joined, if given.
    """
    groups: dict[str, dict[str, Any]] = defaultdict(dict)
    for file, opened_file in zip(files, opened, strict=True):
        for part in _list_parts([opened_file]):
            groups[getattr(part, "path", "")][file] = part
    for parts in groups.values():
        for dim in dict.fromkeys(dim for part in parts.values() for dim in part.dims):
            sizes = {file: part.sizes[dim] for file, part in parts.items() if dim in part.sizes}
            longest, size = max(sizes.items(), key=lambda item: item[1])
            is_indexed = dim in next(iter(parts.values())).indexes
            if INDEX_BYTES * size * len(sizes) <= ALWAYS_ALLOWED or is_indexed:
                continue
            nbytes = 0
            if dim in (dims or ()):
                nbytes = sum(sizes.values())
            elif _is_reindexed(dim, [*parts.values()], {*(dims or ())}):
                nbytes = INDEX_BYTES * size
            check_joinable(nbytes, f"{longest}: dimension {str(dim)!r} of {size:,} elements")


def _is_reindexed(dim: Any, parts: Sequence[Any], joined: Collection[Any]) -> bool:
    """Return whether xarray may reindex variables with a dimension to coordinates of other files.

    It reindexes variables that some files lack, and variables whose coordinates differ along other
    than the joined dimensions. Without ``joined``, files with the same variables are joined along
    one dimension that xarray infers, and the results are merged.
    """
    groups = _group_by_variables(parts, dim)
    if joined and len(groups) > 1:
        return True
    unions = list[dict[Any, Any]]()
    for group in groups:
        variables = [v for v in group[0].variables.values() if dim in v.dims]
        indexes = _list_indexes(group, {d for v in variables for d in v.dims if d not in joined})
        if sum(map(_have_differences, indexes.values())) > (0 if joined else 1):
            return True
        unions.append({d: index.append(more).unique() for d, (index, *more) in indexes.items()})
    first = unions[0]
    pairs = [(union[d], first[d]) for union in unions for d in union if d in first]
    return any(len(a) != len(b) or not a.isin(b).all() for a, b in pairs)


# ---------------------------------------------------------------------- warnings

MAX_NAMES = 3
"""Maximum number of variables, files or grids named in a sentence."""
SILENCING_ADVICE = (
    "if this is meant, silence the warning: "
    'warnings.simplefilter("ignore", virtualds.CombineWarning)'
)
DIMENSIONS_REMEDY = "make the dimensions equal in preprocess= (ds.isel, ds.squeeze, ds.expand_dims)"
Dims = tuple[str, ...]


def warn_about_differences(
    combination: Combination, opened: Mapping[str, Any], combined: xr.Dataset | xr.DataTree
) -> None:
    """Warn once if variables were broadcast, or different grids were merged."""
    sentences: list[str] = []
    groups_by_file = {file: list_groups(file_groups) for file, file_groups in opened.items()}
    for path, result in list_groups(combined).items():
        parts = {
            file: file_groups[path]
            for file, file_groups in groups_by_file.items()
            if path in file_groups
        }
        joined = _find_joined(combination, parts)
        sentences += _describe_broadcasts(parts, result, joined)
        if combination.options.get("join", "outer") == "outer":
            sentences += _describe_merged_grids(combination, parts, result, joined)
    if sentences:
        text = "\n  ".join(
            [f"the {len(opened)} files combine, but are not alike", *sentences, SILENCING_ADVICE]
        )
        warn_user(without_secrets(text), CombineWarning)


def _find_joined(combination: Combination, parts: Parts) -> set[Any]:
    """Return the dimensions along which files are concatenated.

    If coordinates determine them, these are dimensions along which files with the same variables
    begin with different values, as in `xarray.combine_by_coords`.
    """
    if combination.combine == "nested":
        return set(combination.dims)
    return {
        dim
        for group in _group_by_variables(parts.values())
        for dim, indexes in _list_indexes(group).items()
        if len({index[0] for index in indexes if index.size}) > 1
    }


def _describe_broadcasts(
    parts: Parts, result: xr.Dataset, joined: Collection[Any]
) -> Iterator[str]:
    """Yield a sentence for each way in which variables of some files are broadcast."""
    differing: dict[tuple[Dims, Dims, tuple[str, ...]], list[str]] = defaultdict(list)
    for name, variable in result.variables.items():
        files_by_dims = _group_by_dims(parts, name, joined)
        result_dims = {str(dim) for dim in variable.dims if dim not in joined}
        if any(set(dims) < result_dims for dims in files_by_dims):
            usual = max(files_by_dims, key=lambda dims: len(files_by_dims[dims]))
            for dims in [dims for dims in files_by_dims if dims != usual]:
                differing[usual, dims, tuple(files_by_dims[dims])].append(str(name))
    for (usual, other, files), names in differing.items():
        used_names = {str(name) for file in files for name in parts[file].variables}
        renamed = find_renamed(usual, other, used_names)
        remedy = f"rename it: preprocess={format_rename(renamed)}" if renamed else DIMENSIONS_REMEDY
        yield (
            f"{format_names(map(repr, names), MAX_NAMES)}: ({', '.join(other)}) in "
            f"{format_names(files, MAX_NAMES)}, ({', '.join(usual)}) in others: repeated along "
            f"what each lacks; {remedy}"
        )


def _group_by_dims(parts: Parts, name: Any, joined: Collection[Any]) -> dict[Dims, list[str]]:
    """Group files by the dimensions of a variable, in any order, without joined dimensions."""
    first_order: dict[frozenset[str], Dims] = {}
    files_by_dims: dict[Dims, list[str]] = defaultdict(list)
    for file, part in parts.items():
        if name in part.variables:
            dims = tuple(str(dim) for dim in part.variables[name].dims if dim not in joined)
            files_by_dims[first_order.setdefault(frozenset(dims), dims)].append(file)
    return files_by_dims


def _describe_merged_grids(
    combination: Combination, parts: Parts, result: xr.Dataset, joined: Collection[Any]
) -> Iterator[str]:
    """Yield a sentence for each dimension along which different grids were merged.

    Times are ignored, since members and variables often begin or end at different times.
    """
    for dim, merged in result.indexes.items():
        is_time = isinstance(merged, pd.DatetimeIndex | pd.TimedeltaIndex | xr.CFTimeIndex)
        if dim in joined or dim not in result.sizes or is_time:
            continue
        indexes = {file: part.indexes[dim] for file, part in parts.items() if dim in part.indexes}
        is_filled = any(index.size < merged.size for index in indexes.values())
        if is_filled and _is_mixed(combination, parts, dim, merged):
            grids: dict[str, list[str]] = defaultdict(list)
            for file, index in indexes.items():
                grids[digest_values(index.values)].append(file)
            largest = sorted(grids.items(), key=lambda item: -len(item[1]))[:MAX_NAMES]
            listing = "; ".join(
                f"{grid} in {format_names(files, MAX_NAMES)}" for grid, files in largest
            )
            yield (
                f"{str(dim)!r}: {listing}: united to {merged.size:,} values, and filled where a "
                f"file has none; leave out the files of another grid, or open them apart "
                f'(join="exact" refuses them)'
            )


def _is_mixed(combination: Combination, parts: Parts, dim: Any, merged: pd.Index[Any]) -> bool:
    """Return whether files have different grids, rather than parts of one grid.

    Merged files may cover different parts, such as years that one variable lacks. Files that are
    concatenated along another dimension may not.
    """
    is_nested, all_parts = combination.combine == "nested", [*parts.values()]
    if not (is_nested and set(combination.dims) <= {None}):
        groups = [all_parts] if is_nested else _group_by_variables(all_parts)
        lists = [indexes for group in groups if (indexes := _list_indexes(group).get(dim))]
        if any(map(_have_differences, lists)):
            return True
    # a file of another grid lacks elements of the merged grid between its own
    indexes = [index for index in _list_indexes(all_parts)[dim] if index.size]
    positions = map(merged.get_indexer, indexes if merged.is_unique else ())
    return any(found.max() - found.min() + 1 > found.size for found in positions)


def _lacks_dims(variable: xr.Variable, dims: Collection[Any]) -> bool:
    """Return whether a variable is not virtual and lacks some of the dimensions."""
    return get_virtual_array(variable) is None and not {*dims} <= {*variable.dims}
