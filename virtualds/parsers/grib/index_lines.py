"""Lines of the indexes of GRIB files: those that wgrib2 writes, and those of ECMWF.

wgrib2 writes ``number:byte:d=date:parameter:level:step:more``, with numbers such as 3.2 for fields
of one message. ECMWF writes a JSON object for each message, with ``_offset`` and ``_length``
(https://confluence.ecmwf.int/display/DAC/ECMWF+open+data, section "Index files").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from virtualds.errors import FormatError

UNITS = {"sec": 1, "min": 60, "hour": 3600, "day": 86400}
"""Seconds of units of steps; of others only the same step is known again."""
DATES = {12: "d=%Y%m%d%H", 16: "d=%Y%m%d%H%M", 18: "d=%Y%m%d%H%M%S"}
"""How wgrib2 writes dates, by their length."""
STEP, MEMBER = re.compile(r"(?:(\d+)-)?(\d+) (\w+) (.+)"), re.compile(r"ENS=([+-])(\d+)")
HOURS = re.compile(r"(?:(\d+)-)?(\d+)")
BEGINNING = re.compile(rb"\d+(?:\.\d+)?:\d+:[dD]=\d{10}")
"""How an index of wgrib2 begins."""


@dataclass(frozen=True)
class IndexLine:
    """What an index says of a field.

    Parameters
    ----------
    offset : int
    length : int or None
        Of the message, in bytes; None if the index does not say it.
    number : int
        Of the field in its message, from 0.
    told : tuple of str
        What is the same in other files: parameter, level, kind of step.
    date : datetime
    start, end : int or None
        Of the step, in seconds; of a point in time there is only the end.
    member : int or None
    """

    offset: int
    length: int | None
    number: int
    told: tuple[str, ...]
    date: datetime
    start: int | None = None
    end: int | None = None
    member: int | None = None


def is_index(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is an index."""
    line = head.partition(b"\n")[0]
    is_json = line[:1] == b"{" and b'"_offset"' in line and b'"param"' in line
    return is_json or BEGINNING.match(line) is not None


def read_lines(text: str, url: str) -> list[IndexLine]:
    """Return the lines of an index.

    Raises
    ------
    FormatError
        A line is none of an index.
    """
    found = []
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
        parse: Callable[[str], IndexLine] = _parse_json if line[:1] == "{" else _parse_wgrib2
        try:
            found.append(parse(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                f"{url}: line {number}, {line[:80]!r}, is none of an index of a GRIB file "
                f"({type(error).__name__}: {error}); the index is damaged, fetch it again"
            ) from error
    return found


def _parse_wgrib2(line: str) -> IndexLine:
    number, offset, when, *told = line.rstrip(":").split(":")
    date = datetime.strptime(when.lower(), DATES[len(when)])
    start, end, member = None, None, None
    for place, text in enumerate(told):
        if place == 2 and (step := STEP.fullmatch(text)) and step[3] in UNITS:
            start, end = _read_step(step, UNITS[step[3]])
            told[place] = f"{'from-to' if step[1] else 'at'} {step[4]}"
        elif of_member := MEMBER.fullmatch(text):
            member, told[place] = int(of_member[2]), f"ENS={of_member[1]}"
    field = int(number.partition(".")[2] or 1) - 1
    return IndexLine(int(offset), None, field, tuple(told), date, start, end, member)


def _parse_json(line: str) -> IndexLine:
    keys: dict[str, Any] = json.loads(line)
    offset, length = int(keys.pop("_offset")), int(keys.pop("_length"))
    date = datetime.strptime(f"{keys.pop('date')}{keys.pop('time'):0>4}", "%Y%m%d%H%M")
    start, end, member = None, None, None
    if step := HOURS.fullmatch(str(keys.get("step"))):
        start, end = _read_step(step, UNITS["hour"])
        keys["step"] = "from-to" if step[1] else "at"
    if str(keys.get("number", "")).isdigit():
        member = int(keys["number"])
        keys["number"] = "a member"
    told = tuple(f"{name}={keys[name]}" for name in sorted(keys))
    return IndexLine(offset, length, 0, told, date, start, end, member)


def _read_step(step: re.Match[str], unit: int) -> tuple[int | None, int]:
    """Return the start and the end of a step in seconds."""
    return None if step[1] is None else int(step[1]) * unit, int(step[2]) * unit


def list_lengths(lines: list[IndexLine], size: int, url: str) -> Iterator[int]:
    """Yield the length of the message of each line, in a file of ``size`` bytes.

    Without a length in the index, a message ends where the next one begins.

    Raises
    ------
    FormatError
        Messages lie outside of the file, or overlap.
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
