"""A cache of opened files, in parts of many files each.

Parts that were opened with the same options lie in one folder. An entry of a part holds files of
one structure as columns, with their fingerprints, their groups and the loaded values; from these
datasets and trees are made as after a scan. If a part is missing or damaged, or a file has changed,
the file is opened without the cache.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.combine.alike_files import (
    JoinableFiles,
    NeedsFullCombineError,
    collect_files,
    find_plan,
)
from virtualds.combine.cached_part import (
    Entry,
    Listed,
    dump_entry,
    list_entries,
    load_entry,
    refusal,
    to_bytes,
)
from virtualds.combine.file_batch import FileBatch, OpenedAlone
from virtualds.datasets.decoding import NO_NAME, encoding_of
from virtualds.datasets.decoding_cache import DecodingPlan
from virtualds.datasets.lazy import get_virtual_array, is_unread
from virtualds.datasets.location import Location
from virtualds.datasets.open import make_dataset_or_tree
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import FormatError, UnsupportedError
from virtualds.options import get_options
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.urls import join_path, normalise_url, scheme_of

OTHERS = 8
"""Most other files that a cached file may refer to: each is checked too."""
MOST_WAITING, LONGEST_WAIT = 256, 10.0
"""Files opened one by one, and seconds, after which a part is written: no more is ever lost."""
SUFFIX = ".part"
NO_PLAN = DecodingPlan({}, frozenset(), frozenset())


class Place(NamedTuple):
    """Where a file is in the cache: the url of the part, the entry, and the place in that."""

    part: str
    entry: int
    place: int


@dataclass
class Index:
    """What is in the parts of a folder, by the url of the file."""

    build: str
    places: dict[str, list[tuple[SourceFile, Place]]] = field(default_factory=dict)
    others: dict[tuple[str, int], Sequence[SourceFile]] = field(default_factory=dict)


_index: list[Index] = []
"""The index of the last build of this process."""


class FileCache:
    """A folder of opened files.

    Parameters
    ----------
    folder : str
        Its url; any number of processes and machines may use it at the same time.
    opening : OpenOptions
        How files are opened.
    options : StorageOptions or None
        Access options of the files. They are never written.

    Raises
    ------
    ValueError
        ``loadable_variables`` is a function.
    """

    def __init__(
        self, folder: str, opening: OpenOptions, options: StorageOptions | None = None
    ) -> None:
        settings = _format_settings(opening).encode("utf-8", "surrogatepass")
        parts = join_path(folder, hashlib.blake2b(settings, digest_size=20).hexdigest())
        # a worker sees the parts that were there when the build began
        self.__setstate__((parts, opening, options, uuid.uuid4().hex))

    def __getstate__(self) -> tuple[Any, ...]:
        # with its folder, which goes by the settings of the process that began
        return self._parts, self.opening, self.options, self.build

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._parts, self.opening, self.options, self.build = state
        self._waiting: list[FileBatch | OpenedAlone] = []
        self._since, self._lock = time.monotonic(), threading.Lock()

    def look_up(self, items: Sequence[tuple[int, Any]]) -> list[FileBatch | OpenedAlone]:
        """Return those of some files that are cached and have not changed."""
        index = self._load_index()
        urls = {number: normalise_url(file) for number, file in items}
        known = [(number, url) for number, url in urls.items() if url in index.places]
        states = self._list_fingerprints([url for _, url in known])
        by_entry: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        for (number, url), state in zip(known, states, strict=True):
            for source, place in index.places[url] if state is not None else ():
                if source == state:
                    by_entry[place[:2]][place.place] = number
                    break
        files = dict(items)
        found: list[FileBatch | OpenedAlone] = []
        for where, numbers in by_entry.items():
            if self._are_as_before(index.others[where]):
                found += self._load(where, {p: (n, files[n]) for p, n in numbers.items()})
        return found

    def add(self, opened: FileBatch | OpenedAlone) -> None:
        """Cache files that were opened, now or with those that follow.

        Raises
        ------
        OSError
            The folder cannot be written to.
        """
        if len(opened) == 1:
            # what is done with the file before it is written must not be cached
            try:
                opened = replace(opened, group=_own_values(load_group(opened)))
            except UnsupportedError:
                return
        with self._lock:
            self._waiting.append(opened)
            waits = time.monotonic() - self._since > LONGEST_WAIT
            if len(opened) == 1 and not waits and len(self._waiting) < MOST_WAITING:
                return
        self.finish()

    def finish(self) -> None:
        """Write the files that wait.

        Raises
        ------
        OSError
            The folder cannot be written to.
        """
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._since = time.monotonic()
        entries = []
        for entry in _list_entries_of(waiting):
            others = entry.others
            # folders, archives and sets refer only to other files: their own fingerprint does not
            # change when these do
            if len(others) <= OTHERS and self._are_as_before(others):
                with suppress(UnsupportedError):
                    entries.append(dump_entry(entry, self.options))
        if entries:
            name = hashlib.blake2b(repr([e["files"] for e in entries]).encode("utf-8", "replace"))
            place = join_path(self._parts, name.hexdigest()[:40] + SUFFIX)
            find_store(place).write_file(place, to_bytes(entries), None)

    def _load_index(self) -> Index:
        with self._lock:
            if _index and _index[0].build == self.build:
                return _index[0]
            index = Index(self.build)
            store = find_store(self._parts)
            for listed in store.list_files(self._parts, None):
                if listed.path.endswith(SUFFIX):
                    part = join_path(self._parts, listed.path)
                    with suppress(FormatError, FileNotFoundError):
                        entries = list_entries(store.read_all(part, None), self.options)
                        _add_to_index(index, part, entries)
            _index[:] = [index]
            return index

    def _list_fingerprints(self, urls: Sequence[str]) -> list[SourceFile | None]:
        if len(urls) < 2 or scheme_of(urls[0]) == "file":
            return list(map(self._fingerprint, urls))
        with ThreadPoolExecutor(min(get_options().max_requests, len(urls))) as pool:
            return list(pool.map(self._fingerprint, urls))

    def _are_as_before(self, files: Sequence[SourceFile]) -> bool:
        """Say whether none of some files has changed."""
        return self._list_fingerprints([file.url for file in files]) == [*files]

    def _fingerprint(self, url: str) -> SourceFile | None:
        """Return the present state of a file, None if it does not show changes."""
        try:
            source = find_store(url).describe(url, self.options)
        except OSError:
            # opening the file raises a better error
            return None
        return source if _shows_changes(source) else None

    def _load(
        self, where: tuple[str, int], wanted: Mapping[int, tuple[int, Any]]
    ) -> list[FileBatch | OpenedAlone]:
        """Return some files of an entry: by their places, numbers and names; none if damaged."""
        try:
            entry = _read_entry(*where, self.options)
        except (FileNotFoundError, FormatError):
            return []
        group = entry.group if len(entry.sources) > 1 else _own_values(entry.group)
        names = [wanted.get(place, (-1, "")) for place in range(len(entry.sources))]
        numbers, urls = zip(*names, strict=True)
        batch = FileBatch(
            urls,
            group,
            NO_PLAN,
            self.opening,
            numbers,
            entry.dim,
            tuple(entry.lengths),
            entry.attributes,
            entry.encodings,
            entry.stacked,
            entry.same,
        )
        known = min(wanted)
        first = batch.cut(known)
        if not self.opening.below:
            with suppress(NeedsFullCombineError):
                batch = replace(batch, plan=self._find_plan(first))
                if len(wanted) == len(batch):
                    return [batch]
                files = [batch.cut(place, known) for place in wanted]
                return [
                    replace(f, plan=self._find_plan(f), is_cut=False) if f.is_cut else f
                    for f in files
                ]
        # it decodes by itself
        decoded = make_dataset_or_tree(Location.of(first.urls[0]), first.group, self.opening)
        return [OpenedAlone(first.urls[0], first.group, decoded, first.numbers)]

    def _find_plan(self, file: FileBatch) -> DecodingPlan:
        return find_plan(file.urls[0], file.group, self.opening, self.options)


@lru_cache(4)
def _read_entry(part: str, number: int, options: StorageOptions | None) -> Entry:
    return load_entry(find_store(part).read_all(part, None), number, options)


def _add_to_index(index: Index, part: str, entries: Sequence[Listed]) -> None:
    for number, entry in enumerate(entries):
        index.others[part, number] = entry.others
        for place, source in enumerate(entry.sources):
            places = index.places.setdefault(source.url, [])
            places.append((source, Place(part, number, place)))


def _shows_changes(source: SourceFile) -> bool:
    return bool(source.size and (source.mtime or source.etag))


# ---------------------------------------------------------------------- what is cached


def _list_entries_of(opened: Sequence[FileBatch | OpenedAlone]) -> list[Entry]:
    """Return opened files as entries: those of one structure as one."""
    alone, batches = [], []
    singles: dict[int, list[FileBatch]] = defaultdict(list)
    for one in opened:
        if isinstance(one, OpenedAlone):
            alone.append(one)
        elif len(one) == 1:
            singles[id(one.plan)].append(one)
        else:
            batches.append(one)
    for alike in singles.values():
        try:
            batches += collect_files(JoinableFiles.of(alike)) if len(alike) > 1 else alike
        except NeedsFullCombineError:
            batches += alike
    entries = [entry for batch in batches for entry in _make_entries(batch)]
    for one in alone:
        entries += _make_single(one.url, one.group)
    return entries


def load_group(opened: FileBatch | OpenedAlone) -> ManifestGroup:
    """Return the group of a file with its loaded values, and its undecodable variables.

    Raises
    ------
    UnsupportedError
        Some values are lazy.
    """
    if isinstance(opened, FileBatch):
        return opened.group
    return _as_opened(opened.group, opened.decoded)


def _own_values(group: ManifestGroup) -> ManifestGroup:
    """Return a group whose values in memory are copies."""
    variables = {
        name: replace(v, data=v.data.copy()) if isinstance(v.data, np.ndarray) else v
        for name, v in group.variables.items()
    }
    below = {name: _own_values(child) for name, child in group.groups.items()}
    return replace(group, variables=variables, groups=below)


def _make_entries(batch: FileBatch) -> list[Entry]:
    """Return a batch as an entry; files that refer to other files have entries of their own."""
    if len(batch) == 1:
        return _make_single(batch.urls[0], batch.group)
    used = _list_sources(batch.group, batch.stacked.values())
    own = [used.pop(normalise_url(url), None) for url in batch.urls]
    sources = [source for source in own if source is not None and _shows_changes(source)]
    if used or len(sources) < len(own):
        return [entry for file in batch.list_files() for entry in _make_entries(file)]
    columns = batch.attributes, batch.encodings, batch.stacked, batch.same
    return [Entry(sources, (), batch.group, batch.dim, batch.lengths, *columns)]


def _make_single(url: Any, group: ManifestGroup) -> list[Entry]:
    used = _list_sources(group, ())
    own = used.pop(normalise_url(url), None)
    if own is None or not _shows_changes(own):
        return []
    return [Entry([own], [*used.values()], group)]


def _list_sources(group: ManifestGroup, more: Any) -> dict[str, SourceFile]:
    """Return the files that the virtual arrays of a group refer to, by url."""
    data = [v.data for _, part in group.walk() for v in part.variables.values()]
    arrays = [one for one in (*data, *more) if isinstance(one, ManifestArray)]
    return {file.url: file for array in arrays for file in array.listed_sources}


def _as_opened(group: ManifestGroup, found: xr.Dataset | xr.DataTree) -> ManifestGroup:
    """Return a group as it was decoded to a dataset or tree."""
    below = {}
    if isinstance(found, xr.DataTree):
        nodes = found.children
        below = {name: _as_opened(child, nodes[name]) for name, child in group.groups.items()}
        found = found.to_dataset(inherit=False)
    variables = {
        name: _variable_as_opened(v, found.variables.get(None if name == NO_NAME else name))
        for name, v in group.variables.items()
    }
    return replace(group, variables=variables, groups=below)


def _variable_as_opened(stored: ManifestVariable, found: xr.Variable | None) -> ManifestVariable:
    # a tree holds inherited coordinates only in the parent group
    array = None if found is None else get_virtual_array(found)
    if array is not None:
        return stored if refusal(array) is None else replace(stored, data=array)
    if found is not None and is_unread(found):
        raise UnsupportedError("values that are lazy")
    return replace(stored, data=stored.read(), encoding=encoding_of(stored))


def _format_settings(opening: OpenOptions) -> str:
    """Return all options that decide what opening a file gives, as text.

    Access options are left out: they may be secret, and change while the files do not.

    Raises
    ------
    ValueError
        An argument is a function.
    """
    if callable(opening.loadable_variables):
        raise ValueError(
            "cache: loadable_variables is a function, whose results may change; give names or "
            "patterns"
        )
    options = get_options()
    versions = [version(library) for library in ("virtualds", "xarray", "numpy")]
    return repr((versions, options.small_variable, options.load_limit, opening))
