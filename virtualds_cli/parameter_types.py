"""What options may be besides words and numbers: urls, access options, pieces, ages, origins."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click
from click.shell_completion import CompletionItem


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
        """Return the words that begin as the user has typed."""
        return [CompletionItem(word) for word in self.choices if word.startswith(incomplete)]


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


class Renaming(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """An old name and a new one: ``old=new``."""

    name = "old=new"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, str]:
        """Return the new name by the old one."""
        if not isinstance(value, str):
            return dict(value)
        old, _, new = value.partition("=")
        if not old or not new:
            self.fail(f"{value!r} is not old=new", param, ctx)
        return {old: new}


class Piece(click.ParamType):  # type: ignore[type-arg]  # older click has none
    """Elements of a chunk along a dimension, of all variables or of one."""

    name = "[variable:]dim=n"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str, int]:
        """Return the variable, or "", the dimension, and the number."""
        if not isinstance(value, str):
            return tuple(value)
        found = re.fullmatch(r"(?:([^:=]+):)?([^:=]+)=([1-9]\d*)", value)
        if not found:
            self.fail(f"{value!r} is neither DIM=N nor VARIABLE:DIM=N", param, ctx)
        return found[1] or "", found[2], int(found[3])


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
