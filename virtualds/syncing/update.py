"""Update a group of a set: remove, replace and add its files."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, find_dim_sizes
from virtualds.arrays.sources import move_files
from virtualds.chunks.axes import find_runs
from virtualds.combine.ordering import CROPPING_OVERLAPS, Overlap
from virtualds.datasets.conversion import group_from_dataset, to_virtual_dataset
from virtualds.datasets.lazy import replace_variables
from virtualds.datasets.padding import NO_PADDING, Padding
from virtualds.datasets.source_positions import (
    choose_positions,
    cut_along,
    find_copies,
    find_positions,
    find_ranges,
    find_used_at,
    find_values,
    has_chunks_in,
    is_stored_in_set,
    list_owners,
    list_sources,
    urls_of,
)
from virtualds.errors import CombineError, format_count, without_secrets
from virtualds.source_file import SourceFile, StorageOptions, scheme_of
from virtualds.stores.listing import FileColumns
from virtualds.syncing.notes import (
    CUT,
    DESCRIBED,
    DESCRIBES,
    DUE,
    OUTSIDE,
    SHADOWED,
    UNUSED,
    CoordinateExtent,
    Mask,
    Notes,
    Urls,
    Window,
    count_values,
    find_among,
    find_extent,
    join_extents,
    to_numbers,
)
from virtualds.writing.append import (
    AppendOptions,
    append_along,
    drop_positions,
    open_set,
    remove_sources,
    replace_sources,
    to_stored,
)
from virtualds.writing.cells import CellGrid, LostCells

if TYPE_CHECKING:
    from virtualds.syncing.files import Changes, FileOpener, KnownFiles, SourceListReader

Ints = npt.NDArray[np.intp]
Values = Mapping[str, "pd.Index[Any]"]
"""Coordinate values by dimension; empty for a file without coordinates."""

RECREATE_SET = "write the set again (delete it, and run again)"


REMEDIES = {
    "duplicate_remedy": "leave one of the files out of the pattern, or pass overlap='first' to "
    "leave out of new files what the set has already",
    "misfit_remedy": "leave it out of the pattern; make its variables those of the set with "
    f"drop_variables= or preprocess=; or {RECREATE_SET}",
    "extra_variable_remedy": "drop_variables= leaves it out",
}
"""Remedies for new files that do not fit, with arguments of `sync`."""


class GroupOutcome(NamedTuple):
    """The result of updating a group: its new notes, and the changes of its files.

    ``added`` files are new in the set. ``released`` files still exist, but the set no longer uses
    them. ``reopened`` files are unchanged, but the set now uses other positions of them.
    """

    notes: Notes
    added: Collection[str] = ()
    released: Collection[str] = ()
    reopened: Collection[str] = ()


@dataclass(frozen=True)
class Update:
    """Updates a group of a set.

    The files are joined along ``dims``, outermost first; several form a grid. With
    ``drop_removed``, files that no longer exist are removed from the set. With ``sort``, new files
    are inserted in the order of a monotonic coordinate. ``overlap`` is how to handle positions that
    several files have, ``window`` is the part of the set to keep, and ``padding`` has the other
    dimensions along which the lengths of files may differ.
    """

    dims: tuple[str, ...]
    reader: SourceListReader
    opener: FileOpener
    drop_removed: bool = False
    sort: bool = True
    overlap: Overlap = "error"
    window: Window = field(default_factory=Window)
    options: StorageOptions | None = None
    padding: Padding = NO_PADDING

    @property
    def dim(self) -> str:
        """The first dimension."""
        return self.dims[0]

    @property
    def crops_overlaps(self) -> bool:
        """Whether each position is taken from the first or the last file that has it."""
        return self.overlap in CROPPING_OVERLAPS

    def list_files_to_open(self, changes: Changes) -> tuple[Urls, Urls, Urls]:
        """Return the new, the changed and the reopened files, all of which have to be opened."""
        if self.crops_overlaps and len(self.dims) == 1:
            # a changed file may have other positions, so it is removed and added again
            return tuple(sorted({*changes.new, *changes.changed})), (), changes.reopened
        return changes.new, changes.changed, changes.reopened

    def open(self, changes: Changes) -> set[str]:
        """Open the files of `list_files_to_open`, and return the urls of all that failed."""
        self._open_all(changes)
        return set(self.opener.failed)

    def _open_all(self, changes: Changes) -> list[xr.Dataset]:
        """Open the files of `list_files_to_open`, and return their datasets."""
        opened = (self.opener.open_layers(urls) for urls in self.list_files_to_open(changes))
        return [dataset for layers in opened for dataset in layers]

    def has_new(self, changes: Changes) -> bool:
        """Return whether a new or reopened file can be opened."""
        added, _, reopened = self.list_files_to_open(changes)
        return any(self.opener.open_layers(urls) for urls in (added, reopened))

    def is_needed(self, changes: Changes, before: KnownFiles | None) -> bool:
        """Open files, and return whether the group has to be changed."""
        opened = self._open_all(changes)
        window_changed = before is not None and before.notes.keep != str(self.window)
        return window_changed or bool(self.list_dropped(changes)) or bool(opened)

    def reopen(self, group: ManifestGroup, changes: Changes, before: KnownFiles) -> Changes:
        """Open new and changed files, and return the changes with ``reopened`` and ``due`` files.

        The set may need more of a file in its notes if other files are replaced or removed, if the
        window begins earlier since its end was removed, or if ``overlap`` has changed.
        """
        self._open_all(changes)
        # the set keeps its references to a changed file that cannot be opened
        changed = {url for url in changes.changed if url not in self.opener.failed}
        outdated, notes = {*self.list_dropped(changes), *changed}, before.notes.with_dims(self.dims)
        needed = notes.select(DUE)
        if self.crops_overlaps and notes.overlap != self.overlap:
            # any file may have further positions, even if there are no notes about it
            needed |= {*before.files.urls}
        elif notes.kinds and (outdated or notes.keep != str(self.window)):
            needed |= self._find_files_to_reopen(group, changes, notes, outdated)
        needed -= {*changes.new, *changes.changed, *outdated}
        if not needed:
            return changes
        available = {*changes.listing.files.urls} - {*changes.waiting}
        reopened, due = tuple(sorted(needed & available)), tuple(sorted(needed - available))
        return replace(changes, reopened=reopened, due=due)

    def _find_files_to_reopen(
        self, group: ManifestGroup, changes: Changes, notes: Notes, outdated: set[str]
    ) -> set[str]:
        """Return the files in the notes with positions that the set may need in addition.

        These are positions of ``outdated`` files, or positions that are now in the window.
        """
        present, needed = self._open_set(group, changes), set[str]()
        if outdated and self.dim in present.indexes:
            values = self._find_values(present, outdated).values()
            extents = [find_extent(values_by_dim) for values_by_dim in values if values_by_dim]
            # files outside the window may have positions in it for which the set uses other files
            needed |= notes.select(SHADOWED, CUT, OUTSIDE, within=extents)
        future_values = self._predict_values(present, changes, outdated)
        cutoffs = self.window.find_cutoffs(future_values)
        for dim, cutoff in notes.cutoffs.items():
            first = cutoffs.get(dim, -inf)
            if dim != self.dim:
                # the notes do not record the axis along which a file is outside the window
                needed |= notes.select(OUTSIDE, CUT, SHADOWED) if first < cutoff else set()
                continue
            if first == -inf and isinstance(window_length := self.window.lengths.get(dim), int):
                first = notes.estimate_cutoff(window_length - count_values(future_values[dim], dim))
            if first < cutoff:
                needed |= notes.select(OUTSIDE, within=[((first, inf),)])
                # the files used instead of a shadowed file may now be outside the window
                needed |= notes.select(CUT, SHADOWED, within=[((first, cutoff),)])
        return needed

    def _predict_values(
        self, present: xr.Dataset, changes: Changes, outdated: set[str]
    ) -> dict[str, list[pd.Index[Any]]]:
        """Return the coordinate values of the set after the update, along dims of the window."""
        opened = self._open_all(changes)
        values: dict[str, list[pd.Index[Any]]] = {}
        for dim in self.window.lengths:
            _check_coordinate(dim, present)
            others = urls_of(present) - outdated
            is_outdated = find_positions(present, dim, outdated) & ~find_positions(
                present, dim, others
            )
            new = [layer.indexes[dim] for layer in opened if dim in layer.indexes]
            values[dim] = [present.indexes[dim][~is_outdated], *new]
        return values

    def list_dropped(self, changes: Changes) -> Urls:
        """Return the files to remove from the set."""
        return (*(changes.removed if self.drop_removed else ()), *changes.superseded)

    def apply(self, group: ManifestGroup, changes: Changes) -> tuple[ManifestGroup, GroupOutcome]:
        """Remove, replace and add files, and return the new group and the outcome."""
        before, removed = self.reader.list_known(group), self.list_dropped(changes)
        readded: Urls = ()
        if self.crops_overlaps and len(self.dims) == 1:
            # changed files are removed from the set and added again
            readded = tuple(url for url in changes.changed if url not in self.opener.failed)
        if len(removed) + len(readded) == before.used_count and (removed or readded):
            return self.create(changes, group)
        lost_extents = dict[str, CoordinateExtent]()
        if len(self.dims) > 1:
            new_group = self._apply_to_grid(group, changes, removed, lost_extents)
            return self._finish(group, new_group, changes, lost_extents)
        added, changed, reopened = self.list_files_to_open(changes)
        new_group = self._refresh_static(self._add_options(group), changes)
        if removed or readded:
            all_removed = (*removed, *readded)
            new_group = remove_sources(new_group, all_removed, self.dim, self.reader.root)
        if (opened := self.opener.open(changed)) is not None:
            with self._name_mismatch(new_group, changed):
                expanded = self._expand_dims(new_group, opened)
                new_group = replace_sources(
                    new_group, expanded, self.dim, self.reader.root, self.padding
                )
            self._check_order(group, new_group, changed)
        for urls in (added, reopened):
            new_group = self._add_files(
                new_group, urls, changes, lost_extents, reopened=urls is reopened
            )
        return self._finish(group, new_group, changes, lost_extents)

    def _add_files(
        self,
        group: ManifestGroup,
        urls: Urls,
        changes: Changes,
        lost_extents: dict[str, CoordinateExtent],
        *,
        reopened: bool,
    ) -> ManifestGroup:
        """Add files, except for positions that other files have; extend ``lost_extents``."""
        if (opened := self.opener.open(urls)) is None:
            return group
        if self.crops_overlaps or reopened:
            group, opened = self._resolve_overlaps(group, opened, changes, lost_extents)
        return self._append(group, opened, urls) if opened.sizes else group

    def _apply_to_grid(
        self,
        group: ManifestGroup,
        changes: Changes,
        removed: Urls,
        lost_extents: dict[str, CoordinateExtent],
    ) -> ManifestGroup:
        """Clear the cells of removed files, write new cells, and drop positions without data."""
        urls = self.list_files_to_open(changes)
        added, changed, reopened = (self.opener.open_layers(layer_urls) for layer_urls in urls)
        replaced = {url for url in changes.changed if url not in self.opener.failed}
        stale = {*changes.removed, *changes.changed, *changes.waiting, *self.opener.failed}
        unreadable = frozenset({*removed, *stale})
        grid = self._make_grid(unreadable)
        new_group = self._refresh_static(self._add_options(group), changes)
        moved_urls = {
            url for layer in changed for url in grid.list_moved(new_group, layer, replaced)
        }
        cleared_urls = {*removed, *moved_urls}
        touched: Mapping[str, pd.Index[Any]] = grid.find_cell_values(new_group, cleared_urls)
        # clear removed files last, since other files may have all their cells
        cleared_last = {*removed} if self.crops_overlaps else set()
        grid = replace(grid, last_choice=frozenset(cleared_last))
        if cleared_urls - cleared_last or replaced:
            cleared = {*cleared_urls, *replaced} - cleared_last
            new_group = grid.clear_values(new_group, cleared)
        names, others = grid.find_unreadable_shared(new_group)
        new_group = self._put_shared(grid, new_group, names, others)
        if cleared_urls or names:
            # keep the references to files that are unchanged, waiting, or cannot be opened
            shared = {*removed, *replaced}
            new_group = grid.clear(new_group, cleared_urls - cleared_last, shared)
        lost_cells: list[LostCells] = []
        new_group = self._put_layers(grid, new_group, urls[1], changed, lost_cells, replaced)
        # changed files are now in the set in their new state, and keep their cells
        grid = replace(grid, unreadable=unreadable - replaced)
        new_group = self._put_layers(grid, new_group, urls[0], added, lost_cells)
        new_group = self._put_layers(grid, new_group, urls[2], reopened, lost_cells)
        if cleared_last:
            new_group = grid.clear_values(new_group, cleared_last)
            new_group = grid.clear(new_group, cleared_last, ())
        if cleared_urls:
            # keep positions at which a file has no chunks
            touched = _exclude_values(touched, [*changed, *added, *reopened])
            if uncertain := grid.find_uncertain_files(new_group, touched):
                without_chunks = self.reader.list_known(group).notes.select(UNUSED)
                uncertain = (*uncertain, *sorted(without_chunks & {*changes.noted}))
            touched = _exclude_values(touched, self.opener.open_layers(uncertain))
            new_group = grid.drop_empty(new_group, touched)
        lost_cells = [cell for cell in lost_cells if cell.url not in cleared_last]
        return self._drop_losing_files(grid, new_group, changes, lost_cells, lost_extents)

    def _make_grid(self, unreadable: frozenset[str] = frozenset()) -> CellGrid:
        """Return a grid with the options of this update."""
        prefers: Literal["", "first", "last"] = ""
        if self.overlap == "first" or self.overlap == "last":
            prefers = self.overlap
        root, padding = self.reader.root, self.padding
        misfit, extra = (REMEDIES[name] for name in ("misfit_remedy", "extra_variable_remedy"))
        return CellGrid(self.dims, root, self.sort, unreadable, misfit, extra, padding, prefers)

    def _put_layers(
        self,
        grid: CellGrid,
        group: ManifestGroup,
        urls: Urls,
        layers: Sequence[xr.Dataset],
        lost_cells: list[LostCells],
        replaced: Collection[str] = (),
    ) -> ManifestGroup:
        """Write files into their cells; extend ``lost_cells`` by the cells that files lose."""
        urls_by_layer = (
            [urls_of(layer) for layer in layers] if replaced else [set[str]()] * len(layers)
        )
        without_chunks = {*replaced}.difference(*urls_by_layer)
        for layer, layer_urls in zip(layers, urls_by_layer, strict=True):
            with self._name_mismatch(group, urls):
                # the cells of other layers are already right, or are written next
                group = grid.put(
                    group, layer, layer_urls & {*replaced} | without_chunks, lost_cells
                )
        return group

    def _put_shared(
        self, grid: CellGrid, group: ManifestGroup, names: Collection[str], urls: Iterable[str]
    ) -> ManifestGroup:
        """Take variables that lack a dimension of the grid from the given files."""
        for layer in self.opener.open_layers(tuple(urls)) if names else ():
            group = grid.put_shared(group, layer, names)
        return group

    def _drop_losing_files(
        self,
        grid: CellGrid,
        group: ManifestGroup,
        changes: Changes,
        lost_cells: Iterable[LostCells],
        lost_extents: dict[str, CoordinateExtent],
    ) -> ManifestGroup:
        """Return the group without references to files that have lost all cells to others.

        The extents of all cells that a file has lost are added to ``lost_extents``.
        """
        for url, values in lost_cells:
            lost_extents[url] = join_extents(lost_extents.get(url), find_extent(values))
        if not lost_extents:
            return group
        remaining_values = self._find_values(self._open_set(group, changes), {*lost_extents})
        losers = {url for url in lost_extents if not remaining_values.get(url)}
        grid = replace(grid, unreadable=grid.unreadable | losers)
        return self._put_shared(grid, group, *grid.find_unreadable_shared(group))

    def create(
        self, changes: Changes, before: ManifestGroup | None = None
    ) -> tuple[ManifestGroup, GroupOutcome]:
        """Create a group from the files to add, in place of ``before``; return the outcome, too."""
        added, _, reopened = self.list_files_to_open(changes)
        urls = added if self.opener.open_layers(added) else reopened
        if not (layers := self.opener.open_layers(urls)):
            raise CombineError(
                f"{self.reader.root}: none of the files of the set is left, and there is no new "
                f"one, so nothing has been dropped; check the path, or remove the set"
            )
        first, lost_extents = layers[0], dict[str, CoordinateExtent]()
        if not set(self.dims) <= set(first.dims):
            raise self.opener.make_dimension_error(urls, first)
        before = ManifestGroup() if before is None else before
        if len(self.dims) > 1:
            group, lost_cells = group_from_dataset(first), list[LostCells]()
            grid = self._make_grid()
            group = self._put_layers(grid, group, urls, layers[1:], lost_cells)
            if urls is not reopened:
                others = self.opener.open_layers(reopened)
                group = self._put_layers(grid, group, reopened, others, lost_cells)
            group = self._drop_losing_files(grid, group, changes, lost_cells, lost_extents)
            return self._finish(before, group, changes, lost_extents)
        if self.crops_overlaps and self.dim in first.indexes:
            first = first.isel({self.dim: self._choose_positions(None, first)[0]})
        group = group_from_dataset(first)
        if urls is not reopened:
            group = self._add_files(group, reopened, changes, {}, reopened=True)
        return self._finish(before, group, changes, {})

    # ------------------------------------------------------------------ notes

    def _finish(
        self,
        before: ManifestGroup,
        group: ManifestGroup,
        changes: Changes,
        lost_extents: Mapping[str, CoordinateExtent],
    ) -> tuple[ManifestGroup, GroupOutcome]:
        """Apply the window and write the notes, and return the group and the outcome.

        ``lost_extents`` are those of positions that are taken from other files, by file. If nothing
        has changed, the group is ``before`` itself.
        """
        opened = {url for urls in self.list_files_to_open(changes) for url in urls}
        opened -= self.opener.failed.keys()
        values: dict[str, Values] = {}
        for dataset in self._open_all(changes):
            urls = urls_of(dataset)
            values |= self._find_values(dataset, urls if self.crops_overlaps else ())
            values |= {url: {} for url in urls - values.keys()}
        trimmed, cutoffs, cut = self._apply_window(group, changes)
        kinds = dict.fromkeys(opened - values.keys(), UNUSED)
        extents, affected = {**lost_extents}, {*lost_extents, *cut}
        if affected or self.crops_overlaps:
            opened_groups = (self._open_set(dataset, changes) for dataset in (group, trimmed))
            used_values, kept_values = (
                self._find_values(dataset, affected | values.keys()) for dataset in opened_groups
            )
            for url, present_values in used_values.items():
                all_values = values.get(url, present_values)
                known = (find_extent(v) for v in (all_values, present_values) if v)
                extents[url] = join_extents(extents.get(url), *known)
                if url not in affected and not all_values and not present_values:
                    # the values of the file were copied into the set, or the file has no chunks
                    kinds[url] = UNUSED
                elif not kept_values[url]:
                    kinds[url] = OUTSIDE if present_values else SHADOWED
                elif url in affected or _count_all(all_values) > _count_all(present_values):
                    kinds[url] = CUT
        earlier = self.reader.list_known(before).notes
        outside = {url for url, kind in kinds.items() if kind == OUTSIDE}
        # a file without chunks leaves cells that look empty, but have to stay
        if outside and len(self.dims) > 1 and UNUSED not in {*earlier.kinds, *kinds.values()}:
            grid = self._make_grid()
            touched = grid.find_cell_values(group, outside)
            others = {dim: index for dim, index in touched.items() if dim not in cutoffs}
            trimmed = grid.drop_empty(trimmed, others)
        kinds |= dict.fromkeys({*changes.due, *changes.reopened} - opened - kinds.keys(), DUE)
        earlier, notes = earlier.with_dims(self.dims), Notes()
        if earlier.kinds or kinds:
            used = self._list_remaining(before, changes)
            notes = earlier.update(changes.listing.files, used, opened, kinds, extents)
        notes = notes.join(self._note_sidecars(earlier, changes, opened))
        overlap = self.overlap if self.crops_overlaps else earlier.overlap
        notes = replace(
            notes, cutoffs=cutoffs, keep=str(self.window), overlap=overlap, dims=self.dims
        )
        stored_notes, left_out = notes.write(self.reader.root), notes.select(SHADOWED, OUTSIDE)
        if trimmed is before:
            after = before if stored_notes == before.notes else replace(before, notes=stored_notes)
            return after, GroupOutcome(notes)
        # files that the set does not use may disappear without an error, so do not refer to them
        trimmed = self._replace_static(trimmed, left_out, left_out)
        unused = earlier.select(SHADOWED, OUTSIDE)
        added = opened & {*changes.new, *(unused & {*changes.reopened})} - left_out
        # use kinds, since the notes do not have files that are no longer listed
        left_out_now = {url for url, kind in kinds.items() if kind in (SHADOWED, OUTSIDE)}
        released = (affected | {*changes.changed}) & left_out_now - {*changes.new} - unused
        reopened = opened & {*changes.reopened} - unused - left_out
        return replace(trimmed, notes=stored_notes), GroupOutcome(notes, added, released, reopened)

    def _list_remaining(self, before: ManifestGroup, changes: Changes) -> FileColumns:
        """Return the states of the files of a group that remain in it."""
        known_files = self.reader.list_known(before)
        files = known_files.files.take(np.arange(len(known_files.files)) < known_files.used_count)
        return files.take(~find_among(files.urls, self.list_dropped(changes)))

    def _note_sidecars(self, earlier: Notes, changes: Changes, opened: set[str]) -> Notes:
        """Return notes about sidecars, and about files of which the set has no fingerprint.

        Earlier notes about files that were not opened are kept.
        """
        listing = changes.listing
        has_sidecar = listing.sidecars.urls != ""
        if not has_sidecar.any():
            return Notes()
        is_opened = has_sidecar & find_among(listing.files.urls, opened)
        datasets = self._open_all(changes)
        urls_without_state = {
            file.url for dataset in datasets for file in list_sources(dataset) if file.size is None
        }
        is_described = is_opened & find_among(listing.files.urls, urls_without_state)
        parts = [
            Notes.of(listing.sidecars.take(is_opened), DESCRIBES),
            Notes.of(listing.files.take(is_described), DESCRIBED),
        ]
        unopened = {
            DESCRIBES: {*listing.sidecars.urls[has_sidecar & ~is_opened]},
            DESCRIBED: {*listing.files.urls[has_sidecar & ~is_opened]},
        }
        for kind, urls in unopened.items():
            recorded = earlier.find(kind)
            parts.append(Notes.of(recorded.take(find_among(recorded.urls, urls)), kind))
        return reduce(Notes.join, parts)

    def _open_set(self, group: ManifestGroup, changes: Changes) -> xr.Dataset:
        """Open a group as a dataset without reading files that may have changed or are missing."""
        unreadable = {*changes.removed, *changes.changed, *changes.waiting, *changes.superseded}
        return open_set(group, None, self.dims, unreadable | self.opener.failed.keys())

    def _find_values(self, dataset: xr.Dataset, urls: Collection[str]) -> dict[str, Values]:
        """Return the coordinate values at the positions of each file in a dataset."""
        if not set(self.dims) <= dataset.indexes.keys():
            return {url: {} for url in urls}
        values_by_dim = {dim: find_values(dataset, dim, urls) for dim in self.dims}
        return {
            url: {dim: values[url] for dim, values in values_by_dim.items()}
            if values_by_dim[self.dim][url].size
            else {}
            for url in urls
        }

    def _apply_window(
        self, group: ManifestGroup, changes: Changes
    ) -> tuple[ManifestGroup, dict[str, float], set[str]]:
        """Drop positions that are older than the window.

        Returns the group, the cutoffs, and the urls of files with dropped positions, which may also
        have positions in the window.
        """
        if not self.window:
            return group, {}, set()
        trimmed, urls, present = group, set[str](), self._open_set(group, changes)
        for dim in self.window.lengths:
            _check_coordinate(dim, present)
        values = {dim: [present.indexes[dim]] for dim in self.window.lengths}
        cutoffs = self.window.find_cutoffs(values)
        for dim, cutoff in cutoffs.items():
            is_old = to_numbers(present.indexes[dim], dim) < cutoff
            if is_old.any():
                urls |= find_used_at(present, dim, is_old)
                trimmed = self._drop_positions(trimmed, dim, is_old, changes)
        return trimmed, cutoffs, urls

    def _drop_positions(
        self, group: ManifestGroup, dim: str, mask: Mask, changes: Changes
    ) -> ManifestGroup:
        """Return the group without the positions of a mask along a dimension."""
        present = self._open_set(group, changes)
        return to_stored(group, drop_positions(present, dim, mask, self.reader.root))

    # ------------------------------------------------------------------ overlaps

    def _resolve_overlaps(
        self,
        group: ManifestGroup,
        new: xr.Dataset,
        changes: Changes,
        lost_extents: dict[str, CoordinateExtent],
    ) -> tuple[ManifestGroup, xr.Dataset]:
        """Choose between the set and the new data at positions that both have.

        Returns the group and the new data, each without positions that are taken from the other.
        The extents of the positions that files lose are added to ``lost_extents``.
        """
        if self.dim not in new.indexes or _get_index(group, self.dim) is None:
            return group, new
        present = self._open_set(group, changes)
        self._check_choice(present, new)
        used, is_dropped = self._choose_positions(present, new)
        if is_dropped.any():
            owners = list_owners(present, self.dim, self.reader.root)
            for url in {*owners[is_dropped]} - {""}:
                index = present.indexes[self.dim][is_dropped & (owners == url)]
                lost_extents[url] = join_extents(
                    lost_extents.get(url), find_extent({self.dim: index})
                )
        if is_dropped.all():
            return group_from_dataset(new.isel({self.dim: used})), xr.Dataset()
        if is_dropped.any():
            group = self._drop_positions(group, self.dim, is_dropped, changes)
        if not used.size:
            return group, xr.Dataset()
        is_whole = used.size == new.sizes[self.dim] and bool((np.diff(used) == 1).all())
        return group, new if is_whole else new.isel({self.dim: used})

    def _check_choice(self, present: xr.Dataset, new: xr.Dataset) -> None:
        """Raise `CombineError` for new positions of which the set has copies from unknown files."""
        if not self.crops_overlaps:
            return
        index, urls = present.indexes[self.dim], urls_of(present)
        urls_in_set = {url for url in urls if is_stored_in_set(url, self.reader.root)}
        is_copied = find_copies(present, self.dim) | find_positions(present, self.dim, urls_in_set)
        is_ownerless = list_owners(present, self.dim, self.reader.root) == ""
        copied = index[is_copied & is_ownerless & index.isin(new.indexes[self.dim])]
        if copied.size:
            raise CombineError(
                f"{self.reader.root}: {copied.size} positions along {self.dim!r}, from "
                f"{copied[0]}, are in new files and in the set, which holds their values itself "
                f"and does not note from which file they are, so that overlap={self.overlap!r} "
                f"cannot choose; write the set again without inline_threshold=, and with fewer "
                f"loadable_variables="
            )

    def _choose_positions(self, present: xr.Dataset | None, new: xr.Dataset) -> tuple[Ints, Mask]:
        """Return the positions of new data to use, and a mask of positions of the set to drop."""
        used, is_dropped = choose_positions(present, new, self.dim, self.reader.root, self.overlap)
        return self._sort_positions(new.indexes[self.dim], used), is_dropped

    def _sort_positions(self, index: pd.Index[Any], positions: Ints) -> Ints:
        """Sort positions by coordinate value; return them unchanged if the values have no order."""
        try:
            numbers = to_numbers(index[positions], self.dim)
        except CombineError:
            return positions
        steps = np.diff(numbers)
        descending = np.count_nonzero(steps < 0) > np.count_nonzero(steps > 0)
        return positions[np.argsort(-numbers if descending else numbers, kind="stable")]

    # ------------------------------------------------------------------ appending

    @property
    def _append_options(self) -> AppendOptions:
        """The options for appending new files."""
        return AppendOptions(self.dim, root=self.reader.root, padding=self.padding, **REMEDIES)

    def _append(self, group: ManifestGroup, new: xr.Dataset, urls: Urls) -> ManifestGroup:
        """Append or insert new data along the dimension, and return the new group."""
        if self.dim not in new.indexes:
            # without a coordinate, the set may have copies of the new files
            is_copy = find_copies(to_virtual_dataset(group), self.dim)
            if is_copy.any():
                raise CombineError(
                    f"{self.reader.root}: {np.count_nonzero(is_copy)} positions along "
                    f"{self.dim!r} have chunks that were rewritten or are held in the set, which "
                    f"does not note their sources, and no coordinate, so that it is unclear "
                    f"whether the set has the new files already; write the set again as zarr-v3, "
                    f"or give the files a coordinate (coordinates=)"
                )
        new = self._expand_dims(group, new)
        position = (
            "coordinate" if self.sort and _is_monotonic(_get_index(group, self.dim)) else "end"
        )
        for on_duplicate, part in self._split_by_duplicate_option(new):
            options = replace(self._append_options, position=position, on_duplicate=on_duplicate)
            with self._name_mismatch(group, urls, on_duplicate):
                group = append_along(group, part, options)
        return group

    def _expand_dims(self, group: ManifestGroup, new: xr.Dataset) -> xr.Dataset:
        """Return the new data with the dimension added to variables that have it in the set.

        When files are combined, variables that differ between them get the dimension. A single file
        has nothing to differ from, so this is only done for data of one position.
        """
        dims = {name: variable.dims for name, variable in group.variables.items()}
        names = [
            name
            for name, variable in new.variables.items()
            if self.dim in dims.get(str(name), ()) and self.dim not in variable.dims
        ]
        if not names or new.sizes.get(self.dim) != 1:
            return new
        expanded: dict[Hashable, Any] = {n: new.variables[n].expand_dims(self.dim) for n in names}
        return replace_variables(new, expanded)

    @contextmanager
    def _name_mismatch(
        self, group: ManifestGroup, urls: Urls, on_duplicate: str = "skip"
    ) -> Iterator[None]:
        """Add the first file that does not fit the set to errors, after trying one per schema."""
        try:
            yield
        except CombineError as error:
            for url in self.opener.list_examples(urls):
                if len(urls) == 1 or self._is_mismatch(group, url, on_duplicate):
                    error.locate_file(without_secrets(url))
                    break
            raise

    def _is_mismatch(self, group: ManifestGroup, url: str, on_duplicate: str) -> bool:
        """Return whether a file does not fit the set, by trying to add it."""
        try:
            dataset = self.opener.open((url,))
            if dataset is not None and len(self.dims) > 1:
                self._make_grid().put(group, dataset, (url,))
            elif dataset is not None:
                append_along(
                    group, dataset, replace(self._append_options, on_duplicate=on_duplicate)
                )
        except CombineError:
            return True
        return False

    def _split_by_duplicate_option(self, new: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
        """Split new data into parts to append, each with its option ``on_duplicate``.

        The set does not refer to a file without chunks. Such a file is opened in each run, and its
        coordinate shows whether the set has its positions already.
        """
        has_chunks = find_positions(new, self.dim, urls_of(new))
        on_duplicate = {True: "skip" if self.crops_overlaps else "raise", False: "skip"}
        if has_chunks.all():
            return [(on_duplicate[True], new)]
        if self.dim not in new.indexes:
            raise CombineError(
                f"{np.count_nonzero(~has_chunks)} positions along {self.dim!r} have neither a "
                f"chunk in a file nor a coordinate, so that the next run could not tell whether "
                f"the set has them; give them a coordinate (coordinates=), or append them yourself "
                f"with ds.virtual.to_manifest"
            )
        return [
            (option, cut_along(new, self.dim, run))
            for value, option in on_duplicate.items()
            for run in find_runs(np.flatnonzero(has_chunks == value))
        ]

    def _check_order(self, before: ManifestGroup, after: ManifestGroup, changed: Urls) -> None:
        """Raise `CombineError` if changed files are no longer in the order of the coordinate."""
        old, new = _get_index(before, self.dim), _get_index(after, self.dim)
        if not self.sort or old is None or new is None or not old.is_unique:
            return
        directions = ("is_monotonic_increasing", "is_monotonic_decreasing")
        stays_monotonic = any(
            getattr(old, direction) and getattr(new, direction) for direction in directions
        )
        if new.is_unique and (stays_monotonic or not _is_monotonic(old)):
            return
        old_values, new_values = (
            find_values(to_virtual_dataset(group), self.dim, changed) for group in (before, after)
        )
        moved_urls = [url for url in changed if not old_values[url].equals(new_values[url])]
        [first, *others] = moved_urls or changed
        more = f" (and {format_count(len(others), 'other file')})" if others else ""
        raise CombineError(
            f"{first}{more}: it has changed, and has other values of {self.dim!r} than before, "
            f"which overlap those of other files, or come in another order; {RECREATE_SET}, or "
            f"leave the file out of the pattern"
        )

    # ------------------------------------------------------------------ static variables

    def _add_options(self, group: ManifestGroup) -> ManifestGroup:
        """Return the group with access options in the files of static variables."""
        if self.options is None:
            return group

        def add_options(file: SourceFile) -> SourceFile:
            needs_options = file.options is None and scheme_of(file.url) != "file"
            return file._replace(options=self.options) if needs_options else file

        readable = {
            name: replace(v, data=move_files(v.data, add_options))
            for name, v in group.variables.items()
            if not set(self.dims).intersection(v.dims) and isinstance(v.data, ManifestArray)
        }
        return replace(group, variables={**group.variables, **readable})

    def _refresh_static(self, group: ManifestGroup, changes: Changes) -> ManifestGroup:
        """Return the group with static variables of unchanged files, as others may be missing."""
        replaced = {url for url in changes.changed if url not in self.opener.failed}
        unreadable = {*changes.removed, *changes.changed, *changes.waiting, *changes.superseded}
        # along one dimension, a changed file is replaced as a whole, with its static variables
        is_replaced = len(self.dims) == 1 and not self.padding.dims and not self.crops_overlaps
        return self._replace_static(
            group,
            unreadable - (replaced if is_replaced else set()),
            unreadable,
            self.list_files_to_open(changes),
        )

    def _replace_static(
        self,
        group: ManifestGroup,
        avoided: set[str],
        unreadable: set[str],
        new: Sequence[Urls] = (),
    ) -> ManifestGroup:
        """Take static variables, those without joined dimensions, of ``avoided`` files from others.

        They are taken from a file of the set that is not ``unreadable``, or if there is none, from
        the first of ``new`` that can be opened.
        """
        dims = set(self.dims)
        static = {name: v for name, v in group.variables.items() if not dims.intersection(v.dims)}
        to_replace = {
            name: v
            for name, v in static.items()
            if avoided and isinstance(v.data, ManifestArray) and has_chunks_in(v.data, avoided)
        }
        if not to_replace:
            return group
        known_urls = self.reader.tabulate(group).urls[::-1]
        readable = [str(url) for url in known_urls if url not in unreadable]
        candidates = [(self._find_longest(group, readable),)] if readable else new
        urls = next(
            (candidate for candidate in candidates if self.opener.open(candidate) is not None), ()
        )
        others: Mapping[str, ManifestVariable] = {}
        if (dataset := self.opener.open(urls)) is not None:
            dataset = dataset.drop_vars(
                [name for name in dataset.variables if name not in to_replace]
            )
            [dataset] = self.padding.pad(
                urls[:1], [dataset], to_replace, min_sizes=find_dim_sizes(group)
            )
            others = group_from_dataset(dataset).variables
        replacements: dict[str, ManifestVariable] = {}
        for name, variable in to_replace.items():
            other = others.get(name)
            shape = variable.dims, variable.data.shape
            if other is None or (other.dims, other.data.shape) != shape:
                reason = "the other files do not have it in this shape; write the set again"
                if dataset is None:
                    reason = (
                        "the other files of the set have changed, and may still be written or "
                        "cannot be opened; run sync again later"
                    )
                raise CombineError(
                    f"{name}: it lies in a file that is no longer there, and {reason}"
                )
            replacements[name] = other
        return replace(group, variables={**group.variables, **replacements})

    def _find_longest(self, group: ManifestGroup, urls: Sequence[str]) -> str:
        """Return the url of the longest file along the padded dimensions."""
        if not self.padding.dims:
            return urls[0]
        present = to_virtual_dataset(group)
        lengths = dict.fromkeys(urls, 0)
        for dim in {*map(str, present.dims)} & {*self.padding.dims}:
            for url, runs in find_ranges(present, dim, set(urls)).items():
                lengths[url] += runs[-1][1]
        return max(urls, key=lengths.__getitem__)


def _is_monotonic(index: Any) -> bool:
    """Return whether an index is monotonic; False if it is None."""
    return index is not None and bool(
        index.is_monotonic_increasing or index.is_monotonic_decreasing
    )


def _get_index(group: ManifestGroup, dim: str) -> Any:
    """Return the index of a dimension of a group, or None if it has no coordinate."""
    if dim not in group.variables:
        return None
    coordinate = replace(group, variables={dim: group.variables[dim]}, groups={}, attributes={})
    return to_virtual_dataset(coordinate).indexes.get(dim)


def _check_coordinate(dim: str, present: xr.Dataset) -> None:
    """Raise `CombineError` if a dimension of the window has no coordinate."""
    if dim not in present.indexes:
        raise CombineError(
            f"keep: {dim!r} has no coordinate, so that it is unclear which positions are the last "
            f"ones; give the files one (coordinates=)"
        )


def _count_all(values: Values) -> int:
    """Return the total number of coordinate values."""
    return sum(index.size for index in values.values())


def _exclude_values(
    values: Mapping[str, pd.Index[Any]], datasets: Iterable[xr.Dataset]
) -> Mapping[str, pd.Index[Any]]:
    """Return coordinate values by dimension without those of the datasets."""
    for dataset in datasets:
        values = {dim: index[~index.isin(dataset.indexes[dim])] for dim, index in values.items()}
    return values
