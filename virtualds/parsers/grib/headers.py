"""GRIB headers without what differs from day to day, so that alike messages are parsed once.

WMO Manual on Codes, volume I.2, FM 92 GRIB edition 2: sections 1 and 3 to 5, product definition
templates 4.0 to 4.12, data representation templates 5.0 to 5.42; edition 1: sections 1, 2 and 4.
Octets are counted from 1, as there.

ecCodes takes milliseconds for the keys of a message. Messages of other days differ in slots: the
date, the date on which an interval ends, and how values are packed. No key that is read depends on
a slot, but the date itself. Slots are filled alike and every other byte stays, so a message that is
not understood here can only be parsed again. The time of day is no slot: ecCodes' definitions of
ERA6 ask for it.
"""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

LONGEST = 16 * 1024
"""Bytes of a header that is kept, at most."""
PLAIN = 21
"""Bytes of section 1 without a calendar of its own; its octets 13 to 16 are year, month and day."""
INSTANTS = frozenset({0, 1, 2, 5, 6})
"""Product definition templates of points in time."""
ENDS = {8: 35, 9: 48, 10: 36, 11: 38, 12: 37}
"""Octet of the year in which an interval ends, by product definition template."""
PACKINGS = frozenset({0, 2, 3, 4, 40, 41, 42})
"""Data representation templates that nothing but values depends on."""
PACKED_LIKE = 11
"""Bytes of section 5 before its template: length, number of values, number of the template."""
PLAIN_GRIDS = frozenset({0, 1, 3, 5, 10})
"""Edition 1: grids whose points are counted by section 2 alone (code table 6), if Ni is there."""
LOCAL_FROM, ECMWF, MARS = 40, 98, 1
"""Edition 1: octets before a local part; the centre and number of a local part that is known."""
NO_VALUES = b"\0\0\x0c\x08" + bytes(8) + b"7777"
"""Edition 1: section 4 with numbers of no bits, section 5."""
ALIKE_DAY = 20000101
ALIKE_DATE = (2000).to_bytes(2, "big") + b"\1\1"
"""The date in slots."""
ANY_PRODUCT = (34).to_bytes(4, "big") + b"\4" + bytes(29)
"""Section 4 with template 4.0."""


class AlikeHeader(NamedTuple):
    """What a header shares with headers of other days.

    Parameters
    ----------
    message : bytes
        A message with the same keys, but for its date, which is `ALIKE_DAY`.
    grid : bytes
        A message with the same grid.
    day : int
        The date of the header, as ecCodes tells it.
    """

    message: bytes
    grid: bytes
    day: int


def find_alike(header: bytes) -> AlikeHeader | None:
    """Return what a header shares with others; None if its slots are not known."""
    found = _find_first(header) if header[7:8] == b"\1" else _find_second(header)
    return found if found and len(found.message) <= LONGEST else None


# ---------------------------------------------------------------------- edition 2


def _find_second(header: bytes) -> AlikeHeader | None:
    found = _split_sections(header) if len(header) <= LONGEST else None
    if found is None:
        return None
    (start, reference, local, grid, product, packing), rest = found[:6], found[6]
    day, alike_product = _read_day(reference), _fill_product(product)
    if day is None or alike_product is None:
        return None
    reference = reference[:12] + ALIKE_DATE + reference[16:]
    packing = _fill_packing(packing)
    message = b"".join([start, reference, local, grid, alike_product, packing, rest])
    shared = b"".join([reference, grid, ANY_PRODUCT, packing, rest])
    length = (len(start) + len(shared)).to_bytes(8, "big")
    return AlikeHeader(message, start[:8] + length + shared, day)


def _split_sections(header: bytes) -> list[bytes] | None:
    """Return sections 0 to 5 and the rest; None if they are not in order. Section 2 may lack."""
    if header[7:8] != b"\2":
        return None
    found, place = [header[:16]], 16
    for number in range(1, 6):
        length = _read_number(header, place + 1, 4)
        if header[place + 4 : place + 5] == bytes([number]) and 5 <= length < len(header) - place:
            found.append(header[place : place + length])
            place += length
        elif number == 2:
            found.append(b"")
        else:
            return None
    return [*found, header[place:]]


def _read_day(reference: bytes) -> int | None:
    """Return the date in section 1; None if there is no such date, or another calendar."""
    if len(reference) != PLAIN:
        return None
    return _number_day(_read_number(reference, 13, 2), reference[14], reference[15])


def _fill_product(product: bytes) -> bytes | None:
    """Return section 4 with another end of its interval; None if its template is not known."""
    template = _read_number(product, 8, 2)
    if template in INSTANTS:
        return product
    if template not in ENDS:
        return None
    at = ENDS[template] - 1
    return product[:at] + ALIKE_DATE + product[at + 4 :] if len(product) >= at + 4 else None


def _fill_packing(packing: bytes) -> bytes:
    """Return section 5 without how values are packed, if that is known."""
    if _read_number(packing, 10, 2) not in PACKINGS:
        return packing
    return packing[:PACKED_LIKE].ljust(len(packing), b"\0")


# ---------------------------------------------------------------------- edition 1


def _find_first(message: bytes) -> AlikeHeader | None:
    """Return what a message with a plain grid shares with others; its bitmap and values do not."""
    product = message[8 : 8 + _read_number(message, 9, 3)]
    place = 8 + len(product)
    grid = message[place : place + _read_number(message, place + 1, 3)]
    if len(product) < 28 or len(grid) < 32 or not (_is_known(product) and _is_plain(grid)):
        return None
    place += len(grid)
    if product[7] & 0x40:
        place += _read_number(message, place + 1, 3)
    how, year, century = message[place + 3 : place + 4], product[12], product[24]
    day = _number_day((century - 1) * 100 + year, product[13], product[14])
    if day is None or not 1 <= year <= 100 or not how or how[0] & 0xF0:
        return None
    of_grid = b"\0\0\x1c" + product[3:7] + bytes(21)
    return AlikeHeader(_join_first(product, grid), _join_first(of_grid, grid), day)


def _is_known(product: bytes) -> bool:
    """Say whether section 1 announces a grid, and has no local part that may define keys anew."""
    plain = len(product) <= LOCAL_FROM or (product[4], product[40]) == (ECMWF, MARS)
    return plain and bool(product[7] & 0x80)


def _is_plain(grid: bytes) -> bool:
    return grid[5] in PLAIN_GRIDS and grid[6:8] != b"\xff\xff"


def _join_first(product: bytes, grid: bytes) -> bytes:
    """Return a message without bitmap and values, with the date in slots."""
    parts = [product[:7], b"\x80", product[8:12], bytes([100, 1, 1])]
    parts += [product[15:24], bytes([20]), product[25:]]
    product = b"".join(parts)
    length = 8 + len(product) + len(grid) + len(NO_VALUES)
    return b"GRIB" + length.to_bytes(3, "big") + b"\1" + product + grid + NO_VALUES


# ---------------------------------------------------------------------- numbers


def _number_day(year: int, month: int, day: int) -> int | None:
    """Return a date as ecCodes tells it; None if there is no such date."""
    try:
        date(year, month, day)
    except ValueError:
        return None
    return year * 10000 + month * 100 + day


def _read_number(data: bytes, octet: int, width: int) -> int:
    """Return the number that begins at an octet, counted from 1."""
    return int.from_bytes(data[octet - 1 : octet - 1 + width], "big")
