"""Keeping a set up to date with the files that it was made of, and the report of what was done.

It is one change of the set, also while others change it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.sources import move_files
from virtualds.chunks.axes import find_runs
from virtualds.combine import open_virtual_mfdataset
from virtualds.combine.ordering import CROPPING_OVERLAPS, Overlap, check_names, find_pattern
from virtualds.combine.report import list_left_out
from virtualds.combine.workers import LeftOut
from virtualds.datasets.from_dataset import as_read, group_from_dataset
from virtualds.datasets.keywords import check_choice, check_types, list_arguments
from virtualds.datasets.location import Location, explain_both_options
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.source_positions import (
    cut_along,
    find_copies,
    find_positions,
    find_ranges,
    find_used_along,
    has_chunks_in,
    list_partly_covered_dims,
    urls_of,
)
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.errors import (
    CombineError,
    UnsupportedError,
    format_count,
    lay_out,
    public,
    warn_user,
    without_secrets,
)
from virtualds.formats.zarr.write_plan import suggest_instead
from virtualds.options import SETTLE
from virtualds.pictures.blocks import SHOWN_ROWS, Block, Heading, Report, Section, format_remainder
from virtualds.progress import INFO, is_logged, log
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.access_rules import Allow
from virtualds.stores.listing import FileColumns
from virtualds.stores.patterns import PathPattern
from virtualds.stores.requests import explain_interrupt
from virtualds.syncing.files import (
    Changes,
    FileOpener,
    Mask,
    Newest,
    SetFiles,
    Urls,
    list_files,
)
from virtualds.urls import scheme_of
from virtualds.writing.append import AppendOptions, append_along, remove_sources, replace_sources
from virtualds.writing.cells import CellGrid
from virtualds.writing.write import Destination, WriteOptions

MEANINGS = {
    "added": "Added",
    "replaced": "Changed, and replaced",
    "dropped": "No longer there, and dropped",
    "kept": "No longer there, and kept",
    "shadowed": "Not in the set, since there is a newer one",
    "repeated": "A second name of another file, and left out",
}
"""Descriptions of what happened to files, by the attribute that lists the files."""


@public
@dataclass(frozen=True, repr=False)
class SyncReport(Report):
    """What `virtualds.sync` has done.

    Parameters
    ----------
    target : str
        The set.
    added, replaced, dropped : tuple of str
        Urls of files that were added to the set, were opened again, or were removed from it.
    kept : tuple of str
        Urls of files of the set that are not listed, and whose references the set keeps.
    waiting : tuple of str
        Urls of new or changed files that may still be written, and are left for the next run.
    shadowed : tuple of str
        Urls of listed files that are not in the set, since a newer one is used instead
        (``newest=``).
    repeated : tuple of str
        Urls of new files that are, by a link, a file that is listed with another name, and are left
        out. With ``preprocess`` or ``coordinates`` there are none, since names may give values.
    failed : tuple of LeftOut
        Files that could not be opened, with the reasons. The set keeps what it had of them.
    damaged : tuple of LeftOut
        Damaged parts, such as messages, that were left out of added or replaced files.
    unchanged : int
        Number of files that have not changed.
    settle : float
        Seconds for which a file must not have changed, or it waits.
    exists : bool
        Whether the set exists now; it does not if no file could be added to a new one.
    dry_run : bool
        Whether nothing was written, and the report says what would have been done.
    seconds : float
        Time of the whole run.

    Examples
    --------
    >>> print(SyncReport("file:///refs.zarr", added=("file:///2003.nc",), unchanged=2))
    file:///refs.zarr: 1 added, 2 unchanged
    <BLANKLINE>
    Added (1)
      file:///2003.nc
    """

    target: str
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    failed: tuple[LeftOut, ...] = ()
    unchanged: int = 0
    settle: float = SETTLE
    exists: bool = True
    seconds: float = 0.0
    damaged: tuple[LeftOut, ...] = ()
    repeated: tuple[str, ...] = ()
    shadowed: tuple[str, ...] = ()
    dry_run: bool = False

    _title = "Synchronization"

    @property
    def is_written(self) -> bool:
        """Whether the set has changed."""
        return not self.dry_run and bool(self.added or self.replaced or self.dropped)

    def _iterate_blocks(self) -> Iterator[Block]:
        counted = (*MEANINGS, "waiting", "failed", "damaged")
        counts = {name: len(getattr(self, name)) for name in counted}
        counts["unchanged"] = self.unchanged
        words = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        none = "" if self.exists else "; no set was written"
        none = "; a dry run, which wrote nothing" if self.dry_run else none
        waiting, count = "", len(self.waiting)
        if count:
            they, them = ("it is", "it") if count == 1 else ("they are", "them")
            waiting = (
                f"{format_count(count, 'file')} changed less than {self.settle:g} s ago; {they} "
                f"left for the next run (settle={self.settle:g}; --settle 0 takes {them} now)"
            )
        yield Heading(f"{self.target}: {words or 'nothing to do'}{none}", [waiting])
        for name, meaning in MEANINGS.items():
            urls = getattr(self, name)
            lines = [*urls[:SHOWN_ROWS], format_remainder(len(urls) - SHOWN_ROWS)]
            yield Section(meaning, lines, f"{len(urls):,}")
        yield list_left_out("Failed", self.failed)
        yield list_left_out("Damaged parts, left out", self.damaged)

    def __repr__(self) -> str:
        return f"<SyncReport {self}>"


# ---------------------------------------------------------------------- update

ANEW = "write the set anew (delete it, and run again)"
REMEDIES = {
    "if_known": "leave one of the files out of the pattern, or pass overlap='first' to leave out "
    "of new files what the set has already",
    "if_misfit": "leave it out of the pattern; make its variables those of the set with "
    f"drop_variables= or preprocess=; or {ANEW}",
    "if_extra": "drop_variables= leaves it out",
}
"""Remedies for new files that do not fit: only arguments that `sync` has."""
ZARR_V3 = "sync a zarr-v3 set in place of this one (a target that ends in .zarr), or "
"""The remedy for files that only this format can store."""


@dataclass(frozen=True)
class Update:
    """How a set is updated.

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
        """The first of the dimensions."""
        return self.dims[0]

    def commit(
        self, destination: Destination, changes: Changes, before: FileColumns | None
    ) -> SyncReport:
        """Make the changes, and return the report.

        ``before`` are the files that the set had when the changes were found, None without a set.
        """
        # open files before the set is locked or read again, so that writers seldom conflict
        self.open(changes)
        drops = self._list_dropped(changes)
        done, added = changes, Urls()

        def change(group: ManifestGroup) -> ManifestGroup:
            nonlocal done, added
            now = self.known.tabulate(group)
            known = FileColumns.of(()) if before is None else before
            done = changes if now is before else changes.still_needed(known, now)
            found, added = self._apply(group, done)
            return self.opener.check_loaded(found)

        def begin() -> ManifestGroup:
            nonlocal done, added
            done = changes
            found, added = self._create_set(changes)
            return self.opener.check_loaded(found)

        opened = (self.opener.open(urls) for urls in (changes.new, changes.changed))
        is_needed = any(one is not None for one in opened) or bool(drops)
        if is_needed:
            # otherwise a set that was removed meanwhile would be created with only the new files
            others = "leave the files that differ out of the pattern"
            if before is None:
                others += ", or these variables out (drop_variables=)"
            elif self.drops and changes.removed:
                others += ", or keep what the set has of files that are gone (on_removed='keep')"
            with suggest_instead(others, ZARR_V3):
                destination.change(change, begin if before is None else None)
        failed = self.opener.failed
        silent = len([url for url in done.new if url not in failed]) - len(added)
        return SyncReport(
            target=destination.location.url,
            added=added,
            replaced=tuple(url for url in done.changed if url not in failed),
            dropped=self._list_dropped(done),
            shadowed=done.shadowed,
            kept=() if self.drops else done.removed,
            waiting=done.waiting,
            repeated=done.repeated,
            failed=tuple(failed.values()),
            damaged=self.opener.damaged,
            unchanged=done.unchanged + silent,
            exists=before is not None or (is_needed and not destination.dry_run),
            dry_run=destination.dry_run,
        )

    def open(self, changes: Changes) -> set[str]:
        """Open the files that are new or have changed; return those that cannot be opened."""
        for urls in (changes.new, changes.changed):
            self.opener.open(urls)
        return set(self.opener.failed)

    def _list_dropped(self, changes: Changes) -> Urls:
        """Return the files that are to be removed from the set."""
        return (*(changes.removed if self.drops else ()), *changes.superseded)

    def _apply(self, group: ManifestGroup, changes: Changes) -> tuple[ManifestGroup, Urls]:
        """Remove, replace and add files; return the group, and the files that were added."""
        removed = self._list_dropped(changes)
        added, changed = self.opener.open(changes.new), self.opener.open(changes.changed)
        if removed and len(removed) == len(self.known.tabulate(group)):
            return self._create_set(changes)
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
        changed = self.opener.open(changes.changed)
        replaced = {url for url in changes.changed if url not in self.opener.failed}
        unsound = frozenset({*removed, *changes.removed, *changes.changed, *changes.waiting})
        misfit = REMEDIES["if_misfit"]
        grid = CellGrid(self.dims, self.known.root, self.sorts, unsound, misfit)
        after = self._refresh_static(self._add_options(group), changes)
        moved = () if changed is None else grid.list_moved(after, changed, replaced)
        gone = {*removed, *moved}
        touched = grid.find_values(after, gone) if gone else {}
        names, others = grid.find_lost(after)
        if gone or names:
            after = as_read(grid.clear(after, gone))
        if names and (found := self.opener.open(tuple(others))) is not None:
            after = as_read(grid.put_shared(after, found, names))
        for urls in (changes.changed, changes.new):
            if (found := self.opener.open(urls)) is not None:
                with self._name_mismatch(after, urls):
                    after = as_read(grid.put(after, found, replaced))
        if gone:
            after = as_read(grid.drop_empty(after, touched))
        return after, tuple(url for url in changes.new if url not in self.opener.failed)

    def _create_set(self, changes: Changes) -> tuple[ManifestGroup, Urls]:
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
        used = self._find_used(added, ~shared)
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

    def _find_used(self, new: xr.Dataset, where: Mask) -> set[str]:
        """Return the files with chunks at some positions."""
        urls = urls_of(new)
        runs = find_runs(np.flatnonzero(where))
        parts = (cut_along(new, self.dim, run) for run in runs)
        return {url for part in parts for url in find_used_along(part, self.dim, urls)}

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
        # the coordinate values that come from each file
        values = list[dict[str, Any]]()
        for group, index in ((before, old), (after, new)):
            dataset = to_virtual_dataset(group)
            found = find_ranges(dataset, self.dim, urls_of(dataset))
            cuts = {url: np.r_[tuple(slice(*run) for run in runs)] for url, runs in found.items()}
            values.append({url: index[cut] for url, cut in cuts.items()})
        had, has = ({url: found.get(url, old[:0]) for url in changed} for found in values)
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


def check_dimensions(group: ManifestGroup, known: SetFiles, joined: Sequence[str]) -> None:
    """Raise an error for dimensions along which the files of a set do not follow each other.

    For most sets, two references are enough to check.
    """
    dims = sorted({dim for v in group.variables.values() for dim in v.dims})
    concat_dim = next((dim for dim in joined if dim not in dims), joined[0])
    if concat_dim not in dims:
        raise CombineError(
            f"concat_dim {concat_dim!r}: the set {known.root} has {dims}; name the one along which "
            f"its files follow each other"
        )
    files = known.tabulate(group).urls
    along = [v for v in group.variables.values() if concat_dim in v.dims]
    if len(joined) > 1 or len(files) < 2 or any(_spans_several_files(v, concat_dim) for v in along):
        return
    found = list_partly_covered_dims(to_virtual_dataset(group), {str(files[0])})
    if found and concat_dim not in found:
        raise CombineError(
            f"concat_dim {concat_dim!r}: the {len(files):,} files of the set {known.root} follow "
            f"each other along {found[0]!r}, and each has all of {concat_dim!r}; pass "
            f"concat_dim={found[0]!r}"
        )


def _spans_several_files(variable: ManifestVariable, dim: str) -> bool:
    """Return whether the first and last chunk along a dimension are in different files."""
    data = variable.data
    if not isinstance(data, ManifestArray) or 0 in data.shape:
        return False
    first = tuple(slice(0, 1) for _ in variable.dims)
    last = tuple(slice(-1, None) if d == dim else slice(0, 1) for d in variable.dims)
    ends: Any = (data[first], data[last])
    begin, end = ({file.url for file in one.sources} for one in ends)
    return bool(begin and end and begin != end)


# ---------------------------------------------------------------------- syncing

ON_REMOVED = ("error", "keep", "drop")
OPEN_ARGUMENTS = frozenset(list_arguments(open_virtual_mfdataset)) - {
    *("paths", "to", "mode", "target_options", "snapshot", "decode_cf", "keep_query"),
}
"""The arguments of `virtualds.open_virtual_mfdataset` that `sync` takes."""


def sync(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: Any,
    *,
    concat_dim: str | Sequence[str],
    on_removed: str = "error",
    settle: float = SETTLE,
    dry_run: bool = False,
    format: str | None = None,
    conflict: str = "retry",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **how: Any,
) -> SyncReport:
    """Update a reference set to the present state of its files; create it if there is none.

    Only files that are new or have changed are opened. New ones are inserted where their coordinate
    belongs, or appended to a set without a monotonic coordinate. Changed ones replace what the set
    has of them. All this is one commit, which readers see completely or not at all. If nothing has
    changed, nothing is written.

    Parameters
    ----------
    paths : str, or sequence of str or paths
        A glob pattern for local or remote files, or the files themselves, without globbing. It
        names all files of the set, not only new ones.
    target : str or path, or an object of Icechunk
        The set, as for ``ds.virtual.to_manifest``.
    concat_dim : str, or sequence of str
        The dimension along which files follow each other. Several, outermost first, make a grid:
        each file is put into the cell that its coordinates name, a cell without a file is missing,
        and every dimension grows.
    on_removed : {"error", "keep", "drop"}
        What to do about files of the set that are not listed: raise; keep their references; or
        remove their data. The default protects the set from a disk that is not mounted and from an
        expired token.
    settle : float, default 60
        New and changed files that were modified less than so many seconds ago may still be written,
        and are left for the next run.
    dry_run : bool, default False
        Whether to write nothing, and only report what would be added, replaced and dropped. New and
        changed files are opened, so that what does not fit raises here, too.
    format : str, optional
        Name of the format, if the suffix of ``target`` does not give it.
    conflict : {"retry", "raise"}
        What to do if another writer is faster: compare with the new state of the set and continue,
        or raise `ConflictError`.
    allow : str, path, or iterable of them, optional
        Folders in which all files must lie, as in `open_virtual_dataset`. A remote set may refer
        to local files only if they are allowed here.
    storage_options, target_options : dict, optional
        Access options of the files and of the set, for fsspec.
    **how
        Arguments of `open_virtual_mfdataset`, such as ``preprocess``, ``coordinates``, ``overlap``,
        ``parallel``, ``cache`` and ``on_error``; and options of the format, as for
        ``ds.virtual.to_manifest``. With ``overlap="first"``, positions that the set already has are
        left out of new files; with ``"last"``, also if the set has them from files whose urls sort
        after the new ones. ``on_unsupported="rewrite"`` only works for formats that can store every
        encoding: rewritten chunks refer to no file whose changes could be followed. With
        ``on_error="skip"`` or ``"collect"`` files that cannot be opened are reported; the set keeps
        what it has of them.

    Returns
    -------
    SyncReport

    Raises
    ------
    FileNotFoundError
        No file is listed; or files of the set are not listed, and ``on_removed`` is ``"error"``.
    FileExistsError
        ``target`` exists, and is not a reference set.
    OSError
        A folder cannot be listed.
    CombineError
        A file does not fit the set.
    ConflictError
        Another writer was faster; the set is as that writer left it.
    UnsupportedError
        The format cannot store the files, or the format or store cannot be changed in this way; or
        ``overlap`` is given for a grid.
    TypeError, ValueError
        There is no such argument, or it cannot have this value.

    Warns
    -----
    UserWarning
        There is no set yet, since all files may still be written or cannot be opened.

    Notes
    -----
    A file has changed if its size, or its modification time (local files) or etag (remote files),
    differs from what the set recorded. Sets of other tools record none of these, so only new and
    removed files are detected in them.

    Examples
    --------
    >>> sync("200[12].nc", "refs.zarr", concat_dim="time", settle=0).added  # doctest: +ELLIPSIS
    ('file:///...2001.nc', 'file:///...2002.nc')
    >>> sync("200[12].nc", "refs.zarr", concat_dim="time").unchanged
    2
    """
    given = dict(locals())
    done = _bring_up_to_date(**given.pop("how"), **given)
    if not done.exists and not dry_run:
        warn_user(_explain_lack(done))
    return done


def _bring_up_to_date(
    paths: Any,
    target: Any,
    *,
    concat_dim: str,
    on_removed: str = "error",
    settle: float = SETTLE,
    dry_run: bool = False,
    format: str | None = None,
    conflict: str = "retry",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **how: Any,
) -> SyncReport:
    begun = time.monotonic()
    dims = list_dims(concat_dim)
    check_choice("on_removed", on_removed, ON_REMOVED)
    if not isinstance(settle, int | float) or not settle >= 0:
        raise ValueError(f"settle={settle!r}: give a number of seconds, at least 0")
    opening = {name: value for name, value in how.items() if name in OPEN_ARGUMENTS}
    check_types(opening)
    if len(dims) > 1 and (overlap := opening.get("overlap", "error")) != "error":
        raise UnsupportedError(
            f"overlap={overlap!r}: sync has it for files along one dimension; in a grid each cell "
            f"has one file, which a pattern can choose (newest=)"
        )
    both = OPEN_ARGUMENTS - {"progress"}
    choices = {name: value for name, value in how.items() if name not in both}
    writing = WriteOptions(
        format, append_dim=dims[0], conflict=conflict, allow=allow, choices=choices
    )
    # a local set has no options of its own, so those of the files are used for comparing with them
    near = isinstance(target, str | os.PathLike) and scheme_of(os.fspath(target)) == "file"
    access = target_options or (storage_options if near else None)
    with explain_both_options(target):
        destination = Destination.of(Location.of(target, access), writing, sync)
        destination = replace(destination, dry_run=dry_run)
        if destination.rewrite.is_needed:
            # a set does not record from which files copies were made
            raise UnsupportedError(
                f"{destination.location.target}: sync follows the files that a set refers to, and "
                f"rewritten chunks refer to none; keep a zarr-v3 set up to date, which holds every "
                f"encoding, and make the other set of it with virtualds.convert(..., "
                f"on_unsupported='rewrite')"
            )
        pattern = find_pattern(paths)
        newest = _choose_newest(pattern, opening.pop("newest", None))
        update = Update(
            dims=dims,
            known=SetFiles(dims, destination.location.url),
            opener=FileOpener(
                dims,
                opening | {"storage_options": storage_options, "allow": allow},
                pattern,
            ),
            drops=on_removed == "drop",
            sorts=opening.get("sort", True),
            overlap=opening.get("overlap", "error"),
            options=StorageOptions.of(storage_options),
        )
        shown = without_secrets(destination.location.url)
        left = f"{shown}: a set changes all at once; run sync again to go on"
        with explain_interrupt(lambda: left):
            how_to_read = OpenOptions(
                parser=destination.format.name,
                allow=allow,
                snapshot=destination.options.format_choices.get("branch"),
            )
            before: ManifestGroup | None = None
            # the set need not exist
            with suppress(FileNotFoundError):
                before = open_group(destination.location, how_to_read)
            if before is not None:
                check_dimensions(before, update.known, dims)
            known = update.known.tabulate(before)
            # listed after reading the set, so that what others add meanwhile is not considered
            # removed
            listed = list_files(paths, update.options, known)
            # these may derive values from names, so that two names of one file are different data
            named = any(opening.get(name) for name in ("preprocess", "coordinates"))
            named = named or (pattern is not None and not set(dims).isdisjoint(pattern.names))
            choose = partial(
                Changes.between,
                *(known, listed, settle, time.time()),
                every_name=named,
                newest=newest,
            )
            changes, failed = choose(), set[str]()
            # of a file that cannot be opened, an older version is used
            while newest is not None and (lost := update.open(changes) - failed):
                failed |= lost
                changes = choose(failed=failed)
            if is_logged(INFO):
                log(
                    INFO, f"{destination.location.url}: {changes}, {time.monotonic() - begun:.3f} s"
                )
            if on_removed == "error" and changes.removed:
                raise _removed_error(changes.removed, len(known), destination.location)
            done = update.commit(destination, changes, known if before is not None else None)
    return replace(done, settle=settle, seconds=time.monotonic() - begun)


def _choose_newest(pattern: PathPattern | None, name: str | None) -> Newest | None:
    if name is None:
        return None
    check_names(pattern, [name], "newest")
    assert pattern is not None
    return Newest(pattern, name)


def _explain_lack(done: SyncReport) -> str:
    """Say why there is no set yet."""
    waiting, failed = (format_count(len(some), "file") for some in (done.waiting, done.failed))
    were = "was" if len(done.waiting) == 1 else "were"
    return (
        f"{done.target}: there is no set yet, since {waiting} {were} modified less than "
        f"{done.settle:g} seconds ago and {failed} cannot be opened; wait, or pass a smaller "
        f"settle="
    )


def list_dims(concat_dim: Any) -> tuple[str, ...]:
    """Return the dimensions along which files are joined, outermost first."""
    dims = (concat_dim,) if isinstance(concat_dim, str) else concat_dim
    if isinstance(dims, Iterable):
        found = tuple(dims)
        if found and all(isinstance(dim, str) for dim in found):
            return found
    raise TypeError(
        f"concat_dim={concat_dim!r}: give the name of a dimension, a str, or a list of names"
    )


def _removed_error(removed: Urls, number: int, location: Location) -> FileNotFoundError:
    more = f" and {len(removed) - 1:,} more" if len(removed) > 1 else ""
    return FileNotFoundError(
        lay_out(
            f"{without_secrets(removed[0])}{more}: not listed any more, out of {number:,} files of "
            f"the set {location.url}, which has not been changed; if the files should be there, "
            f"check the pattern, the disk and the credentials; if not, pass on_removed='keep' to "
            f"keep their references, or on_removed='drop' to remove them"
        )
    )


# ---------------------------------------------------------------------- many files in place of one


FILE_ARGUMENTS = frozenset(list_arguments(open_virtual_mfdataset)) - {"target_options", "snapshot"}
"""Arguments of opening and combining files, except for ``cache``, which xarray has itself."""


def read_archive(files: Any, given: Mapping[str, Any]) -> ManifestGroup:
    """Return the group of many files as a set of them would be read."""
    options = _list_options(given) | {"snapshot": given["snapshot"]}
    return as_read(group_from_dataset(open_virtual_mfdataset(_list_files(files), **options)))


def update_references(files: Any, given: Mapping[str, Any]) -> None:
    """Update the set ``references`` to the present state of the files, without removing any.

    Raises `TypeError` without ``concat_dim``, and `FileNotFoundError` if no set was created because
    all files may still be written.
    """
    options = {name: value for name, value in _list_options(given).items() if name != "concat_dim"}
    if given["concat_dim"] is None:
        raise TypeError(
            f"references={os.fspath(given['references'])!r}: name the dimension along which the "
            f"files follow each other with concat_dim="
        )
    done = _bring_up_to_date(
        _list_files(files),
        given["references"],
        concat_dim=given["concat_dim"],
        on_removed="keep",
        settle=given["settle"],
        target_options=given["target_options"],
        **options,
    )
    if not done.exists:
        raise FileNotFoundError(f"{_explain_lack(done)}, or leave out references=")


def _list_files(files: Any) -> Any:
    return [files] if isinstance(files, os.PathLike) else files


def _list_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for `open_virtual_mfdataset`."""
    found = {name: value for name, value in given.items() if name in FILE_ARGUMENTS}
    if found["combine"] is None:
        found["combine"] = "by_coords" if found["concat_dim"] is None else "nested"
    return found
