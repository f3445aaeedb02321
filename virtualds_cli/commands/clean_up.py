"""``virtualds clean-up``: remove what killed writers have left."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import given, select_given
from virtualds_cli.parameter_types import Age, Url
from virtualds_cli.removal import report_removal


@command(
    "clean-up",
    examples=(
        ("List what killed writers have left", "virtualds clean-up refs.zarr --dry-run"),
        ("Remove it", "virtualds clean-up refs.zarr"),
    ),
)
@click.argument("url", metavar="SET", type=Url())
@click.option("--older-than", type=Age(), help="Remove only files at least this old. [default: 1d]")
@given("dry_run", "conflict", "storage_options")
def clean_up(url: str, **options: Any) -> None:
    """Remove the temporary files that killed writers have left in and beside a set."""
    import virtualds

    removal = virtualds.clean_up(url, **select_given(options, options))
    report_removal(removal, url, bool(options["dry_run"]))
