"""Messages of GRIB files, and the keys of their fields, which are read with ecCodes.

The format is defined by the WMO Manual on Codes, volume I.2, FM 92 GRIB, editions 1 and 2. Octets
are counted from 1, as there.
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
from virtualds.codecs.grib import (
    ECCODES_MISSING,
    ContradictionError,
    check_edition_1,
    split_sections,
)
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, make_damage_error

# ---------------------------------------------------------------------- positions of messages
# Section 0 (indicator) and the lengths of sections. In edition 2, sections 2 to 7, 3 to 7 or 4 to 7
# may be repeated, and each section 7 ends a field (92.6). Only the sections before the values are
# read.


BEGIN_MARKER, END_MARKER = b"GRIB", b"7777"
INDICATOR_BYTES = 24
"""Number of bytes that identify a message: section 0, and the start of section 1."""
SEARCH_BYTES = 64 * 1024
"""Number of bytes to search at a time for the next message."""
HEADING_BYTES = 64 * 1024
"""Maximum number of bytes other than padding before a message: headings of bulletins."""
PADDING = b"\0 \r\n\x03\x04\x1a"
"""Characters that may be repeated between and after messages: padding, and ends of bulletins."""
MIN_LONG_BYTES = 0x800000
"""Length in bytes from which edition 1 encodes lengths differently (ECMWF)."""
EMPTY_SECTIONS = bytes([0, 0, 0, 6, 6, 255]) + bytes([0, 0, 0, 5, 7]) + END_MARKER
"""Section 6 without a bitmap, section 7 without values, section 8."""
HEADER_SECTIONS = range(1, 6)
"""Numbers of the sections of edition 2 that form a header."""


class FieldHeader(NamedTuple):
    """The location and header of a field.

    Parameters
    ----------
    offset, length : int
        The location of its message, in bytes.
    field : int
        The index of the field in the message.
    header : bytes
        A message without values that ecCodes accepts, with the header of the field.
    """

    offset: int
    length: int
    field: int
    header: bytes


ReportDamage = Callable[[str, VirtualdsError], None]
"""A function that takes the name of a damaged position in a file, and its error."""


def is_message(data: bytes) -> bool:
    """Return whether bytes begin with the indicator of a message and the length of section 1."""
    if data[:4] != BEGIN_MARKER or len(data) < INDICATOR_BYTES:
        return False
    if data[7] == 1:
        return 28 <= int.from_bytes(data[8:11], "big") < 4096
    return data[7] == 2 and data[16:18] == b"\0\0" and data[20] == 1


def find_message(data: bytes, stop: int | None = None) -> int:
    """Return the offset of the first message before ``stop``, or -1 if there is none."""
    at = data.find(BEGIN_MARKER, 0, stop)
    while at >= 0 and not is_message(data[at : at + INDICATOR_BYTES]):
        at = data.find(BEGIN_MARKER, at + 1, stop)
    return at


def find_fields(file: BinaryIO, size: int, report_damage: ReportDamage) -> Iterator[FieldHeader]:
    """Yield the fields of a file in order, and report damage.

    Parameters
    ----------
    file : binary file
    size : int
        The size of the file in bytes.
    report_damage : callable
        Takes the name of a damaged position and its error; the search continues after it.
    """
    offset, is_searching = 0, False
    while True:
        begin, other_bytes = _find_next_message(file, offset, size)
        if not is_searching and other_bytes > (0 if begin == size else HEADING_BYTES):
            problem = FormatError(
                f"GRIB file: no message begins between bytes {offset} and {begin}, which hold "
                f"other data; it is damaged or truncated: fetch it again"
            )
            report_damage(f"bytes from {offset}", problem)
        if begin == size:
            return
        try:
            length, headers = _read_message(file, begin, size)
        except VirtualdsError as error:
            report_damage(f"message at byte {begin}", error)
            offset, is_searching = begin + len(BEGIN_MARKER), True
            continue
        yield from (FieldHeader(begin, length, n, header) for n, header in enumerate(headers))
        offset, is_searching = begin + length, False


def _find_next_message(file: BinaryIO, offset: int, size: int) -> tuple[int, int]:
    """Return the offset of the next message, and the number of non-padding bytes before it.

    The offset is the size of the file if there is no further message.
    """
    file.seek(offset)
    if file.read(min(len(BEGIN_MARKER), size - offset)) == BEGIN_MARKER:
        return offset, 0
    other_bytes = 0
    for begin in range(offset, size, SEARCH_BYTES):
        file.seek(begin)
        block = file.read(min(SEARCH_BYTES + INDICATOR_BYTES, size - begin))
        at = find_message(block, SEARCH_BYTES + len(BEGIN_MARKER) - 1)
        other_bytes += len(block[: at if at >= 0 else SEARCH_BYTES].strip(PADDING))
        if at >= 0:
            return begin + at, other_bytes
    return size, other_bytes


def _read_message(file: BinaryIO, offset: int, size: int) -> tuple[int, list[bytes]]:
    """Return the length of a message, and the headers of its fields.

    Raises `FormatError` if the message is damaged or truncated, and `UnsupportedError` if the
    message is too long for edition 1.
    """
    file.seek(offset)
    start = file.read(16)
    edition, length = _parse_indicator(start, offset, size)
    if edition == 1:
        return length, [_read_edition_1(file, offset, length)]
    headers = _read_edition_2(file, offset, start, length)
    _check_end(file, offset, length)
    return length, headers


def _check_end(file: BinaryIO, offset: int, length: int) -> None:
    """Raise an error for a message without an end marker, which may be truncated.

    The marker is checked only if it is followed by neither a message nor the end of the file, since
    reading the end of a remote message may take a request.
    """
    file.seek(offset + length)
    if file.read(len(BEGIN_MARKER)) in (BEGIN_MARKER, b""):
        return
    file.seek(offset + length - len(END_MARKER))
    if file.read(len(END_MARKER)) != END_MARKER:
        raise _make_no_end_error(offset)


def _make_no_end_error(offset: int) -> FormatError:
    return FormatError(
        f"GRIB message at byte {offset}: it does not end where its length says; the file is "
        f"damaged or truncated"
    )


def _parse_indicator(start: bytes, offset: int, size: int) -> tuple[int, int]:
    """Return the edition and length of a message from its first 16 bytes."""
    edition = start[7] if len(start) == 16 else 0
    if edition not in (1, 2):
        raise make_damage_error(f"GRIB message at byte {offset}: it is of edition {edition}")
    length = int.from_bytes(start[8:16] if edition == 2 else start[4:7], "big")
    if edition == 1 and length >= MIN_LONG_BYTES:
        raise UnsupportedError(
            f"GRIB message at byte {offset}: edition 1 with {MIN_LONG_BYTES} bytes or more, "
            "whose length is encoded differently; convert it with grib_set -s edition=2"
        )
    if offset + length > size:
        raise FormatError(
            f"GRIB message at byte {offset}: it has {length} bytes, the file ends at {size}; it "
            f"is truncated"
        )
    return edition, length


def _read_edition_2(file: BinaryIO, offset: int, start: bytes, total: int) -> list[bytes]:
    """Return the header of each field as a message without values."""
    headers, sections, position = list[bytes](), dict[int, bytes](), 16
    while position + 5 <= total:
        file.seek(offset + position)
        section_header = file.read(5).ljust(5, b"\0")
        length, number = int.from_bytes(section_header[:4], "big"), section_header[4]
        if length < 5 or not 1 <= number <= 7 or position + length > total:
            break
        position += length
        if number in HEADER_SECTIONS:
            sections[number] = section_header + file.read(length - 5)
        elif number == 7:
            body = b"".join(sections[n] for n in HEADER_SECTIONS if n in sections) + EMPTY_SECTIONS
            headers.append(start[:8] + (len(start) + len(body)).to_bytes(8, "big") + body)
            if position + len(END_MARKER) >= total:
                return headers
    raise make_damage_error(f"GRIB message at byte {offset}: its sections do not add up")


def _read_edition_1(file: BinaryIO, offset: int, length: int) -> bytes:
    """Return a whole message; messages of edition 1 are small."""
    file.seek(offset)
    message = file.read(length)
    if len(message) < length or length < 16 or message[-4:] != END_MARKER:
        raise _make_no_end_error(offset)
    try:
        check_edition_1(message)
    except ContradictionError as error:
        raise make_damage_error(f"GRIB message at byte {offset}: {error}") from error
    return message


# ---------------------------------------------------------------------- headers of other days
# Headers without the parts that differ from day to day, so that similar messages are parsed only
# once: edition 2, sections 1 and 3 to 5, product definition templates 4.0 to 4.12, data
# representation templates 5.0 to 5.42; edition 1, sections 1, 2 and 4.
#
# ecCodes takes milliseconds to parse the keys of a message. Messages of other days differ in the
# date, the date on which an interval ends, and the packing of values. Except for the date, no key
# that is read depends on these bytes, so they are replaced by constants. All other bytes are
# unchanged, so an unknown kind of message is only parsed again. The time of day is not replaced,
# since ecCodes' definitions of ERA6 need it.


MAX_HEADER = 16 * 1024
"""Maximum size in bytes of a header that is cached."""
SECTION_1_BYTES = 21
"""Size in bytes of section 1 without a calendar; octets 13 to 16 are year, month and day."""
INSTANT_TEMPLATES = frozenset({0, 1, 2, 5, 6})
"""Product definition templates without an interval."""
END_YEAR_OCTETS = {8: 35, 9: 48, 10: 36, 11: 38, 12: 37}
"""Octet of the year in which an interval ends, by product definition template."""
KNOWN_PACKINGS = frozenset({0, 2, 3, 4, 40, 41, 42})
"""Data representation templates that only affect values."""
PACKING_HEADER_BYTES = 11
"""Size in bytes of section 5 before its template."""
REGULAR_GRID_TYPES = frozenset({0, 1, 3, 5, 10})
"""Edition 1: types of grids whose number of points is in section 2 (table 6), if Ni is given."""
STANDARD_PRODUCT_BYTES, ECMWF, MARS_LABELLING = 40, 98, 1
"""Edition 1: size of section 1 without a local part; centre and number of a known local part."""
NO_VALUES = b"\0\0\x0c\x08" + bytes(8) + b"7777"
"""Edition 1: section 4 with values of zero bits, section 5."""
SHARED_DAY = 20000101
SHARED_DATE = (2000).to_bytes(2, "big") + b"\1\1"
"""Date in shared headers, which replaces the dates of messages."""
DEFAULT_PRODUCT = (34).to_bytes(4, "big") + b"\4" + bytes(29)
"""Section 4 with template 4.0."""


class SharedHeader(NamedTuple):
    """The header that messages of other days share.

    Parameters
    ----------
    message : bytes
        A message with the same keys except for the date, which is `SHARED_DAY`.
    grid : bytes
        A message with the same grid.
    day : int
        The date in the header, as the integer YYYYMMDD.
    """

    message: bytes
    grid: bytes
    day: int


def find_shared_header(header: bytes) -> SharedHeader | None:
    """Return the shared header of a message, or None if it is unknown which bytes may differ."""
    shared = _share_edition_1(header) if header[7:8] == b"\1" else _share_edition_2(header)
    return shared if shared and len(shared.message) <= MAX_HEADER else None


# ---------------------------------------------------------------------- edition 2


def _share_edition_2(header: bytes) -> SharedHeader | None:
    if header[7:8] != b"\2" or len(header) > MAX_HEADER:
        return None
    try:
        sections = {section[4]: bytes(section) for section in split_sections(memoryview(header))}
    except ContradictionError:
        return None
    described = [sections.get(number, b"") for number in HEADER_SECTIONS]
    start, rest = header[:16], header[16 + sum(map(len, described)) :]
    reference, local, grid, product, packing = described
    if len(reference) != SECTION_1_BYTES or not product:
        return None
    day = _encode_date(_read_number(reference, 13, 2), reference[14], reference[15])
    shared_product = _normalise_product(product)
    if day is None or shared_product is None:
        return None
    reference = reference[:12] + SHARED_DATE + reference[16:]
    if _read_number(packing, 10, 2) in KNOWN_PACKINGS:
        packing = packing[:PACKING_HEADER_BYTES].ljust(len(packing), b"\0")
    message = b"".join([start, reference, local, grid, shared_product, packing, rest])
    shared = b"".join([reference, grid, DEFAULT_PRODUCT, packing, rest])
    length = (len(start) + len(shared)).to_bytes(8, "big")
    return SharedHeader(message, start[:8] + length + shared, day)


def _normalise_product(product: bytes) -> bytes | None:
    """Return section 4 with a constant end of the interval, or None for an unknown template."""
    template = _read_number(product, 8, 2)
    if template in INSTANT_TEMPLATES:
        return product
    if template not in END_YEAR_OCTETS:
        return None
    at = END_YEAR_OCTETS[template] - 1
    return product[:at] + SHARED_DATE + product[at + 4 :] if len(product) >= at + 4 else None


# ---------------------------------------------------------------------- edition 1


def _share_edition_1(message: bytes) -> SharedHeader | None:
    """Return the shared header of a message, or None if it is unknown which bytes may differ."""
    product = message[8 : 8 + _read_number(message, 9, 3)]
    offset = 8 + len(product)
    grid = message[offset : offset + _read_number(message, offset + 1, 3)]
    if len(product) < 28 or len(grid) < 32 or not _has_standard_sections(product):
        return None
    if grid[5] not in REGULAR_GRID_TYPES or grid[6:8] == b"\xff\xff":
        return None
    offset += len(grid)
    if product[7] & 0x40:
        offset += _read_number(message, offset + 1, 3)
    flags, year, century = message[offset + 3 : offset + 4], product[12], product[24]
    day = _encode_date((century - 1) * 100 + year, product[13], product[14])
    if day is None or not 1 <= year <= 100 or not flags or flags[0] & 0xF0:
        return None
    grid_product = b"\0\0\x1c" + product[3:7] + bytes(21)
    return SharedHeader(_join_edition_1(product, grid), _join_edition_1(grid_product, grid), day)


def _has_standard_sections(product: bytes) -> bool:
    """Return whether a message has section 2, and no local definitions that may redefine keys."""
    is_standard = len(product) <= STANDARD_PRODUCT_BYTES or (product[4], product[40]) == (
        ECMWF,
        MARS_LABELLING,
    )
    return is_standard and bool(product[7] & 0x80)


def _join_edition_1(product: bytes, grid: bytes) -> bytes:
    """Return a message of edition 1 without bitmap and values, with a constant date."""
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

PARAMETER_KEYS = (
    *("paramId", "dataType", "numberOfPoints", "typeOfLevel", "stepType", "gridType"),
    "uvRelativeToGrid",
)
"""Keys that become attributes of variables, unless they are unknown."""
DESCRIPTIVE_KEYS = (
    *("shortName", "name", "units", "cfName", "cfVarName", "totalNumber", "numberOfDirections"),
    *("numberOfFrequencies", "NV", "gridDefinitionDescription"),
)
"""Keys that always become attributes of variables."""
DATASET_KEYS = ("edition", "centre", "centreDescription", "subCentre")
UNKNOWN_VALUES = ("undef", "unknown")

_SCANS = ("iScansNegatively", "jScansPositively", "jPointsAreConsecutive")
_FIRST = ("latitudeOfFirstGridPointInDegrees", "longitudeOfFirstGridPointInDegrees")
_LAST = ("latitudeOfLastGridPointInDegrees", "longitudeOfLastGridPointInDegrees")
_STEPS = ("iDirectionIncrementInDegrees", "jDirectionIncrementInDegrees")
_POLE = ("latitudeOfSouthernPoleInDegrees", "longitudeOfSouthernPoleInDegrees")
_TURN = "angleOfRotationInDegrees"
GRID_KEYS: dict[str, tuple[str, ...]] = {
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
"""Keys that become attributes of variables, by type of grid."""
CURVILINEAR_GRIDS = (
    *("rotated_ll", "rotated_gg", "lambert", "lambert_azimuthal_equal_area", "albers"),
    "polar_stereographic",
)
"""Types of grids with rows and columns and two-dimensional coordinates."""

SINCE_1970 = {"units": "seconds since 1970-01-01T00:00:00", "calendar": "proleptic_gregorian"}
_PRESSURE = {"positive": "down", "standard_name": "air_pressure", "long_name": "pressure"}
_DEPTH = {"units": "m", "positive": "down", "standard_name": "depth", "long_name": "soil depth"}
COORDINATE_ATTRIBUTES: dict[str, dict[str, Any]] = {
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


def get_variable_name(keys: Mapping[str, Any]) -> str:
    """Return the name of the variable of a field.

    Examples
    --------
    >>> get_variable_name({"cfVarName": "t2m", "shortName": "2t"})
    't2m'
    >>> get_variable_name({"cfVarName": "unknown", "paramId": 7})
    'paramId_7'
    """
    if (name := keys.get("cfVarName", "unknown")) not in UNKNOWN_VALUES:
        return str(name)
    return str(keys.get("shortName", f"paramId_{keys.get('paramId', 0)}"))


def get_level_name(keys: Mapping[str, Any]) -> str:
    """Return the name of the level axis of a field."""
    name = str(keys.get("typeOfLevel", "undef"))
    return "level" if name in UNKNOWN_VALUES else name


def describe_variable(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the variable of a field."""
    parameter_keys = {
        n: keys[n] for n in PARAMETER_KEYS if keys.get(n, "undef") not in UNKNOWN_VALUES
    }
    grid_keys = GRID_KEYS.get(str(keys.get("gridType")), ())
    parameter_keys |= {n: keys[n] for n in (*DESCRIPTIVE_KEYS, *grid_keys) if n in keys}
    # cfgrib counts all steps in hours
    parameter_keys |= {"stepUnits": 1, "missingValue": ECCODES_MISSING}
    attributes = {
        f"GRIB_{n}": np.array(v) if isinstance(v, tuple) else v for n, v in parameter_keys.items()
    }
    attributes |= {"long_name": keys.get("name", f"original GRIB paramId: {keys.get('paramId')}")}
    attributes |= {"units": keys.get("units", "1")}
    return attributes | ({"standard_name": keys["cfName"]} if "cfName" in keys else {})


def describe_coordinate(name: str, key: str) -> dict[str, Any]:
    """Return the attributes of a coordinate with the values of a key.

    Examples
    --------
    >>> describe_coordinate("surface", "level")["long_name"]
    'original GRIB coordinate for key: level(surface)'
    """
    unnamed = {"long_name": f"original GRIB coordinate for key: {key}({name})", "units": "1"}
    return unnamed | COORDINATE_ATTRIBUTES.get(name, {})


def describe_dataset(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a dataset from the keys of one of its fields."""
    attributes = {
        f"GRIB_{n}": keys[n] for n in DATASET_KEYS if keys.get(n, "undef") not in UNKNOWN_VALUES
    }
    attributes["Conventions"] = "CF-1.7"
    if "GRIB_centreDescription" in attributes:
        attributes["institution"] = attributes["GRIB_centreDescription"]
    return attributes


# ---------------------------------------------------------------------- fields

CACHED_MESSAGES = 4096
"""Number of shared headers whose keys are cached, about 5 KB each."""
CACHED_GRIDS, MAX_CACHED_POINTS = 4, 2**21
"""Number of grids whose coordinates are cached, and their maximum number of points: 128 MiB."""
LAST_SECTION = {1: ("offsetSection5", 4), 2: ("offsetSection7", 9)}
"""By edition: the key of the offset of a section of a header, and the bytes from there on."""
FIRST_DAY = 10101
"""First date with a valid year, as the integer YYYYMMDD."""
MISSING_INCREMENT = -1e100
"""Value of an increment that a grid does not have."""
MAX_HOURS = 2**63 // (3600 * 10**9)
"""Maximum step in hours that nanoseconds can represent."""
UNIT_SECONDS = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200, 13: 1, 14: 900, 15: 1800}
"""Units of time in seconds (code table 4.4, and ecCodes' own codes for edition 1)."""
STEP_UNIT_KEY, MISSING_UNIT = "indicatorOfUnitOfTimeRange", 255
"""Key of the unit of steps, and its value if there is none."""
PARAMETER_NUMBERS = (
    *("discipline", "parameterCategory", "parameterNumber", "table2Version"),
    "indicatorOfParameter",
)
"""Keys that identify a parameter in the tables of its edition."""
TEXT_KEYS = (
    *("cfName", "cfVarName", "shortName", "name", "units", "typeOfLevel", "stepType", "gridType"),
    *("stepRange", "md5GridSection", "dataType", "centre", "centreDescription"),
    *("gridDefinitionDescription",),
)
INTEGER_KEYS = (
    *("edition", "paramId", "numberOfDataPoints", "Nx", "Ny", "number", "dataDate", "dataTime"),
    *("hour", "minute", "second", "endStep", "stepUnits", "jPointsAreConsecutive"),
    *("iScansNegatively", "jScansPositively", "alternativeRowScanning", "uvRelativeToGrid"),
    *("subCentre", "totalNumber", "percentileValue", "perturbationNumber", "bottomLevel"),
    *("probabilityType", "typeOfStatisticalProcessing", "forecastProbabilityNumber"),
    *("numberOfPoints", "numberOfDirections", "numberOfFrequencies", "NV", "constituentType"),
    *("directionNumber", "frequencyNumber", "aerosolType", "scaledValueOfFirstWavelength"),
    *("statisticalProcess", "scaledValueOfSecondFixedSurface", STEP_UNIT_KEY, *PARAMETER_NUMBERS),
)
LISTED_KEYS = frozenset({*TEXT_KEYS, *INTEGER_KEYS, "level"})
"""Keys that are read from every field."""


@dataclass(frozen=True)
class GribField:
    """A field: the location of its message, and its keys.

    Parameters
    ----------
    offset, length : int
        The location of its message, in bytes.
    header : bytes
        A message without values that ecCodes accepts, with the header of the field.
    keys : dict
        Values by the names of ecCodes, without missing keys.
    number : int
        The index of the field in its message.
    """

    offset: int
    length: int
    header: bytes
    keys: dict[str, Any]
    number: int = 0

    @property
    def time(self) -> int | None:
        """The reference time in seconds since 1970-01-01, or None if the date has no year."""
        if int(self.keys["dataDate"]) < FIRST_DAY:
            return None
        day, clock = str(self.keys["dataDate"]).zfill(8), int(self.keys["dataTime"])
        try:
            date = np.datetime64(f"{day[:-4]}-{day[-4:-2]}-{day[-2:]}", "s")
        except ValueError as error:
            raise make_damage_error(
                f"GRIB message at byte {self.offset}: its date is {day}"
            ) from error
        return int(date.astype(int)) + clock // 100 * 3600 + clock % 100 * 60

    @property
    def step(self) -> float | None:
        """The hours from the start of the forecast to the field, or to the end of its interval.

        None for observations.
        """
        if "endStep" not in self.keys:
            # ecCodes has no step either if its unit is invalid
            unit = int(self.keys.get(STEP_UNIT_KEY, MISSING_UNIT))
            if unit not in UNIT_SECONDS and unit != MISSING_UNIT:
                raise make_damage_error(
                    f"GRIB message at byte {self.offset}: its step is counted in unit {unit}, "
                    "which ecCodes does not know"
                )
            return None
        unit = int(self.keys.get("stepUnits", 1))
        if unit not in UNIT_SECONDS:
            raise UnsupportedError(
                f"GRIB message at byte {self.offset}: steps are counted in unit {unit}, which has "
                f"no fixed length; extract it with grib_copy"
            )
        hours = int(self.keys["endStep"]) * UNIT_SECONDS[unit] / 3600
        if abs(hours) > MAX_HOURS:
            raise FormatError(
                f"GRIB message at byte {self.offset}: its step is {hours} hours; the file is "
                f"damaged"
            )
        return hours


def scan_messages(
    file: BinaryIO, size: int, eccodes: Any, damaged: dict[str, VirtualdsError]
) -> Iterator[GribField]:
    """Yield the fields of a file in order, and add errors of messages to ``damaged``."""
    for offset, length, number, header in find_fields(file, size, damaged.__setitem__):
        try:
            field = GribField(offset, length, header, _read_keys(header, offset, eccodes), number)
            # raise the errors of an invalid time or step
            _ = field.time, field.step
        except VirtualdsError as error:
            damaged[f"message at byte {offset}"] = error
        else:
            yield field


def _read_keys(header: bytes, offset: int, eccodes: Any) -> dict[str, Any]:
    """Return the keys of a message, without those that it lacks."""
    shared_header = find_shared_header(header)
    try:
        values = (
            _parse_shared_header(shared_header.message, eccodes, _get_definitions_path(eccodes))
            if shared_header
            else {}
        )
        if shared_header and values.get("dataDate") == SHARED_DAY:
            values = {**values, "dataDate": shared_header.day}
        else:
            values = _parse_keys(header, eccodes)
    except (eccodes.CodesInternalError, ValueError) as error:
        raise make_damage_error(
            f"GRIB message at byte {offset}: ecCodes cannot read it ({error})"
        ) from error
    if missing_keys := [
        n for n in ("shortName", "dataDate", "dataTime", "gridType") if n not in values
    ]:
        raise FormatError(
            f"GRIB message at byte {offset}: ecCodes finds no {missing_keys} in it; it is damaged, "
            "or of a grid or parameter that ecCodes does not know: leave it out with "
            "on_error='skip'"
        )
    return values


def _parse_keys(message: bytes, eccodes: Any) -> dict[str, Any]:
    """Return the keys of a message, which takes ecCodes milliseconds."""
    values: dict[str, Any] = {}
    with _open_message(message, eccodes) as handle:
        # reading the steps first keeps the unit of the message
        for key_type, names in ((str, TEXT_KEYS), (int, INTEGER_KEYS), (float, ("level",))):
            values |= _get_keys(handle, names, key_type, eccodes)
        grid_keys = GRID_KEYS.get(values.get("gridType", ""), ())
        values |= _get_keys(handle, [n for n in grid_keys if n not in values], None, eccodes)
    return values


def _get_keys(handle: Any, names: Iterable[str], key_type: Any, eccodes: Any) -> dict[str, Any]:
    """Return the keys that a message has, in their native type if ``key_type`` is None."""
    values: dict[str, Any] = {}
    for name in names:
        try:
            if name == "pl":
                values[name] = tuple(eccodes.codes_get_array(handle, name).tolist())
            else:
                values[name] = eccodes.codes_get(handle, name, key_type)
        except eccodes.CodesInternalError:
            # the message lacks the key, or a key from which it is computed
            continue
    return values


def read_key(field: GribField, name: str, eccodes: Any) -> Any:
    """Return the value of a key in its native type, or None if the field does not have it."""
    with _open_message(field.header, eccodes) as handle:
        return _get_keys(handle, [name], None, eccodes).get(name)


@lru_cache(CACHED_MESSAGES)
def _parse_shared_header(message: bytes, eccodes: Any, definitions: str) -> dict[str, Any]:
    """Return the keys of a shared header, as a dict that must not be changed.

    It is empty if the content of a section exceeds its length.
    """
    return _parse_keys(message, eccodes) if _has_valid_lengths(message, eccodes) else {}


def read_coordinates(message: GribField, eccodes: Any) -> dict[str, npt.NDArray[np.float64]]:
    """Return the latitudes and longitudes of all points in order; empty if there are none.

    They may be read-only, since files with the same grid may share them.

    Raises `UnsupportedError` if there are too many points to load, and `FormatError` if the rows of
    a reduced grid do not add up to the grid.
    """
    count = int(message.keys.get("numberOfDataPoints") or 0)
    check_values(16 * count, "latitude and longitude")
    _check_rows(message, count, eccodes)
    shared_header = find_shared_header(message.header) if count <= MAX_CACHED_POINTS else None
    coordinates = {}
    if shared_header is not None:
        coordinates = _parse_shared_coordinates(
            shared_header.grid, eccodes, _get_definitions_path(eccodes)
        )
    coordinates = coordinates or _parse_coordinates(message.header, eccodes)
    return {name: values for name, values in coordinates.items() if len(values) == count}


def _check_rows(message: GribField, count: int, eccodes: Any) -> None:
    """Raise an error for a reduced grid whose rows do not add up to the grid.

    ecCodes would write out of bounds, or return wrong latitudes. A regional Gaussian grid has fewer
    points than its rows around the globe.
    """
    grid = str(message.keys.get("gridType"))
    if not grid.startswith("reduced_"):
        return
    row_lengths, rows, half = (read_key(message, name, eccodes) for name in ("pl", "Nj", "N"))
    points = row_lengths or ()
    if grid.endswith("_gg"):
        is_valid = len(points) <= 2 * int(half or 0) and sum(points) >= count
    else:
        is_valid = sum(points) == count
    if len(points) != rows or not is_valid:
        raise make_damage_error(
            f"GRIB message at byte {message.offset}: its grid has {count} points in {rows} rows, "
            f"and {len(points)} rows have {sum(points)} points"
        )


def _parse_coordinates(message: bytes, eccodes: Any) -> dict[str, npt.NDArray[np.float64]]:
    increment = "jDirectionIncrementInDegrees"
    with _open_message(message, eccodes) as handle:
        try:
            rows = _get_keys(handle, ["Nj", increment], float, eccodes)
            if rows.get("Nj", 2) < 2 and rows.get(increment) == MISSING_INCREMENT:
                # ecCodes crashes if a grid of one row has no increment of rows
                eccodes.codes_set(handle, "jDirectionIncrementGiven", 1)
                eccodes.codes_set(handle, "jDirectionIncrement", 1)
            coordinates = {
                n: eccodes.codes_get_array(handle, f"{n}s") for n in ("latitude", "longitude")
            }
        except (eccodes.CodesInternalError, ValueError):
            return {}
    return {name: np.asarray(values, np.float64) for name, values in coordinates.items()}


@lru_cache(CACHED_GRIDS)
def _parse_shared_coordinates(
    message: bytes, eccodes: Any, definitions: str
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the coordinates of a grid that many messages share, or nothing if it is invalid."""
    coordinates = (
        _parse_coordinates(message, eccodes) if _has_valid_lengths(message, eccodes) else {}
    )
    for values in coordinates.values():
        values.flags.writeable = False
    return coordinates


def _has_valid_lengths(message: bytes, eccodes: Any) -> bool:
    """Return whether the content of each section has the length of the section.

    ecCodes extends a section whose content is longer, and then reads bytes of the next section,
    which may be constants of a shared header. In that case, the last section begins later.
    """
    name, length = LAST_SECTION[message[7]]
    with _open_message(message, eccodes) as handle:
        try:
            offset = eccodes.codes_get(handle, name, int)
        except eccodes.CodesInternalError:
            return False
    return bool(offset == len(message) - length)


def _get_definitions_path(eccodes: Any) -> str:
    """Return the path of ecCodes' definitions, which the user may change."""
    return str(eccodes.codes_definition_path())


@contextmanager
def _open_message(message: bytes, eccodes: Any) -> Iterator[Any]:
    handle = eccodes.codes_new_from_message(message)
    try:
        yield handle
    finally:
        eccodes.codes_release(handle)
