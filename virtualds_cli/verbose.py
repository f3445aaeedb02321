"""``-v`` and ``-vv``: print on standard error what the library tells of its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import logging

VERBOSE = "virtualds.verbose"
"""Key of ``click.Context.meta``: how often ``-v`` was given."""


def make_option() -> click.Option:
    """Return the option; it is stored in the context and not passed to the command."""
    return click.Option(
        ["-v", "--verbose"],
        count=True,
        expose_value=False,
        callback=_listen,
        help="Also print how each file was read, and in which time; -vv prints requests, too.",
    )


def is_verbose() -> bool:
    """Say whether ``-v`` was given."""
    return bool(click.get_current_context().meta.get(VERBOSE))


def _listen(ctx: click.Context, param: click.Parameter, value: int) -> None:
    """Print what the library tells, until the program ends."""
    before = ctx.meta.get(VERBOSE, 0)
    if not value:
        return
    import logging

    ctx.meta[VERBOSE] = before + value
    logger = logging.getLogger("virtualds")
    level = logger.level
    logger.setLevel(logging.INFO if before + value == 1 else logging.DEBUG)
    ctx.call_on_close(lambda: logger.setLevel(level))
    if not before:
        printer = _make_printer()
        logger.addHandler(printer)
        ctx.call_on_close(lambda: logger.removeHandler(printer))


def _make_printer() -> logging.Handler:
    """Return what prints each line after the seconds since the program started."""
    # help and completion need not wait for it
    import logging

    class Printer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # not a stream that is opened now: a progress bar puts itself below what is printed
            click.echo(f"{record.relativeCreated / 1000:8.3f} {record.getMessage()}", err=True)

    return Printer()
