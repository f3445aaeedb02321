"""How many files of a build were read in which way, and why some needed a library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from virtualds.arrays.group import ALONE, LIBRARY, TOGETHER, ReadWay
from virtualds.errors import without_secrets
from virtualds.quantities import format_count

MOST_REASONS = 10
"""Most reasons that a report gives."""


class LibraryReason(NamedTuple):
    """Why some files were read through h5py: how many they are, and the first of them."""

    reason: str
    files: int
    example: str

    def __str__(self) -> str:
        return f"{format_count(self.files, 'file')}: {self.reason} ({self.example})"


@dataclass(frozen=True)
class FilesRead:
    """How many HDF5 files were read in which way.

    Files of other formats, from the cache and that were left out are not counted.

    Parameters
    ----------
    together : int
        Number of files that were read by the structure of another file.
    alone : int
        Number of files whose structure virtualds read, each by itself.
    library : int
        Number of files whose structure the HDF5 library read, by h5py.
    reasons : tuple of LibraryReason
        Why it did, the reasons of most files first; at most ten.

    Raises
    ------
    ValueError
        There are more reasons than files.

    Examples
    --------
    >>> unknown = LibraryReason("a superblock of version 9", 1, "file:///data/2.nc")
    >>> print(FilesRead(together=98, alone=1, library=1, reasons=(unknown,)))
    98 together, 1 alone, 1 through the HDF5 library
      1 file: a superblock of version 9 (file:///data/2.nc)
    """

    together: int = 0
    alone: int = 0
    library: int = 0
    reasons: tuple[LibraryReason, ...] = ()

    def __post_init__(self) -> None:
        if self._count_explained() > self.library:
            raise ValueError(f"FilesRead: there are more reasons than files, in {self!r}")

    @property
    def summary(self) -> str:
        """The numbers in one line."""
        return (
            f"{self.together:,} together, {self.alone:,} alone, "
            f"{self.library:,} through the HDF5 library"
        )

    def __bool__(self) -> bool:
        return bool(self.together or self.alone or self.library)

    def __str__(self) -> str:
        lines = [self.summary, *(f"  {reason}" for reason in self.reasons)]
        more = self.library - self._count_explained()
        return "\n".join([*lines, f"  {more:,} for other reasons"] if more else lines)

    def _count_explained(self) -> int:
        return sum(reason.files for reason in self.reasons)


class WayCounter:
    """Counts how files were read."""

    def __init__(self) -> None:
        self._ways = Counter[str]()
        self._reasons: dict[str, tuple[int, int]] = {}
        """By reason: how many files, and the number of the first of them."""

    def add(self, number: int, way: ReadWay) -> None:
        """Count a file by its number."""
        self._ways[way.name] += 1
        if way.reason:
            count, first = self._reasons.get(way.reason, (0, number))
            self._reasons[way.reason] = count + 1, min(first, number)

    def finish(self, files: Sequence[Any]) -> FilesRead:
        """Return the counts; ``files`` has the names of all files."""
        # in the order of the files, whichever worker was faster
        ordered = sorted(self._reasons.items(), key=lambda item: (-item[1][0], item[1][1]))
        reasons = tuple(
            LibraryReason(reason, count, without_secrets(str(files[first])))
            for reason, (count, first) in ordered[:MOST_REASONS]
        )
        together, alone, library = (self._ways[n] for n in (TOGETHER.name, ALONE.name, LIBRARY))
        return FilesRead(together, alone, library, reasons)
