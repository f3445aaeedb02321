"""Many HDF5 files of one structure, read together by a blueprint (`blueprint`)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from virtualds.arrays.alike_files import AlikeRun
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.projection import Ints
from virtualds.errors import VirtualdsError
from virtualds.options import get_options
from virtualds.parsers.hdf5 import members
from virtualds.parsers.hdf5.blueprint import Blueprint, Match
from virtualds.parsers.hdf5.byte_rows import Bools, RowsError, is_defined, read_uints
from virtualds.parsers.hdf5.chunk_indexes import read_indexes
from virtualds.parsers.hdf5.chunk_indexes.form import ChunkRows, IndexForm
from virtualds.parsers.hdf5.dataset_facts import ADDRESS, CHUNK, DATA, LENGTH, SIZE
from virtualds.parsers.hdf5.file import HDF5Files
from virtualds.parsers.hdf5.group_reader import (
    NOT_A_COORDINATE,
    GroupRead,
    read_group_with_members,
)
from virtualds.parsers.hdf5.layout import FILTERED_SINGLE, IndexKind, LayoutClass
from virtualds.parsers.hdf5.many_files import ManyFiles, open_many
from virtualds.parsers.hdf5.notes import Notes, Slot
from virtualds.parsers.hdf5.objects import Dataset
from virtualds.parsers.hdf5.storage import has_edges
from virtualds.parsers.hdf5.stored_columns import StoredColumns
from virtualds.source_file import SourceFile, StorageOptions

FEWEST = 3
"""Fewest files that are read together."""
MOST_TRIES = 4
"""Structures of a batch that may fit too few files; then each file is read alone."""
MOST_KEPT = 16
"""Structures that are kept: an archive has some, of its eras."""
EARLIEST = np.int64(0)


@dataclass(frozen=True, eq=False)
class KnownStructure:
    """A blueprint, with the group and the datasets of its file.

    Parameters
    ----------
    blueprint : Blueprint
    group : ManifestGroup
    source : SourceFile
    datasets : dict of str to Dataset
        By the name of the variable.
    dims : dict of str to tuple of str
        The dimensions of all datasets, by the name in the file, with those that are no variables.
    owners : dict of str to int
        What slots of datasets are called by, by the name in the file.
    half : int
        Half of the most children of a node of a version 1 B-tree of chunks.
    """

    blueprint: Blueprint
    group: ManifestGroup
    source: SourceFile
    datasets: Mapping[str, Dataset]
    axes: Mapping[tuple[int, int], str]
    root: int
    half: int
