"""Values of options besides words and numbers: urls, access options, pieces, ages, names.

Shells complete names: variables, dimensions and groups of a local reference set. A shell waits for
its user, so only one small JSON document is read, and no library is imported. Anything missing or
unexpected has no names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

MAX_BYTES = 2**22
"""The size in bytes of a document that is read in a twentieth of a second."""
DOCUMENTS = ("zarr.json", ".zmetadata", "")
"""The documents of zarr-v3, kerchunk-parquet and kerchunk-json, within the set."""
ARGUMENTS = ("url", "target", "source")
"""Arguments of commands that may be a set."""
MISSHAPEN_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""Errors that are raised when something other than a set is read."""


class Node(NamedTuple):
    """An array or group of a set: its path, and the dimensions of an array."""

    path: str
    dims: tuple[str, ...] | None = None


class NameType(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A name that shells complete with those in the set on the command line.

    Parameters
    ----------
    kind : {"variable", "dimension", "group"}
    """

    def __init__(self, kind: str = "variable") -> None:
        self.kind = kind

    @property
    def name(self) -> str:  # type: ignore[override]
        """The placeholder for a value in the help."""
        return "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin with what the user has typed."""
        # click keeps arguments apart while the value of the last option is missing
        given = [*(ctx.params.get(argument) for argument in ARGUMENTS), *ctx.args]
        found = (list_names(url, self.kind) for url in given if isinstance(url, str))
        names = next((names for names in found if names), [])
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def list_names(url: str, kind: str) -> list[str]:
    """Return the names of one kind in a local set, each once."""
    nodes = list_nodes(url)
    if kind == "group":
        return [node.path for node in nodes if node.dims is None and node.path]
    if kind == "dimension":
        found = (dim for node in nodes for dim in node.dims or ())
    else:
        found = (node.path.rpartition("/")[2] for node in nodes if node.dims is not None)
    return list(dict.fromkeys(found))


def list_nodes(url: str) -> list[Node]:
    """Return the arrays and groups of a local set; none if there is no such set."""
    for document in DOCUMENTS:
        path = os.path.join(os.path.expanduser(url.removeprefix("file://")), document).rstrip("/")
        try:
            if os.path.isfile(path) and os.path.getsize(path) <= MAX_BYTES:
                with open(path, encoding="utf-8") as file:
                    return list(_read_nodes(json.load(file)))
        except MISSHAPEN_ERRORS:
            return []
    return []


def _read_nodes(found: Mapping[str, Any]) -> Iterator[Node]:
    if "consolidated_metadata" in found:
        # Zarr v3: the form in which zarr-python consolidates metadata
        for path, node in found["consolidated_metadata"]["metadata"].items():
            is_array = node["node_type"] == "array"
            yield Node(path, tuple(node.get("dimension_names") or ()) if is_array else None)
        return
    # Zarr v2, or kerchunk: keys of metadata beside keys of chunks, as documents or their texts
    keys: Mapping[str, Any] = found.get("metadata") or found.get("refs") or found
    for key in keys:
        path, _, last = key.rpartition("/")
        if last == ".zgroup":
            yield Node(path)
        elif last == ".zarray":
            attributes = keys.get(f"{path}/.zattrs", {})
            parsed = json.loads(attributes) if isinstance(attributes, str) else attributes
            yield Node(path, tuple(parsed.get("_ARRAY_DIMENSIONS", ())))


# ---------------------------------------------------------------------- parameter types


class Url(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """A path or a url, which shells complete as a path."""

    name = "url"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete files."""
        return [CompletionItem(incomplete, type="file")]


class OpenChoice(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """Words that shells complete; others may be meant, too.

    Parameters
    ----------
    choices : sequence of str
    """

    name = "text"

    def __init__(self, choices: Sequence[str]) -> None:
        self.choices = choices

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that begin with what the user has typed."""
        return [CompletionItem(word) for word in self.choices if word.startswith(incomplete)]


class _Parsed(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """Text that `parse` turns into a value; its ValueError says what is wrong with the text."""

    def parse(self, text: str) -> Any:
        """Return the value that a text means."""
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of an option; what is not a text is already a value."""
        try:
            return self.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{error}", param, ctx)


class AccessType(_Parsed):
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


class RenamingType(_Parsed):
    """An old name and a new one: ``old=new``."""

    name = "old=new"

    def parse(self, text: str) -> dict[str, str]:
        """Return the new name by the old one."""
        old, _, new = text.partition("=")
        if not old or not new:
            raise ValueError(f"{text!r} is not old=new")
        return {old: new}


class SubchunkType(_Parsed):
    """Elements of a chunk along a dimension, of all variables or of one."""

    name = "[variable:]dim=n"

    def parse(self, text: str) -> tuple[str, str, int]:
        """Return the variable, or "", the dimension, and the number."""
        found = re.fullmatch(r"(?:([^:=]+):)?([^:=]+)=([1-9]\d*)", text)
        if not found:
            raise ValueError(f"{text!r} is neither DIM=N nor VARIABLE:DIM=N")
        return found[1] or "", found[2], int(found[3])


class WindowType(_Parsed):
    """The length to keep along a dimension: a number of positions, or a duration."""

    name = "dim=length"

    def parse(self, text: str) -> dict[str, int | str]:
        """Return the length by the dimension."""
        dim, _, length = text.partition("=")
        if not dim or not length:
            raise ValueError(f"{text!r} is not DIM=LENGTH; write time=48, time=P2D or time=36h")
        return {dim: int(length) if length.isdecimal() else length}


class AgeType(_Parsed):
    """A duration: a number with a unit."""

    name = "age"
    UNITS = ("weeks", "days", "hours", "minutes", "seconds")

    def parse(self, text: str) -> timedelta:
        """Return the duration that ``30d`` or ``12 hours`` means."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text)
        units = [unit for unit in self.UNITS if found and unit.startswith(found[2])]
        if not found or not units:
            raise ValueError(f"{text!r} is not an age; write 30d, 12h or 90minutes")
        return timedelta(**{units[0]: float(found[1])})


class SampleType(_Parsed):
    """A sample size: a number, a fraction below 1, or all."""

    name = "number|fraction|all"

    def parse(self, text: str) -> int | float:
        """Return a number as an integer, and a fraction as a float; 1.0 means all."""
        for kind in (int, float):
            with suppress(ValueError):
                return 1.0 if text == "all" else kind(text)
        raise ValueError(f"{text!r} is not a number, a fraction (0.01) or 'all'")


class CoordinateSourceType(_Parsed):
    """Source of a coordinate: ``NAME[:FORMAT]=PATTERN`` or ``NAME[:FORMAT]@ATTRIBUTE``."""

    name = "name=pattern"

    def parse(self, text: str) -> tuple[str, str | None, str, str]:
        """Return name, format, "=" or "@", and the pattern or attribute."""
        found = re.fullmatch(r"([^:=@]+)(?::([^=@]+))?([=@])(.+)", text)
        if not found:
            raise ValueError(f"{text!r} is neither NAME=PATTERN nor NAME@ATTRIBUTE")
        return found[1], found[2], found[3], found[4]
