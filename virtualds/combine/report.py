"""Report how files were opened: their number, read methods and schemas, and the progress.

A schema is the structure of a file without references, sizes and values: names, dimensions and
dtypes of variables, and their decoding. It is taken from the decoding plans of batches.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ALONE, LIBRARY, TOGETHER, ReadMethod
from virtualds.codecs.pipeline import (
    FILL_ATTRIBUTES,
    SCALE_ATTRIBUTES,
    format_attributes,
    format_codecs,
)
from virtualds.combine.file_batch import FileBatch
from virtualds.combine.workers import FileCount, LeftOut, add_counts
from virtualds.datasets.structure import CALENDAR, CODECS, DIMENSIONS, DTYPE, ROLE, STORED, UNITS
from virtualds.errors import format_count, format_names, public, without_secrets
from virtualds.pictures import (
    Block,
    Heading,
    Report,
    Section,
    Table,
)
from virtualds.pictures.html import (
    MISSING,
    NEXT,
    OK,
    Markup,
    Shade,
    Span,
    draw_legend,
    draw_strip,
    join,
)
from virtualds.progress import Progress, ProgressCallback

MAX_REASONS = 10
"""Maximum number of reasons in a report."""


class LibraryReason(NamedTuple):
    """A reason for reading files with h5py, the number of files, and the first of them."""

    reason: str
    files: int
    example: str


@dataclass(frozen=True)
class FilesRead(Report):
    """The number of HDF5 files for each read method.

    Files of other formats, files from the cache, and files that were left out are not counted.

    Parameters
    ----------
    together : int
        Number of files that were read with the structure of another file.
    alone : int
        Number of files whose structure virtualds read one by one.
    library : int
        Number of files whose structure was read with the HDF5 library (h5py).
    reasons : tuple of LibraryReason
        Reasons for using the HDF5 library, most frequent first; at most ten.

    Raises
    ------
    ValueError
        There are more reasons than files.

    Examples
    --------
    >>> unknown = LibraryReason("a superblock of version 9", 1, "file:///data/2.nc")
    >>> print(FilesRead(together=98, alone=1, library=1, reasons=(unknown,)))
    98 together, 1 alone, 1 through the HDF5 library
      files  why                        the first of them
      1      a superblock of version 9  file:///data/2.nc
    """

    together: int = 0
    alone: int = 0
    library: int = 0
    reasons: tuple[LibraryReason, ...] = ()

    def __post_init__(self) -> None:
        if self._count_explained() > self.library:
            raise ValueError(f"FilesRead: there are more reasons than files, in {self!r}")

    @classmethod
    def of(cls, methods: Mapping[ReadMethod, FileCount], files: Sequence[Any]) -> FilesRead:
        """Return the counts of read methods; ``files`` are the names of all files."""
        counts = Counter[str]()
        for method, count in methods.items():
            counts[method.name] += count.number
        explained: dict[str, FileCount] = {}
        for method, count in methods.items():
            if method.reason:
                add_counts({method.reason: count}, explained)
        # workers finish in any order
        ordered = sorted(explained.items(), key=lambda item: (-item[1].number, item[1].first))
        reasons = tuple(
            LibraryReason(reason, count.number, without_secrets(str(files[count.first])))
            for reason, count in ordered[:MAX_REASONS]
        )
        return cls(counts[TOGETHER.name], counts[ALONE.name], counts[LIBRARY], reasons)

    @property
    def summary(self) -> str:
        """The numbers of files in one line."""
        return (
            f"{self.together:,} together, {self.alone:,} alone, "
            f"{self.library:,} through the HDF5 library"
        )

    def __bool__(self) -> bool:
        return bool(self.together or self.alone or self.library)

    def _iterate_blocks(self) -> Iterator[Block]:
        yield Heading(self.summary, [self._make_reason_table()])

    def _make_reason_table(self) -> Table:
        """Return a table of the reasons for using the HDF5 library."""
        rows = [(f"{r.files:,}", r.reason, r.example) for r in self.reasons]
        more = self.library - self._count_explained()
        rows += [(f"{more:,}", "other reasons", "")] if more else []
        return Table(("files", "why", "the first of them"), rows, (0,))

    def _count_explained(self) -> int:
        """Return the number of files whose reason is listed."""
        return sum(reason.files for reason in self.reasons)


MAX_NAMES = 3
"""Maximum number of variables named in a difference."""
SCALE, FILL = "scale and offset", "fill value"
DIFFERENCE_FORMATS = {
    DTYPE: "{names} {is} {now}, not {usual}",
    STORED: "{names} {is} stored as {now}, not {usual}",
    DIMENSIONS: "{names} {has} dimensions ({now}), not ({usual})",
    ROLE: "{names} {is} a {now}, not a {usual}",
}
"""Format strings of differences, by aspect."""

SchemaFacts = Mapping[tuple[str, str], str]
"""Properties of a schema as text, by variable and aspect."""


class FileSchema(NamedTuple):
    """A schema: its number of files, the first of them, and differences from the main schema."""

    files: int
    first: str
    differences: tuple[str, ...] = ()


def make_schema_section(schemas: Sequence[FileSchema]) -> Section:
    """Return a section with a table of schemas; empty if all files have the same schema.

    Examples
    --------
    >>> from virtualds.pictures import format_text
    >>> few = FileSchema(1, "file:///data/3.nc", ("lacks lat",))
    >>> print(format_text([make_schema_section([FileSchema(2, "file:///data/1.nc"), few])]))
    Schemas (2)
      files  the first of them  how they differ
      2      file:///data/1.nc  the schema of most files
      1      file:///data/3.nc  lacks lat
    """
    main = "the schema of most files"
    rows = [(f"{s.files:,}", s.first, "; ".join(s.differences) or main) for s in schemas]
    table = Table(("files", "the first of them", "how they differ"), rows, (0,))
    return Section("Schemas", [table] if len(rows) > 1 else [], f"{len(rows):,}")


class SchemaCounter:
    """Counts the files of each schema."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[int, int, SchemaFacts]] = {}
        """The number of files, the index of the first, and the facts, by schema."""
        self._plans: dict[Hashable, tuple[Any, Hashable, SchemaFacts]] = {}

    def add(self, numbers: Sequence[int], opened: Any) -> None:
        """Count an opened object: a batch of files, or the dataset of one file."""
        facts: SchemaFacts
        if isinstance(opened, FileBatch):
            # keys are the prefixes of the names of variables
            parts = {f"{path.strip('/')}/".lstrip("/"): part for path, part in opened.walk()}
            codecs = {path: _list_codecs(part, path) for path, part in parts.items()}
            plans = [part.plan.schema for part in parts.values()]
            key = tuple(zip(parts, map(id, plans), strict=True)), str(codecs)
            if key not in self._plans:
                all_facts: dict[tuple[str, str], str] = {}
                for path, part in parts.items():
                    all_facts |= dict(_list_facts(part, path)) | codecs[path]
                # keep the plans alive, so that their ids stay unique
                self._plans[key] = plans, frozenset(all_facts.items()), all_facts
            _, schema, facts = self._plans[key]
        elif isinstance(opened, xr.Dataset):
            facts = {
                key: text
                for name, v in opened.variables.items()
                for key, text in _list_decoded_facts(
                    str(name), name in opened.coords, v.dims, v.dtype, v.attrs
                )
            }
            schema = frozenset(facts.items())
        else:
            return
        count, first, _ = self._counts.get(schema, (0, min(numbers), facts))
        self._counts[schema] = count + len(numbers), min(first, *numbers), facts

    def finish(self, files: Sequence[Any]) -> tuple[FileSchema, ...]:
        """Return the schemas, most frequent first; ``files`` are the names of all files."""
        ordered = sorted(self._counts.values(), key=lambda entry: (-entry[0], entry[1]))
        return tuple(
            FileSchema(
                count,
                without_secrets(str(files[first])),
                tuple(_list_differences(facts, ordered[0][2])),
            )
            for count, first, facts in ordered
        )


def _list_facts(batch: FileBatch, path: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the facts of the variables of a batch, from its decoding plan."""
    for stored_name, part in batch.plan.parts.items():
        name = f"{path}{stored_name if part.name is None else part.name}"
        attributes = {**part.attributes, **part.encoding, **part.declared}
        is_coordinate = part.name in batch.plan.coordinates
        yield from _list_decoded_facts(name, is_coordinate, *part.decoded, attributes)
        yield (name, STORED), str(part.stored[1].newbyteorder("="))
        yield (name, SCALE), format_attributes(attributes, SCALE_ATTRIBUTES)
        yield (name, FILL), format_attributes(attributes, FILL_ATTRIBUTES)


def _list_decoded_facts(
    name: str,
    is_coordinate: bool,
    dims: Iterable[Hashable],
    dtype: Any,
    attributes: Mapping[Any, Any],
) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the facts of a decoded variable, without the reference date of times."""
    yield (name, ROLE), "coordinate" if is_coordinate else "data variable"
    yield (name, DIMENSIONS), ", ".join(map(str, dims))
    yield (name, DTYPE), str(dtype)
    if "calendar" in attributes:
        yield (name, CALENDAR), str(attributes["calendar"])
    if "units" in attributes and " since " not in str(attributes["units"]):
        yield (name, UNITS), str(attributes["units"])


def _list_codecs(batch: FileBatch, path: str) -> dict[tuple[str, str], str]:
    """Return the codecs of the virtual variables of a batch as facts."""
    data = {f"{path}{name}": v.data for name, v in batch.group.variables.items()}
    arrays = {name: array for name, array in data.items() if isinstance(array, ManifestArray)}
    codecs = {name: [p.codecs for p in array.pipelines] for name, array in arrays.items()}
    return {
        (name, CODECS): "; ".join(dict.fromkeys(map(format_codecs, codec_names)))
        for name, codec_names in codecs.items()
    }


def _list_differences(facts: SchemaFacts, usual: SchemaFacts) -> Iterator[str]:
    """Yield the differences of a schema from the usual one; equal differences are grouped."""
    own_names, usual_names = ({name: None for name, _ in schema} for schema in (facts, usual))
    if lacking := [name for name in usual_names if name not in own_names]:
        yield f"lacks {format_names(lacking, MAX_NAMES)}"
    if added := [name for name in own_names if name not in usual_names]:
        yield f"also has {format_names(added, MAX_NAMES)}"
    names_by_difference: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (name, aspect), usual_text in {**dict.fromkeys(facts, "none"), **usual}.items():
        text = facts.get((name, aspect), "none")
        # omit the stored dtype if the decoded dtype differs as well
        is_omitted = aspect == STORED and facts.get((name, DTYPE)) != usual.get((name, DTYPE))
        if name in own_names and name in usual_names and text != usual_text and not is_omitted:
            names_by_difference[aspect, text, usual_text].append(name)
    for (aspect, text, usual_text), names in names_by_difference.items():
        sentence = DIFFERENCE_FORMATS.get(aspect, f"{aspect} of {{names}}: {{now}}, not {{usual}}")
        single = len(names) == 1
        yield sentence.format(
            names=format_names(names, MAX_NAMES),
            now=text,
            usual=usual_text,
            **{"is": "is" if single else "are", "has": "has" if single else "have"},
        )


class OutcomeCounter:
    """Counts the outcomes of files, and reports progress."""

    def __init__(self, total: int, send: ProgressCallback) -> None:
        self._total, self._send = total, send
        self._begin = time.monotonic()
        self.done = self.failed = self.cached = self.references = 0
        self._read_methods: dict[ReadMethod, FileCount] = {}
        self._schemas = SchemaCounter()
        self._damaged: dict[int, tuple[LeftOut, ...]] = {}

    def add(self, outcome: Any) -> None:
        """Count the outcome of one or several files, and report progress."""
        self.done += len(outcome.numbers)
        self.failed += outcome.error is not None
        self.cached += outcome.cached
        self.references += outcome.references
        self._damaged.update(outcome.damaged)
        add_counts(outcome.ways, self._read_methods)
        self._schemas.add(outcome.numbers, outcome.opened)
        self._send(self._measure_progress())

    def finish(self, left_out: Any, files: Sequence[Any]) -> BuildReport:
        """Create the report and send it to the callback; ``files`` are the names of all files."""
        report = BuildReport(
            self._total,
            self.done - self.failed - self.cached,
            self.cached,
            tuple(left_out),
            self.references,
            self.seconds,
            FilesRead.of(self._read_methods, files),
            tuple(part for number in sorted(self._damaged) for part in self._damaged[number]),
            self._schemas.finish(files),
        )
        self._send(self._measure_progress(report))
        return report

    @property
    def seconds(self) -> float:
        """Seconds since the counter was created."""
        return time.monotonic() - self._begin

    def _measure_progress(self, report: BuildReport | None = None) -> Progress:
        """Return the current progress."""
        return Progress(
            done=self.done,
            total=self._total,
            seconds=self.seconds,
            failed=self.failed,
            cached=self.cached,
            references=self.references,
            report=report,
        )


DAMAGED = "damaged part"


@public
@dataclass(frozen=True, repr=False)
class BuildReport(Report):
    """The report of opening files for a dataset.

    Parameters
    ----------
    files : int
        Number of files.
    opened : int
        Number of opened files.
    cached : int
        Number of files from the cache.
    left_out : tuple of LeftOut
        Files that could not be opened, in the order of the files.
    references : int
        Number of chunks of all files.
    seconds : float
        Time to open the files, without combining them.
    read : FilesRead
        The number of HDF5 files for each read method, and why some were read with h5py.
    damaged : tuple of LeftOut
        Damaged parts of files, such as messages, that were left out of files that were opened.
    schemas : tuple of FileSchema
        The schemas of the files (names, dimensions, dtypes and decoding of variables), most
        frequent first, with the differences of the others from the first.

    Raises
    ------
    ValueError
        The numbers do not add up.

    Examples
    --------
    >>> lost = LeftOut("file:///data/2.nc", "FormatError", "it is truncated")
    >>> print(BuildReport(3, opened=2, left_out=(lost,)))
    3 files: 2 opened, 0 from the cache, 1 left out
      Chunks  0
    <BLANKLINE>
    Left out (1)
      file               error        what happened
      file:///data/2.nc  FormatError  it is truncated
    """

    files: int
    opened: int = 0
    cached: int = 0
    left_out: tuple[LeftOut, ...] = ()
    references: int = 0
    seconds: float = 0.0
    read: FilesRead = field(default_factory=FilesRead)
    damaged: tuple[LeftOut, ...] = ()
    schemas: tuple[FileSchema, ...] = ()

    def __post_init__(self) -> None:
        if self.files != self.opened + self.cached + len(self.left_out):
            raise ValueError(
                f"BuildReport: {self.files} files are not {self.opened} opened, {self.cached} "
                f"from the cache and {len(self.left_out)} left out; count each once"
            )

    @property
    def summary(self) -> str:
        """The numbers of files in one line."""
        return (
            f"{self.files} files: {self.opened} opened, {self.cached} from the cache, "
            f"{len(self.left_out)} left out"
            f"{f', {format_count(len(self.damaged), DAMAGED)}' if self.damaged else ''}"
        )

    def __repr__(self) -> str:
        return f"<BuildReport {self.summary}>"

    def _iterate_blocks(self) -> Iterator[Block]:
        read, schemas, seconds = self.read, len(self.schemas), self.seconds
        rows = {
            "Chunks": f"{self.references:,}",
            "Time": f"{seconds:,.1f} s, {self.files / (seconds or 1):,.0f} files per second"
            if seconds
            else None,
            "HDF5 files read": read.summary if read else None,
            "Schemas": "one, of all files" if schemas == 1 else f"{schemas:,}" if schemas else None,
        }
        yield Heading(self.summary, [_draw_outcomes(self), rows])
        yield make_schema_section(self.schemas)
        yield make_left_out_section("Left out", self.left_out)
        yield make_left_out_section("Damaged parts, left out", self.damaged)
        title = "Read through the HDF5 library, which takes longer"
        yield Section(title, [read._make_reason_table()], is_open=False)


def make_left_out_section(title: str, left_out: Sequence[LeftOut]) -> Section:
    """Return a section with a table of files, or parts of files, that were left out."""
    table = Table(("file", "error", "what happened"), left_out)
    return Section(title, [table], f"{len(left_out):,}")


def _draw_outcomes(report: BuildReport) -> Markup:
    """Return a strip of the files by outcome, with a legend."""
    outcomes: tuple[tuple[Shade, str, int], ...] = (
        (OK, "opened", report.opened),
        (NEXT, "from the cache", report.cached),
        (MISSING, "left out", len(report.left_out)),
    )
    present = [outcome for outcome in outcomes if outcome[2]]
    if not present:
        return Markup("")
    stops = accumulate(count for *_, count in present)
    spans = [
        Span(stop - count, stop, shade, f"{count:,} {name}")
        for (shade, name, count), stop in zip(present, stops, strict=True)
    ]
    title = ", ".join(f"{count:,} {name}" for _, name, count in present)
    keys = draw_legend([(shade, f"{count:,} {name}") for shade, name, count in present])
    return join(draw_strip(spans, report.files, title=title), keys)
