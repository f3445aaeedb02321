"""Opening each file of an archive and collecting its facts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xarray as xr

from virtualds.checks.diagnose.fact_runs import FactRuns
from virtualds.checks.diagnose.guess_dimension import CoordinateSpan, PlacedFile, find_spans
from virtualds.checks.diagnose.trial_combine import describe_error
from virtualds.combine.batch_job import BatchJob
from virtualds.combine.open_file import Outcome, PrepareStep
from virtualds.combine.progress import Count, LeftOut
from virtualds.combine.workers import Workers
from virtualds.datasets.structure import Facts, list_facts
from virtualds.progress import ProgressOption, report_progress


class ExaminedFile(NamedTuple):
    """The facts of one file."""

    facts: Facts
    spans: Mapping[str, CoordinateSpan]
    unlimited: frozenset[str]


class UnreadableFile(NamedTuple):
    """Why a file cannot be read, and whether the file or a processing step is at fault.

    ``on_error`` of `open_virtual_mfdataset` applies to files that are at fault. ``before`` is how
    many readable files come before.
    """

    reason: str
    is_fault: bool
    before: int = 0


@dataclass
class FileSurvey:
    """The facts of all files, reduced to what tells the files apart.

    Parameters
    ----------
    files : list of str
        The readable files, in order.
    facts : FactRuns
        Their facts.
    spans : dict of str to list
        By coordinate: the number of each file that has it, and its span.
    unlimited : Counter
        The number of files in which each dimension is unlimited.
    unreadable : list of pairs of str and Unreadable
        The files that cannot be opened, and why.
    is_whole : bool
        Whether all files were examined, not a sample.
    """

    files: list[str] = field(default_factory=list)
    facts: FactRuns = field(default_factory=FactRuns)
    spans: dict[str, list[PlacedFile]] = field(default_factory=dict)
    unlimited: Counter[str] = field(default_factory=Counter)
    unreadable: list[tuple[str, UnreadableFile]] = field(default_factory=list)
    is_whole: bool = True

    def add(self, file: str, found: ExaminedFile | UnreadableFile) -> None:
        """Add the next file, or why it cannot be opened."""
        if isinstance(found, UnreadableFile):
            self.unreadable.append((file, found._replace(before=len(self.files))))
            return
        for name, span in found.spans.items():
            self.spans.setdefault(name, []).append((len(self.files), span))
        self.facts.add(found.facts)
        self.unlimited.update(found.unlimited)
        self.files.append(file)

    @property
    def always_unlimited(self) -> list[str]:
        """The dimensions that are unlimited in all files."""
        return [dim for dim, count in self.unlimited.items() if count == len(self.files)]


@dataclass(frozen=True)
class Examination:
    """The step after opening a file: prepare it as for combining, then collect its facts.

    Parameters
    ----------
    steps : tuple of callables
        The steps that prepare the file.
    """

    steps: tuple[PrepareStep[xr.Dataset], ...] = ()

    def __call__(self, file: Any, dataset: xr.Dataset) -> Any:
        """Return the facts of a file; nothing else of it is kept."""
        unlimited = frozenset(map(str, dataset.encoding.get("unlimited_dims", ())))
        for step in self.steps:
            dataset = step(file, dataset)
        return ExaminedFile(list_facts(dataset), find_spans(dataset), unlimited & set(dataset.dims))


def survey_files(
    files: Sequence[Any], job: BatchJob, workers: Workers, progress: ProgressOption
) -> FileSurvey:
    """Open files and collect the facts of each.

    Parameters
    ----------
    files : sequence of str or paths
    job : BatchJob
        The job for each file; its last step is an `Examination`.
    workers : callable
        What runs the jobs.
    progress : bool or callable, optional
        What receives the progress.
    """
    survey = FileSurvey()
    lost: list[LeftOut] = []
    items = list(enumerate(files))
    with report_progress(progress, "opening", len(items)) as tell:
        count = Count(len(items), tell)
        with closing(workers(job, items)) as outcomes:
            for outcome in _sort_outcomes(_count_outcomes(outcomes, count)):
                file = files[outcome.number]
                found: Any = outcome.found
                if outcome.error is not None:
                    lost.append(LeftOut.of(file, outcome.error))
                    found = UnreadableFile(describe_error(outcome.error), outcome.is_fault)
                survey.add(os.fspath(file), found)
        count.finish(lost, files)
    return survey


def _count_outcomes(outcomes: Iterable[Outcome[Any]], count: Count) -> Iterator[Outcome[Any]]:
    for outcome in outcomes:
        count.add(outcome)
        yield outcome


def _sort_outcomes(outcomes: Iterable[Outcome[Any]]) -> Iterator[Outcome[Any]]:
    """Yield the outcomes in the order of the files; early outcomes wait."""
    early: dict[int, Outcome[Any]] = {}
    turn = 0
    for outcome in outcomes:
        early[outcome.number] = outcome
        while turn in early:
            yield early.pop(turn)
            turn += 1
