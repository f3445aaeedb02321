"""Workers that open files: this thread, threads, processes, an executor, or a dask cluster.

Each takes a job and the files, and yields outcomes in any order. Closing the iterator, or an
interrupt, ends the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

from virtualds.combine.batch_job import BatchJob
from virtualds.combine.dask_jobs import find_client, open_on_cluster
from virtualds.combine.files import Files
from virtualds.combine.open_file import (
    MOST,
    NumberedFile,
    Outcome,
    list_unopened,
)
from virtualds.combine.processes import run_until_ended, start_processes
from virtualds.options import get_options
from virtualds.reading.threads import in_turn

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
