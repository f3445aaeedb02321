"""Writes that meet another writer, or a set that is there already."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from virtualds.datasets.location import Location
from virtualds.errors import ConflictError

Result = TypeVar("Result")

ATTEMPTS = 30
"""How often a change is made again because another writer was faster."""


PAUSE = 0.05
"""Seconds that are waited at first, on average; twice as long after every attempt."""


@contextmanager
def name_missing_set(location: Location) -> Iterator[None]:
    """Say of a set that is not there what could be done."""
    try:
        yield
    except FileNotFoundError as error:
        # the system says no more than that
        said = f" ({error})" if error.errno is None else ""
        raise FileNotFoundError(
            f"{location.target}: there is no reference set{said}; check the path, or write one "
            f"with "
            f"ds.virtual.to_manifest"
        ) from None


def check_conflict(conflict: str) -> None:
    """Raise an error if there is no such way to settle conflicts."""
    if conflict not in ("raise", "retry"):
        raise ValueError(f"conflict={conflict!r}: give 'raise' or 'retry'")


def retry_on_conflict(attempt: Callable[[], Result], conflict: str) -> Result:
    """Make a change to a set, again if wanted and another writer was faster."""
    check_conflict(conflict)
    left = ATTEMPTS if conflict == "retry" else 1
    pause = PAUSE
    while True:
        try:
            return attempt()
        except ConflictError:
            left -= 1
            if not left:
                raise
        # of writers that wait equally long, the same one would lose again
        time.sleep(random.uniform(0, 2 * pause))
        pause = min(2 * pause, 5.0)
