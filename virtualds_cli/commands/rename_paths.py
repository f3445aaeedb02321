"""``virtualds rename-paths``: give the sources of a set other urls."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import given, select_given
from virtualds_cli.output import format_facts, report
from virtualds_cli.parameter_types import Url


@command(
    "rename-paths",
    examples=(
        ("The archive has moved", "virtualds rename-paths refs.zarr /old/data s3://bucket/data"),
    ),
)
@click.argument("url", metavar="SET", type=Url())
@click.argument("old", type=Url())
@click.argument("new", type=Url())
@click.option(
    "--sample",
    type=click.IntRange(0),
    help="Number of moved files to look at before the set changes. [default: 20]",
)
@given("conflict", "storage_options")
def rename_paths(url: str, old: str, new: str, **options: Any) -> None:
    """Give the sources of a set other urls: NEW in place of the prefix OLD.

    The references stay as they are. Moved files of a sample must exist, with the size that the set
    notes; else the set does not change.
    """
    import virtualds
    from virtualds.quantities import format_count

    count = virtualds.rename_paths(url, {old: new}, **select_given(options, options))
    report(
        {"target": url, "renamed": count},
        format_facts({url: f"{format_count(count, 'file')} moved to {new}"}),
    )
