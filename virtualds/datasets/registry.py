"""The registry of parsers and formats, by name and by first bytes."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from virtualds.arrays.parser import Parser
from virtualds.datasets.reference_changes import CHANGES, SUBCHUNK
from virtualds.errors import LIBRARY_ERRORS
from virtualds.formats import Format, History, Parts, icechunk, zarr_manifests
from virtualds.formats.icechunk import target, upkeep, write
from virtualds.formats.kerchunk import (
    encode_json,
    json,
    json_upkeep,
    parquet,
    parquet_append,
    parquet_upkeep,
)
from virtualds.formats.kerchunk.records import MARKER as ZMETADATA
from virtualds.formats.upkeep import Upkeep
from virtualds.formats.zarr.document import FOLDER as ZARR_FOLDER
from virtualds.formats.zarr.document import MARKER as ZARR_JSON
from virtualds.formats.zarr_manifests import plain_zarr, read
from virtualds.formats.zarr_manifests.parallel_write import is_table_inside, write_parts
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
"""The source formats; a new one is one module with a `Parser`, and one line here."""


PLUGIN_GROUP = "virtualds.parsers"
"""The entry point group of parsers in other packages."""


PARSER_ERRORS = (*LIBRARY_ERRORS, RuntimeError, SyntaxError, ValueError)
"""Errors of plugins, which must not keep other files from opening."""


@cache
def load_plugins() -> tuple[Parser, ...]:
    """Import the parsers of other packages and return them, warning of broken ones."""
    known = {parser.name for parser in PARSERS}
    found: dict[str, Parser] = {}
    for point in entry_points(group=PLUGIN_GROUP):
        parser = _load_plugin(point)
        if parser is not None and parser.name in known | found.keys():
            _warn(point, f"there is a parser {parser.name!r} already")
        elif parser is not None:
            found[parser.name] = parser
    return tuple(found.values())


def is_recognised(parser: Parser, head: bytes) -> bool:
    """Say whether the parser of another package recognises the first bytes of a file.

    A parser that fails causes a warning and counts as no.
    """
    try:
        return bool(parser.detect(head))
    except PARSER_ERRORS as error:
        warnings.warn(
            f"parser {parser.name!r}: its detect() failed ({type(error).__name__}: {error}); "
            f"update or remove the package that brings it",
            stacklevel=2,
        )
        return False


def _load_plugin(point: EntryPoint) -> Parser | None:
    """Return the parser of an entry point, None if it is broken."""
    try:
        parser = point.load()
    except PARSER_ERRORS as error:
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


FORMATS: tuple[Format, ...] = (
    Format(
        "kerchunk-json",
        (".json", ".json.gz", ".json.zst"),
        json.detect,
        json.read,
        json.write,
        json.update,
        choices=("templates", "relative_paths", "zarr_format", *CHANGES),
        upkeep=Upkeep(None, json_upkeep.move_sources),
        to_dict=json.to_dict,
        obstacles=encode_json.list_obstacles,
    ),
    Format(
        "kerchunk-parquet",
        (".parquet", ".parq"),
        parquet.detect,
        parquet.read,
        parquet.write,
        parquet_append.update,
        markers=(ZMETADATA,),
        choices=("record_size", "relative_paths", *CHANGES),
        upkeep=Upkeep(parquet_upkeep.join_records, parquet_upkeep.move_sources),
        obstacles=encode_json.list_obstacles,
    ),
    Format(
        "zarr-v3",
        (".zarr",),
        read.detect,
        read.read,
        zarr_manifests.write,
        zarr_manifests.update,
        markers=(ZARR_JSON,),
        first_written=(ZARR_FOLDER,),
        choices=("manifest", "relative_paths", *CHANGES),
        upgrade=zarr_manifests.upgrade,
        history=History(zarr_manifests.history, zarr_manifests.expire),
        parts=Parts(
            zarr_manifests.begin_parts,
            write_parts,
            zarr_manifests.commit_parts,
            zarr_manifests.abandon_parts,
            is_table_inside,
        ),
        upkeep=Upkeep(zarr_manifests.join_tables, zarr_manifests.move_sources),
    ),
    Format(
        "icechunk",
        (".icechunk",),
        icechunk.detect,
        icechunk.read,
        write.write,
        write.update,
        markers=icechunk.MARKERS,
        first_written=icechunk.FOLDERS,
        choices=(
            *("message", "metadata", "branch", "create_branch", "config"),
            *("rectilinear", SUBCHUNK),
        ),
        history=History(icechunk.history, icechunk.expire),
        upkeep=Upkeep(upkeep.rewrite_manifests, upkeep.move_sources),
        library="icechunk",
        read_object=icechunk.read_object,
        holds=target.is_occupied,
        obstacles=write.list_obstacles,
        takes_in=True,
    ),
)


def format_of_object(opened: Any) -> Format | None:
    """Return the format whose library an object comes from, None for a path or other object."""
    library = type(opened).__module__.partition(".")[0]
    return next((form for form in FORMATS if form.library == library), None)
