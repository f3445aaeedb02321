"""What an interrupted build (Ctrl-C) says: what is left, and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from virtualds.stores.retry import INTERRUPTED


@contextmanager
def explain_interrupt(describe: Callable[[], str]) -> Iterator[None]:
    """Add a note to an interrupt that leaves the block; ``describe`` makes it then."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        INTERRUPTED.set()
        interrupt.add_note(describe())
        raise


def describe_build(cache: object, target: object) -> str:
    """Say what an interrupted build leaves, and how to go on."""
    left = "no set was written" if target is None else f"{target} is as it was"
    if cache is None:
        return (
            f"interrupted: {left}; run it again. With cache= a folder, the next run does not open "
            f"again what this one has opened"
        )
    return f"interrupted: {left}; run it again to go on with the files that are not in the cache"
