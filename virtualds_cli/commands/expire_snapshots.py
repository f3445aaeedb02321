"""``virtualds expire-snapshots``: delete old snapshots of a set."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import given, select_given
from virtualds_cli.parameter_types import Url
from virtualds_cli.removal import report_removal


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
@click.argument("url", metavar="SET", type=Url())
@given("keep", "older_than", "dry_run", "conflict", "storage_options")
def expire_snapshots(url: str, **options: Any) -> None:
    """Delete old snapshots of a set.

    Data that only these snapshots use are deleted too. A reader that still has one of them open
    gets an error that says so.
    """
    import virtualds

    gone = virtualds.expire_snapshots(url, **select_given(options, options))
    report_removal(gone, url, bool(options["dry_run"]))
