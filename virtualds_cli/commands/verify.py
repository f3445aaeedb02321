"""``virtualds verify``: whether a reference set still holds."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import Part, Url, given, said
from virtualds_cli.output import end, report

OPENING = ("group", "drop_variables", "parser", "allow", "snapshot", "storage_options")
"""The options of `virtualds.open_virtual_datatree`."""


@command(
    "verify",
    examples=(
        (
            "Whether all files are what they were when they were scanned",
            "virtualds verify refs.zarr",
        ),
        (
            "Whether a thousand chunks are what netCDF4 or h5py read",
            "virtualds verify refs.zarr --against native --sample 1000",
        ),
    ),
)
@click.argument("url", metavar="SET", type=Url())
@click.option(
    "--against",
    type=click.Choice(["fingerprint", "range", "native"]),
    help="What is looked at: size, time and etag of every file (fingerprint); whether references "
    "lie within the files, too (range); or whether chunks are what the library of their format "
    "reads, too (native). [default: fingerprint]",
)
@click.option(
    "--sample",
    type=Part(),
    help="How many chunks are read, or which part of them (0.01), or all. [default: 100]",
)
@click.option("--seed", type=int, help="Of the numbers that draw the sample. [default: 0]")
@given(*OPENING)
def verify(url: str, **options: Any) -> None:
    """Look whether a reference set still holds.

    It says which files that SET refers to are gone, or changed, and which chunks cannot be had.
    The exit code is 1 if there are any, or if something could not be looked at; with --against
    native also if no chunk lies in a file, so that there was nothing to compare.
    """
    import virtualds

    opened = partial(virtualds.open_virtual_datatree, url, on_error="keep")
    opening = said(options, OPENING)
    try:
        tree = opened(**opening)
    except virtualds.ReadError:
        # the values of coordinates are among what cannot be had
        tree = opened(loadable_variables=[], **opening)
    found = tree.virtual.verify(**said(options, ("sample", "against", "seed")))
    report(found.to_dict(), str(found))
    end(found.ok)
