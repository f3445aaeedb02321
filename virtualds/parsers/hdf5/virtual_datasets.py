"""Virtual datasets of HDF5, which are assembled from regions of other datasets.

HDF5 file format, IV.A.2.i, Data Layout message, version 4, layout class 3; HDF5 RFC "Virtual
Dataset". Boxes become fragments; h5py reads other selections.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import Box, assemble, crop_box
from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.hdf5.data_types import StoredType
from virtualds.parsers.hdf5.objects import (
    HDF5Dataset,
    HDF5Files,
    ListCandidates,
    find_dataset,
    find_referenced_file,
    list_absolute,
    list_beside,
    list_in_working_directory,
)
from virtualds.parsers.hdf5.storage import build_stored_array, get_fill, list_external_segments
from virtualds.source_file import SourceFile, scheme_of

FILE_NUMBER_PATTERN = re.compile(r"(?<!%)(%%)*%\d*b")
"""Matches names with a file number (HDF5 reference manual, `H5Pset_virtual`)."""
MAX_CELLS = 10**8
"""Maximum number of cells between the edges of all boxes in which to search for overlaps."""
ALL_SELECTED, HYPERSLABS_SELECTED = 3, 2
"""Kinds of selection (HDF5 reference manual, `H5Sget_select_type`)."""


class Mapping(NamedTuple):
    """A region of a virtual dataset and its source; selections that are not boxes are None."""

    target: Box | None
    file: SourceFile
    path: bytes
    source: Box | None


def build_mapped_array(
    dataset: HDF5Dataset,
    stored: StoredType,
    files: HDF5Files,
    parents: frozenset[Any] = frozenset(),
) -> ManifestArray | None:
    """Return a virtual dataset as references into its source files.

    Parameters
    ----------
    dataset : HDF5Dataset
    stored : StoredType
    files : HDF5Files
        Opens the source files.
    parents : frozenset
        Addresses of the virtual datasets that contain this one.

    Returns
    -------
    ManifestArray or None
        None if it cannot be expressed by references, but h5py can read it.

    Raises
    ------
    FormatError
        A source file or dataset is missing: HDF5 would read its fill value.
    UnsupportedError
        It names its files by a pattern, or it is part of itself.
    """
    if dataset.address in parents:
        raise UnsupportedError(
            f"virtual dataset {dataset.name!r} of {dataset.source.url} is part of itself; leave it "
            f"out with drop_variables"
        )
    mappings = list(_iterate_mappings(dataset))
    parts = _build_parts(mappings, stored, files, parents | {dataset.address})
    boxes = [m.target for m in mappings if m.target is not None]
    if any(part is None for part in parts) or _may_overlap(boxes):
        return None
    fill = get_fill(dataset, stored.dtype)
    fill_element = (
        np.zeros((), stored.dtype) if fill is None else np.frombuffer(fill, stored.dtype)[0]
    )
    # elements that are arrays add axes, along which each part is whole
    placed_parts = [
        (tuple(start for start, _ in box) + (0,) * len(stored.shape), part)
        for box, part in zip(boxes, parts, strict=True)
        if part is not None
    ]
    native = stored.dtype.newbyteorder("=")
    axes = range(len(dataset.shape))
    return assemble(dataset.shape, native, np.asarray(fill_element, native)[()], placed_parts, axes)


def list_needed_files(dataset: HDF5Dataset, files: HDF5Files) -> tuple[SourceFile, ...]:
    """Return the other files that h5py needs to read a dataset.

    HDF5 silently fills the values of missing files. It looks for the sources of a virtual dataset
    first next to the file, but for external raw data in the working directory, which may change.
    So the names of raw data files must be absolute.

    Raises
    ------
    FormatError
        A file is missing or too short.
    UnsupportedError
        The file is remote: HDF5 would look for the others on local disk.
    """
    needed: dict[SourceFile, None] = {}
    if dataset.is_virtual:
        for file, source in iterate_mapped_sources(dataset, files):
            needed[file] = needed[source.source] = None
            needed |= dict.fromkeys(list_needed_files(source, files))
    elif dataset.is_external:
        needed = dict.fromkeys(
            segment_file for segment_file, _, _ in list_external_segments(dataset, (list_absolute,))
        )
    needed.pop(dataset.source, None)
    if needed and scheme_of(dataset.source.url) != "file":
        raise UnsupportedError(
            f"it is assembled from {len(needed)} other files in a way that only HDF5 can read, "
            f"which cannot find them on a server; copy the files to local disk, or leave the "
            f"variable out with drop_variables"
        )
    return tuple(needed)


def iterate_mapped_sources(
    dataset: HDF5Dataset, files: HDF5Files
) -> Iterator[tuple[SourceFile, HDF5Dataset]]:
    """Yield each source of a virtual dataset, with the file in the mapping.

    The file stays open until the next one is yielded.
    """
    # many boxes may come from the same dataset, which is opened once
    distinct = {(m.file, m.path): m for m in _iterate_mappings(dataset, (list_beside,))}
    for mapping in distinct.values():
        with files.open_temporarily(mapping.file):
            yield mapping.file, _find_source(mapping, files)


def _iterate_mappings(
    dataset: HDF5Dataset,
    candidates: Sequence[ListCandidates] = (list_beside, list_in_working_directory),
) -> Iterator[Mapping]:
    sources: dict[str, SourceFile] = {".": dataset.source}
    for number in range(dataset.plist.get_virtual_count()):
        name = os.fsdecode(dataset.plist.get_virtual_filename(number))
        path = os.fsencode(dataset.plist.get_virtual_dsetname(number))
        if FILE_NUMBER_PATTERN.search(name) or FILE_NUMBER_PATTERN.search(os.fsdecode(path)):
            raise UnsupportedError(
                f"it is a virtual dataset of files named by the pattern {name!r}, and HDF5 fills "
                f"values of missing files; open the files and combine them with xarray, or "
                f"leave the variable out with drop_variables"
            )
        if name not in sources:
            sources[name] = find_referenced_file(name, dataset.source, candidates)
        target = _to_box(dataset.plist.get_virtual_vspace(number))
        yield Mapping(
            target, sources[name], path, _to_box(dataset.plist.get_virtual_srcspace(number))
        )


def _build_parts(
    mappings: Sequence[Mapping], stored: StoredType, files: HDF5Files, parents: frozenset[Any]
) -> list[ManifestArray | None]:
    """Return the array of each mapping; each source file is opened once."""
    by_file: dict[SourceFile, list[int]] = {}
    for number, mapping in enumerate(mappings):
        by_file.setdefault(mapping.file, []).append(number)
    parts: list[ManifestArray | None] = [None] * len(mappings)
    for source, numbers in by_file.items():
        with files.open_temporarily(source):
            arrays: dict[bytes, ManifestArray | None] = {}
            for number in numbers:
                mapping = mappings[number]
                if mapping.path not in arrays:
                    arrays[mapping.path] = _build_source_array(
                        _find_source(mapping, files), stored, files, parents
                    )
                parts[number] = _build_part(mapping, arrays[mapping.path], stored)
    return parts


def _to_box(space: Any) -> Box | None:
    """Return a selection as a box, or None if it is not a box."""
    if space.get_select_type() == ALL_SELECTED:
        return tuple((0, n) for n in space.get_simple_extent_dims())
    if space.get_select_type() != HYPERSLABS_SELECTED:
        return None
    try:
        start, last = space.get_select_bounds()
    except RuntimeError:
        return None  # an unlimited selection has no bounds
    box = tuple((a, b + 1) for a, b in zip(start, last, strict=True))
    return box if prod(b - a for a, b in box) == space.get_select_npoints() else None


def _build_part(
    mapping: Mapping, source: ManifestArray | None, stored: StoredType
) -> ManifestArray | None:
    """Return the mapped region of a source, with the axes of the virtual dataset."""
    target, box = mapping.target, mapping.source
    if source is None or target is None or box is None:
        return None
    if any(stop > n for (_, stop), n in zip(box, source.shape, strict=False)):
        return None
    within = tuple((0, n) for n in stored.shape)
    shape = tuple(stop - start for start, stop in target + within)
    return _reshape(crop_box(source, box + within), shape)


def _find_source(mapping: Mapping, files: HDF5Files) -> HDF5Dataset:
    """Return the source dataset of a mapping, possibly through links to other files."""
    dataset = find_dataset(files, mapping.file, mapping.path)
    if dataset is None:
        raise FormatError(
            f"{mapping.file.url}: there is no dataset {os.fsdecode(mapping.path)!r}, from "
            f"which a virtual dataset is assembled; restore it, or use drop_variables"
        )
    return dataset


def _build_source_array(
    source: HDF5Dataset, stored: StoredType, files: HDF5Files, parents: frozenset[Any]
) -> ManifestArray | None:
    """Return a source dataset as references, or None if HDF5 must read or convert it."""
    source_type = source.stored
    if (
        source_type.dtype.newbyteorder("=") != stored.dtype.newbyteorder("=")
        or source_type.shape != stored.shape
    ):
        return None
    if source.is_virtual:
        return build_mapped_array(source, source_type, files, parents)
    return build_stored_array(source, source_type, ("",) * len(source.shape), {})


def _reshape(array: ManifestArray, shape: tuple[int, ...]) -> ManifestArray | None:
    """Return an array with axes of length 1 inserted and removed, or None if that is impossible.

    A mapping pairs the elements of both selections in C order.
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


def _may_overlap(boxes: list[Box]) -> bool:
    """Return whether two boxes may share an element."""
    if len(boxes) < 2 or not boxes[0]:
        return len(boxes) > 1
    # the axes of `ends`: array axis, box, and start or stop
    ends = np.array(boxes).swapaxes(0, 1)
    edges = [np.unique(axis_ends) for axis_ends in ends]
    if prod(map(len, edges)) > MAX_CELLS:
        return True
    seen = np.zeros([len(axis_edges) for axis_edges in edges], bool)
    cells = np.stack([np.searchsorted(edge, end) for edge, end in zip(edges, ends, strict=True)])
    for begin, stop in cells.transpose(1, 2, 0).tolist():
        covered = tuple(map(slice, begin, stop))
        if seen[covered].any():
            return True
        seen[covered] = True
    return False
