"""``virtualds snapshots``: the earlier states of a reference set."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import Url, given, said
from virtualds_cli.output import listing, report, table


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

    rows = table(virtualds.snapshots(url, **said(options, options)))
    report({"snapshots": rows}, listing(("snapshot", "time (UTC)"), [[*r.values()] for r in rows]))
