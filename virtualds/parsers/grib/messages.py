"""Finds the messages of GRIB files, and reads the keys of their fields with ecCodes.

WMO Manual on Codes, volume I.2, FM 92 GRIB, editions 1 and 2. Octets are counted from 1, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.bounds import check_values
from virtualds.codecs.grib import ECCODES_MISSING, ContradictionError, check_edition_1
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError

# ---------------------------------------------------------------------- positions of messages
# Section 0 (indicator) and the lengths of sections. In edition 2, sections 2 to 7, 3 to 7 or 4 to 7
# may be repeated, and each section 7 ends a field (92.6); only those before the values are read.


BEGIN, END = b"GRIB", b"7777"
INDICATED = 24
"""The number of bytes that identify a message: section 0, and the beginning of section 1."""
SEARCH_BYTES = 64 * 1024
"""The number of bytes that are searched for the next message at a time."""
HEADING_BYTES = 64 * 1024
"""The number of bytes other than padding that may precede a message: headings of bulletins."""
PADDING = b"\0 \r\n\x03\x04\x1a"
"""Characters that may be repeated between and after messages: padding, and ends of bulletins."""
LARGE_MESSAGE = 0x800000
"""Minimum length that edition 1 encodes differently (ECMWF)."""
EMPTY_SECTIONS = bytes([0, 0, 0, 6, 6, 255]) + bytes([0, 0, 0, 5, 7]) + END
"""Section 6 without a bitmap, section 7 without values, section 8."""
HEADER_SECTIONS = range(1, 6)
"""Sections of edition 2 that form a header."""


class FoundField(NamedTuple):
    """A field of a file.

    Parameters
    ----------
    offset, length : int
        Offset and length of its message, in bytes.
    field : int
        The index of the field in the message.
    header : bytes
        A message that ecCodes accepts, with little more than the header of the field.
    """

    offset: int
    length: int
    field: int
    header: bytes


Note = Callable[[str, VirtualdsError], None]
"""A function that takes the name of a position in a file, and the error there."""


def is_message(data: bytes) -> bool:
    """Return whether bytes begin with the indicator of a message and the length of section 1."""
    if data[:4] != BEGIN or len(data) < INDICATED:
        return False
    if data[7] == 1:
        return 28 <= int.from_bytes(data[8:11], "big") < 4096
    return data[7] == 2 and data[16:18] == b"\0\0" and data[20] == 1


def find_message(data: bytes, stop: int | None = None) -> int:
    """Return the offset of a message before ``stop``, or -1 if there is none."""
    at = data.find(BEGIN, 0, stop)
    while at >= 0 and not is_message(data[at : at + INDICATED]):
        at = data.find(BEGIN, at + 1, stop)
    return at


def find_fields(file: BinaryIO, size: int, note: Note) -> Iterator[FoundField]:
    """Yield the fields of a file in order, and report damage.

    Parameters
    ----------
    file : binary file
    size : int
        The size of the file in bytes.
    note : callable
        Takes the name of a damaged position and its error; the search continues after it.
    """
    offset, is_lost = 0, False
    while True:
        begin, others = _find_next(file, offset, size)
        if not is_lost and others > (0 if begin == size else HEADING_BYTES):
            note(f"bytes from {offset}", _make_no_message_error(offset, begin))
        if begin == size:
            return
        try:
            length, headers = _read_message(file, begin, size)
        except VirtualdsError as error:
            note(f"message at byte {begin}", error)
            offset, is_lost = begin + len(BEGIN), True
            continue
        yield from (FoundField(begin, length, n, header) for n, header in enumerate(headers))
        offset, is_lost = begin + length, False


def _make_no_message_error(offset: int, begin: int) -> FormatError:
    return FormatError(
        f"GRIB file: no message begins between bytes {offset} and {begin}, which hold other data; "
        f"it is damaged or truncated: fetch it again"
    )


def _find_next(file: BinaryIO, offset: int, size: int) -> tuple[int, int]:
    """Return the offset of the next message, and the number of non-padding bytes before it.

    The offset is the size of the file if there is no further message.
    """
    file.seek(offset)
    if file.read(min(len(BEGIN), size - offset)) == BEGIN:
        return offset, 0
    others = 0
    for begin in range(offset, size, SEARCH_BYTES):
        file.seek(begin)
        block = file.read(min(SEARCH_BYTES + INDICATED, size - begin))
        at = find_message(block, SEARCH_BYTES + len(BEGIN) - 1)
        others += len(block[: at if at >= 0 else SEARCH_BYTES].strip(PADDING))
        if at >= 0:
            return begin + at, others
    return size, others


def _read_message(file: BinaryIO, offset: int, size: int) -> tuple[int, list[bytes]]:
    """Return the length of a message, and the headers of its fields.

    Raises
    ------
    FormatError
        The message is damaged or truncated.
    UnsupportedError
        It is too long for edition 1.
    """
    file.seek(offset)
    start = file.read(16)
    edition, length = _parse_indicator(start, offset, size)
    if edition == 1:
        return length, [_read_first_edition(file, offset, length)]
    headers = _read_second_edition(file, offset, start, length)
    _check_end(file, offset, length)
    return length, headers


def _check_end(file: BinaryIO, offset: int, length: int) -> None:
    """Raise an error for a message that is truncated before the next one begins.

    Its end is only checked if neither a message nor the end of the file follows: the end of a
    remote message may cost a request.
    """
    file.seek(offset + length)
    if file.read(len(BEGIN)) in (BEGIN, b""):
        return
    file.seek(offset + length - len(END))
    if file.read(len(END)) != END:
        raise _make_broken_error(offset)


def _make_broken_error(offset: int) -> FormatError:
    return FormatError(
        f"GRIB message at byte {offset}: it does not end where it says; the file is damaged or "
        f"truncated"
    )


def _parse_indicator(start: bytes, offset: int, size: int) -> tuple[int, int]:
    """Return the edition and length of a message from its first 16 bytes."""
    edition = start[7] if len(start) == 16 else 0
    if edition not in (1, 2):
        raise FormatError(
            f"GRIB message at byte {offset}: it is of edition {edition}; "
            "the file is damaged, fetch it again"
        )
    length = int.from_bytes(start[8:16] if edition == 2 else start[4:7], "big")
    if edition == 1 and length >= LARGE_MESSAGE:
        raise UnsupportedError(
            f"GRIB message at byte {offset}: edition 1 with more than {LARGE_MESSAGE} bytes, whose "
            f"length is encoded differently; convert it with grib_set -s edition=2"
        )
    if offset + length > size:
        raise FormatError(
            f"GRIB message at byte {offset}: it has {length} bytes, the file ends at {size}; it "
            f"is truncated"
        )
    return edition, length


def _read_second_edition(file: BinaryIO, offset: int, start: bytes, total: int) -> list[bytes]:
    """Return the header of each field as a message without values."""
    headers, sections, inside = list[bytes](), dict[int, bytes](), 16
    while inside + 5 <= total:
        file.seek(offset + inside)
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
        f"GRIB message at byte {offset}: its sections do not add up; "
        "the file is damaged, fetch it again"
    )


def _join_header(start: bytes, sections: Mapping[int, bytes]) -> bytes:
    body = b"".join(sections[n] for n in HEADER_SECTIONS if n in sections) + EMPTY_SECTIONS
    return start[:8] + (len(start) + len(body)).to_bytes(8, "big") + body


def _read_first_edition(file: BinaryIO, offset: int, length: int) -> bytes:
    """Return a whole message, since messages of edition 1 are small."""
    file.seek(offset)
    message = file.read(length)
    if len(message) < length or length < 16 or message[-4:] != END:
        raise _make_broken_error(offset)
    try:
        check_edition_1(message)
    except ContradictionError as error:
        raise FormatError(
            f"GRIB message at byte {offset}: {error}; the file is damaged, fetch it again"
        ) from error
    return message


# ---------------------------------------------------------------------- headers of other days
# Headers without what differs from day to day, so that similar messages are parsed once: edition 2,
# sections 1 and 3 to 5, product definition templates 4.0 to 4.12, data representation templates 5.0
# to 5.42; edition 1, sections 1, 2 and 4.
#
# ecCodes takes milliseconds for the keys of a message. Messages of other days differ in slots: the
# date, the date on which an interval ends, and how values are packed. Except for the date itself,
# no key that is read depends on a slot. Slots get constant values and every other byte stays, so a
# message that is not understood here is only parsed again. The time of day is not a slot: ecCodes'
# definitions of ERA6 need it.


MAX_HEADER = 16 * 1024
"""The maximum size in bytes of a header that is cached."""
PLAIN = 21
"""The length of section 1 without a calendar; its octets 13 to 16 are year, month and day."""
INSTANTS = frozenset({0, 1, 2, 5, 6})
"""Product definition templates of points in time."""
ENDS = {8: 35, 9: 48, 10: 36, 11: 38, 12: 37}
"""The octet of the year in which an interval ends, by product definition template."""
PACKINGS = frozenset({0, 2, 3, 4, 40, 41, 42})
"""Data representation templates that only affect values."""
PACKED_LIKE = 11
"""The size in bytes of section 5 before its template: length, number of values, template number."""
PLAIN_GRIDS = frozenset({0, 1, 3, 5, 10})
"""Edition 1: grids whose number of points follows from section 2 (table 6), if Ni is given."""
LOCAL_FROM, ECMWF, MARS = 40, 98, 1
"""Edition 1: octets before a local part; the centre and number of a local part that is known."""
NO_VALUES = b"\0\0\x0c\x08" + bytes(8) + b"7777"
"""Edition 1: section 4 with numbers of no bits, section 5."""
ALIKE_DAY = 20000101
ALIKE_DATE = (2000).to_bytes(2, "big") + b"\1\1"
"""The date that replaces the dates of messages."""
ANY_PRODUCT = (34).to_bytes(4, "big") + b"\4" + bytes(29)
"""Section 4 with template 4.0."""


class SharedHeader(NamedTuple):
    """The part of a header that messages of other days share.

    Parameters
    ----------
    message : bytes
        A message with the same keys except for its date, which is `ALIKE_DAY`.
    grid : bytes
        A message with the same grid.
    day : int
        The date in the header, as the integer YYYYMMDD.
    """

    message: bytes
    grid: bytes
    day: int


def find_shared_header(header: bytes) -> SharedHeader | None:
    """Return the shared part of a header, or None if its slots are unknown."""
    shared = _find_first_edition(header) if header[7:8] == b"\1" else _find_second_edition(header)
    return shared if shared and len(shared.message) <= MAX_HEADER else None


# ---------------------------------------------------------------------- edition 2


def _find_second_edition(header: bytes) -> SharedHeader | None:
    sections = _split_sections(header) if len(header) <= MAX_HEADER else None
    if sections is None:
        return None
    (start, reference, local, grid, product, packing), other_sections = sections[:6], sections[6]
    day, alike_product = _read_day(reference), _fill_product(product)
    if day is None or alike_product is None:
        return None
    reference = reference[:12] + ALIKE_DATE + reference[16:]
    packing = _fill_packing(packing)
    message = b"".join([start, reference, local, grid, alike_product, packing, other_sections])
    shared = b"".join([reference, grid, ANY_PRODUCT, packing, other_sections])
    length = (len(start) + len(shared)).to_bytes(8, "big")
    return SharedHeader(message, start[:8] + length + shared, day)


def _split_sections(header: bytes) -> list[bytes] | None:
    """Return sections 0 to 5 and the rest, or None if they are not in order; 2 is optional."""
    if header[7:8] != b"\2":
        return None
    sections, offset = [header[:16]], 16
    for number in range(1, 6):
        length = _read_number(header, offset + 1, 4)
        if (
            header[offset + 4 : offset + 5] == bytes([number])
            and 5 <= length < len(header) - offset
        ):
            sections.append(header[offset : offset + length])
            offset += length
        elif number == 2:
            sections.append(b"")
        else:
            return None
    return [*sections, header[offset:]]


def _read_day(reference: bytes) -> int | None:
    """Return the date in section 1, or None for an invalid date or another calendar."""
    if len(reference) != PLAIN:
        return None
    return _encode_date(_read_number(reference, 13, 2), reference[14], reference[15])


def _fill_product(product: bytes) -> bytes | None:
    """Return section 4 with a fixed end of its interval, or None for an unknown template."""
    template = _read_number(product, 8, 2)
    if template in INSTANTS:
        return product
    if template not in ENDS:
        return None
    at = ENDS[template] - 1
    return product[:at] + ALIKE_DATE + product[at + 4 :] if len(product) >= at + 4 else None


def _fill_packing(packing: bytes) -> bytes:
    """Return section 5 without the packing of values, if its template is known."""
    if _read_number(packing, 10, 2) not in PACKINGS:
        return packing
    return packing[:PACKED_LIKE].ljust(len(packing), b"\0")


# ---------------------------------------------------------------------- edition 1


def _find_first_edition(message: bytes) -> SharedHeader | None:
    """Return the shared part of a message with a plain grid, without bitmap and values."""
    product = message[8 : 8 + _read_number(message, 9, 3)]
    offset = 8 + len(product)
    grid = message[offset : offset + _read_number(message, offset + 1, 3)]
    if (
        len(product) < 28
        or len(grid) < 32
        or not (_has_standard_sections(product) and _is_plain(grid))
    ):
        return None
    offset += len(grid)
    if product[7] & 0x40:
        offset += _read_number(message, offset + 1, 3)
    flags, year, century = message[offset + 3 : offset + 4], product[12], product[24]
    day = _encode_date((century - 1) * 100 + year, product[13], product[14])
    if day is None or not 1 <= year <= 100 or not flags or flags[0] & 0xF0:
        return None
    of_grid = b"\0\0\x1c" + product[3:7] + bytes(21)
    return SharedHeader(_join_first(product, grid), _join_first(of_grid, grid), day)


def _has_standard_sections(product: bytes) -> bool:
    """Return whether a message has section 2, and no local definitions that may redefine keys."""
    plain = len(product) <= LOCAL_FROM or (product[4], product[40]) == (ECMWF, MARS)
    return plain and bool(product[7] & 0x80)


def _is_plain(grid: bytes) -> bool:
    return grid[5] in PLAIN_GRIDS and grid[6:8] != b"\xff\xff"


def _join_first(product: bytes, grid: bytes) -> bytes:
    """Return a message without bitmap and values, with a fixed date."""
    parts = [product[:7], b"\x80", product[8:12], bytes([100, 1, 1])]
    parts += [product[15:24], bytes([20]), product[25:]]
    product = b"".join(parts)
    length = 8 + len(product) + len(grid) + len(NO_VALUES)
    return b"GRIB" + length.to_bytes(3, "big") + b"\1" + product + grid + NO_VALUES


# ---------------------------------------------------------------------- numbers


def _encode_date(year: int, month: int, day: int) -> int | None:
    """Return a date as the integer YYYYMMDD, as in ecCodes, or None if it is invalid."""
    try:
        date(year, month, day)
    except ValueError:
        return None
    return year * 10000 + month * 100 + day


def _read_number(data: bytes, octet: int, width: int) -> int:
    """Return the number that begins at an octet, counted from 1."""
    return int.from_bytes(data[octet - 1 : octet - 1 + width], "big")


# ---------------------------------------------------------------------- names, as in cfgrib

OF_PARAMETERS = (
    *("paramId", "dataType", "numberOfPoints", "typeOfLevel", "stepType", "gridType"),
    "uvRelativeToGrid",
)
"""Keys that are attributes of variables, unless they are unknown."""
DESCRIBING = (
    *("shortName", "name", "units", "cfName", "cfVarName", "totalNumber", "numberOfDirections"),
    *("numberOfFrequencies", "NV", "gridDefinitionDescription"),
)
"""Keys that are always attributes of variables."""
OF_DATASETS = ("edition", "centre", "centreDescription", "subCentre")
UNKNOWN = ("undef", "unknown")

_SCANS = ("iScansNegatively", "jScansPositively", "jPointsAreConsecutive")
_FIRST = ("latitudeOfFirstGridPointInDegrees", "longitudeOfFirstGridPointInDegrees")
_LAST = ("latitudeOfLastGridPointInDegrees", "longitudeOfLastGridPointInDegrees")
_STEPS = ("iDirectionIncrementInDegrees", "jDirectionIncrementInDegrees")
_POLE = ("latitudeOfSouthernPoleInDegrees", "longitudeOfSouthernPoleInDegrees")
_TURN = "angleOfRotationInDegrees"
OF_GRIDS: dict[str, tuple[str, ...]] = {
    "regular_ll": ("Nx", "Ny", *_SCANS, *_FIRST, *_LAST, *_STEPS),
    "rotated_ll": ("Nx", "Ny", *_SCANS, *_FIRST, *_LAST, *_STEPS, *_POLE, _TURN),
    "reduced_ll": ("Ny", *_SCANS[1:], _FIRST[0], _LAST[0], _STEPS[1]),
    "regular_gg": ("N", "Ni", "Nj", *_SCANS, *_FIRST, *_LAST, _STEPS[0]),
    "rotated_gg": ("N", "Nx", "Ny", *_SCANS, *_FIRST, *_LAST, _STEPS[0], *_POLE, _TURN),
    "lambert": (
        *("Nx", "Ny", "DxInMetres", "DyInMetres", *_SCANS, *_FIRST, *_POLE),
        *("LaDInDegrees", "LoVInDegrees", "Latin1InDegrees", "Latin2InDegrees"),
    ),
    "reduced_gg": ("N", "pl"),
    "sh": ("J", "K", "M"),
}
"""Keys that are attributes of variables, by the type of their grid."""
PLANES = (
    *("rotated_ll", "rotated_gg", "lambert", "lambert_azimuthal_equal_area", "albers"),
    "polar_stereographic",
)
"""Grids with rows and columns, whose points have two coordinates each."""

SINCE_1970 = {"units": "seconds since 1970-01-01T00:00:00", "calendar": "proleptic_gregorian"}
_PRESSURE = {"positive": "down", "standard_name": "air_pressure", "long_name": "pressure"}
_DEPTH = {"units": "m", "positive": "down", "standard_name": "depth", "long_name": "soil depth"}
OF_COORDINATES: dict[str, dict[str, Any]] = {
    "latitude": {"units": "degrees_north", "standard_name": "latitude", "long_name": "latitude"},
    "longitude": {"units": "degrees_east", "standard_name": "longitude", "long_name": "longitude"},
    "number": {
        "units": "1",
        "standard_name": "realization",
        "long_name": "ensemble member numerical id",
    },
    "time": {
        **SINCE_1970,
        "standard_name": "forecast_reference_time",
        "long_name": "initial time of forecast",
    },
    "step": {
        "units": "hours",
        "standard_name": "forecast_period",
        "long_name": "time since forecast_reference_time",
        "dtype": "timedelta64[ns]",
    },
    "valid_time": {**SINCE_1970, "standard_name": "time", "long_name": "time"},
    "isobaricInhPa": {"units": "hPa", "stored_direction": "decreasing", **_PRESSURE},
    "isobaricInPa": {"units": "Pa", "stored_direction": "decreasing", **_PRESSURE},
    "isobaricLayer": {"units": "Pa", **_PRESSURE},
    "heightAboveGround": {
        "units": "m",
        "positive": "up",
        "standard_name": "height",
        "long_name": "height above the surface",
    },
    "depthBelowLand": _DEPTH,
    "depthBelowLandLayer": _DEPTH,
    "hybrid": {
        "units": "1",
        "positive": "down",
        "standard_name": "atmosphere_hybrid_sigma_pressure_coordinate",
        "long_name": "hybrid level",
    },
}


def name_variable(keys: Mapping[str, Any]) -> str:
    """Return the name of a field's variable.

    Examples
    --------
    >>> name_variable({"cfVarName": "t2m", "shortName": "2t"})
    't2m'
    >>> name_variable({"cfVarName": "unknown", "paramId": 7})
    'paramId_7'
    """
    if (name := keys.get("cfVarName", "unknown")) not in UNKNOWN:
        return str(name)
    return str(keys.get("shortName", f"paramId_{keys.get('paramId', 0)}"))


def name_level(keys: Mapping[str, Any]) -> str:
    """Return the name of a field's axis of levels."""
    name = str(keys.get("typeOfLevel", "undef"))
    return "level" if name in UNKNOWN else name


def describe_variable(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a field's variable."""
    parameter_keys = {n: keys[n] for n in OF_PARAMETERS if keys.get(n, "undef") not in UNKNOWN}
    of_grid = OF_GRIDS.get(str(keys.get("gridType")), ())
    parameter_keys |= {n: keys[n] for n in (*DESCRIBING, *of_grid) if n in keys}
    # cfgrib counts all steps in hours
    parameter_keys |= {"stepUnits": 1, "missingValue": ECCODES_MISSING}
    attributes = {
        f"GRIB_{n}": np.array(v) if isinstance(v, tuple) else v for n, v in parameter_keys.items()
    }
    attributes |= {"long_name": keys.get("name", f"original GRIB paramId: {keys.get('paramId')}")}
    attributes |= {"units": keys.get("units", "1")}
    return attributes | ({"standard_name": keys["cfName"]} if "cfName" in keys else {})


def describe_coordinate(name: str, key: str) -> dict[str, Any]:
    """Return the attributes of a coordinate made from a key.

    Examples
    --------
    >>> describe_coordinate("surface", "level")["long_name"]
    'original GRIB coordinate for key: level(surface)'
    """
    unnamed = {"long_name": f"original GRIB coordinate for key: {key}({name})", "units": "1"}
    return unnamed | OF_COORDINATES.get(name, {})


def describe_dataset(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a dataset from the keys of one of its fields."""
    attributes = {f"GRIB_{n}": keys[n] for n in OF_DATASETS if keys.get(n, "undef") not in UNKNOWN}
    attributes["Conventions"] = "CF-1.7"
    if "GRIB_centreDescription" in attributes:
        attributes["institution"] = attributes["GRIB_centreDescription"]
    return attributes


# ---------------------------------------------------------------------- fields

ALIKE_MESSAGES = 4096
"""The number of messages whose keys are cached for similar messages, about 5 KB each."""
ALIKE_GRIDS, ALIKE_POINTS = 4, 2**21
"""The number of grids whose coordinates are cached, and their maximum number of points: 128 MiB."""
LAST_SECTION = {1: ("offsetSection5", 4), 2: ("offsetSection7", 9)}
"""The key with the offset of the last section of a header, and the bytes from there, by edition."""
FIRST_DAY = 10101
"""The first day with a year, as an integer of ecCodes."""
NOT_GIVEN = -1e100
"""An increment that a grid does not have."""
MAX_HOURS = 2**63 // (3600 * 10**9)
"""Maximum number of hours of a step that nanoseconds can represent."""
SECONDS = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200, 13: 1, 14: 900, 15: 1800}
"""The units of time in seconds (code table 4.4, and ecCodes' own codes for edition 1)."""
UNIT, MISSING_UNIT = "indicatorOfUnitOfTimeRange", 255
"""The key of the unit of steps of a message, and its value if there is none."""
PARAMETER_NUMBERS = (
    *("discipline", "parameterCategory", "parameterNumber", "table2Version"),
    "indicatorOfParameter",
)
"""Keys that number a parameter in the tables of its edition."""
TEXTS = (
    *("cfName", "cfVarName", "shortName", "name", "units", "typeOfLevel", "stepType", "gridType"),
    *("stepRange", "md5GridSection", "dataType", "centre", "centreDescription"),
    *("gridDefinitionDescription",),
)
NUMBERS = (
    *("edition", "paramId", "numberOfDataPoints", "Nx", "Ny", "number", "dataDate", "dataTime"),
    *("hour", "minute", "second", "endStep", "stepUnits", "jPointsAreConsecutive"),
    *("iScansNegatively", "jScansPositively", "alternativeRowScanning", "uvRelativeToGrid"),
    *("subCentre", "totalNumber", "percentileValue", "perturbationNumber", "bottomLevel"),
    *("probabilityType", "typeOfStatisticalProcessing", "forecastProbabilityNumber"),
    *("numberOfPoints", "numberOfDirections", "numberOfFrequencies", "NV", "constituentType"),
    *("directionNumber", "frequencyNumber", "aerosolType", "scaledValueOfFirstWavelength"),
    *("statisticalProcess", "scaledValueOfSecondFixedSurface", UNIT, *PARAMETER_NUMBERS),
)
LISTED_KEYS = frozenset({*TEXTS, *NUMBERS, "level"})
"""Keys that are read from every field."""


@dataclass(frozen=True)
class GribField:
    """One field: the position of its message, and its keys.

    Parameters
    ----------
    offset, length : int
        In bytes.
    header : bytes
        A message that ecCodes accepts, with little more than its header.
    keys : dict
        Values by ecCodes' names, without missing keys.
    number : int
        The index of the field in its message.
    """

    offset: int
    length: int
    header: bytes
    keys: dict[str, Any]
    number: int = 0

    def check_time(self) -> None:
        """Raise an error for a field whose time or step is invalid.

        Raises
        ------
        FormatError, UnsupportedError
        """
        _ = self.time, self.step

    @property
    def time(self) -> int | None:
        """The beginning of the forecast in seconds since 1970; None for a date without a year."""
        if int(self.keys["dataDate"]) < FIRST_DAY:
            return None
        day, clock = str(self.keys["dataDate"]).zfill(8), int(self.keys["dataTime"])
        try:
            date = np.datetime64(f"{day[:-4]}-{day[-4:-2]}-{day[-2:]}", "s")
        except ValueError as error:
            raise FormatError(
                f"GRIB message at byte {self.offset}: its date is {day}; "
                "the file is damaged, fetch it again"
            ) from error
        return int(date.astype(int)) + clock // 100 * 3600 + clock % 100 * 60

    @property
    def step(self) -> float | None:
        """Hours from the beginning of the forecast to the field, or to the end of its interval.

        Observations have none.
        """
        if "endStep" not in self.keys:
            self._check_known_unit()
            return None
        unit = int(self.keys.get("stepUnits", 1))
        if unit not in SECONDS:
            raise UnsupportedError(
                f"GRIB message at byte {self.offset}: steps are counted in unit {unit}, which has "
                f"no fixed length; extract it with grib_copy"
            )
        hours = int(self.keys["endStep"]) * SECONDS[unit] / 3600
        if abs(hours) > MAX_HOURS:
            raise FormatError(
                f"GRIB message at byte {self.offset}: its step is {hours} hours; the file is "
                f"damaged"
            )
        return hours

    def _check_known_unit(self) -> None:
        """Raise an error for an invalid unit of time, for which ecCodes has no step."""
        unit = int(self.keys.get(UNIT, MISSING_UNIT))
        if unit not in SECONDS and unit != MISSING_UNIT:
            raise FormatError(
                f"GRIB message at byte {self.offset}: its step is counted in unit {unit}, which "
                f"ecCodes does not know; the file is damaged, fetch it again"
            )


def scan_messages(
    file: BinaryIO, size: int, eccodes: Any, damaged: dict[str, VirtualdsError]
) -> Iterator[GribField]:
    """Yield the fields of a file in order, and add errors of messages to ``damaged``."""
    for offset, length, number, header in find_fields(file, size, damaged.__setitem__):
        try:
            field = GribField(offset, length, header, _read_keys(header, offset, eccodes), number)
            field.check_time()
        except VirtualdsError as error:
            damaged[f"message at byte {offset}"] = error
        else:
            yield field


def _read_keys(header: bytes, offset: int, eccodes: Any) -> dict[str, Any]:
    """Return the keys of a message that ecCodes supports."""
    alike = find_shared_header(header)
    try:
        values = (
            _parse_shared_header(alike.message, eccodes, _find_definitions(eccodes))
            if alike
            else {}
        )
        if alike and values.get("dataDate") == ALIKE_DAY:
            values = {**values, "dataDate": alike.day}
        else:
            values = _parse_keys(header, eccodes)
    except (eccodes.CodesInternalError, ValueError) as error:
        raise FormatError(
            f"GRIB message at byte {offset}: ecCodes cannot read it ({error}); "
            "the file is damaged, fetch it again"
        ) from error
    if lacking := [n for n in ("shortName", "dataDate", "dataTime", "gridType") if n not in values]:
        raise FormatError(
            f"GRIB message at byte {offset}: ecCodes finds no {lacking} in it; it is damaged, or "
            "of a grid or parameter that ecCodes does not know: leave it out with on_error='skip'"
        )
    return values


def _parse_keys(message: bytes, eccodes: Any) -> dict[str, Any]:
    """Parse the keys of a message with ecCodes, which takes milliseconds."""
    values: dict[str, Any] = {}
    with _open_message(message, eccodes) as handle:
        # steps keep the unit of the message
        for kind, names in ((str, TEXTS), (int, NUMBERS), (float, ("level",))):
            values |= _get_keys(handle, names, kind, eccodes)
        of_grid = OF_GRIDS.get(values.get("gridType", ""), ())
        values |= _get_keys(handle, [n for n in of_grid if n not in values], None, eccodes)
    return values


def _get_keys(handle: Any, names: Iterable[str], kind: Any, eccodes: Any) -> dict[str, Any]:
    """Return the keys that a message has, in their native type if ``kind`` is None."""
    values: dict[str, Any] = {}
    for name in names:
        try:
            if name == "pl":
                values[name] = tuple(eccodes.codes_get_array(handle, name).tolist())
            else:
                values[name] = eccodes.codes_get(handle, name, kind)
        except (eccodes.KeyValueNotFoundError, eccodes.InvalidTypeError):
            continue
        except eccodes.CodesInternalError:
            # the key needs another key that the message lacks
            continue
    return values


def read_key(field: GribField, name: str, eccodes: Any) -> Any:
    """Return the value of any key in its native type, or None if the field lacks it."""
    with _open_message(field.header, eccodes) as handle:
        return _get_keys(handle, [name], None, eccodes).get(name)


@lru_cache(ALIKE_MESSAGES)
def _parse_shared_header(message: bytes, eccodes: Any, definitions: str) -> dict[str, Any]:
    """Return the keys of the shared part of messages; the result must not be changed.

    It is empty if a section has more content than space.
    """
    return _parse_keys(message, eccodes) if _is_filled(message, eccodes) else {}


def read_coordinates(message: GribField, eccodes: Any) -> dict[str, npt.NDArray[np.float64]]:
    """Return the latitudes and longitudes of all points in order, or nothing without coordinates.

    They are shared by all files with the same grid, so they are read-only.

    Raises
    ------
    UnsupportedError
        There are too many to load.
    FormatError
        The rows of a reduced grid do not add up to the grid.
    """
    count = int(message.keys.get("numberOfDataPoints") or 0)
    check_values(16 * count, "latitude and longitude")
    _check_rows(message, count, eccodes)
    alike = find_shared_header(message.header) if count <= ALIKE_POINTS else None
    coordinates = {}
    if alike is not None:
        coordinates = _parse_shared_coordinates(alike.grid, eccodes, _find_definitions(eccodes))
    coordinates = coordinates or _parse_coordinates(message.header, eccodes)
    return {name: values for name, values in coordinates.items() if len(values) == count}


def _check_rows(message: GribField, count: int, eccodes: Any) -> None:
    """Raise an error for a reduced grid whose rows do not add up to the grid.

    For them ecCodes writes past its memory, or returns latitudes that do not exist. A part of a
    Gaussian grid has fewer points than its rows around the globe.
    """
    grid = str(message.keys.get("gridType"))
    if not grid.startswith("reduced_"):
        return
    row_lengths, rows, half = (read_key(message, name, eccodes) for name in ("pl", "Nj", "N"))
    points = row_lengths or ()
    if grid.endswith("_gg"):
        is_sound = len(points) <= 2 * int(half or 0) and sum(points) >= count
    else:
        is_sound = sum(points) == count
    if len(points) != rows or not is_sound:
        raise FormatError(
            f"GRIB message at byte {message.offset}: its grid has {count} points in {rows} rows, "
            f"and {len(points)} rows have {sum(points)} points; the file is damaged, fetch it again"
        )


def _parse_coordinates(message: bytes, eccodes: Any) -> dict[str, npt.NDArray[np.float64]]:
    with _open_message(message, eccodes) as handle:
        try:
            _set_increment(handle, eccodes)
            coordinates = {
                n: eccodes.codes_get_array(handle, f"{n}s") for n in ("latitude", "longitude")
            }
        except (eccodes.CodesInternalError, ValueError):
            return {}
    return {name: np.asarray(values, np.float64) for name, values in coordinates.items()}


def _set_increment(handle: Any, eccodes: Any) -> None:
    """Set the row increment of a grid of one row, as ecCodes crashes without it."""
    name = "jDirectionIncrementInDegrees"
    rows = _get_keys(handle, ["Nj", name], float, eccodes)
    if rows.get("Nj", 2) < 2 and rows.get(name) == NOT_GIVEN:
        eccodes.codes_set(handle, "jDirectionIncrementGiven", 1)
        eccodes.codes_set(handle, "jDirectionIncrement", 1)


@lru_cache(ALIKE_GRIDS)
def _parse_shared_coordinates(
    message: bytes, eccodes: Any, definitions: str
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the coordinates of a grid that many messages share."""
    coordinates = _parse_coordinates(message, eccodes) if _is_filled(message, eccodes) else {}
    for values in coordinates.values():
        values.flags.writeable = False
    return coordinates


def _is_filled(message: bytes, eccodes: Any) -> bool:
    """Return whether each section ends where its length says.

    ecCodes extends a section if its contents do not fit, and then uses bytes of the next one, and
    thereby of slots. Then the last section begins later.
    """
    name, length = LAST_SECTION[message[7]]
    with _open_message(message, eccodes) as handle:
        try:
            offset = eccodes.codes_get(handle, name, int)
        except eccodes.CodesInternalError:
            return False
    return bool(offset == len(message) - length)


def _find_definitions(eccodes: Any) -> str:
    """Return the path of ecCodes' definitions, which the user may change."""
    return str(eccodes.codes_definition_path())


@contextmanager
def _open_message(message: bytes, eccodes: Any) -> Iterator[Any]:
    handle = eccodes.codes_new_from_message(message)
    try:
        yield handle
    finally:
        eccodes.codes_release(handle)
