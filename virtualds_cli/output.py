"""Printing reports, as text or JSON, and errors.

Reports go to standard output, everything else to standard error.
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
"""Exit code of errors, and of commands that found a problem."""
NO_READER = 141
"""Exit code after a closed pipe, as in shells."""
UNBOUND = 100_000
"""Columns without a terminal: lines are not wrapped."""


def is_json() -> bool:
    """Say whether the report is printed as JSON."""
    return bool(click.get_current_context().meta.get(JSON))


def report(document: Mapping[str, Any], *shown: RenderableType) -> None:
    """Print a report: the document as JSON, or ``shown`` as text."""
    if is_json():
        say(json.dumps(_to_strict_json(document), indent=2, default=str, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(
        highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else UNBOUND
    )
    with console.capture() as captured:
        for part in shown:
            console.print(part, soft_wrap=isinstance(part, str))
    # rich pads tables to their full width
    say("\n".join(line.rstrip() for line in captured.get().splitlines()))


def exit_by(ok: bool) -> None:
    """End the program with exit code 1 if a check failed."""
    if not ok:
        raise click.exceptions.Exit(FAILED)


def say(text: str) -> None:
    """Print a line of a report."""
    with _quiet_if_closed():
        click.echo(text)


def format_facts(rows: Mapping[str, str]) -> RenderableType:
    """Return names and values as a table of two columns."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def format_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> RenderableType:
    """Return a table with a header."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row))
    return table


def to_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON; times are in ISO 8601."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", date_format="iso"))
    return rows


def format_size(nbytes: int) -> str:
    """Return a number of bytes with a unit."""
    from rich.filesize import decimal

    return decimal(nbytes)


def format_count(count: int, thing: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> format_count(1, "file"), format_count(12000, "file")
    ('1 file', '12,000 files')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def print_error(error: BaseException) -> None:
    """Print an error with its notes to standard error, and with ``--json`` also as a report."""
    from virtualds.errors import lay_out

    notes = [str(note) for note in getattr(error, "__notes__", [])]
    text = f"{error}" or type(error).__name__
    if is_json():
        kind = type(error).__name__
        report({"error": {"type": kind, "message": text, "notes": notes}})
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
    click.echo(str(message), err=True)


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
