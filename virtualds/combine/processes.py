"""Processes of this machine that open files, and end with the process that started them.

Each worker holds the reading end of a pipe to its parent. When the parent closes the pipe, or is
killed, the worker has a moment to finish its piece.
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
"""Seconds that a worker has to finish its piece."""
HURRY = 0.2
"""Seconds after which workers learn that their results are not needed."""
# a process forked from this one could inherit locks of its threads that are never released; the
# fork server only has threads of libraries that support forking
METHOD = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
PRELOADED = ["virtualds", "h5py", "dask.array"]
"""Modules that the fork server imports once, which takes a process about a second.

A list of the user, for a server that has not started yet, is replaced.
"""

_IDLE = threading.Event()
_IMPORTED = threading.Event()
"""Set when processes start without delay."""


@contextmanager
def start_processes(number: int) -> Iterator[tuple[ProcessPoolExecutor, Callable[[], bool]]]:
    """Start processes that run until the end of the block; an error ends them at once.

    Also yields a function that says whether a process can start without delay: the first one waits
    for all imports, and giving work to the pool would wait with it.

    Raises
    ------
    RuntimeError
        The processes would run the script that starts them again; or this process is a daemon,
        which may not start processes.
    """
    # starting one raises this too, but late and in another thread
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
        # first the pool must cancel waiting work, which it would otherwise report as lost
        hurry.start()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        hurry.cancel()
        writer.close()
        reader.close()


def _import_all() -> None:
    """Make the fork server, if there is one, import what processes need.

    It has imported everything once it has started a process.
    """
    if METHOD == "forkserver":
        context: Any = get_context(METHOD)
        context.set_forkserver_preload(PRELOADED)
        # errors appear again in the first process that does real work
        with suppress(OSError, EOFError, RuntimeError):
            process = context.Process(target=int, daemon=True)
            process.start()
            process.join()
    _IMPORTED.set()


def run_until_ended(work: Callable[[Given], Result], given: Given) -> Result:
    """Run work in a worker, and let it finish if the parent ends."""
    _IDLE.clear()
    try:
        return work(given)
    finally:
        _IDLE.set()


def _attach(line: Connection) -> None:
    # all processes of a terminal get an interrupt; the parent handles it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _IDLE.set()
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()


def _end_with(line: Connection) -> None:
    try:
        line.recv_bytes()
    except (EOFError, OSError):
        _IDLE.wait(GRACE_SECONDS)
        os._exit(1)
