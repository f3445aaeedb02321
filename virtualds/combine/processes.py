"""Processes of this machine that open files, and end with the one that started them.

However that ends: each holds the reading end of a pipe whose writing end its parent has. When the
parent lets go of it, or is killed, a worker has a moment to finish what it is at.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import current_process, get_all_start_methods, get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from virtualds.combine.script_guard import check_script

Given = TypeVar("Given")
Result = TypeVar("Result")

GRACE_SECONDS = 1.0
"""Seconds that a worker has to finish what it is at."""
HURRY = 0.2
"""Seconds after which workers are told that nobody waits for them."""
# a process forked from this one may inherit locks that its threads hold, and that nobody will ever
# free; the server of forks has no threads but those of libraries that know how to be forked
METHOD = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
PRELOADED = ["virtualds", "h5py", "dask.array"]
"""What the server of forks imports once, where every process would take a second to.

Another list that somebody has set, for a server that has not started yet, is replaced.
"""

_IDLE = threading.Event()
_IMPORTED = threading.Event()
"""Set when processes of this one start without delay."""


@contextmanager
def start_processes(number: int) -> Iterator[tuple[ProcessPoolExecutor, Callable[[], bool]]]:
    """Have some processes until the end of the block; an error ends them at once.

    Besides the pool, there is what says whether a process can start without delay: the first one
    has to wait until all is imported, and whoever gives the pool work would wait with it.

    Raises
    ------
    RuntimeError
        Processes would run the script that starts them once more; or this process is a daemon,
        which may start none.
    """
    # starting one would say so too, but in another thread, and too late
    check_script(number)
    if current_process().daemon:
        raise RuntimeError(
            f"{number} more processes are asked for, and this one is a daemon, which may start "
            f"none: give parallel=1, or an executor"
        )
    context = get_context(METHOD)
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(number, context, initializer=_attach, initargs=(reader,))
    if not _IMPORTED.is_set():
        threading.Thread(target=_import_all, daemon=True).start()
    hurry = threading.Timer(HURRY, writer.close)
    try:
        yield pool, _IMPORTED.is_set
    except BaseException:
        # before, the pool has to have cancelled what waits, or it takes that for lost
        hurry.start()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        hurry.cancel()
        writer.close()
        reader.close()


def _import_all() -> None:
    """Have the server of forks, if there is one, import what processes need.

    It has when it has started a process, one that does nothing.
    """
    if METHOD == "forkserver":
        context: Any = get_context(METHOD)
        context.set_forkserver_preload(PRELOADED)
        # what is wrong is told to whoever starts a process that does something
        with suppress(OSError, EOFError, RuntimeError):
            process = context.Process(target=int, daemon=True)
            process.start()
            process.join()
    _IMPORTED.set()


def run_until_ended(work: Callable[[Given], Result], given: Given) -> Result:
    """Do a piece of work in a worker, which may not end in the middle of it at once."""
    _IDLE.clear()
    try:
        return work(given)
    finally:
        _IDLE.set()


def _attach(line: Connection) -> None:
    # an interrupt goes to all processes of a terminal; the parent decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _IDLE.set()
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()


def _end_with(line: Connection) -> None:
    try:
        line.recv_bytes()
    except (EOFError, OSError):
        _IDLE.wait(GRACE_SECONDS)
        os._exit(1)
