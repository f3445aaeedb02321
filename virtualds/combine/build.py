"""Builds a dataset of files: opens the files, leaves out those that fail, combines the rest."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from virtualds.combine.alike_files import NeedsFullCombineError
from virtualds.combine.batch_job import MOST, BatchJob, BuildOptions, NumberedFile, Outcome
from virtualds.combine.concat_stored import FEWEST_FILES, Concatenator
from virtualds.combine.file_batch import FileBatch, as_batch
from virtualds.combine.ordering import (
    Extent,
    Files,
    crop_datasets,
    flatten_nested,
    is_row_wise,
    list_groups,
)
from virtualds.combine.report import DAMAGED, BuildReport, Count, LeftOut, describe_left_out
from virtualds.combine.workers import Workers
from virtualds.combine.xarray_combine import (
    Combination,
    combine_naming_files,
    warn_of_unlike_files,
)
from virtualds.datasets.reference_systems import Systems, check_one_system, list_systems
from virtualds.errors import CombineError, warn_user, without_secrets
from virtualds.log import INFO, tell, tells
from virtualds.progress import report_progress
from virtualds.quantities import format_count

BuildResult = tuple[Any, Sequence[Outcome[Any]], BuildReport]
"""The dataset or tree, what was opened, and the report."""


@dataclass(frozen=True)
class Build:
    """How files become one dataset or tree.

    ``job`` opens and prepares the files. ``workers`` run it: in this process, in other processes,
    or on a cluster. ``combination`` says how the files are combined, and ``building`` what to do
    about files that cannot be opened, and how to show progress.
    """

    files: Files
    job: BatchJob
    workers: Workers
    combination: Combination
    building: BuildOptions = field(default_factory=BuildOptions)

    def build_dataset(self) -> BuildResult:
        """Return the dataset or tree, what was opened, and the report."""
        begun = time.monotonic()
        alike = self._find_concatenator()
        found, report = self._open(alike)
        built = None if alike is None else self._join(alike, found)
        if built is None:
            if any(isinstance(o.found, FileBatch) and not o.found.is_whole for o in found):
                # some variables are known of the first files only
                found, report = self._open(None)
            found, report = _list_datasets(found, report)
            built = self.combine(found)
        if tells(INFO):
            seconds = time.monotonic() - begun - report.seconds
            tell(INFO, f"{report.files} files: combined, {seconds:.3f} s after they were opened")
        return built, found, report

    def _find_concatenator(self) -> Concatenator | None:
        """Return the object that concatenates files as stored; None if that is of no use."""
        lists = any(isinstance(item, list | tuple) for item in self.files.nested)
        if lists or len(self.files.flat) < FEWEST_FILES:
            return None
        by_coords, how = self.combination.combine == "by_coords", self.combination.arrangement
        arranges = how.sort or how.overlap != "keep"
        try:
            # if the coordinates of the files rise already, arranging the files would change nothing
            return Concatenator(self.combination, rises=by_coords or arranges)
        except NeedsFullCombineError:
            return None

    def _open(self, alike: Concatenator | None) -> tuple[list[Outcome[Any]], BuildReport]:
        """Open the files; the workers join those that are alike, and write references."""
        few = len(self.files.flat) < FEWEST_FILES
        together = None if few else self.job.together
        job = replace(self.job, alike=alike, together=together)
        return replace(self, job=job).open_files()

    def _join(self, alike: Concatenator, found: Sequence[Outcome[Any]]) -> Any:
        """Concatenate files as they are stored; return None if the result might differ."""
        names = self.files.flat
        batches: list[Any] = [outcome.found for outcome in found]
        if self.job.datasets:
            batches = [as_batch(names[o.number], o.found) for o in found]
        if all(isinstance(batch, FileBatch) for batch in batches):
            numbered = zip(batches, found, strict=True)
            with suppress(NeedsFullCombineError):
                return alike.join([replace(b, numbers=o.numbers) for b, o in numbered])
        return None

    def open_files(self) -> tuple[list[Outcome[Any]], BuildReport]:
        """Open all files; return what was opened, in the order of the files, and a report."""
        items: Sequence[NumberedFile] = list(enumerate(self.files.flat))
        found = list[Outcome[Any]]()
        failed: dict[int, Exception] = {}
        settled = 0
        with report_progress(self.building.progress, "opening", len(items)) as show:
            count = Count(len(items), show)
            with closing(self.workers(self.job, items)) as outcomes:
                for outcome in self._raise_first(outcomes, found):
                    count.add(outcome)
                    if outcome.error is not None:
                        failed[outcome.number] = outcome.error
                        continue
                    found.append(outcome)
                    if len(found) - settled == MOST:
                        # files that were opened one by one take more memory apart
                        found[settled:] = self.job.join_opened(found[settled:], items)
                        settled = len(found)
            names = self.files.flat
            lost = (LeftOut.of(names[number], failed[number]) for number in sorted(failed))
            report = count.finish(lost, names)
            if not found:
                raise _find_first_error(failed)
        if tells(INFO):
            tell(INFO, f"{report.summary}, {report.seconds:.3f} s")
            if report.read:
                tell(INFO, f"HDF5 files: {report.read}")
            if report.schema_lines:
                tell(INFO, "\n".join(report.schema_lines))
        if self.building.on_error == "skip":
            _warn_of_losses(report)
        return sorted(found, key=lambda outcome: outcome.number), report

    def combine(self, opened: Sequence[Outcome[Any]]) -> Any:
        """Arrange the datasets or trees of files, and combine them."""
        names, combination = self.files.flat, self.combination
        # in the order of the files, not of the workers: so errors name files in this order
        found: dict[int, Any] = {outcome.number: outcome.found for outcome in opened}
        combination.check_dims(list(found.values()))
        dims = combination.dims
        _check_systems({without_secrets(str(names[n])): found[n] for n in found})
        extents = {n: Extent.of(names[n], found[n], dims) for n in found}
        if dims and len(found) < len(names) and not self.files.stay_in_place(found):
            raise _displaced_error(names[min(set(range(len(names))) - found.keys())])
        numbers = self.files.nest({number: number for number in found})
        parts = combination.arrangement.arrange_parts(numbers, extents, dims)
        placed = [part.file for part in flatten_nested(parts)]
        files, datasets = [names[n] for n in placed], [found[n] for n in placed]
        combine = combination.combine_rows if is_row_wise(numbers, parts) else combination
        joined = None if combination.concat_dim is None else dims
        nested = crop_datasets(parts, found)
        combined = combine_naming_files(combine, joined, nested, files, datasets)
        combination.arrangement.check(Extent.of("the result", combined), extents.values())
        warn_of_unlike_files(combination, {str(names[n]): found[n] for n in placed}, combined)
        return combined

    def _raise_first(
        self, outcomes: Iterable[Outcome[Any]], found: Sequence[Outcome[Any]]
    ) -> Iterator[Outcome[Any]]:
        """Yield outcomes; raise the fatal error of the first file, in the order of the files."""
        done, awaited = set[int](), set[int]()
        first, error = len(self.files.flat), None
        for outcome in outcomes:
            done.update(outcome.numbers)
            awaited.difference_update(outcome.numbers)
            if self._is_fatal(outcome) and outcome.number < first:
                first, error = outcome.number, outcome.error
                awaited = set(range(first)) - done
            if error is None:
                yield outcome
            elif not awaited:
                break
        if error is not None:
            _decode_before(first, found)
            raise error

    def _is_fatal(self, outcome: Outcome[Any]) -> bool:
        if outcome.error is None:
            return False
        return not outcome.is_fault or self.building.stops


def _list_datasets(
    found: Sequence[Outcome[Any]], report: BuildReport
) -> tuple[list[Outcome[Any]], BuildReport]:
    """Return the outcome of each file, with its dataset, in the order of the files."""
    if not any(isinstance(outcome.found, FileBatch) for outcome in found):
        return sorted(found, key=lambda outcome: outcome.number), report
    each = list[Outcome[Any]]()
    for outcome in found:
        files = outcome.found.list_files() if isinstance(outcome.found, FileBatch) else ()
        made = [replace(outcome, numbers=f.numbers, found=f.to_dataset()) for f in files]
        each += made or [outcome]
    # decoding may have loaded variables, which have no references then
    datasets: list[Any] = [outcome.found for outcome in each]
    counts = (dataset.virtual.nchunks for dataset in datasets)
    ordered = sorted(each, key=lambda outcome: outcome.number)
    return ordered, replace(report, references=sum(counts))


def _decode_before(first: int, found: Sequence[Outcome[Any]]) -> None:
    """Decode the files before one that failed: an error of them comes first."""
    batches: list[Any] = [o.found for o in found if isinstance(o.found, FileBatch)]
    places = [(n, place, b) for b in batches for place, n in enumerate(b.numbers) if n < first]
    for _, place, batch in sorted(places, key=lambda item: item[0]):
        batch.cut(place).to_dataset()


def _warn_of_losses(report: BuildReport) -> None:
    """Name what is left out: files, and parts of files."""
    of_all = f"{len(report.left_out)} of {report.files} files could not be opened, and are left out"
    parts = f"{format_count(len(report.damaged), DAMAGED)} left out of files that were opened"
    for said, lost in ((of_all, report.left_out), (parts, report.damaged)):
        if lost:
            lines = "\n".join(describe_left_out(lost))
            warn_user(f"{said}:\n{lines}")


def _check_systems(opened: Mapping[str, Any]) -> None:
    """Refuse files of several coordinate reference systems, group by group."""
    groups: dict[str, dict[str, Systems]] = defaultdict(dict)
    for file, each in opened.items():
        for path, part in list_groups(each).items():
            groups[path][file] = list_systems(part)
    for files in groups.values():
        check_one_system(files)


def _displaced_error(file: Any) -> CombineError:
    return CombineError(
        f"{file}: this file is left out of nested lists, but its row is not, so that other files "
        f"would take its place; leave out the whole row, or give all files in one list, so that "
        f"their coordinates give their places in the grid"
    )


def _find_first_error(failed: dict[int, Exception]) -> Exception:
    """Return the error of the first file, for a build in which all files failed."""
    error = failed[min(failed)]
    error.add_note(f"none of {len(failed)} files could be opened; this is the error of the first")
    return error


def describe_build(cache: object, target: object) -> str:
    """Say what an interrupted build leaves, and how to go on."""
    left = "no set was written" if target is None else f"{target} is as it was"
    if cache is None:
        return (
            f"interrupted: {left}; run it again. With cache= a folder, the next run does not open "
            f"again what this one has opened"
        )
    return f"interrupted: {left}; run it again to go on with the files that are not in the cache"
