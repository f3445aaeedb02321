"""`Parser`: how to detect a source format, scan its files, and read them with other libraries.

A source format is one module with one `Parser`, and one entry in the table of
`virtualds.datasets.location`. Checks compare values with those that its native readers return.

Files of the same structure are scanned together and joined (`SameStructureFiles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, find_dim_sizes
from virtualds.chunks.columns import Ints
from virtualds.errors import public
from virtualds.source_file import StorageOptions

Array = npt.NDArray[Any]

AGGREGATED_DIMENSIONS, AGGREGATED_DATA = "aggregated_dimensions", "aggregated_data"
"""Attributes of aggregation variables (CF conventions 1.13, section 2.8)."""


def is_aggregation(attributes: Mapping[str, Any]) -> bool:
    """Return whether the attributes are those of an aggregation variable.

    Files with such variables are not read together.
    """
    return AGGREGATED_DIMENSIONS in attributes or AGGREGATED_DATA in attributes


class Absent(Enum):
    """The class of `ABSENT`."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT
"""The value of an attribute that a file does not have."""
ValuesPerFile = Mapping[tuple[str, str], Sequence[Any]]
"""Values of each file, by the names of variable ("" for the group itself) and attribute."""


class SameStructureFiles(Protocol):
    """Files with the same variables, but different values.

    They may differ in the values of variables, chunk references, and lengths of dimensions.
    Attributes that affect decoding are equal in all of them.
    """

    @property
    def group(self) -> ManifestGroup:
        """The group of the first file."""

    @property
    def numbers(self) -> Sequence[int]:
        """The positions of the files among the requested files."""

    @property
    def lengths(self) -> Mapping[str, Ints]:
        """The length of each dimension in each file; -1 if a file lacks it."""

    @property
    def attributes(self) -> ValuesPerFile:
        """The attributes that differ between files, with the value of each file, or `ABSENT`."""

    @property
    def encodings(self) -> ValuesPerFile:
        """The encoding entries that differ between files, as in `attributes`."""

    @property
    def below(self) -> Mapping[str, SameStructureFiles]:
        """The groups below this one, by path, if they were requested.

        All files must have the same groups.
        """

    def take(self, indexes: Ints) -> SameStructureFiles:
        """Return some of the files, in the given order."""

    def join(self, name: str, dim: str) -> ManifestArray | Array:
        """Return a variable of all files, concatenated along one of its dimensions.

        Its other dimensions must have the same lengths in all files.
        """

    def get_values(self, name: str) -> Sequence[Array] | None:
        """Return the stored values of a variable in each file, or None if they must be read."""

    def stack(self, name: str) -> ManifestArray:
        """Return a virtual variable of all files, stacked along a new first axis.

        It must have the same shape in all files.
        """


MustBeEqual = Callable[[str, Any], bool]
"""Takes the name and value of an attribute (None if only the parser has the value), and returns
whether the attribute must be equal in all files of a structure."""


class ReadTogether(Protocol):
    """A function that scans files of the same structure together."""

    def __call__(
        self,
        urls: Sequence[str],
        options: StorageOptions | None,
        group: str | None,
        skip: Iterable[str],
        must_be_equal: MustBeEqual,
        below: bool = False,
    ) -> AbstractContextManager[Sequence[SameStructureFiles]]:
        """Return a context manager that yields the files of each structure, open within the block.

        Files that are not among those yielded must be read one by one. With ``below``, the groups
        below the requested one are read as well. Files that differ in an attribute for which
        ``must_be_equal`` returns true have different structures. A file that cannot be read raises
        no error here: it is not yielded, so that the error is raised when it is read alone.
        """


@dataclass(frozen=True, eq=False)
class ListedFiles:
    """`SameStructureFiles` of one or more groups that were scanned one by one."""

    groups: Sequence[ManifestGroup]
    numbers: Sequence[int] = field(default=())

    @property
    def group(self) -> ManifestGroup:
        """The group of the first file."""
        return self.groups[0]

    @cached_property
    def lengths(self) -> Mapping[str, Ints]:
        """The length of each dimension in each file; -1 if a file lacks it."""
        all_sizes = [find_dim_sizes(group) for group in self.groups]
        dims = dict.fromkeys(dim for sizes in all_sizes for dim in sizes)
        return {d: np.array([sizes.get(d, -1) for sizes in all_sizes], np.int64) for d in dims}

    @cached_property
    def attributes(self) -> ValuesPerFile:
        """The attributes that differ between files."""
        return self._find_differences(lambda owner: owner.attributes)

    @cached_property
    def encodings(self) -> ValuesPerFile:
        """The encoding entries that differ between files."""
        return self._find_differences(lambda owner: owner.encoding)

    def _find_differences(self, get: Callable[[Any], Mapping[str, Any]]) -> ValuesPerFile:
        owners: dict[str, list[Any]] = {"": list(self.groups)}
        for name in self.group.variables:
            owners[name] = [group.variables[name] for group in self.groups]
        return {
            (name, key): values
            for name, owners_by_file in owners.items()
            for mappings in [[get(owner) for owner in owners_by_file]]
            for key in dict.fromkeys(key for mapping in mappings for key in mapping)
            for values in [[mapping.get(key, ABSENT) for mapping in mappings]]
            if not all(is_same_value(values[0], value) for value in values[1:])
        }

    @cached_property
    def below(self) -> Mapping[str, ListedFiles]:
        """The groups below this one, by path; all files must have the same groups."""
        trees = [dict(group.walk()) for group in self.groups]
        paths = [path for path in trees[0] if path]
        return {path: ListedFiles([tree[path] for tree in trees], self.numbers) for path in paths}

    def take(self, indexes: Ints) -> ListedFiles:
        """Return some of the files, in the given order."""
        columns = (self.groups, self.numbers)
        return ListedFiles(*([column[n] for n in indexes.tolist()] for column in columns))

    def join(self, name: str, dim: str) -> ManifestArray | Array:
        """Return a variable of all files, concatenated along a dimension."""
        axis = self.group.variables[name].dims.index(dim)
        joined: ManifestArray | Array = concatenate_keeping_byte_order(self._list_data(name), axis)
        return joined

    def get_values(self, name: str) -> Sequence[Array] | None:
        """Return the stored values of a variable in each file, or None if they must be read."""
        data = self._list_data(name)
        return data if all(isinstance(values, np.ndarray) for values in data) else None

    def stack(self, name: str) -> ManifestArray:
        """Return a virtual variable of all files, stacked along a new first axis."""
        stacked: Any = concatenate_keeping_byte_order(
            [array.insert_axis(0) for array in self._list_data(name)], 0
        )
        return stacked  # type: ignore[no-any-return]

    def _list_data(self, name: str) -> list[Any]:
        return [group.variables[name].data for group in self.groups]


def concatenate_keeping_byte_order(data: Sequence[Any], axis: int) -> Any:
    """Concatenate arrays, keeping their byte order if all have the same dtype."""
    joined: Any = np.concatenate(data, axis=axis)
    first = data[0]
    if joined.dtype == first.dtype or any(other.dtype != first.dtype for other in data):
        return joined
    is_virtual = isinstance(joined, ManifestArray)
    return replace(joined, dtype=first.dtype) if is_virtual else joined.astype(first.dtype)


def is_same_value(left: Any, right: Any) -> bool:
    """Return whether two attributes have the same type and the same bits."""
    if left is right or type(left) is not type(right):
        return left is right
    if isinstance(left, np.ndarray | np.generic):
        if (left.dtype, left.shape) != (right.dtype, right.shape):
            return False
        return (
            is_same_value(left.tolist(), right.tolist())
            if left.dtype.hasobject
            else (left.tobytes() == right.tobytes())
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(is_same_value, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(
            is_same_value(left[key], right[key]) for key in left
        )
    # repr distinguishes -0.0 from 0.0, and NaN equals itself
    return repr(left) == repr(right) if isinstance(left, float | complex) else bool(left == right)


def select_for_file(
    owner: str, columns: ValuesPerFile, index: int, template: Mapping[str, Any]
) -> Any:
    """Return the attributes (or encoding) of one file of several.

    ``owner`` is the variable, or "" for the group. ``columns`` has the entries that differ between
    the files, and ``template`` all entries of the first file.
    """
    differing = {name: values[index] for (key, name), values in columns.items() if key == owner}
    if not differing:
        return template
    return {n: v for n, v in {**template, **differing}.items() if v is not ABSENT}


# ---------------------------------------------------------------------- parser

ReadSource = Callable[..., ManifestGroup]
"""A function that scans one group of a source file; see `Parser.read`."""


# ---------------------------------------------------------------------- native readers


class NativeReadError(Exception):
    """Raised by a native reader that cannot read the values; the message is the reason."""


class NativeRegion(NamedTuple):
    """A region of a variable for a native reader to read.

    ``shape`` is the shape of the variable. ``offset`` is the byte offset of the chunk in the file,
    and ``has_codecs`` whether the chunk has codecs. If ``decoded`` is true, values are decoded by
    the CF conventions, otherwise they are as stored.
    """

    group: str
    variable: str
    shape: tuple[int, ...]
    region: tuple[slice, ...]
    offset: int
    has_codecs: bool
    decoded: bool

    @property
    def path(self) -> str:
        """The path of the variable in the file."""
        return f"{self.group}/{self.variable}" if self.group else self.variable


ReadNative = Callable[[NativeRegion], Array | None]
"""Returns the values of a region, or None if it does not support such regions; may raise
`NativeReadError`."""
OpenNative = Callable[[Callable[[], Any], ExitStack], ReadNative]
"""Opens a file for reading: takes a callable that returns a local path or a new file object, and an
exit stack, which closes the file."""


@dataclass(frozen=True)
class NativeReader:
    """A library that reads a source format independently of this package.

    Parameters
    ----------
    package : str
        The name of the installed package.
    open : callable, optional
        Opens a file with the library itself.
    engine : str, optional
        The engine of xarray that opens a file with the library, if ``open`` is not given.
    options : dict
        Keyword arguments of `xarray.open_dataset`, for that engine.
    check : callable, optional
        Takes the path of a file, and raises `NativeReadError` if the library would crash on it.
    remote : bool
        Whether it reads remote files.

    Raises
    ------
    ValueError
        Neither ``open`` nor ``engine`` is given, or both are.

    Examples
    --------
    >>> NativeReader("scipy", engine="scipy", remote=True).package
    'scipy'
    """

    package: str
    open: OpenNative | None = None
    engine: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    check: Callable[[str], None] | None = None
    remote: bool = False

    def __post_init__(self) -> None:
        if (self.open is None) == (self.engine is None):
            raise ValueError(f"NativeReader {self.package!r}: give it either open or engine")

    @property
    def name(self) -> str | None:
        """Name and version of the library, or None if it is not installed."""
        found = find_package_version(self.package)
        return None if found is None else f"{self.package} {found}"


_get_version = cache(version)
"""`importlib.metadata.version`, cached because it takes milliseconds."""


def find_package_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return _get_version(package)
    except PackageNotFoundError:
        return None


def select_region(array: Any, region: NativeRegion) -> Array:
    """Select a region from the array of a library.

    Raises
    ------
    NativeReadError
        The array does not have the shape of the variable.
    """
    if array.shape != region.shape:
        raise NativeReadError(f"there the variable has shape {array.shape}")
    return np.asarray(array[region.region])


def make_stored_reader(get_array: Callable[[NativeRegion], Any]) -> ReadNative:
    """Return a reader of stored values that selects regions from the arrays of a library."""
    return lambda region: None if region.decoded else select_region(get_array(region), region)


# ---------------------------------------------------------------------- parsers


@public
@dataclass(frozen=True)
class Parser:
    """A source format.

    Parameters
    ----------
    name : str
    suffixes : tuple of str
        Usual suffixes of file names, for guesses without opening the file.
    detect : callable
        Takes the first bytes of a file, or the name of a marker, and returns whether it matches.
    read : callable
        Takes a `SourceFile`, a group path and names to skip; returns a `ManifestGroup`.
    read_together : callable, optional
        Scans files of the same structure together.
    takes : tuple of str
        Optional keyword arguments that ``read`` accepts. ``below``: whether groups below the group
        are read as well; otherwise their names are enough. ``defers``: whether references may be
        looked up when values are read; errors in them are raised then.
    markers : tuple of str
        For a format whose data sets are folders: names of files that identify such a folder.
    options : tuple of str
        Names of other keyword arguments of ``read``, which users pass as ``parser_options``.
    natives : tuple of NativeReader
        Libraries with which ``ds.virtual.verify(against="native")`` compares values, the one of the
        format itself first. They are tried in this order, until one can read the variable.

    Raises
    ------
    ValueError
        ``takes`` has an unknown name.

    Examples
    --------
    >>> toy = Parser("toy", (".toy",), lambda head: head[:4] == b"TOY1", lambda source: ...)
    >>> toy.detect(b"TOY1....")
    True
    """

    name: str
    suffixes: tuple[str, ...]
    detect: Callable[[bytes], bool]
    read: ReadSource
    read_together: ReadTogether | None = None
    takes: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    natives: tuple[NativeReader, ...] = ()

    def __post_init__(self) -> None:
        if unknown := sorted({*self.takes} - {"below", "defers"}):
            raise ValueError(
                f"Parser {self.name!r}: takes has {unknown[0]!r}; give 'below' or 'defers'"
            )
