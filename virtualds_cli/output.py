"""Printing reports, as text or JSON, and errors, in the words of the command line.

Reports go to standard output, everything else to standard error. The library names arguments of
Python, as in ``overlap='first'``. Each option of a command has the name of the argument that it
sets, so that the option can replace it.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from virtualds_cli.command import JSON

if TYPE_CHECKING:
    from virtualds.pictures.blocks import Block


ARGUMENT = re.compile(
    r"""(?<![\w./=&?%-])(?P<name>[a-z][a-z_]*)=(?P<value>'[^']*'|"[^"]*"|\[[^]\[]*\]|-?\d[\d.]*|"""
    r"""True|False|\.\.\.|(?=[\s,;:)]|$))"""
)
"""A Python argument with its value, or without one; not a part of a path or of a query."""
CALL = re.compile(r"\bvirtualds\.(?P<name>[a-z_]+)\((?:[^()]|\([^()]*\))*\)")
"""A call of a function of virtualds."""
OTHER_NAMES = {"append_dim": "dim"}
"""Options whose name differs from the argument that they set."""
METHODS = {"ds.drop_vars": "drop_variables"}
"""Methods of datasets that do what an option does."""


def to_command_line(text: str) -> str:
    """Return a message with options of the command in place of arguments of Python.

    Arguments without an option stay as they are.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return text
    command: Any = context.command
    commands = getattr(context.find_root().command, "commands", {})
    if isinstance(command, click.Group):
        command = commands.get(context.invoked_subcommand, command)
    options = {p.name: p for p in command.params if isinstance(p, click.Option) and p.name}

    def name_command(found: re.Match[str]) -> str:
        name = found["name"].replace("_", "-")
        return f"virtualds {name}" if name in commands else found[0]

    text = CALL.sub(name_command, text)
    text = ARGUMENT.sub(lambda found: _to_option(found, options), text)
    for method, name in METHODS.items():
        if name in options:
            text = text.replace(method, options[name].opts[0])
    return text


def _to_option(found: re.Match[str], options: Mapping[str, click.Option]) -> str:
    option = options.get(found["name"]) or options.get(OTHER_NAMES.get(found["name"], ""))
    if option is None:
        return found[0]
    name, text = option.opts[0], found["value"]
    if text in ("", "..."):
        return f"{name} ..." if text else name
    value = ast.literal_eval(text)
    if isinstance(value, bool):
        names = option.opts if value else option.secondary_opts
        return names[0] if names else found[0]
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{name} {shlex.quote(str(one))}" for one in values)


# ---------------------------------------------------------------------- output

FAILED = 1
"""Exit code of errors, and of commands that found a problem."""
NO_READER = 141
"""Exit code after a closed pipe, as in shells."""


def is_json() -> bool:
    """Return whether the report is printed as JSON."""
    return bool(click.get_current_context().meta.get(JSON))


def report(document: Mapping[str, Any], *shown: Block) -> None:
    """Print a report: the document as JSON, or ``shown`` as text, folded on a terminal."""
    from virtualds.pictures.blocks import UNBOUND, format_text

    if is_json():
        say_json(document)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNBOUND
    say(format_text(shown, width, partial(click.style, bold=True)))


def say_json(document: Mapping[str, Any]) -> None:
    """Print a document as strict JSON."""
    strict = _to_strict_json(document)
    say(json.dumps(strict, indent=2, default=str, ensure_ascii=False, allow_nan=False))


def exit_by(ok: bool) -> None:
    """End the program with exit code 1 if a check failed."""
    if not ok:
        raise click.exceptions.Exit(FAILED)


def say(text: str) -> None:
    """Print a line of a report."""
    with _quiet_if_closed():
        # surrogates for bytes of file names that are not UTF-8 are escaped, as in JSON
        click.echo(text.encode("utf-8", "backslashreplace").decode())


def say_error(error: BaseException, text: str, code: int) -> None:
    """Print an error as the report of a command that ends with an exit code."""
    notes = [to_command_line(str(note)) for note in getattr(error, "__notes__", [])]
    kind = type(error).__name__
    say_json({"error": {"type": kind, "message": text, "notes": notes, "exit_code": code}})


def print_error(error: BaseException) -> None:
    """Print an error with its notes to standard error, and with ``--json`` also as a report."""
    from virtualds.errors import lay_out

    notes = [to_command_line(str(note)) for note in getattr(error, "__notes__", [])]
    text = to_command_line(f"{error}") or type(error).__name__
    if is_json():
        say_error(error, text, FAILED)
    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    click.echo("\n".join([lay_out(text), *(f"  {note}" for note in notes)]), err=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings without a line of source code."""
    show: Callable[..., None] = _print_warning
    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _print_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    click.secho("warning: ", fg="yellow", bold=True, nl=False, err=True)
    click.echo(to_command_line(str(message)), err=True)


@contextmanager
def _quiet_if_closed() -> Iterator[None]:
    """End the program quietly if the pipe is closed."""
    try:
        yield
    except BrokenPipeError:
        # flushing at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(NO_READER) from None


def _to_strict_json(value: Any) -> Any:
    """Return a value for strict JSON: NaN and infinities become their names."""
    if isinstance(value, Mapping):
        return {str(key): _to_strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_strict_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


# ---------------------------------------------------------------------- web pages


def _check_folder(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    """Raise an error for a file in a missing folder before the work begins."""
    if value is None:
        return None
    path = Path(value)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise click.BadParameter(f"{value!r}: give a file in a folder that exists", ctx, param)
    return path


HTML = click.option(
    "--html",
    metavar="FILE",
    callback=_check_folder,
    help="Also write the report to FILE, as a web page with pictures.",
)


def write_page(path: Path | None, make: Callable[[], str]) -> None:
    """Write a page, if a file for it was given.

    Commands do so before they print their report: if it fails, the error is all that they print.
    """
    if path is not None:
        path.write_text(make(), encoding="utf-8")
        click.echo(f"written: {path}", err=True)
