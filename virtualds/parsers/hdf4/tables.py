"""Vgroups and Vdatas of HDF4 files: what is a member of what, and small tables of numbers.

HDF Specification and Developer's Guide (HDF 4.2), section 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.hdf4.elements import (
    VDATA,
    VDATA_VALUES,
    VGROUP,
    Elements,
    Key,
    unpack,
)

TYPES = {
    **{3: "u1", 4: "S1", 5: "f4", 6: "f8", 20: "i1", 21: "u1", 22: "i2", 23: "u2"},
    **{24: "i4", 25: "u4", 26: "i8", 27: "u8"},
}
"""Number types by their code (section 4.3)."""
NATIVE, LITTLE, CODE = 0x1000, 0x4000, 0xFFF
"""Bits of the type of a field that say how numbers are stored, and those of the code."""


VERSIONS = (2, 3, 4)
"""Versions of Vgroups and Vdatas whose fields are the same; 4 has flags and attributes, too."""
VERSIONS_OF_VDATAS = (3, 4)
"""Those of Vdatas whose number types have the same codes."""
AFTER_VERSION = 3
"""Bytes behind the last version: two are not used, and one is there by an old mistake."""


@dataclass(frozen=True)
class Vgroup:
    """A Vgroup: its name, its class and its members."""

    name: str
    kind: str
    members: tuple[Key, ...]


class Vdata(NamedTuple):
    """The header of a Vdata: how its records lie, and types and orders of its fields."""

    name: str
    kind: str
    interlace: int
    records: int
    size: int
    types: tuple[int, ...]
    orders: tuple[int, ...]


def find_dtype(code: int, order: str = ">") -> np.dtype[Any]:
    """Return the dtype of a code of number types.

    Raises
    ------
    UnsupportedError
        numpy has no such numbers.

    Examples
    --------
    >>> find_dtype(22)
    dtype('>i2')
    """
    if code not in TYPES:
        raise UnsupportedError(
            f"number type {code} has no numpy dtype; leave the variable out with drop_variables"
        )
    return np.dtype(TYPES[code]).newbyteorder(order)  # type: ignore[arg-type]


def read_vgroup(elements: Elements, ref: int) -> Vgroup:
    """Return a Vgroup (section 6.2.1).

    Raises
    ------
    FormatError
        It is damaged.
    """
    data = elements.read((VGROUP, ref))
    (count,) = unpack(">H", data)
    numbers = unpack(f">{2 * count}H", data[2:])
    name, rest = _take_text(data[2 + 4 * count :])
    kind, _ = _take_text(rest)
    # flags and a list of attributes may come before the version, which is found from the end
    _check_version(f"Vgroup {name!r}", _read_last_version(data), VERSIONS)
    return Vgroup(name, kind, tuple(zip(numbers[:count], numbers[count:], strict=True)))


def read_members(elements: Elements, key: Key) -> dict[int, int]:
    """Return the members of a numeric data group: reference numbers by tag (section 9.3.5)."""
    data = elements.read(key)
    numbers = unpack(f">{len(data) // 4 * 2}H", data)
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


def read_vdata(elements: Elements, ref: int) -> Vdata:
    """Return the header of a Vdata (section 6.2.2).

    Raises
    ------
    FormatError
        It is damaged.
    """
    data = elements.read((VDATA, ref))
    interlace, count, size, fields = unpack(">HIHH", data)
    columns = unpack(f">{4 * fields}H", data[10:])
    rest = data[10 + 8 * fields :]
    for _ in range(fields):
        _, rest = _take_text(rest)
    name, rest = _take_text(rest)
    kind, rest = _take_text(rest)
    _, _, version = unpack(">HHH", rest)
    # the library takes the last one, and shows other memory if it does not know that
    if (last := _read_last_version(data)) != version:
        raise FormatError(
            f"Vdata {name!r} is of version {version}, and of version {last} at its end; the file "
            f"is damaged, fetch it again"
        )
    _check_version(f"Vdata {name!r}", version, VERSIONS_OF_VDATAS)
    return Vdata(name, kind, interlace, count, size, columns[:fields], columns[3 * fields :])


def read_values(elements: Elements, ref: int, vdata: Vdata) -> npt.NDArray[Any]:
    """Return the values of a Vdata of one field.

    Raises
    ------
    FormatError
        They are damaged.
    UnsupportedError
        They are of a type that numpy does not have, or there are several fields.
    """
    if len(vdata.types) != 1 or vdata.types[0] & NATIVE:
        raise UnsupportedError(
            f"Vdata {vdata.name!r} has {len(vdata.types)} fields, or numbers of another machine; "
            f"read it with pyhdf"
        )
    [kind], [order] = vdata.types, vdata.orders
    dtype = find_dtype(kind & CODE, "<" if kind & LITTLE else ">")
    data = elements.read((VDATA_VALUES, ref))
    size = vdata.records * order * dtype.itemsize
    if len(data) < size:
        raise FormatError(
            f"Vdata {vdata.name!r} has {len(data)} of {size} bytes; the file is damaged, fetch it "
            f"again"
        )
    return np.frombuffer(data[:size], dtype)


def read_records(elements: Elements, ref: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the records of a Vdata of several fields, interlaced fully, as a known type.

    Raises
    ------
    FormatError
        It has records of another size, or fewer than it says.
    """
    data, table = elements.read((VDATA_VALUES, ref)), read_vdata(elements, ref)
    needed = table.records * dtype.itemsize
    if table.interlace or table.size != dtype.itemsize or len(data) < needed:
        raise FormatError(
            f"Vdata {ref}: {len(data)} bytes are not {table.records} records of {dtype.itemsize} "
            f"bytes; the file is damaged, fetch it again"
        )
    return np.frombuffer(data[:needed], dtype)


def _read_last_version(data: bytes) -> int:
    """Return the version at the end of the header of a Vgroup or Vdata."""
    (version,) = unpack(">H", data[-AFTER_VERSION - 2 :])
    return int(version)


def _check_version(what: str, version: int, known: tuple[int, ...]) -> None:
    """Refuse what is not laid out as it is read here."""
    if version not in known:
        raise FormatError(f"{what} is of version {version}; the file is damaged, fetch it again")


def _take_text(data: bytes) -> tuple[str, bytes]:
    """Return a text with its length before it, and the bytes behind it."""
    (length,) = unpack(">H", data)
    (text,) = unpack(f">{length}s", data[2:])
    return decode_text(text), data[2 + length :]


def decode_text(data: bytes) -> str:
    """Return a text up to its first zero; what is not UTF-8 is Latin-1.

    Examples
    --------
    >>> decode_text(b"K" + bytes(3)), decode_text(bytes([0xB0]))
    ('K', '°')
    """
    text = data.partition(b"\0")[0]
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")
