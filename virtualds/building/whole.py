"""Building of files as they are stored, and of datasets where that might not be the same."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import xarray as xr

from virtualds.build_report import BuildReport
from virtualds.building.alike import FEWEST, Alike, UnlikeError
from virtualds.building.arrangement import Arrangement
from virtualds.building.build import Build
from virtualds.building.by_stretches import StretchJob
from virtualds.building.combining import Combination
from virtualds.building.decoded_file import as_stored
from virtualds.building.stored_file import Member, StoredFile, decoded
from virtualds.building.target import Target

Built = tuple[xr.Dataset, Mapping[int, Any], BuildReport]
"""The dataset, what stands for each file that was opened, and what became of them."""


@dataclass(frozen=True)
class Whole:
    """Files that become one dataset.

    Parameters
    ----------
    build : Build
        How each is opened.
    combination : Combination
        How they are combined.
    arrangement : Arrangement
        How they are put in order before that.
    target : Target, optional
        The set that their references go to.
    datasets : bool
        Whether files that come as datasets are joined by those who opened them, too.
    """

    build: Build[Any]
    combination: Combination
    arrangement: Arrangement
    target: Target | None = None
    datasets: bool = False

    def built(self) -> Built:
        """Return the dataset, what stands for each file that was opened, and the report."""
        # what is tried first is over before the next is: its errors are no part of what is told
        with suppress(UnlikeError):
            return self._as_stored()
        return self._of_datasets(*self._joining(None).opened())

    def _as_stored(self) -> Built:
        """Join files that are alike as they are stored, or else datasets of what was opened.

        Raises
        ------
        UnlikeError
            They have to be opened as datasets.
        """
        alike = self._alike()
        found, report = self._joining(alike).opened()
        with suppress(UnlikeError):
            return alike.joined(self._stored(found)), found, report
        if any(isinstance(file, Member) for file in found.values()):
            raise UnlikeError("what is joined already cannot be taken apart")
        return self._of_datasets(found, report)

    def _joining(self, alike: Alike | None) -> Build[Any]:
        """Return the build in which who opens files joins them, and writes what goes into a set."""
        dims = self.combination.dims
        job: Any = StretchJob(self.build.job, alike, self.target, self.datasets, dims)
        return replace(self.build, job=job)

    def _of_datasets(self, found: Mapping[int, Any], report: BuildReport) -> Built:
        """Combine a dataset of every file."""
        if any(isinstance(file, StoredFile) for file in found.values()):
            found = {n: decoded(file) for n, file in found.items()}
            # what decodes to something else than the files before it may have been loaded
            report = replace(report, references=sum(d.virtual.nchunks for d in found.values()))
        return self.build.combined(self.combination, found, self.arrangement), found, report

    def _alike(self) -> Alike:
        """Return what joins files as stored, if arranging them first changes nothing.

        Raises
        ------
        UnlikeError
            No files can be joined so.
        """
        if len(self.build.files.flat) < FEWEST:
            raise UnlikeError("there is nothing to be saved")
        if any(isinstance(item, list | tuple) for item in self.build.files.nested):
            raise UnlikeError("lists of lists are joined along several dimensions")
        by_coords = self.combination.combine == "by_coords"
        arranges = self.arrangement.sort or self.arrangement.overlap != "keep"
        # what rises already is as arranging it would have left it
        return Alike(self.combination, rises=by_coords or arranges)

    def _stored(self, found: Mapping[int, Any]) -> list[StoredFile | Member]:
        """Return files in their order, as they are stored.

        Raises
        ------
        UnlikeError
            They are datasets already.
        """
        names = self.build.files.flat
        files: list[Any] = [found[n] for n in sorted(found)]
        if self.datasets:
            files = [as_stored(names[n], found[n]) for n in sorted(found)]
        if not all(isinstance(file, StoredFile | Member) for file in files):
            raise UnlikeError("they are datasets")
        return files
