"""Open files in this thread, in threads, in processes, in an executor, or on a dask cluster.

All of these workers run a `BatchJob` on the files, and yield `OpenOutcome` objects in any order.
The work stops if the iterator is closed, and after a keyboard interrupt.

Processes on this machine end with the process that started them: each has the read end of a pipe
from its parent. When the parent closes the pipe or is killed, a worker has `GRACE_SECONDS` to
finish its task.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import threading
import time
import tokenize
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import current_process, get_all_start_methods, get_context
from multiprocessing.connection import Connection
from multiprocessing.spawn import get_preparation_data
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from virtualds.arrays.group import ReadMethod
from virtualds.combine.file_coordinates import Opened
from virtualds.combine.ordering import Files
from virtualds.errors import without_secrets
from virtualds.options import get_options
from virtualds.stores.access_rules import is_valid_url

if TYPE_CHECKING:
    from virtualds.combine.batch_job import BatchJob

Key = TypeVar("Key")

NumberedFile = tuple[int, Any]
"""The index of a file among all files, and the file."""


class EnumeratedFiles(Sequence[NumberedFile]):
    """Files with their numbers, as pairs that are made when they are needed, to save memory."""

    def __init__(self, files: Sequence[Any]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, place: int) -> NumberedFile: ...
    @overload
    def __getitem__(self, place: slice) -> list[NumberedFile]: ...
    def __getitem__(self, place: int | slice) -> NumberedFile | list[NumberedFile]:
        if isinstance(place, slice):
            return [(number, self._files[number]) for number in range(len(self))[place]]
        number = range(len(self))[place]
        return number, self._files[number]


MAX_FILES_TOGETHER = 256
"""Maximum number of files that are opened together."""


class LeftOut(NamedTuple):
    """A file, or a part of one, that was left out, with the class and message of the error."""

    url: str
    error: str
    message: str

    @classmethod
    def of(cls, file: object, error: BaseException) -> LeftOut:
        """Return an entry for a file and its error, with the notes of the error in the message."""
        notes: list[str] = getattr(error, "__notes__", [])
        message = without_secrets("; ".join([f"{error}", *notes]))
        return cls(str(file), type(error).__name__, message)

    def __str__(self) -> str:
        url = without_secrets(self.url)
        url = url if is_valid_url(url) else repr(url)
        return f"{url}: {self.error}: {self.message}"

    def __repr__(self) -> str:
        url = without_secrets(self.url)
        return f"LeftOut(url={url!r}, error={self.error!r}, message={self.message!r})"


class FileCount(NamedTuple):
    """The number of files that have something in common, and the index of the first of them."""

    number: int
    first: int

    def __add__(self, other: FileCount) -> FileCount:  # type: ignore[override]
        return FileCount(self.number + other.number, min(self.first, other.first))


def add_counts(counts: Mapping[Key, FileCount], total: dict[Key, FileCount]) -> None:
    """Add counts by key to a total, in place, since there may be as many keys as files."""
    for key, count in counts.items():
        total[key] = total[key] + count if key in total else count


@dataclass(frozen=True)
class OpenOutcome(Generic[Opened]):
    """The result of opening a file, or several joined files: the opened object, or an error.

    ``numbers`` are the indexes of the files. ``is_fault`` is true if a file could not be opened,
    and false if an error occurred later. ``cached`` is the number of files from the cache, and
    ``references`` is the number of chunks of virtual arrays. ``ways`` counts the files of each read
    method, if the parser reports them, and ``damaged`` are the parts that were left out, by file
    index.
    """

    numbers: Sequence[int]
    opened: Opened | None = None
    error: Exception | None = None
    is_fault: bool = False
    cached: int = 0
    references: int = 0
    ways: Mapping[ReadMethod, FileCount] = field(default_factory=dict)
    damaged: Mapping[int, tuple[LeftOut, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.opened is None) == (self.error is None):
            raise ValueError(f"Outcome {self.numbers}: give either what was opened or an error")

    @property
    def number(self) -> int:
        """The lowest index of the files."""
        return min(self.numbers)


def join_outcomes(outcomes: Sequence[OpenOutcome[Any]], opened: Any) -> OpenOutcome[Any]:
    """Return the common outcome of files that have been joined into the object ``opened``."""
    ways: dict[ReadMethod, FileCount] = {}
    for outcome in outcomes:
        add_counts(outcome.ways, ways)
    return OpenOutcome(
        tuple(number for outcome in outcomes for number in outcome.numbers),
        opened,
        cached=sum(outcome.cached for outcome in outcomes),
        references=sum(outcome.references for outcome in outcomes),
        ways=ways,
        damaged={n: parts for outcome in outcomes for n, parts in outcome.damaged.items()},
    )


def list_unopened(
    items: Sequence[NumberedFile], outcomes: Sequence[OpenOutcome[Any]]
) -> list[NumberedFile]:
    """Return the items without an outcome."""
    done = {number for outcome in outcomes for number in outcome.numbers}
    return [item for item in items if item[0] not in done]


Outcomes = Generator[OpenOutcome[Any], None, None]


Workers = Callable[["BatchJob", Sequence[NumberedFile]], Outcomes]
"""A function that runs a job on numbered files, and yields the outcomes."""
Work = Callable[[Sequence[NumberedFile]], Any]
"""A function that returns the outcomes of numbered files."""

LAST_PIECES = 4
"""Minimum number of tasks per worker into which the remaining files are split."""
PIECES_AHEAD = 4
"""Maximum number of submitted tasks per worker."""
NEXT_PIECES = 2
"""Maximum number of submitted tasks per local process: the running task and the next."""
QUICK_SECONDS, GROWTH = 0.1, 4
"""After a task of less than `QUICK_SECONDS`, the next has `GROWTH` times as many files."""
UNKNOWN_WORKERS = 64
"""The assumed number of workers of an executor, as it does not report the number."""


def choose_workers(parallel: Any, files: Files) -> Workers:
    """Return the workers for the argument ``parallel`` of `open_virtual_mfdataset`."""
    if parallel is None or (isinstance(parallel, int) and not isinstance(parallel, bool)):
        if parallel is not None and parallel < 1:
            raise ValueError(f"parallel={parallel}: give at least one worker")
        most = parallel or (get_options().max_requests if files.are_remote else 1)
        number = min(most, len(files.flat))
        in_threads = number == 1 or files.are_remote
        if in_threads:
            return lambda job, items: job.open_here(number, items)
        return partial(open_in_processes, number)
    if isinstance(parallel, Executor):
        return partial(open_in_executor, parallel, UNKNOWN_WORKERS)
    if (client := find_client(parallel)) is not None:
        return partial(open_on_cluster, client)
    raise ValueError(
        f"parallel={parallel!r}: give a number of workers, a concurrent.futures.Executor, 'dask', "
        f"or a distributed.Client"
    )


def open_in_processes(number: int, job: BatchJob, items: Sequence[NumberedFile]) -> Outcomes:
    """Open files in ``number`` local processes, since the HDF5 library is single-threaded.

    This process opens files as well, and begins before the other processes have started.
    """
    ahead = NEXT_PIECES * (number - 1)
    with start_processes(number - 1) as (pool, can_start):
        work = partial(_run_job, job)
        yield from open_in_executor(pool, number, job, items, work, ahead, True, can_start)


def open_in_executor(
    pool: Executor,
    workers: int,
    job: BatchJob,
    items: Sequence[NumberedFile],
    work: Work | None = None,
    ahead: int = PIECES_AHEAD * UNKNOWN_WORKERS,
    helps: bool = False,
    can_start: Callable[[], bool] = lambda: True,
) -> Outcomes:
    """Open files in an executor, and yield outcomes as its tasks finish.

    The executor runs ``work``, by default the job, with at most ``ahead`` tasks at a time.
    With ``helps``, this process opens files as well, whenever no task has finished. Until
    ``can_start`` returns true, no task is submitted, and this process opens a few files at a time.
    """
    tasks: dict[Future[Any], Sequence[NumberedFile]] = {}
    begin, count = 0, len(items)
    most = job.min_task_files

    def choose_size() -> int:
        """Return the number of files of the next task; fewer at the end, to keep workers busy."""
        return max(
            job.min_task_files, min(job.max_task_files, (count - begin) // (workers * LAST_PIECES))
        )

    try:
        while True:
            while can_start() and len(tasks) < ahead and begin < count:
                piece = items[begin : begin + choose_size()]
                tasks[pool.submit(work or job, piece)] = piece
                begin += len(piece)
            if not tasks and not helps:
                return
            done = wait(tasks, 0 if helps else None, FIRST_COMPLETED).done
            if helps and not done:
                size = choose_size() if can_start() else min(most, choose_size())
                own_items = items[begin : begin + size]
                begin, helps, started = begin + len(own_items), bool(own_items), time.monotonic()
                outcomes = job(own_items) if own_items else []
                most *= GROWTH if time.monotonic() - started < QUICK_SECONDS else 1
                yield from outcomes
            for future in done:
                try:
                    outcomes = future.result()
                except BrokenProcessPool as error:
                    files = [str(file) for piece in tasks.values() for _, file in piece]
                    error.add_note(
                        f"a process died that opened one of {len(files)} files, {files[0]} to "
                        f"{files[-1]}; if no process has started, call this below "
                        f"`if __name__ == '__main__':`, since new processes import the script that "
                        f"starts them; if memory ran out, use fewer; parallel=1 starts none"
                    )
                    raise
                yield from outcomes
                del tasks[future]
    finally:
        for future in tasks:
            future.cancel()


# ---------------------------------------------------------------------- a dask cluster


def find_client(parallel: Any) -> Any:
    """Return the dask client if ``parallel`` is a client or ``"dask"``, otherwise None."""
    if isinstance(parallel, str) and parallel == "dask":
        try:
            from distributed import get_client
        except ImportError as error:
            raise ImportError(
                "parallel='dask' needs the library distributed; pip install distributed"
            ) from error
        try:
            parallel = get_client()
        except ValueError as error:
            raise ValueError(
                "parallel='dask': there is no dask client here; make one with "
                "`from distributed import Client; client = Client()`, or Client(address)"
            ) from error
    # there is no client if distributed was never imported
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(parallel, distributed.Client):
        return None
    if parallel.asynchronous:
        raise ValueError(
            f"parallel={parallel}: this client is asynchronous; give a synchronous one"
        )
    return parallel


class _OutcomeList:
    """The outcomes of a task, as a single object for dask.

    dask would serialize the items of a list separately, and so copy objects that they share.
    """

    def __init__(self, job: BatchJob, items: Sequence[NumberedFile]) -> None:
        self.outcomes = job(items)

    def __iter__(self) -> Iterator[OpenOutcome[Any]]:
        return iter(self.outcomes)


def open_on_cluster(client: Any, job: BatchJob, items: Sequence[NumberedFile]) -> Outcomes:
    """Open files on the workers of a dask cluster."""
    threads = sum(client.nthreads().values()) or 1
    # the cluster may grow; tasks are impure, since the files may change between equal tasks
    ahead = PIECES_AHEAD * max(threads, UNKNOWN_WORKERS)
    pool, work = client.get_executor(pure=False), partial(_OutcomeList, job)
    return open_in_executor(pool, threads, job, items, work, ahead)


# ---------------------------------------------------------------------- processes

GRACE_SECONDS = 1.0
"""Seconds in which a worker process may finish its task after its parent has ended."""
NOTICE_SECONDS = 0.2
"""Seconds after an error until worker processes are told to exit."""
# a forked process could inherit locks that threads of this process hold
METHOD = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
PRELOADED = ["virtualds", "h5py", "dask.array"]
"""Modules that the fork server imports once, which would take each process about a second.

They replace any preload list that the user has set before the server starts.
"""

_IDLE = threading.Event()
"""Set in a worker process while it has no task."""
_IMPORTED = threading.Event()
"""Set once the fork server has imported all modules, so that processes start quickly."""


@contextmanager
def start_processes(number: int) -> Iterator[tuple[ProcessPoolExecutor, Callable[[], bool]]]:
    """Start a pool of processes that end with the block, soon after any error.

    Also yields a function that returns whether tasks can be submitted without delay. The first
    submitted task would block until the fork server has imported all modules.
    """
    # otherwise a similar error would be raised later, in another thread
    check_script(number)
    if current_process().daemon:
        raise RuntimeError(
            f"{number} more processes are needed, and this one is a daemon, which may not start "
            f"any; pass parallel=1, or an executor"
        )
    context = get_context(METHOD)
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(number, context, initializer=_watch_parent, initargs=(reader,))
    if not _IMPORTED.is_set():
        threading.Thread(target=_start_fork_server, daemon=True).start()
    timer = threading.Timer(NOTICE_SECONDS, writer.close)
    try:
        yield pool, _IMPORTED.is_set
    except BaseException:
        # first let the pool cancel pending tasks, or it would report them as lost
        timer.start()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        timer.cancel()
        writer.close()
        reader.close()


def _start_fork_server() -> None:
    """Start the fork server, if there is one, and wait until it has imported all modules.

    Once a process has started, the imports are done.
    """
    if METHOD == "forkserver":
        context: Any = get_context(METHOD)
        context.set_forkserver_preload(PRELOADED)
        # suppress errors, since they occur again when the first task is submitted
        with suppress(OSError, EOFError, RuntimeError):
            process = context.Process(target=int, daemon=True)
            process.start()
            process.join()
    _IMPORTED.set()


def _run_job(job: BatchJob, items: Sequence[NumberedFile]) -> list[OpenOutcome[Any]]:
    """Run the job in a worker process, which is marked as busy."""
    _IDLE.clear()
    try:
        return job(items)
    finally:
        _IDLE.set()


def _watch_parent(pipe: Connection) -> None:
    """Make a worker process exit when its parent closes the pipe."""
    # an interrupt reaches all processes of a terminal, but only the parent handles it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _IDLE.set()
    threading.Thread(target=_exit_with_parent, args=(pipe,), daemon=True).start()


def _exit_with_parent(pipe: Connection) -> None:
    """Wait until the parent closes the pipe, then exit after a running task or `GRACE_SECONDS`."""
    try:
        pipe.recv_bytes()
    except (EOFError, OSError):
        _IDLE.wait(GRACE_SECONDS)
        os._exit(1)


# ---------------------------------------------------------------------- scripts


GUARDS = ("__name__ == '__main__'", "'__main__' == __name__")
"""Conditions that guard code of a script from running when the script is imported."""


def check_script(number: int) -> None:
    """Raise an error if processes are started at the unguarded top level of a script.

    A spawned process imports the script, and would start processes again. Python raises an error in
    that process, which eventually breaks the pool of the parent. Scripts with other conditions on
    ``__name__`` are accepted.
    """
    # this raises an error while the current process is being spawned
    data = get_preparation_data("virtualds")
    script = getattr(sys.modules["__main__"], "__file__", None)
    if data.get("init_main_from_name", "__main__").endswith("__main__"):
        # a package that was run with -m is not imported again
        script = data.get("init_main_from_path")
    frame = None if script is None else _find_top_frame(script)
    if script is not None and frame is not None and _is_run_again(script, frame.f_lineno):
        raise RuntimeError(
            f"{script}, line {frame.f_lineno}: {number} more processes are to be started, and each "
            f"would run this line again, since it imports the script; move the line below "
            f"`if __name__ == '__main__':`, or pass parallel=1, which starts none"
        )


def _find_top_frame(script: str) -> FrameType | None:
    """Return the top-level frame of a script if it is on the call stack, otherwise None."""
    variables = vars(sys.modules["__main__"])
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        # interactive lines after a script have the same variables
        is_there = frame.f_globals is variables and code.co_name == "<module>"
        if is_there and os.path.abspath(code.co_filename) == os.path.abspath(script):
            return frame
        frame = frame.f_back
    return None


def _is_run_again(script: str, line: int) -> bool:
    """Return whether a line runs when the script is imported; False if that is unknown."""
    try:
        with tokenize.open(script) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return False  # it is not Python, or has changed since it was started
    guards = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) in GUARDS
    ]
    if any(node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0) for node in guards):
        return False
    name_checks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and "__name__" in map(ast.unparse, (node.left, *node.comparators))
    ]
    # other conditions may exclude this line
    return all(node in [guard.test for guard in guards] for node in name_checks)
