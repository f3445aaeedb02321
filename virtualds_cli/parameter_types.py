"""Parameter types of click: urls, access options, subchunks, ages, and names.

Shells complete names of variables, dimensions and groups of a local reference set. Completion must
be quick, so it reads only one small JSON document and does not import the library. Completion
offers no names if the set is missing or invalid.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

MAX_BYTES = 2**22
"""Maximum size of a document, which is read in a twentieth of a second."""
DOCUMENTS = ("zarr.json", ".zmetadata", "")
"""Paths of the metadata of zarr-v3, kerchunk-parquet and kerchunk-json in the set."""
ARGUMENTS = ("url", "target", "source")
"""Arguments of commands that may name a set."""
INVALID_SET_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""Errors of reading a file that is not a set."""


class Node(NamedTuple):
    """An array or group: its path, and the dimensions of an array."""

    path: str
    dims: tuple[str, ...] | None = None


class NameType(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A name, which shells complete from the set on the command line.

    Parameters
    ----------
    kind : {"variable", "dimension", "group"}
    """

    name = "text"

    def __init__(self, kind: str = "variable") -> None:
        self.kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin with what the user has typed."""
        # click leaves arguments in ctx.args while the value of the last option is missing
        candidates = [*(ctx.params.get(argument) for argument in ARGUMENTS), *ctx.args]
        lists = (list_names(url, self.kind) for url in candidates if isinstance(url, str))
        names = next((names for names in lists if names), [])
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def list_names(url: str, kind: str) -> list[str]:
    """Return the distinct names of one kind in a local set."""
    nodes = list_nodes(url)
    if kind == "group":
        return [node.path for node in nodes if node.dims is None and node.path]
    if kind == "dimension":
        names = (dim for node in nodes for dim in node.dims or ())
    else:
        names = (node.path.rpartition("/")[2] for node in nodes if node.dims is not None)
    return list(dict.fromkeys(names))


def list_nodes(url: str) -> list[Node]:
    """Return the arrays and groups of a local set, or an empty list if there is no such set."""
    for document in DOCUMENTS:
        path = os.path.join(os.path.expanduser(url.removeprefix("file://")), document).rstrip("/")
        try:
            if os.path.isfile(path) and os.path.getsize(path) <= MAX_BYTES:
                with open(path, encoding="utf-8") as file:
                    return list(_iterate_nodes(json.load(file)))
        except INVALID_SET_ERRORS:
            return []
    return []


def _iterate_nodes(document: Mapping[str, Any]) -> Iterator[Node]:
    if "consolidated_metadata" in document:
        # Zarr v3, consolidated by zarr-python
        for path, node in document["consolidated_metadata"]["metadata"].items():
            is_array = node["node_type"] == "array"
            yield Node(path, tuple(node.get("dimension_names") or ()) if is_array else None)
        return
    # Zarr v2 or kerchunk: metadata, and in kerchunk also chunks, by key; values may be JSON text
    keys: Mapping[str, Any] = document.get("metadata") or document.get("refs") or document
    for key in keys:
        path, _, last = key.rpartition("/")
        if last == ".zgroup":
            yield Node(path)
        elif last == ".zarray":
            attributes = keys.get(f"{path}/.zattrs", {})
            parsed = json.loads(attributes) if isinstance(attributes, str) else attributes
            yield Node(path, tuple(parsed.get("_ARRAY_DIMENSIONS", ())))


# ---------------------------------------------------------------------- parameter types


class UrlType(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A path or url, which shells complete as a path."""

    name = "url"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete files."""
        return [CompletionItem(incomplete, type="file")]


class _ParsedType(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A value that `parse` makes from text. A ValueError of `parse` is the message to the user."""

    def parse(self, text: str) -> Any:
        """Return the value of a text."""
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of an option."""
        # click also passes defaults, which may be values already
        try:
            return self.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{error}", param, ctx)


class AccessType(_ParsedType):
    """Access options: a JSON object, or one option as ``key=value``."""

    name = "json or key=value"

    def parse(self, text: str) -> dict[str, Any]:
        """Return the options as a dictionary."""
        if text.lstrip().startswith("{"):
            try:
                return dict(json.loads(text))
            except json.JSONDecodeError as error:
                raise ValueError(f"{text!r} is not valid JSON: {error}") from error
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise ValueError(f"{text!r} is neither a JSON object nor key=value")
        try:
            return {key: json.loads(value)}
        except json.JSONDecodeError:
            return {key: value}


class RenamingType(_ParsedType):
    """An old and a new name: ``old=new``."""

    name = "old=new"

    def parse(self, text: str) -> dict[str, str]:
        """Return the new name by the old name."""
        old, _, new = text.partition("=")
        if not old or not new:
            raise ValueError(f"{text!r} is not old=new")
        return {old: new}


class SubchunkType(_ParsedType):
    """The chunk length along a dimension, of one variable or of all variables."""

    name = "[variable:]dim=n"

    def parse(self, text: str) -> tuple[str, str, int]:
        """Return the variable (or ""), the dimension and the length."""
        match = re.fullmatch(r"(?:([^:=]+):)?([^:=]+)=([1-9]\d*)", text)
        if not match:
            raise ValueError(f"{text!r} is neither DIM=N nor VARIABLE:DIM=N")
        return match[1] or "", match[2], int(match[3])


class WindowType(_ParsedType):
    """The length to keep along a dimension: a number of positions, or a duration."""

    name = "dim=length"

    def parse(self, text: str) -> dict[str, int | str]:
        """Return the length by dimension."""
        dim, _, length = text.partition("=")
        if not dim or not length:
            raise ValueError(f"{text!r} is not DIM=LENGTH; write time=48, time=P2D or time=36h")
        return {dim: int(length) if length.isdecimal() else length}


class AgeType(_ParsedType):
    """A duration: a number with a unit."""

    name = "age"
    UNITS = ("weeks", "days", "hours", "minutes", "seconds")

    def parse(self, text: str) -> timedelta:
        """Return the duration of a text such as ``30d`` or ``12 hours``."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text)
        units = [unit for unit in self.UNITS if match and unit.startswith(match[2])]
        if not match or not units:
            raise ValueError(f"{text!r} is not an age; write 30d, 12h or 90minutes")
        return timedelta(**{units[0]: float(match[1])})


class SampleType(_ParsedType):
    """A sample size: a number, a fraction below 1, or ``all``."""

    name = "number|fraction|all"

    def parse(self, text: str) -> int | float:
        """Return a number as an integer, a fraction as a float, and ``all`` as 1.0."""
        for kind in (int, float):
            with suppress(ValueError):
                return 1.0 if text == "all" else kind(text)
        raise ValueError(f"{text!r} is not a number, a fraction (0.01) or 'all'")


class CoordinateSourceType(_ParsedType):
    """Source of a coordinate: ``NAME[:FORMAT]=PATTERN`` or ``NAME[:FORMAT]@ATTRIBUTE``."""

    name = "name=pattern"

    def parse(self, text: str) -> tuple[str, str | None, str, str]:
        """Return the name, the format, "=" or "@", and the pattern or attribute."""
        match = re.fullmatch(r"([^:=@]+)(?::([^=@]+))?([=@])(.+)", text)
        if not match:
            raise ValueError(f"{text!r} is neither NAME=PATTERN nor NAME@ATTRIBUTE")
        return match[1], match[2], match[3], match[4]
