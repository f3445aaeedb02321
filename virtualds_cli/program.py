"""The program ``virtualds``: its commands, errors and exit codes."""

from __future__ import annotations

import traceback

import click

from virtualds_cli.command import DEBUG
from virtualds_cli.commands import COMMANDS
from virtualds_cli.output import FAILED, plain_warnings, print_error

INTERRUPTED = 130
"""Exit code of an interrupted program, as in shells."""
EXIT_CODES = {
    0: "success",
    FAILED: "an error; or verify or diagnose found a problem",
    2: "invalid command line",
    INTERRUPTED: "interrupted (Ctrl-C)",
}

USER_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    NotImplementedError,
    ImportError,
    RuntimeError,
    MemoryError,
)
"""Errors that are printed without a traceback: files, arguments, missing packages."""


class Program(click.Group):
    """The group of all commands; it prints their errors in one form."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command, and set the exit code."""
        with plain_warnings():
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except KeyboardInterrupt as error:
                notes = [f"; {note}" for note in getattr(error, "__notes__", ())]
                click.echo(f"\ninterrupted{''.join(notes)}", err=True)
                ctx.exit(INTERRUPTED)
            except USER_ERRORS as error:
                print_error(error)
                if ctx.meta.get(DEBUG):
                    click.echo("".join(traceback.format_exception(error)), err=True)
                ctx.exit(FAILED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of their table."""
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
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
