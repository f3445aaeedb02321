"""Messages of GRIB files: where they lie, and the header of each of their fields.

WMO Manual on Codes, volume I.2: FM 92 GRIB editions 1 and 2, section 0 (indicator) and the lengths
of sections; edition 2, 92.6: sections 2 to 7, 3 to 7 or 4 to 7 may be repeated, and each section 7
ends a field. Of a message of edition 2 only the sections before the values are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

from virtualds.codecs.grib import ContradictionError, check_first_edition
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError

BEGIN, END = b"GRIB", b"7777"
INDICATED = 24
"""Bytes that tell whether a message begins: section 0, the beginning of section 1."""
SEARCH_BYTES = 64 * 1024
"""Bytes that are searched for the next message together."""
HEADING_BYTES = 64 * 1024
"""Bytes other than padding that may lie before a message: headings of bulletins."""
PADDING = b"\0 \r\n\x03\x04\x1a"
"""Bytes of which any number may lie between and after messages: padding, ends of bulletins."""
LARGE_MESSAGE = 0x800000
"""Edition 1 encodes lengths from here on differently (ECMWF)."""
NO_VALUES = bytes([0, 0, 0, 6, 6, 255]) + bytes([0, 0, 0, 5, 7]) + END
"""Section 6 without a bitmap, section 7 without values, section 8."""
HEADER_SECTIONS = range(1, 6)
"""Sections of edition 2 that make a header."""


class FoundField(NamedTuple):
    """A field of a file.

    Parameters
    ----------
    offset, length : int
        Of its message, in bytes.
    field : int
        Its number among the fields of the message, from 0.
    header : bytes
        A message that ecCodes accepts, with little more than the header of the field.
    """

    offset: int
    length: int
    field: int
    header: bytes


Note = Callable[[str, VirtualdsError], None]
"""Takes the name of a place in a file, and what is wrong there."""


def is_message(data: bytes) -> bool:
    """Say whether bytes begin with the indicator of a message and the length of its section 1."""
    if data[:4] != BEGIN or len(data) < INDICATED:
        return False
    if data[7] == 1:
        return 28 <= int.from_bytes(data[8:11], "big") < 4096
    return data[7] == 2 and data[16:18] == b"\0\0" and data[20] == 1


def find_message(data: bytes, stop: int | None = None) -> int:
    """Return where a message begins in bytes, before ``stop``; -1 if there is none."""
    at = data.find(BEGIN, 0, stop)
    while at >= 0 and not is_message(data[at : at + INDICATED]):
        at = data.find(BEGIN, at + 1, stop)
    return at


def find_fields(file: BinaryIO, size: int, note: Note) -> Iterator[FoundField]:
    """Yield the fields of a file in their order, and note what is damaged.

    Parameters
    ----------
    file : binary file
    size : int
        Its bytes.
    note : callable
        Takes the name of a damaged place and its error; the search goes on behind it.
    """
    place, is_lost = 0, False
    while True:
        begin, others = _find_next(file, place, size)
        if not is_lost and others > (0 if begin == size else HEADING_BYTES):
            note(f"bytes from {place}", _no_message_error(place, begin))
        if begin == size:
            return
        try:
            length, headers = _read_message(file, begin, size)
        except VirtualdsError as error:
            note(f"message at byte {begin}", error)
            place, is_lost = begin + len(BEGIN), True
            continue
        yield from (FoundField(begin, length, n, header) for n, header in enumerate(headers))
        place, is_lost = begin + length, False


def _no_message_error(place: int, begin: int) -> FormatError:
    return FormatError(
        f"GRIB file: no message begins between bytes {place} and {begin}, which hold other data; "
        f"it is damaged or truncated: fetch it again"
    )


def _find_next(file: BinaryIO, place: int, size: int) -> tuple[int, int]:
    """Return where the next message begins, and how many bytes before it are no padding.

    It is the size of the file if there is none.
    """
    file.seek(place)
    if file.read(min(len(BEGIN), size - place)) == BEGIN:
        return place, 0
    others = 0
    for begin in range(place, size, SEARCH_BYTES):
        file.seek(begin)
        block = file.read(min(SEARCH_BYTES + INDICATED, size - begin))
        at = find_message(block, SEARCH_BYTES + len(BEGIN) - 1)
        others += len(block[: at if at >= 0 else SEARCH_BYTES].strip(PADDING))
        if at >= 0:
            return begin + at, others
    return size, others


def _read_message(file: BinaryIO, place: int, size: int) -> tuple[int, list[bytes]]:
    """Return the length of a message, and the headers of its fields.

    Raises
    ------
    FormatError
        The message is damaged or truncated.
    UnsupportedError
        It is too long for edition 1.
    """
    file.seek(place)
    start = file.read(16)
    edition, length = _parse_indicator(start, place, size)
    if edition == 1:
        return length, [_read_first_edition(file, place, length)]
    headers = _read_second_edition(file, place, start, length)
    _check_end(file, place, length)
    return length, headers


def _check_end(file: BinaryIO, place: int, length: int) -> None:
    """Refuse a message that breaks off before the next one begins.

    Its end is looked at only where neither a message nor the end of the file follows: the end of a
    remote message may cost a request.
    """
    file.seek(place + length)
    if file.read(len(BEGIN)) in (BEGIN, b""):
        return
    file.seek(place + length - len(END))
    if file.read(len(END)) != END:
        raise _broken_error(place)


def _broken_error(place: int) -> FormatError:
    return FormatError(
        f"GRIB message at byte {place}: it does not end where it says; the file is damaged or "
        f"truncated"
    )


def _parse_indicator(start: bytes, place: int, size: int) -> tuple[int, int]:
    """Return the edition and length of a message from its first 16 bytes."""
    edition = start[7] if len(start) == 16 else 0
    if edition not in (1, 2):
        raise FormatError(
            f"GRIB message at byte {place}: it is of edition {edition}; "
            "the file is damaged, fetch it again"
        )
    length = int.from_bytes(start[8:16] if edition == 2 else start[4:7], "big")
    if edition == 1 and length >= LARGE_MESSAGE:
        raise UnsupportedError(
            f"GRIB message at byte {place}: edition 1 with more than {LARGE_MESSAGE} bytes, whose "
            f"length is encoded differently; convert it with grib_set -s edition=2"
        )
    if place + length > size:
        raise FormatError(
            f"GRIB message at byte {place}: it has {length} bytes, the file ends at {size}; it "
            f"is truncated"
        )
    return edition, length


def _read_second_edition(file: BinaryIO, place: int, start: bytes, total: int) -> list[bytes]:
    """Return the header of each field as a message with an empty section of values."""
    headers, sections, inside = list[bytes](), dict[int, bytes](), 16
    while inside + 5 <= total:
        file.seek(place + inside)
        lead = file.read(5).ljust(5, b"\0")
        length, number = int.from_bytes(lead[:4], "big"), lead[4]
        if length < 5 or not 1 <= number <= 7 or inside + length > total:
            break
        inside += length
        if number in HEADER_SECTIONS:
            sections[number] = lead + file.read(length - 5)
        elif number == 7:
            headers.append(_join_header(start, sections))
            if inside + len(END) >= total:
                return headers
    raise FormatError(
        f"GRIB message at byte {place}: its sections do not add up; "
        "the file is damaged, fetch it again"
    )


def _join_header(start: bytes, sections: Mapping[int, bytes]) -> bytes:
    body = b"".join(sections[n] for n in HEADER_SECTIONS if n in sections) + NO_VALUES
    return start[:8] + (len(start) + len(body)).to_bytes(8, "big") + body


def _read_first_edition(file: BinaryIO, place: int, length: int) -> bytes:
    """Return a whole message: those of edition 1 are small."""
    file.seek(place)
    message = file.read(length)
    if len(message) < length or length < 16 or message[-4:] != END:
        raise _broken_error(place)
    try:
        check_first_edition(message)
    except ContradictionError as error:
        raise FormatError(
            f"GRIB message at byte {place}: {error}; the file is damaged, fetch it again"
        ) from error
    return message
