"""Opening files on the workers of a dask cluster."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from virtualds.combine.batch_job import BatchJob
from virtualds.combine.open_file import NumberedFile, Outcome

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
