"""``virtualds expire-snapshots``: letting go of earlier states of a reference set."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import Url, given, said
from virtualds_cli.output import facts, number, report


@command(
    "expire-snapshots",
    examples=(
        ("Keep only the newest", "virtualds expire-snapshots refs.zarr"),
        (
            "Keep the last ten, and what is younger than a month",
            "virtualds expire-snapshots refs.zarr --keep 10 --older-than 30d",
        ),
    ),
)
@click.argument("url", metavar="SET", type=Url())
@given("keep", "older_than", "conflict", "storage_options")
def expire_snapshots(url: str, **options: Any) -> None:
    """Let go of earlier states of a set.

    What only they need is removed. Whoever still reads one of them gets an error that says so.
    """
    import virtualds

    gone = virtualds.expire_snapshots(url, **said(options, options))
    report({"expired": gone}, facts({url: f"{number(len(gone), 'snapshot')} less"}))
