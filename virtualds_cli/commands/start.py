"""Commands for new users: ``demo`` and ``completion``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from virtualds_cli.command import command
from virtualds_cli.output import is_json, print_json, print_report, print_text


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


# ---------------------------------------------------------------------- completion

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
        raise click.UsageError(f"this version of click knows no {shell}; update click")
    script = completion_class(ctx.find_root().command, {}, "virtualds", VARIABLE).source()
    if is_json():
        print_json({"shell": shell, "script": script})
    else:
        # print_report would wrap long lines
        print_text(script)
