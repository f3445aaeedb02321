"""``virtualds upgrade``: a reference set of an earlier version as this one writes it."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import Url, given, said
from virtualds_cli.output import facts, report


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

    changed = virtualds.upgrade(url, **said(options, options))
    told = "upgraded" if changed else "already up to date, not changed"
    report({"target": url, "upgraded": changed}, facts({url: told}))
