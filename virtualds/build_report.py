"""What became of the files of a build: which were opened, which left out, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from virtualds.errors import without_secrets

SHOWN = 10
"""Files that a text names; of the others it says how many they are."""


class LeftOut(NamedTuple):
    """A file that could not be opened: its url, the name of the error's class, and what it said."""

    url: str
    error: str
    message: str

    @classmethod
    def of(cls, file: object, error: BaseException) -> LeftOut:
        """Return the file that an error is about, with the notes of the error."""
        notes: list[str] = getattr(error, "__notes__", [])
        said = without_secrets("; ".join([str(error), *notes]))
        return cls(str(file), type(error).__name__, said)

    def __repr__(self) -> str:
        shown = without_secrets(self.url)
        return f"LeftOut(url={shown!r}, error={self.error!r}, message={self.message!r})"


@dataclass(frozen=True)
class BuildReport:
    """What became of the files that a dataset was to be made of.

    Parameters
    ----------
    files : int
        How many there were.
    opened : int
        How many were opened and read.
    cached : int
        How many were taken from the cache.
    left_out : tuple of LeftOut
        Those that could not be opened, in the order of the files.
    references : int
        Chunks of all files.
    seconds : float
        How long it took to open them; combining them is not counted.

    Raises
    ------
    ValueError
        The numbers do not add up.

    Examples
    --------
    >>> lost = LeftOut("file:///data/2.nc", "FormatError", "it is truncated")
    >>> print(BuildReport(3, opened=2, left_out=(lost,)))
    3 files: 2 opened, 0 from the cache, 1 left out
      file:///data/2.nc: FormatError: it is truncated
    """

    files: int
    opened: int = 0
    cached: int = 0
    left_out: tuple[LeftOut, ...] = ()
    references: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.files != self.opened + self.cached + len(self.left_out):
            raise ValueError(
                f"BuildReport: {self.files} files are not {self.opened} opened, {self.cached} "
                f"from the cache and {len(self.left_out)} left out; count each once"
            )

    def __str__(self) -> str:
        head = (
            f"{self.files} files: {self.opened} opened, {self.cached} from the cache, "
            f"{len(self.left_out)} left out"
        )
        return "\n".join([head, *told(self.left_out)])


def told(left_out: Iterable[LeftOut]) -> list[str]:
    """Return a line for each of the first files that were left out, and one for the rest."""
    everything = list(left_out)
    shown = everything[:SHOWN]
    lines = [f"  {without_secrets(url)}: {error}: {text}" for url, error, text in shown]
    more = len(everything) - SHOWN
    return [*lines, f"  and {more} more"] if more > 0 else lines
