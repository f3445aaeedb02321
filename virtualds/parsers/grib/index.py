"""Parser of the index of a GRIB file, which reads references without the file itself.

An index has the location and a short description of each message. All other information comes from
a template: a file of the same product, which is read together with its index.

Two kinds of indexes are supported: those of wgrib2, and those of ECMWF.

wgrib2 writes ``number:byte:d=date:parameter:level:step:more``, with numbers such as 3.2 for fields
of one message. ECMWF writes a JSON object for each message, with ``_offset`` and ``_length``
(https://confluence.ecmwf.int/display/DAC/ECMWF+open+data, section "Index files").
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from threading import Lock
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.parser import Parser
from virtualds.errors import FormatError, UnsupportedError
from virtualds.importing import import_eccodes
from virtualds.parsers import grib
from virtualds.parsers.grib import COMPUTED_KEYS, FieldTable
from virtualds.parsers.grib.messages import LISTED_KEYS, UNIT_SECONDS, GribField
from virtualds.source_file import (
    SIDECARS,
    SourceFile,
    StorageOptions,
    find_sidecar_target,
    normalise_url,
)
from virtualds.stores import find_store
from virtualds.stores.scan_cache import cache_scan

UNIT_SECONDS_BY_NAME = {"sec": 1, "min": 60, "hour": 3600, "day": 86400}
"""Seconds per unit of steps; steps in other units are compared as text."""
DATE_FORMATS = {12: "d=%Y%m%d%H", 16: "d=%Y%m%d%H%M", 18: "d=%Y%m%d%H%M%S"}
"""Date formats of wgrib2, by length of the date."""
STEP_TEXT, MEMBER_TEXT = re.compile(r"(?:(\d+)-)?(\d+) (\w+) (.+)"), re.compile(r"ENS=([+-])(\d+)")
HOURS_TEXT = re.compile(r"(?:(\d+)-)?(\d+)")
FIRST_LINE = re.compile(rb"\d+(?:\.\d+)?:\d+:[dD]=\d{10}")
"""Matches the start of an index of wgrib2."""


@dataclass(frozen=True)
class IndexLine:
    """The description of a field in an index.

    Parameters
    ----------
    offset : int
    length : int or None
        The length of the message in bytes, or None if the index does not have it.
    number : int
        The index of the field in its message.
    labels : tuple of str
        The description that is the same in other files: parameter, level, kind of step.
    date : datetime
    start, end : int or None
        Start and end of the step, in seconds; a point in time has only an end.
    member : int or None
    """

    offset: int
    length: int | None
    number: int
    labels: tuple[str, ...]
    date: datetime
    start: int | None = None
    end: int | None = None
    member: int | None = None


def is_index(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is an index."""
    line = head.partition(b"\n")[0]
    is_json = line[:1] == b"{" and b'"_offset"' in line and b'"param"' in line
    return is_json or FIRST_LINE.match(line) is not None


def parse_index(text: str, url: str) -> list[IndexLine]:
    """Return the lines of an index.

    Raises `FormatError` if a line is invalid.
    """
    lines = []
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
        parse: Callable[[str], IndexLine] = _parse_json if line[:1] == "{" else _parse_wgrib2
        try:
            lines.append(parse(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                f"{url}: line {number}, {line[:80]!r}, is not one of an index of a GRIB file "
                f"({type(error).__name__}: {error}); the index is damaged, fetch it again"
            ) from error
    return lines


def _parse_wgrib2(line: str) -> IndexLine:
    number, offset, date_text, *labels = line.rstrip(":").split(":")
    date = datetime.strptime(date_text.lower(), DATE_FORMATS[len(date_text)])
    start, end, member = None, None, None
    for position, text in enumerate(labels):
        if (
            position == 2
            and (step := STEP_TEXT.fullmatch(text))
            and step[3] in UNIT_SECONDS_BY_NAME
        ):
            start, end = _parse_step(step, UNIT_SECONDS_BY_NAME[step[3]])
            labels[position] = f"{'from-to' if step[1] else 'at'} {step[4]}"
        elif member_match := MEMBER_TEXT.fullmatch(text):
            member, labels[position] = int(member_match[2]), f"ENS={member_match[1]}"
    field = int(number.partition(".")[2] or 1) - 1
    return IndexLine(int(offset), None, field, tuple(labels), date, start, end, member)


def _parse_json(line: str) -> IndexLine:
    keys: dict[str, Any] = json.loads(line)
    offset, length = int(keys.pop("_offset")), int(keys.pop("_length"))
    date = datetime.strptime(f"{keys.pop('date')}{keys.pop('time'):0>4}", "%Y%m%d%H%M")
    start, end, member = None, None, None
    if step := HOURS_TEXT.fullmatch(str(keys.get("step"))):
        start, end = _parse_step(step, UNIT_SECONDS_BY_NAME["hour"])
        keys["step"] = "from-to" if step[1] else "at"
    if str(keys.get("number", "")).isdigit():
        member = int(keys["number"])
        keys["number"] = "a member"
    labels = tuple(f"{name}={keys[name]}" for name in sorted(keys))
    return IndexLine(offset, length, 0, labels, date, start, end, member)


def _parse_step(step: re.Match[str], unit: int) -> tuple[int | None, int]:
    """Return the start and the end of a step in seconds."""
    return None if step[1] is None else int(step[1]) * unit, int(step[2]) * unit


def iterate_lengths(lines: list[IndexLine], size: int, url: str) -> Iterator[int]:
    """Yield the length of the message of each line, in a file of ``size`` bytes.

    If the index has no lengths, a message ends at the start of the next one.

    Raises `FormatError` if messages are outside the file, or overlap.
    """
    offsets = sorted({line.offset for line in lines})
    ends = dict(zip(offsets, [*offsets[1:], size], strict=True))
    for line in lines:
        length = ends[line.offset] - line.offset if line.length is None else line.length
        if not 16 <= length <= ends[line.offset] - line.offset:
            raise FormatError(
                f"{url}: a message of {length} bytes at byte {line.offset} does not fit into its "
                f"file, where the next one or the end follows at byte {ends[line.offset]}; the "
                f"index is that of another file, or the file is still being written"
            )
        yield length


# ---------------------------------------------------------------------- index

SUFFIXES = (".idx", ".index")
"""Suffixes of indexes of wgrib2 and of ECMWF."""
CACHED_TEMPLATES = 8
"""Number of cached templates, which take a few kilobytes per message."""
MAX_SHOWN = 5
"""Maximum number of messages that an error lists."""

TEMPLATE_CHECK_SECONDS = 60
"""Number of seconds for which a remote template is assumed to be unchanged."""

_TEMPLATE_LOCK = Lock()

Labels = tuple[tuple[str, ...], int]
"""Description of a field in an index, and the number of equal descriptions before it."""


def read(
    source: SourceFile,
    group: str | None = None,
    skip: Iterable[str] = (),
    *,
    below: bool = False,
    template: Any = None,
    filter_by_keys: Mapping[str, Any] | None = None,
) -> ManifestGroup:
    """Read the structure of the file that an index describes, or of one group of it.

    Raises `UnsupportedError` if there is no template, or none with the same messages; `FormatError`
    if the index is damaged, or belongs to another file; and `FileNotFoundError` if the file of the
    index, a template, its index, or the group does not exist.

    Parameters
    ----------
    below, filter_by_keys
        As for GRIB files.
    template : path or url, or list of them
        Files of the same product, each with an index next to it. The first one with the same
        messages is used.
    """
    return _scan(source, template, filter_by_keys).read(group, skip, below)


def _scan(
    source: SourceFile, template_option: Any, filter_by_keys: Mapping[str, Any] | None
) -> FieldTable:
    """Return the selected fields of the file that an index describes."""
    suffix = next((suffix for suffix in SUFFIXES if source.url.endswith(suffix)), None)
    if suffix is None:
        raise UnsupportedError(
            f"{source.url}: an index has the name of its GRIB file followed by "
            f"{' or '.join(SUFFIXES)}, so that the file is found; rename the index"
        )
    if unknown := sorted((filter_by_keys or {}).keys() - LISTED_KEYS - COMPUTED_KEYS.keys()):
        raise UnsupportedError(
            f"{source.url}: filter_by_keys: an index does not say {unknown[0]!r}; open the file "
            f"itself, or choose by other keys, such as shortName, typeOfLevel, level, stepRange"
        )
    names = template_option if isinstance(template_option, list | tuple) else [template_option]
    if template_option is None or not names:
        raise UnsupportedError(
            f"{source.url}: an index says nothing about grids and units; name a file of the same "
            f"product that has them: parser_options={{'template': 'a.grib2'}}"
        )
    eccodes = import_eccodes(source.url, "reading the index of a GRIB file")
    lines = _read_index(source.url, source.options)
    url = find_sidecar_target(source.url) or source.url
    file = find_store(url).describe(url, source.options)
    urls = [normalise_url(os.fspath(name)) for name in names]
    template = _choose_template((_open_template(u, suffix, source) for u in urls), lines, source)
    return FieldTable(file, template.locate_fields(lines, file, source.url), eccodes, {}).select(
        filter_by_keys
    )


def _read_index(url: str, options: StorageOptions | None) -> list[IndexLine]:
    text = find_store(url).read_all(url, options).decode("utf-8", "replace")
    if lines := parse_index(text, url):
        return lines
    raise FormatError(f"{url}: the index is empty; its file may still be written")


# ---------------------------------------------------------------------- templates


@dataclass(frozen=True)
class Template:
    """A scanned file, whose fields describe those of other files with the same messages.

    Parameters
    ----------
    url : str
        The url of the scanned file.
    fields : dict
        Its fields, by their descriptions in its index.
    """

    url: str
    fields: Mapping[Labels, GribField]

    def locate_fields(
        self, lines: Sequence[IndexLine], file: SourceFile, url: str
    ) -> list[GribField]:
        """Return the fields of another file with the same messages."""
        lengths = iterate_lengths(list(lines), file.size or 0, url)
        return [
            replace(
                field := self.fields[labels],
                offset=line.offset,
                length=length,
                number=line.number,
                keys=_replace_keys(field, line, url),
            )
            for labels, line, length in zip(_number_lines(lines), lines, lengths, strict=True)
        ]


def _number_lines(lines: Iterable[IndexLine]) -> list[Labels]:
    """Return the description of each line, and the number of equal ones before it."""
    counts = Counter[tuple[str, ...]]()
    numbered = []
    for line in lines:
        numbered.append((line.labels, counts[line.labels]))
        counts[line.labels] += 1
    return numbered


def _choose_template(
    templates: Iterable[Template], lines: Sequence[IndexLine], source: SourceFile
) -> Template:
    """Return the first template with the same messages; later templates are not read."""
    labels, others = set(_number_lines(lines)), list[Template]()
    for template in templates:
        if template.fields.keys() == labels:
            return template
        others.append(template)
    nearest = min(others, key=lambda t: len(t.fields.keys() ^ labels))
    extra, missing = labels - nearest.fields.keys(), nearest.fields.keys() - labels
    raise UnsupportedError(
        f"{source.url}: its {len(labels)} messages are not the {len(nearest.fields)} of the "
        f"template {nearest.url}; name a file with the same messages among the templates (first "
        f"steps often have fewer)\n  only here: {_format_labels(extra)}\n"
        f"  only in the template: {_format_labels(missing)}"
    )


def _format_labels(labels: set[Labels]) -> str:
    texts_shown = [":".join(texts) for texts, _ in sorted(labels)[:MAX_SHOWN]]
    more = f" and {len(labels) - MAX_SHOWN} more" if len(labels) > MAX_SHOWN else ""
    return ", ".join(texts_shown) + more or "-"


def _open_template(url: str, suffix: str, index: SourceFile) -> Template:
    """Return a template, from a cache if it has not changed."""
    store = find_store(url)
    # so that only one thread reads the template
    with _TEMPLATE_LOCK:
        try:
            if store.request_limits.max_requests:
                interval = int(time.monotonic() // TEMPLATE_CHECK_SECONDS)
                file = _describe_remote(url, index.options, interval)
            else:
                file = store.describe(url, index.options)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{index.url}: its template {url} is not there; name a GRIB file of the same "
                f"product that is, with its index beside it"
            ) from error
        return _read_template(file, url.removesuffix(SIDECARS[suffix]) + suffix)


@lru_cache(CACHED_TEMPLATES)
def _describe_remote(url: str, options: StorageOptions | None, interval: int) -> SourceFile:
    """Return the file of a remote template; ``interval`` limits how long it is cached."""
    return find_store(url).describe(url, options)


@lru_cache(CACHED_TEMPLATES)
def _read_template(source: SourceFile, index: str) -> Template:
    with cache_scan(source.url, source.options):
        template_fields = grib.scan(source)
    for error in template_fields.damaged.values():
        raise error
    lines = _read_index(index, source.options)
    by_location = {(field.offset, field.number): field for field in template_fields.fields}
    locations = [(line.offset, line.number) for line in lines]
    if sorted(locations) != sorted(by_location):
        raise FormatError(
            f"{index}: it names {len(locations)} messages, and not the {len(by_location)} of its "
            f"file, or other bytes; it is not a template: write it again "
            f"(wgrib2 a.grib2 > a.grib2.idx)"
        )
    fields = dict(zip(_number_lines(lines), (by_location[at] for at in locations), strict=True))
    for line in lines:
        _check_consistent(by_location[line.offset, line.number], line, index)
    return Template(source.url, fields)


def _check_consistent(field: GribField, line: IndexLine, url: str) -> None:
    """Raise an error if a field of a template contradicts the index of the template."""
    indexed_field = replace(field, keys=_replace_keys(field, line, url))
    labels = [(f.time, f.step, f.keys.get("number")) for f in (indexed_field, field)]
    if labels[0] != labels[1]:
        raise UnsupportedError(
            f"{url}: of the message at byte {line.offset} the index says time, step and number "
            f"{labels[0]}, its file {labels[1]}; open the files themselves"
        )


# ---------------------------------------------------------------------- keys


def _replace_keys(field: GribField, line: IndexLine, url: str) -> dict[str, Any]:
    """Return the keys of a field of the template, updated by a line of an index."""
    date: datetime = line.date
    clock = {"hour": date.hour, "minute": date.minute, "second": date.second}
    keys = field.keys | {n: v for n, v in clock.items() if n in field.keys}
    keys["dataDate"] = int(f"{date:%Y%m%d}")
    keys["dataTime"] = 100 * date.hour + date.minute
    if line.end is not None and "endStep" in keys:
        unit = UNIT_SECONDS[int(keys.get("stepUnits", 1))]
        if line.end % unit or (line.start or 0) % unit:
            raise UnsupportedError(
                f"{url}: the step of the message at byte {line.offset} is not a multiple of the "
                f"unit of the template's, {unit} s; name a template with finer steps"
            )
        keys["endStep"] = line.end // unit
        # as in ecCodes, with the unit of the steps if the template has it
        letters = str(keys.get("stepRange", "")).lstrip("0123456789").partition("-")[0]
        steps = [line.end] if line.start in (None, line.end) else [line.start, line.end]
        keys["stepRange"] = "-".join(f"{(step or 0) // unit}{letters}" for step in steps)
    if line.member is not None:
        keys |= {n: line.member for n in ("number", "perturbationNumber") if n in keys}
    return keys


PARSER = Parser(
    "grib-index",
    SUFFIXES,
    is_index,
    read,
    takes=("below",),
    options=("template", "filter_by_keys"),
)
