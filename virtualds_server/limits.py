"""Limits of threads, memory and time of a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of threads, memory and time of a server.

    Parameters
    ----------
    threads : int
        How many chunks are fetched and decoded at once.
    waiting : int
        How many requests may wait for a thread. The response to further requests is 503.
    cache_bytes : int
        Size of the cache of response bodies.
    timeout : float
        Seconds that a request waits for the source before the response is 504.
    check_every : float
        Seconds between two checks whether the set has changed. Checks of files that match
        patterns are 30 times less frequent.

    Examples
    --------
    >>> Limits(threads=2).timeout
    60.0
    """

    threads: int = 8
    waiting: int = 2048
    cache_bytes: int = 2**28
    timeout: float = 60.0
    check_every: float = 1.0

    def __post_init__(self) -> None:
        for name in ("threads", "waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: give a number from 1 on")
        if self.cache_bytes < 0 or self.check_every < 0 or self.timeout <= 0:
            raise ValueError(
                f"cache_bytes={self.cache_bytes!r}, check_every={self.check_every!r}, "
                f"timeout={self.timeout!r}: none is negative, and timeout is more than 0"
            )
