"""How many references of a table lie in each of its files, in runs of files with equal counts.

``docs/reference/formats/zarr-v3.md`` specifies the form ("Counts of chunks").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.projection import Ints
from virtualds.errors import FormatError

COUNTS = "counts.parquet"
"""The file of the counts in the folder of a table, where they do not stand in the metadata."""
MOST_RUNS = 8
"""Runs that stand in the metadata."""


class Counts(NamedTuple):
    """Runs, each a number of files and the chunks in each; or the path of the file that has them.

    A table without either has no counts.
    """

    runs: tuple[tuple[int, int], ...] = ()
    path: str = ""


NO_COUNTS = Counts()


def count_numbers(numbers: npt.NDArray[np.signedinteger[Any]]) -> tuple[int, Ints]:
    """Return how often each number occurs, from the lowest one on; negative ones do not count."""
    numbers = numbers[numbers >= 0]
    low = int(numbers.min()) if numbers.size else 0
    return low, np.bincount(numbers - low)


def add_counts(parts: Iterable[tuple[int, Ints]], length: int) -> Ints:
    """Return the sum of counts, each from a lowest number on."""
    found = np.zeros(length, np.int64)
    for low, counts in parts:
        found[low : low + counts.size] += counts
    return found


def find_equal_runs(counts: Ints) -> Ints:
    """Return pairs of a number of neighbours and their common count.

    Examples
    --------
    >>> find_equal_runs(np.array([3, 3, 1])).tolist()
    [[2, 3], [1, 1]]
    """
    cuts = np.flatnonzero(np.diff(counts, prepend=counts[:1] - 1))
    lengths = np.diff(cuts, append=counts.size)
    return np.stack([lengths, counts[cuts]], axis=1)


def describe_counts(counts: Counts) -> dict[str, Any]:
    """Return what the metadata of a table say of its counts."""
    if counts.path:
        return {"counts": {"must_understand": False, "path": counts.path}}
    if not counts.runs:
        return {}
    # as JSON gives it back: documents are also used before they are written
    return {"counts": {"must_understand": False, "runs": [list(run) for run in counts.runs]}}


def read_counts(said: Any) -> Counts:
    """Return the counts that the metadata of a table describe.

    Raises
    ------
    FormatError
        They are of another form.
    """
    match said:
        case None:
            return NO_COUNTS
        case {"path": str() as name} if name == COUNTS:
            return Counts(path=name)
        case {"runs": [*runs]} if all(map(_is_run, runs)):
            return Counts(tuple((files, chunks) for files, chunks in runs))
    raise FormatError(f"{said!r:.80} are not the counts of a table; the set is damaged")


def _is_run(run: Any) -> bool:
    return isinstance(run, list) and len(run) == 2 and all(type(n) is int for n in run)
