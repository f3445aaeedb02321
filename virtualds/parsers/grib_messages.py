"""Messages of GRIB files: where they lie, and what their headers say.

WMO Manual on Codes, volume I.2: FM 92 GRIB editions 1 and 2, section 0 (indicator) and the lengths
of sections. Of a message of edition 2 only the sections before the values are read, and given to
ecCodes with an empty section of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from virtualds.bounds import demand_values
from virtualds.codecs.grib import ContradictionError, check_first_edition
from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.grib_headers import ALIKE_DAY, find_alike

BEGIN, END = b"GRIB", b"7777"
SEARCH_BYTES = 64 * 1024
"""Bytes between messages that are searched for the next one: headings of telegrams, padding."""
PADDING = b"\0 \r\n\x03\x04\x1a"
"""Bytes that may follow the last message: padding, ends of telegrams."""
LARGE_MESSAGE = 0x800000
"""Edition 1 encodes lengths from here on differently (ECMWF)."""
NO_VALUES = bytes([0, 0, 0, 6, 6, 255]) + bytes([0, 0, 0, 5, 7]) + END
"""Section 6 without a bitmap, section 7 without values, section 8."""
ALIKE_MESSAGES = 4096
"""Messages whose keys are kept for those that are like them: about 5 KB each."""
ALIKE_GRIDS, ALIKE_POINTS = 4, 2**21
"""Grids whose coordinates are kept, and how many points they have at most: 128 MiB together."""
LAST_SECTION = {1: ("offsetSection5", 4), 2: ("offsetSection7", 9)}
"""The key of where a section begins that ends a header, and the bytes from there, by edition."""
LONGEST = 2**63 // (3600 * 10**9)
"""Hours of a step that nanoseconds can count."""
SECONDS = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200, 13: 1, 14: 900, 15: 1800}
"""Seconds of units of time (code table 4.4, and ecCodes' own for edition 1)."""
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
)
REGULAR = ("regular_ll", "regular_gg")
"""Grids whose rows are parallels."""


@dataclass(frozen=True)
class GribField:
    """One field: where its message lies, and its keys.

    Parameters
    ----------
    offset, length : int
        In bytes.
    header : bytes
        A message that ecCodes accepts, with little more than its header.
    keys : dict
        Values by ecCodes' names, without missing keys.
    """

    offset: int
    length: int
    header: bytes
    keys: dict[str, Any]

    @property
    def time(self) -> int:
        """When the forecast begins, in seconds since 1970."""
        day, clock = str(self.keys["dataDate"]), int(self.keys["dataTime"])
        try:
            date = np.datetime64(f"{day[:-4].zfill(4)}-{day[-4:-2]}-{day[-2:]}", "s")
        except ValueError as error:
            raise FormatError(
                f"GRIB message at byte {self.offset}: its date is {day}; "
                "the file is damaged, fetch it again"
            ) from error
        return int(date.astype(int)) + clock // 100 * 3600 + clock % 100 * 60

    @property
    def step(self) -> float:
        """Hours from the beginning of the forecast to the field, or to the end of its interval."""
        unit = int(self.keys.get("stepUnits", 1))
        if unit not in SECONDS:
            raise UnsupportedError(
                f"GRIB message at byte {self.offset}: steps are counted in unit {unit}, which has "
                f"no fixed length; extract it with grib_copy"
            )
        hours = int(self.keys.get("endStep", 0)) * SECONDS[unit] / 3600
        if abs(hours) > LONGEST:
            raise FormatError(
                f"GRIB message at byte {self.offset}: its step is {hours} hours; the file is "
                f"damaged"
            )
        return hours


def scan_messages(file: BinaryIO, size: int, eccodes: Any) -> Iterator[GribField]:
    """Yield the messages of a file in their order.

    Raises
    ------
    FormatError
        The file is damaged or truncated.
    UnsupportedError
        A message holds several fields, or is too long for edition 1.
    """
    place = 0
    while (place := _find_next(file, place, size)) < size:
        file.seek(place)
        start = file.read(16)
        edition, length = _parse_indicator(start, place, size)
        if edition == 1:
            header = _read_first_edition(file, place, length)
        else:
            header = _read_second_edition(file, place, start, length)
        yield GribField(place, length, header, _read_keys(header, place, eccodes))
        place += length


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


def _find_next(file: BinaryIO, place: int, size: int) -> int:
    """Return where the next message begins, the size of the file if there is none."""
    file.seek(place)
    found = file.read(min(len(BEGIN), size - place))
    if found == BEGIN or not found:
        return place if found else size
    found += file.read(min(SEARCH_BYTES, size - place))
    at = found.find(BEGIN)
    if at < 0 and (len(found) + place < size or found.strip(PADDING)):
        raise FormatError(
            f"GRIB file: no message begins within {SEARCH_BYTES} bytes of byte {place}; it is "
            f"damaged or truncated"
        )
    return place + at if at >= 0 else size


def _read_second_edition(file: BinaryIO, place: int, start: bytes, total: int) -> bytes:
    """Return a message with an empty section of values."""
    header, inside = start, 16
    while inside + 5 <= total:
        file.seek(place + inside)
        lead = file.read(5).ljust(5, b"\0")
        length, number = int.from_bytes(lead[:4], "big"), lead[4]
        if length < 5 or not 1 <= number <= 7 or inside + length > total:
            break
        if number < 6:
            header += lead + file.read(length - 5)
        elif number == 7:
            _refuse_more_fields(file, place, inside + length, total)
            header += NO_VALUES
            return header[:8] + len(header).to_bytes(8, "big") + header[16:]
        inside += length
    raise FormatError(
        f"GRIB message at byte {place}: its sections do not add up; "
        "the file is damaged, fetch it again"
    )


def _refuse_more_fields(file: BinaryIO, place: int, inside: int, total: int) -> None:
    if inside + len(END) < total:
        raise UnsupportedError(
            f"GRIB message at byte {place}: it holds several fields, which have no bytes of their "
            f"own; take them apart with grib_copy"
        )


def _read_first_edition(file: BinaryIO, place: int, length: int) -> bytes:
    """Return a whole message: those of edition 1 are small."""
    file.seek(place)
    message = file.read(length)
    if len(message) < length or length < 16 or message[-4:] != END:
        raise FormatError(
            f"GRIB message at byte {place}: it does not end where it says; the file is damaged or "
            f"truncated"
        )
    try:
        check_first_edition(message)
    except ContradictionError as error:
        raise FormatError(
            f"GRIB message at byte {place}: {error}; the file is damaged, fetch it again"
        ) from error
    return message


def _read_keys(header: bytes, place: int, eccodes: Any) -> dict[str, Any]:
    """Return the keys of a message that ecCodes knows."""
    alike = find_alike(header)
    try:
        found = _parse_alike(alike.message, eccodes, _definitions(eccodes)) if alike else {}
        if alike and found.get("dataDate") == ALIKE_DAY:
            found = {**found, "dataDate": alike.day}
        else:
            found = _parse_keys(header, eccodes)
    except (eccodes.CodesInternalError, ValueError) as error:
        raise FormatError(
            f"GRIB message at byte {place}: ecCodes cannot read it ({error}); "
            "the file is damaged, fetch it again"
        ) from error
    if lacking := [n for n in ("shortName", "dataDate", "dataTime", "gridType") if n not in found]:
        raise FormatError(
            f"GRIB message at byte {place}: it has no {lacking}; "
            "the file is damaged, fetch it again"
        )
    return found


def _parse_keys(message: bytes, eccodes: Any) -> dict[str, Any]:
    """Return the keys of a message, which takes ecCodes milliseconds."""
    found: dict[str, Any] = {}
    with _open_message(message, eccodes) as handle:
        # steps keep the unit of the message
        for kind, names in ((str, TEXTS), (int, NUMBERS), (float, ("level",))):
            for name in names:
                try:
                    found[name] = eccodes.codes_get(handle, name, kind)
                except (eccodes.KeyValueNotFoundError, eccodes.InvalidTypeError):
                    continue
                except eccodes.CodesInternalError:
                    # the key needs another key that the message lacks
                    continue
    return found


@lru_cache(ALIKE_MESSAGES)
def _parse_alike(message: bytes, eccodes: Any, definitions: str) -> dict[str, Any]:
    """Return the keys of a message that many others are like; nobody may change them.

    There are none if a section says more than it has room for.
    """
    return _parse_keys(message, eccodes) if _is_filled(message, eccodes) else {}


def read_coordinates(message: GribField, eccodes: Any) -> dict[str, npt.NDArray[np.float64]]:
    """Return the latitudes and longitudes of all points in order; empty if ecCodes has none.

    Raises
    ------
    UnsupportedError
        There are too many to load.
    """
    count = int(message.keys.get("numberOfDataPoints") or 0)
    demand_values(16 * count, "latitude and longitude")
    alike = find_alike(message.header) if count <= ALIKE_POINTS else None
    if alike is None:
        found = _parse_coordinates(message.header, eccodes)
    else:
        kept = _parse_alike_coordinates(alike.grid, eccodes, _definitions(eccodes))
        found = {name: values.copy() for name, values in kept.items()}
        found = found or _parse_coordinates(message.header, eccodes)
    return {name: values for name, values in found.items() if len(values) == count}


def _parse_coordinates(message: bytes, eccodes: Any) -> dict[str, npt.NDArray[np.float64]]:
    with _open_message(message, eccodes) as handle:
        try:
            found = {n: eccodes.codes_get_array(handle, f"{n}s") for n in ("latitude", "longitude")}
        except (eccodes.CodesInternalError, ValueError):
            return {}
    return {name: np.asarray(values, np.float64) for name, values in found.items()}


@lru_cache(ALIKE_GRIDS)
def _parse_alike_coordinates(
    message: bytes, eccodes: Any, definitions: str
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the coordinates of a grid that many messages have; nobody may change them."""
    return _parse_coordinates(message, eccodes) if _is_filled(message, eccodes) else {}


def _is_filled(message: bytes, eccodes: Any) -> bool:
    """Say whether each section ends where it says.

    ecCodes makes a section longer than it says if its contents do not fit, and takes bytes of the
    next one for them, and thereby of slots. Then the last section begins later.
    """
    name, length = LAST_SECTION[message[7]]
    with _open_message(message, eccodes) as handle:
        try:
            place = eccodes.codes_get(handle, name, int)
        except eccodes.CodesInternalError:
            return False
    return bool(place == len(message) - length)


def _definitions(eccodes: Any) -> str:
    """Return where ecCodes finds its definitions, which the user may change."""
    return str(eccodes.codes_definition_path())


@contextmanager
def _open_message(message: bytes, eccodes: Any) -> Iterator[Any]:
    handle = eccodes.codes_new_from_message(message)
    try:
        yield handle
    finally:
        eccodes.codes_release(handle)
