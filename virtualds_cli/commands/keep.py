"""Commands that change sets in place and maintain them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import add_file_arguments, add_options, list_files, select_options
from virtualds_cli.output import print_report
from virtualds_cli.parameter_types import AgeType, NameType, UrlType

if TYPE_CHECKING:
    import virtualds

DROP_SOURCES_OPTIONS = ("format", "dry_run", "conflict", "allow", "storage_options")
"""The options of `virtualds.drop_sources`."""


@command(
    "drop-sources",
    examples=(
        ("Remove one file", "virtualds drop-sources refs.zarr data/2001-07.nc"),
        ("Show what would go", "virtualds drop-sources refs.zarr data/2001-07.nc --dry-run"),
    ),
)
@click.argument("target", metavar="SET", type=UrlType())
@add_file_arguments
@click.option(
    "--dim", type=NameType("dimension"), help="Dimension along which the sources are concatenated."
)
@add_options(*DROP_SOURCES_OPTIONS)
def drop_sources(
    target: str, urls: Sequence[str], files_from: IO[str] | None, dim: str | None, **options: Any
) -> None:
    """Remove source files from a reference set.

    The command removes everything that SET refers to in the files of URLS. Give the urls as SET
    stores them. The files need not exist any more, but patterns match only existing files.
    """
    import virtualds

    files = list_files(urls, files_from, options["storage_options"])
    arguments = select_options(options, DROP_SOURCES_OPTIONS)
    result = virtualds.drop_sources(target, files, dim=dim, **arguments)
    print_report(result.to_dict(), result)


# ---------------------------------------------------------------------- edit

EDIT_OPTIONS = (
    *("rename", "drop_variables", "drop_groups", "attributes", "group", "format"),
    *("dry_run", "conflict", "allow", "storage_options"),
)
"""The options of `virtualds.edit`."""


@command(
    "edit",
    examples=(
        (
            "Rename a variable, and give it other units",
            "virtualds edit refs.zarr --rename t=temperature --attributes temperature:units=K",
        ),
        ("Leave out a group", "virtualds edit refs.zarr --drop-groups /model/daily"),
        (
            "Show what would go with it",
            "virtualds edit refs.zarr --drop-groups /model/daily --dry-run",
        ),
    ),
)
@click.argument("target", metavar="SET", type=UrlType())
@click.option("--group", help="Group to change. By default the root.")
@add_options(*(name for name in EDIT_OPTIONS if name != "group"))
def edit(target: str, **options: Any) -> None:
    """Change names and attributes in a reference set, and leave out variables and groups.

    No source file is opened. Variables and groups are dropped first, then renamed, and attributes
    are changed last.
    """
    import virtualds

    result = virtualds.edit(target, **select_options(options, EDIT_OPTIONS))
    print_report(result.to_dict(), result)


# ---------------------------------------------------------------------- snapshots


@command(
    "snapshots",
    examples=(
        ("List the snapshots of a set", "virtualds snapshots refs.zarr"),
        ("Show one snapshot", "virtualds info refs.zarr --snapshot ID"),
    ),
)
@click.argument("url", metavar="SET", type=UrlType())
@add_options("storage_options")
def snapshots(url: str, **options: Any) -> None:
    """List the snapshots of a set, the newest last."""
    import virtualds
    from virtualds.json_values import to_records
    from virtualds.pictures import Table

    records = to_records(virtualds.snapshots(url, **select_options(options, options)))
    rows = [[*record.values()] for record in records]
    print_report(
        {"snapshots": records}, Table(("snapshot", "time (UTC)"), rows, max_rows=len(rows))
    )


# ---------------------------------------------------------------------- expire snapshots


@command(
    "expire-snapshots",
    examples=(
        ("Keep only the newest snapshot", "virtualds expire-snapshots refs.zarr"),
        (
            "Keep the last ten snapshots, and all from the last 30 days",
            "virtualds expire-snapshots refs.zarr --keep 10 --older-than 30d",
        ),
        ("List what would go", "virtualds expire-snapshots refs.zarr --dry-run"),
    ),
)
@click.argument("url", metavar="SET", type=UrlType())
@add_options("keep", "older_than", "dry_run", "conflict", "storage_options")
def expire_snapshots(url: str, **options: Any) -> None:
    """Delete old snapshots of a set.

    Data that only these snapshots use are deleted too. A reader that still has one of them open
    gets an error that says so.
    """
    import virtualds

    removal = virtualds.expire_snapshots(url, **select_options(options, options))
    _print_removal(removal, url, bool(options["dry_run"]))


# ---------------------------------------------------------------------- compact


@command(
    "compact",
    examples=(("Join what many appends have left", "virtualds compact refs.parquet"),),
)
@click.argument("url", metavar="SET", type=UrlType())
@add_options("dry_run", "conflict", "storage_options")
def compact(url: str, **options: Any) -> None:
    """Join the small files that many appends have left in a set.

    The references stay as they are. Source files are not opened.
    """
    import virtualds

    has_joined = virtualds.compact(url, **select_options(options, options))
    dry_run = bool(options["dry_run"])
    outcome = "there is nothing to join"
    if has_joined:
        outcome = "small files would be joined" if dry_run else "small files were joined"
    print_report({"target": url, "changed": has_joined, "dry_run": dry_run}, {url: outcome})


# ---------------------------------------------------------------------- clean up


@command(
    "clean-up",
    examples=(
        ("List what killed writers have left", "virtualds clean-up refs.zarr --dry-run"),
        ("Remove it", "virtualds clean-up refs.zarr"),
    ),
)
@click.argument("url", metavar="SET", type=UrlType())
@click.option(
    "--older-than", type=AgeType(), help="Remove only files at least this old. [default: 1d]"
)
@add_options("dry_run", "conflict", "storage_options")
def clean_up(url: str, **options: Any) -> None:
    """Remove the temporary files that killed writers have left in and beside a set."""
    import virtualds

    removal = virtualds.clean_up(url, **select_options(options, options))
    _print_removal(removal, url, bool(options["dry_run"]))


# ---------------------------------------------------------------------- rename paths


@command(
    "rename-paths",
    examples=(
        ("The archive has moved", "virtualds rename-paths refs.zarr /old/data s3://bucket/data"),
    ),
)
@click.argument("url", metavar="SET", type=UrlType())
@click.argument("old", type=UrlType())
@click.argument("new", type=UrlType())
@click.option(
    "--sample",
    type=click.IntRange(0),
    help="Number of moved files to look at before the set changes. [default: 20]",
)
@add_options("dry_run", "conflict", "storage_options")
def rename_paths(url: str, old: str, new: str, **options: Any) -> None:
    """Give the sources of a set other urls: NEW in place of the prefix OLD.

    The references stay as they are. Moved files of a sample must exist, with the size that the set
    records; otherwise the set is not changed.
    """
    import virtualds
    from virtualds.errors import format_count

    count = virtualds.rename_paths(url, {old: new}, **select_options(options, options))
    dry_run = bool(options["dry_run"])
    verb = "would be moved" if dry_run else "moved"
    print_report(
        {"target": url, "renamed": count, "dry_run": dry_run},
        {url: f"{format_count(count, 'file')} {verb} to {new}"},
    )


def _print_removal(removal: virtualds.Removal, url: str, dry_run: bool) -> None:
    """Print the counts of a removal, and for a dry run also all names."""
    from virtualds.errors import format_bytes, format_count

    counts = (
        f"{format_count(len(removal.snapshots), 'snapshot')}, "
        f"{format_count(len(removal.files), 'file')}, {format_bytes(removal.nbytes)}"
    )
    rows = {url: f"{counts} {'would be deleted' if dry_run else 'deleted'}"}
    if dry_run:
        rows |= dict.fromkeys(removal.snapshots, "snapshot") | dict.fromkeys(removal.files, "file")
    document = {
        "expired": removal.snapshots,
        "files": removal.files,
        "bytes": removal.nbytes,
        "dry_run": dry_run,
    }
    print_report(document, rows)
