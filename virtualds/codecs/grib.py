"""Messages of GRIB, editions 1 and 2, decoded by ecCodes.

WMO Manual on Codes, volume I.2 (FM 92). The values are what cfgrib gives: single precision, NaN
where the bitmap or the packing says that there is none. Zarr has no name for that, so that it has
one of its own: ``virtualds_grib`` in Zarr v2, with a dot in Zarr v3.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.codec import Buffer, Codec, CodecError, check_length, needed_package

NOTHING = float(np.finfo(np.float32).max)
"""What stands for a missing value while a message is decoded; cfgrib takes the same number."""

JPEG_2000 = b"\xff\x4f\xff\x51"
"""Markers that such an image begins with (ITU-T T.800, table A.2)."""


@dataclass(frozen=True)
class GribMessage(Codec):
    """One message with one field: its values as little-endian floats of 4 bytes."""

    zarr_v2_id: ClassVar[str] = "virtualds_grib"
    only_virtualds: ClassVar[bool] = True

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls()

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id}

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        eccodes = needed_package("eccodes", "grib", "grib")
        # ecCodes searches a message for its end
        if bytes(data[:4]) != b"GRIB" or bytes(data[-4:]) != b"7777":
            raise CodecError(f"grib: {len(data)} bytes are no message from GRIB to 7777")
        if data[7] == 2:
            _check_sections(memoryview(data), None if nbytes is None else nbytes // 4)
        with _one_at_a_time():
            try:
                handle = eccodes.codes_new_from_message(bytes(data))
            except (eccodes.CodesInternalError, ValueError) as error:
                raise CodecError(f"grib: {error}") from error
            try:
                check_length(self, 4 * eccodes.codes_get_size(handle, "values"), nbytes)
                eccodes.codes_set(handle, "missingValue", NOTHING)
                values = eccodes.codes_get_values(handle)
            except (eccodes.CodesInternalError, ValueError, MemoryError) as error:
                raise CodecError(f"grib: {error}") from error
            finally:
                eccodes.codes_release(handle)
        with np.errstate(over="ignore"):
            found = np.asarray(values).astype("<f4")
        found[found == np.float32(NOTHING)] = np.nan
        check_length(self, found.nbytes, nbytes)
        return found.view(np.uint8).data


def _check_sections(data: memoryview, points: int | None) -> None:
    """Refuse a message of edition 2 whose sections contradict each other.

    ecCodes takes some of their numbers at their word, and ends the process where memory fails.
    """
    place, counts = 16, list[int]()
    while place + 5 <= len(data) - 4:
        length, number = int.from_bytes(data[place : place + 4], "big"), data[place + 4]
        if length < 5 or place + length > len(data) - 4:
            break
        if number in (3, 5):
            # points of the grid; values that are packed
            start = place + (6 if number == 3 else 5)
            counts.append(int.from_bytes(data[start : start + 4], "big"))
        elif number == 7 and data[place + 5 : place + 9] == JPEG_2000 and len(counts) == 2:
            _check_image(data[place + 5 : place + length], counts[1])
        elif number == 6 and counts and data[place + 5] == 0 and length != 6 + -(-counts[0] // 8):
            raise CodecError(f"grib: a bitmap of {length - 6} bytes for {counts[0]} points")
        place += length
    if place != len(data) - 4 or len(counts) != 2:
        raise CodecError("grib: sections do not add up")
    if counts[1] > counts[0] or points not in (None, counts[0]):
        raise CodecError(f"grib: {counts[0]} points and {counts[1]} values where {points} belong")


def _check_image(data: memoryview, values: int) -> None:
    """Refuse a JPEG 2000 image of another size (ITU-T T.800, A.5.1), which ends the process."""
    x, y, left, top = (int.from_bytes(data[at : at + 4], "big") for at in (8, 12, 16, 20))
    components, depth, steps = bytes(data[40:42]), bytes(data[42:43]), bytes(data[43:45])
    sound = x * y == values and not left + top
    # one component of unsigned numbers
    if not sound or components != b"\0\1" or not depth or depth[0] >= 32 or steps != b"\1\1":
        raise CodecError(f"grib: an image of {x} x {y} where {values} values belong")


@cache
def _threads_are_safe() -> bool:
    """Say whether ecCodes was built to be used by several threads."""
    eccodes = needed_package("eccodes", "grib", "grib")
    return "ECCODES_THREADS" in str(eccodes.codes_get_features())


_LOCK = Lock()


def _one_at_a_time() -> Any:
    return nullcontext() if _threads_are_safe() else _LOCK
