"""The program ``virtualds``: its table of commands, errors and exit codes."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from virtualds_cli.command import DEBUG, JSON, Command, command, make_verbose_option
from virtualds_cli.commands.build import append, convert, scan, sync
from virtualds_cli.commands.check import catalog, diagnose, info, verify
from virtualds_cli.commands.keep import (
    clean_up,
    compact,
    drop_sources,
    edit,
    expire_snapshots,
    rename_paths,
    snapshots,
)
from virtualds_cli.commands.serve import serve, view
from virtualds_cli.output import (
    FAILURE,
    is_json,
    print_error,
    print_error_as_json,
    print_json,
    print_plain_warnings,
    print_report,
    print_text,
)

# ---------------------------------------------------------------------- commands for new users


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
        run_demo(folder, print_line=print_text)
        return
    picture = run_demo(folder, print_line=partial(click.echo, err=True))
    print_report({"folder": str(picture.parent), "picture": str(picture)})


SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_VIRTUALDS_COMPLETE"
"""The environment variable of completion scripts, as click derives it from the program's name."""


@command(
    "completion",
    examples=(
        ("Print the script for bash", "virtualds completion bash"),
        ("Print the script for zsh", "virtualds completion zsh"),
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes command lines.

    Shells complete commands, options and their values, files, and names in local sets. Add one
    line to the file that your shell reads when it starts:

    \b
    bash  ~/.bashrc                   eval "$(virtualds completion bash)"
    zsh   ~/.zshrc                    eval "$(virtualds completion zsh)"
    fish  ~/.config/fish/config.fish  virtualds completion fish | source
    """  # noqa: D301 - click looks for the character
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.UsageError(f"this version of click does not support {shell}; update click")
    script = completion_class(ctx.find_root().command, {}, "virtualds", VARIABLE).source()
    if is_json():
        print_json({"shell": shell, "script": script})
    else:
        # print_report would wrap long lines
        print_text(script)


# ---------------------------------------------------------------------- program

COMMANDS: tuple[Command, ...] = (
    scan,
    append,
    sync,
    info,
    catalog,
    verify,
    diagnose,
    convert,
    drop_sources,
    edit,
    snapshots,
    expire_snapshots,
    compact,
    clean_up,
    rename_paths,
    serve,
    view,
    demo,
    completion,
)

INTERRUPTED = 130
"""Exit code of an interrupted program, as in shells."""
EXIT_CODES = {
    0: "success",
    FAILURE: "an error; or verify or diagnose found a problem",
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
    """The group of all commands, which prints their errors and sets exit codes."""

    def make_context(
        self, info_name: str | None, args: list[str], *extra: Any, **kwargs: Any
    ) -> click.Context:
        """Parse the options before the command; print usage errors as JSON if requested."""
        # click consumes the list
        is_json_requested = asks_for_json(args)
        try:
            return super().make_context(info_name, args, *extra, **kwargs)
        except click.UsageError as error:
            if is_json_requested:
                print_error_as_json(error, error.format_message(), error.exit_code)
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command."""
        # store it now: parsing the options of the command may fail
        ctx.meta[JSON] = asks_for_json(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command, print its errors, and set the exit code."""
        with print_plain_warnings():
            try:
                return super().invoke(ctx)
            except (click.exceptions.Exit, click.Abort):
                raise
            except click.ClickException as error:
                if is_json():
                    print_error_as_json(error, error.format_message(), error.exit_code)
                raise
            except KeyboardInterrupt as interrupt:
                if is_json():
                    print_error_as_json(interrupt, "interrupted", INTERRUPTED)
                notes = getattr(interrupt, "__notes__", [])
                click.echo("\n".join(["\ninterrupted", *(f"  {note}" for note in notes)]), err=True)
                ctx.exit(INTERRUPTED)
            except USER_ERRORS as error:
                print_error(error)
                if ctx.meta.get(DEBUG):
                    click.echo("".join(traceback.format_exception(error)), err=True)
                ctx.exit(FAILURE)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of their table."""
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


def asks_for_json(args: Sequence[str]) -> bool:
    """Return whether a command line has the option ``--json``."""
    return "--json" in (args[: args.index("--")] if "--" in args else args)


@click.group(
    cls=Program, commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="virtualds")
@click.option("--json", is_flag=True, expose_value=False, help="Print the report as JSON.")
def main() -> None:
    """Open many netCDF, HDF5, Zarr, TIFF or GRIB files as one xarray dataset, without copying data.

    A reference set stores where each chunk of the dataset lies in the files. scan creates a set,
    append adds files to it, sync keeps it up to date with its files, and in Python
    xr.open_dataset(SET, engine="virtual") opens it.
    """


main.params.append(make_verbose_option())
