"""``virtualds demo``: show the main steps on a small archive."""

from __future__ import annotations

from pathlib import Path

import click

from virtualds_cli.command import command
from virtualds_cli.output import say


@command("demo", reports=False, examples=(("Run the demo in ./virtualds-demo", "virtualds demo"),))
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("virtualds-demo"),
    show_default=True,
    help="Folder for the archive, the references and the picture.",
)
def demo(folder: Path) -> None:
    """Show the main steps on a small archive.

    The demo makes an archive, scans it, reads it back, compares the values and draws a picture.
    """
    from virtualds_cli.demo import run_demo

    run_demo(folder, say=say)
