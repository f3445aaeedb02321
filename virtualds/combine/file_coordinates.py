"""Coordinates from file names, from attributes, or from a function."""

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
from virtualds.stores.patterns import PathPattern
from virtualds.urls import name_of, normalise_url

Source = Callable[[str, xr.Dataset], Any]
"""Takes the url and the dataset of a file, and returns the values of a coordinate."""
Opened = TypeVar("Opened", xr.Dataset, xr.DataTree)
Format = str | Callable[..., Any] | None

DATES = (
    ("year", "month", "day", "hour", "minute", "second"),
    ("year", "dayofyear", "hour", "minute", "second"),
)
"""Names of groups of a regular expression that form a date; trailing ones may be missing."""
DATE_PARTS = frozenset(name for chain in DATES for name in chain)
DESCRIBING_ATTRIBUTES = ("bounds", "climatology", "grid_mapping", "cell_measures")
"""Attributes that name variables of metadata (CF conventions, sections 5.6, 7.1, 7.2)."""


@public
@dataclass(frozen=True)
class FromName:
    r"""The value of a coordinate, from the file name.

    Parameters
    ----------
    pattern : str
        A regular expression with groups, searched in the last part of the url; if it contains a
        ``/``, in the whole url.
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
                f"pattern {self.pattern!r}: format {self.format!r} is for one group, it has "
                f"{compiled.groups}; name them year, month, ... without a format, or give a "
                "function"
            )
        needs_date = compiled.groups > 1 or not DATE_PARTS.isdisjoint(names)
        if self.format is None and needs_date and not _is_date(names, compiled.groups):
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
                f"{match_list}; make it longer, so that one is left"
            )
        [match] = matches.values()
        if callable(self.format):
            return self.format(*match.groups())
        if self.format is not None:
            return _to_datetime(datetime.strptime(match[1], self.format))
        parts = {name: digits for name, digits in match.groupdict().items() if digits is not None}
        return _parse_parts(parts) if "year" in match.re.groupindex else match[1]


@dataclass(frozen=True)
class FromPattern:
    """The value of a coordinate, from the text that a name of a url pattern matches.

    It does not replace the coordinate of a file that has one.
    """

    pattern: PathPattern
    name: str

    def __call__(self, url: str, dataset: xr.Dataset) -> Any:
        """Parse the value from the url of a file."""
        return self.pattern.read(self.name, self.pattern.find_facts(url)[self.name])


def add_from_pattern(
    pattern: PathPattern | None, dims: Iterable[Hashable], coordinates: Mapping[str, Source] | None
) -> Mapping[str, Source] | None:
    """Return the coordinates of the user, and those of dimensions that a url pattern names."""
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
            whose = "the dataset" if self.variable is None else repr(self.variable)
            raise CombineError(
                f"{whose} has no attribute {self.name!r}, but {sorted(map(str, owner.attrs))}; "
                f"name one of them, or leave the file out"
            )
        value = owner.attrs[self.name]
        if callable(self.format):
            return self.format(value)
        return value if self.format is None else _to_datetime(datetime.strptime(value, self.format))


def _is_date(names: list[str], groups: int) -> bool:
    """Return whether all groups have names, and these form a date from the year on."""
    return len(names) == groups and any(set(names) == set(chain[:groups]) for chain in DATES)


def _parse_parts(parts: Mapping[str, str]) -> np.datetime64:
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
    """Convert a date to the dtype of dates that xarray decodes: UTC, nanoseconds if possible."""
    stamp = pd.Timestamp(value)
    universal = stamp.tz_convert(None) if stamp.tz else stamp
    converted: np.datetime64 = _to_nanoseconds(np.asarray(universal.to_datetime64()))[()]
    return converted


def _to_nanoseconds(values: np.ndarray[Any, Any]) -> Any:
    try:
        converted = values.astype("datetime64[ns]")
    except OverflowError:
        # raised by numpy 2.5 and later; older versions overflow silently, so check the result
        return values
    return (
        converted if (converted.astype(values.dtype) == values)[~np.isnat(values)].all() else values
    )


# ---------------------------------------------------------------------- adding coordinates


@dataclass(frozen=True)
class FileCoordinates:
    """Adds coordinates to the dataset or tree of each file.

    ``sources`` are callables by the name of the coordinate: `FromName`, `FromAttribute`, or a
    function of the url and the dataset of a file. ``joined`` are the dimensions along which files
    are joined, by default the names of all sources. Raises `TypeError` for a source that is not
    callable.
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
        # joined dimensions first, since other coordinates may lie along them
        for name in sorted(self.sources, key=lambda name: not self._is_joined(name)):
            source = self.sources[name]
            try:
                root = opened.to_dataset() if isinstance(opened, xr.DataTree) else opened
                values = _to_variable(source(url, root))
                opened = self._add_coordinate(
                    opened, name, values, keeps=isinstance(source, FromPattern)
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
        return self.joined is None or name in self.joined

    def _add_coordinate(
        self, opened: Opened, name: str, values: xr.Variable, *, keeps: bool
    ) -> Opened:
        """Add a coordinate to a dataset, or to groups of a tree.

        With ``keeps``, an existing coordinate is kept.
        """
        if isinstance(opened, xr.Dataset):
            return self._add_to_group(opened, name, values, keeps)
        groups = {node.path: node.to_dataset(inherit=False) for node in opened.subtree}
        # a coordinate of the root must not differ from that of a group
        in_root = not keeps or all(name not in group.variables for group in groups.values())
        new_groups = {
            path: self._add_to_group(group, name, values, keeps)
            if name in group.dims or group.data_vars or (path == "/" and in_root)
            else group
            for path, group in groups.items()
        }
        return xr.DataTree.from_dict(new_groups, name=opened.name)

    def _add_to_group(
        self, dataset: xr.Dataset, name: str, values: xr.Variable, keeps: bool
    ) -> xr.Dataset:
        if keeps and name in dataset.indexes:
            return dataset
        present = dataset.variables.get(name)
        if present is not None and present.dims not in ((), (name,)):
            raise CombineError(
                f"the file has a variable of that name along {present.dims}; choose another name"
            )
        if keeps and present is not None:
            values = _to_variable(present)
        is_new, joined = name not in dataset.dims and self._is_joined(name), self.joined or ()
        dim: str | None = name
        if name not in dataset.dims and not is_new:
            # a coordinate of another name lies along the joined dimension, if there is one
            dim = joined[0] if len(joined) == 1 and joined[0] in dataset.dims else None
        size = 1 if is_new or dim is None else dataset.sizes[dim]
        if values.ndim > 1 or (values.size != size and (dim in (name, None) or values.size != 1)):
            absent = is_new or dim is None
            owned = f"no dimension {name!r}" if absent else f"{size} elements along {dim!r}"
            more = ", or name a dimension of that length" if size == 1 else ""
            raise CombineError(
                f"it has {owned}, but there are {values.size} values for it; give {size}{more}"
            )
        broadcast = np.broadcast_to(np.asarray(values.data).reshape(-1), size).copy()
        if dim is None:
            scalar = xr.Variable((), broadcast.reshape(()), values.attrs)
            return dataset.assign_coords({name: scalar})
        without = dataset.drop_vars(name, errors="ignore")
        expanded = _expand_dataset(without, name) if is_new else without
        return expanded.assign_coords({name: xr.Variable((dim,), broadcast, values.attrs)})


def _to_variable(value: Any) -> xr.Variable:
    """Convert a scalar or 1-D values to a variable."""
    if isinstance(value, xr.DataArray | xr.Variable):
        variable = value.variable if isinstance(value, xr.DataArray) else value
        return xr.Variable(variable.dims, np.asarray(variable.data), variable.attrs)
    values = np.asarray(_to_datetime(value) if isinstance(value, date) else value)
    if values.dtype.kind == "M":
        values = _to_nanoseconds(values)
    if values.ndim > 1:
        raise ValueError(f"values of shape {values.shape} do not lie along one dimension")
    return xr.Variable(("values",)[: values.ndim], values)


def _expand_dataset(dataset: xr.Dataset, name: str) -> xr.Dataset:
    """Add a new dimension to all data variables, except for variables of metadata."""
    words = {
        word
        for variable in dataset.variables.values()
        for key in DESCRIBING_ATTRIBUTES
        for word in re.findall(
            r"[^\s:]+", str(variable.attrs.get(key, variable.encoding.get(key, "")))
        )
    }
    static = [word for word in sorted(words) if word in dataset.data_vars]
    # expand_dims does not change coordinates
    return dataset.set_coords(static).expand_dims(name).reset_coords(static)
