"""Scientific data sets of HDF4: names, dimensions, types and attributes, as two kinds of files say.

Files of HDF 3.3 and later describe data sets by Vgroups (class ``CDF0.0`` and those in it), earlier
ones by numeric data groups (HDF Specification and Developer's Guide, HDF 4.2, sections 5 and 9.3).

Scale and offset in HDF4, where they mean something else than in the CF conventions.

HDF4 (`SDsetcal`): value = scale_factor * (stored - add_offset). CF (section 8.1): value =
scale_factor * stored + add_offset. They agree where the offset is zero.

Scientific data sets of files from before HDF 3.3, which numeric data groups describe.

HDF Specification and Developer's Guide (HDF 4.2), section 9.3.5. Names are those that the HDF4
library gives: such files name neither data sets nor dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.hdf4.elements import (
    CALIBRATION,
    COORDINATE_SYSTEM,
    DATA,
    DIMENSIONS,
    FILL,
    FORMATS,
    LABELS,
    LINK,
    NUMBER_TYPE,
    NUMERIC_GROUP,
    OLD_GROUP,
    RANGE,
    SCALES,
    UNITS,
    VDATA,
    VGROUP,
    Elements,
    Vdata,
    Vgroup,
    decode_text,
    find_dtype,
    read_members,
    read_values,
    read_vdata,
    read_vgroup,
    unpack,
)
from virtualds.parsers.hdf4.storage import MOST_AXES

SCALE, OFFSET = "scale_factor", "add_offset"
OF_LIBRARY = {SCALE, "scale_factor_err", OFFSET, "add_offset_err", "calibrated_nt"}
"""The attributes that the HDF4 library writes together, so that their meaning is its own."""
KEPT = "hdf4_"
"""Begins the names under which attributes are kept that CF would misread."""


def show_as_cf(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes that mean in CF what they mean in the file.

    Where nobody knows whether the writer followed HDF4 or CF, values stay as they are stored, and
    scale and offset are found under names that CF does not know.

    Examples
    --------
    >>> show_as_cf({"scale_factor": 0.5, "add_offset": -3.0})
    {'hdf4_scale_factor': 0.5, 'hdf4_add_offset': -3.0}
    >>> show_as_cf({"scale_factor": 0.5, "add_offset": 0.0})
    {'scale_factor': 0.5, 'add_offset': 0.0}
    """
    offset = attributes.get(OFFSET)
    if not isinstance(offset, np.number | int | float) or not offset:
        return dict(attributes)
    scale = attributes.get(SCALE)
    if attributes.keys() >= OF_LIBRARY and isinstance(scale, np.number | int | float):
        return {**attributes, OFFSET: -scale * offset, KEPT + OFFSET: offset}
    return {
        KEPT + name if name in (SCALE, OFFSET) else name: value
        for name, value in attributes.items()
    }


# ---------------------------------------------------------------------- old groups

TEXTS = {LABELS: "long_name", UNITS: "units", FORMATS: "format"}
"""Attributes by the tag of elements with a text for the data set, and one for each dimension."""
CALIBRATED = ("scale_factor", "scale_factor_err", "add_offset", "add_offset_err")
PRECISE = 36
"""Bytes of a calibration in double precision."""


def read_old_datasets(elements: Elements) -> Datasets:
    """Return the data sets that groups of a file describe.

    Raises
    ------
    FormatError
        They are damaged.
    """
    found: list[Dataset] = []
    groups = [(NUMERIC_GROUP, ref) for ref in elements.list_refs(NUMERIC_GROUP)]
    seen = set[int]()
    for key in groups:
        members = read_members(elements, key)
        if LINK in members:
            # the same data set as older programs find it
            seen.add(unpack(">HHHH", elements.read((LINK, members[LINK])))[3])
    groups += [(OLD_GROUP, ref) for ref in elements.list_refs(OLD_GROUP) if ref not in seen]
    count = 0
    for key in groups:
        made = _OldDataset(elements, read_members(elements, key), count)
        found += [*made.list_scales(), made.show(f"Data-Set-{key[1]}")]
        count += len(made.lengths)
    return Datasets(found)


class _OldDataset:
    """A data set with its dimensions, the first of which has a number among those of the file."""

    def __init__(self, elements: Elements, members: dict[int, int], first: int) -> None:
        self._elements = elements
        self._members = members
        record = self._take(DIMENSIONS)
        (rank,) = unpack(">H", record)
        if not 1 <= rank <= MOST_AXES:
            raise FormatError(f"a data set has {rank} axes; the file is damaged, fetch it again")
        self.lengths = unpack(f">{rank}I", record[2:])
        kinds = unpack(f">{2 * rank + 2}H", record[2 + 4 * rank :])
        tags, refs = kinds[::2], kinds[1::2]
        if any(tag != NUMBER_TYPE for tag in tags):
            raise FormatError(
                f"a data set of {self.lengths} has number types of tags {tags}, not {NUMBER_TYPE}; "
                f"the file is damaged, fetch it again"
            )
        self.dtype, *self._scale_types = (read_number_type(elements, ref) for ref in refs)
        self._dimensions = tuple(
            Dimension(f"fakeDim{first + axis}", length) for axis, length in enumerate(self.lengths)
        )
        self._texts = {name: self._take(tag).split(b"\0") for tag, name in TEXTS.items()}

    def _take(self, tag: int) -> bytes:
        ref = self._members.get(tag)
        return b"" if ref is None else self._elements.read((tag, ref))

    def _find_texts(self, place: int) -> dict[str, Any]:
        """Return the texts about the data set, or about one of its dimensions."""
        found = {name: texts[place : place + 1] for name, texts in self._texts.items()}
        return {name: show_attribute(name, np.array(t)) for name, t in found.items() if any(t)}

    def list_scales(self) -> list[Dataset]:
        """Return the scales that have values: flags come first, then the values."""
        data = self._take(SCALES)
        flags, place = data[: len(self.lengths)], len(self.lengths)
        found = []
        for axis, flag in enumerate(flags):
            dtype, dimension = self._scale_types[axis], self._dimensions[axis]
            if not flag:
                continue
            if not isinstance(dtype, np.dtype):
                # behind unknown numbers nothing can be found
                break
            (raw,) = unpack(f"{self.lengths[axis] * dtype.itemsize}s", data[place:])
            place += len(raw)
            values: npt.NDArray[Any] = np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))
            texts = self._find_texts(axis + 1)
            found.append(Dataset(dimension.name, None, (dimension,), dtype, texts, values=values))
        return found

    def show(self, name: str) -> Dataset:
        """Return the data set."""
        attributes: dict[str, Any] = {}
        if text := self._take(COORDINATE_SYSTEM):
            attributes["coordsys"] = show_attribute("", np.array([text]))
        if isinstance(self.dtype, np.dtype):
            attributes |= self._find_numbers(self.dtype)
        attributes |= self._find_calibration() | self._find_texts(0)
        ref = self._members.get(DATA)
        return Dataset(name, ref, self._dimensions, self.dtype, attributes)

    def _find_numbers(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return the range of the values, and the fill value."""
        found = dict[str, Any]()
        names = {RANGE: ("valid_max", "valid_min"), FILL: ("_FillValue",)}
        for tag, attributes in names.items():
            data = self._take(tag)
            if len(data) >= len(attributes) * dtype.itemsize:
                values = np.frombuffer(data, dtype, len(attributes)).astype(dtype.newbyteorder("="))
                found |= dict(zip(attributes, values, strict=True))
        return found

    def _find_calibration(self) -> dict[str, Any]:
        data = self._take(CALIBRATION)
        if not data:
            return {}
        dtype = np.dtype(">f8" if len(data) == PRECISE else ">f4")
        if len(data) != 4 * dtype.itemsize + 4:
            raise UnsupportedError(f"a calibration has {len(data)} bytes; read it with pyhdf")
        numbers = np.frombuffer(data, dtype, 4).astype(dtype.newbyteorder("="))
        (code,) = unpack(">i", data[4 * dtype.itemsize :])
        return dict(zip(CALIBRATED, numbers, strict=True)) | {"calibrated_nt": np.int32(code)}


# ---------------------------------------------------------------------- datasets

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
