"""Workers that open files: this thread, threads, processes, an executor, or a dask cluster.

Each takes a job and the files, and yields outcomes in any order. Closing the iterator, or an
interrupt, ends the work.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import threading
import time
import tokenize
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import current_process, get_all_start_methods, get_context
from multiprocessing.connection import Connection
from multiprocessing.spawn import get_preparation_data
from types import FrameType
from typing import Any, TypeVar

from virtualds.combine.batch_job import BatchJob
from virtualds.combine.open_file import (
    MOST,
    NumberedFile,
    Outcome,
    list_unopened,
)
from virtualds.combine.ordering import Files
from virtualds.options import get_options
from virtualds.reading.threads import in_turn

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


def check_script(number: int) -> None:
    """Refuse to start processes at the top level of a script that they would run again.

    Scripts that use other conditions than ``if __name__ == "__main__":`` are accepted.

    Parameters
    ----------
    number : int
        Number of processes to start.

    Raises
    ------
    RuntimeError
        This process is just starting, and runs the script of its parent; or every process would run
        the script.
    """
    script = _find_imported_script()
    frame = None if script is None else _find_top_frame(script)
    if script is not None and frame is not None and _is_run_again(script, frame.f_lineno):
        raise RuntimeError(
            f"{script}, line {frame.f_lineno}: {number} more processes are to be started, and each "
            f"would run this line again, since it imports the script; move the line below "
            f"`if __name__ == '__main__':`, or pass parallel=1, which starts none"
        )


def _find_imported_script() -> str | None:
    """Return the script that processes import, if there is one; packages are not imported."""
    # raises in a process that is just starting
    data = get_preparation_data("virtualds")
    if data.get("init_main_from_name", "__main__").endswith("__main__"):
        return data.get("init_main_from_path")
    return getattr(sys.modules["__main__"], "__file__", None)


def _find_top_frame(script: str) -> FrameType | None:
    """Return the frame of the running script, if this is called from its top level."""
    variables = vars(sys.modules["__main__"])
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        # lines typed after a script share its variables
        is_there = frame.f_globals is variables and code.co_name == "<module>"
        if is_there and os.path.abspath(code.co_filename) == os.path.abspath(script):
            return frame
        frame = frame.f_back
    return None


def _is_run_again(script: str, line: int) -> bool:
    """Say whether importing a script runs a line; no also means unknown."""
    try:
        with tokenize.open(script) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return False  # it is not text, or has changed since
    guards = [node for node in tree.body if isinstance(node, ast.If) and _is_guard(node.test)]
    if any(node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0) for node in guards):
        return False
    known = [node.test for node in guards]
    # other conditions may exclude this line
    return not any(_is_compared_with_name(node) and node not in known for node in ast.walk(tree))


def _is_guard(test: ast.expr) -> bool:
    """Say whether a condition is true only in a script that is run, not imported."""
    if not isinstance(test, ast.Compare) or not _is_compared_with_name(test):
        return False
    sides = (test.left, *test.comparators)
    values = [side.value for side in sides if isinstance(side, ast.Constant)]
    return values == ["__main__"] and isinstance(test.ops[0], ast.Eq)


def _is_compared_with_name(node: ast.AST) -> bool:
    """Say whether something is compared with the name of the module."""
    sides = (node.left, *node.comparators) if isinstance(node, ast.Compare) else ()
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)


PIECES_PER_THREAD = 8
"""Fewest pieces for each thread of the cluster."""


def find_client(parallel: Any) -> Any:
    """Return the given client, or the current one for ``"dask"``; None for anything else.

    Raises
    ------
    ImportError
        distributed is not installed.
    ValueError
        There is no current client, or it is asynchronous.
    """
    client = (
        _find_current_client() if isinstance(parallel, str) and parallel == "dask" else parallel
    )
    # a client exists only if its library is imported
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        return None
    if client.asynchronous:
        raise ValueError(f"parallel={client}: an asynchronous client; give one that waits")
    return client


def _find_current_client() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise ImportError(
            "parallel='dask' takes the library distributed; pip install distributed"
        ) from error
    try:
        return distributed.get_client()
    except ValueError as error:
        raise ValueError(
            "parallel='dask': there is no client of dask here; make one with "
            "`from distributed import Client; client = Client()`, or give an address to it"
        ) from error


def _pieces(
    client: Any, job: BatchJob, items: Sequence[NumberedFile]
) -> list[Sequence[NumberedFile]]:
    """Return files in pieces of the size that the job allows, few enough to use all threads."""
    threads = sum(client.nthreads().values()) or 1
    size = max(job.smallest, min(job.largest, len(items) // (threads * PIECES_PER_THREAD)))
    return [items[start : start + size] for start in range(0, len(items), size)]


@dataclass(frozen=True)
class _Together:
    """The outcomes of some files.

    Dask takes lists apart, and would send what outcomes share with each of them.
    """

    outcomes: list[Outcome[Any]]


def _worked(job: BatchJob, items: Sequence[NumberedFile]) -> _Together:
    return _Together(job(items))


def open_on_cluster(
    client: Any, job: BatchJob, items: Sequence[NumberedFile]
) -> Generator[Outcome[Any], None, None]:
    """Open files on the workers of a cluster, and yield the outcomes as they come."""
    from distributed import as_completed

    # the files may have changed since an equal task opened them
    futures = client.map(
        partial(_worked, job), _pieces(client, job, items), pure=False, key="virtualds-open"
    )
    waiting = dict.fromkeys(futures)
    del futures
    try:
        for future in as_completed(list(waiting)):  # type: ignore[no-untyped-call]
            outcomes = future.result().outcomes
            del waiting[future]
            # the workers can forget results that were fetched
            future.release()
            yield from outcomes
    finally:
        client.cancel(list(waiting))


Outcomes = Generator[Outcome[Any], None, None]
Workers = Callable[[BatchJob, Sequence[NumberedFile]], Outcomes]
"""Take a job and numbered files, and yield the outcomes."""
UnderWay = dict[Future[list[Outcome[Any]]], Sequence[NumberedFile]]
"""Work that an executor has not finished."""

LAST_PIECES = 4
"""Fewest pieces of the remaining files for each worker."""
PIECES_AHEAD = 4
"""Pieces that run or wait for each worker."""
NEXT_PIECES = 2
"""Pieces that a process of ours has: the running one, and the next."""
QUICK, GROWTH = 0.1, 4
"""Seconds below which a piece did not take long, and how many times as many files the next has."""
UNKNOWN_WORKERS = 64
"""Assumed number of workers of an executor, because executors do not give it."""


def choose_workers(parallel: Any, files: Files) -> Workers:
    """Return the function that opens the files.

    Parameters
    ----------
    parallel : None, int, Executor, "dask" or distributed.Client
    files : Files

    Raises
    ------
    ValueError
        ``parallel`` has an unknown value, or there is no current dask client.
    ImportError
        A required library is not installed.
    """
    if isinstance(parallel, int) and not isinstance(parallel, bool):
        if parallel < 1:
            raise ValueError(f"parallel={parallel}: it takes at least one worker")
        return _choose_number(min(parallel, len(files.flat)), files)
    if parallel is None:
        most = get_options().max_requests if files.are_remote else 1
        return _choose_number(min(most, len(files.flat)), files)
    if isinstance(parallel, Executor):
        return partial(open_in_executor, parallel)
    if (client := find_client(parallel)) is not None:
        return partial(open_on_cluster, client)
    raise ValueError(
        f"parallel={parallel!r}: give a number of workers, a concurrent.futures.Executor, 'dask', "
        f"or a distributed.Client"
    )


def _choose_number(number: int, files: Files) -> Workers:
    if number == 1:
        return open_one_by_one
    return partial(open_in_threads if files.are_remote else open_in_processes, number)


def open_one_by_one(job: BatchJob, items: Sequence[NumberedFile]) -> Outcomes:
    """Open files in this thread."""
    try:
        for batch in _split_batches(job, items):
            found, opened = job.open_together(batch)
            yield from found
            rest = list_unopened(batch, found)
            each = (job.prepare(item, opened.get(item[0]) or job.open_file(item)) for item in rest)
            yield from job.gather(each, rest)
    finally:
        job.finish()


def open_in_threads(number: int, job: BatchJob, items: Sequence[NumberedFile]) -> Outcomes:
    """Open files in threads, and prepare them in this one.

    Functions of the user may not be safe in threads.
    """
    pool = ThreadPoolExecutor(number, thread_name_prefix="virtualds-open")
    rest = list[NumberedFile]()
    try:
        for batch in _split_batches(job, items):
            found, opened = job.open_together(batch)
            yield from found
            ready = [item for item in batch if item[0] in opened]
            each = (job.prepare(item, opened.pop(item[0])) for item in ready)
            yield from job.gather(each, ready)
            done = {number for number, _ in ready}
            rest += [item for item in list_unopened(batch, found) if item[0] not in done]
        ordered = in_turn(pool, job.open_file, rest, ahead=PIECES_AHEAD * number)
        prepared = (job.prepare(item, found.result()) for item, found in ordered)
        yield from job.gather(prepared, rest)
    finally:
        # ending early does not wait for servers
        pool.shutdown(wait=False, cancel_futures=True)
        job.finish()


def _split_batches(
    job: BatchJob, items: Sequence[NumberedFile]
) -> Iterator[Sequence[NumberedFile]]:
    """Yield batches of files, the first as large as the job wants it."""
    start, size = 0, min(job.first, MOST)
    while start < len(items):
        yield items[start : start + size]
        start, size = start + size, min(size * GROWTH, MOST)


def open_in_processes(number: int, job: BatchJob, items: Sequence[NumberedFile]) -> Outcomes:
    """Open files in processes of this machine, since HDF5 serves one thread at a time.

    This process works too, and begins before the others have started.
    """
    size = partial(_count_piece, job, number)
    others = number - 1
    with start_processes(others) as (pool, can_start):
        work = partial(run_until_ended, job)
        yield from _yield_completed(
            pool, work, items, size, NEXT_PIECES * others, {}, here=job, can_start=can_start
        )


def open_in_executor(pool: Executor, job: BatchJob, items: Sequence[NumberedFile]) -> Outcomes:
    """Open files in an executor of the user."""
    size = partial(_count_piece, job, UNKNOWN_WORKERS)
    under_way: UnderWay = {}
    try:
        yield from _yield_completed(
            pool, job, items, size, PIECES_AHEAD * UNKNOWN_WORKERS, under_way
        )
    finally:
        for future in under_way:
            future.cancel()


def _yield_completed(
    pool: Executor,
    work: Callable[[Sequence[NumberedFile]], list[Outcome[Any]]],
    items: Sequence[NumberedFile],
    size: Callable[[int], int],
    ahead: int,
    under_way: UnderWay,
    here: BatchJob | None = None,
    can_start: Callable[[], bool] = lambda: True,
) -> Outcomes:
    """Yield outcomes as pieces of work are done; a limited number of pieces run.

    Instead of waiting, this process does a piece ``here``; as long as other processes cannot start
    yet, one that does not take long.
    """
    begin, count = 0, len(items)
    most = here.smallest if here else 0
    while True:
        while can_start() and len(under_way) < ahead and begin < count:
            piece = items[begin : begin + size(count - begin)]
            under_way[pool.submit(work, piece)] = piece
            begin += len(piece)
        if not under_way and here is None:
            return
        done = wait(under_way, 0 if here else None, FIRST_COMPLETED).done
        if here and not done:
            wanted = size(count - begin)
            own = items[begin : begin + (wanted if can_start() else min(most, wanted))]
            begin += len(own)
            here, started = here if own else None, time.monotonic()
            outcomes = here(own) if here else []
            most *= GROWTH if time.monotonic() - started < QUICK else 1
            yield from outcomes
        for future in done:
            yield from _take_result(future, under_way)
            del under_way[future]


def _count_piece(job: BatchJob, workers: int, left: int) -> int:
    """Return the number of files of the next piece: few at the end, so that all end together."""
    return max(job.smallest, min(job.largest, left // (workers * LAST_PIECES)))


def _take_result(future: Future[list[Outcome[Any]]], under_way: UnderWay) -> list[Outcome[Any]]:
    try:
        return future.result()
    except BrokenProcessPool as error:
        files = [str(file) for piece in under_way.values() for _, file in piece]
        error.add_note(
            f"a process died that opened one of {len(files)} files, {files[0]} to {files[-1]}; if "
            f"none ever lived, call this below `if __name__ == '__main__':`, for they import the "
            f"script that starts them; if memory ran out, use fewer; parallel=1 uses none"
        )
        raise
