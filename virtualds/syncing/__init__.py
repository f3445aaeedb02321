"""Update a reference set to the current state of its files in one commit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.combine import open_virtual_mfdataset
from virtualds.combine.ordering import (
    CROPPING_OVERLAPS,
    Files,
    Version,
    check_names,
    find_pattern,
    split_version,
)
from virtualds.combine.report import make_left_out_section
from virtualds.combine.workers import LeftOut
from virtualds.combine.xarray_combine import FILL_VALUE_REMEDY, PASSED_TO_XARRAY
from virtualds.datasets.conversion import group_from_dataset, to_virtual_dataset
from virtualds.datasets.location import Location, explain_both_options
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.padding import Padding
from virtualds.datasets.source_positions import list_partly_covered_dims
from virtualds.errors import (
    CombineError,
    UnsupportedError,
    format_count,
    format_message,
    public,
    warn_user,
    without_secrets,
)
from virtualds.formats.zarr.write_plan import suggest_instead
from virtualds.options import SETTLE, check_choice, check_types, find_arguments, to_names
from virtualds.pictures import SHOWN_ROWS, Block, Heading, Report, Section, format_remainder
from virtualds.progress import INFO, is_logged, log
from virtualds.source_file import StorageOptions, scheme_of
from virtualds.stores.access_rules import Allow
from virtualds.stores.listing import FileColumns, PathPattern
from virtualds.stores.requests import explain_interrupt
from virtualds.syncing.files import (
    Changes,
    FileOpener,
    KnownFiles,
    SourceListReader,
    list_with_sidecars,
)
from virtualds.syncing.notes import OUTSIDE, SHADOWED, Notes, Window
from virtualds.syncing.update import GroupOutcome, Update
from virtualds.writing import (
    EMPTY,
    Destination,
    WriteOptions,
    add_group,
    check_aligned,
    find_group,
    put_variables,
)
from virtualds.writing.edit import leave_out_groups

SECTION_TITLES = {
    "added": "Added",
    "replaced": "Replaced, since they have changed or the set has other parts of them now",
    "dropped": "Dropped from the set",
    "kept": "No longer there, and kept",
    "shadowed": "Not in the set, since other files are used instead",
    "outside": "Not in the set, since they are older than its window",
    "repeated": "A second name of another file, and left out",
}
"""Titles of the lists of files of a report, by attribute of `SyncReport`."""


@public
@dataclass(frozen=True, repr=False)
class SyncReport(Report):
    """The changes that `virtualds.sync` made to a set.

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
        Urls of listed files that are not in the set, since others are used instead: a newer version
        (``newest=``), or files that have all their positions (``overlap=``).
    outside : tuple of str
        Urls of listed files that are not in the set, since they are older than its window
        (``keep=``).
    repeated : tuple of str
        Urls of new files that are links to a file that is listed by another name, and are left
        out. With ``preprocess`` or ``coordinates`` there are none, since names may give values.
    failed : tuple of LeftOut
        Files that could not be opened, with the reasons. The set keeps its references to them.
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
    outside: tuple[str, ...] = ()
    dry_run: bool = False

    _title = "Synchronization"

    @property
    def is_written(self) -> bool:
        """Whether the set has changed."""
        return not self.dry_run and bool(self.added or self.replaced or self.dropped)

    def _iterate_blocks(self) -> Iterator[Block]:
        names = (*SECTION_TITLES, "waiting", "failed", "damaged")
        counts = {name: len(getattr(self, name)) for name in names}
        counts["unchanged"] = self.unchanged
        summary = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        note = "" if self.exists else "; no set was written"
        note = "; a dry run, which wrote nothing" if self.dry_run else note
        waiting, count = "", len(self.waiting)
        if count:
            they, them = ("it is", "it") if count == 1 else ("they are", "them")
            waiting = (
                f"{format_count(count, 'file')} changed less than {self.settle:g} s ago; {they} "
                f"left for the next run (settle={self.settle:g}; --settle 0 takes {them} now)"
            )
        yield Heading(f"{self.target}: {summary or 'nothing to do'}{note}", [waiting])
        for name, title in SECTION_TITLES.items():
            urls = getattr(self, name)
            lines = [*urls[:SHOWN_ROWS], format_remainder(len(urls) - SHOWN_ROWS)]
            yield Section(title, lines, f"{len(urls):,}")
        yield make_left_out_section("Failed", self.failed)
        yield make_left_out_section("Damaged parts, left out", self.damaged)

    def __repr__(self) -> str:
        return f"<SyncReport {self}>"


# ---------------------------------------------------------------------- dimensions

ZARR_V3 = "sync a zarr-v3 set in place of this one (a target that ends in .zarr), or "
"""Remedy for files that only the format zarr-v3 can store."""


def check_dimensions(
    group: ManifestGroup, reader: SourceListReader, concat_dims: Sequence[str]
) -> None:
    """Raise `CombineError` if the files of a set are not joined along the given dimensions.

    For most sets, this reads only two references.
    """
    dims = sorted({dim for v in group.variables.values() for dim in v.dims})
    concat_dim = next((dim for dim in concat_dims if dim not in dims), concat_dims[0])
    if concat_dim not in dims:
        raise CombineError(
            f"concat_dim {concat_dim!r}: the set {reader.root} has {dims}; name the one along "
            f"which its files follow each other"
        )
    files = reader.tabulate(group).urls
    variables = [v for v in group.variables.values() if concat_dim in v.dims]
    if (
        len(concat_dims) > 1
        or len(files) < 2
        or any(_spans_several_files(v, concat_dim) for v in variables)
    ):
        return
    partial_dims = list_partly_covered_dims(to_virtual_dataset(group), {str(files[0])})
    if partial_dims and concat_dim not in partial_dims:
        raise CombineError(
            f"concat_dim {concat_dim!r}: the {len(files):,} files of the set {reader.root} follow "
            f"each other along {partial_dims[0]!r}, and each has all of {concat_dim!r}; pass "
            f"concat_dim={partial_dims[0]!r}"
        )


def _spans_several_files(variable: ManifestVariable, dim: str) -> bool:
    """Return whether the first and last chunk along a dimension are in different files."""
    data = variable.data
    if not isinstance(data, ManifestArray) or 0 in data.shape:
        return False
    first = tuple(slice(0, 1) for _ in variable.dims)
    last = tuple(slice(-1, None) if d == dim else slice(0, 1) for d in variable.dims)
    corners: Any = (data[first], data[last])
    first_urls, last_urls = ({file.url for file in chunk.sources} for chunk in corners)
    return bool(first_urls and last_urls and first_urls != last_urls)


# ---------------------------------------------------------------------- groups


class GroupPlan(NamedTuple):
    """The plan to update a group of a set.

    ``before`` are the files of the group before the update, None for a new group.
    """

    update: Update
    changes: Changes
    before: KnownFiles | None


@dataclass(frozen=True)
class SourceCollection:
    """The files of which a set is made, and the options for opening them.

    ``paths`` are joined along ``dims``. ``tree`` is a template for the path of the group of each
    file; None is the root. Coordinates along ``loaded`` dimensions are loaded, since they decide
    which files are used.
    """

    paths: Any
    dims: tuple[str, ...]
    tree: str | None
    opening: Mapping[str, Any]
    storage_options: Mapping[str, Any] | None
    allow: Allow
    loaded: tuple[str, ...] = ()

    @property
    def options(self) -> StorageOptions | None:
        """The access options of the files."""
        return StorageOptions.of(self.storage_options)

    @cached_property
    def pattern(self) -> PathPattern | None:
        """The pattern of the files if it has names, otherwise None."""
        return find_pattern(self.paths)

    def plan_updates(
        self,
        root: ManifestGroup | None,
        url: str,
        make_update: Callable[[SourceListReader, FileOpener], Update],
        settle: float,
    ) -> dict[str, GroupPlan]:
        """Open files, and plan the update of each group of the set ``root`` at ``url``."""
        newest: Callable[[str], Version] | None = None
        if (name := self.opening.get("newest")) is not None:
            pattern = self.pattern or PathPattern("")
            check_names(pattern, [name], "newest")
            newest = partial(split_version, pattern, name=name)
        opening = {key: value for key, value in self.opening.items() if key != "newest"}
        opening |= {"storage_options": self.storage_options, "allow": self.allow}
        if opening.get("overlap") in CROPPING_OVERLAPS and len(self.dims) == 1:
            # choose files later, among new files and those of the set
            opening["overlap"] = "keep"
        readers = self._find_readers(root, url)
        files_by_group: dict[str, KnownFiles] = {}
        groups: dict[str, ManifestGroup] = {}
        for path, reader in readers.items():
            group = None if root is None else find_group(root, path)
            if group is not None and group.variables:
                check_dimensions(group, reader, self.dims)
                groups[path], files_by_group[path] = group, reader.list_known(group)
        known_files = FileColumns.join(
            [group_files.files for group_files in files_by_group.values()]
        )
        # list files after reading the set, so that files added in between do not seem removed
        listed = list_with_sidecars(self.paths, self.options, known_files)
        # a pattern may match the set itself, if it is a netCDF file like its sources
        listed = listed.take(np.flatnonzero(listed.names != url))
        rows_by_path = self._group_by_path(listed.names.tolist())
        sidecar_urls = listed.sidecar_urls
        # values may be derived from names, so that two names of a file stand for different data
        pattern_names = () if self.pattern is None else self.pattern.names
        every_name = any(self.opening.get(key) for key in ("preprocess", "coordinates"))
        every_name |= not set(self.dims).isdisjoint(pattern_names)
        plans, now = {}, time.time()
        for path in sorted({*readers, *rows_by_path}):
            reader = readers.get(path, SourceListReader(self.dims, url))
            opener = FileOpener(self.dims, opening, self.pattern, sidecar_urls, self.loaded)
            update = make_update(reader, opener)
            before = files_by_group.get(path)
            find_changes = partial(
                Changes.between,
                before or KnownFiles(),
                listed.take(np.array(rows_by_path.get(path, ()), np.intp)),
                settle,
                now,
                every_name=every_name,
                newest=newest,
            )
            changes, failed = find_changes(), set[str]()
            # if a version cannot be opened, use an older one
            while newest is not None and (unreadable := update.open(changes) - failed):
                failed |= unreadable
                changes = find_changes(failed=failed)
            if before is not None:
                changes = update.reopen(groups[path], changes, before)
            plans[path] = GroupPlan(update, changes, before)
        return plans

    def _group_by_path(self, urls: Sequence[str]) -> dict[str, list[int]]:
        """Return the indexes of urls, by the path of their group."""
        if self.tree is None:
            return {"": list(range(len(urls)))}
        return Files(list(urls), pattern=self.pattern).group_by(self.tree)

    def _find_readers(self, root: ManifestGroup | None, url: str) -> dict[str, SourceListReader]:
        """Return readers for the groups of a set that were made from these files, by path."""
        if self.tree is None:
            return {"": SourceListReader(self.dims, url)}
        readers: dict[str, SourceListReader] = {}
        for path, group in () if root is None else root.walk():
            reader = SourceListReader(self.dims, url)
            known_files = reader.list_known(group)
            urls = known_files.name(known_files.files.urls[: known_files.used_count].tolist())
            matched = [url for url in urls if self.pattern is None or self.pattern.match(url)]
            if matched and path in self._group_by_path(matched):
                readers[path] = reader
        return readers


def commit(destination: Destination, plans: Mapping[str, GroupPlan], exists: bool) -> SyncReport:
    """Update all groups of a set in one commit; return the report."""
    # open files before the set is locked or read again, to keep conflicts rare
    needed = {
        path: plan
        for path, plan in plans.items()
        if plan.update.is_needed(plan.changes, plan.before)
    }
    results = {
        path: (changes, GroupOutcome((before or KnownFiles()).notes))
        for path, (_, changes, before) in plans.items()
    }

    def update_groups(root: ManifestGroup) -> ManifestGroup:
        new_root = root
        for path, (update, changes, before) in needed.items():
            group = find_group(root, path)
            if group is None or not group.variables:
                new_root = create_group(new_root, path)
                continue
            now = update.reader.list_known(group)
            if now is not before:
                changes = changes.drop_handled(before or KnownFiles(), now)
            dropped = update.list_dropped(changes)
            if len(plans) > 1 and not update.has_new(changes) and len(dropped) == now.used_count:
                # remove the group, since all its files are dropped
                new_root, outcome = _remove_group(new_root, path), GroupOutcome(Notes())
            else:
                after, outcome = update.apply(group, changes)
                after = update.opener.check_loaded(after)
                new_root = new_root if after is group else put_variables(new_root, path, after)
            results[path] = changes, outcome
        return new_root if len(plans) == 1 or new_root is root else check_aligned(root, new_root)

    def create_group(root: ManifestGroup, path: str) -> ManifestGroup:
        update, changes, _ = plans[path]
        if len(plans) > 1 and not update.has_new(changes):
            return root
        created, outcome = update.create(changes)
        results[path] = changes, outcome
        return add_group(root, path, update.opener.check_loaded(created))

    def create() -> ManifestGroup:
        return reduce(create_group, needed, EMPTY)

    if needed:
        # do not create a set that existed before: it would only have the new files
        remedy = "leave the files that differ out of the pattern"
        if not exists:
            remedy += ", or these variables out (drop_variables=)"
        elif any(plan.update.drop_removed and plan.changes.removed for plan in plans.values()):
            remedy += ", or keep what the set has of files that are gone (on_removed='keep')"
        with suggest_instead(remedy, ZARR_V3):
            destination.change(update_groups, None if exists else create)
    reports = [
        _report_group(plans[path].update, *outcome_of_group)
        for path, outcome_of_group in results.items()
    ]
    joined: dict[str, Any] = {
        name: tuple(item for report in reports for item in getattr(report, name))
        for name in (*SECTION_TITLES, "waiting", "failed", "damaged")
    }
    return SyncReport(
        target=destination.location.url,
        **joined,
        unchanged=sum(report.unchanged for report in reports),
        exists=exists or (bool(needed) and not destination.dry_run),
        dry_run=destination.dry_run,
    )


def _remove_group(root: ManifestGroup, path: str) -> ManifestGroup:
    """Remove a group, and parent groups that become empty; return the new root."""
    root, (parent_path, _, _) = leave_out_groups(root, [path]), path.rpartition("/")
    parent = find_group(root, parent_path)
    if (
        parent_path
        and parent is not None
        and not (parent.variables or parent.groups or parent.attributes)
    ):
        return _remove_group(root, parent_path)
    return root


def _report_group(update: Update, changes: Changes, outcome: GroupOutcome) -> SyncReport:
    """Return the report of a group, with the outcome of its update."""
    notes, added, released, reopened = outcome
    new, changed, failed = {*changes.new}, {*changes.changed}, update.opener.failed
    noted = {*changes.noted, *new, *changed, *released}
    outside, shadowed = (notes.select(kind) & noted for kind in (OUTSIDE, SHADOWED))
    left_out = outside | shadowed
    unlisted = len(new - left_out - {*added} - failed.keys())
    return SyncReport(
        target="",
        added=tuple(sorted(added)),
        replaced=tuple(sorted((changed | {*reopened}) - left_out - failed.keys())),
        dropped=(*update.list_dropped(changes), *sorted(released)),
        shadowed=tuple(sorted({*changes.shadowed, *shadowed})),
        outside=tuple(sorted(outside)),
        kept=()
        if update.drop_removed
        else tuple(url for url in changes.removed if url not in released),
        waiting=changes.waiting,
        repeated=changes.repeated,
        failed=tuple(failed.values()),
        damaged=update.opener.damaged,
        unchanged=changes.unchanged
        - len(left_out - new - changed)
        - len({*added} - new)
        - len(failed.keys() & {*changes.reopened})
        - len(reopened)
        + unlisted,
    )


# ---------------------------------------------------------------------- syncing

ON_REMOVED = ("error", "keep", "drop")
OPEN_ARGUMENTS = frozenset(find_arguments(open_virtual_mfdataset)) - {
    *("paths", "to", "mode", "target_options", "snapshot", "decode_cf", "keep_query"),
} | {*PASSED_TO_XARRAY}
"""Arguments of `virtualds.open_virtual_mfdataset` that `sync` accepts."""


def sync(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: Any,
    *,
    concat_dim: str | Sequence[str],
    tree: str | None = None,
    on_removed: str = "error",
    keep: Mapping[str, int | str] | None = None,
    settle: float = SETTLE,
    dry_run: bool = False,
    format: str | None = None,
    conflict: str = "retry",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **how: Any,
) -> SyncReport:
    """Update a reference set to the current state of its files; create it if there is none.

    Only files that are new or have changed are opened. New files are inserted in the order of their
    coordinate, or appended to a set without a monotonic coordinate. Changed files replace their
    earlier references. All this is one commit, which readers see completely or not at all. If
    nothing has changed, nothing is written.

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
    tree : str, optional
        The path of the group of each file, made of names of the pattern, such as
        ``"/{model}/{variable}"``, or a plain path. By default all files are joined in the root.
        Groups that these files have not made stay as they are.
    on_removed : {"error", "keep", "drop"}
        What to do about files of the set that are not listed: raise; keep their references; or
        remove their data. The default protects the set from a disk that is not mounted and from an
        expired token.
    keep : dict, optional
        How much of the set to keep along dimensions, as a number of positions or a duration before
        the last value, such as ``{"time": "P2D"}``, ``"36h"`` or ``48``. What is older is dropped
        in the commit in which newer data come, and older files are left out. A window of two days
        does not include its beginning, as in pandas.
    settle : float, default 60
        New and changed files that were modified less than this many seconds ago may still be
        written, and are left for the next run.
    dry_run : bool, default False
        Whether to write nothing, and only report what would be added, replaced and dropped. New and
        changed files are opened, so that what does not fit raises here, too; a ``cache`` is filled.
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
        ``ds.virtual.to_manifest``. With ``overlap="first"`` or ``"last"``, a position that several
        files have, or a cell of a grid, comes from the first or the last of them, in the order of
        their urls, not of their arrival. ``on_unsupported="rewrite"`` only works for formats that
        can store every encoding: rewritten chunks refer to no file whose changes could be followed.
        With ``on_error="skip"`` or ``"collect"`` files that cannot be opened are reported; the set
        keeps its references to them.

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
        ``overlap="keep"`` is given for a grid.
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
    arguments = dict(locals())
    report = _sync(**arguments.pop("how"), **arguments)
    if not report.exists and not dry_run:
        warn_user(_explain_missing_set(report))
    return report


def _sync(
    paths: Any,
    target: Any,
    *,
    concat_dim: str | Sequence[str],
    tree: str | None = None,
    on_removed: str = "error",
    keep: Mapping[str, int | str] | None = None,
    settle: float = SETTLE,
    dry_run: bool = False,
    format: str | None = None,
    conflict: str = "retry",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **how: Any,
) -> SyncReport:
    start = time.monotonic()
    dims = list_dims(concat_dim)
    window = Window.of(keep, dims)
    check_choice("on_removed", on_removed, ON_REMOVED)
    if not isinstance(settle, int | float) or not settle >= 0:
        raise ValueError(f"settle={settle!r}: give a number of seconds, at least 0")
    opening = {name: value for name, value in how.items() if name in OPEN_ARGUMENTS}
    check_types(opening)
    if len(dims) > 1 and opening.get("overlap") == "keep":
        raise UnsupportedError(
            "overlap='keep': a cell of a grid has one file; choose overlap='first' or 'last', or "
            "a version by names of a pattern (newest=)"
        )
    shared_arguments = OPEN_ARGUMENTS - {"progress"}
    choices = {name: value for name, value in how.items() if name not in shared_arguments}
    write_options = WriteOptions(
        format, append_dim=dims[0], conflict=conflict, allow=allow, choices=choices
    )
    # a local set has no access options of its own, so read its references with those of the files
    is_local = isinstance(target, str | os.PathLike) and scheme_of(os.fspath(target)) == "file"
    access = target_options or (storage_options if is_local else None)
    with explain_both_options(target):
        destination = Destination.of(Location.of(target, access), write_options, sync)
        destination = replace(destination, dry_run=dry_run)
        if destination.rewrite_target.is_needed:
            # a set has no record of the source files of rewritten chunks
            raise UnsupportedError(
                f"{destination.location.target}: sync follows the files that a set refers to, and "
                f"rewritten chunks refer to none; keep a zarr-v3 set up to date, which holds every "
                f"encoding, and make the other set of it with virtualds.convert(..., "
                f"on_unsupported='rewrite')"
            )
        target_url = without_secrets(destination.location.url)
        note = f"{target_url}: a set changes all at once; run sync again to go on"
        with explain_interrupt(lambda: note):
            before = _open_set(destination, allow)
            loads_coordinates = bool(window) or opening.get("overlap") in CROPPING_OVERLAPS
            loaded = dims if loads_coordinates else ()
            sources = SourceCollection(paths, dims, tree, opening, storage_options, allow, loaded)
            make_update = partial(
                Update,
                dims,
                drop_removed=on_removed == "drop",
                sort=opening.get("sort", True),
                overlap=opening.get("overlap", "error"),
                window=window,
                options=sources.options,
                padding=Padding(
                    to_names("pad", opening.get("pad")),
                    opening.get("fill_value"),
                    FILL_VALUE_REMEDY,
                ),
            )
            plans = sources.plan_updates(before, destination.location.url, make_update, settle)
            removed = [url for plan in plans.values() for url in plan.changes.removed]
            if on_removed == "error" and removed:
                count = sum(plan.before.used_count for plan in plans.values() if plan.before)
                more = f" and {len(removed) - 1:,} more" if len(removed) > 1 else ""
                raise FileNotFoundError(
                    format_message(
                        f"{without_secrets(removed[0])}{more}: not listed any more, out of "
                        f"{count:,} files of the set {destination.location.url}, which has not "
                        f"been changed; if the files should be there, check the pattern, the disk "
                        f"and the credentials; if not, pass on_removed='keep' to keep their "
                        f"references, or on_removed='drop' to remove them"
                    )
                )
            if is_logged(INFO):
                seconds = time.monotonic() - start
                for path, plan in plans.items():
                    where = f"{destination.location.url}{path and '/'}{path}"
                    log(INFO, f"{where}: {plan.changes}, {seconds:.3f} s")
            report = commit(destination, plans, before is not None)
    return replace(report, settle=settle, seconds=time.monotonic() - start)


def _open_set(destination: Destination, allow: Allow) -> ManifestGroup | None:
    """Open the set; return None if it does not exist."""
    options = OpenOptions(
        parser=destination.format.name,
        allow=allow,
        snapshot=destination.options.format_choices.get("branch"),
    )
    with suppress(FileNotFoundError):
        return open_group(destination.location, options)
    return None


def _explain_missing_set(report: SyncReport) -> str:
    """Return a message with the reasons why there is no set yet."""
    counts = len(report.waiting), len(report.failed)
    waiting, failed = (format_count(count, "file") for count in counts)
    were = "was" if counts[0] == 1 else "were"
    return (
        f"{report.target}: there is no set yet, since {waiting} {were} modified less than "
        f"{report.settle:g} seconds ago and {failed} cannot be opened; wait, or pass a smaller "
        f"settle="
    )


def list_dims(concat_dim: Any) -> tuple[str, ...]:
    """Return the dimensions along which files are joined, outermost first."""
    dims = (concat_dim,) if isinstance(concat_dim, str) else concat_dim
    if isinstance(dims, Iterable):
        names = tuple(dims)
        if names and all(isinstance(dim, str) for dim in names):
            return names
    raise TypeError(
        f"concat_dim={concat_dim!r}: give the name of a dimension, a str, or a list of names"
    )


# ---------------------------------------------------------------------- backend


FILE_ARGUMENTS = frozenset(find_arguments(open_virtual_mfdataset)) - {"target_options", "snapshot"}
"""Arguments for opening and combining files; ``cache`` is never given, since xarray takes it."""


def combine_files(files: Any, arguments: Mapping[str, Any]) -> ManifestGroup:
    """Combine files into a group, as it would be read from a set."""
    options = _select_options(arguments) | {"snapshot": arguments["snapshot"]}
    return group_from_dataset(open_virtual_mfdataset(_to_path_list(files), **options))


def update_references(files: Any, arguments: Mapping[str, Any]) -> None:
    """Update the set ``references`` to the current state of the files, without removing files.

    Raises `TypeError` without ``concat_dim``, and `FileNotFoundError` if no set was created because
    all files may still be written or cannot be opened.
    """
    options = {
        name: value for name, value in _select_options(arguments).items() if name != "concat_dim"
    }
    if arguments["concat_dim"] is None:
        raise TypeError(
            f"references={os.fspath(arguments['references'])!r}: name the dimension along which "
            f"the files follow each other with concat_dim="
        )
    report = _sync(
        _to_path_list(files),
        arguments["references"],
        concat_dim=arguments["concat_dim"],
        on_removed="keep",
        settle=arguments["settle"],
        target_options=arguments["target_options"],
        **options,
    )
    if not report.exists:
        raise FileNotFoundError(f"{_explain_missing_set(report)}, or leave out references=")


def _to_path_list(files: Any) -> Any:
    """Return a list instead of a single path object; all else is returned unchanged."""
    return [files] if isinstance(files, os.PathLike) else files


def _select_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for `open_virtual_mfdataset`."""
    options = {name: value for name, value in arguments.items() if name in FILE_ARGUMENTS}
    if options["combine"] is None:
        options["combine"] = "by_coords" if options["concat_dim"] is None else "nested"
    return options
