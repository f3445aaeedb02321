"""HDF4 files: scientific data sets, with the dimensions and attributes that they have.

Raster images, palettes, annotations and tables of their own (Vdatas) are no data sets of arrays;
they are left where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, describe_left_out
from virtualds.arrays.parser import (
    NativeReader,
    NativeReadError,
    NativeRegion,
    Parser,
    ReadNative,
    region_of,
)
from virtualds.errors import FormatError, VirtualdsError
from virtualds.parsers.hdf4.datasets import (
    Dataset,
    Part,
    name_apart,
    read_datasets,
    read_old_datasets,
    show_as_cf,
    split_parts,
)
from virtualds.parsers.hdf4.elements import MAGIC, Elements, open_elements
from virtualds.parsers.hdf4.storage import Wanted, build_array, measure
from virtualds.source_file import SourceFile
from virtualds.stores.scan_cache import describe_damage
from virtualds.urls import path_or_url

FILLS: dict[str, Any] = {
    **{"S": b"\0", "i1": -127, "u1": 129, "i2": -32767, "u2": 32769, "i4": -(2**31) + 1},
    **{"u4": 2**31 + 1, "f": 9.969209968386869e36, "i8": 0, "u8": 0},
}
"""What is read where nothing was written and no fill value is set, by kind and bytes."""


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is HDF4."""
    return head[: len(MAGIC)] == MAGIC


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the structure of all scientific data sets of a file.

    Parameters
    ----------
    source : SourceFile
        The file with its fingerprint.
    group : str, optional
        The root, or a grid of HDF-EOS2 where a file has several.
    skip : iterable of str
        Names of variables to leave out.

    Raises
    ------
    FormatError
        The file is damaged or truncated.
    FileNotFoundError
        There is no such group.
    """
    with (
        describe_damage(source, "HDF4", (ValueError, OverflowError)),
        open_elements(source) as elements,
    ):
        found = read_datasets(elements) or read_old_datasets(elements)
        skipped = frozenset(skip)
        parts = {
            name: _read_part(elements, part, skipped) for name, part in split_parts(found).items()
        }
    root = replace(parts.pop(""), attributes=found.attributes, groups=parts)
    problems = {f":{name}": error for name, error in found.problems.items()}
    return replace(root, problems={**problems, **root.problems}).group(group)


def _read_part(elements: Elements, part: Part, skipped: frozenset[str]) -> ManifestGroup:
    lengths = {name: v.data.shape[0] for name, v in part.coordinates.items() if v.dims}
    reader = _Reader(elements, skipped, lengths)
    for name, dataset in _name_datasets(part).items():
        reader.take(name, dataset)
    encoding = {"unlimited_dims": reader.unlimited}
    variables, left_out = reader.variables | part.coordinates, reader.left_out
    found = ManifestGroup(variables, {}, {}, encoding, reader.problems, left_out=left_out)
    return found.leave_out(skipped)


def _name_datasets(part: Part) -> dict[str, Dataset]:
    """Return data sets by names that no coordinate has; scales without values are none."""
    named: dict[str, Dataset] = {}
    for dataset in part.members:
        if not dataset.is_scale or dataset.ref is not None:
            named[name_apart(dataset.name, {*named, *part.coordinates})] = dataset
    return named


class _Reader:
    """The variables of a group, with the dimensions that they share."""

    def __init__(
        self, elements: Elements, skipped: frozenset[str], lengths: dict[str, int]
    ) -> None:
        self.variables: dict[str, ManifestVariable] = {}
        self.problems: dict[str, VirtualdsError] = {}
        self.left_out: dict[str, ManifestVariable] = {}
        self.unlimited: set[str] = set()
        self._elements = elements
        self._skipped = skipped
        self._lengths = lengths

    def take(self, name: str, dataset: Dataset) -> None:
        """Add a data set: a variable, and a problem where it cannot be read."""
        if name in self._skipped:
            with suppress(VirtualdsError):
                dims = self._name_dimensions(name, dataset, self._find_shape(dataset))
                self.left_out[name] = describe_left_out(
                    dims, _check_dtype(dataset), show_as_cf(dataset.attributes)
                )
            return
        shape: tuple[int, ...] = ()
        try:
            shape = self._find_shape(dataset)
            data: Any = self._build(dataset, shape)
        except VirtualdsError as error:
            error.locate(f"variable {name!r}", self._elements.source.url)
            self.problems[name] = error
            dtype = dataset.dtype if isinstance(dataset.dtype, np.dtype) else "V1"
            data = ManifestArray.unreadable(shape, dtype, f"{error}")
        self.problems |= {f"{name}:{of}": why for of, why in dataset.problems.items()}
        dims = self._name_dimensions(name, dataset, shape)
        self.variables[name] = self._show(dataset, dims, data)

    def _find_shape(self, dataset: Dataset) -> tuple[int, ...]:
        lengths = [d.length for d in dataset.dimensions]
        if None in lengths[1:]:
            raise FormatError("its unlimited dimension is not the first; fetch the file again")
        if not lengths or lengths[0] is not None:
            return tuple(n for n in lengths if n is not None)
        rest = tuple(n for n in lengths[1:] if n is not None)
        row = prod(rest) * _check_dtype(dataset).itemsize
        records = measure(self._elements, dataset.ref) // row if row else 0
        return (records, *rest)

    def _build(self, dataset: Dataset, shape: tuple[int, ...]) -> Any:
        if dataset.values is not None:
            return dataset.values
        dtype = _check_dtype(dataset)
        return build_array(self._elements, Wanted(dataset.ref, shape, dtype, _find_fill(dataset)))

    def _name_dimensions(
        self, name: str, dataset: Dataset, shape: tuple[int, ...]
    ) -> tuple[str, ...]:
        """Return the names of the axes; one of another length than before gets its own."""
        found: list[str] = []
        for dimension, length in zip(dataset.dimensions, shape, strict=False):
            dim = dimension.name.replace("/", "_")
            if dim in found or self._lengths.setdefault(dim, length) != length:
                dim = f"{dim}_{name}" if dim not in found else f"{dim}_{len(found) + 1}"
                self._lengths[dim] = length
            if dimension.length is None:
                self.unlimited.add(dim)
            found.append(dim)
        return tuple(found)

    def _show(self, dataset: Dataset, dims: tuple[str, ...], data: Any) -> ManifestVariable:
        encoding: dict[str, Any] = {
            "dtype": data.dtype.newbyteorder("="),
            "source": path_or_url(self._elements.source.url),
            "original_shape": data.shape,
        }
        return ManifestVariable(dims, data, show_as_cf(dataset.attributes), encoding)


def _check_dtype(dataset: Dataset) -> np.dtype[Any]:
    """Return the type of the stored numbers.

    Raises
    ------
    VirtualdsError
        numpy has no such type.
    """
    if isinstance(dataset.dtype, VirtualdsError):
        raise dataset.dtype
    return dataset.dtype


def _find_fill(dataset: Dataset) -> bytes | None:
    """Return what the library reads where nothing was written, None if nobody knows.

    It takes the first bytes of a ``_FillValue``, of whatever type, as they lie in memory.
    """
    dtype = _check_dtype(dataset)
    chosen = dataset.attributes.get("_FillValue")
    if chosen is None:
        fill = FILLS.get(dtype.str[1:], FILLS.get(dtype.kind))
        return np.asarray(fill).astype(dtype).tobytes()
    values = np.atleast_1d(chosen)
    raw = values.astype(values.dtype.newbyteorder("<")).tobytes()[: dtype.itemsize]
    if len(raw) < dtype.itemsize:
        return None
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).tobytes()


def _open_pyhdf(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    """Open a file with pyhdf, which shows values as they are stored."""
    from pyhdf.error import HDF4Error
    from pyhdf.SD import SD

    file = SD(str(target()))
    closing.callback(file.end)
    names = [file.select(number).info()[0] for number in range(file.info()[0])]

    def read_part(wanted: NativeRegion) -> Any:
        if wanted.decoded:
            return None
        if names.count(wanted.variable) != 1:
            raise NativeReadError("it knows no data set of that name alone")
        try:
            values = file.select(names.index(wanted.variable)).get()
        except HDF4Error as error:
            raise NativeReadError(f"{error}") from error
        return region_of(np.asarray(values), wanted)

    return read_part


PARSER = Parser(
    "hdf4",
    (".hdf", ".hdf4", ".h4"),
    detect,
    read,
    natives=(NativeReader("pyhdf", _open_pyhdf),),
)
