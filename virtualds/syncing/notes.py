"""Read and write the notes of a set about files that it uses in part or not at all.

A set does not refer to a file if other files have all its positions, if it is older than the window
of the set, or if all its chunks are missing. The notes contain the fingerprints of such files, so
that they need not be opened again in each run. `Window` is the part of a set that is kept.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.errors import CombineError
from virtualds.source_file import NO_NUMBER, make_relative
from virtualds.stores.access_rules import resolve_url
from virtualds.stores.listing import FileColumns, FileState

Urls = tuple[str, ...]
Mask = npt.NDArray[np.bool_]

UNUSED = "unused"
"""The set refers to no chunk of the file: all are missing, or their values are in the set."""
SHADOWED = "shadowed"
"""All positions of the file are taken from other files."""
CUT = "cut"
"""Some positions of the file are taken from other files or are older than the window."""
OUTSIDE = "outside"
"""All positions of the file are older than the window."""

DUE = "due"
"""The set may need more positions of the file, which could not be opened yet."""

LEFT_OUT = (UNUSED, SHADOWED, CUT, OUTSIDE, DUE)
"""The kinds of files that the set uses in part or not at all."""
DESCRIBES = "describes"
"""The file is a sidecar that describes a file of the set."""
DESCRIBED = "described"
"""The file is described by a sidecar, and the set itself has no fingerprint of it."""

Ends = tuple[float, float] | tuple[str, str]
"""The minimum and maximum of a coordinate of a file: numbers of `to_numbers`, or strings."""
CoordinateExtent = tuple[Ends, ...]
"""The ends of a file along the leading dimensions of the notes; unknown along the others."""
UNKNOWN_EXTENT: CoordinateExtent = ()
UNKNOWN_ENDS: Ends = (-inf, inf)


@dataclass(frozen=True, eq=False)
class Notes:
    """The files that a group of a set uses in part or not at all.

    ``kinds`` and ``extents`` (along ``dims``) have one item per file. ``cutoffs`` are the first
    values within the window, by dimension, and ``keep`` is the window as text. ``overlap`` is the
    option with which the files were chosen.
    """

    files: FileColumns = field(default_factory=lambda: FileColumns.from_states(()))
    kinds: tuple[str, ...] = ()
    extents: tuple[CoordinateExtent, ...] = ()
    cutoffs: Mapping[str, float] = field(default_factory=dict)
    keep: str = ""
    overlap: str = ""
    dims: tuple[str, ...] = ()

    @classmethod
    def read(cls, stored: Mapping[str, Any], root: str) -> Notes:
        """Read the notes of a group of the set at ``root``; return empty notes if damaged."""
        if not stored:
            return cls()
        try:
            rows = json.loads(gzip.decompress(base64.b64decode(stored["files"])))
            states = [
                FileState(resolve_url(url, root), _from_json(size), _from_json(mtime), str(etag))
                for url, size, mtime, etag, *_ in rows
            ]
            kinds = tuple(str(row[4]) for row in rows)
            extents = tuple(_read_extent(row[5:]) for row in rows)
            cutoffs = {str(dim): value for dim, value in stored.get("cutoffs", {}).items()}
            keep, overlap = (str(stored.get(name, "")) for name in ("keep", "overlap"))
            dims = tuple(map(str, stored.get("dims", ())))
            return cls(
                FileColumns.from_states(states), kinds, extents, cutoffs, keep, overlap, dims
            )
        except (LookupError, TypeError, ValueError, AttributeError, OSError, EOFError):
            return cls()

    @classmethod
    def of(cls, files: FileColumns, kind: str) -> Notes:
        """Create notes about files of one kind."""
        return cls(files, (kind,) * len(files), (UNKNOWN_EXTENT,) * len(files))

    def join(self, other: Notes) -> Notes:
        """Return these notes followed by the ``other`` ones."""
        files = FileColumns.join([self.files, other.files])
        kinds, extents = self.kinds + other.kinds, self.extents + other.extents
        return replace(self, files=files, kinds=kinds, extents=extents)

    def write(self, root: str) -> dict[str, Any]:
        """Return the notes as a JSON object, with urls relative to ``root`` if possible."""
        if not self.kinds and not self.keep and not self.overlap:
            return {}
        files = self.files
        numbers = ([*map(_to_json, column.tolist())] for column in (files.sizes, files.mtimes))
        columns = (*numbers, files.etags, self.kinds)
        urls = [make_relative(url, root) for url in files.urls]
        ends = [_write_extent(extent) for extent in self.extents]
        rows = [[*row, *ends[n]] for n, row in enumerate(zip(urls, *columns, strict=True))]
        rows.sort(key=lambda row: (row[0], row[4]))
        packed = gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), mtime=0)
        required = {"files": base64.b64encode(packed).decode(), "dims": [*self.dims]}
        optional = {"keep": self.keep, "cutoffs": dict(self.cutoffs), "overlap": self.overlap}
        return required | {name: value for name, value in optional.items() if value}

    def with_dims(self, dims: tuple[str, ...]) -> Notes:
        """Return the notes with extents along ``dims``; unknown along new dimensions."""
        if dims == self.dims:
            return self
        ends_by_dim = [dict(zip(self.dims, extent, strict=False)) for extent in self.extents]
        extents = tuple(tuple(ends.get(dim, UNKNOWN_ENDS) for dim in dims) for ends in ends_by_dim)
        return replace(self, extents=extents, dims=dims)

    def update(
        self,
        listed: FileColumns,
        used: FileColumns,
        opened: Collection[str],
        kinds: Mapping[str, str],
        extents: Mapping[str, CoordinateExtent],
    ) -> Notes:
        """Return the notes after a run, given the new ``kinds`` and ``extents`` of files.

        Earlier notes are kept, except those about files that were ``opened``, or that are neither
        ``listed`` nor ``used`` by the set.
        """
        files = FileColumns.join([listed, used, self.files])
        first_row = len(listed) + len(used)
        current_row = {str(files.urls[row]): row for row in reversed(range(first_row))}
        updated: dict[str, tuple[int, str, CoordinateExtent]] = {}
        rows = zip(self.files.urls.tolist(), self.kinds, self.extents, strict=True)
        for row, (url, kind, extent) in enumerate(rows, first_row):
            if kind in LEFT_OUT and url not in opened and url in current_row:
                updated[url] = row, kind, extent
        earlier = dict(zip(self.files.urls.tolist(), self.extents, strict=True))
        for url, kind in kinds.items():
            if url in current_row:
                extent = join_extents(earlier.get(url), extents.get(url, UNKNOWN_EXTENT))
                updated[url] = current_row[url], kind, extent
        urls = sorted(updated)
        return Notes(
            files.take(np.array([updated[url][0] for url in urls], np.intp)),
            tuple(updated[url][1] for url in urls),
            tuple(updated[url][2] for url in urls),
        )

    def find(self, kind: str) -> FileColumns:
        """Return the states of the files of one kind."""
        return self.files.take(np.array([k == kind for k in self.kinds], bool))

    def estimate_cutoff(self, count: int) -> float:
        """Return a value from which on files outside the window have ``count`` positions or more.

        This is the ``count``-th largest of the last values of the files, each of which is a
        position; -inf if there are fewer files, or if any of their extents is unknown.
        """
        outside = zip(self.extents, self.kinds, strict=True)
        ends = {extent[0][1] if extent else inf for extent, kind in outside if kind == OUTSIDE}
        numbers = sorted(end for end in ends if not isinstance(end, str))
        is_known = len(numbers) == len(ends) >= count and inf not in ends
        return numbers[-count] if is_known else -inf

    def select(
        self, *kinds: str, within: Collection[CoordinateExtent] = (UNKNOWN_EXTENT,)
    ) -> set[str]:
        """Return the urls of files of some kinds whose extent overlaps one of ``within``."""
        rows = zip(self.files.urls, self.kinds, self.extents, strict=True)
        return {
            str(url)
            for url, kind, extent in rows
            if kind in kinds and any(_are_overlapping(extent, other) for other in within)
        }


def find_among(urls: Iterable[str], others: Iterable[str]) -> Mask:
    """Return a mask of urls that are in ``others``; faster than `numpy.isin` for objects."""
    return np.asarray(pd.Index(urls, dtype=object).isin([*others]), bool)


def _are_overlapping(left: CoordinateExtent, right: CoordinateExtent) -> bool:
    """Return whether two extents overlap along each dimension that both have."""
    for (a, b), (c, d) in zip(left, right, strict=False):
        # an unknown bound is a number, which cannot be compared with a string
        if type(a) is type(c) and (d < a or b < c):  # type: ignore[operator]
            return False
    return True


def _read_extent(values: Sequence[Any]) -> CoordinateExtent:
    """Parse an extent, which is stored as two values per dimension, None if unknown."""
    pairs = zip(values[::2], values[1::2], strict=True)
    extent = tuple(UNKNOWN_ENDS if a is None or b is None else (a, b) for a, b in pairs)
    return UNKNOWN_EXTENT if all(pair == UNKNOWN_ENDS for pair in extent) else extent


def _write_extent(extent: CoordinateExtent) -> list[float | str | None]:
    """Return an extent as JSON: two values per dimension, None if unknown."""
    pairs = ((None, None) if pair == UNKNOWN_ENDS else pair for pair in extent or [UNKNOWN_ENDS])
    return [value for pair in pairs for value in pair]


def _to_json(number: int) -> int | None:
    """Convert a size or a time of `FileColumns` to JSON."""
    return None if number == NO_NUMBER else number


def _from_json(number: int | None) -> int:
    """Convert a size or a time in JSON to one of `FileColumns`."""
    return NO_NUMBER if number is None else int(number)


# ---------------------------------------------------------------------- windows


@dataclass(frozen=True)
class Window:
    """The part of a set that is kept along some dimensions.

    ``lengths`` are by dimension: a number of positions, or a duration before the last value.
    """

    lengths: Mapping[str, int | pd.Timedelta] = field(default_factory=dict)

    @classmethod
    def of(cls, keep: Any, dims: Collection[str]) -> Window:
        """Parse the argument ``keep`` of a set that is joined along ``dims``."""
        if keep is None:
            return cls()
        if not isinstance(keep, Mapping):
            raise TypeError(f"keep={keep!r}: give a dict such as {{'time': 'P2D'}}")
        lengths: dict[str, int | pd.Timedelta] = {}
        for dim, length in keep.items():
            if dim not in dims:
                raise ValueError(
                    f"keep={keep!r}: files are joined along {sorted(dims)}, not along {dim!r}"
                )
            lengths[dim] = _parse_length(length)
        return cls(lengths)

    def __bool__(self) -> bool:
        return bool(self.lengths)

    def __str__(self) -> str:
        return ", ".join(
            f"{dim}={length if isinstance(length, int) else length.isoformat()}"
            for dim, length in self.lengths.items()
        )

    def find_cutoffs(self, values: Mapping[str, Iterable[pd.Index[Any]]]) -> dict[str, float]:
        """Return the smallest value within the window, a number of `to_numbers`, by dimension.

        ``values`` are the coordinate values of the set in any number of parts, by dimension. A
        dimension with fewer values than the length of the window has no cutoff.
        """
        cutoffs: dict[str, float] = {}
        for dim, length in self.lengths.items():
            numbers = _list_numbers(values[dim], dim)
            if isinstance(length, int):
                if numbers.size >= length:
                    cutoffs[dim] = numbers[-length].item()
            elif numbers.size:
                _check_dates(dim, values[dim])
                # as in pandas, a window of two days does not include its first moment
                cutoffs[dim] = numbers[-1].item() - length // MICROSECOND + 1
        return cutoffs


def _list_numbers(indexes: Iterable[pd.Index[Any]], dim: str) -> npt.NDArray[Any]:
    """Return the unique values of a coordinate as ascending numbers."""
    parts = [to_numbers(index, dim) for index in indexes if index.size]
    numbers = np.unique(np.concatenate(parts)) if parts else np.empty(0)
    return numbers[~np.isnan(numbers)] if numbers.dtype.kind == "f" else numbers


def count_values(indexes: Iterable[pd.Index[Any]], dim: str) -> int:
    """Return the number of unique values of a coordinate in several parts."""
    return int(_list_numbers(indexes, dim).size)


MICROSECOND = pd.Timedelta(1, "us")


def _parse_length(length: Any) -> int | pd.Timedelta:
    """Convert the length of a window to a number of positions or a duration."""
    if isinstance(length, int) and not isinstance(length, bool) and length > 0:
        return length
    if isinstance(length, str | timedelta | np.timedelta64):
        with suppress(ValueError):
            if (duration := pd.Timedelta(length)) >= MICROSECOND:
                return duration
    raise ValueError(
        f"keep: {length!r} is not the length of a window; give a number of positions, at least 1, "
        f"or a duration, such as 'P2D' or '36h'"
    )


def _check_dates(dim: str, indexes: Iterable[pd.Index[Any]]) -> None:
    """Raise `CombineError` if coordinate values are not dates or durations."""
    dates = (pd.DatetimeIndex, pd.TimedeltaIndex, xr.CFTimeIndex)
    if any(index.size and not isinstance(index, dates) for index in indexes):
        raise CombineError(
            f"keep: the values of {dim!r} are not times, from which a duration could be counted; "
            f"give a number of positions"
        )


def to_numbers(index: pd.Index[Any], dim: str) -> npt.NDArray[Any]:
    """Convert coordinate values to numbers in the same order; times become microseconds.

    Missing times become NaN. Raises `CombineError` for values without an order.
    """
    if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex):
        numbers = index.to_numpy().astype(f"{index.dtype.kind}8[us]").astype(np.int64)
        return np.where(index.isna(), np.nan, numbers) if index.hasnans else numbers
    if isinstance(index, xr.CFTimeIndex):
        import cftime

        units = "microseconds since 1970-01-01"
        return np.asarray(cftime.date2num(index.to_numpy(), units, calendar=index.calendar))
    if index.dtype.kind not in "biuf":
        raise CombineError(
            f"keep: the values of {dim!r} ({index.dtype}) have no order, so that it is unclear "
            f"which are the last ones"
        )
    return np.asarray(index.to_numpy())


def join_extents(*extents: CoordinateExtent | None) -> CoordinateExtent:
    """Return the union of extents that are not None; `UNKNOWN_EXTENT` if all are None."""
    present = [extent for extent in extents if extent is not None]
    return tuple(map(_join_ends, zip(*present, strict=False)))


def _join_ends(all_ends: Iterable[Ends]) -> Ends:
    """Return the minimum and maximum of several ends; unknown if types are mixed."""
    begins, ends = zip(*all_ends, strict=True)
    if len({type(value) is str for value in begins}) > 1:
        return UNKNOWN_ENDS
    return min(begins), max(ends)


def find_extent(values: Mapping[str, pd.Index[Any]]) -> CoordinateExtent:
    """Return the extent of coordinate values along dimensions, `UNKNOWN_EXTENT` without values."""
    extent = tuple(_find_ends(index, dim) for dim, index in values.items())
    return UNKNOWN_EXTENT if all(ends == UNKNOWN_ENDS for ends in extent) else extent


def _find_ends(index: pd.Index[Any], dim: str) -> Ends:
    """Return the minimum and maximum of coordinate values; unknown if they have no order."""
    if index.size and all(isinstance(value, str) for value in index):
        return str(index.min()), str(index.max())
    try:
        numbers = to_numbers(index, dim)
    except CombineError:
        return UNKNOWN_ENDS
    numbers = numbers[~np.isnan(numbers)]
    return (numbers.min().item(), numbers.max().item()) if numbers.size else UNKNOWN_ENDS
