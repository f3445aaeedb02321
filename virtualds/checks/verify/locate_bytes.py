"""Finding the part of a variable that given bytes of a source file hold.

A reference says where bytes lie, not what they are. So the file is scanned again, and the chunk at
that offset is looked up.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.parser import NativeRegion, Parser
from virtualds.checks.verify.sources import ChunkId
from virtualds.chunks.fragment import Fragment
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis
from virtualds.datasets.location import Location, reader_of
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import FormatError, UnsupportedError
from virtualds.formats.zarr.document import STORE_MARKERS
from virtualds.reading.decode import Decoder
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.store import Range
from virtualds.urls import join_path

Array = npt.NDArray[Any]
Region = tuple[slice, ...]
Box = tuple[tuple[int, int], ...]
"""Start and stop for each axis."""


class ByteLocation(NamedTuple):
    """Bytes of a source file, as a box within one chunk of a variable.

    ``box`` counts the elements of the stored chunk along its stored axes. ``offset`` is where the
    chunk begins in the file.
    """

    group: str
    variable: str
    array: ManifestArray
    fragment: Fragment
    chunk: ChunkId
    offset: int
    box: Box

    @property
    def pipeline(self) -> CodecPipeline:
        """The pipeline that decodes the chunk."""
        return self.array.pipelines[self.fragment.manifest.lookup(self.chunk).pipeline]

    def to_native_region(self, region: Region, *, decoded: bool) -> NativeRegion:
        """Return the region of the variable that a native reader is asked for."""
        has_codecs = bool(self.pipeline.codecs)
        shape = self.array.shape
        return NativeRegion(
            self.group, self.variable, shape, region, self.offset, has_codecs, decoded
        )

    def locate_values(self, stored: Array) -> tuple[Region, Array] | None:
        """Return where stored numbers stand in the variable, and the visible numbers in its axes.

        None if none of them is visible.

        Raises
        ------
        ValueError
            The numbers do not fill the box.
        """
        layout, taken = list[int | FixedAxis](), dict[int, tuple[int, int]]()
        for entry, (start, stop) in zip(self.pipeline.layout, self.box, strict=True):
            if isinstance(entry, FixedAxis):
                if not start <= entry.index < stop:
                    return None
                layout.append(FixedAxis(stop - start, entry.index - start))
            else:
                layout.append(entry)
                taken[entry] = start, stop
        lengths = tuple(b - a for a, b in (taken.get(i, (0, 1)) for i in range(self.array.ndim)))
        plain = replace(self.pipeline, codecs=(), packing=None, layout=tuple(layout))
        decoder = Decoder(plain, lengths)
        along = decoder.show(stored.reshape(decoder.shape))
        region, inner = self._find_region(taken)
        if any(s.stop <= s.start for s in region):
            return None
        return region, along[inner]

    def _find_region(self, taken: Mapping[int, tuple[int, int]]) -> tuple[Region, Region]:
        """Return the region of the variable, and the same region within the box."""
        region, inner = [], []
        for axis, number in enumerate(self.chunk):
            edges, _, inset = self.fragment.axes[axis].slabs(number, number + 1)
            first, last = (int(e) + self.fragment.start[axis] for e in edges)
            start, stop = taken.get(axis, (0, 1))
            origin = first - int(inset[0]) + start
            a, b = max(first, origin), min(last, origin + stop - start)
            region.append(slice(a, b))
            inner.append(slice(a - origin, b - origin))
        return tuple(region), tuple(inner)


@dataclass(frozen=True)
class ScannedSource:
    """A file that was scanned again: its parser and its variables."""

    parser: Parser
    source: SourceFile
    group: ManifestGroup

    def locate_ranges(self, url: str, wanted: Iterable[Range]) -> dict[Range, ByteLocation]:
        """Return what byte ranges hold; ranges that are neither chunks nor rows are left out."""
        rest = set(wanted)
        found: dict[Range, ByteLocation] = {}
        for exact in (True, False):
            for path, name, array in self._list_arrays():
                for fragment in array.fragments:
                    search = _Search(path, name, array, fragment, url)
                    found |= search.find_chunks(rest) if exact else search.find_rows(rest)
                    rest -= found.keys()
                    if not rest:
                        return found
        return found

    def _list_arrays(self) -> Iterator[tuple[str, str, ManifestArray]]:
        for path, group in self.group.walk():
            for name, variable in group.variables.items():
                if isinstance(variable.data, ManifestArray):
                    yield path, name, variable.data


class _Search:
    """Finds byte ranges in one fragment of a variable."""

    def __init__(
        self, path: str, name: str, array: ManifestArray, fragment: Fragment, url: str
    ) -> None:
        manifest = fragment.manifest.loaded()
        self.at = path, name, array, replace(fragment, manifest=manifest)
        numbers = [n for n, file in enumerate(manifest.files) if file.url == url]
        self.shape = manifest.shape
        self.inside = np.flatnonzero(np.isin(manifest.file, numbers))
        self.offset = manifest.offset.ravel()[self.inside]
        self.length = manifest.length.ravel()[self.inside]

    def find_chunks(self, wanted: Iterable[Range]) -> dict[Range, ByteLocation]:
        """Return the ranges that are whole chunks."""
        offsets = np.array([offset for offset, _ in wanted], np.int64)
        found = {}
        for row in np.flatnonzero(np.isin(self.offset, offsets)).tolist():
            range_ = int(self.offset[row]), int(self.length[row])
            if range_ in wanted and range_ not in found:
                place = self._locate_chunk(row)
                shape = [n for _, n in place.box]
                found[range_] = place._replace(box=tuple((0, n) for n in shape))
        return found

    def find_rows(self, wanted: Iterable[Range]) -> dict[Range, ByteLocation]:
        """Return the ranges that are rows of an uncompressed chunk."""
        found = {}
        for range_ in wanted:
            offset, length = range_
            holds = (self.offset <= offset) & (offset + length <= self.offset + self.length)
            for row in np.flatnonzero(holds)[:1].tolist():
                place = self._locate_chunk(row)
                size = place.pipeline.dtype.itemsize
                start, odd = divmod(offset - place.offset, size)
                if place.pipeline.codecs or odd or length % size:
                    continue
                shape = [n for _, n in place.box]
                if (box := find_box(shape, start, length // size)) is not None:
                    found[range_] = place._replace(box=box)
        return found

    def _locate_chunk(self, row: int) -> ByteLocation:
        """Return the location of a whole chunk."""
        path, name, array, fragment = self.at
        chunk = tuple(int(i) for i in np.unravel_index(self.inside[row], self.shape))
        slabs = (axis.slabs(i, i + 1) for axis, i in zip(fragment.axes, chunk, strict=True))
        encoded = [int(slab.encoded[0]) for slab in slabs]
        pipeline = array.pipelines[fragment.manifest.lookup(chunk).pipeline]
        box = tuple((0, n) for n in pipeline.stored_shape(encoded))
        return ByteLocation(path, name, array, fragment, chunk, int(self.offset[row]), box)


def find_box(shape: Sequence[int], start: int, count: int) -> Box | None:
    """Return the box that consecutive elements of an array form, None if they form none.

    Examples
    --------
    >>> find_box((4, 3, 2), 6, 12), find_box((4, 3, 2), 8, 4), find_box((4, 3, 2), 1, 2)
    (((1, 3), (0, 3), (0, 2)), ((1, 2), (1, 3), (0, 2)), None)
    """
    outer: list[tuple[int, int]] = []
    for axis, n in enumerate(shape):
        row = prod(shape[axis + 1 :])
        first, odd = divmod(start, row)
        if not odd and not count % row and first + count // row <= n:
            whole = ((0, m) for m in shape[axis + 1 :])
            return (*outer, (first, first + count // row), *whole)
        outer.append((first, first + 1))
        start -= first * row
    return None if shape else ()


def scan_source(file: SourceFile) -> ScannedSource:
    """Scan a source file, or the Zarr store that the file is a chunk of.

    Raises
    ------
    VirtualdsError, OSError
        The file cannot be read, or has no known format.
    """
    try:
        return _scan_file(file)
    except (FormatError, UnsupportedError):
        # a chunk of a Zarr store has no file format
        if (folder := _find_store_around(file)) is None:
            raise
        return _scan_file(file._replace(url=folder))


def _scan_file(file: SourceFile) -> ScannedSource:
    location = Location(file.url, file.options)
    with location.hold_scan(), warnings.catch_warnings():
        # variables that cannot be read are not the ones to find
        warnings.simplefilter("ignore")
        found = reader, source = reader_of(location)
        if not isinstance(reader, Parser):
            raise FormatError(f"{file.url}: a reference set ({reader.name}), not a source file")
        group = open_group(location, OpenOptions(below=True, on_error="keep"), found)
    return ScannedSource(reader, source, group)


def _find_store_around(file: SourceFile) -> str | None:
    """Return the folder of the group that holds the array of a chunk, None if there is none.

    Without a group it is the folder of the array itself.
    """
    folder, found = file.url, None
    while (folder := folder.rpartition("/")[0]) and not folder.endswith(("/", ":")):
        if _has_marker(folder, file):
            if found is not None:
                return folder
            found = folder
        elif found is not None:
            return found
    return found


def _has_marker(folder: str, file: SourceFile) -> bool:
    for marker in STORE_MARKERS:
        url = join_path(folder, marker)
        try:
            find_store(url).describe(url, file.options)
        except OSError:
            continue
        return True
    return False
