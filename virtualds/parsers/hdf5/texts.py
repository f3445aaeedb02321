"""Datasets of strings of varying length, read without HDF5.

The elements of such a dataset refer to the global heap (HDF5 File Format Specification 3.0, IV.B).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.options import get_options
from virtualds.parsers.hdf5.data_types import TEXT_DTYPE
from virtualds.parsers.hdf5.heap_check import read_elements
from virtualds.parsers.hdf5.numpy_types import CHARSETS
from virtualds.parsers.hdf5.objects import Dataset
from virtualds.parsers.hdf5.structure import element_types
from virtualds.parsers.hdf5.structure.messages import FillState, LayoutClass


def holds_texts(dataset: Dataset) -> bool:
    """Say whether the elements of a dataset are strings that `read_texts` reads."""
    fill = dataset.facts.fill
    # a fill value that h5py found has no bytes here
    is_known = bool(fill.raw) or not fill.is_chosen
    # without any fill value HDF5 refuses a dataset that was never written
    layout = dataset.facts.layout
    is_written = layout.address is not None or layout.kind == LayoutClass.COMPACT
    is_known = is_known and (is_written or fill.state != FillState.UNDEFINED)
    is_read_here = get_options().hdf5 == "auto" and is_known and not dataset.is_virtual
    return is_read_here and dataset.type.is_text


def read_texts(dataset: Dataset, box: Sequence[slice]) -> npt.NDArray[np.object_]:
    """Return the strings of a box, as h5py reads them (`h5py.Dataset.asstr`).

    Strings past the end of the dataset are empty.

    Raises
    ------
    FormatError
        The heap is damaged, or lacks an object.
    ReadError
        The references cannot be read.
    """
    kind, budget = dataset.type, element_types.Budget(dataset.file)
    encoding = CHARSETS[kind.charset]
    whole = np.full([k.stop - k.start for k in box], "", TEXT_DTYPE)
    for part, elements in read_elements(dataset, kind.size, box):
        found = element_types.read_texts(budget, kind, elements, encoding)
        pairs = zip(part, box, strict=True)
        at: Any = tuple(slice(p.start - k.start, p.stop - k.start) for p, k in pairs)
        # with an ellipsis a scalar is the string, and not an array that holds it
        whole[(*at, ...)] = found.reshape([p.stop - p.start for p in part])
    return whole
