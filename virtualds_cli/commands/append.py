"""``virtualds append``: add files to a reference set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import IO, Any

import click

from virtualds_cli.building import DASK, format_summary, open_files, summarise
from virtualds_cli.command import command
from virtualds_cli.inputs import files, list_files
from virtualds_cli.names import Name
from virtualds_cli.options import CHOICES, MANY_FILES, given, select_given
from virtualds_cli.output import report
from virtualds_cli.parameter_types import Url

OPENED = tuple(name for name in MANY_FILES if name not in ("combine", "concat_dim"))
WRITING = (
    *("format", "position", "on_duplicate", "new_variables", "missing_variables", "conflict"),
    *CHOICES,
)
"""The options of ``ds.virtual.to_manifest``."""


@command(
    "append",
    examples=(
        (
            "Add new files, and skip files that are already in the set",
            "virtualds append refs.zarr new/*.nc --dim time --on-duplicate skip",
        ),
        (
            "Insert late files at their position in time",
            "virtualds append refs.zarr late/*.nc --dim time --position coordinate",
        ),
        (
            "Replace files that were processed again",
            "virtualds append refs.zarr data/2001-07.nc --dim time --mode replace-source",
        ),
    ),
)
@click.argument("target", metavar="SET", type=Url())
@files
@click.option(
    "--dim",
    required=True,
    type=Name("dimension"),
    help="Dimension to append and concatenate along.",
)
@click.option(
    "--mode",
    type=click.Choice(["a", "replace-source"]),
    default="a",
    help="Append the files (a), or replace sources by them (replace-source). [default: a]",
)
@given(*OPENED, *WRITING, "target_options")
@DASK
def append(
    target: str,
    urls: Sequence[str],
    files_from: IO[str] | None,
    dim: str,
    mode: str,
    dask: str | None,
    **options: Any,
) -> None:
    """Add files to a reference set.

    The files of SET are not scanned again. If SET does not exist, it is created.
    """
    from virtualds.datasets.write import prepare_write
    from virtualds.datasets.write_modes import write_dataset

    begun = time.perf_counter()
    writing = select_given(options, WRITING) | {"mode": mode, "append_dim": dim}
    if options["allow"] is not None:
        writing["allow"] = options["allow"]
    writing["progress"] = options["progress"]
    destination = prepare_write(target, storage_options=options["target_options"], **writing)
    found = list_files(urls, files_from, options["storage_options"])
    dataset = open_files(found, dask, {**options, "concat_dim": [dim]})
    added = write_dataset(dataset, destination)
    grown = added if mode == "a" else None
    seconds = time.perf_counter() - begun
    document = summarise(target, destination.format.name, dataset, seconds, grown)
    report(document, format_summary(document, dataset.virtual.report))
