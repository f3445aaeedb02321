"""What one server may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a server may use: threads, memory and time.

    Parameters
    ----------
    threads : int
        How many chunks are fetched and decoded at once.
    waiting : int
        How many requests may wait for a thread; the server answers others with 503.
    cache_bytes : int
        Bytes of chunks, as they are sent, that are kept for the next request.
    timeout : float
        Seconds after which a request for what is not yet read is answered with 504.
    check_every : float
        Seconds for which chunks are served without looking whether the set has changed; 30 times
        as many where many files are looked at.

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
