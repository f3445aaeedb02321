"""Print reports, as text or JSON, and errors, with options in place of Python arguments.

Reports go to standard output, everything else to standard error. Messages of the library name
Python arguments, as in ``overlap='first'``. Each option of a command has the name of the argument
that it sets, so that messages can be translated.
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
    from virtualds.pictures import Block


ARGUMENT = re.compile(
    r"""(?<![\w./=&?%-])(?P<name>[a-z][a-z_]*)=(?P<value>'[^']*'|"[^"]*"|\[[^]\[]*\]|-?\d[\d.]*|"""
    r"""True|False|\.\.\.|(?=[\s,;:)]|$))"""
)
"""A Python argument with or without its value, but not part of a path or url query."""
CALL = re.compile(r"\bvirtualds\.(?P<name>[a-z_]+)\((?:[^()]|\([^()]*\))*\)")
"""A call of a function of virtualds."""
OTHER_NAMES = {"append_dim": "dim"}
"""Options whose name differs from the argument that they set."""
METHODS = {"ds.drop_vars": "drop_variables"}
"""Methods of datasets, and the option with the same effect."""


def to_command_line(text: str) -> str:
    """Replace Python arguments in a message by options of the command.

    Arguments without an option remain.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return text
    command: Any = context.command
    commands = getattr(context.find_root().command, "commands", {})
    if isinstance(command, click.Group):
        command = commands.get(context.invoked_subcommand, command)
    options = {p.name: p for p in command.params if isinstance(p, click.Option) and p.name}

    def to_command(call: re.Match[str]) -> str:
        name = call["name"].replace("_", "-")
        return f"virtualds {name}" if name in commands else call[0]

    text = CALL.sub(to_command, text)
    text = ARGUMENT.sub(lambda argument: _to_option(argument, options), text)
    for method, name in METHODS.items():
        if name in options:
            text = text.replace(method, options[name].opts[0])
    return text


def _to_option(argument: re.Match[str], options: Mapping[str, click.Option]) -> str:
    option = options.get(argument["name"]) or options.get(OTHER_NAMES.get(argument["name"], ""))
    if option is None:
        return argument[0]
    name, text = option.opts[0], argument["value"]
    if text in ("", "..."):
        return f"{name} ..." if text else name
    value = ast.literal_eval(text)
    if isinstance(value, bool):
        names = option.opts if value else option.secondary_opts
        return names[0] if names else argument[0]
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{name} {shlex.quote(str(item))}" for item in values)


# ---------------------------------------------------------------------- output

FAILURE = 1
"""Exit code of errors, and of checks that find a problem."""
BROKEN_PIPE = 141
"""Exit code if the reader of a pipe closes it, as in shells."""


def is_json() -> bool:
    """Return whether the report is printed as JSON."""
    return bool(click.get_current_context().meta.get(JSON))


def print_report(document: Mapping[str, Any], *blocks: Block) -> None:
    """Print ``document`` as JSON if the user wants it, else ``blocks``, wrapped on a terminal."""
    from virtualds.pictures import UNLIMITED_WIDTH, format_text

    if is_json():
        print_json(document)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED_WIDTH
    print_text(format_text(blocks, width, partial(click.style, bold=True)))


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document as strict JSON."""
    strict = _to_strict_json(document)
    print_text(json.dumps(strict, indent=2, default=str, ensure_ascii=False, allow_nan=False))


def exit_unless(ok: bool) -> None:
    """End the program with exit code 1 unless a check has passed."""
    if not ok:
        raise click.exceptions.Exit(FAILURE)


def print_text(text: str) -> None:
    """Print text to standard output."""
    with _exit_if_pipe_closed():
        # escape surrogates, which stand for bytes of file names that are not UTF-8
        click.echo(text.encode("utf-8", "backslashreplace").decode())


def print_error_as_json(error: BaseException, text: str, code: int) -> None:
    """Print an error as JSON, with the exit code of the program."""
    name = type(error).__name__
    notes = _format_notes(error)
    print_json({"error": {"type": name, "message": text, "notes": notes, "exit_code": code}})


def print_error(error: BaseException) -> None:
    """Print an error with its notes to standard error, and with ``--json`` also as JSON."""
    from virtualds.errors import format_message

    notes = _format_notes(error)
    text = to_command_line(f"{error}") or type(error).__name__
    if is_json():
        print_error_as_json(error, text, FAILURE)
    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    click.echo("\n".join([format_message(text), *(f"  {note}" for note in notes)]), err=True)


def _format_notes(error: BaseException) -> list[str]:
    return [to_command_line(str(note)) for note in getattr(error, "__notes__", [])]


@contextmanager
def print_plain_warnings() -> Iterator[None]:
    """Print warnings without a line of source code."""
    show: Callable[..., None] = _print_warning
    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _print_warning(message: Warning | str, *args: Any, **kwargs: Any) -> None:
    click.secho("warning: ", fg="yellow", bold=True, nl=False, err=True)
    click.echo(to_command_line(str(message)), err=True)


@contextmanager
def _exit_if_pipe_closed() -> Iterator[None]:
    """End the program without an error message if the pipe is closed."""
    try:
        yield
    except BrokenPipeError:
        # Python flushes standard output at exit, which must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(BROKEN_PIPE) from None


def _to_strict_json(value: Any) -> Any:
    """Return a value for strict JSON, with NaN and infinities as strings."""
    if isinstance(value, Mapping):
        return {str(key): _to_strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_strict_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


# ---------------------------------------------------------------------- HTML reports


def _check_folder(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    """Raise an error at once if the folder of the file does not exist."""
    if value is None:
        return None
    path = Path(value)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise click.BadParameter(f"{value!r}: give a file in a folder that exists", ctx, param)
    return path


HTML_OPTION = click.option(
    "--html",
    metavar="FILE",
    callback=_check_folder,
    help="Also write the report to FILE, as a web page with pictures.",
)


def write_html_report(path: Path | None, make: Callable[[], str]) -> None:
    """Write an HTML report to ``path`` unless it is None.

    Commands call it before they print their report, so that after an error they print no report.
    """
    if path is not None:
        path.write_text(make(), encoding="utf-8")
        click.echo(f"written: {path}", err=True)
