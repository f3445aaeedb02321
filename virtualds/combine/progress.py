"""Counting the outcomes of files, and the report of a build."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from virtualds.combine.file_schemas import FileSchema, SchemaCounter, describe_schemas
from virtualds.combine.files_read import FilesRead, WayCounter
from virtualds.combine.report_page import describe_build
from virtualds.errors import without_secrets
from virtualds.pictures.html import cell
from virtualds.progress import Progress, ProgressCallback
from virtualds.public import public
from virtualds.quantities import format_count
from virtualds.stores.access_rules import is_nameable


class Count:
    """Counts outcomes of files, and reports them."""

    def __init__(self, total: int, tell: ProgressCallback) -> None:
        self._total, self._tell = total, tell
        self._begin = time.monotonic()
        self.done = self.failed = self.cached = self.references = 0
        self._ways = WayCounter()
        self._schemas = SchemaCounter()
        self._damaged: dict[int, tuple[LeftOut, ...]] = {}

    def add(self, outcome: Any) -> None:
        """Count the outcome of one or several files."""
        self.done += len(outcome.numbers)
        self.failed += outcome.error is not None
        self.cached += outcome.cached
        self.references += outcome.references
        self._damaged.update(outcome.damaged)
        for number, way in outcome.ways.items():
            self._ways.add(number, way)
        self._schemas.add(outcome.numbers, outcome.found)
        self._tell(self._measure_progress())

    def finish(self, left_out: Any, files: Sequence[Any]) -> BuildReport:
        """Return the report, and send it to the callback; ``files`` are all files."""
        report = BuildReport(
            self._total,
            self.done - self.failed - self.cached,
            self.cached,
            tuple(left_out),
            self.references,
            self.seconds,
            self._ways.finish(files),
            tuple(part for number in sorted(self._damaged) for part in self._damaged[number]),
            self._schemas.finish(files),
        )
        self._tell(self._measure_progress(report))
        return report

    @property
    def seconds(self) -> float:
        """Time since the first file was begun."""
        return time.monotonic() - self._begin

    def _measure_progress(self, report: BuildReport | None = None) -> Progress:
        return Progress(
            done=self.done,
            total=self._total,
            seconds=self.seconds,
            failed=self.failed,
            cached=self.cached,
            references=self.references,
            report=report,
        )


DAMAGED = "damaged part"
SHOWN_FILES = 10
"""Most files that a text names; of the others it gives the number."""


class LeftOut(NamedTuple):
    """A file, or a part of it, that cannot be read: its url, class and message of the error."""

    url: str
    error: str
    message: str

    @classmethod
    def of(cls, file: object, error: BaseException) -> LeftOut:
        """Return the file that an error is about, with the notes of the error."""
        notes: list[str] = getattr(error, "__notes__", [])
        said = without_secrets("; ".join([f"{error}", *notes]))
        return cls(str(file), type(error).__name__, said)

    def __repr__(self) -> str:
        shown = without_secrets(self.url)
        return f"LeftOut(url={shown!r}, error={self.error!r}, message={self.message!r})"


@public
@dataclass(frozen=True, repr=False)
class BuildReport:
    """The report of opening files for a dataset.

    Parameters
    ----------
    files : int
        Number of files.
    opened : int
        Number of opened files.
    cached : int
        Number of files from the cache.
    left_out : tuple of LeftOut
        Files that could not be opened, in the order of the files.
    references : int
        Number of chunks of all files.
    seconds : float
        Time to open the files, without combining them.
    read : FilesRead
        How many HDF5 files were read in which way, and why some were read through h5py.
    damaged : tuple of LeftOut
        Damaged parts of files, such as messages, that were left out of files that were opened.
    schemas : tuple of FileSchema
        How many files have which names, dimensions and types of variables, and the same decoding,
        that of most files first; and how the others differ from it.

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
    read: FilesRead = field(default_factory=FilesRead)
    damaged: tuple[LeftOut, ...] = ()
    schemas: tuple[FileSchema, ...] = ()

    def __post_init__(self) -> None:
        if self.files != self.opened + self.cached + len(self.left_out):
            raise ValueError(
                f"BuildReport: {self.files} files are not {self.opened} opened, {self.cached} "
                f"from the cache and {len(self.left_out)} left out; count each once"
            )

    @property
    def summary(self) -> str:
        """The numbers of files in one line."""
        return (
            f"{self.files} files: {self.opened} opened, {self.cached} from the cache, "
            f"{len(self.left_out)} left out"
            f"{f', {format_count(len(self.damaged), DAMAGED)}' if self.damaged else ''}"
        )

    @property
    def schema_lines(self) -> list[str]:
        """A line for each of the first schemas; none if all files are alike."""
        return describe_schemas(self.schemas)

    def __repr__(self) -> str:
        return f"<BuildReport {self.summary}>"

    def _repr_html_(self) -> str:
        return cell(describe_build(self))

    def __str__(self) -> str:
        read = [f"  read: {self.read.summary}"] if self.read else []
        schemas = [f"  {line}" for line in self.schema_lines]
        lost = describe_left_out([*self.left_out, *self.damaged])
        return "\n".join([self.summary, *read, *schemas, *lost])


def show_url(url: str) -> str:
    """Return a url as it can be printed: without secrets, on one line, as UTF-8."""
    plain = without_secrets(url)
    return plain if is_nameable(plain) else repr(plain)


def describe_left_out(left_out: Iterable[LeftOut]) -> list[str]:
    """Return a line for each of the first files that were left out, and one for the rest."""
    everything = list(left_out)
    shown = everything[:SHOWN_FILES]
    lines = [f"  {show_url(url)}: {error}: {text}" for url, error, text in shown]
    more = len(everything) - SHOWN_FILES
    return [*lines, f"  ... and {more} more"] if more > 0 else lines
