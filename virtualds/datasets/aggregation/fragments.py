"""Find the variables of files that hold the chunks of an array: the fragments of an aggregation.

A reference says which bytes of a file a chunk has, but not to which variable they belong. So the
files are opened again, those of one structure together, and each variable is found by the
references of its chunks. `virtualds.datasets.aggregation.writing` verifies the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray, is_same_scalar
from virtualds.chunks.columns import INLINE, MISSING, Ints
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.codecs.codec import CodecError
from virtualds.datasets.aggregation import FILES_AT_ONCE, FragmentOpener, OpenedFile, OpenedFiles
from virtualds.datasets.aggregation.plan import MAX_FRAGMENTS, Array, Index, Name
from virtualds.errors import (
    AccessError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
    without_secrets,
)
from virtualds.source_file import SourceFile

OTHER_FORMAT = "write it as zarr-v3, which holds all of it (format='zarr-v3')"
"""The remedy for arrays that are not made of whole variables."""


class ChunkRows(NamedTuple):
    """The existing chunks of an array, as a table of columns.

    ``file`` is an index into ``files``, or `INLINE`. The last four columns have the shape (axes,
    chunks): a chunk covers ``begin`` to ``stop`` of the array, its first stored element would be at
    ``origin``, and ``encoded`` is its stored shape.
    """

    files: tuple[SourceFile, ...]
    file: Ints
    offset: Ints
    length: Ints
    pipeline: Ints
    begin: Ints
    stop: Ints
    origin: Ints
    encoded: Ints

    def take(self, selection: Any) -> ChunkRows:
        """Return the chunks that an index or a mask selects."""
        return ChunkRows(self.files, *(column[..., selection] for column in self[1:]))

    @property
    def urls(self) -> Array:
        """The url of each file."""
        return np.array([file.url for file in self.files], object)


def tabulate_chunks(array: ManifestArray) -> ChunkRows:
    """Return the existing chunks of an array."""
    numbers = dict[str, int]()
    files = list[SourceFile]()
    tables = dict[int, tuple[Any, Ints]]()
    rows = list[Ints]()

    def number_files(listed: tuple[SourceFile, ...]) -> Ints:
        if id(listed) not in tables:
            for file in listed:
                if numbers.setdefault(file.url, len(files)) == len(files):
                    files.append(file)
            # the negative codes of inline and missing chunks index from the end
            file_numbers = np.array(
                [*(numbers[file.url] for file in listed), INLINE, MISSING], np.int64
            )
            tables[id(listed)] = listed, file_numbers
        return tables[id(listed)][1]

    for fragment in array.fragments:
        shape = fragment.manifest.shape
        slabs = [axis.slabs() for axis in fragment.axes]
        for ids, part in iterate_references(fragment.manifest):
            at = np.unravel_index(ids, shape) if shape else ()
            begin, stop, origin, encoded = (np.empty((len(shape), ids.size), np.int64)
                                            for _ in range(4))  # fmt: skip
            for n, (slab, place, start) in enumerate(zip(slabs, at, fragment.start, strict=True)):
                begin[n], stop[n] = slab.edges[place] + start, slab.edges[place + 1] + start
                origin[n], encoded[n] = begin[n] - slab.inset[place], slab.encoded[place]
            columns = (number_files(part.files)[part.file], part.offset, part.length, part.pipeline)
            flat = [np.asarray(column, np.int64).reshape(1, -1) for column in columns]
            rows.append(np.concatenate([*flat, begin, stop, origin, encoded]))
    n = array.ndim
    table = np.concatenate(rows, axis=1) if rows else np.empty((4 + 4 * n, 0), np.int64)
    boxes = (table[4 + k * n : 4 + (k + 1) * n] for k in range(4))
    return ChunkRows(tuple(files), *table[:4], *boxes)


# ---------------------------------------------------------------------- variables of chunks


class Part(NamedTuple):
    """A part of an array that is a whole variable of a file: where it begins, and its shape."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    url: str
    identifier: str


class StoredChunk(NamedTuple):
    """A chunk in a file, and the variable that it belongs to.

    ``shape`` is that of the variable. ``origin`` is the position of the chunk in it, and
    ``encoded`` is the stored shape of the chunk.
    """

    path: str
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    origin: tuple[int, ...] = ()
    encoded: tuple[int, ...] = ()


class StoredPlace(NamedTuple):
    """The byte range of a chunk."""

    url: str
    offset: int
    length: int


@dataclass
class AggregatedVariable:
    """A virtual variable to store as an aggregation variable, and the fragments found for it.

    ``array`` and ``attributes`` are those of the unpacked values. ``uncovered`` are the rows
    of chunks that no part covers yet.
    """

    key: Name
    dims: tuple[str, ...]
    array: ManifestArray
    attributes: Mapping[str, Any]
    rows: ChunkRows
    uncovered: Ints = field(init=False)
    parts: list[Part] = field(default_factory=list)
    problem: str = ""

    def __post_init__(self) -> None:
        self.uncovered = np.arange(self.rows.file.size)

    @property
    def path(self) -> str:
        """The path of the variable, for errors."""
        return "/".join(filter(None, self.key))

    def _iterate_files(self) -> Iterator[tuple[str, Ints, ChunkRows]]:
        """Yield the url of each file, and the indices and rows of its uncovered chunks."""
        if self.problem or not self.uncovered.size:
            return
        files = self.rows.file[self.uncovered]
        order = self.uncovered[np.argsort(files, kind="stable")]
        cuts = np.flatnonzero(np.diff(np.sort(files))) + 1
        for row_ids in np.split(order, cuts):
            rows = self.rows.take(row_ids)
            yield self.rows.files[rows.file[0]].url, row_ids, rows

    def list_places(self, limit: int | None = None) -> list[StoredPlace]:
        """Return the byte ranges of chunks that no part covers, at most ``limit`` of each file."""
        return [
            StoredPlace(url, offset, length)
            for url, _, rows in self._iterate_files()
            for offset, length in zip(
                rows.offset[:limit].tolist(), rows.length[:limit].tolist(), strict=True
            )
        ]

    def add_parts(self, found: Mapping[StoredPlace, StoredChunk | None]) -> None:
        """Add the parts of chunks whose variables have been found."""
        uncovered = [np.zeros(0, np.int64)]
        for url, row_ids, rows in list(self._iterate_files()):
            rest = np.ones(row_ids.size, bool)
            while rest.any() and not self.problem:
                row = int(rest.argmax())
                place = StoredPlace(url, int(rows.offset[row]), int(rows.length[row]))
                if place not in found:
                    break
                self._add_part(place, found[place], rows, row, rest)
            uncovered.append(row_ids[rest])
        self.uncovered = np.sort(np.concatenate(uncovered))

    def _add_part(
        self,
        place: StoredPlace,
        found: StoredChunk | None,
        rows: ChunkRows,
        row: int,
        rest: Array,
    ) -> None:
        """Add the part with the chunk at ``row``, and remove its chunks from ``rest``."""
        shown = without_secrets(place.url)
        if found is None:
            self.problem = (
                f"its bytes {place.offset} to {place.offset + place.length} of {shown} are not a "
                f"chunk of a netCDF variable there, as an aggregation needs; {OTHER_FORMAT}"
            )
            return
        axes = self._match_axes(found, rows.encoded[:, row].tolist())
        identifier = f"/{found.path}/{found.name}" if found.path else found.name
        if axes is None:
            self.problem = (
                f"its dimensions {self.dims} are not those of {identifier!r} of {shown}, "
                f"{found.dims}; {OTHER_FORMAT}"
            )
            return
        start, shape = rows.begin[:, row].copy(), np.ones(len(self.dims), np.int64)
        for axis, origin, size in zip(axes, found.origin, found.shape, strict=True):
            start[axis], shape[axis] = rows.origin[axis, row] - origin, size
        stop = start + shape
        if (start < 0).any() or (stop > self.array.shape).any():
            self.problem = self._describe_part(identifier, shown, start, stop)
            return
        part = Part(tuple(start.tolist()), tuple(shape.tolist()), place.url, identifier)
        self.parts.append(part)
        inside = (rows.begin >= start[:, np.newaxis]) & (rows.stop <= stop[:, np.newaxis])
        rest &= ~inside.all(axis=0)
        # ends the loop even if the part does not cover its own chunk
        rest[row] = False

    def _match_axes(self, found: StoredChunk, encoded: Sequence[int]) -> tuple[int, ...] | None:
        """Return the array axis of each axis of a variable, which may lack axes of length 1.

        ``encoded`` is the shape of the chunk in the array. Axes of the same name are preferred.
        """
        fitting = [
            axes
            for axes in combinations(range(len(self.dims)), len(found.dims))
            if tuple(encoded[axis] for axis in axes) == found.encoded
        ]
        axes_by_name = tuple(self.dims.index(dim) for dim in found.dims if dim in self.dims)
        return axes_by_name if axes_by_name in fitting else fitting[-1] if fitting else None

    def _describe_part(self, identifier: str, shown: str, start: Ints, stop: Ints) -> str:
        """Return why a part that lies partly outside the array is not a fragment."""
        outside = zip(self.dims, start.tolist(), stop.tolist(), self.array.shape, strict=True)
        dim, begin, end, size = next(row for row in outside if row[1] < 0 or row[2] > row[3])
        first, last = max(0, -begin), min(size, end) - begin
        return (
            f"it has the elements {first} to {last} of {end - begin} along {dim!r} of "
            f"{identifier!r} of {shown}, and a fragment is a whole variable; {OTHER_FORMAT}"
        )


class FragmentFinder:
    """Finds the variables of files to which chunks belong, by their references."""

    def __init__(self, opener: FragmentOpener) -> None:
        self._opener = opener
        self._found: dict[StoredPlace, StoredChunk | None] = {}
        self.files: dict[str, SourceFile] = {}

    def find(self, variables: Sequence[AggregatedVariable]) -> None:
        """Set the parts of each variable, or its problem."""
        # the chunks in a file mostly belong to one variable, so look up the first before the others
        for limit in (1, None):
            name_of_place = {place: v.key for v in variables for place in v.list_places(limit)}
            if not name_of_place:
                return
            self._look_up(variables, name_of_place)
            for variable in variables:
                variable.add_parts(self._found)

    def _look_up(
        self, variables: Sequence[AggregatedVariable], names: Mapping[StoredPlace, Name]
    ) -> None:
        """Find the variables of chunks; open at most `FILES_AT_ONCE` files at a time."""
        file_of_url = {file.url: file for variable in variables for file in variable.rows.files}
        places_of_url = dict[str, list[StoredPlace]]()
        for place in names:
            if place not in self._found:
                places_of_url.setdefault(place.url, []).append(place)
        files_alike = dict[Any, list[SourceFile]]()
        for url in places_of_url:
            files_alike.setdefault(file_of_url[url].options, []).append(file_of_url[url])
        for files in files_alike.values():
            for begin in range(0, len(files), FILES_AT_ONCE):
                block = files[begin : begin + FILES_AT_ONCE]
                with self._opener.open_files(block, True) as opened:
                    self._search_files(opened, places_of_url, names)

    def _search_files(
        self,
        opened: OpenedFiles,
        places_of_url: Mapping[str, Sequence[StoredPlace]],
        names: Mapping[StoredPlace, Name],
    ) -> None:
        """Find the variables of chunks in opened files."""
        batches = dict[int, list[tuple[SourceFile, OpenedFile]]]()
        for file, found in opened.items():
            if isinstance(found, VirtualdsError):
                if isinstance(found, ReadError | AccessError):
                    raise found
                # the file is not netCDF
                self._found |= dict.fromkeys(places_of_url[file.url])
            else:
                batches.setdefault(id(found.groups), []).append((file, found))
        for batch in batches.values():
            lookup = {
                (place.url, place.offset, place.length): place
                for file, _ in batch
                for place in places_of_url[file.url]
            }
            self._found |= dict.fromkeys(lookup.values())
            offsets = np.unique([place.offset for place in lookup.values()])
            for path, name, stored, rows in _iterate_stored(batch):
                urls = rows.urls
                for n in np.flatnonzero(np.isin(rows.offset, offsets)).tolist():
                    at = (urls[rows.file[n]], int(rows.offset[n]), int(rows.length[n]))
                    if (place := lookup.get(at)) is None:
                        continue
                    self.files[place.url] = rows.files[rows.file[n]]
                    # a variable may have several names: prefer its name in the virtual dataset
                    if self._found[place] is None or names.get(place) == (path, name):
                        origin, encoded = (tuple(c[1:, n].tolist()) for c in rows[-2:])
                        self._found[place] = stored._replace(origin=origin, encoded=encoded)


def _iterate_stored(
    batch: Sequence[tuple[SourceFile, OpenedFile]],
) -> Iterator[tuple[str, str, StoredChunk, ChunkRows]]:
    """Yield the chunks of each virtual variable in files of one structure, grouped by shape.

    The files are the first axis of the rows.
    """
    groups = batch[0][1].groups
    positions = np.array([opened.place for _, opened in batch])
    for path, files in groups.items():
        for name, variable in files.group.variables.items():
            if not isinstance(variable.data, ManifestArray) or name in files.group.problems:
                continue
            sizes = [
                files.lengths[dim][positions]
                if dim in files.lengths
                else np.full(positions.size, size)
                for dim, size in zip(variable.dims, variable.data.shape, strict=True)
            ]
            shapes, inverse = np.unique(
                np.stack([np.zeros_like(positions), *sizes], axis=1), axis=0, return_inverse=True
            )
            for number, shape in enumerate(shapes[:, 1:].tolist()):
                places_of_shape = positions[inverse.ravel() == number]
                rows = tabulate_chunks(files.take(places_of_shape).stack(name))
                yield path, name, StoredChunk(path, name, variable.dims, tuple(shape)), rows


# ---------------------------------------------------------------------- the grid of fragments


@dataclass(frozen=True)
class FragmentGrid:
    """The division of an array into fragments: their lengths along each axis, and their content.

    Either ``parts`` has the fragments in files by index, and all others are missing, or ``values``
    has one constant for each fragment.
    """

    lengths: tuple[tuple[int, ...], ...]
    parts: Mapping[Index, Part] = field(default_factory=dict)
    values: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of fragments along each axis."""
        return tuple(map(len, self.lengths))

    @classmethod
    def of(cls, variable: AggregatedVariable) -> FragmentGrid:
        """Return the grid of an array, or raise an error if its parts form none."""
        array, parts = variable.array, variable.parts
        if not parts:
            edges = find_constant_edges(array)
            lengths = tuple(tuple(np.diff(one).tolist()) for one in edges)
            return cls(lengths, values=read_constants(array, edges))
        starts = np.array([part.start for part in parts], np.int64).reshape(len(parts), array.ndim)
        stops = starts + np.array([part.shape for part in parts], np.int64).reshape(starts.shape)
        edges = [
            np.unique([0, size, *starts[:, n], *stops[:, n]]) for n, size in enumerate(array.shape)
        ]
        lengths = tuple(tuple(np.diff(one).tolist()) for one in edges)
        if (count := prod(map(len, lengths))) > MAX_FRAGMENTS:
            raise UnsupportedError(
                f"its parts lie on a grid of {count:,} fragments, more than {MAX_FRAGMENTS:,}; "
                f"{OTHER_FORMAT}"
            )
        indexes, ends = np.zeros_like(starts), np.zeros_like(stops)
        for n, one in enumerate(edges):
            indexes[:, n] = np.searchsorted(one, starts[:, n])
            ends[:, n] = np.searchsorted(one, stops[:, n])
        is_whole = (ends - indexes == 1).all(axis=1).tolist()
        part_of_index = dict[Index, Part]()
        for index, is_aligned, part in zip(
            map(tuple, indexes.tolist()), is_whole, parts, strict=True
        ):
            if not is_aligned or index in part_of_index:
                volume = sum(prod(one.shape) for one in parts)
                why = "overlaps others, since only a part of it is used"
                if volume <= array.size:
                    why = "lies beside parts of other sizes"
                raise UnsupportedError(
                    f"its part from {part.start}, {part.identifier!r} of "
                    f"{without_secrets(part.url)}, {why}, and fragments form a grid; {OTHER_FORMAT}"
                )
            part_of_index[index] = part
        return cls(lengths, part_of_index)


def find_constant_edges(array: ManifestArray) -> list[Ints]:
    """Return the edges between constants along each axis of an array without references."""
    if len(list_missing_values(array)) == 1:
        return [np.array([0, size]) for size in array.shape]
    if array.nchunks > MAX_FRAGMENTS:
        raise UnsupportedError(
            f"it has {array.nchunks:,} constants, more than {MAX_FRAGMENTS:,}; {OTHER_FORMAT}"
        )
    return [
        np.unique(np.concatenate([[0, size], *(f.edges(n) for f in array.fragments)]))
        for n, size in enumerate(array.shape)
    ]


def read_constants(array: ManifestArray, edges: Sequence[Ints]) -> Array:
    """Return the constant of each cell between edges of an array without references."""
    return array.read(tuple(one[:-1] for one in edges))


def list_missing_values(array: ManifestArray) -> list[Any]:
    """Return the distinct values of elements without a stored chunk."""
    found = [array.fill_value] if array.has_gaps else []
    for fragment in array.fragments:
        for number in _find_missing_pipelines(fragment.manifest, len(array.pipelines)):
            try:
                found.append(array.pipelines[number].missing_value)
            except CodecError as error:
                raise UnsupportedError(f"its missing chunks have no value: {error}") from error
    cast = [np.asarray(value).astype(array.dtype)[()] for value in found]
    return [v for n, v in enumerate(cast) if not any(is_same_scalar(v, w) for w in cast[:n])]


def _find_missing_pipelines(manifest: ChunkManifest, count: int) -> list[int]:
    """Return the pipelines, out of ``count``, of the missing chunks of a manifest."""
    existing = sum(ids.size for ids, _ in iterate_references(manifest))
    if existing == manifest.size:
        return []
    if count == 1:
        return [0]
    if not existing:
        return manifest.used_pipelines(count).tolist()  # type: ignore[no-any-return]
    loaded = manifest.loaded()
    found: list[int] = np.unique(loaded.pipeline[loaded.file == MISSING]).tolist()
    return found
