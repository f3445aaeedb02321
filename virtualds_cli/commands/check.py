"""Commands that show or check sets and files: ``info``, ``catalog``, ``verify``, ``diagnose``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import (
    MFDATASET_OPTIONS,
    READ_OPTIONS,
    add_file_arguments,
    add_options,
    list_paths,
    select_options,
    to_python_arguments,
)
from virtualds_cli.output import HTML_OPTION, exit_unless, print_report, write_html_report
from virtualds_cli.parameter_types import SampleType, UrlType

if TYPE_CHECKING:
    from virtualds.checks import Description


@command(
    "info",
    examples=(
        ("Show the variables and sources of a set", "virtualds info refs.parquet"),
        ("Count the references", "virtualds info refs.zarr --json | jq .references"),
        ("Show a source file", "virtualds info data/2001.nc"),
        ("Make a web page of it, with pictures", "virtualds info refs.zarr --html set.html"),
    ),
)
@click.argument("url", metavar="SET", type=UrlType())
@add_options("group", "loadable_variables", "snapshot", *READ_OPTIONS)
@HTML_OPTION
def info(url: str, html: Path | None, **options: Any) -> None:
    """Show the contents of a reference set.

    The command prints the dataset of SET, or of a source file, as xarray shows it, its sources and
    its snapshots. It does not read references, so large sets take no longer. It reads the values
    of coordinates, unless you give --loadable-variables ''. With --html it also reads references,
    up to two million, to draw where the chunks lie.
    """
    from virtualds.importing import importing

    with importing:
        from virtualds.checks import describe

    description = describe(url, **select_options(options, options))
    write_html_report(html, partial(_make_page, description))
    tree = description.tree
    dataset = tree if tree.children else tree.to_dataset()
    print_report(description.to_dict(), f"{dataset!r}\n\n", description)


def _make_page(description: Description) -> str:
    """Return an HTML page with the description, pictures of the chunks, and the dataset."""
    from virtualds.accessors.display import draw_strips
    from virtualds.checks import load_references
    from virtualds.errors import without_secrets
    from virtualds.pictures import Section, draw
    from virtualds.pictures.html import Markup, to_page

    tree = load_references(description)
    dataset = tree if tree.children else tree.to_dataset()
    groups = (node.to_dataset(inherit=True) for node in tree.subtree)
    strips = [strip for group in groups for strip in draw_strips(group, group.virtual.arrays)]
    html = to_page(
        description.url,
        draw(description),
        *strips,
        Markup(dataset.virtual._repr_html_()),
        draw(Section("As xarray shows it", [Markup(dataset._repr_html_())], is_open=False)),
    )
    return without_secrets(html)


# ---------------------------------------------------------------------- catalog

CATALOG_OPTIONS = ("tree", "newest", "on_error", *READ_OPTIONS)
"""The options of `virtualds.catalog`."""


@command(
    "catalog",
    examples=(
        ("List the groups of a set", "virtualds catalog refs.zarr"),
        ("List the sets of a folder", "virtualds catalog sets/"),
        (
            "List files, with columns for parts of their paths",
            "virtualds catalog 'CMIP6/{model}/{experiment}/*.nc'",
        ),
        (
            "Write a tree of models for intake-esm",
            "virtualds catalog cmip.zarr --tree '/{model}/{variable}' --esm catalog.json",
        ),
        ("Write a STAC collection", "virtualds catalog sets/ --stac stac --license CC-BY-4.0"),
    ),
)
@add_file_arguments
@click.option(
    "--esm", type=UrlType(), metavar="FILE.json", help="Write a catalogue for intake-esm."
)
@click.option(
    "--csv", is_flag=True, default=None, help="Write the table of --esm as a CSV file beside it."
)
@click.option(
    "--stac",
    type=UrlType(),
    metavar="FOLDER",
    help="Write a STAC collection, with an item per group.",
)
@click.option("--description", help="Description of the written catalogue.")
@click.option("--license", help="SPDX identifier of the license in STAC. [default: other]")
@HTML_OPTION
@click.option(
    "--tree",
    metavar="PATH",
    help="Pattern of paths of groups, such as '/{model}/{variable}': its names are columns, too.",
)
@add_options("newest")
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip", "collect"]),
    help="What to do about a set or file that cannot be opened: stop (raise), or leave it out with "
    "a warning (skip) or with an entry in the report (collect). [default: raise]",
)
@add_options(*READ_OPTIONS, "target_options")
def catalog(
    urls: Sequence[str],
    files_from: IO[str] | None,
    esm: str | None,
    stac: str | None,
    html: Path | None,
    **options: Any,
) -> None:
    """List what sets and files hold, group by group.

    URLS are sets, files, folders with sets, or patterns, whose names in braces become columns.
    The command prints variables, sizes, extents of coordinates, numbers and bytes of source files,
    and versions. It reads only metadata and coordinates.
    """
    import virtualds

    for name, target, required in (
        ("csv", esm, "--esm"),
        ("license", stac, "--stac"),
        ("description", esm or stac, "--esm or --stac"),
    ):
        if options[name] is not None and target is None:
            raise click.UsageError(f"--{name} applies only with {required}; give that, too")
    paths = list_paths(urls, files_from, options["storage_options"])
    listing = virtualds.catalog(paths, **select_options(options, CATALOG_OPTIONS))
    write_arguments = {"storage_options": options["target_options"]}
    write_arguments |= select_options(options, ("description",))
    if esm is not None:
        listing.to_esm(esm, **write_arguments, **select_options(options, ("csv",)))
    if stac is not None:
        listing.to_stac(stac, **write_arguments, **select_options(options, ("license",)))
    for target in (esm, stac):
        if target is not None:
            click.echo(f"written: {target}", err=True)
    write_html_report(html, listing.to_html)
    print_report(listing.to_dict(), listing)


# ---------------------------------------------------------------------- verify

DATATREE_OPTIONS = ("group", "drop_variables", "snapshot", *READ_OPTIONS)
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
@click.argument("url", metavar="SET", type=UrlType())
@click.option(
    "--against",
    type=click.Choice(["fingerprint", "range", "native"]),
    help="What to check: size, time and etag of every file (fingerprint); also that references "
    "lie within the files (range); also that chunks equal what the native library of their format "
    "reads (native). [default: fingerprint]",
)
@click.option(
    "--sample",
    type=SampleType(),
    help="Number of chunks to read, a fraction of them (0.01), or all. [default: 100]",
)
@click.option("--seed", type=int, help="Random seed of the sample. [default: 0]")
@HTML_OPTION
@add_options("progress", *DATATREE_OPTIONS)
def verify(url: str, html: Path | None, **options: Any) -> None:
    """Check that a reference set is still valid.

    The command lists source files that are missing or changed, and chunks that cannot be read. The
    exit code is 1 if it finds any, or if a check was not possible. With --against native it is also
    1 if there was no chunk to compare.
    """
    import virtualds

    open_tree = partial(
        virtualds.open_virtual_datatree,
        url,
        on_error="keep",
        **select_options(options, DATATREE_OPTIONS),
    )
    try:
        tree = open_tree()
    except virtualds.ReadError:
        # a coordinate cannot be read: verify reports it if it is not loaded
        tree = open_tree(loadable_variables=[])
    names = ("sample", "against", "seed", "progress")
    result = tree.virtual.verify(**select_options(options, names))
    write_html_report(html, result.to_html)
    print_report(result.to_dict(), result)
    exit_unless(result.ok)


# ---------------------------------------------------------------------- diagnose

DIAGNOSE_OPTIONS = tuple(name for name in MFDATASET_OPTIONS if name != "attrs_file")
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
@add_file_arguments
@click.option(
    "--sample",
    type=click.IntRange(1),
    help="Number of files to check, evenly spread. By default all.",
)
@HTML_OPTION
@add_options(*DIAGNOSE_OPTIONS)
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

    paths = list_paths(urls, files_from, options["storage_options"])
    arguments = to_python_arguments(options, DIAGNOSE_OPTIONS)
    diagnosis = virtualds.diagnose(paths, sample=sample, **arguments)
    write_html_report(html, diagnosis.to_html)
    print_report(diagnosis.to_dict(), diagnosis)
    exit_unless(not diagnosis.blocks)
