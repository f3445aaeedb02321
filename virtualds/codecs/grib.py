"""The codec of GRIB messages: decodes with ecCodes, after checking that sections agree.

WMO Manual on Codes, volume I.2, FM 92: edition 1 (sections 1 to 4), edition 2 (sections 3, 5, 6 and
7; templates 5.0, 5.2, 5.3 and 5.4). ecCodes may crash the process if sections
contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.codecs.codec import Codec, check_length
from virtualds.codecs.hdf import unpack_bits
from virtualds.codecs.images import JPEG2000_START
from virtualds.importing import import_eccodes
from virtualds.streams import Buffer

TIME_UNIT_CODES = frozenset({*range(8), *range(10, 15), 254})
"""Codes of the units of time of edition 1 (code table 4)."""

MIN_LENGTHS = {1: 28, 2: 32, 3: 6, 4: 11}
"""Minimum sizes in bytes of the sections of edition 1."""

REPEATED_BITMAP, END_SECTION = b"\xfe", b"7777"
"""The code for a bitmap defined by an earlier field (code table 6.0), and section 8."""

MAX_BITS = 63
"""Maximum number of bits of a packed number."""

ECCODES_MISSING = float(np.finfo(np.float32).max)
"""The missing value passed to ecCodes when decoding, the same as in cfgrib."""

_LOCK = Lock()


class ContradictionError(ValueError):
    """Raised if sections of a message contradict each other."""


def check_edition_1(message: bytes) -> None:
    """Check the section lengths and the time of a message of edition 1.

    Raises
    ------
    ContradictionError
    """
    flags, offset = message[15] if len(message) > 15 else 0, 8
    present = [1, *([2] if flags & 0x80 else []), *([3] if flags & 0x40 else []), 4]
    for number in present:
        length = _read_number(message, offset, 3)
        if length < MIN_LENGTHS[number] or offset + length + 4 > len(message):
            raise ContradictionError(
                f"section {number} has {length} bytes at byte {offset} of {len(message)}"
            )
        offset += length
    if offset + 4 != len(message):
        raise ContradictionError(f"sections end at byte {offset} of {len(message)}")
    month, day, hour, minute, unit = message[21:26]
    if not (
        1 <= month <= 12
        and 1 <= day <= 31
        and hour <= 24
        and minute < 60
        and unit in TIME_UNIT_CODES
    ):
        raise ContradictionError(
            f"month {month}, day {day}, {hour}:{minute}, steps in unit {unit} are not a time"
        )


def check_edition_2(message: memoryview, points: int | None) -> None:
    """Check that the grid, bitmap and packed values of a message of edition 2 agree.

    Parameters
    ----------
    message : memoryview
        From ``GRIB`` to ``7777``.
    points : int, optional
        Number of points of the grid, if it is known.

    Raises
    ------
    ContradictionError
    """
    sections = {section[4]: section for section in split_sections(message)}
    counts = _read_number(sections[3], 6, 4), _read_number(sections[5], 5, 4)
    if counts[1] > counts[0] or points not in (None, counts[0]):
        raise ContradictionError(f"{counts[0]} points and {counts[1]} values, not {points}")
    bitmap = sections.get(6, b"")
    if len(bitmap) > 5 and not bitmap[5] and len(bitmap) != 6 + -(-counts[0] // 8):
        raise ContradictionError(f"a bitmap of {len(bitmap) - 6} bytes for {counts[0]} points")
    packed = sections[7][5:]
    if packed[:4] == JPEG2000_START:
        _check_image(packed, counts[1])
    check = PACKING_CHECKS.get(_read_number(sections[5], 9, 2))
    if check is not None:
        check(sections[5], packed, counts[1])


def select_field(message: memoryview, number: int) -> memoryview | bytes:
    """Return one field of a message of edition 2 as a separate message.

    The most recent section of each number before a field belongs to it (92.6); a bitmap of code 254
    is the most recent one that the message defines (code table 6.0). A message with one field is
    returned as it is.

    Raises `ContradictionError` if the message has fewer fields.
    """
    sections, bitmap, count = dict[int, memoryview](), memoryview(b""), 0
    for section in split_sections(message):
        sections[section[4]] = section
        if section[4] == 6 and section[5:6] != REPEATED_BITMAP:
            bitmap = section
        if section[4] != 7:
            continue
        if count == number:
            break
        count += 1
    else:
        raise ContradictionError(f"it holds {count} fields, not {number + 1}")
    length = 16 + sum(map(len, sections.values())) + 4
    if number == 0 and length == len(message):
        return message
    if 6 in sections and sections[6][5:6] == REPEATED_BITMAP:
        sections[6] = bitmap
    body = b"".join(sections[n] for n in sorted(sections)) + END_SECTION
    return b"".join((message[:8], (16 + len(body)).to_bytes(8, "big"), body))


def split_sections(message: memoryview) -> list[memoryview]:
    """Return the sections of a message of edition 2, in order.

    Raises `ContradictionError` if they do not fill the message, or if section 3, 5 or 7 is missing.
    """
    sections, offset = list[memoryview](), 16
    while offset + 5 <= len(message) - 4:
        length = _read_number(message, offset, 4)
        if length < 5 or offset + length > len(message) - 4:
            break
        sections.append(message[offset : offset + length])
        offset += length
    if offset != len(message) - 4 or not {3, 5, 7} <= {section[4] for section in sections}:
        raise ContradictionError("sections do not add up")
    return sections


def _read_number(data: bytes | memoryview, offset: int, width: int) -> int:
    return int.from_bytes(data[offset : offset + width], "big")


def _check_image(data: memoryview, values: int) -> None:
    """Check the size of a JPEG 2000 image (ITU-T T.800, A.5.1)."""
    x, y, left_edge, top = (_read_number(data, offset, 4) for offset in (8, 12, 16, 20))
    components, depth, steps = bytes(data[40:42]), bytes(data[42:43]), bytes(data[43:45])
    is_valid = x * y == values and not left_edge + top
    # one component of unsigned numbers
    if not is_valid or components != b"\0\1" or not depth or depth[0] >= 32 or steps != b"\1\1":
        raise ContradictionError(f"an image of {x} x {y}, not of {values} values")


# ---------------------------------------------------------------------- packing


def _check_simple(section: memoryview, packed: memoryview, values: int) -> None:
    """Check template 5.0 (simple packing)."""
    bits = _read_number(section, 19, 1)
    _check_consistent(bits <= MAX_BITS and bits * values <= 8 * len(packed), bits, values, packed)


def _check_floats(section: memoryview, packed: memoryview, values: int) -> None:
    """Check template 5.4 (IEEE floating-point numbers)."""
    width = {1: 4, 2: 8, 3: 16}.get(_read_number(section, 11, 1), 0)
    _check_consistent(width * values == len(packed), 8 * width, values, packed)


def _check_groups(section: memoryview, packed: memoryview, values: int) -> None:
    """Check templates 5.2 and 5.3 (complex packing): references, widths and lengths of groups."""
    if len(section) > 48:
        order, octets = section[47], section[48]
        _check_consistent(order in (1, 2) and octets <= 4, 8 * octets, order, packed)
        packed = packed[(order + 1) * octets :]
    count = _read_number(section, 31, 4)
    bits, width_bits, length_bits = section[19], section[36], section[46]
    if not (count or bits or packed):
        # NCEP writes constant fields without groups
        return
    sizes = [-(-count * n // 8) for n in (bits, width_bits, length_bits)]
    is_valid = max(bits, width_bits, length_bits) <= 32 and 0 < count <= values
    _check_consistent(is_valid and sum(sizes) <= len(packed), bits, count, packed)
    offset = sizes[0]
    widths = section[35] + unpack_bits(packed[offset : offset + sizes[1]], count, width_bits, 8)
    lengths = unpack_bits(packed[offset + sizes[1] : sum(sizes)], count, length_bits, 8)
    lengths = _read_number(section, 37, 4) + section[41] * lengths
    lengths[-1] = _read_number(section, 42, 4)
    is_whole = int(lengths.sum()) == values
    _check_consistent(is_whole and int(widths.max()) <= 32, bits, values, packed)
    bits_left = 8 * (len(packed) - sum(sizes))
    _check_consistent(int((widths * lengths).sum()) <= bits_left, bits, values, packed)


def _check_consistent(is_consistent: bool, bits: int, values: int, packed: memoryview) -> None:
    if not is_consistent:
        raise ContradictionError(
            f"{values} values or groups, packed in {bits} bits, do not match {len(packed)} bytes"
        )


PACKING_CHECKS: dict[int, Callable[[memoryview, memoryview, int], None]] = {
    0: _check_simple,
    2: _check_groups,
    3: _check_groups,
    4: _check_floats,
}
"""Checks of packed values, by the number of the template (code table 5.0)."""


# ---------------------------------------------------------------------- the codec


@dataclass(frozen=True)
class GribMessage(Codec):
    """A field of a message, decoded to little-endian 4-byte floats.

    Parameters
    ----------
    field : int
        The index of the field in its message, from 0.
    """

    zarr_v2_id = "virtualds_grib"
    field: int = 0

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, **({"field": self.field} if self.field else {})}

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        eccodes = import_eccodes("grib")
        # otherwise ecCodes would search for the end of the message
        if bytes(data[:4]) != b"GRIB" or bytes(data[-4:]) != b"7777":
            raise ValueError(f"{len(data)} bytes are not a message from GRIB to 7777")
        message = _select(data, self.field, None if nbytes is None else nbytes // 4)
        with nullcontext() if _is_thread_safe() else _LOCK:
            try:
                handle = eccodes.codes_new_from_message(message)
            except eccodes.CodesInternalError as error:
                raise ValueError(str(error)) from error
            try:
                check_length(self, 4 * eccodes.codes_get_size(handle, "values"), nbytes)
                eccodes.codes_set(handle, "missingValue", ECCODES_MISSING)
                values = _read_in_order(handle, eccodes)
            except (eccodes.CodesInternalError, MemoryError) as error:
                raise ValueError(str(error)) from error
            finally:
                eccodes.codes_release(handle)
        with np.errstate(over="ignore"):
            decoded = np.asarray(values).astype("<f4")
        decoded[decoded == np.float32(ECCODES_MISSING)] = np.nan
        return decoded.view(np.uint8).data


def _select(data: Buffer, number: int, points: int | None) -> bytes:
    """Return a message with only one field, after checking that its sections agree.

    ecCodes might crash the process otherwise.
    """
    if data[7] == 2:
        message = select_field(memoryview(data), number)
        check_edition_2(memoryview(message), points)
        return bytes(message)
    if data[7] == 1:
        check_edition_1(bytes(data))
    return bytes(data)


def _read_in_order(handle: Any, eccodes: Any) -> npt.NDArray[np.float64]:
    """Return the values of a message, every second row reversed if rows alternate in direction."""
    values = np.asarray(eccodes.codes_get_values(handle))
    try:
        if not eccodes.codes_get(handle, "alternativeRowScanning", int):
            return values
        columns, rows = (eccodes.codes_get(handle, name, int) for name in ("Nx", "Ny"))
        if eccodes.codes_get(handle, "jPointsAreConsecutive", int):
            columns, rows = rows, columns
    except (eccodes.KeyValueNotFoundError, eccodes.InvalidTypeError):
        return values
    if columns * rows == values.size:
        lines = values.reshape(rows, columns)
        lines[1::2] = lines[1::2, ::-1].copy()
    return values


@cache
def _is_thread_safe() -> bool:
    """Return whether ecCodes was built thread-safe."""
    eccodes = import_eccodes("grib")
    return "ECCODES_THREADS" in str(eccodes.codes_get_features())
