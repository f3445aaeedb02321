"""Fields of GRIB files: what ecCodes tells of their headers, and of their grids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from virtualds.bounds import demand_values
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.grib.headers import ALIKE_DAY, find_alike
from virtualds.parsers.grib.names import OF_GRIDS
from virtualds.parsers.grib.sections import find_fields

ALIKE_MESSAGES = 4096
"""Messages whose keys are kept for those that are like them: about 5 KB each."""
ALIKE_GRIDS, ALIKE_POINTS = 4, 2**21
"""Grids whose coordinates are kept, and how many points they have at most: 128 MiB together."""
LAST_SECTION = {1: ("offsetSection5", 4), 2: ("offsetSection7", 9)}
"""The key of where a section begins that ends a header, and the bytes from there, by edition."""
FIRST_DAY = 10101
"""The first day with a year, as ecCodes tells days."""
NOT_GIVEN = -1e100
"""An increment that a grid does not have."""
LONGEST = 2**63 // (3600 * 10**9)
"""Hours of a step that nanoseconds can count."""
SECONDS = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200, 13: 1, 14: 900, 15: 1800}
"""Seconds of units of time (code table 4.4, and ecCodes' own for edition 1)."""
UNIT, MISSING_UNIT = "indicatorOfUnitOfTimeRange", 255
"""The key of the unit in which a message counts steps, and its value where there is none."""
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
"""Keys that every field is asked for."""


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
    number : int
        Of the field in its message, from 0.
    """

    offset: int
    length: int
    header: bytes
    keys: dict[str, Any]
    number: int = 0

    def demand_time(self) -> None:
        """Refuse a field whose time or step is none.

        Raises
        ------
        FormatError, UnsupportedError
        """
        _ = self.time, self.step

    @property
    def time(self) -> int | None:
        """When the forecast begins, in seconds since 1970; dates without a year have none."""
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
            self._demand_known_unit()
            return None
        unit = int(self.keys.get("stepUnits", 1))
        if unit not in SECONDS:
            raise UnsupportedError(
                f"GRIB message at byte {self.offset}: steps are counted in unit {unit}, which has "
                f"no fixed length; extract it with grib_copy"
            )
        hours = int(self.keys["endStep"]) * SECONDS[unit] / 3600
        if abs(hours) > LONGEST:
            raise FormatError(
                f"GRIB message at byte {self.offset}: its step is {hours} hours; the file is "
                f"damaged"
            )
        return hours

    def _demand_known_unit(self) -> None:
        """Refuse a unit of time that there is not: for it, ecCodes knows no step."""
        unit = int(self.keys.get(UNIT, MISSING_UNIT))
        if unit not in SECONDS and unit != MISSING_UNIT:
            raise FormatError(
                f"GRIB message at byte {self.offset}: its step is counted in unit {unit}, which "
                f"ecCodes does not know; the file is damaged, fetch it again"
            )


def scan_messages(
    file: BinaryIO, size: int, eccodes: Any, damaged: dict[str, VirtualdsError]
) -> Iterator[GribField]:
    """Yield the fields of a file in their order, and add what is damaged to ``damaged``."""
    for offset, length, number, header in find_fields(file, size, damaged.__setitem__):
        try:
            field = GribField(offset, length, header, _read_keys(header, offset, eccodes), number)
            field.demand_time()
        except VirtualdsError as error:
            damaged[f"message at byte {offset}"] = error
        else:
            yield field


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
            f"GRIB message at byte {place}: ecCodes finds no {lacking} in it; it is damaged, or of "
            "a grid or parameter that ecCodes does not know: leave it out with on_error='skip'"
        )
    return found


def _parse_keys(message: bytes, eccodes: Any) -> dict[str, Any]:
    """Return the keys of a message, which takes ecCodes milliseconds."""
    found: dict[str, Any] = {}
    with _open_message(message, eccodes) as handle:
        # steps keep the unit of the message
        for kind, names in ((str, TEXTS), (int, NUMBERS), (float, ("level",))):
            found |= _get_keys(handle, names, kind, eccodes)
        of_grid = OF_GRIDS.get(found.get("gridType", ""), ())
        found |= _get_keys(handle, [n for n in of_grid if n not in found], None, eccodes)
    return found


def _get_keys(handle: Any, names: Iterable[str], kind: Any, eccodes: Any) -> dict[str, Any]:
    """Return the keys that a message has, in their own type if ``kind`` is None."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            if name == "pl":
                found[name] = tuple(eccodes.codes_get_array(handle, name).tolist())
            else:
                found[name] = eccodes.codes_get(handle, name, kind)
        except (eccodes.KeyValueNotFoundError, eccodes.InvalidTypeError):
            continue
        except eccodes.CodesInternalError:
            # the key needs another key that the message lacks
            continue
    return found


def read_key(field: GribField, name: str, eccodes: Any) -> Any:
    """Return a key that is not listed, in its own type; None if the field lacks it."""
    with _open_message(field.header, eccodes) as handle:
        return _get_keys(handle, [name], None, eccodes).get(name)


@lru_cache(ALIKE_MESSAGES)
def _parse_alike(message: bytes, eccodes: Any, definitions: str) -> dict[str, Any]:
    """Return the keys of a message that many others are like; nobody may change them.

    There are none if a section says more than it has room for.
    """
    return _parse_keys(message, eccodes) if _is_filled(message, eccodes) else {}


def read_coordinates(message: GribField, eccodes: Any) -> dict[str, npt.NDArray[np.float64]]:
    """Return the latitudes and longitudes of all points in order; empty if ecCodes has none.

    A thousand files of one grid share them: nobody can write to them.

    Raises
    ------
    UnsupportedError
        There are too many to load.
    FormatError
        The rows of a reduced grid do not make the grid.
    """
    count = int(message.keys.get("numberOfDataPoints") or 0)
    demand_values(16 * count, "latitude and longitude")
    _demand_rows(message, count, eccodes)
    alike = find_alike(message.header) if count <= ALIKE_POINTS else None
    found = {}
    if alike is not None:
        found = _parse_alike_coordinates(alike.grid, eccodes, _definitions(eccodes))
    found = found or _parse_coordinates(message.header, eccodes)
    return {name: values for name, values in found.items() if len(values) == count}


def _demand_rows(message: GribField, count: int, eccodes: Any) -> None:
    """Refuse a reduced grid whose rows do not make the grid.

    For them ecCodes writes more coordinates than it has memory for, or shows latitudes that are
    not there. A part of a Gaussian grid has fewer points than its rows around the globe.
    """
    grid = str(message.keys.get("gridType"))
    if not grid.startswith("reduced_"):
        return
    found, rows, half = (read_key(message, name, eccodes) for name in ("pl", "Nj", "N"))
    points = found or ()
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
            _give_increment(handle, eccodes)
            found = {n: eccodes.codes_get_array(handle, f"{n}s") for n in ("latitude", "longitude")}
        except (eccodes.CodesInternalError, ValueError):
            return {}
    return {name: np.asarray(values, np.float64) for name, values in found.items()}


def _give_increment(handle: Any, eccodes: Any) -> None:
    """Give a grid of one row some distance between rows: without it, ecCodes ends the process."""
    name = "jDirectionIncrementInDegrees"
    rows = _get_keys(handle, ["Nj", name], float, eccodes)
    if rows.get("Nj", 2) < 2 and rows.get(name) == NOT_GIVEN:
        eccodes.codes_set(handle, "jDirectionIncrementGiven", 1)
        eccodes.codes_set(handle, "jDirectionIncrement", 1)


@lru_cache(ALIKE_GRIDS)
def _parse_alike_coordinates(
    message: bytes, eccodes: Any, definitions: str
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the coordinates of a grid that many messages have."""
    found = _parse_coordinates(message, eccodes) if _is_filled(message, eccodes) else {}
    for values in found.values():
        values.flags.writeable = False
    return found


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
