"""The options of all commands; each has the name of the Python keyword that it sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

import click

from virtualds_cli.parameter_types import (
    AccessType,
    AgeType,
    CoordinateSourceType,
    NameType,
    OpenChoice,
    RenamingType,
    SubchunkType,
    Url,
)

Function = Callable[..., None]
Decorator = Callable[[Function], Function]

FORMATS = ("kerchunk-json", "kerchunk-parquet", "zarr-v3", "icechunk", "cfa")
PARSERS = (
    *("hdf5", "netcdf3", "npy", "npz", "safetensors", "tiff", "fits", "grib"),
    *("grib-index", "dmrpp", "hdf4", "zarr", *FORMATS),
)
"""Formats of files and sets; packages may bring more."""
JOINS = ("outer", "inner", "left", "right", "exact", "override")
COMPAT = ("equals", "identical", "broadcast_equals", "no_conflicts", "override")
ATTRIBUTES = ("override", "drop", "identical", "no_conflicts", "drop_conflicts")


def _group_by_name(
    ctx: click.Context, param: click.Parameter, value: Iterable[tuple[str, ...]]
) -> dict[str, tuple[str, ...]] | None:
    """Return the values by name of the coordinate."""
    return {name: (*rest,) for name, *rest in value} or None


def merge(
    ctx: click.Context, param: click.Parameter, value: Iterable[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return all given values by name; later ones take precedence."""
    return {key: found for one in value for key, found in one.items()} or None


def _join_pieces(
    ctx: click.Context, param: click.Parameter, value: Iterable[tuple[str, str, int]]
) -> dict[str, Any] | None:
    """Return the ``subchunk`` of `virtualds` from all given pieces."""
    found: dict[str, Any] = {}
    for variable, dim, length in value:
        (found.setdefault(variable, {}) if variable else found)[dim] = length
    return found or None


def _split_names(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> list[str] | None:
    """Return a list of names, or None if the option was not given, and [] for a single ''."""
    return [name for name in value if name] if value else None


def _make_option(
    help: str, flag: str | None = None, many: Callable[..., Any] | None = None, **how: Any
) -> Callable[[str], Decorator]:
    """Return a function that makes an option from its name.

    ``flag`` is "" or the prefix of the name that switches the option off. ``many`` is the callback
    of an option that may be repeated.
    """
    if flag is not None:
        how |= {"default": None} | ({} if flag else {"is_flag": True})
    if many is not None:
        how |= {"multiple": True, "callback": many}
    return lambda name: click.option(
        f"--{name}{flag}{name}" if flag else f"--{name}", help=help, **how
    )


def _make_repeatable(text: str, kind: Any = None) -> Callable[[str], Decorator]:
    return _make_option(f"{text} Repeat the option for several.", many=_split_names, type=kind)


def _make_choice(
    choices: Iterable[str], default: str | None, text: str
) -> Callable[[str], Decorator]:
    shown = f"{text} [default: {default}]" if default else text
    return _make_option(shown, type=click.Choice([*choices]))


def _make_access_option(text: str) -> Callable[[str], Decorator]:
    return _make_option(text, many=merge, type=AccessType())


ROWS: dict[str, Callable[[str], Decorator]] = {
    "combine": _make_choice(
        ("by_coords", "nested"),
        None,
        "Order the files by their coordinates (by_coords), or join them in the given order "
        "(nested). With --concat-dim the default is nested, otherwise by_coords.",
    ),
    "concat_dim": _make_repeatable("Dimension to concatenate files along.", NameType("dimension")),
    "coordinates": _make_option(
        many=_group_by_name,
        type=CoordinateSourceType(),
        help="A coordinate that the files do not hold. NAME=PATTERN takes it from the file name, "
        "by a regular expression with one group, or with groups named year, month, ...; "
        "NAME@ATTRIBUTE takes it from an attribute. NAME:int, NAME:float and NAME:%Y%m%d parse "
        "the text as a number or a date. Repeat the option for several coordinates.",
    ),
    "sort": _make_option(
        flag="/--no-",
        help="Order files by their coordinate, or keep the given order. [default: sort]",
    ),
    "overlap": _make_choice(
        ("error", "first", "last", "keep"),
        "error",
        "What to do if several files hold the same coordinate value: stop with an error, take "
        "the first file, take the last file, or keep all.",
    ),
    "pad": _make_repeatable(
        "Dimension along which files may differ in length, such as scanline: shorter files are "
        "missing behind their end.",
        NameType("dimension"),
    ),
    "newest": _make_option(
        metavar="NAME",
        help="A name of the pattern, such as version: use only the newest of files whose paths "
        "differ in nothing else.",
    ),
    "data_vars": _make_option(
        metavar="minimal|all|different",
        help="Data variables to concatenate along the dimension. [default: minimal]",
    ),
    "coords": _make_option(
        metavar="minimal|all|different",
        help="Coordinates to concatenate along the dimension. [default: minimal]",
    ),
    "compat": _make_choice(COMPAT, "equals", "How to compare variables that are not concatenated."),
    "join": _make_choice(JOINS, "outer", "How to align coordinates that differ."),
    "combine_attrs": _make_choice(ATTRIBUTES, "override", "How to merge attributes that differ."),
    "attrs_file": _make_option(type=Url(), help="File to take the global attributes from."),
    "loadable_variables": _make_repeatable(
        "Names or patterns of variables to load; the set stores their values. '' loads none. By "
        "default coordinates and other small variables are loaded.",
        NameType(),
    ),
    "drop_variables": _make_repeatable("Variables to leave out.", NameType()),
    "group": _make_option(
        type=NameType("group"), help="Group to open, of the set or of every file."
    ),
    "storage_options": _make_access_option(
        "Options for fsspec to read the input: a JSON object, or one option as key=value."
    ),
    "target_options": _make_access_option(
        "Options for fsspec to write the target, like --storage-options."
    ),
    "decode_cf": _make_option(
        flag="/--no-", help="Decode by the CF conventions, or not. [default: decode-cf]"
    ),
    "parser": _make_option(
        type=OpenChoice(PARSERS), help="Format of the files. By default their first bytes decide."
    ),
    "parser_options": _make_access_option(
        "Options of the format, such as filter_by_keys of GRIB: a JSON object, or one option as "
        "key=value, whose value is JSON or text. Repeat the option for several."
    ),
    "on_error": _make_choice(
        ("raise", "skip", "collect", "keep"),
        "raise",
        "What to do about a file that cannot be read: stop (raise); leave it out with a warning "
        "(skip) or with an entry in the report (collect); or keep it, and raise an error when an "
        "unreadable variable is read (keep).",
    ),
    "parallel": _make_option(
        type=click.IntRange(1),
        help="Number of processes that open files; threads for remote files.",
    ),
    "retries": _make_option(
        type=click.IntRange(0),
        help="How often to retry a file that failed with a transient error. [default: 2]",
    ),
    "cache": _make_option(
        type=Url(),
        help="Folder that caches opened files. An interrupted job resumes, and a daily job opens "
        "only new files.",
    ),
    "progress": _make_option(
        flag="/--no-",
        help="Show a progress bar, or not. By default on a terminal, after one second.",
    ),
    "allow": _make_repeatable("Folder that references may point into.", Url()),
    "snapshot": _make_option(help="Id of the snapshot to open."),
    "format": _make_choice(FORMATS, None, "Format of the target. By default its suffix decides."),
    "mode": _make_choice(("w-", "w"), "w-", "Create the target (w-), or create or replace it (w)."),
    "position": _make_choice(
        ("end", "start", "coordinate"),
        "end",
        "Where to put the files: at the end, at the start, or where their coordinate belongs.",
    ),
    "on_duplicate": _make_choice(
        ("raise", "skip"), "raise", "What to do about positions that are already in the set."
    ),
    "new_variables": _make_choice(
        ("error", "fill", "drop"),
        "error",
        "What to do about variables that the set lacks: stop (error), add them with missing values "
        "where the set has data already (fill), or leave them out (drop).",
    ),
    "missing_variables": _make_choice(
        ("error", "fill"),
        "error",
        "What to do if variables of the set are missing: stop, or fill them with missing values.",
    ),
    "conflict": _make_choice(
        ("raise", "retry"),
        "raise",
        "What to do if another writer changes the set at the same time.",
    ),
    "rename": _make_option(
        many=merge,
        type=RenamingType(),
        help="Old and new name of a variable or dimension. Repeat the option for several.",
    ),
    "drop_groups": _make_repeatable("Path of a group to leave out.", NameType("group")),
    "attributes": _make_option(
        many=merge,
        type=AccessType(),
        help="An attribute: title=TEXT of the group, or t:units=TEXT of a variable. Values are "
        "JSON or text; null removes the attribute. Repeat the option for several.",
    ),
    "keep": _make_option(
        type=click.IntRange(1), help="Number of newest snapshots to keep. [default: 1]"
    ),
    "older_than": _make_option(
        type=AgeType(), help="Delete only snapshots at least this old: 30d, 12h."
    ),
    "dry_run": _make_option(
        flag="", help="Change nothing; report what would be deleted or changed."
    ),
    "keep_query": _make_option(
        flag="",
        help="Also write urls that contain a password, signature or token. Everyone who can read "
        "the set can use them. Without this option they are refused.",
    ),
    "subchunk": _make_option(
        many=_join_pieces,
        type=SubchunkType(),
        help="Cut uncompressed chunks: time=1, or t:time=1 for one variable. Repeat the option.",
    ),
    "on_unsupported": _make_choice(
        ("error", "rewrite"),
        None,
        "What to do about chunks that the format cannot hold: stop with an error, as by default, "
        "or encode them anew, in the main encoding of their variable. All others stay references.",
    ),
    "main_encoding": _make_option(
        many=merge,
        type=AccessType(),
        help="Main encoding of a variable, as NAME=JSON with the keys chunks, codecs and dtype. By "
        "default the one that leaves the fewest bytes to rewrite.",
    ),
    "rewrite_limit": _make_option(type=click.IntRange(0), help="Most bytes to rewrite, decoded."),
    # format-specific options
    "inline_threshold": _make_option(
        type=click.IntRange(0),
        help="kerchunk, zarr-v3: bytes up to which a chunk is read and held in the set.",
    ),
    "zarr_format": _make_option(
        type=click.IntRange(2, 3),
        help="kerchunk-json: version of the Zarr metadata, 2 unless given.",
    ),
    "templates": _make_option(
        flag="", help="kerchunk-json: write each source folder once, as a template."
    ),
    "record_size": _make_option(
        type=click.IntRange(1), help="kerchunk-parquet: references per record."
    ),
    "manifest": _make_option(
        type=click.Choice(["inline", "json", "parquet"]),
        help="zarr-v3: how to store manifests. By default their size decides.",
    ),
    "relative_paths": _make_option(
        flag="", help="kerchunk, zarr-v3, cfa: write source paths relative to the set."
    ),
    "message": _make_option(help="icechunk: commit message."),
    "metadata": _make_access_option(
        "icechunk: metadata of the commit: a JSON object, or one entry as key=value."
    ),
    "branch": _make_option(help="icechunk: branch to commit to."),
    "create_branch": _make_option(
        flag="", help="icechunk: make the branch if there is none; it begins where main is."
    ),
    "rectilinear": _make_option(flag="", help="icechunk: allow chunks of different lengths."),
}
OPTIONS = {name: make(name.replace("_", "-")) for name, make in ROWS.items()}
"""All options, by the Python keyword that they set."""

REWRITING = ("on_unsupported", "main_encoding", "rewrite_limit")
"""Options for chunks that a format cannot store."""

CHOICES = (
    *("keep_query", *REWRITING, "subchunk", "inline_threshold", "zarr_format", "templates"),
    *("record_size", "manifest", "relative_paths", "message", "metadata", "branch"),
    *("create_branch", "rectilinear"),
)
"""Options of formats."""

MERGING = ("data_vars", "coords", "compat", "join", "combine_attrs")
"""Options for how xarray combines datasets."""
READING = ("parser", "parser_options", "allow", "storage_options")
"""Options for the parser of a file, and for access to it."""
ONE_FILE = ("group", "drop_variables", "loadable_variables", "decode_cf", *READING)
"""Options for opening each file."""
COMBINING = (
    *("combine", "concat_dim", "coordinates", "newest", "sort", "overlap", "pad"),
    *MERGING,
    "attrs_file",
)
"""Options for combining files into one dataset."""
WORKING = ("on_error", "retries", "cache", "parallel", "progress")
"""Options for the workers that open files, and for files that fail."""
MANY_FILES = (*COMBINING, *ONE_FILE, *WORKING)
"""The options of `virtualds.open_virtual_mfdataset`."""

SECTIONS = {
    "Combining": COMBINING,
    "Opening": (*ONE_FILE, "snapshot"),
    "Many files": (*WORKING, "dask"),
    "Writing": (
        *("format", "mode", "position", "on_duplicate", "new_variables", "missing_variables"),
        *("conflict", "target_options", "dry_run", *REWRITING),
    ),
    "Format-specific options": tuple(name for name in CHOICES if name not in REWRITING),
}
"""The sections of the help, with their options."""


def given(*names: str) -> Decorator:
    """Add options to a command, shown in this order."""

    def decorated(function: Function) -> Function:
        for name in reversed(names):
            function = OPTIONS[name](function)
        return function

    return decorated


def select_given(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the options that were given; the others keep the defaults of Python."""
    return {name: values[name] for name in names if values.get(name) is not None}


def make_keywords(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the given options as keywords of Python."""
    chosen = select_given(options, names)
    if dims := chosen.get("concat_dim"):
        chosen["concat_dim"] = dims[0] if len(dims) == 1 else dims
        chosen.setdefault("combine", "nested")
    if "coordinates" in chosen:
        chosen["coordinates"] = _make_coordinates(chosen["coordinates"])
    return chosen


def _make_coordinates(given: Mapping[str, tuple[str | None, str, str]]) -> dict[str, Any]:
    """Return the sources of coordinates as keywords of Python."""
    import virtualds

    types: dict[str | None, Any] = {"int": int, "float": float}
    return {
        name: virtualds.FromName(text, types.get(form, form))
        if sign == "="
        else virtualds.FromAttribute(text, format=types.get(form, form))
        for name, (form, sign, text) in given.items()
    }


# ---------------------------------------------------------------------- the input files


def files(function: Function) -> Function:
    """Add the arguments for files: urls, and a list of urls."""
    listed: Decorator = click.option(
        "-f",
        "--files-from",
        type=click.File(encoding="utf-8", errors="surrogateescape"),
        help="File with one url per line, used literally, without globbing; - is standard input.",
    )
    return click.argument("urls", nargs=-1, type=Url())(listed(function))


def list_files(
    urls: Sequence[str], files_from: IO[str] | None, options: Mapping[str, Any] | None
) -> list[str]:
    """Return the files of patterns and of a list, in the given order.

    Raises
    ------
    click.UsageError
        No file was given.
    FileNotFoundError
        A pattern matches no file.
    """
    from virtualds.stores.listing import find_matching

    found = find_matching(urls, options)
    if files_from is not None:
        found += [name for line in files_from if (name := line.rstrip("\r\n"))]
    if not found:
        raise click.UsageError("no input file; give urls, or a list of urls with --files-from")
    return found


def list_paths(
    urls: Sequence[str], files_from: IO[str] | None, options: Mapping[str, Any] | None
) -> str | list[str]:
    """Return a single url or pattern as it is, or else the files, as `list_files` does.

    Of a pattern, the library also uses what its names match, and the sizes and times that a listing
    has.
    """
    if len(urls) == 1 and files_from is None:
        return urls[0]
    return list_files(urls, files_from, options)
