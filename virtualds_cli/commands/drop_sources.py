"""``virtualds drop-sources``: a reference set without some of its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import click

from virtualds_cli.command import command
from virtualds_cli.inputs import files, files_meant
from virtualds_cli.options import Url, given, said
from virtualds_cli.output import facts, number, report

DROPPING = ("format", "conflict", "allow", "storage_options")
"""The options of `virtualds.drop_sources`."""


@command(
    "drop-sources",
    examples=(
        ("A file that turned out wrong", "virtualds drop-sources refs.zarr data/2001-07.nc"),
    ),
)
@click.argument("target", metavar="SET", type=Url())
@files
@click.option("--dim", help="The dimension along which sources follow each other.")
@given(*DROPPING)
def drop_sources(
    target: str, urls: Sequence[str], files_from: IO[str] | None, dim: str | None, **options: Any
) -> None:
    """Take files out of a reference set.

    What comes from the files of URLS leaves SET. Give them as the set has them; they need not exist
    any more. Patterns are looked up among the files that do.
    """
    import virtualds

    found = files_meant(urls, files_from, options["storage_options"])
    virtualds.drop_sources(target, found, dim=dim, **said(options, DROPPING))
    report(
        {"target": target, "dropped": found}, facts({target: f"{number(len(found), 'file')} less"})
    )
