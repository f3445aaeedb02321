"""Compare the files of a set with the existing files, and open new and changed ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.sources import count_sources
from virtualds.chunks.columns import CountedSources
from virtualds.combine import open_layers, open_virtual_mfdataset
from virtualds.combine.batch_job import OPEN_ERRORS, BuildOptions
from virtualds.combine.ordering import CROPPING_OVERLAPS, Files, Version, find_newest
from virtualds.combine.report import BuildReport
from virtualds.combine.workers import LeftOut
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import (
    Loadable,
    OpenOptions,
    check_variables,
    make_optional,
)
from virtualds.datasets.source_positions import is_stored_in_set, urls_of
from virtualds.errors import CombineError, UnsupportedError, without_secrets
from virtualds.options import to_names
from virtualds.progress import Progress, report_progress
from virtualds.reading.threads import fetch_many
from virtualds.source_file import (
    ARCHIVES,
    NO_NUMBER,
    SIDECARS,
    StorageOptions,
    find_sidecar_target,
    local_path,
    normalise_url,
    scheme_of,
)
from virtualds.stores.access_rules import check_valid_url, is_valid_url
from virtualds.stores.listing import (
    FileColumns,
    FileState,
    PathPattern,
    escape_pattern,
    fetch_state,
    is_pattern,
    list_states,
)
from virtualds.stores.requests import normalise_etag
from virtualds.syncing.notes import DESCRIBED, DESCRIBES, LEFT_OUT, Mask, Notes, Urls, find_among


class FileOpener:
    """Opens files as one dataset, like `open_virtual_mfdataset`, and caches the datasets.

    Files of a grid that may overlap are opened as several datasets (layers). A file in ``sidecars``
    is opened by the url of its sidecar. Coordinates along ``loaded`` dimensions are always loaded.
    """

    def __init__(
        self,
        dims: Sequence[str],
        options: Mapping[str, Any],
        pattern: PathPattern | None = None,
        sidecars: Mapping[str, str] | None = None,
        loaded: Sequence[str] = (),
    ) -> None:
        self._pattern = pattern
        self._sidecars = sidecars or {}
        self._loadable = options.get("loadable_variables")
        # optional, since a variable may be in the set, but not in new files
        optional = {"loadable_variables": make_optional(_add_loadable(self._loadable, loaded))}
        concat_dim = dims[0] if len(dims) == 1 else list(dims)
        self._options = {"combine": "nested", **options, **optional, "concat_dim": concat_dim}
        build_options = BuildOptions(on_error=options.get("on_error", "raise"))
        self._stops = build_options.stops
        self._has_layers = len(dims) > 1 and options.get("overlap") in CROPPING_OVERLAPS
        self._opened: dict[Urls, list[xr.Dataset]] = {}
        self._examples: dict[Urls, Urls] = {}
        self.failed: dict[str, LeftOut] = {}
        self.damaged: tuple[LeftOut, ...] = ()

    def open(self, urls: Urls) -> xr.Dataset | None:
        """Open files as one dataset; return None if none of them can be opened."""
        layers = self.open_layers(urls)
        return layers[0] if layers else None

    def open_layers(self, urls: Urls) -> list[xr.Dataset]:
        """Open files as layers: several for overlapping files of a grid, otherwise one or none."""
        if urls and urls not in self._opened:
            self._opened[urls] = self._open_files(urls)
        return self._opened.get(urls, [])

    def check_loaded(self, group: ManifestGroup) -> ManifestGroup:
        """Return the group after checking that it has the names in ``loadable_variables``."""
        if not self.failed and self._options.get("preprocess") is None:
            dropped = to_names("drop_variables", self._options.get("drop_variables"))
            check_variables(self._loadable, group.variables, dropped, "the set or its files")
        return group

    def _open_files(self, requested: Urls) -> list[xr.Dataset]:
        """Open files, and record those that fail; return no layers if none can be opened."""
        urls = tuple(url for url in requested if self._can_be_referenced(url))
        if not urls:
            return []
        reports: list[BuildReport] = []
        with report_progress(self._options.get("progress"), "opening", len(urls)) as show:

            def handle_progress(progress: Progress) -> None:
                show(progress)
                if progress.report is not None:
                    reports.append(progress.report)

            try:
                access = StorageOptions.of(self._options.get("storage_options"))
                names = [self._sidecars.get(url, url) for url in urls]
                files: Any = Files(names, access, self._pattern)
                options = {**self._options, "progress": handle_progress}
                if self._has_layers:
                    layers = open_layers(files, **options)
                else:
                    layers = [open_virtual_mfdataset(files, **options)]
            except OPEN_ERRORS:
                all_failed = any(len(report.left_out) == report.files for report in reports)
                if self._stops or not all_failed:
                    raise
                layers = []
        url_by_name = dict(zip(names, urls, strict=True))
        firsts = (schema.first for schema in reports[-1].schemas)
        self._examples[requested] = tuple(url_by_name.get(first, first) for first in firsts)
        left_out = reports[-1].left_out
        self.failed |= {url_by_name.get(entry.url, entry.url): entry for entry in left_out}
        self.damaged += reports[-1].damaged
        # the set would only refer to the other files, so changes of the given ones would go
        # unnoticed
        if others := sorted({url for layer in layers for url in urls_of(layer)} - set(urls)):
            raise UnsupportedError(
                f"{without_secrets(urls[0])}{' and others' if urls[1:] else ''}: the data lie in "
                f"other files, such as {without_secrets(others[0])}; sync keeps track of files "
                f"that hold their own data. Append such files with ds.virtual.to_manifest(..., "
                f"append_dim=...)"
            )
        return layers

    def _can_be_referenced(self, url: str) -> bool:
        """Return whether a url is valid in a set; if not, record the failure or raise."""
        try:
            check_valid_url(url)
        except UnsupportedError as error:
            if self._stops:
                raise
            self.failed[url] = LeftOut.of(url, error)
            return False
        return True

    def list_examples(self, urls: Urls) -> Urls:
        """Return an example of the opened files for each schema."""
        examples = self._examples.get(urls, urls[:1])
        return tuple(url for url in examples if url in urls)

    def make_dimension_error(self, urls: Urls, opened: xr.Dataset) -> CombineError:
        """Return the error for files without the dimension, which names groups that have it."""
        names = ("parser", "parser_options", "allow")
        options = {name: self._options[name] for name in names if name in self._options}
        first = next(url for url in urls if url not in self.failed)
        location = Location.of(first, self._options.get("storage_options"))
        groups = {
            f"/{path}": sorted({dim for v in group.variables.values() for dim in v.dims})
            for path, group in open_group(location, OpenOptions(below=True, **options)).walk()
            if path and group.variables
        }
        dim, dims = self._options["concat_dim"], sorted(map(str, opened.dims))
        joined_dims = {dim} if isinstance(dim, str) else set(dim)
        matching = [path for path, group_dims in groups.items() if joined_dims <= set(group_dims)]
        present, remedy = f"{dims}", "name one of these"
        if matching:
            present, remedy = f"{dims}, and it in {matching}", f"pass group={matching[0]!r}"
        elif groups:
            present, remedy = f"{dims}, and in groups {groups}", "name one, and its group="
        return CombineError(f"concat_dim {dim!r}: the files have {present}; {remedy}")


def _add_loadable(loadable: Loadable, names: Sequence[str]) -> Loadable:
    """Return the option ``loadable_variables`` with names added."""
    if loadable is None or not names:
        return loadable
    if callable(loadable):
        return partial(_is_loadable, loadable, names)
    return (*to_names("loadable_variables", loadable), *names)


def _is_loadable(
    choose: Callable[[str, xr.Variable], bool],
    names: Sequence[str],
    name: str,
    variable: xr.Variable,
) -> bool:
    """Return whether a variable is in ``names``, or chosen by the function of the user."""
    return name in names or choose(name, variable)


# ---------------------------------------------------------------------- files of a set


@dataclass(frozen=True, eq=False)
class KnownFiles:
    """The files of a group: ``used_count`` files that it refers to, then others in its notes."""

    files: FileColumns = field(default_factory=lambda: FileColumns.from_states(()))
    used_count: int = 0
    notes: Notes = field(default_factory=Notes)

    @classmethod
    def of(cls, used: FileColumns, notes: Notes) -> KnownFiles:
        """Return the files that a set refers to, followed by other files in its notes."""
        if not notes.kinds:
            return cls(used, len(used), notes)
        is_about_sidecars = np.isin(np.array(notes.kinds, object), (DESCRIBES, DESCRIBED))
        is_unused = ~find_among(notes.files.urls, used.urls) & ~is_about_sidecars
        used = _fill_unknown_states(used, notes.find(DESCRIBED))
        return cls(FileColumns.join([used, notes.files.take(is_unused)]), len(used), notes)

    def name(self, urls: Iterable[str]) -> list[str]:
        """Return the urls by which files are listed: that of the sidecar, if there is one."""
        names = {find_sidecar_target(url): url for url in self.notes.select(DESCRIBES)}
        return [names.get(url, url) for url in urls]


def _fill_unknown_states(files: FileColumns, others: FileColumns) -> FileColumns:
    """Return the states of files, after taking unknown ones from ``others``."""
    if not len(others):
        return files
    rows = _find_rows(others, files)
    is_unknown = (rows >= 0) & (files.sizes == NO_NUMBER)
    chosen = np.where(is_unknown, len(files) + rows, np.arange(len(files)))
    return FileColumns.join([files, others]).take(chosen)


class SourceListReader:
    """Lists the source files of groups of the set at ``root`` that are joined along ``dims``.

    Files inside the set, such as rewritten chunks, are not included. The last results are cached.
    """

    def __init__(self, dims: Sequence[str], root: str) -> None:
        self.dims, self.root = frozenset(dims), root
        self._last: tuple[Any, FileColumns] = None, FileColumns.from_states(())
        self._known: tuple[Any, KnownFiles] = None, KnownFiles()

    def list_known(self, group: ManifestGroup | None) -> KnownFiles:
        """Return the files that a group refers to and those in its notes.

        The same object is returned as long as neither changes.
        """
        table, notes = self.tabulate(group), {} if group is None else group.notes
        if self._known[0] is None or self._known[0][0] is not table or self._known[0][1] != notes:
            self._known = (table, notes), KnownFiles.of(table, Notes.read(notes, self.root))
        return self._known[1]

    def tabulate(self, group: ManifestGroup | None) -> FileColumns:
        """Return the states of the files that a group refers to; empty without a group.

        The same object is returned as long as the lists of files in the set are the same.
        """
        variables = () if group is None else group.variables.values()
        data = [v.data for v in variables if not self.dims.isdisjoint(v.dims)]
        arrays = (array for array in data if isinstance(array, ManifestArray))
        others, *lists = count_sources(f.manifest for array in arrays for f in array.fragments)
        lists_key = [(part.name, (part.chunks > 0).tobytes()) for part in lists]
        key = lists_key, [column.tolist() for column in others.read_files()]
        if key != self._last[0]:
            self._last = key, self._read([others, *lists])
        return self._last[1]

    def _read(self, parts: Sequence[CountedSources]) -> FileColumns:
        """Return one row per source file of the parts that has chunks and is outside the set."""
        columns = []
        for part in parts:
            urls, sizes, mtimes, etags = part.read_files().take(part.chunks > 0)
            # usually all files of a set have the same etag, None
            normalised = {etag: normalise_etag(etag) for etag in set(etags)}
            normalised_etags = np.array([normalised[etag] for etag in etags], object)
            columns.append(
                FileColumns(urls, sizes, mtimes, normalised_etags, np.full(len(urls), np.nan))
            )
        joined = FileColumns.join(columns)
        if len(set(joined.urls)) < len(joined):
            # one row per file, from the array with the most details about it
            absent = [joined.sizes == NO_NUMBER, joined.mtimes == NO_NUMBER, joined.etags == ""]
            order = np.argsort(np.sum(absent, axis=0), kind="stable")
            joined = joined.take(np.sort(order[~pd.Index(joined.urls[order]).duplicated()]))
        is_in_set = [is_stored_in_set(url, self.root) for url in joined.urls]
        return joined.take(~np.array(is_in_set, bool))


# ---------------------------------------------------------------------- existing files


@dataclass(frozen=True, eq=False)
class Listing:
    """The files that exist now.

    ``files`` are those to which a set can refer. ``sidecars`` has the sidecar by which each file is
    listed, with the url "" if there is none.
    """

    files: FileColumns = field(default_factory=lambda: FileColumns.from_states(()))
    sidecars: FileColumns = field(default_factory=lambda: FileColumns.from_states(()))

    @classmethod
    def of(cls, files: FileColumns) -> Listing:
        """Create the listing of files without sidecars."""
        return cls(files, FileColumns.from_states([NO_SIDECAR]).take(np.zeros(len(files), np.intp)))

    @cached_property
    def names(self) -> npt.NDArray[np.object_]:
        """The url by which each file is listed and opened, that of its sidecar if it has one."""
        return np.where(self.sidecars.urls == "", self.files.urls, self.sidecars.urls)

    @property
    def sidecar_urls(self) -> dict[str, str]:
        """The urls of sidecars, by the url of the file."""
        has_sidecar = self.sidecars.urls != ""
        return dict(zip(self.files.urls[has_sidecar], self.sidecars.urls[has_sidecar], strict=True))

    def take(self, rows: npt.NDArray[Any]) -> Listing:
        """Select files by index, or by a mask."""
        return Listing(self.files.take(rows), self.sidecars.take(rows))


NO_SIDECAR = FileState("")
"""The state that stands for a missing sidecar."""


def list_with_sidecars(paths: Any, options: StorageOptions | None, known: FileColumns) -> Listing:
    """List the existing files of a pattern or a list, which may contain sidecars.

    If the file that a sidecar describes does not exist, both are omitted if the set has the file;
    otherwise the sidecar itself is listed, so that opening it raises an error.
    """
    listed = list_files(paths, options, known)
    if not any(url.endswith(tuple(SIDECARS)) for url in listed.urls.tolist()):
        return Listing.of(listed)
    described = [find_sidecar_target(url) for url in listed.urls.tolist()]
    described_urls = [url for url in described if url is not None]
    states = dict(
        zip(described_urls, _fetch_states_by_folder(described_urls, options), strict=True)
    )
    pairs, known_urls = list[tuple[FileState, FileState]](), set(known.urls)
    for listed_state, url in zip(listed, described, strict=True):
        described_state = None if url is None else states[url]
        if described_state is not None:
            pairs.append((described_state, listed_state))
        elif url not in known_urls:
            pairs.append((listed_state, NO_SIDECAR))
    return Listing(*(FileColumns.from_states(pair[n] for pair in pairs) for n in range(2)))


def list_files(paths: Any, options: StorageOptions | None, known: FileColumns) -> FileColumns:
    """List the existing files of a pattern or a list, with complete states.

    Files in the list that belong to the set but no longer exist are omitted.
    """
    if isinstance(paths, str) and is_pattern(paths):
        return _fetch_missing_details(list_states(paths, options), known, options)
    items = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(items, Iterable) or not all(isinstance(p, str | os.PathLike) for p in items):
        raise TypeError("sync takes a pattern, or a list of paths or urls, but no nested lists")
    urls = list(dict.fromkeys(map(normalise_url, items)))
    if in_archives := [url for url in urls if scheme_of(url) in ARCHIVES]:
        raise UnsupportedError(
            f"{in_archives[0]}: sync keeps track of files outside of archives, which have a size "
            f"and a time of their own; append this one with ds.virtual.to_manifest(..., "
            f"append_dim=...)"
        )
    if not urls:
        raise FileNotFoundError("sync: the list of files is empty; name some")
    states = _fetch_states(urls, options)
    missing = [url for url, state in zip(urls, states, strict=True) if state is None]
    if unknown := sorted(set(missing) - set(known.urls)):
        raise FileNotFoundError(f"{without_secrets(unknown[0])}: there is no such file")
    existing = FileColumns.from_states(state for state in states if state is not None)
    if not len(existing):
        raise FileNotFoundError(f"none of the {len(urls)} files exists; check the path")
    return _fetch_missing_details(
        existing.take(np.argsort(existing.urls, kind="stable")), known, options
    )


def _fetch_states(
    urls: Sequence[str], options: StorageOptions | None
) -> Sequence[FileState | None]:
    """Fetch the states of files concurrently; the state of a missing file is None."""

    def fetch(url: str) -> FileState | None:
        try:
            return fetch_state(url, options)
        except FileNotFoundError:
            return None

    return fetch_many(urls, lambda url: url, fetch)


MIN_LISTED = 4
"""Minimum number of files in a remote folder for which the folder is listed."""


def _fetch_states_by_folder(
    urls: Sequence[str], options: StorageOptions | None
) -> list[FileState | None]:
    """Fetch the states of files, by listing folders if this saves requests."""
    folders: dict[str, list[str]] = {}
    for url in urls:
        folders.setdefault(url.rpartition("/")[0], []).append(url)
    states: dict[str, FileState | None] = {}
    for folder, urls_in_folder in folders.items():
        if scheme_of(folder) == "file" or len(urls_in_folder) < MIN_LISTED:
            continue
        states_in_folder: dict[str, FileState] = {}
        with suppress(FileNotFoundError):
            listing = list_states(f"{escape_pattern(folder)}/*", options)
            states_in_folder = {state.url: state for state in listing}
        states |= {url: states_in_folder.get(url) for url in urls_in_folder}
    others = [url for url in urls if url not in states]
    states |= zip(others, _fetch_states(others, options), strict=True)
    return [states[url] for url in urls]


def _fetch_missing_details(
    listed: FileColumns, known: FileColumns, options: StorageOptions | None
) -> FileColumns:
    """Return listed files after fetching the states of those for which a listing lacks details.

    Files of the set need the size and etag that the set recorded; other files need the modification
    time, which shows whether they may still be written. Files that no longer exist are omitted.
    """
    rows = _find_rows(known, listed)
    is_known = rows >= 0
    is_incomplete = np.isnan(listed.modified) & ~is_known
    recorded, current = known.take(rows[is_known]), listed.take(is_known)
    lacks_size = (current.sizes == NO_NUMBER) & (recorded.sizes != NO_NUMBER)
    lacks_etag = (current.etags == "") & (recorded.etags != "")
    is_incomplete[is_known] = lacks_size | lacks_etag
    if not is_incomplete.any():
        return listed
    states = _fetch_states(listed.urls[is_incomplete].tolist(), options)
    fetched = FileColumns.from_states(state for state in states if state is not None)
    completed = FileColumns.join([listed.take(~is_incomplete), fetched])
    return completed.take(np.argsort(completed.urls, kind="stable"))


# ---------------------------------------------------------------------- differences


@dataclass(frozen=True)
class Changes:
    """The differences between the existing files and those of a set.

    Each field has the urls of files, except that ``unchanged`` is their number. ``removed`` files
    of the set are not listed. ``waiting`` files may still be written. ``repeated`` files are links
    to listed files, and are in no other field. ``shadowed`` are listed files of which a newer
    version is used. ``superseded`` are files of the set that another version replaces, because it
    is newer or because they are not listed. ``noted`` are unchanged files in the notes of the set.
    ``reopened`` are unchanged files that are opened again, since the set may need more of their
    positions. ``due`` files should be reopened, but cannot be opened now. ``listing`` has all
    existing files.
    """

    new: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    waiting: tuple[str, ...]
    unchanged: int
    repeated: tuple[str, ...]
    shadowed: tuple[str, ...]
    superseded: tuple[str, ...]
    noted: tuple[str, ...]
    listing: Listing = field(compare=False)
    reopened: tuple[str, ...] = ()
    due: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ("new", "changed", "removed", "waiting")
        counts = ", ".join(f"{len(getattr(self, name)):,} {name}" for name in names)
        return f"files listed: {counts}, {self.unchanged:,} unchanged"

    @classmethod
    def between(
        cls,
        before: KnownFiles,
        listing: Listing,
        settle: float,
        now: float,
        *,
        every_name: bool = False,
        newest: Callable[[str], Version] | None = None,
        failed: Collection[str] = (),
    ) -> Changes:
        """Compare the files of a set with the listed ones.

        A file that was modified less than ``settle`` seconds before ``now`` is waiting, and so is
        one modified shortly after, as the clock of a server may be ahead. Links to other listed
        files are omitted, except with ``every_name``. With ``newest``, which splits a url like
        `split_version`, only the newest version of a file is used; a new file that is waiting or in
        ``failed`` does not replace another. A file that is only in the notes is new if it has
        changed, and is ignored if it is not listed.
        """
        known, listed, sidecars = before.files, listing.files, listing.sidecars
        rows = _find_rows(known, listed)
        is_known = rows >= 0
        differs = np.zeros(len(listed), bool)
        differs[is_known] = _find_differing(listed.take(is_known), known.take(rows[is_known]))
        differs |= is_known & (sidecars.urls != "") & _find_changed_sidecars(before.notes, sidecars)
        modified = np.fmax(listed.modified, sidecars.modified)
        is_recent = (differs | ~is_known) & (np.abs(now - modified) < settle)
        is_removed = np.ones(len(known), bool)
        is_removed[rows[is_known]] = False
        is_shadowed, is_replaced = np.zeros(len(listed), bool), np.zeros(len(known), bool)
        if newest is not None:
            is_usable = is_known | ~is_recent & ~find_among(listed.urls, failed)
            versions = list(map(newest, listing.names[is_usable]))
            is_shadowed[is_usable] = True
            is_shadowed[np.flatnonzero(is_usable)[find_newest(versions)]] = False
            version_keys = {key for key, _ in versions}
            removed_names = before.name(known.urls[is_removed])
            is_replaced[is_removed] = [newest(name)[0] in version_keys for name in removed_names]
        is_used = np.arange(len(known)) < before.used_count
        is_unused = np.zeros(len(listed), bool)
        is_unused[is_known] = ~is_used[rows[is_known]]
        is_unchanged = is_known & ~differs & ~is_shadowed
        is_new = (~is_known | differs & is_unused) & ~is_recent & ~is_shadowed
        searched = np.zeros_like(is_new) if every_name else is_new
        is_repeated = _find_second_names(listed, searched)
        return cls(
            new=tuple(listed.urls[is_new & ~is_repeated]),
            changed=tuple(listed.urls[differs & ~is_unused & ~is_recent & ~is_shadowed]),
            removed=tuple(known.urls[is_removed & ~is_replaced & is_used]),
            waiting=tuple(listed.urls[is_recent & ~is_shadowed]),
            unchanged=int(np.count_nonzero(is_unchanged)),
            repeated=tuple(listed.urls[is_repeated]),
            shadowed=tuple(listed.urls[is_shadowed]),
            superseded=(
                *listed.urls[is_shadowed & is_known & ~is_unused],
                *known.urls[is_replaced & is_used],
            ),
            noted=tuple(
                listed.urls[is_unchanged & find_among(listed.urls, before.notes.select(*LEFT_OUT))]
            ),
            listing=listing,
        )

    def drop_handled(self, before: KnownFiles, now: KnownFiles) -> Changes:
        """Return the changes without those that another writer has made in the meantime.

        Files that the other writer added, replaced or removed are omitted, since its listing may be
        newer.
        """
        rows, old = (pd.Index(known.files.urls, dtype=object) for known in (now, before))

        def is_untouched(urls: Sequence[str]) -> Mask:
            """Return a mask of the files that the set has in the same state as before."""
            row_now, row_before = rows.get_indexer(urls), old.get_indexer(urls)
            mask = (row_now >= 0) & (row_before >= 0)
            states = now.files.take(row_now[mask]), before.files.take(row_before[mask])
            mask[mask] = ~_find_differing(*states)
            return np.asarray(mask, bool)

        def select_untouched(urls: Sequence[str]) -> tuple[str, ...]:
            is_needed = is_untouched(urls) & (rows.get_indexer(urls) < now.used_count)
            return tuple(np.array(urls, object)[is_needed])

        is_needed = is_untouched(self.new) | (rows.get_indexer(self.new) < 0)
        new = tuple(np.array(self.new, object)[is_needed])
        changed = select_untouched(self.changed)
        done = len(self.new) + len(self.changed) - len(new) - len(changed)
        return replace(
            self,
            new=new,
            changed=changed,
            removed=select_untouched(self.removed),
            superseded=select_untouched(self.superseded),
            unchanged=self.unchanged + done,
        )


def _find_changed_sidecars(notes: Notes, sidecars: FileColumns) -> Mask:
    """Return a mask of sidecars that are new or have changed since the notes were written."""
    recorded = notes.find(DESCRIBES)
    rows = _find_rows(recorded, sidecars)
    is_changed = rows < 0
    is_changed[~is_changed] = _find_differing(
        sidecars.take(~is_changed), recorded.take(rows[~is_changed])
    )
    return is_changed


def _find_second_names(listed: FileColumns, is_new: Mask) -> Mask:
    """Return a mask of new files that are links to the same file as another listed one.

    Of several new names of a file, the first valid one that is not a symbolic link is kept.
    """
    is_repeated = np.zeros(len(listed), bool)
    # only files with equal size and time can be the same file
    times, sizes = listed.mtimes, listed.sizes
    is_candidate = (
        (times != NO_NUMBER) & np.isin(times, times[is_new]) & np.isin(sizes, sizes[is_new])
    )
    rows = np.flatnonzero(is_candidate)
    repeated = pd.MultiIndex.from_arrays([times[rows], sizes[rows]]).duplicated(keep=False)
    rows_by_inode: dict[tuple[int, int], list[int]] = {}
    for row in rows[repeated].tolist():
        with suppress(OSError):
            status = os.stat(local_path(listed.urls[row]))
            rows_by_inode.setdefault((status.st_dev, status.st_ino), []).append(row)

    def rank(row: int) -> tuple[Any, ...]:
        url = str(listed.urls[row])
        return is_new[row], not is_valid_url(url), os.path.islink(local_path(url)), row

    for same_file in rows_by_inode.values():
        is_repeated[same_file] = is_new[same_file]
        is_repeated[min(same_file, key=rank)] = False
    return is_repeated


def _find_rows(known: FileColumns, listed: FileColumns) -> npt.NDArray[np.intp]:
    """Return the row of each listed file in the table of known files, -1 for new files."""
    # dtype object, since Arrow strings must be UTF-8, and names may not be
    indexes = (pd.Index(files.urls, dtype=object) for files in (known, listed))
    return np.asarray(next(indexes).get_indexer(next(indexes)))


def _find_differing(left: FileColumns, right: FileColumns) -> Mask:
    """Return a mask of rows with different states; unknown properties are not compared."""
    differs = np.zeros(len(left), bool)
    for a, b in ((left.sizes, right.sizes), (left.mtimes, right.mtimes)):
        differs |= (a != b) & (a != NO_NUMBER) & (b != NO_NUMBER)
    etags = (left.etags != right.etags) & (left.etags != "") & (right.etags != "")
    return np.asarray(differs | etags.astype(bool))
