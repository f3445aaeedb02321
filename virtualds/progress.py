"""Progress of long jobs: a tqdm bar on a terminal or in a notebook, or calls of a function.

The logger ``virtualds`` explains why a job takes long: level INFO is about files and sets, level
DEBUG about requests and cache hits. Callers check `is_logged` before they format a message, and
pass it to `log`, which removes secrets.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from virtualds.errors import public, without_secrets

DELAY = 1.0
"""Seconds before a bar appears by default."""
LARGE_TOTAL = 10_000
"""Totals from which numbers are abbreviated, as in 10.0k."""


@public
@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a long job.

    Parameters
    ----------
    done : int
        Number of units done, for files including failed and cached ones.
    total : int
        Number of units to do.
    seconds : float
        Time since the job began.
    job : str
        The job: ``"opening"`` files; ``"checking"`` files and ``"comparing"`` chunks
        (`verify`); ``"copying"`` bytes (`materialize`); ``"rewriting"`` bytes and ``"writing"``
        references (`convert`, ``to_manifest``).
    unit : {"file", "chunk", "reference", "B"}
        The unit of the numbers; ``"B"`` means bytes.
    failed : int
        Files that could not be opened.
    cached : int
        Files from the cache.
    references : int
        Number of chunks of the files opened so far.
    report : BuildReport, optional
        The report of ``"opening"``, once all files are done.

    Raises
    ------
    ValueError
        ``done`` is larger than ``total``, or smaller than ``failed + cached``.

    Examples
    --------
    >>> now = Progress(done=50, failed=1, cached=9, total=100, references=6000, seconds=2.0)
    >>> now.rate, now.remaining
    (25.0, 2.0)
    """

    done: int
    total: int
    seconds: float
    job: str = "opening"
    unit: str = "file"
    failed: int = 0
    cached: int = 0
    references: int = 0
    report: Any = None

    def __post_init__(self) -> None:
        if not self.failed + self.cached <= self.done <= self.total:
            raise ValueError(f"Progress: expected failed + cached <= done <= total, got {self!r}")

    @property
    def rate(self) -> float:
        """Units done per second."""
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def remaining(self) -> float:
        """Estimated seconds until the end, or infinity if nothing is done yet."""
        return (self.total - self.done) / self.rate if self.rate else float("inf")


ProgressCallback = Callable[[Progress], object]
ProgressOption = bool | ProgressCallback | None
"""The argument ``progress``: True for a bar, False for none, None for a bar on a terminal or in a
notebook, or a function that gets the progress."""
Advance = Callable[[int], None]
"""A thread-safe function that adds a number of finished units."""

_ADVANCE_WRITTEN: ContextVar[Advance | None] = ContextVar("virtualds_written", default=None)


@contextmanager
def report_progress(
    option: ProgressOption, job: str, total: int, unit: str = "file"
) -> Iterator[ProgressCallback]:
    """Yield a function that reports the progress of a job, until the end of the block."""
    if callable(option):
        yield option
    elif total and is_progress_shown(option):
        with _show_bar(job, total, unit, 0.0 if option else DELAY) as update:
            yield update
    else:
        yield lambda _: None


@contextmanager
def count_progress(
    option: ProgressOption, job: str, total: int, unit: str = "file"
) -> Iterator[Advance]:
    """Yield a function that counts finished units of a job and reports the progress.

    Examples
    --------
    >>> def show(now):
    ...     print(f"{now.job}: {now.done} of {now.total} {now.unit}s")
    >>> with count_progress(show, "comparing", 3, "chunk") as advance:
    ...     advance(2)
    ...     advance(1)
    comparing: 2 of 3 chunks
    comparing: 3 of 3 chunks
    """
    lock, start, done = threading.Lock(), time.monotonic(), 0
    with report_progress(option, job, total, unit) as report:

        def advance(count: int) -> None:
            nonlocal done
            with lock:
                # Progress would raise an error if a caller counts too much
                done = min(done + count, total)
                seconds = time.monotonic() - start
                report(Progress(done=done, total=total, seconds=seconds, job=job, unit=unit))

        yield advance
        if done < total:
            # units that needed no work, such as gaps
            advance(total - done)


@contextmanager
def count_written_references(option: ProgressOption, total: int) -> Iterator[None]:
    """Report the progress of writing references, which `count_array_chunks` counts in the block."""
    with count_progress(option, "writing", total, "reference") as advance:
        token = _ADVANCE_WRITTEN.set(advance)
        try:
            yield
        finally:
            _ADVANCE_WRITTEN.reset(token)


@contextmanager
def count_array_chunks(chunks: int) -> Iterator[Advance]:
    """Yield a function that counts chunks of an array whose references are written.

    Each of the ``chunks`` counts once, even if it has references in two tables. At the end of the
    block, the rest is counted: gaps, and chunks that are in the set already.
    """
    remaining, add = chunks, _ADVANCE_WRITTEN.get() or (lambda _: None)

    def advance(count: int) -> None:
        nonlocal remaining
        if count := min(count, remaining):
            remaining -= count
            add(count)

    yield advance
    advance(remaining)


def is_progress_shown(option: ProgressOption) -> bool:
    """Return whether progress is shown, so that it has to be counted."""
    return callable(option) or bool(option) or (option is None and _is_interactive())


def _is_interactive() -> bool:
    # the kernel of a notebook is interactive, although its standard error is not a terminal
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    is_notebook = type(shell).__name__ == "ZMQInteractiveShell"
    return is_notebook or (sys.stderr is not None and sys.stderr.isatty())


@contextmanager
def _show_bar(job: str, total: int, unit: str, delay: float) -> Iterator[ProgressCallback]:
    """Yield a function that updates a progress bar."""
    tqdm, start = _import_tqdm(), time.monotonic()
    # tqdm writes the unit directly after the number
    unit_arguments = {
        "unit": unit if unit == "B" else f" {unit}s",
        "unit_scale": unit == "B" or total >= LARGE_TOTAL,
    }
    with tqdm(total=total, desc=job, delay=delay, smoothing=0.1, **unit_arguments) as bar:

        def update(progress: Progress) -> None:
            bar.set_postfix_str(_format_counts(progress), refresh=False)
            bar.update(progress.done - bar.n)

        yield update
        if time.monotonic() - start >= delay:
            bar.refresh()


def _import_tqdm() -> Any:
    """Return tqdm's notebook widget if ipywidgets is installed, else its line of text."""
    if find_spec("ipywidgets") is None:
        from tqdm.std import tqdm
    else:
        from tqdm.auto import tqdm
    return tqdm


def _format_counts(progress: Progress) -> str:
    counts: tuple[tuple[int, str], ...] = (
        (progress.cached, "cached"),
        (progress.failed, "failed"),
        (progress.references, "references"),
    )
    return ", ".join(f"{count:,} {label}" for count, label in counts if count)


# ---------------------------------------------------------------------- log

LOGGER = logging.getLogger("virtualds")
LOGGER.addHandler(logging.NullHandler())

INFO, DEBUG = logging.INFO, logging.DEBUG

is_logged = LOGGER.isEnabledFor
"""Return whether a level is logged."""


def log(level: int, text: str) -> None:
    """Log a message without the signatures, tokens and passwords of its urls."""
    LOGGER.log(level, "%s", without_secrets(text), stacklevel=2)
