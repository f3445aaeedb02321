"""``virtualds upgrade``: upgrade the metadata of a set."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.option_types import Url
from virtualds_cli.options import given, select_given
from virtualds_cli.output import format_facts, report


@command(
    "upgrade",
    examples=(("Upgrade a set that an earlier version wrote", "virtualds upgrade refs.zarr"),),
)
@click.argument("url", metavar="SET", type=Url())
@given("conflict", "storage_options")
def upgrade(url: str, **options: Any) -> None:
    """Upgrade the metadata of a set to the current version.

    References and values are not rewritten, and earlier snapshots still open. A set that is up to
    date is not changed.
    """
    import virtualds

    changed = virtualds.upgrade(url, **select_given(options, options))
    outcome = "upgraded" if changed else "already up to date, not changed"
    report({"target": url, "upgraded": changed}, format_facts({url: outcome}))
