"""The record of a parser: how to detect a source format, scan it, and read it natively.

A source format is one module with one such record, and one line in the table of
`virtualds.datasets.registry`. The checks compare values with those of the native readers in the
record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.alike_files import ReadAlike
from virtualds.arrays.group import ManifestGroup
from virtualds.errors import public

Array = npt.NDArray[Any]


ReadSource = Callable[..., ManifestGroup]
"""Reads the structure of one group of a source file."""


# ---------------------------------------------------------------------- native readers


class CannotError(Exception):
    """A native reader cannot read the values; the message says why."""


class NativeRegion(NamedTuple):
    """A region of a variable for a native reader to read.

    ``shape`` is that of the variable. ``offset`` is where the chunk begins in the file, in bytes,
    and ``has_codecs`` says whether the chunk is encoded. ``decoded`` asks for values by the CF
    conventions, else for values as they are stored.
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
"""Returns a region, or None if the reader does not know it in this form; raises `CannotError`."""
OpenNative = Callable[[Callable[[], Any], ExitStack], ReadNative]
"""Takes what makes the path of a local file, or a new file object, and what closes the file."""


@dataclass(frozen=True)
class NativeReader:
    """A library that reads a source format, through no code here.

    Parameters
    ----------
    package : str
        The library, as it is installed.
    open : callable, optional
        Opens a file with the library itself.
    engine : str, optional
        The engine of xarray that opens a file with the library, where ``open`` is not given.
    options : dict
        Keyword arguments of `xarray.open_dataset`, for that engine.
    check : callable, optional
        Takes the path of a file, and raises `CannotError` if the library would not survive it.
    remote : bool
        Whether it reads files that are not on this machine.

    Raises
    ------
    ValueError
        There is neither ``open`` nor ``engine``, or both.

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
        """The library with its version, None if it is not installed."""
        try:
            return f"{self.package} {_find_version(self.package)}"
        except PackageNotFoundError:
            return None


_find_version = cache(version)
"""Returns the version of an installed package, whose metadata take milliseconds to read."""


def region_of(array: Any, wanted: NativeRegion) -> Array:
    """Return a region of the array that a library shows as the variable.

    Raises
    ------
    CannotError
        The array has another shape than the variable.
    """
    if array.shape != wanted.shape:
        raise CannotError(f"there the variable has shape {array.shape}")
    return np.asarray(array[wanted.region])


def stored_values(array_of: Callable[[NativeRegion], Any]) -> ReadNative:
    """Return a function that reads regions of a library's arrays, for values as stored."""
    return lambda wanted: None if wanted.decoded else region_of(array_of(wanted), wanted)


# ---------------------------------------------------------------------- parsers


@public
@dataclass(frozen=True)
class Parser:
    """A source format.

    Parameters
    ----------
    name : str
    suffixes : tuple of str
        Usual ends of file names, for guesses that may not look into the file.
    detect : callable
        Takes the first bytes of a file, or a marker, and says whether it is of this format.
    read : callable
        Takes a `SourceFile`, a group path and names to skip; returns a `ManifestGroup`.
    read_alike : callable, optional
        Reads files of one structure together.
    takes : tuple of str
        What ``read`` can be asked for besides, as keyword arguments. ``below``: all groups below
        that one are read, too; otherwise their names are enough. ``defers``: a part of the file
        will be read, so references may be looked up when values are read; errors in them show up
        then.
    markers : tuple of str
        For a format that is a folder: the files any of which makes it one.
    options : tuple of str
        Names of other keyword arguments of ``read``: what users give as ``parser_options``.
    natives : tuple of NativeReader
        Libraries with which ``ds.virtual.verify(against="native")`` compares values, the one of the
        format itself first. They are asked in this order, until one knows the variable.

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
    read_alike: ReadAlike | None = None
    takes: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    natives: tuple[NativeReader, ...] = ()

    def __post_init__(self) -> None:
        if unknown := sorted({*self.takes} - {"below", "defers"}):
            raise ValueError(
                f"Parser {self.name!r}: takes has {unknown[0]!r}; it knows 'below' and 'defers'"
            )
