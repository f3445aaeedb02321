"""Which variables of which files the chunks of an array are: the fragments of an aggregation.

References say which bytes of a file a chunk has, and not of which variable they are. So the files
are opened again, those of one structure together, and each variable is found by the references of
its chunks. What is found is a proposal, which `virtualds.datasets.aggregation_writing` proves.
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
from virtualds.datasets.aggregation_plan import MAX_FRAGMENTS, Array, Index, Name
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
    """The existing chunks of an array, as columns.

    ``file`` is an index into ``files``, or `INLINE`. ``begin`` and ``stop`` are where a chunk is
    shown in the array, of shape (axes, chunks); ``origin`` is where its first stored element would
    be, and ``encoded`` how many it has.
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

    def take(self, which: Any) -> ChunkRows:
        """Return some of the chunks."""
        return ChunkRows(self.files, *(column[..., which] for column in self[1:]))

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

    def number(listed: tuple[SourceFile, ...]) -> Ints:
        if id(listed) not in tables:
            for file in listed:
                if numbers.setdefault(file.url, len(files)) == len(files):
                    files.append(file)
            # the codes of inline and of missing chunks index from the end
            found = np.array([*(numbers[file.url] for file in listed), INLINE, MISSING], np.int64)
            tables[id(listed)] = listed, found
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
            columns = (number(part.files)[part.file], part.offset, part.length, part.pipeline)
            flat = [np.asarray(column, np.int64).reshape(1, -1) for column in columns]
            rows.append(np.concatenate([*flat, begin, stop, origin, encoded]))
    n = array.ndim
    whole = np.concatenate(rows, axis=1) if rows else np.empty((4 + 4 * n, 0), np.int64)
    boxes = (whole[4 + k * n : 4 + (k + 1) * n] for k in range(4))
    return ChunkRows(tuple(files), *whole[:4], *boxes)


# ---------------------------------------------------------------------- where fragments lie


class Part(NamedTuple):
    """A part of an array that is a whole variable of a file: where it begins, and its shape."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    url: str
    identifier: str


class StoredChunk(NamedTuple):
    """A chunk in a file: its variable there, where its first element is in it, and its shape."""

    path: str
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    origin: tuple[int, ...] = ()
    encoded: tuple[int, ...] = ()


class StoredPlace(NamedTuple):
    """Where a chunk lies."""

    url: str
    offset: int
    length: int


@dataclass
class WantedVariable:
    """A virtual variable, and what of it has been found in files.

    ``array`` are its values, unpacked if they are packed, and ``attributes`` those of the values.
    """

    key: Name
    dims: tuple[str, ...]
    array: ManifestArray
    attributes: Mapping[str, Any]
    rows: ChunkRows
    left: Ints = field(init=False)
    parts: list[Part] = field(default_factory=list)
    problem: str = ""

    def __post_init__(self) -> None:
        self.left = np.arange(self.rows.file.size)

    @property
    def path(self) -> str:
        """The path of the variable, for errors."""
        return "/".join(filter(None, self.key))

    def _iterate_files(self) -> Iterator[tuple[str, Ints, ChunkRows]]:
        """Yield, for each file, its url, and the numbers and rows of chunks that no part covers."""
        if self.problem or not self.left.size:
            return
        files = self.rows.file[self.left]
        order = self.left[np.argsort(files, kind="stable")]
        cuts = np.flatnonzero(np.diff(np.sort(files))) + 1
        for which in np.split(order, cuts):
            rows = self.rows.take(which)
            yield self.rows.files[rows.file[0]].url, which, rows

    def list_places(self, most: int | None = None) -> list[StoredPlace]:
        """Return the places of chunks that no part has: of all, or of the first in each file."""
        return [
            StoredPlace(url, offset, length)
            for url, _, rows in self._iterate_files()
            for offset, length in zip(
                rows.offset[:most].tolist(), rows.length[:most].tolist(), strict=True
            )
        ]

    def put(self, found: Mapping[StoredPlace, StoredChunk | None]) -> None:
        """Note which parts the chunks make whose variables in files have been found."""
        left = [np.zeros(0, np.int64)]
        for url, which, rows in list(self._iterate_files()):
            rest = np.ones(which.size, bool)
            while rest.any() and not self.problem:
                row = int(rest.argmax())
                place = StoredPlace(url, int(rows.offset[row]), int(rows.length[row]))
                if place not in found:
                    break
                self._put_part(place, found[place], rows, row, rest)
            left.append(which[rest])
        self.left = np.sort(np.concatenate(left))

    def _put_part(
        self,
        place: StoredPlace,
        found: StoredChunk | None,
        rows: ChunkRows,
        row: int,
        rest: Array,
    ) -> None:
        """Note the part with a chunk, and in ``rest`` that its chunks are in one now."""
        shown = without_secrets(place.url)
        if found is None:
            self.problem = (
                f"its bytes {place.offset} to {place.offset + place.length} of {shown} are no "
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
        # wherever else it seems to be, it is not found again
        rest[row] = False

    def _match_axes(self, found: StoredChunk, encoded: Sequence[int]) -> tuple[int, ...] | None:
        """Return the axis of the array for each of a variable, which may lack some of length 1.

        ``encoded`` is the shape of the chunk in the array. Axes of the same name come first.
        """
        fitting = [
            axes
            for axes in combinations(range(len(self.dims)), len(found.dims))
            if tuple(encoded[axis] for axis in axes) == found.encoded
        ]
        same = tuple(self.dims.index(dim) for dim in found.dims if dim in self.dims)
        return same if same in fitting else fitting[-1] if fitting else None

    def _describe_part(self, identifier: str, shown: str, start: Ints, stop: Ints) -> str:
        outside = zip(self.dims, start.tolist(), stop.tolist(), self.array.shape, strict=True)
        dim, begin, end, size = next(row for row in outside if row[1] < 0 or row[2] > row[3])
        first, last = max(0, -begin), min(size, end) - begin
        return (
            f"it has the elements {first} to {last} of {end - begin} along {dim!r} of "
            f"{identifier!r} of {shown}, and a fragment is a whole variable; {OTHER_FORMAT}"
        )


class FragmentFinder:
    """Finds the variables of files to which the chunks of arrays belong, by their references."""

    def __init__(self, opener: FragmentOpener) -> None:
        self._opener = opener
        self._found: dict[StoredPlace, StoredChunk | None] = {}
        self.files: dict[str, SourceFile] = {}

    def find(self, wanted: Sequence[WantedVariable]) -> None:
        """Note for each variable of which parts it consists, or its problem."""
        # mostly, all chunks in a file are of the variable of the first; if not, each is looked up
        for most in (1, None):
            names = {place: one.key for one in wanted for place in one.list_places(most)}
            if not names:
                return
            self._look_up(wanted, names)
            for one in wanted:
                one.put(self._found)

    def _look_up(self, wanted: Sequence[WantedVariable], names: Mapping[StoredPlace, Name]) -> None:
        """Find the variables of chunks, opening some files at a time."""
        known = {file.url: file for one in wanted for file in one.rows.files}
        of_file = dict[str, list[StoredPlace]]()
        for place in names:
            if place not in self._found:
                of_file.setdefault(place.url, []).append(place)
        alike = dict[Any, list[SourceFile]]()
        for url in of_file:
            alike.setdefault(known[url].options, []).append(known[url])
        for files in alike.values():
            for begin in range(0, len(files), FILES_AT_ONCE):
                block = files[begin : begin + FILES_AT_ONCE]
                with self._opener.open_files(block, True) as opened:
                    self._look_into(opened, of_file, names)

    def _look_into(
        self,
        opened: OpenedFiles,
        of_file: Mapping[str, Sequence[StoredPlace]],
        names: Mapping[StoredPlace, Name],
    ) -> None:
        batches = dict[int, list[tuple[SourceFile, OpenedFile]]]()
        for file, found in opened.items():
            if isinstance(found, VirtualdsError):
                if isinstance(found, ReadError | AccessError):
                    raise found
                # it is no netCDF file
                self._found |= dict.fromkeys(of_file[file.url])
            else:
                batches.setdefault(id(found.groups), []).append((file, found))
        for batch in batches.values():
            lookup = {
                (place.url, place.offset, place.length): place
                for file, _ in batch
                for place in of_file[file.url]
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
                    # a variable may have several names
                    if self._found[place] is None or names.get(place) == (path, name):
                        origin, encoded = (tuple(c[1:, n].tolist()) for c in rows[-2:])
                        self._found[place] = stored._replace(origin=origin, encoded=encoded)


def _iterate_stored(
    batch: Sequence[tuple[SourceFile, OpenedFile]],
) -> Iterator[tuple[str, str, StoredChunk, ChunkRows]]:
    """Yield the virtual variables of files of one structure, those of one shape together.

    The first axis of the chunks is that of the files.
    """
    groups = batch[0][1].groups
    places = np.array([opened.place for _, opened in batch])
    for path, some in groups.items():
        for name, variable in some.group.variables.items():
            if not isinstance(variable.data, ManifestArray) or name in some.group.problems:
                continue
            sizes = [
                some.lengths[dim][places] if dim in some.lengths else np.full(places.size, size)
                for dim, size in zip(variable.dims, variable.data.shape, strict=True)
            ]
            shapes, which = np.unique(
                np.stack([np.zeros_like(places), *sizes], axis=1), axis=0, return_inverse=True
            )
            for number, shape in enumerate(shapes[:, 1:].tolist()):
                of_shape = places[which.ravel() == number]
                rows = tabulate_chunks(some.take(of_shape).stack(name))
                yield path, name, StoredChunk(path, name, variable.dims, tuple(shape)), rows


# ---------------------------------------------------------------------- the grid of fragments


@dataclass(frozen=True)
class FragmentGrid:
    """How an array is divided into fragments: their lengths along each axis, and what each is.

    ``parts`` are in files, by index, and others are missing; or ``values`` has a constant for each.
    """

    lengths: tuple[tuple[int, ...], ...]
    parts: Mapping[Index, Part] = field(default_factory=dict)
    values: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """How many fragments there are along each axis."""
        return tuple(map(len, self.lengths))

    @classmethod
    def of(cls, wanted: WantedVariable) -> FragmentGrid:
        """Return the grid of an array, or raise an error if its parts form none."""
        array, parts = wanted.array, wanted.parts
        if not parts:
            edges = find_constant_edges(array)
            lengths = tuple(tuple(np.diff(one).tolist()) for one in edges)
            return cls(lengths, values=spread_constants(array, edges))
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
        found = dict[Index, Part]()
        for index, whole, part in zip(map(tuple, indexes.tolist()), is_whole, parts, strict=True):
            if not whole or index in found:
                volume = sum(prod(one.shape) for one in parts)
                how = "overlaps others, since only a part of it is used"
                if volume <= array.size:
                    how = "lies beside parts of other sizes"
                raise UnsupportedError(
                    f"its part from {part.start}, {part.identifier!r} of "
                    f"{without_secrets(part.url)}, {how}, and fragments form a grid; {OTHER_FORMAT}"
                )
            found[index] = part
        return cls(lengths, found)


def find_constant_edges(array: ManifestArray) -> list[Ints]:
    """Return where values change along each axis of an array without references."""
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


def spread_constants(array: ManifestArray, edges: Sequence[Ints]) -> Array:
    """Return the value of each cell between edges of an array without references."""
    found = np.full([one.size - 1 for one in edges], array.fill_value, array.dtype)
    values = [pipeline.missing_value for pipeline in array.pipelines]
    for fragment in array.fragments:
        numbers: Array = fragment.manifest.loaded().pipeline
        for n, one in enumerate(edges):
            kept = (one[:-1] >= fragment.start[n]) & (one[:-1] < fragment.stop[n])
            slabs = fragment.axes[n].locate(one[:-1][kept] - fragment.start[n])
            numbers = np.take(numbers, slabs, axis=n)
        box = tuple(
            slice(*np.searchsorted(one, ends).tolist())
            for one, ends in zip(
                edges, zip(fragment.start, fragment.stop, strict=True), strict=True
            )
        )
        cast = np.array([np.asarray(value).astype(array.dtype)[()] for value in values])
        found[box] = cast[numbers]
    return found


def list_missing_values(array: ManifestArray) -> list[Any]:
    """Return the distinct values of elements in no chunk."""
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
