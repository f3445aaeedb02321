"""`ManifestGroup` and `ManifestVariable`: groups and variables as stored in a file.

Parsers and readers of reference formats return a `ManifestGroup`, writers take one. Values are as
stored; they are decoded by the CF conventions when a dataset is built from the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.bounds import check_axes
from virtualds.chunks.axes import MAX_AXIS_LENGTH, ChunkAxis
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import (
    FormatError,
    UnsupportedError,
    VirtualdsError,
    format_count,
    make_damage_error,
    public,
)
from virtualds.source_file import SourceFile, path_or_url

# ---------------------------------------------------------------------- how a file was read


class ReadMethod(NamedTuple):
    """The method of reading a file, and the reason for not using a faster one."""

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return _DESCRIPTIONS[self.name] + (f", since {self.reason}" if self.reason else "")


TOGETHER = ReadMethod("together")
"""Read with the structure of another file, without parsing all of its metadata."""
ALONE = ReadMethod("alone")
"""Read by the HDF5 reader of virtualds."""
LIBRARY = "library"
"""Name of the method that reads with the HDF5 library."""
_DESCRIPTIONS = {
    TOGETHER.name: "read together with files of the same structure",
    ALONE.name: "read by virtualds",
    LIBRARY: "read by the HDF5 library",
}


# ---------------------------------------------------------------------- groups


MAX_NAMES_IN_REPR = 10
"""Maximum number of variables and groups in the repr of a group."""
SHARED_ATTRIBUTES = ("units", "calendar", "bounds", "aggregated_data")
"""Attributes that affect other variables: bounds of times use the units of the times, and variables
that describe an aggregation variable are hidden."""


class Deferred(Protocol):
    """An array that the library of a file format reads when values are needed."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def read(self, key: Sequence[Any]) -> npt.NDArray[Any]: ...


Data = ManifestArray | npt.NDArray[Any] | Deferred


def resolve_index(key: Any, size: int) -> npt.NDArray[np.int64]:
    """Convert an index entry (int, slice or 1-D array) to an array of non-negative positions.

    An axis may be too long for an array of all its positions.

    Examples
    --------
    >>> resolve_index(-1, 2**60), resolve_index([0, -2], 4)
    (array([1152921504606846975]), array([0, 2]))
    >>> resolve_index(slice(3, None, -2), 2**60)
    array([3, 1])
    """
    if not isinstance(key, slice) and np.ndim(key):
        positions = np.asarray(key, np.int64)
        if (outside := positions[(positions < -size) | (positions >= size)]).size:
            raise IndexError(f"index {outside[0]} is out of bounds for an axis of {size} elements")
        return np.where(positions < 0, positions + size, positions)
    chosen = range(size)[key]
    return np.atleast_1d(np.array(chosen, np.int64))


def count_selected(key: Any, size: int) -> int:
    """Return the number of elements that an index entry selects along an axis."""
    return len(range(size)[key]) if isinstance(key, slice) else np.size(key)


@public
@dataclass(frozen=True, repr=False)
class ManifestVariable:
    """A variable of a file.

    Parameters
    ----------
    dims : tuple of str
        Name of every axis.
    data : ManifestArray, numpy.ndarray or Deferred
        The values as stored. Values that are not in a byte range (variable-length strings are in a
        heap) are loaded immediately if they are few, and otherwise deferred.
    attributes : dict
        The attributes in the file, including packing attributes.
    encoding : dict
        How the variable was stored, with the keys of xarray's netCDF backends.

    Raises
    ------
    FormatError
        The numbers of dims and of axes differ.

    Examples
    --------
    >>> ManifestVariable(("x",), np.array([1.0, 2.0]), {"units": "K"}).data.shape
    (2,)
    """

    dims: tuple[str, ...]
    data: Data
    attributes: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.dims) != self.data.ndim:
            raise FormatError(
                f"dimensions {self.dims} for an array of {self.data.ndim} axes; "
                f"the metadata contradict each other"
            )

    def __repr__(self) -> str:
        return f"<ManifestVariable ({', '.join(self.dims)}): {self._data_repr}>"

    @property
    def _data_repr(self) -> str:
        if isinstance(self.data, ManifestArray):
            return repr(self.data)
        location = "in memory" if isinstance(self.data, np.ndarray) else "read when needed"
        return f"{self.data.shape} {self.data.dtype}, {location}"

    def read(self) -> npt.NDArray[Any]:
        """Return all values as stored.

        Raises
        ------
        ReadError
            Bytes cannot be read, have changed, or do not decode.
        UnsupportedError
            Values that are not in a byte range take more memory than ``load_limit`` allows.
        """
        if isinstance(self.data, np.ndarray):
            return self.data
        return self.data.read((slice(None),) * self.data.ndim)


@public
@dataclass(frozen=True, repr=False)
class ManifestGroup:
    """The variables, attributes and subgroups of one group of a file or reference set.

    Parameters
    ----------
    variables : dict of str to ManifestVariable
    attributes : dict
    groups : dict of str to ManifestGroup
    encoding : dict
        ``unlimited_dims`` and the like.
    problems : dict of str to VirtualdsError
        Errors by name: of variables, whose values cannot be read, of groups, which are omitted, and
        of attributes, named as in CDL, ``"variable:attribute"`` or ``":attribute"``.
    damaged : dict of str to VirtualdsError
        Errors of parts of the file that belong to no variable, such as GRIB messages, by location.
    left_out : dict of str to ManifestVariable
        Descriptions (`describe_left_out`) of omitted variables in the file, which affect how xarray
        decodes the others.
    way : ReadMethod, optional
        How the file was read, if its parser has several methods.
    notes : dict
        JSON that `virtualds.sync` stores in a set about files that the set does not use. Only
        `sync` reads it, and works without it.

    Raises
    ------
    FormatError
        A dimension has different lengths in two variables.

    Examples
    --------
    >>> child = ManifestGroup({"t": ManifestVariable(("x",), np.zeros(3))})
    >>> list(ManifestGroup(groups={"a": child}).group("/a/").variables)
    ['t']
    """

    variables: Mapping[str, ManifestVariable] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    groups: Mapping[str, ManifestGroup] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, VirtualdsError] = field(default_factory=dict)
    damaged: Mapping[str, VirtualdsError] = field(default_factory=dict)
    left_out: Mapping[str, ManifestVariable] = field(default_factory=dict)
    way: ReadMethod | None = field(default=None, compare=False)
    notes: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        seen: dict[str, tuple[str, int]] = {}
        for name, variable in self.variables.items():
            for dim, size in zip(variable.dims, variable.data.shape, strict=True):
                other, seen_size = seen.setdefault(dim, (name, size))
                if seen_size != size:
                    raise FormatError(
                        f"dimension {dim!r}: variable {other!r} has {seen_size} elements along it, "
                        f"{name!r} has {size}; the file contradicts itself, leave one of them out "
                        f"with drop_variables"
                    )

    def __repr__(self) -> str:
        counts = (
            (len(self.variables), "variable"),
            (len(self.groups), "group"),
            (len(self.problems), "problem"),
        )
        count_texts = [format_count(n, what) for n, what in counts if n]
        names = [*self.variables, *(f"{name}/" for name in self.groups)]
        more = ["..."] if len(names) > MAX_NAMES_IN_REPR else []
        shown = ", ".join([*names[:MAX_NAMES_IN_REPR], *more])
        return (
            f"<ManifestGroup of {', '.join(count_texts) or 'nothing'}{': ' * bool(names)}{shown}>"
        )

    def group(self, path: str | None) -> ManifestGroup:
        """Return a group below this one by its path, ``"a/b"`` or ``"/a/b/"``.

        Raises
        ------
        FileNotFoundError
            There is no such group.
        ValueError
            The path is not a string.
        """
        return self._follow(normalise_group_path(path, lambda path: self._follow(path).groups))

    def _follow(self, path: str) -> ManifestGroup:
        group = self
        for part in filter(None, path.split("/")):
            group = group.groups[part]
        return group

    def leave_out(self, names: Iterable[str]) -> ManifestGroup:
        """Return the group without some variables, keeping what affects decoding of the others."""
        omitted = self.variables.keys() & set(names)
        remaining = {name: v for name, v in self.variables.items() if name not in omitted}
        described = {
            name: describe_left_out(v.dims, v.data.dtype, v.attributes)
            for name, v in self.variables.items()
            if name in omitted
        }
        return replace(self, variables=remaining, left_out={**self.left_out, **described})

    def walk(self, path: str = "") -> Iterator[tuple[str, ManifestGroup]]:
        """Yield this group and all groups below it with their paths, parents first."""
        yield path, self
        for name, child in self.groups.items():
            yield from child.walk(f"{path}/{name}" if path else name)

    def walk_variables(self) -> Iterator[tuple[str, ManifestVariable]]:
        """Yield the variables of this group and of all groups below it, with their paths."""
        for path, part in self.walk():
            for name, variable in part.variables.items():
                yield f"{path}/{name}" if path else name, variable

    def list_arrays(self) -> list[ManifestArray]:
        """Return the virtual arrays of this group and of all groups below it."""
        data = (variable.data for _, variable in self.walk_variables())
        return [array for array in data if isinstance(array, ManifestArray)]

    def map_variables(
        self, change: Callable[[str, ManifestVariable], ManifestVariable], path: str = ""
    ) -> ManifestGroup:
        """Apply a function to all variables of this group and all groups below it.

        ``change`` takes the path of a variable and the variable. If no variable changes, the group
        itself is returned.
        """
        prefix = f"{path}/" if path else ""
        variables = {name: change(prefix + name, v) for name, v in self.variables.items()}
        groups = {n: child.map_variables(change, prefix + n) for n, child in self.groups.items()}
        variables_unchanged = all(variables[name] is v for name, v in self.variables.items())
        if variables_unchanged and all(
            groups[name] is child for name, child in self.groups.items()
        ):
            return self
        return replace(self, variables=variables, groups=groups)

    def without_notes(self) -> ManifestGroup:
        """Return the group, and all groups below it, without the notes of `virtualds.sync`."""
        groups = {name: child.without_notes() for name, child in self.groups.items()}
        return replace(self, groups=groups, notes={})

    def all_problems(self, below: bool = True) -> dict[str, VirtualdsError]:
        """Return the problems of this group, and of the groups below it, by path."""
        return {
            f"{path}/{name}" if path else name: error
            for path, part in (self.walk() if below else [("", self)])
            for name, error in (*part.damaged.items(), *part.problems.items())
        }


def describe_left_out(
    dims: tuple[str, ...], dtype: np.dtype[Any], attributes: Mapping[str, Any]
) -> ManifestVariable:
    """Return an empty variable with the properties that affect decoding of other variables.

    xarray joins characters along a dimension that no other variable has, and decodes the bounds of
    times by the units of the times.
    """
    kind = "S1" if dtype.kind == "S" else "V1"
    shared = {name: attributes.get(name) for name in SHARED_ATTRIBUTES}
    texts = {name: value for name, value in shared.items() if isinstance(value, str)}
    return ManifestVariable(dims, np.empty((0,) * len(dims), kind), texts)


def normalise_group_path(path: str | None, below: Callable[[str], Collection[str]]) -> str:
    """Return the path of an existing group without leading, trailing and double slashes.

    ``below`` takes the path of a group, and returns the names of its direct subgroups.
    """
    if path is not None and not isinstance(path, str):
        raise ValueError(f"group must be a string or None, got {path!r}")
    normalised = ""
    for part in filter(None, (path or "").split("/")):
        if part not in (names := below(normalised)):
            raise FileNotFoundError(
                f"group {path!r}: there is no {part!r}; give one of {sorted(names)}"
            )
        normalised = f"{normalised}/{part}" if normalised else part
    return normalised


def name_axes(shape: Sequence[int], names: Sequence[str | None]) -> tuple[str, ...]:
    """Return dimension names; an axis without one is named after its length.

    If that name is taken, the number of the axis is appended.

    Examples
    --------
    >>> name_axes((4, 3, 3), ("time", None, None))
    ('time', 'dim_3', 'dim_3_2')
    """
    dims: list[str] = []
    for axis, (name, size) in enumerate(zip(names, shape, strict=True)):
        default = f"dim_{size}"
        is_taken = default in dims or default in names
        dims.append((f"{default}_{axis}" if is_taken else default) if name is None else name)
    return tuple(dims)


def build_flat_array(
    source: SourceFile,
    offset: int,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    *,
    order: str = "C",
    checksum: int = 0,
) -> ManifestArray:
    """Return an array whose values are one contiguous byte range of a file.

    ``order`` is that of numpy, "C" or "F"; ``checksum`` is as in `ChunkManifest`, 0 for none.
    """
    shape = tuple(shape)
    check_axes(len(shape), "an array")
    if any(type(n) is not int or not 0 <= n < MAX_AXIS_LENGTH for n in shape):
        raise make_damage_error(f"{shape!r:.200} is not a shape")
    if dtype.hasobject or not dtype.itemsize:
        reason = "Python objects" if dtype.hasobject else "without bytes"
        raise UnsupportedError(
            f"values of dtype {dtype} are {reason}; write the array with another dtype, or leave "
            f"it out with drop_variables"
        )
    nbytes = dtype.itemsize * prod(shape)
    if source.size is not None and offset + nbytes > source.size:
        raise FormatError(
            f"an array of {shape} {dtype} at byte {offset} reaches to byte {offset + nbytes}, and "
            f"the file has {source.size}; it is truncated, or of another shape or type"
        )
    axes = tuple(ChunkAxis.regular(n, max(n, 1)) for n in shape)
    grid = tuple(axis.nchunks for axis in axes)
    manifest = (
        ChunkManifest.build(grid, files=(source,), offset=offset, length=nbytes, checksum=checksum)
        if nbytes
        else ChunkManifest.missing(grid)
    )
    stored = tuple(range(len(shape)))
    pipeline = CodecPipeline(dtype, layout=stored[::-1] if order == "F" else stored)
    return ManifestArray.from_fragment(Fragment.whole(axes, manifest), pipeline)


def build_variable(
    data: ManifestArray,
    dims: tuple[str, ...],
    source: SourceFile,
    attributes: Mapping[str, Any] | None = None,
) -> ManifestVariable:
    """Return a variable of a file, with its encoding: dtype, source and shape."""
    encoding = {
        "dtype": data.dtype,
        "source": path_or_url(source.url),
        "original_shape": data.shape,
    }
    return ManifestVariable(dims, data, attributes or {}, encoding)


def prevent_joining_bytes(variables: Iterable[ManifestVariable]) -> dict[str, ManifestVariable]:
    """Return entries of ``left_out`` that keep xarray from joining single bytes into strings."""
    dims = {v.dims[-1] for v in variables if v.data.dtype == "S1" and v.dims}
    return {f"the axis {d}": describe_left_out((d,), np.dtype("V1"), {}) for d in sorted(dims)}


def number_axes(name: str, ndim: int) -> tuple[str, ...]:
    """Return numbered dimension names for the axes of an array.

    Examples
    --------
    >>> number_axes("t", 2), number_axes("", 2)
    (('t_dim_0', 't_dim_1'), ('dim_0', 'dim_1'))
    """
    prefix = f"{name}_" if name else ""
    return tuple(f"{prefix}dim_{axis}" for axis in range(ndim))


def find_dim_sizes(group: ManifestGroup) -> dict[str, int]:
    """Return the length of each dimension of the variables of a group."""
    variables = group.variables.values()
    return {d: n for v in variables for d, n in zip(v.dims, v.data.shape, strict=True)}
