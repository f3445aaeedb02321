"""Add coordinates from file names, from attributes, or from functions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import xarray as xr

from virtualds.errors import CombineError, public
from virtualds.source_file import name_of, normalise_url
from virtualds.stores.listing import PathPattern

Source = Callable[[str, xr.Dataset], Any]
"""Returns the values of a coordinate, given the url and the dataset of a file."""
Opened = TypeVar("Opened", xr.Dataset, xr.DataTree)
Format = str | Callable[..., Any] | None

DATE_GROUPS = (
    ("year", "month", "day", "hour", "minute", "second"),
    ("year", "dayofyear", "hour", "minute", "second"),
)
"""Names of regular expression groups that form a date; trailing names may be missing."""
DATE_PARTS = frozenset(name for names in DATE_GROUPS for name in names)
METADATA_ATTRIBUTES = ("bounds", "climatology", "grid_mapping", "cell_measures")
"""Attributes that name variables with metadata (CF conventions, sections 5.6, 7.1, 7.2)."""


@public
@dataclass(frozen=True)
class FromName:
    r"""The value of a coordinate, from the file name.

    Parameters
    ----------
    pattern : str
        A regular expression with groups. It is searched in the last part of the url, or in the
        whole url if it contains a ``/``.
    format : str or callable, optional
        How to parse the groups: codes of `datetime.datetime.strptime`, for a single group; or a
        function (`int`, `float`, ...) of the text of each group. By default groups named ``year``,
        ``month``, ``day`` (or ``dayofyear``), ``hour``, ``minute`` and ``second`` form a date, and
        a single group of another name is a string.

    Raises
    ------
    ValueError
        The pattern is not a regular expression, has no group, or the meaning of its groups is not
        clear.

    Examples
    --------
    >>> month = FromName(r"sst_(?P<year>\d{4})(?P<month>\d{2})")
    >>> month("s3://bucket/sst_200102_v2.nc", xr.Dataset())
    np.datetime64('2001-02-01T00:00:00.000000000')
    >>> FromName(r"_r(?P<member>\d+)i", int)("file:///data/t_r12i1p1.nc", xr.Dataset())
    12
    """

    pattern: str
    format: Format = None

    def __post_init__(self) -> None:
        try:
            compiled = re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern {self.pattern!r}: {error}; correct it") from None
        if not compiled.groups:
            raise ValueError(
                f"pattern {self.pattern!r}: it has no group; put what is wanted into (?P<name>...)"
            )
        if callable(self.format):
            return
        names = list(compiled.groupindex)
        if self.format is not None and compiled.groups > 1:
            raise ValueError(
                f"pattern {self.pattern!r}: format {self.format!r} is for one group, but it "
                f"has {compiled.groups}; name them year, month, ... without a format, or give a "
                "function"
            )
        is_date_required = compiled.groups > 1 or not DATE_PARTS.isdisjoint(names)
        if self.format is None and is_date_required and not _is_date(names, compiled.groups):
            raise ValueError(
                f"pattern {self.pattern!r}: its {compiled.groups} groups, named {names}, do not "
                f"make a date; "
                f"name them year, month, day, hour, ... from the coarsest on, or give a function"
            )

    def __call__(self, url: str, dataset: xr.Dataset) -> Any:
        """Parse the value from the name of a file."""
        text = url if "/" in self.pattern else name_of(url)
        matches = {match.groups(): match for match in re.finditer(self.pattern, text)}
        if not matches:
            raise CombineError(
                f"the pattern {self.pattern!r} is not found in {text!r}; change it, or leave the "
                f"file out"
            )
        if len(matches) > 1:
            match_list = ", ".join(repr(match[0]) for match in matches.values())
            raise CombineError(
                f"the pattern {self.pattern!r} is found several times in {text!r}, as "
                f"{match_list}; make it longer, so that it matches once"
            )
        [match] = matches.values()
        if callable(self.format):
            return self.format(*match.groups())
        if self.format is not None:
            return _to_datetime(datetime.strptime(match[1], self.format))
        parts = {name: digits for name, digits in match.groupdict().items() if digits is not None}
        return _parse_date(parts) if "year" in match.re.groupindex else match[1]


@dataclass(frozen=True)
class FromPattern:
    """The value of a coordinate, from the text that a name in a url pattern matches.

    An existing coordinate of the file is not replaced.
    """

    pattern: PathPattern
    name: str

    def __call__(self, url: str, dataset: xr.Dataset) -> Any:
        """Parse the value from the url of a file."""
        return self.pattern.read(self.name, self.pattern.find_facts(url)[self.name])


def add_from_pattern(
    pattern: PathPattern | None, dims: Iterable[Hashable], coordinates: Mapping[str, Source] | None
) -> Mapping[str, Source] | None:
    """Return the given coordinates, and those of dimensions that are names of a url pattern."""
    if pattern is None or (coordinates is not None and not isinstance(coordinates, Mapping)):
        return coordinates
    named = [dim for dim in dims if isinstance(dim, str) and dim in pattern.names]
    from_pattern: dict[str, Source] = {name: FromPattern(pattern, name) for name in named}
    return {**from_pattern, **(coordinates or {})} or coordinates


@public
@dataclass(frozen=True)
class FromAttribute:
    """The values of a coordinate, from an attribute of the file.

    Parameters
    ----------
    name : str
        Name of the attribute.
    variable : str, optional
        The variable with the attribute; by default the attribute belongs to the dataset.
    format : str or callable, optional
        Codes of `datetime.datetime.strptime`, or a function of the attribute; by default the value
        is not changed.

    Examples
    --------
    >>> start = FromAttribute("start_date", format="%Y-%m-%d")
    >>> start("file:///data/a.nc", xr.Dataset(attrs={"start_date": "2001-02-03"}))
    np.datetime64('2001-02-03T00:00:00.000000000')
    """

    name: str
    variable: str | None = None
    format: Format = None

    def __call__(self, url: str, dataset: xr.Dataset) -> Any:
        """Return the value of the attribute."""
        if self.variable is not None and self.variable not in dataset.variables:
            present = sorted(map(str, dataset.variables))
            raise CombineError(f"there is no variable {self.variable!r}; name one of {present}")
        owner = dataset if self.variable is None else dataset.variables[self.variable]
        if self.name not in owner.attrs:
            subject = "the dataset" if self.variable is None else repr(self.variable)
            raise CombineError(
                f"{subject} has no attribute {self.name!r}; name one of "
                f"{sorted(map(str, owner.attrs))}, or leave the file out"
            )
        value = owner.attrs[self.name]
        if callable(self.format):
            return self.format(value)
        return value if self.format is None else _to_datetime(datetime.strptime(value, self.format))


def _is_date(names: list[str], group_count: int) -> bool:
    """Return whether all groups have names that form a date, beginning with the year."""
    return len(names) == group_count and any(
        set(names) == set(date_names[:group_count]) for date_names in DATE_GROUPS
    )


def _parse_date(parts: Mapping[str, str]) -> np.datetime64:
    """Return the date of the given parts, such as year and month."""
    if not _is_date(list(parts), len(parts)):
        raise ValueError(f"{dict(parts)} is not a date")
    if len(parts["year"]) < 4:
        raise ValueError(f"the year {parts['year']!r} has no century; use format='%y...'")
    numbers = {name: int(text) for name, text in parts.items()}
    days = timedelta(days=numbers.pop("dayofyear", 1) - 1)
    parsed = datetime(**{"month": 1, "day": 1, **numbers}) + days  # type: ignore[arg-type]
    if parsed.year != numbers["year"]:
        raise ValueError(f"the year {numbers['year']} has no day {parts['dayofyear']}")
    return _to_datetime(parsed)


def _to_datetime(value: date) -> np.datetime64:
    """Convert a date to UTC with the dtype of decoded times: nanoseconds if possible."""
    stamp = pd.Timestamp(value)
    universal = stamp.tz_convert(None) if stamp.tz else stamp
    converted: np.datetime64 = _to_nanoseconds(np.asarray(universal.to_datetime64()))[()]
    return converted


def _to_nanoseconds(values: np.ndarray[Any, Any]) -> Any:
    """Convert times to nanoseconds; return them unchanged if they would overflow."""
    try:
        converted = values.astype("datetime64[ns]")
    except OverflowError:
        # NumPy 2.5 and later raise; older versions overflow silently, so check the result
        return values
    return (
        converted if (converted.astype(values.dtype) == values)[~np.isnat(values)].all() else values
    )


# ---------------------------------------------------------------------- adding coordinates


@dataclass(frozen=True)
class FileCoordinates:
    """Adds coordinates to the dataset or tree of each file.

    ``sources`` are `FromName`, `FromAttribute`, or functions of the url and the dataset of a file,
    by the name of the coordinate. ``joined`` are the dimensions along which files are joined, by
    default the names of all sources. Raises `TypeError` for a source that is not callable.
    """

    sources: Mapping[str, Source]
    joined: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, source in self.sources.items():
            if not callable(source):
                raise TypeError(
                    f"coordinates[{name!r}]: {source!r} gives no values; pass FromName, "
                    f"FromAttribute, or a function of the url and the dataset"
                )

    def __call__(self, file: str | os.PathLike[str], opened: Opened) -> Opened:
        """Return the dataset or tree of a file with the coordinates added.

        Sources are called with the root of a tree. A coordinate is added to groups with its
        dimension; a new dimension is added to groups with data variables. Raises `CombineError` if
        a source has no value for the file, or the number of values does not fit.
        """
        url = normalise_url(file)
        # begin with joined dimensions, since other coordinates may lie along them
        for name in sorted(self.sources, key=lambda name: not self._is_joined(name)):
            source = self.sources[name]
            try:
                root = opened.to_dataset() if isinstance(opened, xr.DataTree) else opened
                values = _to_variable(source(url, root))
                opened = self._add_coordinate(
                    opened, name, values, keep_existing=isinstance(source, FromPattern)
                )
            except CombineError as error:
                raise CombineError(f"{url}: coordinate {name!r}: {error}") from error
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
                raise CombineError(
                    f"{url}: coordinate {name!r}: {source!r} fails with {type(error).__name__}: "
                    f"{error}; correct it, or leave the file out"
                ) from error
        return opened

    def _is_joined(self, name: Hashable) -> bool:
        """Return whether files are joined along a dimension."""
        return self.joined is None or name in self.joined

    def _add_coordinate(
        self, opened: Opened, name: str, values: xr.Variable, *, keep_existing: bool
    ) -> Opened:
        """Return a dataset, or a tree, with a coordinate added.

        With ``keep_existing``, an existing coordinate is not replaced.
        """
        if isinstance(opened, xr.Dataset):
            return self._add_to_group(opened, name, values, keep_existing)
        groups = {node.path: node.to_dataset(inherit=False) for node in opened.subtree}
        # a coordinate of the root must not differ from that of a group
        in_root = not keep_existing or all(name not in group.variables for group in groups.values())
        new_groups = {
            path: self._add_to_group(group, name, values, keep_existing)
            if name in group.dims or group.data_vars or (path == "/" and in_root)
            else group
            for path, group in groups.items()
        }
        return xr.DataTree.from_dict(new_groups, name=opened.name)

    def _add_to_group(
        self, dataset: xr.Dataset, name: str, values: xr.Variable, keep_existing: bool
    ) -> xr.Dataset:
        """Return a dataset with a coordinate added, see `_add_coordinate`."""
        if keep_existing and name in dataset.indexes:
            return dataset
        present = dataset.variables.get(name)
        if present is not None and present.dims not in ((), (name,)):
            raise CombineError(
                f"the file has a variable of that name along {present.dims}; choose another name"
            )
        if keep_existing and present is not None:
            values = _to_variable(present)
        is_new, joined = name not in dataset.dims and self._is_joined(name), self.joined or ()
        dim: str | None = name
        if name not in dataset.dims and not is_new:
            # a coordinate of another name lies along the joined dimension, if there is one
            dim = joined[0] if len(joined) == 1 and joined[0] in dataset.dims else None
        size = 1 if is_new or dim is None else dataset.sizes[dim]
        if values.ndim > 1 or (values.size != size and (dim in (name, None) or values.size != 1)):
            is_absent = is_new or dim is None
            description = (
                f"no dimension {name!r}" if is_absent else f"{size} elements along {dim!r}"
            )
            more = ", or name a dimension of that length" if size == 1 else ""
            raise CombineError(
                f"it has {description}, but there are {values.size} values for it; give "
                f"{size}{more}"
            )
        broadcast = np.broadcast_to(np.asarray(values.data).reshape(-1), size).copy()
        if dim is None:
            scalar = xr.Variable((), broadcast.reshape(()), values.attrs)
            return dataset.assign_coords({name: scalar})
        others = dataset.drop_vars(name, errors="ignore")
        if is_new:
            # add the dimension to data variables, except for metadata
            words = [
                word
                for variable in others.variables.values()
                for key in METADATA_ATTRIBUTES
                for word in re.findall(
                    r"[^\s:]+", str(variable.attrs.get(key, variable.encoding.get(key, "")))
                )
            ]
            metadata_names = sorted({*words} & set(map(str, others.data_vars)))
            # expand_dims does not change coordinates
            expanded = others.set_coords(metadata_names).expand_dims(name)
            others = expanded.reset_coords(metadata_names)
        return others.assign_coords({name: xr.Variable((dim,), broadcast, values.attrs)})


def _to_variable(value: Any) -> xr.Variable:
    """Convert a scalar or one-dimensional values to a variable."""
    if isinstance(value, xr.DataArray | xr.Variable):
        variable = value.variable if isinstance(value, xr.DataArray) else value
        return xr.Variable(variable.dims, np.asarray(variable.data), variable.attrs)
    values = np.asarray(_to_datetime(value) if isinstance(value, date) else value)
    if values.dtype.kind == "M":
        values = _to_nanoseconds(values)
    if values.ndim > 1:
        raise ValueError(f"values of shape {values.shape} do not lie along one dimension")
    return xr.Variable(("values",)[: values.ndim], values)
