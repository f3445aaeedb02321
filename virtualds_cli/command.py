"""What every command has: sections and examples in its help, ``--debug``, and ``--json``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from virtualds_cli.options import SECTIONS, Function

DEBUG = "virtualds.debug"
"""Where it is kept that the traceback of an error is wanted."""
JSON = "virtualds.json"
"""Where it is kept that the report is for a machine."""

Examples = Sequence[tuple[str, str]]
"""What somebody wants, and the line that does it."""


class Command(click.Command):
    """A command whose help has its options in sections, and ends with examples.

    Parameters
    ----------
    reports : bool
        Whether it has a report, which can be had as JSON.
    examples : sequence of pairs of str
        What somebody wants, and the line that does it.
    """

    def __init__(self, *given: Any, reports: bool, examples: Examples, **more: Any) -> None:
        super().__init__(*given, **more)
        self.examples = examples
        if reports:
            self.params.append(_flag("--json", JSON, "Print the report as JSON."))
        self.params.append(_flag("--debug", DEBUG, "Show the traceback of an error."))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of a section together."""
        section_of = {name: title for title, names in SECTIONS.items() for name in names}
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                title = section_of.get(param.name or "", "Options")
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, line by line as they are."""
        with formatter.section("Examples"):
            indent = " " * formatter.current_indent
            lines = (f"{indent}{purpose}:\n{indent}  $ {line}\n" for purpose, line in self.examples)
            formatter.write("\n".join(lines))


def command(
    name: str, *, examples: Examples, reports: bool = True
) -> Callable[[Function], Command]:
    """Make a function a command, whose help is the function's docstring."""
    return click.command(name, cls=Command, reports=reports, examples=examples)


def _flag(name: str, key: str, text: str) -> click.Option:
    """Return an option that is for the program to see, not for the command."""

    def keep(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        ctx.meta[key] = value

    return click.Option([name], is_flag=True, expose_value=False, callback=keep, help=text)
