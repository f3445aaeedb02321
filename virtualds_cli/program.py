"""The program ``virtualds``: its commands, and how it ends."""

from __future__ import annotations

import traceback

import click

from virtualds_cli.command import DEBUG
from virtualds_cli.commands import COMMANDS
from virtualds_cli.output import FAILED, tell_error, warnings_told

INTERRUPTED = 130
"""Exit code of those that are interrupted, as shells have it."""
EXIT_CODES = {
    0: "success",
    FAILED: "an error; or verify or diagnose found a problem",
    2: "invalid command line",
    INTERRUPTED: "interrupted (Ctrl-C)",
}

TOLD = (OSError, ValueError, TypeError, NotImplementedError, ImportError, RuntimeError, MemoryError)
"""What may come of files, of what is asked, and of what is installed: told without a traceback."""


class Program(click.Group):
    """The commands; what goes wrong in one of them is told in one way."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command, and end with the exit code that says how it went."""
        with warnings_told():
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except KeyboardInterrupt:
                click.echo("\ninterrupted", err=True)
                ctx.exit(INTERRUPTED)
            except TOLD as error:
                tell_error(error)
                if ctx.meta.get(DEBUG):
                    click.echo("".join(traceback.format_exception(error)), err=True)
                ctx.exit(FAILED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of their table."""
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what exit codes mean."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


@click.group(
    cls=Program, commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="virtualds")
def main() -> None:
    """Open many netCDF, HDF5, Zarr, TIFF or GRIB files as one xarray dataset, without copying data.

    A reference set stores where each chunk of the dataset lies in the files. scan creates a set,
    append adds files to it, and xr.open_dataset(SET, engine="virtual") opens it in Python.
    """
