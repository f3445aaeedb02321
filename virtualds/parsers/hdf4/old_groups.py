"""Scientific data sets of files from before HDF 3.3, which numeric data groups describe.

HDF Specification and Developer's Guide (HDF 4.2), section 9.3.5. Names are those that the HDF4
library gives: such files name neither data sets nor dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.hdf4.datasets import (
    Dataset,
    Datasets,
    Dimension,
    read_number_type,
    show_attribute,
)
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
    Elements,
    unpack,
)
from virtualds.parsers.hdf4.storage import MOST_AXES
from virtualds.parsers.hdf4.tables import read_members

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
