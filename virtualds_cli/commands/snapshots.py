"""``virtualds snapshots``: list the snapshots of a set."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.option_types import Url
from virtualds_cli.options import given, select_given
from virtualds_cli.output import format_table, report, to_records


@command(
    "snapshots",
    examples=(
        ("List the snapshots of a set", "virtualds snapshots refs.zarr"),
        ("Show one snapshot", "virtualds info refs.zarr --snapshot ID"),
    ),
)
@click.argument("url", metavar="SET", type=Url())
@given("storage_options")
def snapshots(url: str, **options: Any) -> None:
    """List the snapshots of a set, the newest last."""
    import virtualds

    rows = to_records(virtualds.snapshots(url, **select_given(options, options)))
    report(
        {"snapshots": rows}, format_table(("snapshot", "time (UTC)"), [[*r.values()] for r in rows])
    )
