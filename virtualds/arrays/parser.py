"""Parsers: how to detect a source format, scan it, and read it natively.

A source format is one module with one `Parser`, and one line in the table of
`virtualds.datasets.registry`. The checks compare values with what the native readers of the
`Parser` read.

Files of the same structure are joined as columns (`SameStructureFiles`).
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
"""Attributes of variables that are put together from other files (CF conventions 1.13, 2.8)."""


def is_aggregation(attributes: Mapping[str, Any]) -> bool:
    """Return whether a variable is put together from other files, by its attributes.

    Files with such variables are not read together.
    """
    return AGGREGATED_DIMENSIONS in attributes or AGGREGATED_DATA in attributes


class Absent(Enum):
    """The class of `ABSENT`."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT
"""Stands for the attribute of a file that does not have it."""
PerFile = Mapping[tuple[str, str], Sequence[Any]]
"""The value in each file, by variable ("" for the group itself) and name."""


class SameStructureFiles(Protocol):
    """Files with the same variables, but different values.

    They differ in the values of variables, the references of chunks, and the lengths of dimensions.
    Attributes that affect decoding are equal in all of them.
    """

    @property
    def group(self) -> ManifestGroup:
        """The group of the first file."""

    @property
    def numbers(self) -> Sequence[int]:
        """The positions of the files among those that were requested."""

    @property
    def lengths(self) -> Mapping[str, Ints]:
        """The length of each dimension in each file; -1 if a file lacks it."""

    @property
    def attributes(self) -> PerFile:
        """The attributes that differ, with the value in each file, or `ABSENT`."""

    @property
    def encodings(self) -> PerFile:
        """The encoding entries that differ, in the same form."""

    @property
    def below(self) -> Mapping[str, SameStructureFiles]:
        """The groups below this one, by path, if they were requested.

        All files must have the same ones.
        """

    def take(self, indexes: Ints) -> SameStructureFiles:
        """Return some of the files, in the given order."""

    def join(self, name: str, dim: str) -> ManifestArray | Array:
        """Return a variable of all files, concatenated along a dimension.

        All its other dimensions must have the same length in all files.
        """

    def get_values(self, name: str) -> Sequence[Array] | None:
        """Return the stored values of a variable in each file, or None if they must be read."""

    def stack(self, name: str) -> ManifestArray:
        """Return a virtual variable of the same shape in all files, stacked along a new axis."""


MustBeEqual = Callable[[str, Any], bool]
"""A function of the name and value of an attribute (None if only the parser sees the value), which
returns whether the attribute must be equal in all files of a structure."""


class ReadTogether(Protocol):
    """Reads files of the same structure together."""

    def __call__(
        self,
        urls: Sequence[str],
        options: StorageOptions | None,
        group: str | None,
        skip: Iterable[str],
        must_be_equal: MustBeEqual,
        below: bool = False,
    ) -> AbstractContextManager[Sequence[SameStructureFiles]]:
        """Yield the files of each structure, open until the end of the block.

        Files that are not among those yielded must be read one by one. With ``below``, the groups
        below the requested one are read as well. Attributes for which ``must_be_equal`` returns
        true are equal in all files of a structure. A file that cannot be read raises no error: it
        is not yielded, so the caller reads it by itself, which raises the error.
        """


@dataclass(frozen=True, eq=False)
class ListedFiles:
    """`SameStructureFiles` that were read one by one: at least one, all with the same variables."""

    groups: Sequence[ManifestGroup]
    numbers: Sequence[int] = field(default=())

    @property
    def group(self) -> ManifestGroup:
        """The group of the first file."""
        return self.groups[0]

    @cached_property
    def lengths(self) -> Mapping[str, Ints]:
        """The length of each dimension in each file; -1 if a file lacks it."""
        sizes = [find_dim_sizes(group) for group in self.groups]
        dims = dict.fromkeys(dim for found in sizes for dim in found)
        return {d: np.array([found.get(d, -1) for found in sizes], np.int64) for d in dims}

    @cached_property
    def attributes(self) -> PerFile:
        """The attributes that differ."""
        return self._find_different(lambda owner: owner.attributes)

    @cached_property
    def encodings(self) -> PerFile:
        """The encoding entries that differ."""
        return self._find_different(lambda owner: owner.encoding)

    def _find_different(self, get: Callable[[Any], Mapping[str, Any]]) -> PerFile:
        owners: dict[str, list[Any]] = {"": list(self.groups)}
        for name in self.group.variables:
            owners[name] = [group.variables[name] for group in self.groups]
        return {
            (name, key): [one.get(key, ABSENT) for one in found]
            for name, of_each in owners.items()
            for found in [[get(owner) for owner in of_each]]
            for key in dict.fromkeys(key for one in found for key in one)
            if not all(
                is_same_value(found[0].get(key, ABSENT), one.get(key, ABSENT)) for one in found[1:]
            )
        }

    @cached_property
    def below(self) -> Mapping[str, ListedFiles]:
        """The groups below this one, by path; all files must have the same ones."""
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
        found = self._list_data(name)
        return found if all(isinstance(one, np.ndarray) for one in found) else None

    def stack(self, name: str) -> ManifestArray:
        """Return a virtual variable of all files, stacked along a new first axis."""
        stacked: Any = concatenate_keeping_byte_order(
            [array.insert_axis(0) for array in self._list_data(name)], 0
        )
        return stacked  # type: ignore[no-any-return]

    def _list_data(self, name: str) -> list[Any]:
        return [group.variables[name].data for group in self.groups]


def concatenate_keeping_byte_order(data: Sequence[Any], axis: int) -> Any:
    """Concatenate the data of files, keeping their byte order if it is the same in all."""
    joined: Any = np.concatenate(data, axis=axis)
    first = data[0]
    if joined.dtype == first.dtype or any(one.dtype != first.dtype for one in data):
        return joined
    is_virtual = isinstance(joined, ManifestArray)
    return replace(joined, dtype=first.dtype) if is_virtual else joined.astype(first.dtype)


def is_same_value(one: Any, other: Any) -> bool:
    """Return whether two attributes have the same type, and are bit-identical."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, np.ndarray | np.generic):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return (
            is_same_value(one.tolist(), other.tolist())
            if one.dtype.hasobject
            else (one.tobytes() == other.tobytes())
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same_value, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same_value(one[key], other[key]) for key in one)
    # as text, NaN equals itself, and zeros have a sign
    return repr(one) == repr(other) if isinstance(one, float | complex) else bool(one == other)


def select_for_file(owner: str, columns: PerFile, index: int, known: Mapping[str, Any]) -> Any:
    """Return the attributes or the encoding of one of several files.

    ``owner`` is the variable, or "" for the group. ``columns`` has the entries that differ between
    the files, and ``known`` all entries of another file.
    """
    own = {name: values[index] for (of, name), values in columns.items() if of == owner}
    if not own:
        return known
    return {n: v for n, v in {**known, **own}.items() if v is not ABSENT}


# ---------------------------------------------------------------------- parser

ReadSource = Callable[..., ManifestGroup]
"""A function that reads the structure of one group of a source file."""


# ---------------------------------------------------------------------- native readers


class NativeReadError(Exception):
    """A native reader cannot read the values; the message is the reason."""


class NativeRegion(NamedTuple):
    """A region of a variable for a native reader to read.

    ``shape`` is the shape of the variable. ``offset`` is the byte offset of the chunk in the file,
    and ``has_codecs`` whether the chunk is encoded. With ``decoded``, the values are decoded by the
    CF conventions, otherwise as they are stored.
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
"""A function that returns the values of a region, or None if it cannot read such a region; it may
raise `NativeReadError`."""
OpenNative = Callable[[Callable[[], Any], ExitStack], ReadNative]
"""A function of a callable that returns a local path or a new file object, and of an exit stack
that closes the file."""


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
        Whether it reads files that are not on this machine.

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
        """The library with its version, or None if it is not installed."""
        try:
            return f"{self.package} {_find_version(self.package)}"
        except PackageNotFoundError:
            return None


_find_version = cache(version)
"""Returns the version of an installed package, whose metadata take milliseconds to read."""


def select_region(array: Any, wanted: NativeRegion) -> Array:
    """Return a region of the array that a library returns for the variable.

    Raises
    ------
    NativeReadError
        The array and the variable differ in shape.
    """
    if array.shape != wanted.shape:
        raise NativeReadError(f"there the variable has shape {array.shape}")
    return np.asarray(array[wanted.region])


def make_stored_reader(array_of: Callable[[NativeRegion], Any]) -> ReadNative:
    """Return a function that reads regions of a library's arrays, for values as stored."""
    return lambda wanted: None if wanted.decoded else select_region(array_of(wanted), wanted)


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
        Takes the first bytes of a file, or a marker, and returns whether it is of this format.
    read : callable
        Takes a `SourceFile`, a group path and names to skip; returns a `ManifestGroup`.
    read_together : callable, optional
        Reads files of the same structure together.
    takes : tuple of str
        Optional keyword arguments of ``read``. ``below``: all groups below that one are read as
        well; otherwise their names are enough. ``defers``: only part of the file will be read, so
        references may be looked up when values are read; errors in them are raised then.
    markers : tuple of str
        For a format whose data are folders: the files, any of which marks such a folder.
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
                f"Parser {self.name!r}: takes has {unknown[0]!r}; it knows 'below' and 'defers'"
            )
