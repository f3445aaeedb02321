"""How many threads are in a place at the same time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gauge:
    """Counts those who are inside at a time; ``most`` is the greatest number so far."""

    def __init__(self) -> None:
        self.most = self._inside = 0
        self._lock = threading.Lock()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Count whoever runs the block."""
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        yield
        with self._lock:
            self._inside -= 1
