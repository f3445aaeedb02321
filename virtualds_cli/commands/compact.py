"""``virtualds compact``: join the small files of a set."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import given, select_given
from virtualds_cli.output import format_facts, report
from virtualds_cli.parameter_types import Url


@command(
    "compact",
    examples=(("Join what many appends have left", "virtualds compact refs.parquet"),),
)
@click.argument("url", metavar="SET", type=Url())
@given("conflict", "storage_options")
def compact(url: str, **options: Any) -> None:
    """Join the small files that many appends have left in a set.

    The references stay as they are. Source files are not opened.
    """
    import virtualds

    joined = virtualds.compact(url, **select_given(options, options))
    said = "small files were joined" if joined else "there was nothing to join"
    report({"target": url, "changed": joined}, format_facts({url: said}))
