"""Check references into the global heap before HDF5 follows them.

HDF5 keeps strings and sequences of varying length as references (HDF5 File Format Specification
3.0, IV.B). A bad reference can make HDF5 end the process, or read for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from virtualds.parsers.hdf5.objects import Dataset, HDF5Files
from virtualds.parsers.hdf5.storage import build_raw_array
from virtualds.parsers.hdf5.structure.element_types import Elements, check_elements
from virtualds.parsers.hdf5.structure.messages import TypeClass
from virtualds.parsers.hdf5.virtual_datasets import list_mapped_sources

BYTES_AT_ONCE = 2**26
"""Bytes of references that are checked at a time."""


def check_heap(dataset: Dataset, files: HDF5Files, box: Sequence[slice] | None = None) -> None:
    """Refuse a dataset that refers to objects missing from the heap.

    Parameters
    ----------
    dataset : Dataset
    files : HDF5Files
        Opens the sources of a virtual dataset, which are checked as a whole.
    box : sequence of slice, optional
        The part that is about to be read; all of it by default.

    Raises
    ------
    FormatError
        The heap is damaged, or lacks an object.
    ReadError
        The references cannot be read.
    """
    kind = dataset.referring
    if kind is None:
        return
    if dataset.is_virtual:
        for _, source in list_mapped_sources(dataset, files):
            check_heap(source, files)
        return
    while kind.kind == TypeClass.ARRAY:
        _, kind = kind.parts[0]
    for _, elements in read_elements(dataset, kind.size, box):
        check_elements(dataset.file, kind, elements)


def read_elements(
    dataset: Dataset, size: int, box: Sequence[slice] | None = None
) -> Iterator[tuple[tuple[slice, ...], Elements]]:
    """Yield parts of a box inside a dataset, and their elements as stored, one a row."""
    array = build_raw_array(dataset, size)
    for part in _cut_box(array.shape, box, size):
        raw = np.ascontiguousarray(array.read(part))
        yield part, raw.view(np.uint8).reshape(-1, size)


def _cut_box(
    shape: tuple[int, ...], box: Sequence[slice] | None, size: int
) -> list[tuple[slice, ...]]:
    """Cut the part of a box inside an array into smaller parts, along the first axis."""
    whole = box or tuple(slice(0, n) for n in shape)
    inside = [slice(min(k.start, n), min(k.stop, n)) for k, n in zip(whole, shape, strict=True)]
    if not shape:
        return [()]
    first, *rest = inside
    row = size * prod(k.stop - k.start for k in rest)
    if not row:
        return []
    step = max(BYTES_AT_ONCE // row, 1)
    starts = range(first.start, first.stop, step)
    return [(slice(n, min(n + step, first.stop)), *rest) for n in starts]
