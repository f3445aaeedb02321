"""The frame of every build: open the files, leave out those that fail, combine the rest."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import xarray as xr

from virtualds.combine.build_options import BuildOptions
from virtualds.combine.concat_job import StretchJob
from virtualds.combine.concat_stored import FEWEST_FILES, Concatenator
from virtualds.combine.decoded_file import as_stored
from virtualds.combine.files import Files
from virtualds.combine.joinable import NeedsFullCombineError
from virtualds.combine.open_file import NumberedFile, Opened, OpenJob, Outcome
from virtualds.combine.ordering import crop_datasets, flatten_nested, is_row_wise
from virtualds.combine.overlap import Extent
from virtualds.combine.progress import (
    BuildReport,
    Count,
    LeftOut,
    describe_left_out,
    report_progress,
)
from virtualds.combine.read_together import AlikeOpener
from virtualds.combine.stored_file import FileInConcat, StoredFile, decode_opened, sample
from virtualds.combine.workers import Workers
from virtualds.combine.write_target import BuildTarget
from virtualds.combine.xarray_combine import Combination, combine_naming_files
from virtualds.errors import CombineError


@dataclass(frozen=True)
class Build(Generic[Opened]):
    """How files become one dataset, or tree.

    Parameters
    ----------
    files : Files
    job : OpenJob
        What is done with each.
    workers : callable
        Who does it.
    building : BuildOptions
        What is done about files that cannot be opened, and who is told how far it is.
    """

    files: Files
    job: OpenJob[Opened]
    workers: Workers
    building: BuildOptions = field(default_factory=BuildOptions)

    def open_files(self) -> tuple[dict[int, Opened], BuildReport]:
        """Open all files; return them by number, and what became of them."""
        items: Sequence[NumberedFile] = list(enumerate(self.files.flat))
        found: dict[int, Opened] = {}
        failed: dict[int, Exception] = {}
        with report_progress(self.building.progress, len(items)) as tell:
            count = Count(len(items), tell)
            with closing(self.workers(self.job, items)) as outcomes:
                for outcome in self._raise_first(outcomes, found):
                    count.add(outcome)
                    if outcome.found is not None:
                        found[outcome.number] = outcome.found
                    elif outcome.error is not None:
                        failed[outcome.number] = outcome.error
            if not found:
                raise _find_first_error(failed)
            names = self.files.flat
            lost = (LeftOut.of(names[number], failed[number]) for number in sorted(failed))
            report = count.finish(lost)
        if failed and self.building.on_error == "skip":
            lines = "\n".join(describe_left_out(report.left_out))
            warnings.warn(
                f"{len(failed)} of {len(items)} files could not be opened, and are left out\n"
                f"{lines}",
                stacklevel=6,
            )
        return found, report

    def combine(self, combination: Combination, found: Mapping[int, Opened]) -> Any:
        """Arrange what was opened, and combine it."""
        names = self.files.flat
        combination.check_dims([found[number] for number in sorted(found)])
        # in their order, whoever was done first: errors name files in it
        dims = combination.dims
        extents = {n: Extent.of(names[n], found[n], dims) for n in sorted(found)}
        if dims and len(found) < len(names) and not self.files.stay_in_place(found):
            raise _displaced_error(names[min(set(range(len(names))) - found.keys())])
        numbers = self.files.nest({number: number for number in found})
        parts = combination.arrangement.arrange_parts(numbers, extents, dims)
        placed = [part.file for part in flatten_nested(parts)]
        files, opened = [names[n] for n in placed], [found[n] for n in placed]
        combine = combination.combine_rows if is_row_wise(numbers, parts) else combination
        joined = None if combination.concat_dim is None else dims
        combined = combine_naming_files(combine, joined, crop_datasets(parts, found), files, opened)
        combination.arrangement.check(Extent.of("the result", combined), extents.values())
        return combined

    def _raise_first(
        self, outcomes: Iterable[Outcome[Opened]], found: Mapping[int, Opened]
    ) -> Iterator[Outcome[Opened]]:
        """Raise the first error, in the order of the files, that is not to be left out."""
        done, awaited = set[int](), set[int]()
        first, error = len(self.files.flat), None
        for outcome in outcomes:
            done.add(outcome.number)
            awaited.discard(outcome.number)
            if self._is_fatal(outcome) and outcome.number < first:
                first, error = outcome.number, outcome.error
                awaited = set(range(first)) - done
            if error is None:
                yield outcome
            elif not awaited:
                break
        if error is not None:
            for number in sorted(number for number in found if number < first):
                # one that nobody has made a dataset of yet may fail at that
                opened: Any = found[number]
                if isinstance(opened, StoredFile | FileInConcat):
                    sample(opened)
            raise error

    def _is_fatal(self, outcome: Outcome[Opened]) -> bool:
        if outcome.error is None:
            return False
        return not outcome.is_fault or self.building.stops


def _displaced_error(file: Any) -> CombineError:
    return CombineError(
        f"{file}: it is left out of nested lists, but not its whole row, so that other files would "
        f"take its place; give all files in one list, to be put into a grid by their coordinates, "
        f"or leave out the whole row"
    )


def _find_first_error(failed: dict[int, Exception]) -> Exception:
    """Return the first error of a build of which no file is left."""
    error = failed[min(failed)]
    error.add_note(f"none of {len(failed)} files could be opened; this is what the first one said")
    return error


BuildResult = tuple[xr.Dataset, Mapping[int, Any], BuildReport]
"""The dataset, what stands for each file that was opened, and what became of them."""


@dataclass(frozen=True)
class DatasetBuilder:
    """Files that become one dataset.

    Parameters
    ----------
    build : Build
        How each is opened.
    combination : Combination
        How they are combined.
    target : BuildTarget, optional
        The set that their references go to.
    datasets : bool
        Whether files that come as datasets are joined by those who opened them, too.
    together : AlikeOpener, optional
        Opens files of one structure together.
    """

    build: Build[Any]
    combination: Combination
    target: BuildTarget | None = None
    datasets: bool = False
    together: AlikeOpener | None = None

    def build_dataset(self) -> BuildResult:
        """Return the dataset, what stands for each file that was opened, and the report."""
        # what is tried first is over before the next is: its errors are no part of what is told
        with suppress(NeedsFullCombineError):
            return self._build_as_stored()
        return self._build_of_datasets(*self._make_joining_build(None).open_files())

    def _build_as_stored(self) -> BuildResult:
        """Join files that are alike as they are stored, or else datasets of what was opened.

        Raises
        ------
        NeedsFullCombineError
            They have to be opened as datasets.
        """
        alike = self._make_concatenator()
        found, report = self._make_joining_build(alike).open_files()
        with suppress(NeedsFullCombineError):
            return alike.join(self._list_stored(found)), found, report
        if any(isinstance(file, FileInConcat) for file in found.values()):
            raise NeedsFullCombineError("what is joined already cannot be taken apart")
        return self._build_of_datasets(found, report)

    def _make_joining_build(self, alike: Concatenator | None) -> Build[Any]:
        """Return the build in which who opens files joins them, and writes what goes into a set."""
        dims = self.combination.dims
        together = self.together if alike else None
        job: Any = StretchJob(self.build.job, alike, self.target, self.datasets, dims, together)
        return replace(self.build, job=job)

    def _build_of_datasets(self, found: Mapping[int, Any], report: BuildReport) -> BuildResult:
        """Combine a dataset of every file."""
        if any(isinstance(file, StoredFile) for file in found.values()):
            found = {n: decode_opened(file) for n, file in found.items()}
            # what decodes to something else than the files before it may have been loaded
            report = replace(report, references=sum(d.virtual.nchunks for d in found.values()))
        return self.build.combine(self.combination, found), found, report

    def _make_concatenator(self) -> Concatenator:
        """Return what joins files as stored, if arranging them first changes nothing.

        Raises
        ------
        NeedsFullCombineError
            No files can be joined so.
        """
        if len(self.build.files.flat) < FEWEST_FILES:
            raise NeedsFullCombineError("there is nothing to be saved")
        if any(isinstance(item, list | tuple) for item in self.build.files.nested):
            raise NeedsFullCombineError("lists of lists are joined along several dimensions")
        by_coords, how = self.combination.combine == "by_coords", self.combination.arrangement
        arranges = how.sort or how.overlap != "keep"
        # what rises already is as arranging it would have left it
        return Concatenator(self.combination, rises=by_coords or arranges)

    def _list_stored(self, found: Mapping[int, Any]) -> list[StoredFile | FileInConcat]:
        """Return files in their order, as they are stored.

        Raises
        ------
        NeedsFullCombineError
            They are datasets already.
        """
        names = self.build.files.flat
        files: list[Any] = [found[n] for n in sorted(found)]
        if self.datasets:
            files = [as_stored(names[n], found[n]) for n in sorted(found)]
        if not all(isinstance(file, StoredFile | FileInConcat) for file in files):
            raise NeedsFullCombineError("they are datasets")
        return files
