"""``virtualds demo``: show the main steps on a small archive."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from virtualds_cli.command import command
from virtualds_cli.output import is_json, report, say


@command("demo", examples=(("Run the demo in ./virtualds-demo", "virtualds demo"),))
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

    if not is_json():
        run_demo(folder, say=say)
        return
    picture = run_demo(folder, say=partial(click.echo, err=True))
    report({"folder": str(picture.parent), "picture": str(picture)})
