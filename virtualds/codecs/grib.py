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
from virtualds.grib_sections import ContradictionError, check_first_edition, check_second_edition

NOTHING = float(np.finfo(np.float32).max)
"""What stands for a missing value while a message is decoded; cfgrib takes the same number."""


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
        _check(data, None if nbytes is None else nbytes // 4)
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


def _check(data: Buffer, points: int | None) -> None:
    """Refuse a message that contradicts itself: ecCodes might end the process."""
    try:
        if data[7] == 2:
            check_second_edition(memoryview(data), points)
        elif data[7] == 1:
            check_first_edition(bytes(data))
    except ContradictionError as error:
        raise CodecError(f"grib: {error}") from error


@cache
def _threads_are_safe() -> bool:
    """Say whether ecCodes was built to be used by several threads."""
    eccodes = needed_package("eccodes", "grib", "grib")
    return "ECCODES_THREADS" in str(eccodes.codes_get_features())


_LOCK = Lock()


def _one_at_a_time() -> Any:
    return nullcontext() if _threads_are_safe() else _LOCK
