"""``virtualds verify``: check that a reference set is still valid."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.html_page import HTML, write_page
from virtualds_cli.options import READING, given, select_given
from virtualds_cli.output import exit_by, report
from virtualds_cli.parameter_types import Part, Url

OPENING = ("group", "drop_variables", "snapshot", *READING)
"""The options of `virtualds.open_virtual_datatree`."""


@command(
    "verify",
    examples=(
        (
            "Check that no file has changed since the scan",
            "virtualds verify refs.zarr",
        ),
        (
            "Compare 1000 chunks with netCDF4 or h5py",
            "virtualds verify refs.zarr --against native --sample 1000",
        ),
    ),
)
@click.argument("url", metavar="SET", type=Url())
@click.option(
    "--against",
    type=click.Choice(["fingerprint", "range", "native"]),
    help="What to check: size, time and etag of every file (fingerprint); also that references "
    "lie within the files (range); also that chunks equal what the native library of their format "
    "reads (native). [default: fingerprint]",
)
@click.option(
    "--sample",
    type=Part(),
    help="Number of chunks to read, a fraction of them (0.01), or all. [default: 100]",
)
@click.option("--seed", type=int, help="Random seed of the sample. [default: 0]")
@HTML
@given("progress", *OPENING)
def verify(url: str, html: Path | None, **options: Any) -> None:
    """Check that a reference set is still valid.

    The command lists source files that are missing or changed, and chunks that cannot be read. The
    exit code is 1 if it finds any, or if a check was not possible. With --against native it is also
    1 if there was no chunk to compare.
    """
    import virtualds

    opened = partial(virtualds.open_virtual_datatree, url, on_error="keep")
    opening = select_given(options, OPENING)
    try:
        tree = opened(**opening)
    except virtualds.ReadError:
        # values of coordinates may be unreadable, too
        tree = opened(loadable_variables=[], **opening)
    found = tree.virtual.verify(**select_given(options, ("sample", "against", "seed", "progress")))
    write_page(html, found.to_html)
    report(found.to_dict(), str(found))
    exit_by(found.ok)
