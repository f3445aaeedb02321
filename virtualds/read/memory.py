"""Memory that a thread keeps from chunk to chunk.

The system hands out fresh pages zeroed, one fault at a time; for a chunk of 1 MiB that takes a
third as long as inflating it. The allocator gives freed blocks of that size back at once, unless
they lie below one that is still in use. So every thread keeps what it allocated last until it has
the next.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from virtualds.bounds import Buffer

MOST_KEPT = 8 * 2**20
"""Bytes that a thread keeps at most of each kind."""

_thread = threading.local()


def scratch(nbytes: int, kind: str = "chunk") -> npt.NDArray[np.uint8]:
    """Return memory of this thread, good until it asks for some of this kind again."""
    if nbytes > MOST_KEPT:
        return np.empty(nbytes, np.uint8)
    name = f"scratch for a {kind}"
    kept: npt.NDArray[np.uint8] | None = getattr(_thread, name, None)
    if kept is None or kept.size < nbytes:
        kept = np.empty(nbytes, np.uint8)
        setattr(_thread, name, kept)
    return kept[:nbytes]


def hold(decoded: Buffer) -> None:
    """Keep what a codec made in memory of its own alive until this thread holds the next."""
    _thread.decoded = decoded if len(decoded) <= MOST_KEPT else None
