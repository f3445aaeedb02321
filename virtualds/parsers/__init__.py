"""The parsers: one file per source format, and here the table that knows them.

Other packages bring parsers of their own as entry points (see ``docs/adding-a-parser.md``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

import virtualds.parsers.fits as fits
import virtualds.parsers.grib as grib
import virtualds.parsers.hdf5 as hdf5
import virtualds.parsers.netcdf3 as netcdf3
import virtualds.parsers.numpy_files as numpy_files
import virtualds.parsers.safetensors as safetensors
import virtualds.parsers.tiff as tiff
import virtualds.parsers.zarr as zarr
from virtualds.errors import FOREIGN
from virtualds.group import ManifestGroup
from virtualds.manifest import SourceFile


class ReadSource(Protocol):
    """Reads the structure of one group of a source file."""

    def __call__(
        self, source: SourceFile, group: str | None = None, skip: Iterable[str] = ()
    ) -> ManifestGroup: ...


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
    read_tree : callable
        The same with all groups below that one, of which ``read`` need not know more than names;
        by default `read`, as for formats without groups.
    markers : tuple of str
        For a format that is a folder: the files any of which makes it one.

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
    read_tree: ReadSource | None = None
    markers: tuple[str, ...] = ()


PARSERS: tuple[Parser, ...] = (
    Parser(
        "hdf5",
        (".nc", ".nc4", ".h5", ".hdf5", ".he5", ".cdf"),
        hdf5.detect,
        hdf5.read,
        hdf5.read_tree,
    ),
    Parser("netcdf3", (".nc3",), netcdf3.detect, netcdf3.read),
    Parser("npy", (".npy",), numpy_files.detect, numpy_files.read),
    Parser("npz", (".npz",), numpy_files.detect_archive, numpy_files.read_archive),
    Parser("safetensors", (".safetensors",), safetensors.detect, safetensors.read),
    Parser("tiff", (".tif", ".tiff", ".btf", ".gtiff"), tiff.detect, tiff.read, tiff.read_tree),
    Parser("fits", (".fits", ".fit", ".fts"), fits.detect, fits.read),
    Parser(
        "grib",
        (".grib", ".grib1", ".grib2", ".grb", ".grb2"),
        grib.detect,
        grib.read,
        grib.read_tree,
    ),
    # no suffix: what is called so may as well be a reference set
    Parser("zarr", (), zarr.detect, zarr.read, markers=zarr.MARKERS),
)

GROUP = "virtualds.parsers"
"""The entry point group through which other packages bring parsers."""
COMPLAINTS = (*FOREIGN, RuntimeError, SyntaxError, ValueError)
"""What somebody else's code may raise that must not keep others from opening their files."""


@cache
def plugins() -> tuple[Parser, ...]:
    """Return the parsers that other packages bring, imported now; broken ones are warned of."""
    known = {parser.name for parser in PARSERS}
    found: dict[str, Parser] = {}
    for point in entry_points(group=GROUP):
        parser = _loaded(point)
        if parser is not None and parser.name in known | found.keys():
            _warn(point, f"there is a parser {parser.name!r} already")
        elif parser is not None:
            found[parser.name] = parser
    return tuple(found.values())


def recognises(parser: Parser, head: bytes) -> bool:
    """Say whether a parser of another package takes a file that begins with ``head`` for its own.

    One that fails is warned of, and does not.
    """
    try:
        return bool(parser.detect(head))
    except COMPLAINTS as error:
        warnings.warn(
            f"parser {parser.name!r}: its detect() failed ({type(error).__name__}: {error}); "
            f"update or remove the package that brings it",
            stacklevel=2,
        )
        return False


def _loaded(point: EntryPoint) -> Parser | None:
    """Return the parser of an entry point, None if it is broken."""
    try:
        parser = point.load()
    except COMPLAINTS as error:
        _warn(point, f"it cannot be imported ({type(error).__name__}: {error})")
        return None
    if not isinstance(parser, Parser):
        _warn(point, f"it is {parser!r:.80} and no virtualds.Parser")
        return None
    return parser


def _warn(point: EntryPoint, why: str) -> None:
    package = point.dist.name if point.dist is not None else "an unknown package"
    warnings.warn(
        f"parser {point.name!r} of {package} ({point.value}): {why}; it is left out, update or "
        f"remove that package",
        stacklevel=4,
    )
