"""The input files of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

import click

from virtualds_cli.options import Decorator, Function
from virtualds_cli.parameter_types import Url


def files(function: Function) -> Function:
    """Add the arguments for files: urls, and a list of urls."""
    listed: Decorator = click.option(
        "-f",
        "--files-from",
        type=click.File(encoding="utf-8", errors="surrogateescape"),
        help="File with one url per line, used literally, without globbing; - is standard input.",
    )
    return click.argument("urls", nargs=-1, type=Url())(listed(function))


def list_files(
    urls: Sequence[str], files_from: IO[str] | None, options: Mapping[str, Any] | None
) -> list[str]:
    """Return the files of patterns and of a list, in the given order.

    Raises
    ------
    click.UsageError
        No file was given.
    FileNotFoundError
        A pattern matches no file.
    """
    from virtualds.stores.listing import find_matching

    found = find_matching(urls, options)
    if files_from is not None:
        found += [name for line in files_from if (name := line.rstrip("\r\n"))]
    if not found:
        raise click.UsageError("no input file; give urls, or a list of urls with --files-from")
    return found
