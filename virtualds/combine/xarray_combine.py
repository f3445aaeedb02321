"""Combining datasets with xarray: errors name the file that does not fit, warnings what differs.

xarray combines files of different dimensions or grids without an error. It repeats values along
dimensions that only other files have, and takes the union of the coordinates of two grids, so that
most of the result is missing. Names and sizes reveal both, so that the warning needs no values.
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
    list_places,
)
from virtualds.datasets.keywords import check_choice, guess_name
from virtualds.datasets.lazy import expand_variable, get_virtual_array
from virtualds.datasets.padding import Padding
from virtualds.datasets.source_positions import put_boxes
from virtualds.datasets.structure import (
    digest_values,
    find_first_difference,
    find_renamed,
    format_rename,
)
from virtualds.errors import (
    CombineError,
    CombineWarning,
    VirtualdsError,
    name_some,
    warn_user,
    without_secrets,
)

Indexes = Mapping[Any, "pd.Index[Any]"]
"""The values of coordinates, by dimension."""
Combine = Callable[[Nested], Any]
"""A function that combines nested datasets."""
COMBINE_ERRORS = (ValueError, TypeError, VirtualdsError)
"""Errors of combining datasets that do not belong together."""
IF_UNFILLED = (
    "give one (fill_value={{{name!r}: {value}}}), convert it to float in preprocess= "
    "(ds.assign({name}=ds.{name}.astype('f8')) stays virtual), or leave it out "
    "(drop_variables={name!r})"
)
"""The remedy for a variable that has no missing value, and is to be padded."""
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
"""The strings that xarray accepts; some options also accept names or a function."""


@dataclass(frozen=True)
class Combination:
    """How datasets are combined: by a method of xarray, along some dimensions, with its options.

    ``arrangement`` is how they are ordered before that, and ``pad`` are dimensions along which the
    shorter ones are padded. Raises `ValueError` for an unknown method, or an unknown value of an
    option.
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
        if wrong := [dim for dim in self.dims if not isinstance(dim, str | None)]:
            raise TypeError(
                f"concat_dim={wrong[0]!r}: give the name of a dimension, None, or a list of these"
            )
        if self.combine == "by_coords" and self.concat_dim is not None:
            raise ValueError(
                f"concat_dim {self.concat_dim!r} is for combine='nested': pass that too, or leave "
                f"concat_dim out, since 'by_coords' finds dimensions by coordinates"
            )

    @property
    def dims(self) -> tuple[Any, ...]:
        """The dimensions to join along, outermost first; empty if coordinates decide."""
        if self.combine == "by_coords":
            return ()
        several = isinstance(self.concat_dim, list | tuple)
        return tuple(self.concat_dim) if several else (self.concat_dim,)

    def __call__(self, datasets: Nested) -> Any:
        """Combine nested datasets or trees."""
        if self.combine == "by_coords":
            return xr.combine_by_coords(datasets, **self.options)
        if len(self.dims) == 1:
            return self._concatenate(datasets, self.dims[0])
        placed = list_places(datasets)
        is_grid = is_full_grid(placed) and {len(path) for path, _ in placed} == {len(self.dims)}
        if is_grid and self.find_new_dims(datasets):
            found: Any = datasets
            for dim in self.dims:
                # the outermost first, as in xarray, since it determines the position of new
                # dimensions
                found = self._stack(found, dim)
            return found
        return xr.combine_nested(datasets, concat_dim=self.concat_dim, **self.options)

    def _stack(self, datasets: Nested, dim: Any) -> Any:
        """Join nested lists along the outermost dimension, cell by cell."""
        if not isinstance(datasets[0], list):
            return self._concatenate(datasets, dim)
        return [self._stack(list(cells), dim) for cells in zip(*datasets, strict=True)]

    def combine_rows(self, datasets: Nested, level: int = 0) -> Any:
        """Combine a grid that may lack cells: first each row, then all rows.

        Outer joins leave missing cells missing. ``level`` is the depth of the lists.
        """
        dim = self.dims[level]
        if level + 1 == len(self.dims):
            return self._concatenate(datasets, dim)
        rows = [self.combine_rows(row, level + 1) for row in datasets]
        if all(isinstance(row, xr.DataTree) and row.is_leaf for row in rows):
            # a tree of only a root
            return xr.DataTree(self._join_rows([row.to_dataset() for row in rows], dim))
        return self._join_rows(rows, dim)

    def _join_rows(self, rows: list[Any], dim: Any) -> Any:
        """Concatenate rows along a dimension; each may lack positions along the others."""
        rows = self._expand_coordinates(rows)
        shared = self._list_shared(rows, dim)
        if shared:
            combined = self._concatenate([row.drop_vars(list(shared)) for row in rows], dim)
        else:
            combined = self._concatenate(rows, dim)
        for name, along in shared.items():
            indexes = {d: combined.indexes[d] for d in along}
            join = self._join_shared if len(along) == 1 else self._join_cells
            joined = join(rows, name, indexes)
            is_coordinate = name in rows[0].coords
            combined = (combined.assign_coords if is_coordinate else combined.assign)(
                {name: joined}
            )
        return combined

    def _expand_coordinates(self, rows: list[Any]) -> list[Any]:
        """Give coordinates of all rows the same dimensions of the grid.

        Where a row has a single position, its coordinate may be a scalar, such as the valid time of
        a single step. xarray would take it for the value at all positions that the row lacks.
        """
        if not all(isinstance(row, xr.Dataset) for row in rows):
            return rows
        grid: dict[Any, dict[Any, None]] = {}
        for row in rows:
            for name in row.coords.keys() - row.indexes.keys():
                along = [d for d in row.coords[name].dims if d in self.dims]
                grid.setdefault(name, {}).update(dict.fromkeys(along))
        return [
            row.assign_coords(
                {
                    name: expand_variable(row, name, [*dims, *row.variables[name].dims])
                    for name, dims in grid.items()
                    if name in row.coords and _lacks(row.variables[name], dims)
                }
            )
            for row in rows
        ]

    def _list_shared(self, rows: list[Any], dim: Any) -> dict[Any, list[Any]]:
        """Return variables without a dimension that each row has for some of the positions.

        Such as the bounds of times, where members do not have the same times. xarray would take
        positions that a row lacks for other values. Each is returned with the dimensions along
        which it is complete only in all rows together.
        """
        first = rows[0]
        if dim not in _list_dims(rows) or not all(isinstance(row, xr.Dataset) for row in rows):
            # along a new dimension all variables are stacked
            return {}
        inner = [d for d in self.dims if d != dim and d in first.indexes]
        differing = {d for d in inner if not _have_index(rows, d, first.indexes[d])}
        found = {}
        for name, variable in first.variables.items():
            along = [d for d in inner if d in variable.dims]
            kind = "coords" if name in first.coords else "data_vars"
            if self.options.get(kind) == "all":
                continue
            others = [row.variables[name] for row in rows if name in row.variables]
            if len(along) > 1:
                # each row may lack any cells, which needs a value that means so
                dtypes = {other.dtype for other in others}
                is_shared = len(dtypes) == 1 and has_missing_value(variable.dtype)
            else:
                is_shared = not differing.isdisjoint(along)
            is_shared &= dim not in variable.dims and name not in variable.dims
            if is_shared and [other.dims for other in others] == [variable.dims] * len(rows):
                found[name] = along
        return found

    def _join_shared(self, rows: Sequence[xr.Dataset], name: Any, indexes: Indexes) -> Any:
        """Return a variable of all rows, each position from the first row that has it.

        Raises `CombineError` if a later row has other values there, except where ``compat`` is
        ``"override"``.
        """
        [(dim, index)] = indexes.items()
        places = np.stack([row.indexes[dim].get_indexer(index) for row in rows])
        owners = (places >= 0).argmax(axis=0)
        taken = places[owners, np.arange(index.size)]
        cuts = np.flatnonzero((np.diff(owners) != 0) | (np.diff(taken) != 1)) + 1
        pieces = [
            rows[owners[a]].variables[name].isel({dim: slice(taken[a], taken[b - 1] + 1)})
            for a, b in pairwise([0, *cuts.tolist(), index.size])
        ]
        joined: Any = pieces[0]
        if len(pieces) > 1:
            joined = xr.Variable.concat(pieces, dim)  # type: ignore[no-untyped-call]
        compares = self.options.get("compat") != "override"
        for number, row in enumerate(rows) if compares else ():
            again = np.flatnonzero((places[number] >= 0) & (owners != number))
            known = joined.isel({dim: again})
            if not known.equals(row.variables[name].isel({dim: places[number][again]})):
                raise _make_conflict(row, name, dim)
        joined.attrs, joined.encoding = dict(rows[0][name].attrs), dict(rows[0][name].encoding)
        return joined

    def _join_cells(self, rows: Sequence[xr.Dataset], name: Any, indexes: Indexes) -> Any:
        """Return a variable along several dimensions, each cell from the first row that has it.

        Raises `CombineError` as `_join_shared` does.
        """
        # what is put last stays
        order = rows[::-1] if (is_first := self.options.get("compat") == "override") else rows
        joined = order[0][name].reindex(indexes).variable
        for row in order[1:]:
            places = {dim: index.get_indexer(row.indexes[dim]) for dim, index in indexes.items()}
            new = row.variables[name]
            try:
                data: Any = put_boxes(joined, new, places, replaced=None if is_first else ())
            except CombineError as error:
                raise _make_conflict(row, name, *indexes) from error
            joined = joined if data is None else joined.copy(data=data)
        return joined

    def _concatenate(self, datasets: Nested, dim: Any) -> Any:
        """Concatenate datasets along a dimension; along a new one, stack them.

        "minimal" selects the variables with the dimension. xarray rejects it for a new dimension,
        where `xarray.open_mfdataset` stacks data variables, and coordinates that differ.
        """
        options = self.options
        is_minimal = all(options.get(name, "") == "minimal" for name in ("data_vars", "coords"))
        if dim is not None and is_minimal and dim not in _list_dims(datasets):
            coords = "minimal" if options.get("compat") == "override" else "different"
            options = options | {"data_vars": "all", "coords": coords}
        return xr.combine_nested(datasets, concat_dim=dim, **options)

    def pad_datasets(self, opened: Mapping[int, Any], names: Sequence[Any]) -> Mapping[int, Any]:
        """Return datasets or trees, by the number of their file, that are equally long.

        Groups of a tree are padded one by one, to the length of the groups above them.
        """
        if not self.pad:
            return opened
        padding = Padding(self.pad, self.options.get("fill_value"), IF_UNFILLED)
        padding.check_dims(_list_dims([*opened.values()]), self.dims)
        is_new = bool(self.find_new_dims([*opened.values()]))
        nodes: dict[int, dict[str, xr.Dataset]] = {n: list_groups(o) for n, o in opened.items()}
        lengths: dict[str, dict[Any, int]] = {}
        for path in dict.fromkeys(path for each in nodes.values() for path in each):
            parts = {number: each[path] for number, each in nodes.items() if path in each}
            files = [without_secrets(str(names[number])) for number in parts]
            above = lengths.get(path.rpartition("/")[0] or "/", {})
            padded = padding.pad(
                files,
                [*parts.values()],
                () if is_new else self._list_taken_once([*parts.values()]),
                compares=self.options.get("compat") != "override",
                least=above,
            )
            sizes = [above, *(part.sizes for part in padded)]
            lengths[path] = {dim: max(some.get(dim, 0) for some in sizes) for dim in self.pad}
            for number, part in zip(parts, padded, strict=True):
                nodes[number][path] = part
        return {
            number: xr.DataTree.from_dict(nodes[number], name=one.name)
            if isinstance(one, xr.DataTree)
            else nodes[number]["/"]
            for number, one in opened.items()
        }

    def _list_taken_once(self, parts: Sequence[xr.Dataset]) -> set[Any]:
        """Return the variables that all files have in common, since they are not concatenated."""
        joined = {*self.dims} or _find_joined(self, dict(enumerate(parts))) - {*self.pad}
        found, concatenated = set[Any](), set[Any]()
        for part in parts:
            for name, variable in part.variables.items():
                how = self.options.get("coords" if name in part.coords else "data_vars")
                is_once = how == "minimal" or (isinstance(how, list) and name not in how)
                is_once &= joined.isdisjoint(variable.dims)
                (found if is_once else concatenated).add(name)
        return found - concatenated

    def find_new_dims(self, datasets: Nested) -> list[Any]:
        """Return the dimensions to join along that no dataset has."""
        present = _list_dims(datasets)
        return [dim for dim in self.dims if dim is not None and dim not in present]

    def check_dims(self, datasets: Nested) -> None:
        """Raise an error for a new dimension that looks like a misspelt one of the datasets."""
        for dim in self.find_new_dims(datasets):
            if not any(dim in part.variables for part in _list_parts(datasets)):
                check_name(dim, _list_dims(datasets))


def _make_conflict(row: xr.Dataset, name: Any, *dims: Any) -> CombineError:
    """Return an error for a variable of which rows have other values at the same coordinates."""
    kind = "coords" if name in row.coords else "data_vars"
    return CombineError(
        f"{name}: files with the same {' and '.join(map(repr, dims))} have other values of it; to "
        f"keep both, pass {kind}='all'; to use the first, compat='override'"
    )


def _have_index(rows: Sequence[xr.Dataset], dim: Any, index: pd.Index[Any]) -> bool:
    """Return whether all rows have an index, or one has none."""
    found = [row.indexes.get(dim) for row in rows]
    return any(one is None for one in found) or all(index.equals(one) for one in found)


def check_name(dim: str, dims: Iterable[Any]) -> None:
    """Raise an error for a dimension that no file has, but that looks like a misspelt one."""
    present = list(map(str, dims))
    if dim not in present and (other := guess_name(dim, present)):
        raise CombineError(
            f"concat_dim={dim!r}: no file has this dimension, but {present}; did you mean "
            f"{other!r}? To stack files along a new one, pass preprocess=lambda ds: "
            f"ds.expand_dims({dim!r})"
        )


def _list_parts(datasets: Nested) -> Iterator[Any]:
    """Yield datasets, or the nodes of trees, each with its own dimensions."""
    for opened in flatten_nested(datasets):
        yield from opened.subtree if isinstance(opened, xr.DataTree) else (opened,)


def _list_dims(datasets: Nested) -> dict[Any, None]:
    """Return the dimensions of datasets or trees, each once."""
    return dict.fromkeys(dim for part in _list_parts(datasets) for dim in part.dims)


# ---------------------------------------------------------------------- errors name the files

SIDE_BY_SIDE: tuple[dict[str, str], ...] = (
    {"coords": "different"},
    {"data_vars": "different"},
    {"coords": "different", "data_vars": "different"},
)
"""Options that keep values that differ between files side by side, the simplest first."""
OVERRIDE_ADVICE = re.compile(r"[^.]*compat='override'\.?")
"""What xarray advises where values differ: to use those of the first file for all."""


def combine_with_file_names(
    combine: Combine,
    dims: Sequence[Any] | None,
    datasets: Nested,
    files: Sequence[Any],
    opened: Sequence[Any],
) -> Any:
    """Combine nested datasets; errors name the files, and the first that does not fit.

    ``dims`` are the dimensions to join along, if given; ``files`` and ``opened`` are the files and
    their datasets, in order.
    """
    shown = [without_secrets(str(file)) for file in files]
    check_lengths(shown, opened, dims)
    try:
        return combine(datasets)
    except COMBINE_ERRORS as error:
        error.add_note(f"while combining {len(files)} files, {shown[0]} to {shown[-1]}")
        if dims is None and isinstance(combine, Combination) and combine.combine == "nested":
            error.add_note("concat_dim is not given, so the files are merged; pass concat_dim=")
        if isinstance(error, xr.MergeError):
            # advice that would change values
            texts = (
                OVERRIDE_ADVICE.sub("", a).strip() if isinstance(a, str) else a for a in error.args
            )
            error.args = tuple(texts)
            keeping = "rename the variable in preprocess, or open them apart"
            for options in SIDE_BY_SIDE if isinstance(combine, Combination) else ():
                other = replace(combine, options=combine.options | options)  # type: ignore[type-var,attr-defined]
                if _can_combine(other, datasets):
                    keeping = f"pass {format_options(options)}"
                    break
            error.add_note(f"to keep the values of every file, {keeping}")
        present = _list_dims(list(opened))
        for dim in dims or ():
            if dim is not None and dim not in present:
                error.add_note(
                    f"no file has the dimension {dim!r}, so the files are stacked along it"
                )
        if (number := _find_first_failing(combine, datasets)) is not None:
            before = f"the {number} before it" if number > 1 else shown[0]
            error.add_note(f"{shown[number]} is the first file that does not combine with {before}")
        if (difference := find_first_difference(shown, opened, dims)) is not None:
            error.add_note(difference)
        if ragged := _list_ragged(opened, dims or ()):
            pad = repr(ragged[0] if len(ragged) == 1 else ragged)
            error.add_note(f"to fill what shorter files lack with missing values, pass pad={pad}")
        error.add_note("virtualds.diagnose(files) shows all differences, and what to do about each")
        raise


def _list_ragged(opened: Iterable[Any], joined: Collection[Any]) -> list[str]:
    """Return dimensions without coordinates along which datasets differ in length."""
    sizes: dict[tuple[str, Any], set[int]] = defaultdict(set)
    for one in opened:
        for path, part in list_groups(one, inherit=True).items():
            for dim, size in part.sizes.items():
                if dim not in joined and dim not in part.indexes:
                    sizes[path, dim].add(size)
    return list(dict.fromkeys(str(dim) for (_, dim), found in sizes.items() if len(found) > 1))


def format_options(options: Mapping[str, str]) -> str:
    """Return options as code, such as ``coords="different"``."""
    return ", ".join(f'{name}="{value}"' for name, value in options.items())


def _find_first_failing(combine: Combine, datasets: Nested) -> int | None:
    """Return the index of the first dataset that does not combine with those before it, or None.

    This costs little more than combining the datasets up to it. Grids have no such order.
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
    try:
        combine(datasets)
    except COMBINE_ERRORS:
        return False
    return True


# ---------------------------------------------------------------------- comparing indexes

Parts = Mapping[Any, xr.Dataset]
"""The dataset, or one group, of each file, by the name of the file, or its number."""


def _group_by_variables(parts: Iterable[Any], dim: Any = None) -> list[list[Any]]:
    """Group datasets by the variables that they have: those with a dimension, or with data."""
    found: dict[frozenset[Any], list[Any]] = defaultdict(list)
    for part in parts:
        names = part.data_vars if dim is None else part.variables
        found[frozenset(n for n in names if dim is None or dim in names[n].dims)].append(part)
    return [*found.values()]


def _list_indexes(
    parts: Iterable[Any], dims: Collection[Any] | None = None
) -> dict[Any, list[Any]]:
    """Return the indexes of datasets by dimension, optionally of some dimensions only."""
    found: dict[Any, list[pd.Index[Any]]] = defaultdict(list)
    for part in parts:
        for dim, index in part.indexes.items():
            if dim in (part.sizes if dims is None else dims):
                found[dim].append(index)
    return found


def _differ(indexes: Sequence[pd.Index[Any]]) -> bool:
    return not all(map(indexes[0].equals, indexes[1:]))


# ---------------------------------------------------------------------- long dimensions

INDEX_BYTES = 8
"""The size of an element of an index that xarray creates, in bytes."""


def check_lengths(files: Sequence[str], opened: Sequence[Any], dims: Sequence[Any] | None) -> None:
    """Raise an error for dimensions that are so long that xarray would run out of memory.

    Concatenating creates a mask as long as the dimension. Reindexing creates an index and a mask
    for the other dimensions as well. Dimensions with an index are already in memory. ``dims`` are
    the dimensions along which the files are joined, if given.
    """
    groups: dict[str, dict[str, Any]] = defaultdict(dict)
    for file, each in zip(files, opened, strict=True):
        for part in _list_parts([each]):
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

    It does so for variables that some files lack, and where coordinates differ along a dimension
    along which the files are not joined. If no dimensions are named, files with the same variables
    follow each other along one, and the results are merged.
    """
    kinds = _group_by_variables(parts, dim)
    if joined and len(kinds) > 1:
        return True
    united = list[dict[Any, Any]]()
    for alike in kinds:
        variables = [v for v in alike[0].variables.values() if dim in v.dims]
        indexes = _list_indexes(alike, {d for v in variables for d in v.dims if d not in joined})
        if sum(map(_differ, indexes.values())) > (0 if joined else 1):
            return True
        united.append({d: one.append(more).unique() for d, (one, *more) in indexes.items()})
    first = united[0]
    pairs = [(one[d], first[d]) for one in united for d in one if d in first]
    return any(len(one) != len(other) or not one.isin(other).all() for one, other in pairs)


# ---------------------------------------------------------------------- files that are unlike

MAX_NAMES = 3
"""Maximum number of variables or files that a sentence names; of the others it gives the number."""
SILENCE = (
    "if this is meant, silence the warning: "
    'warnings.simplefilter("ignore", virtualds.CombineWarning)'
)
EQUAL_DIMENSIONS = "make the dimensions equal in preprocess= (ds.isel, ds.squeeze, ds.expand_dims)"
Dims = tuple[str, ...]


def warn_about_differences(
    combination: Combination, opened: Mapping[str, Any], combined: xr.Dataset | xr.DataTree
) -> None:
    """Warn once if combining files, given by name, repeated values, or merged two grids."""
    found: list[str] = []
    groups = {file: list_groups(each) for file, each in opened.items()}
    for path, result in list_groups(combined).items():
        parts = {file: each[path] for file, each in groups.items() if path in each}
        joined = _find_joined(combination, parts)
        found += _describe_repeated(parts, result, joined)
        if combination.options.get("join", "outer") == "outer":
            found += _describe_merged_grids(combination, parts, result, joined)
    if found:
        text = "\n  ".join([f"the {len(opened)} files combine, but are not alike", *found, SILENCE])
        warn_user(without_secrets(text), CombineWarning)


def _find_joined(combination: Combination, parts: Parts) -> set[Any]:
    """Return the dimensions along which files follow each other.

    If coordinates decide, they are those that `xarray.combine_by_coords` infers: dimensions along
    which files with the same variables begin with different values.
    """
    if combination.combine == "nested":
        return set(combination.dims)
    return {
        dim
        for alike in _group_by_variables(parts.values())
        for dim, found in _list_indexes(alike).items()
        if len({index[0] for index in found if index.size}) > 1
    }


def _describe_repeated(parts: Parts, result: xr.Dataset, joined: Collection[Any]) -> Iterator[str]:
    """Yield a sentence for each way in which values of some files are repeated."""
    found: dict[tuple[Dims, Dims, tuple[str, ...]], list[str]] = defaultdict(list)
    for name, variable in result.variables.items():
        kinds = _group_by_dims(parts, name, joined)
        whole = {str(dim) for dim in variable.dims if dim not in joined}
        if any(set(dims) < whole for dims in kinds):
            usual = max(kinds, key=lambda dims: len(kinds[dims]))
            for dims in [dims for dims in kinds if dims != usual]:
                found[usual, dims, tuple(kinds[dims])].append(str(name))
    for (usual, other, files), names in found.items():
        taken = {str(name) for file in files for name in parts[file].variables}
        renamed = find_renamed(usual, other, taken)
        remedy = f"rename it: preprocess={format_rename(renamed)}" if renamed else EQUAL_DIMENSIONS
        yield (
            f"{name_some(map(repr, names), MAX_NAMES)}: ({', '.join(other)}) in "
            f"{name_some(files, MAX_NAMES)}, ({', '.join(usual)}) in others: repeated along what "
            f"each lacks; {remedy}"
        )


def _group_by_dims(parts: Parts, name: Any, joined: Collection[Any]) -> dict[Dims, list[str]]:
    """Group files by the dimensions of a variable: in any order, without the joined ones."""
    kinds: dict[frozenset[str], Dims] = {}
    found: dict[Dims, list[str]] = defaultdict(list)
    for file, part in parts.items():
        if name in part.variables:
            dims = tuple(str(dim) for dim in part.variables[name].dims if dim not in joined)
            found[kinds.setdefault(frozenset(dims), dims)].append(file)
    return found


def _describe_merged_grids(
    combination: Combination, parts: Parts, result: xr.Dataset, joined: Collection[Any]
) -> Iterator[str]:
    """Yield a sentence for each coordinate with elements that some file lacks.

    Times are not a grid: it is normal that members and variables begin or end at different times.
    """
    for dim, whole in result.indexes.items():
        is_time = isinstance(whole, pd.DatetimeIndex | pd.TimedeltaIndex | xr.CFTimeIndex)
        if dim in joined or dim not in result.sizes or is_time:
            continue
        having = {file: part.indexes[dim] for file, part in parts.items() if dim in part.indexes}
        is_filled = any(index.size < whole.size for index in having.values())
        if is_filled and _is_mixed(combination, parts, dim, whole):
            grids: dict[str, list[str]] = defaultdict(list)
            for file, index in having.items():
                grids[digest_values(index.values)].append(file)
            most = sorted(grids.items(), key=lambda item: -len(item[1]))[:MAX_NAMES]
            places = "; ".join(f"{grid} in {name_some(files, MAX_NAMES)}" for grid, files in most)
            yield (
                f"{str(dim)!r}: {places}: united to {whole.size:,} values, and filled where a file "
                f"has none; leave out the files of another grid, or open them apart "
                f'(join="exact" refuses them)'
            )


def _is_mixed(combination: Combination, parts: Parts, dim: Any, whole: pd.Index[Any]) -> bool:
    """Return whether files have two different grids, instead of covering parts of one.

    Files that are merged may cover different parts, such as years that one variable lacks. Files
    that are joined along another dimension may not.
    """
    is_nested, everything = combination.combine == "nested", [*parts.values()]
    if not (is_nested and set(combination.dims) <= {None}):
        groups = [everything] if is_nested else _group_by_variables(everything)
        lists = [found for alike in groups if (found := _list_indexes(alike).get(dim))]
        if any(map(_differ, lists)):
            return True
    # whether a file lacks elements of the whole grid between its own
    indexes = [index for index in _list_indexes(everything)[dim] if index.size]
    places = map(whole.get_indexer, indexes if whole.is_unique else ())
    return any(there.max() - there.min() + 1 > there.size for there in places)


def _lacks(variable: xr.Variable, dims: Collection[Any]) -> bool:
    """Return whether a variable in memory lacks some dimensions."""
    return get_virtual_array(variable) is None and not {*dims} <= {*variable.dims}
