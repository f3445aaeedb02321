"""``virtualds demo``: the main job of the library, shown on a small archive."""

from __future__ import annotations

from pathlib import Path

import click

from virtualds_cli.command import command
from virtualds_cli.output import say


@command("demo", reports=False, examples=(("In a folder of its own", "virtualds demo"),))
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("virtualds-demo"),
    show_default=True,
    help="Where to put the archive, the references and the picture.",
)
def demo(folder: Path) -> None:
    """Show the main job on a small archive.

    It is made, scanned, read back, compared and drawn.
    """
    from virtualds.demo import run_demo

    run_demo(folder, say=say)
