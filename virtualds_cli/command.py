"""The class of all commands: help with sections and examples, ``--json``, ``-v``, ``--debug``.

``-v`` and ``-vv`` print the log of the library to standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from virtualds_cli.options import SECTIONS, Function

VERBOSE = "virtualds.verbose"
"""Key of ``click.Context.meta``: the number of ``-v`` options."""


def make_verbose_option() -> click.Option:
    """Return the option ``-v``, which is stored in the context and not passed to the command."""
    return click.Option(
        ["-v", "--verbose"],
        count=True,
        expose_value=False,
        callback=_print_log,
        help="Also print how each file was read, and how long that took; -vv also prints requests.",
    )


def is_verbose() -> bool:
    """Return whether the user has set ``-v``."""
    return bool(click.get_current_context().meta.get(VERBOSE))


def _print_log(ctx: click.Context, param: click.Parameter, value: int) -> None:
    """Print the log of the library until the program ends."""
    # the group and its command both have the option
    previous = ctx.meta.get(VERBOSE, 0)
    if not value:
        return
    # imported here, because help and completion do not need it
    import logging

    ctx.meta[VERBOSE] = previous + value
    logger = logging.getLogger("virtualds")
    level = logger.level
    logger.setLevel(logging.INFO if previous + value == 1 else logging.DEBUG)
    ctx.call_on_close(lambda: logger.setLevel(level))
    if not previous:

        class LogHandler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                # click.echo looks up standard error each time: a progress bar may replace it
                seconds = record.relativeCreated / 1000
                click.echo(f"{seconds:8.3f} {record.getMessage()}", err=True)

        handler = LogHandler()
        logger.addHandler(handler)
        ctx.call_on_close(lambda: logger.removeHandler(handler))


# ---------------------------------------------------------------------- command

DEBUG = "virtualds.debug"
"""Key of ``click.Context.meta``: show the traceback of an error."""
JSON = "virtualds.json"
"""Key of ``click.Context.meta``: print the report as JSON."""

Examples = Sequence[tuple[str, str]]
"""Pairs of a purpose and the command line for it."""


class Command(click.Command):
    """A command whose help shows options in sections, and ends with examples.

    Parameters
    ----------
    examples : sequence of pairs of str
        Pairs of a purpose and the command line for it.
    """

    def __init__(self, *args: Any, examples: Examples, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params.append(_make_flag("--json", JSON, "Print the report, or the error, as JSON."))
        self.params.append(make_verbose_option())
        self.params.append(_make_flag("--debug", DEBUG, "Show the traceback of an error."))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section."""
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
        """Write the examples without wrapping their lines."""
        with formatter.section("Examples"):
            indent = " " * formatter.current_indent
            lines = (f"{indent}{purpose}:\n{indent}  $ {line}\n" for purpose, line in self.examples)
            formatter.write("\n".join(lines))


def command(name: str, *, examples: Examples) -> Callable[[Function], Command]:
    """Return a decorator that makes a function a command, with its docstring as the help."""
    return click.command(name, cls=Command, examples=examples)


def _make_flag(name: str, key: str, text: str) -> click.Option:
    """Return a flag that is stored in the context and not passed to the command."""

    def store(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        ctx.meta[key] = value or ctx.meta.get(key, False)

    return click.Option([name], is_flag=True, expose_value=False, callback=store, help=text)
