"""Combining datasets in xarray; errors name the file that does not fit."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import xarray as xr

from virtualds.bounds import ALWAYS, demand_joinable
from virtualds.combine.ordering import Arrangement, combine_by_rows, flatten_nested, is_ragged
from virtualds.datasets.keywords import check_choice, guess_name
from virtualds.datasets.structure import find_first_difference
from virtualds.errors import CombineError, VirtualdsError, without_secrets

Combine = Callable[[list[Any]], Any]
"""A function that combines nested datasets."""
COMBINE_ERRORS = (ValueError, TypeError, VirtualdsError)
"""Errors of combining datasets that do not belong together."""
COMBINE_METHODS = ("by_coords", "nested")
CHOICES: dict[str, tuple[str, ...]] = {
    "data_vars": ("minimal", "different", "all"),
    "coords": ("minimal", "different", "all"),
    "compat": ("equals", "identical", "broadcast_equals", "no_conflicts", "override"),
    "join": ("outer", "inner", "left", "right", "exact", "override"),
    "combine_attrs": ("override", "drop", "identical", "no_conflicts", "drop_conflicts"),
}
"""The words that xarray accepts; some options also take names or a function."""


@dataclass(frozen=True)
class Combination:
    """How datasets become one.

    Parameters
    ----------
    combine : {"by_coords", "nested"}
    concat_dim : str, or list of str or None
    options : dict
        Other arguments of xarray.
    arrangement : Arrangement
        How they are put in order before that.

    Raises
    ------
    ValueError
        ``combine`` or an option has an unknown value, or ``combine`` takes no dimension.
    """

    combine: str
    concat_dim: Any
    options: dict[str, Any] = field(default_factory=dict)
    arrangement: Arrangement = field(default_factory=Arrangement)

    def __post_init__(self) -> None:
        check_choice("combine", self.combine, COMBINE_METHODS)
        for name, value in ((n, v) for n, v in self.options.items() if n in CHOICES):
            # some options take names or functions, and None in newer versions of xarray
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

    def __call__(self, datasets: list[Any]) -> Any:
        """Combine nested datasets or trees."""
        if self.combine == "by_coords":
            return xr.combine_by_coords(datasets, **self.options)
        if len(self.dims) == 1:
            return self.concatenate(datasets, self.dims[0])
        is_grid = _measure_depth(datasets) == len(self.dims) and not is_ragged(datasets)
        if is_grid and self.find_new_dims(datasets):
            found: Any = datasets
            for dim in self.dims:
                # the outermost first, as in xarray, which decides the place of new dimensions
                found = self._stack(found, dim)
            return found
        return xr.combine_nested(datasets, concat_dim=self.concat_dim, **self.options)

    @property
    def dims(self) -> tuple[Any, ...]:
        """The dimensions to join along, the outermost first; none if coordinates decide."""
        if self.combine == "by_coords":
            return ()
        several = isinstance(self.concat_dim, list | tuple)
        return tuple(self.concat_dim) if several else (self.concat_dim,)

    def combine_rows(self, datasets: list[Any]) -> Any:
        """Combine datasets of rows with missing cells; outer joins leave these missing."""
        return combine_by_rows(datasets, self.dims, self.concatenate)

    def _stack(self, datasets: list[Any], dim: Any) -> Any:
        """Join nested lists along the outermost dimension, cell by cell."""
        if not isinstance(datasets[0], list):
            return self.concatenate(datasets, dim)
        return [self._stack(list(cells), dim) for cells in zip(*datasets, strict=True)]

    def concatenate(self, datasets: list[Any], dim: Any) -> Any:
        """Concatenate datasets along a dimension; along a new one, stack them.

        Here "minimal" means variables with the dimension. For a new dimension xarray refuses it;
        `xarray.open_mfdataset` stacks data variables then, and coordinates that differ.

        Raises
        ------
        CombineError
            The dimension looks like a misspelt dimension of the datasets.
        """
        options = self.options
        if dim is not None and self._is_minimal and _is_new(dim, datasets):
            self.check_dims(datasets)
            coords = "minimal" if options.get("compat") == "override" else "different"
            options = options | {"data_vars": "all", "coords": coords}
        return xr.combine_nested(datasets, concat_dim=dim, **options)

    @property
    def _is_minimal(self) -> bool:
        return all(self.options.get(name, "") == "minimal" for name in ("data_vars", "coords"))

    def find_new_dims(self, datasets: list[Any]) -> list[Any]:
        """Return the dimensions to join along that no dataset has."""
        return [dim for dim in self.dims if dim is not None and _is_new(dim, datasets)]

    def check_dims(self, datasets: list[Any]) -> None:
        """Refuse to stack along what looks like a misspelt dimension of the datasets.

        Raises
        ------
        CombineError
        """
        parts = [part for dataset in flatten_nested(datasets) for part in _list_groups(dataset)]
        for dim in self.find_new_dims(datasets):
            if not any(dim in part.variables for part in parts):
                check_name(dim, dict.fromkeys(d for part in parts for d in part.dims))


def check_name(dim: str, dims: Iterable[Any]) -> None:
    """Refuse a dimension that no file has if it looks like a misspelt one that files have.

    Raises
    ------
    CombineError
    """
    known = list(map(str, dims))
    if dim not in known and (other := guess_name(dim, known)):
        raise CombineError(
            f"concat_dim={dim!r}: no file has this dimension, but {known}; did you mean {other!r}? "
            f"To stack files along a new one, pass preprocess=lambda ds: ds.expand_dims({dim!r})"
        )


def _list_groups(opened: Any) -> Iterator[Any]:
    """Yield the dataset, or the nodes of a tree, which have their own dimensions."""
    yield from opened.subtree if isinstance(opened, xr.DataTree) else (opened,)


def _is_new(dim: Any, datasets: list[Any]) -> bool:
    return not any(
        dim in part.dims for some in flatten_nested(datasets) for part in _list_groups(some)
    )


def _measure_depth(datasets: list[Any]) -> int:
    return 1 + max((_measure_depth(item) for item in datasets if isinstance(item, list)), default=0)


def combine_naming_files(
    combine: Combine,
    dims: Sequence[Any] | None,
    datasets: list[Any],
    files: Sequence[Any],
    opened: Sequence[Any],
) -> Any:
    """Combine datasets; an error names the files, and the first that does not fit.

    Parameters
    ----------
    combine : callable
    dims : sequence of str or None, optional
        The dimensions that the datasets are joined along, if known.
    datasets : list
        Nested as ``combine`` expects them.
    files : sequence
        The files of the datasets, in order.
    opened : sequence
        The datasets in this order.

    Raises
    ------
    UnsupportedError
        A dimension is too long for what xarray makes of it, and so says a file.
    """
    shown = [without_secrets(str(file)) for file in files]
    demand_lengths(shown, opened, dims)
    try:
        return combine(datasets)
    except COMBINE_ERRORS as error:
        error.add_note(f"while combining {len(files)} files, {shown[0]} to {shown[-1]}")
        if dims is None and isinstance(combine, Combination) and combine.combine == "nested":
            error.add_note("concat_dim is not given, so the files are merged; pass concat_dim=")
        if isinstance(error, xr.MergeError):
            _leave_out_overriding(error)
            error.add_note(_name_keeping(combine, datasets))
        for dim in dims or ():
            if dim is not None and _is_new(dim, list(opened)):
                error.add_note(
                    f"no file has the dimension {dim!r}, so the files are stacked along it"
                )
        if (number := _find_first_failing(combine, datasets)) is not None:
            before = f"the {number} before it" if number > 1 else shown[0]
            error.add_note(f"{shown[number]} is the first file that does not combine with {before}")
        if (difference := find_first_difference(shown, opened, dims)) is not None:
            error.add_note(difference)
        error.add_note("virtualds.diagnose(files) shows all differences, and what to do about each")
        raise


def demand_lengths(files: Sequence[str], opened: Sequence[Any], dims: Sequence[Any] | None) -> None:
    """Refuse dimensions for whose length alone xarray would take too much memory.

    Where it concatenates, it makes a mask of the whole dimension. Where it reindexes, it makes an
    index, and a mask, of the other dimensions too. Dimensions with an index are in memory already.

    Parameters
    ----------
    files : sequence of str
    opened : sequence of Dataset or DataTree
    dims : sequence of str or None, optional
        The dimensions that they are joined along, if known.

    Raises
    ------
    UnsupportedError
    """
    lengths: dict[tuple[str, Any], dict[str, int]] = defaultdict(dict)
    groups: dict[str, list[Any]] = defaultdict(list)
    for file, each in zip(files, opened, strict=True):
        for part in _list_groups(each):
            path = getattr(part, "path", "")
            groups[path].append(part)
            for dim, size in part.sizes.items():
                lengths[path, dim][file] = size
    for (path, dim), sizes in lengths.items():
        longest, size = max(sizes.items(), key=lambda item: item[1])
        if INDEX_BYTES * size * len(sizes) <= ALWAYS or dim in groups[path][0].indexes:
            continue
        nbytes = 0
        if dim in (dims or ()):
            nbytes = sum(sizes.values())
        elif _is_reindexed(dim, groups[path], dims):
            nbytes = INDEX_BYTES * size
        demand_joinable(nbytes, f"{longest}: dimension {str(dim)!r} of {size:,} elements")


INDEX_BYTES = 8
"""Bytes of an element of an index that xarray makes."""


def _is_reindexed(dim: Any, parts: Sequence[Any], dims: Sequence[Any] | None) -> bool:
    """Say whether xarray may put variables with a dimension on the coordinates of other files.

    It does so to variables that some files lack, and where coordinates differ along a dimension
    that the files are not joined along. Where nobody names dimensions, files of the same variables
    follow each other along one, and the results are merged.
    """
    alike: dict[frozenset[Any], list[Any]] = defaultdict(list)
    for part in parts:
        alike[frozenset(n for n, v in part.variables.items() if dim in v.dims)].append(part)
    if dims and len(alike) > 1:
        return True
    united = list[dict[Any, Any]]()
    for names, group in alike.items():
        beside = {d for n in names for d in group[0].variables[n].dims} - {*(dims or ())}
        lists = {d: [p.indexes[d] for p in group if d in p.indexes] for d in beside}
        indexes = {d: found for d, found in lists.items() if found}
        differ = [d for d, (one, *more) in indexes.items() if not all(map(one.equals, more))]
        if len(differ) > (0 if dims else 1):
            return True
        united.append({d: one.append(more).unique() for d, (one, *more) in indexes.items()})
    first = united[0]
    return any(not _has_same_values(one[d], first[d]) for one in united for d in one if d in first)


def _has_same_values(one: Any, other: Any) -> bool:
    return len(one) == len(other) and bool(one.isin(other).all())


KEEPING: tuple[dict[str, str], ...] = (
    {"coords": "different"},
    {"data_vars": "different"},
    {"coords": "different", "data_vars": "different"},
)
"""Options that put values which differ between files side by side, the simplest first."""
OVERRIDING = re.compile(r"[^.]*compat='override'\.?")
"""What xarray advises where values differ: to take those of the first file for those of all."""


def write_options(options: Mapping[str, str]) -> str:
    """Return options as code.

    >>> write_options({"coords": "different"})
    'coords="different"'
    """
    return ", ".join(f'{name}="{value}"' for name, value in options.items())


def _leave_out_overriding(error: Exception) -> None:
    """Leave the advice that changes values out of an error of xarray."""
    error.args = tuple(
        OVERRIDING.sub("", a).strip() if isinstance(a, str) else a for a in error.args
    )


def _name_keeping(combine: Combine, datasets: list[Any]) -> str:
    """Return how to combine datasets whose values differ without losing any."""
    if isinstance(combine, Combination):
        for options in KEEPING:
            if _can_combine(replace(combine, options=combine.options | options), datasets):
                return f"to keep the values of every file, pass {write_options(options)}"
    return "to keep the values of every file, rename the variable in preprocess, or open them apart"


def _find_first_failing(combine: Callable[[list[Any]], Any], datasets: list[Any]) -> int | None:
    """Return the number of the first dataset that does not combine with those before it.

    This costs little more than combining the datasets up to there. Grids have no such order.
    """
    if any(isinstance(item, list) for item in datasets):
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
    return works if len(datasets) > 1 else None


def _can_combine(combine: Callable[[list[Any]], Any], datasets: list[Any]) -> bool:
    try:
        combine(datasets)
    except COMBINE_ERRORS:
        return False
    return True
