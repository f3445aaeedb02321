"""How much memory a piece of work takes."""

import tracemalloc
from collections.abc import Callable
from typing import Any


def peak(work: Callable[[], Any]) -> int:
    """Return the most bytes that Python and numpy held at a time while something was done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
