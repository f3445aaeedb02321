"""Refuse what may not go into a reference set, before a format writes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import drop_repeated_tables
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.table import Table
from virtualds.chunks.tables import list_other_parts, list_parts
from virtualds.errors import (
    AccessError,
    AccessWarning,
    UnsupportedError,
    warn_user,
    without_secrets,
)
from virtualds.quantities import format_count
from virtualds.source_file import SourceFile
from virtualds.stores.access_rules import AccessPolicy
from virtualds.stores.held import demand_lasting
from virtualds.urls import host_of, lies_under

KEEP_QUERY = "keep_query"
"""The choice of every format: whether it writes urls that hold a secret."""
IsKnown = Callable[[Table], bool]
"""Says whether a table of references lies in the target set, so that it was checked before."""


def know_nothing(table: Table) -> bool:
    """Say that no table is known, as for a new set."""
    return False


def demand_admissible(
    group: ManifestGroup, target: str, *, keep_query: bool = False, is_known: IsKnown = know_nothing
) -> None:
    """Refuse a group that no set may hold: urls have secrets, or bytes lie in this process alone.

    With ``keep_query``, urls may have a password, or a signature or token in their query.
    """
    arrays = group.list_arrays()
    demand_lasting(_list_files(arrays, is_known), target)
    if not keep_query:
        demand_unsigned(arrays, target, is_known)


def demand_unsigned(arrays: Iterable[Any], target: str, is_known: IsKnown = know_nothing) -> None:
    """Refuse references to urls with a password, or with a signature or token in their query.

    Sets are given to others, and everybody who reads such a url can use it. For arrays that lie in
    sets, all files that these sets list are checked, without reading references.
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


def warn_of_unreadable(files: Iterable[SourceFile], target: str, allow: AccessPolicy) -> None:
    """Warn once if a remote set is to name files that it may not name, such as local ones.

    Such a set is sound, but its author could not open it either, without ``allow``.
    """
    judged: dict[str, bool] = {}
    # several arrays have a table each that lists the same files
    refused = {file.url for file in files if _is_refused(file, target, allow, judged)}
    if not refused:
        return
    example = without_secrets(min(refused))
    warn_user(
        f"{without_secrets(target)}: whoever opens this set will get an AccessError: it "
        f"refers to {format_count(len(refused), 'file')} of this machine or its network, such as "
        f"{example}, which a remote set may not; put copies where the set is and name them with "
        f"rename_paths, write the set beside the files, or read it with "
        f"allow=[{example.rpartition('/')[0]!r}]",
        AccessWarning,
    )


def _is_refused(
    file: SourceFile, target: str, allow: AccessPolicy, judged: dict[str, bool]
) -> bool:
    """Say whether a set may not name a file; without prefixes, all files of a host are alike."""
    if lies_under(file.url, target):
        return False
    name = file.url if allow.prefixes is not None or "::" in file.url else host_of(file.url)
    if name not in judged:
        try:
            allow.check(file.url, target)
            judged[name] = False
        except AccessError:
            judged[name] = True
    return judged[name]


def list_new_files(group: ManifestGroup, is_known: IsKnown) -> Iterator[SourceFile]:
    """Yield the files that a group refers to, besides those of known tables."""
    return _list_files(group.list_arrays(), is_known)


def list_first_files(group: ManifestGroup) -> Iterator[SourceFile]:
    """Yield the files of the first table alone: workers wrote many, which would all be read."""
    yield from (file for m in islice(_list_manifests(group.list_arrays()), 1) for file in m.listed)


def make_known_check(group: ManifestGroup) -> IsKnown:
    """Return a check for the tables of a group that was read from the target set."""
    manifests = _list_manifests(group.list_arrays())
    # the tables, too, so that no other has the identity of one
    known = {id(part.table): part.table for manifest in manifests for part in list_parts(manifest)}
    return lambda table: id(table) in known


def _list_files(arrays: Iterable[Any], is_known: IsKnown) -> Iterator[SourceFile]:
    """Yield the files that arrays refer to, with the lists of their sets."""
    manifests = (m for part in _list_manifests(arrays) for m in list_other_parts(part, is_known))
    return chain.from_iterable(drop_repeated_tables(m.listed for m in manifests))


def _list_manifests(arrays: Iterable[Any]) -> Iterator[ChunkManifest]:
    """Yield the manifests of those arrays that are virtual."""
    for array in arrays:
        for fragment in getattr(array, "fragments", ()):
            yield fragment.manifest
