"""Facts about the structure of the files of an archive, and where they change.

Files of an archive are similar. Facts that all files of a batch share are collected once; others
are columns with a text for each file. A fact that never changes takes a single entry for all files.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.parser import ABSENT
from virtualds.checks.diagnose.report import (
    CoordinateSpan,
    SpannedFile,
    describe_error,
    find_span,
    find_spans,
)
from virtualds.chunks.fragment import Fragment
from virtualds.codecs.pipeline import FILL_ATTRIBUTES, SCALE_ATTRIBUTES
from virtualds.combine.batch_job import (
    DECODING_ATTRIBUTES,
    OPEN_ERRORS,
    BatchJob,
    PrepareStep,
    split_outcome,
)
from virtualds.combine.file_batch import FileBatch
from virtualds.combine.report import OutcomeCounter
from virtualds.combine.workers import MAX_FILES_TOGETHER, LeftOut, OpenOutcome, Workers
from virtualds.datasets.decoding import MisfitError, build_index, decode_together
from virtualds.datasets.structure import (
    CALENDAR,
    CHUNKS,
    DTYPE,
    PRESENCE,
    SIZE,
    UNITS,
    VALUES,
    Fact,
    digest_values,
    find_dataset_facts,
    format_lengths,
    name_attribute,
    shorten,
)
from virtualds.errors import without_secrets
from virtualds.progress import ProgressOption, report_progress

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Column = str | Sequence[str | None]
"""The texts of a fact: one for all files, or one for each file, with None for absent ones."""
FACT_ENCODINGS = frozenset(
    {
        "dtype",
        "units",
        "calendar",
        "grid_mapping",
        "unlimited_dims",
        *SCALE_ATTRIBUTES,
        *FILL_ATTRIBUTES,
    }
)
"""Keys of an encoding that become facts."""


class FileFacts(NamedTuple):
    """The facts of some files.

    Parameters
    ----------
    facts : mapping of Fact to str, or to a sequence of str or None
        The texts of each fact: one for all files, or one for each.
    spans : mapping of str to sequence of CoordinateSpan or None
        The span of each dimension coordinate in each file.
    unlimited : frozenset of str
        Dimensions that are unlimited in all of these files.
    """

    facts: Mapping[Fact, Column]
    spans: Mapping[str, Sequence[CoordinateSpan | None]]
    unlimited: frozenset[str]

    @classmethod
    def of(cls, dataset: xr.Dataset, unlimited: Any = None) -> FileFacts:
        """Return the facts of one file. ``unlimited`` overrides its unlimited dimensions."""
        dims = dataset.encoding.get("unlimited_dims", ()) if unlimited is None else unlimited
        spans = {name: (span,) for name, span in find_spans(dataset).items()}
        return cls(
            find_dataset_facts(dataset), spans, frozenset(map(str, dims)) & set(dataset.dims)
        )


ExaminedFiles = tuple[Sequence[int], FileFacts]
"""The indexes of some files, and their facts."""


def find_batch_facts(batch: FileBatch) -> FileFacts:
    """Return the facts of files with the same structure.

    Facts that all files share are taken from the first file.

    Raises
    ------
    MisfitError, VirtualdsError, ValueError, TypeError
        Values of a file cannot be decoded or ordered, or the files must be examined one by one.
    """
    if len(batch) > 1 and not _is_uniform(batch):
        raise MisfitError
    first = FileFacts.of(batch.cut(0).to_dataset())
    if len(batch) == 1:
        return first
    facts, spans = dict(first.facts), {n: [*span] * len(batch) for n, span in first.spans.items()}
    if Fact(str(batch.dim), SIZE) in facts:
        facts[Fact(str(batch.dim), SIZE)] = [*map(str, batch.lengths)]
    for name, part in batch.plan.parts.items():
        if (units := Fact(f"{part.name}", UNITS)) in facts and part.dated_by is not None:
            facts[units] = [str(dated_part.units) for dated_part in batch.list_parts(name)]
        if not part.is_loaded:
            facts |= _find_chunk_lengths(batch, name)
        elif (values := _decode_values(batch, name)) is not None:
            facts[Fact(f"{part.name}", VALUES)] = [digest_values(array) for array in values]
            if part.decoded[0] == (part.name,):
                spans[part.name] = [find_span(array) for array in values]
    return first._replace(facts=_add_attributes(batch, facts), spans=spans)


def _is_uniform(batch: FileBatch) -> bool:
    """Return whether files differ only in properties that do not affect decoding."""
    arrays = [*(v.data for v in batch.group.variables.values()), *batch.stacked.values()]
    virtual = [array for array in arrays if isinstance(array, ManifestArray)]
    return (
        batch.is_whole
        and 0 not in batch.lengths
        and all(len(array.pipelines) == 1 and not array.has_gaps for array in virtual)
        and not any(
            owner and key in DECODING_ATTRIBUTES and not _is_date(batch, owner, key)
            for owner, key in batch.attributes
        )
        and FACT_ENCODINGS.isdisjoint(key for _, key in batch.encodings)
    )


def _is_date(batch: FileBatch, owner: str, key: str) -> bool:
    """Return whether an attribute is the reference date of a variable."""
    return key == UNITS and batch.plan.parts[owner].dated_by == owner


def _decode_values(batch: FileBatch, name: str) -> list[Array] | None:
    """Return the decoded values of a loaded variable in each file, or None if they are equal."""
    part, dim, parts = batch.plan.parts[name], batch.dim, batch.list_parts(name)

    def convert_index(values: Array) -> Array:
        variable = xr.Variable(part.decoded[0], values)
        return build_index(part.name, variable)[0].values if part.is_index else values

    if dim in part.stored[0]:
        values = decode_together(parts, batch.list_values(name), dim)
        axis = part.decoded[0].index(dim)
        return np.split(convert_index(values), list(accumulate(batch.lengths))[:-1], axis)
    if all(file_part is parts[0] for file_part in parts):
        if name not in batch.stacked:
            return None
        stacked = np.asarray(batch.stacked[name])
        # decode the files of a batch together, along an additional first axis
        (dims, dtype), (decoded_dims, decoded_dtype) = part.stored, part.decoded
        stacked_part = replace(
            part, stored=(("", *dims), dtype), decoded=(("", *decoded_dims), decoded_dtype)
        )
        if not part.is_index and stacked_part.is_elementwise(stacked):
            return list(stacked_part.decode_values(stacked))
    pairs = zip(parts, batch.list_values(name), strict=True)
    return [convert_index(file_part.decode_values(values)) for file_part, values in pairs]


def _find_chunk_lengths(batch: FileBatch, name: str) -> dict[Fact, Column]:
    """Return the lengths of the stored chunks of a virtual variable, by dimension.

    Raises
    ------
    MisfitError
        They have to be found file by file.
    """
    part, lengths = batch.plan.parts[name], batch.lengths
    dims: tuple[Any, ...] = part.decoded[0]
    data: Any = batch.group.variables[name].data
    if batch.dim not in dims:
        if name not in batch.stacked:
            return {}
        # the files are stacked along the first axis
        data, dims, lengths = batch.stacked[name], (None, *dims), (1,) * len(batch)
    axis = dims.index(batch.dim if batch.dim in dims else None)
    fragments = data.fragments
    if any(a.stop[axis] > b.start[axis] for a, b in pairwise(fragments)):
        raise MisfitError
    file_stops = np.cumsum(lengths)
    columns: dict[Fact, Column] = {}
    for number, dim in enumerate(dims):
        chunk_lengths = np.concatenate([f.axes[number].slabs().encoded for f in fragments])
        if (chunk_lengths == chunk_lengths[0]).all():
            column: Column = format_lengths(chunk_lengths[:1].tolist())
        else:
            # the chunks of each file, by their positions along the axis of the files
            starts, stops = np.concatenate(
                [_find_chunk_bounds(f, number, axis) for f in fragments], axis=1
            )
            first = np.searchsorted(stops, file_stops - lengths, "right").tolist()
            last = np.searchsorted(starts, file_stops, "left").tolist()
            column = [
                format_lengths(chunk_lengths[a:b].tolist())
                for a, b in zip(first, last, strict=True)
            ]
        if dim is not None:
            columns[Fact(f"{part.name}", f"{CHUNKS}{dim}")] = column
    return columns


def _find_chunk_bounds(fragment: Fragment, axis: int, other_axis: int) -> Array:
    """Return starts and stops along ``other_axis`` for each chunk along ``axis``."""
    if axis == other_axis:
        edges = fragment.edges(axis)
        return np.stack([edges[:-1], edges[1:]])
    bounds = [[fragment.start[other_axis]], [fragment.stop[other_axis]]]
    return np.repeat(bounds, fragment.axes[axis].nchunks, axis=1)


def _add_attributes(batch: FileBatch, facts: dict[Fact, Column]) -> dict[Fact, Column]:
    """Return facts with attributes that differ, inserted after those of the same variable."""
    names = {name: f"{part.name}" for name, part in batch.plan.parts.items()} | {"": ""}
    new: dict[str, dict[Fact, Column]] = {}
    for (owner, key), values in batch.attributes.items():
        if owner and _is_date(batch, owner, key):
            continue
        fact = name_attribute(names[owner], key)
        column = [None if value is ABSENT else shorten(value) for value in values]
        (facts if fact in facts else new.setdefault(fact.subject, {}))[fact] = column
    # attributes are the last facts of a variable
    last = {fact.subject: fact for fact in facts}
    merged: dict[Fact, Column] = {}
    for fact, text in facts.items():
        merged[fact] = text
        if new and last[fact.subject] == fact:
            merged |= new.pop(fact.subject, {})
    return merged | new.pop("", {})


# ---------------------------------------------------------------------- runs

MAX_VALUES = 32
"""Maximum number of texts of a fact that form differences and eras of their own."""
TIME_DTYPES = ("datetime64", "timedelta64")
"""Prefixes of numpy's dtypes of times. cftime objects have a calendar instead."""
FactRun = tuple[int, str | None]
"""The first file of a run of files with the same text, and the text, or None if it is absent."""


_ABSENT_CODE = -1


@dataclass(frozen=True)
class FactRuns:
    """The runs of each fact through the readable files in order.

    Parameters
    ----------
    runs : mapping of Fact to list of FactRun
        The runs of each fact, in the order in which files first have the facts.
    count : int
        Number of files.
    lacking : mapping of str to bool array
        Masks of the files that lack a variable, by variable.
    """

    runs: Mapping[Fact, list[FactRun]]
    count: int
    lacking: Mapping[str, npt.NDArray[np.bool_]]

    @classmethod
    def of(cls, parts: Iterable[tuple[Sequence[int], Mapping[Fact, Column]]]) -> FactRuns:
        """Return the runs of facts, from the indexes of some files and their facts each."""
        code_of: dict[str | None, int] = {None: _ABSENT_CODE}
        columns: dict[Fact, list[tuple[Ints, Any]]] = {}
        # the first file with each fact, and the position of the fact in this file
        order: dict[Fact, tuple[int, int]] = {}
        count = 0
        for numbers, facts in parts:
            indexes, count = np.array(numbers, np.int64), count + len(numbers)
            for position, (fact, column_texts) in enumerate(facts.items()):
                texts = (column_texts,) if isinstance(column_texts, str) else column_texts
                codes = np.array([code_of.setdefault(text, len(code_of) - 1) for text in texts])
                is_present = codes != _ABSENT_CODE
                first = int((indexes if is_present.all() else indexes[is_present]).min())
                order[fact] = min(order.get(fact, (first, position)), (first, position))
                columns.setdefault(fact, []).append((indexes, codes))
        distinct = [text for text in code_of if text is not None]
        lacking: dict[str, Any] = {}
        runs = {}
        # other facts depend on the files that lack their variable
        for fact in sorted(columns, key=lambda fact: fact.aspect != PRESENCE):
            column = np.full(count, _ABSENT_CODE)
            for indexes, codes in columns.pop(fact):
                column[indexes] = codes
            is_present = column != _ABSENT_CODE
            if fact.aspect == PRESENCE:
                lacking |= {} if is_present.all() else {fact.subject: ~is_present}
            else:
                # a run continues through files that lack the variable or dimension
                is_lacking = fact.aspect == SIZE or lacking.get(fact.subject, False)
                is_known = is_present | ~np.full(count, is_lacking)
                last = np.maximum.accumulate(np.where(is_known, np.arange(count), -1))
                column = column[np.where(last < 0, is_known.argmax(), last)]
            starts = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist()]
            runs[fact] = [
                (n, None if column[n] == _ABSENT_CODE else distinct[column[n]]) for n in starts
            ]
        return cls(
            {fact: runs[fact] for fact in sorted(runs, key=order.__getitem__)}, count, lacking
        )

    @cached_property
    def changing(self) -> dict[Fact, list[FactRun]]:
        """The runs of facts that change."""
        return {fact: runs for fact, runs in self.runs.items() if len(runs) > 1}

    def count_texts(self, fact: Fact) -> Counter[str | None]:
        """Return the number of files with each text of a fact, in the order of the files."""
        is_lacking = np.zeros(self.count, bool)
        if fact.aspect not in (PRESENCE, SIZE):
            # runs continue through files that lack the variable
            is_lacking = self.lacking.get(fact.subject, is_lacking)
        counts: Counter[str | None] = Counter()
        for (start, text), (stop, _) in pairwise([*self.runs[fact], (self.count, None)]):
            counts[text] += stop - start - int(is_lacking[start:stop].sum())
        return counts

    def find_text(self, fact: Fact, number: int) -> str | None:
        """Return the text of a fact in a file, or None if it is absent."""
        return next((t for start, t in reversed(self.runs.get(fact, ())) if start <= number), None)

    def find_first(self, fact: Fact) -> str | None:
        """Return the first text of a fact."""
        return next((text for _, text in self.runs[fact] if text is not None), None)

    def is_time(self, subject: str) -> bool:
        """Return whether a variable contains times in at least one file."""
        dtypes = [text or "" for _, text in self.runs.get(Fact(subject, DTYPE), ())]
        has_time_dtype = any(dtype.startswith(TIME_DTYPES) for dtype in dtypes)
        return has_time_dtype or Fact(subject, CALENDAR) in self.runs

    def index_values(self, fact: Fact) -> Ints:
        """Return the index of the text of a fact for each file.

        Chunk lengths have the same index if they divide dimensions into the same number of equal
        chunks: months in one chunk do not differ if the months have different lengths.
        """
        texts, column = self._number_texts(fact)
        if not fact.aspect.startswith(CHUNKS):
            return column
        sizes, size_column = self._number_texts(Fact(fact.aspect.removeprefix(CHUNKS), SIZE))
        indexes, index_by_count = column.copy(), dict[int, int]()
        for number, text in enumerate(texts):
            mask = column == number
            counts = {_count_chunks(text, sizes[n]) for n in set(size_column[mask].tolist())}
            if len(counts) == 1 and (count := counts.pop()):
                indexes[mask] = index_by_count.setdefault(count, number)
        numbers: Ints = pd.factorize(indexes)[0]
        return numbers

    def _number_texts(self, fact: Fact) -> tuple[list[str | None], Ints]:
        """Return the distinct texts of a fact, and the index of the text for each file."""
        texts: dict[str | None, int] = {}
        numbers = [texts.setdefault(text, len(texts)) for _, text in self.runs[fact]]
        starts = [start for start, _ in self.runs[fact]]
        return list(texts), np.repeat(numbers, np.diff([*starts, self.count]))

    def number_eras(self, facts: Sequence[Fact]) -> Ints:
        """Return the number of the era of each file. All ``facts`` are constant in an era."""
        key = np.zeros(self.count, np.int64)
        for fact in facts:
            column = self.index_values(fact)
            key = pd.factorize(key * (int(column.max(initial=0)) + 1) + column)[0]
        return key


def _count_chunks(chunk: str | None, size: str | None) -> int:
    """Return the number of chunks along a dimension, or 0 if they are not of equal length.

    Lengths are equal if the chunk length is the size divided by the count, rounded up.

    >>> [_count_chunks(*pair) for pair in (("31", "31"), ("14", "28"), ("5", "31"), ("31", "28"))]
    [1, 2, 7, 0]
    """
    if not (chunk and size and chunk.isdecimal() and size.isdecimal() and int(chunk)):
        return 0
    count = -(-int(size) // int(chunk))
    return count if count and -(-int(size) // count) == int(chunk) else 0


# ---------------------------------------------------------------------- all files


class UnreadableFile(NamedTuple):
    """A file that cannot be read, and the reason.

    ``is_fault`` is whether ``on_error`` of `open_virtual_mfdataset` applies: the file is at fault,
    not a step of its preparation. ``before`` is the number of readable files before it.
    """

    name: str
    reason: str
    is_fault: bool
    before: int


@dataclass(frozen=True)
class FileSurvey:
    """The facts of all files.

    Parameters
    ----------
    files : list of str
        The readable files in order.
    facts : FactRuns
        Their facts.
    spans : dict of str to list
        The indexes of files and their spans, by coordinate.
    unlimited : frozenset of str
        Dimensions that are unlimited in all files.
    unreadable : list of UnreadableFile
    is_whole : bool
        Whether all files were examined, rather than a sample.
    """

    files: list[str]
    facts: FactRuns
    spans: dict[str, list[SpannedFile]]
    unlimited: frozenset[str]
    unreadable: list[UnreadableFile]
    is_whole: bool

    def group_unreadable(self) -> list[list[UnreadableFile]]:
        """Return unreadable files grouped by the type of their error."""
        kinds: dict[tuple[str, bool], list[UnreadableFile]] = {}
        for file in self.unreadable:
            kinds.setdefault((file.reason.partition(":")[0], file.is_fault), []).append(file)
        return list(kinds.values())


@dataclass(frozen=True)
class Examination:
    """A step that prepares a file and returns its facts.

    Parameters
    ----------
    steps : tuple of callables
        The steps that prepare the file.
    """

    steps: tuple[PrepareStep[xr.Dataset], ...] = ()

    def __call__(self, file: Any, dataset: xr.Dataset) -> Any:
        """Return the facts of a file."""
        unlimited = dataset.encoding.get("unlimited_dims", ())
        for step in self.steps:
            dataset = step(file, dataset)
        return FileFacts.of(dataset, unlimited)


def survey_files(
    files: Sequence[Any], job: BatchJob, workers: Workers, progress: ProgressOption, is_whole: bool
) -> FileSurvey:
    """Open files and collect their facts.

    If the job has steps, the last one must be an `Examination`. ``is_whole`` is whether ``files``
    are all files, rather than a sample.
    """
    parts, single_files = list[ExaminedFiles](), list[ExaminedFiles]()
    errors: dict[int, tuple[Exception, bool]] = {}
    items = list(enumerate(files))
    with report_progress(progress, "opening", len(items)) as report:
        counter = OutcomeCounter(len(items), report)
        with closing(workers(job, items)) as outcomes:
            for opened in outcomes:
                for outcome in _examine(opened, files):
                    counter.add(outcome)
                    facts: Any = outcome.opened
                    if outcome.error is not None:
                        errors[outcome.number] = outcome.error, outcome.is_fault
                    elif len(outcome.numbers) == 1:
                        single_files.append((outcome.numbers, facts))
                    else:
                        parts.append((outcome.numbers, facts))
                if len(single_files) >= MAX_FILES_TOGETHER:
                    # merged facts take less memory
                    parts.append(_merge_facts(single_files))
                    single_files.clear()
        parts += [_merge_facts(single_files)] if single_files else []
        errors = dict(sorted(errors.items()))
        counter.finish((LeftOut.of(files[n], error) for n, (error, _) in errors.items()), files)
    names = [os.fspath(file) for file in files]
    readable = sorted(number for numbers, _ in parts for number in numbers)
    index_of = {number: index for index, number in enumerate(readable)}
    indexed = [([index_of[n] for n in numbers], file_facts) for numbers, file_facts in parts]
    indexed.sort(key=lambda item: min(item[0]))
    spans: dict[str, dict[int, CoordinateSpan]] = {}
    for indexes, file_facts in indexed:
        for name, file_spans in file_facts.spans.items():
            pairs = zip(indexes, file_spans, strict=True)
            spans.setdefault(name, {}).update((n, span) for n, span in pairs if span is not None)
    unlimited = [file_facts.unlimited for _, file_facts in indexed]
    return FileSurvey(
        [names[number] for number in readable],
        FactRuns.of((indexes, file_facts.facts) for indexes, file_facts in indexed),
        {name: sorted(span_by_file.items()) for name, span_by_file in spans.items()},
        frozenset[str]().union(*unlimited).intersection(*unlimited),
        [
            UnreadableFile(names[n], describe_error(error), is_fault, bisect_left(readable, n))
            for n, (error, is_fault) in errors.items()
        ],
        is_whole,
    )


def _merge_facts(parts: Sequence[ExaminedFiles]) -> ExaminedFiles:
    """Merge the facts of single files into columns."""
    parts, count = sorted(parts, key=lambda part: min(part[0])), len(parts)
    columns: dict[Fact, list[Any]] = {}
    spans: dict[str, list[CoordinateSpan | None]] = {}
    for index, (_, file_facts) in enumerate(parts):
        for fact, text in file_facts.facts.items():
            columns.setdefault(fact, [None] * count)[index] = text
        for name, [span] in file_facts.spans.items():
            spans.setdefault(name, [None] * count)[index] = span
    facts = {
        fact: column[0] if column.count(column[0]) == count else column
        for fact, column in columns.items()
    }
    unlimited = frozenset.intersection(*(file_facts.unlimited for _, file_facts in parts))
    return [number for [number], _ in parts], FileFacts(facts, spans, unlimited)


def _examine(outcome: OpenOutcome[Any], files: Sequence[Any]) -> Iterator[OpenOutcome[Any]]:
    """Yield the outcome of a batch with its facts, or one outcome per file if that fails."""
    opened: Any = outcome.opened
    if outcome.error is not None or isinstance(opened, FileFacts):
        yield outcome
        return
    try:
        is_batch = isinstance(opened, FileBatch)
        facts = find_batch_facts(opened) if is_batch else FileFacts.of(opened)
        yield replace(outcome, opened=facts)
    except (MisfitError, *OPEN_ERRORS) as error:
        if len(outcome.numbers) == 1:
            error.add_note(without_secrets(f"file {files[outcome.number]}"))
            yield OpenOutcome(outcome.numbers, error=error)
            return
        for file in split_outcome(outcome):
            yield from _examine(file, files)
