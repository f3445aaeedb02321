"""How one file was read. Parsers say it; who opens files may listen.

What a parser says belongs to the context, not to the group that it returns: a group tells of the
file, not of the reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class ReadWay(NamedTuple):
    """How a file was read: the name of the way, and why no other was taken."""

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return _WORDS[self.name] + (f", since {self.reason}" if self.reason else "")


TOGETHER = ReadWay("together")
"""By the structure of another file."""
ALONE = ReadWay("alone")
"""By our own reader."""
LIBRARY = "library"
"""Name of the way through the library of the format."""
_WORDS = {
    TOGETHER.name: "read together with files of the same structure",
    ALONE.name: "read by virtualds",
    LIBRARY: "read by the HDF5 library",
}

_SAID: ContextVar[list[ReadWay] | None] = ContextVar("virtualds_read_way", default=None)


def say_way(way: ReadWay) -> None:
    """Say how the file was read that is being opened."""
    if (said := _SAID.get()) is not None:
        said.append(way)


@contextmanager
def hear_ways() -> Iterator[list[ReadWay]]:
    """Give the list of what parsers say within the block, in this context.

    Who listens around the block hears it at its end.
    """
    said: list[ReadWay] = []
    heard = _SAID.get()
    token = _SAID.set(said)
    try:
        yield said
    finally:
        _SAID.reset(token)
        if heard is not None:
            heard += said
