"""The source files of virtual arrays: tables of them, changes of urls, and what each covers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from virtualds.arrays.array import ManifestArray, map_manifests
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import (
    INLINE,
    MISSING,
    CountedSources,
    Ints,
    SourceColumns,
    compact,
    compute_strides,
    fit_column,
)
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.chunks.tables import TiledReferences, split_layers
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
    loaded = map_manifests(array, lambda m: m.loaded() if m.is_in_source else m)
    # a deferred array has pipelines for all possible filter masks
    return array if loaded is array else loaded.prune()


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
    return map_manifests(array, lambda manifest: manifest.with_files(move))


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
    # the url of a file inside an archive is "zip://member::archive"
    manifests = [f.manifest for f in data.fragments if not f.manifest.is_in_set]
    if not any("::" in file.url for manifest in manifests for file in manifest.files):
        return variable
    data = _resolve_deflated(data)
    has_codecs = all(pipeline.codecs for pipeline in data.pipelines)
    resolved = map_manifests(data, lambda manifest: _resolve_manifest(manifest, has_codecs))
    return variable if resolved is variable.data else replace(variable, data=resolved)


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
    expanded = map_manifests(array, lambda m: _expand_to_members(m, [entries[n] for n in m.files]))
    pipelines = tuple(replace(p, codecs=(*p.codecs, codec)) for p in array.pipelines)
    return replace(expanded, pipelines=pipelines)


def _expand_to_members(
    manifest: ChunkManifest, members: Sequence[tuple[SourceFile, ArchiveMember]]
) -> ChunkManifest:
    """Return a manifest whose chunks are whole members including headers, one per file."""
    lengths = np.array([*(member.entry_size for _, member in members), 0, 0], np.int64)
    whole_chunks = replace(
        manifest,
        offset=fit_column(np.zeros((), np.int64), manifest.shape),
        length=fit_column(lengths[compact(manifest.file)], manifest.shape),
    )
    return whole_chunks.relocate([(archive, member.header) for archive, member in members])


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


def _resolve_manifest(manifest: ChunkManifest, has_codecs: bool) -> ChunkManifest:
    if manifest.is_in_set or not any(map(is_in_archive, manifest.files)):
        return manifest
    moved = manifest.relocate(locate_outside_archives(manifest.files))
    if manifest.is_loaded:
        moved = moved.add_checksums(_find_checksums(manifest, has_codecs))
    return moved


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


# ---------------------------------------------------------------------- planes of chunks

MAX_CELLS = 512
"""Maximum number of cells along an axis, more than a picture shows; a cell may have many chunks."""
SEVERAL_ENCODINGS = -2
"""Code of a cell whose chunks have several encodings."""
NO_CHUNKS = -1
"""Code of a cell without chunks."""


@dataclass(frozen=True, eq=False)
class ChunkPlane:
    """The encodings of an array's chunks, projected onto the plane of two axes.

    ``boxes``, of shape (n, 4), are rectangles of equal chunks: start and stop along the first axis,
    then along the second. For each box, ``codes`` has the index of the pipeline, or
    `SEVERAL_ENCODINGS`, and ``holes`` whether some of its chunks are missing. ``grids`` are the
    chunk boundaries of each fragment along both axes. ``missing`` is the number of missing chunks.

    Examples
    --------
    >>> array = ManifestArray.from_arrays(
    ...     shape=(4, 4), chunks=(1, 4), dtype="f4", offsets=0, lengths=16,
    ...     path=[["s3://bucket/a.nc"], ["s3://bucket/a.nc"], [""], ["s3://bucket/a.nc"]],
    ... )
    >>> ChunkPlane.from_array(array, 0, 1).boxes.tolist()
    [[0, 2, 0, 4], [3, 4, 0, 4]]
    """

    shape: tuple[int, int]
    boxes: Ints
    codes: Ints
    holes: npt.NDArray[np.bool_]
    grids: tuple[tuple[Ints, Ints], ...]
    missing: int

    def __post_init__(self) -> None:
        stops = self.boxes[:, 1::2]
        if not len(self.boxes) == len(self.codes) == len(self.holes) or (stops > self.shape).any():
            raise ValueError(f"ChunkPlane: each rectangle has a code and lies inside {self.shape}")

    @property
    def has_gaps(self) -> bool:
        """Whether some part of the plane is in no box."""
        left, right, low, high = self.boxes.T
        return bool(((right - left) * (high - low)).sum() < prod(self.shape))

    @classmethod
    def from_array(cls, array: ManifestArray, first_axis: int, second_axis: int) -> ChunkPlane:
        """Project the chunks of an array onto two of its axes."""
        fragments = (fragment for fragment in array.fragments if fragment.manifest.size)
        projections = [
            _ProjectedCells.from_fragment(fragment, first_axis, second_axis)
            for fragment in fragments
        ]
        rows = np.array([row for part in projections for row in part.iterate_boxes()], np.int64)
        table = rows.reshape(-1, 6)
        return cls(
            (array.shape[first_axis], array.shape[second_axis]),
            table[:, :4],
            table[:, 4],
            table[:, 5].astype(bool),
            tuple(part.chunk_edges for part in projections),
            sum(part.missing for part in projections),
        )


class _ProjectedCells(NamedTuple):
    """The chunks of a fragment projected onto two axes, in cells of one or more chunks.

    ``codes`` and ``holes`` are as in `ChunkPlane`, with `NO_CHUNKS` for cells without a chunk.
    ``edges`` are the boundaries of the cells along both axes, and ``chunk_edges`` the boundaries of
    the chunks.
    """

    codes: Ints
    holes: npt.NDArray[np.bool_]
    edges: tuple[Ints, Ints]
    chunk_edges: tuple[Ints, Ints]
    missing: int

    @classmethod
    def from_fragment(
        cls, fragment: Fragment, first_axis: int, second_axis: int
    ) -> _ProjectedCells:
        """Project the chunks of a fragment onto two axes."""
        grid = fragment.manifest.shape
        first_step = -(-grid[first_axis] // MAX_CELLS) or 1
        second_step = -(-grid[second_axis] // MAX_CELLS) or 1
        cell_edges = (
            _divide_evenly(grid[first_axis], first_step),
            _divide_evenly(grid[second_axis], second_step),
        )
        shape = (cell_edges[0].size - 1, cell_edges[1].size - 1)
        count, max_pipeline = np.zeros(shape, np.int64), np.full(shape, NO_CHUNKS)
        min_pipeline = np.full(shape, np.iinfo(np.int64).max)
        for ids, references in iterate_references(fragment.manifest):
            positions = np.unravel_index(ids, grid)
            cell_index = (
                positions[first_axis] // first_step,
                positions[second_axis] // second_step,
            )
            np.add.at(count, cell_index, 1)
            np.minimum.at(min_pipeline, cell_index, references.pipeline)
            np.maximum.at(max_pipeline, cell_index, references.pipeline)
        total = np.multiply.outer(*map(np.diff, cell_edges)) * (
            prod(grid) // (grid[first_axis] * grid[second_axis])
        )
        chunk_edges = fragment.edges(first_axis), fragment.edges(second_axis)
        return cls(
            np.where(min_pipeline < max_pipeline, SEVERAL_ENCODINGS, max_pipeline),
            (count > 0) & (count < total),
            (chunk_edges[0][cell_edges[0]], chunk_edges[1][cell_edges[1]]),
            chunk_edges,
            int((total - count).sum()),
        )

    def iterate_boxes(self) -> Iterator[tuple[int, ...]]:
        """Yield rectangles of equal cells: four edges, code, and 1 if chunks are missing."""
        state = self.codes * 2 + self.holes
        rows = _find_runs((state[1:] != state[:-1]).any(axis=1))
        for top, bottom in pairwise(rows):
            for left, right in pairwise(_find_runs(state[top, 1:] != state[top, :-1])):
                if self.codes[top, left] != NO_CHUNKS:
                    box_edges = (*self.edges[0][[top, bottom]], *self.edges[1][[left, right]])
                    yield (
                        *map(int, box_edges),
                        int(self.codes[top, left]),
                        int(self.holes[top, left]),
                    )


def _divide_evenly(count: int, step: int) -> Ints:
    return np.append(np.arange(0, count, step), count)


def _find_runs(changes: npt.NDArray[np.bool_]) -> list[int]:
    """Return the boundaries of runs of equal elements, from the flags of a change between them."""
    return [0, *(np.flatnonzero(changes) + 1).tolist(), changes.size + 1]


# ---------------------------------------------------------------------- coverage

INLINE_URL = ""
"""The url of inline chunks, which are in no file."""

Codes = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Coverage:
    """The ranges of a dimension of length ``size`` that each file covers.

    ``urls`` are in the order of the first position that each covers; `INLINE_URL` stands for inline
    chunks. ``file``, ``start`` and ``stop`` describe the ranges, sorted by start; ``file`` indexes
    ``urls``. Adjacent ranges of one file are merged.

    Examples
    --------
    >>> found = Coverage(9, ("a.nc", "b.nc"), *np.array([[0, 1], [0, 6], [4, 9]]))
    >>> found.find_uncovered(), found.collect_ranges()
    ([(4, 6)], {'a.nc': [(0, 4)], 'b.nc': [(6, 9)]})
    """

    size: int
    urls: tuple[str, ...]
    file: Ints
    start: Ints
    stop: Ints

    def __post_init__(self) -> None:
        if not ((self.start >= 0) & (self.start < self.stop) & (self.stop <= self.size)).all():
            raise ValueError(f"Coverage: a range is empty, or outside {self.size} positions")

    def find_uncovered(self) -> list[tuple[int, int]]:
        """Return the ranges that no file covers."""
        furthest = np.maximum.accumulate(np.concatenate([[0], self.stop]))
        starts = np.append(self.start, self.size)
        has_gap = starts > furthest
        return list(zip(furthest[has_gap].tolist(), starts[has_gap].tolist(), strict=True))

    def collect_ranges(self) -> dict[str, list[tuple[int, int]]]:
        """Return the ranges by the url of their file."""
        ranges: dict[str, list[tuple[int, int]]] = {url: [] for url in self.urls}
        rows = zip(self.file.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)
        for number, start, stop in rows:
            ranges[self.urls[number]].append((start, stop))
        return ranges


def find_coverage(
    size: int,
    arrays: Iterable[tuple[ManifestArray, int]],
    urls: Collection[str] | None = None,
) -> Coverage:
    """Find the ranges of a dimension that each file, or each of ``urls``, covers.

    ``arrays`` are pairs of an array with the dimension and the axis of the dimension.
    """
    numbers: dict[str, int] = {}
    number_files = _FileValues(lambda url: numbers.setdefault(url, len(numbers)))
    rows = [
        np.stack([number_files(files)[codes], start, stop])
        for array, axis in arrays
        for fragment in array.fragments
        for files, codes, start, stop in _find_file_ranges(fragment, axis, urls)
    ]
    merged = _merge_ranges(np.concatenate([np.zeros((3, 0), np.int64), *rows], axis=1), size)
    file, start, stop = merged[:, np.lexsort((merged[2], merged[1]))]
    used, first, file = np.unique(file, return_index=True, return_inverse=True)
    order = np.argsort(first)
    names = tuple(np.array([*numbers], object)[used[order]].tolist())
    return Coverage(size, names, np.argsort(order)[file], start, stop)


def _find_covering_box(
    manifest: ChunkManifest, may_cover: Callable[[ChunkManifest], bool]
) -> tuple[slice, ...] | None:
    """Return the box around the layers for which ``may_cover`` is true, or None without any."""
    layers: Sequence[tuple[tuple[int, ...], ChunkManifest]] = [
        ((0,) * len(manifest.shape), manifest)
    ]
    if manifest.get_table(TiledReferences) is not None:
        layers = split_layers(manifest)
    layers = [(origin, layer) for origin, layer in layers if layer.size and may_cover(layer)]
    if not layers:
        return None
    low = np.min([origin for origin, _ in layers], axis=0)
    high = np.max([np.add(origin, layer.shape) for origin, layer in layers], axis=0)
    return tuple(map(slice, low.tolist(), high.tolist()))


def _crop(manifest: ChunkManifest, box: tuple[slice, ...]) -> ChunkManifest:
    """Return the chunks in a box."""
    for axis, part in enumerate(box):
        manifest = manifest.take(axis, part)
    return manifest


def mask_covered(
    size: int,
    arrays: Iterable[tuple[ManifestArray, int]],
    is_chosen: Callable[[str], bool],
    where: npt.NDArray[np.bool_] | None = None,
    may_cover: Callable[[ChunkManifest], bool] = lambda manifest: True,
) -> npt.NDArray[np.bool_]:
    """Return a mask of the positions that the chosen files cover.

    ``arrays`` are as in `find_coverage`; ``is_chosen`` takes the url of a file. With the mask
    ``where``, the result may lack other positions. Manifests, and layers of them, are not read if
    ``may_cover`` is false for them.
    """
    before = None if where is None else np.concatenate([[0], np.cumsum(where)])
    mask, choose_files = np.zeros(size, bool), _FileValues(is_chosen)
    for array, axis in arrays:
        for fragment in array.fragments:
            edges, manifest = fragment.edges(axis), fragment.manifest
            first = 0
            if before is not None:
                slabs = np.flatnonzero(np.diff(before[edges]))
                first, stop = (slabs[0], slabs[-1] + 1) if slabs.size else (0, 0)
                manifest = manifest.take(axis, slice(first, stop))
            if (box := _find_covering_box(manifest, may_cover)) is None:
                continue
            first, manifest = first + box[axis].start, _crop(manifest, box)
            for files, codes, chunk_slabs in _iterate_chunks(manifest, axis):
                covered_slabs = np.zeros(edges.size - 1, bool)
                covered_slabs[first + chunk_slabs[choose_files(files)[codes]]] = True
                mask[edges[0] : edges[-1]] |= np.repeat(covered_slabs, np.diff(edges))
    return mask


class _FileValues:
    """Finds a value for the url of each file of a table, once for consecutive equal tables."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find
        self._files: tuple[SourceFile, ...] | None = None
        self._values: npt.NDArray[Any] = np.zeros(0)

    def __call__(self, files: tuple[SourceFile, ...]) -> npt.NDArray[Any]:
        """Return the values of a table of files, as an array that the column ``file`` indexes."""
        if files is not self._files:
            # the codes of inline and of missing chunks index from the end
            urls = [*(file.url for file in files), INLINE_URL, INLINE_URL]
            self._files, self._values = files, np.array([*map(self._find, urls)])
        return self._values


FileRanges = tuple[tuple[SourceFile, ...], Codes, Ints, Ints]
"""A table of files, and columns of ranges: file code, start, stop."""


def _find_file_ranges(
    fragment: Fragment, axis: int, urls: Collection[str] | None
) -> Iterator[FileRanges]:
    """Yield the ranges of an axis that the chunks of each file, or of ``urls``, cover."""
    edges, manifest, first_slab = fragment.edges(axis), fragment.manifest, 0
    choose_files = _FileValues(lambda url: urls is None or url in urls)
    if urls is not None:
        # the tables of sets may list files without chunks
        box = _find_covering_box(
            manifest, lambda p: INLINE_URL in urls or bool(p.find_listed_files(urls))
        )
        if box is None:
            return
        manifest, first_slab = _crop(manifest, box), box[axis].start
    for files, codes, slabs in _iterate_chunks(manifest, axis):
        if urls is not None:
            is_chosen = choose_files(files)[codes]
            codes, slabs = codes[is_chosen], slabs[is_chosen]
        slabs = slabs + first_slab
        # encode file and slab in one integer, so that consecutive slabs of a file are consecutive
        keys = np.unique((codes - INLINE) * edges.size + slabs)
        ends = np.flatnonzero(np.diff(keys, prepend=-2, append=-2) != 1)
        first, last = keys[ends[:-1]], keys[ends[1:] - 1]
        file = first // edges.size + INLINE
        yield files, file, edges[first % edges.size], edges[last % edges.size + 1]


def _iterate_chunks(
    manifest: ChunkManifest, axis: int
) -> Iterator[tuple[tuple[SourceFile, ...], Codes, Ints]]:
    """Yield blocks of existing chunks: file table, file codes, and indexes along the axis."""
    if not manifest.size:
        return
    if manifest.is_loaded:
        file = np.moveaxis(compact(manifest.file), axis, 0)
        if len(file) < manifest.shape[axis]:
            file = np.broadcast_to(file, (manifest.shape[axis], *file.shape[1:]))
        codes = file.astype(np.int64).reshape(len(file), -1)
        slabs = np.broadcast_to(np.arange(len(file))[:, np.newaxis], codes.shape)
        exists = codes != MISSING
        yield manifest.files, codes[exists], slabs[exists]
        return
    count, step = manifest.shape[axis], compute_strides(manifest.shape)[axis]
    for ids, references in iterate_references(manifest):
        yield references.files, references.file.astype(np.int64), ids // step % count


def _merge_ranges(ranges: Ints, size: int) -> Ints:
    """Merge adjacent and overlapping ranges of each file; the rows are file, start and stop."""
    file, start, stop = ranges[:, np.lexsort(ranges[1::-1])]
    if not file.size:
        return ranges
    # lay the files out one after another on a common axis, separated by one position
    shift = file * (size + 1)
    furthest = np.maximum.accumulate(stop + shift)
    first = np.flatnonzero(np.append(True, start[1:] + shift[1:] > furthest[:-1]))
    last = np.append(first[1:], file.size) - 1
    return np.stack([file[first], start[first], (furthest - shift)[last]])
