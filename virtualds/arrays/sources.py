"""The source files of virtual arrays: a table of them, and changing their urls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import CountedSources, SourceColumns, compact, fit_column
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.codecs.zlib import ZipMember
from virtualds.errors import UnsupportedError
from virtualds.source_file import NO_NUMBER, SourceFile
from virtualds.stores import (
    find_members,
    is_in_archive,
    locate_outside_archives,
)
from virtualds.stores.archive import ArchiveMember, make_member_error
from virtualds.urls import HELD, normalise_url, scheme_of


def build_source_table(arrays: Iterable[ManifestArray]) -> pd.DataFrame:
    """Return a table with one row per source file of some arrays."""
    parts = count_sources(f.manifest for array in arrays for f in array.fragments)
    columns = [part.read_files().take(part.chunks > 0) for part in parts]
    urls, sizes, mtimes, etags = map(np.concatenate, zip(*columns, strict=True))
    table = pd.DataFrame(
        {
            "url": urls,
            "chunks": np.concatenate([part.chunks[part.chunks > 0] for part in parts]),
            "size": _to_numbers(sizes),
            # an unknown time becomes NaT in pandas
            "modified": mtimes.view("M8[ns]"),
            "etag": etags,
        }
    )
    # creating a set of strings is ten times as fast as checking for duplicates
    if len(set(urls)) == len(urls):
        return table
    # the same file is in several lists
    same = [name for name in table.columns if name != "chunks"]
    chunks = table.groupby(same, dropna=False, sort=False)["chunks"].sum()
    first = table.drop_duplicates(same, ignore_index=True)
    return first.assign(chunks=chunks.to_numpy())


def count_sources(manifests: Iterable[ChunkManifest]) -> list[CountedSources]:
    """Count the chunks in each file, together for manifests that share a list of files."""
    stored: dict[Hashable, CountedSources] = {}
    others: dict[SourceFile, int] = {}
    for manifest in manifests:
        found = manifest.count_stored()
        if found is None:
            for _, rows in iterate_references(manifest):
                used = np.bincount(rows.file[rows.file >= 0], minlength=len(rows.files))
                for file, count in zip(rows.files, used.tolist(), strict=True):
                    others[file] = others.get(file, 0) + count
        elif known := stored.get(found.name):
            stored[found.name] = known._replace(chunks=known.chunks + found.chunks)
        else:
            stored[found.name] = found
    rest = CountedSources(
        "others", np.array([*others.values()], np.int64), lambda: SourceColumns.of(others)
    )
    return [rest, *stored.values()]


def _to_numbers(column: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return integers, with None or NaN in place of unknown ones."""
    known = column != NO_NUMBER
    if known.any():
        return column if known.all() else np.where(known, column, np.nan)
    return np.full(column.shape, None, object)


def load_deferred(array: ManifestArray) -> ManifestArray:
    """Return an array whose references are in memory instead of being looked up in source files."""
    if not any(f.manifest.is_in_source for f in array.fragments):
        return array
    fragments = tuple(
        replace(f, manifest=f.manifest.loaded()) if f.manifest.is_in_source else f
        for f in array.fragments
    )
    # it has pipelines for all filter masks that chunks may have
    return replace(array, fragments=fragments).pruned()


def move_sources(array: ManifestArray, change: Callable[[str], str]) -> ManifestArray:
    """Return an array that refers to other urls: ``change`` returns the new url of each file."""
    return move_files(array, lambda file: move_file(file, change))


def move_file(file: SourceFile, change: Callable[[str], str]) -> SourceFile:
    """Return a file at its new url, or the file itself if its url does not change."""
    url = normalise_url(change(file.url))
    if url == file.url:
        return file
    # a copy has the same content, but another modification time
    is_object = scheme_of(file.url) == HELD
    return file._replace(url=url, mtime=None, options=None if is_object else file.options)


def move_files(array: ManifestArray, move: Callable[[SourceFile], SourceFile]) -> ManifestArray:
    """Return an array that refers to other files."""
    fragments = (replace(f, manifest=f.manifest.with_files(move)) for f in array.fragments)
    return replace(array, fragments=tuple(fragments))


def move_group(group: ManifestGroup, move: Callable[[SourceFile], SourceFile]) -> ManifestGroup:
    """Return a group, including all groups below it, whose arrays refer to other files."""

    def moved(path: str, variable: ManifestVariable) -> ManifestVariable:
        data = variable.data
        if not isinstance(data, ManifestArray):
            return variable
        return replace(variable, data=move_files(data, move))

    return group.map_variables(moved)


def make_prefix_changer(
    prefixes: Mapping[str, str], arrays: Iterable[ManifestArray]
) -> Callable[[str], str]:
    """Return a function that replaces prefixes of urls, each of which some array must have."""
    change = PrefixChange.of(prefixes)
    change.check_used(file.url for array in arrays for file in array.sources)
    return change


@dataclass(frozen=True)
class PrefixChange:
    """Replaces prefixes of urls, absolute and without trailing slash; the longest match is used."""

    prefixes: Mapping[str, str]

    @classmethod
    def of(cls, prefixes: Mapping[str, str]) -> PrefixChange:
        """Create the change from old to new prefixes, which a user must give as a dict."""
        if not isinstance(prefixes, Mapping):
            raise TypeError(
                f"rename_paths {prefixes!r}: give a dict of old to new prefixes of urls, or a "
                f"function of a url"
            )
        return cls({_normalise_prefix(o): _normalise_prefix(n) for o, n in prefixes.items()})

    def __call__(self, url: str) -> str:
        """Return a url with its prefix replaced, or unchanged if it has none of them."""
        for old in sorted(self.prefixes, key=len, reverse=True):
            if _is_below_prefix(url, old):
                return self.prefixes[old] + url[len(old) :]
        return url

    def check_used(self, urls: Iterable[str]) -> None:
        """Raise an error for a prefix that no url has."""
        known = set(urls)
        for old in self.prefixes:
            if not any(_is_below_prefix(url, old) for url in known):
                raise ValueError(
                    f"rename_paths: no source begins with {old!r}; the first is "
                    f"{min(known, default=None)!r}"
                )


def _normalise_prefix(path: str) -> str:
    return normalise_url(path).rstrip("/")


def _is_below_prefix(url: str, prefix: str) -> bool:
    """Return whether a prefix is the url of a file, or of a folder above it."""
    return url == prefix or url.startswith(f"{prefix}/")


READ_WHOLE = 2**23
"""Maximum size in bytes of an uncompressed chunk that gets a checksum: one remote request."""


def resolve_archive_members(group: ManifestGroup) -> ManifestGroup:
    """Return a group whose references lead to archives, instead of to files inside archives.

    Variables for which that is impossible are added to `problems`.
    """
    variables, problems = {}, dict(group.problems)
    for name, variable in group.variables.items():
        try:
            variables[name] = _resolve_variable(variable)
        except UnsupportedError as error:
            problems[name] = error
            hidden = ManifestArray.unreadable(variable.data.shape, variable.data.dtype, f"{error}")
            variables[name] = replace(variable, data=hidden)
    groups = {name: resolve_archive_members(child) for name, child in group.groups.items()}
    before = [*group.variables.values(), *group.groups.values()]
    if all(map(is_, before, [*variables.values(), *groups.values()])):
        return group
    return replace(group, variables=variables, groups=groups, problems=problems)


def _resolve_variable(variable: ManifestVariable) -> ManifestVariable:
    data = variable.data
    if not isinstance(data, ManifestArray):
        return variable
    # urls of files inside archives have two parts
    manifests = [f.manifest for f in data.fragments if not f.manifest.is_in_set]
    if not any("::" in file.url for manifest in manifests for file in manifest.files):
        return variable
    data = _resolve_deflated(data)
    codecs = all(pipeline.codecs for pipeline in data.pipelines)
    fragments = tuple(_resolve_fragment(fragment, codecs) for fragment in data.fragments)
    if data is variable.data and all(map(is_, fragments, data.fragments)):
        return variable
    return replace(variable, data=replace(data, fragments=fragments))


def _resolve_deflated(array: ManifestArray) -> ManifestArray:
    """Return an array whose chunks are members of a zip archive, including their headers.

    An array without deflated members is returned unchanged. Raises an error if a chunk does not
    reach from the same offset to the end of its member.
    """
    manifests = [fragment.manifest for fragment in array.fragments]
    if any(manifest.is_in_set for manifest in manifests):
        return array
    files = list(dict.fromkeys(file for manifest in manifests for file in manifest.files))
    members = [one for one in find_members(files) if one is not None and one[1].entry]
    packed = [one[1].packed is not None for one in members]
    if len(members) < len(files) or not any(packed):
        return array
    skips = {_find_common_offset(manifest) for manifest in manifests}
    if len(skips) > 1 or None in skips:
        raise make_member_error(files[packed.index(True)].url)
    codec, entries = ZipMember(skips.pop() or 0), dict(zip(files, members, strict=True))
    fragments = tuple(
        replace(f, manifest=_expand_to_members(f.manifest, [entries[n] for n in f.manifest.files]))
        for f in array.fragments
    )
    pipelines = tuple(replace(p, codecs=(*p.codecs, codec)) for p in array.pipelines)
    return replace(array, fragments=fragments, pipelines=pipelines)


def _expand_to_members(
    manifest: ChunkManifest, members: Sequence[tuple[SourceFile, ArchiveMember]]
) -> ChunkManifest:
    """Return a manifest of whole members, one per file of the table, with their headers."""
    lengths = np.array([*(member.entry for _, member in members), 0, 0], np.int64)
    wholes = replace(
        manifest,
        offset=fit_column(np.zeros((), np.int64), manifest.shape),
        length=fit_column(lengths[compact(manifest.file)], manifest.shape),
    )
    return wholes.moved_into([(archive, member.header) for archive, member in members])


def _find_common_offset(manifest: ChunkManifest) -> int | None:
    """Return the common offset from which all chunks reach to the end of their files, or None."""
    if not manifest.is_loaded or manifest.inline:
        return None
    sizes = np.array([*(file.size or 0 for file in manifest.files), 0, 0], np.int64)
    file, offset, length = np.broadcast_arrays(
        *(compact(getattr(manifest, name)) for name in ("file", "offset", "length"))
    )
    there = file >= 0
    offset, ends = offset[there], sizes[file[there]]
    is_rest = (offset + length[there] == ends).all() and (offset == offset[:1]).all()
    return int(offset.max(initial=0)) if is_rest else None


def _resolve_fragment(fragment: Fragment, codecs: bool) -> Fragment:
    manifest = fragment.manifest
    if manifest.is_in_set or not any(map(is_in_archive, manifest.files)):
        return fragment
    moved = manifest.moved_into(locate_outside_archives(manifest.files))
    if manifest.is_loaded:
        moved = moved.checked(_find_checksums(manifest, codecs))
    return replace(fragment, manifest=moved)


def _find_checksums(manifest: ChunkManifest, codecs: bool) -> npt.NDArray[np.uint64]:
    """Return the checksums of chunks that are whole files in an archive, 0 for other chunks.

    Chunks with a checksum are always read completely, which makes no difference if the array has
    codecs. If it has none, only small chunks get checksums.
    """
    # negative file codes, of chunks that are in no file, count from the end
    members = find_members(manifest.files)
    known = np.array([*(one[1].checksum if one else 0 for one in members), 0, 0], np.uint64)
    sizes = np.array([*(file.size or 0 for file in manifest.files), 0, 0], np.int64)
    file, offset, length = (compact(getattr(manifest, n)) for n in ("file", "offset", "length"))
    whole = (offset == 0) & (length == sizes[file]) & (codecs | (length <= READ_WHOLE))
    return np.where(whole, known[file], np.uint64(0))
