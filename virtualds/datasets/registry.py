"""The registry of parsers and formats, by name and by first bytes."""

from __future__ import annotations

import sys
import warnings
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

from virtualds.arrays.parser import NativeReader, Parser
from virtualds.errors import LIBRARY_ERRORS
from virtualds.formats import Format, Parts, is_never_recognised
from virtualds.formats.zarr.document import FOLDER as SET_FOLDER
from virtualds.formats.zarr.document import MARKER as SET_MARKER
from virtualds.formats.zarr.document import STORE_MARKERS, ZMETADATA
from virtualds.importing import LazyFunction, LazyTable

ICECHUNK_MARKERS = ("repo", "refs/branch.main/ref.json")
"""Files that mark a folder as an Icechunk repository, of version 2 and of version 1."""
ICECHUNK_FOLDERS = ("snapshots", "transactions", "chunks", "manifests")
"""The folders of a repository (Icechunk specification, "File layout")."""
WITH_ICECHUNK = partial(
    LazyFunction,
    needs=(
        "icechunk: it needs Python 3.12 or newer, and icechunk 2.0.5 or newer",
        "pip install --upgrade icechunk"
        if sys.version_info >= (3, 12)
        else "pip install icechunk in an environment of such a Python",
    ),
)
PLAIN_ZARR = Parser(
    "zarr",
    # no suffix: a folder named .zarr may also be a reference set
    (),
    LazyFunction("virtualds.formats.zarr_manifests.plain_zarr:detect"),
    LazyFunction("virtualds.formats.zarr_manifests.plain_zarr:read"),
    markers=STORE_MARKERS,
    natives=(NativeReader("zarr", engine="zarr", remote=True),),
)
"""Plain Zarr stores, which modules of `virtualds.formats` read."""

PARSERS = LazyTable[Parser](
    "virtualds.parsers.hdf5:PARSER",
    "virtualds.parsers.netcdf3:PARSER",
    "virtualds.parsers.flat_arrays:NPY",
    "virtualds.parsers.flat_arrays:NPZ",
    "virtualds.parsers.flat_arrays:SAFETENSORS",
    "virtualds.parsers.tiff:PARSER",
    "virtualds.parsers.fits:PARSER",
    "virtualds.parsers.grib:PARSER",
    "virtualds.parsers.grib.index:PARSER",
    "virtualds.parsers.dmrpp:PARSER",
    "virtualds.parsers.hdf4:PARSER",
    PLAIN_ZARR,
)
"""The source formats; to add one, write one module with a `Parser`, and one line here."""


PLUGIN_GROUP = "virtualds.parsers"
"""The entry point group under which other packages register parsers."""


PARSER_ERRORS = (*LIBRARY_ERRORS, RuntimeError, SyntaxError, ValueError)
"""Errors of plugins, which must not prevent other files from opening."""


@cache
def load_plugins() -> tuple[Parser, ...]:
    """Import and return the parsers of other packages; warn about those that fail."""
    points = entry_points(group=PLUGIN_GROUP)
    # only an import of all our parsers shows whether a plugin takes one of their names
    used_names = {parser.name for parser in PARSERS} if points else set()
    parser_of_name: dict[str, Parser] = {}
    for point in points:
        try:
            parser = point.load()
        except PARSER_ERRORS as error:
            reason = f"it cannot be imported ({type(error).__name__}: {error})"
        else:
            if isinstance(parser, Parser) and parser.name not in used_names:
                parser_of_name[parser.name] = parser
                used_names.add(parser.name)
                continue
            reason = f"it is {parser!r:.80} and no virtualds.Parser"
            if isinstance(parser, Parser):
                reason = f"there is a parser {parser.name!r} already"
        package = point.dist.name if point.dist is not None else "an unknown package"
        warnings.warn(
            f"parser {point.name!r} of {package} ({point.value}): {reason}; it is left out, update "
            f"or remove that package",
            stacklevel=3,
        )
    return tuple(parser_of_name.values())


def is_recognised(parser: Parser, head: bytes) -> bool:
    """Return whether a parser of another package recognises the first bytes of a file.

    If the parser fails, that is a warning, and the result is False.
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


SUBCHUNK, INLINE_THRESHOLD = CHANGES = "subchunk", "inline_threshold"
"""Options of every format whose chunks `virtualds.writing.write` splits or stores inline."""

ZARR_V3 = Format(
    "zarr-v3",
    (".zarr",),
    LazyFunction("virtualds.formats.zarr_manifests.snapshots:detect"),
    LazyFunction("virtualds.formats.zarr_manifests.snapshots:read"),
    LazyFunction("virtualds.formats.zarr_manifests:write"),
    read_version=LazyFunction("virtualds.formats.zarr_manifests:read_version"),
    compact=LazyFunction("virtualds.formats.zarr_manifests:compact"),
    markers=(SET_MARKER,),
    first_written=(SET_FOLDER,),
    choices=("manifest", "relative_paths", *CHANGES),
    history=LazyFunction("virtualds.formats.zarr_manifests.snapshots:history"),
    expire=LazyFunction("virtualds.formats.zarr_manifests.snapshots:expire"),
    parts=Parts(
        LazyFunction("virtualds.formats.zarr_manifests:begin_parts"),
        LazyFunction("virtualds.formats.zarr_manifests:write_parts"),
        LazyFunction("virtualds.formats.zarr_manifests:commit_parts"),
        LazyFunction("virtualds.formats.zarr_manifests:abandon_parts"),
        LazyFunction("virtualds.formats.zarr_manifests:is_table_inside"),
    ),
)
"""The format that can store every array, and also the package's own metadata."""

FORMATS: tuple[Format, ...] = (
    Format(
        "kerchunk-json",
        (".json", ".json.gz", ".json.zst"),
        LazyFunction("virtualds.formats.kerchunk.json:detect"),
        LazyFunction("virtualds.formats.kerchunk.json:read"),
        LazyFunction("virtualds.formats.kerchunk.json:write"),
        read_version=LazyFunction("virtualds.formats.kerchunk.json:read_version"),
        choices=("templates", "relative_paths", "zarr_format", *CHANGES),
        to_dict=LazyFunction("virtualds.formats.kerchunk.json:to_dict"),
        obstacles=LazyFunction("virtualds.formats.zarr.write_plan:list_obstacles_of_kerchunk"),
    ),
    Format(
        "kerchunk-parquet",
        (".parquet", ".parq"),
        LazyFunction("virtualds.formats.kerchunk.parquet:detect"),
        LazyFunction("virtualds.formats.kerchunk.parquet:read"),
        LazyFunction("virtualds.formats.kerchunk.parquet:write"),
        read_version=LazyFunction("virtualds.formats.kerchunk.parquet:read_version"),
        compact=LazyFunction("virtualds.formats.kerchunk.parquet:compact"),
        markers=(ZMETADATA,),
        choices=("record_size", "relative_paths", *CHANGES),
        obstacles=LazyFunction("virtualds.formats.zarr.write_plan:list_obstacles_of_kerchunk"),
    ),
    ZARR_V3,
    Format(
        "icechunk",
        (".icechunk",),
        LazyFunction("virtualds.formats.icechunk:detect"),
        WITH_ICECHUNK("virtualds.formats.icechunk.references:read"),
        WITH_ICECHUNK("virtualds.formats.icechunk.write:write"),
        read_version=WITH_ICECHUNK("virtualds.formats.icechunk.write:read_version"),
        compact=WITH_ICECHUNK("virtualds.formats.icechunk.write:compact"),
        markers=ICECHUNK_MARKERS,
        first_written=ICECHUNK_FOLDERS,
        choices=(
            *("message", "metadata", "branch", "create_branch", "config"),
            *("rectilinear", SUBCHUNK),
        ),
        history=WITH_ICECHUNK("virtualds.formats.icechunk.references:history"),
        expire=LazyFunction("virtualds.formats.icechunk:expire"),
        version_choices=("branch", "create_branch", "config", "staging_folder"),
        library="icechunk",
        read_object=WITH_ICECHUNK("virtualds.formats.icechunk.references:read_object"),
        holds=WITH_ICECHUNK("virtualds.formats.icechunk.write:is_occupied"),
        obstacles=LazyFunction("virtualds.formats.zarr.write_plan:list_obstacles_of_icechunk"),
    ),
    Format(
        "cfa",
        (".nca",),
        is_never_recognised,
        LazyFunction("virtualds.datasets.aggregation.writing:read"),
        LazyFunction("virtualds.datasets.aggregation.writing:write"),
        read_version=LazyFunction("virtualds.datasets.aggregation.writing:read_version"),
        choices=("relative_paths",),
        obstacles=LazyFunction("virtualds.datasets.aggregation.writing:list_obstacles"),
        has_rewritten_chunks=False,
        is_set=LazyFunction("virtualds.datasets.open:is_aggregation_file"),
    ),
)


def format_of_object(opened: Any) -> Format | None:
    """Return the format whose library an object belongs to, or None for a path or other object."""
    library = type(opened).__module__.partition(".")[0]
    return next((format_ for format_ in FORMATS if format_.library == library), None)
