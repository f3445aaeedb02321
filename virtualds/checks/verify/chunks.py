"""Sample chunks of a set, and compare them with values of native readers.

The sample is spread over all variables, and depends only on the seed. Sampled chunks are read
without the chunk cache. A native reader is a library that the parser of a format names. It returns
a region of a variable, as stored and as decoded by CF. HDF5 and netCDF allow one thread at a time,
so native readers run in the calling thread, while other threads fetch and decode the next chunks.

Rewritten chunks are compared with the original chunks, whose references are stored beside the set
(`virtualds.writing.rewrite`).
"""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from math import ceil, prod
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.parser import (
    Array,
    NativeReader,
    NativeReadError,
    NativeRegion,
    Parser,
    ReadNative,
)
from virtualds.checks.verify.report import NOT_COMPARED, Problem
from virtualds.checks.verify.sources import (
    Arrays,
    ByteLocation,
    ChunkId,
    Region,
    ScannedSource,
    scan_source,
)
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import Ints
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.codec import CodecError
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.datasets.location import PARSER_ERRORS
from virtualds.datasets.source_positions import is_icechunk_chunk
from virtualds.errors import FormatError, VirtualdsError
from virtualds.options import count_cores, get_options
from virtualds.progress import Advance
from virtualds.reading.threads import iterate_results
from virtualds.source_file import OBJECT_SCHEME, SourceFile, local_path, scheme_of
from virtualds.stores import find_store
from virtualds.stores.fsspec import find_filesystem
from virtualds.writing.rewrite import Original, find_original, read_rows


def open_native(
    native: NativeReader, parser: Parser, source: SourceFile, closing: ExitStack
) -> ReadNative:
    """Return a function that reads a source file with a native reader of its format.

    Raises
    ------
    NativeReadError
        The file would crash the library.
    """
    is_local, options = scheme_of(source.url) == "file", dict(native.options)
    target: Callable[[], Any] = partial(_open_unless_local, source, closing)
    if parser.markers:
        # the source is a folder, which has no file object
        target = partial(local_path if is_local else str, source.url)
        if source.options and not is_local:
            options["storage_options"] = dict(source.options)
    if native.check is not None:
        native.check(target())
    if native.open is not None:
        return native.open(target, closing)
    return _XarrayReader(str(native.engine), target, closing, options).read


def _open_unless_local(source: SourceFile, closing: ExitStack) -> Any:
    """Return the path of a local file, or a new file object of any other file."""
    if scheme_of(source.url) == "file":
        return local_path(source.url)
    if scheme_of(source.url) == OBJECT_SCHEME:
        return io.BytesIO(find_store(source.url).read_all(source.url, source.options))
    filesystem, path = find_filesystem(source.url, source.options)
    # keep a reference: a filesystem of an archive closes its files when it is garbage collected
    closing.callback(id, filesystem)
    return closing.enter_context(filesystem.open(path, "rb"))


MAX_CACHED_BYTES = 2**18
"""Maximum size in bytes of a variable that is read as a whole when a second region is requested."""


@dataclass
class _XarrayReader:
    """Reads a file with an xarray engine, one dataset for each group.

    ``make_target`` returns the argument of the engine; each dataset needs its own file object.
    Each read of a library takes milliseconds, so ``cache`` has all values of small variables of
    which more than one region was read, or None if not all values can be read because another chunk
    is damaged.
    """

    engine: str
    make_target: Callable[[], Any]
    closing: ExitStack
    options: Mapping[str, Any]
    datasets: dict[tuple[str, bool], xr.Dataset] = field(default_factory=dict)
    requested: set[tuple[str, str, bool]] = field(default_factory=set)
    cache: dict[tuple[str, str, bool], Array | None] = field(default_factory=dict)

    def read(self, request: NativeRegion) -> Array:
        """Return the values of a region."""
        opening = request.group, request.decoded
        if opening not in self.datasets:
            opened = xr.open_dataset(
                self.make_target(),
                engine=self.engine,
                decode_cf=request.decoded,
                cache=False,
                group=request.group or None,
                **self.options,
            )
            self.datasets[opening] = self.closing.enter_context(opened)
        dataset = self.datasets[opening]
        if request.variable not in dataset.variables:
            raise NativeReadError(f"it has no variable {request.variable!r}")
        variable = dataset.variables[request.variable]
        if variable.shape != request.shape:
            raise NativeReadError(f"it reads the variable with shape {variable.shape}")
        key = request.group, request.variable, request.decoded
        is_repeated = key in self.requested and key not in self.cache
        if is_repeated and variable.nbytes <= MAX_CACHED_BYTES:
            self.cache[key] = _read_all(variable)
        self.requested.add(key)
        if (values := self.cache.get(key)) is not None:
            return np.asarray(values[request.region])
        return np.asarray(variable[request.region].values)


def _read_all(variable: xr.Variable) -> Array | None:
    """Return all values of a variable, or None if some cannot be read."""
    try:
        return np.asarray(variable.values)
    except PARSER_ERRORS:
        return None


# ---------------------------------------------------------------------- rewritten chunks

REPOSITORY_REASON = "it is a chunk of an Icechunk repository, and no other file holds it"
"""The reason for not comparing a chunk that the repository itself stores."""


@dataclass(frozen=True)
class RewrittenFile:
    """A file of rewritten chunks.

    Parameters
    ----------
    original : Original
        The original variable.
    cells : dict of int to int
        Indexes of cells by the offsets of their chunks; -1 means a chunk of a single value.
    """

    original: Original
    cells: dict[int, int]

    @classmethod
    def of(cls, file: SourceFile) -> RewrittenFile | None:
        """Return a file of rewritten chunks, or None for other files."""
        if file.size is None or (original := find_original(file)) is None:
            return None
        if (rows := read_rows(file)) is None:
            return None
        cells, lengths = zip(*rows, strict=True)
        offsets = np.cumsum(lengths) - np.array(lengths)
        return cls(original, dict(zip(offsets.tolist(), cells, strict=True)))

    def pair(self, chunk: SampledChunk) -> tuple[Array, Array]:
        """Return the values of a rewritten chunk, and the original values of its cell.

        Raises
        ------
        ReadError
            The original cannot be read.
        """
        if chunk.offset not in self.cells:
            return np.empty(1), np.empty(0)
        stored = read_stored_numbers(chunk, chunk).reshape(-1)
        cell = self.cells[chunk.offset]
        if cell < 0:
            return stored, np.full_like(stored, stored[0])
        packing = chunk.pipeline.packing
        if self.original.is_decoded and packing is not None:
            stored = packing.decode(stored.astype(stored.dtype.newbyteorder("=")))
        return self.original.clip_to_array(stored, cell), self.original.read(cell)


# ---------------------------------------------------------------------- sampled chunks

Sample = int | float | None
"""A number of chunks, a fraction of them, or None for all."""


MAX_DRAWS = 8
"""Maximum number of draws for each chunk of a sample, since a drawn chunk may be missing."""


CHUNKS_AT_ONCE = 2**16
"""Number of chunks of a fragment that are looked up at a time."""


class SampledChunk(NamedTuple):
    """The location of a chunk in a file, and what is needed to decode it."""

    variable: str
    chunk_id: ChunkId
    file: SourceFile
    offset: int
    length: int
    checksum: int
    pipeline: CodecPipeline
    encoded_shape: tuple[int, ...]


class SampledFragment(NamedTuple):
    """A fragment of an array from which chunks are drawn."""

    name: str
    array: ManifestArray
    fragment: Fragment


def check_sample(sample: Any) -> Sample:
    """Return the size of a sample as an int, a float or None.

    Raises
    ------
    ValueError
        It is neither a number of chunks, nor a fraction, nor None.
    """
    is_count = isinstance(sample, int | np.integer) and not isinstance(sample, bool)
    if sample is None or (is_count and sample > 0):
        return None if sample is None else int(sample)
    if isinstance(sample, float) and 0 < sample <= 1:
        return sample
    raise ValueError(
        f"verify: sample={sample!r}; give a number of chunks, a fraction between 0.0 and 1.0, or "
        f"None for all of them"
    )


def sample_chunks(arrays: Arrays, sample: Sample, seed: int) -> Iterator[SampledChunk]:
    """Yield a sample of the chunks that are in files, spread evenly over all chunks.

    Each fragment gets a number of chunks in proportion to its size, at least one if the sample is
    large enough.
    It is divided into as many ranges of equal length, and one chunk is drawn from each. References
    that cannot be read yield nothing.
    """
    parts = [
        SampledFragment(name, array, fragment)
        for name, array in arrays.items()
        for fragment in array.fragments
        if fragment.manifest.size
    ]
    rng = np.random.default_rng(seed)
    sizes = np.array([part.fragment.manifest.size for part in parts], np.int64)
    for part, count in zip(parts, _divide_sample(sizes, sample, rng).tolist(), strict=True):
        if count == part.fragment.manifest.size:
            for start in range(0, count, CHUNKS_AT_ONCE):
                stop = min(start + CHUNKS_AT_ONCE, count)
                chunks = _look_up_chunks(part, np.arange(start, stop))
                yield from (chunk for chunk in chunks if chunk is not None)
        elif count:
            yield from _draw_chunks(part, count, rng)


def count_sampled(arrays: Arrays, sample: Sample) -> int:
    """Return the maximum number of chunks of a sample, which has no missing chunks."""
    return _compute_sample_size(sum(array.nchunks for array in arrays.values()), sample)


def _compute_sample_size(total: int, sample: Sample) -> int:
    count = total if sample is None else sample
    return min(total, ceil(count * total) if isinstance(count, float) else count)


def _divide_sample(sizes: Ints, sample: Sample, rng: np.random.Generator) -> Ints:
    """Return the number of chunks to draw from each part: one, and more in proportion to its size.

    If there are fewer chunks than parts, random parts get one.
    """
    count = _compute_sample_size(int(sizes.sum()), sample)
    minimum = np.ones(sizes.size, np.int64)
    if count < sizes.size:
        minimum[rng.permutation(sizes.size)[count:]] = 0
        return minimum
    weights = sizes - 1
    ends = np.cumsum(weights) * (count - sizes.size) // max(int(weights.sum()), 1)
    return minimum + np.diff(ends, prepend=0)


def _draw_chunks(
    part: SampledFragment, count: int, rng: np.random.Generator
) -> Iterator[SampledChunk]:
    """Yield a random chunk from each range. If it is not in a file, draw another one."""
    size = part.fragment.manifest.size
    bounds = np.arange(count + 1) * size // count
    pending = np.arange(count)
    for _ in range(MAX_DRAWS):
        indexes = rng.integers(bounds[pending], bounds[pending + 1])
        chunks = _look_up_chunks(part, indexes)
        yield from (chunk for chunk in chunks if chunk is not None)
        pending = pending[[chunk is None for chunk in chunks]]
        if not pending.size:
            return


def _look_up_chunks(part: SampledFragment, indexes: Ints) -> Sequence[SampledChunk | None]:
    """Return the chunks at flat indexes, with None for chunks that are not in a file."""
    axes = part.fragment.axes
    try:
        rows = part.fragment.manifest.at(indexes)
    except (VirtualdsError, OSError):
        return [None] * indexes.size  # the survey has reported it
    ids = np.unravel_index(indexes, part.fragment.manifest.shape) if axes else ()
    chunks: list[SampledChunk | None] = []
    for n in range(indexes.size):
        row = rows.lookup((n,))
        if row.file < 0:
            chunks.append(None)
            continue
        chunk_id = tuple(int(ids_of_axis[n]) for ids_of_axis in ids)
        slabs = (axis.slabs(i, i + 1) for axis, i in zip(axes, chunk_id, strict=True))
        encoded_shape = tuple(int(slab.encoded[0]) for slab in slabs)
        chunks.append(
            SampledChunk(
                *(part.name, chunk_id, rows.files[row.file]),
                *(row.offset, row.length, row.checksum),
                *(part.array.pipelines[row.pipeline], encoded_shape),
            )
        )
    return chunks


MAX_PART_BYTES = 2**24
"""Maximum number of bytes to compare of an uncompressed chunk, which may be a whole file."""


def select_part(chunk: SampledChunk) -> SampledChunk:
    """Return the whole chunk, or rows in the middle of a large uncompressed chunk."""
    shape = chunk.pipeline.stored_shape(chunk.encoded_shape)
    size = chunk.pipeline.dtype.itemsize
    if chunk.pipeline.codecs or chunk.checksum or chunk.length <= MAX_PART_BYTES:
        return chunk
    if chunk.length != prod(shape) * size:
        return chunk
    row_bytes = [prod(shape[axis:]) * size for axis in range(len(shape) + 1)]
    axis = next(axis for axis, nbytes in enumerate(row_bytes) if nbytes <= MAX_PART_BYTES)
    # to form a box, the rows must be within one row of the previous axis
    row, outer_row = row_bytes[axis], row_bytes[axis - 1]
    length = min(MAX_PART_BYTES // row * row, outer_row)
    start = chunk.length // outer_row // 2 * outer_row + (outer_row - length) // 2 // row * row
    return chunk._replace(offset=chunk.offset + start, length=length)


def read_stored_numbers(chunk: SampledChunk, part: SampledChunk) -> Array:
    """Return the stored values of a part of a chunk: 1-D if uncompressed, else in its shape.

    Raises
    ------
    ReadError
        Bytes cannot be read, have changed, or cannot be decoded.
    FormatError
        Bytes are outside the file.
    """
    pipeline = chunk.pipeline
    shape = pipeline.stored_shape(chunk.encoded_shape)
    if part.length != chunk.length:
        shape = (part.length // pipeline.dtype.itemsize,)
    manifest = ChunkManifest.build(
        (1,) * len(shape),
        files=[part.file],
        offset=part.offset,
        length=part.length,
        checksum=part.checksum,
    )
    axes = tuple(ChunkAxis.regular(n, n) for n in shape)
    plain = CodecPipeline(pipeline.dtype, pipeline.codecs, layout=tuple(range(len(shape))))
    fragment = Fragment.whole(axes, manifest)
    array = ManifestArray.from_fragment(fragment, plain, chunk.variable)
    values = replace(array, dtype=plain.decoded_dtype).read()
    return values if pipeline.codecs else values.reshape(-1)


def is_undecodable(error: BaseException) -> bool:
    """Return whether bytes were read, but cannot be decoded."""
    return isinstance(error.__cause__, CodecError) or error.__context__ is None


# ---------------------------------------------------------------------- comparison

SORTED_CHUNKS = 2**17
"""Number of chunks that are sorted by file at a time, so that files are opened few times."""
BATCH_CHUNKS = 16
"""Number of chunks of a file that are compared at a time."""
MAX_OPEN_SOURCES = 4
"""Maximum number of files that are kept open."""
COMPARE_ERRORS = (
    *(NativeReadError, VirtualdsError, *PARSER_ERRORS),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError, struct.error),
    *(EOFError, ElementTree.ParseError),
)
"""Errors that native readers may raise, also because a file has changed since the scan."""


@dataclass
class ComparisonResult:
    """The number of sampled chunks, of equal chunks by reader, and the problems."""

    sampled: int = 0
    equal: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)


def compare_chunks(
    chunks: Iterable[SampledChunk], unchanged: set[SourceFile], advance: Advance
) -> ComparisonResult:
    """Compare chunks of unchanged files; other chunks are skipped."""
    result = ComparisonResult()
    unchanged_chunks = (chunk for chunk in chunks if chunk.file in unchanged)
    with _OpenSources() as sources:
        while batch := list(islice(unchanged_chunks, SORTED_CHUNKS)):
            # files cannot be sorted: their options have no order
            batch.sort(key=lambda chunk: (chunk.file.url, chunk.offset))
            for file, reads in groupby(_read_chunks(batch), key=lambda read: read[0].file):
                while file_reads := list(islice(reads, BATCH_CHUNKS)):
                    result.sampled += len(file_reads)
                    values = []
                    for chunk, part, stored in file_reads:
                        if isinstance(stored, VirtualdsError):
                            result.problems.append(_make_read_problem(chunk, stored))
                        else:
                            values.append((chunk, part, stored))
                    if values:
                        _compare_file(file, values, sources, result)
                    advance(len(file_reads))
    return result


ChunkRead = tuple[SampledChunk, SampledChunk, Array | VirtualdsError]
"""A chunk, the part of it to compare, and the stored values of that part, or the error."""


def _read_chunks(chunks: Sequence[SampledChunk]) -> Iterator[ChunkRead]:
    """Yield chunks in order; threads read them ahead."""
    is_remote = any(scheme_of(chunk.file.url) != "file" for chunk in chunks)
    threads = min(16, get_options().max_requests) if is_remote else count_cores()
    with ThreadPoolExecutor(threads, thread_name_prefix="virtualds verify") as pool:
        try:
            for _, future in iterate_results(pool, _read_chunk, chunks, ahead=threads + 1):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _make_read_problem(chunk: SampledChunk, error: VirtualdsError) -> Problem:
    kind = "undecodable" if is_undecodable(error) else "unreachable"
    if isinstance(error, FormatError):
        # the reference is invalid, and nothing was read
        kind = "range"
    return _make_problem(chunk, kind, str(error))


def _read_chunk(chunk: SampledChunk) -> ChunkRead:
    part = select_part(chunk)
    try:
        return chunk, part, read_stored_numbers(chunk, part)
    except VirtualdsError as error:
        return chunk, part, error


def _make_problem(chunk: SampledChunk, kind: str, text: str) -> Problem:
    return Problem(chunk.file.url, chunk.variable, chunk.chunk_id, kind, text)


def _compare_file(
    file: SourceFile,
    chunks: Sequence[tuple[SampledChunk, SampledChunk, Any]],
    sources: _OpenSources,
    result: ComparisonResult,
) -> None:
    """Compare chunks of a file with its native readers, or rewritten chunks with the originals."""
    pairs = list[tuple[SampledChunk, Array, Array]]()
    try:
        if (rewritten_file := RewrittenFile.of(file)) is not None:
            pairs = [(chunk, *rewritten_file.pair(chunk)) for chunk, _, _ in chunks]
    except COMPARE_ERRORS as error:
        text = f"decoded, but not compared: its original cannot be read ({_describe_error(error)})"
        result.problems += (_make_problem(chunk, NOT_COMPARED, text) for chunk, _, _ in chunks)
        return
    for chunk, rewritten, original in pairs:
        if text := find_difference(rewritten, original):
            result.problems.append(_make_problem(chunk, "differs", f"its original: {text}"))
        else:
            result.equal["the originals"] += 1
    if rewritten_file is not None:
        return
    source = REPOSITORY_REASON if is_icechunk_chunk(file.url) else sources.of(file)
    if isinstance(source, str):
        text = f"decoded, but not compared: {source}"
        result.problems += (_make_problem(chunk, NOT_COMPARED, text) for chunk, _, _ in chunks)
        return
    ranges = [(part.offset, part.length) for _, part, _ in chunks]
    locations = source.scanned.locate_ranges(file.url, ranges)
    for chunk, part, stored in chunks:
        location = locations.get((part.offset, part.length))
        if location is None:
            result.problems.append(_make_problem(chunk, *source.describe_absence(part)))
            continue
        kind, text = source.compare(chunk, location, stored)
        if kind:
            result.problems.append(_make_problem(chunk, kind, text))
        else:
            result.equal[text] += 1


# ---------------------------------------------------------------------- open files


class _OpenSources:
    """A cache of open files, which closes the least recently used ones."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _OpenSource | str] = OrderedDict()

    def __enter__(self) -> _OpenSources:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._close_oldest()

    def of(self, file: SourceFile) -> _OpenSource | str:
        """Return the open file or its Zarr store, or the reason why it cannot be compared."""
        url = next((url for url in self._open if f"{file.url}/".startswith(f"{url}/")), None)
        if url is not None:
            self._open.move_to_end(url)
            return self._open[url]
        try:
            scanned = scan_source(file)
            opened: _OpenSource | str = _OpenSource(scanned)
            url = scanned.source.url if scanned.parser.markers else file.url
        except COMPARE_ERRORS as error:
            opened, url = f"its structure cannot be read again ({_describe_error(error)})", file.url
        self._open[url] = opened
        if len(self._open) > MAX_OPEN_SOURCES:
            self._close_oldest()
        return opened

    def _close_oldest(self) -> None:
        _, source = self._open.popitem(last=False)
        if not isinstance(source, str):
            source.closing.close()


class _OpenSource:
    """A file that was scanned again, and its native readers."""

    def __init__(self, scanned: ScannedSource) -> None:
        self.scanned = scanned
        self.closing = ExitStack()
        self._readers: dict[str, ReadNative | str] = {}

    def describe_absence(self, part: SampledChunk) -> tuple[str, str]:
        """Return the kind and text of the problem that the file has no chunk at these bytes."""
        end = part.offset + part.length
        text = f"bytes {part.offset} to {end} are neither a chunk of the file nor rows of one"
        problems = self.scanned.group.all_problems()
        if problems and self.scanned.parser.options:
            # the chunk may need parser options, which sets do not store
            reason = next(iter(problems.values()))
            return (
                NOT_COMPARED,
                f"decoded, but not compared: {text}, without parser_options: {reason}",
            )
        return "differs", f"{text}; scan it again"

    def compare(
        self, chunk: SampledChunk, location: ByteLocation, stored: Array
    ) -> tuple[str, str]:
        """Return the kind and text of a problem, or "" and the name of the reader if equal."""
        try:
            visible = location.locate_values(stored)
        except ValueError:
            return "differs", (
                f"{stored.size} elements of {stored.dtype} were decoded, the file has "
                f"{location.box} of {location.pipeline.dtype} there"
            )
        if visible is None:
            return NOT_COMPARED, "decoded, but not compared: the file shows none of its elements"
        errors: list[str] = []
        for native in self.scanned.parser.natives:
            try:
                text = self._compare_with(native, chunk, location, *visible)
            except COMPARE_ERRORS as error:
                errors.append(f"{native.package}: {_describe_error(error)}")
                continue
            return ("differs", f"{native.package}: {text}") if text else ("", native.name or "")
        no_reader = f"{self.scanned.parser.name} files have no known native reader"
        reasons = "; ".join(errors) or no_reader
        return NOT_COMPARED, f"decoded, but not compared: {reasons}"

    def _compare_with(
        self,
        native: NativeReader,
        chunk: SampledChunk,
        location: ByteLocation,
        region: Region,
        stored: Array,
    ) -> str:
        """Return the difference from the values of a native reader, or "" if there is none."""
        read = self._get_reader(native)
        packing = chunk.pipeline.packing
        comparisons = [(False, stored)]
        if packing is not None:
            comparisons.append((True, packing.decode(stored.copy())))
        has_compared = False
        for decoded, ours in comparisons:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                theirs = read(location.to_native_region(region, decoded=decoded))
            if theirs is None:
                continue
            has_compared = True
            if not decoded and theirs.dtype == bool and ours.dtype.itemsize == 1:
                # some libraries return integers as booleans
                theirs = theirs.view(ours.dtype)
            if text := find_difference(ours, theirs):
                kind = "decoded" if decoded else "stored"
                where = ", ".join(f"{part.start}:{part.stop}" for part in region)
                return f"{kind} {location.variable}[{where}]: {text}"
        if not has_compared:
            raise NativeReadError("it does not return values in this form")
        return ""

    def _get_reader(self, native: NativeReader) -> ReadNative:
        reader = self._readers.get(native.package)
        if reader is None:
            reader = self._readers[native.package] = self._open(native)
        if isinstance(reader, str):
            raise NativeReadError(reader)
        return reader

    def _open(self, native: NativeReader) -> ReadNative | str:
        """Return a reader, or the reason why there is none."""
        source = self.scanned.source
        if native.name is None:
            return "it is not installed"
        if not native.remote and scheme_of(source.url) != "file":
            return "it reads local files only"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return open_native(native, self.scanned.parser, source, self.closing)
        except COMPARE_ERRORS as error:
            return _describe_error(error)


def _describe_error(error: BaseException) -> str:
    if isinstance(error, NativeReadError):
        return str(error)
    first_line = (format(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}"[:300]


# ---------------------------------------------------------------------- bitwise comparison


def find_difference(ours: Array, theirs: Array) -> str:
    """Return how two arrays differ in shape, dtype or any bit, or "" if they are equal.

    Examples
    --------
    >>> find_difference(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    '1 of 2 elements differ, the first at (1,): 2.0 here, 2.5 there'
    >>> find_difference(np.array([np.nan]), np.array([np.nan], ">f8"))
    ''
    """
    ours, theirs = (np.asarray(a).astype(a.dtype.newbyteorder("=")) for a in (ours, theirs))
    if ours.shape != theirs.shape:
        return f"shape {ours.shape} here, {theirs.shape} there"
    if ours.dtype != theirs.dtype:
        return f"dtype {ours.dtype} here, {theirs.dtype} there"
    differs = _find_differing_elements(ours, theirs)
    if not differs.any():
        return ""
    first = tuple(int(i) for i in np.argwhere(differs)[0])
    return (
        f"{np.count_nonzero(differs)} of {differs.size} elements differ, the first at {first}: "
        f"{ours[first]} here, {theirs[first]} there"
    )


def _find_differing_elements(ours: Array, theirs: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the elements that differ in any bit, except in padding between fields."""
    if ours.dtype.names:
        fields = [_find_differing_elements(ours[name], theirs[name]) for name in ours.dtype.names]
        # a field may be an array
        differs = [mask.reshape(*ours.shape, -1).any(-1) for mask in fields]
        return np.asarray(np.logical_or.reduce(differs))
    if ours.dtype.hasobject or not ours.nbytes:
        return np.asarray(ours != theirs)
    our_bytes, their_bytes = (
        np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(*a.shape, -1)
        for a in (ours, theirs)
    )
    return np.asarray((our_bytes != their_bytes).any(-1))
