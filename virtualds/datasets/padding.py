"""Pad datasets of different lengths along a dimension to equal length.

The granules of a satellite differ in their number of scanlines. The shorter ones are followed by
gaps: their chunks stay where they are, and no value is copied or read.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import get_default_fill, has_missing_value, is_same_scalar
from virtualds.datasets.lazy import get_virtual_array, replace_variables
from virtualds.errors import CombineError
from virtualds.options import guess_name

STRING_KINDS = "SUT"
"""Dtype kinds of strings. netCDF reads strings that were never written as empty strings."""


@dataclass(frozen=True)
class Padding:
    """The dimensions that are padded, and the fill values.

    ``dims`` are the dimensions. ``fill_value`` is the value for all variables, or a dict of values
    by variable; by default it is NaN, NaT or an empty string, or ``_FillValue`` of a variable that
    is not decoded. ``if_unfilled`` is the remedy that an error names if there is no such value.
    """

    dims: tuple[str, ...] = ()
    fill_value: Any = None
    if_unfilled: str = (
        "convert it to float (ds.assign({name}=ds.{name}.astype('f8')) stays virtual), or leave it "
        "out (ds.drop_vars({name!r}))"
    )

    def check_dims(self, present: Iterable[Hashable], joined: Iterable[Hashable]) -> None:
        """Raise an error for dimensions that are joined, or unknown but similar to a known one."""
        known = [*map(str, present)]
        for dim in self.dims:
            if dim in joined:
                raise ValueError(
                    f"pad={dim!r}: files are joined along it, so each adds its own length; name "
                    f"other dimensions"
                )
            if dim not in known and (other := guess_name(dim, known)):
                raise CombineError(
                    f"pad={dim!r}: there is no such dimension in {known}; did you mean {other!r}?"
                )

    def pad(
        self,
        files: Sequence[str],
        parts: Sequence[xr.Dataset],
        shared: Collection[Hashable] = (),
        *,
        compares: bool = True,
        min_sizes: Mapping[Any, int] | None = None,
    ) -> list[xr.Dataset]:
        """Return the datasets of files padded to the longest, and at least to ``min_sizes``.

        Elements after the end of shorter datasets are missing. Of ``shared`` variables and of
        dimension coordinates, all datasets get the longest, which must begin with the others;
        without ``compares``, only dimension coordinates are compared. Raises `CombineError` if they
        differ, or if a variable has no value that means "missing".
        """
        sizes = [min_sizes or {}, *(part.sizes for part in parts)]
        lengths = {
            dim: max(sizes_of_part.get(dim, 0) for sizes_of_part in sizes) for dim in self.dims
        }
        changed: list[dict[Hashable, xr.Variable]] = [{} for _ in parts]
        indexes: list[dict[Hashable, xr.Index]] = [{} for _ in parts]
        for name in dict.fromkeys(name for part in parts for name in part.variables):
            variable_of_file = {
                n: part.variables[name] for n, part in enumerate(parts) if name in part.variables
            }
            if not any(_is_shorter(variable, lengths) for variable in variable_of_file.values()):
                continue
            longest = max(
                variable_of_file, key=lambda n: _count_elements(variable_of_file[n], lengths)
            )
            is_index = any(name in part.xindexes for part in parts)
            if not is_index and name not in shared:
                for number, variable in variable_of_file.items():
                    padded = self._pad(
                        name, files[number], variable, variable_of_file[longest], lengths
                    )
                    changed[number][name] = padded
                continue
            if compares or is_index:
                self._check_beginnings(name, files, variable_of_file, longest, is_index)
            if is_index and _is_shorter(variable_of_file[longest], lengths):
                [dim] = parts[longest].variables[name].dims
                sizes_along = [part.sizes.get(dim, 0) for part in parts]
                other = sizes_along.index(max(sizes_along))
                raise CombineError(
                    f"{name}: {files[other]} has {sizes_along[other]} elements along {dim!r} "
                    f"without a coordinate, and {files[longest]} has one of "
                    f"{sizes_along[longest]}, so that the others are unknown; add it in "
                    f"preprocess=, or leave it out (drop_variables={name!r})"
                )
            padded_longest = self._pad(
                name, files[longest], variable_of_file[longest], variable_of_file[longest], lengths
            )
            for number, variable in variable_of_file.items():
                changed[number][name] = padded_longest.copy(deep=False)
                changed[number][name].attrs = dict(variable.attrs)
                if is_index:
                    indexes[number][name] = parts[longest].xindexes[name]
        return [
            replace_variables(part, *changes) if changes[0] else part
            for part, changes in zip(parts, zip(changed, indexes, strict=True), strict=True)
        ]

    def _check_beginnings(
        self,
        name: Hashable,
        files: Sequence[str],
        variable_of_file: Mapping[int, xr.Variable],
        longest: int,
        is_index: bool,
    ) -> None:
        """Raise an error for variables that are not the beginning of the longest one."""
        longest_variable = variable_of_file[longest]
        dims = [dim for dim in self.dims if dim in longest_variable.dims]
        for number, variable in variable_of_file.items():
            beginning = longest_variable.isel({dim: slice(variable.sizes.get(dim)) for dim in dims})
            if number == longest or beginning.equals(variable):  # type: ignore[no-untyped-call]
                continue
            remedy = "coords='different' or data_vars='different' keeps those of every file"
            if is_index:
                remedy = (
                    f"pad= takes elements by their position; leave {name!r} out of it, and "
                    f"join='outer' aligns files by this coordinate"
                )
            raise CombineError(
                f"{name}: the values in {files[number]} are not the first of those in "
                f"{files[longest]}, the longest along {' and '.join(map(repr, dims))}; {remedy}"
            )

    def _pad(
        self,
        name: Hashable,
        file: str,
        variable: xr.Variable,
        longest: xr.Variable,
        lengths: Mapping[Any, int],
    ) -> xr.Variable:
        """Return a variable with missing values after its end."""
        if not _is_shorter(variable, lengths):
            return variable
        fill = self._choose_fill(name, variable, longest)
        if fill is None:
            dim, size = next((d, n) for d, n in variable.sizes.items() if n < lengths.get(d, n))
            kind, suggestion = variable.dtype.kind, -1
            if kind in "bu":
                suggestion = False if kind == "b" else np.iinfo(variable.dtype).max
            raise CombineError(
                f"{name}: {file} has {size} of {lengths[dim]} elements along {str(dim)!r}, and no "
                f"value of {name!r} ({variable.dtype}) means that the others are missing; "
                f"{self.if_unfilled.format(name=name, value=suggestion)}"
            )
        array = get_virtual_array(variable)
        data: Any = variable.data if array is None else array
        if data.dtype.kind in STRING_KINDS:
            data = data.astype(np.result_type(data.dtype, np.asarray(fill).dtype))
        widths = [(0, max(lengths.get(d, 0) - n, 0)) for d, n in variable.sizes.items()]
        padded = np.pad(data, widths, constant_values=fill)
        return xr.Variable(variable.dims, padded, variable.attrs, variable.encoding)

    def _choose_fill(self, name: Hashable, variable: xr.Variable, longest: xr.Variable) -> Any:
        """Return the value of missing elements, or None if there is none."""
        fill_value, dtype = self.fill_value, variable.dtype
        if isinstance(fill_value, Mapping):
            fill_value = fill_value.get(name)
        if fill_value is None:
            fill_value = variable.attrs.get("_FillValue")
        if fill_value is None:
            if dtype.kind == "O":
                first = next(iter(longest.values.flat), None)
                return type(first)() if isinstance(first, str | bytes) else np.nan
            is_known = has_missing_value(dtype) or dtype.kind in STRING_KINDS
            return get_default_fill(dtype) if is_known else None
        if dtype.kind in STRING_KINDS or dtype.kind == "O":
            return fill_value
        try:
            fill = np.ravel(fill_value).astype(dtype)[0]
        except (TypeError, ValueError, OverflowError) as error:
            raise CombineError(
                f"{name}: {fill_value!r} is not a value of {dtype}; {error}"
            ) from error
        if not is_same_scalar(fill, np.ravel(fill_value)[0]):
            raise CombineError(
                f"{name}: the fill value {fill_value!r} is not a value of {dtype}; give one that is"
            )
        return fill


NO_PADDING = Padding()
"""Pads no dimension."""


def _count_elements(variable: xr.Variable, dims: Container[Any]) -> int:
    """Return the number of elements of a variable along some dimensions."""
    return prod(size for dim, size in variable.sizes.items() if dim in dims)


def _is_shorter(variable: xr.Variable, lengths: Mapping[Any, int]) -> bool:
    """Return whether a variable is shorter than the target length along some dimension."""
    return any(size < lengths.get(dim, size) for dim, size in variable.sizes.items())
