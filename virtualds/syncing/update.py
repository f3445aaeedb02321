"""`Update`, which removes, replaces and adds files of a group of a set."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, find_dim_sizes
from virtualds.arrays.sources import move_files
from virtualds.chunks.axes import find_runs
from virtualds.combine.ordering import CROPPING_OVERLAPS, Overlap
from virtualds.datasets.from_dataset import as_read, group_from_dataset
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
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.errors import CombineError, format_count, without_secrets
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.listing import FileColumns
from virtualds.syncing.files import (
    Changes,
    FileOpener,
    KnownFiles,
    Mask,
    SetFileReader,
    Urls,
    find_among,
)
from virtualds.syncing.notes import (
    CUT,
    DESCRIBED,
    DESCRIBES,
    DUE,
    OUTSIDE,
    SHADOWED,
    UNUSED,
    CoordinateExtent,
    Notes,
    Window,
    count_values,
    find_extent,
    join_extents,
    to_numbers,
)
from virtualds.urls import scheme_of
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

Ints = npt.NDArray[np.intp]
Values = Mapping[str, "pd.Index[Any]"]
"""Coordinate values along each dimension; empty for a file without any."""

ANEW = "write the set anew (delete it, and run again)"


REMEDIES = {
    "if_duplicate": "leave one of the files out of the pattern, or pass overlap='first' to leave "
    "out of new files what the set has already",
    "if_misfit": "leave it out of the pattern; make its variables those of the set with "
    f"drop_variables= or preprocess=; or {ANEW}",
    "if_extra": "drop_variables= leaves it out",
}
"""Remedies for new files that do not fit, with arguments of `sync`."""


class GroupOutcome(NamedTuple):
    """The result of updating a group: its new notes, and what happened to files.

    ``added`` files are new in the set. ``lost`` files still exist, but the set uses other files
    instead. ``again`` are unchanged files of which the set now uses other positions.
    """

    notes: Notes
    added: Collection[str] = ()
    lost: Collection[str] = ()
    again: Collection[str] = ()


@dataclass(frozen=True)
class Update:
    """The options with which a group of a set is updated.

    The files are joined along ``dims``, outermost first; several form a grid. With ``drops``, files
    that no longer exist are removed from the set. With ``sorts``, new files are inserted in the
    order of a monotonic coordinate. ``overlap`` is what to do about positions that several files
    have, ``window`` is the part of the set to keep, and ``padding`` has the other dimensions along
    which the lengths of files may differ.
    """

    dims: tuple[str, ...]
    known: SetFileReader
    opener: FileOpener
    drops: bool = False
    sorts: bool = True
    overlap: Overlap = "error"
    window: Window = field(default_factory=Window)
    options: StorageOptions | None = None
    padding: Padding = NO_PADDING

    @property
    def dim(self) -> str:
        """The first dimension."""
        return self.dims[0]

    @property
    def chooses(self) -> bool:
        """Whether each position is taken from the first or the last file that has it."""
        return self.overlap in CROPPING_OVERLAPS

    def list_opened(self, changes: Changes) -> tuple[Urls, Urls, Urls]:
        """Return the files to open: new files, changed files, and files to reopen."""
        if self.chooses and len(self.dims) == 1:
            # a changed file may have other positions, so it is removed and added again
            return tuple(sorted({*changes.new, *changes.changed})), (), changes.reopened
        return changes.new, changes.changed, changes.reopened

    def open(self, changes: Changes) -> set[str]:
        """Open the files of `list_opened`; return those that cannot be opened."""
        self._open_all(changes)
        return set(self.opener.failed)

    def _open_all(self, changes: Changes) -> list[xr.Dataset]:
        """Return the datasets of the files of `list_opened` that can be opened."""
        opened = (self.opener.open_layers(urls) for urls in self.list_opened(changes))
        return [dataset for layers in opened for dataset in layers]

    def has_new(self, changes: Changes) -> bool:
        """Return whether any file to add can be opened."""
        added, _, again = self.list_opened(changes)
        return any(self.opener.open_layers(urls) for urls in (added, again))

    def is_needed(self, changes: Changes, before: KnownFiles | None) -> bool:
        """Return whether the group has to be changed, after opening files."""
        opened = self._open_all(changes)
        window_changed = before is not None and before.notes.keep != str(self.window)
        return window_changed or bool(self.list_dropped(changes)) or bool(opened)

    def reopen(self, group: ManifestGroup, changes: Changes, before: KnownFiles) -> Changes:
        """Return the changes with ``reopened`` and ``due``, after opening new and changed files.

        The set may need more of a file in its notes, if other files are replaced or removed, if the
        window begins earlier since its end was removed, or if ``overlap`` has changed.
        """
        self._open_all(changes)
        # the set keeps its references to a changed file that cannot be opened
        changed = {url for url in changes.changed if url not in self.opener.failed}
        lost, notes = {*self.list_dropped(changes), *changed}, before.notes.along(self.dims)
        needed = notes.select(DUE)
        if self.chooses and notes.overlap != self.overlap:
            # also without notes, since any file may have further positions
            needed |= {*before.files.urls}
        elif notes.kinds and (lost or notes.keep != str(self.window)):
            needed |= self._find_needed(group, changes, notes, lost)
        needed -= {*changes.new, *changes.changed, *lost}
        if not needed:
            return changes
        available = {*changes.listing.files.urls} - {*changes.waiting}
        reopened, due = tuple(sorted(needed & available)), tuple(sorted(needed - available))
        return replace(changes, reopened=reopened, due=due)

    def _find_needed(
        self, group: ManifestGroup, changes: Changes, notes: Notes, lost: set[str]
    ) -> set[str]:
        """Return the files in the notes that may have to take the place of others.

        They may have positions that ``lost`` files had, or positions that are now in the window.
        """
        present, needed = self._open_set(group, changes), set[str]()
        if lost and self.dim in present.indexes:
            values = self._find_values(present, lost).values()
            extents = [find_extent(along) for along in values if along]
            # a file outside the window may have positions in it that the set takes from other files
            needed |= notes.select(SHADOWED, CUT, OUTSIDE, within=extents)
        future_values = self._predict_values(present, changes, lost)
        cutoffs = self.window.find_cutoffs(future_values)
        for dim, cutoff in notes.cutoffs.items():
            begin = cutoffs.get(dim, -inf)
            if dim != self.dim:
                # the notes do not record the axis along which a file is outside the window
                needed |= notes.select(OUTSIDE, CUT, SHADOWED) if begin < cutoff else set()
                continue
            if begin == -inf and isinstance(length := self.window.lengths.get(dim), int):
                begin = notes.find_last(length - count_values(future_values[dim], dim))
            if begin < cutoff:
                needed |= notes.select(OUTSIDE, within=[((begin, inf),)])
                # the files that had the positions of a shadowed file may now be outside the window
                needed |= notes.select(CUT, SHADOWED, within=[((begin, cutoff),)])
        return needed

    def _predict_values(
        self, present: xr.Dataset, changes: Changes, lost: set[str]
    ) -> dict[str, list[pd.Index[Any]]]:
        """Return the coordinate values of the set after the update, along axes of the window."""
        opened = self._open_all(changes)
        values: dict[str, list[pd.Index[Any]]] = {}
        for dim in self.window.lengths:
            _check_coordinate(dim, present)
            others = urls_of(present) - lost
            is_lost = find_positions(present, dim, lost) & ~find_positions(present, dim, others)
            new = [layer.indexes[dim] for layer in opened if dim in layer.indexes]
            values[dim] = [present.indexes[dim][~is_lost], *new]
        return values

    def list_dropped(self, changes: Changes) -> Urls:
        """Return the files to remove from the set."""
        return (*(changes.removed if self.drops else ()), *changes.superseded)

    def apply(self, group: ManifestGroup, changes: Changes) -> tuple[ManifestGroup, GroupOutcome]:
        """Remove, replace and add files; return the new group and the outcome."""
        known_files, removed = self.known.list_known(group), self.list_dropped(changes)
        renewed = self._list_renewed(changes)
        if len(removed) + len(renewed) == known_files.used_count and (removed or renewed):
            return self.create(changes, group)
        lost = dict[str, CoordinateExtent]()
        if len(self.dims) > 1:
            after = self._apply_to_grid(group, changes, removed, lost)
            return self._finish(group, after, changes, lost)
        added, changed, again = self.list_opened(changes)
        after = self._refresh_static(self._add_options(group), changes)
        if removed or renewed:
            all_removed = (*removed, *renewed)
            remaining = remove_sources(after, all_removed, self.dim, self.known.root)
            after = after if remaining is after else as_read(remaining)
        if (opened := self.opener.open(changed)) is not None:
            with self._name_mismatch(after, changed):
                expanded = self._expand(after, opened)
                after = as_read(
                    replace_sources(after, expanded, self.dim, self.known.root, self.padding)
                )
            self._check_order(group, after, changed)
        for urls in (added, again):
            after = self._put(after, urls, changes, lost, is_again=urls is again)
        return self._finish(group, after, changes, lost)

    def _put(
        self,
        group: ManifestGroup,
        urls: Urls,
        changes: Changes,
        lost: dict[str, CoordinateExtent],
        *,
        is_again: bool,
    ) -> ManifestGroup:
        """Add files to a group, except for positions that other files have; extend ``lost``."""
        if (opened := self.opener.open(urls)) is None:
            return group
        if self.chooses or is_again:
            group, opened = self._resolve(group, opened, changes, lost)
        return self._add(group, opened, urls) if opened.sizes else group

    def _list_renewed(self, changes: Changes) -> Urls:
        """Return the changed files that are removed from the set and added again."""
        failed = self.opener.failed
        is_added = self.chooses and len(self.dims) == 1
        return tuple(url for url in changes.changed if is_added and url not in failed)

    def _apply_to_grid(
        self,
        group: ManifestGroup,
        changes: Changes,
        removed: Urls,
        lost: dict[str, CoordinateExtent],
    ) -> ManifestGroup:
        """Clear the cells of removed files, write new cells, and drop positions without data."""
        urls = self.list_opened(changes)
        added, changed, again = (self.opener.open_layers(layer_urls) for layer_urls in urls)
        replaced = {url for url in changes.changed if url not in self.opener.failed}
        doubtful = {*changes.removed, *changes.changed, *changes.waiting, *self.opener.failed}
        unreadable = frozenset({*removed, *doubtful})
        grid = self._make_grid(unreadable)
        after = self._refresh_static(self._add_options(group), changes)
        moved = {url for layer in changed for url in grid.list_moved(after, layer, replaced)}
        gone = {*removed, *moved}
        touched: Mapping[str, pd.Index[Any]] = grid.find_touched(after, gone)
        # other files may have all cells of those that are removed
        late = {*removed} if self.chooses else set()
        grid = replace(grid, last_choice=frozenset(late))
        if gone - late or replaced:
            after = as_read(grid.clear_values(after, {*gone, *replaced} - late))
        names, others = grid.find_unreadable_shared(after)
        after = self._put_shared(grid, after, names, others)
        if gone or names:
            # keep the references to files that are unchanged, waiting, or cannot be opened
            after = as_read(grid.clear(after, gone - late, {*removed, *replaced}))
        contested: list[LostCells] = []
        after = self._put_layers(grid, after, urls[1], changed, contested, replaced)
        # changed files are now in the set as they are, and keep their cells
        grid = replace(grid, unreadable=unreadable - replaced)
        after = self._put_layers(grid, after, urls[0], added, contested)
        after = self._put_layers(grid, after, urls[2], again, contested)
        if late:
            after = as_read(grid.clear(as_read(grid.clear_values(after, late)), late, ()))
        if gone:
            # a file may store no chunks at some of its positions; these positions stay
            touched = _leave_out(touched, [*changed, *added, *again])
            if near := grid.find_uncertain_files(after, touched):
                noted = self.known.list_known(group).notes.select(UNUSED)
                near = (*near, *sorted(noted & {*changes.noted}))
            touched = _leave_out(touched, self.opener.open_layers(near))
            after = as_read(grid.drop_empty(after, touched))
        contested = [cell for cell in contested if cell.url not in late]
        return self._leave_losers(grid, after, changes, contested, lost)

    def _make_grid(self, unreadable: frozenset[str] = frozenset()) -> CellGrid:
        prefers: Literal["", "first", "last"] = ""
        if self.overlap == "first" or self.overlap == "last":
            prefers = self.overlap
        root, padding = self.known.root, self.padding
        misfit, extra = (REMEDIES[name] for name in ("if_misfit", "if_extra"))
        return CellGrid(self.dims, root, self.sorts, unreadable, misfit, extra, padding, prefers)

    def _put_layers(
        self,
        grid: CellGrid,
        group: ManifestGroup,
        urls: Urls,
        layers: Sequence[xr.Dataset],
        contested: list[LostCells],
        replaced: Collection[str] = (),
    ) -> ManifestGroup:
        """Write files into their cells; add cells that files lose to others to ``contested``."""
        each = [urls_of(layer) for layer in layers] if replaced else [set[str]()] * len(layers)
        chunkless = {*replaced}.difference(*each)
        for layer, own in zip(layers, each, strict=True):
            with self._name_mismatch(group, urls):
                # the cells of other layers are right already, or will be
                result = grid.put(group, layer, own & {*replaced} | chunkless, contested)
                group = group if result is group else as_read(result)
        return group

    def _put_shared(
        self, grid: CellGrid, group: ManifestGroup, names: Collection[str], urls: Iterable[str]
    ) -> ManifestGroup:
        """Take variables without all dimensions of the grid from the given files."""
        for layer in self.opener.open_layers(tuple(urls)) if names else ():
            group = as_read(grid.put_shared(group, layer, names))
        return group

    def _leave_losers(
        self,
        grid: CellGrid,
        group: ManifestGroup,
        changes: Changes,
        contested: Iterable[LostCells],
        lost: dict[str, CoordinateExtent],
    ) -> ManifestGroup:
        """Return a group without references to files that have lost all cells to others.

        Files that have lost any cells are added to ``lost``, with the extents of these.
        """
        for url, values in contested:
            lost[url] = join_extents(lost.get(url), find_extent(values))
        if not lost:
            return group
        lost_values = self._find_values(self._open_set(group, changes), {*lost})
        losers = {url for url in lost if not lost_values.get(url)}
        grid = replace(grid, unreadable=grid.unreadable | losers)
        return self._put_shared(grid, group, *grid.find_unreadable_shared(group))

    def create(
        self, changes: Changes, before: ManifestGroup | None = None
    ) -> tuple[ManifestGroup, GroupOutcome]:
        """Create a group of the files to add, instead of ``before``; return it and the outcome."""
        added, _, again = self.list_opened(changes)
        urls = added if self.opener.open_layers(added) else again
        if not (layers := self.opener.open_layers(urls)):
            raise CombineError(
                f"{self.known.root}: none of the files of the set is left, and there is no new "
                f"one, so nothing has been dropped; check the path, or remove the set"
            )
        first, lost = layers[0], dict[str, CoordinateExtent]()
        if not set(self.dims) <= set(first.dims):
            raise self.opener.make_dimension_error(urls, first)
        before = ManifestGroup() if before is None else before
        if len(self.dims) > 1:
            group, contested = as_read(group_from_dataset(first)), list[LostCells]()
            grid = self._make_grid()
            group = self._put_layers(grid, group, urls, layers[1:], contested)
            if urls is not again:
                others = self.opener.open_layers(again)
                group = self._put_layers(grid, group, again, others, contested)
            group = self._leave_losers(grid, group, changes, contested, lost)
            return self._finish(before, group, changes, lost)
        if self.chooses and self.dim in first.indexes:
            first = first.isel({self.dim: self._choose(None, first)[0]})
        group = as_read(group_from_dataset(first))
        if urls is not again:
            group = self._put(group, again, changes, {}, is_again=True)
        return self._finish(before, group, changes, {})

    # ------------------------------------------------------------------ notes

    def _finish(
        self,
        before: ManifestGroup,
        group: ManifestGroup,
        changes: Changes,
        lost: Mapping[str, CoordinateExtent],
    ) -> tuple[ManifestGroup, GroupOutcome]:
        """Apply the window, and write the notes; return the group and the outcome.

        ``lost`` are files of which positions are taken from other files, with the extents of these.
        If nothing has changed, the group is ``before`` itself.
        """
        opened = {url for urls in self.list_opened(changes) for url in urls}
        opened -= self.opener.failed.keys()
        values = self._list_values(self._open_all(changes))
        trimmed, cutoffs, cut = self._trim(group, changes)
        kinds = dict.fromkeys(opened - values.keys(), UNUSED)
        extents, met = {**lost}, {*lost, *cut}
        if met or self.chooses:
            both = (self._open_set(dataset, changes) for dataset in (group, trimmed))
            here, left = (self._find_values(dataset, met | values.keys()) for dataset in both)
            for url, there in here.items():
                whole = values.get(url, there)
                known = [find_extent(some) for some in (whole, there) if some]
                extents[url] = join_extents(extents.get(url), *known)
                if url not in met and not whole and not there:
                    # its values are in the set, or it has none
                    kinds[url] = UNUSED
                elif not left[url]:
                    kinds[url] = OUTSIDE if there else SHADOWED
                elif url in met or _count_all(whole) > _count_all(there):
                    kinds[url] = CUT
        earlier = self.known.list_known(before).notes
        outside = {url for url, kind in kinds.items() if kind == OUTSIDE}
        # positions of a file without chunks would look empty
        if outside and len(self.dims) > 1 and UNUSED not in {*earlier.kinds, *kinds.values()}:
            grid = self._make_grid()
            touched = grid.find_touched(group, outside)
            others = {dim: index for dim, index in touched.items() if dim not in cutoffs}
            trimmed = grid.drop_empty(trimmed, others)
        kinds |= dict.fromkeys({*changes.due, *changes.reopened} - opened - kinds.keys(), DUE)
        earlier, notes = earlier.along(self.dims), Notes()
        if earlier.kinds or kinds:
            used = self._list_remaining(before, changes)
            notes = earlier.renew(changes.listing.files, used, opened, kinds, extents)
        notes = notes.join(self._note_sidecars(earlier, changes, opened))
        overlap = self.overlap if self.chooses else earlier.overlap
        notes = replace(
            notes, cutoffs=cutoffs, keep=str(self.window), overlap=overlap, dims=self.dims
        )
        noted, left_out = notes.write(self.known.root), notes.select(SHADOWED, OUTSIDE)
        if trimmed is before:
            after = before if noted == before.notes else replace(before, notes=noted)
            return after, GroupOutcome(notes)
        # files outside the set may change or be removed at any time, so do not refer to them
        trimmed = self._replace_static(trimmed, left_out, left_out)
        unused = earlier.select(SHADOWED, OUTSIDE)
        added = opened & {*changes.new, *(unused & {*changes.reopened})} - left_out
        # kinds also has files that are no longer listed, which are not in the notes
        empty = {url for url, kind in kinds.items() if kind in (SHADOWED, OUTSIDE)}
        gone = (met | {*changes.changed}) & empty - {*changes.new} - unused
        again = opened & {*changes.reopened} - unused - left_out
        return replace(trimmed, notes=noted), GroupOutcome(notes, added, gone, again)

    def _list_remaining(self, before: ManifestGroup, changes: Changes) -> FileColumns:
        """Return the states of the files of a group that are not removed from it."""
        known_files = self.known.list_known(before)
        files = known_files.files.take(np.arange(len(known_files.files)) < known_files.used_count)
        return files.take(~find_among(files.urls, self.list_dropped(changes)))

    def _note_sidecars(self, earlier: Notes, changes: Changes, opened: set[str]) -> Notes:
        """Return the notes about sidecars, and about files of which the set has no fingerprint.

        Notes about files that were not opened are kept.
        """
        listing = changes.listing
        has_one = listing.sidecars.urls != ""
        if not has_one.any():
            return Notes()
        renewed = has_one & find_among(listing.files.urls, opened)
        datasets = self._open_all(changes)
        bare = {
            file.url for dataset in datasets for file in list_sources(dataset) if file.size is None
        }
        described = renewed & find_among(listing.files.urls, bare)
        new = [
            Notes.of(listing.sidecars.take(renewed), DESCRIBES),
            Notes.of(listing.files.take(described), DESCRIBED),
        ]
        stays = {
            DESCRIBES: {*listing.sidecars.urls[has_one & ~renewed]},
            DESCRIBED: {*listing.files.urls[has_one & ~renewed]},
        }
        for kind, urls in stays.items():
            recorded = earlier.find(kind)
            new.append(Notes.of(recorded.take(find_among(recorded.urls, urls)), kind))
        return reduce(Notes.join, new)

    def _list_values(self, datasets: Iterable[xr.Dataset]) -> dict[str, Values]:
        """Return the coordinate values of opened files; empty unless ``overlap`` chooses files."""
        values: dict[str, Values] = {}
        for dataset in datasets:
            urls = urls_of(dataset)
            values |= self._find_values(dataset, urls if self.chooses else ())
            values |= {url: {} for url in urls - values.keys()}
        return values

    def _open_set(self, group: ManifestGroup, changes: Changes) -> xr.Dataset:
        """Open a group as a dataset, without reading files that may have changed or are gone."""
        unreadable = {*changes.removed, *changes.changed, *changes.waiting, *changes.superseded}
        return open_set(group, None, self.dims, unreadable | self.opener.failed.keys())

    def _find_values(self, dataset: xr.Dataset, urls: Collection[str]) -> dict[str, Values]:
        """Return the coordinate values of a dataset that come from each file."""
        if not set(self.dims) <= dataset.indexes.keys():
            return {url: {} for url in urls}
        along = {dim: find_values(dataset, dim, urls) for dim in self.dims}
        return {
            url: {dim: values[url] for dim, values in along.items()}
            if along[self.dim][url].size
            else {}
            for url in urls
        }

    def _trim(
        self, group: ManifestGroup, changes: Changes
    ) -> tuple[ManifestGroup, dict[str, float], set[str]]:
        """Drop positions that are older than the window.

        Return the group, the cutoffs, and the files of dropped positions, which may also have
        positions in the window.
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
                trimmed = self._drop(trimmed, dim, is_old, changes)
        return trimmed, cutoffs, urls

    def _drop(self, group: ManifestGroup, dim: str, gone: Mask, changes: Changes) -> ManifestGroup:
        """Drop the positions of a mask along a dimension."""
        present = self._open_set(group, changes)
        return as_read(to_stored(group, drop_positions(present, dim, gone, self.known.root)))

    # ------------------------------------------------------------------ overlaps

    def _resolve(
        self,
        group: ManifestGroup,
        new: xr.Dataset,
        changes: Changes,
        lost: dict[str, CoordinateExtent],
    ) -> tuple[ManifestGroup, xr.Dataset]:
        """Choose between the set and the new data at positions that both have.

        Return the group and the new data without the positions of the other. Files that lose
        positions are added to ``lost``.
        """
        if self.dim not in new.indexes or _get_index(group, self.dim) is None:
            return group, new
        present = self._open_set(group, changes)
        self._check_choice(present, new)
        used, gone = self._choose(present, new)
        if gone.any():
            owners = list_owners(present, self.dim, self.known.root)
            for url in {*owners[gone]} - {""}:
                index = present.indexes[self.dim][gone & (owners == url)]
                lost[url] = join_extents(lost.get(url), find_extent({self.dim: index}))
        if gone.all():
            return as_read(group_from_dataset(new.isel({self.dim: used}))), xr.Dataset()
        if gone.any():
            group = self._drop(group, self.dim, gone, changes)
        if not used.size:
            return group, xr.Dataset()
        is_whole = used.size == new.sizes[self.dim] and bool((np.diff(used) == 1).all())
        return group, new if is_whole else new.isel({self.dim: used})

    def _check_choice(self, present: xr.Dataset, new: xr.Dataset) -> None:
        """Raise an error for new positions of which the set has copies from unknown files."""
        if not self.chooses:
            return
        index, urls = present.indexes[self.dim], urls_of(present)
        own = {url for url in urls if is_stored_in_set(url, self.known.root)}
        copied = find_copies(present, self.dim) | find_positions(present, self.dim, own)
        copied = index[
            copied
            & (list_owners(present, self.dim, self.known.root) == "")
            & index.isin(new.indexes[self.dim])
        ]
        if copied.size:
            raise CombineError(
                f"{self.known.root}: {copied.size} positions along {self.dim!r}, from {copied[0]}, "
                f"are in new files and in the set, which holds their values itself and does not "
                f"note from which file they are, so that overlap={self.overlap!r} cannot choose; "
                f"write the set anew without inline_threshold=, and with fewer loadable_variables="
            )

    def _choose(self, present: xr.Dataset | None, new: xr.Dataset) -> tuple[Ints, Mask]:
        """Return the positions of the new data to use, and a mask of those of the set to drop."""
        used, gone = choose_positions(present, new, self.dim, self.known.root, self.overlap)
        return self._sort(new.indexes[self.dim], used), gone

    def _sort(self, index: pd.Index[Any], places: Ints) -> Ints:
        """Sort positions by their values, or return them unchanged if values have no order."""
        try:
            numbers = to_numbers(index[places], self.dim)
        except CombineError:
            return places
        steps = np.diff(numbers)
        falls = np.count_nonzero(steps < 0) > np.count_nonzero(steps > 0)
        return places[np.argsort(-numbers if falls else numbers, kind="stable")]

    # ------------------------------------------------------------------ appending

    @property
    def _appending(self) -> AppendOptions:
        """The options for appending new files."""
        return AppendOptions(self.dim, root=self.known.root, padding=self.padding, **REMEDIES)

    def _add(self, group: ManifestGroup, new: xr.Dataset, urls: Urls) -> ManifestGroup:
        self._check_for_copies(group, new)
        new = self._expand(group, new)
        position = (
            "coordinate" if self.sorts and _is_monotonic(_get_index(group, self.dim)) else "end"
        )
        for on_duplicate, part in self._split(new):
            options = replace(self._appending, position=position, on_duplicate=on_duplicate)
            with self._name_mismatch(group, urls, on_duplicate):
                grown = append_along(group, part, options)
            group = group if grown is group else as_read(grown)
        return group

    def _expand(self, group: ManifestGroup, new: xr.Dataset) -> xr.Dataset:
        """Add the dimension to variables that have it in the set.

        Combining files adds it to variables that differ between files, which a single file cannot
        show. So this is done only for data of one position.
        """
        dims = {name: variable.dims for name, variable in group.variables.items()}
        names = [
            name
            for name, variable in new.variables.items()
            if self.dim in dims.get(str(name), ()) and self.dim not in variable.dims
        ]
        if not names or new.sizes.get(self.dim) != 1:
            return new
        changed: dict[Hashable, Any] = {n: new.variables[n].expand_dims(self.dim) for n in names}
        return replace_variables(new, changed)

    @contextmanager
    def _name_mismatch(
        self, group: ManifestGroup, urls: Urls, on_duplicate: str = "skip"
    ) -> Iterator[None]:
        """Add to errors the first file that does not fit the set, after trying one per schema."""
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
            dataset = self.opener.open((url,))
            if dataset is not None and len(self.dims) > 1:
                self._make_grid().put(group, dataset, (url,))
            elif dataset is not None:
                append_along(group, dataset, replace(self._appending, on_duplicate=on_duplicate))
        except CombineError:
            return True
        return False

    def _check_for_copies(self, group: ManifestGroup, new: xr.Dataset) -> None:
        """Raise an error for files without a coordinate of which the set may have copies."""
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

    def _split(self, new: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
        """Split new data into parts to append, each with its option ``on_duplicate``.

        The set does not refer to a file without chunks. Such a file is opened in each run, and its
        coordinate shows whether the set has its positions already.
        """
        traced = find_positions(new, self.dim, urls_of(new))
        how = {True: "skip" if self.chooses else "raise", False: "skip"}
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
        """Raise an error if changed files are no longer in the order of the coordinate."""
        old, new = _get_index(before, self.dim), _get_index(after, self.dim)
        if not self.sorts or old is None or new is None or not old.is_unique:
            return
        ways = ("is_monotonic_increasing", "is_monotonic_decreasing")
        goes_on = any(getattr(old, way) and getattr(new, way) for way in ways)
        if new.is_unique and (goes_on or not _is_monotonic(old)):
            return
        had, has = (
            find_values(to_virtual_dataset(group), self.dim, changed) for group in (before, after)
        )
        moved = [url for url in changed if not had[url].equals(has[url])]
        [first, *others] = moved or changed
        more = f" (and {format_count(len(others), 'other file')})" if others else ""
        raise CombineError(
            f"{first}{more}: it has changed, and has other values of {self.dim!r} than before, "
            f"which overlap those of other files, or come in another order; {ANEW}, or leave the "
            f"file out of the pattern"
        )

    # ------------------------------------------------------------------ static variables

    def _add_options(self, group: ManifestGroup) -> ManifestGroup:
        """Add access options to the files of static variables, so that they can be read."""
        if self.options is None:
            return group

        def add_options(file: SourceFile) -> SourceFile:
            is_bare = file.options is None and scheme_of(file.url) != "file"
            return file._replace(options=self.options) if is_bare else file

        opened = {
            name: replace(v, data=move_files(v.data, add_options))
            for name, v in group.variables.items()
            if not set(self.dims).intersection(v.dims) and isinstance(v.data, ManifestArray)
        }
        return replace(group, variables={**group.variables, **opened})

    def _refresh_static(self, group: ManifestGroup, changes: Changes) -> ManifestGroup:
        """Take static variables from files that have not changed, since others may be gone."""
        replaced = {url for url in changes.changed if url not in self.opener.failed}
        unreadable = {*changes.removed, *changes.changed, *changes.waiting, *changes.superseded}
        # files along one dimension are replaced as a whole, with their variables without it
        keeps = len(self.dims) == 1 and not self.padding.dims and not self.chooses
        return self._replace_static(
            group,
            unreadable - (replaced if keeps else set()),
            unreadable,
            self.list_opened(changes),
        )

    def _replace_static(
        self, group: ManifestGroup, lost: set[str], unreadable: set[str], new: Sequence[Urls] = ()
    ) -> ManifestGroup:
        """Take static variables, those without joined dimensions, of ``lost`` files from others.

        That is a file of the set that is not ``unreadable``, or else the first of ``new`` that can be
        opened.
        """
        dims = set(self.dims)
        static = {name: v for name, v in group.variables.items() if not dims.intersection(v.dims)}
        moved = {
            name: v
            for name, v in static.items()
            if lost and isinstance(v.data, ManifestArray) and has_chunks_in(v.data, lost)
        }
        if not moved:
            return group
        known_urls = self.known.tabulate(group).urls[::-1]
        sound = [str(url) for url in known_urls if url not in unreadable]
        candidates = [(self._find_longest(group, sound),)] if sound else new
        urls = next(
            (candidate for candidate in candidates if self.opener.open(candidate) is not None), ()
        )
        others: Mapping[str, ManifestVariable] = {}
        if (dataset := self.opener.open(urls)) is not None:
            dataset = dataset.drop_vars([name for name in dataset.variables if name not in moved])
            [dataset] = self.padding.pad(
                urls[:1], [dataset], moved, min_sizes=find_dim_sizes(group)
            )
            others = group_from_dataset(dataset).variables
        found_again: dict[str, ManifestVariable] = {}
        for name, variable in moved.items():
            other = others.get(name)
            shape = variable.dims, variable.data.shape
            if other is None or (other.dims, other.data.shape) != shape:
                lacks = "the other files do not have it in this shape; write the set anew"
                if dataset is None:
                    lacks = (
                        "the other files of the set have changed, and may still be written or "
                        "cannot be opened; run sync again later"
                    )
                raise CombineError(
                    f"{name}: it lies in a file that is no longer there, and {lacks}"
                )
            found_again[name] = other
        return as_read(replace(group, variables={**group.variables, **found_again}))

    def _find_longest(self, group: ManifestGroup, urls: Sequence[str]) -> str:
        """Return the longest file along the padded dimensions."""
        if not self.padding.dims:
            return urls[0]
        present = to_virtual_dataset(group)
        reach = dict.fromkeys(urls, 0)
        for dim in {*map(str, present.dims)} & {*self.padding.dims}:
            for url, runs in find_ranges(present, dim, set(urls)).items():
                reach[url] += runs[-1][1]
        return max(urls, key=reach.__getitem__)


def _is_monotonic(index: Any) -> bool:
    """Return whether an index exists and is monotonic."""
    return index is not None and bool(
        index.is_monotonic_increasing or index.is_monotonic_decreasing
    )


def _get_index(group: ManifestGroup, dim: str) -> Any:
    """Return the index of a dimension of a group, or None."""
    if dim not in group.variables:
        return None
    alone = replace(group, variables={dim: group.variables[dim]}, groups={}, attributes={})
    return to_virtual_dataset(alone).indexes.get(dim)


def _check_coordinate(dim: str, present: xr.Dataset) -> None:
    """Raise an error if a dimension of the window has no coordinate."""
    if dim not in present.indexes:
        raise CombineError(
            f"keep: {dim!r} has no coordinate, so that nothing tells which positions are the last "
            f"ones; give the files one (coordinates=)"
        )


def _count_all(values: Values) -> int:
    """Return the number of coordinate values along all dimensions."""
    return sum(index.size for index in values.values())


def _leave_out(
    values: Mapping[str, pd.Index[Any]], datasets: Iterable[xr.Dataset]
) -> Mapping[str, pd.Index[Any]]:
    """Remove the coordinate values of datasets from values along dimensions."""
    for dataset in datasets:
        values = {dim: index[~index.isin(dataset.indexes[dim])] for dim, index in values.items()}
    return values
