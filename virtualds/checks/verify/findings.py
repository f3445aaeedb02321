"""What a verification finds: problems, and the state of the files in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from virtualds.errors import without_secrets

KINDS: dict[str, str] = {
    "missing": "the file does not exist",
    "unreachable": "the file, or a part of it, cannot be read: no permission, no answer",
    "size": "the length of the file has changed since the scan",
    "etag": "the store reports another version than at the scan",
    "modified": "the file was modified after the scan",
    "range": "a reference is empty, negative, or extends past the end of its file",
    "references": "references of the set cannot be read",
    "undecodable": "bytes of a chunk or a member do not decode, or do not match their checksum",
    "differs": "a chunk differs from what the native reader gives, or is not a chunk of its file",
    "not compared": "not checked, with the reason",
}
"""The kinds of problems, the gravest first."""
NOT_COMPARED = "not compared"

SHOWN_PROBLEMS = 10
"""Problems of one kind that the text shows; `Verification.to_dataframe` has them all."""


class Problem(NamedTuple):
    """Something that is wrong, or that was not checked.

    ``chunk`` is the chunk id in the grid of its fragment; None if the problem concerns a whole file
    or variable. ``variable`` is empty if it concerns a whole file.
    """

    url: str
    variable: str
    chunk: tuple[int, ...] | None
    kind: str
    message: str

    def __str__(self) -> str:
        at = f", chunk {self.chunk}" if self.chunk is not None else ""
        who = f"{self.variable}{at}" if self.variable else ""
        text = ": ".join(part for part in (self.url, who, self.message) if part)
        return without_secrets(text)


class FileRun(NamedTuple):
    """Files after one another with the same gravest kind of problem; "" is none."""

    kind: str
    files: int


def list_runs(urls: Iterable[str], problems: Sequence[Problem]) -> tuple[FileRun, ...]:
    """Return how many files after one another have the same gravest kind of problem.

    Examples
    --------
    >>> gone = Problem("b.nc", "", None, "missing", "there is no such file")
    >>> [run.files for run in list_runs(["a.nc", "b.nc", "c.nc", "d.nc"], [gone])]
    [1, 1, 2]
    """
    kinds = _find_gravest(problems)
    runs = groupby(urls, key=lambda url: kinds.get(url, ""))
    return tuple(FileRun(kind, sum(1 for _ in members)) for kind, members in runs)


def _find_gravest(problems: Sequence[Problem]) -> Mapping[str, str]:
    order = list(KINDS)
    found: dict[str, str] = {}
    for problem in sorted(problems, key=lambda p: order.index(p.kind)):
        found.setdefault(problem.url, problem.kind)
    return found
