"""The parsers: one file per source format, and here the table that knows them.

Other packages bring parsers of their own as entry points (see ``docs/adding-a-parser.md``).
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from virtualds.arrays.parser import Parser
from virtualds.errors import FOREIGN
from virtualds.formats.zarr_manifests import plain_zarr
from virtualds.parsers import fits, grib, hdf5, netcdf3, numpy, safetensors, tiff

PARSERS: tuple[Parser, ...] = (
    hdf5.PARSER,
    netcdf3.PARSER,
    numpy.NPY,
    numpy.NPZ,
    safetensors.PARSER,
    tiff.PARSER,
    fits.PARSER,
    grib.PARSER,
    plain_zarr.PARSER,
)
"""The source formats; a new one is one module, with a `Parser`, and one line here."""

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
