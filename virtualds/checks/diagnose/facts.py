"""The facts of the files of an archive, as columns, and the files at which each fact changes.

Files of one archive are similar: facts that the files of a batch share are collected once, and
others are columns. A fact that never changes takes one entry, whatever the number of files.
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
from virtualds.codecs.pipeline import FILL_ATTRIBUTES, SCALING
from virtualds.combine.batch_job import (
    DECODING_ATTRIBUTES,
    OPEN_ERRORS,
    BatchJob,
    PrepareStep,
    make_outcome,
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
"""The text of a fact: one for all files, or one for each; None if it is absent."""
DECIDING_ENCODING = frozenset(
    {"dtype", "units", "calendar", "grid_mapping", "unlimited_dims", *SCALING, *FILL_ATTRIBUTES}
)
"""The keys of an encoding that become facts."""


class FileFacts(NamedTuple):
    """The facts of some files.

    Parameters
    ----------
    facts : mapping of Fact to str, or to a sequence of str or None
        The text of each fact: one for all files, or one for each.
    spans : mapping of str to sequence of CoordinateSpan or None
        By dimension coordinate: its span in each file.
    unlimited : frozenset of str
        The dimensions that are unlimited in all of them.
    """

    facts: Mapping[Fact, Column]
    spans: Mapping[str, Sequence[CoordinateSpan | None]]
    unlimited: frozenset[str]

    @classmethod
    def of(cls, dataset: xr.Dataset, unlimited: Any = None) -> FileFacts:
        """Return the facts of one file; ``unlimited`` are its previously unlimited dimensions."""
        dims = dataset.encoding.get("unlimited_dims", ()) if unlimited is None else unlimited
        spans = {name: (span,) for name, span in find_spans(dataset).items()}
        return cls(
            find_dataset_facts(dataset), spans, frozenset(map(str, dims)) & set(dataset.dims)
        )


Examined = tuple[Sequence[int], FileFacts]
"""The indexes of some files, and their facts."""


def find_batch_facts(batch: FileBatch) -> FileFacts:
    """Return the facts of files of the same structure.

    The facts that all files share are those of the dataset of the first file.

    Raises
    ------
    MisfitError, VirtualdsError, ValueError, TypeError
        Values of a file cannot be decoded or ordered, or each file must be examined separately.
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
        if (units := Fact(f"{part.name}", UNITS)) in facts and part.dated is not None:
            facts[units] = [str(dated_part.units) for dated_part in batch.list_parts(name)]
        if not part.is_loaded:
            facts |= _find_chunk_lengths(batch, name)
        elif (values := _decode_values(batch, name)) is not None:
            facts[Fact(f"{part.name}", VALUES)] = [digest_values(array) for array in values]
            if part.decoded[0] == (part.name,):
                spans[part.name] = [find_span(array) for array in values]
    return first._replace(facts=_add_attributes(batch, facts), spans=spans)


def _is_uniform(batch: FileBatch) -> bool:
    """Return whether files differ only in columns that do not affect decoding."""
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
        and DECIDING_ENCODING.isdisjoint(key for _, key in batch.encodings)
    )


def _is_date(batch: FileBatch, owner: str, key: str) -> bool:
    """Return whether an attribute is the reference date of a variable."""
    return key == UNITS and batch.plan.parts[owner].dated == owner


def _decode_values(batch: FileBatch, name: str) -> list[Array] | None:
    """Return the decoded values of a loaded variable in each file, or None if they are equal."""
    part, dim, parts = batch.plan.parts[name], batch.dim, batch.list_parts(name)

    def show(values: Array) -> Array:
        variable = xr.Variable(part.decoded[0], values)
        return build_index(part.name, variable)[0].values if part.is_index else values

    if dim in part.stored[0]:
        values = decode_together(parts, batch.list_values(name), dim)
        axis = part.decoded[0].index(dim)
        return np.split(show(values), list(accumulate(batch.lengths))[:-1], axis)
    if all(own is parts[0] for own in parts):
        if name not in batch.stacked:
            return None
        stacked = np.asarray(batch.stacked[name])
        # decode the files of a batch together, along an additional first axis
        (dims, dtype), (shown, decoded) = part.stored, part.decoded
        stacked_part = replace(part, stored=(("", *dims), dtype), decoded=(("", *shown), decoded))
        if not part.is_index and stacked_part.is_elementwise(stacked):
            return list(stacked_part.decode_values(stacked))
    pairs = zip(parts, batch.list_values(name), strict=True)
    return [show(own.decode_values(values)) for own, values in pairs]


def _find_chunk_lengths(batch: FileBatch, name: str) -> dict[Fact, Column]:
    """Return the lengths of the stored chunks of a virtual variable, by dimension.

    Raises
    ------
    MisfitError
        They must be determined file by file.
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
    if any(one.stop[axis] > other.start[axis] for one, other in pairwise(fragments)):
        raise MisfitError
    stops = np.cumsum(lengths)
    lengths_by_fact: dict[Fact, Column] = {}
    for number, dim in enumerate(dims):
        rows = [f.axes[number].slabs().encoded for f in fragments]
        stored = np.concatenate(rows)
        if (stored == stored[0]).all():
            text: Column = format_lengths(stored[:1].tolist())
        else:
            # starts and stops of the chunks of all files
            begin, end = np.concatenate([_find_ends(f, axis, number) for f in fragments], axis=1)
            first = np.searchsorted(end, stops - lengths, "right").tolist()
            last = np.searchsorted(begin, stops, "left").tolist()
            text = [format_lengths(stored[a:b].tolist()) for a, b in zip(first, last, strict=True)]
        if dim is not None:
            lengths_by_fact[Fact(f"{part.name}", f"{CHUNKS}{dim}")] = text
    return lengths_by_fact


def _find_ends(fragment: Fragment, along: int, axis: int) -> Array:
    """Return the starts and ends along another axis of the chunks along one axis."""
    if axis == along:
        edges = fragment.edges(axis)
        return np.stack([edges[:-1], edges[1:]])
    ends = [[fragment.start[along]], [fragment.stop[along]]]
    return np.repeat(ends, fragment.axes[axis].nchunks, axis=1)


def _add_attributes(batch: FileBatch, facts: dict[Fact, Column]) -> dict[Fact, Column]:
    """Return facts with the differing attributes inserted after those of the same variable."""
    names = {name: f"{part.name}" for name, part in batch.plan.parts.items()} | {"": ""}
    new: dict[str, dict[Fact, Column]] = {}
    for (owner, key), values in batch.attributes.items():
        if owner and _is_date(batch, owner, key):
            continue
        fact = name_attribute(names[owner], key)
        column = [None if value is ABSENT else shorten(value) for value in values]
        (facts if fact in facts else new.setdefault(fact.subject, {}))[fact] = column
    # the last fact of a variable is one of its attributes, or comes right before them
    last = {fact.subject: fact for fact in facts}
    merged: dict[Fact, Column] = {}
    for fact, text in facts.items():
        merged[fact] = text
        if new and last[fact.subject] == fact:
            merged |= new.pop(fact.subject, {})
    return merged | new.pop("", {})


# ---------------------------------------------------------------------- runs

MAX_VALUES = 32
"""Maximum number of texts of a fact that each get their own difference and era."""
TIMES = ("datetime64", "timedelta64")
"""Prefixes of NumPy's time dtypes; cftime objects have a calendar instead."""
FactRun = tuple[int, str | None]
"""The first file of a run, and the text of the fact in the run, or None if it is absent."""


_NONE = -1
"""The index of the text for files that lack the fact."""


@dataclass(frozen=True)
class FactRuns:
    """The runs of every fact through the readable files, in order.

    Parameters
    ----------
    runs : mapping of Fact to list of FactRun
        The runs of each fact, in the order in which files first have the facts.
    count : int
        Number of files.
    lacking : mapping of str to bool array
        Mask of the files that lack a variable, for variables that not all files have.
    """

    runs: Mapping[Fact, list[FactRun]]
    count: int
    lacking: Mapping[str, npt.NDArray[np.bool_]]

    @classmethod
    def of(cls, parts: Iterable[tuple[Sequence[int], Mapping[Fact, Column]]]) -> FactRuns:
        """Return the runs of facts.

        Each of ``parts`` has the positions of some files in the order of all, and their facts.
        """
        numbers: dict[str | None, int] = {None: _NONE}
        columns: dict[Fact, list[tuple[Ints, Any]]] = {}
        first: dict[Fact, tuple[int, int]] = {}
        count = 0
        for file_numbers, facts in parts:
            positions, count = np.array(file_numbers, np.int64), count + len(file_numbers)
            for position, (fact, texts) in enumerate(facts.items()):
                listed = (texts,) if isinstance(texts, str) else texts
                codes = np.array([numbers.setdefault(text, len(numbers) - 1) for text in listed])
                present = codes != _NONE
                begin = int((positions if present.all() else positions[present]).min())
                first[fact] = min(first.get(fact, (begin, position)), (begin, position))
                columns.setdefault(fact, []).append((positions, codes))
        distinct = [text for text in numbers if text is not None]
        lacking: dict[str, Any] = {}
        runs = {}
        # whether a file has a variable must be known before the facts about it
        for fact in sorted(columns, key=lambda fact: fact.aspect != PRESENCE):
            column = np.full(count, _NONE)
            for positions, codes in columns.pop(fact):
                column[positions] = codes
            present = column != _NONE
            if fact.aspect == PRESENCE:
                lacking |= {} if present.all() else {fact.subject: ~present}
            else:
                # there are no facts about an absent variable or dimension
                lacked = fact.aspect == SIZE or lacking.get(fact.subject, False)
                stated = present | ~np.full(count, lacked)
                last = np.maximum.accumulate(np.where(stated, np.arange(count), -1))
                column = column[np.where(last < 0, stated.argmax(), last)]
            starts = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist()]
            runs[fact] = [(n, None if column[n] == _NONE else distinct[column[n]]) for n in starts]
        return cls(
            {fact: runs[fact] for fact in sorted(runs, key=first.__getitem__)}, count, lacking
        )

    @cached_property
    def changing(self) -> dict[Fact, list[FactRun]]:
        """The runs of the facts that change."""
        return {fact: runs for fact, runs in self.runs.items() if len(runs) > 1}

    def count_texts(self, fact: Fact) -> Counter[str | None]:
        """Count the files with each text of a fact, in the order of their first files."""
        none = np.zeros(self.count, bool)
        # the facts about a variable continue through files that lack it
        lacked = none if fact.aspect in (PRESENCE, SIZE) else self.lacking.get(fact.subject, none)
        counts: Counter[str | None] = Counter()
        for (start, text), (stop, _) in pairwise([*self.runs[fact], (self.count, None)]):
            counts[text] += stop - start - int(lacked[start:stop].sum())
        return counts

    def find_text(self, fact: Fact, number: int) -> str | None:
        """Return the text of a fact in one file, or None if it has none."""
        return next((t for start, t in reversed(self.runs.get(fact, ())) if start <= number), None)

    def find_first(self, fact: Fact) -> str | None:
        """Return the first text of a fact."""
        return next((text for _, text in self.runs[fact] if text is not None), None)

    def counts_time(self, subject: str) -> bool:
        """Return whether a variable contains times in at least one file."""
        texts = [text or "" for _, text in self.runs.get(Fact(subject, DTYPE), ())]
        return Fact(subject, CALENDAR) in self.runs or any(t.startswith(TIMES) for t in texts)

    def index_values(self, fact: Fact) -> Ints:
        """Return, for each file, the index of the text that a fact has there.

        For chunk lengths, files have the same index if chunks divide the dimension into equally
        many pieces, whatever its size: months stored as one chunk, or as two halves, do not differ.
        """
        texts, column = self._number_texts(fact)
        if not fact.aspect.startswith(CHUNKS):
            return column
        sizes, of_size = self._number_texts(Fact(fact.aspect.removeprefix(CHUNKS), SIZE))
        indexes, numbers = column.copy(), dict[int, int]()
        for number, text in enumerate(texts):
            same = column == number
            pieces = {_count_pieces(text, sizes[n]) for n in set(of_size[same].tolist())}
            if len(pieces) == 1 and (count := pieces.pop()):
                indexes[same] = numbers.setdefault(count, number)
        return _number_keys(indexes)

    def _number_texts(self, fact: Fact) -> tuple[list[str | None], Ints]:
        """Return the texts of a fact, and, for each file, the index of its text."""
        texts: dict[str | None, int] = {}
        numbers = [texts.setdefault(text, len(texts)) for _, text in self.runs[fact]]
        starts = [start for start, _ in self.runs[fact]]
        return list(texts), np.repeat(numbers, np.diff([*starts, self.count]))

    def number_eras(self, facts: Sequence[Fact]) -> Ints:
        """Return the era of every file; files of one era agree in all of ``facts``."""
        key = np.zeros(self.count, np.int64)
        for fact in facts:
            column = self.index_values(fact)
            key = _number_keys(key * (int(column.max(initial=0)) + 1) + column)
        return key


def _count_pieces(chunk: str | None, size: str | None) -> int:
    """Return the number of chunks along a dimension if they are as equal as possible, or 0.

    They are if the length of a chunk is the size divided by the number of chunks, rounded up.

    >>> [_count_pieces(*ends) for ends in (("31", "31"), ("14", "28"), ("5", "31"), ("31", "28"))]
    [1, 2, 7, 0]
    """
    if not (chunk and size and chunk.isdecimal() and size.isdecimal() and int(chunk)):
        return 0
    count = -(-int(size) // int(chunk))
    return count if count and -(-int(size) // count) == int(chunk) else 0


def _number_keys(keys: Ints) -> Ints:
    """Return consecutive numbers for keys, in order of first appearance."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.empty(first.size, np.int64)
    order[np.argsort(first)] = np.arange(first.size)
    return order[inverse]


# ---------------------------------------------------------------------- all files


class UnreadableFile(NamedTuple):
    """A file that cannot be read, the reason, and whether the file or a step is at fault.

    ``on_error`` of `open_virtual_mfdataset` applies to files that are at fault. ``before`` is how
    many readable files come before.
    """

    name: str
    reason: str
    is_fault: bool
    before: int


@dataclass(frozen=True)
class FileSurvey:
    """The facts of all files, reduced to their differences.

    Parameters
    ----------
    files : list of str
        The readable files, in order.
    facts : FactRuns
        Their facts.
    spans : dict of str to list
        By coordinate: the index of each file that has it, and its span.
    unlimited : frozenset of str
        The dimensions that are unlimited in all files.
    unreadable : list of UnreadableFile
    is_whole : bool
        Whether all files were examined, not a sample.
    """

    files: list[str]
    facts: FactRuns
    spans: dict[str, list[SpannedFile]]
    unlimited: frozenset[str]
    unreadable: list[UnreadableFile]
    is_whole: bool

    def group_unreadable(self) -> list[list[UnreadableFile]]:
        """Return unreadable files by the kind of their error."""
        kinds: dict[tuple[str, bool], list[UnreadableFile]] = {}
        for file in self.unreadable:
            kinds.setdefault((file.reason.partition(":")[0], file.is_fault), []).append(file)
        return list(kinds.values())


@dataclass(frozen=True)
class Examination:
    """The last step of opening a file: apply other steps, then collect the facts.

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

    If the job has steps, the last is an `Examination`. ``is_whole`` says whether these are all
    files, not a sample.
    """
    examined, alone = list[Examined](), list[Examined]()
    errors: dict[int, tuple[Exception, bool]] = {}
    items = list(enumerate(files))
    with report_progress(progress, "opening", len(items)) as send:
        count = OutcomeCounter(len(items), send)
        with closing(workers(job, items)) as outcomes:
            for opened in outcomes:
                for outcome in _examine(opened, files):
                    count.add(outcome)
                    facts: Any = outcome.opened
                    if outcome.error is not None:
                        errors[outcome.number] = outcome.error, outcome.is_fault
                    elif len(outcome.numbers) == 1:
                        alone.append((outcome.numbers, facts))
                    else:
                        examined.append((outcome.numbers, facts))
                if len(alone) >= MAX_FILES_TOGETHER:
                    # merged facts take less memory
                    examined.append(_join_facts(alone))
                    alone.clear()
        examined += [_join_facts(alone)] if alone else []
        errors = dict(sorted(errors.items()))
        count.finish((LeftOut.of(files[n], error) for n, (error, _) in errors.items()), files)
    names = [os.fspath(file) for file in files]
    readable = sorted(number for numbers, _ in examined for number in numbers)
    positions = {number: position for position, number in enumerate(readable)}
    located = [([positions[n] for n in numbers], file_facts) for numbers, file_facts in examined]
    located.sort(key=lambda item: min(item[0]))
    spans: dict[str, dict[int, CoordinateSpan]] = {}
    for file_numbers, file_facts in located:
        for name, file_span in file_facts.spans.items():
            pairs = zip(file_numbers, file_span, strict=True)
            spans.setdefault(name, {}).update((n, span) for n, span in pairs if span is not None)
    unlimited = [file_facts.unlimited for _, file_facts in located]
    return FileSurvey(
        [names[number] for number in readable],
        FactRuns.of((file_numbers, file_facts.facts) for file_numbers, file_facts in located),
        {name: sorted(file_span.items()) for name, file_span in spans.items()},
        frozenset[str]().union(*unlimited).intersection(*unlimited),
        [
            UnreadableFile(names[n], describe_error(error), is_fault, bisect_left(readable, n))
            for n, (error, is_fault) in errors.items()
        ],
        is_whole,
    )


def _join_facts(parts: Sequence[Examined]) -> Examined:
    """Merge the facts of files that were examined one by one into columns."""
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
    """Yield the outcome of files with their facts, or each on its own if one of them has none."""
    file_facts: Any = outcome.opened
    if outcome.error is not None or isinstance(file_facts, FileFacts):
        yield outcome
        return
    try:
        facts = (
            find_batch_facts(file_facts)
            if isinstance(file_facts, FileBatch)
            else FileFacts.of(file_facts)
        )
        yield replace(outcome, opened=facts)
    except (MisfitError, *OPEN_ERRORS) as error:
        if len(outcome.numbers) == 1:
            error.add_note(without_secrets(f"file {files[outcome.number]}"))
            yield OpenOutcome(outcome.numbers, error=error)
            return
        for file in file_facts.list_files():
            yield from _examine(make_outcome(file, is_cached=bool(outcome.cached)), files)
