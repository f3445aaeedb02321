"""What users say about variables that a format cannot hold."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from virtualds.datasets.rewrite.plan import VariablePlan
from virtualds.datasets.rewrite.run import Tell
from virtualds.errors import UnsupportedError, list_details

ON_UNSUPPORTED = ("error", "rewrite")
DELAY = 1.0
"""Seconds before a bar appears that the user did not ask for."""


@dataclass(frozen=True)
class Rewriting:
    """Whether to rewrite chunks that a format cannot hold, and how.

    Parameters
    ----------
    on_unsupported : {"error", "rewrite"}
    main_encoding : mapping
        By variable, what its main encoding is to have.
    rewrite_limit : int, optional
        Most bytes to rewrite, before codecs.
    progress : bool or callable, optional
        Whether to show a bar; or a function of the bytes that are done, and of all.

    Raises
    ------
    ValueError
        There is no such choice, or the limit is no number of bytes.
    """

    on_unsupported: str = "error"
    main_encoding: Mapping[str, Any] = field(default_factory=dict)
    rewrite_limit: int | None = None
    progress: bool | Callable[[int, int], object] | None = None

    def __post_init__(self) -> None:
        if self.on_unsupported not in ON_UNSUPPORTED:
            raise ValueError(
                f"on_unsupported={self.on_unsupported!r}: give 'error', or 'rewrite', which "
                f"encodes chunks anew that the format cannot hold"
            )
        limit = self.rewrite_limit
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ValueError(f"rewrite_limit={limit!r}: give a number of bytes, or None")
        if not self.rewrites and (limit is not None or self.main_encoding):
            raise ValueError(
                "rewrite_limit and main_encoding are for rewriting; pass on_unsupported='rewrite', "
                "or leave them out"
            )

    @property
    def rewrites(self) -> bool:
        """Whether chunks may be rewritten."""
        return self.on_unsupported == "rewrite"

    def demand_within_limit(self, plans: Mapping[str, VariablePlan], target: str) -> None:
        """Refuse to rewrite more than the user allows.

        Raises
        ------
        UnsupportedError
            There is more to rewrite; the message lists the variables.
        """
        total = sum(plan.nbytes for plan in plans.values())
        if self.rewrite_limit is None or total <= self.rewrite_limit:
            return
        details = [
            f"{path}: {plan.nchunks:,} chunks, {plan.nbytes:,} bytes: {'; '.join(plan.reasons)}"
            for path, plan in plans.items()
        ]
        said = (
            f"{target}: {total:,} bytes would have to be rewritten, more than rewrite_limit="
            f"{self.rewrite_limit:,}; raise the limit, leave these variables out (ds.drop_vars), "
            f"or choose another format: ds.virtual.cost(format) shows what each costs"
        )
        raise UnsupportedError(list_details(said, details))

    @contextmanager
    def report(self, total: int) -> Iterator[Tell]:
        """Give a function that reports how many bytes have just been rewritten, out of all."""
        if callable(self.progress):
            yield _Sum(self.progress, total)
        elif self.progress or (self.progress is None and _is_terminal()):
            with _show_bar(total, 0.0 if self.progress else DELAY) as bar:
                yield _Sum(bar, total)
        else:
            yield lambda nbytes: None


class _Sum:
    """Sums up bytes for a function of the user, which one thread calls at a time."""

    def __init__(self, call: Callable[[int, int], object], total: int) -> None:
        self._call, self._total, self._done = call, total, 0
        self._lock = threading.Lock()

    def __call__(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            self._call(self._done, self._total)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def _show_bar(total: int, delay: float) -> Iterator[Callable[[int, int], object]]:
    from tqdm.auto import tqdm

    with tqdm(total=total, desc="rewriting", unit="B", unit_scale=True, delay=delay) as bar:
        yield lambda done, _: bar.update(done - bar.n)
