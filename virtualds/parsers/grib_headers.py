"""GRIB headers without what differs from day to day, so that alike messages are parsed once.

WMO Manual on Codes, volume I.2, FM 92 GRIB edition 2: sections 1 and 3 to 5, product definition
templates 4.0 to 4.12, data representation templates 5.0 to 5.42. Octets are counted from 1, as
there.

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
    """Return what a header of edition 2 shares with others; None if its slots are not known."""
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
    year, month, day = _read_number(reference, 13, 2), reference[14], reference[15]
    try:
        date(year, month, day)
    except ValueError:
        return None
    return year * 10000 + month * 100 + day


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


def _read_number(data: bytes, octet: int, width: int) -> int:
    """Return the number that begins at an octet, counted from 1."""
    return int.from_bytes(data[octet - 1 : octet - 1 + width], "big")
