"""Tables of the source files of virtual arrays, and changes of their urls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_

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
from virtualds.source_file import NO_NUMBER, OBJECT_SCHEME, SourceFile, normalise_url, scheme_of
from virtualds.stores import (
    find_members,
    is_in_archive,
    locate_outside_archives,
)
from virtualds.stores.archive import ArchiveMember, make_member_error


def build_source_table(arrays: Iterable[ManifestArray]) -> pd.DataFrame:
    """Return a table of the source files of some arrays, one row per file."""
    counts = count_sources(f.manifest for array in arrays for f in array.fragments)
    columns = [part.read_files().take(part.chunks > 0) for part in counts]
    urls, sizes, mtimes, etags = map(np.concatenate, zip(*columns, strict=True))
    # NaN stands for an unknown size, or None if all are unknown
    if not (is_known := sizes != NO_NUMBER).any():
        sizes = np.full(sizes.shape, None, object)
    elif not is_known.all():
        sizes = np.where(is_known, sizes, np.nan)
    table = pd.DataFrame(
        {
            "url": urls,
            "chunks": np.concatenate([part.chunks[part.chunks > 0] for part in counts]),
            "size": sizes,
            # an unknown time becomes NaT in pandas
            "modified": mtimes.view("M8[ns]"),
            "etag": etags,
        }
    )
    # ten times as fast as looking for duplicates with pandas
    if len(set(urls)) == len(urls):
        return table
    # several tables list the same file
    identity = [name for name in table.columns if name != "chunks"]
    chunks = table.groupby(identity, dropna=False, sort=False)["chunks"].sum()
    first = table.drop_duplicates(identity, ignore_index=True)
    return first.assign(chunks=chunks.to_numpy())


def count_sources(manifests: Iterable[ChunkManifest]) -> list[CountedSources]:
    """Count the chunks in each file; manifests that share a table of files are counted together."""
    by_table: dict[Hashable, CountedSources] = {}
    others: dict[SourceFile, int] = {}
    for manifest in manifests:
        counted = manifest.count_sources()
        if counted is None:
            for _, rows in iterate_references(manifest):
                used = np.bincount(rows.file[rows.file >= 0], minlength=len(rows.files))
                for file, count in zip(rows.files, used.tolist(), strict=True):
                    others[file] = others.get(file, 0) + count
        elif earlier := by_table.get(counted.name):
            by_table[counted.name] = earlier._replace(chunks=earlier.chunks + counted.chunks)
        else:
            by_table[counted.name] = counted
    unshared = CountedSources(
        "others", np.array([*others.values()], np.int64), lambda: SourceColumns.from_files(others)
    )
    return [unshared, *by_table.values()]


def load_deferred(array: ManifestArray) -> ManifestArray:
    """Return an array whose deferred references have been read from the source files."""
    if not any(f.manifest.is_in_source for f in array.fragments):
        return array
    fragments = tuple(
        replace(f, manifest=f.manifest.loaded()) if f.manifest.is_in_source else f
        for f in array.fragments
    )
    # a deferred array has pipelines for all possible filter masks
    return replace(array, fragments=fragments).prune()


def move_sources(array: ManifestArray, change: Callable[[str], str]) -> ManifestArray:
    """Return an array with other source urls; ``change`` takes a url and returns the new one."""
    return move_files(array, lambda file: move_file(file, change))


def move_file(file: SourceFile, change: Callable[[str], str]) -> SourceFile:
    """Return a file with its new url, or the same object if the url does not change."""
    url = normalise_url(change(file.url))
    if url == file.url:
        return file
    # a copy of a file has another modification time
    is_object = scheme_of(file.url) == OBJECT_SCHEME
    return file._replace(url=url, mtime=None, options=None if is_object else file.options)


def move_files(array: ManifestArray, move: Callable[[SourceFile], SourceFile]) -> ManifestArray:
    """Return an array whose source files are replaced by ``move(file)``."""
    fragments = (replace(f, manifest=f.manifest.with_files(move)) for f in array.fragments)
    return replace(array, fragments=tuple(fragments))


def move_group(group: ManifestGroup, move: Callable[[SourceFile], SourceFile]) -> ManifestGroup:
    """Return a group whose source files, including those of subgroups, are replaced."""

    def move_variable(path: str, variable: ManifestVariable) -> ManifestVariable:
        data = variable.data
        if not isinstance(data, ManifestArray):
            return variable
        return replace(variable, data=move_files(data, move))

    return group.map_variables(move_variable)


def make_prefix_changer(
    prefixes: Mapping[str, str], arrays: Iterable[ManifestArray]
) -> Callable[[str], str]:
    """Return a function that replaces prefixes of urls; raise an error for an unused prefix."""
    change = PrefixChange.from_user(prefixes)
    change.check_used(file.url for array in arrays for file in array.sources)
    return change


@dataclass(frozen=True)
class PrefixChange:
    """A mapping of old to new url prefixes; the longest matching prefix is replaced."""

    prefixes: Mapping[str, str]

    @classmethod
    def from_user(cls, prefixes: Mapping[str, str]) -> PrefixChange:
        """Return the change for a dict of prefixes from the user: urls or local paths."""
        if not isinstance(prefixes, Mapping):
            raise TypeError(
                f"rename_paths {prefixes!r}: give a dict of old to new prefixes of urls, or a "
                f"function of a url"
            )
        return cls({_normalise_prefix(o): _normalise_prefix(n) for o, n in prefixes.items()})

    def __call__(self, url: str) -> str:
        """Return a url with its prefix replaced, or unchanged if no prefix matches."""
        for old in sorted(self.prefixes, key=len, reverse=True):
            if _has_prefix(url, old):
                return self.prefixes[old] + url[len(old) :]
        return url

    def check_used(self, urls: Iterable[str]) -> None:
        """Raise an error if a prefix matches no url."""
        distinct = set(urls)
        for old in self.prefixes:
            if not any(_has_prefix(url, old) for url in distinct):
                raise ValueError(
                    f"rename_paths: no source begins with {old!r}; the first is "
                    f"{min(distinct, default=None)!r}"
                )


def _normalise_prefix(path: str) -> str:
    return normalise_url(path).rstrip("/")


def _has_prefix(url: str, prefix: str) -> bool:
    """Return whether a prefix is the url itself or a folder above it."""
    return url == prefix or url.startswith(f"{prefix}/")


MAX_VERIFIED_BYTES = 2**23
"""Maximum size in bytes of an uncompressed chunk that gets a checksum, and is read as a whole."""


def resolve_archive_members(group: ManifestGroup) -> ManifestGroup:
    """Return a group whose references point into archives, instead of to files inside archives.

    Variables for which that is impossible become unreadable, with an entry in `problems`.
    """
    variables, problems = {}, dict(group.problems)
    for name, variable in group.variables.items():
        try:
            variables[name] = _resolve_variable(variable)
        except UnsupportedError as error:
            problems[name] = error
            unreadable = ManifestArray.unreadable(
                variable.data.shape, variable.data.dtype, f"{error}"
            )
            variables[name] = replace(variable, data=unreadable)
    groups = {name: resolve_archive_members(child) for name, child in group.groups.items()}
    children = [*group.variables.values(), *group.groups.values()]
    if all(map(is_, children, [*variables.values(), *groups.values()])):
        return group
    return replace(group, variables=variables, groups=groups, problems=problems)


def _resolve_variable(variable: ManifestVariable) -> ManifestVariable:
    data = variable.data
    if not isinstance(data, ManifestArray):
        return variable
    # the url of a file inside an archive is "archive::member"
    manifests = [f.manifest for f in data.fragments if not f.manifest.is_in_set]
    if not any("::" in file.url for manifest in manifests for file in manifest.files):
        return variable
    data = _resolve_deflated(data)
    has_codecs = all(pipeline.codecs for pipeline in data.pipelines)
    fragments = tuple(_resolve_fragment(fragment, has_codecs) for fragment in data.fragments)
    if data is variable.data and all(map(is_, fragments, data.fragments)):
        return variable
    return replace(variable, data=replace(data, fragments=fragments))


def _resolve_deflated(array: ManifestArray) -> ManifestArray:
    """Return an array whose chunks are whole deflated members of zip archives, with their headers.

    An array without deflated members is returned unchanged. Raises an error if chunks do not reach
    from one common offset to the end of their members.
    """
    manifests = [fragment.manifest for fragment in array.fragments]
    if any(manifest.is_in_set for manifest in manifests):
        return array
    files = list(dict.fromkeys(file for manifest in manifests for file in manifest.files))
    members = [pair for pair in find_members(files) if pair is not None and pair[1].entry_size]
    is_deflated = [member.deflated_size is not None for _, member in members]
    if len(members) < len(files) or not any(is_deflated):
        return array
    skips = {_find_common_offset(manifest) for manifest in manifests}
    if len(skips) > 1 or None in skips:
        raise make_member_error(files[is_deflated.index(True)].url)
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
    """Return a manifest whose chunks are whole members including headers, one per file."""
    lengths = np.array([*(member.entry_size for _, member in members), 0, 0], np.int64)
    wholes = replace(
        manifest,
        offset=fit_column(np.zeros((), np.int64), manifest.shape),
        length=fit_column(lengths[compact(manifest.file)], manifest.shape),
    )
    return wholes.relocate([(archive, member.header) for archive, member in members])


def _find_common_offset(manifest: ChunkManifest) -> int | None:
    """Return the common offset of all chunks if each reaches to the end of its file, else None."""
    if not manifest.is_loaded or manifest.inline:
        return None
    sizes = np.array([*(file.size or 0 for file in manifest.files), 0, 0], np.int64)
    file, offset, length = np.broadcast_arrays(
        *(compact(getattr(manifest, name)) for name in ("file", "offset", "length"))
    )
    is_in_file = file >= 0
    offset, ends = offset[is_in_file], sizes[file[is_in_file]]
    reaches_end = (offset + length[is_in_file] == ends).all() and (offset == offset[:1]).all()
    return int(offset.max(initial=0)) if reaches_end else None


def _resolve_fragment(fragment: Fragment, has_codecs: bool) -> Fragment:
    manifest = fragment.manifest
    if manifest.is_in_set or not any(map(is_in_archive, manifest.files)):
        return fragment
    moved = manifest.relocate(locate_outside_archives(manifest.files))
    if manifest.is_loaded:
        moved = moved.add_checksums(_find_checksums(manifest, has_codecs))
    return replace(fragment, manifest=moved)


def _find_checksums(manifest: ChunkManifest, has_codecs: bool) -> npt.NDArray[np.uint64]:
    """Return the checksums of chunks that are whole files in an archive, 0 for other chunks.

    A chunk with a checksum is always read as a whole, as it is anyway if the array has codecs.
    Without codecs, only small chunks get checksums.
    """
    # chunks in no file have negative file codes, which index from the end
    members = find_members(manifest.files)
    checksums = np.array([*(m[1].checksum if m else 0 for m in members), 0, 0], np.uint64)
    sizes = np.array([*(file.size or 0 for file in manifest.files), 0, 0], np.int64)
    file, offset, length = (compact(getattr(manifest, n)) for n in ("file", "offset", "length"))
    is_whole = (
        (offset == 0) & (length == sizes[file]) & (has_codecs | (length <= MAX_VERIFIED_BYTES))
    )
    return np.where(is_whole, checksums[file], np.uint64(0))
