"""What was opened is kept in a folder, one file for each source, as long as the source is the same.

An entry is named by a hash of the source's url and of all that decides what opening it gives. In it
stands the fingerprint that the source had. Whatever is the matter with an entry (there is none, it
is damaged, its source has changed), the source is opened as if there were no cache.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import xarray as xr

from virtualds.building.notation import UnknownError, noted, read_noted
from virtualds.building.records import recorded, restored
from virtualds.errors import FormatError
from virtualds.manifest import SourceFile, StorageOptions
from virtualds.options import get_options
from virtualds.stores import store_for
from virtualds.urls import below, normalise_url

OTHERS = 8
"""Files besides itself that a file may refer to if it is kept: each of them is looked at too."""


class Kept(NamedTuple):
    """What is kept of a file, its fingerprint now, and where it is to be kept; None is nothing."""

    found: Any
    source: SourceFile | None
    place: str | None


@dataclass(frozen=True)
class FileCache:
    """A folder of what was opened.

    Parameters
    ----------
    folder : str
        Its url; any number of processes and machines may use it at a time.
    choices : str
        All that decides what opening a file gives, besides the file.
    options : StorageOptions or None
        Access options of the files. They are written nowhere.
    """

    folder: str
    choices: str
    options: StorageOptions | None = None

    def look(self, file: Any) -> Kept:
        """Return what is kept of a file, and where it is to be kept."""
        url = normalise_url(file)
        source = self._fingerprinted(url)
        if source is None:
            return Kept(None, None, None)
        key = repr((url, os.fspath(file), self.choices)).encode("utf-8", "surrogatepass")
        name = hashlib.blake2b(key, digest_size=20).hexdigest()
        place = below(self.folder, f"{name[:2]}/{name[2:]}")
        return Kept(self._read(place, source), source, place)

    def keep(self, kept: Kept, found: Any) -> None:
        """Keep what was opened, if it can be told whether it is still what one would open.

        Raises
        ------
        OSError
            The folder cannot be written to.
        """
        if kept.source is None or kept.place is None:
            return
        used = {file.url: file for file in _sources(found)}
        # what refers to other files only is a folder, an archive, or a set: its own fingerprint
        # does not tell when what it holds changes
        if used.pop(kept.source.url, None) != kept.source:
            return
        others = list(used.values())
        if len(others) > OTHERS or any(file != self._fingerprinted(file.url) for file in others):
            return
        with suppress(UnknownError):
            data = noted(([kept.source, *others], recorded(found)), self.options)
            store_for(kept.place).write_file(kept.place, data, None)

    def _fingerprinted(self, url: str) -> SourceFile | None:
        """Return a file as it is now, None if that does not tell it from an earlier one."""
        try:
            source = store_for(url).describe(url, self.options)
        except OSError:
            # opening it says best what is the matter
            return None
        return source if source.size and (source.mtime or source.etag) else None

    def _read(self, place: str, source: SourceFile) -> Any:
        try:
            data = store_for(place).read_all(place, None)
            sources, record = read_noted(data, self.options)
            if self._are_the_same(sources, source):
                return restored(record)
        except (FileNotFoundError, FormatError):
            pass
        return None

    def _are_the_same(self, sources: list[SourceFile], source: SourceFile) -> bool:
        """Say whether no file has changed of those that were read, ``source`` being the first."""
        first, *others = sources
        return first == source and all(self._fingerprinted(o.url) == o for o in others)


def _sources(opened: xr.Dataset | xr.DataTree) -> list[SourceFile]:
    """Return the files that the virtual arrays of a dataset, or a tree, lie in."""
    nodes = [opened] if isinstance(opened, xr.Dataset) else [n.dataset for n in opened.subtree]
    arrays = [array for node in nodes for array in node.virtual.arrays.values()]
    return list(dict.fromkeys(file for array in arrays for file in array.listed_sources))


def choices_of(**given: Any) -> str:
    """Return all that decides what opening a file gives, as text.

    Access options are not among it: they may be secret, and change while the files do not.

    Raises
    ------
    ValueError
        A function decides it.
    """
    for name, value in given.items():
        if callable(value):
            raise ValueError(
                f"cache: {name} is a function, and nobody can tell what it will answer next time; "
                f"give names or patterns"
            )
    options = get_options()
    versions = [version(library) for library in ("virtualds", "xarray", "numpy")]
    return repr((versions, options.small_variable, options.load_limit, sorted(given.items())))
