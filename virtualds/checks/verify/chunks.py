"""Samples chunks of a set, and compares them with what native readers return.

The sample is spread over all variables, and is the same for the same seed. The chunk cache is not
used: every sampled chunk is read again. A native reader is the library that the parser of a format
names: it returns a region of a variable as stored and as decoded. HDF5 and netCDF allow one thread
at a time, so native readers run in the calling thread, while other threads fetch and decode the
next chunks.

Rewritten chunks are compared with the chunks that they were made from: beside the set are files of
rewritten chunks, and the original references of the variable (`virtualds.writing.rewrite`).
"""

from __future__ import annotations

import io
import lzma
import re
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
from typing import Any, NamedTuple, TypeVar
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
from virtualds.datasets.registry import PARSER_ERRORS
from virtualds.errors import FormatError, VirtualdsError
from virtualds.options import count_cores, get_options
from virtualds.progress import Advance
from virtualds.reading.threads import iterate_results
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.fsspec import find_filesystem
from virtualds.urls import HELD, local_path, scheme_of
from virtualds.writing.rewrite import Original, find_original, read_rows


def open_native(
    native: NativeReader, parser: Parser, source: SourceFile, closing: ExitStack
) -> ReadNative:
    """Open a source file with a native reader of its format.

    Raises
    ------
    NativeReadError
        The file would crash the library.
    """
    is_local, options = scheme_of(source.url) == "file", dict(native.options)
    target: Callable[[], Any] = partial(_open_unless_local, source, closing)
    if parser.markers:
        # a folder is opened by its path
        target = partial(local_path if is_local else str, source.url)
        if source.options and not is_local:
            options["storage_options"] = dict(source.options)
    if native.check is not None:
        native.check(target())
    if native.open is not None:
        return native.open(target, closing)
    return _XarrayReader(str(native.engine), target, closing, options).read


def _open_unless_local(source: SourceFile, closing: ExitStack) -> Any:
    """Return the path of a local file, or a new file object of fsspec."""
    if scheme_of(source.url) == "file":
        return local_path(source.url)
    if scheme_of(source.url) == HELD:
        return io.BytesIO(find_store(source.url).read_all(source.url, source.options))
    filesystem, path = find_filesystem(source.url, source.options)
    # file objects of archives close their files when they are garbage collected
    closing.callback(id, filesystem)
    return closing.enter_context(filesystem.open(path, "rb"))


MAX_WHOLE_BYTES = 2**18
"""Maximum size in bytes of variables that are read whole when several chunks are needed."""


@dataclass
class _XarrayReader:
    """A file opened by an xarray engine, group by group.

    ``target`` makes the argument of the engine; one dataset reads one file object. Libraries take
    milliseconds for each read, so ``whole`` caches the small variables of which a second region was
    needed: their values, or None if only regions can be read, as beside a damaged chunk.
    """

    engine: str
    target: Callable[[], Any]
    closing: ExitStack
    options: Mapping[str, Any]
    opened: dict[tuple[str, bool], xr.Dataset] = field(default_factory=dict)
    asked: set[tuple[str, str, bool]] = field(default_factory=set)
    whole: dict[tuple[str, str, bool], Array | None] = field(default_factory=dict)

    def read(self, request: NativeRegion) -> Array:
        dataset = self._open_dataset(request.group, request.decoded)
        if request.variable not in dataset.variables:
            raise NativeReadError(f"it has no variable {request.variable!r}")
        variable = dataset.variables[request.variable]
        if variable.shape != request.shape:
            raise NativeReadError(f"it reads the variable with shape {variable.shape}")
        key = request.group, request.variable, request.decoded
        if key in self.asked and variable.nbytes <= MAX_WHOLE_BYTES and key not in self.whole:
            self.whole[key] = _read_whole(variable)
        self.asked.add(key)
        if (values := self.whole.get(key)) is not None:
            return np.asarray(values[request.region])
        return np.asarray(variable[request.region].values)

    def _open_dataset(self, group: str, decoded: bool) -> xr.Dataset:
        if (group, decoded) not in self.opened:
            open_kwargs = {
                "decode_cf": decoded,
                "cache": False,
                "group": group or None,
                **self.options,
            }
            dataset = xr.open_dataset(self.target(), engine=self.engine, **open_kwargs)
            self.opened[group, decoded] = self.closing.enter_context(dataset)
        return self.opened[group, decoded]


def _read_whole(variable: xr.Variable) -> Array | None:
    """Return all values of a variable, or None if some cannot be read."""
    try:
        return np.asarray(variable.values)
    except PARSER_ERRORS:
        return None


# ---------------------------------------------------------------------- chunks

REPOSITORY_REASON = "it is a chunk of an Icechunk repository, and no other file holds it"
"""The reason for not comparing a chunk that the repository itself stores."""


def is_icechunk_chunk(file: SourceFile) -> bool:
    """Return whether a file is a chunk of an Icechunk repository (specification, "File layout")."""
    return re.search(r"/chunks/[0-9A-HJKMNP-TV-Z]{20}$", file.url) is not None


@dataclass(frozen=True)
class RewrittenFile:
    """A file of rewritten chunks.

    Parameters
    ----------
    original : Original
        The variable from which they were made.
    cells : dict of int to int
        The index of the cell of each chunk, by its offset; -1 is a chunk of one value.
    """

    original: Original
    cells: dict[int, int]

    @classmethod
    def of(cls, file: SourceFile) -> RewrittenFile | None:
        """Return a file of rewritten chunks, or None if the file is of another kind."""
        if file.size is None or (original := find_original(file)) is None:
            return None
        if (rows := read_rows(file)) is None:
            return None
        cells, lengths = zip(*rows, strict=True)
        begins = np.cumsum(lengths) - np.array(lengths)
        return cls(original, dict(zip(begins.tolist(), cells, strict=True)))

    def pair(self, chunk: SampledChunk) -> tuple[Array, Array]:
        """Return the values of a rewritten chunk, and the original values at the same position.

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


def pair_rewritten(
    file: SourceFile, chunks: Sequence[SampledChunk]
) -> list[tuple[SampledChunk, Array, Array]] | None:
    """Return rewritten chunks with rewritten and original values, or None for other files."""
    rewritten = RewrittenFile.of(file)
    if rewritten is None:
        return None
    return [(chunk, *rewritten.pair(chunk)) for chunk in chunks]


# ---------------------------------------------------------------------- sampled chunks

Sample = int | float | None
"""A number of chunks, a fraction of them, or None for all."""


ATTEMPTS = 8
"""Maximum number of draws to find an existing chunk where many are missing."""


CHUNKS_AT_ONCE = 2**16
"""Number of chunks of one fragment that are looked up at a time."""


class SampledChunk(NamedTuple):
    """The location of a chunk in a file, and the information to decode it."""

    variable: str
    number: ChunkId
    file: SourceFile
    offset: int
    length: int
    checksum: int
    pipeline: CodecPipeline
    encoded: tuple[int, ...]


class SampledFragment(NamedTuple):
    """A fragment of an array."""

    name: str
    array: ManifestArray
    fragment: Fragment


def check_sample(sample: Any) -> Sample:
    """Return the size of the sample.

    Raises
    ------
    ValueError
        It is neither a number of chunks nor a fraction.
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
    """Yield chunks that are in files, spread evenly over all of them.

    Each variable has its share, at least one chunk if the sample is large enough. A variable is
    divided into as many ranges of equal length, and one chunk is drawn from each. References that
    cannot be read yield nothing.
    """
    parts = [
        SampledFragment(name, array, fragment)
        for name, array in arrays.items()
        for fragment in array.fragments
        if fragment.manifest.size
    ]
    rng = np.random.default_rng(seed)
    sizes = np.array([part.fragment.manifest.size for part in parts], np.int64)
    for part, quota in zip(parts, _share_quotas(sizes, sample, rng).tolist(), strict=True):
        if quota == part.fragment.manifest.size:
            yield from _iterate_all(part)
        elif quota:
            yield from _draw_some(part, quota, rng)


def count_sampled(arrays: Arrays, sample: Sample) -> int:
    """Return the maximum number of chunks of a sample; missing chunks are not drawn."""
    return _size_sample(sum(array.nchunks for array in arrays.values()), sample)


def _size_sample(total: int, sample: Sample) -> int:
    count = total if sample is None else sample
    return min(total, ceil(count * total) if isinstance(count, float) else count)


def _share_quotas(sizes: Ints, sample: Sample, rng: np.random.Generator) -> Ints:
    """Return the number of chunks to draw from each part: one, and more by its size."""
    count = _size_sample(int(sizes.sum()), sample)
    minimum = np.ones(sizes.size, np.int64)
    if count < sizes.size:
        minimum[rng.permutation(sizes.size)[count:]] = 0
        return minimum
    weights = sizes - 1
    ends = np.cumsum(weights) * (count - sizes.size) // max(int(weights.sum()), 1)
    return minimum + np.diff(ends, prepend=0)


def _iterate_all(part: SampledFragment) -> Iterator[SampledChunk]:
    size = part.fragment.manifest.size
    for start in range(0, size, CHUNKS_AT_ONCE):
        sampled = _make_chunks(part, np.arange(start, min(start + CHUNKS_AT_ONCE, size)))
        yield from (chunk for chunk in sampled if chunk is not None)


def _draw_some(
    part: SampledFragment, quota: int, rng: np.random.Generator
) -> Iterator[SampledChunk]:
    """Draw one chunk from each range; draw again if a range yields none."""
    size = part.fragment.manifest.size
    bounds = np.arange(quota + 1) * size // quota
    pending = np.arange(quota)
    for _ in range(ATTEMPTS):
        drawn = rng.integers(bounds[pending], bounds[pending + 1])
        sampled = _make_chunks(part, drawn)
        yield from (chunk for chunk in sampled if chunk is not None)
        pending = pending[[chunk is None for chunk in sampled]]
        if not pending.size:
            return


def _make_chunks(part: SampledFragment, ids: Ints) -> Sequence[SampledChunk | None]:
    """Return chunks by their flat indexes, or None for chunks that are in no file."""
    axes = part.fragment.axes
    try:
        rows = part.fragment.manifest.at(ids)
    except (VirtualdsError, OSError):
        return [None] * ids.size  # the survey has reported it
    positions = np.unravel_index(ids, part.fragment.manifest.shape) if axes else ()
    sampled: list[SampledChunk | None] = []
    for n in range(ids.size):
        row = rows.lookup((n,))
        number = tuple(int(at[n]) for at in positions)
        slabs = (axis.slabs(i, i + 1) for axis, i in zip(axes, number, strict=True))
        encoded = tuple(int(slab.encoded[0]) for slab in slabs)
        byte_range = (row.offset, row.length, row.checksum)
        pipeline = part.array.pipelines[row.pipeline] if row.file >= 0 else None
        sampled.append(
            None
            if pipeline is None
            else SampledChunk(
                part.name, number, rows.files[row.file], *byte_range, pipeline, encoded
            )
        )
    return sampled


Item = TypeVar("Item")


Result = TypeVar("Result")


PIECE = 2**24
"""Maximum number of bytes of an uncompressed chunk to compare, as it may be a whole
file."""


def select_part(chunk: SampledChunk) -> SampledChunk:
    """Return the part of a chunk to compare: all, or middle rows of a large uncompressed one."""
    shape = chunk.pipeline.stored_shape(chunk.encoded)
    size = chunk.pipeline.dtype.itemsize
    if chunk.pipeline.codecs or chunk.checksum or chunk.length <= PIECE:
        return chunk
    if chunk.length != prod(shape) * size:
        return chunk
    rows = [prod(shape[axis:]) * size for axis in range(len(shape) + 1)]
    inner = next(axis for axis, row in enumerate(rows) if row <= PIECE)
    # the rows must be within one row of the next outer axis to form a box
    row, outer = rows[inner], rows[inner - 1]
    row_count = min(PIECE // row * row, outer)
    begin = chunk.length // outer // 2 * outer + (outer - row_count) // 2 // row * row
    return chunk._replace(offset=chunk.offset + begin, length=row_count)


def read_stored_numbers(chunk: SampledChunk, part: SampledChunk) -> Array:
    """Return the stored values of a chunk or a part: a row if uncompressed, else in its shape.

    Raises
    ------
    ReadError
        Bytes cannot be read, have changed, or cannot be decoded.
    FormatError
        Bytes are outside the file.
    """
    pipeline = chunk.pipeline
    shape = pipeline.stored_shape(chunk.encoded)
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
    array = ManifestArray.of_fragment(fragment, plain, chunk.variable)
    values = replace(array, dtype=plain.decoded_dtype).read()
    return values if pipeline.codecs else values.reshape(-1)


def is_undecodable(error: BaseException) -> bool:
    """Return whether the bytes were read but are invalid."""
    return isinstance(error.__cause__, CodecError) or error.__context__ is None


def map_in_order(
    items: Iterable[Item], work: Callable[[Item], Result], at_once: int
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with the result of ``work``, which threads compute ahead."""
    with ThreadPoolExecutor(at_once, thread_name_prefix="virtualds verify") as pool:
        try:
            for item, future in iterate_results(pool, work, items, ahead=at_once + 1):
                yield item, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


# ---------------------------------------------------------------------- compare chunks

SORTED_CHUNKS = 2**17
"""Number of chunks that are sorted by file at a time, so that each file is opened once."""
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
    """The problems found, and the number of equal chunks by reader (``equal``)."""

    sampled: int = 0
    equal: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)


def compare_chunks(
    chunks: Iterable[SampledChunk], sound: set[SourceFile], advance: Advance
) -> ComparisonResult:
    """Compare chunks of valid files; chunks of other files are skipped."""
    result = ComparisonResult()
    waiting = (chunk for chunk in chunks if chunk.file in sound)
    with ExitStack() as closing:
        sources = closing.enter_context(_OpenSources())
        while batch := list(islice(waiting, SORTED_CHUNKS)):
            # options cannot be ordered
            batch.sort(key=lambda chunk: (chunk.file.url, chunk.offset))
            _compare_batch(batch, sources, result, advance)
    return result


def _compare_batch(
    chunks: Sequence[SampledChunk],
    sources: _OpenSources,
    result: ComparisonResult,
    advance: Advance,
) -> None:
    for file, members in groupby(_read_pairs(chunks), key=lambda item: item[0].file):
        for batch in _batch_reads(members):
            result.sampled += len(batch)
            good = [(chunk, part, numbers) for chunk, part, numbers in batch
                    if not _is_refused(chunk, numbers, result)]  # fmt: skip
            if good:
                _compare_file(file, good, sources, result)
            advance(len(batch))


Read = tuple[SampledChunk, SampledChunk, Array | VirtualdsError]
"""A chunk, the part of it to compare, and the stored values of that part."""


def _batch_reads(members: Iterator[Read]) -> Iterator[list[Read]]:
    while batch := list(islice(members, 16)):
        yield batch


def _read_pairs(chunks: Sequence[SampledChunk]) -> Iterator[Read]:
    far = any(scheme_of(chunk.file.url) != "file" for chunk in chunks)
    pairs = ((chunk, select_part(chunk)) for chunk in chunks)
    at_once = min(16, get_options().max_requests) if far else count_cores()
    for (chunk, part), numbers in map_in_order(pairs, _read_numbers, at_once):
        yield chunk, part, numbers


def _read_numbers(pair: tuple[SampledChunk, SampledChunk]) -> Array | VirtualdsError:
    try:
        return read_stored_numbers(*pair)
    except VirtualdsError as error:
        return error


def _is_refused(
    chunk: SampledChunk, numbers: Array | VirtualdsError, result: ComparisonResult
) -> bool:
    """Return whether a chunk cannot be read, and record the problem."""
    if not isinstance(numbers, VirtualdsError):
        return False
    kind = "undecodable" if is_undecodable(numbers) else "unreachable"
    if isinstance(numbers, FormatError):
        # an invalid reference, for which nothing was read
        kind = "range"
    result.problems.append(_make_problem(chunk, kind, str(numbers)))
    return True


def _make_problem(chunk: SampledChunk, kind: str, text: str) -> Problem:
    return Problem(chunk.file.url, chunk.variable, chunk.number, kind, text)


def _compare_file(
    file: SourceFile,
    chunks: Sequence[tuple[SampledChunk, SampledChunk, Any]],
    sources: _OpenSources,
    result: ComparisonResult,
) -> None:
    """Compare chunks of one file with its native readers, or with their originals."""
    try:
        pairs = pair_rewritten(file, [chunk for chunk, _, _ in chunks])
    except COMPARE_ERRORS as error:
        text = f"decoded, but not compared: its original cannot be read ({_describe_error(error)})"
        result.problems += (_make_problem(chunk, NOT_COMPARED, text) for chunk, _, _ in chunks)
        return
    if pairs is not None:
        _compare_pairs(pairs, result)
        return
    source = REPOSITORY_REASON if is_icechunk_chunk(file) else sources.of(file)
    if isinstance(source, str):
        text = f"decoded, but not compared: {source}"
        result.problems += (_make_problem(chunk, NOT_COMPARED, text) for chunk, _, _ in chunks)
        return
    ranges = [(part.offset, part.length) for _, part, _ in chunks]
    locations = source.scanned.locate_ranges(file.url, ranges)
    for chunk, part, numbers in chunks:
        location = locations.get((part.offset, part.length))
        if location is None:
            result.problems.append(_make_problem(chunk, *source.describe_absence(part)))
            continue
        kind, text = source.compare(chunk, location, numbers)
        if kind:
            result.problems.append(_make_problem(chunk, kind, text))
        else:
            result.equal[text] += 1


def _compare_pairs(
    pairs: Sequence[tuple[SampledChunk, Array, Array]], result: ComparisonResult
) -> None:
    """Compare rewritten chunks with the values from which they were made."""
    for chunk, ours, theirs in pairs:
        if text := find_difference(ours, theirs):
            result.problems.append(_make_problem(chunk, "differs", f"its original: {text}"))
        else:
            result.equal["the originals"] += 1


# ---------------------------------------------------------------------- one file


class _OpenSources:
    """The open files; the least recently used are closed first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _OpenSource | str] = OrderedDict()

    def __enter__(self) -> _OpenSources:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._close_oldest()

    def of(self, file: SourceFile) -> _OpenSource | str:
        """Return the opened file or its Zarr store, or the reason why it cannot be compared."""
        url = next((url for url in self._open if f"{file.url}/".startswith(f"{url}/")), None)
        if url is not None:
            self._open.move_to_end(url)
            return self._open[url]
        try:
            scanned = scan_source(file)
            opened: _OpenSource | str = _OpenSource(scanned)
            url = scanned.source.url if scanned.parser.markers else file.url
        except COMPARE_ERRORS as error:
            opened, url = f"its structure cannot be read anew ({_describe_error(error)})", file.url
        self._open[url] = opened
        if len(self._open) > MAX_OPEN_SOURCES:
            self._close_oldest()
        return opened

    def _close_oldest(self) -> None:
        _, source = self._open.popitem(last=False)
        if not isinstance(source, str):
            source.closing.close()


class _OpenSource:
    """A file that was scanned again, with its native readers."""

    def __init__(self, scanned: ScannedSource) -> None:
        self.scanned = scanned
        self.closing = ExitStack()
        self._opened: dict[str, ReadNative | str] = {}

    def describe_absence(self, part: SampledChunk) -> tuple[str, str]:
        """Return the kind and text of the problem when the file has no chunk at a position."""
        end = part.offset + part.length
        text = f"bytes {part.offset} to {end} are neither a chunk of the file nor rows of one"
        problems = self.scanned.group.all_problems()
        if problems and self.scanned.parser.options:
            # sets do not record parser options, which may have selected this chunk
            why = next(iter(problems.values()))
            return NOT_COMPARED, f"decoded, but not compared: {text}, without parser_options: {why}"
        return "differs", f"{text}; scan it again"

    def compare(
        self, chunk: SampledChunk, location: ByteLocation, numbers: Array
    ) -> tuple[str, str]:
        """Return the kind and text of a problem, or "" and the name of the reader if equal."""
        try:
            visible = location.locate_values(numbers)
        except ValueError:
            return "differs", (
                f"{numbers.size} elements of {numbers.dtype} were decoded, the file has "
                f"{location.box} of {location.pipeline.dtype} there"
            )
        if visible is None:
            return NOT_COMPARED, "decoded, but not compared: the file shows none of its elements"
        why: list[str] = []
        for native in self.scanned.parser.natives:
            try:
                text = self._compare(native, chunk, location, *visible)
            except COMPARE_ERRORS as error:
                why.append(f"{native.package}: {_describe_error(error)}")
                continue
            return ("differs", f"{native.package}: {text}") if text else ("", native.name or "")
        reasons = "; ".join(why) or f"{self.scanned.parser.name} files have no known native reader"
        return NOT_COMPARED, f"decoded, but not compared: {reasons}"

    def _compare(
        self,
        native: NativeReader,
        chunk: SampledChunk,
        location: ByteLocation,
        region: Region,
        numbers: Array,
    ) -> str:
        """Return a description of the difference from the values of a reader, or "" if equal."""
        read = self._read_of(native)
        packing = chunk.pipeline.packing
        comparisons = [(False, numbers)]
        if packing is not None:
            comparisons.append((True, packing.decode(numbers.copy())))
        answers = 0
        for decoded, ours in comparisons:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                theirs = read(location.to_native_region(region, decoded=decoded))
            if theirs is None:
                continue
            answers += 1
            if not decoded and theirs.dtype == bool and ours.dtype.itemsize == 1:
                # some libraries return booleans for values that are stored as integers
                theirs = theirs.view(ours.dtype)
            if text := find_difference(ours, theirs):
                kind = "decoded" if decoded else "stored"
                return f"{kind} {location.variable}{_format_region(region)}: {text}"
        if not answers:
            raise NativeReadError("it does not give values in this form")
        return ""

    def _read_of(self, native: NativeReader) -> ReadNative:
        reader = self._opened.get(native.package)
        if reader is None:
            reader = self._opened[native.package] = self._open(native)
        if isinstance(reader, str):
            raise NativeReadError(reader)
        return reader

    def _open(self, native: NativeReader) -> ReadNative | str:
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
    first = (format(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:300]


def _format_region(region: Region) -> str:
    return f"[{', '.join(f'{part.start}:{part.stop}' for part in region)}]"


# ---------------------------------------------------------------------- bit for bit


def find_difference(ours: Array, theirs: Array) -> str:
    """Describe how two arrays differ in shape, dtype or any bit; "" if they are equal.

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
    unlike = _find_unlike(ours, theirs)
    if not unlike.any():
        return ""
    first = tuple(int(i) for i in np.argwhere(unlike)[0])
    return (
        f"{np.count_nonzero(unlike)} of {unlike.size} elements differ, the first at {first}: "
        f"{ours[first]} here, {theirs[first]} there"
    )


def _find_unlike(ours: Array, theirs: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the elements that differ in any bit; padding between fields is ignored."""
    if ours.dtype.names:
        fields = [_find_unlike(ours[name], theirs[name]) for name in ours.dtype.names]
        wide = [f.reshape(*ours.shape, -1).any(-1) for f in fields]
        return np.asarray(np.logical_or.reduce(wide))
    if ours.dtype.hasobject or not ours.nbytes:
        return np.asarray(ours != theirs)
    bits = [
        np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(*a.shape, -1)
        for a in (ours, theirs)
    ]
    return np.asarray((bits[0] != bits[1]).any(-1))
