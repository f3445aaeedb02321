"""``--html``: the report of a command as a web page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click


def _check_folder(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    """Refuse a file in a folder that does not exist before the work begins."""
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
