"""Which files are meant on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

import click

from virtualds_cli.options import Decorator, Function, Url


def files(function: Function) -> Function:
    """Give a command the urls of files: arguments, and lists of them."""
    listed: Decorator = click.option(
        "-f",
        "--files-from",
        type=click.File(encoding="utf-8", errors="surrogateescape"),
        help="File with one url per line, used literally, without globbing; - is standard input.",
    )
    return click.argument("urls", nargs=-1, type=Url())(listed(function))


def files_meant(
    urls: Sequence[str], files_from: IO[str] | None, options: Mapping[str, Any] | None
) -> list[str]:
    """Return the files of patterns and of a list, in the order in which they are given.

    Raises
    ------
    click.UsageError
        No file was named.
    FileNotFoundError
        A pattern has no file.
    """
    from virtualds.stores.glob import find_matching

    found = find_matching(urls, options)
    if files_from is not None:
        found += [name for line in files_from if (name := line.rstrip("\r\n"))]
    if not found:
        raise click.UsageError("no input file; give urls, or a list of urls with --files-from")
    return found
