"""``virtualds expire-snapshots``: delete old snapshots of a set."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.option_types import Url
from virtualds_cli.options import given, select_given
from virtualds_cli.output import format_count, format_facts, report


@command(
    "expire-snapshots",
    examples=(
        ("Keep only the newest snapshot", "virtualds expire-snapshots refs.zarr"),
        (
            "Keep the last ten snapshots, and all from the last 30 days",
            "virtualds expire-snapshots refs.zarr --keep 10 --older-than 30d",
        ),
    ),
)
@click.argument("url", metavar="SET", type=Url())
@given("keep", "older_than", "conflict", "storage_options")
def expire_snapshots(url: str, **options: Any) -> None:
    """Delete old snapshots of a set.

    Data that only these snapshots use are deleted too. A reader that still has one of them open
    gets an error that says so.
    """
    import virtualds

    gone = virtualds.expire_snapshots(url, **select_given(options, options))
    report({"expired": gone}, format_facts({url: f"{format_count(len(gone), 'snapshot')} deleted"}))
