"""Progress of long jobs: a bar on a terminal or in a notebook, or calls of a function.

Every job draws its bar here, by tqdm: done and total, elapsed and remaining time, and the rate.

The logger ``virtualds`` says why something takes long: level INFO is about files and sets, level
DEBUG about requests and cache hits. A text is created only if its level is logged: call `is_logged`
first. Every text passes `log`, which leaves out secrets.
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
"""Seconds before a bar appears that the user did not request."""
LARGE = 10_000
"""Totals that are shown in short form, as 10.0k."""


@public
@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a long job.

    Parameters
    ----------
    done : int
        How much is done; of a build, files, including failed and cached ones.
    total : int
        How much there is to do.
    seconds : float
        Time since the job began.
    job : str
        What is done: ``"opening"`` files; ``"checking"`` files and ``"comparing"`` chunks
        (`verify`); ``"copying"`` bytes (`materialize`); ``"rewriting"`` bytes and ``"writing"``
        references (`convert`, ``to_manifest``).
    unit : {"file", "chunk", "reference", "B"}
        What is counted; ``"B"`` are bytes.
    failed : int
        Files that could not be opened.
    cached : int
        Files from the cache.
    references : int
        Chunks of the files so far.
    report : BuildReport, optional
        The report of a build, once all files are done.

    Raises
    ------
    ValueError
        More is done than there is.

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
            raise ValueError(f"Progress: more is done than there is, in {self!r}")

    @property
    def rate(self) -> float:
        """The amount done per second."""
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def remaining(self) -> float:
        """Seconds that the rest takes at this rate, or infinity if nothing is done yet."""
        return (self.total - self.done) / self.rate if self.rate else float("inf")


ProgressCallback = Callable[[Progress], object]
ProgressOption = bool | ProgressCallback | None
"""The ways to ask for progress: True for a bar, False for none, None for a bar on a terminal or in
a notebook, or a function that gets the progress."""
Advance = Callable[[int], None]
"""A thread-safe callback for how much more of a job is done."""

_WRITING: ContextVar[Advance | None] = ContextVar("virtualds_writing", default=None)


@contextmanager
def report_progress(
    wanted: ProgressOption, job: str, total: int, unit: str = "file"
) -> Iterator[ProgressCallback]:
    """Yield a function that reports the progress of a job, until the end of the block."""
    if callable(wanted):
        yield wanted
    elif total and is_shown(wanted):
        with _show_bar(job, total, unit, 0.0 if wanted else DELAY) as bar:
            yield bar
    else:
        yield lambda _: None


@contextmanager
def count_progress(
    wanted: ProgressOption, job: str, total: int, unit: str = "file"
) -> Iterator[Advance]:
    """Yield a function that counts what is done of a job and reports it.

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
    lock, begin, done = threading.Lock(), time.monotonic(), 0
    with report_progress(wanted, job, total, unit) as send:

        def advance(more: int) -> None:
            nonlocal done
            with lock:
                # too high a count must not make the job fail
                done = min(done + more, total)
                seconds = time.monotonic() - begin
                send(Progress(done=done, total=total, seconds=seconds, job=job, unit=unit))

        yield advance
        if done < total:
            # parts without work, such as gaps
            advance(total - done)


@contextmanager
def count_writing(wanted: ProgressOption, total: int) -> Iterator[None]:
    """Report, for `count_array`, the chunks whose references are written in the block."""
    with count_progress(wanted, "writing", total, "reference") as advance:
        token = _WRITING.set(advance)
        try:
            yield
        finally:
            _WRITING.reset(token)


@contextmanager
def count_array(chunks: int) -> Iterator[Advance]:
    """Yield a function that counts chunks of an array as their references are written.

    The remaining chunks are counted at the end of the block: gaps, and those already in the set. A
    chunk with references in two tables counts once.
    """
    left, count = chunks, _WRITING.get() or (lambda _: None)

    def advance(more: int) -> None:
        nonlocal left
        if more := min(more, left):
            left -= more
            count(more)

    yield advance
    advance(left)


def is_shown(wanted: ProgressOption) -> bool:
    """Return whether progress is shown anywhere, so that it is worth counting the work."""
    return callable(wanted) or bool(wanted) or (wanted is None and _is_interactive())


def _is_interactive() -> bool:
    # IPython kernels belong to notebooks; IPython in a terminal is a terminal
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    is_notebook = type(shell).__name__ == "ZMQInteractiveShell"
    return is_notebook or (sys.stderr is not None and sys.stderr.isatty())


@contextmanager
def _show_bar(job: str, total: int, unit: str, delay: float) -> Iterator[ProgressCallback]:
    tqdm, begin = _choose_bar(), time.monotonic()
    # tqdm writes the unit directly after the number
    named = {
        "unit": unit if unit == "B" else f" {unit}s",
        "unit_scale": unit == "B" or total >= LARGE,
    }
    with tqdm(total=total, desc=job, delay=delay, smoothing=0.1, **named) as bar:

        def show(progress: Progress) -> None:
            bar.set_postfix_str(_format_rest(progress), refresh=False)
            bar.update(progress.done - bar.n)

        yield show
        if time.monotonic() - begin >= delay:
            bar.refresh()


def _choose_bar() -> Any:
    """Return tqdm's notebook widget if ipywidgets can show it, or else its line of text."""
    if find_spec("ipywidgets") is None:
        from tqdm.std import tqdm
    else:
        from tqdm.auto import tqdm
    return tqdm


def _format_rest(progress: Progress) -> str:
    parts: tuple[tuple[int, str], ...] = (
        (progress.cached, "cached"),
        (progress.failed, "failed"),
        (progress.references, "references"),
    )
    return ", ".join(f"{number:,} {what}" for number, what in parts if number)


# ---------------------------------------------------------------------- log

LOGGER = logging.getLogger("virtualds")
LOGGER.addHandler(logging.NullHandler())

INFO, DEBUG = logging.INFO, logging.DEBUG

is_logged = LOGGER.isEnabledFor
"""Return whether a level is logged."""


def log(level: int, text: str) -> None:
    """Log a message without the signatures, tokens and passwords of its urls."""
    LOGGER.log(level, "%s", without_secrets(text), stacklevel=2)
