"""``virtualds edit``: change names and attributes in a reference set."""

from __future__ import annotations

from typing import Any

import click

from virtualds_cli.command import command
from virtualds_cli.options import given, select_given
from virtualds_cli.output import format_facts, report
from virtualds_cli.parameter_types import Url

CHANGES = ("rename", "drop_variables", "drop_groups", "attributes")
EDITING = (*CHANGES, "group", "format", "conflict", "allow", "storage_options")
"""The options of `virtualds.edit`."""


@command(
    "edit",
    examples=(
        (
            "Rename a variable, and give it other units",
            "virtualds edit refs.zarr --rename t=temperature --attributes temperature:units=K",
        ),
        ("Leave out a group", "virtualds edit refs.zarr --drop-groups /model/daily"),
    ),
)
@click.argument("target", metavar="SET", type=Url())
@click.option("--group", help="Group to change. By default the root.")
@given(*(name for name in EDITING if name != "group"))
def edit(target: str, **options: Any) -> None:
    """Change names and attributes in a reference set, and leave out variables and groups.

    No source file is opened. Variables and groups are dropped first, then renamed, and attributes
    are changed last.
    """
    import virtualds

    virtualds.edit(target, **select_given(options, EDITING))
    changed = {name: options[name] for name in CHANGES if options[name]}
    report({"target": target, "changed": changed}, format_facts({target: "changed"}))
