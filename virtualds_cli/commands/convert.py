"""``virtualds convert``: write a set or a file in another format."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import CHOICES, READING, given, select_given
from virtualds_cli.output import (
    format_facts,
    report,
    to_records,
)
from virtualds_cli.parameter_types import Url

SOURCE = ("drop_variables", *READING)
"""How the source is opened."""
CONVERTING = ("format", "mode", *SOURCE, "target_options", "progress", *CHOICES)
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
        (
            "Show which chunks kerchunk cannot hold as they are",
            "virtualds convert refs.zarr refs.json --dry-run",
        ),
    ),
)
@click.argument("source", type=Url())
@click.argument("target", type=Url())
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write nothing; show per variable which chunks would be rewritten, and why.",
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    help="What to do about a variable that cannot be read: stop, or leave it out with a warning. "
    "[default: raise]",
)
@given(*CONVERTING)
def convert(source: str, target: str, dry_run: bool, **options: Any) -> None:
    """Convert a set or a source file to another format.

    The command converts all groups of SOURCE and reads no chunk data, except small chunks with
    --inline-threshold. If the target format cannot hold a variable, the error names the variable,
    and nothing is written. With --on-unsupported rewrite, chunks that the format cannot hold are
    encoded anew; an interrupted command, started again, goes on where it stopped.
    """
    import virtualds
    from virtualds.datasets.write import prepare_write

    begun = time.perf_counter()
    chosen = select_given(options, ("on_error", *CONVERTING))
    checked = {name: chosen[name] for name in ("format", "mode", *CHOICES) if name in chosen}
    if dry_run:
        checked |= {"mode": "w"}
    form = prepare_write(target, storage_options=options["target_options"], **checked).format
    if dry_run:
        of_format = ("main_encoding", *form.choices)
        show_cost(source, target, form.name, chosen, of_format)
        return
    virtualds.convert(source, target, **chosen)
    seconds = time.perf_counter() - begun
    report(
        {"source": source, "target": target, "format": form.name, "seconds": seconds},
        format_facts({target: f"{form.name}, {seconds:.1f} s"}),
    )


def show_cost(
    source: str, target: str, form: str, chosen: Mapping[str, Any], of_format: Iterable[str]
) -> None:
    """Print what would be rewritten, with the options of a format that are given."""
    from virtualds.datasets.convert import estimate_conversion

    found = estimate_conversion(
        source, form, **select_given(chosen, ("on_error", *SOURCE, *of_format))
    )
    total = int(found["bytes"].sum())
    document = {"source": source, "target": target, "format": form, "bytes": total}
    report(
        document | {"variables": to_records(found)},
        str(found),
        format_facts({target: f"{form}; nothing has been written"}),
    )
