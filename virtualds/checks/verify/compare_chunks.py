"""Comparing decoded chunks with what native readers give for the same place.

The chunk cache is not used: every sampled chunk is read again. HDF5 and netCDF allow one thread at
a time, so native readers run in the calling thread, while other threads fetch and decode the next
chunks.
"""

from __future__ import annotations

import lzma
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from virtualds.arrays.parser import CannotError, NativeReader, ReadNative
from virtualds.checks.verify.findings import NOT_COMPARED, Problem
from virtualds.checks.verify.locate_bytes import ByteLocation, Region, ScannedSource, scan_source
from virtualds.checks.verify.native_readers import open_native
from virtualds.checks.verify.rewritten_chunks import OF_REPOSITORY, is_of_repository, pair_rewritten
from virtualds.checks.verify.sampled_chunks import (
    SampledChunk,
    cut_chunk,
    is_undecodable,
    map_in_order,
    read_stored_numbers,
)
from virtualds.datasets.registry import PARSER_ERRORS
from virtualds.errors import FormatError, VirtualdsError
from virtualds.options import get_options
from virtualds.progress import Advance
from virtualds.reading.threads import cores
from virtualds.source_file import SourceFile
from virtualds.urls import scheme_of

Array = npt.NDArray[Any]

SORTED_CHUNKS = 2**17
"""Chunks that are sorted by file at a time, so that each file is opened once."""
KEPT_SOURCES = 4
"""Files that are kept open."""
COMPARE_ERRORS = (
    *(CannotError, VirtualdsError, *PARSER_ERRORS),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError, struct.error),
    *(EOFError, ElementTree.ParseError),
)
"""Errors that a native reader may raise, or a file that has changed meanwhile."""


@dataclass
class Comparison:
    """The result; ``equal`` counts the equal chunks of each reader."""

    sampled: int = 0
    equal: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)


def compare_chunks(
    chunks: Iterable[SampledChunk], sound: set[SourceFile], advance: Advance
) -> Comparison:
    """Compare chunks of sound files; chunks of other files are skipped."""
    found = Comparison()
    waiting = (chunk for chunk in chunks if chunk.file in sound)
    with ExitStack() as closing:
        sources = closing.enter_context(_Sources())
        while some := list(islice(waiting, SORTED_CHUNKS)):
            # options cannot be ordered
            some.sort(key=lambda chunk: (chunk.file.url, chunk.offset))
            _compare_some(some, sources, found, advance)
    return found


def _compare_some(
    chunks: Sequence[SampledChunk], sources: _Sources, found: Comparison, advance: Advance
) -> None:
    for file, members in groupby(_read_pairs(chunks), key=lambda item: item[0].file):
        for some in _batch_reads(members):
            found.sampled += len(some)
            good = [(chunk, part, numbers) for chunk, part, numbers in some
                    if not _is_refused(chunk, numbers, found)]  # fmt: skip
            if good:
                _compare_file(file, good, sources, found)
            advance(len(some))


Read = tuple[SampledChunk, SampledChunk, Array | VirtualdsError]
"""A chunk, the examined part of it, and the numbers of that part."""


def _batch_reads(members: Iterator[Read]) -> Iterator[list[Read]]:
    while some := list(islice(members, 16)):
        yield some


def _read_pairs(chunks: Sequence[SampledChunk]) -> Iterator[Read]:
    far = any(scheme_of(chunk.file.url) != "file" for chunk in chunks)
    pairs = ((chunk, cut_chunk(chunk)) for chunk in chunks)
    at_once = min(16, get_options().max_requests) if far else cores()
    for (chunk, part), numbers in map_in_order(pairs, _read_numbers, at_once):
        yield chunk, part, numbers


def _read_numbers(pair: tuple[SampledChunk, SampledChunk]) -> Array | VirtualdsError:
    try:
        return read_stored_numbers(*pair)
    except VirtualdsError as error:
        return error


def _is_refused(chunk: SampledChunk, numbers: Array | VirtualdsError, found: Comparison) -> bool:
    """Say whether a chunk cannot be read, and record the problem."""
    if not isinstance(numbers, VirtualdsError):
        return False
    kind = "undecodable" if is_undecodable(numbers) else "unreachable"
    if isinstance(numbers, FormatError):
        # the reference is refused before any read
        kind = "range"
    found.problems.append(_make_problem(chunk, kind, str(numbers)))
    return True


def _make_problem(chunk: SampledChunk, kind: str, text: str) -> Problem:
    return Problem(chunk.file.url, chunk.variable, chunk.number, kind, text)


def _compare_file(
    file: SourceFile,
    chunks: Sequence[tuple[SampledChunk, SampledChunk, Any]],
    sources: _Sources,
    found: Comparison,
) -> None:
    """Compare chunks of one file with what its native readers give, or with their originals."""
    try:
        pairs = pair_rewritten(file, [chunk for chunk, _, _ in chunks])
    except COMPARE_ERRORS as error:
        text = f"decoded, but not compared: its original cannot be read ({_describe_error(error)})"
        found.problems += (_make_problem(chunk, NOT_COMPARED, text) for chunk, _, _ in chunks)
        return
    if pairs is not None:
        _compare_pairs(pairs, found)
        return
    source = OF_REPOSITORY if is_of_repository(file) else sources.of(file)
    if isinstance(source, str):
        text = f"decoded, but not compared: {source}"
        found.problems += (_make_problem(chunk, NOT_COMPARED, text) for chunk, _, _ in chunks)
        return
    wanted = [(part.offset, part.length) for _, part, _ in chunks]
    places = source.scanned.locate_ranges(file.url, wanted)
    for chunk, part, numbers in chunks:
        place = places.get((part.offset, part.length))
        if place is None:
            found.problems.append(_make_problem(chunk, *source.judge_absence(part)))
            continue
        kind, text = source.judge(chunk, place, numbers)
        if kind:
            found.problems.append(_make_problem(chunk, kind, text))
        else:
            found.equal[text] += 1


def _compare_pairs(pairs: Sequence[tuple[SampledChunk, Array, Array]], found: Comparison) -> None:
    """Compare rewritten chunks with the values that they were made of."""
    for chunk, ours, theirs in pairs:
        if text := find_difference(ours, theirs):
            found.problems.append(_make_problem(chunk, "differs", f"its original: {text}"))
        else:
            found.equal["the originals"] += 1


# ---------------------------------------------------------------------- one file


class _Sources:
    """The open files; the least recently used are closed first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Source | str] = OrderedDict()

    def __enter__(self) -> _Sources:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._drop()

    def of(self, file: SourceFile) -> _Source | str:
        """Return the opened file, or its Zarr store; or why it cannot be compared."""
        url = next((url for url in self._open if f"{file.url}/".startswith(f"{url}/")), None)
        if url is not None:
            self._open.move_to_end(url)
            return self._open[url]
        try:
            scanned = scan_source(file)
            found: _Source | str = _Source(scanned)
            url = scanned.source.url if scanned.parser.markers else file.url
        except COMPARE_ERRORS as error:
            found, url = f"its structure cannot be read anew ({_describe_error(error)})", file.url
        self._open[url] = found
        if len(self._open) > KEPT_SOURCES:
            self._drop()
        return found

    def _drop(self) -> None:
        _, source = self._open.popitem(last=False)
        if not isinstance(source, str):
            source.closing.close()


class _Source:
    """A file that was scanned again, with its native readers."""

    def __init__(self, scanned: ScannedSource) -> None:
        self.scanned = scanned
        self.closing = ExitStack()
        self._opened: dict[str, ReadNative | str] = {}

    def judge_absence(self, part: SampledChunk) -> tuple[str, str]:
        """Return the kind and text of the problem that no chunk of the file lies at a place."""
        end = part.offset + part.length
        text = f"bytes {part.offset} to {end} are neither a chunk of the file nor rows of one"
        problems = self.scanned.group.all_problems()
        if problems and self.scanned.parser.options:
            # a set does not note them, and they may have chosen this chunk
            why = next(iter(problems.values()))
            return NOT_COMPARED, f"decoded, but not compared: {text}, without parser_options: {why}"
        return "differs", f"{text}; scan it again"

    def judge(self, chunk: SampledChunk, place: ByteLocation, numbers: Array) -> tuple[str, str]:
        """Return the kind of problem and its text; or no kind, and the name of the equal reader."""
        try:
            shown = place.locate_values(numbers)
        except ValueError:
            return "differs", (
                f"{numbers.size} elements of {numbers.dtype} were decoded, the file has "
                f"{place.box} of {place.pipeline.dtype} there"
            )
        if shown is None:
            return NOT_COMPARED, "decoded, but not compared: the file shows none of its elements"
        why: list[str] = []
        for native in self.scanned.parser.natives:
            try:
                text = self._compare(native, chunk, place, *shown)
            except COMPARE_ERRORS as error:
                why.append(f"{native.package}: {_describe_error(error)}")
                continue
            return ("differs", f"{native.package}: {text}") if text else ("", native.name or "")
        known = "; ".join(why) or f"{self.scanned.parser.name} files have no known native reader"
        return NOT_COMPARED, f"decoded, but not compared: {known}"

    def _compare(
        self,
        native: NativeReader,
        chunk: SampledChunk,
        place: ByteLocation,
        region: Region,
        numbers: Array,
    ) -> str:
        """Return how numbers and values differ from those of a reader, "" if they are equal."""
        read = self._read_of(native)
        packing = chunk.pipeline.packing
        asked = [(False, numbers)]
        if packing is not None:
            asked.append((True, packing.decode(numbers.copy())))
        answers = 0
        for decoded, ours in asked:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                theirs = read(place.to_native_region(region, decoded=decoded))
            if theirs is None:
                continue
            answers += 1
            if not decoded and theirs.dtype == bool and ours.dtype.itemsize == 1:
                # some libraries read booleans that are stored as integers
                theirs = theirs.view(ours.dtype)
            if text := find_difference(ours, theirs):
                what = "decoded" if decoded else "stored"
                return f"{what} {place.variable}{_format_region(region)}: {text}"
        if not answers:
            raise CannotError("it does not give values in this form")
        return ""

    def _read_of(self, native: NativeReader) -> ReadNative:
        found = self._opened.get(native.package)
        if found is None:
            found = self._opened[native.package] = self._open(native)
        if isinstance(found, str):
            raise CannotError(found)
        return found

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
    if isinstance(error, CannotError):
        return str(error)
    first = (format(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:300]


def _format_region(region: Region) -> str:
    return f"[{', '.join(f'{part.start}:{part.stop}' for part in region)}]"


# ---------------------------------------------------------------------- bit for bit


def find_difference(ours: Array, theirs: Array) -> str:
    """Return how two arrays differ in shape, dtype or any bit, "" if they are equal.

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
    """Return which elements differ in any bit; padding between fields is ignored."""
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
