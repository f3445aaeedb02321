"""The files of a set and those that exist now, as tables, and the differences between them.

Also opens the files that a set lacks, as one dataset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
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
from virtualds.combine.ordering import (
    CROPPING_OVERLAPS,
    Files,
    Version,
    find_newest,
    split_version,
)
from virtualds.combine.report import BuildReport
from virtualds.combine.workers import LeftOut
from virtualds.datasets.keywords import to_names
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
from virtualds.progress import Progress, report_progress
from virtualds.reading.threads import fetch_many
from virtualds.source_file import NO_NUMBER, StorageOptions
from virtualds.stores.access_rules import check_valid_url, is_valid_url
from virtualds.stores.listing import FileColumns, FileState, fetch_state, list_states, names_files
from virtualds.stores.patterns import PathPattern, escape_pattern
from virtualds.stores.requests import normalise_etag
from virtualds.syncing.notes import DESCRIBED, DESCRIBES, LEFT_OUT, Notes
from virtualds.urls import ARCHIVES, SIDECARS, find_described, local_path, normalise_url, scheme_of

Urls = tuple[str, ...]
Mask = npt.NDArray[np.bool_]


class FileOpener:
    """Opens files as one dataset, like `open_virtual_mfdataset`, and never the same files twice.

    Files of a grid that may overlap are opened as several datasets, of files that do not. ``names``
    are the sidecars of files that are opened by one. Coordinates along ``loaded`` dimensions are in
    memory, whatever the options say.
    """

    def __init__(
        self,
        dims: Sequence[str],
        options: Mapping[str, Any],
        pattern: PathPattern | None = None,
        names: Mapping[str, str] | None = None,
        loaded: Sequence[str] = (),
    ) -> None:
        self._pattern = pattern
        self._names = names or {}
        self._loadable = options.get("loadable_variables")
        # a variable that only the set has may be named as well
        optional = {"loadable_variables": make_optional(_load_also(self._loadable, loaded))}
        joined = dims[0] if len(dims) == 1 else list(dims)
        self._options = {"combine": "nested", **options, **optional, "concat_dim": joined}
        building = BuildOptions(on_error=options.get("on_error", "raise"))
        self._stops = building.stops
        self._has_layers = len(dims) > 1 and options.get("overlap") in CROPPING_OVERLAPS
        self._opened: dict[Urls, list[xr.Dataset]] = {}
        self._examples: dict[Urls, Urls] = {}
        self.failed: dict[str, LeftOut] = {}
        self.damaged: tuple[LeftOut, ...] = ()

    def open(self, urls: Urls) -> xr.Dataset | None:
        """Return the dataset of some files, or None if none of them can be opened."""
        layers = self.open_layers(urls)
        return layers[0] if layers else None

    def open_layers(self, urls: Urls) -> list[xr.Dataset]:
        """Return the datasets of some files, one or none unless these are of a grid and overlap."""
        if urls and urls not in self._opened:
            self._opened[urls] = self._open(urls)
        return self._opened.get(urls, [])

    def check_loaded(self, group: ManifestGroup) -> ManifestGroup:
        """Raise an error for names in ``loadable_variables`` that neither set nor file has."""
        if not self.failed and self._options.get("preprocess") is None:
            dropped = to_names("drop_variables", self._options.get("drop_variables"))
            check_variables(self._loadable, group.variables, dropped, "the set or its files")
        return group

    def _open(self, given: Urls) -> list[xr.Dataset]:
        urls = tuple(url for url in given if self._is_nameable(url))
        if not urls:
            return []
        reports: list[BuildReport] = []
        with report_progress(self._options.get("progress"), "opening", len(urls)) as show:

            def note(progress: Progress) -> None:
                show(progress)
                if progress.report is not None:
                    reports.append(progress.report)

            try:
                access = StorageOptions.of(self._options.get("storage_options"))
                names = [self._names.get(url, url) for url in urls]
                files: Any = Files(names, access, self._pattern)
                options = {**self._options, "progress": note}
                if self._has_layers:
                    found = open_layers(files, **options)
                else:
                    found = [open_virtual_mfdataset(files, **options)]
            except OPEN_ERRORS:
                nothing = any(len(report.left_out) == report.files for report in reports)
                if self._stops or not nothing:
                    raise
                found = []
        described = dict(zip(names, urls, strict=True))
        firsts = (schema.first for schema in reports[-1].schemas)
        self._examples[given] = tuple(described.get(first, first) for first in firsts)
        left_out = reports[-1].left_out
        self.failed |= {described.get(lost.url, lost.url): lost for lost in left_out}
        self.damaged += reports[-1].damaged
        # the set would refer to their sources, and would not record these files themselves
        if others := sorted({url for one in found for url in urls_of(one)} - set(urls)):
            raise UnsupportedError(
                f"{without_secrets(urls[0])}{' and others' if urls[1:] else ''}: the data lie in "
                f"other files, such as {without_secrets(others[0])}; sync keeps track of files "
                f"that hold their own data. Append such files with ds.virtual.to_manifest(..., "
                f"append_dim=...)"
            )
        return found

    def _is_nameable(self, url: str) -> bool:
        """Return whether a set may refer to a file; if not, leave it out or raise an error."""
        try:
            check_valid_url(url)
        except UnsupportedError as error:
            if self._stops:
                raise
            self.failed[url] = LeftOut.of(url, error)
            return False
        return True

    def list_examples(self, urls: Urls) -> Urls:
        """Return one file of each schema among the opened files."""
        found = self._examples.get(urls, urls[:1])
        return tuple(url for url in found if url in urls)

    def make_dimension_error(self, urls: Urls, opened: xr.Dataset) -> CombineError:
        """Return the error for files without the dimension, naming the groups that have it."""
        names = ("parser", "parser_options", "allow")
        how = {name: self._options[name] for name in names if name in self._options}
        first = next(url for url in urls if url not in self.failed)
        location = Location.of(first, self._options.get("storage_options"))
        groups = {
            f"/{path}": sorted({dim for v in part.variables.values() for dim in v.dims})
            for path, part in open_group(location, OpenOptions(below=True, **how)).walk()
            if path and part.variables
        }
        dim, dims = self._options["concat_dim"], sorted(map(str, opened.dims))
        wanted = {dim} if isinstance(dim, str) else set(dim)
        having = [path for path, there in groups.items() if wanted <= set(there)]
        there, remedy = f"{dims}", "name one of these"
        if having:
            there, remedy = f"{dims}, and it in {having}", f"pass group={having[0]!r}"
        elif groups:
            there, remedy = f"{dims}, and in groups {groups}", "name one, and its group="
        return CombineError(f"concat_dim {dim!r}: the files have {there}; {remedy}")


def _load_also(loadable: Loadable, names: Sequence[str]) -> Loadable:
    """Return the variables to load, with coordinates along some dimensions."""
    if loadable is None or not names:
        return loadable
    if callable(loadable):
        return partial(_is_loaded, loadable, names)
    return (*to_names("loadable_variables", loadable), *names)


def _is_loaded(
    choose: Callable[[str, xr.Variable], bool], names: Sequence[str], name: str, v: xr.Variable
) -> bool:
    return name in names or choose(name, v)


# ---------------------------------------------------------------------- what a set has


@dataclass(frozen=True, eq=False)
class KnownFiles:
    """The files that a group of a set knows: those it refers to, then those that it only notes."""

    files: FileColumns = field(default_factory=lambda: FileColumns.of(()))
    held: int = 0
    notes: Notes = field(default_factory=Notes)

    @classmethod
    def of(cls, held: FileColumns, notes: Notes) -> KnownFiles:
        """Return the files that a set refers to, and the others of its notes."""
        if not notes.kinds:
            return cls(held, len(held), notes)
        is_apart = np.isin(np.array(notes.kinds, object), (DESCRIBES, DESCRIBED))
        others = ~find_among(notes.files.urls, held.urls) & ~is_apart
        held = _complete_states(held, notes.find(DESCRIBED))
        return cls(FileColumns.join([held, notes.files.take(others)]), len(held), notes)

    def name(self, urls: Iterable[str]) -> list[str]:
        """Return the names by which files are listed: those of their sidecars, if they have one."""
        names = {find_described(url): url for url in self.notes.select(DESCRIBES)}
        return [names.get(url, url) for url in urls]


def _complete_states(files: FileColumns, others: FileColumns) -> FileColumns:
    """Return the states of files, from the others where they are not known."""
    if not len(others):
        return files
    rows = _find_places(others, files)
    lacks = (rows >= 0) & (files.sizes == NO_NUMBER)
    columns = {}
    for field_ in fields(FileColumns)[1:]:
        column = getattr(files, field_.name).copy()
        column[lacks] = getattr(others, field_.name)[rows[lacks]]
        columns[field_.name] = column
    return replace(files, **columns)


class SetFiles:
    """Finds the files that are joined along dimensions of the set at the url ``root``.

    Files inside the set are its own copies, as are rewritten chunks.
    """

    def __init__(self, dims: Sequence[str], root: str) -> None:
        self.dims, self.root = frozenset(dims), root
        self._last: tuple[Any, FileColumns] = None, FileColumns.of(())
        self._known: tuple[Any, KnownFiles] = None, KnownFiles()

    def list_known(self, group: ManifestGroup | None) -> KnownFiles:
        """Return the files that a set refers to, and those that it notes.

        As long as neither changes, the same object is returned.
        """
        table, noted = self.tabulate(group), {} if group is None else group.notes
        if self._known[0] is None or self._known[0][0] is not table or self._known[0][1] != noted:
            self._known = (table, noted), KnownFiles.of(table, Notes.read(noted, self.root))
        return self._known[1]

    def tabulate(self, group: ManifestGroup | None) -> FileColumns:
        """Return the table of the files that a set refers to, empty without a set.

        As long as the lists of files in the set are the same, the same object is returned.
        """
        variables = () if group is None else group.variables.values()
        data = [v.data for v in variables if not self.dims.isdisjoint(v.dims)]
        arrays = (array for array in data if isinstance(array, ManifestArray))
        others, *lists = count_sources(f.manifest for array in arrays for f in array.fragments)
        name = [(part.name, (part.chunks > 0).tobytes()) for part in lists]
        named = name, [column.tolist() for column in others.read_files()]
        if named != self._last[0]:
            self._last = named, self._read([others, *lists])
        return self._last[1]

    def _read(self, parts: Sequence[CountedSources]) -> FileColumns:
        columns = []
        for part in parts:
            urls, sizes, mtimes, etags = part.read_files().take(part.chunks > 0)
            # mostly all files of a set have the same etag, None
            tidy = {etag: normalise_etag(etag) for etag in set(etags)}
            known = np.array([tidy[etag] for etag in etags], object)
            columns.append(FileColumns(urls, sizes, mtimes, known, np.full(len(urls), np.nan)))
        found = FileColumns.join(columns)
        if len(set(found.urls)) < len(found):
            # one row per file, from the array with the most details about it
            absent = [found.sizes == NO_NUMBER, found.mtimes == NO_NUMBER, found.etags == ""]
            order = np.argsort(np.sum(absent, axis=0), kind="stable")
            found = found.take(np.sort(order[~pd.Index(found.urls[order]).duplicated()]))
        own = [is_stored_in_set(url, self.root) for url in found.urls]
        return found.take(~np.array(own, bool))


# ---------------------------------------------------------------------- what is there


@dataclass(frozen=True, eq=False)
class Listing:
    """The files that are there now.

    ``files`` are those that a set refers to. ``sidecars`` are the files that describe them, by
    which they are listed, with "" for the url of a file without one.
    """

    files: FileColumns = field(default_factory=lambda: FileColumns.of(()))
    sidecars: FileColumns = field(default_factory=lambda: FileColumns.of(()))

    @classmethod
    def of(cls, files: FileColumns) -> Listing:
        """Return the listing of files without sidecars."""
        return cls(files, FileColumns.of([NONE]).take(np.zeros(len(files), np.intp)))

    @cached_property
    def names(self) -> npt.NDArray[np.object_]:
        """The url by which each file is listed and opened."""
        return np.where(self.sidecars.urls == "", self.files.urls, self.sidecars.urls)

    @property
    def described(self) -> dict[str, str]:
        """The sidecars of files that have one, by the urls of the files."""
        has_one = self.sidecars.urls != ""
        return dict(zip(self.files.urls[has_one], self.sidecars.urls[has_one], strict=True))

    def take(self, rows: npt.NDArray[Any]) -> Listing:
        """Return some rows, by index or by a mask."""
        return Listing(self.files.take(rows), self.sidecars.take(rows))


NONE = FileState("")
"""Stands for the sidecar of a file that has none."""


def list_archive(paths: Any, options: StorageOptions | None, known: FileColumns) -> Listing:
    """Return the existing files of a pattern or a list, which may name sidecars.

    A file that a sidecar describes and that does not exist is left out if the set has it; else the
    sidecar is listed itself, so that opening it says what is missing.
    """
    listed = list_files(paths, options, known)
    if not any(url.endswith(tuple(SIDECARS)) for url in listed.urls.tolist()):
        return Listing.of(listed)
    described = [find_described(url) for url in listed.urls.tolist()]
    wanted = [url for url in described if url is not None]
    states = dict(zip(wanted, _list_near(wanted, options), strict=True))
    pairs, held = list[tuple[FileState, FileState]](), set(known.urls)
    for itself, url in zip(listed, described, strict=True):
        state = None if url is None else states[url]
        if state is not None:
            pairs.append((state, itself))
        elif url not in held:
            pairs.append((itself, NONE))
    return Listing(*(FileColumns.of(pair[n] for pair in pairs) for n in range(2)))


def list_files(paths: Any, options: StorageOptions | None, known: FileColumns) -> FileColumns:
    """Return the existing files of a pattern or a list, with the details that the listing has.

    A file in the list that belongs to the set but no longer exists is left out.
    """
    if isinstance(paths, str) and names_files(paths):
        return _complete(list_states(paths, options), known, options)
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, Iterable) or not all(isinstance(p, str | os.PathLike) for p in given):
        raise TypeError("sync takes a pattern, or a list of paths or urls, without lists in it")
    urls = list(dict.fromkeys(map(normalise_url, given)))
    if inside := [url for url in urls if scheme_of(url) in ARCHIVES]:
        raise UnsupportedError(
            f"{inside[0]}: sync keeps track of files outside of archives, which have a size and a "
            f"time of their own; append this one with ds.virtual.to_manifest(..., append_dim=...)"
        )
    if not urls:
        raise FileNotFoundError("sync: the list of files is empty; name some")
    states = _fetch_states(urls, options)
    gone = [url for url, state in zip(urls, states, strict=True) if state is None]
    if strange := sorted(set(gone) - set(known.urls)):
        raise FileNotFoundError(f"{without_secrets(strange[0])}: there is no such file")
    found = FileColumns.of(state for state in states if state is not None)
    if not len(found):
        raise FileNotFoundError(f"none of the {len(urls)} files is there; check the path")
    return _complete(found.take(np.argsort(found.urls, kind="stable")), known, options)


def _fetch_states(
    urls: Sequence[str], options: StorageOptions | None
) -> Sequence[FileState | None]:
    """Return the present states of files, None for those that do not exist; many at a time."""

    def fetch(url: str) -> FileState | None:
        try:
            return fetch_state(url, options)
        except FileNotFoundError:
            return None

    return fetch_many(urls, lambda url: url, fetch)


MIN_LISTED = 4
"""So many files of a remote folder are found by a listing of it rather than one by one."""


def _list_near(urls: Sequence[str], options: StorageOptions | None) -> list[FileState | None]:
    """Return the states of files, None for those that do not exist, from listings of folders."""
    folders: dict[str, list[str]] = {}
    for url in urls:
        folders.setdefault(url.rpartition("/")[0], []).append(url)
    found: dict[str, FileState | None] = {}
    for folder, inside in folders.items():
        if scheme_of(folder) == "file" or len(inside) < MIN_LISTED:
            continue
        known: dict[str, FileState] = {}
        with suppress(FileNotFoundError):
            there = list_states(f"{escape_pattern(folder)}/*", options)
            known = {state.url: state for state in there}
        found |= {url: known.get(url) for url in inside}
    others = [url for url in urls if url not in found]
    found |= zip(others, _fetch_states(others, options), strict=True)
    return [found[url] for url in urls]


def _complete(
    listed: FileColumns, known: FileColumns, options: StorageOptions | None
) -> FileColumns:
    """Fetch the states of files for which a listing lacks details, each once.

    For a file of the set, size and etag are compared; for any other, the time shows whether it may
    still be written. Files that no longer exist are left out.
    """
    place = _find_places(known, listed)
    there = place >= 0
    asked = np.isnan(listed.modified) & ~there
    of_set, now = known.take(place[there]), listed.take(there)
    lacks_size = (now.sizes == NO_NUMBER) & (of_set.sizes != NO_NUMBER)
    lacks_etag = (now.etags == "") & (of_set.etags != "")
    asked[there] = lacks_size | lacks_etag
    if not asked.any():
        return listed
    states = _fetch_states(listed.urls[asked].tolist(), options)
    answered = FileColumns.of(state for state in states if state is not None)
    found = FileColumns.join([listed.take(~asked), answered])
    return found.take(np.argsort(found.urls, kind="stable"))


# ---------------------------------------------------------------------- how they differ


@dataclass(frozen=True)
class Newest:
    """The choice of the newest version of each file, by a name of a pattern."""

    pattern: PathPattern
    name: str

    def split(self, urls: Iterable[str]) -> list[Version]:
        """Return the version of each url."""
        return [split_version(self.pattern, url, self.name) for url in urls]


@dataclass(frozen=True)
class Changes:
    """The differences between the existing files and those of a set.

    All are urls, but ``unchanged`` is a number. ``removed`` are files of the set that are not
    listed; ``waiting`` may still be written; ``repeated`` are other names of listed files, by
    links, which are in no other field. ``shadowed`` are listed files in place of which a newer
    version is used. ``superseded`` are files of the set in place of which another version is used,
    because it is newer, or because they are not listed any more. ``noted`` are those unchanged
    files that the set notes, since it does not use them, or only in part, and ``reopened`` those
    that it may need again. ``due`` are files of which it may need more, and that cannot be opened
    now. ``listing`` are all files that are there.
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
        newest: Newest | None = None,
        failed: Collection[str] = (),
    ) -> Changes:
        """Compare the files of a set with the listed ones.

        A file that was modified less than ``settle`` seconds before or after ``now`` waits; the
        clock of a server may be ahead. Second names of files are left out, except with
        ``every_name``. With ``newest``, only the newest version of a file is used; a new file
        that waits or is in ``failed`` replaces no other. A file that the set only notes is new if
        it has changed, and forgotten if it is not listed.
        """
        known, listed, sidecars = before.files, listing.files, listing.sidecars
        place = _find_places(known, listed)
        there = place >= 0
        differs = np.zeros(len(listed), bool)
        differs[there] = _differ(listed.take(there), known.take(place[there]))
        differs |= there & (sidecars.urls != "") & _find_changed(before.notes, sidecars)
        modified = np.fmax(listed.modified, sidecars.modified)
        young = (differs | ~there) & (np.abs(now - modified) < settle)
        gone = np.ones(len(known), bool)
        gone[place[there]] = False
        shadowed, retracted = np.zeros(len(listed), bool), np.zeros(len(known), bool)
        if newest is not None:
            usable = there | ~young & ~find_among(listed.urls, failed)
            versions = newest.split(listing.names[usable])
            shadowed[usable] = True
            shadowed[np.flatnonzero(usable)[find_newest(versions)]] = False
            others = {rest for rest, _ in versions}
            retracted[gone] = [
                rest in others for rest, _ in newest.split(before.name(known.urls[gone]))
            ]
        held = np.arange(len(known)) < before.held
        unused = np.zeros(len(listed), bool)
        unused[there] = ~held[place[there]]
        same = there & ~differs & ~shadowed
        fresh = (~there | differs & unused) & ~young & ~shadowed
        searched = np.zeros_like(fresh) if every_name else fresh
        repeated = _find_second_names(listed, searched)
        return cls(
            new=tuple(listed.urls[fresh & ~repeated]),
            changed=tuple(listed.urls[differs & ~unused & ~young & ~shadowed]),
            removed=tuple(known.urls[gone & ~retracted & held]),
            waiting=tuple(listed.urls[young & ~shadowed]),
            unchanged=int(np.count_nonzero(same)),
            repeated=tuple(listed.urls[repeated]),
            shadowed=tuple(listed.urls[shadowed]),
            superseded=(*listed.urls[shadowed & there & ~unused], *known.urls[retracted & held]),
            noted=tuple(
                listed.urls[same & find_among(listed.urls, before.notes.select(*LEFT_OUT))]
            ),
            listing=listing,
        )

    def still_needed(self, before: KnownFiles, now: KnownFiles) -> Changes:
        """Return the changes that are still needed after another writer has changed the set.

        What the other writer added, replaced or removed is left alone: its listing may be newer
        than ours.
        """
        rows, old = (pd.Index(known.files.urls, dtype=object) for known in (now, before))

        def is_untouched(urls: Sequence[str]) -> Mask:
            """Return whether the set knows each file, in the same state as before."""
            here, there = rows.get_indexer(urls), old.get_indexer(urls)
            found = (here >= 0) & (there >= 0)
            found[found] = ~_differ(now.files.take(here[found]), before.files.take(there[found]))
            return np.asarray(found, bool)

        def keep_untouched(urls: Sequence[str]) -> tuple[str, ...]:
            known = is_untouched(urls) & (rows.get_indexer(urls) < now.held)
            return tuple(np.array(urls, object)[known])

        fresh = is_untouched(self.new) | (rows.get_indexer(self.new) < 0)
        new = tuple(np.array(self.new, object)[fresh])
        changed = keep_untouched(self.changed)
        done = len(self.new) + len(self.changed) - len(new) - len(changed)
        return replace(
            self,
            new=new,
            changed=changed,
            removed=keep_untouched(self.removed),
            superseded=keep_untouched(self.superseded),
            unchanged=self.unchanged + done,
        )


def _find_changed(notes: Notes, sidecars: FileColumns) -> Mask:
    """Return the mask of sidecars that the set does not note in their present state."""
    known = notes.find(DESCRIBES)
    place = _find_places(known, sidecars)
    found = place < 0
    found[~found] = _differ(sidecars.take(~found), known.take(place[~found]))
    return found


def _find_second_names(listed: FileColumns, fresh: Mask) -> Mask:
    """Return the mask of new files that are links to other listed ones, or linked by these.

    Of several new names, the first that a set may refer to and that is not a symbolic link is used.
    """
    found = np.zeros(len(listed), bool)
    # only files of the same size and time can be the same file
    times, sizes = listed.mtimes, listed.sizes
    alike = (times != NO_NUMBER) & np.isin(times, times[fresh]) & np.isin(sizes, sizes[fresh])
    rows = np.flatnonzero(alike)
    repeated = pd.MultiIndex.from_arrays([times[rows], sizes[rows]]).duplicated(keep=False)
    names: dict[tuple[int, int], list[int]] = {}
    for row in rows[repeated].tolist():
        with suppress(OSError):
            there = os.stat(local_path(listed.urls[row]))
            names.setdefault((there.st_dev, there.st_ino), []).append(row)

    def rank(row: int) -> tuple[Any, ...]:
        url = str(listed.urls[row])
        return fresh[row], not is_valid_url(url), os.path.islink(local_path(url)), row

    for same in names.values():
        found[same] = fresh[same]
        found[min(same, key=rank)] = False
    return found


def find_among(urls: Iterable[str], others: Iterable[str]) -> Mask:
    """Return the mask of urls that are among others; numpy compares each object with each."""
    return np.asarray(pd.Index(urls, dtype=object).isin([*others]), bool)


def _find_places(known: FileColumns, listed: FileColumns) -> npt.NDArray[np.intp]:
    """Return the row of every listed file in the table of the set, -1 for new files."""
    # names may not be UTF-8, as Arrow strings must be
    names = (pd.Index(files.urls, dtype=object) for files in (known, listed))
    return np.asarray(next(names).get_indexer(next(names)))


def _differ(some: FileColumns, others: FileColumns) -> Mask:
    """Return the mask of pairs of states in which a detail differs that both have."""
    found = np.zeros(len(some), bool)
    for a, b in ((some.sizes, others.sizes), (some.mtimes, others.mtimes)):
        found |= (a != b) & (a != NO_NUMBER) & (b != NO_NUMBER)
    etags = (some.etags != others.etags) & (some.etags != "") & (others.etags != "")
    return np.asarray(found | etags.astype(bool))
