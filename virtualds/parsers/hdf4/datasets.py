"""Scientific data sets of HDF4: names, dimensions, types and attributes, as two kinds of files say.

Files of HDF 3.3 and later describe data sets by Vgroups (class ``CDF0.0`` and those in it), earlier
ones by numeric data groups (HDF Specification and Developer's Guide, HDF 4.2, sections 5 and 9.3).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.hdf4.elements import (
    DATA,
    NUMBER_TYPE,
    NUMERIC_GROUP,
    VDATA,
    VGROUP,
    Elements,
    unpack,
)
from virtualds.parsers.hdf4.tables import (
    Vdata,
    Vgroup,
    decode_text,
    find_dtype,
    read_members,
    read_values,
    read_vdata,
    read_vgroup,
)

FILE_KIND, DATASET_KIND, ATTRIBUTE_KIND = "CDF0.0", "Var0.0", "Attr0.0"
DIMENSION_KIND, UNLIMITED_KIND = "Dim0.0", "UDim0.0"
LENGTH_KIND, RECORDS_KIND, SCALE_KIND = "DimVal0.1", "DimVal0.0", "CoordVar"
"""Classes of the Vgroups and Vdatas that describe data sets."""
ORDERS = {0: ">", 1: ">", 4: "<"}
"""Byte orders by the class of a number type: big-endian, and that of Intel (section 9.3.2)."""


@dataclass(frozen=True)
class Dimension:
    """A dimension of a data set; its length is None if the number of records says it."""

    name: str
    length: int | None


@dataclass(frozen=True)
class Dataset:
    """A scientific data set.

    Parameters
    ----------
    name : str
    ref : int or None
        Reference number of its values, None if there are none.
    dimensions : tuple of Dimension
    dtype : numpy dtype or VirtualdsError
        As stored, or why there is none.
    attributes : dict
    is_scale : bool
        Whether it holds the values of a dimension.
    problems : dict of str to VirtualdsError
        What is wrong with attributes.
    values : array, optional
        The values, where they are few and lie among metadata.
    """

    name: str
    ref: int | None
    dimensions: tuple[Dimension, ...]
    dtype: np.dtype[Any] | VirtualdsError
    attributes: dict[str, Any] = field(default_factory=dict)
    is_scale: bool = False
    problems: dict[str, VirtualdsError] = field(default_factory=dict)
    values: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Datasets:
    """The data sets of a file, its attributes, and what is wrong with these."""

    members: list[Dataset]
    attributes: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, VirtualdsError] = field(default_factory=dict)


def name_apart(name: str, taken: Collection[str]) -> str:
    """Return a name without slashes that is not taken yet.

    Examples
    --------
    >>> name_apart("a/b", []), name_apart("a/b", ["a_b", "a_b_2"])
    ('a_b', 'a_b_3')
    """
    plain = name.replace("/", "_")
    numbered = (f"{plain}_{number}" for number in itertools.count(2))
    return next(unique for unique in itertools.chain([plain], numbered) if unique not in taken)


def read_datasets(elements: Elements) -> Datasets | None:
    """Return what Vgroups say of the data sets of a file, None if they say nothing.

    Raises
    ------
    FormatError
        They are damaged.
    """
    groups = (read_vgroup(elements, ref) for ref in elements.list_refs(VGROUP))
    root = next((group for group in groups if group.kind == FILE_KIND), None)
    if root is None:
        return None
    attributes, problems = _read_attributes(elements, _read_tables(elements, root))
    found = []
    for tag, ref in root.members:
        if tag == VGROUP:
            group = read_vgroup(elements, ref)
            if group.kind == DATASET_KIND:
                found.append(_read_dataset(elements, group))
    return Datasets(found, attributes, problems)


def _read_dataset(elements: Elements, group: Vgroup) -> Dataset:
    dimensions = tuple(_find_dimensions(elements, group))
    refs = dict(group.members)
    # old programs find the same data set by this group
    of_group = (NUMERIC_GROUP, refs.get(NUMERIC_GROUP, 0))
    if DATA not in refs and DATA in read_members(elements, of_group):
        raise FormatError(
            f"data set {group.name!r} has values for old programs alone; the file is damaged, "
            f"fetch it again"
        )
    tables = _read_tables(elements, group)
    attributes, problems = _read_attributes(elements, tables)
    return Dataset(
        group.name,
        refs.get(DATA),
        dimensions,
        read_number_type(elements, refs.get(NUMBER_TYPE)),
        attributes,
        any(table.kind == SCALE_KIND for table in tables.values()),
        problems,
    )


def read_number_type(elements: Elements, ref: int | None) -> np.dtype[Any] | VirtualdsError:
    """Return the type of stored numbers, or why numpy has none (section 9.3.2)."""
    data = b"" if ref is None else elements.read_raw((NUMBER_TYPE, ref))
    try:
        _, code, _, machine = unpack(">BBBB", data)
        if machine not in ORDERS:
            raise UnsupportedError(
                f"its numbers are those of another machine (class {machine}), which numpy does "
                f"not have; read it with pyhdf"
            )
        return find_dtype(code, ORDERS[machine])
    except (FormatError, UnsupportedError) as error:
        return error


def _find_dimensions(elements: Elements, group: Vgroup) -> Iterator[Dimension]:
    """Yield the dimensions of a data set in their order."""
    for tag, ref in group.members:
        if tag != VGROUP:
            continue
        member = read_vgroup(elements, ref)
        if member.kind == UNLIMITED_KIND:
            yield Dimension(member.name, None)
        elif member.kind == DIMENSION_KIND:
            yield Dimension(member.name, _find_length(elements, member))


def _find_length(elements: Elements, group: Vgroup) -> int:
    """Return the length of a dimension: a value, in old files the number of values."""
    lengths = list[int]()
    for ref, table in _read_tables(elements, group).items():
        if table.kind == LENGTH_KIND:
            lengths += read_values(elements, ref, table).tolist()[:1]
        elif table.kind == RECORDS_KIND:
            lengths.append(table.records)
    if not lengths or not isinstance(lengths[-1], int) or lengths[-1] < 0:
        raise FormatError(
            f"dimension {group.name!r} has no length; the file is damaged, fetch it again"
        )
    return lengths[-1]


def _read_tables(elements: Elements, group: Vgroup) -> dict[int, Vdata]:
    """Return the headers of the Vdatas among the members of a Vgroup, by reference number."""
    return {ref: read_vdata(elements, ref) for tag, ref in group.members if tag == VDATA}


def _read_attributes(
    elements: Elements, tables: dict[int, Vdata]
) -> tuple[dict[str, Any], dict[str, VirtualdsError]]:
    """Return the attributes among Vdatas, and what is wrong with others."""
    found, problems = dict[str, Any](), dict[str, VirtualdsError]()
    for ref, table in tables.items():
        if table.kind != ATTRIBUTE_KIND:
            continue
        try:
            found[table.name] = show_attribute(table.name, read_values(elements, ref, table))
        except (FormatError, UnsupportedError) as error:
            problems[table.name] = error
    return found, problems


def show_attribute(name: str, values: np.ndarray[Any, Any]) -> Any:
    """Return the value of an attribute as netCDF readers have it.

    Examples
    --------
    >>> show_attribute("units", np.array([b"K", b""])), show_attribute("n", np.array([3], ">i2"))
    ('K', np.int16(3))
    """
    if values.dtype.kind == "S":
        data = values.tobytes()
        return np.bytes_(data) if name == "_FillValue" else decode_text(data.replace(b"\0", b""))
    native = values.astype(values.dtype.newbyteorder("="))
    return native[0] if native.size == 1 else native
