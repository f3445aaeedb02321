"""Building as a tree where that gives the same, and at once in one place where it might not."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import xarray as xr

from virtualds.build_report import BuildReport
from virtualds.building.alike import Alike
from virtualds.building.arrangement import Arrangement
from virtualds.building.build import Build
from virtualds.building.by_blocks import BlockJob, joined
from virtualds.building.by_stretches import StretchJob
from virtualds.building.combining import Combination
from virtualds.building.dask_tree import ClusterBlocks
from virtualds.building.stored_file import Member, StoredFile, decoded
from virtualds.building.target import Target
from virtualds.building.tree import Block, Tree, UnlikeError

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
    client : distributed.Client, optional
        Of the cluster that opens them.
    target : Target, optional
        The set that their references go to.
    """

    build: Build[Any]
    combination: Combination
    arrangement: Arrangement
    client: Any = None
    target: Target | None = None

    def built(self) -> Built:
        """Return the dataset, what stands for each file that was opened, and the report."""
        # what is tried first is over before the next is: its errors are no part of what is told
        for way in (self._by_blocks, self._as_stored):
            with suppress(UnlikeError):
                return way()
        return self._of_datasets(*self.build.opened())

    def _as_stored(self) -> Built:
        """Join files that are alike as they are stored, or else datasets of what was opened.

        Raises
        ------
        UnlikeError
            They have to be opened as datasets.
        """
        alike = self._alike()
        job: Any = StretchJob(self.build.job, alike)
        found, report = replace(self.build, job=job).opened()
        with suppress(UnlikeError):
            return alike.joined(_stored(found)), found, report
        if any(isinstance(file, Member) for file in found.values()):
            raise UnlikeError("what is joined already cannot be taken apart")
        return self._of_datasets(found, report)

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
        self._check_one_dimension()
        by_coords = self.combination.combine == "by_coords"
        # what rises already is as arranging it would have left it
        return Alike(self.combination, rises=by_coords or self._arranges)

    def _check_one_dimension(self) -> None:
        if any(isinstance(item, list | tuple) for item in self.build.files.nested):
            raise UnlikeError("lists of lists are joined along several dimensions")

    @property
    def _arranges(self) -> bool:
        return self.arrangement.sort or self.arrangement.overlap != "keep"

    def _by_blocks(self) -> Built:
        """Build as a tree, where workers of a cluster open files or a set is written.

        Raises
        ------
        UnlikeError
            Neither is so, or they have to be combined at once.
        """
        if self.client is None and self.target is None:
            raise UnlikeError("who opens files combines them")
        tree = Tree(self.combination)
        self._check_one_dimension()
        there = self.client is not None
        job: Any = BlockJob(self.build.job, tree, self.target, joins=there)
        if not there:
            found, report = replace(self.build, job=job).opened()
            shares: list[Any] = [found[number] for number in sorted(found)]
            return self._arranged(tree, joined(tree, shares)), found, report
        workers = ClusterBlocks(self.client)
        found, report = replace(self.build, job=job, workers=workers).opened()
        block = workers.joined(tree, self.target, found)
        return self._arranged(tree, block), found, report

    def _arranged(self, tree: Tree, block: Block) -> xr.Dataset:
        """Return a block as the whole, if arranging its files first would have changed nothing."""
        whole = tree.finished(block)
        if self._arranges:
            dim = block.place.dim if tree.is_ordered else self.combination.concat_dim
            index = whole.indexes.get(dim)
            if index is None or not (index.is_monotonic_increasing and index.is_unique):
                raise UnlikeError(f"{dim!r} does not rise all the way, in the order of the files")
        return whole


def _stored(found: Mapping[int, Any]) -> list[StoredFile | Member]:
    """Return files in their order, as they are stored.

    Raises
    ------
    UnlikeError
        They are datasets already.
    """
    files = [found[number] for number in sorted(found)]
    if not all(isinstance(file, StoredFile | Member) for file in files):
        raise UnlikeError("they are datasets")
    return files
