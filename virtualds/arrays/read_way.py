"""What parsers say of one file while it is opened; who opens files may listen.

How a file was read belongs to the context, not to the group that is returned: a group tells of the
file, not of the reader. So does what was left out of it, once somebody has decided to leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, NamedTuple, TypeVar

from virtualds.errors import VirtualdsError

Said = TypeVar("Said")


class Channel(Generic[Said]):
    """What is said within a block, for who listens around it, in this context."""

    def __init__(self, name: str) -> None:
        self._said: ContextVar[list[Said] | None] = ContextVar(name, default=None)

    def say(self, what: Said) -> None:
        """Say something of the file that is being opened."""
        if (said := self._said.get()) is not None:
            said.append(what)

    @contextmanager
    def hear(self) -> Iterator[list[Said]]:
        """Give the list of what is said within the block.

        Who listens around the block hears it at its end.
        """
        said: list[Said] = []
        heard = self._said.get()
        token = self._said.set(said)
        try:
            yield said
        finally:
            self._said.reset(token)
            if heard is not None:
                heard += said


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

WAYS = Channel[ReadWay]("virtualds_read_way")
DAMAGES = Channel[VirtualdsError]("virtualds_damages")
"""Damaged parts that were left out of a file."""
