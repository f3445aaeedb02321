"""Many HDF5 files of one structure, read together by a blueprint (`blueprint`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from virtualds.arrays.group import ManifestGroup
from virtualds.parsers.hdf5.blueprint import Blueprint
from virtualds.parsers.hdf5.objects import Dataset
from virtualds.source_file import SourceFile

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
