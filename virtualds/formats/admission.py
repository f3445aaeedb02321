"""Refuse what may not go into a reference set, before a format writes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import drop_repeated_tables
from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.reference_table import ReferenceTable, TiledReferences
from virtualds.errors import UnsupportedError, without_secrets
from virtualds.formats.kerchunk.changed_rows import list_other_tables
from virtualds.source_file import SourceFile
from virtualds.stores.held import demand_lasting

KEEP_QUERY = "keep_query"
"""The choice of every format: whether it writes urls that hold a secret."""
IsKnown = Callable[[ReferenceTable], bool]
"""Says whether a table of references lies in the target set, so that it was checked before."""


def know_nothing(table: ReferenceTable) -> bool:
    """Say that no table is known, as for a new set."""
    return False


def demand_admissible(
    group: ManifestGroup, target: str, *, keep_query: bool = False, is_known: IsKnown = know_nothing
) -> None:
    """Refuse a group that no reference set may hold.

    Parameters
    ----------
    group : ManifestGroup
    target : str
        Where to write it; for errors.
    keep_query : bool
        Whether urls may have a password, or a signature or token in their query.
    is_known : callable

    Raises
    ------
    UnsupportedError
        A url holds a secret, or bytes exist in this process alone.
    """
    arrays = [v.data for _, part in group.walk() for v in part.variables.values()]
    demand_lasting(_list_files(arrays, is_known), target)
    if not keep_query:
        demand_unsigned(arrays, target, is_known)


def demand_unsigned(arrays: Iterable[Any], target: str, is_known: IsKnown = know_nothing) -> None:
    """Refuse references to urls with a password, or with a signature or token in their query.

    Sets are given to others, and everybody who reads such a url can use it. For arrays that lie in
    sets, all files that these sets list are checked, without reading references.

    Raises
    ------
    UnsupportedError
        There is one; the message leaves the secret out.
    """
    for file in _list_files(arrays, is_known):
        if (shown := without_secrets(file.url)) != file.url:
            raise UnsupportedError(
                f"{target}: {shown} has a password, or a signature or token in its query, and "
                f"everybody who reads the set could use it; open the source by its plain url with "
                f"storage_options, rename_paths to plain urls, or write it all the same: "
                f"keep_query=True of to_manifest, virtualds.convert and to=, or --keep-query of "
                f"the command line"
            )


def make_known_check(group: ManifestGroup) -> IsKnown:
    """Return a check for the tables of a group that was read from the target set."""
    manifests = _list_manifests(v.data for _, part in group.walk() for v in part.variables.values())
    known = {id(table): table for manifest in manifests for table in _list_tables(manifest)}
    return lambda table: id(table) in known


def _list_tables(manifest: ChunkManifest) -> Iterator[ReferenceTable]:
    """Yield the tables that a manifest counts, and those of the manifests that it consists of."""
    if isinstance(manifest, LazyManifest):
        table = manifest.counting.table
        yield table
        if isinstance(table, TiledReferences):
            for _, part in table.parts:
                yield from _list_tables(part)


def _list_files(arrays: Iterable[Any], is_known: IsKnown) -> Iterator[SourceFile]:
    """Yield the files that arrays refer to, with the lists of their sets."""
    manifests = (m for part in _list_manifests(arrays) for m in list_other_tables(part, is_known))
    return chain.from_iterable(drop_repeated_tables(m.listed for m in manifests))


def _list_manifests(arrays: Iterable[Any]) -> Iterator[ChunkManifest]:
    """Yield the manifests of those arrays that are virtual."""
    for array in arrays:
        for fragment in getattr(array, "fragments", ()):
            yield fragment.manifest
