"""The options of all commands; each has the name of the Python argument that it sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

import click

from virtualds_cli.parameter_types import (
    AccessType,
    AgeType,
    CoordinateSourceType,
    NameType,
    RenamingType,
    SubchunkType,
    UrlType,
)

Function = Callable[..., None]
Decorator = Callable[[Function], Function]

FORMATS = ("kerchunk-json", "kerchunk-parquet", "zarr-v3", "icechunk", "cfa")
PARSERS = (
    *("hdf5", "netcdf3", "npy", "npz", "safetensors", "tiff", "fits", "grib"),
    *("grib-index", "dmrpp", "hdf4", "zarr", *FORMATS),
)
"""Names of parsers and formats; plugins may add more."""
JOINS = ("outer", "inner", "left", "right", "exact", "override")
COMPAT = ("equals", "identical", "broadcast_equals", "no_conflicts", "override")
ATTRIBUTES = ("override", "drop", "identical", "no_conflicts", "drop_conflicts")


def _group_by_name(
    ctx: click.Context, param: click.Parameter, value: Iterable[tuple[str, ...]]
) -> dict[str, tuple[str, ...]] | None:
    """Return the sources of coordinates by name."""
    return {name: (*source,) for name, *source in value} or None


def merge_mappings(
    ctx: click.Context, param: click.Parameter, value: Iterable[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Merge the values of a repeated option; later ones take precedence."""
    return {key: item for mapping in value for key, item in mapping.items()} or None


def _merge_subchunks(
    ctx: click.Context, param: click.Parameter, value: Iterable[tuple[str, str, int]]
) -> dict[str, Any] | None:
    """Return the argument ``subchunk`` of a repeated option."""
    subchunk: dict[str, Any] = {}
    for variable, dim, length in value:
        (subchunk.setdefault(variable, {}) if variable else subchunk)[dim] = length
    return subchunk or None


def _split_names(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> list[str] | None:
    """Return the names as a list: None without the option, and [] for an option ''."""
    return [name for name in value if name] if value else None


def _complete_parser(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of parsers that begin with what the user has typed."""
    return [name for name in PARSERS if name.startswith(incomplete)]


def _make_option(
    help: str,
    off_prefix: str | None = None,
    merge: Callable[..., Any] | None = None,
    is_flag: bool = False,
    **kwargs: Any,
) -> Callable[[str], Decorator]:
    """Return a function that makes an option with a name.

    ``off_prefix`` is the prefix of the name that switches a flag off. ``merge`` is the callback of
    an option that may be repeated.
    """
    if is_flag or off_prefix is not None:
        kwargs["default"] = None
    if is_flag:
        kwargs["is_flag"] = True
    if merge is not None:
        kwargs |= {"multiple": True, "callback": merge}
    return lambda name: click.option(
        f"--{name}{off_prefix}{name}" if off_prefix else f"--{name}", help=help, **kwargs
    )


def _make_repeatable(text: str, kind: Any = None) -> Callable[[str], Decorator]:
    return _make_option(f"{text} Repeat the option for several.", merge=_split_names, type=kind)


def _make_choice(
    choices: Iterable[str], default: str | None, text: str
) -> Callable[[str], Decorator]:
    help = f"{text} [default: {default}]" if default else text
    return _make_option(help, type=click.Choice([*choices]))


def _make_access_option(text: str) -> Callable[[str], Decorator]:
    return _make_option(text, merge=merge_mappings, type=AccessType())


OPTION_FACTORIES: dict[str, Callable[[str], Decorator]] = {
    "combine": _make_choice(
        ("by_coords", "nested"),
        None,
        "Order the files by their coordinates (by_coords), or join them in the given order "
        "(nested). With --concat-dim the default is nested, otherwise by_coords.",
    ),
    "concat_dim": _make_repeatable("Dimension to concatenate files along.", NameType("dimension")),
    "coordinates": _make_option(
        merge=_group_by_name,
        type=CoordinateSourceType(),
        help="A coordinate that the files do not hold. NAME=PATTERN takes it from the file name, "
        "by a regular expression with one group, or with groups named year, month, ...; "
        "NAME@ATTRIBUTE takes it from an attribute. NAME:int, NAME:float and NAME:%Y%m%d parse "
        "the text as a number or a date. Repeat the option for several coordinates.",
    ),
    "sort": _make_option(
        off_prefix="/--no-",
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
        "filled with missing values at their end.",
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
    "attrs_file": _make_option(type=UrlType(), help="File to take the global attributes from."),
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
        off_prefix="/--no-", help="Decode by the CF conventions, or not. [default: decode-cf]"
    ),
    "parser": _make_option(
        shell_complete=_complete_parser,
        help="Format of the files. By default their first bytes decide.",
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
        type=UrlType(),
        help="Folder that caches opened files. An interrupted job resumes, and a daily job opens "
        "only new files.",
    ),
    "progress": _make_option(
        off_prefix="/--no-",
        help="Show a progress bar, or not. By default on a terminal, after one second.",
    ),
    "allow": _make_repeatable("Folder that references may point into.", UrlType()),
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
        merge=merge_mappings,
        type=RenamingType(),
        help="Old and new name of a variable or dimension. Repeat the option for several.",
    ),
    "drop_groups": _make_repeatable("Path of a group to leave out.", NameType("group")),
    "attributes": _make_option(
        merge=merge_mappings,
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
        is_flag=True, help="Change nothing; report what would be deleted or changed."
    ),
    "keep_query": _make_option(
        is_flag=True,
        help="Also write urls that contain a password, signature or token. Everyone who can read "
        "the set can use them. Without this option they are refused.",
    ),
    "subchunk": _make_option(
        merge=_merge_subchunks,
        type=SubchunkType(),
        help="Cut uncompressed chunks: time=1, or t:time=1 for one variable. Repeat the option.",
    ),
    "on_unsupported": _make_choice(
        ("error", "rewrite"),
        None,
        "What to do about chunks that the format cannot hold: stop with an error, as by default, "
        "or encode them again, in the main encoding of their variable. All others stay references.",
    ),
    "main_encoding": _make_option(
        merge=merge_mappings,
        type=AccessType(),
        help="Main encoding of a variable, as NAME=JSON with the keys chunks, codecs and dtype. By "
        "default the one that leaves the fewest bytes to rewrite.",
    ),
    "rewrite_limit": _make_option(
        type=click.IntRange(0), help="Maximum number of decoded bytes to rewrite."
    ),
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
        is_flag=True, help="kerchunk-json: write each source folder once, as a template."
    ),
    "record_size": _make_option(
        type=click.IntRange(1), help="kerchunk-parquet: references per record."
    ),
    "manifest": _make_option(
        type=click.Choice(["inline", "json", "parquet"]),
        help="zarr-v3: how to store manifests. By default their size decides.",
    ),
    "relative_paths": _make_option(
        is_flag=True, help="kerchunk, zarr-v3, cfa: write source paths relative to the set."
    ),
    "message": _make_option(help="icechunk: commit message."),
    "metadata": _make_access_option(
        "icechunk: metadata of the commit: a JSON object, or one entry as key=value."
    ),
    "branch": _make_option(help="icechunk: branch to commit to."),
    "create_branch": _make_option(
        is_flag=True, help="icechunk: create the branch from main if there is none."
    ),
    "rectilinear": _make_option(is_flag=True, help="icechunk: allow chunks of different lengths."),
}
OPTIONS = {name: make(name.replace("_", "-")) for name, make in OPTION_FACTORIES.items()}
"""All options by the Python argument that they set."""

REWRITE_OPTIONS = ("on_unsupported", "main_encoding", "rewrite_limit")
"""Options for chunks that a format cannot store."""

FORMAT_OPTIONS = (
    *("keep_query", *REWRITE_OPTIONS, "subchunk", "inline_threshold", "zarr_format", "templates"),
    *("record_size", "manifest", "relative_paths", "message", "metadata", "branch"),
    *("create_branch", "rectilinear"),
)
"""Options of formats."""

MERGE_OPTIONS = ("data_vars", "coords", "compat", "join", "combine_attrs")
"""Options for how xarray combines datasets."""
READ_OPTIONS = ("parser", "parser_options", "allow", "storage_options")
"""Options for the parser of a file, and for access to it."""
OPEN_OPTIONS = ("group", "drop_variables", "loadable_variables", "decode_cf", *READ_OPTIONS)
"""Options for opening a file."""
COMBINE_OPTIONS = (
    *("combine", "concat_dim", "coordinates", "newest", "sort", "overlap", "pad"),
    *MERGE_OPTIONS,
    "attrs_file",
)
"""Options for combining files."""
WORKER_OPTIONS = ("on_error", "retries", "cache", "parallel", "progress")
"""Options for the workers that open files, and for files that fail."""
MFDATASET_OPTIONS = (*COMBINE_OPTIONS, *OPEN_OPTIONS, *WORKER_OPTIONS)
"""The options of `virtualds.open_virtual_mfdataset`."""

SECTIONS = {
    "Combining": COMBINE_OPTIONS,
    "Opening": (*OPEN_OPTIONS, "snapshot"),
    "Many files": (*WORKER_OPTIONS, "dask"),
    "Writing": (
        *("format", "mode", "position", "on_duplicate", "new_variables", "missing_variables"),
        *("conflict", "target_options", "dry_run", *REWRITE_OPTIONS),
    ),
    "Format-specific options": tuple(
        name for name in FORMAT_OPTIONS if name not in REWRITE_OPTIONS
    ),
}
"""The sections of the help and their options."""


def add_options(*names: str) -> Decorator:
    """Return a decorator that adds options to a command, shown in this order."""

    def decorate(function: Function) -> Function:
        for name in reversed(names):
            function = OPTIONS[name](function)
        return function

    return decorate


def select_options(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named options that the user has set."""
    return {name: values[name] for name in names if values.get(name) is not None}


def to_python_arguments(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named options that the user has set, as Python arguments."""
    chosen = select_options(options, names)
    if dims := chosen.get("concat_dim"):
        chosen["concat_dim"] = dims[0] if len(dims) == 1 else dims
        chosen.setdefault("combine", "nested")
    if "coordinates" in chosen:
        import virtualds

        types: dict[str | None, Any] = {"int": int, "float": float}
        chosen["coordinates"] = {
            name: virtualds.FromName(text, types.get(form, form))
            if sign == "="
            else virtualds.FromAttribute(text, format=types.get(form, form))
            for name, (form, sign, text) in chosen["coordinates"].items()
        }
    return chosen


# ---------------------------------------------------------------------- input files


def add_file_arguments(function: Function) -> Function:
    """Add the arguments ``urls`` and ``files_from`` to a command."""
    add_files_from: Decorator = click.option(
        "-f",
        "--files-from",
        type=click.File(encoding="utf-8", errors="surrogateescape"),
        help="File with one url per line, used literally, without globbing; - is standard input.",
    )
    return click.argument("urls", nargs=-1, type=UrlType())(add_files_from(function))


def list_files(
    urls: Sequence[str], files_from: IO[str] | None, options: Mapping[str, Any] | None
) -> list[str]:
    """Return the files that match urls and patterns, and those of a list, in this order.

    Raises
    ------
    click.UsageError
        There is no url.
    FileNotFoundError
        A pattern matches no file.
    """
    from virtualds.stores.listing import find_matching_files

    files = find_matching_files(urls, options)
    if files_from is not None:
        files += [url for line in files_from if (url := line.rstrip("\r\n"))]
    if not files:
        raise click.UsageError("no input file; give urls, or a list of urls with --files-from")
    return files


def list_paths(
    urls: Sequence[str], files_from: IO[str] | None, options: Mapping[str, Any] | None
) -> str | list[str]:
    """Return a single url or pattern unchanged, otherwise the result of `list_files`.

    The library also uses the names of a pattern, and the sizes and times of its listing.
    """
    if len(urls) == 1 and files_from is None:
        return urls[0]
    return list_files(urls, files_from, options)
