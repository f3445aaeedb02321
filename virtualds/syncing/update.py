"""What an update does to a group of a set: files are removed, replaced and added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.sources import move_files
from virtualds.chunks.axes import find_runs
from virtualds.combine.ordering import CROPPING_OVERLAPS, Overlap
from virtualds.datasets.from_dataset import as_read, group_from_dataset
from virtualds.datasets.source_positions import (
    cut_along,
    find_copies,
    find_positions,
    find_used_at,
    find_values,
    has_chunks_in,
    urls_of,
)
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.errors import CombineError, format_count, without_secrets
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.syncing.files import Changes, FileOpener, Mask, SetFiles, Urls
from virtualds.urls import scheme_of
from virtualds.writing.append import AppendOptions, append_along, remove_sources, replace_sources
from virtualds.writing.cells import CellGrid

ANEW = "write the set anew (delete it, and run again)"


REMEDIES = {
    "if_known": "leave one of the files out of the pattern, or pass overlap='first' to leave out "
    "of new files what the set has already",
    "if_misfit": "leave it out of the pattern; make its variables those of the set with "
    f"drop_variables= or preprocess=; or {ANEW}",
    "if_extra": "drop_variables= leaves it out",
}
"""Remedies for new files that do not fit: only arguments that `sync` has."""


@dataclass(frozen=True)
class Update:
    """How a group of a set is updated.

    The files are joined along ``dims``, outermost first; several make a grid. With ``drops``, files
    that no longer exist are removed from the set. With ``sorts``, new ones are inserted where their
    coordinate belongs, if it is monotonic. ``overlap`` is what to do about positions that the set
    already has.
    """

    dims: tuple[str, ...]
    known: SetFiles
    opener: FileOpener
    drops: bool = False
    sorts: bool = True
    overlap: Overlap = "error"
    options: StorageOptions | None = None

    @property
    def dim(self) -> str:
        """The first dimension."""
        return self.dims[0]

    def open(self, changes: Changes) -> set[str]:
        """Open the files that are new or have changed; return those that cannot be opened."""
        for urls in (changes.new, changes.changed):
            self.opener.open(urls)
        return set(self.opener.failed)

    def has_new(self, changes: Changes) -> bool:
        """Return whether any new file can be opened."""
        return self.opener.open(changes.new) is not None

    def is_needed(self, changes: Changes) -> bool:
        """Return whether anything is to be changed, once files are opened."""
        opened = [self.opener.open(urls) for urls in (changes.new, changes.changed)]
        return bool(self.list_dropped(changes)) or any(one is not None for one in opened)

    def list_dropped(self, changes: Changes) -> Urls:
        """Return the files that are to be removed from the set."""
        return (*(changes.removed if self.drops else ()), *changes.superseded)

    def apply(self, group: ManifestGroup, changes: Changes) -> tuple[ManifestGroup, Urls]:
        """Remove, replace and add files; return the group, and the files that were added."""
        removed = self.list_dropped(changes)
        added, changed = self.opener.open(changes.new), self.opener.open(changes.changed)
        if removed and len(removed) == len(self.known.tabulate(group)):
            return self.create(changes)
        if len(self.dims) > 1:
            return self._apply_to_grid(group, changes, removed)
        begun = after = self._refresh_static(self._add_options(group), changes)
        if removed:
            found = remove_sources(after, removed, self.dim, self.known.root)
            after = after if found is after else as_read(found)
        if changed is not None:
            with self._name_mismatch(after, changes.changed):
                after = as_read(replace_sources(after, changed, self.dim, self.known.root))
            self._check_order(group, after, changes.changed)
        grown = after if added is None else self._add(after, added, changes.new)
        if grown is begun:
            # data that the set has without references to their file are opened in every run
            return group, ()
        if added is None or grown is after:
            return grown, ()
        return grown, self._list_added(changes, added, self._find_shared(after, added))

    def _apply_to_grid(
        self, group: ManifestGroup, changes: Changes, removed: Urls
    ) -> tuple[ManifestGroup, Urls]:
        """Clear cells of files that are gone, fill others, and drop positions that are empty."""
        added, changed = self.opener.open(changes.new), self.opener.open(changes.changed)
        replaced = {url for url in changes.changed if url not in self.opener.failed}
        unsound = frozenset({*removed, *changes.removed, *changes.changed, *changes.waiting})
        remedies = {name: REMEDIES[name] for name in ("if_misfit", "if_extra")}
        grid = CellGrid(self.dims, self.known.root, self.sorts, unsound, **remedies)
        begun = after = self._refresh_static(self._add_options(group), changes)
        moved = () if changed is None else grid.list_moved(after, changed, replaced)
        gone = {*removed, *moved}
        touched: Mapping[str, pd.Index[Any]] = grid.find_touched(after, gone)
        names, others = grid.find_lost(after)
        if gone or replaced:
            after = as_read(grid.clear_values(after, {*gone, *replaced}))
        if gone or names:
            # of files that are kept, wait or cannot be opened, the references stay
            after = as_read(grid.clear(after, gone, {*removed, *replaced}))
        if names and (shared := self.opener.open(tuple(others))) is not None:
            after = as_read(grid.put_shared(after, shared, names))
        if changed is not None:
            with self._name_mismatch(after, changes.changed):
                found = grid.put(after, changed, replaced)
                after = after if found is after else as_read(found)
        if added is not None:
            # changed files are now in the set as they are, and keep their cells
            grid = replace(grid, unsound=unsound - replaced)
            with self._name_mismatch(after, changes.new):
                found = grid.put(after, added)
                after = after if found is after else as_read(found)
        if gone:
            # a file may store no chunks at some of its positions, which stay
            for opened in (changed, added):
                touched = _leave_out(touched, opened)
            doubtful = grid.find_doubtful(after, touched)
            touched = _leave_out(touched, self.opener.open(doubtful))
            after = as_read(grid.drop_empty(after, touched))
        if after is begun:
            # files of which the set has all cells, without a chunk, are opened in every run
            return group, ()
        return after, tuple(url for url in changes.new if url not in self.opener.failed)

    def create(self, changes: Changes) -> tuple[ManifestGroup, Urls]:
        """Return a group of the new files, and those that were added."""
        added = self.opener.open(changes.new)
        if added is None:
            raise CombineError(
                f"{self.known.root}: none of the files of the set is left, and there is no new "
                f"one, so nothing has been dropped; check the path, or remove the set"
            )
        if not set(self.dims) <= set(added.dims):
            raise self.opener.explain_dimensions(changes.new, added)
        nothing = np.zeros(added.sizes[self.dim], bool)
        return group_from_dataset(added), self._list_added(changes, added, nothing)

    def _list_added(self, changes: Changes, added: xr.Dataset, shared: Mask) -> Urls:
        """Return the new files that were added; the set may already have all data of the others."""
        opened = tuple(url for url in changes.new if url not in self.opener.failed)
        if self.overlap not in CROPPING_OVERLAPS or not self._find_with_references(added).all():
            return opened
        used = find_used_at(added, self.dim, ~shared)
        return tuple(url for url in opened if url in used)

    def _find_with_references(self, new: xr.Dataset) -> Mask:
        """Return the mask of positions with a chunk in a file, to which the set can refer."""
        return find_positions(new, self.dim, urls_of(new))

    def _find_shared(self, group: ManifestGroup, new: xr.Dataset) -> Mask:
        """Return the mask of positions whose coordinate value is already in the set."""
        there, index = _index_of(group, self.dim), new.indexes.get(self.dim)
        if there is None or index is None:
            return np.zeros(new.sizes[self.dim], bool)
        return np.asarray(index.isin(there) & index.notna())

    # ------------------------------------------------------------------ adding

    def _add(self, group: ManifestGroup, new: xr.Dataset, urls: Urls) -> ManifestGroup:
        self._check_for_copies(group, new)
        if self.overlap == "last":
            self._check_replaced_files(group, new)
        position = "coordinate" if self.sorts and _is_ordered(_index_of(group, self.dim)) else "end"
        for on_duplicate, part in self._split(new):
            how = AppendOptions(self.dim, position, on_duplicate, root=self.known.root, **REMEDIES)
            with self._name_mismatch(group, urls, on_duplicate):
                grown = append_along(group, part, how)
            group = group if grown is group else as_read(grown)
        return group

    @contextmanager
    def _name_mismatch(
        self, group: ManifestGroup, urls: Urls, on_duplicate: str = "skip"
    ) -> Iterator[None]:
        """Name the first file that does not fit the set in errors, trying one of each schema."""
        try:
            yield
        except CombineError as error:
            for url in self.opener.list_examples(urls):
                if len(urls) == 1 or self._is_mismatch(group, url, on_duplicate):
                    error.locate_file(without_secrets(url))
                    break
            raise

    def _is_mismatch(self, group: ManifestGroup, url: str, on_duplicate: str) -> bool:
        try:
            if (found := self.opener.open((url,))) is not None and len(self.dims) > 1:
                CellGrid(self.dims, self.known.root, self.sorts).put(group, found, (url,))
            elif found is not None:
                how = AppendOptions(self.dim, on_duplicate=on_duplicate, root=self.known.root)
                append_along(group, found, how)
        except CombineError:
            return True
        return False

    def _check_for_copies(self, group: ManifestGroup, new: xr.Dataset) -> None:
        """Raise an error for files without a coordinate if the set may have copies of them."""
        if self.dim in new.indexes:
            return
        copies = find_copies(to_virtual_dataset(group), self.dim)
        if copies.any():
            raise CombineError(
                f"{self.known.root}: {np.count_nonzero(copies)} positions along {self.dim!r} have "
                f"chunks that were rewritten or are held in the set, which does not note their "
                f"sources, and no coordinate, so that nothing tells whether new files are there "
                f"already; write the set anew as zarr-v3, or give the files a coordinate "
                f"(coordinates=)"
            )

    def _check_replaced_files(self, group: ManifestGroup, new: xr.Dataset) -> None:
        """Raise an error for new files that would replace all positions of earlier files.

        If later files have all positions of a file, the set does not refer to it. It is opened in
        every run, and the set stays unchanged.
        """
        shared = self._find_shared(group, new)
        if not shared.any():
            return
        present = to_virtual_dataset(group)
        # except for what the set stores itself
        there, known = present.indexes[self.dim], self.known.tabulate(group).urls
        for url in sorted(find_used_at(new, self.dim, shared)):
            common = new.indexes[self.dim][shared & find_positions(new, self.dim, {url})]
            places = np.flatnonzero(there.isin(common))
            part = cut_along(present, self.dim, (int(places[0]), int(places[-1]) + 1))
            met = find_positions(part, self.dim, {other for other in known if other < url})
            if (lost := met & part.indexes[self.dim].isin(common)).any():
                raise CombineError(
                    f"{without_secrets(url)}: of its values of {self.dim!r} the set has "
                    f"{np.count_nonzero(lost)} from earlier files, the first is "
                    f"{part.indexes[self.dim][lost][0]}; overlap='last' takes them from this file "
                    f"only in a new set: {ANEW}, or leave the file out of the pattern"
                )

    def _split(self, new: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
        """Return the parts to append, each with what to do about positions already in the set.

        For data without a chunk in a file, the set does not refer to the file. It is opened in
        every run, and its coordinate shows whether the set has it.
        """
        traced = self._find_with_references(new)
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
        return [
            (how[mark], cut_along(new, self.dim, run))
            for mark in (True, False)
            for run in find_runs(np.flatnonzero(traced == mark))
        ]

    def _check_order(self, before: ManifestGroup, after: ManifestGroup, changed: Urls) -> None:
        """Raise an error for changed files that no longer follow each other as in the set."""
        old, new = _index_of(before, self.dim), _index_of(after, self.dim)
        if not self.sorts or old is None or new is None or not old.is_unique:
            return
        ways = ("is_monotonic_increasing", "is_monotonic_decreasing")
        goes_on = any(getattr(old, way) and getattr(new, way) for way in ways)
        if new.is_unique and (goes_on or not _is_ordered(old)):
            return
        had, has = (
            find_values(to_virtual_dataset(group), self.dim, changed) for group in (before, after)
        )
        moved = [url for url in changed if not had[url].equals(has[url])]
        [first, *others] = moved or changed
        more = f" (and {format_count(len(others), 'other file')})" if others else ""
        ours, its, crops = had[first], has[first], self.overlap in CROPPING_OVERLAPS
        if crops and len(ours) < len(its) and ours.isin(its).all() and its.isin(old).all():
            reason = (
                f"the set has only {len(ours)} of its {len(its)} values of {self.dim!r} from it, "
                f"since other files have the rest"
            )
        else:
            reason = (
                f"has other values of {self.dim!r} than before, which overlap those of other "
                f"files, or come in another order"
            )
        raise CombineError(
            f"{first}{more}: it has changed, and {reason}; {ANEW}, or leave the file out of the "
            f"pattern"
        )

    # ------------------------------------------------------------------ without the dimension

    def _add_options(self, group: ManifestGroup) -> ManifestGroup:
        """Add access options to the files of a group, so that new files can be compared with it."""
        if self.options is None:
            return group

        def lend(file: SourceFile) -> SourceFile:
            is_bare = file.options is None and scheme_of(file.url) != "file"
            return file._replace(options=self.options) if is_bare else file

        lent = {
            name: replace(v, data=move_files(v.data, lend))
            for name, v in group.variables.items()
            if not set(self.dims).intersection(v.dims) and isinstance(v.data, ManifestArray)
        }
        return replace(group, variables={**group.variables, **lent})

    def _refresh_static(self, group: ManifestGroup, changes: Changes) -> ManifestGroup:
        """Take variables without the dimension from a file that has not changed.

        New files are compared with them, and the file from which they came may no longer exist.
        """
        replaced = {url for url in changes.changed if url not in self.opener.failed}
        unsound = {*changes.removed, *changes.changed, *changes.waiting, *changes.superseded}
        unsound -= replaced
        dims = set(self.dims)
        static = {name: v for name, v in group.variables.items() if not dims.intersection(v.dims)}
        lost = {
            name: v
            for name, v in static.items()
            if unsound and isinstance(v.data, ManifestArray) and has_chunks_in(v.data, unsound)
        }
        if not lost:
            return group
        known = self.known.tabulate(group).urls
        sound = next((url for url in known if url not in unsound | replaced), None)
        urls = changes.new or tuple(replaced) if sound is None else (str(sound),)
        found = self.opener.open(urls)
        others = {} if found is None else group_from_dataset(found).variables
        mended: dict[str, ManifestVariable] = {}
        for name, variable in lost.items():
            other = others.get(name)
            shape = variable.dims, variable.data.shape
            if other is None or (other.dims, other.data.shape) != shape:
                raise CombineError(
                    f"{name}: it lies in a file that is no longer there, and the other files do "
                    f"not have it in this shape; write the set anew"
                )
            mended[name] = other
        return as_read(replace(group, variables={**group.variables, **mended}))


def _is_ordered(index: Any) -> bool:
    return index is not None and bool(
        index.is_monotonic_increasing or index.is_monotonic_decreasing
    )


def _index_of(group: ManifestGroup, dim: str) -> Any:
    """Return the index along a dimension of a set, or None if it has none."""
    if dim not in group.variables:
        return None
    alone = replace(group, variables={dim: group.variables[dim]}, groups={}, attributes={})
    return to_virtual_dataset(alone).indexes.get(dim)


def _leave_out(
    values: Mapping[str, pd.Index[Any]], found: xr.Dataset | None
) -> Mapping[str, pd.Index[Any]]:
    """Return coordinate values along dimensions, without those of a dataset."""
    if found is None:
        return values
    return {dim: index[~index.isin(found.indexes[dim])] for dim, index in values.items()}
