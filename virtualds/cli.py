"""The command line: ``virtualds``, one function for each command."""

from __future__ import annotations

from pathlib import Path

import click

from virtualds.demo import run_demo
from virtualds.errors import VirtualdsError


class _Commands(click.Group):
    """A group whose commands fail with one readable message and exit code 1, not a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except VirtualdsError as exc:
            notes = getattr(exc, "__notes__", [])
            raise click.ClickException("\n".join([str(exc), *notes])) from exc


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="virtualds")
def main() -> None:
    """Many netCDF and HDF5 files as one xarray dataset, without copying them."""


@main.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("virtualds-demo"),
    show_default=True,
    help="Where to put the archive, the references and the picture.",
)
def demo(folder: Path) -> None:
    """Make a small archive, scan it, read it back, compare and draw it."""
    run_demo(folder, say=click.echo)
