"""Making a set hold what its files hold now: one change of groups, which writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.projection import find_runs
from virtualds.combine.ordering import CROPPING_OVERLAPS, Overlap
from virtualds.datasets.append import append_along, remove_sources, replace_sources
from virtualds.datasets.append_places import cut_along
from virtualds.datasets.duplicates import find_copies
from virtualds.datasets.from_dataset import as_read, group_from_dataset
from virtualds.datasets.source_positions import (
    find_positions,
    find_used_along,
    lies_in,
    urls_of,
)
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.errors import CombineError, without_secrets
from virtualds.quantities import format_count
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.listing import FileColumns
from virtualds.syncing.files import Changes, Mask, tabulate_sources
from virtualds.syncing.open_files import FileOpener, Urls
from virtualds.urls import scheme_of

REMEDY = (
    "leave one of the files out of the pattern, or pass overlap='first' to leave out of new files "
    "what the set has already"
)
"""What to do about a new file with positions that the set has already."""


@dataclass(frozen=True)
class Updated:
    """The group that a set shall hold, and the files that came into it."""

    group: ManifestGroup
    added: Urls = ()


@dataclass(frozen=True)
class Update:
    """How a set is brought up to date.

    Parameters
    ----------
    dim : str
        The dimension along which files follow each other.
    root : str
        The url of the set.
    opener : FileOpener
    drops : bool
        Whether files that are no longer there leave the set.
    sorts : bool
        Whether files are put where their coordinate belongs, if the set has one that rises or
        falls; else they go to the end.
    overlap : {"error", "first", "last", "keep"}
        What to do about positions of new files that the set has already.
    options : StorageOptions, optional
        Access options of the files.
    """

    dim: str
    root: str
    opener: FileOpener
    drops: bool = False
    sorts: bool = True
    overlap: Overlap = "error"
    options: StorageOptions | None = None

    def tabulate(self, group: ManifestGroup | None) -> FileColumns:
        """Return the files along the dimension that a set has; none if there is no set."""
        return tabulate_sources(group, self.dim, self.root)

    def begin(self, changes: Changes) -> Updated:
        """Return the group of a new set."""
        return self._begin_anew(changes)

    def apply(self, group: ManifestGroup, changes: Changes) -> Updated:
        """Drop, replace and add files.

        Raises
        ------
        CombineError
            A file does not fit the set.
        """
        removed = changes.removed if self.drops else ()
        added, changed = self.opener.open(changes.new), self.opener.open(changes.changed)
        if removed and len(removed) == len(self.tabulate(group)):
            return self._begin_anew(changes)
        begun = after = self._mend_static(self._lend_options(group), changes)
        if removed:
            found = remove_sources(after, removed, self.dim, self.root)
            after = after if found is after else as_read(found)
        if changed is not None:
            after = as_read(replace_sources(after, changed, self.dim, self.root))
            self._check_order(group, after, changes.changed)
        grown = after if added is None else self._add(after, added)
        if grown is begun:
            # data that the set has, without references to the file, are opened in every run
            return Updated(group)
        if added is None or grown is after:
            return Updated(grown)
        return Updated(grown, self._list_added(changes, added, self._find_shared(after, added)))

    def _begin_anew(self, changes: Changes) -> Updated:
        added = self.opener.open(changes.new)
        if added is None:
            raise CombineError(
                f"{self.root}: none of the files of the set is left, and there is no new one, so "
                f"nothing has been dropped; check the path, or remove the set"
            )
        if self.dim not in added.dims:
            raise self._explain_dimensions(changes.new, added)
        nothing = np.zeros(added.sizes[self.dim], bool)
        return Updated(group_from_dataset(added), self._list_added(changes, added, nothing))

    def _explain_dimensions(self, urls: Urls, added: xr.Dataset) -> CombineError:
        """Return the error of files without the dimension, with the groups that have it."""
        groups = self.opener.list_groups(next(u for u in urls if u not in self.opener.failed))
        having = [path for path, dims in groups.items() if self.dim in dims]
        dims = sorted(map(str, added.dims))
        if having:
            there, remedy = f"{dims}, and it in {having}", f"pass group={having[0]!r}"
        else:
            there, remedy = f"{dims}", "name one of these"
            if groups:
                shown = {path: sorted(dims) for path, dims in groups.items()}
                there, remedy = f"{dims}, and in groups {shown}", "name one, and its group="
        return CombineError(f"concat_dim {self.dim!r}: the files have {there}; {remedy}")

    def _list_added(self, changes: Changes, added: xr.Dataset, shared: Mask) -> Urls:
        """Return the new files that came into the set; others may have all that is in a file."""
        opened = tuple(url for url in changes.new if url not in self.opener.failed)
        if self.overlap not in CROPPING_OVERLAPS or not self._find_traced(added).all():
            return opened
        used = self._find_used(added, ~shared)
        return tuple(url for url in opened if url in used)

    def _find_traced(self, new: xr.Dataset) -> Mask:
        """Say for every position whether a chunk in a file tells that the set has it."""
        return find_positions(new, self.dim, urls_of(new))

    def _find_shared(self, group: ManifestGroup, new: xr.Dataset) -> Mask:
        """Say for every position of new files whether the set has a value of its coordinate."""
        there, index = _index_of(group, self.dim), new.indexes.get(self.dim)
        if there is None or index is None:
            return np.zeros(new.sizes[self.dim], bool)
        return np.asarray(index.isin(there) & index.notna())

    def _find_used(self, new: xr.Dataset, where: Mask) -> set[str]:
        """Return the files of which there are chunks at some positions."""
        urls = urls_of(new)
        runs = find_runs(np.flatnonzero(where))
        parts = (cut_along(new, self.dim, run) for run in runs)
        return {url for part in parts for url in find_used_along(part, self.dim, urls)}

    # ------------------------------------------------------------------ adding

    def _add(self, group: ManifestGroup, new: xr.Dataset) -> ManifestGroup:
        self._demand_traces(group, new)
        if self.overlap == "last":
            self._demand_shadowed(group, new)
        position = "coordinate" if self.sorts and self._rises_or_falls(group) else "end"
        for on_duplicate, part in self._split(new):
            how = (self.dim, position, on_duplicate)
            grown = append_along(group, part, *how, remedy=REMEDY, root=self.root)
            group = group if grown is group else as_read(grown)
        return group

    def _demand_traces(self, group: ManifestGroup, new: xr.Dataset) -> None:
        """Refuse files without a coordinate if the set may have them already, as copies."""
        if self.dim in new.indexes:
            return
        copies = find_copies(to_virtual_dataset(group), self.dim)
        if copies.any():
            raise CombineError(
                f"{self.root}: {np.count_nonzero(copies)} positions along {self.dim!r} have chunks "
                f"that were rewritten or are held in the set, which does not note their sources, "
                f"and no coordinate, so that nothing tells whether new files are there already; "
                f"write the set anew as zarr-v3, or give the files a coordinate (coordinates=)"
            )

    def _demand_shadowed(self, group: ManifestGroup, new: xr.Dataset) -> None:
        """Refuse new files that would take positions from earlier files of the set.

        A file of which later ones have all positions leaves no trace in the set. It is opened in
        every run, and the set stays as it is.
        """
        shared = self._find_shared(group, new)
        if not shared.any():
            return
        present = to_virtual_dataset(group)
        # without what the set holds itself
        there, known = present.indexes[self.dim], self.tabulate(group).urls
        for url in sorted(self._find_used(new, shared)):
            common = new.indexes[self.dim][shared & find_positions(new, self.dim, {url})]
            places = np.flatnonzero(there.isin(common))
            part = cut_along(present, self.dim, (int(places[0]), int(places[-1]) + 1))
            met = find_positions(part, self.dim, {other for other in known if other < url})
            if (lost := met & part.indexes[self.dim].isin(common)).any():
                raise CombineError(
                    f"{without_secrets(url)}: of its values of {self.dim!r} the set has "
                    f"{np.count_nonzero(lost)} from earlier files, the first is "
                    f"{part.indexes[self.dim][lost][0]}; overlap='last' takes them from this file "
                    f"only in a new set: write the set anew (delete it, and run again), or leave "
                    f"the file out of the pattern"
                )

    def _split(self, new: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
        """Return the parts to append, and what to do about positions that the set has.

        Data of which no chunk lies in a file leave no trace of the file in the set. It is opened in
        every run, and its coordinate tells whether the set has it.
        """
        traced = self._find_traced(new)
        how = {True: "skip" if self.overlap in CROPPING_OVERLAPS else "raise", False: "skip"}
        if traced.all():
            return [(how[True], new)]
        if self.dim not in new.indexes:
            raise CombineError(
                f"{np.count_nonzero(~traced)} positions along {self.dim!r} have neither a chunk in "
                f"a file nor a coordinate, so that the next run could not tell whether the set has "
                f"them; give them a coordinate (coordinates=), or append them yourself with "
                f"ds.virtual.to_manifest"
            )
        runs = [
            (mark, run)
            for mark in (True, False)
            for run in find_runs(np.flatnonzero(traced == mark))
        ]
        return [(how[mark], cut_along(new, self.dim, run)) for mark, run in runs]

    def _rises_or_falls(self, group: ManifestGroup) -> bool:
        index = _index_of(group, self.dim)
        return index is not None and bool(
            index.is_monotonic_increasing or index.is_monotonic_decreasing
        )

    def _check_order(self, before: ManifestGroup, after: ManifestGroup, changed: Urls) -> None:
        """Refuse changed files that no longer follow each other as the set does."""
        old, new = _index_of(before, self.dim), _index_of(after, self.dim)
        if not self.sorts or old is None or new is None or not old.is_unique:
            return
        kept = (old.is_monotonic_increasing and new.is_monotonic_increasing) or (
            old.is_monotonic_decreasing and new.is_monotonic_decreasing
        )
        if (self._rises_or_falls(before) and not kept) or not new.is_unique:
            found = {url: self._compare_values(url, before, after) for url in changed}
            moved = [url for url, (had, has) in found.items() if not had.equals(has)]
            [first, *others] = moved or changed
            more = f" (and {format_count(len(others), 'other file')})" if others else ""
            had, has = found[first]
            reason = (
                f"has other values of {self.dim!r} than before, which overlap those of other "
                f"files, or come in another order"
            )
            crops = self.overlap in CROPPING_OVERLAPS
            if crops and len(had) < len(has) and had.isin(has).all() and has.isin(old).all():
                reason = (
                    f"the set has only {len(had)} of its {len(has)} values of {self.dim!r} from "
                    f"it, since other files have the rest"
                )
            raise CombineError(
                f"{first}{more}: it has changed, and {reason}; write the set anew (delete it, and "
                f"run again), or leave the file out of the pattern"
            )

    def _compare_values(self, url: str, before: ManifestGroup, after: ManifestGroup) -> list[Any]:
        """Return what the set had of a file along the dimension, and what it would have."""
        datasets = [to_virtual_dataset(group) for group in (before, after)]
        return [ds.indexes[self.dim][find_positions(ds, self.dim, {url})] for ds in datasets]

    # ------------------------------------------------------------------ without the dimension

    def _lend_options(self, group: ManifestGroup) -> ManifestGroup:
        """Let variables be read that new files are compared with; a set hands on no credentials."""
        if self.options is None:
            return group
        lent = {
            name: replace(v, data=_with_options(v.data, self.options))
            for name, v in group.variables.items()
            if isinstance(v.data, ManifestArray) and self.dim not in v.dims
        }
        return replace(group, variables={**group.variables, **lent})

    def _mend_static(self, group: ManifestGroup, changes: Changes) -> ManifestGroup:
        """Take variables without the dimension from a file that is as the set knows it.

        New files are compared with them, and the file that they came from may be gone.
        """
        replaced = {url for url in changes.changed if url not in self.opener.failed}
        unsound = {*changes.removed, *changes.changed, *changes.waiting} - replaced
        lost = [name for name, v in group.variables.items() if self._lies_in(v, unsound)]
        if not lost:
            return group
        known = self.tabulate(group).urls
        sound = next((url for url in known if url not in unsound | replaced), None)
        urls = changes.new or tuple(replaced) if sound is None else (str(sound),)
        found = self.opener.open(urls)
        others = {} if found is None else group_from_dataset(found).variables
        mended = {name: _take_alike(name, group.variables[name], others) for name in lost}
        return as_read(replace(group, variables={**group.variables, **mended}))

    def _lies_in(self, variable: ManifestVariable, urls: set[str]) -> bool:
        """Say whether a variable without the dimension lies in some files."""
        data = variable.data
        return (
            isinstance(data, ManifestArray)
            and self.dim not in variable.dims
            and lies_in(data, urls)
        )


def _with_options(array: ManifestArray, options: StorageOptions) -> ManifestArray:
    """Return an array whose remote files are read with some options, unless they have others."""

    def lent(file: SourceFile) -> SourceFile:
        is_bare = file.options is None and scheme_of(file.url) != "file"
        return file._replace(options=options) if is_bare else file

    fragments = (replace(f, manifest=f.manifest.with_files(lent)) for f in array.fragments)
    return replace(array, fragments=tuple(fragments))


def _take_alike(
    name: str, lost: ManifestVariable, others: Mapping[str, ManifestVariable]
) -> ManifestVariable:
    found = others.get(name)
    if found is None or (found.dims, found.data.shape) != (lost.dims, lost.data.shape):
        raise CombineError(
            f"{name}: it lies in a file that is no longer there, and the other files do not have "
            f"it in this shape; write the set anew"
        )
    return found


def _index_of(group: ManifestGroup, dim: str) -> Any:
    """Return the index along a dimension of a set, None if it has none."""
    if dim not in group.variables:
        return None
    alone = replace(group, variables={dim: group.variables[dim]}, groups={}, attributes={})
    return to_virtual_dataset(alone).indexes.get(dim)
