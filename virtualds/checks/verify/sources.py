"""Survey the references of a set, and check the files and byte ranges to which they point.

All references are read once, in blocks, so that memory does not grow with their number. A
reference does not name the variable of its bytes: to compare values, the file is scanned again,
and the chunk at the offset is looked up. The checksum of a zip archive covers a whole member, so
members are read completely.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.parser import NativeRegion, Parser
from virtualds.checks.verify.report import Problem
from virtualds.chunks.columns import INLINE, MISSING, Ints, compact
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import BLOCK_CHUNKS, ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis
from virtualds.datasets.location import PARSER_ERRORS, Location, reader_of
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.formats.zarr import STORE_MARKERS
from virtualds.progress import ProgressOption, count_progress
from virtualds.reading.tasks import Decoder
from virtualds.reading.threads import HostSlot, Prefetcher
from virtualds.source_file import (
    CHECKSUM_FLAG,
    KINDS,
    SourceFile,
    StorageOptions,
    join_path,
    kind_of,
)
from virtualds.stores import find_store
from virtualds.stores.archive import (
    LOCAL_HEADER_SIZE,
    ArchiveMember,
    is_zip,
    parse_data_offset,
    read_zip_index,
)
from virtualds.stores.requests import normalise_etag
from virtualds.stores.store import Range, Store

PIECE_BYTES = 2**23
"""Number of bytes of a member that are read at a time."""


def find_damaged_members(files: Iterable[SourceFile]) -> Iterator[Problem]:
    """Yield a problem for each member of a zip archive whose bytes do not match its checksum.

    Other files are skipped.
    """
    for file in sorted(files, key=lambda file: file.url):
        store = find_store(file.url)
        try:
            if is_zip(_fetch_range(store, file, 0, HEAD_BYTES)):
                yield from _find_damaged_members(store, file)
        except (OSError, VirtualdsError) as error:
            yield Problem(file.url, "", None, "unreachable", f"its members: {error}")


def _find_damaged_members(store: Store, file: SourceFile) -> Iterator[Problem]:
    size = store.describe(file.url, file.options).size or 0
    index = read_zip_index(lambda ranges: store.get_ranges(file, ranges), size, file.url)
    for name, member in index.items():
        if member.problem is not None:
            # no reference can point into it
            continue
        actual = _compute_checksum(store, file, member)
        if actual != member.checksum:
            text = (
                f"the CRC-32 of the member {name!r} is {actual - CHECKSUM_FLAG:#010x}, the archive "
                f"says {member.checksum - CHECKSUM_FLAG:#010x}; the archive is damaged, fetch it "
                "again"
            )
            yield Problem(file.url, "", None, "undecodable", text)


def _compute_checksum(store: Store, file: SourceFile, member: ArchiveMember) -> int:
    """Return the checksum of the current bytes of a member."""
    offset = member.offset
    if offset is None:
        header = _fetch_range(store, file, member.header, LOCAL_HEADER_SIZE)
        offset = parse_data_offset(header, member.header, file.url)
    stop = offset + (member.length if member.deflated_size is None else member.deflated_size)
    parts: Iterable[bytes] = (
        _fetch_range(store, file, start, min(PIECE_BYTES, stop - start))
        for start in range(offset, stop, PIECE_BYTES)
    )
    checksum = 0
    # after an error the checksum does not match, since bytes are missing
    with suppress(zlib.error):
        for part in parts if member.deflated_size is None else _inflate(parts):
            checksum = zlib.crc32(part, checksum)
    return CHECKSUM_FLAG + checksum


def _inflate(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the decompressed bytes of a deflated member in pieces."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    for part in parts:
        while part:
            yield stream.decompress(part, PIECE_BYTES)
            part = stream.unconsumed_tail


def _fetch_range(store: Store, file: SourceFile, start: int, count: int) -> bytes:
    count = count if file.size is None else min(count, file.size - start)
    return bytes(store.get_ranges(file, [(start, count)])[0]) if count > 0 else b""


# ---------------------------------------------------------------------- locating bytes

Array = npt.NDArray[Any]
Region = tuple[slice, ...]
Box = tuple[tuple[int, int], ...]
"""Start and stop for each axis."""


class ByteLocation(NamedTuple):
    """A byte range of a source file as a box of elements of a chunk.

    ``box`` is in elements along the stored axes of the chunk. ``offset`` is the offset of the chunk
    in the file.
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
        """Return a region of the variable as the argument of a native reader."""
        has_codecs = bool(self.pipeline.codecs)
        shape = self.array.shape
        return NativeRegion(
            self.group, self.variable, shape, region, self.offset, has_codecs, decoded
        )

    def locate_values(self, stored: Array) -> tuple[Region, Array] | None:
        """Return the region of the variable that has the stored values, and its values.

        Return None if the variable shows none of them.

        Raises
        ------
        ValueError
            The values do not fill the box.
        """
        layout, bounds = list[int | FixedAxis](), dict[int, tuple[int, int]]()
        for entry, (start, stop) in zip(self.pipeline.layout, self.box, strict=True):
            if isinstance(entry, FixedAxis):
                if not start <= entry.index < stop:
                    return None
                layout.append(FixedAxis(stop - start, entry.index - start))
            else:
                layout.append(entry)
                bounds[entry] = start, stop
        lengths = tuple(b - a for a, b in (bounds.get(i, (0, 1)) for i in range(self.array.ndim)))
        uncompressed = replace(self.pipeline, codecs=(), packing=None, layout=tuple(layout))
        decoder = Decoder(uncompressed, lengths)
        values = decoder.to_array_axes(stored.reshape(decoder.shape))
        # the region of the variable, and the same region within the box
        region, box_region = list[slice](), list[slice]()
        for axis, number in enumerate(self.chunk):
            edges, _, inset = self.fragment.axes[axis].slabs(number, number + 1)
            first, last = (int(e) + self.fragment.start[axis] for e in edges)
            box_start, box_stop = bounds.get(axis, (0, 1))
            origin = first - int(inset[0]) + box_start
            start, stop = max(first, origin), min(last, origin + box_stop - box_start)
            if stop <= start:
                return None
            region.append(slice(start, stop))
            box_region.append(slice(start - origin, stop - origin))
        return tuple(region), values[tuple(box_region)]


@dataclass(frozen=True)
class ScannedSource:
    """A file that was scanned again: its parser and its variables."""

    parser: Parser
    source: SourceFile
    group: ManifestGroup

    def locate_ranges(self, url: str, ranges: Iterable[Range]) -> dict[Range, ByteLocation]:
        """Return the locations of byte ranges that are chunks or rows of chunks, by range."""
        pending = set(ranges)
        locations: dict[Range, ByteLocation] = {}
        arrays = [
            (path, name, variable.data)
            for path, group in self.group.walk()
            for name, variable in group.variables.items()
            if isinstance(variable.data, ManifestArray)
        ]
        # chunks first: a range may also be a row of another, larger chunk
        for find in (_FragmentIndex.find_chunks, _FragmentIndex.find_rows):
            for path, name, array in arrays:
                for fragment in array.fragments:
                    locations |= find(_FragmentIndex(path, name, array, fragment, url), pending)
                    pending -= locations.keys()
                    if not pending:
                        return locations
        return locations


class _FragmentIndex:
    """The offsets and lengths of the chunks of a fragment in one file."""

    def __init__(
        self, path: str, name: str, array: ManifestArray, fragment: Fragment, url: str
    ) -> None:
        manifest = fragment.manifest.loaded()
        self.fragment = replace(fragment, manifest=manifest)
        self.path, self.name, self.array = path, name, array
        numbers = [n for n, file in enumerate(manifest.files) if file.url == url]
        self.chunks = np.flatnonzero(np.isin(manifest.file, numbers))
        self.offset = manifest.offset.ravel()[self.chunks]
        self.length = manifest.length.ravel()[self.chunks]

    def find_chunks(self, ranges: Iterable[Range]) -> dict[Range, ByteLocation]:
        """Return the locations of ranges that are whole chunks."""
        offsets = np.array([offset for offset, _ in ranges], np.int64)
        locations = {}
        for row in np.flatnonzero(np.isin(self.offset, offsets)).tolist():
            range_ = int(self.offset[row]), int(self.length[row])
            if range_ in ranges and range_ not in locations:
                locations[range_] = self._locate_chunk(row)
        return locations

    def find_rows(self, ranges: Iterable[Range]) -> dict[Range, ByteLocation]:
        """Return the locations of ranges that are rows of an uncompressed chunk."""
        locations = {}
        for range_ in ranges:
            offset, length = range_
            contains = (self.offset <= offset) & (offset + length <= self.offset + self.length)
            for row in np.flatnonzero(contains)[:1].tolist():
                chunk = self._locate_chunk(row)
                size = chunk.pipeline.dtype.itemsize
                start, remainder = divmod(offset - chunk.offset, size)
                if chunk.pipeline.codecs or remainder or length % size:
                    continue
                shape = [n for _, n in chunk.box]
                if (box := find_box(shape, start, length // size)) is not None:
                    locations[range_] = chunk._replace(box=box)
        return locations

    def _locate_chunk(self, row: int) -> ByteLocation:
        """Return the location of a whole chunk."""
        manifest, offset = self.fragment.manifest, int(self.offset[row])
        chunk = tuple(int(i) for i in np.unravel_index(self.chunks[row], manifest.shape))
        slabs = (axis.slabs(i, i + 1) for axis, i in zip(self.fragment.axes, chunk, strict=True))
        encoded_shape = [int(slab.encoded[0]) for slab in slabs]
        pipeline = self.array.pipelines[manifest.lookup(chunk).pipeline]
        box = tuple((0, n) for n in pipeline.stored_shape(encoded_shape))
        return ByteLocation(self.path, self.name, self.array, self.fragment, chunk, offset, box)


def find_box(shape: Sequence[int], start: int, count: int) -> Box | None:
    """Return the box that consecutive elements of an array fill, or None if they fill no box.

    Examples
    --------
    >>> find_box((4, 3, 2), 6, 12), find_box((4, 3, 2), 8, 4), find_box((4, 3, 2), 1, 2)
    (((1, 3), (0, 3), (0, 2)), ((1, 2), (1, 3), (0, 2)), None)
    """
    outer: list[tuple[int, int]] = []
    for axis, n in enumerate(shape):
        row = prod(shape[axis + 1 :])
        first, remainder = divmod(start, row)
        if not remainder and not count % row and first + count // row <= n:
            full_axes = ((0, m) for m in shape[axis + 1 :])
            return (*outer, (first, first + count // row), *full_axes)
        outer.append((first, first + 1))
        start -= first * row
    return None if shape else ()


def scan_source(file: SourceFile) -> ScannedSource:
    """Scan a source file, or the Zarr store to which the file belongs as a chunk.

    Raises
    ------
    VirtualdsError, OSError
        The file cannot be read, or its format is unknown.
    """
    try:
        return _scan_file(file)
    except (FormatError, UnsupportedError):
        # the file may be a chunk of a Zarr store
        if (folder := _find_store_folder(file)) is None:
            raise
        return _scan_file(file._replace(url=folder))


def _scan_file(file: SourceFile) -> ScannedSource:
    location = Location(file.url, file.options)
    with location.cache_scan(), warnings.catch_warnings():
        # warnings are about variables that cannot be read, which are not needed here
        warnings.simplefilter("ignore")
        reader, source = reader_of(location)
        if not isinstance(reader, Parser):
            raise FormatError(f"{file.url}: a reference set ({reader.name}), not a source file")
        options = OpenOptions(below=True, on_error="keep")
        group = open_group(location, options, (reader, source))
    return ScannedSource(reader, source, group)


def _find_store_folder(file: SourceFile) -> str | None:
    """Return the folder of the Zarr group of a chunk, or None if the file is not in a store.

    If the array is not in a group, return the folder of the array.
    """
    folder, array_folder = file.url, None
    while (folder := folder.rpartition("/")[0]) and not folder.endswith(("/", ":")):
        if _has_marker(folder, file):
            if array_folder is not None:
                return folder
            array_folder = folder
        elif array_folder is not None:
            return array_folder
    return array_folder


def _has_marker(folder: str, file: SourceFile) -> bool:
    for marker in STORE_MARKERS:
        url = join_path(folder, marker)
        try:
            find_store(url).describe(url, file.options)
        except OSError:
            continue
        return True
    return False


# ---------------------------------------------------------------------- references

Arrays = Mapping[str, ManifestArray]


ChunkId = tuple[int, ...]


def split_blocks(
    manifest: ChunkManifest,
    first: ChunkId | None = None,
    axes: Sequence[int] | None = None,
    max_chunks: int = BLOCK_CHUNKS,
) -> Iterator[tuple[ChunkId, ChunkManifest]]:
    """Yield parts of a manifest of at most ``max_chunks`` chunks, with the id of the first chunk.

    Lazy manifests are split along the slowest axis, so that each record is read once. Parts are
    not loaded. Parts without existing chunks may be larger.
    """
    if first is None or axes is None:
        first, axes = (0,) * len(manifest.shape), _order_axes(manifest)
    if manifest.size <= max_chunks or not axes or _is_empty(manifest):
        if manifest.size:
            yield first, manifest
        return
    axis, *other_axes = axes
    count = manifest.shape[axis]
    step = max(1, max_chunks * count // manifest.size)
    for start in range(0, count, step):
        part = manifest.take(axis, slice(start, min(start + step, count)))
        part_first = (*first[:axis], first[axis] + start, *first[axis + 1 :])
        yield from split_blocks(part, part_first, other_axes, max_chunks)


def _is_empty(manifest: ChunkManifest) -> bool:
    """Return whether a manifest is known to have no existing chunk."""
    existing = manifest.find_existing()
    return existing is not None and not existing.size


def _order_axes(manifest: ChunkManifest) -> list[int]:
    axes = list(range(len(manifest.shape)))
    if manifest.rows is None:
        return axes
    strides = manifest.rows.strides
    return sorted(axes, key=lambda axis: -abs(strides[axis]))


@dataclass
class ReferenceSurvey:
    """Numbers of references, and the end of the last chunk in each file (``ends``)."""

    ends: dict[SourceFile, int] = field(default_factory=dict)
    references: int = 0
    missing: int = 0
    inline: int = 0
    problems: list[Problem] = field(default_factory=list)


def survey_references(arrays: Arrays) -> ReferenceSurvey:
    """Count all references, and report those that are invalid or cannot be read as problems."""
    survey, ends = ReferenceSurvey(), _FileEnds()
    for name, array in arrays.items():
        for fragment in array.fragments:
            for first, part in split_blocks(fragment.manifest):
                try:
                    if _is_empty(part):
                        survey.missing += part.size
                        continue
                    loaded = part.loaded()
                except (VirtualdsError, OSError) as error:
                    survey.problems.append(_make_references_problem(name, first, part, error))
                    continue
                _count_references(survey, loaded)
                ends.add(loaded)
                survey.problems += _find_invalid_references(name, first, loaded)
    survey.ends = ends.to_dict()
    return survey


def find_chunks_past_end(arrays: Arrays, sizes: Mapping[SourceFile, int]) -> Iterator[Problem]:
    """Yield a problem for each variable and file with chunks that extend past the end of the file.

    Parameters
    ----------
    arrays : mapping
    sizes : mapping of SourceFile to int
        The sizes of files to check.
    """
    for name, array in arrays.items():
        for fragment in array.fragments:
            for first, part in split_blocks(fragment.manifest):
                try:
                    if _is_empty(part):
                        continue
                    yield from _find_chunks_past_end(name, first, part.loaded(), sizes)
                except (VirtualdsError, OSError):
                    continue  # the survey has reported it


def _find_chunks_past_end(
    name: str, first: ChunkId, part: ChunkManifest, sizes: Mapping[SourceFile, int]
) -> Iterator[Problem]:
    no_limit = np.iinfo(np.int64).max
    # MISSING and INLINE are negative, so that they index from the end
    limits = np.array([*(sizes.get(file, no_limit) for file in part.files), no_limit, no_limit])
    is_outside = part.offset + part.length > limits[part.file]
    for number in np.unique(part.file[is_outside]).tolist():
        positions = np.argwhere(is_outside & (part.file == number))
        position = tuple(positions[0].tolist())
        row, others = part.lookup(position), len(positions) - 1
        yield Problem(
            part.files[number].url,
            name,
            _shift_id(first, position),
            "range",
            f"bytes {row.offset} to {row.offset + row.length} lie beyond the end of the file at "
            f"{limits[number]}"
            + (f", and so do those of {others:,} more chunks" if others else ""),
        )


def _make_references_problem(
    name: str, first: ChunkId, part: ChunkManifest, error: Exception
) -> Problem:
    last = tuple(a + n - 1 for a, n in zip(first, part.shape, strict=True))
    notes = "; ".join(getattr(error, "__notes__", ()))
    text = f"{error}" + (f" ({notes})" if notes else "")
    return Problem(
        "", name, first, "references", f"those of chunks {first} to {last} are not checked: {text}"
    )


def _find_invalid_references(name: str, first: ChunkId, part: ChunkManifest) -> list[Problem]:
    """Return a problem for each file with references that have negative offsets or no bytes."""
    file, offset, length = _get_compact_columns(part)
    is_invalid = (file >= 0) & ((length <= 0) | (offset < 0))
    problems = []
    for number in np.unique(file[is_invalid]).tolist() if is_invalid.any() else ():
        positions = np.argwhere(is_invalid & (file == number))
        position = tuple(positions[0].tolist())
        others = f", and {len(positions) - 1:,} more" if len(positions) > 1 else ""
        text = f"the reference is to {length[position]} bytes from byte {offset[position]}{others}"
        url = part.files[number].url
        problems.append(Problem(url, name, _shift_id(first, position), "range", text))
    return problems


def _get_compact_columns(part: ChunkManifest) -> tuple[Ints, Ints, Ints]:
    """Return file, offset and length of references, with length 1 along constant axes."""
    columns = (compact(getattr(part, name)) for name in ("file", "offset", "length"))
    file, offset, length = np.broadcast_arrays(*columns)
    return file, offset, length


def _shift_id(first: ChunkId, position: ChunkId) -> ChunkId:
    return tuple(a + b for a, b in zip(first, position, strict=True))


def _count_references(survey: ReferenceSurvey, part: ChunkManifest) -> None:
    file = compact(part.file)
    repeats = part.size // file.size
    # MISSING and INLINE are -1 and -2
    counts = np.bincount(file.ravel() - INLINE, minlength=len(part.files) - INLINE)
    survey.inline += int(counts[0]) * repeats
    survey.missing += int(counts[MISSING - INLINE]) * repeats
    survey.references += int(counts[-INLINE:].sum()) * repeats


class _FileEnds:
    """Collects the end of the last chunk in each file.

    Ends are in an array while consecutive manifests share a table of files.
    """

    def __init__(self) -> None:
        self._files: tuple[SourceFile, ...] = ()
        self._ends: Ints = np.empty(0, np.int64)
        self._ends_by_file: dict[SourceFile, int] = {}

    def add(self, part: ChunkManifest) -> None:
        """Add the ends of the chunks of a part of a manifest."""
        if part.files is not self._files and part.files != self._files:
            self._flush()
            self._files = part.files
            self._ends = np.full(len(part.files), -1, np.int64)
        file, offset, length = _get_compact_columns(part)
        exists = file >= 0
        np.maximum.at(self._ends, file[exists], (offset + length)[exists])

    def _flush(self) -> None:
        for number in np.flatnonzero(self._ends >= 0).tolist():
            file, end = self._files[number], int(self._ends[number])
            self._ends_by_file[file] = max(self._ends_by_file.get(file, -1), end)

    def to_dict(self) -> dict[SourceFile, int]:
        """Return the ends by file."""
        self._flush()
        return self._ends_by_file


# ---------------------------------------------------------------------- states of files

FileLocation = tuple[str, StorageOptions | None]
"""The url of a file, and its access options."""


HEAD_KINDS = {"file", "http", "https", *KINDS}
"""Kinds of stores whose files are checked by reading their first bytes.

For HTTP, fsspec would need two requests if a file is missing or the server rejects HEAD. The size
of a local file does not show whether the user may read it.
"""


HEAD_BYTES = 4
"""Bytes that identify a zip archive."""


FileState = tuple[SourceFile, bytes | None] | Exception
"""A file with its current fingerprint, and its first bytes if known; or the error."""


@dataclass
class FileStates:
    """The current states of files.

    ``sizes`` are the known sizes of existing files, ``unchanged`` the files without a problem,
    ``archives`` the files that may be zip archives, ``file_count`` the number of files, and
    ``fingerprinted`` the number of files whose time or etag was compared.
    """

    sizes: dict[SourceFile, int] = field(default_factory=dict)
    unchanged: set[SourceFile] = field(default_factory=set)
    archives: set[SourceFile] = field(default_factory=set)
    file_count: int = 0
    fingerprinted: int = 0
    problems: list[Problem] = field(default_factory=list)


def fetch_states(files: Iterable[SourceFile], progress: ProgressOption = None) -> FileStates:
    """Fetch the state of each file once, and compare it with the recorded fingerprints."""
    recorded: dict[FileLocation, list[SourceFile]] = {}
    for file in files:
        recorded.setdefault((file.url, file.options), []).append(file)
    states = FileStates(file_count=len(recorded))
    ahead = Prefetcher(recorded, lambda location: HostSlot.from_url(location[0], 0), _fetch_state)
    with count_progress(progress, "checking", len(recorded)) as advance, closing(ahead):
        for location, fetched in ahead:
            state = _fetch_state(location) if fetched is None else fetched
            are_compared = [_record_state(states, file, state) for file in recorded[location]]
            states.fingerprinted += all(are_compared)
            advance(1)
    states.problems.sort()
    return states


def _fetch_state(location: FileLocation) -> FileState:
    """Return the current state of a file, or the error."""
    url, options = location
    store = find_store(url)
    try:
        if kind_of(url) in HEAD_KINDS:
            return store.read_head(url, options, HEAD_BYTES)
        return store.describe(url, options), None
    except (VirtualdsError, *PARSER_ERRORS) as error:
        return error


def _record_state(states: FileStates, file: SourceFile, state: FileState) -> bool:
    """Record the state of a file, and return whether its time or etag was compared."""
    if isinstance(state, Exception):
        kind = "missing" if isinstance(state, FileNotFoundError) else "unreachable"
        text = getattr(state, "strerror", None) or str(state) or type(state).__name__
        states.problems.append(Problem(file.url, "", None, kind, text))
        return False
    current, head = state
    if current.size is not None:
        states.sizes[file] = current.size
    change = _find_change(file, current)
    if change is None:
        states.unchanged.add(file)
        if head is None or is_zip(head):
            states.archives.add(file)
    else:
        states.problems.append(Problem(file.url, "", None, *change))
    etags = normalise_etag(file.etag), normalise_etag(current.etag)
    return None not in (file.mtime, current.mtime) or "" not in etags


def _find_change(recorded: SourceFile, current: SourceFile) -> tuple[str, str] | None:
    """Return the kind and text of the worst change since the scan, or None."""
    if None not in (recorded.size, current.size) and recorded.size != current.size:
        return "size", f"the file has {current.size} bytes, it had {recorded.size} when scanned"
    etags = normalise_etag(recorded.etag), normalise_etag(current.etag)
    if "" not in etags and etags[0] != etags[1]:
        return "etag", f"its etag is {current.etag}, it was {recorded.etag} when scanned"
    before, after = recorded.mtime, current.mtime
    if before is not None and after is not None and before != after:
        seconds, direction = abs(after - before) / 1e9, "after" if after > before else "before"
        noted = f"{seconds:,.3f} s {direction} the time noted when it was scanned"
        return "modified", f"it was modified {noted}"
    return None
