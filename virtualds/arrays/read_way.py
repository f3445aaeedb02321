"""How a file was read."""

from __future__ import annotations

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
