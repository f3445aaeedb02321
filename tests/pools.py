"""Processes that are forks of one which has imported what takes longest.

One that is spawned takes two seconds of the processor until it can read a file.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from virtualds.combine.workers import METHOD, PRELOADED


def quick_context() -> Any:
    """Return a context of multiprocessing, whose processes come from the server of virtualds."""
    context: Any = get_context(METHOD)
    if METHOD == "forkserver":
        context.set_forkserver_preload(PRELOADED)
    return context


def quick_processes(number: int) -> ProcessPoolExecutor:
    """Return an executor of so many processes, as a user might give."""
    return ProcessPoolExecutor(number, quick_context())
