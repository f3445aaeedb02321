"""Interrupts (Ctrl-C): what they say, and whether threads that wait for servers are to end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import thread as futures
from contextlib import contextmanager

INTERRUPTED = threading.Event()
"""Set when a user interrupts long work: its threads may still wait for servers."""


@contextmanager
def explain_interrupt(describe: Callable[[], str]) -> Iterator[None]:
    """Add a note to an interrupt that leaves the block; ``describe`` makes it then."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        INTERRUPTED.set()
        interrupt.add_note(describe())
        raise


def process_ends() -> bool:
    """Say whether the interpreter is ending and waits for this thread."""
    # Python has no public name for this; where the private one is missing, requests go on
    return bool(getattr(futures, "_shutdown", False))


def is_abandoned() -> bool:
    """Say whether the interpreter is ending since its user has interrupted it.

    Of a program that comes to its end, Python finishes what threads are still to do.
    """
    return INTERRUPTED.is_set() and process_ends()
