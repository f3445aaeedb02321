"""Virtual datasets of HDF5: datasets put together from boxes of others, in this file or elsewhere.

HDF5 file format, IV.A.2.i, Data Layout message, version 4, layout class 3; HDF5 RFC "Virtual
Dataset". Boxes become fragments; a selection of another form is read through h5py.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.array import ManifestArray
from virtualds.concatenation import assemble
from virtualds.errors import FormatError, UnsupportedError
from virtualds.hdf5_file import HDF5Files, find
from virtualds.hdf5_storage import external_segments, fill_of, stored_array
from virtualds.hdf5_structure import Dataset
from virtualds.hdf5_types import StoredType, stored_type
from virtualds.manifest import SourceFile

VIRTUAL = 3
"""Layout class of virtual datasets."""
SELECT_ALL, SELECT_HYPERSLABS = 3, 2
"""Kinds of selection (HDF5 reference manual, `H5Sget_select_type`)."""


class Box(NamedTuple):
    """A box of a dataset."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def stop(self) -> tuple[int, ...]:
        """Where it ends, per axis."""
        return tuple(s + n for s, n in zip(self.start, self.shape, strict=True))


class Mapping(NamedTuple):
    """What part of which dataset stands where; None is no box."""

    target: Box | None
    file: SourceFile
    path: bytes
    source: Box | None


def is_virtual(dataset: Dataset) -> bool:
    """Say whether a dataset is put together from others."""
    return bool(dataset.plist.get_layout() == VIRTUAL)


def mapped_array(
    dataset: Dataset, stored: StoredType, files: HDF5Files, above: frozenset[Any] = frozenset()
) -> ManifestArray | None:
    """Return a virtual dataset as references into the files that it is put together from.

    Parameters
    ----------
    dataset : Dataset
    stored : StoredType
    files : HDF5Files
        Keeps the other files open.
    above : frozenset
        Addresses of the virtual datasets that this one is part of.

    Returns
    -------
    ManifestArray or None
        None where references cannot express it, but h5py can read it.

    Raises
    ------
    FormatError
        A source file or dataset is missing: HDF5 would read its fill value.
    UnsupportedError
        It names its files by a pattern, or it is part of itself.
    """
    if dataset.address in above:
        raise UnsupportedError(
            f"virtual dataset {dataset.name!r} of {dataset.source.url} is part of itself; leave it "
            f"out with drop_variables"
        )
    plist = dataset.plist
    mappings = [_mapping(plist, i, dataset.source) for i in range(plist.get_virtual_count())]
    parts = [_part(m, stored, files, above | {dataset.address}) for m in mappings]
    boxes = [m.target for m in mappings if m.target is not None]
    if any(part is None for part in parts) or _overlap(boxes):
        return None
    fill = fill_of(plist, stored.dtype)
    rest = np.zeros((), stored.dtype) if fill is None else np.frombuffer(fill, stored.dtype)[0]
    placed = [(box.start, part) for box, part in zip(boxes, parts, strict=True) if part is not None]
    native = stored.dtype.newbyteorder("=")
    axes = range(len(dataset.shape))
    return assemble(dataset.shape, native, np.asarray(rest, native)[()], placed, axes)


def needed_files(dataset: Dataset, files: HDF5Files) -> tuple[SourceFile, ...]:
    """Return the other files that h5py needs to read a dataset.

    HDF5 fills what it misses of them without a word.

    Raises
    ------
    FormatError
        One of them is missing, or too short.
    """
    needed: dict[SourceFile, None] = {}
    if is_virtual(dataset):
        for number in range(dataset.plist.get_virtual_count()):
            source = _source(_mapping(dataset.plist, number, dataset.source), files)
            needed[source.source] = None
            needed |= dict.fromkeys(needed_files(source, files))
    else:
        needed = dict.fromkeys(file for file, _, _ in external_segments(dataset))
    return tuple(needed)


def _mapping(plist: Any, number: int, source: SourceFile) -> Mapping:
    name = os.fsdecode(plist.get_virtual_filename(number))
    path = os.fsencode(plist.get_virtual_dsetname(number))
    if "%b" in name or b"%b" in path:
        raise UnsupportedError(
            f"it is a virtual dataset of files named by the pattern {name!r}, of which HDF5 fills "
            f"those that are missing; open the files and combine them with xarray, or leave the "
            f"variable out with drop_variables"
        )
    file = source if name == "." else find(name, beside=source)
    target, part = plist.get_virtual_vspace(number), plist.get_virtual_srcspace(number)
    return Mapping(_box(target), file, path, _box(part))


def _box(space: Any) -> Box | None:
    """Return the box that a selection is, None if it is none."""
    if space.get_select_type() == SELECT_ALL:
        shape = space.get_simple_extent_dims()
        return Box((0,) * len(shape), tuple(shape))
    if space.get_select_type() != SELECT_HYPERSLABS:
        return None
    start, last = space.get_select_bounds()
    shape = tuple(b - a + 1 for a, b in zip(start, last, strict=True))
    return Box(tuple(start), shape) if prod(shape) == space.get_select_npoints() else None


def _part(
    mapping: Mapping, stored: StoredType, files: HDF5Files, above: frozenset[Any]
) -> ManifestArray | None:
    """Return what one mapping shows, with the axes of the virtual dataset."""
    source = _source(mapping, files)
    kind = stored_type(source.kind)
    shown = _source_array(source, kind, files, above)
    target, box = mapping.target, mapping.source
    if shown is None or target is None or box is None:
        return None
    if kind.dtype.newbyteorder("=") != stored.dtype.newbyteorder("=") or kind.shape != stored.shape:
        return None  # HDF5 would convert
    if any(b > n for b, n in zip(box.stop, shown.shape, strict=False)):
        return None
    for axis, (start, stop) in enumerate(zip(box.start, box.stop, strict=True)):
        shown = shown.crop(axis, start, stop)
    return _reshaped(shown, target.shape + stored.shape)


def _source(mapping: Mapping, files: HDF5Files) -> Dataset:
    import h5py

    file = files.open(mapping.file)
    try:
        found = h5py.h5o.open(file.id, mapping.path)
    except KeyError as error:
        raise FormatError(
            f"{mapping.file.url}: there is no dataset {os.fsdecode(mapping.path)!r}, which a "
            f"virtual dataset is put together from; restore it, or use drop_variables"
        ) from error
    return Dataset(os.fsdecode(mapping.path), found, mapping.file)


def _source_array(
    source: Dataset, kind: StoredType, files: HDF5Files, above: frozenset[Any]
) -> ManifestArray | None:
    if is_virtual(source):
        return mapped_array(source, kind, files, above)
    return stored_array(source, kind, ("",) * len(source.shape), {})


def _reshaped(array: ManifestArray, shape: tuple[int, ...]) -> ManifestArray | None:
    """Insert and remove axes of one element, so that an array has a shape; None if that is it not.

    A mapping pairs the elements of both selections in the order of C.
    """
    if [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    for axis in reversed(range(array.ndim)):
        if array.shape[axis] == 1:
            array = array.drop_axis(axis)
    for axis, size in enumerate(shape):
        if size == 1:
            array = array.insert_axis(axis)
    return array


def _overlap(boxes: list[Box]) -> bool:
    """Say whether any two boxes share an element."""
    starts = np.array([box.start for box in boxes])
    stops = np.array([box.stop for box in boxes])
    return any(
        bool(((starts[:i] < stops[i]) & (stops[:i] > starts[i])).all(axis=1).any())
        for i in range(1, len(boxes))
    )
