"""What is printed: reports for people or for machines, and errors.

Reports go to standard output, all else to standard error.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from virtualds_cli.command import JSON

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

FAILED = 1
"""Exit code of errors, and of those who found that something is not in order."""
NO_READER = 141
"""Exit code of those whose reader has gone away: what shells say of a closed pipe."""
UNBOUND = 100_000
"""Columns of what is no terminal: nothing has to fit on a line."""


def for_machines() -> bool:
    """Say whether JSON is asked for."""
    return bool(click.get_current_context().meta.get(JSON))


def report(document: Mapping[str, Any], *shown: RenderableType) -> None:
    """Print what a command has to say: a JSON document, or what is shown to people."""
    if for_machines():
        say(json.dumps(_strict(document), indent=2, default=str, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(
        highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else UNBOUND
    )
    with console.capture() as captured:
        for part in shown:
            console.print(part, soft_wrap=isinstance(part, str))
    # tables are padded to their full width
    say("\n".join(line.rstrip() for line in captured.get().splitlines()))


def end(is_well: bool) -> None:
    """End the program, by an exit code that says whether what was looked at is in order."""
    if not is_well:
        raise click.exceptions.Exit(FAILED)


def say(text: str) -> None:
    """Print a line of a report."""
    with _while_read():
        click.echo(text)


def facts(rows: Mapping[str, str]) -> RenderableType:
    """Return names and what is to be said of them, below each other."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def listing(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> RenderableType:
    """Return rows below the names of their columns."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row))
    return table


def table(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON has them; times are in the form of ISO 8601."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", date_format="iso"))
    return rows


def size(nbytes: int) -> str:
    """Return a number of bytes as people read it."""
    from rich.filesize import decimal

    return decimal(nbytes)


def number(count: int, thing: str) -> str:
    """Return so many things.

    Examples
    --------
    >>> number(1, "file"), number(12000, "file")
    ('1 file', '12,000 files')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def tell_error(error: BaseException) -> None:
    """Print an error with its notes on standard error, and for machines on standard output."""
    notes = [str(note) for note in getattr(error, "__notes__", [])]
    text = str(error) or type(error).__name__
    if for_machines():
        kind = type(error).__name__
        report({"error": {"type": kind, "message": text, "notes": notes}})
    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    click.echo("\n".join([text, *(f"  {note}" for note in notes)]), err=True)


@contextmanager
def warnings_told() -> Iterator[None]:
    """Print warnings without the line of code that they come from."""
    show: Callable[..., None] = _tell_warning
    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _tell_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    click.secho("warning: ", fg="yellow", bold=True, nl=False, err=True)
    click.echo(str(message), err=True)


@contextmanager
def _while_read() -> Iterator[None]:
    """End the program quietly if nobody reads what it prints."""
    try:
        yield
    except BrokenPipeError:
        # what is flushed at the end has no reader either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(NO_READER) from None


def _strict(value: Any) -> Any:
    """Return a value as JSON has it, which knows no infinities: they become their names."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
