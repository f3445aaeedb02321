"""``virtualds convert``: write a set or a file in another format."""

from __future__ import annotations

import time
from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import CHOICES, Url, given, select_given
from virtualds_cli.output import format_facts, report

CONVERTING = (
    "format",
    "mode",
    "drop_variables",
    "allow",
    "storage_options",
    "target_options",
    *CHOICES,
)
"""The options of `virtualds.convert`."""


@command(
    "convert",
    examples=(
        ("Convert kerchunk JSON to Zarr v3", "virtualds convert refs.json refs.zarr"),
        ("Convert all groups of one file", "virtualds convert granule.h5 granule.parquet"),
        (
            "Cut uncompressed chunks, and hold small ones in the set",
            "virtualds convert refs.json days.json --subchunk time=1 --inline-threshold 500",
        ),
    ),
)
@click.argument("source", type=Url())
@click.argument("target", type=Url())
@given(*CONVERTING)
def convert(source: str, target: str, **options: Any) -> None:
    """Convert a set or a source file to another format.

    The command converts all groups of SOURCE and reads no chunk data, except small chunks with
    --inline-threshold. If the target format cannot
    hold a variable, the error names the variable, and nothing is written.
    """
    import virtualds
    from virtualds.datasets.write import prepare_write

    begun = time.perf_counter()
    chosen = select_given(options, CONVERTING)
    checked = {name: chosen[name] for name in ("format", "mode", *CHOICES) if name in chosen}
    form = prepare_write(target, storage_options=options["target_options"], **checked).format.name
    virtualds.convert(source, target, **chosen)
    seconds = time.perf_counter() - begun
    report(
        {"source": source, "target": target, "format": form, "seconds": seconds},
        format_facts({target: f"{form}, {seconds:.1f} s"}),
    )
