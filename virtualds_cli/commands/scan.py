"""``virtualds scan``: combine files into a reference set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import IO, Any

import click

from virtualds_cli.building import DASK, format_summary, open_files, summarise
from virtualds_cli.command import command
from virtualds_cli.inputs import files, list_files
from virtualds_cli.options import CHOICES, MANY_FILES, given, select_given
from virtualds_cli.output import report
from virtualds_cli.parameter_types import Url

WRITING = ("format", "mode", "conflict", *CHOICES)
"""The options of ``ds.virtual.to_manifest``."""


@command(
    "scan",
    examples=(
        (
            "Concatenate the files of a year along time",
            "virtualds scan 'data/2001-*.nc' --concat-dim time -o refs.parquet",
        ),
        (
            "Read the urls from a list, and order the files by their coordinates",
            "find data -name '*.nc' | virtualds scan -f - -o refs.zarr",
        ),
        (
            "Take the date from the file names",
            r"virtualds scan 'sst_*.nc' --concat-dim time --coordinates 'time:%Y%m%d=_(\d{8})' "
            "-o sst.zarr",
        ),
        (
            "Scan files in a public bucket",
            "virtualds scan 's3://bucket/*.nc' --storage-options anon=true -o refs.json",
        ),
    ),
)
@files
@click.option("-o", "--output", required=True, type=Url(), help="Reference set to write.")
@given(*MANY_FILES, *WRITING, "target_options")
@DASK
def scan(
    urls: Sequence[str],
    files_from: IO[str] | None,
    output: str,
    dask: str | None,
    **options: Any,
) -> None:
    """Combine files into a reference set.

    The set stores where each chunk of the combined dataset lies in the files. URLS are paths, urls
    or patterns. Quote a pattern to let the program expand it, also in object stores.

    The suffix of the target chooses the format: .json, .parquet, .zarr or .icechunk. The target is
    checked before any file is opened, and is written completely or not at all.
    """
    from virtualds.datasets.write import prepare_write

    begun = time.perf_counter()
    writing = select_given(options, WRITING)
    access = options["target_options"]
    form = prepare_write(output, storage_options=access, **writing).format.name
    found = list_files(urls, files_from, options["storage_options"])
    if dask is not None and form == "zarr-v3" and not writing.keys() - {"mode"}:
        # the workers write their references, so that no process holds all of them
        dataset = open_files(found, dask, options, to=output, target_options=access, **writing)
    else:
        dataset = open_files(found, dask, options)
        shown = options["progress"]
        dataset.virtual.to_manifest(output, storage_options=access, progress=shown, **writing)
    document = summarise(output, form, dataset, time.perf_counter() - begun)
    report(document, format_summary(document, dataset.virtual.report))
