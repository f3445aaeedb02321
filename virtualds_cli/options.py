"""The options of all commands: each is named like the keyword of Python that it is handed to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import click
from click.shell_completion import CompletionItem

Function = Callable[..., None]
Decorator = Callable[[Function], Function]

FORMATS = ("kerchunk-json", "kerchunk-parquet", "zarr-v3", "icechunk")
JOINS = ("outer", "inner", "left", "right", "exact", "override")
COMPAT = ("equals", "identical", "broadcast_equals", "no_conflicts", "override")
ATTRIBUTES = ("override", "drop", "identical", "no_conflicts", "drop_conflicts")


class Url(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A path, or a url; shells complete it as a path."""

    name = "url"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell look for files."""
        return [CompletionItem(incomplete, type="file")]


class Access(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """Access options: a JSON object, or one of them as ``key=value``."""

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
            self.fail(f"{value!r} begins like a JSON object and is none ({error})", param, ctx)
        return found


class Age(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A length of time: a number with a unit."""

    name = "age"
    UNITS = ("weeks", "days", "hours", "minutes", "seconds")

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Return the time that is meant by ``30d`` or ``12 hours``."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", value)
        units = [unit for unit in self.UNITS if found and unit.startswith(found[2])]
        if not found or not units:
            self.fail(f"{value!r} is no age: write 30d, 12h or 90minutes", param, ctx)
        return timedelta(**{units[0]: float(found[1])})


class Part(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """How many of something: a number, a part of all below 1, or all."""

    name = "number|part|all"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        """Return a number of them as an integer, and a part as a float, of which 1.0 is all."""
        if value == "all":
            return 1.0
        try:
            return int(value)
        except ValueError:
            pass
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is no number, part (0.01) or 'all'", param, ctx)


class Origin(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """Where a coordinate comes from: ``NAME[:FORMAT]=PATTERN`` or ``NAME[:FORMAT]@ATTRIBUTE``."""

    name = "name=pattern"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str | None, str, str]:
        """Return name, format, whether it is a pattern (=) or an attribute (@), and this."""
        if not isinstance(value, str):
            return tuple(value)
        found = re.fullmatch(r"([^:=@]+)(?::([^=@]+))?([=@])(.+)", value)
        if not found:
            self.fail(f"{value!r} is neither NAME=PATTERN nor NAME@ATTRIBUTE", param, ctx)
        return found[1], found[2], found[3], found[4]


def _by_name(
    ctx: click.Context, param: click.Parameter, value: Iterable[tuple[str, ...]]
) -> dict[str, tuple[str, ...]] | None:
    """Return what is said of coordinates, by their names."""
    return {name: (*rest,) for name, *rest in value} or None


def _merged(
    ctx: click.Context, param: click.Parameter, value: Iterable[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return all access options that were given, the later ones in front."""
    return {key: found for one in value for key, found in one.items()} or None


def _names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[str] | None:
    """Return a list of names, None if the option was not given, and [] for a single ''."""
    return [name for name in value if name] if value else None


def _several(name: str, text: str, kind: Any = None) -> Decorator:
    return click.option(
        name, multiple=True, callback=_names, type=kind, help=f"{text} Give it once for each."
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
        "Order the files by their coordinates, or join them as they are given. Where --concat-dim "
        "is given it is nested, else by_coords.",
    ),
    "concat_dim": _several("--concat-dim", "Dimension to join along, one file after another."),
    "coordinates": click.option(
        "--coordinates",
        multiple=True,
        type=Origin(),
        callback=_by_name,
        help="A coordinate that the files do not hold: NAME=PATTERN takes it from the name of the "
        "file, by a regular expression with a group, or groups named year, month, ...; "
        "NAME@ATTRIBUTE from an attribute. With NAME:int, NAME:float or NAME:%Y%m%d the text is a "
        "number, or a date. Give it once for each.",
    ),
    "sort": click.option(
        "--sort/--no-sort",
        default=None,
        help="Whether files go in the order of their coordinate. [default: sort]",
    ),
    "overlap": _chosen(
        "--overlap",
        ("error", "first", "last", "keep"),
        "error",
        "What to do about values of the coordinate that several files have: stop, take them from "
        "the first or the last such file, or keep all.",
    ),
    "data_vars": click.option(
        "--data-vars",
        metavar="minimal|all|different",
        help="Which data variables are joined along the dimension. [default: minimal]",
    ),
    "coords": click.option(
        "--coords",
        metavar="minimal|all|different",
        help="Which coordinates are joined along the dimension. [default: minimal]",
    ),
    "compat": _chosen("--compat", COMPAT, "equals", "How alike what is not joined has to be."),
    "join": _chosen("--join", JOINS, "outer", "What to do where coordinates of files differ."),
    "combine_attrs": _chosen(
        "--combine-attrs", ATTRIBUTES, "override", "What becomes of attributes that differ."
    ),
    "attrs_file": click.option(
        "--attrs-file", type=Url(), help="The file that the attributes of the dataset are those of."
    ),
    "loadable_variables": _several(
        "--loadable-variables",
        "Names or patterns of variables whose values go into the set; '' is none. By default "
        "coordinates and other small ones.",
    ),
    "drop_variables": _several("--drop-variables", "Variables to leave out."),
    "group": click.option("--group", help="The group of every file."),
    "storage_options": _access(
        "--storage-options",
        "Access options of what is read, for fsspec: a JSON object, or one of them as key=value.",
    ),
    "target_options": _access(
        "--target-options", "Access options of what is written, like --storage-options."
    ),
    "decode_cf": click.option(
        "--decode-cf/--no-decode-cf",
        default=None,
        help="Whether to decode by the CF conventions. [default: decode-cf]",
    ),
    "parser": click.option(
        "--parser", help="The format of the files, where their first bytes do not tell it."
    ),
    "on_error": _chosen(
        "--on-error",
        ("raise", "skip", "collect", "keep"),
        "raise",
        "What to do about a file that cannot be read: stop; leave it out, with a warning, or with "
        "an entry in the report; or keep variables that cannot be read, to fail when they are.",
    ),
    "parallel": click.option(
        "--parallel",
        type=click.IntRange(1),
        help="How many processes, or threads for remote files, open the files.",
    ),
    "retries": click.option(
        "--retries",
        type=click.IntRange(0),
        help="How often a file is opened again that failed for a reason that may pass. "
        "[default: 2]",
    ),
    "cache": click.option(
        "--cache",
        type=Url(),
        help="A folder that keeps what was opened: a job that was interrupted goes on, and one of "
        "every day opens what is new.",
    ),
    "progress": click.option(
        "--progress/--no-progress",
        default=None,
        help="Show how far it is, or do not. Else on a terminal, after a second.",
    ),
    "allow": _several("--allow", "A folder that references may lead into.", Url()),
    "snapshot": click.option("--snapshot", help="Id of an earlier snapshot of a set."),
    "format": _chosen(
        "--format", FORMATS, None, "The format of the target. Else its suffix tells."
    ),
    "mode": _chosen(
        "--mode", ("w-", "w"), "w-", "Create the target (w-), or create or replace it (w)."
    ),
    "position": _chosen(
        "--position",
        ("end", "start", "coordinate"),
        "end",
        "Where the files go: at an end, or each where its coordinate belongs.",
    ),
    "on_duplicate": _chosen(
        "--on-duplicate", ("raise", "skip"), "raise", "What to do about what is in the set already."
    ),
    "conflict": _chosen(
        "--conflict",
        ("raise", "retry"),
        "raise",
        "What to do if somebody else changes the set meanwhile.",
    ),
    "keep": click.option(
        "--keep", type=click.IntRange(1), help="How many of the newest stay. [default: 1]"
    ),
    "older_than": click.option(
        "--older-than", type=Age(), help="Only those go that are at least so old: 30d, 12h."
    ),
    "keep_query": click.option(
        "--keep-query",
        is_flag=True,
        default=None,
        help="Write urls that have a password, or a signature or token in their query, which is "
        "refused otherwise: whoever reads the set can use them.",
    ),
    # what a format lets one choose
    "templates": click.option(
        "--templates",
        is_flag=True,
        default=None,
        help="kerchunk-json: write every folder of sources once, as a template.",
    ),
    "record_size": click.option(
        "--record-size", type=click.IntRange(1), help="kerchunk-parquet: references in a record."
    ),
    "manifest": click.option(
        "--manifest",
        type=click.Choice(["inline", "json", "parquet"]),
        help="zarr-v3: the form of manifests. Else by their size.",
    ),
    "relative_paths": click.option(
        "--relative-paths",
        is_flag=True,
        default=None,
        help="zarr-v3: write paths of sources relative to the set.",
    ),
    "message": click.option("--message", help="icechunk: the message of the commit."),
    "branch": click.option("--branch", help="icechunk: the branch of the commit."),
    "rectilinear": click.option(
        "--rectilinear",
        is_flag=True,
        default=None,
        help="icechunk: allow chunks that differ in length.",
    ),
}
"""What is given to Python under a keyword, by that keyword."""

CHOICES = (
    "keep_query",
    "templates",
    "record_size",
    "manifest",
    "relative_paths",
    "message",
    "branch",
    "rectilinear",
)
"""What the formats let one choose."""

MERGING = ("data_vars", "coords", "compat", "join", "combine_attrs")
"""How xarray makes one dataset of several."""
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
"""Who opens files, and what is done about those that fail."""
MANY_FILES = (*COMBINING, *ONE_FILE, *WORKING)
"""The options of `virtualds.open_virtual_mfdataset`."""

SECTIONS = {
    "Combining": COMBINING,
    "Opening": (*ONE_FILE, "snapshot"),
    "Many files": (*WORKING, "dask"),
    "Writing": ("format", "mode", "position", "on_duplicate", "conflict", "target_options"),
    "What formats let one choose": CHOICES,
}
"""Which options stand together in a help, and below which title."""


def given(*names: str) -> Decorator:
    """Give a command some of the options, shown in this order."""

    def decorated(function: Function) -> Function:
        for name in reversed(names):
            function = OPTIONS[name](function)
        return function

    return decorated


def said(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return what was given of some options; for the others Python's defaults hold."""
    return {name: values[name] for name in names if values.get(name) is not None}
