"""``virtualds drop-sources``: remove source files from a reference set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import click

from virtualds_cli.command import command
from virtualds_cli.inputs import files, list_files
from virtualds_cli.names import Name
from virtualds_cli.options import given, select_given
from virtualds_cli.output import format_facts, report
from virtualds_cli.parameter_types import Url

DROPPING = ("format", "conflict", "allow", "storage_options")
"""The options of `virtualds.drop_sources`."""


@command(
    "drop-sources",
    examples=(("Remove one file", "virtualds drop-sources refs.zarr data/2001-07.nc"),),
)
@click.argument("target", metavar="SET", type=Url())
@files
@click.option(
    "--dim", type=Name("dimension"), help="Dimension along which the sources are concatenated."
)
@given(*DROPPING)
def drop_sources(
    target: str, urls: Sequence[str], files_from: IO[str] | None, dim: str | None, **options: Any
) -> None:
    """Remove source files from a reference set.

    The command removes everything that SET refers to in the files of URLS. Give the urls as SET
    stores them. The files need not exist any more, but patterns match only existing files.
    """
    import virtualds
    from virtualds.quantities import format_count

    found = list_files(urls, files_from, options["storage_options"])
    virtualds.drop_sources(target, found, dim=dim, **select_given(options, DROPPING))
    report(
        {"target": target, "dropped": found},
        format_facts({target: f"{format_count(len(found), 'file')} removed"}),
    )
