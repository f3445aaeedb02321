"""``virtualds diagnose``: what keeps files from combining."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import click

from virtualds_cli.command import command
from virtualds_cli.inputs import files, files_meant
from virtualds_cli.options import MERGING, ONE_FILE, given, said
from virtualds_cli.output import end, report

DIAGNOSING = ("sort", "overlap", *MERGING, *ONE_FILE)
"""The options of `virtualds.open_virtual_mfdataset` that make a difference."""


@command(
    "diagnose",
    examples=(
        ("What changed in an archive over the years", "virtualds diagnose 'data/*.nc'"),
        (
            "The same of an archive of a million files, by a sample",
            "virtualds diagnose -f list.txt --sample 500 --concat-dim time",
        ),
    ),
)
@files
@click.option(
    "--sample",
    type=click.IntRange(1),
    help="How many files to look at, evenly spread. Else all of them.",
)
@click.option("--concat-dim", help="Dimension to join along. Else it is guessed.")
@given(*DIAGNOSING)
def diagnose(
    urls: Sequence[str],
    files_from: IO[str] | None,
    sample: int | None,
    concat_dim: str | None,
    **options: Any,
) -> None:
    """Say in what files differ, and whether they combine.

    Only the structure of the files of URLS is read. The exit code is 1 if something keeps them
    from combining.
    """
    import virtualds

    found = files_meant(urls, files_from, options["storage_options"])
    diagnosis = virtualds.diagnose(
        found, sample=sample, concat_dim=concat_dim, **said(options, DIAGNOSING)
    )
    report(diagnosis.to_dict(), str(diagnosis))
    end(not diagnosis.blocks)
