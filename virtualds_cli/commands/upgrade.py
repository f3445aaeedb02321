"""``virtualds upgrade``: a reference set of an earlier version as this one writes it."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import Url, given, said
from virtualds_cli.output import facts, report


@command(
    "upgrade",
    examples=(("A set that an earlier version has written", "virtualds upgrade refs.zarr"),),
)
@click.argument("url", metavar="SET", type=Url())
@given("conflict", "storage_options")
def upgrade(url: str, **options: Any) -> None:
    """Write the metadata of a set as this version writes them.

    References and values stay where they are, and earlier states can be opened as before. A set
    that needs nothing is left as it is.
    """
    import virtualds

    changed = virtualds.upgrade(url, **said(options, options))
    told = "upgraded" if changed else "needs nothing, and is as it was"
    report({"target": url, "upgraded": changed}, facts({url: told}))
