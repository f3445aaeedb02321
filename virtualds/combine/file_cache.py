"""A cache of scanned files: one entry for each source, valid until the source changes.

The name of an entry is a hash of the url of the source and of all arguments that decide what
opening it gives. An entry holds the fingerprint of the source, its groups, and the loaded values;
from these a dataset or a tree is made as after a scan. If an entry is missing or damaged, or its
source has changed, the source is opened without the cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, NamedTuple

import xarray as xr

from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.combine.kept_group import from_bytes, refusal, to_bytes
from virtualds.datasets.decoding import encoding_of
from virtualds.datasets.lazy import get_virtual_array, is_unread
from virtualds.datasets.location import Location
from virtualds.datasets.open import make_dataset_or_tree, open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.to_dataset import NO_NAME
from virtualds.errors import FormatError, UnsupportedError
from virtualds.options import get_options
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.urls import join_path, normalise_url

OTHERS = 8
"""Most other files that a cached file may refer to: each is checked too."""


class Scanned(NamedTuple):
    """A dataset or tree, and the group that it was made of; None if the group cannot be cached."""

    found: Any
    group: ManifestGroup | None

    @property
    def virtual(self) -> Any:
        """The accessor of the dataset or tree."""
        return self.found.virtual


def open_to_keep(
    file: Any, opening: OpenOptions, storage_options: Mapping[str, Any] | None = None
) -> Scanned:
    """Open a file; return its dataset, or tree, with the group for the cache.

    Errors are those of `virtualds.open_virtual_dataset`.
    """
    location = Location.of(file, storage_options)
    with location.hold_scan():
        group = open_group(location, opening)
        found = make_dataset_or_tree(location, group, opening)
        with suppress(UnsupportedError):
            return Scanned(found, _as_opened(group, found))
    return Scanned(found, None)


class CachedFile(NamedTuple):
    """The cached content of a file, its fingerprint, and the url of its entry, or None."""

    found: Any
    source: SourceFile | None
    place: str | None


@dataclass(frozen=True)
class FileCache:
    """A folder of scanned files.

    Parameters
    ----------
    folder : str
        Its url; any number of processes and machines may use it at the same time.
    opening : OpenOptions
        How files are opened.
    options : StorageOptions or None
        Access options of the files. They are never written.
    settings : str
        All options that decide what opening a file gives.

    Raises
    ------
    ValueError
        ``loadable_variables`` is a function.
    """

    folder: str
    opening: OpenOptions
    options: StorageOptions | None = None
    settings: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", _format_settings(self.opening))

    def look_up(self, file: Any) -> CachedFile:
        """Return the cached content of a file, and where to cache it."""
        url = normalise_url(file)
        source = self._fingerprint(url)
        if source is None:
            return CachedFile(None, None, None)
        key = repr((url, os.fspath(file), self.settings)).encode("utf-8", "surrogatepass")
        name = hashlib.blake2b(key, digest_size=20).hexdigest()
        place = join_path(self.folder, f"{name[:2]}/{name[2:]}")
        group = self._read(place, source)
        found = (
            None if group is None else make_dataset_or_tree(Location.of(file), group, self.opening)
        )
        return CachedFile(found, source, place)

    def keep(self, kept: CachedFile, scanned: Scanned) -> None:
        """Cache a scanned file, if a later change of it can be detected.

        Raises
        ------
        OSError
            The folder cannot be written to.
        """
        if kept.source is None or kept.place is None or scanned.group is None:
            return
        used = {file.url: file for file in _list_sources(scanned.found)}
        # folders, archives and sets refer only to other files: their own fingerprint does not
        # change when these do
        if used.pop(kept.source.url, None) != kept.source:
            return
        others = list(used.values())
        if len(others) > OTHERS or any(file != self._fingerprint(file.url) for file in others):
            return
        with suppress(UnsupportedError):
            data = to_bytes(scanned.group, [kept.source, *others], self.options)
            find_store(kept.place).write_file(kept.place, data, None)

    def _fingerprint(self, url: str) -> SourceFile | None:
        """Return the present state of a file, None if it does not show changes."""
        try:
            source = find_store(url).describe(url, self.options)
        except OSError:
            # opening the file raises a better error
            return None
        return source if source.size and (source.mtime or source.etag) else None

    def _read(self, place: str, source: SourceFile) -> ManifestGroup | None:
        try:
            data = find_store(place).read_all(place, None)
            sources, group = from_bytes(data, self.options)
            if self._are_the_same(sources, source):
                return group
        except (FileNotFoundError, FormatError):
            pass
        return None

    def _are_the_same(self, sources: list[SourceFile], source: SourceFile) -> bool:
        """Say whether none of the read files has changed; ``source`` is the first."""
        first, *others = sources
        return first == source and all(self._fingerprint(o.url) == o for o in others)


def _as_opened(group: ManifestGroup, found: xr.Dataset | xr.DataTree) -> ManifestGroup:
    """Return a group with its loaded values, and its undecodable variables.

    Raises
    ------
    UnsupportedError
        Some values are lazy.
    """
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


def _list_sources(opened: xr.Dataset | xr.DataTree) -> list[SourceFile]:
    """Return the files of the virtual arrays of a dataset or tree."""
    nodes = [opened] if isinstance(opened, xr.Dataset) else [n.dataset for n in opened.subtree]
    arrays = [array for node in nodes for array in node.virtual.arrays.values()]
    return list(dict.fromkeys(file for array in arrays for file in array.listed_sources))


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
