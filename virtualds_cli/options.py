"""The options of all commands; each has the name of the Python keyword that it sets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import click
from click.shell_completion import CompletionItem

from virtualds_cli.pieces import Piece, join_pieces

Function = Callable[..., None]
Decorator = Callable[[Function], Function]

FORMATS = ("kerchunk-json", "kerchunk-parquet", "zarr-v3", "icechunk")
JOINS = ("outer", "inner", "left", "right", "exact", "override")
COMPAT = ("equals", "identical", "broadcast_equals", "no_conflicts", "override")
ATTRIBUTES = ("override", "drop", "identical", "no_conflicts", "drop_conflicts")


class Url(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A path or a url, which shells complete as a path."""

    name = "url"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete files."""
        return [CompletionItem(incomplete, type="file")]


class Access(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """Access options: a JSON object, or one option as ``key=value``."""

    name = "json or key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        """Return the options as a dictionary."""
        if not isinstance(value, str):
            return dict(value)
        if value.lstrip().startswith("{"):
            return self._object(value, param, ctx)
        key, sign, text = value.partition("=")
        if not key or not sign:
            self.fail(f"{value!r} is neither a JSON object nor key=value", param, ctx)
        try:
            return {key: json.loads(text)}
        except json.JSONDecodeError:
            return {key: text}

    def _object(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(value)
        except json.JSONDecodeError as error:
            self.fail(f"{value!r} is not valid JSON: {error}", param, ctx)
        return found


class Age(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A duration: a number with a unit."""

    name = "age"
    UNITS = ("weeks", "days", "hours", "minutes", "seconds")

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Return the duration that ``30d`` or ``12 hours`` means."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", value)
        units = [unit for unit in self.UNITS if found and unit.startswith(found[2])]
        if not found or not units:
            self.fail(f"{value!r} is not an age; write 30d, 12h or 90minutes", param, ctx)
        return timedelta(**{units[0]: float(found[1])})


class Part(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A sample size: a number, a fraction below 1, or all."""

    name = "number|fraction|all"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        """Return a number as an integer, and a fraction as a float; 1.0 means all."""
        if value == "all":
            return 1.0
        try:
            return int(value)
        except ValueError:
            pass
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number, a fraction (0.01) or 'all'", param, ctx)


class Origin(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """Source of a coordinate: ``NAME[:FORMAT]=PATTERN`` or ``NAME[:FORMAT]@ATTRIBUTE``."""

    name = "name=pattern"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str | None, str, str]:
        """Return name, format, "=" or "@", and the pattern or attribute."""
        if not isinstance(value, str):
            return tuple(value)
        found = re.fullmatch(r"([^:=@]+)(?::([^=@]+))?([=@])(.+)", value)
        if not found:
            self.fail(f"{value!r} is neither NAME=PATTERN nor NAME@ATTRIBUTE", param, ctx)
        return found[1], found[2], found[3], found[4]


def _by_name(
    ctx: click.Context, param: click.Parameter, value: Iterable[tuple[str, ...]]
) -> dict[str, tuple[str, ...]] | None:
    """Return the values by name of the coordinate."""
    return {name: (*rest,) for name, *rest in value} or None


def _merged(
    ctx: click.Context, param: click.Parameter, value: Iterable[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return all given access options; later ones take precedence."""
    return {key: found for one in value for key, found in one.items()} or None


def _names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[str] | None:
    """Return a list of names, None if the option was not given, and [] for a single ''."""
    return [name for name in value if name] if value else None


def _several(name: str, text: str, kind: Any = None) -> Decorator:
    return click.option(
        name,
        multiple=True,
        callback=_names,
        type=kind,
        help=f"{text} Repeat the option for several.",
    )


def _chosen(name: str, choices: Iterable[str], default: str | None, text: str) -> Decorator:
    shown = f"{text} [default: {default}]" if default else text
    return click.option(name, type=click.Choice([*choices]), help=shown)


def _access(name: str, text: str) -> Decorator:
    return click.option(name, multiple=True, type=Access(), callback=_merged, help=text)


OPTIONS: dict[str, Decorator] = {
    "combine": _chosen(
        "--combine",
        ("by_coords", "nested"),
        None,
        "Order the files by their coordinates (by_coords), or join them in the given order "
        "(nested). With --concat-dim the default is nested, otherwise by_coords.",
    ),
    "concat_dim": _several("--concat-dim", "Dimension to concatenate files along."),
    "coordinates": click.option(
        "--coordinates",
        multiple=True,
        type=Origin(),
        callback=_by_name,
        help="A coordinate that the files do not hold. NAME=PATTERN takes it from the file name, "
        "by a regular expression with one group, or with groups named year, month, ...; "
        "NAME@ATTRIBUTE takes it from an attribute. NAME:int, NAME:float and NAME:%Y%m%d parse "
        "the text as a number or a date. Repeat the option for several coordinates.",
    ),
    "sort": click.option(
        "--sort/--no-sort",
        default=None,
        help="Order files by their coordinate, or keep the given order. [default: sort]",
    ),
    "overlap": _chosen(
        "--overlap",
        ("error", "first", "last", "keep"),
        "error",
        "What to do if several files hold the same coordinate value: stop with an error, take "
        "the first file, take the last file, or keep all.",
    ),
    "data_vars": click.option(
        "--data-vars",
        metavar="minimal|all|different",
        help="Data variables to concatenate along the dimension. [default: minimal]",
    ),
    "coords": click.option(
        "--coords",
        metavar="minimal|all|different",
        help="Coordinates to concatenate along the dimension. [default: minimal]",
    ),
    "compat": _chosen(
        "--compat", COMPAT, "equals", "How to compare variables that are not concatenated."
    ),
    "join": _chosen("--join", JOINS, "outer", "How to align coordinates that differ."),
    "combine_attrs": _chosen(
        "--combine-attrs", ATTRIBUTES, "override", "How to merge attributes that differ."
    ),
    "attrs_file": click.option(
        "--attrs-file", type=Url(), help="File to take the global attributes from."
    ),
    "loadable_variables": _several(
        "--loadable-variables",
        "Names or patterns of variables to load; the set stores their values. '' loads none. By "
        "default coordinates and other small variables are loaded.",
    ),
    "drop_variables": _several("--drop-variables", "Variables to leave out."),
    "group": click.option("--group", help="Group to open in every file."),
    "storage_options": _access(
        "--storage-options",
        "Options for fsspec to read the input: a JSON object, or one option as key=value.",
    ),
    "target_options": _access(
        "--target-options", "Options for fsspec to write the target, like --storage-options."
    ),
    "decode_cf": click.option(
        "--decode-cf/--no-decode-cf",
        default=None,
        help="Decode by the CF conventions, or not. [default: decode-cf]",
    ),
    "parser": click.option(
        "--parser", help="Format of the files. By default their first bytes decide."
    ),
    "on_error": _chosen(
        "--on-error",
        ("raise", "skip", "collect", "keep"),
        "raise",
        "What to do about a file that cannot be read: stop (raise); leave it out with a warning "
        "(skip) or with an entry in the report (collect); or keep it, and raise an error when an "
        "unreadable variable is read (keep).",
    ),
    "parallel": click.option(
        "--parallel",
        type=click.IntRange(1),
        help="Number of processes that open files; threads for remote files.",
    ),
    "retries": click.option(
        "--retries",
        type=click.IntRange(0),
        help="How often to retry a file that failed with a transient error. [default: 2]",
    ),
    "cache": click.option(
        "--cache",
        type=Url(),
        help="Folder that caches opened files. An interrupted job resumes, and a daily job opens "
        "only new files.",
    ),
    "progress": click.option(
        "--progress/--no-progress",
        default=None,
        help="Show a progress bar, or not. By default on a terminal, after one second.",
    ),
    "allow": _several("--allow", "Folder that references may point into.", Url()),
    "snapshot": click.option("--snapshot", help="Id of the snapshot to open."),
    "format": _chosen(
        "--format", FORMATS, None, "Format of the target. By default its suffix decides."
    ),
    "mode": _chosen(
        "--mode", ("w-", "w"), "w-", "Create the target (w-), or create or replace it (w)."
    ),
    "position": _chosen(
        "--position",
        ("end", "start", "coordinate"),
        "end",
        "Where to put the files: at the end, at the start, or where their coordinate belongs.",
    ),
    "on_duplicate": _chosen(
        "--on-duplicate",
        ("raise", "skip"),
        "raise",
        "What to do about positions that are already in the set.",
    ),
    "conflict": _chosen(
        "--conflict",
        ("raise", "retry"),
        "raise",
        "What to do if another writer changes the set at the same time.",
    ),
    "keep": click.option(
        "--keep",
        type=click.IntRange(1),
        help="Number of newest snapshots to keep. [default: 1]",
    ),
    "older_than": click.option(
        "--older-than", type=Age(), help="Delete only snapshots at least this old: 30d, 12h."
    ),
    "keep_query": click.option(
        "--keep-query",
        is_flag=True,
        default=None,
        help="Also write urls that contain a password, signature or token. Everyone who can read "
        "the set can use them. Without this option they are refused.",
    ),
    "subchunk": click.option(
        "--subchunk",
        multiple=True,
        type=Piece(),
        callback=join_pieces,
        help="Cut uncompressed chunks: time=1, or t:time=1 for one variable. Repeat the option.",
    ),
    # format-specific options
    "inline_threshold": click.option(
        "--inline-threshold",
        type=click.IntRange(0),
        help="kerchunk, zarr-v3: bytes up to which a chunk is read and held in the set.",
    ),
    "zarr_format": click.option(
        "--zarr-format",
        type=click.IntRange(2, 3),
        help="kerchunk-json: version of the Zarr metadata, 2 unless given.",
    ),
    "templates": click.option(
        "--templates",
        is_flag=True,
        default=None,
        help="kerchunk-json: write each source folder once, as a template.",
    ),
    "record_size": click.option(
        "--record-size", type=click.IntRange(1), help="kerchunk-parquet: references per record."
    ),
    "manifest": click.option(
        "--manifest",
        type=click.Choice(["inline", "json", "parquet"]),
        help="zarr-v3: how to store manifests. By default their size decides.",
    ),
    "relative_paths": click.option(
        "--relative-paths",
        is_flag=True,
        default=None,
        help="kerchunk, zarr-v3: write source paths relative to the set.",
    ),
    "message": click.option("--message", help="icechunk: commit message."),
    "branch": click.option("--branch", help="icechunk: branch to commit to."),
    "rectilinear": click.option(
        "--rectilinear",
        is_flag=True,
        default=None,
        help="icechunk: allow chunks of different lengths.",
    ),
}
"""All options, by the Python keyword that they set."""

CHOICES = (
    "keep_query",
    "subchunk",
    "inline_threshold",
    "zarr_format",
    "templates",
    "record_size",
    "manifest",
    "relative_paths",
    "message",
    "branch",
    "rectilinear",
)
"""Format-specific options."""

MERGING = ("data_vars", "coords", "compat", "join", "combine_attrs")
"""How xarray combines datasets."""
ONE_FILE = (
    "group",
    "drop_variables",
    "loadable_variables",
    "parser",
    "decode_cf",
    "allow",
    "storage_options",
)
"""How each file is opened."""
COMBINING = ("combine", "concat_dim", "coordinates", "sort", "overlap", *MERGING, "attrs_file")
"""How files become one dataset."""
WORKING = ("on_error", "retries", "cache", "parallel", "progress")
"""Which workers open the files, and what happens to files that fail."""
MANY_FILES = (*COMBINING, *ONE_FILE, *WORKING)
"""The options of `virtualds.open_virtual_mfdataset`."""

SECTIONS = {
    "Combining": COMBINING,
    "Opening": (*ONE_FILE, "snapshot"),
    "Many files": (*WORKING, "dask"),
    "Writing": ("format", "mode", "position", "on_duplicate", "conflict", "target_options"),
    "Format-specific options": CHOICES,
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
