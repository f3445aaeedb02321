"""``virtualds diagnose``: show how files differ, and whether they combine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click

from virtualds_cli.building import make_keywords
from virtualds_cli.command import command
from virtualds_cli.html_page import HTML, write_page
from virtualds_cli.inputs import files, list_files
from virtualds_cli.options import MANY_FILES, given
from virtualds_cli.output import exit_by, report

DIAGNOSING = tuple(name for name in MANY_FILES if name != "attrs_file")
"""The options of `virtualds.open_virtual_mfdataset` that change the diagnosis."""


@command(
    "diagnose",
    examples=(
        ("Show how the files of an archive differ", "virtualds diagnose 'data/*.nc'"),
        (
            "Make a web page of it, with pictures",
            "virtualds diagnose 'data/*.nc' --html report.html",
        ),
        (
            "Check a sample of a large archive",
            "virtualds diagnose -f list.txt --sample 500 --concat-dim time",
        ),
        (
            "Check files whose date is only in their names",
            r"virtualds diagnose 'sst_*.nc' --concat-dim time --coordinates "
            r"'time:%Y%m%d=_(\d{8})'",
        ),
    ),
)
@files
@click.option(
    "--sample",
    type=click.IntRange(1),
    help="Number of files to check, evenly spread. By default all.",
)
@HTML
@given(*DIAGNOSING)
def diagnose(
    urls: Sequence[str],
    files_from: IO[str] | None,
    sample: int | None,
    html: Path | None,
    **options: Any,
) -> None:
    """Show how files differ, and whether they combine.

    The command reads only the structure of the files, not their data. It takes the options of
    scan. Without --concat-dim it finds the dimension to concatenate along. The exit code is 1 if
    the files do not combine.
    """
    import virtualds

    found = list_files(urls, files_from, options["storage_options"])
    diagnosis = virtualds.diagnose(found, sample=sample, **make_keywords(options, DIAGNOSING))
    write_page(html, diagnosis.to_html)
    report(diagnosis.to_dict(), str(diagnosis))
    exit_by(not diagnosis.blocks)
