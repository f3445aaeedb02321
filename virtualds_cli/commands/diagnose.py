"""``virtualds diagnose``: what keeps files from combining."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import click

from virtualds_cli.building import keywords
from virtualds_cli.command import command
from virtualds_cli.inputs import files, files_meant
from virtualds_cli.options import MANY_FILES, given
from virtualds_cli.output import end, report

DIAGNOSING = tuple(name for name in MANY_FILES if name != "attrs_file")
"""The options of `virtualds.open_virtual_mfdataset` that make a difference."""


@command(
    "diagnose",
    examples=(
        ("What changed in an archive over the years", "virtualds diagnose 'data/*.nc'"),
        (
            "The same of an archive of a million files, by a sample",
            "virtualds diagnose -f list.txt --sample 500 --concat-dim time",
        ),
        (
            "Whether files combine whose day is only in their names",
            r"virtualds diagnose 'sst_*.nc' --concat-dim time --coordinates "
            r"'time:%Y%m%d=_(\d{8})'",
        ),
    ),
)
@files
@click.option(
    "--sample",
    type=click.IntRange(1),
    help="How many files to look at, evenly spread. Else all of them.",
)
@given(*DIAGNOSING)
def diagnose(
    urls: Sequence[str],
    files_from: IO[str] | None,
    sample: int | None,
    **options: Any,
) -> None:
    """Say in what files differ, and whether they combine.

    Only the structure of the files of URLS is read. The options are those of scan; without
    --concat-dim, the dimension to join along is found out. The exit code is 1 if something keeps
    the files from combining.
    """
    import virtualds

    found = files_meant(urls, files_from, options["storage_options"])
    diagnosis = virtualds.diagnose(found, sample=sample, **keywords(options, DIAGNOSING))
    report(diagnosis.to_dict(), str(diagnosis))
    end(not diagnosis.blocks)
